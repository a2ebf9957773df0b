/* SPDX-License-Identifier: MIT
 *
 * Requests of other nodes for this node's arenas. The handler checks every field and stores the request; the carrier thread carries it out.
 * The data of a large request goes through the stage, one buffer at a time. The stage is not used if the requester's pool is mapped in this
 * process, or if the RDMA device moves the data.
 */
#include "gpu/arena.h"

#include <stdlib.h>

enum request_step { REQUEST_NEW, REQUEST_DIRECT, REQUEST_FETCH, REQUEST_COPY, REQUEST_STORE, REQUEST_ANSWER };

struct arena_request {
    struct arena_request *next;
    uint32_t from;
    enum request_step step;
    struct arena_message m;
    struct gpu_arena *arena;
    uint8_t *at;     /* address in the arena */
    uint8_t *pool;   /* address of the requester's memory, if it is mapped in this process; else NULL */
    uint64_t done;   /* bytes that were moved */
    uint32_t moving; /* size of the part that is being moved */
    struct stage_slot *slot;
    struct stage_slot *landed; /* the slot into which the requester has put the bytes */
    bool waits;                /* the request waits for a slot */
    struct arena_copy copy;
    bool started; /* `op` was started */
    weft_op op;
    int status;
    uint64_t value;
    uint32_t len;    /* size of `bytes` */
    uint8_t bytes[]; /* the data of WRITE, READ */
};

static void refuse(struct weft_node *w, uint32_t to, const struct arena_message *m, int status)
{
    struct arena_answer a = {.id = m->id, .status = base_status_out(status), .value = m->kind == ASK_LAND};
    (void)fab_send(w, to, ARENA_HANDLER_ANSWER, &a, sizeof a, NULL, 0, NULL);
}

static int owner_check(const struct arena_message *m, size_t len)
{
    bool little = m->kind == ASK_WRITE || m->kind == ASK_READ;
    if (m->kind < ASK_WRITE || m->kind > ASK_LAND || m->space == 0 || m->space >= ARENA_SPACES)
        return -EINVAL;
    if (m->length > (little ? ARENA_LITTLE : ARENA_PIECE) || (m->kind == ASK_WRITE ? len != m->length : len != 0))
        return -EINVAL;
    if (m->offset >= WEFT_MAX_POOL_BYTES) /* an address has no room for the upper bits of such an offset */
        return -EFAULT;
    if (m->kind == ASK_ATOMIC && (m->length != 8 || m->offset % 8 || m->atomic > FAB_CAS))
        return -EINVAL;
    return 0;
}

void owner_asked(struct arenas *c, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len)
{
    struct arena_message m;
    if (header_len != sizeof m)
        return; /* no version of weft sends this: drop it */
    memcpy(&m, header, sizeof m);
    int rc = owner_check(&m, len);
    struct arena_peer *p = &c->peer[from];
    if (!rc && atomic_load_explicit(&p->requests, memory_order_relaxed) >= ARENA_REQUESTS)
        rc = -ENOBUFS;
    struct arena_request *r = rc ? NULL : calloc(1, sizeof *r + (m.kind == ASK_WRITE || m.kind == ASK_READ ? m.length : 0));
    if (!rc && (!r || arena_start(c)))
        rc = -ENOMEM;
    if (rc) {
        free(r);
        refuse(c->w, from, &m, rc);
        return;
    }
    r->from = from;
    r->m = m;
    r->len = (uint32_t)(m.kind == ASK_WRITE || m.kind == ASK_READ ? m.length : 0);
    if (len)
        memcpy(r->bytes, payload, len);
    atomic_fetch_add_explicit(&p->requests, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->active, 1, memory_order_relaxed);
    base_spin_lock(&c->lock);
    *c->arrived_end = r;
    c->arrived_end = &r->next;
    base_spin_unlock(&c->lock);
    if (m.kind != ASK_LAND || !c->turn(c)) /* a LAND's copy begins in this handler, because the thread would first have to wake up */
        arena_ring(c);
}

static void request_answer(struct arena_request *r, int status)
{
    r->status = status;
    r->step = REQUEST_ANSWER;
}

/* Takes the bytes from a slot that was granted to the requester. */
static void request_land(struct arenas *c, struct arena_request *r)
{
    r->landed = grant_land(c, r->from, r->m.a, r->m.length);
    int rc = r->landed ? arena_copy(&r->copy, &r->arena->place, r->at, r->landed->at, r->m.length) : -EFAULT;
    r->moving = (uint32_t)r->m.length;
    r->step = REQUEST_COPY;
    if (rc)
        request_answer(r, rc);
}

static void request_new(struct arenas *c, struct arena_request *r)
{
    const struct arena_message *m = &r->m;
    void *at;
    int rc = arena_enter(c, weft_gaddr_make(c->w->rank, m->space, m->offset), m->length, &r->arena, &at);
    r->at = at;
    if (rc) {
        request_answer(r, rc);
    } else if (m->kind == ASK_ATOMIC) {
        request_answer(r, r->arena->place.backend->atomic(r->arena->place.device, at, m->atomic, m->a, m->b, &r->value));
    } else if (m->kind == ASK_WRITE || m->kind == ASK_READ) {
        bool in = m->kind == ASK_WRITE;
        rc = arena_copy(&r->copy, &r->arena->place, in ? at : r->bytes, in ? r->bytes : at, r->len);
        r->moving = r->len;
        r->step = REQUEST_COPY;
        if (rc)
            request_answer(r, rc);
    } else if (m->kind == ASK_LAND) {
        request_land(c, r);
    } else if (weft_gaddr_node(m->a) != r->from || weft_gaddr_space(m->a) != 0) {
        request_answer(r, -EFAULT);
    } else {
        r->pool = weft_ptr(c->w, m->a, m->length);
        r->step = !r->pool && rdma_leads(c, r->arena, r->from) ? REQUEST_DIRECT : REQUEST_FETCH;
    }
}

/* Records whether a request waits for a slot. While a request waits, slots that are granted to nodes are taken back (grant_stays()). */
static void request_waits(struct arenas *c, struct arena_request *r, bool waits)
{
    c->waiting += (uint32_t)waits - (uint32_t)r->waits;
    r->waits = waits;
}

/* Lets the RDMA device move data between the arena and the requester's pool. If the device refuses, the stage is used instead. */
static void request_direct(struct arenas *c, struct arena_request *r)
{
    int rc = rdma_step(c, r->arena, r->m.kind == ASK_PULL, r->at, r->m.a, r->m.length, &r->op, &r->started);
    if (rc == -EAGAIN || rc == -EINPROGRESS)
        return;
    if (rc == -ECONNABORTED)
        r->step = REQUEST_FETCH;
    else
        request_answer(r, rc);
}

static bool request_slot(struct arenas *c, struct arena_request *r, int *why)
{
    r->slot = stage_take(c->w, &c->serves, r->from, why);
    request_waits(c, r, !r->slot && !*why);
    return r->slot;
}

/* Begins to move the next buffer: PULL reads it from the requester, PUSH copies it from the arena. */
static void request_fetch(struct arenas *c, struct arena_request *r)
{
    const struct arena_message *m = &r->m;
    uint64_t left = m->length - r->done;
    int rc = 0;
    if (!r->pool && !r->slot && !request_slot(c, r, &rc)) {
        if (rc)
            request_answer(r, rc);
        return;
    }
    r->moving = r->pool || left < r->slot->bytes ? (uint32_t)left : r->slot->bytes;
    if (m->kind == ASK_PULL && !r->pool) {
        if (!r->started) {
            rc = weft_get(c->w, r->slot->at, m->a + r->done, r->moving, &r->op);
            r->started = rc == 0;
        }
        if (r->started)
            rc = weft_test(c->w, &r->op);
        if (rc == -EAGAIN || rc == -EINPROGRESS)
            return;
        r->started = false;
    }
    uint8_t *here = r->pool ? r->pool + r->done : r->slot->at;
    bool in = m->kind == ASK_PULL;
    if (!rc)
        rc = arena_copy(&r->copy, &r->arena->place, in ? r->at + r->done : here, in ? here : r->at + r->done, r->moving);
    r->step = REQUEST_COPY;
    if (rc)
        request_answer(r, rc);
}

/* Called when a part of the request's bytes was moved or, if `rc` is an error, could not be moved. */
static void request_moved(struct arena_request *r, int rc)
{
    r->done += r->moving;
    if (rc || r->done == r->m.length)
        request_answer(r, rc);
    else
        r->step = REQUEST_FETCH;
}

static void request_copied(struct arena_request *r)
{
    int rc = arena_copied(&r->copy);
    if (rc == -EINPROGRESS)
        return;
    if (!rc && r->m.kind == ASK_PUSH && !r->pool) {
        r->step = REQUEST_STORE;
        return;
    }
    request_moved(r, rc);
}

static void request_store(struct arenas *c, struct arena_request *r)
{
    int rc = 0;
    if (!r->started) {
        rc = weft_put(c->w, r->m.a + r->done, r->slot->at, r->moving, &r->op);
        r->started = rc == 0;
    }
    if (r->started)
        rc = weft_test(c->w, &r->op);
    if (rc == -EAGAIN || rc == -EINPROGRESS)
        return;
    r->started = false;
    request_moved(r, rc);
}

/* Answers the request. Returns true if the answer was sent. */
static bool request_end(struct arenas *c, struct arena_request *r)
{
    if (!fab_alive(c->w, r->from))
        return true;
    if (r->m.kind == ASK_PUSH) /* flush first, so that the answer does not overtake the data */
        c->w->links[r->from].transport->fence(c->w, &c->w->links[r->from]);
    bool bytes = r->m.kind == ASK_READ && r->status == 0;
    bool stays = r->landed && grant_stays(c, r->landed);
    struct arena_answer a = {.id = r->m.id, .status = base_status_out(r->status), .value = r->m.kind == ASK_LAND ? stays : r->value};
    int rc = fab_send(c->w, r->from, ARENA_HANDLER_ANSWER, &a, sizeof a, bytes ? r->bytes : NULL, bytes ? r->len : 0, NULL);
    if (!rc && r->landed) {
        grant_landed(c, r->landed, stays);
        r->landed = NULL;
    }
    /* after any other error the answer is sent again later, because the requester waits for it */
    return rc == 0 || rc == -ECONNRESET;
}

/* Takes a step of a request. Returns true if the request has ended. */
static bool request_step(struct arenas *c, struct arena_request *r)
{
    if (r->step == REQUEST_NEW)
        request_new(c, r);
    if (r->step == REQUEST_DIRECT)
        request_direct(c, r);
    if (r->step == REQUEST_FETCH)
        request_fetch(c, r);
    if (r->step == REQUEST_COPY)
        request_copied(r);
    if (r->step == REQUEST_STORE)
        request_store(c, r);
    return r->step == REQUEST_ANSWER && request_end(c, r);
}

static void request_free(struct arenas *c, struct arena_request *r)
{
    stage_give(&c->serves, r->slot);
    request_waits(c, r, false);
    if (r->landed) /* the requester is gone */
        grant_landed(c, r->landed, !r->landed->ends);
    arena_leave(r->arena);
    atomic_fetch_sub_explicit(&c->peer[r->from].requests, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&c->active, 1, memory_order_relaxed);
    free(r);
}

static void take_arrived(struct arenas *c)
{
    base_spin_lock(&c->lock);
    if (c->arrived) {
        *c->requests_end = c->arrived;
        c->requests_end = c->arrived_end;
        c->arrived = NULL;
        c->arrived_end = &c->arrived;
    }
    base_spin_unlock(&c->lock);
}

bool owner_step(struct arenas *c)
{
    bool moved = false;
    take_arrived(c);
    for (struct arena_request **at = &c->requests, *r; (r = *at);) {
        enum request_step before = r->step;
        uint64_t done = r->done;
        bool over = request_step(c, r);
        moved = moved || over || r->step != before || r->done != done;
        if (!over) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        if (!*at)
            c->requests_end = at;
        request_free(c, r);
    }
    return moved;
}

void owner_free(struct arenas *c)
{
    take_arrived(c);
    for (struct arena_request *r; (r = c->requests);) {
        c->requests = r->next;
        request_free(c, r);
    }
    c->requests_end = &c->requests;
}
