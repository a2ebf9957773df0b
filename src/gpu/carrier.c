/* SPDX-License-Identifier: MIT
 *
 * The carrier thread, which takes the steps of jobs and requests on arenas, and the functions that the fabric calls.
 */
#include "gpu/arena.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define NAP_LEAST_NS (5 * WEFT_US)
#define NAP_MOST_NS  WEFT_MS
/* a sleep lasts at most 1/NAP_SHARE of the time since the last progress, so that sleeping delays the end of a copy only a little */
#define NAP_SHARE 64
/* With granted slots the thread polls for SPIN_GRANTED times WEFT_SPIN, because the next piece usually arrives soon: the time in which
 * 1 MiB arrives over 10 Gb/s. */
#define SPIN_GRANTED 40

static struct arenas *arenas_of(struct weft_node *w)
{
    return gpu_arenas_of(w);
}

/* Takes a step of all jobs and requests. Returns false if another thread is taking a step, or there was nothing to do. */
static bool arena_step(struct arenas *c)
{
    if (!base_spin_try(&c->stepping))
        return false;
    bool moved = grant_step(c);
    moved |= owner_step(c);
    moved |= job_step(c);
    arena_tell_refusals(c);
    if (moved) /* the caller holds `stepping`, so only one thread writes */
        atomic_store_explicit(&c->moves, atomic_load_explicit(&c->moves, memory_order_relaxed) + 1, memory_order_relaxed);
    base_spin_unlock(&c->stepping);
    return moved;
}

/* Takes a step of the requests of other nodes, in a handler. Returns false if the carrier thread must take the step. */
static bool carrier_turn(struct arenas *c)
{
    if (!base_spin_try(&c->stepping))
        return false;
    bool before = fab_nowait(true);
    (void)owner_step(c);
    fab_nowait(before);
    bool left = c->requests;
    base_spin_unlock(&c->stepping);
    return !left;
}

struct carrier_watch {
    struct arenas *c;
    uint32_t bell;
};

static bool carrier_called(void *arg)
{
    struct carrier_watch *a = arg;
    return atomic_load_explicit(&a->c->bell, memory_order_relaxed) != a->bell;
}

/* Polls until the bell rings, at most for some times WEFT_SPIN. With granted slots this thread also polls the network, unless another
 * thread does: the progress thread would sleep between two messages, and waking takes longer than a message. */
static void carrier_poll(struct arenas *c, bool granted, uint32_t bell)
{
    if (!granted || c->w->oversubscribed || atomic_load_explicit(&c->w->bell->pollers, memory_order_relaxed)) {
        sched_yield();
        return;
    }
    (void)fab_linger(c->w, carrier_called, &(struct carrier_watch){c, bell});
}

static void *carrier_run(void *arg)
{
    struct arenas *c = arg;
    int64_t last = 0;
    uint32_t moves = 0;
    base_cpu_stay(c->near);
    (void)fab_nowait(true);
    base_wake_in_time(WEFT_US); /* copies take microseconds, and only polling shows that a copy is done */
    while (!atomic_load_explicit(&c->stop, memory_order_acquire)) {
        uint32_t seen = atomic_load_explicit(&c->bell, memory_order_seq_cst);
        bool moved = share_step(c);
        moved |= arena_step(c);
        bool granted = atomic_load_explicit(&c->grants, memory_order_relaxed);
        uint32_t moves_now = atomic_load_explicit(&c->moves, memory_order_relaxed);
        if (moved || (granted && moves_now != moves)) { /* with granted slots, also if another thread has taken the step */
            moves = moves_now;
            last = 0;
            continue;
        }
        int64_t now = base_now_ns();
        last = last ? last : now;
        if (now - last < (granted && !c->w->oversubscribed ? SPIN_GRANTED : 1) * c->w->options.spin_ns) {
            carrier_poll(c, granted, seen);
            continue;
        }
        int64_t nap = (now - last) / NAP_SHARE;
        nap = nap < NAP_LEAST_NS ? NAP_LEAST_NS : nap < NAP_MOST_NS ? nap : NAP_MOST_NS;
        bool active = c->sharing || atomic_load_explicit(&c->active, memory_order_relaxed) || granted;
        atomic_store_explicit(&c->sleeping, 1, memory_order_seq_cst);
        if (atomic_load_explicit(&c->bell, memory_order_seq_cst) == seen)
            base_futex_wait(&c->bell, seen, active ? nap : WEFT_SECOND);
        else
            last = 0;
        atomic_store_explicit(&c->sleeping, 0, memory_order_relaxed);
    }
    return NULL;
}

static int carrier_start(struct arenas *c)
{
    if (atomic_load_explicit(&c->started, memory_order_acquire))
        return 0;
    int rc = 0;
    pthread_mutex_lock(&c->start_lock);
    if (atomic_load_explicit(&c->stop, memory_order_relaxed)) { /* the carrier thread has been told to end */
        rc = base_fail(-ECONNRESET, "this node is being closed, so it starts no more operations on GPU memory");
    } else if (!atomic_load_explicit(&c->started, memory_order_relaxed)) {
        if (!c->piece && !(c->piece = piece_table()))
            rc = base_fail(-ENOMEM, "no memory for the table of operations on GPU memory" BASE_MEMORY_HINT);
        if (!rc && (rc = base_thread(&c->thread, carrier_run, c)))
            rc = base_fail(rc, "cannot start the thread for operations on GPU memory: %s" BASE_THREAD_HINT, base_strerror(rc));
        atomic_store_explicit(&c->started, !rc, memory_order_release);
    }
    pthread_mutex_unlock(&c->start_lock);
    return rc;
}

/* --- operations that the fabric passes on --- */

static int begin(struct weft_node *w, const struct arena_job *j, weft_op *op)
{
    struct arenas *c = arenas_of(w);
    int rc = job_begin(c, j, op);
    if (rc)
        return rc;
    if (!fab_in_handler()) { /* take the first step on this thread, because the carrier thread would first have to wake up */
        bool before = fab_nowait(true);
        (void)arena_step(c);
        fab_nowait(before);
    }
    if (atomic_load_explicit(&c->active, memory_order_relaxed))
        arena_ring(c);
    return 0;
}

static int carrier_put(struct weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op)
{
    struct arena_job j = {.kind = JOB_PUT, .node = weft_gaddr_node(dst), .far = dst, .near = (uint8_t *)(uintptr_t)src, .length = len};
    return begin(w, &j, op);
}

static int carrier_get(struct weft_node *w, void *dst, weft_gaddr src, size_t len, weft_op *op)
{
    struct arena_job j = {.kind = JOB_GET, .node = weft_gaddr_node(src), .far = src, .near = dst, .length = len};
    return begin(w, &j, op);
}

static int carrier_atomic(struct weft_node *w, enum fab_atomic kind, weft_gaddr word, uint64_t a, uint64_t b, uint64_t *old, weft_op *op)
{
    struct arena_job j = {
        .kind = JOB_ATOMIC, .node = weft_gaddr_node(word), .atomic = kind, .word = word, .a = a, .b = b, .old = old, .word_left = true};
    return begin(w, &j, op);
}

static int carrier_put_signal(struct weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add,
                              weft_op *op)
{
    struct arena_job j = {.kind = JOB_PUT,
                          .node = weft_gaddr_node(signal),
                          .far = dst,
                          .near = (uint8_t *)(uintptr_t)src,
                          .length = len,
                          .atomic = FAB_ADD,
                          .word = signal,
                          .a = add,
                          .word_left = true};
    return begin(w, &j, op);
}

static int carrier_free(struct weft_node *w, weft_gaddr addr)
{
    return arena_free(arenas_of(w), addr);
}

static bool carrier_owns(struct weft_node *w, const void *p)
{
    return arena_owns(arenas_of(w), p);
}

static bool carrier_flushed(struct weft_node *w, uint32_t node, struct fab_flush *f)
{
    struct arenas *c = arenas_of(w);
    struct arena_peer *peer = &c->peer[node];
    if (!f->arenas) {
        base_spin_lock(&c->lock);
        f->arena = peer->begun;
        base_spin_unlock(&c->lock);
        f->arenas = true;
    }
    return atomic_load_explicit(&peer->oldest, memory_order_acquire) >= f->arena; /* pairs with job_end() */
}

static int carrier_service(struct weft_node *w)
{
    struct arenas *c = arenas_of(w);
    if (!atomic_load_explicit(&c->active, memory_order_relaxed))
        return 0;
    bool before = fab_nowait(true);
    bool moved = arena_step(c);
    fab_nowait(before);
    return moved;
}

static bool carrier_copying(struct weft_node *w)
{
    struct arenas *c = arenas_of(w);
    return atomic_load_explicit(&c->active, memory_order_relaxed) &&
           base_now_ns() < atomic_load_explicit(&c->copies_until, memory_order_relaxed);
}

static int carrier_failure(struct weft_node *w, uint32_t node)
{
    return atomic_exchange_explicit(&arenas_of(w)->peer[node].failure, 0, memory_order_relaxed);
}

static void carrier_stat(struct weft_node *w, uint32_t node, weft_link_stats *out)
{
    struct arenas *c = arenas_of(w);
    struct arena_peer *peer = &c->peer[node];
    base_spin_lock(&c->lock);
    bool used = peer->begun > 0;
    base_spin_unlock(&c->lock);
    if (!used)
        return;
    snprintf(out->arena_way, sizeof out->arena_way, "%s", share_way(c, node, out->arena_why, sizeof out->arena_why));
}

static const struct fab_arenas hooks = {
    .put = carrier_put,
    .get = carrier_get,
    .atomic = carrier_atomic,
    .put_signal = carrier_put_signal,
    .free = carrier_free,
    .owns = carrier_owns,
    .flushed = carrier_flushed,
    .service = carrier_service,
    .copying = carrier_copying,
    .failure = carrier_failure,
    .stat = carrier_stat,
};

/* --- making and freeing --- */

static void on_ask(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len, void *arg)
{
    (void)w;
    owner_asked(arg, from, header, header_len, payload, len);
}

static void on_answer(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len, void *arg)
{
    (void)w;
    piece_answered(arg, from, header, header_len, payload, len);
}

static void on_room(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len, void *arg)
{
    (void)w, (void)payload, (void)len;
    grant_told(arg, from, header, header_len);
}

static void on_gone(struct weft_node *w, uint32_t node, bool died, void *arg)
{
    (void)w, (void)died;
    grant_gone(arg, node);
}

static void on_space(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len, void *arg)
{
    (void)w, (void)payload, (void)len;
    share_heard(arg, from, header, header_len);
}

static void on_share(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len, void *arg)
{
    (void)w, (void)payload, (void)len;
    share_asked(arg, from, header, header_len);
}

static void on_told(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len, void *arg)
{
    struct arenas *c = arg;
    (void)w, (void)header, (void)header_len, (void)payload, (void)len;
    atomic_fetch_add_explicit(&c->peer[from].knows, 1, memory_order_release); /* pairs with the acquire in all_know() */
}

int gpu_arenas_new(struct weft_node *w, struct arenas **out)
{
    struct arenas *c = calloc(1, sizeof *c);
    struct arena_peer *peer = calloc(w->room, sizeof *peer);
    if (!c || !peer) {
        free(c);
        free(peer);
        return base_fail(-ENOMEM, "no memory for the tables of the arenas on GPUs" BASE_MEMORY_HINT);
    }
    c->w = w;
    c->peer = peer;
    c->start = carrier_start;
    c->turn = carrier_turn;
    c->requests_end = &c->requests;
    c->arrived_end = &c->arrived;
    pthread_rwlock_init(&c->table_lock, NULL);
    pthread_mutex_init(&c->start_lock, NULL);
    pthread_mutex_init(&c->gpus_lock, NULL);
    pthread_mutex_init(&c->share_lock, NULL);
    c->share_place = c->share_came = -1;
    atomic_init(&c->low, UINT64_MAX);
    *out = c;
    w->arenas = &hooks;
    int rc = fab_handle(w, ARENA_HANDLER_ASK, on_ask, c);
    if (!rc)
        rc = fab_handle(w, ARENA_HANDLER_ANSWER, on_answer, c);
    if (!rc)
        rc = fab_handle(w, ARENA_HANDLER_SPACE, on_space, c);
    if (!rc)
        rc = fab_handle(w, ARENA_HANDLER_SHARE, on_share, c);
    if (!rc)
        rc = fab_handle(w, ARENA_HANDLER_ROOM, on_room, c);
    if (!rc)
        rc = fab_hook(w, &(struct fab_hook){.gone = on_gone, .arg = c});
    return rc ? rc : fab_handle(w, ARENA_HANDLER_TOLD, on_told, c);
}

int gpu_arena_open(struct arenas *c, const struct gpu_place *place, uint64_t bytes, uint32_t *space)
{
    int rc = arena_start(c);
    return rc ? rc : arena_new(c, place, bytes, space);
}

int gpu_arena_alloc(struct arenas *c, uint32_t space, uint64_t bytes, weft_gaddr *out)
{
    return arena_alloc(c, space, bytes, out);
}

void *gpu_arena_hold(struct arenas *c, weft_gaddr addr, uint64_t bytes, struct gpu_arena **held)
{
    void *at = NULL;
    *held = NULL;
    if (weft_gaddr_node(addr) >= c->w->size || weft_gaddr_space(addr) == 0 || arena_enter(c, addr, bytes, held, &at))
        return NULL;
    return at;
}

void gpu_arena_release(struct gpu_arena *held)
{
    arena_leave(held);
}

void *gpu_arena_reached(struct arenas *c, const struct gpu_place *place, weft_gaddr addr, uint64_t bytes)
{
    struct gpu_arena *a;
    void *at = gpu_arena_hold(c, addr, bytes, &a);
    bool reached = a && view_reaches(a, place);
    arena_leave(a);
    return reached ? at : NULL;
}

/* The thread serves all GPUs of the node, and runs near the first one that is opened. */
static void carrier_place(struct arenas *c, const uint64_t near[BASE_CPU_WORDS])
{
    static const uint64_t unknown[BASE_CPU_WORDS];
    pthread_mutex_lock(&c->start_lock);
    if (!atomic_load_explicit(&c->started, memory_order_relaxed) && memcmp(c->near, unknown, sizeof unknown) == 0)
        memcpy(c->near, near, sizeof c->near);
    pthread_mutex_unlock(&c->start_lock);
}

int gpu_arenas_share(struct arenas *c, struct gpu_place *place)
{
    carrier_place(c, place->near);
    int rc = c->w->size_here > 1 ? arena_start(c) : 0;
    if (!rc)
        rc = view_list(c, place);
    if (rc)
        return rc;
    place->listed = true;
    arena_gpu_opened(c, place);
    if (c->w->size_here > 1)
        share_open(c, true);
    return 0;
}

void gpu_arenas_leave(struct arenas *c)
{
    atomic_store_explicit(&c->leaving, true, memory_order_relaxed);
}

bool gpu_arenas_close(struct arenas *c, const struct gpu_place *place, bool quiet, int64_t deadline)
{
    if (!place->listed)
        return true; /* the GPU was not opened completely, and has no arenas */
    view_end(c, place);
    bool all = share_close(c, place, quiet, deadline);
    all &= arena_close_all(c, place->table, quiet, deadline);
    arena_gpu_closed(c, place);
    view_unlist(c, place);
    if (!atomic_load_explicit(&c->leaving, memory_order_relaxed) && atomic_load_explicit(&c->other, memory_order_relaxed))
        share_open(c, false);
    return all;
}

void gpu_arenas_end(struct arenas *c)
{
    pthread_mutex_lock(&c->start_lock);
    atomic_store_explicit(&c->stop, true, memory_order_release);
    bool started = atomic_load_explicit(&c->started, memory_order_relaxed);
    pthread_mutex_unlock(&c->start_lock);
    arena_ring(c);
    if (started)
        pthread_join(c->thread, NULL);
}

void gpu_arenas_free(struct arenas *c, bool quiet)
{
    if (!c)
        return;
    c->w->arenas = NULL;
    owner_free(c);
    job_free(c);
    share_free(c, quiet);
    arena_free_all(c, quiet);
    pthread_rwlock_destroy(&c->table_lock);
    pthread_mutex_destroy(&c->start_lock);
    pthread_mutex_destroy(&c->gpus_lock);
    pthread_mutex_destroy(&c->share_lock);
    free(c->peer);
    free(c);
}
