/* SPDX-License-Identifier: MIT
 *
 * Checks of shared receive queues.
 */
#include "conf.h"

static int post_srq(struct ibv_srq *srq, const struct end *e, uint64_t wr_id, size_t off, uint32_t len)
{
    struct ibv_sge sge = sge_at(e, off, len);
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad = NULL;

    return ibv_post_srq_recv(srq, &wr, &bad);
}

static void say(struct t *t, struct pair *p, uint64_t wr_id)
{
    struct ibv_sge sge = sge_at(&p->a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, wr_id, &sge);

    send_ok(t, p->a.qp, &wr);
    wait_for(t, p->a.scq, wr_id, IBV_WC_SUCCESS);
}

static void create(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq_init_attr init = {.srq_context = &arg, .attr = {.max_wr = 10, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    struct ibv_srq_attr attr = {0};

    want(t, srq != NULL);
    int ret = ibv_query_srq(srq, &attr);
    bool fields = srq->pd == pd && srq->context == t->ctx && srq->srq_context == &arg;
    want_ok(t, ibv_destroy_srq(srq));
    want(t, fields);
    want_ok(t, ret);
    want(t, init.attr.max_wr >= 10 && init.attr.max_sge >= 1);
    want(t, attr.max_wr >= 10 && attr.max_sge >= 1);
    want_eq(t, attr.srq_limit, 0);
}

/* What is granted is written back. */
static void granted(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 10, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    struct ibv_srq_attr attr = {0};

    (void)arg;
    want(t, srq != NULL);
    int ret = ibv_query_srq(srq, &attr);
    want_ok(t, ibv_destroy_srq(srq));
    want_ok(t, ret);
    want_eq(t, attr.max_wr, init.attr.max_wr);
    want_eq(t, attr.max_sge, init.attr.max_sge);
}

static void create_bad(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 10, .max_sge = 1}};

    if (arg == 0)
        init.attr.max_wr = (uint32_t)t->attr.max_srq_wr + 1;
    else if (arg == 1)
        init.attr.max_sge = (uint32_t)t->attr.max_srq_sge + 1;
    else
        init.attr.max_wr = 0;
    want_null(t, ibv_create_srq(pd, &init), EINVAL);
}

static void destroy_busy(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 16);

    (void)arg;
    PAIR(t, &p, .pd = pd, .srq = srq);
    want_ret(t, ibv_destroy_srq(srq), EBUSY);
    drop(t, p.b.qp);
    drop(t, srq);
}

static void receive(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 16);

    (void)arg;
    PAIR(t, &p, .pd = pd, .srq = srq);
    want(t, p.b.qp->srq == srq);
    fill(p.a.buf, 8, 6);
    for (uint64_t i = 0; i < 5; i++)
        want_ok(t, post_srq(srq, &p.b, 100 + i, i * 64, 64));
    for (uint64_t i = 0; i < 5; i++) {
        say(t, &p, i);
        struct ibv_wc wc = wait_for(t, p.b.rcq, 100 + i, IBV_WC_SUCCESS);
        want_eq(t, wc.qp_num, p.b.qp->qp_num);
        want_eq(t, wc.byte_len, 8);
        want_filled(t, p.b.buf + i * 64, 8, 6);
    }
}

/* A QP with a shared receive queue has none of its own. */
static void own_recv(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *pd = pd_new(t);

    (void)arg;
    PAIR(t, &p, .pd = pd, .srq = srq_new(t, pd, 16));
    struct ibv_sge sge = sge_at(&p.b, 0, 64);
    want_ret(t, post_recv(p.b.qp, 1, &sge, 1), EINVAL);
}

static void two_qps(struct t *t, long arg)
{
    struct pair p, q;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 16);

    (void)arg;
    PAIR(t, &p, .pd = pd, .srq = srq);
    PAIR(t, &q, .pd = pd, .srq = srq);
    for (uint64_t i = 0; i < 4; i++)
        want_ok(t, post_srq(srq, &p.b, 100 + i, i * 64, 64));
    say(t, &p, 1);
    say(t, &q, 2);
    say(t, &p, 3);
    want_eq(t, wait_for(t, p.b.rcq, 100, IBV_WC_SUCCESS).qp_num, p.b.qp->qp_num);
    want_eq(t, wait_for(t, q.b.rcq, 101, IBV_WC_SUCCESS).qp_num, q.b.qp->qp_num);
    wait_for(t, p.b.rcq, 102, IBV_WC_SUCCESS);
    /* Destroying a QP removes no receives from the shared queue. */
    drop(t, p.b.qp);
    say(t, &q, 4);
    wait_for(t, q.b.rcq, 103, IBV_WC_SUCCESS);
}

static void ud(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 16);

    (void)arg;
    PAIR(t, &p, .type = IBV_QPT_UD, .access = IBV_ACCESS_LOCAL_WRITE, .pd = pd, .srq = srq);
    want_ok(t, post_srq(srq, &p.b, 9, 0, 100));
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    wr.wr.ud.ah = ah_new(t, pd);
    wr.wr.ud.remote_qpn = p.b.qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
    send_ok(t, p.a.qp, &wr);
    want_eq(t, wait_for(t, p.b.rcq, 9, IBV_WC_SUCCESS).byte_len, 48);
}

static void full(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 4);
    struct ibv_srq_attr attr;

    (void)arg;
    PAIR(t, &p, .pd = pd);
    want_ok(t, ibv_query_srq(srq, &attr));
    for (uint32_t i = 0; i < attr.max_wr; i++)
        want_ok(t, post_srq(srq, &p.b, i, 0, 8));
    want_ret(t, post_srq(srq, &p.b, 99, 0, 8), ENOMEM);
}

static void too_many_sge(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 4);
    struct ibv_sge sge[64];

    (void)arg;
    PAIR(t, &p, .pd = pd);
    for (int i = 0; i < 64; i++)
        sge[i] = sge_at(&p.b, 0, 8);
    struct ibv_recv_wr second = {.wr_id = 1, .sg_list = sge, .num_sge = 64}, *bad = NULL;
    struct ibv_recv_wr first = {.wr_id = 1, .sg_list = sge, .num_sge = 1, .next = &second};
    want_ret(t, ibv_post_srq_recv(srq, &first, &bad), EINVAL);
    want(t, bad == &second);
}

/* Sends wait for a shared receive as they do for one of the QP's own. */
static void rnr(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 16);

    PAIR(t, &p, .pd = pd, .srq = srq, .rnr_retry = arg ? -1 : 7);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    send_ok(t, p.a.qp, &wr);
    if (arg) {
        wait_for(t, p.a.scq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
        return;
    }
    quiet(t, p.a.scq);
    want_ok(t, post_srq(srq, &p.b, 2, 0, 64));
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS);
}

/* ---- The limit: when fewer receives than the limit are left, an event is raised, once */

static void limit_set(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 16);
    struct ibv_srq_attr attr = {.srq_limit = 5}, got;

    (void)arg;
    PAIR(t, &p, .pd = pd);
    for (uint64_t i = 0; i < 6; i++)
        want_ok(t, post_srq(srq, &p.b, i, 0, 8));
    want_ok(t, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    want_ok(t, ibv_query_srq(srq, &got));
    want_eq(t, got.srq_limit, 5);
    want(t, got.max_wr >= 16);
}

static void limit_bad(struct t *t, long arg)
{
    struct ibv_srq *srq = srq_new(t, pd_new(t), 16);
    struct ibv_srq_attr attr;

    want_ok(t, ibv_query_srq(srq, &attr));
    attr.srq_limit = attr.max_wr + 1;
    want_ret(t, ibv_modify_srq(srq, &attr, arg ? 1 << 10 : IBV_SRQ_LIMIT), EINVAL);
}

static void limit_event(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 16);
    struct ibv_srq_attr attr = {.srq_limit = 3};

    PAIR(t, &p, .pd = pd, .srq = srq);
    for (uint64_t i = 0; i < 6; i++)
        want_ok(t, post_srq(srq, &p.b, i, i * 64, 64));
    want_ok(t, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    for (uint64_t i = 0; i < 3; i++) /* three are left: not fewer than the limit */
        say(t, &p, i);
    if (readable(t->ctx->async_fd, quiet_ms(t)))
        fail(t, "an event came with as many receives left as the limit says");
    say(t, &p, 3);
    struct ibv_async_event event = wait_event(t, IBV_EVENT_SRQ_LIMIT_REACHED);
    want(t, event.element.srq == srq);
    if (arg == 0)
        return;
    /* After the event the limit is off. */
    want_ok(t, ibv_query_srq(srq, &attr));
    want_eq(t, attr.srq_limit, 0);
    say(t, &p, 4);
    want(t, !readable(t->ctx->async_fd, quiet_ms(t)));
}

static void resize(struct t *t, long arg)
{
    struct ibv_srq *srq = srq_new(t, pd_new(t), 4);
    struct ibv_srq_attr attr = {.max_wr = arg ? (uint32_t)t->attr.max_srq_wr + 1 : 100};

    if (!(t->attr.device_cap_flags & IBV_DEVICE_SRQ_RESIZE))
        skip(t, "the device cannot resize an SRQ");
    if (arg) {
        want_ret(t, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
        return;
    }
    want_ok(t, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
    want_ok(t, ibv_query_srq(srq, &attr));
    want(t, attr.max_wr >= 100);
}

/* A QP in error takes no more receives from the shared queue, and raises IBV_EVENT_QP_LAST_WQE_REACHED once. */
static void last_wqe(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 16);

    PAIR(t, &p, .pd = pd, .srq = srq);
    for (uint64_t i = 0; i < 4; i++)
        want_ok(t, post_srq(srq, &p.b, i, 0, 64));
    want_ok(t, to_state(p.b.qp, IBV_QPS_ERR));
    if (arg) {
        quiet(t, p.b.rcq); /* receives in the shared queue belong to no QP, and are not flushed */
        return;
    }
    struct ibv_async_event event = wait_event(t, IBV_EVENT_QP_LAST_WQE_REACHED);
    want(t, event.element.qp == p.b.qp);
}

static void too_long(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 16);

    (void)arg;
    PAIR(t, &p, .pd = pd, .srq = srq);
    want_ok(t, post_srq(srq, &p.b, 1, 0, 4));
    want_ok(t, post_srq(srq, &p.b, 2, 0, 64));
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 3, &sge);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.b.rcq, 1, IBV_WC_LOC_LEN_ERR);
    wait_for(t, p.a.scq, 3, IBV_WC_REM_INV_REQ_ERR);
    quiet(t, p.b.rcq);
}

const struct check srq_checks[] = {
    {"srq.create", create, 0, NEED_SRQ},
    {"srq.create.granted", granted, 0, NEED_SRQ},
    {"srq.create.too_many_wr", create_bad, 0, NEED_SRQ},
    {"srq.create.too_many_sge", create_bad, 1, NEED_SRQ},
    {"srq.create.zero_wr", create_bad, 2, NEED_SRQ},
    {"srq.destroy.busy", destroy_busy, 0, NEED_SRQ},
    {"srq.receive", receive, 0, NEED_SRQ},
    {"srq.no_own_receives", own_recv, 0, NEED_SRQ},
    {"srq.two_qps", two_qps, 0, NEED_SRQ},
    {"srq.ud", ud, 0, NEED_SRQ | NEED_UD},
    {"srq.full", full, 0, NEED_SRQ},
    {"srq.too_many_sge", too_many_sge, 0, NEED_SRQ},
    {"srq.rnr.for_ever", rnr, 0, NEED_SRQ},
    {"srq.rnr.exceeded", rnr, 1, NEED_SRQ},
    {"srq.limit.set", limit_set, 0, NEED_SRQ},
    {"srq.limit.beyond", limit_bad, 0, NEED_SRQ},
    {"srq.modify.unknown_mask", limit_bad, 1, NEED_SRQ},
    {"srq.limit.event", limit_event, 0, NEED_SRQ},
    {"srq.limit.once", limit_event, 1, NEED_SRQ},
    {"srq.resize", resize, 0, NEED_SRQ},
    {"srq.resize.too_many", resize, 1, NEED_SRQ},
    {"srq.last_wqe.event", last_wqe, 0, NEED_SRQ},
    {"srq.last_wqe.not_flushed", last_wqe, 1, NEED_SRQ},
    {"srq.error.too_long", too_long, 0, NEED_SRQ},
    {0},
};
