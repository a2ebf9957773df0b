/* SPDX-License-Identifier: MIT
 *
 * Connecting queue pairs, posting requests, and waiting for completions with a deadline.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <time.h>

#include "conf.h"

void fill_ah(const struct t *t, struct ibv_ah_attr *ah)
{
    *ah = (struct ibv_ah_attr){
        .is_global = 1,
        .dlid = t->port_attr.lid,
        .port_num = t->port,
        .grh = {.dgid = t->gid, .sgid_index = t->gid_index, .hop_limit = 64},
    };
}

int attr_init(const struct t *t, enum ibv_qp_type type, struct ibv_qp_attr *attr)
{
    *attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .pkey_index = 0, .port_num = t->port};
    if (type == IBV_QPT_UD) {
        attr->qkey = QKEY;
        return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    }
    attr->qp_access_flags = type == IBV_QPT_RC ? (unsigned)(ALL_ACCESS & ~IBV_ACCESS_LOCAL_WRITE) : IBV_ACCESS_REMOTE_WRITE;
    return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
}

int attr_rtr(const struct t *t, enum ibv_qp_type type, struct ibv_qp_attr *attr, uint32_t dest_qpn)
{
    *attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR};
    if (type == IBV_QPT_UD)
        return IBV_QP_STATE;
    attr->path_mtu = IBV_MTU_1024;
    attr->dest_qp_num = dest_qpn;
    attr->rq_psn = 100;
    fill_ah(t, &attr->ah_attr);
    if (type != IBV_QPT_RC)
        return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    attr->max_dest_rd_atomic = 1;
    attr->min_rnr_timer = 1;
    return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
}

int attr_rts(const struct t *t, enum ibv_qp_type type, struct ibv_qp_attr *attr)
{
    (void)t;
    *attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = 100};
    if (type != IBV_QPT_RC)
        return IBV_QP_STATE | IBV_QP_SQ_PSN;
    attr->timeout = ANY_TIMEOUT;
    attr->retry_cnt = 7;
    attr->rnr_retry = 7;
    attr->max_rd_atomic = 1;
    return IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
}

static void step(struct t *t, struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, const char *where)
{
    int ret = ibv_modify_qp(qp, attr, mask);

    if (ret)
        fail(t, "moving a QP (type %d) to %s: %s", (int)qp->qp_type, where, err_name(ret));
}

void to_init(struct t *t, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    int mask = attr_init(t, qp->qp_type, &attr);

    step(t, qp, &attr, mask, "INIT");
}

void to_rtr(struct t *t, struct ibv_qp *qp, uint32_t dest_qpn)
{
    struct ibv_qp_attr attr;
    int mask = attr_rtr(t, qp->qp_type, &attr, dest_qpn);

    step(t, qp, &attr, mask, "RTR");
}

void to_rts(struct t *t, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    int mask = attr_rts(t, qp->qp_type, &attr);

    step(t, qp, &attr, mask, "RTS");
}

int to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state};

    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

enum ibv_qp_state state_of(struct t *t, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    int ret = ibv_query_qp(qp, &attr, IBV_QP_STATE, &init);

    if (ret)
        fail(t, "ibv_query_qp: %s", err_name(ret));
    return attr.qp_state;
}

/* A device may write the completion with the error first, and change the QP's state a moment later. */
static bool draining(struct t *t, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    memset(&attr, 0, sizeof attr);
    want_ok(t, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
    return attr.sq_draining;
}

void wait_state(struct t *t, struct ibv_qp *qp, enum ibv_qp_state state)
{
    double end = now() + t->wait_s;
    enum ibv_qp_state is;

    /* Some devices refuse the next transition while the send queue is still being drained. */
    while ((is = state_of(t, qp)) != state || (state == IBV_QPS_SQD && draining(t, qp))) {
        if (now() > end || is == IBV_QPS_ERR) /* a QP never leaves this state by itself */
            fail(t, "the QP's state: expected %d, is %d", (int)state, (int)is);
        nap(1);
    }
}

static void end_new(struct t *t, struct pair *p, struct end *e, const struct pair_opt *opt, bool is_b)
{
    uint32_t sge = t->attr.max_sge >= 4 ? 4 : (uint32_t)t->attr.max_sge;
    int cqe = opt->cqe ? opt->cqe : (int)opt->depth + 4;
    struct ibv_qp_init_attr init = {
        .srq = is_b ? opt->srq : NULL,
        .qp_type = opt->type,
        .sq_sig_all = opt->sig_all,
        .cap = {.max_send_wr = opt->depth,
                .max_recv_wr = is_b && opt->srq ? 0 : opt->depth,
                .max_send_sge = sge,
                .max_recv_sge = is_b && opt->srq ? 0 : sge,
                .max_inline_data = has(t, NEED_INLINE) ? 64 : 0},
    };

    e->buf = mem_new(t, opt->len);
    e->mr = mr_new(t, p->pd, e->buf, opt->len, is_b ? opt->b_access : opt->access);
    e->scq = cq_new(t, cqe, NULL);
    e->rcq = cq_new(t, cqe, is_b ? opt->channel : NULL);
    init.send_cq = e->scq;
    init.recv_cq = e->rcq;
    e->qp = qp_new(t, p->pd, &init);
}

static void end_join(struct t *t, struct end *e, uint32_t dest_qpn, const struct pair_opt *opt)
{
    struct ibv_qp_attr attr;
    int mask = attr_init(t, opt->type, &attr);

    if (opt->qp_access)
        attr.qp_access_flags = opt->qp_access & ~(unsigned)IBV_ACCESS_LOCAL_WRITE;
    step(t, e->qp, &attr, mask, "INIT");
    to_rtr(t, e->qp, dest_qpn);
    if (opt->no_rts)
        return;
    mask = attr_rts(t, opt->type, &attr);
    attr.rnr_retry = (uint8_t)(opt->rnr_retry < 0 ? 0 : opt->rnr_retry);
    attr.timeout = (uint8_t)opt->timeout;
    attr.retry_cnt = (uint8_t)opt->retry_cnt;
    step(t, e->qp, &attr, mask, "RTS");
}

void pair_new(struct t *t, struct pair *p, struct pair_opt opt)
{
    opt.type = opt.type ? opt.type : IBV_QPT_RC;
    opt.len = opt.len ? opt.len : 65536;
    opt.access = opt.access ? opt.access : ALL_ACCESS;
    opt.b_access = opt.b_access ? opt.b_access : opt.access;
    opt.depth = opt.depth ? opt.depth : 16;
    opt.rnr_retry = opt.rnr_retry ? opt.rnr_retry : 7;
    opt.timeout = opt.timeout ? opt.timeout : ANY_TIMEOUT;
    opt.retry_cnt = opt.retry_cnt ? opt.retry_cnt : 7;
    p->pd = opt.pd ? opt.pd : pd_new(t);
    end_new(t, p, &p->a, &opt, false);
    end_new(t, p, &p->b, &opt, true);
    end_join(t, &p->a, p->b.qp->qp_num, &opt);
    end_join(t, &p->b, p->a.qp->qp_num, &opt);
}

/* ---- Requests */

struct ibv_sge sge_at(const struct end *e, size_t off, uint32_t len)
{
    return (struct ibv_sge){.addr = (uintptr_t)e->buf + off, .length = len, .lkey = e->mr->lkey};
}

struct ibv_send_wr wr_of(enum ibv_wr_opcode opcode, uint64_t wr_id, struct ibv_sge *sge)
{
    return (struct ibv_send_wr){
        .wr_id = wr_id,
        .sg_list = sge,
        .num_sge = sge ? 1 : 0,
        .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED,
    };
}

struct ibv_send_wr wr_rdma(enum ibv_wr_opcode opcode, uint64_t wr_id, struct ibv_sge *sge, const struct end *to, size_t off)
{
    struct ibv_send_wr wr = wr_of(opcode, wr_id, sge);

    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = (uintptr_t)to->buf + off;
        wr.wr.atomic.rkey = to->mr->rkey;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)to->buf + off;
        wr.wr.rdma.rkey = to->mr->rkey;
    }
    return wr;
}

int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad = NULL;

    return ibv_post_send(qp, wr, &bad);
}

void send_ok(struct t *t, struct ibv_qp *qp, struct ibv_send_wr *wr)
{
    int ret = post_send(qp, wr);

    if (ret)
        fail(t, "ibv_post_send(opcode %d): %s", (int)wr->opcode, err_name(ret));
}

int post_recv(struct ibv_qp *qp, uint64_t wr_id, struct ibv_sge *sge, int n)
{
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = sge, .num_sge = n}, *bad = NULL;

    return ibv_post_recv(qp, &wr, &bad);
}

void recv_ok(struct t *t, struct end *e, uint64_t wr_id, size_t off, uint32_t len)
{
    struct ibv_sge sge = sge_at(e, off, len);
    int ret = post_recv(e->qp, wr_id, &sge, 1);

    if (ret)
        fail(t, "ibv_post_recv: %s", err_name(ret));
}

/* ---- Waiting */

double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void nap(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static int poll_one(struct t *t, struct ibv_cq *cq, struct ibv_wc *wc)
{
    int n = ibv_poll_cq(cq, 1, wc);

    if (n < 0)
        fail(t, "ibv_poll_cq: %d", n);
    return n;
}

struct ibv_wc wait_wc(struct t *t, struct ibv_cq *cq)
{
    struct ibv_wc wc = {0};
    double end = now() + t->wait_s;

    for (int i = 0; !poll_one(t, cq, &wc); i++) {
        if (now() > end)
            fail(t, "no completion came within %d s", t->wait_s);
        if (i > 200) /* the device may need the processor on which this thread spins */
            nap(1);
    }
    return wc;
}

struct ibv_wc wait_for(struct t *t, struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
    struct ibv_wc wc = wait_wc(t, cq);

    if (wc.wr_id != wr_id)
        fail(t, "completion: expected wr_id %llu, came %llu (%s)", (unsigned long long)wr_id, (unsigned long long)wc.wr_id,
             ibv_wc_status_str(wc.status));
    if (wc.status != status)
        fail(t, "completion of wr_id %llu: expected '%s', came '%s'", (unsigned long long)wr_id, ibv_wc_status_str(status),
             ibv_wc_status_str(wc.status));
    return wc;
}

void quiet(struct t *t, struct ibv_cq *cq)
{
    struct ibv_wc wc;
    double end = now() + quiet_ms(t) * 1e-3;

    do {
        if (poll_one(t, cq, &wc))
            fail(t, "expected no completion, came wr_id %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
        nap(2);
    } while (now() < end);
}

void fill(char *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        buf[i] = (char)(seed + i * 7 + (i >> 8) * 31);
}

void want_filled(struct t *t, const char *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++) {
        char is = (char)(seed + i * 7 + (i >> 8) * 31);

        if (buf[i] != is)
            fail(t, "byte %zu of %zu: expected 0x%02x, is 0x%02x", i, len, (uint8_t)is, (uint8_t)buf[i]);
    }
}

bool readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, ms) == 1 && (p.revents & POLLIN);
}

struct ibv_async_event wait_event(struct t *t, enum ibv_event_type type)
{
    struct ibv_async_event event;

    if (!readable(t->ctx->async_fd, t->wait_s * 1000))
        fail(t, "no async event came; expected '%s'", ibv_event_type_str(type));
    if (ibv_get_async_event(t->ctx, &event))
        fail(t, "ibv_get_async_event: %s", err_name(errno));
    ibv_ack_async_event(&event);
    if (event.event_type != type)
        fail(t, "async event: expected '%s', came '%s'", ibv_event_type_str(type), ibv_event_type_str(event.event_type));
    return event;
}
