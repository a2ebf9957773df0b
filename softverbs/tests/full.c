/* SPDX-License-Identifier: MIT
 *
 * Makes as many objects of each kind as a device allows; then sends a message over a pair of queue pairs, if there are two. test_full.py
 * runs this program on a small file system, which is full before the device's limits are reached. Every failure must be an errno.
 */
#include <infiniband/verbs.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BYTES = 8192, MOST = 70000 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp[MOST];
static char *memory;

static void *one_qp(void)
{
    struct ibv_qp_init_attr a = {.send_cq = cq,
                                 .recv_cq = cq,
                                 .qp_type = IBV_QPT_UC,
                                 .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
    return ibv_create_qp(pd, &a);
}
static void *one_mr(void)
{
    return ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
}
static void *one_pd(void)
{
    return ibv_alloc_pd(context);
}
static void *one_cq(void)
{
    return ibv_create_cq(context, 16, NULL, NULL, 0);
}
static void *one_srq(void)
{
    struct ibv_srq_init_attr a = {.attr = {.max_wr = 16, .max_sge = 1}};
    return ibv_create_srq(pd, &a);
}
static void *one_context(void)
{
    return ibv_open_device(context->device);
}

/* Makes as many objects as the device allows, at most `most`; the first ones are kept in `kept`. */
static int all(const char *what, void *(*one)(void), int most, struct ibv_qp **kept)
{
    int n = 0;
    void *p;
    while (n < most && (errno = 0, p = one()) != NULL) {
        if (kept)
            kept[n] = p;
        n++;
    }
    printf("%s %d %d\n", what, n, n < most ? errno : 0);
    return n;
}

static int connect_to(struct ibv_qp *q, const struct ibv_qp *peer)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    union ibv_gid gid;
    if (ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) || ibv_query_gid(context, 1, 1, &gid))
        return 1;
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                             .path_mtu = IBV_MTU_1024,
                             .dest_qp_num = peer->qp_num,
                             .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1}}};
    if (ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN))
        return 1;
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS};
    return ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static int carry(void)
{
    struct ibv_sge from = {(uintptr_t)memory, 64, mr->lkey}, to = {(uintptr_t)memory + 64, 64, mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &to, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_wc wc[2];
    strcpy(memory, "word");
    return connect_to(qp[0], qp[1]) || connect_to(qp[1], qp[0]) || ibv_post_recv(qp[1], &receive, &bad_receive) ||
           ibv_post_send(qp[0], &send, &bad) || ibv_poll_cq(cq, 2, wc) != 2 || wc[0].status || wc[1].status ||
           strcmp(memory + 64, "word") != 0;
}

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!list || !list[0] || !(context = ibv_open_device(list[0])) || !(pd = ibv_alloc_pd(context)) || !(cq = one_cq()) ||
        !(mr = one_mr())) {
        printf("nothing %d\n", errno);
        return 0;
    }
    int pairs = all("qp", one_qp, MOST, qp);
    all("srq", one_srq, MOST, NULL);
    all("mr", one_mr, MOST, NULL);
    all("pd", one_pd, MOST, NULL);
    all("cq", one_cq, MOST, NULL);
    all("context", one_context, 300, NULL); /* each context needs descriptors */
    if (pairs >= 2 && carry()) {
        printf("no message was sent\n");
        return 1;
    }
    return 0;
}
