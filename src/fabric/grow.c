/* SPDX-License-Identifier: MIT
 *
 * Nodes that join the running cluster. A thread of the room above connects them (cluster/grow.c). What other threads look at changes on the
 * progress thread, so a node joins between two of its rounds, and joins and deaths are told in the order of epochs.
 *
 * The tables of a cluster that grows have room for all numbers from the start. Memory that was not written needs no pages, so what has not
 * joined costs address space only.
 */
#include "fabric/fabric.h"

void fab_prepare(struct weft_node *w, uint32_t node)
{
    for (; w->prepared <= node; w->prepared++) {
        struct fab_link *l = &w->links[w->prepared];
        l->node = w->prepared;
        l->side_fd = l->pid_fd = -1;
    }
}

void fab_announce(struct weft_node *w)
{
    uint32_t node = atomic_load_explicit(&w->newcomer, memory_order_acquire);
    struct fab_link *l = &w->links[node];
    base_spin_lock(&w->progress);
    /* Both under the lock of those who deliver messages, as at a death (fab_last_words()). */
    if (w->size <= node)
        atomic_store(&w->size, node + 1);
    atomic_store_explicit(&l->state, FAB_ALIVE, memory_order_seq_cst);
    base_spin_unlock(&w->progress);
    base_log(BASE_LOG_INFO, "node %u (pid %d on %s) has joined", node, l->pid, l->host);
    atomic_fetch_add_explicit(&w->epoch, 1, memory_order_acq_rel);
    fab_run_joined(w, node);
    atomic_store_explicit(&w->newcomer, 0, memory_order_release); /* pairs with the acquire in fab_admit() */
    fab_wake_here(w);
}

int fab_admit(struct weft_node *w, uint32_t node, int64_t deadline)
{
    atomic_store_explicit(&w->newcomer, node, memory_order_release);
    fab_kick(w);
    while (atomic_load_explicit(&w->newcomer, memory_order_acquire)) {
        if (base_now_ns() > deadline)
            return base_fail(-ETIMEDOUT, "this node could not announce node %u in time: a handler runs for too long", node);
        base_sleep_ns(100 * WEFT_US);
    }
    return 0;
}
