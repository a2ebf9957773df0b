/* SPDX-License-Identifier: MIT
 *
 * What the files of this room share. The pool is cut in extents of 64 KiB.
 *
 *   run      consecutive extents that are one thing: free, one large buffer, or one slab      (extent.c)
 *   slab     a run cut in equal blocks of one size class                                      (slab.c)
 *   cache    blocks that a thread keeps for itself, a stack for each class, so that most
 *            allocations and frees touch nothing that other threads touch                     (cache.c)
 *
 * Whether a block is live is a byte in private memory, its mark. A slab has one byte for each granule (a
 * power of two that divides the block size, 1/8 to 1/16 of it), and only those at block starts are ever set:
 * finding the mark of an offset takes a shift, and an offset that is no block start finds a zero. A bit map
 * beside it says which blocks the slab has to give; one word of it stands for 64 marks, that is for one cache
 * line, and blocks are given to threads by whole words, so that two threads seldom write marks in one line.
 *
 * A block is in exactly one of three places: with the program (mark 1), in a thread's cache (mark 0, bit 0),
 * in its slab (mark 0, bit 1). Marks are loaded and stored relaxed: a block passes from thread to thread
 * either through pool->lock or by the program's own means, and both order the marks with it.
 *
 * Locks: `registry` in cache.c, then pool->lock.
 */
#ifndef WEFT_MEM_HEAP_H
#define WEFT_MEM_HEAP_H

#include "mem/mem.h"

#define EXTENT_SHIFT 16u
#define CLASSES      59u /* 16 32 48, 64 to 1024 by 64, then 8 to a doubling, to 32 KiB */
#define GRAIN_MIN    4u  /* log2 of the smallest granule */
#define GRAINS       8u  /* granules of 16 B to 2 KiB */
#define SLAB_MAX     8u  /* extents */
#define RUN_BINS     400u

/* What an extent is to its run. Extents inside a large buffer or a free run say RUN_INSIDE. */
enum run_kind { RUN_INSIDE, RUN_FREE, RUN_FREE_END, RUN_LARGE, RUN_SLAB, RUN_RESERVED };

typedef _Atomic uint8_t mem_mark;

struct mem_extent {
    /* Of a slab: address of the marks of this extent's first granule, with log2 of the granule in bits 56..63
     * and the class in 48..55; else 0. One word, so that a free of a stale address, which looks at it without
     * the lock, sees an old slab or a new one but no mixture. */
    _Atomic uint64_t tag;
    struct mem_slab *slab; /* of a slab */
    uint32_t run;          /* length, at the head of a run and at the end of a free one */
    uint32_t next, prev;   /* free runs of one bin; 0 ends the list */
};

#define TAG_GRAIN_SHIFT 56u
#define TAG_CLASS_SHIFT 48u
#define TAG_ADDRESS     ((UINT64_C(1) << TAG_CLASS_SHIFT) - 1)

struct mem_slab {
    struct mem_slab *next, *prev; /* slabs of the class with blocks to give, or recycled ones */
    uint64_t *map;                /* bit: a block to give starts at this granule */
    mem_mark *marks;
    uint32_t extent, extents; /* where the run is */
    uint32_t blocks, unused;  /* of which to give */
    uint32_t words, hint;     /* of the map; words before the hint are 0 */
    uint32_t class;
    struct mem_slab *all; /* all ever made: they are recycled, never freed before the pool */
};

struct mem_class {
    uint32_t size;
    uint8_t grain;   /* log2 of the granule */
    uint8_t extents; /* that a slab would like to have; it takes one when there is no such run */
    uint32_t spare;  /* slabs with all blocks unused, kept so as not to make them again and again */
    struct mem_slab *slabs;
    uint64_t out; /* blocks not in slabs: live or in caches */
};

/* A block in a cache. */
struct mem_block {
    uint64_t offset;
    mem_mark *mark;
};

struct mem_pool {
    /* What the fast path reads, never written after creation. */
    uint64_t id; /* of all pools of this process, never used twice */
    struct mem_extent *extent;
    uint64_t extents;

    uint8_t *base;
    uint64_t bytes;
    int fd;
    uint32_t heap; /* first extent of the heap, at least 1 */
    uint8_t *kind; /* enum run_kind of each extent */

    _Alignas(BASE_CACHE_LINE) base_spin lock; /* all below */
    uint64_t run_bits[(RUN_BINS + 63) / 64];  /* bins that have free runs */
    uint32_t run_head[RUN_BINS];
    uint64_t large_bytes, large_buffers;
    struct mem_class class[CLASSES];
    struct mem_slab *recycled[GRAINS][SLAB_MAX];
    struct mem_slab *all_slabs;
    struct mem_cache *caches;
    uint64_t granted; /* bytes that all caches together may hold now */
};

/* --- extent.c: all under pool->lock --- */
void run_init(struct mem_pool *p);
uint32_t run_take(struct mem_pool *p, uint64_t extents, uint32_t align); /* first extent; 0: none */
void run_give(struct mem_pool *p, uint32_t first, uint32_t extents);
uint32_t run_largest(const struct mem_pool *p);
uint32_t run_head_of(const struct mem_pool *p, uint32_t extent); /* of the free run or large buffer it is in */

/* --- slab.c: all under pool->lock --- */
void slab_init(struct mem_pool *p);
void slab_fini(struct mem_pool *p);
/* Take `want` blocks of a class, and those of the same word up to `room`; makes a slab when there is none.
 * Returns how many; 0: the pool has no room. */
uint32_t slab_take(struct mem_pool *p, uint32_t class, struct mem_block *into, uint32_t want, uint32_t room);
void slab_put(struct mem_pool *p, struct mem_block block);
void slab_trim(struct mem_pool *p); /* give the extents of all unused slabs back */

/* --- cache.c --- */
void cache_detach(struct mem_pool *p); /* the pool is going: its caches are dead */
/* Under pool->lock: empty the calling thread's cache; blocks of a class in all caches. */
void cache_empty_own(struct mem_pool *p);
uint64_t cache_blocks(const struct mem_pool *p, uint32_t class);

/* 512 bytes are class 10; above, 8 classes to a doubling. */
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

/* Which granule of its extent an offset starts; huge when it starts none. */
static inline uint32_t granule_of(uint64_t tag, uint64_t offset)
{
    /* A rotation: as a shift, but what is not a multiple of the granule ends in the high bits. */
    uint32_t grain = (uint32_t)(tag >> TAG_GRAIN_SHIFT), inside = (uint32_t)offset & (MEM_EXTENT_BYTES - 1);
    return inside >> grain | inside << (32 - grain);
}

static inline mem_mark *mark_of(uint64_t tag, uint32_t granule)
{
    return (mem_mark *)(uintptr_t)(tag & TAG_ADDRESS) + granule;
}

#endif
