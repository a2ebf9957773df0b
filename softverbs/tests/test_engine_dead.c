/* SPDX-License-Identifier: MIT
 *
 * Queues of several processes (sides.h): what happens to the others when a process dies, is killed at any moment, is stopped, or exits in
 * the middle of its work.
 */
#include "sides.h"

/* ---- A peer that dies ------------------------------------------------------------------------------------------------ */

static void dies_unready(void)
{
    pair(IBV_QPT_RC, quick);
    await(3);
    raise(SIGKILL);
}

/* The sender waits for a receive of a dead peer with unlimited RNR retries. The request still ends, because the time-out for an unanswered
 * request applies. */
static void sends_to_the_dead(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, quick);
    NEED(post(qp, IBV_WR_SEND, 1, 64) == 0);
    say(3);
    struct ibv_wc wc = next(send_cq);
    NEED(wc.wr_id == 1 && wc.status == IBV_WC_RETRY_EXC_ERR);
    NEED(post(qp, IBV_WR_SEND, 2, 64) == 0);
    NEED(next(send_cq).status == IBV_WC_WR_FLUSH_ERR);
}

static void test_dead_unready(void **state)
{
    (void)state;
    pid_t a = start(0, sends_to_the_dead), b = start(1, dies_unready);
    end(b);
    assert_int_equal(end(a), 0);
}

static void sleeps_for_the_dead(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, quick);
    NEED(post(qp, IBV_WR_SEND, 1, 64) == 0);
    say(3);
    struct ibv_wc wc = sleep_for(send_cq);
    NEED(wc.wr_id == 1 && wc.status == IBV_WC_RETRY_EXC_ERR);
}

static void test_dead_asleep(void **state)
{
    (void)state;
    pid_t a = start(0, sleeps_for_the_dead), b = start(1, dies_unready);
    end(b);
    assert_int_equal(end(a), 0);
}

static void becomes_another_program(void)
{
    pair(IBV_QPT_RC, quick);
    await(3);
    execl("/bin/sleep", "sleep", "20", NULL);
}

/* The receiver's process is alive, but has replaced its program (exec). */
static void writes_to_another_program(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, quick);
    say(3);
    while (sf_alive(sv_lib.fabric, sv_lib.fabric->qps[sf_number_entry(atomic_load(&meeting->number[1]))].owner))
        nap(100);
    NEED(post(qp, IBV_WR_RDMA_WRITE, 1, 64) == 0);
    NEED(next(send_cq).status == IBV_WC_RETRY_EXC_ERR);
}

static void test_another_program(void **state)
{
    (void)state;
    pid_t a = start(0, writes_to_another_program), b = start(1, becomes_another_program);
    int status = end(a);
    kill(b, SIGKILL);
    end(b);
    assert_int_equal(status, 0);
}

static void writes_nothing_to_the_dead(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, quick);
    say(3);
    await(4);
    NEED(post(qp, IBV_WR_RDMA_WRITE, 1, 0) == 0);
    NEED(next(send_cq).status == IBV_WC_RETRY_EXC_ERR);
}

static void test_dead_nothing(void **state)
{
    (void)state;
    pid_t a = start(0, writes_nothing_to_the_dead), b = start(1, dies_unready);
    end(b);
    say(4);
    assert_int_equal(end(a), 0);
}

/* ---- Stopped, and killed, anywhere ------------------------------------------------------------------------------------------- */
static void short_nap(unsigned *seed, unsigned most_us)
{
    nap((long)((unsigned)rand_r(seed) % most_us));
}

/* A stopped process, which may hold a lock, makes the others wait, but does no other harm. */
static void test_stopped(void **state)
{
    unsigned seed = (unsigned)getpid();
    (void)state;
    pid_t child[2] = {start(0, sleepy_sender), start(1, sleepy_receiver)};
    int status[2] = {-1, -1}, left = 2;
    for (int i = 0; left > 0; i++) {
        pid_t chosen = child[rand_r(&seed) & 1];
        if (chosen && i < 400) {
            kill(chosen, SIGSTOP);
            short_nap(&seed, 300);
            kill(chosen, SIGCONT);
        }
        short_nap(&seed, 300);
        for (int c = 0; c < 2; c++)
            if (child[c] && waitpid(child[c], &status[c], WNOHANG) == child[c])
                child[c] = 0, left--;
    }
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
}

static void sends_until_error(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, quick);
    say(3);
    struct ibv_wc wc;
    uint64_t sent = 0, ended = 0;
    do {
        while (sent < ended + 1 + sent % 3 && post(qp, IBV_WR_SEND, sent, 64) == 0)
            sent++;
        wc = sleep_for(send_cq);
        NEED(wc.wr_id == ended++);
    } while (wc.status == IBV_WC_SUCCESS);
    NEED(wc.status == IBV_WC_RETRY_EXC_ERR);
    while (ended < sent) {
        wc = sleep_for(send_cq);
        NEED(wc.wr_id == ended++ && wc.status == IBV_WC_WR_FLUSH_ERR);
    }
}

static void receives_for_ever(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, quick);
    struct ibv_wc wc;
    for (uint64_t posted = 0, ended = 0;;) {
        while (posted < ended + 2 && receive(qp, posted, 64) == 0)
            posted++;
        while (ibv_poll_cq(receive_cq, 1, &wc) == 1)
            NEED(wc.status == IBV_WC_SUCCESS && wc.wr_id == ended++);
    }
}

/* The receiver executes requests of the sender's queue as often as the sender does, and is killed meanwhile. The sender, which mostly
 * sleeps, still gets every completion, in order. */
static void test_killed_while_peer_sleeps(void **state)
{
    unsigned seed = (unsigned)getpid();
    (void)state;
    for (int round = 0; round < 40; round++) {
        memset(meeting, 0, sizeof *meeting);
        pid_t a = start(0, sends_until_error), b = start(1, receives_for_ever);
        while (atomic_load(&meeting->stage) < 3)
            nap(100);
        short_nap(&seed, 3000);
        kill(b, SIGKILL);
        end(b);
        assert_int_equal(end(a), 0);
    }
}

/* Leave the state of a process that dies after it has written a completion and before it wakes the sleeping owner: the queue is disarmed,
 * no message was sent, and the send queue is locked. */
static void dies_before_it_says_so(void)
{
    pair(IBV_QPT_RC, stubborn);
    await(3);
    nap(5000);
    uint32_t q = sf_number_entry(atomic_load(&meeting->number[0]));
    struct sf_qp *qp = &sv_lib.fabric->qps[q];
    sf_lock_send(&sv_lib.view, qp);
    struct sf_cq *cq = &sv_lib.fabric->cqs[qp->send_cq];
    atomic_store(&cq->armed, 0);
    sv_complete(qp->send_cq, &(struct sf_cqe){.wr_id = 77, .qp = q, .qp_num = qp->number},
                &(struct sf_intent){.kind = 1, .index = q, .done = 1});
    raise(SIGKILL);
}

static void sleeps_for_one(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, stubborn);
    NEED(post(qp, IBV_WR_SEND, 77, 64) == 0);
    say(3);
    NEED(sleep_for(send_cq).wr_id == 77);
}

static void test_killed_before_it_says_so(void **state)
{
    (void)state;
    pid_t a = start(0, sleeps_for_one), b = start(1, dies_before_it_says_so);
    end(b);
    assert_int_equal(end(a), 0);
}

/* Leave the state of a process that dies after it has brought its peer's queue pair to ERR and before it has flushed that queue pair. */
static void dies_before_it_flushes(void)
{
    pair(IBV_QPT_RC, stubborn);
    await(3);
    nap(5000);
    sv_fail_qp(sf_number_entry(atomic_load(&meeting->number[0])), IBV_EVENT_QP_ACCESS_ERR, &(struct sv_later){0});
    raise(SIGKILL);
}

static void sleeps_for_a_flush(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, stubborn);
    NEED(receive(qp, 78, 64) == 0);
    say(3);
    struct ibv_wc wc = sleep_for(receive_cq);
    NEED(wc.wr_id == 78 && wc.status == IBV_WC_WR_FLUSH_ERR);
}

static void test_killed_before_it_flushes(void **state)
{
    (void)state;
    pid_t a = start(0, sleeps_for_a_flush), b = start(1, dies_before_it_flushes);
    end(b);
    assert_int_equal(end(a), 0);
}

/* Act like a process that is in the middle of a write to its peer's memory. */
static void takes_its_time(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, stubborn);
    for (uint32_t turn = 0; turn < 3; turn++) {
        struct sf_qp *s = &sv_lib.fabric->qps[sf_number_entry(qp->qp_num)];
        await(3 + 2 * turn);
        sf_lock_send(&sv_lib.view, s);
        atomic_store(&s->busy_with, sv_lib.fabric->qps[sf_number_entry(atomic_load(&meeting->number[0]))].owner);
        atomic_fetch_add(&s->busy, 1);
        say(4 + 2 * turn);
        nap(30000);
        atomic_store(&meeting->key[3], turn + 1);
        atomic_fetch_add(&s->busy, 1);
        sf_unlock(&sv_lib.view, &s->lock);
    }
}

static void waits_for_its_memory(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, stubborn);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
    say(3);
    await(4);
    NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0 && atomic_load(&meeting->key[3]) == 1);
    say(5);
    await(6);
    a.qp_state = IBV_QPS_RESET;
    NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0 && atomic_load(&meeting->key[3]) == 2);
    say(7);
    await(8);
    NEED(ibv_destroy_qp(qp) == 0 && atomic_load(&meeting->key[3]) == 3);
}

static void test_nothing_arrives_later(void **state)
{
    (void)state;
    both(waits_for_its_memory, takes_its_time);
}

/* A stopped process holds a lock of another process: the other process can still exit. */
static void holds_a_lock(void)
{
    pair(IBV_QPT_RC, stubborn);
    sf_lock(&sv_lib.view, &sv_lib.fabric->qps[sf_number_entry(atomic_load(&meeting->number[0]))].receive.lock);
    raise(SIGSTOP);
    sf_unlock(&sv_lib.view, &sv_lib.fabric->qps[sf_number_entry(atomic_load(&meeting->number[0]))].receive.lock);
}

static void ends_meanwhile(void)
{
    pair(IBV_QPT_RC, stubborn);
    await(4);
    alarm(30);
}

static void test_end_while_another_is_stopped(void **state)
{
    (void)state;
    pid_t a = start(0, ends_meanwhile), b = start(1, holds_a_lock);
    int stopped = 0;
    assert_int_equal(waitpid(b, &stopped, WUNTRACED), b);
    assert_true(WIFSTOPPED(stopped));
    say(4);
    int status = end(a);
    kill(b, SIGCONT);
    assert_int_equal(end(b), 0);
    assert_int_equal(status, 0);
}

/* A program whose first thread ends while a second one goes on. */
static void *goes_on(void *unused)
{
    (void)unused;
    nap(10000);
    say(3);
    NEED(next(receive_cq).status == IBV_WC_SUCCESS);
    say(4);
    NEED(sleep_for(receive_cq).status == IBV_WC_SUCCESS);
    _exit(0); /* this thread must not free what the first thread had on its stack */
}

static void first_thread_ends(void)
{
    pthread_t thread;
    struct ibv_qp *qp = pair(IBV_QPT_RC, quick);
    NEED(receive(qp, 1, 64) == 0 && receive(qp, 2, 64) == 0);
    NEED(pthread_create(&thread, NULL, goes_on, NULL) == 0);
    pthread_exit(NULL);
}

static void sends_to_the_rest(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, quick);
    await(3);
    NEED(post(qp, IBV_WR_SEND, 1, 64) == 0);
    NEED(next(send_cq).status == IBV_WC_SUCCESS);
    await(4);
    nap(5000);
    NEED(post(qp, IBV_WR_SEND, 2, 64) == 0);
    NEED(next(send_cq).status == IBV_WC_SUCCESS);
}

static void test_first_thread_ends(void **state)
{
    (void)state;
    both(sends_to_the_rest, first_thread_ends);
}

/* As many processes have died as the table has entries: a new process still finds an entry. */
static void takes_a_place(void)
{
    NEED(sv_lib.fabric->devices[0].pds <= 1);
}

static void test_full_of_dead(void **state)
{
    struct sf_view look;
    struct sv_why why;
    (void)state;
    pid_t gone = fork();
    if (gone == 0)
        _exit(0);
    end(gone);
    assert_int_equal(end(start(0, takes_a_place)), 0); /* this process leaves processes[0].space behind, which is copied below */
    assert_int_equal(sf_attach(&look, "test", false, 0, &why), 0);
    for (uint32_t p = 0; p < SF_PROCESSES; p++) {
        look.fabric->processes[p] = (struct sf_process){.pid = gone, .thread = gone, .cookie = 1, .space = look.fabric->processes[0].space};
        atomic_store(&look.fabric->processes[p].owner, 1);
    }
    look.fabric->process_top = SF_PROCESSES;
    sf_detach(&look);
    for (int n = 0; n < 3; n++)
        assert_int_equal(end(start(0, takes_a_place)), 0);
}

/* Create, use and destroy all kinds of objects, again and again. */
static void churns(void)
{
    atomic_store(&meeting->address[!side], (uintptr_t)memory);
    for (;;) {
        struct ibv_cq *keep[2] = {send_cq, receive_cq};
        struct ibv_srq_init_attr shared = {.attr = {.max_wr = 4, .max_sge = 1}};
        struct ibv_wc wc;
        struct how how = quick;
        atomic_fetch_add(&meeting->stage, 1);
        send_cq = ibv_create_cq(context, 8, NULL, channel, 0);
        receive_cq = ibv_create_cq(context, 8, NULL, NULL, 0);
        struct ibv_srq *srq = ibv_create_srq(pd, &shared);
        struct ibv_mr *other = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
        NEED(send_cq && receive_cq && srq && other);
        struct ibv_qp *a = make(IBV_QPT_RC, NULL), *b = make(IBV_QPT_RC, srq);
        how.peer = b->qp_num, how.peer_host = (uint32_t)side;
        connect_to(a, how, true, true);
        how.peer = a->qp_num;
        connect_to(b, how, true, true);
        NEED(post(a, IBV_WR_SEND, 1, 64) == 0);
        struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1}, *bad;
        NEED(ibv_post_srq_recv(srq, &wr, &bad) == 0);
        NEED(ibv_poll_cq(send_cq, 1, &wc) == 1 && ibv_poll_cq(receive_cq, 1, &wc) == 1);
        NEED(ibv_resize_cq(send_cq, 100) == 0);
        NEED(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_srq(srq) == 0 && ibv_dereg_mr(other) == 0);
        NEED(ibv_destroy_cq(send_cq) == 0 && ibv_destroy_cq(receive_cq) == 0);
        send_cq = keep[0], receive_cq = keep[1];
    }
}

static void test_killed_while_making(void **state)
{
    unsigned seed = (unsigned)getpid();
    (void)state;
    for (int round = 0; round < 40; round++) {
        memset(meeting, 0, sizeof *meeting);
        pid_t child[2] = {start(0, churns), start(0, churns)};
        while (atomic_load(&meeting->stage) < 4)
            nap(100);
        for (int i = 0; i < 2; i++) {
            short_nap(&seed, 1000);
            kill(child[i], SIGKILL);
        }
        for (int i = 0; i < 2; i++)
            assert_int_equal(end(child[i]), SIGKILL);
    }
}

static void leaves(int number)
{
    (void)number;
    exit(0); /* NOLINT(bugprone-signal-handler): programs do this, and the test checks what the library makes of it */
}

static void leaves_from_a_handler(void)
{
    struct ibv_qp *a = make(IBV_QPT_RC, NULL), *b = make(IBV_QPT_RC, NULL);
    unsigned seed = (unsigned)getpid();
    struct how how = quick;
    how.peer = b->qp_num;
    connect_to(a, how, true, true);
    how.peer = a->qp_num;
    connect_to(b, how, true, true);
    atomic_store(&meeting->address[1], (uintptr_t)memory);
    atomic_store(&meeting->key[1], mr->rkey);
    signal(SIGALRM, leaves);
    struct itimerval when = {.it_value = {.tv_usec = 500 + rand_r(&seed) % 2000}};
    setitimer(ITIMER_REAL, &when, NULL);
    for (;;) {
        struct ibv_wc wc;
        NEED(receive(b, 1, 64) == 0 && post(a, IBV_WR_SEND, 1, 64) == 0);
        while (ibv_poll_cq(send_cq, 1, &wc) == 0)
            ;
        NEED(ibv_poll_cq(receive_cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
        struct ibv_mr *other = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
        NEED(other && ibv_dereg_mr(other) == 0);
        ibv_destroy_qp(make(IBV_QPT_UC, NULL));
    }
}

/* A signal handler that calls exit() interrupts the library at any point, while it may hold any lock: the program ends. */
static void test_exit_from_handler(void **state)
{
    (void)state;
    for (int round = 0; round < 25; round++)
        assert_int_equal(end(start(0, leaves_from_a_handler)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_dead_unready, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_dead_asleep, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_dead_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_another_program, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stopped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_killed_while_peer_sleeps, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_killed_before_it_says_so, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_killed_before_it_flushes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nothing_arrives_later, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_end_while_another_is_stopped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_first_thread_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_full_of_dead, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_killed_while_making, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_exit_from_handler, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
