/* SPDX-License-Identifier: MIT
 *
 * A ring of requests: the node reads what kernels write, and answers. Nothing that stands in a slot is believed: what is read once is
 * checked, and then used. tests/model/device_ring.pml has the protocol.
 */
#include "gpu/gpu.h"

#include <stdlib.h>
#include <sys/mman.h>

int gpu_ring_open(struct gpu_ring *r, uint32_t slots)
{
    size_t page = 4096;
    size_t slot_bytes = slots * sizeof(weft_device_slot), answer_bytes = slots * sizeof(weft_device_cell);
    r->bytes = base_round_up(slot_bytes + answer_bytes + page, page);
    r->memory = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->requests = calloc(slots, sizeof *r->requests);
    r->spare = calloc(slots, sizeof(struct gpu_request *));
    r->under_way = calloc(slots, sizeof(struct gpu_request *));
    if (r->memory == MAP_FAILED || !r->requests || !r->spare || !r->under_way) {
        if (r->memory == MAP_FAILED)
            r->memory = NULL;
        gpu_ring_close(r);
        return base_fail(-ENOMEM, "no memory for a ring of %u requests: ask for fewer (weft_gpu_config.slots)", slots);
    }
    r->slots = r->memory;
    r->answers = (weft_device_cell *)(r->slots + slots);
    r->taken = (_Atomic uint64_t *)((uint8_t *)r->answers + answer_bytes);
    r->mask = slots - 1;
    while (r->spares < slots) {
        r->spare[r->spares] = &r->requests[r->spares];
        r->spares++;
    }
    return 0;
}

void gpu_ring_close(struct gpu_ring *r)
{
    if (r->memory)
        munmap(r->memory, r->bytes);
    free(r->requests);
    free(r->spare);
    free(r->under_way);
    *r = (struct gpu_ring){0};
}

/* One cell, if it is of this round. */
static inline bool read_cell(const struct gpu_ring *r, uint64_t slot, uint32_t cell, uint64_t *low, uint64_t *high)
{
    const weft_device_cell *c = &r->slots[slot & r->mask].cell[cell];
    uint64_t h = __atomic_load_n(&c->high, __ATOMIC_ACQUIRE); /* pairs with weft_device_store_cell() */
    if ((h & WEFT_DEVICE_ROUND) != weft_device_round(slot, r->mask))
        return false;
    *low = __atomic_load_n(&c->low, __ATOMIC_RELAXED);
    *high = h & ~WEFT_DEVICE_ROUND;
    return true;
}

struct gpu_request *gpu_ring_next(struct gpu_ring *r, int *why)
{
    uint64_t more = 0, room = r->mask + 1 - (r->head - r->done), first;
    struct gpu_request *q = room ? r->spare[r->spares - 1] : NULL; /* where there is room, there is one */
    *why = 0;
    if (!q || !read_cell(r, r->head, 0, &q->low[0], &first))
        return NULL;
    q->kind = (uint32_t)(first >> WEFT_DEVICE_KIND_SHIFT);
    q->slots = weft_device_slots(q->kind);
    if (!q->slots) {
        *why = -EPROTO;
        return NULL;
    }
    if (q->slots > room || !read_cell(r, r->head, 1, &q->low[1], &q->high[1]))
        return NULL;
    if (q->slots == 2 && (!read_cell(r, r->head + 1, 0, &q->low[2], &q->high[2]) || !read_cell(r, r->head + 1, 1, &more, &more)))
        return NULL;
    q->answer = first & WEFT_DEVICE_ANSWER;
    q->high[0] = first & WEFT_DEVICE_LENGTH;
    q->value = 0;
    return q;
}

void gpu_ring_keep(struct gpu_ring *r, struct gpu_request *q)
{
    r->spares--;
    r->under_way[r->head & r->mask] = q;
    r->head += q->slots;
}

/* The request at `done` has ended. */
static inline void finish(struct gpu_ring *r, const struct gpu_request *q, int status)
{
    if (q->answer) {
        weft_device_cell *a = &r->answers[r->done & r->mask];
        __atomic_store_n(&a->low, q->value, __ATOMIC_RELAXED);
        /* release: the value, and what the operation wrote, come before; pairs with the acquire in weft_device_test() */
        __atomic_store_n(&a->high, (uint64_t)(uint32_t)(r->done + 1) << 32 | (uint32_t)status, __ATOMIC_RELEASE);
    } else if (status && !r->error) {
        r->error = status;
    }
    r->done += q->slots;
}

void gpu_ring_end(struct gpu_ring *r, struct gpu_request *q)
{
    r->head += q->slots;
    finish(r, q, q->status);
}

void gpu_ring_publish(struct gpu_ring *r)
{
    /* release: the slots were read before; pairs with the acquire in weft_device_has_room() */
    if (atomic_load_explicit(r->taken, memory_order_relaxed) != r->head)
        atomic_store_explicit(r->taken, r->head, memory_order_release);
}

void gpu_ring_done(struct gpu_ring *r, int status)
{
    struct gpu_request *q = gpu_ring_oldest(r);
    finish(r, q, status);
    r->spare[r->spares++] = q;
}
