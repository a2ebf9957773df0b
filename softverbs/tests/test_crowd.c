/* SPDX-License-Identifier: MIT
 *
 * Many threads use the same objects at the same time: two completion queues that all of them poll, a connection that all of them send on, a
 * shared receive queue that all of them post to, a counter that all of them add to. Memory is registered and deregistered while others
 * write to it; queue pairs are made and destroyed; one thread sleeps for completions and one reads the events.
 *
 * Also run with the sanitizers.
 */
#include "ground.h"
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 150, LARGEST = 20000, TAKEN_BACK = 200, SLEEPS = 500, LIMIT_S = 60 };
enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq[2]; /* all threads poll them */
static struct ibv_srq *srq;
static union ibv_gid gid;
static uint64_t counter; /* all threads add to it */
static struct ibv_mr *counter_mr;
static _Atomic bool over; /* the thread that reads events may end */

static void failed(int line, const char *what)
{
    fprintf(stderr, "line %d: expected %s (errno %d, %s)\n", line, what, errno, strerror(errno));
    fflush(NULL);
    _exit(1);
}
#define expect(condition) ((condition) ? (void)0 : failed(__LINE__, #condition))

/* ---- Completions: the number of a request is the address of the struct that records its end ---- */
struct request {
    _Atomic bool done; /* written last, with release; read first, with acquire */
    enum ibv_wc_status status;
    uint32_t bytes;
};

static void poll_queue(struct ibv_cq *queue)
{
    struct ibv_wc wc[8];
    int got = ibv_poll_cq(queue, 8, wc);
    expect(got >= 0);
    for (int i = 0; i < got; i++) {
        struct request *r = (struct request *)(uintptr_t)wc[i].wr_id;
        r->status = wc[i].status;
        r->bytes = wc[i].byte_len;
        atomic_store_explicit(&r->done, true, memory_order_release);
    }
}

static enum ibv_wc_status wait_for(struct request *r)
{
    const time_t end = time(NULL) + LIMIT_S;
    while (!atomic_load_explicit(&r->done, memory_order_acquire)) {
        poll_queue(cq[0]);
        poll_queue(cq[1]);
        expect(time(NULL) < end);
    }
    return r->status;
}

/* ---- Connections --------------------------------------------------------------------------------------- */
struct pair {
    struct ibv_qp *a, *b; /* a sends to b */
};

static void connect_one(struct ibv_qp *qp, uint32_t to)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
    expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_4096,
                                .dest_qp_num = to,
                                .max_dest_rd_atomic = 4,
                                .min_rnr_timer = 1,
                                .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}}};
    expect(!ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                              IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    expect(!ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void reset(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static struct pair pair_make(struct ibv_cq *sends, struct ibv_cq *receives, struct ibv_srq *shared)
{
    struct ibv_qp_init_attr init = {
        .send_cq = sends,
        .recv_cq = receives,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64}};
    struct pair p;
    expect((p.a = ibv_create_qp(pd, &init)));
    init.srq = shared;
    init.cap.max_recv_wr = shared ? 0 : 64;
    expect((p.b = ibv_create_qp(pd, &init)));
    connect_one(p.a, p.b->qp_num);
    connect_one(p.b, p.a->qp_num);
    return p;
}

static void pair_end(struct pair p)
{
    expect(!ibv_destroy_qp(p.a) && !ibv_destroy_qp(p.b));
}

struct span {
    void *address;
    uint32_t bytes;
    struct ibv_mr *mr;
};

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct request *r, struct span from, void *to, uint32_t rkey, uint64_t add)
{
    struct ibv_sge sge = {(uintptr_t)from.address, from.bytes, from.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = (uintptr_t)r,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = opcode <= IBV_WR_SEND && from.bytes <= 64 ? IBV_SEND_INLINE : 0},
                       *bad;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = (uintptr_t)to;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = add;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)to;
        wr.wr.rdma.rkey = rkey;
    }
    *r = (struct request){.done = false};
    int error = ibv_post_send(qp, &wr, &bad);
    errno = error;
    expect(!error);
}

static void post_receive(struct ibv_qp *qp, struct request *r, struct span to)
{
    struct ibv_sge sge = {(uintptr_t)to.address, to.bytes, to.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = (uintptr_t)r, .sg_list = &sge, .num_sge = 1}, *bad;
    *r = (struct request){.done = false};
    expect(!(qp ? ibv_post_recv(qp, &wr, &bad) : ibv_post_srq_recv(srq, &wr, &bad)));
}

/* ---- Threads that do all of it ------------------------------------------------------------------------- */
static struct pair common; /* in this pair b receives from the shared queue */

struct note { /* a message on the common connection */
    uint64_t thread, round, sum;
};

static void fill(uint8_t *bytes, uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)((seed = seed * 1103515245 + 12345) >> 16);
    }
}

static void one_round(struct pair own, uint64_t me, uint64_t round)
{
    const uint32_t seed = (uint32_t)(me * 1000 + round), bytes = 1 + seed * 2654435761u % LARGEST;
    uint8_t *memory = aligned_alloc(64, 2 * 20032);
    struct request sent, received;
    expect(memory);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * 20032, ALL);
    expect(mr);
    struct span here = {memory, bytes, mr}, there = {memory + 20032, bytes, mr};

    fill(memory, bytes, seed);
    post_receive(own.b, &received, there);
    post(own.a, IBV_WR_SEND, &sent, here, NULL, 0, 0);
    expect(wait_for(&sent) == IBV_WC_SUCCESS && wait_for(&received) == IBV_WC_SUCCESS && received.bytes == bytes);
    expect(!memcmp(here.address, there.address, bytes));

    fill(memory, bytes, seed + 1);
    post(own.a, IBV_WR_RDMA_WRITE, &sent, here, there.address, mr->rkey, 0);
    expect(wait_for(&sent) == IBV_WC_SUCCESS && !memcmp(here.address, there.address, bytes));
    memset(memory, 0, bytes);
    post(own.a, IBV_WR_RDMA_READ, &sent, here, there.address, mr->rkey, 0);
    expect(wait_for(&sent) == IBV_WC_SUCCESS && !memcmp(here.address, there.address, bytes));

    here.bytes = 8;
    post(own.a, IBV_WR_ATOMIC_FETCH_AND_ADD, &sent, here, &counter, counter_mr->rkey, me + 1);
    expect(wait_for(&sent) == IBV_WC_SUCCESS);

    /* Another thread's receive may get this thread's note, and the other way round. There is one receive for each note. */
    struct note *out = here.address, *in = there.address;
    *out = (struct note){me, round, (me + 7) * (round + 13)};
    here.bytes = there.bytes = sizeof(*out);
    post_receive(NULL, &received, there);
    post(common.a, IBV_WR_SEND, &sent, here, NULL, 0, 0);
    expect(wait_for(&sent) == IBV_WC_SUCCESS && wait_for(&received) == IBV_WC_SUCCESS);
    expect(received.bytes == sizeof(*in) && in->sum == (in->thread + 7) * (in->round + 13) && in->thread < THREADS);

    expect(!ibv_dereg_mr(mr));
    free(memory);
}

static void *does_all(void *argument)
{
    const uint64_t me = (uintptr_t)argument;
    struct pair own = pair_make(cq[me % 2], cq[(me + 1) % 2], NULL);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        if (round % 8 == 7) {
            pair_end(own);
            own = pair_make(cq[round % 2], cq[me % 2], NULL);
        }
        one_round(own, me, round);
    }
    pair_end(own);
    return NULL;
}

/* ---- Memory that is deregistered while another thread writes to it ---- */
static uint8_t taken[4096];
static _Atomic uint32_t taken_key; /* 0: there is no region */
static _Atomic uint64_t taken_writes;
static _Atomic bool taken_over;

static void *takes_back(void *argument)
{
    (void)argument;
    for (int i = 0; i < TAKEN_BACK; i++) {
        struct ibv_mr *mr = ibv_reg_mr(pd, taken, sizeof(taken), ALL);
        expect(mr);
        uint64_t before = atomic_load(&taken_writes);
        atomic_store(&taken_key, mr->rkey);
        while (atomic_load(&taken_writes) < before + 3) {
            sched_yield();
        }
        expect(!ibv_dereg_mr(mr));
        /* The region is deregistered, so no other thread can write to the memory any more. */
        memset(taken, 0xee, sizeof(taken));
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        for (size_t k = 0; k < sizeof(taken); k++) {
            expect(taken[k] == 0xee);
        }
        atomic_store(&taken_key, 0);
    }
    atomic_store(&taken_over, true);
    return NULL;
}

static void *writes_on(void *argument)
{
    (void)argument;
    struct pair own = pair_make(cq[0], cq[1], NULL);
    uint8_t *source = calloc(1, sizeof(taken));
    struct ibv_mr *mr = source ? ibv_reg_mr(pd, source, sizeof(taken), ALL) : NULL;
    expect(mr);
    while (!atomic_load(&taken_over)) {
        struct request r;
        uint32_t key = atomic_load(&taken_key);
        if (!key) {
            sched_yield();
            continue;
        }
        post(own.a, IBV_WR_RDMA_WRITE, &r, (struct span){source, sizeof(taken), mr}, taken, key, 0);
        enum ibv_wc_status status = wait_for(&r);
        expect(status == IBV_WC_SUCCESS || status == IBV_WC_REM_ACCESS_ERR);
        atomic_fetch_add(&taken_writes, status == IBV_WC_SUCCESS);
        if (status != IBV_WC_SUCCESS) {
            reset(own.a);
            reset(own.b);
            connect_one(own.a, own.b->qp_num);
            connect_one(own.b, own.a->qp_num);
        }
    }
    pair_end(own);
    expect(!ibv_dereg_mr(mr));
    free(source);
    return NULL;
}

/* ---- A thread that sleeps, and a thread that reads events ------------------------------------------------------------ */
static void *sleeps(void *argument)
{
    (void)argument;
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    expect(channel);
    struct ibv_cq *queue = ibv_create_cq(context, 64, &counter, channel, 0);
    expect(queue);
    struct pair own = pair_make(cq[0], queue, NULL);
    uint8_t memory[256] = {0};
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), ALL);
    expect(mr);
    for (int i = 0; i < SLEEPS; i++) {
        struct request sent, received;
        struct ibv_cq *which;
        void *mine;
        expect(!ibv_req_notify_cq(queue, 0));
        post_receive(own.b, &received, (struct span){memory + 128, 128, mr});
        post(own.a, IBV_WR_SEND, &sent, (struct span){memory, 100, mr}, NULL, 0, 0);
        expect(!ibv_get_cq_event(channel, &which, &mine) && which == queue && mine == &counter);
        ibv_ack_cq_events(queue, 1);
        poll_queue(queue);
        expect(atomic_load_explicit(&received.done, memory_order_acquire) && received.status == IBV_WC_SUCCESS);
        expect(wait_for(&sent) == IBV_WC_SUCCESS);
    }
    pair_end(own);
    expect(!ibv_dereg_mr(mr) && !ibv_destroy_cq(queue) && !ibv_destroy_comp_channel(channel));
    return NULL;
}

static void *reads_events(void *argument)
{
    (void)argument;
    struct pollfd p = {.fd = context->async_fd, .events = POLLIN};
    fcntl(p.fd, F_SETFL, fcntl(p.fd, F_GETFL) | O_NONBLOCK);
    while (!atomic_load(&over)) {
        struct ibv_async_event event;
        if (poll(&p, 1, 10) == 1 && !ibv_get_async_event(context, &event)) {
            /* the event of the queue pair of which a write was refused */
            expect(event.event_type == IBV_EVENT_QP_ACCESS_ERR);
            ibv_ack_async_event(&event);
        }
    }
    return NULL;
}

/* ---- All of them --------------------------------------------------------------------------------------- */
static void crowd(void)
{
    static void *(*const bodies[])(void *) = {does_all, does_all, does_all, does_all, takes_back, writes_on, sleeps};
    enum { COUNT = sizeof(bodies) / sizeof(bodies[0]) };
    pthread_t threads[COUNT], events;
    expect(!pthread_create(&events, NULL, reads_events, NULL));
    for (uintptr_t i = 0; i < COUNT; i++) {
        expect(!pthread_create(&threads[i], NULL, bodies[i], (void *)i));
    }
    for (size_t i = 0; i < COUNT; i++) {
        pthread_join(threads[i], NULL);
    }
    atomic_store(&over, true);
    pthread_join(events, NULL);
}

static int all(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    expect(list && count == 1 && (context = ibv_open_device(list[0])));
    ibv_free_device_list(list);
    expect(!ibv_query_gid(context, 1, 1, &gid) && (pd = ibv_alloc_pd(context)));
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 64, .max_sge = 1}};
    expect((srq = ibv_create_srq(pd, &init)));
    expect((counter_mr = ibv_reg_mr(pd, &counter, sizeof(counter), ALL)));
    for (int i = 0; i < 2; i++) {
        expect((cq[i] = ibv_create_cq(context, 1024, NULL, NULL, 0)));
    }
    common = pair_make(cq[0], cq[1], srq);

    crowd();

    expect(counter == ROUNDS * (1 + 2 + 3 + 4));
    pair_end(common);
    expect(!ibv_dereg_mr(counter_mr) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq[0]) && !ibv_destroy_cq(cq[1]));
    expect(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
    return 0;
}

int main(void)
{
    static struct ground ground;
    const char *const words[] = {"switch", "1"};
    if (ground_plan(&ground, "generic", 2, words) || ground_make(&ground, 0)) {
        return 1;
    }
    return inside_run(&ground, all);
}
