/* SPDX-License-Identifier: MIT
 *
 * CUDA's driver fails, or has kernels that still run when their GPU is closed. The driver is that for tests (tests/gpu/fake_cuda.c), whose
 * kernels are threads of this process.
 */
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cluster_test.h"

#define RINGS 2

static struct driver {
    int (*say)(const char *words);
    int (*start)(void (*kernel)(void *), void *arg);
    int (*registered)(const void *memory);
    int (*mapped)(const void *memory);
    int (*copy)(unsigned long long to, unsigned long long from, size_t bytes, void *stream);
} driver;

static void find(void *library, const char *name, void *function)
{
    void *at = dlsym(library, name);
    CHECK(at);
    memcpy(function, &at, sizeof at);
}

static void driver_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    find(library, "fakeSay", &driver.say);
    find(library, "fakeStart", &driver.start);
    find(library, "fakeRegistered", &driver.registered);
    find(library, "fakeMapped", &driver.mapped);
    find(library, "cuMemcpyAsync", &driver.copy);
}

static int try_open(weft_node *w, const char *name, weft_gpu **g)
{
    weft_gpu_config config = {.bytes = sizeof config, .name = name, .rings = RINGS, .slots = 64};
    return weft_gpu_open(w, &config, g);
}

static weft_gpu *open_gpu(weft_node *w)
{
    weft_gpu *g;
    OK(try_open(w, "cuda:0", &g));
    return g;
}

/* --- a GPU is closed while a kernel waits --- */

struct waits {
    weft_device d;
    weft_gaddr page, cell; /* memory in the pool and in an arena */
    const void *pool[2];   /* the page here, and that of the other node; NULL: none */
    const void *arena[2];  /* the same for the cell, for kernels */
    _Atomic bool go_on;    /* the kernel may end */
    _Atomic uint32_t begun, held, ended;
};

static bool has_memory(const struct waits *k)
{
    bool all = driver.registered(k->d.notice);
    for (int i = 0; i < 2; i++)
        all &= (!k->pool[i] || driver.registered(k->pool[i])) && (!k->arena[i] || driver.mapped(k->arena[i]));
    return all;
}

static bool has_none(const struct waits *k)
{
    bool any = driver.registered(k->d.notice);
    for (int i = 0; i < 2; i++)
        any |= (k->pool[i] && driver.registered(k->pool[i])) || (k->arena[i] && driver.mapped(k->arena[i]));
    return !any;
}

/* A kernel that waits until weft ends this wait, and then takes some time to end. */
static void wait_for_ever(void *arg)
{
    struct waits *k = arg;
    weft_device_patience p = {0, 0};
    int64_t began = now_ns();
    atomic_store(&k->begun, 1);
    while (!weft_device_late(&k->d, &p))
        ;
    CHECK(now_ns() - began < k->d.deadline_ns);
    do
        usleep(200000);
    while (!atomic_load(&k->go_on));
    atomic_store(&k->held, has_memory(k));
    atomic_store(&k->ended, 1);
}

static weft_gpu *gpu_with_arena(weft_node *w, struct waits *k)
{
    uint32_t space;
    weft_gpu *g = open_gpu(w);
    OK(weft_alloc(w, 64, &k->page));
    OK(weft_gpu_arena(g, 1u << 20, &space));
    OK(weft_gpu_alloc(g, space, 64, &k->cell));
    k->pool[0] = weft_ptr(w, k->page, 64);
    k->arena[0] = weft_gpu_ptr(g, k->cell, 64);
    CHECK(k->pool[0] && k->arena[0]);
    weft_gpu_device_copy(g, &k->d, sizeof k->d);
    return g;
}

static void start_waiting(struct waits *k)
{
    OK(driver.start(wait_for_ever, k));
    wait_for(&k->begun, 1);
    CHECK(has_memory(k));
}

static weft_gpu *gpu_with_kernel(weft_node *w, struct waits *k)
{
    weft_gpu *g = gpu_with_arena(w, k);
    start_waiting(k);
    return g;
}

static int closes(int rank, void *arg)
{
    (void)rank;
    weft_node *w;
    struct waits k = {.go_on = true};
    driver_open();
    setenv("WEFT_POOL", "16M", 0);
    setenv("WEFT_SIZE", "1", 1);
    OK(weft_open(&w, NULL));
    weft_gpu *g = gpu_with_kernel(w, &k);
    int64_t began = now_ns();
    if (*(bool *)arg)
        OK(weft_gpu_close(g));
    else
        OK(weft_close(w));
    CHECK(now_ns() - began < 20 * WEFT_SECOND); /* much less than the deadline, which is 30 s */
    CHECK(k.ended && k.held && !driver.registered(k.d.notice) && !driver.mapped(k.arena[0]));
    if (*(bool *)arg)
        OK(weft_close(w));
    return 0;
}

static void test_closes(void **state)
{
    (void)state;
    for (int gpu = 0; gpu < 2; gpu++)
        assert_int_equal(processes_failed(1, closes, &(bool){gpu}), 0);
}

/* Two handles of one GPU: the kernels of both must get the notice before the node waits for one of them. */
static int two_handles(int rank, void *arg)
{
    (void)rank, (void)arg;
    weft_node *w;
    struct waits a = {.go_on = true}, b = {.go_on = true};
    driver_open();
    setenv("WEFT_POOL", "16M", 0);
    setenv("WEFT_SIZE", "1", 1);
    OK(weft_open(&w, NULL));
    (void)gpu_with_kernel(w, &a);
    (void)gpu_with_kernel(w, &b);
    int64_t began = now_ns();
    OK(weft_close(w));
    CHECK(now_ns() - began < 20 * WEFT_SECOND);
    CHECK(a.ended && a.held && b.ended && b.held && has_none(&a) && has_none(&b));
    return 0;
}

static void test_two_handles(void **state)
{
    (void)state;
    assert_int_equal(processes_failed(1, two_handles, NULL), 0);
}

/* --- a kernel runs on --- */

static weft_node *open_alone(void)
{
    weft_node *w;
    driver_open();
    setenv("WEFT_POOL", "16M", 0);
    setenv("WEFT_SIZE", "1", 1);
    setenv("WEFT_DEADLINE", "5s", 1);
    setenv("WEFT_LOG", "error", 1);
    OK(weft_open(&w, NULL));
    return w;
}

static void let_end(struct waits *k)
{
    atomic_store(&k->go_on, true);
    wait_for(&k->ended, 1);
    CHECK(k->held);
}

/* The kernel keeps its memory until the node is closed, also if the driver does not wait because a thread captures a graph. */
static int too_long(int rank, void *arg)
{
    (void)rank;
    bool captures = *(bool *)arg;
    weft_node *w = open_alone();
    struct waits k = {.go_on = false};
    weft_gpu *g = gpu_with_kernel(w, &k);
    int64_t began = now_ns();
    driver.say(captures ? "capture" : "");
    OK(weft_gpu_close(g));
    CHECK((captures || now_ns() - began >= 5 * WEFT_SECOND) && !k.ended && has_memory(&k));
    driver.say("");
    let_end(&k);
    OK(weft_close(w));
    CHECK(has_none(&k));
    OK(weft_open(&w, NULL)); /* everything can be registered again */
    struct waits again = {.go_on = true};
    OK(weft_gpu_close(gpu_with_kernel(w, &again)));
    OK(weft_close(w));
    CHECK(again.held && has_none(&again));
    return 0;
}

static void test_too_long(void **state)
{
    (void)state;
    for (int captures = 0; captures < 2; captures++)
        assert_int_equal(processes_failed(1, too_long, &(bool){captures}), 0);
}

/* The same with memory of another node: the driver for tests checks that the other node's pool is unregistered before it is unmapped. */
static void node_too_long(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t other = 1 - weft_rank(w);
    static struct waits k;
    driver_open();
    weft_gpu *g = gpu_with_arena(w, &k);
    OK(weft_barrier(w, patience_ns(60)));
    k.pool[1] = weft_ptr(w, on_node(k.page, other), 64);
    k.arena[1] = weft_gpu_ptr(g, on_node(k.cell, other), 64);
    CHECK(k.pool[1] && k.arena[1]);
    OK(weft_barrier(w, patience_ns(60)));
    start_waiting(&k);
    OK(weft_gpu_close(g));
    CHECK(!k.ended && has_memory(&k));
    let_end(&k);
}

static void test_nodes_too_long(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, node_too_long, NULL, (const char *const[]){"WEFT_DEADLINE=5s", "WEFT_LOG=error", NULL}), 0);
}

/* A kernel that runs when its node is closed keeps its memory for ever. A pool of a later node must not pass for this memory. */
static int for_ever(int rank, void *arg)
{
    (void)rank, (void)arg;
    weft_node *w = open_alone();
    static struct waits k;
    weft_gaddr page;
    weft_gpu *g;
    (void)gpu_with_kernel(w, &k);
    OK(weft_close(w));
    CHECK(!k.ended && has_memory(&k));
    OK(weft_open(&w, NULL));
    OK(weft_alloc(w, 64, &page));
    int rc = try_open(w, "cuda:0", &g);
    if (rc)
        CHECK(rc == -EIO && strstr(weft_error(), "GPU cuda:0 cannot use the pool of this node"));
    else
        CHECK(weft_ptr(w, page, 64) != k.pool[0]);
    let_end(&k);
    OK(weft_close(w));
    CHECK(has_memory(&k));
    return 0;
}

static void test_for_ever(void **state)
{
    (void)state;
    assert_int_equal(processes_failed(1, for_ever, NULL), 0);
}

/* --- memory that cannot be registered --- */

/* The driver refuses the memory that is registered after the rings and so many pools. */
static void refuse_pool(uint32_t number)
{
    static char words[32];
    snprintf(words, sizeof words, "no-register=%u", RINGS + 1 + number);
    driver.say(words);
}

/* What weft_device_ptr() finds in the GPU's memory for the pool of a node: its address and its length. */
static void pool_of(weft_gpu *g, uint32_t node, uint64_t entry[2])
{
    weft_device d;
    weft_gpu_device_copy(g, &d, sizeof d);
    OK(driver.copy((uintptr_t)entry, (uintptr_t)(d.arena + (size_t)node * 2 * 16), 16, NULL));
}

static void node_pools(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t me = weft_rank(w);
    weft_gaddr page = symmetric_alloc(w, 4096);
    weft_gpu *g;
    uint64_t entry[2];
    driver_open();
    refuse_pool(1 - me); /* the other node's pool: its kernels make requests */
    g = open_gpu(w);
    CHECK(weft_gpu_ptr(g, on_node(page, me), 8) && !weft_gpu_ptr(g, on_node(page, 1 - me), 8));
    pool_of(g, me, entry);
    CHECK(entry[0] && entry[1]);
    pool_of(g, 1 - me, entry);
    CHECK(!entry[0] && !entry[1]);
    OK(weft_gpu_close(g));
    refuse_pool(me);
    CHECK(try_open(w, "cuda:0", &g) == -EIO && !g && strstr(weft_error(), "GPU cuda:0 cannot use the pool of this node"));
    driver.say("");
    g = open_gpu(w);
    pool_of(g, 1 - me, entry);
    CHECK(entry[0] && entry[1] && weft_gpu_ptr(g, on_node(page, 1 - me), 8));
    OK(weft_gpu_close(g));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_pools(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, node_pools, NULL), 0);
}

/* --- the GPU has no memory left --- */

static void node_full(weft_node *w, void *arg)
{
    (void)arg;
    weft_gpu *g, *host;
    weft_gpu_worker *k;
    weft_queue *q;
    driver_open();
    OK(weft_queue_open(w, "full", NULL, &q));
    driver.say("full");
    CHECK(try_open(w, "cuda:0", &g) == -ENOMEM && !g &&
          strstr(weft_error(), "on the GPU cuda:0: CUDA_ERROR_OUT_OF_MEMORY; end other programs"));
    driver.say("");
    g = open_gpu(w);
    driver.say("full");
    CHECK(weft_gpu_worker_open(g, q, NULL, &k) == -ENOMEM && !k &&
          strstr(weft_error(), "on the GPU cuda:0: CUDA_ERROR_OUT_OF_MEMORY; end other programs"));
    OK(try_open(w, "host", &host)); /* the rest works */
    OK(weft_gpu_worker_open(host, q, NULL, &k));
    driver.say("");
    OK(weft_gpu_worker_open(g, q, NULL, &k)); /* and so does the GPU, when it has memory again */
    OK(weft_gpu_close(g));
    OK(weft_gpu_close(host));
}

static void test_full(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_full, NULL), 0);
}

/* --- workers have tasks that no block does --- */

static weft_gpu_worker_stats worker_stats(weft_gpu_worker *k)
{
    weft_gpu_worker_stats s;
    OK(weft_gpu_worker_stat(k, &s, sizeof s));
    return s;
}

/* Closing their GPU waits for all workers together until the deadline. */
static void node_idle(weft_node *w, void *arg)
{
    (void)arg;
    enum { WORKERS = 4, EACH = 2 };
    weft_queue *q;
    weft_gpu_worker *k[WORKERS];
    weft_gpu_worker_config config = {.bytes = sizeof config, .ahead = EACH, .task_ns = 600 * WEFT_SECOND};
    weft_task tasks[WORKERS * EACH] = {{.tag = 0}};
    driver_open();
    OK(weft_queue_open(w, "idle", NULL, &q));
    weft_gpu *g = open_gpu(w);
    for (int i = 0; i < WORKERS; i++)
        OK(weft_gpu_worker_open(g, q, &config, &k[i]));
    CHECK(weft_submit(q, tasks, WORKERS * EACH, NULL, WEFT_TIMEOUT_DEFAULT) == WORKERS * EACH);
    for (int i = 0; i < WORKERS; i++)
        while (worker_stats(k[i]).claimed < EACH)
            usleep(1000);
    int64_t began = now_ns();
    OK(weft_gpu_close(g));
    CHECK(now_ns() - began >= 5 * WEFT_SECOND && now_ns() - began < 15 * WEFT_SECOND);
}

static void test_idle(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(1, node_idle, NULL, (const char *const[]){"WEFT_DEADLINE=5s", "WEFT_LOG=error", NULL}), 0);
}

/* --- a kernel traps while its worker has tasks --- */

/* All tasks go back to the queue, where the processor gets them, and the worker claims no more. The node says so. */
static void node_trap(weft_node *w, void *arg)
{
    (void)arg;
    enum { TASKS = 3 };
    int said[2], own = dup(STDERR_FILENO);
    char text[4096] = "";
    weft_queue *q;
    weft_gpu_worker *k;
    weft_gpu_worker_config config = {.bytes = sizeof config, .task_ns = 600 * WEFT_SECOND};
    weft_task tasks[TASKS] = {{.tag = 0}, {.tag = 1}, {.tag = 2}};
    weft_lease leases[TASKS];
    weft_result results[TASKS] = {{.status = 0}};
    weft_done done;
    driver_open();
    OK(weft_queue_open(w, "trap", NULL, &q));
    weft_gpu *g = open_gpu(w);
    OK(weft_gpu_worker_open(g, q, &config, &k));
    CHECK(weft_submit(q, tasks, TASKS, NULL, WEFT_TIMEOUT_DEFAULT) == TASKS);
    while (worker_stats(k).claimed < TASKS)
        usleep(1000);
    CHECK(own >= 0 && pipe(said) == 0 && dup2(said[1], STDERR_FILENO) == STDERR_FILENO);
    driver.say("trap");
    for (uint32_t got = 0; got < TASKS;) {
        int n = weft_claim(q, leases, TASKS, WEFT_TIMEOUT_DEFAULT);
        CHECK(n > 0 && weft_complete(q, leases, results, (uint32_t)n, NULL) == n);
        got += (uint32_t)n;
    }
    for (uint32_t i = 0; i < TASKS; i++)
        CHECK(weft_reap(q, &done, 1, WEFT_TIMEOUT_DEFAULT) == 1 && done.status == 0);
    weft_gpu_worker_stats s = worker_stats(k);
    CHECK(s.claimed == TASKS && s.taken_back == TASKS && s.done == 0 && s.refused == 0);
    int64_t began = now_ns();
    OK(weft_gpu_worker_close(k));
    OK(weft_gpu_close(g));
    CHECK(now_ns() - began < 20 * WEFT_SECOND); /* nothing waits for the GPU */
    CHECK(dup2(own, STDERR_FILENO) == STDERR_FILENO);
    close(own);
    close(said[1]);
    CHECK(read(said[0], text, sizeof text - 1) > 0);
    close(said[0]);
    fputs(text, stderr);
    CHECK(strstr(text,
                 "worker 0 of GPU cuda:0 ends, and 3 tasks go back to the queue: this process can no longer use the GPU cuda:0, because "));
}

static void test_trap(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(1, node_trap, NULL, (const char *const[]){"WEFT_LOG=error", NULL}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_closes),         cmocka_unit_test(test_two_handles), cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_nodes_too_long), cmocka_unit_test(test_for_ever),    cmocka_unit_test(test_pools),
        cmocka_unit_test(test_full),           cmocka_unit_test(test_idle),        cmocka_unit_test(test_trap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
