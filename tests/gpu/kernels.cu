// SPDX-License-Identifier: MIT
//
// The calls of weft/device.h by single threads of kernels on a real GPU, between nodes: weft run -n 3 -- kernels. block.cu has the calls by
// warps and blocks and those for queues, faults.cu what a kernel sees of a death. tests/multi/test_gpu.c does the same on the back end
// `host`.
#include "check.cuh"

#define BLOCKS  8u
#define THREADS 64u
#define ALL     (BLOCKS * THREADS)
#define WORDS   8u

struct job {
    weft_gaddr at;   /* a page at the same place of every node: 64 shared words, then WORDS for each thread of each node */
    weft_gaddr mine; /* 2 * WORDS words of this node for each thread */
    uint32_t rounds;
};

__device__ uint32_t me(void)
{
    return blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ weft_gaddr device_on_node(weft_gaddr a, uint32_t node)
{
    return (a & ((1ull << 48) - 1)) | (uint64_t)node << 48;
}

__device__ weft_gaddr place(const weft_device *d, const struct job *j, uint32_t node)
{
    return device_on_node(j->at, node) + 8 * (64 + WORDS * (d->rank * ALL + me()));
}

__global__ void put_and_get(const weft_device *d, struct job job, struct report *bad)
{
    const struct job *j = &job;
    weft_gaddr mine = j->mine + me() * 2 * 8 * WORDS, back = mine + 8 * WORDS;
    volatile uint64_t *out = (volatile uint64_t *)weft_device_ptr(d, mine, 8 * WORDS);
    volatile uint64_t *in = (volatile uint64_t *)weft_device_ptr(d, back, 8 * WORDS);
    KERNEL_CHECK(out && in);
    for (uint32_t round = 1; round <= j->rounds; round++)
        for (uint32_t node = 0; node < d->size; node++) {
            weft_gaddr there = place(d, j, node);
            for (uint32_t i = 0; i < WORDS; i++)
                out[i] = (uint64_t)round << 32 | node << 16 | i;
            KERNEL(weft_device_put(d, there, mine, 8 * WORDS, NULL));
            KERNEL(weft_device_fence(d, node));
            KERNEL(weft_device_put_value(d, there + 8, round, NULL));
            KERNEL(weft_device_flush(d, node));
            for (uint32_t i = 0; i < WORDS; i++)
                in[i] = 0;
            weft_device_op op;
            KERNEL(weft_device_get(d, back, there, 8 * WORDS, &op));
            KERNEL(weft_device_wait(d, &op));
            for (uint32_t i = 0; i < WORDS; i++)
                KERNEL_CHECK(in[i] == (i == 1 ? round : out[i]));
        }
}

/* Atomics of all nodes' kernels and processors on words of every node. */
__global__ void atomics(const weft_device *d, struct job job, struct report *bad)
{
    const struct job *j = &job;
    for (uint32_t i = 0; i < j->rounds; i++) {
        weft_gaddr word = device_on_node(j->at, (d->rank + i) % d->size);
        uint64_t old, seen;
        KERNEL(weft_device_fetch_add(d, word, 3, &old));
        KERNEL(weft_device_put_signal(d, word, 0, 0, word + 16, 5, NULL));
        if (threadIdx.x)
            continue;
        KERNEL(weft_device_fetch_add(d, word + 8, 0, &seen));
        for (;;) { /* add 1 by swaps */
            KERNEL(weft_device_compare_swap(d, word + 8, seen, seen + 1, &old));
            if (old == seen)
                break;
            seen = old;
        }
    }
    for (uint32_t node = 0; node < d->size; node++)
        KERNEL(weft_device_flush(d, node));
    uint64_t old;
    KERNEL(weft_device_swap(d, place(d, j, d->rank), 7, &old));
    KERNEL_CHECK(old == 0);
}

static void test_atomics(struct job j)
{
    j.rounds = 20;
    for (uint32_t i = 0; i < 50; i++)
        OK(weft_fetch_add_blocking(w, on_node(j.at, i % weft_size(w)), 1, NULL));
    atomics<<<BLOCKS, THREADS>>>(weft_gpu_device(gpu), j, bad);
    for (uint32_t i = 0; i < 5000; i++)
        OK(weft_fetch_add_blocking(w, on_node(j.at, i % weft_size(w)), 1, NULL));
    KERNEL_DONE();
    all_here();
    uint64_t words[3], sum[3] = {0};
    for (uint32_t node = 0; node < weft_size(w); node++) {
        OK(weft_get_blocking(w, words, on_node(j.at, node), sizeof words));
        for (int i = 0; i < 3; i++)
            sum[i] += words[i];
    }
    uint64_t all = (uint64_t)weft_size(w) * ALL * j.rounds;
    CHECK(sum[0] == 3 * all + 5050 * weft_size(w));
    CHECK(sum[1] == all / THREADS && sum[2] == 5 * all);
}

/* Two kernels whose parameter is the weft_device itself, by signals, without their processors; then messages. */
__global__ void ping_pong(const __grid_constant__ weft_device given, struct job job, struct report *bad)
{
    const weft_device *d = &given;
    const struct job *j = &job;
    weft_gaddr mine = device_on_node(j->at, d->rank) + 24, theirs = device_on_node(j->at, 1 - d->rank) + 24;
    for (uint64_t i = 1; i <= j->rounds; i++) {
        uint64_t seen;
        if (d->rank == 0)
            KERNEL(weft_device_put_signal(d, theirs, 0, 0, theirs, 1, NULL));
        KERNEL(weft_device_wait_at_least(d, mine, i, &seen));
        KERNEL_CHECK(seen == i);
        if (d->rank == 1)
            KERNEL(weft_device_put_signal(d, theirs, 0, 0, theirs, 1, NULL));
    }
    for (uint64_t i = 0; i < j->rounds; i++)
        KERNEL(weft_device_send(d, 1 - d->rank, 5, i, j->mine, 16, NULL));
    KERNEL(weft_device_flush(d, 1 - d->rank));
}

static volatile uint64_t heard;
static void on_message(weft_node *, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *)
{
    uint64_t number;
    CHECK(header_len == 8 && payload_len == 16 && !memcmp(payload, "sixteen bytes...", 16) && from < 2);
    memcpy(&number, header, 8);
    CHECK(number == heard);
    heard = heard + 1;
}

static void test_ping_pong(struct job j)
{
    j.rounds = 50;
    memcpy(weft_ptr(w, j.mine, 16), "sixteen bytes...", 16);
    all_here();
    if (weft_rank(w) < 2) {
        weft_device d;
        weft_gpu_device_copy(gpu, &d, sizeof d);
        ping_pong<<<1, 1>>>(d, j, bad);
        KERNEL_DONE();
        for (int64_t until = (int64_t)time(NULL) + 60; heard < j.rounds && (int64_t)time(NULL) < until;)
            weft_progress(w);
        CHECK(heard == j.rounds);
    }
    all_here();
}

/* Atomics that are started, all three under way at once; and without an op, until a flush. */
__global__ void starts(const weft_device *d, struct job job, struct report *bad)
{
    const struct job *j = &job;
    for (uint32_t node = 0; node < d->size; node++) {
        weft_gaddr there = place(d, j, node);
        weft_device_op op[3];
        for (int i = 0; i < 3; i++)
            KERNEL(weft_device_put_value(d, there + 8 * i, 100 + i, NULL));
        KERNEL(weft_device_flush(d, node));
        KERNEL(weft_device_fetch_add_start(d, there, 5, &op[0]));
        KERNEL(weft_device_swap_start(d, there + 8, 6, &op[1]));
        KERNEL(weft_device_compare_swap_start(d, there + 16, 102, 7, &op[2]));
        for (int i = 0; i < 3; i++) {
            KERNEL(weft_device_wait(d, &op[i]));
            KERNEL_CHECK(op[i].value == 100 + i);
        }
        KERNEL(weft_device_compare_swap_start(d, there + 16, 102, 8, &op[2])); /* the word is not 102 any more */
        KERNEL(weft_device_wait(d, &op[2]));
        KERNEL_CHECK(op[2].value == 7);
        for (int i = 0; i < 3; i++)
            KERNEL(weft_device_fetch_add_start(d, there + 8 * i, 1, NULL));
        KERNEL(weft_device_flush(d, node));
        for (int i = 0; i < 3; i++) {
            uint64_t old;
            KERNEL(weft_device_swap(d, there + 8 * i, 0, &old));
            KERNEL_CHECK(old == (i == 0 ? 106 : i == 1 ? 7 : 8));
        }
    }
}

/* Node 0's kernel changes a word at node 1, where a kernel waits for each change by another comparison. The word is 10 at first. */
__global__ void comparisons(const weft_device *d, struct job job, struct report *bad)
{
    const weft_cmp cmp[6] = {WEFT_EQ, WEFT_NE, WEFT_LT, WEFT_LE, WEFT_GT, WEFT_GE};
    const uint64_t value[6] = {7, 7, 8, 2, 2, 10}, becomes[6] = {7, 8, 3, 2, 9, 10};
    weft_gaddr word = device_on_node(job.at, 1) + 32, ack = device_on_node(job.at, 0) + 40;
    uint64_t seen;
    for (uint32_t i = 0; i < 6; i++) {
        if (d->rank == 0) {
            KERNEL(weft_device_put_value(d, word, becomes[i], NULL));
            KERNEL(weft_device_wait_until(d, ack, WEFT_EQ, i + 1, &seen, WEFT_TIMEOUT_DEFAULT));
            continue;
        }
        KERNEL(weft_device_wait_until(d, word, cmp[i], value[i], &seen, 60 * WEFT_SECOND));
        KERNEL_CHECK(seen == becomes[i]);
        KERNEL(weft_device_put_signal(d, ack, 0, 0, ack, 1, NULL));
    }
    if (d->rank == 0)
        return;
    for (int64_t timeout = 0; timeout <= WEFT_MS; timeout += WEFT_MS) {
        int64_t began = weft_device_now_ns();
        KERNEL_IS(weft_device_wait_until(d, word, WEFT_LT, 10, &seen, timeout), -WEFT_DEVICE_ETIMEDOUT);
        KERNEL_CHECK(seen == 10 && weft_device_now_ns() - began >= timeout);
    }
    KERNEL_IS(weft_device_wait_until(d, word, (weft_cmp)6, 10, &seen, 0), -WEFT_DEVICE_EINVAL);
}

static void test_comparisons(struct job j)
{
    if (weft_rank(w) == 1)
        *(volatile uint64_t *)weft_ptr(w, on_node(j.at, 1) + 32, 8) = 10;
    all_here();
    if (weft_rank(w) < 2) {
        comparisons<<<1, 1>>>(weft_gpu_device(gpu), j, bad);
        KERNEL_DONE();
    }
    all_here();
}

/* Invalid requests: they return errors, and other requests are not affected. */
__global__ void wrong(const weft_device *d, struct job job, struct report *bad)
{
    const struct job *j = &job;
    uint64_t old;
    weft_device_op op;
    weft_gaddr good = device_on_node(j->at, d->rank);
    KERNEL_IS(weft_device_fetch_add(d, weft_gaddr_make(77, 0, 1 << 20), 1, &old), -EFAULT);
    KERNEL_IS(weft_device_fetch_add(d, good + 4, 1, &old), -EINVAL);
    KERNEL(weft_device_put(d, good, 16, 8, &op));
    KERNEL_IS(weft_device_wait(d, &op), -EFAULT);
    KERNEL(weft_device_put(d, good, j->mine, 1ull << 40, &op));
    KERNEL_IS(weft_device_wait(d, &op), -EFAULT);
    KERNEL_IS(weft_device_put_signal(d, good, j->mine, 8, good ^ 1ull << 48, 1, NULL), -EINVAL);
    KERNEL(weft_device_send(d, 0, 5000, 1, j->mine, 8, &op));
    KERNEL_IS(weft_device_wait(d, &op), -EINVAL);
    KERNEL(weft_device_put_value(d, 0, 1, NULL));
    KERNEL_IS(weft_device_flush(d, 0), -EFAULT);
    KERNEL(weft_device_flush(d, 0));
    KERNEL_IS(weft_device_flush(d, 999), -EFAULT);
    KERNEL_CHECK(weft_device_ptr(d, 77ull << 48, 8) == NULL && weft_device_ptr(d, good, 1ull << 40) == NULL);
    KERNEL_IS(weft_device_wait_at_least(d, good + 4, 1, NULL), -EINVAL);
    KERNEL(weft_device_fetch_add(d, good, 1, &old));
}

/* A ring of 8 slots, some of whose answers the kernel does not read. A request that needs the place of an unread answer waits or fails.
 * Other requests are not affected.
 */
__global__ void full(const weft_device *d, struct job job, struct report *bad)
{
    const struct job *j = &job;
    weft_gaddr good = device_on_node(j->at, d->rank);
    weft_device_op ops[8];
    for (int i = 0; i < 8; i++)
        KERNEL(weft_device_put_nowait(d, good + 8, j->mine, 8, &ops[i]));
    weft_device_op more;
    KERNEL_IS(weft_device_put_nowait(d, good, j->mine, 8, &more), -EAGAIN);
    weft_device now = *d;
    now.nowait = true;
    KERNEL_IS(weft_device_get(&now, j->mine, good, 8, &more), -EAGAIN);
    KERNEL_IS(weft_device_put_signal(&now, good, j->mine, 8, good + 8, 1, &more), -EAGAIN);
    KERNEL_IS(weft_device_fetch_add_start(&now, good + 8, 1, &more), -EAGAIN);
    KERNEL_IS(weft_device_fetch_add(&now, good + 8, 1, NULL), -EAGAIN);
    KERNEL_IS(weft_device_put(d, good, j->mine, 8, &more), -ETIMEDOUT);
    KERNEL(weft_device_put_value(d, good, 1, NULL));                   /* needs no place for an answer */
    for (uint64_t i = weft_device_load_own(d->ring->next); i % 8; i++) /* up to the place of the first */
        KERNEL(weft_device_put_value(d, good, i, NULL));
    KERNEL(weft_device_wait(d, &ops[0]));
    KERNEL(weft_device_put(d, good, j->mine, 8, &more));
    KERNEL(weft_device_wait(d, &more));
    weft_device_leave(d, &ops[1]);
    weft_device_leave(d, &ops[2]);
    KERNEL(weft_device_put_signal(d, good, j->mine, 8, good + 8, 1, &more));
    KERNEL(weft_device_wait(d, &more));
    for (int i = 3; i < 8; i++)
        KERNEL(weft_device_wait(d, &ops[i]));
    KERNEL(weft_device_flush(d, d->rank));
}

int main(void)
{
    const char *deadline = getenv("WEFT_DEADLINE");
    open_node();
    CHECK(weft_size(w) >= 2);
    struct job j = {same_place(8 * (64 + WORDS * ALL * weft_size(w))), 0, 0};
    OK(weft_alloc(w, (size_t)2 * 8 * WORDS * ALL, &j.mine));
    OK(weft_handle(w, 5, on_message, NULL));
    all_here();
    open_gpu(4, 256);

    j.rounds = 10;
    put_and_get<<<BLOCKS, THREADS>>>(weft_gpu_device(gpu), j, bad);
    KERNEL_DONE();
    weft_gpu_stats stats;
    OK(weft_gpu_stat(gpu, &stats, sizeof stats));
    CHECK(stats.requests == (uint64_t)ALL * j.rounds * weft_size(w) * 5 && stats.failed == 0);
    all_here();
    memset(weft_ptr(w, j.at, 8), 0, 8 * (64 + WORDS * ALL * weft_size(w)));
    all_here();
    test_atomics(j);
    test_ping_pong(j);
    starts<<<BLOCKS, THREADS / 4>>>(weft_gpu_device(gpu), j, bad); /* few threads: what all of them start fits into the rings */
    KERNEL_DONE();
    test_comparisons(j);
    wrong<<<1, 1>>>(weft_gpu_device(gpu), j, bad);
    KERNEL_DONE();
    all_here();
    OK(weft_gpu_close(gpu));
    if (deadline && weft_rank(w) == 0) { /* a short one: calls that wait for room end */
        open_gpu(1, 8);
        full<<<1, 1>>>(weft_gpu_device(gpu), j, bad);
        KERNEL_DONE();
    } else {
        open_gpu(1, 8); /* weft_close() closes it */
    }
    all_here();
    OK(weft_close(w));
    printf("kernels: all right\n");
    return 0;
}
