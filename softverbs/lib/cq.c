/* SPDX-License-Identifier: MIT
 *
 * Creates, resizes and destroys completion queues. complete.c writes completions, poll.c takes them out.
 */
#include "lib.h"

#include <errno.h>
#include <stdlib.h>

static struct sv_cq *cq_of(struct ibv_cq *cq)
{
    return sv_container(cq, struct sv_cq, base);
}

static uint32_t power_of_two(uint32_t n)
{
    return n <= 1 ? 1 : 1u << (32 - __builtin_clz(n - 1));
}

static int check_size(int64_t cqe)
{
    const struct sv_profile *p = sv_lib.profile;

    if (cqe < 1)
        return sv_refuse(EINVAL, "ibv_create_cq: %lld entries: expected at least 1", (long long)cqe);
    if (cqe > p->max_cqe || cqe > 1 << 30)
        return sv_refuse(p->cqe_errno, "ibv_create_cq: %lld entries; the limit is %u (profile %s, max_cqe; " SV_DOCUMENTED ")",
                         (long long)cqe, p->max_cqe, p->name);
    return 0;
}

static int cq_check(struct ibv_context *context, int64_t cqe, const struct ibv_comp_channel *channel, int64_t vector)
{
    uint32_t device = sv_context_of(context)->device;
    int err;

    if (!sv_lib.joined || sv_context_of(context)->life != sv_lib.life)
        return errno = ENODEV; /* a forked child cannot use its parent's device */
    err = sv_refused(SF_VERB_CREATE_CQ, device);
    if (err)
        return sv_refuse(err, "ibv_create_cq: refused by a rule, which `softverbs fault list` shows");
    if (atomic_load_explicit(&sv_lib.fabric->devices[device].removed, memory_order_relaxed))
        return sv_refuse(EIO, "ibv_create_cq: the device was removed; `softverbs fault restore` brings it back");
    if (vector < 0 || vector >= context->num_comp_vectors)
        return sv_refuse(EINVAL, "ibv_create_cq: completion vector %lld: the device has %d, numbered from 0", (long long)vector,
                         context->num_comp_vectors);
    if (channel && channel->context != context)
        return sv_refuse(EINVAL, "ibv_create_cq: the completion channel belongs to another opened device: create one with this context");
    return check_size(cqe);
}

static struct sv_ring ring_at(uint64_t offset, uint32_t capacity)
{
    return (struct sv_ring){.base = sf_at(&sv_lib.view, offset), .offset = offset, .mask = capacity - 1, .stride = sizeof(struct sf_cqe)};
}

/* Enters the queue in the table, where events and progress find it. */
static void cq_publish(struct sv_cq *cq)
{
    pthread_mutex_lock(&sv_lib.mutex);
    if (cq->channel)
        cq->channel->base.refcnt++;
    /* release: pairs with the acquire in polling, which does not take the mutex */
    __atomic_store_n(&sv_lib.cqs[cq->entry], cq, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&sv_lib.mutex);
}

static struct sv_cq *cq_make(struct ibv_context *context, uint32_t cqe, void *cq_context, struct ibv_comp_channel *channel)
{
    const struct sv_profile *p = sv_lib.profile;
    struct sv_context *ctx = sv_context_of(context);
    struct sv_cq *cq = calloc(1, sizeof *cq);
    uint32_t capacity = power_of_two(cqe);
    int entry, err;
    uint64_t ring;

    if (!cq) {
        errno = ENOMEM;
        return NULL;
    }
    entry = sf_take_cq(&sv_lib.view, ctx->device, p->max_cq);
    if (entry < 0) {
        err = entry == -EBUSY ? p->cq_errno : -entry;
        sv_refuse(
            err,
            "ibv_create_cq: the device already has %u completion queues, its limit: destroy one first (profile %s, max_cq; " SV_DOCUMENTED
            ")",
            p->max_cq, p->name);
        goto memory;
    }
    ring = sf_arena_take(&sv_lib.view, capacity * sizeof(struct sf_cqe));
    if (!ring) {
        err = errno;
        sv_refuse(err,
                  "ibv_create_cq: no room for %u entries in the fabric's file; free space in its file system, or destroy other objects",
                  capacity);
        goto entry;
    }
    cq->entry = (uint32_t)entry;
    cq->shared = &sv_lib.fabric->cqs[entry];
    cq->generation = cq->shared->generation;
    cq->life = sv_lib.life;
    cq->ring = ring_at(ring, capacity);
    cq->shared->capacity = capacity;
    cq->shared->limit = cqe;
    cq->shared->ring = ring;
    cq->shared->context = (int32_t)ctx->entry;
    cq->base.context = context;
    cq->base.cq_context = cq_context;
    cq->base.handle = (uint32_t)entry;
    cq->base.cqe = (int)cqe;
    if (channel) {
        cq->base.channel = channel;
        cq->channel = sv_container(channel, struct sv_channel, base);
        cq->shared->channel_fd = cq->channel->pipe_write;
    }
    pthread_mutex_init(&cq->base.mutex, NULL);
    pthread_cond_init(&cq->base.cond, NULL);
    pthread_mutex_init(&cq->poll, NULL);
    atomic_fetch_add_explicit(&ctx->objects, 1, memory_order_relaxed);
    return cq;

entry:
    sf_give_cq(&sv_lib.view, (uint32_t)entry);
memory:
    free(cq);
    errno = err;
    return NULL;
}

struct ibv_cq *sv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
    struct sv_cq *cq;

    if (cq_check(context, cqe, channel, vector))
        return NULL;
    cq = cq_make(context, (uint32_t)cqe, cq_context, channel);
    if (!cq)
        return NULL;
    cq_publish(cq);
    return &cq->base;
}

int sv_resize_cq(struct ibv_cq *base, int cqe)
{
    struct sv_cq *cq = cq_of(base);
    struct sf_cq *s = cq->shared;
    struct sv_ring ring, gone;
    uint32_t capacity;
    uint64_t offset, first, last;
    int err;

    if (!sv_mine(base->context, &s->owner))
        return ENODEV;
    err = check_size(cqe);
    if (err)
        return err;
    capacity = power_of_two((uint32_t)cqe);
    offset = sf_arena_take(&sv_lib.view, capacity * sizeof(struct sf_cqe));
    if (!offset)
        return errno;
    ring = ring_at(offset, capacity);

    /* keep consumers and producers out while entries are moved */
    pthread_mutex_lock(&cq->poll);
    sf_lock_cq(&sv_lib.view, s);
    first = atomic_load_explicit(&s->consumed, memory_order_relaxed);
    last = atomic_load_explicit(&s->produced, memory_order_relaxed);
    gone = cq->ring;
    if (last - first > (uint32_t)cqe) {
        err = EINVAL;
        gone = ring; /* free the new ring */
    } else {
        for (uint64_t i = first; i != last; i++)
            *(struct sf_cqe *)sv_ring_slot(&ring, i) = *(struct sf_cqe *)sv_ring_slot(&cq->ring, i);
        cq->ring = ring;
        s->ring = offset;
        s->capacity = capacity;
        s->limit = (uint32_t)cqe;
        base->cqe = cqe;
    }
    sf_unlock(&sv_lib.view, &s->lock);
    pthread_mutex_unlock(&cq->poll);
    sf_arena_give(&sv_lib.view, gone.offset, sv_ring_bytes(&gone));
    return err ? sv_refuse(err, "ibv_resize_cq: %d entries are too few: more completions wait to be polled; poll them first", cqe) : 0;
}

/* Removes the queue's unread events, and waits until all read events are acknowledged. */
static void settle_events(struct sv_cq *cq)
{
    if (cq->channel)
        sv_pipe_forget(cq->channel->pipe_read, cq->channel->pipe_write, 1, 0, cq->entry, cq->generation);
    sv_async_forget(cq->base.context, SV_CQ_EVENTS, cq->entry, cq->generation);
    pthread_mutex_lock(&cq->base.mutex);
    while (cq->base.comp_events_completed != cq->events_delivered || cq->base.async_events_completed != cq->async_delivered)
        pthread_cond_wait(&cq->base.cond, &cq->base.mutex);
    pthread_mutex_unlock(&cq->base.mutex);
}

int sv_destroy_cq(struct ibv_cq *base)
{
    struct sv_cq *cq = cq_of(base);
    bool mine = sv_mine(base->context, &cq->shared->owner);

    if (atomic_load_explicit(&cq->users, memory_order_acquire))
        return EBUSY;
    pthread_mutex_lock(&sv_lib.mutex);
    /* Checks this process's table, because the entry's owner on the fabric may have been overwritten. */
    if (cq->life == sv_lib.life && sv_lib.cqs[cq->entry] == cq)
        __atomic_store_n(&sv_lib.cqs[cq->entry], NULL, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&sv_lib.mutex);
    if (mine) {
        settle_events(cq);
        /* All queue pairs of this queue are destroyed. A process that still tries to write a completion must find no room. */
        sf_lock_cq(&sv_lib.view, cq->shared);
        cq->shared->ring = 0;
        cq->shared->capacity = 0;
        cq->shared->channel_fd = -1;
        sf_unlock(&sv_lib.view, &cq->shared->lock);
        sf_arena_give(&sv_lib.view, cq->ring.offset, sv_ring_bytes(&cq->ring));
        sf_give_cq(&sv_lib.view, cq->entry);
    }
    if (cq->channel) {
        pthread_mutex_lock(&sv_lib.mutex);
        cq->channel->base.refcnt--;
        pthread_mutex_unlock(&sv_lib.mutex);
    }
    atomic_fetch_sub_explicit(&sv_context_of(base->context)->objects, 1, memory_order_relaxed);
    pthread_mutex_destroy(&cq->base.mutex);
    pthread_cond_destroy(&cq->base.cond);
    pthread_mutex_destroy(&cq->poll);
    free(cq);
    return 0;
}

SV_PUBLIC struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
                                       int comp_vector)
{
    return sv_create_cq(context, cqe, cq_context, channel, comp_vector);
}

SV_PUBLIC int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
    return sv_resize_cq(cq, cqe);
}

SV_PUBLIC int ibv_destroy_cq(struct ibv_cq *cq)
{
    return sv_destroy_cq(cq);
}
