/* SPDX-License-Identifier: MIT
 *
 * Checks of creating and destroying queue pairs: what can be requested, and what is granted.
 */
#include "conf.h"

static struct ibv_qp_init_attr asked(struct t *t, enum ibv_qp_type type)
{
    struct ibv_cq *cq = cq_new(t, 16, NULL);

    return (struct ibv_qp_init_attr){
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = type,
        .cap = {.max_send_wr = 3, .max_recv_wr = 5, .max_send_sge = 1, .max_recv_sge = 1},
    };
}

static void create(struct t *t, long arg)
{
    struct ibv_qp_init_attr init = asked(t, (enum ibv_qp_type)arg);
    struct ibv_pd *pd = pd_new(t);
    int context;

    init.qp_context = &context;
    struct ibv_qp *qp = qp_new(t, pd, &init);
    want_eq(t, qp->qp_type, arg);
    want_eq(t, qp->state, IBV_QPS_RESET);
    want(t, qp->pd == pd);
    want(t, qp->context == t->ctx);
    want(t, qp->send_cq == init.send_cq && qp->recv_cq == init.recv_cq);
    want(t, qp->qp_context == &context);
    want(t, qp->srq == NULL);
    want(t, qp->qp_num > 1 && qp->qp_num < 1u << 24);
    want(t, init.cap.max_send_wr >= 3 && init.cap.max_recv_wr >= 5);
    want(t, init.cap.max_send_sge >= 1 && init.cap.max_recv_sge >= 1);
}

/* The granted sizes are written back, and can really be used. */
static void granted(struct t *t, long arg)
{
    struct ibv_qp_init_attr init = asked(t, IBV_QPT_RC), queried;
    struct ibv_qp_attr attr;

    (void)arg;
    init.cap.max_inline_data = has(t, NEED_INLINE) ? 33 : 0;
    struct ibv_qp *qp = qp_new(t, pd_new(t), &init);
    want(t, init.cap.max_inline_data >= (has(t, NEED_INLINE) ? 33u : 0u));
    want_ok(t, ibv_query_qp(qp, &attr, IBV_QP_CAP, &queried));
    want_eq(t, attr.cap.max_send_wr, init.cap.max_send_wr);
    want_eq(t, attr.cap.max_recv_wr, init.cap.max_recv_wr);
    want_eq(t, attr.cap.max_send_sge, init.cap.max_send_sge);
    want_eq(t, attr.cap.max_recv_sge, init.cap.max_recv_sge);
    want_eq(t, attr.cap.max_inline_data, init.cap.max_inline_data);
}

static void limits(struct t *t, long arg)
{
    struct ibv_qp_init_attr init = asked(t, IBV_QPT_RC);

    (void)arg;
    init.cap.max_send_wr = init.cap.max_recv_wr = (uint32_t)t->attr.max_qp_wr;
    struct ibv_qp *qp = qp_new(t, pd_new(t), &init);
    want(t, init.cap.max_send_wr >= (uint32_t)t->attr.max_qp_wr);
    drop(t, qp);
    init = asked(t, IBV_QPT_RC);
    init.cap.max_send_sge = init.cap.max_recv_sge = (uint32_t)t->attr.max_sge;
    qp_new(t, pd_new(t), &init);
}

enum too { SEND_WR, RECV_WR, SEND_SGE, RECV_SGE, INLINE };

static void too_much(struct t *t, long arg)
{
    struct ibv_qp_init_attr init = asked(t, IBV_QPT_RC);
    struct ibv_pd *pd = pd_new(t);

    switch (arg) {
    case SEND_WR: init.cap.max_send_wr = (uint32_t)t->attr.max_qp_wr + 1; break;
    case RECV_WR: init.cap.max_recv_wr = (uint32_t)t->attr.max_qp_wr + 1; break;
    case SEND_SGE: init.cap.max_send_sge = (uint32_t)t->attr.max_sge + 1; break;
    case RECV_SGE: init.cap.max_recv_sge = (uint32_t)t->attr.max_sge + 1; break;
    default: init.cap.max_inline_data = 1u << 24;
    }
    want_null(t, ibv_create_qp(pd, &init), EINVAL);
}

static void bad_type(struct t *t, long arg)
{
    struct ibv_qp_init_attr init = asked(t, (enum ibv_qp_type)arg);
    struct ibv_pd *pd = pd_new(t);

    errno = 0;
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    int err = errno;
    if (qp)
        ibv_destroy_qp(qp);
    want(t, qp == NULL);
    want(t, err == EINVAL || err == EOPNOTSUPP);
}

static void numbers(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_cq *cq = cq_new(t, 16, NULL);
    uint32_t num[32];

    (void)arg;
    for (int i = 0; i < 32; i++) {
        num[i] = qp_simple(t, pd, cq, IBV_QPT_RC)->qp_num;
        for (int j = 0; j < i; j++)
            want(t, num[i] != num[j]);
    }
}

/* A QP number is not used again soon: late packets for the former QP must not reach the next. */
static void number_not_reused(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_cq *cq = cq_new(t, 16, NULL);
    struct ibv_qp *qp = qp_simple(t, pd, cq, IBV_QPT_RC);
    uint32_t num = qp->qp_num;

    (void)arg;
    drop(t, qp);
    want(t, qp_simple(t, pd, cq, IBV_QPT_RC)->qp_num != num);
}

static void again(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_cq *cq = cq_new(t, 16, NULL);

    for (int i = 0; i < 100; i++)
        drop(t, qp_simple(t, pd, cq, (enum ibv_qp_type)arg));
}

static void destroy_busy_queues(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    for (int i = 0; i < 4; i++)
        recv_ok(t, &p.b, 1, 0, 64);
    drop(t, p.b.qp);
    quiet(t, p.b.rcq);
}

static void destroy_traffic(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    struct ibv_sge sge = sge_at(&p.a, 0, 32768);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 0);
    for (int i = 0; i < 8; i++)
        send_ok(t, p.a.qp, &wr);
    drop(t, p.a.qp);
    drop(t, p.b.qp);
}

static void two_cqs(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    want_ret(t, ibv_destroy_cq(p.a.scq), EBUSY);
    want_ret(t, ibv_destroy_cq(p.a.rcq), EBUSY);
}

/* A region may be deregistered before the QP that used it is destroyed; then only the QP's requests fail. */
static void mr_first(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    recv_ok(t, &p.b, 1, 0, 64);
    drop(t, p.b.mr);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 2, &sge);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.b.rcq, 1, IBV_WC_LOC_PROT_ERR);
    wait_for(t, p.a.scq, 2, IBV_WC_REM_OP_ERR);
}

const struct check qp_create_checks[] = {
    {"qp.create.rc", create, IBV_QPT_RC, 0},
    {"qp.create.uc", create, IBV_QPT_UC, NEED_UC},
    {"qp.create.ud", create, IBV_QPT_UD, NEED_UD},
    {"qp.create.granted", granted, 0, 0},
    {"qp.create.limits", limits, 0, 0},
    {"qp.create.too_many_send_wr", too_much, SEND_WR, 0},
    {"qp.create.too_many_recv_wr", too_much, RECV_WR, 0},
    {"qp.create.too_many_send_sge", too_much, SEND_SGE, 0},
    {"qp.create.too_many_recv_sge", too_much, RECV_SGE, 0},
    {"qp.create.too_much_inline", too_much, INLINE, 0},
    {"qp.create.unknown_type", bad_type, 77, 0},
    {"qp.create.numbers", numbers, 0, 0},
    {"qp.create.number_not_reused", number_not_reused, 0, 0},
    {"qp.create.again_rc", again, IBV_QPT_RC, 0},
    {"qp.create.again_ud", again, IBV_QPT_UD, NEED_UD},
    {"qp.destroy.with_receives", destroy_busy_queues, 0, 0},
    {"qp.destroy.in_traffic", destroy_traffic, 0, 0},
    {"qp.destroy.cqs_busy", two_cqs, 0, 0},
    {"qp.region_gone_first", mr_first, 0, 0},
    {0},
};
