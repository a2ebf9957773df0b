/* SPDX-License-Identifier: MIT
 *
 * Several threads copy one buffer together: see copy.h.
 *
 * A copy is cut into pieces, which the caller and its helpers take one after the other. If a helper does not run, the others take all
 * remaining pieces.
 *
 * The upper half of `ticket` is the number of the copy, the lower half the number of pieces left. A thread reads the description of the
 * copy, and then takes a piece by a compare-and-swap of `ticket`. If the swap succeeds, the description that the thread has read belongs to
 * this copy: the description changes only while no piece is left and all pieces are done, and each copy has a new number.
 *
 * Memory order: the caller releases `ticket` and helpers acquire it, so helpers see what the caller stored before the copy. Helpers release
 * `done` and the caller acquires it, so the caller's later stores come after the whole copy. Non-temporal copies end each piece with a
 * fence.
 */
#include <stdlib.h>

#include "fabric/shm/copy.h"
#include "fabric/shm/copy_ways.h"

#define THREADS_MOST 6u /* the default maximum: more threads add little, and other programs also need processors */
#define PIECE_LEAST  ((size_t)256 << 10)
#define PIECE_MOST   ((size_t)2 << 20)
#define PIECE_PAGES  ((size_t)64 << 10) /* a piece is a multiple of this */
#define PIECES_EACH  4u                 /* several for each thread, so that faster threads can take more */
#define SLEEP_NS     (INT64_C(3600) * 1000000000)
/* The caller sleeps at most this long at a time, because a helper may be preempted between counting its piece and waking the caller. */
#define NAP_NS INT64_C(1000000)

struct copy_team {
    uint32_t helpers;
    int64_t spin_ns;
    /* Protects `started`. Held by the thread for whose copy the helpers work. No thread waits for it: threads only try to take it. */
    base_spin lock;
    uint32_t started;
    pthread_t threads[COPY_TEAM_MAX];
    /* The members from here to `pieces` describe the copy. Their loads are relaxed, because a thread uses the loaded values only if it then
     * takes a piece. */
    _Atomic(uint8_t *) dst;
    _Atomic(const uint8_t *) src;
    _Atomic(const struct copy_way *) way;
    _Atomic size_t len, piece;
    _Atomic uint32_t pieces;
    _Alignas(BASE_CACHE_LINE) _Atomic uint64_t ticket;
    _Alignas(BASE_CACHE_LINE) _Atomic uint32_t done;  /* finished pieces; the caller sleeps on this word */
    _Alignas(BASE_CACHE_LINE) _Atomic uint32_t calls; /* number of copies, plus one at the end; helpers sleep on this word */
    _Atomic uint32_t sleepers;
    _Atomic bool end;
};

uint32_t copy_team_default(uint32_t processors, uint32_t nodes_here)
{
    uint32_t each = nodes_here ? processors / nodes_here : processors;
    return processors <= 2 || each < 2 ? 1 : each < THREADS_MOST ? each : THREADS_MOST;
}

/* Takes a piece and copies it. Returns false if none is left. */
static bool copy_piece(struct copy_team *t)
{
    /* acquire: pairs with the release of `ticket` in copy_by_team() */
    uint64_t ticket = atomic_load_explicit(&t->ticket, memory_order_acquire);
    for (;;) {
        uint32_t left = (uint32_t)ticket;
        if (left == 0)
            return false;
        uint32_t pieces = atomic_load_explicit(&t->pieces, memory_order_relaxed);
        uint8_t *dst = atomic_load_explicit(&t->dst, memory_order_relaxed);
        const uint8_t *src = atomic_load_explicit(&t->src, memory_order_relaxed);
        const struct copy_way *way = atomic_load_explicit(&t->way, memory_order_relaxed);
        size_t len = atomic_load_explicit(&t->len, memory_order_relaxed);
        size_t piece = atomic_load_explicit(&t->piece, memory_order_relaxed);
        /* acquire on failure: the ticket may belong to the next copy. release on success: the loads above stay before the swap. */
        if (!atomic_compare_exchange_weak_explicit(&t->ticket, &ticket, ticket - 1, memory_order_acq_rel, memory_order_acquire))
            continue;
        size_t at = (pieces - left) * piece;
        way->copy(dst + at, src + at, len - at < piece ? len - at : piece);
        /* release: pairs with the acquire of `done` in copy_by_team() */
        if (atomic_fetch_add_explicit(&t->done, 1, memory_order_release) + 1 == pieces)
            base_futex_wake(&t->done, 1);
        return true;
    }
}

static void *help(void *arg)
{
    struct copy_team *t = arg;
    for (;;) {
        uint32_t seen = atomic_load_explicit(&t->calls, memory_order_acquire);
        while (copy_piece(t))
            ;
        if (atomic_load_explicit(&t->end, memory_order_acquire)) /* acquire: pairs with the release in copy_team_free() */
            return NULL;
        /* spin first, because the next copy often follows at once */
        int64_t until = base_now_ns() + t->spin_ns;
        while (atomic_load_explicit(&t->calls, memory_order_relaxed) == seen && base_now_ns() < until)
            base_relax();
        /* seq_cst: either team_call() sees this sleeper, or this thread sees the call and does not sleep */
        atomic_fetch_add_explicit(&t->sleepers, 1, memory_order_seq_cst);
        if (atomic_load_explicit(&t->calls, memory_order_seq_cst) == seen)
            base_futex_wait(&t->calls, seen, SLEEP_NS);
        atomic_fetch_sub_explicit(&t->sleepers, 1, memory_order_relaxed);
    }
}

static void team_call(struct copy_team *t)
{
    /* seq_cst: pairs with help(). The addition is also a release, so a helper that sees it also sees this thread's earlier stores. */
    atomic_fetch_add_explicit(&t->calls, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&t->sleepers, memory_order_seq_cst))
        base_futex_wake(&t->calls, INT32_MAX);
}

int copy_team_new(struct copy_team **out, uint32_t threads, int64_t spin_ns)
{
    struct copy_team *t = aligned_alloc(BASE_CACHE_LINE, base_round_up(sizeof *t, BASE_CACHE_LINE));
    *out = t;
    if (!t)
        return base_fail(-ENOMEM, "no memory for the state of the threads that copy (WEFT_COPY_THREADS)" BASE_MEMORY_HINT);
    memset(t, 0, sizeof *t);
    t->helpers = (threads < COPY_TEAM_MAX ? threads : COPY_TEAM_MAX) - 1;
    t->spin_ns = spin_ns;
    return 0;
}

void copy_team_free(struct copy_team *t)
{
    if (!t)
        return;
    atomic_store_explicit(&t->end, true, memory_order_release); /* release: pairs with the acquire in help() */
    team_call(t);
    for (uint32_t i = 0; i < t->started; i++)
        pthread_join(t->threads[i], NULL);
    free(t);
}

/* Starts the helpers. The caller holds `lock`. If some cannot be started, all copies have fewer helpers. */
static BASE_COLD void team_start(struct copy_team *t)
{
    while (t->started < t->helpers && base_thread(&t->threads[t->started], help, t) == 0)
        t->started++;
    if (t->started < t->helpers)
        base_log(BASE_LOG_WARN, "only %u of %u threads that help with large copies could be started (WEFT_COPY_THREADS)" BASE_THREAD_HINT,
                 t->started, t->helpers);
    t->helpers = t->started;
}

void copy_by_team(struct copy_team *t, void *dst, const void *src, size_t len)
{
    const struct copy_way *way = copy_way_for(len);
    if (len < COPY_TEAM_LEAST || !base_spin_try(&t->lock)) {
        way->copy(dst, src, len);
        return;
    }
    if (BASE_UNLIKELY(t->started < t->helpers))
        team_start(t);
    size_t piece = base_round_up(len / ((t->helpers + 1) * PIECES_EACH), PIECE_PAGES);
    piece = piece < PIECE_LEAST ? PIECE_LEAST : piece > PIECE_MOST ? PIECE_MOST : piece;
    uint32_t pieces = (uint32_t)((len + piece - 1) / piece);
    /* No piece of the previous copy is left, so no thread uses the following words until the ticket changes. */
    uint64_t number = (atomic_load_explicit(&t->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(&t->dst, dst, memory_order_relaxed);
    atomic_store_explicit(&t->src, src, memory_order_relaxed);
    atomic_store_explicit(&t->way, way, memory_order_relaxed);
    atomic_store_explicit(&t->len, len, memory_order_relaxed);
    atomic_store_explicit(&t->piece, piece, memory_order_relaxed);
    atomic_store_explicit(&t->pieces, pieces, memory_order_relaxed);
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    atomic_store_explicit(&t->ticket, number << 32 | pieces, memory_order_release); /* release: pairs with the acquire in copy_piece() */
    team_call(t);
    while (copy_piece(t))
        ;
    int64_t until = 0;
    for (uint32_t done; (done = atomic_load_explicit(&t->done, memory_order_acquire)) < pieces;) {
        int64_t now = base_now_ns(); /* the load of `done` pairs with the release in copy_piece() */
        until = until ? until : now + t->spin_ns;
        if (now < until)
            base_relax();
        else
            base_futex_wait(&t->done, done, NAP_NS);
    }
    base_spin_unlock(&t->lock);
}
