/* SPDX-License-Identifier: MIT
 *
 * The header of weft 0.1, without its comments: a program that was built with it must run with a later library.
 */
#ifndef WEFT_KERNEL_H
#define WEFT_KERNEL_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_out weft_out;

WEFT_API int weft_out_write(weft_out *out, const void *bytes, size_t len);

typedef struct weft_span {
    const uint8_t *bytes;
    size_t len;
    uint64_t offset;
} weft_span;

typedef struct weft_kernel {
    size_t bytes;
    const char *name;
    const char *help;
    bool takes_arg;
    bool whole_lines;

    int (*run)(const weft_span *in, const char *arg, weft_out *out);

    size_t state_bytes;
    int (*fold)(void *state, const void *output, size_t len);
    int (*finish)(const void *state, weft_out *out);
} weft_kernel;

WEFT_API int weft_kernel_register(const weft_kernel *kernel);

WEFT_API int weft_kernel_load(const char *file, const char *name, const weft_kernel **out);

WEFT_API const weft_kernel *weft_kernel_find(const char *name);

WEFT_API const weft_kernel *weft_kernel_next(const weft_kernel *after);

#ifdef __cplusplus
}
#endif
#endif
