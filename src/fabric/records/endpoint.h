/* SPDX-License-Identifier: MIT
 *
 * endpoint: every operation of the fabric between two nodes, as records in a stream and transfers over lanes; both ends run this code. Like
 * stream.c and bulk.c, which it uses, it does no I/O and reads no clock: its owner passes it events and the time, and gets frames and
 * completions. Apart from its own state it accesses only the pool that it was given. Its owner holds one lock during each call.
 *
 * Words of this folder:
 *
 *   record    one operation, or an answer, as bytes inside a frame (frame.h)
 *   work      an operation that was not sent at once, or that is sent in pieces (struct tb_work)
 *   ask       a request that the peer answers: a piece of a get, or an atomic (struct tb_ask)
 *   transfer  a large put or get over lanes (bulk.h)
 *   move      a copy to or from the peer's pool without records: RMA, over ofi
 *   turn      a number by which a flush distinguishes operations that began before it from later ones
 *   pump      to let an endpoint send everything that is due and for which there is room
 *
 * Records are executed in the order in which they were begun. A fence waits for everything that is not a record: transfers, answers, moves.
 * What follows the fence waits in the backlog. A move after a fence also waits for the records before the fence. Messages have credits of
 * their own, so that a slow handler of messages does not delay other operations.
 */
#ifndef WEFT_RECORDS_ENDPOINT_H
#define WEFT_RECORDS_ENDPOINT_H

#include "fabric/atomic.h"
#include "fabric/flush.h"
#include "fabric/records/bulk.h"
#include "fabric/records/stream.h"

#define TB_ASKS      256u        /* asks (requests that the peer answers) under way */
#define TB_ASK_BYTES (32u << 10) /* the most bytes of a get that one ask requests */
#define TB_MESSAGES  64u         /* the most messages of a peer that wait for their handlers at the receiver */

struct tb_endpoint_env {
    void *ctx;
    bool (*emit)(void *ctx, uint32_t slot, void *frame, uint32_t bytes);
    bool (*lane_receive)(void *ctx, uint32_t lane, uint64_t offset);
    bool (*lane_send)(void *ctx, uint32_t lane, uint64_t offset);
    /* A message has arrived, in order: keep a copy. At most TB_MESSAGES messages wait. False: there is no memory, and the peer is given
     * up. */
    bool (*message)(void *ctx, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len);
    void (*complete)(void *ctx, weft_op *op, int status);
    /* Both may be NULL. move: starts to copy bytes to the peer's pool, or with `get` from there, without records. tb_endpoint_moved()
       follows, not from inside this call. False: no room now. movable: whether that can be done with this local memory. */
    bool (*move)(void *ctx, bool get, uint8_t *local, uint64_t remote, uint64_t len, void *cookie);
    bool (*movable)(void *ctx, const uint8_t *local, uint64_t len);
};

struct tb_endpoint_config {
    uint16_t here, node;
    uint32_t session;
    uint8_t *frames; /* [TB_SLOTS], as for tb_stream_init() */
    uint8_t *pool;
    uint64_t pool_bytes, first_byte; /* this node's pool; peers may not write below first_byte */
    uint64_t segment;                /* a power of two: the memory regions of both nodes end at its multiples */
    enum tb_check check;
    /* For moves. move_least: the smallest size for which they are used (0: never). move_most: the largest size of one; the owner may change
     * it later. move_segment: a power of two; no move may cross a multiple of it in the peer's pool. */
    uint64_t move_least, move_most, move_segment;
};

struct tb_work;
struct tb_ask {
    weft_op *op;
    struct tb_work *work; /* the work that this ask is a piece of; NULL: none */
    uint64_t *old;        /* for an atomic: where to store the former value */
    uint8_t *to;          /* for a get: where to store the bytes */
    uint32_t left;
    bool used, get, bulk; /* bulk: the ask belongs to a bulk transfer */
    uint8_t turn;         /* the turn of flushes in which the ask began, as in struct tb_work */
    uint16_t transfer, generation;
    uint16_t next_free; /* 1 + the index of the next free ask; 0: this ask was never used, and the next free ask is the one behind it */
};

struct tb_endpoint_counts {
    /* bytes of large puts and gets that were sent in records, because no lane was up or the memory is not in the pool */
    uint64_t staged_puts, staged_gets;
    /* Bytes of this node's puts and messages, and of its gets, without those of transfers, which bulk counts. A move counts when it begins.
     */
    uint64_t sent_bytes, fetched_bytes;
};

struct tb_endpoint {
    struct tb_endpoint_env env;
    struct tb_stream stream;
    struct tb_bulk bulk;
    uint8_t *pool;
    uint64_t pool_bytes, first_byte;
    struct tb_work *works, **works_end;       /* works to be sent, in order */
    uint32_t ordered;                         /* how many of them are fences, or messages that wait behind a fence */
    struct tb_work *messages, **messages_end; /* messages that wait for credit */
    struct tb_work *serves, **serves_end;     /* answers that found no room */
    uint32_t serve_count;
    uint64_t backlog_bytes, message_bytes; /* bytes queued: of works and serves; of messages. Read without the lock as a hint */
    uint32_t messages_sent, messages_received;
    uint64_t move_least, move_most, move_segment; /* as configured; move_least is UINT64_MAX as long as moves are not possible */
    uint32_t tracked;                             /* asks, transfers and moves under way, which a fence waits for */
    bool fenced;                                  /* no move may begin before the peer has executed all frames before `fenced_at` */
    uint32_t fenced_at;                           /* number of a frame */
    /* For flushes. Each work and ask belongs to the turn in which it began. under_way[] counts those of the present turn and those of all
       earlier turns, indexed by the lowest bit of the turn. A flush ends the present turn, or waits to end it while works of an earlier
       turn are under way. */
    uint32_t turn, under_way[2];
    struct tb_ask asks[TB_ASKS];
    uint16_t free_ask; /* the first free ask; TB_ASKS: none is free */
    int64_t now;
    struct tb_endpoint_counts counts;
    char broken[96]; /* how the peer has violated the protocol; empty if the peer has not */
};

/* `e` is large; its address must not change. */
void tb_endpoint_init(struct tb_endpoint *e, const struct tb_endpoint_env *env, const struct tb_endpoint_config *config);
/* Completes everything pending with `status`, and frees all that was allocated. tb_endpoint_init() may follow. */
void tb_endpoint_end(struct tb_endpoint *e, int status);
int tb_endpoint_add_lane(struct tb_endpoint *e, uint32_t message_bytes, uint32_t depth);
void tb_endpoint_lane_down(struct tb_endpoint *e, uint32_t lane); /* as tb_bulk_lane_down() and tb_bulk_lane_up() */
void tb_endpoint_lane_up(struct tb_endpoint *e, uint32_t lane, uint16_t generation);

/* Start operations. The caller has checked the offsets in the peer's pool and made the op pending (status 1). Return 0, or -ENOMEM with
   nothing begun. `src` and `dst` belong to the endpoint until the op is complete, or without an op until a flush. Puts of at most 64 bytes
   and messages are copied. */
int tb_endpoint_put(struct tb_endpoint *e, uint64_t to, const void *src, uint64_t len, weft_op *op);
int tb_endpoint_put_signal(struct tb_endpoint *e, uint64_t to, const void *src, uint64_t len, uint64_t word, uint64_t add, weft_op *op);
int tb_endpoint_get(struct tb_endpoint *e, void *dst, uint64_t from, uint64_t len, weft_op *op);
/* `answer` false: the former value is not needed (`old` and `op` are NULL). */
int tb_endpoint_atomic(struct tb_endpoint *e, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, bool answer, uint64_t *old,
                       weft_op *op);
int tb_endpoint_message(struct tb_endpoint *e, uint32_t id, const void *header, uint32_t header_len, const void *payload,
                        uint32_t payload_len, weft_op *op);
int tb_endpoint_fence(struct tb_endpoint *e);
/* Whether everything that had begun when `f` was first passed (all zeros then) has been executed. If not, the endpoint asks the peer for
   an acknowledgement. */
bool tb_endpoint_flushed(struct tb_endpoint *e, struct fab_flush *f);

/* No route leads to the peer: operations that wait for it end with `status`, and may or may not have happened. What was copied (messages,
   small puts, system words) stays queued in order, and is sent when there is a route again. True: an operation without an op may not
   happen, which the next flush must report. */
bool tb_endpoint_fail(struct tb_endpoint *e, int status);

/* No lane is up, but frames reach the peer by another route: what used lanes is sent in records. */
void tb_endpoint_reroute(struct tb_endpoint *e);

/* Events. After a batch of them the caller calls tb_endpoint_pump(). */
/* Handles a frame. 0; -EBADMSG: the frame is damaged and dropped; other negative: the peer violated the protocol (`broken`). */
int tb_endpoint_frame(struct tb_endpoint *e, const void *frame, uint32_t bytes, int64_t now);
void tb_endpoint_left(struct tb_endpoint *e, uint32_t slot);
void tb_endpoint_lane_landed(struct tb_endpoint *e, uint32_t lane, int64_t now);
void tb_endpoint_lane_left(struct tb_endpoint *e, uint32_t lane);
/* A move has ended. -EAGAIN: the move has failed, perhaps after a part of its bytes, so the operation begins again. Other negative: the
   operation fails with this error. */
void tb_endpoint_moved(struct tb_endpoint *e, void *cookie, int status);
void tb_endpoint_granted(struct tb_endpoint *e, uint32_t messages); /* the program has handled `messages` more messages of the peer */
void tb_endpoint_pump(struct tb_endpoint *e, int64_t now);
/* the operation that just began waits to share a frame with others: do not call pump for it */
bool tb_endpoint_gathers(const struct tb_endpoint *e);
int64_t tb_endpoint_due(const struct tb_endpoint *e); /* when pump must be called at the latest; INT64_MAX: never */

#endif
