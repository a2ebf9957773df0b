/* SPDX-License-Identifier: MIT
 *
 * Kernels of the `host` back end: named C functions over a span of bytes, run inside the nodes.
 *
 * weft has some of its own, a program can add others (weft_kernel_register()), and `weft map --kernel-from FILE.so:NAME` runs the
 * weft_kernel that a shared object defines under that name: see examples/kernel.c.
 */
#ifndef WEFT_KERNEL_H
#define WEFT_KERNEL_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A growing output buffer. Owned by weft; append with weft_out_write(). */
typedef struct weft_out weft_out;
/* 0, or what keeps the output from growing: -ENOMEM, -ENOSPC. A kernel returns it. */
WEFT_API int weft_out_write(weft_out *out, const void *bytes, size_t len);

typedef struct weft_span {
    const uint8_t *bytes;
    size_t len;
    uint64_t offset; /* of bytes[0] in its input */
} weft_span;

typedef struct weft_kernel {
    size_t bytes;     /* sizeof(weft_kernel): tells a later library how many fields there are */
    const char *name; /* as given to `weft map --kernel NAME[:ARG]` */
    const char *help; /* one line */
    bool takes_arg;   /* NAME:ARG */
    bool whole_lines; /* right only for pieces that end at line ends; other cuts are refused */
    /* One piece. Runs on any node and thread; must not keep state. */
    int (*run)(const weft_span *in, const char *arg, weft_out *out);
    /* Optional: pieces' outputs are not printed but folded, in input order, into `state` (state_bytes, zero at
     * first), and `finish` prints the whole. */
    size_t state_bytes;
    int (*fold)(void *state, const void *output, size_t len);
    int (*finish)(const void *state, weft_out *out);
} weft_kernel;

/* Add a kernel of the program's to those that weft_kernel_find() and weft_kernel_next() know, on this node alone. It is not copied: it
 * lives as long as the process. Errors: -EINVAL a field is missing or wrong, -EEXIST the name is taken, -ENOSPC 64 were added. */
WEFT_API int weft_kernel_register(const weft_kernel *kernel);

/* The kernel NAME that a shared object defines: WEFT_API extern const weft_kernel NAME. The object stays loaded; nothing is registered.
 * Errors: -ENOENT the file cannot be loaded, or has no such symbol; -EINVAL as above. */
WEFT_API int weft_kernel_load(const char *file, const char *name, const weft_kernel **out);

/* By name; NULL: there is none. */
WEFT_API const weft_kernel *weft_kernel_find(const char *name);

/* One after the other, the built-in ones first: NULL begins, and is the end. */
WEFT_API const weft_kernel *weft_kernel_next(const weft_kernel *after);

#ifdef __cplusplus
}
#endif
#endif
