/* SPDX-License-Identifier: MIT
 *
 * For tests of kernels on the GPU `host`: opening it, and calls in a kernel that must return 0.
 */
#ifndef WEFT_GPU_TEST_H
#define WEFT_GPU_TEST_H

#include "cluster_test.h"

/* `d`: the kernel's struct weft_device */
#define KERNEL(call)                                                                                               \
    do {                                                                                                           \
        int kernel_rc_ = (call);                                                                                   \
        if (kernel_rc_ != 0) {                                                                                     \
            fprintf(stderr, "%s:%d: block %u: %s returned %d\n", __FILE__, __LINE__, d->block, #call, kernel_rc_); \
            _exit(1);                                                                                              \
        }                                                                                                          \
    } while (0)

static inline weft_gpu *open_host(weft_node *w, uint32_t rings, uint32_t slots)
{
    weft_gpu *g;
    weft_gpu_config config = {.bytes = sizeof config, .name = "host", .rings = rings, .slots = slots};
    OK(weft_gpu_open(w, &config, &g));
    return g;
}

#endif
