/* SPDX-License-Identifier: MIT
 *
 * The GPU functions that `weft probe memory` needs: allocating GPU memory, and importing memory of the host.
 */
#ifndef WEFT_CLI_PROBE_GPU_H
#define WEFT_CLI_PROBE_GPU_H

#include "base/base.h"

struct probe_gpu {
    char name[128];
    void *library, *context;
    int device;
    bool held; /* the primary context was retained, so it must be released */
};

/* Open the first GPU. CUDA's driver is loaded at run time. -ENODEV, with base_error(): there is no driver or no GPU. */
int probe_gpu_open(struct probe_gpu *g);
void probe_gpu_close(struct probe_gpu *g);
/* Allocate GPU memory. *address is its address on the GPU; an RDMA driver may be able to register it. */
int probe_gpu_alloc(struct probe_gpu *g, uint64_t bytes, uint64_t *address);
void probe_gpu_free(struct probe_gpu *g, uint64_t address);
/* Get a dmabuf descriptor of GPU memory; the caller closes it. */
int probe_gpu_dmabuf(struct probe_gpu *g, uint64_t address, uint64_t bytes, int *fd);
/* Check that the GPU can import memory of this process and write `byte` to all of it, and that this process sees the bytes. */
int probe_gpu_import(struct probe_gpu *g, uint8_t *memory, uint64_t bytes, uint8_t byte);

#endif
