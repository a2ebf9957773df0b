/* SPDX-License-Identifier: MIT
 *
 * Checks of completion queues: making, changing, polling, and what a completion says.
 */
#include <arpa/inet.h>

#include "conf.h"

static void create(struct t *t, long arg)
{
    struct ibv_cq *cq = cq_new(t, (int)arg, NULL);

    want(t, cq->cqe >= arg);
    want(t, cq->context == t->ctx);
    want(t, cq->channel == NULL);
}

static void create_max(struct t *t, long arg)
{
    (void)arg;
    want(t, cq_new(t, t->attr.max_cqe, NULL)->cqe >= t->attr.max_cqe);
}

static void create_bad(struct t *t, long arg)
{
    int cqe = arg == 1 ? t->attr.max_cqe + 1 : (int)arg;

    want_null(t, ibv_create_cq(t->ctx, cqe, NULL, NULL, 0), EINVAL);
}

static void create_vector(struct t *t, long arg)
{
    struct ibv_cq *cq = NULL;

    if (arg < 0) {
        want_null(t, cq = ibv_create_cq(t->ctx, 4, NULL, NULL, t->ctx->num_comp_vectors), EINVAL);
    } else {
        cq = ibv_create_cq(t->ctx, 4, NULL, NULL, t->ctx->num_comp_vectors - 1);
        want(t, cq != NULL);
        want_ok(t, ibv_destroy_cq(cq));
    }
}

static void user_context(struct t *t, long arg)
{
    struct ibv_cq *cq = ibv_create_cq(t->ctx, 4, &arg, NULL, 0);

    want(t, cq != NULL);
    bool same = cq->cq_context == &arg;
    want_ok(t, ibv_destroy_cq(cq));
    want(t, same);
}

static void busy(struct t *t, long arg)
{
    struct ibv_cq *cq = cq_new(t, 8, NULL);
    struct ibv_qp *qp = qp_simple(t, pd_new(t), cq, IBV_QPT_RC);

    (void)arg;
    want_ret(t, ibv_destroy_cq(cq), EBUSY);
    drop(t, qp);
    drop(t, cq);
}

static void poll_empty(struct t *t, long arg)
{
    struct ibv_wc wc[4];
    struct ibv_cq *cq = cq_new(t, 8, NULL);

    want_eq(t, ibv_poll_cq(cq, (int)arg, wc), 0);
}

/* n sends from a to b complete on both sides; none of the completions is polled. */
static void exchange(struct t *t, struct pair *p, int n)
{
    struct ibv_sge sge = sge_at(&p->a, 0, 8);

    for (int i = 0; i < n; i++)
        recv_ok(t, &p->b, 100 + (uint64_t)i, (size_t)i * 64, 64);
    for (int i = 0; i < n; i++) {
        struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 200 + (uint64_t)i, &sge);
        send_ok(t, p->a.qp, &wr);
    }
}

static void order(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    exchange(t, &p, 12);
    for (int i = 0; i < 12; i++) {
        wait_for(t, p.a.scq, 200 + (uint64_t)i, IBV_WC_SUCCESS);
        wait_for(t, p.b.rcq, 100 + (uint64_t)i, IBV_WC_SUCCESS);
    }
    quiet(t, p.a.scq);
}

static void poll_several(struct t *t, long arg)
{
    struct pair p;
    struct ibv_wc wc[8];
    int got = 0;

    (void)arg;
    PAIR(t, &p);
    exchange(t, &p, 10);
    for (double end = now() + t->wait_s; got < 10 && now() < end;) {
        int n = ibv_poll_cq(p.b.rcq, 8, wc);

        want(t, n >= 0 && n <= 8);
        for (int i = 0; i < n; i++)
            want_eq(t, wc[i].wr_id, 100 + got + i);
        got += n;
    }
    want_eq(t, got, 10);
    want_eq(t, ibv_poll_cq(p.b.rcq, 8, wc), 0);
}

static void poll_part(struct t *t, long arg)
{
    struct pair p;
    struct ibv_wc wc[8];

    (void)arg;
    PAIR(t, &p);
    exchange(t, &p, 6);
    for (int i = 0; i < 6; i++)
        wait_for(t, p.a.scq, 200 + (uint64_t)i, IBV_WC_SUCCESS);
    want_eq(t, ibv_poll_cq(p.b.rcq, 0, wc), 0);
    want_eq(t, ibv_poll_cq(p.b.rcq, 2, wc), 2);
    want_eq(t, wc[1].wr_id, 101);
    want_eq(t, ibv_poll_cq(p.b.rcq, 8, wc), 4);
    want_eq(t, wc[3].wr_id, 105);
}

/* Both directions and both queues of two QPs on one CQ. */
static void shared(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_cq *cq = cq_new(t, 16, NULL);
    struct ibv_qp *a = qp_simple(t, pd, cq, IBV_QPT_RC), *b = qp_simple(t, pd, cq, IBV_QPT_RC);
    char *buf = mem_new(t, 4096);
    struct end e = {.buf = buf, .mr = mr_new(t, pd, buf, 4096, ALL_ACCESS), .qp = b};
    bool sent = false, received = false;

    (void)arg;
    to_init(t, a);
    to_init(t, b);
    to_rtr(t, a, b->qp_num);
    to_rtr(t, b, a->qp_num);
    to_rts(t, a);
    to_rts(t, b);
    recv_ok(t, &e, 7, 0, 64);
    struct ibv_sge sge = sge_at(&e, 100, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 8, &sge);
    send_ok(t, a, &wr);
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = wait_wc(t, cq);

        want_eq(t, wc.status, IBV_WC_SUCCESS);
        if (wc.wr_id == 7) {
            received = true;
            want_eq(t, wc.qp_num, b->qp_num);
            want_eq(t, wc.opcode, IBV_WC_RECV);
        } else {
            sent = true;
            want_eq(t, wc.qp_num, a->qp_num);
            want_eq(t, wc.opcode, IBV_WC_SEND);
        }
    }
    want(t, sent && received);
}

/* Unpolled completions of a destroyed QP are removed, or at least harmless. */
static void after_destroy(struct t *t, long arg)
{
    struct pair p;
    struct ibv_wc wc;

    (void)arg;
    PAIR(t, &p);
    exchange(t, &p, 1);
    wait_for(t, p.a.scq, 200, IBV_WC_SUCCESS);
    drop(t, p.b.qp);
    want(t, ibv_poll_cq(p.b.rcq, 1, &wc) >= 0);
    want(t, ibv_poll_cq(p.b.rcq, 1, &wc) == 0);
}

/* ---- Completions of a QP that is reset or destroyed */

/* Makes a QP that is connected to itself. */
static void loop_up(struct t *t, struct ibv_qp *qp)
{
    to_init(t, qp);
    to_rtr(t, qp, qp->qp_num);
    to_rts(t, qp);
}

static void self_send(struct t *t, struct ibv_qp *qp, uint64_t wr_id)
{
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, wr_id, NULL);

    want_ok(t, post_recv(qp, wr_id, NULL, 0));
    send_ok(t, qp, &wr);
}

/* Of two QPs that share a CQ one is reset or destroyed, while some of its completions are unpolled. Its completions are removed; those of
 * the other QP stay, each once and in order. Repeated until the CQ's ring has wrapped around. */
static void cleaned(struct t *t, long destroy)
{
    struct ibv_cq *cq = cq_new(t, 24, NULL);
    struct ibv_pd *pd = pd_new(t);
    struct ibv_qp *goes = qp_simple(t, pd, cq, IBV_QPT_RC), *stays = qp_simple(t, pd, cq, IBV_QPT_RC);

    loop_up(t, stays);
    for (int round = 0; round < 8; round++) {
        uint64_t sent = 0, received = 0;
        struct ibv_wc wc[3];

        loop_up(t, goes);
        for (uint64_t i = 0; i < 4; i++) {
            self_send(t, round % 2 ? stays : goes, i);
            self_send(t, round % 2 ? goes : stays, i);
        }
        nap(quiet_ms(t));
        want_eq(t, ibv_poll_cq(cq, 3, wc), 3);
        for (int i = 0; i < 3; i++)
            if (wc[i].qp_num == stays->qp_num)
                want_eq(t, wc[i].wr_id, wc[i].opcode & IBV_WC_RECV ? received++ : sent++);
        if (destroy) {
            drop(t, goes);
            goes = qp_simple(t, pd, cq, IBV_QPT_RC);
        } else {
            want_ok(t, to_state(goes, IBV_QPS_RESET));
        }
        while (sent < 4 || received < 4) {
            wc[0] = wait_wc(t, cq);
            want_eq(t, wc[0].qp_num, stays->qp_num);
            want_eq(t, wc[0].status, IBV_WC_SUCCESS);
            want_eq(t, wc[0].wr_id, wc[0].opcode & IBV_WC_RECV ? received++ : sent++);
        }
        quiet(t, cq);
    }
}

/* Removing completions frees the same slots of a shared receive queue as polling them would. */
static void cleaned_srq(struct t *t, long destroy)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_cq *cq = cq_new(t, 64, NULL);
    struct ibv_srq_attr attr = {0};
    struct ibv_srq *srq = srq_new(t, pd, 4);

    want_ok(t, ibv_query_srq(srq, &attr));
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = attr.max_wr, .max_send_sge = 1}};
    struct ibv_qp *qp = qp_new(t, pd, &init);
    for (int round = 0; round < 3; round++) {
        loop_up(t, qp);
        for (uint32_t i = 0; i < attr.max_wr; i++) {
            struct ibv_recv_wr wr = {.wr_id = i}, *bad;
            want_ok(t, ibv_post_srq_recv(srq, &wr, &bad));
        }
        for (uint32_t i = 0; i < attr.max_wr; i++) {
            struct ibv_send_wr wr = wr_of(IBV_WR_SEND, i, NULL);
            wr.send_flags = 0;
            send_ok(t, qp, &wr);
        }
        nap(quiet_ms(t));
        if (destroy) {
            drop(t, qp);
            qp = qp_new(t, pd, &init);
        } else {
            want_ok(t, to_state(qp, IBV_QPS_RESET));
        }
        quiet(t, cq);
    }
}

/* An event that was raised for the removed completions stays, although polling then finds none; arming the CQ again raises no event. */
static void cleaned_event(struct t *t, long destroy)
{
    struct ibv_comp_channel *ch = channel_new(t);
    struct ibv_cq *cq = cq_new(t, 64, ch), *got;
    struct ibv_pd *pd = pd_new(t);
    struct ibv_qp *goes = qp_simple(t, pd, cq, IBV_QPT_RC), *stays = qp_simple(t, pd, cq, IBV_QPT_RC);
    void *context;

    loop_up(t, goes);
    loop_up(t, stays);
    want_ok(t, ibv_req_notify_cq(cq, 0));
    self_send(t, goes, 1);
    want(t, readable(ch->fd, t->wait_s * 1000));
    nap(quiet_ms(t));
    if (destroy)
        drop(t, goes);
    else
        want_ok(t, to_state(goes, IBV_QPS_RESET));
    want(t, readable(ch->fd, quiet_ms(t)));
    want_ok(t, ibv_get_cq_event(ch, &got, &context));
    ibv_ack_cq_events(got, 1);
    quiet(t, cq);
    want_ok(t, ibv_req_notify_cq(cq, 0));
    want(t, !readable(ch->fd, quiet_ms(t)));
    self_send(t, stays, 2);
    want(t, readable(ch->fd, t->wait_s * 1000));
    want_ok(t, ibv_get_cq_event(ch, &got, &context));
    ibv_ack_cq_events(got, 1);
}

/* ---- Resizing */

static int resize(struct t *t, struct ibv_cq *cq, int cqe)
{
    int ret = ibv_resize_cq(cq, cqe);

    if (ret == EOPNOTSUPP || ret == ENOSYS)
        skip(t, "the device cannot resize a CQ");
    return ret;
}

static void resize_up(struct t *t, long arg)
{
    struct ibv_cq *cq = cq_new(t, 4, NULL);

    (void)arg;
    want_eq(t, resize(t, cq, 100), 0);
    want(t, cq->cqe >= 100);
}

static void resize_bad(struct t *t, long arg)
{
    struct ibv_cq *cq = cq_new(t, 4, NULL);

    want_ret(t, resize(t, cq, arg ? t->attr.max_cqe + 1 : 0), EINVAL);
    want(t, cq->cqe >= 4);
}

static void resize_keeps(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p);
    exchange(t, &p, 6);
    for (int i = 0; i < 6; i++)
        wait_for(t, p.a.scq, 200 + (uint64_t)i, IBV_WC_SUCCESS);
    wait_for(t, p.b.rcq, 100, IBV_WC_SUCCESS);
    int ret = resize(t, p.b.rcq, (int)arg);
    if (arg < 5)
        want_ret(t, ret, EINVAL);
    else
        want_eq(t, ret, 0);
    for (int i = 1; i < 6; i++)
        wait_for(t, p.b.rcq, 100 + (uint64_t)i, IBV_WC_SUCCESS);
    quiet(t, p.b.rcq);
}

/* ---- The fields of a completion */

struct said {
    enum ibv_wr_opcode op;
    enum ibv_wc_opcode sender, receiver;
    bool recv, imm;
};

static const struct said saids[] = {
    {IBV_WR_SEND, IBV_WC_SEND, IBV_WC_RECV, true, false},
    {IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, IBV_WC_RECV, true, true},
    {IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, 0, false, false},
    {IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE, IBV_WC_RECV_RDMA_WITH_IMM, true, true},
    {IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, 0, false, false},
    {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP, 0, false, false},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD, 0, false, false},
};

static void says(struct t *t, long arg)
{
    const struct said *s = &saids[arg];
    struct pair p;
    bool atomic = s->op == IBV_WR_ATOMIC_CMP_AND_SWP || s->op == IBV_WR_ATOMIC_FETCH_AND_ADD;
    uint32_t len = atomic ? 8 : 777;

    PAIR(t, &p);
    recv_ok(t, &p.b, 0xfedcba9876543210u, 8192, 1000);
    struct ibv_sge sge = sge_at(&p.a, 0, len);
    struct ibv_send_wr wr = wr_rdma(s->op, 0x0123456789abcdefu, &sge, &p.b, 0);
    wr.imm_data = htonl(0xa1b2c3d4);
    send_ok(t, p.a.qp, &wr);
    struct ibv_wc wc = wait_for(t, p.a.scq, 0x0123456789abcdefu, IBV_WC_SUCCESS);
    want_eq(t, wc.opcode, s->sender);
    want_eq(t, wc.qp_num, p.a.qp->qp_num);
    if (s->op == IBV_WR_RDMA_READ || atomic)
        want_eq(t, wc.byte_len, len);
    if (!s->recv) {
        quiet(t, p.b.rcq);
        return;
    }
    wc = wait_for(t, p.b.rcq, 0xfedcba9876543210u, IBV_WC_SUCCESS);
    want_eq(t, wc.opcode, s->receiver);
    want_eq(t, wc.byte_len, len);
    want_eq(t, wc.qp_num, p.b.qp->qp_num);
    want_eq(t, (wc.wc_flags & IBV_WC_WITH_IMM) != 0, s->imm);
    want_eq(t, wc.wc_flags & IBV_WC_GRH, 0);
    if (s->imm)
        want_eq(t, ntohl(wc.imm_data), 0xa1b2c3d4u);
}

/* In a completion with an error only wr_id, status and qp_num are valid. */
static void says_error(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 77, &sge, &p.b, 65536);
    send_ok(t, p.a.qp, &wr);
    struct ibv_wc wc = wait_for(t, p.a.scq, 77, IBV_WC_REM_ACCESS_ERR);
    want_eq(t, wc.qp_num, p.a.qp->qp_num);
}

/* ---- Too many completions for the queue */

static void overrun(struct t *t, long arg)
{
    struct ibv_cq *scq = cq_new(t, 64, NULL), *small = cq_new(t, 1, NULL);
    struct ibv_pd *pd = pd_new(t);
    struct ibv_qp_init_attr init = {
        .send_cq = small,
        .recv_cq = scq,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *a = qp_new(t, pd, &init), *b = qp_simple(t, pd, scq, IBV_QPT_RC);

    to_init(t, a);
    to_init(t, b);
    to_rtr(t, a, b->qp_num);
    to_rtr(t, b, a->qp_num);
    to_rts(t, a);
    to_rts(t, b);
    struct ibv_send_wr wr = wr_of(IBV_WR_RDMA_WRITE, 1, NULL);
    /* More completions than the CQ was granted entries, which may be more than requested. */
    for (int i = 0; i < small->cqe + 8; i++) {
        double end = now() + t->wait_s;
        int ret;

        while ((ret = post_send(a, &wr)) == ENOMEM && now() < end && i < small->cqe)
            nap(1);
        if (ret)
            break; /* the QP may be in error already */
        nap(1);
    }
    struct ibv_async_event event = wait_event(t, IBV_EVENT_CQ_ERR);
    want(t, event.element.cq == small);
    if (arg)
        wait_state(t, a, IBV_QPS_ERR);
}

const struct check cq_checks[] = {
    {"cq.create.one", create, 1, 0},
    {"cq.create.hundred", create, 100, 0},
    {"cq.create.max", create_max, 0, 0},
    {"cq.create.zero", create_bad, 0, 0},
    {"cq.create.negative", create_bad, -5, 0},
    {"cq.create.too_many", create_bad, 1, 0},
    {"cq.create.last_vector", create_vector, 0, 0},
    {"cq.create.vector_beyond", create_vector, -1, 0},
    {"cq.create.user_context", user_context, 0, 0},
    {"cq.destroy.busy", busy, 0, 0},
    {"cq.poll.empty", poll_empty, 1, 0},
    {"cq.poll.empty_several", poll_empty, 4, 0},
    {"cq.poll.order", order, 0, 0},
    {"cq.poll.several", poll_several, 0, 0},
    {"cq.poll.part", poll_part, 0, 0},
    {"cq.shared", shared, 0, 0},
    {"cq.after_qp_destroyed", after_destroy, 0, 0},
    {"cq.cleaned.reset", cleaned, 0, 0},
    {"cq.cleaned.destroy", cleaned, 1, 0},
    {"cq.cleaned.reset_srq", cleaned_srq, 0, NEED_SRQ},
    {"cq.cleaned.destroy_srq", cleaned_srq, 1, NEED_SRQ},
    {"cq.cleaned.reset_event", cleaned_event, 0, 0},
    {"cq.cleaned.destroy_event", cleaned_event, 1, 0},
    {"cq.resize.up", resize_up, 0, 0},
    {"cq.resize.zero", resize_bad, 0, 0},
    {"cq.resize.too_many", resize_bad, 1, 0},
    {"cq.resize.keeps", resize_keeps, 200, 0},
    {"cq.resize.just_enough", resize_keeps, 5, 0},
    {"cq.resize.too_few", resize_keeps, 2, 0},
    {"wc.send", says, 0, 0},
    {"wc.send_imm", says, 1, 0},
    {"wc.write", says, 2, 0},
    {"wc.write_imm", says, 3, 0},
    {"wc.read", says, 4, 0},
    {"wc.compare_swap", says, 5, NEED_ATOMIC},
    {"wc.fetch_add", says, 6, NEED_ATOMIC},
    {"wc.error", says_error, 0, 0},
    {"cq.overrun.event", overrun, 0, 0},
    {"cq.overrun.qp_error", overrun, 1, 0},
    {0},
};
