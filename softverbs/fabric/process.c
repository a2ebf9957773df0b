/* SPDX-License-Identifier: MIT
 *
 * Frees everything that a process has on the fabric, when the process dies or leaves.
 */
#include "shared.h"

#include <time.h>
#include <unistd.h>

/* Takes over and releases the locks of a dead process, so that its number can be used again. Completion queues come first, because their
 * repair advances the other queues. `process` is dead, or is the previous owner of this process's entry. */
static void release_locks(struct sf_view *v, uint32_t process)
{
    struct sf_fabric *f = v->fabric;
#define TAKEN(l)                                                                             \
    ((atomic_load_explicit(&(l).word, memory_order_relaxed) & ~SF_LOCK_WAITED) == process && \
     (process == v->process || sf_lock(v, &(l)) || true))
    for (uint32_t i = 0; i < f->cq_top && i < SF_CQS; i++)
        if (TAKEN(f->cqs[i].lock)) {
            sf_mend_cq(f, &f->cqs[i]);
            sf_unlock(v, &f->cqs[i].lock);
            sf_wake_cq(v, &f->cqs[i]);
        }
    for (uint32_t i = 0; i < f->model.topology.device_count && i < SV_DEVICES; i++)
        if (TAKEN(f->devices[i].atomics))
            sf_unlock(v, &f->devices[i].atomics);
    for (uint32_t i = 0; i < f->srq_top && i < SF_SRQS; i++)
        if (TAKEN(f->srqs[i].queue.lock))
            sf_unlock(v, &f->srqs[i].queue.lock);
    for (uint32_t i = 0; i < f->qp_top && i < SF_QPS; i++) {
        struct sf_qp *qp = &f->qps[i];
        if (TAKEN(qp->lock)) {
            sf_mend_send(qp);
            sf_unlock(v, &qp->lock);
            /* the dead process may have been executing this queue of a living process: make the owner check it */
            atomic_store_explicit(&qp->waiting, 1, memory_order_relaxed);
            atomic_store_explicit(&f->cqs[qp->send_cq % SF_CQS].waiting, 1, memory_order_release);
            sf_wake_cq(v, &f->cqs[qp->send_cq % SF_CQS]);
        }
        if (TAKEN(qp->receive.lock)) {
            sf_unlock(v, &qp->receive.lock);
            sf_wake_cq(v, &f->cqs[qp->receive_cq % SF_CQS]);
        }
    }
#undef TAKEN
}

/* Frees everything that belongs to a process. Queue pairs come first, so that no more messages arrive. Each object is freed while its own
 * locks are held: other processes hold these while they use the object. The caller holds the fabric's lock. */
static void process_bury(struct sf_view *v, uint32_t process)
{
    struct sf_fabric *f = v->fabric;
#define MINE(e) (atomic_load_explicit(&(e).owner, memory_order_relaxed) == process)
    for (uint32_t i = 0; i < f->qp_top && i < SF_QPS; i++)
        if (MINE(f->qps[i])) {
            struct sf_qp *qp = &f->qps[i];
            sf_lock_send(v, qp);
            sf_lock_receive(v, &qp->receive, NULL);
            atomic_store_explicit(&qp->state, 0, memory_order_release);
            sf_unlock(v, &qp->receive.lock);
            sf_unlock(v, &qp->lock);
            sf_free_qp(f, i);
        }
    for (uint32_t i = 0; i < f->srq_top && i < SF_SRQS; i++)
        if (MINE(f->srqs[i])) {
            sf_lock_receive(v, &f->srqs[i].queue, NULL);
            sf_free_srq(f, i);
            sf_unlock(v, &f->srqs[i].queue.lock);
        }
    for (uint32_t i = 0; i < f->cq_top && i < SF_CQS; i++)
        if (MINE(f->cqs[i])) {
            sf_lock_cq(v, &f->cqs[i]);
            sf_free_cq(f, i);
            sf_unlock(v, &f->cqs[i].lock);
        }
    for (uint32_t i = 0; i < f->mr_top && i < SF_MRS; i++)
        if (MINE(f->mrs[i])) {
            atomic_store_explicit(&f->mrs[i].live, 0, memory_order_release);
            sf_free_mr(f, i);
        }
    for (uint32_t i = 0; i < f->pd_top && i < SF_PDS; i++)
        if (MINE(f->pds[i])) {
            if (f->model.profile.pd_leaks) /* a leaked domain stays in use */
                atomic_store_explicit(&f->pds[i].owner, SF_LEAKED, memory_order_release);
            else
                sf_free_pd(f, i);
        }
    for (uint32_t i = 0; i < f->context_top && i < SF_CONTEXTS; i++)
        if (MINE(f->contexts[i]))
            atomic_store_explicit(&f->contexts[i].owner, 0, memory_order_release);
#undef MINE
    sf_free_all_pages(v, process);
    atomic_store_explicit(&f->processes[process - 1].owner, 0, memory_order_release);
}

void sf_reap(struct sf_view *v, uint32_t process)
{
    if (process == 0 || process > SF_PROCESSES || process == v->process || sf_alive(v->fabric, process))
        return;
    sf_lock_fabric(v);
    /* check again: another process may have freed the entry, and the number may have a new owner */
    if (atomic_load_explicit(&v->fabric->processes[process - 1].owner, memory_order_acquire) != 0 && !sf_alive(v->fabric, process)) {
        release_locks(v, process);
        process_bury(v, process);
    }
    sf_unlock(v, &v->fabric->lock);
}

unsigned sf_reap_all(struct sf_view *v)
{
    unsigned buried = 0;
    for (uint32_t p = 1; p <= v->fabric->process_top && p <= SF_PROCESSES; p++) {
        if (atomic_load_explicit(&v->fabric->processes[p - 1].owner, memory_order_acquire) == 0 || sf_alive(v->fabric, p))
            continue;
        sf_reap(v, p);
        buried++;
    }
    return buried;
}

/* Whether process_bury() would wait for ever for a lock: a stopped process holds it, or a thread that this call has interrupted. The lock
 * of a dead process is taken over. */
static bool process_stuck(struct sf_view *v, struct sf_lock *l)
{
    uint32_t holder = atomic_load_explicit(&l->word, memory_order_relaxed) & ~SF_LOCK_WAITED;
    for (int turn = 0; turn < 50 && holder != 0; turn++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if ((atomic_load_explicit(&l->word, memory_order_relaxed) & ~SF_LOCK_WAITED) != holder)
            return false;
    }
    return holder != 0 && (holder == v->process || sf_alive(v->fabric, holder));
}

void sf_leave(struct sf_view *v)
{
    struct sf_fabric *f = v->fabric;
    if (process_stuck(v, &f->lock))
        return;
    for (uint32_t i = 0; i < f->qp_top && i < SF_QPS; i++)
        if (f->qps[i].owner == v->process && (process_stuck(v, &f->qps[i].lock) || process_stuck(v, &f->qps[i].receive.lock)))
            return;
    for (uint32_t i = 0; i < f->srq_top && i < SF_SRQS; i++)
        if (f->srqs[i].owner == v->process && process_stuck(v, &f->srqs[i].queue.lock))
            return;
    for (uint32_t i = 0; i < f->cq_top && i < SF_CQS; i++)
        if (f->cqs[i].owner == v->process && process_stuck(v, &f->cqs[i].lock))
            return;
    sf_lock_fabric(v);
    process_bury(v, v->process);
    sf_unlock(v, &f->lock);
}

void sf_inherit(struct sf_view *v)
{
    struct sf_fabric *f = v->fabric;
    if ((atomic_load_explicit(&f->lock.word, memory_order_relaxed) & ~SF_LOCK_WAITED) == v->process)
        sf_recount(f); /* the previous holder of the fabric's lock died, and this process has taken the lock */
    else
        sf_lock_fabric(v);
    /* Another process may have been freeing this entry. Then the entry is free now, or has a new owner. */
    if (atomic_load_explicit(&f->processes[v->process - 1].owner, memory_order_acquire) == (SF_JOINING | (uint32_t)getpid())) {
        release_locks(v, v->process);
        process_bury(v, v->process);
    }
    sf_unlock(v, &v->fabric->lock);
}
