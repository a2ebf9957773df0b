/* SPDX-License-Identifier: MIT
 *
 * The numbers of errors as nodes send them (base/errno.c): with a table of a system that does not exist, and with the table of weft, as it
 * would be used on a system whose numbers differ.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <limits.h>

#include "base/base.h"

/* Two names have the same number at Linux, two others here; 11 and 35 are exchanged. */
static const struct base_errno other[] = {{5, 5}, {11, 35}, {35, 11}, {95, 102}, {95, 45}, {110, 60}, {60, 101}, {63, 98}, {105, 98}};
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_change), cmocka_unit_test(test_unknown), cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
