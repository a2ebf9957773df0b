/* SPDX-License-Identifier: MIT
 *
 * mem: the pool and its allocator. The pool is one range of virtual memory. Its memory is shared memory, which peers of the same host can
 * map. Offsets count from the start of the pool. The allocator never uses offsets below `heap_offset`: offset 0 is null, and higher layers
 * (src/sync/, for example) keep words of their own below `heap_offset`.
 *
 * All records of the allocator are in private memory, so a peer that writes to the pool cannot damage them.
 */
#ifndef WEFT_MEM_H
#define WEFT_MEM_H

#include "base/base.h"

#define MEM_SEGMENT_BYTES (UINT64_C(1) << 30) /* the pool is registered in regions of at most this size */
#define MEM_EXTENT_BYTES  (UINT64_C(64) << 10)
#define MEM_SMALL_MAX     (UINT64_C(32) << 10) /* buffers up to this size come from size classes, larger ones are runs of extents */
#define MEM_ALIGN_MAX     (UINT64_C(2) << 20)

struct mem_pool;

struct mem_options {
    uint64_t bytes;       /* rounded up to extents; -ENOMEM if the machine has less memory available */
    uint64_t heap_offset; /* bytes at the start that the allocator does not use; rounded up to extents, at least one extent */
    bool huge, lock, prefault;
};

struct mem_stats {
    uint64_t reserved_bytes, live_bytes, live_buffers, largest_free_bytes;
    uint32_t segments;
};

int mem_pool_create(struct mem_pool **out, const struct mem_options *options);
/* Create a pool that only allocates offsets, for memory that the processor cannot access: the pool has no base and no descriptor. Its first
 * extent is never used. */
int mem_pool_create_books(struct mem_pool **out, uint64_t bytes);
void mem_pool_destroy(struct mem_pool *pool); /* no other thread may use the pool */

/* See weft_alloc_aligned() and weft_free(). Blocks are always aligned to 16 bytes, so an `align` of 0 to 16 has no effect. Thread-safe.
 * Each thread caches at most 8 MiB of freed blocks, all threads together at most an eighth of the pool. A double free by two threads at the
 * same time may go undetected. */
int mem_alloc(struct mem_pool *pool, uint64_t bytes, uint64_t align, uint64_t *offset);
/* As mem_alloc() without an alignment, but adds `origin` to the offset, which is faster than an addition by the caller. */
int mem_alloc_from(struct mem_pool *pool, uint64_t bytes, uint64_t origin, uint64_t *out);
int mem_free(struct mem_pool *pool, uint64_t offset);
/* Usable bytes of the live buffer that starts at `offset`; 0: no buffer starts there. For tests. */
uint64_t mem_size(struct mem_pool *pool, uint64_t offset);

/* Populates all pages of a live buffer that will soon be written as a whole. Thread-safe. */
void mem_prepare(struct mem_pool *pool, uint64_t offset, uint64_t bytes);
/* Asks the system, once, to replace the pages of a live buffer by huge pages, which a processor reads up to twice as fast. This may take
 * seconds on a busy machine, so a thread of its own does it; the buffer may be used, and freed, meanwhile. While that thread is running,
 * further calls do nothing. Thread-safe. */
void mem_enlarge(struct mem_pool *pool, uint64_t offset, uint64_t bytes);
/* Whether mem_enlarge() may succeed, was not called for this buffer yet, and is not at work. */
bool mem_can_enlarge(const struct mem_pool *pool, uint64_t offset, uint64_t bytes);
/* Maps the memory of any process's pool. The address is aligned to 2 MiB, because huge pages need this alignment. Returns NULL on failure,
 * with errno set. */
void *mem_map(int fd, uint64_t bytes);

void *mem_base(const struct mem_pool *pool);
uint64_t mem_bytes(const struct mem_pool *pool);
int mem_fd(const struct mem_pool *pool); /* the pool keeps ownership */
void mem_stat(struct mem_pool *pool, struct mem_stats *out);

#endif
