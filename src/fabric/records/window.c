/* SPDX-License-Identifier: MIT
 *
 * See window.h.
 */
#include "fabric/records/window.h"

#include "weft/types.h"

#define SOON     (250 * WEFT_MS)    /* the window may grow while an operation takes at most this much longer than the shortest one */
#define LATE     (500 * WEFT_MS)    /* the window shrinks if an operation takes twice the shortest time plus more than this */
#define OWN_MOST WEFT_SECOND        /* upper limit for the network's own time */
#define MEASURE  (10 * WEFT_SECOND) /* time between two measurements */
#define ALONE    1                  /* window size at which only one frame or operation is under way at a time */

/* Returns the new window size after an operation that took `took` ns. */
static uint32_t window_next(const struct records_window *w, int64_t took, bool used)
{
    if (took > 2 * w->shortest + LATE)
        return w->size / 2 > w->least ? w->size / 2 : w->least;
    if (used && took < w->shortest + SOON)
        return w->size < w->most / 2 ? 2 * w->size : w->most;
    return w->size;
}

void records_window_took(struct records_window *w, int64_t began, int64_t now, bool used)
{
    int64_t took = now > began ? now - began : 1; /* if another thread set `began`, `now` may be slightly older */
    int64_t own = took < OWN_MOST ? took : OWN_MOST;
    bool current = began >= w->changed; /* the operation was sent with the current window size */
    uint32_t size = w->size;
    if (w->size_after && current) { /* this ends a measurement: the operation was the only one under way */
        w->shortest = own;
        size = w->size_after;
        w->size_after = 0;
    } else {
        w->shortest = w->shortest && w->shortest < own ? w->shortest : own;
        if (!current || w->size_after)
            return;
        size = window_next(w, took, used);
        if (used && took >= w->shortest + SOON && now - w->measured >= MEASURE) {
            w->measured = now;
            w->size_after = size;
            size = ALONE;
        }
    }
    if (size == w->size)
        return;
    w->size = size;
    w->changed = now;
}
