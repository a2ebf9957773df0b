/* SPDX-License-Identifier: MIT
 *
 * tb: the transport over devices that can only send and receive. This file has its table, opening and closing, joining, the end of a link,
 * and statistics.
 */
#include "fabric/tb/tb.h"
#include "fabric/transports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The memory of a link over one cable is at most what docs/thunderbolt-protocol.md says. Adds the link's state, frames to send, early
 * frames and messages, and the cable's state and receives. */
_Static_assert(sizeof(struct tb_link) + TB_SLOTS * TB_FRAME_BYTES + TB_WINDOW * TB_PAYLOAD_BYTES +
                       TB_MESSAGES * sizeof(struct records_message) + sizeof(struct tb_cable) + TB_RECEIVES * TB_FRAME_BYTES <
                   1350u << 10,
               "the documented memory of a link");

static int tb_open(struct weft_node *w)
{
    struct tb *tb = calloc(1, sizeof *tb);
    if (!tb)
        return base_fail(-ENOMEM, "no memory for the tb transport" BASE_MEMORY_HINT);
    tb->w = w;
    w->tb = tb;
    atomic_init(&tb->due, INT64_MAX);
    for (uint32_t i = 0; i < w->options.lane_count; i++)
        tb->lanes[i] = (struct tb_lane_option){w->options.lanes[i].message, w->options.lanes[i].depth};
    tb->lane_count = w->options.lane_count;
    tb->check = w->options.check_frames ? TB_CHECK_FRAMES : TB_CHECK_FULL;
    tb->links = calloc(w->founders, sizeof(struct tb_link *));
    if (!tb->links)
        return base_fail(-ENOMEM, "tb: no memory for %u links" BASE_MEMORY_HINT, w->founders);
    int err = tb_routes_open(tb);
    return err ? err : tb_leave_open(tb);
}

static int transport_look(struct weft_node *w)
{
    struct tb *tb = w->tb;
    bool thunderbolt;
    int err = tb_devices_find(tb, &thunderbolt);
    if (!err && thunderbolt)
        err = tb_ending_watch(tb); /* call this before anything is allocated on a device */
    return err ? err : tb_devices_take(tb, thunderbolt);
}

static bool tb_reaches(struct weft_node *w, const uint8_t *peer_host_id)
{
    struct tb *tb = w->tb;
    (void)peer_host_id;
    return fab_look(w, &tb->look, transport_look);
}

static void tb_close(struct weft_node *w)
{
    struct tb *tb = w->tb;
    if (!tb)
        return;
    base_spin_lock(&tb->receiving); /* blocks for ever if a signal has begun to free the devices (ending.c) and to end the process */
    tb_devices_close(tb);
    base_spin_unlock(&tb->receiving);
    tb_ending_forget(tb); /* call this last, because until then a signal must find its handler */
    tb_routes_close(tb);
    tb_leave_close(tb);
    free(tb->links);
    free(tb);
    w->tb = NULL;
}

static int transport_connect(struct weft_node *w, struct fab_link *link, int side_fd, int64_t deadline)
{
    struct tb_link *l = tb_link_make(w->tb, link);
    if (!l)
        return base_fail(-ENOMEM, "tb: no memory for the link to node %u" BASE_MEMORY_HINT, link->node);
    l->r.make_room = tb_make_room;
    link->transport = &fab_tb;
    return tb_connect(l, side_fd, deadline);
}

/* Waits until all nodes have reported their cables, and so all routes are known. */
static int tb_settle(struct weft_node *w, int64_t deadline)
{
    struct tb *tb = w->tb;
    for (uint32_t i = 0; i < w->founders && tb->device_count; i++) {
        struct tb_link *l = tb_link_of(tb, i);
        while (l && fab_alive(w, i) && !atomic_load_explicit(&l->led, memory_order_relaxed)) {
            if (atomic_load_explicit(&l->r.cut, memory_order_relaxed))
                return base_fail(-EHOSTUNREACH,
                                 "no cable leads to node %u, and no route through other nodes%s%s; run `weft doctor` on both hosts", i,
                                 l->no_cable[0] ? ": " : "", l->no_cable);
            if (base_now_ns() > deadline)
                return base_fail(-ETIMEDOUT,
                                 "no route to node %u is known yet, because some nodes have not reported their cables in time; to wait "
                                 "longer, raise WEFT_JOIN_TIMEOUT",
                                 i);
            base_sleep_ns(WEFT_MS);
        }
    }
    return 0;
}

/* Whether this node must stay, because other nodes still send frames through it. */
static bool tb_needed(struct weft_node *w)
{
    struct tb *tb = w->tb;
    if (!tb->device_count)
        return false;
    base_spin_lock(&tb->receiving);
    bool waits = tb_leave_waits(tb), told = tb_leave_told(tb);
    base_spin_unlock(&tb->receiving);
    if (!told)
        fab_kick(w);
    return waits;
}

static void tb_side(struct weft_node *w, struct fab_link *link, const void *bytes, size_t len)
{
    struct tb *tb = w->tb;
    base_spin_lock(&tb->receiving);
    uint16_t kind = 0;
    if (len >= sizeof kind)
        memcpy(&kind, bytes, sizeof kind);
    if (kind == TB_SIDE_NEIGHBOURS)
        tb_routes_heard(tb, link->node, bytes, len);
    else if (kind == TB_SIDE_CABLE && tb_link_of(tb, link->node))
        tb_watch_heard(tb, tb_link_of(tb, link->node), bytes, len);
    else if (kind == TB_SIDE_LEAVE) {
        tb_leave_heard(tb, link->node, bytes, len);
        tb_leave_tell(tb);
    }
    tb_routes_apply(tb);
    base_spin_unlock(&tb->receiving);
}

static const char *tb_broken(struct weft_node *w, struct fab_link *link)
{
    struct tb_link *l = link->impl;
    (void)w;
    return l && atomic_load_explicit(&l->r.broken, memory_order_acquire) ? l->r.why : NULL;
}

/* Handles the completions that were in the queues at the start. The loop ends, because each request completes only once before it is
 * posted again. */
static void take_all(struct tb *tb)
{
    uint32_t most = 0, n;
    base_spin_lock(&tb->receiving);
    for (uint32_t i = 0; i < tb->cable_count; i++)
        for (uint32_t k = 0; tb->cables[i] && k <= tb->lane_count; k++)
            most += k ? 2 * tb->lanes[k - 1].depth : TB_RECEIVES + TB_SENDS;
    base_spin_unlock(&tb->receiving);
    do {
        base_spin_lock(&tb->receiving);
        n = tb->device_count ? (uint32_t)tb_poll(tb, true) : 0;
        base_spin_unlock(&tb->receiving);
        most -= n < most ? n : most;
    } while (n > 0 && most > 0);
}

/* Handles what a peer sent before it was gone, but at most as many messages as it had credit for: a peer that counts as dead may be alive,
 * and go on sending. */
static void tb_last_words(struct weft_node *w, struct fab_link *link)
{
    struct tb *tb = w->tb;
    struct tb_link *l = link->impl;
    uint32_t left = TB_MESSAGES;
    int n;
    do {
        take_all(tb);
        n = records_message_deliver(w, &l->r, left);
        left -= (uint32_t)n;
    } while (n > 0 && left > 0);
}

/* First makes all links stop using the peer's cables. Then destroys the cables' queue pairs, so that the peer writes nothing here any more.
 * Then fails pending operations. */
static void tb_disconnect(struct weft_node *w, struct fab_link *link)
{
    struct tb *tb = w->tb;
    struct tb_link *l = link->impl;
    if (!l)
        return;
    base_spin_lock(&tb->receiving);
    base_spin_lock(&l->r.lock);
    uint32_t cables = l->r.closed ? 0 : l->cable_count;
    bool end = !l->r.closed && tb_link_of(tb, link->node);
    l->r.closed = true;
    l->via = NULL;
    l->cable_count = 0;
    base_spin_unlock(&l->r.lock);
    tb_routes_cable(tb, link->node, false);
    tb_routes_apply(tb);
    for (uint32_t i = 0; i < cables; i++) {
        tb_watch_abandon(tb, l->cables[i]);
        tb_cable_close(l->cables[i]);
    }
    base_spin_lock(&l->r.lock);
    if (end)
        tb_endpoint_end(&l->r.endpoint, -ECONNRESET);
    atomic_store_explicit(&l->r.due, INT64_MAX, memory_order_relaxed);
    base_spin_unlock(&l->r.lock);
    base_spin_unlock(&tb->receiving);
}

static void tb_release(struct weft_node *w, struct fab_link *link)
{
    struct tb *tb = w->tb;
    struct tb_link *l = link->impl;
    if (!l)
        return;
    tb_disconnect(w, link);
    base_spin_lock(&tb->receiving); /* a thread that ends the process after a signal reads the links (ending.c) */
    __atomic_store_n(&tb->links[link->node], NULL, __ATOMIC_RELEASE);
    base_spin_unlock(&tb->receiving);
    stash_clear(&l->r.stash);
    free(l->r.inbox);
    free(l);
    link->impl = NULL;
}

static void tb_stat(struct weft_node *w, struct fab_link *link, weft_link_stats *out)
{
    struct tb_link *l = link->impl;
    struct tb *tb = w->tb;
    base_spin_lock(&tb->receiving); /* protects the link's cables */
    base_spin_lock(&l->r.lock);
    const struct tb_bulk_counts *b = &l->r.endpoint.bulk.counts;
    records_stat_locked(&l->r, out);
    out->via = l->via ? l->via->node : UINT32_MAX;
    if (l->via && l->via->node != link->node)
        snprintf(out->devices, sizeof out->devices, "%s", l->via->device->d->name);
    for (uint32_t i = 0; i < l->cable_count; i++) {
        if (!l->cables[i]->ready)
            continue;
        size_t n = strlen(out->devices);
        snprintf(out->devices + n, sizeof out->devices - n, "%s%s", out->cables ? ", " : "", l->cables[i]->device->d->name);
        out->cables++;
    }
    out->bulk_sent_bytes = b->sent_bytes;
    out->bulk_received_bytes = b->received_bytes;
    out->bulk_rejected = b->rejected;
    out->bulk_repairs = b->repairs;
    base_spin_unlock(&l->r.lock);
    base_spin_unlock(&tb->receiving);
}

const struct fab_transport fab_tb = {
    .name = "tb",
    .founders_only = true,
    .rdma = true,
    .open = tb_open,
    .close = tb_close,
    .reaches = tb_reaches,
    .connect = transport_connect,
    .broken = tb_broken,
    .last_words = tb_last_words,
    .disconnect = tb_disconnect,
    .release = tb_release,
    .put = records_put,
    .get = records_get,
    .atomic = records_atomic,
    .put_signal = records_put_signal,
    .set_system = records_set_system,
    .send = records_send,
    .flushed = records_flushed,
    .fence = records_fence,
    .service = tb_service,
    .progress = tb_progress,
    .idle = tb_idle,
    .pointer = fab_no_pointer,
    .wake = records_no_wake,
    .stat = tb_stat,
    .regions = tb_regions,
    .fd = tb_fd,
    .woken = tb_woken,
    .side = tb_side,
    .upkeep = tb_upkeep,
    .settle = tb_settle,
    .needed = tb_needed,
};
