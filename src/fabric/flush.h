/* SPDX-License-Identifier: MIT
 *
 * A flush waits for those operations to one node that began before the flush, and not for those that other threads start meanwhile. First,
 * all operations that were queued when the flush began must be sent. Then everything that was sent up to that moment must be complete.
 */
#ifndef WEFT_FLUSH_H
#define WEFT_FLUSH_H

#include <stdbool.h>
#include <stdint.h>

/* The state of one flush, all zeros at first. The transport stores its counts here, and later compares them with its current counts. */
struct fab_flush {
    bool begun;     /* `kept`, `asked` and `turn` are set */
    bool arenas;    /* `arena` is set */
    uint64_t arena; /* identifies the last operation on GPU memory that began before the flush */
    bool gone;      /* all queued operations were posted, and `at` and `read` are set */
    /* rc: number of the link's queue pair in whose send queue `at` and `read` are positions. tb: the turn in which the flush began */
    uint32_t turn;
    uint64_t asked;   /* rc: how many requests to the peer's processor were sent before the flush */
    uint64_t kept[2]; /* rc: how many operations were queued before the flush, for each lane; shm: how many messages were in the backlog */
    uint64_t at;      /* rc: all requests before this position must have arrived; tb: all frames before this number */
    uint64_t read;    /* rc: position after the last read */
};

#endif
