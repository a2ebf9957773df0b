/* SPDX-License-Identifier: MIT
 *
 * Copies from and to the memory that records name, in any pool or arena. Most copies are complete at once. A thread of the node carries out
 * the others, step by step. It polls, because nothing reports the end of a GPU's copy.
 *
 * A copy is direct if this process has mapped the source, or if the target is memory of this node. Otherwise it goes through a buffer in
 * this node's pool. If the target is at another node, the copy ends with a flush, so that the bytes have arrived when the record is
 * answered.
 */
#include "gateway/record.h"

#include <stdlib.h>

#include "gpu/gpu.h"

#define NAP_LEAST_NS (5 * WEFT_US)
#define NAP_MOST_NS  (WEFT_MS / 2)

struct gateway_copies {
    struct gateway *g;
    pthread_mutex_t lock;
    pthread_cond_t some;
    pthread_t thread;
    bool started; /* the thread was started and must be joined */
    bool runs;    /* the thread accepts copies */
    bool stop;
    int64_t until; /* with `stop`: when to give up the copies that are under way */
    struct gateway_copy *arrived;
};

/* --- one copy --- */

/* Returns a pointer to memory of this node, for operations. If the memory is in an arena, the arena cannot be closed until
 * gpu_arena_release(). */
static void *own_memory(struct weft_node *w, weft_gaddr at, uint64_t bytes, struct gpu_arena **held)
{
    *held = NULL;
    if (weft_gaddr_node(at) != w->rank)
        return NULL;
    return weft_gaddr_space(at) ? gpu_arena_hold(gpu_arenas_of(w), at, bytes, held) : weft_ptr(w, at, bytes);
}

static int copy_between(struct gateway_copy *c, void **at)
{
    struct weft_node *w = c->g->w;
    int rc = c->between ? 0 : weft_alloc(w, c->bytes, &c->between);
    *at = rc ? NULL : weft_ptr(w, c->between, c->bytes);
    return rc;
}

/* Whether source and target overlap. A record may name any memory, even the ring itself. */
static bool copy_overlaps(const struct gateway_copy *c)
{
    bool one = weft_gaddr_node(c->to) == weft_gaddr_node(c->from) && weft_gaddr_space(c->to) == weft_gaddr_space(c->from);
    uint64_t to = weft_gaddr_offset(c->to), from = weft_gaddr_offset(c->from);
    return one && to < from + c->bytes && from < to + c->bytes;
}

static int copy_begin(struct gateway_copy *c)
{
    struct weft_node *w = c->g->w;
    struct gpu_arena *held;
    int rc = 0;
    if (copy_overlaps(c))
        return base_fail(-EFAULT,
                         "the record of a request names address %#llx (%llu bytes) for its result, but they overlap the bytes to copy: "
                         "use separate memory",
                         (unsigned long long)c->to, (unsigned long long)c->bytes);
    void *at = own_memory(w, c->from, c->bytes, &held);
    if (!at && weft_gaddr_space(c->from) == 0)
        at = weft_ptr(w, c->from, c->bytes); /* memory of another node on this host */
    if (at) {
        c->step = COPY_PUTS;
        rc = weft_put(w, c->to, at, c->bytes, &c->op);
    } else {
        at = own_memory(w, c->to, c->bytes, &held);
        if (!at && weft_gaddr_node(c->to) == w->rank)
            return base_fail(-EFAULT,
                             "the record of a request names address %#llx (%llu bytes); these bytes are not in this node's pool or arenas",
                             (unsigned long long)c->to, (unsigned long long)c->bytes);
        rc = at ? 0 : copy_between(c, &at);
        c->step = COPY_GETS;
        if (!rc)
            rc = weft_get(w, at, c->from, c->bytes, &c->op);
    }
    gpu_arena_release(held); /* the operation itself keeps the arena open */
    if (rc)
        c->step = COPY_BEGINS;
    return rc;
}

/* Carries out the next step of a copy. Returns -EINPROGRESS or -EAGAIN if the caller must call it again; any other value is the result of
 * the copy. */
static int copy_step(struct gateway_copy *c)
{
    struct weft_node *w = c->g->w;
    int rc;
    if (c->step == COPY_BEGINS && (rc = copy_begin(c)))
        return rc;
    if (c->step == COPY_GETS) {
        rc = weft_test(w, &c->op);
        if (rc || !c->between)
            return rc;
        c->step = COPY_GOT;
    }
    if (c->step == COPY_GOT) {
        if ((rc = weft_put(w, c->to, weft_ptr(w, c->between, c->bytes), c->bytes, &c->op)))
            return rc;
        c->step = COPY_PUTS;
    }
    if (c->step == COPY_PUTS) {
        rc = weft_test(w, &c->op);
        if (rc || weft_gaddr_node(c->to) == w->rank)
            return rc;
        c->flush = (struct fab_flush){0};
        c->step = COPY_FLUSHES;
    }
    return fab_flush_look(w, weft_gaddr_node(c->to), &c->flush);
}

static bool copy_looked(struct gateway_copy *c)
{
    bool before = fab_nowait(true);
    int rc = copy_step(c);
    fab_nowait(before);
    if (rc == -EINPROGRESS || rc == -EAGAIN)
        return false;
    weft_free(c->g->w, c->between);
    c->between = WEFT_NULL;
    c->done(c, rc);
    return true;
}

/* --- the thread --- */

/* Carries out a step of each copy, and removes complete copies from the list. Returns true if at least one copy was complete. */
static bool copies_step(struct gateway_copy **list)
{
    bool some = false;
    for (struct gateway_copy **at = list, *c; (c = *at);) {
        struct gateway_copy *next = c->next; /* read now, because done() frees the copy */
        if (!copy_looked(c)) {
            at = &c->next;
            continue;
        }
        *at = next;
        some = true;
    }
    return some;
}

static void *copies_run(void *arg)
{
    struct gateway_copies *all = arg;
    struct weft_node *w = all->g->w;
    struct gateway_copy *list = NULL;
    int64_t nap = 0, quiet = 0, spin = w->options.spin_ns;
    for (;;) {
        pthread_mutex_lock(&all->lock);
        while (!list && !all->arrived && !all->stop)
            pthread_cond_wait(&all->some, &all->lock);
        for (struct gateway_copy *c; (c = all->arrived);) {
            all->arrived = c->next;
            c->next = list;
            list = c;
        }
        bool over = all->stop && (!list || base_now_ns() >= all->until);
        all->runs = !over;
        pthread_mutex_unlock(&all->lock);
        if (over)
            return NULL; /* unfinished copies are never freed, because operations may still write to their memory */
        if (copies_step(&list)) {
            quiet = nap = 0;
            continue;
        }
        weft_progress(w);
        int64_t now = base_now_ns();
        quiet = quiet ? quiet : now;
        if (now - quiet < spin)
            continue;
        nap = nap == 0 ? NAP_LEAST_NS : nap * 2 < NAP_MOST_NS ? nap * 2 : NAP_MOST_NS;
        base_sleep_ns(nap);
    }
}

static bool copies_hand_over(struct gateway_copies *all, struct gateway_copy *c)
{
    pthread_mutex_lock(&all->lock);
    if (!all->started && !all->stop)
        all->started = all->runs = base_thread(&all->thread, copies_run, all) == 0;
    bool taken = all->runs;
    if (taken) {
        c->next = all->arrived;
        all->arrived = c;
        pthread_cond_signal(&all->some);
    }
    pthread_mutex_unlock(&all->lock);
    return taken;
}

void gateway_copy(struct gateway *g, struct gateway_copy *c)
{
    c->g = g;
    c->step = COPY_BEGINS;
    c->between = WEFT_NULL;
    if (atomic_load_explicit(&g->closing, memory_order_acquire)) {
        c->done(c, -ECONNRESET);
        return;
    }
    if (copy_looked(c) || copies_hand_over(g->copies, c))
        return;
    /* The node is being closed, or the system cannot start the thread: carry out the copy here. */
    /* a copy that is not complete at the deadline is never freed, because the operation may still use its memory */
    for (int64_t end = fab_timeout(g->w, WEFT_TIMEOUT_DEFAULT); !copy_looked(c) && base_now_ns() < end;)
        weft_progress(g->w);
}

int gateway_copies_open(struct gateway *g)
{
    struct gateway_copies *all = calloc(1, sizeof *all);
    if (!all)
        return base_fail(-ENOMEM, "no memory for copies between this node and the memory that records of requests name" BASE_MEMORY_HINT);
    all->g = g;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->some, NULL);
    g->copies = all;
    return 0;
}

void gateway_copies_end(struct gateway *g)
{
    struct gateway_copies *all = g->copies;
    if (!all)
        return;
    pthread_mutex_lock(&all->lock);
    bool started = all->started;
    all->stop = true;
    all->until = fab_timeout(g->w, WEFT_TIMEOUT_DEFAULT);
    pthread_cond_signal(&all->some);
    pthread_mutex_unlock(&all->lock);
    if (started)
        pthread_join(all->thread, NULL);
    all->started = false;
}

void gateway_copies_free(struct gateway *g)
{
    if (!g->copies)
        return;
    pthread_mutex_destroy(&g->copies->lock);
    pthread_cond_destroy(&g->copies->some);
    free(g->copies);
    g->copies = NULL;
}
