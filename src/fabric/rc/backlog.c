/* SPDX-License-Identifier: MIT
 *
 * A backlog holds operations that found no room in the send queue, or that wait behind a fence. Each lane has a backlog of its own. While
 * an operation waits, all later operations of the lane wait behind it. Answers to the peer have a separate queue, which is posted first.
 */
#include "fabric/rc/rc.h"

#include <stdlib.h>
#include <string.h>

/* --- answers --- */

static void take_from_answers(struct rc_link *l)
{
    struct rc_work *k = l->answers.first;
    l->answers.first = k->next;
    if (!l->answers.first)
        l->answers.end = &l->answers.first;
    l->answers.count--;
    __atomic_fetch_sub(&l->lane[RC_MAIN].bytes, sizeof *k + k->bytes, __ATOMIC_RELEASE);
    free(k);
}

static bool push_answers(struct rc_link *l)
{
    bool any = false;
    for (struct rc_work *k; (k = l->answers.first) != NULL; any = true) {
        /* an answer is at most RC_LITTLE bytes, so rc_post_frame() does not take ownership of `k` */
        if (!rc_post_frame(l, k->body, k->bytes, l->fences_posted, &k))
            break;
        take_from_answers(l);
    }
    return any;
}

void rc_drop_answers_locked(struct rc_link *l)
{
    while (l->answers.first)
        take_from_answers(l);
}

static bool keep_answer(struct rc_link *l, const struct rc_frame *f)
{
    struct rc_work *k = l->answers.count < RC_ASKS ? rc_work_make(RC_WORK_FRAME, sizeof *f) : NULL;
    if (!k)
        return false;
    memcpy(k->body, f, sizeof *f);
    if (BASE_UNLIKELY(!l->up))
        rc_want_locked(l);
    *l->answers.end = k;
    l->answers.end = &k->next;
    l->answers.count++;
    __atomic_fetch_add(&l->lane[RC_MAIN].bytes, sizeof *k + k->bytes, __ATOMIC_RELAXED);
    return true;
}

bool rc_answer(struct rc_link *l, uint32_t token, uint64_t value)
{
    const struct rc_frame f = {.kind = RC_ANSWER, .token = token, .a = value};
    base_spin_lock(&l->lock);
    bool done = l->closed || (!l->answers.first && rc_post_frame(l, &f, sizeof f, l->fences_posted, NULL)) || keep_answer(l, &f);
    base_spin_unlock(&l->lock);
    return done;
}

/* --- lanes --- */

static bool push_lane(struct rc_link *l, enum rc_lane lane)
{
    struct rc_queue *q = &l->lane[lane];
    bool any = false;
    while (q->backlog && !l->closed) {
        struct rc_work *k = q->backlog;
        if (BASE_UNLIKELY(!rc_fence_open(l, lane, k->fence_asks, k->fence_other, k->fence_stripes)))
            break;
        if (k->kind == RC_WORK_FRAME || k->kind == RC_WORK_ATOMIC) {
            struct rc_work *own = k;
            if (!(k->kind == RC_WORK_FRAME ? rc_post_frame(l, k->body, k->bytes, k->fences, &own) : rc_post_atomic(l, k, k->op)))
                break;
            any = true;
            rc_take_from_backlog(q);
            free(own);
            continue;
        }
        int striped = BASE_UNLIKELY(k->len - k->posted >= l->stripe) ? rc_stripe_post(l, k) : -1;
        if (striped < 0)
            striped = rc_post_next(l, k);
        if (!striped)
            break;
        any = true;
        if (k->posted == k->len) {
            k->whole = true;
            rc_take_from_backlog(q); /* the operation is freed when its last piece completes */
        }
    }
    return any;
}

bool rc_push_locked(struct rc_link *l)
{
    if (BASE_UNLIKELY(l->again))
        rc_resume_locked(l);
    if (BASE_UNLIKELY(l->repeats))
        rc_stripe_repeat(l);
    if (BASE_UNLIKELY(l->flush_wanted)) /* before the backlogs, which could otherwise use all room again and again */
        rc_flush_locked(l);
    bool any = push_answers(l), again = l->lane[RC_MAIN].backlog || l->lane[RC_MESSAGES].backlog;
    while (again) { /* when one lane posts an operation, an operation of the other lane that waits behind a fence may become ready */
        again = push_lane(l, RC_MAIN);
        again = push_lane(l, RC_MESSAGES) || again;
        any = any || again;
        again = again && (l->lane[RC_MAIN].backlog || l->lane[RC_MESSAGES].backlog);
    }
    return any;
}

void rc_enqueue(struct rc_link *l, enum rc_lane lane, struct rc_work *k, uint64_t stripes)
{
    struct rc_queue *q = &l->lane[lane];
    k->fence_asks = l->fence_asks;
    k->fence_other = q->fence_other;
    k->fence_stripes = stripes;
    k->fences = l->fences;
    k->number = q->begun;
    if (k->op)
        fab_pending(k->op, l->link->node);
    if (BASE_UNLIKELY(!l->up))
        rc_want_locked(l);
    *q->end = k;
    q->end = &k->next;
    q->begun++;
    __atomic_fetch_add(&q->bytes, sizeof *k + k->bytes, __ATOMIC_RELAXED);
}

int rc_keep(struct rc_link *l, enum rc_lane lane, const struct rc_work *what)
{
    struct rc_work *k = rc_work_make(what->kind, 0);
    if (!k)
        return base_fail(-ENOMEM, "no memory to keep an operation to node %u" BASE_MEMORY_HINT, l->link->node);
    *k = *what;
    rc_enqueue(l, lane, k, l->fence_stripes);
    rc_push_locked(l);
    return 0;
}

struct room {
    struct rc_link *l;
    enum rc_lane lane;
    uint64_t limit;
};

static bool backlog_has_room(void *arg)
{
    struct room *r = arg;
    return __atomic_load_n(&r->l->lane[r->lane].bytes, __ATOMIC_ACQUIRE) < r->limit ||
           atomic_load_explicit(&r->l->link->state, memory_order_acquire) != FAB_ALIVE;
}

int rc_wait_for_room(struct rc_link *l, enum rc_lane lane, uint64_t limit)
{
    struct room r = {l, lane, limit};
    if (backlog_has_room(&r))
        return 0;
    r.limit = limit / 2; /* once the limit is reached, wait until half of it is free, so that not every call sleeps */
    if (fab_queues_more())
        return __atomic_load_n(&l->lane[lane].bytes, __ATOMIC_RELAXED) < RC_BACKLOG_MAX
                   ? 0
                   : base_fail(-ENOBUFS, "node %u accepts no more work: %u MiB are queued for it, which is the most; send less in handlers",
                               l->link->node, RC_BACKLOG_MAX >> 20);
    int err = fab_wait_for_room(l->w, backlog_has_room, &r);
    return err == -EAGAIN ? err
           : err ? base_fail(err, "node %u accepts no more work (is its process stopped?): %llu bytes are queued for it", l->link->node,
                             (unsigned long long)__atomic_load_n(&l->lane[lane].bytes, __ATOMIC_RELAXED))
                 : 0;
}
