/* SPDX-License-Identifier: MIT
 *
 * Makes queue pairs when they are needed. The two nodes agree on each one over the side connection. All of this runs on the progress
 * thread.
 *
 *   RC_COLD       no queue pair
 *   RC_CALLING    our queue pair is made, and its address was sent to the peer
 *   RC_CONNECTED  our queue pair is connected to the peer's, and the peer was told
 *   RC_UP         the peer has reported that its queue pair is connected, too: requests may be posted
 *
 * Either end may begin, or both at once. A call (RC_CALL) carries the address of the sender's queue pair, and says whether that queue pair
 * is connected to the receiver's. A node that has sent its call earlier reports with RC_READY that it is connected:
 *
 *   one begins: call ->, <- call (connected), ready ->        both begin: call -> <- call, ready -> <- ready
 *
 * A generation is one attempt at a queue pair, with the same number at both ends. The node that begins uses the next number, and the other
 * node adopts it. A call of a lower generation is ignored. A call of a higher generation ends the existing queue pair.
 *
 * A queue pair breaks when a request or a receive fails, when a request never completes, or when the peer calls for a newer one. If
 * w->options.reconnect_ns is 0, the peer is then treated as dead. Otherwise a new queue pair is called for at once, and then at growing
 * intervals, until reconnect_ns has passed; then the peer is treated as dead. The time during which a call is not answered does not count
 * towards reconnect_ns, because heartbeats decide whether the peer is alive (peer.c).
 */
#include "fabric/rc/rails.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_MAGIC     UINT64_C(0x7765667463613032) /* "weftca02" */
#define LEAVE_NS       (100 * WEFT_MS)              /* how long to wait for the device to report that a queue pair takes no more receives */
#define RETRY_FIRST_NS (5 * WEFT_MS)
#define RETRY_DOUBLED  7 /* maximum number of doublings of the interval: 640 ms */

enum call_kind { RC_CALL = 1, RC_READY, RC_FAILED, RC_QUESTION, RC_REPLY };

/* A message over the side connection. The receiver checks all fields. */
struct rc_call {
    uint64_t magic;
    uint32_t kind, generation;
    uint32_t connected; /* RC_CALL: the sender's queue pair is connected to the receiver's */
    uint32_t reserved;
    /* RC_CALL: how many of the receiver's frames have arrived (received) and were processed (taken), over all earlier queue pairs */
    uint32_t received[RC_LANES], taken[RC_LANES];
    struct verbs_address address; /* RC_CALL */
    char text[256];               /* RC_FAILED: the reason */
};

_Static_assert(sizeof(struct rc_call) <= FAB_SIDE_MESSAGE_MAX, "fits into a message of the side connection");

/* --- queue pair --- */

/* Makes the queue pair of the link's generation, and posts its receives. */
static int connect_make(struct rc_link *l)
{
    struct rc *rc = l->rc;
    struct verbs_qp qp;
    if (!l->depth && rc->peers == rc->peers_max)
        return base_fail(-ENOSPC,
                         "device %s: its completion queues have room for only %u peers; use another device (WEFT_DEVICE), or fewer nodes",
                         rc->device->name, rc->peers_max);
    int err = rc_receives_for(l);
    if (err)
        return err;
    uint32_t data = rc->device->traits.inline_bytes;
    struct verbs_qp_options options = {
        .type = IBV_QPT_RC,
        .send_cq = rc->cq,
        .recv_cq = rc->cq,
        .srq = rc->receives.srq,
        .send_depth = RC_SEND_DEPTH,
        .recv_depth = RC_RECEIVES,
        .sge = 1,
        .inline_bytes = data < RC_INLINE_MAX ? data : RC_INLINE_MAX,
    };
    err = verbs_qp_create(&qp, rc->device, &options);
    if (err)
        return err;
    int64_t theirs_ns = l->link->liveness_ns, ours_ns = l->w->options.liveness_ns;
    qp.timeout = rc_retry_time(&qp, theirs_ns > ours_ns ? theirs_ns : ours_ns, l->w->options.reconnect_ns);
    if (l->depth && (qp.send_depth < l->depth || qp.inline_bytes < l->inline_bytes)) {
        verbs_qp_destroy(&qp);
        return base_fail(-EIO, "device %s: the new queue pair has room for fewer requests or inline bytes than the one before",
                         rc->device->name);
    }
    if (!l->depth) {
        uint32_t depth = RC_SEND_DEPTH;
        while (depth > 1 && depth > qp.send_depth)
            depth /= 2;
        free(l->slots);
        free(l->kept);
        l->slots = calloc(depth, sizeof *l->slots);
        l->kept = calloc(RC_LANES * RC_WINDOW, sizeof *l->kept);
        l->depth = l->slots && l->kept ? depth : 0;
        l->inline_bytes = qp.inline_bytes < RC_INLINE_MAX ? qp.inline_bytes : RC_INLINE_MAX;
        rc->peers += l->depth != 0;
    }
    if (!l->depth) {
        verbs_qp_destroy(&qp);
        return base_fail(-ENOMEM, "rc: no memory for a send queue of %u requests" BASE_MEMORY_HINT, RC_SEND_DEPTH);
    }
    base_spin_lock(&rc->receiving); /* l->qp is used by handlers of completions, which hold this lock */
    base_spin_lock(&l->lock);
    l->qp = qp;
    l->proved = false;
    err = rc_receives_post_locked(l);
    base_spin_unlock(&l->lock);
    base_spin_unlock(&rc->receiving);
    return err;
}

/* Whether the device has reported that this queue pair takes no more receives. The device may report about other queue pairs first. */
static bool connect_has_ended(struct rc_link *l)
{
    struct rc *rc = l->rc;
    struct ibv_context *context = rc->device->context;
    struct pollfd p = {.fd = context->async_fd, .events = POLLIN};
    struct ibv_async_event e;
    while (poll(&p, 1, 0) > 0 && rc->device->lib->get_async_event(context, &e) == 0) {
        for (uint32_t i = 0; e.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && i < rc->count; i++)
            if (rc->links[i]->qp.qp == e.element.qp)
                atomic_store_explicit(&rc->links[i]->ended, true, memory_order_relaxed);
        rc->device->lib->ack_async_event(&e);
    }
    return atomic_load_explicit(&l->ended, memory_order_relaxed);
}

/* Destroying a queue pair loses its completions, and with them the receives that it took from the shared queue. So stop the queue pair, and
 * handle its completions first. */
void rc_leave(struct rc_link *l)
{
    struct rc *rc = l->rc;
    if (!rc->receives.srq || !l->qp.qp)
        return;
    int64_t until = base_deadline(LEAVE_NS);
    int err = verbs_qp_stop(&l->qp);
    bool ended = connect_has_ended(l);
    while (!err && !ended && base_now_ns() < until) {
        struct pollfd p = {.fd = rc->device->context->async_fd, .events = POLLIN};
        poll(&p, 1, 10);
        ended = connect_has_ended(l);
    }
    rc_take_all(rc);
    if (!ended) { /* this queue pair's receives may be lost: add as many new receives */
        err = rc_receives_add(rc);
        base_log(err ? BASE_LOG_WARN : BASE_LOG_INFO,
                 "device %s does not report LAST_WQE_REACHED for a broken queue pair, so each connection that breaks may cost some receive "
                 "buffers%s%s",
                 rc->device->name, err ? ": " : "", err ? base_error() : "");
    }
}

static void connect_drop(struct rc_link *l)
{
    rc_leave(l);
    rc_take_all(l->rc);
    base_spin_lock(&l->rc->receiving);
    base_spin_lock(&l->lock);
    l->up = l->lost = false;
    verbs_qp_destroy(&l->qp);
    memset(&l->qp, 0, sizeof l->qp);
    base_spin_unlock(&l->lock);
    base_spin_unlock(&l->rc->receiving);
    l->state = RC_COLD;
}

static int connect_say(struct rc_link *l, enum call_kind kind, const char *text)
{
    struct rc_call m = {.magic = CALL_MAGIC, .kind = kind, .generation = l->generation, .connected = l->state == RC_CONNECTED};
    if (kind == RC_CALL) {
        base_spin_lock(&l->lock);
        m.address = l->qp.here;
        m.received[RC_MAIN] = l->lane[RC_MAIN].taken;
        m.received[RC_MESSAGES] = atomic_load_explicit(&l->inbox_in, memory_order_relaxed); /* final: no queue pair receives now */
        for (int i = 0; i < RC_LANES; i++)
            m.taken[i] = l->lane[i].told = l->lane[i].taken;
        base_spin_unlock(&l->lock);
    }
    if (text)
        snprintf(m.text, sizeof m.text, "%s", text);
    return fab_side_send(l->link, &m, sizeof m);
}

/* An attempt failed, for the reason `why`. Schedules the next attempt, or treats the peer as dead. */
static void connect_failed(struct rc_link *l, const char *why)
{
    int64_t now = base_now_ns(), limit = l->w->options.reconnect_ns;
    if (l->state != RC_COLD)
        connect_drop(l);
    base_spin_lock(&l->lock);
    bool wanted = l->wanted;
    base_spin_unlock(&l->lock);
    if (!wanted) /* this node does not need a queue pair; if the peer does, it will call again */
        return;
    if (l->since_ns == 0)
        l->since_ns = now;
    if (limit == 0) {
        rc_break(l, "%s", why);
    } else if (now - l->since_ns >= limit) {
        rc_break(l,
                 "%s; connecting again failed for %.1f s (WEFT_RECONNECT): check the host of that node, and the network that leads there",
                 why, (double)limit / 1e9);
    } else {
        l->retry_ns = l->tries == 0 ? now : now + (RETRY_FIRST_NS << (l->tries < RETRY_DOUBLED ? l->tries : RETRY_DOUBLED));
        l->tries++;
        base_log(BASE_LOG_DEBUG, "the link to node %u does not work yet, attempt %u: %s", l->link->node, l->tries, why);
    }
}

/* Called when a working queue pair has broken. */
static void lost(struct rc_link *l, const char *why)
{
    atomic_fetch_add_explicit(&l->breaks, 1, memory_order_relaxed);
    base_spin_lock(&l->lock);
    bool proved = l->proved;
    l->wanted = true;
    base_spin_unlock(&l->lock);
    if (proved || l->since_ns == 0) {
        l->since_ns = base_now_ns();
        l->tries = 0;
    }
    if (l->w->options.reconnect_ns && l->tries == 0)
        base_log(BASE_LOG_WARN,
                 "the link to node %u (pid %d on %s) broke: %s; weft tries to connect again, for at most the time of WEFT_RECONNECT",
                 l->link->node, l->link->pid, l->link->host, why);
    connect_failed(l, why);
}

static void look_for_loss(struct rc_link *l)
{
    char why[sizeof l->lost_why];
    base_spin_lock(&l->lock);
    bool is = l->lost && !l->closed;
    if (is)
        memcpy(why, l->lost_why, sizeof why);
    base_spin_unlock(&l->lock);
    if (is && l->state == RC_UP)
        lost(l, why);
    else if (is)
        connect_failed(l, why);
}

static void connect_up(struct rc_link *l)
{
    bool again = atomic_load_explicit(&l->breaks, memory_order_relaxed) > 0, sane = true;
    int err = 0;
    base_spin_lock(&l->lock);
    for (int i = 0; i < RC_LANES; i++) {
        const struct rc_queue *q = &l->lane[i];
        uint32_t out = q->sent - q->peer_taken, in = l->peer_received[i] - q->peer_taken, told = l->peer_told[i] - q->peer_taken;
        sane = sane && in <= out && told <= in;
    }
    if (sane)
        err = rc_gather_locked(l, l->peer_received);
    if (sane && !err) {
        for (int i = 0; i < RC_LANES; i++)
            rc_taken_locked(l, (enum rc_lane)i, l->peer_told[i]);
        l->up = !l->closed && !l->lost;
        l->stand = (struct rc_stand){.done = l->done, .looked_ns = base_now_ns()};
        l->wanted = false;
        l->proved = !rc_waits(l);
        rc_push_locked(l);
        rc_tell_locked(l, false); /* acknowledges frames that arrived before this end was RC_UP */
    }
    base_spin_unlock(&l->lock);
    if (!sane || err) {
        rc_break(l, "%s",
                 err ? base_error()
                     : "while connecting again, it reported an impossible number of received messages; run the same version of weft on all "
                       "hosts");
        return;
    }
    l->state = RC_UP;
    atomic_fetch_add_explicit(&l->connects, 1, memory_order_relaxed);
    base_log(again ? BASE_LOG_WARN : BASE_LOG_DEBUG, "the link to node %u %s: queue pair 0x%06x", l->link->node,
             again ? "works again" : "works", l->qp.here.qpn);
    /* From now on connect_tend() checks the link regularly. release: as in rc_look_again(). */
    atomic_store_explicit(&l->rc->attention, true, memory_order_release);
    fab_wake_here(l->w);
}

/* --- the steps --- */

/* Makes a queue pair of this generation. On failure, base_error() has the reason. */
static int connect_begin(struct rc_link *l, uint32_t generation)
{
    base_spin_lock(&l->rc->receiving); /* handlers of completions, which hold this lock, read the generation */
    base_spin_lock(&l->lock);
    l->generation = generation;
    base_spin_unlock(&l->lock);
    base_spin_unlock(&l->rc->receiving);
    l->called = false;
    l->state = RC_CALLING;
    return connect_make(l);
}

static void connect_call(struct rc_link *l)
{
    int err = connect_begin(l, l->generation + 1);
    if (!err)
        err = connect_say(l, RC_CALL, NULL);
    l->called = err == 0;
    l->called_ns = base_now_ns();
    if (err) {
        char why[512];
        snprintf(why, sizeof why, "%s", base_error());
        connect_failed(l, why);
    }
}

static void called(struct rc_link *l, const struct rc_call *m)
{
    int32_t ahead = (int32_t)(m->generation - l->generation);
    bool fits = ahead == 0 && (l->state == RC_COLD || l->state == RC_CALLING);
    /* An attempt that has failed at this end still shows that the peer wants a queue pair. */
    if (ahead < 0 && l->state == RC_COLD) {
        base_spin_lock(&l->lock);
        rc_want_locked(l);
        base_spin_unlock(&l->lock);
    }
    if (ahead < 0 || (ahead == 0 && !fits))
        return;
    if (ahead > 0 && l->state == RC_UP)
        lost(l, "the peer has given up the queue pair");
    else if (ahead > 0 && l->state != RC_COLD)
        connect_drop(l);
    if (atomic_load_explicit(&l->broken, memory_order_relaxed))
        return;
    if (l->state == RC_CALLING && l->since_ns)
        l->since_ns += base_now_ns() - l->called_ns;
    int err = l->state == RC_COLD ? connect_begin(l, m->generation) : 0;
    if (!err)
        err = verbs_qp_connect(&l->qp, &m->address);
    if (!err) {
        memcpy(l->peer_received, m->received, sizeof m->received);
        memcpy(l->peer_told, m->taken, sizeof m->taken);
        l->state = RC_CONNECTED;
        err = connect_say(l, l->called ? RC_READY : RC_CALL, NULL);
        l->called = true;
    }
    if (err) {
        char why[512];
        snprintf(why, sizeof why, "%s", base_error());
        (void)connect_say(l, RC_FAILED, why); /* if this cannot be sent, the peer goes on waiting, until the next call or this node's end */
        connect_failed(l, why);
    } else if (m->connected) {
        connect_up(l);
    }
}

static bool call_ok(const struct rc_call *m, size_t len)
{
    return len == sizeof *m && m->magic == CALL_MAGIC && m->connected <= 1 && memchr(m->text, 0, sizeof m->text) &&
           (m->kind == RC_READY || m->kind == RC_FAILED || m->kind == RC_QUESTION || m->kind == RC_REPLY ||
            (m->kind == RC_CALL && verbs_address_valid(&m->address)));
}

void rc_side(struct weft_node *w, struct fab_link *link, const void *bytes, size_t len)
{
    struct rc_link *l = link->impl;
    struct rc_call m;
    (void)w;
    if (rc_tracks_side(l, bytes, len))
        return;
    if (len == sizeof m)
        memcpy(&m, bytes, sizeof m);
    if (len != sizeof m || !call_ok(&m, len)) {
        rc_break(l, "it sent an invalid message about a queue pair; run the same version of weft on all hosts");
        return;
    }
    if (!l->closed)
        look_for_loss(l);
    if (l->closed || atomic_load_explicit(&l->broken, memory_order_relaxed))
        return;
    if (m.kind == RC_CALL) {
        called(l, &m);
    } else if (m.generation != l->generation) {
        return; /* the message is about an older queue pair */
    } else if (m.kind == RC_READY && l->state == RC_CONNECTED) {
        connect_up(l);
    } else if (m.kind == RC_QUESTION) {
        /* An error is ignored: it means that the peer does not read its side connection. Then the peer does not judge this node either. */
        (void)connect_say(l, RC_REPLY, NULL);
    } else if (m.kind == RC_REPLY && l->stand.asked && !l->stand.answered_ns) {
        l->stand.answered_ns = base_now_ns();
    } else if (m.kind == RC_FAILED && (l->state == RC_CALLING || l->state == RC_CONNECTED)) {
        char why[sizeof m.text + 32];
        for (char *c = m.text; *c; c++)
            *c = *c < ' ' || *c > '~' ? '?' : *c; /* the text will be written to logs and terminals */
        snprintf(why, sizeof why, "the peer reports: %s", m.text);
        connect_failed(l, why);
    }
}

/* Whether a pending request is a frame. A frame needs a posted receive, which a stopped or busy peer may lack. Reads and writes need only
 * the peer's device. */
static bool frames_wait(struct rc_link *l)
{
    for (uint64_t i = l->done; i < l->posted; i++) {
        enum rc_slot_kind kind = (enum rc_slot_kind)rc_slot_at(l, i)->kind;
        if (kind == RC_SLOT_FRAME || kind == RC_SLOT_TELL)
            return true;
    }
    return false;
}

static int64_t look_for_standstill(struct rc_link *l, int64_t now)
{
    struct rc_stand *s = &l->stand;
    bool ask = false;
    base_spin_lock(&l->lock);
    bool waits = l->up && l->signalled > l->done;
    if (rc_stands_still(s, &l->qp, waits, l->done, now)) {
        /* Ask the peer's progress thread: if it answers, the peer still posts receives, so a pending frame should complete. */
        ask = !s->asked && frames_wait(l);
        s->asked = s->asked || ask;
        if (!s->asked || (s->answered_ns && now - s->answered_ns > RC_STANDSTILL_LOOK))
            rc_lose_locked(l, RC_STANDSTILL, l->rc->device->name, (long long)(s->still_ns / WEFT_SECOND));
    } else if (l->up && !waits && l->posted > l->done && l->posted == l->posted_then) {
        /* no pending request has asked for a completion: post a read behind these requests, because its completion shows progress */
        rc_flush_locked(l);
    }
    l->posted_then = l->posted;
    base_spin_unlock(&l->lock);
    if (ask)
        s->asked = connect_say(l, RC_QUESTION, NULL) == 0;
    return l->state == RC_UP ? now + RC_STANDSTILL_LOOK : INT64_MAX;
}

/* Advances the state of a link. Returns when to call this again. */
static int64_t connect_tend(struct rc_link *l, int64_t now)
{
    if (l->closed || atomic_load_explicit(&l->broken, memory_order_relaxed))
        return INT64_MAX;
    int64_t standstill = look_for_standstill(l, now);
    look_for_loss(l);
    base_spin_lock(&l->lock);
    bool wanted = l->wanted;
    base_spin_unlock(&l->lock);
    if (l->state == RC_COLD && wanted && now >= l->retry_ns)
        connect_call(l);
    int64_t rails = rc_tracks_tend(l, now), own = l->state == RC_COLD && wanted ? l->retry_ns : standstill;
    return rails < own ? rails : own;
}

int64_t rc_upkeep(struct weft_node *w, int64_t now_ns)
{
    struct rc *rc = w->rc;
    /* acquire: pairs with the release in rc_look_again() */
    if (!atomic_exchange_explicit(&rc->attention, false, memory_order_acquire) && now_ns < rc->tend_ns)
        return rc->tend_ns == INT64_MAX ? INT64_MAX : rc->tend_ns - now_ns;
    rc->tend_ns = INT64_MAX;
    for (uint32_t i = 0; i < rc->count; i++) {
        int64_t at = connect_tend(rc->links[i], now_ns);
        rc->tend_ns = at < rc->tend_ns ? at : rc->tend_ns;
    }
    return rc->tend_ns == INT64_MAX ? INT64_MAX : rc->tend_ns > now_ns ? rc->tend_ns - now_ns : 0;
}
