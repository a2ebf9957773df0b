/* SPDX-License-Identifier: MIT
 *
 * What weft probe memory needs of a GPU: memory that its driver makes, and whether it reaches memory of this process. The driver is CUDA's,
 * as the library loads it.
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

/* A piece of memory of some kind, and how to give it back. */
struct piece {
    struct probe_gpu *gpu;
    void *at, *to_free;
    uint64_t bytes;  /* a wish, until it is made */
    int fd, dmabuf;  /* -1: none */
    uint64_t handle; /* the GPU driver's */
    bool read_only;
    const char *made_by;               /* a call of the GPU's driver: the GPU reaches it at the same address; else NULL */
    bool far;                          /* only the GPU does, this process does not */
    void (*give_back)(struct piece *); /* NULL: munmap() or free() */
};

/* The first GPU. There is none: `g->why`. */
void probe_gpu_open(struct probe_gpu *g);
void probe_gpu_close(struct probe_gpu *g);

/* Memory that the driver makes: 0, or a negative errno with a sentence. */
int probe_gpu_pinned(struct piece *m);
int probe_gpu_plain(struct piece *m);
int probe_gpu_virtual(struct piece *m);
int probe_gpu_managed(struct piece *m);
/* The same, and a dmabuf of it. */
int probe_gpu_plain_dmabuf(struct piece *m);
int probe_gpu_virtual_dmabuf(struct piece *m);

/* Whether the GPU reaches it: writes all of it, and what it wrote is seen. `*call` is how the GPU knows it; NULL: it does
 * not. */
int probe_gpu_reach(const struct piece *m, const char **call);

#endif
