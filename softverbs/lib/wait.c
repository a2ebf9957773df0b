/* SPDX-License-Identifier: MIT
 *
 * Requests that cannot be executed yet: what they wait for, how long, and how they end when the time is over.
 */
#include "engine.h"

#define WAIT_FOR_EVER UINT64_MAX
enum { LOOK_SOON_NS = 20000, LOOK_LATE_NS = 20000000 };

/* Makes the process that polls this completion queue, or sleeps on it, check its queue pairs. */
static void wait_mark(uint32_t index, bool wake, uint64_t at)
{
    struct sf_cq *cq = &sv_lib.fabric->cqs[index % SF_CQS];
    /* release: pairs with the acquire in sv_progress(), so a process that sees the flag also sees that the queue pair waits */
    atomic_store_explicit(&cq->waiting, 1, memory_order_release);
    if (wake && cq->channel_fd >= 0)
        sv_wake_at(index, at);
}

enum sv_step sv_stall(struct sv_job *j, enum sf_wait what, uint64_t until)
{
    struct sf_qp *qp = j->qp;
    uint64_t now = sf_now();
    if (qp->wait_for != what) {
        qp->wait_for = what;
        qp->wait_since = now;
        qp->wait_until = until;
    }
    uint64_t step = (now - qp->wait_since) / 4;
    step = step < LOOK_SOON_NS ? LOOK_SOON_NS : step > LOOK_LATE_NS ? LOOK_LATE_NS : step;
    uint64_t look = now + step < qp->wait_until ? now + step : qp->wait_until;
    atomic_store_explicit(&qp->next_look, look, memory_order_relaxed);
    atomic_store_explicit(&qp->waiting, 1, memory_order_relaxed);
    /* Mark both completion queues: a program that waits for an answer polls only the queue of that answer. If a receive is missing, a peer
     * need not wake the owner, because the owner set its timer when it posted the request. */
    bool wake = what != SF_WAIT_RECEIVE || qp->owner == sv_lib.view.process;
    wait_mark(qp->send_cq, wake, look);
    if (qp->receive_cq != qp->send_cq)
        wait_mark(qp->receive_cq, wake, look);
    if ((what == SF_WAIT_DELAY || what == SF_WAIT_HELD) && j->target && qp->type != IBV_QPT_UD)
        /* the receiver may continue the request if the sender does not poll */
        wait_mark(j->target->receive_cq, true, look);
    return SV_STALL;
}

enum sv_step sv_lost(struct sv_job *j)
{
    atomic_fetch_add_explicit(&sv_lib.fabric->devices[j->qp->device % SV_DEVICES].dropped, 1, memory_order_relaxed);
    sv_end_send(j->q, IBV_WC_SUCCESS, j->later);
    return SV_DONE;
}

enum sv_step sv_end(struct sv_job *j, enum ibv_wc_status status)
{
    sv_end_send(j->q, status, j->later);
    return SV_DONE;
}

enum sv_step sv_no_answer(struct sv_job *j)
{
    struct sf_qp *qp = j->qp;
    if (qp->type != IBV_QPT_RC) {
        if (qp->type == IBV_QPT_UC && sv_lib.profile->credits && sv_takes_receive(j->s->opcode))
            return sv_stall(j, SF_WAIT_RECEIVE, WAIT_FOR_EVER);
        return sv_lost(j);
    }
    /* The standard's time-out for each attempt is 4.096 us times two to the power of the attribute; 0 means for ever. */
    uint64_t once = UINT64_C(4096) << (qp->timeout & 31);
    uint64_t all = once * (qp->retry_count + 1u);
    if (qp->wait_for == SF_WAIT_ANSWER && sf_now() >= qp->wait_until)
        return sv_end(j, IBV_WC_RETRY_EXC_ERR);
    return sv_stall(j, SF_WAIT_ANSWER, qp->timeout ? sf_now() + all : WAIT_FOR_EVER);
}

enum sv_step sv_not_ready(struct sv_job *j)
{
    /* In units of 10 us, indexed by the receiver's min_rnr_timer (InfiniBand, table 45). */
    static const uint32_t timer[32] = {65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
                                       256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    struct sf_qp *qp = j->qp;
    if (qp->type == IBV_QPT_UC && sv_lib.profile->credits)
        return sv_stall(j, SF_WAIT_RECEIVE, WAIT_FOR_EVER);
    if (qp->type != IBV_QPT_RC)
        return sv_lost(j);
    /* A dead process posts no receives, so do not wait for one. When the dead process has been reaped, its queue pair is gone, and the
     * request ends after its last retry. */
    bool look = qp->wait_for == SF_WAIT_NOTHING ? qp->rnr_retry == 0 : sf_now() >= qp->next_look;
    if (look && !sf_alive(sv_lib.fabric, j->target->owner))
        return sv_died(j, j->target->owner);
    if (qp->rnr_retry == 0 || (qp->wait_for == SF_WAIT_RECEIVE && sf_now() >= qp->wait_until))
        return sv_end(j, IBV_WC_RNR_RETRY_EXC_ERR);
    uint64_t step = timer[j->target->rnr_timer & 31] * UINT64_C(10000);
    return sv_stall(j, SF_WAIT_RECEIVE, qp->rnr_retry == 7 ? WAIT_FOR_EVER : sf_now() + qp->rnr_retry * step);
}

enum sv_step sv_died(struct sv_job *j, uint32_t process)
{
    if (j->later->dead_count < 4)
        j->later->dead[j->later->dead_count++] = process;
    return process == j->qp->owner ? SV_STALL : sv_no_answer(j);
}
