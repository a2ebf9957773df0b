/* SPDX-License-Identifier: MIT
 *
 * A cluster that grows, and whose nodes come back: what the test and all nodes share.
 */
#ifndef WEFT_REJOIN_TEST_H
#define WEFT_REJOIN_TEST_H

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cluster_test.h"

#define SLOTS   6u   /* processes at once */
#define NUMBERS 128u /* numbers that a test gives at most */
#define LONG    patience_ns(60)
#define BYTES   16384u /* so many that ofi moves them by RMA */

enum order { GO_ON, END, BARRIER, SERVE, LIE, POST, RENEW, DIE };

/* Shared by the test and all nodes. */
struct board {
    char coord[64], grow[64];
    struct place {
        _Atomic int pid;
        /* number: the node's number + 1; up: 1 if it has joined; turns: rounds of work that it has done; done: its own tasks that are
         * complete */
        _Atomic uint32_t number, up, turns, done;
        _Atomic uint32_t order, obeyed;
        /* [number]: how often weft_on_change() has reported that it joined, that it died */
        _Atomic uint32_t joined[NUMBERS], died[NUMBERS];
        _Atomic uint32_t gone[NUMBERS]; /* [number]: 1 if this node no longer counts it as alive */
        _Atomic uint32_t refused;       /* operations on old addresses that have failed, as they must */
        _Atomic uint32_t here;          /* how many nodes of its host this node counts */
        _Atomic uint32_t renewed;       /* ofi: how many endpoints it has had */
        _Atomic uint32_t frames;        /* ofi: for how many links to nodes that joined later it has memory for frames */
    } place[SLOTS];
    _Atomic uint64_t area[NUMBERS]; /* by number */
    _Atomic uint32_t dead[NUMBERS]; /* [number]: 1: the test has killed it, and all others have noticed */
    _Atomic uint32_t result[SLOTS];
    _Atomic uint32_t sent;
};

extern struct board *board;

/* Whether a node that is killed may make others hang, because it may hold a lock of libfabric in their memory (man weft-networks). Such a
 * node is told to kill itself (DIE), which it does while no thread of it is in libfabric. */
static inline bool killing_hangs(void)
{
    const char *provider = getenv("WEFT_OFI_PROVIDER");
    return provider && strcmp(provider, "shm") == 0;
}

/* A node, from when it is open until it is told to end; then the process ends. */
void live(weft_node *w, struct place *place);

#endif
