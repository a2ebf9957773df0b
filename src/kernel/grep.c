/* SPDX-License-Identifier: MIT
 *
 * Prints the lines that contain a text, as `LC_ALL=C grep -aF TEXT` does. Searches the whole span for the text, and looks for the ends of
 * lines only around matches.
 */
#include "kernel/kernel.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* Looks for positions where the first and the last byte of the text match. This costs two loads and two compares for 32 positions, however
 * long the text is. */
__attribute__((target("avx2"))) static const uint8_t *find_avx2(const uint8_t *hay, size_t len, const uint8_t *text, size_t n)
{
    const __m256i first = _mm256_set1_epi8((char)text[0]), last = _mm256_set1_epi8((char)text[n - 1]);
    size_t i = 0;
    for (; i + n - 1 + 32 <= len; i += 32) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(hay + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(hay + i + n - 1));
        uint32_t hits = (uint32_t)_mm256_movemask_epi8(_mm256_and_si256(_mm256_cmpeq_epi8(a, first), _mm256_cmpeq_epi8(b, last)));
        for (; hits; hits &= hits - 1) {
            const uint8_t *at = hay + i + __builtin_ctz(hits);
            if (n <= 2 || memcmp(at + 1, text + 1, n - 2) == 0)
                return at;
        }
    }
    return memmem(hay + i, len - i, text, n);
}
#endif

static const uint8_t *grep_find(const uint8_t *hay, size_t len, const uint8_t *text, size_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return find_avx2(hay, len, text, n);
#endif
    return memmem(hay, len, text, n);
}

int kernel_grep_lines(const weft_span *in, const char *arg, size_t from, size_t to, size_t *next, weft_out *out)
{
    const uint8_t *text = (const uint8_t *)arg, *end = in->bytes + in->len, *hit;
    size_t n = strlen(arg), start = from > *next ? from : *next;
    while (start < to && n <= in->len - start) {
        size_t most = to - start < in->len - start - (n - 1) ? to - start + (n - 1) : in->len - start;
        hit = grep_find(in->bytes + start, most, text, n);
        if (!hit)
            break;
        const uint8_t *line = hit, *first = in->bytes + *next;
        while (line > first && line[-1] != '\n')
            line--;
        const uint8_t *newline = memchr(hit, '\n', (size_t)(end - hit));
        const uint8_t *after = newline ? newline + 1 : end;
        int rc = weft_out_write(out, line, (size_t)(after - line));
        if (!rc && !newline)
            rc = weft_out_write(out, "\n", 1);
        if (rc)
            return rc;
        *next = start = (size_t)(after - in->bytes);
    }
    return 0;
}

int kernel_grep_check(const char *arg)
{
    if (!arg || !arg[0])
        return base_fail(-EINVAL, "kernel grep: no text to look for; give one, as in grep:TEXT");
    if (strchr(arg, '\n'))
        return base_fail(-EINVAL, "kernel grep: the text contains a newline, so no line can match: give a text without newlines");
    return 0;
}

static int grep_run(const weft_span *in, const char *arg, weft_out *out)
{
    size_t next = 0;
    int rc = kernel_grep_check(arg);
    return rc ? rc : kernel_grep_lines(in, arg, 0, in->len, &next, out);
}

const weft_kernel kernel_grep = {
    .bytes = sizeof(weft_kernel),
    .name = "grep",
    .help = "the lines that contain TEXT, as grep -F prints them",
    .takes_arg = true,
    .whole_lines = true,
    .run = grep_run,
};
