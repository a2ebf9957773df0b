/* SPDX-License-Identifier: MIT
 *
 * Checks of completion channels: when an event comes, how often, and what waits for it.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

#include "conf.h"

struct heard { /* a pair, and b's receive CQ on a channel */
    struct pair p;
    struct ibv_comp_channel *ch;
    uint64_t next;
};

static void heard_new(struct t *t, struct heard *h)
{
    *h = (struct heard){.ch = channel_new(t)};
    PAIR(t, &h->p, .channel = h->ch);
    for (int i = 0; i < 8; i++)
        recv_ok(t, &h->p.b, 100 + (uint64_t)i, (size_t)i * 64, 64);
}

static void say(struct t *t, struct heard *h, unsigned flags)
{
    struct ibv_sge sge = sge_at(&h->p.a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, ++h->next, &sge);

    wr.send_flags |= flags;
    send_ok(t, h->p.a.qp, &wr);
    wait_for(t, h->p.a.scq, h->next, IBV_WC_SUCCESS);
}

static void want_event(struct t *t, struct heard *h)
{
    struct ibv_cq *cq = NULL;
    void *context = h;

    if (!readable(h->ch->fd, t->wait_s * 1000))
        fail(t, "expected a completion event, none came");
    want_ok(t, ibv_get_cq_event(h->ch, &cq, &context));
    want(t, cq == h->p.b.rcq);
    want(t, context == NULL);
    ibv_ack_cq_events(cq, 1);
}

static void want_none(struct t *t, struct heard *h)
{
    if (readable(h->ch->fd, quiet_ms(t)))
        fail(t, "expected no completion event, one came");
}

static void fields(struct t *t, long arg)
{
    struct ibv_comp_channel *ch = channel_new(t);
    struct ibv_cq *cq = cq_new(t, 4, ch);

    (void)arg;
    want(t, ch->context == t->ctx);
    want(t, cq->channel == ch);
    want(t, fcntl(ch->fd, F_GETFD) >= 0);
}

static void busy(struct t *t, long arg)
{
    struct ibv_comp_channel *ch = channel_new(t);
    struct ibv_cq *cq = cq_new(t, 4, ch);

    (void)arg;
    want_ret(t, ibv_destroy_comp_channel(ch), EBUSY);
    drop(t, cq);
    drop(t, ch);
}

static void unarmed(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    say(t, &h, 0);
    want_none(t, &h);
}

static void armed(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    want_none(t, &h);
    say(t, &h, 0);
    want_event(t, &h);
}

static void once(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    say(t, &h, 0);
    want_event(t, &h);
    say(t, &h, 0);
    want_none(t, &h);
}

/* Arming twice before a completion raises one event, not two. */
static void twice_armed(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    say(t, &h, 0);
    want_event(t, &h);
    say(t, &h, 0);
    want_none(t, &h);
}

static void again(struct t *t, long arg)
{
    struct heard h;
    struct ibv_wc wc;

    (void)arg;
    heard_new(t, &h);
    for (int i = 0; i < 6; i++) {
        want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
        want_eq(t, ibv_poll_cq(h.p.b.rcq, 1, &wc), 0);
        say(t, &h, 0);
        want_event(t, &h);
        want_eq(t, ibv_poll_cq(h.p.b.rcq, 1, &wc), 1);
    }
}

/* A completion that came between the last poll and arming is found by polling once more. */
static void missed(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    say(t, &h, 0);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    wait_for(t, h.p.b.rcq, 100, IBV_WC_SUCCESS);
    if (readable(h.ch->fd, quiet_ms(t))) { /* a device may also raise an event for it, which is harmless */
        want_event(t, &h);
        want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    }
    say(t, &h, 0);
    want_event(t, &h);
}

/* ---- Arming a CQ that holds completions already */

/* Arming a CQ that holds a completion raises an event at once. Otherwise a program that arms and sleeps without another poll would sleep
 * although there is a completion. */
static void unpolled(struct t *t, long arg)
{
    struct heard h;

    heard_new(t, &h);
    say(t, &h, 0);
    say(t, &h, arg ? IBV_SEND_SOLICITED : 0);
    say(t, &h, 0);
    nap(quiet_ms(t)); /* the receiver's completions may come later than the sender's */
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, (int)arg));
    want_event(t, &h);
    /* That was the event of this arming: the next completion raises none. */
    say(t, &h, IBV_SEND_SOLICITED);
    want_none(t, &h);
    for (uint64_t i = 0; i < 4; i++)
        wait_for(t, h.p.b.rcq, 100 + i, IBV_WC_SUCCESS);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, (int)arg));
    want_none(t, &h); /* all completions are polled */
    say(t, &h, IBV_SEND_SOLICITED);
    want_event(t, &h);
}

/* The unpolled completions are not solicited, so arming for solicited ones raises no event. */
static void unpolled_not_solicited(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    say(t, &h, 0);
    nap(quiet_ms(t));
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 1));
    want_none(t, &h);
    say(t, &h, IBV_SEND_SOLICITED);
    want_event(t, &h);
}

static void unpolled_error(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    want_ok(t, to_state(h.p.b.qp, IBV_QPS_ERR));
    nap(quiet_ms(t));
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 1));
    want_event(t, &h);
}

/* A program that arms again and again without reading its events gets one event; otherwise events would fill the channel. */
static void unpolled_unread(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    say(t, &h, 0);
    nap(quiet_ms(t));
    for (int i = 0; i < 100; i++)
        want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    want_event(t, &h);
    want_none(t, &h);
}

static void solicited(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 1));
    say(t, &h, 0);
    want_none(t, &h);
    say(t, &h, IBV_SEND_SOLICITED);
    want_event(t, &h);
}

/* Arming for solicited completions after arming for any does not weaken it: any completion still raises an event. */
static void solicited_after_any(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 1));
    say(t, &h, 0);
    want_event(t, &h);
}

static void solicited_error(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 1));
    want_ok(t, to_state(h.p.b.qp, IBV_QPS_ERR));
    want_event(t, &h);
}

static void write_imm(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 1));
    struct ibv_sge sge = sge_at(&h.p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 1, &sge, &h.p.b, 0);
    wr.send_flags |= IBV_SEND_SOLICITED;
    send_ok(t, h.p.a.qp, &wr);
    want_event(t, &h);
}

static void send_side(struct t *t, long arg)
{
    struct ibv_comp_channel *ch = channel_new(t);
    struct ibv_cq *cq = cq_new(t, 8, ch), *got;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_qp *a = qp_simple(t, pd, cq, IBV_QPT_RC), *b = qp_simple(t, pd, cq_new(t, 8, NULL), IBV_QPT_RC);
    void *context;

    (void)arg;
    to_init(t, a);
    to_init(t, b);
    to_rtr(t, a, b->qp_num);
    to_rtr(t, b, a->qp_num);
    to_rts(t, a);
    want_ok(t, ibv_req_notify_cq(cq, 0));
    struct ibv_send_wr wr = wr_of(IBV_WR_RDMA_WRITE, 1, NULL);
    send_ok(t, a, &wr);
    want(t, readable(ch->fd, t->wait_s * 1000));
    want_ok(t, ibv_get_cq_event(ch, &got, &context));
    ibv_ack_cq_events(got, 1);
    want(t, got == cq);
}

static void nonblocking(struct t *t, long arg)
{
    struct heard h;
    struct ibv_cq *cq;
    void *context;

    (void)arg;
    heard_new(t, &h);
    want(t, fcntl(h.ch->fd, F_SETFL, fcntl(h.ch->fd, F_GETFL) | O_NONBLOCK) == 0);
    want_minus(t, ibv_get_cq_event(h.ch, &cq, &context), EAGAIN);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    say(t, &h, 0);
    want_event(t, &h);
    want_minus(t, ibv_get_cq_event(h.ch, &cq, &context), EAGAIN);
}

static void two_cqs(struct t *t, long arg)
{
    struct ibv_comp_channel *ch = channel_new(t);
    struct pair p, q;
    bool first = false, second = false;

    (void)arg;
    PAIR(t, &p, .channel = ch);
    PAIR(t, &q, .channel = ch);
    want_ok(t, ibv_req_notify_cq(p.b.rcq, 0));
    want_ok(t, ibv_req_notify_cq(q.b.rcq, 0));
    recv_ok(t, &p.b, 1, 0, 64);
    recv_ok(t, &q.b, 1, 0, 64);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, NULL);
    send_ok(t, p.a.qp, &wr);
    send_ok(t, q.a.qp, &wr);
    for (int i = 0; i < 2; i++) {
        struct ibv_cq *cq;
        void *context;

        want(t, readable(ch->fd, t->wait_s * 1000));
        want_ok(t, ibv_get_cq_event(ch, &cq, &context));
        ibv_ack_cq_events(cq, 1);
        first |= cq == p.b.rcq;
        second |= cq == q.b.rcq;
    }
    want(t, first && second);
}

/* ---- Waiting threads */

struct waiter {
    struct ibv_comp_channel *ch;
    struct ibv_cq *cq;
    int ret;
    _Atomic bool done;
};

static void *wait_in_get(void *arg)
{
    struct waiter *w = arg;
    void *context;

    w->ret = ibv_get_cq_event(w->ch, &w->cq, &context);
    w->done = true;
    return NULL;
}

static void *wait_in_destroy(void *arg)
{
    struct waiter *w = arg;

    w->ret = ibv_destroy_cq(w->cq);
    w->done = true;
    return NULL;
}

static bool ends(struct t *t, struct waiter *w, pthread_t thread)
{
    for (double end = now() + t->wait_s; !w->done && now() < end;)
        nap(1);
    if (w->done)
        pthread_join(thread, NULL);
    return w->done;
}

static void blocking(struct t *t, long arg)
{
    /* Not on the stack, because the thread may outlive a check that fails. */
    static struct waiter w;
    struct heard h;
    pthread_t thread;

    (void)arg;
    heard_new(t, &h);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    w = (struct waiter){.ch = h.ch};
    want_ok(t, pthread_create(&thread, NULL, wait_in_get, &w));
    nap(10);
    want(t, !w.done);
    say(t, &h, 0);
    want(t, ends(t, &w, thread));
    want_eq(t, w.ret, 0);
    want(t, w.cq == h.p.b.rcq);
    ibv_ack_cq_events(w.cq, 1);
}

static void destroy_waits(struct t *t, long arg)
{
    static struct waiter w;
    struct heard h;
    struct ibv_cq *cq;
    void *context;
    pthread_t thread;

    (void)arg;
    heard_new(t, &h);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    say(t, &h, 0);
    want(t, readable(h.ch->fd, t->wait_s * 1000));
    want_ok(t, ibv_get_cq_event(h.ch, &cq, &context));
    drop(t, h.p.b.qp);
    w = (struct waiter){.cq = cq};
    want_ok(t, pthread_create(&thread, NULL, wait_in_destroy, &w));
    nap(quiet_ms(t));
    want(t, !w.done);
    ibv_ack_cq_events(cq, 1);
    want(t, ends(t, &w, thread));
    forget(t, cq);
    want_eq(t, w.ret, 0);
}

static void ack_several(struct t *t, long arg)
{
    struct heard h;
    struct ibv_cq *cq = NULL;
    void *context;

    (void)arg;
    heard_new(t, &h);
    for (int i = 0; i < 5; i++) {
        want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
        say(t, &h, 0);
        want(t, readable(h.ch->fd, t->wait_s * 1000));
        want_ok(t, ibv_get_cq_event(h.ch, &cq, &context));
    }
    ibv_ack_cq_events(cq, 5);
    drop(t, h.p.b.qp);
    drop(t, cq);
}

/* Destroying a CQ removes its events that were not read. */
static void untaken(struct t *t, long arg)
{
    struct heard h;

    (void)arg;
    heard_new(t, &h);
    want_ok(t, ibv_req_notify_cq(h.p.b.rcq, 0));
    say(t, &h, 0);
    want(t, readable(h.ch->fd, t->wait_s * 1000));
    drop(t, h.p.b.qp);
    drop(t, h.p.b.rcq);
    want_none(t, &h);
}

const struct check channel_checks[] = {
    {"channel.fields", fields, 0, 0},
    {"channel.destroy.busy", busy, 0, 0},
    {"channel.unarmed", unarmed, 0, 0},
    {"channel.armed", armed, 0, 0},
    {"channel.once", once, 0, 0},
    {"channel.armed_twice", twice_armed, 0, 0},
    {"channel.again", again, 0, 0},
    {"channel.missed", missed, 0, 0},
    {"channel.unpolled", unpolled, 0, 0},
    {"channel.unpolled_solicited", unpolled, 1, 0},
    {"channel.unpolled_not_solicited", unpolled_not_solicited, 0, 0},
    {"channel.unpolled_error", unpolled_error, 0, 0},
    {"channel.unpolled_unread", unpolled_unread, 0, 0},
    {"channel.solicited", solicited, 0, 0},
    {"channel.solicited_after_any", solicited_after_any, 0, 0},
    {"channel.solicited_error", solicited_error, 0, 0},
    {"channel.solicited_write_imm", write_imm, 0, 0},
    {"channel.send_side", send_side, 0, 0},
    {"channel.nonblocking", nonblocking, 0, 0},
    {"channel.two_cqs", two_cqs, 0, 0},
    {"channel.blocking", blocking, 0, 0},
    {"channel.destroy_waits_for_ack", destroy_waits, 0, 0},
    {"channel.ack_several", ack_several, 0, 0},
    {"channel.untaken_event", untaken, 0, 0},
    {0},
};
