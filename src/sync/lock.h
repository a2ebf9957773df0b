/* SPDX-License-Identifier: MIT
 *
 * The lock: its word, its messages, and what its two sides say to each other: lock.c (who takes and gives back) and lock_home.c (the
 * node in whose pool the word is).
 *
 * The word is 0 when the lock is free, else it names the claim that holds it: the node, and a number that the node uses for no
 * other claim. A free lock is taken, and one nobody waits for is given back, by one compare-and-swap. Whoever finds it taken asks
 * the word's home, which keeps the waiters in the order they came, in its own memory, and from then on hands the lock over by message.
 *
 * While LOCK_WAITERS is set only the home changes the word: takers see it is not 0, and the holder's compare-and-swap to 0 fails and
 * turns into a message.
 *
 * A compare-and-swap may happen long after its call has returned with -ETIMEDOUT (the home was stopped), or nobody learns whether it
 * happened (the link broke). As the word names the claim, a node can undo exactly that, whoever has the lock meanwhile: see `left` in
 * lock.c. tests/model/lock.pml checks this exhaustively.
 */
#ifndef WEFT_SYNC_LOCK_H
#define WEFT_SYNC_LOCK_H

#include "sync/state.h"

/* node + 1 (20 bits) . number of the claim (42) . flags (2) */
#define LOCK_OWNER_BITS 20u
#define LOCK_OWNER      ((UINT64_C(1) << LOCK_OWNER_BITS) - 1)
#define LOCK_TICKETS    ((UINT64_C(1) << 42) - 1)
#define LOCK_WAITERS    (UINT64_C(1) << 63)
/* Nobody has it, and the last who had it died: the next is told. Not 0, so that the next asks the home. */
#define LOCK_ORPHAN (UINT64_C(1) << 62)

static inline uint64_t lock_value(uint32_t node, uint64_t ticket)
{
    return (node + UINT64_C(1)) | (ticket & LOCK_TICKETS) << LOCK_OWNER_BITS;
}

enum lock_verb {
    LOCK_REQUEST = 1, /* to the home: this claim waits */
    LOCK_GRANT,       /* from the home: it has the lock; `flag`: from one that died */
    LOCK_RELEASE,     /* to the home: it has it no more; `flag`: it had it from one that died, and did not use it */
    LOCK_CANCEL,      /* to the home: it waits no more */
    LOCK_REFUSE,      /* from the home: it cannot wait; `flag`: too many of its node do, else there is no memory */
};

struct lock_message {
    uint64_t word;   /* gaddr */
    uint64_t ticket; /* of the claim; the other end answers with it */
    uint32_t verb;
    uint32_t flag;
};

/* So many requests of one node wait at a home at most. */
#define LOCK_REQUESTS_MAX 1024u

static inline int lock_say(struct weft_node *w, uint32_t node, enum lock_verb verb, uint64_t word, uint64_t ticket, bool flag)
{
    struct lock_message m = {.word = word, .ticket = ticket, .verb = (uint32_t)verb, .flag = flag};
    return fab_send(w, node, SYNC_HANDLER_LOCK, &m, sizeof m, NULL, 0, NULL);
}

/* Does the word name a node that lives? */
static inline bool lock_owned(const struct weft_node *w, uint64_t value)
{
    uint64_t owner = value & LOCK_OWNER;
    return owner > 0 && owner <= w->size && fab_alive(w, (uint32_t)owner - 1);
}

/* lock_home.c: what has come is checked already: the word is an aligned one of this node's heap. */
void lock_on_request(struct weft_node *w, struct sync *s, uint32_t from, const struct lock_message *m);
void lock_on_release(struct weft_node *w, struct sync *s, uint32_t from, const struct lock_message *m);
void lock_on_cancel(struct sync *s, uint32_t from, const struct lock_message *m);
void lock_home_gone(struct weft_node *w, struct sync *s, uint32_t node);
int64_t lock_home_tick(struct weft_node *w, struct sync *s);
void lock_home_close(struct sync *s);
uint32_t lock_home_requests(struct sync *s, uint32_t *queues); /* that are kept, for tests: what one node can make this one keep */

#endif
