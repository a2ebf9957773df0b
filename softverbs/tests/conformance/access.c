/* SPDX-License-Identifier: MIT
 *
 * Checks of access to regions: bounds, keys, access flags and protection domains, on every use.
 */
#include "conf.h"

/* An operation on a range of b's region, and the status that it must end with. */
struct reach {
    enum ibv_wr_opcode op;
    long off; /* offset from the start of the region; a negative one counts from its end */
    uint32_t len;
    enum ibv_wc_status status;
};

#define REGION 8192
#define OK_    IBV_WC_SUCCESS
#define DENIED IBV_WC_REM_ACCESS_ERR
#define NOT_SET_UP                                                                           \
    IBV_WC_REM_INV_REQ_ERR /* the QP does not do such operations, whatever the region allows \
                            */

static const struct reach reaches[] = {
    {IBV_WR_RDMA_WRITE, 0, REGION, OK_},       {IBV_WR_RDMA_WRITE, -1, 1, OK_},
    {IBV_WR_RDMA_WRITE, -1, 2, DENIED},        {IBV_WR_RDMA_WRITE, -100000, 1, DENIED}, /* the byte before: see reach() */
    {IBV_WR_RDMA_WRITE, REGION, 1, DENIED},    {IBV_WR_RDMA_WRITE, 0, REGION + 1, DENIED},
    {IBV_WR_RDMA_READ, 0, REGION, OK_},        {IBV_WR_RDMA_READ, -1, 1, OK_},
    {IBV_WR_RDMA_READ, -1, 2, DENIED},         {IBV_WR_RDMA_READ, -100000, 1, DENIED},
    {IBV_WR_RDMA_READ, REGION, 1, DENIED},     {IBV_WR_RDMA_READ, 0, REGION + 1, DENIED},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, -8, 8, OK_}, {IBV_WR_ATOMIC_FETCH_AND_ADD, REGION, 8, DENIED},
    {IBV_WR_ATOMIC_CMP_AND_SWP, -8, 8, OK_},   {IBV_WR_ATOMIC_CMP_AND_SWP, REGION, 8, DENIED},
    {IBV_WR_RDMA_WRITE, REGION, 0, OK_},       {IBV_WR_RDMA_READ, REGION, 0, OK_},
};

static void reach(struct t *t, long arg)
{
    const struct reach *r = &reaches[arg];
    struct pair p;

    PAIR(t, &p, .len = REGION * 4);
    /* b's region lies in the middle of its buffer: what is around it is mapped, and must still not be
     * reached. */
    struct ibv_mr *mr = mr_new(t, p.pd, p.b.buf + REGION, REGION, ALL_ACCESS);
    long off = r->off == -100000 ? -1 : r->off < 0 ? REGION + r->off : r->off;
    struct ibv_sge sge = sge_at(&p.a, 0, r->len);
    struct ibv_send_wr wr = wr_rdma(r->op, 1, r->len ? &sge : NULL, &p.b, (size_t)(REGION + off));

    fill(p.a.buf, REGION + 8, 3);
    fill(p.b.buf, REGION * 4, 90);
    if (r->op == IBV_WR_ATOMIC_CMP_AND_SWP || r->op == IBV_WR_ATOMIC_FETCH_AND_ADD)
        wr.wr.atomic.rkey = mr->rkey;
    else
        wr.wr.rdma.rkey = mr->rkey;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, r->status);
    want_filled(t, p.b.buf, REGION, 90);
    if (r->status != IBV_WC_SUCCESS && r->op != IBV_WR_RDMA_WRITE)
        want_filled(t, p.a.buf, REGION, 3);
}

/* A message that is refused is refused as a whole: not one byte is written, even if the message has several packets. */
static void nothing_lands(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    struct ibv_mr *mr = mr_new(t, p.pd, p.b.buf, 16384, ALL_ACCESS);
    struct ibv_sge sge = sge_at(&p.a, 0, 16385);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 0);
    fill(p.a.buf, 16385, 1);
    fill(p.b.buf, 16385, 2);
    wr.wr.rdma.rkey = mr->rkey;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_REM_ACCESS_ERR);
    want_filled(t, p.b.buf, 16385, 2);
}

struct right {
    enum ibv_wr_opcode op;
    int mr;      /* access of the region */
    unsigned qp; /* access of the QP */
    enum ibv_wc_status status;
};

#define L IBV_ACCESS_LOCAL_WRITE
#define W IBV_ACCESS_REMOTE_WRITE
#define R IBV_ACCESS_REMOTE_READ
#define A IBV_ACCESS_REMOTE_ATOMIC

static const struct right rights[] = {
    {IBV_WR_RDMA_WRITE, L | W, W, OK_},
    {IBV_WR_RDMA_WRITE, L | R, W | R | A, DENIED},
    {IBV_WR_RDMA_WRITE, L | W, R, NOT_SET_UP},
    {IBV_WR_RDMA_READ, R, R, OK_},
    {IBV_WR_RDMA_READ, L | W, W | R | A, DENIED},
    {IBV_WR_RDMA_READ, L | R, W, NOT_SET_UP},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, L | A, A, OK_},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, L | W | R, W | R | A, DENIED},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, L | A, W | R, NOT_SET_UP},
    {IBV_WR_RDMA_WRITE_WITH_IMM, L | R, W | R, DENIED},
};

static void right(struct t *t, long arg)
{
    const struct right *r = &rights[arg];
    struct pair p;

    PAIR(t, &p, .b_access = r->mr, .qp_access = r->qp);
    recv_ok(t, &p.b, 2, 4096, 8);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(r->op, 1, &sge, &p.b, 0);
    fill(p.b.buf, 8, 60);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, r->status);
    if (r->status != IBV_WC_SUCCESS)
        want_filled(t, p.b.buf, 8, 60);
}

enum stale { STALE_RKEY, STALE_LKEY, STALE_RECV_LKEY, WRONG_RKEY, WRONG_LKEY, WRONG_RECV_LKEY };

static void key(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p);
    struct ibv_mr *extra = mr_new(t, p.pd, arg == STALE_LKEY ? p.a.buf : p.b.buf, 4096, ALL_ACCESS);
    uint32_t lkey = extra->lkey, rkey = extra->rkey;
    if (arg <= STALE_RECV_LKEY) {
        drop(t, extra);
    } else {
        lkey ^= 0x00555500;
        rkey ^= 0x00555500;
    }
    struct ibv_sge sge = sge_at(&p.a, 0, 8), rsge = sge_at(&p.b, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 0);
    switch (arg) {
    case STALE_RKEY:
    case WRONG_RKEY:
        wr.wr.rdma.rkey = rkey;
        send_ok(t, p.a.qp, &wr);
        wait_for(t, p.a.scq, 1, IBV_WC_REM_ACCESS_ERR);
        break;
    case STALE_LKEY:
    case WRONG_LKEY:
        sge.lkey = lkey;
        send_ok(t, p.a.qp, &wr);
        wait_for(t, p.a.scq, 1, IBV_WC_LOC_PROT_ERR);
        break;
    default:
        rsge.lkey = lkey;
        want_ok(t, post_recv(p.b.qp, 2, &rsge, 1));
        wr.opcode = IBV_WR_SEND;
        send_ok(t, p.a.qp, &wr);
        wait_for(t, p.b.rcq, 2, IBV_WC_LOC_PROT_ERR);
        wait_for(t, p.a.scq, 1, IBV_WC_REM_OP_ERR);
    }
}

enum local { L_SEND_BEYOND, L_WRITE_BEYOND, L_READ_BEYOND, L_READ_NO_WRITE, L_ATOMIC_NO_WRITE, L_SEND_READ_ONLY, L_SECOND_SGE };

static void local(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p, .access = arg == L_READ_NO_WRITE || arg == L_ATOMIC_NO_WRITE || arg == L_SEND_READ_ONLY ? IBV_ACCESS_REMOTE_READ : 0,
         .b_access = ALL_ACCESS);
    recv_ok(t, &p.b, 2, 0, 64);
    struct ibv_sge sge[2] = {sge_at(&p.a, 65536 - 7, 8), sge_at(&p.a, 0, 8)};
    struct ibv_send_wr wr;
    if (arg == L_READ_NO_WRITE || arg == L_ATOMIC_NO_WRITE || arg == L_SEND_READ_ONLY)
        sge[0] = sge_at(&p.a, 0, 8);
    switch (arg) {
    case L_SEND_READ_ONLY: /* sending only reads: no access flag is needed */
        wr = wr_of(IBV_WR_SEND, 1, sge);
        send_ok(t, p.a.qp, &wr);
        wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
        return;
    case L_SEND_BEYOND: wr = wr_of(IBV_WR_SEND, 1, sge); break;
    case L_SECOND_SGE:
        sge[1] = sge[0];
        sge[0] = sge_at(&p.a, 0, 8);
        wr = wr_of(IBV_WR_SEND, 1, sge);
        wr.num_sge = 2;
        break;
    case L_WRITE_BEYOND: wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, sge, &p.b, 0); break;
    case L_ATOMIC_NO_WRITE: wr = wr_rdma(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, sge, &p.b, 0); break;
    default: wr = wr_rdma(IBV_WR_RDMA_READ, 1, sge, &p.b, 0);
    }
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_LOC_PROT_ERR);
    wait_state(t, p.a.qp, IBV_QPS_ERR);
}

static void recv_beyond(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p, .b_access = arg ? IBV_ACCESS_REMOTE_READ : 0);
    recv_ok(t, &p.b, 2, arg ? 0 : 65536 - 4, 8);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.b.rcq, 2, IBV_WC_LOC_PROT_ERR);
    wait_for(t, p.a.scq, 1, IBV_WC_REM_OP_ERR);
    wait_state(t, p.b.qp, IBV_QPS_ERR);
}

static void other_pd(struct t *t, long arg)
{
    struct pair p;
    struct ibv_pd *other = pd_new(t);

    PAIR(t, &p);
    struct ibv_mr *mr = mr_new(t, other, arg == 0 ? p.b.buf : p.a.buf, 4096, ALL_ACCESS);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 0);
    if (arg == 0)
        wr.wr.rdma.rkey = mr->rkey;
    else
        sge.lkey = mr->lkey;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, arg == 0 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR);
}

/* A region whose addresses for remote access were chosen by the caller (iova). */
static void iova(struct t *t, long arg)
{
    struct pair p;
    const uint64_t base = 0x100000;

    PAIR(t, &p);
    struct ibv_mr *mr = ibv_reg_mr_iova(p.pd, p.b.buf, 8192, base, (unsigned)ALL_ACCESS);
    want(t, mr != NULL);
    struct ibv_sge sge = sge_at(&p.a, 0, 16);
    struct ibv_send_wr wr = wr_of(IBV_WR_RDMA_WRITE, 1, &sge);
    wr.wr.rdma.remote_addr = arg == 0 ? base + 100 : arg == 1 ? base + 8192 - 15 : (uintptr_t)p.b.buf;
    wr.wr.rdma.rkey = mr->rkey;
    fill(p.a.buf, 16, 8);
    send_ok(t, p.a.qp, &wr);
    struct ibv_wc wc = wait_wc(t, p.a.scq);
    int ret = ibv_dereg_mr(mr);
    want_eq(t, wc.status, arg == 0 ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
    want_eq(t, ret, 0);
    if (arg == 0)
        want_filled(t, p.b.buf + 100, 16, 8);
}

/* Local elements use the iova, too. */
static void iova_local(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    struct ibv_mr *mr = ibv_reg_mr_iova(p.pd, p.a.buf, 8192, 0, (unsigned)ALL_ACCESS);
    want(t, mr != NULL);
    fill(p.a.buf, 64, 8);
    struct ibv_sge sge = {.addr = 32, .length = 16, .lkey = mr->lkey};
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 0);
    send_ok(t, p.a.qp, &wr);
    struct ibv_wc wc = wait_wc(t, p.a.scq);
    want_ok(t, ibv_dereg_mr(mr));
    want_eq(t, wc.status, IBV_WC_SUCCESS);
    want_eq(t, memcmp(p.b.buf, p.a.buf + 32, 16), 0);
}

/* A peer that writes to a region after it was deregistered gets a remote access error. */
static void dereg_in_flight(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    struct ibv_mr *mr = mr_new(t, p.pd, p.b.buf, 4096, ALL_ACCESS);
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &p.b, 0);
    wr.wr.rdma.rkey = mr->rkey;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    drop(t, mr);
    wr.wr_id = 2;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 2, IBV_WC_REM_ACCESS_ERR);
}

/* A request without data accesses no memory, so its key is not checked. */
static void zero_bad_rkey(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p);
    struct ibv_send_wr wr = wr_rdma((enum ibv_wr_opcode)arg, 1, NULL, &p.b, 0);
    wr.wr.rdma.rkey ^= 0x00777700;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
}

const struct check access_checks[] = {
    {"access.write.whole_region", reach, 0, 0},
    {"access.write.last_byte", reach, 1, 0},
    {"access.write.last_byte_and_one", reach, 2, 0},
    {"access.write.byte_before", reach, 3, 0},
    {"access.write.byte_beyond", reach, 4, 0},
    {"access.write.region_and_one", reach, 5, 0},
    {"access.read.whole_region", reach, 6, 0},
    {"access.read.last_byte", reach, 7, 0},
    {"access.read.last_byte_and_one", reach, 8, 0},
    {"access.read.byte_before", reach, 9, 0},
    {"access.read.byte_beyond", reach, 10, 0},
    {"access.read.region_and_one", reach, 11, 0},
    {"access.fetch_add.last_word", reach, 12, NEED_ATOMIC},
    {"access.fetch_add.word_beyond", reach, 13, NEED_ATOMIC},
    {"access.compare_swap.last_word", reach, 14, NEED_ATOMIC},
    {"access.compare_swap.word_beyond", reach, 15, NEED_ATOMIC},
    {"access.write.zero_at_end", reach, 16, 0},
    {"access.read.zero_at_end", reach, 17, 0},
    {"access.write.nothing_lands", nothing_lands, 0, 0},
    {"access.write.allowed", right, 0, 0},
    {"access.write.region_forbids", right, 1, 0},
    {"access.write.qp_forbids", right, 2, 0},
    {"access.read.allowed", right, 3, 0},
    {"access.read.region_forbids", right, 4, 0},
    {"access.read.qp_forbids", right, 5, 0},
    {"access.fetch_add.allowed", right, 6, NEED_ATOMIC},
    {"access.fetch_add.region_forbids", right, 7, NEED_ATOMIC},
    {"access.fetch_add.qp_forbids", right, 8, NEED_ATOMIC},
    {"access.write_imm.region_forbids", right, 9, 0},
    {"access.key.stale_rkey", key, STALE_RKEY, 0},
    {"access.key.stale_lkey", key, STALE_LKEY, 0},
    {"access.key.stale_recv_lkey", key, STALE_RECV_LKEY, 0},
    {"access.key.wrong_rkey", key, WRONG_RKEY, 0},
    {"access.key.wrong_lkey", key, WRONG_LKEY, 0},
    {"access.key.wrong_recv_lkey", key, WRONG_RECV_LKEY, 0},
    {"access.local.send_beyond", local, L_SEND_BEYOND, 0},
    {"access.local.write_beyond", local, L_WRITE_BEYOND, 0},
    {"access.local.read_beyond", local, L_READ_BEYOND, 0},
    {"access.local.read_into_read_only", local, L_READ_NO_WRITE, 0},
    {"access.local.atomic_into_read_only", local, L_ATOMIC_NO_WRITE, NEED_ATOMIC},
    {"access.local.send_from_read_only", local, L_SEND_READ_ONLY, 0},
    {"access.local.second_element_beyond", local, L_SECOND_SGE, NEED_SGE4},
    {"access.local.recv_beyond", recv_beyond, 0, 0},
    {"access.local.recv_into_read_only", recv_beyond, 1, 0},
    {"access.pd.rkey_of_other", other_pd, 0, 0},
    {"access.pd.lkey_of_other", other_pd, 1, 0},
    {"access.iova.inside", iova, 0, 0},
    {"access.iova.last_byte_and_one", iova, 1, 0},
    {"access.iova.not_the_address", iova, 2, 0},
    {"access.iova.local", iova_local, 0, 0},
    {"access.key.after_dereg", dereg_in_flight, 0, 0},
    {"access.write.zero_wrong_rkey", zero_bad_rkey, IBV_WR_RDMA_WRITE, 0},
    {"access.read.zero_wrong_rkey", zero_bad_rkey, IBV_WR_RDMA_READ, 0},
    {0},
};
