/* SPDX-License-Identifier: MIT
 *
 * Checks with several threads: any thread may use verbs objects at any time.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "conf.h"

#define THREADS 4
#define EACH    100

struct job {
    struct t *t;
    struct pair *p;
    int number, err;
    _Atomic int *left;
};

/* Post the thread's writes one by one, and try again while the queue is full; another thread polls. The CQ has room for all completions:
 * some devices free a request's slot before its completion is polled. */
static void *poster(void *arg)
{
    struct job *j = arg;

    for (int i = 0; i < EACH && !j->err; i++) {
        struct ibv_sge sge = sge_at(&j->p->a, (size_t)j->number * 1024, 64);
        struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, (uint64_t)(j->number * EACH + i), &sge, &j->p->b, (size_t)j->number * 1024);
        double end = now() + 2 * WAIT_S * j->t->slow;
        int ret;

        while ((ret = post_send(j->p->a.qp, &wr)) == ENOMEM && now() < end)
            sched_yield();
        j->err = ret;
    }
    return NULL;
}

static void join_all(struct t *t, pthread_t *threads, struct job *jobs, int n)
{
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < n; i++)
        want_ok(t, jobs[i].err);
}

/* All threads post to one QP. The requests of each thread complete in the order in which it posted them, each once. */
static void one_qp(struct t *t, long arg)
{
    static struct pair p;
    struct job jobs[THREADS] = {0};
    pthread_t threads[THREADS];
    int next[THREADS] = {0}, bad = 0, out_of_order = 0, at = 0, expected = 0;

    (void)arg;
    PAIR(t, &p, .cqe = THREADS * EACH);
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){.t = t, .p = &p, .number = i};
        want_ok(t, pthread_create(&threads[i], NULL, poster, &jobs[i]));
    }
    double end = now() + 4 * t->wait_s;
    for (int i = 0; i < THREADS * EACH && now() < end;) {
        struct ibv_wc wc;
        int n = ibv_poll_cq(p.a.scq, 1, &wc);

        if (n == 0) {
            sched_yield();
            continue;
        }
        i++;
        if (n < 0 || wc.status != IBV_WC_SUCCESS || wc.wr_id >= THREADS * EACH)
            bad = n < 0 ? n : (int)wc.status;
        else if ((int)(wc.wr_id % EACH) != next[wc.wr_id / EACH]++ && !out_of_order++) {
            at = (int)wc.wr_id;
            expected = at / EACH * EACH + next[at / EACH] - 1;
        }
    }
    join_all(t, threads, jobs, THREADS);
    want_eq(t, bad, 0);
    if (out_of_order)
        fail(t, "%d completions out of order; the first: expected wr_id %d, came %d", out_of_order, expected, at);
    for (int i = 0; i < THREADS; i++)
        want_eq(t, next[i], EACH);
}

/* ---- Several QPs, one CQ, two threads that poll it */

struct poll_job {
    struct t *t;
    struct ibv_cq *cq;
    _Atomic int *left;
    _Atomic unsigned char *seen;
    int bad;
};

static void *poller(void *arg)
{
    struct poll_job *j = arg;
    double end = now() + 4 * WAIT_S * j->t->slow;

    while (*j->left > 0 && now() < end) {
        struct ibv_wc wc[4];
        int n = ibv_poll_cq(j->cq, 4, wc);

        if (n <= 0) {
            j->bad += n < 0;
            sched_yield();
            continue;
        }
        *j->left -= n;
        for (int i = 0; i < n; i++) {
            bool mine = wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id < THREADS * EACH;

            j->bad += !mine || j->seen[wc[i].wr_id]++;
        }
    }
    return NULL;
}

static void one_cq(struct t *t, long arg)
{
    static struct pair p[THREADS];
    static _Atomic unsigned char seen[THREADS * EACH];
    _Atomic int left = THREADS * EACH;
    struct job jobs[THREADS] = {0};
    struct poll_job polls[2];
    pthread_t threads[THREADS], pollers[2];
    struct ibv_pd *pd = pd_new(t);
    struct ibv_cq *cq = cq_new(t, THREADS * EACH, NULL);

    (void)arg;
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < THREADS; i++) {
        PAIR(t, &p[i], .pd = pd);
        struct ibv_qp_init_attr init = {
            .send_cq = cq,
            .recv_cq = cq,
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        };
        /* Replaces the QP of the pair's sender by one on the common CQ. */
        drop(t, p[i].a.qp);
        p[i].a.qp = qp_new(t, pd, &init);
        want_ok(t, to_state(p[i].b.qp, IBV_QPS_RESET));
        to_init(t, p[i].a.qp);
        to_init(t, p[i].b.qp);
        to_rtr(t, p[i].a.qp, p[i].b.qp->qp_num);
        to_rtr(t, p[i].b.qp, p[i].a.qp->qp_num);
        to_rts(t, p[i].a.qp);
    }
    for (int i = 0; i < 2; i++) {
        polls[i] = (struct poll_job){.t = t, .cq = cq, .left = &left, .seen = seen};
        want_ok(t, pthread_create(&pollers[i], NULL, poller, &polls[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){.t = t, .p = &p[i], .number = i};
        want_ok(t, pthread_create(&threads[i], NULL, poster, &jobs[i]));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(pollers[i], NULL);
    join_all(t, threads, jobs, THREADS);
    want_eq(t, polls[0].bad + polls[1].bad, 0);
    want_eq(t, left, 0);
    for (int i = 0; i < THREADS * EACH; i++)
        want_eq(t, seen[i], 1);
}

/* ---- Threads with resources of their own, which share only the device */

static void *maker(void *arg)
{
    struct job *j = arg;
    struct t *t = j->t;
    static char page[THREADS][4096] __attribute__((aligned(4096)));

    for (int i = 0; i < 20 && !j->err; i++) {
        struct ibv_pd *pd = ibv_alloc_pd(t->ctx);
        struct ibv_mr *mr = pd ? ibv_reg_mr(pd, page[j->number], 4096, ALL_ACCESS) : NULL;
        struct ibv_cq *cq = ibv_create_cq(t->ctx, 8, NULL, NULL, 0);
        struct ibv_qp_init_attr init = {
            .send_cq = cq,
            .recv_cq = cq,
            .qp_type = IBV_QPT_RC,
            .cap = {1, 1, 1, 1, 0},
        };
        struct ibv_qp *qp = mr && cq ? ibv_create_qp(pd, &init) : NULL;

        j->err = qp ? 0 : ENOMEM;
        j->err = j->err ? j->err : ibv_destroy_qp(qp);
        j->err = j->err ? j->err : ibv_destroy_cq(cq);
        j->err = j->err ? j->err : ibv_dereg_mr(mr);
        j->err = j->err ? j->err : ibv_dealloc_pd(pd);
    }
    return NULL;
}

static void makers(struct t *t, long arg)
{
    struct job jobs[THREADS] = {0};
    pthread_t threads[THREADS];

    (void)arg;
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){.t = t, .number = i};
        want_ok(t, pthread_create(&threads[i], NULL, maker, &jobs[i]));
    }
    join_all(t, threads, jobs, THREADS);
}

static void *made(void *arg)
{
    struct job *j = arg;

    maker(j);
    atomic_fetch_sub(j->left, 1);
    return NULL;
}

/* Another thread makes and destroys QPs while this one polls for the completion of a message that waits for its receive. */
static void make_and_poll(struct t *t, long arg)
{
    static struct pair p;
    _Atomic int left = 1;
    struct job job = {.t = t, .left = &left};
    struct ibv_wc wc;
    pthread_t thread;
    int early = 0;

    (void)arg;
    PAIR(t, &p);
    struct ibv_sge sge = sge_at(&p.a, 0, 64);
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 1, &sge);
    send_ok(t, p.a.qp, &wr);
    want_ok(t, pthread_create(&thread, NULL, made, &job));
    while (atomic_load(&left) > 0) {
        int n = ibv_poll_cq(p.a.scq, 1, &wc);

        early += n != 0;
        if (n == 0)
            sched_yield();
    }
    join_all(t, &thread, &job, 1);
    want_eq(t, early, 0);
    recv_ok(t, &p.b, 2, 0, 64);
    wait_for(t, p.a.scq, 1, IBV_WC_SUCCESS);
}

/* ---- Receives posted by one thread while messages come from another */

static void *receiver(void *arg)
{
    struct job *j = arg;
    double end = now() + 4 * WAIT_S * j->t->slow;
    int got = 0, posted = 0;

    while (got < EACH && now() < end && !j->err) {
        struct ibv_sge sge = sge_at(&j->p->b, (size_t)(posted % 16) * 64, 64);
        struct ibv_wc wc;

        if (posted < EACH && posted - got < 8) {
            j->err = post_recv(j->p->b.qp, (uint64_t)posted, &sge, 1);
            posted++;
        }
        int n = ibv_poll_cq(j->p->b.rcq, 1, &wc);
        if (n == 1)
            j->err = wc.status != IBV_WC_SUCCESS || wc.wr_id != (uint64_t)got++ ? EPROTO : j->err;
        else
            sched_yield();
    }
    if (got < EACH && !j->err)
        j->err = ETIMEDOUT;
    return NULL;
}

static void stream(struct t *t, long arg)
{
    static struct pair p;
    struct job job = {0};
    pthread_t thread;
    int sent = 0, done = 0, bad = 0;

    (void)arg;
    PAIR(t, &p);
    job = (struct job){.t = t, .p = &p};
    want_ok(t, pthread_create(&thread, NULL, receiver, &job));
    for (double end = now() + 4 * t->wait_s; done < EACH && !bad && now() < end;) {
        struct ibv_sge sge = sge_at(&p.a, 0, 64);
        struct ibv_send_wr wr = wr_of(IBV_WR_SEND, (uint64_t)sent, &sge);
        struct ibv_wc wc;

        if (sent < EACH && sent - done < 8) {
            bad += post_send(p.a.qp, &wr) != 0;
            sent++;
        }
        int n = ibv_poll_cq(p.a.scq, 1, &wc);
        if (n == 1)
            bad += wc.status != IBV_WC_SUCCESS || wc.wr_id != (uint64_t)done++;
        else
            sched_yield();
    }
    join_all(t, &thread, &job, 1);
    want_eq(t, bad, 0);
    want_eq(t, done, EACH);
}

/* ---- One thread polls a CQ while another resets a QP, which removes that QP's completions */

struct watch {
    struct ibv_cq *cq;
    uint32_t stays;
    _Atomic int next, bad; /* next: the wr_id that the next completion of the QP `stays` must have; bad: wrong completions */
    _Atomic bool end;
};

static void *watcher(void *arg)
{
    struct watch *w = arg;

    while (!w->end) {
        struct ibv_wc wc[4];
        int n = ibv_poll_cq(w->cq, 4, wc);

        w->bad += n < 0;
        for (int i = 0; i < n; i++)
            if (wc[i].qp_num == w->stays)
                w->bad += wc[i].status != IBV_WC_SUCCESS || wc[i].wr_id != (uint64_t)w->next++;
        sched_yield();
    }
    return NULL;
}

static void cleaned(struct t *t, long arg)
{
    static struct watch w; /* not on the stack, because the thread may outlive a check that fails */
    struct ibv_pd *pd = pd_new(t);
    struct ibv_cq *cq = cq_new(t, 64, NULL);
    struct ibv_qp *goes = qp_simple(t, pd, cq, IBV_QPT_RC), *stays = qp_simple(t, pd, cq, IBV_QPT_RC);
    struct ibv_send_wr wr = wr_of(IBV_WR_RDMA_WRITE, 0, NULL);
    double end = now() + 4 * t->wait_s;
    pthread_t thread;
    int sent = 0, bad = 0;

    (void)arg;
    to_init(t, stays);
    to_rtr(t, stays, stays->qp_num);
    to_rts(t, stays);
    w = (struct watch){.cq = cq, .stays = stays->qp_num};
    want_ok(t, pthread_create(&thread, NULL, watcher, &w));
    while (sent < EACH && !bad && now() < end) {
        to_init(t, goes);
        to_rtr(t, goes, goes->qp_num);
        to_rts(t, goes);
        for (int i = 0; i < 4; i++) {
            wr.wr_id = (uint64_t)sent;
            bad += post_send(i == 2 ? stays : goes, &wr) != 0;
        }
        sent++;
        bad += to_state(goes, IBV_QPS_RESET) != 0;
        while (w.next < sent && !w.bad && now() < end)
            sched_yield();
    }
    w.end = true;
    pthread_join(thread, NULL);
    want_eq(t, bad + w.bad, 0);
    want_eq(t, w.next, EACH);
}

const struct check thread_checks[] = {
    {"thread.one_qp", one_qp, 0, 0},
    {"thread.one_cq", one_cq, 0, 0},
    {"thread.makers", makers, 0, 0},
    {"thread.make_and_poll", make_and_poll, 0, 0},
    {"thread.stream", stream, 0, 0},
    {"thread.cleaned", cleaned, 0, 0},
    {0},
};
