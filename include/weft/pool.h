/* SPDX-License-Identifier: MIT
 *
 * The pool: the memory that a node gives to the cluster. Every node can read and write the whole pool.
 */
#ifndef WEFT_POOL_H
#define WEFT_POOL_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Allocate `bytes` bytes in this node's pool, and store the address in `*out`. The memory is aligned to 16 bytes, or to 64 if `bytes` is at
 * least 64. It is not set to zero. Free it by weft_free().
 * Errors: -EINVAL `bytes` is 0; -ENOMEM no room (the node stays usable). */
WEFT_API int weft_alloc(weft_node *w, size_t bytes, weft_gaddr *out);

/* Like weft_alloc(), with another alignment: a power of two up to 2 MiB.
 * Errors: -EINVAL `bytes` is 0, or `align` is not such a number; -ENOMEM no room (the node stays usable). */
WEFT_API int weft_alloc_aligned(weft_node *w, size_t bytes, size_t align, weft_gaddr *out);

/* Free a buffer that weft_alloc(), weft_alloc_aligned() or weft_gpu_alloc() has returned on this node. WEFT_NULL is allowed. After an error
 * nothing has been freed.
 * Errors: -EFAULT `addr` is not in this node's pool or arenas; -EINVAL `addr` is inside a buffer, not at its start; -EALREADY the buffer
 * is free already. */
WEFT_API int weft_free(weft_node *w, weft_gaddr addr);

/* A pointer to the `bytes` bytes at an address, for ordinary loads and stores. The memory must be in the pool of this node or of another
 * node on this host. NULL for other memory, or if the range is not inside the pool. The pointer is valid until weft_close(), even if the
 * other node dies. */
WEFT_API void *weft_ptr(weft_node *w, weft_gaddr addr, size_t bytes);

/* The address of memory inside this node's pool; WEFT_NULL for memory elsewhere. */
WEFT_API weft_gaddr weft_addr(weft_node *w, const void *p);

typedef struct weft_pool_stats {
    uint64_t reserved_bytes;     /* size of the pool */
    uint64_t live_bytes;         /* allocated now, rounded up to size classes */
    uint64_t live_buffers;       /* buffers allocated now */
    uint64_t largest_free_bytes; /* the largest buffer that could be allocated now */
    uint32_t regions_used;       /* memory regions (ibv_mr) in use, on the device with the most; over tb including the regions for frames */
    uint32_t regions_budget;     /* memory regions that this device allows; 0: there is no device */
    /* Parts of live_bytes that weft itself has allocated. */
    uint64_t network_bytes; /* rings of sockets at a gateway (weft/net.h) */
    uint64_t stream_bytes;  /* rings of the input and output of processes (weft/service.h) */
    uint64_t file_bytes;    /* cached and mapped files (weft/file.h) */
    uint64_t task_bytes;    /* shards of queues (weft/queue.h) */
} weft_pool_stats;

/* Fill `*out`. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: none. */
WEFT_API int weft_pool_stat(weft_node *w, weft_pool_stats *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
