// SPDX-License-Identifier: MIT
//
// Memory of a real GPU that other processes of the host map: weft run -n N -- shared [killed | outlives]. Kernels load from and store
// to the next node's arena; copies of both kinds; arenas opened while a kernel of another node runs. killed: kernels of two nodes store
// into each other's memory, and one node is killed meanwhile. outlives: kernels still store into arenas and pools after their node is
// closed.
#include <csignal>
#include <ctime>

#include "check.cuh"

#define BYTES (64u << 20)
#define WORDS (BYTES / 8)

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

__global__ void store(const weft_device *d, uint64_t there, uint64_t seed, struct report *bad)
{
    uint64_t *p = (uint64_t *)weft_device_ptr(d, there, BYTES);
    KERNEL_CHECK(p != NULL);
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < WORDS; i += gridDim.x * blockDim.x)
        p[i] = i * 0x9e3779b97f4a7c15ull + seed;
    __threadfence_system();
}

__global__ void load(const weft_device *d, uint64_t there, uint64_t seed, struct report *bad)
{
    const uint64_t *p = (const uint64_t *)weft_device_ptr(d, there, BYTES);
    KERNEL_CHECK(p != NULL);
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < WORDS; i += gridDim.x * blockDim.x)
        KERNEL_CHECK(p[i] == i * 0x9e3779b97f4a7c15ull + seed);
}

/* Stores bytes and then a signal in the same arena; the owner's kernel waits for the signal. */
__global__ void tell(const weft_device *d, uint64_t there, struct report *bad)
{
    uint64_t *p = (uint64_t *)weft_device_ptr(d, there, 4096);
    KERNEL_CHECK(p != NULL);
    for (int i = 1; i < 512; i++)
        p[i] = (uint64_t)i * 3;
    __threadfence_system();
    KERNEL(weft_device_put_signal(d, there + 8, 0, 0, there, 1, NULL));
    KERNEL(weft_device_flush(d, (uint32_t)(there >> 48)));
}
__global__ void hear(const weft_device *d, uint64_t mine, struct report *bad)
{
    volatile uint64_t *p = (volatile uint64_t *)weft_device_ptr(d, mine, 4096);
    uint64_t seen;
    KERNEL(weft_device_wait_at_least(d, mine, 1, &seen));
    __threadfence_system();
    for (int i = 1; i < 512; i++)
        KERNEL_CHECK(p[i] == (uint64_t)i * 3);
}

__global__ void until(const volatile int *flag)
{
    while (!*flag)
        __nanosleep(1000);
}

/* Stores until the flag is set. */
__global__ void store_until(const weft_device *d, uint64_t there, uint64_t bytes, const volatile int *flag, struct report *bad)
{
    uint64_t *p = (uint64_t *)weft_device_ptr(d, there, bytes);
    KERNEL_CHECK(p != NULL);
    for (uint64_t i = threadIdx.x; !*flag; i += blockDim.x)
        p[i % (bytes / 8)] = i;
}

static volatile int *flag_new(void)
{
    int *flag;
    CUDA(cudaHostAlloc(&flag, sizeof *flag, cudaHostAllocMapped));
    *flag = 0;
    return flag;
}

static void way_is(uint32_t node, const char *way)
{
    weft_link_stats stats;
    OK(weft_link_stat(w, node, &stats, sizeof stats));
    if (strcmp(stats.arena_way, way)) {
        fprintf(stderr, "node %u: to node %u: %s, not %s: %s\n", weft_rank(w), node, stats.arena_way, way, stats.arena_why);
        _exit(1);
    }
}

static void copies(weft_gaddr there, weft_gaddr mine, weft_gaddr pool)
{
    const char *names[] = {"GPU to GPU", "pool to GPU"};
    void *from[] = {weft_gpu_ptr(gpu, mine, BYTES), weft_ptr(w, pool, BYTES / 4)};
    for (int k = 0; k < 2; k++) {
        size_t bytes = k ? BYTES / 4 : BYTES;
        OK(weft_put_blocking(w, there, from[k], bytes));
        double began = seconds();
        for (int i = 0; i < 20; i++)
            OK(weft_put_blocking(w, there, from[k], bytes));
        printf("node %u: %s of the next node: %.1f GB/s\n", weft_rank(w), names[k], 20 * (double)bytes / (seconds() - began) / 1e9);
    }
}

/* While node 0's GPU is busy with a kernel, nodes can open arenas and map them. */
static void while_busy(uint32_t next)
{
    volatile int *flag = flag_new();
    uint32_t space;
    uint64_t value = 7 + weft_rank(w), got = 0;
    weft_gaddr at;
    if (weft_rank(w) == 0)
        until<<<1, 1>>>((const volatile int *)flag);
    all_here();
    double began = seconds();
    OK(weft_gpu_arena(gpu, 4u << 20, &space));
    OK(weft_gpu_alloc(gpu, space, 4096, &at));
    all_here();
    OK(weft_put_blocking(w, on_node(at, next), &value, 8));
    OK(weft_get_blocking(w, &got, on_node(at, next), 8));
    CHECK(got == value && weft_gpu_ptr(gpu, on_node(at, next), 8));
    double took = seconds() - began;
    all_here();
    *flag = 1;
    KERNEL_DONE();
    printf("node %u: an arena was opened in %.0f ms while a kernel ran\n", weft_rank(w), 1e3 * took);
    CHECK(took < 4);
}

/* Node 1 is killed while its kernel stores into node 0's arena, and node 0's kernel into node 1's. */
static int killed(weft_gaddr mine)
{
    volatile int *flag = flag_new();
    uint32_t me = weft_rank(w);
    weft_gaddr there = on_node(mine, 1 - me);
    store_until<<<8, 256>>>(weft_gpu_device(gpu), there, BYTES, (const volatile int *)flag, bad);
    CUDA(cudaGetLastError());
    all_here();
    if (me == 1) {
        usleep(500000);
        kill(getpid(), SIGKILL);
    }
    uint64_t value = 0;
    int rc = 0;
    for (double began = seconds(); rc == 0 && seconds() - began < 60;)
        rc = weft_put_blocking(w, there, &value, 8);
    CHECK(rc == -ECONNRESET);
    sleep(1);
    *flag = 1;
    KERNEL_DONE();
    OK(weft_get_blocking(w, &value, mine + 8 * 4096, 8)); /* node 1's kernel has stored there */
    CHECK(value % WORDS == 4096);
    store<<<64, 256>>>(weft_gpu_device(gpu), mine, 5, bad); /* node 0's own memory is as usable as before */
    load<<<64, 256>>>(weft_gpu_device(gpu), mine, 5, bad);
    KERNEL_DONE();
    OK(weft_gpu_close(gpu));
    printf("shared: all right\n");
    return weft_close(w);
}

/* Each node's kernels store into both nodes' arenas and pools until the node has been closed, which happens at its deadline. Each node has
 * opened its GPU twice. */
static int outlives(weft_gaddr mine, weft_gaddr pool)
{
    volatile int *flag = flag_new();
    weft_gaddr to[] = {on_node(mine, 0), on_node(mine, 1), on_node(pool, 0), on_node(pool, 1)};
    const weft_device *d = weft_gpu_device(gpu);
    open_gpu(1, 64);
    for (int k = 0; k < 4; k++) {
        cudaStream_t stream;
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        store_until<<<4, 256, 0, stream>>>(k % 2 ? weft_gpu_device(gpu) : d, to[k], BYTES / 4, (const volatile int *)flag, bad);
        CUDA(cudaGetLastError());
    }
    all_here();
    double began = seconds();
    int rc = weft_close(w);
    double took = seconds() - began;
    w = NULL;
    usleep(200000);
    *flag = 1;
    CUDA(cudaDeviceSynchronize()); /* an error: a kernel used memory that was unregistered or freed */
    until<<<1, 1>>>((const volatile int *)flag);
    CUDA(cudaDeviceSynchronize());
    CHECK(rc == 0 && took < 15 && bad->line == 0);
    printf("shared: closed in %.1f s: all right\n", took);
    return 0;
}

int main(int argc, char **argv)
{
    open_node();
    uint32_t me = weft_rank(w), size = weft_size(w), next = (me + 1) % size, before = (me + size - 1) % size, space;
    weft_gaddr mine, from, words, pool = same_place(BYTES / 4);
    open_gpu(2, 256);
    OK(weft_gpu_arena(gpu, 2 * BYTES + (1u << 20), &space));
    OK(weft_gpu_alloc(gpu, space, BYTES, &mine)); /* at the same offset on every node */
    OK(weft_gpu_alloc(gpu, space, BYTES, &from));
    OK(weft_gpu_alloc(gpu, space, 4096, &words));
    all_here();
    const weft_device *d = weft_gpu_device(gpu);
    OK(weft_put_blocking(w, on_node(words, next), "12345678", 8));
    way_is(next, "mapped");
    all_here();
    if (argc > 1 && strcmp(argv[1], "killed") == 0)
        return killed(mine);
    if (argc > 1 && strcmp(argv[1], "outlives") == 0)
        return outlives(mine, pool);
    store<<<64, 256>>>(d, on_node(mine, next), me, bad);
    KERNEL_DONE();
    all_here();
    load<<<64, 256>>>(d, mine, before, bad);
    load<<<64, 256>>>(d, on_node(mine, next), me, bad);
    KERNEL_DONE();
    all_here();
    char zeros[4096] = {0};
    OK(weft_put_blocking(w, words, zeros, sizeof zeros));
    way_is(me, "own");
    all_here();
    hear<<<1, 1>>>(d, words, bad);
    cudaStream_t other;
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    tell<<<1, 1, 0, other>>>(d, on_node(words, next), bad);
    KERNEL_DONE();
    all_here();
    store<<<64, 256>>>(d, from, 77 + me, bad);
    KERNEL_DONE();
    OK(weft_put_blocking(w, on_node(mine, next), weft_gpu_ptr(gpu, from, BYTES), BYTES)); /* by the copy engine */
    all_here();
    load<<<64, 256>>>(d, mine, 77 + before, bad);
    KERNEL_DONE();
    all_here();
    copies(on_node(mine, next), from, on_node(pool, me));
    all_here();
    while_busy(next);
    all_here();
    if (me == 0)
        OK(weft_gpu_close(gpu)); /* others have it mapped */
    all_here();
    if (me == before + 1 && before == 0)
        CHECK(weft_put(w, on_node(mine, 0), zeros, 8, NULL) == -EFAULT && !weft_gpu_ptr(gpu, on_node(mine, 0), 8));
    if (me)
        OK(weft_gpu_close(gpu));
    all_here();
    OK(weft_close(w));
    printf("shared: all right\n");
    return 0;
}
