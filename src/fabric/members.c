/* SPDX-License-Identifier: MIT
 *
 * Membership: the nodes of the cluster, and what is known of each.
 */
#include "fabric/fabric.h"

uint32_t weft_rank(const weft_node *w)
{
    return w->rank;
}

uint32_t weft_size(const weft_node *w)
{
    return w->size;
}

uint64_t weft_epoch(const weft_node *w)
{
    return atomic_load_explicit(&w->epoch, memory_order_acquire);
}

bool weft_alive(const weft_node *w, uint32_t node)
{
    return fab_alive(w, node);
}

uint32_t weft_alive_count(const weft_node *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->size; i++)
        n += fab_alive(w, i);
    return n;
}

bool fab_alive(const struct weft_node *w, uint32_t node)
{
    return node < w->size && atomic_load_explicit(&w->links[node].state, memory_order_acquire) == FAB_ALIVE;
}

uint32_t fab_count_dead(const struct weft_node *w, uint32_t below)
{
    uint32_t dead = 0;
    for (uint32_t i = 0; i < below; i++)
        dead += atomic_load_explicit(&w->links[i].state, memory_order_acquire) == FAB_DEAD;
    return dead;
}

BASE_COLD int fab_refuse_node(struct weft_node *w, uint32_t node)
{
    if (node >= w->size)
        return base_fail(-EFAULT, "node %u does not exist; the cluster has nodes 0 to %u", node, w->size - 1);
    int state = atomic_load_explicit(&w->links[node].state, memory_order_acquire);
    if (state == FAB_DEAD && w->links[node].gone_why) /* NOLINT(clang-analyzer-core.NullDereference): links are there */
        return base_fail(-ECONNRESET, "node %u is dead: %s", node, w->links[node].gone_why);
    if (state != FAB_ALIVE)
        return base_fail(-ECONNRESET, "node %u %s", node,
                         state == FAB_LEFT   ? "has left the cluster"
                         : state == FAB_DEAD ? "is dead"
                                             : "is not connected");
    return 0;
}
