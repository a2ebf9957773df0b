/* SPDX-License-Identifier: MIT
 *
 * A kernel's record may be in an arena, which the processor may be unable to read. Such a record is copied into the pool. The service works
 * on the copy, and the copy is written back before the kernel gets its answer. The last word (weft_request.answered) is written back last,
 * because kernels poll it.
 */
#include "gpu/arena.h"
#include "gpu/ring.h"

#include <stdlib.h>

enum record_step { RECORD_FETCH, RECORD_CALLED, RECORD_STORE, RECORD_STORE_LAST, RECORD_DONE };

struct gpu_record {
    struct gpu_record *next; /* link of the list of records of requests that are not complete */
    struct gpu_request *q;
    const struct gpu_service *service;
    struct gpu_arena *arena;
    uint8_t *there; /* the record, in the arena */
    uint8_t *here;  /* the record's copy in the pool, at address `copy_at` */
    weft_gaddr copy_at;
    struct arena_copy copy;
    enum record_step step;
    int status;
};

#define LAST (WEFT_DEVICE_RECORD_BYTES - 8)

int gpu_record_begin(struct weft_node *w, struct gpu_records *list, struct gpu_request *q, const struct gpu_service *service)
{
    struct gpu_record *r = calloc(1, sizeof *r);
    void *there;
    if (!r)
        return base_fail(-ENOMEM, "no memory for the request of a kernel" BASE_MEMORY_HINT);
    int rc = weft_alloc_aligned(w, WEFT_DEVICE_RECORD_BYTES, BASE_CACHE_LINE, &r->copy_at);
    if (rc) {
        free(r);
        return rc;
    }
    r->here = weft_ptr(w, r->copy_at, WEFT_DEVICE_RECORD_BYTES);
    rc = arena_enter(gpu_arenas_of(w), q->low[0], WEFT_DEVICE_RECORD_BYTES, &r->arena, &there);
    if (!rc)
        rc = arena_copy(&r->copy, &r->arena->place, r->here, there, WEFT_DEVICE_RECORD_BYTES);
    if (rc) {
        arena_leave(r->arena);
        (void)weft_free(w, r->copy_at);
        free(r);
        return rc;
    }
    r->there = there;
    r->q = q;
    r->service = service;
    *list->end = r;
    list->end = &r->next;
    q->record = r;
    q->op.status = 1;
    return 0;
}

static void record_end(struct gpu_record *r, int status)
{
    r->status = r->status ? r->status : status;
    r->step = RECORD_DONE;
}

/* Begins to copy a part of the record back. */
static void record_store(struct gpu_record *r, enum record_step step, uint32_t from, uint32_t bytes)
{
    int rc = arena_copy(&r->copy, &r->arena->place, r->there + from, r->here + from, bytes);
    r->step = step;
    if (rc)
        record_end(r, rc);
}

static void record_fetched(struct weft_node *w, struct gpu_record *r, int rc)
{
    weft_gpu_service_fn fn = atomic_load_explicit(&r->service->fn, memory_order_acquire);
    r->step = RECORD_CALLED;
    if (rc)
        record_end(r, rc);
    else
        fn(w, r->here, (weft_gpu_call *)r->q, r->service->arg);
}

static void record_step(struct weft_node *w, struct gpu_record *r)
{
    if (r->step == RECORD_CALLED) {
        int status = __atomic_load_n(&r->q->op.status, __ATOMIC_ACQUIRE); /* pairs with weft_gpu_answer() */
        if (status == 1)
            return;
        r->status = status;
        record_store(r, RECORD_STORE, 0, LAST);
        return;
    }
    int rc = arena_copied(&r->copy);
    if (rc == -EINPROGRESS)
        return;
    if (r->step == RECORD_FETCH)
        record_fetched(w, r, rc);
    else if (r->step == RECORD_STORE && !rc)
        record_store(r, RECORD_STORE_LAST, LAST, 8);
    else
        record_end(r, rc);
}

bool gpu_records_step(struct weft_node *w, struct gpu_records *list)
{
    bool moved = false;
    for (struct gpu_record **at = &list->first, *r; (r = *at);) {
        enum record_step before = r->step;
        record_step(w, r);
        moved |= r->step != before;
        if (r->step != RECORD_DONE) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        if (!*at)
            list->end = at;
    }
    return moved;
}

int gpu_record_result(struct weft_node *w, struct gpu_request *q)
{
    struct gpu_record *r = q->record;
    if (r->step != RECORD_DONE)
        return -EINPROGRESS;
    int status = r->status;
    arena_leave(r->arena);
    (void)weft_free(w, r->copy_at);
    free(r);
    q->record = NULL;
    q->op.status = status;
    return status;
}
