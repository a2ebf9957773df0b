/* SPDX-License-Identifier: MIT
 *
 * Copies between mapped pools. Small ones are the compiler's memcpy. Large ones use the way that was measured to be the fastest for their
 * size on this host (copy.c). The largest are shared by several threads (copy_team.c).
 */
#ifndef WEFT_COPY_H
#define WEFT_COPY_H

#include "fabric/atomic.h"

#define COPY_LARGE (UINT64_C(32) << 10) /* the fewest bytes for copy_large() */

void copy_large(void *dst, const void *src, size_t len);

/* Helpers: threads that help a node with its largest copies. The first such copy starts the helpers, and copy_team_free() ends them. They
 * sleep between copies. Any thread may call copy_by_team(). While one copy uses the helpers, other callers copy alone. */
#define COPY_TEAM_LEAST (UINT64_C(4) << 20) /* bytes; for smaller copies, waking helpers costs more than it saves */
#define COPY_TEAM_MAX   16u
struct copy_team;
int copy_team_new(struct copy_team **out, uint32_t threads, int64_t spin_ns); /* `threads` includes the caller, and is at least 2 */
void copy_team_free(struct copy_team *t);                                     /* no copy may be under way; NULL is allowed */
void copy_by_team(struct copy_team *t, void *dst, const void *src, size_t len);
/* The default number of threads for a copy, when `nodes_here` nodes share `processors`. 1: no helpers. */
uint32_t copy_team_default(uint32_t processors, uint32_t nodes_here);

static inline void copy_bytes(void *dst, const void *src, size_t len)
{
    if (BASE_LIKELY(len < COPY_LARGE))
        fab_copy_little(dst, src, len);
    else
        copy_large(dst, src, len);
}

#endif
