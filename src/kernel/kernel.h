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

/* --- For code that computes the results of pieces in another way (src/gpu/). The result of wc is defined in kernel/wc.h; that of histogram
 * is 256 counters of 64 bits --- */
int kernel_hash_give(const weft_span *in, uint64_t hash, weft_out *out);
int kernel_grep_check(const char *arg); /* 0, or -EINVAL: the kernel grep cannot search for `arg` */
/* Writes the lines in which `arg` begins at [from, to) of the span, except lines before `*next`, which were written already. Afterwards
 * `*next` is the end of the last line that was written. */
int kernel_grep_lines(const weft_span *in, const char *arg, size_t from, size_t to, size_t *next, weft_out *out);

#endif
