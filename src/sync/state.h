/* SPDX-License-Identifier: MIT
 *
 * What the files of this folder share.
 */
#ifndef WEFT_SYNC_STATE_H
#define WEFT_SYNC_STATE_H

#include "sync/sync.h"

struct lock_queue;  /* at the home of a lock: the waiters for the lock (lock_home.c) */
struct lock_waiter; /* at the home of a lock: one waiter in a lock_queue */
struct lock_claim;  /* at a node: its claim on a lock that it holds, wants or releases (lock.c) */
#define SYNC_CLAIM_BUCKETS 64u

struct sync {
    /* barrier.c, guarded by barrier_lock */
    pthread_mutex_t barrier_lock;
    uint64_t epoch, set;
    uint32_t generation, member_count, place, dead;
    uint32_t *members;
    bool untold; /* NEWEST_WORD was not written to all nodes yet */
    /* State of a barrier whose call has timed out; the next call continues this barrier. */
    bool entered;
    bool put;          /* exchange: the words have been sent */
    bool given;        /* `before` has succeeded: the words have arrived */
    bool sent;         /* this round's signal has been sent */
    uint32_t distance; /* distance of this round's partner; at least member_count: all rounds are done */

    /* lock.c, lock_home.c, guarded by lock_lock */
    base_spin lock_lock;
    struct lock_claim *claims[SYNC_CLAIM_BUCKETS], *left, *spare;
    uint64_t next_ticket;
    struct lock_queue *queues;
    struct lock_waiter *owed; /* waiters to whom LOCK_GRANT must still be sent */
    uint32_t *requests;       /* [size]: number of queued requests of each node */
};

/* The shortest time-out for reading a word of another node, because a read needs a round trip. So if the other node is stopped, a call with
 * a shorter time-out, such as 0, takes this long. */
#define SYNC_LOOK_NS (50 * WEFT_MS)

/* barrier.c. Callbacks of an exchange inside a barrier. `before` runs before signals are sent, when the barrier's set and generation are
 * known. `after` runs when all nodes have arrived. If a call continues an unfinished barrier, `before` runs again unless it has succeeded,
 * and `after` may run again. */
struct sync_visit {
    int (*before)(struct weft_node *w, struct fab_patience *p, void *arg);
    int (*after)(struct weft_node *w, struct fab_patience *p, void *arg);
    void *arg;
};
/* As fab_wait(), for a wait inside a barrier for node `from`. A long wait prints which nodes have not arrived. */
int sync_wait(struct fab_patience *p, fab_ready_fn ready, void *arg, const char *what, uint32_t from);
int sync_meet(struct weft_node *w, int64_t timeout_ns, const struct sync_visit *visit);

int lock_open(struct weft_node *w);
void lock_close(struct weft_node *w, struct sync *s);

#endif
