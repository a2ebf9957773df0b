/* SPDX-License-Identifier: MIT
 *
 * kernel: functions over a span of bytes, by name. A new built-in kernel is a file, and a row in table.c.
 */
#ifndef WEFT_KERNEL_ROOM_H
#define WEFT_KERNEL_ROOM_H

#include "base/base.h"
#include "weft/kernel.h"

/* Where a kernel's output goes. Whoever runs kernels gives a function that takes the bytes. */
struct weft_out {
    int (*write)(void *arg, const void *bytes, size_t len); /* 0 or a negative errno */
    void *arg;
};

extern const weft_kernel kernel_wc, kernel_histogram, kernel_xxh64, kernel_grep;

#endif
