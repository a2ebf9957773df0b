/* SPDX-License-Identifier: MIT
 *
 * Flush and fence: what is proved to be at the peer, and what waits for it.
 */
#include "fabric/rc.h"

void rc_flush_locked(struct rc_link *l)
{
    struct rc *rc = l->rc;
    if (l->closed || l->flush_read != 0 || !rc_has_slot(l))
        return;
    /* A read behind the writes: its completion says that they are there. */
    *rc_slot_next(l) = (struct rc_slot){.len = 8, .kind = RC_SLOT_FLUSH, .fences = l->fences_posted};
    uint64_t at = RC_FLUSHES_AT + (uint64_t)l->link->node * 8; /* nobody looks at what it brings */
    struct ibv_sge sge = {.addr = (uintptr_t)rc->memory + at, .length = 8, .lkey = verbs_lkey(&rc->private, at)};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
                             .wr.rdma = {.remote_addr = l->peer_base + FAB_NULL_BYTES, .rkey = l->peer_keys[0]}};
    uint64_t covers = l->last_change;
    if (rc_post(l, &wr, true) == 0) {
        l->flush_read = l->posted;
        l->flush_covers = covers;
    }
}

bool rc_flushed(struct weft *w, struct fab_link *link)
{
    struct rc_link *l = link->impl;
    (void)w;
    base_spin_lock(&l->lock);
    bool quiet = !l->again && !l->lane[RC_MAIN].backlog && !l->lane[RC_MESSAGES].backlog && l->asked == l->answered &&
                 l->done >= l->last_read && l->stripes_done == UINT64_MAX;
    bool done = quiet && l->flushed_to >= l->last_change;
    if (quiet && !done)
        rc_flush_locked(l);
    done = done || l->closed;
    base_spin_unlock(&l->lock);
    return done;
}

void rc_fence(struct weft *w, struct fab_link *link)
{
    struct rc_link *l = link->impl;
    (void)w;
    base_spin_lock(&l->lock);
    l->fences++;
    l->fence_asks = l->asked;
    l->fence_stripes = l->lane[RC_MAIN].begun;
    for (int i = 0; i < RC_LANES; i++)
        l->lane[i].fence_other = l->lane[1 - i].begun;
    base_spin_unlock(&l->lock);
}
