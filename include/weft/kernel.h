/* SPDX-License-Identifier: MIT
 *
 * Kernels of the `host` back end: named C functions over a span of bytes, run inside the nodes.
 */
#ifndef WEFT_KERNEL_H
#define WEFT_KERNEL_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A growing output buffer. Owned by weft; append with weft_out_write(). */
typedef struct weft_out weft_out;
WEFT_API int weft_out_write(weft_out *out, const void *bytes, size_t len);

typedef struct weft_span {
    const uint8_t *bytes;
    size_t len;
    uint64_t offset; /* of bytes[0] in its input */
} weft_span;

typedef struct weft_kernel {
    const char *name;   /* as given to `weft map --kernel NAME[:ARG]` */
    const char *help;   /* one line */
    bool takes_arg;     /* NAME:ARG */
    bool whole_lines;   /* right only for pieces that end at line ends; other cuts are refused */
    /* One piece. Runs on any node and thread; must not keep state. */
    int (*run)(const weft_span *in, const char *arg, weft_out *out);
    /* Optional: pieces' outputs are not printed but folded, in input order, into `state` (state_bytes, zero at
     * first), and `finish` prints the whole. */
    size_t state_bytes;
    int (*fold)(void *state, const void *output, size_t len);
    int (*finish)(const void *state, weft_out *out);
} weft_kernel;

/* The built-in kernels; `*count` receives how many. */
WEFT_API const weft_kernel *weft_kernels(size_t *count);

#ifdef __cplusplus
}
#endif
#endif
