/* SPDX-License-Identifier: MIT
 *
 * mem: the pool. One range of virtual memory, backed by shared memory that peers of the same host can map,
 * and the allocator that hands out pieces of it. Offsets are from the start of the pool; what is below
 * `heap_offset` is never handed out (offset 0 is null; then come the words of the rooms above).
 *
 * All bookkeeping is in private memory: a peer that can write the pool cannot harm the allocator.
 */
#ifndef WEFT_MEM_H
#define WEFT_MEM_H

#include "base/base.h"

#define MEM_SEGMENT_BYTES (UINT64_C(1) << 30) /* one memory region each, at most */
#define MEM_EXTENT_BYTES  (UINT64_C(64) << 10)
#define MEM_SMALL_MAX     (UINT64_C(32) << 10) /* size classes up to here, extents above */
#define MEM_ALIGN_MAX     (UINT64_C(2) << 20)

struct mem_pool;

struct mem_options {
    uint64_t bytes;       /* rounded up to extents; refused (-ENOMEM) when the machine has less available */
    uint64_t heap_offset; /* bytes at the start that the allocator leaves alone; rounded up to extents, at
                             least one */
    bool huge, lock, prefault;
};

struct mem_stats {
    uint64_t reserved_bytes, live_bytes, live_buffers, largest_free_bytes;
    uint32_t segments;
};

int mem_pool_create(struct mem_pool **out, const struct mem_options *options);
/* Only the allocator, for memory that the processor cannot touch: there is no base and no descriptor. The first extent is never handed out.
 */
int mem_pool_create_books(struct mem_pool **out, uint64_t bytes);
void mem_pool_destroy(struct mem_pool *pool); /* no other thread may be in it */

/* As weft_alloc_aligned() and weft_free() have it; an `align` of 0 to 16 asks for nothing. Any thread may
 * call. What threads keep for themselves of the blocks they freed is at most 8 MiB a thread and an eighth of
 * the pool together. Two threads that free one buffer at the same moment are not told apart. */
int mem_alloc(struct mem_pool *pool, uint64_t bytes, uint64_t align, uint64_t *offset);
/* The same without an alignment, and with `origin` added to the offset: the caller's way of naming this
 * pool's memory needs no second look at the result. */
int mem_alloc_from(struct mem_pool *pool, uint64_t bytes, uint64_t origin, uint64_t *out);
int mem_free(struct mem_pool *pool, uint64_t offset);
/* Bytes usable at a live buffer's start; 0 when it is none. Tests ask it: nothing else shows what the pool takes an offset for. */
uint64_t mem_size(struct mem_pool *pool, uint64_t offset);

void *mem_base(const struct mem_pool *pool);
uint64_t mem_bytes(const struct mem_pool *pool);
int mem_fd(const struct mem_pool *pool); /* stays the pool's */
void mem_stat(struct mem_pool *pool, struct mem_stats *out);

#endif
