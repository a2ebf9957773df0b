/* SPDX-License-Identifier: MIT
 *
 * weft_drain(): all work that any living node has submitted is complete.
 *
 * Each node publishes two counters in its shard's header: what it has submitted, and how much of that is complete. A task may submit
 * others before it is complete, so that one look at all counters can see the parent complete and miss the child's submission. So there
 * are two looks, and nothing may have changed from one to the other: then all was complete at the moment between them. For the first finds
 * submitted == completed, and has read completed first. Neither falls, but for tasks that were counted as submitted, found no room, and
 * never were there; so at that node all was complete from the one read to the other. The second finds the same number submitted, in
 * the same queue, so nothing was submitted there since the first. This must hold for each node by itself: in a sum over all, what one
 * has submitted would make up for what went with another that died, or closed the queue and opened it again.
 *
 * A node whose shard this one does not know may have none, or its HELLO is still to be handled here; one whose shard says that it was
 * closed may have the next open already. Such nodes are asked between the two looks. Who answers that the queue is not open there has
 * nothing outstanding at that moment; if it opened and closed it since the first look, its work went with that.
 */
#include "queue/queue.h"

#include <stdio.h>
#include <string.h>

#define DRAIN_SLICE_NS WEFT_MS
#define ASK_NS         (20 * WEFT_MS) /* between questions to a node that has not said that the queue is not open there */

/* What a look finds of a node. */
struct found {
    uint64_t submitted;
    uint32_t incarnation; /* of the queue there; 0: the node is gone, or */
    bool unknown;         /* its counters are not known */
};

struct drain {
    struct weft_queue *q;
    bool asked;     /* after a look at which all was complete, nodes were asked whose shards are not known, */
    uint32_t ask;   /* with this number, */
    int64_t ask_at; /* and are again at that time */
    uint32_t unknowns;
    struct found found[WEFT_MAX_NODES]; /* by the last look */
};

static int drain_count(struct queue_view *v, uint64_t *submitted, uint64_t *completed, bool *closed)
{
    if (v->shard.mem)
        return slot_counts(&v->shard, submitted, completed, closed);
    if (queue_view_silent(v))
        return -ETIMEDOUT;
    int64_t before = queue_limit(0);
    int rc = slot_counts(&v->shard, submitted, completed, closed);
    fab_limit(before);
    return rc;
}

/* False: it has work outstanding, or does not answer. */
static bool drain_look_at(const struct weft_queue *q, uint32_t node, struct found *f)
{
    struct queue_view *v = queue_view_of(q, node);
    uint64_t submitted, completed;
    bool closed = true;
    *f = (struct found){0};
    if (!fab_alive(q->w, node))
        return true;
    if (v && drain_count(v, &submitted, &completed, &closed))
        return !fab_alive(q->w, node); /* it has just gone; else it is stopped, and what it has submitted cannot be known now */
    if (closed) {
        f->unknown = true;
        return true;
    }
    f->submitted = submitted;
    f->incarnation = v->incarnation;
    return submitted == completed;
}

/* One look at the counters of the nodes that are alive; true when all is complete. `*same`: as at the look before. */
static bool drain_look(struct drain *d, bool *same)
{
    *same = true;
    d->unknowns = 0;
    for (uint32_t i = 0; i < d->q->w->size; i++) {
        struct found f, *before = &d->found[i];
        if (!drain_look_at(d->q, i, &f))
            return false;
        *same = *same && f.submitted == before->submitted && f.incarnation == before->incarnation && f.unknown == before->unknown;
        *before = f;
        d->unknowns += f.unknown;
    }
    return true;
}

/* Has the node said, after it was asked for the n-th time, that it has not opened the queue? */
static bool none_open(const struct weft_queue *q, uint32_t node, uint32_t ask)
{
    return (int32_t)(atomic_load_explicit(&q->none[node], memory_order_acquire) - ask) >= 0; /* pairs with the handler's */
}

static bool drained(struct drain *d)
{
    struct weft_queue *q = d->q;
    bool same;
    if (!drain_look(d, &same)) {
        d->asked = false;
        return false;
    }
    if (d->unknowns == 0) {
        d->asked = false;
        return drain_look(d, &same) && same;
    }
    if (!d->asked || !same) {
        d->asked = true;
        d->ask = atomic_fetch_add_explicit(&q->asks, 1, memory_order_seq_cst) + 1; /* after the look */
        d->ask_at = 0;
    }
    /* Who answered with its shard, and closed the queue before the next look, is unknown as before: it has to be asked again. So has
     * one that closes the queue, and answered for the closed one. */
    bool all = true, ask = base_now_ns() >= d->ask_at;
    for (uint32_t i = 0; i < q->w->size; i++)
        if (d->found[i].unknown && !none_open(q, i, d->ask)) {
            all = false;
            if (ask)
                queue_post(q, i, QUEUE_ASK, 0, NULL, d->ask, 0);
        }
    if (ask)
        d->ask_at = base_now_ns() + ASK_NS;
    return all;
}

static bool drain_ready(void *arg)
{
    struct drain *d = arg;
    for (uint32_t i = 0; i < d->q->w->size; i++) {
        struct queue_view *v = queue_view_of(d->q, i);
        if (v && !v->shard.mem)
            return false; /* looking there means waiting: weft_drain() does, between sleeps */
    }
    return drained(d);
}

/* Whose work is not complete; not known of a node that does not answer. */
static void say_drain(struct weft_queue *q, const struct fab_patience *p)
{
    bool open[WEFT_MAX_NODES];
    char names[128], whom[192];
    for (uint32_t i = 0; i < q->w->size; i++) {
        struct queue_view *v = queue_view_of(q, i);
        uint64_t submitted, completed;
        bool closed;
        open[i] = v && fab_alive(q->w, i) && drain_count(v, &submitted, &completed, &closed) == 0 && !closed && submitted != completed;
    }
    uint32_t n = fab_name_nodes(q->w, open, names, sizeof names);
    if (n == 0)
        snprintf(whom, sizeof whom, "work that is still being submitted, or a node that does not answer");
    else
        snprintf(whom, sizeof whom, "work of %s, which %s alive", names, n == 1 ? "is" : "are");
    queue_say(q, p, "drain", whom);
}

static int drain_later(struct drain *d, int64_t timeout_ns)
{
    struct weft_queue *q = d->q;
    struct fab_patience p;
    bool once = timeout_ns == 0;
    /* Those that were asked get the time to answer: what they have submitted cannot be seen otherwise. */
    fab_patience_begin(&p, q->w, FAB_LAST, once && d->asked ? QUEUE_LOOK_NS : timeout_ns);
    for (;;) {
        int over = once && !d->asked ? -ETIMEDOUT : queue_check(q, &p);
        if (over == -ETIMEDOUT)
            return base_fail(over, "queue '%s': not all submitted work was complete at the deadline", q->name);
        if (over)
            return base_fail(over, "queue '%s': not all submitted work is complete, and %s to do it", q->name, fab_patience_loss(&p));
        if (fab_patience_due(&p))
            say_drain(q, &p);
        int64_t slice = base_now_ns() + DRAIN_SLICE_NS, next = fab_patience_next(&p);
        int rc = fab_wait(q->w, drain_ready, d, slice < next ? slice : next);
        if (rc != -ETIMEDOUT)
            return rc;
        queue_place_pending(q);
        if (drained(d))
            return 0;
    }
}

int weft_drain(weft_queue *q, int64_t timeout_ns)
{
    if (queue_closed(q))
        return queue_refuse_closed(q);
    struct drain d; /* large: only what is used of it is cleared */
    d.q = q;
    d.asked = false;
    memset(d.found, 0, q->w->size * sizeof d.found[0]);
    if (drained(&d))
        return 0;
    int rc = queue_begin_wait(q);
    if (rc == 0) {
        rc = drain_later(&d, timeout_ns);
        queue_end_wait(q);
    }
    return rc;
}
