/* SPDX-License-Identifier: MIT
 *
 * Counts lines, words and bytes, as `LC_ALL=C wc` does, many bytes at a time.
 *
 * In POSIX, and in GNU wc since 9.5, a word is a run of bytes that are not white space. In GNU wc up to 9.4 the run must also contain a
 * printable ASCII byte. This kernel uses the rule of the wc on the machine where it is built (option wc_words), because users compare the
 * results.
 *
 * One addition counts the words in 64 bytes, with either rule. `run` is the mask of the bytes that are not white space. `mark` has the bits
 * of those bytes that make their run a word. In run + mark, a run that contains a mark carries into the bit after the run's end. After
 * other runs that bit stays 0. So popcount((run + mark) & ~run) is the number of words that end in these 64 bytes. If the last run contains
 * a mark and reaches the end, the addition has a carry, which is added to the next 64 bytes.
 *
 *      run   ..111.11   (bit 0 at the right)
 *      mark  ....1..1
 *      sum   .1...1..   (sum & ~run is the same: one bit for each of the two words)
 */
#include "kernel/kernel.h"
#include "kernel/wc.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

struct wc_state {
    uint64_t lines, words, bytes, open;
};

struct wc_count {
    uint64_t lines, ended;
    unsigned char carry; /* 1: the bytes so far end in a run with a mark; this word is not counted yet */
};

static void count_bytes(struct wc_count *n, const uint8_t *p, size_t len, bool printable)
{
    for (size_t i = 0; i < len; i++) {
        n->lines += p[i] == '\n';
        if (kernel_wc_space(p[i])) {
            n->ended += n->carry;
            n->carry = 0;
        } else {
            n->carry |= kernel_wc_mark(p[i], printable);
        }
    }
}

#if defined(__x86_64__)

static inline __attribute__((always_inline)) void count_masks(struct wc_count *n, uint64_t newline, uint64_t run, uint64_t mark)
{
    unsigned long long sum;
    n->carry = _addcarry_u64(n->carry, run, mark, &sum);
    n->lines += (uint64_t)__builtin_popcountll(newline);
    n->ended += (uint64_t)__builtin_popcountll(sum & ~run);
}

__attribute__((target("avx512bw,avx512f,popcnt"))) static void count_avx512(struct wc_count *out, const uint8_t *p, size_t len,
                                                                            bool printable)
{
    struct wc_count n = *out;
    size_t i = 0;
    const __m512i tab = _mm512_set1_epi8('\t'), width = _mm512_set1_epi8('\r' - '\t'), blank = _mm512_set1_epi8(' ');
    const __m512i line = _mm512_set1_epi8('\n'), bang = _mm512_set1_epi8('!'), range = _mm512_set1_epi8('~' - '!');
    for (; i + 64 <= len; i += 64) {
        __m512i v = _mm512_loadu_si512((const void *)(p + i));
        uint64_t space = _mm512_cmpeq_epi8_mask(v, blank) | _mm512_cmple_epu8_mask(_mm512_sub_epi8(v, tab), width);
        uint64_t mark = printable ? _mm512_cmple_epu8_mask(_mm512_sub_epi8(v, bang), range) : ~space;
        count_masks(&n, _mm512_cmpeq_epi8_mask(v, line), ~space, mark);
    }
    count_bytes(&n, p + i, len - i, printable);
    *out = n;
}

__attribute__((target("avx2"))) static inline uint64_t mask_avx2(__m256i low, __m256i high)
{
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

/* Mask of the bytes of `a` that are at most the bytes of `b`, unsigned. */
__attribute__((target("avx2"))) static inline __m256i at_most_avx2(__m256i a, __m256i b)
{
    return _mm256_cmpeq_epi8(_mm256_min_epu8(a, b), a);
}

__attribute__((target("avx2,popcnt"))) static void count_avx2(struct wc_count *out, const uint8_t *p, size_t len, bool printable)
{
    struct wc_count n = *out;
    size_t i = 0;
    const __m256i tab = _mm256_set1_epi8('\t'), width = _mm256_set1_epi8('\r' - '\t'), blank = _mm256_set1_epi8(' ');
    const __m256i line = _mm256_set1_epi8('\n'), bang = _mm256_set1_epi8('!'), range = _mm256_set1_epi8('~' - '!');
    for (; i + 64 <= len; i += 64) {
        __m256i v[2], space[2], mark[2];
        for (int k = 0; k < 2; k++) {
            v[k] = _mm256_loadu_si256((const __m256i *)(const void *)(p + i + 32 * k));
            space[k] = _mm256_or_si256(_mm256_cmpeq_epi8(v[k], blank), at_most_avx2(_mm256_sub_epi8(v[k], tab), width));
            mark[k] = printable ? at_most_avx2(_mm256_sub_epi8(v[k], bang), range) : v[k];
        }
        uint64_t run = ~mask_avx2(space[0], space[1]);
        count_masks(&n, mask_avx2(_mm256_cmpeq_epi8(v[0], line), _mm256_cmpeq_epi8(v[1], line)), run,
                    printable ? mask_avx2(mark[0], mark[1]) : run);
    }
    count_bytes(&n, p + i, len - i, printable);
    *out = n;
}

#endif

static void wc_count_bytes(struct wc_count *n, const uint8_t *p, size_t len, bool printable)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("popcnt")) {
        count_avx512(n, p, len, printable);
        return;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt")) {
        count_avx2(n, p, len, printable);
        return;
    }
#endif
    count_bytes(n, p, len, printable);
}

static int wc_run(const weft_span *in, const char *arg, weft_out *out)
{
    (void)arg;
    const bool printable = WEFT_WC_PRINTABLE;
    struct wc_count n = {0};
    wc_count_bytes(&n, in->bytes, in->len, printable);
    struct kernel_wc_piece piece = {.lines = n.lines, .bytes = in->len, .ended = n.ended, .start = in->offset == 0, .tail = n.carry};
    size_t i = 0;
    for (; i < in->len && !kernel_wc_space(in->bytes[i]); i++)
        piece.head |= kernel_wc_mark(in->bytes[i], printable);
    piece.space = i < in->len;
    return weft_out_write(out, &piece, sizeof piece);
}

static int wc_fold(void *state, const void *output, size_t len)
{
    struct wc_state *s = state;
    struct kernel_wc_piece piece;
    if (len != sizeof piece)
        return base_fail(-EPROTO,
                         "kernel wc: the result of a piece has %zu bytes instead of %zu; run the same version of weft on all hosts", len,
                         sizeof piece);
    memcpy(&piece, output, sizeof piece);
    if (piece.start) { /* the first piece of an input: the previous input's last word ends */
        s->words += s->open;
        s->open = 0;
    }
    s->lines += piece.lines;
    s->bytes += piece.bytes;
    if (piece.space) {
        /* The piece's first run continues the open word, so count both as one word. */
        s->words += piece.ended - piece.head + (s->open | piece.head);
        s->open = piece.tail;
    } else {
        s->open |= piece.head;
    }
    return 0;
}

static int wc_finish(const void *state, weft_out *out)
{
    const struct wc_state *s = state;
    char line[80];
    int n = snprintf(line, sizeof line, "%7llu %7llu %7llu\n", (unsigned long long)s->lines, (unsigned long long)(s->words + s->open),
                     (unsigned long long)s->bytes);
    return weft_out_write(out, line, (size_t)n);
}

const weft_kernel kernel_wc = {
    .bytes = sizeof(weft_kernel),
    .name = "wc",
    .help = "lines, words and bytes, as wc prints them in the C locale",
    .run = wc_run,
    .state_bytes = sizeof(struct wc_state),
    .fold = wc_fold,
    .finish = wc_finish,
};
