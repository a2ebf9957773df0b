/* SPDX-License-Identifier: MIT
 *
 * The pool: the node's registered memory, which every node of the cluster can name.
 */
#ifndef WEFT_POOL_H
#define WEFT_POOL_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Allocate `bytes` of this node's pool. The memory is aligned to 16 bytes (64 from 64 bytes on), and its
 * content is undefined. Errors: -EINVAL (0 bytes), -ENOMEM (everything else stays usable). */
WEFT_API int weft_alloc(weft_node *w, size_t bytes, weft_gaddr *out);

/* The same with an alignment: a power of two up to 2 MiB. */
WEFT_API int weft_alloc_aligned(weft_node *w, size_t bytes, size_t align, weft_gaddr *out);

/* Free what weft_alloc() of this node returned. Refused, with nothing changed: -EFAULT an address that is not
 * of this node's heap, -EINVAL one inside a buffer, -EALREADY one that is free already. WEFT_NULL is allowed. */
WEFT_API int weft_free(weft_node *w, weft_gaddr addr);

/* The memory behind an address, when this process can reach it by loads and stores: its own pool, and the pools
 * of the nodes on the same host. NULL when it cannot, or when any of the `bytes` are outside the pool.
 * Valid until weft_close(); the pages of a node that died stay readable. */
WEFT_API void *weft_ptr(weft_node *w, weft_gaddr addr, size_t bytes);

/* The address of memory inside this node's pool; WEFT_NULL for memory elsewhere. */
WEFT_API weft_gaddr weft_addr(weft_node *w, const void *p);

typedef struct weft_pool_stats {
    uint64_t reserved_bytes;     /* size of the pool */
    uint64_t live_bytes;         /* allocated now, as handed out (size classes included) */
    uint64_t live_buffers;       /* buffers allocated now */
    uint64_t largest_free_bytes; /* largest free extent: the largest buffer that would fit now */
    uint32_t regions_used;       /* memory regions of the pool; of tb, on the device with the most, its frames' included */
    uint32_t regions_budget;     /* regions the device allows; 0 without a device */
} weft_pool_stats;

/* `bytes`: sizeof *out. What this library does not know is 0. */
WEFT_API int weft_pool_stat(weft_node *w, weft_pool_stats *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
