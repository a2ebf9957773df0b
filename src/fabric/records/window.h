/* SPDX-License-Identifier: MIT
 *
 * window: how much a node may have under way to a peer, in any unit. What is under way on a slow line delays everything behind it,
 * heartbeats too, and must not look like silence. A window is small at first. It doubles while what is sent arrives soon, and halves when
 * it takes long, compared to the shortest time that anything has taken, which is the network's own.
 *
 * That time becomes longer if the route changes. What is under way together with other bytes does not show whether the network is long or
 * the line is slow. So if something takes long, the window is closed now and then until nothing is under way. The time of what is then sent
 * alone becomes the network's own.
 *
 * A state machine without a clock or a lock of its own.
 */
#ifndef WEFT_RECORDS_WINDOW_H
#define WEFT_RECORDS_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

struct records_window {
    uint32_t size;        /* limit for what is under way; a single larger operation may be sent alone */
    uint32_t least, most; /* bounds of `size` */
    int64_t changed;      /* when `size` was changed last */
    int64_t shortest;     /* the network's own time; 0: unknown */
    int64_t measured;     /* when a measurement was begun last */
    uint32_t size_after;  /* the size after the current measurement; 0: none */
};

/* Called when an operation that was sent at `began` has arrived. `used`: at least half of the window was under way at `began`; otherwise
 * the time tells nothing about a larger window. */
void records_window_took(struct records_window *w, int64_t began, int64_t now, bool used);

#endif
