/* SPDX-License-Identifier: MIT
 *
 * Handles received frames: messages, and operations that peers request (atomics, signals, stores to system words). All received bytes are
 * checked, because the peer may write anything.
 *
 * A peer may send RC_WINDOW frames of a lane without an acknowledgement. Every frame in the other direction carries an acknowledgement. If
 * there is no such frame to send, this node sends a frame that only acknowledges. So there is, or will soon be, a posted receive for every
 * frame that arrives.
 */
#include "fabric/rc/rails.h"

#include <string.h>

/* --- operations that peers request --- */

static uint64_t *rc_message_word_at(struct rc_link *l, uint64_t offset)
{
    struct weft_node *w = l->w;
    if ((offset & 7) != 0 || offset < FAB_NULL_BYTES || offset > w->pool_bytes - 8)
        return NULL;
    return (uint64_t *)(void *)(w->pool_base + offset);
}

static bool rc_message_serve(struct rc_link *l, const struct rc_frame *f)
{
    uint64_t *word = rc_message_word_at(l, f->offset), before = f->a;
    if (!word)
        return false;
    if (f->kind == RC_ATOMIC && !fab_atomic_do(f->what, word, f->a, f->b, &before))
        return false;
    if (f->kind == RC_SIGNAL) /* release (part of seq_cst): the data is visible before the signal */
        __atomic_fetch_add(word, f->a, __ATOMIC_SEQ_CST);
    else if (f->kind != RC_ATOMIC)
        __atomic_store_n(word, f->a, __ATOMIC_SEQ_CST);
    if (f->token == RC_NO_ASK)
        return true;
    return rc_answer(l, f->token, before);
}

static bool rc_message_answered(struct rc_link *l, const struct rc_frame *f)
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

static uint32_t rc_message_payload_at(const struct rc_frame *f)
{
    return (uint32_t)sizeof *f + ((f->header_len + 7u) & ~7u);
}

/* Puts a message into the inbox. Returns false if the message is invalid. */
static bool rc_message_keep(struct rc_link *l, uint32_t frame, const uint8_t *at, uint32_t bytes)
{
    struct rc_frame f;
    memcpy(&f, at, sizeof f);
    uint32_t in = atomic_load_explicit(&l->inbox_in, memory_order_relaxed);
    if (f.header_len > WEFT_HEADER_MAX || f.payload_len > WEFT_PAYLOAD_MAX || rc_message_payload_at(&f) + f.payload_len > bytes ||
        in - atomic_load_explicit(&l->inbox_out, memory_order_acquire) >= RC_WINDOW)
        return false;
    l->inbox[in % RC_WINDOW].frame = frame;
    l->inbox[in % RC_WINDOW].bytes = bytes;
    /* release: pairs with the acquire in rc_deliver() */
    atomic_store_explicit(&l->inbox_in, in + 1, memory_order_release);
    return true;
}

static bool rc_message_take(struct rc_link *l, uint32_t frame, const uint8_t *at, uint32_t bytes)
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
    case RC_TELL_ONLY: return true;
    case RC_ANSWER: return rc_message_answered(l, &f);
    case RC_ATOMIC:
    case RC_SIGNAL:
    case RC_STORE: return rc_message_serve(l, &f);
    case RC_MESSAGE: return rc_message_keep(l, frame, at, bytes);
    default: return false;
    }
}

void rc_count_taken(struct rc_link *l, enum rc_lane lane, uint32_t frames)
{
    base_spin_lock(&l->lock);
    l->lane[lane].taken += frames;
    rc_tell_locked(l, false);
    base_spin_unlock(&l->lock);
}

/* Finds the link over whose queue pair the frame arrived, by the number of the queue pair in the completion. To save a search, first looks
 * at the link of the rank that the frame names as its sender. */
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

void rc_received(struct rc *rc, const struct ibv_wc *wc)
{
    uint32_t frame = (uint32_t)wc->wr_id;
    const uint8_t *at = rc_receive_at(rc, frame);
    struct rc_link *l = at ? whose(rc, wc, at) : NULL;
    if (!l) { /* the frame arrived over a queue pair that was destroyed */
        if (at)
            rc_receive_unused(rc, frame);
        return;
    }
    uint8_t kind = wc->status == IBV_WC_SUCCESS && wc->byte_len > 0 ? at[0] : 0;
    if (BASE_UNLIKELY(l->closed || wc->status != IBV_WC_SUCCESS)) {
        const char *text = rc->device->lib->wc_status_str(wc->status);
        if (wc->status == IBV_WC_LOC_LEN_ERR)
            rc_break(l, "it sent a message that is too long: %s (%d); run the same version of weft on all hosts", text, (int)wc->status);
        base_spin_lock(&l->lock);
        if (wc->status != IBV_WC_SUCCESS)
            rc_lose_locked(l, "a receive from it failed: %s (%d)", text, (int)wc->status);
        base_spin_unlock(&l->lock);
        rc_receive_unused(rc, frame);
        return;
    }
    fab_heard(l->link);
    rc_receive_hold(l, frame);
    if (!rc_message_take(l, frame, at, wc->byte_len)) {
        rc_break(l, "it sent an invalid message; run the same version of weft on all hosts");
        rc_receive_give(l, frame);
    } else if (kind != RC_MESSAGE) {
        rc_receive_give(l, frame);
        if (kind != RC_TELL_ONLY)
            rc_count_taken(l, RC_MAIN, 1);
    }
}

/* Runs the handlers of at most `most` messages, so that other peers get their turn. While too many messages wait for a handler that is not
 * installed, messages are not acknowledged, so the peer runs out of credit. */
int rc_deliver(struct weft_node *w, struct rc_link *l, uint32_t most)
{
    uint32_t out = atomic_load_explicit(&l->inbox_out, memory_order_relaxed), n = 0;
    /* acquire: pairs with the release in rc_message_keep() */
    while (n < most && atomic_load_explicit(&l->inbox_in, memory_order_acquire) != out) {
        uint32_t frame = l->inbox[out % RC_WINDOW].frame;
        const uint8_t *at = rc_receive_at(l->rc, frame);
        struct rc_frame f;
        memcpy(&f, at, sizeof f);
        if (BASE_LIKELY(atomic_load_explicit(&l->link->state, memory_order_relaxed) == FAB_ALIVE)) /* changes only with w->progress */
            stash_deliver(w, &l->stash, f.id, at + sizeof f, f.header_len, at + rc_message_payload_at(&f), f.payload_len);
        atomic_store_explicit(&l->inbox_out, ++out, memory_order_release);
        rc_receive_give(l, frame);
        n++;
        if (l->stash.count < STASH_MAX) {
            rc_count_taken(l, RC_MESSAGES, 1 + l->withheld);
            l->withheld = 0;
        } else {
            l->withheld++;
        }
    }
    return (int)n;
}
