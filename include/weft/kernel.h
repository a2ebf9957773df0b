/* SPDX-License-Identifier: MIT
 *
 * Kernels: named C functions over a span of bytes, which `weft map --kernel NAME` runs inside the nodes.
 *
 * weft has some of its own. A program adds others with weft_kernel_register(). `weft map --kernel-from FILE.so:NAME` runs a kernel that a
 * shared object defines: see examples/kernel.c.
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
    bool whole_lines; /* the kernel needs pieces that end at line ends; `weft map` refuses other cuts */
    /* Processes one piece. May run on any node and on several threads at the same time; must not keep state. 0, or a negative errno. */
    int (*run)(const weft_span *in, const char *arg, weft_out *out);
    /* These three are optional: set all or none. Instead of being printed, the outputs of the pieces are folded into `state` in the order
     * of the input. `state` has state_bytes, which are zero at first. `finish` prints the result. Both return 0 or a negative errno. */
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

/* The kernel after `after`, the built-in ones first. NULL gives the first; the last gives NULL. */
WEFT_API const weft_kernel *weft_kernel_next(const weft_kernel *after);

#ifdef __cplusplus
}
#endif
#endif
