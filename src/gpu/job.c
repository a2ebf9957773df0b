/* SPDX-License-Identifier: MIT
 *
 * Jobs of this node. If this process can access the GPU's memory, a job is one piece. Otherwise it is cut into pieces that fit into the
 * stage, of which a few are under way at a time. The word of an atomic or of a signal is a piece of its own, after the data.
 */
#include "gpu/arena.h"

#include <stdlib.h>

enum piece_step {
    PIECE_FREE,
    PIECE_FILL,    /* data is copied from a GPU to the memory that is sent from */
    PIECE_SEND,    /* the message to the owner must still be sent */
    PIECE_ANSWER,  /* waiting for the owner's answer */
    PIECE_ARRIVES, /* the handler of the answer is writing to this piece */
    PIECE_CAME,    /* the answer is complete */
    PIECE_FABRIC,  /* an operation on a pool is to begin, or is under way */
    PIECE_DRAIN,   /* data is copied to a GPU, or directly between the two ends */
    PIECE_DONE,
};

struct arena_piece {
    _Atomic uint32_t step;
    uint64_t id; /* the low 8 bits are its index in the table */
    struct arena_job *job;
    bool word; /* the piece is the atomic of the job, without data */
    bool started;
    uint64_t from, length; /* the range of the job's data */
    struct stage_slot *slot;
    /* the memory through which the data goes: a slot of the stage, `bytes`, or the near end itself; NULL: the piece is not staged */
    uint8_t *at;
    weft_gaddr addr; /* the address of `at`, in the pool */
    bool direct;     /* the near end is in an arena, and the RDMA device accesses it directly */
    struct arena_copy copy;
    weft_op op;
    int status;
    uint64_t value;
    uint8_t bytes[ARENA_LITTLE];
};
_Static_assert(ARENA_PIECES <= 256, "the id has 8 bits for it");

static enum piece_step step_of(const struct arena_piece *p)
{
    return (enum piece_step)atomic_load_explicit(&p->step, memory_order_acquire); /* pairs with job_answered() */
}

static void go_to(struct arena_piece *p, enum piece_step s)
{
    atomic_store_explicit(&p->step, s, memory_order_release);
}

static void piece_end(struct arena_piece *p, int status)
{
    p->status = status;
    go_to(p, PIECE_DONE);
}

/* --- beginning a piece --- */

static struct arena_piece *piece_take(struct arenas *c, struct arena_job *j)
{
    struct arena_peer *peer = &c->peer[j->node];
    if (c->pieces == ARENA_PIECES || (peer->pieces && peer->pieces >= ARENA_PIECES - c->pieces))
        return NULL; /* a node may not use more pieces than are free, so that others find some, too */
    struct arena_piece *p = c->piece;
    while (step_of(p) != PIECE_FREE)
        p++;
    p->id = (((p->id >> 8) + 1) << 8) | (uint64_t)(p - c->piece);
    p->job = j;
    p->word = p->started = p->direct = false;
    p->slot = NULL;
    p->at = NULL;
    p->copy = (struct arena_copy){0};
    p->status = 0;
    p->value = 0;
    c->pieces++;
    peer->pieces++;
    j->pieces++;
    return p;
}

static void piece_give(struct arenas *c, struct arena_piece *p)
{
    stage_give(&c->asks, p->slot);
    c->pieces--;
    c->peer[p->job->node].pieces--;
    p->job->pieces--;
    go_to(p, PIECE_FREE);
}

static bool far_is_pool(const struct arena_job *j)
{
    return weft_gaddr_space(j->far) == 0;
}

/* Chooses the memory through which the piece's data goes from one end to the other. False: there is no room now. */
static bool piece_place(struct arenas *c, struct arena_job *j, struct arena_piece *p, int *why)
{
    uint64_t left = j->length - j->begun;
    *why = 0;
    p->from = j->begun;
    if (!far_is_pool(j) && j->length <= ARENA_LITTLE) {
        p->length = left;
        p->at = p->bytes;
        return true;
    }
    if (!j->near_arena && (p->addr = weft_addr(c->w, j->near + j->begun)) != WEFT_NULL) {
        p->length = left < ARENA_PIECE ? left : ARENA_PIECE;
        p->at = j->near + j->begun;
        return true;
    }
    if (far_is_pool(j) && rdma_leads(c, j->near_arena, j->node)) {
        p->length = left < ARENA_PIECE ? left : ARENA_PIECE;
        p->at = j->near + j->begun;
        p->direct = true;
        return true;
    }
    if (!(p->slot = stage_take(c->w, &c->asks, j->node, why)))
        return false;
    p->length = left < p->slot->bytes ? left : p->slot->bytes;
    p->at = p->slot->at;
    p->addr = p->slot->addr;
    return true;
}

/* Moves the data from the near end to the memory that is sent. */
static void piece_fill(struct arena_job *j, struct arena_piece *p)
{
    const uint8_t *near = j->near + p->from;
    int rc = 0;
    go_to(p, far_is_pool(j) ? PIECE_FABRIC : PIECE_SEND);
    if (j->kind == JOB_GET || p->at == near)
        return;
    if (j->near_arena) {
        go_to(p, PIECE_FILL);
        rc = arena_copy(&p->copy, &j->near_arena->place, p->at, near, p->length);
    } else {
        memcpy(p->at, near, p->length);
    }
    if (rc)
        piece_end(p, rc);
}

/* How long a copy should take at most, unless the bus is slow or busy. */
#define COPY_GBS     10 /* bytes a nanosecond */
#define COPY_MOST_NS (8 * WEFT_MS)
static void expect_copy(struct arenas *c, uint64_t bytes)
{
    int64_t ns = bytes / COPY_GBS < COPY_MOST_NS ? (int64_t)(bytes / COPY_GBS) + 20 * WEFT_US : COPY_MOST_NS;
    int64_t until = base_now_ns() + ns;
    if (until > atomic_load_explicit(&c->copies_until, memory_order_relaxed)) /* under `stepping`: one thread writes */
        atomic_store_explicit(&c->copies_until, until, memory_order_relaxed);
}

static void piece_direct(struct arenas *c, struct arena_job *j, struct arena_piece *p)
{
    const struct gpu_place *place = view_copier(j->near_arena, j->far_arena);
    bool in = j->kind == JOB_GET;
    p->from = 0;
    p->length = j->length;
    go_to(p, PIECE_DRAIN);
    /* NULL: no GPU can make the copy, because it was closed before this job began */
    int rc = place ? arena_copy(&p->copy, place, in ? j->near : j->far_at, in ? j->far_at : j->near, j->length) : -EFAULT;
    if (rc)
        piece_end(p, rc);
    else
        expect_copy(c, j->length);
}

static bool own(const struct arenas *c, weft_gaddr a)
{
    return weft_gaddr_node(a) == c->w->rank;
}

static void piece_word(struct arenas *c, struct arena_job *j, struct arena_piece *p)
{
    struct gpu_arena *a;
    void *at;
    p->word = true;
    if (weft_gaddr_space(j->word) == 0) {
        go_to(p, PIECE_FABRIC);
    } else if (own(c, j->word)) {
        int rc = arena_enter(c, j->word, 8, &a, &at);
        if (!rc)
            rc = a->place.backend->atomic(a->place.device, at, j->atomic, j->a, j->b, &p->value);
        arena_leave(a);
        piece_end(p, rc);
    } else {
        go_to(p, PIECE_SEND);
    }
}

/* Begins the next piece of a job, if there is room. True: one has begun. */
static bool job_begin_piece(struct arenas *c, struct arena_job *j)
{
    bool bytes = j->begun < j->length;
    if (!bytes && j->pieces)
        return false; /* the word comes after the data */
    struct arena_piece *p = piece_take(c, j);
    int why = 0;
    if (!p)
        return false;
    if (!bytes) {
        j->word_left = false;
        piece_word(c, j, p);
        return true;
    }
    if (j->far_at) {
        piece_direct(c, j, p);
    } else if (piece_place(c, j, p, &why)) {
        piece_fill(j, p);
    } else {
        piece_give(c, p);
        j->status = why;
        return why != 0;
    }
    j->begun += p->length;
    return true;
}

/* --- steps --- */

static void piece_send(struct arenas *c, struct arena_job *j, struct arena_piece *p)
{
    bool put = j->kind == JOB_PUT, inside = p->at == p->bytes;
    weft_gaddr far = p->word ? j->word : j->far + p->from;
    struct arena_message m = {
        .id = p->id,
        .kind = p->word  ? ASK_ATOMIC
                : inside ? (put ? ASK_WRITE : ASK_READ)
                         : (put ? ASK_PULL : ASK_PUSH),
        .space = weft_gaddr_space(far),
        .offset = weft_gaddr_offset(far),
        .length = p->word ? 8 : p->length,
        .a = p->word  ? j->a
             : inside ? 0
                      : p->addr,
        .b = p->word ? j->b : 0,
        .atomic = p->word ? j->atomic : 0,
    };
    if (p->word && j->length && fab_alive(c->w, j->node)) /* the atomic of a signal comes after its data */
        c->w->links[j->node].transport->fence(c->w, &c->w->links[j->node]);
    uint32_t expected = PIECE_ANSWER;
    go_to(p, PIECE_ANSWER); /* before the send, because the answer may come at once */
    bool bytes = m.kind == ASK_WRITE;
    int rc = fab_send(c->w, j->node, ARENA_HANDLER_ASK, &m, sizeof m, bytes ? p->bytes : NULL, bytes ? p->length : 0, NULL);
    while (rc && !atomic_compare_exchange_weak_explicit(&p->step, &expected, rc == -EAGAIN ? PIECE_SEND : PIECE_ARRIVES,
                                                        memory_order_acq_rel, memory_order_acquire)) {
        if (expected == PIECE_CAME)
            return;              /* the owner has answered although the send failed: the answer counts */
        expected = PIECE_ANSWER; /* a handler is checking an answer, which another node may have forged: look again */
    }
    if (rc && rc != -EAGAIN)
        piece_end(p, rc);
}

static void piece_await(struct arenas *c, struct arena_job *j, struct arena_piece *p)
{
    uint32_t expected = PIECE_ANSWER;
    if (!fab_alive(c->w, j->node) &&
        atomic_compare_exchange_strong_explicit(&p->step, &expected, PIECE_DONE, memory_order_acq_rel, memory_order_acquire))
        p->status = -ECONNRESET;
}

/* Moves the data to the near end. */
static void piece_drain(struct arena_job *j, struct arena_piece *p)
{
    uint8_t *near = j->near + p->from;
    if (p->status || p->word || j->kind != JOB_GET || p->at == near) {
        go_to(p, PIECE_DONE);
    } else if (j->near_arena) {
        go_to(p, PIECE_DRAIN);
        int rc = arena_copy(&p->copy, &j->near_arena->place, near, p->at, p->length);
        if (rc)
            piece_end(p, rc);
    } else {
        memcpy(near, p->at, p->length);
        go_to(p, PIECE_DONE);
    }
}

static int fabric_start(struct arenas *c, struct arena_job *j, struct arena_piece *p)
{
    struct fab_link *l = &c->w->links[j->node];
    if (p->word) {
        if (!fab_alive(c->w, j->node))
            return -ECONNRESET;
        l->transport->fence(c->w, l);
        return weft_put_signal(c->w, j->word, NULL, 0, j->word, j->a, &p->op);
    }
    return j->kind == JOB_PUT ? weft_put(c->w, j->far + p->from, p->at, p->length, &p->op)
                              : weft_get(c->w, p->at, j->far + p->from, p->length, &p->op);
}

static int fabric_step(struct arenas *c, struct arena_job *j, struct arena_piece *p)
{
    int rc = 0;
    if (p->direct)
        return rdma_step(c, j->near_arena, j->kind == JOB_GET, p->at, j->far + p->from, p->length, &p->op, &p->started);
    if (!p->started) {
        rc = fabric_start(c, j, p);
        p->started = rc == 0;
    }
    return p->started ? weft_test(c->w, &p->op) : rc;
}

static void piece_fabric(struct arenas *c, struct arena_job *j, struct arena_piece *p)
{
    int rc = fabric_step(c, j, p);
    if (rc == -EAGAIN || rc == -EINPROGRESS)
        return;
    if (p->direct && rc == -ECONNABORTED) {
        j->again = true;
        rc = 0;
    }
    p->status = rc;
    piece_drain(j, p);
}

/* A copy has ended: go to the piece's next step. */
static void piece_copied(struct arena_job *j, struct arena_piece *p, bool fill)
{
    int rc = arena_copied(&p->copy);
    if (rc == -EINPROGRESS)
        return;
    if (rc || !fill)
        piece_end(p, rc);
    else
        go_to(p, far_is_pool(j) ? PIECE_FABRIC : PIECE_SEND);
}

static void piece_look(struct arenas *c, struct arena_piece *p)
{
    struct arena_job *j = p->job;
    switch (step_of(p)) {
    case PIECE_FILL: piece_copied(j, p, true); break;
    case PIECE_SEND: piece_send(c, j, p); break;
    case PIECE_ANSWER: piece_await(c, j, p); break;
    case PIECE_CAME: piece_drain(j, p); break;
    case PIECE_FABRIC: piece_fabric(c, j, p); break;
    case PIECE_DRAIN: piece_copied(j, p, false); break;
    default: break;
    }
}

/* --- answers, in a handler --- */

void job_answered(struct arenas *c, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len)
{
    struct arena_answer a;
    /* acquire pairs with carrier_start(): the table of pieces exists */
    if (header_len != sizeof a || !atomic_load_explicit(&c->started, memory_order_acquire))
        return;
    memcpy(&a, header, sizeof a);
    struct arena_piece *p = &c->piece[(a.id & 255) % ARENA_PIECES];
    uint32_t expected = PIECE_ANSWER;
    /* Only the owner that was asked may answer, and only while the answer is awaited: `id` and `job` are written before that. */
    if (!atomic_compare_exchange_strong_explicit(&p->step, &expected, PIECE_ARRIVES, memory_order_acq_rel, memory_order_relaxed))
        return;
    if (p->id != a.id || p->job->node != from) {
        go_to(p, PIECE_ANSWER);
        return;
    }
    bool reads = !p->word && p->job->kind == JOB_GET && p->at == p->bytes;
    int status = a.status > 0 || a.status < -4095 ? -EINPROGRESS : base_status_in((int)a.status);
    p->status = status == -EINPROGRESS || len != (reads && !status ? p->length : 0) ? -EPROTO : status;
    p->value = a.value;
    if (!p->status && len)
        memcpy(p->bytes, payload, len);
    go_to(p, PIECE_CAME);
    arena_ring(c);
}

/* --- jobs --- */

static bool all_begun(const struct arena_job *j)
{
    return j->status || (j->begun == j->length && !j->word_left);
}

/* The job is complete: remove it from its list, and complete its op. */
static void job_end(struct arenas *c, struct arena_job *j)
{
    struct arena_peer *peer = &c->peer[j->node];
    if (j->status == 0 && j->old)
        *j->old = j->a; /* the value before the atomic: see job_piece_done() */
    if (j->status && !j->op) {
        int none = 0;
        atomic_compare_exchange_strong_explicit(&peer->failure, &none, j->status, memory_order_relaxed, memory_order_relaxed);
    }
    arena_leave(j->near_arena);
    arena_leave(j->far_arena);
    base_spin_lock(&c->lock);
    struct arena_job *before = NULL, *at = peer->first;
    while (at != j) {
        before = at;
        at = at->next;
    }
    if (before)
        before->next = j->next;
    else
        peer->first = j->next;
    if (peer->next == j)
        peer->next = j->next;
    if (peer->last == j)
        peer->last = before;
    peer->count--;
    /* release: pairs with the acquire in carrier_flushed(), which then sees what the job has written */
    atomic_store_explicit(&peer->oldest, peer->first ? peer->first->number : peer->begun, memory_order_release);
    base_spin_unlock(&c->lock);
    atomic_fetch_sub_explicit(&c->active, 1, memory_order_relaxed);
    fab_complete(j->op, j->status);
    free(j);
    fab_wake_here(c->w);
}

/* Begins the job again, with all its data. Jobs behind it may have begun; peer_step() passes over them. */
static void job_restart(struct arenas *c, struct arena_job *j)
{
    base_spin_lock(&c->lock);
    if (all_begun(j))
        c->peer[j->node].next = j;
    j->again = false;
    j->begun = 0;
    base_spin_unlock(&c->lock);
}

static void job_piece_done(struct arenas *c, struct arena_piece *p)
{
    struct arena_job *j = p->job;
    if (p->status && !j->status)
        j->status = p->status;
    if (p->word && !p->status)
        j->a = p->value;
    piece_give(c, p);
    if (j->pieces == 0 && j->again && !j->status)
        job_restart(c, j);
    else if (j->pieces == 0 && all_begun(j))
        job_end(c, j);
}

/* Begins pieces of the peer's jobs, in order, as far as there is room. */
static bool peer_step(struct arenas *c, struct arena_peer *peer)
{
    bool moved = false;
    for (;;) {
        base_spin_lock(&c->lock);
        struct arena_job *j = peer->next;
        base_spin_unlock(&c->lock);
        if (!j)
            return moved;
        while (!all_begun(j) && job_begin_piece(c, j))
            moved = true;
        if (!all_begun(j))
            return moved;
        base_spin_lock(&c->lock);
        peer->next = j->next;
        base_spin_unlock(&c->lock);
        if (j->pieces == 0) /* no piece of it could begin */
            job_end(c, j);
    }
}

bool job_step(struct arenas *c)
{
    bool moved = false;
    for (uint32_t i = 0; i < c->w->size; i++)
        moved |= peer_step(c, &c->peer[i]);
    for (uint32_t i = 0, left = c->pieces; left && i < ARENA_PIECES; i++) {
        struct arena_piece *p = &c->piece[i];
        enum piece_step before = step_of(p);
        if (before == PIECE_FREE)
            continue;
        left--;
        piece_look(c, p);
        enum piece_step now = step_of(p);
        moved |= now != before;
        if (now == PIECE_DONE)
            job_piece_done(c, p);
    }
    return moved;
}

/* --- making jobs --- */

struct arena_piece *job_table(void)
{
    return calloc(ARENA_PIECES, sizeof(struct arena_piece));
}

static int job_resolve(struct arenas *c, struct arena_job *j)
{
    void *at = NULL;
    int rc = 0;
    if (j->length)
        j->near_arena = arena_enter_memory(c, j->near, j->length);
    if (j->length && weft_gaddr_space(j->far))
        rc = arena_enter(c, j->far, j->length, &j->far_arena, &at);
    else if (j->length && j->near_arena)
        at = weft_ptr(c->w, j->far, j->length);
    /* neither GPU can access the other's memory: transfer as between two nodes */
    bool apart = !rc && j->near_arena && j->far_arena && !view_copier(j->near_arena, j->far_arena);
    j->far_at = apart ? NULL : at;
    if (!rc && j->length && weft_gaddr_space(j->far) && !own(c, j->far))
        rc = arena_known(c, j->far, j->length);
    if (!rc && j->word_left && weft_gaddr_space(j->word) && !own(c, j->word))
        rc = arena_known(c, j->word, 8);
    if (!rc && j->word_left && weft_gaddr_space(j->word) && own(c, j->word)) {
        struct gpu_arena *a;
        rc = arena_enter(c, j->word, 8, &a, &at); /* checks that the word exists */
        if (!rc)
            arena_leave(a);
    }
    if (!rc && j->length && !j->near_arena && c->w->arenas->owns(c->w, j->near))
        rc = base_fail(-EFAULT, "%llu bytes at %p: they reach beyond the end of their GPU arena, or the arena is being closed",
                       (unsigned long long)j->length, (void *)j->near);
    if (rc) {
        arena_leave(j->near_arena);
        arena_leave(j->far_arena);
    }
    return rc;
}

struct room {
    struct arenas *c;
    uint32_t node;
};

static bool has_room(void *arg)
{
    struct room *r = arg;
    base_spin_lock(&r->c->lock);
    bool has = r->c->peer[r->node].count < ARENA_JOBS;
    base_spin_unlock(&r->c->lock);
    return has || !fab_alive(r->c->w, r->node);
}

static int job_wait(struct arenas *c, uint32_t node)
{
    struct room r = {c, node};
    if (has_room(&r))
        return fab_refuse_node(c->w, node);
    if (fab_in_handler())
        return base_fail(-ENOBUFS, "node %u: %u operations on GPUs' memory, the most possible, are under way; start fewer in a handler",
                         node, ARENA_JOBS);
    int rc = fab_wait_for_room(c->w, has_room, &r);
    if (rc == -ETIMEDOUT)
        return base_fail(rc, "node %u: none of %u operations on GPUs' memory met the deadline (is the node stopped?)", node, ARENA_JOBS);
    return rc ? rc : fab_refuse_node(c->w, node);
}

int job_begin(struct arenas *c, const struct arena_job *what, weft_op *op)
{
    int rc = fab_refuse_node(c->w, what->node);
    if (!rc)
        rc = job_wait(c, what->node);
    if (!rc)
        rc = arena_start(c);
    if (rc)
        return rc;
    struct arena_job *j = malloc(sizeof *j);
    if (!j)
        return base_fail(-ENOMEM, "no memory for an operation on a GPU's memory" BASE_MEMORY_HINT);
    *j = *what;
    j->op = op;
    rc = job_resolve(c, j);
    if (rc) {
        free(j);
        return rc;
    }
    if (op)
        fab_pending(op, j->node);
    struct arena_peer *peer = &c->peer[j->node];
    atomic_fetch_add_explicit(&c->active, 1, memory_order_relaxed);
    base_spin_lock(&c->lock);
    j->number = peer->begun++;
    if (peer->last)
        peer->last->next = j;
    else
        peer->first = j;
    peer->last = j;
    if (!peer->next)
        peer->next = j;
    peer->count++;
    atomic_store_explicit(&peer->oldest, peer->first->number, memory_order_relaxed);
    base_spin_unlock(&c->lock);
    atomic_store_explicit(&c->w->arenas_used, true, memory_order_relaxed);
    return 0;
}

void job_free(struct arenas *c)
{
    for (uint32_t i = 0; c->peer && i < c->w->size; i++)
        for (struct arena_job *j; (j = c->peer[i].first);) {
            c->peer[i].first = j->next;
            fab_complete(j->op, -ECONNRESET);
            free(j);
        }
    free(c->piece);
}
