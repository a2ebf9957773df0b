/* SPDX-License-Identifier: MIT
 *
 * Persistent workers on the GPU `host`: blocks of several nodes do tasks of a queue, each once; blocks that hang, nodes that are killed,
 * workers that are closed while blocks wait, and results of tasks that nobody has.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

/* Let blocks draw numbers as soon as there is any task. Then some blocks wait with the number of a task that has not been submitted. */
#define WEFT_DEVICE_TASKS_SURE 0
#include "cluster_test.h"

#define BLOCKS 3u
#define TASKS  1500u

struct farm {
    weft_gpu *g;
    weft_gpu_worker *k;
    weft_gaddr counts; /* at node 0: how often each task was done */
    uint64_t *first;   /* if not NULL, points to a word of `counts`: blocks begin when blocks of another node have done a task */
    const weft_device_worker *there;
    _Atomic bool hang; /* the first block that sees this flag hangs */
    _Atomic bool over;
    _Atomic uint32_t ended; /* blocks that were told that there are no more tasks */
};

static void farm_open(weft_node *w, weft_queue *q, struct farm *f, uint32_t ahead, int64_t task_ns, uint32_t slots)
{
    weft_gpu_config gc = {.bytes = sizeof gc, .name = "host", .rings = 2, .slots = slots};
    OK(weft_gpu_open(w, &gc, &f->g));
    weft_gpu_worker_config kc = {.bytes = sizeof kc, .ahead = ahead, .task_ns = task_ns, .renew_ns = 50 * WEFT_MS};
    OK(weft_gpu_worker_open(f->g, q, &kc, &f->k));
    f->there = weft_gpu_worker_device(f->k);
}

static weft_queue *farm_queue(weft_node *w, int64_t lease_ns)
{
    weft_queue *q;
    weft_queue_config c = {.bytes = sizeof c, .slots = 2048, .lease_ns = lease_ns};
    OK(weft_queue_open(w, "farm", &c, &q));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    return q;
}

static void work(const weft_device *d, void *arg)
{
    struct farm *f = arg;
    weft_device_task t;
    int rc;
    while ((rc = weft_device_next_task(d, f->there, &t)) == 0) {
        if (atomic_exchange(&f->hang, false))
            while (!atomic_load(&f->over))
                weft_device_pause();
        CHECK(t.task.arg[1] == ~t.task.arg[0] && t.task.arg[4] == t.task.arg[0] + 4);
        uint64_t old;
        CHECK(weft_device_fetch_add(d, f->counts + 8 * t.task.arg[0], 1, &old) == 0);
        CHECK(weft_device_task_done(d, f->there, &t, (int32_t)t.task.kind, t.task.arg[0] * 3, t.task.arg[0] + 1) == 0);
    }
    CHECK(rc == -WEFT_DEVICE_ESHUTDOWN);
    atomic_fetch_add(&f->ended, 1);
}

/* Submits all tasks, and reaps all: each comes back once, with the result of its block. */
static void farm_out(weft_queue *q, uint32_t tasks)
{
    static bool seen[TASKS];
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < tasks; i++) {
        weft_task t = {.kind = i % 7, .arg = {i, ~(uint64_t)i, 0, 0, i + 4}, .tag = i};
        CHECK(weft_submit(q, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
    }
    weft_done done[32];
    for (uint32_t got = 0; got < tasks;) {
        int n = weft_reap(q, done, 32, WEFT_TIMEOUT_DEFAULT);
        CHECK(n > 0);
        for (int i = 0; i < n; i++, got++) {
            uint64_t tag = done[i].tag;
            CHECK(tag < tasks && !seen[tag] && done[i].status == (int32_t)(tag % 7) && done[i].result == tag * 3 &&
                  done[i].result_len == tag + 1);
            seen[tag] = true;
        }
    }
    OK(weft_queue_shutdown(q));
}

static void *submitter(void *arg)
{
    farm_out(arg, TASKS);
    return NULL;
}

/* Small rings that are full: few places for tasks, and for requests. */
static void node_once(weft_node *w, void *arg)
{
    (void)arg;
    struct farm f = {.counts = on_node(symmetric_alloc(w, 8 * TASKS), 0)};
    weft_queue *q = farm_queue(w, 0);
    farm_open(w, q, &f, 8, 0, 16);
    pthread_t thread;
    if (weft_rank(w) == 0)
        CHECK(pthread_create(&thread, NULL, submitter, q) == 0);
    OK(weft_gpu_run(f.g, work, BLOCKS, &f)); /* runs until the queue is shut down */
    if (weft_rank(w) == 0)
        pthread_join(thread, NULL);
    CHECK(f.ended == BLOCKS);
    weft_gpu_worker_stats stats;
    OK(weft_gpu_worker_close(f.k));
    CHECK(weft_gpu_worker_close(f.k) == -EINVAL);
    OK(weft_gpu_worker_stat(f.k, &stats, sizeof stats));
    CHECK(stats.claimed == stats.done && stats.refused == 0 && stats.taken_back == 0);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t i = 0; weft_rank(w) == 0 && i < TASKS; i++)
        CHECK(((uint64_t *)weft_ptr(w, f.counts, 8 * TASKS))[i] == 1);
    OK(weft_gpu_close(f.g));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

/* More blocks than tasks: there is one task at a time, and several blocks take a number at the same moment. No task may be lost. A lost
 * task would come back only after its lease, which is longer than this test may take. */
static void *one_by_one(void *arg)
{
    weft_done done;
    for (uint32_t i = 0; i < TASKS; i++) {
        weft_task t = {.arg = {i, ~(uint64_t)i, 0, 0, i + 4}, .tag = i};
        CHECK(weft_submit(arg, &t, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
        CHECK(weft_reap(arg, &done, 1, 5 * WEFT_SECOND) == 1 && done.tag == i && done.result == 3 * (uint64_t)i);
    }
    OK(weft_queue_shutdown(arg));
    return NULL;
}

static void node_few(weft_node *w, void *arg)
{
    (void)arg;
    struct farm f = {.counts = symmetric_alloc(w, 8 * TASKS)};
    weft_queue *q = farm_queue(w, 0);
    farm_open(w, q, &f, 8, 60 * WEFT_SECOND, 64);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, one_by_one, q) == 0);
    OK(weft_gpu_run(f.g, work, 4 * BLOCKS, &f));
    pthread_join(thread, NULL);
    weft_gpu_worker_stats stats;
    OK(weft_gpu_worker_stat(f.k, &stats, sizeof stats));
    CHECK(stats.claimed == TASKS && stats.taken_back == 0);
}

static void test_few(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_few, NULL), 0);
}

static void test_once(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, node_once, NULL), 0);
}

static void *run_blocks(void *arg)
{
    struct farm *f = arg;
    for (uint32_t i = 0; f->first && !__atomic_load_n(&f->first[i % TASKS], __ATOMIC_RELAXED); i++)
        ;
    OK(weft_gpu_run(f->g, work, BLOCKS, f));
    return NULL;
}

/* A block hangs while it has a task: another block does the task, and the first block's late result is refused. */
static void node_hang(weft_node *w, void *arg)
{
    (void)arg;
    struct farm f = {.counts = symmetric_alloc(w, 8 * TASKS), .hang = true};
    weft_queue *q = farm_queue(w, 0);
    farm_open(w, q, &f, 16, 300 * WEFT_MS, 64);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_blocks, &f) == 0);
    farm_out(q, 200);
    atomic_store(&f.over, true);
    pthread_join(thread, NULL);
    weft_gpu_stats requests;
    weft_gpu_worker_stats stats;
    OK(weft_gpu_worker_close(f.k));
    OK(weft_gpu_worker_stat(f.k, &stats, sizeof stats));
    CHECK(stats.taken_back == 1 && stats.done == 200 && stats.claimed == 201);
    for (int i = 0; i < 1000; i++) { /* the last request has not arrived yet */
        OK(weft_gpu_stat(f.g, &requests, sizeof requests));
        if (requests.failed)
            break;
        usleep(1000);
    }
    CHECK(requests.failed == 1);
    OK(weft_gpu_close(f.g));
}

static void test_hang(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_hang, NULL), 0);
}

/* A worker without a kernel gives its tasks back, and claims again when blocks ask. Then it is closed while they wait. */
static void node_idle(weft_node *w, void *arg)
{
    (void)arg;
    struct farm f = {.counts = symmetric_alloc(w, 8 * TASKS)};
    weft_queue *q = farm_queue(w, 0);
    farm_open(w, q, &f, 4, 100 * WEFT_MS, 64);
    weft_task task = {.arg = {0, ~(uint64_t)0, 0, 0, 4}};
    CHECK(weft_submit(q, &task, 1, NULL, WEFT_TIMEOUT_DEFAULT) == 1);
    weft_gpu_worker_stats stats;
    do {
        usleep(1000);
        OK(weft_gpu_worker_stat(f.k, &stats, sizeof stats));
    } while (stats.taken_back == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_blocks, &f) == 0);
    weft_done done;
    CHECK(weft_reap(q, &done, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    CHECK(f.ended == 0);
    OK(weft_gpu_worker_close(f.k));
    pthread_join(thread, NULL);
    CHECK(f.ended == BLOCKS);
    OK(weft_gpu_close(f.g));
}

static void test_idle(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_idle, NULL), 0);
}

/* Sends results of tasks that no block has, for workers that do not exist. */
static void lie(const weft_device *d, void *arg)
{
    struct farm *f = arg;
    weft_device_worker other = *f->there;
    weft_device_task t = {.number = 0};
    for (uint32_t i = 0; i < 6; i++) {
        other.number = i < 2 ? 0 : i == 2 ? 1 : i == 3 ? 64 : i == 4 ? UINT32_MAX : 0;
        t.number = i == 1 ? 77 : i == 5 ? UINT64_MAX : 0;
        CHECK(weft_device_task_done(d, &other, &t, 0, 0, 0) == 0);
        CHECK(weft_device_flush(d, d->rank) == (i < 2 ? -ESTALE : -EINVAL));
    }
}

static void node_lie(weft_node *w, void *arg)
{
    (void)arg;
    struct farm f = {0};
    farm_open(w, farm_queue(w, 0), &f, 4, 0, 64);
    OK(weft_gpu_run(f.g, lie, 1, &f));
    weft_gpu_worker *none;
    weft_gpu_worker_config wrong = {.bytes = sizeof wrong, .ahead = 3};
    CHECK(weft_gpu_worker_open(f.g, NULL, &wrong, &none) == -EINVAL && !none);
    OK(weft_gpu_close(f.g)); /* closes the worker */
}

static void test_lie(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_lie, NULL), 0);
}

static void at_once(weft_node *w, void *record, weft_gpu_call *call, void *arg)
{
    uint64_t *words = record;
    CHECK(arg == w);
    words[31] = words[0] + 1;
    CHECK(weft_gpu_answer(call, 1, 0) == -EINVAL);
    OK(weft_gpu_answer(call, words[0] == 13 ? -ENOSPC : 0, words[0] * 2));
}

/* A kernel that writes wherever it can: its node does the requests that are valid, and goes on. */
struct vandal {
    struct farm f;
    uint32_t queue;
    /* What the kernel may overwrite. Only one thread of the node uses each of these, because two would race; a copy uses one half for each
     * end. Another thread executes requests to queues. */
    weft_gaddr area, desk, arena, arena_desk;
};
#define AREA 65536u

static uint64_t any(void)
{
    static uint64_t x = 88172645463325252ull;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return x >> 8;
}

static uint64_t any_word(const weft_device *d, weft_gaddr area)
{
    uint64_t to = any() % (AREA / 4);
    switch (any() % 8) {
    case 0: return any() << 8 ^ any();
    case 1: return weft_gaddr_make(any() % 3 ? d->rank : 7, 0, 1ull << 43);
    case 2: return any() % 4 ? any() % 3 : UINT64_MAX;
    case 3: return area + to;
    default: return area + to / 8 * 8;
    }
}

static void any_request(const weft_device *d, const struct vandal *v)
{
    static const uint64_t lengths[] = {0, 1, 8, 63, 64, 65, 256, 4096, 1ull << 44, WEFT_DEVICE_LENGTH};
    uint64_t kind = 1 + any() % (WEFT_DEVICE_KINDS - 1), length = lengths[any() % 10], number = any() % 3 ? v->queue : any() % 80, ticket;
    weft_device_ring *r = &d->ring[d->block % d->rings];
    uint32_t slots = weft_device_slots((uint32_t)kind);
    bool in_arena = any() % 5 == 0, to_queue = kind > WEFT_DEVICE_RECORD;
    weft_gaddr area = in_arena ? (to_queue ? v->arena_desk : v->arena) : (to_queue ? v->desk : v->area);
    if (kind == WEFT_DEVICE_RECORD)
        length = any() % 2 ? WEFT_DEVICE_RECORD_BYTES : length;
    /* A message without a handler would wait for one: none arrives. */
    uint64_t low = kind == WEFT_DEVICE_SEND ? d->size + any() : any_word(d, area);
    CHECK(weft_device_reserve(d, r, slots, true, &ticket, NULL) == 0);
    if (slots == 2)
        weft_device_fill(r, ticket + 1, any() % 2 ? any() : any() % 2 << 32, any(), any(), any());
    weft_device_fill(r, ticket, low, kind << WEFT_DEVICE_KIND_SHIFT | (any() % 2 ? WEFT_DEVICE_ANSWER : 0) | length,
                     any_word(d, area + AREA / 2), any() % 4 ? number : any());
}

static void vandalise(const weft_device *d, void *arg)
{
    struct vandal *v = arg;
    const weft_device_worker *k = v->f.there;
    weft_device_ring *r = &d->ring[0];
    for (uint32_t i = 0; i < 20000; i++) {
        any_request(d, v);
        weft_device_tell(&k->beats[any() % WEFT_DEVICE_BEATS], any() % 3 ? any() : any() % 100);
        weft_device_tell((uint64_t *)(uintptr_t)&k->slots[any() & k->mask].number, any() % 50);
        weft_device_tell((uint64_t *)(uintptr_t)&r->answers[any() & r->mask].low, any());
        weft_device_tell((uint64_t *)(uintptr_t)&r->answers[any() & r->mask].high, any());
    }
    weft_device_tell((uint64_t *)(uintptr_t)k->filled, UINT64_MAX);
    weft_device_tell((uint64_t *)(uintptr_t)k->ended, 1);
}

/* Does one task, if one is ready. */
static void do_one(weft_queue *q)
{
    weft_lease lease;
    if (weft_claim(q, &lease, 1, 10 * WEFT_MS) == 1)
        CHECK(weft_complete(q, &lease, &(weft_result){.status = 3}, 1, NULL) >= 0);
}

/* A task that is submitted now is done, whatever the kernel has submitted, has claimed and keeps, or has written into the worker's ring. */
static void still_works(weft_queue *q)
{
    weft_task task = {.tag = 4711};
    weft_done done = {.tag = 0};
    while (weft_submit(q, &task, 1, NULL, 0) != 1)
        do_one(q);
    while (done.tag != 4711) {
        do_one(q);
        while (done.tag != 4711 && weft_reap(q, &done, 1, 0) == 1)
            ;
    }
    CHECK(done.status == 3);
}

static void node_vandal(weft_node *w, void *arg)
{
    (void)arg;
    struct vandal v = {0};
    weft_queue *q = farm_queue(w, 200 * WEFT_MS);
    uint32_t space;
    farm_open(w, q, &v.f, 8, 100 * WEFT_MS, 256);
    OK(weft_gpu_queue(v.f.g, q, &v.queue));
    OK(weft_gpu_arena(v.f.g, 2 * AREA, &space));
    OK(weft_gpu_alloc(v.f.g, space, AREA, &v.arena));
    OK(weft_gpu_alloc(v.f.g, space, AREA, &v.arena_desk));
    OK(weft_alloc_aligned(w, AREA, 64, &v.area));
    OK(weft_alloc_aligned(w, AREA, 64, &v.desk));
    OK(weft_gpu_service(w, 1, at_once, w));
    OK(weft_gpu_run(v.f.g, vandalise, 1, &v));
    still_works(q);
    OK(weft_gpu_close(v.f.g));
}

static void test_vandal(void **state)
{
    (void)state;
    const char *const environment[] = {"WEFT_DEADLINE=5s", NULL};
    assert_int_equal(nodes_failed_with(1, node_vandal, NULL, environment), 0);
}

/* Services: one that answers at once, one later from another thread, and one that never does. */
struct later {
    weft_gpu_call *_Atomic call;
    uint64_t *record;
};

static void later(weft_node *w, void *record, weft_gpu_call *call, void *arg)
{
    (void)w;
    struct later *l = arg;
    l->record = record;
    atomic_store(&l->call, call);
}

static void *answers(void *arg)
{
    struct later *l = arg;
    weft_gpu_call *call;
    while (!(call = atomic_load(&l->call)))
        usleep(100);
    usleep(2000);
    l->record[1] = 77;
    OK(weft_gpu_answer(call, 0, 5));
    return NULL;
}

struct records {
    weft_gaddr pool, arena;
};

static void ask(const weft_device *d, void *arg)
{
    const struct records *all = arg;
    weft_gaddr record = all->pool;
    uint64_t *words = weft_device_ptr(d, record, WEFT_DEVICE_RECORD_BYTES), value;
    for (uint64_t i = 0; i < 100; i++) {
        words[0] = i;
        CHECK(weft_device_ask(d, 3, record, &value) == (i == 13 ? -ENOSPC : 0));
        CHECK(words[31] == i + 1 && (i == 13 || value == 2 * i));
    }
    weft_device_op op;
    CHECK(weft_device_ask_start(d, 4, record, &op) == 0 && weft_device_wait(d, &op) == 0 && op.value == 5 && words[1] == 77);
    CHECK(weft_device_ask(d, 5, record, NULL) == -ENOENT);
    CHECK(weft_device_ask(d, UINT32_MAX, record, NULL) == -ENOENT);
    CHECK(weft_device_ask(d, 3, record + 1, NULL) == -EINVAL);
    CHECK(weft_device_ask(d, 3, weft_gaddr_make(d->rank, 0, 1ull << 43), NULL) == -EFAULT);
    CHECK(weft_device_ask(d, 3, weft_gaddr_make(d->rank + 1, 0, 4096), NULL) == -EFAULT);
    CHECK(weft_device_ask(d, 3, weft_gaddr_make(d->rank, 9, 65536), NULL) == -EFAULT);
    /* The processor reads the payload, so it must be in the pool: an arena's memory may be accessible to the GPU only. */
    CHECK(weft_device_send(d, d->rank, 1, 0, all->arena, 64, &op) == 0 && weft_device_wait(d, &op) == -EFAULT);
    CHECK(weft_device_ask_start(d, 6, record, NULL) == 0);
}

/* The same with a record in an arena. While the first service has not answered, the second one is called: its request is behind the first
   one in the ring. */
static void ask_arena(const weft_device *d, void *arg)
{
    const struct records *all = arg;
    uint64_t *words = weft_device_ptr(d, all->arena, 2 * WEFT_DEVICE_RECORD_BYTES), *more = words + 32, value;
    weft_device_op op, next;
    for (uint64_t i = 0; i < 100; i++) {
        words[0] = i;
        words[31] = 0;
        CHECK(weft_device_ask(d, 3, all->arena, &value) == (i == 13 ? -ENOSPC : 0));
        CHECK(words[0] == i && words[31] == i + 1 && (i == 13 || value == 2 * i));
    }
    words[1] = more[1] = 0;
    CHECK(weft_device_ask_start(d, 7, all->arena, &op) == 0);
    CHECK(weft_device_ask_start(d, 8, all->arena + WEFT_DEVICE_RECORD_BYTES, &next) == 0);
    CHECK(weft_device_wait(d, &op) == 0 && op.value == 5 && words[1] == 77 && more[1] == 0);
    CHECK(weft_device_wait(d, &next) == 0 && next.value == 6);
    CHECK(weft_device_ask(d, 5, all->arena, NULL) == -ENOENT);
    CHECK(weft_device_ask(d, 3, all->arena + 4, NULL) == -EINVAL);
    CHECK(weft_device_ask(d, 3, all->arena + (1u << 20), NULL) == -EFAULT);
    CHECK(weft_device_ask_start(d, 6, all->arena, NULL) == 0);
}

/* Answers the first call when the second has come. */
static struct pair {
    weft_gpu_call *first;
    uint64_t *record;
} pair;

static void of_pair(weft_node *w, void *record, weft_gpu_call *call, void *arg)
{
    (void)w;
    if (!arg) {
        pair.first = call;
        pair.record = record;
        return;
    }
    CHECK(pair.first);
    pair.record[1] = 77;
    OK(weft_gpu_answer(pair.first, 0, 5));
    OK(weft_gpu_answer(call, 0, 6));
}

static void node_services(weft_node *w, void *arg)
{
    (void)arg;
    static struct later one, never;
    struct records record;
    OK(weft_gpu_service(w, 7, of_pair, NULL));
    OK(weft_gpu_service(w, 8, of_pair, w));
    OK(weft_alloc_aligned(w, WEFT_DEVICE_RECORD_BYTES, 64, &record.pool));
    OK(weft_gpu_service(w, 3, at_once, w));
    OK(weft_gpu_service(w, 4, later, &one));
    OK(weft_gpu_service(w, 6, later, &never));
    CHECK(weft_gpu_service(w, 4, later, &one) == -EALREADY && weft_gpu_service(w, WEFT_GPU_SERVICES, later, NULL) == -EINVAL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, answers, &one) == 0);
    weft_gpu *g;
    weft_gpu_config gc = {.bytes = sizeof gc, .name = "host"};
    uint32_t space;
    OK(weft_gpu_open(w, &gc, &g));
    OK(weft_gpu_arena(g, 4096, &space));
    OK(weft_gpu_alloc(g, space, 2 * WEFT_DEVICE_RECORD_BYTES, &record.arena));
    OK(weft_gpu_run(g, ask, 1, &record));
    pthread_join(thread, NULL);
    OK(weft_gpu_close(g)); /* ends within the deadline */
    CHECK(never.call);
    OK(weft_gpu_open(w, &gc, &g));
    OK(weft_gpu_arena(g, 4096, &space));
    OK(weft_gpu_alloc(g, space, 2 * WEFT_DEVICE_RECORD_BYTES, &record.arena));
    never.call = NULL;
    OK(weft_gpu_run(g, ask_arena, 1, &record));
    OK(weft_gpu_close(g));
    CHECK(never.call);
    never.record[1] = 1; /* the copy exists until the node is closed */
    OK(weft_gpu_answer(never.call, 0, 0));
}

static void test_services(void **state)
{
    (void)state;
    const char *const environment[] = {"WEFT_DEADLINE=1s", NULL};
    assert_int_equal(nodes_failed_with(1, node_services, NULL, environment), 0);
}

/* A node is killed while its blocks work: the other node's blocks do its tasks. */
static void node_killed(weft_node *w, void *arg)
{
    (void)arg;
    struct farm f = {.counts = on_node(symmetric_alloc(w, 8 * TASKS), 0)};
    weft_queue *q = farm_queue(w, 0);
    farm_open(w, q, &f, 32, 0, 64);
    f.first = weft_rank(w) == 0 ? weft_ptr(w, f.counts, 8 * TASKS) : NULL;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_blocks, &f) == 0);
    if (weft_rank(w) == 1) {
        weft_gpu_worker_stats stats;
        do {
            usleep(100);
            OK(weft_gpu_worker_stat(f.k, &stats, sizeof stats));
        } while (stats.done == 0);
        raise(SIGKILL);
    }
    farm_out(q, TASKS);
    pthread_join(thread, NULL);
    OK(weft_gpu_close(f.g));
}

static void test_killed(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(2, node_killed, NULL, NULL, status);
    assert_int_equal(status[0], 0);
    assert_true(WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once), cmocka_unit_test(test_few),    cmocka_unit_test(test_hang),     cmocka_unit_test(test_idle),
        cmocka_unit_test(test_lie),  cmocka_unit_test(test_killed), cmocka_unit_test(test_services), cmocka_unit_test(test_vandal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
