/* SPDX-License-Identifier: MIT
 *
 * The rings by which kernels send requests to their node, and the calls that put a request into a ring and wait for its answer. A kernel's
 * author needs weft_device_op, weft_device_test(), weft_device_wait() and weft_device_leave(); the operations are in weft/device.h.
 *
 * A ring is an array of slots of 32 bytes in the host's memory. A request takes one slot or two. A thread of a kernel takes the number of a
 * slot by an atomic of the device. Then the thread writes the slot's two cells of 16 bytes, each by one store. One bit of each cell changes
 * with every round of the ring, and shows the node whether the cell is new. So cells are never cleared, and may arrive in any order. Node
 * and kernels never write the same word, because an atomic of the processor and an atomic of the device are not atomic against each other.
 */
#ifndef WEFT_DEVICE_RING_H
#define WEFT_DEVICE_RING_H

#include "device_memory.h"
#if !defined(WEFT_DEVICE_METAL)
#include <stddef.h>
#endif

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
extern "C" {
#endif

/* The errors of kernels' calls. They have Linux's numbers on every system. */
#define WEFT_DEVICE_ENOENT       2   /* there is no such service or queue */
#define WEFT_DEVICE_EIO          5   /* the driver of the GPU has failed */
#define WEFT_DEVICE_EBADF        9   /* the queue is closed */
#define WEFT_DEVICE_EAGAIN       11  /* the call cannot succeed now, and does not wait */
#define WEFT_DEVICE_ENOMEM       12  /* a node has not enough memory for the operation */
#define WEFT_DEVICE_EACCES       13  /* a rule of the gateway or the permissions of the file forbid the access */
#define WEFT_DEVICE_EFAULT       14  /* the address is invalid */
#define WEFT_DEVICE_EBUSY        16  /* another thread uses the same socket or file */
#define WEFT_DEVICE_EINVAL       22  /* a wrong argument */
#define WEFT_DEVICE_EPIPE        32  /* the peer accepts no more bytes */
#define WEFT_DEVICE_EPROTO       71  /* a kernel has written an invalid request, or another node has sent an invalid answer */
#define WEFT_DEVICE_EMSGSIZE     90  /* the message or the datagram is too large */
#define WEFT_DEVICE_ENOTSUP      95  /* a kernel of this kind of GPU cannot wait (weft/device.metal.h) */
#define WEFT_DEVICE_EOPNOTSUPP   95  /* the node does not offer that service */
#define WEFT_DEVICE_ENETDOWN     100 /* the other node is alive, but out of reach (weft/fabric.h) */
#define WEFT_DEVICE_ECONNABORTED 103 /* the link broke: the operation may or may not have happened */
#define WEFT_DEVICE_ECONNRESET   104 /* the other node is gone, or the peer has reset the connection */
#define WEFT_DEVICE_ENOBUFS      105 /* too many operations on a node's GPU memory are under way */
#define WEFT_DEVICE_ESHUTDOWN    108 /* there will be no more tasks */
#define WEFT_DEVICE_ETIMEDOUT    110 /* weft_device.deadline_ns or the call's time-out has passed */
#define WEFT_DEVICE_ECONNREFUSED 111 /* no program listens at that address */
#define WEFT_DEVICE_EINPROGRESS  115 /* the operation is under way */
#define WEFT_DEVICE_ESTALE       116 /* the file has changed since it was opened */

/* --- the layout that kernels and their node share --- */

/* Bit 63 of a cell's `high` changes with every round of the ring. */
#define WEFT_DEVICE_CELLS 2u /* cells of a slot */
typedef struct weft_device_slot {
    weft_device_cell cell[WEFT_DEVICE_CELLS];
} __attribute__((aligned(32))) weft_device_slot;

/* Kinds of requests. In cell 0, `low` is an address or a node. `high` has the round (bit 63), the kind (62 to 56), whether an answer is
 * requested (55), and the length (54 to 0). The comment of each kind gives the contents of the other cells. Cells 2 and 3 are in the
 * request's second slot. */
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
/* Other threads of the node complete requests of WEFT_DEVICE_RECORD and of the following four kinds. In these four kinds the length is the
 * number of tasks, and `high` of cell 1 is the queue's number. */
#define WEFT_DEVICE_SUBMIT   14u /* low: address of the tasks; cell 1: low: address for their ids, or 0 */
#define WEFT_DEVICE_CLAIM    15u /* low: address for the leases */
#define WEFT_DEVICE_COMPLETE 16u /* low: address of the leases; cell 1: low: address of the results */
#define WEFT_DEVICE_RENEW    17u /* low: address of the leases */
#define WEFT_DEVICE_KINDS    18u

#define WEFT_DEVICE_FIRST        65536u /* no buffer of a pool or an arena begins at a lower offset; so 0 (WEFT_NULL) is no memory */
#define WEFT_DEVICE_RECORD_BYTES 256u
#define WEFT_DEVICE_TASKS        64u /* maximum number of tasks of one request */

#define WEFT_DEVICE_ROUND      ((uint64_t)1 << 63)
#define WEFT_DEVICE_KIND_SHIFT 56
#define WEFT_DEVICE_ANSWER     ((uint64_t)1 << 55)
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

/* The round bit of request number `ticket`, in a ring of mask + 1 slots. The bit is 1 in the first round, so a zeroed ring has no
 * requests. */
WEFT_DEVICE_CALL uint64_t weft_device_round(uint64_t ticket, uint64_t mask)
{
    return (ticket & (mask + 1)) ? 0 : WEFT_DEVICE_ROUND;
}

/* One ring. Kernels write `slots`, and the node reads them. The node writes `taken` and `answers`, and kernels read them. The other fields
 * are for kernels only. In an answer, `low` is the value. The lower half of `high` is the status, and the upper half is the low 32 bits of
 * the request's number + 1. */
typedef struct weft_device_ring {
    WEFT_FAR weft_device_slot *slots;
    WEFT_FAR const uint64_t *taken;           /* number of slots that the node has read, and that are free again */
    WEFT_FAR const weft_device_cell *answers; /* indexed by the request's first slot */
    uint64_t mask;                            /* number of slots (a power of two) minus 1 */
    WEFT_FAR uint64_t *next;                  /* number of the next slot; a request has the number of its first slot */
    WEFT_FAR uint64_t *taken_seen;            /* the last read value of `taken` */
    WEFT_FAR uint64_t *guess;                 /* a former value of `next`, with which an attempt starts */
    WEFT_FAR uint32_t *awaited;               /* for each slot: 1 until the answer to its last request was read */
} weft_device_ring;

typedef struct weft_device {
    uint32_t rank, size; /* the node's rank and the cluster's size */
    uint32_t rings;      /* block b uses ring b modulo the number of rings */
    uint32_t block;      /* C: the number of this block; CUDA: blockIdx.x is added to this number */
    int64_t deadline_ns; /* maximum wait of a call */
    WEFT_FAR weft_device_ring *ring;
    WEFT_FAR const uint64_t *pool; /* [size]: the kernel's address of each node's pool; 0: the kernel cannot load and store there */
    WEFT_FAR const uint64_t *pool_bytes;
    WEFT_FAR const uint64_t *arena;  /* [size][16][2]: for each space (0: the pool) the kernel's address and the number of bytes; 0: the
                                        kernel cannot load and store there */
    WEFT_FAR const uint64_t *notice; /* written by the node. Word 0: not 0 when the GPU is being closed. From word 1 on: one bit for each
                                        node, 1 if the node is gone */
    bool nowait; /* false from the node. In a copy that is true, calls do not wait for room in the ring (weft/device.h) */
} weft_device;

/* An operation under way. Fields are private. */
typedef struct weft_device_op {
    uint64_t ticket;
    uint32_t ring;  /* top bit set: the thread's later reads must come after the operation */
    int32_t status; /* 1: under way */
    uint64_t value;
} weft_device_op;
#define WEFT_DEVICE_BEFORE_READS (1u << 31)

/* The number of this thread's block. */
WEFT_DEVICE_CALL uint32_t weft_device_block(WEFT_NEAR const weft_device *d)
{
#if defined(__CUDACC__)
    return d->block + blockIdx.x;
#else
    return d->block;
#endif
}

/* --- requests --- */

/* The clock of a wait. Initialize it with zeros, and call weft_device_late() between polls: that returns true if the deadline has passed or
 * the GPU is being closed. weft_device_late_after() is for waits with a time-out of their own; a time-out below 0 stands for the deadline.
 */
typedef struct weft_device_patience {
    int64_t since;
    uint32_t looks;
} weft_device_patience;
/* True at every 16th poll. A waiting thread then also reads words that change rarely. */
WEFT_DEVICE_CALL bool weft_device_now_and_then(WEFT_NEAR const weft_device_patience *p)
{
    return p->looks % 16 == 0;
}
WEFT_DEVICE_CALL bool weft_device_late_after(WEFT_NEAR const weft_device *d, WEFT_NEAR weft_device_patience *p, int64_t timeout_ns)
{
#if defined(WEFT_DEVICE_METAL)
    (void)d, (void)p, (void)timeout_ns;
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
    return now - p->since > (timeout_ns < 0 ? d->deadline_ns : timeout_ns) || (weft_device_now_and_then(p) && weft_device_load(d->notice));
#endif
}
WEFT_DEVICE_CALL bool weft_device_late(WEFT_NEAR const weft_device *d, WEFT_NEAR weft_device_patience *p)
{
    return weft_device_late_after(d, p, -1);
}

/* Whether that node has left or died. The kernel's node reports it within about 1 ms. Also true for nodes that joined after the GPU was
 * opened. */
WEFT_DEVICE_CALL bool weft_device_gone(WEFT_NEAR const weft_device *d, uint32_t node)
{
    return node >= d->size || (weft_device_load(d->notice + 1 + node / 64) >> node % 64 & 1);
}

#if defined(WEFT_DEVICE_METAL)
/* Takes the numbers of `slots` slots. -WEFT_DEVICE_EAGAIN: there will be no room while the kernel runs. Threads share only the lower 32
 * bits of the next number. The upper half follows from `taken`, which is constant while a kernel runs. */
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
/* Whether `slots` slots are free from number `ticket` on. Without `ask` the call does not read the host's memory, so it may return false
 * although the slots are free. */
WEFT_DEVICE_CALL bool weft_device_has_room(WEFT_FAR const weft_device_ring *r, uint64_t ticket, uint32_t slots, bool ask)
{
    int64_t last = (int64_t)(ticket + slots), size = (int64_t)(r->mask + 1);
    if (last - (int64_t)weft_device_load_guess(r->taken_seen) <= size || last - (int64_t)weft_device_load_own(r->taken_seen) <= size)
        return true;
    if (!ask)
        return false;
    uint64_t taken = weft_device_load(r->taken); /* pairs with the release in gpu_ring_publish() */
    if (last - (int64_t)taken > size)
        return false;
    weft_device_store_own(r->taken_seen, taken); /* this may overwrite a newer value of another thread, which only costs a further read */
    return true;
}

#define WEFT_DEVICE_ASKS 4u /* a thread that waits for free slots reads the host's memory at one of so many polls */
/* Takes the numbers of `slots` slots. -WEFT_DEVICE_EAGAIN: the slots are not free, and `wait` is false. Numbers are taken only when the
 * slots are free, because taken slots must be filled. If `place` is not NULL, the call also tries to reserve the place for the answer, and
 * stores in `*place` whether this succeeded; both atomics are issued together. The first attempt uses a number from a cache. If this number
 * is old, the compare-and-swap fails and returns the right number. */
WEFT_DEVICE_CALL int weft_device_reserve(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_ring *r, uint32_t slots, bool wait,
                                         WEFT_NEAR uint64_t *ticket, WEFT_NEAR bool *place)
{
    weft_device_patience p = {0, 0};
    uint64_t t = weft_device_load_guess(r->guess);
    for (;;) {
        /* Each waiting thread reads the host's memory only at some polls, and shares the result. Otherwise these reads would fill the bus
         * that the requests need. */
        if (weft_device_has_room(r, t, slots, p.looks % WEFT_DEVICE_ASKS == 0)) {
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
            t = was; /* other threads took these numbers */
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
/* weft_device_reserve() for all active threads of a warp with the same kind of request: one thread takes the numbers for all. */
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
    /* there may be free slots for a single request */
    return rc == -WEFT_DEVICE_EAGAIN ? weft_device_reserve(d, r, slots, wait, ticket, place) : rc;
}
#else
#define weft_device_reserve_together weft_device_reserve
#endif

/* A request: its kind and the values of its cells, without the bits for round and answer. `high[0]` is a length or a number of tasks. */
typedef struct weft_device_request {
    uint32_t kind;
    uint64_t low[3], high[3];
} weft_device_request;

/* Writes a slot. Its first cell has the kind, and is written last. */
WEFT_DEVICE_CALL void weft_device_fill(WEFT_FAR const weft_device_ring *r, uint64_t ticket, uint64_t low0, uint64_t high0, uint64_t low1,
                                       uint64_t high1)
{
    WEFT_FAR weft_device_cell *cell = r->slots[ticket & r->mask].cell;
    uint64_t round = weft_device_round(ticket, r->mask);
    weft_device_store_cell(&cell[1], low1, round | (high1 & ~WEFT_DEVICE_ROUND));
    weft_device_store_cell(&cell[0], low0, round | (high0 & ~WEFT_DEVICE_ROUND));
}

/* Reserves the place for an answer. The place is free when the previous answer has been read from it. */
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

/* Whether the kernel's later reads must be ordered after an operation of this kind, because the operation reads memory or may announce data
 * to the kernel. */
WEFT_DEVICE_CALL bool weft_device_reads(uint32_t kind)
{
    return kind == WEFT_DEVICE_GET || kind == WEFT_DEVICE_FETCH_ADD || kind == WEFT_DEVICE_SWAP || kind == WEFT_DEVICE_COMPARE_SWAP ||
           kind >= WEFT_DEVICE_RECORD;
}

/* Puts a request into the ring. With an op, the node answers. -WEFT_DEVICE_EAGAIN: there is no room in the ring, or
 * the place of the answer is in use, and `wait` is false or d->nowait is true. */
WEFT_DEVICE_CALL int weft_device_post(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_request *q, bool wait,
                                      WEFT_NEAR weft_device_op *op)
{
    uint32_t block = weft_device_block(d), slots = weft_device_slots(q->kind);
    uint32_t number = block < d->rings ? block : block % d->rings; /* avoids a division, which is slow on a GPU */
    uint64_t ticket;
    bool place = false;
    wait = wait && !d->nowait;
#if defined(WEFT_DEVICE_METAL)
    WEFT_FAR const weft_device_ring *r = &d->ring[number];
    wait = false;
    int rc = weft_device_reserve(r, slots, &ticket);
#else
    const weft_device_ring ring = d->ring[number], *r = &ring; /* a local copy: the ring's description is constant */
    if (op && !wait && weft_device_load_flag(&r->awaited[weft_device_load_own(r->next) & r->mask]))
        return -WEFT_DEVICE_EAGAIN;
    int rc = weft_device_reserve_together(d, r, slots, wait, &ticket, op ? &place : NULL);
#endif
    if (rc)
        return rc;
    if (op) {
        rc = place ? 0 : weft_device_await(d, r, ticket, wait);
        if (rc) {
            for (uint32_t i = 0; i < slots; i++) /* taken slots must be filled */
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

/* Whether the answer has arrived. If so, stores the result in the op, and frees the answer's place. */
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

/* The cell of the op's answer in the ring. */
WEFT_DEVICE_CALL WEFT_FAR const weft_device_cell *weft_device_answer_of(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_op *op)
{
    WEFT_FAR const weft_device_ring *r = weft_device_ring_of(d, op);
    return &r->answers[op->ticket & r->mask];
}

/* -WEFT_DEVICE_EINPROGRESS while the operation is under way; otherwise its result. */
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

/* Waits for the operation. -WEFT_DEVICE_ETIMEDOUT: it is still under way. */
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

/* Abandons the op: its result is lost, and its place in the ring becomes free. */
WEFT_DEVICE_CALL void weft_device_leave(WEFT_NEAR const weft_device *d, WEFT_NEAR weft_device_op *op)
{
    if (op->status == 1) {
        WEFT_FAR weft_device_ring *r = weft_device_ring_of(d, op);
        op->status = -WEFT_DEVICE_ETIMEDOUT;
        weft_device_store_flag(&r->awaited[op->ticket & r->mask], 0);
    }
}

/* Posts a request, waits for the answer, and stores its value in `*old` (may be NULL). */
WEFT_DEVICE_CALL int weft_device_call(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_request *q, WEFT_NEAR uint64_t *old)
{
#if defined(WEFT_DEVICE_METAL)
    (void)d, (void)q, (void)old;
    return -WEFT_DEVICE_ENOTSUP;
#else
    weft_device_op op = {0, 0, 0, 0}; /* if the ring is full, this stays as it is: not under way */
    int rc = weft_device_post(d, q, true, &op);
    if (rc)
        return rc; /* the request was not posted */
    rc = weft_device_wait(d, &op);
    if (rc == -WEFT_DEVICE_ETIMEDOUT)
        weft_device_leave(d, &op); /* frees the answer's place, unless the operation itself has timed out */
    if (rc == 0 && old)
        *old = op.value;
    return rc;
#endif
}

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
}
#endif
#endif
