/* SPDX-License-Identifier: MIT
 *
 * A ring of messages from one sender to one receiver, in memory that both can write.
 *
 * The ring is an array of 64-byte cells. A cell is a word and 56 bytes of message; a message takes as many consecutive cells as it needs.
 * Each word contains its cell's position, so that a cell of the previous round is not taken for a new one. The word of a message's first
 * cell also has the id and the lengths, and is written last. The receiver writes `head` once for every eighth of the ring, and usually
 * nothing else. So a small message moves only one cache line.
 *
 * Neither side trusts the other. The receiver reads a word once, and checks it before it uses a length. The sender checks that `head` is
 * between its last value and the sender's own tail. Each side keeps its own positions in private memory.
 */
#ifndef WEFT_RING_H
#define WEFT_RING_H

#include "base/base.h"
#include "weft/fabric.h"

#define RING_CELL_BYTES 64u
#define RING_CELL_BODY  56u
#define RING_CELLS      4096u /* 256 KiB */
#define RING_HEAD_EVERY (RING_CELLS / 8)
#define RING_BODY_MAX   (WEFT_HEADER_MAX + WEFT_PAYLOAD_MAX)

struct ring_cell {
    uint64_t word; /* accessed atomically */
    uint8_t body[RING_CELL_BODY];
};

struct ring {
    /* The number of cells read. The receiver updates it once for RING_HEAD_EVERY cells. */
    _Alignas(BASE_CACHE_LINE) _Atomic uint64_t head;
    _Atomic uint32_t want_room; /* 1: the sender waits for room; the receiver clears this and wakes the sender */
    _Alignas(BASE_CACHE_LINE) struct ring_cell cells[RING_CELLS];
};

struct ring_sender {
    struct ring *ring;
    uint64_t tail;      /* number of cells written */
    uint64_t head_seen; /* the last value read from ring->head */
};

struct ring_receiver {
    struct ring *ring;
    uint64_t head;      /* number of cells read */
    uint64_t head_told; /* the last value written to ring->head */
};

struct ring_message {
    uint32_t id;
    uint32_t header_len, payload_len;
    uint8_t body[RING_BODY_MAX + RING_CELL_BODY]; /* whole cells: the header, then the payload at the next multiple of 8 */
};

static inline uint32_t ring_payload_at(uint32_t header_len)
{
    return (header_len + 7u) & ~7u;
}

/* The fields of a word, from the high bits down, with their widths in bits: 1 (always 1), position (24), first cell of its message (1), id
 * (8), header_len (7), payload_len (12). */
#define RING_POSITION_SHIFT 28
#define RING_FIRST          (UINT64_C(1) << 27)

static inline uint64_t ring_position_bits(uint64_t position)
{
    return (UINT64_C(1) << 24 | (position & 0xffffff)) << RING_POSITION_SHIFT;
}

/* Returns 0, -EAGAIN if there is no room, or -EPROTO if the other side has written invalid data. */
int ring_push(struct ring_sender *s, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len);
/* Returns 1 if a message was taken, 0 if there is none, or -EPROTO if the other side has written invalid data. */
int ring_pop(struct ring_receiver *r, struct ring_message *out);
/* Whether the next cell was written: its word is neither 0 nor from the previous round. */
static inline bool ring_has(const struct ring_receiver *r)
{
    uint64_t word = __atomic_load_n(&r->ring->cells[r->head % RING_CELLS].word, __ATOMIC_ACQUIRE);
    return word != 0 && word >> RING_POSITION_SHIFT != ring_position_bits(r->head - RING_CELLS) >> RING_POSITION_SHIFT;
}

#endif
