/* SPDX-License-Identifier: MIT
 *
 * Writes completions into a completion queue, and sends the events for which the queue is armed. Runs in the process that executed the
 * request. poll.c takes completions out.
 */
#include "engine.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

/* Advances the work queue of a request whose completion does not fit into the completion queue. */
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

enum { ANY = 1, SOLICITED = 2 }; /* values of sf_cq.armed; 0: not armed */

static bool complete_wanted(uint32_t armed, const struct sf_cqe *e)
{
    return armed == ANY || (armed == SOLICITED && (e->solicited || e->status != IBV_WC_SUCCESS));
}

/* Sends the event for a completion, before the completion is written. In the other order, if this process were killed in between, a
 * completion would be in the queue while its owner sleeps. The caller holds cq->lock, which protects `armed`. */
static void complete_tell(uint32_t index, struct sf_cq *cq, uint32_t owner, const struct sf_cqe *e)
{
    if (cq->channel_fd < 0 || !complete_wanted(atomic_load_explicit(&cq->armed, memory_order_relaxed), e))
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
    if (produced - cq->seen >= cq->limit) /* acquire: the consumer has read the slot before it is written again */
        cq->seen = atomic_load_explicit(&cq->consumed, memory_order_acquire);
    uint64_t unpolled = produced - cq->seen;
    bool overrun = unpolled >= cq->limit;
    if (owner == 0 || overrun || atomic_load_explicit(&cq->dead, memory_order_relaxed) ||
        !sv_ring_sane(cq->ring, cq->capacity, sizeof(struct sf_cqe), 0)) {
        bool first = owner != 0 && overrun && atomic_load_explicit(&cq->dead, memory_order_relaxed) == 0;
        /* send the event before `dead` is set: if this process is killed in between, the next process sends the event again */
        if (first && cq->context >= 0)
            sv_async((uint32_t)cq->context, IBV_EVENT_CQ_ERR, index, cq->generation);
        if (first)
            atomic_store_explicit(&cq->dead, 1, memory_order_relaxed);
        if (in)
            advance_without(cq, in);
        sf_unlock(v, &cq->lock);
        if (first)
            sv_log(SV_ERROR,
                   "completion queue overrun: a completion queue has no room for another completion, because %u completions have not been "
                   "polled. Poll more often, or create a larger queue",
                   cq->limit);
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
    complete_tell(index, cq, owner, e);
    /* release: pairs with the acquire in poll_next(). If this process dies before this store, the completion did not happen. If it dies
     * after this store, sf_mend_cq() does the rest. */
    atomic_store_explicit(&cq->produced, produced + 1, memory_order_release);
    /* release: a consumer that sees the turn also sees the slot */
    __atomic_store_n(&slot->turn, produced + 1, __ATOMIC_RELEASE);
    if (in) {
        sf_advance(f, in);
        atomic_store_explicit(&cq->intent.kind, 0, memory_order_release);
    }
    sf_unlock(v, &cq->lock);
}

/* Whether one of the unpolled completions wants an event. The caller holds the queue's lock, so no slot is written meanwhile. This function
 * does not take the consumers' lock, because a program may arm a queue between ibv_start_poll and ibv_end_poll. */
static bool wanted_unpolled(const struct sv_cq *cq, uint32_t armed)
{
    bool found = false;
    uint64_t from = atomic_load_explicit(&cq->shared->consumed, memory_order_relaxed);
    uint64_t to = atomic_load_explicit(&cq->shared->produced, memory_order_relaxed);
    if (to - from > cq->ring.mask + UINT64_C(1))
        to = from; /* another process has overwritten a count */
    for (; from != to && !found; from++)
        found = complete_wanted(armed, sv_ring_slot(&cq->ring, from));
    return found;
}

/* Sends an event for completions that were in the queue when it was armed, as mlx5 does: programs may sleep after arming without another
 * poll. The next such event is sent only when the program has read this one; otherwise a program that arms the queue without reading events
 * would fill its channel. */
static void tell_of_unpolled(struct sv_cq *cq)
{
    struct sf_cq *s = cq->shared;
    /* seq_cst: pairs with the store in channel_deliver() (channel.c). If there is an unread event, no other is sent, because the program
     * will poll after reading that event. The queue stays armed. */
    if (atomic_load_explicit(&cq->told, memory_order_seq_cst) ||
        !wanted_unpolled(cq, atomic_load_explicit(&s->armed, memory_order_relaxed)))
        return;
    atomic_store_explicit(&s->armed, 0, memory_order_relaxed);
    atomic_store_explicit(&cq->told, 1, memory_order_seq_cst);
    if (!sv_signal(sv_lib.view.process, s->channel_fd, &(struct sv_event){.kind = 1, .entry = cq->entry, .generation = cq->generation}))
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
        return 0; /* no channel */
    /* A producer that has written its event but not its completion holds the lock. Wait for it. */
    for (int turn = 0; turn < 16 && atomic_load_explicit(&s->lock.word, memory_order_relaxed) != 0; turn++)
        sched_yield();
    sf_lock_cq(&sv_lib.view, s);
    /* a queue that is armed for any completion stays armed for any completion */
    if (!solicited_only || atomic_load_explicit(&s->armed, memory_order_relaxed) == 0)
        atomic_store_explicit(&s->armed, solicited_only ? SOLICITED : ANY, memory_order_relaxed);
    tell_of_unpolled(cq);
    sf_unlock(&sv_lib.view, &s->lock);
    return 0;
}
