/* SPDX-License-Identifier: MIT
 *
 * Creation, end and events of an endpoint: see endpoint.h.
 */
#include "fabric/records/endpoint_private.h"

#include <errno.h>

#define TELL_GRANT (TB_MESSAGES / 4)

/* --- transfers --- */

static void transfer_received(void *ctx, uint64_t word, uint64_t add, uint32_t what)
{
    if (what)
        (void)tb_endpoint_signal(ctx, word, add);
}

static void transfer_done(void *ctx, void *cookie)
{
    struct tb_endpoint *e = ctx;
    e->tracked--;
    tb_endpoint_piece_done(e, cookie, 0);
}

static void transfer_again(void *ctx, void *cookie)
{
    struct tb_endpoint *e = ctx;
    struct tb_work *k = cookie;
    e->tracked--;
    k->restart = true;
    tb_endpoint_piece_done(e, k, 0);
}

void tb_endpoint_reroute(struct tb_endpoint *e)
{
    tb_bulk_reroute(&e->bulk);
}

/* --- events --- */

int tb_endpoint_frame(struct tb_endpoint *e, const void *frame, uint32_t bytes, int64_t now)
{
    e->now = now;
    int rc = tb_stream_receive(&e->stream, frame, bytes, now);
    if (e->fenced) /* clear an old fence here, because after 2^31 more frames the comparison would be wrong */
        e->fenced = !tb_stream_executed(&e->stream, e->fenced_at);
    return rc;
}

void tb_endpoint_left(struct tb_endpoint *e, uint32_t slot)
{
    tb_stream_left(&e->stream, slot);
}

void tb_endpoint_lane_landed(struct tb_endpoint *e, uint32_t lane, int64_t now)
{
    if (lane < e->bulk.lane_count)
        tb_bulk_landed(&e->bulk, lane, now);
}

void tb_endpoint_lane_left(struct tb_endpoint *e, uint32_t lane)
{
    if (lane < e->bulk.lane_count)
        tb_bulk_left(&e->bulk, lane);
}

void tb_endpoint_moved(struct tb_endpoint *e, void *cookie, int status)
{
    struct tb_work *k = cookie;
    e->tracked--;
    k->restart = k->restart || status == -EAGAIN;
    tb_endpoint_piece_done(e, k, status == -EAGAIN ? 0 : status);
}

void tb_endpoint_granted(struct tb_endpoint *e, uint32_t messages)
{
    e->stream.grant += messages;
    if (e->stream.grant - e->stream.grant_said >= TELL_GRANT)
        e->stream.ack_now = true;
}

void tb_endpoint_pump(struct tb_endpoint *e, int64_t now)
{
    e->now = now;
    if (e->serves)
        tb_endpoint_push_serves(e);
    if (e->works && e->works_first)
        tb_endpoint_push_works(e);
    if (e->messages)
        tb_endpoint_push_messages(e);
    if (e->works)
        tb_endpoint_push_works(e);
    e->works_first = !e->works_first && e->works && e->messages;
    tb_bulk_pump(&e->bulk, now);
    tb_stream_pump(&e->stream, now);
}

bool tb_endpoint_gathers(const struct tb_endpoint *e)
{
    return !e->works && !e->messages && !e->serves && !e->bulk.active && tb_stream_gathers(&e->stream);
}

int64_t tb_endpoint_due(const struct tb_endpoint *e)
{
    int64_t a = tb_stream_due(&e->stream), b = tb_bulk_due(&e->bulk);
    return a < b ? a : b;
}

/* --- beginning and end --- */

static bool endpoint_fetch(void *ctx, uint32_t transfer, uint16_t generation, uint64_t to, uint64_t from, uint32_t bytes)
{
    struct tb_endpoint *e = ctx;
    uint32_t ask = e->free_ask;
    if (!tb_endpoint_say_get(e, e->pool + to, from, bytes, NULL, NULL))
        return false;
    e->asks[ask].bulk = true;
    e->asks[ask].transfer = (uint16_t)transfer;
    e->asks[ask].generation = generation;
    return true;
}

void tb_endpoint_init(struct tb_endpoint *e, const struct tb_endpoint_env *env, const struct tb_endpoint_config *config)
{
    base_clear(e, sizeof *e);
    e->env = *env;
    e->pool = config->pool;
    e->pool_bytes = config->pool_bytes;
    e->first_byte = config->first_byte;
    e->move_least = config->move_least ? config->move_least : UINT64_MAX;
    e->move_most = config->move_most;
    e->move_segment = config->move_segment;
    e->works_end = &e->works;
    e->messages_end = &e->messages;
    e->serves_end = &e->serves;
    tb_stream_init(&e->stream,
                   &(struct tb_stream_env){
                       .ctx = env->ctx, .emit = env->emit, .complete = env->complete, .records_ctx = e, .records = tb_endpoint_records},
                   config->here, config->node, config->session, config->frames);
    e->stream.grant = e->stream.granted = e->stream.grant_said = TB_MESSAGES;
    tb_bulk_init(&e->bulk, &e->stream,
                 &(struct tb_bulk_env){.lane_ctx = env->ctx,
                                       .lane_receive = env->lane_receive,
                                       .lane_send = env->lane_send,
                                       .ctx = e,
                                       .fetch = endpoint_fetch,
                                       .received = transfer_received,
                                       .done = transfer_done,
                                       .again = transfer_again},
                 config->pool, config->pool_bytes, config->first_byte, config->segment, config->check);
}

int tb_endpoint_add_lane(struct tb_endpoint *e, uint32_t message_bytes, uint32_t depth)
{
    return tb_bulk_add_lane(&e->bulk, message_bytes, depth);
}

void tb_endpoint_lane_down(struct tb_endpoint *e, uint32_t lane)
{
    tb_bulk_lane_down(&e->bulk, lane);
}

void tb_endpoint_lane_up(struct tb_endpoint *e, uint32_t lane, uint16_t generation)
{
    tb_bulk_lane_up(&e->bulk, lane, generation);
}

static void endpoint_drop(struct tb_endpoint *e, struct tb_work **first, struct tb_work ***end, int status)
{
    while (*first) {
        struct tb_work *k = tb_work_unlink_first(e, first, end);
        tb_endpoint_complete(e, k->op, status);
        tb_work_free(e, k);
    }
}

/* Whether an operation uses memory of the caller. When the op of such an operation ends, the caller may reuse this memory, so the operation
 * must end, too. */
static bool endpoint_borrows(const struct tb_work *k)
{
    return (k->kind == WORK_PUT && k->len && k->local != k->body) || k->kind == WORK_GET || (k->kind == WORK_ATOMIC && (k->op || k->old));
}

bool tb_endpoint_fail(struct tb_endpoint *e, int status)
{
    bool lost = false;
    for (uint32_t i = 0; i < TB_ASKS; i++) {
        struct tb_ask *ask = &e->asks[i], was = *ask;
        if (!was.used)
            continue;
        ask->op = NULL; /* the answer will be dropped */
        ask->work = NULL;
        ask->old = NULL;
        ask->to = NULL;
        if (was.work) {
            lost = lost || !was.work->op;
            tb_endpoint_piece_done(e, was.work, status);
        } else {
            lost = lost || (!was.op && !was.bulk && (was.to || was.old));
            tb_endpoint_complete(e, was.op, status);
        }
    }
    for (struct tb_work *k; (k = tb_bulk_give_up(&e->bulk));) {
        e->tracked--;
        lost = lost || !k->op;
        tb_endpoint_piece_done(e, k, status);
    }
    struct tb_work *works = e->works;
    for (e->works = NULL, e->works_end = &e->works, e->ordered = 0; works;) {
        struct tb_work *k = works;
        works = k->next;
        tb_work_account(e, &e->works_end, -(sizeof *k + k->bytes));
        weft_op *op = k->op;
        k->op = NULL;
        if (endpoint_borrows(k)) {
            lost = lost || !op;
            tb_work_free(e, k);
        } else {
            tb_work_append(e, &e->works_end, k);
        }
        tb_endpoint_complete(e, op, status);
    }
    for (struct tb_work *k = e->messages; k; k = k->next) {
        tb_endpoint_complete(e, k->op, status);
        k->op = NULL;
    }
    tb_stream_fail(&e->stream, status);
    return lost;
}

void tb_endpoint_end(struct tb_endpoint *e, int status)
{
    /* First end the pieces of queued operations. An operation that is in a list stays in the list, which is freed below. */
    for (uint32_t i = 0; i < TB_ASKS; i++) {
        struct tb_ask was = e->asks[i];
        if (!was.used)
            continue;
        tb_endpoint_free_ask(e, &e->asks[i]);
        if (was.work)
            tb_endpoint_piece_done(e, was.work, status);
        else
            tb_endpoint_complete(e, was.op, status);
    }
    for (uint32_t i = 0; i < TB_TRANSFERS; i++) {
        void *put = e->bulk.out[i].used ? e->bulk.out[i].cookie : NULL;
        void *get = e->bulk.in[i].used && e->bulk.in[i].own ? e->bulk.in[i].cookie : NULL;
        if (put)
            tb_endpoint_piece_done(e, put, status);
        if (get)
            tb_endpoint_piece_done(e, get, status);
    }
    tb_bulk_end(&e->bulk);
    endpoint_drop(e, &e->works, &e->works_end, status);
    endpoint_drop(e, &e->messages, &e->messages_end, status);
    endpoint_drop(e, &e->serves, &e->serves_end, status);
    e->serve_count = 0;
    e->tracked = 0;
    tb_stream_end(&e->stream, status);
    e->stream.first = e->stream.next;
    e->stream.fill = 0;
}
