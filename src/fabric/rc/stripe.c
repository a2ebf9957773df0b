/* SPDX-License-Identifier: MIT
 *
 * Striping: large puts and gets are spread over the rails in pieces.
 *
 * Each step posts a span of the operation: one piece to each rail, of about the same size, cut at multiples of RC_CUT_BYTES of the peer's
 * memory. The first rail's piece is an ordinary request (post.c). Rails have no common order. So an operation that must come after a
 * striped one, because of a fence or a signal, waits until all pieces have arrived (rc_fence_open()). And an operation behind a fence is
 * striped only when the first rail has proved that everything before the fence has arrived.
 *
 * When a track breaks, both ends destroy its queue pair (tracks.c). Then its pieces are repeated over the first rail. Until these have
 * arrived, the operation to which they belong is not done, so nothing that must come after the operation is posted.
 */
#include "fabric/rc/rails.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static struct rc_piece *piece_at(struct rc_track *t, uint64_t position)
{
    return &t->pieces[position % RC_TRACK_DEPTH];
}

/* --- tracks that are up --- */

void rc_stripe_look(struct rc_link *l)
{
    struct rc_tracks *tracks = l->tracks;
    uint32_t n = 0;
    for (uint32_t i = 0; tracks && i < RC_TRACKS; i++)
        n += tracks->track[i].up;
    if (tracks)
        tracks->up = n;
    l->stripe = n ? l->w->options.stripe_bytes : UINT64_MAX;
}

void rc_track_lose_locked(struct rc_link *l, struct rc_track *t, const char *why, ...)
{
    va_list ap;
    if (t->lost || !t->qp.qp)
        return;
    va_start(ap, why);
    vsnprintf(t->why, sizeof t->why, why, ap);
    va_end(ap);
    t->lost = true;
    t->up = false;
    rc_stripe_look(l);
    rc_look_again(l->rc);
}

static void stripe_finish(struct rc_link *l, struct rc_piece *p, int status)
{
    struct rc_slot s = {.work = p->work};
    if (!p->work)
        return;
    if (status && !p->work->op) /* an operation without an op: the next flush reports the error */
        atomic_store_explicit(&l->link->unsure, true, memory_order_relaxed);
    p->work = NULL;
    rc_finish(l, &s, status);
}

/* --- a track --- */

static bool stripe_has_room(const struct rc_track *t)
{
    return t->posted - t->done < RC_TRACK_DEPTH;
}

/* Posts a piece to a track. A write is followed by a read, whose completion proves that the write has arrived. For a piece without bytes
 * only this read is posted. If posting fails, the piece stays in `pieces`, and is repeated over the first rail. */
static int stripe_post(struct rc_link *l, struct rc_track *t, const struct rc_piece *piece)
{
    struct rc_rail *r = &l->rc->rails->rail[t->rail];
    const struct rc_peer_rail *there = &l->tracks->peer[t->peer_rail];
    uint32_t number = rc_track_number(l, t), lands = l->number * BASE_CACHE_LINE;
    uint64_t id = (uint64_t)l->number << 48 | (uint64_t)number << 44 | (uint64_t)(t->generation & 0xfff) << 32 | (uint32_t)t->posted;
    struct ibv_sge data = {.addr = (uintptr_t)piece->local, .length = piece->len}, word = {.length = 8};
    struct ibv_send_wr proof, transfer, *bad, *first = &proof;
    word.addr = (uintptr_t)r->landing_memory + lands;
    word.lkey = verbs_lkey(&r->landing, lands);
    proof = (struct ibv_send_wr){
        .wr_id = id,
        .sg_list = &word,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_READ,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = l->peer_base + FAB_NULL_BYTES, .rkey = there->keys[0]},
    };
    if (piece->len) {
        data.lkey = verbs_lkey(&r->pool, (uint64_t)(piece->local - l->w->pool_base));
        transfer = (struct ibv_send_wr){
            .wr_id = id,
            .sg_list = &data,
            .num_sge = 1,
            .opcode = piece->put ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
            .send_flags = piece->put ? 0 : IBV_SEND_SIGNALED,
            .next = piece->put ? &proof : NULL,
            .wr.rdma = {.remote_addr = l->peer_base + piece->remote, .rkey = there->keys[piece->remote >> there->shift]},
        };
        first = &transfer;
    }
    *piece_at(t, t->posted) = *piece;
    t->posted++;
    atomic_fetch_add_explicit(&r->out, 1, memory_order_relaxed);
    int err = ibv_post_send(t->qp.qp, first, &bad);
    if (err) {
        rc_track_lose_locked(l, t, "its queue pair accepts no requests: %s", base_strerror(err));
        return -err;
    }
    atomic_fetch_add_explicit(&l->tracks->bytes[number + 1], piece->len, memory_order_relaxed);
    *(piece->put ? &l->sent_bytes : &l->fetched_bytes) += piece->len;
    return 0;
}

int rc_stripe_prove(struct rc_link *l, struct rc_track *t)
{
    int err = stripe_post(l, t, &(struct rc_piece){0});
    return err ? base_fail(err, "%s", t->why) : 0;
}

/* --- a span --- */

/* Whether the first rail has proved that everything before the operation's fence has arrived at the peer. The caller has posted everything
 * that was queued in both lanes before the fence. */
static bool behind_fence(struct rc_link *l, struct rc_work *k)
{
    if (BASE_LIKELY(k->fences == l->fence_proved))
        return true;
    /* Begin the proof. If the queue pair was replaced, begin it anew, because requests were posted again. */
    if (!k->proof.set || k->proof.generation != l->generation) {
        k->proof.set = true;
        k->proof.generation = l->generation;
        k->proof.change = l->last_change;
        k->proof.read = l->last_read;
    }
    if (l->flushed_to < k->proof.change || l->done < k->proof.read) {
        rc_flush_locked(l);
        return false;
    }
    l->fence_proved = k->fences;
    return true;
}

/* Returns how many bytes from `at` on one step can post, if each rail gets one piece. */
static uint64_t span(const struct rc_link *l, uint64_t remote, uint64_t at, uint64_t len)
{
    const struct rc_tracks *tracks = l->tracks;
    uint64_t rails = tracks->up + 1;
    uint64_t here = tracks->local_bytes - (at & (tracks->local_bytes - 1)),
             there = tracks->remote_bytes - (remote & (tracks->remote_bytes - 1));
    uint64_t piece = rc_least(RC_PIECE_BYTES, tracks->message_bytes) -
                     RC_CUT_BYTES; /* the places of cuts are rounded down, which makes the next piece larger */
    return rc_least(rc_least(len, rails * piece), rc_least(here, there));
}

int rc_stripe_post(struct rc_link *l, struct rc_work *k)
{
    struct rc_tracks *tracks = l->tracks;
    const struct weft_node *w = l->w;
    uint8_t *local = k->local + k->posted;
    uint64_t remote = k->remote + k->posted, len = k->len - k->posted, at = (uintptr_t)local - (uintptr_t)w->pool_base;
    if (k->memory)
        return -1; /* this memory is registered with the first device only */
    if (at > w->pool_bytes || len > w->pool_bytes - at)
        return -1; /* copying through stages limits the speed, so further rails do not help */
    uint64_t bytes = span(l, remote, at, len), rails = tracks->up + 1;
    if (bytes < l->stripe)
        return -1; /* too little is left before the end of the segment */
    bool room = rc_has_slot(l);
    for (uint32_t i = 0; i < RC_TRACKS && room; i++)
        room = !tracks->track[i].up || stripe_has_room(&tracks->track[i]);
    if (!room || !behind_fence(l, k) || !rc_has_slot(l))
        return 0;

    bool put = k->kind == RC_WORK_PUT;
    uint64_t from = ((remote + bytes / rails) & ~(uint64_t)(RC_CUT_BYTES - 1)) - remote, n = 1;
    if (!rc_post_share(l, k, put, remote, local, from))
        return 0;
    atomic_fetch_add_explicit(&tracks->bytes[0], from, memory_order_relaxed);
    if (!k->striped)
        rc_stripe_begin(l, k);
    k->posted += bytes;
    for (uint32_t i = 0; i < RC_TRACKS && from < bytes; i++) {
        struct rc_track *t = &tracks->track[i];
        if (!t->up)
            continue;
        n++;
        uint64_t to = n == rails ? bytes : ((remote + bytes / rails * n) & ~(uint64_t)(RC_CUT_BYTES - 1)) - remote;
        struct rc_piece p = {.work = k, .remote = remote + from, .local = local + from, .len = (uint32_t)(to - from), .put = put};
        k->pieces++;
        (void)stripe_post(l, t, &p); /* on failure, the piece is repeated over the first rail */
        from = to;
    }
    return 1;
}

/* --- completions and failures of pieces --- */

void rc_stripe_done_locked(struct rc_link *l, struct rc_track *t, uint64_t position, enum ibv_wc_status status)
{
    const struct rc *rc = l->rc;
    if (BASE_UNLIKELY(status != IBV_WC_SUCCESS)) {
        struct rc_piece *p = piece_at(t, position);
        p->refused = p->refused || rc_own_fault(status);
        rc_track_lose_locked(l, t, status == IBV_WC_WR_FLUSH_ERR ? "its queue pair has stopped: %s (%d)" : "a request failed: %s (%d)",
                             rc->device->lib->wc_status_str(status), (int)status);
        return;
    }
    if (t->lost)
        return;
    uint32_t n = (uint32_t)(position + 1 - t->done);
    atomic_fetch_sub_explicit(&rc->rails->rail[t->rail].out, n, memory_order_relaxed);
    for (; t->done <= position; t->done++)
        stripe_finish(l, piece_at(t, t->done), 0);
    if (!t->proved) {
        t->proved = true;
        rc_look_again(l->rc);
    }
}

void rc_stripe_refused(struct rc_link *l, struct rc_track *t)
{
    for (uint64_t i = t->done; i < t->posted; i++) {
        struct rc_piece *p = piece_at(t, i);
        if (p->refused)
            stripe_finish(l, p, -ECONNABORTED);
        l->repeats += p->work != NULL;
    }
}

/* Repeats over the first rail the pieces of a track that has no queue pair. Returns true if no pieces are left to repeat. */
static bool repeat(struct rc_link *l, struct rc_track *t)
{
    while (t->repeat && t->done < t->posted) {
        struct rc_piece *p = piece_at(t, t->done);
        if (p->work) {
            if (!rc_has_slot(l) || !rc_post_share(l, p->work, p->put, p->remote, p->local, p->len))
                return false;
            atomic_fetch_add_explicit(&l->tracks->bytes[0], p->len, memory_order_relaxed);
            p->work->pieces--; /* rc_post_share() counted the piece again */
            p->work = NULL;
            l->repeats--;
        }
        t->done++;
    }
    return t->done == t->posted;
}

bool rc_stripe_drained(struct rc_link *l, struct rc_track *t)
{
    return t->qp.qp ? t->done == t->posted : repeat(l, t);
}

void rc_stripe_repeat(struct rc_link *l)
{
    for (uint32_t i = 0; i < RC_TRACKS; i++)
        if (!l->tracks->track[i].qp.qp)
            (void)repeat(l, &l->tracks->track[i]);
}

void rc_stripe_fail(struct rc_link *l, struct rc_track *t, int status)
{
    for (; t->done < t->posted; t->done++)
        stripe_finish(l, piece_at(t, t->done), status);
    l->repeats = 0;
}

void rc_tracks_fail_locked(struct rc_link *l, int status)
{
    for (uint32_t i = 0; l->tracks && i < RC_TRACKS; i++) {
        struct rc_track *t = &l->tracks->track[i];
        if (t->qp.qp) {
            rc_rail_of(l, t)->tracks--;
            atomic_fetch_sub_explicit(&rc_rail_of(l, t)->out, (uint32_t)(t->posted - t->done), memory_order_relaxed);
        }
        t->up = false;
        verbs_qp_destroy(&t->qp);
        rc_stripe_fail(l, t, status);
    }
    rc_stripe_look(l);
}
