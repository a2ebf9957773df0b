// SPDX-License-Identifier: MIT
//
// A persistent worker on a CUDA GPU: one kernel runs all the time, takes tasks of a queue and returns their results; each task is done
// once. Prints how many tasks a second were claimed, done and completed, and where tasks spent their time, which says what bounds the rate:
// how many were on average in which state, and how long a block takes for each of its two calls. Run: weft run -n 1 -- farm [tasks]
// [blocks]
#include <vector>

#include "check.cuh"

/* `clocks`: the clocks of the GPU that all blocks have spent in weft_device_next_task() and in weft_device_task_done(). */
__global__ void farm(const weft_device *d, const weft_device_worker *k, unsigned *counts, uint64_t tasks, unsigned long long *clocks,
                     struct report *bad)
{
    weft_device_task t;
    int rc;
    long long began = clock64(), next = 0, done = 0;
    while ((rc = weft_device_next_task(d, k, &t)) == 0) {
        long long got = clock64();
        next += got - began;
        KERNEL_CHECK(t.task.arg[0] < tasks && t.task.arg[1] == ~t.task.arg[0] && t.task.arg[2] < d->size);
        atomicAdd(&counts[t.task.arg[2] * tasks + t.task.arg[0]], 1u);
        KERNEL(weft_device_task_done(d, k, &t, 0, t.task.arg[0] * 3, 8));
        began = clock64();
        done += began - got;
    }
    KERNEL_CHECK(rc == -WEFT_DEVICE_ESHUTDOWN);
    atomicAdd(&clocks[0], (unsigned long long)next);
    atomicAdd(&clocks[1], (unsigned long long)done);
}

/* Sums over samples of how many of this node's tasks are in which state. */
struct states {
    uint64_t samples, queue, gpu, complete, reap;
};

/* `sent` and `got`: how many tasks were submitted and reaped. Counts of others move meanwhile, so a difference may be below 0 for a moment.
 */
static void sample(struct states *s, weft_gpu_worker *k, uint64_t sent, uint64_t got)
{
    weft_gpu_worker_stats worker;
    weft_gpu_stats served;
    OK(weft_gpu_worker_stat(k, &worker, sizeof worker));
    OK(weft_gpu_stat(gpu, &served, sizeof served));
    s->samples++;
    s->queue += sent > worker.claimed ? sent - worker.claimed : 0;
    s->gpu += worker.claimed > served.requests ? worker.claimed - served.requests : 0;
    s->complete += served.requests > worker.done ? served.requests - worker.done : 0;
    s->reap += worker.done > got ? worker.done - got : 0;
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
    unsigned long long *clocks, spent[2];
    CUDA(cudaMalloc(&clocks, sizeof spent));
    CUDA(cudaMemset(clocks, 0, sizeof spent));
    farm<<<blocks, 1>>>(weft_gpu_device(gpu), weft_gpu_worker_device(k), counts, tasks, clocks, bad);
    CUDA(cudaGetLastError());

    std::vector<bool> seen(tasks);
    static weft_task batch[256];
    static weft_done done[256];
    struct timespec from, to;
    struct states states = {};
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (uint64_t sent = 0, got = 0, turn = 0; got < tasks; turn++) {
        uint32_t n = 0;
        if (turn % 256 == 255)
            sample(&states, k, sent, got);
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
    CUDA(cudaMemcpy(spent, clocks, sizeof spent, cudaMemcpyDeviceToHost));
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
    if (size == 1 && states.samples)
        printf("of the tasks, on average %.0f were ready in the queue, %.0f claimed for the GPU or in its blocks, %.0f done there and not "
               "completed, %.0f complete and not reaped (%llu samples); a block took %.0f clocks to get a task, %.0f to hand it "
               "back\n",
               (double)states.queue / (double)states.samples, (double)states.gpu / (double)states.samples,
               (double)states.complete / (double)states.samples, (double)states.reap / (double)states.samples,
               (unsigned long long)states.samples, (double)spent[0] / (double)tasks, (double)spent[1] / (double)tasks);
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    return 0;
}
