/* SPDX-License-Identifier: MIT
 *
 * Queue pairs are reset, brought to ERR and destroyed under traffic. Two threads send to each other, write into each other's memory, and
 * poll. Each of them breaks its own end at random times, and connects a new one. No thread may hang, no message may arrive on a connection
 * other than its own, and everything must be freed. Also run with the sanitizers.
 */
#include "lib/lib.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROUNDS = 1000, MESSAGES = 16, BYTES = 256 };

struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    uint8_t memory[4 * BYTES];
    _Atomic uint32_t number; /* the number of its queue pair in this round */
    uint64_t received, failed;
    struct side *other;
    unsigned seed;
    enum ibv_qp_type type;
};

static struct sv_model model;
static pthread_barrier_t round_begins, both_made, both_ready;

static int modify(struct side *s, int mask, struct ibv_qp_attr a)
{
    return ibv_modify_qp(s->qp, &a, mask);
}

static int to_init(struct side *s)
{
    return modify(
        s, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE});
}

static int connect_to(struct side *s, uint32_t number)
{
    int rc = s->type == IBV_QPT_RC;
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = number,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}},
        .timeout = 8,
        .retry_cnt = 1,
        .rnr_retry = 1,
    };
    memcpy(a.ah_attr.grh.dgid.raw, model.topology.devices[0].gids[1].raw, 16);
    int r = modify(s,
                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0),
                   a);
    if (r)
        return r;
    a.qp_state = IBV_QPS_RTS;
    return modify(
        s, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0), a);
}

static void post_receives(struct side *s, int count)
{
    struct ibv_sge sge = {(uintptr_t)s->memory, BYTES, s->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
    while (count-- > 0)
        if (s->srq ? ibv_post_srq_recv(s->srq, &wr, &bad) : ibv_post_recv(s->qp, &wr, &bad))
            return;
}

static void post_sends(struct side *s)
{
    struct ibv_sge sge = {(uintptr_t)s->memory + BYTES, BYTES, s->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.opcode = rand_r(&s->seed) & 1 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
    wr.wr.rdma.remote_addr = (uintptr_t)s->other->memory + 2 * BYTES;
    wr.wr.rdma.rkey = s->other->mr->rkey;
    ibv_post_send(s->qp, &wr, &bad);
}

/* A queue pair that was reset or destroyed does not answer, so no request may complete with a status that says that the peer has refused
 * it. This is abort() and not an assertion of cmocka, because both threads call it, and a failed assertion ends only the thread that runs
 * the test. */
static void check_status(enum ibv_wc_status status)
{
    if (status == IBV_WC_REM_INV_REQ_ERR || status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_OP_ERR) {
        fprintf(stderr, "a request ended with status %d, although the other end was reset\n", (int)status);
        abort();
    }
}

static void poll(struct side *s)
{
    struct ibv_wc wc[8];
    int n = ibv_poll_cq(s->cq, 8, wc);
    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        s->failed += wc[i].status != IBV_WC_SUCCESS;
        check_status(wc[i].status);
        if (wc[i].opcode != IBV_WC_RECV || wc[i].status != IBV_WC_SUCCESS)
            continue;
        s->received++;
        assert_int_equal(wc[i].qp_num, s->number);
        assert_int_equal(wc[i].src_qp, atomic_load(&s->other->number));
        post_receives(s, 1);
    }
}

static void make_end(struct side *s)
{
    struct ibv_qp_init_attr a = {
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .srq = s->srq,
        .qp_type = s->type,
        .cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1},
    };
    s->qp = ibv_create_qp(s->pd, &a);
    assert_non_null(s->qp);
    atomic_store(&s->number, s->qp->qp_num);
}

static void *one_side(void *argument)
{
    struct side *s = argument;
    s->qp = NULL;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&round_begins);
        if (!s->qp)
            make_end(s);
        assert_int_equal(to_init(s), 0);
        pthread_barrier_wait(&both_made);
        post_receives(s, 16);
        assert_int_equal(connect_to(s, atomic_load(&s->other->number)), 0);
        pthread_barrier_wait(&both_ready);
        int until = rand_r(&s->seed) % MESSAGES;
        for (int i = 0; i < until; i++) {
            post_sends(s);
            poll(s);
        }
        switch (rand_r(&s->seed) % 4) { /* break this end, while the other thread goes on */
        case 0:
            assert_int_equal(modify(s, IBV_QP_STATE, (struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}), 0);
            for (int i = 0; i < 20; i++)
                poll(s);
            /* fallthrough */
        case 1: assert_int_equal(modify(s, IBV_QP_STATE, (struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}), 0); break;
        default: assert_int_equal(ibv_destroy_qp(s->qp), 0); s->qp = NULL;
        }
        for (struct ibv_wc wc; ibv_poll_cq(s->cq, 1, &wc) > 0; s->received++) /* no more messages will arrive in this round */
            check_status(wc.status);
    }
    if (s->qp)
        assert_int_equal(ibv_destroy_qp(s->qp), 0);
    return NULL;
}

static void open_side(struct side *s, bool shared)
{
    struct ibv_srq_init_attr a = {.attr = {.max_wr = 64, .max_sge = 1}};
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    assert_true(list && count > 0);
    s->context = ibv_open_device(list[0]);
    assert_non_null(s->context);
    s->pd = ibv_alloc_pd(s->context);
    s->cq = ibv_create_cq(s->context, 512, NULL, NULL, 0);
    s->mr = ibv_reg_mr(s->pd, s->memory, sizeof s->memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    s->srq = shared ? ibv_create_srq(s->pd, &a) : NULL;
    assert_true(s->pd && s->cq && s->mr && (s->srq || !shared));
    ibv_free_device_list(list);
}

static void close_side(struct side *s)
{
    assert_int_equal(s->srq ? ibv_destroy_srq(s->srq) : 0, 0);
    assert_int_equal(ibv_dereg_mr(s->mr), 0);
    assert_int_equal(ibv_destroy_cq(s->cq), 0);
    assert_int_equal(ibv_dealloc_pd(s->pd), 0);
    assert_int_equal(ibv_close_device(s->context), 0);
}

static void under_traffic(enum ibv_qp_type type, bool shared)
{
    static struct side sides[2];
    pthread_t thread[2];
    memset(sides, 0, sizeof sides);
    for (int i = 0; i < 2; i++) {
        sides[i].other = &sides[!i];
        sides[i].seed = (unsigned)i + 1;
        sides[i].type = type;
        open_side(&sides[i], shared);
    }
    pthread_barrier_init(&round_begins, NULL, 2);
    pthread_barrier_init(&both_made, NULL, 2);
    pthread_barrier_init(&both_ready, NULL, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, one_side, &sides[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&round_begins);
    pthread_barrier_destroy(&both_made);
    pthread_barrier_destroy(&both_ready);
    assert_true(sides[0].received + sides[1].received > 0);
    print_message("%lu received, %lu failed\n", (unsigned long)(sides[0].received + sides[1].received),
                  (unsigned long)(sides[0].failed + sides[1].failed));
    for (int i = 0; i < 2; i++)
        close_side(&sides[i]);
}

static void rc(void **state)
{
    (void)state;
    under_traffic(IBV_QPT_RC, false);
}
static void uc(void **state)
{
    (void)state;
    under_traffic(IBV_QPT_UC, false);
}
static void rc_with_shared_receives(void **state)
{
    (void)state;
    under_traffic(IBV_QPT_RC, true);
}

int main(void)
{
    static const char *const words[] = {"switch", "2"}; /* both sides are on host 0's device */
    char memory[] = "/dev/shm/softverbs-reconnect-XXXXXX", disk[] = "/tmp/softverbs-reconnect-XXXXXX";
    const char *directory = mkdtemp(memory);
    struct sv_why why = {""};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rc),
        cmocka_unit_test(uc),
        cmocka_unit_test(rc_with_shared_receives),
    };

    if (!directory && !(directory = mkdtemp(disk)))
        return 1;
    if (setenv("SOFTVERBS_DIR", directory, 1) || setenv("SOFTVERBS_FABRIC", "reconnect", 1) || unsetenv("SOFTVERBS_HOST") ||
        sv_profile_load("generic", &model.profile, &why) || sv_topology_load(2, words, &model.profile, &model.topology, &why) ||
        sf_create("reconnect", &model, 1, &why)) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    /* in a process of its own, so that the fabric is removed also if a thread fails */
    int failed = 1;
    pid_t child = fork();
    if (child == 0)
        exit(cmocka_run_group_tests(tests, NULL, NULL));
    if (child > 0)
        waitpid(child, &failed, 0);
    return sf_remove("reconnect", true, NULL, &why) != 0 || rmdir(directory) != 0 || failed;
}
