/* SPDX-License-Identifier: MIT
 *
 * Waits for other nodes: they last as long as those are alive, and print once which nodes they wait for; a time-out or WEFT_DEADLINE bounds
 * them; and a barrier that timed out can be continued.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "queue_test.h"
#include "sync/state.h"

#define LITTLE (50 * WEFT_MS) /* a deadline that passes before the other nodes come */

static const char *const SOON[] = {"WEFT_SAY_AFTER=200ms", NULL};

/* Redirects a node's standard error to a file that all nodes share. A check that fails meanwhile prints there, and still fails the test. */
struct speech {
    FILE *file;
    int keep;
};
static struct speech said;

static void listen_begin(void)
{
    fflush(stderr);
    said.keep = dup(STDERR_FILENO);
    CHECK(said.keep >= 0 && dup2(fileno(said.file), STDERR_FILENO) >= 0);
}

static void listen_end(void)
{
    CHECK(dup2(said.keep, STDERR_FILENO) >= 0);
    close(said.keep);
}

static uint32_t times(const char *words)
{
    static char text[65536];
    ssize_t n = pread(fileno(said.file), text, sizeof text - 1, 0);
    uint32_t count = 0;
    CHECK(n >= 0);
    text[n] = 0;
    for (const char *p = text; (p = strstr(p, words)) != NULL; p++)
        count++;
    return count;
}

static void wait_until_said(const char *words)
{
    while (!times(words))
        usleep(1000);
}

static void new_file(void)
{
    if (said.file)
        fclose(said.file);
    said.file = tmpfile();
    assert_non_null(said.file);
}

/* Prints what was said if nodes have failed: a check that failed may be there, or a text that another node waited for. */
static int shown(int failed)
{
    char line[512];
    rewind(said.file);
    while (failed && fgets(line, sizeof line, said.file))
        fprintf(stderr, "said: %s", line);
    return failed;
}

static bool in_barrier(weft_node *w, uint32_t node, uint32_t generation)
{
    uint64_t word;
    return fab_system_get(w, node, sync_barrier_offset(node), &word, WEFT_SECOND) == 0 && (uint32_t)word >= generation;
}

static uint32_t generation(const weft_node *w)
{
    return ((const struct sync *)w->sync)->generation;
}

/* --- waits last, and print which nodes they wait for --- */

struct late {
    _Atomic uint32_t here, done;
    bool exchange;
};

static void late(weft_node *w, void *arg)
{
    struct late *l = arg;
    uint32_t me = weft_rank(w);
    uint64_t all[NODES_MAX];
    OK(weft_exchange(w, &(uint64_t){1}, 1, all, NULL, WEFT_TIMEOUT_DEFAULT)); /* all pairs of nodes have connected */
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    w->options.deadline_ns = LITTLE; /* the deadline of operations; waits for other nodes have none */
    meet(&l->here, weft_size(w));
    if (me >= 2) {
        wait_until_said("barrier: node 0 has waited 0.2 s for nodes 2 and 3, which are alive. The wait continues");
        usleep(400000); /* the node must not print the message a second time meanwhile */
    } else if (me == 0) {
        while (!in_barrier(w, 1, generation(w) + 1))
            usleep(1000);
        listen_begin();
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 0) {
        listen_end();
        CHECK(times("The wait continues") == 1);
        listen_begin();
    }
    if (me == 3)
        wait_until_said("exchange: node 0 has waited 0.2 s for ");
    OK(weft_exchange(w, &(uint64_t){10 + me}, 1, all, NULL, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t i = 0; i < weft_size(w); i++)
        CHECK(all[i] == 10 + i);
    if (me == 0) {
        listen_end();
        CHECK(times("The wait continues") == 2);
    }
    w->options.deadline_ns = 30 * WEFT_SECOND;
    meet(&l->done, weft_size(w));
}

static void test_late(void **state)
{
    (void)state;
    new_file();
    assert_int_equal(shown(nodes_failed_with(4, late, shared_words(4096), SOON)), 0);
}

/* The message of a lock names the holder; those of words and counters name the word and the nodes that are alive. */
static void held(weft_node *w, void *arg)
{
    _Atomic uint32_t *here = arg;
    uint32_t me = weft_rank(w);
    weft_gaddr area = symmetric_alloc(w, 64), lock = on_node(area, 2), word = on_node(area, me) + 8, counter = on_node(area, 1) + 16;
    if (me == 1)
        OK(weft_lock(w, lock, WEFT_TIMEOUT_DEFAULT, NULL));
    meet(here, 3);
    if (me == 0) {
        listen_begin();
        OK(weft_lock(w, lock, WEFT_TIMEOUT_DEFAULT, NULL));
        w->options.deadline_ns = LITTLE;
        OK(weft_wait_until(w, word, WEFT_EQ, 5, NULL, WEFT_TIMEOUT_DEFAULT));
        w->options.deadline_ns = patience_ns(1); /* time to read the counter, which is on another node */
        OK(weft_counter_wait(w, counter, 7, WEFT_TIMEOUT_DEFAULT));
        w->options.deadline_ns = 30 * WEFT_SECOND;
        listen_end();
        CHECK(times("The wait continues") == 3);
        OK(weft_unlock(w, lock));
    } else if (me == 1) {
        wait_until_said(": node 0 has waited 0.2 s for node 1, which holds the lock and is alive. The wait continues");
        OK(weft_unlock(w, lock));
        wait_until_said(": node 0 has waited 0.2 s for a change of its value, which is 0; nodes 1 and 2 are alive. The wait continues");
        OK(weft_put_signal(w, 0, NULL, 0, on_node(word, 0), 5, NULL));
        OK(weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT));
        wait_until_said(
            " of node 1: node 0 has waited 0.2 s for the value 7 (the counter is 0); nodes 1 and 2 are alive. The wait continues");
        usleep((unsigned)(patience_ns(1) / 1000)); /* until node 0's deadline has passed */
        OK(weft_counter_add(w, counter, 7, NULL));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_held(void **state)
{
    (void)state;
    new_file();
    assert_int_equal(shown(nodes_failed_with(3, held, shared_words(64), SOON)), 0);
}

/* The messages of reap and drain name the nodes that have claimed, or submitted, the tasks. */
static void slow_work(weft_node *w, void *arg)
{
    (void)arg;
    weft_queue *q = open_queue(w, 64, 0, weft_rank(w) != 0, 0);
    weft_task task = numbered(3);
    if (weft_rank(w) == 0) {
        weft_done done;
        CHECK(weft_submit(q, &task, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        w->options.deadline_ns = LITTLE;
        listen_begin();
        CHECK(weft_reap(q, &done, 1, WEFT_TIMEOUT_DEFAULT) == 1);
        w->options.deadline_ns = 30 * WEFT_SECOND;
        CHECK(weft_submit(q, &task, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        w->options.deadline_ns = LITTLE;
        OK(weft_drain(q, WEFT_TIMEOUT_DEFAULT));
        listen_end();
        w->options.deadline_ns = 30 * WEFT_SECOND;
        CHECK(times("The wait continues") == 2);
        CHECK(weft_reap(q, &done, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    } else if (weft_rank(w) == 1) {
        weft_lease claim;
        weft_result result = {0};
        CHECK(weft_claim(q, &claim, 1, 100 * WEFT_SECOND) == 1);
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        wait_until_said("queue 'work': reap: node 0 has waited 0.2 s for 1 task at node 1, which is alive. The wait continues");
        CHECK(weft_complete(q, &claim, &result, 1, NULL) == 1);
        wait_until_said("queue 'work': drain: node 0 has waited 0.2 s for work of node 0, which is alive. The wait continues");
        CHECK(weft_claim(q, &claim, 1, 100 * WEFT_SECOND) == 1);
        CHECK(weft_complete(q, &claim, &result, 1, NULL) == 1);
    } else {
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_queue_close(q));
}

static void test_slow_work(void **state)
{
    (void)state;
    new_file();
    assert_int_equal(shown(nodes_failed_with(3, slow_work, NULL, SOON)), 0);
}

/* --- bounds --- */

/* A time-out or a set deadline ends these waits, and nothing is printed. */
struct bounds {
    _Atomic uint32_t here, end;
    int64_t timeout;
};

static void bounded(weft_node *w, void *arg)
{
    struct bounds *b = arg;
    uint64_t all[NODES_MAX];
    weft_queue *q = open_queue(w, 64, 0, false, 0);
    weft_gaddr area = symmetric_alloc(w, 64);
    if (weft_rank(w) == 1)
        OK(weft_lock(w, on_node(area, 1), 100 * WEFT_SECOND, NULL));
    meet(&b->here, 2);
    if (weft_rank(w) == 0) {
        weft_task task = numbered(1);
        weft_done done;
        w->options.say_after_ns = WEFT_MS;
        w->options.deadline_ns = LITTLE; /* all these waits but the submit are for events that never happen */
        listen_begin();
        CHECK(weft_barrier(w, b->timeout) == -ETIMEDOUT);
        CHECK(strstr(weft_error(), "barrier: node 1 ") && strstr(weft_error(), "call weft_barrier() again to continue this barrier"));
        CHECK(weft_exchange(w, &(uint64_t){1}, 1, all, NULL, b->timeout) == -ETIMEDOUT);
        CHECK(weft_lock(w, on_node(area, 1), b->timeout, NULL) == -ETIMEDOUT);
        CHECK(weft_wait_until(w, area + 8, WEFT_NE, 0, NULL, b->timeout) == -ETIMEDOUT);
        CHECK(weft_counter_wait(w, area + 8, 1, b->timeout) == -ETIMEDOUT);
        CHECK(weft_counter_wait(w, on_node(area, 1) + 8, 1, b->timeout) == -ETIMEDOUT);
        w->options.deadline_ns = 30 * WEFT_SECOND;
        CHECK(weft_submit(q, &task, 1, NULL, 100 * WEFT_SECOND) == 1);
        w->options.deadline_ns = LITTLE;
        CHECK(weft_reap(q, &done, 1, b->timeout) == -ETIMEDOUT);
        CHECK(weft_drain(q, b->timeout) == -ETIMEDOUT);
        w->options.deadline_ns = 30 * WEFT_SECOND;
        listen_end();
        CHECK(times("weft") == 0);
    }
    meet(&b->end, 2);
}

static void test_bounded(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct bounds *b = shared_words(4096);
        b->timeout = i ? WEFT_TIMEOUT_DEFAULT : LITTLE;
        new_file();
        assert_int_equal(shown(nodes_failed_with(2, bounded, b, i ? (const char *const[]){"WEFT_DEADLINE=100s", NULL} : NULL)), 0);
    }
}

/* --- barriers that are continued after a time-out --- */

/* All nodes call the barrier with different time-outs until it succeeds; no node leaves it before all have entered it. */
static void again(weft_node *w, void *arg)
{
    _Atomic uint64_t *arrived = arg;
    uint32_t me = weft_rank(w), n = weft_size(w);
    uint64_t random = me, all[NODES_MAX];
    for (uint64_t round = 1; round <= repeats(400); round++) {
        if (random_next(&random) % 4 == 0)
            usleep((unsigned)(random_next(&random) % 2000));
        atomic_fetch_add(arrived, 1);
        int rc;
        do {
            int64_t timeout = (int64_t)(random_next(&random) % 3) * 300 * WEFT_US;
            rc = round % 3 ? weft_barrier(w, timeout) : weft_exchange(w, &(uint64_t){round * 100 + me}, 1, all, NULL, timeout);
        } while (rc == -ETIMEDOUT);
        OK(rc);
        CHECK(atomic_load(arrived) >= round * n);
        for (uint32_t i = 0; i < n && round % 3 == 0; i++)
            CHECK(all[i] == round * 100 + i);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_again(void **state)
{
    (void)state;
    for (int n = 2; n <= 5; n++)
        assert_int_equal(nodes_failed(n, again, shared_words(4096)), 0);
}

/* Node 0 times out when it has written all its words of the barrier. The others pass the barrier, and node 2 leaves. Node 0's next call
 * continues the barrier of three, which all have entered; it is not the next barrier, in which node 1 waits already. */
struct passing {
    _Atomic uint32_t two, ready, next, through;
};

static void passed_by(weft_node *w, void *arg)
{
    struct passing *p = arg;
    uint32_t me = weft_rank(w);
    const struct sync *s = w->sync;
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 0) {
        while (!s->entered || s->distance < 2 || !s->sent)
            CHECK(weft_barrier(w, 0) == -ETIMEDOUT);
        p->ready = 1;
        while (weft_epoch(w) == 1) /* raised when a death has been handled completely: later barriers are among the remaining nodes */
            usleep(1000);
        wait_for(&p->next, 1);
        OK(weft_barrier(w, 100 * WEFT_SECOND)); /* returns at once */
        usleep(100000);
        CHECK(p->through == 0);
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        return;
    }
    if (me == 1)
        wait_for(&p->ready, 1);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 2)
        return;
    while (weft_epoch(w) == 1) /* raised when a death has been handled completely: later barriers are among the remaining nodes */
        usleep(1000);
    p->next = 1;
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    p->through = 1;
}

static void test_passed_by(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, passed_by, shared_words(4096)), 0);
}

/* An exchange that times out after its word was written: the other nodes get this word, and the next call gets theirs. */
static void given(weft_node *w, void *arg)
{
    _Atomic uint32_t *stage = arg;
    uint32_t me = weft_rank(w);
    uint64_t all[NODES_MAX] = {0};
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 0) {
        const struct sync *s = w->sync;
        do
            CHECK(weft_exchange(w, &(uint64_t){100}, 1, all, NULL, LITTLE) == -ETIMEDOUT);
        while (!s->sent);
        *stage = 1;
        wait_for(stage, 2);
        OK(weft_exchange(w, &(uint64_t){999}, 1, all, NULL,
                         WEFT_TIMEOUT_DEFAULT)); /* this word comes too late: the earlier call has written another */
    } else {
        wait_for(stage, 1);
        OK(weft_exchange(w, &(uint64_t){101}, 1, all, NULL, WEFT_TIMEOUT_DEFAULT));
        *stage = 2;
    }
    CHECK(all[0] == 100 && all[1] == 101);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_given(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, given, shared_words(4096)), 0);
}

/* A barrier has timed out, and then one of its nodes dies: the barrier fails once, like any other. */
static void dies_meanwhile(weft_node *w, void *arg)
{
    _Atomic uint32_t *here = arg;
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) < 2)
        CHECK(weft_barrier(w, (1 + weft_rank(w)) * LITTLE) == -ETIMEDOUT);
    meet(here, 3);
    if (weft_rank(w) == 2)
        raise(SIGKILL);
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET && strstr(weft_error(), "node 2 is gone"));
    CHECK(!weft_alive(w, 2));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_dies_meanwhile(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(3, dies_meanwhile, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}, status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
    assert_true(WIFSIGNALED(status[2]));
}

/* --- words, which any node might change --- */

/* Node 2 leaves: node 0 goes on waiting for the others. Node 3 dies: the wait fails, because node 3 might have been the node to change the
 * word. */
static void lost(weft_node *w, void *arg)
{
    _Atomic uint32_t *stage = arg; /* the step at which node 0 is */
    uint32_t me = weft_rank(w);
    weft_gaddr word = symmetric_alloc(w, 64);
    if (me == 0) {
        listen_begin();
        meet(stage, 4);
        w->options.deadline_ns = LITTLE;
        OK(weft_wait_until(w, word, WEFT_EQ, 1, NULL, WEFT_TIMEOUT_DEFAULT));
        *stage = 5;
        CHECK(weft_wait_until(w, word, WEFT_EQ, 2, NULL, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
        CHECK(strstr(weft_error(), "a node that might have changed this value has died"));
        w->options.deadline_ns = 30 * WEFT_SECOND;
        listen_end();
        *stage = 6;
        while (weft_alive(w, 1))
            usleep(1000);
        w->options.deadline_ns = LITTLE;
        CHECK(weft_wait_until(w, word, WEFT_EQ, 2, NULL, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
        CHECK(strstr(weft_error(), "no other node is alive"));
        w->options.deadline_ns = 30 * WEFT_SECOND;
        return;
    }
    meet(stage, 4);
    if (me == 2)
        return;
    while (weft_alive(w, 2))
        usleep(1000);
    if (me == 1) {
        wait_until_said("The wait continues");
        usleep(4 * LITTLE / 1000); /* node 0 must still be waiting after this time */
        OK(weft_put_signal(w, 0, NULL, 0, on_node(word, 0), 1, NULL));
        OK(weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT));
    }
    if (me == 3) {
        wait_for(stage, 5);
        while (times("The wait continues") < 2) /* until node 0 is in its second wait */
            usleep(1000);
        raise(SIGKILL);
    }
    wait_for(stage, 6);
}

static void test_lost(void **state)
{
    (void)state;
    int status[NODES_MAX];
    new_file();
    nodes_run(4, lost, shared_words(4096), (const char *const[]){"WEFT_SAY_AFTER=10ms", NULL}, status);
    for (int i = 0; i < 3; i++)
        assert_int_equal(status[i], 0);
    assert_true(WIFSIGNALED(status[3]));
}

/* Tasks for which no worker is left. A node that works itself needs no other. */
static void no_workers(weft_node *w, void *arg)
{
    _Atomic uint32_t *here = arg;
    weft_queue *q = open_queue(w, 64, 0, weft_rank(w) != 0, 0);
    weft_task task = numbered(1);
    weft_done done;
    meet(here, 2);
    if (weft_rank(w) == 1)
        raise(SIGKILL);
    CHECK(weft_submit(q, &task, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
    while (weft_alive(w, 1))
        usleep(1000);
    w->options.deadline_ns = LITTLE;
    CHECK(weft_reap(q, &done, 1, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    CHECK(weft_drain(q, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    CHECK(work(q, 1, 100 * WEFT_SECOND) == 1);
    CHECK(weft_reap(q, &done, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    OK(weft_drain(q, WEFT_TIMEOUT_DEFAULT));
    w->options.deadline_ns = 30 * WEFT_SECOND;
    OK(weft_queue_close(q));
}

static void test_no_workers(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(2, no_workers, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}, status);
    assert_int_equal(status[0], 0);
    assert_true(WIFSIGNALED(status[1]));
}

/* A drain does not count the tasks of a stopped node as complete because it cannot ask that node. */
struct stopped {
    _Atomic uint32_t here, end;
    _Atomic int pid;
};

static void stopped(weft_node *w, void *arg)
{
    struct stopped *s = arg;
    weft_queue *q = open_queue(w, 64, 0, weft_rank(w) == 0, 0);
    if (weft_rank(w) == 1) {
        weft_task task = numbered(1);
        weft_done done;
        CHECK(weft_submit(q, &task, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        s->pid = (int)getpid();
        meet(&s->here, 2);
        wait_for(&s->end, 1);
        CHECK(weft_reap(q, &done, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    } else {
        meet(&s->here, 2);
        CHECK(weft_drain(q, 0) == -ETIMEDOUT);
        stop_asleep(s->pid);
        w->options.deadline_ns = LITTLE; /* the deadline of the drain's questions to other nodes */
        int rc = weft_drain(q, 10 * LITTLE);
        w->options.deadline_ns = 30 * WEFT_SECOND;
        kill(s->pid, SIGCONT);
        CHECK(rc == -ETIMEDOUT);
        CHECK(work(q, 1, 100 * WEFT_SECOND) == 1);
        s->end = 1;
        OK(weft_drain(q, WEFT_TIMEOUT_DEFAULT));
    }
    meet(&s->here, 4);
    OK(weft_queue_close(q));
}

static void test_stopped(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, stopped, shared_words(4096)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late),       cmocka_unit_test(test_held),           cmocka_unit_test(test_slow_work),
        cmocka_unit_test(test_bounded),    cmocka_unit_test(test_again),          cmocka_unit_test(test_passed_by),
        cmocka_unit_test(test_given),      cmocka_unit_test(test_dies_meanwhile), cmocka_unit_test(test_lost),
        cmocka_unit_test(test_no_workers), cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
