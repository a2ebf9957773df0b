/* SPDX-License-Identifier: MIT
 *
 * The queue between processes: each task is done once; batches, stealing, full shards, leases, results, drain, shutdown, statistics, and
 * access to shards through the fabric. Nodes that are killed: test_queue_kill.c.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/base.h"
#include "queue_test.h"

/* --- all nodes submit, all nodes work --- */
struct all_args {
    uint32_t slots, batch, force, count;
    bool last_serves_none;
    _Atomic uint32_t *finished; /* nodes that have all their results; shared */
};

static void all_to_all(weft_node *w, void *arg)
{
    const struct all_args *a = arg;
    weft_queue *q = open_queue(w, a->slots, 0, a->last_serves_none && weft_rank(w) == weft_size(w) - 1, a->force);
    uint8_t *seen = calloc(a->count, 1);
    uint64_t submitted = 0, reaped = 0;
    weft_task tasks[64];
    while (reaped < a->count) {
        uint32_t n = a->count - submitted < a->batch ? (uint32_t)(a->count - submitted) : a->batch;
        if (n) {
            for (uint32_t i = 0; i < n; i++)
                tasks[i] = numbered(submitted + i);
            int rc = weft_submit(q, tasks, n, NULL, 0);
            CHECK(rc > 0 || rc == -ETIMEDOUT);
            submitted += rc > 0 ? (uint32_t)rc : 0;
        }
        work(q, a->batch, submitted < a->count ? 0 : WEFT_MS);
        reaped += reap(q, seen, a->count, 0);
    }
    /* Keep working until all nodes have their results. (A drain would not do: the queue also counts as drained between two submissions.) */
    for (atomic_fetch_add(a->finished, 1); atomic_load(a->finished) < weft_size(w);)
        work(q, a->batch, WEFT_MS);
    CHECK(weft_drain(q, WEFT_TIMEOUT_DEFAULT) == 0);
    weft_done none;
    CHECK(weft_reap(q, &none, 1, 0) == -ENOENT);
    weft_queue_stats s;
    CHECK(weft_queue_stat(q, &s, sizeof s) == 0);
    CHECK(s.submitted == a->count && s.completed == a->count && s.outstanding == 0);
    CHECK(s.duplicates == 0 && s.refused == 0 && s.requeued == 0 && s.resubmitted == 0);
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
    /* Check this only now, because until now tasks of other nodes may have been in this node's shard. */
    CHECK(weft_queue_stat(q, &s, sizeof s) == 0 && s.ready == 0);
    CHECK(weft_queue_close(q) == 0);
    free(seen);
}

static void all_nodes(int n, struct all_args a)
{
    a.finished = shared_words(4096);
    assert_int_equal(nodes_failed(n, all_to_all, &a), 0);
}

static void test_alone(void **state)
{
    (void)state;
    struct all_args a = {.slots = 64, .batch = 1, .count = repeats(200000)};
    all_nodes(1, a);
    a.batch = 64;
    all_nodes(1, a);
}

static void test_all_to_all(void **state)
{
    (void)state;
    struct all_args a = {.slots = 256, .batch = 1, .count = repeats(30000)};
    all_nodes(3, a);
    a.batch = 33;
    a.count = repeats(50000);
    a.force = QUEUE_SPREAD;
    all_nodes(4, a);
    a.last_serves_none = true;
    all_nodes(2, a);
}

/* The same, but shards are accessed by weft_get() and weft_compare_swap(), as between hosts. */
static void test_through_the_fabric(void **state)
{
    (void)state;
    struct all_args a = {.slots = 16, .batch = 5, .count = repeats(10000), .force = QUEUE_REMOTE | QUEUE_SPREAD};
    all_nodes(3, a);
    a.last_serves_none = true;
    all_nodes(3, a);
}

/* --- several threads of one node --- */
struct thread_args {
    weft_queue *q;
    _Atomic uint64_t *reaped;
    uint8_t *seen;
    uint64_t first, count, all;
};

static void *thread_main(void *arg)
{
    struct thread_args *t = arg;
    uint64_t sent = 0;
    while (atomic_load(t->reaped) < t->all) {
        if (sent < t->count) {
            weft_task task = numbered(t->first + sent);
            sent += weft_submit(t->q, &task, 1, NULL, 0) == 1;
        }
        work(t->q, 3, 0);
        atomic_fetch_add(t->reaped, reap(t->q, t->seen, t->all, 0));
    }
    return NULL;
}

static void threads(weft_node *w, void *arg)
{
    (void)arg;
    weft_queue *q = open_queue(w, 32, 0, false, 0);
    enum { THREADS = 4, EACH = 2000 };
    _Atomic uint64_t reaped = 0;
    uint8_t *seen = calloc(THREADS * EACH, 1);
    struct thread_args args[THREADS];
    pthread_t id[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        args[i] = (struct thread_args){q, &reaped, seen, i * EACH, EACH, THREADS * EACH};
        CHECK(pthread_create(&id[i], NULL, thread_main, &args[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(id[i], NULL);
    while (weft_drain(q, 0))
        work(q, 64, 0);
    free(seen);
}

static void test_threads(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, threads, NULL), 0);
}

/* --- stealing: node 0 submits to its own shard and does nothing else --- */
static void steal(weft_node *w, void *arg)
{
    (void)arg;
    enum { COUNT = 1000 };
    weft_queue *q = open_queue(w, 2048, 0, weft_rank(w) != 0, 0);
    weft_queue_stats s;
    if (weft_rank(w) == 0) {
        uint8_t *seen = calloc(COUNT, 1);
        for (uint64_t i = 0; i < COUNT; i++) {
            weft_task t = numbered(i);
            CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        }
        for (uint32_t n = 0; n < COUNT;)
            n += reap(q, seen, COUNT, WEFT_TIMEOUT_DEFAULT);
        CHECK(weft_queue_shutdown(q) == 0);
        CHECK(weft_queue_stat(q, &s, sizeof s) == 0 && s.claimed == 0);
        free(seen);
    } else {
        int n;
        while ((n = work(q, 8, WEFT_TIMEOUT_DEFAULT)) != -ESHUTDOWN)
            CHECK(n > 0);
        CHECK(weft_queue_stat(q, &s, sizeof s) == 0 && s.claimed == s.stolen);
    }
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
}

static void test_steal_and_shutdown(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, steal, NULL), 0);
}

/* --- a full shard --- */
static void full(weft_node *w, void *arg)
{
    (void)arg;
    weft_queue *q = open_queue(w, 8, 0, false, 0);
    weft_task tasks[20];
    uint64_t ids[20];
    uint8_t seen[20] = {0};
    for (uint64_t i = 0; i < 20; i++)
        tasks[i] = numbered(i);
    CHECK(weft_submit(q, tasks, 20, ids, 0) == 8);
    CHECK(weft_submit(q, tasks + 8, 12, ids + 8, 0) == -ETIMEDOUT);
    CHECK(weft_submit(q, tasks + 8, 12, ids + 8, 20 * WEFT_MS) == -ETIMEDOUT);
    weft_queue_stats s;
    CHECK(weft_queue_stat(q, &s, sizeof s) == 0 && s.outstanding == 8 && s.ready == 8);
    CHECK(work(q, 3, 0) == 3);
    CHECK(weft_submit(q, tasks + 8, 12, ids + 8, 0) == 3);
    uint32_t sent = 11, done = 0;
    while (done < 20) {
        work(q, 5, 0);
        done += reap(q, seen, 20, 0);
        int n = sent < 20 ? weft_submit(q, tasks + sent, 20 - sent, ids + sent, 0) : 0;
        sent += n > 0 ? (uint32_t)n : 0;
    }
    for (uint32_t i = 0; i < 20; i++)
        for (uint32_t j = 0; j < i; j++)
            CHECK(ids[i] != ids[j]);
    CHECK(weft_submit(q, tasks, 0, NULL, 0) == -EINVAL);
    CHECK(weft_queue_close(q) == 0);
}

static void test_full(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, full, NULL), 0);
}

/* --- a submitter that waits for room is woken by completions --- */
static void *slow_worker(void *arg)
{
    for (int n = 0; n < 30;) {
        int rc = work(arg, 1, WEFT_TIMEOUT_DEFAULT);
        CHECK(rc == 1);
        n += rc;
        base_sleep_ns(WEFT_MS / 2);
    }
    return NULL;
}

static void waits_for_room(weft_node *w, void *arg)
{
    (void)arg;
    weft_queue *q = open_queue(w, 2, 0, false, 0);
    pthread_t id;
    CHECK(pthread_create(&id, NULL, slow_worker, q) == 0);
    for (uint64_t i = 0; i < 30; i++) {
        weft_task t = numbered(i);
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
    }
    pthread_join(id, NULL);
    CHECK(weft_drain(q, WEFT_TIMEOUT_DEFAULT) == 0);
}

static void test_waits_for_room(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, waits_for_room, NULL), 0);
}

/* --- leases: node 1 lets one lease end, renews one, releases one --- */
enum { NO_END, SHORT };

/* Both nodes meet, then node 0 sets the length of its leases: SHORT, or NO_END, so long that none ends however slow a node is. */
static void lease_is(weft_node *w, weft_queue *q, int kind)
{
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
    if (weft_rank(w) == 0)
        queue_set_lease(q, kind == SHORT ? 200 * WEFT_MS : 3600 * WEFT_SECOND);
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
}

/* Renews a claim that was made while leases were short. If its lease has ended, claims the same task again. */
static void keep(weft_queue *q, weft_lease *c)
{
    while (weft_renew(q, c) == -ESTALE)
        CHECK(weft_claim(q, c, 1, WEFT_TIMEOUT_DEFAULT) == 1);
}

static void leases(weft_node *w, void *arg)
{
    _Atomic uint32_t *attempt = arg;
    weft_queue *q = open_queue(w, 16, 3600 * WEFT_SECOND, weft_rank(w) == 1, 0);
    weft_lease c, again;
    weft_result r = {.status = 1};
    bool accepted = true;
    weft_done d;
    weft_task t = numbered(5);
    weft_queue_stats s;

    if (weft_rank(w) == 0) {
        CHECK(weft_submit(q, &t, 1, NULL, 0) == 1);
        lease_is(w, q, NO_END);
        lease_is(w, q, SHORT);
        lease_is(w, q, NO_END);
        CHECK(weft_reap(q, &d, 1, WEFT_TIMEOUT_DEFAULT) == 1 && d.status == 2 && d.tag == 5 && d.worker == 1);
        CHECK(weft_queue_stat(q, &s, sizeof s) == 0 && s.requeued == *attempt && s.duplicates == 0);
        CHECK(weft_submit(q, &t, 1, NULL, 0) == 1);
        lease_is(w, q, SHORT);
        lease_is(w, q, NO_END);
        CHECK(weft_reap(q, &d, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    } else {
        /* 1: a lease ends, the task is claimed again, the late completion is refused */
        lease_is(w, q, NO_END);
        CHECK(weft_claim(q, &c, 1, WEFT_TIMEOUT_DEFAULT) == 1 && c.attempt == 0 && c.submitter == 0);
        CHECK(weft_claim(q, &again, 1, 0) == -ETIMEDOUT);
        lease_is(w, q, SHORT);
        CHECK(weft_claim(q, &again, 1, WEFT_TIMEOUT_DEFAULT) == 1 && again.attempt >= 1);
        lease_is(w, q, NO_END);
        keep(q, &again);
        *attempt = again.attempt;
        CHECK(weft_complete(q, &c, &r, 1, &accepted) == 0 && !accepted);
        CHECK(weft_renew(q, &c) == -ESTALE && weft_release(q, &c) == -ESTALE);
        r.status = 2;
        CHECK(weft_complete(q, &again, &r, 1, &accepted) == 1 && accepted);
        CHECK(weft_complete(q, &again, &r, 1, &accepted) == 0 && !accepted);
        CHECK(weft_queue_stat(q, &s, sizeof s) == 0 && s.refused == 2);
        /* 2: a claim is renewed for the time of two leases */
        lease_is(w, q, SHORT);
        CHECK(weft_claim(q, &c, 1, WEFT_TIMEOUT_DEFAULT) == 1);
        for (int i = 0; i < 10; i++) {
            base_sleep_ns(40 * WEFT_MS);
            if (weft_renew(q, &c) == -ESTALE) { /* the machine was so busy that the lease has ended meanwhile: start over */
                CHECK(weft_claim(q, &c, 1, WEFT_TIMEOUT_DEFAULT) == 1);
                i = 0;
            }
        }
        lease_is(w, q, NO_END);
        keep(q, &c);
        CHECK(weft_claim(q, &again, 1, 0) == -ETIMEDOUT);
        /* 3: a claim is released, and the task is ready at once for the next attempt */
        uint32_t before = c.attempt;
        CHECK(weft_release(q, &c) == 0);
        CHECK(weft_claim(q, &again, 1, 0) == 1 && again.attempt == before + 1);
        CHECK(weft_complete(q, &c, &r, 1, NULL) == 0);
        CHECK(weft_complete(q, &again, &r, 1, NULL) == 1);
    }
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
}

static void test_leases(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, leases, shared_words(4096)), 0);
}

/* --- tasks that submit tasks: a drain must not end between parent and child --- */
static _Atomic uint64_t *tree_done;

static void tree(weft_node *w, void *arg)
{
    (void)arg;
    enum { DEPTH = 10 };
    weft_queue *q = open_queue(w, 1024, 0, false, 0);
    weft_task root = {.arg = {DEPTH}};
    if (weft_rank(w) == 0)
        CHECK(weft_submit(q, &root, 1, NULL, 0) == 1);
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
    while (weft_drain(q, 0)) {
        weft_lease c;
        if (weft_claim(q, &c, 1, 0) != 1)
            continue;
        weft_task child[2] = {{.arg = {c.task.arg[0] - 1}}, {.arg = {c.task.arg[0] - 1}}};
        if (c.task.arg[0])
            for (int sent = 0; sent < 2;) {
                int n = weft_submit(q, child + sent, (uint32_t)(2 - sent), NULL, WEFT_TIMEOUT_DEFAULT);
                CHECK(n > 0);
                sent += n;
            }
        atomic_fetch_add(tree_done, 1);
        weft_result r = {0};
        CHECK(weft_complete(q, &c, &r, 1, NULL) == 1);
    }
    CHECK(atomic_load(tree_done) == (2u << DEPTH) - 1);
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
}

static void test_drain_of_a_tree(void **state)
{
    (void)state;
    tree_done = shared_words(sizeof *tree_done);
    assert_int_equal(nodes_failed(3, tree, NULL), 0);
}

/* --- opening late, twice, with wrong arguments; closing makes claimed tasks ready again --- */
static void opening(weft_node *w, void *arg)
{
    (void)arg;
    weft_queue *q, *other;
    CHECK(weft_queue_open(w, "", NULL, &q) == -EINVAL);
    CHECK(weft_queue_open(w, "a name of more than thirty-one bytes", NULL, &q) == -EINVAL);
    CHECK(weft_queue_open(w, "work", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .slots = 3}, &q) == -EINVAL);
    CHECK(weft_queue_open(w, "work", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .slots = 1u << 19}, &q) == -ENOMEM);
    weft_done d;
    if (weft_rank(w) == 0) { /* at first no other node has opened the queue */
        CHECK(weft_queue_open(w, "work", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .submit_only = true}, &q) == 0);
        CHECK(weft_queue_open(w, "work", NULL, &other) == -EALREADY);
        weft_pool_stats before, opened;
        CHECK(weft_pool_stat(w, &before, sizeof before) == 0);
        CHECK(weft_queue_open(w, "other", NULL, &other) == 0);
        CHECK(weft_pool_stat(w, &opened, sizeof opened) == 0 && opened.task_bytes > before.task_bytes);
        weft_task t = numbered(9);
        CHECK(weft_submit(q, &t, 1, NULL, 0) == -ETIMEDOUT); /* no node has a shard */
        CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1); /* waits for a shard to appear */
        CHECK(weft_reap(q, &d, 1, WEFT_TIMEOUT_DEFAULT) == 1 && d.tag == 9 && d.worker == 1);
        CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
        /* Node 1 claims the next task and closes the queue: the task would be ready again, but its shard is gone as well. */
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        CHECK(weft_reap(q, &d, 1, WEFT_TIMEOUT_DEFAULT) == 1 && d.tag == 9 && d.worker == 1);
        weft_queue_stats s;
        CHECK(weft_queue_stat(q, &s, sizeof s) == 0 && s.resubmitted == 1 && s.completed == 2);
        CHECK(weft_queue_close(other) == 0);
    } else {
        CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
        base_sleep_ns(5 * WEFT_MS);
        CHECK(weft_queue_open(w, "work", NULL, &q) == 0);
        while (work(q, 1, WEFT_TIMEOUT_DEFAULT) != 1)
            ;
        CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
        weft_lease c;
        CHECK(weft_claim(q, &c, 1, WEFT_TIMEOUT_DEFAULT) == 1);
        CHECK(weft_queue_close(q) == 0);
        CHECK(weft_queue_open(w, "work", NULL, &q) == 0);
        CHECK(work(q, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    }
    CHECK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT) == 0);
    CHECK(weft_queue_close(q) == 0);
}

static void test_opening(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, opening, NULL), 0);
}

/* --- sleeping claimers are woken, in whichever shard the task is --- */
static void sleepers(weft_node *w, void *arg)
{
    (void)arg;
    weft_queue *q = open_queue(w, 64, 0, false, 0);
    enum { ROUNDS = 50 };
    if (weft_rank(w) == 0) {
        uint8_t seen[ROUNDS] = {0};
        for (uint64_t i = 0; i < ROUNDS; i++) {
            base_sleep_ns(WEFT_MS); /* let them fall asleep */
            weft_task t = numbered(i);
            CHECK(weft_submit(q, &t, 1, NULL, 0) == 1);
            CHECK(reap(q, seen, ROUNDS, WEFT_TIMEOUT_DEFAULT) == 1);
        }
        CHECK(weft_queue_shutdown(q) == 0);
    } else {
        while (work(q, 1, WEFT_TIMEOUT_DEFAULT) != -ESHUTDOWN)
            ;
    }
}

static void test_sleepers(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, sleepers, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_through_the_fabric),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_steal_and_shutdown),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_waits_for_room),
        cmocka_unit_test(test_leases),
        cmocka_unit_test(test_drain_of_a_tree),
        cmocka_unit_test(test_opening),
        cmocka_unit_test(test_sleepers),
    };
    setenv("WEFT_POOL", "16M", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
