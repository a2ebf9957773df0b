/* SPDX-License-Identifier: MIT
 *
 * What the files of this room share.
 */
#ifndef WEFT_SYNC_STATE_H
#define WEFT_SYNC_STATE_H

#include "sync/sync.h"

struct lock_queue;  /* at the home of a lock: who waits for it (lock_home.c) */
struct lock_waiter; /* one of them */
struct lock_claim;  /* at a node: a lock that it holds, wants or gives back (lock.c) */
#define SYNC_CLAIM_BUCKETS 64u

struct sync {
    /* barrier.c, under barrier_lock */
    pthread_mutex_t barrier_lock;
    uint64_t epoch, set;
    uint32_t generation, member_count, place, dead;
    uint32_t *members;
    bool untold; /* of the present set, not all others know yet that this node has begun with it */
    /* A barrier that was entered and has not ended, since it timed out: the next call goes on with it. */
    bool entered;
    bool put;          /* exchange: the word is on its way */
    bool given;        /* `before` has run: it has arrived */
    bool sent;         /* the signal of this round is on its way */
    uint32_t distance; /* of this round; the member count or more: all rounds are done */

    /* lock.c, lock_home.c, under lock_lock */
    base_spin lock_lock;
    struct lock_claim *claims[SYNC_CLAIM_BUCKETS], *left, *spare;
    uint64_t next_ticket;
    struct lock_queue *queues;
    struct lock_waiter *owed; /* have the lock, and were not told yet */
    uint32_t *requests;       /* [size]: of each node, that wait here */
};

/* A time-out that is shorter than this, 0 above all, still lets a look at another node's memory take so long: it has to go there and
 * back. At a node that is stopped it takes that time, and not the node's deadline. */
#define SYNC_LOOK_NS (50 * WEFT_MS)

/* barrier.c. A barrier in which every node gives a word: `before` runs when the barrier's set and generation are known,
 * ahead of its signals, `after` when all have come. In a barrier that is entered again, `before` runs only if it had not
 * succeeded, and `after` may run once more. */
struct sync_visit {
    int (*before)(struct weft_node *w, struct fab_patience *p, void *arg);
    int (*after)(struct weft_node *w, struct fab_patience *p, void *arg);
    void *arg;
};
/* fab_wait() for what `from` is to do, in a barrier; says, when it lasts, who has not come. */
int sync_wait(struct fab_patience *p, fab_ready_fn ready, void *arg, const char *what, uint32_t from);
int sync_meet(struct weft_node *w, int64_t timeout_ns, const struct sync_visit *visit);

int lock_open(struct weft_node *w);
void lock_close(struct weft_node *w, struct sync *s);

#endif
