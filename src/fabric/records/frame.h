/* SPDX-License-Identifier: MIT
 *
 * The format of data over the transports tb and ofi: frames of at most 4096 bytes, which contain records. docs/thunderbolt-protocol.md
 * describes it. All numbers are little-endian.
 */
#ifndef WEFT_RECORDS_FRAME_H
#define WEFT_RECORDS_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#define TB_MAGIC         0x31627477u /* "wtb1" */
#define TB_VERSION       2u
#define TB_FRAME_BYTES   4096u
#define TB_HEADER_BYTES  48u
#define TB_PAYLOAD_BYTES (TB_FRAME_BYTES - TB_HEADER_BYTES)

enum tb_frame_type {
    TB_SEQUENCED = 1, /* has records; the sender keeps the frame until it is acknowledged */
    TB_BARE,          /* only a header, for acknowledgements and credits; never acknowledged */
};
#define TB_ASK_ACK 1u /* flag: the receiver must acknowledge at once */

struct tb_frame {
    uint32_t magic;
    uint8_t version;
    uint8_t hops; /* remaining number of nodes that may forward the frame */
    uint16_t reserved;
    uint64_t checksum; /* XXH3 of the following fields and the payload, seeded with the session */
    uint16_t from, to; /* the two ends, not forwarding nodes */
    uint32_t session;  /* identifies the connection of the two nodes; frames of earlier connections are dropped */
    uint32_t sequence; /* TB_SEQUENCED */
    uint32_t ack;      /* the next sequence number expected: all frames before it have been executed */
    uint64_t early;    /* bit i: frame ack + 1 + i has arrived out of order */
    uint32_t grant;    /* total number of messages, since the beginning, that the receiver of this frame may send */
    uint16_t length;   /* length of the payload */
    uint8_t type, flags;
};
_Static_assert(sizeof(struct tb_frame) == TB_HEADER_BYTES, "the frame's header");

enum tb_record_kind {
    TB_PUT = 1, /* offset; then the bytes */
    TB_GET,     /* token, offset, a: length. Answered by TB_DATA */
    TB_DATA,    /* token; then the next bytes of those requested by TB_GET */
    TB_ATOMIC,  /* token, detail: which, offset, a, b. Answered by TB_ANSWER */
    TB_ANSWER,  /* token, a: the former value */
    TB_SIGNAL,  /* offset, a: to be added. No answer */
    TB_MESSAGE, /* detail: handler, a: length of the header; then the header, padded to 8, and the payload */
    /* of bulk transfers (bulk.h) */
    TB_OPEN,    /* detail: transfer, offset: at the receiver, a: length, token: whether `more` is added to the word at offset b */
    TB_FETCH,   /* detail: transfer, offset: at the sender, a: length */
    TB_READY,   /* lane, detail: transfer, token: number of the first receive, a: first piece, b: how many */
    TB_SUM,     /* lane, token: number of a receive, a: checksum of the piece that was sent for this receive */
    TB_QUIESCE, /* lane: answer with TB_QUIET when all sends on the lane have left */
    TB_QUIET,   /* lane, a: number of sends that have not left (0: all have left) */
    TB_RESEND,  /* lane, token: number of the first receive, a: number of receives: send the pieces for these again */
    TB_DONE,    /* detail: transfer: the whole transfer has arrived and is verified */
    TB_DROP,    /* detail: transfer, token: 1 for a get, 0 for a put: the sender of this record gives up a transfer that it began */
    TB_DROPPED, /* detail: transfer: the answer to TB_DROP for a put. If the put was complete, TB_DONE was sent first */
    TB_LANE,    /* lane, detail: generation: the sender of this record has created the lane's queue pair */
};

/* The header of a record. Each record starts at a multiple of 8 bytes. */
struct tb_record {
    uint8_t kind, lane;
    uint16_t detail;
    uint16_t length;     /* bytes of the record, including this header, without padding */
    uint16_t generation; /* generation of the record's lane or transfer; else 0 */
};
/* The fixed fields of records that carry no bytes. Records with bytes have only the header and `offset` (TB_PUT) or `token` (others) before
 * the bytes. */
struct tb_words {
    struct tb_record r;
    uint32_t token, token_high; /* token_high: always 0 */
    uint64_t offset, a, b, more;
};

static inline struct tb_words tb_words_of(enum tb_record_kind kind, uint32_t lane, uint32_t detail)
{
    return (struct tb_words){
        .r = {.kind = (uint8_t)kind, .lane = (uint8_t)lane, .detail = (uint16_t)detail, .length = sizeof(struct tb_words)}};
}

static inline uint32_t tb_padded(uint32_t bytes)
{
    return (bytes + 7u) & ~7u;
}

#endif
