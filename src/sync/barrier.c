/* SPDX-License-Identifier: MIT
 *
 * Barrier by dissemination: in round k every node signals the one 2^k places on and waits for the one 2^k places
 * back; after log2(n) rounds everyone has heard of everyone.
 *
 * Every node has one line of words in its pool for each node that may signal it, written by that node alone. A signal
 * is a word with the set of nodes the barrier is of, and how many barriers that set has had. A node is at one distance
 * from another, so one word is enough for all rounds, and a fast node that is one barrier ahead only raises it.
 *
 * When a node goes, the set changes, and the next barriers use the next word of the line: the last signal for the old
 * set stays readable for those who are still in that barrier, which a node that left had passed. Nobody waits for a
 * signal that will not come: who cannot finish tells all others which barrier it gave up, and who begins with a new
 * set tells them that, in words of the line that are for this. All that did not finish start again with the smaller
 * set. A line has not a word for every size of a set: before a word is used again, for a set so much smaller, its reader
 * must have begun with a newer set than the one it was used for.
 */
#include "sync/state.h"

/* A word: nodes in the set (12) . hash of the set (20) . generation (32). Sets only shrink: fewer is newer. */
#define SIGNAL_WORDS  6u /* of a line; a set uses the one of its size */
#define GIVEN_UP_WORD 6u /* the barrier that the writer gave up last: it enters no later one of that set */
#define NEWEST_WORD   7u /* the newest set that the writer has begun with; generation 0 */

static inline uint32_t signal_word(uint64_t set)
{
    return (uint32_t)(set >> 20) % SIGNAL_WORDS;
}

static inline int write_word(struct weft *w, uint32_t node, uint32_t word, uint64_t value)
{
    return fab_system_swap(w, node, fab_barrier_offset(w->rank) + 8 * word, value);
}

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
        bool first = n == w->size;
        s->set = set;
        s->generation = 0;
        for (uint32_t i = 0; !first && i < n; i++)
            if (s->members[i] != w->rank)
                (void)write_word(w, s->members[i], NEWEST_WORD, set << 32); /* one that is gone need not know */
    }
    s->member_count = n;
    s->dead = dead;
}

uint32_t sync_count_dead(const struct weft *w)
{
    uint32_t dead = 0;
    for (uint32_t i = 0; i < w->size; i++)
        dead += atomic_load_explicit(&w->links[i].state, memory_order_acquire) == FAB_DEAD;
    return dead;
}

struct signal_wait {
    struct weft *w;
    const _Atomic uint64_t *line; /* what `from` writes here */
    uint64_t epoch;
    uint64_t set;
    uint32_t generation, from, dead;
    bool failed;
};

static bool has_signalled(const struct signal_wait *b)
{
    /* acquire: pairs with the sender's swap; what it did before the barrier is seen after it */
    uint64_t v = atomic_load_explicit(&b->line[signal_word(b->set)], memory_order_acquire);
    return v >> 32 == b->set && (int32_t)((uint32_t)v - b->generation) >= 0; /* it may be one ahead, and may wrap */
}

/* Will it signal no more in this barrier? To be followed by one more look: it may have before. */
static bool has_ended(const struct signal_wait *b)
{
    uint64_t given_up = atomic_load_explicit(&b->line[GIVEN_UP_WORD], memory_order_acquire);
    uint64_t newest = atomic_load_explicit(&b->line[NEWEST_WORD], memory_order_acquire) >> 32;
    return (given_up >> 32 == b->set && (int32_t)((uint32_t)given_up - b->generation) <= 0) ||
           (newest != 0 && newest >> 20 < b->set >> 20) || !fab_alive(b->w, b->from);
}

static bool signalled(void *arg)
{
    struct signal_wait *b = arg;
    if (BASE_LIKELY(has_signalled(b)))
        return true;
    if (BASE_UNLIKELY(weft_epoch(b->w) != b->epoch)) {
        /* A death fails the barrier. One that left had passed it, unless it is the one we wait for. */
        b->epoch = weft_epoch(b->w);
        if (sync_count_dead(b->w) != b->dead) {
            b->failed = true;
            return true;
        }
    }
    if (!has_ended(b))
        return false;
    b->failed = !has_signalled(b);
    return true;
}

static const _Atomic uint64_t *line_of(const struct weft *w, uint32_t node)
{
    return (const _Atomic uint64_t *)(const void *)(w->pool_base + fab_barrier_offset(node));
}

struct reader_wait {
    struct weft *w;
    uint32_t node, size; /* of the set to signal it for */
};

/* Does the node read the word of this set no more for an older one? */
static bool has_moved_on(void *arg)
{
    const struct reader_wait *r = arg;
    uint64_t newest = atomic_load_explicit(&line_of(r->w, r->node)[NEWEST_WORD], memory_order_acquire) >> 32;
    uint32_t size = newest ? (uint32_t)(newest >> 20) : r->w->size;
    return size < r->size + SIGNAL_WORDS || !fab_alive(r->w, r->node);
}

static void give_up(struct weft *w, struct sync *s)
{
    uint64_t v = s->set << 32 | s->generation;
    for (uint32_t i = 0; i < s->member_count; i++)
        if (s->members[i] != w->rank)
            (void)write_word(w, s->members[i], GIVEN_UP_WORD, v);
}

static int not_come(const struct weft *w, uint32_t node)
{
    return base_fail(-ETIMEDOUT, "barrier: node %u (pid %d) has not come, or waits for one that has not", node, w->links[node].pid);
}

static int rounds(struct weft *w, struct sync *s, int64_t deadline, bool *failed)
{
    uint32_t n = s->member_count;
    uint64_t mine = s->set << 32 | s->generation;
    for (uint32_t distance = 1; distance < n; distance <<= 1) {
        uint32_t to = s->members[(s->place + distance) % n], from = s->members[(s->place + n - distance) % n];
        struct reader_wait r = {w, to, n};
        if (BASE_UNLIKELY(n + SIGNAL_WORDS <= w->size) && !has_moved_on(&r)) {
            int rc = fab_wait(w, has_moved_on, &r, deadline);
            if (rc)
                return rc == -ETIMEDOUT ? not_come(w, to) : rc;
        }
        int rc = write_word(w, to, signal_word(s->set), mine);
        if (rc && rc != -ECONNRESET)
            return rc;
        struct signal_wait b = {
            .w = w,
            .line = line_of(w, from),
            .epoch = s->epoch,
            .set = s->set,
            .generation = s->generation,
            .from = from,
            .dead = s->dead,
        };
        if (!signalled(&b)) {
            rc = fab_wait(w, signalled, &b, deadline);
            if (rc)
                return rc == -ETIMEDOUT ? not_come(w, from) : rc;
        }
        if (b.failed) {
            *failed = true;
            return 0;
        }
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

/* The barrier has failed. Others may have given it up before this node noticed who went: it returns only when it has,
 * so that its caller, too, sees who is left, and so that the next barrier is of the smaller set. */
static int fail(struct weft *w, struct sync *s, int64_t deadline)
{
    struct news_wait n = {w, s->epoch};
    give_up(w, s);
    if (news(&n) || fab_wait(w, news, &n, deadline) == 0) {
        s->epoch = weft_epoch(w);
        take_stock(w, s);
    }
    return base_fail(-ECONNRESET, "barrier: a node has gone; the next barrier is one of those that are left");
}

int sync_meet(struct weft *w, int64_t timeout_ns, const struct sync_visit *visit)
{
    struct sync *s = w->sync;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "a barrier must not be entered from a handler");
    if (pthread_mutex_trylock(&s->barrier_lock))
        return base_fail(-EBUSY, "another thread of this node is in a barrier");
    int rc = 0;
    int64_t deadline = fab_timeout(w, timeout_ns);
    uint64_t epoch = weft_epoch(w);
    if (BASE_UNLIKELY(epoch != s->epoch)) {
        uint32_t dead = s->dead;
        s->epoch = epoch;
        take_stock(w, s);
        /* Every survivor is told of a death before it enters a barrier of those that are left. */
        if (s->dead != dead)
            rc = base_fail(-ECONNRESET, "barrier: a node has died; the next barrier is one of those that are left");
    }
    if (rc == 0) {
        s->generation++;
        bool failed = false;
        if (visit)
            rc = visit->before(w, visit->arg);
        if (!rc)
            rc = rounds(w, s, deadline, &failed);
        if (!rc && visit && !failed) {
            rc = visit->after(w, visit->arg);
            failed = rc == -ECONNRESET;
        }
        if (failed)
            rc = fail(w, s, deadline);
    }
    pthread_mutex_unlock(&s->barrier_lock);
    return rc;
}

int weft_barrier(weft *w, int64_t timeout_ns)
{
    return sync_meet(w, timeout_ns, NULL);
}
