/* SPDX-License-Identifier: MIT
 *
 * cuda_put: on an NVIDIA GPU. The kernel of each node puts numbers into the memory of the next node, and checks the numbers that it gets
 * from the node before.
 *
 * It shows a kernel that is compiled by CUDA's compiler: how the program passes the weft_device to it (weft_gpu_device()), and the calls
 * that all threads of a block make together (weft/device.cuh). examples/kernels.c is for the GPU `host`, which needs no CUDA.
 *
 * Compile:
 *     nvcc -O2 -arch=native -o cuda_put cuda_put.cu -lweft
 * Run:
 *     weft run -n 3 -- ./cuda_put
 * It prints:
 *     3 nodes: each has got the 1000 numbers of the node before
 */
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <weft.h>
#include <weft/device.cuh>

#define NUMBERS 1000

/* In each node's pool. */
struct place {
    uint64_t own[NUMBERS]; /* what this node puts */
    uint64_t got[NUMBERS]; /* what the node before has put */
    uint64_t signal;       /* becomes 1 when all numbers are there */
};

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "cuda_put: %s: %s\n", what, weft_error());
        exit(1);
    }
}

static void check_cuda(cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess) {
        fprintf(stderr, "cuda_put: %s: %s\n", what, cudaGetErrorString(rc));
        exit(1);
    }
}

static __device__ uint64_t number(uint32_t node, uint32_t i)
{
    return (uint64_t)node * 1000000 + i;
}

/* One block. All its threads make the calls that end in _block. `mine` and `next`: addresses of a struct place. */
static __global__ void pass_on(const weft_device *d, uint64_t mine, uint64_t next, int *result)
{
    struct place *here = (struct place *)weft_device_ptr(d, mine, sizeof *here); /* in this node's pool, so never NULL */
    uint32_t before = (d->rank + d->size - 1) % d->size;
    int wrong = 0;
    for (uint32_t i = threadIdx.x; i < NUMBERS; i += blockDim.x)
        here->own[i] = number(d->rank, i);
    int rc = weft_device_put_signal_block(d, next + offsetof(struct place, got), mine + offsetof(struct place, own), sizeof here->own,
                                          next + offsetof(struct place, signal), 1, NULL);
    if (rc == 0)
        rc = weft_device_wait_for_block(d, before, mine + offsetof(struct place, signal), 1, NULL);
    for (uint32_t i = threadIdx.x; rc == 0 && i < NUMBERS; i += blockDim.x)
        wrong |= here->got[i] != number(before, i);
    wrong = __syncthreads_or(wrong);
    if (rc == 0)
        rc = weft_device_flush_block(d, (uint32_t)(next >> 48)); /* the put is complete */
    if (threadIdx.x == 0)
        *result = rc ? rc : wrong;
}

int main(void)
{
    weft_node *w;
    weft_gpu *gpu;
    weft_gaddr mine, places[WEFT_MAX_NODES];
    int *result;
    check(weft_open(&w, NULL), "open");
    check(weft_alloc_aligned(w, sizeof(struct place), 64, &mine), "alloc");
    ((struct place *)weft_ptr(w, mine, sizeof(struct place)))->signal = 0;
    check(weft_exchange(w, &mine, 1, places, NULL, WEFT_TIMEOUT_DEFAULT), "exchange");

    weft_gpu_config config = {};
    config.bytes = sizeof config;
    config.name = "cuda:0";
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    check_cuda(cudaSetDevice(0), "device"); /* the same one */
    check_cuda(cudaHostAlloc(&result, sizeof *result, cudaHostAllocMapped), "memory");
    pass_on<<<1, 256>>>(weft_gpu_device(gpu), mine, places[(weft_rank(w) + 1) % weft_size(w)], result);
    check_cuda(cudaGetLastError(), "start of the kernel");
    check_cuda(cudaDeviceSynchronize(), "kernel");
    if (*result) {
        fprintf(stderr, "cuda_put: node %u: the kernel's result is %d (weft/device.h lists the errors; 1: wrong numbers)\n", weft_rank(w),
                *result);
        exit(1);
    }

    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    if (weft_rank(w) == 0)
        printf("%u nodes: each has got the %d numbers of the node before\n", weft_size(w), NUMBERS);
    check(weft_gpu_close(gpu), "GPU");
    check(weft_close(w), "close");
    return 0;
}
