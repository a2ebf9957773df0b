/* SPDX-License-Identifier: MIT
 *
 * What a flush waits for: the operations to its node that had begun before it. So what other threads start meanwhile does not delay it. It
 * has two steps: first everything that was queued must be sent; then everything that was sent by then must be complete.
 */
#ifndef WEFT_FLUSH_H
#define WEFT_FLUSH_H

#include <stdbool.h>
#include <stdint.h>

/* All zeros at first; filled in and compared by the transport, under the lock that its counts are under. */
struct fab_flush {
    bool begun;       /* `kept`, `asked` and `turn` are set */
    bool arenas;      /* `arena` is set */
    uint64_t arena;   /* of operations on GPUs' memory, those that had begun */
    bool gone;        /* all that was kept has gone: `at` and `read` are set */
    uint32_t turn;    /* rc: queue pairs whose positions `at` and `read` are of; tb: turns of works before it */
    uint64_t asked;   /* rc: asks */
    uint64_t kept[2]; /* works that were begun, by lane; shm: messages */
    uint64_t at;      /* what has to be there: rc: position after the last change; tb: frame after the last one with records */
    uint64_t read;    /* rc: position after the last read */
};

#endif
