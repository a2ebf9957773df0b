/* SPDX-License-Identifier: MIT
 *
 * A turn is work that the progress thread does in place of a thread of this node that sleeps, because waking that thread takes time. If a
 * thread of the program handles the message, that thread only wakes the sleeping one, so that services do not delay the program.
 */
#include "gateway/gateway.h"

/* The turns that were requested while this thread handles a message. NULL: turns are not collected now. */
static BASE_THREAD_LOCAL struct gateway_turns *collecting;
/* This thread is in run() of a turn. If run() makes work for another sleeping thread, this thread only wakes that thread. */
static BASE_THREAD_LOCAL bool running;

void gateway_turns_begin(struct gateway_turns *t)
{
    *t = (struct gateway_turns){.collects = !collecting && !running && fab_on_progress_thread() && fab_in_handler()};
    if (t->collects)
        collecting = t;
}

void gateway_turn(struct gateway_turn *t)
{
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
        t->listed = false; /* cleared before run(), because work that arrives from here on needs another call of run() */
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
