/* SPDX-License-Identifier: MIT
 *
 * Frames: messages, and what a node's processor does for its peers (atomics, signals, stores of the rooms' words).
 *
 * A peer may send RC_WINDOW frames before it hears that they were taken; every frame that goes its way says how many were,
 * and where none goes one that only tells is sent. So a receive is always posted for what comes.
 * All bytes that come are checked: the peer's memory is not ours to trust.
 */
#include "fabric/rc/rails.h"

#include <string.h>

#define BATCH 32

/* --- what is asked of this node --- */

static uint64_t *word_at(struct rc_link *l, uint64_t offset)
{
    struct weft *w = l->w;
    if ((offset & 7) != 0 || offset < FAB_NULL_BYTES || offset > w->pool_bytes - 8)
        return NULL;
    return (uint64_t *)(void *)(w->pool_base + offset);
}

static bool serve(struct rc_link *l, const struct rc_frame *f)
{
    uint64_t *word = word_at(l, f->offset), before = f->a;
    if (!word)
        return false;
    if (f->kind == RC_ATOMIC && !fab_atomic_do(f->what, word, f->a, f->b, &before))
        return false;
    if (f->kind == RC_SIGNAL) /* release (within seq_cst): the bytes before the word */
        __atomic_fetch_add(word, f->a, __ATOMIC_SEQ_CST);
    else if (f->kind != RC_ATOMIC)
        __atomic_store_n(word, f->a, __ATOMIC_SEQ_CST);
    if (f->token == RC_NO_ASK)
        return true;
    return rc_answer(l, f->token, before);
}

static bool answered(struct rc_link *l, const struct rc_frame *f)
{
    base_spin_lock(&l->lock);
    bool expected = l->answered != l->asked && f->token == l->answered % RC_ASKS;
    if (expected) {
        struct rc_ask ask = l->asks[f->token];
        if (ask.old)
            *ask.old = f->a;
        __atomic_store_n(&l->answered, l->answered + 1, __ATOMIC_RELEASE);
        fab_complete(ask.op, 0);
        rc_push_locked(l);
    }
    base_spin_unlock(&l->lock);
    return expected;
}

static uint32_t payload_at(const struct rc_frame *f)
{
    return (uint32_t)sizeof *f + ((f->header_len + 7u) & ~7u);
}

/* A message waits for its handler's turn. */
static bool keep(struct rc_link *l, uint32_t frame, const uint8_t *at, uint32_t bytes)
{
    struct rc_frame f;
    memcpy(&f, at, sizeof f);
    uint32_t in = atomic_load_explicit(&l->inbox_in, memory_order_relaxed);
    if (f.header_len > WEFT_HEADER_MAX || f.payload_len > WEFT_PAYLOAD_MAX || payload_at(&f) + f.payload_len > bytes ||
        in - atomic_load_explicit(&l->inbox_out, memory_order_acquire) >= RC_WINDOW)
        return false;
    l->inbox[in % RC_WINDOW].frame = frame;
    l->inbox[in % RC_WINDOW].bytes = bytes;
    /* release: who delivers sees the entry, and the frame (acquire in deliver_inbox) */
    atomic_store_explicit(&l->inbox_in, in + 1, memory_order_release);
    return true;
}

static bool take(struct rc_link *l, uint32_t frame, const uint8_t *at, uint32_t bytes)
{
    struct rc_frame f;
    if (bytes < sizeof f)
        return false;
    memcpy(&f, at, sizeof f);

    bool sane = true, more = false;
    base_spin_lock(&l->lock);
    for (int i = 0; i < RC_LANES; i++) {
        struct rc_queue *q = &l->lane[i];
        sane = sane && f.taken[i] - q->peer_taken <= q->sent - q->peer_taken;
        more = more || f.taken[i] != q->peer_taken;
        if (sane)
            rc_taken_locked(l, (enum rc_lane)i, f.taken[i]);
    }
    if (sane && more)
        rc_push_locked(l);
    base_spin_unlock(&l->lock);
    if (!sane)
        return false;

    switch (f.kind) {
    case RC_TELL_ONLY:
        return true;
    case RC_ANSWER:
        return answered(l, &f);
    case RC_ATOMIC:
    case RC_SIGNAL:
    case RC_STORE:
        return serve(l, &f);
    case RC_MESSAGE:
        return keep(l, frame, at, bytes);
    default:
        return false;
    }
}

/* Frames of a lane are taken: their receives are posted again. */
static void count(struct rc_link *l, enum rc_lane lane, uint32_t frames)
{
    base_spin_lock(&l->lock);
    l->lane[lane].taken += frames;
    rc_tell_locked(l, false);
    base_spin_unlock(&l->lock);
}

/* The link by whose queue pair a frame came. What the frame says of itself is only where to look first. */
static struct rc_link *whose(struct rc *rc, const struct ibv_wc *wc, const uint8_t *at)
{
    if (wc->status == IBV_WC_SUCCESS && wc->byte_len >= sizeof(struct rc_frame)) {
        struct rc_frame f;
        memcpy(&f, at, sizeof f);
        struct fab_link *link = f.from < rc->w->size ? &rc->w->links[f.from] : NULL;
        struct rc_link *l = link && link->transport == rc->transport ? link->impl : NULL;
        if (BASE_LIKELY(l && l->qp.here.qpn == wc->qp_num))
            return l;
    }
    for (uint32_t i = 0; i < rc->count; i++)
        if (rc->links[i]->qp.here.qpn == wc->qp_num)
            return rc->links[i];
    return NULL;
}

static void received(struct rc *rc, const struct ibv_wc *wc)
{
    uint32_t frame = (uint32_t)wc->wr_id;
    const uint8_t *at = rc_receive_at(rc, frame);
    struct rc_link *l = at ? whose(rc, wc, at) : NULL;
    if (!l) { /* of a queue pair that is no more */
        if (at)
            rc_receive_unused(rc, frame);
        return;
    }
    uint8_t kind = wc->status == IBV_WC_SUCCESS && wc->byte_len > 0 ? at[0] : 0;
    if (BASE_UNLIKELY(l->closed || wc->status != IBV_WC_SUCCESS)) {
        const char *text = rc->device->lib->wc_status_str(wc->status);
        if (wc->status == IBV_WC_LOC_LEN_ERR)
            rc_break(l, "it sent a frame that is too long: %s (%d)", text, (int)wc->status);
        base_spin_lock(&l->lock);
        if (wc->status != IBV_WC_SUCCESS)
            rc_lose_locked(l, "a receive from it failed: %s (%d)", text, (int)wc->status);
        base_spin_unlock(&l->lock);
        rc_receive_unused(rc, frame);
        return;
    }
    fab_heard(l->link);
    rc_receive_hold(l, frame);
    if (!take(l, frame, at, wc->byte_len)) {
        rc_break(l, "it sent a frame that makes no sense");
        rc_receive_give(l, frame);
    } else if (kind != RC_MESSAGE) {
        rc_receive_give(l, frame);
        if (kind != RC_TELL_ONLY)
            count(l, RC_MAIN, 1);
    }
}

/* Messages to their handlers, `most` of them: another thread may bring in more all the while, and other peers wait. Where too many wait
 * for a handler that is not installed, the peer is not to send more. What comes of one that is gone is not delivered. */
static int deliver_inbox(struct weft *w, struct rc_link *l, uint32_t most)
{
    uint32_t out = atomic_load_explicit(&l->inbox_out, memory_order_relaxed), n = 0;
    /* acquire: pairs with the release in keep() */
    while (n < most && atomic_load_explicit(&l->inbox_in, memory_order_acquire) != out) {
        uint32_t frame = l->inbox[out % RC_WINDOW].frame;
        const uint8_t *at = rc_receive_at(l->rc, frame);
        struct rc_frame f;
        memcpy(&f, at, sizeof f);
        if (BASE_LIKELY(atomic_load_explicit(&l->link->state, memory_order_relaxed) == FAB_ALIVE)) /* it changes with w->progress held */
            stash_deliver(w, &l->stash, f.id, at + sizeof f, f.header_len, at + payload_at(&f), f.payload_len);
        atomic_store_explicit(&l->inbox_out, ++out, memory_order_release);
        rc_receive_give(l, frame);
        n++;
        if (l->stash.count < STASH_MAX) {
            count(l, RC_MESSAGES, 1 + l->withheld);
            l->withheld = 0;
        } else {
            l->withheld++;
        }
    }
    return (int)n;
}

/* --- progress --- */

/* Whether it was a receive. */
static bool handle(struct rc *rc, const struct ibv_wc *wc)
{
    uint32_t number = rc_wr_link(wc->wr_id);
    if (!rc_wr_sent(wc->wr_id)) {
        received(rc, wc);
        return true;
    }
    struct rc_link *l = number < rc->count ? rc->links[number] : NULL;
    if (l && rc_wr_generation(wc->wr_id) == (l->generation & RC_WR_GENERATION)) /* else of a queue pair that is no more */
        rc_done(l, wc);
    return false;
}

/* Everything but handlers: also while one of them is slow. */
static int service(struct rc *rc)
{
    struct ibv_wc wc[BATCH];
    int n = 0, got;
    uint32_t there = atomic_load_explicit(&rc->receives.given, memory_order_relaxed) -
                     atomic_load_explicit(&rc->receives.taken, memory_order_relaxed), taken = 0;
    if (rc->has_early) {
        rc->has_early = false;
        taken += handle(rc, &rc->early);
        n++;
    }
    do {
        got = ibv_poll_cq(rc->cq, BATCH, wc);
        for (int i = 0; i < got; i++)
            taken += handle(rc, &wc[i]);
        n += got > 0 ? got : 0;
    } while (got == BATCH && n < 8 * BATCH);
    if (BASE_UNLIKELY(rc->rails))
        n += rc_rails_poll(rc);
    if (taken)
        rc_receives_look(rc, there, taken);
    return n;
}

int rc_service(struct weft *w)
{
    struct rc *rc = w->rc;
    if (!rc->cq || !base_spin_try(&rc->receiving))
        return 0;
    int n = service(rc);
    base_spin_unlock(&rc->receiving);
    return n;
}

int rc_progress(struct weft *w)
{
    struct rc *rc = w->rc;
    int n = 0;
    if (!rc->cq)
        return 0;
    for (uint32_t i = 0; i < rc->count; i++) {
        struct rc_link *l = rc->links[i];
        if (BASE_UNLIKELY(l->stash.count) && stash_retry(w, &l->stash) > 0) {
            n++;
            if (l->withheld && l->stash.count < STASH_MAX) {
                count(l, RC_MESSAGES, l->withheld);
                l->withheld = 0;
            }
        }
        n += deliver_inbox(w, l, RC_WINDOW);
        /* Stages and frames are shared by all links: what found none looks again. */
        if (BASE_UNLIKELY(__atomic_load_n(&l->lane[RC_MAIN].bytes, __ATOMIC_RELAXED) ||
                          __atomic_load_n(&l->lane[RC_MESSAGES].bytes, __ATOMIC_RELAXED) ||
                          __atomic_load_n(&l->again, __ATOMIC_RELAXED)) &&
            base_spin_try(&l->lock)) {
            n += rc_push_locked(l);
            base_spin_unlock(&l->lock);
        }
    }
    return n;
}

bool rc_idle(struct weft *w)
{
    struct rc *rc = w->rc;
    if (!rc->cq)
        return true;
    if (!base_spin_try(&rc->receiving))
        return false;
    if (!rc->has_early) {
        ibv_req_notify_cq(rc->cq, 0);
        /* What came before the wish is not told of: look once more. */
        rc->has_early = ibv_poll_cq(rc->cq, 1, &rc->early) > 0;
    }
    bool quiet = !rc->has_early;
    if (rc->rails)
        quiet = rc_rails_idle(rc) && quiet;
    base_spin_unlock(&rc->receiving);
    for (uint32_t i = 0; i < rc->count && quiet; i++)
        quiet = atomic_load_explicit(&rc->links[i]->inbox_in, memory_order_acquire) ==
                atomic_load_explicit(&rc->links[i]->inbox_out, memory_order_relaxed);
    return quiet;
}

void rc_take_all(struct rc *rc)
{
    uint64_t most = (uint64_t)rc->peers_max * RC_CQ_ENTRIES + RC_CQ_SPARE; /* that were there when it began */
    int n;
    do {
        base_spin_lock(&rc->receiving);
        n = rc->cq ? service(rc) : 0;
        base_spin_unlock(&rc->receiving);
        most -= (uint64_t)n < most ? (uint64_t)n : most;
    } while (n > 0 && most > 0);
}

/* All that a peer has sent and that has come, after it is gone; what another thread has taken from the completion queue just
 * now, and not put into the inbox yet, is waited for. That is a window at most; what a peer that lives all the same sends as
 * these are taken is not heard any more. */
void rc_last_words(struct weft *w, struct fab_link *link)
{
    struct rc_link *l = link->impl;
    struct rc *rc = w->rc;
    uint32_t left = RC_WINDOW;
    int n;
    do {
        rc_take_all(rc);
        n = deliver_inbox(w, l, left);
        left -= (uint32_t)n;
    } while (n > 0 && left > 0);
}

/* --- operations --- */

int rc_put_signal(struct weft *w, struct fab_link *link, uint64_t to, const void *src, size_t len, uint64_t signal, uint64_t add,
                  weft_op *op)
{
    struct rc_frame f = {.kind = RC_SIGNAL, .offset = signal, .a = add};
    if (len) {
        int err = rc_put(w, link, to, src, len, NULL); /* before the frame, in the same queue pair */
        if (err)
            return err;
    }
    return rc_frame_send(link->impl, &f, NULL, NULL, true, NULL, op);
}

int rc_send(struct weft *w, struct fab_link *link, uint32_t id, const void *header, size_t header_len, const void *payload,
            size_t payload_len, weft_op *op)
{
    (void)w;
    struct rc_frame f = {.kind = RC_MESSAGE, .id = (uint16_t)id, .header_len = (uint16_t)header_len,
                         .payload_len = (uint16_t)payload_len};
    return rc_frame_send(link->impl, &f, header, payload, false, NULL, op);
}
