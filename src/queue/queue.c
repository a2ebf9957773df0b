/* SPDX-License-Identifier: MIT
 *
 * A queue as a whole: open, close, upkeep, shutdown, statistics.
 */
#include "queue/queue.h"

#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static uint64_t key_of(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    return h;
}

static int make_watch(struct slot_watch *watch, uint32_t slots)
{
    if (slots == 0)
        return 0;
    watch->word = calloc(slots, sizeof *watch->word);
    watch->since = calloc(slots, sizeof *watch->since);
    return watch->word && watch->since
               ? 0
               : base_fail(-ENOMEM, "no memory to watch the leases of a queue with %u slots" BASE_MEMORY_HINT, slots);
}

static int make_shard(struct weft_node *w, struct weft_queue *q, uint32_t slots)
{
    weft_gaddr at;
    int rc = weft_alloc_aligned(w, slot_shard_bytes(slots), 2 * BASE_CACHE_LINE, &at);
    if (rc)
        return base_context(rc, "queue '%s', %u slots", q->name, slots);
    q->own = queue_view_make(q, w->rank, q->incarnation, at, slots, false);
    if (!q->own || !q->own->shard.mem) {
        weft_free(w, at);
        return base_fail(-ENOMEM, "queue '%s': no memory for this node's part of the queue" BASE_MEMORY_HINT, q->name);
    }
    fab_use(w, FAB_USE_TASKS, (int64_t)slot_shard_bytes(slots));
    slot_format(&q->own->shard);
    atomic_store_explicit(&q->views[w->rank], q->own, memory_order_release);
    if (slots) {
        q->serving[0] = w->rank;
        atomic_store_explicit(&q->serving_count, 1, memory_order_release);
    }
    return 0;
}

/* The size of weft_queue_config in version 0.1, the first version. */
#define CONFIG_FIRST (offsetof(weft_queue_config, submit_only) + sizeof((weft_queue_config *)0)->submit_only)

int weft_queue_open(weft_node *w, const char *name, const weft_queue_config *given, weft_queue **out)
{
    weft_queue_config taken = {.bytes = sizeof taken};
    const weft_queue_config *config = &taken;
    int rc = given ? base_take_struct(&taken, sizeof taken, given, CONFIG_FIRST, "weft_queue_config") : 0;
    if (rc)
        return rc;
    size_t len = name ? strlen(name) : 0;
    uint32_t slots = config->submit_only ? 0 : config->slots ? config->slots : QUEUE_SLOTS;
    if (len == 0 || len >= QUEUE_NAME_BYTES)
        return base_fail(-EINVAL, "queue name '%s': it must have 1 to %u bytes", name ? name : "", QUEUE_NAME_BYTES - 1);
    if (slots > SLOT_COUNT_MAX || (slots & (slots - 1)))
        return base_fail(-EINVAL, "queue '%s': %u slots: the number must be a power of two, at most %u", name, slots, SLOT_COUNT_MAX);
    if (config->lease_ns < 0)
        return base_fail(-EINVAL, "queue '%s': a lease of %lld ns: it must be positive, or 0 for the default", name,
                         (long long)config->lease_ns);
    if (fab_in_handler())
        return base_fail(-EDEADLK, "queue '%s': queues cannot be opened inside a handler: open it in another thread", name);

    struct weft_queue *q = aligned_alloc(BASE_CACHE_LINE, base_round_up(sizeof *q, BASE_CACHE_LINE));
    if (!q)
        return base_fail(-ENOMEM, "queue '%s': no memory for the handle" BASE_MEMORY_HINT, name);
    memset(q, 0, sizeof *q);
    q->w = w;
    memcpy(q->name, name, len);
    q->key = key_of(name);
    q->incarnation = queue_room_incarnation(w);
    queue_set_lease(q, config->lease_ns ? config->lease_ns : QUEUE_LEASE_NS);
    atomic_init(&q->victim, w->rank);
    atomic_init(&q->next, w->rank);
    q->views = calloc(w->room, sizeof *q->views);
    q->serving = calloc(w->room, sizeof *q->serving);
    q->none = calloc(w->room, sizeof *q->none);
    rc = q->views && q->serving && q->none
             ? 0
             : base_fail(-ENOMEM, "queue '%s': no memory to keep track of %u nodes" BASE_MEMORY_HINT, name, w->room);
    if (rc == 0)
        rc = table_init(&q->table);
    if (rc == 0)
        rc = make_watch(&q->watch, slots);
    if (rc == 0)
        rc = make_shard(w, q, slots);
    if (rc == 0)
        rc = queue_room_enter(w, q);
    if (rc) {
        if (q->own) {
            fab_use(w, FAB_USE_TASKS, -(int64_t)slot_shard_bytes(slots));
            weft_free(w, q->own->at); /* no other node knows the address yet */
        }
        queue_destroy(q);
        return rc;
    }
    *out = q;
    return 0;
}

int weft_queue_close(weft_queue *q)
{
    if (!q)
        return 0;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "queue '%s': queues cannot be closed inside a handler: close it in another thread", q->name);
    base_spin_lock(&q->waiting_lock);
    uint32_t waiting = q->waiting;
    bool closed = queue_closed(q);
    if (!closed && waiting == 0)
        atomic_store_explicit(&q->closed, true, memory_order_relaxed);
    base_spin_unlock(&q->waiting_lock);
    if (closed)
        return queue_refuse_closed(q);
    if (waiting)
        return base_fail(
            -EBUSY, "queue '%s': %u thread%s of this node wait%s in the queue: let them return first (weft_queue_shutdown() ends claims)",
            q->name, waiting, waiting == 1 ? "" : "s", waiting == 1 ? "s" : "");
    /* release: pairs with slot_counts(). A drain that sees the shard closed asks whether the queue was reopened. */
    atomic_store_explicit(&q->own->shard.mem[SLOT_CLOSED], 1, memory_order_release);
    queue_room_leave(q);
    queue_tell_all(q, QUEUE_CLOSE);
    /* The shard's memory stays allocated until the node closes, because a thread of another node may be changing a slot. The handle stays,
     * too, so that a later call with it can see that the queue is closed. */
    base_spin_lock(&q->table.lock);
    table_clear(&q->table);
    base_spin_unlock(&q->table.lock);
    queue_free_watch(&q->watch);
    return 0;
}

void queue_set_force(weft_queue *q, uint32_t force)
{
    atomic_store_explicit(&q->force, force, memory_order_relaxed);
    for (uint32_t i = 0; i < q->w->size; i++) {
        struct queue_view *v = queue_view_of(q, i);
        if (v && v != q->own && (force & QUEUE_REMOTE) && (v->shard.tried || queue_view_tried(v, NULL))) {
            v->shard.mem = NULL; /* no other thread reads this field: tests call the function before the queue is used */
            atomic_store_explicit(&q->views[i], v,
                                  memory_order_release); /* pairs with the handler that makes the node's next view from this one */
            atomic_store_explicit(&q->elsewhere, true, memory_order_relaxed);
        }
    }
}

void queue_set_lease(weft_queue *q, int64_t lease_ns)
{
    atomic_store_explicit(&q->lease_ns, lease_ns, memory_order_relaxed);
}

int weft_queue_shutdown(weft_queue *q)
{
    if (queue_closed(q))
        return queue_refuse_closed(q);
    atomic_store_explicit(&q->shut, true, memory_order_seq_cst);
    queue_tell_all(q, QUEUE_SHUTDOWN);
    fab_wake_here(q->w);
    return 0;
}

int weft_queue_stat(weft_queue *q, weft_queue_stats *out, size_t bytes)
{
    if (queue_closed(q))
        return queue_refuse_closed(q);
    base_spin_lock(&q->table.lock);
    weft_queue_stats s = {
        .submitted = q->table.submitted,
        .completed = q->table.completed,
        .outstanding = q->table.submitted - q->table.completed,
        .resubmitted = q->table.resubmitted,
        .duplicates = q->table.duplicates,
    };
    base_spin_unlock(&q->table.lock);
    s.claimed = atomic_load_explicit(&q->claimed, memory_order_relaxed);
    s.stolen = atomic_load_explicit(&q->stolen, memory_order_relaxed);
    s.refused = atomic_load_explicit(&q->refused, memory_order_relaxed);
    s.requeued = atomic_load_explicit(&q->requeued, memory_order_relaxed);
    s.ready = slot_backlog(&q->own->shard);
    s.lease_ns = atomic_load_explicit(&q->lease_ns, memory_order_relaxed);
    base_give_struct(out, bytes, &s, sizeof s);
    return 0;
}
