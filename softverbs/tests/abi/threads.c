/* SPDX-License-Identifier: MIT
 *
 * Many threads of one program on one device. They make and destroy pairs of their own, and all use one pair, one domain and one completion
 * queue at the same time, by both interfaces. Also run with the sanitizers.
 */
#include "pair.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 8, SHARED_WRITES = 300 };

static struct pair shared;
static atomic_int completed;

static void fill_table(struct pair *of)
{
#define X(result, name, parameters) of->verbs.name = ibv_##name;
    PAIR_FUNCTIONS(X)
#undef X
}

/* Makes and destroys all objects in each round, while other threads do the same. */
static void *comes_and_goes(void *argument)
{
    (void)argument;
    for (int i = 0; i < ROUNDS; i++) {
        struct pair own = {.mr = NULL};

        fill_table(&own);
        pair_open(&own);
        pair_connect(&own, i & 1 ? IBV_QPT_UC : IBV_QPT_RC);
        pair_send(&own, 3000);
        pair_write(&own, 20000);
        pair_disconnect(&own);
        pair_close(&own);
    }
    return NULL;
}

static int post_plain(uint8_t *from, uint8_t *to, uint64_t id)
{
    struct ibv_sge sge = {.addr = (uintptr_t)from, .length = 8, .lkey = shared.mr->lkey};
    struct ibv_send_wr write =
                           {
                               .wr_id = id,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_RDMA_WRITE,
                               .wr.rdma = {.remote_addr = (uintptr_t)to, .rkey = shared.mr->rkey},
                           },
                       *bad;

    return ibv_post_send(shared.qp[0], &write, &bad);
}

static int post_extended(uint8_t *from, uint8_t *to, uint64_t id)
{
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(shared.qp[0]);

    ibv_wr_start(qp);
    qp->wr_id = id;
    qp->wr_flags = 0;
    ibv_wr_rdma_write(qp, shared.mr->rkey, (uintptr_t)to);
    ibv_wr_set_sge(qp, shared.mr->lkey, (uintptr_t)from, 8);
    return ibv_wr_complete(qp);
}

static void poll_shared(void)
{
    struct ibv_wc wc[4];
    int got = ibv_poll_cq(shared.cq, 4, wc);

    CHECK(got >= 0, "%d", got);
    for (int i = 0; i < got; i++)
        CHECK(wc[i].status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc[i].status));
    atomic_fetch_add(&completed, got);
}

/* Writes words of its own over the pair that all threads use. If the send queue is full it tries again, because other threads poll. */
static void *writes_shared(void *argument)
{
    const uint64_t me = (uintptr_t)argument;
    uint8_t *from = shared.memory + me * 8, *to = shared.memory + PAIR_HALF + me * 8;

    memset(from, (int)me + 1, 8);
    for (int i = 0; i < SHARED_WRITES;) {
        int error = i & 1 ? post_plain(from, to, me) : post_extended(from, to, me);

        CHECK(!error || error == ENOMEM, "%s", strerror(error));
        i += !error;
        poll_shared();
    }
    while (atomic_load(&completed) < THREADS * SHARED_WRITES)
        poll_shared();
    return NULL;
}

static void run(void *(*body)(void *))
{
    pthread_t thread[THREADS];

    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&thread[i], NULL, body, (void *)i), "thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

int main(void)
{
    run(comes_and_goes);

    fill_table(&shared);
    pair_open(&shared);
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr_ex attr = {
            .send_cq = shared.cq,
            .recv_cq = shared.cq,
            .qp_type = IBV_QPT_RC,
            .sq_sig_all = 1,
            .pd = shared.pd,
            .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
            .cap = {.max_send_wr = PAIR_DEPTH, .max_recv_wr = PAIR_DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
        };

        shared.qp[i] = ibv_create_qp_ex(shared.context, &attr);
        CHECK(shared.qp[i], "%s", strerror(errno));
    }
    pair_connect(&shared, IBV_QPT_RC);
    run(writes_shared);
    CHECK(atomic_load(&completed) == THREADS * SHARED_WRITES, "%d", atomic_load(&completed));
    CHECK(!memcmp(shared.memory, shared.memory + PAIR_HALF, THREADS * 8), "words");
    pair_disconnect(&shared);
    pair_close(&shared);
    return 0;
}
