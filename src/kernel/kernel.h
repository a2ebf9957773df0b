/* SPDX-License-Identifier: MIT
 *
 * kernel: named functions that process a span of bytes. To add a built-in kernel, add a file and a row in table.c.
 */
#ifndef WEFT_KERNEL_ROOM_H
#define WEFT_KERNEL_ROOM_H

#include "base/base.h"
#include "weft/kernel.h"

/* The destination of a kernel's output: a function of the code that runs the kernel. */
struct weft_out {
    int (*write)(void *arg, const void *bytes, size_t len); /* 0 or a negative errno */
    void *arg;
};

extern const weft_kernel kernel_wc, kernel_histogram, kernel_xxh64, kernel_grep;

#endif
