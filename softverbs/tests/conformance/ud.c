/* SPDX-License-Identifier: MIT
 *
 * Checks of datagrams and of address handles.
 */
#include <arpa/inet.h>

#include "conf.h"

#define GRH 40 /* bytes of the header in front of each received datagram */

struct ud {
    struct pair p;
    struct ibv_ah *ah;
};

static void ud_new(struct t *t, struct ud *u)
{
    pair_new(t, &u->p, (struct pair_opt){.type = IBV_QPT_UD, .access = IBV_ACCESS_LOCAL_WRITE});
    u->ah = ah_new(t, u->p.pd);
}

static struct ibv_send_wr to_b(struct ud *u, uint64_t wr_id, struct ibv_sge *sge)
{
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, wr_id, sge);

    wr.wr.ud.ah = u->ah;
    wr.wr.ud.remote_qpn = u->p.b.qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
    return wr;
}

static uint32_t mtu_of(struct t *t)
{
    return 128u << t->port_attr.active_mtu;
}

static void sends(struct t *t, long arg)
{
    struct ud u;
    uint32_t len = arg < 0 ? mtu_of(t) : (uint32_t)arg;

    ud_new(t, &u);
    fill(u.p.a.buf, len, 3);
    recv_ok(t, &u.p.b, 2, 0, len + GRH);
    struct ibv_sge sge = sge_at(&u.p.a, 0, len);
    struct ibv_send_wr wr = to_b(&u, 1, &sge);
    send_ok(t, u.p.a.qp, &wr);
    wait_for(t, u.p.a.scq, 1, IBV_WC_SUCCESS);
    struct ibv_wc wc = wait_for(t, u.p.b.rcq, 2, IBV_WC_SUCCESS);
    want_eq(t, wc.byte_len, len + GRH);
    want_eq(t, wc.opcode, IBV_WC_RECV);
    want_eq(t, wc.qp_num, u.p.b.qp->qp_num);
    want_eq(t, wc.src_qp, u.p.a.qp->qp_num);
    want_eq(t, wc.wc_flags & (IBV_WC_GRH | IBV_WC_WITH_IMM), IBV_WC_GRH);
    want_filled(t, u.p.b.buf + GRH, len, 3);
}

static void imm(struct t *t, long arg)
{
    struct ud u;

    (void)arg;
    ud_new(t, &u);
    recv_ok(t, &u.p.b, 2, 0, 64);
    struct ibv_sge sge = sge_at(&u.p.a, 0, 8);
    struct ibv_send_wr wr = to_b(&u, 1, &sge);
    wr.opcode = IBV_WR_SEND_WITH_IMM;
    wr.imm_data = htonl(0xcafe);
    send_ok(t, u.p.a.qp, &wr);
    struct ibv_wc wc = wait_for(t, u.p.b.rcq, 2, IBV_WC_SUCCESS);
    want(t, wc.wc_flags & IBV_WC_WITH_IMM);
    want_eq(t, ntohl(wc.imm_data), 0xcafe);
}

/* The last 16 bytes of the header are the GID sent to; over IPv4 they are the packet's two IPv4 addresses. */
static void grh(struct t *t, long arg)
{
    struct ud u;
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    (void)arg;
    ud_new(t, &u);
    memset(u.p.b.buf, 0xee, 64);
    recv_ok(t, &u.p.b, 2, 0, 64);
    struct ibv_sge sge = sge_at(&u.p.a, 0, 8);
    struct ibv_send_wr wr = to_b(&u, 1, &sge);
    send_ok(t, u.p.a.qp, &wr);
    struct ibv_wc wc = wait_for(t, u.p.b.rcq, 2, IBV_WC_SUCCESS);
    bool ipv4 = memcmp(t->gid.raw, mapped, sizeof mapped) == 0;
    want(t, wc.sl == 0 || wc.sl == (ipv4 ? 10 : 9)); /* some adapters report the kind of header in this field */
    if (ipv4) {
        want_eq(t, u.p.b.buf[20] & 0xf0, 0x40); /* an IPv4 header in the last 20 bytes */
        want_eq(t, memcmp(u.p.b.buf + 32, t->gid.raw + 12, 4), 0);
        want_eq(t, memcmp(u.p.b.buf + 36, t->gid.raw + 12, 4), 0);
    } else {
        want_eq(t, memcmp(u.p.b.buf + 8, t->gid.raw, 16), 0);
        want_eq(t, memcmp(u.p.b.buf + 24, t->gid.raw, 16), 0);
    }
}

static void qkey(struct t *t, long arg)
{
    struct ud u;

    ud_new(t, &u);
    recv_ok(t, &u.p.b, 2, 0, 64);
    struct ibv_sge sge = sge_at(&u.p.a, 0, 8);
    struct ibv_send_wr wr = to_b(&u, 1, &sge);
    /* with the highest bit set, the Q_Key of the sender's own QP is sent instead */
    wr.wr.ud.remote_qkey = arg ? 0x80000000 : QKEY + 1;
    send_ok(t, u.p.a.qp, &wr);
    wait_for(t, u.p.a.scq, 1, IBV_WC_SUCCESS);
    if (arg)
        wait_for(t, u.p.b.rcq, 2, IBV_WC_SUCCESS);
    else
        quiet(t, u.p.b.rcq);
}

static void nobody(struct t *t, long arg)
{
    struct ud u;

    ud_new(t, &u);
    struct ibv_sge sge = sge_at(&u.p.a, 0, 8);
    struct ibv_send_wr wr = to_b(&u, 1, &sge);
    if (arg == 1)
        wr.wr.ud.remote_qpn = 0xfffff0;
    if (arg == 2)
        drop(t, u.p.b.qp);
    for (int i = 0; i < 3; i++) {
        send_ok(t, u.p.a.qp, &wr);
        wait_for(t, u.p.a.scq, 1, IBV_WC_SUCCESS);
    }
    want_eq(t, state_of(t, u.p.a.qp), IBV_QPS_RTS);
    if (arg)
        return;
    recv_ok(t, &u.p.b, 2, 0, 64); /* too late for the earlier datagrams */
    quiet(t, u.p.b.rcq);
    send_ok(t, u.p.a.qp, &wr);
    wait_for(t, u.p.b.rcq, 2, IBV_WC_SUCCESS);
}

/* A datagram is one packet. A longer one is not sent. Devices differ in whether that is an error (when posted, or when completed) or
 * whether it is dropped silently, as the standard demands (C10-93.1.1). */
static void too_long(struct t *t, long arg)
{
    struct ud u;
    uint32_t len = mtu_of(t) + 1;

    (void)arg;
    ud_new(t, &u);
    recv_ok(t, &u.p.b, 2, 0, len + GRH);
    struct ibv_sge sge = sge_at(&u.p.a, 0, len);
    struct ibv_send_wr wr = to_b(&u, 1, &sge);
    int ret = post_send(u.p.a.qp, &wr);
    if (ret) {
        want_eq(t, ret, EINVAL);
        return;
    }
    struct ibv_wc wc = wait_wc(t, u.p.a.scq);
    want(t, wc.status == IBV_WC_LOC_LEN_ERR || wc.status == IBV_WC_SUCCESS);
    quiet(t, u.p.b.rcq);
}

/* The receive must hold the header as well. */
static void short_receive(struct t *t, long arg)
{
    struct ud u;

    ud_new(t, &u);
    recv_ok(t, &u.p.b, 2, 0, GRH + 8 - (uint32_t)arg);
    struct ibv_sge sge = sge_at(&u.p.a, 0, 8);
    struct ibv_send_wr wr = to_b(&u, 1, &sge);
    send_ok(t, u.p.a.qp, &wr);
    wait_for(t, u.p.a.scq, 1, IBV_WC_SUCCESS);
    wait_for(t, u.p.b.rcq, 2, arg ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS);
}

static void elements(struct t *t, long arg)
{
    struct ud u;

    (void)arg;
    ud_new(t, &u);
    fill(u.p.a.buf, 100, 3);
    struct ibv_sge from[2] = {sge_at(&u.p.a, 0, 30), sge_at(&u.p.a, 30, 70)};
    struct ibv_sge into[3] = {sge_at(&u.p.b, 0, 40), sge_at(&u.p.b, 1000, 50), sge_at(&u.p.b, 1050, 50)};
    want_ok(t, post_recv(u.p.b.qp, 2, into, 3));
    struct ibv_send_wr wr = to_b(&u, 1, from);
    wr.num_sge = 2;
    send_ok(t, u.p.a.qp, &wr);
    wait_for(t, u.p.b.rcq, 2, IBV_WC_SUCCESS);
    want_filled(t, u.p.b.buf + 1000, 100, 3);
}

static void inline_data(struct t *t, long arg)
{
    struct ud u;
    char local[20];

    (void)arg;
    ud_new(t, &u);
    fill(local, sizeof local, 3);
    recv_ok(t, &u.p.b, 2, 0, 100);
    struct ibv_sge sge = {(uintptr_t)local, sizeof local, 1};
    struct ibv_send_wr wr = to_b(&u, 1, &sge);
    wr.send_flags |= IBV_SEND_INLINE;
    send_ok(t, u.p.a.qp, &wr);
    wait_for(t, u.p.b.rcq, 2, IBV_WC_SUCCESS);
    want_filled(t, u.p.b.buf + GRH, sizeof local, 3);
}

/* One QP sends to several others, each request to a different one. */
static void several_peers(struct t *t, long arg)
{
    struct ud u, v;

    (void)arg;
    ud_new(t, &u);
    ud_new(t, &v);
    recv_ok(t, &u.p.b, 2, 0, 100);
    recv_ok(t, &v.p.b, 3, 0, 100);
    struct ibv_sge sge = sge_at(&u.p.a, 0, 8);
    struct ibv_send_wr second = to_b(&u, 5, &sge), first = to_b(&u, 4, &sge);
    second.wr.ud.remote_qpn = v.p.b.qp->qp_num;
    first.next = &second;
    send_ok(t, u.p.a.qp, &first);
    want_eq(t, wait_for(t, u.p.b.rcq, 2, IBV_WC_SUCCESS).src_qp, u.p.a.qp->qp_num);
    want_eq(t, wait_for(t, v.p.b.rcq, 3, IBV_WC_SUCCESS).src_qp, u.p.a.qp->qp_num);
}

/* An answer to the sender of a datagram, addressed by the fields of its completion and header. */
static void answer(struct t *t, long arg)
{
    struct ud u;
    struct ibv_ah_attr attr;

    ud_new(t, &u);
    recv_ok(t, &u.p.b, 2, 0, 100);
    recv_ok(t, &u.p.a, 6, 1000, 100);
    struct ibv_sge sge = sge_at(&u.p.a, 0, 8), back_sge = sge_at(&u.p.b, 200, 8);
    struct ibv_send_wr wr = to_b(&u, 1, &sge);
    send_ok(t, u.p.a.qp, &wr);
    struct ibv_wc wc = wait_for(t, u.p.b.rcq, 2, IBV_WC_SUCCESS);
    struct ibv_grh *header = (struct ibv_grh *)(void *)u.p.b.buf;
    struct ibv_ah *ah;
    if (arg) {
        ah = ibv_create_ah_from_wc(u.p.pd, &wc, header, t->port);
    } else {
        want_ok(t, ibv_init_ah_from_wc(t->ctx, t->port, &wc, header, &attr));
        want_eq(t, attr.is_global, 1);
        want_eq(t, attr.port_num, t->port);
        want_eq(t, memcmp(&attr.grh.dgid, &t->gid, sizeof t->gid), 0);
        want_eq(t, attr.grh.sgid_index, t->gid_index);
        ah = ibv_create_ah(u.p.pd, &attr);
    }
    want(t, ah != NULL);
    wr = wr_of(IBV_WR_SEND, 7, &back_sge);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = wc.src_qp;
    wr.wr.ud.remote_qkey = QKEY;
    int ret = post_send(u.p.b.qp, &wr);
    struct ibv_wc got = ret ? wc : wait_wc(t, u.p.a.rcq);
    want_ok(t, ibv_destroy_ah(ah));
    want_ok(t, ret);
    want_eq(t, got.wr_id, 6);
    want_eq(t, got.status, IBV_WC_SUCCESS);
    want_eq(t, got.src_qp, u.p.b.qp->qp_num);
}

static void bad_element(struct t *t, long arg)
{
    struct ud u;

    (void)arg;
    ud_new(t, &u);
    struct ibv_sge sge = sge_at(&u.p.a, 65536, 8);
    struct ibv_send_wr wr = to_b(&u, 1, &sge);
    send_ok(t, u.p.a.qp, &wr);
    wait_for(t, u.p.a.scq, 1, IBV_WC_LOC_PROT_ERR);
    wait_state(t, u.p.a.qp, IBV_QPS_SQE);
}

/* ---- Address handles */

static void ah_fields(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_ah *ah = ah_new(t, pd);

    (void)arg;
    want(t, ah->pd == pd);
    want(t, ah->context == t->ctx);
}

static void ah_bad(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_ah_attr attr;

    fill_ah(t, &attr);
    switch (arg) {
    case 0: attr.port_num = (uint8_t)(t->attr.phys_port_cnt + 1); break;
    case 1: attr.port_num = 0; break;
    case 2:
        if (t->port_attr.gid_tbl_len > 255)
            skip(t, "every index a program can write is inside the table");
        attr.grh.sgid_index = (uint8_t)t->port_attr.gid_tbl_len;
        break;
    default:
        if (t->port_attr.link_layer != IBV_LINK_LAYER_ETHERNET)
            skip(t, "only Ethernet needs the global header");
        attr.is_global = 0;
    }
    want_null(t, ibv_create_ah(pd, &attr), EINVAL);
}

static void ah_many(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);

    (void)arg;
    for (int i = 0; i < 100; i++)
        ah_new(t, pd);
}

const struct check ud_checks[] = {
    {"ud.send.none", sends, 0, NEED_UD},
    {"ud.send.one_byte", sends, 1, NEED_UD},
    {"ud.send.some", sends, 700, NEED_UD},
    {"ud.send.mtu", sends, -1, NEED_UD},
    {"ud.send.too_long", too_long, 0, NEED_UD},
    {"ud.send.imm", imm, 0, NEED_UD},
    {"ud.send.elements", elements, 0, NEED_UD | NEED_SGE4},
    {"ud.send.inline", inline_data, 0, NEED_UD | NEED_INLINE},
    {"ud.send.several_peers", several_peers, 0, NEED_UD},
    {"ud.send.bad_element", bad_element, 0, NEED_UD},
    {"ud.recv.grh", grh, 0, NEED_UD},
    {"ud.recv.just_enough", short_receive, 0, NEED_UD},
    {"ud.recv.too_short", short_receive, 1, NEED_UD},
    {"ud.recv.no_room_for_grh", short_receive, 20, NEED_UD},
    {"ud.qkey.wrong", qkey, 0, NEED_UD},
    {"ud.qkey.own", qkey, 1, NEED_UD},
    {"ud.drop.no_receive", nobody, 0, NEED_UD},
    {"ud.drop.no_such_qp", nobody, 1, NEED_UD},
    {"ud.drop.peer_destroyed", nobody, 2, NEED_UD},
    {"ud.answer.init_ah", answer, 0, NEED_UD},
    {"ud.answer.create_ah", answer, 1, NEED_UD},
    {"ah.fields", ah_fields, 0, NEED_UD},
    {"ah.port_beyond", ah_bad, 0, NEED_UD},
    {"ah.port_zero", ah_bad, 1, NEED_UD},
    {"ah.sgid_index_beyond", ah_bad, 2, NEED_UD},
    {"ah.not_global", ah_bad, 3, NEED_UD},
    {"ah.many", ah_many, 0, NEED_UD},
    {0},
};
