/* SPDX-License-Identifier: MIT
 *
 * endpoint: every operation of the fabric between two nodes, as records in a stream and transfers over lanes; both ends run this code.
 * Pure, as stream.c and bulk.c below it: events in, frames and completions out, and each call gets the time. It uses the pool it was given,
 * and nothing else from outside. Its owner holds one lock over all calls.
 *
 * Records are executed in the order in which they were begun. A fence waits for what is not a record (a transfer, an answer); what follows
 * the fence waits in the backlog. Messages have credits of their own, so that a slow handler does not delay what needs none.
 */
#ifndef WEFT_TB_ENDPOINT_H
#define WEFT_TB_ENDPOINT_H

#include "fabric/atomic.h"
#include "fabric/flush.h"
#include "fabric/tb/bulk.h"
#include "fabric/tb/stream.h"

#define TB_ASKS      256u        /* questions under way */
#define TB_ASK_BYTES (32u << 10) /* of one get's piece that comes by answers */
#define TB_MESSAGES  64u         /* that wait for their handlers at the receiver, at most */

struct tb_endpoint_env {
    void *ctx;
    bool (*emit)(void *ctx, uint32_t slot, void *frame, uint32_t bytes);
    bool (*lane_receive)(void *ctx, uint32_t lane, uint64_t offset);
    bool (*lane_send)(void *ctx, uint32_t lane, uint64_t offset);
    /* A message came: keep a copy. It is in order, and at most TB_MESSAGES wait. False: no memory; the peer is given up. */
    bool (*message)(void *ctx, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len);
    void (*complete)(void *ctx, weft_op *op, int status);
};

struct tb_endpoint_config {
    uint16_t here, node;
    uint32_t session;
    uint8_t *frames; /* [TB_SLOTS], as tb_stream_init() */
    uint8_t *pool;
    uint64_t pool_bytes, first_byte; /* of this node; below it nobody may write */
    uint64_t segment;                /* a power of two: regions of either node end at its multiples */
    enum tb_check check;
};

struct tb_work;
struct tb_ask {
    weft_op *op;
    struct tb_work *work; /* of which it is a piece; or NULL */
    uint64_t *old;        /* an atomic */
    uint8_t *to;          /* a get */
    uint32_t left;
    bool used, get, bulk; /* bulk: of a transfer */
    uint8_t turn;         /* as of a work */
    uint16_t transfer, generation, next_free;
};

struct tb_endpoint_counts {
    uint64_t staged_puts, staged_gets; /* bytes that went in records though they were many: no lane, or not in the pool */
};

struct tb_endpoint {
    struct tb_endpoint_env env;
    struct tb_stream stream;
    struct tb_bulk bulk;
    uint8_t *pool;
    uint64_t pool_bytes, first_byte;
    struct tb_work *works, **works_end;       /* in order; the first goes first */
    struct tb_work *messages, **messages_end; /* that wait for credits */
    struct tb_work *serves, **serves_end;     /* answers that found no room */
    uint32_t serve_count;
    uint64_t backlog_bytes, message_bytes; /* kept, in works (and serves), in messages; read without the lock as a hint */
    uint32_t messages_sent, messages_received;
    uint32_t tracked; /* asks and transfers under way: what a fence waits for */
    /* For flushes: how many works and asks are under way that were begun in the present turn, and in those before it, by the turn's
     * lowest bit. A turn ends when a flush begins, or later, while some of an earlier one are still under way. */
    uint32_t turn, under_way[2];
    struct tb_ask asks[TB_ASKS];
    uint16_t free_ask; /* TB_ASKS: none */
    int64_t now;
    struct tb_endpoint_counts counts;
    char broken[96]; /* why the peer makes no sense; "": it does */
};

/* `e` is large; it stays where it is. */
void tb_endpoint_init(struct tb_endpoint *e, const struct tb_endpoint_env *env, const struct tb_endpoint_config *config);
/* Everything pending completes with `status`, everything made is freed; may be followed by tb_endpoint_init(). */
void tb_endpoint_end(struct tb_endpoint *e, int status);
int tb_endpoint_add_lane(struct tb_endpoint *e, uint32_t message_bytes, uint32_t depth);
void tb_endpoint_lane_down(struct tb_endpoint *e, uint32_t lane); /* as tb_bulk_lane_down() and tb_bulk_lane_up() */
void tb_endpoint_lane_up(struct tb_endpoint *e, uint32_t lane, uint16_t generation);

/* The operations, offsets in the peer's pool, checked by the caller. Ops are pending already (status 1). 0, or -ENOMEM with
 * nothing begun. `src` and `dst` belong to the endpoint until the op is complete, or, without one, until flushed. Puts of at most
 * 64 bytes and messages are copied. */
int tb_endpoint_put(struct tb_endpoint *e, uint64_t to, const void *src, uint64_t len, weft_op *op);
int tb_endpoint_put_signal(struct tb_endpoint *e, uint64_t to, const void *src, uint64_t len, uint64_t word, uint64_t add, weft_op *op);
int tb_endpoint_get(struct tb_endpoint *e, void *dst, uint64_t from, uint64_t len, weft_op *op);
/* `answer` false: nobody wants to know what was there (`old` and `op` are NULL). */
int tb_endpoint_atomic(struct tb_endpoint *e, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, bool answer, uint64_t *old,
                       weft_op *op);
int tb_endpoint_message(struct tb_endpoint *e, uint32_t id, const void *header, uint32_t header_len, const void *payload,
                        uint32_t payload_len, weft_op *op);
int tb_endpoint_fence(struct tb_endpoint *e);
/* All that had begun when `f` was first given, all zeros, has been executed; if not, it is being asked for. */
bool tb_endpoint_flushed(struct tb_endpoint *e, struct fab_flush *f);

/* No way leads to the peer now: what waits for it ends with `status`, and may or may not have happened. What has been copied already
 * (messages, small puts, the rooms' words) stays, in order, and goes when there is a way again. True: an operation without an op may not
 * happen, and the next flush has to say so. */
bool tb_endpoint_fail(struct tb_endpoint *e, int status);

/* No lane is up, but there is a way: what went by lanes goes in records. */
void tb_endpoint_reroute(struct tb_endpoint *e);

/* What happened; each is followed by tb_endpoint_pump() when the batch is over. */
/* 0; -EBADMSG: a damaged frame, dropped; else the peer makes no sense (`broken`). */
int tb_endpoint_frame(struct tb_endpoint *e, const void *frame, uint32_t bytes, int64_t now);
void tb_endpoint_left(struct tb_endpoint *e, uint32_t slot);
void tb_endpoint_lane_landed(struct tb_endpoint *e, uint32_t lane, int64_t now);
void tb_endpoint_lane_left(struct tb_endpoint *e, uint32_t lane);
void tb_endpoint_granted(struct tb_endpoint *e, uint32_t messages); /* so many more messages have been handled */
void tb_endpoint_pump(struct tb_endpoint *e, int64_t now);
bool tb_endpoint_gathers(const struct tb_endpoint *e); /* the operation that just began waits for company: nothing to pump */
int64_t tb_endpoint_due(const struct tb_endpoint *e);  /* when pump wants to be called at the latest; INT64_MAX: never */

#endif
