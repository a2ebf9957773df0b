/* SPDX-License-Identifier: MIT
 *
 * stream: frames from one node to another, each delivered once and in order, over a route that loses, repeats, reorders, delays and damages
 * them. A pure state machine, without a clock, device or lock of its own. Its owner calls it under one lock, tells it what happened and
 * when, and carries what it emits.
 *
 * Records are gathered in an open frame. The frame is sent at once while little is under way, and waits for more records while much is. A
 * frame is kept until the peer reports that it was executed. What is missing is seen from what arrives after it or, if nothing does, by
 * time.
 */
#ifndef WEFT_TB_STREAM_H
#define WEFT_TB_STREAM_H

#include <stddef.h>

#include "fabric/tb/frame.h"
#include "weft/fabric.h"

#define TB_WINDOW 64u /* frames under way; as many as `early` can tell of, and one */
#define TB_BARES  4u  /* buffers for frames without records */
#define TB_SLOTS  (TB_WINDOW + TB_BARES)

struct tb_stream_env {
    void *ctx; /* of emit and complete */
    /* Put a frame on its way. `slot` comes back by tb_stream_left(). False: no room now; tb_stream_pump() tries again. */
    bool (*emit)(void *ctx, uint32_t slot, void *frame, uint32_t bytes);
    void (*complete)(void *ctx, weft_op *op, int status);
    void *records_ctx;
    /* Records in their order. Negative: they make no sense. */
    int (*records)(void *ctx, const uint8_t *payload, uint32_t bytes);
};

struct tb_slot {
    uint16_t bytes;     /* with the header */
    uint16_t posted;    /* times it is in a send queue now */
    bool arrived;       /* the peer has it, though it may miss one before it */
    bool lost;          /* to be sent again */
    bool retransmitted; /* its time says nothing about the way's */
    bool asks;          /* for an acknowledgement at once */
    uint32_t order;     /* of sending: what was sent before one that arrived, and has not, is lost */
    int64_t at;         /* when it was sent last */
    weft_op *ops;       /* complete when it is acknowledged */
};

struct tb_stream_counts {
    uint64_t frames, retransmitted, bares, records;     /* sent */
    uint64_t received, repeated, out_of_order, damaged; /* damaged: dropped, whatever was wrong with it */
};

struct tb_stream {
    struct tb_stream_env env;
    uint16_t here, peer;
    uint32_t session;
    uint8_t hops;    /* that a frame is given */
    uint8_t *frames; /* [TB_SLOTS] of TB_FRAME_BYTES: the owner's, registered */

    /* sending: [first, next) are under way, `next` is the open one while fill > 0 */
    uint32_t first, next, fill;
    uint32_t order, order_arrived;
    uint32_t unleft; /* sends that have not left */
    bool unsent;     /* some frame may have to be sent, or sent again: a look at all of them is worth it */
    bool want_ack;   /* somebody waits for it */
    uint32_t asked;  /* up to here the peer was asked to acknowledge at once */
    int64_t rtt, rto;
    uint32_t backoff;
    int64_t pumped;      /* last: a time before it that is still there waits for room, not for time */
    int64_t quiet_since; /* when something was last acknowledged, or sent while nothing was under way */
    struct tb_slot slots[TB_SLOTS];

    /* receiving */
    uint32_t expected;
    uint64_t early;        /* bit i: expected + 1 + i is kept in early_frames */
    uint8_t *early_frames; /* [TB_WINDOW] payloads, made at the first need */
    uint16_t early_bytes[TB_WINDOW];
    uint32_t unsaid; /* frames taken since the peer was last told */
    bool ack_now;
    int64_t ack_at; /* when to tell at the latest; 0: nothing to tell */

    uint32_t grant, granted; /* as the frames carry it: ours, and the peer's */
    /* Of the owner's messages. Blocked: one waits for credit. Probing: and the peer is asked for it, since quiet_since. */
    enum { TB_CREDIT_OK, TB_CREDIT_BLOCKED, TB_CREDIT_PROBING } credit;
    uint32_t grant_said;
    struct tb_stream_counts counts;
};

/* `frames` stays the caller's. */
void tb_stream_init(struct tb_stream *s, const struct tb_stream_env *env, uint16_t here, uint16_t peer, uint32_t session, uint8_t *frames);
/* Completes all ops that wait with `status` and frees what was made. The buffers must have left. */
void tb_stream_end(struct tb_stream *s, int status);

/* Room for a record of `bytes` in the open frame, on a multiple of 8, or NULL: the window is full. Fill it, then commit
 * exactly those bytes. */
void *tb_stream_room(struct tb_stream *s, uint32_t bytes);
void tb_stream_commit(struct tb_stream *s, uint32_t bytes);
/* Both for a record of fixed fields. False: no room. */
bool tb_stream_say(struct tb_stream *s, const struct tb_words *m);
/* How many bytes the next record may have at most to fit the open frame (a fresh one if that is nearly full); 0: no room. */
uint32_t tb_stream_fits(const struct tb_stream *s);
/* `op` completes when all records that were committed so far have been executed. */
void tb_stream_op(struct tb_stream *s, weft_op *op);
/* Those that wait end with `status`; their records stay on their way. */
void tb_stream_fail(struct tb_stream *s, int status);
/* The frame after the last one with a record that was committed so far. All records before such a frame have been executed: if not,
 * the peer is asked (at the next pump). */
uint32_t tb_stream_end_of_records(const struct tb_stream *s);
bool tb_stream_flushed(struct tb_stream *s, uint32_t frame);

/* A frame from the peer, whole; bytes from outside. -EBADMSG: damaged or another session's, dropped; other negative: records()'s. */
int tb_stream_receive(struct tb_stream *s, const void *frame, uint32_t bytes, int64_t now);
/* A buffer given to emit() has left (or never will: its queue is gone). */
void tb_stream_left(struct tb_stream *s, uint32_t slot);
/* Send what is due. */
void tb_stream_pump(struct tb_stream *s, int64_t now);
/* What was committed last waits for company: a pump would send nothing before a buffer leaves, or the frame is full. */
bool tb_stream_gathers(const struct tb_stream *s);
/* So much is under way that it is time to hear what has arrived. */
bool tb_stream_crowded(const struct tb_stream *s);
/* When pump wants to be called, if nothing happens before; INT64_MAX: never. */
int64_t tb_stream_due(const struct tb_stream *s);

/* The header's own words are in order, and the checksum over `bytes` is right. Pure; also for frames passed on. */
bool tb_frame_right(const struct tb_frame *f, const void *frame, uint32_t bytes);
/* Writes the header, with the payload's length and the checksum. */
void tb_frame_seal(const struct tb_frame *, void *frame, uint32_t bytes);

#endif
