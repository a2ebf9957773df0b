/* SPDX-License-Identifier: MIT
 *
 * The queue between processes: everyone's work done once, batches, stealing, full shards, leases, results, drain,
 * shutdown, statistics, the fabric's way to a shard, and nodes that are killed.
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
#include "nodes.h"
#include "queue/queue.h"

static weft_queue *open_queue(weft *w, uint32_t slots, int64_t lease_ns, bool submit_only, uint32_t force)
{
    weft_queue *q;
    weft_queue_config c = {.slots = slots, .lease_ns = lease_ns, .submit_only = submit_only};
    CHECK(weft_queue_open(w, "work", &c, &q) == 0);
    CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
    /* After the barrier every HELLO is delivered or about to be: wait for the answers, to have all shards. */
    for (uint32_t i = 0; i < weft_size(w); i++)
        while (!queue_view_of(q, i)) {
            weft_progress(w);
            base_relax();
        }
    queue_set_force(q, force);
    CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
    return q;
}

static weft_task numbered(uint64_t n)
{
    weft_task t = {.kind = 7, .tag = n, .payload_len = (uint32_t)n, .payload = n * 3};
    for (uint32_t i = 0; i < 5; i++)
        t.arg[i] = n * 1000 + i;
    return t;
}

static void check_numbered(const weft_task *t)
{
    weft_task want = numbered(t->tag);
    CHECK(memcmp(t, &want, sizeof want) == 0);
}

/* Claim and complete what is there, at most `max` tasks. Results are made from the task. */
static int work(weft_queue *q, uint32_t max, int64_t timeout_ns)
{
    weft_claim claims[64];
    weft_result results[64];
    int n = weft_claim_tasks(q, claims, max > 64 ? 64 : max, timeout_ns);
    for (int i = 0; i < n; i++) {
        check_numbered(&claims[i].task);
        results[i] = (weft_result){.status = (int32_t)(claims[i].task.tag % 100) - 50,
                                   .result = claims[i].task.tag * 7,
                                   .result_len = claims[i].task.tag + 1};
    }
    if (n > 0)
        CHECK(weft_complete(q, claims, results, (uint32_t)n, NULL) >= 0);
    return n;
}

/* Reap into seen[tag]; each must come once. Returns how many. */
static uint32_t reap(weft_queue *q, uint8_t *seen, uint64_t count, int64_t timeout_ns)
{
    weft_done done[64];
    int n = weft_reap(q, done, 64, timeout_ns);
    for (int i = 0; i < n; i++) {
        CHECK(done[i].tag < count);
        CHECK(seen[done[i].tag]++ == 0);
        CHECK(done[i].status == (int32_t)(done[i].tag % 100) - 50);
        CHECK(done[i].result == done[i].tag * 7 && done[i].result_len == done[i].tag + 1);
    }
    return n > 0 ? (uint32_t)n : 0;
}

/* --- everyone submits, everyone works --- */
struct all_args {
    uint32_t slots, batch, force, count;
    bool last_serves_none;
};

static int all_to_all(weft *w, void *arg)
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
    /* Others may still need hands. */
    bool drained = false;
    while (!drained) {
        work(q, a->batch, 0);
        int rc = weft_drain(q, 0);
        CHECK(rc == 0 || rc == -ETIMEDOUT);
        drained = rc == 0;
    }
    weft_done none;
    CHECK(weft_reap(q, &none, 1, 0) == -ENOENT);
    weft_queue_stats s;
    CHECK(weft_queue_stat(q, &s) == 0);
    CHECK(s.submitted == a->count && s.completed == a->count && s.outstanding == 0);
    CHECK(s.duplicates == 0 && s.refused == 0 && s.requeued == 0 && s.resubmitted == 0 && s.ready == 0);
    CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
    CHECK(weft_queue_close(q) == 0);
    free(seen);
    return 0;
}

static void test_alone(void **state)
{
    (void)state;
    struct all_args a = {.slots = 64, .batch = 1, .count = 20000};
    assert_int_equal(nodes_run(1, all_to_all, &a), 0);
    a.batch = 64;
    assert_int_equal(nodes_run(1, all_to_all, &a), 0);
}

static void test_all_to_all(void **state)
{
    (void)state;
    struct all_args a = {.slots = 256, .batch = 1, .count = 5000};
    assert_int_equal(nodes_run(3, all_to_all, &a), 0);
    a.batch = 33;
    a.count = 20000;
    a.force = QUEUE_SPREAD;
    assert_int_equal(nodes_run(4, all_to_all, &a), 0);
    a.last_serves_none = true;
    assert_int_equal(nodes_run(2, all_to_all, &a), 0);
}

/* The same through weft_get and weft_compare_swap, as it will be between hosts. */
static void test_through_the_fabric(void **state)
{
    (void)state;
    struct all_args a = {.slots = 16, .batch = 5, .count = 3000, .force = QUEUE_REMOTE | QUEUE_SPREAD};
    assert_int_equal(nodes_run(3, all_to_all, &a), 0);
    a.last_serves_none = true;
    assert_int_equal(nodes_run(3, all_to_all, &a), 0);
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

static int threads(weft *w, void *arg)
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
    return 0;
}

static void test_threads(void **state)
{
    (void)state;
    assert_int_equal(nodes_run(2, threads, NULL), 0);
}

/* --- stealing: node 0 submits to its own shard and does nothing else --- */
static int steal(weft *w, void *arg)
{
    (void)arg;
    enum { COUNT = 1000 };
    weft_queue *q = open_queue(w, 2048, 0, weft_rank(w) != 0, 0);
    weft_queue_stats s;
    if (weft_rank(w) == 0) {
        uint8_t *seen = calloc(COUNT, 1);
        for (uint64_t i = 0; i < COUNT; i++) {
            weft_task t = numbered(i);
            CHECK(weft_submit(q, &t, 1, NULL, WEFT_DEFAULT) == 1);
        }
        for (uint32_t n = 0; n < COUNT;)
            n += reap(q, seen, COUNT, WEFT_DEFAULT);
        CHECK(weft_queue_shutdown(q) == 0);
        CHECK(weft_queue_stat(q, &s) == 0 && s.claimed == 0);
        free(seen);
    } else {
        int n;
        while ((n = work(q, 8, WEFT_DEFAULT)) != -ESHUTDOWN)
            CHECK(n > 0);
        CHECK(weft_queue_stat(q, &s) == 0 && s.claimed == s.stolen);
    }
    CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
    return 0;
}

static void test_steal_and_shutdown(void **state)
{
    (void)state;
    assert_int_equal(nodes_run(3, steal, NULL), 0);
}

/* --- a full shard --- */
static int full(weft *w, void *arg)
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
    CHECK(weft_queue_stat(q, &s) == 0 && s.outstanding == 8 && s.ready == 8);
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
    return 0;
}

static void test_full(void **state)
{
    (void)state;
    assert_int_equal(nodes_run(1, full, NULL), 0);
}

/* --- a submitter that waits for room is woken by completions --- */
static void *slow_worker(void *arg)
{
    for (int n = 0; n < 30;) {
        int rc = work(arg, 1, WEFT_DEFAULT);
        CHECK(rc == 1);
        n += rc;
        base_sleep_ns(WEFT_MS / 2);
    }
    return NULL;
}

static int waits_for_room(weft *w, void *arg)
{
    (void)arg;
    weft_queue *q = open_queue(w, 2, 0, false, 0);
    pthread_t id;
    CHECK(pthread_create(&id, NULL, slow_worker, q) == 0);
    for (uint64_t i = 0; i < 30; i++) {
        weft_task t = numbered(i);
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_DEFAULT) == 1);
    }
    pthread_join(id, NULL);
    CHECK(weft_drain(q, WEFT_DEFAULT) == 0);
    return 0;
}

static void test_waits_for_room(void **state)
{
    (void)state;
    assert_int_equal(nodes_run(1, waits_for_room, NULL), 0);
}

/* --- leases: node 1 lets one end, renews one, releases one --- */
static int leases(weft *w, void *arg)
{
    (void)arg;
    const int64_t lease = 60 * WEFT_MS;
    weft_queue *q = open_queue(w, 16, lease, weft_rank(w) == 1, 0);
    weft_claim c, again;
    weft_result r = {.status = 1};
    bool accepted = true;
    weft_done d;
    weft_task t = numbered(5);
    weft_queue_stats s;

    if (weft_rank(w) == 0)
        CHECK(weft_submit(q, &t, 1, NULL, 0) == 1);
    CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
    if (weft_rank(w) == 1) { /* 1: its lease ends, another gets it, the late completion is refused */
        CHECK(weft_claim_tasks(q, &c, 1, WEFT_DEFAULT) == 1 && c.attempt == 0 && c.submitter == 0);
        CHECK(weft_claim_tasks(q, &again, 1, 0) == -ETIMEDOUT);
        CHECK(weft_claim_tasks(q, &again, 1, WEFT_DEFAULT) == 1 && again.attempt == 1);
        CHECK(weft_complete(q, &c, &r, 1, &accepted) == 0 && !accepted);
        CHECK(weft_renew(q, &c) == -ESTALE && weft_release(q, &c) == -ESTALE);
        r.status = 2;
        CHECK(weft_complete(q, &again, &r, 1, &accepted) == 1 && accepted);
        CHECK(weft_complete(q, &again, &r, 1, &accepted) == 0 && !accepted);
        CHECK(weft_queue_stat(q, &s) == 0 && s.refused == 2);
    } else {
        CHECK(weft_reap(q, &d, 1, WEFT_DEFAULT) == 1 && d.status == 2 && d.tag == 5 && d.worker == 1);
        CHECK(weft_queue_stat(q, &s) == 0 && s.requeued == 1 && s.duplicates == 0);
        CHECK(weft_submit(q, &t, 1, NULL, 0) == 1);
    }
    CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
    if (weft_rank(w) == 1) { /* 2: renewed for five leases */
        CHECK(weft_claim_tasks(q, &c, 1, WEFT_DEFAULT) == 1);
        for (int i = 0; i < 25; i++) {
            base_sleep_ns(lease / 5);
            int rc = weft_renew(q, &c);
            if (rc == -ESTALE) { /* a machine so busy that we slept through a lease: start over */
                CHECK(weft_claim_tasks(q, &c, 1, WEFT_DEFAULT) == 1);
                i = 0;
            }
        }
        CHECK(weft_claim_tasks(q, &again, 1, 0) == -ETIMEDOUT);
        /* 3: released, and there at once, for the next attempt */
        uint32_t attempt = c.attempt;
        CHECK(weft_release(q, &c) == 0);
        CHECK(weft_claim_tasks(q, &again, 1, 0) == 1 && again.attempt == attempt + 1);
        CHECK(weft_complete(q, &c, &r, 1, NULL) == 0);
        CHECK(weft_complete(q, &again, &r, 1, NULL) == 1);
    } else {
        CHECK(weft_reap(q, &d, 1, WEFT_DEFAULT) == 1);
    }
    CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
    return 0;
}

static void test_leases(void **state)
{
    (void)state;
    assert_int_equal(nodes_run(2, leases, NULL), 0);
}

/* --- tasks that submit tasks: a drain must not end between parent and child --- */
static _Atomic uint64_t *tree_done;

static int tree(weft *w, void *arg)
{
    (void)arg;
    enum { DEPTH = 10 };
    weft_queue *q = open_queue(w, 1024, 0, false, 0);
    weft_task root = {.arg = {DEPTH}};
    if (weft_rank(w) == 0)
        CHECK(weft_submit(q, &root, 1, NULL, 0) == 1);
    CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
    while (weft_drain(q, 0)) {
        weft_claim c;
        if (weft_claim_tasks(q, &c, 1, 0) != 1)
            continue;
        weft_task child[2] = {{.arg = {c.task.arg[0] - 1}}, {.arg = {c.task.arg[0] - 1}}};
        if (c.task.arg[0])
            for (int sent = 0; sent < 2;) {
                int n = weft_submit(q, child + sent, (uint32_t)(2 - sent), NULL, WEFT_DEFAULT);
                CHECK(n > 0);
                sent += n;
            }
        atomic_fetch_add(tree_done, 1);
        weft_result r = {0};
        CHECK(weft_complete(q, &c, &r, 1, NULL) == 1);
    }
    CHECK(atomic_load(tree_done) == (2u << DEPTH) - 1);
    CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
    return 0;
}

static void test_drain_of_a_tree(void **state)
{
    (void)state;
    tree_done = nodes_shared(sizeof *tree_done);
    assert_int_equal(nodes_run(3, tree, NULL), 0);
}

/* --- opening: late, twice, wrongly; closing gives work back --- */
static int opening(weft *w, void *arg)
{
    (void)arg;
    weft_queue *q, *other;
    CHECK(weft_queue_open(w, "", NULL, &q) == -EINVAL);
    CHECK(weft_queue_open(w, "a name of more than thirty-one bytes", NULL, &q) == -EINVAL);
    CHECK(weft_queue_open(w, "work", &(weft_queue_config){.slots = 3}, &q) == -EINVAL);
    CHECK(weft_queue_open(w, "work", &(weft_queue_config){.slots = 1u << 19}, &q) == -ENOMEM);
    weft_done d;
    if (weft_rank(w) == 0) { /* alone at first */
        CHECK(weft_queue_open(w, "work", &(weft_queue_config){.submit_only = true}, &q) == 0);
        CHECK(weft_queue_open(w, "work", NULL, &other) == -EALREADY);
        CHECK(weft_queue_open(w, "other", NULL, &other) == 0);
        weft_task t = numbered(9);
        CHECK(weft_submit(q, &t, 1, NULL, 0) == -ETIMEDOUT); /* no shard anywhere */
        CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_DEFAULT) == 1); /* waits for a shard to appear */
        CHECK(weft_reap(q, &d, 1, WEFT_DEFAULT) == 1 && d.tag == 9 && d.worker == 1);
        CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
        /* Node 1 claims the next and closes with it: ready again, but its shard is gone too. */
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_DEFAULT) == 1);
        CHECK(weft_reap(q, &d, 1, WEFT_DEFAULT) == 1 && d.tag == 9 && d.worker == 1);
        weft_queue_stats s;
        CHECK(weft_queue_stat(q, &s) == 0 && s.resubmitted == 1 && s.completed == 2);
        CHECK(weft_queue_close(other) == 0);
    } else {
        CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
        base_sleep_ns(5 * WEFT_MS);
        CHECK(weft_queue_open(w, "work", NULL, &q) == 0);
        while (work(q, 1, WEFT_DEFAULT) != 1)
            ;
        CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
        weft_claim c;
        CHECK(weft_claim_tasks(q, &c, 1, WEFT_DEFAULT) == 1);
        CHECK(weft_queue_close(q) == 0);
        CHECK(weft_queue_open(w, "work", NULL, &q) == 0);
        CHECK(work(q, 1, WEFT_DEFAULT) == 1);
    }
    CHECK(weft_barrier(w, WEFT_DEFAULT) == 0);
    CHECK(weft_queue_close(q) == 0);
    return 0;
}

static void test_opening(void **state)
{
    (void)state;
    assert_int_equal(nodes_run(2, opening, NULL), 0);
}

/* --- sleeping claimers are woken, wherever the work is --- */
static int sleepers(weft *w, void *arg)
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
            CHECK(reap(q, seen, ROUNDS, 5 * WEFT_SECOND) == 1);
        }
        CHECK(weft_queue_shutdown(q) == 0);
    } else {
        while (work(q, 1, WEFT_DEFAULT) != -ESHUTDOWN)
            ;
    }
    return 0;
}

static void test_sleepers(void **state)
{
    (void)state;
    assert_int_equal(nodes_run(3, sleepers, NULL), 0);
}

/* --- nodes killed at random under load --- */
struct kill_args {
    _Atomic uint32_t ready;
    _Atomic uint32_t stop;
    struct {
        _Atomic uint64_t submitted, reaped, claimed, requeued, resubmitted, duplicates;
    } node[NODES_MAX];
    uint32_t force;
};

/* Submit until told to stop, then until every task is back; exactly once each. All the time, work. */
static int under_fire(weft *w, void *arg)
{
    struct kill_args *a = arg;
    uint32_t me = weft_rank(w);
    weft_queue *q = open_queue(w, 128, 0, false, a->force);
    atomic_fetch_add(&a->ready, 1);
    const uint64_t max = UINT64_C(1) << 26;
    uint8_t *seen = calloc(max, 1);
    uint64_t sent = 0, back = 0;
    weft_task tasks[16];
    unsigned seed = me + 1;
    int64_t last = base_now_ns();
    for (;;) {
        bool stop = atomic_load_explicit(&a->stop, memory_order_relaxed);
        if (!stop && sent < max - 16) {
            uint32_t n = 1 + (uint32_t)rand_r(&seed) % 16;
            for (uint32_t i = 0; i < n; i++)
                tasks[i] = numbered(sent + i);
            int rc = weft_submit(q, tasks, n, NULL, 0);
            CHECK(rc > 0 || rc == -ETIMEDOUT || rc == -ECONNRESET);
            sent += rc > 0 ? (uint32_t)rc : 0;
        }
        work(q, 1 + (uint32_t)rand_r(&seed) % 16, 0);
        uint32_t n = reap(q, seen, max, 0);
        back += n;
        if (n)
            last = base_now_ns();
        else if (sent != back && base_now_ns() - last > 20 * WEFT_SECOND) {
            weft_queue_stats s;
            weft_queue_stat(q, &s);
            fprintf(stderr, "node %u: nothing came back for 20 s: %lu of %lu, outstanding %lu, pending %u, ready %lu\n", me,
                    (unsigned long)back, (unsigned long)sent, (unsigned long)s.outstanding,
                    (unsigned)q->pending, (unsigned long)s.ready);
            CHECK(sent == back); /* tasks are lost */
        }
        if (stop && sent == back) { /* ours are done; the others' not yet, perhaps */
            int rc = weft_drain(q, 0);
            if (rc == 0)
                break;
        }
    }
    for (uint64_t i = 0; i < sent; i++)
        CHECK(seen[i] == 1);
    weft_queue_stats s;
    CHECK(weft_queue_stat(q, &s) == 0);
    CHECK(s.submitted == sent && s.completed == sent);
    atomic_store(&a->node[me].submitted, sent);
    atomic_store(&a->node[me].reaped, back);
    atomic_store(&a->node[me].claimed, s.claimed);
    atomic_store(&a->node[me].requeued, s.requeued);
    atomic_store(&a->node[me].resubmitted, s.resubmitted);
    atomic_store(&a->node[me].duplicates, s.duplicates);
    free(seen);
    return 0;
}

static void kill_rounds(int64_t for_ns, uint32_t force)
{
    struct kill_args *a = nodes_shared(sizeof *a);
    unsigned seed = (unsigned)base_now_ns();
    int64_t end = base_now_ns() + for_ns;
    uint64_t tasks = 0, requeued = 0, resubmitted = 0, duplicates = 0, killed = 0;
    printf("seed %u\n", seed);
    do {
        enum { NODES = 5 };
        memset(a, 0, sizeof *a);
        a->force = force;
        struct nodes n;
        weft_config c = {.pool_bytes = 4u << 20, .deadline_ns = 60 * WEFT_SECOND};
        nodes_start(&n, NODES, under_fire, a, &c);
        for (int i = 0; i < 5000 && atomic_load(&a->ready) < NODES; i++)
            base_sleep_ns(2 * WEFT_MS);
        uint32_t kills = 1 + (uint32_t)rand_r(&seed) % (NODES - 1);
        for (uint32_t k = 0; k < kills; k++) {
            base_sleep_ns((int64_t)(rand_r(&seed) % 150) * WEFT_MS);
            uint32_t victim = (uint32_t)rand_r(&seed) % NODES;
            killed += n.pid[victim] != 0;
            nodes_kill(&n, victim);
        }
        base_sleep_ns((int64_t)(rand_r(&seed) % 100) * WEFT_MS);
        atomic_store(&a->stop, 1);
        assert_int_equal(nodes_wait(&n, 60 * WEFT_SECOND), 0);
        for (uint32_t i = 0; i < NODES; i++) {
            assert_int_equal(atomic_load(&a->node[i].submitted), atomic_load(&a->node[i].reaped));
            tasks += atomic_load(&a->node[i].submitted);
            requeued += atomic_load(&a->node[i].requeued);
            resubmitted += atomic_load(&a->node[i].resubmitted);
            duplicates += atomic_load(&a->node[i].duplicates);
        }
    } while (base_now_ns() < end);
    printf("%lu nodes killed; survivors: %lu tasks, each once; %lu requeued, %lu submitted again, %lu duplicates dropped\n",
           (unsigned long)killed, (unsigned long)tasks, (unsigned long)requeued, (unsigned long)resubmitted,
           (unsigned long)duplicates);
}

static void test_killed_at_random(void **state)
{
    (void)state;
    const char *is_long = getenv("WEFT_TEST_LONG");
    int64_t s = is_long && *is_long && *is_long != '0' ? 30 : 5;
    kill_rounds(s * WEFT_SECOND, 0);
    kill_rounds(s * WEFT_SECOND, QUEUE_SPREAD);
}

static int nothing_left(void **state)
{
    (void)state;
    return nodes_none_left() ? 0 : -1;
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
        cmocka_unit_test(test_killed_at_random),
    };
    setenv("WEFT_LOG", "error", 0); /* the deaths are on purpose */
    return cmocka_run_group_tests(tests, NULL, nothing_left);
}
