/* SPDX-License-Identifier: MIT
 *
 * A process is killed at each step of its work on another process's queues: at its first change of shared memory, at the second, and so on.
 * Page protection stops the process at each store, so that no step is left out. The other process, the owner of the queues, sleeps all the
 * time. Afterwards the owner must have got an event for everything that has happened to its queues, nothing else may have happened to them,
 * and they must still work.
 *
 * One round: the owner (side 0) makes and connects its queue pair, and arms its queues. The victim (side 1), a new process, connects, and
 * works until it kills itself at the step with the round's number. Then the owner checks its queues.
 */
#include "sides.h"

#include <fcntl.h>
#include <ucontext.h>

enum { PLACES = 2 };

static struct rig {
    /* the number, from 1, of the last round that has reached each of these states */
    _Atomic uint32_t round, connected, prepared, dead, checked, over;
    _Atomic uint32_t acted; /* set when the victim has done everything without being killed */
    /* how many rounds in which the owner saw the operation, and in which it did not */
    _Atomic uint32_t happened, not_happened;
} * rig;

static struct scenario {
    void (*prepare)(void), (*act)(void), (*check)(bool killed);
    bool shared; /* the owner receives from a shared queue */
    int entries; /* the size of the owner's completion queue for receives; 0: large */
} now;

static struct ibv_qp *qp;
static struct ibv_srq *srq;
static struct ibv_cq *usual;

/* ---- The owner ----------------------------------------------------------------------------------------------------- */
/* The completions and events that the owner has received. The owner sleeps, and polls a queue only after an event. */
static struct heard {
    int good, flushed, failed, sent;
    int events[32];
} heard;

static void take(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    while (ibv_poll_cq(cq, 1, &wc) == 1) {
        heard.sent += cq == send_cq;
        if (cq == send_cq)
            continue;
        NEED(wc.wr_id == (uint64_t)(heard.good + heard.failed + heard.flushed)); /* each completion comes once, in order */
        heard.good += wc.status == IBV_WC_SUCCESS;
        heard.flushed += wc.status == IBV_WC_WR_FLUSH_ERR;
        heard.failed += wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR;
    }
}

static bool readable(int fd)
{
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1;
}

static void listen_to_all(void)
{
    while (readable(channel->fd) || readable(context->async_fd)) {
        struct ibv_async_event event;
        struct ibv_cq *which;
        void *tag;
        if (ibv_get_cq_event(channel, &which, &tag) == 0) {
            ibv_ack_cq_events(which, 1);
            NEED(ibv_req_notify_cq(which, 0) == 0);
            take(which);
        } else
            NEED(errno == EAGAIN);
        if (ibv_get_async_event(context, &event) == 0) {
            heard.events[event.event_type]++;
            ibv_ack_async_event(&event);
        } else
            NEED(errno == EAGAIN);
    }
}

static uint32_t state(void)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr a;
    NEED(ibv_query_qp(qp, &a, IBV_QP_STATE, &init) == 0);
    return a.qp_state;
}

/* Check that no completion and no event is waiting of which the owner has not been notified. */
static void nothing_untold(void)
{
    struct heard before = heard;
    uint32_t was = state();
    take(receive_cq);
    take(send_cq);
    NEED(memcmp(&before, &heard, sizeof heard) == 0 && state() == was);
}

static int receive_any(uint64_t id, uint32_t key)
{
    struct ibv_sge sge = {(uintptr_t)memory, 64, key};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    return srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
}

static void expect(bool happened)
{
    atomic_fetch_add(happened ? &rig->happened : &rig->not_happened, 1);
}

static void owner(void)
{
    NEED(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0 && fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
    usual = receive_cq;
    for (uint32_t round = 1;; round++) {
        while (atomic_load(&rig->round) < round) {
            if (atomic_load(&rig->over))
                return;
            nap(50);
        }
        alarm(80);
        memset(&heard, 0, sizeof heard);
        if (now.entries)
            NEED((receive_cq = ibv_create_cq(context, now.entries, NULL, channel, 0)) != NULL);
        if (now.shared)
            NEED((srq = ibv_create_srq(pd, &(struct ibv_srq_init_attr){.attr = {.max_wr = PLACES, .max_sge = 1}})) != NULL);
        qp = make(IBV_QPT_RC, srq);
        connect_to(qp, acquainted(qp, quick), true, true);
        NEED(ibv_req_notify_cq(receive_cq, 0) == 0 && ibv_req_notify_cq(send_cq, 0) == 0);
        while (atomic_load(&rig->connected) < round) /* a message to a queue pair that is not ready yet fails after a few milliseconds */
            nap(50);
        now.prepare();
        atomic_store(&rig->prepared, round);
        while (atomic_load(&rig->dead) < round)
            nap(50);
        now.check(atomic_load(&rig->acted) == 0);
        NEED(ibv_destroy_qp(qp) == 0);
        if (srq)
            NEED(ibv_destroy_srq(srq) == 0);
        srq = NULL;
        if (now.entries)
            NEED(ibv_destroy_cq(receive_cq) == 0);
        receive_cq = usual;
        struct ibv_wc wc;
        while (ibv_poll_cq(send_cq, 1, &wc) == 1 || ibv_poll_cq(receive_cq, 1, &wc) == 1)
            ;
        listen_to_all();
        atomic_store(&rig->checked, round);
    }
}

/* ---- The victim ---------------------------------------------------------------------------------------------------- */
/* Copies of the parts of the fabric that both processes use, taken after the last store. */
static struct part {
    const char *at;
    size_t bytes;
    char was[sizeof(struct sf_qp) > sizeof(struct sf_cq) ? sizeof(struct sf_qp) : sizeof(struct sf_cq)];
} parts[16];
static int part_count;
static uint32_t steps_left; /* changes of shared memory that are left until this process kills itself */

static void watch(const void *at, size_t bytes)
{
    struct part *p = &parts[part_count++];
    NEED(bytes <= sizeof p->was);
    *p = (struct part){.at = at, .bytes = bytes};
    memcpy(p->was, at, bytes);
}

static void watch_all(const struct sf_fabric *f)
{
    for (int s = 0; s < 2; s++) {
        const struct sf_qp *q = &f->qps[sf_number_entry(atomic_load(&meeting->number[s]))];
        const uint32_t queues[2] = {q->send_cq, q->receive_cq};
        watch(q, sizeof *q);
        for (int c = 0; c < 2; c++) {
            watch(&f->cqs[queues[c]], sizeof *f->cqs);
            watch((const char *)f + f->cqs[queues[c]].ring, (f->cqs[queues[c]].capacity > 1 ? 2 : 1) * sizeof(struct sf_cqe));
        }
        if (q->srq)
            watch(&f->srqs[q->srq - 1], sizeof *f->srqs);
    }
}

static void protect(int how)
{
    for (int i = 0; i < part_count; i++) {
        uintptr_t from = (uintptr_t)parts[i].at / SF_PAGE * SF_PAGE;
        NEED(mprotect((void *)from, (uintptr_t)parts[i].at + parts[i].bytes - from, how) == 0);
    }
}

#ifdef __x86_64__
enum { TRAP = 0x100 }; /* the flag of the processor that causes SIGTRAP after the next instruction */
static char *opened;   /* the page that is writable now, because a store to it is under way */

/* The signal handler for a store: lets this one store through. */
static void at_a_store(int number, siginfo_t *info, void *at)
{
    (void)number;
    opened = (char *)((uintptr_t)info->si_addr / SF_PAGE * SF_PAGE);
    NEED(mprotect(opened, SF_PAGE, PROT_READ | PROT_WRITE) == 0);
    ((ucontext_t *)at)->uc_mcontext.gregs[REG_EFL] |= TRAP;
}

static void behind_a_store(int number, siginfo_t *info, void *at)
{
    bool changed = false;
    (void)number, (void)info;
    for (int i = 0; i < part_count; i++)
        if (memcmp(parts[i].was, parts[i].at, parts[i].bytes) != 0) {
            memcpy(parts[i].was, parts[i].at, parts[i].bytes);
            changed = true;
        }
    if (changed && --steps_left == 0)
        kill(getpid(), SIGKILL);
    NEED(mprotect(opened, SF_PAGE, PROT_READ) == 0);
    ((ucontext_t *)at)->uc_mcontext.gregs[REG_EFL] &= ~TRAP;
}

static void stop_at_stores(void)
{
    struct sigaction store = {.sa_sigaction = at_a_store, .sa_flags = SA_SIGINFO};
    struct sigaction behind = {.sa_sigaction = behind_a_store, .sa_flags = SA_SIGINFO};
    NEED(sigaction(SIGSEGV, &store, NULL) == 0 && sigaction(SIGTRAP, &behind, NULL) == 0);
    protect(PROT_READ);
}
#else
static void stop_at_stores(void)
{
    NEED(false);
}
#endif

static void victim(void)
{
    qp = make(IBV_QPT_RC, NULL);
    connect_to(qp, acquainted(qp, quick), true, true);
    atomic_store(&rig->connected, atomic_load(&rig->round));
    while (atomic_load(&rig->prepared) < atomic_load(&rig->round))
        nap(50);
    watch_all(sv_lib.fabric);
    steps_left = atomic_load(&rig->round);
    stop_at_stores();
    now.act();
    protect(PROT_READ | PROT_WRITE);
    atomic_store(&rig->acted, 1);
    raise(SIGKILL);
}

static void each_step(struct scenario scenario)
{
#ifndef __x86_64__
    skip(); /* on other processors single steps need a tracer */
#endif
    now = scenario;
    rig = mmap(NULL, sizeof *rig, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(rig != MAP_FAILED);
    pid_t sleeper = start(0, owner);
    for (uint32_t round = 1; !atomic_load(&rig->acted); round++) {
        memset(meeting->number, 0, sizeof meeting->number);
        atomic_store(&rig->round, round);
        assert_int_equal(end(start(1, victim)), SIGKILL);
        atomic_store(&rig->dead, round);
        while (atomic_load(&rig->checked) < round) {
            if (waitpid(sleeper, NULL, WNOHANG) != 0) {
                fprintf(stderr, "the victim was killed at step %u\n", round);
                fail();
            }
            nap(50);
        }
    }
    atomic_store(&rig->over, 1);
    assert_int_equal(end(sleeper), 0);
    /* In some rounds the victim was killed before the operation, and in some after it. */
    assert_true(atomic_load(&rig->happened) > 0 && atomic_load(&rig->not_happened) > 0);
    munmap(rig, sizeof *rig);
}

/* ---- A message ------------------------------------------------------------------------------------------------------ */
static void one_receive(void)
{
    NEED(receive_any(0, mr->lkey) == 0);
}

static void sends(void)
{
    post(qp, IBV_WR_SEND, 1, 8);
}

static void came_or_not(bool killed)
{
    listen_to_all();
    nothing_untold();
    NEED(heard.good <= 1 && heard.failed + heard.flushed == 0 && (killed || heard.good == 1));
    NEED(state() == IBV_QPS_RTS);
    expect(heard.good == 1);
    /* The receive was either used, or is still posted. */
    NEED(ibv_modify_qp(qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE) == 0);
    take(receive_cq);
    NEED(heard.good + heard.flushed == 1);
}

static void test_message(void **unused)
{
    (void)unused;
    each_step((struct scenario){one_receive, sends, came_or_not, .shared = false});
}

/* ---- A message into a shared queue, which falls below its limit ----------------------------------------------------- */
static void two_receives(void)
{
    for (uint64_t i = 0; i < PLACES; i++)
        NEED(receive_any(i, mr->lkey) == 0);
    NEED(ibv_modify_srq(srq, &(struct ibv_srq_attr){.srq_limit = PLACES}, IBV_SRQ_LIMIT) == 0);
}

static void connect_pair(struct ibv_qp *a, struct ibv_qp *b)
{
    struct how how = quick;
    how.peer_host = (uint32_t)side;
    how.peer = b->qp_num;
    connect_to(a, how, true, true);
    how.peer = a->qp_num;
    connect_to(b, how, true, true);
}

static void shared_goes_on(bool killed)
{
    listen_to_all();
    nothing_untold();
    NEED(heard.good <= 1 && (killed || (heard.good == 1 && heard.events[IBV_EVENT_SRQ_LIMIT_REACHED] == 1)));
    expect(heard.good == 1);
    struct ibv_qp *a = make(IBV_QPT_RC, NULL), *b = make(IBV_QPT_RC, srq);
    connect_pair(a, b);
    for (int left = PLACES - heard.good; left > 0; left--) {
        NEED(post(a, IBV_WR_SEND, 1, 8) == 0);
        NEED(next(send_cq).status == IBV_WC_SUCCESS);
    }
    listen_to_all();
    NEED(heard.good == PLACES && heard.failed + heard.flushed == 0);
    /* If the victim is killed between sending the event and recording that, the event comes twice. */
    NEED(heard.events[IBV_EVENT_SRQ_LIMIT_REACHED] == 1 || (killed && heard.events[IBV_EVENT_SRQ_LIMIT_REACHED] == 2));
    for (uint64_t i = 0; i < PLACES; i++)
        NEED(receive_any(i, mr->lkey) == 0);
    NEED(receive_any(9, mr->lkey) == ENOMEM);
    NEED(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
}

static void test_shared(void **unused)
{
    (void)unused;
    each_step((struct scenario){two_receives, sends, shared_goes_on, .shared = true});
}

/* ---- A write that is refused ----------------------------------------------------------------------------------------- */
static void writes_badly(void)
{
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {0x1000, 0x777}}, *bad;
    ibv_post_send(qp, &wr, &bad);
}

static void in_error_or_not(bool killed)
{
    listen_to_all();
    nothing_untold();
    bool failed = state() == IBV_QPS_ERR;
    NEED((failed || killed) && (failed || state() == IBV_QPS_RTS));
    NEED(heard.events[IBV_EVENT_QP_ACCESS_ERR] == failed);
    NEED(heard.events[IBV_EVENT_QP_LAST_WQE_REACHED] == (failed && srq));
    NEED(heard.good + heard.failed == 0 && heard.flushed == (failed && !srq));
    expect(failed);
}

static void test_refused_write(void **unused)
{
    (void)unused;
    each_step((struct scenario){one_receive, writes_badly, in_error_or_not, .shared = false});
}

static void test_refused_write_shared(void **unused)
{
    (void)unused;
    each_step((struct scenario){one_receive, writes_badly, in_error_or_not, .shared = true});
}

/* ---- A message for which the receive is no good ------------------------------------------------------------------------ */
static void bad_receive(void)
{
    NEED(receive_any(0, 0x12345) == 0);
}

static void receive_fails_or_not(bool killed)
{
    listen_to_all();
    nothing_untold();
    bool failed = state() == IBV_QPS_ERR;
    NEED((failed || killed) && (failed || state() == IBV_QPS_RTS));
    NEED(heard.good == 0 && heard.failed <= 1 && heard.failed + heard.flushed <= 1 && (killed || heard.failed == 1));
    NEED(heard.failed + heard.flushed == 0 || failed);
    NEED(heard.events[IBV_EVENT_QP_LAST_WQE_REACHED] == (failed && srq));
    expect(failed);
}

static void test_bad_receive(void **unused)
{
    (void)unused;
    each_step((struct scenario){bad_receive, sends, receive_fails_or_not, .shared = false});
}

static void test_bad_receive_shared(void **unused)
{
    (void)unused;
    each_step((struct scenario){bad_receive, sends, receive_fails_or_not, .shared = true});
}

/* ---- Completions for which there is no room ---------------------------------------------------------------------------- */
static void receives_for_two(void)
{
    for (uint64_t i = 0; i < PLACES; i++)
        NEED(receive_any(i, mr->lkey) == 0);
}

static void sends_two(void)
{
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr wr[2] = {{.next = &wr[1], .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND},
                                {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}},
                       *bad;
    ibv_post_send(qp, wr, &bad);
}

static void overrun_or_not(bool killed)
{
    const struct sf_cq *shared = sv_container(receive_cq, struct sv_cq, base)->shared;
    listen_to_all();
    bool dead = atomic_load(&shared->dead), failed = state() == IBV_QPS_ERR;
    NEED(killed || (dead && failed));
    NEED(!dead || heard.events[IBV_EVENT_CQ_ERR] == 1);
    NEED(heard.events[IBV_EVENT_CQ_ERR] <= 1 && heard.events[IBV_EVENT_QP_FATAL] == failed);
    NEED(heard.events[IBV_EVENT_QP_LAST_WQE_REACHED] == failed);
    expect(dead);
    /* When the queue pair is destroyed, with the completion that did come, both slots are free: neither was lost, nor freed twice. */
    NEED(ibv_destroy_qp(qp) == 0);
    qp = make(IBV_QPT_RC, srq);
    struct sf_receive_queue *q = &sv_container(srq, struct sv_srq, base)->shared->queue;
    sf_lock_receive(&sv_lib.view, q, NULL); /* takes the lock that the dead process held */
    uint64_t left = atomic_load(&q->posted) - atomic_load(&q->done);
    sf_unlock(&sv_lib.view, &q->lock);
    for (uint64_t i = left; i < PLACES; i++)
        NEED(receive_any(i, mr->lkey) == 0);
    NEED(receive_any(9, mr->lkey) == ENOMEM);
}

static void test_overrun(void **unused)
{
    (void)unused;
    each_step((struct scenario){receives_for_two, sends_two, overrun_or_not, .shared = true, .entries = 1});
}

/* ---- A receive for which the owner's message waits: the victim delivers it -------------------------------------------- */
static void sends_early(void)
{
    NEED(post(qp, IBV_WR_SEND, 5, 8) == 0);
}

static void receives_late(void)
{
    receive(qp, 6, 64);
}

/* The owner's message must end, wherever the victim was killed. */
static void ends_well_or_not(bool killed)
{
    (void)killed;
    NEED(fcntl(channel->fd, F_SETFL, 0) == 0);
    struct ibv_wc wc = sleep_for(send_cq);
    NEED(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
    NEED(wc.wr_id == 5 && (wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR));
    expect(wc.status == IBV_WC_SUCCESS);
    nap(2000);
    NEED(ibv_poll_cq(send_cq, 1, &wc) == 0);
}

static void test_late_receive(void **unused)
{
    (void)unused;
    each_step((struct scenario){sends_early, receives_late, ends_well_or_not, .shared = false});
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_message),       TEST(test_shared),
        TEST(test_refused_write), TEST(test_refused_write_shared),
        TEST(test_bad_receive),   TEST(test_bad_receive_shared),
        TEST(test_overrun),       TEST(test_late_receive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
