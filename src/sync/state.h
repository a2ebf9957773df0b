/* SPDX-License-Identifier: MIT
 *
 * What the files of this folder share.
 */
#ifndef WEFT_SYNC_STATE_H
#define WEFT_SYNC_STATE_H

#include "sync/sync.h"

struct lock_queue;  /* at the home of a lock: the waiters for it (lock_home.c) */
struct lock_waiter; /* at the home of a lock: one waiter in a lock_queue */
struct lock_claim;  /* at a node: its claim on a lock that it holds, wants or releases (lock.c) */
#define SYNC_CLAIM_BUCKETS 64u

struct sync {
    /* barrier.c, under barrier_lock */
    pthread_mutex_t barrier_lock;
    uint64_t epoch, set;
    uint32_t generation, member_count, place, dead;
    uint32_t *members;
    bool untold; /* some nodes have not been told yet that this node has begun with the present set */
    /* State of a barrier that was entered and not finished because the call timed out: the next call continues it. */
    bool entered;
    bool put;          /* exchange: the words have been sent */
    bool given;        /* `before` has succeeded: the words have arrived */
    bool sent;         /* this round's signal has been sent */
    uint32_t distance; /* distance of this round's partner; at least member_count: all rounds are done */

    /* lock.c, lock_home.c, under lock_lock */
    base_spin lock_lock;
    struct lock_claim *claims[SYNC_CLAIM_BUCKETS], *left, *spare;
    uint64_t next_ticket;
    struct lock_queue *queues;
    struct lock_waiter *owed; /* waiters that have been granted a lock and not told yet */
    uint32_t *requests;       /* [size]: number of requests of each node that wait here */
};

/* The least time that a read of another node's memory may take, even if the call's time-out is shorter, such as 0: a read needs a round
 * trip. If the node is stopped, the call fails after this time, and not only after the default deadline. */
#define SYNC_LOOK_NS (50 * WEFT_MS)

/* barrier.c. Functions that an exchange runs inside a barrier. `before` runs when the barrier's set and generation are known, before any
 * signal is sent; `after` runs when all nodes have arrived. When a call continues an unfinished barrier, `before` runs again only if it has
 * not succeeded, and `after` may run again. */
struct sync_visit {
    int (*before)(struct weft_node *w, struct fab_patience *p, void *arg);
    int (*after)(struct weft_node *w, struct fab_patience *p, void *arg);
    void *arg;
};
/* fab_wait() inside a barrier, for something that node `from` must do. A long wait prints which nodes have not arrived. */
int sync_wait(struct fab_patience *p, fab_ready_fn ready, void *arg, const char *what, uint32_t from);
int sync_meet(struct weft_node *w, int64_t timeout_ns, const struct sync_visit *visit);

int lock_open(struct weft_node *w);
void lock_close(struct weft_node *w, struct sync *s);

#endif
