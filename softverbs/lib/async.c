/* SPDX-License-Identifier: MIT
 *
 * Asynchronous events: of queues, queue pairs, ports. Each opened device has a pipe; context->async_fd is its reading end,
 * and whether reading it waits is the flag that the program sets on it.
 */
#include "lib.h"

#include <errno.h>
#include <unistd.h>

void sv_async(uint32_t context, enum ibv_event_type type, uint32_t entry, uint32_t generation)
{
    struct sf_context *c;
    uint32_t owner;

    if (!sv_lib.joined || context >= SF_CONTEXTS)
        return;
    c = &sv_lib.fabric->contexts[context];
    owner = atomic_load_explicit(&c->owner, memory_order_acquire);
    if (owner)
        sv_signal(owner, c->async_fd,
                  &(struct sv_event){.kind = 3, .entry = entry, .generation = generation, .type = (uint32_t)type});
}

void sv_async_qp(uint32_t q, uint32_t types)
{
    const struct sf_qp *qp = &sv_lib.fabric->qps[q % SF_QPS];
    struct sv_event events[32];
    struct sf_context *c;
    uint32_t owner;
    size_t count = 0;

    if (!sv_joined() || qp->context < 0 || qp->context >= SF_CONTEXTS)
        return;
    for (uint32_t type = 0; type < 32; type++) {
        if (types >> type & 1)
            events[count++] = (struct sv_event){.kind = 3, .entry = q, .generation = qp->generation, .type = type,
                                                .connection = qp->connection};
    }
    c = &sv_lib.fabric->contexts[qp->context];
    owner = atomic_load_explicit(&c->owner, memory_order_acquire);
    if (owner && count)
        sv_signal_all(owner, c->async_fd, events, count);
}

void sv_async_forget(struct ibv_context *context, uint32_t types, uint32_t entry, uint32_t generation)
{
    struct sv_context *ctx = sv_context_of(context);

    if (sv_lib.joined)
        sv_pipe_forget(ctx->async_read, ctx->async_write, 3, types, entry, generation);
}

void sv_async_own(uint32_t q, enum ibv_event_type type)
{
    const struct sf_qp *shared = &sv_lib.fabric->qps[q % SF_QPS];
    struct ibv_context *context = NULL;
    const struct sv_qp *qp;

    pthread_mutex_lock(&sv_lib.mutex);
    qp = sv_lib.qps[q % SF_QPS];
    if (qp && !(qp->told_in == shared->connection && (qp->told >> type & 1)))
        context = qp->base.context;
    pthread_mutex_unlock(&sv_lib.mutex);
    if (!context)
        return;
    sv_async_forget(context, UINT32_C(1) << type, q, shared->generation);
    sv_async_qp(q, UINT32_C(1) << type);
}

/* Counts one more event to acknowledge, under the lock on which the object's end waits for that. */
static void delivered(pthread_mutex_t *mutex, uint32_t *count)
{
    pthread_mutex_lock(mutex);
    ++*count;
    pthread_mutex_unlock(mutex);
}

/* Whether the program has read this event of this connection. One of an earlier connection, which it has not read until now, it reads. */
static bool told_before(struct sv_qp *qp, uint32_t connection, uint32_t bit)
{
    if (connection != qp->shared->connection)
        return false;
    if (qp->told_in != connection)
        qp->told = 0;
    qp->told_in = connection;
    if (qp->told & bit)
        return true;
    qp->told |= bit;
    return false;
}

/* Fills in the element; false when the object has gone. sv_lib.mutex is held: under it objects go, and then wait for what was
 * delivered before. */
static bool find(const struct sv_event *e, struct ibv_async_event *event)
{
    uint32_t bit = e->type < 32 ? UINT32_C(1) << e->type : 0;

    event->event_type = (enum ibv_event_type)e->type;
    if (bit & SV_CQ_EVENTS) {
        struct sv_cq *cq = e->entry < SF_CQS ? sv_lib.cqs[e->entry] : NULL;
        if (!cq || cq->generation != e->generation || cq->failed)
            return false;
        cq->failed = true;
        delivered(&cq->base.mutex, &cq->async_delivered);
        event->element.cq = &cq->base;
    } else if (bit & SV_QP_EVENTS) {
        struct sv_qp *qp = e->entry < SF_QPS ? sv_lib.qps[e->entry] : NULL;
        if (!qp || qp->shared->generation != e->generation || told_before(qp, e->connection, bit & SV_ONCE_EVENTS))
            return false;
        delivered(&qp->base.mutex, &qp->async_delivered);
        event->element.qp = &qp->base;
    } else if (bit & SV_SRQ_EVENTS) {
        struct sv_srq *srq = e->entry < SF_SRQS ? sv_lib.srqs[e->entry] : NULL;
        if (!srq || srq->generation != e->generation)
            return false;
        delivered(&srq->base.mutex, &srq->async_delivered);
        event->element.srq = &srq->base;
    } else {
        event->element.port_num = 1;
    }
    return true;
}

SV_PUBLIC int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    if (sv_context_of(context)->life != sv_lib.life) {
        errno = ENODEV; /* a forked child: the events are its parent's */
        return -1;
    }
    for (;;) {
        struct sv_event e;
        ssize_t n = read(context->async_fd, &e, sizeof e);
        bool found, failing;

        if (n < 0)
            return -1;
        if (n != (ssize_t)sizeof e) {
            errno = EIO;
            return -1;
        }
        if (e.kind != 3)
            continue;
        pthread_mutex_lock(&sv_lib.mutex);
        found = sv_lib.joined && find(&e, event);
        /* The program is to find the queue pair in ERR, also if who brings it there was killed behind the event. */
        failing = found && e.type < 32 && (SV_ERROR_EVENTS >> e.type & 1);
        if (failing && e.connection == sv_lib.fabric->qps[e.entry].connection)
            atomic_store_explicit(&sv_lib.fabric->qps[e.entry].failing, e.connection, memory_order_release);
        pthread_mutex_unlock(&sv_lib.mutex);
        if (failing)
            sv_finish_failing(e.entry);
        if (found)
            return 0;
    }
}

static void acknowledge(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *count)
{
    pthread_mutex_lock(mutex);
    ++*count;
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(mutex);
}

SV_PUBLIC void ibv_ack_async_event(struct ibv_async_event *event)
{
    uint32_t bit = (unsigned)event->event_type < 32 ? UINT32_C(1) << event->event_type : 0;

    if (bit & SV_CQ_EVENTS) {
        struct ibv_cq *cq = event->element.cq;
        acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed);
    } else if (bit & SV_QP_EVENTS) {
        struct ibv_qp *qp = event->element.qp;
        acknowledge(&qp->mutex, &qp->cond, &qp->events_completed);
    } else if (bit & SV_SRQ_EVENTS) {
        struct ibv_srq *srq = event->element.srq;
        acknowledge(&srq->mutex, &srq->cond, &srq->events_completed);
    }
}
