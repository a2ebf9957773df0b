/* SPDX-License-Identifier: MIT
 *
 * Checks of the queue pair's state machine: each transition between two states for each type of QP, each attribute that a transition needs,
 * and attributes that it does not allow.
 */
#include "conf.h"

#define STEP(type, from, to) ((type) << 8 | (from) << 4 | (to))

/* Makes a new QP that is connected to itself, and brings it to this state. */
static struct ibv_qp *qp_in(struct t *t, enum ibv_qp_type type, enum ibv_qp_state state)
{
    struct ibv_qp *qp = qp_simple(t, pd_new(t), cq_new(t, 16, NULL), type);

    if (state == IBV_QPS_RESET)
        return qp;
    to_init(t, qp);
    if (state == IBV_QPS_INIT)
        return qp;
    if (state != IBV_QPS_ERR)
        to_rtr(t, qp, qp->qp_num);
    if (state == IBV_QPS_RTS || state == IBV_QPS_SQD)
        to_rts(t, qp);
    if (state == IBV_QPS_SQD || state == IBV_QPS_ERR)
        want_ok(t, to_state(qp, state));
    if (state == IBV_QPS_SQD)
        wait_state(t, qp, IBV_QPS_SQD);
    return qp;
}

/* The attributes of the transition to `to` from the state before it. */
static int attr_to(struct t *t, struct ibv_qp *qp, enum ibv_qp_state from, enum ibv_qp_state to, struct ibv_qp_attr *attr)
{
    *attr = (struct ibv_qp_attr){.qp_state = to};
    if (to == IBV_QPS_INIT && from != IBV_QPS_INIT)
        return attr_init(t, qp->qp_type, attr);
    if (to == IBV_QPS_RTR)
        return attr_rtr(t, qp->qp_type, attr, qp->qp_num);
    if (to == IBV_QPS_RTS && from != IBV_QPS_RTS && from != IBV_QPS_SQD)
        return attr_rts(t, qp->qp_type, attr);
    return IBV_QP_STATE;
}

/* For each state: a bit for each state that may follow it. */
static const unsigned legal[] = {
    [IBV_QPS_RESET] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_INIT,
    [IBV_QPS_INIT] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_INIT | 1 << IBV_QPS_RTR | 1 << IBV_QPS_ERR,
    [IBV_QPS_RTR] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_RTS | 1 << IBV_QPS_ERR,
    [IBV_QPS_RTS] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_RTS | 1 << IBV_QPS_SQD | 1 << IBV_QPS_ERR,
    [IBV_QPS_SQD] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_RTS | 1 << IBV_QPS_SQD | 1 << IBV_QPS_ERR,
    [IBV_QPS_ERR] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_ERR,
};

static void step(struct t *t, long arg)
{
    enum ibv_qp_state from = (enum ibv_qp_state)(arg >> 4 & 15), to = (enum ibv_qp_state)(arg & 15);
    struct ibv_qp *qp = qp_in(t, (enum ibv_qp_type)(arg >> 8), from);
    struct ibv_qp_attr attr;
    int mask = attr_to(t, qp, from, to, &attr);

    if (legal[from] >> to & 1) {
        want_ok(t, ibv_modify_qp(qp, &attr, mask));
        wait_state(t, qp, to);
        want_eq(t, qp->state, to);
    } else {
        want_ret(t, ibv_modify_qp(qp, &attr, mask), EINVAL);
        want_eq(t, state_of(t, qp), from);
        want_eq(t, qp->state, from);
    }
}

/* ---- A transition without one of its attributes, or with one too many */

struct mask {
    enum ibv_qp_type type;
    enum ibv_qp_state from, to;
    int less, more;
};

static const struct mask masks[] = {
    {IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX, 0},
    {IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PORT, 0},
    {IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV, 0},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_PATH_MTU, 0},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_DEST_QPN, 0},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_RQ_PSN, 0},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_MAX_DEST_RD_ATOMIC, 0},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_MIN_RNR_TIMER, 0},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_TIMEOUT, 0},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_RETRY_CNT, 0},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_RNR_RETRY, 0},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, 0},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_MAX_QP_RD_ATOMIC, 0},
    {IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX, 0},
    {IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PORT, 0},
    {IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV, 0},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_PATH_MTU, 0},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_DEST_QPN, 0},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_RQ_PSN, 0},
    {IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, 0},
    {IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX, 0},
    {IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PORT, 0},
    {IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_QKEY, 0},
    {IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, 0},
    /* 26: too many */
    {IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, 0, IBV_QP_QKEY},
    {IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, 0, IBV_QP_PATH_MTU},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_TIMEOUT},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PORT},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, 0, IBV_QP_PATH_MTU},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, 0, IBV_QP_DEST_QPN},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_SQ_PSN},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_TIMEOUT},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_ERR, 0, IBV_QP_TIMEOUT},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_MIN_RNR_TIMER},
    {IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS, 0, IBV_QP_TIMEOUT},
    {IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, 0, IBV_QP_ACCESS_FLAGS},
    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_AV},
    {IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, 0, IBV_QP_TIMEOUT},
};

static void mask(struct t *t, long arg)
{
    const struct mask *m = &masks[arg];
    struct ibv_qp *qp = qp_in(t, m->type, m->from);
    struct ibv_qp_attr attr;
    int bits = attr_to(t, qp, m->from, m->to, &attr);

    want(t, !m->less || (bits & m->less));
    attr.port_num = t->port;
    want_ret(t, ibv_modify_qp(qp, &attr, (bits & ~m->less) | m->more), EINVAL);
    want_eq(t, state_of(t, qp), m->from);
    /* The QP is unchanged: with the right attributes the transition succeeds. */
    bits = attr_to(t, qp, m->from, m->to, &attr);
    want_ok(t, ibv_modify_qp(qp, &attr, bits));
}

/* ---- Optional attributes of a transition */

static void optional(struct t *t, long arg)
{
    struct ibv_qp *qp;
    struct ibv_qp_attr attr = {.min_rnr_timer = 5, .qkey = 7, .port_num = t->port, .qp_access_flags = 0};
    int bits;

    switch (arg) {
    case 0: /* INIT to INIT changes what INIT set */
        qp = qp_in(t, IBV_QPT_RC, IBV_QPS_INIT);
        bits = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT | IBV_QP_PKEY_INDEX;
        attr.qp_state = IBV_QPS_INIT;
        break;
    case 1: /* the access flags may still be changed here */
        qp = qp_in(t, IBV_QPT_RC, IBV_QPS_INIT);
        bits = attr_rtr(t, IBV_QPT_RC, &attr, qp->qp_num) | IBV_QP_ACCESS_FLAGS;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
        break;
    case 2:
        qp = qp_in(t, IBV_QPT_RC, IBV_QPS_RTS);
        bits = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
        attr.qp_state = IBV_QPS_RTS;
        break;
    case 3: /* without a new state: the state stays, and the attribute is set */
        qp = qp_in(t, IBV_QPT_RC, IBV_QPS_RTS);
        bits = IBV_QP_MIN_RNR_TIMER;
        break;
    case 4:
        qp = qp_in(t, IBV_QPT_UD, IBV_QPS_RTS);
        bits = IBV_QP_QKEY;
        break;
    default: /* with IBV_QP_CUR_STATE */
        qp = qp_in(t, IBV_QPT_RC, IBV_QPS_RTS);
        bits = IBV_QP_STATE | IBV_QP_CUR_STATE;
        attr.qp_state = attr.cur_qp_state = IBV_QPS_RTS;
    }
    want_ok(t, ibv_modify_qp(qp, &attr, bits));
}

/* ---- Values out of range */

enum value {
    PORT_ZERO,
    PORT_BEYOND,
    PKEY_BEYOND,
    SGID_BEYOND,
    SGID_EMPTY,
    MTU_ZERO,
    MTU_BEYOND,
    TIMEOUT_BEYOND,
    RETRY_BEYOND,
    RNR_RETRY_BEYOND,
    RNR_TIMER_BEYOND,
    RD_ATOMIC_BEYOND,
    DEST_RD_ATOMIC_BEYOND,
    AH_PORT_BEYOND
};

static void value(struct t *t, long arg)
{
    enum ibv_qp_state from = arg <= PKEY_BEYOND                                                             ? IBV_QPS_RESET
                             : arg <= MTU_BEYOND || arg >= DEST_RD_ATOMIC_BEYOND || arg == RNR_TIMER_BEYOND ? IBV_QPS_INIT
                                                                                                            : IBV_QPS_RTR;
    struct ibv_qp *qp = qp_in(t, IBV_QPT_RC, from);
    struct ibv_qp_attr attr;
    union ibv_gid gid;
    static const union ibv_gid none;
    int bits = attr_to(t, qp, from, from == IBV_QPS_RESET ? IBV_QPS_INIT : from == IBV_QPS_INIT ? IBV_QPS_RTR : IBV_QPS_RTS, &attr);

    switch (arg) {
    case PORT_ZERO: attr.port_num = 0; break;
    case PORT_BEYOND: attr.port_num = (uint8_t)(t->attr.phys_port_cnt + 1); break;
    case PKEY_BEYOND: attr.pkey_index = t->port_attr.pkey_tbl_len; break;
    case SGID_BEYOND:
        if (t->port_attr.gid_tbl_len > 255)
            skip(t, "every index a program can write is inside the table");
        attr.ah_attr.grh.sgid_index = (uint8_t)t->port_attr.gid_tbl_len;
        break;
    case SGID_EMPTY:
        for (int i = t->port_attr.gid_tbl_len - 1;; i--) {
            if (i < 0)
                skip(t, "the GID table has no empty entry");
            if (i < 256 && (ibv_query_gid(t->ctx, t->port, i, &gid) || !memcmp(&gid, &none, sizeof gid))) {
                attr.ah_attr.grh.sgid_index = (uint8_t)i;
                break;
            }
        }
        break;
    case MTU_ZERO: attr.path_mtu = (enum ibv_mtu)0; break;
    case MTU_BEYOND: attr.path_mtu = (enum ibv_mtu)7; break;
    case TIMEOUT_BEYOND: attr.timeout = 32; break;
    case RETRY_BEYOND: attr.retry_cnt = 8; break;
    case RNR_RETRY_BEYOND: attr.rnr_retry = 8; break;
    case RNR_TIMER_BEYOND: attr.min_rnr_timer = 32; break;
    case RD_ATOMIC_BEYOND:
        if (t->attr.max_qp_init_rd_atom > 254)
            skip(t, "every number a program can write is allowed");
        attr.max_rd_atomic = (uint8_t)(t->attr.max_qp_init_rd_atom + 1);
        break;
    case DEST_RD_ATOMIC_BEYOND:
        if (t->attr.max_qp_rd_atom > 254)
            skip(t, "every number a program can write is allowed");
        attr.max_dest_rd_atomic = (uint8_t)(t->attr.max_qp_rd_atom + 1);
        break;
    default: attr.ah_attr.port_num = (uint8_t)(t->attr.phys_port_cnt + 1);
    }
    int ret = ibv_modify_qp(qp, &attr, bits);
    if (arg == SGID_EMPTY && ret == ENODATA) /* as Linux returns */
        ret = EINVAL;
    want_ret(t, ret, EINVAL);
    want_eq(t, state_of(t, qp), from);
}

/* ---- Using a QP again after a reset */

static void reuse(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    for (int round = 0; round < 3; round++) {
        recv_ok(t, &p.b, 1, 0, 64);
        struct ibv_sge sge = sge_at(&p.a, 0, 8);
        struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 2, &sge);
        send_ok(t, p.a.qp, &wr);
        wait_for(t, p.a.scq, 2, IBV_WC_SUCCESS);
        wait_for(t, p.b.rcq, 1, IBV_WC_SUCCESS);
        recv_ok(t, &p.b, 9, 0, 64); /* the reset below removes this receive */
        struct end *ends[] = {&p.a, &p.b};
        for (int i = 0; i < 2; i++) {
            if (round == 1)
                want_ok(t, to_state(ends[i]->qp, IBV_QPS_ERR));
            if (round == 1 && i == 1)
                wait_for(t, p.b.rcq, 9, IBV_WC_WR_FLUSH_ERR);
            want_ok(t, to_state(ends[i]->qp, IBV_QPS_RESET));
        }
        quiet(t, p.b.rcq);
        for (int i = 0; i < 2; i++) {
            to_init(t, ends[i]->qp);
            to_rtr(t, ends[i]->qp, ends[1 - i]->qp->qp_num);
            to_rts(t, ends[i]->qp);
        }
    }
}

/* Access flags that are set from INIT to RTR stay set. */
static void access_changed(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_REMOTE_READ};
    want_ok(t, ibv_modify_qp(p.b.qp, &attr, IBV_QP_ACCESS_FLAGS));
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_READ, 1, &sge, &p.b, 0);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    wr = wr_rdma(IBV_WR_RDMA_WRITE, 2, &sge, &p.b, 0);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 2, IBV_WC_REM_INV_REQ_ERR);
}

/* Requests that are posted in SQD wait; back in RTS they are executed. */
static void drained(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    want_ok(t, to_state(p.a.qp, IBV_QPS_SQD));
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 0);
    send_ok(t, p.a.qp, &wr);
    quiet(t, p.a.scq);
    want_ok(t, to_state(p.a.qp, IBV_QPS_RTS));
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
}

static void drained_event(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    want_ok(t, ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    struct ibv_async_event event = wait_event(t, IBV_EVENT_SQ_DRAINED);
    want(t, event.element.qp == p.a.qp);
}

#define S(name, type, needs, f, F, g, G)                         \
    {                                                            \
        "qp." name "." f "_to_" g, step, STEP(type, F, G), needs \
    }
#define FROM(name, type, needs, f, F)                                                                     \
    S(name, type, needs, f, F, "reset", IBV_QPS_RESET), S(name, type, needs, f, F, "init", IBV_QPS_INIT), \
        S(name, type, needs, f, F, "rtr", IBV_QPS_RTR), S(name, type, needs, f, F, "rts", IBV_QPS_RTS),   \
        S(name, type, needs, f, F, "sqd", IBV_QPS_SQD), S(name, type, needs, f, F, "err", IBV_QPS_ERR)
#define STEPS(name, type, needs)                                                                    \
    FROM(name, type, needs, "reset", IBV_QPS_RESET), FROM(name, type, needs, "init", IBV_QPS_INIT), \
        FROM(name, type, needs, "rtr", IBV_QPS_RTR), FROM(name, type, needs, "rts", IBV_QPS_RTS),   \
        FROM(name, type, needs, "sqd", IBV_QPS_SQD), FROM(name, type, needs, "err", IBV_QPS_ERR)

const struct check qp_state_checks[] = {
    STEPS("rc", IBV_QPT_RC, 0),
    STEPS("uc", IBV_QPT_UC, NEED_UC),
    STEPS("ud", IBV_QPT_UD, NEED_UD),
    {"qp.rc.init.without_pkey_index", mask, 0, 0},
    {"qp.rc.init.without_port", mask, 1, 0},
    {"qp.rc.init.without_access_flags", mask, 2, 0},
    {"qp.rc.rtr.without_av", mask, 3, 0},
    {"qp.rc.rtr.without_path_mtu", mask, 4, 0},
    {"qp.rc.rtr.without_dest_qpn", mask, 5, 0},
    {"qp.rc.rtr.without_rq_psn", mask, 6, 0},
    {"qp.rc.rtr.without_max_dest_rd_atomic", mask, 7, 0},
    {"qp.rc.rtr.without_min_rnr_timer", mask, 8, 0},
    {"qp.rc.rts.without_timeout", mask, 9, 0},
    {"qp.rc.rts.without_retry_cnt", mask, 10, 0},
    {"qp.rc.rts.without_rnr_retry", mask, 11, 0},
    {"qp.rc.rts.without_sq_psn", mask, 12, 0},
    {"qp.rc.rts.without_max_rd_atomic", mask, 13, 0},
    {"qp.uc.init.without_pkey_index", mask, 14, NEED_UC},
    {"qp.uc.init.without_port", mask, 15, NEED_UC},
    {"qp.uc.init.without_access_flags", mask, 16, NEED_UC},
    {"qp.uc.rtr.without_av", mask, 17, NEED_UC},
    {"qp.uc.rtr.without_path_mtu", mask, 18, NEED_UC},
    {"qp.uc.rtr.without_dest_qpn", mask, 19, NEED_UC},
    {"qp.uc.rtr.without_rq_psn", mask, 20, NEED_UC},
    {"qp.uc.rts.without_sq_psn", mask, 21, NEED_UC},
    {"qp.ud.init.without_pkey_index", mask, 22, NEED_UD},
    {"qp.ud.init.without_port", mask, 23, NEED_UD},
    {"qp.ud.init.without_qkey", mask, 24, NEED_UD},
    {"qp.ud.rts.without_sq_psn", mask, 25, NEED_UD},
    {"qp.rc.init.with_qkey", mask, 26, 0},
    {"qp.rc.init.with_path_mtu", mask, 27, 0},
    {"qp.rc.rtr.with_timeout", mask, 28, 0},
    {"qp.rc.rtr.with_port", mask, 29, 0},
    {"qp.rc.rts.with_path_mtu", mask, 30, 0},
    {"qp.rc.rts.with_dest_qpn", mask, 31, 0},
    {"qp.rc.rts_again.with_sq_psn", mask, 32, 0},
    {"qp.rc.rts_again.with_timeout", mask, 33, 0},
    {"qp.rc.err.with_timeout", mask, 34, 0},
    {"qp.uc.rtr.with_min_rnr_timer", mask, 35, NEED_UC},
    {"qp.uc.rts.with_timeout", mask, 36, NEED_UC},
    {"qp.ud.init.with_access_flags", mask, 37, NEED_UD},
    {"qp.ud.rtr.with_av", mask, 38, NEED_UD},
    {"qp.ud.rts.with_timeout", mask, 39, NEED_UD},
    {"qp.optional.init_again", optional, 0, 0},
    {"qp.optional.access_at_rtr", optional, 1, 0},
    {"qp.optional.rts_again", optional, 2, 0},
    {"qp.optional.no_state", optional, 3, 0},
    {"qp.optional.qkey_in_rts", optional, 4, NEED_UD},
    {"qp.optional.current_state", optional, 5, 0},
    {"qp.value.port_zero", value, PORT_ZERO, 0},
    {"qp.value.port_beyond", value, PORT_BEYOND, 0},
    {"qp.value.pkey_index_beyond", value, PKEY_BEYOND, 0},
    {"qp.value.sgid_index_beyond", value, SGID_BEYOND, 0},
    {"qp.value.sgid_index_empty", value, SGID_EMPTY, 0},
    {"qp.value.mtu_zero", value, MTU_ZERO, 0},
    {"qp.value.mtu_beyond", value, MTU_BEYOND, 0},
    {"qp.value.timeout_beyond", value, TIMEOUT_BEYOND, 0},
    {"qp.value.retry_cnt_beyond", value, RETRY_BEYOND, 0},
    {"qp.value.rnr_retry_beyond", value, RNR_RETRY_BEYOND, 0},
    {"qp.value.min_rnr_timer_beyond", value, RNR_TIMER_BEYOND, 0},
    {"qp.value.max_rd_atomic_beyond", value, RD_ATOMIC_BEYOND, 0},
    {"qp.value.max_dest_rd_atomic_beyond", value, DEST_RD_ATOMIC_BEYOND, 0},
    {"qp.value.ah_port_beyond", value, AH_PORT_BEYOND, 0},
    {"qp.reuse", reuse, 0, 0},
    {"qp.access_changed", access_changed, 0, 0},
    {"qp.sqd.holds", drained, 0, 0},
    {"qp.sqd.event", drained_event, 0, 0},
    {0},
};
