/* SPDX-License-Identifier: MIT
 *
 * Polls the completion queues. Callers are threads that wait, the thread that delivers messages, and the progress thread before it sleeps.
 */
#include "fabric/rc/rails.h"

#define BATCH 32

/* Handles a completion. Returns true if a receive has completed. */
static bool rc_poll_handle(struct rc *rc, const struct ibv_wc *wc)
{
    uint32_t number = rc_wr_link(wc->wr_id);
    if (!rc_wr_sent(wc->wr_id)) {
        rc_received(rc, wc);
        return true;
    }
    struct rc_link *l = number < rc->count ? rc->links[number] : NULL;
    /* other generations belong to queue pairs that were destroyed */
    if (l && rc_wr_generation(wc->wr_id) == (l->generation & RC_WR_GENERATION))
        rc_done(l, wc);
    return false;
}

/* Handles completions, but runs no handlers of messages, because a slow handler would delay the completions. */
static int service(struct rc *rc)
{
    struct ibv_wc wc[BATCH];
    int n = 0, got;
    uint32_t there = atomic_load_explicit(&rc->receives.given, memory_order_relaxed) -
                     atomic_load_explicit(&rc->receives.taken, memory_order_relaxed),
             taken = 0;
    if (rc->has_early) {
        rc->has_early = false;
        taken += rc_poll_handle(rc, &rc->early);
        n++;
    }
    do {
        got = ibv_poll_cq(rc->cq, BATCH, wc);
        for (int i = 0; i < got; i++)
            taken += rc_poll_handle(rc, &wc[i]);
        n += got > 0 ? got : 0;
    } while (got == BATCH && n < 8 * BATCH);
    if (BASE_UNLIKELY(rc->rails))
        n += rc_rails_poll(rc);
    if (taken)
        rc_receives_look(rc, there, taken);
    return n;
}

int rc_service(struct weft_node *w)
{
    struct rc *rc = w->rc;
    if (!rc->cq || !base_spin_try(&rc->receiving))
        return 0;
    int n = service(rc);
    base_spin_unlock(&rc->receiving);
    return n;
}

int rc_progress(struct weft_node *w)
{
    struct rc *rc = w->rc;
    int n = 0;
    if (!rc->cq)
        return 0;
    bool freed = atomic_load_explicit(&rc->freed, memory_order_relaxed);
    if (BASE_UNLIKELY(freed))
        atomic_store_explicit(&rc->freed, false, memory_order_relaxed);
    for (uint32_t i = 0; i < rc->count; i++) {
        struct rc_link *l = rc->links[i];
        if (BASE_UNLIKELY(l->stash.count) && stash_retry(w, &l->stash) > 0) {
            n++;
            if (l->withheld && l->stash.count < STASH_MAX) {
                rc_count_taken(l, RC_MESSAGES, l->withheld);
                l->withheld = 0;
            }
        }
        n += rc_deliver(w, l, RC_WINDOW);
        /* All links share the stages and frames. So when a stage or frame has become free (`freed`), also push links without an event. */
        if (BASE_LIKELY(!freed && !__atomic_load_n(&l->lane[RC_MAIN].bytes, __ATOMIC_RELAXED) &&
                        !__atomic_load_n(&l->lane[RC_MESSAGES].bytes, __ATOMIC_RELAXED) && !__atomic_load_n(&l->again, __ATOMIC_RELAXED)))
            continue;
        if (base_spin_try(&l->lock)) {
            n += rc_push_locked(l);
            rc_tell_locked(l, false);
            base_spin_unlock(&l->lock);
        } else if (freed) {
            atomic_store_explicit(&rc->freed, true, memory_order_relaxed);
        }
    }
    return n;
}

bool rc_idle(struct weft_node *w)
{
    struct rc *rc = w->rc;
    if (!rc->cq)
        return true;
    if (!base_spin_try(&rc->receiving))
        return false;
    if (!rc->has_early) {
        ibv_req_notify_cq(rc->cq, 0);
        /* Poll once more: a completion that arrived before the request for notification causes no notification. */
        rc->has_early = ibv_poll_cq(rc->cq, 1, &rc->early) > 0;
    }
    bool quiet = !rc->has_early;
    if (rc->rails)
        quiet = rc_rails_idle(rc) && quiet;
    base_spin_unlock(&rc->receiving);
    quiet = quiet && !atomic_load_explicit(&rc->freed, memory_order_relaxed);
    for (uint32_t i = 0; i < rc->count && quiet; i++)
        quiet = atomic_load_explicit(&rc->links[i]->inbox_in, memory_order_acquire) ==
                atomic_load_explicit(&rc->links[i]->inbox_out, memory_order_relaxed);
    return quiet;
}

void rc_take_all(struct rc *rc)
{
    uint64_t most = (uint64_t)rc->peers_max * RC_CQ_ENTRIES + RC_CQ_SPARE; /* a limit, because the peer may go on sending */
    int n;
    do {
        base_spin_lock(&rc->receiving);
        n = rc->cq ? service(rc) : 0;
        base_spin_unlock(&rc->receiving);
        most -= (uint64_t)n < most ? (uint64_t)n : most;
    } while (n > 0 && most > 0);
}

/* Delivers the last messages of a peer that is gone: at most a window, because the peer may be alive and go on sending. Takes rc->receiving
 * to wait for a thread that has polled a message and not put it into the inbox yet. */
void rc_last_words(struct weft_node *w, struct fab_link *link)
{
    struct rc_link *l = link->impl;
    struct rc *rc = w->rc;
    uint32_t left = RC_WINDOW;
    int n;
    do {
        rc_take_all(rc);
        n = rc_deliver(w, l, left);
        left -= (uint32_t)n;
    } while (n > 0 && left > 0);
}
