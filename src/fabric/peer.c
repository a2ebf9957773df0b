/* SPDX-License-Identifier: MIT
 *
 * The end of a peer: deliver what it had sent, fail what is pending to it, raise the epoch, tell the rooms above.
 */
#include "fabric/fabric.h"

bool fab_alive(const struct weft *w, uint32_t node)
{
    return node < w->size && atomic_load_explicit(&w->links[node].state, memory_order_acquire) == FAB_ALIVE;
}

void fab_peer_gone(struct weft *w, uint32_t node, bool died, const char *why)
{
    struct fab_link *l = &w->links[node];
    if (!fab_alive(w, node))
        return;
    base_log(died ? BASE_LOG_WARN : BASE_LOG_INFO, "node %u (pid %d on %s) %s: %s", node, l->pid, l->host,
             died ? "is dead" : "has left", why);
    fab_last_words(w, l);
    /* release: who sees the state sees the last messages' effects. seq_cst: a sender that has just kept a message
     * looks at the state after that, and fails it itself (shm.c, send_slow()). */
    atomic_store_explicit(&l->state, died ? FAB_DEAD : FAB_LEFT, memory_order_seq_cst);
    l->transport->disconnect(w, l);
    atomic_fetch_add_explicit(&w->epoch, 1, memory_order_acq_rel);
    fab_wake_here(w);
    fab_run_gone(w, node, died);
    fab_wake_here(w);
}
