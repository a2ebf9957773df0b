/* SPDX-License-Identifier: MIT
 *
 * Memory of this host that other nodes may read and write at the same time: atomics on a word, and small copies.
 */
#ifndef WEFT_ATOMIC_H
#define WEFT_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/base.h"

enum fab_atomic { FAB_ADD, FAB_SWAP, FAB_CAS }; /* sent over the wire as these numbers */

/* `a`: the value to add, to store, or to compare with; `b`: what FAB_CAS stores if the word equals `a`. `*before` gets the former value.
 * Returns false if the kind is unknown. */
static inline bool fab_atomic_do(uint32_t kind, uint64_t *word, uint64_t a, uint64_t b, uint64_t *before)
{
    switch (kind) {
    case FAB_ADD: *before = __atomic_fetch_add(word, a, __ATOMIC_SEQ_CST); return true;
    case FAB_SWAP: *before = __atomic_exchange_n(word, a, __ATOMIC_SEQ_CST); return true;
    case FAB_CAS:
        *before = a;
        __atomic_compare_exchange_n(word, before, b, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        return true;
    default: return false;
    }
}

/* Orders an atomic read-modify-write (seq_cst) before the next load. x86 needs no instruction for this; other processors need a fence. */
static inline void fab_fence_after_rmw(void)
{
#if defined(__x86_64__)
    atomic_signal_fence(memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Whether fab_copy_little() copies words by atomic loads and stores. It does so in builds with the thread sanitizer. A node may read words
 * while others write them, and checks afterwards what it has read; the sanitizer would report a race there. */
#define FAB_COPY_BY_WORDS BASE_THREAD_SANITIZER
/* acquire with the sanitizer, which does not understand fab_fence_after_get() */
#define FAB_COPY_LOAD (BASE_THREAD_SANITIZER ? __ATOMIC_ACQUIRE : __ATOMIC_RELAXED)

/* Orders the loads of a get before all later loads: a program may get a signal, and then the bytes that came before it. x86 needs no
 * instruction for this. */
static inline void fab_fence_after_get(void)
{
    atomic_thread_fence(memory_order_acquire);
}

static inline void fab_copy_little(void *dst, const void *src, size_t len)
{
    if (BASE_LIKELY(len == 8)) {
        /* one load and one store: no other thread sees an aligned word half written */
        uint64_t v;
        if (BASE_LIKELY(((uintptr_t)src & 7) == 0))
            v = __atomic_load_n((const uint64_t *)src, FAB_COPY_LOAD);
        else
            memcpy(&v, src, 8);
        if (BASE_LIKELY(((uintptr_t)dst & 7) == 0))
            __atomic_store_n((uint64_t *)dst, v, __ATOMIC_RELAXED);
        else
            memcpy(dst, &v, 8);
    } else if (FAB_COPY_BY_WORDS && (((uintptr_t)src | (uintptr_t)dst | len) & 7) == 0) {
        for (size_t i = 0; i < len / 8; i++)
            __atomic_store_n((uint64_t *)dst + i, __atomic_load_n((const uint64_t *)src + i, FAB_COPY_LOAD), __ATOMIC_RELAXED);
    } else {
        memcpy(dst, src, len);
    }
}

#endif
