/* SPDX-License-Identifier: MIT
 *
 * Takes completions out of a completion queue, in the process that owns it.
 *
 * As on a real device, a slot of a work queue becomes free when its completion, or a later one, is polled. So a program that never requests
 * a completion fills its send queue.
 */
#include "engine.h"

#include <errno.h>
#include <sched.h>

enum { LOOK_PAUSE_NS = 10000 };

static const struct sf_cqe *poll_next(struct sv_cq *cq, uint64_t consumed)
{
    enum { SELDOM = 64 };
    const struct sf_cqe *e = sv_ring_slot(&cq->ring, consumed);
    /* acquire: pairs with the release in sv_complete */
    if (__atomic_load_n(&e->turn, __ATOMIC_ACQUIRE) == consumed + 1)
        return e;
    /* After a long time without a completion, look at the count, too: the producer may have died after writing the count and before writing
     * the turn. */
    if (cq->idle % SELDOM != SELDOM - 1)
        return NULL;
    uint64_t there = atomic_load_explicit(&cq->shared->produced, memory_order_acquire) - consumed;
    return there - 1 > cq->ring.mask ? NULL : e; /* no new completion; or another process has overwritten the count */
}

static void free_slots(const struct sf_cqe *e)
{
    if (e->srq != 0) {
        struct sv_srq *srq = __atomic_load_n(&sv_lib.srqs[(e->srq - 1) % SF_SRQS], __ATOMIC_ACQUIRE);
        if (srq)
            atomic_fetch_add_explicit(&srq->polled, 1, memory_order_release);
        return;
    }
    struct sv_qp *qp = __atomic_load_n(&sv_lib.qps[e->qp % SF_QPS], __ATOMIC_ACQUIRE);
    if (!qp || qp->base.qp_num != e->qp_num)
        /* another process has overwritten the entry: destroying or resetting a queue pair removes its completions, so this cannot happen
         * otherwise */
        return;
    const struct sv_ring *ring = e->receive ? &qp->receive : &qp->send;
    _Atomic uint64_t *polled = e->receive ? &qp->receive_polled : &qp->send_polled;
    uint64_t from = atomic_load_explicit(polled, memory_order_relaxed);
    uint64_t to = from + (uint32_t)(e->slot - (uint32_t)from) + 1;
    if (to - from > ring->mask + UINT64_C(1) || !ring->base)
        return; /* another process has overwritten the entry */
    /* acquire: pairs with the release in post.c; the requests are read below */
    if (to > atomic_load_explicit(e->receive ? &qp->shared->receive.posted : &qp->shared->send_posted, memory_order_acquire))
        return;
    if (sv_lib.profile->frame_bytes) {
        uint64_t sum = 0;
        for (uint64_t p = from; p < to; p++)
            sum += sv_frames(e->receive ? ((struct sf_receive *)sv_ring_slot(ring, p))->length
                                        : ((struct sf_send *)sv_ring_slot(ring, p))->length);
        atomic_fetch_sub_explicit(e->receive ? &qp->frames_receive : &qp->frames_send, sum, memory_order_relaxed);
    }
    /* release: pairs with the acquire in post.c; the slots were read before they are written again */
    atomic_store_explicit(polled, to, memory_order_release);
}

/* Brings the queue pair of a failed receive to ERR, in case the process that wrote the completion was killed before it did so. */
__attribute__((noinline)) static void receive_failed(struct sv_cq *cq, const struct sf_cqe *e)
{
    struct sv_qp *qp = __atomic_load_n(&sv_lib.qps[e->qp % SF_QPS], __ATOMIC_ACQUIRE);
    if (!qp || qp->base.qp_num != e->qp_num || qp->base.qp_type == IBV_QPT_UD)
        return;
    /* release: as in sv_fail_qp(). The next poll without a completion handles this, even if queue pairs were checked just before. */
    atomic_store_explicit(&qp->shared->failing, qp->shared->connection, memory_order_release);
    atomic_store_explicit(&cq->shared->waiting, 1, memory_order_release);
    cq->look_again = 0;
}

static void poll_done(struct sv_cq *cq, const struct sf_cqe *e)
{
    free_slots(e);
    if (e->receive && e->status != IBV_WC_SUCCESS && e->status != IBV_WC_WR_FLUSH_ERR)
        receive_failed(cq, e);
}

/* Removes the unpolled completions of one queue pair. Slots become free as if they had been polled. The remaining completions move towards
 * the newest, so that the oldest slots become free. */
void sv_forget_completions(struct sv_cq *cq, uint32_t qp_num)
{
    struct sf_cq *s = cq->shared;
    /* Threads that write slots hold this lock, and so do those that read them without the consumers' lock (wanted_unpolled()). */
    sf_lock_cq(&sv_lib.view, s);
    uint64_t from = atomic_load_explicit(&s->consumed, memory_order_relaxed);
    uint64_t to = atomic_load_explicit(&s->produced, memory_order_relaxed), free = to;
    if (to - from > cq->ring.mask + UINT64_C(1))
        from = free = to; /* another process has overwritten a count */
    for (uint64_t i = to; i != from; i--) {
        struct sf_cqe *e = sv_ring_slot(&cq->ring, i - 1);
        if (e->qp_num == qp_num) {
            free_slots(e);
            continue;
        }
        if (free != i) {
            struct sf_cqe *there = sv_ring_slot(&cq->ring, free - 1);
            *there = *e;
            there->turn = free;
        }
        free--;
    }
    if (free != from) /* release: as in sv_poll_cq() */
        atomic_store_explicit(&s->consumed, free, memory_order_release);
    sf_unlock(&sv_lib.view, &s->lock);
}

/* Runs queue pairs whose time has come. Returns true if there is a new completion. */
static bool anything_new(struct sv_cq *cq, uint64_t consumed)
{
    if (atomic_load_explicit(&cq->shared->waiting, memory_order_relaxed) == 0)
        return false;
    /* not done in each poll, because it takes longer than a poll */
    uint64_t now = sf_now(), after;
    if (now < cq->look_again)
        return false;
    uint64_t again = sv_progress(cq->entry);
    if (again && cq->channel) /* this may be the last check before the program sleeps */
        sv_wake_at(cq->entry, again);
    after = sf_now();
    cq->look_again = after + (4 * (after - now) > LOOK_PAUSE_NS ? 4 * (after - now) : LOOK_PAUSE_NS);
    return atomic_load_explicit(&cq->shared->produced, memory_order_acquire) != consumed;
}

/* Also checks waiting queue pairs now and then when the queue has completions; otherwise these queue pairs might never run. */
static const struct sf_cqe *poll_next_or_new(struct sv_cq *cq, uint64_t consumed)
{
    enum { SELDOM = 64 };
    const struct sf_cqe *e = poll_next(cq, consumed);
    if ((e && ++cq->turns % SELDOM != 0) || !anything_new(cq, consumed))
        return e;
    return poll_next(cq, consumed);
}

static enum ibv_wc_opcode opcode_of(const struct sf_cqe *e)
{
    return (enum ibv_wc_opcode)(e->opcode | (e->receive ? IBV_WC_RECV : 0));
}

int sv_poll_cq(struct ibv_cq *base, int entries, struct ibv_wc *wc)
{
    struct sv_cq *cq = (struct sv_cq *)base;
    if (cq->life != sv_lib.life) {
        errno = ENODEV; /* a forked child cannot use its parent's queue */
        return -1;
    }
    if (sv_rules()) {
        int refused = sv_refused_slow(SF_VERB_POLL_CQ, cq->shared->device);
        if (refused) {
            errno = refused;
            return -1;
        }
    }
    int n = 0;
    pthread_mutex_lock(&cq->poll);
    uint64_t consumed = atomic_load_explicit(&cq->shared->consumed, memory_order_relaxed);
    for (; n < entries; n++, wc++) {
        const struct sf_cqe *e = n == 0 ? poll_next_or_new(cq, consumed) : poll_next(cq, consumed);
        if (!e)
            break;
        *wc = (struct ibv_wc){
            .wr_id = e->wr_id,
            .status = e->status,
            .opcode = opcode_of(e),
            .vendor_err = e->vendor_error,
            .byte_len = e->byte_len,
            .imm_data = e->imm,
            .qp_num = e->qp_num,
            .src_qp = e->source_qp,
            .wc_flags = e->wc_flags,
            .slid = e->source_lid,
            .sl = e->service_level,
        };
        poll_done(cq, e);
        consumed++;
    }
    if (n > 0) /* release: pairs with the acquire in sv_complete(); the slots were read */
        atomic_store_explicit(&cq->shared->consumed, consumed, memory_order_release);
    bool tired = sv_tired(cq, n > 0);
    pthread_mutex_unlock(&cq->poll);
    if (tired)
        sched_yield();
    return n;
}

bool sv_take_cqe(struct sv_cq *cq, struct sf_cqe *out)
{
    uint64_t consumed = atomic_load_explicit(&cq->shared->consumed, memory_order_relaxed);
    const struct sf_cqe *e = poll_next_or_new(cq, consumed);
    if (!e)
        return false;
    *out = *e;
    poll_done(cq, e);
    atomic_store_explicit(&cq->shared->consumed, consumed + 1, memory_order_release);
    return true;
}
