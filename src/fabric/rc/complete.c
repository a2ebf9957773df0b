/* SPDX-License-Identifier: MIT
 *
 * Ends requests: those that completed, those that failed, and all of them when the peer is gone.
 */
#include "fabric/rc/rails.h"

#include <stdlib.h>
#include <string.h>

/* Handles a failed request. The device flushes all requests behind the first failed one. */
static BASE_COLD void failed_locked(struct rc_link *l, struct rc_slot *s, enum ibv_wc_status status)
{
    bool own = rc_own_fault(status);
    const char *text = l->rc->device->lib->wc_status_str(status);
    if (own && (s->kind == RC_SLOT_FRAME || s->kind == RC_SLOT_TELL || s->kind == RC_SLOT_FLUSH))
        rc_break(l, "this node's device cannot send messages to it: %s (%d)", text, (int)status);
    s->refused = s->refused || own;
    rc_lose_locked(l, status == IBV_WC_WR_FLUSH_ERR ? "its queue pair has stopped: %s (%d)" : "a request to it failed: %s (%d)", text,
                   (int)status);
}

void rc_done(struct rc_link *l, const struct ibv_wc *wc)
{
    base_spin_lock(&l->lock);
    uint64_t position = l->done + (uint32_t)((uint32_t)wc->wr_id - (uint32_t)l->done);
    if (BASE_UNLIKELY(wc->status != IBV_WC_SUCCESS)) {
        if (position < l->posted)
            failed_locked(l, rc_slot_at(l, position), wc->status);
        base_spin_unlock(&l->lock);
        return; /* the pending requests are posted again on the next queue pair, or fail when the link is closed */
    }
    if (position >= l->posted) {
        base_spin_unlock(&l->lock);
        return;
    }
    l->proved = true;
    while (l->done <= position) {
        rc_finish(l, rc_slot_at(l, l->done), 0);
        l->done++;
    }
    if (l->flush_read && l->done >= l->flush_read) {
        l->flushed_to = l->flush_covers;
        l->flush_read = 0;
    }
    if (BASE_UNLIKELY(l->repeats || rc_waits(l)))
        rc_push_locked(l);
    rc_tell_locked(l, false); /* an acknowledgement may be due for which there was no room before */
    base_spin_unlock(&l->lock);
}

void rc_fail_all(struct rc_link *l, int status)
{
    base_spin_lock(&l->lock);
    l->closed = true;
    l->up = false;
    /* First destroy the queue pair, so that it accesses no memory of the operations that end below. */
    verbs_qp_destroy(&l->qp);
    for (int i = 0; i < RC_LANES; i++)
        while (l->lane[i].backlog) {
            struct rc_work *k = l->lane[i].backlog;
            rc_take_from_backlog(&l->lane[i]);
            if (k->pieces > 0)
                k->whole = true; /* its pieces end below, and the last piece ends the operation */
            else {
                if (k->striped)
                    rc_stripe_over(l, k);
                fab_complete(k->op, status);
                free(k);
            }
        }
    rc_drop_answers_locked(l);
    rc_tracks_fail_locked(l, status);
    rc_drop_again_locked(l, status);
    while (l->done < l->posted) {
        rc_finish(l, rc_slot_at(l, l->done), status);
        l->done++;
    }
    for (int i = 0; i < RC_LANES && l->kept; i++)
        rc_taken_locked(l, (enum rc_lane)i, l->lane[i].sent);
    for (; l->answered != l->asked; l->answered++)
        fab_complete(l->asks[l->answered % RC_ASKS].op, status);
    base_spin_unlock(&l->lock);
}
