/* SPDX-License-Identifier: MIT
 *
 * For tests of the links of the rc transport.
 */
#ifndef WEFT_RC_LINKS_TEST_H
#define WEFT_RC_LINKS_TEST_H

#include <stdatomic.h>

#include "cluster_test.h"
#include "fabric/rc/rc.h"

struct stage {
    _Atomic uint32_t here, there, done;
    _Atomic int pid;
};

static inline void count_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload,
                                 size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    atomic_fetch_add((_Atomic uint32_t *)arg, 1);
}

#endif
