/* SPDX-License-Identifier: MIT
 *
 * The ring of messages: see ring.h.
 */
#include "fabric/shm/ring.h"

#include <string.h>

static inline uint64_t word_make(uint64_t position, uint32_t id, uint32_t header_len, uint32_t payload_len)
{
    return ring_position_bits(position) | RING_FIRST | (uint64_t)(id & 0xff) << 19 | (uint64_t)(header_len & 0x7f) << 12 |
           (payload_len & 0xfff);
}

_Static_assert(WEFT_HEADER_MAX <= 0x7f && WEFT_PAYLOAD_MAX <= 0xfff, "lengths fit into a word");

static inline uint32_t cells_for(uint32_t body)
{
    return body <= RING_CELL_BODY ? 1 : (body + RING_CELL_BODY - 1) / RING_CELL_BODY;
}

static inline struct ring_cell *cell_at(struct ring *ring, uint64_t position)
{
    return &ring->cells[position % RING_CELLS];
}

/* Copies `len` bytes into the message that starts at cell `position`, from its byte `at` on. */
static void scatter(struct ring *ring, uint64_t position, uint32_t at, const uint8_t *src, uint32_t len)
{
    while (len) {
        uint32_t in_cell = at % RING_CELL_BODY, n = RING_CELL_BODY - in_cell;
        if (n > len)
            n = len;
        memcpy(cell_at(ring, position + at / RING_CELL_BODY)->body + in_cell, src, n);
        at += n, src += n, len -= n;
    }
}

int ring_push(struct ring_sender *s, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len)
{
    struct ring *ring = s->ring;
    uint32_t body = ring_payload_at(header_len) + payload_len, need = cells_for(body);
    if (BASE_UNLIKELY(s->tail + need - s->head_seen > RING_CELLS)) {
        /* acquire: pairs with the release in ring_pop(). The receiver has read these cells before they are overwritten. */
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
        if (head - s->head_seen > s->tail - s->head_seen)
            return -EPROTO;
        s->head_seen = head;
        if (s->tail + need - head > RING_CELLS)
            return -EAGAIN;
    }
    struct ring_cell *first = cell_at(ring, s->tail);
    if (BASE_LIKELY(need == 1)) {
        if (header_len)
            memcpy(first->body, header, header_len);
        if (payload_len)
            memcpy(first->body + ring_payload_at(header_len), payload, payload_len);
    } else {
        for (uint32_t i = 1; i < need; i++)
            __atomic_store_n(&cell_at(ring, s->tail + i)->word, ring_position_bits(s->tail + i), __ATOMIC_RELAXED);
        scatter(ring, s->tail, 0, header, header_len);
        scatter(ring, s->tail, ring_payload_at(header_len), payload, payload_len);
    }
    /* release: pairs with the acquire in ring_has(), so the receiver sees the body */
    __atomic_store_n(&first->word, word_make(s->tail, id, header_len, payload_len), __ATOMIC_RELEASE);
    s->tail += need;
    return 0;
}

int ring_pop(struct ring_receiver *r, struct ring_message *out)
{
    struct ring *ring = r->ring;
    if (!ring_has(r))
        return 0;
    struct ring_cell *first = cell_at(ring, r->head);
    uint64_t word = __atomic_load_n(&first->word, __ATOMIC_ACQUIRE);
    uint32_t header_len = (uint32_t)(word >> 12) & 0x7f, payload_len = (uint32_t)word & 0xfff;
    uint32_t id = (uint32_t)(word >> 19) & 0xff;
    if (BASE_UNLIKELY(header_len > WEFT_HEADER_MAX || payload_len > WEFT_PAYLOAD_MAX ||
                      word != word_make(r->head, id, header_len, payload_len)))
        return -EPROTO;
    out->id = id;
    out->header_len = header_len;
    out->payload_len = payload_len;
    uint32_t body = ring_payload_at(header_len) + payload_len, need = cells_for(body);
    for (uint32_t i = 0; i < need; i++) /* whole cells, because a copy of constant size is a few instructions */
        memcpy(out->body + (size_t)i * RING_CELL_BODY, cell_at(ring, r->head + i)->body, RING_CELL_BODY);
    r->head += need;
    if (BASE_UNLIKELY(r->head - r->head_told >= RING_HEAD_EVERY)) {
        r->head_told = r->head;
        /* release: pairs with the acquire in ring_push() */
        atomic_store_explicit(&ring->head, r->head, memory_order_release);
    }
    return 1;
}
