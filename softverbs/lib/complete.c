/* SPDX-License-Identifier: MIT
 *
 * Completions: into a queue by whoever executed the request, out of it by its owner.
 *
 * A slot of a work queue becomes free when the completion that covers it is polled, as on a real device: a program that
 * never signals fills its send queue, here as there.
 */
#include "engine.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

enum { LOOK_PAUSE_NS = 10000 };

/* A request whose completion finds no room. */
static void advance_without(struct sf_cq *cq, const struct sf_intent *in)
{
    struct sf_fabric *f = sv_lib.fabric;
    uint32_t kind = atomic_load_explicit(&in->kind, memory_order_relaxed);
    if (kind != 3) {
        sf_advance(f, in);
        return;
    }
    cq->intent.index = in->index;
    cq->intent.done = in->done;
    cq->intent.dropped = atomic_load_explicit(&f->srqs[in->index % SF_SRQS].dropped, memory_order_relaxed) + 1;
    atomic_store_explicit(&cq->intent.kind, 4, memory_order_release);
    sf_advance(f, &cq->intent);
    atomic_store_explicit(&cq->intent.kind, 0, memory_order_release);
}

enum { ANY = 1, SOLICITED = 2 }; /* of sf_cq.armed */

/* Whether a completion is one that the owner wants to be told of. */
static bool wanted(uint32_t armed, const struct sf_cqe *e)
{
    return armed == ANY || (armed == SOLICITED && (e->solicited || e->status != IBV_WC_SUCCESS));
}

/* The event comes before the completion: whoever is killed between the two has done neither, or woken somebody who finds nothing yet,
 * and waits for the lock when he arms again. The other way round a completion could lie there with its owner asleep. cq->lock is
 * held, as by all who arm and disarm. */
static void tell(uint32_t index, struct sf_cq *cq, uint32_t owner, const struct sf_cqe *e)
{
    if (cq->channel_fd < 0 || !wanted(atomic_load_explicit(&cq->armed, memory_order_relaxed), e))
        return;
    sv_signal(owner, cq->channel_fd, &(struct sv_event){.kind = 1, .entry = index, .generation = cq->generation});
    atomic_store_explicit(&cq->armed, 0, memory_order_relaxed);
}

void sv_complete(uint32_t index, const struct sf_cqe *e, const struct sf_intent *in)
{
    struct sf_fabric *f = sv_lib.fabric;
    struct sf_cq *cq = &f->cqs[index % SF_CQS];
    struct sf_view *v = &sv_lib.view;
    sf_lock_cq(v, cq);
    uint32_t owner = atomic_load_explicit(&cq->owner, memory_order_relaxed);
    uint64_t produced = atomic_load_explicit(&cq->produced, memory_order_relaxed);
    if (produced - cq->seen >= cq->limit) /* acquire: the consumer has read a slot before it frees it (below) */
        cq->seen = atomic_load_explicit(&cq->consumed, memory_order_acquire);
    uint64_t unpolled = produced - cq->seen;
    bool overrun = unpolled >= cq->limit;
    if (owner == 0 || overrun || atomic_load_explicit(&cq->dead, memory_order_relaxed) ||
        !sv_ring_sane(cq->ring, cq->capacity, sizeof(struct sf_cqe), 0)) {
        bool first = owner != 0 && overrun && atomic_load_explicit(&cq->dead, memory_order_relaxed) == 0;
        if (first && cq->context >= 0) /* before the mark: killed between the two, the next one tells again */
            sv_async((uint32_t)cq->context, IBV_EVENT_CQ_ERR, index, cq->generation);
        if (first)
            atomic_store_explicit(&cq->dead, 1, memory_order_relaxed);
        if (in)
            advance_without(cq, in);
        sf_unlock(v, &cq->lock);
        if (first)
            sv_log(SV_ERROR, "completion queue overrun: %u completions unpolled, all it has room for", cq->limit);
        return;
    }
    struct sf_cqe *slot = (struct sf_cqe *)sf_at(v, cq->ring) + (produced & (cq->capacity - 1));
    memcpy(slot, e, offsetof(struct sf_cqe, turn));
    slot->timestamp = cq->timed ? sf_now() : 0;
    if (in) {
        cq->intent.index = in->index;
        cq->intent.produced = produced;
        cq->intent.done = in->done;
        atomic_store_explicit(&cq->intent.kind, in->kind, memory_order_release);
    }
    tell(index, cq, owner, e);
    /* release: the consumer that sees the count sees the slot (acquire in next()). Died before here: it never happened.
     * Died after: sf_mend_cq moves the work queue on, and says the turn. */
    atomic_store_explicit(&cq->produced, produced + 1, memory_order_release);
    /* release: the same, for the consumer that sees the turn */
    __atomic_store_n(&slot->turn, produced + 1, __ATOMIC_RELEASE);
    if (in) {
        sf_advance(f, in);
        atomic_store_explicit(&cq->intent.kind, 0, memory_order_release);
    }
    sf_unlock(v, &cq->lock);
}

/* Whether among the unpolled completions is one that the owner wants to be told of. Under the queue's lock, not the consumers',
 * which a program holds that arms between ibv_start_poll and ibv_end_poll: no slot is written, and consumers only read. */
static bool wanted_unpolled(const struct sv_cq *cq, uint32_t armed)
{
    bool found = false;
    uint64_t from = atomic_load_explicit(&cq->shared->consumed, memory_order_relaxed);
    uint64_t to = atomic_load_explicit(&cq->shared->produced, memory_order_relaxed);
    if (to - from > cq->ring.mask + UINT64_C(1))
        to = from; /* a count was written over */
    for (; from != to && !found; from++)
        found = wanted(armed, sv_ring_slot(&cq->ring, from));
    return found;
}

/* The event for what was there before the queue was armed, as mlx5's doorbell raises it, which carries the consumer's index. A
 * program may sleep after this without another poll. As there, a second one comes when the first was read: who arms again and
 * again and reads nothing does not fill his channel. */
static void tell_of_unpolled(struct sv_cq *cq)
{
    struct sf_cq *s = cq->shared;
    /* seq_cst: pairs with the store in deliver() (channel.c): who reads the event that this sees unread polls after this. The
     * queue stays armed then. */
    if (atomic_load_explicit(&cq->told, memory_order_seq_cst) ||
        !wanted_unpolled(cq, atomic_load_explicit(&s->armed, memory_order_relaxed)))
        return;
    atomic_store_explicit(&s->armed, 0, memory_order_relaxed);
    atomic_store_explicit(&cq->told, 1, memory_order_seq_cst);
    if (!sv_signal(sv_lib.view.process, s->channel_fd,
                   &(struct sv_event){.kind = 1, .entry = cq->entry, .generation = cq->generation}))
        atomic_store_explicit(&cq->told, 0, memory_order_seq_cst);
}

int sv_req_notify_cq(struct ibv_cq *base, int solicited_only)
{
    struct sv_cq *cq = (struct sv_cq *)base;
    struct sf_cq *s = cq->shared;
    if (cq->life != sv_lib.life)
        return ENODEV;
    int refused = sv_refused(SF_VERB_REQ_NOTIFY, s->device);
    if (refused)
        return refused;
    if (s->channel_fd < 0)
        return 0; /* nobody is told */
    /* The producer that has written its event, and not yet its completion, holds it: this waits for it, or finds it dead. */
    for (int turn = 0; turn < 16 && atomic_load_explicit(&s->lock.word, memory_order_relaxed) != 0; turn++)
        sched_yield();
    sf_lock_cq(&sv_lib.view, s);
    /* Who asked for any completion and then for a solicited one still hears of any. */
    if (!solicited_only || atomic_load_explicit(&s->armed, memory_order_relaxed) == 0)
        atomic_store_explicit(&s->armed, solicited_only ? SOLICITED : ANY, memory_order_relaxed);
    tell_of_unpolled(cq);
    sf_unlock(&sv_lib.view, &s->lock);
    return 0;
}

/* ---- Polling --------------------------------------------------------------------------------------------------- */

static const struct sf_cqe *next(struct sv_cq *cq, uint64_t consumed)
{
    enum { SELDOM = 64 };
    const struct sf_cqe *e = sv_ring_slot(&cq->ring, consumed);
    /* acquire: pairs with the release in sv_complete */
    if (__atomic_load_n(&e->turn, __ATOMIC_ACQUIRE) == consumed + 1)
        return e;
    /* Who polls in vain may be waiting for a producer that died between the count and the turn. */
    if (cq->idle % SELDOM != SELDOM - 1)
        return NULL;
    uint64_t there = atomic_load_explicit(&cq->shared->produced, memory_order_acquire) - consumed;
    return there - 1 > cq->ring.mask ? NULL : e; /* none, or more than it holds: a count was written over */
}

static uint64_t frames(uint64_t bytes)
{
    uint64_t n = (bytes + sv_lib.profile->frame_bytes - 1) / sv_lib.profile->frame_bytes;
    return n ? n : 1;
}

/* The slots that a polled completion frees. */
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
        return; /* it was written over: a queue pair that goes, or is reset, takes its completions along */
    const struct sv_ring *ring = e->receive ? &qp->receive : &qp->send;
    _Atomic uint64_t *polled = e->receive ? &qp->receive_polled : &qp->send_polled;
    uint64_t from = atomic_load_explicit(polled, memory_order_relaxed);
    uint64_t to = from + (uint32_t)(e->slot - (uint32_t)from) + 1;
    if (to - from > ring->mask + UINT64_C(1) || !ring->base)
        return; /* not one of this queue's: it was written over */
    /* acquire: what was posted is read below; pairs with the release in post.c */
    if (to > atomic_load_explicit(e->receive ? &qp->shared->receive.posted : &qp->shared->send_posted, memory_order_acquire))
        return;
    if (sv_lib.profile->frame_bytes) {
        uint64_t sum = 0;
        for (uint64_t p = from; p < to; p++)
            sum += frames(e->receive ? ((struct sf_receive *)sv_ring_slot(ring, p))->length
                                     : ((struct sf_send *)sv_ring_slot(ring, p))->length);
        atomic_fetch_sub_explicit(e->receive ? &qp->frames_receive : &qp->frames_send, sum, memory_order_relaxed);
    }
    /* release: the slots were read before they are written again (acquire in post.c) */
    atomic_store_explicit(polled, to, memory_order_release);
}

/* A receive that failed took its queue pair with it; it lives on if who wrote the completion was killed behind it. */
__attribute__((noinline)) static void receive_failed(struct sv_cq *cq, const struct sf_cqe *e)
{
    struct sv_qp *qp = __atomic_load_n(&sv_lib.qps[e->qp % SF_QPS], __ATOMIC_ACQUIRE);
    if (!qp || qp->base.qp_num != e->qp_num || qp->base.qp_type == IBV_QPT_UD)
        return;
    /* release: as in sv_fail_qp. The next poll that finds nothing looks, however long the last look took. */
    atomic_store_explicit(&qp->shared->failing, qp->shared->connection, memory_order_release);
    atomic_store_explicit(&cq->shared->waiting, 1, memory_order_release);
    cq->look_again = 0;
}

/* What comes with the polling of a completion. */
static void polled(struct sv_cq *cq, const struct sf_cqe *e)
{
    free_slots(e);
    if (e->receive && e->status != IBV_WC_SUCCESS && e->status != IBV_WC_WR_FLUSH_ERR)
        receive_failed(cq, e);
}

/* As a poll of all would, order and slots of a shared receive queue included, but the others' completions stay. From the newest to
 * the oldest: those that stay move towards the newest, and the oldest slots become free. */
void sv_forget_completions(struct sv_cq *cq, uint32_t qp_num)
{
    struct sf_cq *s = cq->shared;
    sf_lock_cq(&sv_lib.view, s); /* of who writes slots: and of who reads them without the consumers' lock (wanted_unpolled) */
    uint64_t from = atomic_load_explicit(&s->consumed, memory_order_relaxed);
    uint64_t to = atomic_load_explicit(&s->produced, memory_order_relaxed), free = to;
    if (to - from > cq->ring.mask + UINT64_C(1))
        from = free = to; /* a count was written over */
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
    if (free != from) /* release: as in sv_poll_cq */
        atomic_store_explicit(&s->consumed, free, memory_order_release);
    sf_unlock(&sv_lib.view, &s->lock);
}

/* What waits for time may have come to its end. */
static bool anything_new(struct sv_cq *cq, uint64_t consumed)
{
    if (atomic_load_explicit(&cq->shared->waiting, memory_order_relaxed) == 0)
        return false;
    /* Who polls without a pause does not look each time: that would be the work of a look for each of a poll. */
    uint64_t now = sf_now(), after;
    if (now < cq->look_again)
        return false;
    uint64_t again = sv_progress(cq->entry);
    if (again && cq->channel) /* should it be the last look before a sleep */
        sv_wake_at(cq->entry, again);
    after = sf_now();
    cq->look_again = after + (4 * (after - now) > LOOK_PAUSE_NS ? 4 * (after - now) : LOOK_PAUSE_NS);
    return atomic_load_explicit(&cq->shared->produced, memory_order_acquire) != consumed;
}

/* Looks when there is nothing, and now and then in a queue that never runs empty: others that complete here would wait for
 * ever. */
static const struct sf_cqe *next_or_new(struct sv_cq *cq, uint64_t consumed)
{
    enum { SELDOM = 64 };
    const struct sf_cqe *e = next(cq, consumed);
    if ((e && ++cq->turns % SELDOM != 0) || !anything_new(cq, consumed))
        return e;
    return next(cq, consumed);
}

static enum ibv_wc_opcode opcode_of(const struct sf_cqe *e)
{
    return (enum ibv_wc_opcode)(e->opcode | (e->receive ? IBV_WC_RECV : 0));
}

int sv_poll_cq(struct ibv_cq *base, int entries, struct ibv_wc *wc)
{
    struct sv_cq *cq = (struct sv_cq *)base;
    if (cq->life != sv_lib.life) {
        errno = ENODEV; /* a forked child with its parent's queue */
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
        const struct sf_cqe *e = n == 0 ? next_or_new(cq, consumed) : next(cq, consumed);
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
        polled(cq, e);
        consumed++;
    }
    if (n > 0) /* release: the slots were read (acquire in sv_complete) */
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
    const struct sf_cqe *e = next_or_new(cq, consumed);
    if (!e)
        return false;
    *out = *e;
    polled(cq, e);
    atomic_store_explicit(&cq->shared->consumed, consumed + 1, memory_order_release);
    return true;
}
