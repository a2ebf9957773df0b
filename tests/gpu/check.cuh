/* SPDX-License-Identifier: MIT
 *
 * Helpers of the programs in this folder: a node with its GPU, checks on the processor and in kernels, and reporting failures of kernels.
 */
#ifndef WEFT_TESTS_GPU_CHECK_H
#define WEFT_TESTS_GPU_CHECK_H

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <ctime>
#include <unistd.h>

#include "weft.h"
#include "weft/device.h"
#include "weft/gpu.h"

/* Where the first failed check of a kernel was. */
struct report {
    int line, rc;
};

/* For use in a kernel with a parameter `struct report *bad`. */
#define KERNEL_IS(call, wanted)                                 \
    do {                                                        \
        int kernel_rc_ = (call);                                \
        if (kernel_rc_ != (wanted)) {                           \
            if (atomicCAS_system(&bad->line, 0, __LINE__) == 0) \
                bad->rc = kernel_rc_;                           \
            return;                                             \
        }                                                       \
    } while (0)
#define KERNEL(call)       KERNEL_IS(call, 0)
#define KERNEL_CHECK(good) KERNEL_IS((good) ? 1 : 0, 1)

static weft_node *w;
static weft_gpu *gpu;
static struct report *bad;

#define OK(call)                                                                                                                    \
    do {                                                                                                                            \
        int ok_rc_ = (call);                                                                                                        \
        if (ok_rc_ < 0) {                                                                                                           \
            fprintf(stderr, "%s:%d: node %u: %s: %d: %s\n", __FILE__, __LINE__, w ? weft_rank(w) : 0, #call, ok_rc_, weft_error()); \
            _exit(1);                                                                                                               \
        }                                                                                                                           \
    } while (0)
#define CHECK(good)                                                                                           \
    do {                                                                                                      \
        if (!(good)) {                                                                                        \
            fprintf(stderr, "%s:%d: node %u: not so: %s\n", __FILE__, __LINE__, w ? weft_rank(w) : 0, #good); \
            _exit(1);                                                                                         \
        }                                                                                                     \
    } while (0)
#define CUDA(call)                                                                                       \
    do {                                                                                                 \
        cudaError_t cuda_rc_ = (call);                                                                   \
        if (cuda_rc_ != cudaSuccess) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(cuda_rc_)); \
            _exit(1);                                                                                    \
        }                                                                                                \
    } while (0)

/* Waits for the kernel that was started last, and checks that none of its checks failed. */
#define KERNEL_DONE()                                                                                                                \
    do {                                                                                                                             \
        CUDA(cudaGetLastError());                                                                                                    \
        CUDA(cudaDeviceSynchronize());                                                                                               \
        if (bad->line) {                                                                                                             \
            fprintf(stderr, "%s:%d: node %u: a kernel's check in line %d failed: %d\n", __FILE__, __LINE__, weft_rank(w), bad->line, \
                    bad->rc);                                                                                                        \
            _exit(1);                                                                                                                \
        }                                                                                                                            \
    } while (0)

static inline weft_gaddr on_node(weft_gaddr a, uint32_t node)
{
    return weft_gaddr_make(node, weft_gaddr_space(a), weft_gaddr_offset(a));
}

static inline void open_node(void)
{
    /* By default CUDA loads a kernel when it is first started, and for that waits for running kernels: for ever, if they wait for this one.
     */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    OK(weft_open(&w, NULL));
    CUDA(cudaSetDevice(0));
    CUDA(cudaHostAlloc(&bad, sizeof *bad, cudaHostAllocMapped));
    *bad = (struct report){0, 0};
}

static inline void open_gpu(uint32_t rings, uint32_t slots)
{
    weft_gpu_config config = {};
    config.bytes = sizeof config;
    config.name = "cuda:0";
    config.rings = rings;
    config.slots = slots;
    OK(weft_gpu_open(w, &config, &gpu));
}

/* Allocates zeros at the same offset on every node. */
static inline weft_gaddr same_place(size_t bytes)
{
    static uint64_t all[WEFT_MAX_NODES];
    weft_gaddr a;
    OK(weft_alloc_aligned(w, bytes, 64, &a));
    memset(weft_ptr(w, a, bytes), 0, bytes);
    OK(weft_exchange(w, &a, 1, all, NULL, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t i = 0; i < weft_size(w); i++)
        CHECK(weft_gaddr_offset(all[i]) == weft_gaddr_offset(a));
    return a;
}

static inline void all_here(void)
{
    OK(weft_barrier(w, 60 * WEFT_SECOND));
}

#endif
