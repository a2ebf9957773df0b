/* SPDX-License-Identifier: MIT
 *
 * Shared by the files of this folder. The pool is divided into extents of 64 KiB.
 *
 *   run    consecutive extents with one use: free, one large buffer, or one slab            (extent.c)
 *   slab   a run that is divided into equal blocks of one size class                        (slab.c)
 *   cache  free blocks that a thread keeps, in a stack for each class, so that most
 *          allocations and frees access no memory that other threads access                 (cache.c)
 *
 * Each block has a mark, a byte in private memory that says whether the block is live. A slab has one such byte for each granule. A granule
 * is a power of two that divides the block size, 1/8 to 1/16 of it. Only the byte at the start of a block is ever set. So the mark of an
 * offset is found by a shift, and offsets inside a block have mark 0. A bit map shows which blocks are free in the slab. One word of the
 * map covers 64 marks, which fill a cache line. A thread gets the blocks of whole words, so that two threads seldom write marks in the same
 * cache line.
 *
 * A block is in exactly one of three states: used by the program (mark 1), in a thread's cache (mark 0, map bit 0), or free in its slab
 * (mark 0, map bit 1). Marks are loaded and stored relaxed: a block passes from one thread to another either while pool->lock is held or by
 * the program's own synchronisation, and both order the accesses to the mark.
 *
 * Lock order: `registry` in cache.c, then pool->lock.
 */
#ifndef WEFT_MEM_HEAP_H
#define WEFT_MEM_HEAP_H

#include "mem/mem.h"

#define EXTENT_SHIFT 16u
#define CLASSES      59u /* sizes: 16, 32, 48; 64 to 1024 in steps of 64; then 8 sizes for each doubling, up to 32 KiB */
#define GRAIN_MIN    4u  /* log2 of the smallest granule */
#define GRAINS       8u  /* granules of 16 B to 2 KiB */
#define SLAB_MAX     8u  /* maximum number of extents of a slab */
#define RUN_BINS     400u

/* The use of an extent. A large buffer or free run has RUN_INSIDE in all extents but its ends. */
enum run_kind { RUN_INSIDE, RUN_FREE, RUN_FREE_END, RUN_LARGE, RUN_SLAB, RUN_RESERVED };

typedef _Atomic uint8_t mem_mark;

struct mem_extent {
    /* In a slab: the address of the first granule's mark, log2 of the granule in bits 56..63, and the class in bits 48..55. Otherwise 0.
     * All three are in one word, because mem_free() reads them without the lock and must not see a mixture of two slabs. */
    _Atomic uint64_t tag;
    struct mem_slab *slab; /* the slab of this extent */
    uint32_t run;          /* length of the run; valid at its first extent, and at the last one of a free run */
    uint32_t next, prev;   /* list of the free runs of one bin; ends with 0 */
};

#define TAG_GRAIN_SHIFT 56u
#define TAG_CLASS_SHIFT 48u
#define TAG_ADDRESS     ((UINT64_C(1) << TAG_CLASS_SHIFT) - 1)

struct mem_slab {
    struct mem_slab *next, *prev; /* list of the class's slabs with free blocks, or of recycled records */
    uint64_t *map;                /* a set bit: a free block starts at this granule */
    mem_mark *marks;
    uint32_t extent, extents; /* first extent and length of the run */
    uint32_t blocks, unused;  /* number of blocks; number of free blocks */
    uint32_t words, hint;     /* words of the map; all words before `hint` are 0 */
    uint32_t class;
    struct mem_slab *all; /* list of all slab records. A record is reused after its slab is freed; the pool frees all records */
};

struct mem_class {
    uint32_t size;
    uint8_t grain;   /* log2 of the granule */
    uint8_t extents; /* preferred length of a slab; if no such run is free, the slab has one extent */
    uint32_t spare;  /* how many slabs without used blocks are kept for reuse */
    struct mem_slab *slabs;
    uint64_t out; /* number of blocks that are not in slabs: they are live or in caches */
};

struct mem_block {
    uint64_t offset;
    mem_mark *mark;
};

struct mem_pool {
    /* The fast path reads the fields from here to `kind`, which are constant after creation. */
    uint64_t id; /* unique among all pools of this process, including closed ones */
    struct mem_extent *extent;
    uint64_t extents;

    uint8_t *base;
    uint64_t bytes;
    int fd;
    uint32_t heap;          /* first extent of the heap, at least 1 */
    uint8_t *kind;          /* enum run_kind of each extent */
    _Atomic uint8_t *asked; /* [bytes / 2 MiB]: whether a huge page was requested (mem_enlarge()); NULL: never requested */

    /* The thread of mem_enlarge(). `enlarging` is true from when it is started until it ends. The caller that has set it has the other
     * fields for itself. */
    _Atomic bool enlarging;
    uint64_t enlarge_at, enlarge_bytes;

    _Alignas(BASE_CACHE_LINE) base_spin lock; /* guards all fields below */
    uint64_t run_bits[(RUN_BINS + 63) / 64];  /* bit set: the bin has free runs */
    uint32_t run_head[RUN_BINS];
    uint64_t large_bytes, large_buffers;
    struct mem_class class[CLASSES];
    struct mem_slab *recycled[GRAINS][SLAB_MAX];
    struct mem_slab *all_slabs;
    struct mem_cache *caches;
    uint64_t granted; /* sum of the limits of all caches, in bytes */
};

/* --- extent.c: the caller holds pool->lock --- */
void run_init(struct mem_pool *p);
uint32_t run_take(struct mem_pool *p, uint64_t extents, uint32_t align); /* first extent; 0: none */
void run_give(struct mem_pool *p, uint32_t first, uint32_t extents);
uint32_t run_largest(const struct mem_pool *p);
uint32_t run_head_of(const struct mem_pool *p, uint32_t extent); /* first extent of the free run or large buffer that contains `extent` */

/* --- slab.c: the caller holds pool->lock --- */
void slab_init(struct mem_pool *p);
void slab_fini(struct mem_pool *p);
/* Take `want` blocks of a class, and further blocks so that whole words of the map are taken, but at most `room` blocks in all. Creates a
 * slab if necessary. Returns the number of blocks taken, which may be less than `want`; 0: the pool is full. */
uint32_t slab_take(struct mem_pool *p, uint32_t class, struct mem_block *into, uint32_t want, uint32_t room);
void slab_put(struct mem_pool *p, struct mem_block block);
void slab_trim(struct mem_pool *p); /* free all slabs without used blocks */

/* --- cache.c --- */
void cache_detach(struct mem_pool *p); /* detach all threads' caches from a pool that is being destroyed */
/* Returns all blocks in the calling thread's cache to their slabs. The caller holds pool->lock. */
void cache_empty_own(struct mem_pool *p);
/* The number of blocks of a class in the caches of all threads. The caller holds pool->lock. */
uint64_t cache_blocks(const struct mem_pool *p, uint32_t class);

/* The size class of a block. 512 bytes are class 10, and each further doubling of the size has 8 classes. */
static inline uint32_t class_of(uint64_t bytes)
{
    static const uint8_t small[33] = {0, 0, 1, 2, 3, 4, 4, 4, 4, 5, 5, 5, 5,  6,  6,  6, 6,
                                      7, 7, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 10, 10, 10, 10};
    if (bytes <= 512)
        return small[(bytes + 15) >> 4];
    uint32_t last = (uint32_t)bytes - 1;
    uint32_t log = 31u - (uint32_t)__builtin_clz(last);
    return 11 + (log - 9) * 8 + (last >> (log - 3)) - 8;
}

/* Returns the index within its extent of the granule that starts at `offset`; a huge number if no granule starts there. */
static inline uint32_t granule_of(uint64_t tag, uint64_t offset)
{
    /* A rotation instead of a shift sets high bits if the offset is not a multiple of the granule. */
    uint32_t grain = (uint32_t)(tag >> TAG_GRAIN_SHIFT), inside = (uint32_t)offset & (MEM_EXTENT_BYTES - 1);
    return inside >> grain | inside << (32 - grain);
}

static inline mem_mark *mark_of(uint64_t tag, uint32_t granule)
{
    return (mem_mark *)(uintptr_t)(tag & TAG_ADDRESS) + granule;
}

#endif
