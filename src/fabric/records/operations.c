/* SPDX-License-Identifier: MIT
 *
 * The operations of transports over records. An operation waits for room and a route, and then starts in the link's endpoint while the
 * link's lock is held.
 */
#include "fabric/records/link.h"

#define LOOK_EVERY 16u /* on a crowded stream, one operation in this many polls for completions */

struct room {
    struct records_link *l;
    bool message; /* true: the backlog of messages; false: of all other operations */
};

static uint64_t operation_backlog(struct records_link *l, bool message)
{
    return __atomic_load_n(message ? &l->endpoint.message_bytes : &l->endpoint.backlog_bytes, __ATOMIC_RELAXED);
}

static bool operation_has_room(void *arg)
{
    struct room *r = arg;
    /* Wait until the backlog is half of the limit, so that the next operation does not wait again. */
    return operation_backlog(r->l, r->message) < RECORDS_BACKLOG_WAIT / 2 || !fab_alive(r->l->w, r->l->link->node);
}

static BASE_COLD int operation_wait_for_room(struct records_link *l, bool message)
{
    struct room r = {l, message};
    if (fab_queues_more())
        return operation_backlog(l, message) < RECORDS_BACKLOG_MAX
                   ? 0
                   : base_fail(-ENOBUFS, "node %u accepts no more work: %u MiB are queued for it, which is the most; send less in handlers",
                               l->link->node, RECORDS_BACKLOG_MAX >> 20);
    int err = fab_wait_for_room(l->w, operation_has_room, &r);
    return err == -EAGAIN ? err
           : err ? base_fail(err, "node %u accepts no more work (is its process stopped?): %llu bytes are queued for it", l->link->node,
                             (unsigned long long)operation_backlog(l, message))
                 : 0;
}

static BASE_COLD int operation_no_way(const struct records_link *l)
{
    return base_fail(-ENETDOWN, "no route leads to node %u now: %s", l->link->node, l->no_way);
}

/* Waits for room, locks the link, and marks the op pending. Without a route, operations of the program fail, and system operations wait. */
static int operation_enter(struct records_link *l, bool message, bool program, weft_op *op)
{
    if (BASE_UNLIKELY(program && atomic_load_explicit(&l->cut, memory_order_relaxed)))
        return operation_no_way(l);
    if (BASE_UNLIKELY(operation_backlog(l, message) >= RECORDS_BACKLOG_WAIT)) {
        int err = operation_wait_for_room(l, message);
        if (err)
            return err;
    }
    base_spin_lock(&l->lock);
    /* Read `cut` again: it is set under this lock when pending operations fail. An operation that began afterwards would wait for ever. */
    bool cut = program && atomic_load_explicit(&l->cut, memory_order_relaxed);
    if (BASE_LIKELY(!l->closed && !cut)) {
        if (op)
            fab_pending(op, l->link->node);
        return 0;
    }
    bool closed = l->closed;
    base_spin_unlock(&l->lock);
    return closed ? base_fail(-ECONNRESET, "node %u has left or died; go on with the nodes that remain", l->link->node)
                  : operation_no_way(l);
}

/* Not inlined: most operations do not call this function, but if it were inlined, each operation would have to save registers. */
static __attribute__((noinline)) void operation_pump(struct records_link *l)
{
    records_pump_locked(l, base_recent_ns());
}

/* Unlocks the link after the start of an operation. `rc`: the result of the start; on failure the op ends with `rc`. */
static int operation_leave(struct records_link *l, int rc, weft_op *op)
{
    if (BASE_UNLIKELY(rc))
        fab_complete(op, rc);
    if (BASE_LIKELY(rc == 0) && !tb_endpoint_gathers(&l->endpoint))
        operation_pump(l);
    bool look = tb_stream_crowded(&l->endpoint.stream) && ++l->crowded % LOOK_EVERY == 0;
    base_spin_unlock(&l->lock);
    if (BASE_UNLIKELY(look)) /* make room by polling for completions, because a program that only puts does not poll otherwise */
        l->make_room(l->w);
    return rc ? base_fail(rc, "no memory for an operation to node %u" BASE_MEMORY_HINT, l->link->node) : 0;
}

int records_put(struct weft_node *w, struct fab_link *link, uint64_t to, const void *src, size_t len, weft_op *op)
{
    struct records_link *l = link->impl;
    int rc = operation_enter(l, false, true, op);
    (void)w;
    if (rc)
        return rc;
    return operation_leave(l, tb_endpoint_put(&l->endpoint, to, src, len, op), op);
}

int records_get(struct weft_node *w, struct fab_link *link, void *dst, uint64_t from, size_t len, weft_op *op)
{
    struct records_link *l = link->impl;
    int rc = operation_enter(l, false, true, op);
    (void)w;
    if (rc)
        return rc;
    return operation_leave(l, tb_endpoint_get(&l->endpoint, dst, from, len, op), op);
}

int records_atomic(struct weft_node *w, struct fab_link *link, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, uint64_t *old,
                   weft_op *op)
{
    struct records_link *l = link->impl;
    int rc = operation_enter(l, false, true, op);
    (void)w;
    if (rc)
        return rc;
    return operation_leave(l, tb_endpoint_atomic(&l->endpoint, kind, at, a, b, true, old, op), op);
}

int records_set_system(struct weft_node *w, struct fab_link *link, uint64_t at, uint64_t value, bool wake)
{
    struct records_link *l = link->impl;
    int rc = operation_enter(l, false, false, NULL);
    (void)w;
    if (rc)
        return rc;
    return operation_leave(l,
                           wake ? tb_endpoint_atomic(&l->endpoint, FAB_SWAP, at, value, 0, false, NULL, NULL)
                                : tb_endpoint_put(&l->endpoint, at, &value, sizeof value, NULL),
                           NULL);
}

int records_put_signal(struct weft_node *w, struct fab_link *link, uint64_t to, const void *src, size_t len, uint64_t signal, uint64_t add,
                       weft_op *op)
{
    struct records_link *l = link->impl;
    int rc = operation_enter(l, false, true, op);
    (void)w;
    if (rc)
        return rc;
    return operation_leave(l, tb_endpoint_put_signal(&l->endpoint, to, src, len, signal, add, op), op);
}

int records_send(struct weft_node *w, struct fab_link *link, uint32_t id, const void *header, size_t header_len, const void *payload,
                 size_t payload_len, weft_op *op)
{
    struct records_link *l = link->impl;
    int rc = operation_enter(l, true, !fab_is_system(id), op);
    (void)w;
    if (rc)
        return rc;
    return operation_leave(l, tb_endpoint_message(&l->endpoint, id, header, (uint32_t)header_len, payload, (uint32_t)payload_len, op), op);
}

bool records_flushed(struct weft_node *w, struct fab_link *link, struct fab_flush *f)
{
    struct records_link *l = link->impl;
    (void)w;
    base_spin_lock(&l->lock);
    bool yes = l->closed || tb_endpoint_flushed(&l->endpoint, f);
    if (!yes)
        records_pump_locked(l, base_recent_ns());
    base_spin_unlock(&l->lock);
    return yes;
}

void records_fence(struct weft_node *w, struct fab_link *link)
{
    struct records_link *l = link->impl;
    (void)w;
    base_spin_lock(&l->lock);
    if (!l->closed && tb_endpoint_fence(&l->endpoint) != 0)
        records_break(l, "no memory to queue a fence" BASE_MEMORY_HINT);
    base_spin_unlock(&l->lock);
}

/* Does nothing: operations that change a word of the peer are sent in frames, and a node that receives a frame wakes its own threads. */
void records_no_wake(struct weft_node *w, struct fab_link *l)
{
    (void)w;
    (void)l;
}

void records_stat_locked(const struct records_link *l, weft_link_stats *out)
{
    const struct tb_stream_counts *s = &l->endpoint.stream.counts;
    out->staged_puts = l->endpoint.counts.staged_puts;
    out->staged_gets = l->endpoint.counts.staged_gets;
    out->sent_bytes = l->endpoint.counts.sent_bytes + l->endpoint.bulk.counts.put_bytes;
    out->fetched_bytes = l->endpoint.counts.fetched_bytes + l->endpoint.bulk.counts.get_bytes;
    out->frames_sent = s->frames;
    out->frames_retransmitted = s->retransmitted;
    out->frames_received = s->received;
    out->frames_damaged = s->damaged;
}
