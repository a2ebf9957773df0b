// SPDX-License-Identifier: MIT
//
// Failures on a GPU: weft run -n 2 -- faults trap | worker | closes | killed | signal | twice | none. trap: a kernel traps; its node stays
// alive, reports it, and its processor goes on. worker: the same while blocks of a persistent worker have tasks, which the queue gets back.
// closes: a node is closed while its kernels wait; they end, and the GPU still works. killed: a node is killed while its kernel puts to
// another node and that node's kernel to it; the other kernel's calls fail, and calls to nodes that are alive still work. signal: a node is
// killed while kernels of another node wait for its signal. twice: one GPU is opened twice. none: this process may use no GPU.
#include <csignal>

#include "check.cuh"
#include "weft/device.cuh"

__global__ void trap(void)
{
    __trap();
}

/* Puts until the node at the other end is gone. */
__global__ void put_for_ever(const weft_device *d, uint64_t there, uint64_t mine, struct report *bad, int *ended)
{
    int rc = 0;
    for (uint32_t i = 0; i < 2000000 && rc == 0; i++) {
        rc = weft_device_put(d, there, mine, 512, NULL);
        if (rc == 0 && i % 32 == 0)
            rc = weft_device_flush(d, (uint32_t)(there >> 48));
    }
    KERNEL_IS(rc, -ECONNRESET);
    uint64_t old;
    KERNEL(weft_device_fetch_add(d, mine, 1, &old)); /* its own node's memory is still there */
    atomicAdd(ended, 1);
}

__global__ void add_one(const weft_device *d, uint64_t word, struct report *bad)
{
    uint64_t old;
    KERNEL(weft_device_fetch_add(d, word, 1, &old));
}

/* Waits for a signal of node 1, which has been sent, and for another one, which never comes. The threads of the first block wait together,
 * those of each warp of the second one, and each thread of the third one. Each block tells node 1 when the first signal has arrived. */
__global__ void wait_for_the_dead(const weft_device *d, uint64_t signal, uint64_t begun, struct report *bad)
{
    uint64_t seen = 0;
    for (uint64_t i = 1; i <= 2; i++) {
        int rc = blockIdx.x == 0   ? weft_device_wait_for_block(d, 1, signal, i, &seen)
                 : blockIdx.x == 1 ? weft_device_wait_for_warp(d, 1, signal, i, &seen)
                                   : weft_device_wait_for(d, 1, signal, i, &seen);
        KERNEL_IS(rc, i == 1 ? 0 : -WEFT_DEVICE_ECONNRESET);
        KERNEL_CHECK(seen == 1);
        if (i == 1 && threadIdx.x == 0)
            KERNEL(weft_device_fetch_add(d, begun, 1, NULL));
    }
    KERNEL_CHECK(weft_device_gone(d, 1) && !weft_device_gone(d, 0) && weft_device_gone(d, 77));
}

static void test_signal(weft_gaddr page)
{
    if (weft_rank(w) == 1) {
        OK(weft_put_signal(w, 0, NULL, 0, on_node(page, 0), 1, NULL));
        OK(weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT));
        OK(weft_wait_until(w, on_node(page, 1) + 64, WEFT_GE, 3, NULL, 60 * WEFT_SECOND));
        kill(getpid(), SIGKILL);
    }
    wait_for_the_dead<<<3, 64>>>(weft_gpu_device(gpu), on_node(page, 0), on_node(page, 1) + 64, bad);
    KERNEL_DONE();
    OK(weft_gpu_close(gpu));
    printf("all right\n");
    exit(weft_close(w));
}

static void test_trap(weft_gaddr page)
{
    if (weft_rank(w) == 0) {
        trap<<<1, 1>>>();
        CHECK(cudaDeviceSynchronize() != cudaSuccess);
        sleep(3); /* the node's thread checks the GPU once a second, and logs a failure */
        OK(weft_put_blocking(w, on_node(page, 1), "alive", 6));
        OK(weft_gpu_close(gpu));
    }
    all_here();
    CHECK(weft_rank(w) == 0 || strcmp((char *)weft_ptr(w, page, 6), "alive") == 0);
}

/* Takes a task, and traps. */
__global__ void trap_with_task(const weft_device *d, const weft_device_worker *k, struct report *bad)
{
    weft_device_task t;
    KERNEL(weft_device_next_task(d, k, &t));
    __trap();
}

#define TASKS 20u

/* Each node does its own tasks, by a worker whose kernel traps, and then by the processor. */
static void test_worker(void)
{
    weft_task tasks[TASKS];
    weft_queue_config qc = {};
    weft_gpu_worker_config kc = {};
    weft_queue *q;
    weft_gpu_worker *k;
    weft_gpu_worker_stats stats;
    char name[16];
    qc.bytes = sizeof qc;
    kc.bytes = sizeof kc;
    kc.task_ns = 600 * WEFT_SECOND; /* only the failure may bring the tasks back */
    snprintf(name, sizeof name, "trap%u", weft_rank(w));
    memset(tasks, 0, sizeof tasks);
    OK(weft_queue_open(w, name, &qc, &q));
    OK(weft_gpu_worker_open(gpu, q, &kc, &k));
    CHECK(weft_submit(q, tasks, TASKS, NULL, WEFT_TIMEOUT_DEFAULT) == (int)TASKS);
    do {
        usleep(1000);
        OK(weft_gpu_worker_stat(k, &stats, sizeof stats));
    } while (stats.claimed < TASKS);
    trap_with_task<<<1, 1>>>(weft_gpu_device(gpu), weft_gpu_worker_device(k), bad);
    CHECK(cudaDeviceSynchronize() != cudaSuccess);
    for (uint32_t i = 0; i < TASKS; i++) {
        weft_lease lease;
        weft_result result = {};
        weft_done done;
        CHECK(weft_claim(q, &lease, 1, WEFT_TIMEOUT_DEFAULT) == 1);
        CHECK(weft_complete(q, &lease, &result, 1, NULL) == 1);
        CHECK(weft_reap(q, &done, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    }
    OK(weft_gpu_worker_stat(k, &stats, sizeof stats));
    CHECK(stats.claimed == TASKS && stats.taken_back == TASKS && stats.done == 0);
    OK(weft_gpu_worker_close(k));
    OK(weft_gpu_close(gpu));
    printf("the queue has the tasks again\n");
}

/* One half of the blocks waits for a task, the other one for a signal. */
__global__ void wait_for_ever(const weft_device *d, const weft_device_worker *k, uint64_t word, int *begun, struct report *bad)
{
    weft_device_task t;
    atomicAdd_system(begun, 1);
    if (blockIdx.x % 2)
        KERNEL_IS(weft_device_next_task(d, k, &t), -WEFT_DEVICE_ESHUTDOWN);
    else
        KERNEL_IS(weft_device_wait_at_least(d, word, 1, NULL), -WEFT_DEVICE_ETIMEDOUT);
}

static void test_closes(weft_gaddr page)
{
    const int blocks = 8;
    weft_queue *q;
    weft_gpu_worker *k;
    volatile int *begun;
    struct timespec from, to;
    CUDA(cudaHostAlloc((void **)&begun, sizeof *begun, cudaHostAllocMapped));
    *begun = 0;
    OK(weft_queue_open(w, "closes", NULL, &q));
    OK(weft_gpu_worker_open(gpu, q, NULL, &k));
    wait_for_ever<<<blocks, 1>>>(weft_gpu_device(gpu), weft_gpu_worker_device(k), on_node(page, weft_rank(w)), (int *)begun, bad);
    CUDA(cudaGetLastError());
    while (*begun < blocks)
        usleep(1000);
    all_here();
    clock_gettime(CLOCK_MONOTONIC, &from);
    int rc = weft_close(w);
    clock_gettime(CLOCK_MONOTONIC, &to);
    w = NULL;
    CUDA(cudaDeviceSynchronize());                         /* an error: a kernel used memory that was not registered any more */
    if (rc || bad->line || to.tv_sec - from.tv_sec > 20) { /* the deadline is 30 s */
        fprintf(stderr, "weft_close() returned %d after %ld s; a kernel's check in line %d failed: %d\n", rc,
                (long)(to.tv_sec - from.tv_sec), bad->line, bad->rc);
        _exit(1);
    }
    printf("all right\n");
    exit(0);
}

static void test_killed(weft_gaddr page)
{
    uint32_t me = weft_rank(w);
    int *ended;
    CUDA(cudaHostAlloc(&ended, sizeof *ended, cudaHostAllocMapped));
    *ended = 0;
    put_for_ever<<<4, 16>>>(weft_gpu_device(gpu), on_node(page, 1 - me), on_node(page, me) + 4096, bad, ended);
    CUDA(cudaGetLastError());
    usleep(300000);
    if (me == 1)
        kill(getpid(), SIGKILL);
    KERNEL_DONE();
    CHECK(*ended == 64);
    OK(weft_gpu_close(gpu));
    exit(weft_close(w));
}

static void test_twice(weft_gaddr page)
{
    weft_gpu *first = gpu;
    open_gpu(2, 64);
    add_one<<<1, 8>>>(weft_gpu_device(first), on_node(page, weft_rank(w)), bad);
    KERNEL_DONE();
    OK(weft_gpu_close(first));
    add_one<<<1, 8>>>(weft_gpu_device(gpu), on_node(page, weft_rank(w)), bad);
    KERNEL_DONE();
    CHECK(*(volatile uint64_t *)weft_ptr(w, on_node(page, weft_rank(w)), 8) == 16);
    OK(weft_gpu_close(gpu));
    CHECK(weft_gpu_close(gpu) == -EINVAL);
    open_gpu(2, 64); /* and again, after all were closed */
    all_here();
}

/* The rest of weft works without a GPU. */
static void test_none(void)
{
    weft_gpu_config config = {};
    config.bytes = sizeof config;
    config.name = "cuda:0";
    OK(weft_open(&w, NULL));
    CHECK(weft_gpu_open(w, &config, &gpu) == -ENODEV);
    printf("%s\n", weft_error());
    config.name = "host";
    OK(weft_gpu_open(w, &config, &gpu));
    all_here();
    OK(weft_close(w));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "none") == 0)
        return test_none(), 0;
    open_node();
    CHECK(weft_size(w) == 2);
    weft_gaddr page = same_place(8192);
    open_gpu(2, 64);
    all_here();
    if (strcmp(what, "trap") == 0)
        test_trap(page);
    else if (strcmp(what, "worker") == 0)
        test_worker();
    else if (strcmp(what, "closes") == 0)
        test_closes(page);
    else if (strcmp(what, "killed") == 0)
        test_killed(page);
    else if (strcmp(what, "signal") == 0)
        test_signal(page);
    else
        test_twice(page);
    OK(weft_close(w));
    printf("all right\n");
    return 0;
}
