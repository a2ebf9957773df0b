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

/* --- for those who compute a piece's result in another way (src/gpu/): how it is given. That of wc is in kernel/wc.h, that of histogram
 * 256 numbers of 64 bits --- */
int kernel_hash_give(const weft_span *in, uint64_t hash, weft_out *out);
int kernel_grep_check(const char *arg); /* can this text be looked for? */
/* Writes the lines in which `arg` begins at [from, to) of the span, except those before `*next`, which have been looked at; then `*next` is
 * the end of the last one written. */
int kernel_grep_lines(const weft_span *in, const char *arg, size_t from, size_t to, size_t *next, weft_out *out);

#endif
