/* SPDX-License-Identifier: MIT
 *
 * How much may be under way to a peer: more and more on a fast network, also on a long one, and little on a slow one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fabric/records/window.h"
#include "weft/types.h"

enum { LEAST = 16 << 10, MOST = 4 << 20, PIECE = 8 << 10 };

/* A line carries `rate` bytes a second, and each byte arrives `trip_ns` later. Whole windows are sent, one after the other. Returns the
 * longest time that a piece of the last window has taken. */
static int64_t send_windows(struct records_window *w, int64_t rate, int64_t trip_ns, int windows)
{
    int64_t now = w->changed + WEFT_SECOND, longest = 0;
    for (int i = 0; i < windows; i++) {
        int64_t began = now, sent = 0, whole = w->size;
        for (longest = 0; sent < whole; longest = now - began) {
            sent += PIECE;
            now = began + trip_ns + sent * WEFT_SECOND / rate;
            records_window_took(w, began, now, 2 * sent >= whole);
            assert_true((w->size >= LEAST && w->size <= MOST) || w->size_after); /* less while the network's own time is measured */
        }
        now++;
    }
    return longest;
}

static struct records_window new_window(void)
{
    return (struct records_window){.size = LEAST, .least = LEAST, .most = MOST};
}

static void test_fast(void **state)
{
    (void)state;
    struct records_window w = new_window();
    send_windows(&w, INT64_C(1000000000), 50000, 10);
    assert_int_equal(w.size, MOST);
}

/* By satellite: the round trip is long, and the line is fast. */
static void test_long(void **state)
{
    (void)state;
    struct records_window w = new_window();
    send_windows(&w, INT64_C(20000000), 600 * WEFT_MS, 20);
    assert_true(w.size >= MOST / 4);
}

/* 256 kb/s, from the beginning, and after the line was fast. */
static void test_slow(void **state)
{
    (void)state;
    struct records_window w = new_window();
    assert_true(send_windows(&w, 32 << 10, WEFT_MS, 20) < 2 * WEFT_SECOND);
    w = new_window();
    send_windows(&w, INT64_C(1000000000), 50000, 10);
    assert_true(send_windows(&w, 32 << 10, WEFT_MS, 20) < 2 * WEFT_SECOND);
    send_windows(&w, INT64_C(1000000000), 50000, 10); /* and back again */
    assert_int_equal(w.size, MOST);
}

/* The route changes: the network is as fast as before, but each byte takes longer from now on, and at last as long as before. */
static void test_longer(void **state)
{
    (void)state;
    struct records_window w = new_window();
    send_windows(&w, INT64_C(1000000000), 50000, 10);
    assert_int_equal(w.size, MOST);
    send_windows(&w, INT64_C(1000000000), 800 * WEFT_MS, 60);
    assert_int_equal(w.size, MOST);
    assert_in_range(w.shortest, 800 * WEFT_MS, WEFT_SECOND);
    send_windows(&w, INT64_C(1000000000), 50000, 10);
    assert_int_equal(w.size, MOST);
    assert_in_range(w.shortest, 50000, WEFT_MS);
}

/* A long network whose line becomes slow: what is measured alone must not take the slow line for a long one. */
static void test_slower(void **state)
{
    (void)state;
    struct records_window w = new_window();
    send_windows(&w, INT64_C(1000000000), 300 * WEFT_MS, 30);
    assert_int_equal(w.size, MOST);
    assert_true(send_windows(&w, 64 << 10, 300 * WEFT_MS, 40) < 2 * WEFT_SECOND);
    for (int i = 0; i < 100; i++) /* for long */
        assert_true(send_windows(&w, 32 << 10, WEFT_MS, 1) < 2 * WEFT_SECOND || i < 20);
}

/* While the network's own time is measured, nothing but the piece that is measured is under way, and this ends with that piece. */
static void test_measured(void **state)
{
    (void)state;
    struct records_window w = new_window();
    int64_t now = 100 * WEFT_SECOND;
    records_window_took(&w, now, now + WEFT_MS, true);
    now += WEFT_SECOND;
    records_window_took(&w, now, now + WEFT_MS, true);
    assert_int_equal(w.size, 4 * LEAST);
    records_window_took(&w, now, now + 700 * WEFT_MS, true); /* sent before the size changed: says nothing */
    assert_int_equal(w.size, 4 * LEAST);
    now += WEFT_SECOND;
    records_window_took(&w, now, now + 700 * WEFT_MS, true);
    assert_int_equal(w.size, 1);
    records_window_took(&w, now, now + 800 * WEFT_MS, true); /* was under way together with others */
    assert_int_equal(w.size, 1);
    assert_int_equal(w.shortest, WEFT_MS);
    now += WEFT_SECOND;
    records_window_took(&w, now, now + 650 * WEFT_MS, true);
    assert_int_equal(w.size, 2 * LEAST);
    assert_int_equal(w.shortest, 650 * WEFT_MS);
    now += WEFT_SECOND;
    records_window_took(&w, now, now + 1000 * WEFT_MS, true); /* neither soon nor late, and measured a short time ago */
    assert_int_equal(w.size, 2 * LEAST);
}

/* Single small pieces say nothing about a window. */
static void test_unused(void **state)
{
    (void)state;
    struct records_window w = new_window();
    for (int64_t now = WEFT_SECOND; now < 100 * WEFT_SECOND; now += WEFT_SECOND)
        records_window_took(&w, now, now + 50000, false);
    assert_int_equal(w.size, LEAST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fast),    cmocka_unit_test(test_long),   cmocka_unit_test(test_slow),
                                       cmocka_unit_test(test_unused),  cmocka_unit_test(test_longer), cmocka_unit_test(test_slower),
                                       cmocka_unit_test(test_measured)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
