/* SPDX-License-Identifier: MIT
 *
 * Takes entries of the tables and gives them back. The caller holds the fabric's lock. An entry has its owner from the beginning, so it can
 * be freed if the owner dies.
 *
 * Locks and access counters in an entry keep their values when the entry gets a new owner, because another process may still be using them.
 */
#include "shared.h"

#include <errno.h>
#include <string.h>

/* Finds a free entry, from `next` on and then from `first` on; -1: none. */
#define FIND(f, table, total, first, next)                                                               \
    ({                                                                                                   \
        int64_t found_ = -1;                                                                             \
        for (uint32_t n_ = 0; n_ < (total) && found_ < 0; n_++) {                                        \
            int64_t i_ = ((f)->next + n_) % (total);                                                     \
            if (i_ >= (first) && atomic_load_explicit(&(f)->table[i_].owner, memory_order_acquire) == 0) \
                found_ = i_;                                                                             \
        }                                                                                                \
        found_;                                                                                          \
    })

/* How far a search may go. Entries below `top` have memory, and a search needs at most one more. If the entry at `top` cannot get memory,
 * because the file system is full, the search ends there. */
static uint32_t table_reach(struct sf_view *v, const volatile void *table, size_t size, uint32_t total, uint32_t first, uint32_t top)
{
    uint32_t next = top > first ? top : first;
    uintptr_t start = (uintptr_t)table + next * size;
    if (next >= total || (next > first && (start - 1) / SF_PAGE == (start + size - 1) / SF_PAGE))
        return total;
    return sf_back(v, (const volatile char *)table + next * size, size) == 0 ? total : top;
}
#define REACH(v, table, total, first, top) table_reach(v, (v)->fabric->table, sizeof *(v)->fabric->table, total, first, (v)->fabric->top)

/* Clears the members of a struct from `from` up to `to`, without `to`. */
#define CLEAR(entry, type, from, to) memset((char *)(entry) + offsetof(type, from), 0, offsetof(type, to) - offsetof(type, from))

static void clear_pd(struct sf_pd *e, uint32_t number, uint32_t before)
{
    (void)number, (void)before;
    e->host = 0;
}
static void clear_mr(struct sf_mr *e, uint32_t number, uint32_t before)
{
    (void)number, (void)before;
    e->live = 0;
    CLEAR(e, struct sf_mr, device, reserved);
}
static void clear_cq(struct sf_cq *e, uint32_t number, uint32_t before)
{
    (void)number, (void)before;
    CLEAR(e, struct sf_cq, device, lock);
    e->channel_fd = -1;
    e->context = -1;
    CLEAR(e, struct sf_cq, intent, waiting);
    e->waiting = 0;
}
static void clear_queue(struct sf_receive_queue *q)
{
    CLEAR(q, struct sf_receive_queue, ring, lock);
    q->done = 0;
}
static void clear_srq(struct sf_srq *e, uint32_t number, uint32_t before)
{
    (void)number, (void)before;
    CLEAR(e, struct sf_srq, device, queue);
    e->context = -1;
    clear_queue(&e->queue);
}
static void clear_qp(struct sf_qp *e, uint32_t number, uint32_t before)
{
    uint32_t connection = e->connection;
    CLEAR(e, struct sf_qp, device, lock);
    e->connection = connection == UINT32_MAX ? 1 : connection + 1; /* never 0, which means "none" in `failing` */
    e->number = number;
    e->context = -1;
    e->peer_device = SF_NO_DEVICE;
    e->kick = 0;
    e->send_done = 0;
    CLEAR(e, struct sf_qp, wait_since, receive);
    e->ordinal = before;
    clear_queue(&e->receive);
}

static uint32_t table_count_of(struct sf_device *d, size_t counter)
{
    return atomic_load_explicit((_Atomic uint32_t *)((char *)d + counter), memory_order_relaxed);
}
static void table_count(struct sf_device *d, size_t counter, uint32_t by)
{
    atomic_fetch_add_explicit((_Atomic uint32_t *)((char *)d + counter), by, memory_order_relaxed);
}

#define TABLE(kind, table, total, first, counter)                                                   \
    static int try_##kind(struct sf_view *v, uint32_t device, uint32_t limit)                       \
    {                                                                                               \
        struct sf_fabric *f = v->fabric;                                                            \
        int r = -EBUSY;                                                                             \
        sf_lock_fabric(v);                                                                          \
        uint32_t before = table_count_of(&f->devices[device], offsetof(struct sf_device, counter)); \
        if (before < limit) {                                                                       \
            uint32_t far = REACH(v, table, total, first, kind##_top);                               \
            int64_t i = FIND(f, table, far, first, kind##_next);                                    \
            r = -ENOMEM;                                                                            \
            if (i >= 0) {                                                                           \
                f->table[i].generation++;                                                           \
                clear_##kind(&f->table[i], sf_number((uint32_t)i, f->table[i].generation), before); \
                f->table[i].device = device;                                                        \
                if ((uint32_t)i >= f->kind##_top)                                                   \
                    f->kind##_top = (uint32_t)i + 1;                                                \
                f->kind##_next = (uint32_t)(i + 1) % (total);                                       \
                table_count(&f->devices[device], offsetof(struct sf_device, counter), 1);           \
                /* release: a process that sees the owner sees a clean entry */                     \
                atomic_store_explicit(&f->table[i].owner, v->process, memory_order_release);        \
                r = (int)i;                                                                         \
            }                                                                                       \
        }                                                                                           \
        sf_unlock(v, &f->lock);                                                                     \
        return r;                                                                                   \
    }                                                                                               \
    int sf_take_##kind(struct sf_view *v, uint32_t device, uint32_t limit)                          \
    {                                                                                               \
        if (device >= SV_DEVICES)                                                                   \
            return -EINVAL;                                                                         \
        int r = try_##kind(v, device, limit);                                                       \
        return r < 0 && sf_reap_all(v) > 0 ? try_##kind(v, device, limit) : r;                      \
    }                                                                                               \
    void sf_give_##kind(struct sf_view *v, uint32_t i)                                              \
    {                                                                                               \
        sf_lock_fabric(v);                                                                          \
        /* a forked child may be destroying its copy of an object of its parent */                  \
        if (atomic_load_explicit(&v->fabric->table[i].owner, memory_order_relaxed) == v->process)   \
            sf_free_##kind(v->fabric, i);                                                           \
        sf_unlock(v, &v->fabric->lock);                                                             \
    }

TABLE(pd, pds, SF_PDS, 0, pds)
TABLE(mr, mrs, SF_MRS, 1, mrs) /* key 0 is not used */
TABLE(cq, cqs, SF_CQS, 0, cqs)
TABLE(srq, srqs, SF_SRQS, 0, srqs)

TABLE(qp, qps, SF_QPS, 2, qps) /* the numbers 0 and 1 are special in verbs */

int sf_take_context(struct sf_view *v, uint32_t device)
{
    struct sf_fabric *f = v->fabric;
    for (int again = 0; again < 2; again++) {
        sf_lock_fabric(v);
        uint32_t far = REACH(v, contexts, SF_CONTEXTS, 0, context_top);
        int64_t i = FIND(f, contexts, far, 0, context_next);
        if (i >= 0) {
            f->contexts[i].generation++;
            f->contexts[i].async_fd = -1;
            f->contexts[i].device = device;
            if ((uint32_t)i >= f->context_top)
                f->context_top = (uint32_t)i + 1;
            f->context_next = (uint32_t)(i + 1) % SF_CONTEXTS;
            atomic_store_explicit(&f->contexts[i].owner, v->process, memory_order_release);
        }
        sf_unlock(v, &f->lock);
        if (i >= 0)
            return (int)i;
        if (sf_reap_all(v) == 0)
            break;
    }
    return -ENOMEM;
}

void sf_give_context(struct sf_view *v, uint32_t i)
{
    uint32_t mine = v->process; /* different in a forked child, if the object belongs to its parent */
    atomic_compare_exchange_strong_explicit(&v->fabric->contexts[i].owner, &mine, 0, memory_order_release, memory_order_relaxed);
}
