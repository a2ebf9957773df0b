/* SPDX-License-Identifier: MIT
 *
 * Cables that are pulled and plugged in again.
 *
 * No event reports a pulled cable, and the device's driver may then access freed memory. So ports are queried often, and also before
 * arrived frames are handled. A node that finds a cable gone tells the other node. The cable's queue pairs are destroyed, and pending data
 * takes another route, or waits.
 *
 * Then the lower-numbered node leads the search, on all ports without a cable, because the cable may have been plugged in elsewhere. It
 * makes queue pairs of the next generation on one of its ports, and sends their addresses. The other node tries to connect each of its own
 * ports, which works only for the port at the other end of the cable. If one works, that node posts its receives, sends its addresses, and
 * reports that it is ready. The leader then connects, too, posts its receives, and reports that it is ready. If none works, the leader
 * tries its next port later. A node sends over the cable when the other node is ready.
 */
#include "fabric/tb/tb.h"

#include <string.h>

#define AGAIN     (200 * WEFT_MS) /* the pause after the first failed attempt to rebuild a cable */
#define AGAIN_MAX (8 * AGAIN)
#define PORTS     WEFT_SECOND /* while a cable is missing, the time between two queries of ports that were down at the start */

enum cable_word { CABLE_DOWN = 1, CABLE_ADDRESS, CABLE_READY };

struct cable_message {
    uint16_t kind;                     /* TB_SIDE_CABLE */
    uint8_t word, cable, queue, count; /* CABLE_ADDRESS: queue: index of the queue pair (0: control); count: number of queue pairs */
    uint16_t generation;
    struct verbs_address address;
};
_Static_assert(sizeof(struct cable_message) <= FAB_SIDE_MESSAGE_MAX, "fits one message");

/* The cable's index in the link. Both nodes use the same index. */
static uint8_t watch_place(const struct tb_link *l, const struct tb_cable *c)
{
    uint8_t i = 0;
    while (i < l->cable_count && l->cables[i] != c)
        i++;
    return i;
}

static bool watch_tell(struct tb_link *l, const struct tb_cable *c, enum cable_word word, uint32_t queue)
{
    struct cable_message m = {.kind = TB_SIDE_CABLE,
                              .word = (uint8_t)word,
                              .cable = watch_place(l, c),
                              .queue = (uint8_t)queue,
                              .count = (uint8_t)(1 + c->tb->lane_count),
                              .generation = c->generation};
    if (word == CABLE_ADDRESS)
        m.address = queue ? c->lanes[queue - 1].here : c->control.here;
    return fab_side_send(l->r.link, &m, sizeof m) == 0;
}

void tb_watch_abandon(struct tb *tb, struct tb_cable *c)
{
    struct tb_link *l = tb_link_of(tb, c->node);
    c->was = c->ready ? c->device : c->was;
    if (l) {
        base_spin_lock(&l->r.lock);
        bool had = c->lane_count && c->ready;
        base_spin_lock(&c->lock);
        c->ready = false;
        base_spin_unlock(&c->lock);
        /* First destroy the lanes' queue pairs, while this thread holds the link's lock, so that no other thread posts. From then on the
         * device writes nothing into the memory for pieces that are requested again below. */
        tb_cable_lanes_down(c);
        for (uint32_t i = 0; i < tb->lane_count && had && !l->r.closed; i++)
            tb_endpoint_lane_down(&l->r.endpoint, c->lane_base + i);
        bool other = !l->r.closed && tb_link_cable(l);
        base_spin_unlock(&l->r.lock);
        tb_routes_cable(tb, c->node, other);
        tb_routes_apply(tb); /* no node sends over this cable from here on */
    }
    tb_cable_down(c);
    c->building = c->connected = c->peer_ready = false;
    c->got = 0;
    tb_routes_release(tb, c);
    memset(c->held, 0, sizeof c->held); /* frames that arrived over this cable are still being forwarded, but their receives are gone */
    c->held_count = 0;
    for (; c->flight_out != c->flight_in; c->flight_out++) {
        struct tb_link *of = tb_link_of(tb, c->flight[c->flight_out % TB_SENDS].whose);
        if (c->flight[c->flight_out % TB_SENDS].passed_on || !of)
            continue;
        base_spin_lock(&of->r.lock);
        if (!of->r.closed)
            tb_endpoint_left(&of->r.endpoint, c->flight[c->flight_out % TB_SENDS].slot);
        of->touched = true;
        base_spin_unlock(&of->r.lock);
    }
}

static void watch_lost(struct tb *tb, struct tb_cable *c, const char *why)
{
    base_log(BASE_LOG_WARN, "the cable on %s to node %u has failed: %s; weft uses it again when it is back", c->device->d->name, c->node,
             why);
    tb_watch_abandon(tb, c);
    c->say_down = true;
    c->again_at = 0;
    c->patience = AGAIN;
    c->next = (uint32_t)(c->device - tb->devices);
    fab_kick(tb->w);
}

static void watch_fail(struct tb_cable *c, int64_t now);

void tb_watch(struct tb *tb, struct tb_device *d, int64_t now, int64_t at_most)
{
    bool joins = false, down = atomic_load_explicit(&d->down, memory_order_relaxed);
    if (!down && now - atomic_load_explicit(&d->looked_at, memory_order_relaxed) < at_most)
        return;
    atomic_store_explicit(&d->looked_at, now, memory_order_relaxed);
    if (!down && verbs_port_up(d->d))
        return;
    for (uint32_t i = 0; i < tb->cable_count; i++) {
        struct tb_cable *c = tb->cables[i];
        if (!c || c->device != d)
            continue;
        if (c->ready) {
            watch_lost(tb, c, "its port is down");
        } else if (c->building) {
            base_fail(-ENETDOWN, "its port is down");
            watch_fail(c, now);
        } else {
            joins = joins || c->open; /* connect.c is still making this cable: keep d->down set, to take it down when it is ready */
        }
    }
    atomic_store_explicit(&d->down, joins, memory_order_relaxed);
}

/* --- rebuilding --- */

static void watch_later(struct tb_cable *c, int64_t now)
{
    c->again_at = now + c->patience;
    c->patience = 2 * c->patience < AGAIN_MAX ? 2 * c->patience : AGAIN_MAX;
}

static void watch_fail(struct tb_cable *c, int64_t now)
{
    base_log(BASE_LOG_INFO, "the cable on %s to node %u does not connect yet: %s", c->device->d->name, c->node, base_error());
    /* more than tb_cable_down(), because frames that arrived over this cable may still be held for forwarding */
    tb_watch_abandon(c->tb, c);
    c->say_down = true;
    watch_later(c, now);
}

/* Whether the cable may be plugged into this port now. If the hostfile names the cable's port, only that port is possible. */
static bool watch_candidate(struct tb *tb, const struct tb_cable *c, struct tb_device *d)
{
    if (d != c->device && (tb->w->towards || d->d->traits.link != VERBS_THUNDERBOLT || c->device->d->traits.link != VERBS_THUNDERBOLT))
        return false;
    for (uint32_t i = 0; i < tb->cable_count; i++)
        if (tb->cables[i] && tb->cables[i] != c && tb->cables[i]->device == d && d->d->traits.link == VERBS_THUNDERBOLT &&
            (tb->cables[i]->ready || tb->cables[i]->building))
            return false;
    return verbs_port_up(d->d);
}

static bool watch_leads(const struct tb *tb, const struct tb_cable *c)
{
    return tb->w->rank < c->node;
}

static void watch_open_up(struct tb *tb, struct tb_link *l, struct tb_cable *c)
{
    c->building = false;
    base_spin_lock(&l->r.lock);
    c->ready = true;
    for (uint32_t i = 0; i < c->lane_count; i++)
        tb_endpoint_lane_up(&l->r.endpoint, c->lane_base + i, c->generation);
    l->touched = true;
    base_spin_unlock(&l->r.lock);
    tb_routes_cable(tb, c->node, true);
    tb_routes_apply(tb);
    if (c->was && c->was != c->device)
        base_log(BASE_LOG_WARN, "the cable to node %u is back: it is now on device %s, and was on %s before", c->node, c->device->d->name,
                 c->was->d->name);
    else
        base_log(BASE_LOG_WARN, "the cable on %s to node %u is back", c->device->d->name, c->node);
}

static int watch_connect_all(struct tb_cable *c)
{
    int err = verbs_qp_connect(&c->control, &c->theirs[0]);
    for (uint32_t i = 0; i < c->lane_count && !err; i++)
        err = verbs_qp_connect(&c->lanes[i], &c->theirs[1 + i]);
    return err ? err : tb_cable_start(c);
}

static bool watch_tell_addresses(struct tb *tb, struct tb_link *l, struct tb_cable *c)
{
    bool told = true;
    for (uint32_t i = 0; i <= tb->lane_count && told; i++)
        told = watch_tell(l, c, CABLE_ADDRESS, i);
    return told;
}

/* The leader proposes one of its ports. */
static void watch_propose(struct tb *tb, struct tb_link *l, struct tb_cable *c, struct tb_device *device, int64_t now)
{
    c->generation++;
    c->got = 0;
    c->connected = c->peer_ready = false;
    c->building = tb_cable_remake(c, device) == 0;
    c->again_at = now;
    if (!c->building || !watch_tell_addresses(tb, l, c))
        watch_fail(c, now);
}

/* Answers a complete proposal of the leader: tries this node's ports until one connects, which is the other end of the cable. */
static void watch_answer(struct tb *tb, struct tb_link *l, struct tb_cable *c, int64_t now)
{
    uint32_t first = (uint32_t)(c->device - tb->devices);
    for (uint32_t k = 0; k < tb->device_count; k++) {
        struct tb_device *d = &tb->devices[(first + k) % tb->device_count];
        if (!watch_candidate(tb, c, d))
            continue;
        if (tb_cable_remake(c, d) == 0 && watch_connect_all(c) == 0) {
            c->building = c->connected = true;
            c->again_at = now;
            if (!watch_tell_addresses(tb, l, c) || !watch_tell(l, c, CABLE_READY, 0))
                watch_fail(c, now);
            return;
        }
        base_log(BASE_LOG_INFO, "the cable to node %u cannot use device %s: %s", c->node, d->d->name, base_error());
        tb_cable_down(c);
    }
    tb_watch_abandon(tb, c);
    c->say_down = true;
    fab_kick(tb->w);
}

static void watch_go_on(struct tb *tb, struct tb_link *l, struct tb_cable *c, int64_t now)
{
    if (c->got == (1u << (1 + tb->lane_count)) - 1 && !c->connected) {
        if (!watch_leads(tb, c)) {
            watch_answer(tb, l, c, now);
        } else if (watch_connect_all(c) || !watch_tell(l, c, CABLE_READY, 0)) {
            watch_fail(c, now);
        } else {
            c->connected = true;
        }
    }
    if (c->building && c->connected && c->peer_ready)
        watch_open_up(tb, l, c);
}

/* The next port to try for this cable, beginning with its last port. */
static struct tb_device *watch_next_port(struct tb *tb, struct tb_cable *c)
{
    for (uint32_t k = 0; k < tb->device_count; k++) {
        uint32_t i = (c->next + k) % tb->device_count;
        if (!watch_candidate(tb, c, &tb->devices[i]))
            continue;
        c->next = i + 1;
        return &tb->devices[i];
    }
    return NULL;
}

void tb_watch_upkeep(struct tb *tb, int64_t now)
{
    for (uint32_t i = 0; i < tb->cable_count; i++) {
        struct tb_cable *c = tb->cables[i];
        struct tb_link *l = c ? tb_link_of(tb, c->node) : NULL;
        if (!l || c->ready || !fab_alive(tb->w, c->node))
            continue;
        if (!tb->w->towards && now - tb->ports_at >= PORTS) {
            tb->ports_at = now;
            tb_devices_again(tb);
        }
        if (c->say_down)
            c->say_down = !watch_tell(l, c, CABLE_DOWN, 0);
        if (c->building && now >= c->again_at + 10 * AGAIN && !verbs_port_up(c->device->d)) {
            base_fail(-ENETDOWN, "its port is down");
            watch_fail(c, now);
        }
        struct tb_device *d = watch_leads(tb, c) && !c->building && !c->say_down && now >= c->again_at ? watch_next_port(tb, c) : NULL;
        if (d)
            watch_propose(tb, l, c, d, now);
    }
}

void tb_watch_heard(struct tb *tb, struct tb_link *l, const void *bytes, size_t len)
{
    struct cable_message m;
    int64_t now = base_now_ns();
    if (len != sizeof m)
        return; /* invalid */
    memcpy(&m, bytes, len);
    if (m.cable >= l->cable_count || m.count != 1 + tb->lane_count || m.queue >= m.count)
        return;
    struct tb_cable *c = l->cables[m.cable];
    int16_t newer = (int16_t)(m.generation - c->generation);
    switch (m.word) {
    case CABLE_DOWN:
        if (newer < 0)
            return;
        if (c->ready || c->building) {
            if (c->ready) {
                base_log(BASE_LOG_WARN, "the cable on %s to node %u has failed, as that node reports; weft uses it again when it is back",
                         c->device->d->name, c->node);
                c->patience = AGAIN;
                c->next = (uint32_t)(c->device - tb->devices);
            }
            tb_watch_abandon(tb, c);
            watch_later(c, now);
        }
        c->generation = m.generation;
        return;
    case CABLE_ADDRESS:
        if (newer < 0 || !verbs_address_valid(&m.address) || (newer > 0 && watch_leads(tb, c)) || (watch_leads(tb, c) && !c->building))
            return;
        if (newer > 0) { /* a new proposal of the leader, which replaces its earlier ones */
            if (c->ready || c->building)
                tb_watch_abandon(tb, c);
            c->generation = m.generation;
            c->say_down = false;
            c->got = 0;
        }
        if (!watch_leads(tb, c) && (c->building || c->ready))
            return;
        c->theirs[m.queue] = m.address;
        c->got |= 1u << m.queue;
        break;
    case CABLE_READY:
        if (newer != 0 || !c->building)
            return;
        c->peer_ready = true;
        break;
    default: return;
    }
    watch_go_on(tb, l, c, now);
}
