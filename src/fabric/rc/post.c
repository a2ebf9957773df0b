/* SPDX-License-Identifier: MIT
 *
 * Operations into the send queue.
 *
 * An operation that fits into one request and finds room goes at once. Everything else waits in the link's backlog, in order,
 * and goes as completions make room; what follows it waits behind it. Memory outside the pool goes through stages.
 * Requests ask for a completion when someone waits for one, when the stages run out, and every RC_SIGNAL_EVERY: completions come
 * in order, so one tells of all before it.
 */
#include "fabric/rc/rc.h"

#include <stdlib.h>
#include <string.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* --- one request --- */

BASE_INLINE int post(struct rc_link *l, struct ibv_send_wr *wr, bool prompt)
{
    struct ibv_send_wr *bad;
    uint64_t position = l->posted;
    const struct rc_slot *slot = rc_slot_next(l);
    bool signal = prompt || position + 1 - l->signalled >= RC_SIGNAL_EVERY || position + 1 - l->done >= l->depth - 1 ||
                  (slot->stage && rc_stages_scarce(l->rc, slot->frame));
    wr->wr_id = rc_wr_request(l, position);
    if (signal)
        wr->send_flags |= IBV_SEND_SIGNALED;
    /* What was kept before a fence is posted after it has been set: so it counts how many a request has before it. */
    uint32_t fences = slot->fences;
    bool fence = (int32_t)(fences - l->fences_posted) > 0;
    if (fence)
        wr->send_flags |= IBV_SEND_FENCE;
    l->posted = position + 1;
    int err = ibv_post_send(l->qp.qp, wr, &bad);
    if (err) {
        l->posted = position;
        rc_lose_locked(l, "its queue pair takes no requests: %s", base_strerror(err));
        return -err;
    }
    if (fence)
        l->fences_posted = fences;
    if (signal)
        l->signalled = position + 1;
    return 0;
}

int rc_post(struct rc_link *l, struct ibv_send_wr *wr, bool prompt)
{
    return post(l, wr, prompt);
}

bool rc_has_slot(const struct rc_link *l)
{
    return l->up && !l->again && l->posted - l->done < l->depth;
}

/* --- pieces of puts and gets --- */

/* How far the next piece of [remote, remote + len) goes: not past the peer's segment, nor, in the pool, past ours. */
struct piece {
    uint64_t bytes;
    uint64_t at; /* in our pool, where it is there */
    bool ours;
};

BASE_INLINE struct piece next_piece(const struct rc_link *l, uint64_t remote, const uint8_t *local, uint64_t len)
{
    const struct weft *w = l->w;
    const struct rc *rc = l->rc;
    struct piece p = {.at = (uintptr_t)local - (uintptr_t)w->pool_base}; /* before the pool: beyond every pool */
    p.ours = p.at <= w->pool_bytes && len <= w->pool_bytes - p.at;
    uint64_t here = p.ours ? rc->pool.segment_bytes - (p.at & (rc->pool.segment_bytes - 1)) : RC_STAGE_BYTES;
    uint64_t segment = UINT64_C(1) << l->peer_shift, there = segment - (remote & (segment - 1));
    p.bytes = least(least(len, here), least(there, rc->device->traits.message_bytes));
    return p;
}

/* A put or get, as rc_slot_next() says. */
BASE_INLINE int post_transfer(struct rc_link *l, bool put, bool prompt)
{
    const struct rc *rc = l->rc;
    const struct rc_slot *slot = rc_slot_next(l);
    bool small = put && !slot->stage && slot->len <= l->inline_bytes;
    struct ibv_sge sge = {.addr = (uintptr_t)slot->local, .length = slot->len};
    if (slot->stage) {
        sge.addr = (uintptr_t)slot->stage;
        sge.lkey = verbs_lkey(&rc->private, (uint64_t)((uint8_t *)slot->stage - rc->memory));
    } else if (!small) { /* small: copied by the post, no key */
        sge.lkey = verbs_lkey(&rc->pool, (uint64_t)(slot->local - l->w->pool_base));
    }
    struct ibv_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = put ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
        .send_flags = small ? IBV_SEND_INLINE : 0,
        .wr.rdma = {.remote_addr = l->peer_base + slot->remote, .rkey = l->peer_keys[slot->remote >> l->peer_shift]},
    };
    int err = post(l, &wr, prompt);
    if (!err && put)
        l->last_change = l->posted;
    else if (!err)
        l->last_read = l->posted;
    return err;
}

bool rc_post_transfer_again(struct rc_link *l, const struct rc_slot *slot, bool prompt)
{
    *rc_slot_next(l) = *slot;
    return post_transfer(l, slot->kind == RC_SLOT_PUT, prompt) == 0;
}

/* Posts one piece; false: no room now. `op` completes with it. */
BASE_INLINE bool post_piece(struct rc_link *l, bool put, uint64_t remote, uint8_t *local, const struct piece *p, weft_op *op,
                            struct rc_work *work, uint32_t fences, bool prompt)
{
    struct rc *rc = l->rc;
    if (!rc_has_slot(l))
        return false;
    struct rc_slot *slot = rc_slot_next(l);
    *slot = (struct rc_slot){.op = op, .work = work, .local = local, .remote = remote, .len = (uint32_t)p->bytes,
                             .kind = put ? RC_SLOT_PUT : RC_SLOT_GET, .fences = fences};
    if (!p->ours && !(put && p->bytes <= l->inline_bytes)) {
        slot->stage = rc_take_stage(rc, false);
        if (!slot->stage)
            return false;
        if (put)
            memcpy(slot->stage, local, p->bytes);
        else
            slot->copy_to = local;
        atomic_fetch_add_explicit(put ? &l->staged_puts : &l->staged_gets, 1, memory_order_relaxed);
    }
    if (post_transfer(l, put, prompt)) {
        if (slot->stage)
            rc_give_stage(rc, slot->stage, false);
        return false;
    }
    return true;
}

bool rc_post_share(struct rc_link *l, struct rc_work *k, bool put, uint64_t remote, uint8_t *local, uint64_t bytes)
{
    const struct piece p = {.bytes = bytes, .ours = true};
    k->pieces++;
    bool posted = post_piece(l, put, remote, local, &p, NULL, k, k->fences, true);
    k->pieces -= !posted;
    return posted;
}

/* --- frames --- */

static enum rc_lane lane_of(uint8_t kind)
{
    return kind == RC_MESSAGE ? RC_MESSAGES : RC_MAIN;
}

static bool has_credit(const struct rc_link *l, uint8_t kind)
{
    const struct rc_queue *q = &l->lane[lane_of(kind)];
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

/* As rc_slot_next() says. The frame is at `at`: the slot's stage, or what goes inside the request. */
BASE_INLINE bool post_at(struct rc_link *l, uint8_t *at)
{
    const struct rc *rc = l->rc;
    const struct rc_slot *slot = rc_slot_next(l);
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
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = slot->stage ? 0 : IBV_SEND_INLINE,
    };
    if (post(l, &wr, false))
        return false;
    for (int i = 0; i < RC_LANES; i++)
        l->lane[i].told = told.taken[i];
    if (slot->kind == RC_SLOT_FRAME)
        l->last_change = l->posted;
    return true;
}

/* False: no room now. `body` begins with the header. A frame larger than RC_LITTLE is the body of `*own`, which is taken then. */
static bool post_frame(struct rc_link *l, const void *body, uint32_t bytes, uint32_t fences, struct rc_work **own)
{
    struct rc *rc = l->rc;
    uint8_t kind = *(const uint8_t *)body, here[sizeof(struct rc_frame)];
    if (!rc_has_slot(l) || !has_credit(l, kind))
        return false;
    enum rc_lane lane = lane_of(kind);
    struct rc_queue *q = &l->lane[lane];
    bool tell = kind == RC_TELL_ONLY, little = bytes <= RC_LITTLE;
    struct rc_slot *slot = rc_slot_next(l);
    struct rc_kept *kept = &l->kept[(uint32_t)lane * RC_WINDOW + q->sent % RC_WINDOW];
    *slot = (struct rc_slot){.len = bytes, .frame = true, .kind = tell ? RC_SLOT_TELL : RC_SLOT_FRAME, .lane = (uint8_t)lane,
                             .number = q->sent, .fences = fences};
    if (bytes > l->inline_bytes && !(slot->stage = rc_take_stage(rc, true)))
        return false;
    uint8_t *at = slot->stage ? slot->stage : tell ? here : little ? kept->little : (*own)->body;
    if (at != body)
        memcpy(at, body, bytes);
    if (slot->stage && little && !tell)
        memcpy(kept->little, body, bytes);
    if (!post_at(l, at)) {
        if (slot->stage)
            rc_give_stage(rc, slot->stage, true);
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
    return true;
}
bool rc_post_frame_again(struct rc_link *l, struct rc_slot *slot)
{
    struct rc_kept *kept = &l->kept[slot->lane * RC_WINDOW + slot->number % RC_WINDOW];
    uint8_t *body = kept->work ? kept->work->body : kept->little, *at = body;
    slot->len = kept->bytes;
    if (kept->bytes > l->inline_bytes) {
        if (!slot->stage && !(slot->stage = rc_take_stage(l->rc, true)))
            return false;
        at = slot->stage;
        memcpy(at, body, kept->bytes);
    }
    *rc_slot_next(l) = *slot;
    if (!post_at(l, at))
        return false; /* the stage stays the slot's */
    kept->position = l->posted - 1;
    return true;
}

static struct rc_work *work_make(enum rc_work_kind kind, uint32_t bytes)
{
    struct rc_work *k = malloc(sizeof *k + bytes);
    if (k)
        *k = (struct rc_work){.kind = kind, .bytes = bytes};
    return k;
}

/* --- answers --- */

static void take_from_answers(struct rc_link *l)
{
    struct rc_work *k = l->answers.first;
    l->answers.first = k->next;
    if (!l->answers.first)
        l->answers.end = &l->answers.first;
    l->answers.count--;
    __atomic_fetch_sub(&l->lane[RC_MAIN].bytes, sizeof *k + k->bytes, __ATOMIC_RELEASE);
    free(k);
}

static bool push_answers(struct rc_link *l)
{
    bool any = false;
    for (struct rc_work *k; (k = l->answers.first) != NULL; any = true) {
        if (!post_frame(l, k->body, k->bytes, l->fences_posted, &k)) /* little: it is not taken itself */
            break;
        take_from_answers(l);
    }
    return any;
}

void rc_drop_answers_locked(struct rc_link *l)
{
    while (l->answers.first)
        take_from_answers(l);
}

static bool keep_answer(struct rc_link *l, const struct rc_frame *f)
{
    struct rc_work *k = l->answers.count < RC_ASKS ? work_make(RC_WORK_FRAME, sizeof *f) : NULL;
    if (!k)
        return false;
    memcpy(k->body, f, sizeof *f);
    if (BASE_UNLIKELY(!l->up))
        rc_want_locked(l);
    *l->answers.end = k;
    l->answers.end = &k->next;
    l->answers.count++;
    __atomic_fetch_add(&l->lane[RC_MAIN].bytes, sizeof *k + k->bytes, __ATOMIC_RELAXED);
    return true;
}

bool rc_answer(struct rc_link *l, uint32_t token, uint64_t value)
{
    const struct rc_frame f = {.kind = RC_ANSWER, .token = token, .a = value};
    base_spin_lock(&l->lock);
    bool done = l->closed || (!l->answers.first && post_frame(l, &f, sizeof f, l->fences_posted, NULL)) || keep_answer(l, &f);
    base_spin_unlock(&l->lock);
    return done;
}

/* --- the backlog --- */

void rc_take_from_backlog(struct rc_queue *q)
{
    struct rc_work *k = q->backlog;
    q->backlog = k->next;
    if (!q->backlog)
        q->end = &q->backlog;
    q->posted++;
    __atomic_fetch_sub(&q->bytes, sizeof *k + k->bytes, __ATOMIC_RELEASE);
}

/* Not past a fence: answers, works of the other lane, and those that go by other rails too, that came before it. */
static bool fence_open(const struct rc_link *l, enum rc_lane lane, uint64_t asks, uint64_t other, uint64_t stripes)
{
    return asks <= l->answered && l->lane[1 - lane].posted >= other && stripes <= l->stripes_done;
}

/* The next piece of a put or get. */
static bool post_next(struct rc_link *l, struct rc_work *k)
{
    uint8_t *local = k->local + k->posted;
    struct piece p = next_piece(l, k->remote + k->posted, local, k->len - k->posted);
    bool last = p.bytes == k->len - k->posted;
    k->pieces++;
    if (!post_piece(l, k->kind == RC_WORK_PUT, k->remote + k->posted, local, &p, NULL, k, k->fences,
                    last && (k->op || k->kind == RC_WORK_GET || k->striped))) {
        k->pieces--;
        return false;
    }
    k->posted += p.bytes;
    return true;
}

static bool push_lane(struct rc_link *l, enum rc_lane lane)
{
    struct rc_queue *q = &l->lane[lane];
    bool any = false;
    while (q->backlog && !l->closed) {
        struct rc_work *k = q->backlog;
        if (BASE_UNLIKELY(!fence_open(l, lane, k->fence_asks, k->fence_other, k->fence_stripes)))
            break;
        if (k->kind == RC_WORK_FRAME || k->kind == RC_WORK_ATOMIC) {
            struct rc_work *own = k;
            if (!(k->kind == RC_WORK_FRAME ? post_frame(l, k->body, k->bytes, k->fences, &own) : rc_post_atomic(l, k, k->op)))
                break;
            any = true;
            rc_take_from_backlog(q);
            free(own);
            continue;
        }
        int striped = BASE_UNLIKELY(k->len - k->posted >= l->stripe) ? rc_stripe_post(l, k) : -1;
        if (striped < 0)
            striped = post_next(l, k);
        if (!striped)
            break;
        any = true;
        if (k->posted == k->len) {
            k->whole = true;
            rc_take_from_backlog(q); /* its last piece's completion frees it */
        }
    }
    return any;
}

bool rc_push_locked(struct rc_link *l)
{
    if (BASE_UNLIKELY(l->again))
        rc_resume_locked(l);
    if (BASE_UNLIKELY(l->repeats))
        rc_stripe_repeat(l);
    if (BASE_UNLIKELY(l->flush_wanted)) /* else what other threads keep posting would leave it no room for ever */
        rc_flush_locked(l);
    bool any = push_answers(l), again = l->lane[RC_MAIN].backlog || l->lane[RC_MESSAGES].backlog;
    while (again) { /* one lane may open a fence for the other */
        again = push_lane(l, RC_MAIN);
        again = push_lane(l, RC_MESSAGES) || again;
        any = any || again;
        again = again && (l->lane[RC_MAIN].backlog || l->lane[RC_MESSAGES].backlog);
    }
    return any;
}

static void enqueue(struct rc_link *l, enum rc_lane lane, struct rc_work *k)
{
    struct rc_queue *q = &l->lane[lane];
    k->fence_asks = l->fence_asks;
    k->fence_other = q->fence_other;
    k->fence_stripes = l->fence_stripes;
    k->fences = l->fences;
    k->number = q->begun;
    if (k->op)
        fab_pending(k->op, l->link->node);
    if (BASE_UNLIKELY(!l->up))
        rc_want_locked(l);
    *q->end = k;
    q->end = &k->next;
    q->begun++;
    __atomic_fetch_add(&q->bytes, sizeof *k + k->bytes, __ATOMIC_RELAXED);
}

bool rc_clear_way(const struct rc_link *l, enum rc_lane lane)
{
    const struct rc_queue *q = &l->lane[lane];
    return !q->backlog && fence_open(l, lane, l->fence_asks, q->fence_other, l->fence_stripes);
}

int rc_keep(struct rc_link *l, enum rc_lane lane, const struct rc_work *what)
{
    struct rc_work *k = work_make(what->kind, 0);
    if (!k)
        return base_fail(-ENOMEM, "no memory to keep an operation to node %u", l->link->node);
    *k = *what;
    enqueue(l, lane, k);
    rc_push_locked(l);
    return 0;
}

struct room {
    struct rc_link *l;
    enum rc_lane lane;
    uint64_t limit;
};

static bool has_room(void *arg)
{
    struct room *r = arg;
    return __atomic_load_n(&r->l->lane[r->lane].bytes, __ATOMIC_ACQUIRE) < r->limit ||
           atomic_load_explicit(&r->l->link->state, memory_order_acquire) != FAB_ALIVE;
}

int rc_wait_for_room(struct rc_link *l, enum rc_lane lane, uint64_t limit)
{
    struct room r = {l, lane, limit};
    if (has_room(&r))
        return 0;
    r.limit = limit / 2; /* not to sleep again after the next one */
    if (fab_in_handler())
        return __atomic_load_n(&l->lane[lane].bytes, __ATOMIC_RELAXED) < RC_BACKLOG_MAX ? 0 :
               base_fail(-ENOBUFS, "node %u takes nothing: %u MiB wait for it", l->link->node, RC_BACKLOG_MAX >> 20);
    int err = fab_wait(l->w, has_room, &r, fab_timeout(l->w, WEFT_DEFAULT));
    return err ? base_fail(err, "node %u takes nothing (is it stopped?): %llu bytes wait for it", l->link->node,
                           (unsigned long long)__atomic_load_n(&l->lane[lane].bytes, __ATOMIC_RELAXED)) : 0;
}

int rc_gone(struct rc_link *l)
{
    return fab_refuse_node(l->w, l->link->node) ? -ECONNRESET : base_fail(-ECONNRESET, "node %u is gone", l->link->node);
}

/* --- operations --- */

BASE_INLINE int transfer(struct weft *w, struct fab_link *link, bool put, uint64_t remote, uint8_t *local, size_t len, weft_op *op)
{
    struct rc_link *l = link->impl;
    if (len == 0) {
        fab_complete(op, 0);
        return 0;
    }
    int err = 0;
    if (BASE_UNLIKELY(__atomic_load_n(&l->lane[RC_MAIN].bytes, __ATOMIC_RELAXED) >= RC_BACKLOG_PUTS))
        err = rc_wait_for_room(l, RC_MAIN, RC_BACKLOG_PUTS);
    if (err)
        return err;
    base_spin_lock(&l->lock);
    if (BASE_UNLIKELY(!rc_has_slot(l) || l->lane[RC_MAIN].backlog)) {
        /* Full: what is done makes room at once, where the caller would else have to be kept and looked after. */
        base_spin_unlock(&l->lock);
        fab_polled(w);
        fab_service(w);
        base_spin_lock(&l->lock);
    }
    if (l->closed) {
        base_spin_unlock(&l->lock);
        return rc_gone(l);
    }
    struct piece p = next_piece(l, remote, local, len);
    if (p.bytes == len && len < l->stripe && rc_clear_way(l, RC_MAIN)) {
        if (post_piece(l, put, remote, local, &p, op, NULL, l->fences, op || !put)) {
            if (op) /* it completes under the lock; an op whose start fails stays as it was */
                fab_pending(op, link->node);
            base_spin_unlock(&l->lock);
            return 0;
        }
    }
    struct rc_work what = {.kind = put ? RC_WORK_PUT : RC_WORK_GET, .op = op, .remote = remote, .local = local, .len = len};
    err = rc_keep(l, RC_MAIN, &what);
    base_spin_unlock(&l->lock);
    return err;
}

int rc_put(struct weft *w, struct fab_link *link, uint64_t to, const void *src, size_t len, weft_op *op)
{
    return transfer(w, link, true, to, (uint8_t *)(uintptr_t)src, len, op);
}

/* Its owner sleeps on it perhaps: that one's processor writes it, and wakes. */
int rc_set_system(struct weft *w, struct fab_link *link, uint64_t at, uint64_t value, bool wake)
{
    struct rc_frame f = {.kind = RC_STORE, .offset = at, .a = value};
    (void)w, (void)wake;
    return rc_frame_send(link->impl, &f, NULL, NULL, false, NULL, NULL);
}

int rc_get(struct weft *w, struct fab_link *link, void *dst, uint64_t from, size_t len, weft_op *op)
{
    return transfer(w, link, false, from, dst, len, op);
}

static bool can_ask(void *arg)
{
    struct rc_link *l = arg;
    return __atomic_load_n(&l->asked, __ATOMIC_RELAXED) - __atomic_load_n(&l->answered, __ATOMIC_ACQUIRE) < RC_ASKS ||
           atomic_load_explicit(&l->link->state, memory_order_acquire) != FAB_ALIVE;
}

/* With the lock on a return of 0: room for one more ask. */
static int lock_for(struct rc_link *l, bool ask)
{
    for (;;) {
        base_spin_lock(&l->lock);
        if (l->closed) {
            base_spin_unlock(&l->lock);
            return rc_gone(l);
        }
        if (!ask || l->asked - l->answered < RC_ASKS)
            return 0;
        base_spin_unlock(&l->lock);
        if (fab_in_handler())
            return base_fail(-ENOBUFS, "node %u has %u operations of this node to do already", l->link->node, RC_ASKS);
        int err = fab_wait(l->w, can_ask, l, fab_timeout(l->w, WEFT_DEFAULT));
        if (err)
            return base_fail(err, "node %u does not answer (is it stopped?): %u operations wait for it", l->link->node, RC_ASKS);
    }
}

int rc_frame_send(struct rc_link *l, struct rc_frame *head, const void *header, const void *payload, bool ask, uint64_t *old,
                  weft_op *op)
{
    uint8_t little[RC_LITTLE], *body = little;
    struct rc_work *k = NULL;
    uint32_t at = (uint32_t)sizeof *head, payload_at = at + ((head->header_len + 7u) & ~7u);
    uint32_t bytes = payload_at + head->payload_len;
    enum rc_lane lane = lane_of(head->kind);
    int err = rc_wait_for_room(l, lane, RC_BACKLOG_WAIT);
    if (err)
        return err;
    if (bytes > sizeof little) {
        k = work_make(RC_WORK_FRAME, bytes);
        if (!k)
            return base_fail(-ENOMEM, "no memory for a message to node %u", l->link->node);
        body = k->body;
    }
    err = lock_for(l, ask);
    if (err)
        goto out;
    head->token = ask ? (uint32_t)(l->asked % RC_ASKS) : RC_NO_ASK;
    memcpy(body, head, sizeof *head);
    if (head->header_len)
        memcpy(body + at, header, head->header_len);
    if (head->payload_len)
        memcpy(body + payload_at, payload, head->payload_len);
    /* What it signals may go by other rails, which this one does not keep in order. */
    uint64_t stripes = head->kind == RC_SIGNAL ? l->lane[RC_MAIN].begun : l->fence_stripes;
    if (stripes > l->stripes_done || !rc_clear_way(l, lane) || !post_frame(l, body, bytes, l->fences, &k)) {
        if (!k && (k = work_make(RC_WORK_FRAME, bytes)) != NULL)
            memcpy(k->body, body, bytes);
        if (k) {
            enqueue(l, lane, k);
            k->fence_stripes = stripes;
            rc_push_locked(l);
            k = NULL;
        } else {
            err = base_fail(-ENOMEM, "no memory for a message to node %u", l->link->node);
        }
    }
    if (!err && ask) {
        l->asks[head->token] = (struct rc_ask){.op = op, .old = old};
        if (op)
            fab_pending(op, l->link->node);
        l->asked++;
    }
    base_spin_unlock(&l->lock);
    if (!err && !ask)
        fab_complete(op, 0);
out:
    free(k);
    return err;
}

void rc_tell_locked(struct rc_link *l, bool due)
{
    for (int i = 0; i < RC_LANES; i++)
        due = due || l->lane[i].taken - l->lane[i].told >= RC_TELL;
    if (BASE_UNLIKELY(due) && !l->closed) {
        struct rc_frame f = {.kind = RC_TELL_ONLY, .token = RC_NO_ASK};
        post_frame(l, &f, sizeof f, l->fences_posted, NULL); /* no room for it: the next frame tells, or who makes room */
    }
}
