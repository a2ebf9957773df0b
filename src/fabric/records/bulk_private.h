/* SPDX-License-Identifier: MIT
 *
 * What the files of bulk share. bulk.c calls bulk_receive.c and bulk_send.c. These two call neither bulk.c nor each other.
 */
#ifndef WEFT_RECORDS_BULK_PRIVATE_H
#define WEFT_RECORDS_BULK_PRIVATE_H

#include "base/hash.h"
#include "fabric/records/bulk.h"

#define TB_BULK_PATIENCE_LEAST (2 * WEFT_MS)
/* When the peer has asked by TB_QUIESCE, TB_QUIET answers after this time at the latest, even if some sends have not left yet. */
#define TB_BULK_QUIET_WITHIN (10 * WEFT_MS)
#define TB_BULK_AHEAD        6u /* prefetch distance in frames while checksums are computed */

/* The size of the pieces of a transfer: the message size of the largest lanes that the transfer fills. */
static inline uint32_t tb_bulk_message_for(const struct tb_bulk *b, uint64_t length)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < b->lane_count; i++)
        if (b->lanes[i].message <= length && b->lanes[i].message > best)
            best = b->lanes[i].message;
    return best;
}

static inline uint64_t tb_bulk_least_of(const struct tb_bulk *b, bool down_too)
{
    uint64_t bytes = UINT64_MAX;
    for (uint32_t i = 0; i < b->lane_count; i++)
        if ((down_too || b->lanes[i].up) && b->lanes[i].message < bytes)
            bytes = b->lanes[i].message;
    return bytes;
}

static inline uint64_t tb_bulk_sum(const struct tb_bulk *b, uint64_t offset, uint32_t bytes)
{
    const uint8_t *at = b->pool + offset;
    if (b->check == TB_CHECK_FULL)
        return base_hash(at, bytes, 0);
    uint64_t sum = bytes;
    for (uint32_t i = 0; i < bytes; i += TB_FRAME_BYTES) {
        /* the processor's own prefetcher does not detect this stride */
        __builtin_prefetch(at + i + TB_BULK_AHEAD * TB_FRAME_BYTES);
        sum += base_hash(at + i, 64, i); /* no hash depends on another one, so the processor computes several at the same time */
    }
    return sum;
}

static inline uint64_t tb_bulk_piece_offset(uint64_t offset, uint64_t length, uint32_t message, uint32_t piece)
{
    uint64_t at = (uint64_t)piece * message;
    return offset + (at + message <= length ? at : length - message);
}

/* Adds up to `more` bytes to *counted, so that each byte of a transfer counts once. Returns the number of added bytes. */
static inline uint64_t tb_bulk_count(uint64_t *counted, uint64_t length, uint64_t more)
{
    uint64_t left = length - *counted, n = more < left ? more : left;
    *counted += n;
    return n;
}

static inline uint32_t tb_bulk_pieces(uint64_t length, uint32_t message)
{
    return (uint32_t)((length + message - 1) / message);
}

static inline struct tb_words tb_bulk_lane_words(const struct tb_bulk *b, enum tb_record_kind kind, uint32_t lane, uint32_t detail)
{
    struct tb_words m = tb_words_of(kind, lane, detail);
    m.r.generation = b->lanes[lane].generation;
    return m;
}

/* bulk_receive.c */
int tb_bulk_receive_begin(struct tb_bulk *b, uint32_t id, bool own, uint64_t offset, uint64_t length); /* prepares an incoming transfer */
void tb_bulk_receive_want(struct tb_transfer *t, uint32_t piece); /* marks this piece as one that needs a receive */
/* Posts receives for consecutive pieces, and announces them in one record. Returns false if no more receives can be posted now. */
bool tb_bulk_receive_post(struct tb_bulk *b, uint32_t lane, int64_t now);
void tb_bulk_receive_fetch(struct tb_bulk *b); /* requests pieces as records */
void tb_bulk_receive_repair(struct tb_bulk *b, uint32_t lane, int64_t now);
int tb_bulk_receive_sum(struct tb_bulk *b, struct tb_lane *l, const struct tb_words *m, int64_t now); /* handles TB_SUM */
int tb_bulk_receive_quiet(struct tb_bulk *b, uint32_t lane, const struct tb_words *m, int64_t now);   /* handles TB_QUIET */

/* bulk_send.c */
void tb_bulk_send_pieces(struct tb_bulk *b, uint32_t lane, int64_t now); /* sends as many pieces as can be sent now */
void tb_bulk_send_quiet(struct tb_bulk *b, uint32_t lane, int64_t now);
int tb_bulk_send_ready(struct tb_bulk *b, struct tb_lane *l, const struct tb_words *m); /* handles TB_READY */
int tb_bulk_send_again(struct tb_lane *l, const struct tb_words *m);                    /* handles TB_RESEND */

#endif
