/* SPDX-License-Identifier: MIT
 *
 * The lock. Its word holds who has it (node + 1) and whether others wait. A free lock is taken, and one nobody waits
 * for is given back, by one compare-and-swap. Whoever finds it taken asks the word's home, which keeps the waiters in
 * the order they came, in its own memory, and from then on hands the lock over by message.
 *
 * While WAITERS is set only the home changes the word: takers see it is not 0, and the holder's compare-and-swap to 0
 * fails and turns into a message.
 */
#include <stdio.h>
#include <stdlib.h>

#include "sync/state.h"

#define WAITERS (UINT64_C(1) << 63)
#define OWNER   UINT64_C(0xffffffff)
/* Nobody has it, and the last who had it died: the next is told. Not 0, so that the next asks the home. */
#define ORPHAN  (UINT64_C(1) << 62)

enum lock_verb { LOCK_REQUEST = 1, LOCK_GRANT, LOCK_RELEASE, LOCK_CANCEL, LOCK_REFUSE };

struct lock_message {
    uint64_t word;   /* gaddr */
    uint64_t ticket; /* the requester's */
    uint32_t verb;
    uint32_t inherited;
};

/* At the home. */
struct lock_waiter {
    struct lock_waiter *next;
    uint64_t ticket;
    uint32_t node;
};

struct lock_queue {
    struct lock_queue *next;
    uint64_t word;
    struct lock_waiter *first, **last;
};

/* At the node that waits. */
struct lock_wait {
    struct lock_wait *next;
    struct weft *w;
    uint64_t ticket, word;
    _Atomic bool granted;
    _Atomic bool refused; /* the home has no memory for a waiter */
    bool inherited;
};

static int say(struct weft *w, uint32_t node, enum lock_verb verb, uint64_t word, uint64_t ticket, bool inherited)
{
    struct lock_message m = {.word = word, .ticket = ticket, .verb = (uint32_t)verb, .inherited = inherited};
    return fab_send(w, node, FAB_HANDLER_LOCK, &m, sizeof m, NULL, 0, NULL);
}

static _Atomic uint64_t *word_at(struct weft *w, uint64_t word)
{
    return (_Atomic uint64_t *)(void *)(w->pool_base + weft_gaddr_offset(word));
}

/* --- the home's side; all with lock_lock, which is never held over a send --- */

static struct lock_queue **find_queue(struct sync *s, uint64_t word)
{
    struct lock_queue **q = &s->queues;
    while (*q && (*q)->word != word)
        q = &(*q)->next;
    return q;
}

static bool owner_alive(const struct weft *w, uint64_t value)
{
    uint64_t owner = value & OWNER;
    return owner > 0 && owner <= w->size && fab_alive(w, (uint32_t)owner - 1);
}

/* Take the first living waiter off the queue and make it the owner; without one, free the
 * lock, which stays inherited when it was. What was granted is
 * in *to, to be said without the lock. */
static bool hand_over(struct weft *w, struct lock_queue **at, struct lock_waiter *to, bool inherited)
{
    struct lock_queue *q = *at;
    bool found = false;
    while (q->first && !found) {
        struct lock_waiter *next = q->first;
        q->first = next->next;
        *to = *next;
        found = fab_alive(w, next->node);
        free(next);
    }
    uint64_t value = found ? ((uint64_t)to->node + 1) | (q->first ? WAITERS : 0) : inherited ? ORPHAN : 0;
    atomic_store_explicit(word_at(w, q->word), value, memory_order_seq_cst);
    if (!q->first) {
        *at = q->next;
        free(q);
    }
    return found;
}

static void on_request(struct weft *w, struct sync *s, uint32_t from, const struct lock_message *m)
{
    _Atomic uint64_t *word = word_at(w, m->word);
    struct lock_waiter *waiter = malloc(sizeof *waiter), to = {0};
    struct lock_queue *fresh = calloc(1, sizeof *fresh);
    bool granted = false, inherited = false;
    if (!waiter || !fresh) {
        free(waiter);
        free(fresh);
        (void)say(w, from, LOCK_REFUSE, m->word, m->ticket, false);
        return;
    }
    base_spin_lock(&s->lock_lock);
    struct lock_queue **q = find_queue(s, m->word);
    if (!*q) {
        fresh->word = m->word;
        fresh->last = &fresh->first;
        *q = fresh;
        fresh = NULL;
    }
    *waiter = (struct lock_waiter){.ticket = m->ticket, .node = from};
    if (!(*q)->first)
        (*q)->last = &(*q)->first;
    *(*q)->last = waiter;
    (*q)->last = &waiter->next;
    for (uint64_t v = atomic_load_explicit(word, memory_order_acquire);;) {
        if (v == 0 || !owner_alive(w, v)) {
            /* Free, or its holder died. A taker may be faster while the word is 0. */
            if (!(v & WAITERS) && !atomic_compare_exchange_strong_explicit(word, &v, WAITERS | (from + UINT64_C(1)),
                                                                           memory_order_seq_cst, memory_order_acquire))
                continue;
            inherited = v != 0;
            granted = hand_over(w, q, &to, inherited);
            break;
        }
        if ((v & WAITERS) || atomic_compare_exchange_strong_explicit(word, &v, v | WAITERS, memory_order_seq_cst,
                                                                     memory_order_acquire))
            break;
    }
    base_spin_unlock(&s->lock_lock);
    free(fresh);
    if (granted)
        (void)say(w, to.node, LOCK_GRANT, m->word, to.ticket, inherited);
}

static void on_release(struct weft *w, struct sync *s, uint32_t from, const struct lock_message *m, bool inherited)
{
    struct lock_waiter to = {0};
    bool granted = false;
    base_spin_lock(&s->lock_lock);
    uint64_t v = atomic_load_explicit(word_at(w, m->word), memory_order_acquire);
    if ((v & OWNER) == (uint64_t)from + 1) {
        struct lock_queue **q = find_queue(s, m->word);
        if (*q)
            granted = hand_over(w, q, &to, inherited);
        else
            atomic_store_explicit(word_at(w, m->word), inherited ? ORPHAN : 0, memory_order_seq_cst);
    }
    base_spin_unlock(&s->lock_lock);
    if (granted)
        (void)say(w, to.node, LOCK_GRANT, m->word, to.ticket, inherited);
}

static void on_cancel(struct sync *s, uint32_t from, const struct lock_message *m)
{
    base_spin_lock(&s->lock_lock);
    struct lock_queue **q = find_queue(s, m->word);
    for (struct lock_waiter **at = *q ? &(*q)->first : NULL; at && *at; at = &(*at)->next) {
        struct lock_waiter *waiter = *at;
        if (waiter->node != from || waiter->ticket != m->ticket)
            continue;
        *at = waiter->next;
        if (!*at)
            (*q)->last = at;
        free(waiter);
        break;
    }
    /* An empty queue and WAITERS may stay: the holder's release then frees the lock by message. */
    base_spin_unlock(&s->lock_lock);
}

/* --- the waiter's side --- */

static void on_grant(struct weft *w, struct sync *s, uint32_t from, const struct lock_message *m)
{
    bool wanted = false;
    base_spin_lock(&s->lock_lock);
    for (struct lock_wait *wait = s->waits; wait; wait = wait->next) {
        if (wait->ticket != m->ticket || wait->word != m->word)
            continue;
        wait->inherited = m->inherited;
        atomic_store_explicit(&wait->granted, true, memory_order_release);
        wanted = true;
        break;
    }
    base_spin_unlock(&s->lock_lock);
    if (!wanted) /* it timed out just before: give it back */
        (void)say(w, from, LOCK_RELEASE, m->word, 0, m->inherited);
}

static void on_refuse(struct sync *s, const struct lock_message *m)
{
    base_spin_lock(&s->lock_lock);
    for (struct lock_wait *wait = s->waits; wait; wait = wait->next)
        if (wait->ticket == m->ticket && wait->word == m->word)
            atomic_store_explicit(&wait->refused, true, memory_order_release);
    base_spin_unlock(&s->lock_lock);
}

static void on_message(struct weft *w, uint32_t from, const void *header, size_t header_len, const void *payload,
                       size_t payload_len, void *arg)
{
    (void)payload;
    (void)payload_len;
    const struct lock_message *m = header;
    struct fab_link *l;
    if (header_len != sizeof *m)
        return;
    bool home = weft_gaddr_node(m->word) == w->rank;
    bool answer = m->verb == LOCK_GRANT || m->verb == LOCK_REFUSE;
    if ((m->word & 7) || fab_resolve(w, m->word, 8, &l) || (answer ? weft_gaddr_node(m->word) != from : !home))
        return; /* not from any weft */
    switch (m->verb) {
    case LOCK_REQUEST:
        on_request(w, arg, from, m);
        break;
    case LOCK_GRANT:
        on_grant(w, arg, from, m);
        break;
    case LOCK_RELEASE:
        on_release(w, arg, from, m, m->inherited);
        break;
    case LOCK_CANCEL:
        on_cancel(arg, from, m);
        break;
    case LOCK_REFUSE:
        on_refuse(arg, m);
        break;
    default:
        break;
    }
}

static bool granted_or_lost(void *arg)
{
    struct lock_wait *wait = arg;
    return atomic_load_explicit(&wait->granted, memory_order_acquire) ||
           atomic_load_explicit(&wait->refused, memory_order_acquire) || !fab_alive(wait->w, weft_gaddr_node(wait->word));
}

/* For whom this node waits: who holds the lock, as the word says now. */
static void say_holder(const struct fab_patience *p, weft_gaddr word)
{
    struct weft *w = p->w;
    uint32_t home = weft_gaddr_node(word);
    char what[64], whom[160];
    uint64_t value;
    snprintf(what, sizeof what, "lock %#llx", (unsigned long long)word);
    if (weft_fetch_add_now(w, word, 0, &value) == 0 && owner_alive(w, value))
        snprintf(whom, sizeof whom, "node %u, which holds it and is alive", (uint32_t)(value & OWNER) - 1);
    else
        snprintf(whom, sizeof whom, "node %u, in whose memory the lock is, and which is alive, to hand it over", home);
    fab_patience_say(p, what, whom);
}

static int wait_for_grant(struct lock_wait *wait, struct fab_patience *p)
{
    for (;;) {
        int rc = fab_wait(wait->w, granted_or_lost, wait, fab_patience_next(p));
        if (rc != -ETIMEDOUT || fab_patience_check(p))
            return rc;
        if (fab_patience_due(p))
            say_holder(p, wait->word);
    }
}

static BASE_COLD int lock_slow(struct weft *w, struct sync *s, weft_gaddr word, int64_t timeout_ns, bool *inherited)
{
    uint32_t home = weft_gaddr_node(word);
    struct lock_wait wait = {.w = w, .word = word};
    struct fab_patience p;
    fab_patience_begin(&p, w, FAB_KNOWN, timeout_ns);
    base_spin_lock(&s->lock_lock);
    wait.ticket = ++s->next_ticket;
    wait.next = s->waits;
    s->waits = &wait;
    base_spin_unlock(&s->lock_lock);

    int rc = say(w, home, LOCK_REQUEST, word, wait.ticket, false);
    if (!rc)
        rc = wait_for_grant(&wait, &p);

    base_spin_lock(&s->lock_lock);
    for (struct lock_wait **at = &s->waits; *at; at = &(*at)->next) {
        if (*at == &wait) {
            *at = wait.next;
            break;
        }
    }
    base_spin_unlock(&s->lock_lock);
    if (atomic_load_explicit(&wait.granted, memory_order_acquire)) {
        *inherited = wait.inherited;
        /* The former holder may be a thread of this node that gave the lock back by its swap, and the home's grant came
         * from another process: see weft_unlock(). This orders us after that swap. */
        return weft_fetch_add_now(w, word, 0, NULL);
    }
    if (rc == -ETIMEDOUT) {
        (void)say(w, home, LOCK_CANCEL, word, wait.ticket, false);
        return base_fail(rc, "lock %#llx: it was held until the deadline", (unsigned long long)word);
    }
    if (!rc && atomic_load_explicit(&wait.refused, memory_order_acquire))
        return base_fail(-ENOMEM, "lock %#llx: node %u has no memory for one more that waits for it", (unsigned long long)word, home);
    return rc ? rc : base_fail(-ECONNRESET, "lock %#llx: its home, node %u, is gone", (unsigned long long)word, home);
}

int weft_lock(weft *w, weft_gaddr word, int64_t timeout_ns, bool *inherited)
{
    uint64_t old;
    bool from_dead = false;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_lock() must not be called from a handler");
    int rc = weft_compare_swap_now(w, word, 0, w->rank + UINT64_C(1), &old);
    if (rc == 0 && old != 0)
        rc = lock_slow(w, w->sync, word, timeout_ns, &from_dead);
    if (rc == 0 && inherited)
        *inherited = from_dead;
    return rc;
}

int weft_unlock(weft *w, weft_gaddr word)
{
    uint64_t old, mine = w->rank + UINT64_C(1);
    int rc = weft_compare_swap_now(w, word, mine, 0, &old);
    if (rc || old == mine)
        return rc;
    if ((old & OWNER) != mine)
        return base_fail(-EPERM, "lock %#llx: this node does not hold it", (unsigned long long)word);
    /* The next holder may be a thread of this node, and the hand-over goes through another process, which neither the
     * C memory model nor the thread sanitizer know of. The waiter takes this lock after its grant: that they know. */
    struct sync *s = w->sync;
    base_spin_lock(&s->lock_lock);
    base_spin_unlock(&s->lock_lock);
    return say(w, weft_gaddr_node(word), LOCK_RELEASE, word, 0, false);
}

/* --- deaths, beginning and end --- */

/* Locks of this home that others wait for and the dead node held go to the next in line. Those nobody waits for are
 * found when somebody asks. */
static void on_gone(struct weft *w, uint32_t node, bool died, void *arg)
{
    struct sync *s = arg;
    (void)died;
    for (bool again = true; again;) {
        struct lock_message m = {0};
        again = false;
        base_spin_lock(&s->lock_lock);
        for (struct lock_queue *q = s->queues; q && !again; q = q->next) {
            uint64_t v = atomic_load_explicit(word_at(w, q->word), memory_order_acquire);
            if ((v & OWNER) == (uint64_t)node + 1) {
                m.word = q->word;
                again = true;
            }
        }
        base_spin_unlock(&s->lock_lock);
        if (again)
            on_release(w, s, node, &m, true);
    }
}

int lock_open(struct weft *w)
{
    int rc = fab_handle(w, FAB_HANDLER_LOCK, on_message, w->sync);
    if (!rc)
        rc = fab_hook(w, &(struct fab_hook){.gone = on_gone, .arg = w->sync});
    return rc;
}

void lock_close(struct sync *s)
{
    while (s->queues) {
        struct lock_queue *q = s->queues;
        s->queues = q->next;
        while (q->first) {
            struct lock_waiter *waiter = q->first;
            q->first = waiter->next;
            free(waiter);
        }
        free(q);
    }
}
