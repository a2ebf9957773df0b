/* SPDX-License-Identifier: MIT
 *
 * Completion queues, completion channels, and asynchronous events: made and destroyed, used by this process and by others, by sleeping and
 * by polling programs.
 */
#include "inside.h"

#include "../lib/lib.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct ground ground;
static struct ibv_context *context;

static struct sv_cq *own(struct ibv_cq *cq)
{
    return sv_container(cq, struct sv_cq, base);
}

static bool readable(int fd, int milliseconds)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, milliseconds) == 1;
}

static struct ibv_comp_channel *new_channel(bool waits)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);

    assert_non_null(channel);
    assert_ptr_equal(channel->context, context);
    assert_int_equal(fcntl(channel->fd, F_GETFL) & O_NONBLOCK, 0);
    if (!waits)
        assert_int_equal(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
    return channel;
}

/* Adds a completion to a queue, as the execution of a request does. */
static void complete(struct ibv_cq *cq, uint64_t wr_id, bool solicited)
{
    sv_complete(own(cq)->entry, &(struct sf_cqe){.wr_id = wr_id, .solicited = solicited}, NULL);
}

static void nothing(struct ibv_comp_channel *channel)
{
    struct ibv_cq *cq;
    void *tag;

    assert_false(readable(channel->fd, 0));
    assert_int_equal(ibv_get_cq_event(channel, &cq, &tag), -1);
    assert_int_equal(errno, EAGAIN);
}

static void get(struct ibv_comp_channel *channel, struct ibv_cq *expected)
{
    struct ibv_cq *cq = NULL;
    void *tag = NULL;

    assert_true(readable(channel->fd, 30000));
    assert_int_equal(ibv_get_cq_event(channel, &cq, &tag), 0);
    assert_ptr_equal(cq, expected);
    assert_ptr_equal(tag, expected->cq_context);
}

/* ---- Queues ---------------------------------------------------------------------------------------------------- */
static void test_sizes(void **state)
{
    struct ibv_cq *cq[5];

    (void)state;
    assert_null(ibv_create_cq(context, 0, NULL, NULL, 0));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_create_cq(context, -1, NULL, NULL, 0));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_create_cq(context, 101, NULL, NULL, 0));
    assert_int_equal(errno, E2BIG);
    assert_null(ibv_create_cq(context, 10, NULL, NULL, context->num_comp_vectors));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_create_cq(context, 10, NULL, NULL, -1));
    assert_int_equal(errno, EINVAL);
    for (int i = 0; i < 5; i++) {
        cq[i] = ibv_create_cq(context, i < 4 ? i + 1 : 100, &cq[i], NULL, 0);
        if (i == 4)
            break;
        assert_non_null(cq[i]);
        assert_true(cq[i]->cqe >= i + 1);
        assert_ptr_equal(cq[i]->cq_context, &cq[i]);
        assert_ptr_equal(cq[i]->context, context);
    }
    assert_null(cq[4]); /* only four are allowed */
    assert_int_equal(errno, ENFILE);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ibv_destroy_cq(cq[i]), 0);
    assert_int_equal(sv_lib.fabric->devices[sv_context_of(context)->device].cqs, 0);
}

static void test_resize(void **state)
{
    struct ibv_cq *cq = ibv_create_cq(context, 7, NULL, NULL, 0);
    struct ibv_wc wc[8];
    uint64_t sent = 0, seen = 0;

    (void)state;
    assert_non_null(cq);
    for (int turn = 0; turn < 10; turn++) {
        for (int i = 0; i < 5; i++)
            complete(cq, sent++, false);
        assert_int_equal(ibv_resize_cq(cq, 4), EINVAL); /* five completions are in the queue */
        assert_int_equal(ibv_resize_cq(cq, 0), EINVAL);
        assert_int_equal(ibv_resize_cq(cq, 101), E2BIG);
        assert_int_equal(ibv_resize_cq(cq, turn % 2 ? 5 : 33), 0);
        assert_int_equal(cq->cqe, turn % 2 ? 5 : 33);
        if (turn % 2 == 0)
            complete(cq, sent++, false);
        for (int n; (n = ibv_poll_cq(cq, 3, wc)) > 0;)
            for (int i = 0; i < n; i++)
                assert_int_equal(wc[i].wr_id, seen++);
        assert_int_equal(seen, sent);
    }
    assert_int_equal(ibv_destroy_cq(cq), 0);
}

/* One completion more than the queue has room for: no more completions are written, and the program gets an event. */
static void test_overrun(void **state)
{
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_async_event event;

    (void)state;
    assert_non_null(cq);
    assert_false(readable(context->async_fd, 0));
    for (int i = 0; i < 6; i++)
        complete(cq, 0, false);
    assert_true(readable(context->async_fd, 0));
    assert_int_equal(ibv_get_async_event(context, &event), 0);
    assert_int_equal(event.event_type, IBV_EVENT_CQ_ERR);
    assert_ptr_equal(event.element.cq, cq);
    assert_false(readable(context->async_fd, 0));
    ibv_ack_async_event(&event);
    assert_int_equal(ibv_destroy_cq(cq), 0);
}

/* ---- Channels -------------------------------------------------------------------------------------------------- */
static void test_arming(void **state)
{
    struct ibv_comp_channel *channel = new_channel(false);
    int tag;
    struct ibv_cq *cq = ibv_create_cq(context, 50, &tag, channel, 0);
    struct ibv_wc wc[50];

    (void)state;
    assert_non_null(cq);
    assert_int_equal(ibv_destroy_comp_channel(channel), EBUSY);
    complete(cq, 1, true);
    nothing(channel); /* the queue is not armed */
    assert_int_equal(ibv_req_notify_cq(cq, 0), 0);
    get(channel, cq); /* an event for the completion that was there already: a program that arms need not poll once more before it sleeps */
    nothing(channel);
    ibv_ack_cq_events(cq, 1);
    assert_int_equal(ibv_poll_cq(cq, 50, wc), 1);
    assert_int_equal(ibv_req_notify_cq(cq, 0), 0);
    nothing(channel); /* all completions were polled */
    complete(cq, 2, false);
    complete(cq, 3, false);
    get(channel, cq); /* only one event */
    nothing(channel);
    ibv_ack_cq_events(cq, 1);
    assert_int_equal(ibv_req_notify_cq(cq, 1), 0);
    nothing(channel); /* the completion that is there was not solicited */
    complete(cq, 4, false);
    nothing(channel);
    complete(cq, 5, true);
    get(channel, cq);
    ibv_ack_cq_events(cq, 1);
    assert_int_equal(ibv_poll_cq(cq, 50, wc), 4);
    assert_int_equal(ibv_req_notify_cq(cq, 0), 0);
    assert_int_equal(ibv_req_notify_cq(cq, 1), 0);
    complete(cq, 6, false);
    get(channel, cq); /* arming for solicited completions does not cancel arming for all */
    ibv_ack_cq_events(cq, 1);
    assert_int_equal(ibv_poll_cq(cq, 50, wc), 1);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_destroy_comp_channel(channel), 0);
}

static void *acknowledge_later(void *cq)
{
    usleep(2000);
    ibv_ack_cq_events(cq, 2);
    return NULL;
}

/* ibv_destroy_cq() waits until its events are acknowledged, and discards unread events. */
static void test_destroying(void **state)
{
    struct ibv_comp_channel *channel = new_channel(false);
    struct ibv_cq *first = ibv_create_cq(context, 50, NULL, channel, 0), *second = ibv_create_cq(context, 50, NULL, channel, 0);
    struct sv_event stale;
    pthread_t thread;

    (void)state;
    assert_true(first && second);
    for (int i = 0; i < 2; i++) {
        ibv_req_notify_cq(first, 0);
        complete(first, 0, false);
        get(channel, first);
    }
    ibv_req_notify_cq(first, 0);
    complete(first, 0, false);
    ibv_req_notify_cq(second, 0);
    complete(second, 0, false);
    stale = (struct sv_event){.kind = 1, .entry = own(first)->entry, .generation = own(first)->generation};
    pthread_create(&thread, NULL, acknowledge_later, first);
    assert_int_equal(ibv_destroy_cq(first), 0);
    pthread_join(thread, NULL);
    get(channel, second);
    nothing(channel);

    /* An event for a destroyed queue arrives late: it is not taken for an event of the new queue in the same entry. */
    sv_lib.fabric->cq_next = stale.entry;
    first = ibv_create_cq(context, 50, NULL, channel, 0);
    assert_int_equal(own(first)->entry, stale.entry);
    sv_signal(sv_lib.view.process, own(first)->shared->channel_fd, &stale);
    ibv_ack_cq_events(second, 1);
    assert_int_equal(ibv_destroy_cq(second), 0);
    struct ibv_cq *none;
    void *tag;
    assert_int_equal(ibv_get_cq_event(channel, &none, &tag), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(ibv_destroy_cq(first), 0);
    assert_int_equal(ibv_destroy_comp_channel(channel), 0);
}

static _Atomic int alarms, alarms_before;

static void on_alarm(int number)
{
    (void)number;
    alarms++;
}

/* A thread that blocks SIGALRM: it completes a request after some alarms. */
static void *complete_after_alarms(void *cq)
{
    while (alarms < alarms_before + 5)
        usleep(100);
    complete(cq, 9, false);
    return NULL;
}

static void *complete_later(void *cq)
{
    usleep(2000);
    complete(cq, 9, false);
    return NULL;
}

static void test_sleeping(void **state)
{
    struct ibv_comp_channel *channel = new_channel(true);
    struct ibv_cq *cq = ibv_create_cq(context, 50, NULL, channel, 0), *got;
    struct sigaction action = {.sa_handler = on_alarm};
    pthread_t thread;
    void *tag;

    (void)state;
    assert_non_null(cq);
    ibv_req_notify_cq(cq, 0);
    pthread_create(&thread, NULL, complete_later, cq);
    assert_int_equal(ibv_get_cq_event(channel, &got, &tag), 0);
    assert_ptr_equal(got, cq);
    pthread_join(thread, NULL);
    ibv_ack_cq_events(cq, 1);

    sigaction(SIGALRM, &action, NULL);
    ualarm(2000, 2000);
    assert_int_equal(ibv_get_cq_event(channel, &got, &tag), -1);
    assert_int_equal(errno, EINTR);
    ualarm(0, 0);

    /* With SA_RESTART, the call continues after the handler, as read() does. */
    sigset_t alarm;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    alarms_before = alarms;
    pthread_sigmask(SIG_BLOCK, &alarm, NULL); /* the new thread inherits this mask */
    pthread_create(&thread, NULL, complete_after_alarms, cq);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    struct ibv_wc wc;
    assert_int_equal(ibv_poll_cq(cq, 1, &wc), 1); /* the completion that the first thread added */
    ibv_req_notify_cq(cq, 0);
    ualarm(2000, 2000);
    int result = ibv_get_cq_event(channel, &got, &tag);
    while (alarms < alarms_before + 5) /* let the other thread end, whatever the call returned */
        usleep(100);
    ualarm(0, 0);
    pthread_join(thread, NULL);
    assert_int_equal(result, 0);
    assert_ptr_equal(got, cq);
    ibv_ack_cq_events(cq, 1);
    action = (struct sigaction){.sa_handler = SIG_DFL};
    sigaction(SIGALRM, &action, NULL);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_destroy_comp_channel(channel), 0);
}

/* More unread events than a pipe can hold at first: none is lost. */
static void test_many(void **state)
{
    enum { EVENTS = 20000 };
    struct ibv_comp_channel *channel = new_channel(false);
    struct ibv_cq *cq = ibv_create_cq(context, 50, NULL, channel, 0);
    struct sv_event event;

    (void)state;
    assert_non_null(cq);
    event = (struct sv_event){.kind = 1, .entry = own(cq)->entry, .generation = own(cq)->generation};
    for (int i = 0; i < EVENTS; i++)
        sv_signal(sv_lib.view.process, own(cq)->shared->channel_fd, &event);
    for (int i = 0; i < EVENTS; i++) {
        struct ibv_cq *got;
        void *tag;
        assert_int_equal(ibv_get_cq_event(channel, &got, &tag), 0);
    }
    nothing(channel);
    ibv_ack_cq_events(cq, EVENTS);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_destroy_comp_channel(channel), 0);
}

/* A channel has to wake its program at a certain time: its own process does this by a timer, another process by a message. */
static void test_clock(void **state)
{
    struct ibv_comp_channel *channel = new_channel(false);
    struct ibv_cq *cq = ibv_create_cq(context, 50, NULL, channel, 0), *got;
    void *tag;

    (void)state;
    assert_non_null(cq);
    sv_wake_at(own(cq)->entry, ~UINT64_C(0));
    nothing(channel);
    sv_wake_at(own(cq)->entry, sf_now() + UINT64_C(3600000000000));
    sv_wake_at(own(cq)->entry, sf_now() + 2000000);
    assert_true(readable(channel->fd, 30000));
    assert_int_equal(ibv_get_cq_event(channel, &got, &tag), -1);
    assert_int_equal(errno, EAGAIN);
    nothing(channel);
    sv_signal(sv_lib.view.process, own(cq)->shared->channel_fd, &(struct sv_event){.kind = 2});
    assert_true(readable(channel->fd, 0));
    assert_int_equal(ibv_get_cq_event(channel, &got, &tag), -1);
    nothing(channel);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_destroy_comp_channel(channel), 0);
}

/* ---- Other processes --------------------------------------------------------------------------------------------- */
/* Runs `act` in a child that joins the fabric as a process of its own. Returns its number on the fabric. */
static uint32_t in_child(void (*act)(void *), void *with)
{
    int status, ends[2];
    uint32_t number = 0;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        if (sv_join())
            _exit(1);
        act(with);
        _exit(write(ends[1], &sv_lib.view.process, sizeof number) == sizeof number ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(read(ends[0], &number, sizeof number), sizeof number);
    close(ends[0]);
    close(ends[1]);
    return number;
}

static uint32_t cq_entry;

static void complete_from_child(void *unused)
{
    (void)unused;
    for (int i = 0; i < 10; i++)
        sv_complete(cq_entry, &(struct sf_cqe){.wr_id = 77}, NULL);
    sv_wake_at(cq_entry, sf_now() + 1000000);
}

static void test_other_process(void **state)
{
    struct ibv_comp_channel *channel = new_channel(false);
    struct ibv_cq *cq = ibv_create_cq(context, 50, NULL, channel, 0), *got;
    struct ibv_wc wc[50];
    void *tag;

    (void)state;
    assert_non_null(cq);
    cq_entry = own(cq)->entry;
    ibv_req_notify_cq(cq, 0);
    in_child(complete_from_child, NULL);
    get(channel, cq);
    assert_int_equal(ibv_poll_cq(cq, 50, wc), 10);
    assert_int_equal(wc[0].wr_id, 77);
    assert_true(readable(channel->fd, 0)); /* the child has also sent the message to check the timers */
    assert_int_equal(ibv_get_cq_event(channel, &got, &tag), -1);
    nothing(channel);
    ibv_ack_cq_events(cq, 1);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_destroy_comp_channel(channel), 0);
}

static void live_with_channel(void *number)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(ground_open());

    *(int *)number = sv_container(channel, struct sv_channel, base)->pipe_write;
    if (write(((int *)number)[1], number, sizeof(int)) != sizeof(int))
        _exit(1);
    pause();
}

/* Send messages to a living process, and then to the same process after its death: the dead one causes an error, but no SIGPIPE. */
static void test_dead_process(void **state)
{
    int shared[2], ends[2], status;
    struct sv_event event = {.kind = 2};
    uint32_t number = 0;
    pid_t child;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        shared[1] = ends[1];
        sv_join();
        live_with_channel(shared);
        _exit(1);
    }
    assert_int_equal(read(ends[0], shared, sizeof(int)), sizeof(int));
    for (uint32_t p = 0; p < sv_lib.fabric->process_top; p++)
        if (sv_lib.fabric->processes[p].pid == child)
            number = p + 1;
    assert_int_not_equal(number, 0);
    assert_int_equal(sf_signal(&sv_lib.view, number, shared[0], &event, sizeof event), 0);
    assert_int_equal(sf_signal(&sv_lib.view, number, shared[0], &event, sizeof event), 0);
    assert_true(sf_signal(&sv_lib.view, number, 9999, &event, sizeof event) < 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    for (int i = 0; i < 10; i++)
        sf_signal(&sv_lib.view, number, shared[0], &event, sizeof event);
    sf_reap_all(&sv_lib.view);
    assert_int_equal(sf_signal(&sv_lib.view, number, shared[0], &event, sizeof event), -ESRCH);
    close(ends[0]);
    close(ends[1]);
}

/* A forked child uses its copies of the objects: this takes no event from the parent, and does not wake the parent. */
static void test_fork(void **state)
{
    struct ibv_comp_channel *channel = new_channel(false);
    struct ibv_cq *cq = ibv_create_cq(context, 50, NULL, channel, 0);
    int status;
    pid_t child;

    (void)state;
    assert_non_null(cq);
    ibv_req_notify_cq(cq, 0);
    complete(cq, 1, false);
    child = fork();
    if (child == 0) {
        struct ibv_cq *got;
        void *tag;
        bool good = ibv_get_cq_event(channel, &got, &tag) == -1 && errno == ENODEV;
        ibv_req_notify_cq(cq, 0);
        complete(cq, 2, false);
        exit(good && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0 && ibv_close_device(context) == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    get(channel, cq);
    nothing(channel);
    ibv_ack_cq_events(cq, 1);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_destroy_comp_channel(channel), 0);
}

/* ---- Asynchronous events ------------------------------------------------------------------------------------------ */
static void port_from_child(void *unused)
{
    (void)unused;
    sv_async(sv_context_of(context)->entry, IBV_EVENT_PORT_ERR, 0, 0);
    sv_async(sv_context_of(context)->entry, IBV_EVENT_PORT_ACTIVE, 0, 0);
}

static void test_async(void **state)
{
    struct ibv_cq *cq = ibv_create_cq(context, 50, NULL, NULL, 0);
    struct ibv_async_event event;
    uint32_t me = sv_context_of(context)->entry;

    (void)state;
    assert_non_null(cq);
    in_child(port_from_child, NULL);
    assert_int_equal(ibv_get_async_event(context, &event), 0);
    assert_int_equal(event.event_type, IBV_EVENT_PORT_ERR);
    assert_int_equal(event.element.port_num, 1);
    ibv_ack_async_event(&event);
    assert_int_equal(ibv_get_async_event(context, &event), 0);
    assert_int_equal(event.event_type, IBV_EVENT_PORT_ACTIVE);
    ibv_ack_async_event(&event);

    /* No event of a destroyed object arrives; all events of the others do. */
    sv_async(me, IBV_EVENT_CQ_ERR, own(cq)->entry, own(cq)->generation);
    sv_async(me, IBV_EVENT_GID_CHANGE, own(cq)->entry, own(cq)->generation);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(fcntl(context->async_fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(ibv_get_async_event(context, &event), 0);
    assert_int_equal(event.event_type, IBV_EVENT_GID_CHANGE);
    ibv_ack_async_event(&event);
    assert_false(readable(context->async_fd, 0));
    assert_int_equal(ibv_get_async_event(context, &event), -1);
    assert_int_equal(errno, EAGAIN);
    fcntl(context->async_fd, F_SETFL, 0);
}

/* Making and destroying channels leaves no descriptors open. */
static void test_descriptors(void **state)
{
    int before, after;

    (void)state;
    assert_int_equal(ibv_destroy_comp_channel(new_channel(true)), 0);
    before = dup(0);
    close(before);
    for (int i = 0; i < 100; i++)
        assert_int_equal(ibv_destroy_comp_channel(new_channel(true)), 0);
    after = dup(0);
    close(after);
    assert_int_equal(before, after);
}

static int set_up(void **state)
{
    (void)state;
    context = ground_open();
    return context ? 0 : -1;
}

static int tests(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_sizes),        cmocka_unit_test(test_resize),     cmocka_unit_test(test_overrun),
        cmocka_unit_test(test_arming),       cmocka_unit_test(test_destroying), cmocka_unit_test(test_sleeping),
        cmocka_unit_test(test_many),         cmocka_unit_test(test_clock),      cmocka_unit_test(test_other_process),
        cmocka_unit_test(test_dead_process), cmocka_unit_test(test_fork),       cmocka_unit_test(test_async),
        cmocka_unit_test(test_descriptors),
    };

    return cmocka_run_group_tests(all, set_up, NULL);
}

int main(void)
{
    struct sv_profile *p = &ground.model.profile;

    if (ground_plan(&ground, "generic", 2, (const char *const[]){"switch", "2"}))
        return 1;
    p->max_cqe = 100;
    p->cqe_errno = E2BIG;
    p->max_cq = 4;
    p->cq_errno = ENFILE;
    return ground_make(&ground, 0) || inside_run(&ground, tests);
}
