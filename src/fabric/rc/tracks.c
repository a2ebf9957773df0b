/* SPDX-License-Identifier: MIT
 *
 * Tracks: the queue pairs between two nodes on their further rails. Everything here runs on the progress thread.
 *
 * The node with the lower rank is the leader. It chooses a rail of the peer for each of its own further rails: among those that no other
 * track uses, the one with the most similar address. If the track cannot be set up, the leader tries the next rail.
 *
 *   leader      OFF -- offer -> ASKED   <- accept -- PROVING (a read of the peer's memory)   -- ready -> UP
 *   follower    OFF                      ACCEPTED                                                         UP
 *
 * An end that finds a track broken destroys its queue pair, and sends RAIL_GONE. The other end destroys its queue pair, and answers with
 * RAIL_OVER. Only then are the track's pieces repeated over the first rail, because a late write of the old queue pair could overwrite
 * later data. Then the leader tries again, at growing intervals.
 *
 * Generations are as in connect.c; the leader counts them.
 */
#include "fabric/rc/rails.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_MAGIC     UINT64_C(0x77656674726c3031) /* "weftrl01" */
#define RETRY_FIRST_NS (20 * WEFT_MS)
#define RETRY_DOUBLED  8 /* maximum number of doublings of the interval: 5 s */

enum rail_call_kind { RAIL_OFFER = 1, RAIL_ACCEPT, RAIL_READY, RAIL_REFUSED, RAIL_GONE, RAIL_OVER };

/* A message over the side connection. The receiver checks all fields. */
struct rail_call {
    uint64_t magic;
    uint32_t kind, track, generation;
    uint32_t rail, your_rail; /* RAIL_OFFER: the rails of the sender and of the receiver */
    uint32_t reserved;
    struct verbs_address address; /* RAIL_OFFER, RAIL_ACCEPT */
    char text[256];               /* RAIL_REFUSED, RAIL_GONE: the reason */
};

_Static_assert(sizeof(struct rail_call) <= FAB_SIDE_MESSAGE_MAX, "fits into a message of the side connection");

static bool leads(const struct rc_link *l)
{
    return l->w->rank < l->link->node;
}

static int tracks_say(struct rc_link *l, const struct rc_track *t, enum rail_call_kind kind, uint32_t generation, const char *text)
{
    struct rail_call m = {.magic = CALL_MAGIC,
                          .kind = kind,
                          .track = rc_track_number(l, t),
                          .generation = generation,
                          .rail = t->rail,
                          .your_rail = t->peer_rail};
    if (kind == RAIL_OFFER || kind == RAIL_ACCEPT)
        m.address = t->qp.here;
    if (text)
        snprintf(m.text, sizeof m.text, "%s", text);
    return fab_side_send(l->link, &m, sizeof m);
}

/* --- queue pair --- */

static int tracks_make(struct rc_link *l, struct rc_track *t, uint32_t generation)
{
    struct rc_rail *r = rc_rail_of(l, t);
    struct verbs_qp qp;
    if (!verbs_port_up(r->device))
        return base_fail(-ENETDOWN, "%s: port %u is down", r->device->name, r->device->port);
    if (r->tracks == r->tracks_max) {
        if (!r->full_said)
            base_log(BASE_LOG_WARN, "device %s has room for queue pairs to only %u nodes: it is not used to reach the others",
                     r->device->name, r->tracks_max);
        r->full_said = true;
        return base_fail(-ENOSPC, "%s: the device has no queue pair left", r->device->name);
    }
    struct verbs_qp_options options = {
        .type = IBV_QPT_RC, .send_cq = r->cq, .recv_cq = r->cq, .send_depth = 2 * RC_TRACK_DEPTH, .recv_depth = 1, .sge = 1};
    int err = verbs_qp_create(&qp, r->device, &options);
    if (err)
        return err;
    if (qp.send_depth < 2 * RC_TRACK_DEPTH) {
        verbs_qp_destroy(&qp);
        return base_fail(-ENOSPC, "%s: its queue pairs have room for %u requests, and %u are needed", r->device->name, qp.send_depth,
                         2 * RC_TRACK_DEPTH);
    }
    int64_t theirs_ns = l->link->liveness_ns, ours_ns = l->w->options.liveness_ns;
    qp.timeout = rc_retry_time(&qp, theirs_ns > ours_ns ? theirs_ns : ours_ns, 1); /* short, because other rails can carry the data */
    r->tracks++;
    base_spin_lock(&l->rc->receiving); /* handlers of completions, which hold this lock, read the generation */
    base_spin_lock(&l->lock);
    t->qp = qp;
    t->generation = generation;
    t->lost = t->proved = t->repeat = false;
    base_spin_unlock(&l->lock);
    base_spin_unlock(&l->rc->receiving);
    return 0;
}

static void tracks_drop(struct rc_link *l, struct rc_track *t)
{
    struct rc *rc = l->rc;
    base_spin_lock(&rc->receiving);
    for (int i = 0; i < 64 && t->qp.qp && rc_rails_poll(rc) > 0; i++)
        ;
    base_spin_lock(&l->lock);
    if (t->qp.qp) {
        rc_rail_of(l, t)->tracks--;
        atomic_fetch_sub_explicit(&rc_rail_of(l, t)->out, (uint32_t)(t->posted - t->done), memory_order_relaxed);
    }
    t->up = t->lost = false;
    verbs_qp_destroy(&t->qp);
    memset(&t->qp, 0, sizeof t->qp);
    rc_stripe_look(l);
    base_spin_unlock(&l->lock);
    base_spin_unlock(&rc->receiving);
}

/* Called when neither end has the track's queue pair any more. */
static void over(struct rc_link *l, struct rc_track *t)
{
    t->state = RC_TRACK_OFF;
    base_spin_lock(&l->lock);
    t->repeat = true;
    rc_stripe_refused(l, t);
    rc_push_locked(l);
    base_spin_unlock(&l->lock);
}

/* Schedules the next attempt, with the next rail of the peer. */
static void later(struct rc_link *l, struct rc_track *t, const char *why)
{
    uint32_t choices = l->tracks->peer_count;
    if (t->was_up && l->w->options.reconnect_ns == 0)
        t->retry_ns = INT64_MAX;
    else /* try at once, while there are rails of the peer that were not tried */
        t->retry_ns =
            base_now_ns() + (t->tries + 1 < choices ? 0 : RETRY_FIRST_NS << (t->tries < RETRY_DOUBLED ? t->tries : RETRY_DOUBLED));
    t->tries++;
    if (!t->was_up && t->tries >= choices && !t->said) {
        t->said = true;
        base_log(BASE_LOG_WARN, "device %s is not used to reach node %u (pid %d on %s): %s; set WEFT_RAILS to choose the devices",
                 rc_rail_of(l, t)->device->name, l->link->node, l->link->pid, l->link->host, why);
    }
    base_log(BASE_LOG_DEBUG, "device %s does not reach node %u yet, attempt %u: %s", rc_rail_of(l, t)->device->name, l->link->node,
             t->tries, why);
}

static void tracks_report(struct rc_link *l, struct rc_track *t, const char *why)
{
    if (t->state != RC_TRACK_UP)
        return;
    atomic_fetch_add_explicit(&l->tracks->breaks, 1, memory_order_relaxed);
    base_log(BASE_LOG_WARN,
             "device %s has lost its connection to node %u (pid %d on %s): %s; the other devices still connect the two nodes",
             rc_rail_of(l, t)->device->name, l->link->node, l->link->pid, l->link->host, why);
}

static void tracks_leave(struct rc_link *l, struct rc_track *t, const char *text)
{
    char why[256];
    snprintf(why, sizeof why, "%s", text); /* copied, because `text` may be base_error() or a field of the track */
    tracks_report(l, t, why);
    tracks_drop(l, t);
    t->state = RC_TRACK_LEAVING;
    t->owes_gone = tracks_say(l, t, RAIL_GONE, t->generation, why) != 0;
    later(l, t, why);
}

static void tracks_up(struct rc_link *l, struct rc_track *t)
{
    bool again = t->was_up;
    t->state = RC_TRACK_UP;
    t->was_up = true;
    t->tries = 0;
    base_spin_lock(&l->lock);
    t->up = !t->lost && !l->closed;
    rc_stripe_look(l);
    base_spin_unlock(&l->lock);
    base_log(again || t->said ? BASE_LOG_WARN : BASE_LOG_DEBUG, "device %s reaches node %u%s: queue pair 0x%06x",
             rc_rail_of(l, t)->device->name, l->link->node, again ? " again" : "", t->qp.here.qpn);
}

/* --- leader --- */

/* The number of leading bits that two addresses share, at most 120. 120 bits are a /24 of IPv4-mapped addresses, so all addresses of a
 * subnet are equally similar. */
static uint32_t alike(const uint8_t *a, const uint8_t *b)
{
    uint32_t n = 0;
    while (n < 120 && (a[n / 8] >> (7 - n % 8) & 1) == (b[n / 8] >> (7 - n % 8) & 1))
        n++;
    return n;
}

static bool is_used(const struct rc_link *l, const struct rc_track *but, bool ours, uint32_t number)
{
    for (uint32_t i = 0; i < RC_TRACKS; i++) {
        const struct rc_track *t = &l->tracks->track[i];
        if (t != but && t->state != RC_TRACK_OFF && (ours ? t->rail : t->peer_rail) == number)
            return true;
    }
    return false;
}

/* Chooses the rail of the peer to try: first the best one, then the second best, and so on. */
static bool tracks_choose(const struct rc_link *l, struct rc_track *t)
{
    const struct rc_tracks *tracks = l->tracks;
    const uint8_t *own = rc_rail_of(l, t)->device->chosen.gid.raw.raw;
    uint32_t order[RC_TRACKS], n = 0;
    for (uint32_t i = 0; i < tracks->peer_count; i++)
        if (!is_used(l, t, false, i))
            order[n++] = i;
    for (uint32_t i = 1; i < n; i++) /* sort by similarity; among equals, the rail with the same index comes first */
        for (uint32_t k = i; k > 0; k--) {
            uint32_t a = order[k - 1], b = order[k];
            uint32_t of_a = alike(own, tracks->peer[a].gid) * 2 + (a == t->rail),
                     of_b = alike(own, tracks->peer[b].gid) * 2 + (b == t->rail);
            if (of_a >= of_b)
                break;
            order[k - 1] = b;
            order[k] = a;
        }
    if (n)
        t->peer_rail = order[t->tries % n];
    return n > 0;
}

/* Returns when to try to set up this track; INT64_MAX: not before some event, whose handler calls this again. Tracks are negotiated one at
 * a time, because two tracks that each need the other's rail would block each other. */
static int64_t due(const struct rc_link *l, struct rc_track *t, int64_t now)
{
    bool may = leads(l) && l->state == RC_UP && t->state == RC_TRACK_OFF;
    for (uint32_t i = 0; i < RC_TRACKS; i++)
        may = may && l->tracks->track[i].state != RC_TRACK_ASKED && l->tracks->track[i].state != RC_TRACK_PROVING;
    if (!may || !tracks_choose(l, t))
        return INT64_MAX;
    return t->posted == t->done ? t->retry_ns : now + RETRY_FIRST_NS;
}

static void offer(struct rc_link *l, struct rc_track *t)
{
    int err = tracks_make(l, t, t->generation + 1);
    if (!err) {
        t->state = RC_TRACK_ASKED;
        err = tracks_say(l, t, RAIL_OFFER, t->generation, NULL);
    }
    if (err) {
        later(l, t, base_error());
        tracks_drop(l, t);
        t->state = RC_TRACK_OFF;
    }
}

static void tracks_tend(struct rc_link *l, struct rc_track *t, int64_t now)
{
    char why[256] = "";
    base_spin_lock(&l->lock);
    if (rc_stands_still(&t->stand, &t->qp, t->qp.qp && !t->lost && t->posted != t->done, t->done, now))
        rc_track_lose_locked(l, t, RC_STANDSTILL, rc_rail_of(l, t)->device->name, (long long)(t->stand.still_ns / WEFT_SECOND));
    bool lost = t->lost, proved = t->proved;
    (void)rc_stripe_drained(l, t);
    if (lost)
        memcpy(why, t->why, sizeof why);
    base_spin_unlock(&l->lock);
    if (t->owes_gone)
        t->owes_gone = tracks_say(l, t, RAIL_GONE, t->generation, "the other node no longer uses this pair of devices") != 0;
    if (t->owes_over)
        t->owes_over = tracks_say(l, t, RAIL_OVER, t->over_generation, NULL) != 0;
    if (lost && t->state != RC_TRACK_OFF && t->state != RC_TRACK_LEAVING) {
        tracks_leave(l, t, why);
    } else if (t->state == RC_TRACK_PROVING && proved) {
        if (tracks_say(l, t, RAIL_READY, t->generation, NULL))
            tracks_leave(l, t, base_error());
        else
            tracks_up(l, t);
    } else if (now >= due(l, t, now)) {
        offer(l, t);
    }
}

int64_t rc_tracks_tend(struct rc_link *l, int64_t now)
{
    int64_t next = INT64_MAX;
    for (uint32_t i = 0; l->tracks && i < RC_TRACKS; i++) {
        struct rc_track *t = &l->tracks->track[i];
        if (leads(l) ? i >= l->rc->rails->count : t->generation == 0)
            continue;
        tracks_tend(l, t, now);
        int64_t at = due(l, t, now);
        next = at < next ? at : next;
        if (t->owes_gone || t->owes_over)
            next = now + RETRY_FIRST_NS < next ? now + RETRY_FIRST_NS : next;
    }
    return next;
}

/* --- messages from the peer --- */

/* RAIL_OFFER: the peer wants to make a track, and has destroyed its earlier queue pair. */
static void offered(struct rc_link *l, struct rc_track *t, const struct rail_call *m)
{
    if (t->state != RC_TRACK_OFF) {
        tracks_report(l, t, "the other node no longer uses this pair of devices");
        tracks_drop(l, t);
        over(l, t);
    }
    t->owes_gone = false;
    t->rail = m->your_rail;
    t->peer_rail = m->rail;
    base_spin_lock(&l->lock);
    int err = rc_stripe_drained(l, t) ? 0 : -EBUSY;
    base_spin_unlock(&l->lock);
    if (err)
        base_fail(err, "the previous queue pair still has requests that have not been posted to another one; weft tries again");
    else if (is_used(l, t, true, t->rail) || is_used(l, t, false, t->peer_rail))
        err = base_fail(-EBUSY, "one of the two devices is in use by another connection of these two nodes");
    if (!err)
        err = tracks_make(l, t, m->generation);
    if (!err)
        err = verbs_qp_connect(&t->qp, &m->address);
    if (!err)
        err = tracks_say(l, t, RAIL_ACCEPT, m->generation, NULL);
    t->state = err ? RC_TRACK_OFF : RC_TRACK_ACCEPTED;
    if (err) {
        char why[256];
        snprintf(why, sizeof why, "%s", base_error());
        tracks_drop(l, t);
        base_spin_lock(&l->lock);
        t->generation = m->generation;
        base_spin_unlock(&l->lock);
        /* The peer waits for an answer: if this one cannot be sent now, RAIL_GONE is sent later. */
        t->owes_gone = tracks_say(l, t, RAIL_REFUSED, m->generation, why) != 0;
    }
}

static void accepted(struct rc_link *l, struct rc_track *t, const struct rail_call *m)
{
    int err = verbs_qp_connect(&t->qp, &m->address);
    if (!err) {
        base_spin_lock(&l->lock);
        err = rc_stripe_prove(l, t);
        base_spin_unlock(&l->lock);
    }
    t->state = RC_TRACK_PROVING;
    if (err)
        tracks_leave(l, t, base_error());
}

static void tracks_gone(struct rc_link *l, struct rc_track *t, const struct rail_call *m)
{
    if (t->state != RC_TRACK_OFF && m->generation == t->generation) {
        bool own = t->state == RC_TRACK_LEAVING; /* both ends left at the same time */
        tracks_report(l, t, m->text);
        if (!own) {
            tracks_drop(l, t);
            later(l, t, m->text);
        }
        over(l, t);
    }
    t->over_generation = m->generation;
    t->owes_over = tracks_say(l, t, RAIL_OVER, m->generation, NULL) != 0;
}

bool rc_tracks_side(struct rc_link *l, const void *bytes, size_t len)
{
    struct rail_call m;
    if (len != sizeof m)
        return false;
    memcpy(&m, bytes, sizeof m);
    if (m.magic != CALL_MAGIC)
        return false;
    bool addressed = m.kind == RAIL_OFFER || m.kind == RAIL_ACCEPT,
         sane = l->tracks && m.track < RC_TRACKS && memchr(m.text, 0, sizeof m.text);
    if (sane && m.kind == RAIL_OFFER)
        sane = !leads(l) && m.rail < l->tracks->peer_count && m.your_rail < l->rc->rails->count;
    else if (sane)
        sane = m.kind >= RAIL_ACCEPT && m.kind <= RAIL_OVER && (!leads(l) || m.track < l->rc->rails->count);
    if (!sane || (addressed && !verbs_address_valid(&m.address))) {
        rc_break(l, "it sent an invalid message about a further device (WEFT_RAILS); run the same version of weft on all hosts");
        return true;
    }
    for (char *c = m.text; *c; c++)
        *c = *c < ' ' || *c > '~' ? '?' : *c; /* the text will be written to logs and terminals */
    struct rc_track *t = &l->tracks->track[m.track];
    if (l->closed || (m.kind != RAIL_OFFER && m.kind != RAIL_GONE && m.generation != t->generation))
        return true;
    switch ((enum rail_call_kind)m.kind) {
    case RAIL_OFFER: offered(l, t, &m); break;
    case RAIL_ACCEPT:
        if (t->state == RC_TRACK_ASKED)
            accepted(l, t, &m);
        break;
    case RAIL_READY:
        if (t->state == RC_TRACK_ACCEPTED)
            tracks_up(l, t);
        break;
    case RAIL_REFUSED:
        if (t->state == RC_TRACK_ASKED) {
            tracks_drop(l, t);
            t->state = RC_TRACK_OFF;
            later(l, t, m.text);
        }
        break;
    case RAIL_GONE: tracks_gone(l, t, &m); break;
    case RAIL_OVER:
        if (t->state == RC_TRACK_LEAVING)
            over(l, t);
        break;
    }
    rc_look_again(l->rc);
    return true;
}
