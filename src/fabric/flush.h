/* SPDX-License-Identifier: MIT
 *
 * What a flush waits for: the operations to its node that had begun before it. So what other threads start meanwhile does not delay it. It
 * has two steps: first everything that was queued must be sent; then everything that was sent by then must be complete.
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
    bool gone;      /* everything queued has been posted: `at` and `read` are set */
    /* rc: the number of queue pairs made so far, for which `at` and `read` are positions; tb: the turn in which the flush began */
    uint32_t turn;
    uint64_t asked;   /* rc: requests to the peer's processor that had been sent */
    uint64_t kept[2]; /* rc: queued operations that had begun, for each lane; shm: messages that had been kept for lack of room */
    uint64_t at;      /* what must have arrived: rc: the requests before this position; tb: the frames before this number */
    uint64_t read;    /* rc: position after the last read */
};

#endif
