/* SPDX-License-Identifier: MIT
 *
 * Slabs: runs of extents that are divided into blocks of one size. heap.h explains the bit map of free blocks and the marks. Records of
 * slabs are reused, and are freed only with the pool, because an invalid mem_free() may read the marks of a slab that is being freed.
 */
#include "mem/heap.h"

#include <stdlib.h>
#include <string.h>

static uint32_t granules(uint32_t extents, uint32_t grain)
{
    return extents << (EXTENT_SHIFT - grain);
}

static void class_init(struct mem_class *c, uint32_t index)
{
    if (index < 4) {
        c->size = (index + 1) * 16;
        c->grain = index < 3 ? 4 : 6;
    } else if (index < 11) {
        c->size = (index - 2) * 64;
        c->grain = 6;
    } else {
        uint32_t octave = (index - 11) / 8, step = (index - 11) % 8;
        c->size = (9 + step) << (octave + 6);
        c->grain = (uint8_t)(octave + 6);
    }
    /* The smallest number of extents that contain at least four blocks and waste at most a sixteenth of their bytes. */
    for (c->extents = 1; c->extents < SLAB_MAX; c->extents++) {
        uint32_t bytes = (uint32_t)c->extents << EXTENT_SHIFT;
        if (bytes / c->size >= 4 && bytes % c->size <= bytes / 16)
            break;
    }
}

void slab_init(struct mem_pool *p)
{
    for (uint32_t i = 0; i < CLASSES; i++)
        class_init(&p->class[i], i);
}

void slab_fini(struct mem_pool *p)
{
    while (p->all_slabs) {
        struct mem_slab *s = p->all_slabs;
        p->all_slabs = s->all;
        free(s);
    }
}

static void link_slab(struct mem_class *c, struct mem_slab *s)
{
    s->prev = NULL;
    s->next = c->slabs;
    if (s->next)
        s->next->prev = s;
    c->slabs = s;
}

static void unlink_slab(struct mem_class *c, struct mem_slab *s)
{
    if (s->next)
        s->next->prev = s->prev;
    if (s->prev)
        s->prev->next = s->next;
    else
        c->slabs = s->next;
}

/* Get a record for a slab, followed by its map and its marks. The marks start on a new cache line. */
static struct mem_slab *record(struct mem_pool *p, uint32_t grain, uint32_t extents)
{
    struct mem_slab **bin = &p->recycled[grain - GRAIN_MIN][extents - 1];
    struct mem_slab *s = *bin;
    if (s) {
        *bin = s->next;
        return s;
    }
    size_t head = base_round_up(sizeof *s, BASE_CACHE_LINE);
    size_t marks = base_round_up(granules(extents, grain), BASE_CACHE_LINE);
    size_t bytes = base_round_up(head + marks + marks / 8, BASE_CACHE_LINE);
    s = aligned_alloc(BASE_CACHE_LINE, bytes);
    if (!s)
        return NULL;
    memset(s, 0, bytes);
    s->marks = (mem_mark *)((uint8_t *)s + head);
    s->map = (uint64_t *)(void *)((uint8_t *)s + head + marks);
    s->words = (uint32_t)(marks / 64);
    s->extents = extents;
    s->all = p->all_slabs;
    p->all_slabs = s;
    return s;
}

static void recycle(struct mem_pool *p, uint32_t grain, struct mem_slab *s)
{
    struct mem_slab **bin = &p->recycled[grain - GRAIN_MIN][s->extents - 1];
    s->next = *bin;
    *bin = s;
}

static bool slab_make(struct mem_pool *p, uint32_t class)
{
    struct mem_class *c = &p->class[class];
    uint32_t extents = c->extents, first = run_take(p, extents, 1);
    if (!first && extents > 1) {
        extents = 1; /* enough for a block of any class */
        first = run_take(p, extents, 1);
    }
    if (!first)
        return false;
    struct mem_slab *s = record(p, c->grain, extents);
    if (!s) {
        run_give(p, first, extents);
        return false;
    }
    s->extent = first;
    s->class = class;
    s->blocks = s->unused = (extents << EXTENT_SHIFT) / c->size;
    s->hint = 0;
    /* All marks are already 0, because a slab is freed only when it has no live blocks. */
    memset(s->map, 0, s->words * sizeof *s->map);
    for (uint32_t b = 0; b < s->blocks; b++) {
        uint32_t g = b * (c->size >> c->grain);
        s->map[g / 64] |= UINT64_C(1) << (g % 64);
    }
    for (uint32_t e = 0; e < extents; e++) {
        uint64_t marks = (uint64_t)(uintptr_t)(s->marks + granules(e, c->grain));
        p->kind[first + e] = RUN_SLAB;
        p->extent[first + e].slab = s;
        atomic_store_explicit(&p->extent[first + e].tag,
                              marks | (uint64_t)c->grain << TAG_GRAIN_SHIFT | (uint64_t) class << TAG_CLASS_SHIFT,
                              memory_order_release); /* pairs with tag_of(), cache.c */
    }
    link_slab(c, s);
    c->spare++;
    return true;
}

static void slab_unmake(struct mem_pool *p, struct mem_slab *s)
{
    struct mem_class *c = &p->class[s->class];
    unlink_slab(c, s);
    c->spare--;
    for (uint32_t e = 0; e < s->extents; e++) {
        atomic_store_explicit(&p->extent[s->extent + e].tag, 0, memory_order_relaxed);
        p->kind[s->extent + e] = RUN_INSIDE;
    }
    run_give(p, s->extent, s->extents);
    recycle(p, c->grain, s);
}

uint32_t slab_take(struct mem_pool *p, uint32_t class, struct mem_block *into, uint32_t want, uint32_t room)
{
    struct mem_class *c = &p->class[class];
    uint32_t got = 0;
    while (got < want) {
        if (!c->slabs && (got || !slab_make(p, class)))
            break;
        struct mem_slab *s = c->slabs;
        if (s->unused == s->blocks)
            c->spare--;
        uint32_t before = got, w = s->hint;
        for (; got < want; w++) {
            uint64_t bits = s->map[w];
            for (; bits && got < room; bits &= bits - 1) {
                uint32_t g = w * 64 + (uint32_t)__builtin_ctzll(bits);
                into[got++] = (struct mem_block){
                    .offset = ((uint64_t)s->extent << EXTENT_SHIFT) + ((uint64_t)g << c->grain),
                    .mark = &s->marks[g],
                };
            }
            s->map[w] = bits;
            if (bits || got - before == s->unused)
                break;
        }
        s->hint = w < s->words ? w : s->words - 1;
        s->unused -= got - before;
        if (!s->unused)
            unlink_slab(c, s);
    }
    c->out += got;
    return got;
}

void slab_put(struct mem_pool *p, struct mem_block block)
{
    struct mem_slab *s = p->extent[block.offset >> EXTENT_SHIFT].slab;
    struct mem_class *c = &p->class[s->class];
    uint32_t g = (uint32_t)(block.mark - s->marks);
    uint64_t bit = UINT64_C(1) << (g % 64);
    if (BASE_UNLIKELY(s->map[g / 64] & bit)) {
        /* Two threads have freed the same buffer at the same time, and both have cached it. The block is already free: ignore this call. */
        base_log(BASE_LOG_ERROR,
                 "the buffer at pool offset 0x%llx was freed by two threads at once: the program must free each buffer once",
                 (unsigned long long)block.offset);
        return;
    }
    s->map[g / 64] |= bit;
    if (g / 64 < s->hint)
        s->hint = g / 64;
    c->out--;
    if (s->unused++ == 0)
        link_slab(c, s);
    if (s->unused == s->blocks && ++c->spare > 1)
        slab_unmake(p, s);
}

void slab_trim(struct mem_pool *p)
{
    for (uint32_t i = 0; i < CLASSES; i++) {
        for (struct mem_slab *s = p->class[i].slabs, *next; s && p->class[i].spare; s = next) {
            next = s->next;
            if (s->unused == s->blocks)
                slab_unmake(p, s);
        }
    }
}
