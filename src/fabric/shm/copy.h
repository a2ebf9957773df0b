/* SPDX-License-Identifier: MIT
 *
 * Copies between mapped pools. Small ones are the compiler's memcpy; large ones go the way that was measured to be the
 * fastest for their size on this machine (copy.c), and the largest by several threads (copy_team.c).
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

/* Threads of a node that help with its largest copies. They are started by the first such copy, sleep between copies, and end
 * with copy_team_free(). Any thread may call copy_by_team(); one copy at a time has the helpers, others go alone meanwhile.
 * When it returns the whole copy has happened, as if the caller had made it. */
#define COPY_TEAM_LEAST (UINT64_C(4) << 20) /* bytes; from here on helpers pay for being woken */
#define COPY_TEAM_MAX   16u
struct copy_team;
int copy_team_new(struct copy_team **out, uint32_t threads, int64_t spin_ns); /* threads: the caller included, from 2 on */
void copy_team_free(struct copy_team *t); /* NULL allowed; nobody copies any more */
void copy_by_team(struct copy_team *t, void *dst, const void *src, size_t len);
/* How many threads copy together by default, where so many nodes share so many processors: 1 for no helpers. */
uint32_t copy_team_default(uint32_t processors, uint32_t nodes_here);

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
