/* SPDX-License-Identifier: MIT
 *
 * Pieces of jobs. If this process can access the GPU's memory, a job is one piece. Otherwise the job is cut into pieces that fit into the
 * stage. A piece of a put goes into a slot that the owner has granted (grant.c); if the node has no slot, the owner gets the piece. The
 * word of an atomic or of a signal is a piece of its own, after the data.
 */
#include "gpu/arena.h"

#include <stdlib.h>

#define TAIL_MOST  (512u << 10) /* maximum number of bytes at the end of a job that are one piece */
#define TAIL_PARTS 8u           /* of the last bytes, one part of so many is a piece of its own */
#define TAIL_UNIT  (64u << 10)

static enum piece_step step_of(const struct arena_piece *p)
{
    return (enum piece_step)atomic_load_explicit(&p->step, memory_order_acquire); /* pairs with piece_answered() */
}

static void go_to(struct arena_piece *p, enum piece_step s)
{
    atomic_store_explicit(&p->step, s, memory_order_release);
}

bool piece_used(const struct arena_piece *p)
{
    return step_of(p) != PIECE_FREE;
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
        return NULL; /* the pieces for one node may be at most as many as stay free, so that other nodes find free pieces, too */
    struct arena_piece *p = c->piece;
    while (step_of(p) != PIECE_FREE)
        p++;
    p->id = (((p->id >> 8) + 1) << 8) | (uint64_t)(p - c->piece);
    p->job = j;
    p->word = p->started = p->direct = false;
    p->slot = NULL;
    p->grant = NULL;
    p->fate = GRANT_STAYS;
    p->at = NULL;
    p->copy = (struct arena_copy){0};
    p->status = 0;
    p->value = 0;
    c->pieces++;
    peer->pieces++;
    j->pieces++;
    return p;
}

void piece_give(struct arenas *c, struct arena_piece *p)
{
    if (p->grant)
        grant_end(c, p->job->node, p->grant, p->fate);
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

/* Whether the piece's data goes to or from a pool of the other node, by an operation of the fabric. */
static bool by_fabric(const struct arena_piece *p)
{
    return p->grant || far_is_pool(p->job);
}

/* Maximum number of bytes of a piece that goes into a granted slot. The last piece of a large job is smaller, so that the last copy to the
 * GPU is short. Only the last one is, because a piece costs the owner about as much time as the copy of 1 MiB. */
static uint64_t granted_most(uint64_t left, uint64_t slot)
{
    uint64_t most = left > TAIL_MOST ? (left - left / TAIL_PARTS) / TAIL_UNIT * TAIL_UNIT : left;
    return most < slot ? most : slot;
}

/* Chooses where the piece's data goes at the other node. Returns false if no slot is free now. */
static bool piece_far(struct arenas *c, struct arena_job *j, struct arena_piece *p, uint64_t *most)
{
    bool pull = true;
    if (j->kind == JOB_PUT && !far_is_pool(j) && grant_serves(c, j->node, weft_gaddr_space(j->far)))
        p->grant = grant_take(c, j->node, &pull);
    if (p->grant)
        *most = granted_most(*most, p->grant->bytes);
    p->to = p->grant ? p->grant->at : j->far + p->from;
    return p->grant || pull;
}

/* Chooses the memory through which the piece's data goes at this node. Returns false if no memory is free now. */
static bool piece_near(struct arenas *c, struct arena_job *j, struct arena_piece *p, uint64_t *most, int *why)
{
    uint8_t *near = j->near + p->from;
    p->at = near;
    if (!j->near_arena && (p->addr = weft_addr(c->w, near)) != WEFT_NULL)
        return true;
    if (by_fabric(p) && rdma_leads(c, j->near_arena, j->node)) {
        p->direct = true;
        return true;
    }
    if (!(p->slot = stage_take(c->w, &c->asks, j->node, why)))
        return false;
    *most = *most < p->slot->bytes ? *most : p->slot->bytes;
    p->at = p->slot->at;
    p->addr = p->slot->addr;
    return true;
}

/* Chooses the memory through which the piece's data goes at both nodes. Returns false if no memory is free now at one of them. */
static bool piece_place(struct arenas *c, struct arena_job *j, struct arena_piece *p, int *why)
{
    uint64_t left = j->length - j->begun;
    *why = 0;
    p->from = j->begun;
    p->length = left;
    if (!far_is_pool(j) && j->length <= ARENA_LITTLE) {
        p->at = p->bytes;
        return true;
    }
    bool room = piece_far(c, j, p, &p->length) && piece_near(c, j, p, &p->length, why);
    p->length = p->length < ARENA_PIECE ? p->length : ARENA_PIECE;
    return room;
}

/* Copies the data from the local memory to the buffer from which it is sent. */
static void piece_fill(struct arena_job *j, struct arena_piece *p)
{
    const uint8_t *near = j->near + p->from;
    int rc = 0;
    go_to(p, by_fabric(p) ? PIECE_FABRIC : PIECE_SEND);
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
    if (until > atomic_load_explicit(&c->copies_until, memory_order_relaxed)) /* the caller holds `stepping`, so only one thread writes */
        atomic_store_explicit(&c->copies_until, until, memory_order_relaxed);
}

static void piece_direct(struct arenas *c, struct arena_job *j, struct arena_piece *p)
{
    const struct gpu_place *place = view_copier(j->near_arena, j->far_arena);
    bool in = j->kind == JOB_GET;
    p->from = 0;
    p->length = j->length;
    go_to(p, PIECE_DRAIN);
    /* `place` is NULL if the GPU that can make the copy was closed before this job began */
    int rc = place ? arena_copy(&p->copy, place, in ? j->near : j->far_at, in ? j->far_at : j->near, j->length) : -EFAULT;
    if (rc)
        piece_end(p, rc);
    else
        expect_copy(c, j->length);
}

static void piece_word(struct arenas *c, struct arena_job *j, struct arena_piece *p)
{
    struct gpu_arena *a;
    void *at;
    p->word = true;
    if (weft_gaddr_space(j->word) == 0) {
        go_to(p, PIECE_FABRIC);
    } else if (arena_is_own(c, j->word)) {
        int rc = arena_enter(c, j->word, 8, &a, &at);
        if (!rc)
            rc = a->place.backend->atomic(a->place.device, at, j->atomic, j->a, j->b, &p->value);
        arena_leave(a);
        piece_end(p, rc);
    } else {
        go_to(p, PIECE_SEND);
    }
}

/* Begins the next piece of a job, if possible. Returns true if a piece has begun. */
bool piece_begin(struct arenas *c, struct arena_job *j)
{
    bool bytes = j->begun < j->length;
    if (!bytes && j->pieces)
        return false; /* the piece with the atomic begins only when all pieces with data have ended */
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
        .kind = p->word    ? ASK_ATOMIC
                : p->grant ? ASK_LAND
                : inside   ? (put ? ASK_WRITE : ASK_READ)
                           : (put ? ASK_PULL : ASK_PUSH),
        .space = weft_gaddr_space(far),
        .offset = weft_gaddr_offset(far),
        .length = p->word ? 8 : p->length,
        .a = p->word    ? j->a
             : p->grant ? p->grant->at
             : inside   ? 0
                        : p->addr,
        .b = p->word ? j->b : 0,
        .atomic = p->word ? j->atomic : 0,
    };
    if (p->word && j->length && fab_alive(c->w, j->node)) /* the atomic of a signal comes after its data */
        c->w->links[j->node].transport->fence(c->w, &c->w->links[j->node]);
    uint32_t expected = PIECE_ANSWER;
    go_to(p, PIECE_ANSWER); /* do this before the send, because the answer may arrive at once */
    bool bytes = m.kind == ASK_WRITE;
    int rc = fab_send(c->w, j->node, ARENA_HANDLER_ASK, &m, sizeof m, bytes ? p->bytes : NULL, bytes ? p->length : 0, NULL);
    while (rc && !atomic_compare_exchange_weak_explicit(&p->step, &expected, rc == -EAGAIN ? PIECE_SEND : PIECE_ARRIVES,
                                                        memory_order_acq_rel, memory_order_acquire)) {
        if (expected == PIECE_CAME)
            return;              /* the owner has answered although the send failed */
        expected = PIECE_ANSWER; /* a handler is checking an answer, which may be forged: look again */
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

/* Moves the data to the local memory. */
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
    return j->kind == JOB_PUT ? weft_put(c->w, p->to, p->at, p->length, &p->op) : weft_get(c->w, p->at, p->to, p->length, &p->op);
}

static int fabric_step(struct arenas *c, struct arena_job *j, struct arena_piece *p)
{
    int rc = 0;
    if (p->direct)
        return rdma_step(c, j->near_arena, j->kind == JOB_GET, p->at, p->to, p->length, &p->op, &p->started);
    /* One put in a step: some transports send the bytes in this call, and meanwhile the owner may have answered other pieces. */
    if (!p->started && p->grant && c->put_begun)
        return -EAGAIN;
    if (!p->started) {
        rc = fabric_start(c, j, p);
        p->started = rc == 0;
        c->put_begun |= p->started && p->grant;
    }
    return p->started ? weft_test(c->w, &p->op) : rc;
}

static void piece_fabric(struct arenas *c, struct arena_job *j, struct arena_piece *p)
{
    p->fate = GRANT_LOST; /* the fate stays LOST until the owner has answered */
    int rc = fabric_step(c, j, p);
    if (rc == -EAGAIN || rc == -EINPROGRESS)
        return;
    if (p->direct && rc == -ECONNABORTED) {
        j->again = true;
        rc = 0;
    }
    p->status = rc;
    if (p->grant && !rc && !j->again)
        go_to(p, PIECE_SEND);
    else
        piece_drain(j, p);
}

/* A copy has ended: go to the piece's next step. */
static void piece_copied(struct arena_piece *p, bool fill)
{
    int rc = arena_copied(&p->copy);
    if (rc == -EINPROGRESS)
        return;
    if (rc || !fill)
        piece_end(p, rc);
    else
        go_to(p, by_fabric(p) ? PIECE_FABRIC : PIECE_SEND);
}

static void piece_look(struct arenas *c, struct arena_piece *p, enum piece_step step)
{
    struct arena_job *j = p->job;
    switch (step) {
    case PIECE_FILL: piece_copied(p, true); break;
    case PIECE_SEND: piece_send(c, j, p); break;
    case PIECE_ANSWER: piece_await(c, j, p); break;
    case PIECE_CAME: piece_drain(j, p); break;
    case PIECE_FABRIC: piece_fabric(c, j, p); break;
    case PIECE_DRAIN: piece_copied(p, false); break;
    default: break;
    }
}

bool piece_step(struct arenas *c, struct arena_piece *p, bool *moved)
{
    enum piece_step before = step_of(p);
    piece_look(c, p, before);
    enum piece_step now = step_of(p);
    *moved |= now != before;
    return now == PIECE_DONE;
}

/* --- answers, in a handler --- */

void piece_answered(struct arenas *c, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len)
{
    struct arena_answer a;
    /* acquire pairs with carrier_start(): the table of pieces exists */
    if (header_len != sizeof a || !atomic_load_explicit(&c->started, memory_order_acquire))
        return;
    memcpy(&a, header, sizeof a);
    struct arena_piece *p = &c->piece[(a.id & 255) % ARENA_PIECES];
    uint32_t expected = PIECE_ANSWER;
    /* Accept an answer only from the owner that was asked, and only while the piece waits for the answer. `id` and `job` were written
     * before that wait. */
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
    p->fate = a.value ? GRANT_STAYS : GRANT_TAKEN; /* only for a LAND: see request_end() */
    if (!p->status && len)
        memcpy(p->bytes, payload, len);
    go_to(p, PIECE_CAME);
    arena_ring(c);
}

struct arena_piece *piece_table(void)
{
    return calloc(ARENA_PIECES, sizeof(struct arena_piece));
}
