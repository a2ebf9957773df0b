/* SPDX-License-Identifier: MIT
 *
 * See sides.h.
 */
#include "sides.h"

const struct how quick = {.rnr = 7, .retries = 1, .timeout = 10, .rnr_timer = 1},
                 stubborn = {.rnr = 7, .retries = 7, .timeout = 14, .rnr_timer = 1};

/* Longer than the tests wait for any event, even if a process gets no processor for seconds. */
#define LONG_NS UINT64_C(40000000000)

struct meeting *meeting;
struct ground ground;

/* ---- One side ------------------------------------------------------------------------------------------------------ */
int side;
struct ibv_context *context;
struct ibv_pd *pd;
struct ibv_mr *mr;
char *memory;
struct ibv_comp_channel *channel;
struct ibv_cq *send_cq, *receive_cq;

void nap(long microseconds)
{
    nanosleep(&(struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000}, NULL);
}

void await(uint32_t stage)
{
    for (uint64_t until = sf_now() + LONG_NS; atomic_load(&meeting->stage) < stage; nap(100))
        NEED(sf_now() < until);
}

void say(uint32_t stage)
{
    atomic_store(&meeting->stage, stage);
}

void begin(int which)
{
    side = which;
    ground_host(&ground, (unsigned)which);
    context = ground_open();
    NEED(context);
    pd = ibv_alloc_pd(context);
    NEED(pd);
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(memory != MAP_FAILED);
    mr =
        ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    NEED(mr);
    channel = ibv_create_comp_channel(context);
    NEED(channel);
    send_cq = ibv_create_cq(context, 256, NULL, channel, 0);
    receive_cq = ibv_create_cq(context, 256, NULL, channel, 0);
    NEED(send_cq && receive_cq);
    atomic_store(&meeting->address[side], (uintptr_t)memory);
    atomic_store(&meeting->key[side], mr->rkey);
}

struct ibv_qp *make(enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr a = {
        .send_cq = send_cq,
        .recv_cq = receive_cq,
        .srq = srq,
        .qp_type = type,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &a);
    NEED(qp);
    return qp;
}

void connect_to(struct ibv_qp *qp, struct how how, bool ready, bool send)
{
    bool rc = qp->qp_type == IBV_QPT_RC;
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    if (qp->state == IBV_QPS_RESET)
        NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = how.peer,
        .rq_psn = 7,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = how.rnr_timer,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}},
    };
    uint32_t device = ground.model.topology.hosts[how.peer_host].first_device;
    memcpy(a.ah_attr.grh.dgid.raw, ground.model.topology.devices[device].gids[0].raw, 16);
    if (ready)
        NEED(ibv_modify_qp(qp, &a,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)) == 0);
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .sq_psn = 7,
        .timeout = how.timeout,
        .retry_cnt = how.retries,
        .rnr_retry = how.rnr,
        .max_rd_atomic = 4,
    };
    if (send)
        NEED(ibv_modify_qp(qp, &a,
                           IBV_QP_STATE | IBV_QP_SQ_PSN |
                               (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)) == 0);
}

/* Send the other side this queue pair's number and address, and return the other side's. */
struct how acquainted(const struct ibv_qp *qp, struct how how)
{
    atomic_store(&meeting->number[side], qp->qp_num);
    while ((how.peer = atomic_load(&meeting->number[!side])) == 0)
        nap(100);
    how.peer_host = !side;
    return how;
}

/* Exchanges the numbers of the queue pairs, and connects. When this returns, both sides have connected. */
void connect_both(struct ibv_qp *qp, struct how how)
{
    connect_to(qp, acquainted(qp, how), true, true);
    atomic_fetch_add(&meeting->stage, 1);
    await(2);
}

/* Makes and connects the usual pair of queue pairs. */
struct ibv_qp *pair(enum ibv_qp_type type, struct how how)
{
    struct ibv_qp *qp = make(type, NULL);
    connect_both(qp, how);
    return qp;
}

int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t id, uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)memory, bytes, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.wr.rdma.remote_addr = atomic_load(&meeting->address[!side]);
    wr.wr.rdma.rkey = atomic_load(&meeting->key[!side]);
    return ibv_post_send(qp, &wr, &bad);
}

int receive(struct ibv_qp *qp, uint64_t id, uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)memory, bytes, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(qp, &wr, &bad);
}

/* Polls until the next completion. */
struct ibv_wc next(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n;
    for (uint64_t until = sf_now() + LONG_NS; (n = ibv_poll_cq(cq, 1, &wc)) == 0;) {
        NEED(sf_now() < until);
        sched_yield();
    }
    NEED(n == 1);
    return wc;
}

/* Sleeps until the next completion of `cq`, as programs do: arm the queue, poll once more, wait. */
struct ibv_wc sleep_for(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    for (;;) {
        struct ibv_cq *which;
        void *tag;
        NEED(ibv_req_notify_cq(cq, 0) == 0);
        int n = ibv_poll_cq(cq, 1, &wc);
        NEED(n >= 0);
        if (n)
            return wc;
        alarm(LONG_NS / 1000000000);
        NEED(ibv_get_cq_event(channel, &which, &tag) == 0);
        alarm(0);
        ibv_ack_cq_events(which, 1);
    }
}

/* ---- The tests' processes -------------------------------------------------------------------------------------------- */
pid_t start(int which, void (*body)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(2 * (LONG_NS / 1000000000));
        begin(which);
        body();
        exit(0);
    }
    return child;
}

int end(pid_t child)
{
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

int set_up(void **state)
{
    const char *words[] = {"switch", "3"};
    (void)state;
    meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED || ground_plan(&ground, "generic", 2, words))
        return -1;
    ground.model.profile.max_message = UINT64_C(0xffffffff);
    return ground_make(&ground, 0);
}

void only_comes(void)
{
}

/* Check that no object of any process is left on the fabric, after another process has joined and left. */
void nothing_left(void)
{
    struct sf_view look;
    struct sv_why why;
    unsigned left = 0;
    atomic_store(&meeting->stage, 0);
    assert_int_equal(end(start(2, only_comes)), 0);
    assert_int_equal(sf_attach(&look, "test", false, 0, &why), 0);
    struct sf_fabric *f = look.fabric;
#define LEFT(table, top)                  \
    for (uint32_t i = 0; i < f->top; i++) \
    left += atomic_load(&f->table[i].owner) != 0
    LEFT(processes, process_top);
    LEFT(contexts, context_top);
    LEFT(pds, pd_top);
    LEFT(mrs, mr_top);
    LEFT(cqs, cq_top);
    LEFT(srqs, srq_top);
    LEFT(qps, qp_top);
#undef LEFT
    assert_int_equal(left, 0);
    for (uint32_t i = 0; i < f->page_top; i++)
        left += atomic_load(&f->pages[i]) != 0;
    assert_int_equal(left, 0);
    for (uint32_t i = 0; i < f->qp_top; i++)
        left += f->qps[i].lock.word != 0 || f->qps[i].receive.lock.word != 0 || (f->qps[i].busy & 1) != 0;
    for (uint32_t i = 0; i < f->cq_top; i++)
        left += f->cqs[i].lock.word != 0 || f->cqs[i].intent.kind != 0;
    assert_int_equal(left, 0);
    for (uint32_t d = 0; d < f->model.topology.device_count; d++)
        left += f->devices[d].qps + f->devices[d].pds + f->devices[d].mrs + f->devices[d].cqs + f->devices[d].srqs;
    assert_int_equal(left + f->lock.word, 0);
    sf_detach(&look);
}

int tear_down(void **state)
{
    (void)state;
    nothing_left();
    munmap(meeting, sizeof *meeting);
    return ground_remove(&ground);
}

void both(void (*a)(void), void (*b)(void))
{
    pid_t first = start(0, a), second = start(1, b);
    int x = end(first), y = end(second);
    assert_int_equal(x, 0);
    assert_int_equal(y, 0);
}

void sleepy_sender(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, stubborn);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        NEED(post(qp, IBV_WR_SEND, i, 64) == 0);
        if (i % 3 == 0)
            continue;
        for (uint64_t k = i % 3 == 1 ? i - 1 : i; k <= i; k++) {
            struct ibv_wc wc = sleep_for(send_cq);
            NEED(wc.status == IBV_WC_SUCCESS && wc.wr_id == k);
        }
    }
    await(3);
}

void sleepy_receiver(void)
{
    struct ibv_qp *qp = pair(IBV_QPT_RC, stubborn);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        if (i % 5 == 0)
            nap(300);
        NEED(receive(qp, i, 64) == 0);
        struct ibv_wc wc = sleep_for(receive_cq);
        NEED(wc.status == IBV_WC_SUCCESS && wc.wr_id == i);
    }
    say(3);
}
