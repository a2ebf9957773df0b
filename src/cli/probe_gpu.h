/* SPDX-License-Identifier: MIT
 *
 * What weft probe memory needs of a GPU: to allocate its memory, and to import memory of the host.
 */
#ifndef WEFT_CLI_PROBE_GPU_H
#define WEFT_CLI_PROBE_GPU_H

#include "base/base.h"

struct probe_gpu {
    char name[128];
    void *library, *context;
    int device;
    bool held; /* the context is ours to give back */
};

/* The first GPU, by CUDA's driver, which is looked for at run time. -ENODEV with a sentence when there is none. */
int probe_gpu_open(struct probe_gpu *g);
void probe_gpu_close(struct probe_gpu *g);
/* A piece of the GPU's memory: its address there, which a device driver may know how to register. */
int probe_gpu_alloc(struct probe_gpu *g, uint64_t bytes, uint64_t *address);
void probe_gpu_free(struct probe_gpu *g, uint64_t address);
/* A dmabuf descriptor of it, the caller's. */
int probe_gpu_dmabuf(struct probe_gpu *g, uint64_t address, uint64_t bytes, int *fd);
/* Whether the GPU can import memory of ours, write `byte` to all of it, and we see that there. */
int probe_gpu_import(struct probe_gpu *g, uint8_t *memory, uint64_t bytes, uint8_t byte);

#endif
