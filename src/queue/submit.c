/* SPDX-License-Identifier: MIT
 *
 * The submitter's side: placing tasks, accepting completions, and placing tasks again when their home died.
 */
#include "queue/queue.h"

#include <stdio.h>
#include <string.h>

#define SUBMIT_RUN      64u /* tasks placed in one shard at a time */
#define SUBMIT_OWN      64u /* up to this backlog a node prefers its own shard, which needs no traffic; others can steal from it */
#define SUBMIT_SLICE_NS WEFT_MS
#define PENDING_RUN     16u

_Static_assert(QUEUE_DONES_MAX <= QUEUE_SETTLES_MAX, "one message can free all slots that another one completes");
_Static_assert(sizeof(weft_task) == SLOT_TASK_WORDS * 8, "a task fills its part of a slot");

/* Choose the shard for the next run of tasks. `avoid`: how many shards were just found full. */
static struct queue_view *submit_choose(struct weft_queue *q, uint32_t avoid)
{
    uint32_t n = atomic_load_explicit(&q->serving_count, memory_order_acquire);
    if (avoid == 0 && queue_view_usable(q->own) && !(atomic_load_explicit(&q->force, memory_order_relaxed) & QUEUE_SPREAD)) {
        _Atomic uint64_t *mem = q->own->shard.mem;
        if (n == 1 || slot_backlog(&q->own->shard) < SUBMIT_OWN || atomic_load_explicit(&mem[SLOT_IDLE], memory_order_relaxed))
            return q->own;
    }
    if (n == 0)
        return NULL;
    uint32_t at = atomic_fetch_add_explicit(&q->next, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < n; i++) {
        struct queue_view *v = queue_view_of(q, q->serving[(at + i) % n]);
        if (queue_view_usable(v) && fab_alive(q->w, v->node))
            return v;
    }
    return NULL;
}

/* Place up to SUBMIT_RUN tasks in one shard; returns how many; 0 if the shard is full or its node is gone. */
static int submit_place(struct weft_queue *q, struct queue_view *v, const weft_task *tasks, uint32_t count, uint64_t *ids)
{
    struct table *t = &q->table;
    /* Enter the tasks in the table first, because a completion may arrive, or the home may die, before slot_submit() returns. */
    base_spin_lock(&t->lock);
    bool gone = atomic_load_explicit(&v->gone, memory_order_relaxed);
    uint32_t noted = gone ? 0 : table_add(t, v->node, tasks, count, ids);
    queue_publish_counts(q);
    base_spin_unlock(&t->lock);
    if (noted == 0)
        return gone ? 0
                    : base_fail(-ENOMEM, "queue '%s': no memory for more outstanding tasks: call weft_reap() for some of them first",
                                q->name);

    int placed = slot_submit(&v->shard, queue_user(q), 0, (const uint64_t *)(const void *)tasks, ids, noted);
    uint32_t kept = placed < 0 ? 0 : (uint32_t)placed;
    if (BASE_UNLIKELY(kept < noted)) {
        base_spin_lock(&t->lock);
        /* Remove the last entries first, so that the first ones stay. If the home is gone, its tasks are no longer OUT in the table. */
        for (uint32_t i = noted; i-- > kept;)
            if (!table_remove(t, ids[i], v->node)) {
                kept = i + 1;
                break;
            }
        queue_publish_counts(q);
        base_spin_unlock(&t->lock);
    }
    if (placed > 0)
        queue_wake(q, v);
    return (int)kept;
}

struct room_wait {
    struct weft_queue *q;
    uint64_t completed;
};

/* Whether some shard may have room for a task. Makes cheap checks only. */
static bool room_ready(void *arg)
{
    struct room_wait *r = arg;
    uint32_t n = atomic_load_explicit(&r->q->serving_count, memory_order_acquire);
    for (uint32_t i = 0; i < n && i < 8; i++) {
        struct queue_view *v = queue_view_of(r->q, r->q->serving[i]);
        if (v && v->shard.mem && slot_room(&v->shard))
            return true;
    }
    return atomic_load_explicit(&r->q->own->shard.mem[SLOT_COMPLETED], memory_order_relaxed) != r->completed;
}

/* Place as many tasks as find room without waiting. `deadline`: when the caller's call ends. */
BASE_INLINE int place_some(struct weft_queue *q, const weft_task *tasks, uint32_t count, uint64_t *ids, int64_t deadline)
{
    uint64_t own_ids[SUBMIT_RUN];
    uint32_t done = 0, full = 0;
    while (done < count) {
        struct queue_view *v = submit_choose(q, full);
        if (!v)
            break;
        uint32_t run = count - done < SUBMIT_RUN ? count - done : SUBMIT_RUN;
        int64_t before = v->shard.mem ? 0 : queue_limit(deadline);
        int n = submit_place(q, v, tasks + done, run, ids ? ids + done : own_ids);
        if (!v->shard.mem)
            fab_limit(before);
        if (n < 0)
            return done ? (int)done : n;
        done += (uint32_t)n;
        if ((uint32_t)n == run)
            full = 0;
        else if (++full > atomic_load_explicit(&q->serving_count, memory_order_acquire))
            break;
    }
    return (int)done;
}

static BASE_COLD int submit_later(struct weft_queue *q, const weft_task *tasks, uint32_t count, uint64_t *ids, int64_t deadline)
{
    for (;;) {
        int64_t now = base_now_ns();
        if (now >= deadline)
            return base_fail(-ETIMEDOUT,
                             "queue '%s': the parts of the queue on all nodes were full until the deadline: claim tasks faster, or open "
                             "the queue with more slots",
                             q->name);
        struct room_wait r = {q, atomic_load_explicit(&q->own->shard.mem[SLOT_COMPLETED], memory_order_relaxed)};
        int64_t slice = now + SUBMIT_SLICE_NS; /* other nodes do not wake this node when they free slots, so look again after a while */
        int rc = fab_wait(q->w, room_ready, &r, slice < deadline ? slice : deadline);
        if (rc && rc != -ETIMEDOUT)
            return rc;
        int n = place_some(q, tasks, count, ids, deadline);
        if (n)
            return n;
    }
}

int weft_submit(weft_queue *q, const weft_task *tasks, uint32_t count, uint64_t *ids, int64_t timeout_ns)
{
    if (BASE_UNLIKELY(queue_closed(q)))
        return queue_refuse_closed(q);
    if (BASE_UNLIKELY(count == 0 || count > INT32_MAX))
        return base_fail(-EINVAL, "queue '%s': weft_submit() of %u tasks: expected 1 to 2147483647", q->name, count);
    if (BASE_UNLIKELY(atomic_load_explicit(&q->pending, memory_order_relaxed)))
        queue_place_pending(q);
    int n = place_some(q, tasks, count, ids, timeout_ns == 0 ? 0 : INT64_MAX);
    if (BASE_LIKELY(n))
        return n;
    int64_t deadline = fab_timeout(q->w, timeout_ns);
    int rc = queue_begin_wait(q);
    if (rc == 0) {
        rc = submit_later(q, tasks, count, ids, deadline);
        queue_end_wait(q);
    }
    return rc;
}

/* Ask the homes, by message, to free those slots that this node reaches through the fabric. Freeing them directly would wait for an
 * operation, and completions are accepted in a handler, which must not wait. */
static BASE_COLD void free_elsewhere(struct weft_queue *q, const struct queue_done_message *dones, uint32_t count)
{
    struct queue_settle_message at_home[QUEUE_DONES_MAX];
    struct queue_view *home = NULL;
    uint32_t n = 0, slot;
    for (uint32_t i = 0; i < count; i++) {
        const struct queue_done_message *m = &dones[i];
        struct queue_view *v = queue_slot_find(q, m->slot, &slot);
        if (!v || v->shard.mem || slot_status(m->word) != SLOT_DONE)
            continue;
        if (n && (v != home || n == QUEUE_DONES_MAX)) {
            queue_post(q, home->node, QUEUE_SETTLE, home->incarnation, at_home, n, n * sizeof at_home[0]);
            n = 0;
        }
        home = v;
        at_home[n++] = (struct queue_settle_message){m->word, m->word, slot, SLOT_FREE};
    }
    if (n)
        queue_post(q, home->node, QUEUE_SETTLE, home->incarnation, at_home, n, n * sizeof at_home[0]);
}

void queue_accept(struct weft_queue *q, uint32_t worker, const struct queue_done_message *dones, uint32_t count)
{
    struct table *t = &q->table;
    uint32_t accepted = 0;
    base_spin_lock(&t->lock);
    for (uint32_t i = 0; count >= QUEUE_FETCH && i < count; i++)
        table_fetch(t, dones[i].id);
    for (uint32_t i = 0; i < count; i++) {
        const struct queue_done_message *m = &dones[i];
        weft_done done = {.status = m->status, .worker = worker, .result = m->result, .result_len = m->result_len};
        accepted += table_complete(t, m->id, &done);
    }
    atomic_store_explicit(&q->reapable, t->complete.count, memory_order_relaxed);
    atomic_store_explicit(&q->pending, t->pending.count, memory_order_relaxed);
    queue_publish_counts(q);
    base_spin_unlock(&t->lock);

    bool elsewhere = false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot;
        const struct queue_done_message *m = &dones[i];
        struct queue_view *v = queue_slot_find(q, m->slot, &slot);
        if (!v || slot_status(m->word) != SLOT_DONE)
            continue; /* the home is gone, and so is the slot */
        if (BASE_LIKELY(v->shard.mem != NULL))
            slot_free(&v->shard, slot, m->word);
        else
            elsewhere = true;
    }
    if (BASE_UNLIKELY(elsewhere))
        free_elsewhere(q, dones, count);
    if (accepted)
        fab_wake_here(q->w); /* wake threads that reap, drain, or wait for room */
}

static bool reap_ready(void *arg)
{
    struct weft_queue *q = arg;
    return atomic_load_explicit(&q->reapable, memory_order_relaxed) != 0;
}

/* Print which nodes have claimed the work that this node waits for. For a shard on another host, print only its home. */
static void say_reap(struct weft_queue *q, const struct fab_patience *p)
{
    bool homes[WEFT_MAX_NUMBERS], in[WEFT_MAX_NUMBERS] = {false};
    uint32_t nodes = q->w->size;
    char names[160], whom[256];
    base_spin_lock(&q->table.lock);
    unsigned long long tasks = table_homes(&q->table, homes, nodes);
    base_spin_unlock(&q->table.lock);
    for (uint32_t i = 0; i < nodes; i++) {
        struct queue_view *v = homes[i] ? queue_view_of(q, i) : NULL;
        if (v && v->shard.mem)
            slot_workers(&v->shard, q->w->rank, nodes, in);
        else if (v)
            in[i] = true;
    }
    uint32_t n = fab_name_nodes(in, nodes, names, sizeof names);
    if (n == 0)
        fab_name_living(q->w, names, sizeof names);
    snprintf(whom, sizeof whom, "%llu task%s %s%s%s", tasks, tasks == 1 ? "" : "s", n == 0 ? "that nobody has claimed; " : "at ", names,
             n == 0   ? ""
             : n == 1 ? ", which is alive"
                      : ", which are alive");
    queue_say(q, p, "reap", whom);
}

/* Reap the completions that have arrived. Returns how many; 0 if none has arrived, but tasks are outstanding. */
BASE_INLINE int reap_now(struct weft_queue *q, weft_done *out, uint32_t max)
{
    struct table *t = &q->table;
    base_spin_lock(&t->lock);
    uint32_t n = table_reap(t, out, max);
    bool none = n == 0 && t->submitted == t->completed;
    atomic_store_explicit(&q->reapable, t->complete.count, memory_order_relaxed);
    base_spin_unlock(&t->lock);
    return BASE_UNLIKELY(none)
               ? base_fail(-ENOENT,
                           "queue '%s': this node has no outstanding task: it has reaped all tasks that it submitted; submit tasks first",
                           q->name)
               : (int)n;
}

static BASE_COLD int reap_later(struct weft_queue *q, weft_done *out, uint32_t max, int64_t timeout_ns)
{
    struct fab_patience p;
    fab_patience_begin(&p, q->w, FAB_LAST, timeout_ns);
    for (;;) {
        queue_place_pending(q);
        int64_t slice = base_now_ns() + 10 * WEFT_MS; /* look again after this time: another thread may have reaped the last completion */
        int64_t next = fab_patience_next(&p);
        int rc = fab_wait(q->w, reap_ready, q, slice < next ? slice : next);
        if (rc && rc != -ETIMEDOUT)
            return rc;
        int over = rc ? queue_check(q, &p) : 0;
        if (over == -ETIMEDOUT)
            return base_fail(
                over, "queue '%s': no task of this node was completed before the deadline; call weft_reap() again, or allow more time",
                q->name);
        if (over)
            return base_fail(over,
                             "queue '%s': no task of this node was completed, and %s that could complete one; claim the tasks on this node "
                             "(weft_claim())",
                             q->name, fab_patience_loss(&p));
        if (rc && fab_patience_due(&p))
            say_reap(q, &p);
        int n = reap_now(q, out, max);
        if (n)
            return n;
    }
}

int weft_reap(weft_queue *q, weft_done *out, uint32_t max, int64_t timeout_ns)
{
    if (BASE_UNLIKELY(queue_closed(q)))
        return queue_refuse_closed(q);
    if (BASE_UNLIKELY(max == 0))
        return base_fail(-EINVAL, "queue '%s': weft_reap() of 0 completions: expected at least 1", q->name);
    if (max > INT32_MAX)
        max = INT32_MAX;
    int n = reap_now(q, out, max);
    if (BASE_LIKELY(n))
        return n;
    if (timeout_ns == 0)
        return -ETIMEDOUT;
    int rc = queue_begin_wait(q);
    if (rc == 0) {
        rc = reap_later(q, out, max, timeout_ns);
        queue_end_wait(q);
    }
    return rc;
}

void queue_home_gone(struct weft_queue *q, struct queue_view *v)
{
    struct table *t = &q->table;
    base_spin_lock(&t->lock);
    uint32_t n = 0;
    if (!atomic_load_explicit(&v->gone, memory_order_relaxed)) {
        atomic_store_explicit(&v->gone, true, memory_order_relaxed);
        n = table_home_gone(t, v->node);
        t->resubmitted += n;
        atomic_store_explicit(&q->pending, t->pending.count, memory_order_relaxed);
    }
    base_spin_unlock(&t->lock);
    if (n) {
        queue_place_pending(q);
        if (atomic_load_explicit(&q->pending, memory_order_relaxed))
            fab_kick(q->w); /* make the progress thread place the task again */
    }
}

void queue_place_pending(struct weft_queue *q)
{
    struct table *t = &q->table;
    uint32_t full = 0;
    while (atomic_load_explicit(&q->pending, memory_order_relaxed)) {
        uint64_t ids[PENDING_RUN];
        weft_task tasks[PENDING_RUN];
        uint32_t tries[PENDING_RUN], n = 0, highest = 0;
        struct queue_view *v = submit_choose(q, full);
        if (!v)
            return;
        base_spin_lock(&t->lock);
        if (!atomic_load_explicit(&v->gone, memory_order_relaxed))
            while (n < PENDING_RUN && table_take_pending(t, v->node, &ids[n], &tasks[n], &tries[n]))
                n++;
        atomic_store_explicit(&q->pending, t->pending.count, memory_order_relaxed);
        base_spin_unlock(&t->lock);
        for (uint32_t i = 0; i < n; i++)
            highest = tries[i] > highest ? tries[i] : highest;
        int64_t before = v->shard.mem ? 0 : queue_limit(0);
        int placed = n ? slot_submit(&v->shard, queue_user(q), highest, (const uint64_t *)(const void *)tasks, ids, n) : 0;
        if (!v->shard.mem)
            fab_limit(before);
        uint32_t kept = placed < 0 ? 0 : (uint32_t)placed;
        if (kept < n) {
            base_spin_lock(&t->lock);
            for (uint32_t i = kept; i < n; i++)
                table_put_back(t, ids[i], v->node, tries[i]);
            atomic_store_explicit(&q->pending, t->pending.count, memory_order_relaxed);
            base_spin_unlock(&t->lock);
        }
        if (kept)
            queue_wake(q, v);
        if (n && kept == n)
            full = 0;
        else if (++full > atomic_load_explicit(&q->serving_count, memory_order_acquire))
            return;
    }
}
