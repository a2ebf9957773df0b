/* SPDX-License-Identifier: MIT
 *
 * Barrier, exchange, lock and counter between processes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "cluster_test.h"
#include "sync/sync.h"

/* No node leaves a barrier before all nodes have entered it. */
static void barrier(weft_node *w, void *arg)
{
    _Atomic uint64_t *arrived = arg;
    uint32_t n = weft_size(w);
    for (uint64_t round = 1; round <= repeats(3000); round++) {
        atomic_fetch_add(arrived, 1);
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        CHECK(atomic_load(arrived) >= round * n);
        if (round % 500 == weft_rank(w))
            usleep(2000);
    }
    CHECK(weft_barrier(w, 0) == 0 || weft_size(w) > 1);
}

static void test_barrier(void **state)
{
    (void)state;
    for (int n = 1; n <= 9; n += n < 5 ? 1 : 4) {
        _Atomic uint64_t *arrived = shared_words(4096);
        /* some nodes may get -ETIMEDOUT from the last barrier with time-out 0; barrier() accepts that */
        assert_int_equal(nodes_failed(n, barrier, (void *)arrived), 0);
    }
}

/* A node that leaves after a barrier does not disturb nodes that are still in it. */
static void leave_early(weft_node *w, void *arg)
{
    (void)arg;
    for (int i = 0; i < 20; i++)
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) % 2 == 0)
        return;
    for (int i = 0; i < 20; i++) {
        int rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT);
        /* if a node leaves while others are in a barrier with it, that barrier fails; it never hangs */
        CHECK(rc == 0 || rc == -ECONNRESET);
    }
}

static void test_leave(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        assert_int_equal(nodes_failed(3, leave_early, NULL), 0);
}

/* Node 4 is slow: in a barrier of eight it has written all its words, but has not read node 0's last word. Meanwhile the other six nodes
 * have left, and node 0 is in its next barrier, of two. The words of that barrier must not overwrite the unread word. To be that slow, node
 * 4 writes the words of a barrier itself: see src/sync/barrier.c. */
static void leave_slow(weft_node *w, void *arg)
{
    enum { SLOW = 4, WORD = 8 % 6 };
    _Atomic uint32_t *end = arg;
    if (weft_rank(w) != SLOW) {
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        for (uint32_t i = 1; i < 8 && weft_rank(w) == 0; i++)
            while (i != SLOW && weft_alive(w, i))
                usleep(1000);
        if (weft_rank(w) == 0) {
            CHECK(weft_barrier(w, 50000000) == -ETIMEDOUT);
            atomic_store(end, 1);
        }
        return;
    }
    const _Atomic uint64_t *lines[8];
    for (uint32_t i = 0; i < 8; i++)
        lines[i] = (const void *)(w->pool_base + sync_barrier_offset(i));
    uint64_t word = 0;
    for (uint32_t distance = 1; distance < 8; distance *= 2) {
        while (!(word = atomic_load(&lines[3][WORD]))) /* the first word that arrives has the set and the generation of this barrier */
            usleep(100);
        OK(fab_system_set(w, (SLOW + distance) % 8, sync_barrier_offset(SLOW) + 8 * WORD, word, true));
        while (atomic_load(&lines[SLOW - distance][WORD]) != word)
            usleep(100);
    }
    wait_for(end, 1);
    CHECK(atomic_load(&lines[0][WORD]) == word);
}

static void test_leave_slow(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(8, leave_slow, shared_words(64)), 0);
}

/* Node 0 notices the death of node 2, and enters a barrier of the remaining nodes. Node 1 learns of the death from that barrier before it
 * notices the death itself, because its progress thread is held in a handler. Still only one of its barriers fails. */
static void hold(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    _Atomic int *at = arg;
    for (*at = 1; *at < 2; usleep(1000))
        ;
    /* Wait until node 0 is in its next barrier, of two: then it writes a word here, see src/sync/barrier.c. */
    const _Atomic uint64_t *line = (const void *)(w->pool_base + sync_barrier_offset(0));
    while (!line[2])
        usleep(1000);
}

static void hear_late(weft_node *w, void *arg)
{
    _Atomic int *at = arg; /* 1: node 1 is held; 2: node 0 has noticed the death */
    if (weft_rank(w) == 1)
        OK(weft_handle(w, 0, hold, arg));
    if (weft_rank(w) == 0)
        OK(weft_send(w, 1, 0, NULL, 0, NULL, 0, NULL));
    while (*at < 1)
        usleep(1000);
    if (weft_rank(w) == 2)
        raise(SIGKILL);
    while (weft_rank(w) == 0 && weft_alive(w, 2))
        usleep(1000);
    if (weft_rank(w) == 0)
        *at = 2;
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    CHECK(!weft_alive(w, 2));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_hear_late(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(3, hear_late, shared_words(4096), NULL, status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
    assert_true(WIFSIGNALED(status[2]));
}

/* All nodes get the words of all, many times. */
static void exchange(weft_node *w, void *arg)
{
    uint32_t me = weft_rank(w), n = weft_size(w);
    uint64_t all[NODES_MAX * WEFT_EXCHANGE_WORDS], mine[WEFT_EXCHANGE_WORDS];
    bool gave[NODES_MAX];
    for (uint64_t round = 0; round < repeats(2000); round++) {
        uint32_t words = 1 + (uint32_t)(round % WEFT_EXCHANGE_WORDS);
        for (uint32_t k = 0; k < words; k++)
            mine[k] = round * 100 + me * 10 + k;
        OK(weft_exchange(w, mine, words, all, gave, WEFT_TIMEOUT_DEFAULT));
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < words; k++)
                CHECK(gave[i] && all[i * words + k] == round * 100 + i * 10 + k);
    }
    CHECK(weft_exchange(w, mine, 0, all, NULL, WEFT_TIMEOUT_DEFAULT) == -EINVAL);
    CHECK(weft_exchange(w, mine, WEFT_EXCHANGE_WORDS + 1, all, NULL, WEFT_TIMEOUT_DEFAULT) == -EINVAL);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(arg, n);
    if (me == 2)
        raise(SIGKILL);
    int rc;
    do
        rc = weft_exchange(w, &(uint64_t){7 + me}, 1, all, gave, WEFT_TIMEOUT_DEFAULT);
    while (rc == -ECONNRESET || (rc == 0 && n > 2 && weft_alive(w, 2)));
    OK(rc);
    for (uint32_t i = 0; i < n; i++)
        CHECK(gave[i] == (i != 2) && all[i] == (i == 2 ? 0 : 7 + i));
}

static void test_exchange(void **state)
{
    (void)state;
    int status[NODES_MAX];
    for (int n = 1; n <= 4; n++) {
        nodes_run(n, exchange, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}, status);
        for (int i = 0; i < n; i++)
            if (i != 2)
                assert_int_equal(status[i], 0);
    }
}

/* The lock's messages and its word: see src/sync/lock.c. */
enum { LOCK_REQUEST = 1, LOCK_REFUSE = 5 };
#define LOCK_ORPHAN (UINT64_C(1) << 62)
struct lock_message {
    uint64_t word, ticket;
    uint32_t verb, inherited;
};

struct guarded {
    uint64_t inside, count; /* changed without atomics, under the lock */
};

static void lock(weft_node *w, void *arg)
{
    volatile struct guarded *g = arg;
    weft_gaddr word = on_node(symmetric_alloc(w, 64), 1 % weft_size(w));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t i = 0; i < repeats(2000); i++) {
        bool inherited = true;
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, &inherited));
        CHECK(!inherited && g->inside == 0);
        g->inside = 1;
        g->count = g->count + 1;
        g->inside = 0;
        OK(weft_unlock(w, word));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    CHECK(g->count == repeats(2000) * weft_size(w));
    CHECK(weft_unlock(w, word) == -EPERM);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_lock(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++)
        assert_int_equal(nodes_failed(n, lock, shared_words(4096)), 0);
}

/* A handler at the home that calls the lock's own handler and counts the requests that wait for the lock. */
static struct {
    weft_handler_fn fn;
    void *arg;
    _Atomic uint32_t *count;
} in_line;

static void count_requests(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                           void *arg)
{
    const struct lock_message *m = header;
    (void)arg;
    in_line.fn(w, from, header, header_len, payload, payload_len, in_line.arg);
    if (header_len == sizeof *m && m->verb == LOCK_REQUEST)
        atomic_fetch_add(in_line.count, 1);
}

static void watch_requests(weft_node *w, _Atomic uint32_t *count)
{
    in_line.fn = w->handlers[SYNC_HANDLER_LOCK].fn;
    in_line.arg = w->handlers[SYNC_HANDLER_LOCK].arg;
    in_line.count = count;
    OK(fab_handle(w, SYNC_HANDLER_LOCK, count_requests, NULL));
}

/* Fairness: while all nodes want the lock all the time, they get it in the order of their requests. */
struct turns {
    _Atomic uint32_t asked, count;
    uint32_t who[NODES_MAX];
};

static void fair(weft_node *w, void *arg)
{
    struct turns *turns = arg;
    uint32_t me = weft_rank(w), n = weft_size(w);
    weft_gaddr word = on_node(symmetric_alloc(w, 64), 0);
    if (me == 0) {
        watch_requests(w, &turns->asked);
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    wait_for(&turns->asked, me > 0 ? me - 1 : n - 1);
    if (me > 0) {
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
        turns->who[turns->count++] = me;
    }
    OK(weft_unlock(w, word));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 0)
        for (uint32_t i = 1; i < n; i++)
            CHECK(turns->who[i - 1] == i);
}

static void test_lock_fair(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(5, fair, shared_words(4096)), 0);
}

static void lock_timeout(weft_node *w, void *arg)
{
    (void)arg;
    weft_gaddr word = on_node(symmetric_alloc(w, 64), 0);
    if (weft_rank(w) == 1)
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) != 1) {
        for (int i = 0; i < 5; i++)
            CHECK(weft_lock(w, word, 5 * WEFT_MS, NULL) == -ETIMEDOUT);
        CHECK(weft_unlock(w, word) == -EPERM);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 1)
        OK(weft_unlock(w, word));
    /* requests that have timed out are not served: the lock is free for the next request */
    OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
    OK(weft_unlock(w, word));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_lock_timeout(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, lock_timeout, NULL), 0);
}

/* The home has no memory for a waiter and refuses it by this message: the waiter's call fails, and other nodes are not affected. */
static void lock_refused(weft_node *w, void *arg)
{
    _Atomic uint32_t *asked = arg;
    weft_gaddr word = on_node(symmetric_alloc(w, 64), 0);
    if (weft_rank(w) == 0) {
        watch_requests(w, asked);
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0) {
        wait_for(asked, 1);
        struct lock_message refusal = {.word = word, .ticket = 1, .verb = LOCK_REFUSE};
        OK(fab_send(w, 1, SYNC_HANDLER_LOCK, &refusal, sizeof refusal, NULL, 0, NULL));
    } else {
        CHECK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL) == -ENOMEM &&
              strstr(weft_error(), "node 0, which has the lock in its pool, has no memory"));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0)
        OK(weft_unlock(w, word));
    OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
    OK(weft_unlock(w, word));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_lock_refused(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, lock_refused, shared_words(4096)), 0);
}

/* The holder of a lock dies, while others wait for the lock and while none does. */
struct inheritance {
    _Atomic uint32_t here, asked;
    bool waiters;
};

static void lock_inherit(weft_node *w, void *arg)
{
    struct inheritance *i = arg;
    const bool waiters = i->waiters;
    weft_gaddr word = on_node(symmetric_alloc(w, 64), 0);
    bool inherited = false;
    if (weft_rank(w) == 0)
        watch_requests(w, &i->asked);
    if (weft_rank(w) == 2)
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(&i->here, weft_size(w));
    if (weft_rank(w) == 2) {
        wait_for(&i->asked, waiters ? weft_size(w) - 1 : 0);
        raise(SIGKILL);
    }
    if (!waiters)
        while (weft_alive(w, 2))
            usleep(1000);
    OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, &inherited));
    weft_gaddr heirs = word + 8;
    if (inherited)
        OK(weft_fetch_add_blocking(w, heirs, 1, NULL));
    OK(weft_unlock(w, word));
    int rc;
    while ((rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT)) == -ECONNRESET)
        ;
    OK(rc);
    uint64_t n;
    OK(weft_get_blocking(w, &n, heirs, 8));
    CHECK(n == 1); /* exactly one node was told of the death */
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_lock_inherit(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct inheritance *shared = shared_words(4096);
        int status[NODES_MAX];
        shared->waiters = i;
        nodes_run(4, lock_inherit, shared, (const char *const[]){"WEFT_LOG=error", NULL}, status);
        for (int k = 0; k < 4; k++)
            if (k != 2)
                assert_int_equal(status[k], 0);
    }
}

/* The holder dies, and the next waiter no longer wants the lock: the waiter after it is still told of the death. Node 2 sends the message
 * of weft_lock() and does not wait for the answer, as if its call had timed out. */
static void lock_heir_gone(weft_node *w, void *arg)
{
    struct inheritance *i = arg;
    weft_gaddr word = on_node(symmetric_alloc(w, 64), 0);
    if (weft_rank(w) == 0)
        watch_requests(w, &i->asked);
    if (weft_rank(w) == 1)
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 2) {
        struct lock_message request = {.word = word, .ticket = 999, .verb = LOCK_REQUEST};
        OK(fab_send(w, 0, SYNC_HANDLER_LOCK, &request, sizeof request, NULL, 0, NULL));
        OK(weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT));
    }
    meet(&i->here, weft_size(w));
    wait_for(&i->asked, 1);
    if (weft_rank(w) == 1)
        raise(SIGKILL);
    while (weft_alive(w, 1))
        usleep(1000);
    if (weft_rank(w) == 3) {
        uint64_t value = 0;
        do /* until the lock was granted to node 2 and has been returned */
            OK(weft_get_blocking(w, &value, word, 8));
        while (value != LOCK_ORPHAN);
        bool inherited = false;
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, &inherited));
        CHECK(inherited);
        OK(weft_unlock(w, word));
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, &inherited));
        CHECK(!inherited);
        OK(weft_unlock(w, word));
    }
    int rc;
    while ((rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT)) == -ECONNRESET)
        ;
    OK(rc);
}

static void test_lock_heir_gone(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(4, lock_heir_gone, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}, status);
    for (int k = 0; k < 4; k++)
        if (k != 1)
            assert_int_equal(status[k], 0);
}

/* The lock also excludes threads of one node from each other. */
static struct {
    weft_node *w;
    weft_gaddr word;
    uint64_t inside, count;
} within;

static void *lock_thread(void *arg)
{
    (void)arg;
    for (uint32_t i = 0; i < repeats(500); i++) {
        OK(weft_lock(within.w, within.word, WEFT_TIMEOUT_DEFAULT, NULL));
        CHECK(within.inside++ == 0);
        within.count++;
        within.inside--;
        OK(weft_unlock(within.w, within.word));
    }
    return NULL;
}

static void lock_threads(weft_node *w, void *arg)
{
    (void)arg;
    pthread_t t[3];
    within.w = w;
    within.word = on_node(symmetric_alloc(w, 64), 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&t[i], NULL, lock_thread, NULL) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    CHECK(within.count == 3 * repeats(500));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_lock_threads(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, lock_threads, NULL), 0);
}

static void counter(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t me = weft_rank(w), n = weft_size(w);
    weft_gaddr word = on_node(symmetric_alloc(w, 64), 0);
    CHECK(weft_counter_wait(w, word, 1, 20 * WEFT_MS) == -ETIMEDOUT);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t i = 0; i < repeats(1000); i++)
        OK(weft_counter_add(w, word, 1, NULL));
    OK(weft_counter_wait(w, word, repeats(1000) * n, WEFT_TIMEOUT_DEFAULT));
    uint64_t v;
    OK(weft_counter_read(w, word, &v));
    CHECK(v == repeats(1000) * n);
    (void)me;
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_counter(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, counter, NULL), 0);
}

/* If a link broke under operations of the program, the program's next flush must report that. An exchange must not clear that report, not
 * even for a moment, because another thread may flush meanwhile. */
struct watched {
    _Atomic bool *unsure;
    _Atomic bool ends, missed;
    _Atomic uint32_t round; /* 0: `unsure` may change now */
};

static void *watch_unsure(void *arg)
{
    struct watched *u = arg;
    while (!atomic_load(&u->ends)) {
        uint32_t round = atomic_load(&u->round);
        if (round && !atomic_load(u->unsure) && atomic_load(&u->round) == round)
            atomic_store(&u->missed, true);
    }
    return NULL;
}

static void node_unsure(weft_node *w, void *arg)
{
    uint32_t other = 1 - weft_rank(w);
    uint64_t mine = weft_rank(w), all[2];
    struct watched u = {.unsure = &w->links[other].unsure};
    pthread_t thread;
    (void)arg;
    CHECK(pthread_create(&thread, NULL, watch_unsure, &u) == 0);
    for (uint32_t i = 1; i <= repeats(1000); i++) {
        atomic_store(u.unsure, true);
        atomic_store(&u.round, i);
        mine += 2;
        OK(weft_exchange(w, &mine, 1, all, NULL, WEFT_TIMEOUT_DEFAULT));
        CHECK(all[other] == mine - weft_rank(w) + other);
        atomic_store(&u.round, 0);
        CHECK(weft_flush(w, other, WEFT_TIMEOUT_DEFAULT) == -ECONNABORTED);
        OK(weft_flush(w, other, WEFT_TIMEOUT_DEFAULT));
    }
    atomic_store(&u.ends, true);
    pthread_join(thread, NULL);
    CHECK(!atomic_load(&u.missed));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_unsure(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, node_unsure, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barrier),        cmocka_unit_test(test_leave),        cmocka_unit_test(test_leave_slow),
        cmocka_unit_test(test_exchange),       cmocka_unit_test(test_lock),         cmocka_unit_test(test_lock_fair),
        cmocka_unit_test(test_lock_timeout),   cmocka_unit_test(test_lock_refused), cmocka_unit_test(test_lock_inherit),
        cmocka_unit_test(test_lock_heir_gone), cmocka_unit_test(test_lock_threads), cmocka_unit_test(test_counter),
        cmocka_unit_test(test_hear_late),      cmocka_unit_test(test_unsure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
