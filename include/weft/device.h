/* SPDX-License-Identifier: MIT
 *
 * The calls of kernels: operations on the memory of all nodes, which go to the kernel's node over rings of requests. The same source
 * compiles as C and C++, for kernels of the `host` back end, whose blocks are threads, and as CUDA.
 *
 * A kernel is given a weft_device (weft_gpu_device(), weft/gpu.h), and runs on one of that GPU's threads. Addresses are those of
 * weft/types.h. Memory of its own node that an operation reads or writes (`src` of a put, `dst` of a get) is named by such an address, too,
 * and lies in the pool or an arena.
 *
 * Every call ends, with 0 or a negative errno. A wait ends with -WEFT_DEVICE_ETIMEDOUT after weft_device.deadline_ns, or when the GPU is
 * being closed. The numbers of errors are Linux's, on every system.
 *
 * An operation that is given a weft_device_op is complete when weft_device_test() says so. Call weft_device_test() until then, or
 * weft_device_leave(): the answer occupies a place of the ring until it is read. Without an op, an operation is complete after the next
 * weft_device_flush() of that block to its node, which also returns the first error of the operations before it. Operations of one block to
 * one node begin in the order in which the threads of the block call them. Operations of different blocks are not ordered.
 *
 * Calls for a warp or a block, whose threads work together, are in weft/device.cuh.
 *
 * How requests travel: a ring is an array of slots of 32 bytes in the host's memory. A request takes one slot or two. A thread takes the
 * slot's number by an atomic of the device, and writes the slot's two cells of 16 bytes, each by one store. One bit of each cell changes
 * with every round of the ring, so the node sees by the cell itself whether it is new. So nothing has to be cleared, and cells may arrive
 * in any order. No word is written by both sides, because atomics of a processor and of a device on the same word are not atomic together.
 */
#ifndef WEFT_DEVICE_H
#define WEFT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device_memory.h"
#include "queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Errors of these calls, as Linux numbers them on every system. */
#define WEFT_DEVICE_ENOENT      2   /* there is no such service or queue */
#define WEFT_DEVICE_EBADF       9   /* the queue is closed */
#define WEFT_DEVICE_EAGAIN      11  /* not possible now, and the caller does not wait */
#define WEFT_DEVICE_EFAULT      14  /* there is no such memory */
#define WEFT_DEVICE_EINVAL      22  /* a wrong argument */
#define WEFT_DEVICE_ECONNRESET  104 /* the other node is gone */
#define WEFT_DEVICE_ESHUTDOWN   108 /* there are no more tasks */
#define WEFT_DEVICE_ETIMEDOUT   110 /* weft_device.deadline_ns has passed */
#define WEFT_DEVICE_EINPROGRESS 115 /* the operation is under way */

/* --- the layout that kernels and their node share --- */

/* Bit 63 of a cell's `high` is the bit of the round. */
#define WEFT_DEVICE_CELLS 2u /* the size of a slot */
typedef struct weft_device_slot {
    weft_device_cell cell[WEFT_DEVICE_CELLS];
} __attribute__((aligned(32))) weft_device_slot;

/* Kinds of requests. Cell 0: `low` is an address or node; `high` is the round (bit 63), kind (62 to 56), whether an answer is wanted (55),
   and length (54 to 0). The contents of the other cells stand at each kind; cells 2 and 3 are those of a second slot. */
#define WEFT_DEVICE_NOTHING      1u  /* does nothing; for measurements */
#define WEFT_DEVICE_PUT          2u  /* cell 1: low: address of the source */
#define WEFT_DEVICE_PUT_VALUE    3u  /* cell 1: low: the 8 bytes */
#define WEFT_DEVICE_GET          4u  /* cell 1: low: address of the destination */
#define WEFT_DEVICE_PUT_SIGNAL   5u  /* cell 1: low: source, high: space and offset of the signal; cell 2: low: what to add */
#define WEFT_DEVICE_FETCH_ADD    6u  /* cell 1: low: what to add */
#define WEFT_DEVICE_SWAP         7u  /* cell 1: low: the new value */
#define WEFT_DEVICE_COMPARE_SWAP 8u  /* cell 1: low: expected; cell 2: low: desired */
#define WEFT_DEVICE_SEND         9u  /* low: node; cell 1: low: address of the payload, high: handler; cell 2: low: the header's 8 bytes */
#define WEFT_DEVICE_FENCE        10u /* low: node */
#define WEFT_DEVICE_FLUSH        11u /* low: node */
#define WEFT_DEVICE_TASK_DONE    12u /* low: the task's number; cell 1: low: result, high: its length; cell 2: low: worker, status */
#define WEFT_DEVICE_RECORD       13u /* low: address of the record; cell 1: low: number of the service */
/* Requests from WEFT_DEVICE_RECORD on are completed by other threads of the node. For queues: the length is the number of tasks; cell 1:
   high: the queue. */
#define WEFT_DEVICE_SUBMIT   14u /* low: address of the tasks; cell 1: low: address for their ids, or 0 */
#define WEFT_DEVICE_CLAIM    15u /* low: address for the leases */
#define WEFT_DEVICE_COMPLETE 16u /* low: address of the leases; cell 1: low: address of the results */
#define WEFT_DEVICE_RENEW    17u /* low: address of the leases */
#define WEFT_DEVICE_KINDS    18u

#define WEFT_DEVICE_RECORD_BYTES 256u
#define WEFT_DEVICE_TASKS        64u /* the most tasks of one request */

/* A thread draws a task without checking that there is one only if at least this many are there (weft_device_next_task()). */
#ifndef WEFT_DEVICE_TASKS_SURE
#define WEFT_DEVICE_TASKS_SURE 512u
#endif

#define WEFT_DEVICE_ROUND      (1ull << 63)
#define WEFT_DEVICE_KIND_SHIFT 56
#define WEFT_DEVICE_ANSWER     (1ull << 55)
#define WEFT_DEVICE_LENGTH     (WEFT_DEVICE_ANSWER - 1)

/* The number of slots of a request of this kind; 0: there is no such kind. */
WEFT_DEVICE_CALL uint32_t weft_device_slots(uint32_t kind)
{
    if (kind == 0 || kind >= WEFT_DEVICE_KINDS)
        return 0;
    const uint32_t two =
        1u << WEFT_DEVICE_PUT_SIGNAL | 1u << WEFT_DEVICE_COMPARE_SWAP | 1u << WEFT_DEVICE_SEND | 1u << WEFT_DEVICE_TASK_DONE;
    return two >> kind & 1 ? 2 : 1;
}

/* The round's bit of a request with the number `ticket`, in a ring of mask + 1 slots. Memory that is all zeros holds no request. */
WEFT_DEVICE_CALL uint64_t weft_device_round(uint64_t ticket, uint64_t mask)
{
    return (ticket & (mask + 1)) ? 0 : WEFT_DEVICE_ROUND;
}

/* One ring. Kernels write `slots` and the node reads them. The node writes `taken` and `answers` and kernels read them. Only kernels use
   the rest. In an answer, the upper half of `high` is the low 32 bits of the request's number + 1, its lower half the status; `low` is the
   value. */
typedef struct weft_device_ring {
    weft_device_slot *slots;
    const uint64_t *taken;           /* how many slots the node has read, which are free again */
    const weft_device_cell *answers; /* indexed by the request's first slot */
    uint64_t mask;                   /* slots - 1; a power of two */
    uint64_t *next;                  /* number of the next slot; a request's number is that of its first slot */
    uint64_t *taken_seen;            /* the value of `taken` that was last read */
    uint64_t *guess;                 /* `next`, as a thread last left it; perhaps not the newest */
    uint32_t *awaited;               /* for each slot: 1 until the answer of its last request has been read */
} weft_device_ring;

typedef struct weft_device {
    uint32_t rank, size; /* the node's rank and the cluster's size */
    uint32_t rings;      /* block b uses ring b modulo the number of rings */
    uint32_t block;      /* C: which block this is; CUDA: blockIdx.x is added to it */
    int64_t deadline_ns; /* the longest time that a call waits */
    weft_device_ring *ring;
    const uint64_t *pool; /* [size]: the kernel's address of each node's pool; 0: the kernel cannot load and store there */
    const uint64_t *pool_bytes;
    const uint64_t *arena; /* [size][16][2]: for each space the kernel's address and its bytes; 0: the kernel cannot load and store there */
    const uint64_t
        *notice; /* written by the node: word 0: not 0 when the GPU is being closed; from word 1 on a bit for each node: it is gone */
} weft_device;

/* A task for a worker's blocks. The node writes it: `number` is the task's number + 1, and 0 while the other words change. */
typedef struct weft_device_task_slot {
    uint64_t number, unused[7];
    weft_device_cell task[4]; /* a weft_task */
} __attribute__((aligned(128))) weft_device_task_slot;

#define WEFT_DEVICE_BEATS 1024u
/* A ring of tasks that the node has claimed ahead (weft_gpu_worker_open()). The node writes `slots`, `filled` and `ended`; kernels write
   the rest. A block takes the number of a task by an atomic of the device (weft_device_next_task()). */
typedef struct weft_device_worker {
    uint64_t number; /* the worker's number */
    uint64_t mask;   /* slots - 1; a power of two */
    const weft_device_task_slot *slots;
    const uint64_t *filled; /* how many tasks have been put into the ring */
    const uint64_t *ended;  /* not 0: no more tasks will come */
    uint64_t *beats;        /* for each block: the number of the task that it last waited for, + 1 */
    uint64_t *next;         /* the number of the next task to be taken */
    uint64_t *filled_seen;  /* the value of `filled` that was last read */
} weft_device_worker;

/* A task that a block has taken. */
typedef struct weft_device_task {
    weft_task task;
    uint64_t number; /* private */
} weft_device_task;

/* An operation under way. Fields are private. */
typedef struct weft_device_op {
    uint64_t ticket;
    uint32_t ring;  /* top bit set: the thread's later reads must come after the operation */
    int32_t status; /* 1: under way */
    uint64_t value;
} weft_device_op;
#define WEFT_DEVICE_BEFORE_READS (1u << 31)

/* The number of this thread's block. */
WEFT_DEVICE_CALL uint32_t weft_device_block(const weft_device *d)
{
#if defined(__CUDACC__)
    return d->block + blockIdx.x;
#else
    return d->block;
#endif
}

/* --- requests --- */

/* The clock of a wait. Initialize it with zeros, and call weft_device_late() between two polls. True: the deadline has passed, or the GPU
   is being closed. */
typedef struct weft_device_patience {
    int64_t since;
    uint32_t looks;
} weft_device_patience;
/* Whether a waiting thread reads words that rarely change at this poll: it does so only at every few polls. */
WEFT_DEVICE_CALL bool weft_device_now_and_then(const weft_device_patience *p)
{
    return p->looks % 16 == 0;
}
WEFT_DEVICE_CALL bool weft_device_late(const weft_device *d, weft_device_patience *p)
{
    p->looks++;
#if defined(__CUDACC__)
    if (p->looks <= WEFT_DEVICE_LOOKS)
        return false;
#endif
    int64_t now = weft_device_now_ns();
    if (p->since == 0)
        p->since = now;
    weft_device_pause();
    return now - p->since > d->deadline_ns || (weft_device_now_and_then(p) && weft_device_load(d->notice));
}

/* Whether that node has left or died. The kernel's node reports it within about 1 ms. */
WEFT_DEVICE_CALL bool weft_device_gone(const weft_device *d, uint32_t node)
{
    return node >= d->size || (weft_device_load(d->notice + 1 + node / 64) >> node % 64 & 1);
}

/* Whether `slots` slots are free from number `ticket` on. */
WEFT_DEVICE_CALL bool weft_device_has_room(const weft_device_ring *r, uint64_t ticket, uint32_t slots)
{
    int64_t last = (int64_t)(ticket + slots), size = (int64_t)(r->mask + 1);
    if (last - (int64_t)weft_device_load_guess(r->taken_seen) <= size || last - (int64_t)weft_device_load_own(r->taken_seen) <= size)
        return true;
    uint64_t taken = weft_device_load(r->taken); /* pairs with the release in gpu_ring_publish() */
    if (last - (int64_t)taken > size)
        return false;
    weft_device_store_own(r->taken_seen, taken); /* another thread may have stored a newer value meanwhile: then it is read once more */
    return true;
}

/* Takes the numbers of so many slots. -WEFT_DEVICE_EAGAIN: there is no room, and the caller does not wait for it. A thread that has taken
   numbers must fill the slots, so numbers are taken only when there is room. `place` (may be NULL): also takes the place of the answer if
   it is free; both atomics are issued together.
   The first number that a thread tries is a guess from a cache, which other blocks do not keep up to date. After a wrong guess the
   compare-and-swap fails and returns the right number; nothing else is lost. */
WEFT_DEVICE_CALL int weft_device_reserve(const weft_device *d, const weft_device_ring *r, uint32_t slots, bool wait, uint64_t *ticket,
                                         bool *place)
{
    weft_device_patience p = {0, 0};
    uint64_t t = weft_device_load_guess(r->guess);
    for (;;) {
        if (weft_device_has_room(r, t, slots)) {
            bool raised = false;
            uint64_t was = place ? weft_device_swap_and_raise(r->next, t, t + slots, &r->awaited[t & r->mask], &raised)
                                 : weft_device_swap_own(r->next, t, t + slots);
            if (was == t) {
                weft_device_store_guess(r->guess, t + slots);
                *ticket = t;
                if (place)
                    *place = raised;
                return 0;
            }
            if (raised)
                weft_device_store_flag(&r->awaited[t & r->mask], 0);
            t = was; /* other threads took them */
            continue;
        }
        uint64_t now = weft_device_load_own(r->next);
        if (now != t) {
            t = now;
            continue;
        }
        if (!wait)
            return -WEFT_DEVICE_EAGAIN;
        if (weft_device_late(d, &p))
            return -WEFT_DEVICE_ETIMEDOUT;
    }
}

#if defined(__CUDACC__)
/* The same for all threads of a warp that come here together with the same request: one of them takes the numbers for all. */
WEFT_DEVICE_CALL int weft_device_reserve_together(const weft_device *d, const weft_device_ring *r, uint32_t slots, bool wait,
                                                  uint64_t *ticket, bool *place)
{
    unsigned here = __activemask();
    if ((here & (here - 1)) == 0)
        return weft_device_reserve(d, r, slots, wait, ticket, place);
    unsigned same = __match_any_sync(here, (unsigned long long)(uintptr_t)r->next << 4 | slots << 2 | (wait ? 2u : 0u) | (place ? 1u : 0u));
    unsigned lane, before, count = (unsigned)__popc(same);
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    before = (unsigned)__popc(same & ((1u << lane) - 1));
    if (count == 1 || count * slots > (r->mask + 1) / 2)
        return weft_device_reserve(d, r, slots, wait, ticket, place);
    int rc = 0;
    unsigned long long first = 0;
    if (before == 0) {
        uint64_t t = 0;
        rc = weft_device_reserve(d, r, count * slots, wait, &t, NULL);
        first = t;
    }
    int leader = __ffs((int)same) - 1;
    rc = __shfl_sync(same, rc, leader);
    *ticket = __shfl_sync(same, first, leader) + (uint64_t)before * slots;
    if (place)
        *place = false;
    /* there may be room for one request, if not for all */
    return rc == -WEFT_DEVICE_EAGAIN ? weft_device_reserve(d, r, slots, wait, ticket, place) : rc;
}
#else
#define weft_device_reserve_together weft_device_reserve
#endif

/* The contents of a request's cells, without round, kind and answer; `high[0]` is the length. */
typedef struct weft_device_request {
    uint32_t kind;
    uint64_t low[3], high[3];
} weft_device_request;

/* Writes a slot. Its first cell has the kind, and is written last. */
WEFT_DEVICE_CALL void weft_device_fill(const weft_device_ring *r, uint64_t ticket, uint64_t low0, uint64_t high0, uint64_t low1,
                                       uint64_t high1)
{
    weft_device_cell *cell = r->slots[ticket & r->mask].cell;
    uint64_t round = weft_device_round(ticket, r->mask);
    weft_device_store_cell(&cell[1], low1, round | (high1 & ~WEFT_DEVICE_ROUND));
    weft_device_store_cell(&cell[0], low0, round | (high0 & ~WEFT_DEVICE_ROUND));
}

/* Takes the place of an answer, which is free when the former answer has been read. */
WEFT_DEVICE_CALL int weft_device_await(const weft_device *d, const weft_device_ring *r, uint64_t ticket, bool wait)
{
    weft_device_patience p = {0, 0};
    while (!weft_device_raise_flag(&r->awaited[ticket & r->mask])) {
        if (!wait)
            return -WEFT_DEVICE_EAGAIN;
        if (weft_device_late(d, &p))
            return -WEFT_DEVICE_ETIMEDOUT;
    }
    return 0;
}

/* Whether an operation reads memory for the kernel, or may announce data to it: then the kernel's later reads must come after it. */
WEFT_DEVICE_CALL bool weft_device_reads(uint32_t kind)
{
    return kind == WEFT_DEVICE_GET || kind == WEFT_DEVICE_FETCH_ADD || kind == WEFT_DEVICE_SWAP || kind == WEFT_DEVICE_COMPARE_SWAP ||
           kind >= WEFT_DEVICE_RECORD;
}

/* Puts a request into the ring. With an op, the node answers. */
WEFT_DEVICE_CALL int weft_device_post(const weft_device *d, const weft_device_request *q, bool wait, weft_device_op *op)
{
    uint32_t block = weft_device_block(d), slots = weft_device_slots(q->kind);
    uint32_t number = block < d->rings ? block : block % d->rings; /* avoids a division, which is slow on a GPU */
    const weft_device_ring ring = d->ring[number], *r = &ring;     /* read once: stores of the kernel do not change it */
    uint64_t ticket;
    if (op && !wait && weft_device_load_flag(&r->awaited[weft_device_load_own(r->next) & r->mask]))
        return -WEFT_DEVICE_EAGAIN;
    bool place = false;
    int rc = weft_device_reserve_together(d, r, slots, wait, &ticket, op ? &place : NULL);
    if (rc)
        return rc;
    if (op) {
        rc = place ? 0 : weft_device_await(d, r, ticket, wait);
        if (rc) {
            for (uint32_t i = 0; i < slots; i++) /* the slots were taken and must be filled */
                weft_device_fill(r, ticket + i, 0, (uint64_t)WEFT_DEVICE_NOTHING << WEFT_DEVICE_KIND_SHIFT, 0, 0);
            return rc;
        }
        op->ticket = ticket;
        op->ring = number | (weft_device_reads(q->kind) ? WEFT_DEVICE_BEFORE_READS : 0);
        op->status = 1;
    }
    if (q->kind != WEFT_DEVICE_NOTHING && q->kind != WEFT_DEVICE_PUT_VALUE && q->kind != WEFT_DEVICE_FLUSH)
        weft_device_publish();
    if (slots == 2)
        weft_device_fill(r, ticket + 1, q->low[2], q->high[2], 0, 0);
    weft_device_fill(r, ticket, q->low[0],
                     (uint64_t)q->kind << WEFT_DEVICE_KIND_SHIFT | (op ? WEFT_DEVICE_ANSWER : 0) | (q->high[0] & WEFT_DEVICE_LENGTH),
                     q->low[1], q->high[1]);
    return 0;
}

WEFT_DEVICE_CALL weft_device_ring *weft_device_ring_of(const weft_device *d, const weft_device_op *op)
{
    return &d->ring[op->ring & ~WEFT_DEVICE_BEFORE_READS];
}

/* Whether the answer has come. If so, reads it, and frees its place. */
WEFT_DEVICE_CALL bool weft_device_answered(const weft_device *d, weft_device_op *op, uint64_t low, uint64_t high)
{
    if ((uint32_t)(high >> 32) != (uint32_t)(op->ticket + 1))
        return false;
    weft_device_ring *r = weft_device_ring_of(d, op);
    if (op->ring & WEFT_DEVICE_BEFORE_READS)
        weft_device_follow();
    op->value = low;
    op->status = (int32_t)(uint32_t)high;
    weft_device_store_flag(&r->awaited[op->ticket & r->mask], 0);
    return true;
}

/* The cell of the op's answer in the ring. */
WEFT_DEVICE_CALL const weft_device_cell *weft_device_answer_of(const weft_device *d, const weft_device_op *op)
{
    const weft_device_ring *r = weft_device_ring_of(d, op);
    return &r->answers[op->ticket & r->mask];
}

/* -WEFT_DEVICE_EINPROGRESS while the operation is under way; otherwise its result. */
WEFT_DEVICE_CALL int weft_device_test(const weft_device *d, weft_device_op *op)
{
    if (op->status == 1) {
        uint64_t low, high;
        weft_device_load_cell(weft_device_answer_of(d, op), &low, &high);
        if (!weft_device_answered(d, op, low, high))
            return -WEFT_DEVICE_EINPROGRESS;
    }
    return op->status;
}

/* Waits for the operation. -WEFT_DEVICE_ETIMEDOUT: it is still under way. */
WEFT_DEVICE_CALL int weft_device_wait(const weft_device *d, weft_device_op *op)
{
    weft_device_patience p = {0, 0};
    if (op->status == 1) {
        const weft_device_cell *answer = weft_device_answer_of(d, op);
        uint64_t low, high;
        weft_device_first_look();
        for (weft_device_load_cell(answer, &low, &high); !weft_device_answered(d, op, low, high);
             weft_device_load_cell(answer, &low, &high))
            if (weft_device_late(d, &p))
                return -WEFT_DEVICE_ETIMEDOUT;
    }
    return op->status;
}

/* Abandons the op: its result is lost, and its place in the ring is freed. */
WEFT_DEVICE_CALL void weft_device_leave(const weft_device *d, weft_device_op *op)
{
    if (op->status == 1) {
        weft_device_ring *r = weft_device_ring_of(d, op);
        op->status = -WEFT_DEVICE_ETIMEDOUT;
        weft_device_store_flag(&r->awaited[op->ticket & r->mask], 0);
    }
}

/* --- operations: like those of the same names in weft/fabric.h --- */

WEFT_DEVICE_CALL int weft_device_put(const weft_device *d, uint64_t dst, uint64_t src, uint64_t len, weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_PUT, {dst, src, 0}, {len, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
/* The same, but returns -WEFT_DEVICE_EAGAIN instead of waiting for room in the ring. */
WEFT_DEVICE_CALL int weft_device_put_nowait(const weft_device *d, uint64_t dst, uint64_t src, uint64_t len, weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_PUT, {dst, src, 0}, {len, 0, 0}};
    return weft_device_post(d, &q, false, op);
}
/* Puts 8 bytes. All other calls are ordered after everything that this thread has stored before. This one and weft_device_flush() are not:
   if the word tells others of such stores, call weft_device_publish() first. */
WEFT_DEVICE_CALL int weft_device_put_value(const weft_device *d, uint64_t dst, uint64_t value, weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_PUT_VALUE, {dst, value, 0}, {8, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
WEFT_DEVICE_CALL int weft_device_get(const weft_device *d, uint64_t dst, uint64_t src, uint64_t len, weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_GET, {src, dst, 0}, {len, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
/* `signal` is a word at the node of `dst`. */
WEFT_DEVICE_CALL int weft_device_put_signal(const weft_device *d, uint64_t dst, uint64_t src, uint64_t len, uint64_t signal, uint64_t add,
                                            weft_device_op *op)
{
    const uint64_t place = (1ull << 48) - 1; /* the address without its node */
    if ((dst & ~place) != (signal & ~place))
        return -WEFT_DEVICE_EINVAL;
    weft_device_request q = {WEFT_DEVICE_PUT_SIGNAL, {dst, src, add}, {len, signal & place, 0}};
    return weft_device_post(d, &q, true, op);
}
/* Sends a message with a header of 8 bytes. The payload is in this node's pool. */
WEFT_DEVICE_CALL int weft_device_send(const weft_device *d, uint32_t node, uint32_t handler, uint64_t header, uint64_t payload,
                                      uint64_t len, weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_SEND, {node, payload, header}, {len, handler, 0}};
    return weft_device_post(d, &q, true, op);
}
WEFT_DEVICE_CALL int weft_device_fence(const weft_device *d, uint32_t node)
{
    weft_device_request q = {WEFT_DEVICE_FENCE, {node, 0, 0}, {0, 0, 0}};
    return weft_device_post(d, &q, true, NULL);
}

/* The following calls wait. */
WEFT_DEVICE_CALL int weft_device_call(const weft_device *d, const weft_device_request *q, uint64_t *old)
{
    weft_device_op op = {0, 0, 0, 0}; /* not under way if the request finds no room */
    int rc = weft_device_post(d, q, true, &op);
    if (rc)
        return rc; /* there is no op */
    rc = weft_device_wait(d, &op);
    if (rc == -WEFT_DEVICE_ETIMEDOUT)
        weft_device_leave(d, &op); /* frees the answer's place after a time-out of the wait; does nothing if the operation itself has ended
                                      with that error */
    if (rc == 0 && old)
        *old = op.value;
    return rc;
}
WEFT_DEVICE_CALL int weft_device_fetch_add(const weft_device *d, uint64_t word, uint64_t add, uint64_t *old)
{
    weft_device_request q = {WEFT_DEVICE_FETCH_ADD, {word, add, 0}, {8, 0, 0}};
    return weft_device_call(d, &q, old);
}
WEFT_DEVICE_CALL int weft_device_swap(const weft_device *d, uint64_t word, uint64_t value, uint64_t *old)
{
    weft_device_request q = {WEFT_DEVICE_SWAP, {word, value, 0}, {8, 0, 0}};
    return weft_device_call(d, &q, old);
}
WEFT_DEVICE_CALL int weft_device_compare_swap(const weft_device *d, uint64_t word, uint64_t expected, uint64_t desired, uint64_t *old)
{
    weft_device_request q = {WEFT_DEVICE_COMPARE_SWAP, {word, expected, desired}, {8, 0, 0}};
    return weft_device_call(d, &q, old);
}
/* Hands a record of WEFT_DEVICE_RECORD_BYTES, in this node's pool, to a service of this node (weft_gpu_service()). The record belongs to
   the service until it has answered. */
WEFT_DEVICE_CALL int weft_device_ask_start(const weft_device *d, uint32_t service, uint64_t record, weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_RECORD, {record, service, 0}, {WEFT_DEVICE_RECORD_BYTES, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
/* The same, and waits for the answer: returns its status; `value` may be NULL. */
WEFT_DEVICE_CALL int weft_device_ask(const weft_device *d, uint32_t service, uint64_t record, uint64_t *value)
{
    weft_device_request q = {WEFT_DEVICE_RECORD, {record, service, 0}, {WEFT_DEVICE_RECORD_BYTES, 0, 0}};
    return weft_device_call(d, &q, value);
}
/* Waits until all operations that this block has started towards `node` are complete and visible there. Returns the first error of
   operations without an op since the last flush of that node. Blocks that use the same ring (weft_gpu_config.rings) share this error: only
   one of them gets it. */
WEFT_DEVICE_CALL int weft_device_flush(const weft_device *d, uint32_t node)
{
    weft_device_request q = {WEFT_DEVICE_FLUSH, {node, 0, 0}, {0, 0, 0}};
    return weft_device_call(d, &q, NULL);
}
/* Sends a request that does nothing, and waits for the answer: for measurements. */
WEFT_DEVICE_CALL int weft_device_nothing(const weft_device *d, bool answer)
{
    weft_device_request q = {WEFT_DEVICE_NOTHING, {0, 0, 0}, {0, 0, 0}};
    return answer ? weft_device_call(d, &q, NULL) : weft_device_post(d, &q, true, NULL);
}

/* The kernel's pointer to the memory of an address, if it can load and store there: the pools of this node and of others of its host, the
   arenas of its own GPU, and those of GPUs of other nodes of its host that are mapped (weft_link_stats.arena_way). NULL if it cannot, or if
   any of the `bytes` are outside. */
WEFT_DEVICE_CALL void *weft_device_ptr(const weft_device *d, uint64_t addr, uint64_t bytes)
{
    uint32_t node = (uint32_t)(addr >> 48), space = (uint32_t)(addr >> 44) & 0xfu;
    uint64_t offset = addr & ((1ull << 44) - 1);
    if (space != 0 && node < d->size) {
        const uint64_t *arena = d->arena + 2 * ((uint64_t)node * 16 + space);
        uint64_t most = weft_device_load(arena + 1); /* the length is written after the address */
        if (offset > most || bytes > most - offset || most == 0)
            return NULL;
        return (void *)(uintptr_t)(weft_device_load_own(arena) + offset);
    }
    if (node >= d->size || space != 0 || d->pool[node] == 0 || offset > d->pool_bytes[node] || bytes > d->pool_bytes[node] - offset)
        return NULL;
    return (void *)(uintptr_t)(d->pool[node] + offset);
}

/* Waits until the 8-byte word, in this node's own pool or an arena of this GPU, is at least `value`: a signal or counter that `node`
   adds to. -WEFT_DEVICE_ECONNRESET: that node is gone. */
WEFT_DEVICE_CALL int weft_device_wait_for(const weft_device *d, uint32_t node, uint64_t word, uint64_t value, uint64_t *seen)
{
    const uint64_t *p = (const uint64_t *)weft_device_ptr(d, word, 8);
    weft_device_patience patience = {0, 0};
    bool gone = false;
    if (!p || (word & 7) || (word >> 48) != d->rank || node >= d->size)
        return -WEFT_DEVICE_EINVAL;
    for (;;) {
        uint64_t now = weft_device_load(p); /* pairs with the signal's release */
        if (now >= value) {
            if (seen)
                *seen = now;
            return 0;
        }
        if (gone)
            return -WEFT_DEVICE_ECONNRESET;
        if (weft_device_late(d, &patience))
            return -WEFT_DEVICE_ETIMEDOUT;
        gone = weft_device_now_and_then(&patience) &&
               weft_device_gone(d, node); /* then read the word once more, because everything that the node has sent has arrived by now */
    }
}
/* Like weft_device_wait_for(), but any node may add to the word: ends when the value is reached, or at the deadline. */
WEFT_DEVICE_CALL int weft_device_wait_at_least(const weft_device *d, uint64_t word, uint64_t value, uint64_t *seen)
{
    return weft_device_wait_for(d, d->rank, word, value, seen);
}

/* --- work queues: like the calls of the same names in weft/queue.h --- */

/* `queue` is a number from weft_gpu_queue(). Tasks, ids, leases and results are in this node's own pool, at most WEFT_DEVICE_TASKS of them
   in a call; with more it fails with -WEFT_DEVICE_EINVAL. They belong to the node until the answer has come: after -WEFT_DEVICE_ETIMEDOUT
   it may still write there, until the GPU is closed. Errors are those of weft/queue.h, with -ENOENT for a number that no queue has, and
   -EFAULT for memory outside the pool.
   The `_start` calls try once: their op ends with the number of tasks in `value`, or with -WEFT_DEVICE_EAGAIN: there is no room, or nothing
   is ready, now. With `wait` they wait for room in the ring of requests; without it they return -WEFT_DEVICE_EAGAIN. The other calls wait:
   at most weft_device.deadline_ns until there is something, and as long for each answer. */

/* A payload that the kernel has stored itself is visible before the task. One that it has put to another node is, after
   weft_device_flush(). */
WEFT_DEVICE_CALL int weft_device_submit_start(const weft_device *d, uint32_t queue, uint64_t tasks, uint32_t count, uint64_t ids, bool wait,
                                              weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_SUBMIT, {tasks, ids, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
WEFT_DEVICE_CALL int weft_device_claim_start(const weft_device *d, uint32_t queue, uint64_t leases, uint32_t max, bool wait,
                                             weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_CLAIM, {leases, 0, 0}, {max, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* The op's `value` has a bit for each claim that this node still holds, bit 0 for the first. */
WEFT_DEVICE_CALL int weft_device_renew_start(const weft_device *d, uint32_t queue, uint64_t leases, uint32_t count, bool wait,
                                             weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_RENEW, {leases, 0, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* The op's `value` has a bit for each completion that was accepted, bit 0 for the first. */
WEFT_DEVICE_CALL int weft_device_complete_start(const weft_device *d, uint32_t queue, uint64_t leases, uint64_t results, uint32_t count,
                                                bool wait, weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_COMPLETE, {leases, results, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* Repeats the request until its answer is not -WEFT_DEVICE_EAGAIN. Returns the number of tasks. */
WEFT_DEVICE_CALL int weft_device_ask_queue(const weft_device *d, const weft_device_request *q)
{
    weft_device_patience p = {0, 0};
    for (;;) {
        uint64_t n = 0;
        int rc = weft_device_call(d, q, &n);
        if (rc != -WEFT_DEVICE_EAGAIN)
            return rc ? rc : (int)n;
        if (weft_device_late(d, &p))
            return -WEFT_DEVICE_ETIMEDOUT;
    }
}
/* Submits as many of the first tasks as there is room for, at least 1, and returns how many. `ids` may be 0. -WEFT_DEVICE_ETIMEDOUT: there
   was no room; or no answer came, and the tasks may have been submitted. */
WEFT_DEVICE_CALL int weft_device_submit(const weft_device *d, uint32_t queue, uint64_t tasks, uint32_t count, uint64_t ids)
{
    weft_device_request q = {WEFT_DEVICE_SUBMIT, {tasks, ids, 0}, {count, queue, 0}};
    return weft_device_ask_queue(d, &q);
}
/* Claims up to `max` tasks, and returns how many, at least 1. If a task takes longer than the queue's lease, renew its lease in time
   (weft_device_renew()); a persistent worker renews leases itself. -WEFT_DEVICE_ESHUTDOWN: nothing is ready, and nothing will come. If the
   answer comes too late, the claimed tasks are ready again when the lease ends. */
WEFT_DEVICE_CALL int weft_device_claim(const weft_device *d, uint32_t queue, uint64_t leases, uint32_t max)
{
    weft_device_request q = {WEFT_DEVICE_CLAIM, {leases, 0, 0}, {max, queue, 0}};
    return weft_device_ask_queue(d, &q);
}
/* Submits a request about several claims. Returns for how many it succeeded; `*which` has a bit for each of these. */
WEFT_DEVICE_CALL int weft_device_ask_bits(const weft_device *d, const weft_device_request *q, uint64_t *which)
{
    uint64_t bits = 0;
    int rc = weft_device_call(d, q, &bits), n = 0;
    if (rc)
        return rc;
    if (which)
        *which = bits;
    for (; bits; bits &= bits - 1)
        n++;
    return n;
}
/* Completes `count` claims, with as many weft_result. Returns how many were accepted; `accepted` (may be NULL) has a bit for each. */
WEFT_DEVICE_CALL int weft_device_complete(const weft_device *d, uint32_t queue, uint64_t leases, uint64_t results, uint32_t count,
                                          uint64_t *accepted)
{
    weft_device_request q = {WEFT_DEVICE_COMPLETE, {leases, results, 0}, {count, queue, 0}};
    return weft_device_ask_bits(d, &q, accepted);
}
/* Renews `count` claims, like weft_renew(): the leases change. Returns how many this node still holds; `held` (may be NULL) has a bit for
 * each. Other claims are lost, or their home does not answer now. */
WEFT_DEVICE_CALL int weft_device_renew(const weft_device *d, uint32_t queue, uint64_t leases, uint32_t count, uint64_t *held)
{
    weft_device_request q = {WEFT_DEVICE_RENEW, {leases, 0, 0}, {count, queue, 0}};
    return weft_device_ask_bits(d, &q, held);
}

/* --- persistent workers: kernels that do tasks until there are no more --- */

/* Reads the task with that number. False: the node has taken it back. */
WEFT_DEVICE_CALL bool weft_device_read_task(const weft_device_worker *k, uint64_t number, weft_device_task *out)
{
    union {
        weft_task task;
        uint64_t words[8];
    } u;
    const weft_device_task_slot *s = &k->slots[number & k->mask];
    if (weft_device_load(&s->number) != number + 1)
        return false;
    weft_device_load_words(s->task, 4, u.words);
    out->task = u.task;
    out->number = number;
    return weft_device_load(&s->number) == number + 1; /* otherwise the words may belong to two tasks */
}

/* Waits until task `t` has been put into the ring. -WEFT_DEVICE_EAGAIN: it has not, and this thread has drawn no number (`drawn`: it
   has). */
WEFT_DEVICE_CALL int weft_device_task_is_in(const weft_device *d, const weft_device_worker *k, uint64_t t, bool drawn,
                                            weft_device_patience *p)
{
    uint64_t *beat = &k->beats[weft_device_block(d) % WEFT_DEVICE_BEATS];
    while (t >= weft_device_load_own(k->filled_seen)) {
        uint64_t ended = weft_device_load(k->ended); /* read before `filled`: tasks that came before the end are still done */
        uint64_t filled = weft_device_load(k->filled);
        if (t < filled) {
            weft_device_store_own(k->filled_seen, filled);
            return 0;
        }
        if (ended)
            return -WEFT_DEVICE_ESHUTDOWN;
        weft_device_tell(beat, t + 1); /* all tasks before `t` have been taken */
        if (weft_device_late(d, p))
            return -WEFT_DEVICE_ETIMEDOUT;
        if (!drawn)
            return -WEFT_DEVICE_EAGAIN;
    }
    return 0;
}

/* Takes the next task of a worker, and waits for one. One thread takes one task: in a block that works together, let one thread call this
   and tell the others. -WEFT_DEVICE_ESHUTDOWN: there are no more, because the worker has been closed or its queue has ended.
   -WEFT_DEVICE_ETIMEDOUT: none has come for weft_device.deadline_ns.
   While many tasks are there, a thread draws its number by an addition, which always succeeds. Otherwise it draws by a compare-and-swap,
   and only if the task is there, so that it holds no number when its wait ends. If more threads than WEFT_DEVICE_TASKS_SURE add at the same
   time, one may draw the number of a task that has not come yet, and waits for it. If it gives up, the node gives that task back to the
   queue after weft_gpu_worker_config.task_ns. */
WEFT_DEVICE_CALL int weft_device_next_task(const weft_device *d, const weft_device_worker *k, weft_device_task *out)
{
    weft_device_patience p = {0, 0};
    for (;;) {
        uint64_t t = weft_device_load_own(k->next);
        bool sure = (int64_t)(weft_device_load_own(k->filled_seen) - t) > (int64_t)WEFT_DEVICE_TASKS_SURE;
        if (sure)
            t = weft_device_add_own(k->next, 1);
        int rc = weft_device_task_is_in(d, k, t, sure, &p);
        if (rc == -WEFT_DEVICE_EAGAIN)
            continue;
        if (rc)
            return rc;
        if ((sure || weft_device_swap_own(k->next, t, t + 1) == t) && weft_device_read_task(k, t, out))
            return 0;
    }
}

/* Completes a task: its submitter gets `status`, `result` and `result_len` as from weft_complete(). Everything that this thread has stored
   before is visible to whoever sees the task complete; stores of other threads are, after a barrier of the block. Does not wait for the
   completion. */
WEFT_DEVICE_CALL int weft_device_task_done(const weft_device *d, const weft_device_worker *k, const weft_device_task *task, int32_t status,
                                           uint64_t result, uint64_t result_len)
{
    weft_device_request q = {
        WEFT_DEVICE_TASK_DONE, {task->number, result, k->number << 32 | (uint32_t)status}, {0, result_len & ~WEFT_DEVICE_ROUND, 0}};
    return weft_device_post(d, &q, true, NULL);
}

#ifdef __cplusplus
}
#endif
#endif
