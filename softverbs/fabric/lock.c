/* SPDX-License-Identifier: MIT
 *
 * Locks that survive the death of their holder, and the repair of the data that they protect.
 *
 * The word of a lock is 0, or the holder's process number + 1. A process that finds the lock taken spins a little, and then sleeps on the
 * word for some milliseconds at a time. After each sleep it checks whether the holder is alive, and takes over the lock of a dead holder.
 * So a free lock costs one compare-and-swap, and a death needs no action of the kernel.
 */
#include "shared.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPINS = 128, YIELDS = 8, NAP_NS = 2000000 };

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline uint32_t holder_of(uint32_t word)
{
    return word & ~SF_LOCK_WAITED;
}

bool sf_try_lock(struct sf_view *v, struct sf_lock *l)
{
    uint32_t free = 0;
    /* acquire: pairs with the release in sf_unlock(). seq_cst, because this exchange must come after the store of a queue's `kick`. */
    return atomic_compare_exchange_strong_explicit(&l->word, &free, v->process, memory_order_seq_cst, memory_order_relaxed);
}

static bool lock_slowly(struct sf_view *v, struct sf_lock *l)
{
    for (int turn = 0; turn < SPINS + YIELDS; turn++) {
        uint32_t word = atomic_load_explicit(&l->word, memory_order_relaxed);
        if (word == 0 && sf_try_lock(v, l))
            return false;
        if (turn < SPINS)
            relax();
        else
            sched_yield();
    }
    for (;;) {
        uint32_t word = atomic_load_explicit(&l->word, memory_order_relaxed);
        if (word == 0) {
            /* mark the lock as waited for: other processes may sleep until the lock is free, and the release of a lock wakes a process only
             * if the lock is marked */
            if (atomic_compare_exchange_strong_explicit(&l->word, &word, v->process | SF_LOCK_WAITED, memory_order_seq_cst,
                                                        memory_order_relaxed))
                return false;
            continue;
        }
        if (!(word & SF_LOCK_WAITED)) {
            if (!atomic_compare_exchange_strong_explicit(&l->word, &word, word | SF_LOCK_WAITED, memory_order_relaxed,
                                                         memory_order_relaxed))
                continue;
            word |= SF_LOCK_WAITED;
        }
        struct timespec nap = {.tv_nsec = NAP_NS};
        long r = syscall(SYS_futex, &l->word, FUTEX_WAIT, word, &nap, NULL, 0);
        if (r != 0 && errno == ETIMEDOUT && atomic_load_explicit(&l->word, memory_order_relaxed) == word &&
            !sf_alive(v->fabric, holder_of(word)) &&
            atomic_compare_exchange_strong_explicit(&l->word, &word, v->process | SF_LOCK_WAITED, memory_order_seq_cst,
                                                    memory_order_relaxed))
            return true;
    }
}

bool sf_lock(struct sf_view *v, struct sf_lock *l)
{
    return sf_try_lock(v, l) ? false : lock_slowly(v, l);
}

void sf_unlock(struct sf_view *v, struct sf_lock *l)
{
    (void)v;
    /* release: pairs with the acquire in sf_try_lock(). seq_cst, because the executor of a queue loads `kick` after this (lib/execute.c).
     */
    uint32_t word = atomic_exchange_explicit(&l->word, 0, memory_order_seq_cst);
    if (word & SF_LOCK_WAITED)
        syscall(SYS_futex, &l->word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void sf_recount(struct sf_fabric *f)
{
    for (uint32_t d = 0; d < f->model.topology.device_count && d < SV_DEVICES; d++) {
        struct sf_device *dev = &f->devices[d];
        dev->qps = dev->pds = dev->mrs = dev->cqs = dev->srqs = 0;
    }
#define COUNT(table, top, total, member)                                                                            \
    for (uint32_t i = 0; i < f->top && i < (total); i++)                                                            \
        if (atomic_load_explicit(&f->table[i].owner, memory_order_relaxed) != 0 && f->table[i].device < SV_DEVICES) \
    f->devices[f->table[i].device].member++
    COUNT(qps, qp_top, SF_QPS, qps);
    COUNT(pds, pd_top, SF_PDS, pds);
    COUNT(mrs, mr_top, SF_MRS, mrs);
    COUNT(cqs, cq_top, SF_CQS, cqs);
    COUNT(srqs, srq_top, SF_SRQS, srqs);
#undef COUNT
}

void sf_lock_fabric(struct sf_view *v)
{
    if (sf_lock(v, &v->fabric->lock))
        sf_recount(v->fabric);
}

void sf_advance(struct sf_fabric *f, const struct sf_intent *i)
{
    uint32_t kind = atomic_load_explicit(&i->kind, memory_order_relaxed);
    if (kind == 1)
        atomic_store_explicit(&f->qps[i->index % SF_QPS].send_done, i->done, memory_order_release);
    else if (kind == 2)
        atomic_store_explicit(&f->qps[i->index % SF_QPS].receive.done, i->done, memory_order_release);
    else if (kind == 3 || kind == 4)
        atomic_store_explicit(&f->srqs[i->index % SF_SRQS].queue.done, i->done, memory_order_release);
    if (kind == 4) /* release: pairs with the acquire in sv_srq_used(); the slot was read before it counts as free */
        atomic_store_explicit(&f->srqs[i->index % SF_SRQS].dropped, i->dropped, memory_order_release);
}

/* Repairs a completion queue after its producer died. If the producer has published its completion, advances the work queue now. Nobody
 * else changes the work queue: its lock is held by the dead process, or by a process that waits for this lock. */
void sf_mend_cq(struct sf_fabric *f, struct sf_cq *cq)
{
    struct sf_intent *i = &cq->intent;
    uint32_t kind = atomic_load_explicit(&i->kind, memory_order_relaxed);
    if (kind == 4 || atomic_load_explicit(&cq->produced, memory_order_relaxed) != i->produced)
        sf_advance(f, i);
    atomic_store_explicit(&i->kind, 0, memory_order_relaxed);
    /* the last completion may lack its turn, which the consumer reads */
    uint64_t last = atomic_load_explicit(&cq->produced, memory_order_relaxed);
    uint32_t capacity = cq->capacity;
    if (last != 0 && capacity != 0 && (capacity & (capacity - 1)) == 0 && cq->ring >= sizeof(struct sf_fabric) && cq->ring <= f->bytes &&
        cq->ring % 64 == 0 && capacity <= (f->bytes - cq->ring) / sizeof(struct sf_cqe)) {
        struct sf_cqe *slot = (struct sf_cqe *)((char *)f + cq->ring) + ((last - 1) & (capacity - 1));
        /* release: pairs with the acquire in poll_next() (lib/poll.c) */
        __atomic_store_n(&slot->turn, last, __ATOMIC_RELEASE);
    }
}

/* Wakes the queue's owner, which finishes what the dead process has begun. A needless event does no harm. */
void sf_wake_cq(struct sf_view *v, struct sf_cq *cq)
{
    uint32_t owner = atomic_load_explicit(&cq->owner, memory_order_relaxed);
    if (owner != 0 && cq->channel_fd >= 0)
        sf_signal(v, owner, cq->channel_fd,
                  &(struct sv_event){.kind = 1, .entry = (uint32_t)(cq - v->fabric->cqs), .generation = cq->generation},
                  sizeof(struct sv_event));
}

void sf_lock_cq(struct sf_view *v, struct sf_cq *cq)
{
    if (!sf_lock(v, &cq->lock))
        return;
    sf_mend_cq(v->fabric, cq);
    sf_wake_cq(v, cq);
}

void sf_lock_receive(struct sf_view *v, struct sf_receive_queue *q, struct sf_cq *completes_on)
{
    if (!sf_lock(v, &q->lock))
        return;
    if (completes_on)
        sf_wake_cq(v, completes_on);
    /* The receives of a shared receive queue complete on many completion queues. Repair all, because any may have been in use. */
    struct sf_fabric *f = v->fabric;
    for (uint32_t i = 0; i < f->cq_top && i < SF_CQS; i++)
        if (atomic_load_explicit(&f->cqs[i].intent.kind, memory_order_relaxed) != 0) {
            sf_lock_cq(v, &f->cqs[i]);
            sf_unlock(v, &f->cqs[i].lock);
        }
}

void sf_mend_send(struct sf_qp *qp)
{
    uint64_t busy = atomic_load_explicit(&qp->busy, memory_order_relaxed);
    if (busy & 1) /* the executor died during an access */
        atomic_store_explicit(&qp->busy, busy + 1, memory_order_release);
}

void sf_lock_send(struct sf_view *v, struct sf_qp *qp)
{
    if (!sf_lock(v, &qp->lock))
        return;
    struct sf_cq *cq = &v->fabric->cqs[qp->send_cq % SF_CQS];
    sf_lock_cq(v, cq);
    sf_unlock(v, &cq->lock);
    sf_wake_cq(v, cq);
    sf_mend_send(qp);
}
