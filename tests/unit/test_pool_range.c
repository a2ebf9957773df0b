/* SPDX-License-Identifier: MIT
 *
 * The pool's range of memory: its limits, its segments, mapping by other processes, huge and locked pages.
 */
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define UNDER_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define UNDER_SANITIZER 1
#endif
#endif
#ifndef UNDER_SANITIZER
#define UNDER_SANITIZER 0
#endif

static void too_large(void **state)
{
    (void)state;
    struct mem_pool *p = NULL;
    char have[32];
    static const uint64_t factors[] = {2, 1000};
    for (unsigned i = 0; i < 2; i++) {
        struct mem_options o = {.bytes = base_memory_total() * factors[i]};
        base_error_clear();
        assert_int_equal(mem_pool_create(&p, &o), -ENOMEM);
        assert_says("available of");
        assert_says(base_format_bytes(base_memory_total(), have, sizeof have));
    }
    struct mem_options most = {.bytes = UINT64_MAX};
    assert_int_equal(mem_pool_create(&p, &most), -ENOMEM);
    struct mem_options small = {.bytes = 1 * MIB, .heap_offset = 2 * MIB};
    assert_int_equal(mem_pool_create(&p, &small), -EINVAL);
    assert_says("at least");
    struct mem_options none = {.bytes = 0};
    assert_int_equal(mem_pool_create(&p, &none), -EINVAL);
    assert_null(p);
}

static void segments(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1 * MIB, 1 * GIB - HEAP, 1 * GIB, 1 * GIB + HEAP, 5 * GIB / 2};
    static const uint32_t counts[] = {1, 1, 1, 2, 3};
    for (unsigned i = 0; i < 5; i++) {
        struct mem_options o = {.bytes = sizes[i], .heap_offset = HEAP};
        struct mem_pool *p;
        struct mem_stats s;
        assert_int_equal(mem_pool_create(&p, &o), 0);
        assert_int_equal(mem_bytes(p), sizes[i]);
        mem_stat(p, &s);
        assert_int_equal(s.segments, counts[i]);
        assert_int_equal(s.reserved_bytes, sizes[i]);
        mem_pool_destroy(p);
    }
}

static void others_can_map_it(void **state)
{
    (void)state;
    struct mem_options o = {.bytes = 1 * MIB - 5, .heap_offset = 70000, .prefault = true};
    struct mem_pool *p;
    assert_int_equal(mem_pool_create(&p, &o), 0);
    assert_int_equal(mem_bytes(p), 1 * MIB);
    assert_int_equal((uintptr_t)mem_base(p) % MEM_ALIGN_MAX, 0);
    uint64_t at = get(p, 100);
    assert_true(at >= 2 * MEM_EXTENT_BYTES); /* 70000 bytes are two extents */
    assert_int_equal(base_memory_fd_check(mem_fd(p), 1 * MIB), 0);
    uint8_t *other = mmap(NULL, 1 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, mem_fd(p), 0);
    assert_ptr_not_equal(other, MAP_FAILED);
    memset(bytes_at(p, at), 0x5a, 100);
    assert_int_equal(other[at + 99], 0x5a);
    munmap(other, 1 * MIB);

    /* The pool is prefaulted: every page is in memory. */
    long page = sysconf(_SC_PAGESIZE);
    unsigned char *seen = calloc(1 * MIB / (uint64_t)page, 1);
    assert_int_equal(mincore(mem_base(p), 1 * MIB, seen), 0);
    for (uint64_t i = 0; i < 1 * MIB / (uint64_t)page; i++)
        assert_true(seen[i] & 1);
    free(seen);
    mem_pool_destroy(p);
}

static void huge_pages(void **state)
{
    (void)state;
    uint64_t have = base_memory_huge();
    struct mem_pool *p = NULL;
    struct mem_options o = {.bytes = have + 2 * MIB, .huge = true};
    base_error_clear();
    assert_int_equal(mem_pool_create(&p, &o), -ENOMEM);
    assert_says("vm.nr_hugepages=");
    assert_null(p);
    if (have < 4 * MIB)
        return;
    o.bytes = 3 * MIB; /* rounded up to two pages */
    assert_int_equal(mem_pool_create(&p, &o), 0);
    assert_int_equal(mem_bytes(p), 4 * MIB);
    memset(bytes_at(p, get(p, 1 * MIB)), 1, 1 * MIB);
    mem_pool_destroy(p);
}

static void locked_memory(void **state)
{
    (void)state;
    struct mem_options o = {.bytes = 1 * MIB, .lock = true};
    struct mem_pool *p = NULL;
    struct rlimit limit;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (geteuid() == 0 || limit.rlim_cur >= 2 * MIB) {
        if (mem_pool_create(&p, &o))
            fail_msg("%s", base_error());
        mem_pool_destroy(p);
    }
    if (UNDER_SANITIZER) /* with sanitizers mlock() does nothing */
        return;
    /* A process that has neither the permission nor the limit is refused. */
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit none = {.rlim_cur = 65536, .rlim_max = 65536};
        if (setrlimit(RLIMIT_MEMLOCK, &none) || (geteuid() == 0 && setuid(65534)))
            _exit(9);
        int rc = mem_pool_create(&p, &o);
        _exit(rc != -ENOMEM && rc != -EPERM && rc != -EAGAIN ? 1 : !strstr(base_error(), "this process may lock 64 KiB") ? 2 : 0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_large),  cmocka_unit_test(segments),      cmocka_unit_test(others_can_map_it),
        cmocka_unit_test(huge_pages), cmocka_unit_test(locked_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
