/* SPDX-License-Identifier: MIT
 *
 * Kernels: named functions that `weft map` runs on pieces of a file, inside the nodes. weft has some built-in kernels. `weft map
 * --kernel-from FILE.so:NAME` runs a kernel that a shared object defines: see examples/longest.c. (Functions on a GPU are also called
 * kernels; weft/gpu.h is about those.)
 */
#ifndef WEFT_KERNEL_H
#define WEFT_KERNEL_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The output of a kernel. weft owns it. */
typedef struct weft_out weft_out;

/* Append `len` bytes to the output. If this fails, the kernel must return the error.
 * Errors: -ENOMEM no memory; -ENOSPC no room on the disk. Other errors of write() are passed on. */
WEFT_API int weft_out_write(weft_out *out, const void *bytes, size_t len);

/* The piece that a kernel processes. */
typedef struct weft_span {
    const uint8_t *bytes;
    size_t len;
    uint64_t offset; /* offset of bytes[0] in the input */
} weft_span;

typedef struct weft_kernel {
    size_t bytes;     /* sizeof(weft_kernel): tells a later library which fields this program knows */
    const char *name; /* as given to `weft map --kernel NAME[:ARG]` */
    const char *help; /* one line */
    bool takes_arg;   /* the kernel needs an argument: NAME:ARG */
    bool whole_lines; /* the kernel needs pieces that end at the end of a line; `weft map` refuses to cut the input elsewhere */
    /* Processes one piece. Returns 0 or a negative errno. Runs on any node, and in several threads at the same time, so the function must
     * not use global variables. `arg` is the argument of the kernel, or NULL. */
    int (*run)(const weft_span *in, const char *arg, weft_out *out);
    /* Only for a kernel that combines the outputs of all pieces into one result; set all three fields or none of them. `weft map` then does
     * not print the outputs, but calls `fold` for each output, in the order of the input. `fold` adds the output to `state`, which has
     * state_bytes bytes that are zero at first. At the end `finish` writes the result. Both return 0 or a negative errno. */
    size_t state_bytes;
    int (*fold)(void *state, const void *output, size_t len);
    int (*finish)(const void *state, weft_out *out);
} weft_kernel;

/* Register a kernel in this process. weft does not copy the struct: keep it until the process ends.
 * Errors: -EINVAL a field is missing or wrong; -EEXIST the name is taken; -ENOSPC 64 kernels were added already. */
WEFT_API int weft_kernel_register(const weft_kernel *kernel);

/* Load a shared object, and store in `*out` its kernel `name`, defined as WEFT_API extern const weft_kernel NAME. The object stays loaded
 * until the process ends. The kernel is not registered.
 * Errors: -ENOENT the file cannot be loaded, or has no such symbol; -EINVAL a field is missing or wrong; -ENAMETOOLONG the file's name is
 * too long. */
WEFT_API int weft_kernel_load(const char *file, const char *name, const weft_kernel **out);

/* The kernel of that name, built-in or registered; NULL if there is none. */
WEFT_API const weft_kernel *weft_kernel_find(const char *name);

/* The kernel that follows `after` in the list of all kernels; NULL at the end. For NULL: the first kernel. */
WEFT_API const weft_kernel *weft_kernel_next(const weft_kernel *after);

#ifdef __cplusplus
}
#endif
#endif
