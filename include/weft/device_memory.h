/* SPDX-License-Identifier: MIT
 *
 * The parts of weft/device.h that differ between CUDA, Metal and C: loads and stores with their memory orders, atomics of the device, the
 * clock, a pause. Functions with names that end in `_own` access memory that only the device uses. The other loads and stores access the
 * host's memory, which the node also reads or writes.
 */
#ifndef WEFT_DEVICE_MEMORY_H
#define WEFT_DEVICE_MEMORY_H

#if defined(__METAL_VERSION__)
#define WEFT_DEVICE_METAL 1
#include <metal_stdlib>
#if !defined(NULL)
#define NULL nullptr
#endif
#else
#include <stdbool.h>
#include <stdint.h>

#include "types.h"
#endif

/* Metal's pointers have a kind of memory in their type. WEFT_FAR: memory of the GPU or the host, which threads share. WEFT_NEAR: the
 * thread's own variables. */
#if defined(WEFT_DEVICE_METAL)
#define WEFT_FAR          device
#define WEFT_NEAR         thread
#define WEFT_DEVICE_TURNS 1 /* no call waits: the next kernel continues an unfinished call */
#else
#define WEFT_FAR
#define WEFT_NEAR
#define WEFT_DEVICE_TURNS 0
#endif

#if defined(__CUDACC__)
#define WEFT_DEVICE_CALL static __device__ __forceinline__
#else
#define WEFT_DEVICE_CALL static inline
#endif

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
extern "C" {
#endif

/* 16 bytes that are stored and loaded together. */
typedef struct weft_device_cell {
    uint64_t low, high;
} __attribute__((aligned(16))) weft_device_cell;

#if defined(__CUDACC__)
/* Loads a word that the node writes. Acquire: later reads of this thread see all that the node wrote before this word. */
WEFT_DEVICE_CALL uint64_t weft_device_load(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
WEFT_DEVICE_CALL uint64_t weft_device_load_own(const uint64_t *p) /* loads from the device's own memory; does not order other accesses */
{
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
WEFT_DEVICE_CALL void weft_device_store_own(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/* A word of the device's own memory by which a thread passes on what it has read from the node. A thread that loads the word sees, in its
 * later reads, all that the storing thread had seen before. */
WEFT_DEVICE_CALL uint64_t weft_device_load_passed(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
WEFT_DEVICE_CALL void weft_device_store_passed(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/* Loads from the cache of this thread's multiprocessor: fast, but perhaps an older value. */
WEFT_DEVICE_CALL uint64_t weft_device_load_guess(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.cta.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
WEFT_DEVICE_CALL void weft_device_store_guess(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.cta.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
WEFT_DEVICE_CALL uint32_t weft_device_load_flag(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
WEFT_DEVICE_CALL bool weft_device_raise_flag(
    uint32_t *p) /* changes the word from 0 to 1; false: it was 1. Other threads see the change before this thread's later stores */
{
    return atomicCAS(p, 0u, 1u) == 0;
}
WEFT_DEVICE_CALL void weft_device_store_flag(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
WEFT_DEVICE_CALL uint64_t weft_device_swap_own(uint64_t *p, uint64_t expected, uint64_t desired) /* returns the former value */
{
    return atomicCAS((unsigned long long *)p, (unsigned long long)expected, (unsigned long long)desired);
}
/* Issues weft_device_swap_own() and weft_device_raise_flag() together. Returns the former value of `*p`. `*raised` is true if the flag was
 * 0 before. */
WEFT_DEVICE_CALL uint64_t weft_device_swap_and_raise(uint64_t *p, uint64_t expected, uint64_t desired, uint32_t *flag, bool *raised)
{
    uint64_t was;
    uint32_t flag_was;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], 0, 1;" : "=r"(flag_was) : "l"(flag) : "memory");
    asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(was) : "l"(p), "l"(expected), "l"(desired) : "memory");
    *raised = flag_was == 0;
    return was;
}
WEFT_DEVICE_CALL uint64_t weft_device_add_own(uint64_t *p, uint64_t more) /* returns the former value */
{
    return atomicAdd((unsigned long long *)p, (unsigned long long)more);
}
/* A cell is stored and loaded by one access of 16 bytes, which the bus does not split. */
WEFT_DEVICE_CALL void weft_device_store_cell(weft_device_cell *c, uint64_t low, uint64_t high)
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(c), "l"(low), "l"(high) : "memory");
}
WEFT_DEVICE_CALL void weft_device_load_cell(const weft_device_cell *c, uint64_t *low, uint64_t *high)
{
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(*low), "=l"(*high) : "l"(c) : "memory");
}
WEFT_DEVICE_CALL void weft_device_follow(void) /* orders later reads of this thread after its read of the cell */
{
    __threadfence_system();
}
/* A release: a reader that sees a cell that this thread stores after this call also sees all that the thread wrote before the call. */
WEFT_DEVICE_CALL void weft_device_publish(void)
{
    __threadfence_system();
}
WEFT_DEVICE_CALL void weft_device_tell(uint64_t *p, uint64_t v) /* stores a word that the node reads; does not order other accesses */
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/* Loads several cells. Later reads of this thread are ordered after these loads. If the node changes the cells meanwhile, the result may be
 * a mixture of old and new bytes. So afterwards read a word that shows whether the node has changed them. The loads are plain, because a
 * multiprocessor combines and overlaps plain loads, but serves volatile loads one after another. The thread's last acquire has removed
 * older bytes from the cache. */
WEFT_DEVICE_CALL void weft_device_load_words(const weft_device_cell *c, uint32_t cells, uint64_t *out)
{
    for (uint32_t i = 0; i < cells; i++)
        asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(out[2 * i]), "=l"(out[2 * i + 1]) : "l"(&c[i]) : "memory");
    __threadfence_system();
}
WEFT_DEVICE_CALL int64_t weft_device_now_ns(void)
{
    uint64_t v;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
    return (int64_t)v;
}
/* Pauses before the first read of an answer. If that read comes slightly too early, a second one is needed, and a read of the host's memory
 * takes longer than the host's answer. */
WEFT_DEVICE_CALL void weft_device_first_look(void)
{
    for (long long start = clock64(); clock64() - start < 480;)
        ;
}
#define WEFT_DEVICE_LOOKS 16u /* after so many polls, a wait reads the clock, and sleeps between polls */
WEFT_DEVICE_CALL void weft_device_pause(void)
{
    __nanosleep(200);
}
#elif defined(WEFT_DEVICE_METAL)
/* While a kernel runs, the node neither reads nor writes the memory that kernel and node share (weft/device.metal.h). So loads and stores
 * are plain: the end of the kernel orders them. Threads of a kernel share only words of 32 bits, because Metal has no larger atomics. The
 * atomics are relaxed, because no read of other memory depends on their values. */
WEFT_DEVICE_CALL uint64_t weft_device_load(WEFT_FAR const uint64_t *p)
{
    return *p;
}
WEFT_DEVICE_CALL uint32_t weft_device_load_low(WEFT_FAR const uint64_t *p) /* the lower half of a word */
{
    return metal::atomic_load_explicit((WEFT_FAR const metal::atomic_uint *)p, metal::memory_order_relaxed);
}
WEFT_DEVICE_CALL bool weft_device_swap_low(WEFT_FAR uint64_t *p, uint32_t expected, uint32_t desired) /* may fail spuriously */
{
    return metal::atomic_compare_exchange_weak_explicit((WEFT_FAR metal::atomic_uint *)p, &expected, desired, metal::memory_order_relaxed,
                                                        metal::memory_order_relaxed);
}
WEFT_DEVICE_CALL bool weft_device_raise_flag(WEFT_FAR uint32_t *p) /* from 0 to 1 */
{
    return metal::atomic_exchange_explicit((WEFT_FAR metal::atomic_uint *)p, 1u, metal::memory_order_relaxed) == 0;
}
WEFT_DEVICE_CALL void weft_device_store_flag(WEFT_FAR uint32_t *p, uint32_t v)
{
    metal::atomic_store_explicit((WEFT_FAR metal::atomic_uint *)p, v, metal::memory_order_relaxed);
}
WEFT_DEVICE_CALL void weft_device_store_cell(WEFT_FAR weft_device_cell *c, uint64_t low, uint64_t high)
{
    c->low = low;
    c->high = high;
}
WEFT_DEVICE_CALL void weft_device_load_cell(WEFT_FAR const weft_device_cell *c, WEFT_NEAR uint64_t *low, WEFT_NEAR uint64_t *high)
{
    *low = c->low;
    *high = c->high;
}
WEFT_DEVICE_CALL void weft_device_follow(void)
{
}
WEFT_DEVICE_CALL void weft_device_publish(void)
{
}
WEFT_DEVICE_CALL void weft_device_first_look(void)
{
}
/* A pointer to the byte at `offset` after the address in `*entry`. Reads the entry as a pointer, because Metal cannot convert a number to a
 * pointer. */
WEFT_DEVICE_CALL WEFT_FAR void *weft_device_address(WEFT_FAR const uint64_t *entry, uint64_t offset)
{
    return *(WEFT_FAR uint8_t * WEFT_FAR const *)entry + offset;
}
#else
/* Loads a word that the node writes. Acquire: later reads of this thread see all that the node wrote before this word. */
WEFT_DEVICE_CALL uint64_t weft_device_load(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
WEFT_DEVICE_CALL uint64_t weft_device_load_own(const uint64_t *p) /* loads from the device's own memory */
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
WEFT_DEVICE_CALL void weft_device_store_own(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
/* A word of the device's own memory by which a thread passes on what it has read from the node. A thread that loads the word sees, in its
 * later reads, all that the storing thread had seen before. */
WEFT_DEVICE_CALL uint64_t weft_device_load_passed(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
WEFT_DEVICE_CALL void weft_device_store_passed(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
WEFT_DEVICE_CALL uint64_t weft_device_load_guess(const uint64_t *p) /* perhaps an older value */
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
WEFT_DEVICE_CALL void weft_device_store_guess(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
WEFT_DEVICE_CALL uint32_t weft_device_load_flag(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
WEFT_DEVICE_CALL bool weft_device_raise_flag(
    uint32_t *p) /* changes the word from 0 to 1; false: it was 1. Other threads see the change before this thread's later stores */
{
    uint32_t down = 0;
    return __atomic_compare_exchange_n(p, &down, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
WEFT_DEVICE_CALL void weft_device_store_flag(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
WEFT_DEVICE_CALL uint64_t weft_device_swap_own(uint64_t *p, uint64_t expected, uint64_t desired) /* returns the former value */
{
    (void)__atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
}
/* Does weft_device_raise_flag(), then weft_device_swap_own(). Returns the former value of `*p`. `*raised` is true if the flag was 0
   before. */
WEFT_DEVICE_CALL uint64_t weft_device_swap_and_raise(uint64_t *p, uint64_t expected, uint64_t desired, uint32_t *flag, bool *raised)
{
    *raised = weft_device_raise_flag(flag);
    return weft_device_swap_own(p, expected, desired);
}
WEFT_DEVICE_CALL uint64_t weft_device_add_own(uint64_t *p, uint64_t more) /* returns the former value */
{
    return __atomic_fetch_add(p, more, __ATOMIC_ACQ_REL);
}
WEFT_DEVICE_CALL void weft_device_store_cell(weft_device_cell *c, uint64_t low, uint64_t high)
{
    __atomic_store_n(&c->low, low, __ATOMIC_RELAXED);
    __atomic_store_n(&c->high, high, __ATOMIC_RELEASE); /* pairs with the acquire in gpu_ring_cell() */
}
WEFT_DEVICE_CALL void weft_device_load_cell(const weft_device_cell *c, uint64_t *low, uint64_t *high)
{
    *high = __atomic_load_n(&c->high, __ATOMIC_ACQUIRE); /* pairs with the release in gpu_ring_finish(), which stores `low` first */
    *low = __atomic_load_n(&c->low, __ATOMIC_RELAXED);
}
WEFT_DEVICE_CALL void weft_device_follow(void) /* orders later reads of this thread after its read of the cell */
{
    /* weft_device_load_cell() acquires */
}
/* A release: a reader that sees a cell that this thread stores after this call also sees all that the thread wrote before the call. */
WEFT_DEVICE_CALL void weft_device_publish(void)
{
    /* weft_device_store_cell() releases */
}
WEFT_DEVICE_CALL void weft_device_tell(uint64_t *p, uint64_t v) /* stores a word that the node reads; does not order other accesses */
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
/* Loads several cells. Later reads of this thread are ordered after these loads. */
WEFT_DEVICE_CALL void weft_device_load_words(const weft_device_cell *c, uint32_t cells, uint64_t *out)
{
    for (uint32_t i = 0; i < cells; i++) { /* pairs with the releases in fill_slot() */
        out[2 * i] = __atomic_load_n(&c[i].low, __ATOMIC_ACQUIRE);
        out[2 * i + 1] = __atomic_load_n(&c[i].high, __ATOMIC_ACQUIRE);
    }
}
WEFT_DEVICE_CALL void weft_device_first_look(void)
{
}
WEFT_API int64_t weft_device_now_ns(void); /* monotonic time */
WEFT_API void weft_device_pause(void);     /* yields the processor */
#endif

#if !defined(WEFT_DEVICE_METAL)
/* A pointer to the byte at `offset` after the address in `*entry`. */
WEFT_DEVICE_CALL void *weft_device_address(const uint64_t *entry, uint64_t offset)
{
    return (void *)(uintptr_t)(weft_device_load_own(entry) + offset);
}
#endif

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
}
#endif
#endif
