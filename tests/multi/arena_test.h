/* SPDX-License-Identifier: MIT
 *
 * For tests of GPUs' memory in the address space: the first arena of a node, on the GPU `host` or on that which WEFT_TEST_GPU names.
 */
#ifndef WEFT_TEST_ARENA_H
#define WEFT_TEST_ARENA_H

#include <stdlib.h>
#include <string.h>

#include "cluster_test.h"
#include "gpu/arena.h"

#define SPACE 1u

static inline const char *gpu_name(void)
{
    const char *name = getenv("WEFT_TEST_GPU");
    return name ? name : "host";
}

/* Whether the GPU runs kernels of the test, and the processor can access its memory. */
static inline bool gpu_is_host(void)
{
    return !strcmp(gpu_name(), "host");
}

static inline weft_gpu *open_arena(weft_node *w, size_t bytes)
{
    weft_gpu *g;
    uint32_t space;
    weft_gpu_config config = {.bytes = sizeof config, .name = gpu_name(), .rings = 2, .slots = 64};
    OK(weft_gpu_open(w, &config, &g));
    OK(weft_gpu_arena(g, bytes, &space));
    CHECK(space == SPACE);
    return g;
}

#endif
