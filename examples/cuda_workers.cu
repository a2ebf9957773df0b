/* SPDX-License-Identifier: MIT
 *
 * cuda_workers: on an NVIDIA GPU. One kernel on each node takes tasks from a queue and returns their results, until there are no more. Node
 * 0 submits the tasks and adds up the results. A task is to add up all numbers below a limit; the threads of a block do it together.
 *
 * It shows persistent workers with CUDA (weft_gpu_worker_open(), weft_device_next_task(), weft_device_task_done()), and how one thread of a
 * block makes a call for all of them (weft_device_by_block()). examples/workers.c is for the GPU `host`, which needs no CUDA.
 *
 * Compile:
 *     nvcc -O2 -arch=native -o cuda_workers cuda_workers.cu -lweft
 * Run:
 *     weft run -n 2 -- ./cuda_workers
 * It prints:
 *     1000 tasks done: their results add up to 166167000
 */
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <weft.h>
#include <weft/device.cuh>

#define TASKS   1000
#define BATCH   50
#define BLOCKS  16
#define THREADS 64

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "cuda_workers: %s: %s\n", what, weft_error());
        exit(1);
    }
}

static void check_cuda(cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess) {
        fprintf(stderr, "cuda_workers: %s: %s\n", what, cudaGetErrorString(rc));
        exit(1);
    }
}

/* Each block does one task after the other until the queue is shut down. `results`: one for each block. */
static __global__ void work(const weft_device *d, const weft_device_worker *worker, int *results)
{
    __shared__ weft_device_task task;
    __shared__ unsigned long long sum;
    int rc;
    while ((rc = weft_device_by_block([&] { return weft_device_next_task(d, worker, &task); })) == 0) {
        unsigned long long part = 0;
        if (threadIdx.x == 0)
            sum = 0;
        __syncthreads();
        for (uint64_t i = threadIdx.x; i < task.task.arg[0]; i += blockDim.x)
            part += i;
        atomicAdd(&sum, part);
        rc = weft_device_by_block([&] { return weft_device_task_done(d, worker, &task, 0, sum, 8); }); /* begins with a barrier */
        if (rc)
            break;
    }
    if (threadIdx.x == 0)
        results[blockIdx.x] = rc;
}

/* Node 0: submits all tasks, takes all results, and shuts the queue down, which ends the kernels. */
static void submit(weft_queue *q)
{
    weft_task tasks[BATCH];
    weft_done done[BATCH];
    uint64_t sum = 0;
    for (uint64_t first = 0; first < TASKS; first += BATCH) {
        for (uint32_t i = 0; i < BATCH; i++) {
            tasks[i] = {};
            tasks[i].arg[0] = tasks[i].tag = first + i;
        }
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
    printf("%d tasks done: their results add up to %llu\n", TASKS, (unsigned long long)sum);
    check(weft_queue_shutdown(q), "shutdown");
}

int main(void)
{
    weft_node *w;
    weft_queue *q;
    weft_gpu *gpu;
    weft_gpu_worker *worker;
    int *results;
    check(weft_open(&w, NULL), "open");
    check(weft_queue_open(w, "sums", NULL, &q), "queue");
    weft_gpu_config config = {};
    config.bytes = sizeof config;
    config.name = "cuda:0";
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    check(weft_gpu_worker_open(gpu, q, NULL, &worker), "worker");
    check_cuda(cudaSetDevice(0), "device"); /* the same one */
    check_cuda(cudaHostAlloc(&results, BLOCKS * sizeof *results, cudaHostAllocMapped), "memory");
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");

    work<<<BLOCKS, THREADS>>>(weft_gpu_device(gpu), weft_gpu_worker_device(worker), results);
    check_cuda(cudaGetLastError(), "start of the kernel");
    if (weft_rank(w) == 0)
        submit(q);
    check_cuda(cudaDeviceSynchronize(), "kernel");
    for (int i = 0; i < BLOCKS; i++)
        if (results[i] != -WEFT_DEVICE_ESHUTDOWN) {
            fprintf(stderr, "cuda_workers: node %u: block %d ended with %d before all tasks were done (weft/device.h lists the errors)\n",
                    weft_rank(w), i, results[i]);
            exit(1);
        }

    check(weft_gpu_close(gpu), "GPU"); /* also closes the worker */
    check(weft_close(w), "close");
    return 0;
}
