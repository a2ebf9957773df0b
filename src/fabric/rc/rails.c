/* SPDX-License-Identifier: MIT
 *
 * Further rails: their devices, resources and completion queues. A device that cannot be used is skipped with a log message, because the
 * first rail can carry everything.
 */
#include "fabric/rc/rails.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BATCH 16

/* --- the devices --- */

static uint32_t name_length(const char *name) /* length of the device's name without the port, because limits belong to the whole device */
{
    return (uint32_t)strcspn(name, ":");
}

static bool same_device(const struct verbs_device *a, const struct verbs_device *b)
{
    uint32_t n = name_length(a->name);
    return n == name_length(b->name) && memcmp(a->name, b->name, n) == 0;
}

/* Returns for how many peers a further rail on this device can have queue pairs, after what earlier rails on the same device need. */
static uint32_t room_for(const struct rc *rc, const struct verbs_device *d)
{
    uint32_t peers = rc_peers_expected(rc->w), used = same_device(rc->device, d) ? peers : 0;
    for (uint32_t i = 0; i < rc->rails->count; i++)
        used += same_device(rc->rails->rail[i].device, d) ? peers : 0;
    uint32_t qps = d->traits.qps > used ? d->traits.qps - used : 0, entries = d->traits.cqe / (2 * RC_TRACK_DEPTH);
    uint32_t room = qps < entries ? qps : entries;
    return room < peers ? room : peers;
}

static void rails_unmake(struct rc_rail *r)
{
    verbs_unregister(&r->pool);
    verbs_unregister(&r->landing);
    verbs_cq_destroy(&r->cq, &r->channel, r->device);
    verbs_device_close(r->device);
    if (r->landing_memory)
        munmap(r->landing_memory, r->landing_bytes);
    memset(r, 0, sizeof *r);
}

/* Opens the rail. The caller puts the device's name in front of the error text. */
static int rails_make(struct rc *rc, struct rc_rail *r)
{
    struct weft_node *w = rc->w;
    struct verbs_device *d = r->device;
    if (!d->traits.rc || !d->traits.write || !d->traits.read || d->traits.rd_atomic == 0)
        return base_fail(-EOPNOTSUPP, "it has no reliable connections with RDMA write and read");
    r->tracks_max = room_for(rc, d);
    if (r->tracks_max == 0)
        return d->traits.cqe < 2 * RC_TRACK_DEPTH
                   ? base_fail(-ENOSPC, "its completion queues have at most %u entries, and one peer needs %u", d->traits.cqe,
                               2 * RC_TRACK_DEPTH)
                   : base_fail(-ENOSPC,
                               "no queue pair is left: the device has %u, and each of its ports that weft uses already needs %u (one for "
                               "each node)",
                               d->traits.qps, rc_peers_expected(w));
    int err = verbs_device_use(d);
    if (err)
        return err;
    err = verbs_cq_create(&r->cq, &r->channel, d, r->tracks_max * 2 * RC_TRACK_DEPTH);
    if (err)
        return err;
    r->landing_bytes = base_round_up((uint64_t)w->room * BASE_CACHE_LINE, BASE_PAGE);
    void *p = mmap(NULL, r->landing_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return base_fail(-errno, "cannot map %llu bytes of memory for it to read into: %s" BASE_MEMORY_HINT,
                         (unsigned long long)r->landing_bytes, base_strerror(errno));
    r->landing_memory = p;
    err = verbs_register(&r->landing, d, p, r->landing_bytes, 0);
    return err ? err : verbs_register(&r->pool, d, w->pool_base, w->pool_bytes, d->traits.regions - r->landing.count);
}

static void rails_add(struct rc *rc, struct verbs_device *d)
{
    struct rc_rail *r = &rc->rails->rail[rc->rails->count];
    r->device = d;
    int err = rails_make(rc, r);
    if (err) {
        base_log(BASE_LOG_WARN, "device %s is not used: %s; set WEFT_RAILS to choose the devices", d->name, base_error());
        rails_unmake(r);
        return;
    }
    rc->rails->count++;
    base_log(BASE_LOG_INFO, "the transport rc also uses device %s, port %u, GID %s", d->name, d->port, d->chosen.why);
}

int rc_rails_open(struct rc *rc)
{
    struct weft_node *w = rc->w;
    struct verbs_device *found[RC_TRACKS];
    uint32_t most = w->options.rails ? w->options.rails : w->options.device[0] ? 1 : FAB_RAILS_MAX, n = 0;
    bool named = w->options.rails && w->options.rail_names[0][0];
    if (most <= 1)
        return 0;
    rc->rails = calloc(1, sizeof *rc->rails);
    if (!rc->rails)
        return base_fail(-ENOMEM, "rc: no memory for further devices (WEFT_RAILS)" BASE_MEMORY_HINT);
    if (!named && verbs_devices_like(rc->device, found, most - 1, &n, w->options.gid_index))
        base_log(BASE_LOG_WARN, "only device %s is used: %s", rc->device->name, base_error());
    for (uint32_t i = 1; named && i < most; i++) {
        int err = verbs_device_open(&found[n], w->options.rail_names[i], w->options.gid_index);
        if (err)
            base_log(BASE_LOG_WARN, "device %s is not used: %s; set WEFT_RAILS to choose the devices", w->options.rail_names[i],
                     base_error());
        n += !err;
    }
    for (uint32_t i = 0; i < n; i++)
        rails_add(rc, found[i]);
    if (rc->rails->count == 0) {
        free(rc->rails);
        rc->rails = NULL;
    }
    base_error_clear();
    return 0;
}

void rc_rails_close(struct rc *rc)
{
    for (uint32_t i = 0; rc->rails && i < rc->rails->count; i++)
        rails_unmake(&rc->rails->rail[i]);
    free(rc->rails);
    rc->rails = NULL;
}

/* --- completions --- */

static void done(struct rc *rc, const struct ibv_wc *wc)
{
    uint32_t number = (uint32_t)(wc->wr_id >> 48), track = (uint32_t)(wc->wr_id >> 44) & 0xf;
    struct rc_link *l = number < rc->count ? rc->links[number] : NULL;
    if (!l || !l->tracks || track >= RC_TRACKS)
        return;
    struct rc_track *t = &l->tracks->track[track];
    base_spin_lock(&l->lock);
    uint64_t position = t->done + (uint32_t)((uint32_t)wc->wr_id - (uint32_t)t->done);
    /* Otherwise the completion is of an earlier queue pair, which was destroyed. */
    if (t->qp.qp && ((wc->wr_id >> 32) & 0xfff) == (t->generation & 0xfff) && position < t->posted) {
        rc_stripe_done_locked(l, t, position, wc->status);
        if (!t->lost)
            rc_push_locked(l);
    }
    base_spin_unlock(&l->lock);
}

int rc_rails_poll(struct rc *rc)
{
    struct ibv_wc wc[BATCH];
    int n = 0;
    for (uint32_t i = 0; i < rc->rails->count; i++) {
        struct rc_rail *r = &rc->rails->rail[i];
        if (r->has_early) {
            r->has_early = false;
            done(rc, &r->early);
            n++;
        }
        if (atomic_load_explicit(&r->out, memory_order_relaxed) == 0)
            continue;
        int got = ibv_poll_cq(r->cq, BATCH, wc);
        for (int k = 0; k < got; k++)
            done(rc, &wc[k]);
        n += got > 0 ? got : 0;
    }
    return n;
}

/* rc_idle() for the further rails. */
bool rc_rails_idle(struct rc *rc)
{
    bool quiet = true;
    for (uint32_t i = 0; i < rc->rails->count; i++) {
        struct rc_rail *r = &rc->rails->rail[i];
        if (!r->has_early) {
            ibv_req_notify_cq(r->cq, 0);
            r->has_early = ibv_poll_cq(r->cq, 1, &r->early) > 0;
        }
        quiet = quiet && !r->has_early;
    }
    return quiet;
}

void rc_rails_woken(struct rc *rc)
{
    for (uint32_t i = 0; i < rc->rails->count; i++)
        verbs_cq_woken(rc->rails->rail[i].channel, rc->rails->rail[i].device);
}

/* --- joining --- */

struct rail_hello { /* followed by the keys */
    uint8_t gid[16];
    uint64_t segment_bytes;
    uint32_t segments, reserved;
};

int rc_rails_tell(struct rc_link *l, int side_fd, int64_t deadline)
{
    struct rc_rails *rails = l->rc->rails;
    int err = 0;
    for (uint32_t i = 0; rails && i < rails->count && !err; i++) {
        const struct rc_rail *r = &rails->rail[i];
        struct rail_hello h = {.segment_bytes = r->pool.segment_bytes, .segments = r->pool.count};
        memcpy(h.gid, r->device->chosen.gid.raw.raw, sizeof h.gid);
        err = fab_side_transfer(side_fd, &h, sizeof h, true, deadline);
        for (uint32_t k = 0; k < r->pool.count && !err; k++) {
            uint32_t key = r->pool.mr[k]->rkey;
            err = fab_side_transfer(side_fd, &key, sizeof key, true, deadline);
        }
    }
    return err;
}

int rc_rails_hear(struct rc_link *l, uint32_t count, int side_fd, int64_t deadline)
{
    struct rc *rc = l->rc;
    uint64_t pool = l->link->pool_bytes;
    struct rc_tracks *tracks = calloc(1, sizeof *tracks);
    int err = 0;
    if (!tracks)
        return -ENOMEM;
    tracks->remote_bytes = UINT64_C(1) << l->peer_shift;
    tracks->local_bytes = rc->pool.segment_bytes;
    tracks->message_bytes = rc->device->traits.message_bytes;
    for (uint32_t i = 0; i < RC_TRACKS; i++) /* only the leader chooses the peer's rail; the other node gets it with the offer */
        tracks->track[i].rail = i;
    l->tracks = tracks;
    for (uint32_t i = 0; i < count && !err; i++) {
        struct rc_peer_rail *p = &tracks->peer[i];
        struct rail_hello h = {0};
        err = fab_side_transfer(side_fd, &h, sizeof h, false, deadline);
        if (!err && (h.segment_bytes == 0 || (h.segment_bytes & (h.segment_bytes - 1)) != 0 ||
                     h.segments != (pool + h.segment_bytes - 1) / h.segment_bytes))
            err = -EPROTO;
        if (!err && !(p->keys = calloc(h.segments, sizeof *p->keys)))
            err = -ENOMEM;
        if (!err)
            err = fab_side_transfer(side_fd, p->keys, h.segments * sizeof *p->keys, false, deadline);
        if (err)
            break;
        memcpy(p->gid, h.gid, sizeof p->gid);
        p->segment_bytes = h.segment_bytes;
        p->shift = (uint32_t)__builtin_ctzll(h.segment_bytes);
        p->keys_count = h.segments;
        tracks->remote_bytes = rc_least(tracks->remote_bytes, h.segment_bytes);
        tracks->peer_count++;
    }
    for (uint32_t i = 0; rc->rails && i < rc->rails->count; i++) {
        tracks->local_bytes = rc_least(tracks->local_bytes, rc->rails->rail[i].pool.segment_bytes);
        tracks->message_bytes = rc_least(tracks->message_bytes, rc->rails->rail[i].device->traits.message_bytes);
    }
    if (err || !rc->rails || count == 0) /* striping needs further rails at both ends */
        rc_rails_forget(l);
    return err;
}

void rc_rails_forget(struct rc_link *l)
{
    for (uint32_t i = 0; l->tracks && i < RC_TRACKS; i++)
        free(l->tracks->peer[i].keys);
    free(l->tracks);
    l->tracks = NULL;
}

void rc_rails_stat(struct rc_link *l, weft_link_stats *out)
{
    struct rc_tracks *tracks = l->tracks;
    out->rails = 1;
    if (!tracks)
        return;
    base_spin_lock(&l->lock);
    for (uint32_t i = 0; i < RC_TRACKS; i++) {
        const struct rc_track *t = &tracks->track[i];
        if (!t->up)
            continue;
        size_t n = strlen(out->devices);
        snprintf(out->devices + n, sizeof out->devices - n, ", %s", l->rc->rails->rail[t->rail].device->name);
        out->rails++;
    }
    base_spin_unlock(&l->lock);
    for (uint32_t i = 0; i < FAB_RAILS_MAX; i++)
        out->rail_bytes[i] = atomic_load_explicit(&tracks->bytes[i], memory_order_relaxed);
    out->rail_breaks = atomic_load_explicit(&tracks->breaks, memory_order_relaxed);
}
