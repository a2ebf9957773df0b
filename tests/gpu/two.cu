// SPDX-License-Identifier: MIT
//
// Two GPUs of one node, or one that is opened twice where there is only one: kernels of the second one reach the first one's arena and
// those of the next node, if the driver lets them, and else make requests; copies between the arenas of both. weft run -n N -- two
#include "check.cuh"

#define BYTES (8u << 20)
#define WORDS (BYTES / 8)

/* Stores by a pointer; if the kernel has no pointer to that memory, puts from its own arena. */
__global__ void write(const weft_device *d, uint64_t there, uint64_t own, uint64_t seed, int *reached, struct report *bad)
{
    uint64_t *p = (uint64_t *)weft_device_ptr(d, there, BYTES), *near = (uint64_t *)weft_device_ptr(d, own, BYTES);
    KERNEL_CHECK(near != NULL);
    *reached = p != NULL;
    if (!p)
        p = near;
    for (uint64_t i = threadIdx.x; i < WORDS; i += blockDim.x)
        p[i] = i * 0x9e3779b97f4a7c15ull + seed;
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0 && p == near) {
        KERNEL(weft_device_put(d, there, own, BYTES, NULL));
        KERNEL(weft_device_flush(d, (uint32_t)(there >> 48)));
    }
}

static weft_gpu *open_on(int device)
{
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", device);
    weft_gpu_config config = {};
    config.bytes = sizeof config;
    config.name = name;
    config.rings = 2;
    config.slots = 256;
    weft_gpu *g;
    OK(weft_gpu_open(w, &config, &g));
    return g;
}

static uint64_t *words;

static void is_there(weft_gaddr at, uint64_t seed)
{
    memset(words, 0, BYTES);
    OK(weft_get_blocking(w, words, at, BYTES));
    for (uint64_t i = 0; i < WORDS; i++)
        CHECK(words[i] == i * 0x9e3779b97f4a7c15ull + seed);
}

/* A kernel of GPU `g`, which is device `device`, writes to `there`. True: by its own stores. */
static bool writes(weft_gpu *g, int device, weft_gaddr there, weft_gaddr own, uint64_t seed)
{
    int *reached;
    CUDA(cudaSetDevice(device));
    CUDA(cudaHostAlloc(&reached, sizeof *reached, cudaHostAllocPortable));
    write<<<1, 1024>>>(weft_gpu_device(g), there, own, seed, reached, bad);
    KERNEL_DONE();
    bool is = *reached;
    CUDA(cudaFreeHost(reached));
    CHECK(is == (weft_gpu_ptr(g, there, BYTES) != NULL));
    is_there(there, seed);
    return is;
}

int main(void)
{
    int devices = 0, can = 1;
    uint32_t space;
    weft_gaddr at[2], own;
    open_node();
    CUDA(cudaGetDeviceCount(&devices));
    int second = devices > 1 ? 1 : 0;
    if (second)
        CUDA(cudaDeviceCanAccessPeer(&can, 1, 0));
    weft_gpu *g[2] = {open_on(0), open_on(second)};
    for (int i = 0; i < 2; i++) {
        OK(weft_gpu_arena(g[i], 3 * BYTES, &space));
        CHECK(space == (uint32_t)i + 1);
        OK(weft_gpu_alloc(g[i], space, BYTES, &at[i]));
    }
    OK(weft_gpu_alloc(g[1], space, BYTES, &own)); /* what kernels put from if they have no pointer */
    words = (uint64_t *)malloc(BYTES);
    uint32_t me = weft_rank(w), next = (me + 1) % weft_size(w);
    all_here();
    bool mine = writes(g[1], second, at[0], own, 1 + me);
    all_here();
    bool theirs = writes(g[1], second, on_node(at[0], next), own, 100 + me);
    all_here();
    is_there(at[0], 100 + (me + weft_size(w) - 1) % weft_size(w));
    all_here();
    CHECK(mine == (can != 0));
    OK(weft_put_blocking(w, at[1], words, BYTES)); /* from the arena of one GPU to the other's, both ways */
    OK(weft_put_blocking(w, at[0], weft_gpu_ptr(g[1], at[1], BYTES), BYTES));
    OK(weft_get_blocking(w, weft_gpu_ptr(g[0], at[0], BYTES), at[1], BYTES));
    is_there(at[0], 100 + (me + weft_size(w) - 1) % weft_size(w));
    all_here();
    OK(weft_gpu_close(g[0]));
    all_here();
    CHECK(!weft_gpu_ptr(g[1], at[0], 8));
    is_there(at[1], 100 + (me + weft_size(w) - 1) % weft_size(w));
    all_here();
    (void)writes(g[1], second, on_node(at[1], next), own, 200 + me);
    all_here();
    OK(weft_gpu_close(g[1]));
    OK(weft_close(w));
    printf("%d GPUs; kernels of the second reach the first one's arena %s, the next node's %s: all right\n", devices > 1 ? 2 : 1,
           mine ? "by stores" : "by requests", theirs ? "by stores" : "by requests");
    return 0;
}
