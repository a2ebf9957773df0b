/* SPDX-License-Identifier: MIT
 *
 * What mpirun, prterun and srun tell a process by PMIx: its number, how many there are, and something from each of them.
 */
#ifndef WEFT_PMIX_H
#define WEFT_PMIX_H

#include "base/base.h"

/* A process's connection to its launcher. One thread uses it. */
struct launcher;

/* Whether a launcher that speaks PMIx has started this process. Looks at the environment only. */
bool launcher_is_here(void);

/* Connect with the launcher. `library`: the file of libpmix, "" for the system's.
 * Errors: -ENOTSUP no libpmix, or this weft was built without its headers; -ETIMEDOUT the launcher does not answer;
 * -ECONNREFUSED it is gone or refuses; -EPROTO what it says makes no sense. */
int launcher_open(struct launcher **out, const char *library, int64_t deadline);
uint32_t launcher_rank(const struct launcher *p);
uint32_t launcher_size(const struct launcher *p); /* processes of the job */

/* Every process of the job gives `len` bytes, and gets those of all: `all` has room for `len` bytes of each, by rank. Waits until all have
 * called this; once for a connection. Errors: -ETIMEDOUT not all have called it before the deadline; -EPROTO one gave another number of
 * bytes; -ECONNRESET the launcher has ended, or says that another process has. If the launcher did not answer at all *p is NULL. */
int launcher_exchange(struct launcher **p, const void *mine, size_t len, void *all, int64_t deadline);
bool launcher_exchanged(const struct launcher *p); /* launcher_exchange() has been called */

/* Tell the launcher that this process leaves in order. NULL is allowed. */
void launcher_close(struct launcher *p);

#endif
