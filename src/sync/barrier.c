/* SPDX-License-Identifier: MIT
 *
 * Barrier by dissemination: in round k every node signals the one 2^k places on and waits for the one 2^k places
 * back; after log2(n) rounds everyone has heard of everyone.
 *
 * Every node has one word in its pool for each node that may signal it, written by that node alone: the set of nodes
 * the barrier is of, and how many barriers that set has had. A node is at one distance from another, so one word is
 * enough, and a fast node that is one barrier ahead only raises it.
 *
 * When a node goes, the set changes. Whoever cannot finish marks its words "given up" at all others, so that nobody
 * waits for a signal that will not come, and all start again with the smaller set.
 */
#include "sync/state.h"

/* A word: nodes in the set (12) . hash of the set (20) . generation (32). Sets only shrink: fewer is newer. */
#define GIVEN_UP UINT32_MAX

static void take_stock(struct weft *w, struct sync *s)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    uint32_t n = 0, dead = 0;
    for (uint32_t i = 0; i < w->size; i++) {
        int state = atomic_load_explicit(&w->links[i].state, memory_order_acquire);
        dead += state == FAB_DEAD;
        if (state != FAB_ALIVE)
            continue;
        if (i == w->rank)
            s->place = n;
        s->members[n++] = i;
        hash = (hash ^ i) * UINT64_C(0x100000001b3);
    }
    uint64_t set = (uint64_t)n << 20 | (hash >> 44);
    if (set != s->set) {
        s->set = set;
        s->generation = 0;
    }
    s->member_count = n;
    s->dead = dead;
}

static uint32_t count_dead(const struct weft *w)
{
    uint32_t dead = 0;
    for (uint32_t i = 0; i < w->size; i++)
        dead += atomic_load_explicit(&w->links[i].state, memory_order_acquire) == FAB_DEAD;
    return dead;
}

struct signal_wait {
    struct weft *w;
    const _Atomic uint64_t *word; /* what `from` writes here */
    uint64_t epoch;
    uint64_t set;
    uint32_t generation, from, dead;
    bool failed;
};

static bool signalled(void *arg)
{
    struct signal_wait *b = arg;
    /* acquire: pairs with the sender's swap; what it did before the barrier is seen after it */
    uint64_t v = atomic_load_explicit(b->word, memory_order_acquire);
    uint64_t set = v >> 32;
    uint32_t generation = (uint32_t)v;
    if (set == b->set && generation != GIVEN_UP && generation >= b->generation)
        return true;
    if ((set == b->set && generation == GIVEN_UP) || (set != 0 && set >> 20 < b->set >> 20)) {
        b->failed = true;
        return true;
    }
    if (BASE_UNLIKELY(weft_epoch(b->w) != b->epoch)) {
        /* Someone went. One that left had passed this barrier, unless it is the one we wait for. */
        b->epoch = weft_epoch(b->w);
        if (!fab_alive(b->w, b->from)) {
            v = atomic_load_explicit(b->word, memory_order_acquire);
            if (v >> 32 == b->set && (uint32_t)v != GIVEN_UP && (uint32_t)v >= b->generation)
                return true; /* its last signal came before its end */
            b->failed = true;
        }
        b->failed = b->failed || count_dead(b->w) != b->dead;
        return b->failed;
    }
    return false;
}

static int give_up(struct weft *w, struct sync *s)
{
    uint64_t v = s->set << 32 | GIVEN_UP;
    for (uint32_t i = 0; i < s->member_count; i++)
        if (s->members[i] != w->rank)
            (void)weft_swap(w, weft_gaddr_make(s->members[i], 0, fab_barrier_offset(w->rank)), v, NULL, NULL);
    s->generation = GIVEN_UP; /* this set has no further barrier */
    return base_fail(-ECONNRESET, "barrier: a node has gone; the next barrier is one of those that are left");
}

static int rounds(struct weft *w, struct sync *s, int64_t deadline)
{
    uint32_t n = s->member_count;
    uint64_t mine = s->set << 32 | s->generation;
    for (uint32_t distance = 1; distance < n; distance <<= 1) {
        uint32_t to = s->members[(s->place + distance) % n], from = s->members[(s->place + n - distance) % n];
        int rc = weft_swap(w, weft_gaddr_make(to, 0, fab_barrier_offset(w->rank)), mine, NULL, NULL);
        if (rc && rc != -ECONNRESET)
            return rc;
        struct signal_wait b = {
            .w = w,
            .word = (const _Atomic uint64_t *)(const void *)(w->pool_base + fab_barrier_offset(from)),
            .epoch = s->epoch,
            .set = s->set,
            .generation = s->generation,
            .from = from,
            .dead = s->dead,
        };
        if (!signalled(&b)) {
            rc = fab_wait(w, signalled, &b, deadline);
            if (rc == -ETIMEDOUT)
                return base_fail(rc, "barrier: node %u (pid %d) has not come, or waits for one that has not", from,
                                 w->links[from].pid);
            if (rc)
                return rc;
        }
        if (b.failed)
            return give_up(w, s);
    }
    return 0;
}

struct news_wait {
    const struct weft *w;
    uint64_t epoch;
};

static bool news(void *arg)
{
    const struct news_wait *n = arg;
    return weft_epoch(n->w) != n->epoch;
}

/* Others may have given this set up before we noticed who went. Until we have, the set would stay the same, and its
 * words say "given up": the barrier would fail a second time for one death. */
static int hear_who_went(struct weft *w, struct sync *s, int64_t deadline)
{
    struct news_wait n = {w, s->epoch};
    int rc = s->generation == GIVEN_UP ? fab_wait(w, news, &n, deadline) : 0;
    if (rc == -ETIMEDOUT)
        return base_fail(rc, "barrier: another node gave up the last one because a node had gone, and this node has not "
                         "noticed until the deadline which");
    return rc;
}

int weft_barrier(weft *w, int64_t timeout_ns)
{
    struct sync *s = w->sync;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_barrier() must not be called from a handler");
    if (pthread_mutex_trylock(&s->barrier_lock))
        return base_fail(-EBUSY, "another thread of this node is in weft_barrier()");
    int64_t deadline = fab_timeout(w, timeout_ns);
    int rc = hear_who_went(w, s, deadline);
    if (rc) {
        pthread_mutex_unlock(&s->barrier_lock);
        return rc;
    }
    uint64_t epoch = weft_epoch(w);
    if (BASE_UNLIKELY(epoch != s->epoch || s->generation >= GIVEN_UP - 1)) {
        uint32_t dead = s->dead;
        s->epoch = epoch;
        take_stock(w, s);
        /* Every survivor is told of a death, also one that was not waiting: all count their barriers alike. */
        if (s->dead != dead && !s->told)
            rc = base_fail(-ECONNRESET, "barrier: a node has died; the next barrier is one of those that are left");
        s->told = false;
    }
    if (rc == 0) {
        s->generation++;
        rc = rounds(w, s, deadline);
        if (rc == -ECONNRESET)
            s->told = true;
    }
    pthread_mutex_unlock(&s->barrier_lock);
    return rc;
}
