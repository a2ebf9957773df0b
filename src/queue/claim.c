/* SPDX-License-Identifier: MIT
 *
 * The worker's side: claiming tasks (from the node's own shard and from those of other nodes), completing, renewing and releasing them.
 */
#include "queue/queue.h"

#include <string.h>

/* Indices into weft_lease.private_. */
enum claim_word { CLAIM_SLOT, CLAIM_STATE, CLAIM_ID, CLAIM_SUBMITTER };

#define CLAIM_RUN 64u

static int claim_from(struct weft_queue *q, struct queue_view *v, weft_lease *out, uint32_t max, bool steal)
{
    struct slot_claim claims[CLAIM_RUN];
    int n = slot_claim(&v->shard, queue_user(q), q->w->size, claims, max < CLAIM_RUN ? max : CLAIM_RUN, steal);
    for (int i = 0; i < n; i++) {
        const struct slot_claim *c = &claims[i];
        memcpy(&out[i].task, c->task, sizeof out[i].task);
        out[i].submitter = slot_user_node(c->submitter);
        out[i].attempt = slot_attempt(c->word);
        out[i].private_[CLAIM_SLOT] = queue_slot_address(v, c->slot);
        out[i].private_[CLAIM_STATE] = c->word;
        out[i].private_[CLAIM_ID] = c->id;
        out[i].private_[CLAIM_SUBMITTER] = c->submitter;
    }
    /* A shard that returns an error counts as empty. If the shard's node has died, the submitters place its tasks in other shards. */
    return n < 0 ? 0 : n;
}

/* Claim tasks that are ready now, without waiting for more. `deadline`: when the caller's call ends. */
BASE_INLINE uint32_t claim_now(struct weft_queue *q, weft_lease *out, uint32_t max, int64_t deadline)
{
    uint32_t got = 0;
    if (q->own->shard.slots) {
        int n;
        while (got < max && (n = claim_from(q, q->own, out + got, max - got, false)) > 0)
            got += (uint32_t)n;
    }
    if (got) {
        atomic_fetch_add_explicit(&q->claimed, got, memory_order_relaxed);
        return got;
    }
    uint32_t n = atomic_load_explicit(&q->serving_count, memory_order_acquire);
    uint32_t start = n > 1 ? atomic_fetch_add_explicit(&q->victim, 1, memory_order_relaxed) : 0;
    for (uint32_t i = 0; i < n && got == 0; i++) {
        struct queue_view *v = queue_view_of(q, q->serving[(start + i) % n]);
        if (v == q->own || !queue_view_usable(v) || !fab_alive(q->w, v->node))
            continue;
        int64_t before = v->shard.mem ? 0 : queue_limit(deadline);
        got = (uint32_t)claim_from(q, v, out, max, true);
        if (!v->shard.mem)
            fab_limit(before);
    }
    if (got) {
        atomic_fetch_add_explicit(&q->claimed, got, memory_order_relaxed);
        atomic_fetch_add_explicit(&q->stolen, got, memory_order_relaxed);
    }
    return got;
}

/* Whether a task may be ready. Looks only at shards that this process can load from. */
static bool claim_ready(void *arg)
{
    struct weft_queue *q = arg;
    _Atomic uint64_t *mem = q->own->shard.mem;
    /* seq_cst: see SLEEPING in queue.h; pairs with wake_if_idle() in view.c. */
    if (atomic_load_explicit(&mem[SLOT_IDLE], memory_order_relaxed) != 1)
        atomic_store_explicit(&mem[SLOT_IDLE], 1, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
    uint32_t n = atomic_load_explicit(&q->serving_count, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
        struct queue_view *v = queue_view_of(q, q->serving[i]);
        if (v && v->shard.mem && slot_backlog(&v->shard) && fab_alive(q->w, v->node))
            return true;
    }
    return atomic_load_explicit(&q->shut, memory_order_seq_cst);
}

/* Returns the number of claimed tasks; 0 when none is ready. */
BASE_INLINE int claim_or_shut(struct weft_queue *q, weft_lease *out, uint32_t max, int64_t deadline)
{
    /* load `shut` before looking at the shards, so that a task that was submitted before the shutdown is found */
    bool shut = atomic_load_explicit(&q->shut, memory_order_seq_cst);
    uint32_t n = claim_now(q, out, max, deadline);
    if (BASE_UNLIKELY(n == 0 && shut))
        return base_fail(-ESHUTDOWN, "queue '%s' was shut down (weft_queue_shutdown()), and no task is ready: there will be no more tasks",
                         q->name);
    return (int)n;
}

static BASE_COLD int claim_later(struct weft_queue *q, weft_lease *out, uint32_t max, int64_t deadline)
{
    /* Shards that this process cannot load from are looked at only between pauses. The first pauses are short, because tasks often come
     * soon. */
    for (int64_t pause = CLAIM_FIRST_NS;; pause = 2 * pause < CLAIM_SLICE_NS ? 2 * pause : CLAIM_SLICE_NS) {
        int64_t now = base_now_ns();
        if (now >= deadline)
            return base_fail(-ETIMEDOUT, "queue '%s': no task was ready before the deadline; claim again, or allow more time", q->name);
        int64_t slice = now + pause;
        int rc = fab_wait(q->w, claim_ready, q, slice < deadline ? slice : deadline);
        if (rc && rc != -ETIMEDOUT)
            return rc;
        int n = claim_or_shut(q, out, max, deadline);
        if (n)
            return n;
    }
}

int weft_claim(weft_queue *q, weft_lease *out, uint32_t max, int64_t timeout_ns)
{
    if (BASE_UNLIKELY(queue_closed(q)))
        return queue_refuse_closed(q);
    if (BASE_UNLIKELY(max == 0))
        return base_fail(-EINVAL, "queue '%s': weft_claim() of 0 tasks: expected at least 1", q->name);
    if (max > INT32_MAX)
        max = INT32_MAX;
    int n = claim_or_shut(q, out, max, timeout_ns == 0 ? 0 : INT64_MAX);
    if (BASE_LIKELY(n))
        return n;
    if (timeout_ns == 0)
        return -ETIMEDOUT;
    int64_t deadline = fab_timeout(q->w, timeout_ns);
    int rc = queue_begin_wait(q);
    if (rc == 0) {
        rc = claim_later(q, out, max, deadline);
        queue_end_wait(q);
    }
    return rc;
}

/* Returns the view of a claim's shard, and stores the index of the claim's slot in *slot. Returns NULL if this node certainly does not hold
 * the claim any more. */
static struct queue_view *claim_view(const struct weft_queue *q, const weft_lease *c, uint32_t *slot)
{
    uint64_t word = c->private_[CLAIM_STATE];
    if (slot_status(word) != SLOT_CLAIMED || slot_owner(word) != q->w->rank || slot_user_node(c->private_[CLAIM_SUBMITTER]) >= q->w->size)
        return NULL;
    struct queue_view *v = queue_slot_find(q, c->private_[CLAIM_SLOT], slot);
    return v && fab_alive(q->w, v->node) ? v : NULL;
}

/* Send completions to their submitter. Returns false if the submitter is gone; then the shards' homes free its slots. */
static bool claim_tell(struct weft_queue *q, uint64_t submitter, const struct queue_done_message *dones, uint32_t count)
{
    uint32_t node = slot_user_node(submitter), incarnation = slot_user_incarnation(submitter);
    if (node == q->w->rank) {
        if (incarnation == q->incarnation)
            queue_accept(q, node, dones, count);
        /* If the incarnations differ, this node has closed and reopened the queue since it submitted these tasks. The shards' homes learn
         * of the close, and free the slots. */
        return true;
    }
    if (queue_send(q, node, QUEUE_DONES, incarnation, dones, count, count * sizeof *dones) == 0)
        return true;
    if (!fab_alive(q->w, node))
        return false;
    queue_keep(q, node, QUEUE_DONES, incarnation, dones, count, count * sizeof *dones);
    return true;
}

/* One deadline for all waits of a call. */
struct limit {
    bool begun;
    int64_t before;
};

static BASE_COLD void limit_begin(const struct weft_queue *q, struct limit *l)
{
    if (l->begun)
        return;
    l->begun = true;
    l->before = fab_limit(base_deadline(q->w->options.deadline_ns));
}

static void limit_end(const struct limit *l)
{
    if (l->begun)
        fab_limit(l->before);
}

/* Swap the slot of one claim to DONE, and fill `m`, the message to the submitter. Returns false if the swap has failed, or if the shard's
 * node or the submitter is gone. */
static bool claim_finish(struct weft_queue *q, const weft_lease *c, const weft_result *r, struct queue_done_message *m, struct limit *limit)
{
    uint32_t slot;
    struct queue_view *v = claim_view(q, c, &slot);
    if (v && !v->shard.mem)
        limit_begin(q, limit);
    if (!v || !fab_alive(q->w, slot_user_node(c->private_[CLAIM_SUBMITTER])) ||
        slot_complete(&v->shard, slot, c->private_[CLAIM_STATE], &m->word))
        return false;
    m->id = c->private_[CLAIM_ID];
    m->slot = c->private_[CLAIM_SLOT];
    m->status = r->status;
    m->reserved = 0;
    m->result = r->result;
    m->result_len = r->result_len;
    return true;
}

/* In a handler, refuse claims in shards that are reached through the fabric, because a handler must not wait. */
static BASE_COLD int needs_waiting(const struct weft_queue *q, const weft_lease *claims, uint32_t count)
{
    for (uint32_t i = 0, slot; i < count && fab_in_handler(); i++) {
        struct queue_view *v = claim_view(q, &claims[i], &slot);
        if (v && !v->shard.mem)
            return base_fail(-EDEADLK,
                             "queue '%s': the task is stored on node %u, and a handler must not wait for that node's answer: make this "
                             "call in another thread",
                             q->name, v->node);
    }
    return 0;
}

/* Fetches the memory of several claims' slots together. Otherwise each swap would wait for the memory of its own slot. */
static void claim_fetch(const struct weft_queue *q, const weft_lease *claims, uint32_t n)
{
    for (uint32_t i = 0, slot; i < n; i++) {
        struct queue_view *v = queue_slot_find(q, claims[i].private_[CLAIM_SLOT], &slot);
        if (v)
            slot_fetch(&v->shard, slot);
    }
}

BASE_INLINE int complete(weft_queue *q, const weft_lease *claims, const weft_result *results, uint32_t count, bool *accepted)
{
    uint32_t good = 0;
    struct limit limit = {false, 0};
    /* Handle 64 claims at a time, so that the bits of one word can mark those that are done. */
    for (uint32_t from = 0; from < count; from += 64) {
        uint32_t n = count - from < 64 ? count - from : 64;
        uint64_t left = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
        if (n >= QUEUE_FETCH)
            claim_fetch(q, claims + from, n);
        while (left) {
            struct queue_done_message dones[64];
            uint8_t which[64];
            uint64_t submitter = claims[from + (uint32_t)__builtin_ctzll(left)].private_[CLAIM_SUBMITTER];
            uint32_t m = 0;
            for (uint64_t look = left; look; look &= look - 1) {
                uint32_t i = (uint32_t)__builtin_ctzll(look);
                if (claims[from + i].private_[CLAIM_SUBMITTER] != submitter)
                    continue;
                left &= ~(UINT64_C(1) << i);
                bool ok = claim_finish(q, &claims[from + i], &results[from + i], &dones[m], &limit);
                if (accepted)
                    accepted[from + i] = ok;
                if (ok)
                    which[m++] = (uint8_t)i;
            }
            if (m && !claim_tell(q, submitter, dones, m)) {
                for (uint32_t i = 0; accepted && i < m; i++)
                    accepted[from + which[i]] = false;
                m = 0;
            }
            good += m;
        }
    }
    limit_end(&limit);
    if (BASE_UNLIKELY(good < count))
        atomic_fetch_add_explicit(&q->refused, count - good, memory_order_relaxed);
    return (int)good;
}

int weft_complete(weft_queue *q, const weft_lease *claims, const weft_result *results, uint32_t count, bool *accepted)
{
    if (BASE_UNLIKELY(queue_closed(q)))
        return queue_refuse_closed(q);
    if (BASE_UNLIKELY(count > INT32_MAX))
        return base_fail(-EINVAL, "queue '%s': weft_complete() of %u tasks: expected at most 2147483647", q->name, count);
    int rc = BASE_UNLIKELY(queue_elsewhere(q)) ? needs_waiting(q, claims, count) : 0;
    return rc ? rc : complete(q, claims, results, count, accepted);
}

/* Report why a claim could not be changed. `rc`: the error of the attempt. */
static BASE_COLD int claim_refused(struct weft_queue *q, const struct queue_view *v, int rc, const char *otherwise)
{
    if (!v || rc == -ECONNRESET)
        return base_fail(-ESTALE,
                         "queue '%s': this node does not hold the claim any more, because the node that stored the task is gone; stop the "
                         "work on this task, because its submitter submits it again",
                         q->name);
    if (rc == -ESTALE)
        return base_fail(-ESTALE,
                         "queue '%s': this node does not hold the claim any more, because its lease has ended, or the claim was completed "
                         "or released already; stop the work on this task, and renew claims in time (weft_renew())",
                         q->name);
    return base_context(rc, "queue '%s': a task that is stored on node %u (%s)", q->name, v->node, otherwise);
}

int weft_renew(weft_queue *q, weft_lease *claim)
{
    uint32_t slot;
    uint64_t now;
    if (BASE_UNLIKELY(queue_closed(q)))
        return queue_refuse_closed(q);
    int rc = BASE_UNLIKELY(queue_elsewhere(q)) ? needs_waiting(q, claim, 1) : 0;
    if (rc)
        return rc;
    struct queue_view *v = claim_view(q, claim, &slot);
    rc = v ? slot_renew(&v->shard, slot, claim->private_[CLAIM_STATE], &now) : -ESTALE;
    if (rc)
        return claim_refused(q, v, rc, "it is not known whether the lease was renewed: renew the claim again");
    claim->private_[CLAIM_STATE] = now; /* set last: a call that fails must leave the caller's claim as it was */
    return 0;
}

int weft_release(weft_queue *q, const weft_lease *claim)
{
    uint32_t slot;
    if (BASE_UNLIKELY(queue_closed(q)))
        return queue_refuse_closed(q);
    int rc = BASE_UNLIKELY(queue_elsewhere(q)) ? needs_waiting(q, claim, 1) : 0;
    if (rc)
        return rc;
    struct queue_view *v = claim_view(q, claim, &slot);
    rc = v ? slot_release(&v->shard, slot, claim->private_[CLAIM_STATE]) : -ESTALE;
    if (rc)
        return claim_refused(q, v, rc, "the claim is released when that node answers");
    queue_wake(q, v);
    return 0;
}
