/* SPDX-License-Identifier: MIT
 *
 * The room's state, and counters.
 */
#include <stdlib.h>

#include "sync/state.h"

static void sync_close(struct weft *w, void *arg)
{
    struct sync *s = arg;
    lock_close(s);
    pthread_mutex_destroy(&s->barrier_lock);
    free(s->members);
    free(s);
    w->sync = NULL;
}

int sync_open(struct weft *w)
{
    struct sync *s = calloc(1, sizeof *s);
    if (s)
        s->members = calloc(w->size, sizeof *s->members);
    if (!s || !s->members) {
        free(s);
        return base_fail(-ENOMEM, "no memory for barriers and locks");
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

int weft_counter_add(weft *w, weft_gaddr word, uint64_t add, uint64_t *old)
{
    int rc = weft_fetch_add_now(w, word, add, old);
    if (rc == 0 && weft_gaddr_node(word) != w->rank)
        fab_wake(w, weft_gaddr_node(word)); /* its device may have added without its knowing */
    return rc;
}

int weft_counter_read(weft *w, weft_gaddr word, uint64_t *value)
{
    return weft_fetch_add_now(w, word, 0, value);
}

int weft_counter_wait(weft *w, weft_gaddr word, uint64_t value, int64_t timeout_ns)
{
    if (weft_gaddr_node(word) == w->rank)
        return weft_wait_until(w, word, WEFT_GE, value, NULL, timeout_ns);
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_counter_wait() must not be called from a handler");
    /* A word of another node rings that node's bell, not ours: look, less and less often. */
    int64_t deadline = fab_timeout(w, timeout_ns);
    for (int64_t pause = 5 * WEFT_US;; pause = pause < WEFT_MS ? pause * 2 : pause) {
        uint64_t now;
        int rc = weft_counter_read(w, word, &now);
        if (rc || now >= value)
            return rc;
        if (base_now_ns() >= deadline)
            return base_fail(-ETIMEDOUT, "counter %#llx: %llu at the deadline, %llu wanted", (unsigned long long)word,
                             (unsigned long long)now, (unsigned long long)value);
        fab_progress(w);
        base_sleep_ns(pause);
    }
}
