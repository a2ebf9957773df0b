// SPDX-License-Identifier: MIT
//
// Every call of weft/device.h and weft/device.cuh from a CUDA kernel: that it compiles for a device. Where nvcc is found, a test compiles
// it.
#include "weft/device.cuh"

__global__ void calls(const weft_device *d, uint64_t there, uint64_t here, uint64_t *out)
{
    weft_device_op op;
    uint64_t old;
    int rc = weft_device_put(d, there, here, 64, &op);
    rc |= weft_device_wait(d, &op);
    rc |= weft_device_put_nowait(d, there, here, 64, &op);
    weft_device_leave(d, &op);
    rc |= weft_device_put_value(d, there, 1, NULL);
    rc |= weft_device_get(d, here, there, 64, &op) | weft_device_test(d, &op);
    rc |= weft_device_put_signal(d, there, here, 64, there + 64, 1, NULL);
    rc |= weft_device_send(d, 1, 5, 7, here, 64, NULL);
    rc |= weft_device_fence(d, 1) | weft_device_flush(d, 1);
    rc |= weft_device_fetch_add(d, there, 1, &old) | weft_device_swap(d, there, 1, &old) | weft_device_compare_swap(d, there, 1, 2, &old);
    rc |= weft_device_nothing(d, true);
    rc |= weft_device_ask_start(d, 3, here, &op) | weft_device_ask(d, 3, here, &old);
    rc |= weft_device_wait_at_least(d, here, 1, &old);
    *out = (uint64_t)rc + old + (weft_device_ptr(d, there, 8) ? *(uint64_t *)weft_device_ptr(d, there, 8) : 0);
}

__global__ void worker(const weft_device *d, const weft_device_worker *k)
{
    weft_device_task t;
    while (weft_device_next_task(d, k, &t) == 0)
        weft_device_task_done(d, k, &t, 0, t.task.arg[0], 8);
}

__global__ void queues(const weft_device *d, uint32_t queue, uint64_t here, int *out)
{
    weft_device_op op;
    uint64_t accepted;
    int rc = weft_device_submit(d, queue, here, 4, here + 256) | weft_device_claim(d, queue, here, 4) |
             weft_device_complete(d, queue, here, here + 4096, 4, &accepted);
    rc |= weft_device_submit_start(d, queue, here, 4, 0, false, &op) | weft_device_wait(d, &op);
    rc |= weft_device_claim_start(d, queue, here, 4, false, &op) | weft_device_wait(d, &op);
    rc |= weft_device_complete_start(d, queue, here, here + 4096, 4, true, &op) | weft_device_wait(d, &op);
    *out = rc + (int)accepted;
}

// The same by warps and blocks.
__global__ void together(const weft_device *d, uint32_t queue, uint64_t there, uint64_t here, int *out)
{
    weft_device_op op;
    int rc = weft_device_put_block(d, there, here, 4096, &op) | weft_device_wait_block(d, &op);
    rc |= weft_device_get_block(d, here, there, 4096, NULL) | weft_device_flush_block(d, 1);
    rc |= weft_device_put_nowait_block(d, there, here, 64, &op) | weft_device_test_block(d, &op);
    rc |= weft_device_get_nowait_block(d, here, there, 64, &op) | weft_device_wait_block(d, &op);
    rc |= weft_device_put_signal_block(d, there, here, 4096, there + 4096, 1, NULL) | weft_device_wait_at_least_block(d, here, 1);
    rc |= weft_device_put_warp(d, there, here, 4096, &op) | weft_device_wait_warp(d, &op) | weft_device_get_warp(d, here, there, 64, NULL);
    rc |= weft_device_put_nowait_warp(d, there, here, 64, &op) | weft_device_test_warp(d, &op) | weft_device_flush_warp(d, 1);
    rc |= weft_device_get_nowait_warp(d, here, there, 64, NULL) | weft_device_wait_at_least_warp(d, here, 1);
    rc |= weft_device_put_signal_warp(d, there, here, 4096, there + 4096, 1, NULL);
    rc |= weft_device_by_block([&] { return weft_device_claim(d, queue, here, 8); });
    rc |= weft_device_by_warp([&] { return weft_device_submit(d, queue, here, 8, 0); });
    *out = rc;
}
