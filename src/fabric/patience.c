/* SPDX-License-Identifier: MIT
 *
 * Waits for other nodes, for example in a barrier. A slow node is not an error. So such a wait lasts as long as these nodes are alive,
 * unless the caller gives a time-out or the user has set WEFT_DEADLINE. The wait prints once for which nodes it waits (WEFT_SAY_AFTER).
 *
 * For some waits it is not known which node will end them, because any node may write to a word. A node that dies during such a wait may be
 * the one that should have ended it. So after a death, or if no other node is alive, the wait lasts only for the default deadline. It does
 * not end at once, since another node or a thread of this process may still end it. Nodes that died before the wait do not count.
 */
#include <stdio.h>

#include "fabric/fabric.h"

#define NAMED_MOST 8u

static bool alone(const struct weft_node *w)
{
    return w->size > 1 && weft_alive_count(w) <= 1;
}

void fab_patience_begin(struct fab_patience *p, struct weft_node *w, enum fab_whom whom, int64_t timeout_ns)
{
    bool lasting = timeout_ns < 0 && !w->options.bounded;
    uint64_t epoch = weft_epoch(w); /* read before the nodes are counted: then the next check sees a node that dies meanwhile */
    *p = (struct fab_patience){
        .w = w,
        .whom = whom,
        .lasting = lasting,
        .deadline = lasting ? INT64_MAX : fab_timeout(w, timeout_ns),
        /* base_recent_ns() is cheaper than base_now_ns(), and every barrier runs this function */
        .say_at = lasting ? base_after(base_recent_ns(), w->options.say_after_ns) : INT64_MAX,
        .lost_at = INT64_MAX,
        .epoch = epoch,
        .dead = whom == FAB_ANY ? fab_count_dead(w, w->size) : 0,
    };
    p->lonely = lasting && whom != FAB_KNOWN && alone(w);
    if (p->lonely)
        p->lost_at = base_deadline(w->options.deadline_ns);
}

/* Handles a new epoch: nodes have died or joined. */
static void patience_look(struct fab_patience *p)
{
    uint32_t dead = p->whom == FAB_ANY ? fab_count_dead(p->w, p->w->size) : 0;
    bool lonely = p->whom != FAB_KNOWN && alone(p->w);
    bool died = dead != p->dead || (p->lost_at != INT64_MAX && !p->lonely); /* now, or earlier during this wait */
    if (p->lonely && !lonely && !died)
        p->lost_at = INT64_MAX; /* a node has joined, and it can end the wait */
    if (p->lasting && (lonely || died) && p->lost_at == INT64_MAX)
        p->lost_at = base_deadline(p->w->options.deadline_ns);
    p->lonely = lonely && !died;
    p->dead = dead;
}

int fab_patience_check(struct fab_patience *p)
{
    int64_t now = base_now_ns();
    if (now >= p->deadline)
        return -ETIMEDOUT;
    uint64_t epoch = weft_epoch(p->w);
    if (epoch != p->epoch) {
        patience_look(p);
        p->epoch = epoch;
    }
    return now >= p->lost_at ? -ECONNRESET : 0;
}

const char *fab_patience_loss(const struct fab_patience *p)
{
    return alone(p->w) ? "no other node is alive" : "a node that might have changed this value has died";
}

bool fab_patience_due(struct fab_patience *p)
{
    if (base_now_ns() < p->say_at)
        return false;
    p->say_at = INT64_MAX;
    return true;
}

void fab_patience_say(const struct fab_patience *p, const char *what, const char *whom)
{
    base_log(BASE_LOG_WARN,
             "%s: node %u has waited %g s for %s. The wait continues (to bound the wait, pass a time-out or set WEFT_DEADLINE)", what,
             p->w->rank, (double)p->w->options.say_after_ns / 1e9, whom);
}

uint32_t fab_name_nodes(const bool in[], uint32_t count, char *buf, size_t len)
{
    uint32_t n = 0, named = 0;
    for (uint32_t i = 0; i < count; i++)
        n += in[i];
    uint32_t most = n <= NAMED_MOST ? n : NAMED_MOST - 1;
    size_t at = (size_t)snprintf(buf, len, "%s", n == 0 ? "no node" : n == 1 ? "node" : "nodes");
    for (uint32_t i = 0; i < count && named < most && at < len; i++) {
        if (!in[i])
            continue;
        const char *before = named == 0 ? " " : named + 1 == n ? " and " : ", ";
        at += (size_t)snprintf(buf + at, len - at, "%s%u", before, i);
        named++;
    }
    if (named < n && at < len)
        snprintf(buf + at, len - at, " and %u more", n - named);
    return n;
}

void fab_name_living(const struct weft_node *w, char *buf, size_t len)
{
    bool in[WEFT_MAX_NUMBERS];
    char names[128];
    uint32_t count = w->size;
    for (uint32_t i = 0; i < count; i++)
        in[i] = i != w->rank && fab_alive(w, i);
    uint32_t n = fab_name_nodes(in, count, names, sizeof names);
    snprintf(buf, len, "%s %s alive", n == 0 ? "no other node" : names, n > 1 ? "are" : "is");
}
