/* SPDX-License-Identifier: MIT
 *
 * tb: the transport over devices that can only send and receive. This file: links, progress. What goes over a link
 * is the business of its machine (peer.h); here it is given what the completion queues tell, and the time.
 */
#include "fabric/tb/tb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH  32
#define LOOK   (5 * WEFT_MS)   /* ports are not looked at more often: that may be a call into the system; ... */
#define LOOK_BUSY (WEFT_MS / 20) /* ... but for those where something has come, for which receives are about to be posted */
#define LOOKS_PER_CLOCK 16u
#define FETCHED 512u
#define FETCHED_EARLY 128u
#define PAUSE (WEFT_MS / 2)    /* so long nothing came: perhaps nobody looked */
#define BUSY_MOST 4u           /* rounds in a row in which something has come, before sends that have left are looked after */
#define WATCH  (100 * WEFT_MS) /* ports are looked at so often, at least */

/* What a pair of nodes with one cable takes, as docs/thunderbolt-protocol.md says: state, frames to send, frames that came early,
 * messages, receives. */
_Static_assert(sizeof(struct tb_link) + TB_SLOTS * TB_FRAME_BYTES + TB_WINDOW * TB_PAYLOAD_BYTES + TB_MESSAGES * sizeof(struct tb_message) +
                       sizeof(struct tb_cable) + TB_RECEIVES * TB_FRAME_BYTES < 1350u << 10, "the documented memory of a link");

/* --- opening, links --- */

static int tb_open(struct weft *w)
{
    struct tb *tb = calloc(1, sizeof *tb);
    if (!tb)
        return base_fail(-ENOMEM, "no memory for the tb transport");
    tb->w = w;
    w->tb = tb;
    atomic_init(&tb->due, INT64_MAX);
    for (uint32_t i = 0; i < w->lane_count; i++)
        tb->lanes[i] = (struct tb_lane_option){w->lanes[i].message, w->lanes[i].depth};
    tb->lane_count = w->lane_count;
    tb->check = w->check_frames ? TB_CHECK_FRAMES : TB_CHECK_FULL;
    tb->links = calloc(w->size, sizeof(struct tb_link *));
    if (!tb->links)
        return base_fail(-ENOMEM, "no memory for %u links", w->size);
    int err = tb_routes_open(tb);
    return err ? err : tb_leave_open(tb);
}

static bool tb_reaches(struct weft *w, const uint8_t *peer_host_id)
{
    struct tb *tb = w->tb;
    (void)peer_host_id;
    return fab_look(w, &tb->look, tb_devices_look);
}

static void tb_close(struct weft *w)
{
    struct tb *tb = w->tb;
    if (!tb)
        return;
    base_spin_lock(&tb->receiving); /* for good, if a signal has begun to give the devices back (ending.c) */
    tb_devices_close(tb);
    base_spin_unlock(&tb->receiving);
    tb_ending_forget(tb); /* not before: a signal that comes now must find its handler */
    tb_routes_close(tb);
    tb_leave_close(tb);
    free(tb->links);
    free(tb);
    w->tb = NULL;
}

struct tb_link *tb_link_make(struct tb *tb, struct fab_link *link)
{
    struct tb_link *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->tb = tb;
    l->link = link;
    atomic_init(&l->due, INT64_MAX);
    stash_init(&l->stash, link->node);
    link->impl = l;
    link->transport = &fab_tb;
    return l;
}

void tb_break(struct tb_link *l, const char *why, ...)
{
    va_list ap;
    if (atomic_load_explicit(&l->broken, memory_order_relaxed))
        return;
    va_start(ap, why);
    vsnprintf(l->why, sizeof l->why, why, ap);
    va_end(ap);
    atomic_store_explicit(&l->broken, true, memory_order_release);
    fab_kick(l->tb->w);
}

/* --- what the machine asks for; under the link's lock --- */

static bool emit(void *ctx, uint32_t slot, void *frame, uint32_t bytes)
{
    struct tb_link *l = ctx;
    bool went = l->via && tb_cable_send(l->via, l->link->node, slot, frame, bytes);
    if (!went)
        atomic_store_explicit(&l->starved, true, memory_order_relaxed);
    return went;
}

/* The cable of a lane of the link's, and which it is there. */
static struct tb_cable *lane_of(struct tb_link *l, uint32_t *lane)
{
    uint32_t i = *lane / l->tb->lane_count;
    *lane %= l->tb->lane_count;
    return l->cables[i];
}

static void *lane_memory(struct tb_link *l, uint64_t offset)
{
    return offset == TB_SCRAP ? l->tb->scrap : l->tb->w->pool_base + offset;
}

static bool lane_receive(void *ctx, uint32_t lane, uint64_t offset)
{
    struct tb_link *l = ctx;
    struct tb_cable *c = lane_of(l, &lane);
    return tb_cable_lane_receive(c, lane, lane_memory(l, offset));
}

static bool lane_send(void *ctx, uint32_t lane, uint64_t offset)
{
    struct tb_link *l = ctx;
    struct tb_cable *c = lane_of(l, &lane);
    return tb_cable_lane_send(c, lane, lane_memory(l, offset));
}

static bool keep_message(void *ctx, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len)
{
    struct tb_link *l = ctx;
    uint32_t in = atomic_load_explicit(&l->inbox_in, memory_order_relaxed);
    if (in - atomic_load_explicit(&l->inbox_out, memory_order_acquire) >= TB_MESSAGES)
        return false;
    struct tb_message *m = &l->inbox[in % TB_MESSAGES];
    *m = (struct tb_message){.id = (uint16_t)id, .header_len = (uint16_t)header_len, .payload_len = (uint16_t)payload_len};
    memcpy(m->bytes, header, header_len);
    memcpy(m->bytes + tb_padded(header_len), payload, payload_len);
    /* release: who delivers sees the message (acquire in deliver_inbox) */
    atomic_store_explicit(&l->inbox_in, in + 1, memory_order_release);
    return true;
}

static void completed(void *ctx, weft_op *op, int status)
{
    (void)ctx;
    fab_complete(op, status);
}

int tb_link_ready(struct tb_link *l, uint32_t session, uint64_t segment)
{
    struct tb *tb = l->tb;
    struct weft *w = tb->w;
    uint32_t node = l->link->node, place = node < w->rank ? node : node - 1;
    struct tb_peer_env env = {.ctx = l, .emit = emit, .lane_receive = lane_receive, .lane_send = lane_send, .message = keep_message,
                              .complete = completed};
    struct tb_peer_config config = {
        .here = (uint16_t)w->rank, .node = (uint16_t)node, .session = session,
        .frames = tb->link_frames + (uint64_t)place * TB_SLOTS * TB_FRAME_BYTES, .pool = w->pool_base, .pool_bytes = w->pool_bytes,
        .first_byte = FAB_NULL_BYTES, .segment = segment, .check = tb->check,
    };
    l->inbox = malloc(TB_MESSAGES * sizeof *l->inbox);
    if (!l->inbox)
        return base_fail(-ENOMEM, "no memory for messages of node %u", node);
    tb_peer_init(&l->peer, &env, &config);
    for (uint32_t i = 0; i < l->cable_count; i++)
        for (uint32_t k = 0; k < l->cables[i]->lane_count; k++)
            tb_peer_add_lane(&l->peer, tb->lanes[k].message, tb->lanes[k].depth);
    l->peer.stream.hops = (uint8_t)(w->size < UINT8_MAX ? w->size : UINT8_MAX);
    if (l->cable_count) {
        for (uint32_t i = 0; i < l->cable_count; i++)
            l->cables[i]->ready = true;
        l->via = l->cables[0];
        atomic_store_explicit(&l->led, true, memory_order_relaxed);
        tb_routes_cable(tb, node, true);
    }
    /* release: who polls sees a whole link (acquire in tb_link_of) */
    __atomic_store_n(&tb->links[node], l, __ATOMIC_RELEASE);
    return 0;
}

/* --- events --- */

void tb_pump_locked(struct tb_link *l, int64_t now)
{
    struct tb *tb = l->tb;
    atomic_store_explicit(&l->starved, false, memory_order_relaxed);
    tb_peer_pump(&l->peer, now);
    int64_t due = tb_peer_due(&l->peer);
    atomic_store_explicit(&l->due, due, memory_order_relaxed);
    if (due < atomic_load_explicit(&tb->due, memory_order_relaxed))
        atomic_store_explicit(&tb->due, due, memory_order_relaxed);
}

/* True: the frame goes on, and its receive with it. One that came alone is answered at once. */
static bool on_frame(struct tb *tb, struct tb_cable *c, uint32_t slot, uint32_t bytes, int64_t now, bool alone)
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
        return false; /* damaged, or of nobody we know: it will be sent again if it matters */
    base_spin_lock(&l->lock);
    int rc = l->closed ? -EBADMSG : tb_peer_frame(&l->peer, frame, bytes, now);
    if (rc == 0 && alone)
        tb_pump_locked(l, now);
    base_spin_unlock(&l->lock);
    tb->answered = rc == 0 && alone;
    l->touched = l->touched || !tb->answered;
    if (rc == 0)
        fab_heard(l->link);
    else if (rc != -EBADMSG)
        tb_break(l, "%s", l->peer.broken);
    return false;
}

static void receive_again(struct tb *tb, struct tb_cable *c, uint32_t slot)
{
    struct tb_link *l = tb_link_of(tb, c->node);
    tb->owes_receives = true;
    if (tb_cable_receive(c, slot) != 0 && l)
        tb_break(l, "%s", base_error());
}

/* A frame has been passed on: the receive it came into is free. */
static void passed_on(struct tb *tb, uint32_t cable, uint32_t slot)
{
    struct tb_cable *from = cable < tb->cable_count ? tb->cables[cable] : NULL;
    if (!from || !from->open || slot >= from->receives || !from->held[slot])
        return; /* that cable is gone */
    from->held[slot] = 0;
    from->held_count--;
    receive_again(tb, from, slot);
}

/* Receives that wait to be posted again are, when there is nothing else to do: there are enough, and the answer is waited for. */
static void receive_owed(struct tb *tb)
{
    tb->owes_receives = false;
    for (uint32_t i = 0; i < tb->cable_count; i++) {
        struct tb_cable *c = tb->cables[i];
        struct tb_link *l = c && c->open ? tb_link_of(tb, c->node) : NULL;
        if (c && c->open && tb_cable_receive_owed(c) != 0 && l)
            tb_break(l, "%s", base_error());
    }
}

static void handle(struct tb *tb, const struct ibv_wc *wc, int64_t now, bool alone)
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
            tb_break(to, "%s: a %s failed: %s (%d)", c->device->d->name,
                     what == TB_REQUEST_FRAME || what == TB_REQUEST_LANE_SEND ? "send to it" : "receive from it",
                     c->device->d->lib->wc_status_str(wc->status), (int)wc->status);
        return;
    }
    switch (what) {
    case TB_REQUEST_RECEIVE:
        if (slot >= c->receives)
            return;
        c->expected = (uint16_t)(slot + 1 < c->receives ? slot + 1 : 0);
        if (!on_frame(tb, c, slot, wc->byte_len, now, alone))
            receive_again(tb, c, slot);
        return;
    case TB_REQUEST_FORWARD:
        tb_cable_left(c);
        passed_on(tb, node, slot);
        return;
    case TB_REQUEST_FRAME:
        tb_cable_left(c);
        break;
    default:
        break;
    }
    if (!l)
        return;
    base_spin_lock(&l->lock);
    if (!l->closed) {
        if (what == TB_REQUEST_FRAME)
            tb_peer_left(&l->peer, slot);
        else if (what == TB_REQUEST_LANE_SEND)
            tb_peer_lane_left(&l->peer, c->lane_base + slot);
        else
            tb_peer_lane_landed(&l->peer, c->lane_base + slot, now);
    }
    base_spin_unlock(&l->lock);
    l->touched = true;
}

/* Everything that is due, for links that were touched, found no room before, or whose time has come. */
static void pump_all(struct tb *tb, int64_t now)
{
    int64_t due = INT64_MAX;
    for (uint32_t i = 0; i < tb->device_count; i++)
        tb_watch(tb, &tb->devices[i], now, LOOK);
    tb_routes_apply(tb);
    atomic_store_explicit(&tb->due, INT64_MAX, memory_order_relaxed);
    for (uint32_t i = 0; i < tb->w->size; i++) {
        struct tb_link *l = tb_link_of(tb, i);
        if (!l)
            continue;
        bool time = now >= atomic_load_explicit(&l->due, memory_order_relaxed);
        if (l->touched || time || atomic_load_explicit(&l->starved, memory_order_relaxed)) {
            l->touched = false;
            base_spin_lock(&l->lock);
            if (!l->closed)
                tb_pump_locked(l, now);
            base_spin_unlock(&l->lock);
        }
        int64_t at = atomic_load_explicit(&l->due, memory_order_relaxed);
        due = at < due ? at : due;
    }
    if (due < atomic_load_explicit(&tb->due, memory_order_relaxed))
        atomic_store_explicit(&tb->due, due, memory_order_relaxed);
}

/* All of the frame at once: it lies in another processor's cache, from where one line after another takes its time. */
static void fetch_frame(const struct tb *tb, const struct ibv_wc *wc)
{
    uint32_t number = (uint32_t)(wc->wr_id >> 24 & 0xffff), slot = (uint32_t)(wc->wr_id & 0xff);
    const struct tb_cable *c = number < tb->cable_count ? tb->cables[number] : NULL;
    if (!c || slot >= c->receives || wc->wr_id >> 56 != TB_REQUEST_RECEIVE || wc->status != IBV_WC_SUCCESS)
        return;
    const uint8_t *frame = c->frames + (uint64_t)slot * TB_FRAME_BYTES;
    for (uint32_t i = 0; i < wc->byte_len && i < FETCHED; i += 64)
        __builtin_prefetch(frame + i);
}

/* What comes next is written before it is told of: who looks without a pause has it by then. */
static void fetch_next(const struct tb *tb)
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

/* The time of this look. After a pause nothing is judged by it before all that came meanwhile has been taken in. */
static int64_t look_time(struct tb *tb)
{
    int64_t now = base_recent_ns();
    tb->paused = now - tb->looked_at >= PAUSE;
    tb->looked_at = now;
    return now;
}

static int take_completions(struct tb *tb, struct tb_device *d, struct tb_completions *c, int64_t *now)
{
    struct ibv_wc wc[BATCH];
    int n = 0, got;
    if (c->has_early) {
        c->has_early = false;
        *now = *now ? *now : look_time(tb);
        handle(tb, &c->early, *now, false);
        n++;
    }
    if (d->cables == 0) /* a port without a cable: nothing comes */
        return n;
    do {
        got = ibv_poll_cq(c->cq, BATCH, wc);
        if (got <= 0)
            break;
        fetch_frame(tb, &wc[0]);
        *now = *now ? *now : look_time(tb);
        tb_watch(tb, d, *now, LOOK_BUSY);
        for (int k = 0; k < got; k++) {
            if (k + 1 < got)
                fetch_frame(tb, &wc[k + 1]);
            handle(tb, &wc[k], *now, n == 0 && got == 1 && !tb->paused);
        }
        n += got;
    } while (got == BATCH && n < 8 * BATCH);
    return n;
}

/* Nobody waits for a send to leave: they are looked after when nothing has come, or too often something has, or somebody has many. */
static int service(struct tb *tb, bool sends)
{
    int n = 0;
    int64_t now = 0;
    tb->answered = tb->paused = false;
    for (uint32_t i = 0; i < tb->device_count; i++)
        n += take_completions(tb, &tb->devices[i], &tb->devices[i].of[TB_RECEIVED], &now);
    tb->busy = sends || n == 0 || tb->paused || tb->busy == BUSY_MOST ? 0 : tb->busy + 1;
    for (uint32_t i = 0; i < tb->device_count && tb->busy == 0; i++)
        n += take_completions(tb, &tb->devices[i], &tb->devices[i].of[TB_SENT], &now);
    /* What is due has some time: a look at the clock costs more than one at the queue. */
    if (n == 0 && atomic_load_explicit(&tb->due, memory_order_relaxed) != INT64_MAX && ++tb->looks % LOOKS_PER_CLOCK == 0)
        now = base_recent_ns();
    if (n > (tb->answered ? 1 : 0) || (now && now >= atomic_load_explicit(&tb->due, memory_order_relaxed)))
        pump_all(tb, now);
    if (n == 0)
        fetch_next(tb);
    if (n == 0 && tb->owes_receives)
        receive_owed(tb);
    return n;
}

static int try_service(struct tb *tb, bool sends)
{
    if (!tb->device_count || !base_spin_try(&tb->receiving))
        return 0;
    int n = service(tb, sends);
    base_spin_unlock(&tb->receiving);
    return n;
}

static int tb_service(struct weft *w)
{
    return try_service(w->tb, false);
}

void tb_make_room(struct tb *tb)
{
    if (try_service(tb, true) > 0)
        fab_wake_here(tb->w);
}

/* On the progress thread. */
static int64_t tb_upkeep(struct weft *w, int64_t now)
{
    struct tb *tb = w->tb;
    if (!tb->device_count)
        return INT64_MAX;
    if (!base_spin_try(&tb->receiving))
        return WEFT_MS; /* somebody polls, and does what is due */
    for (uint32_t i = 0; i < tb->device_count; i++)
        tb_watch(tb, &tb->devices[i], now, LOOK);
    tb_watch_upkeep(tb, now);
    tb_routes_tell(tb);
    tb_leave_tell(tb);
    tb_routes_apply(tb);
    pump_all(tb, base_now_ns());
    bool told = tb_routes_told(tb) && tb_leave_told(tb);
    base_spin_unlock(&tb->receiving);
    int64_t due = atomic_load_explicit(&tb->due, memory_order_relaxed);
    due = due == INT64_MAX ? due : due > now ? due - now : 0;
    int64_t most = told ? WATCH : WEFT_MS;
    return due < most ? due : most;
}

/* Only what all nodes say of their cables together tells which can be reached. */
static int tb_settle(struct weft *w, int64_t deadline)
{
    struct tb *tb = w->tb;
    for (uint32_t i = 0; i < w->size && tb->device_count; i++) {
        struct tb_link *l = tb_link_of(tb, i);
        while (l && fab_alive(w, i) && !atomic_load_explicit(&l->led, memory_order_relaxed)) {
            if (atomic_load_explicit(&l->cut, memory_order_relaxed))
                return base_fail(-EHOSTUNREACH, "node %u: no cable was found that leads to it, and no way through other nodes%s%s", i,
                                 l->no_cable[0] ? ": " : "", l->no_cable);
            if (base_now_ns() > deadline)
                return base_fail(-ETIMEDOUT, "node %u: not all nodes have said by now where their cables lead (WEFT_JOIN_TIMEOUT)", i);
            base_sleep_ns(WEFT_MS);
        }
    }
    return 0;
}

/* A node that others need on their way stays while they have something to say to each other. */
static bool tb_needed(struct weft *w)
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

static void tb_side(struct weft *w, struct fab_link *link, const void *bytes, size_t len)
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

/* --- messages --- */

static void granted(struct tb_link *l, uint32_t messages)
{
    base_spin_lock(&l->lock);
    if (!l->closed) {
        tb_peer_granted(&l->peer, messages);
        tb_pump_locked(l, base_now_ns());
    }
    base_spin_unlock(&l->lock);
}

/* Messages to their handlers, `most` of them: another thread may bring in more all the while, and other peers wait. Where too many wait
 * for a handler that is not installed, the peer is not to send more. What comes of one that is gone is not delivered. */
static int deliver_inbox(struct weft *w, struct tb_link *l, uint32_t most)
{
    uint32_t out = atomic_load_explicit(&l->inbox_out, memory_order_relaxed), n = 0;
    /* acquire: pairs with the release in keep_message() */
    while (n < most && atomic_load_explicit(&l->inbox_in, memory_order_acquire) != out) {
        const struct tb_message *m = &l->inbox[out % TB_MESSAGES];
        if (BASE_LIKELY(atomic_load_explicit(&l->link->state, memory_order_relaxed) == FAB_ALIVE)) /* it changes with w->progress held */
            stash_deliver(w, &l->stash, m->id, m->bytes, m->header_len, m->bytes + tb_padded(m->header_len), m->payload_len);
        atomic_store_explicit(&l->inbox_out, ++out, memory_order_release);
        n++;
        l->withheld++;
    }
    if (l->withheld && l->stash.count < STASH_MAX) {
        granted(l, l->withheld);
        l->withheld = 0;
    }
    return (int)n;
}

static int tb_progress(struct weft *w)
{
    struct tb *tb = w->tb;
    int n = 0;
    for (uint32_t i = 0; i < w->size && tb->device_count; i++) {
        struct tb_link *l = tb_link_of(tb, i);
        if (!l)
            continue;
        if (BASE_UNLIKELY(l->stash.count) && stash_retry(w, &l->stash) > 0)
            n++;
        n += deliver_inbox(w, l, TB_MESSAGES);
    }
    return n;
}

static bool inboxes_empty(struct tb *tb)
{
    for (uint32_t i = 0; i < tb->w->size; i++) {
        struct tb_link *l = tb_link_of(tb, i);
        if (l && atomic_load_explicit(&l->inbox_in, memory_order_acquire) != atomic_load_explicit(&l->inbox_out, memory_order_relaxed))
            return false;
    }
    return true;
}

static bool tb_idle(struct weft *w)
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
                /* What came before the wish is not told of: look once more. */
                c->has_early = ibv_poll_cq(c->cq, 1, &c->early) > 0;
            }
            quiet = quiet && !c->has_early;
        }
    }
    base_spin_unlock(&tb->receiving);
    return quiet && inboxes_empty(tb);
}

static int tb_fd(struct weft *w, uint32_t i)
{
    struct tb *tb = w->tb;
    return i / TB_DIRECTIONS < tb->device_count ? tb->devices[i / TB_DIRECTIONS].of[i % TB_DIRECTIONS].fd : -1;
}

static void tb_woken(struct weft *w)
{
    struct tb *tb = w->tb;
    base_spin_lock(&tb->receiving); /* a signal may just have ended them (ending.c): then this waits for the end of the process */
    for (uint32_t i = 0; i < tb->device_count; i++)
        for (unsigned k = 0; k < TB_DIRECTIONS; k++)
            verbs_cq_woken(tb->devices[i].of[k].channel, tb->devices[i].d);
    base_spin_unlock(&tb->receiving);
}

/* --- the end of a link --- */

static const char *tb_broken(struct weft *w, struct fab_link *link)
{
    struct tb_link *l = link->impl;
    (void)w;
    return l && atomic_load_explicit(&l->broken, memory_order_acquire) ? l->why : NULL;
}

/* What the completion queues had when it began: each of what was posted completes once before it is posted again. */
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
        n = tb->device_count ? (uint32_t)service(tb, true) : 0;
        base_spin_unlock(&tb->receiving);
        most -= n < most ? n : most;
    } while (n > 0 && most > 0);
}

/* All that a peer has sent and that has come, after it is gone: that is what it had credit for, at most. What a peer that lives all the
 * same sends as these are taken is not heard any more. */
static void tb_last_words(struct weft *w, struct fab_link *link)
{
    struct tb *tb = w->tb;
    struct tb_link *l = link->impl;
    uint32_t left = TB_MESSAGES;
    int n;
    do {
        take_all(tb);
        n = deliver_inbox(w, l, left);
        left -= (uint32_t)n;
    } while (n > 0 && left > 0);
}

/* First nobody sends over its cables any more, also not to others; then the queue pairs go, and nothing of the peer's is written
 * here any more; then what is pending fails. */
static void tb_disconnect(struct weft *w, struct fab_link *link)
{
    struct tb *tb = w->tb;
    struct tb_link *l = link->impl;
    if (!l)
        return;
    base_spin_lock(&tb->receiving);
    base_spin_lock(&l->lock);
    uint32_t cables = l->closed ? 0 : l->cable_count;
    bool end = !l->closed && tb_link_of(tb, link->node);
    l->closed = true;
    l->via = NULL;
    l->cable_count = 0;
    base_spin_unlock(&l->lock);
    tb_routes_cable(tb, link->node, false);
    tb_routes_apply(tb);
    for (uint32_t i = 0; i < cables; i++) {
        tb_watch_abandon(tb, l->cables[i]);
        tb_cable_close(l->cables[i]);
    }
    base_spin_lock(&l->lock);
    if (end)
        tb_peer_end(&l->peer, -ECONNRESET);
    atomic_store_explicit(&l->due, INT64_MAX, memory_order_relaxed);
    base_spin_unlock(&l->lock);
    base_spin_unlock(&tb->receiving);
}

static void tb_release(struct weft *w, struct fab_link *link)
{
    struct tb *tb = w->tb;
    struct tb_link *l = link->impl;
    if (!l)
        return;
    tb_disconnect(w, link);
    base_spin_lock(&tb->receiving); /* who ends with a signal looks at the links (ending.c) */
    __atomic_store_n(&tb->links[link->node], NULL, __ATOMIC_RELEASE);
    base_spin_unlock(&tb->receiving);
    stash_clear(&l->stash);
    free(l->inbox);
    free(l);
    link->impl = NULL;
}

/* --- the rest of the table --- */

static void *tb_pointer(struct weft *w, struct fab_link *l, uint64_t offset)
{
    (void)w;
    (void)l;
    (void)offset;
    return NULL;
}

/* What changes memory and may have sleepers at the other end comes as a frame, which wakes them. */
static void tb_wake(struct weft *w, struct fab_link *l)
{
    (void)w;
    (void)l;
}

static void tb_stat(struct weft *w, struct fab_link *link, weft_link_stats *out)
{
    struct tb_link *l = link->impl;
    struct tb *tb = w->tb;
    base_spin_lock(&tb->receiving); /* cables come, go and move with it */
    base_spin_lock(&l->lock);
    const struct tb_stream_counts *s = &l->peer.stream.counts;
    const struct tb_bulk_counts *b = &l->peer.bulk.counts;
    out->staged_puts = l->peer.counts.staged_puts;
    out->staged_gets = l->peer.counts.staged_gets;
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
    out->frames_sent = s->frames;
    out->frames_again = s->again;
    out->frames_received = s->received;
    out->frames_damaged = s->damaged;
    out->bulk_sent_bytes = b->sent_bytes;
    out->bulk_came_bytes = b->came_bytes;
    out->bulk_wrong = b->wrong;
    out->bulk_repairs = b->repairs;
    base_spin_unlock(&l->lock);
    base_spin_unlock(&tb->receiving);
}

const struct fab_transport fab_tb = {
    .name = "tb",
    .open = tb_open,
    .close = tb_close,
    .reaches = tb_reaches,
    .connect = tb_connect,
    .broken = tb_broken,
    .last_words = tb_last_words,
    .disconnect = tb_disconnect,
    .release = tb_release,
    .put = tb_put,
    .get = tb_get,
    .atomic = tb_atomic,
    .put_signal = tb_put_signal,
    .send = tb_send,
    .flushed = tb_flushed,
    .fence = tb_fence,
    .service = tb_service,
    .progress = tb_progress,
    .idle = tb_idle,
    .pointer = tb_pointer,
    .wake = tb_wake,
    .stat = tb_stat,
    .fd = tb_fd,
    .woken = tb_woken,
    .side = tb_side,
    .upkeep = tb_upkeep,
    .settle = tb_settle,
    .needed = tb_needed,
};
