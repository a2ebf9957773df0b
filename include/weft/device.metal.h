/* SPDX-License-Identifier: MIT
 *
 * weft/device.h in Metal's shading language, for Apple's GPUs. COMPILED, NEVER RUN: tests compile this header with a replacement for
 * Metal's library, and test its rings on a processor. It has never run on a Mac.
 *
 * Kernels are text, which weft_gpu_run_text() compiles and runs. weft puts the text of this header before the program's text:
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
 * What Apple guarantees:
 *   - A processor may read what a kernel has written only after the kernel has ended. A kernel may read what a processor wrote before the
 *     kernel was started. A kernel that waits for the processor may never see a new value, and the system may end such a kernel.
 *   - Atomics have 32 bits and are relaxed. Words of 64 bits and more have no atomics that rings could use, and may arrive in parts.
 *
 * So the node and kernels take turns. A kernel posts requests, and the node carries them out after the kernel has ended. The next kernel
 * sees the results, and gets the status by weft_device_test(). While a kernel runs, the node does not access the rings.
 *
 * Differences from weft/device.h:
 *   - No call waits. Like the `_nowait` forms, calls return -WEFT_DEVICE_EAGAIN if the ring is full, or if the place of the answer is still
 *     in use. So one kernel can post at most as many requests as its blocks' rings have slots. weft_device_wait() and
 *     the waits for a word (weft_device_wait_until() and the like) poll once.
 *   - Calls that need an answer before they return fail with -WEFT_DEVICE_ENOTSUP: weft_device_flush(), weft_device_fetch_add(),
 *     weft_device_swap(), weft_device_compare_swap(), weft_device_ask(), weft_device_submit(), weft_device_claim(), weft_device_renew(),
 *     weft_device_complete(), and weft_device_nothing() with an answer. Use the `_start` calls with an op instead.
 *   - All operations are complete when weft_gpu_run_text() returns 0. It returns the first error of the operations without an op.
 *   - There is no weft_device_next_task() and no weft_device_task_done(), because no kernel stays on the GPU.
 *   - Operations of one block to one node begin in the order of the calls only if one thread of the block makes the calls.
 *   - A kernel's stores at weft_device_ptr() become visible to others only after the kernel has ended. A kernel sees only those stores of
 *     others that were made before it was started.
 *   - There are no calls for warps and blocks (weft/device.cuh).
 *   - Calls of services (programs, names, sockets, files: weft/device_service.h, device_net.h, device_file.h) submit a record and return
 *     -WEFT_DEVICE_EINPROGRESS. The same call in the next kernel returns the result, or continues if the call takes several requests. A
 *     name is in the thread's own memory, so copy a literal into a variable first. weft_device_file.device is called `disk`.
 *
 * Pointers: a weft_device and an op are in the thread's own memory (`thread`); addresses lead to memory that threads share (`device`).
 */
#ifndef WEFT_DEVICE_METAL_H
#define WEFT_DEVICE_METAL_H

#if !defined(__METAL_VERSION__)
#error "weft/device.metal.h is for Metal's shading language; weft/device.h compiles as C"
#endif

#include "device.h"
#include "device_file.h"
#include "device_net.h"
#include "device_service.h"

/* The weft_device that a thread passes to the calls: `given` is the kernel's buffer 0, `block` the number of the threadgroup. */
WEFT_DEVICE_CALL weft_device weft_device_of(WEFT_FAR const weft_device *given, uint32_t block)
{
    weft_device d = {given->rank, given->size,       given->rings, given->block + block, given->deadline_ns, given->ring,
                     given->pool, given->pool_bytes, given->arena, given->notice,        given->nowait};
    return d;
}

#endif
