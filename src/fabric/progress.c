/* SPDX-License-Identifier: MIT
 *
 * Progress: delivering messages, and the thread that does it when the program does not. The same thread watches the
 * side connections, which tell of the death of a peer, and runs the upkeep of the rooms above.
 *
 * It naps in poll(). Senders wake it with a byte on the side connection, but only when `napping` says that it sleeps
 * and `pollers` that nobody else looks at the rings. While the program polls by itself the thread stays out of its
 * way: it looks in every LAZY_MS, and takes over when the program stops polling or goes to sleep.
 */
#include "fabric/fabric.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define LAZY_MS 1
#define BUSY_NS (WEFT_MS / 2)
#define SHORT_NS (WEFT_MS / 20)
#define NAP_MS  1000 /* at most: for peers whose death no descriptor told */
#define TICK_NS WEFT_MS /* while messages come, upkeep is looked after so often */
#define LOOK_NS (20 * WEFT_MS) /* peers are looked after so often, however many messages come */

static BASE_THREAD_LOCAL unsigned handler_depth;

bool fab_in_handler(void)
{
    return handler_depth != 0;
}

bool fab_deliver(struct weft *w, uint32_t from, uint32_t id, const void *header, size_t header_len,
                 const void *payload, size_t payload_len)
{
    if (BASE_UNLIKELY(id >= FAB_HANDLERS))
        return true; /* not from any weft: drop it */
    struct fab_handler *h = &w->handlers[id];
    weft_handler_fn fn = atomic_load_explicit(&h->fn, memory_order_acquire);
    if (BASE_UNLIKELY(!fn))
        return false;
    fn(w, from, header, header_len, payload, payload_len, h->arg);
    return true;
}

int fab_service(struct weft *w)
{
    int n = 0;
    for (const struct fab_transport **t = w->transports; *t; t++)
        n += (*t)->service ? (*t)->service(w) : 0;
    if (n)
        fab_wake_here(w); /* words of this node may have changed */
    return n;
}

/* False: another thread is at it. */
BASE_INLINE bool deliver(struct weft *w, int *events)
{
    int n = 0;
    if (!base_spin_try(&w->progress))
        return false;
    handler_depth++;
    for (const struct fab_transport **t = w->transports; *t; t++)
        n += (*t)->progress(w);
    handler_depth--;
    /* Whoever goes to sleep counts itself a sleeper, takes this lock, and then looks: if it had the lock before us, we
     * see it here; if it gets it after us, it sees what the handlers changed. No fence is needed. */
    bool sleepers = n && atomic_load_explicit(&w->bell->sleepers, memory_order_relaxed);
    base_spin_unlock(&w->progress);
    if (BASE_UNLIKELY(sleepers))
        fab_wake_here(w);
    *events = n;
    return true;
}

int fab_messages(struct weft *w)
{
    int n = 0;
    (void)deliver(w, &n);
    return n;
}

#define LAST_LOOKS 64u

BASE_COLD void fab_last_look(struct weft *w)
{
    int n = 0;
    /* Another thread may have looked already where something came since; and there may be more than one look takes. And a progress
     * thread that naps while the program waits again and again is woken to see that: it is lazy then, which spares these looks. */
    bool often = atomic_fetch_add_explicit(&w->last_looks, 1, memory_order_relaxed) % LAST_LOOKS == LAST_LOOKS - 1;
    if (!deliver(w, &n) || n > 0 || often)
        fab_kick(w);
}

int fab_progress(struct weft *w)
{
    int n = fab_service(w);
    return n + fab_messages(w);
}

int weft_progress(weft *w)
{
    if (fab_in_handler())
        return 0;
    fab_polled(w);
    return fab_progress(w);
}

void fab_last_words(struct weft *w, struct fab_link *l, enum fab_peer_state gone)
{
    base_spin_lock(&w->progress);
    handler_depth++;
    l->transport->last_words(w, l);
    handler_depth--;
    /* With the lock: whoever delivers after this sees it, and takes nothing more from there.
     * release: who sees the state sees the last messages' effects. seq_cst: a sender that has just kept a message looks at the state
     * after that, and fails it itself (shm/message.c, send_slow()). */
    atomic_store_explicit(&l->state, gone, memory_order_seq_cst);
    base_spin_unlock(&w->progress);
}

void fab_run_gone(struct weft *w, uint32_t node, bool died)
{
    uint32_t n = atomic_load_explicit(&w->hook_count, memory_order_acquire);
    handler_depth++;
    for (uint32_t i = 0; i < n; i++)
        if (w->hooks[i].gone)
            w->hooks[i].gone(w, node, died, w->hooks[i].arg);
    handler_depth--;
}

void fab_kick(struct weft *w)
{
    (void)!write(w->wake_fd[1], "k", 1); /* full: it has been kicked plenty */
}

/* Everything that makes it worth looking before sleeping. */
static bool idle(struct weft *w)
{
    bool quiet = true;
    if (!base_spin_try(&w->progress)) {
        /* A handler runs on another thread, perhaps for long: not so idle, yet no reason to be in a hurry. */
        base_sleep_ns(BUSY_NS);
        return false;
    }
    for (const struct fab_transport **t = w->transports; *t; t++)
        quiet = quiet && (*t)->idle(w);
    base_spin_unlock(&w->progress);
    return quiet;
}

static int64_t run_ticks(struct weft *w)
{
    int64_t now = base_now_ns(), next = NAP_MS * WEFT_MS;
    uint32_t n = atomic_load_explicit(&w->hook_count, memory_order_acquire);
    handler_depth++;
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
    handler_depth--;
    return next < 0 ? 0 : next;
}

/* One round of poll() over the side connections and the transports' descriptors. */
static void look_at_peers(struct weft *w, struct pollfd *fds, uint32_t *nodes, int timeout_ms)
{
    nfds_t n = 0;
    fds[n++] = (struct pollfd){.fd = w->wake_fd[0], .events = POLLIN};
    for (uint32_t i = 0; i < w->size; i++) {
        struct fab_link *l = &w->links[i];
        if (l->side_fd < 0 || !fab_alive(w, i))
            continue;
        nodes[n] = i;
        fds[n++] = (struct pollfd){.fd = l->side_fd, .events = fab_side_pending(l) ? POLLIN | POLLOUT : POLLIN};
        if (l->pid_fd >= 0) {
            nodes[n] = i;
            fds[n++] = (struct pollfd){.fd = l->pid_fd, .events = POLLIN};
        }
    }
    nfds_t peers = n;
    const struct fab_transport *whose[FAB_TRANSPORTS_MAX * FAB_TRANSPORT_FDS];
    for (const struct fab_transport **t = w->transports; *t; t++) {
        int fd;
        for (uint32_t i = 0; i < FAB_TRANSPORT_FDS && (*t)->fd && (fd = (*t)->fd(w, i)) >= 0; i++) {
            whose[n - peers] = *t;
            fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
        }
    }
    if (poll(fds, n, timeout_ms) <= 0)
        return;
    for (nfds_t i = peers; i < n; i++)
        if (fds[i].revents)
            whose[i - peers]->woken(w);
    n = peers;
    if (fds[0].revents) {
        char bytes[64];
        while (read(w->wake_fd[0], bytes, sizeof bytes) == (ssize_t)sizeof bytes)
            ;
    }
    for (nfds_t i = 1; i < n; i++) {
        struct fab_link *l = &w->links[nodes[i]];
        if (!fds[i].revents || !fab_alive(w, nodes[i]))
            continue;
        if (fds[i].fd == l->side_fd) {
            fab_side_read(w, l);
        } else {
            fab_side_read(w, l); /* it may have said goodbye */
            if (fab_alive(w, nodes[i]))
                fab_peer_gone(w, nodes[i], !l->goodbye, "its process ended");
        }
    }
}

static void give_up_broken(struct weft *w)
{
    for (uint32_t i = 0; i < w->size; i++) {
        struct fab_link *l = &w->links[i];
        if (!fab_alive(w, i))
            continue;
        const char *why = l->transport->broken(w, l);
        if (!why)
            why = atomic_load_explicit(&l->given_up, memory_order_relaxed);
        if (why)
            fab_peer_gone(w, i, true, why);
    }
}

static void *progress_thread(void *arg)
{
    struct weft *w = arg;
    struct pollfd *fds = w->poll_fds;
    uint32_t *nodes = w->poll_nodes;
    uint64_t polls_before = 0;
    int64_t looked = 0, judge = 0, ticked = 0, next = 0;
    bool busy = false, again = false;
    while (!atomic_load_explicit(&w->stopping, memory_order_acquire)) {
        int64_t now = base_now_ns();
        if (!busy || now - ticked >= (next < TICK_NS ? next : TICK_NS)) {
            next = run_ticks(w);
            ticked = now;
        }
        /* Not what a thread that waits has been doing since the last look: it would go to sleep, and be woken for each step. */
        uint64_t polls = atomic_load_explicit(&w->polls, memory_order_relaxed);
        bool pollers = atomic_load_explicit(&w->bell->pollers, memory_order_relaxed) != 0;
        busy = !(pollers && polls != polls_before) && fab_progress(w) > 0;
        if (busy && !(pollers && polls != atomic_load_explicit(&w->polls, memory_order_relaxed))) {
            again = false;
            if (now - looked > LOOK_NS) {
                looked = now;
                give_up_broken(w);
                look_at_peers(w, fds, nodes, 0);
                judge = fab_judge_silence(w);
            }
            continue;
        }
        if (ticked != now) /* what came may have made something due */
            next = run_ticks(w);
        next = judge < next ? judge : next;
        give_up_broken(w);
        int timeout_ms = (int)((next + 999999) / 1000000);
        polls = atomic_load_explicit(&w->polls, memory_order_relaxed);
        bool polled = polls != polls_before && polls != atomic_load_explicit(&w->rested, memory_order_relaxed);
        if (polled || atomic_load_explicit(&w->bell->pollers, memory_order_relaxed)) {
            polls_before = polls;
            atomic_store_explicit(&w->lazy, true, memory_order_seq_cst);
            /* seq_cst pairs with fab_wait(), where it goes to sleep */
            bool rested = atomic_load_explicit(&w->polls, memory_order_seq_cst) == atomic_load_explicit(&w->rested, memory_order_seq_cst);
            look_at_peers(w, fds, nodes, rested ? 0 : timeout_ms < LAZY_MS ? timeout_ms : LAZY_MS);
            atomic_store_explicit(&w->lazy, false, memory_order_seq_cst);
            if (rested && again) /* one thread sleeps, another is in a handler for long */
                base_sleep_ns(SHORT_NS);
            again = rested;
            judge = fab_judge_silence(w);
            continue;
        }
        atomic_store_explicit(&w->bell->napping, 1, memory_order_seq_cst);
        atomic_thread_fence(memory_order_seq_cst); /* pairs with the sender's fence in shm_send() */
        bool quiet = idle(w);
        if (quiet)
            look_at_peers(w, fds, nodes, timeout_ms);
        atomic_store_explicit(&w->bell->napping, 0, memory_order_seq_cst);
        if (quiet) {
            judge = fab_judge_silence(w);
        } else if (now - looked > LOOK_NS) { /* another thread may be in a handler for long: peers are not to wait for that */
            looked = now;
            look_at_peers(w, fds, nodes, 0);
            judge = fab_judge_silence(w);
        } else if (again) { /* nothing to do, yet not idle: another thread is at it, and may need this processor for it */
            base_sleep_ns(SHORT_NS);
        }
        again = !quiet;
    }
    return NULL;
}

int fab_start(struct weft *w)
{
    w->poll_fds = calloc(1 + FAB_TRANSPORTS_MAX * FAB_TRANSPORT_FDS + 2 * (size_t)w->size, sizeof *w->poll_fds);
    w->poll_nodes = calloc(1 + 2 * (size_t)w->size, sizeof *w->poll_nodes);
    if (!w->poll_fds || !w->poll_nodes)
        return base_fail(-ENOMEM, "no memory to watch %u nodes", w->size);
    int rc = base_thread(&w->thread, progress_thread, w);
    if (rc)
        return base_fail(rc, "starting the progress thread: %s%s", base_strerror(rc),
                         rc == -EAGAIN ? "; this user may have too many processes and threads (ulimit -u)" : "");
    w->thread_started = true;
    return 0;
}

int fab_settle(struct weft *w, int64_t deadline)
{
    int rc = 0;
    for (const struct fab_transport **t = w->transports; *t && !rc; t++)
        if ((*t)->settle)
            rc = (*t)->settle(w, deadline);
    return rc;
}

static bool needed(struct weft *w)
{
    for (const struct fab_transport **t = w->transports; *t; t++)
        if ((*t)->needed && (*t)->needed(w))
            return true;
    return false;
}

void fab_stop(struct weft *w)
{
    if (w->thread_started) {
        for (int64_t end = base_deadline(w->deadline_ns); needed(w) && base_now_ns() < end;)
            base_sleep_ns(WEFT_MS);
        atomic_store_explicit(&w->stopping, true, memory_order_release);
        fab_kick(w);
        pthread_join(w->thread, NULL);
        w->thread_started = false;
    }
    fab_pulse_stop(w);
    for (uint32_t i = 0; i < w->size; i++) {
        struct fab_link *l = &w->links[i];
        if (l->side_fd >= 0 && fab_alive(w, i))
            fab_side_byte(l, 'b');
        /* A TCP connection that is closed with bytes unread is reset, and a reset may overtake the goodbye. */
        char bytes[256];
        if (l->side_fd >= 0 && l->liveness_ns && shutdown(l->side_fd, SHUT_WR) == 0)
            while (recv(l->side_fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
                ;
    }
}
