/* SPDX-License-Identifier: MIT
 *
 * The lock has two sides: lock.c is the node that takes and releases the lock; lock_home.c is the home, the node with the lock's word in
 * its pool. This file has the word, the messages, and the calls between the two.
 *
 * A claim is one attempt of a node to take the lock (see lock.c). The word is 0 if the lock is free. Otherwise it identifies the claim that
 * holds the lock, by the node and a number that the node uses only once. One compare-and-swap takes a free lock, and one releases a lock
 * that has no waiters. A node that finds the lock taken asks the home. The home queues the waiters in order of arrival, in private memory,
 * and hands the lock over by messages.
 *
 * While LOCK_WAITERS is set, only the home changes the word. The holder's compare-and-swap to 0 then fails, and the holder sends a message
 * instead.
 *
 * A compare-and-swap may be executed long after its call has timed out (the home was stopped), or its result may stay unknown (the link
 * broke). Because the word identifies the claim, a node can undo its own claim without affecting other claims (see lock.c).
 * tests/model/lock.pml checks this exhaustively.
 */
#ifndef WEFT_SYNC_LOCK_H
#define WEFT_SYNC_LOCK_H

#include "sync/state.h"

/* The word, from the low bits up: node + 1 (20 bits), number of the claim (42), flags (2). */
#define LOCK_OWNER_BITS 20u
#define LOCK_OWNER      ((UINT64_C(1) << LOCK_OWNER_BITS) - 1)
#define LOCK_TICKETS    ((UINT64_C(1) << 42) - 1)
#define LOCK_WAITERS    (UINT64_C(1) << 63)
/* The lock is free, but its last holder died, and the next holder must be told. The value is not 0, so the next node asks the lock's
 * home. */
#define LOCK_ORPHAN (UINT64_C(1) << 62)

static inline uint64_t lock_value(uint32_t node, uint64_t ticket)
{
    return (node + UINT64_C(1)) | (ticket & LOCK_TICKETS) << LOCK_OWNER_BITS;
}

enum lock_verb {
    LOCK_REQUEST = 1, /* to the home: this claim waits for the lock */
    LOCK_GRANT,       /* from the home: the claim has the lock; `flag`: the former holder died */
    LOCK_RELEASE, /* to the home: the claim releases the lock; `flag`: the claim has inherited the lock from a dead holder, and has not used
                     it */
    LOCK_CANCEL,  /* to the home: the claim no longer waits */
    LOCK_REFUSE, /* from the home: the claim cannot be queued; `flag`: the claim's node has too many requests at the home; else: the home is
                    out of memory */
};

struct lock_message {
    uint64_t word;   /* gaddr */
    uint64_t ticket; /* number of the claim, repeated in answers */
    uint32_t verb;
    uint32_t flag;
};

#define LOCK_REQUESTS_MAX 1024u

static inline int lock_say(struct weft_node *w, uint32_t node, enum lock_verb verb, uint64_t word, uint64_t ticket, bool flag)
{
    struct lock_message m = {.word = word, .ticket = ticket, .verb = (uint32_t)verb, .flag = flag};
    return fab_send(w, node, SYNC_HANDLER_LOCK, &m, sizeof m, NULL, 0, NULL);
}

/* Whether the lock's owner is a living node. */
static inline bool lock_owned(const struct weft_node *w, uint64_t value)
{
    uint64_t owner = value & LOCK_OWNER;
    return owner > 0 && owner <= w->size && fab_alive(w, (uint32_t)owner - 1);
}

/* lock_home.c: the handlers of messages. The caller has checked that the word is aligned and in this node's heap. */
void lock_on_request(struct weft_node *w, struct sync *s, uint32_t from, const struct lock_message *m);
void lock_on_release(struct weft_node *w, struct sync *s, uint32_t from, const struct lock_message *m);
void lock_on_cancel(struct sync *s, uint32_t from, const struct lock_message *m);
void lock_home_gone(struct weft_node *w, struct sync *s, uint32_t node);
int64_t lock_home_tick(struct weft_node *w, struct sync *s);
void lock_home_close(struct sync *s);
uint32_t lock_home_requests(struct sync *s, uint32_t *queues); /* number of requests queued at this home; for tests of the limit */

#endif
