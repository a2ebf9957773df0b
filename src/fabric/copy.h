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

void copy_large(void *dst, const void *src, size_t len);

static inline void copy_bytes(void *dst, const void *src, size_t len)
{
    if (BASE_LIKELY(len == 8)) {
        /* one store: a reader of an aligned word never sees half of it */
        uint64_t v;
        memcpy(&v, src, 8);
        if (BASE_LIKELY(((uintptr_t)dst & 7) == 0))
            __atomic_store_n((uint64_t *)dst, v, __ATOMIC_RELAXED);
        else
            memcpy(dst, &v, 8);
    } else if (len < COPY_LARGE) {
        memcpy(dst, src, len);
    } else {
        copy_large(dst, src, len);
    }
}

#endif
