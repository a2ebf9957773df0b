/* SPDX-License-Identifier: MIT
 *
 * Room in queues: when a slot becomes free again, whatever happens to its completion. And unusual requests: inline data of no bytes,
 * messages shorter than the receive's scatter list, queue pairs in state SQD, queue pairs that fail twice.
 */
#include "inside.h"

#include "../lib/engine.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLACES = 4, SIZE = 64 };

static struct ground ground;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_srq *srq;
static char memory[4096];

static struct ibv_cq *new_cq(int entries, struct ibv_comp_channel *channel)
{
    struct ibv_cq *cq = ibv_create_cq(context, entries, NULL, channel, 0);
    assert_non_null(cq);
    return cq;
}

static struct ibv_qp *make(struct ibv_srq *shared)
{
    struct ibv_qp_init_attr_ex a = {
        .send_cq = send_cq,
        .recv_cq = receive_cq,
        .srq = shared,
        .qp_type = IBV_QPT_RC,
        .pd = pd,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = SIZE},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &a);
    assert_non_null(qp);
    return qp;
}

static int modify(struct ibv_qp *qp, enum ibv_qp_state state)
{
    return ibv_modify_qp(qp, &(struct ibv_qp_attr){.qp_state = state}, IBV_QP_STATE);
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}},
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = 1,
    };
    memcpy(a.ah_attr.grh.dgid.raw, ground.model.topology.devices[sv_context_of(context)->device].gids[0].raw, 16);
    assert_int_equal(ibv_modify_qp(qp, &a,
                                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
                     0);
    a.qp_state = IBV_QPS_RTS;
    assert_int_equal(
        ibv_modify_qp(qp, &a,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
        0);
}

/* Makes a connection from a to b, which receives from `shared`, or from its own queue. */
static void pair(struct ibv_qp **a, struct ibv_qp **b, struct ibv_srq *shared)
{
    *a = make(NULL);
    *b = make(shared);
    connect_to(*a, *b);
    connect_to(*b, *a);
}

static void unpair(struct ibv_qp *a, struct ibv_qp *b)
{
    assert_int_equal(ibv_destroy_qp(a), 0);
    assert_int_equal(ibv_destroy_qp(b), 0);
}

static int send_one(struct ibv_qp *qp)
{
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    return ibv_post_send(qp, &wr, &bad);
}

static int receive_one(struct ibv_qp *qp)
{
    struct ibv_sge sge = {(uintptr_t)memory + SIZE, SIZE, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    return qp ? ibv_post_recv(qp, &wr, &bad) : ibv_post_srq_recv(srq, &wr, &bad);
}

static int polled(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n = 0;
    while (ibv_poll_cq(cq, 1, &wc) == 1)
        n++;
    return n;
}

/* Check that all slots are free: as many requests as there are slots can be posted, and one more cannot. */
static void all_free(void)
{
    for (int i = 0; i < PLACES; i++)
        assert_int_equal(receive_one(NULL), 0);
    assert_int_equal(receive_one(NULL), ENOMEM);
}

static int set_up(void **state)
{
    struct ibv_srq_init_attr a = {.attr = {.max_wr = PLACES, .max_sge = 1}};
    (void)state;
    send_cq = new_cq(64, NULL);
    receive_cq = new_cq(64, NULL);
    srq = ibv_create_srq(pd, &a);
    assert_non_null(srq);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_int_equal(ibv_destroy_srq(srq), 0);
    assert_int_equal(ibv_destroy_cq(send_cq), 0);
    assert_int_equal(ibv_destroy_cq(receive_cq), 0);
    return 0;
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */
/* A queue pair and its completion queue are destroyed with unpolled completions in the queue: the slots of the shared receive queue become
 * free. */
static void shared_slots_of_unpolled_completions(void **state)
{
    struct ibv_cq *keep = receive_cq;
    (void)state;
    for (int round = 0; round < 2 * PLACES; round++) {
        struct ibv_qp *a, *b;
        receive_cq = new_cq(64, NULL);
        pair(&a, &b, srq);
        assert_int_equal(receive_one(NULL), 0);
        assert_int_equal(send_one(a), 0);
        unpair(a, b);
        assert_int_equal(ibv_destroy_cq(receive_cq), 0);
    }
    receive_cq = keep;
    all_free();
}

/* The slots of the shared receive queue become free also if their completions were dropped because the completion queue was full. */
static void shared_slots_of_dropped_completions(void **state)
{
    struct ibv_cq *keep = receive_cq;
    (void)state;
    for (int round = 0; round < 2 * PLACES; round++) {
        struct ibv_async_event event;
        struct ibv_qp *a, *b;
        receive_cq = new_cq(1, NULL);
        pair(&a, &b, srq);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(receive_one(NULL), 0);
            assert_int_equal(send_one(a), 0);
        }
        for (int i = 0; i < 3; i++) { /* the events: an error of the completion queue, an error of the queue pair, and its last request */
            assert_int_equal(ibv_get_async_event(context, &event), 0);
            ibv_ack_async_event(&event);
        }
        unpair(a, b);
        assert_int_equal(ibv_destroy_cq(receive_cq), 0);
    }
    receive_cq = keep;
    all_free();
}

/* A shared receive queue that gets the number of a destroyed one. */
static void a_shared_queue_made_again(void **state)
{
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = PLACES, .max_sge = 1}};
    struct ibv_qp *a, *b;
    uint32_t number = srq->handle;
    (void)state;
    pair(&a, &b, srq);
    assert_int_equal(receive_one(NULL), 0);
    assert_int_equal(send_one(a), 0);
    unpair(a, b);
    assert_int_equal(ibv_destroy_srq(srq), 0);
    sv_lib.fabric->srq_next = number; /* the search for a free number starts here */
    srq = ibv_create_srq(pd, &attr);
    assert_non_null(srq);
    assert_int_equal(srq->handle, number);
    polled(receive_cq);
    all_free();
}

/* After 256 resets, when a count of them in 8 bits would be 0 again, all slots of the queue pair are free. */
static void reset_many_times(void **state)
{
    struct ibv_qp *a, *b;
    (void)state;
    pair(&a, &b, NULL);
    for (int i = 0; i < 16; i++)
        assert_int_equal(receive_one(b), 0);
    for (int i = 0; i < 16; i++)
        assert_int_equal(send_one(a), 0);
    for (int i = 0; i < 256; i++)
        assert_int_equal(modify(b, IBV_QPS_RESET), 0);
    assert_int_equal(modify(a, IBV_QPS_RESET), 0);
    connect_to(a, b);
    connect_to(b, a);
    for (int i = 0; i < 16; i++)
        assert_int_equal(receive_one(b), 0);
    assert_int_equal(polled(receive_cq), 0);
    assert_int_equal(receive_one(b), ENOMEM);
    unpair(a, b);
}

/* The error message names the queue that is full; a shared queue belongs to no queue pair. */
static void a_full_shared_queue_is_named(void **state)
{
    char said[1024] = "", expected[64];
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO), level = sv_level;
    (void)state;
    assert_non_null(file);
    for (int i = 0; i < PLACES; i++)
        assert_int_equal(receive_one(NULL), 0);
    fflush(stderr);
    sv_level = SV_INFO;
    dup2(fileno(file), STDERR_FILENO);
    int refused = receive_one(NULL);
    dup2(before, STDERR_FILENO);
    sv_level = level;
    close(before);
    rewind(file);
    assert_true(fread(said, 1, sizeof said - 1, file) > 0);
    fclose(file);
    assert_int_equal(refused, ENOMEM);
    snprintf(expected, sizeof expected, "shared receive queue 0x%06x", srq->handle);
    assert_non_null(strstr(said, expected));
    assert_null(strstr(said, "queue pair"));
}

/* ---- Requests -------------------------------------------------------------------------------------------------- */
static void no_bytes_first(void **state)
{
    struct ibv_qp *a, *b;
    (void)state;
    for (int way = 0; way < 2; way++) {
        pair(&a, &b, NULL);
        struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a);
        assert_int_equal(receive_one(b), 0);
        ibv_wr_start(ex);
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send(ex);
        if (way)
            ibv_wr_set_sge_list(ex, 0, NULL);
        else
            ibv_wr_set_inline_data(ex, memory, 0);
        assert_int_equal(ibv_wr_complete(ex), 0);
        assert_int_equal(polled(send_cq), 1);
        assert_int_equal(polled(receive_cq), 1);
        unpair(a, b);
    }
}

/* Only the elements that the message reaches are examined. */
static void elements_beyond_the_message(void **state)
{
    for (int reached = 0; reached < 2; reached++) {
        struct ibv_sge sge[2] = {{(uintptr_t)memory + SIZE, reached ? 4 : 8, mr->lkey}, {(uintptr_t)memory, SIZE, 0x12345}};
        struct ibv_recv_wr wr = {.sg_list = sge, .num_sge = 2}, *bad;
        struct ibv_qp *a, *b;
        struct ibv_wc wc;
        (void)state;
        pair(&a, &b, NULL);
        assert_int_equal(ibv_post_recv(b, &wr, &bad), 0);
        assert_int_equal(send_one(a), 0);
        assert_int_equal(ibv_poll_cq(receive_cq, 1, &wc), 1);
        assert_int_equal(wc.status, reached ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS);
        if (!reached)
            assert_int_equal(wc.byte_len, 8);
        unpair(a, b);
    }
}

/* A send that waits for a receive is not retried while its queue pair is in SQD. */
static void nobody_looks_in_sqd(void **state)
{
    struct ibv_qp *a, *b;
    (void)state;
    pair(&a, &b, NULL);
    assert_int_equal(send_one(a), 0);
    assert_true(sv_progress(SF_NO_DEVICE) != 0);
    assert_int_equal(modify(a, IBV_QPS_SQD), 0);
    usleep(50000); /* by then the retry that was already due at the stop is over; no other follows */
    assert_int_equal(sv_progress(SF_NO_DEVICE), 0);
    assert_int_equal(receive_one(b), 0);
    assert_int_equal(polled(receive_cq), 0);
    assert_int_equal(modify(a, IBV_QPS_RTS), 0);
    assert_int_equal(polled(receive_cq), 1);
    assert_int_equal(polled(send_cq), 1);
    unpair(a, b);
}

/* ---- The last request of a shared queue ------------------------------------------------------------------------- */
enum { FAILURES = 5000 };
static struct ibv_qp *failing;
static _Atomic int turn; /* odd: both threads bring the queue pair to ERR; even: the test prepares the next round */

static void wait_for_turn(int which)
{
    for (int spins = 0; turn < which; spins++)
        if (spins % 1000 == 999)
            sched_yield();
}

/* Repeatedly sends a request that brings the target's queue pair to ERR, at a different moment each time. */
static void *fails_it(void *unused)
{
    (void)unused;
    for (int i = 0; i < FAILURES; i++) {
        struct sv_later later = {0};
        wait_for_turn(2 * i + 1);
        for (volatile int spin = 0; spin < i % 200; spin++)
            ;
        sv_fail_qp(sv_container(failing, struct sv_qp, base)->entry, IBV_EVENT_CQ_ERR, &later);
        turn++;
    }
    return NULL;
}

/* The program and a peer bring the queue pair to ERR at the same time: the program gets one event, not two. */
static void told_of_the_last_request_once(void **state)
{
    struct ibv_async_event event;
    struct ibv_qp *a, *b;
    pthread_t thread;
    (void)state;
    pair(&a, &b, srq);
    failing = b;
    turn = 0;
    assert_int_equal(pthread_create(&thread, NULL, fails_it, NULL), 0);
    for (int i = 0; i < FAILURES; i++) {
        turn++;
        assert_int_equal(modify(b, IBV_QPS_ERR), 0);
        wait_for_turn(2 * i + 2);
        /* a marker event of the port, behind all events of the queue pair */
        sv_async(sv_context_of(context)->entry, IBV_EVENT_PORT_ACTIVE, 0, 0);
        assert_int_equal(ibv_get_async_event(context, &event), 0);
        assert_int_equal(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
        ibv_ack_async_event(&event);
        assert_int_equal(ibv_get_async_event(context, &event), 0);
        assert_int_equal(event.event_type, IBV_EVENT_PORT_ACTIVE);
        assert_int_equal(modify(b, IBV_QPS_RESET), 0);
        connect_to(b, a);
    }
    pthread_join(thread, NULL);
    unpair(a, b);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(shared_slots_of_unpolled_completions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(shared_slots_of_dropped_completions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_shared_queue_made_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(reset_many_times, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_full_shared_queue_is_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_bytes_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(elements_beyond_the_message, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nobody_looks_in_sqd, set_up, tear_down),
        cmocka_unit_test_setup_teardown(told_of_the_last_request_once, set_up, tear_down),
    };
    int failed;

    context = ground_open();
    pd = context ? ibv_alloc_pd(context) : NULL;
    mr = pd ? ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) : NULL;
    if (!mr)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) || ibv_close_device(context);
}

int main(void)
{
    static const char *const words[] = {"switch", "1"};

    return ground_plan(&ground, "generic", 2, words) || ground_make(&ground, 0) || inside_run(&ground, run);
}
