/* SPDX-License-Identifier: MIT
 *
 * The node that takes and releases a lock (lock.h).
 *
 * A claim is one attempt to take a lock, and exists until the lock is released. A WANTED claim belongs to the thread that tries to take the
 * lock. A HELD claim belongs to the node, and any thread may release it. A call that times out leaves its claim to the progress thread (the
 * list `left`) if the result of its swap is unknown. The progress thread undoes the claim by a second swap, from this claim's value to 0 or
 * LOCK_ORPHAN. Atomics to one node are executed in order, so the second swap comes after the first. The second swap cannot affect another
 * claim, because it expects the value of this claim.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sync/lock.h"

#define LEFT_AGAIN_NS (5 * WEFT_MS)

enum claim_state { WANTED, HELD };

struct lock_claim {
    struct lock_claim *next; /* next claim in the same list: a bucket, `left` or `spare` */
    struct weft_node *w;
    uint64_t word, ticket;
    _Atomic enum claim_state state;
    /* Used while a thread waits for the home's answer: */
    bool waits;
    _Atomic bool granted;
    _Atomic bool refused;
    bool inherited, many;
    /* A pending compare-and-swap, which takes the lock or, with `back`, releases it: */
    struct fab_now *swap;
    bool back; /* if set, `inherited` means that the claim has inherited the lock from a dead holder, and has not used it */
};

static uint64_t value_of(const struct lock_claim *c)
{
    return lock_value(c->w->rank, c->ticket);
}

/* --- claims; the caller holds lock_lock --- */

static struct lock_claim **bucket(struct sync *s, uint64_t word)
{
    return &s->claims[(word >> 3) * UINT64_C(0x9e3779b97f4a7c15) >> 58];
}
_Static_assert(SYNC_CLAIM_BUCKETS == 64, "6 bits of the hash");

static void unlink_claim(struct lock_claim **at, const struct lock_claim *c)
{
    while (*at && *at != c)
        at = &(*at)->next;
    if (*at)
        *at = c->next;
}

static void spare(struct sync *s, struct lock_claim *c)
{
    c->next = s->spare;
    s->spare = c;
}

/* Remove from `left` a claim of an earlier call that timed out while its swap, which takes the lock, was pending. The new call continues
 * this claim. Returns NULL if there is no such claim. */
static struct lock_claim *take_left(struct sync *s, uint64_t word)
{
    for (struct lock_claim **at = &s->left; *at; at = &(*at)->next) {
        struct lock_claim *c = *at;
        if (c->word == word && c->swap && !c->back) {
            *at = c->next;
            return c;
        }
    }
    return NULL;
}

/* Remove the held claim on `word` from its bucket. Older claims on the same word are stale: the lock's memory was freed and zeroed while
 * they were held. */
static struct lock_claim *take_held(struct sync *s, uint64_t word)
{
    struct lock_claim *held = NULL;
    for (struct lock_claim **at = bucket(s, word); *at;) {
        struct lock_claim *c = *at;
        /* acquire: pairs with the release in become_held() */
        if (c->word != word || atomic_load_explicit(&c->state, memory_order_acquire) != HELD) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        if (held)
            spare(s, c);
        else
            held = c; /* the newest claim so far */
    }
    return held;
}

/* --- claims; the caller does not hold lock_lock --- */

static int lock_begin(struct weft_node *w, struct sync *s, uint64_t word, struct lock_claim **out)
{
    base_spin_lock(&s->lock_lock);
    struct lock_claim *c = BASE_UNLIKELY(s->left != NULL) ? take_left(s, word) : NULL;
    bool fresh = !c;
    if (!c && s->spare) {
        c = s->spare;
        s->spare = c->next;
    } else if (!c) {
        c = malloc(sizeof *c);
    }
    if (c) {
        if (fresh)
            *c = (struct lock_claim){.w = w, .word = word, .ticket = ++s->next_ticket & LOCK_TICKETS};
        c->next = *bucket(s, word);
        *bucket(s, word) = c;
    }
    base_spin_unlock(&s->lock_lock);
    *out = c;
    return c ? 0 : base_fail(-ENOMEM, "lock %#llx: no memory for this node's request" BASE_MEMORY_HINT, (unsigned long long)word);
}

static void become_held(struct lock_claim *c)
{
    atomic_store_explicit(&c->state, HELD, memory_order_release);
}

static void lock_forget(struct sync *s, struct lock_claim *c)
{
    base_spin_lock(&s->lock_lock);
    unlink_claim(bucket(s, c->word), c);
    spare(s, c);
    base_spin_unlock(&s->lock_lock);
}

static void lock_leave(struct sync *s, struct lock_claim *c)
{
    base_spin_lock(&s->lock_lock);
    unlink_claim(bucket(s, c->word), c);
    c->next = s->left;
    s->left = c;
    base_spin_unlock(&s->lock_lock);
    fab_kick(c->w); /* wake the progress thread, which calls the tick function */
}

static int give_back_later(struct weft_node *w, struct sync *s, uint64_t word, uint64_t ticket, bool inherited)
{
    struct lock_claim *c = malloc(sizeof *c);
    if (!c)
        return -ENOMEM;
    *c = (struct lock_claim){.w = w, .word = word, .ticket = ticket, .inherited = inherited, .back = true};
    lock_leave(s, c);
    return 0;
}

/* --- claims left to the progress thread --- */

/* Do one step to undo a claim that was left to the progress thread. Returns true if no more steps are needed.
 */
static bool lock_settle(struct weft_node *w, struct lock_claim *c)
{
    uint32_t home = weft_gaddr_node(c->word);
    uint64_t old = 0, mine = value_of(c);
    if (c->swap) {
        int rc = fab_swap_wait(w, &c->swap, &old, 0);
        if (rc == -EINPROGRESS)
            return false;
        if (rc == 0 && !c->back && old != 0)
            return true; /* the claim did not get the lock */
        if (rc == 0 && c->back && old != (mine | LOCK_WAITERS))
            return true; /* the claim was released, or never got the lock */
        if (rc == 0 && c->back)
            return lock_say(w, home, LOCK_RELEASE, c->word, c->ticket, c->inherited) == 0; /* on failure the next tick tries again */
    }
    c->back = true;
    return fab_swap_begin(w, c->word, mine, c->inherited ? LOCK_ORPHAN : 0, &c->swap) != 0 &&
           !fab_alive(w, home); /* otherwise the next tick tries again */
}

static int64_t lock_tick(struct weft_node *w, int64_t now_ns, void *arg)
{
    struct sync *s = arg;
    (void)now_ns;
    base_spin_lock(&s->lock_lock);
    struct lock_claim *left = s->left;
    s->left = NULL;
    base_spin_unlock(&s->lock_lock);
    while (left) {
        struct lock_claim *c = left;
        left = c->next;
        bool done = lock_settle(w, c);
        base_spin_lock(&s->lock_lock);
        c->next = done ? s->spare : s->left;
        *(done ? &s->spare : &s->left) = c;
        base_spin_unlock(&s->lock_lock);
    }
    int64_t in = lock_home_tick(w, s);
    base_spin_lock(&s->lock_lock);
    if (s->left && in > LEFT_AGAIN_NS)
        in = LEFT_AGAIN_NS;
    base_spin_unlock(&s->lock_lock);
    return in;
}

/* --- messages --- */

static void on_lock_answer(struct weft_node *w, struct sync *s, uint32_t from, const struct lock_message *m)
{
    struct lock_claim *c;
    base_spin_lock(&s->lock_lock);
    for (c = *bucket(s, m->word); c; c = c->next)
        if (c->word == m->word && c->ticket == m->ticket)
            break;
    if (c && c->waits && m->verb == LOCK_GRANT) {
        c->inherited = m->flag;
        atomic_store_explicit(&c->granted, true, memory_order_release);
    } else if (c && c->waits) {
        c->many = m->flag;
        atomic_store_explicit(&c->refused, true, memory_order_release);
    }
    base_spin_unlock(&s->lock_lock);
    if (c || m->verb != LOCK_GRANT)
        return;
    if (lock_say(w, from, LOCK_RELEASE, m->word, m->ticket, m->flag) && give_back_later(w, s, m->word, m->ticket, m->flag))
        base_log(
            BASE_LOG_WARN,
            "lock %#llx was granted after its call had timed out, and there is no memory for the message that releases the lock. Calls of "
            "other nodes for this lock will time out until this node is closed" BASE_MEMORY_HINT,
            (unsigned long long)m->word);
}

static void on_lock_message(struct weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload,
                            size_t payload_len, void *arg)
{
    (void)payload;
    (void)payload_len;
    struct lock_message m;
    struct fab_link *l;
    if (header_len != sizeof m)
        return;
    memcpy(&m, header, sizeof m);
    m.ticket &= LOCK_TICKETS;
    bool home = weft_gaddr_node(m.word) == w->rank;
    bool answer = m.verb == LOCK_GRANT || m.verb == LOCK_REFUSE;
    if ((m.word & 7) || fab_resolve(w, m.word, 8, &l) || (answer ? weft_gaddr_node(m.word) != from : !home))
        return; /* invalid; no version of weft sends this */
    switch (m.verb) {
    case LOCK_REQUEST: lock_on_request(w, arg, from, &m); break;
    case LOCK_RELEASE: lock_on_release(w, arg, from, &m); break;
    case LOCK_CANCEL: lock_on_cancel(arg, from, &m); break;
    case LOCK_GRANT:
    case LOCK_REFUSE: on_lock_answer(w, arg, from, &m); break;
    default: break;
    }
}

/* --- taking a lock --- */

/* Print the current holder of the lock, for which this node waits. */
static void say_holder(const struct fab_patience *p, weft_gaddr word)
{
    struct weft_node *w = p->w;
    uint32_t home = weft_gaddr_node(word);
    char what[64], whom[160];
    uint64_t value;
    snprintf(what, sizeof what, "lock %#llx", (unsigned long long)word);
    int64_t limit = fab_limit(base_deadline(WEFT_SECOND)); /* the home may be stopped */
    int rc = weft_fetch_add_blocking(w, word, 0, &value);
    (void)fab_limit(limit);
    if (rc == 0 && lock_owned(w, value))
        snprintf(whom, sizeof whom, "node %u, which holds the lock and is alive", (uint32_t)(value & LOCK_OWNER) - 1);
    else
        snprintf(whom, sizeof whom, "node %u, which is alive and has the lock in its pool, to hand it over", home);
    fab_patience_say(p, what, whom);
}

static int64_t until(int64_t deadline)
{
    int64_t left = deadline - base_now_ns();
    return left > 0 ? left : 0;
}

/* Wait for the compare-and-swap on a lock of another node. Returns -EINPROGRESS if the swap is still pending at the deadline. */
static int wait_for_swap(struct lock_claim *c, struct fab_patience *p, uint64_t *old)
{
    for (;;) {
        int rc = fab_swap_wait(c->w, &c->swap, old, until(fab_patience_next(p)));
        if (rc != -EINPROGRESS || fab_patience_check(p))
            return rc;
        if (fab_patience_due(p))
            say_holder(p, c->word);
    }
}

static bool answered_or_lost(void *arg)
{
    struct lock_claim *c = arg;
    return atomic_load_explicit(&c->granted, memory_order_acquire) || atomic_load_explicit(&c->refused, memory_order_acquire) ||
           !fab_alive(c->w, weft_gaddr_node(c->word));
}

static int wait_for_answer(struct lock_claim *c, struct fab_patience *p)
{
    for (;;) {
        int rc = fab_wait(c->w, answered_or_lost, c, fab_patience_next(p));
        if (rc != -ETIMEDOUT || fab_patience_check(p))
            return rc;
        if (fab_patience_due(p))
            say_holder(p, c->word);
    }
}

static int timed_out(weft_gaddr word)
{
    return base_fail(-ETIMEDOUT, "lock %#llx: another thread or node held the lock until the deadline; try again, or allow more time",
                     (unsigned long long)word);
}

/* Another claim has the lock: ask the lock's home to queue this claim, and wait. After success this claim is HELD. After an error this
 * claim no longer exists. */
static BASE_COLD int ask_home(struct weft_node *w, struct sync *s, struct lock_claim *c, struct fab_patience *p, bool *inherited)
{
    uint32_t home = weft_gaddr_node(c->word);
    uint64_t word = c->word, ticket = c->ticket;
    base_spin_lock(&s->lock_lock);
    c->waits = true;
    base_spin_unlock(&s->lock_lock);
    int rc;
    do /* repeat: the home may be stopped for longer than one operation waits */
        rc = lock_say(w, home, LOCK_REQUEST, word, ticket, false);
    while (rc == -ETIMEDOUT && p->lasting);
    bool asked = rc == 0;
    if (asked)
        rc = wait_for_answer(c, p);

    /* Memory order: the former holder may be a thread of this node, although the grant came from another process. The former holder held
     * lock_lock before it released the lock. So this thread, which takes lock_lock after the grant, sees the former holder's stores. */
    base_spin_lock(&s->lock_lock);
    bool granted = atomic_load_explicit(&c->granted, memory_order_acquire);
    bool refused = atomic_load_explicit(&c->refused, memory_order_acquire), many = c->many;
    *inherited = c->inherited;
    c->inherited = false; /* this caller is told that the former holder died, so later holders need not be told */
    c->waits = false;
    if (granted) {
        become_held(c);
    } else {
        unlink_claim(bucket(s, word), c);
        spare(s, c);
    }
    base_spin_unlock(&s->lock_lock);
    if (granted)
        return 0;
    if (refused && many)
        return base_fail(-ENOBUFS,
                         "lock %#llx: %u requests of this node already wait for locks in the pool of node %u, which is the most: "
                         "let fewer threads wait at the same time",
                         (unsigned long long)word, LOCK_REQUESTS_MAX, home);
    if (refused)
        return base_fail(
            -ENOMEM,
            "lock %#llx: node %u, which has the lock in its pool, has no memory for one more waiter; end other programs on its host",
            (unsigned long long)word, home);
    if (asked && rc == -ETIMEDOUT) {
        (void)lock_say(w, home, LOCK_CANCEL, word, ticket, false); /* if this fails, a grant that arrives later is released */
        return timed_out(word);
    }
    return rc ? rc
              : base_fail(-ECONNRESET,
                          "lock %#llx: node %u, which had the lock in its pool, is gone; use a lock in the pool of a node that is alive",
                          (unsigned long long)word, home);
}

/* The lock was not free; its word was `old`. Wait for the lock, or take it over from a dead holder. */
static BASE_COLD int wait_in_line(struct weft_node *w, struct sync *s, struct lock_claim *c, uint64_t old, struct fab_patience *p,
                                  bool *inherited)
{
    if (fab_patience_check(p) && lock_owned(w, old)) {
        lock_forget(s, c);
        return timed_out(c->word);
    }
    /* Allow time for a round trip, because a lock without a living holder is taken even with time-out 0. */
    int64_t look = base_deadline(SYNC_LOOK_NS);
    if (!lock_owned(w, old) && p->deadline < look)
        p->deadline = look;
    return ask_home(w, s, c, p, inherited);
}

static int lock_here(struct weft_node *w, struct sync *s, weft_gaddr word, int64_t timeout_ns, bool *inherited)
{
    struct lock_claim *c;
    uint64_t old = 0;
    int rc = lock_begin(w, s, word, &c);
    if (BASE_UNLIKELY(rc))
        return rc;
    rc = weft_compare_swap(w, word, 0, value_of(c), &old, NULL);
    if (BASE_LIKELY(rc == 0 && old == 0)) {
        become_held(c);
        return 0;
    }
    if (rc) {
        lock_forget(s, c);
        return rc;
    }
    struct fab_patience p;
    fab_patience_begin(&p, w, FAB_KNOWN, timeout_ns);
    int64_t limit = fab_limit(p.deadline);
    rc = wait_in_line(w, s, c, old, &p, inherited);
    (void)fab_limit(limit);
    return rc;
}

static int lock_there(struct weft_node *w, struct sync *s, weft_gaddr word, struct fab_patience *p, bool *inherited)
{
    for (;;) {
        struct lock_claim *c;
        uint64_t old = 0;
        int rc = lock_begin(w, s, word, &c);
        if (rc)
            return rc;
        while (!c->swap && !rc) {
            rc = fab_swap_begin(w, word, 0, value_of(c), &c->swap);
            if (rc == -ETIMEDOUT && p->lasting)
                rc = 0; /* repeat: the home may be stopped for longer than one operation waits */
        }
        if (rc) {
            lock_forget(s, c);
            return rc;
        }
        rc = wait_for_swap(c, p, &old);
        if (rc == 0 && old == 0) {
            /* Take lock_lock for memory order, see ask_home(). */
            base_spin_lock(&s->lock_lock);
            become_held(c);
            base_spin_unlock(&s->lock_lock);
            return 0;
        }
        if (rc == 0)
            return wait_in_line(w, s, c, old, p, inherited);
        if (rc == -ECONNRESET) {
            lock_forget(s, c);
            return rc;
        }
        lock_leave(s, c); /* the swap may have been executed, or may still be executed */
        if (rc == -EINPROGRESS)
            return base_fail(
                -ETIMEDOUT,
                "lock %#llx: node %u, which has the lock in its pool, did not answer before the deadline (is its process stopped?); if "
                "it grants the lock later, weft releases the lock again",
                (unsigned long long)word, weft_gaddr_node(word));
        if (rc != -ECONNABORTED)
            return rc;
        /* The link was broken and works again: try again. */
    }
}

int weft_lock(weft_node *w, weft_gaddr word, int64_t timeout_ns, bool *inherited)
{
    struct sync *s = w->sync;
    bool from_dead = false;
    int rc;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_lock() must not be called from a handler: call it in another thread");
    if (fab_at_once(w, word)) {
        rc = lock_here(w, s, word, timeout_ns, &from_dead);
    } else {
        struct fab_patience p;
        fab_patience_begin(&p, w, FAB_KNOWN, timeout_ns);
        int64_t look = base_deadline(SYNC_LOOK_NS);
        p.deadline = p.deadline < look ? look : p.deadline;
        int64_t limit = fab_limit(p.deadline);
        rc = lock_there(w, s, word, &p, &from_dead);
        (void)fab_limit(limit);
    }
    if (rc == 0 && inherited)
        *inherited = from_dead;
    return rc;
}

/* --- releasing a lock --- */

static int not_held(weft_gaddr word)
{
    return base_fail(-EPERM, "lock %#llx: this node does not hold the lock, so it cannot release it; call weft_lock() first",
                     (unsigned long long)word);
}

/* Called after a release that failed and changed nothing: the claim stays HELD. */
static int still_held(struct sync *s, struct lock_claim *c, int rc)
{
    base_spin_lock(&s->lock_lock);
    c->next = *bucket(s, c->word);
    *bucket(s, c->word) = c;
    base_spin_unlock(&s->lock_lock);
    return rc;
}

static int unlock_here(struct weft_node *w, struct sync *s, struct lock_claim *c)
{
    uint64_t old, mine = value_of(c), word = c->word;
    int rc = weft_compare_swap(w, word, mine, 0, &old, NULL);
    if (rc && rc != -ECONNRESET)
        return still_held(s, c, rc);
    bool waiters = rc == 0 && old == (mine | LOCK_WAITERS);
    if (waiters)
        rc = lock_say(w, weft_gaddr_node(word), LOCK_RELEASE, word, c->ticket, false);
    if (rc && rc != -ECONNRESET) { /* the progress thread tells the home later */
        c->back = true;
        lock_leave(s, c);
        return 0;
    }
    lock_forget(s, c);
    return rc == 0 && old != mine && !waiters ? not_held(word) : rc;
}

static int unlock_there(struct weft_node *w, struct sync *s, struct lock_claim *c)
{
    uint64_t old = 0, mine = value_of(c), word = c->word;
    int rc = fab_swap_begin(w, word, mine, 0, &c->swap);
    if (rc && rc != -ECONNRESET)
        return still_held(s, c, rc);
    if (rc == 0) {
        c->back = true;
        rc = fab_swap_wait(w, &c->swap, &old, WEFT_TIMEOUT_DEFAULT);
    }
    bool waiters = rc == 0 && old == (mine | LOCK_WAITERS);
    if (waiters)
        rc = lock_say(w, weft_gaddr_node(word), LOCK_RELEASE, word, c->ticket, false);
    if (rc && rc != -ECONNRESET) { /* the progress thread completes the release */
        lock_leave(s, c);
        return 0;
    }
    lock_forget(s, c);
    return rc == 0 && old != mine && !waiters ? not_held(word) : rc;
}

int weft_unlock(weft_node *w, weft_gaddr word)
{
    struct sync *s = w->sync;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_unlock() must not be called from a handler: the lock is still held; release it in another thread");
    base_spin_lock(&s->lock_lock);
    struct lock_claim *c = take_held(s, word);
    base_spin_unlock(&s->lock_lock);
    if (BASE_LIKELY(c))
        return fab_at_once(w, word) ? unlock_here(w, s, c) : unlock_there(w, s, c);
    struct fab_link *l;
    int rc = fab_resolve(w, word, 8, &l);
    return rc ? rc : not_held(word);
}

/* --- deaths, open and close --- */

static void on_gone(struct weft_node *w, uint32_t node, bool died, void *arg)
{
    struct sync *s = arg;
    (void)died;
    base_spin_lock(&s->lock_lock);
    for (uint32_t i = 0; i < SYNC_CLAIM_BUCKETS; i++) {
        for (struct lock_claim **at = &s->claims[i]; *at;) {
            struct lock_claim *c = *at;
            /* acquire: pairs with the release in become_held() */
            if (weft_gaddr_node(c->word) == node && atomic_load_explicit(&c->state, memory_order_acquire) == HELD) {
                *at = c->next;
                spare(s, c);
            } else {
                at = &c->next;
            }
        }
    }
    base_spin_unlock(&s->lock_lock);
    lock_home_gone(w, s, node);
}

int lock_open(struct weft_node *w)
{
    int rc = fab_handle(w, SYNC_HANDLER_LOCK, on_lock_message, w->sync);
    if (!rc)
        rc = fab_hook(w, &(struct fab_hook){.gone = on_gone, .tick = lock_tick, .arg = w->sync});
    return rc;
}

static void free_claims(struct weft_node *w, struct lock_claim *c)
{
    while (c) {
        struct lock_claim *next = c->next;
        if (c->swap)
            fab_swap_leave(w, &c->swap);
        free(c);
        c = next;
    }
}

void lock_close(struct weft_node *w, struct sync *s)
{
    for (uint32_t i = 0; i < SYNC_CLAIM_BUCKETS; i++)
        free_claims(w, s->claims[i]);
    free_claims(w, s->left);
    free_claims(w, s->spare);
    lock_home_close(s);
}
