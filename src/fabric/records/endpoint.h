/* SPDX-License-Identifier: MIT
 *
 * endpoint: every operation of the fabric between two nodes, as records in a stream and transfers over lanes; both ends run this code. Like
 * stream.c and bulk.c, an endpoint does no I/O and reads no clock: its owner passes in events and the time, and gets frames and
 * completions. The owner holds one lock during each call.
 *
 * Words of this folder:
 *
 *   record    one operation, or an answer, as bytes inside a frame (frame.h)
 *   work      an operation that waits in a list, or is sent in pieces (struct tb_work)
 *   ask       a request that the peer answers: a piece of a get, or an atomic (struct tb_ask)
 *   transfer  a large put or get over lanes (bulk.h)
 *   move      a copy to or from the peer's pool without records: RMA, over ofi
 *   turn      a number by which a flush distinguishes operations that began before it from later ones
 *   pump      to let an endpoint send everything that is due and for which there is room
 *
 * Records are executed in the order in which they were begun. A fence waits for everything that is not a record: transfers, answers, moves.
 * Later operations wait in the backlog. A move after a fence also waits for the records before the fence. Messages have separate credits,
 * so that a slow message handler does not delay other operations.
 */
#ifndef WEFT_RECORDS_ENDPOINT_H
#define WEFT_RECORDS_ENDPOINT_H

#include "fabric/atomic.h"
#include "fabric/flush.h"
#include "fabric/records/bulk.h"
#include "fabric/records/stream.h"

#define TB_ASKS      256u        /* maximum number of requests under way that the peer must answer ("asks") */
#define TB_ASK_BYTES (32u << 10) /* maximum size of one request of a get */
#define TB_MESSAGES  64u         /* maximum number of a peer's messages that wait for their handlers */

struct tb_endpoint_env {
    void *ctx;
    bool (*emit)(void *ctx, uint32_t slot, void *frame, uint32_t bytes);
    bool (*lane_receive)(void *ctx, uint32_t lane, uint64_t offset);
    bool (*lane_send)(void *ctx, uint32_t lane, uint64_t offset);
    /* Keep a copy of a message that has arrived in order. At most TB_MESSAGES messages wait. Returns false if there is no memory; the peer
     * is then given up. */
    bool (*message)(void *ctx, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len);
    void (*complete)(void *ctx, weft_op *op, int status);
    /* A move copies bytes to or from (`get`) the peer's pool without records. move() starts a move, or returns false if there is no room
     * now; tb_endpoint_moved() is called later, not from inside move(). A `whole` operation, which is not one piece of several, may also
     * wait for others to start together; post() starts those that wait, and may call tb_endpoint_moved(). movable(): whether a move can use
     * this local memory. The three functions may be NULL. */
    bool (*move)(void *ctx, bool get, bool whole, uint8_t *local, uint64_t remote, uint64_t len, void *cookie);
    void (*post)(void *ctx);
    bool (*movable)(void *ctx, const uint8_t *local, uint64_t len);
};

struct tb_endpoint_config {
    uint16_t here, node;
    uint32_t session;
    uint8_t *frames; /* [TB_SLOTS], as for tb_stream_init() */
    uint8_t *pool;
    uint64_t pool_bytes, first_byte; /* this node's pool; peers may not write below first_byte */
    uint64_t segment;                /* size of memory regions of both nodes, a power of two */
    enum tb_check check;
    /* move_least: smallest size of an operation that uses moves (0: never). move_most: largest size of one move; may change later.
     * move_segment: a power of two; no move crosses a multiple of it in the peer's pool. */
    uint64_t move_least, move_most, move_segment;
};

struct tb_work;
struct tb_ask {
    weft_op *op;
    struct tb_work *work; /* the queued operation of which this request is a piece; NULL: none */
    uint64_t *old;        /* atomic: where to store the former value */
    uint8_t *to;          /* get: where to store the bytes */
    uint32_t left;
    bool used, get, bulk; /* bulk: the request belongs to a bulk transfer */
    uint8_t turn;         /* turn of the operation to which the request belongs; see tb_endpoint.turn */
    uint16_t transfer, generation;
    uint16_t next_free; /* 1 + index of the next free element; 0: this element was never used, and the next one is free, too */
};

struct tb_endpoint_counts {
    /* bytes of large puts and gets sent in records, because no lane was up or the memory is not in the pool */
    uint64_t staged_puts, staged_gets;
    /* sent_bytes: bytes of this node's puts and messages; fetched_bytes: bytes of its gets. Transfers are not included, but counted in
     * tb_bulk_counts. A move counts when it begins. */
    uint64_t sent_bytes, fetched_bytes;
};

struct tb_endpoint {
    struct tb_endpoint_env env;
    struct tb_stream stream;
    uint8_t *pool;
    uint64_t pool_bytes, first_byte;
    struct tb_work *works, **works_end;       /* operations to be sent, in order */
    uint32_t ordered;                         /* how many of these operations are fences, or messages that wait behind a fence */
    struct tb_work *messages, **messages_end; /* messages that wait for credit */
    struct tb_work *serves, **serves_end;     /* answers that wait for room */
    uint32_t serve_count;
    /* Queued bytes. backlog_bytes: of `works` and `serves`; message_bytes: of `messages`. Also read without the lock, as a hint. */
    uint64_t backlog_bytes, message_bytes;
    uint32_t messages_sent, messages_received;
    uint64_t move_least, move_most, move_segment; /* as configured; move_least is UINT64_MAX while moves are impossible */
    uint32_t tracked;                             /* how many requests to the peer, transfers and moves a fence would have to wait for */
    bool works_first;                             /* the next pump begins with `works`, because in the last one messages took all room */
    bool fenced;                                  /* moves wait until the peer has executed all frames before `fenced_at` */
    uint32_t fenced_at;                           /* number of a frame */
    /* For flushes. Each operation belongs to the turn in which it began, and each request to the peer to the turn of its operation.
     * under_way[turn & 1] counts those of the current turn, the other element those of earlier turns. A flush ends the current turn, but
     * only when all earlier turns are over.
     */
    uint32_t turn, under_way[2];
    uint16_t free_ask; /* the first free element of `asks`; TB_ASKS: none is free */
    int64_t now;
    struct tb_endpoint_counts counts;
    char broken[96]; /* a description of the peer's violation of the protocol; "": none */
    /* An idle connection uses memory only of the first and the last page of this struct: the first elements of `asks` follow the fields
     * above, and the used part of `bulk` is at its end. */
    struct tb_ask asks[TB_ASKS];
    struct tb_bulk bulk;
};

/* The address of `e` must not change. */
void tb_endpoint_init(struct tb_endpoint *e, const struct tb_endpoint_env *env, const struct tb_endpoint_config *config);
/* Completes all pending operations with `status`, and frees all memory. tb_endpoint_init() may follow. */
void tb_endpoint_end(struct tb_endpoint *e, int status);
int tb_endpoint_add_lane(struct tb_endpoint *e, uint32_t message_bytes, uint32_t depth);
void tb_endpoint_lane_down(struct tb_endpoint *e, uint32_t lane); /* as tb_bulk_lane_down() and tb_bulk_lane_up() */
void tb_endpoint_lane_up(struct tb_endpoint *e, uint32_t lane, uint16_t generation);

/* Start operations. The caller has checked the offsets in the peer's pool and made the op pending (status 1). Return 0, or -ENOMEM with
 * nothing begun. `src` and `dst` must stay valid until the op is complete, or without an op until a flush. Messages and puts of at most 64
 * bytes are copied. */
int tb_endpoint_put(struct tb_endpoint *e, uint64_t to, const void *src, uint64_t len, weft_op *op);
int tb_endpoint_put_signal(struct tb_endpoint *e, uint64_t to, const void *src, uint64_t len, uint64_t word, uint64_t add, weft_op *op);
int tb_endpoint_get(struct tb_endpoint *e, void *dst, uint64_t from, uint64_t len, weft_op *op);
/* `answer` false: the former value is not needed (`old` and `op` are NULL). */
int tb_endpoint_atomic(struct tb_endpoint *e, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, bool answer, uint64_t *old,
                       weft_op *op);
int tb_endpoint_message(struct tb_endpoint *e, uint32_t id, const void *header, uint32_t header_len, const void *payload,
                        uint32_t payload_len, weft_op *op);
int tb_endpoint_fence(struct tb_endpoint *e);
/* Whether all operations that had begun at the first call with `f` have been executed. `f` must be zero at the first call. If false, the
 * endpoint asks the peer for an acknowledgement. */
bool tb_endpoint_flushed(struct tb_endpoint *e, struct fab_flush *f);

/* Called when no route leads to the peer. Pending operations end with `status`, and may have happened or not. Copied ones (messages, small
 * puts, system words) stay queued until there is a route. Returns true if an operation without an op may be lost, which the next flush must
 * report. */
bool tb_endpoint_fail(struct tb_endpoint *e, int status);

/* Called while no lane is up but frames reach the peer by another route. Transfers are repeated with records. */
void tb_endpoint_reroute(struct tb_endpoint *e);

/* Events. The caller calls tb_endpoint_pump() after each batch of events. */
/* Handles a frame. Returns 0; -EBADMSG if the frame is damaged, and so dropped; or another negative value if the peer violated the protocol
 * (see `broken`). */
int tb_endpoint_frame(struct tb_endpoint *e, const void *frame, uint32_t bytes, int64_t now);
void tb_endpoint_left(struct tb_endpoint *e, uint32_t slot);
void tb_endpoint_lane_landed(struct tb_endpoint *e, uint32_t lane, int64_t now);
void tb_endpoint_lane_left(struct tb_endpoint *e, uint32_t lane);
/* A move has ended with `status`. 0: it succeeded. -EAGAIN: it failed, perhaps after a part of its bytes, and the operation begins again.
 * Another negative value: the operation fails with this error. */
void tb_endpoint_moved(struct tb_endpoint *e, void *cookie, int status);
void tb_endpoint_granted(struct tb_endpoint *e, uint32_t messages); /* the program has handled `messages` more messages of the peer */
void tb_endpoint_pump(struct tb_endpoint *e, int64_t now);
/* whether the operation that just began waits for others to share its frame: then do not call tb_endpoint_pump() */
bool tb_endpoint_gathers(const struct tb_endpoint *e);
int64_t tb_endpoint_due(const struct tb_endpoint *e); /* latest time for the next tb_endpoint_pump(); INT64_MAX: never */

#endif
