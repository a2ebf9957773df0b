/* SPDX-License-Identifier: MIT
 *
 * Checks of the reliable connection with errors: statuses on both sides, retries, states.
 */
#include "conf.h"

static struct ibv_send_wr simple_send(struct pair *p, struct ibv_sge *sge, uint32_t len)
{
    *sge = sge_at(&p->a, 0, len);
    return wr_of(IBV_WR_SEND, 1, sge);
}

static void too_long(struct t *t, long arg)
{
    struct pair p;
    struct ibv_sge sge;

    PAIR(t, &p);
    fill(p.b.buf, 20000, 4);
    recv_ok(t, &p.b, 2, 0, (uint32_t)arg - 1);
    struct ibv_send_wr wr = simple_send(&p, &sge, (uint32_t)arg);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.b.rcq, 2, IBV_WC_LOC_LEN_ERR);
    wait_for(t, p.a.scq, 1, IBV_WC_REM_INV_REQ_ERR);
    wait_state(t, p.a.qp, IBV_QPS_ERR);
    wait_state(t, p.b.qp, IBV_QPS_ERR);
    want(t, p.b.buf[arg - 1] == (char)(4 + (arg - 1) * 7 + ((arg - 1) >> 8) * 31)); /* the byte behind */
}

/* A message longer than allowed, made of the same memory four times. It is refused when posted, or fails when sent. */
static void longer_than_any(struct t *t, long arg)
{
    struct pair p;
    uint32_t part = t->port_attr.max_msg_sz / 4 + 1;

    (void)arg;
    if (part > (256u << 20) + 1)
        skip(t, "a message may be of %u bytes: too much to try", t->port_attr.max_msg_sz);
    PAIR(t, &p, .len = part);
    struct ibv_sge sge[4];
    for (int i = 0; i < 4; i++)
        sge[i] = sge_at(&p.a, 0, part);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, sge, &p.b, 0);
    wr.num_sge = 4;
    int ret = post_send(p.a.qp, &wr);
    if (ret)
        want_eq(t, ret, EINVAL);
    else
        wait_for(t, p.a.scq, 1, IBV_WC_LOC_LEN_ERR);
}

enum after { REQUESTER_STATE, RESPONDER_STATE, RESPONDER_EVENT, RESPONDER_FLUSH };

/* After a remote access error both queue pairs are in error. */
static void access_after(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p);
    recv_ok(t, &p.b, 2, 0, 64);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 65536);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_REM_ACCESS_ERR);
    if (arg == REQUESTER_STATE)
        wait_state(t, p.a.qp, IBV_QPS_ERR);
    else if (arg == RESPONDER_STATE)
        wait_state(t, p.b.qp, IBV_QPS_ERR);
    else if (arg == RESPONDER_FLUSH)
        wait_for(t, p.b.rcq, 2, IBV_WC_WR_FLUSH_ERR);
    else
        want(t, wait_event(t, IBV_EVENT_QP_ACCESS_ERR).element.qp == p.b.qp);
}

static void misaligned(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma((enum ibv_wr_opcode)arg, 1, &sge, &p.b, 4);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_REM_INV_REQ_ERR);
    wait_state(t, p.a.qp, IBV_QPS_ERR);
}

/* ---- Receiver not ready */

static void rnr(struct t *t, long arg)
{
    struct pair p;
    struct ibv_sge sge;

    PAIR(t, &p, .rnr_retry = (int)arg);
    struct ibv_send_wr wr = simple_send(&p, &sge, 8);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    wait_state(t, p.a.qp, IBV_QPS_ERR);
    want_eq(t, state_of(t, p.b.qp), IBV_QPS_RTS); /* the receiver that was not ready is not in error */
}

static void rnr_write_imm(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p, .rnr_retry = -1);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 1, &sge, &p.b, 0);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
}

/* rnr_retry 7 means for ever: the send waits until there is a receive, and so do the requests behind it. */
static void rnr_for_ever(struct t *t, long arg)
{
    struct pair p;
    struct ibv_sge sge;

    (void)arg;
    PAIR(t, &p);
    fill(p.a.buf, 8, 3);
    struct ibv_send_wr wr = simple_send(&p, &sge, 8);
    send_ok(t, p.a.qp, &wr);
    struct ibv_send_wr write = wr_rdma(IBV_WR_RDMA_WRITE, 2, &sge, &p.b, 1000);
    send_ok(t, p.a.qp, &write);
    quiet(t, p.a.scq);
    want_eq(t, p.b.buf[1000], 0);
    recv_ok(t, &p.b, 3, 0, 64);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    wait_for(t, p.a.scq, 2, IBV_WC_SUCCESS);
    wait_for(t, p.b.rcq, 3, IBV_WC_SUCCESS);
    want_filled(t, p.b.buf, 8, 3);
    want_filled(t, p.b.buf + 1000, 8, 3);
}

/* ---- No answer from the peer */

enum nobody { NO_SUCH_QP, PEER_RESET, PEER_INIT, PEER_DESTROYED, PEER_ERR };

static void no_answer(struct t *t, long arg)
{
    struct pair p;
    struct ibv_sge sge;

    PAIR(t, &p, .timeout = 8, .retry_cnt = 1);
    switch (arg) {
    case PEER_RESET: want_ok(t, to_state(p.b.qp, IBV_QPS_RESET)); break;
    case PEER_INIT:
        want_ok(t, to_state(p.b.qp, IBV_QPS_RESET));
        to_init(t, p.b.qp);
        break;
    case PEER_DESTROYED: drop(t, p.b.qp); break;
    case PEER_ERR: want_ok(t, to_state(p.b.qp, IBV_QPS_ERR)); break;
    default:
        want_ok(t, to_state(p.a.qp, IBV_QPS_RESET));
        to_init(t, p.a.qp);
        to_rtr(t, p.a.qp, 0xfffff0);
        struct ibv_qp_attr attr;
        int mask = attr_rts(t, IBV_QPT_RC, &attr);
        attr.timeout = 8;
        attr.retry_cnt = 1;
        want_ok(t, ibv_modify_qp(p.a.qp, &attr, mask));
    }
    struct ibv_send_wr wr = simple_send(&p, &sge, 8);
    send_ok(t, p.a.qp, &wr);
    wr.wr_id = 2;
    /* The QP may be in error by now: then the second is flushed as well. */
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_RETRY_EXC_ERR);
    wait_for(t, p.a.scq, 2, IBV_WC_WR_FLUSH_ERR);
    wait_state(t, p.a.qp, IBV_QPS_ERR);
}

/* Reads have no receive to wait for, and fail in the same way. */
static void no_answer_read(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p, .timeout = 8, .retry_cnt = 1);
    want_ok(t, to_state(p.b.qp, IBV_QPS_ERR));
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma((enum ibv_wr_opcode)arg, 1, &sge, &p.b, 0);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_RETRY_EXC_ERR);
}

/* ---- An error of a QP does not affect others */

static void others_go_on(struct t *t, long arg)
{
    struct pair p, q;
    struct ibv_sge sge;

    (void)arg;
    PAIR(t, &p);
    PAIR(t, &q, .pd = p.pd);
    sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 65536);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_REM_ACCESS_ERR);
    wr = wr_rdma(IBV_WR_RDMA_WRITE, 2, &sge, &q.b, 0);
    send_ok(t, q.a.qp, &wr);
    wait_for(t, q.a.scq, 2, IBV_WC_SUCCESS);
}

/* A pair in error works again after a reset. */
static void recovers(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 65536);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_REM_ACCESS_ERR);
    want_ok(t, to_state(p.a.qp, IBV_QPS_RESET));
    want_ok(t, to_state(p.b.qp, IBV_QPS_RESET));
    to_init(t, p.a.qp);
    to_init(t, p.b.qp);
    to_rtr(t, p.a.qp, p.b.qp->qp_num);
    to_rtr(t, p.b.qp, p.a.qp->qp_num);
    to_rts(t, p.a.qp);
    to_rts(t, p.b.qp);
    wr = wr_rdma(IBV_WR_RDMA_WRITE, 2, &sge, &p.b, 0);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 2, IBV_WC_SUCCESS);
}

/* A message that ends with a receive error consumes its receive; the receives behind it are flushed. */
static void receives_flushed(struct t *t, long arg)
{
    struct pair p;
    struct ibv_sge sge;

    (void)arg;
    PAIR(t, &p);
    recv_ok(t, &p.b, 2, 0, 4);
    recv_ok(t, &p.b, 3, 0, 64);
    recv_ok(t, &p.b, 4, 0, 64);
    struct ibv_send_wr wr = simple_send(&p, &sge, 8);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.b.rcq, 2, IBV_WC_LOC_LEN_ERR);
    wait_for(t, p.b.rcq, 3, IBV_WC_WR_FLUSH_ERR);
    wait_for(t, p.b.rcq, 4, IBV_WC_WR_FLUSH_ERR);
}

const struct check rc_error_checks[] = {
    {"rc.error.too_long", too_long, 101, 0},
    {"rc.error.too_long_by_packets", too_long, 9000, 0},
    {"rc.error.longer_than_any", longer_than_any, 0, NEED_SGE4},
    {"rc.error.access.requester_state", access_after, REQUESTER_STATE, 0},
    {"rc.error.access.responder_state", access_after, RESPONDER_STATE, 0},
    {"rc.error.access.responder_event", access_after, RESPONDER_EVENT, 0},
    {"rc.error.access.responder_flush", access_after, RESPONDER_FLUSH, 0},
    {"rc.error.fetch_add_misaligned", misaligned, IBV_WR_ATOMIC_FETCH_AND_ADD, NEED_ATOMIC},
    {"rc.error.compare_swap_misaligned", misaligned, IBV_WR_ATOMIC_CMP_AND_SWP, NEED_ATOMIC},
    {"rc.rnr.no_retry", rnr, -1, 0},
    {"rc.rnr.one_retry", rnr, 1, 0},
    {"rc.rnr.three_retries", rnr, 3, 0},
    {"rc.rnr.write_imm", rnr_write_imm, 0, 0},
    {"rc.rnr.for_ever", rnr_for_ever, 0, 0},
    {"rc.retry.no_such_qp", no_answer, NO_SUCH_QP, 0},
    {"rc.retry.peer_reset", no_answer, PEER_RESET, 0},
    {"rc.retry.peer_init", no_answer, PEER_INIT, 0},
    {"rc.retry.peer_destroyed", no_answer, PEER_DESTROYED, 0},
    {"rc.retry.peer_err", no_answer, PEER_ERR, 0},
    {"rc.retry.read", no_answer_read, IBV_WR_RDMA_READ, 0},
    {"rc.retry.write", no_answer_read, IBV_WR_RDMA_WRITE, 0},
    {"rc.retry.fetch_add", no_answer_read, IBV_WR_ATOMIC_FETCH_AND_ADD, NEED_ATOMIC},
    {"rc.error.others_go_on", others_go_on, 0, 0},
    {"rc.error.recovers", recovers, 0, 0},
    {"rc.error.receives_flushed", receives_flushed, 0, 0},
    {0},
};
