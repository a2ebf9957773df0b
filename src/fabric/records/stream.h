/* SPDX-License-Identifier: MIT
 *
 * stream: frames from one node to another, each delivered once and in order, over a route that loses, repeats, reorders, delays and damages
 * them. A state machine without a clock, device or lock of its own. Its owner holds one lock during each call, passes it events and the
 * time, and sends the frames that it emits.
 *
 * Records are gathered in an open frame. The frame is sent at once while little is under way, and waits for more records while much is. A
 * frame is kept until the peer reports that it was executed. A frame counts as lost when a frame that was sent after it has arrived, or
 * when its acknowledgement does not come in time.
 */
#ifndef WEFT_RECORDS_STREAM_H
#define WEFT_RECORDS_STREAM_H

#include <stddef.h>

#include "fabric/records/frame.h"
#include "fabric/records/window.h"
#include "weft/fabric.h"

#define TB_WINDOW 64u /* frames under way at most: as many as `early` has bits, plus one */
#define TB_BARES  4u  /* buffers for frames without records */
#define TB_SLOTS  (TB_WINDOW + TB_BARES)

struct tb_stream_env {
    void *ctx; /* the context of emit and complete */
    /* Sends a frame. The stream learns by tb_stream_left() that `slot` may be used again. False: no room now; tb_stream_pump() tries
       again. */
    bool (*emit)(void *ctx, uint32_t slot, void *frame, uint32_t bytes);
    void (*complete)(void *ctx, weft_op *op, int status);
    void *records_ctx;
    /* Handles records, in the order in which they were sent. Negative: they are invalid. */
    int (*records)(void *ctx, const uint8_t *payload, uint32_t bytes);
};

struct tb_slot {
    uint16_t bytes;     /* size, header included */
    uint16_t posted;    /* how many sends of this frame have not completed */
    bool arrived;       /* the peer has received this frame, perhaps before earlier ones */
    bool lost;          /* the frame must be sent again */
    bool retransmitted; /* the frame was sent again, so its acknowledgement does not tell the round-trip time */
    bool asks;          /* the frame asks for an acknowledgement at once */
    bool crowded;       /* when the frame was sent first, at least half of the window was under way */
    uint32_t order; /* when the frame was sent, counted in sends. If a frame has not arrived, but a frame that was sent after it has, the
                       first one is lost */
    int64_t at;     /* when the frame was sent last */
    weft_op *ops;   /* ops that complete when the frame is acknowledged */
};

struct tb_stream_counts {
    uint64_t frames, retransmitted, bares, records;     /* counts of what was sent */
    uint64_t received, repeated, out_of_order, damaged; /* counts of what was received; damaged: dropped for any reason */
};

struct tb_stream {
    struct tb_stream_env env;
    uint16_t here, peer;
    uint32_t session;
    uint8_t hops; /* the initial hop count of a frame */
    /* For routes on which a send completes long before the peer has the frame. Records then share a frame while frames are unacknowledged
     * instead of while sends are incomplete, but not for long, and such frames ask for an acknowledgement. `window` is adapted. Set this
     * field and the next three after tb_stream_init(). */
    bool paced;
    struct records_window window; /* of frames under way */
    int64_t rto_least, rto_most;  /* bounds of the retransmission time-out `rto`, which is to be set with them */
    uint8_t *frames;              /* [TB_SLOTS] of TB_FRAME_BYTES: the caller's memory, registered */

    /* Sending: frames [first, next) are under way; while fill > 0, frame `next` is open. */
    uint32_t first, next, fill;
    int64_t gather_until; /* with `paced`: when the open frame is sent at the latest; 0: pump has not seen it yet */
    uint32_t base;        /* the number of a frame that uses slot 0; changes only while no slot is used */
    uint32_t order, order_arrived;
    uint32_t unleft; /* sends that have not completed */
    bool unsent;     /* a frame may have to be sent or retransmitted: pump must check all */
    bool want_ack;   /* an operation waits for an acknowledgement */
    uint32_t asked;  /* the peer was asked to acknowledge frames before this at once */
    int64_t rtt, rto;
    uint32_t backoff;
    int64_t pumped; /* when tb_stream_pump() last ran. A timer that had expired by then and is still set waits for room in the send queue,
                       so it does not determine the next call */
    int64_t quiet_since; /* when a frame was last acknowledged, or sent while none was under way */
    struct tb_slot slots[TB_SLOTS];

    /* receiving */
    uint32_t expected;
    uint64_t early;        /* bit i: frame expected + 1 + i is kept in early_frames */
    uint8_t *early_frames; /* [TB_WINDOW] payloads, allocated when first needed */
    uint16_t early_bytes[TB_WINDOW];
    uint32_t unsaid; /* frames received since the last acknowledgement was sent */
    bool ack_now;
    int64_t ack_at; /* when an acknowledgement must be sent at the latest; 0: none is due */

    uint32_t grant, granted; /* message credit as in the frame header: granted to the peer; granted by the peer */
    /* Credit for messages. BLOCKED: a message waits for credit. PROBING: the same, and since `quiet_since` this node asks the peer for
     * credit. */
    enum { TB_CREDIT_OK, TB_CREDIT_BLOCKED, TB_CREDIT_PROBING } credit;
    uint32_t grant_said;
    struct tb_stream_counts counts;
};

/* The caller keeps ownership of `frames`. */
void tb_stream_init(struct tb_stream *s, const struct tb_stream_env *env, uint16_t here, uint16_t peer, uint32_t session, uint8_t *frames);
/* Completes all waiting ops with `status`, and frees what was allocated. All sends must have completed before. */
void tb_stream_end(struct tb_stream *s, int status);

/* Reserves `bytes` in the open frame for a record, at a multiple of 8. NULL: the window is full. The caller writes the record, then
   commits exactly these bytes. */
void *tb_stream_room(struct tb_stream *s, uint32_t bytes);
void tb_stream_commit(struct tb_stream *s, uint32_t bytes);
/* Reserves and commits a record of fixed fields. False: no room. */
bool tb_stream_say(struct tb_stream *s, const struct tb_words *m);
/* The most bytes that the next record may have to fit the open frame (or a new one, if that is nearly full); 0: no room. */
uint32_t tb_stream_fits(const struct tb_stream *s);
/* `op` completes when all records committed so far have been executed by the peer. */
void tb_stream_op(struct tb_stream *s, weft_op *op);
/* Ends all waiting ops with `status`. Their records are still delivered. */
void tb_stream_fail(struct tb_stream *s, int status);
/* tb_stream_end_of_records(): the number of the frame after the last one that holds a committed record. tb_stream_executed() and
 * tb_stream_flushed(): whether the peer has executed all records before frame `frame`. If not, tb_stream_flushed() also makes the next pump
 * ask the peer for an acknowledgement. */
uint32_t tb_stream_end_of_records(const struct tb_stream *s);
bool tb_stream_executed(const struct tb_stream *s, uint32_t frame);
bool tb_stream_flushed(struct tb_stream *s, uint32_t frame);

/* Handles a frame from the peer, whose bytes may be anything. -EBADMSG: damaged or of another session, and dropped; other negative: the
   result of records(). */
int tb_stream_receive(struct tb_stream *s, const void *frame, uint32_t bytes, int64_t now);
/* The send of a buffer given to emit() has completed, or never will, because its queue pair is gone. */
void tb_stream_left(struct tb_stream *s, uint32_t slot);
/* The connection that carries the frames has broken: the next pump sends again each frame that is not acknowledged and whose send has
 * ended. */
void tb_stream_again(struct tb_stream *s);
/* Send what is due. */
void tb_stream_pump(struct tb_stream *s, int64_t now);
/* The last committed record waits to share its frame: pump would not send it before a send completes or the frame is full. */
bool tb_stream_gathers(const struct tb_stream *s);
/* So many frames are under way that the caller should poll for acknowledgements. */
bool tb_stream_crowded(const struct tb_stream *s);
/* When pump must run if nothing happens before; INT64_MAX: never. */
int64_t tb_stream_due(const struct tb_stream *s);

/* Whether the header's fields are valid and the checksum over `bytes` is right. Only computes; also used for forwarded frames. */
bool tb_frame_right(const struct tb_frame *f, const void *frame, uint32_t bytes);
/* Writes the header, with payload length and checksum. */
void tb_frame_seal(const struct tb_frame *, void *frame, uint32_t bytes);

#endif
