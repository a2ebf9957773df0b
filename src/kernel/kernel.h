/* SPDX-License-Identifier: MIT
 *
 * Named functions that process a span of bytes. To add a built-in kernel, add a file and a row in table.c.
 */
#ifndef WEFT_KERNEL_ROOM_H
#define WEFT_KERNEL_ROOM_H

#include "base/base.h"
#include "weft/kernel.h"

/* Where the output of a kernel goes. */
struct weft_out {
    int (*write)(void *arg, const void *bytes, size_t len); /* 0 or a negative errno */
    void *arg;
};

extern const weft_kernel kernel_wc, kernel_histogram, kernel_xxh64, kernel_grep;

/* --- For src/gpu/, which computes the results of pieces on a GPU. kernel/wc.h defines the result of wc; the result of histogram is 256
 * counters of 64 bits --- */
int kernel_hash_give(const weft_span *in, uint64_t hash, weft_out *out);
int kernel_grep_check(const char *arg); /* returns 0, or -EINVAL if grep cannot search for `arg` */
/* Writes the lines with a match that starts in [from, to), but no line before `*next`. Sets `*next` to the end of the last written line. */
int kernel_grep_lines(const weft_span *in, const char *arg, size_t from, size_t to, size_t *next, weft_out *out);

#endif
