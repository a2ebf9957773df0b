/* SPDX-License-Identifier: MIT
 *
 * Barrier, exchange and lock when events come late: nodes see others leave in different orders, or a stopped node executes an operation
 * after the call that began it has returned.
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
#include <sys/socket.h>
#include <sys/wait.h>

#include "cluster_test.h"
#include "fabric/fabric.h"
#include "fabric/transports.h"
#include "sync/sync.h"
#if defined(__linux__)
#include "fabric/rc/rc.h"
#endif

/* --- two nodes leave --- */

/* Leaves, but only one node sees that now; the others see it later. */
static void leave_towards(weft_node *w, uint32_t node)
{
    fab_side_byte(&w->links[node], 'b');
    CHECK(shutdown(w->links[node].side_fd, SHUT_WR) == 0);
}

/* Nodes 1 and 3 leave. Node 0 sees node 3 leave first, node 2 sees node 1 leave first. So each of them begins a barrier with a set of three
 * nodes that the other never has. */
struct leaving {
    _Atomic uint32_t here, begun;
    bool exchange;
};

static int meet_again(weft_node *w, bool exchange)
{
    uint64_t all[NODES_MAX];
    int rc;
    do
        rc = exchange ? weft_exchange(w, &(uint64_t){7}, 1, all, NULL, 100 * WEFT_SECOND) : weft_barrier(w, 100 * WEFT_SECOND);
    while (rc == -ECONNRESET);
    return rc;
}

static void leave_in_two_orders(weft_node *w, void *arg)
{
    struct leaving *l = arg;
    uint32_t me = weft_rank(w);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(&l->here, 4);
    if (me % 2 == 1) {
        OK(weft_flush(w, me == 1 ? 2 : 0, WEFT_TIMEOUT_DEFAULT));
        leave_towards(w, me == 1 ? 2 : 0);
        wait_for(&l->begun, 2);
        usleep(100000); /* by now both wait for each other */
        return;
    }
    while (weft_alive(w, me == 0 ? 3 : 1))
        usleep(1000);
    CHECK(weft_alive(w, me == 0 ? 1 : 3));
    atomic_fetch_add(&l->begun, 1);
    OK(meet_again(w, l->exchange));
    CHECK(weft_alive_count(w) == 2);
    OK(meet_again(w, l->exchange));
}

static void test_leave_in_two_orders(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct leaving *l = shared_words(4096);
        l->exchange = i;
        assert_int_equal(nodes_failed_with(4, leave_in_two_orders, l, (const char *const[]){"WEFT_LOG=error", NULL}), 0);
    }
}

/* --- the home of a lock is stopped --- */

/* So long that the test fails if a call waits for the deadline instead of its own time-out. */
static const char *const NO_DEADLINE[] = {"WEFT_DEADLINE=1000s", NULL};
#define LITTLE (50 * WEFT_MS)

struct stopped {
    _Atomic uint32_t here, done, asked, through;
    _Atomic int pid; /* the process of node 1, the home */
};

static uint64_t read_word(weft_node *w, weft_gaddr word)
{
    uint64_t value = 0;
    OK(weft_get_blocking(w, &value, word, 8));
    return value;
}

static void wait_until_free(weft_node *w, weft_gaddr word)
{
    while (read_word(w, word) != 0)
        usleep(1000);
}

static weft_gaddr begin_stopped(weft_node *w, struct stopped *s)
{
    weft_gaddr area = symmetric_alloc(w, 64);
    if (weft_rank(w) == 1)
        s->pid = getpid();
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_lock(w, on_node(area, 1) + 8, WEFT_TIMEOUT_DEFAULT, NULL)); /* all pairs of nodes have connected */
    OK(weft_unlock(w, on_node(area, 1) + 8));
    meet(&s->here, weft_size(w));
    return on_node(area, 1);
}

/* The home executes the swap of weft_lock() after the call has returned -ETIMEDOUT: the swap is undone. */
static void lock_late(weft_node *w, void *arg)
{
    struct stopped *s = arg;
    weft_gaddr word = begin_stopped(w, s);
    if (weft_rank(w) == 0) {
        bool here = fab_at_once(w, word); /* if the word is reached without the home's help, no swap is late */
        for (int i = 0; i < 2; i++) {
            stop_asleep(s->pid);
            int rc = weft_lock(w, word, i ? 0 : LITTLE, NULL);
            CHECK(rc == (here ? 0 : -ETIMEDOUT));
            CHECK(weft_counter_wait(w, word + 16, 1, 0) == -ETIMEDOUT);
            CHECK(weft_unlock(w, word) == (here ? 0 : -EPERM));
            CHECK(kill(s->pid, SIGCONT) == 0);
            wait_until_free(w, word);
            /* The lock may be free because the swap was not executed yet. The next call's swap is executed after it. */
            OK(weft_lock(w, word, 100 * WEFT_SECOND, NULL));
            OK(weft_unlock(w, word));
        }
        s->through = 1;
    } else if (weft_rank(w) == 2) {
        wait_for(&s->through, 1);
        OK(weft_lock(w, word, 100 * WEFT_SECOND, NULL));
        OK(weft_unlock(w, word));
    }
    meet(&s->done, weft_size(w));
}

/* The next call continues the request that the first has begun. */
static void lock_again(weft_node *w, void *arg)
{
    struct stopped *s = arg;
    weft_gaddr word = begin_stopped(w, s);
    if (weft_rank(w) == 0) {
        bool here = fab_at_once(w, word);
        stop_asleep(s->pid);
        int rc = -ETIMEDOUT;
        for (int i = 0; i < 3 && rc == -ETIMEDOUT; i++)
            rc = weft_lock(w, word, LITTLE, NULL);
        CHECK(rc == (here ? 0 : -ETIMEDOUT));
        CHECK(kill(s->pid, SIGCONT) == 0);
        if (!here)
            OK(weft_lock(w, word, 100 * WEFT_SECOND, NULL));
        CHECK(read_word(w, word) != 0);
        OK(weft_unlock(w, word));
        wait_until_free(w, word);
    }
    meet(&s->done, weft_size(w));
}

/* A handler that is called before the lock's own. src/sync/lock.h describes the messages. */
enum { LOCK_REQUEST = 1, LOCK_GRANT, LOCK_RELEASE };
struct lock_message {
    uint64_t word, ticket;
    uint32_t verb, flag;
};
static struct {
    weft_handler_fn fn;
    void *arg;
    uint32_t hold_verb; /* messages of this kind are held until `hold` is 1 */
    _Atomic uint32_t *hold, *requests;
} before;

static void stand_before(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                         void *arg)
{
    struct lock_message m;
    (void)arg;
    memcpy(&m, header, sizeof m);
    if (m.verb == before.hold_verb)
        wait_for(before.hold, 1);
    before.fn(w, from, header, header_len, payload, payload_len, before.arg);
    if (m.verb == LOCK_REQUEST && before.requests)
        atomic_fetch_add(before.requests, 1);
}

static void watch_lock(weft_node *w, uint32_t hold_verb, _Atomic uint32_t *hold, _Atomic uint32_t *requests)
{
    before.fn = w->handlers[SYNC_HANDLER_LOCK].fn;
    before.arg = w->handlers[SYNC_HANDLER_LOCK].arg;
    before.hold_verb = hold_verb;
    before.hold = hold;
    before.requests = requests;
    OK(fab_handle(w, SYNC_HANDLER_LOCK, stand_before, NULL));
}

/* The lock is released while its home is stopped, without a waiter, and while node 2 waits. */
static void unlock_late(weft_node *w, void *arg)
{
    struct stopped *s = arg;
    weft_gaddr word = begin_stopped(w, s);
    if (weft_rank(w) == 1)
        watch_lock(w, 0, NULL, &s->asked);
    meet(&s->here, 2 * weft_size(w));
    if (weft_rank(w) == 0) {
        for (uint32_t i = 0; i < 2; i++) {
            OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
            s->through = i + 1;
            wait_for(&s->asked, i);
            w->options.deadline_ns = LITTLE;
            stop_asleep(s->pid);
            OK(weft_unlock(w, word));
            CHECK(weft_unlock(w, word) == -EPERM);
            CHECK(kill(s->pid, SIGCONT) == 0);
            w->options.deadline_ns = 1000 * WEFT_SECOND;
            wait_until_free(w, word);
        }
    } else if (weft_rank(w) == 2) {
        wait_for(&s->through, 2);
        OK(weft_lock(w, word, 100 * WEFT_SECOND, NULL));
        OK(weft_unlock(w, word));
    }
    meet(&s->done, weft_size(w));
}

/* The home grants the lock to node 0 and is stopped then: node 0's call succeeds. */
static void granted_and_stopped(weft_node *w, void *arg)
{
    struct stopped *s = arg;
    weft_gaddr word = begin_stopped(w, s);
    if (weft_rank(w) == 0)
        watch_lock(w, LOCK_GRANT, &s->through, NULL);
    if (weft_rank(w) == 1)
        watch_lock(w, 0, NULL, &s->asked);
    if (weft_rank(w) == 2)
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
    meet(&s->here, 2 * weft_size(w));
    if (weft_rank(w) == 0) {
        w->options.deadline_ns = 10 * LITTLE;
        OK(weft_lock(w, word, 100 * WEFT_SECOND, NULL));
        CHECK(kill(s->pid, SIGCONT) == 0);
        w->options.deadline_ns = 1000 * WEFT_SECOND;
        OK(weft_unlock(w, word));
    } else if (weft_rank(w) == 2) {
        wait_for(&s->asked, 1);
        OK(weft_unlock(w, word));
        while ((read_word(w, word) & 0xfffff) != 1) /* until the word names node 0 as holder */
            usleep(1000);
        stop_asleep(s->pid);
        s->through = 1;
    }
    meet(&s->done, weft_size(w));
}

static void with_stopped_home(node_fn fn)
{
    assert_int_equal(nodes_failed_with(3, fn, shared_words(4096), NO_DEADLINE), 0);
}

static void test_lock_late(void **state)
{
    (void)state;
    with_stopped_home(lock_late);
}

static void test_lock_again(void **state)
{
    (void)state;
    with_stopped_home(lock_again);
}

static void test_unlock_late(void **state)
{
    (void)state;
    with_stopped_home(unlock_late);
}

static void test_granted_and_stopped(void **state)
{
    (void)state;
    with_stopped_home(granted_and_stopped);
}

/* Without a time-out and a set WEFT_DEADLINE, weft_lock() waits as long as the home is alive, even while it is stopped. */
static void lock_lasts(weft_node *w, void *arg)
{
    struct stopped *s = arg;
    weft_gaddr word = begin_stopped(w, s);
    if (weft_rank(w) == 0) {
        stop_asleep(s->pid);
        s->through = 1;
        w->options.deadline_ns = LITTLE; /* the deadline of operations; waits for other nodes have none */
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
        wait_for(&s->through, 2);
        w->options.deadline_ns = 100 * WEFT_SECOND;
        OK(weft_unlock(w, word));
    } else if (weft_rank(w) == 2) {
        wait_for(&s->through, 1);
        usleep(500000);
        CHECK(kill(s->pid, SIGCONT) == 0);
        s->through = 2;
    }
    meet(&s->done, weft_size(w));
}

static void test_lock_lasts(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, lock_lasts, shared_words(4096)), 0);
}

/* A barrier ends at its time-out although there is no room to send its word to the stopped node. */
static void no_room(weft_node *w, void *arg)
{
    struct stopped *s = arg;
    uint64_t all[NODES_MAX];
    (void)begin_stopped(w, s);
    if (weft_rank(w) == 1)
        wait_for(&s->through, 1);
    if (weft_rank(w) == 0) {
        stop_asleep(s->pid);
        s->through = 1;
        w->options.deadline_ns = LITTLE;
        for (int i = 0; i < 200000 && fab_system_set(w, 1, sync_exchange_offset(2, 0) + 8, 0, false) == 0; i++)
            ;
        w->options.deadline_ns = 1000 * WEFT_SECOND;
        CHECK(weft_exchange(w, &(uint64_t){1}, 1, all, NULL, LITTLE) == -ETIMEDOUT);
        CHECK(weft_exchange(w, &(uint64_t){1}, 1, all, NULL, 0) == -ETIMEDOUT);
        CHECK(kill(s->pid, SIGCONT) == 0);
    }
    OK(weft_exchange(w, &(uint64_t){1 + weft_rank(w)}, 1, all, NULL, 100 * WEFT_SECOND));
    CHECK(all[0] == 1 && all[1] == 2);
    if (weft_rank(w) == 1)
        wait_for(&s->through, 2);
    if (weft_rank(w) == 0) {
        stop_asleep(s->pid);
        s->through = 2;
        w->options.deadline_ns = LITTLE;
        for (int i = 0; i < 200000 && fab_system_set(w, 1, sync_exchange_offset(2, 0) + 8, 0, false) == 0; i++)
            ;
        w->options.deadline_ns = 1000 * WEFT_SECOND;
        CHECK(weft_barrier(w, LITTLE) == -ETIMEDOUT);
        CHECK(weft_barrier(w, 0) == -ETIMEDOUT);
        CHECK(kill(s->pid, SIGCONT) == 0);
    }
    OK(weft_barrier(w, 100 * WEFT_SECOND));
}

static void test_no_room(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, no_room, shared_words(4096), NO_DEADLINE), 0);
}

/* Node 0 sees node 2 leave while node 1 is stopped in a barrier of all three. There is no room to send node 1 the word of node 0's next
 * barrier, without node 2. Node 1 must still get it later. */
static void no_room_for_news(weft_node *w, void *arg)
{
    struct stopped *s = arg;
    int rc;
    (void)begin_stopped(w, s);
    if (weft_rank(w) == 0) {
        wait_for(&s->through, 1);
        stop_asleep(s->pid);
        w->options.deadline_ns = LITTLE;
        for (int i = 0; i < 200000 && fab_system_set(w, 1, sync_exchange_offset(3, 0) + 8, 0, false) == 0; i++)
            ;
        w->options.deadline_ns = 1000 * WEFT_SECOND;
        s->asked = 1;
        while (weft_alive(w, 2))
            usleep(1000);
        do /* this node may just be handling that node 2 has left */
            rc = weft_barrier(w, 0);
        while (rc == -ECONNRESET);
        CHECK(rc == -ETIMEDOUT);
        CHECK(kill(s->pid, SIGCONT) == 0);
        s->asked = 2;
    } else if (weft_rank(w) == 2) {
        wait_for(&s->asked, 1);
        leave_towards(w, 0);
        wait_for(&s->asked, 2);
        leave_towards(w, 1);
        wait_for(&s->done, 2);
        return;
    } else {
        s->through = 1;
    }
    do
        rc = weft_barrier(w, patience_ns(20));
    while (rc == -ECONNRESET);
    OK(rc);
    meet(&s->done, 2);
}

static void test_no_room_for_news(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(3, no_room_for_news, shared_words(4096), NO_DEADLINE), 0);
}

/* --- a grant that comes after its call has timed out --- */

static int takes_nothing(struct weft_node *w, struct fab_link *l, uint32_t id, const void *header, size_t header_len, const void *payload,
                         size_t payload_len, weft_op *op)
{
    (void)w, (void)l, (void)id, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)op;
    return -ENOBUFS;
}

/* A late grant of a lock whose holder died arrives while no message to the home finds room: the lock is returned later, and the next holder
 * is still told of the death. */
/* Copies of the transports that never have room for a message; filled before nodes have threads. */
static const struct fab_transport *const transports[] = {&fab_shm, &fab_rc, &fab_tb, &fab_ofi};
#define TRANSPORTS (sizeof transports / sizeof transports[0])
static struct fab_transport full_transports[TRANSPORTS];

static const struct fab_transport *full_one(const struct fab_transport *of)
{
    for (size_t i = 0; i < TRANSPORTS; i++)
        if (transports[i] == of)
            return &full_transports[i];
    return NULL;
}

/* The progress thread may use either table meanwhile, which is correct: so the thread sanitizer must not report it. */
static __attribute__((no_sanitize("thread"))) void use_transport(struct fab_link *l, const struct fab_transport *t)
{
    CHECK(t);
    l->transport = t;
}

static void inherited_late(weft_node *w, void *arg)
{
    (void)arg;
    weft_gaddr word = on_node(symmetric_alloc(w, 64), 1);
    if (weft_rank(w) == 0) {
        struct fab_link *l = &w->links[1];
        const struct fab_transport *transport = l->transport;
        struct lock_message m = {.word = word, .ticket = 1u << 20, .verb = LOCK_GRANT, .flag = 1};
        uint64_t value = 1 | m.ticket << 20; /* a claim of this node for which no call waits */
        bool inherited = false;
        OK(weft_put_blocking(w, word, &value, sizeof value));
        use_transport(l, full_one(transport));
        w->handlers[SYNC_HANDLER_LOCK].fn(w, 1, &m, sizeof m, NULL, 0, w->handlers[SYNC_HANDLER_LOCK].arg);
        use_transport(l, transport);
        while (read_word(w, word) == value)
            usleep(1000);
        OK(weft_lock(w, word, 100 * WEFT_SECOND, &inherited));
        CHECK(inherited);
        OK(weft_unlock(w, word));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_inherited_late(void **state)
{
    (void)state;
    for (size_t i = 0; i < TRANSPORTS; i++) {
        full_transports[i] = *transports[i];
        full_transports[i].send = takes_nothing;
    }
    assert_int_equal(nodes_failed(2, inherited_late, NULL), 0);
}

/* --- a lock that is released twice, and in a handler --- */

struct twice {
    weft_node *w;
    weft_gaddr word;
    _Atomic uint32_t here, asked, again, has, go;
};

static void *second_thread(void *arg)
{
    struct twice *t = arg;
    OK(weft_lock(t->w, t->word, 100 * WEFT_SECOND, NULL));
    atomic_store(&t->has, 1);
    wait_for(&t->go, 1);
    OK(weft_unlock(t->w, t->word));
    return NULL;
}

/* The second release comes before the home has handled the first, which grants the lock to another thread of the same node. The second must
 * not release that thread's lock. */
static void unlock_twice(weft_node *w, void *arg)
{
    struct twice *t = arg;
    weft_gaddr word = on_node(symmetric_alloc(w, 64), 0);
    if (weft_rank(w) == 0)
        watch_lock(w, LOCK_RELEASE, &t->again, &t->asked);
    meet(&t->here, 2);
    if (weft_rank(w) == 1) {
        pthread_t thread;
        t->w = w;
        t->word = word;
        OK(weft_lock(w, word, WEFT_TIMEOUT_DEFAULT, NULL));
        CHECK(pthread_create(&thread, NULL, second_thread, t) == 0);
        wait_for(&t->asked, 1);
        OK(weft_unlock(w, word));
        CHECK(weft_unlock(w, word) == -EPERM);
        atomic_store(&t->again, 1);
        wait_for(&t->has, 1);
        CHECK(weft_lock(w, word, 0, NULL) == -ETIMEDOUT);
        atomic_store(&t->go, 1);
        pthread_join(thread, NULL);
        CHECK(weft_unlock(w, word) == -EPERM);
    } else {
        while (!t->again) /* until the handler has run; this node makes progress meanwhile */
            weft_progress(w);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_unlock_twice(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, unlock_twice, shared_words(4096)), 0);
}

static weft_gaddr handled_word;
static _Atomic int handled_lock, handled_unlock;
static _Atomic uint32_t handled;

static void lock_in_handler(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                            void *arg)
{
    (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)arg;
    handled_lock = weft_lock(w, handled_word, 0, NULL);
    handled_unlock = weft_unlock(w, handled_word);
    atomic_store(&handled, 1);
}

static void in_handler(weft_node *w, void *arg)
{
    (void)arg;
    weft_gaddr area = symmetric_alloc(w, 64);
    OK(weft_handle(w, 0, lock_in_handler, NULL));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t home = 0; home < 2 && weft_rank(w) == 0; home++) {
        handled_word = on_node(area, home);
        OK(weft_lock(w, handled_word, WEFT_TIMEOUT_DEFAULT, NULL));
        atomic_store(&handled, 0);
        OK(weft_send(w, 0, 0, NULL, 0, NULL, 0, NULL));
        wait_for(&handled, 1);
        CHECK(handled_lock == -EDEADLK && handled_unlock == -EDEADLK);
        CHECK(read_word(w, handled_word) != 0);
        OK(weft_unlock(w, handled_word));
        CHECK(read_word(w, handled_word) == 0);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_in_handler(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, in_handler, NULL), 0);
}

/* --- the link breaks during a swap (rc, atomics by the device), so that it is unknown whether the swap was executed --- */

#if defined(__linux__)
struct broken {
    weft_node *w;
    struct rc_link *l;
    uint64_t breaks;
    uint32_t right;
};

/* A thread that posts may use either key meanwhile, which is correct: so the thread sanitizer must not report it. */
static __attribute__((no_sanitize("thread"))) void use_key(struct rc_link *l, uint32_t key)
{
    l->peer_keys[0] = key;
}

/* The peer's device refuses a request with a wrong key, and the queue pair breaks. This thread restores the key. */
static void *mend(void *arg)
{
    struct broken *b = arg;
    while (stats(b->w, 1).breaks == b->breaks)
        usleep(100);
    use_key(b->l, b->right);
    return NULL;
}

static pthread_t break_next(weft_node *w, struct broken *b)
{
    pthread_t thread;
    *b = (struct broken){.w = w, .l = w->links[1].impl, .breaks = stats(w, 1).breaks};
    b->right = b->l->peer_keys[0];
    use_key(b->l, b->right ^ 0x5a5a5a);
    CHECK(pthread_create(&thread, NULL, mend, b) == 0);
    return thread;
}

static void link_breaks(weft_node *w, void *arg)
{
    struct stopped *s = arg;
    weft_gaddr word = begin_stopped(w, s);
    if (weft_rank(w) == 0) {
        struct broken b;
        for (int i = 0; i < 3; i++) {
            pthread_t thread = break_next(w, &b);
            OK(weft_lock(w, word, 100 * WEFT_SECOND, NULL));
            pthread_join(thread, NULL);
            CHECK(read_word(w, word) != 0);
            thread = break_next(w, &b);
            OK(weft_unlock(w, word));
            CHECK(weft_unlock(w, word) == -EPERM);
            pthread_join(thread, NULL);
            wait_until_free(w, word);
        }
        CHECK(stats(w, 1).breaks >= 6 && stats(w, 1).native_atomics > 0);
    }
    meet(&s->done, weft_size(w));
}

static void test_link_breaks(void **state)
{
    (void)state;
    static const char *const settings[] = {"WEFT_LOG=error", "WEFT_RECONNECT=40s", "WEFT_DEADLINE=100s", NULL};
    assert_int_equal(nodes_failed_with(2, link_breaks, shared_words(4096), settings), 0);
}
#endif

/* Argument "links": run only the tests that break links. */
int main(int argc, char **argv)
{
    (void)argv;
#if defined(__linux__)
    if (argc > 1) {
        const struct CMUnitTest links[] = {cmocka_unit_test(test_link_breaks)};
        return cmocka_run_group_tests(links, NULL, NULL);
    }
#endif
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leave_in_two_orders),
        cmocka_unit_test(test_lock_late),
        cmocka_unit_test(test_lock_again),
        cmocka_unit_test(test_unlock_late),
        cmocka_unit_test(test_granted_and_stopped),
        cmocka_unit_test(test_lock_lasts),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_no_room_for_news),
        cmocka_unit_test(test_inherited_late),
        cmocka_unit_test(test_unlock_twice),
        cmocka_unit_test(test_in_handler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
