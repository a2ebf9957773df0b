// SPDX-License-Identifier: MIT
//
// Calls of weft and of CUDA that must succeed, in benchmarks.
#ifndef WEFT_BENCH_MUST_H
#define WEFT_BENCH_MUST_H

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

#define OK(call)                                                                         \
    do {                                                                                 \
        int rc_ = (call);                                                                \
        if (rc_ < 0) {                                                                   \
            fprintf(stderr, "weft: %s: %s (%s)\n", #call, weft_error(), strerror(-rc_)); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)
#define CUDA(call)                                                            \
    do {                                                                      \
        cudaError_t e_ = (call);                                              \
        if (e_ != cudaSuccess) {                                              \
            fprintf(stderr, "cuda: %s: %s\n", #call, cudaGetErrorString(e_)); \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

#endif
