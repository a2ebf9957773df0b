/* SPDX-License-Identifier: MIT
 *
 * How this node reaches the shards: on its own host by loads and stores, elsewhere by puts, gets and atomics, whose completion the calling
 * thread waits for.
 */
#include "queue/queue.h"

#include <stdlib.h>

int64_t queue_limit(int64_t deadline)
{
    int64_t now = base_now_ns(), end = deadline < now + QUEUE_LOOK_NS ? now + QUEUE_LOOK_NS : deadline;
    return fab_limit(end < now + QUEUE_ANSWER_NS ? end : now + QUEUE_ANSWER_NS);
}

/* Record how an operation on the view's shard ended. */
static int view_answered(struct queue_view *v, int rc)
{
    if (BASE_UNLIKELY(rc == -ETIMEDOUT))
        atomic_store_explicit(&v->silent_until, base_now_ns() + QUEUE_ANSWER_NS, memory_order_relaxed);
    else if (BASE_UNLIKELY(atomic_load_explicit(&v->silent_until, memory_order_relaxed)))
        atomic_store_explicit(&v->silent_until, 0, memory_order_relaxed);
    return rc;
}

/* A load that has timed out may store its result after the caller's stack frame is gone. So the result goes to memory of the fabric
 * first. */
_Static_assert(SLOT_LOAD_WORDS * sizeof(uint64_t) <= FAB_NOW_BYTES, "what weft_get_blocking() reads into memory of its own");

static int remote_load(void *arg, uint32_t word, uint64_t *out, uint32_t count)
{
    struct queue_view *v = arg;
    return view_answered(v, weft_get_blocking(v->q->w, out, v->at + (uint64_t)word * 8, (size_t)count * 8));
}

static int remote_store(void *arg, uint32_t word, const uint64_t *in, uint32_t count)
{
    struct queue_view *v = arg;
    int rc = view_answered(v, weft_put_blocking(v->q->w, v->at + (uint64_t)word * 8, in, (size_t)count * 8));
    return rc ? rc : weft_fence(v->q->w, v->node); /* the fields must be written before the swap that publishes them */
}

static int remote_swap(void *arg, uint32_t word, uint64_t expected, uint64_t desired, uint64_t *old)
{
    struct queue_view *v = arg;
    return view_answered(v, weft_compare_swap_blocking(v->q->w, v->at + (uint64_t)word * 8, expected, desired, old));
}

static uint32_t remote_number(void *arg)
{
    struct queue_view *v = arg;
    return atomic_fetch_add_explicit(&v->attempts, 1, memory_order_relaxed);
}

static void remote_settle(void *arg, uint32_t slot, uint64_t from, uint64_t to, enum slot_status then)
{
    struct queue_view *v = arg;
    struct queue_settle_message m = {from, to, slot, (uint32_t)then};
    weft_fence(v->q->w, v->node); /* late puts of fields must arrive before the home settles the slot */
    queue_post(v->q, v->node, QUEUE_SETTLE, v->incarnation, &m, 1, sizeof m);
}

static const struct slot_remote remote_access = {remote_load, remote_store, remote_swap, remote_number, remote_settle};

bool queue_view_tried(struct queue_view *v, const struct queue_view *old)
{
    v->shard.tried = old ? old->shard.tried : NULL;
    v->tried_room = old ? old->tried_room : 0;
    if (v->shard.slots <= v->tried_room)
        return true;
    v->shard.tried = v->tried_own = calloc(v->shard.slots, sizeof *v->tried_own);
    v->tried_room = v->shard.slots;
    return v->tried_own;
}

struct queue_view *queue_view_make(struct weft_queue *q, uint32_t node, uint32_t incarnation, weft_gaddr at, uint32_t slots, bool remote)
{
    struct queue_view *v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    v->q = q;
    v->node = node;
    v->incarnation = incarnation;
    v->at = at;
    v->shard.slots = slots;
    v->shard.mem = remote ? NULL : weft_ptr(q->w, at, slot_shard_bytes(slots));
    v->shard.remote = &remote_access;
    v->shard.incarnation = incarnation;
    v->shard.arg = v;
    if (!v->shard.mem) {
        if (!queue_view_tried(v, atomic_load_explicit(&q->views[node], memory_order_relaxed))) {
            queue_view_free(v);
            return NULL;
        }
        atomic_store_explicit(&q->elsewhere, true, memory_order_relaxed);
    }
    return v;
}

void queue_view_free(struct queue_view *v)
{
    if (v)
        free((void *)v->tried_own);
    free(v);
}

struct queue_view *queue_slot_find(const struct weft_queue *q, weft_gaddr slot, uint32_t *index)
{
    uint32_t node = weft_gaddr_node(slot);
    if (node >= q->w->size)
        return NULL;
    struct queue_view *v = queue_view_of(q, node);
    if (!v || slot < queue_slot_address(v, 0) || slot >= queue_slot_address(v, v->shard.slots))
        return NULL;
    uint64_t from = slot - queue_slot_address(v, 0);
    if (from % (SLOT_WORDS * 8))
        return NULL;
    *index = (uint32_t)(from / (SLOT_WORDS * 8));
    return v;
}

static BASE_COLD int take_idle_elsewhere(struct queue_view *v)
{
    if (fab_in_handler() || queue_view_silent(v))
        return 0; /* a claimer of that node looks again by itself soon */
    int64_t before = queue_limit(0);
    int swapped = slot_header_swap(&v->shard, SLOT_IDLE, 1, 0);
    fab_limit(before);
    return swapped;
}

/* Swap the idle word of a node from 1 to 0, and wake the node. Returns false if no claimer of that node sleeps. */
static bool wake_if_idle(struct weft_queue *q, struct queue_view *v)
{
    if (BASE_LIKELY(v->shard.mem != NULL)) {
        /* seq_cst: after our raise of tail; pairs with the claimer's store of idle (claim.c) */
        if (atomic_load_explicit(&v->shard.mem[SLOT_IDLE], memory_order_seq_cst) != 1 || slot_header_swap(&v->shard, SLOT_IDLE, 1, 0) != 1)
            return false;
    } else if (take_idle_elsewhere(v) != 1) {
        return false;
    }
    if (v->node == q->w->rank)
        fab_wake_here(q->w);
    else
        fab_wake(q->w, v->node);
    return true;
}

void queue_wake(struct weft_queue *q, struct queue_view *v)
{
    if (wake_if_idle(q, v))
        return;
    /* The shard's own node is not asleep: wake another node, which will steal the task. Try only a few nodes; the others look again by
     * themselves. */
    uint32_t n = atomic_load_explicit(&q->serving_count, memory_order_acquire);
    uint32_t start = atomic_load_explicit(&q->next, memory_order_relaxed);
    for (uint32_t i = 0; i < n && i < 8; i++) {
        struct queue_view *other = queue_view_of(q, q->serving[(start + i) % n]);
        if (other && other != v && other->shard.mem && wake_if_idle(q, other))
            return;
    }
}

void queue_publish_counts(struct weft_queue *q)
{
    _Atomic uint64_t *mem = q->own->shard.mem;
    /* release: a drain that sees a task complete also sees the tasks that its worker submitted before */
    atomic_store_explicit(&mem[SLOT_SUBMITTED], q->table.submitted, memory_order_release);
    atomic_store_explicit(&mem[SLOT_COMPLETED], q->table.completed, memory_order_release);
}
