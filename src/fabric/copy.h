/* SPDX-License-Identifier: MIT
 *
 * Copies between mapped pools. Small ones are the compiler's memcpy; large ones are written without reading what they
 * overwrite, where the processor offers that.
 */
#ifndef WEFT_COPY_H
#define WEFT_COPY_H

#include <string.h>

#include "base/base.h"

#define COPY_LARGE (UINT64_C(32) << 10) /* bytes; from here on copy_large() decides */

/* Nodes may read words that others write at the same time, and check afterwards: the thread sanitizer is shown it. */
#if defined(__SANITIZE_THREAD__)
#define COPY_BY_WORDS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define COPY_BY_WORDS 1
#endif
#endif
#if !defined(COPY_BY_WORDS)
#define COPY_BY_WORDS 0
#endif

void copy_large(void *dst, const void *src, size_t len);

static inline void copy_bytes(void *dst, const void *src, size_t len)
{
    if (BASE_LIKELY(len == 8)) {
        /* one load and one store: nobody ever sees half of an aligned word */
        uint64_t v;
        if (BASE_LIKELY(((uintptr_t)src & 7) == 0))
            v = __atomic_load_n((const uint64_t *)src, __ATOMIC_RELAXED);
        else
            memcpy(&v, src, 8);
        if (BASE_LIKELY(((uintptr_t)dst & 7) == 0))
            __atomic_store_n((uint64_t *)dst, v, __ATOMIC_RELAXED);
        else
            memcpy(dst, &v, 8);
    } else if (COPY_BY_WORDS && len < COPY_LARGE && (((uintptr_t)src | (uintptr_t)dst | len) & 7) == 0) {
        for (size_t i = 0; i < len / 8; i++)
            __atomic_store_n((uint64_t *)dst + i, __atomic_load_n((const uint64_t *)src + i, __ATOMIC_RELAXED),
                             __ATOMIC_RELAXED);
    } else if (len < COPY_LARGE) {
        memcpy(dst, src, len);
    } else {
        copy_large(dst, src, len);
    }
}

#endif
