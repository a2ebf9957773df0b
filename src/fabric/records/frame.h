/* SPDX-License-Identifier: MIT
 *
 * What two nodes send to each other over the transports tb and ofi: frames of at most 4096 bytes, and the records in them.
 * docs/thunderbolt-protocol.md describes the same. All numbers are little-endian, as on all processors that weft supports.
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
    TB_SEQUENCED = 1, /* carries records; its sender keeps it until it is acknowledged */
    TB_BARE,          /* a header only, for acknowledgements and credits; it is never acknowledged */
};
#define TB_ASK_ACK 1u /* flag: the receiver acknowledges at once */

struct tb_frame {
    uint32_t magic;
    uint8_t version;
    uint8_t hops; /* how many more nodes may forward the frame */
    uint16_t reserved;
    uint64_t checksum; /* XXH3 of all that follows, header and payload, seeded with the session */
    uint16_t from, to; /* the two ends, not the nodes that forward the frame */
    uint32_t session;  /* identifies the connection of this pair of nodes: frames of earlier ones are dropped */
    uint32_t sequence; /* TB_SEQUENCED */
    uint32_t ack;      /* the next sequence number expected: all frames before it have been executed */
    uint64_t early;    /* bit i: frame ack + 1 + i has arrived and waits for those before it */
    uint32_t grant;    /* how many messages the receiver of this frame may send in all, counted from the beginning */
    uint16_t length;   /* of the payload */
    uint8_t type, flags;
};
_Static_assert(sizeof(struct tb_frame) == TB_HEADER_BYTES, "the frame's header");

enum tb_record_kind {
    TB_PUT = 1, /* offset; then the bytes */
    TB_GET,     /* token, offset, a: length. Answered by TB_DATA */
    TB_DATA,    /* token; then bytes: the next of those that TB_GET asked for */
    TB_ATOMIC,  /* token, detail: which, offset, a, b. Answered by TB_ANSWER */
    TB_ANSWER,  /* token, a: the former value */
    TB_SIGNAL,  /* offset, a: to be added. No answer */
    TB_MESSAGE, /* detail: handler, a: length of its header; then header, padded to 8, and payload */
    /* of bulk transfers (bulk.h) */
    TB_OPEN,    /* detail: transfer, offset: at the receiver, a: length, token: whether to add `more` to the word at offset b */
    TB_FETCH,   /* detail: transfer, offset: at the sender, a: length */
    TB_READY,   /* lane, detail: transfer, token: number of the first receive, a: first piece, b: how many */
    TB_SUM,     /* lane, token: number, a: checksum of the piece that was sent for it */
    TB_QUIESCE, /* lane: asks the receiver of this record to answer with TB_QUIET when all that it has sent on the lane has left */
    TB_QUIET,   /* lane, a: how many sends have not left (0: all have) */
    TB_RESEND,  /* lane, token: number of the first receive, a: how many: send the pieces for these receives again */
    TB_DONE,    /* detail: transfer: all of the transfer has arrived and is verified */
    TB_DROP,    /* detail: transfer, token: 1 for a get, 0 for a put: the sender of this record began the transfer, and gives it up */
    TB_DROPPED, /* detail: transfer; the answer to TB_DROP for a put. If the put was complete by then, TB_DONE came before */
    TB_LANE,    /* lane, detail: generation: this side has made the lane's queue pair */
};

/* Records follow one another, each on a multiple of 8. */
struct tb_record {
    uint8_t kind, lane;
    uint16_t detail;
    uint16_t length;     /* bytes of the record, with what follows this struct; without padding */
    uint16_t generation; /* of the lane or the transfer that the record is about, else 0 */
};
/* The fixed fields of records that carry no bytes. A record with bytes has only the fields up to `offset` (TB_PUT) or `token` (others)
   before them. */
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
