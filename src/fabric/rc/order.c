/* SPDX-License-Identifier: MIT
 *
 * Flush and fence. A flush waits until all operations that any thread began before the flush have arrived. It does not wait for operations
 * that began later.
 */
#include "fabric/rc/rc.h"

/* Whether every operation that was queued when the flush began has been posted, and no request of a broken queue pair waits to be posted
 * again. Then rc_flushed() only has to compare positions in the send queue. */
static bool order_gone(const struct rc_link *l, const struct fab_flush *f)
{
    bool posted = !l->again;
    for (int i = 0; i < RC_LANES; i++)
        posted = posted && l->lane[i].posted >= f->kept[i];
    return posted;
}

bool rc_flushed(struct weft_node *w, struct fab_link *link, struct fab_flush *f)
{
    struct rc_link *l = link->impl;
    (void)w;
    base_spin_lock(&l->lock);
    if (!f->begun) {
        f->begun = true;
        f->asked = l->asked;
        for (int i = 0; i < RC_LANES; i++)
            f->kept[i] = l->lane[i].begun;
    }
    if (!f->gone || f->turn != l->gathered) {
        f->turn = l->gathered;
        f->at = l->last_change;
        f->read = l->last_read;
        f->gone = order_gone(l, f);
    }
    bool there = f->gone && l->flushed_to >= f->at;
    if (f->gone && !there)
        rc_flush_locked(l);
    bool done = l->closed || (there && l->done >= f->read && l->answered >= f->asked && l->stripes_done >= f->kept[RC_MAIN]);
    base_spin_unlock(&l->lock);
    return done;
}

void rc_fence(struct weft_node *w, struct fab_link *link)
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
