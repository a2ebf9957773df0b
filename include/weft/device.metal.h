/* SPDX-License-Identifier: MIT
 *
 * weft/device.h in Metal's shading language, for Apple's GPUs. COMPILED, NEVER RUN: it is compiled with a stand-in for Metal's library, and
 * its rings are tried on a processor; no Mac has run it.
 *
 * Kernels are text, which weft_gpu_run_text() compiles and runs. This header's text comes before it:
 *
 *     struct argument {
 *         ulong from, to;      // addresses of weft
 *         weft_device_op op;   // kept from one kernel to the next
 *     };
 *     kernel void send(const device weft_device *given [[buffer(0)]], device argument *a [[buffer(1)]],
 *                      uint block [[threadgroup_position_in_grid]], uint me [[thread_position_in_grid]])
 *     {
 *         weft_device d = weft_device_of(given, block);
 *         if (me == 0) {
 *             weft_device_op op;
 *             weft_device_put(&d, a->to, a->from, 4096, &op);
 *             a->op = op;
 *         }
 *     }
 *
 * What Apple guarantees, and what not:
 *   - A processor may read what a kernel has written only when the kernel has ended, and a kernel what a processor wrote before it was
 *     started. Nobody promises that a kernel which waits for the processor sees anything, or is not ended by the system.
 *   - Atomics are of 32 bits and relaxed. Words of 64 bits and more have none that would do, and may arrive in parts.
 *
 * So the node and kernels take turns. A kernel hands over requests, and the node does them when it has ended; what they bring, and how they
 * ended (weft_device_test()), the next kernel sees. While a kernel runs the node does not touch its rings.
 *
 * Hence, against weft/device.h:
 *   - Nothing waits. Where the ring is full, or the place of an answer is taken, calls return -WEFT_DEVICE_EAGAIN, as their `_nowait` forms
 *     do: the requests of one kernel are at most as many as the slots of its blocks' rings. weft_device_wait() and
 *     weft_device_wait_at_least() look once.
 *   - What needs an answer before it returns is -WEFT_DEVICE_ENOTSUP: weft_device_flush(), weft_device_fetch_add(), weft_device_swap(),
 *     weft_device_compare_swap(), weft_device_ask(), weft_device_submit(), weft_device_claim(), weft_device_renew(),
 * weft_device_complete(), and weft_device_nothing() with an answer. Those that start an operation take their place: `_start`, with an op.
 *   - All operations are complete when weft_gpu_run_text() returns 0. It returns the first error of those without an op.
 *   - weft_device_next_task() and weft_device_task_done() are not there: no kernel stays on the GPU.
 *   - The order of operations of one block to one node is that in which its threads called, only where one thread calls.
 *   - Loads and stores at weft_device_ptr() are seen by others, and theirs by the kernel, from one kernel to the next.
 *   - Calls by warps and blocks (weft/device.cuh) are not there.
 *
 * Pointers: a weft_device and an op are the thread's own (`thread`), memory of addresses is `device`.
 */
#ifndef WEFT_DEVICE_METAL_H
#define WEFT_DEVICE_METAL_H

#if !defined(__METAL_VERSION__)
#error "weft/device.metal.h is for Metal's shading language; weft/device.h compiles as C"
#endif

#include "device.h"

/* What a thread calls with: of what the kernel was given, and the number of its threadgroup. */
WEFT_DEVICE_CALL weft_device weft_device_of(WEFT_FAR const weft_device *given, uint32_t block)
{
    weft_device d = {given->rank, given->size, given->rings,      given->block + block, given->deadline_ns,
                     given->ring, given->pool, given->pool_bytes, given->arena,         given->notice};
    return d;
}

#endif
