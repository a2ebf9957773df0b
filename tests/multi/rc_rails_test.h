/* SPDX-License-Identifier: MIT
 *
 * For tests with several devices to one peer: waiting until all are used, and bytes that are known.
 */
#ifndef WEFT_RC_RAILS_TEST_H
#define WEFT_RC_RAILS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cluster_test.h"
#include "fabric/rc/rails.h"

#define LARGE ((size_t)1 << 20)

struct stage {
    _Atomic uint32_t here, there, done, turn, way;
};

/* The first put makes the queue pair of the first rail; then the other rails are made. */
static inline void wait_for_rails(weft_node *w, uint32_t peer, weft_gaddr at, uint32_t n)
{
    uint64_t v = 0;
    int64_t end = now_ns() + patience_ns(60);
    OK(weft_put_blocking(w, on_node(at, peer), &v, sizeof v));
    while (stats(w, peer).rails != n && now_ns() < end)
        usleep(1000);
    CHECK(stats(w, peer).rails == n);
}

static inline void fill(uint8_t *p, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t v = (seed << 32) + i;
        memcpy(p + i, &v, len - i < 8 ? len - i : 8);
    }
}

/* A thread of this process, the emulated device, writes the bytes that the other node puts here. The thread sanitizer sees no order between
 * that thread and the reader, because the order comes from the other process. */
#define BY_DEVICE __attribute__((no_sanitize("thread"), noinline, unused))
typedef uint64_t any_word __attribute__((aligned(1), may_alias));

BY_DEVICE static bool filled(const uint8_t *p, size_t len, uint64_t seed)
{
    for (size_t i = 0; i + 8 <= len; i += 8)
        if (*(const volatile any_word *)(p + i) != (seed << 32) + i)
            return false;
    for (size_t i = len & ~(size_t)7; i < len; i++)
        if (((const volatile uint8_t *)p)[i] != (uint8_t)(((seed << 32) + (i & ~(size_t)7)) >> 8 * (i & 7)))
            return false;
    return true;
}

BY_DEVICE static void wipe(uint8_t *p, size_t len)
{
    for (size_t i = 0; i < len; i += 8)
        *(volatile any_word *)(p + i) = UINT64_C(0xaaaaaaaaaaaaaaaa);
}

BY_DEVICE static uint64_t word_at(const void *p)
{
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE);
}

BY_DEVICE static uint8_t byte_at(const uint8_t *p)
{
    return *(const volatile uint8_t *)p;
}

static inline void run(int n, node_fn fn, void *arg, const char *const *environment)
{
    int failed = nodes_failed_with(n, fn, arg, environment);
    softverbs("fault clear");
    assert_int_equal(failed, 0);
}

#endif
