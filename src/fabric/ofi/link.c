/* SPDX-License-Identifier: MIT
 *
 * Creates the links of ofi, and sends what their endpoints (records/endpoint.h) ask for: a frame as a message, and a large put or get (a
 * move) as an RMA request.
 */
#include "fabric/ofi/ofi.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The bounds of the retransmission time-out. It is long, because frames are lost only when a connection breaks. */
#define RTO_LEAST    (500 * WEFT_MS)
#define RTO_MOST     (4 * WEFT_SECOND)
#define FRAMES_FIRST 4u /* maximum number of frames under way, until it is known how fast the network is */
#define FRAMES_LEAST 4u /* the smallest maximum, on a slow network */
#define PAUSE_FIRST  (WEFT_MS)
#define PAUSE_MOST   (200 * WEFT_MS)

struct ofi_link *ofi_link_make(struct ofi *o, struct fab_link *link)
{
    /* mmap() instead of calloc(): calloc() could write zeros to the whole struct, but ofi uses only a small part of its pages */
    struct ofi_link *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (l == MAP_FAILED)
        return NULL;
    l->ofi = o;
    atomic_store_explicit(&o->used, true,
                          memory_order_relaxed); /* before the link is published, so that the device is polled from then on */
    l->r.w = o->w;
    l->r.link = link;
    l->r.earliest = &o->due;
    atomic_init(&l->r.due, INT64_MAX);
    stash_init(&l->r.stash, link->node);
    link->impl = l;
    return l;
}

void ofi_frames_leave_locked(struct ofi_link *l)
{
    if (l->frames)
        l->frames->used = false;
    l->frames = NULL;
}

void ofi_link_free(struct ofi_link *l)
{
    struct ofi *o = l->ofi;
    stash_clear(&l->r.stash);
    free(l->r.inbox);
    free(l->keys);
    base_spin_lock(&o->calls);
    ofi_frames_leave_locked(l);
    base_spin_unlock(&o->calls);
    munmap(l, sizeof *l);
}

/* Notes that the provider has no room for a request now. Usually a completion causes the next attempt. But a provider that was only busy
 * connecting reports no completion, so a timer causes the attempt then. */
static bool link_no_room(struct ofi_link *l)
{
    atomic_store_explicit(&l->r.no_room, true, memory_order_relaxed);
    records_timer(&l->ofi->due, base_recent_ns() + OFI_RETRY);
    return false;
}

/* Gives each move only a part of the window. So even on a slow network a move ends before watch.c decides that nothing gets through. */
static void link_share(struct ofi_link *l)
{
    uint64_t share = l->window.size / 4 < OFI_MOVE_LEAST ? OFI_MOVE_LEAST : l->window.size / 4;
    l->r.endpoint.move_most = share < l->move_most ? share : l->move_most;
}

static void link_moved(struct ofi_link *l, const struct ofi_request *q, int64_t now)
{
    records_window_took(&l->window, q->began, now, q->used);
    link_share(l);
}

void ofi_ended_locked(struct ofi_link *l, const struct ofi_request *q, int error, int64_t now)
{
    if (l->r.closed)
        return;
    if (q->kind == OFI_FRAME) {
        tb_endpoint_left(&l->r.endpoint, q->slot);
        return;
    }
    l->moves--;
    l->moving -= q->bytes;
    l->moved += error == 0;
    if (error == 0)
        link_moved(l, q, now);
    for (uint32_t i = 0; i < q->pieces; i++)
        tb_endpoint_moved(&l->r.endpoint, q->cookies[i], error ? -EAGAIN : 0);
}

void ofi_refused_locked(struct ofi_link *l, int err, const char *what, int64_t now)
{
    l->pause = l->pause ? 2 * l->pause : PAUSE_FIRST;
    l->pause = l->pause < PAUSE_MOST ? l->pause : PAUSE_MOST;
    l->retry_at = now + l->pause;
    snprintf(l->error, sizeof l->error, "%s: %s", what, l->ofi->lib->strerror(err < 0 ? -err : err));
    if (atomic_fetch_add_explicit(&l->errors, 1, memory_order_relaxed) == 0)
        base_log(BASE_LOG_INFO, "node %u at %s: %s; weft tries again, for at most the time of WEFT_RECONNECT", l->r.link->node, l->name,
                 l->error);
    fab_kick(l->ofi->w); /* so that the progress thread tries again at retry_at: perhaps nothing else wakes it in time */
}

void ofi_link_open_locked(struct ofi_link *l)
{
    l->shut = false;
    l->open_at = l->pause = 0;
    l->r.endpoint.stream.ack_now = true; /* send something in any case, because the peer may wait for it */
    tb_stream_again(&l->r.endpoint.stream);
}

static bool link_pauses(const struct ofi_link *l)
{
    return BASE_UNLIKELY(l->shut) || (BASE_UNLIKELY(l->pause) && base_recent_ns() < l->retry_at);
}

/* Under `calls`. */
static void *link_descriptor(const struct ofi_link *l, const void *frame)
{
    if (!l->frames)
        return ofi_descriptor_locked(l->ofi, frame);
    return l->frames->mr ? fi_mr_desc(l->frames->mr) : NULL;
}

/* Takes `calls`, before threads that poll. They hold it nearly all the time while the provider sends bytes that a peer gets, so that a
 * thread with a frame to send would wait for milliseconds. */
static void link_lock_calls(struct ofi *o)
{
    if (BASE_LIKELY(base_spin_try(&o->calls)))
        return;
    atomic_fetch_add_explicit(&o->senders, 1, memory_order_relaxed);
    base_spin_lock(&o->calls);
    atomic_fetch_sub_explicit(&o->senders, 1, memory_order_relaxed);
}

static bool link_emit(void *ctx, uint32_t slot, void *frame, uint32_t bytes)
{
    struct ofi_link *l = ctx;
    struct ofi *o = l->ofi;
    ssize_t rc = -FI_EAGAIN;
    if (link_pauses(l))
        return link_no_room(l);
    link_lock_calls(o);
    bool inject = bytes <= o->info->tx_attr->inject_size;
    if (!o->ep) {
        inject = false;
    } else if (inject) {
        rc = fi_inject(o->ep, frame, bytes, l->peer);
    } else {
        struct ofi_request *q = ofi_request_take_locked(o, OFI_FRAME, l->r.link->node);
        if (q) {
            q->slot = slot;
            rc = fi_send(o->ep, frame, bytes, link_descriptor(l, frame), l->peer, &q->context);
            if (rc)
                ofi_request_free_locked(o, q);
        }
    }
    base_spin_unlock(&o->calls);
    if (rc == 0) {
        if (inject) /* the provider has copied the frame, so the send is complete */
            tb_endpoint_left(&l->r.endpoint, slot);
        return true;
    }
    if (rc != -FI_EAGAIN)
        ofi_refused_locked(l, (int)rc, "the provider refuses a send to that node", base_now_ns());
    return link_no_room(l);
}

/* Passes a request to the provider. Returns 0, or libfabric's error. */
static ssize_t link_request(struct ofi_link *l, const struct ofi_pieces *p)
{
    struct ofi *o = l->ofi;
    void *descriptors[OFI_TOGETHER];
    struct fi_msg_rma m = {.msg_iov = p->here, .desc = descriptors, .iov_count = p->count, .rma_iov = p->there, .rma_iov_count = p->count};
    ssize_t rc = -FI_EAGAIN;
    link_lock_calls(o);
    struct ofi_request *q = o->ep ? ofi_request_take_locked(o, p->get ? OFI_GET : OFI_PUT, l->r.link->node) : NULL;
    if (q) {
        for (uint32_t i = 0; i < p->count; i++) {
            descriptors[i] = ofi_descriptor_locked(o, p->here[i].iov_base);
            q->cookies[i] = p->cookies[i];
        }
        q->pieces = p->count;
        q->bytes = p->bytes;
        q->used = l->moving + p->bytes >= l->window.size / 2;
        q->began = base_recent_ns();
        m.addr = l->peer;
        m.context = &q->context;
        rc = p->get ? fi_readmsg(o->ep, &m, FI_COMPLETION) : fi_writemsg(o->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE);
        if (rc)
            ofi_request_free_locked(o, q);
    }
    base_spin_unlock(&o->calls);
    return rc;
}

static bool link_start(struct ofi_link *l, const struct ofi_pieces *p)
{
    const struct ofi *o = l->ofi;
    ssize_t rc = link_request(l, p);
    if (rc == 0) {
        l->moves++;
        l->moving += p->bytes;
        return true;
    }
    bool refused = rc == -FI_ENOSYS || rc == -FI_EOPNOTSUPP || rc == -FI_EBADFLAGS || rc == -FI_EINVAL;
    if (refused && p->count > 1) {
        l->most_together = 1; /* the operations begin again, each with a request of its own */
    } else if (refused) {
        base_log(BASE_LOG_INFO,
                 "provider %s of libfabric refuses to read and write the memory of other nodes (RMA): %s; large puts and gets are sent in "
                 "frames instead",
                 o->info->fabric_attr->prov_name, o->lib->strerror((int)-rc));
        l->r.endpoint.move_least = UINT64_MAX;
    } else if (rc != -FI_EAGAIN) {
        ofi_refused_locked(l, (int)rc, "the provider refuses a read or write of that node's memory (RMA)", base_now_ns());
    }
    return link_no_room(l);
}

static void link_add(const struct ofi_link *l, struct ofi_pieces *p, uint8_t *local, uint64_t remote, uint64_t len, void *cookie)
{
    uint64_t offset = l->base ? l->base + remote : remote & ((UINT64_C(1) << l->shift) - 1), key = l->keys[remote >> l->shift];
    uint32_t i = p->count++;
    p->here[i] = (struct iovec){.iov_base = local, .iov_len = len};
    p->there[i] = (struct fi_rma_iov){.addr = offset, .len = len, .key = l->fixed ? key : ofi_key(key, l->keys_shift)};
    p->cookies[i] = cookie;
    p->bytes += (uint32_t)len;
}

/* Starts the operations that wait in `together`. If the provider does not accept them, they begin again later. */
static void link_post(void *ctx)
{
    struct ofi_link *l = ctx;
    struct ofi_pieces *p = &l->together;
    struct tb_endpoint *e = &l->r.endpoint;
    if (!p->count)
        return;
    if (!link_start(l, p)) {
        *(p->get ? &e->counts.fetched_bytes : &e->counts.sent_bytes) -= p->bytes;
        while (p->count)
            tb_endpoint_moved(e, p->cookies[--p->count], -EAGAIN);
    }
    p->count = p->bytes = 0;
}

/* Whether another move may begin. If not, none begins until a quarter of what may be under way is free: then several small operations
 * begin together. */
static bool link_has_room(struct ofi_link *l, uint64_t len)
{
    uint32_t moves = l->moves + (l->together.count != 0), most = l->full ? OFI_MOVES - OFI_MOVES / 4 : OFI_MOVES;
    uint64_t least = l->full ? l->window.size / 4 : 0, needs = l->together.bytes + (len > least ? len : least);
    l->full = moves && (moves >= most || l->moving + needs > l->window.size);
    return !l->full; /* if false: when a move ends, the link is pumped again */
}

static bool link_move(void *ctx, bool get, bool whole, uint8_t *local, uint64_t remote, uint64_t len, void *cookie)
{
    struct ofi_link *l = ctx;
    if (!link_has_room(l, len))
        return false;
    if (link_pauses(l))
        return link_no_room(l);
    if (!whole || len > OFI_TOGETHER_BYTES / 2 || l->most_together == 1) {
        struct ofi_pieces one = {.get = get};
        link_add(l, &one, local, remote, len, cookie);
        return link_start(l, &one);
    }
    struct ofi_pieces *p = &l->together;
    if (p->count == l->most_together || (p->count && (p->get != get || p->bytes + len > OFI_TOGETHER_BYTES))) {
        if (!link_start(l, p))
            return false; /* they are posted again by link_post() */
        p->count = p->bytes = 0;
    }
    p->get = get;
    link_add(l, p, local, remote, len, cookie);
    return true;
}

/* Whether an RMA request can use this local memory. If the provider needs local memory to be registered, the memory must be in one segment
 * of the pool. */
static bool link_movable(void *ctx, const uint8_t *local, uint64_t len)
{
    const struct ofi_link *l = ctx;
    const struct ofi *o = l->ofi;
    uintptr_t at = (uintptr_t)local, base = (uintptr_t)o->w->pool_base;
    if (!o->traits.local)
        return true;
    return at >= base && at - base < o->w->pool_bytes && len <= o->w->pool_bytes - (at - base) &&
           (at - base) >> o->shift == (at - base + len - 1) >> o->shift;
}

static void link_completed(void *ctx, weft_op *op, int status)
{
    (void)ctx;
    fab_complete(op, status);
}

static int link_own_frames(struct ofi_link *l)
{
    base_spin_lock(&l->ofi->calls);
    int rc = ofi_frames_take_locked(l->ofi, l->r.link->node, &l->frames);
    base_spin_unlock(&l->ofi->calls);
    return rc ? base_context(rc, "link to node %u", l->r.link->node) : 0;
}

/* How many operations may share an RMA request. More than one only with the providers over TCP, with which this was tested. */
static uint32_t link_together(const struct ofi *o)
{
    const struct fi_tx_attr *t = o->info->tx_attr;
    size_t most = t->iov_limit < t->rma_iov_limit ? t->iov_limit : t->rma_iov_limit;
    return !o->traits.tcp || most < 1 ? 1 : most < OFI_TOGETHER ? (uint32_t)most : OFI_TOGETHER;
}

int ofi_link_ready(struct ofi_link *l, uint32_t session)
{
    struct ofi *o = l->ofi;
    struct weft_node *w = o->w;
    uint32_t node = l->r.link->node, place = node < w->rank ? node : node - 1;
    size_t most = o->info->ep_attr->max_msg_size;
    bool rma = o->traits.rma && l->keys_count;
    int rc = fab_late(w, node) ? link_own_frames(l) : 0;
    if (rc)
        return rc;
    struct tb_endpoint_env env = {.ctx = l,
                                  .emit = link_emit,
                                  .message = records_message_keep,
                                  .complete = link_completed,
                                  .move = link_move,
                                  .post = link_post,
                                  .movable = link_movable};
    struct tb_endpoint_config config = {
        .here = (uint16_t)w->rank,
        .node = (uint16_t)node,
        .session = session,
        .frames = l->frames ? l->frames->at : o->link_frames + place * OFI_LINK_FRAMES,
        .pool = w->pool_base,
        .pool_bytes = w->pool_bytes,
        .first_byte = FAB_NULL_BYTES,
        .segment = UINT64_C(1) << OFI_SEGMENT_SHIFT,
        .check = TB_CHECK_FULL,
        .move_least = rma ? OFI_MOVE_LEAST : 0,
        .move_most = OFI_MOVE_LEAST,
        .move_segment = UINT64_C(1) << l->shift,
    };
    l->r.inbox = malloc(TB_MESSAGES * sizeof *l->r.inbox);
    if (!l->r.inbox)
        return base_fail(-ENOMEM, "ofi: no memory for messages of node %u" BASE_MEMORY_HINT, node);
    tb_endpoint_init(&l->r.endpoint, &env, &config);
    struct tb_stream *s = &l->r.endpoint.stream;
    s->paced = true;
    s->rto = s->rto_least = RTO_LEAST;
    s->rto_most = RTO_MOST;
    s->window = (struct records_window){.size = FRAMES_FIRST, .least = FRAMES_LEAST, .most = TB_WINDOW};
    l->window = (struct records_window){.size = OFI_MOVES_FIRST, .least = OFI_MOVES_LEAST, .most = OFI_MOVES_BYTES};
    l->move_most = most < OFI_MOVE_BYTES ? most : OFI_MOVE_BYTES;
    link_share(l);
    l->most_together = link_together(o);
    if (o->fd < 0)
        atomic_store_explicit(&w->polled, true, memory_order_relaxed);
    /* release: a thread that polls sees a complete link (acquire in ofi_link_of) */
    __atomic_store_n(&o->links[node], l, __ATOMIC_RELEASE);
    return 0;
}
