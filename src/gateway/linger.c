/* SPDX-License-Identifier: MIT
 *
 * Lingering. A request through a proxy comes and goes in small pieces, one direction after the other, and the next piece comes within some
 * tens of microseconds. A thread that sleeps until then must be woken twice for each request, by three system calls each. So a thread that
 * has just moved such a piece looks for the next one itself for a moment, for messages and for descriptors, before it sleeps.
 *
 * This costs a processor. So a thread lingers only while it finds something nearly each time, only if all that it moves is one connection
 * with small pieces whose direction changes, only if there are two processors for each node of this host (the nodes wait for each other,
 * for a client and for a server), and not for some time after another thread has needed the processor.
 */
#include "gateway/gateway.h"

#include <sched.h>

#define SMALL       4096u          /* bytes of a piece after which a thread lingers */
#define LINGER_FOR  3              /* how many spin times it lingers */
#define LOOKS       32u            /* how often it looks for messages before it looks for descriptors */
#define YIELD_NS    (10 * WEFT_US) /* a yield that takes longer has given the processor to another thread */
#define PAUSE_NS    (10 * WEFT_MS) /* how long it does not linger after that */
#define MISSES_MOST 10u

void gateway_linger_moved(struct gateway_linger *l, const void *who, bool up, uint64_t bytes)
{
    l->expects = bytes <= SMALL && l->who == who && l->up != up;
    l->who = who;
    l->up = up;
}

/* Whether it is worthwhile now. */
static bool linger_allowed(struct gateway_linger *l, const struct weft_node *w, int64_t now)
{
    bool expects = l->expects;
    l->expects = false;
    l->processors = l->processors ? l->processors : base_cpus();
    if (!expects || !w->options.spin_ns || 2 * w->size_here > l->processors || now < l->pause_until)
        return false;
    if (!l->skips)
        return true;
    l->skips--;
    return false;
}

bool gateway_linger(struct gateway_linger *l, weft_node *w, struct gateway_watches *watches, struct gateway_turn *turn, fab_ready_fn come,
                    void *arg)
{
    if (!l->expects)
        return false;
    int64_t start = base_now_ns(), now = start;
    if (!linger_allowed(l, w, now))
        return false;
    bool done = false;
    gateway_turn_self(turn);
    fab_poll_begin(w);
    while (!done && now - start < LINGER_FOR * w->options.spin_ns && now >= l->pause_until) {
        for (unsigned i = 0; i < LOOKS && !done; i++) {
            (void)fab_service(w);
            (void)fab_messages(w);
            done = come(arg);
            if (!done)
                base_relax();
        }
        if (done || (done = gateway_watches_wait(watches, 0) > 0))
            break;
        int64_t before = base_now_ns();
        sched_yield();
        now = base_now_ns();
        if (now - before > YIELD_NS)
            l->pause_until = now + PAUSE_NS;
    }
    gateway_turn_self(NULL); /* before the next line, which may handle messages: come() is not asked again */
    fab_poll_end(w);
    if (done) {
        l->misses /= 2;
    } else {
        l->misses += l->misses < MISSES_MOST;
        l->skips = (1u << l->misses) - 1;
    }
    return done;
}
