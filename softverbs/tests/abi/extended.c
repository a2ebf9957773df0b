/* SPDX-License-Identifier: MIT
 *
 * The extended interfaces: requests through ibv_wr_*, completions through ibv_start_poll, on a device that supports all of them. The
 * program is linked with the library.
 */
#include "pair.h"

#include <errno.h>
#include <string.h>

static struct ibv_cq_ex *cq;
static struct pair pair;

/* What the next completion should contain. */
struct expected {
    uint64_t id;
    enum ibv_wc_opcode opcode;
    uint32_t bytes;
    int has_imm;
    __be32 imm;
};

static void expect(const struct expected *list, int count)
{
    static uint64_t last;
    int error;

    for (int i = 0; i < count;) {
        struct ibv_poll_cq_attr attr = {.comp_mask = 0};

        error = ibv_start_poll(cq, &attr);
        if (error == ENOENT)
            continue;
        CHECK(!error, "%s", strerror(error));
        do {
            CHECK(i < count, "one more than %d", count);
            CHECK(cq->status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(cq->status));
            CHECK(cq->wr_id == list[i].id, "%llu, not %llu", (unsigned long long)cq->wr_id, (unsigned long long)list[i].id);
            CHECK(ibv_wc_read_opcode(cq) == list[i].opcode, "%d", ibv_wc_read_opcode(cq));
            CHECK(ibv_wc_read_qp_num(cq) == pair.qp[list[i].opcode >= IBV_WC_RECV]->qp_num, "%#x", ibv_wc_read_qp_num(cq));
            if (list[i].opcode >= IBV_WC_RECV)
                CHECK(ibv_wc_read_byte_len(cq) == list[i].bytes, "%u", ibv_wc_read_byte_len(cq));
            CHECK(!list[i].has_imm == !(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM), "%#x", ibv_wc_read_wc_flags(cq));
            if (list[i].has_imm)
                CHECK(ibv_wc_read_imm_data(cq) == list[i].imm, "%#x", ibv_wc_read_imm_data(cq));
            CHECK(ibv_wc_read_completion_ts(cq) >= last, "time runs backwards");
            last = ibv_wc_read_completion_ts(cq);
            i++;
            error = ibv_next_poll(cq);
        } while (!error);
        CHECK(error == ENOENT, "%s", strerror(error));
        ibv_end_poll(cq);
    }
}

static void receive(uint64_t id, uint32_t offset, uint32_t bytes)
{
    struct ibv_sge to = {.addr = (uintptr_t)pair.memory + PAIR_HALF + offset, .length = bytes, .lkey = pair.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &to, .num_sge = 1}, *bad;
    int error = ibv_post_recv(pair.qp[1], &wr, &bad);

    CHECK(!error, "%s", strerror(error));
}

static void post(struct ibv_qp_ex *qp)
{
    int error = ibv_wr_complete(qp);

    CHECK(!error, "%s", strerror(error));
}

static void make(enum ibv_qp_type type, uint64_t operations)
{
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr_ex attr = {
            .send_cq = pair.cq,
            .recv_cq = pair.cq,
            .qp_type = type,
            .sq_sig_all = 0,
            .pd = pair.pd,
            .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            .send_ops_flags = operations,
            .cap = {.max_send_wr = PAIR_DEPTH, .max_recv_wr = PAIR_DEPTH, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64},
        };

        pair.qp[i] = ibv_create_qp_ex(pair.context, &attr);
        CHECK(pair.qp[i], "%s", strerror(errno));
    }
    pair_connect(&pair, type);
}

/* One chain of four requests of different kinds, only the last signalled. */
static void chain(struct ibv_qp_ex *qp)
{
    const struct ibv_sge two[] = {{.addr = (uintptr_t)pair.memory, .length = 100, .lkey = pair.mr->lkey},
                                  {.addr = (uintptr_t)pair.memory + 200, .length = 50, .lkey = pair.mr->lkey}};
    const struct ibv_data_buf pieces[] = {{.addr = "plain ", .length = 6}, {.addr = "words", .length = 6}};
    char passing[] = "gone when it is posted";
    const uint64_t remote = (uintptr_t)pair.memory + PAIR_HALF;
    const struct expected all[] = {
        {.id = 21, .opcode = IBV_WC_RECV, .bytes = 150},
        {.id = 22, .opcode = IBV_WC_RECV, .bytes = 12, .has_imm = 1, .imm = htobe32(5)},
        {.id = 23, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .bytes = 300, .has_imm = 1, .imm = htobe32(6)},
        {.id = 14, .opcode = IBV_WC_RDMA_WRITE},
    };

    pair_fill(pair.memory, 4096, 1);
    memset(pair.memory + PAIR_HALF, 0, PAIR_HALF);
    receive(21, 0, 4096);
    receive(22, 4096, 4096);
    receive(23, 8192, 0);

    ibv_wr_start(qp);
    qp->wr_id = 11;
    qp->wr_flags = 0;
    ibv_wr_send(qp);
    ibv_wr_set_sge_list(qp, 2, two);
    qp->wr_id = 12;
    ibv_wr_send_imm(qp, htobe32(5));
    ibv_wr_set_inline_data_list(qp, 2, pieces);
    qp->wr_id = 13;
    ibv_wr_rdma_write(qp, pair.mr->rkey, remote + 16384);
    ibv_wr_set_inline_data(qp, passing, sizeof passing);
    memset(passing, 0, sizeof passing);
    qp->wr_id = 14;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write_imm(qp, pair.mr->rkey, remote + 20480, htobe32(6));
    ibv_wr_set_sge(qp, pair.mr->lkey, (uintptr_t)pair.memory, 300);
    post(qp);
    expect(all, 4);
    CHECK(!memcmp(pair.memory + PAIR_HALF, pair.memory, 100) && !memcmp(pair.memory + PAIR_HALF + 100, pair.memory + 200, 50),
          "two elements");
    CHECK(!memcmp(pair.memory + PAIR_HALF + 4096, "plain words", 12), "inline in two pieces");
    CHECK(!memcmp(pair.memory + PAIR_HALF + 16384, "gone when it is posted", 23), "inline");
    CHECK(!memcmp(pair.memory + PAIR_HALF + 20480, pair.memory, 300), "write");
}

static void read_and_atomics(struct ibv_qp_ex *qp)
{
    uint64_t *word = (uint64_t *)(void *)(pair.memory + PAIR_HALF), *result = (uint64_t *)(void *)pair.memory;
    const struct expected all[] = {
        {.id = 31, .opcode = IBV_WC_RDMA_READ}, {.id = 32, .opcode = IBV_WC_FETCH_ADD}, {.id = 33, .opcode = IBV_WC_COMP_SWAP}};

    word[0] = 40;
    word[1] = 77;
    ibv_wr_start(qp);
    qp->wr_flags = IBV_SEND_SIGNALED;
    qp->wr_id = 31;
    ibv_wr_rdma_read(qp, pair.mr->rkey, (uintptr_t)&word[1]);
    ibv_wr_set_sge(qp, pair.mr->lkey, (uintptr_t)&result[2], 8);
    qp->wr_id = 32;
    ibv_wr_atomic_fetch_add(qp, pair.mr->rkey, (uintptr_t)&word[0], 2);
    ibv_wr_set_sge(qp, pair.mr->lkey, (uintptr_t)&result[0], 8);
    qp->wr_id = 33;
    ibv_wr_atomic_cmp_swp(qp, pair.mr->rkey, (uintptr_t)&word[0], 42, 43);
    ibv_wr_set_sge(qp, pair.mr->lkey, (uintptr_t)&result[1], 8);
    post(qp);
    expect(all, 3);
    CHECK(result[2] == 77 && result[0] == 40 && result[1] == 42 && word[0] == 43, "%llu %llu %llu, word %llu",
          (unsigned long long)result[2], (unsigned long long)result[0], (unsigned long long)result[1], (unsigned long long)word[0]);
}

/* A batch is posted completely or not at all. Three batches that fail (a mistake in the middle, more requests than fit, an abort) leave no
 * completion. */
static void mistakes(struct ibv_qp_ex *qp)
{
    struct ibv_sge three[3] = {{.length = 0}};
    struct ibv_poll_cq_attr attr = {.comp_mask = 0};
    uint8_t large[4096] = {0};
    int error;

    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_start(qp);
    ibv_wr_rdma_write(qp, pair.mr->rkey, (uintptr_t)pair.memory);
    ibv_wr_rdma_write(qp, pair.mr->rkey, (uintptr_t)pair.memory);
    ibv_wr_set_sge_list(qp, 3, three);
    CHECK((error = ibv_wr_complete(qp)) == EINVAL, "three elements: %d", error);

    ibv_wr_start(qp);
    ibv_wr_rdma_write(qp, pair.mr->rkey, (uintptr_t)pair.memory);
    ibv_wr_set_inline_data(qp, large, sizeof large);
    CHECK((error = ibv_wr_complete(qp)) == EINVAL, "too much inline: %d", error);

    ibv_wr_start(qp);
    for (int i = 0; i < 100000; i++)
        ibv_wr_rdma_write(qp, pair.mr->rkey, (uintptr_t)pair.memory);
    CHECK((error = ibv_wr_complete(qp)) == ENOMEM, "more than fits: %d", error);

    ibv_wr_start(qp);
    ibv_wr_rdma_write(qp, pair.mr->rkey, (uintptr_t)pair.memory);
    ibv_wr_abort(qp);

    ibv_wr_start(qp);
    CHECK((error = ibv_wr_complete(qp)) == 0, "nothing: %d", error);
    CHECK((error = ibv_start_poll(cq, &attr)) == ENOENT, "a completion: %d", error);
}

int main(void)
{
    const uint64_t plain =
        IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    const uint64_t all = plain | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    struct ibv_cq_init_attr_ex attr = {
        .cqe = 4 * PAIR_DEPTH,
        .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    };

#define X(result, name, parameters) pair.verbs.name = ibv_##name;
    PAIR_FUNCTIONS(X)
#undef X
    pair_open(&pair);
    /* Replace the plain completion queue by an extended one, and the region by one that allows atomics. */
    CHECK(!ibv_destroy_cq(pair.cq) && !ibv_dereg_mr(pair.mr), "%s", strerror(errno));
    cq = ibv_create_cq_ex(pair.context, &attr);
    CHECK(cq, "%s", strerror(errno));
    pair.cq = ibv_cq_ex_to_cq(cq);
    pair.mr = ibv_reg_mr(pair.pd, pair.memory, PAIR_BYTES,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(pair.mr, "%s", strerror(errno));

    make(IBV_QPT_UC, plain);
    chain(ibv_qp_to_qp_ex(pair.qp[0]));
    mistakes(ibv_qp_to_qp_ex(pair.qp[0]));
    CHECK(!ibv_qp_to_qp_ex(pair.qp[0])->wr_rdma_read, "UC has no reads");
    pair_disconnect(&pair);
    pair.access = IBV_ACCESS_REMOTE_ATOMIC;
    make(IBV_QPT_RC, all);
    chain(ibv_qp_to_qp_ex(pair.qp[0]));
    read_and_atomics(ibv_qp_to_qp_ex(pair.qp[0]));
    mistakes(ibv_qp_to_qp_ex(pair.qp[0]));
    pair_disconnect(&pair);
    pair_close(&pair);
    return 0;
}
