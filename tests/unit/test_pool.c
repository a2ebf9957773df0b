/* SPDX-License-Identifier: MIT
 *
 * The pool: buffers do not overlap, sizes and alignments are kept, invalid frees are refused and change nothing, and an exhausted pool
 * returns an error and stays usable.
 */
#include "base/base.h"
#include "pool.h"

/* --- many buffers live at once --- */

static inline uint64_t word_of(uint64_t buffer, uint64_t word)
{
    return (buffer + 1) * UINT64_C(0x9e3779b97f4a7c15) + word * UINT64_C(0xbf58476d1ce4e5b9);
}

static void fill_and_check(uint64_t count, uint64_t size)
{
    /* Besides the buffers the pool has only the extent below the heap: 512 KiB is 8 extents, and all records are private. */
    struct mem_pool *p = open_pool(count * size);
    uint64_t *at = calloc(count, sizeof *at);
    for (uint64_t i = 0; i < count; i++) {
        at[i] = get(p, size);
        uint64_t *w = (uint64_t *)(void *)bytes_at(p, at[i]);
        for (uint64_t k = 0; k < size / 8; k++)
            w[k] = word_of(i, k);
    }
    uint64_t none, wrong = 0;
    assert_int_equal(mem_alloc(p, 1, 0, &none), -ENOMEM);
    struct mem_stats s;
    mem_stat(p, &s);
    assert_int_equal(s.live_buffers, count);
    assert_int_equal(s.live_bytes, count * size);
    assert_int_equal(s.largest_free_bytes, 0);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t *w = (uint64_t *)(void *)bytes_at(p, at[i]);
        for (uint64_t k = 0; k < size / 8; k++)
            wrong += w[k] != word_of(i, k);
    }
    assert_int_equal(wrong, 0);
    for (uint64_t i = 0; i < count; i += 2)
        put_back(p, at[i]);
    for (uint64_t i = 1; i < count; i += 2)
        put_back(p, at[i]);
    assert_empty(p);
    free(at);
    mem_pool_destroy(p);
}

static void buffers_256_of_128_mib(void **state)
{
    (void)state;
    fill_and_check(256, 512 * KIB);
}

static void buffers_4096_of_2_gib(void **state)
{
    (void)state;
    /* The thread sanitizer needs four bytes for each byte, so 512 MiB must do there. */
    fill_and_check(BASE_THREAD_SANITIZER ? 1024 : 4096, 512 * KIB);
}

/* --- exhaustion --- */

static void exhaustion(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {16, 48, 64, 100, 320, 1000, 5000, 9 * KIB, 20 * KIB, 24 * KIB, 32 * KIB, 64 * KIB, 300 * KIB};
    struct mem_pool *p = open_pool(8 * MIB);
    uint64_t *at = calloc(8 * MIB / 16 + 1, sizeof *at);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t n = 0, none;
        while (mem_alloc(p, sizes[i], 0, &at[n]) == 0)
            n++;
        assert_int_equal(mem_alloc(p, sizes[i], 0, &none), -ENOMEM);
        assert_says("no room");
        uint64_t used = n * mem_size(p, at[0]);
        if (used < 8 * MIB * 85 / 100)
            fail_msg("full with %llu buffers of %llu bytes only", (unsigned long long)n, (unsigned long long)sizes[i]);
        /* The pool stays usable: freed memory can be allocated again. */
        uint64_t again;
        put_back(p, at[n / 2]);
        assert_int_equal(mem_alloc(p, sizes[i], 0, &again), 0);
        assert_int_equal(again, at[n / 2]);
        for (uint64_t k = 0; k < n; k++)
            put_back(p, at[k]);
        /* Memory in this thread's cache can be used, too: the next allocation takes the whole heap. */
        uint64_t whole = get(p, 8 * MIB);
        assert_int_equal(mem_size(p, whole), 8 * MIB);
        put_back(p, whole);
        assert_empty(p);
    }
    free(at);
    mem_pool_destroy(p);
}

/* --- wrong frees --- */

static void assert_refused(struct mem_pool *p, uint64_t at, int code, const char *says)
{
    struct mem_stats before, after;
    char hex[32];
    snprintf(hex, sizeof hex, "0x%llx", (unsigned long long)at);
    mem_stat(p, &before);
    base_error_clear();
    assert_int_equal(mem_free(p, at), code);
    assert_says(says);
    assert_says(hex);
    mem_stat(p, &after);
    assert_int_equal(after.live_buffers, before.live_buffers);
    assert_int_equal(after.live_bytes, before.live_bytes);
    assert_int_equal(after.largest_free_bytes, before.largest_free_bytes);
}

static void wrong_frees(void **state)
{
    (void)state;
    struct mem_pool *p = open_pool(16 * MIB);
    static const uint64_t sizes[] = {1, 16, 40, 48, 64, 65, 500, 1024, 1100, 5000, 24 * KIB, 32 * KIB, 33 * KIB, 64 * KIB, 1 * MIB};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t at = get(p, sizes[i]), keep = get(p, sizes[i]), size = mem_size(p, at);
        for (uint64_t inside = 1; inside < size; inside = inside < 128 ? inside + 1 : inside * 2 - 3)
            assert_refused(p, at + inside, -EINVAL, "inside the buffer");
        assert_refused(p, at + size - 1, -EINVAL, "inside the buffer");
        assert_int_equal(mem_size(p, at + 1), 0);
        put_back(p, at);
        /* A small block is now in this thread's cache. */
        base_error_clear();
        assert_int_equal(mem_free(p, at), -EALREADY);
        assert_says("freed already");
        assert_refused(p, at, -EALREADY, "freed already"); /* it is back in its slab now: mem_stat() emptied the cache */
        if (size > 16)
            assert_refused(p, at + 16, -EALREADY, "no buffer starts there");
        put_back(p, keep);
        assert_refused(p, keep, -EALREADY, "freed already");
        /* After a refused free, no block is allocated twice. */
        uint64_t one = get(p, sizes[i]), two = get(p, sizes[i]);
        assert_int_not_equal(one, two);
        put_back(p, one);
        put_back(p, two);
    }
    assert_refused(p, 0, -EFAULT, "buffers are at offsets from");
    assert_refused(p, HEAP - 16, -EFAULT, "buffers are at offsets from");
    assert_refused(p, mem_bytes(p), -EFAULT, "buffers are at offsets from");
    assert_refused(p, UINT64_MAX, -EFAULT, "buffers are at offsets from");
    assert_refused(p, UINT64_MAX - 15, -EFAULT, "buffers are at offsets from");
    assert_refused(p, HEAP, -EALREADY, "never");
    assert_refused(p, mem_bytes(p) - 16, -EALREADY, "never");
    assert_empty(p);
    mem_pool_destroy(p);
}

static void freed_twice_in_the_cache(void **state)
{
    (void)state;
    struct mem_pool *p = open_pool(16 * MIB);
    uint64_t at[40];
    /* No mem_stat() here, because it empties the cache. Several rounds, so that allocations and frees use the cache. */
    for (uint64_t bytes = 16; bytes <= 32 * KIB; bytes *= 2) {
        for (unsigned round = 0; round < 4; round++) {
            for (unsigned i = 0; i < 40; i++)
                at[i] = get(p, bytes);
            for (unsigned i = 0; i < 40; i++) {
                put_back(p, at[i]);
                assert_int_equal(mem_free(p, at[i]), -EALREADY);
                assert_int_equal(mem_free(p, at[i] + 8), -EALREADY);
                assert_int_equal(mem_free(p, at[i / 2]), -EALREADY);
                assert_int_equal(mem_size(p, at[i]), 0);
            }
        }
    }
    assert_empty(p);
    mem_pool_destroy(p);
}

static void wrong_allocations(void **state)
{
    (void)state;
    struct mem_pool *p = open_pool(4 * MIB);
    uint64_t at = 1;
    assert_int_equal(mem_alloc(p, 0, 0, &at), -EINVAL);
    assert_int_equal(mem_alloc(p, 64, 3, &at), -EINVAL);
    assert_says("power of two");
    assert_int_equal(mem_alloc(p, 64, 48, &at), -EINVAL);
    assert_int_equal(mem_alloc(p, 64, 4 * MIB, &at), -EINVAL);
    assert_int_equal(mem_alloc(p, 5 * MIB, 0, &at), -ENOMEM);
    assert_says("4 MiB");
    assert_int_equal(mem_alloc(p, UINT64_MAX, 0, &at), -ENOMEM);
    assert_int_equal(mem_alloc(p, UINT64_MAX - 70000, 64, &at), -ENOMEM);
    assert_int_equal(at, 1);
    assert_empty(p);
    mem_pool_destroy(p);
}

/* --- sizes and alignment --- */

static void sizes_and_waste(void **state)
{
    (void)state;
    struct mem_pool *p = open_pool(4 * MIB);
    for (uint64_t bytes = 1; bytes <= 32 * KIB; bytes++) {
        uint64_t at = get(p, bytes), size = mem_size(p, at);
        assert_true(size >= bytes);
        /* The pool rounds a size up to a multiple of 16, from 64 bytes on to a multiple of a cache line. It may waste more than that,
         * but at most an eighth of the size. */
        uint64_t line = bytes < 64 ? 16 : 64, rounded = base_round_up(bytes, line);
        if (size > rounded && size - bytes > size / 8)
            fail_msg("%llu bytes take %llu", (unsigned long long)bytes, (unsigned long long)size);
        assert_int_equal(at % line, 0);
        put_back(p, at);
    }
    assert_empty(p);
    mem_pool_destroy(p);
}

static void alignments(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 64, 100, 3000, 20 * KIB, 32 * KIB, 40 * KIB, 64 * KIB, 700 * KIB, 2 * MIB};
    struct mem_pool *p = open_pool(64 * MIB);
    for (uint64_t align = 1; align <= MEM_ALIGN_MAX; align *= 2) {
        uint64_t at[20];
        unsigned n = 0;
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (unsigned twice = 0; twice < 2; twice++) {
                assert_int_equal(mem_alloc(p, sizes[i], align, &at[n]), 0);
                assert_int_equal(at[n] % align, 0);
                assert_int_equal((uintptr_t)bytes_at(p, at[n]) % align, 0);
                assert_true(mem_size(p, at[n]) >= sizes[i]);
                n++;
            }
        }
        while (n)
            put_back(p, at[--n]);
        assert_empty(p);
    }
    mem_pool_destroy(p);
}

/* Buffers keep their bytes while another thread puts them into huge pages. A buffer may be freed, and the pool destroyed, meanwhile. */
static void enlarged(void **state)
{
    (void)state;
    struct mem_pool *p = open_pool(64 * MIB);
    uint64_t at[8];
    unsigned wrong = 0;
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(mem_alloc(p, 2 * MIB, 2 * MIB, &at[i]), 0);
        memset(bytes_at(p, at[i]), (int)i + 1, 2 * MIB);
    }
    for (unsigned i = 0; i < 7; i++) {
        while (mem_can_enlarge(p, at[i], 2 * MIB))
            mem_enlarge(p, at[i], 2 * MIB);
        for (uint64_t k = 0; k < 2 * MIB; k++)
            wrong += ((uint8_t *)bytes_at(p, at[i]))[k] != i + 1;
    }
    assert_int_equal(wrong, 0);
    for (unsigned i = 0; i < 8; i++)
        put_back(p, at[i]);
    mem_enlarge(p, at[7], 2 * MIB);
    mem_pool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_256_of_128_mib),
        cmocka_unit_test(buffers_4096_of_2_gib),
        cmocka_unit_test(exhaustion),
        cmocka_unit_test(wrong_frees),
        cmocka_unit_test(freed_twice_in_the_cache),
        cmocka_unit_test(wrong_allocations),
        cmocka_unit_test(sizes_and_waste),
        cmocka_unit_test(alignments),
        cmocka_unit_test(enlarged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
