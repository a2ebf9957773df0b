/* SPDX-License-Identifier: MIT
 *
 * The progress thread. It delivers messages when the program does not, watches the side connections, which report the death of a peer, and
 * runs the upkeep of transports and of the higher layers (fabric.h).
 *
 * When there is nothing to do, the thread naps in poll(). Senders wake it by a byte on the side connection, but only if `napping` is 1 and
 * `pollers` is 0 (struct fab_bell). While the program polls by itself, this thread polls only every LAZY_MS.
 */
#include "fabric/fabric.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define LAZY_MS    1
#define BUSY_NS    (WEFT_MS / 2)
#define SHORT_NS   (WEFT_MS / 20)
#define NAP_MS     1000 /* the longest sleep; limited, because no descriptor reports the death of some peers */
#define READS      64   /* kilobytes read from one side connection before the next one is read */
#define LAST_READS 4096 /* kilobytes to read when the process has ended: more than a socket holds */
/* How long to wait at most until all peers have read the goodbye, since a peer may be stopped or busy. */
#define GOODBYE_WAIT (2 * WEFT_SECOND)
#define TICK_NS      WEFT_MS        /* how often upkeep runs while messages keep coming */
#define LOOK_NS      (20 * WEFT_MS) /* how often the peers are checked, however many messages arrive */

static BASE_THREAD_LOCAL bool is_progress_thread;

bool fab_on_progress_thread(void)
{
    return is_progress_thread;
}

/* Whether there is nothing to do, so that the thread may sleep. */
static bool idle(struct weft_node *w)
{
    bool quiet = true;
    if (!base_spin_try(&w->progress)) {
        /* A handler runs on another thread, perhaps for long. */
        base_sleep_ns(BUSY_NS);
        return false;
    }
    for (const struct fab_transport **t = w->transports; *t; t++)
        quiet = quiet && (*t)->idle(w);
    base_spin_unlock(&w->progress);
    return quiet;
}

static void read_side(struct weft_node *w, struct fab_link *l, uint32_t most)
{
    bool died;
    const char *why = fab_side_read(w, l, most, &died);
    if (why)
        fab_peer_gone(w, l->node, died, why);
}

/* One round of poll() over the side connections and the transports' descriptors. */
static void look_at_peers(struct weft_node *w, struct pollfd *fds, uint32_t *nodes, int timeout_ms)
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
            read_side(w, l, READS);
        } else {
            /* The peer's last bytes may be a goodbye, so read them. Read a bounded number, since a child process of the peer may still
             * write to the socket. */
            read_side(w, l, LAST_READS);
            if (fab_alive(w, nodes[i]))
                fab_peer_gone(w, nodes[i], !l->goodbye, "its process ended");
        }
    }
}

static void give_up_broken(struct weft_node *w)
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

static int64_t progress_ticks(struct weft_node *w)
{
    int64_t next = fab_run_ticks(w);
    return next < NAP_MS * WEFT_MS ? next : NAP_MS * WEFT_MS;
}

static void *progress_thread(void *arg)
{
    struct weft_node *w = arg;
    struct pollfd *fds = w->poll_fds;
    uint32_t *nodes = w->poll_nodes;
    uint64_t polls_before = 0;
    int64_t looked = 0, judge = 0, ticked = 0, next = 0;
    bool busy = false, again = false;
    is_progress_thread = true;
    while (!atomic_load_explicit(&w->stopping, memory_order_acquire)) {
        int64_t now = base_now_ns();
        if (BASE_UNLIKELY(atomic_load_explicit(&w->newcomer, memory_order_acquire)))
            fab_announce(w);
        if (!busy || now - ticked >= (next < TICK_NS ? next : TICK_NS)) {
            next = progress_ticks(w);
            ticked = now;
        }
        /* If a waiting thread has polled since the last round, leave the messages to that thread. Otherwise it would find none, sleep, and
         * be woken again and again. */
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
        if (ticked != now) /* messages that arrived may have made periodic work due */
            next = progress_ticks(w);
        next = judge < next ? judge : next;
        give_up_broken(w);
        int timeout_ms = (int)((next + 999999) / 1000000);
        polls = atomic_load_explicit(&w->polls, memory_order_relaxed);
        bool polled = polls != polls_before && polls != atomic_load_explicit(&w->rested, memory_order_relaxed);
        if (polled || atomic_load_explicit(&w->bell->pollers, memory_order_relaxed)) {
            polls_before = polls;
            atomic_store_explicit(&w->lazy, true, memory_order_seq_cst);
            /* seq_cst: pairs with rest() in wait.c, which a waiting thread calls before it sleeps */
            bool rested = atomic_load_explicit(&w->polls, memory_order_seq_cst) == atomic_load_explicit(&w->rested, memory_order_seq_cst);
            look_at_peers(w, fds, nodes, rested ? 0 : timeout_ms < LAZY_MS ? timeout_ms : LAZY_MS);
            atomic_store_explicit(&w->lazy, false, memory_order_seq_cst);
            if (rested && again) /* a thread of the program has gone to sleep, and another one is in a long handler */
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
        } else if (now - looked > LOOK_NS) { /* read the side connections now and then, even if another thread's handler takes long */
            looked = now;
            look_at_peers(w, fds, nodes, 0);
            judge = fab_judge_silence(w);
        } else if (again) { /* the second round without a nap: another thread does the work, and may need this processor */
            base_sleep_ns(SHORT_NS);
        }
        again = !quiet;
    }
    return NULL;
}

int fab_start(struct weft_node *w)
{
    size_t alive = w->room < WEFT_MAX_NODES ? w->room : WEFT_MAX_NODES; /* maximum number of nodes that are alive at the same time */
    w->poll_fds = calloc(1 + FAB_TRANSPORTS_MAX * FAB_TRANSPORT_FDS + 2 * alive, sizeof *w->poll_fds);
    w->poll_nodes = calloc(1 + 2 * alive, sizeof *w->poll_nodes);
    if (!w->poll_fds || !w->poll_nodes)
        return base_fail(-ENOMEM, "no memory to watch %u nodes" BASE_MEMORY_HINT, w->size);
    int rc = base_thread(&w->thread, progress_thread, w);
    if (rc)
        return base_fail(rc, "cannot start the progress thread: %s%s", base_strerror(rc), rc == -EAGAIN ? BASE_THREAD_HINT : "");
    w->thread_started = true;
    return 0;
}

int fab_settle(struct weft_node *w, int64_t deadline)
{
    int rc = 0;
    for (const struct fab_transport **t = w->transports; *t && !rc; t++)
        if ((*t)->settle)
            rc = (*t)->settle(w, deadline);
    return rc;
}

static bool needed(struct weft_node *w)
{
    for (const struct fab_transport **t = w->transports; *t; t++)
        if ((*t)->needed && (*t)->needed(w))
            return true;
    return false;
}

void fab_stop(struct weft_node *w)
{
    if (w->thread_started) {
        for (int64_t end = base_deadline(w->options.deadline_ns); needed(w) && base_now_ns() < end;)
            base_sleep_ns(WEFT_MS);
        atomic_store_explicit(&w->stopping, true, memory_order_release);
        fab_kick(w);
        pthread_join(w->thread, NULL);
        w->thread_started = false;
    }
    fab_pulse_stop(w);
    int64_t end = base_deadline(GOODBYE_WAIT);
    for (uint32_t i = 0; i < w->size; i++) {
        struct fab_link *l = &w->links[i];
        if (l->side_fd >= 0 && fab_alive(w, i))
            fab_side_goodbye(l, end);
        /* Read before closing: a TCP connection that is closed with unread bytes is reset, and the reset may overtake the goodbye. */
        char bytes[256];
        if (l->side_fd >= 0 && l->liveness_ns && shutdown(l->side_fd, SHUT_WR) == 0)
            while (recv(l->side_fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
                ;
    }
}
