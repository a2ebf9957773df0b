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

/* The kinds of records: what each one means, and in brackets the fields of struct tb_words that it uses. */
enum tb_record_kind {
    TB_PUT = 1, /* write the bytes that follow (offset: where) */
    TB_GET,     /* send bytes by TB_DATA with this token (token, offset: where they are, a: how many) */
    TB_DATA,    /* the next of the bytes that a TB_GET has requested follow (token) */
    TB_ATOMIC,  /* execute an atomic, and answer by TB_ANSWER (token, detail: enum fab_atomic, offset: the word, a and b: operands) */
    TB_ANSWER,  /* the answer to TB_ATOMIC (token, a: the word's former value) */
    TB_SIGNAL,  /* add to a word; there is no answer (offset: the word, a: what to add) */
    TB_MESSAGE, /* a header, padded to 8 bytes, and a payload follow (detail: number of the handler, a: length of the header) */
    /* Records about bulk transfers (bulk.h). In those about one transfer, `detail` is its number: TB_OPEN, TB_FETCH, TB_READY, TB_DONE,
     * TB_DROP, TB_DROPPED. */
    TB_OPEN,    /* a put begins (offset: at the receiver, a: length; token 1: when it is complete, add `more` to the word at offset b) */
    TB_FETCH,   /* a get begins (offset: at the receiver of this record, which sends the bytes, a: length) */
    TB_READY,   /* receives are posted on a lane (lane, token: number of the first receive, a: its piece, b: how many) */
    TB_SUM,     /* a piece was sent for a receive (lane, token: number of the receive, a: checksum of the piece) */
    TB_QUIESCE, /* answer by TB_QUIET when all sends on the lane have left (lane) */
    TB_QUIET,   /* the answer to TB_QUIESCE (lane, a: how many sends have not left yet) */
    TB_RESEND,  /* send the pieces for these receives again (lane, token: number of the first receive, a: how many) */
    TB_DONE,    /* the whole transfer has arrived and is verified */
    TB_DROP,    /* the sender of this record gives up a transfer that it began (token: 1: a get, 0: a put) */
    TB_DROPPED, /* the answer to TB_DROP for a put; if the put was complete, TB_DONE was sent first */
    TB_LANE,    /* the sender of this record has created the lane's queue pair (lane, detail: generation of the queue pair) */
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
