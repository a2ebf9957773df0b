/* SPDX-License-Identifier: MIT
 *
 * A peer is killed, in the middle of its work, and while the survivor waits for it. The survivor's reliable requests end when their retries
 * are used up, its unreliable messages are lost, and no object of the dead process remains.
 */
#include "lib/lib.h"
#include "ground.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 4096, DEPTH = 32 };

static struct ground ground;

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    uint8_t memory[2 * BYTES];
};

struct card { /* what the two processes send each other */
    uint32_t device, number, rkey;
    uint64_t address;
};

struct plan {
    enum ibv_qp_type type;
    enum ibv_wr_opcode opcode; /* the survivor's requests */
    int receives;              /* how many receives the peer posts; -1: a new one for each that was used, and the peer also sends */
    uint8_t rnr_retry;
    enum ibv_wc_status end; /* the status with which the survivor's requests must end */
};

static void give_up(const char *what)
{
    fprintf(stderr, "%d: %s: %s\n", (int)getpid(), what, strerror(errno));
    abort();
}
#define NEED(e) ((e) ? (void)0 : give_up(#e))

static void open_end(struct end *e, enum ibv_qp_type type)
{
    const unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    NEED((e->context = ground_open()) != NULL);
    NEED((e->pd = ibv_alloc_pd(e->context)) != NULL);
    NEED((e->cq = ibv_create_cq(e->context, 4 * DEPTH, NULL, NULL, 0)) != NULL);
    NEED((e->mr = ibv_reg_mr(e->pd, e->memory, sizeof e->memory, access)) != NULL);
    struct ibv_qp_init_attr a = {
        .send_cq = e->cq,
        .recv_cq = e->cq,
        .qp_type = type,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };
    NEED((e->qp = ibv_create_qp(e->pd, &a)) != NULL);
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
    NEED(ibv_modify_qp(e->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}

static struct card card_of(const struct end *e)
{
    return (struct card){sv_context_of(e->context)->device, e->qp->qp_num, e->mr->rkey, (uintptr_t)e->memory};
}

static void connect_end(struct end *e, const struct card *peer, uint8_t rnr_retry)
{
    int rc = e->qp->qp_type == IBV_QPT_RC;
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->number,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}},
        .timeout = 8,
        .retry_cnt = 1,
        .rnr_retry = rnr_retry,
        .max_rd_atomic = 1,
        .max_dest_rd_atomic = 1,
    };
    memcpy(a.ah_attr.grh.dgid.raw, ground.model.topology.devices[peer->device].gids[1].raw, 16);
    NEED(ibv_modify_qp(e->qp, &a,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)) == 0);
    a.qp_state = IBV_QPS_RTS;
    NEED(ibv_modify_qp(e->qp, &a,
                       IBV_QP_STATE | IBV_QP_SQ_PSN |
                           (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)) == 0);
}

static int post_receive(struct end *e)
{
    struct ibv_sge sge = {(uintptr_t)e->memory, BYTES, e->mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(e->qp, &wr, &bad);
}

static int post_request(struct end *e, enum ibv_wr_opcode opcode, const struct card *peer)
{
    struct ibv_sge sge = {(uintptr_t)e->memory + BYTES, opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : BYTES, e->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = peer->address;
        wr.wr.atomic.rkey = peer->rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = peer->address;
        wr.wr.rdma.rkey = peer->rkey;
    }
    return ibv_post_send(e->qp, &wr, &bad);
}

/* The process that will be killed. */
static void live(const struct plan *p, int in, int out)
{
    static struct end e;
    struct card mine, peer;

    ground_host(&ground, 1);
    open_end(&e, p->type);
    mine = card_of(&e);
    NEED(write(out, &mine, sizeof mine) == (ssize_t)sizeof mine && read(in, &peer, sizeof peer) == (ssize_t)sizeof peer);
    connect_end(&e, &peer, 7);
    for (int i = 0; i < (p->receives < 0 ? DEPTH : p->receives); i++)
        NEED(post_receive(&e) == 0);
    char go; /* comes when the other side is connected; a request that arrives there before would run out of retries */
    NEED(write(out, "r", 1) == 1 && read(in, &go, 1) == 1);
    for (;;) {
        struct ibv_wc wc[4];
        int n = ibv_poll_cq(e.cq, 4, wc);
        if (p->receives >= 0) {
            usleep(100);
            continue;
        }
        for (int i = 0; i < n; i++)
            if (wc[i].opcode & IBV_WC_RECV)
                post_receive(&e);
        post_request(&e, IBV_WR_SEND, &peer);
        if (n == 0)
            sched_yield();
    }
}

static double seconds(void)
{
    return (double)sf_now() / 1e9;
}

static void one_death(const struct plan *p, unsigned lifetime)
{
    static struct end e;
    struct card mine, peer;
    char ready;
    int to[2] = {-1, -1}, from[2] = {-1, -1}, status;

    memset(&e, 0, sizeof e);
    assert_true(pipe(to) == 0 && pipe(from) == 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        live(p, to[0], from[1]);
    ground_host(&ground, 0);
    open_end(&e, p->type);
    mine = card_of(&e);
    assert_int_equal(write(to[1], &mine, sizeof mine), sizeof mine);
    assert_int_equal(read(from[0], &peer, sizeof peer), sizeof peer);
    connect_end(&e, &peer, p->rnr_retry);
    for (int i = 0; i < DEPTH; i++)
        assert_int_equal(post_receive(&e), 0);
    assert_int_equal(read(from[0], &ready, 1), 1);
    assert_int_equal(write(to[1], "g", 1), 1);

    bool dead = false;
    double start = seconds();
    uint64_t ended = 0;
    for (;;) {
        struct ibv_wc wc[4];
        int n = ibv_poll_cq(e.cq, 4, wc), last = -1;
        for (int i = 0; i < n; i++) {
            if ((wc[i].opcode & IBV_WC_RECV) && wc[i].status == IBV_WC_SUCCESS)
                post_receive(&e);
            /* only the first error counts: the requests behind it are flushed */
            else if ((wc[i].status != IBV_WC_SUCCESS || dead) && last <= 0)
                last = (int)wc[i].status;
        }
        if (last >= 0 && (last != IBV_WC_SUCCESS || ++ended > 100)) {
            assert_true(dead);
            assert_int_equal(last, p->end);
            break;
        }
        post_request(&e, p->opcode, &peer); /* this usually fails, because the queue is full */
        if (!dead && seconds() - start > (double)lifetime / 1e6) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            dead = true;
            start = seconds();
        }
        assert_true(!dead || seconds() - start < 30); /* much longer than all retries take */
        if (n == 0)
            sched_yield();
    }
    close(to[0]), close(to[1]), close(from[0]), close(from[1]);

    /* The objects of the dead process are freed when another process looks for them. */
    uint32_t there = peer.device;
    sf_reap_all(&sv_lib.view);
    assert_int_equal(sv_lib.fabric->devices[there].qps, 0);
    assert_int_equal(sv_lib.fabric->devices[there].cqs, 0);
    assert_int_equal(sv_lib.fabric->devices[there].mrs, 0);
    assert_int_equal(ibv_destroy_qp(e.qp), 0);
    assert_int_equal(ibv_dereg_mr(e.mr), 0);
    assert_int_equal(ibv_destroy_cq(e.cq), 0);
    assert_int_equal(ibv_dealloc_pd(e.pd), 0);
    assert_int_equal(ibv_close_device(e.context), 0);
}

static void deaths(struct plan p, int rounds)
{
    unsigned seed = 1;
    for (int i = 0; i < rounds; i++)
        one_death(&p, (unsigned)rand_r(&seed) % 4000);
}

static void while_both_send(void **state)
{
    (void)state;
    deaths((struct plan){IBV_QPT_RC, IBV_WR_SEND, -1, 7, IBV_WC_RETRY_EXC_ERR}, 20);
}
static void while_written_to(void **state)
{
    (void)state;
    deaths((struct plan){IBV_QPT_RC, IBV_WR_RDMA_WRITE, -1, 7, IBV_WC_RETRY_EXC_ERR}, 10);
}
static void while_read_from(void **state)
{
    (void)state;
    deaths((struct plan){IBV_QPT_RC, IBV_WR_RDMA_READ, -1, 7, IBV_WC_RETRY_EXC_ERR}, 5);
}
static void while_added_to(void **state)
{
    (void)state;
    deaths((struct plan){IBV_QPT_RC, IBV_WR_ATOMIC_FETCH_AND_ADD, -1, 7, IBV_WC_RETRY_EXC_ERR}, 5);
}
static void while_a_receive_of_its_is_waited_for(void **state)
{
    (void)state;
    deaths((struct plan){IBV_QPT_RC, IBV_WR_SEND, 3, 7, IBV_WC_RETRY_EXC_ERR}, 5);
}
static void unreliable_requests_are_lost(void **state)
{
    (void)state;
    deaths((struct plan){IBV_QPT_UC, IBV_WR_SEND, -1, 0, IBV_WC_SUCCESS}, 5);
    deaths((struct plan){IBV_QPT_UC, IBV_WR_RDMA_WRITE, -1, 0, IBV_WC_SUCCESS}, 5);
}

int main(void)
{
    static const char *const words[] = {"switch", "2"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(while_both_send),
        cmocka_unit_test(while_written_to),
        cmocka_unit_test(while_read_from),
        cmocka_unit_test(while_added_to),
        cmocka_unit_test(while_a_receive_of_its_is_waited_for),
        cmocka_unit_test(unreliable_requests_are_lost),
    };

    if (ground_plan(&ground, "generic", 2, words) || ground_make(&ground, 0))
        return 1;
    pid_t child = fork(); /* a child removes the file, because the process that runs the tests has joined the fabric */
    if (child == 0)
        exit(cmocka_run_group_tests(tests, NULL, NULL) != 0);
    int status;
    bool failed = child < 0 || waitpid(child, &status, 0) != child || status != 0;
    return ground_remove(&ground) != 0 || failed;
}
