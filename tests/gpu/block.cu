// SPDX-License-Identifier: MIT
//
// The calls of weft/device.cuh, which all threads of a warp or block make together: put, get, flush, signals, waits, submit, claim, renew,
// complete, compared with a shadow memory. Also GB/s of 1 MiB to and from the host's pool, by a block and by a grid, beside a kernel that
// only copies; not with the argument `quick`. For two nodes or more.
#include <vector>

#include "check.cuh"
#include "weft/device.cuh"

#define SLICES 8u /* one for each block, or warp */
#define SLICE  (64u << 10)
#define OPS    150u
#define AREA   ((size_t)SLICES * SLICE)
#define TASKS  200u

struct move {
    uint32_t get, to, from, length; /* `to` and `from` within a slice */
};

struct job {
    weft_gaddr near, far; /* areas: one of this node, and one at another node to which only this node writes */
    struct move *moves;   /* [SLICES][OPS] */
};

/* A call by a warp or by a block. */
#define BY(call, ...) (WARP ? weft_device_##call##_warp(__VA_ARGS__) : weft_device_##call##_block(__VA_ARGS__))

/* One move, in one of three ways: with a wait; without an op and with a flush; without waiting for room, and with polls. */
template <bool WARP>
static __device__ int move_one(const weft_device *d, const struct move &m, uint64_t to, uint64_t from, uint32_t far_node, uint32_t way)
{
    weft_device_op op;
    int rc;
    if (way == 0) {
        rc = m.get ? BY(get, d, to, from, m.length, &op) : BY(put, d, to, from, m.length, &op);
        return rc ? rc : BY(wait, d, &op);
    }
    if (way == 1) {
        rc = m.get ? BY(get, d, to, from, m.length, NULL) : BY(put, d, to, from, m.length, NULL);
        return rc ? rc : BY(flush, d, far_node);
    }
    do
        rc = m.get ? BY(get_nowait, d, to, from, m.length, &op) : BY(put_nowait, d, to, from, m.length, &op);
    while (rc == -WEFT_DEVICE_EAGAIN);
    while (rc == 0 && (rc = BY(test, d, &op)) == -WEFT_DEVICE_EINPROGRESS)
        rc = 0;
    return rc;
}

template <bool WARP> static __global__ void move_all(const weft_device *d, struct job j, struct report *bad)
{
    uint32_t slice = WARP ? blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
    uint64_t near = j.near + (uint64_t)slice * SLICE, far = j.far + (uint64_t)slice * SLICE;
    for (uint32_t i = 0; i < OPS; i++) {
        struct move m = j.moves[slice * OPS + i];
        uint64_t to = (m.get ? near : far) + m.to, from = (m.get ? far : near) + m.from;
        KERNEL(move_one<WARP>(d, m, to, from, (uint32_t)(far >> 48), (i + slice) % 3));
    }
}

static uint32_t some(uint32_t below)
{
    static uint64_t x = 88172645463325252ull;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (uint32_t)(x >> 20) % below;
}

/* Random lengths and alignments; often both ends have the same alignment. */
static void make_moves(struct move *all)
{
    for (uint32_t i = 0; i < SLICES * OPS; i++) {
        uint32_t length = i % 3 == 0 ? some(40) : some(SLICE / 4), alike = i % 2 ? 15 : i % 4 ? 3 : 0;
        struct move m = {some(2), some(SLICE - length - 16), some(SLICE - length - 16), length};
        m.from = (m.from & ~alike) | (m.to & alike);
        all[i] = m;
    }
}

static void play(const struct move *all, uint8_t *near, uint8_t *far)
{
    for (uint32_t i = 0; i < SLICES * OPS; i++) {
        const struct move *m = &all[i];
        size_t at = (size_t)(i / OPS) * SLICE;
        memcpy((m->get ? near : far) + at + m->to, (m->get ? far : near) + at + m->from, m->length);
    }
}

static void fill_at(weft_gaddr where, uint8_t *shadow)
{
    weft_gaddr staged;
    OK(weft_alloc(w, AREA, &staged));
    for (size_t i = 0; i < AREA; i++)
        shadow[i] = (uint8_t)some(256);
    memcpy(weft_ptr(w, staged, AREA), shadow, AREA);
    OK(weft_put(w, where, weft_ptr(w, staged, AREA), AREA, NULL));
    OK(weft_flush(w, weft_gaddr_node(where), WEFT_TIMEOUT_DEFAULT));
    OK(weft_free(w, staged));
}

static void same_as(weft_gaddr where, const uint8_t *shadow)
{
    std::vector<uint8_t> bytes(AREA);
    OK(weft_get(w, bytes.data(), where, AREA, NULL));
    OK(weft_flush(w, weft_gaddr_node(where), WEFT_TIMEOUT_DEFAULT));
    CHECK(!memcmp(bytes.data(), shadow, AREA));
}

static void test_moves(weft_gaddr near, weft_gaddr far)
{
    struct job j = {near, far, NULL};
    std::vector<uint8_t> near_shadow(AREA), far_shadow(AREA);
    CUDA(cudaHostAlloc(&j.moves, SLICES * OPS * sizeof *j.moves, cudaHostAllocMapped));
    fill_at(near, near_shadow.data());
    fill_at(far, far_shadow.data());
    for (int warp = 0; warp < 2; warp++) {
        make_moves(j.moves);
        play(j.moves, near_shadow.data(), far_shadow.data());
        if (warp)
            move_all<true><<<SLICES / 4, 128>>>(weft_gpu_device(gpu), j, bad);
        else
            move_all<false><<<SLICES, 256>>>(weft_gpu_device(gpu), j, bad);
        KERNEL_DONE();
        same_as(near, near_shadow.data());
        same_as(far, far_shadow.data());
    }
    CUDA(cudaFreeHost(j.moves));
}

/* Each node's block (or warp) puts numbered bytes to the next node and signals. It checks the bytes that it receives, and then signals the
 * node before it to write again. `signal` counts received rounds, the word behind it the rounds that the next node has read. */
template <bool WARP>
static __global__ void signals(const weft_device *d, weft_gaddr at, weft_gaddr signal, weft_gaddr mine, uint32_t first, uint32_t last,
                               struct report *bad)
{
    const uint64_t place = (1ull << 48) - 1, next = (uint64_t)((d->rank + 1) % d->size) << 48;
    const uint32_t before = (d->rank + d->size - 1) % d->size;
    const uint64_t read = (uint64_t)before << 48 | ((signal + 8) & place);
    uint64_t *from = (uint64_t *)weft_device_ptr(d, mine, SLICE), seen;
    volatile uint64_t *came = (volatile uint64_t *)weft_device_ptr(d, at, SLICE);
    weft_device now = *d;
    now.nowait = true;
    for (uint32_t round = first; round <= last; round++) {
        int wrong = 0, rc;
        for (uint32_t i = threadIdx.x; i < SLICE / 8; i += blockDim.x)
            from[i] = (uint64_t)round << 32 | i;
        KERNEL(BY(put_signal, d, next | (at & place), mine, SLICE, next | (signal & place), 1, NULL));
        if (round % 2) {
            KERNEL(BY(wait_at_least, d, signal, round));
        } else {
            KERNEL(BY(wait_for, d, before, signal, round, &seen));
            KERNEL_CHECK(seen == round);
        }
        for (uint32_t i = threadIdx.x; i < SLICE / 8; i += blockDim.x)
            wrong |= came[i] != ((uint64_t)round << 32 | i);
        KERNEL_CHECK(!__syncthreads_or(wrong));
        do
            rc = BY(put_signal, &now, read, 0, 0, read, 1, NULL);
        while (rc == -WEFT_DEVICE_EAGAIN);
        KERNEL(rc);
        KERNEL(BY(wait_until, d, signal + 8, WEFT_EQ, round, &seen, 60 * WEFT_SECOND));
        KERNEL_CHECK(seen == round);
    }
    KERNEL_IS(BY(wait_until, d, signal + 8, WEFT_GT, last, &seen, 0), -WEFT_DEVICE_ETIMEDOUT);
    KERNEL_CHECK(seen == last);
    KERNEL_IS(BY(wait_until, d, signal + 8, WEFT_NE, last, NULL, WEFT_MS), -WEFT_DEVICE_ETIMEDOUT);
}

/* Renews the leases of `n` tasks, by both calls. Returns how many this node still holds. */
static __device__ int renew(const weft_device *d, uint32_t queue, weft_gaddr leases, uint32_t n)
{
    weft_device_op op;
    int rc = weft_device_renew_start(d, queue, leases, n, true, &op);
    rc = rc ? rc : weft_device_wait(d, &op);
    if (rc == 0 && op.value != (1ull << n) - 1)
        rc = -WEFT_DEVICE_EINVAL;
    return rc ? rc : weft_device_renew(d, queue, leases, n, NULL);
}

/* The first block of node 0 submits; all claim, renew and complete, until the queue ends. Each block has 16 KiB at `desks`. */
static __global__ void farm(const weft_device *d, uint32_t queue, weft_gaddr desks, struct report *bad)
{
    weft_gaddr mine = desks + 16384ull * blockIdx.x, leases = mine + 4096, results = mine + 12288;
    weft_task *tasks = (weft_task *)weft_device_ptr(d, mine, 4096);
    weft_lease *claims = (weft_lease *)weft_device_ptr(d, leases, 8192);
    weft_result *ends = (weft_result *)weft_device_ptr(d, results, 4096);
    for (uint32_t i = 0; d->rank == 0 && blockIdx.x == 0 && i < TASKS; i += 8) {
        if (threadIdx.x < 8) {
            weft_task t = {};
            t.arg[0] = t.tag = i + threadIdx.x;
            tasks[threadIdx.x] = t;
        }
        for (uint32_t done = 0; done < 8;) {
            int n = weft_device_by_block([&] { return weft_device_submit(d, queue, mine + done * sizeof(weft_task), 8 - done, 0); });
            KERNEL_CHECK(n > 0);
            done += (uint32_t)n;
        }
    }
    for (;;) {
        int n = weft_device_by_block([&] { return weft_device_claim(d, queue, leases, 8); });
        if (n == -WEFT_DEVICE_ESHUTDOWN)
            return;
        KERNEL_CHECK(n > 0);
        KERNEL_IS(weft_device_by_block([&] { return renew(d, queue, leases, (uint32_t)n); }), n);
        if (threadIdx.x < (uint32_t)n) {
            weft_result r = {};
            r.result_len = 3 * ((volatile weft_lease *)claims)[threadIdx.x].task.arg[0] + 1;
            ends[threadIdx.x] = r;
        }
        KERNEL_IS(weft_device_by_block([&] { return weft_device_complete(d, queue, leases, results, (uint32_t)n, NULL); }), n);
    }
}

/* `desks` is in the pool or in an arena. */
static void test_farm(const char *name, weft_gaddr desks)
{
    weft_queue *q;
    uint32_t number;
    weft_queue_config config = {};
    config.bytes = sizeof config;
    config.slots = 64;
    OK(weft_queue_open(w, name, &config, &q));
    OK(weft_gpu_queue(gpu, q, &number));
    all_here();
    farm<<<4, 64>>>(weft_gpu_device(gpu), number, desks, bad);
    std::vector<bool> seen(TASKS);
    for (uint32_t got = 0; weft_rank(w) == 0 && got < TASKS;) {
        weft_done done;
        int n = weft_reap(q, &done, 1, WEFT_TIMEOUT_DEFAULT);
        if (n == -ENOENT) /* no task was submitted yet */
            continue;
        OK(n);
        CHECK(done.tag < TASKS && !seen[done.tag] && done.status == 0 && done.result_len == 3 * done.tag + 1);
        seen[done.tag] = true;
        got++;
    }
    if (weft_rank(w) == 0)
        OK(weft_queue_shutdown(q));
    KERNEL_DONE();
    all_here();
}

static __global__ void wrong(const weft_device *d, weft_gaddr mine, struct report *bad)
{
    uint64_t next = (uint64_t)((d->rank + 1) % d->size) << 48, none = next | ((1ull << 44) - 4096);
    weft_device_op op;
    KERNEL_IS(weft_device_put_block(d, mine, next | 4096, 64, NULL), -WEFT_DEVICE_EINVAL);
    KERNEL_IS(weft_device_get_block(d, next | 4096, mine, 64, NULL), -WEFT_DEVICE_EINVAL);
    KERNEL_IS(weft_device_put_signal_block(d, mine, mine, 64, next | 4096, 1, NULL), -WEFT_DEVICE_EINVAL);
    KERNEL(weft_device_put_block(d, none, mine, 64, &op)); /* the node, not the kernel, detects the invalid address */
    KERNEL_IS(weft_device_wait_block(d, &op), -EFAULT);
    KERNEL_IS(weft_device_test_block(d, &op), -EFAULT);
}

/* --- speed --- */

/* Each block copies its part of `bytes`, again and again. */
template <bool PUT>
static __global__ void weft_copies(const weft_device *d, weft_gaddr pool, weft_gaddr arena, uint64_t bytes, uint32_t times,
                                   struct report *bad)
{
    uint64_t part = bytes / gridDim.x, at = part * blockIdx.x;
    for (uint32_t i = 0; i < times; i++)
        KERNEL(PUT ? weft_device_put_block(d, pool + at, arena + at, part, NULL)
                   : weft_device_get_block(d, arena + at, pool + at, part, NULL));
}
static __global__ void bare_copies(uint4 *to, const uint4 *from, uint64_t bytes, uint32_t times)
{
    uint64_t n = bytes / 16;
    for (uint32_t i = 0; i < times; i++) {
        for (uint64_t k = blockIdx.x * blockDim.x + threadIdx.x; k < n; k += (uint64_t)gridDim.x * blockDim.x)
            to[k] = from[k];
        __threadfence_system();
        __syncthreads();
    }
}

template <typename F> static double gigabytes(uint64_t bytes, F launch)
{
    cudaEvent_t from, to;
    float ms, best = 1e9f;
    CUDA(cudaEventCreate(&from));
    CUDA(cudaEventCreate(&to));
    for (int i = 0; i < 6; i++) { /* the first rounds are for warming up */
        CUDA(cudaEventRecord(from));
        launch();
        CUDA(cudaEventRecord(to));
        KERNEL_DONE();
        CUDA(cudaEventElapsedTime(&ms, from, to));
        best = ms < best ? ms : best;
    }
    return (double)bytes / best / 1e6;
}

static void speed(weft_gaddr arena)
{
    const uint64_t bytes = 1 << 20;
    const uint32_t times = 64;
    const weft_device *d = weft_gpu_device(gpu);
    weft_gaddr pool;
    OK(weft_alloc_aligned(w, bytes, 4096, &pool));
    uint4 *pool_at = (uint4 *)weft_gpu_ptr(gpu, pool, bytes), *arena_at = (uint4 *)weft_gpu_ptr(gpu, arena, bytes);
    for (uint32_t blocks = 1; blocks <= 64; blocks *= 8) {
        double put = gigabytes(bytes * times, [&] { weft_copies<true><<<blocks, 1024>>>(d, pool, arena, bytes, times, bad); });
        double bare_put = gigabytes(bytes * times, [&] { bare_copies<<<blocks, 1024>>>(pool_at, arena_at, bytes, times); });
        double get = gigabytes(bytes * times, [&] { weft_copies<false><<<blocks, 1024>>>(d, pool, arena, bytes, times, bad); });
        double bare_get = gigabytes(bytes * times, [&] { bare_copies<<<blocks, 1024>>>(arena_at, pool_at, bytes, times); });
        printf("1 MiB by %2u block%s of 1024 threads: put to a host pool %.1f GB/s (bare %.1f), get from it %.1f (bare %.1f)\n", blocks,
               blocks > 1 ? "s" : " ", put, bare_put, get, bare_get);
    }
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    open_node();
    CHECK(weft_size(w) >= 2);
    weft_gaddr far = on_node(same_place(AREA), (weft_rank(w) + 1) % weft_size(w)), at = same_place(SLICE), signal = same_place(64), near,
               mine, arena, desks, arena_desks;
    uint32_t space;
    OK(weft_alloc(w, AREA, &near));
    OK(weft_alloc_aligned(w, SLICE, 64, &mine));
    open_gpu(4, 256);
    OK(weft_gpu_arena(gpu, 4 << 20, &space));
    OK(weft_gpu_alloc(gpu, space, 1 << 20, &arena));
    OK(weft_gpu_alloc(gpu, space, 4 * 16384, &arena_desks));
    OK(weft_alloc_aligned(w, 4 * 16384, 64, &desks));
    all_here();
    test_moves(near, far);
    all_here();
    test_moves(arena, far);
    test_moves(near, arena);
    all_here();
    wrong<<<1, 64>>>(weft_gpu_device(gpu), mine, bad);
    KERNEL_DONE();
    all_here();
    signals<false><<<1, 256>>>(weft_gpu_device(gpu), at, signal, mine, 1, 20, bad);
    KERNEL_DONE();
    all_here();
    signals<true><<<1, 32>>>(weft_gpu_device(gpu), at, signal, mine, 21, 40, bad);
    KERNEL_DONE();
    all_here();
    test_farm("farm", desks);
    test_farm("farm in arenas", arena_desks);
    if (weft_rank(w) == 0 && !quick)
        speed(arena);
    all_here();
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    printf("block: all right\n");
    return 0;
}
