/* SPDX-License-Identifier: MIT
 *
 * Checks of addresses without a global header. On InfiniBand the LID alone is enough; over Ethernet such addresses are refused.
 */
#include "conf.h"

#define GRH    40     /* bytes in front of each received datagram, reserved for the header even if none comes */
#define NOBODY 0xbfff /* the largest LID that a port may have; no port of the fabric has it */

static bool refused_here(const struct t *t)
{
    return t->port_attr.link_layer == IBV_LINK_LAYER_ETHERNET;
}

static struct ibv_ah_attr by_lid(const struct t *t, uint16_t lid)
{
    return (struct ibv_ah_attr){.dlid = lid, .port_num = t->port};
}

/* Connects both ends again, by LID. False: that was refused, as it must be on this link layer. */
static bool connect_by_lid(struct t *t, struct pair *p, uint16_t lid)
{
    struct end *ends[] = {&p->a, &p->b};

    for (int i = 0; i < 2; i++) {
        struct ibv_qp *qp = ends[i]->qp;
        struct ibv_qp_attr attr;
        want_ok(t, to_state(qp, IBV_QPS_RESET));
        to_init(t, qp);
        int mask = attr_rtr(t, qp->qp_type, &attr, ends[!i]->qp->qp_num);
        attr.ah_attr = by_lid(t, lid);
        if (refused_here(t)) {
            want_ret(t, ibv_modify_qp(qp, &attr, mask), EINVAL);
            return false;
        }
        want_ok(t, ibv_modify_qp(qp, &attr, mask));
        mask = attr_rts(t, qp->qp_type, &attr);
        if (qp->qp_type == IBV_QPT_RC) {
            attr.timeout = 8;
            attr.retry_cnt = 1;
        }
        want_ok(t, ibv_modify_qp(qp, &attr, mask));
    }
    return true;
}

static void connected(struct t *t, long type)
{
    struct pair p;
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    PAIR(t, &p, .type = (enum ibv_qp_type)type, .access = IBV_ACCESS_LOCAL_WRITE);
    if (!connect_by_lid(t, &p, t->port_attr.lid))
        return;
    fill(p.a.buf, 3000, 3);
    recv_ok(t, &p.b, 2, 0, 3000);
    struct ibv_sge sge = sge_at(&p.a, 0, 3000);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS);
    want_filled(t, p.b.buf, 3000, 3);
    want_ok(t, ibv_query_qp(p.a.qp, &attr, IBV_QP_AV, &init));
    want_eq(t, attr.ah_attr.is_global, 0);
    want_eq(t, attr.ah_attr.dlid, t->port_attr.lid);
}

static void nobody(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    if (!connect_by_lid(t, &p, NOBODY))
        return;
    recv_ok(t, &p.b, 2, 0, 8);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_RETRY_EXC_ERR);
}

static void datagram(struct t *t, long arg)
{
    struct pair p;
    struct ibv_ah_attr attr = by_lid(t, arg ? NOBODY : t->port_attr.lid);

    pair_new(t, &p, (struct pair_opt){.type = IBV_QPT_UD, .access = IBV_ACCESS_LOCAL_WRITE});
    if (refused_here(t)) {
        want_null(t, ibv_create_ah(p.pd, &attr), EINVAL);
        return;
    }
    struct ibv_ah *ah = ibv_create_ah(p.pd, &attr), *back = NULL;
    want(t, ah != NULL);
    fill(p.a.buf, 700, 3);
    recv_ok(t, &p.b, 2, 0, 700 + GRH);
    recv_ok(t, &p.a, 3, 4096, 700 + GRH);
    struct ibv_sge sge = sge_at(&p.a, 0, 700), back_sge = sge_at(&p.b, GRH, 700);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = p.b.qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    want_ok(t, ibv_destroy_ah(ah));
    if (arg) {
        quiet(t, p.b.rcq);
        return;
    }
    struct ibv_wc wc = wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS);
    want_eq(t, wc.byte_len, 700 + GRH);
    want_eq(t, wc.wc_flags & IBV_WC_GRH, 0);
    want_eq(t, wc.slid, t->port_attr.lid);
    want_filled(t, p.b.buf + GRH, 700, 3);
    /* And an answer, to the LID that the completion names as the source. */
    want_ok(t, ibv_init_ah_from_wc(t->ctx, t->port, &wc, (struct ibv_grh *)(void *)p.b.buf, &attr));
    want_eq(t, attr.is_global, 0);
    want_eq(t, attr.dlid, t->port_attr.lid);
    back = ibv_create_ah(p.pd, &attr);
    want(t, back != NULL);
    wr = wr_of(IBV_WR_SEND, 4, &back_sge);
    wr.wr.ud.ah = back;
    wr.wr.ud.remote_qpn = wc.src_qp;
    wr.wr.ud.remote_qkey = QKEY;
    send_ok(t, p.b.qp, &wr);
    wait_for(t, p.b.scq, 4, IBV_WC_SUCCESS);
    wait_for(t, p.a.rcq, 3, IBV_WC_SUCCESS);
    want_ok(t, ibv_destroy_ah(back));
    want_filled(t, p.a.buf + 4096 + GRH, 700, 3);
}

const struct check lid_checks[] = {
    {"lid.rc", connected, IBV_QPT_RC, 0}, {"lid.uc", connected, IBV_QPT_UC, NEED_UC}, {"lid.rc.nobody", nobody, 0, 0},
    {"lid.ud", datagram, 0, NEED_UD},     {"lid.ud.nobody", datagram, 1, NEED_UD},    {0},
};
