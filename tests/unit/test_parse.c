/* SPDX-License-Identifier: MIT
 *
 * Numbers, sizes and durations as people write them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

static void reads_numbers(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "-", "x", "1x", "+1", " 1", "1 ", "--1", "1.5", "-4", "12", "99999999999999999999"};
    int64_t n = 77;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(base_parse_number(wrong[i], -3, 11, &n), -EINVAL);
    assert_int_equal(base_parse_number(NULL, -3, 11, &n), -EINVAL);
    assert_int_equal(n, 77);
    assert_int_equal(base_parse_number("-3", -3, 11, &n), 0);
    assert_int_equal(n, -3);
    assert_int_equal(base_parse_number("011", -3, 11, &n), 0);
    assert_int_equal(n, 11);
    assert_int_equal(base_parse_number("9223372036854775807", 0, INT64_MAX, &n), 0);
    assert_int_equal(n, INT64_MAX);
}

static void reads_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {{"0", 0},
                {"4096", 4096},
                {"64K", 65536},
                {"64k", 65536},
                {"64KiB", 65536},
                {"1.5G", 1610612736},
                {".5M", 524288},
                {"2T", UINT64_C(2) << 40},
                {"10b", 10},
                {"256M", 256u << 20},
                {"8191T", UINT64_C(8191) << 40}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 1;
        assert_int_equal(base_parse_bytes(rows[i].text, &bytes), 0);
        assert_int_equal(bytes, rows[i].bytes);
    }
}

static void refuses_what_is_no_size(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "M", "-1", "+1", " 1", "1 M", "1X", "1MM", "nan", "inf", "1e400"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        uint64_t bytes = 77;
        base_error_clear();
        assert_int_equal(base_parse_bytes(texts[i], &bytes), -EINVAL);
        assert_int_equal(bytes, 77);
        assert_non_null(strstr(base_error(), "is not a size"));
    }
    uint64_t bytes;
    assert_int_equal(base_parse_bytes(NULL, &bytes), -EINVAL);
    assert_int_equal(base_parse_bytes("9999999T", &bytes), -EINVAL);
    assert_non_null(strstr(base_error(), "too large"));
}

static void reads_durations(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t ns;
    } rows[] = {{"0", 0},   {"2", 2000000000},   {"2s", 2000000000},    {"500ms", 500000000},   {"20us", 20000},
                {"7ns", 7}, {"1m", 60000000000}, {"1min", 60000000000}, {"1.5h", 5400000000000}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t ns = 1;
        assert_int_equal(base_parse_duration(rows[i].text, &ns), 0);
        assert_int_equal(ns, rows[i].ns);
    }
}

static void refuses_what_is_no_duration(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "s", "-1s", "1S", "1 s", "1d", "inf", "99999999999h"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int64_t ns = 77;
        base_error_clear();
        assert_int_equal(base_parse_duration(texts[i], &ns), -EINVAL);
        assert_int_equal(ns, 77);
        assert_non_null(strstr(base_error(), "is not a duration"));
    }
}

static void formats_sizes(void **state)
{
    (void)state;
    char text[32];
    assert_string_equal(base_format_bytes(0, text, sizeof text), "0 B");
    assert_string_equal(base_format_bytes(1023, text, sizeof text), "1023 B");
    assert_string_equal(base_format_bytes(1536, text, sizeof text), "1.5 KiB");
    assert_string_equal(base_format_bytes(UINT64_C(16) << 40, text, sizeof text), "16 TiB");
    assert_string_equal(base_format_bytes(UINT64_MAX, text, sizeof text), "16 EiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_numbers),
        cmocka_unit_test(reads_sizes),
        cmocka_unit_test(refuses_what_is_no_size),
        cmocka_unit_test(reads_durations),
        cmocka_unit_test(refuses_what_is_no_duration),
        cmocka_unit_test(formats_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
