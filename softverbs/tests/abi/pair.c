/* SPDX-License-Identifier: MIT
 *
 * See pair.h.
 */
#include "pair.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static const uint8_t nothing[16];

/* Prefer an address that is not link-local, because a Mac's links may not reach link-local addresses. */
static int choose_gid(struct pair *pair)
{
    int chosen = -1;

    for (int i = 0; i < 8; i++) {
        union ibv_gid gid;

        if (pair->verbs.query_gid(pair->context, 1, i, &gid) || !memcmp(gid.raw, nothing, sizeof nothing))
            continue;
        if (chosen < 0 || (pair->gid.raw[0] == 0xfe && gid.raw[0] != 0xfe)) {
            chosen = i;
            pair->gid = gid;
        }
    }
    return chosen;
}

void pair_open(struct pair *pair)
{
    struct verbs_table *verbs = &pair->verbs;
    int count = 0;
    struct ibv_device **list = verbs->get_device_list(&count);

    CHECK(list && count > 0, "%s", strerror(errno));
    pair->context = verbs->open_device(list[0]);
    CHECK(pair->context, "%s: %s", verbs->get_device_name(list[0]), strerror(errno));
    verbs->free_device_list(list);
    pair->gid_index = choose_gid(pair);
    CHECK(pair->gid_index >= 0, "no address");
    pair->pd = verbs->alloc_pd(pair->context);
    CHECK(pair->pd, "%s", strerror(errno));
    pair->cq = verbs->create_cq(pair->context, 4 * PAIR_DEPTH, NULL, NULL, 0);
    CHECK(pair->cq, "%s", strerror(errno));
    pair->memory = mmap(NULL, PAIR_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pair->memory != MAP_FAILED, "%s", strerror(errno));
    pair->mr = verbs->reg_mr(pair->pd, pair->memory, PAIR_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    CHECK(pair->mr, "%s", strerror(errno));
}

void pair_close(struct pair *pair)
{
    struct verbs_table *verbs = &pair->verbs;
    int error;

    CHECK(!(error = verbs->dereg_mr(pair->mr)), "%s", strerror(error));
    CHECK(!(error = verbs->destroy_cq(pair->cq)), "%s", strerror(error));
    CHECK(!(error = verbs->dealloc_pd(pair->pd)), "%s", strerror(error));
    CHECK(!(error = verbs->close_device(pair->context)), "%s", strerror(error));
    munmap(pair->memory, PAIR_BYTES);
}

static void modify(struct pair *pair, int i, struct ibv_qp_attr *attr, int mask)
{
    int error = pair->verbs.modify_qp(pair->qp[i], attr, mask);

    CHECK(!error, "to state %d: %s", attr->qp_state, strerror(error));
}

static void connect_one(struct pair *pair, int i, enum ibv_qp_type type)
{
    const int reliable = type == IBV_QPT_RC;
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = pair->access | IBV_ACCESS_REMOTE_WRITE | (reliable ? IBV_ACCESS_REMOTE_READ : 0u),
    };
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = pair->qp[!i]->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr =
            {
                .is_global = 1,
                .port_num = 1,
                .grh = {.dgid = pair->gid, .sgid_index = (uint8_t)pair->gid_index, .hop_limit = 1},
            },
    };
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = 1,
    };

    modify(pair, i, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    modify(pair, i, &rtr,
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
    modify(pair, i, &rts,
           IBV_QP_STATE | IBV_QP_SQ_PSN | (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
}

void pair_connect(struct pair *pair, enum ibv_qp_type type)
{
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr attr = {
            .send_cq = pair->cq,
            .recv_cq = pair->cq,
            .qp_type = type,
            .sq_sig_all = 1,
            .cap = {.max_send_wr = PAIR_DEPTH, .max_recv_wr = PAIR_DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
        };

        if (!pair->qp[i])
            pair->qp[i] = pair->verbs.create_qp(pair->pd, &attr);
        CHECK(pair->qp[i], "%s", strerror(errno));
    }
    for (int i = 0; i < 2; i++)
        connect_one(pair, i, type);
}

void pair_disconnect(struct pair *pair)
{
    for (int i = 0; i < 2; i++) {
        int error = pair->verbs.destroy_qp(pair->qp[i]);

        CHECK(!error, "%s", strerror(error));
        pair->qp[i] = NULL;
    }
}

void pair_fill(uint8_t *to, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1103515245u + 12345u;
        to[i] = (uint8_t)(seed >> 16);
    }
}

void pair_wait(struct pair *pair, int count, struct ibv_wc *receive)
{
    while (count) {
        struct ibv_wc wc;
        int got = ibv_poll_cq(pair->cq, 1, &wc);

        CHECK(got >= 0, "%d", got);
        if (!got)
            continue;
        CHECK(wc.status == IBV_WC_SUCCESS, "%s", pair->verbs.wc_status_str(wc.status));
        if (receive && wc.opcode & IBV_WC_RECV)
            *receive = wc;
        count--;
    }
}

void pair_send(struct pair *pair, uint32_t bytes)
{
    struct ibv_sge from = {.addr = (uintptr_t)pair->memory, .length = bytes, .lkey = pair->mr->lkey};
    struct ibv_sge to = {.addr = (uintptr_t)pair->memory + PAIR_HALF, .length = bytes, .lkey = pair->mr->lkey};
    struct ibv_recv_wr receive = {.wr_id = 7, .sg_list = &to, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.wr_id = 8, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    struct ibv_wc wc = {.status = IBV_WC_GENERAL_ERR};
    int error;

    pair_fill(pair->memory, bytes, bytes);
    memset(pair->memory + PAIR_HALF, 0, bytes);
    error = ibv_post_recv(pair->qp[1], &receive, &bad_receive);
    CHECK(!error, "%s", strerror(error));
    error = ibv_post_send(pair->qp[0], &send, &bad_send);
    CHECK(!error, "%s", strerror(error));
    pair_wait(pair, 2, &wc);
    CHECK(wc.wr_id == 7 && wc.byte_len == bytes && wc.qp_num == pair->qp[1]->qp_num, "id %llu, %u bytes, queue pair %#x",
          (unsigned long long)wc.wr_id, wc.byte_len, wc.qp_num);
    CHECK(!memcmp(pair->memory, pair->memory + PAIR_HALF, bytes), "%u bytes differ", bytes);
}

void pair_write(struct pair *pair, uint32_t bytes)
{
    struct ibv_sge from = {.addr = (uintptr_t)pair->memory, .length = bytes, .lkey = pair->mr->lkey};
    struct ibv_send_wr write =
                           {
                               .wr_id = 9,
                               .sg_list = &from,
                               .num_sge = 1,
                               .opcode = IBV_WR_RDMA_WRITE,
                               .wr.rdma = {.remote_addr = (uintptr_t)pair->memory + PAIR_HALF, .rkey = pair->mr->rkey},
                           },
                       *bad;
    int error;

    pair_fill(pair->memory, bytes, bytes + 1);
    memset(pair->memory + PAIR_HALF, 0, bytes);
    error = ibv_post_send(pair->qp[0], &write, &bad);
    CHECK(!error, "%s", strerror(error));
    pair_wait(pair, 1, NULL);
    CHECK(!memcmp(pair->memory, pair->memory + PAIR_HALF, bytes), "%u bytes differ", bytes);
}
