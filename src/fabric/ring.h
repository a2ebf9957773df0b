/* SPDX-License-Identifier: MIT
 *
 * A ring of messages from one sender to one receiver, in memory that both can write.
 *
 * The ring is an array of 64-byte cells; a message takes as many as it needs, one after the other. Its first word
 * says what it is and is written last, so a small message costs the receiver one cache line. The receiver copies a
 * message out, clears the first word of each of its cells and moves `head` on: a first word of 0 is always "not yet".
 *
 * Neither side believes the other: the receiver checks the word (read once) before it uses a length, the sender
 * checks that `head` is between where it was and its own tail. Positions are private to the side that moves them.
 */
#ifndef WEFT_RING_H
#define WEFT_RING_H

#include "base/base.h"
#include "weft/fabric.h"

#define RING_CELL_BYTES 64u
#define RING_CELLS      4096u /* 256 KiB */
#define RING_BODY_MAX   (WEFT_HEADER_MAX + WEFT_PAYLOAD_MAX)

struct ring {
    _Alignas(BASE_CACHE_LINE) _Atomic uint64_t head; /* cells taken out so far; by the receiver */
    _Atomic uint32_t want_room;                      /* 1: the sender waits for room; receiver clears and wakes */
    _Alignas(BASE_CACHE_LINE) uint64_t cells[RING_CELLS][RING_CELL_BYTES / 8];
};

struct ring_sender {
    struct ring *ring;
    uint64_t tail;      /* cells written */
    uint64_t head_seen; /* last head read */
};

struct ring_receiver {
    struct ring *ring;
    uint64_t head;
};

struct ring_message {
    uint32_t id;
    uint32_t header_len, payload_len;
    uint8_t body[RING_BODY_MAX]; /* header, then payload, which starts at header_len rounded up to 8 */
};

static inline uint32_t ring_payload_at(uint32_t header_len)
{
    return (header_len + 7u) & ~7u;
}

/* 0; -EAGAIN no room; -EPROTO the other side has written nonsense. */
int ring_push(struct ring_sender *s, uint32_t id, const void *header, uint32_t header_len, const void *payload,
              uint32_t payload_len);
/* 1: one message taken; 0: none; -EPROTO nonsense. */
int ring_pop(struct ring_receiver *r, struct ring_message *out);
/* Is there a message? */
static inline bool ring_has(const struct ring_receiver *r)
{
    const _Atomic uint64_t *word = (const _Atomic uint64_t *)&r->ring->cells[r->head % RING_CELLS][0];
    return atomic_load_explicit(word, memory_order_acquire) != 0;
}

#endif
