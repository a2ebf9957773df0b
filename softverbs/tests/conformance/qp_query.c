/* SPDX-License-Identifier: MIT
 *
 * Checks of ibv_query_qp: it returns what was set.
 */
#include "conf.h"

#define EVERYTHING                                                                                                          \
    (IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |  \
     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN | \
     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_CAP | IBV_QP_DEST_QPN)

static void state(struct t *t, long arg)
{
    struct ibv_qp *qp = qp_simple(t, pd_new(t), cq_new(t, 16, NULL), (enum ibv_qp_type)arg);

    want_eq(t, state_of(t, qp), IBV_QPS_RESET);
    to_init(t, qp);
    want_eq(t, state_of(t, qp), IBV_QPS_INIT);
    to_rtr(t, qp, qp->qp_num);
    want_eq(t, state_of(t, qp), IBV_QPS_RTR);
    to_rts(t, qp);
    want_eq(t, state_of(t, qp), IBV_QPS_RTS);
    want_ok(t, to_state(qp, IBV_QPS_ERR));
    want_eq(t, state_of(t, qp), IBV_QPS_ERR);
    want_ok(t, to_state(qp, IBV_QPS_RESET));
    want_eq(t, state_of(t, qp), IBV_QPS_RESET);
}

static void init_attr(struct t *t, long arg)
{
    struct ibv_cq *scq = cq_new(t, 16, NULL), *rcq = cq_new(t, 16, NULL);
    struct ibv_qp_attr attr;
    int context;
    struct ibv_qp_init_attr init = {
        .qp_context = &context,
        .send_cq = scq,
        .recv_cq = rcq,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = (int)arg,
        .cap = {.max_send_wr = 7, .max_recv_wr = 9, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = qp_new(t, pd_new(t), &init);
    struct ibv_qp_init_attr got;

    memset(&got, 0xee, sizeof got);
    want_ok(t, ibv_query_qp(qp, &attr, IBV_QP_STATE, &got));
    want(t, got.qp_context == &context);
    want(t, got.send_cq == scq && got.recv_cq == rcq);
    want(t, got.srq == NULL);
    want_eq(t, got.qp_type, IBV_QPT_RC);
    want_eq(t, got.sq_sig_all, arg);
    want(t, got.cap.max_send_wr >= 7 && got.cap.max_recv_wr >= 9);
}

struct set {
    struct ibv_qp *qp;
    struct ibv_qp_attr got;
};

static void set_up(struct t *t, struct set *s)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    s->qp = qp_simple(t, pd_new(t), cq_new(t, 16, NULL), IBV_QPT_RC);
    to_init(t, s->qp);
    int mask = attr_rtr(t, IBV_QPT_RC, &attr, 0x123456);
    attr.rq_psn = 0xabcdef;
    attr.path_mtu = IBV_MTU_512;
    attr.min_rnr_timer = 13;
    attr.ah_attr.grh.flow_label = 0x54321;
    attr.ah_attr.grh.traffic_class = 0x20;
    attr.ah_attr.grh.hop_limit = 9;
    want_ok(t, ibv_modify_qp(s->qp, &attr, mask));
    mask = attr_rts(t, IBV_QPT_RC, &attr);
    attr.sq_psn = 0x654321;
    attr.timeout = 17;
    attr.retry_cnt = 3;
    attr.rnr_retry = 4;
    want_ok(t, ibv_modify_qp(s->qp, &attr, mask));
    memset(&s->got, 0xee, sizeof s->got);
    want_ok(t, ibv_query_qp(s->qp, &s->got, EVERYTHING, &init));
}

enum field { PORT, ACCESS, DEST, PSN, MTU, RETRIES, RNR_TIMER, RD_ATOMIC, AV_GID, AV_REST, CAP };

static void field(struct t *t, long arg)
{
    struct set s;

    set_up(t, &s);
    switch (arg) {
    case PORT:
        want_eq(t, s.got.port_num, t->port);
        want_eq(t, s.got.pkey_index, 0);
        break;
    case ACCESS:
        want_eq(t, s.got.qp_access_flags & (unsigned)ALL_ACCESS & ~(unsigned)IBV_ACCESS_LOCAL_WRITE, ALL_ACCESS & ~IBV_ACCESS_LOCAL_WRITE);
        break;
    case DEST: want_eq(t, s.got.dest_qp_num, 0x123456); break;
    case PSN:
        want_eq(t, s.got.rq_psn, 0xabcdef);
        want_eq(t, s.got.sq_psn, 0x654321);
        break;
    case MTU: want_eq(t, s.got.path_mtu, IBV_MTU_512); break;
    case RETRIES:
        want_eq(t, s.got.timeout, 17);
        want_eq(t, s.got.retry_cnt, 3);
        want_eq(t, s.got.rnr_retry, 4);
        break;
    case RNR_TIMER: want_eq(t, s.got.min_rnr_timer, 13); break;
    case RD_ATOMIC:
        want_eq(t, s.got.max_rd_atomic, 1);
        want_eq(t, s.got.max_dest_rd_atomic, 1);
        break;
    case AV_GID:
        want_eq(t, s.got.ah_attr.is_global, 1);
        want_eq(t, memcmp(&s.got.ah_attr.grh.dgid, &t->gid, sizeof t->gid), 0);
        want_eq(t, s.got.ah_attr.grh.sgid_index, t->gid_index);
        break;
    case AV_REST:
        want_eq(t, s.got.ah_attr.port_num, t->port);
        want_eq(t, s.got.ah_attr.grh.flow_label, 0x54321);
        want_eq(t, s.got.ah_attr.grh.traffic_class, 0x20);
        /* The hop limit is not compared, because over Ethernet it comes from the route. */
        break;
    default: want(t, s.got.cap.max_send_wr >= 4 && s.got.cap.max_recv_wr >= 4);
    }
}

static void ud_fields(struct t *t, long arg)
{
    struct ibv_qp *qp = qp_simple(t, pd_new(t), cq_new(t, 16, NULL), IBV_QPT_UD);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    (void)arg;
    to_init(t, qp);
    memset(&attr, 0xee, sizeof attr);
    want_ok(t, ibv_query_qp(qp, &attr, IBV_QP_QKEY | IBV_QP_PORT, &init));
    want_eq(t, attr.qkey, QKEY);
    want_eq(t, attr.port_num, t->port);
}

/* The mask is a hint of what is needed: an empty one is no error. */
static void no_mask(struct t *t, long arg)
{
    struct ibv_qp *qp = qp_simple(t, pd_new(t), cq_new(t, 16, NULL), IBV_QPT_RC);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    (void)arg;
    want_ok(t, ibv_query_qp(qp, &attr, 0, &init));
}

const struct check qp_query_checks[] = {
    {"qp.query.state_rc", state, IBV_QPT_RC, 0},
    {"qp.query.state_uc", state, IBV_QPT_UC, NEED_UC},
    {"qp.query.state_ud", state, IBV_QPT_UD, NEED_UD},
    {"qp.query.init_attr", init_attr, 0, 0},
    {"qp.query.init_attr_sig_all", init_attr, 1, 0},
    {"qp.query.port", field, PORT, 0},
    {"qp.query.access", field, ACCESS, 0},
    {"qp.query.dest", field, DEST, 0},
    {"qp.query.psn", field, PSN, 0},
    {"qp.query.mtu", field, MTU, 0},
    {"qp.query.retries", field, RETRIES, 0},
    {"qp.query.rnr_timer", field, RNR_TIMER, 0},
    {"qp.query.rd_atomic", field, RD_ATOMIC, 0},
    {"qp.query.av_gid", field, AV_GID, 0},
    {"qp.query.av_rest", field, AV_REST, 0},
    {"qp.query.cap", field, CAP, 0},
    {"qp.query.ud", ud_fields, 0, NEED_UD},
    {"qp.query.no_mask", no_mask, 0, 0},
    {0},
};
