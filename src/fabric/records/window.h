/* SPDX-License-Identifier: MIT
 *
 * window: limits how much a node has under way to a peer, in any unit. Too much data on a slow line would delay heartbeats, and the node
 * would look dead. A window starts small. It doubles while data arrives soon, and halves when data takes long, compared to the shortest
 * measured time, the network's own time.
 *
 * The network's own time may become longer when the route changes. With other data under way, a long time may also mean a slow line. So if
 * data takes long, the window is sometimes closed until nothing is under way. The time of the next operation, which is sent alone, becomes
 * the network's own time.
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
    int64_t measured;     /* when the last measurement began */
    uint32_t size_after;  /* while a measurement is under way: the size that the window gets afterwards; otherwise 0 */
};

/* Called when an operation that was sent at `began` has arrived. `used`: at least half of the window was under way at `began`; otherwise
 * the time tells nothing about a larger window. */
void records_window_took(struct records_window *w, int64_t began, int64_t now, bool used);

#endif
