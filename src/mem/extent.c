/* SPDX-License-Identifier: MIT
 *
 * Runs of extents. Free runs are in bins by length: one bin for each length below 16 extents, then 16 bins for each doubling. A bit map
 * shows which bins have free runs. Both ends of a free run record its length, so that a freed run is merged with its free neighbours in
 * constant time. A large buffer has records only at its ends.
 */
#include "mem/heap.h"

#define LOOK 16u /* at most this many runs of a bin are compared before the next bin is searched */

static uint32_t bin_of(uint32_t extents)
{
    if (extents < 16)
        return extents;
    uint32_t log = 31u - (uint32_t)__builtin_clz(extents);
    return 16 + (log - 4) * 16 + ((extents >> (log - 4)) & 15);
}

/* The first non-empty bin from `bin` on; RUN_BINS: none. */
static uint32_t bin_next(const struct mem_pool *p, uint32_t bin)
{
    const uint32_t words = (uint32_t)(sizeof p->run_bits / sizeof p->run_bits[0]);
    for (uint32_t w = bin / 64; w < words; w++) {
        uint64_t bits = p->run_bits[w];
        if (w == bin / 64)
            bits &= ~UINT64_C(0) << (bin % 64);
        if (bits)
            return w * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return RUN_BINS;
}

static void insert(struct mem_pool *p, uint32_t first, uint32_t extents)
{
    uint32_t bin = bin_of(extents), next = p->run_head[bin];
    p->kind[first + extents - 1] = RUN_FREE_END;
    p->kind[first] = RUN_FREE; /* stored after RUN_FREE_END, so that a run of one extent gets RUN_FREE */
    p->extent[first + extents - 1].run = extents;
    p->extent[first].run = extents;
    p->extent[first].next = next;
    p->extent[first].prev = 0;
    if (next)
        p->extent[next].prev = first;
    p->run_head[bin] = first;
    p->run_bits[bin / 64] |= UINT64_C(1) << (bin % 64);
}

static void take_out(struct mem_pool *p, uint32_t first)
{
    struct mem_extent *e = &p->extent[first];
    uint32_t bin = bin_of(e->run);
    if (e->next)
        p->extent[e->next].prev = e->prev;
    if (e->prev) {
        p->extent[e->prev].next = e->next;
    } else {
        p->run_head[bin] = e->next;
        if (!e->next)
            p->run_bits[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
    }
    p->kind[first] = RUN_INSIDE;
    p->kind[first + e->run - 1] = RUN_INSIDE;
}

/* The smallest sufficient run among the first `look` runs of a bin; 0: none. */
static uint32_t best_of_bin(const struct mem_pool *p, uint32_t bin, uint32_t extents, uint32_t align, uint32_t look)
{
    uint32_t best = 0, best_run = UINT32_MAX;
    for (uint32_t e = p->run_head[bin]; e && look; e = p->extent[e].next, look--) {
        uint32_t run = p->extent[e].run, skip = (align - e % align) % align;
        if (run >= extents && run - extents >= skip && run < best_run) {
            best = e;
            best_run = run;
            if (run == extents)
                break;
        }
    }
    return best;
}

uint32_t run_take(struct mem_pool *p, uint64_t want, uint32_t align)
{
    if (want > p->extents)
        return 0;
    uint32_t extents = (uint32_t)want, found = 0;
    for (unsigned pass = 0; pass < 2 && !found; pass++) {
        for (uint32_t bin = bin_next(p, bin_of(extents)); bin < RUN_BINS && !found; bin = bin_next(p, bin + 1))
            found = best_of_bin(p, bin, extents, align, pass ? UINT32_MAX : LOOK);
    }
    if (!found)
        return 0;
    uint32_t run = p->extent[found].run, skip = (align - found % align) % align;
    take_out(p, found);
    if (skip)
        insert(p, found, skip);
    if (run - skip > extents)
        insert(p, found + skip + extents, run - skip - extents);
    return found + skip;
}

void run_give(struct mem_pool *p, uint32_t first, uint32_t extents)
{
    p->kind[first] = RUN_INSIDE;
    uint32_t after = first + extents;
    if (after < p->extents && p->kind[after] == RUN_FREE) {
        extents += p->extent[after].run;
        take_out(p, after);
    }
    uint8_t left = p->kind[first - 1]; /* first > 0, because extent 0 is never in the heap */
    if (left == RUN_FREE || left == RUN_FREE_END) {
        uint32_t run = p->extent[first - 1].run;
        first -= run;
        extents += run;
        take_out(p, first);
    }
    insert(p, first, extents);
}

uint32_t run_largest(const struct mem_pool *p)
{
    uint32_t top = RUN_BINS, largest = 0;
    for (uint32_t bin = bin_next(p, 0); bin < RUN_BINS; bin = bin_next(p, bin + 1))
        top = bin;
    if (top == RUN_BINS)
        return 0;
    for (uint32_t e = p->run_head[top]; e; e = p->extent[e].next) {
        if (p->extent[e].run > largest)
            largest = p->extent[e].run;
    }
    return largest;
}

uint32_t run_head_of(const struct mem_pool *p, uint32_t extent)
{
    /* A linear search is fast enough, because only an invalid mem_free() needs it. */
    if (p->kind[extent] == RUN_FREE_END)
        return extent - p->extent[extent].run + 1;
    while (p->kind[extent] == RUN_INSIDE)
        extent--;
    return extent;
}

void run_init(struct mem_pool *p)
{
    for (uint32_t e = 0; e < p->heap; e++)
        p->kind[e] = RUN_RESERVED;
    insert(p, p->heap, (uint32_t)p->extents - p->heap);
}
