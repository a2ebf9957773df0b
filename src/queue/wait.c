/* SPDX-License-Identifier: MIT
 *
 * Begins and ends waits in a queue, and prints which nodes a wait is for. While a thread waits, the queue cannot be closed.
 */
#include "queue/queue.h"

#include <stdio.h>

int queue_refuse_closed(const struct weft_queue *q)
{
    return base_fail(-EBADF, "queue '%s' is closed: open it again, and use the new handle", q->name);
}

int queue_begin_wait(struct weft_queue *q)
{
    base_spin_lock(&q->waiting_lock);
    bool closed = queue_closed(q);
    q->waiting += !closed;
    base_spin_unlock(&q->waiting_lock);
    return closed ? queue_refuse_closed(q) : 0;
}

void queue_end_wait(struct weft_queue *q)
{
    base_spin_lock(&q->waiting_lock);
    q->waiting--;
    base_spin_unlock(&q->waiting_lock);
}

/* Check whether a wait can still succeed. If this node claims tasks itself, it can do the work of nodes that are gone. */
int queue_check(struct weft_queue *q, struct fab_patience *p)
{
    int rc = fab_patience_check(p);
    if (rc == -ECONNRESET && atomic_load_explicit(&q->claimed, memory_order_relaxed)) {
        p->lost_at = INT64_MAX;
        rc = 0;
    }
    return rc;
}

void queue_say(const struct weft_queue *q, const struct fab_patience *p, const char *what, const char *whom)
{
    char name[64];
    snprintf(name, sizeof name, "queue '%s': %s", q->name, what);
    fab_patience_say(p, name, whom);
}
