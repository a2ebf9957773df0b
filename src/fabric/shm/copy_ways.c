/* SPDX-License-Identifier: MIT
 *
 * The ways to copy: see copy_ways.h. Each aligns the destination, in order to write whole cache lines: to write a part of a line, the
 * processor first reads the line from memory. Ways with non-temporal stores end with a fence, which makes the data visible before later
 * stores.
 */
#include "fabric/shm/copy_ways.h"

#include <string.h>

#define LINE  ((size_t)64)
#define PAGE  ((size_t)4096)
#define PAGES ((size_t)4) /* pages copied in turn; see FOUR_PAGES */

static bool always(void)
{
    return true;
}

static void copy_by_library(uint8_t *dst, const uint8_t *src, size_t len)
{
    memcpy(dst, src, len);
}

#if defined(__x86_64__) || defined(__aarch64__)
/* Copies up to the next cache line of the destination. Returns the number of bytes. */
static size_t to_line(uint8_t *dst, const uint8_t *src, size_t len)
{
    size_t head = -(uintptr_t)dst & (LINE - 1);
    head = head < len ? head : len;
    memcpy(dst, src, head);
    return head;
}

/* Body of a way: copies STEP bytes at a time by `step`, to an aligned destination. */
#define IN_ORDER(STEP, step)                 \
    size_t at = to_line(dst, src, len);      \
    for (; len - at >= (STEP); at += (STEP)) \
        step(dst + at, src + at);

/* Body of a way: copies a step of each of four pages in turn, so that more memory banks and prefetchers work at the same time. Copies the
 * rest in order. */
#define FOUR_PAGES(STEP, step)                                       \
    size_t at = to_line(dst, src, len);                              \
    for (; len - at >= PAGES * PAGE; at += PAGES * PAGE)             \
        for (size_t i = 0; i < PAGE; i += (STEP))                    \
            for (size_t page = 0; page < PAGES * PAGE; page += PAGE) \
                step(dst + at + page + i, src + at + page + i);      \
    for (; len - at >= (STEP); at += (STEP))                         \
        step(dst + at, src + at);
#endif

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2   __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f")))

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f");
}

static void string_move(uint8_t *dst, const uint8_t *src, size_t len)
{
    size_t head = to_line(dst, src, len);
    dst += head, src += head, len -= head;
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(len) : : "memory");
}

AVX2 static inline __m256i load32(const uint8_t *src)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)src);
}

/* All loads come before the first store, because a store can hold up a later load at the same page offset. */
AVX2 static inline void store_128(uint8_t *dst, const uint8_t *src)
{
    __m256i a = load32(src), b = load32(src + 32), c = load32(src + 64), d = load32(src + 96);
    _mm256_store_si256((__m256i *)(void *)dst, a);
    _mm256_store_si256((__m256i *)(void *)(dst + 32), b);
    _mm256_store_si256((__m256i *)(void *)(dst + 64), c);
    _mm256_store_si256((__m256i *)(void *)(dst + 96), d);
}

AVX2 static inline void stream_128(uint8_t *dst, const uint8_t *src)
{
    __m256i a = load32(src), b = load32(src + 32), c = load32(src + 64), d = load32(src + 96);
    _mm256_stream_si256((__m256i *)(void *)dst, a);
    _mm256_stream_si256((__m256i *)(void *)(dst + 32), b);
    _mm256_stream_si256((__m256i *)(void *)(dst + 64), c);
    _mm256_stream_si256((__m256i *)(void *)(dst + 96), d);
}

AVX512 static inline void stream_lines_128(uint8_t *dst, const uint8_t *src)
{
    __m512i a = _mm512_loadu_si512((const void *)src), b = _mm512_loadu_si512((const void *)(src + 64));
    _mm512_stream_si512((__m512i *)(void *)dst, a);
    _mm512_stream_si512((__m512i *)(void *)(dst + 64), b);
}

AVX2 static void avx2(uint8_t *dst, const uint8_t *src, size_t len)
{
    IN_ORDER(128, store_128)
    memcpy(dst + at, src + at, len - at);
}

AVX2 static void avx2_stream(uint8_t *dst, const uint8_t *src, size_t len)
{
    IN_ORDER(128, stream_128)
    _mm_sfence();
    memcpy(dst + at, src + at, len - at);
}

AVX2 static void avx2_stream_pages(uint8_t *dst, const uint8_t *src, size_t len)
{
    FOUR_PAGES(128, stream_128)
    _mm_sfence();
    memcpy(dst + at, src + at, len - at);
}

AVX512 static void avx512_stream_pages(uint8_t *dst, const uint8_t *src, size_t len)
{
    FOUR_PAGES(128, stream_lines_128)
    _mm_sfence();
    memcpy(dst + at, src + at, len - at);
}

const struct copy_way copy_ways[COPY_WAYS_MAX + 1] = {
    {"memcpy", always, copy_by_library, false},
    {"rep movsb", always, string_move, false},
    {"AVX2", has_avx2, avx2, false},
    {"AVX-512 non-temporal, four pages", has_avx512, avx512_stream_pages, true},
    {"AVX2 non-temporal, four pages", has_avx2, avx2_stream_pages, true},
    {"AVX2 non-temporal", has_avx2, avx2_stream, true},
};

#elif defined(__aarch64__)

/* No fence: STNP is only a hint, and for Arm's memory model these are ordinary stores. */
static inline void stream_128(uint8_t *dst, const uint8_t *src)
{
    __asm__ volatile("ldp q0, q1, [%1]\n\t"
                     "ldp q2, q3, [%1, #32]\n\t"
                     "ldp q4, q5, [%1, #64]\n\t"
                     "ldp q6, q7, [%1, #96]\n\t"
                     "stnp q0, q1, [%0]\n\t"
                     "stnp q2, q3, [%0, #32]\n\t"
                     "stnp q4, q5, [%0, #64]\n\t"
                     "stnp q6, q7, [%0, #96]"
                     :
                     : "r"(dst), "r"(src)
                     : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "memory");
}

static inline void store_128(uint8_t *dst, const uint8_t *src)
{
    __asm__ volatile("ldp q0, q1, [%1]\n\t"
                     "ldp q2, q3, [%1, #32]\n\t"
                     "ldp q4, q5, [%1, #64]\n\t"
                     "ldp q6, q7, [%1, #96]\n\t"
                     "stp q0, q1, [%0]\n\t"
                     "stp q2, q3, [%0, #32]\n\t"
                     "stp q4, q5, [%0, #64]\n\t"
                     "stp q6, q7, [%0, #96]"
                     :
                     : "r"(dst), "r"(src)
                     : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "memory");
}

static void neon(uint8_t *dst, const uint8_t *src, size_t len)
{
    IN_ORDER(128, store_128)
    memcpy(dst + at, src + at, len - at);
}

static void neon_stream(uint8_t *dst, const uint8_t *src, size_t len)
{
    IN_ORDER(128, stream_128)
    memcpy(dst + at, src + at, len - at);
}

static void neon_stream_pages(uint8_t *dst, const uint8_t *src, size_t len)
{
    FOUR_PAGES(128, stream_128)
    memcpy(dst + at, src + at, len - at);
}

const struct copy_way copy_ways[COPY_WAYS_MAX + 1] = {
    {"memcpy", always, copy_by_library, false},
    {"NEON", always, neon, false},
    {"NEON non-temporal, four pages", always, neon_stream_pages, true},
    {"NEON non-temporal", always, neon_stream, true},
};

#else

const struct copy_way copy_ways[COPY_WAYS_MAX + 1] = {
    {"memcpy", always, copy_by_library, false},
};

#endif
