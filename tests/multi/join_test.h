/* SPDX-License-Identifier: MIT
 *
 * For tests of joining: an address for each cluster, and an attempt to join.
 */
#ifndef WEFT_JOIN_TEST_H
#define WEFT_JOIN_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cluster_test.h"

static char coord[64];

static inline void new_coord(void)
{
    static unsigned number;
    if (getenv("TEST_NAMESPACES"))
        snprintf(coord, sizeof coord, "%s:%u", first_host(), 20000 + number++);
    else
        snprintf(coord, sizeof coord, "unix:@weft-join-%d-%u", (int)getpid(), number++);
    unsetenv("WEFT_SECRET");
}

/* Opens as `rank` of `size`. Returns the result; weft_error() has the sentence. */
static inline int attempt(uint32_t rank, uint32_t size, int64_t timeout, const char *secret)
{
    weft_node *w;
    weft_config c = {
        .bytes = sizeof c, .coord = coord, .rank = rank, .size = size, .pool_bytes = 1 << 20, .join_timeout_ns = timeout, .secret = secret};
    int rc = weft_open(&w, &c);
    if (rc == 0) {
        CHECK(weft_rank(w) == rank && weft_size(w) == size && weft_alive_count(w) == size && weft_epoch(w) == 1);
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        OK(weft_close(w));
    } else {
        CHECK(w == NULL);
    }
    return rc;
}

/* The last node waits until the others have got their answer, because node 0 stops listening when all have arrived. */
static inline void wait_refused(const _Atomic int *refused, int count)
{
    while (*refused < count)
        usleep(1000);
}

#endif
