/* SPDX-License-Identifier: MIT
 *
 * The worker's side: claiming from the node's own shard and others', completing, renewing, releasing.
 */
#include "queue/queue.h"

#include <stdlib.h>
#include <string.h>

/* What weft_claim.private_ holds. */
enum claim_word { CLAIM_SLOT, CLAIM_STATE, CLAIM_ID };

#define CLAIM_RUN 64u

struct queue_unsent {
    struct queue_unsent *next;
    uint32_t node, count;
    struct queue_done_message dones[QUEUE_DONES_MAX];
};

static int claim_from(struct weft_queue *q, struct queue_view *v, weft_claim *out, uint32_t max, bool steal)
{
    struct slot_claim claims[CLAIM_RUN];
    int n = slot_claim(&v->shard, q->w->rank, q->w->size, claims, max < CLAIM_RUN ? max : CLAIM_RUN, steal);
    for (int i = 0; i < n; i++) {
        const struct slot_claim *c = &claims[i];
        memcpy(&out[i].task, c->task, sizeof out[i].task);
        out[i].submitter = c->submitter;
        out[i].attempt = slot_attempt(c->word);
        out[i].private_[CLAIM_SLOT] = queue_slot_address(v, c->slot);
        out[i].private_[CLAIM_STATE] = c->word;
        out[i].private_[CLAIM_ID] = c->id;
    }
    return n < 0 ? 0 : n; /* a shard that fails to answer is going; its submitters know */
}

static uint32_t claim_now(struct weft_queue *q, weft_claim *out, uint32_t max)
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
        if (v != q->own && queue_view_usable(v) && fab_alive(q->w, v->node))
            got = (uint32_t)claim_from(q, v, out, max, true);
    }
    if (got) {
        atomic_fetch_add_explicit(&q->claimed, got, memory_order_relaxed);
        atomic_fetch_add_explicit(&q->stolen, got, memory_order_relaxed);
    }
    return got;
}

/* Looks only where looking is a load. */
static bool claim_ready(void *arg)
{
    struct weft_queue *q = arg;
    _Atomic uint64_t *mem = q->own->shard.mem;
    /* seq_cst: before the look; pairs with wake_if_idle() in view.c. See SLEEPING in queue.h. */
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

int weft_claim_tasks(weft_queue *q, weft_claim *out, uint32_t max, int64_t timeout_ns)
{
    if (BASE_UNLIKELY(max == 0))
        return base_fail(-EINVAL, "queue '%s': claiming 0 tasks", q->name);
    if (max > INT32_MAX)
        max = INT32_MAX;
    int64_t deadline = 0;
    for (;;) {
        /* before the look: what was submitted before the shutdown is found after it */
        bool shut = atomic_load_explicit(&q->shut, memory_order_seq_cst);
        uint32_t n = claim_now(q, out, max);
        if (BASE_LIKELY(n))
            return (int)n;
        if (shut)
            return base_fail(-ESHUTDOWN, "queue '%s' was shut down and nothing is ready", q->name);
        if (timeout_ns == 0)
            return -ETIMEDOUT;
        int64_t now = base_now_ns();
        if (deadline == 0)
            deadline = fab_timeout(q->w, timeout_ns);
        if (now >= deadline)
            return base_fail(-ETIMEDOUT, "queue '%s': nothing was ready before the deadline", q->name);
        int64_t slice = now + CLAIM_SLICE_NS;
        int rc = fab_wait(q->w, claim_ready, q, slice < deadline ? slice : deadline);
        if (rc && rc != -ETIMEDOUT)
            return rc;
    }
}

/* The view and slot of a claim, if it can still be this node's. */
static struct queue_view *claim_view(const struct weft_queue *q, const weft_claim *c, uint32_t *slot)
{
    uint64_t word = c->private_[CLAIM_STATE];
    if (slot_status(word) != SLOT_CLAIMED || slot_owner(word) != q->w->rank || c->submitter >= q->w->size)
        return NULL;
    struct queue_view *v = queue_slot_find(q, c->private_[CLAIM_SLOT], slot);
    return v && fab_alive(q->w, v->node) ? v : NULL;
}

static void keep_unsent(struct weft_queue *q, uint32_t node, const struct queue_done_message *dones, uint32_t count)
{
    struct queue_unsent *u = calloc(1, sizeof *u);
    if (!u) {
        base_log(BASE_LOG_ERROR, "queue '%s': no memory to keep %u completions for node %u: they are lost, and the tasks "
                 "stay outstanding there", q->name, count, node);
        return;
    }
    u->node = node;
    u->count = count;
    memcpy(u->dones, dones, count * sizeof *dones);
    base_spin_lock(&q->unsent_lock);
    struct queue_unsent **end = &q->unsent;
    while (*end)
        end = &(*end)->next;
    *end = u;
    base_spin_unlock(&q->unsent_lock);
    fab_kick(q->w);
}

void queue_send_unsent(struct weft_queue *q)
{
    base_spin_lock(&q->unsent_lock);
    struct queue_unsent *u = q->unsent;
    q->unsent = NULL;
    base_spin_unlock(&q->unsent_lock);
    while (u) {
        struct queue_unsent *next = u->next;
        if (queue_send(q, u->node, QUEUE_DONES, u->dones, u->count, u->count * sizeof u->dones[0]) &&
            fab_alive(q->w, u->node))
            keep_unsent(q, u->node, u->dones, u->count);
        free(u);
        u = next;
    }
}

void queue_drop_unsent(struct weft_queue *q)
{
    while (q->unsent) {
        struct queue_unsent *u = q->unsent;
        q->unsent = u->next;
        free(u);
    }
}

/* Tell a submitter. False: it is gone, and its homes free the slots. */
static bool tell(struct weft_queue *q, uint32_t submitter, const struct queue_done_message *dones, uint32_t count)
{
    if (submitter == q->w->rank) {
        queue_accept(q, submitter, dones, count);
        return true;
    }
    if (queue_send(q, submitter, QUEUE_DONES, dones, count, count * sizeof *dones) == 0)
        return true;
    if (!fab_alive(q->w, submitter))
        return false;
    keep_unsent(q, submitter, dones, count);
    return true;
}

/* Swap one claim to DONE; false when it is refused. */
static bool finish(struct weft_queue *q, const weft_claim *c, const weft_result *r, struct queue_done_message *m)
{
    uint32_t slot;
    struct queue_view *v = claim_view(q, c, &slot);
    if (!v || !fab_alive(q->w, c->submitter) || slot_complete(&v->shard, slot, c->private_[CLAIM_STATE], &m->word))
        return false;
    m->id = c->private_[CLAIM_ID];
    m->slot = c->private_[CLAIM_SLOT];
    m->status = r->status;
    m->reserved = 0;
    m->result = r->result;
    m->result_len = r->result_len;
    return true;
}

int weft_complete(weft_queue *q, const weft_claim *claims, const weft_result *results, uint32_t count, bool *accepted)
{
    if (BASE_UNLIKELY(count > INT32_MAX))
        return base_fail(-EINVAL, "queue '%s': completing %u tasks", q->name, count);
    uint32_t good = 0;
    /* Windows of 64, so that one word says which are dealt with; in each, a message a submitter. */
    for (uint32_t from = 0; from < count; from += 64) {
        uint32_t n = count - from < 64 ? count - from : 64;
        uint64_t left = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
        while (left) {
            struct queue_done_message dones[64];
            uint8_t which[64];
            uint32_t submitter = claims[from + (uint32_t)__builtin_ctzll(left)].submitter, m = 0;
            for (uint64_t look = left; look; look &= look - 1) {
                uint32_t i = (uint32_t)__builtin_ctzll(look);
                if (claims[from + i].submitter != submitter)
                    continue;
                left &= ~(UINT64_C(1) << i);
                bool ok = finish(q, &claims[from + i], &results[from + i], &dones[m]);
                if (accepted)
                    accepted[from + i] = ok;
                if (ok)
                    which[m++] = (uint8_t)i;
            }
            if (m && !tell(q, submitter, dones, m)) {
                for (uint32_t i = 0; accepted && i < m; i++)
                    accepted[from + which[i]] = false;
                m = 0;
            }
            good += m;
        }
    }
    if (BASE_UNLIKELY(good < count))
        atomic_fetch_add_explicit(&q->refused, count - good, memory_order_relaxed);
    return (int)good;
}

static BASE_COLD int stale(struct weft_queue *q)
{
    return base_fail(-ESTALE, "queue '%s': the claim is no longer this node's: its lease has ended", q->name);
}

int weft_renew(weft_queue *q, weft_claim *claim)
{
    uint32_t slot;
    struct queue_view *v = claim_view(q, claim, &slot);
    if (!v || slot_renew(&v->shard, slot, claim->private_[CLAIM_STATE], &claim->private_[CLAIM_STATE]))
        return stale(q);
    return 0;
}

int weft_release(weft_queue *q, const weft_claim *claim)
{
    uint32_t slot;
    struct queue_view *v = claim_view(q, claim, &slot);
    if (!v || slot_release(&v->shard, slot, claim->private_[CLAIM_STATE]))
        return stale(q);
    queue_wake(q, v);
    return 0;
}
