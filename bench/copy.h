/* SPDX-License-Identifier: MIT
 *
 * The ways this machine can copy memory with one thread. The best of them, between two shared mappings, is the
 * limit that a put or get over shared memory can reach.
 */
#ifndef WEFT_BENCH_COPY_H
#define WEFT_BENCH_COPY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

struct copy_method {
    const char *name;
    bool (*works)(void);
    void (*copy)(uint8_t *to, const uint8_t *from, size_t len);
};

static inline uint8_t *copy_mapping(size_t len)
{
    uint8_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    memset(p, 1, len);
    return p;
}

static bool copy_always(void)
{
    return true;
}

static void copy_library(uint8_t *to, const uint8_t *from, size_t len)
{
    memcpy(to, from, len);
    __asm__ volatile("" : : "r"(to) : "memory"); /* the copy must happen */
}

#if defined(__x86_64__)
static void copy_string(uint8_t *to, const uint8_t *from, size_t len)
{
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len) : : "memory");
}

static bool copy_has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}

static bool copy_has_avx512(void)
{
    return __builtin_cpu_supports("avx512f");
}

/* Copies with stores that bypass the caches. `to` is page aligned and `len` a multiple of 256, as all sizes of the benchmark are. */
__attribute__((target("avx2"))) static void copy_stream32(uint8_t *to, const uint8_t *from, size_t len)
{
    for (size_t i = 0; i < len; i += 128) {
        __m256i a = _mm256_loadu_si256((const void *)(from + i));
        __m256i b = _mm256_loadu_si256((const void *)(from + i + 32));
        __m256i c = _mm256_loadu_si256((const void *)(from + i + 64));
        __m256i d = _mm256_loadu_si256((const void *)(from + i + 96));
        _mm256_stream_si256((void *)(to + i), a);
        _mm256_stream_si256((void *)(to + i + 32), b);
        _mm256_stream_si256((void *)(to + i + 64), c);
        _mm256_stream_si256((void *)(to + i + 96), d);
    }
    _mm_sfence();
}

__attribute__((target("avx2"))) static void copy_plain32(uint8_t *to, const uint8_t *from, size_t len)
{
    for (size_t i = 0; i < len; i += 128) {
        __m256i a = _mm256_loadu_si256((const void *)(from + i));
        __m256i b = _mm256_loadu_si256((const void *)(from + i + 32));
        __m256i c = _mm256_loadu_si256((const void *)(from + i + 64));
        __m256i d = _mm256_loadu_si256((const void *)(from + i + 96));
        _mm256_store_si256((void *)(to + i), a);
        _mm256_store_si256((void *)(to + i + 32), b);
        _mm256_store_si256((void *)(to + i + 64), c);
        _mm256_store_si256((void *)(to + i + 96), d);
    }
}

/* Does the same as copy_stream32(), but copies two lines of each of four pages in turn; `len` is one page, or a multiple of four pages. */
__attribute__((target("avx2"))) static void copy_pages32(uint8_t *to, const uint8_t *from, size_t len)
{
    size_t pages = len < 16384 ? len : 16384;
    for (size_t at = 0; at < len; at += pages)
        for (size_t i = 0; i < 4096; i += 128)
            for (size_t page = 0; page < pages; page += 4096)
                for (size_t k = at + page + i; k < at + page + i + 128; k += 64) {
                    __m256i a = _mm256_loadu_si256((const void *)(from + k));
                    __m256i b = _mm256_loadu_si256((const void *)(from + k + 32));
                    _mm256_stream_si256((void *)(to + k), a);
                    _mm256_stream_si256((void *)(to + k + 32), b);
                }
    _mm_sfence();
}

__attribute__((target("avx512f"))) static void copy_pages64(uint8_t *to, const uint8_t *from, size_t len)
{
    size_t pages = len < 16384 ? len : 16384;
    for (size_t at = 0; at < len; at += pages)
        for (size_t i = 0; i < 4096; i += 128)
            for (size_t page = 0; page < pages; page += 4096) {
                size_t k = at + page + i;
                __m512i a = _mm512_loadu_si512((const void *)(from + k));
                __m512i b = _mm512_loadu_si512((const void *)(from + k + 64));
                _mm512_stream_si512((void *)(to + k), a);
                _mm512_stream_si512((void *)(to + k + 64), b);
            }
    _mm_sfence();
}

__attribute__((target("avx512f"))) static void copy_stream64(uint8_t *to, const uint8_t *from, size_t len)
{
    for (size_t i = 0; i < len; i += 256) {
        __m512i a = _mm512_loadu_si512((const void *)(from + i));
        __m512i b = _mm512_loadu_si512((const void *)(from + i + 64));
        __m512i c = _mm512_loadu_si512((const void *)(from + i + 128));
        __m512i d = _mm512_loadu_si512((const void *)(from + i + 192));
        _mm512_stream_si512((void *)(to + i), a);
        _mm512_stream_si512((void *)(to + i + 64), b);
        _mm512_stream_si512((void *)(to + i + 128), c);
        _mm512_stream_si512((void *)(to + i + 192), d);
    }
    _mm_sfence();
}
#endif

static const struct copy_method copy_methods[] = {
    {"memcpy", copy_always, copy_library},
#if defined(__x86_64__)
    {"rep movsb", copy_always, copy_string},
    {"avx2", copy_has_avx2, copy_plain32},
    {"avx2 non-temporal", copy_has_avx2, copy_stream32},
    {"avx2 non-temporal, four pages", copy_has_avx2, copy_pages32},
    {"avx512 non-temporal", copy_has_avx512, copy_stream64},
    {"avx512 non-temporal, four pages", copy_has_avx512, copy_pages64},
#endif
    {NULL, NULL, NULL},
};

#endif
