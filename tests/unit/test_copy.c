/* SPDX-License-Identifier: MIT
 *
 * Large copies: each way of copying is exact for every alignment and length; which way is chosen from which measurements; and several
 * threads that share a copy copy every byte once, and have finished when the call returns.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fabric/shm/copy.h"
#include "fabric/shm/copy_ways.h"

#define MIB ((size_t)1 << 20)

/* Fills with bytes that depend on the position and the copy, so that a piece from another position or an earlier copy is detected. */
static void fill(uint8_t *p, size_t len, uint32_t seed)
{
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)((i * 2654435761u + seed * 40503u) >> 13);
}

static void *memory(size_t len)
{
    void *p = aligned_alloc(4096, (len + 4095) / 4096 * 4096);
    assert_non_null(p);
    return p;
}

/* --- the ways --- */

#define EDGE 256u /* bytes on both sides that must not change */

static void copies_exactly(const struct copy_way *way, uint8_t *dst, size_t dst_at, const uint8_t *src, size_t src_at, size_t len)
{
    uint8_t *to = dst + EDGE + dst_at, edge[EDGE];
    memset(edge, 0xa5, EDGE);
    memcpy(to - EDGE, edge, EDGE);
    memset(to, 0x5a, len);
    memcpy(to + len, edge, EDGE);
    way->copy(to, src + src_at, len);
    bool same = memcmp(to, src + src_at, len) == 0 && memcmp(to - EDGE, edge, EDGE) == 0 && memcmp(to + len, edge, EDGE) == 0;
    if (!same)
        fail_msg("%s: %zu bytes from %zu to %zu of a page are not copied exactly", way->name, len, src_at, dst_at);
}

static void every_way_copies_exactly(void **state)
{
    (void)state;
    if (getenv("TEST_THREADS")) /* tests/run: of bytes, not of threads; it takes 20 s with the thread sanitizer */
        skip();
    static const size_t lengths[] = {0,     1,     63,    64,    65,    127,   128,   129,   255,    4095,   4096,   4097,
                                     16383, 16384, 16385, 16447, 16448, 32767, 32768, 40000, 131072, 131073, 262143, MIB + 12345};
    static const size_t offsets[] = {0, 1, 7, 8, 31, 32, 63, 64, 65, 2048, 4095};
    size_t most = MIB + 12345 + 4096;
    uint8_t *src = memory(most), *dst = memory(most + 2 * EDGE);
    fill(src, most, 1);
    unsigned seen = 0;
    for (const struct copy_way *way = copy_ways; way->name; way++) {
        if (!way->works())
            continue;
        seen++;
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (size_t d = 0; d < sizeof offsets / sizeof *offsets; d++)
                for (size_t s = 0; s < sizeof offsets / sizeof *offsets; s++)
                    copies_exactly(way, dst, offsets[d], src, offsets[s], lengths[l]);
        for (size_t at = 0; at < 64; at++) /* every position in a cache line, and every length of the remainder */
            for (size_t more = 0; more < 128; more++)
                copies_exactly(way, dst, at, src, 64 - at, 16384 + more);
    }
    assert_true(seen >= 1);
    assert_true(copy_ways[0].works() && !copy_ways[0].streams);
    free(src);
    free(dst);
}

/* --- which one --- */

static void classes_are_octaves(void **state)
{
    (void)state;
    assert_int_equal(copy_class(COPY_LARGE), 0);
    assert_int_equal(copy_class(2 * COPY_LARGE - 1), 0);
    assert_int_equal(copy_class(2 * COPY_LARGE), 1);
    assert_int_equal(copy_class(MIB), 5);
    assert_int_equal(copy_class(16 * MIB - 1), COPY_CLASSES - 2);
    assert_int_equal(copy_class(16 * MIB), COPY_CLASSES - 1);
    assert_int_equal(copy_class((size_t)1 << 40), COPY_CLASSES - 1);
    for (unsigned c = 0; c < COPY_CLASSES; c++)
        assert_int_equal(copy_class(copy_class_bytes(c)), c);
}

/* The first way in the table that uses streaming stores, or 0. */
static unsigned first_stream(void)
{
    for (unsigned i = 0; copy_ways[i].name; i++)
        if (copy_ways[i].streams)
            return i;
    return 0;
}

static void the_fastest_is_chosen(void **state)
{
    (void)state;
    unsigned s = first_stream();
    if (s < 2)
        skip(); /* this processor has only one way */
    uint64_t none[COPY_WAYS_MAX] = {0};
    assert_int_equal(copy_choose(none), 0); /* nothing was measured, so the C library's copy is used */
    uint64_t only_second[COPY_WAYS_MAX] = {[1] = 900};
    assert_int_equal(copy_choose(only_second), 1);

    uint64_t second_faster[COPY_WAYS_MAX] = {1000, 900};
    assert_int_equal(copy_choose(second_faster), 1);
    uint64_t as_good_as_equal[COPY_WAYS_MAX] = {1000, 965};
    assert_int_equal(copy_choose(as_good_as_equal), 0);

    uint64_t stream_faster[COPY_WAYS_MAX] = {1000, 1000, [2] = 0};
    stream_faster[s] = 700;
    assert_int_equal(copy_choose(stream_faster), s);
    stream_faster[s] = 965; /* streaming is faster, but by less than the time that readers of the destination lose */
    assert_int_equal(copy_choose(stream_faster), 0);
    stream_faster[s] = 950;
    assert_int_equal(copy_choose(stream_faster), s);
    stream_faster[1] = 980; /* the second way is within the margin of the streaming way, the first is not */
    assert_int_equal(copy_choose(stream_faster), 1);

    if (!copy_ways[s + 1].name)
        return;
    uint64_t streams[COPY_WAYS_MAX] = {1000, 1000};
    streams[s] = 820,
    streams[s + 1] =
        700; /* the first streaming way is preferred to the second if it is at most a fifth slower, because its lead grows with the size */
    assert_int_equal(copy_choose(streams), s);
    streams[s] = 850;
    assert_int_equal(copy_choose(streams), s + 1);
}

static void measures_what_may_serve(void **state)
{
    (void)state;
    uint64_t ns[COPY_WAYS_MAX];
    assert_true(copy_measure(copy_class(64 << 10), ns));
    unsigned i = 0, measured = 0;
    for (; copy_ways[i].name; i++) {
        assert_true(ns[i] == 0 || copy_ways[i].works());
        assert_true(ns[i] == 0 || !copy_ways[i].streams); /* never where the destination fits a core's cache */
        measured += ns[i] != 0;
    }
    for (; i < COPY_WAYS_MAX; i++)
        assert_int_equal(ns[i], 0);
    assert_true(measured >= 1);
    assert_true(copy_measure(copy_class(2 * MIB), ns));
    assert_true(ns[copy_choose(ns)] != 0);
}

/* Whichever way is chosen, the bytes arrive: enough copies that classes are measured meanwhile. */
static void large_copies_copy(void **state)
{
    (void)state;
    size_t most = 2 * MIB + 101; /* the largest size, an offset, and a byte behind the copy */
    uint8_t *src = memory(most), *dst = memory(most);
    static const size_t lengths[] = {32 << 10, (32 << 10) + 1, 100000, 512 << 10, 2 * MIB + 99};
    for (uint32_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (uint32_t i = 0; i < 17; i++) { /* a class is measured at its 16th copy */
            fill(src, lengths[k], k * 17 + i);
            memset(dst, 0, lengths[k] + 2);
            copy_bytes(dst + i % 2, src, lengths[k]);
            assert_memory_equal(dst + i % 2, src, lengths[k]);
            assert_int_equal(dst[i % 2 + lengths[k]], 0);
        }
    free(src);
    free(dst);
}

/* --- together --- */

static void how_many_by_default(void **state)
{
    (void)state;
    assert_int_equal(copy_team_default(1, 1), 1);
    assert_int_equal(copy_team_default(2, 1), 1); /* the second processor is left for the other node, or for the program */
    assert_int_equal(copy_team_default(2, 2), 1);
    assert_int_equal(copy_team_default(4, 2), 2);
    assert_int_equal(copy_team_default(16, 2), 6);
    assert_int_equal(copy_team_default(16, 8), 2);
    assert_int_equal(copy_team_default(16, 16), 1);
    assert_int_equal(copy_team_default(16, 64), 1);
    assert_int_equal(copy_team_default(128, 1), 6);
    assert_int_equal(copy_team_default(8, 0), 6);
}

static void threads_copy_all_of_it(void **state)
{
    (void)state;
    static const size_t lengths[] = {4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 5 * MIB + 4097, 9 * MIB + 77};
    size_t most = 9 * MIB + 77 + 2 * EDGE + 64;
    uint8_t *src = memory(most), *dst = memory(most);
    for (uint32_t threads = 2; threads <= 20; threads += 3) {
        struct copy_team *t;
        assert_int_equal(copy_team_new(&t, threads, threads % 2 ? 0 : 20000), 0);
        for (uint32_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            size_t at = EDGE + threads % 5;
            fill(src, most, threads * 100 + k);
            memset(dst, 0xa5, most);
            copy_by_team(t, dst + at, src + k, lengths[k]);
            assert_memory_equal(dst + at, src + k, lengths[k]);
            for (size_t i = 0; i < EDGE; i++)
                assert_true(dst[at - 1 - i] == 0xa5 && dst[at + lengths[k] + i] == 0xa5);
            if (k % 2)
                usleep(500); /* by the next copy the helpers are asleep */
        }
        copy_team_free(t);
    }
    struct copy_team *unused;
    assert_int_equal(copy_team_new(&unused, 4, 0), 0);
    copy_team_free(unused);
    copy_team_free(NULL);
    free(src);
    free(dst);
}

struct caller {
    struct copy_team *t;
    uint32_t number;
    int wrong;
};

static void *copies_again_and_again(void *arg)
{
    struct caller *c = arg;
    size_t len = 4 * MIB + c->number * 1000;
    uint8_t *src = memory(len), *dst = memory(len);
    for (uint32_t i = 0; i < 40; i++) {
        fill(src, len, c->number * 100 + i);
        copy_by_team(c->t, dst, src, len);
        c->wrong += memcmp(dst, src, len) != 0;
    }
    free(src);
    free(dst);
    return NULL;
}

/* One caller gets the helpers, and the others copy alone. Each has its own bytes when its call returns. */
static void several_callers_share_a_team(void **state)
{
    (void)state;
    struct copy_team *t;
    struct caller callers[3];
    pthread_t threads[3];
    assert_int_equal(copy_team_new(&t, 3, 1000), 0);
    for (uint32_t i = 0; i < 3; i++) {
        callers[i] = (struct caller){.t = t, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, copies_again_and_again, &callers[i]), 0);
    }
    for (uint32_t i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(callers[i].wrong, 0);
    }
    copy_team_free(t);
}

#if !FAB_COPY_BY_WORDS /* the thread sanitizer ends forked children of programs with threads */
/* A forked child has no helpers, and copies alone; it does not wait for them. */
static void a_forked_child_copies_alone(void **state)
{
    (void)state;
    size_t len = 6 * MIB;
    uint8_t *src = memory(len), *dst = memory(len);
    struct copy_team *t;
    assert_int_equal(copy_team_new(&t, 3, 0), 0);
    fill(src, len, 1);
    copy_by_team(t, dst, src, len);
    assert_memory_equal(dst, src, len);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        fill(src, len, 2);
        copy_by_team(t, dst, src, len);
        _exit(memcmp(dst, src, len) != 0);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    copy_team_free(t);
    free(src);
    free(dst);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_copies_exactly),
        cmocka_unit_test(classes_are_octaves),
        cmocka_unit_test(the_fastest_is_chosen),
        cmocka_unit_test(measures_what_may_serve),
        cmocka_unit_test(large_copies_copy),
        cmocka_unit_test(how_many_by_default),
        cmocka_unit_test(threads_copy_all_of_it),
        cmocka_unit_test(several_callers_share_a_team),
#if !FAB_COPY_BY_WORDS
        cmocka_unit_test(a_forked_child_copies_alone),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
