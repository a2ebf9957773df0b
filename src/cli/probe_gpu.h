/* SPDX-License-Identifier: MIT
 *
 * What weft probe memory needs of a GPU: memory that its driver allocates, and a test whether the GPU can access memory of this process.
 * The driver is CUDA's, or on macOS Metal (probe_metal.c: compiled, never run), loaded in the same way as by the library.
 */
#ifndef WEFT_CLI_PROBE_GPU_H
#define WEFT_CLI_PROBE_GPU_H

#include "base/base.h"

struct probe_gpu {
    char name[128];
    char why[320]; /* why no GPU can be used, in a sentence; "": the GPU can be used */
    void *context; /* of CUDA; NULL: the GPU is not used through CUDA */
    int device;
    void *metal; /* Metal's device; NULL: the GPU is not used through Metal */
};

/* A piece of memory of some kind, and how to free it. */
struct piece {
    struct probe_gpu *gpu;
    void *at, *to_free;
    uint64_t bytes;  /* the wanted size; when the memory is allocated, its size */
    int fd, dmabuf;  /* -1: none */
    uint64_t handle; /* handle of CUDA's driver */
    void *object;    /* of Objective-C, which owns the memory */
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

/* Memory of macOS. */
int probe_metal_buffer(struct piece *m);
int probe_metal_surface(struct piece *m);

/* Whether the GPU can access the memory: lets the GPU write to all of it, and checks the bytes. `*call`: the driver's call that gave
 * access, or NULL. */
int probe_gpu_reach(const struct piece *m, const char **call);

/* Whether the GPU has written `byte` to all of the memory. */
static inline int probe_gpu_differs(const uint8_t *seen, uint64_t bytes, uint8_t byte, const char *where)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (seen[i] != byte)
            return base_fail(-EIO, "the GPU filled this memory, but the bytes %s are wrong from byte %llu on", where,
                             (unsigned long long)i);
    return 0;
}

/* Called by probe_gpu.c on macOS. */
int probe_metal_start(struct probe_gpu *g);
void probe_metal_close(struct probe_gpu *g);
int probe_metal_reach(const struct piece *m, const char **call);

#endif
