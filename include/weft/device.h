/* SPDX-License-Identifier: MIT
 *
 * What a kernel calls: operations on the memory of all nodes, handed to the kernel's node over rings of requests. One source for all:
 * it compiles as C and C++, for kernels of the `host` back end, which threads play, as CUDA, and as Metal
 * (weft/device.metal.h says what is different there; compiled, never run).
 *
 * A kernel is given a weft_device (weft_gpu_device(), weft/gpu.h), and is one of its threads. Addresses are those of weft/types.h; memory
 * of its own node that an operation reads or writes (`src` of a put, `dst` of a get) is named by its address, too, and lies in the pool or
 * an arena.
 *
 * Every call ends: with 0, or a negative errno. A wait ends with -WEFT_DEVICE_ETIMEDOUT after weft_device.deadline_ns, or when the GPU is
 * being closed. The numbers of errors are Linux's, on every system.
 *
 * An operation that is given a weft_device_op is complete when weft_device_test() says so, and has to be asked until it is: its answer
 * keeps a place of the ring until it is looked at (or weft_device_leave()). Without one it is complete after the next weft_device_flush()
 * of that block to its node, which also returns the first error of those before it. Operations of one block to one node begin in the order
 * in which its threads called; those of other blocks have no order with them.
 *
 * Calls for a warp or a block, whose threads work together, are in weft/device.cuh.
 *
 * How requests travel: a ring is an array of slots of 32 bytes in the host's memory; a request takes one slot, or two. A thread takes the
 * slot's number by an atomic of the device, and writes the slot's two cells of 16 bytes, each by one store. One bit of each cell changes
 * with every round of the ring, so that the node sees by the cell itself whether it is new: nobody clears anything, and cells may arrive
 * in any order. No word is written by both sides, since atomics of a processor and a device on one word are none.
 */
#ifndef WEFT_DEVICE_H
#define WEFT_DEVICE_H

#include "device_memory.h"
#if !defined(WEFT_DEVICE_METAL)
#include <stddef.h>

#include "queue.h"
#endif

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
extern "C" {
#endif

/* Errors of these calls, as Linux numbers them on every system. */
#define WEFT_DEVICE_ENOENT      2   /* no such service or queue */
#define WEFT_DEVICE_EBADF       9   /* the queue is closed */
#define WEFT_DEVICE_EAGAIN      11  /* not now, and the caller does not wait */
#define WEFT_DEVICE_EFAULT      14  /* no such memory */
#define WEFT_DEVICE_EINVAL      22  /* a wrong argument */
#define WEFT_DEVICE_ENOTSUP     95  /* a kernel of this kind of GPU cannot wait (weft/device.metal.h) */
#define WEFT_DEVICE_ECONNRESET  104 /* the other node is gone */
#define WEFT_DEVICE_ESHUTDOWN   108 /* there are no more tasks */
#define WEFT_DEVICE_ETIMEDOUT   110 /* weft_device.deadline_ns has passed */
#define WEFT_DEVICE_EINPROGRESS 115 /* the operation is under way */

/* --- layout, shared by kernels and their node --- */

/* Bit 63 of a cell's `high` is the round's. */
#define WEFT_DEVICE_CELLS 2u /* of a slot */
typedef struct weft_device_slot {
    weft_device_cell cell[WEFT_DEVICE_CELLS];
} __attribute__((aligned(32))) weft_device_slot;

/* Kinds of requests. Cell 0: `low` is an address or node, `high` is round (bit 63), kind (62 to 56), answer wanted (55), length (54 to
 * 0). What the further cells hold stands beside each kind; cells 2 and 3 are those of a second slot. */
#define WEFT_DEVICE_NOTHING      1u  /* tells that it was taken, for measuring */
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
/* Those from the record on end when another thread of the node says so. Of queues: the length is how many; cell 1: high: the queue. */
#define WEFT_DEVICE_SUBMIT   14u /* low: address of the tasks; cell 1: low: address for their ids, or 0 */
#define WEFT_DEVICE_CLAIM    15u /* low: address for the leases */
#define WEFT_DEVICE_COMPLETE 16u /* low: address of the leases; cell 1: low: address of the results */
#define WEFT_DEVICE_RENEW    17u /* low: address of the leases */
#define WEFT_DEVICE_KINDS    18u

#define WEFT_DEVICE_RECORD_BYTES 256u
#define WEFT_DEVICE_TASKS        64u /* of one request, at most */

/* So many tasks have to be there, for a thread to draw one without making sure (weft_device_next_task()). */
#ifndef WEFT_DEVICE_TASKS_SURE
#define WEFT_DEVICE_TASKS_SURE 512u
#endif

#define WEFT_DEVICE_ROUND      ((uint64_t)1 << 63)
#define WEFT_DEVICE_KIND_SHIFT 56
#define WEFT_DEVICE_ANSWER     ((uint64_t)1 << 55)
#define WEFT_DEVICE_LENGTH     (WEFT_DEVICE_ANSWER - 1)

/* How many slots a request of a kind takes; 0: there is no such kind. */
WEFT_DEVICE_CALL uint32_t weft_device_slots(uint32_t kind)
{
    if (kind == 0 || kind >= WEFT_DEVICE_KINDS)
        return 0;
    const uint32_t two =
        1u << WEFT_DEVICE_PUT_SIGNAL | 1u << WEFT_DEVICE_COMPARE_SWAP | 1u << WEFT_DEVICE_SEND | 1u << WEFT_DEVICE_TASK_DONE;
    return two >> kind & 1 ? 2 : 1;
}

/* The bit of requests with the number `ticket` in a ring of mask + 1 slots. Memory that is all zeros holds no request. */
WEFT_DEVICE_CALL uint64_t weft_device_round(uint64_t ticket, uint64_t mask)
{
    return (ticket & (mask + 1)) ? 0 : WEFT_DEVICE_ROUND;
}

/* One ring. `slots` is written by kernels and read by the node. `taken` and `answers` are written by the node and read by kernels. The rest
 * is the kernels' own. An answer's `high` is the request's number + 1 (its low 32 bits) above the
 * status (32 bits), `low` the value. */
typedef struct weft_device_ring {
    WEFT_FAR weft_device_slot *slots;
    WEFT_FAR const uint64_t *taken;           /* so many slots the node has read: they are free */
    WEFT_FAR const weft_device_cell *answers; /* by the request's first slot */
    uint64_t mask;                            /* slots - 1; a power of two */
    WEFT_FAR uint64_t *next;                  /* number of the next slot; a request has the number of its first */
    WEFT_FAR uint64_t *taken_seen;            /* `taken`, when it was last read */
    WEFT_FAR uint64_t *guess;                 /* `next`, as a thread last left it; perhaps not the newest */
    WEFT_FAR uint32_t *awaited;               /* by slot: 1 while the answer of its last request has not been looked at */
} weft_device_ring;

typedef struct weft_device {
    uint32_t rank, size; /* of the node */
    uint32_t rings;      /* a block uses the ring of its number */
    uint32_t block;      /* C: which block this is; CUDA: blockIdx.x is added to it */
    int64_t deadline_ns; /* how long a call waits at most */
    WEFT_FAR weft_device_ring *ring;
    WEFT_FAR const uint64_t *pool; /* [size]: where a kernel finds the node's pool; 0: it cannot reach it by loads and stores */
    WEFT_FAR const uint64_t *pool_bytes;
    WEFT_FAR const uint64_t *arena; /* [size][16][2]: of each space, where a kernel finds it, and its bytes; 0: it cannot reach it */
    WEFT_FAR const uint64_t
        *notice; /* written by the node: word 0: not 0 when the GPU is being closed; from word 1 on a bit for each node: it is gone */
} weft_device;

#if !defined(WEFT_DEVICE_METAL)
/* A task on its way to a worker's blocks. Written by the node: `number` is the task's + 1, and 0 while the rest changes. */
typedef struct weft_device_task_slot {
    uint64_t number, unused[7];
    weft_device_cell task[4]; /* a weft_task */
} __attribute__((aligned(128))) weft_device_task_slot;

#define WEFT_DEVICE_BEATS 1024u
/* A ring of tasks that the node has claimed ahead (weft_gpu_worker_open()). The node writes `slots`, `filled` and `ended`, kernels
 * the rest. A block takes the number of a task by an atomic of the device (weft_device_next_task()). */
typedef struct weft_device_worker {
    uint64_t number; /* of the worker */
    uint64_t mask;   /* slots - 1; a power of two */
    WEFT_FAR const weft_device_task_slot *slots;
    const uint64_t *filled; /* so many tasks have been put in */
    const uint64_t *ended;  /* not 0: there will be no more */
    uint64_t *beats;        /* by block: which task it waited for last, + 1 */
    uint64_t *next;         /* the number of the next task to be taken */
    uint64_t *filled_seen;  /* `filled`, when it was last read */
} weft_device_worker;

/* A task that a block has taken. */
typedef struct weft_device_task {
    weft_task task;
    uint64_t number; /* private */
} weft_device_task;
#endif

/* An operation under way. Fields are private. */
typedef struct weft_device_op {
    uint64_t ticket;
    uint32_t ring;  /* the top bit: what the thread reads after it comes after it */
    int32_t status; /* 1: under way */
    uint64_t value;
} weft_device_op;
#define WEFT_DEVICE_BEFORE_READS (1u << 31)

/* The block that this thread is of. */
WEFT_DEVICE_CALL uint32_t weft_device_block(WEFT_NEAR const weft_device *d)
{
#if defined(__CUDACC__)
    return d->block + blockIdx.x;
#else
    return d->block;
#endif
}

/* --- requests --- */

/* A wait that ends: give it zeros, and call it between two looks. True: the time is over, or the GPU is being closed. */
typedef struct weft_device_patience {
    int64_t since;
    uint32_t looks;
} weft_device_patience;
/* What seldom changes is not read at every look. */
WEFT_DEVICE_CALL bool weft_device_now_and_then(WEFT_NEAR const weft_device_patience *p)
{
    return p->looks % 16 == 0;
}
WEFT_DEVICE_CALL bool weft_device_late(WEFT_NEAR const weft_device *d, WEFT_NEAR weft_device_patience *p)
{
#if defined(WEFT_DEVICE_METAL)
    (void)d, (void)p;
    return true; /* nothing changes while a kernel runs */
#else
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
#endif
}

/* Has that node left, or died? Its node tells its kernels within about 1 ms. */
WEFT_DEVICE_CALL bool weft_device_gone(WEFT_NEAR const weft_device *d, uint32_t node)
{
    return node >= d->size || (weft_device_load(d->notice + 1 + node / 64) >> node % 64 & 1);
}

#if defined(WEFT_DEVICE_METAL)
/* Take the numbers of so many slots. -WEFT_DEVICE_EAGAIN: there is no room, and there will be none while the kernel runs. The word that
 * threads share has 32 bits: `taken`, which does not change, says of which number they are the lower half. */
WEFT_DEVICE_CALL int weft_device_reserve(WEFT_FAR const weft_device_ring *r, uint32_t slots, WEFT_NEAR uint64_t *ticket)
{
    uint64_t taken = *r->taken;
    for (;;) {
        uint32_t low = weft_device_load_low(r->next);
        *ticket = taken + (uint32_t)(low - (uint32_t)taken);
        if (*ticket + slots - taken > r->mask + 1)
            return -WEFT_DEVICE_EAGAIN;
        if (weft_device_swap_low(r->next, low, low + slots))
            return 0;
    }
}
#else
/* Are the slots from number `ticket` on free, as many as `slots`? */
WEFT_DEVICE_CALL bool weft_device_has_room(WEFT_FAR const weft_device_ring *r, uint64_t ticket, uint32_t slots)
{
    int64_t last = (int64_t)(ticket + slots), size = (int64_t)(r->mask + 1);
    if (last - (int64_t)weft_device_load_guess(r->taken_seen) <= size || last - (int64_t)weft_device_load_own(r->taken_seen) <= size)
        return true;
    uint64_t taken = weft_device_load(r->taken); /* pairs with the release in gpu_ring_publish() */
    if (last - (int64_t)taken > size)
        return false;
    weft_device_store_own(r->taken_seen, taken); /* another thread may have seen more meanwhile: then it is read once more */
    return true;
}

/* Take the numbers of so many slots. -WEFT_DEVICE_EAGAIN: there is no room, and the caller does not want to wait for it. A thread that has
 * taken numbers must fill the slots: so it takes them only when there is room. `place` (or NULL): take the place of the answer as well, if
 * that is free; both atomics are under way at a time.
 *
 * The first number that a thread tries is a guess from a cache that other blocks do not keep up to date. A wrong guess costs nothing but
 * the time of the compare-and-swap, which fails and says what is right. */
WEFT_DEVICE_CALL int weft_device_reserve(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_ring *r, uint32_t slots, bool wait,
                                         WEFT_NEAR uint64_t *ticket, WEFT_NEAR bool *place)
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
#endif

#if defined(__CUDACC__)
/* The same for all threads of a warp that come here together and want the same: one of them takes the numbers for all. */
WEFT_DEVICE_CALL int weft_device_reserve_together(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_ring *r, uint32_t slots,
                                                  bool wait, WEFT_NEAR uint64_t *ticket, WEFT_NEAR bool *place)
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
    return rc == -WEFT_DEVICE_EAGAIN ? weft_device_reserve(d, r, slots, wait, ticket, place) : rc; /* there may be room for one */
}
#else
#define weft_device_reserve_together weft_device_reserve
#endif

/* What a request says: what its cells hold without round, kind and answer; `high[0]` is the length. */
typedef struct weft_device_request {
    uint32_t kind;
    uint64_t low[3], high[3];
} weft_device_request;

/* Write a slot. Its first cell says what it is, and comes last where stores arrive in order. */
WEFT_DEVICE_CALL void weft_device_fill(WEFT_FAR const weft_device_ring *r, uint64_t ticket, uint64_t low0, uint64_t high0, uint64_t low1,
                                       uint64_t high1)
{
    WEFT_FAR weft_device_cell *cell = r->slots[ticket & r->mask].cell;
    uint64_t round = weft_device_round(ticket, r->mask);
    weft_device_store_cell(&cell[1], low1, round | (high1 & ~WEFT_DEVICE_ROUND));
    weft_device_store_cell(&cell[0], low0, round | (high0 & ~WEFT_DEVICE_ROUND));
}

/* Take the place of an answer: it is free when the one before has been looked at. */
WEFT_DEVICE_CALL int weft_device_await(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_ring *r, uint64_t ticket, bool wait)
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

/* Does it bring what the kernel reads, or may it tell the kernel that there is something to read? */
WEFT_DEVICE_CALL bool weft_device_reads(uint32_t kind)
{
    return kind == WEFT_DEVICE_GET || kind == WEFT_DEVICE_FETCH_ADD || kind == WEFT_DEVICE_SWAP || kind == WEFT_DEVICE_COMPARE_SWAP ||
           kind >= WEFT_DEVICE_RECORD;
}

/* Hand a request over. With an op an answer comes. */
WEFT_DEVICE_CALL int weft_device_post(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_request *q, bool wait,
                                      WEFT_NEAR weft_device_op *op)
{
    uint32_t block = weft_device_block(d), slots = weft_device_slots(q->kind);
    uint32_t number = block < d->rings ? block : block % d->rings; /* a GPU divides slowly */
    uint64_t ticket;
    bool place = false;
#if defined(WEFT_DEVICE_METAL)
    WEFT_FAR const weft_device_ring *r = &d->ring[number];
    wait = false;
    int rc = weft_device_reserve(r, slots, &ticket);
#else
    const weft_device_ring ring = d->ring[number], *r = &ring; /* read once: stores of the kernel do not change it */
    if (op && !wait && weft_device_load_flag(&r->awaited[weft_device_load_own(r->next) & r->mask]))
        return -WEFT_DEVICE_EAGAIN;
    int rc = weft_device_reserve_together(d, r, slots, wait, &ticket, op ? &place : NULL);
#endif
    if (rc)
        return rc;
    if (op) {
        rc = place ? 0 : weft_device_await(d, r, ticket, wait);
        if (rc) {
            for (uint32_t i = 0; i < slots; i++) /* the slots have to be filled */
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

WEFT_DEVICE_CALL WEFT_FAR weft_device_ring *weft_device_ring_of(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_op *op)
{
    return &d->ring[op->ring & ~WEFT_DEVICE_BEFORE_READS];
}

/* Is this the answer? Then take it, and its place is free. */
WEFT_DEVICE_CALL bool weft_device_answered(WEFT_NEAR const weft_device *d, WEFT_NEAR weft_device_op *op, uint64_t low, uint64_t high)
{
    if ((uint32_t)(high >> 32) != (uint32_t)(op->ticket + 1))
        return false;
    WEFT_FAR weft_device_ring *r = weft_device_ring_of(d, op);
    if (op->ring & WEFT_DEVICE_BEFORE_READS)
        weft_device_follow();
    op->value = low;
    op->status = (int32_t)(uint32_t)high;
    weft_device_store_flag(&r->awaited[op->ticket & r->mask], 0);
    return true;
}

/* The place of its answer. */
WEFT_DEVICE_CALL WEFT_FAR const weft_device_cell *weft_device_answer_of(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_op *op)
{
    WEFT_FAR const weft_device_ring *r = weft_device_ring_of(d, op);
    return &r->answers[op->ticket & r->mask];
}

/* -WEFT_DEVICE_EINPROGRESS while it is under way, else its result. */
WEFT_DEVICE_CALL int weft_device_test(WEFT_NEAR const weft_device *d, WEFT_NEAR weft_device_op *op)
{
    if (op->status == 1) {
        uint64_t low, high;
        weft_device_load_cell(weft_device_answer_of(d, op), &low, &high);
        if (!weft_device_answered(d, op, low, high))
            return -WEFT_DEVICE_EINPROGRESS;
    }
    return op->status;
}

/* Wait for it. -WEFT_DEVICE_ETIMEDOUT: it is still under way. */
WEFT_DEVICE_CALL int weft_device_wait(WEFT_NEAR const weft_device *d, WEFT_NEAR weft_device_op *op)
{
    weft_device_patience p = {0, 0};
    if (op->status == 1) {
        WEFT_FAR const weft_device_cell *answer = weft_device_answer_of(d, op);
        uint64_t low, high;
        weft_device_first_look();
        for (weft_device_load_cell(answer, &low, &high); !weft_device_answered(d, op, low, high);
             weft_device_load_cell(answer, &low, &high))
            if (weft_device_late(d, &p))
                return -WEFT_DEVICE_ETIMEDOUT;
    }
    return op->status;
}

/* Ask no more: how it ends nobody learns, and its place in the ring is free. */
WEFT_DEVICE_CALL void weft_device_leave(WEFT_NEAR const weft_device *d, WEFT_NEAR weft_device_op *op)
{
    if (op->status == 1) {
        WEFT_FAR weft_device_ring *r = weft_device_ring_of(d, op);
        op->status = -WEFT_DEVICE_ETIMEDOUT;
        weft_device_store_flag(&r->awaited[op->ticket & r->mask], 0);
    }
}

/* --- operations: as those of the same names in weft/fabric.h. --- */

WEFT_DEVICE_CALL int weft_device_put(WEFT_NEAR const weft_device *d, uint64_t dst, uint64_t src, uint64_t len, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_PUT, {dst, src, 0}, {len, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
/* The same, and -WEFT_DEVICE_EAGAIN instead of waiting for room in the ring. */
WEFT_DEVICE_CALL int weft_device_put_nowait(WEFT_NEAR const weft_device *d, uint64_t dst, uint64_t src, uint64_t len,
                                            WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_PUT, {dst, src, 0}, {len, 0, 0}};
    return weft_device_post(d, &q, false, op);
}
/* Put 8 bytes. The other calls come after all that this thread has stored before; this one does not, nor does weft_device_flush(). Where it
 * tells others of such stores, call weft_device_publish() first. */
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
/* `signal` is a word of the node that `dst` names. */
WEFT_DEVICE_CALL int weft_device_put_signal(WEFT_NEAR const weft_device *d, uint64_t dst, uint64_t src, uint64_t len, uint64_t signal,
                                            uint64_t add, WEFT_NEAR weft_device_op *op)
{
    const uint64_t place = ((uint64_t)1 << 48) - 1; /* an address without its node */
    if ((dst & ~place) != (signal & ~place))
        return -WEFT_DEVICE_EINVAL;
    weft_device_request q = {WEFT_DEVICE_PUT_SIGNAL, {dst, src, add}, {len, signal & place, 0}};
    return weft_device_post(d, &q, true, op);
}
/* A message with a header of 8 bytes; the payload is of this node's pool. */
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

/* Atomics that do not wait: what was there is the op's `value`. */
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

/* These wait. */
WEFT_DEVICE_CALL int weft_device_call(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_request *q, WEFT_NEAR uint64_t *old)
{
#if defined(WEFT_DEVICE_METAL)
    (void)d, (void)q, (void)old;
    return -WEFT_DEVICE_ENOTSUP;
#else
    weft_device_op op = {0, 0, 0, 0}; /* not under way, should the request find no room */
    int rc = weft_device_post(d, q, true, &op);
    if (rc)
        return rc; /* there is no op */
    rc = weft_device_wait(d, &op);
    if (rc == -WEFT_DEVICE_ETIMEDOUT)
        weft_device_leave(d, &op); /* unless the operation itself ended so */
    if (rc == 0 && old)
        *old = op.value;
    return rc;
#endif
}
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
/* Hand a record of WEFT_DEVICE_RECORD_BYTES in this node's own pool to a service of this node (weft_gpu_service()). The record belongs to
 * the service until it has answered. */
WEFT_DEVICE_CALL int weft_device_ask_start(WEFT_NEAR const weft_device *d, uint32_t service, uint64_t record, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_RECORD, {record, service, 0}, {WEFT_DEVICE_RECORD_BYTES, 0, 0}};
    return weft_device_post(d, &q, true, op);
}
/* And wait for its answer: its status; `value` may be NULL. */
WEFT_DEVICE_CALL int weft_device_ask(WEFT_NEAR const weft_device *d, uint32_t service, uint64_t record, WEFT_NEAR uint64_t *value)
{
    weft_device_request q = {WEFT_DEVICE_RECORD, {record, service, 0}, {WEFT_DEVICE_RECORD_BYTES, 0, 0}};
    return weft_device_call(d, &q, value);
}
/* All operations that this block has started towards `node` are complete and visible there. Returns the first error of those without
 * an op since the last flush of that node. Blocks that use the same ring (weft_gpu_config.rings) share this: one of them is told. */
WEFT_DEVICE_CALL int weft_device_flush(WEFT_NEAR const weft_device *d, uint32_t node)
{
    weft_device_request q = {WEFT_DEVICE_FLUSH, {node, 0, 0}, {0, 0, 0}};
    return weft_device_call(d, &q, NULL);
}
/* Nothing, there and back: for measuring. */
WEFT_DEVICE_CALL int weft_device_nothing(WEFT_NEAR const weft_device *d, bool answer)
{
    weft_device_request q = {WEFT_DEVICE_NOTHING, {0, 0, 0}, {0, 0, 0}};
    return answer ? weft_device_call(d, &q, NULL) : weft_device_post(d, &q, true, NULL);
}

/* The memory behind an address, where the kernel reaches it by loads and stores: the pools of this node and of others of its host, the
 * arenas of its own GPU, and those of GPUs of other nodes of its host that are mapped (weft_link_stats.arena_way). NULL where it cannot,
 * or when any of the `bytes` are outside. */
WEFT_DEVICE_CALL WEFT_FAR void *weft_device_ptr(WEFT_NEAR const weft_device *d, uint64_t addr, uint64_t bytes)
{
    uint32_t node = (uint32_t)(addr >> 48), space = (uint32_t)(addr >> 44) & 0xfu;
    uint64_t offset = addr & (((uint64_t)1 << 44) - 1);
    if (space != 0 && node < d->size) {
        WEFT_FAR const uint64_t *arena = d->arena + 2 * ((uint64_t)node * 16 + space);
        uint64_t most = weft_device_load(arena + 1); /* written after the address */
        if (offset > most || bytes > most - offset || most == 0)
            return NULL;
        return weft_device_address(arena, offset);
    }
    if (node >= d->size || space != 0 || d->pool[node] == 0 || offset > d->pool_bytes[node] || bytes > d->pool_bytes[node] - offset)
        return NULL;
    return weft_device_address(&d->pool[node], offset);
}

/* Wait until the 8-byte word, in this node's own pool or an arena of this GPU, is at least `value`: a signal or counter that `node` adds
 * to. -WEFT_DEVICE_ECONNRESET: that node is gone. */
WEFT_DEVICE_CALL int weft_device_wait_for(WEFT_NEAR const weft_device *d, uint32_t node, uint64_t word, uint64_t value,
                                          WEFT_NEAR uint64_t *seen)
{
    WEFT_FAR const uint64_t *p = (WEFT_FAR const uint64_t *)weft_device_ptr(d, word, 8);
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
        gone = weft_device_now_and_then(&patience) && weft_device_gone(d, node); /* then one last look: what it has sent has arrived */
    }
}
/* The same, whoever adds to it: it ends when there is enough, or late. */
WEFT_DEVICE_CALL int weft_device_wait_at_least(WEFT_NEAR const weft_device *d, uint64_t word, uint64_t value, WEFT_NEAR uint64_t *seen)
{
    return weft_device_wait_for(d, d->rank, word, value, seen);
}

/* --- work queues: as the calls of the same names in weft/queue.h. --- */

/* `queue` is a number from weft_gpu_queue(). Tasks, ids, leases and results lie in this node's own pool, at most WEFT_DEVICE_TASKS of them
 * a call; more are -WEFT_DEVICE_EINVAL. They are the node's until the answer has come: after -WEFT_DEVICE_ETIMEDOUT it may write there
 * still, until the GPU is closed. Errors are those of weft/queue.h, with -ENOENT for a number that no queue has and -EFAULT for memory that
 * is not of the pool.
 *
 * The `_start` calls look once: their op ends with how many in `value`, or with -WEFT_DEVICE_EAGAIN: no room, or nothing ready, now. With
 * `wait` they wait for room in the ring of requests, without it they return -WEFT_DEVICE_EAGAIN. The others wait: for at most
 * weft_device.deadline_ns until there is something, and as long for each answer. */

/* A payload that the kernel has stored itself comes before the task; one that it has put to another node does after weft_device_flush(). */
WEFT_DEVICE_CALL int weft_device_submit_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t tasks, uint32_t count, uint64_t ids,
                                              bool wait, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_SUBMIT, {tasks, ids, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
WEFT_DEVICE_CALL int weft_device_claim_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t max, bool wait,
                                             WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_CLAIM, {leases, 0, 0}, {max, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* The op's `value`: a bit for each that is held still, bit 0 for the first. */
WEFT_DEVICE_CALL int weft_device_renew_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t count, bool wait,
                                             WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_RENEW, {leases, 0, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* The op's `value`: a bit for each that was accepted, bit 0 for the first. */
WEFT_DEVICE_CALL int weft_device_complete_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint64_t results,
                                                uint32_t count, bool wait, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_COMPLETE, {leases, results, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* Ask again and again until there is something. How many. */
WEFT_DEVICE_CALL int weft_device_ask_queue(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_request *q)
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
/* Submits those that find room, and returns how many: the first ones, at least 1. `ids` may be 0. -WEFT_DEVICE_ETIMEDOUT: there was no
 * room, or no answer, and then they may have been submitted. */
WEFT_DEVICE_CALL int weft_device_submit(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t tasks, uint32_t count, uint64_t ids)
{
    weft_device_request q = {WEFT_DEVICE_SUBMIT, {tasks, ids, 0}, {count, queue, 0}};
    return weft_device_ask_queue(d, &q);
}
/* Claims up to `max` tasks, and returns how many, at least 1. What takes longer than the queue's lease has to be renewed in time
 * (weft_device_renew()); a persistent worker does that by itself. -WEFT_DEVICE_ESHUTDOWN: nothing is ready, and nothing will come. A claim
 * whose answer came too late is ready again when its lease ends. */
WEFT_DEVICE_CALL int weft_device_claim(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t max)
{
    weft_device_request q = {WEFT_DEVICE_CLAIM, {leases, 0, 0}, {max, queue, 0}};
    return weft_device_ask_queue(d, &q);
}
/* How many, and which: a bit for each. */
WEFT_DEVICE_CALL int weft_device_ask_bits(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_request *q, WEFT_NEAR uint64_t *which)
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
WEFT_DEVICE_CALL int weft_device_complete(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint64_t results, uint32_t count,
                                          WEFT_NEAR uint64_t *accepted)
{
    weft_device_request q = {WEFT_DEVICE_COMPLETE, {leases, results, 0}, {count, queue, 0}};
    return weft_device_ask_bits(d, &q, accepted);
}
/* Renews `count` claims, as weft_renew(): the leases change. Returns how many are held still; `held` (may be NULL) has a bit for each. One
 * that is not may have been lost, or its home does not answer now. */
WEFT_DEVICE_CALL int weft_device_renew(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t count,
                                       WEFT_NEAR uint64_t *held)
{
    weft_device_request q = {WEFT_DEVICE_RENEW, {leases, 0, 0}, {count, queue, 0}};
    return weft_device_ask_bits(d, &q, held);
}

/* --- persistent workers: a kernel that does tasks until there are no more --- */
#if !defined(WEFT_DEVICE_METAL)

/* Read the task with that number. False: the node has taken it back. */
WEFT_DEVICE_CALL bool weft_device_read_task(WEFT_FAR const weft_device_worker *k, uint64_t number, WEFT_NEAR weft_device_task *out)
{
    union {
        weft_task task;
        uint64_t words[8];
    } u;
    WEFT_FAR const weft_device_task_slot *s = &k->slots[number & k->mask];
    if (weft_device_load(&s->number) != number + 1)
        return false;
    weft_device_load_words(s->task, 4, u.words);
    out->task = u.task;
    out->number = number;
    return weft_device_load(&s->number) == number + 1; /* else what was read may be of two tasks */
}

/* Wait until task `t` has been put in. -WEFT_DEVICE_EAGAIN: it has not yet, and this thread has drawn no number (`drawn`: it has). */
WEFT_DEVICE_CALL int weft_device_task_is_in(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_worker *k, uint64_t t, bool drawn,
                                            WEFT_NEAR weft_device_patience *p)
{
    uint64_t *beat = &k->beats[weft_device_block(d) % WEFT_DEVICE_BEATS];
    while (t >= weft_device_load_own(k->filled_seen)) {
        uint64_t ended = weft_device_load(k->ended); /* before `filled`: what came before the end is done */
        uint64_t filled = weft_device_load(k->filled);
        if (t < filled) {
            weft_device_store_own(k->filled_seen, filled);
            return 0;
        }
        if (ended)
            return -WEFT_DEVICE_ESHUTDOWN;
        weft_device_tell(beat, t + 1); /* all before `t` have been taken */
        if (weft_device_late(d, p))
            return -WEFT_DEVICE_ETIMEDOUT;
        if (!drawn)
            return -WEFT_DEVICE_EAGAIN;
    }
    return 0;
}

/* The next task of a worker; waits for one. One thread takes one task: of a block that works together, let one thread call this, and tell
 * the others. -WEFT_DEVICE_ESHUTDOWN: the worker has been closed or its queue has ended, there are no more; -WEFT_DEVICE_ETIMEDOUT: none
 * has come for weft_device.deadline_ns.
 *
 * While many tasks are there, a thread draws its number by an addition, which always succeeds. Otherwise it does so by a compare-and-swap,
 * only if the task is there: so it holds no number when its wait ends. Should more threads than WEFT_DEVICE_TASKS_SURE add at the same
 * time, one may hold the number of a task that has not come, and waits for it; if it gives up, the node gives that task back to the queue
 * after weft_gpu_worker_config.task_ns. */
WEFT_DEVICE_CALL int weft_device_next_task(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_worker *k,
                                           WEFT_NEAR weft_device_task *out)
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

/* The task is done: its submitter gets `status`, `result` and `result_len` as from weft_complete(). All that this thread has stored before
 * is seen by who sees it complete; of other threads' stores, after a barrier of the block. Does not wait for the completion. */
WEFT_DEVICE_CALL int weft_device_task_done(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_worker *k,
                                           WEFT_NEAR const weft_device_task *task, int32_t status, uint64_t result, uint64_t result_len)
{
    weft_device_request q = {
        WEFT_DEVICE_TASK_DONE, {task->number, result, k->number << 32 | (uint32_t)status}, {0, result_len & ~WEFT_DEVICE_ROUND, 0}};
    return weft_device_post(d, &q, true, NULL);
}

#endif

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
}
#endif
#endif
