/* SPDX-License-Identifier: MIT
 *
 * Checks of extended queue pairs: requests built by calls between ibv_wr_start() and ibv_wr_complete().
 */
#include <arpa/inet.h>

#include "conf.h"

#define OPS                                                                                                                \
    (IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | \
     IBV_QP_EX_WITH_RDMA_READ)
#define ATOMIC_OPS (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)

struct ex { /* a QP connected to itself; it sends from the first half of its buffer and receives into the second */
    struct end e;
    struct ibv_qp_ex *x;
    struct ibv_pd *pd;
};

#define HALF 8192

static struct ibv_qp_init_attr_ex asked(struct t *t, struct ex *ex, enum ibv_qp_type type, uint64_t ops)
{
    struct ibv_cq *rcq = cq_new(t, 32, NULL), *scq = cq_new(t, 32, NULL);

    ex->pd = pd_new(t);
    ex->e.rcq = rcq;
    ex->e.scq = scq;
    return (struct ibv_qp_init_attr_ex){
        .send_cq = scq,
        .recv_cq = rcq,
        .qp_type = type,
        .cap = {.max_send_wr = 8,
                .max_recv_wr = 8,
                .max_send_sge = t->attr.max_sge >= 2 ? 2 : 1,
                .max_recv_sge = 1,
                .max_inline_data = has(t, NEED_INLINE) ? 64 : 0},
        .pd = ex->pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = ops,
    };
}

static void ex_new(struct t *t, struct ex *ex, enum ibv_qp_type type)
{
    uint64_t ops = type == IBV_QPT_RC   ? OPS | (has(t, NEED_ATOMIC) ? ATOMIC_OPS : 0)
                   : type == IBV_QPT_UC ? OPS & ~(uint64_t)IBV_QP_EX_WITH_RDMA_READ
                                        : (uint64_t)(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
    struct ibv_qp_init_attr_ex init = asked(t, ex, type, ops);

    ex->e.qp = ibv_create_qp_ex(t->ctx, &init);
    keep_qp(t, ex->e.qp);
    ex->x = ibv_qp_to_qp_ex(ex->e.qp);
    want(t, ex->x != NULL);
    ex->e.buf = mem_new(t, 2 * HALF);
    ex->e.mr = mr_new(t, ex->pd, ex->e.buf, 2 * HALF, type == IBV_QPT_RC ? ALL_ACCESS : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    to_init(t, ex->e.qp);
    to_rtr(t, ex->e.qp, ex->e.qp->qp_num);
    to_rts(t, ex->e.qp);
}

static void begin(struct ex *ex, uint64_t wr_id)
{
    ex->x->wr_id = wr_id;
    ex->x->wr_flags = IBV_SEND_SIGNALED;
}

static uint64_t at(struct ex *ex, size_t off)
{
    return (uintptr_t)ex->e.buf + off;
}

static void each_op(struct t *t, long arg)
{
    struct ex ex;
    enum ibv_wr_opcode op = (enum ibv_wr_opcode)(arg & 255);
    enum ibv_qp_type type = (enum ibv_qp_type)(arg >> 8);
    bool receives = op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM;
    size_t header = type == IBV_QPT_UD ? 40 : 0;

    ex_new(t, &ex, type);
    uint32_t rkey = ex.e.mr->rkey;
    fill(ex.e.buf, 1000, 4);
    if (receives)
        recv_ok(t, &ex.e, 2, HALF, 2000);
    ibv_wr_start(ex.x);
    begin(&ex, 1);
    switch (op) {
    case IBV_WR_SEND: ibv_wr_send(ex.x); break;
    case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(ex.x, htonl(31)); break;
    case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(ex.x, rkey, at(&ex, HALF)); break;
    case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(ex.x, rkey, at(&ex, HALF), htonl(31)); break;
    default:
        ibv_wr_rdma_read(ex.x, rkey, at(&ex, HALF));
        memcpy(ex.e.buf + HALF, ex.e.buf, 1000);
        memset(ex.e.buf, 0, 1000);
    }
    if (type == IBV_QPT_UD)
        ibv_wr_set_ud_addr(ex.x, ah_new(t, ex.pd), ex.e.qp->qp_num, QKEY);
    ibv_wr_set_sge(ex.x, ex.e.mr->lkey, at(&ex, 0), 1000);
    want_ok(t, ibv_wr_complete(ex.x));
    wait_for(t, ex.e.scq, 1, IBV_WC_SUCCESS);
    if (receives) {
        struct ibv_wc wc = wait_for(t, ex.e.rcq, 2, IBV_WC_SUCCESS);
        want_eq(t, wc.byte_len, 1000 + header);
        if (op != IBV_WR_SEND)
            want_eq(t, ntohl(wc.imm_data), 31);
    }
    if (type == IBV_QPT_RC || receives)
        want_filled(t, ex.e.buf + (op == IBV_WR_RDMA_READ ? 0 : HALF + header), 1000, 4);
}

static void atomics(struct t *t, long arg)
{
    struct ex ex;
    uint64_t *word;

    ex_new(t, &ex, IBV_QPT_RC);
    word = (uint64_t *)(void *)(ex.e.buf + HALF);
    *word = 40;
    ibv_wr_start(ex.x);
    begin(&ex, 1);
    if (arg)
        ibv_wr_atomic_fetch_add(ex.x, ex.e.mr->rkey, at(&ex, HALF), 2);
    else
        ibv_wr_atomic_cmp_swp(ex.x, ex.e.mr->rkey, at(&ex, HALF), 40, 42);
    ibv_wr_set_sge(ex.x, ex.e.mr->lkey, at(&ex, 0), 8);
    want_ok(t, ibv_wr_complete(ex.x));
    struct ibv_wc wc = wait_for(t, ex.e.scq, 1, IBV_WC_SUCCESS);
    want_eq(t, wc.opcode, arg ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP);
    want_eq(t, *word, 42);
    want_eq(t, *(uint64_t *)(void *)ex.e.buf, 40);
}

static void inline_data(struct t *t, long arg)
{
    struct ex ex;
    char local[48];

    ex_new(t, &ex, IBV_QPT_RC);
    fill(local, sizeof local, 8);
    ibv_wr_start(ex.x);
    begin(&ex, 1);
    ibv_wr_rdma_write(ex.x, ex.e.mr->rkey, at(&ex, HALF));
    if (arg) {
        struct ibv_data_buf bufs[3] = {{local, 10}, {local + 10, 20}, {local + 30, 18}};
        ibv_wr_set_inline_data_list(ex.x, 3, bufs);
    } else {
        ibv_wr_set_inline_data(ex.x, local, sizeof local);
    }
    memset(local, 0, sizeof local);
    want_ok(t, ibv_wr_complete(ex.x));
    wait_for(t, ex.e.scq, 1, IBV_WC_SUCCESS);
    want_filled(t, ex.e.buf + HALF, sizeof local, 8);
}

/* ibv_wr_complete() reports an error in the batch, and then posts none of its requests. */
enum wrong { INLINE_TOO_LONG, TOO_MANY_SGE, TOO_MANY_WR };

static void wrong(struct t *t, long arg)
{
    struct ex ex;
    struct ibv_sge sge[64];
    static char data[1 << 16];
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    ex_new(t, &ex, IBV_QPT_RC);
    want_ok(t, ibv_query_qp(ex.e.qp, &attr, IBV_QP_CAP, &init));
    for (int i = 0; i < 64; i++)
        sge[i] = sge_at(&ex.e, 0, 1);
    ibv_wr_start(ex.x);
    begin(&ex, 1);
    ibv_wr_rdma_write(ex.x, ex.e.mr->rkey, at(&ex, HALF));
    ibv_wr_set_sge(ex.x, ex.e.mr->lkey, at(&ex, 0), 8);
    for (uint32_t i = 0; i < (arg == TOO_MANY_WR ? init.cap.max_send_wr : 1); i++) {
        begin(&ex, 2);
        ibv_wr_rdma_write(ex.x, ex.e.mr->rkey, at(&ex, HALF));
        if (arg == INLINE_TOO_LONG)
            ibv_wr_set_inline_data(ex.x, data, sizeof data);
        else if (arg == TOO_MANY_SGE)
            ibv_wr_set_sge_list(ex.x, 64, sge);
        else
            ibv_wr_set_sge(ex.x, ex.e.mr->lkey, at(&ex, 0), 8);
    }
    int ret = ibv_wr_complete(ex.x);
    if (ret != EINVAL && ret != ENOMEM && ret != ENOSPC) /* no manual says which of these it is */
        fail(t, "ibv_wr_complete: expected EINVAL, ENOMEM or ENOSPC, came %s", err_name(ret));
    quiet(t, ex.e.scq);
    /* The QP still works. */
    ibv_wr_start(ex.x);
    begin(&ex, 3);
    ibv_wr_rdma_write(ex.x, ex.e.mr->rkey, at(&ex, HALF));
    ibv_wr_set_sge(ex.x, ex.e.mr->lkey, at(&ex, 0), 8);
    want_ok(t, ibv_wr_complete(ex.x));
    wait_for(t, ex.e.scq, 3, IBV_WC_SUCCESS);
}

static void sge_list(struct t *t, long arg)
{
    struct ex ex;

    (void)arg;
    ex_new(t, &ex, IBV_QPT_RC);
    fill(ex.e.buf, 300, 9);
    struct ibv_sge sge[2] = {sge_at(&ex.e, 0, 100), sge_at(&ex.e, 100, 200)};
    ibv_wr_start(ex.x);
    begin(&ex, 1);
    ibv_wr_rdma_write(ex.x, ex.e.mr->rkey, at(&ex, HALF));
    ibv_wr_set_sge_list(ex.x, 2, sge);
    want_ok(t, ibv_wr_complete(ex.x));
    wait_for(t, ex.e.scq, 1, IBV_WC_SUCCESS);
    want_filled(t, ex.e.buf + HALF, 300, 9);
}

/* Several requests in a batch; nothing happens before it is complete. */
static void batch(struct t *t, long arg)
{
    struct ex ex;

    (void)arg;
    ex_new(t, &ex, IBV_QPT_RC);
    recv_ok(t, &ex.e, 9, HALF + 4096, 64);
    ibv_wr_start(ex.x);
    for (uint64_t i = 0; i < 3; i++) {
        fill(ex.e.buf + i * 100, 100, (unsigned)i);
        begin(&ex, i);
        ex.x->wr_flags = i == 1 ? 0 : IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(ex.x, ex.e.mr->rkey, at(&ex, HALF + i * 100));
        ibv_wr_set_sge(ex.x, ex.e.mr->lkey, at(&ex, i * 100), 100);
    }
    begin(&ex, 3);
    ibv_wr_send(ex.x);
    ibv_wr_set_sge(ex.x, ex.e.mr->lkey, at(&ex, 0), 8);
    quiet(t, ex.e.scq);
    want_ok(t, ibv_wr_complete(ex.x));
    wait_for(t, ex.e.scq, 0, IBV_WC_SUCCESS);
    wait_for(t, ex.e.scq, 2, IBV_WC_SUCCESS);
    wait_for(t, ex.e.scq, 3, IBV_WC_SUCCESS);
    wait_for(t, ex.e.rcq, 9, IBV_WC_SUCCESS);
    for (unsigned i = 0; i < 3; i++)
        want_filled(t, ex.e.buf + HALF + i * 100, 100, i);
}

static void abort_(struct t *t, long arg)
{
    struct ex ex;

    (void)arg;
    ex_new(t, &ex, IBV_QPT_RC);
    fill(ex.e.buf, 100, 2);
    for (int i = 0; i < 20; i++) { /* more often than the queue has entries: aborted requests occupy none */
        ibv_wr_start(ex.x);
        begin(&ex, 1);
        ibv_wr_rdma_write(ex.x, ex.e.mr->rkey, at(&ex, HALF));
        ibv_wr_set_sge(ex.x, ex.e.mr->lkey, at(&ex, 0), 100);
        ibv_wr_abort(ex.x);
    }
    quiet(t, ex.e.scq);
    want_eq(t, ex.e.buf[HALF + 1], 0);
    ibv_wr_start(ex.x);
    begin(&ex, 2);
    ibv_wr_rdma_write(ex.x, ex.e.mr->rkey, at(&ex, HALF));
    ibv_wr_set_sge(ex.x, ex.e.mr->lkey, at(&ex, 0), 100);
    want_ok(t, ibv_wr_complete(ex.x));
    wait_for(t, ex.e.scq, 2, IBV_WC_SUCCESS);
    want_filled(t, ex.e.buf + HALF, 100, 2);
}

static void empty(struct t *t, long arg)
{
    struct ex ex;

    (void)arg;
    ex_new(t, &ex, IBV_QPT_RC);
    ibv_wr_start(ex.x);
    want_ok(t, ibv_wr_complete(ex.x));
    quiet(t, ex.e.scq);
}

/* ibv_post_send() works on a QP with the extended interface, too. */
static void old_post(struct t *t, long arg)
{
    struct ex ex;

    (void)arg;
    ex_new(t, &ex, IBV_QPT_RC);
    struct ibv_sge sge = sge_at(&ex.e, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 5, &sge, &ex.e, HALF);
    send_ok(t, ex.e.qp, &wr);
    wait_for(t, ex.e.scq, 5, IBV_WC_SUCCESS);
}

static void create_bad(struct t *t, long arg)
{
    struct ex ex;
    struct ibv_qp_init_attr_ex init = asked(t, &ex, arg == 2 ? IBV_QPT_UD : IBV_QPT_RC, IBV_QP_EX_WITH_SEND);
    int err = EOPNOTSUPP;

    if (arg == 0) {
        init.comp_mask = 0;
        init.pd = NULL;
        err = EINVAL;
    } else if (arg == 1) {
        init.send_ops_flags = 1ull << 40;
    } else if (arg == 3) {
        init.comp_mask |= 1u << 30;
    } else {
        init.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ; /* which UD does not have */
    }
    want_null(t, ibv_create_qp_ex(t->ctx, &init), err);
}

/* A QP that was created without send_ops_flags has no extended interface. */
static void not_asked(struct t *t, long arg)
{
    struct ex ex;
    struct ibv_qp_init_attr_ex init = asked(t, &ex, IBV_QPT_RC, 0);

    (void)arg;
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    struct ibv_qp *qp = ibv_create_qp_ex(t->ctx, &init);
    keep_qp(t, qp);
    want(t, ibv_qp_to_qp_ex(qp) == NULL);
}

#define OP(type, op) (IBV_QPT_##type << 8 | IBV_WR_##op)

const struct check qp_ex_checks[] = {
    {"qp_ex.create.no_pd", create_bad, 0, NEED_QP_EX},
    {"qp_ex.create.unknown_op", create_bad, 1, NEED_QP_EX},
    {"qp_ex.create.op_of_other_type", create_bad, 2, NEED_QP_EX | NEED_UD},
    {"qp_ex.create.unknown_mask", create_bad, 3, NEED_QP_EX},
    {"qp_ex.create.not_asked", not_asked, 0, NEED_QP_EX},
    {"qp_ex.rc.send", each_op, OP(RC, SEND), NEED_QP_EX},
    {"qp_ex.rc.send_imm", each_op, OP(RC, SEND_WITH_IMM), NEED_QP_EX},
    {"qp_ex.rc.write", each_op, OP(RC, RDMA_WRITE), NEED_QP_EX},
    {"qp_ex.rc.write_imm", each_op, OP(RC, RDMA_WRITE_WITH_IMM), NEED_QP_EX},
    {"qp_ex.rc.read", each_op, OP(RC, RDMA_READ), NEED_QP_EX},
    {"qp_ex.rc.fetch_add", atomics, 1, NEED_QP_EX | NEED_ATOMIC},
    {"qp_ex.rc.compare_swap", atomics, 0, NEED_QP_EX | NEED_ATOMIC},
    {"qp_ex.uc.send", each_op, OP(UC, SEND), NEED_QP_EX | NEED_UC},
    {"qp_ex.uc.write_imm", each_op, OP(UC, RDMA_WRITE_WITH_IMM), NEED_QP_EX | NEED_UC},
    {"qp_ex.ud.send", each_op, OP(UD, SEND), NEED_QP_EX | NEED_UD},
    {"qp_ex.ud.send_imm", each_op, OP(UD, SEND_WITH_IMM), NEED_QP_EX | NEED_UD},
    {"qp_ex.inline", inline_data, 0, NEED_QP_EX | NEED_INLINE},
    {"qp_ex.inline_list", inline_data, 1, NEED_QP_EX | NEED_INLINE},
    {"qp_ex.inline_too_long", wrong, INLINE_TOO_LONG, NEED_QP_EX | NEED_INLINE},
    {"qp_ex.too_many_sge", wrong, TOO_MANY_SGE, NEED_QP_EX},
    {"qp_ex.too_many_wr", wrong, TOO_MANY_WR, NEED_QP_EX},
    {"qp_ex.sge_list", sge_list, 0, NEED_QP_EX | NEED_SGE4},
    {"qp_ex.batch", batch, 0, NEED_QP_EX},
    {"qp_ex.abort", abort_, 0, NEED_QP_EX},
    {"qp_ex.empty", empty, 0, NEED_QP_EX},
    {"qp_ex.old_post", old_post, 0, NEED_QP_EX},
    {0},
};
