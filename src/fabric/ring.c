/* SPDX-License-Identifier: MIT
 *
 * The message ring: see ring.h.
 */
#include "fabric/ring.h"

#include <string.h>

/* First word: marker (8) . sequence (16) . id (16) . header_len (8) . payload_len (16). The sequence catches a
 * sender that has lost its place. */
#define MARKER UINT64_C(0xa7)

static uint64_t word_make(uint64_t position, uint32_t id, uint32_t header_len, uint32_t payload_len)
{
    return MARKER << 56 | (position & 0xffff) << 40 | (uint64_t)(id & 0xffff) << 24 |
           (uint64_t)(header_len & 0xff) << 16 | (payload_len & 0xffff);
}

static inline uint32_t cells_for(uint32_t header_len, uint32_t payload_len)
{
    uint32_t body = ring_payload_at(header_len) + payload_len;
    return (8u + body + RING_CELL_BYTES - 1) / RING_CELL_BYTES;
}

static inline _Atomic uint64_t *first_word(struct ring *ring, uint64_t position)
{
    return (_Atomic uint64_t *)&ring->cells[position % RING_CELLS][0];
}

/* Copy into / out of the ring at byte `at` (of its cells), around its end. */
static inline void copy_in(struct ring *ring, uint64_t at, const void *src, size_t len)
{
    uint8_t *bytes = (uint8_t *)ring->cells;
    at %= sizeof ring->cells;
    size_t first = sizeof ring->cells - at;
    if (BASE_LIKELY(len <= first)) {
        memcpy(bytes + at, src, len);
    } else {
        memcpy(bytes + at, src, first);
        memcpy(bytes, (const uint8_t *)src + first, len - first);
    }
}

static inline void copy_out(const struct ring *ring, uint64_t at, void *dst, size_t len)
{
    const uint8_t *bytes = (const uint8_t *)ring->cells;
    at %= sizeof ring->cells;
    size_t first = sizeof ring->cells - at;
    if (BASE_LIKELY(len <= first)) {
        memcpy(dst, bytes + at, len);
    } else {
        memcpy(dst, bytes + at, first);
        memcpy((uint8_t *)dst + first, bytes, len - first);
    }
}

int ring_push(struct ring_sender *s, uint32_t id, const void *header, uint32_t header_len, const void *payload,
              uint32_t payload_len)
{
    struct ring *ring = s->ring;
    uint32_t need = cells_for(header_len, payload_len);
    if (BASE_UNLIKELY(s->tail + need - s->head_seen > RING_CELLS)) {
        /* acquire: the receiver's clearing of the cells, released with head in ring_pop(), comes before our writes */
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
        if (head - s->head_seen > s->tail - s->head_seen)
            return -EPROTO;
        s->head_seen = head;
        if (s->tail + need - head > RING_CELLS)
            return -EAGAIN;
    }
    uint64_t at = s->tail * RING_CELL_BYTES + 8;
    if (header_len)
        copy_in(ring, at, header, header_len);
    if (payload_len)
        copy_in(ring, at + ring_payload_at(header_len), payload, payload_len);
    /* release: whoever sees the word (acquire in ring_pop()) sees the body */
    atomic_store_explicit(first_word(ring, s->tail), word_make(s->tail, id, header_len, payload_len),
                          memory_order_release);
    s->tail += need;
    return 0;
}

int ring_pop(struct ring_receiver *r, struct ring_message *out)
{
    struct ring *ring = r->ring;
    uint64_t word = atomic_load_explicit(first_word(ring, r->head), memory_order_acquire);
    if (word == 0)
        return 0;
    uint32_t header_len = (uint32_t)(word >> 16) & 0xff, payload_len = (uint32_t)word & 0xffff;
    uint32_t id = (uint32_t)(word >> 24) & 0xffff;
    if (BASE_UNLIKELY(header_len > WEFT_HEADER_MAX || payload_len > WEFT_PAYLOAD_MAX ||
                      word != word_make(r->head, id, header_len, payload_len)))
        return -EPROTO;
    out->id = id;
    out->header_len = header_len;
    out->payload_len = payload_len;
    uint32_t body = ring_payload_at(header_len) + payload_len;
    copy_out(ring, r->head * RING_CELL_BYTES + 8, out->body, body);
    uint32_t taken = cells_for(header_len, payload_len);
    for (uint32_t i = 0; i < taken; i++)
        atomic_store_explicit(first_word(ring, r->head + i), 0, memory_order_relaxed);
    r->head += taken;
    /* release: pairs with the acquire in ring_push() */
    atomic_store_explicit(&ring->head, r->head, memory_order_release);
    return 1;
}
