/* SPDX-License-Identifier: MIT
 *
 * Atomics on a word of this node's memory, or of memory that is mapped here.
 */
#ifndef WEFT_ATOMIC_H
#define WEFT_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum fab_atomic { FAB_ADD, FAB_SWAP, FAB_CAS }; /* goes over the wire as it is */

/* `a`: what is added, stored, or expected; `b`: what FAB_CAS stores then. `*before`: what was there. False: there is no such kind. */
static inline bool fab_atomic_do(uint32_t kind, uint64_t *word, uint64_t a, uint64_t b, uint64_t *before)
{
    switch (kind) {
    case FAB_ADD:
        *before = __atomic_fetch_add(word, a, __ATOMIC_SEQ_CST);
        return true;
    case FAB_SWAP:
        *before = __atomic_exchange_n(word, a, __ATOMIC_SEQ_CST);
        return true;
    case FAB_CAS:
        *before = a;
        __atomic_compare_exchange_n(word, before, b, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        return true;
    default:
        return false;
    }
}

/* After a read-modify-write with seq_cst: x86 needs no more to order it before the next load; others do. */
static inline void fab_fence_after_rmw(void)
{
#if defined(__x86_64__)
    atomic_signal_fence(memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

#endif
