/* SPDX-License-Identifier: MIT
 *
 * See window.h.
 */
#include "fabric/records/window.h"

#include "weft/types.h"

#define SOON     (250 * WEFT_MS) /* beyond the shortest time: the window may grow */
#define LATE     (500 * WEFT_MS) /* beyond twice the shortest time: the window shrinks. A quarter of the usual WEFT_LIVENESS */
#define OWN_MOST WEFT_SECOND     /* a longer time is not the network's own */

void records_window_took(struct records_window *w, int64_t began, int64_t now, bool used)
{
    int64_t took = now > began ? now - began : 1; /* another thread's clock reading may be a little older */
    int64_t own = took < OWN_MOST ? took : OWN_MOST;
    w->shortest = w->shortest && w->shortest < own ? w->shortest : own;
    if (began < w->changed)
        return; /* sent when the window had another size */
    uint32_t size = w->size;
    if (took > 2 * w->shortest + LATE)
        size = size / 2 > w->least ? size / 2 : w->least;
    else if (used && took < w->shortest + SOON)
        size = size < w->most / 2 ? 2 * size : w->most;
    if (size == w->size)
        return;
    w->size = size;
    w->changed = now;
}
