/* SPDX-License-Identifier: MIT
 *
 * Executes send queues as far as possible. A queue is executed by its owner, when the owner posts or polls, or by the receiver, when it
 * posts the receive for which the sender waits. One process at a time executes a queue: a process that finds the queue locked sets `kick`
 * and returns.
 */
#include "engine.h"

enum { LOOK_AGAIN_NS = 20000 };

/* Executes the requests of a queue in order. Returns true if the first remaining request waits, and a process must check it again later. */
static bool execute_drain(uint32_t q, struct sv_later *later)
{
    struct sf_qp *qp = &sv_lib.fabric->qps[q];
    for (;;) {
        uint64_t done = atomic_load_explicit(&qp->send_done, memory_order_relaxed);
        /* acquire: pairs with the release in sv_post_send */
        uint64_t left = atomic_load_explicit(&qp->send_posted, memory_order_acquire) - done;
        if (left == 0 || left > qp->send_capacity || atomic_load_explicit(&qp->owner, memory_order_relaxed) == 0 ||
            !sv_send_ring_sane(qp)) {
            /* the queue is empty, so no request waits */
            atomic_store_explicit(&qp->wait_for, SF_WAIT_NOTHING, memory_order_relaxed);
            return false;
        }
        uint32_t state = atomic_load_explicit(&qp->state, memory_order_acquire);
        if (state == IBV_QPS_ERR || state == IBV_QPS_SQE)
            sv_end_send(q, IBV_WC_WR_FLUSH_ERR, later);
        else if (state != IBV_QPS_RTS && !(state == IBV_QPS_SQD && qp->wait_for == SF_WAIT_HELD))
            /* in SQD the queue is stopped until the program changes its state, but a request whose data was moved still ends */
            return false;
        else if (sv_step(q, later) == SV_STALL)
            return true;
    }
}

/* Marks the queue for a check after a while. Without this mark, the owner would not check the queue if this process died while holding the
 * lock. */
static void leave_a_trace(struct sf_qp *qp)
{
    qp->next_look = sf_now() + 1000000;
    atomic_store_explicit(&qp->waiting, 1, memory_order_relaxed);
    /* release: pairs with the acquire in sv_progress(), so a process that sees the flag also sees that the queue pair waits */
    atomic_store_explicit(&sv_lib.fabric->cqs[qp->send_cq % SF_CQS].waiting, 1, memory_order_release);
}

static void run_one(uint32_t q, struct sv_later *later)
{
    struct sf_view *v = &sv_lib.view;
    struct sf_qp *qp = &sv_lib.fabric->qps[q];
    if (!sv_joined())
        return; /* the program is exiting, and this thread sees a private copy of the fabric (setup.c) */
    bool mine = atomic_load_explicit(&qp->owner, memory_order_relaxed) == v->process;
    if (mine)
        sf_lock_send(v, qp);
    else {
        /* set this before trying the lock, because the holder checks `kick` after it has released the lock */
        atomic_store_explicit(&qp->kick, 1, memory_order_seq_cst);
        if (!sf_try_lock(v, &qp->lock))
            return;
    }
    for (;;) {
        /* clear the kick only if it is set; a later kick is seen after the unlock below */
        if (atomic_load_explicit(&qp->kick, memory_order_relaxed))
            atomic_exchange_explicit(&qp->kick, 0, memory_order_seq_cst);
        if (!mine)
            leave_a_trace(qp);
        if (!execute_drain(q, later))
            atomic_store_explicit(&qp->waiting, 0, memory_order_relaxed);
        sf_unlock(v, &qp->lock);
        if (atomic_load_explicit(&qp->kick, memory_order_seq_cst) == 0 || !sf_try_lock(v, &qp->lock))
            return;
    }
}

__attribute__((noinline)) static void execute_settle(struct sv_later *later)
{
    /* the loop ends, because each round adds only queue pairs that were not in ERR */
    while (sv_later_any(later)) {
        struct sv_later now = *later;
        later->count = later->flush_count = later->dead_count = 0;
        for (int i = 0; i < now.dead_count; i++)
            sf_reap(&sv_lib.view, now.dead[i]);
        for (int i = 0; i < now.flush_count; i++)
            sv_flush_receives(now.flush[i]);
        for (int i = 0; i < now.count; i++)
            run_one(now.run[i], later);
    }
}

void sv_run(uint32_t q)
{
    struct sv_later later;
    if (q >= SF_QPS)
        return;
    later.count = later.flush_count = later.dead_count = 0; /* members beyond these counts are not read */
    run_one(q, &later);
    if (sv_later_any(&later))
        execute_settle(&later);
}

void sv_flush_receives(uint32_t q)
{
    struct sf_fabric *f = sv_lib.fabric;
    struct sf_qp *qp = &f->qps[q];
    if (qp->srq)
        return; /* a shared receive queue keeps its receives */
    sf_lock_receive(&sv_lib.view, &qp->receive, &f->cqs[qp->receive_cq % SF_CQS]);
    for (;;) {
        uint64_t done = atomic_load_explicit(&qp->receive.done, memory_order_relaxed);
        if (atomic_load_explicit(&qp->state, memory_order_seq_cst) != IBV_QPS_ERR ||
            atomic_load_explicit(&qp->owner, memory_order_relaxed) == 0 ||
            atomic_load_explicit(&qp->receive.posted, memory_order_acquire) == done ||
            atomic_load_explicit(&qp->receive.posted, memory_order_relaxed) - done > qp->receive.capacity ||
            !sv_receive_ring_sane(&qp->receive))
            break;
        struct sf_cqe e = {
            .wr_id = sv_receive_slot(&qp->receive, done)->wr_id,
            .qp = q,
            .qp_num = qp->number,
            .slot = (uint32_t)done,
            .status = IBV_WC_WR_FLUSH_ERR,
            .receive = 1,
        };
        struct sf_intent in = {.kind = 2, .index = q, .done = done + 1};
        sv_complete(qp->receive_cq, &e, &in);
    }
    sf_unlock(&sv_lib.view, &qp->receive.lock);
}

void sv_finish_failing(uint32_t q)
{
    struct sf_qp *qp = &sv_lib.fabric->qps[q];
    /* acquire: pairs with the release in sv_fail_qp */
    if (atomic_load_explicit(&qp->failing, memory_order_acquire) != qp->connection)
        return;
    /* while this lock is held, no other thread can reset and reconnect the queue pair */
    sf_lock_send(&sv_lib.view, qp);
    bool meant = atomic_load_explicit(&qp->failing, memory_order_relaxed) == qp->connection, fails = meant && sv_to_error(qp);
    if (meant)
        atomic_store_explicit(&qp->failing, 0, memory_order_relaxed);
    sf_unlock(&sv_lib.view, &qp->lock);
    if (!meant)
        return;
    if (fails && qp->srq)
        sv_async_own(q, IBV_EVENT_QP_LAST_WQE_REACHED);
    sv_run(q);
    sv_flush_receives(q);
}

/* Checks a queue pair that waits. Returns when to check it next. */
static uint64_t look_at(uint32_t q, uint64_t now)
{
    struct sf_qp *qp = &sv_lib.fabric->qps[q];
    if (atomic_load_explicit(&qp->state, memory_order_acquire) == IBV_QPS_ERR) {
        /* `softverbs fault remove` has brought the queue pair to ERR (cli/cable.c), and its owner must flush it */
        atomic_store_explicit(&qp->waiting, 0, memory_order_relaxed);
        sv_run(q);
        sv_flush_receives(q);
        return 0;
    }
    if (now >= qp->next_look)
        sv_run(q);
    if (atomic_load_explicit(&qp->waiting, memory_order_acquire) == 0)
        return 0;
    /* the request waits for no particular time: check again after LOOK_AGAIN_NS */
    return qp->next_look > now ? qp->next_look : now + LOOK_AGAIN_NS;
}

uint64_t sv_progress(uint32_t cq)
{
    struct sf_fabric *f = sv_lib.fabric;
    uint32_t me = sv_lib.view.process;
    uint64_t now = sf_now(), next = 0;
    if (cq < SF_CQS)
        atomic_exchange_explicit(&f->cqs[cq].waiting, 0, memory_order_acq_rel);
    for (uint32_t i = 0; i < f->qp_top && i < SF_QPS; i++) {
        struct sf_qp *qp = &f->qps[i];
        if (atomic_load_explicit(&qp->owner, memory_order_acquire) != me)
            continue;
        uint64_t then = 0;
        if (cq >= SF_CQS || qp->send_cq == cq || qp->receive_cq == cq) {
            if (atomic_load_explicit(&qp->failing, memory_order_acquire))
                sv_finish_failing(i);
            if (atomic_load_explicit(&qp->waiting, memory_order_acquire))
                then = look_at(i, now);
        }
        struct sf_qp *peer = &f->qps[qp->peer_qp % SF_QPS];
        if ((cq >= SF_CQS || qp->receive_cq == cq) && qp->type != IBV_QPT_UD && peer->owner != me && peer->owner != 0 &&
            atomic_load_explicit(&peer->waiting, memory_order_acquire) &&
            (peer->wait_for == SF_WAIT_DELAY || peer->wait_for == SF_WAIT_HELD) && peer->peer_number == qp->number) {
            uint64_t later = look_at(qp->peer_qp % SF_QPS, now);
            then = later && (!then || later < then) ? later : then;
        }
        next = then && (!next || then < next) ? then : next;
    }
    if (next && cq < SF_CQS)
        atomic_store_explicit(&f->cqs[cq].waiting, 1, memory_order_release);
    return next;
}
