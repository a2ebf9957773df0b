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
 * set. So do two that saw others leave in different orders, and began with sets of the same size that differ: neither was ever in
 * the other's set. tests/model/barrier.pml checks this exhaustively. A line has not a word for every size of a set: before a word is used
 * again, for a set so much smaller, its reader must have begun with a newer set than the one it was used for.
 *
 * Who times out has not left the barrier: the next call goes on where this one stopped, with the same set and generation. So nobody
 * is ever a generation ahead of one that was late. What it has signalled stands, and others may pass the barrier meanwhile.
 *
 * The line of a node in its own pool, which nobody signals by, says which barrier it has come to, for those who want to say for whom
 * they wait.
 */
#include <stdio.h>

#include "sync/state.h"

/* A word: nodes in the set (12) . hash of the set (20) . generation (32). Sets only shrink: fewer is newer. */
#define SIGNAL_WORDS  6u /* of a line; a set uses the one of its size */
#define GIVEN_UP_WORD 6u /* the barrier that the writer gave up last: it enters no later one of that set */
#define NEWEST_WORD   7u /* the newest set that the writer has begun with; generation 0 */
#define COME_WORD     0u /* of a node's own line: the barrier that it has come to last */

#define LOOKS_BEFORE_WAIT 64u /* 1 to 4 us, by the processor's pause */

/* When a wait says for whom it waits, it asks the others whether they have come: for so long each, and all together. */
#define ASK_NS     WEFT_SECOND
#define ASK_ALL_NS (3 * WEFT_SECOND)

static inline uint32_t signal_word(uint64_t set)
{
    return (uint32_t)(set >> 20) % SIGNAL_WORDS;
}

static inline int write_word(struct weft_node *w, uint32_t node, uint32_t word, uint64_t value)
{
    return fab_system_set(w, node, sync_barrier_offset(w->rank) + 8 * word, value, true);
}

/* All others with which set this node has begun. Not all may take it now: one that is stopped has no room when much waits for it. */
static int tell_newest(struct weft_node *w, struct sync *s)
{
    int first = 0;
    for (uint32_t i = 0; i < s->member_count; i++) {
        int rc = s->members[i] == w->rank ? 0 : write_word(w, s->members[i], NEWEST_WORD, s->set << 32);
        if (rc != -ECONNRESET && !first) /* one that is gone need not know */
            first = rc;
    }
    s->untold = first != 0;
    return first;
}

static void take_stock(struct weft_node *w, struct sync *s)
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
    s->member_count = n;
    s->dead = dead;
    if (set != s->set) {
        s->set = set;
        s->generation = 0;
        if (n != w->size)
            (void)tell_newest(w, s); /* who could not be told is when the next barrier begins */
    }
}

struct signal_wait {
    struct weft_node *w;
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
static bool barrier_has_ended(const struct signal_wait *b)
{
    uint64_t given_up = atomic_load_explicit(&b->line[GIVEN_UP_WORD], memory_order_acquire);
    uint64_t newest = atomic_load_explicit(&b->line[NEWEST_WORD], memory_order_acquire) >> 32;
    /* One that has begun with another set of as many nodes saw others leave than this node did, and was never in this set: sets only
     * shrink. Both have to see all that have left, and begin anew. */
    return (given_up >> 32 == b->set && (int32_t)((uint32_t)given_up - b->generation) <= 0) ||
           (newest != 0 && newest != b->set && newest >> 20 <= b->set >> 20) || !fab_alive(b->w, b->from);
}

static bool signalled(void *arg)
{
    struct signal_wait *b = arg;
    if (BASE_LIKELY(has_signalled(b)))
        return true;
    if (BASE_UNLIKELY(weft_epoch(b->w) != b->epoch)) {
        /* A death fails the barrier. One that left had passed it, unless it is the one we wait for. */
        b->epoch = weft_epoch(b->w);
        if (fab_count_dead(b->w) != b->dead) {
            b->failed = true;
            return true;
        }
    }
    if (!barrier_has_ended(b))
        return false;
    b->failed = !has_signalled(b);
    return true;
}

/* A process of the same host stores its signal itself: no progress has to be made for that. So a few looks find a signal that is on its
 * way at a lower price than a wait has, which counts itself in and out and looks at all that may come meanwhile. */
static bool signalled_soon(struct signal_wait *b)
{
    const struct weft_node *w = b->w;
    if (w->oversubscribed || w->options.spin_ns == 0 || !w->links[b->from].transport->at_once)
        return false;
    for (unsigned i = 0; i < LOOKS_BEFORE_WAIT; i++) {
        if (signalled(b))
            return true;
        base_relax();
    }
    return false;
}

static const _Atomic uint64_t *line_of(const struct weft_node *w, uint32_t node)
{
    return (const _Atomic uint64_t *)(const void *)(w->pool_base + sync_barrier_offset(node));
}

struct reader_wait {
    struct weft_node *w;
    uint32_t node, size; /* of the set to signal it for */
    uint32_t dead;
    bool failed;
};

/* Does the node read the word of this set no more for an older one? Or has the barrier failed meanwhile? */
static bool has_moved_on(void *arg)
{
    struct reader_wait *r = arg;
    uint64_t newest = atomic_load_explicit(&line_of(r->w, r->node)[NEWEST_WORD], memory_order_acquire) >> 32;
    uint32_t size = newest ? (uint32_t)(newest >> 20) : r->w->size;
    if (size < r->size + SIGNAL_WORDS || !fab_alive(r->w, r->node))
        return true;
    r->failed = fab_count_dead(r->w) != r->dead;
    return r->failed;
}

static void barrier_give_up(struct weft_node *w, struct sync *s)
{
    uint64_t v = s->set << 32 | s->generation;
    for (uint32_t i = 0; i < s->member_count; i++)
        if (s->members[i] != w->rank)
            (void)write_word(w, s->members[i], GIVEN_UP_WORD, v);
}

static int not_come(const struct weft_node *w, const char *what, uint32_t node)
{
    return base_fail(-ETIMEDOUT, "%s: node %u (pid %d) has not arrived, or waits for one that has not; the next call goes on with this one",
                     what, node, w->links[node].pid);
}

static void say_come(struct weft_node *w, const struct sync *s, uint32_t generation)
{
    _Atomic uint64_t *own = (_Atomic uint64_t *)(void *)(w->pool_base + sync_barrier_offset(w->rank));
    /* release: pairs with the acquire in fab_system_get(); nothing depends on it but what is said to people */
    atomic_store_explicit(&own[COME_WORD], s->set << 32 | generation, memory_order_release);
}

static bool has_come(const struct sync *s, uint64_t word)
{
    uint64_t set = word >> 32;
    return set == s->set ? (int32_t)((uint32_t)word - s->generation) >= 0 : set != 0 && set >> 20 < s->set >> 20;
}

/* Who has not come, as far as that can be known now. False: meanwhile what this node waits for is there. */
static bool find_late(struct weft_node *w, const struct sync *s, fab_ready_fn ready, void *arg, bool late[])
{
    int64_t end = base_deadline(ASK_ALL_NS);
    for (uint32_t i = 0; i < w->size; i++)
        late[i] = false;
    for (uint32_t i = 0; i < s->member_count && base_now_ns() < end; i++) {
        uint32_t node = s->members[i];
        uint64_t word;
        if (ready(arg))
            return false;
        if (node != w->rank && fab_system_get(w, node, sync_barrier_offset(node) + 8 * COME_WORD, &word, ASK_NS) == 0)
            late[node] = !has_come(s, word);
    }
    return true;
}

int sync_wait(struct fab_patience *p, fab_ready_fn ready, void *arg, const char *what, uint32_t from)
{
    struct weft_node *w = p->w;
    for (;;) {
        int rc = fab_wait(w, ready, arg, fab_patience_next(p));
        if (rc != -ETIMEDOUT || fab_patience_check(p))
            return rc;
        bool late[WEFT_MAX_NODES];
        if (!fab_patience_due(p) || !find_late(w, w->sync, ready, arg, late))
            continue;
        char names[128], whom[192];
        uint32_t n = fab_name_nodes(w, late, names, sizeof names);
        if (n == 0) /* it has come, and is held up between two steps */
            snprintf(whom, sizeof whom, "node %u, which is alive", from);
        else
            snprintf(whom, sizeof whom, "%s, which %s alive", names, n == 1 ? "is" : "are");
        fab_patience_say(p, what, whom);
    }
}

/* Signal the node of this round, when it has a word free for that. */
static int signal_next(struct weft_node *w, struct sync *s, struct fab_patience *p, const char *what, bool *failed)
{
    uint32_t n = s->member_count, to = s->members[(s->place + s->distance) % n];
    struct reader_wait r = {.w = w, .node = to, .size = n, .dead = s->dead};
    if (BASE_UNLIKELY(n + SIGNAL_WORDS <= w->size) && !has_moved_on(&r)) {
        int rc = sync_wait(p, has_moved_on, &r, what, to);
        if (rc)
            return rc == -ETIMEDOUT ? not_come(w, what, to) : rc;
    }
    *failed = r.failed;
    if (r.failed)
        return 0;
    int rc;
    do /* a node that is stopped takes nothing for longer than an operation waits */
        rc = write_word(w, to, signal_word(s->set), s->set << 32 | s->generation);
    while (rc == -ETIMEDOUT && p->lasting);
    if (rc && rc != -ECONNRESET)
        return rc;
    s->sent = true;
    return 0;
}

static int rounds(struct weft_node *w, struct sync *s, struct fab_patience *p, const char *what, bool *failed)
{
    for (uint32_t n = s->member_count; s->distance < n; s->distance <<= 1, s->sent = false) {
        uint32_t from = s->members[(s->place + n - s->distance) % n];
        int rc = s->sent ? 0 : signal_next(w, s, p, what, failed);
        if (rc || *failed)
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
        if (!signalled(&b) && !signalled_soon(&b)) {
            rc = sync_wait(p, signalled, &b, what, from);
            if (rc)
                return rc == -ETIMEDOUT ? not_come(w, what, from) : rc;
        }
        if (b.failed) {
            *failed = true;
            return 0;
        }
    }
    return 0;
}

struct news_wait {
    const struct weft_node *w;
    uint64_t epoch;
};

static bool news(void *arg)
{
    const struct news_wait *n = arg;
    return weft_epoch(n->w) != n->epoch;
}

/* The barrier has failed. Others may have given it up before this node noticed who went: it returns only when it has,
 * so that its caller, too, sees who is left, and so that the next barrier is of the smaller set. One that another node takes for
 * dead and this one does not is not waited for longer than an operation takes. */
static int barrier_fail(struct weft_node *w, struct sync *s, const struct fab_patience *p)
{
    struct news_wait n = {w, s->epoch};
    int64_t end = fab_timeout(w, WEFT_TIMEOUT_DEFAULT);
    barrier_give_up(w, s);
    if (news(&n) || fab_wait(w, news, &n, p->deadline < end ? p->deadline : end) == 0) {
        s->epoch = weft_epoch(w);
        take_stock(w, s);
    }
    return base_fail(-ECONNRESET, "barrier: a node is gone; the next barrier is one of those that are left");
}

/* Begin the next barrier. */
static int barrier_enter(struct weft_node *w, struct sync *s)
{
    uint64_t epoch = weft_epoch(w);
    if (BASE_UNLIKELY(epoch != s->epoch)) {
        uint32_t dead = s->dead;
        s->epoch = epoch;
        take_stock(w, s);
        /* Every survivor is told of a death before it enters a barrier of those that are left. */
        if (s->dead != dead)
            return base_fail(-ECONNRESET, "barrier: a node has died; the next barrier is one of those that are left");
    }
    s->generation++;
    s->entered = true;
    s->put = s->given = s->sent = false;
    s->distance = 1;
    return 0;
}

/* As far as it goes now. */
static int barrier_go_on(struct weft_node *w, struct sync *s, struct fab_patience *p, const struct sync_visit *visit)
{
    bool failed = false;
    int rc = 0;
    if (visit && !s->given) {
        rc = visit->before(w, p, visit->arg);
        s->given = rc == 0;
    }
    if (!rc)
        rc = rounds(w, s, p, visit ? "exchange" : "barrier", &failed);
    if (!rc && visit && !failed) {
        rc = visit->after(w, p, visit->arg);
        failed = rc == -ECONNRESET;
    }
    s->entered = rc != 0 && !failed;
    return failed ? barrier_fail(w, s, p) : rc;
}

int sync_meet(struct weft_node *w, int64_t timeout_ns, const struct sync_visit *visit)
{
    struct sync *s = w->sync;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "a barrier must not be entered from a handler");
    if (pthread_mutex_trylock(&s->barrier_lock))
        return base_fail(-EBUSY, "another thread of this node is in a barrier or an exchange: one at a time");
    struct fab_patience p;
    fab_patience_begin(&p, w, FAB_KNOWN, timeout_ns);
    int64_t limit = p.lasting ? 0 : fab_limit(p.deadline);
    /* One that was entered before is of the nodes that were there then, whoever has gone since: it may be that all had come. */
    int rc = s->entered ? 0 : barrier_enter(w, s);
    while (rc == 0 && s->untold) {
        rc = tell_newest(w, s);
        rc = rc == -ETIMEDOUT && p.lasting ? 0 : rc;
    }
    if (rc == 0) {
        say_come(w, s, s->generation);
        rc = barrier_go_on(w, s, &p, visit);
        /* Others wait for its signals until it enters again. */
        if (s->entered && s->distance < s->member_count && !(s->sent && s->distance << 1 >= s->member_count))
            say_come(w, s, s->generation - 1);
    }
    if (!p.lasting)
        (void)fab_limit(limit);
    pthread_mutex_unlock(&s->barrier_lock);
    return rc;
}

int weft_barrier(weft_node *w, int64_t timeout_ns)
{
    return sync_meet(w, timeout_ns, NULL);
}
