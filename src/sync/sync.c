/* SPDX-License-Identifier: MIT
 *
 * The state of this folder, and counters.
 */
#include <stdio.h>
#include <stdlib.h>

#include "sync/state.h"

static void sync_close(struct weft_node *w, void *arg)
{
    struct sync *s = arg;
    lock_close(w, s);
    pthread_mutex_destroy(&s->barrier_lock);
    free(s->members);
    free(s->requests);
    free(s);
    w->sync = NULL;
}

int sync_open(struct weft_node *w)
{
    struct sync *s = calloc(1, sizeof *s);
    if (s) {
        s->members = calloc(w->founders, sizeof *s->members);
        s->requests = calloc(w->room, sizeof *s->requests);
    }
    if (!s || !s->members || !s->requests) {
        free(s ? s->members : NULL);
        free(s ? s->requests : NULL);
        free(s);
        return base_fail(-ENOMEM, "no memory for the state of barriers and locks" BASE_MEMORY_HINT);
    }
    pthread_mutex_init(&s->barrier_lock, NULL);
    w->sync = s;
    int rc = fab_hook(w, &(struct fab_hook){.close = sync_close, .arg = s});
    if (rc) {
        sync_close(w, s);
        return rc;
    }
    return lock_open(w);
}

int weft_counter_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old)
{
    int rc = weft_fetch_add_blocking(w, word, add, old);
    if (rc == 0 && weft_gaddr_node(word) != w->rank)
        fab_wake(w, weft_gaddr_node(word)); /* an addition by an RDMA device does not wake the waiting process */
    return rc;
}

int weft_counter_read(weft_node *w, weft_gaddr word, uint64_t *value)
{
    return weft_fetch_add_blocking(w, word, 0, value);
}

static void say_counter(const struct fab_patience *p, weft_gaddr word, bool unread, uint64_t now, uint64_t value)
{
    char what[96], whom[320], living[160], is[48];
    fab_name_living(p->w, living, sizeof living);
    snprintf(what, sizeof what, "counter %#llx of node %u", (unsigned long long)word, weft_gaddr_node(word));
    if (unread)
        snprintf(is, sizeof is, "cannot be read now");
    else
        snprintf(is, sizeof is, "is %llu", (unsigned long long)now);
    snprintf(whom, sizeof whom, "the value %llu (the counter %s); %s", (unsigned long long)value, is, living);
    fab_patience_say(p, what, whom);
}

/* Poll the word at growing intervals, because a change of the word wakes only the node that has the word. */
static int wait_for_counter(struct weft_node *w, struct fab_patience *p, weft_gaddr word, uint64_t value)
{
    for (int64_t pause = 5 * WEFT_US;; pause = pause < WEFT_MS ? pause * 2 : pause) {
        uint64_t now = 0;
        int rc = weft_counter_read(w, word, &now);
        /* The counter's node may be stopped and still alive: then keep waiting. */
        bool unread = rc == -ETIMEDOUT && p->lasting && fab_alive(w, weft_gaddr_node(word));
        if ((rc && !unread) || (!rc && now >= value))
            return rc;
        rc = fab_patience_check(p);
        if (rc == -ETIMEDOUT)
            return base_fail(
                rc, "counter %#llx was %llu at the deadline, but the call waited for it to reach %llu; wait again, or allow more time",
                (unsigned long long)word, (unsigned long long)now, (unsigned long long)value);
        if (rc)
            return base_fail(rc, "counter %#llx is %llu, but the call waited for it to reach %llu, and the wait has ended because %s",
                             (unsigned long long)word, (unsigned long long)now, (unsigned long long)value, fab_patience_loss(p));
        if (fab_patience_due(p))
            say_counter(p, word, unread, now, value);
        fab_progress(w);
        base_sleep_ns(pause);
    }
}

int weft_counter_wait(weft_node *w, weft_gaddr word, uint64_t value, int64_t timeout_ns)
{
    if (weft_gaddr_node(word) == w->rank)
        return weft_wait_until(w, word, WEFT_GE, value, NULL, timeout_ns);
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_counter_wait() must not be called from a handler: call it in another thread");
    struct fab_patience p;
    fab_patience_begin(&p, w, FAB_ANY, timeout_ns);
    int64_t look = base_deadline(SYNC_LOOK_NS);
    int64_t limit = fab_limit(p.deadline < look ? look : p.deadline);
    atomic_fetch_add_explicit(&w->waiting, 1, memory_order_relaxed); /* this thread counts as a waiter even between two polls */
    int rc = wait_for_counter(w, &p, word, value);
    atomic_fetch_sub_explicit(&w->waiting, 1, memory_order_relaxed);
    (void)fab_limit(limit);
    return rc;
}
