/* SPDX-License-Identifier: MIT
 *
 * Large copies: see copy.h.
 *
 * Measured between two shared mappings on a Zen 5 core, best of many, GB/s (memcpy / rep movsb / non-temporal):
 * 64 KiB 143/143/49, 1 MiB 66/83/45, 8 MiB 68/73/44, 16 MiB 37/52/42, 64 MiB 20/27/27. The processor's own string
 * move is never behind where it is fast (FSRM), so it is used there. Elsewhere the C library's copy serves what fits
 * in the caches, and non-temporal stores what does not.
 */
#include "fabric/copy.h"


#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <cpuid.h>
#include <immintrin.h>

enum { UNKNOWN, STRING_MOVE, STREAM, LIBRARY };

static void string_move(uint8_t *dst, const uint8_t *src, size_t len)
{
    /* Whole destination lines: a misaligned start would make every line be read first. */
    size_t head = (64 - ((uintptr_t)dst & 63)) & 63;
    memcpy(dst, src, head);
    dst += head, src += head, len -= head;
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(len) : : "memory");
}

/* The fence at the end makes the bytes visible before whatever is stored next. */
__attribute__((target("avx"))) static void stream(uint8_t *dst, const uint8_t *src, size_t len)
{
    size_t head = (64 - ((uintptr_t)dst & 63)) & 63;
    memcpy(dst, src, head);
    dst += head, src += head, len -= head;
    for (; len >= 128; dst += 128, src += 128, len -= 128) {
        for (unsigned i = 0; i < 128; i += 32)
            _mm256_stream_si256((__m256i *)(void *)(dst + i), _mm256_loadu_si256((const __m256i *)(const void *)(src + i)));
    }
    _mm_sfence();
    memcpy(dst, src, len);
}

static _Atomic int way;
static size_t stream_from;

static BASE_COLD int choose(void)
{
    unsigned a, b, c, d;
    int w = LIBRARY;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & (1u << 4))) { /* FSRM */
        w = STRING_MOVE;
    } else if (__builtin_cpu_supports("avx")) {
        uint64_t l3 = base_cache_bytes();
        stream_from = l3 ? (size_t)l3 / 2 : (size_t)8 << 20;
        w = STREAM;
    }
    atomic_store_explicit(&way, w, memory_order_release); /* stream_from before it */
    return w;
}

void copy_large(void *dst, const void *src, size_t len)
{
    int w = atomic_load_explicit(&way, memory_order_acquire);
    if (BASE_UNLIKELY(w == UNKNOWN))
        w = choose();
    if (w == STRING_MOVE)
        string_move(dst, src, len);
    else if (w == STREAM && len >= stream_from)
        stream(dst, src, len);
    else
        memcpy(dst, src, len);
}

#else

void copy_large(void *dst, const void *src, size_t len)
{
    memcpy(dst, src, len);
}

#endif
