/* SPDX-License-Identifier: MIT
 *
 * The numbers of errors and signals as nodes send them (base/errno.c, base/signal.c): with a table of a system that does not exist, and
 * with the table of weft, as it would be used on a system whose numbers differ.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>

#include "base/base.h"

/* Two names have the same number at Linux, two others here; 11 and 35 are exchanged. */
static const struct base_number other[] = {{5, 5}, {11, 35}, {35, 11}, {95, 102}, {95, 45}, {110, 60}, {60, 101}, {63, 98}, {105, 98}};
#define COUNT (sizeof other / sizeof other[0])

static int out(int status)
{
    return base_status_change(other, COUNT, status, true);
}

static int in(int status)
{
    return base_status_change(other, COUNT, status, false);
}

static void test_change(void **state)
{
    (void)state;
    assert_int_equal(out(0), 0);
    assert_int_equal(in(0), 0);
    assert_int_equal(out(7), 7); /* a count, for example */
    assert_int_equal(in(7), 7);
    assert_int_equal(out(-35), -11);
    assert_int_equal(in(-11), -35);
    assert_int_equal(out(-11), -35);
    assert_int_equal(in(-35), -11);
    assert_int_equal(out(-60), -110);
    assert_int_equal(in(-110), -60);
    assert_int_equal(in(-60), -101);
    assert_int_equal(out(-102), -95); /* both have Linux's number, and the first row counts on the way back */
    assert_int_equal(out(-45), -95);
    assert_int_equal(in(-95), -102);
    assert_int_equal(out(-98), -63);
    assert_int_equal(in(-63), -98);
    assert_int_equal(in(-105), -98);
}

static void test_unknown(void **state)
{
    (void)state;
    assert_int_equal(out(-77), -5);
    assert_int_equal(in(-77), -5);
    assert_int_equal(in(INT_MIN), -5);
    assert_int_equal(out(INT_MIN), -5);
}

/* Every number of the real table comes back, and is the one that kernels know (weft/device_ring.h). */
static void test_table(void **state)
{
    (void)state;
    assert_true(base_errno_count > 80);
    for (size_t i = 0; i < base_errno_count; i++) {
        int there = base_status_change(base_errnos, base_errno_count, -base_errnos[i].own, true);
        assert_int_equal(base_status_change(base_errnos, base_errno_count, there, false), -base_errnos[i].own);
        assert_int_equal(base_status_in(base_status_out(-base_errnos[i].own)), -base_errnos[i].own);
    }
    assert_int_equal(base_status_out(-EAGAIN), -11);
    assert_int_equal(base_status_out(-ETIMEDOUT), -110);
    assert_int_equal(base_status_in(-104), -ECONNRESET);
    assert_int_equal(base_status_in(-95), -EOPNOTSUPP);
}

/* Of a system whose signal 10 is Linux's 7, and 30 Linux's 10; which does not have Linux's 31, and has a signal 7 that Linux does not. */
static const struct base_number signals[] = {{7, 10}, {9, 9}, {10, 30}, {12, 31}};

static void test_signals(void **state)
{
    (void)state;
    size_t n = sizeof signals / sizeof signals[0];
    static const int both[][2] = {{0, 0}, {10, 7}, {9, 9}, {30, 10}, {31, 12}};
    for (size_t i = 0; i < sizeof both / sizeof both[0]; i++) {
        assert_int_equal(base_signal_change(signals, n, both[i][0], true), both[i][1]);
        assert_int_equal(base_signal_change(signals, n, both[i][1], false), both[i][0]);
    }
    static const int neither[] = {7, 8, -9, INT_MIN, INT_MAX, BASE_SIGNAL_OTHER};
    for (size_t i = 0; i < sizeof neither / sizeof neither[0]; i++)
        assert_int_equal(base_signal_change(signals, n, neither[i], true), BASE_SIGNAL_OTHER);
    assert_int_equal(base_signal_change(signals, n, 31, false), BASE_SIGNAL_OTHER);
    for (size_t i = 0; i < base_signals_count; i++) {
        int there = base_signal_change(base_signals, base_signals_count, base_signals[i].own, true);
        assert_int_equal(base_signal_change(base_signals, base_signals_count, there, false), base_signals[i].own);
    }
    assert_true(base_signals_count >= 28);
    assert_true(BASE_SIGNAL_OTHER >= NSIG && 128 + BASE_SIGNAL_OTHER < 255); /* kill() refuses it, and ssh ends with 255 when it fails */
    assert_int_equal(base_signal_out(SIGUSR1), 10);
    assert_int_equal(base_signal_in(7), SIGBUS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_change), cmocka_unit_test(test_unknown), cmocka_unit_test(test_table),
                                       cmocka_unit_test(test_signals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
