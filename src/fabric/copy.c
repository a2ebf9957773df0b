/* SPDX-License-Identifier: MIT
 *
 * Large copies: see copy.h.
 */
#include "fabric/copy.h"

#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* Non-temporal stores of whole cache lines. The loads run four lines ahead of the stores, which keeps enough of
 * them in flight; the fence at the end makes the bytes visible before whatever is stored next. */
__attribute__((target("avx"))) static void stream_avx(uint8_t *dst, const uint8_t *src, size_t len)
{
    size_t head = (64 - ((uintptr_t)dst & 63)) & 63;
    memcpy(dst, src, head);
    dst += head, src += head, len -= head;
    for (; len >= 128; dst += 128, src += 128, len -= 128) {
        _mm_prefetch((const char *)src + 1024, _MM_HINT_NTA);
        _mm_prefetch((const char *)src + 1088, _MM_HINT_NTA);
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)src);
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(src + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(src + 64));
        __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(src + 96));
        _mm256_stream_si256((__m256i *)(void *)dst, a);
        _mm256_stream_si256((__m256i *)(void *)(dst + 32), b);
        _mm256_stream_si256((__m256i *)(void *)(dst + 64), c);
        _mm256_stream_si256((__m256i *)(void *)(dst + 96), d);
    }
    _mm_sfence();
    memcpy(dst, src, len);
}

/* Half of the last cache level: beyond it the target would not stay cached anyway. */
static size_t stream_from(void)
{
    static _Atomic size_t known;
    size_t n = atomic_load_explicit(&known, memory_order_relaxed);
    if (BASE_UNLIKELY(n == 0)) {
        long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
        n = l3 > 0 ? (size_t)l3 / 2 : (size_t)8 << 20;
        if (!__builtin_cpu_supports("avx"))
            n = SIZE_MAX;
        atomic_store_explicit(&known, n, memory_order_relaxed);
    }
    return n;
}

void copy_large(void *dst, const void *src, size_t len)
{
    if (len >= stream_from())
        stream_avx(dst, src, len);
    else
        memcpy(dst, src, len);
}

#else

void copy_large(void *dst, const void *src, size_t len)
{
    memcpy(dst, src, len);
}

#endif
