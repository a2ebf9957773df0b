/* SPDX-License-Identifier: MIT
 *
 * Memory for received frames, in chunks. A chunk is as much as one peer may send without an acknowledgement.
 *
 * If the device has shared receive queues, all links use one. A node begins with one chunk. It adds a chunk whenever a poll of the
 * completion queue finds that few receives were left, up to one chunk for each peer. So memory grows with the traffic, not with the number
 * of peers. If a frame finds no receive, the sender's device tries again (receiver not ready). Used receives are posted again in batches.
 *
 * Without a shared queue, each queue pair has a chunk of its own.
 */
#include "fabric/rc/rc.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LOW RC_WINDOW /* add a chunk when fewer receives than this are left in the shared queue */

struct rc_chunk {
    uint8_t *memory;
    struct verbs_regions region;
};

uint8_t *rc_receive_at(const struct rc *rc, uint32_t frame)
{
    const struct rc_receives *r = &rc->receives;
    uint32_t chunk = frame / RC_RECEIVES;
    /* acquire: pairs with the release in add_chunk() */
    if (BASE_UNLIKELY(chunk >= atomic_load_explicit(&r->count, memory_order_acquire)))
        return NULL;
    return r->chunks[chunk].memory + (uint64_t)(frame % RC_RECEIVES) * RC_FRAME_BYTES;
}

static struct ibv_sge element(const struct rc *rc, uint32_t frame)
{
    const struct rc_chunk *c = &rc->receives.chunks[frame / RC_RECEIVES];
    uint64_t at = (uint64_t)(frame % RC_RECEIVES) * RC_FRAME_BYTES;
    return (struct ibv_sge){.addr = (uintptr_t)c->memory + at, .length = RC_FRAME_BYTES, .lkey = verbs_lkey(&c->region, at)};
}

/* --- the shared queue; the caller holds r->lock --- */

static int post_batch(struct rc *rc)
{
    struct rc_receives *r = &rc->receives;
    struct ibv_sge sge[RC_GIVE_BATCH];
    struct ibv_recv_wr wr[RC_GIVE_BATCH], *bad;
    if (r->batched == 0)
        return 0;
    for (uint32_t i = 0; i < r->batched; i++) {
        sge[i] = element(rc, r->batch[i]);
        wr[i] = (struct ibv_recv_wr){
            .wr_id = rc_wr_receive(r->batch[i]), .sg_list = &sge[i], .num_sge = 1, .next = i + 1 < r->batched ? &wr[i + 1] : NULL};
    }
    int err = verbs_post_shared(r->srq, wr, &bad);
    /* receives that could not be posted stay in the batch */
    uint32_t posted = err ? (uint32_t)(bad - wr) : r->batched;
    memmove(r->batch, r->batch + posted, (r->batched - posted) * sizeof *r->batch);
    r->batched -= posted;
    atomic_store_explicit(&r->given, atomic_load_explicit(&r->given, memory_order_relaxed) + posted, memory_order_relaxed);
    return err ? base_fail(err, "%s: the shared receive queue accepts no receive buffers: %s", rc->device->name, base_strerror(err)) : 0;
}

static int give_shared(struct rc *rc, uint32_t frame)
{
    struct rc_receives *r = &rc->receives;
    int err = r->batched == RC_GIVE_BATCH ? post_batch(rc) : 0; /* the batch is full only if an earlier post_batch() failed */
    if (err)
        return err;
    r->batch[r->batched++] = frame;
    return r->batched == RC_GIVE_BATCH ? post_batch(rc) : 0;
}

/* --- chunks --- */

/* Adds a chunk without posting its frames. The caller holds r->lock, or no other thread runs yet. */
static int add_chunk(struct rc *rc)
{
    struct rc_receives *r = &rc->receives;
    uint32_t n = atomic_load_explicit(&r->count, memory_order_relaxed);
    uint64_t bytes = base_round_up((uint64_t)RC_RECEIVES * RC_FRAME_BYTES, BASE_PAGE);
    if (n == r->room)
        return base_fail(-ENOSPC, "rc: all %u blocks of buffers for messages from other nodes are in use: use fewer nodes", n);
    struct rc_chunk *c = &r->chunks[n];
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return base_fail(-errno, "rc: cannot map %llu bytes for receive frames: %s" BASE_MEMORY_HINT, (unsigned long long)bytes,
                         base_strerror(errno));
    int err = verbs_register(&c->region, rc->device, p, bytes, 0);
    if (err) {
        munmap(p, bytes);
        return err;
    }
    c->memory = p;
    /* release: pairs with the acquire in rc_receive_at() */
    atomic_store_explicit(&r->count, n + 1, memory_order_release);
    return 0;
}

static int add_shared_chunk(struct rc *rc)
{
    uint32_t first = atomic_load_explicit(&rc->receives.count, memory_order_relaxed) * RC_RECEIVES;
    int err = add_chunk(rc);
    for (uint32_t i = 0; i < RC_RECEIVES && !err; i++)
        err = give_shared(rc, first + i);
    return err ? err : post_batch(rc);
}

int rc_receives_add(struct rc *rc)
{
    base_spin_lock(&rc->receives.lock);
    int err = add_shared_chunk(rc);
    base_spin_unlock(&rc->receives.lock);
    return err;
}

/* Counts used receives, and adds a chunk if few are left. `before`: receives in the shared queue before the poll; `taken`: how many were
 * used. */
void rc_receives_look(struct rc *rc, uint32_t before, uint32_t taken)
{
    struct rc_receives *r = &rc->receives;
    atomic_store_explicit(&r->taken, atomic_load_explicit(&r->taken, memory_order_relaxed) + taken, memory_order_relaxed);
    if (BASE_LIKELY((int32_t)(before - taken) >= (int32_t)LOW) || !r->srq)
        return;
    base_spin_lock(&r->lock);
    int err = post_batch(rc);
    if (!err && !r->full && atomic_load_explicit(&r->count, memory_order_relaxed) < r->most) {
        err = add_shared_chunk(rc);
        r->full = err != 0; /* not an error: without more chunks, messages are only slower */
    }
    base_spin_unlock(&r->lock);
    if (err)
        base_log(BASE_LOG_WARN, "this node gets no more receive buffers, so messages may wait longer: %s", base_error());
}

/* --- receives of one queue pair --- */

static int post_own_locked(struct rc_link *l, uint32_t frame)
{
    struct ibv_sge sge = element(l->rc, frame);
    struct ibv_recv_wr *bad, wr = {.wr_id = rc_wr_receive(frame), .sg_list = &sge, .num_sge = 1};
    int err = ibv_post_recv(l->qp.qp, &wr, &bad);
    return err ? base_fail(-err, "its queue pair accepts no receive buffers: %s", base_strerror(err)) : 0;
}

/* Returns the word with the bit that tells whether this frame is in use. When a queue pair is replaced, the frames that are not in use are
 * posted at once, and each of the others is posted when it becomes free. */
static _Atomic uint64_t *held(struct rc_link *l, uint32_t frame)
{
    return &l->own_held[(frame - l->own_first) / 64];
}

static uint64_t held_bit(const struct rc_link *l, uint32_t frame)
{
    return UINT64_C(1) << (frame - l->own_first) % 64;
}

/* --- frames in use --- */

void rc_receive_hold(struct rc_link *l, uint32_t frame)
{
    if (l->has_own && frame - l->own_first < RC_RECEIVES)
        atomic_fetch_or_explicit(held(l, frame), held_bit(l, frame), memory_order_relaxed);
}

void rc_receive_unused(struct rc *rc, uint32_t frame)
{
    struct rc_receives *r = &rc->receives;
    if (!r->srq)
        return;
    base_spin_lock(&r->lock);
    int err = give_shared(rc, frame);
    base_spin_unlock(&r->lock);
    if (err)
        base_log(BASE_LOG_WARN, "%s", base_error());
}

void rc_receive_give(struct rc_link *l, uint32_t frame)
{
    struct rc *rc = l->rc;
    struct rc_receives *r = &rc->receives;
    int err = 0;
    if (r->srq) {
        base_spin_lock(&r->lock);
        err = give_shared(rc, frame);
        base_spin_unlock(&r->lock);
    } else {
        base_spin_lock(&l->lock); /* keeps the queue pair from being destroyed meanwhile */
        atomic_fetch_and_explicit(held(l, frame), ~held_bit(l, frame), memory_order_relaxed);
        err = l->qp.qp ? post_own_locked(l, frame) : 0;
        base_spin_unlock(&l->lock);
    }
    if (err && r->srq) {
        rc_break(l, "%s", base_error());
    } else if (err) {
        base_spin_lock(&l->lock);
        rc_lose_locked(l, "%s", base_error());
        base_spin_unlock(&l->lock);
    }
}

/* --- links --- */

int rc_receives_for(struct rc_link *l)
{
    struct rc *rc = l->rc;
    struct rc_receives *r = &rc->receives;
    if (r->srq || l->has_own)
        return 0;
    base_spin_lock(&r->lock);
    l->own_first = atomic_load_explicit(&r->count, memory_order_relaxed) * RC_RECEIVES;
    int err = add_chunk(rc);
    base_spin_unlock(&r->lock);
    l->has_own = !err;
    return err;
}

int rc_receives_post_locked(struct rc_link *l)
{
    int err = 0;
    atomic_store_explicit(&l->ended, false, memory_order_relaxed);
    for (uint32_t i = 0, f = l->own_first; i < RC_RECEIVES && l->has_own && !err; i++, f++)
        if (!(atomic_load_explicit(held(l, f), memory_order_relaxed) & held_bit(l, f)))
            err = post_own_locked(l, f);
    return err;
}

/* --- the node --- */

int rc_receives_open(struct rc *rc)
{
    struct rc_receives *r = &rc->receives;
    uint32_t peers = rc->peers_max;
    r->most = peers;
    r->room = peers + RC_SPARE;
    r->chunks = calloc(r->room, sizeof *r->chunks);
    if (!r->chunks)
        return base_fail(-ENOMEM, "rc: no memory for the table of %u chunks of receive frames" BASE_MEMORY_HINT, r->room);
    if (rc->device->traits.srq_depth < RC_RECEIVES)
        return 0; /* no shared queue */
    uint32_t fit = rc->device->traits.srq_depth / RC_RECEIVES;
    r->room = r->room < fit ? r->room : fit;
    r->most = r->most < fit ? r->most : fit;
    int err = verbs_srq_create(&r->srq, rc->device, r->room * RC_RECEIVES);
    if (err)
        return err;
    fcntl(rc->device->context->async_fd, F_SETFL, fcntl(rc->device->context->async_fd, F_GETFL) | O_NONBLOCK);
    return add_shared_chunk(rc);
}

void rc_receives_close(struct rc *rc)
{
    struct rc_receives *r = &rc->receives;
    uint32_t n = atomic_load_explicit(&r->count, memory_order_relaxed);
    if (r->srq)
        verbs_srq_destroy(rc->device, r->srq);
    for (uint32_t i = 0; i < n; i++) {
        verbs_unregister(&r->chunks[i].region);
        munmap(r->chunks[i].memory, base_round_up((uint64_t)RC_RECEIVES * RC_FRAME_BYTES, BASE_PAGE));
    }
    free(r->chunks);
    *r = (struct rc_receives){0};
}
