/* SPDX-License-Identifier: MIT
 *
 * Posts requests to the send queue: pieces of puts and gets, frames, atomics, and the reads of flushes.
 *
 * Local memory that is not registered is copied through stages. A request asks for a completion if an operation waits for it, if stages are
 * scarce, and every RC_SIGNAL_EVERY requests. Completions are in order, so each one also reports all requests before it.
 */
#include "fabric/rc/rc.h"

#include <stdlib.h>
#include <string.h>

/* --- one request --- */

/* Posts the request described by `slot`, the result of rc_slot_next(). */
BASE_INLINE int post(struct rc_link *l, const struct rc_slot *slot, struct ibv_send_wr *wr, bool prompt)
{
    struct ibv_send_wr *bad;
    uint64_t position = l->posted;
    /* Requests that are repeated after a queue pair has broken ask for completions, because a completion frees the request's stage. The
     * read of a flush cannot free the stages, because it comes behind all these requests. */
    bool signal = prompt || position + 1 - l->signalled >= RC_SIGNAL_EVERY || position + 1 - l->done >= l->depth - 1 ||
                  (slot->stage && (rc_stages_scarce(l->rc, slot->frame) || l->again));
    wr->wr_id = rc_wr_request(l, position);
    if (signal)
        wr->send_flags |= IBV_SEND_SIGNALED;
    /* Each request carries the number of fences set before it was queued, because it may be posted after later fences were set. */
    uint32_t fences = slot->fences;
    bool fence = (int32_t)(fences - l->fences_posted) > 0;
    if (fence)
        wr->send_flags |= IBV_SEND_FENCE;
    l->posted = position + 1;
    int err = ibv_post_send(l->qp.qp, wr, &bad);
    if (err) {
        l->posted = position;
        rc_lose_locked(l, "its queue pair accepts no requests: %s", base_strerror(err));
        return -err;
    }
    if (fence)
        l->fences_posted = fences;
    if (signal)
        l->signalled = position + 1;
    return 0;
}

/* Takes a stage; NULL: none is free now. The link's stages may belong to requests that asked for no completion. Then a read is posted
 * behind those requests, and its completion frees the stages. */
static void *stage_for(struct rc_link *l, bool frame)
{
    void *stage = rc_take_stage(l, frame);
    if (BASE_UNLIKELY(!stage) && l->signalled < l->posted)
        rc_flush_locked(l);
    return stage;
}

/* --- pieces of puts and gets --- */

/* The next piece of [remote, remote + len). A piece ends where the peer's segment ends; if the local memory is registered, also where this
 * node's segment ends. */
struct piece {
    uint64_t bytes;
    uint64_t at; /* offset in the registered memory, if `ours` */
    bool ours;   /* the local memory is registered */
};

/* The registration of a piece's local memory. */
static inline const struct verbs_regions *regions_of(const struct rc *rc, const struct verbs_regions *memory)
{
    return BASE_UNLIKELY(memory != NULL) ? memory : &rc->pool;
}

BASE_INLINE struct piece next_piece(const struct rc_link *l, uint64_t remote, const uint8_t *local, const struct verbs_regions *memory,
                                    uint64_t len)
{
    const struct rc *rc = l->rc;
    const struct verbs_regions *own = regions_of(rc, memory);
    struct piece p = {.at = (uintptr_t)local - (uintptr_t)own->base}; /* for memory below the pool's base this wraps to a huge offset */
    p.ours = p.at <= own->bytes && len <= own->bytes - p.at;
    uint64_t here = p.ours ? own->segment_bytes - (p.at & (own->segment_bytes - 1)) : RC_STAGE_BYTES;
    uint64_t segment = UINT64_C(1) << l->peer_shift, there = segment - (remote & (segment - 1));
    p.bytes = rc_least(rc_least(len, here), rc_least(there, rc->device->traits.message_bytes));
    return p;
}

BASE_INLINE int post_transfer(struct rc_link *l, const struct rc_slot *slot, bool put, bool prompt)
{
    const struct rc *rc = l->rc;
    bool small = put && !slot->stage && !slot->memory && slot->len <= l->inline_bytes;
    struct ibv_sge sge = {.addr = (uintptr_t)slot->local, .length = slot->len};
    if (slot->stage) {
        sge.addr = (uintptr_t)slot->stage;
        sge.lkey = verbs_lkey(&rc->private, (uint64_t)((uint8_t *)slot->stage - rc->memory));
    } else if (!small) { /* inline data is copied when posting, and needs no key */
        const struct verbs_regions *own = regions_of(rc, slot->memory);
        sge.lkey = verbs_lkey(own, (uint64_t)(slot->local - own->base));
    }
    struct ibv_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = put ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
        .send_flags = small ? IBV_SEND_INLINE : 0,
        .wr.rdma = {.remote_addr = l->peer_base + slot->remote, .rkey = l->peer_keys[slot->remote >> l->peer_shift]},
    };
    int err = post(l, slot, &wr, prompt);
    if (!err && put)
        l->last_change = l->posted;
    else if (!err)
        l->last_read = l->posted;
    return err;
}

bool rc_post_transfer_again(struct rc_link *l, const struct rc_slot *slot, bool prompt)
{
    struct rc_slot *next = rc_slot_next(l);
    *next = *slot;
    return post_transfer(l, next, slot->kind == RC_SLOT_PUT, prompt) == 0;
}

/* Posts one piece, with which `op` completes. Returns false if there is no room now. */
BASE_INLINE bool post_piece(struct rc_link *l, bool put, uint64_t remote, uint8_t *local, const struct verbs_regions *memory,
                            const struct piece *p, weft_op *op, struct rc_work *work, uint32_t fences, bool prompt)
{
    if (!rc_has_slot(l))
        return false;
    bool staged = !p->ours && !(put && p->bytes <= l->inline_bytes);
    void *stage = staged ? stage_for(l, false) : NULL;
    if (staged && !stage)
        return false;
    struct rc_slot *slot = rc_slot_next(l);
    *slot = (struct rc_slot){.op = op,
                             .work = work,
                             .stage = stage,
                             .local = local,
                             .memory = memory,
                             .remote = remote,
                             .len = (uint32_t)p->bytes,
                             .kind = put ? RC_SLOT_PUT : RC_SLOT_GET,
                             .fences = fences};
    if (staged) {
        if (put)
            memcpy(stage, local, p->bytes);
        else
            slot->copy_to = local;
        atomic_fetch_add_explicit(put ? &l->staged_puts : &l->staged_gets, 1, memory_order_relaxed);
    }
    if (post_transfer(l, slot, put, prompt)) {
        if (staged)
            rc_give_stage(l, stage, false);
        return false;
    }
    *(put ? &l->sent_bytes : &l->fetched_bytes) += p->bytes;
    return true;
}

bool rc_post_share(struct rc_link *l, struct rc_work *k, bool put, uint64_t remote, uint8_t *local, uint64_t bytes)
{
    const struct piece p = {.bytes = bytes, .ours = true};
    k->pieces++;
    bool posted = post_piece(l, put, remote, local, NULL, &p, NULL, k, k->fences, true);
    k->pieces -= !posted;
    return posted;
}

bool rc_post_whole(struct rc_link *l, bool put, uint64_t remote, uint8_t *local, const struct verbs_regions *memory, uint64_t len,
                   weft_op *op)
{
    struct piece p = next_piece(l, remote, local, memory, len);
    return p.bytes == len && post_piece(l, put, remote, local, memory, &p, op, NULL, l->fences, op || !put);
}

bool rc_post_next(struct rc_link *l, struct rc_work *k)
{
    uint8_t *local = k->local + k->posted;
    struct piece p = next_piece(l, k->remote + k->posted, local, k->memory, k->len - k->posted);
    bool last = p.bytes == k->len - k->posted;
    k->pieces++;
    if (!post_piece(l, k->kind == RC_WORK_PUT, k->remote + k->posted, local, k->memory, &p, NULL, k, k->fences,
                    last && (k->op || k->kind == RC_WORK_GET || k->striped))) {
        k->pieces--;
        return false;
    }
    k->posted += p.bytes;
    return true;
}

/* --- frames --- */

static bool has_credit(const struct rc_link *l, uint8_t kind)
{
    const struct rc_queue *q = &l->lane[rc_lane_of(kind)];
    return kind == RC_TELL_ONLY || q->sent - q->peer_taken < RC_WINDOW;
}

void rc_taken_locked(struct rc_link *l, enum rc_lane lane, uint32_t taken)
{
    struct rc_queue *q = &l->lane[lane];
    for (; q->peer_taken != taken; q->peer_taken++) {
        struct rc_kept *k = &l->kept[(uint32_t)lane * RC_WINDOW + q->peer_taken % RC_WINDOW];
        free(k->work);
        k->work = NULL;
    }
}

/* Posts the frame at `at`: in the slot's stage, or in memory that is sent inline. */
BASE_INLINE bool post_at(struct rc_link *l, const struct rc_slot *slot, uint8_t *at)
{
    const struct rc *rc = l->rc;
    struct rc_frame told;
    memcpy(&told, at, sizeof told);
    for (int i = 0; i < RC_LANES; i++)
        told.taken[i] = l->lane[i].taken;
    told.from = l->w->rank;
    memcpy(at, &told, sizeof told);
    struct ibv_sge sge = {.addr = (uintptr_t)at, .length = slot->len};
    if (slot->stage)
        sge.lkey = verbs_lkey(&rc->private, (uint64_t)(at - rc->memory));
    struct ibv_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .send_flags = slot->stage ? 0 : IBV_SEND_INLINE,
    };
    if (post(l, slot, &wr, false))
        return false;
    for (int i = 0; i < RC_LANES; i++)
        l->lane[i].told = told.taken[i];
    if (slot->kind == RC_SLOT_FRAME)
        l->last_change = l->posted;
    return true;
}

bool rc_post_frame(struct rc_link *l, const void *body, uint32_t bytes, uint32_t fences, struct rc_work **own)
{
    uint8_t kind = *(const uint8_t *)body, here[sizeof(struct rc_frame)];
    if (!rc_has_slot(l) || !has_credit(l, kind))
        return false;
    bool staged = bytes > l->inline_bytes;
    void *stage = staged ? stage_for(l, true) : NULL;
    if (staged && !stage)
        return false;
    enum rc_lane lane = rc_lane_of(kind);
    struct rc_queue *q = &l->lane[lane];
    bool tell = kind == RC_TELL_ONLY, little = bytes <= RC_LITTLE;
    struct rc_slot *slot = rc_slot_next(l);
    struct rc_kept *kept = &l->kept[(uint32_t)lane * RC_WINDOW + q->sent % RC_WINDOW];
    *slot = (struct rc_slot){.len = bytes,
                             .frame = true,
                             .kind = tell ? RC_SLOT_TELL : RC_SLOT_FRAME,
                             .lane = (uint8_t)lane,
                             .number = q->sent,
                             .stage = stage,
                             .fences = fences};
    uint8_t *at = staged ? stage : tell ? here : little ? kept->little : (*own)->body;
    if (at != body)
        memcpy(at, body, bytes);
    if (staged && little && !tell)
        memcpy(kept->little, body, bytes);
    if (!post_at(l, slot, at)) {
        if (staged)
            rc_give_stage(l, stage, true);
        return false;
    }
    if (tell)
        return true;
    kept->bytes = bytes;
    kept->position = l->posted - 1;
    kept->work = NULL;
    if (!little) {
        kept->work = *own;
        *own = NULL;
    }
    q->sent++;
    if (kind == RC_MESSAGE) { /* count the message without the padding after the header */
        struct rc_frame f;
        memcpy(&f, body, sizeof f);
        l->sent_bytes += (uint64_t)f.header_len + f.payload_len;
    }
    return true;
}

bool rc_post_frame_again(struct rc_link *l, struct rc_slot *slot)
{
    struct rc_kept *kept = &l->kept[slot->lane * RC_WINDOW + slot->number % RC_WINDOW];
    uint8_t *body = kept->work ? kept->work->body : kept->little, *at = body;
    slot->len = kept->bytes;
    if (kept->bytes > l->inline_bytes) {
        if (!slot->stage && !(slot->stage = stage_for(l, true)))
            return false;
        at = slot->stage;
        memcpy(at, body, kept->bytes);
    }
    struct rc_slot *next = rc_slot_next(l);
    *next = *slot;
    if (!post_at(l, next, at))
        return false; /* `next` keeps its stage */
    kept->position = l->posted - 1;
    return true;
}

void rc_tell_locked(struct rc_link *l, bool due)
{
    for (int i = 0; i < RC_LANES; i++)
        due = due || l->lane[i].taken - l->lane[i].told >= RC_TELL;
    if (BASE_UNLIKELY(due) && !l->closed) {
        struct rc_frame f = {.kind = RC_TELL_ONLY, .token = RC_NO_ASK};
        /* if there is no room, the next frame carries the acknowledgement, or rc_done() calls this again */
        rc_post_frame(l, &f, sizeof f, l->fences_posted, NULL);
    }
}

/* --- atomics of the peer's device --- */

int rc_post_atomic(struct rc_link *l, const struct rc_work *k, weft_op *op)
{
    struct rc *rc = l->rc;
    uint8_t *stage = rc_has_slot(l) ? stage_for(l, true) : NULL;
    if (!stage)
        return 0;
    struct rc_slot *slot = rc_slot_next(l);
    *slot = (struct rc_slot){
        .op = op, .stage = stage, .copy_to = k->local, .len = 8, .frame = true, .kind = RC_SLOT_ATOMIC, .fences = k->fences};
    struct ibv_sge sge = {.addr = (uintptr_t)stage, .length = 8, .lkey = verbs_lkey(&rc->private, (uint64_t)(stage - rc->memory))};
    struct ibv_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = k->what == FAB_ADD ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP,
        .wr.atomic = {.remote_addr = l->peer_base + k->remote,
                      .compare_add = k->a,
                      .swap = k->b,
                      .rkey = l->peer_keys[k->remote >> l->peer_shift]},
    };
    if (post(l, slot, &wr, true)) {
        rc_give_stage(l, stage, true);
        return 0;
    }
    l->last_read = l->posted;
    atomic_fetch_add_explicit(&l->native_atomics, 1, memory_order_relaxed);
    return 1;
}

/* --- flushes --- */

void rc_flush_locked(struct rc_link *l)
{
    struct rc *rc = l->rc;
    if (l->closed || l->flush_read != 0)
        return;
    l->flush_wanted = !rc_has_slot(l);
    if (l->flush_wanted)
        return;
    /* A read behind the writes. Its completion proves that the writes have arrived. */
    struct rc_slot *slot = rc_slot_next(l);
    *slot = (struct rc_slot){.len = 8, .kind = RC_SLOT_FLUSH, .fences = l->fences_posted};
    uint64_t at = RC_FLUSHES_AT + (uint64_t)l->link->node * 8; /* the result is not used */
    struct ibv_sge sge = {.addr = (uintptr_t)rc->memory + at, .length = 8, .lkey = verbs_lkey(&rc->private, at)};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_READ,
                             .wr.rdma = {.remote_addr = l->peer_base + FAB_NULL_BYTES, .rkey = l->peer_keys[0]}};
    uint64_t covers = l->last_change;
    if (post(l, slot, &wr, true) == 0) {
        l->flush_read = l->posted;
        l->flush_covers = covers;
    }
}
