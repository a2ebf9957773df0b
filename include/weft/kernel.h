/* SPDX-License-Identifier: MIT
 *
 * Kernels: named C functions over a span of bytes, which `weft map --kernel NAME` runs inside the nodes.
 *
 * weft has some built-in kernels. A program adds others with weft_kernel_register(). `weft map --kernel-from FILE.so:NAME` runs a kernel
 * that a shared object defines: see examples/kernel.c.
 */
#ifndef WEFT_KERNEL_H
#define WEFT_KERNEL_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a kernel's output goes. Owned by weft; append with weft_out_write(). */
typedef struct weft_out weft_out;

/* Append `len` bytes. A kernel returns the error that it gets here.
 * Errors: -ENOMEM no memory; -ENOSPC no room on the disk. Other errors of write() are passed on. */
WEFT_API int weft_out_write(weft_out *out, const void *bytes, size_t len);

/* The input of one call. */
typedef struct weft_span {
    const uint8_t *bytes;
    size_t len;
    uint64_t offset; /* of bytes[0] in its input */
} weft_span;

typedef struct weft_kernel {
    size_t bytes;     /* sizeof(weft_kernel): tells a later library which fields there are */
    const char *name; /* as given to `weft map --kernel NAME[:ARG]` */
    const char *help; /* one line */
    bool takes_arg;   /* the kernel needs an argument: NAME:ARG */
    bool whole_lines; /* the kernel needs pieces that end at the end of a line; `weft map` refuses to cut the input elsewhere */
    /* Processes one piece. May run on any node and on several threads at the same time; must not keep state. 0, or a negative errno. */
    int (*run)(const weft_span *in, const char *arg, weft_out *out);
    /* The next three are optional: set all or none. `weft map` then does not print the outputs of the pieces. It passes them to `fold`, in
     * the order of the input. `fold` adds an output to `state`, a block of state_bytes bytes that are zero at first. At the end `finish`
     * writes the result. Both functions return 0 or a negative errno. */
    size_t state_bytes;
    int (*fold)(void *state, const void *output, size_t len);
    int (*finish)(const void *state, weft_out *out);
} weft_kernel;

/* Add a kernel to those that weft_kernel_find() and weft_kernel_next() know in this process. The weft_kernel is not copied: keep it
 * until the process ends.
 * Errors: -EINVAL a field is missing or wrong; -EEXIST the name is taken; -ENOSPC 64 kernels were added already. */
WEFT_API int weft_kernel_register(const weft_kernel *kernel);

/* The kernel NAME that a shared object defines: WEFT_API extern const weft_kernel NAME. The object stays loaded. The kernel is not
 * registered.
 * Errors: -ENOENT the file cannot be loaded, or has no such symbol; -EINVAL a field is missing or wrong; -ENAMETOOLONG the file's name is
 * too long. */
WEFT_API int weft_kernel_load(const char *file, const char *name, const weft_kernel **out);

/* The kernel of that name; NULL if there is none. */
WEFT_API const weft_kernel *weft_kernel_find(const char *name);

/* Lists the kernels, the built-in ones first: returns the kernel after `after`, or the first one if `after` is NULL, or NULL if `after` is
 * the last one. */
WEFT_API const weft_kernel *weft_kernel_next(const weft_kernel *after);

#ifdef __cplusplus
}
#endif
#endif
