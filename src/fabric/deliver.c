/* SPDX-License-Identifier: MIT
 *
 * Runs message handlers and hooks, which are functions of the program and of the higher layers. They run on the thread that makes progress,
 * which is a thread that waits for an operation, or the progress thread. Handlers and hooks must not wait.
 */
#include "fabric/fabric.h"

static BASE_THREAD_LOCAL unsigned handler_depth;
static BASE_THREAD_LOCAL bool nowait; /* fab_nowait() */

bool fab_in_handler(void)
{
    return handler_depth != 0;
}

bool fab_nowait(bool on)
{
    bool before = nowait;
    nowait = on;
    return before;
}

bool fab_is_nowait(void)
{
    return nowait;
}

bool fab_queues_more(void)
{
    return handler_depth && !nowait;
}

/* A thread runs handlers between handlers_begin() and handlers_end(). The thread may have called fab_nowait(true) for an operation of its
 * own. That does not apply to operations that a handler starts, so handlers_begin() clears the setting, and handlers_end() restores it. */
BASE_INLINE bool handlers_begin(void)
{
    handler_depth++;
    return fab_nowait(false);
}

BASE_INLINE void handlers_end(bool before)
{
    (void)fab_nowait(before);
    handler_depth--;
}

bool fab_deliver(struct weft_node *w, uint32_t from, uint32_t id, const void *header, size_t header_len, const void *payload,
                 size_t payload_len)
{
    if (BASE_UNLIKELY(id >= FAB_HANDLERS))
        return true; /* no version of weft sends such a message: drop it */
    struct fab_handler *h = &w->handlers[id];
    weft_handler_fn fn = atomic_load_explicit(&h->fn, memory_order_acquire);
    if (BASE_UNLIKELY(!fn))
        return false;
    fn(w, from, header, header_len, payload, payload_len, h->arg);
    return true;
}

int fab_service(struct weft_node *w)
{
    int n = 0;
    for (const struct fab_transport **t = w->transports; *t; t++)
        n += (*t)->service ? (*t)->service(w) : 0;
    if (BASE_UNLIKELY(atomic_load_explicit(&w->arenas_used, memory_order_relaxed)))
        n += w->arenas->service(w);
    if (n)
        fab_wake_here(w); /* the events may have changed words that this node's threads wait for */
    return n;
}

/* Runs the handlers of messages, and adds the number of events to `*events`. Returns false if another thread is delivering. */
BASE_INLINE bool deliver(struct weft_node *w, int *events)
{
    int n = 0;
    if (!base_spin_try(&w->progress))
        return false;
    bool before = handlers_begin();
    for (const struct fab_transport **t = w->transports; *t; t++)
        n += (*t)->progress(w);
    handlers_end(before);
    /* No fence is needed: a thread that goes to sleep counts itself in `sleepers`, then takes w->progress, then checks its condition. A
     * sleeper that took the lock before this thread is counted here. A sleeper that takes it later sees what the handlers have changed. */
    bool sleepers = n && atomic_load_explicit(&w->bell->sleepers, memory_order_relaxed);
    base_spin_unlock(&w->progress);
    if (BASE_UNLIKELY(sleepers))
        fab_wake_here(w);
    *events = n;
    return true;
}

int fab_messages(struct weft_node *w)
{
    int n = 0;
    (void)deliver(w, &n);
    return n;
}

#define LAST_LOOKS 64u

BASE_COLD void fab_last_look(struct weft_node *w)
{
    int n = 0;
    /* Wake the progress thread if messages may be left: another thread was delivering, or this call has delivered some, and there may be
     * more. Also wake it in one of LAST_LOOKS calls: then it sees that the program polls again and again, and stops napping. */
    bool often = atomic_fetch_add_explicit(&w->last_looks, 1, memory_order_relaxed) % LAST_LOOKS == LAST_LOOKS - 1;
    if (!deliver(w, &n) || n > 0 || often)
        fab_kick(w);
}

int fab_progress(struct weft_node *w)
{
    int n = fab_service(w);
    return n + fab_messages(w);
}

int weft_progress(weft_node *w)
{
    if (fab_in_handler())
        return 0;
    fab_polled(w);
    return fab_progress(w);
}

void fab_last_words(struct weft_node *w, struct fab_link *l, enum fab_peer_state gone)
{
    base_spin_lock(&w->progress);
    bool before = handlers_begin();
    l->transport->last_words(w, l);
    handlers_end(before);
    /* Set while w->progress is held, so that threads which deliver later take no more messages from this peer. release: a thread that sees
     * the state sees the effects of the last messages. seq_cst: see send_slow() in shm/message.c. */
    atomic_store_explicit(&l->state, gone, memory_order_seq_cst);
    base_spin_unlock(&w->progress);
}

void fab_run_gone(struct weft_node *w, uint32_t node, bool died)
{
    uint32_t n = atomic_load_explicit(&w->hook_count, memory_order_acquire);
    bool before = handlers_begin();
    for (uint32_t i = 0; i < n; i++)
        if (w->hooks[i].gone)
            w->hooks[i].gone(w, node, died, w->hooks[i].arg);
    handlers_end(before);
}

void fab_run_joined(struct weft_node *w, uint32_t node)
{
    uint32_t n = atomic_load_explicit(&w->hook_count, memory_order_acquire);
    bool before = handlers_begin();
    for (uint32_t i = 0; i < n; i++)
        if (w->hooks[i].joined)
            w->hooks[i].joined(w, node, w->hooks[i].arg);
    handlers_end(before);
}

bool fab_run_given(struct weft_node *w, uint32_t node, uint64_t what, int fd)
{
    uint32_t n = atomic_load_explicit(&w->hook_count, memory_order_acquire);
    bool taken = false;
    bool before = handlers_begin();
    for (uint32_t i = 0; i < n && !taken; i++)
        if (w->hooks[i].given)
            taken = w->hooks[i].given(w, node, what, fd, w->hooks[i].arg);
    handlers_end(before);
    return taken;
}

int64_t fab_run_ticks(struct weft_node *w)
{
    int64_t now = base_now_ns(), next = INT64_MAX;
    uint32_t n = atomic_load_explicit(&w->hook_count, memory_order_acquire);
    bool before = handlers_begin();
    for (uint32_t i = 0; i < n; i++) {
        if (!w->hooks[i].tick)
            continue;
        int64_t in = w->hooks[i].tick(w, now, w->hooks[i].arg);
        if (in < next)
            next = in;
    }
    for (const struct fab_transport **t = w->transports; *t; t++) {
        int64_t in = (*t)->upkeep ? (*t)->upkeep(w, now) : INT64_MAX;
        if (in < next)
            next = in;
    }
    handlers_end(before);
    return next < 0 ? 0 : next;
}
