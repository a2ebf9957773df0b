// SPDX-License-Identifier: MIT
//
// Memory of a real GPU in the address space: puts, gets and atomics of processors and kernels of all nodes on arenas of all nodes.
// weft run -n N -- arena
#include "check.cuh"

#define BYTES (3u << 20)

static uint8_t pattern(uint64_t i, uint32_t seed)
{
    return (uint8_t)(i * 2654435761u >> 13 ^ seed);
}

/* Puts to and gets from an arena, by a kernel of another node. */
__global__ void by_kernel(const weft_device *d, uint64_t there, uint64_t mine, struct report *bad)
{
    volatile uint64_t *out = (volatile uint64_t *)weft_device_ptr(d, mine, 128);
    weft_device_op op;
    uint64_t old;
    KERNEL_CHECK(out != NULL);
    for (uint64_t i = 0; i < 50; i++) {
        for (int k = 0; k < 8; k++)
            out[k] = i << 8 | (uint64_t)k;
        KERNEL(weft_device_put(d, there, mine, 64, &op));
        KERNEL(weft_device_wait(d, &op));
        KERNEL(weft_device_get(d, mine + 64, there, 64, &op));
        KERNEL(weft_device_wait(d, &op));
        for (int k = 0; k < 8; k++)
            KERNEL_CHECK(out[8 + k] == out[k]);
        KERNEL(weft_device_fetch_add(d, there + 64, 3, &old));
    }
    KERNEL(weft_device_flush(d, (uint32_t)(there >> 48)));
}

/* A kernel checks the bytes that were put into its own GPU's memory. */
__global__ void sees(const uint8_t *at, uint32_t bytes, uint32_t seed, struct report *bad)
{
    for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x)
        KERNEL_CHECK(at[i] == (uint8_t)((uint64_t)i * 2654435761u >> 13 ^ seed));
}

int main(void)
{
    open_node();
    uint32_t me = weft_rank(w), size = weft_size(w), space = 0, other = (me + 1) % size;
    weft_gaddr page = same_place(BYTES), big, words;
    open_gpu(2, 256);
    CHECK(weft_gpu_arena(gpu, 1ull << 50, &space) == -EINVAL);
    CHECK(weft_gpu_arena(gpu, 1ull << 43, &space) == -ENOMEM);
    fprintf(stderr, "node %u: an arena that is too large: %s\n", me, weft_error());
    OK(weft_gpu_arena(gpu, 64u << 20, &space));
    OK(weft_gpu_alloc(gpu, space, BYTES, &big));
    OK(weft_gpu_alloc(gpu, space, 4096, &words));
    uint64_t mine[2] = {big, words}, all[2 * 16];
    CHECK(size <= 16);
    OK(weft_exchange(w, mine, 2, all, NULL, 60 * WEFT_SECOND));
    uint8_t *bytes = (uint8_t *)malloc(BYTES), *back = (uint8_t *)weft_ptr(w, on_node(page, me), BYTES), zeros[4096] = {0};
    OK(weft_put_blocking(w, words, zeros, sizeof zeros));
    all_here();
    for (uint32_t i = 0; i < BYTES; i++)
        bytes[i] = pattern(i, other);
    static const uint32_t sizes[] = {1, 8, 100, 4096, 5000, 65536, 1000001, BYTES};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) { /* puts and gets of the processor to and from the next node's arena */
        OK(weft_put_blocking(w, all[2 * other], bytes, sizes[k]));
        memset(back, 0, sizes[k]);
        OK(weft_get_blocking(w, back, all[2 * other], sizes[k]));
        CHECK(memcmp(back, bytes, sizes[k]) == 0);
    }
    all_here();
    sees<<<1, 256>>>((const uint8_t *)weft_gpu_ptr(gpu, big, BYTES), BYTES, me, bad);
    KERNEL_DONE();
    OK(weft_get_blocking(w, back, big, BYTES)); /* from this node's own arena */
    for (uint32_t i = 0; i < BYTES; i++)
        CHECK(back[i] == pattern(i, me));
    all_here();
    /* From GPU to GPU, to a part of the arena that its owner does not read. */
    OK(weft_put_blocking(w, all[2 * other] + BYTES / 2, weft_gpu_ptr(gpu, big, 100000), 100000));
    all_here();
    OK(weft_get_blocking(w, back, big + BYTES / 2, 100000));
    for (uint32_t i = 0; i < 100000; i++)
        CHECK(back[i] == pattern(i, (me + size - 1) % size));
    for (uint32_t i = 0; i < 200; i++) /* all nodes add to a word of node 0's arena */
        OK(weft_fetch_add_blocking(w, all[1], 2, NULL));
    by_kernel<<<1, 1>>>(weft_gpu_device(gpu), all[2 * other + 1] + 1024, on_node(page, me), bad);
    KERNEL_DONE();
    all_here();
    uint64_t sum = 0;
    OK(weft_get_blocking(w, &sum, all[1], 8));
    CHECK(sum == 400ull * size);
    OK(weft_get_blocking(w, &sum, words + 1024 + 64, 8));
    CHECK(sum == 150);
    all_here();
    OK(weft_free(w, big));
    OK(weft_gpu_close(gpu));
    all_here();
    OK(weft_close(w));
    printf("arena: all right\n");
    return 0;
}
