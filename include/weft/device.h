/* SPDX-License-Identifier: MIT
 *
 * The functions that kernels call: operations on the memory of all nodes. The kernel writes a request into a ring, and its node carries the
 * request out. The same source compiles as CUDA, as Metal (compiled, never run; weft/device.metal.h has the differences), and as C and C++
 * for the GPU `host`, whose blocks are threads.
 *
 * The program passes a weft_device to its kernel (weft_gpu_device(), weft/gpu.h). Calls take memory as an address (weft/types.h). Local
 * memory, which is `src` of a put and `dst` of a get, must be in the pool or in an arena of the kernel's own node.
 *
 * Every call returns 0 or a negative error number, which is Linux's number on every system. A wait ends with -WEFT_DEVICE_ETIMEDOUT after
 * weft_device.deadline_ns, or when the program closes the GPU.
 *
 * An operation with a weft_device_op is complete when weft_device_test() or weft_device_wait() returns its result. Until then it occupies a
 * place in the ring: call weft_device_test() again and again, or give the operation up by weft_device_leave(). An operation without an op
 * is complete after the block's next weft_device_flush() to the same node, which also returns the first error of such operations.
 * Operations of one block to one node begin in the order of the calls. Operations of different blocks are not ordered. The answers of a
 * ring come in the order of its requests: if a node does not answer, later answers wait, also those about other nodes.
 *
 * If the ring is full, a call waits for room. A thread that must not wait makes its calls with a copy of the weft_device:
 *     weft_device now = *d;
 *     now.nowait = true;
 *     int rc = weft_device_get(&now, dst, src, len, &op);
 * Then every call that posts a request, also those of weft/device_tasks.h and weft/device.cuh, returns -WEFT_DEVICE_EAGAIN instead of
 * waiting, and has done nothing. The exceptions are weft_device_put_signal_warp() and weft_device_put_signal_block(), which may have copied
 * the bytes already. weft_device_submit() and weft_device_claim() also return it if the queue has no free slot or no ready task. Calls with
 * an answer still wait for the answer. Calls of services (weft/device_service.h) that wait for their service wait for room, too. In the
 * same way a thread can use another deadline_ns.
 *
 * weft/device.cuh has calls for threads of a warp or a block that work together.
 */
#ifndef WEFT_DEVICE_H
#define WEFT_DEVICE_H

#include "cmp.h"
#include "device_ring.h"
#include "device_tasks.h"

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
extern "C" {
#endif

/* --- operations: like those of the same names in weft/fabric.h --- */

WEFT_DEVICE_CALL int weft_device_put(WEFT_NEAR const weft_device *d, uint64_t dst, uint64_t src, uint64_t len, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_PUT, {dst, src, 0}, {len, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
/* weft_device_put() with `nowait`, without a copy of the weft_device. */
WEFT_DEVICE_CALL int weft_device_put_nowait(WEFT_NEAR const weft_device *d, uint64_t dst, uint64_t src, uint64_t len,
                                            WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_PUT, {dst, src, 0}, {len, 0, 0}};
    return weft_device_post(d, &q, false, op);
}
/* Puts 8 bytes. This call and weft_device_flush() are not ordered after the thread's earlier stores; all other calls are. If the word
 * announces such stores to a reader, call weft_device_publish() first. */
WEFT_DEVICE_CALL int weft_device_put_value(WEFT_NEAR const weft_device *d, uint64_t dst, uint64_t value, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_PUT_VALUE, {dst, value, 0}, {8, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
WEFT_DEVICE_CALL int weft_device_get(WEFT_NEAR const weft_device *d, uint64_t dst, uint64_t src, uint64_t len, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_GET, {src, dst, 0}, {len, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
/* `signal` is a word at the node of `dst`. */
WEFT_DEVICE_CALL int weft_device_put_signal(WEFT_NEAR const weft_device *d, uint64_t dst, uint64_t src, uint64_t len, uint64_t signal,
                                            uint64_t add, WEFT_NEAR weft_device_op *op)
{
    const uint64_t place = ((uint64_t)1 << 48) - 1; /* mask: the address without its node */
    if ((dst & ~place) != (signal & ~place))
        return -WEFT_DEVICE_EINVAL;
    weft_device_request q = {WEFT_DEVICE_PUT_SIGNAL, {dst, src, add}, {len, signal & place, 0}};
    return weft_device_post(d, &q, true, op);
}
/* Sends a message with a header of 8 bytes. The payload is in this node's pool. */
WEFT_DEVICE_CALL int weft_device_send(WEFT_NEAR const weft_device *d, uint32_t node, uint32_t handler, uint64_t header, uint64_t payload,
                                      uint64_t len, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_SEND, {node, payload, header}, {len, handler, 0}};
    return weft_device_post(d, &q, true, op);
}
WEFT_DEVICE_CALL int weft_device_fence(WEFT_NEAR const weft_device *d, uint32_t node)
{
    weft_device_request q = {WEFT_DEVICE_FENCE, {node, 0, 0}, {0, 0, 0}};
    return weft_device_post(d, &q, true, NULL);
}

/* Atomics that do not wait. The op's `value` is the old value of the word. */
WEFT_DEVICE_CALL int weft_device_fetch_add_start(WEFT_NEAR const weft_device *d, uint64_t word, uint64_t add, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_FETCH_ADD, {word, add, 0}, {8, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
WEFT_DEVICE_CALL int weft_device_swap_start(WEFT_NEAR const weft_device *d, uint64_t word, uint64_t value, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_SWAP, {word, value, 0}, {8, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
WEFT_DEVICE_CALL int weft_device_compare_swap_start(WEFT_NEAR const weft_device *d, uint64_t word, uint64_t expected, uint64_t desired,
                                                    WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_COMPARE_SWAP, {word, expected, desired}, {8, 0, 0}};
    return weft_device_post(d, &q, true, op);
}

/* The following three calls wait. */
WEFT_DEVICE_CALL int weft_device_fetch_add(WEFT_NEAR const weft_device *d, uint64_t word, uint64_t add, WEFT_NEAR uint64_t *old)
{
    weft_device_request q = {WEFT_DEVICE_FETCH_ADD, {word, add, 0}, {8, 0, 0}};
    return weft_device_call(d, &q, old);
}
WEFT_DEVICE_CALL int weft_device_swap(WEFT_NEAR const weft_device *d, uint64_t word, uint64_t value, WEFT_NEAR uint64_t *old)
{
    weft_device_request q = {WEFT_DEVICE_SWAP, {word, value, 0}, {8, 0, 0}};
    return weft_device_call(d, &q, old);
}
WEFT_DEVICE_CALL int weft_device_compare_swap(WEFT_NEAR const weft_device *d, uint64_t word, uint64_t expected, uint64_t desired,
                                              WEFT_NEAR uint64_t *old)
{
    weft_device_request q = {WEFT_DEVICE_COMPARE_SWAP, {word, expected, desired}, {8, 0, 0}};
    return weft_device_call(d, &q, old);
}
/* Sends a record to a service of this node (weft_gpu_service()). The record has WEFT_DEVICE_RECORD_BYTES in this node's pool or arenas. Do
 * not use it before the answer. */
WEFT_DEVICE_CALL int weft_device_ask_start(WEFT_NEAR const weft_device *d, uint32_t service, uint64_t record, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_RECORD, {record, service, 0}, {WEFT_DEVICE_RECORD_BYTES, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
/* Like weft_device_ask_start(), but waits for the answer. Returns the answer's status; `*value` (may be NULL) becomes the answer's
 * value. */
WEFT_DEVICE_CALL int weft_device_ask(WEFT_NEAR const weft_device *d, uint32_t service, uint64_t record, WEFT_NEAR uint64_t *value)
{
    weft_device_request q = {WEFT_DEVICE_RECORD, {record, service, 0}, {WEFT_DEVICE_RECORD_BYTES, 0, 0}};
    return weft_device_call(d, &q, value);
}
/* Waits until all operations that this block has started to `node` are complete and visible there. Returns the first error that an
 * operation without an op has had since the last flush to that node. Blocks that use the same ring (weft_gpu_config.rings) share this
 * error: only one of these blocks gets it. */
WEFT_DEVICE_CALL int weft_device_flush(WEFT_NEAR const weft_device *d, uint32_t node)
{
    weft_device_request q = {WEFT_DEVICE_FLUSH, {node, 0, 0}, {0, 0, 0}};
    return weft_device_call(d, &q, NULL);
}
/* Sends a request that does nothing, for measurements. With `answer`, waits for the answer. */
WEFT_DEVICE_CALL int weft_device_nothing(WEFT_NEAR const weft_device *d, bool answer)
{
    weft_device_request q = {WEFT_DEVICE_NOTHING, {0, 0, 0}, {0, 0, 0}};
    return answer ? weft_device_call(d, &q, NULL) : weft_device_post(d, &q, true, NULL);
}

/* The kernel's pointer to the memory at an address; NULL if the kernel cannot load and store there. A kernel can access three kinds of
 * memory: pools of nodes on its host, as far as its GPU can access them; the arenas of its own GPU; and arenas of other nodes on its host
 * that its GPU has mapped (weft_link_stats.arena_way). Also NULL if the `bytes` bytes do not lie inside a single pool or arena, or the
 * address is WEFT_NULL. The kernel may keep the pointer while the memory is mapped (weft_gpu_arena()). The call reads the GPU's memory,
 * which takes some tenths of a microsecond. Make this call before a wait rather than after it, so that both overlap. */
WEFT_DEVICE_CALL WEFT_FAR void *weft_device_ptr(WEFT_NEAR const weft_device *d, uint64_t addr, uint64_t bytes)
{
    uint32_t node = (uint32_t)(addr >> 48), space = (uint32_t)(addr >> 44) & 0xfu;
    uint64_t offset = addr & (((uint64_t)1 << 44) - 1);
    /* do not branch before the entry is read, so that the reads of `size` and `arena` overlap */
    bool known = node < d->size;
    WEFT_FAR const uint64_t *entry = d->arena + (known ? 2 * ((uint64_t)node * 16 + space) : 0);
    /* The node writes the length after the address. */
#if defined(__CUDACC__)
    uint64_t base, most;
    weft_device_load_cell((const weft_device_cell *)(const void *)entry, &base, &most); /* one access for both words takes half the time */
#else
    uint64_t most = weft_device_load(entry + 1);
#endif
    if (!known || offset < WEFT_DEVICE_FIRST || offset > most || bytes > most - offset)
        return NULL;
#if defined(__CUDACC__)
    return (void *)(uintptr_t)(base + offset);
#else
    return weft_device_address(entry, offset);
#endif
}

/* Whether the unsigned comparison of a word with `value` is true. */
WEFT_DEVICE_CALL bool weft_device_compare(uint64_t word, weft_cmp cmp, uint64_t value)
{
    switch (cmp) {
    case WEFT_EQ: return word == value;
    case WEFT_NE: return word != value;
    case WEFT_LT: return word < value;
    case WEFT_LE: return word <= value;
    case WEFT_GT: return word > value;
    case WEFT_GE: return word >= value;
    }
    return false;
}

/* Waits until the comparison is true or `node` is gone, at most for `timeout_ns`. The next three functions call this function. */
WEFT_DEVICE_CALL int weft_device_watch(WEFT_NEAR const weft_device *d, uint32_t node, uint64_t word, weft_cmp cmp, uint64_t value,
                                       WEFT_NEAR uint64_t *seen, int64_t timeout_ns)
{
    /* checked first, so that these reads of `d` overlap with the reads in the call */
    bool wrong = (word & 7) || (word >> 48) != d->rank || node >= d->size || (uint32_t)cmp > (uint32_t)WEFT_GE;
    WEFT_FAR const uint64_t *p = (WEFT_FAR const uint64_t *)weft_device_ptr(d, word, 8);
    weft_device_patience patience = {0, 0};
    bool gone = false;
    if (!p || wrong)
        return -WEFT_DEVICE_EINVAL;
    for (;;) {
        uint64_t now = weft_device_load(p); /* pairs with the signal's release */
        if (seen)
            *seen = now;
        if (weft_device_compare(now, cmp, value))
            return 0;
        if (gone)
            return -WEFT_DEVICE_ECONNRESET;
        if (timeout_ns == 0 || weft_device_late_after(d, &patience, timeout_ns))
            return -WEFT_DEVICE_ETIMEDOUT;
        gone = weft_device_now_and_then(&patience) &&
               weft_device_gone(d, node); /* read the word once more, because everything that the node has sent has arrived by now */
    }
}

/* Waits until an unsigned comparison of the 8-byte word at `word`, in this node's own pool or an arena of this GPU, with `value` is true.
 * `*seen` (may be NULL) receives the last value of the word, also after an error. With a time-out of 0 the call compares once;
 * WEFT_TIMEOUT_DEFAULT (-1): d->deadline_ns. Any node may change the word, so the call does not end when a node is gone.
 * -WEFT_DEVICE_EINVAL: the word is elsewhere or not aligned, or `cmp` is not a weft_cmp. */
WEFT_DEVICE_CALL int weft_device_wait_until(WEFT_NEAR const weft_device *d, uint64_t word, weft_cmp cmp, uint64_t value,
                                            WEFT_NEAR uint64_t *seen, int64_t timeout_ns)
{
    return weft_device_watch(d, d->rank, word, cmp, value, seen, timeout_ns);
}
/* Waits until the word is at least `value`, at most for d->deadline_ns. The word is a signal or counter to which only `node` adds.
 * -WEFT_DEVICE_ECONNRESET: that node is gone. */
WEFT_DEVICE_CALL int weft_device_wait_for(WEFT_NEAR const weft_device *d, uint32_t node, uint64_t word, uint64_t value,
                                          WEFT_NEAR uint64_t *seen)
{
    return weft_device_watch(d, node, word, WEFT_GE, value, seen, -1);
}
/* Like weft_device_wait_for(), but for a word to which any node may add. Ends only when the value is reached, or at the deadline. */
WEFT_DEVICE_CALL int weft_device_wait_at_least(WEFT_NEAR const weft_device *d, uint64_t word, uint64_t value, WEFT_NEAR uint64_t *seen)
{
    return weft_device_watch(d, d->rank, word, WEFT_GE, value, seen, -1);
}

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
}
#endif
#endif
