/* SPDX-License-Identifier: MIT
 *
 * Copies between mapped pools. Small ones are the compiler's memcpy. Large ones use the instructions that were measured to be fastest for
 * their size on this host (copy.c), and the largest also several threads (copy_team.c).
 */
#ifndef WEFT_COPY_H
#define WEFT_COPY_H

#include "fabric/atomic.h"

#define COPY_LARGE (UINT64_C(32) << 10) /* bytes; from here on copy_large() decides */

void copy_large(void *dst, const void *src, size_t len);

/* Threads of a node that help with its largest copies. They are started by the first such copy, sleep between copies, and end
 * with copy_team_free(). Any thread may call copy_by_team(); one copy at a time has the helpers, others go alone meanwhile.
 * When it returns the whole copy has happened, as if the caller had made it. */
#define COPY_TEAM_LEAST (UINT64_C(4) << 20) /* bytes; from here on helpers pay for being woken */
#define COPY_TEAM_MAX   16u
struct copy_team;
int copy_team_new(struct copy_team **out, uint32_t threads, int64_t spin_ns); /* threads: the caller included, from 2 on */
void copy_team_free(struct copy_team *t);                                     /* NULL allowed; nobody copies any more */
void copy_by_team(struct copy_team *t, void *dst, const void *src, size_t len);
/* How many threads copy together by default, where so many nodes share so many processors: 1 for no helpers. */
uint32_t copy_team_default(uint32_t processors, uint32_t nodes_here);

static inline void copy_bytes(void *dst, const void *src, size_t len)
{
    if (BASE_LIKELY(len < COPY_LARGE))
        fab_copy_little(dst, src, len);
    else
        copy_large(dst, src, len);
}

#endif
