/* SPDX-License-Identifier: MIT
 *
 * weft_drain(): all work that any living node has submitted is complete.
 *
 * Each node publishes two counters in its shard's header: what it has submitted, and how much of that is complete. A task may submit
 * others before it is complete, so that one look at all counters can see the parent complete and miss the child's submission. Counters
 * that are equal in two looks with nothing submitted between them leave no room for that.
 *
 * A node whose shard this one does not know may have none, or its HELLO is still to be handled here; one whose shard says that it was
 * closed may have the next open already. Such nodes are asked between the two looks. Who answers that the queue is not open there has
 * submitted nothing by then; if it opens and submits afterwards, in a task of another node's for example, then a counter that the second
 * look sees tells of that: the task was outstanding at the first look, or is submitted after it.
 */
#include "queue/queue.h"

#include <stdio.h>

#define DRAIN_SLICE_NS WEFT_MS
#define ASK_NS         (20 * WEFT_MS) /* between questions to a node that has not said that the queue is not open there */

struct drain {
    struct weft_queue *q;
    bool asked;     /* after a look at which all was complete, and */
    uint64_t sum;   /* so much had been submitted, those nodes were asked that had no known shard, */
    uint32_t ask;   /* with this number, */
    int64_t ask_at; /* and are again at that time */
};

static int count(struct queue_view *v, uint64_t *submitted, uint64_t *completed, bool *closed)
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

/* One look at the counters of the nodes that are alive. False: work is outstanding, or a node does not answer. Else `*sum` of what was
 * submitted, and the nodes whose counters are not known. */
static bool look(struct weft_queue *q, uint64_t *sum, bool unknown[], uint32_t *unknowns)
{
    *sum = 0;
    *unknowns = 0;
    for (uint32_t i = 0; i < q->w->size; i++) {
        struct queue_view *v = queue_view_of(q, i);
        uint64_t submitted, completed;
        bool closed;
        unknown[i] = false;
        if (!fab_alive(q->w, i))
            continue;
        if (v && count(v, &submitted, &completed, &closed)) {
            if (fab_alive(q->w, i))
                return false; /* it is stopped: what it has submitted cannot be known now */
            continue;         /* it has just gone */
        }
        if (!v || closed) {
            unknown[i] = true;
            ++*unknowns;
            continue;
        }
        if (submitted != completed)
            return false;
        *sum += submitted + 1; /* a node that comes or goes counts as a change */
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
    bool unknown[WEFT_MAX_NODES];
    uint32_t unknowns;
    uint64_t sum, again;
    if (!look(q, &sum, unknown, &unknowns)) {
        d->asked = false;
        return false;
    }
    if (unknowns == 0)
        return look(q, &again, unknown, &unknowns) && unknowns == 0 && again == sum;
    if (!d->asked || d->sum != sum) {
        d->asked = true;
        d->sum = sum;
        d->ask = atomic_fetch_add_explicit(&q->asks, 1, memory_order_seq_cst) + 1; /* after the look */
        d->ask_at = 0;
    }
    /* Who answered with its shard, and closed the queue before the next look, is unknown as before: it has to be asked again. So has
     * one that closes the queue, and answered for the closed one. */
    bool all = true, ask = base_now_ns() >= d->ask_at;
    for (uint32_t i = 0; i < q->w->size; i++)
        if (unknown[i] && !none_open(q, i, d->ask)) {
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
        open[i] = v && fab_alive(q->w, i) && count(v, &submitted, &completed, &closed) == 0 && !closed && submitted != completed;
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
            return base_fail(over, "queue '%s': not all submitted work was complete before the deadline", q->name);
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
    struct drain d = {.q = q};
    if (drained(&d))
        return 0;
    int rc = queue_begin_wait(q);
    if (rc == 0) {
        rc = drain_later(&d, timeout_ns);
        queue_end_wait(q);
    }
    return rc;
}
