/* SPDX-License-Identifier: MIT
 *
 * The pool: the memory that a node gives to the cluster. Every node can read and write all of it.
 */
#ifndef WEFT_POOL_H
#define WEFT_POOL_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Allocate `bytes` in this node's pool. The memory is aligned to 16 bytes (to 64 from 64 bytes on); its content is undefined. The caller
 * owns it until weft_free(). Asks no other node.
 * Errors: -EINVAL 0 bytes; -ENOMEM no room (all else stays usable). */
WEFT_API int weft_alloc(weft_node *w, size_t bytes, weft_gaddr *out);

/* The same, aligned to `align`: a power of two up to 2 MiB.
 * Errors: -EINVAL 0 bytes, or no such alignment; -ENOMEM no room (all else stays usable). */
WEFT_API int weft_alloc_aligned(weft_node *w, size_t bytes, size_t align, weft_gaddr *out);

/* Free a buffer that weft_alloc() or weft_alloc_aligned() returned on this node. WEFT_NULL is allowed. An error changes nothing.
 * Errors: -EFAULT not an address of this node's heap; -EINVAL inside a buffer, not at its start; -EALREADY it is free already. */
WEFT_API int weft_free(weft_node *w, weft_gaddr addr);

/* The memory behind an address, if this process can reach it by loads and stores: its own pool, and the pools of the nodes on the same
 * host. NULL if it cannot, or if any of the `bytes` lie outside the pool. Valid until weft_close(); the pages of a node that died stay
 * readable. */
WEFT_API void *weft_ptr(weft_node *w, weft_gaddr addr, size_t bytes);

/* The address of memory inside this node's pool; WEFT_NULL for memory elsewhere. */
WEFT_API weft_gaddr weft_addr(weft_node *w, const void *p);

typedef struct weft_pool_stats {
    uint64_t reserved_bytes;     /* size of the pool */
    uint64_t live_bytes;         /* allocated now, rounded up to size classes */
    uint64_t live_buffers;       /* buffers allocated now */
    uint64_t largest_free_bytes; /* the largest buffer that could be allocated now */
    uint32_t regions_used;       /* memory regions in use, on the device with the most; tb: those for frames included */
    uint32_t regions_budget;     /* memory regions that device allows; 0 without a device */
} weft_pool_stats;

/* Fill `*out`. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: none. */
WEFT_API int weft_pool_stat(weft_node *w, weft_pool_stats *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
