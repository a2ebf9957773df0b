/* SPDX-License-Identifier: MIT
 *
 * Checks of the reliable connection without errors: every operation, lengths, elements, order.
 */
#include <arpa/inet.h>

#include "conf.h"

#define MIB (1u << 20)

/* One operation of one length between two buffers; checks its data byte by byte, and that the bytes beside it have not changed. */
static void move(struct t *t, enum ibv_wr_opcode op, uint32_t len)
{
    struct pair p;
    const size_t edge = 64;

    PAIR(t, &p, .len = len + 2 * edge);
    fill(p.a.buf, len + 2 * edge, 1);
    fill(p.b.buf, len + 2 * edge, 2);
    recv_ok(t, &p.b, 2, edge, len);
    struct ibv_sge sge = sge_at(&p.a, edge, len);
    struct ibv_send_wr wr = wr_rdma(op, 1, &sge, &p.b, edge);
    wr.imm_data = htonl(77);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    if (op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM) {
        struct ibv_wc wc = wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS);
        want_eq(t, wc.byte_len, len);
    }
    bool read = op == IBV_WR_RDMA_READ;
    char *to = read ? p.a.buf : p.b.buf, *from = read ? p.b.buf : p.a.buf;
    unsigned was = read ? 1 : 2;
    want(t, memcmp(to + edge, from + edge, len) == 0);
    want_filled(t, to, edge, was);
    fill(from, len + 2 * edge, was); /* the bytes behind the target before the operation, by the same pattern */
    want(t, memcmp(to + edge + len, from + edge + len, edge) == 0);
}

#define MOVE(op, len) ((long)(op) << 32 | (len))

static void moved(struct t *t, long arg)
{
    move(t, (enum ibv_wr_opcode)(arg >> 32), (uint32_t)arg);
}

static void shorter(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    fill(p.a.buf, 100, 4);
    fill(p.b.buf, 1000, 8);
    recv_ok(t, &p.b, 2, 0, 1000);
    struct ibv_sge sge = sge_at(&p.a, 0, 100);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    send_ok(t, p.a.qp, &wr);
    want_eq(t, wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS).byte_len, 100);
    want_filled(t, p.b.buf, 100, 4);
    fill(p.a.buf, 1000, 8);
    want(t, memcmp(p.a.buf + 100, p.b.buf + 100, 900) == 0);
}

/* A message of several elements is their bytes in order, independent of the other side's elements. */
static void elements(struct t *t, long arg)
{
    enum ibv_wr_opcode op = (enum ibv_wr_opcode)arg;
    struct pair p;
    static const uint32_t from[4] = {1, 1500, 0, 499}, into[4] = {700, 3, 1000, 297};
    char flat[2000];
    size_t at = 0;

    PAIR(t, &p);
    struct ibv_sge a[4], b[4];
    for (size_t i = 0; i < 4; i++) {
        a[i] = sge_at(&p.a, i * 5000, from[i]);
        b[i] = sge_at(&p.b, i * 3000, into[i]);
    }
    fill(flat, sizeof flat, 21);
    struct ibv_send_wr wr = wr_rdma(op, 1, a, &p.b, 20000);
    wr.num_sge = 4;
    if (op == IBV_WR_RDMA_READ) {
        memcpy(p.b.buf + 20000, flat, sizeof flat);
    } else {
        for (size_t i = 0; i < 4; at += from[i++])
            memcpy(p.a.buf + i * 5000, flat + at, from[i]);
    }
    if (op == IBV_WR_SEND)
        want_ok(t, post_recv(p.b.qp, 2, b, 4));
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    at = 0;
    if (op == IBV_WR_SEND) {
        want_eq(t, wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS).byte_len, 2000);
        for (size_t i = 0; i < 4; at += into[i++])
            want_eq(t, memcmp(p.b.buf + i * 3000, flat + at, into[i]), 0);
    } else if (op == IBV_WR_RDMA_READ) {
        for (size_t i = 0; i < 4; at += from[i++])
            want_eq(t, memcmp(p.a.buf + i * 5000, flat + at, from[i]), 0);
    } else {
        want_eq(t, memcmp(p.b.buf + 20000, flat, sizeof flat), 0);
    }
}

/* Elements may lie in different regions. */
static void two_regions(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    char *other = mem_new(t, 4096);
    struct ibv_mr *mr = mr_new(t, p.pd, other, 4096, 0);
    fill(p.a.buf, 10, 1);
    fill(other, 20, 2);
    struct ibv_sge sge[2] = {sge_at(&p.a, 0, 10), {(uintptr_t)other, 20, mr->lkey}};
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, sge, &p.b, 0);
    wr.num_sge = 2;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    want_filled(t, p.b.buf, 10, 1);
    want_filled(t, p.b.buf + 10, 20, 2);
}

static void no_elements(struct t *t, long arg)
{
    enum ibv_wr_opcode op = (enum ibv_wr_opcode)arg;
    struct pair p;
    bool receives = op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM;

    PAIR(t, &p);
    if (receives)
        want_ok(t, post_recv(p.b.qp, 2, NULL, 0));
    struct ibv_send_wr wr = wr_rdma(op, 1, NULL, &p.b, 0);
    wr.imm_data = htonl(5);
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    if (receives) {
        struct ibv_wc wc = wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS);
        want_eq(t, wc.byte_len, 0);
        if (op != IBV_WR_SEND)
            want_eq(t, ntohl(wc.imm_data), 5);
    }
}

/* A write with immediate data consumes a receive, but does not write to the receive's memory. */
static void imm_takes_receive(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    fill(p.b.buf, 64, 3);
    recv_ok(t, &p.b, 2, 0, 64);
    recv_ok(t, &p.b, 3, 64, 64);
    fill(p.a.buf, 4096, 9);
    struct ibv_sge sge = sge_at(&p.a, 0, 4096);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 1, &sge, &p.b, 8192);
    send_ok(t, p.a.qp, &wr);
    want_eq(t, wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS).byte_len, 4096);
    want_filled(t, p.b.buf, 64, 3);
    want_filled(t, p.b.buf + 8192, 4096, 9);
    wr = wr_of(IBV_WR_SEND, 4, &sge);
    sge.length = 10;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.b.rcq, 3, IBV_WC_SUCCESS);
}

/* ---- Inline */

static void inline_data(struct t *t, long arg)
{
    enum ibv_wr_opcode op = (enum ibv_wr_opcode)(arg & 255);
    struct pair p;
    char local[64]; /* in no region, because the key of inline data is not checked */

    PAIR(t, &p);
    fill(local, sizeof local, 17);
    recv_ok(t, &p.b, 2, 0, 64);
    struct ibv_sge sge[2] = {{(uintptr_t)local, arg >> 8 ? 40 : 64, 0xdeadbeef}, {(uintptr_t)local + 40, 24, 0}};
    struct ibv_send_wr wr = wr_rdma(op, 1, sge, &p.b, 0);
    wr.num_sge = arg >> 8 ? 2 : 1;
    wr.send_flags |= IBV_SEND_INLINE;
    send_ok(t, p.a.qp, &wr);
    memset(local, 0, sizeof local); /* it may be used again at once */
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    if (op == IBV_WR_SEND)
        want_eq(t, wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS).byte_len, 64);
    want_filled(t, p.b.buf, 64, 17);
}

static void inline_too_long(struct t *t, long arg)
{
    struct pair p;
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    PAIR(t, &p, .len = MIB);
    want_ok(t, ibv_query_qp(p.a.qp, &attr, IBV_QP_CAP, &init));
    recv_ok(t, &p.b, 2, 0, MIB);
    struct ibv_sge sge = sge_at(&p.a, 0, init.cap.max_inline_data + (uint32_t)arg);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    wr.send_flags |= IBV_SEND_INLINE;
    if (arg) {
        want_ret(t, post_send(p.a.qp, &wr), EINVAL);
    } else {
        send_ok(t, p.a.qp, &wr);
        wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS);
    }
}

/* ---- Atomics */

static uint64_t *word(struct end *e, size_t off)
{
    return (uint64_t *)(void *)(e->buf + off);
}

static void fetch_add(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    *word(&p.b, 16) = UINT64_MAX - 1;
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    for (uint64_t i = 0; i < 3; i++) {
        struct ibv_send_wr wr = wr_rdma(IBV_WR_ATOMIC_FETCH_AND_ADD, i, &sge, &p.b, 16);

        wr.wr.atomic.compare_add = 5;
        send_ok(t, p.a.qp, &wr);
        wait_for(t, p.a.scq, i, IBV_WC_SUCCESS);
        want_eq(t, *word(&p.a, 0), (int64_t)(UINT64_MAX - 1 + 5 * i));
    }
    want_eq(t, *word(&p.b, 16), 13);
    want_eq(t, *word(&p.b, 8) | *word(&p.b, 24), 0);
}

static void compare_swap(struct t *t, long arg)
{
    struct pair p;

    PAIR(t, &p);
    *word(&p.b, 16) = 0x1122334455667788;
    struct ibv_sge sge = sge_at(&p.a, 0, 8);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_ATOMIC_CMP_AND_SWP, 1, &sge, &p.b, 16);
    wr.wr.atomic.compare_add = arg ? 0x1122334455667788 : 0x1122334455667789;
    wr.wr.atomic.swap = 0x99;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    want_eq(t, *word(&p.a, 0), 0x1122334455667788);
    want_eq(t, *word(&p.b, 16), arg ? 0x99 : 0x1122334455667788);
}

/* The former value that an atomic returns may be scattered to several elements. */
static void atomic_two_elements(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    *word(&p.b, 0) = 0x1122334455667788;
    struct ibv_sge sge[2] = {sge_at(&p.a, 0, 3), sge_at(&p.a, 100, 5)};
    struct ibv_send_wr wr = wr_rdma(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, sge, &p.b, 0);
    wr.num_sge = 2;
    send_ok(t, p.a.qp, &wr);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
    want_eq(t, memcmp(p.a.buf, p.b.buf, 3), 0);
    want_eq(t, memcmp(p.a.buf + 100, p.b.buf + 3, 5), 0);
}

/* ---- Order */

/* Writes are executed in the order in which they were posted; a send behind them is received after all of them. */
static void write_then_send(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    for (int round = 0; round < 20; round++) {
        recv_ok(t, &p.b, 9, 60000, 64);
        *word(&p.a, 0) = (uint64_t)round + 1;
        memset(p.a.buf + 8, round + 1, 32768);
        struct ibv_sge big = sge_at(&p.a, 8, 32768), flag = sge_at(&p.a, 0, 8);
        struct ibv_send_wr send = wr_of(IBV_WR_SEND, 3, NULL);
        struct ibv_send_wr second = wr_rdma(IBV_WR_RDMA_WRITE, 2, &flag, &p.b, 40000);
        struct ibv_send_wr first = wr_rdma(IBV_WR_RDMA_WRITE, 1, &big, &p.b, 0);
        second.next = &send;
        first.next = &second;
        send_ok(t, p.a.qp, &first);
        wait_for(t, p.b.rcq, 9, IBV_WC_SUCCESS);
        want_eq(t, p.b.buf[0], round + 1);
        want_eq(t, p.b.buf[32767], round + 1);
        want_eq(t, *word(&p.b, 40000), round + 1);
        for (uint64_t i = 1; i <= 3; i++)
            wait_for(t, p.a.scq, i, IBV_WC_SUCCESS);
    }
}

/* A read behind a write to the same place returns the written bytes; a write with a fence behind a read can send the bytes that were read.
 */
static void fence(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    fill(p.a.buf, 4096, 1);
    struct ibv_sge out = sge_at(&p.a, 0, 4096), in = sge_at(&p.a, 8192, 4096);
    struct ibv_send_wr third = wr_rdma(IBV_WR_RDMA_WRITE, 3, &in, &p.b, 8192);
    struct ibv_send_wr second = wr_rdma(IBV_WR_RDMA_READ, 2, &in, &p.b, 0);
    struct ibv_send_wr first = wr_rdma(IBV_WR_RDMA_WRITE, 1, &out, &p.b, 0);
    third.send_flags |= IBV_SEND_FENCE;
    second.next = &third;
    first.next = &second;
    send_ok(t, p.a.qp, &first);
    for (uint64_t i = 1; i <= 3; i++)
        wait_for(t, p.a.scq, i, IBV_WC_SUCCESS);
    want_filled(t, p.a.buf + 8192, 4096, 1);
    want_filled(t, p.b.buf + 8192, 4096, 1);
}

static void many_reads(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p); /* max_rd_atomic is 1, so only one read is under way and the others wait */
    fill(p.b.buf, 16 * 256, 6);
    for (uint64_t i = 0; i < 16; i++) {
        struct ibv_sge sge = sge_at(&p.a, i * 256, 256);
        struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_READ, i, &sge, &p.b, i * 256);

        send_ok(t, p.a.qp, &wr);
    }
    for (uint64_t i = 0; i < 16; i++)
        wait_for(t, p.a.scq, i, IBV_WC_SUCCESS);
    want_filled(t, p.a.buf, 16 * 256, 6);
}

static void both_ways(struct t *t, long arg)
{
    struct pair p;

    (void)arg;
    PAIR(t, &p);
    for (uint64_t i = 0; i < 50; i++) {
        recv_ok(t, &p.a, 1, 0, 64);
        recv_ok(t, &p.b, 2, 0, 64);
        struct ibv_sge as = sge_at(&p.a, 128, 64), bs = sge_at(&p.b, 128, 64);
        struct ibv_send_wr aw = wr_of(IBV_WR_SEND, 3, &as), bw = wr_of(IBV_WR_SEND, 4, &bs);
        fill(p.a.buf + 128, 64, (unsigned)i);
        fill(p.b.buf + 128, 64, (unsigned)i + 100);
        send_ok(t, p.a.qp, &aw);
        send_ok(t, p.b.qp, &bw);
        wait_for(t, p.a.rcq, 1, IBV_WC_SUCCESS);
        wait_for(t, p.b.rcq, 2, IBV_WC_SUCCESS);
        want_filled(t, p.a.buf, 64, (unsigned)i + 100);
        want_filled(t, p.b.buf, 64, (unsigned)i);
        wait_for(t, p.a.scq, 3, IBV_WC_SUCCESS);
        wait_for(t, p.b.scq, 4, IBV_WC_SUCCESS);
    }
}

static void itself(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct end e = {.buf = mem_new(t, 4096)};

    (void)arg;
    e.mr = mr_new(t, pd, e.buf, 4096, ALL_ACCESS);
    e.scq = e.rcq = cq_new(t, 16, NULL);
    e.qp = qp_simple(t, pd, e.scq, IBV_QPT_RC);
    to_init(t, e.qp);
    to_rtr(t, e.qp, e.qp->qp_num);
    to_rts(t, e.qp);
    fill(e.buf, 100, 3);
    struct ibv_sge sge = sge_at(&e, 0, 100);
    struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, &sge, &e, 1000);
    send_ok(t, e.qp, &wr);
    wait_for(t, e.scq, 1, IBV_WC_SUCCESS);
    want_filled(t, e.buf + 1000, 100, 3);
}

#define MOVES(name, op)                                                                                                \
    {"rc." name ".one_byte", moved, MOVE(op, 1), 0}, {"rc." name ".mtu", moved, MOVE(op, 1024), 0},                    \
        {"rc." name ".mtu_and_one", moved, MOVE(op, 1025), 0}, {"rc." name ".several_mtu", moved, MOVE(op, 10000), 0}, \
    {                                                                                                                  \
        "rc." name ".mib", moved, MOVE(op, MIB), 0                                                                     \
    }

const struct check rc_checks[] = {
    MOVES("send", IBV_WR_SEND),
    MOVES("send_imm", IBV_WR_SEND_WITH_IMM),
    MOVES("write", IBV_WR_RDMA_WRITE),
    MOVES("write_imm", IBV_WR_RDMA_WRITE_WITH_IMM),
    MOVES("read", IBV_WR_RDMA_READ),
    {"rc.send.shorter_than_receive", shorter, 0, 0},
    {"rc.send.elements", elements, IBV_WR_SEND, NEED_SGE4},
    {"rc.write.elements", elements, IBV_WR_RDMA_WRITE, NEED_SGE4},
    {"rc.read.elements", elements, IBV_WR_RDMA_READ, NEED_SGE4},
    {"rc.write.two_regions", two_regions, 0, NEED_SGE4},
    {"rc.send.zero", no_elements, IBV_WR_SEND, 0},
    {"rc.send_imm.zero", no_elements, IBV_WR_SEND_WITH_IMM, 0},
    {"rc.write.zero", no_elements, IBV_WR_RDMA_WRITE, 0},
    {"rc.write_imm.zero", no_elements, IBV_WR_RDMA_WRITE_WITH_IMM, 0},
    {"rc.read.zero", no_elements, IBV_WR_RDMA_READ, 0},
    {"rc.write_imm.takes_receive", imm_takes_receive, 0, 0},
    {"rc.send.inline", inline_data, IBV_WR_SEND, NEED_INLINE},
    {"rc.write.inline", inline_data, IBV_WR_RDMA_WRITE, NEED_INLINE},
    {"rc.send.inline_elements", inline_data, 1 << 8 | IBV_WR_SEND, NEED_INLINE | NEED_SGE4},
    {"rc.send.inline_longest", inline_too_long, 0, NEED_INLINE},
    {"rc.send.inline_too_long", inline_too_long, 1, 0},
    {"rc.fetch_add", fetch_add, 0, NEED_ATOMIC},
    {"rc.compare_swap.equal", compare_swap, 1, NEED_ATOMIC},
    {"rc.compare_swap.different", compare_swap, 0, NEED_ATOMIC},
    {"rc.fetch_add.elements", atomic_two_elements, 0, NEED_ATOMIC | NEED_SGE4},
    {"rc.order.write_then_send", write_then_send, 0, 0},
    {"rc.order.fence", fence, 0, 0},
    {"rc.order.many_reads", many_reads, 0, 0},
    {"rc.both_ways", both_ways, 0, 0},
    {"rc.itself", itself, 0, 0},
    {0},
};
