/* SPDX-License-Identifier: MIT
 *
 * The header of weft 0.1, without its comments: a program that was built with it must run with a later library.
 */
#ifndef WEFT_POOL_H
#define WEFT_POOL_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

WEFT_API int weft_alloc(weft_node *w, size_t bytes, weft_gaddr *out);

WEFT_API int weft_alloc_aligned(weft_node *w, size_t bytes, size_t align, weft_gaddr *out);

WEFT_API int weft_free(weft_node *w, weft_gaddr addr);

WEFT_API void *weft_ptr(weft_node *w, weft_gaddr addr, size_t bytes);

WEFT_API weft_gaddr weft_addr(weft_node *w, const void *p);

typedef struct weft_pool_stats {
    uint64_t reserved_bytes;
    uint64_t live_bytes;
    uint64_t live_buffers;
    uint64_t largest_free_bytes;
    uint32_t regions_used;
    uint32_t regions_budget;
} weft_pool_stats;

WEFT_API int weft_pool_stat(weft_node *w, weft_pool_stats *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
