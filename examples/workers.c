/* SPDX-License-Identifier: MIT
 *
 * workers: one kernel on each node's GPU takes tasks from a queue and returns their results. A thread of node 0 submits the tasks and adds
 * up the results. Each task is to square a number.
 *
 * It shows persistent workers (weft_gpu_worker_open(), weft_device_next_task(), weft_device_task_done()): each node starts one kernel for
 * all tasks. On the GPU `host` blocks are threads; a kernel for CUDA calls the same functions (cuda_workers.cu).
 *
 * Run:
 *     weft run -n 2 -- ./workers
 * It prints:
 *     1000 tasks done: the squares of the numbers below 1000 add up to 332833500
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft.h>

#define TASKS  1000
#define BATCH  50
#define BLOCKS 2

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "workers: %s: %s\n", what, weft_error());
        exit(1);
    }
}

struct job {
    const weft_device_worker *worker;
    int rc[BLOCKS]; /* result of each block */
};

/* The kernel: each block does one task after the other until the queue is shut down. */
static void work(const weft_device *d, void *arg)
{
    struct job *job = arg;
    weft_device_task t;
    int rc;
    while ((rc = weft_device_next_task(d, job->worker, &t)) == 0) {
        uint64_t number = t.task.arg[0];
        rc = weft_device_task_done(d, job->worker, &t, 0, number * number, 8);
        if (rc)
            break;
    }
    job->rc[weft_device_block(d)] = rc;
}

/* A thread of node 0: submits all tasks, takes all results, and shuts the queue down, which ends the kernels. */
static void *submit(void *arg)
{
    weft_queue *q = arg;
    weft_task tasks[BATCH];
    weft_done done[BATCH];
    uint64_t sum = 0;
    for (uint64_t first = 0; first < TASKS; first += BATCH) {
        for (uint32_t i = 0; i < BATCH; i++)
            tasks[i] = (weft_task){.arg = {first + i}, .tag = first + i};
        for (uint32_t sent = 0; sent < BATCH;) {
            int n = weft_submit(q, tasks + sent, BATCH - sent, NULL, WEFT_TIMEOUT_DEFAULT);
            check(n, "submit");
            sent += (uint32_t)n;
        }
    }
    for (uint32_t got = 0; got < TASKS;) {
        int n = weft_reap(q, done, BATCH, WEFT_TIMEOUT_DEFAULT);
        check(n, "reap");
        for (int i = 0; i < n; i++)
            sum += done[i].result;
        got += (uint32_t)n;
    }
    printf("%d tasks done: the squares of the numbers below %d add up to %llu\n", TASKS, TASKS, (unsigned long long)sum);
    check(weft_queue_shutdown(q), "shutdown");
    return NULL;
}

int main(void)
{
    weft_node *w;
    weft_queue *q;
    weft_gpu *gpu;
    weft_gpu_worker *worker;
    pthread_t submitter;
    check(weft_open(&w, NULL), "open");
    check(weft_queue_open(w, "squares", NULL, &q), "queue");
    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    check(weft_gpu_worker_open(gpu, q, NULL, &worker), "worker");
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");

    bool first = weft_rank(w) == 0;
    if (first && pthread_create(&submitter, NULL, submit, q))
        exit(1);
    struct job job = {.worker = weft_gpu_worker_device(worker)};
    check(weft_gpu_run(gpu, work, BLOCKS, &job), "kernel");
    for (int i = 0; i < BLOCKS; i++)
        if (job.rc[i] != -WEFT_DEVICE_ESHUTDOWN) {
            fprintf(stderr, "workers: node %u: block %d ended with %d before all tasks were done (weft/device.h lists the errors)\n",
                    weft_rank(w), i, job.rc[i]);
            exit(1);
        }
    if (first)
        pthread_join(submitter, NULL);

    check(weft_gpu_close(gpu), "GPU"); /* also closes the worker */
    check(weft_close(w), "close");
    return 0;
}
