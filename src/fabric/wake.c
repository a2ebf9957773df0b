/* SPDX-License-Identifier: MIT
 *
 * Waking: the waiters of this node and of others, and this node's progress thread.
 */
#include "fabric/fabric.h"

#include <unistd.h>

void fab_wake_here(struct weft_node *w)
{
    atomic_thread_fence(memory_order_seq_cst); /* orders the change before the load of `sleepers`; pairs with sleep_once() */
    if (atomic_load_explicit(&w->bell->sleepers, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&w->bell->seq, 1, memory_order_seq_cst);
        base_futex_wake(&w->bell->seq, INT32_MAX);
    }
}

void fab_wake(struct weft_node *w, uint32_t node)
{
    struct fab_link *l = &w->links[node];
    if (atomic_load_explicit(&l->state, memory_order_acquire) == FAB_ALIVE)
        l->transport->wake(w, l);
}

void fab_kick(struct weft_node *w)
{
    (void)!write(w->wake_fd[1], "k", 1); /* if the pipe is full, the thread will wake anyway */
}
