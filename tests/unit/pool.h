/* SPDX-License-Identifier: MIT
 *
 * Helpers of the pool's tests: opening a pool, allocating and freeing, and checking that a pool is empty.
 */
#ifndef WEFT_TEST_POOL_H
#define WEFT_TEST_POOL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem/mem.h"

#define KIB  UINT64_C(1024)
#define MIB  (KIB * 1024)
#define GIB  (MIB * 1024)
#define HEAP MEM_EXTENT_BYTES /* the space below the heap in these pools: one extent, the minimum */

static inline struct mem_pool *open_pool(uint64_t heap_bytes)
{
    struct mem_options o = {.bytes = heap_bytes + HEAP, .heap_offset = HEAP};
    struct mem_pool *p = NULL;
    if (mem_pool_create(&p, &o))
        fail_msg("%s", base_error());
    return p;
}

static inline uint64_t get(struct mem_pool *p, uint64_t bytes)
{
    uint64_t at = 0;
    if (mem_alloc(p, bytes, 0, &at))
        fail_msg("%s", base_error());
    return at;
}

static inline void put_back(struct mem_pool *p, uint64_t at)
{
    if (mem_free(p, at))
        fail_msg("%s", base_error());
}

static inline uint8_t *bytes_at(struct mem_pool *p, uint64_t at)
{
    return (uint8_t *)mem_base(p) + at;
}

/* Checks that nothing is allocated, and that the whole heap is one free range again. */
static inline void assert_empty(struct mem_pool *p)
{
    struct mem_stats s;
    mem_stat(p, &s);
    assert_int_equal(s.live_buffers, 0);
    assert_int_equal(s.live_bytes, 0);
    assert_int_equal(s.largest_free_bytes, mem_bytes(p) - HEAP);
}

static inline void assert_says(const char *part)
{
    if (!strstr(base_error(), part))
        fail_msg("\"%s\" does not say \"%s\"", base_error(), part);
}

#endif
