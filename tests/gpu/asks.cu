// SPDX-License-Identifier: MIT
//
// Requests of kernels of a real GPU whose answers arrive later, by single threads: tasks of a queue by the calls named _start, and records
// for functions of the program (weft_gpu_service()), in the pool and in an arena. weft run -n N -- asks
#include <pthread.h>

#include "check.cuh"

#define TASKS   5u
#define BLOCKS  4u
#define THREADS 8u
#define ALL     (BLOCKS * THREADS)

/* Waits for the answer by polls. */
static __device__ int poll(const weft_device *d, weft_device_op *op)
{
    int rc;
    do
        rc = weft_device_test(d, op);
    while (rc == -WEFT_DEVICE_EINPROGRESS);
    return rc;
}

/* --- tasks --- */

struct desk {
    weft_task tasks[TASKS];
    weft_lease leases[TASKS];
    weft_result results[TASKS];
    uint64_t ids[TASKS];
};

/* Does tasks of this node's own queue. */
__global__ void do_tasks(const weft_device *d, uint32_t queue, weft_gaddr at, struct report *bad)
{
    struct desk *desk = (struct desk *)weft_device_ptr(d, at, sizeof *desk);
    weft_gaddr tasks = at + offsetof(struct desk, tasks), leases = at + offsetof(struct desk, leases),
               results = at + offsetof(struct desk, results), ids = at + offsetof(struct desk, ids);
    weft_device_op op;
    KERNEL_CHECK(desk != NULL);
    KERNEL(weft_device_claim_start(d, queue, leases, TASKS, true, &op));
    KERNEL_IS(poll(d, &op), -WEFT_DEVICE_EAGAIN); /* no task is ready */
    for (uint32_t i = 0; i < TASKS; i++) {
        weft_task t = {};
        t.tag = t.arg[0] = 10 + i;
        desk->tasks[i] = t;
    }
    KERNEL(weft_device_submit_start(d, queue, tasks, TASKS, ids, false, &op));
    KERNEL(poll(d, &op));
    KERNEL_CHECK(op.value == TASKS);
    for (uint32_t got = 0; got < TASKS; got += (uint32_t)op.value) {
        KERNEL(weft_device_claim_start(d, queue, leases + got * sizeof(weft_lease), TASKS - got, false, &op));
        KERNEL(weft_device_wait(d, &op));
        KERNEL_CHECK(op.value >= 1 && op.value <= TASKS - got);
    }
    for (uint32_t i = 0; i < TASKS; i++) {
        weft_result r = {};
        r.status = -(int)i;
        r.result_len = 3 * ((volatile struct desk *)desk)->leases[i].task.arg[0];
        desk->results[i] = r;
    }
    KERNEL(weft_device_renew_start(d, queue, leases, TASKS, false, &op));
    KERNEL(poll(d, &op));
    KERNEL_CHECK(op.value == (1u << TASKS) - 1);
    KERNEL(weft_device_complete_start(d, queue, leases, results, TASKS, false, &op));
    KERNEL(poll(d, &op));
    KERNEL_CHECK(op.value == (1u << TASKS) - 1);
    KERNEL(weft_device_complete_start(d, queue, leases, results, TASKS, true, &op));
    KERNEL(poll(d, &op));
    KERNEL_CHECK(op.value == 0); /* they are complete already */
    KERNEL(weft_device_claim_start(d, queue + 1, leases, 1, true, &op));
    KERNEL_IS(poll(d, &op), -WEFT_DEVICE_ENOENT); /* there is no such queue */
}

/* The desk is in the pool or in an arena. */
static void test_tasks(const char *kind, weft_gaddr at)
{
    char name[32];
    weft_queue *q;
    uint32_t number, seen = 0;
    static struct desk here;
    snprintf(name, sizeof name, "%s%u", kind, weft_rank(w));
    OK(weft_queue_open(w, name, NULL, &q));
    OK(weft_gpu_queue(gpu, q, &number));
    do_tasks<<<1, 1>>>(weft_gpu_device(gpu), number, at, bad);
    KERNEL_DONE();
    OK(weft_get_blocking(w, &here, at, sizeof here));
    for (uint32_t i = 0; i < TASKS; i++) {
        weft_done done;
        CHECK(weft_reap(q, &done, 1, WEFT_TIMEOUT_DEFAULT) == 1);
        uint32_t k = (uint32_t)done.tag - 10;
        CHECK(k < TASKS && !(seen >> k & 1) && done.id == here.ids[k]);
        CHECK(done.status == -(int)k && done.result_len == 3 * done.tag);
        seen |= 1u << k;
    }
    OK(weft_queue_close(q));
}

/* --- records --- */

#define SQUARE 3u
#define LATER  4u

/* Answers at once. */
static void square(weft_node *, void *record, weft_gpu_call *call, void *)
{
    volatile uint64_t *r = (volatile uint64_t *)record;
    uint64_t n = r[0];
    r[1] = n * n;
    OK(weft_gpu_answer(call, n % 2 ? 0 : -EPROTO, n + 1));
}

/* Keeps the call for answer_later(). */
static struct {
    pthread_mutex_t lock;
    weft_gpu_call *call[ALL];
    volatile uint64_t *record[ALL];
    uint32_t count;
} kept = {PTHREAD_MUTEX_INITIALIZER};

static void keep(weft_node *, void *record, weft_gpu_call *call, void *)
{
    pthread_mutex_lock(&kept.lock);
    CHECK(kept.count < ALL);
    kept.call[kept.count] = call;
    kept.record[kept.count++] = (volatile uint64_t *)record;
    pthread_mutex_unlock(&kept.lock);
}

/* Answers all calls, or ends because a check in the kernel has failed. */
static void answer_later(void)
{
    for (uint32_t left = ALL; left && !*(volatile int *)&bad->line;) {
        pthread_mutex_lock(&kept.lock);
        for (; kept.count; left--) {
            volatile uint64_t *r = kept.record[--kept.count];
            r[1] = 7 * r[0];
            OK(weft_gpu_answer(kept.call[kept.count], 0, 5));
        }
        pthread_mutex_unlock(&kept.lock);
        usleep(1000);
    }
}

/* Each thread has a record. */
__global__ void ask(const weft_device *d, weft_gaddr records, struct report *bad)
{
    uint64_t n = blockIdx.x * blockDim.x + threadIdx.x, value = 0;
    weft_gaddr at = records + n * WEFT_DEVICE_RECORD_BYTES;
    volatile uint64_t *r = (volatile uint64_t *)weft_device_ptr(d, at, WEFT_DEVICE_RECORD_BYTES);
    weft_device_op op;
    KERNEL_CHECK(r != NULL);
    r[0] = n;
    r[1] = 0;
    KERNEL_IS(weft_device_ask(d, SQUARE, at, &value), n % 2 ? 0 : -WEFT_DEVICE_EPROTO);
    KERNEL_CHECK(r[1] == n * n && value == (n % 2 ? n + 1 : 0));
    KERNEL(weft_device_ask_start(d, LATER, at, &op));
    KERNEL(n % 2 ? poll(d, &op) : weft_device_wait(d, &op));
    KERNEL_CHECK(r[0] == n && r[1] == 7 * n && op.value == 5);
    KERNEL_IS(weft_device_ask(d, LATER + 1, at, NULL), -WEFT_DEVICE_ENOENT);
    KERNEL_IS(weft_device_ask(d, SQUARE, at + 4, NULL), -WEFT_DEVICE_EINVAL);
    KERNEL_IS(weft_device_ask(d, SQUARE, 0, NULL), -WEFT_DEVICE_EFAULT);
    KERNEL(weft_device_nothing(d, true));
}

static void test_records(weft_gaddr records)
{
    ask<<<BLOCKS, THREADS>>>(weft_gpu_device(gpu), records, bad);
    answer_later();
    KERNEL_DONE();
}

int main(void)
{
    open_node();
    uint32_t space;
    weft_gaddr desk, records, arena_desk, arena_records;
    OK(weft_gpu_service(w, SQUARE, square, NULL));
    OK(weft_gpu_service(w, LATER, keep, NULL));
    OK(weft_alloc_aligned(w, sizeof(struct desk), 64, &desk));
    OK(weft_alloc_aligned(w, ALL * WEFT_DEVICE_RECORD_BYTES, 64, &records));
    open_gpu(2, 256);
    OK(weft_gpu_arena(gpu, 1 << 20, &space));
    OK(weft_gpu_alloc(gpu, space, sizeof(struct desk), &arena_desk));
    OK(weft_gpu_alloc(gpu, space, ALL * WEFT_DEVICE_RECORD_BYTES, &arena_records));
    all_here();
    test_tasks("pool", desk);
    test_tasks("arena", arena_desk);
    test_records(records);
    test_records(arena_records);
    all_here();
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    printf("all right\n");
    return 0;
}
