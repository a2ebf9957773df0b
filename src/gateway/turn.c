/* SPDX-License-Identifier: MIT
 *
 * Turns. A message whose handler finds something for a thread that sleeps would have to wake it: a system call here, and the time until the
 * thread runs. Instead the progress thread, which is awake, takes its turn after the handler. Other threads only wake it: a program's own
 * thread must not be held up by the work of services.
 */
#include "gateway/gateway.h"

static BASE_THREAD_LOCAL struct gateway_turns *collecting; /* of the message that this thread handles; NULL: none, or no turns now */
static BASE_THREAD_LOCAL const struct gateway_turn *self;  /* gateway_turn_self() */
static BASE_THREAD_LOCAL bool running;                     /* what a turn leads to on this node is left to its own threads */

void gateway_turn_self(const struct gateway_turn *t)
{
    self = t;
}

void gateway_turns_begin(struct gateway_turns *t)
{
    *t = (struct gateway_turns){.collects = !collecting && !running && fab_on_progress_thread() && fab_in_handler()};
    if (t->collects)
        collecting = t;
}

void gateway_turn(struct gateway_turn *t)
{
    if (t == self)
        return;
    if (!collecting) {
        t->wake(t);
    } else if (!t->listed) {
        t->listed = true;
        t->next = collecting->first;
        collecting->first = t;
    }
}

void gateway_turns_end(struct gateway *g, struct gateway_turns *turns)
{
    if (!turns->collects)
        return;
    collecting = NULL;
    running = true;
    for (struct gateway_turn *t; (t = turns->first);) {
        base_spin_lock(&g->lock);
        turns->first = t->next;
        t->listed = false; /* before run(): what comes from here on needs a turn of its own */
        t->runs++;
        base_spin_unlock(&g->lock);
        t->run(t);
        base_spin_lock(&g->lock);
        t->runs--;
        base_spin_unlock(&g->lock);
    }
    running = false;
}

void gateway_turn_close(struct gateway *g, struct gateway_turn *t)
{
    for (bool used = true; used;) {
        base_spin_lock(&g->lock);
        used = t->listed || t->runs;
        base_spin_unlock(&g->lock);
        if (used)
            base_sleep_ns(10 * WEFT_US);
    }
}
