/* SPDX-License-Identifier: MIT
 *
 * Built-in kernels: for all kinds of bytes, and wherever the input is cut, the results equal those of a simple reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"

struct text {
    char bytes[1 << 16];
    size_t len;
};

static int take(void *arg, const void *bytes, size_t len)
{
    struct text *t = arg;
    assert_true(t->len + len <= sizeof t->bytes);
    memcpy(t->bytes + t->len, bytes, len);
    t->len += len;
    return 0;
}

static uint64_t seed = 88172645463325252u;
static uint64_t next(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* Fills with bytes of every kind: white space of all sorts, letters, unprintable bytes. */
static void fill(uint8_t *p, size_t len)
{
    static const uint8_t kinds[] = " \t\n\v\f\rabcXYZ~!\x01\x7f\x80\xff\x1f\x0e\x08";
    for (size_t i = 0; i < len; i++)
        p[i] = next() % 7 == 0 ? (uint8_t)next() : kinds[next() % (sizeof kinds - 1)];
}

/* Runs a kernel over `p` in pieces of random lengths, and folds (or concatenates) the outputs. */
static void run(const weft_kernel *k, const char *arg, const uint8_t *p, size_t len, bool cut, struct text *result)
{
    _Alignas(16) uint8_t state[4096] = {0};
    assert_true(k->state_bytes <= sizeof state);
    weft_out result_out = {take, result};
    result->len = 0;
    size_t done = 0;
    while (done < len) {
        size_t n = cut ? 1 + next() % 150 : len;
        if (n > len - done)
            n = len - done;
        static struct text part;
        part.len = 0;
        weft_out part_out = {take, &part};
        weft_span span = {p + done, n, done};
        assert_int_equal(k->run(&span, arg, k->fold ? &part_out : &result_out), 0);
        if (k->fold)
            assert_int_equal(k->fold(state, part.bytes, part.len), 0);
        done += n;
    }
    if (k->finish)
        assert_int_equal(k->finish(state, &result_out), 0);
    result->bytes[result->len] = '\0';
}

static void wc_counts(void **unused)
{
    (void)unused;
    static uint8_t p[4000];
    static struct text out;
    for (int round = 0; round < 400; round++) {
        size_t len = next() % sizeof p;
        fill(p, len);
        uint64_t lines = 0, words = 0, in = 0;
        for (size_t i = 0; i < len; i++) {
            lines += p[i] == '\n';
            if (p[i] == ' ' || (p[i] >= 9 && p[i] <= 13)) {
                words += in;
                in = 0;
            } else if (!WEFT_WC_PRINTABLE || (p[i] >= 33 && p[i] <= 126)) {
                in = 1;
            }
        }
        words += in;
        char expected[80];
        snprintf(expected, sizeof expected, "%7llu %7llu %7zu\n", (unsigned long long)lines, (unsigned long long)words, len);
        for (int cut = 0; cut < 2; cut++) {
            run(weft_kernel_find("wc"), NULL, p, len, cut, &out);
            assert_string_equal(out.bytes, expected);
        }
    }
}

/* A word at the end of one input does not continue in the next. */
static void wc_inputs(void **unused)
{
    (void)unused;
    const weft_kernel *k = weft_kernel_find("wc");
    _Alignas(16) uint8_t state[64] = {0};
    static struct text part, out;
    for (int i = 0; i < 3; i++) {
        weft_out o = {take, &part};
        part.len = 0;
        weft_span span = {(const uint8_t *)"word", 4, 0};
        assert_int_equal(k->run(&span, NULL, &o), 0);
        assert_int_equal(k->fold(state, part.bytes, part.len), 0);
    }
    assert_true(k->fold(state, part.bytes, part.len - 1) < 0);
    weft_out o = {take, &out};
    assert_int_equal(k->finish(state, &o), 0);
    out.bytes[out.len] = '\0';
    assert_string_equal(out.bytes, "      0       3      12\n");
}

static void histogram_counts(void **unused)
{
    (void)unused;
    static uint8_t p[5003];
    static struct text out, expected;
    fill(p, sizeof p);
    unsigned n[256] = {0};
    for (size_t i = 0; i < sizeof p; i++)
        n[p[i]]++;
    for (int b = 0; b < 256; b++)
        if (n[b])
            expected.len += (size_t)sprintf(expected.bytes + expected.len, "%d %u\n", b, n[b]);
    for (int cut = 0; cut < 2; cut++) {
        run(weft_kernel_find("histogram"), NULL, p, sizeof p, cut, &out);
        assert_string_equal(out.bytes, expected.bytes);
    }
}

/* Compares with a line-by-line search, for texts of all lengths, and matches at all positions. */
static void grep_lines(void **unused)
{
    (void)unused;
    static char hay[3000];
    static struct text out, expected;
    const weft_kernel *k = weft_kernel_find("grep");
    for (int round = 0; round < 2000; round++) {
        size_t len = next() % sizeof hay, n = 1 + next() % (round % 2 ? 3 : 40);
        for (size_t i = 0; i < len; i++)
            hay[i] = next() % 20 == 0 ? '\n' : (char)('a' + next() % 3);
        char needle[64];
        for (size_t i = 0; i < n; i++)
            needle[i] = (char)('a' + next() % 3);
        needle[n] = '\0';
        expected.len = 0;
        for (size_t at = 0; at < len;) {
            char *nl = memchr(hay + at, '\n', len - at);
            size_t line = (nl ? (size_t)(nl - hay) : len) - at;
            if (memmem(hay + at, line, needle, n)) {
                memcpy(expected.bytes + expected.len, hay + at, line);
                expected.len += line;
                expected.bytes[expected.len++] = '\n';
            }
            at += line + 1;
        }
        run(k, needle, (const uint8_t *)hay, len, false, &out);
        assert_int_equal(out.len, expected.len);
        assert_memory_equal(out.bytes, expected.bytes, out.len);
    }
    weft_out o = {take, &out};
    assert_int_equal(k->run(&(weft_span){(const uint8_t *)"", 0, 0}, "", &o), -EINVAL);
    assert_int_equal(k->run(&(weft_span){(const uint8_t *)"", 0, 0}, "a\nb", &o), -EINVAL);
}

static void hash_of_known(void **unused)
{
    (void)unused;
    static struct text out;
    /* XXH64 of nothing with seed 0, from the algorithm's own test values. */
    weft_out o = {take, &out};
    assert_int_equal(weft_kernel_find("xxh64")->run(&(weft_span){(const uint8_t *)"", 0, 7}, NULL, &o), 0);
    out.bytes[out.len] = '\0';
    assert_string_equal(out.bytes, "7 0 ef46db3751d8e999\n");
}

static int run_nothing(const weft_span *in, const char *arg, weft_out *out)
{
    (void)in, (void)arg, (void)out;
    return 0;
}

static void names(void **unused)
{
    (void)unused;
    static const weft_kernel mine = {.bytes = sizeof mine, .name = "mine", .help = "nothing", .run = run_nothing};
    int count = 0;
    for (const weft_kernel *k = weft_kernel_next(NULL); k; k = weft_kernel_next(k), count++)
        assert_ptr_equal(weft_kernel_find(k->name), k);
    assert_true(count >= 4);
    assert_null(weft_kernel_find("w"));
    assert_null(weft_kernel_find("wcx"));
    assert_null(weft_kernel_find("mine"));
    assert_int_equal(weft_kernel_register(&mine), 0);
    assert_ptr_equal(weft_kernel_find("mine"), &mine);
    assert_int_equal(weft_kernel_register(&mine), -EEXIST);
    for (const weft_kernel *k = weft_kernel_next(NULL); k; k = weft_kernel_next(k))
        count--;
    assert_int_equal(count, -1);
}

/* Kernels with invalid fields. */
static void wrong_kernels(void **unused)
{
    (void)unused;
    const weft_kernel good = {.bytes = sizeof good, .name = "good", .help = "nothing", .run = run_nothing};
    weft_kernel bad[] = {good, good, good, good, good, good, good};
    bad[0].bytes = 0;
    bad[1].name = "";
    bad[2].name = "a:b";
    bad[3].run = NULL;
    bad[4].help = NULL;
    bad[5].finish = (int (*)(const void *, weft_out *))(void (*)(void))run_nothing; /* and no fold */
    /* such a size is read if NAME is a function, not a weft_kernel */
    bad[6].bytes = SIZE_MAX / 3;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(weft_kernel_register(&bad[i]), -EINVAL);
    const weft_kernel *k = NULL;
    assert_int_equal(weft_kernel_load("/nonexistent.so", "good", &k), -ENOENT);
    assert_non_null(strstr(weft_error(), "/nonexistent.so"));
    assert_null(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wc_counts),     cmocka_unit_test(wc_inputs), cmocka_unit_test(histogram_counts), cmocka_unit_test(grep_lines),
        cmocka_unit_test(hash_of_known), cmocka_unit_test(names),     cmocka_unit_test(wrong_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
