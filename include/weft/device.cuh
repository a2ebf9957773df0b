/* SPDX-License-Identifier: MIT
 *
 * Calls of weft/device.h for threads that work together, in CUDA only. `_warp` calls are for all 32 threads of a warp, `_block` calls for
 * all threads of a block. Each thread of the warp or block makes the call, at the same point and with the same arguments, and gets the same
 * result. The calls contain barriers: the operation sees all earlier stores of these threads, and after the call all these threads can read
 * fetched data. Waits are bounded as in weft/device.h, except that each thread waits without limit for the others to make the call.
 *
 * Put and get: if the kernel can access both ends by loads and stores (weft_device_ptr()), all threads copy directly, and the operation and
 * its op are complete when the call returns. Each thread copies 16 bytes at a time if both addresses have the same remainder modulo 16,
 * otherwise 8, 4 or 1. If the kernel cannot access both ends, the first thread submits one request to the node.
 *   - A direct copy is not ordered with requests in the ring, so an earlier weft_device_fence() has no effect on it. If the order matters,
 *     first call weft_device_flush().
 *   - A direct copy does not notice that the other node has died.
 *   - Local memory (`src` of a put, `dst` of a get) must be memory of this node; otherwise the call returns -WEFT_DEVICE_EINVAL.
 *
 * Only the op of the first thread (weft_device_first()) is used; the other threads may pass any pointer. Either all threads pass NULL, or
 * no thread does. If the ring is full, `_nowait` calls return -WEFT_DEVICE_EAGAIN, and the other calls wait, or return -WEFT_DEVICE_EAGAIN
 * if weft_device.nowait is set. If weft_device_put_signal_warp() or weft_device_put_signal_block() returns this error, the bytes may have
 * been copied already, but not the signal: call again.
 *
 * For all other calls of weft/device.h, let the first thread make the call and share the result with weft_device_by_warp() or
 * weft_device_by_block():
 *     int n = weft_device_by_block([&] { return weft_device_claim(d, queue, leases, 8); });
 */
#ifndef WEFT_DEVICE_CUH
#define WEFT_DEVICE_CUH

#include "device.h"

#if !defined(__CUDACC__)
#error "weft/device.cuh is for CUDA; weft/device.h compiles as C"
#endif

/* --- warps and blocks --- */

/* share() gives the first thread's word to all threads. meet() is a barrier, after which all threads see each other's earlier stores. */
struct weft_device_warp {
    static __device__ __forceinline__ uint32_t threads()
    {
        return 32;
    }
    static __device__ __forceinline__ uint32_t number()
    {
        uint32_t lane;
        asm("mov.u32 %0, %%laneid;" : "=r"(lane));
        return lane;
    }
    static __device__ __forceinline__ void meet()
    {
        __syncwarp();
    }
    static __device__ __forceinline__ uint64_t share(uint64_t v)
    {
        return __shfl_sync(0xffffffffu, (unsigned long long)v, 0);
    }
};
struct weft_device_whole_block {
    static __device__ __forceinline__ uint32_t threads()
    {
        return blockDim.x * blockDim.y * blockDim.z;
    }
    static __device__ __forceinline__ uint32_t number()
    {
        return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    }
    static __device__ __forceinline__ void meet()
    {
        __syncthreads();
    }
    static __device__ __forceinline__ uint64_t share(uint64_t v)
    {
        __shared__ uint64_t word;
        if (number() == 0)
            word = v;
        __syncthreads();
        v = word;
        __syncthreads(); /* from here on all threads have read `word`, so it may be reused */
        return v;
    }
};

/* Whether this thread is the first one of its warp or block. */
template <typename G> static __device__ __forceinline__ bool weft_device_first()
{
    return G::number() == 0;
}

/* The first thread calls `f`, and all threads get its result. */
template <typename G, typename F> static __device__ __forceinline__ int weft_device_by(F f)
{
    int rc = 0;
    G::meet();
    if (weft_device_first<G>())
        rc = f();
    return (int)(uint32_t)G::share((uint32_t)rc);
}
template <typename F> static __device__ __forceinline__ int weft_device_by_warp(F f)
{
    return weft_device_by<weft_device_warp>(f);
}
template <typename F> static __device__ __forceinline__ int weft_device_by_block(F f)
{
    return weft_device_by<weft_device_whole_block>(f);
}

/* --- copying --- */

/* All threads together copy whole words. Each thread has up to four loads under way. */
template <typename T>
static __device__ __forceinline__ void weft_device_copy_words(T *dst, const T *src, uint64_t n, uint32_t me, uint32_t all)
{
    uint64_t i = me;
    for (; i + 3ull * all < n; i += 4ull * all) {
        T a = src[i], b = src[i + all], c = src[i + 2ull * all], e = src[i + 3ull * all];
        dst[i] = a;
        dst[i + all] = b;
        dst[i + 2ull * all] = c;
        dst[i + 3ull * all] = e;
    }
    for (; i < n; i += all)
        dst[i] = src[i];
}

/* Copies words of type T. The bytes before the first and after the last aligned word are copied one by one. */
template <typename T>
static __device__ __forceinline__ void weft_device_copy_as(uint8_t *dst, const uint8_t *src, uint64_t len, uint32_t me, uint32_t all)
{
    uint64_t head = (0 - (uint64_t)(uintptr_t)dst) & (sizeof(T) - 1), words;
    head = head < len ? head : len;
    words = (len - head) / sizeof(T);
    weft_device_copy_words(dst, src, head, me, all);
    weft_device_copy_words((T *)(dst + head), (const T *)(src + head), words, me, all);
    weft_device_copy_words(dst + head + words * sizeof(T), src + head + words * sizeof(T), len - head - words * sizeof(T), me, all);
}

/* Copies the share of thread `me` of `all` threads, between memory that the kernel can access. Source and target must not overlap. The
 * copied bytes are visible to others after this thread has called weft_device_publish(). */
static __device__ inline void weft_device_copy(void *to, const void *from, uint64_t len, uint32_t me, uint32_t all)
{
    uint8_t *dst = (uint8_t *)to;
    const uint8_t *src = (const uint8_t *)from;
    uint64_t apart = (uint64_t)(uintptr_t)dst ^ (uint64_t)(uintptr_t)src;
    if ((apart & 15) == 0)
        weft_device_copy_as<uint4>(dst, src, len, me, all);
    else if ((apart & 7) == 0)
        weft_device_copy_as<uint64_t>(dst, src, len, me, all);
    else if ((apart & 3) == 0)
        weft_device_copy_as<uint32_t>(dst, src, len, me, all);
    else
        weft_device_copy_as<uint8_t>(dst, src, len, me, all);
}

/* Copies directly, if the kernel can access source and target. Only one thread reads the tables: they may change, and all threads must make
 * the same choice. */
template <typename G>
static __device__ __forceinline__ bool weft_device_copy_by(const weft_device *d, uint64_t dst, uint64_t src, uint64_t len)
{
    uint64_t to = 0, from = 0;
    if (weft_device_first<G>()) {
        to = (uint64_t)(uintptr_t)weft_device_ptr(d, dst, len);
        from = (uint64_t)(uintptr_t)weft_device_ptr(d, src, len);
    }
    to = G::share(to);
    from = G::share(from);
    if (!to || !from)
        return false;
    weft_device_follow(); /* another thread of the group may have been notified of the data, so this thread's cache may have older bytes */
    weft_device_copy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, len, G::number(), G::threads());
    weft_device_publish();
    G::meet();
    return true;
}

/* --- operations --- */

/* `near` must be memory of this node. */
template <typename G>
static __device__ inline int weft_device_move_by(const weft_device *d, uint32_t kind, uint64_t dst, uint64_t src, uint64_t len, bool wait,
                                                 weft_device_op *op)
{
    uint64_t near = kind == WEFT_DEVICE_GET ? dst : src, far = kind == WEFT_DEVICE_GET ? src : dst;
    G::meet();
    if ((near >> 48) != d->rank)
        return -WEFT_DEVICE_EINVAL;
    if (weft_device_copy_by<G>(d, dst, src, len)) {
        if (op && weft_device_first<G>()) {
            op->status = 0;
            op->value = 0;
        }
        return 0;
    }
    return weft_device_by<G>([&] {
        weft_device_request q = {kind, {far, near, 0}, {len, 0, 0}};
        return weft_device_post(d, &q, wait, op);
    });
}
/* The signal is always sent as a request: the node adds to the word when the bytes have arrived, and then completes the op. */
template <typename G>
static __device__ inline int weft_device_put_signal_by(const weft_device *d, uint64_t dst, uint64_t src, uint64_t len, uint64_t signal,
                                                       uint64_t add, weft_device_op *op)
{
    G::meet();
    if (((src >> 48) != d->rank && len) || (dst >> 48) != (signal >> 48))
        return -WEFT_DEVICE_EINVAL;
    uint64_t left = len && weft_device_copy_by<G>(d, dst, src, len) ? 0 : len;
    return weft_device_by<G>([&] { return weft_device_put_signal(d, left ? dst : signal, left ? src : 0, left, signal, add, op); });
}
/* All threads get the op's result; only the first thread gets its value. */
template <typename G> static __device__ __forceinline__ int weft_device_wait_by(const weft_device *d, weft_device_op *op)
{
    int rc = weft_device_by<G>([&] { return weft_device_wait(d, op); });
    weft_device_follow();
    return rc;
}
template <typename G> static __device__ __forceinline__ int weft_device_test_by(const weft_device *d, weft_device_op *op)
{
    int rc = weft_device_by<G>([&] { return weft_device_test(d, op); });
    weft_device_follow();
    return rc;
}

/* If `seen` is not NULL, all threads get the last value of the word. Either all threads pass NULL, or none. */
template <typename G>
static __device__ __forceinline__ int weft_device_watch_by(const weft_device *d, uint32_t node, uint64_t word, weft_cmp cmp, uint64_t value,
                                                           uint64_t *seen, int64_t timeout_ns)
{
    uint64_t last = 0;
    int rc = weft_device_by<G>([&] { return weft_device_watch(d, node, word, cmp, value, &last, timeout_ns); });
    weft_device_follow();
    if (seen)
        *seen = G::share(last);
    return rc;
}

/* The public calls. Each does, for a warp or a block, the same as the call of weft/device.h without the suffix. */
#define WEFT_DEVICE_TOGETHER(name, group)                                                                                         \
    static __device__ inline int weft_device_put_##name(const weft_device *d, uint64_t dst, uint64_t src, uint64_t len,           \
                                                        weft_device_op *op)                                                       \
    {                                                                                                                             \
        return weft_device_move_by<group>(d, WEFT_DEVICE_PUT, dst, src, len, true, op);                                           \
    }                                                                                                                             \
    static __device__ inline int weft_device_put_nowait_##name(const weft_device *d, uint64_t dst, uint64_t src, uint64_t len,    \
                                                               weft_device_op *op)                                                \
    {                                                                                                                             \
        return weft_device_move_by<group>(d, WEFT_DEVICE_PUT, dst, src, len, false, op);                                          \
    }                                                                                                                             \
    static __device__ inline int weft_device_get_##name(const weft_device *d, uint64_t dst, uint64_t src, uint64_t len,           \
                                                        weft_device_op *op)                                                       \
    {                                                                                                                             \
        return weft_device_move_by<group>(d, WEFT_DEVICE_GET, dst, src, len, true, op);                                           \
    }                                                                                                                             \
    static __device__ inline int weft_device_get_nowait_##name(const weft_device *d, uint64_t dst, uint64_t src, uint64_t len,    \
                                                               weft_device_op *op)                                                \
    {                                                                                                                             \
        return weft_device_move_by<group>(d, WEFT_DEVICE_GET, dst, src, len, false, op);                                          \
    }                                                                                                                             \
    static __device__ inline int weft_device_put_signal_##name(const weft_device *d, uint64_t dst, uint64_t src, uint64_t len,    \
                                                               uint64_t signal, uint64_t add, weft_device_op *op)                 \
    {                                                                                                                             \
        return weft_device_put_signal_by<group>(d, dst, src, len, signal, add, op);                                               \
    }                                                                                                                             \
    static __device__ inline int weft_device_wait_##name(const weft_device *d, weft_device_op *op)                                \
    {                                                                                                                             \
        return weft_device_wait_by<group>(d, op);                                                                                 \
    }                                                                                                                             \
    static __device__ inline int weft_device_test_##name(const weft_device *d, weft_device_op *op)                                \
    {                                                                                                                             \
        return weft_device_test_by<group>(d, op);                                                                                 \
    }                                                                                                                             \
    static __device__ inline int weft_device_flush_##name(const weft_device *d, uint32_t node)                                    \
    {                                                                                                                             \
        return weft_device_by<group>([&] { return weft_device_flush(d, node); });                                                 \
    }                                                                                                                             \
    static __device__ inline int weft_device_wait_until_##name(const weft_device *d, uint64_t word, weft_cmp cmp, uint64_t value, \
                                                               uint64_t *seen, int64_t timeout_ns)                                \
    {                                                                                                                             \
        return weft_device_watch_by<group>(d, d->rank, word, cmp, value, seen, timeout_ns);                                       \
    }                                                                                                                             \
    static __device__ inline int weft_device_wait_for_##name(const weft_device *d, uint32_t node, uint64_t word, uint64_t value,  \
                                                             uint64_t *seen)                                                      \
    {                                                                                                                             \
        return weft_device_watch_by<group>(d, node, word, WEFT_GE, value, seen, -1);                                              \
    }                                                                                                                             \
    static __device__ inline int weft_device_wait_at_least_##name(const weft_device *d, uint64_t word, uint64_t value,            \
                                                                  uint64_t *seen = NULL)                                          \
    {                                                                                                                             \
        return weft_device_watch_by<group>(d, d->rank, word, WEFT_GE, value, seen, -1);                                           \
    }
WEFT_DEVICE_TOGETHER(warp, weft_device_warp)
WEFT_DEVICE_TOGETHER(block, weft_device_whole_block)
#undef WEFT_DEVICE_TOGETHER

#endif
