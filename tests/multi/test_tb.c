/* SPDX-License-Identifier: MIT
 *
 * Properties of the tb transport only, over an emulated device like a Mac's: protection domains that leak if a process does not free them,
 * and cables that are pulled. Run by over_softverbs.py on a mesh of tb5.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "cluster_test.h"
#include "fabric/tb/tb.h"

#define DOMAINS 11 /* protection domains of a tb5 device */

struct ending {
    int signal; /* 0: exit() without weft_close() */
};

/* Both nodes are ended during traffic. */
static void ended(weft_node *w, void *arg)
{
    const struct ending *e = arg;
    weft_gaddr area = symmetric_alloc(w, 1u << 20);
    uint32_t other = 1 - weft_rank(w);
    uint8_t *buffer = weft_ptr(w, on_node(area, weft_rank(w)), 1u << 20);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0}); /* some of the signals would write a core file */
    (void)weft_barrier(w, WEFT_TIMEOUT_DEFAULT);
    for (int i = 0; i < 20; i++) /* the other may have ended */
        (void)weft_put(w, on_node(area, other), buffer, 300000, NULL);
    if (!e->signal)
        exit(7);
    kill(getpid(), e->signal);
    for (;;)
        (void)weft_put_blocking(w, on_node(area, other), buffer, 64);
}

/* The number of domains that processes have leaked, on all devices. */
static uint32_t leaked(void)
{
    uint32_t n = 0;
    for (const char *at = softverbs("ls --all --json"); (at = strstr(at, "\"leaked_pd\": ")); at += 13)
        n += (uint32_t)strtoul(at + 13, NULL, 10);
    return n;
}

static void test_ended(void **state)
{
    (void)state;
    static const int how[] = {SIGTERM, SIGINT, SIGHUP, 0, SIGQUIT, SIGPIPE, SIGALRM, SIGUSR1, SIGXCPU};
    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++) {
        struct ending e = {how[i]};
        for (int round = 0; round < (i < 4 ? DOMAINS / 2 : 1); round++) {
            int status[NODES_MAX];
            nodes_run(2, ended, &e, (const char *const[]){"WEFT_LOG=error", NULL}, status);
            for (int node = 0; node < 2; node++)
                assert_true(how[i] ? WIFSIGNALED(status[node]) && WTERMSIG(status[node]) == how[i]
                                   : WIFEXITED(status[node]) && WEXITSTATUS(status[node]) == 7);
        }
    }
    assert_int_equal(leaked(), 0);
}

/* --- a signal while a node joins, or closes --- */

struct moment {
    char coord[64];
    bool joining;
    int64_t after; /* when the signal comes, counted from the beginning of weft_open() or weft_close(); negative: no signal, the time is
                      measured */
    _Atomic int64_t took;
    _Atomic uint32_t here;
};

static void *strike(void *arg)
{
    struct moment *m = arg;
    usleep((useconds_t)(m->after / 1000));
    kill(getpid(), SIGTERM);
    return NULL;
}

static void strike_later(struct moment *m)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, strike, m) == 0);
    CHECK(pthread_detach(thread) == 0); /* the process may end before the signal comes */
}

static int struck(int rank, void *arg)
{
    struct moment *m = arg;
    weft_node *w = NULL;
    (void)rank;
    setenv("WEFT_SIZE", "2", 1);
    setenv("WEFT_COORD", m->coord, 1);
    setenv("WEFT_POOL", "64M", 0);
    setenv("WEFT_LOG", "error", 1);
    int64_t begin = now_ns();
    if (m->joining && m->after >= 0)
        strike_later(m);
    int rc = weft_open(&w, NULL);
    if (m->joining)
        m->took = now_ns() - begin;
    while (m->joining && m->after >= 0)
        pause();
    OK(rc);
    meet(&m->here, 2); /* not a barrier, which would fail here if the other node has passed it and closed already */
    begin = now_ns();
    if (!m->joining && m->after >= 0)
        strike_later(m);
    (void)weft_close(w);
    if (!m->joining)
        m->took = now_ns() - begin;
    return 0;
}

/* Sends the signal at many moments of the time that joining or closing takes. */
static void struck_at(bool joining, uint32_t rounds)
{
    struct moment *m = shared_words(4096);
    int64_t took = 0;
    rounds =
        getenv("WEFT_GUARD") && rounds > 8 ? 8 : rounds; /* with a guard a few moments are enough: the guard sees the end at any time */
    for (uint32_t i = 0; i <= rounds; i++) {
        int status[NODES_MAX];
        snprintf(m->coord, sizeof m->coord, "unix:@weft-struck-%d-%d-%u", (int)getpid(), joining, i);
        m->joining = joining;
        m->here = 0;
        m->after = i ? took * (i - 1) / rounds * 5 / 4 : -1;
        processes_run(2, struck, m, status);
        for (int node = 0; node < 2; node++)
            assert_true((WIFSIGNALED(status[node]) && WTERMSIG(status[node]) == SIGTERM && i) || (status[node] == 0 && (!joining || !i)));
        took = i ? took : m->took;
    }
    assert_int_equal(leaked(), 0);
}

static void test_struck_joining(void **state)
{
    (void)state;
    struck_at(true, repeats(150));
}

static void test_struck_closing(void **state)
{
    (void)state;
    struck_at(false, repeats(100));
}

/* --- a child that has not called exec() --- */

/* A forked child ends by a signal or by itself, and its parent's node goes on. The thread sanitizer drops a signal that arrives at the end
 * of fork(), while the handler is removed. */
#define SIGNALS_GET_LOST BASE_THREAD_SANITIZER

static void signal_until_ended(pid_t child, int number, int *status)
{
    pid_t ended = 0;
    while (!ended) {
        CHECK(kill(child, number) == 0);
        ended = waitpid(child, status, SIGNALS_GET_LOST ? WNOHANG : 0);
        CHECK(ended == child || (SIGNALS_GET_LOST && ended == 0));
        usleep(ended ? 0 : 10000);
    }
}

static void forked(weft_node *w, void *arg)
{
    (void)arg;
    weft_gaddr area = symmetric_alloc(w, 4096);
    uint32_t other = 1 - weft_rank(w);
    uint8_t *mine = weft_ptr(w, on_node(area, weft_rank(w)), 4096);
    static const int how[] = {SIGTERM, SIGINT, SIGHUP, 0};
    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++) {
        int status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (!how[i])
                exit(7);
            alarm(60); /* so that it ends even if the signals end its parent instead */
            for (;;)
                usleep(1000);
        }
        if (how[i])
            signal_until_ended(child, how[i], &status);
        else
            CHECK(waitpid(child, &status, 0) == child);
        CHECK(how[i] ? WIFSIGNALED(status) && WTERMSIG(status) == how[i] : WIFEXITED(status) && WEXITSTATUS(status) == 7);
        OK(weft_put_blocking(w, on_node(area, other), mine, 4096));
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    }
}

static void test_forked(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, forked, NULL, (const char *const[]){"WEFT_LOG=error", NULL}), 0);
    assert_int_equal(leaked(), 0);
}

/* --- cables --- */

#define BIG  (1u << 20)
#define LONG patience_ns(60)

struct stage {
    _Atomic uint32_t pulled, plugged, over;
    _Atomic uint32_t refused, went;
};

/* All kinds of operations at once from node 0 to node 1. Received bytes are checked; messages arrive in order and once, adds are executed
 * once; failed operations have a reason. */
static void across(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    struct numbers heard = {0};
    OK(weft_handle(w, 1, on_number, &heard));
    weft_gaddr area = symmetric_alloc(w, 2 * BIG + 4096);
    uint8_t *mine = weft_ptr(w, on_node(area, weft_rank(w)), 2 * BIG + 4096);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0) {
        uint32_t messages = 0, added = 0, unsure = 0;
        for (uint32_t i = 1; !stage->over || i < 20; i++) {
            weft_op ops[3];
            uint64_t before, value = i;
            bool began[3];
            memset(mine, (int)(i & 0xff), BIG);
            int rc = weft_send(w, 1, 1, &messages, sizeof messages, NULL, 0, NULL);
            messages += rc == 0;
            CHECK(rc == 0 || rc == -ENETDOWN);
            rc = weft_put(w, on_node(area, 1), mine, BIG - i % 4096, &ops[0]);
            began[0] = rc == 0;
            CHECK(rc == 0 || rc == -ENETDOWN);
            rc = weft_fetch_add(w, on_node(area, 1) + 2 * BIG, 1, &before, &ops[1]);
            began[1] = rc == 0;
            CHECK(rc == 0 || rc == -ENETDOWN);
            rc = weft_get(w, mine + BIG, on_node(area, 1) + BIG, BIG, &ops[2]);
            began[2] = rc == 0;
            CHECK(rc == 0 || rc == -ENETDOWN);
            rc = began[0] ? weft_wait(w, &ops[0], LONG) : -ENETDOWN;
            CHECK(rc == 0 || (rc == -ENETDOWN && strstr(weft_error(), "no route leads")));
            (*(rc ? &stage->refused : &stage->went))++;
            bool there = rc == 0;
            rc = began[1] ? weft_wait(w, &ops[1], LONG) : -EAGAIN;
            CHECK(rc == 0 || rc == -ENETDOWN || rc == -EAGAIN);
            added += rc == 0;
            unsure += rc == -ENETDOWN;
            rc = began[2] ? weft_wait(w, &ops[2], LONG)
                          : -ENETDOWN; /* wait before the buffer is used again, because the get may arrive late */
            CHECK(rc == 0 || rc == -ENETDOWN);
            if (there) { /* the bytes at node 1 are those that were sent */
                rc = weft_get_blocking(w, mine + BIG, on_node(area, 1), BIG - 4096);
                CHECK(rc == 0 || rc == -ENETDOWN);
                CHECK(rc || memcmp(mine, mine + BIG, BIG - 4096) == 0);
            }
            CHECK(weft_alive(w, 1));
            (void)value;
        }
        uint64_t sum = 0;
        OK(weft_flush(w, 1, LONG));
        OK(weft_get_blocking(w, &sum, on_node(area, 1) + 2 * BIG, 8));
        CHECK(sum >= added && sum <= added + unsure);
        OK(weft_put_signal(w, on_node(area, 1) + 2 * BIG + 16, &messages, sizeof messages, on_node(area, 1) + 2 * BIG + 8, 1, NULL));
        OK(weft_flush(w, 1, LONG));
    } else if (weft_rank(w) == 1) {
        OK(weft_wait_until(w, on_node(area, 1) + 2 * BIG + 8, WEFT_EQ, 1, NULL, 2 * LONG));
        uint32_t messages;
        memcpy(&messages, mine + 2 * BIG + 16, sizeof messages);
        for (int64_t end = 0; heard.next < messages && end < 10000; end++)
            usleep(1000);
        CHECK(heard.next == messages && !heard.wrong);
    }
    OK(weft_barrier(w, LONG));
}

/* Runs in a process of its own: pulls and plugs the cable between nodes 0 and 1 during traffic. */
static pid_t puller(struct stage *stage, int rounds, bool cut)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    for (int i = 0; i < rounds; i++) {
        uint32_t went = stage->went, refused = stage->refused;
        for (int k = 0; stage->went < went + 3 && k < 60000; k++)
            usleep(1000);
        softverbs("fault pull 0:en2");
        went = stage->went;
        /* Wait until operations fail (no other route), or until some have succeeded (there is another route). */
        for (int k = 0; (cut ? stage->refused < refused + 3 : stage->went < went + 3) && k < 60000; k++)
            usleep(1000);
        softverbs("fault plug 0:en2");
        stage->plugged++;
    }
    uint32_t went = stage->went;
    for (int k = 0; stage->went < went + 3 && k < 60000; k++)
        usleep(1000);
    stage->over = 1;
    _exit(0);
}

static void pulled(int nodes)
{
    struct stage *stage = shared_words(4096);
    memset(stage, 0, sizeof *stage);
    int ended;
    pid_t pid = puller(stage, 3, nodes == 2);
    int failed = nodes_failed_with(nodes, across, stage, (const char *const[]){"WEFT_LOG=error", NULL});
    waitpid(pid, &ended, 0);
    assert_int_equal(failed, 0);
    assert_int_equal(ended, 0);
    assert_int_equal(stage->plugged, 3);
    if (nodes == 2)
        assert_true(stage->refused > 0);
    else
        assert_int_equal(stage->refused, 0); /* there was always a route */
}

/* The only cable is pulled: operations fail with -ENETDOWN at once, no node is declared dead, and all goes on when the cable is back. */
static void test_pulled(void **state)
{
    (void)state;
    pulled(2);
}

/* There is another route: no operation fails. */
static void test_other_way(void **state)
{
    (void)state;
    pulled(3);
}

/* --- copies --- */

/* Large puts and gets between pools: all bytes are sent from the source memory itself to the target memory itself, none in frames. */
static void uncopied(weft_node *w, void *arg)
{
    enum { BYTES = 8u << 20 };
    _Atomic uint32_t *repairs = arg;
    weft_gaddr area = symmetric_alloc(w, 2 * BYTES);
    uint32_t other = 1 - weft_rank(w);
    uint8_t *mine = weft_ptr(w, on_node(area, weft_rank(w)), 2 * BYTES);
    for (uint32_t i = 0; i < BYTES; i++)
        mine[i] = (uint8_t)(i * 31 + weft_rank(w));
    weft_link_stats before, after;
    OK(weft_link_stat(w, other, &before, sizeof before));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 0) {
        OK(weft_put_blocking(w, on_node(area, 1) + BYTES, mine, BYTES));
        OK(weft_get_blocking(w, mine + BYTES, on_node(area, 1), BYTES));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_link_stat(w, other, &after, sizeof after));
    uint64_t sent = after.bulk_sent_bytes - before.bulk_sent_bytes;
    CHECK(after.bulk_received_bytes - before.bulk_received_bytes == BYTES);
    /* More bytes are sent only after repairs, because the receiver cannot tell lost pieces from late ones. */
    atomic_store(&repairs[weft_rank(w)], (uint32_t)(after.bulk_repairs - before.bulk_repairs));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    CHECK(sent == BYTES || (sent > BYTES && atomic_load(&repairs[other]) > 0));
    CHECK(after.staged_puts == before.staged_puts && after.staged_gets == before.staged_gets);
    uint64_t copied = (after.frames_sent - before.frames_sent) * 4096; /* an upper limit: here frames carry records without bulk data */
    CHECK(copied < BYTES / 4);
    for (uint32_t i = 0; i < BYTES; i++)
        CHECK(mine[BYTES + i] == (uint8_t)(i * 31 + other));
}

static void test_uncopied(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, uncopied, shared_words(4096)), 0);
}

/* weft_link_stat() shows each counter of the link as what it is. The counters are raised here, because most need a fault to rise. */
static void shown(weft_node *w, void *arg)
{
    (void)arg;
    weft_gaddr area = symmetric_alloc(w, 64);
    uint32_t other = 1 - weft_rank(w);
    OK(weft_fetch_add_blocking(w, on_node(area, other), 1, NULL)); /* now there is a link */
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    struct tb_link *l = w->links[other].impl;
    weft_link_stats before = stats(w, other);
    base_spin_lock(&l->r.lock);
    struct tb_stream_counts *s = &l->r.endpoint.stream.counts;
    struct tb_bulk_counts *b = &l->r.endpoint.bulk.counts;
    s->frames += UINT64_C(1) << 32;
    s->retransmitted += UINT64_C(2) << 32;
    s->received += UINT64_C(3) << 32;
    s->damaged += UINT64_C(4) << 32;
    b->sent_bytes += UINT64_C(5) << 32;
    b->received_bytes += UINT64_C(6) << 32;
    b->rejected += UINT64_C(7) << 32;
    b->repairs += UINT64_C(8) << 32;
    l->r.endpoint.counts.sent_bytes += UINT64_C(9) << 32;
    b->put_bytes += UINT64_C(10) << 32;
    l->r.endpoint.counts.fetched_bytes += UINT64_C(20) << 32;
    b->get_bytes += UINT64_C(30) << 32;
    base_spin_unlock(&l->r.lock);
    weft_link_stats after = stats(w, other);
    /* what the link itself adds meanwhile is little */
    CHECK((after.frames_sent - before.frames_sent) >> 32 == 1);
    CHECK((after.frames_retransmitted - before.frames_retransmitted) >> 32 == 2);
    CHECK((after.frames_received - before.frames_received) >> 32 == 3);
    CHECK((after.frames_damaged - before.frames_damaged) >> 32 == 4);
    CHECK((after.bulk_sent_bytes - before.bulk_sent_bytes) >> 32 == 5);
    CHECK((after.bulk_received_bytes - before.bulk_received_bytes) >> 32 == 6);
    CHECK((after.bulk_rejected - before.bulk_rejected) >> 32 == 7);
    CHECK((after.bulk_repairs - before.bulk_repairs) >> 32 == 8);
    CHECK((after.sent_bytes - before.sent_bytes) >> 32 == 19);
    CHECK((after.fetched_bytes - before.fetched_bytes) >> 32 == 50);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_shown(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, shown, NULL), 0);
}

static void meets(weft_node *w, void *arg)
{
    (void)arg;
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

/* After all tests the devices have as many domains as before. */
static void test_nothing_is_left(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, meets, NULL), 0);
}

int main(void)
{
    signal(SIGHUP, SIG_DFL); /* nohup sets it to be ignored */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ended),          cmocka_unit_test(test_forked),    cmocka_unit_test(test_struck_joining),
        cmocka_unit_test(test_struck_closing), cmocka_unit_test(test_pulled),    cmocka_unit_test(test_uncopied),
        cmocka_unit_test(test_shown),          cmocka_unit_test(test_other_way), cmocka_unit_test(test_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
