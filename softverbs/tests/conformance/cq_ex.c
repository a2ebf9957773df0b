/* SPDX-License-Identifier: MIT
 *
 * Checks of extended completion queues: the program polls one completion at a time, and reads each field by a function.
 */
#include <arpa/inet.h>

#include "conf.h"

#define FIELDS (IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP)

struct loop { /* a QP connected to itself, both queues on one extended CQ */
    struct ibv_cq_ex *cq;
    struct end e;
};

static void loop_new(struct t *t, struct loop *l, uint64_t fields, struct ibv_comp_channel *channel)
{
    struct ibv_cq_init_attr_ex init = {.cqe = 32, .wc_flags = fields, .channel = channel};
    struct ibv_pd *pd = pd_new(t);

    l->e.buf = mem_new(t, 8192);
    l->e.mr = mr_new(t, pd, l->e.buf, 8192, ALL_ACCESS);
    l->cq = ibv_create_cq_ex(t->ctx, &init);
    keep_cq_ex(t, l->cq);
    l->e.scq = l->e.rcq = ibv_cq_ex_to_cq(l->cq);
    struct ibv_qp_init_attr qp = {
        .send_cq = l->e.scq,
        .recv_cq = l->e.scq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
    };
    l->e.qp = qp_new(t, pd, &qp);
    to_init(t, l->e.qp);
    to_rtr(t, l->e.qp, l->e.qp->qp_num);
    to_rts(t, l->e.qp);
}

static void start(struct t *t, struct ibv_cq_ex *cq)
{
    struct ibv_poll_cq_attr attr = {0};
    double end = now() + t->wait_s;
    int ret;

    while ((ret = ibv_start_poll(cq, &attr)) == ENOENT) {
        if (now() > end)
            fail(t, "no completion came within %d s", t->wait_s);
        nap(1);
    }
    want_eq(t, ret, 0);
}

static void writes(struct t *t, struct loop *l, int n)
{
    for (int i = 0; i < n; i++) {
        struct ibv_sge sge = sge_at(&l->e, 0, 8);
        struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 10 + (uint64_t)i, &sge, &l->e, 100);

        send_ok(t, l->e.qp, &wr);
    }
}

static void create_bad(struct t *t, long arg)
{
    struct ibv_cq_init_attr_ex init = {.cqe = 4};

    switch (arg) {
    case 0: init.cqe = 0; break;
    case 1: init.cqe = (uint32_t)t->attr.max_cqe + 1; break;
    case 2: init.comp_mask = 1u << 30; break;
    default: init.wc_flags = 1ull << 40;
    }
    errno = 0;
    struct ibv_cq_ex *cq = ibv_create_cq_ex(t->ctx, &init);
    if (cq)
        keep_cq_ex(t, cq);
    want(t, cq == NULL);
    if (arg < 2)
        want_eq(t, errno, EINVAL);
    else /* an unknown option counts as not supported */
        want(t, errno == EINVAL || errno == EOPNOTSUPP);
}

static int undo_parent(void *parent)
{
    return ibv_dealloc_pd(parent);
}

/* A device without a known option returns "not supported", not EINVAL. */
static void create_option(struct t *t, long arg)
{
    struct ibv_cq_init_attr_ex init = {.cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS};

    if (arg == 0) {
        init.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    } else {
        struct ibv_parent_domain_init_attr domain = {.pd = pd_new(t)};
        struct ibv_pd *parent = ibv_alloc_parent_domain(t->ctx, &domain);

        if (parent)
            keep(t, parent, undo_parent, "ibv_dealloc_pd");
        init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
        init.parent_domain = parent ? parent : domain.pd;
    }
    errno = 0;
    struct ibv_cq_ex *cq = ibv_create_cq_ex(t->ctx, &init);
    if (cq)
        keep_cq_ex(t, cq);
    else
        want_eq(t, errno, EOPNOTSUPP);
}

static void empty(struct t *t, long arg)
{
    struct loop l;
    struct ibv_poll_cq_attr attr = {0};

    (void)arg;
    loop_new(t, &l, FIELDS, NULL);
    want_ret(t, ibv_start_poll(l.cq, &attr), ENOENT);
    /* After ENOENT from ibv_start_poll(), ibv_end_poll() must not be called, and polling can start again. */
    want_ret(t, ibv_start_poll(l.cq, &attr), ENOENT);
}

static void poll_mask(struct t *t, long arg)
{
    struct loop l;
    struct ibv_poll_cq_attr attr = {.comp_mask = 1};

    (void)arg;
    loop_new(t, &l, FIELDS, NULL);
    want_ret(t, ibv_start_poll(l.cq, &attr), EINVAL);
}

/* The fields of the next completion. A check compares them after the poll has ended: during a poll the queue is locked, so it could not be
 * destroyed if the check failed. */
struct read {
    enum ibv_wc_status status;
    enum ibv_wc_opcode opcode;
    uint64_t wr_id;
    uint32_t byte_len, qp_num, imm_data;
    unsigned flags;
};

static void read_all(struct read *r, struct ibv_cq_ex *cq)
{
    *r = (struct read){.status = cq->status, .wr_id = cq->wr_id, .qp_num = ibv_wc_read_qp_num(cq)};
    if (r->status != IBV_WC_SUCCESS)
        return;
    r->opcode = ibv_wc_read_opcode(cq);
    r->byte_len = ibv_wc_read_byte_len(cq);
    r->flags = ibv_wc_read_wc_flags(cq);
    if (r->flags & IBV_WC_WITH_IMM)
        r->imm_data = ntohl(ibv_wc_read_imm_data(cq));
}

static struct read take(struct t *t, struct ibv_cq_ex *cq)
{
    struct read r;

    start(t, cq);
    read_all(&r, cq);
    ibv_end_poll(cq);
    return r;
}

static void next(struct t *t, long arg)
{
    struct loop l;
    struct read r[16];
    int n = 0, ret = 0;

    (void)arg;
    loop_new(t, &l, FIELDS, NULL);
    writes(t, &l, 5);
    for (int polls = 0; n < 5 && polls < 5; polls++) {
        start(t, l.cq);
        do
            read_all(&r[n++], l.cq);
        while (n < 16 && (ret = ibv_next_poll(l.cq)) == 0);
        ibv_end_poll(l.cq);
        want_eq(t, ret, ENOENT);
    }
    want_eq(t, n, 5);
    for (int i = 0; i < 5; i++) {
        want_eq(t, r[i].status, IBV_WC_SUCCESS);
        want_eq(t, r[i].wr_id, 10 + i);
    }
    quiet(t, l.e.scq);
}

/* ibv_end_poll() removes the completion that ibv_start_poll() showed. */
static void one_by_one(struct t *t, long arg)
{
    struct loop l;

    (void)arg;
    loop_new(t, &l, FIELDS, NULL);
    writes(t, &l, 3);
    for (uint64_t i = 0; i < 3; i++)
        want_eq(t, take(t, l.cq).wr_id, 10 + i);
    quiet(t, l.e.scq);
}

static void fields(struct t *t, long arg)
{
    struct loop l;
    bool received = false, sent = false;

    (void)arg;
    loop_new(t, &l, FIELDS, NULL);
    recv_ok(t, &l.e, 1, 0, 100);
    struct ibv_sge sge = sge_at(&l.e, 200, 33);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND_WITH_IMM, 2, &sge);
    wr.imm_data = htonl(0x01020304);
    send_ok(t, l.e.qp, &wr);
    for (int i = 0; i < 2; i++) {
        struct read r = take(t, l.cq);

        want_eq(t, r.status, IBV_WC_SUCCESS);
        want_eq(t, r.qp_num, l.e.qp->qp_num);
        if (r.wr_id == 1) {
            received = true;
            want_eq(t, r.opcode, IBV_WC_RECV);
            want_eq(t, r.byte_len, 33);
            want(t, r.flags & IBV_WC_WITH_IMM);
            want_eq(t, r.imm_data, 0x01020304);
        } else {
            sent = true;
            want_eq(t, r.wr_id, 2);
            want_eq(t, r.opcode, IBV_WC_SEND);
        }
    }
    want(t, sent && received);
}

static void read_len(struct t *t, long arg)
{
    struct loop l;

    (void)arg;
    loop_new(t, &l, FIELDS, NULL);
    struct ibv_sge sge = sge_at(&l.e, 200, 99);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_READ, 2, &sge, &l.e, 400);
    send_ok(t, l.e.qp, &wr);
    struct read r = take(t, l.cq);
    want_eq(t, r.status, IBV_WC_SUCCESS);
    want_eq(t, r.opcode, IBV_WC_RDMA_READ);
    want_eq(t, r.byte_len, 99);
}

static void error(struct t *t, long arg)
{
    struct loop l;

    (void)arg;
    loop_new(t, &l, FIELDS, NULL);
    struct ibv_sge sge = sge_at(&l.e, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 5, &sge, &l.e, 8192);
    send_ok(t, l.e.qp, &wr);
    struct read r = take(t, l.cq);
    want_eq(t, r.wr_id, 5);
    want_eq(t, r.status, IBV_WC_REM_ACCESS_ERR);
    want_eq(t, r.qp_num, l.e.qp->qp_num);
}

/* All fields that every device supports. */
static void standard_fields(struct t *t, long arg)
{
    struct loop l;

    (void)arg;
    loop_new(t, &l, IBV_WC_STANDARD_FLAGS, NULL);
    writes(t, &l, 1);
    start(t, l.cq);
    uint32_t qp_num = ibv_wc_read_qp_num(l.cq);
    ibv_wc_read_src_qp(l.cq);
    ibv_wc_read_slid(l.cq);
    ibv_wc_read_sl(l.cq);
    ibv_wc_read_dlid_path_bits(l.cq);
    uint64_t wr_id = l.cq->wr_id;
    ibv_end_poll(l.cq);
    want_eq(t, wr_id, 10);
    want_eq(t, qp_num, l.e.qp->qp_num);
}

static void timestamps(struct t *t, long arg)
{
    struct ibv_cq_init_attr_ex init = {.cqe = 4, .wc_flags = (uint64_t)arg};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(t->ctx, &init);
    struct loop l;
    uint64_t before = 0;

    if (!cq)
        skip(t, "the device has no such time of completions");
    keep_cq_ex(t, cq);
    loop_new(t, &l, FIELDS | (uint64_t)arg, NULL);
    writes(t, &l, 3);
    for (int i = 0; i < 3; i++) {
        start(t, l.cq);
        uint64_t at =
            arg == IBV_WC_EX_WITH_COMPLETION_TIMESTAMP ? ibv_wc_read_completion_ts(l.cq) : ibv_wc_read_completion_wallclock_ns(l.cq);
        ibv_end_poll(l.cq);
        want(t, at != 0);
        want(t, at >= before);
        before = at;
    }
}

/* The plain interface reads an extended queue as well. */
static void plain(struct t *t, long arg)
{
    struct loop l;

    (void)arg;
    loop_new(t, &l, FIELDS, NULL);
    writes(t, &l, 3);
    wait_for(t, l.e.scq, 10, IBV_WC_SUCCESS);
    want_eq(t, take(t, l.cq).wr_id, 11);
    wait_for(t, l.e.scq, 12, IBV_WC_SUCCESS);
}

static void event(struct t *t, long arg)
{
    struct loop l;
    struct ibv_comp_channel *ch = channel_new(t);
    struct ibv_cq *cq;
    void *context;

    (void)arg;
    loop_new(t, &l, FIELDS, ch);
    want_ok(t, ibv_req_notify_cq(l.e.scq, 0));
    writes(t, &l, 1);
    want(t, readable(ch->fd, t->wait_s * 1000));
    want_ok(t, ibv_get_cq_event(ch, &cq, &context));
    ibv_ack_cq_events(cq, 1);
    want(t, cq == l.e.scq);
    want_eq(t, take(t, l.cq).wr_id, 10);
}

static void single_threaded(struct t *t, long arg)
{
    struct ibv_cq_init_attr_ex init = {
        .cqe = 4,
        .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
        .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    };
    struct ibv_cq_ex *cq = ibv_create_cq_ex(t->ctx, &init);

    (void)arg;
    if (!cq && errno == EOPNOTSUPP)
        skip(t, "the device has no single-threaded CQ");
    keep_cq_ex(t, cq);
    struct ibv_poll_cq_attr attr = {0};
    want_ret(t, ibv_start_poll(cq, &attr), ENOENT);
}

const struct check cq_ex_checks[] = {
    {"cq_ex.create.zero", create_bad, 0, NEED_CQ_EX},
    {"cq_ex.create.too_many", create_bad, 1, NEED_CQ_EX},
    {"cq_ex.create.unknown_mask", create_bad, 2, NEED_CQ_EX},
    {"cq_ex.create.unknown_field", create_bad, 3, NEED_CQ_EX},
    {"cq_ex.create.ignore_overrun", create_option, 0, NEED_CQ_EX},
    {"cq_ex.create.parent_domain", create_option, 1, NEED_CQ_EX},
    {"cq_ex.create.single_threaded", single_threaded, 0, NEED_CQ_EX},
    {"cq_ex.poll.empty", empty, 0, NEED_CQ_EX},
    {"cq_ex.poll.unknown_mask", poll_mask, 0, NEED_CQ_EX},
    {"cq_ex.poll.next", next, 0, NEED_CQ_EX},
    {"cq_ex.poll.one_by_one", one_by_one, 0, NEED_CQ_EX},
    {"cq_ex.fields", fields, 0, NEED_CQ_EX},
    {"cq_ex.standard_fields", standard_fields, 0, NEED_CQ_EX},
    {"cq_ex.timestamp", timestamps, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, NEED_CQ_EX},
    {"cq_ex.wallclock", timestamps, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, NEED_CQ_EX},
    {"cq_ex.read_length", read_len, 0, NEED_CQ_EX},
    {"cq_ex.error", error, 0, NEED_CQ_EX},
    {"cq_ex.plain_poll", plain, 0, NEED_CQ_EX},
    {"cq_ex.event", event, 0, NEED_CQ_EX},
    {0},
};
