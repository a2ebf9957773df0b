/* SPDX-License-Identifier: MIT
 *
 * Every call of weft/device.metal.h, as a program for Metal has them. Compiled with metal_stand_in/ for its types, and once more to run on
 * a processor (tests/multi/test_gpu_metal.c). Each kernel stores in `result` the line of the check that failed, or 0.
 */
#include <weft/device.metal.h>

#include "metal_kernels.h"

static_assert(sizeof(metal_op) == sizeof(weft_device_op) && sizeof(weft_device_cell) == 16 && sizeof(weft_device_slot) == 32,
              "as the node has them");
static_assert(sizeof(weft_device) == 64 && sizeof(weft_device_ring) == 64, "as the node has them");

#define MUST(is)                  \
    do {                          \
        if (!(is)) {              \
            a->result = __LINE__; \
            return;               \
        }                         \
    } while (0)

static inline void keep(device metal_argument *a, int i, weft_device_op op)
{
    a->op[i].ticket = op.ticket;
    a->op[i].ring = op.ring;
    a->op[i].status = op.status;
    a->op[i].value = op.value;
}
static inline weft_device_op kept(const device metal_argument *a, int i)
{
    weft_device_op op = {a->op[i].ticket, a->op[i].ring, a->op[i].status, a->op[i].value};
    return op;
}

/* One thread of a block. */
kernel void metal_start(const device weft_device *given, device metal_argument *all, uint block)
{
    device metal_argument *a = all + block;
    weft_device d = weft_device_of(given, block);
    weft_device_op op;
    uint64_t node = a->there >> 48, old;
    device uint64_t *mine = (device uint64_t *)weft_device_ptr(&d, a->mine, 8 * METAL_WORDS);
    MUST(mine && !weft_device_ptr(&d, a->mine, ~(uint64_t)0));
    for (uint i = 0; i < METAL_WORDS; i++)
        mine[i] = (uint64_t)block << 32 | i;
    MUST(weft_device_put(&d, a->there, a->mine, 8 * METAL_WORDS, &op) == 0);
    keep(a, 0, op);
    MUST(weft_device_test(&d, &op) == -WEFT_DEVICE_EINPROGRESS && weft_device_wait(&d, &op) == -WEFT_DEVICE_ETIMEDOUT);
    MUST(weft_device_fence(&d, (uint32_t)node) == 0);
    MUST(weft_device_put_value(&d, a->there + 8, 1000 + block, 0) == 0);
    MUST(weft_device_fetch_add_start(&d, a->counter, 1, &op) == 0);
    keep(a, 1, op);
    MUST(weft_device_compare_swap_start(&d, a->there + 16, (uint64_t)block << 32 | 2, 7, &op) == 0);
    keep(a, 2, op);
    MUST(weft_device_swap_start(&d, a->there + 24, 8, &op) == 0);
    keep(a, 3, op);
    MUST(weft_device_put_signal(&d, a->there + 32, a->mine, 8, a->there + 40, 5, &op) == 0);
    keep(a, 4, op);
    /* Calls that would have to wait return an error. */
    MUST(weft_device_flush(&d, (uint32_t)node) == -WEFT_DEVICE_ENOTSUP &&
         weft_device_fetch_add(&d, a->counter, 1, &old) == -WEFT_DEVICE_ENOTSUP);
    MUST(weft_device_swap(&d, a->counter, 1, &old) == -WEFT_DEVICE_ENOTSUP && weft_device_nothing(&d, true) == -WEFT_DEVICE_ENOTSUP);
    MUST(weft_device_compare_swap(&d, a->counter, 1, 2, &old) == -WEFT_DEVICE_ENOTSUP &&
         weft_device_ask(&d, 0, a->mine, &old) == -WEFT_DEVICE_ENOTSUP);
    MUST(weft_device_submit(&d, 0, a->mine, 1, 0) == -WEFT_DEVICE_ENOTSUP && weft_device_claim(&d, 0, a->mine, 1) == -WEFT_DEVICE_ENOTSUP);
    MUST(weft_device_complete(&d, 0, a->mine, a->mine, 1, &old) == -WEFT_DEVICE_ENOTSUP);
    MUST(weft_device_wait_at_least(&d, a->mine, (uint64_t)1 << 60, &old) == -WEFT_DEVICE_ETIMEDOUT);
    MUST(weft_device_wait_at_least(&d, a->mine + 8, 1, &old) == 0);
    a->result = 0;
}

/* The next kernel checks how the operations ended, and copies the words back. */
kernel void metal_look(const device weft_device *given, device metal_argument *all, uint block)
{
    device metal_argument *a = all + block;
    weft_device d = weft_device_of(given, block);
    for (int i = 0; i < 5; i++) {
        weft_device_op op = kept(a, i);
        MUST(weft_device_test(&d, &op) == 0);
        keep(a, i, op);
    }
    MUST(a->op[2].value == ((uint64_t)block << 32 | 2) && a->op[3].value == ((uint64_t)block << 32 | 3));
    weft_device_op op;
    MUST(weft_device_get(&d, a->mine, a->there, 8 * METAL_WORDS, &op) == 0);
    keep(a, 0, op);
    MUST(weft_device_send(&d, (uint32_t)(a->there >> 48), 40, block, a->mine, 0, &op) == 0);
    keep(a, 1, op);
    MUST(weft_device_submit_start(&d, 99, a->mine, 1, 0, true, &op) == 0);
    keep(a, 2, op);
    MUST(weft_device_claim_start(&d, 99, a->mine, 1, true, &op) == 0);
    keep(a, 3, op);
    MUST(weft_device_complete_start(&d, 99, a->mine, a->mine, 1, true, &op) == 0);
    keep(a, 4, op);
    MUST(weft_device_ask_start(&d, 62, a->mine, &op) == 0);
    keep(a, 5, op);
    a->result = 0;
}

kernel void metal_read(const device weft_device *given, device metal_argument *all, uint block)
{
    device metal_argument *a = all + block;
    weft_device d = weft_device_of(given, block);
    const device uint64_t *mine = (const device uint64_t *)weft_device_ptr(&d, a->mine, 8 * METAL_WORDS);
    for (int i = 0; i < 6; i++) {
        weft_device_op op = kept(a, i);
        int rc = weft_device_test(&d, &op);
        MUST(i < 1 ? rc == 0 : i < 2 ? rc == 0 || rc == -WEFT_DEVICE_EINVAL : rc == -WEFT_DEVICE_ENOENT || rc == -WEFT_DEVICE_EBADF);
    }
    for (uint i = 0; i < METAL_WORDS; i++) {
        uint64_t is = i == 1   ? 1000 + block
                      : i == 2 ? 7
                      : i == 3 ? 8
                      : i == 4 ? (uint64_t)block << 32
                      : i == 5 ? ((uint64_t)block << 32 | 5) + 5
                               : (uint64_t)block << 32 | i;
        MUST(mine[i] == is);
    }
    a->result = 0;
}

/* Starts more requests than there is room for: those that find no room fail at once. */
kernel void metal_flood(const device weft_device *given, device metal_argument *all, uint block)
{
    device metal_argument *a = all + block;
    weft_device d = weft_device_of(given, block);
    a->posted = 0;
    for (int i = 0; i < 1000; i++) {
        int rc = weft_device_put_value(&d, a->there + 8, (uint64_t)i, 0);
        MUST(rc == 0 || rc == -WEFT_DEVICE_EAGAIN);
        a->posted += rc == 0;
    }
    weft_device_op op;
    MUST(weft_device_get(&d, a->mine, a->there, 8, &op) == -WEFT_DEVICE_EAGAIN);
    MUST(weft_device_put_nowait(&d, a->there, a->mine, 8, &op) == -WEFT_DEVICE_EAGAIN);
    a->result = 0;
}

/* A request that fails and has no op, and a request whose op nobody reads. */
kernel void metal_wrong(const device weft_device *given, device metal_argument *all, uint block)
{
    device metal_argument *a = all + block;
    weft_device d = weft_device_of(given, block);
    weft_device_op op;
    MUST(weft_device_nothing(&d, false) == 0 && weft_device_put(&d, a->mine, a->mine, 8, &op) == 0);
    weft_device_leave(&d, &op);
    MUST(weft_device_put(&d, (uint64_t)0xffff << 48, a->mine, 8, 0) == 0);
    a->result = 0;
}
