/* SPDX-License-Identifier: MIT
 *
 * Another process overwrites a fabric while this one uses it. The input is a list of steps; each is a verb, or changes a word in the
 * tables, queues, counters or rings. The library may lose messages, fail calls, and report wrong completions. It must not crash, access
 * memory that is not its own, or loop for ever.
 *
 * Not changed are: locks, because a living holder is waited for; the table of processes, because its numbers lead to other programs; the
 * addresses of regions, because they allow writes anywhere, which every process of the fabric may do anyway; and the model, which is mapped
 * read-only.
 */
#include "../../lib/lib.h"
#include "../ground.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ENTRIES = 8, RING_PAGES = 64, QPS = 3, BUFFER = 4096, MTU = 1024 };

static struct {
    const uint8_t *at, *end;
} input;

static uint8_t byte(void)
{
    return input.at < input.end ? *input.at++ : 0;
}

static uint64_t word(void)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v = v << 8 | byte();
    return v;
}

/* ---- What a program has ---------------------------------------------------------------------------------------- */
static struct ibv_device *device;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq[2];
static struct ibv_srq *srq;
static struct ibv_qp *qp[QPS]; /* two connected ones, and one for datagrams */
static struct ibv_ah *ah;
static union ibv_gid gid;
static uint8_t buffer[BUFFER];

static void need(bool there)
{
    if (!there) {
        perror("fuzz_fabric: a verb fails on a fabric that was not overwritten");
        abort();
    }
}

static void start(void)
{
    static struct ground ground;
    const char *const words[] = {"switch", "1"};
    char path[300];
    int count;

    sv_level = 0; /* the library would print very many messages */
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1); /* queues are made and destroyed often, which is slow on a disk */
    need(ground_plan(&ground, "generic", 2, words) == 0 && ground_make(&ground, 0) == 0);
    struct ibv_device **list = ibv_get_device_list(&count);
    need(list && count == 1);
    device = list[0];
    ibv_free_device_list(list);
    /* Remove the fabric, however this process ends. */
    snprintf(path, sizeof path, "%s/test", ground.directory);
    need(unlink(path) == 0 && rmdir(ground.directory) == 0);
}

static int step_to(int i, enum ibv_qp_state state)
{
    bool ud = i == 2;
    struct ibv_qp_attr a = {
        .qp_state = state,
        .port_num = 1,
        .qkey = 17,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = qp[!i]->qp_num,
        .max_rd_atomic = 4,
        .max_dest_rd_atomic = 4,
        .timeout = 1,
        .retry_cnt = 1,
        .rnr_retry = 1,
        .min_rnr_timer = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}},
    };
    int mask = IBV_QP_STATE;

    if (state == IBV_QPS_INIT)
        mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    else if (state == IBV_QPS_RTR && !ud)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    else if (state == IBV_QPS_RTS)
        mask |= IBV_QP_SQ_PSN | (ud ? 0 : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    return ibv_modify_qp(qp[i], &a, mask);
}

static struct ibv_qp *make_qp(bool shared, bool ud)
{
    struct ibv_qp_init_attr a = {
        .send_cq = cq[0],
        .recv_cq = cq[1],
        .srq = shared ? srq : NULL,
        .qp_type = ud ? IBV_QPT_UD : IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 32},
    };
    return ibv_create_qp(pd, &a);
}

static void set_up(uint8_t kind)
{
    need((context = ibv_open_device(device)) && ibv_query_gid(context, 1, 0, &gid) == 0);
    need((pd = ibv_alloc_pd(context)) && (channel = ibv_create_comp_channel(context)));
    need(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0 && fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
    need((mr = ibv_reg_mr(pd, buffer, BUFFER,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)) != NULL);
    for (int i = 0; i < 2; i++)
        need((cq[i] = ibv_create_cq(context, 16, NULL, channel, 0)) != NULL);
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 8, .max_sge = 2}};
    need((srq = ibv_create_srq(pd, &srq_attr)) != NULL);
    for (int i = 0; i < QPS; i++)
        need((qp[i] = make_qp(i == 1 && (kind & 1), i == 2)) != NULL);
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}};
    need((ah = ibv_create_ah(pd, &to)) != NULL);
    for (int i = 0; i < QPS; i++)
        need(step_to(i, IBV_QPS_INIT) == 0);
    for (int i = 0; i < QPS; i++)
        need(step_to(i, IBV_QPS_RTR) == 0);
    for (int i = 0; i < QPS; i++)
        need(step_to(i, IBV_QPS_RTS) == 0);
}

/* ---- The steps -------------------------------------------------------------------------------------------------- */
static void post_send(uint8_t how)
{
    int i = how % QPS;
    struct ibv_sge sge[2] = {{(uintptr_t)buffer, how & 0x40 ? 16 : 512, mr->lkey}, {(uintptr_t)buffer + 1024, 8, mr->lkey}};
    struct ibv_send_wr *bad, wr = {.sg_list = sge, .num_sge = how & 0x80 ? 2 : 1, .send_flags = byte() & 31};
    static const enum ibv_wr_opcode codes[] = {
        IBV_WR_SEND,          IBV_WR_RDMA_WRITE,         IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM};
    wr.opcode = codes[byte() % (sizeof codes / sizeof *codes)];
    if (i == 2) {
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = qp[2]->qp_num;
        wr.wr.ud.remote_qkey = 17;
    } else if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        sge[0].length = 8;
        wr.wr.atomic.remote_addr = (uintptr_t)buffer + 2048;
        wr.wr.atomic.rkey = mr->rkey;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)buffer + 2048;
        wr.wr.rdma.rkey = mr->rkey;
    }
    ibv_post_send(qp[i], &wr, &bad);
}

static void post_receive(uint8_t how)
{
    struct ibv_sge sge = {(uintptr_t)buffer + 3072, 1024, mr->lkey};
    struct ibv_recv_wr *bad, wr = {.sg_list = &sge, .num_sge = 1};
    if (how % 4 == 3)
        ibv_post_srq_recv(srq, &wr, &bad);
    else
        ibv_post_recv(qp[how % QPS], &wr, &bad);
}

static void poll_all(void)
{
    struct ibv_wc wc[40];
    for (int i = 0; i < 2; i++)
        ibv_poll_cq(cq[i], 40, wc);
}

static void hear(void)
{
    struct ibv_async_event event;
    struct ibv_cq *of;
    void *tag;
    for (int i = 0; i < 2; i++)
        ibv_req_notify_cq(cq[i], byte() & 1);
    for (int n = 0; n < 100 && ibv_get_cq_event(channel, &of, &tag) == 0; n++)
        ibv_ack_cq_events(of, 1);
    for (int n = 0; n < 100 && ibv_get_async_event(context, &event) == 0; n++)
        ibv_ack_async_event(&event);
}

static void come_and_go(uint8_t how)
{
    if (how & 1) {
        struct ibv_qp *other = make_qp(how & 2, how & 4);
        if (other)
            ibv_destroy_qp(other);
    } else if (how & 2) {
        struct ibv_cq *other = ibv_create_cq(context, how, NULL, how & 4 ? channel : NULL, 0);
        if (other)
            ibv_destroy_cq(other);
    } else {
        struct ibv_mr *other = ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE);
        if (other)
            ibv_dereg_mr(other);
    }
}

static void resize(uint8_t how)
{
    struct ibv_srq_attr a = {.max_wr = how % 32, .srq_limit = how % 8};
    if (how & 1)
        ibv_resize_cq(cq[how >> 1 & 1], how >> 2);
    else
        ibv_modify_srq(srq, &a, how & 2 ? IBV_SRQ_MAX_WR : IBV_SRQ_LIMIT);
}

/* ---- Overwriting the fabric ------------------------------------------------------------------------------------ */
static bool inside(size_t offset, size_t from, size_t bytes)
{
    return offset + 4 > from && offset < from + bytes;
}
#define INSIDE(offset, type, member) inside(offset, offsetof(type, member), sizeof(((type *)0)->member))

static void scribble(void)
{
    struct sf_fabric *f = sv_lib.fabric;
    uint8_t where = byte(), entry = byte() % ENTRIES, how = byte();
    size_t offset = (size_t)(byte() << 8 | byte()) * 4, bytes;
    char *base;

    switch (where % 10) {
    case 0: base = (char *)&f->process_top, bytes = offsetof(struct sf_fabric, processes) - offsetof(struct sf_fabric, process_top); break;
    case 1: base = (char *)&f->devices[0], bytes = sizeof f->devices[0]; break;
    case 2: base = (char *)&f->faults[entry], bytes = sizeof f->faults[0], f->fault_count = 1; break;
    case 3: base = (char *)&f->contexts[entry], bytes = sizeof f->contexts[0]; break;
    case 4: base = (char *)&f->mrs[entry], bytes = offsetof(struct sf_mr, iova); break;
    case 5: base = (char *)&f->srqs[entry], bytes = sizeof f->srqs[0]; break;
    case 6: base = (char *)&f->cqs[entry], bytes = sizeof f->cqs[0]; break;
    case 7: base = (char *)&f->qps[entry], bytes = sizeof f->qps[0]; break;
    case 8: base = (char *)f->pages, bytes = RING_PAGES * sizeof *f->pages; break;
    default: base = (char *)f->arena, bytes = RING_PAGES * SF_PAGE; break;
    }
    offset %= bytes;
    if ((where % 10 == 1 && INSIDE(offset, struct sf_device, atomics)) || (where % 10 == 5 && INSIDE(offset, struct sf_srq, queue.lock)) ||
        (where % 10 == 6 && INSIDE(offset, struct sf_cq, lock)) ||
        (where % 10 == 7 && (INSIDE(offset, struct sf_qp, lock) || INSIDE(offset, struct sf_qp, receive.lock))))
        return;
    uint32_t now, *at = (uint32_t *)(base + offset);
    memcpy(&now, at, 4);
    switch (how % 8) {
    case 0: now = 0; break;
    case 1: now = UINT32_MAX; break;
    case 2: now++; break;
    case 3: now--; break;
    case 4: now ^= UINT32_C(1) << (how >> 3); break;
    case 5: now = byte(); break;
    default: now = (uint32_t)word(); break;
    }
    memcpy(at, &now, 4);
}

/* ---- One input -------------------------------------------------------------------------------------------------- */
static void take_down(void)
{
    struct sf_fabric *f = sv_lib.fabric;
    f->fault_count = 0;                                                     /* otherwise a refused call would free nothing */
    f->contexts[sv_context_of(context)->entry].owner = sv_lib.view.process; /* otherwise its pipe would not be used again */
    need(ibv_destroy_ah(ah) == 0);
    for (int i = 0; i < QPS; i++)
        need(ibv_destroy_qp(qp[i]) == 0);
    need(ibv_destroy_srq(srq) == 0);
    for (int i = 0; i < 2; i++)
        need(ibv_destroy_cq(cq[i]) == 0);
    need(ibv_destroy_comp_channel(channel) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    /* Empty the tables, because an entry that was overwritten may count as used for ever. */
    memset(&f->process_top, 0, offsetof(struct sf_fabric, processes) - offsetof(struct sf_fabric, process_top));
    f->process_top = 1;
    memset(f->devices, 0, sizeof *f->devices);
    f->devices[0].port_up = 1;
    memset(f->faults, 0, ENTRIES * sizeof *f->faults);
    memset(f->contexts, 0, ENTRIES * sizeof *f->contexts);
    memset(f->pds, 0, ENTRIES * sizeof *f->pds);
    memset(f->mrs, 0, ENTRIES * sizeof *f->mrs);
    memset(f->srqs, 0, ENTRIES * sizeof *f->srqs);
    memset(f->cqs, 0, ENTRIES * sizeof *f->cqs);
    memset(f->qps, 0, ENTRIES * sizeof *f->qps);
    memset(f->pages, 0, RING_PAGES * sizeof *f->pages);
    memset(f->arena, 0, RING_PAGES * SF_PAGE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!device)
        start();
    input.at = data;
    input.end = data + (size < 2048 ? size : 2048);
    set_up(byte());
    while (input.at < input.end) {
        uint8_t what = byte();
        switch (what % 16) {
        case 0:
        case 1: post_send(what >> 4 | (uint8_t)(byte() << 4)); break;
        case 2:
        case 3: post_receive(what >> 4); break;
        case 4: poll_all(); break;
        case 5: hear(); break;
        case 6: step_to(what >> 4 & 1, byte() % 7); break;
        case 7: come_and_go(what >> 4); break;
        case 8: resize(byte()); break;
        default: scribble(); break;
        }
    }
    poll_all();
    take_down();
    return 0;
}
