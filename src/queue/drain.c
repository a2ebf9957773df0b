/* SPDX-License-Identifier: MIT
 *
 * weft_drain(): all work that any living node has submitted is complete.
 *
 * Each node publishes two counters in its shard's header: how many tasks it has submitted, and how many of those are complete. A task may
 * submit other tasks before it is complete. A look reads one node after another. Meanwhile a task may submit new tasks through a node that
 * was already read, and then complete before its own node is read. That look misses the new tasks.
 *
 * So a drain looks twice, and ends when both looks find all work complete and the same number of tasks submitted. Proof for one node: the
 * first look reads `completed`, then `submitted`, and finds equal numbers. Neither counter ever falls. So all work of the node was complete
 * between the two reads. The second look finds the same number submitted, in the same incarnation of the queue. So the node submitted
 * nothing from the first look to the second, and had no outstanding work at the end of the first look. This holds for all nodes at that
 * same moment. Each node is checked alone: in a sum over all nodes, new tasks of one node could hide the lost tasks of a node that died or
 * reopened the queue.
 *
 * The counters of a node are unknown if this node has not handled its HELLO, if it has not opened the queue, or if its shard is marked as
 * closed (it may have reopened the queue). The drain asks such nodes between the two looks. A node that answers "not
 * open here" has no outstanding work.
 */
#include "queue/queue.h"

#include <stdio.h>
#include <stdlib.h>

#define DRAIN_SLICE_NS WEFT_MS
#define ASK_NS         (20 * WEFT_MS) /* time between two questions to a node that has not answered yet */

/* What one reading of the counters found about a node. */
struct found {
    uint64_t submitted;
    uint32_t incarnation; /* incarnation of the node's queue; 0: the node is gone, or its counters are unknown */
    bool unknown;         /* the counters are unknown */
};

struct drain {
    struct weft_queue *q;
    bool asked;     /* a look found all work complete, and then the nodes with unknown shards were asked */
    uint32_t ask;   /* the number of the question that these nodes were asked */
    int64_t ask_at; /* when to ask again the nodes that have not answered */
    uint32_t unknowns;
    struct found *found; /* [room]: the result of the last look, for each node */
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

/* Look at the counters of one node. Returns false if the node has outstanding work, or if its counters cannot be read. */
static bool drain_look_at(const struct weft_queue *q, uint32_t node, struct found *f)
{
    struct queue_view *v = queue_view_of(q, node);
    uint64_t submitted, completed;
    bool closed = true;
    *f = (struct found){0};
    if (!fab_alive(q->w, node))
        return true;
    if (v && drain_count(v, &submitted, &completed, &closed))
        /* A node that is gone has no work. A node that is alive but does not answer (it may be stopped) may have some. */
        return !fab_alive(q->w, node);
    if (closed) {
        f->unknown = true;
        return true;
    }
    f->submitted = submitted;
    f->incarnation = v->incarnation;
    return submitted == completed;
}

/* Read the counters of all living nodes once. Returns true if all work is complete. `*same`: nothing has changed since the previous
 * call. */
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

/* Whether the node has answered question number `ask`, or a later one, with "not open here". */
static bool none_open(const struct weft_queue *q, uint32_t node, uint32_t ask)
{
    return (int32_t)(atomic_load_explicit(&q->none[node], memory_order_acquire) - ask) >=
           0; /* pairs with the store in the message handler (room.c) */
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
        /* The question gets its number only after the counters were read: an answer to an older question must not count. */

        d->ask = atomic_fetch_add_explicit(&q->asks, 1, memory_order_seq_cst) + 1;
        d->ask_at = 0;
    }
    /* Ask those nodes with unknown counters that have not answered this question. A node that has answered an older question may have
     * opened the queue since. */
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
        /* Reading a remote shard means waiting, which this function must not do. weft_drain() reads such shards between two sleeps. */
        if (v && !v->shard.mem)
            return false;
    }
    return drained(d);
}

/* Print which nodes still have incomplete work. */
static void say_drain(struct weft_queue *q, const struct fab_patience *p)
{
    bool open[WEFT_MAX_NUMBERS];
    uint32_t nodes = q->w->size;
    char names[128], whom[192];
    for (uint32_t i = 0; i < nodes; i++) {
        struct queue_view *v = queue_view_of(q, i);
        uint64_t submitted, completed;
        bool closed;
        open[i] = v && fab_alive(q->w, i) && drain_count(v, &submitted, &completed, &closed) == 0 && !closed && submitted != completed;
    }
    uint32_t n = fab_name_nodes(open, nodes, names, sizeof names);
    if (n == 0)
        snprintf(whom, sizeof whom, "the end of all submissions, or for a node that does not answer");
    else
        snprintf(whom, sizeof whom, "work of %s, which %s alive", names, n == 1 ? "is" : "are");
    queue_say(q, p, "drain", whom);
}

static int drain_later(struct drain *d, int64_t timeout_ns)
{
    struct weft_queue *q = d->q;
    struct fab_patience p;
    bool once = timeout_ns == 0;
    /* Even with time-out 0, wait for the answers of nodes that were asked: nothing else shows whether they have submitted tasks. */
    fab_patience_begin(&p, q->w, FAB_LAST, once && d->asked ? QUEUE_LOOK_NS : timeout_ns);
    for (;;) {
        int over = once && !d->asked ? -ETIMEDOUT : queue_check(q, &p);
        if (over == -ETIMEDOUT)
            return base_fail(
                over, "queue '%s': not all submitted tasks were complete at the deadline; call weft_drain() again, or allow more time",
                q->name);
        if (over)
            return base_fail(
                over,
                "queue '%s': not all submitted tasks are complete, and %s that could complete them; claim them on this node (weft_claim())",
                q->name, fab_patience_loss(&p));
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
    struct drain d = {.q = q, .found = calloc(q->w->room, sizeof *d.found)};
    if (!d.found)
        return base_fail(-ENOMEM, "queue '%s': no memory for the counters of %u nodes" BASE_MEMORY_HINT, q->name, q->w->size);
    int rc = 0;
    if (!drained(&d)) {
        rc = queue_begin_wait(q);
        if (rc == 0) {
            rc = drain_later(&d, timeout_ns);
            queue_end_wait(q);
        }
    }
    free(d.found);
    return rc;
}
