/* SPDX-License-Identifier: MIT
 *
 * The periodic work of an open queue (leases, pending tasks, unsent messages), and freeing its memory at the end.
 */
#include "queue/queue.h"

#include <stdlib.h>

#define SCAN_NS    (50 * WEFT_MS) /* the longest time between two checks of a shard's leases */
#define PENDING_NS (2 * WEFT_MS)  /* between two attempts to place pending tasks */

void queue_free_watch(struct slot_watch *watch)
{
    free(watch->word);
    free(watch->since);
    *watch = (struct slot_watch){0};
}

void queue_destroy(struct weft_queue *q)
{
    if (!q)
        return;
    for (uint32_t i = 0; q->views && i < q->w->size; i++)
        if (i != q->w->rank)
            queue_view_free(atomic_load_explicit(&q->views[i], memory_order_relaxed));
    while (q->retired) {
        struct queue_view *v = q->retired;
        q->retired = v->retired;
        queue_view_free(v);
    }
    queue_drop_unsent(q);
    table_clear(&q->table);
    queue_free_watch(&q->watch);
    free(q->own);
    free((void *)q->views);
    free((void *)q->none);
    free((void *)q->serving);
    free(q);
}

/* Free tasks whose submitter is gone. A stopped node that was declared dead may continue, and submit tasks before it notices. No worker can
 * complete such a task, so it would become ready again after every lease. */
static void free_orphans(struct weft_queue *q)
{
    for (uint32_t i = 0; i < q->w->size; i++)
        if (!fab_alive(q->w, i))
            slot_gone(&q->own->shard, i);
}

int64_t queue_tick(struct weft_queue *q, int64_t now)
{
    int64_t lease = atomic_load_explicit(&q->lease_ns, memory_order_relaxed);
    int64_t scan = lease / 4 < SCAN_NS ? lease / 4 : SCAN_NS;
    scan = scan < WEFT_MS ? WEFT_MS : scan;
    if (q->own->shard.slots && now >= q->next_scan) {
        int64_t began = base_cpu_ns();
        uint32_t n = slot_expire(&q->own->shard, &q->watch, q->next_scan, now, lease);
        if (n) {
            free_orphans(q);
            atomic_fetch_add_explicit(&q->requeued, n, memory_order_relaxed);
            queue_wake(q, q->own);
        }
        /* Checking a long ring takes long, so spend at most a hundredth of a processor on it. Elapsed time would be the wrong measure: on a
         * busy machine it would delay the end of leases. */
        int64_t cost = base_cpu_ns() - began;
        q->next_scan = now + (cost * 100 > scan ? cost * 100 : scan);
    }
    queue_send_unsent(q);
    queue_place_pending(q);
    if (atomic_load_explicit(&q->pending, memory_order_relaxed))
        return PENDING_NS;
    return q->own->shard.slots ? q->next_scan - now : SCAN_NS;
}
