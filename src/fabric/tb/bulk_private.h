/* SPDX-License-Identifier: MIT
 *
 * What the files of bulk share. bulk.c calls bulk_receive.c and bulk_send.c, which call neither it nor each other.
 */
#ifndef WEFT_TB_BULK_PRIVATE_H
#define WEFT_TB_BULK_PRIVATE_H

#include "base/hash.h"
#include "fabric/tb/bulk.h"

#define TB_BULK_PATIENCE_LEAST (2 * WEFT_MS)
#define TB_BULK_QUIET_WITHIN   (10 * WEFT_MS) /* sends that have not left by then are told of as they are */
#define TB_BULK_AHEAD          6u             /* frames: of which a part is checked, that is fetched before it is needed */

/* The size of pieces for so many bytes: of the largest lanes that it fills. */
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
        __builtin_prefetch(at + i + TB_BULK_AHEAD * TB_FRAME_BYTES); /* no processor sees this step by itself */
        sum += base_hash(at + i, 64, i);                             /* none waits for the one before it */
    }
    return sum;
}

static inline uint64_t tb_bulk_piece_offset(uint64_t offset, uint64_t length, uint32_t message, uint32_t piece)
{
    uint64_t at = (uint64_t)piece * message;
    return offset + (at + message <= length ? at : length - message);
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
int tb_bulk_receive_begin(struct tb_bulk *b, uint32_t id, bool own, uint64_t offset, uint64_t length); /* a transfer that is to come */
void tb_bulk_receive_want(struct tb_transfer *t, uint32_t piece);                                      /* it needs a receive */
/* Post receives for pieces that follow one another, and say so with one record. False: nothing more goes now. */
bool tb_bulk_receive_post(struct tb_bulk *b, uint32_t lane, int64_t now);
void tb_bulk_receive_fetch(struct tb_bulk *b);                              /* ask for the pieces of transfers that use records */
void tb_bulk_receive_repair(struct tb_bulk *b, uint32_t lane, int64_t now); /* the next step of it, if one is due */
int tb_bulk_receive_sum(struct tb_bulk *b, struct tb_lane *l, const struct tb_words *m, int64_t now); /* TB_SUM has come */
int tb_bulk_receive_quiet(struct tb_bulk *b, uint32_t lane, const struct tb_words *m, int64_t now);   /* TB_QUIET has */

/* bulk_send.c */
void tb_bulk_send_pieces(struct tb_bulk *b, uint32_t lane, int64_t now);                /* as many as go now */
void tb_bulk_send_quiet(struct tb_bulk *b, uint32_t lane, int64_t now);                 /* answer TB_QUIESCE, if it is time to */
int tb_bulk_send_ready(struct tb_bulk *b, struct tb_lane *l, const struct tb_words *m); /* TB_READY has come */
int tb_bulk_send_again(struct tb_lane *l, const struct tb_words *m);                    /* TB_RESEND has */

#endif
