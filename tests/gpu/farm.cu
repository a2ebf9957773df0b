// SPDX-License-Identifier: MIT
//
// A persistent worker on a CUDA GPU: one kernel runs all the time, takes tasks of a queue and returns their results; each task is done
// once. Prints how many tasks a second were claimed, done and completed. Run: weft run -n 1 -- farm [tasks] [blocks]
#include <vector>

#include "check.cuh"

__global__ void farm(const weft_device *d, const weft_device_worker *k, unsigned *counts, uint64_t tasks, struct report *bad)
{
    weft_device_task t;
    int rc;
    while ((rc = weft_device_next_task(d, k, &t)) == 0) {
        KERNEL_CHECK(t.task.arg[0] < tasks && t.task.arg[1] == ~t.task.arg[0] && t.task.arg[2] < d->size);
        atomicAdd(&counts[t.task.arg[2] * tasks + t.task.arg[0]], 1u);
        KERNEL(weft_device_task_done(d, k, &t, 0, t.task.arg[0] * 3, 8));
    }
    KERNEL_CHECK(rc == -WEFT_DEVICE_ESHUTDOWN);
}

int main(int argc, char **argv)
{
    uint64_t tasks = argc > 1 ? strtoull(argv[1], NULL, 0) : 2000000;
    unsigned blocks = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 0) : 128;
    open_node();
    uint32_t me = weft_rank(w), size = weft_size(w);
    uint64_t bytes = tasks * sizeof(unsigned), all = size * bytes;
    weft_gaddr place = same_place(all); /* how often this node's blocks did each task of each node */
    open_gpu(8, 4096);
    weft_queue_config qc = {};
    qc.bytes = sizeof qc;
    qc.slots = 16384;
    weft_queue *q;
    OK(weft_queue_open(w, "farm", &qc, &q));
    weft_gpu_worker_config kc = {};
    kc.bytes = sizeof kc;
    kc.ahead = 4096;
    weft_gpu_worker *k;
    OK(weft_gpu_worker_open(gpu, q, &kc, &k));
    unsigned *counts;
    CUDA(cudaMalloc(&counts, all));
    CUDA(cudaMemset(counts, 0, all));
    farm<<<blocks, 1>>>(weft_gpu_device(gpu), weft_gpu_worker_device(k), counts, tasks, bad);
    CUDA(cudaGetLastError());

    std::vector<bool> seen(tasks);
    static weft_task batch[256];
    static weft_done done[256];
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (uint64_t sent = 0, got = 0; got < tasks;) {
        uint32_t n = 0;
        for (; n < 256 && sent + n < tasks && sent + n - got < 8192; n++) {
            batch[n] = (weft_task){};
            batch[n].arg[0] = batch[n].tag = sent + n;
            batch[n].arg[1] = ~(sent + n);
            batch[n].arg[2] = me;
        }
        int rc = n ? weft_submit(q, batch, n, NULL, WEFT_TIMEOUT_DEFAULT) : 0;
        OK(rc);
        sent += (uint64_t)rc;
        rc = weft_reap(q, done, 256, 0);
        CHECK(rc > 0 || rc == -ETIMEDOUT);
        for (int i = 0; i < rc; i++, got++) {
            CHECK(done[i].tag < tasks && !seen[done[i].tag] && done[i].result == done[i].tag * 3);
            seen[done[i].tag] = true;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    all_here(); /* all tasks of all nodes are done */
    OK(weft_queue_shutdown(q));
    KERNEL_DONE();
    OK(weft_gpu_worker_close(k));
    CUDA(cudaMemcpy(weft_ptr(w, on_node(place, me), all), counts, all, cudaMemcpyDeviceToHost));
    all_here();
    std::vector<unsigned> sum(tasks), some(tasks);
    for (uint32_t node = 0; node < size; node++) {
        OK(weft_get_blocking(w, some.data(), on_node(place, node) + me * bytes, bytes));
        for (uint64_t i = 0; i < tasks; i++)
            sum[i] += some[i];
    }
    for (uint64_t i = 0; i < tasks; i++)
        CHECK(sum[i] == 1);
    all_here();
    double s = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    printf("%llu tasks by %u blocks, each once: %.2f M tasks/s: all right\n", (unsigned long long)tasks, blocks, 1e-6 * (double)tasks / s);
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    return 0;
}
