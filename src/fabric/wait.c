/* SPDX-License-Identifier: MIT
 *
 * Waiting: spin briefly and make progress, then sleep on the node's bell. Each sleep ends after SLICE_NS, because the thread that should
 * wake this one may have been killed between changing memory and ringing the bell.
 */
#include "fabric/fabric.h"

#include <sched.h>

#define BUSY_SLICE_NS   WEFT_MS
#define SLICE_NS        (10 * WEFT_MS)
#define YIELD_FOR       16 /* how many times WEFT_SPIN a waiting thread yields the processor, if there are more nodes than processors */
#define LOOKS_PER_CLOCK 32u
#define LINGER_FOR      4 /* how many times WEFT_SPIN fab_linger() polls */

static BASE_THREAD_LOCAL int64_t limit; /* fab_limit(); 0: none */

int64_t fab_limit(int64_t deadline)
{
    int64_t before = limit;
    limit = deadline == INT64_MAX ? 0 : deadline;
    return before ? before : INT64_MAX;
}

int64_t fab_timeout(const struct weft_node *w, int64_t timeout_ns)
{
    int64_t end = base_deadline(timeout_ns < 0 ? w->options.deadline_ns : timeout_ns);
    return timeout_ns < 0 && limit && limit < end ? limit : end;
}

/* Sleeps once, unless the condition holds already. Sets *rung to whether a waker ended the sleep. */
static bool sleep_once(struct weft_node *w, fab_ready_fn ready, void *arg, int64_t at_most, bool *rung)
{
    struct fab_bell *bell = w->bell;
    atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
    /* pairs with the waker's fence: either the waker sees this sleeper, or this thread sees the change */
    atomic_thread_fence(memory_order_seq_cst);
    /* A thread that has run handlers makes no such fence (see deliver()). So if a handler runs now, sleep only briefly. */
    if (base_spin_try(&w->progress))
        base_spin_unlock(&w->progress);
    else if (at_most > BUSY_SLICE_NS)
        at_most = BUSY_SLICE_NS;
    uint32_t seen = atomic_load_explicit(&bell->seq, memory_order_seq_cst);
    bool now = ready(arg);
    if (!now)
        base_futex_wait(&bell->seq, seen, at_most);
    *rung = atomic_load_explicit(&bell->seq, memory_order_relaxed) != seen;
    atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_seq_cst);
    return now;
}

/* Whether a GPU is copying for this node (struct fab_arenas). */
static bool copying(struct weft_node *w)
{
    return BASE_UNLIKELY(atomic_load_explicit(&w->arenas_used, memory_order_relaxed)) && w->arenas->copying(w);
}

/* Spins and makes progress until the condition holds, the deadline has passed, or nothing has made progress for `quiet_ns`. `yields`: yield
 * the processor between polls, because the thread for which this one waits may need it. */
static bool spin(struct weft_node *w, fab_ready_fn ready, void *arg, int64_t deadline, int64_t quiet_ns, bool yields)
{
    bool done = false;
    atomic_fetch_add_explicit(&w->bell->pollers, 1, memory_order_seq_cst);
    /* hurry: check the condition as soon as work that needs no handler has made progress, before polling for messages. In one of
     * WAITS_PER_PROGRESS waits, poll for messages first. */
    bool hurry = fab_polled(w) % WAITS_PER_PROGRESS != 0;
    if (yields) {
        int64_t start = base_now_ns(), now = start;
        while (!done && now < deadline && now - start < YIELD_FOR * w->options.spin_ns) {
            fab_progress(w);
            done = ready(arg);
            if (!done)
                sched_yield();
            now = base_now_ns();
        }
    } else {
        int64_t start = base_now_ns(), now = start;
        while (!done && now < deadline && now - start < quiet_ns) {
            bool moving = false;
            for (unsigned i = 0; i < LOOKS_PER_CLOCK && !done; i++) {
                int n = fab_service(w);
                done = hurry && n > 0 && ready(arg);
                if (!done) {
                    n += fab_messages(w);
                    done = ready(arg);
                }
                moving = n > 0 || moving;
                if (!done)
                    base_relax();
            }
            if (done)
                break;
            now = base_now_ns();
            fab_polled(w);            /* this thread goes on polling */
            if (moving || copying(w)) /* restart the time: while there is progress, it is better to spin than to wake another thread */
                start = now;
        }
    }
    if (atomic_fetch_sub_explicit(&w->bell->pollers, 1, memory_order_seq_cst) == 1) {
        /* Orders the decrement of `pollers` before the loads of `napping` and of received messages; pairs with the senders' fences and the
         * progress thread's fence. A sender that saw this thread in `pollers` woke nobody, so fab_last_look() must find its message. */
        fab_fence_after_rmw();
        if (BASE_UNLIKELY(atomic_load_explicit(&w->bell->napping, memory_order_relaxed)))
            fab_last_look(w);
    }
    return done;
}

/* Called when this thread stops polling: makes the progress thread poll. */
static void rest(struct weft_node *w)
{
    fab_progress(w);
    /* seq_cst pairs with the progress thread's load: either that thread sees this store, or this thread sees w->lazy. */
    atomic_store_explicit(&w->rested, atomic_load_explicit(&w->polls, memory_order_relaxed), memory_order_seq_cst);
    if (atomic_load_explicit(&w->lazy, memory_order_seq_cst))
        fab_kick(w);
}

bool fab_linger(struct weft_node *w, fab_ready_fn ready, void *arg)
{
    int64_t most = LINGER_FOR * w->options.spin_ns;
    /* Yield, because the thread that this one has just woken may wait for the same processor. */
    bool done = ready(arg) || spin(w, ready, arg, base_now_ns() + most, most, true);
    rest(w);
    return done;
}

enum wait_way { SPINS_FIRST, SLEEPS_FIRST, SLEEPS_ONLY };

static int wait_long(struct weft_node *w, fab_ready_fn ready, void *arg, int64_t deadline, enum wait_way way)
{
    bool sleeps = way == SLEEPS_ONLY || w->oversubscribed || w->options.spin_ns == 0;
    for (bool spins = way == SPINS_FIRST;; spins = true) {
        if (spins && spin(w, ready, arg, deadline, w->options.spin_ns, w->oversubscribed))
            return 0;
        rest(w);
        bool rung = false;
        while (!rung || sleeps || atomic_load_explicit(&w->bell->pollers, memory_order_relaxed)) {
            /* Poll before each sleep, because the progress thread may be in a long handler, or in a long service before it polls. */
            if (fab_service(w))
                fab_messages(w);
            if (ready(arg))
                return 0;
            int64_t left = deadline - base_now_ns();
            if (left <= 0)
                return -ETIMEDOUT;
            if (sleep_once(w, ready, arg, left < SLICE_NS ? left : SLICE_NS, &rung))
                return 0;
        }
        /* A waker has ended the sleep, and no other thread polls. Operations under way would wake this thread again and again, so it now
         * spins and makes progress itself. */
    }
}

int fab_wait_for_room(struct weft_node *w, fab_ready_fn has_room, void *arg)
{
    if (!fab_is_nowait())
        return fab_wait(w, has_room, arg, fab_timeout(w, WEFT_TIMEOUT_DEFAULT));
    if (!fab_in_handler()) {
        fab_polled(w);
        fab_progress(w); /* because a program that only repeats the refused call would make no progress otherwise */
    }
    return has_room(arg) ? 0 : -EAGAIN;
}

static int wait_until(struct weft_node *w, fab_ready_fn ready, void *arg, int64_t deadline, enum wait_way way)
{
    if (ready(arg))
        return 0;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "a handler must not wait, because no messages arrive while it runs: make this call in another thread");
    atomic_fetch_add_explicit(&w->waiting, 1, memory_order_relaxed);
    int rc = wait_long(w, ready, arg, deadline, way);
    atomic_fetch_sub_explicit(&w->waiting, 1, memory_order_relaxed);
    return rc;
}

int fab_wait(struct weft_node *w, fab_ready_fn ready, void *arg, int64_t deadline)
{
    return wait_until(w, ready, arg, deadline, SPINS_FIRST);
}

int fab_wait_asleep(struct weft_node *w, fab_ready_fn ready, void *arg, int64_t deadline)
{
    return wait_until(w, ready, arg, deadline, SLEEPS_FIRST);
}

int fab_wait_beside(struct weft_node *w, fab_ready_fn ready, void *arg, int64_t deadline)
{
    bool polls = atomic_load_explicit(&w->polled, memory_order_relaxed);
    return wait_until(w, ready, arg, deadline, polls ? SPINS_FIRST : SLEEPS_ONLY);
}
