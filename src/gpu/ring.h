/* SPDX-License-Identifier: MIT
 *
 * A ring of requests: kernels write requests, and the node reads and answers them. A kernel may write anything into the ring, so the node
 * reads each word once, checks it, and then uses it. tests/model/device_ring.pml is a model of the protocol.
 */
#ifndef WEFT_GPU_RING_H
#define WEFT_GPU_RING_H

#include "gpu/gpu.h"

/* A request, from its arrival until it is done. The number of a request is the number of its first slot. */
struct gpu_request {
    uint32_t kind, slots;
    bool answer; /* the kernel wants an answer */
    int status;  /* the result, if the request was complete at once; -EINPROGRESS: the result will be in `op` or `flush` */
    uint64_t low[3], high[3];
    uint64_t value; /* the former value of an atomic */
    weft_op op;
    union {
        struct fab_flush flush;
        struct gpu_request *next;  /* tasks.c: the next request in the list */
        struct gpu_record *record; /* if `kind` is WEFT_DEVICE_RECORD: a record in an arena (record.c); NULL: the record is in the pool */
    };
};

struct gpu_ring {
    weft_device_slot *slots;   /* written by kernels */
    weft_device_cell *answers; /* written by this node */
    _Atomic uint64_t *taken;   /* written by this node */
    uint64_t mask;
    uint64_t head;                /* slots read so far */
    uint64_t done;                /* all requests before this slot are done */
    struct gpu_request *requests; /* one for each slot */
    struct gpu_request **spare;   /* a stack of the free requests: the one that is used next is likely in the cache */
    uint32_t spares;
    struct gpu_request **under_way; /* the requests under way, by their first slot: from `done` to `head` */
    uint32_t nodes;
    /* [nodes + 1]: for each node, the first error of a request without an answer since the last flush of that node. The last entry is for
     * requests that are for no node */
    int *errors;
    uint64_t fenced;        /* number + 1 of the fence that waits at `head`; 0: no fence waits */
    struct fab_flush fence; /* the operations that this fence waits for */
    void *memory;           /* the memory of slots, answers and taken */
    size_t bytes;
};

int gpu_ring_open(struct gpu_ring *r, uint32_t slots, uint32_t nodes);
void gpu_ring_close(struct gpu_ring *r);
/* Reads a cell. Returns false if kernels have not written the cell yet in the round that has this bit (weft_device_round()). */
BASE_INLINE bool gpu_cell(const weft_device_cell *c, uint64_t round, uint64_t *low, uint64_t *high)
{
    uint64_t h = __atomic_load_n(&c->high, __ATOMIC_ACQUIRE); /* pairs with weft_device_store_cell() */
    if ((h ^ round) & WEFT_DEVICE_ROUND)
        return false;
    *low = __atomic_load_n(&c->low, __ATOMIC_RELAXED);
    *high = h & ~WEFT_DEVICE_ROUND;
    return true;
}

static inline bool gpu_ring_cell(const struct gpu_ring *r, uint64_t slot, uint32_t cell, uint64_t *low, uint64_t *high)
{
    return gpu_cell(&r->slots[slot & r->mask].cell[cell], weft_device_round(slot, r->mask), low, high);
}

/* Returns true if no request is under way, and none has arrived. */
static inline bool gpu_ring_quiet(const struct gpu_ring *r)
{
    /* relaxed: gpu_ring_next() reads the word again */
    uint64_t high = __atomic_load_n(&r->slots[r->head & r->mask].cell[0].high, __ATOMIC_RELAXED);
    return r->done == r->head && (high & WEFT_DEVICE_ROUND) != weft_device_round(r->head, r->mask);
}

/* Returns the next request. Returns NULL if it has not arrived completely, or if too many requests are under way. `*why` is -EPROTO if the
 * slot has no valid request. The same request is returned until gpu_ring_keep() or gpu_ring_end() removes it. */
BASE_INLINE struct gpu_request *gpu_ring_next(struct gpu_ring *r, int *why)
{
    /* Local copies: after each acquire the compiler would read the members again. */
    const uint64_t head = r->head, mask = r->mask, room = mask + 1 - (head - r->done), round = weft_device_round(head, mask);
    const weft_device_slot *s = &r->slots[head & mask];
    struct gpu_request *q = room ? r->spare[r->spares - 1] : NULL; /* if the ring has room, a request is free */
    uint64_t first, more;
    *why = 0;
    if (!q || !gpu_cell(&s->cell[0], round, &q->low[0], &first))
        return NULL;
    uint32_t kind = (uint32_t)(first >> WEFT_DEVICE_KIND_SHIFT), slots = weft_device_slots(kind);
    if (BASE_UNLIKELY(!slots)) {
        *why = -EPROTO;
        return NULL;
    }
    if (slots > room || !gpu_cell(&s->cell[1], round, &q->low[1], &q->high[1]))
        return NULL;
    if (slots == 2 && (!gpu_ring_cell(r, head + 1, 0, &q->low[2], &q->high[2]) || !gpu_ring_cell(r, head + 1, 1, &more, &more)))
        return NULL;
    q->kind = kind;
    q->slots = slots;
    q->answer = (first & WEFT_DEVICE_ANSWER) != 0;
    q->high[0] = first & WEFT_DEVICE_LENGTH;
    q->value = 0;
    return q;
}

/* Removes the next request from the ring, which is then under way. */
static inline void gpu_ring_keep(struct gpu_ring *r, struct gpu_request *q)
{
    r->spares--;
    r->under_way[r->head & r->mask] = q;
    r->head += q->slots;
}

/* The node that the request is for. */
static inline uint64_t gpu_request_node(const struct gpu_request *q)
{
    if (q->kind == WEFT_DEVICE_TASK_DONE)
        return UINT64_MAX; /* the request is for no node */
    bool plain = q->kind == WEFT_DEVICE_SEND || q->kind == WEFT_DEVICE_FENCE || q->kind == WEFT_DEVICE_FLUSH;
    return plain ? q->low[0] : q->low[0] >> (WEFT_OFFSET_BITS + WEFT_SPACE_BITS);
}

/* Records that a request without an answer has failed, for the next flush of its node. */
static inline void gpu_ring_fail(struct gpu_ring *r, uint64_t node, int status)
{
    int *error = &r->errors[node < r->nodes ? node : r->nodes];
    *error = *error ? *error : status;
}

/* Returns the error that a flush of the node must report, and clears it. */
static inline int gpu_ring_failure(struct gpu_ring *r, uint64_t node)
{
    int *error = &r->errors[node < r->nodes && r->errors[node] ? node : r->nodes], was = *error;
    *error = 0;
    return was;
}

/* Answers the request at `done`, and removes it. */
static inline void gpu_ring_finish(struct gpu_ring *r, const struct gpu_request *q, int status)
{
    if (q->answer) {
        weft_device_cell *a = &r->answers[r->done & r->mask];
        __atomic_store_n(&a->low, q->value, __ATOMIC_RELAXED);
        /* release: a kernel that sees this word also sees the value and all that the operation wrote; pairs with the acquire in
         * weft_device_test() */
        __atomic_store_n(&a->high, (uint64_t)(uint32_t)(r->done + 1) << 32 | (uint32_t)base_status_out(status), __ATOMIC_RELEASE);
    } else if (BASE_UNLIKELY(status)) {
        gpu_ring_fail(r, gpu_request_node(q), status);
    }
    r->done += q->slots;
}

/* Removes the next request and ends it at once with q->status. No request may be under way. */
static inline void gpu_ring_end(struct gpu_ring *r, struct gpu_request *q)
{
    r->head += q->slots;
    gpu_ring_finish(r, q, q->status);
}

/* Tells kernels which slots were read and may be written again. */
static inline void gpu_ring_publish(struct gpu_ring *r)
{
    /* release: the node has read the slots before kernels may overwrite them; pairs with the acquire in weft_device_has_room() */
    if (atomic_load_explicit(r->taken, memory_order_relaxed) != r->head)
        atomic_store_explicit(r->taken, r->head, memory_order_release);
}

/* The oldest request that is under way; NULL: none. */
static inline struct gpu_request *gpu_ring_oldest(struct gpu_ring *r)
{
    return r->done == r->head ? NULL : r->under_way[r->done & r->mask];
}

/* Ends the oldest request: answers it if it wants an answer; otherwise keeps an error for the next flush. */
static inline void gpu_ring_done(struct gpu_ring *r, int status)
{
    struct gpu_request *q = gpu_ring_oldest(r);
    gpu_ring_finish(r, q, status);
    r->spare[r->spares++] = q;
}

#endif
