/* SPDX-License-Identifier: MIT
 *
 * Checks of the unreliable connection: which messages arrive, and which are dropped without an error.
 */
#include <arpa/inet.h>

#include "conf.h"

#define UC                                                                                                   \
    .type = IBV_QPT_UC, .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, \
    .qp_access = IBV_ACCESS_REMOTE_WRITE

static void pair_uc(struct t *t, struct pair *p)
{
    pair_new(t, p, (struct pair_opt){UC});
}

static void sends(struct t *t, long arg)
{
    struct pair p;
    uint32_t len = (uint32_t)arg;

    pair_new(t, &p, (struct pair_opt){UC, .len = len < 4096 ? 4096 : len});
    fill(p.a.buf, len, 5);
    recv_ok(t, &p.b, 2, 0, len);
    struct ibv_sge sge = sge_at(&p.a, 0, len);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    send_ok(t, p.a.qp, &wr);
    want_eq(t, wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);
    struct ibv_wc wc = wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS);
    want_eq(t, wc.byte_len, len);
    want_eq(t, wc.opcode, IBV_WC_RECV);
    want_filled(t, p.b.buf, len, 5);
}

static void send_imm(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    pair_uc(t, &p);
    recv_ok(t, &p.b, 2, 0, 64);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND_WITH_IMM, 1, &sge);
    wr.imm_data = htonl(0x12345678);
    send_ok(t, p.a.qp, &wr);
    struct ibv_wc wc = wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS);
    want(t, wc.wc_flags & IBV_WC_WITH_IMM);
    want_eq(t, ntohl(wc.imm_data), 0x12345678);
}

/* A UC sender does not learn when its data has landed: the check looks until it has. */
static void wait_filled(struct t *t, const char *buf, size_t len, unsigned seed)
{
    char *expected = mem_new(t, len);

    fill(expected, len, seed);
    for (double end = now() + t->wait_s; memcmp(buf, expected, len) && now() < end;)
        nap(1);
    want_filled(t, buf, len, seed);
}

static void write_(struct t *t, long arg)
{
    struct pair p;
    uint32_t len = (uint32_t)arg;

    pair_uc(t, &p);
    fill(p.a.buf, len, 5);
    struct ibv_sge sge = sge_at(&p.a, 0, len);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 100);
    send_ok(t, p.a.qp, &wr);
    want_eq(t, wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_WRITE);
    wait_filled(t, p.b.buf + 100, len, 5);
    quiet(t, p.b.rcq);
}

static void write_imm(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    pair_uc(t, &p);
    fill(p.a.buf, 3000, 5);
    recv_ok(t, &p.b, 2, 0, 64);
    struct ibv_sge sge = sge_at(&p.a, 0, 3000);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 1, &sge, &p.b, 100);
    wr.imm_data = htonl(9);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    struct ibv_wc wc = wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS);
    want_eq(t, wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    want_eq(t, wc.byte_len, 3000);
    want_eq(t, ntohl(wc.imm_data), 9);
    want_filled(t, p.b.buf + 100, 3000, 5);
}

/* Without a receive a message is lost: the sender's completion shows success, and the next message arrives. */
static void no_receive(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    pair_uc(t, &p);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    fill(p.a.buf, 8, 1);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    nap(quiet_ms(t));
    recv_ok(t, &p.b, 2, 0, 64);
    quiet(t, p.b.rcq);
    fill(p.a.buf, 8, 2);
    wr.wr_id = 3;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 3, IBV_WC_SUCCESS);
    wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS);
    want_filled(t, p.b.buf, 8, 2);
}

/* A send to a QP that does not exist succeeds as well. */
static void nobody(struct t *t, long arg)
{
    struct pair p;

    pair_uc(t, &p);
    if (arg)
        drop(t, p.b.qp);
    else
        want_ok(t, to_state(p.b.qp, IBV_QPS_ERR));
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    for (int i = 0; i < 3; i++) {
        send_ok(t, p.a.qp, &wr);
        wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    }
    want_eq(t, state_of(t, p.a.qp), IBV_QPS_RTS);
}

/* A write that is not allowed is dropped, and neither QP goes to error. */
static void write_denied(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    pair_uc(t, &p);
    fill(p.b.buf, 64, 7);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 0);
    wr.wr.rdma.rkey ^= 0x00333300;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    nap(quiet_ms(t));
    want_filled(t, p.b.buf, 64, 7);
    want_eq(t, state_of(t, p.a.qp), IBV_QPS_RTS);
}

/* A message is longer than the receive: the sender still gets success. */
static void too_long(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    pair_uc(t, &p);
    recv_ok(t, &p.b, 2, 0, 50);
    struct ibv_sge sge = sge_at(&p.a, 0, 100);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    wait_for(t, p.b.rcq, 2, IBV_WC_LOC_LEN_ERR);
    want_eq(t, state_of(t, p.a.qp), IBV_QPS_RTS);
}

/* A local error of the sender moves its QP to SQE, from which it can return to RTS; its receive queue is not affected. */
static void sqe(struct t *t, long arg)
{
    struct pair p;

    pair_uc(t, &p);
    recv_ok(t, &p.a, 7, 0, 64);
    struct ibv_sge sge = sge_at(&p.a, 65536, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_LOC_PROT_ERR);
    wait_state(t, p.a.qp, IBV_QPS_SQE);
    if (arg == 0)
        return;
    if (arg == 1) { /* requests posted in SQE are flushed */
        wr.wr_id = 2;
        send_ok(t, p.a.qp, &wr);
        wait_for(t, p.a.scq, 2, IBV_WC_WR_FLUSH_ERR);
        return;
    }
    want_ok(t, to_state(p.a.qp, IBV_QPS_RTS));
    recv_ok(t, &p.b, 3, 0, 64);
    sge = sge_at(&p.a, 0, 8);
    wr.wr_id = 4;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 4, IBV_WC_SUCCESS);
    wait_for(t, p.b.rcq, 3, IBV_WC_SUCCESS);
}

static void order(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    pair_uc(t, &p);
    for (uint64_t i = 0; i < 10; i++)
        recv_ok(t, &p.b, i, i * 64, 64);
    for (uint64_t i = 0; i < 10; i++) {
        struct ibv_sge sge = sge_at(&p.a, i * 64, 64);
        struct ibv_send_wr wr = wr_of(IBV_WR_SEND, i, &sge);

        fill(p.a.buf + i * 64, 64, (unsigned)i);
        send_ok(t, p.a.qp, &wr);
        wait_for(t, p.a.scq, i, IBV_WC_SUCCESS);
    }
    for (uint64_t i = 0; i < 10; i++) {
        wait_for(t, p.b.rcq, i, IBV_WC_SUCCESS);
        want_filled(t, p.b.buf + i * 64, 64, (unsigned)i);
    }
}

const struct check uc_checks[] = {
    {"uc.send.one_byte", sends, 1, NEED_UC},
    {"uc.send.several_mtu", sends, 9000, NEED_UC},
    {"uc.send.256k", sends, 1 << 18, NEED_UC},
    {"uc.send.imm", send_imm, 0, NEED_UC},
    {"uc.write.some", write_, 100, NEED_UC},
    {"uc.write.several_mtu", write_, 9000, NEED_UC},
    {"uc.write.imm", write_imm, 0, NEED_UC},
    {"uc.order", order, 0, NEED_UC},
    {"uc.drop.no_receive", no_receive, 0, NEED_UC},
    {"uc.drop.peer_err", nobody, 0, NEED_UC},
    {"uc.drop.peer_destroyed", nobody, 1, NEED_UC},
    {"uc.drop.write_denied", write_denied, 0, NEED_UC},
    {"uc.error.too_long", too_long, 0, NEED_UC},
    {"uc.sqe.state", sqe, 0, NEED_UC},
    {"uc.sqe.flushes", sqe, 1, NEED_UC},
    {"uc.sqe.back", sqe, 2, NEED_UC},
    {0},
};
