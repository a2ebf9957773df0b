/* SPDX-License-Identifier: MIT
 *
 * The home's side of the lock (lock.h): the queue of waiters, in order of arrival. All of this file runs in handlers and hooks of the home,
 * which is the node with the word in its pool. The word is untrusted, because every node can write to every pool. The home only compares it
 * with claims; no memory access depends on its value.
 */
#include <stdlib.h>

#include "sync/lock.h"

#define OWED_AGAIN_NS (10 * WEFT_MS)

struct lock_waiter {
    struct lock_waiter *next;
    uint64_t word, ticket;
    uint32_t node;
    bool inherited; /* only for a waiter that was granted the lock: the former holder died */
};

struct lock_queue {
    struct lock_queue *next;
    uint64_t word;
    struct lock_waiter *first, **last;
};

static _Atomic uint64_t *home_lock_word_at(struct weft_node *w, uint64_t word)
{
    return (_Atomic uint64_t *)(void *)(w->pool_base + weft_gaddr_offset(word));
}

/* --- the caller holds lock_lock, and must release it before it sends a message --- */

static struct lock_queue **find_queue(struct sync *s, uint64_t word)
{
    struct lock_queue **q = &s->queues;
    while (*q && (*q)->word != word)
        q = &(*q)->next;
    return q;
}

static void drop_empty(struct lock_queue **at)
{
    struct lock_queue *q = *at;
    if (!q->first) {
        *at = q->next;
        free(q);
    }
}

/* Make the first living waiter of the queue the lock's owner. Without a waiter, free the lock, or set LOCK_ORPHAN if the lock was inherited
 * from a dead holder. Returns the new owner; the caller then releases lock_lock and calls home_lock_tell(). */
static struct lock_waiter *hand_over(struct weft_node *w, struct sync *s, struct lock_queue **at, bool inherited)
{
    struct lock_queue *q = *at;
    struct lock_waiter *to = NULL;
    while (q->first && !to) {
        to = q->first;
        q->first = to->next;
        s->requests[to->node]--;
        if (!fab_alive(w, to->node)) {
            free(to);
            to = NULL;
        }
    }
    uint64_t value = to ? lock_value(to->node, to->ticket) | (q->first ? LOCK_WAITERS : 0) : inherited ? LOCK_ORPHAN : 0;
    atomic_store_explicit(home_lock_word_at(w, q->word), value, memory_order_seq_cst);
    if (to)
        to->inherited = inherited;
    drop_empty(at);
    return to;
}

/* --- the caller does not hold lock_lock --- */

/* Send LOCK_GRANT to a waiter. If the message cannot be sent now (no memory, or a full queue), the progress thread sends it later: a waiter
 * without the grant would never release the lock. */
static void home_lock_tell(struct weft_node *w, struct sync *s, struct lock_waiter *to)
{
    if (!to)
        return;
    if (lock_say(w, to->node, LOCK_GRANT, to->word, to->ticket, to->inherited) == 0 || !fab_alive(w, to->node)) {
        free(to);
        return;
    }
    base_spin_lock(&s->lock_lock);
    to->next = s->owed;
    s->owed = to;
    base_spin_unlock(&s->lock_lock);
    fab_kick(w); /* make the progress thread run its tick */
}

int64_t lock_home_tick(struct weft_node *w, struct sync *s)
{
    base_spin_lock(&s->lock_lock);
    struct lock_waiter *owed = s->owed;
    s->owed = NULL;
    base_spin_unlock(&s->lock_lock);
    while (owed) {
        struct lock_waiter *to = owed;
        owed = to->next;
        home_lock_tell(w, s, to);
    }
    base_spin_lock(&s->lock_lock);
    int64_t again = s->owed ? OWED_AGAIN_NS : INT64_MAX;
    base_spin_unlock(&s->lock_lock);
    return again;
}

/* Append a waiter to the queue of its lock. If the lock has no queue yet, use `*fresh`. The caller holds lock_lock. */
static struct lock_queue **line_up(struct sync *s, struct lock_waiter *waiter, struct lock_queue **fresh)
{
    struct lock_queue **q = find_queue(s, waiter->word);
    if (!*q) {
        **fresh = (struct lock_queue){.word = waiter->word};
        *q = *fresh;
        *fresh = NULL;
    }
    if (!(*q)->first)
        (*q)->last = &(*q)->first;
    *(*q)->last = waiter;
    (*q)->last = &waiter->next;
    s->requests[waiter->node]++;
    return q;
}

void lock_on_request(struct weft_node *w, struct sync *s, uint32_t from, const struct lock_message *m)
{
    _Atomic uint64_t *word = home_lock_word_at(w, m->word);
    struct lock_waiter *waiter = malloc(sizeof *waiter), *to = NULL;
    struct lock_queue *fresh = malloc(sizeof *fresh);
    base_spin_lock(&s->lock_lock);
    bool many = s->requests[from] >= LOCK_REQUESTS_MAX;
    if (!waiter || !fresh || many) {
        base_spin_unlock(&s->lock_lock);
        free(waiter);
        free(fresh);
        (void)lock_say(w, from, LOCK_REFUSE, m->word, m->ticket, many);
        return;
    }
    *waiter = (struct lock_waiter){.word = m->word, .ticket = m->ticket, .node = from};
    struct lock_queue **q = line_up(s, waiter, &fresh);
    for (uint64_t v = atomic_load_explicit(word, memory_order_acquire);;) {
        if (!lock_owned(w, v)) {
            /* The lock is free, or its holder died. Use a compare-and-swap, because another node may take a free lock at the same time. */
            if (!(v & LOCK_WAITERS) && !atomic_compare_exchange_strong_explicit(word, &v, LOCK_WAITERS | lock_value(from, m->ticket),
                                                                                memory_order_seq_cst, memory_order_acquire))
                continue;
            to = hand_over(w, s, q, v != 0);
            break;
        }
        if ((v & LOCK_WAITERS) ||
            atomic_compare_exchange_strong_explicit(word, &v, v | LOCK_WAITERS, memory_order_seq_cst, memory_order_acquire))
            break;
    }
    base_spin_unlock(&s->lock_lock);
    free(fresh);
    home_lock_tell(w, s, to);
}

static void home_lock_release(struct weft_node *w, struct sync *s, uint64_t at, uint64_t claim, bool inherited)
{
    struct lock_waiter *to = NULL;
    base_spin_lock(&s->lock_lock);
    uint64_t v = atomic_load_explicit(home_lock_word_at(w, at), memory_order_acquire);
    if ((v & ~LOCK_WAITERS) == claim) {
        struct lock_queue **q = find_queue(s, at);
        if (*q)
            to = hand_over(w, s, q, inherited);
        else
            atomic_store_explicit(home_lock_word_at(w, at), inherited ? LOCK_ORPHAN : 0, memory_order_seq_cst);
    }
    base_spin_unlock(&s->lock_lock);
    home_lock_tell(w, s, to);
}

void lock_on_release(struct weft_node *w, struct sync *s, uint32_t from, const struct lock_message *m)
{
    home_lock_release(w, s, m->word, lock_value(from, m->ticket), m->flag);
}

/* Remove the request of `node` with this ticket or, with `ticket` NULL, all requests of `node`. The caller holds lock_lock. */
static void remove_requests(struct sync *s, struct lock_queue **q, uint32_t node, const uint64_t *ticket)
{
    struct lock_waiter **at = &(*q)->first;
    while (*at) {
        struct lock_waiter *waiter = *at;
        if (waiter->node != node || (ticket && waiter->ticket != *ticket)) {
            at = &waiter->next;
            continue;
        }
        *at = waiter->next;
        s->requests[node]--;
        free(waiter);
    }
    (*q)->last = at;
    drop_empty(q); /* LOCK_WAITERS may stay set although nobody waits: the holder then releases the lock by a message */
}

void lock_on_cancel(struct sync *s, uint32_t from, const struct lock_message *m)
{
    base_spin_lock(&s->lock_lock);
    struct lock_queue **q = find_queue(s, m->word);
    if (*q)
        remove_requests(s, q, from, &m->ticket);
    base_spin_unlock(&s->lock_lock);
}

static void forget_requests(struct sync *s, uint32_t node)
{
    base_spin_lock(&s->lock_lock);
    for (struct lock_queue **q = &s->queues; *q;) {
        struct lock_queue *same = *q;
        remove_requests(s, q, node, NULL);
        if (*q == same)
            q = &same->next;
    }
    base_spin_unlock(&s->lock_lock);
}

/* Locks that the dead node held go to the next waiter. A lock without waiters is handled when a node asks for it. */
void lock_home_gone(struct weft_node *w, struct sync *s, uint32_t node)
{
    for (bool again = true; again;) {
        uint64_t at = 0, claim = 0;
        again = false;
        base_spin_lock(&s->lock_lock);
        for (struct lock_queue *q = s->queues; q && !again; q = q->next) {
            claim = atomic_load_explicit(home_lock_word_at(w, q->word), memory_order_acquire) & ~LOCK_WAITERS;
            at = q->word;
            again = (claim & LOCK_OWNER) == node + UINT64_C(1);
        }
        base_spin_unlock(&s->lock_lock);
        if (again)
            home_lock_release(w, s, at, claim, true);
    }
    forget_requests(s, node);
}

uint32_t lock_home_requests(struct sync *s, uint32_t *queues)
{
    uint32_t requests = 0;
    *queues = 0;
    base_spin_lock(&s->lock_lock);
    for (const struct lock_queue *q = s->queues; q; q = q->next) {
        ++*queues;
        for (const struct lock_waiter *waiter = q->first; waiter; waiter = waiter->next)
            requests++;
    }
    base_spin_unlock(&s->lock_lock);
    return requests;
}

static void free_waiters(struct lock_waiter *waiter)
{
    while (waiter) {
        struct lock_waiter *next = waiter->next;
        free(waiter);
        waiter = next;
    }
}

void lock_home_close(struct sync *s)
{
    free_waiters(s->owed);
    while (s->queues) {
        struct lock_queue *q = s->queues;
        s->queues = q->next;
        free_waiters(q->first);
        free(q);
    }
}
