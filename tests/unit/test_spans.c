/* SPDX-License-Identifier: MIT
 *
 * The GPU versions of kernels, on the back end `host`: for all bytes, lengths and alignments the result equals that of the kernel on the
 * processor, byte by byte. Also runs on a GPU that fails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "gpu/spans.h"
#include "kernel/kernel.h"

#define CHUNK (4u << 20) /* SPAN_CHUNK_BYTES */
#define MOST  (CHUNK + 100000)

struct text {
    char *bytes;
    size_t len, room;
};

static int take(void *arg, const void *bytes, size_t len)
{
    struct text *t = arg;
    if (t->len + len > t->room) {
        t->room = 2 * (t->len + len);
        t->bytes = realloc(t->bytes, t->room);
        assert_non_null(t->bytes);
    }
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

/* Fills with words, or with bytes of all kinds. */
static void fill(uint8_t *p, size_t len, bool words)
{
    static const char kinds[] = "abc def\nabab needle \t\v";
    for (size_t i = 0; i < len; i++)
        p[i] = words ? (uint8_t)kinds[next() % (sizeof kinds - 1)] : (uint8_t)(next() >> 17);
}

struct reader {
    const uint8_t *from;
    uint64_t at, fails_at;
    uint32_t waits;
};

static int read_bytes(void *arg, uint64_t at, void *to, size_t len)
{
    struct reader *r = arg;
    assert_int_equal(at, r->at); /* in order, each byte once */
    r->at += len;
    if (r->at > r->fails_at)
        return base_fail(-EIO, "the input is gone");
    memcpy(to, r->from + at, len);
    return 0;
}

enum where { PRIVATE, ATTACHED, READ_WHOLE, READ_PARTS, WHERES };

static uint8_t *pool; /* the attached memory: first that of the pass, then room for a span */
static uint8_t *own;

static int run(struct gpu_pass *p, enum where where, size_t len, uint64_t offset, uint64_t fails_at, struct text *result)
{
    uint8_t *attached = pool + gpu_pass_bytes();
    struct reader r = {.from = own, .fails_at = fails_at};
    struct gpu_input in = {.bytes = where == PRIVATE      ? own
                                    : where == READ_PARTS ? NULL
                                                          : attached,
                           .read = where >= READ_WHOLE ? read_bytes : NULL,
                           .arg = &r,
                           .len = len,
                           .offset = offset};
    if (where == ATTACHED)
        memcpy(attached, own, len);
    else
        memset(attached, 'n', len < 4096 ? len : 4096);
    weft_out out = {take, result};
    result->len = 0;
    return gpu_pass_run(p, &in, &out);
}

struct opened {
    struct gpu_spans *spans;
    struct gpu_pass *pass;
};

static struct opened open_spans(const weft_kernel *k, const char *arg)
{
    struct opened o;
    assert_int_equal(gpu_spans_open("host", k, arg, &o.spans), 0);
    assert_int_equal(gpu_spans_attach(o.spans, pool, gpu_pass_bytes() + MOST), 0);
    assert_int_equal(gpu_pass_open(o.spans, pool, &o.pass), 0);
    return o;
}

static void close_spans(struct opened o)
{
    gpu_pass_close(o.pass);
    gpu_spans_close(o.spans);
}

static void like_the_host(const weft_kernel *k, const char *arg, bool words)
{
    static const size_t edges[] = {0,     1,     31,    32,    33,    63,        64,    65,        127, 16383,
                                   16384, 16385, 65535, 65536, 65537, CHUNK - 1, CHUNK, CHUNK + 1, MOST};
    struct opened o = open_spans(k, arg);
    struct text got = {0}, wanted = {0};
    fill(own, MOST, words);
    for (size_t i = 0; i < sizeof edges / sizeof *edges + 40; i++) {
        size_t len = i < sizeof edges / sizeof *edges ? edges[i] : next() % 70000;
        enum where where = i < sizeof edges / sizeof *edges ? (enum where)0 : (enum where)(next() % WHERES);
        if (len >= CHUNK - 1) /* for long inputs, one position each, a different one every time */
            where = (enum where)((i + words + (arg ? strlen(arg) : 0)) % WHERES);
        for (; where < WHERES; where++) {
            uint64_t offset = next() % 2 * 12345;
            weft_out out = {take, &wanted};
            weft_span span = {own, len, offset};
            wanted.len = 0;
            assert_int_equal(k->run(&span, arg, &out), 0);
            int rc = run(o.pass, where, len, offset, UINT64_MAX, &got);
            if (where == READ_PARTS && k == &kernel_grep && len) {
                assert_int_equal(rc, -EINVAL);
            } else {
                assert_int_equal(rc, 0);
                assert_int_equal(got.len, wanted.len);
                assert_memory_equal(got.bytes, wanted.bytes, wanted.len);
            }
            if (i >= sizeof edges / sizeof *edges || len >= CHUNK - 1)
                break;
        }
    }
    assert_false(gpu_spans_failed(o.spans));
    close_spans(o);
    free(got.bytes);
    free(wanted.bytes);
}

static void wc_as_on_the_host(void **unused)
{
    (void)unused;
    like_the_host(&kernel_wc, NULL, true);
    like_the_host(&kernel_wc, NULL, false);
}

static void histogram_as_on_the_host(void **unused)
{
    (void)unused;
    like_the_host(&kernel_histogram, NULL, false);
    memset(own, 'x', MOST);
    struct opened o = open_spans(&kernel_histogram, NULL);
    struct text got = {0};
    assert_int_equal(run(o.pass, PRIVATE, MOST, 0, UINT64_MAX, &got), 0);
    for (unsigned b = 0; b < 256; b++)
        assert_int_equal(((uint64_t *)(void *)got.bytes)[b], b == 'x' ? MOST : 0);
    close_spans(o);
    free(got.bytes);
}

static void xxh64_as_on_the_host(void **unused)
{
    (void)unused;
    like_the_host(&kernel_xxh64, NULL, false);
}

static void grep_as_on_the_host(void **unused)
{
    (void)unused;
    char all[300], much[300];
    memset(all, 'a', sizeof all - 1);
    all[sizeof all - 1] = '\0';
    memcpy(much, all, sizeof much);
    memcpy(much + 20, "needle", 6);
    static const char *const texts[] = {"a", "ab", "abab", "needle", "def\t", "zz"};
    bool few = getenv("TEST_THREADS") != NULL; /* tests/run: the thread sanitizer */
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i += few ? 3 : 1)
        like_the_host(&kernel_grep, texts[i], true);
    like_the_host(&kernel_grep, "\xff\x80", false);
    /* Search for long texts, of which the GPU compares only the start, and for a short one. Each search has the text at another position
     * near the border of two chunks. */
    struct text got = {0}, wanted = {0};
    for (size_t i = 0; i < 40; i += few ? 7 : 1) {
        const char *text = i % 3 ? much : i % 2 ? all : "needle";
        size_t n = strlen(text), len = CHUNK + 1000, at = CHUNK - 150 + 5 * i;
        memset(own, i % 2 ? 'a' : 'b', len);
        own[CHUNK / 2] = own[CHUNK + 600] = '\n';
        memcpy(own + at, text, n);
        struct opened o = open_spans(&kernel_grep, text);
        weft_out out = {take, &wanted};
        weft_span span = {own, len, 0};
        wanted.len = 0;
        assert_int_equal(kernel_grep.run(&span, text, &out), 0);
        assert_true(wanted.len > 0);
        assert_int_equal(run(o.pass, i % 2 ? READ_WHOLE : ATTACHED, len, 0, UINT64_MAX, &got), 0);
        assert_int_equal(got.len, wanted.len);
        assert_memory_equal(got.bytes, wanted.bytes, wanted.len);
        close_spans(o);
    }
    free(got.bytes);
    free(wanted.bytes);
}

/* An input that cannot be read, at any position: the run fails, the GPU does not count as failed, and the pass can be used again. */
static void an_input_that_fails(void **unused)
{
    (void)unused;
    struct text got = {0};
    fill(own, MOST, false);
    struct opened o = open_spans(&kernel_histogram, NULL);
    for (uint64_t at = 0; at < MOST; at += CHUNK) {
        assert_int_equal(run(o.pass, READ_PARTS, MOST, 0, at, &got), -EIO);
        assert_string_equal(weft_error(), "the input is gone");
        assert_int_equal(got.len, 0);
        assert_false(gpu_spans_failed(o.spans));
    }
    assert_int_equal(run(o.pass, READ_PARTS, MOST, 0, UINT64_MAX, &got), 0);
    close_spans(o);
    free(got.bytes);
}

static void what_is_refused(void **unused)
{
    (void)unused;
    static const weft_kernel other = {.bytes = sizeof other, .name = "wc", .help = "another"};
    struct gpu_spans *s;
    struct gpu_pass *p;
    char name[16];
    uint32_t count;
    assert_true(gpu_spans_has(&kernel_wc));
    assert_false(gpu_spans_has(&other));
    assert_int_equal(gpu_spans_open("host", &other, NULL, &s), -ENOTSUP);
    assert_null(s);
    assert_int_equal(gpu_spans_open("host", &kernel_grep, "", &s), -EINVAL);
    assert_int_equal(gpu_spans_open("cuda:99", &kernel_wc, NULL, &s), -ENODEV);
    assert_int_equal(gpu_spans_open("host", &kernel_wc, NULL, &s), 0);
    assert_int_equal(gpu_pass_open(s, pool, &p), -EINVAL); /* refused: the memory is not attached */
    assert_null(p);
    assert_int_equal(gpu_spans_attach(s, pool, gpu_pass_bytes() - 1), 0);
    assert_int_equal(gpu_pass_open(s, pool, &p), -EINVAL);
    gpu_spans_close(s);
    if (gpu_spans_look(0, name, &count)) { /* this machine has no GPU */
        assert_int_equal(count, 0);
        assert_true(weft_error()[0]);
    }
}

int main(void)
{
    size_t page = 4096, bytes = gpu_pass_bytes() + MOST;
    pool = aligned_alloc(page, (bytes + page - 1) / page * page);
    own = malloc(MOST);
    if (!pool || !own)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wc_as_on_the_host),   cmocka_unit_test(histogram_as_on_the_host), cmocka_unit_test(xxh64_as_on_the_host),
        cmocka_unit_test(grep_as_on_the_host), cmocka_unit_test(an_input_that_fails),      cmocka_unit_test(what_is_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(pool);
    free(own);
    return failed;
}
