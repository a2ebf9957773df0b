/* SPDX-License-Identifier: MIT
 *
 * A flush waits for the operations to its node that had begun before it, and not for those that other threads start meanwhile. First
 * everything that was queued must be sent. Then everything that was sent by then must be complete.
 */
#ifndef WEFT_FLUSH_H
#define WEFT_FLUSH_H

#include <stdbool.h>
#include <stdint.h>

/* The state of one flush. It is all zeros at first; the transport fills it in and compares it under the lock that protects its counts. */
struct fab_flush {
    bool begun;     /* `kept`, `asked` and `turn` are set */
    bool arenas;    /* `arena` is set */
    uint64_t arena; /* which operations on GPU memory had begun */
    bool gone;      /* all queued operations were posted, and `at` and `read` are set */
    /* rc: number of the link's queue pair in whose send queue `at` and `read` are positions. tb: the turn in which the flush began */
    uint32_t turn;
    uint64_t asked;   /* rc: requests to the peer's processor that had been sent */
    uint64_t kept[2]; /* rc: how many operations had been queued, for each lane; shm: how many messages had been kept for lack of room */
    uint64_t at;      /* rc: all requests before this position must have arrived; tb: all frames before this number */
    uint64_t read;    /* rc: position after the last read */
};

#endif
