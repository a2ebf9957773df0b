/* SPDX-License-Identifier: MIT
 *
 * Progress of tb: passes completions and expired timers to the endpoints of the links, which then send what they can.
 */
#include "fabric/tb/tb.h"

#include <string.h>

#define BATCH           32
#define LOOK            (5 * WEFT_MS)  /* the least time between two queries of a port, each of which may be a system call */
#define LOOK_BUSY       (WEFT_MS / 20) /* instead of LOOK after frames have arrived, because then receives will be posted on this port */
#define LOOKS_PER_CLOCK 16u
#define FETCHED         512u
#define FETCHED_EARLY   128u
/* If there was no completion for this time, perhaps no thread has polled. */
#define PAUSE     (WEFT_MS / 2)
#define BUSY_MOST 4u              /* maximum number of rounds in a row with received frames before completions of sends are polled */
#define WATCH     (100 * WEFT_MS) /* the longest time between two queries of a port */

/* Handles a frame. Returns true if the frame is being forwarded; then its receive is still in use. `alone`: no other frame has arrived with
 * it, so its link is pumped at once, which sends the answer. */
static bool poll_on_frame(struct tb *tb, struct tb_cable *c, uint32_t slot, uint32_t bytes, int64_t now, bool alone)
{
    const uint8_t *frame = c->frames + (uint64_t)slot * TB_FRAME_BYTES;
    struct tb_frame f;
    if (bytes < sizeof f)
        return false;
    memcpy(&f, frame, sizeof f);
    if (f.magic == TB_MAGIC && f.to != tb->w->rank) {
        bool went = tb_forward(tb, c, slot, bytes, f.to);
        *(went ? &tb->passed_on : &tb->dropped) += 1;
        tb->passed_at = now;
        return went;
    }
    struct tb_link *l = f.magic == TB_MAGIC ? tb_link_of(tb, f.from) : NULL;
    if (!l)
        return false; /* the frame is damaged, or from an unknown node; the sender sends it again if necessary */
    base_spin_lock(&l->r.lock);
    int rc = l->r.closed ? -EBADMSG : tb_endpoint_frame(&l->r.endpoint, frame, bytes, now);
    if (rc == 0 && alone)
        records_pump_locked(&l->r, now);
    base_spin_unlock(&l->r.lock);
    tb->answered = rc == 0 && alone;
    l->touched = l->touched || !tb->answered;
    if (rc == 0)
        fab_heard(l->r.link);
    else if (rc != -EBADMSG)
        records_break(&l->r, "%s; run the same version of weft on all hosts", l->r.endpoint.broken);
    return false;
}

static void poll_receive_again(struct tb *tb, struct tb_cable *c, uint32_t slot)
{
    struct tb_link *l = tb_link_of(tb, c->node);
    tb->owes_receives = true;
    if (tb_cable_receive(c, slot) != 0 && l)
        records_break(&l->r, "%s", base_error());
}

/* A forwarded frame was sent, so the receive in which it had arrived is free. */
static void poll_passed_on(struct tb *tb, uint32_t cable, uint32_t slot)
{
    struct tb_cable *from = cable < tb->cable_count ? tb->cables[cable] : NULL;
    if (!from || !from->open || slot >= from->receives || !from->held[slot])
        return; /* the cable over which the frame arrived was closed */
    from->held[slot] = 0;
    from->held_count--;
    poll_receive_again(tb, from, slot);
}

/* Posts the receives that wait to be posted again. Called only when there is nothing else to do, because enough receives are still posted,
 * and answers to the peer are more urgent. */
static void poll_receive_owed(struct tb *tb)
{
    tb->owes_receives = false;
    for (uint32_t i = 0; i < tb->cable_count; i++) {
        struct tb_cable *c = tb->cables[i];
        struct tb_link *l = c && c->open ? tb_link_of(tb, c->node) : NULL;
        if (c && c->open && tb_cable_receive_owed(c) != 0 && l)
            records_break(&l->r, "%s", base_error());
    }
}

static void poll_handle(struct tb *tb, const struct ibv_wc *wc, int64_t now, bool alone)
{
    uint32_t number = (uint32_t)(wc->wr_id >> 24 & 0xffff), node = (uint32_t)(wc->wr_id >> 8 & 0xffff), slot = (uint32_t)(wc->wr_id & 0xff);
    struct tb_cable *c = number < tb->cable_count ? tb->cables[number] : NULL;
    struct tb_link *l = tb_link_of(tb, node);
    if (!c || !c->open || (uint16_t)(wc->wr_id >> 40) != c->made)
        return;
    enum tb_request what = (enum tb_request)(wc->wr_id >> 56);
    if (wc->status != IBV_WC_SUCCESS) {
        struct tb_link *to = tb_link_of(tb, c->node);
        if (to && wc->status != IBV_WC_WR_FLUSH_ERR)
            records_break(&to->r, "%s: a %s failed: %s (%d)", c->device->d->name,
                          what == TB_REQUEST_FRAME || what == TB_REQUEST_LANE_SEND ? "send to it" : "receive from it",
                          c->device->d->lib->wc_status_str(wc->status), (int)wc->status);
        return;
    }
    switch (what) {
    case TB_REQUEST_RECEIVE:
        if (slot >= c->receives)
            return;
        c->expected = (uint16_t)(slot + 1 < c->receives ? slot + 1 : 0);
        if (!poll_on_frame(tb, c, slot, wc->byte_len, now, alone))
            poll_receive_again(tb, c, slot);
        return;
    case TB_REQUEST_FORWARD:
        tb_cable_left(c);
        poll_passed_on(tb, node, slot);
        return;
    case TB_REQUEST_FRAME: tb_cable_left(c); break;
    default: break;
    }
    if (!l)
        return;
    base_spin_lock(&l->r.lock);
    if (!l->r.closed) {
        if (what == TB_REQUEST_FRAME)
            tb_endpoint_left(&l->r.endpoint, slot);
        else if (what == TB_REQUEST_LANE_SEND)
            tb_endpoint_lane_left(&l->r.endpoint, c->lane_base + slot);
        else
            tb_endpoint_lane_landed(&l->r.endpoint, c->lane_base + slot, now);
    }
    base_spin_unlock(&l->r.lock);
    l->touched = true;
}

/* Runs the endpoints of all links that had an event, found no room before, or whose timer has expired. */
static void poll_pump_all(struct tb *tb, int64_t now)
{
    int64_t due = INT64_MAX;
    for (uint32_t i = 0; i < tb->device_count; i++)
        tb_watch(tb, &tb->devices[i], now, LOOK);
    tb_routes_apply(tb);
    records_timers_begin(&tb->due);
    for (uint32_t i = 0; i < tb->w->founders; i++) {
        struct tb_link *l = tb_link_of(tb, i);
        if (!l)
            continue;
        bool time = now >= atomic_load_explicit(&l->r.due, memory_order_relaxed);
        if (l->touched || time || atomic_load_explicit(&l->r.no_room, memory_order_relaxed)) {
            l->touched = false;
            base_spin_lock(&l->r.lock);
            if (!l->r.closed)
                records_pump_locked(&l->r, now);
            base_spin_unlock(&l->r.lock);
        }
        int64_t at = atomic_load_explicit(&l->r.due, memory_order_relaxed);
        due = at < due ? at : due;
    }
    records_timer(&tb->due, due);
}

/* Prefetches all lines of a frame at once. Otherwise they would be fetched from another processor's cache one after another. */
static void poll_fetch_frame(const struct tb *tb, const struct ibv_wc *wc)
{
    uint32_t number = (uint32_t)(wc->wr_id >> 24 & 0xffff), slot = (uint32_t)(wc->wr_id & 0xff);
    const struct tb_cable *c = number < tb->cable_count ? tb->cables[number] : NULL;
    if (!c || slot >= c->receives || wc->wr_id >> 56 != TB_REQUEST_RECEIVE || wc->status != IBV_WC_SUCCESS)
        return;
    const uint8_t *frame = c->frames + (uint64_t)slot * TB_FRAME_BYTES;
    for (uint32_t i = 0; i < wc->byte_len && i < FETCHED; i += 64)
        __builtin_prefetch(frame + i);
}

/* Prefetches the next completion's frame. It is usually complete, because the device writes a frame before its completion. */
static void poll_fetch_next(const struct tb *tb)
{
    for (uint32_t i = 0; i < tb->cable_count; i++) {
        const struct tb_cable *c = tb->cables[i];
        if (!c || !c->open)
            continue;
        const uint8_t *frame = c->frames + (uint64_t)c->expected * TB_FRAME_BYTES;
        for (uint32_t k = 0; k < FETCHED_EARLY; k += 64)
            __builtin_prefetch(frame + k);
    }
}

/* Returns the time of this round of polling, and notes whether there was a pause before it. After a pause, no link is pumped before
 * everything that has arrived is handled: otherwise timers could expire although the answer has arrived. */
static int64_t poll_look_time(struct tb *tb)
{
    int64_t now = base_recent_ns();
    tb->paused = now - tb->looked_at >= PAUSE;
    tb->looked_at = now;
    return now;
}

static int poll_take_completions(struct tb *tb, struct tb_device *d, struct tb_completions *c, int64_t *now)
{
    struct ibv_wc wc[BATCH];
    int n = 0, got;
    if (c->has_early) {
        c->has_early = false;
        *now = *now ? *now : poll_look_time(tb);
        poll_handle(tb, &c->early, *now, false);
        n++;
    }
    if (d->cables == 0) /* nothing can arrive without a cable */
        return n;
    do {
        got = ibv_poll_cq(c->cq, BATCH, wc);
        if (got <= 0)
            break;
        poll_fetch_frame(tb, &wc[0]);
        *now = *now ? *now : poll_look_time(tb);
        tb_watch(tb, d, *now, LOOK_BUSY);
        for (int k = 0; k < got; k++) {
            if (k + 1 < got)
                poll_fetch_frame(tb, &wc[k + 1]);
            poll_handle(tb, &wc[k], *now, n == 0 && got == 1 && !tb->paused);
        }
        n += got;
    } while (got == BATCH && n < 8 * BATCH);
    return n;
}

/* Polls the completion queues. No thread waits for completions of sends. So these are polled only if nothing was received, if something was
 * received in too many rounds in a row, or if the caller asks for it. */
int tb_poll(struct tb *tb, bool sends)
{
    int n = 0;
    int64_t now = 0;
    tb->answered = tb->paused = false;
    for (uint32_t i = 0; i < tb->device_count; i++)
        n += poll_take_completions(tb, &tb->devices[i], &tb->devices[i].of[TB_RECEIVED], &now);
    tb->busy = sends || n == 0 || tb->paused || tb->busy == BUSY_MOST ? 0 : tb->busy + 1;
    for (uint32_t i = 0; i < tb->device_count && tb->busy == 0; i++)
        n += poll_take_completions(tb, &tb->devices[i], &tb->devices[i].of[TB_SENT], &now);
    /* Read the clock only now and then: reading it costs more than polling the queue, and timers need not be exact. */
    if (n == 0 && atomic_load_explicit(&tb->due, memory_order_relaxed) != INT64_MAX && ++tb->looks % LOOKS_PER_CLOCK == 0)
        now = base_recent_ns();
    if (n > (tb->answered ? 1 : 0) || (now && now >= atomic_load_explicit(&tb->due, memory_order_relaxed)))
        poll_pump_all(tb, now);
    if (n == 0)
        poll_fetch_next(tb);
    if (n == 0 && tb->owes_receives)
        poll_receive_owed(tb);
    return n;
}

static int poll_try(struct tb *tb, bool sends)
{
    if (!tb->device_count || !base_spin_try(&tb->receiving))
        return 0;
    int n = tb_poll(tb, sends);
    base_spin_unlock(&tb->receiving);
    return n;
}

int tb_service(struct weft_node *w)
{
    return poll_try(w->tb, false);
}

void tb_make_room(struct weft_node *w)
{
    if (poll_try(w->tb, true) > 0)
        fab_wake_here(w);
}

int tb_progress(struct weft_node *w)
{
    struct tb *tb = w->tb;
    int n = 0;
    for (uint32_t i = 0; i < w->founders && tb->device_count; i++) {
        struct tb_link *l = tb_link_of(tb, i);
        n += l ? records_progress(w, &l->r) : 0;
    }
    return n;
}

static bool poll_no_messages(const struct tb *tb)
{
    for (uint32_t i = 0; i < tb->w->founders; i++) {
        const struct tb_link *l = tb_link_of(tb, i);
        if (l && !records_message_none(&l->r))
            return false;
    }
    return true;
}

int64_t tb_upkeep(struct weft_node *w, int64_t now)
{
    struct tb *tb = w->tb;
    if (!tb->device_count)
        return INT64_MAX;
    if (!base_spin_try(&tb->receiving))
        return WEFT_MS; /* the thread that holds tb->receiving polls, and runs the timers */
    for (uint32_t i = 0; i < tb->device_count; i++)
        tb_watch(tb, &tb->devices[i], now, LOOK);
    tb_watch_upkeep(tb, now);
    tb_routes_tell(tb);
    tb_leave_tell(tb);
    tb_routes_apply(tb);
    poll_pump_all(tb, base_now_ns());
    bool told = tb_routes_told(tb) && tb_leave_told(tb);
    base_spin_unlock(&tb->receiving);
    int64_t due = atomic_load_explicit(&tb->due, memory_order_relaxed);
    due = due == INT64_MAX ? due : due > now ? due - now : 0;
    int64_t most = told ? WATCH : WEFT_MS;
    return due < most ? due : most;
}

bool tb_idle(struct weft_node *w)
{
    struct tb *tb = w->tb;
    bool quiet = true;
    if (!tb->device_count)
        return true;
    if (!base_spin_try(&tb->receiving))
        return false;
    for (uint32_t i = 0; i < tb->device_count; i++) {
        for (unsigned k = 0; k < TB_DIRECTIONS; k++) {
            struct tb_completions *c = &tb->devices[i].of[k];
            if (!c->has_early) {
                ibv_req_notify_cq(c->cq, 0);
                /* Poll once more: a completion that arrived before the queue was armed causes no event. */
                c->has_early = ibv_poll_cq(c->cq, 1, &c->early) > 0;
            }
            quiet = quiet && !c->has_early;
        }
    }
    base_spin_unlock(&tb->receiving);
    return quiet && poll_no_messages(tb);
}

int tb_fd(struct weft_node *w, uint32_t i)
{
    struct tb *tb = w->tb;
    return i / TB_DIRECTIONS < tb->device_count ? tb->devices[i / TB_DIRECTIONS].of[i % TB_DIRECTIONS].fd : -1;
}

void tb_woken(struct weft_node *w)
{
    struct tb *tb = w->tb;
    base_spin_lock(&tb->receiving); /* if a signal has closed the queues (ending.c), this blocks until the process ends */
    for (uint32_t i = 0; i < tb->device_count; i++)
        for (unsigned k = 0; k < TB_DIRECTIONS; k++)
            verbs_cq_woken(tb->devices[i].of[k].channel, tb->devices[i].d);
    base_spin_unlock(&tb->receiving);
}
