/* SPDX-License-Identifier: MIT
 *
 * What the files of this room share.
 */
#ifndef WEFT_SYNC_STATE_H
#define WEFT_SYNC_STATE_H

#include "sync/sync.h"

struct lock_queue; /* at the home of a lock: who waits for it (lock.c) */
struct lock_wait;  /* at a node: a thread that waits (lock.c) */

struct sync {
    /* barrier.c, under barrier_lock */
    pthread_mutex_t barrier_lock;
    uint64_t epoch, set;
    uint32_t generation, member_count, place, dead;
    uint32_t *members;

    /* lock.c, under lock_lock */
    base_spin lock_lock;
    struct lock_queue *queues;
    struct lock_wait *waits;
    uint64_t next_ticket;
};

/* barrier.c. A barrier in which every node gives a word: `before` runs when the barrier's set and generation are known,
 * ahead of its signals, `after` when all have come; both may be NULL. */
struct sync_visit {
    int (*before)(struct weft *w, void *arg);
    int (*after)(struct weft *w, void *arg);
    void *arg;
};
int sync_meet(struct weft *w, int64_t timeout_ns, const struct sync_visit *visit);
uint32_t sync_count_dead(const struct weft *w);

int lock_open(struct weft *w);
void lock_close(struct sync *s);

#endif
