/* SPDX-License-Identifier: MIT
 *
 * Nodes that join the running cluster. A thread of cluster/grow.c connects them. The progress thread, which also handles deaths, changes
 * the fields that other threads read. So hooks learn of joins and deaths in the order of epochs.
 *
 * The tables of a cluster that grows have room for all numbers from the start. Entries of nodes that have not joined were never written, so
 * they need only address space.
 */
#include "fabric/fabric.h"

#include <unistd.h>

#define ANNOUNCING UINT32_MAX /* the value of w->newcomer while the progress thread marks the node as alive, which cannot be undone */

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
    if (!node)
        return;
    struct fab_link *l = &w->links[node];
    base_spin_lock(&w->progress);
    if (!atomic_compare_exchange_strong(&w->newcomer, &node, ANNOUNCING)) { /* fab_admit() has withdrawn the node */
        base_spin_unlock(&w->progress);
        return;
    }
    /* Change `size` and the state while holding w->progress, as fab_last_words() does, so that no thread delivers messages meanwhile. */
    if (w->size <= node)
        atomic_store(&w->size, node + 1);
    atomic_store_explicit(&l->state, FAB_ALIVE, memory_order_seq_cst);
    base_spin_unlock(&w->progress);
    base_log(BASE_LOG_INFO, "node %u (pid %d on %s) has joined", node, l->pid, l->host);
    atomic_fetch_add_explicit(&w->epoch, 1, memory_order_acq_rel);
    fab_run_joined(w, node);
    /* fab_admit() may have stopped waiting, and a later call of it may have stored the next node: do not overwrite that node. Pairs with
     * the acquire in fab_admit(). */
    uint32_t mine = ANNOUNCING;
    atomic_compare_exchange_strong(&w->newcomer, &mine, 0);
    fab_wake_here(w);
}

int fab_admit(struct weft_node *w, uint32_t node, int64_t deadline)
{
    atomic_store_explicit(&w->newcomer, node, memory_order_release);
    fab_kick(w);
    while (atomic_load_explicit(&w->newcomer, memory_order_acquire)) {
        uint32_t mine = node;
        if (base_now_ns() <= deadline)
            base_sleep_ns(100 * WEFT_US);
        else if (atomic_compare_exchange_strong(&w->newcomer, &mine, 0))
            return base_fail(-ETIMEDOUT,
                             "this node could not announce in time that node %u has joined, because a message handler runs for too long; "
                             "let handlers return sooner",
                             node);
        else
            return 0; /* success: the node is alive already, and only its hooks are still running */
    }
    return 0;
}

void fab_abandon(struct weft_node *w, uint32_t node)
{
    struct fab_link *l = &w->links[node];
    base_spin_lock(&l->side_lock); /* the transport may be sending over the side connection, on the progress thread */
    if (l->side_fd >= 0)
        close(l->side_fd);
    l->side_fd = -1;
    base_spin_unlock(&l->side_lock);
    if (l->pid_fd >= 0)
        close(l->pid_fd);
    l->pid_fd = -1;
    l->gone_ns = base_now_ns(); /* no other thread reads this yet: the progress thread uses the entry only after a higher number joins */
}
