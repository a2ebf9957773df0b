/* SPDX-License-Identifier: MIT
 *
 * Handles the end of a peer, and detects the death of peers on other hosts. Both nodes of a link send heartbeats, the byte 'h', over the
 * side connection. A message of a transport over this connection counts as a heartbeat, too. A peer that is silent for too long is dead.
 *
 * The kernel of the peer's host acknowledges our heartbeats, whatever the peer's process does, and closes the connection when the process
 * ends. If the host does not answer either, the peer is dead after WEFT_LIVENESS. If the host answers, the process is stopped or gets no
 * processor, and is dead after PATIENCE times WEFT_LIVENESS.
 *
 * On a slow network heartbeats wait behind what was sent before, and TCP may send only one packet in a round trip. So two round trips, as
 * the kernel has measured them, are added to these times.
 *
 * A thread of its own sends the heartbeats, because the progress thread may be in a handler of the program for a long time. The progress
 * thread decides whether a peer is dead, right after it has read what has arrived. It does not count time in which it did not read, so that
 * a node that was stopped does not declare all others dead.
 */
#include "fabric/fabric.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define JUDGE_NS (10 * WEFT_MS) /* the least time between two checks */
/* How long the connection to a peer that is gone is kept, because another thread may be about to write to it. */
#define GONE_NS  (10 * WEFT_SECOND)
#define PATIENCE 5 /* how many times WEFT_LIVENESS a process may be silent while its host answers */
#define SLOWNESS 3 /* how many times WEFT_LIVENESS more a peer may be silent, if the network is slow */

void fab_give_up(struct weft_node *w, uint32_t node, const char *why)
{
    atomic_store_explicit(&w->links[node].given_up, why, memory_order_relaxed);
    fab_kick(w);
}

void fab_peer_gone(struct weft_node *w, uint32_t node, bool died, const char *why)
{
    struct fab_link *l = &w->links[node];
    if (!fab_alive(w, node))
        return;
    base_log(died ? BASE_LOG_WARN : BASE_LOG_INFO, "node %u (pid %d on %s) %s: %s", node, l->pid, l->host, died ? "is dead" : "has left",
             why);
    l->gone_why = strdup(why); /* copied, because `why` may be this thread's error text, which the failing operations below overwrite */
    fab_last_words(w, l, died ? FAB_DEAD : FAB_LEFT);
    l->transport->disconnect(w, l);
    shutdown(l->side_fd, SHUT_RDWR); /* if the peer is alive, the closed connection tells it that this node has given it up */
    if (l->pid_fd >= 0)
        close(l->pid_fd);
    l->pid_fd = -1;
    l->gone_ns = base_now_ns();
    atomic_fetch_add_explicit(&w->epoch, 1, memory_order_acq_rel);
    fab_wake_here(w);
    fab_run_gone(w, node, died);
    fab_wake_here(w);
}

static void beat(struct fab_link *l)
{
    if (fab_side_answered(l))
        atomic_store_explicit(&l->answered, true, memory_order_relaxed);
    fab_side_byte(l, 'h');
}

static void *pulse_thread(void *arg)
{
    struct weft_node *w = arg;
    while (!atomic_load_explicit(&w->pulse_end, memory_order_acquire)) {
        /* Send heartbeats only to nodes that are alive here: while two nodes connect, only the transports may use their side connection.
         * The acquire load in fab_alive() pairs with the store of FAB_ALIVE after connecting. */
        for (uint32_t i = 0; i < w->size; i++)
            if (fab_alive(w, i) && w->links[i].liveness_ns)
                beat(&w->links[i]);
        base_futex_wait(&w->pulse_end, 0, w->pulse_ns);
    }
    return NULL;
}

int fab_pulse_start(struct weft_node *w)
{
    int rc = base_thread(&w->pulse_thread, pulse_thread, w);
    if (rc)
        return base_fail(rc, "cannot start the thread for heartbeats: %s" BASE_THREAD_HINT, base_strerror(rc));
    w->pulse_started = true;
    return 0;
}

void fab_pulse_stop(struct weft_node *w)
{
    if (!w->pulse_started)
        return;
    atomic_store_explicit(&w->pulse_end, 1, memory_order_release);
    base_futex_wake(&w->pulse_end, 1);
    pthread_join(w->pulse_thread, NULL);
    w->pulse_started = false;
}

/* The time by which a peer may be silent for longer, because the network is slow. */
static int64_t slowness(const struct fab_link *l)
{
    int64_t trips = 2 * base_round_trip_ns(l->side_fd), most = SLOWNESS * l->liveness_ns;
    return trips < most ? trips : most;
}

/* Returns for how much longer, from now on, this peer may be silent. 0: the peer is dead, and `why` has the reason. */
static int64_t grace(const struct weft_node *w, struct fab_link *l, char *why, size_t len)
{
    /* What this node knows about the peer's host is up to one heartbeat interval old. */
    int64_t host = l->liveness_ns - w->pulse_ns - l->unanswered_ns, left = l->liveness_ns - l->silent_ns;
    double seconds = (double)l->silent_ns / 1e9;
    left = host > left ? host : left;
    /* If the peer's host has acknowledged all bytes, this node has sent no heartbeat for a while, because its heartbeat thread got no
     * processor. So the silence proves nothing. */
    if (left <= 0 && base_unacknowledged(l->side_fd) == 0) {
        l->unanswered_ns = 0;
        left = l->liveness_ns - w->pulse_ns;
    }
    if (left <= 0)
        left += slowness(l);
    if (left <= 0) {
        snprintf(why, len, "it and its host were silent for %.1f s (WEFT_LIVENESS)", seconds);
        return 0;
    }
    if (PATIENCE * l->liveness_ns - l->silent_ns <= 0) {
        snprintf(why, len,
                 "it was silent for %.1f s, %d times WEFT_LIVENESS, although its host answers: it is stopped, or gets no processor time",
                 seconds, PATIENCE);
        return 0;
    }
    return left < PATIENCE * l->liveness_ns - l->silent_ns ? left : PATIENCE * l->liveness_ns - l->silent_ns;
}

/* Close the descriptors of a peer that is gone: nodes may join and leave again and again, and the number of descriptors is limited. */
static void peer_forget(struct weft_node *w, struct fab_link *l, int64_t now)
{
    if (w->room == w->founders || l->side_fd < 0 || !l->gone_ns || now - l->gone_ns < GONE_NS)
        return;
    close(l->side_fd);
    l->side_fd = -1;
}

int64_t fab_judge_silence(struct weft_node *w)
{
    if (!w->pulse_ns)
        return INT64_MAX;
    int64_t now = base_now_ns(), since = w->listened_ns ? now - w->listened_ns : 0, next = w->pulse_ns;
    if (w->listened_ns && since < JUDGE_NS)
        return JUDGE_NS;
    w->listened_ns = now;
    since = since < w->pulse_ns ? since : w->pulse_ns;
    for (uint32_t i = 0; i < w->size; i++) {
        struct fab_link *l = &w->links[i];
        char why[128];
        peer_forget(w, l, now);
        if (!l->liveness_ns || !fab_alive(w, i))
            continue;
        bool heard = atomic_exchange_explicit(&l->heard, false, memory_order_relaxed);
        bool answered = atomic_exchange_explicit(&l->answered, false, memory_order_relaxed);
        l->silent_ns = heard ? 0 : l->silent_ns + since;
        l->unanswered_ns = heard || answered ? 0 : l->unanswered_ns + since;
        int64_t left = grace(w, l, why, sizeof why);
        if (left == 0)
            fab_peer_gone(w, i, true, why);
        else if (left < next)
            next = left;
    }
    return next;
}
