/* SPDX-License-Identifier: MIT
 *
 * Forks and execs of a program with open devices and queues in use. The child may not use its parent's objects, its exit takes nothing from
 * the parent, and it can open devices of its own. After an exec nothing of the former program is left.
 */
#include "inside.h"

#include "../lib/lib.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 4096, FORKS = 40, PATIENCE = 30 };

/* The verbs objects of a program, with a queue pair that is connected to itself. */
struct world {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp[2];
    uint8_t memory[BYTES];
};

static struct ground ground;
static struct world parents;

static int step(struct world *w, int i, enum ibv_qp_state state)
{
    struct ibv_qp_attr a = {
        .qp_state = state,
        .port_num = 1,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = w->qp[!i]->qp_num,
        .timeout = 8,
        .retry_cnt = 1,
        .rnr_retry = 7,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}},
    };
    int mask = IBV_QP_STATE;

    if (ibv_query_gid(w->context, 1, 1, &a.ah_attr.grh.dgid))
        return errno;
    if (state == IBV_QPS_INIT)
        mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    else if (state == IBV_QPS_RTR)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    else if (state == IBV_QPS_RTS)
        mask |= IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    return ibv_modify_qp(w->qp[i], &a, mask);
}

static bool make(struct world *w)
{
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 8, .max_sge = 1}};

    if (!(w->context = ground_open()) || !(w->pd = ibv_alloc_pd(w->context)) ||
        !(w->mr = ibv_reg_mr(w->pd, w->memory, BYTES, IBV_ACCESS_LOCAL_WRITE)) || !(w->channel = ibv_create_comp_channel(w->context)) ||
        !(w->cq = ibv_create_cq(w->context, 64, NULL, w->channel, 0)) || !(w->srq = ibv_create_srq(w->pd, &shared)))
        return false;
    struct ibv_qp_init_attr a = {
        .send_cq = w->cq,
        .recv_cq = w->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
    };
    for (int i = 0; i < 2; i++)
        if (!(w->qp[i] = ibv_create_qp(w->pd, &a)))
            return false;
    for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++)
        for (int i = 0; i < 2; i++)
            if (step(w, i, state))
                return false;
    return true;
}

static bool destroy(struct world *w)
{
    return !ibv_destroy_qp(w->qp[0]) && !ibv_destroy_qp(w->qp[1]) && !ibv_destroy_srq(w->srq) && !ibv_destroy_cq(w->cq) &&
           !ibv_destroy_comp_channel(w->channel) && !ibv_dereg_mr(w->mr) && !ibv_dealloc_pd(w->pd) && !ibv_close_device(w->context);
}

static int post_receive(struct world *w)
{
    struct ibv_sge sge = {(uintptr_t)w->memory + 1024, 64, w->mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad = NULL;
    return ibv_post_recv(w->qp[1], &wr, &bad);
}

static int post_send(struct world *w, uint8_t what)
{
    struct ibv_sge sge = {(uintptr_t)w->memory, 64, w->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad = NULL;
    memset(w->memory, what, 64);
    return ibv_post_send(w->qp[0], &wr, &bad);
}

/* Sends a message over the connection, and checks that it arrives. */
static bool works(struct world *w, uint8_t what)
{
    struct ibv_wc wc[2];
    if (post_receive(w) || post_send(w, what))
        return false;
    for (int got = 0, n; got < 2; got += n) {
        if ((n = ibv_poll_cq(w->cq, 2 - got, wc)) < 0)
            return false;
        for (int i = 0; i < n; i++)
            if (wc[i].status != IBV_WC_SUCCESS)
                return false;
    }
    return w->memory[1024] == what && w->memory[1024 + 63] == what;
}

/* Call every verb on the parent's objects, in the child. Returns the source line of the first call that is not refused; 0: all are
 * refused. */
static int all_refused(struct world *w)
{
    struct ibv_wc wc;
    struct ibv_cq *cq;
    struct ibv_async_event event;
    struct ibv_srq_attr more = {.max_wr = 4, .srq_limit = 1};
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_qp_init_attr a = {.send_cq = w->cq, .recv_cq = w->cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1}};
    struct ibv_recv_wr receive = {.num_sge = 0}, *bad;
    void *tag;
#define REFUSED(call) \
    if (!(call))      \
    return __LINE__
#define REFUSED_ERRNO(call) \
    errno = 0;              \
    REFUSED((call) && errno == ENODEV)
    REFUSED(post_send(w, 99) == ENODEV);
    REFUSED(post_receive(w) == ENODEV);
    REFUSED(ibv_post_srq_recv(w->srq, &receive, &bad) == ENODEV);
    REFUSED_ERRNO(ibv_poll_cq(w->cq, 1, &wc) < 0);
    REFUSED(ibv_req_notify_cq(w->cq, 0) == ENODEV);
    REFUSED_ERRNO(ibv_get_cq_event(w->channel, &cq, &tag) < 0);
    REFUSED_ERRNO(ibv_get_async_event(w->context, &event) < 0);
    REFUSED(step(w, 0, IBV_QPS_ERR) == ENODEV);
    REFUSED(ibv_resize_cq(w->cq, 100) == ENODEV);
    REFUSED(ibv_modify_srq(w->srq, &more, IBV_SRQ_MAX_WR) == ENODEV);
    REFUSED_ERRNO(!ibv_alloc_pd(w->context));
    REFUSED_ERRNO(!ibv_reg_mr(w->pd, w->memory, BYTES, IBV_ACCESS_LOCAL_WRITE));
    REFUSED_ERRNO(!ibv_create_comp_channel(w->context));
    REFUSED_ERRNO(!ibv_create_cq(w->context, 1, NULL, NULL, 0));
    REFUSED_ERRNO(!ibv_create_srq(w->pd, &shared));
    REFUSED_ERRNO(!ibv_create_qp(w->pd, &a));
    return 0;
}

/* Run `what` in a child, and return its exit status. 0: no test in the child has failed. */
static int in_child(int (*what)(void))
{
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE);
        int line = what();
        if (line)
            fprintf(stderr, "the child failed in line %d\n", line);
        exit(line != 0);
    }
    assert_true(child > 0);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

static int uses_parents(void)
{
    return all_refused(&parents);
}

static int destroys_parents(void)
{
    int line = all_refused(&parents);
    return line ? line : destroy(&parents) ? 0 : __LINE__;
}

static int has_its_own(void)
{
    static struct world own;
    int line;
    if (!make(&own) || !works(&own, 7))
        return __LINE__;
    if ((line = all_refused(&parents)) != 0)
        return line;
    if (!works(&own, 8) || !destroy(&parents) || !works(&own, 9))
        return __LINE__;
    return destroy(&own) ? 0 : __LINE__;
}

/* Ends while all of its own objects are open. */
static int leaves_its_own(void)
{
    static struct world own;
    return make(&own) && works(&own, 7) ? 0 : __LINE__;
}

static int grandchild(void)
{
    static struct world own;
    int status = -1;
    if (!make(&own))
        return __LINE__;
    pid_t child = fork();
    if (child == 0)
        exit(all_refused(&own) || all_refused(&parents) || has_its_own());
    waitpid(child, &status, 0);
    return status ? __LINE__ : works(&own, 3) && destroy(&own) ? 0 : __LINE__;
}

static unsigned in_use(void)
{
    struct sf_fabric *f = sv_lib.fabric;
    unsigned n = 0;
    for (uint32_t p = 0; p < SF_PROCESSES; p++)
        n += f->processes[p].owner != 0;
    return n + f->devices[0].qps * 10 + f->devices[0].cqs * 100 + f->devices[0].mrs * 1000 + f->devices[0].pds * 10000;
}

static int commands[2]; /* the command descriptor of a context, and a duplicate */

static int closes_parents(void)
{
    struct stat there;

    if (fcntl(commands[0], F_GETFD) != FD_CLOEXEC || ibv_close_device(parents.context))
        return __LINE__;
    return fstat(commands[0], &there) && errno == EBADF && !fstat(commands[1], &there) ? 0 : __LINE__;
}

/* cmd_fd, which programs pass on, duplicate and examine: it belongs to its context, and is closed with it. */
static void test_command_descriptor(void **state)
{
    struct ibv_context *other = ground_open();
    struct stat there;

    (void)state;
    assert_non_null(other);
    assert_true(make(&parents));
    commands[0] = parents.context->cmd_fd;
    assert_int_equal(fcntl(commands[0], F_GETFD), FD_CLOEXEC);
    assert_int_not_equal(commands[0], other->cmd_fd);
    assert_int_not_equal(commands[0], parents.context->async_fd);
    commands[1] = dup(commands[0]);
    assert_true(commands[1] >= 0);
    for (int i = 0; i < 2; i++) {
        errno = 0;
        assert_null(ibv_import_device(commands[i]));
        assert_int_equal(errno, EOPNOTSUPP);
    }
    errno = 0;
    assert_null(ibv_import_device(-1));
    assert_int_equal(errno, EINVAL);
    assert_int_equal(in_child(closes_parents), 0);
    assert_int_equal(fcntl(commands[0], F_GETFD), FD_CLOEXEC); /* a child closes its own copy */
    assert_true(works(&parents, 5) && destroy(&parents));
    assert_int_equal(fstat(commands[0], &there), -1);
    assert_int_equal(errno, EBADF);
    assert_int_equal(fstat(commands[1], &there), 0);
    assert_int_equal(close(commands[1]), 0);
    assert_int_equal(fcntl(other->cmd_fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(ibv_close_device(other), 0);
}

static void test_children(void **state)
{
    int (*const children[])(void) = {uses_parents, destroys_parents, has_its_own, leaves_its_own, grandchild};

    (void)state;
    assert_true(make(&parents));
    assert_true(works(&parents, 1));
    unsigned before = in_use();
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        memset(parents.memory + 1024, 0, 64);
        assert_int_equal(in_child(children[i]), 0);
        assert_int_equal(parents.memory[1024], 0);
        assert_true(works(&parents, (uint8_t)(i + 2)));
        assert_int_equal(in_use(), before);
    }
    assert_true(destroy(&parents));
}

static _Atomic bool stop;
static _Atomic unsigned failed, messages;

static void *traffic(void *argument)
{
    for (uint8_t n = 1; !atomic_load(&stop); n++) {
        failed += !works(argument, n);
        messages++;
    }
    return NULL;
}

/* The child never waits for a lock that a thread of the parent held at the fork. */
static void test_under_traffic(void **state)
{
    pthread_t thread;

    (void)state;
    assert_true(make(&parents));
    assert_int_equal(pthread_create(&thread, NULL, traffic, &parents), 0);
    while (atomic_load(&messages) < 10)
        sched_yield();
    const char *divide = getenv("TEST_DIVIDE"); /* set where forks are slow, to make fewer of them */
    int forks = FORKS / (divide && atoi(divide) > 0 ? atoi(divide) : 1);
    for (int i = 0; i < forks; i++)
        assert_int_equal(in_child(i % 4 == 3 ? leaves_its_own : uses_parents), 0);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(failed, 0);
    assert_true(destroy(&parents));
}

/* exec() puts another program into the process, with the same process number: nothing of the former program is left in the fabric. */
static void test_exec(void **state)
{
    int told[2];
    char byte;

    (void)state;
    assert_true(make(&parents));
    unsigned before = in_use();
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        if (leaves_its_own() || write(told[1], "m", 1) != 1)
            _exit(1);
        execlp("sleep", "sleep", "1000", NULL);
        _exit(1);
    }
    close(told[1]);
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(read(told[0], &byte, 1), 0); /* exec() closed it */
    close(told[0]);
    assert_int_equal(kill(child, 0), 0);
    assert_int_equal(sf_reap_all(&sv_lib.view), 1);
    assert_int_equal(in_use(), before);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_true(works(&parents, 5));
    assert_true(destroy(&parents));
}

static int tests(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_children),
        cmocka_unit_test(test_under_traffic),
        cmocka_unit_test(test_exec),
        cmocka_unit_test(test_command_descriptor),
    };
    return cmocka_run_group_tests(all, NULL, NULL);
}

int main(void)
{
    const char *const words[] = {"switch", "2"};
    if (ground_plan(&ground, "generic", 2, words) || ground_make(&ground, 0))
        return 1;
    return inside_run(&ground, tests);
}
