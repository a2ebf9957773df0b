/* SPDX-License-Identifier: MIT
 *
 * Reads asynchronous events of queues, queue pairs and ports. Each opened device has a pipe, whose reading end is context->async_fd.
 * Reading waits, unless the program sets O_NONBLOCK on this descriptor.
 */
#include "lib.h"

#include <errno.h>
#include <unistd.h>

/* Counts an event that the program must acknowledge. A call that destroys the object waits, with the same mutex, until all are
 * acknowledged. */
static void async_event_delivered(pthread_mutex_t *mutex, uint32_t *count)
{
    pthread_mutex_lock(mutex);
    ++*count;
    pthread_mutex_unlock(mutex);
}

/* Whether the program has read this event in this connection before. Unread events of earlier connections are still delivered. */
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

/* Sets event->element. Returns false if the object was destroyed. The caller holds sv_lib.mutex, so no object is removed from the tables
 * meanwhile. */
static bool async_event_find(const struct sv_event *e, struct ibv_async_event *event)
{
    uint32_t bit = e->type < 32 ? UINT32_C(1) << e->type : 0;

    event->event_type = (enum ibv_event_type)e->type;
    if (bit & SV_CQ_EVENTS) {
        struct sv_cq *cq = e->entry < SF_CQS ? sv_lib.cqs[e->entry] : NULL;
        if (!cq || cq->generation != e->generation || cq->failed)
            return false;
        cq->failed = true;
        async_event_delivered(&cq->base.mutex, &cq->async_delivered);
        event->element.cq = &cq->base;
    } else if (bit & SV_QP_EVENTS) {
        struct sv_qp *qp = e->entry < SF_QPS ? sv_lib.qps[e->entry] : NULL;
        if (!qp || qp->shared->generation != e->generation || told_before(qp, e->connection, bit & SV_ONCE_EVENTS))
            return false;
        async_event_delivered(&qp->base.mutex, &qp->async_delivered);
        event->element.qp = &qp->base;
    } else if (bit & SV_SRQ_EVENTS) {
        struct sv_srq *srq = e->entry < SF_SRQS ? sv_lib.srqs[e->entry] : NULL;
        if (!srq || srq->generation != e->generation)
            return false;
        async_event_delivered(&srq->base.mutex, &srq->async_delivered);
        event->element.srq = &srq->base;
    } else {
        event->element.port_num = 1;
    }
    return true;
}

SV_PUBLIC int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    if (sv_context_of(context)->life != sv_lib.life) {
        errno = ENODEV; /* a forked child; the events belong to its parent */
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
        found = sv_lib.joined && async_event_find(&e, event);
        /* The program must find the queue pair in ERR. The process that wrote the event may have been killed before it changed the state.
         */
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

static void async_event_acknowledge(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *count)
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
        async_event_acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed);
    } else if (bit & SV_QP_EVENTS) {
        struct ibv_qp *qp = event->element.qp;
        async_event_acknowledge(&qp->mutex, &qp->cond, &qp->events_completed);
    } else if (bit & SV_SRQ_EVENTS) {
        struct ibv_srq *srq = event->element.srq;
        async_event_acknowledge(&srq->mutex, &srq->cond, &srq->events_completed);
    }
}
