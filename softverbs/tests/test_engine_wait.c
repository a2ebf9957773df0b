/* SPDX-License-Identifier: MIT
 *
 * Queues of several processes (sides.h): a process that waits is woken, or notices in time by itself, whatever the other side does
 * meanwhile; also lost messages, large messages, shared receive queues.
 */
#include "sides.h"

/* keep trying until the other side is ready */
static const struct how patient = {.rnr = 7, .retries = 7, .timeout = 0, .rnr_timer = 1};

/* ---- Who waits for what ------------------------------------------------------------------------------------------------ */
/* The sender connects before the receiver does, and polls only the queue on which it expects the answer: it gets the answer. */
static void asks_early(void)
{
    struct ibv_qp *qp = make(IBV_QPT_RC, NULL);
    struct how how = acquainted(qp, patient);
    connect_to(qp, how, true, true);
    NEED(receive(qp, 5, 64) == 0);
    NEED(post(qp, IBV_WR_SEND, 1, 64) == 0);
    say(1);
    NEED(next(receive_cq).status == IBV_WC_SUCCESS);
    NEED(next(send_cq).status == IBV_WC_SUCCESS);
}

static void answers_late(void)
{
    struct ibv_qp *qp = make(IBV_QPT_RC, NULL);
    struct how how = acquainted(qp, patient);
    connect_to(qp, how, false, false);
    await(1);
    nap(20000);
    NEED(receive(qp, 3, 64) == 0);
    connect_to(qp, how, true, true);
    NEED(next(receive_cq).status == IBV_WC_SUCCESS);
    NEED(post(qp, IBV_WR_SEND, 1, 64) == 0);
    NEED(next(send_cq).status == IBV_WC_SUCCESS);
}

static void test_answer_alone_is_polled(void **state)
{
    (void)state;
    both(asks_early, answers_late);
}

/* Asks as asks_early() does, but polls nothing until the answering side has the message. */
static void asks_and_looks_away(void)
{
    struct ibv_qp *qp = make(IBV_QPT_RC, NULL);
    struct how how = acquainted(qp, patient);
    connect_to(qp, how, true, true);
    NEED(post(qp, IBV_WR_SEND, 1, 64) == 0);
    say(1);
    await(2);
    NEED(next(send_cq).status == IBV_WC_SUCCESS);
}

static void hears_at_once(void)
{
    struct ibv_qp *qp = make(IBV_QPT_RC, NULL);
    struct how how = acquainted(qp, patient);
    connect_to(qp, how, false, false);
    await(1);
    NEED(receive(qp, 3, 64) == 0);
    connect_to(qp, how, true, true);
    NEED(next(receive_cq).status == IBV_WC_SUCCESS);
    say(2);
}

static void test_early_sender_looks_away(void **state)
{
    (void)state;
    both(asks_and_looks_away, hears_at_once);
}

/* The sender finds no receive, and does not poll any more. The process that posts the receive must get the message, in its own queue or in
 * a shared one. */
static void sends_and_looks_away(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, stubborn);
    strcpy(memory, "for you");
    NEED(post(qp, IBV_WR_SEND, 1, 64) == 0);
    say(3);
    await(4);
    NEED(next(send_cq).status == IBV_WC_SUCCESS);
}

static void receives_afterwards(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, stubborn);
    await(3);
    NEED(receive(qp, 3, 64) == 0);
    NEED(next(receive_cq).status == IBV_WC_SUCCESS && !strcmp(memory, "for you"));
    say(4);
}

static void receives_shared_afterwards(void)
{
    struct ibv_srq_init_attr a = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &a);
    NEED(srq);
    connect_both(make(IBV_QPT_RC, srq), stubborn);
    await(3);
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1}, *bad;
    NEED(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    NEED(next(receive_cq).status == IBV_WC_SUCCESS && !strcmp(memory, "for you"));
    say(4);
}

static void test_late_receive_is_served(void **state)
{
    (void)state;
    both(sends_and_looks_away, receives_afterwards);
    memset(meeting, 0, sizeof *meeting);
    both(sends_and_looks_away, receives_shared_afterwards);
}

/* Both sides sleep whenever they can, on one channel for both directions. Receives are posted one at a time, usually too late. */
static void test_both_sleep(void **state)
{
    (void)state;
    both(sleepy_sender, sleepy_receiver);
}

/* Set the only fault rule: it applies to the first message, then to every `every`-th, at most `count` times (0: no limit). */
static struct sf_fault *strike(enum sf_fault_kind kind, uint64_t every, uint64_t count, uint64_t nanoseconds)
{
    struct sf_fault *r = &sv_lib.fabric->faults[0];
    *r = (struct sf_fault){
        .device = SF_NO_DEVICE, .host = SF_NO_DEVICE, .first = 1, .every = every, .count = count, .nanoseconds = nanoseconds};
    atomic_store(&r->kind, kind);
    atomic_store(&sv_lib.fabric->fault_count, 1);
    return r;
}

/* A fault delays messages or completions while both sides sleep. */
static void held_up(enum sf_fault_kind kind)
{
    struct sf_fault *r = strike(kind, 3, 60, 1000000);
    sleepy_sender();
    NEED(atomic_load(&r->hits) == 60);
}

static void delayed(void)
{
    held_up(SF_FAULT_DELAY);
}
static void withheld(void)
{
    held_up(SF_FAULT_WITHHOLD);
}

static void test_delayed(void **state)
{
    (void)state;
    both(delayed, sleepy_receiver);
}

static void test_withheld(void **state)
{
    (void)state;
    both(withheld, sleepy_receiver);
}

static void stands_by(void)
{
    pair(IBV_QPT_RC, quick);
    await(3);
}

/* A queue that is stopped (SQD) still finishes the request that it has begun. */
static void stops_with_one_held(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, stubborn);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_SQD};
    strike(SF_FAULT_WITHHOLD, 1, 0, 5000000);
    NEED(post(qp, IBV_WR_RDMA_WRITE, 1, 64) == 0);
    NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0);
    NEED(post(qp, IBV_WR_RDMA_WRITE, 2, 64) == 0);
    struct ibv_wc wc = sleep_for(send_cq);
    NEED(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);
    nap(10000);
    NEED(ibv_poll_cq(send_cq, 1, &wc) == 0);
    a.qp_state = IBV_QPS_RTS;
    NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0);
    wc = sleep_for(send_cq);
    NEED(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS);
    say(3);
}

static void test_stops_with_one_held(void **state)
{
    (void)state;
    both(stops_with_one_held, stands_by);
}

/* Many messages about the timer fill the pipe of a channel: a message about a completion still gets through. */
static void floods(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, stubborn);
    await(3);
    uint32_t cq = sv_lib.fabric->qps[sf_number_entry(atomic_load(&meeting->number[0]))].receive_cq;
    for (int i = 0; i < 70000; i++)
        sv_wake_at(cq, sf_now() + 1000);
    NEED(post(qp, IBV_WR_SEND, 1, 64) == 0);
    NEED(next(send_cq).status == IBV_WC_SUCCESS);
    say(4);
}

static void wades(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, stubborn);
    struct ibv_cq *which = NULL;
    void *tag;
    NEED(receive(qp, 1, 64) == 0 && ibv_req_notify_cq(receive_cq, 0) == 0);
    say(3);
    await(4);
    NEED(ibv_get_cq_event(channel, &which, &tag) == 0 && which == receive_cq);
    ibv_ack_cq_events(which, 1);
}

static void test_flood(void **state)
{
    (void)state;
    both(wades, floods);
}

/* ---- Lost messages ------------------------------------------------------------------------------------------------------- */
static void loses_with_retries(unsigned retries, unsigned lost, enum ibv_wc_status expected)
{
    struct how how = quick;
    how.retries = (uint8_t)retries;
    struct ibv_qp *qp = pair(IBV_QPT_RC, how);
    struct sf_fault *r = strike(SF_FAULT_DROP, 1, lost, 0);
    NEED(post(qp, IBV_WR_RDMA_WRITE, 1, 64) == 0);
    struct ibv_wc wc = next(send_cq);
    NEED(wc.status == expected);
    NEED(expected != IBV_WC_SUCCESS || wc.byte_len == 64);
    NEED(atomic_load(&r->hits) == (lost < retries + 1 ? lost : retries + 1));
    atomic_store(&sv_lib.fabric->fault_count, 0);
    say(3);
}

static void no_retry(void)
{
    loses_with_retries(0, 1, IBV_WC_RETRY_EXC_ERR);
}
static void enough_retries(void)
{
    loses_with_retries(2, 2, IBV_WC_SUCCESS);
}
static void too_few_retries(void)
{
    loses_with_retries(2, 3, IBV_WC_RETRY_EXC_ERR);
}

static void test_retries(void **state)
{
    (void)state;
    both(no_retry, stands_by);
    memset(meeting, 0, sizeof *meeting);
    both(enough_retries, stands_by);
    memset(meeting, 0, sizeof *meeting);
    both(too_few_retries, stands_by);
}

/* ---- Size ---------------------------------------------------------------------------------------------------------------- */
/* More than 2 GiB in one request: more than one system call moves, and more than an int counts. The memory is a mapping of the same few
   pages over and over, so it takes little memory and stays in the processor's cache. */
static void writes_2g(void)
{
    enum { STEP = 1 << 21 };
    const uint64_t size = (UINT64_C(2) << 30) + 4 * STEP;
    struct ibv_qp *a = make(IBV_QPT_RC, NULL), *b = make(IBV_QPT_RC, NULL);
    struct how how = quick;
    how.peer = b->qp_num;
    connect_to(a, how, true, true);
    how.peer = a->qp_num;
    connect_to(b, how, true, true);
    int fd = memfd_create("window", 0);
    NEED(fd >= 0 && ftruncate(fd, STEP) == 0);
    char *from = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *to = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(from != MAP_FAILED && to != MAP_FAILED);
    for (uint64_t o = 0; o < size; o += STEP) {
        NEED(mmap(from + o, STEP, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
        NEED(mmap(to + o, STEP, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
    }
    /* The last pages of target and source are separate memory. */
    NEED(mmap(from + size - STEP, STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    NEED(mmap(to + size - STEP, STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    strcpy(from + size - 8, "the end");
    struct ibv_mr *m = ibv_reg_mr(pd, from, size, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *n = ibv_reg_mr(pd, to, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    NEED(m && n);
    struct ibv_sge sge = {(uintptr_t)from, (uint32_t)size, m->lkey};
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.wr.rdma.remote_addr = (uintptr_t)to;
    wr.wr.rdma.rkey = n->rkey;
    NEED(ibv_post_send(a, &wr, &bad) == 0);
    struct ibv_wc wc = next(send_cq);
    NEED(wc.status == IBV_WC_SUCCESS && wc.byte_len == (uint32_t)size);
    NEED(strcmp(to + size - 8, "the end") == 0);
    NEED(ibv_dereg_mr(m) == 0 && ibv_dereg_mr(n) == 0);
}

static void test_2g(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* the sanitizer keeps a record of each byte */
#endif
    assert_int_equal(end(start(0, writes_2g)), 0);
}

/* ---- A shared receive queue --------------------------------------------------------------------------------------------------- */
enum { SENDERS = 3, EACH = 100 };

static void sends_to_shared(void)
{
    struct ibv_qp *qp[SENDERS];
    for (int i = 0; i < SENDERS; i++) {
        qp[i] = make(IBV_QPT_RC, NULL);
        atomic_store(&meeting->number[1 + i], qp[i]->qp_num);
    }
    await(1);
    for (int i = 0; i < SENDERS; i++) {
        struct how how = stubborn;
        how.peer = atomic_load(&meeting->address[1 + i]) & 0xffffffff;
        how.peer_host = 0;
        connect_to(qp[i], how, true, true);
    }
    for (int n = 0; n < EACH; n++) {
        for (uint64_t i = 0; i < SENDERS; i++)
            NEED(post(qp[i], IBV_WR_SEND, i, 64) == 0);
        for (int i = 0; i < SENDERS; i++)
            NEED(sleep_for(send_cq).status == IBV_WC_SUCCESS);
    }
    await(2);
}

static void receives_shared(void)
{
    struct ibv_srq_init_attr a = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &a);
    NEED(srq);
    for (int i = 0; i < SENDERS; i++) {
        struct ibv_qp *qp = make(IBV_QPT_RC, srq);
        struct how how = stubborn;
        while ((how.peer = atomic_load(&meeting->number[1 + i])) == 0)
            nap(100);
        how.peer_host = 1;
        connect_to(qp, how, true, true);
        atomic_store(&meeting->address[1 + i], qp->qp_num);
    }
    say(1);
    for (int n = 0; n < SENDERS * EACH; n++) {
        struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1}, *bad;
        if (n % 7 == 0)
            nap(200);
        NEED(ibv_post_srq_recv(srq, &wr, &bad) == 0);
        NEED(sleep_for(receive_cq).status == IBV_WC_SUCCESS);
    }
    say(2);
}

static void test_shared_queue(void **state)
{
    (void)state;
    both(receives_shared, sends_to_shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_answer_alone_is_polled, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_early_sender_looks_away, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_late_receive_is_served, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_both_sleep, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_delayed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_withheld, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stops_with_one_held, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_flood, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_retries, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_2g, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shared_queue, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
