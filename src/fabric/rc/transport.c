/* SPDX-License-Identifier: MIT
 *
 * rc: the transport over reliable connections of a verbs device. This file has the device and its memory, joining, closing, and the
 * transport's table.
 *
 * The device is opened when the first peer needs it. Everything that can be checked is checked before anything is allocated on the device.
 * Peers can access only the pool: frames and stages have a memory region of their own.
 */
#include "fabric/rc/rails.h"
#include "fabric/transports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RC_MAGIC UINT64_C(0x7765667472633033) /* "weftrc03" */

static int rc_open(struct weft_node *w)
{
    struct rc *rc = calloc(1, sizeof *rc);
    if (!rc)
        return base_fail(-ENOMEM, "no memory for the rc transport" BASE_MEMORY_HINT);
    rc->w = w;
    rc->transport = &fab_rc;
    pthread_mutex_init(&rc->memory_lock, NULL);
    rc->links = calloc(w->room, sizeof *rc->links);
    w->rc = rc;
    return rc->links ? 0 : base_fail(-ENOMEM, "rc: no memory for %u links" BASE_MEMORY_HINT, w->room);
}

/* --- the device --- */

static int make_memory(struct rc *rc)
{
    rc->memory_bytes = base_round_up(RC_FLUSHES_AT + (uint64_t)rc->w->room * 8, BASE_PAGE);
    void *p = mmap(NULL, rc->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return base_fail(-errno, "rc: cannot map %llu bytes for frames: %s" BASE_MEMORY_HINT, (unsigned long long)rc->memory_bytes,
                         base_strerror(errno));
    rc->memory = p;
    uint8_t *at = rc->memory;
    for (unsigned i = 0; i < RC_STAGES; i++, at += RC_STAGE_BYTES)
        rc_put_back(rc, at, false);
    for (unsigned i = 0; i < RC_TX_FRAMES; i++, at += RC_FRAME_BYTES)
        rc_put_back(rc, at, true);
    return 0;
}

static int look_for_device(struct weft_node *w)
{
    struct rc *rc = w->rc;
    const char *first = w->options.rails && w->options.rail_names[0][0] ? w->options.rail_names[0] : w->options.device;
    int err = verbs_device_open(&rc->device, first[0] ? first : NULL, w->options.gid_index);
    if (err)
        return err;
    struct verbs_device *d = rc->device;
    if (!d->traits.rc || !d->traits.write || !d->traits.read)
        return base_fail(-EOPNOTSUPP,
                         "device %s does not support reliable connections with RDMA write and read, which the rc transport needs; use "
                         "another device (WEFT_DEVICE) or another transport (WEFT_TRANSPORT)",
                         d->name);
    /* Make room for as many peers as the completion queue allows. Room for only some of the cluster's nodes may be enough, because only
     * peers to which there are operations get a queue pair. */
    uint32_t room = d->traits.cqe > RC_CQ_SPARE ? (d->traits.cqe - RC_CQ_SPARE) / RC_CQ_ENTRIES : 0;
    uint32_t peers = rc_peers_expected(w);
    rc->peers_max = room < peers ? room : peers;
    uint32_t entries = rc->peers_max * RC_CQ_ENTRIES + RC_CQ_SPARE;
    if (rc->peers_max == 0)
        return base_fail(-ENOSPC,
                         "device %s: its completion queues have %u entries, and one peer needs %u; use another device (WEFT_DEVICE)",
                         d->name, d->traits.cqe, RC_CQ_ENTRIES + RC_CQ_SPARE);
    err = verbs_device_use(d);
    if (err)
        return err;
    err = verbs_cq_create(&rc->cq, &rc->channel, d, entries);
    if (!err)
        err = make_memory(rc);
    if (!err)
        err = verbs_register(&rc->private, d, rc->memory, rc->memory_bytes, 0);
    if (!err)
        err = verbs_register(&rc->pool, d, w->pool_base, w->pool_bytes, d->traits.regions - rc->private.count);
    if (!err)
        err = rc_receives_open(rc);
    if (!err)
        err = rc_rails_open(rc);
    if (!err)
        base_log(BASE_LOG_INFO, "the transport rc uses device %s, port %u, GID %s, %u regions", d->name, d->port, d->chosen.why,
                 rc->pool.count + rc->private.count);
    return err;
}

static bool rc_reaches(struct weft_node *w, const uint8_t *peer_host_id)
{
    struct rc *rc = w->rc;
    (void)peer_host_id;
    return fab_look(w, &rc->look, look_for_device);
}

/* Queue pairs were destroyed before. Devices need this order: regions, completion queue, channel, domain, context. */
static void rc_close(struct weft_node *w)
{
    struct rc *rc = w->rc;
    if (!rc)
        return;
    rc_rails_close(rc);
    if (rc->device) {
        rc_memory_close(rc);
        verbs_unregister(&rc->pool);
        verbs_unregister(&rc->private);
        rc_receives_close(rc);
        verbs_cq_destroy(&rc->cq, &rc->channel, rc->device);
        verbs_device_close(rc->device);
    }
    if (rc->memory)
        munmap(rc->memory, rc->memory_bytes);
    pthread_mutex_destroy(&rc->memory_lock);
    free(rc->links);
    free(rc);
    w->rc = NULL;
}

/* --- joining: the exchange of pool addresses and keys --- */

struct rc_hello {
    uint64_t magic, pool_bytes, pool_base, segment_bytes;
    uint32_t rank, size, segments, window;
    uint32_t atomics; /* 1: atomics of the sender's device are atomic with respect to its processor */
    uint32_t rails;   /* number of further rails, which rails.c describes next */
};

static bool hello_ok(const struct rc_link *l, const struct rc_hello *h)
{
    const struct weft_node *w = l->w;
    return h->magic == RC_MAGIC && h->rank == l->link->node && h->size == w->founders && h->window == RC_WINDOW &&
           h->pool_bytes >= w->heap_offset && h->pool_bytes <= WEFT_MAX_POOL_BYTES && h->segment_bytes > 0 &&
           (h->segment_bytes & (h->segment_bytes - 1)) == 0 && h->segments == (h->pool_bytes + h->segment_bytes - 1) / h->segment_bytes &&
           h->pool_base <= UINT64_MAX - h->pool_bytes && h->rails < FAB_RAILS_MAX;
}

static int exchange(struct rc_link *l, int side_fd, struct rc_hello *theirs, int64_t deadline)
{
    struct weft_node *w = l->w;
    struct rc *rc = l->rc;
    struct rc_hello mine = {
        .magic = RC_MAGIC,
        .pool_bytes = w->pool_bytes,
        .pool_base = (uintptr_t)w->pool_base,
        .segment_bytes = rc->pool.segment_bytes,
        .rank = w->rank,
        .size = w->founders,
        .segments = rc->pool.count,
        .window = RC_WINDOW,
        .rails = rc->rails ? rc->rails->count : 0,
        .atomics = rc->device->traits.atomics_with_cpu && (rc->pool.access & IBV_ACCESS_REMOTE_ATOMIC) != 0,
    };
    uint32_t *keys = calloc(rc->pool.count, sizeof *keys);
    if (!keys)
        return base_fail(-ENOMEM, "rc: no memory for the %u keys of this node's pool" BASE_MEMORY_HINT, rc->pool.count);
    for (uint32_t i = 0; i < rc->pool.count; i++)
        keys[i] = rc->pool.mr[i]->rkey;
    int err = fab_side_transfer(side_fd, &mine, sizeof mine, true, deadline);
    if (!err)
        err = fab_side_transfer(side_fd, keys, rc->pool.count * sizeof *keys, true, deadline);
    free(keys);
    if (!err)
        err = rc_rails_tell(l, side_fd, deadline);
    if (!err)
        err = fab_side_transfer(side_fd, theirs, sizeof *theirs, false, deadline);
    if (err)
        return base_fail(err, "node %u did not send the address and the memory keys of its pool: %s; see the messages of that node",
                         l->link->node, base_strerror(err));
    if (!hello_ok(l, theirs))
        return base_fail(-EPROTO,
                         "node %u describes its pool in a way that this version of weft does not know; run the same version of weft on all "
                         "hosts, and set the same WEFT_TRANSPORT on all nodes",
                         l->link->node);
    l->peer_keys_count = theirs->segments;
    l->peer_keys = calloc(theirs->segments, sizeof *l->peer_keys);
    if (!l->peer_keys)
        return base_fail(-ENOMEM, "rc: no memory for the %u keys of another node's pool" BASE_MEMORY_HINT, theirs->segments);
    l->peer_base = theirs->pool_base;
    l->peer_shift = (uint32_t)__builtin_ctzll(theirs->segment_bytes);
    l->link->pool_bytes = theirs->pool_bytes;
    err = fab_side_transfer(side_fd, l->peer_keys, theirs->segments * sizeof *l->peer_keys, false, deadline);
    if (!err)
        err = rc_rails_hear(l, theirs->rails, side_fd, deadline);
    return err ? base_fail(err, "node %u did not send the memory keys of its pool: %s; see the messages of that node", l->link->node,
                           base_strerror(err))
               : 0;
}

static int rc_connect(struct weft_node *w, struct fab_link *link, int side_fd, int64_t deadline)
{
    struct rc *rc = w->rc;
    struct rc_link *l = calloc(1, sizeof *l);
    if (!l)
        return base_fail(-ENOMEM, "rc: no memory for the link to node %u" BASE_MEMORY_HINT, link->node);
    l->w = w;
    l->rc = rc;
    l->link = link;
    l->stripe = l->stripes_done = UINT64_MAX;
    for (int i = 0; i < RC_LANES; i++)
        l->lane[i].end = &l->lane[i].backlog;
    l->answers.end = &l->answers.first;
    stash_init(&l->stash, link->node);
    link->impl = l;
    link->transport = &fab_rc;

    l->number = rc->count;
    struct rc_hello theirs = {0};
    int err = exchange(l, side_fd, &theirs, deadline);
    if (err)
        return base_context(err, "link to node %u", link->node);
    l->has_atomics = theirs.atomics == 1 && rc->device->traits.atomics && rc->device->traits.rd_atomic > 0;
    rc->links[l->number] = l;
    rc->count++;
    return 0;
}

/* --- end of a link --- */

static const char *rc_broken(struct weft_node *w, struct fab_link *link)
{
    struct rc_link *l = link->impl;
    (void)w;
    return l && atomic_load_explicit(&l->broken, memory_order_acquire) ? l->why : NULL;
}

static void rc_disconnect(struct weft_node *w, struct fab_link *link)
{
    (void)w;
    struct rc_link *l = link->impl;
    if (l) {
        rc_leave(l);
        rc_fail_all(l, -ECONNRESET);
        l->rc->peers -= l->depth != 0;
    }
}

static void rc_release(struct weft_node *w, struct fab_link *link)
{
    struct rc_link *l = link->impl;
    (void)w;
    if (!l)
        return;
    rc_fail_all(l, -ECONNRESET);
    stash_clear(&l->stash);
    rc_rails_forget(l);
    free(l->peer_keys);
    free(l->slots);
    free(l->kept);
    free(l);
    link->impl = NULL;
}

/* A thread of the peer may sleep until a word of its pool changes. Only a frame wakes it, and an atomic of the device is no frame. So this
 * sends a frame after such atomics. */
static void rc_wake(struct weft_node *w, struct fab_link *link)
{
    struct rc_link *l = link->impl;
    (void)w;
    if (!l->has_atomics)
        return;
    base_spin_lock(&l->lock);
    rc_tell_locked(l, true);
    base_spin_unlock(&l->lock);
}

static void rc_stat(struct weft_node *w, struct fab_link *link, weft_link_stats *out)
{
    struct rc_link *l = link->impl;
    const struct rc *rc = w->rc;
    if (rc->device)
        snprintf(out->devices, sizeof out->devices, "%s", rc->device->name);
    rc_rails_stat(l, out);
    base_spin_lock(&l->lock);
    out->sent_bytes = l->sent_bytes;
    out->fetched_bytes = l->fetched_bytes;
    base_spin_unlock(&l->lock);
    out->staged_puts = atomic_load_explicit(&l->staged_puts, memory_order_relaxed);
    out->staged_gets = atomic_load_explicit(&l->staged_gets, memory_order_relaxed);
    out->native_atomics = atomic_load_explicit(&l->native_atomics, memory_order_relaxed);
    out->breaks = atomic_load_explicit(&l->breaks, memory_order_relaxed);
    out->connects = atomic_load_explicit(&l->connects, memory_order_relaxed);
}

static void rc_regions(struct weft_node *w, uint32_t *used, uint32_t *budget)
{
    struct rc *rc = w->rc;
    bool there = rc->pool.count > 0;
    *used = there ? rc->pool.count : 0;
    *budget = there ? rc->device->traits.regions : 0;
}

static int rc_fd(struct weft_node *w, uint32_t i)
{
    struct rc *rc = w->rc;
    if (i > 0)
        return rc->rails && i <= rc->rails->count ? rc->rails->rail[i - 1].channel->fd : -1;
    return rc->channel ? rc->channel->fd : -1;
}

static void rc_woken(struct weft_node *w)
{
    struct rc *rc = w->rc;
    verbs_cq_woken(rc->channel, rc->device);
    if (rc->rails)
        rc_rails_woken(rc);
}

const struct fab_transport fab_rc = {
    .name = "rc",
    .rdma = true,
    .open = rc_open,
    .close = rc_close,
    .reaches = rc_reaches,
    .connect = rc_connect,
    .broken = rc_broken,
    .last_words = rc_last_words,
    .disconnect = rc_disconnect,
    .release = rc_release,
    .put = rc_put,
    .get = rc_get,
    .atomic = rc_atomic,
    .put_signal = rc_put_signal,
    .set_system = rc_set_system,
    .send = rc_send,
    .flushed = rc_flushed,
    .fence = rc_fence,
    .service = rc_service,
    .progress = rc_progress,
    .idle = rc_idle,
    .pointer = fab_no_pointer,
    .wake = rc_wake,
    .stat = rc_stat,
    .regions = rc_regions,
    .memory_add = rc_memory_add,
    .memory_remove = rc_memory_remove,
    .put_from = rc_put_from,
    .get_into = rc_get_into,
    .fd = rc_fd,
    .woken = rc_woken,
    .side = rc_side,
    .upkeep = rc_upkeep,
};
