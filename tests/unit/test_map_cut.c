/* SPDX-License-Identifier: MIT
 *
 * weft map finds the end of a piece at the right separator, wherever the reads begin and end, and reads little to find it: the bytes may
 * come from another host.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "map/job.h"

struct reads {
    const uint8_t *bytes;
    size_t len;
    uint64_t read;
    unsigned count;
};

static int64_t read_some(void *arg, void *to, size_t len, uint64_t offset)
{
    struct reads *r = arg;
    size_t left = offset < r->len ? r->len - (size_t)offset : 0, n = len < left ? len : left;
    memcpy(to, r->bytes + offset, n);
    r->read += n;
    r->count++;
    return (int64_t)n;
}

static uint64_t end_of(struct reads *r, uint64_t block, const char *separator, uint64_t start)
{
    struct map_options o = {.block_bytes = block};
    const struct map_input in = {.name = "input", .size = r->len, .fd = -1};
    struct map_job job = {.options = &o, .separator_len = strlen(separator)};
    uint64_t end = 0;
    job.separator = (const uint8_t *)separator;
    assert_int_equal(map_cut_file(&job, &in, read_some, r, start, &end), 0);
    return end;
}

static void test_short_lines(void **state)
{
    (void)state;
    const size_t len = 1 << 20;
    uint8_t *bytes = malloc(len);
    assert_non_null(bytes);
    for (size_t i = 0; i < len; i++)
        bytes[i] = i % 100 == 99 ? '\n' : 'a';
    struct reads r = {bytes, len, 0, 0};
    unsigned pieces = 0;
    for (uint64_t start = 0, end; start < len; start = end, pieces++) {
        end = end_of(&r, 10030, "\n", start);
        assert_true(end == len || end % 100 == 0);
        assert_true(end == len || end == start + 10100);
    }
    assert_true(r.read <= pieces * UINT64_C(512));
    assert_true(r.count <= pieces);
    free(bytes);
}

/* A separator at each distance from the nominal end, so also across the ends of all reads. */
static void test_every_distance(void **state)
{
    (void)state;
    const size_t len = 200000, block = 1000;
    static const char *const separators[] = {"\n", "ab", "xyzzy"};
    uint8_t *bytes = malloc(len);
    char *longer = malloc(301);
    assert_true(bytes && longer);
    memset(bytes, '.', len);
    memset(longer, 's', 300);
    longer[299] = 't';
    longer[300] = '\0';
    for (size_t k = 0; k <= sizeof separators / sizeof separators[0]; k++) {
        const char *separator = k < sizeof separators / sizeof separators[0] ? separators[k] : longer;
        size_t n = strlen(separator);
        for (size_t at = block; at + n < len; at += at < 6000 || at % 4096 < 16 || at % 4096 > 4090 ? 1 : 31) {
            memcpy(bytes + at, separator, n);
            struct reads r = {bytes, len, 0, 0};
            assert_int_equal(end_of(&r, block, separator, 0), at + n);
            memset(bytes + at, '.', n);
        }
        struct reads r = {bytes, len, 0, 0};
        assert_int_equal(end_of(&r, block, separator, 0), len);
    }
    free(longer);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_short_lines), cmocka_unit_test(test_every_distance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
