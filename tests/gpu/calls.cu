// SPDX-License-Identifier: MIT
//
// Every call of weft/device.h and weft/device.cuh from a CUDA kernel: that it compiles for a device. Where nvcc is found, a test compiles
// it.
#include "weft/device.cuh"
#include "weft/device_file.h"
#include "weft/device_net.h"

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
    rc |= weft_device_wait_at_least(d, here, 1, &old) | weft_device_wait_for(d, 1, here, 1, &old) |
          weft_device_wait_until(d, here, WEFT_NE, 1, &old, 1000);
    rc |= weft_device_fetch_add_start(d, there, 1, &op) | weft_device_swap_start(d, there, 1, &op) |
          weft_device_compare_swap_start(d, there, 1, 2, &op);
    weft_device now = *d;
    now.nowait = true;
    rc |= weft_device_get(&now, here, there, 64, &op) | weft_device_send(&now, 1, 5, 7, here, 64, NULL) | weft_device_fence(&now, 1);
    rc |= weft_device_gone(d, 1) + (int)weft_device_block(d);
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
    rc |= weft_device_renew(d, queue, here, 4, &accepted) | weft_device_renew_start(d, queue, here, 4, true, &op);
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
    weft_device now = *d;
    now.nowait = true;
    rc |= weft_device_put_signal_block(&now, there, here, 4096, there + 4096, 1, NULL);
    uint64_t seen;
    rc |= weft_device_wait_until_block(d, here, WEFT_EQ, 1, &seen, 1000) | weft_device_wait_for_block(d, 1, here, 1, &seen);
    rc |= weft_device_wait_until_warp(d, here, WEFT_EQ, 1, &seen, 1000) | weft_device_wait_for_warp(d, 1, here, 1, NULL);
    rc |= weft_device_by_block([&] { return weft_device_claim(d, queue, here, 8); });
    rc |= weft_device_by_warp([&] { return weft_device_submit(d, queue, here, 8, 0); });
    *out = rc;
}

// Services.
__global__ void services(const weft_device *d, uint64_t record, uint64_t text, uint64_t here, int *out)
{
    uint64_t p, n, at;
    weft_device_exit end;
    int rc = weft_device_spawn(d, record, 0, WEFT_SPAWN_STDOUT, text, 64, 1, 0, &p);
    rc |= weft_device_process_read(d, record, p, 1, here, 64, &n);
    rc |= weft_device_process_write(d, record, p, here, 8, &n) | weft_device_process_signal(d, record, p, 9);
    rc |= weft_device_process_wait(d, record, p, &end) | weft_device_process_close(d, record, p);
    rc |= weft_device_name_publish(d, record, 0, "name", here, 8) | weft_device_name_lookup(d, record, 0, "name", true, &at, &n);
    rc |= weft_device_name_withdraw(d, record, 0, "name");
    *out = rc;
}

__global__ void sockets(const weft_device *d, uint64_t record, uint64_t host, uint64_t here, int *out)
{
    uint64_t s, all, one, n, at;
    weft_device_net_address own, peer;
    int rc = weft_device_net_connect(d, record, 0, host, 9, 80, WEFT_NET_NODELAY, &s);
    rc |= weft_device_net_opened(d, record, s, &own, &peer);
    rc |= weft_device_net_send(d, record, s, here, 64, &n) | weft_device_net_receive(d, record, s, here, 64, &n);
    rc |= weft_device_net_received(d, record, s, &at, &n) | weft_device_net_taken(d, record, s, n);
    rc |= weft_device_net_shutdown(d, record, s) | weft_device_net_close(d, record, s);
    rc |= weft_device_net_listen(d, record, 0, 0, 0, 0, WEFT_NET_DATAGRAMS, &all);
    rc |= weft_device_net_accept(d, record, all, &one);
    rc |= weft_device_net_send_to(d, record, all, &peer, here, 64) | weft_device_net_receive_from(d, record, all, &peer, here, 64, &n);
    rc |= weft_device_net_abort(d, record, all);
    *out = rc;
}

__global__ void files(const weft_device *d, uint64_t record, uint64_t path, uint64_t here, int *out)
{
    uint64_t n;
    weft_device_file f;
    int rc = weft_device_file_open(d, record, 0, path, 9, WEFT_FILE_WRITE, &f);
    rc |= weft_device_file_read(d, record, &f, here, 64, 0, &n);
    rc |= weft_device_file_write(d, record, &f, here, 64, 0, &n) | weft_device_file_stat(d, record, &f);
    rc |= weft_device_file_sync(d, record, &f) | weft_device_file_close(d, record, &f);
    *out = rc;
}
