/* SPDX-License-Identifier: MIT
 *
 * Jobs of this node, which are done piece by piece (piece.c).
 */
#include "gpu/arena.h"

#include <stdlib.h>

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

/* Begins the job again, with all its data. peer_step() passes over later jobs that have begun. */
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

/* Begins pieces of the peer's jobs, in order, as many as possible now. */
static bool peer_step(struct arenas *c, struct arena_peer *peer)
{
    bool moved = false;
    for (;;) {
        base_spin_lock(&c->lock);
        struct arena_job *j = peer->next;
        base_spin_unlock(&c->lock);
        if (!j)
            return moved;
        while (!all_begun(j) && piece_begin(c, j))
            moved = true;
        if (!all_begun(j))
            return moved;
        base_spin_lock(&c->lock);
        peer->next = j->next;
        base_spin_unlock(&c->lock);
        if (j->pieces == 0) /* no piece of this job could begin */
            job_end(c, j);
    }
}

bool job_step(struct arenas *c)
{
    bool moved = false;
    c->put_begun = false;
    for (uint32_t i = 0; i < c->w->size; i++)
        moved |= peer_step(c, &c->peer[i]);
    for (uint32_t i = 0, left = c->pieces; left && i < ARENA_PIECES; i++) {
        struct arena_piece *p = &c->piece[i];
        if (!piece_used(p))
            continue;
        left--;
        if (piece_step(c, p, &moved))
            job_piece_done(c, p);
    }
    return moved;
}

/* --- making jobs --- */
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
    /* if no GPU can access both arenas, transfer the data as between two nodes */
    bool apart = !rc && j->near_arena && j->far_arena && !view_copier(j->near_arena, j->far_arena);
    j->far_at = apart ? NULL : at;
    if (!rc && j->length && weft_gaddr_space(j->far) && !arena_is_own(c, j->far))
        rc = arena_known(c, j->far, j->length);
    if (!rc && j->word_left && weft_gaddr_space(j->word) && !arena_is_own(c, j->word))
        rc = arena_known(c, j->word, 8);
    if (!rc && j->word_left && weft_gaddr_space(j->word) && arena_is_own(c, j->word)) {
        struct gpu_arena *a;
        rc = arena_enter(c, j->word, 8, &a, &at); /* checks that the word exists */
        if (!rc)
            arena_leave(a);
    }
    if (!rc && j->length && !j->near_arena && c->w->arenas->owns(c->w, j->near))
        rc = base_fail(-EFAULT,
                       "the %llu bytes at %p are memory of a GPU, but not all in one open arena: use addresses inside one arena, and keep "
                       "its GPU open until the operation is complete",
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
        return base_fail(
            -ENOBUFS,
            "%u operations on the memory of GPUs of node %u are under way, which is the most: start fewer operations in a handler",
            ARENA_JOBS, node);
    int rc = fab_wait_for_room(c->w, has_room, &r);
    if (rc == -ETIMEDOUT)
        return base_fail(rc,
                         "the operation on the memory of a GPU of node %u was not started, because %u earlier ones were still under way at "
                         "the deadline (is that node's process stopped?); try again, or set a longer WEFT_DEADLINE",
                         node, ARENA_JOBS);
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
