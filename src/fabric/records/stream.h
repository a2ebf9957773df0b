/* SPDX-License-Identifier: MIT
 *
 * stream: delivers frames from one node to another once and in order, over a route that may lose, repeat, reorder, delay and damage frames.
 * A state machine without a clock, device or lock of its own. Its owner holds one lock during each call, passes it events and the time, and
 * sends the frames that it emits.
 *
 * Records are gathered in an open frame. The frame is sent at once while few frames are under way; otherwise it waits for more records. A
 * frame is kept until the peer acknowledges that it was executed. A frame counts as lost when a later frame has arrived, or when its
 * acknowledgement does not arrive in time.
 */
#ifndef WEFT_RECORDS_STREAM_H
#define WEFT_RECORDS_STREAM_H

#include <stddef.h>

#include "fabric/records/frame.h"
#include "fabric/records/window.h"
#include "weft/fabric.h"

#define TB_WINDOW 64u /* maximum number of frames under way: the number of bits in `early`, plus one */
#define TB_BARES  4u  /* buffers for frames without records */
#define TB_SLOTS  (TB_WINDOW + TB_BARES)

struct tb_stream_env {
    void *ctx; /* argument of emit and complete */
    /* Sends a frame. tb_stream_left() must follow when `slot` may be reused. Returns false if there is no room now; tb_stream_pump() tries
     * again. */
    bool (*emit)(void *ctx, uint32_t slot, void *frame, uint32_t bytes);
    void (*complete)(void *ctx, weft_op *op, int status);
    void *records_ctx;
    /* Handles records in the order of sending. Returns a negative value if the records are invalid. */
    int (*records)(void *ctx, const uint8_t *payload, uint32_t bytes);
};

struct tb_slot {
    uint16_t bytes;     /* size, including the header */
    uint16_t posted;    /* number of incomplete sends of this frame */
    bool arrived;       /* the peer has received this frame, perhaps before earlier ones */
    bool lost;          /* the frame must be sent again */
    bool retransmitted; /* the frame was sent again, so its round-trip time is unknown */
    bool asks;          /* the frame asks for an acknowledgement at once */
    bool crowded;       /* at the first sending, at least half of the window was under way */
    uint32_t order;     /* number of the last sending, in a count over all frames; used to detect lost frames */
    int64_t at;         /* time of the last sending */
    weft_op *ops;       /* ops that complete when the frame is acknowledged */
};

struct tb_stream_counts {
    uint64_t frames, retransmitted, bares, records; /* frames and records sent */
    /* received: all valid frames, with those that were repeated or out of order; damaged: frames that were dropped */
    uint64_t received, repeated, out_of_order, damaged;
};

struct tb_stream {
    struct tb_stream_env env;
    uint16_t here, peer;
    uint32_t session;
    uint8_t hops; /* the initial hop count of a frame */
    /* Set this for routes on which a send completes long before the frame arrives. Then records wait to share a frame until earlier frames
     * are acknowledged, but only for a short time; otherwise they wait until earlier sends have completed. Frames ask for acknowledgements,
     * and `window` is adapted. Set this field and the next three after tb_stream_init(). */
    bool paced;
    struct records_window window; /* window of the frames under way */
    int64_t rto_least, rto_most;  /* bounds of the retransmission time-out `rto`; set `rto` with them */
    uint8_t *frames;              /* [TB_SLOTS] of TB_FRAME_BYTES: registered memory of the caller */

    /* Sending: frames [first, next) are under way; if fill > 0, frame `next` is open. */
    uint32_t first, next, fill;
    int64_t gather_until; /* with `paced`: when the open frame is sent at the latest; 0: tb_stream_pump() has not seen it yet */
    uint32_t base;        /* frame number that maps to slot 0; changes only while no slot is used */
    uint32_t order, order_arrived;
    uint32_t unleft; /* sends that have not completed */
    bool unsent;     /* tb_stream_pump() must look for frames to send or retransmit */
    bool want_ack;   /* an operation waits for an acknowledgement */
    uint32_t asked;  /* a frame number: the peer was asked to acknowledge all frames before this one at once */
    int64_t rtt, rto;
    uint32_t backoff;
    int64_t pumped; /* when tb_stream_pump() last ran. If ack_at had passed by then and is still set, the acknowledgement waits for room in
                       the send queue, so tb_stream_due() ignores ack_at */
    int64_t quiet_since; /* time of the last acknowledgement, or of a sending while no frame was under way */
    struct tb_slot slots[TB_SLOTS];

    /* receiving */
    uint32_t expected;
    uint64_t early;        /* bit i: frame expected + 1 + i is stored in early_frames */
    uint8_t *early_frames; /* [TB_WINDOW] payloads, allocated when first needed */
    uint16_t early_bytes[TB_WINDOW];
    uint32_t unsaid; /* number of frames received since the last acknowledgement */
    bool ack_now;
    int64_t ack_at; /* deadline of the next acknowledgement; 0: none */

    uint32_t grant, granted; /* message credits, counted as in tb_frame.grant: `grant` for the peer; `granted` from the peer */
    /* BLOCKED: a message waits for credit. PROBING: also, this node has been asking the peer for credit since `quiet_since`. */
    enum { TB_CREDIT_OK, TB_CREDIT_BLOCKED, TB_CREDIT_PROBING } credit;
    uint32_t grant_said;
    struct tb_stream_counts counts;
};

void tb_stream_init(struct tb_stream *s, const struct tb_stream_env *env, uint16_t here, uint16_t peer, uint32_t session, uint8_t *frames);
/* Completes all waiting ops with `status`, and frees all memory. All sends must have completed. */
void tb_stream_end(struct tb_stream *s, int status);

/* Reserves `bytes` in the open frame for a record, at a multiple of 8. Returns NULL if the window is full. The caller writes the record,
 * and then commits the same number of bytes. */
void *tb_stream_room(struct tb_stream *s, uint32_t bytes);
void tb_stream_commit(struct tb_stream *s, uint32_t bytes);
/* Reserves and commits a record of fixed fields. Returns false if there is no room. */
bool tb_stream_say(struct tb_stream *s, const struct tb_words *m);
/* Maximum size of the next record in the open frame, or in a new frame if the open one is nearly full; 0: no room. */
uint32_t tb_stream_fits(const struct tb_stream *s);
/* `op` completes when all records committed so far have been executed by the peer. */
void tb_stream_op(struct tb_stream *s, weft_op *op);
/* Ends all waiting ops with `status`. Their records are still delivered. */
void tb_stream_fail(struct tb_stream *s, int status);
/* tb_stream_end_of_records(): the number of the frame after the last committed record. tb_stream_executed() and tb_stream_flushed():
 * whether the peer has executed all records before frame `frame`. If not, tb_stream_flushed() also requests an acknowledgement. */
uint32_t tb_stream_end_of_records(const struct tb_stream *s);
bool tb_stream_executed(const struct tb_stream *s, uint32_t frame);
bool tb_stream_flushed(struct tb_stream *s, uint32_t frame);

/* Handles an untrusted frame from the peer. Returns 0; or -EBADMSG if it drops the frame, which is damaged or of another session; or the
 * negative result of records(). */
int tb_stream_receive(struct tb_stream *s, const void *frame, uint32_t bytes, int64_t now);
/* Called when the send of a buffer given to emit() has completed, or its queue pair is gone. */
void tb_stream_left(struct tb_stream *s, uint32_t slot);
/* Called after the connection has broken. The next pump retransmits each unacknowledged frame whose send has ended. */
void tb_stream_again(struct tb_stream *s);
void tb_stream_pump(struct tb_stream *s, int64_t now);
/* Whether the last committed record waits to share its frame. Then tb_stream_pump() does not send the frame before a send completes or the
 * frame is full. */
bool tb_stream_gathers(const struct tb_stream *s);
/* Whether so many frames are under way that the caller should poll for acknowledgements. */
bool tb_stream_crowded(const struct tb_stream *s);
/* Latest time for the next tb_stream_pump() without other events; INT64_MAX: never. */
int64_t tb_stream_due(const struct tb_stream *s);

/* Whether the header's fields are valid and the checksum over `bytes` is right. A pure function, also used for forwarded frames. */
bool tb_frame_right(const struct tb_frame *f, const void *frame, uint32_t bytes);
void tb_frame_seal(const struct tb_frame *, void *frame, uint32_t bytes);

#endif
