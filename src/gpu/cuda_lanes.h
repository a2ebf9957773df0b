/* SPDX-License-Identifier: MIT
 *
 * Kernels of weft's own on the back end `cuda`: see struct gpu_backend.
 */
#ifndef WEFT_GPU_CUDA_LANES_H
#define WEFT_GPU_CUDA_LANES_H

#include "gpu/gpu.h"

int cuda_lanes_load(void *device, const struct gpu_code *code, void **module);
void cuda_lanes_unload(void *device, void *module);
int cuda_lanes_open(void *device, void **lane);
void cuda_lanes_close(void *device, void *lane);
int cuda_lanes_copy(void *device, void *lane, void *to, const void *from, size_t bytes);
int cuda_lanes_launch(void *device, void *lane, void *after, void *module, uint32_t function, uint32_t blocks, uint32_t threads, void *arg);
int cuda_lanes_done(void *device, void *lane);

#endif
