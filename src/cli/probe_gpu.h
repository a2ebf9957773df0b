/* SPDX-License-Identifier: MIT
 *
 * What weft probe memory needs of a GPU: memory that its driver allocates, and a test whether the GPU can access memory of this process.
 * The driver is CUDA's, loaded in the same way as by the library.
 */
#ifndef WEFT_CLI_PROBE_GPU_H
#define WEFT_CLI_PROBE_GPU_H

#include "base/base.h"

struct probe_gpu {
    char name[128];
    char why[320]; /* why no GPU can be used, in a sentence; "": the GPU can be used */
    void *context;
    int device;
};

/* A piece of memory of some kind, and how to free it. */
struct piece {
    struct probe_gpu *gpu;
    void *at, *to_free;
    uint64_t bytes;  /* the wanted size; when the memory is allocated, its size */
    int fd, dmabuf;  /* -1: none */
    uint64_t handle; /* handle of the GPU driver */
    bool read_only;
    /* the call of the GPU's driver that allocated the memory, if the GPU can access it at the same address; NULL: there was no such call */
    const char *made_by;
    bool far;                          /* only the GPU can access the memory, not this process */
    void (*give_back)(struct piece *); /* NULL: munmap() or free() */
};

/* Open the first GPU. If no GPU can be used, g->why tells why. */
void probe_gpu_open(struct probe_gpu *g);
void probe_gpu_close(struct probe_gpu *g);

/* Allocate memory of the driver. Return 0, or a negative errno with base_error(). */
int probe_gpu_pinned(struct piece *m);
int probe_gpu_plain(struct piece *m);
int probe_gpu_virtual(struct piece *m);
int probe_gpu_managed(struct piece *m);
/* Allocate memory of the driver, and make a dmabuf of it. */
int probe_gpu_plain_dmabuf(struct piece *m);
int probe_gpu_virtual_dmabuf(struct piece *m);

/* Whether the GPU can access the memory: lets the GPU write to all of it, and checks the bytes. `*call`: the driver's call that gave
 * access, or NULL. */
int probe_gpu_reach(const struct piece *m, const char **call);

#endif
