/* SPDX-License-Identifier: MIT
 *
 * After a message, the progress thread does quick work in place of the server thread, if that thread sleeps (turn.c).
 */
#include "gateway/serve.h"

#define BRIEF_MAX 4u /* maximum number of requests and streams that the progress thread handles at a time */

/* Handles one request that the progress thread may handle. Returns false if there is no such request. */
static bool server_begin_one(struct gateway_server *s)
{
    base_spin_lock(&s->g->lock);
    struct gateway_call **at = &s->arrived;
    while (*at && !call_is_quick(*at))
        at = &(*at)->next;
    struct gateway_call *c = *at;
    if (c && !(*at = c->next))
        s->arrived_last = at;
    base_spin_unlock(&s->g->lock);
    if (c)
        server_begin(c);
    return c;
}

static int64_t server_tick_quick(struct gateway_server *s, int64_t now)
{
    int64_t next = INT64_MAX;
    for (const struct gateway_service *const *v = s->g->services; *v; v++)
        if (s->state[(*v)->number] && (*v)->quick && (*v)->tick) {
            int64_t in = (*v)->tick(s->state[(*v)->number], now);
            next = in < next ? in : next;
        }
    return next;
}

static void server_turn_wake(struct gateway_turn *t)
{
    server_wake(t->arg);
}

static void server_turn(struct gateway_turn *t)
{
    struct gateway_server *s = t->arg;
    if (!gateway_watches_try(s->watches)) {
        server_wake(s);
        return;
    }
    bool before = fab_nowait(true);
    unsigned n = 0;
    s->brief = true;
    while (n < BRIEF_MAX && (server_begin_one(s) || server_moved_one(s, true)))
        n++;
    int64_t now = base_now_ns(), next = server_tick_quick(s, now);
    bool wake = n == BRIEF_MAX || base_after(now, next) < s->sleeps_until;
    s->brief = false;
    fab_nowait(before);
    gateway_watches_leave(s->watches);
    if (wake)
        server_wake(s);
}

void gateway_server_take_turns(struct gateway_server *s)
{
    s->turn = (struct gateway_turn){.run = server_turn, .wake = server_turn_wake, .arg = s};
}
