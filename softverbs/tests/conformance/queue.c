/* SPDX-License-Identifier: MIT
 *
 * Checks of posting: which state accepts which requests, full queues, chains of requests, signalling and flushing.
 */
#include "conf.h"

static struct ibv_qp *qp_at(struct t *t, struct end *e, enum ibv_qp_type type, enum ibv_qp_state state)
{
    struct ibv_pd *pd = pd_new(t);

    e->scq = e->rcq = cq_new(t, 64, NULL);
    e->buf = mem_new(t, 4096);
    e->mr = mr_new(t, pd, e->buf, 4096, ALL_ACCESS);
    e->qp = qp_simple(t, pd, e->scq, type);
    if (state != IBV_QPS_RESET)
        to_init(t, e->qp);
    if (state == IBV_QPS_RTR || state == IBV_QPS_RTS)
        to_rtr(t, e->qp, e->qp->qp_num);
    if (state == IBV_QPS_RTS)
        to_rts(t, e->qp);
    if (state == IBV_QPS_ERR)
        want_ok(t, to_state(e->qp, IBV_QPS_ERR));
    return e->qp;
}

static void send_early(struct t *t, long arg)
{
    struct end e;
    struct ibv_qp *qp = qp_at(t, &e, IBV_QPT_RC, (enum ibv_qp_state)arg);
    struct ibv_sge sge = sge_at(&e, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge), *bad = NULL;

    want_ret(t, ibv_post_send(qp, &wr, &bad), EINVAL);
    quiet(t, e.scq);
}

static void recv_reset(struct t *t, long arg)
{
    struct end e;
    struct ibv_qp *qp = qp_at(t, &e, IBV_QPT_RC, IBV_QPS_RESET);
    struct ibv_sge sge = sge_at(&e, 0, 8);
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad = NULL;

    (void)arg;
    want_ret(t, ibv_post_recv(qp, &wr, &bad), EINVAL);
}

/* For every reason of a refusal, `bad_wr` names the refused request. */
static void bad_in_reset(struct t *t, long arg)
{
    struct end e;
    struct ibv_qp *qp = qp_at(t, &e, IBV_QPT_RC, IBV_QPS_RESET);
    struct ibv_sge sge = sge_at(&e, 0, 8);
    struct ibv_recv_wr rwr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *rbad = NULL;
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge), *bad = NULL;

    if (arg) {
        want(t, ibv_post_recv(qp, &rwr, &rbad) != 0);
        want(t, rbad == &rwr);
    } else {
        want(t, ibv_post_send(qp, &wr, &bad) != 0);
        want(t, bad == &wr);
    }
}

/* Receives that were posted in INIT or RTR are used when the peer sends. */
static void recv_early(struct t *t, long arg)
{
    struct end e;
    struct ibv_qp *qp = qp_at(t, &e, IBV_QPT_RC, (enum ibv_qp_state)arg);

    recv_ok(t, &e, 5, 0, 64);
    if (arg == IBV_QPS_INIT)
        to_rtr(t, qp, qp->qp_num);
    to_rts(t, qp);
    struct ibv_sge sge = sge_at(&e, 1000, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 6, &sge);
    send_ok(t, qp, &wr);
    unsigned seen = 0;
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = wait_wc(t, e.scq);

        want_eq(t, wc.status, IBV_WC_SUCCESS);
        seen |= wc.wr_id == 5 ? 1 : wc.wr_id == 6 ? 2 : 4;
    }
    want_eq(t, seen, 3);
}

static void post_in_err(struct t *t, long arg)
{
    struct end e;
    struct ibv_qp *qp = qp_at(t, &e, IBV_QPT_RC, IBV_QPS_ERR);

    if (arg) {
        recv_ok(t, &e, 9, 0, 64);
    } else {
        struct ibv_sge sge = sge_at(&e, 0, 8);
        struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 9, &sge);

        send_ok(t, qp, &wr);
    }
    struct ibv_wc wc = wait_for(t, e.scq, 9, IBV_WC_WR_FLUSH_ERR);
    want_eq(t, wc.qp_num, qp->qp_num);
}

/* In RTR a QP receives, and answers RDMA reads. */
static void rtr_receives(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p, .no_rts = true);
    to_rts(t, p.a.qp);
    recv_ok(t, &p.b, 1, 0, 64);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 2, &sge);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 2, IBV_WC_SUCCESS);
    wait_for(t, p.b.rcq, 1, IBV_WC_SUCCESS);
    wr = wr_rdma(IBV_WR_RDMA_READ, 3, &sge, &p.b, 0);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 3, IBV_WC_SUCCESS);
}

/* ---- Full queues */

static uint32_t granted(struct t *t, struct ibv_qp *qp, bool send)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    want_ok(t, ibv_query_qp(qp, &attr, IBV_QP_CAP, &init));
    return send ? init.cap.max_send_wr : init.cap.max_recv_wr;
}

static void recv_full(struct t *t, long arg)
{
    struct end e;
    struct ibv_qp *qp = qp_at(t, &e, IBV_QPT_RC, IBV_QPS_RTS);
    uint32_t n = granted(t, qp, false);
    struct ibv_sge sge = sge_at(&e, 0, 8);

    (void)arg;
    for (uint32_t i = 0; i < n; i++)
        want_ok(t, post_recv(qp, i, &sge, 1));
    want_ret(t, post_recv(qp, n, &sge, 1), ENOMEM);
}

/* Sends to a peer without receives wait, so the queue fills; when one of them has ended, the queue accepts another request. */
static void send_full(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p, .depth = 4, .sig_all = 1);
    uint32_t n = granted(t, p.a.qp, true);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, NULL);
    for (uint32_t i = 0; i < n; i++)
        send_ok(t, p.a.qp, &wr);
    struct ibv_send_wr *bad = NULL;
    want_ret(t, ibv_post_send(p.a.qp, &wr, &bad), ENOMEM);
    want(t, bad == &wr);
    if (!arg)
        return;
    recv_ok(t, &p.b, 2, 0, 64);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    send_ok(t, p.a.qp, &wr);
}

/* Unsignalled requests free their slots when a later signalled completion is polled. */
static void unsignalled_places(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p, .depth = 8);
    uint32_t n = granted(t, p.a.qp, true);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < n; i++) {
            struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, i, &sge, &p.b, 0);

            wr.send_flags = i == n - 1 ? IBV_SEND_SIGNALED : 0;
            send_ok(t, p.a.qp, &wr);
        }
        wait_for(t, p.a.scq, n - 1, IBV_WC_SUCCESS);
        quiet(t, p.a.scq);
    }
}

/* ---- Chains and requests that are refused */

enum refused { TOO_MANY_SGE, UNKNOWN_OPCODE, TOO_LONG_INLINE };

static void chain(struct t *t, long arg)
{
    struct pair p;
    struct ibv_sge many[64], sge;

    PAIR(t, &p);
    for (int i = 0; i < 64; i++)
        many[i] = sge_at(&p.a, (size_t)i, 1);
    sge = sge_at(&p.a, 0, 4096);
    struct ibv_send_wr wr[3], *bad = NULL;
    struct ibv_sge one = sge_at(&p.a, 0, 8);
    for (int i = 0; i < 3; i++) {
        wr[i] = wr_rdma(IBV_WR_RDMA_WRITE, (uint64_t)i, &one, &p.b, 0);
        wr[i].next = i < 2 ? &wr[i + 1] : NULL;
    }
    switch (arg) {
    case TOO_MANY_SGE:
        wr[1].sg_list = many;
        wr[1].num_sge = 64;
        break;
    case UNKNOWN_OPCODE: wr[1].opcode = (enum ibv_wr_opcode)99; break;
    default: wr[1].sg_list = &sge; wr[1].send_flags |= IBV_SEND_INLINE;
    }
    want_ret(t, ibv_post_send(p.a.qp, wr, &bad), EINVAL);
    want(t, bad == &wr[1]);
    /* Requests before the refused one are posted; those behind it are not. */
    wait_for(t, p.a.scq, 0, IBV_WC_SUCCESS);
    quiet(t, p.a.scq);
}

static void chain_full(struct t *t, long arg)
{
    struct pair p;
    struct ibv_send_wr wr[256], *bad = NULL;

    (void)arg;
    PAIR(t, &p, .depth = 4);
    uint32_t n = granted(t, p.a.qp, true);
    if (n >= 255)
        skip(t, "the device grants %u requests where 4 are asked", n);
    for (uint32_t i = 0; i <= n; i++) {
        wr[i] = wr_of(IBV_WR_SEND, i, NULL);
        wr[i].next = i < n ? &wr[i + 1] : NULL;
    }
    want_ret(t, ibv_post_send(p.a.qp, wr, &bad), ENOMEM);
    want(t, bad == &wr[n]);
}

static void chain_ok(struct t *t, long arg)
{
    struct pair p;
    struct ibv_send_wr wr[8], *bad = NULL;
    struct ibv_recv_wr rwr[8], *rbad = NULL;
    struct ibv_sge sge[8], rsge[8];

    (void)arg;
    PAIR(t, &p);
    for (int i = 0; i < 8; i++) {
        sge[i] = sge_at(&p.a, (size_t)i * 16, 16);
        rsge[i] = sge_at(&p.b, (size_t)i * 16, 16);
        wr[i] = wr_of(IBV_WR_SEND, (uint64_t)i, &sge[i]);
        wr[i].next = i < 7 ? &wr[i + 1] : NULL;
        rwr[i] = (struct ibv_recv_wr){.wr_id = 100 + (uint64_t)i, .sg_list = &rsge[i], .num_sge = 1, .next = i < 7 ? &rwr[i + 1] : NULL};
    }
    fill(p.a.buf, 128, 44);
    want_ok(t, ibv_post_recv(p.b.qp, rwr, &rbad));
    want_ok(t, ibv_post_send(p.a.qp, wr, &bad));
    for (int i = 0; i < 8; i++) {
        wait_for(t, p.a.scq, (uint64_t)i, IBV_WC_SUCCESS);
        wait_for(t, p.b.rcq, 100 + (uint64_t)i, IBV_WC_SUCCESS);
    }
    want_filled(t, p.b.buf, 128, 44);
}

static void recv_chain(struct t *t, long arg)
{
    struct end e;
    struct ibv_qp *qp = qp_at(t, &e, IBV_QPT_RC, IBV_QPS_INIT);
    struct ibv_sge many[64];
    struct ibv_recv_wr wr[3], *bad = NULL;

    (void)arg;
    for (int i = 0; i < 64; i++)
        many[i] = sge_at(&e, (size_t)i, 1);
    for (int i = 0; i < 3; i++)
        wr[i] = (struct ibv_recv_wr){.wr_id = (uint64_t)i, .sg_list = many, .num_sge = i == 1 ? 64 : 1, .next = i < 2 ? &wr[i + 1] : NULL};
    want_ret(t, ibv_post_recv(qp, wr, &bad), EINVAL);
    want(t, bad == &wr[1]);
    want_ok(t, to_state(qp, IBV_QPS_ERR));
    wait_for(t, e.rcq, 0, IBV_WC_WR_FLUSH_ERR);
    quiet(t, e.rcq);
}

/* ---- An operation that the type of QP does not have */

static void wrong_op(struct t *t, long arg)
{
    struct pair p;
    enum ibv_qp_type type = arg >> 8 ? IBV_QPT_UD : IBV_QPT_UC;

    PAIR(t, &p, .type = type);
    struct ibv_ah *ah = type == IBV_QPT_UD ? ah_new(t, p.pd) : NULL;
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma((enum ibv_wr_opcode)(arg & 255), 1, &sge, &p.b, 0);
    if (ah) {
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = p.b.qp->qp_num;
        wr.wr.ud.remote_qkey = QKEY;
    }
    want_ret(t, post_send(p.a.qp, &wr), EINVAL);
    quiet(t, p.a.scq);
}

/* ---- Signalling */

static void signalling(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p, .sig_all = (int)arg);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    for (uint64_t i = 0; i < 4; i++) {
        struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, i, &sge, &p.b, 0);

        wr.send_flags = i == 3 ? IBV_SEND_SIGNALED : 0;
        send_ok(t, p.a.qp, &wr);
    }
    for (uint64_t i = arg ? 0 : 3; i < 4; i++)
        wait_for(t, p.a.scq, i, IBV_WC_SUCCESS);
    quiet(t, p.a.scq);
}

static void unsignalled_error(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 6, &sge, &p.b, 65536);
    wr.send_flags = 0;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 6, IBV_WC_REM_ACCESS_ERR); /* an error is reported although no completion was requested */
}

static void unsignalled_recv(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    recv_ok(t, &p.b, 3, 0, 64);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 4, NULL);
    wr.send_flags = 0;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.b.rcq, 3, IBV_WC_SUCCESS);
    quiet(t, p.a.scq);
}

/* ---- Flushing */

static void flush_recv(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    for (uint64_t i = 0; i < 6; i++)
        recv_ok(t, &p.b, i, 0, 64);
    want_ok(t, to_state(p.b.qp, IBV_QPS_ERR));
    for (uint64_t i = 0; i < 6; i++)
        wait_for(t, p.b.rcq, i, IBV_WC_WR_FLUSH_ERR);
    quiet(t, p.b.rcq);
}

/* Sends that wait for receives are flushed in order, including unsignalled ones. */
static void flush_send(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p);
    for (uint64_t i = 0; i < 6; i++) {
        struct ibv_send_wr wr = wr_of(IBV_WR_SEND, i, NULL);

        if (arg)
            wr.send_flags = 0;
        send_ok(t, p.a.qp, &wr);
    }
    want_ok(t, to_state(p.a.qp, IBV_QPS_ERR));
    for (uint64_t i = 0; i < 6; i++)
        wait_for(t, p.a.scq, i, IBV_WC_WR_FLUSH_ERR);
    quiet(t, p.a.scq);
}

/* One request fails; the requests behind it and the receives are flushed. */
static void flush_after_error(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr[4], *bad;
    for (int i = 0; i < 4; i++) {
        wr[i] = wr_rdma(IBV_WR_RDMA_WRITE, (uint64_t)i, &sge, &p.b, i == 1 ? 65536 : 0);
        wr[i].next = i < 3 ? &wr[i + 1] : NULL;
    }
    recv_ok(t, &p.a, 10, 0, 64);
    recv_ok(t, &p.a, 11, 0, 64);
    want_ok(t, ibv_post_send(p.a.qp, wr, &bad));
    wait_for(t, p.a.scq, 0, IBV_WC_SUCCESS);
    wait_for(t, p.a.scq, 1, IBV_WC_REM_ACCESS_ERR);
    wait_for(t, p.a.scq, 2, IBV_WC_WR_FLUSH_ERR);
    wait_for(t, p.a.scq, 3, IBV_WC_WR_FLUSH_ERR);
    wait_for(t, p.a.rcq, 10, IBV_WC_WR_FLUSH_ERR);
    wait_for(t, p.a.rcq, 11, IBV_WC_WR_FLUSH_ERR);
    wait_state(t, p.a.qp, IBV_QPS_ERR);
}

static void reset_clears(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    for (uint64_t i = 0; i < 4; i++) {
        struct ibv_send_wr wr = wr_of(IBV_WR_SEND, i, NULL);

        recv_ok(t, &p.a, i, 0, 64);
        send_ok(t, p.a.qp, &wr);
    }
    want_ok(t, to_state(p.a.qp, IBV_QPS_RESET));
    quiet(t, p.a.scq);
    quiet(t, p.a.rcq);
    /* The reset has emptied the receive queue: its full granted depth can be posted again. */
    uint32_t n = granted(t, p.a.qp, false);
    to_init(t, p.a.qp);
    for (uint32_t i = 0; i < n; i++)
        recv_ok(t, &p.a, i, 0, 64);
}

#define UC_OP(op) (op)
#define UD_OP(op) (1 << 8 | (op))

const struct check queue_checks[] = {
    {"queue.send_in.reset", send_early, IBV_QPS_RESET, 0},
    {"queue.send_in.init", send_early, IBV_QPS_INIT, 0},
    {"queue.send_in.rtr", send_early, IBV_QPS_RTR, 0},
    {"queue.send_in.err", post_in_err, 0, 0},
    {"queue.recv_in.reset", recv_reset, 0, 0},
    {"queue.send_in.reset_bad_wr", bad_in_reset, 0, 0},
    {"queue.recv_in.reset_bad_wr", bad_in_reset, 1, 0},
    {"queue.recv_in.init", recv_early, IBV_QPS_INIT, 0},
    {"queue.recv_in.rtr", recv_early, IBV_QPS_RTR, 0},
    {"queue.recv_in.err", post_in_err, 1, 0},
    {"queue.rtr_receives", rtr_receives, 0, 0},
    {"queue.full.recv", recv_full, 0, 0},
    {"queue.full.send", send_full, 0, 0},
    {"queue.full.send_then_free", send_full, 1, 0},
    {"queue.full.unsignalled", unsignalled_places, 0, 0},
    {"queue.full.chain", chain_full, 0, 0},
    {"queue.chain", chain_ok, 0, 0},
    {"queue.chain.too_many_sge", chain, TOO_MANY_SGE, 0},
    {"queue.chain.unknown_opcode", chain, UNKNOWN_OPCODE, 0},
    {"queue.chain.too_long_inline", chain, TOO_LONG_INLINE, 0},
    {"queue.chain.recv_too_many_sge", recv_chain, 0, 0},
    {"queue.opcode.uc_read", wrong_op, UC_OP(IBV_WR_RDMA_READ), NEED_UC},
    {"queue.opcode.uc_compare_swap", wrong_op, UC_OP(IBV_WR_ATOMIC_CMP_AND_SWP), NEED_UC},
    {"queue.opcode.uc_fetch_add", wrong_op, UC_OP(IBV_WR_ATOMIC_FETCH_AND_ADD), NEED_UC},
    {"queue.opcode.ud_write", wrong_op, UD_OP(IBV_WR_RDMA_WRITE), NEED_UD},
    {"queue.opcode.ud_write_imm", wrong_op, UD_OP(IBV_WR_RDMA_WRITE_WITH_IMM), NEED_UD},
    {"queue.opcode.ud_read", wrong_op, UD_OP(IBV_WR_RDMA_READ), NEED_UD},
    {"queue.opcode.ud_fetch_add", wrong_op, UD_OP(IBV_WR_ATOMIC_FETCH_AND_ADD), NEED_UD},
    {"queue.signal.asked", signalling, 0, 0},
    {"queue.signal.all", signalling, 1, 0},
    {"queue.signal.error_unasked", unsignalled_error, 0, 0},
    {"queue.signal.recv_always", unsignalled_recv, 0, 0},
    {"queue.flush.recv", flush_recv, 0, 0},
    {"queue.flush.send", flush_send, 0, 0},
    {"queue.flush.send_unsignalled", flush_send, 1, 0},
    {"queue.flush.after_error", flush_after_error, 0, 0},
    {"queue.reset_clears", reset_clears, 0, 0},
    {0},
};
