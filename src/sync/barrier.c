/* SPDX-License-Identifier: MIT
 *
 * Barrier by dissemination: in round k each node signals the node 2^k places after it, and waits for the signal of the node 2^k places
 * before it. After log2(n) rounds each node has heard, directly or through others, of every other node.
 *
 * Every node has, in its pool, one cache line of words for each other node; only the other node writes this line. A signal is a word with
 * the barrier's set of nodes and the number of barriers that this set has had (the generation). Two nodes signal each other in only one
 * round, so one word is enough for all rounds. A node that is one barrier ahead only increases the word.
 *
 * When a node dies or leaves, the set changes, and the next barriers use another word of the line. The last signal of the old set stays
 * readable, because other nodes may still be in the old set's last barrier. No node waits for a signal that will not arrive: two words of
 * the line are reserved for this. A node that cannot finish a barrier writes this barrier into GIVEN_UP_WORD. A node that begins with a new
 * set writes the set into NEWEST_WORD. All nodes that did not finish start again with the smaller set. Two nodes that saw other nodes leave
 * in different orders have different sets of the same size; they start again, too. tests/model/barrier.pml checks this exhaustively. A line
 * has fewer words than there are sizes of a set. A node reuses a word for a smaller set only when the word's reader has begun with a set
 * that is newer than the word's old set.
 *
 * A call that times out does not leave the barrier: the node's next call continues the same barrier, with the same set and generation.
 * Signals that were sent stay valid, and other nodes may pass the barrier meanwhile.
 *
 * A node sends no signals to itself. So the line that a node has for itself records the barrier at which the node has arrived. Waiting
 * nodes read this line to print which nodes they wait for.
 */
#include <stdio.h>

#include "sync/state.h"

/* A signal word, from the high bits down: size of the set of nodes (12 bits), hash of the set (20), generation (32). Sets only shrink, so a
 * smaller set is newer. */
#define SIGNAL_WORDS  6u /* signal words in a line; the size of the set selects the word */
#define GIVEN_UP_WORD 6u /* the last barrier that failed at the writer; the writer enters no later barrier with this set */
#define NEWEST_WORD   7u /* the newest set with which the writer has begun a barrier; the generation in this word is 0 */
#define COME_WORD     0u /* in a node's own line: the last barrier at which the node arrived */

#define GONE_TEXT 144u /* the size of a text that names nodes */

#define LOOKS_BEFORE_WAIT 64u /* 1 to 4 us, depending on the processor's pause instruction */

/* A long wait prints which nodes have not arrived. To find out, the waiting node reads a word in the pool of each other node. A read may
 * take ASK_NS, and all reads together ASK_ALL_NS. */
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

/* Write this node's set into the NEWEST_WORD of all other nodes. A write to a stopped node may fail, because that node does not empty its
 * queue of operations. */
static int tell_newest(struct weft_node *w, struct sync *s)
{
    int first = 0;
    for (uint32_t i = 0; i < s->member_count; i++) {
        int rc = s->members[i] == w->rank ? 0 : write_word(w, s->members[i], NEWEST_WORD, s->set << 32);
        if (rc != -ECONNRESET && !first) /* a node that is gone does not need the set */
            first = rc;
    }
    s->untold = first != 0;
    return first;
}

static void take_stock(struct weft_node *w, struct sync *s)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    uint32_t n = 0, dead = 0;
    for (uint32_t i = 0; i < w->founders; i++) {
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
        if (n != w->founders)
            (void)tell_newest(w, s); /* on failure, the next barrier tries again */
    }
}

struct signal_wait {
    struct weft_node *w;
    const _Atomic uint64_t *line; /* the line that `from` writes in this node's pool */
    uint64_t epoch;
    uint64_t set;
    uint32_t generation, from, dead;
    bool failed;
};

static bool has_signalled(const struct signal_wait *b)
{
    /* acquire: pairs with the sender's swap, so what the sender has stored before the barrier is visible to this node after the barrier */
    uint64_t v = atomic_load_explicit(&b->line[signal_word(b->set)], memory_order_acquire);
    return v >> 32 == b->set &&
           (int32_t)((uint32_t)v - b->generation) >= 0; /* the sender may be one generation ahead; the generation may wrap */
}

/* Whether the sender will send no more signals in this barrier. If so, the caller must check the signal once more, because the sender may
 * have sent it just before. */
static bool barrier_has_ended(const struct signal_wait *b)
{
    uint64_t given_up = atomic_load_explicit(&b->line[GIVEN_UP_WORD], memory_order_acquire);
    uint64_t newest = atomic_load_explicit(&b->line[NEWEST_WORD], memory_order_acquire) >> 32;
    /* If the sender's newest set is different but of the same size, the two nodes saw different nodes leave. Sets only shrink, so the
     * sender never had this node's set. This barrier fails, and the next barrier has the smaller set. */
    return (given_up >> 32 == b->set && (int32_t)((uint32_t)given_up - b->generation) <= 0) ||
           (newest != 0 && newest != b->set && newest >> 20 <= b->set >> 20) || !fab_alive(b->w, b->from);
}

static bool signalled(void *arg)
{
    struct signal_wait *b = arg;
    if (BASE_LIKELY(has_signalled(b)))
        return true;
    if (BASE_UNLIKELY(weft_epoch(b->w) != b->epoch)) {
        /* A death makes the barrier fail. A node that has left (weft_close()) does not, because it has passed this barrier; unless it is
         * the node whose signal is missing: barrier_has_ended() checks that. */
        b->epoch = weft_epoch(b->w);
        if (fab_count_dead(b->w, b->w->founders) != b->dead) {
            b->failed = true;
            return true;
        }
    }
    if (!barrier_has_ended(b))
        return false;
    b->failed = !has_signalled(b);
    return true;
}

/* Poll the signal a few times before fab_wait(). A process of the same host stores its signal directly, and fab_wait() costs more because
 * it registers a waiter and polls all transports. */
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
    uint32_t node, size; /* size of the signal's set */
    uint32_t dead;
    bool failed;
};

/* Whether the node that reads this signal word no longer needs the word's former value, the signal of an older set. Also true if the
 * barrier has failed. */
static bool has_moved_on(void *arg)
{
    struct reader_wait *r = arg;
    uint64_t newest = atomic_load_explicit(&line_of(r->w, r->node)[NEWEST_WORD], memory_order_acquire) >> 32;
    uint32_t size = newest ? (uint32_t)(newest >> 20) : r->w->founders;
    if (size < r->size + SIGNAL_WORDS || !fab_alive(r->w, r->node))
        return true;
    r->failed = fab_count_dead(r->w, r->w->founders) != r->dead;
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
    return base_fail(
        -ETIMEDOUT,
        "%s: node %u (pid %d) has not arrived, or waits for a node that has not arrived; call weft_%s() again to continue this %s", what,
        node, w->links[node].pid, what, what);
}

static void say_come(struct weft_node *w, const struct sync *s, uint32_t generation)
{
    _Atomic uint64_t *own = (_Atomic uint64_t *)(void *)(w->pool_base + sync_barrier_offset(w->rank));
    /* release: pairs with the acquire in fab_system_get(). Used only for the text that a long wait prints */
    atomic_store_explicit(&own[COME_WORD], s->set << 32 | generation, memory_order_release);
}

static bool has_come(const struct sync *s, uint64_t word)
{
    uint64_t set = word >> 32;
    return set == s->set ? (int32_t)((uint32_t)word - s->generation) >= 0 : set != 0 && set >> 20 < s->set >> 20;
}

/* Find out which nodes have not arrived. Nodes that do not answer in time are left out. Returns false if `ready` has become true; then the
 * wait is over. */
static bool find_late(struct weft_node *w, const struct sync *s, fab_ready_fn ready, void *arg, bool late[])
{
    int64_t end = base_deadline(ASK_ALL_NS);
    for (uint32_t i = 0; i < w->founders; i++)
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
        uint32_t n = fab_name_nodes(late, w->founders, names, sizeof names);
        if (n == 0) /* all nodes have arrived, but a signal is delayed */
            snprintf(whom, sizeof whom, "node %u, which is alive", from);
        else
            snprintf(whom, sizeof whom, "%s, which %s alive", names, n == 1 ? "is" : "are");
        fab_patience_say(p, what, whom);
    }
}

/* Send this round's signal, once the receiver has a free word for it. */
static int signal_next(struct weft_node *w, struct sync *s, struct fab_patience *p, const char *what, bool *failed)
{
    uint32_t n = s->member_count, to = s->members[(s->place + s->distance) % n];
    struct reader_wait r = {.w = w, .node = to, .size = n, .dead = s->dead};
    if (BASE_UNLIKELY(n + SIGNAL_WORDS <= w->founders) && !has_moved_on(&r)) {
        int rc = sync_wait(p, has_moved_on, &r, what, to);
        if (rc)
            return rc == -ETIMEDOUT ? not_come(w, what, to) : rc;
    }
    *failed = r.failed;
    if (r.failed)
        return 0;
    int rc;
    do /* repeat: the node may be stopped for longer than the time-out of one write */
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

/* Begins a new set: the nodes that are alive now. `gone` gets the names of the nodes of the former set that are gone, such as
 * "node 3 is". barrier_failed() makes an error text of them. */
static void barrier_shrink(struct weft_node *w, struct sync *s, char gone[GONE_TEXT])
{
    bool in[WEFT_MAX_NODES] = {false};
    char names[GONE_TEXT - 8];
    for (uint32_t i = 0; i < s->member_count; i++)
        in[s->members[i]] = !fab_alive(w, s->members[i]);
    uint32_t n = fab_name_nodes(in, w->founders, names, sizeof names);
    snprintf(gone, GONE_TEXT, "%s %s", n ? names : "a node", n > 1 ? "are" : "is");
    s->epoch = weft_epoch(w);
    take_stock(w, s);
}

static int barrier_failed(const char *what, const char *gone)
{
    return base_fail(-ECONNRESET, "this %s has failed, because %s gone: call weft_%s() again; the new %s is among the remaining nodes",
                     what, gone, what, what);
}

/* Called after a failed barrier. Waits until this node has noticed which node is gone, so that the next barrier has the smaller set. Waits
 * at most until the default deadline: perhaps only another node considers some node dead. */
static int barrier_fail(struct weft_node *w, struct sync *s, const struct fab_patience *p, const char *what)
{
    struct news_wait n = {w, s->epoch};
    char gone[GONE_TEXT] = "a node is";
    int64_t end = fab_timeout(w, WEFT_TIMEOUT_DEFAULT);
    barrier_give_up(w, s);
    if (news(&n) || fab_wait(w, news, &n, p->deadline < end ? p->deadline : end) == 0)
        barrier_shrink(w, s, gone);
    return barrier_failed(what, gone);
}

static int barrier_enter(struct weft_node *w, struct sync *s, const char *what)
{
    uint64_t epoch = weft_epoch(w);
    if (BASE_UNLIKELY(epoch != s->epoch)) {
        uint32_t dead = s->dead;
        char gone[GONE_TEXT];
        barrier_shrink(w, s, gone);
        /* Each death makes one barrier fail at every survivor, before the survivor enters a barrier with the smaller set. */
        if (s->dead != dead)
            return barrier_failed(what, gone);
    }
    s->generation++;
    s->entered = true;
    s->put = s->given = s->sent = false;
    s->distance = 1;
    return 0;
}

/* Continue a barrier that was entered, until its end or the deadline. */
static int barrier_go_on(struct weft_node *w, struct sync *s, struct fab_patience *p, const char *what, const struct sync_visit *visit)
{
    bool failed = false;
    int rc = 0;
    if (visit && !s->given) {
        rc = visit->before(w, p, visit->arg);
        s->given = rc == 0;
    }
    if (!rc)
        rc = rounds(w, s, p, what, &failed);
    if (!rc && visit && !failed) {
        rc = visit->after(w, p, visit->arg);
        failed = rc == -ECONNRESET;
    }
    s->entered = rc != 0 && !failed;
    return failed ? barrier_fail(w, s, p, what) : rc;
}

int sync_meet(struct weft_node *w, int64_t timeout_ns, const struct sync_visit *visit)
{
    struct sync *s = w->sync;
    const char *what = visit ? "exchange" : "barrier";
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_barrier() and weft_exchange() must not be called from a handler: call them in another thread");
    if (w->rank >= w->founders)
        return base_fail(-EOPNOTSUPP,
                         "node %u joined a running cluster: barriers and exchanges are only for the nodes that started together (0 to %u); "
                         "use counters or messages instead",
                         w->rank, w->founders - 1);
    if (pthread_mutex_trylock(&s->barrier_lock))
        return base_fail(-EBUSY, "another thread of this node is in a barrier or an exchange: let only one thread make these calls");
    struct fab_patience p;
    fab_patience_begin(&p, w, FAB_KNOWN, timeout_ns);
    int64_t limit = p.lasting ? 0 : fab_limit(p.deadline);
    /* A barrier that an earlier call has entered keeps its set, even if nodes are gone since then: these nodes may have arrived before. */
    int rc = s->entered ? 0 : barrier_enter(w, s, what);
    while (rc == 0 && s->untold) {
        rc = tell_newest(w, s);
        rc = rc == -ETIMEDOUT && p.lasting ? 0 : rc;
    }
    if (rc == 0) {
        say_come(w, s, s->generation);
        rc = barrier_go_on(w, s, &p, what, visit);
        /* After a time-out, other nodes wait for signals that this node sends only in its next call. So this node counts as not arrived. */
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
