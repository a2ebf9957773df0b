/* SPDX-License-Identifier: MIT
 *
 * Creates, changes, queries and destroys shared receive queues. post.c puts requests in, and deliver.c uses them.
 */
#include "lib.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int srq_check(const struct sv_profile *p, const struct ibv_srq_attr *a)
{
    if (p->max_srq == 0)
        return sv_refuse(EOPNOTSUPP, "ibv_create_srq: this device has no shared receive queues (profile %s, max_srq; " SV_DOCUMENTED ")",
                         p->name);
    if (a->max_wr == 0 || a->max_wr > p->max_srq_wr)
        return sv_refuse(EINVAL, "ibv_create_srq: max_wr %u: expected 1 to %u (profile %s, max_srq_wr; " SV_DOCUMENTED ")", a->max_wr,
                         p->max_srq_wr, p->name);
    if (a->max_sge > p->max_srq_sge)
        return sv_refuse(EINVAL, "ibv_create_srq: max_sge %u: expected at most %u (profile %s, max_srq_sge; " SV_DOCUMENTED ")", a->max_sge,
                         p->max_srq_sge, p->name);
    return 0;
}

static bool srq_take_ring(struct sv_ring *r, uint32_t most, uint32_t stride)
{
    uint32_t capacity = 1;
    while (capacity < most)
        capacity *= 2;
    *r = (struct sv_ring){.mask = capacity - 1, .stride = stride, .limit = most};
    r->offset = sf_arena_take(&sv_lib.view, sv_ring_bytes(r));
    r->base = r->offset ? sf_at(&sv_lib.view, r->offset) : NULL;
    return r->offset != 0;
}

static int srq_enter_table(struct sv_srq *srq, uint32_t device, const struct ibv_pd *pd, const struct ibv_srq_attr *a)
{
    const struct sv_profile *p = sv_lib.profile;
    int entry = sf_take_srq(&sv_lib.view, device, p->max_srq);

    if (entry == -EBUSY)
        return sv_refuse(ENOMEM,
                         "ibv_create_srq: the device already has %u shared receive queues, its limit: destroy one first (profile %s, "
                         "max_srq; " SV_DOCUMENTED ")",
                         p->max_srq, p->name);
    if (entry < 0)
        return sv_refuse(-entry, "ibv_create_srq: the fabric has no room for another shared receive queue; destroy one first");
    srq->entry = (uint32_t)entry;
    srq->shared = &sv_lib.fabric->srqs[entry];
    srq->generation = srq->shared->generation;
    srq->life = sv_lib.life;

    struct sf_receive_queue *q = &srq->shared->queue;
    sf_lock_receive(&sv_lib.view, q, NULL); /* a process may still hold the lock for the entry's former queue */
    srq->shared->pd = sv_container(pd, struct sv_pd, base)->entry;
    srq->shared->context = (int32_t)sv_context_of(pd->context)->entry;
    bool there = srq_take_ring(&srq->ring, a->max_wr, sv_receive_stride(a->max_sge));
    srq->ring.sge_limit = a->max_sge;
    q->stride = srq->ring.stride;
    q->capacity = srq->ring.mask + 1;
    q->limit = a->max_wr;
    q->sge_limit = a->max_sge;
    q->ring = srq->ring.offset;
    sf_unlock(&sv_lib.view, &q->lock);
    if (!there) {
        sf_give_srq(&sv_lib.view, srq->entry);
        return sv_refuse(
            ENOMEM, "ibv_create_srq: no room for the queue in the fabric's file; free space in its file system, or destroy other objects");
    }
    return 0;
}

static void srq_publish(struct sv_srq *srq, struct sv_srq *as)
{
    pthread_mutex_lock(&sv_lib.mutex);
    if (as || sv_lib.srqs[srq->entry] == srq)
        __atomic_store_n(&sv_lib.srqs[srq->entry], as, __ATOMIC_RELEASE); /* pollers read this with acquire */
    pthread_mutex_unlock(&sv_lib.mutex);
}

struct ibv_srq *sv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
    struct sv_context *context = sv_context_of(pd->context);
    struct ibv_srq_attr attr = a->attr;
    struct sv_srq *srq;
    int error;

    if (attr.max_sge == 0)
        attr.max_sge = 1;
    error = ENODEV; /* a forked child cannot use its parent's domain */
    if (!sv_joined() || context->life != sv_lib.life)
        goto refused;
    if ((error = sv_refused(SF_VERB_CREATE_SRQ, context->device)) != 0 || (error = srq_check(sv_lib.profile, &attr)) != 0)
        goto refused;
    error = ENOMEM;
    srq = calloc(1, sizeof *srq);
    if (!srq)
        goto refused;
    error = srq_enter_table(srq, context->device, pd, &attr);
    if (error) {
        free(srq);
        goto refused;
    }
    srq->base.context = pd->context;
    srq->base.srq_context = a->srq_context;
    srq->base.pd = pd;
    srq->base.handle = srq->entry;
    pthread_mutex_init(&srq->base.mutex, NULL);
    pthread_cond_init(&srq->base.cond, NULL);
    pthread_mutex_init(&srq->post, NULL);
    atomic_fetch_add(&sv_container(pd, struct sv_pd, base)->users, 1);
    atomic_fetch_add(&context->objects, 1);
    a->attr.max_wr = attr.max_wr;
    a->attr.max_sge = attr.max_sge;
    srq_publish(srq, srq);
    return &srq->base;

refused:
    errno = error;
    return NULL;
}

SV_PUBLIC struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
    return sv_create_srq(pd, a);
}

/* Makes a new ring, and moves the posted requests into it. A request's slot is its position modulo the capacity. */
static int srq_resize(struct sv_srq *srq, uint32_t most)
{
    struct sf_receive_queue *q = &srq->shared->queue;
    struct sv_ring before, after;
    int error = 0;

    if (most == 0 || most > sv_lib.profile->max_srq_wr)
        return sv_refuse(EINVAL, "ibv_modify_srq: max_wr %u: expected 1 to %u (profile %s, max_srq_wr; " SV_DOCUMENTED ")", most,
                         sv_lib.profile->max_srq_wr, sv_lib.profile->name);
    if (!srq_take_ring(&after, most, srq->ring.stride))
        return sv_refuse(
            ENOMEM, "ibv_modify_srq: no room for the queue in the fabric's file; free space in its file system, or destroy other objects");

    pthread_mutex_lock(&srq->post);
    sf_lock_receive(&sv_lib.view, q, NULL);
    before = srq->ring;
    after.sge_limit = before.sge_limit;
    uint64_t posted = atomic_load_explicit(&q->posted, memory_order_relaxed);
    uint64_t done = atomic_load_explicit(&q->done, memory_order_relaxed);
    if (sv_srq_used(srq, posted) > most || posted - done > before.mask + UINT64_C(1) || posted - done > after.mask + UINT64_C(1) ||
        atomic_load_explicit(&srq->shared->watermark, memory_order_relaxed) > most) {
        error = EINVAL;
        before = after; /* free the new ring below */
    } else {
        for (uint64_t p = done; p != posted; p++)
            memcpy(sv_ring_slot(&after, p), sv_ring_slot(&before, p), after.stride);
        srq->ring = after;
        q->ring = after.offset;
        q->capacity = after.mask + 1;
        q->limit = most;
    }
    sf_unlock(&sv_lib.view, &q->lock);
    pthread_mutex_unlock(&srq->post);
    sf_arena_give(&sv_lib.view, before.offset, sv_ring_bytes(&before));
    return error ? sv_refuse(
                       error,
                       "ibv_modify_srq: max_wr %u is too small: expected at least the number of posted receives, and at least srq_limit",
                       most)
                 : 0;
}

/* Arms the limit. If fewer requests are posted, the event is sent at once. */
static int srq_arm(struct sv_srq *srq, uint32_t limit)
{
    struct sf_srq *s = srq->shared;

    sf_lock_receive(&sv_lib.view, &s->queue, NULL);
    uint32_t room = srq->ring.limit;
    uint64_t left =
        atomic_load_explicit(&s->queue.posted, memory_order_relaxed) - atomic_load_explicit(&s->queue.done, memory_order_relaxed);
    if (limit <= room)
        atomic_store_explicit(&s->watermark, left < limit ? 0 : limit, memory_order_relaxed);
    sf_unlock(&sv_lib.view, &s->queue.lock);
    if (limit > room)
        return sv_refuse(EINVAL, "ibv_modify_srq: srq_limit %u: expected at most %u, the receives for which the queue has room", limit,
                         room);
    if (left < limit)
        sv_async((uint32_t)s->context, IBV_EVENT_SRQ_LIMIT_REACHED, srq->entry, srq->generation);
    return 0;
}

SV_PUBLIC int ibv_modify_srq(struct ibv_srq *base, struct ibv_srq_attr *a, int mask)
{
    struct sv_srq *srq = sv_container(base, struct sv_srq, base);
    int error = 0;

    if (srq->life != sv_lib.life)
        return ENODEV; /* a forked child cannot use its parent's queue */
    if (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
        return sv_refuse(EINVAL, "ibv_modify_srq: the mask %#x has bits that softverbs does not know: leave them out", mask);
    if (mask & IBV_SRQ_MAX_WR)
        error = srq_resize(srq, a->max_wr);
    if (!error && (mask & IBV_SRQ_LIMIT))
        error = srq_arm(srq, a->srq_limit);
    return error;
}

SV_PUBLIC int ibv_query_srq(struct ibv_srq *base, struct ibv_srq_attr *a)
{
    const struct sv_srq *srq = sv_container(base, struct sv_srq, base);

    *a = (struct ibv_srq_attr){
        .max_wr = srq->ring.limit,
        .max_sge = srq->ring.sge_limit,
        .srq_limit = atomic_load_explicit(&srq->shared->watermark, memory_order_relaxed),
    };
    return 0;
}

SV_PUBLIC int ibv_destroy_srq(struct ibv_srq *base)
{
    struct sv_srq *srq = sv_container(base, struct sv_srq, base);
    struct sf_receive_queue *q = &srq->shared->queue;

    if (atomic_load(&srq->users) != 0)
        return sv_refuse(EBUSY, "ibv_destroy_srq: %u queue pairs still use the shared receive queue; destroy them first",
                         atomic_load(&srq->users));
    if (srq->life == sv_lib.life)
        srq_publish(srq, NULL);
    if (!sv_mine(base->context, &srq->shared->owner))
        goto gone;
    sv_async_forget(base->context, SV_SRQ_EVENTS, srq->entry, srq->generation);
    pthread_mutex_lock(&base->mutex);
    while (base->events_completed != srq->async_delivered)
        pthread_cond_wait(&base->cond, &base->mutex);
    pthread_mutex_unlock(&base->mutex);

    /* No queue pair uses this queue any more. A process that has not noticed this may still be reading the queue, but it holds this lock
     * while it reads. */
    sf_lock_receive(&sv_lib.view, q, NULL);
    q->ring = 0;
    sf_unlock(&sv_lib.view, &q->lock);
    sf_arena_give(&sv_lib.view, srq->ring.offset, sv_ring_bytes(&srq->ring));
    sf_give_srq(&sv_lib.view, srq->entry);
gone:
    atomic_fetch_sub(&sv_container(base->pd, struct sv_pd, base)->users, 1);
    atomic_fetch_sub(&sv_context_of(base->context)->objects, 1);
    pthread_mutex_destroy(&srq->post);
    pthread_cond_destroy(&base->cond);
    pthread_mutex_destroy(&base->mutex);
    free(srq);
    return 0;
}
