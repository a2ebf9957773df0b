/* SPDX-License-Identifier: MIT
 *
 * Checks of asynchronous events that belong to no other file: who gets them, and acknowledging them.
 */
#include <pthread.h>

#include "conf.h"

/* An event's object cannot be destroyed until the event is acknowledged. */
struct waiter {
    struct ibv_srq *srq;
    int ret;
    _Atomic bool done;
};

static void *destroy(void *arg)
{
    struct waiter *w = arg;

    w->ret = ibv_destroy_srq(w->srq);
    w->done = true;
    return NULL;
}

/* An event that every device with shared receive queues has: the last receive is used, although the limit demands that one is left. */
static struct ibv_srq *cause(struct t *t, struct pair *p)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 4);
    struct ibv_srq_attr attr = {.srq_limit = 1};

    PAIR(t, p, .pd = pd, .srq = srq);
    struct ibv_sge sge = sge_at(&p->b, 0, 8);
    struct ibv_recv_wr rwr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
    want_ok(t, ibv_post_srq_recv(srq, &rwr, &bad));
    want_ok(t, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 2, NULL);
    send_ok(t, p->a.qp, &wr);
    wait_for(t, p->a.scq, 2, IBV_WC_SUCCESS);
    return srq;
}

static void ack(struct t *t, long arg)
{
    static struct waiter w; /* not on the stack: the thread may outlive a check that fails */
    struct pair p;
    struct ibv_async_event event;
    pthread_t thread;

    (void)arg;
    struct ibv_srq *srq = cause(t, &p);
    if (!readable(t->ctx->async_fd, t->wait_s * 1000))
        fail(t, "no async event came");
    want_ok(t, ibv_get_async_event(t->ctx, &event));
    want_eq(t, event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    want(t, event.element.srq == srq);
    drop(t, p.b.qp);
    w = (struct waiter){.srq = srq};
    want_ok(t, pthread_create(&thread, NULL, destroy, &w));
    nap(quiet_ms(t));
    want(t, !w.done);
    ibv_ack_async_event(&event);
    for (double end = now() + t->wait_s; !w.done && now() < end;)
        nap(1);
    want(t, w.done);
    pthread_join(thread, NULL);
    forget(t, srq);
    want_eq(t, w.ret, 0);
}

/* Destroying an object removes its events that were not read. */
static void untaken(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    struct ibv_srq *srq = cause(t, &p);
    if (!readable(t->ctx->async_fd, t->wait_s * 1000))
        fail(t, "no async event came");
    drop(t, p.b.qp);
    drop(t, srq);
    want(t, !readable(t->ctx->async_fd, quiet_ms(t)));
}

/* An event goes to one context only: another context of the same device gets none. */
static void own_context(struct t *t, long arg)
{
    struct pair p;
    struct ibv_context *other = ibv_open_device(t->ctx->device);

    (void)arg;
    want(t, other != NULL);
    cause(t, &p);
    bool heard = readable(other->async_fd, quiet_ms(t));
    ibv_close_device(other);
    want(t, !heard);
    wait_event(t, IBV_EVENT_SRQ_LIMIT_REACHED);
}

/* The first message to a responder in RTR raises IBV_EVENT_COMM_EST. */
static void established(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p, .no_rts = true);
    to_rts(t, p.a.qp);
    recv_ok(t, &p.b, 1, 0, 64);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 2, NULL);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 2, IBV_WC_SUCCESS);
    want(t, wait_event(t, IBV_EVENT_COMM_EST).element.qp == p.b.qp);
}

/* If a program moves its QP to error, or a send fails, the completions show it, and no event is raised. */
static void none(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p);
    if (arg) {
        struct ibv_sge sge = sge_at(&p.a, 65536, 8);
        struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 0);
        send_ok(t, p.a.qp, &wr);
        wait_for(t, p.a.scq, 1, IBV_WC_LOC_PROT_ERR);
    } else {
        want_ok(t, to_state(p.a.qp, IBV_QPS_ERR));
    }
    want(t, !readable(t->ctx->async_fd, quiet_ms(t)));
}

const struct check event_checks[] = {
    {"event.destroy_waits_for_ack", ack, 0, NEED_SRQ},
    {"event.untaken", untaken, 0, NEED_SRQ},
    {"event.own_context", own_context, 0, NEED_SRQ},
    {"event.communication_established", established, 0, 0},
    {"event.none.to_err", none, 0, 0},
    {"event.none.local_error", none, 1, 0},
    {0},
};
