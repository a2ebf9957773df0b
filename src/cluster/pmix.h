/* SPDX-License-Identifier: MIT
 *
 * Talks to the launcher (mpirun, prterun, srun) by PMIx: rank and size of this process, and an exchange of bytes between all processes.
 */
#ifndef WEFT_PMIX_H
#define WEFT_PMIX_H

#include "base/base.h"

/* A connection to the launcher. One thread at a time uses it. */
struct launcher;

/* Whether a PMIx launcher has started this process, according to the environment. */
bool launcher_is_here(void);

/* Connect to the launcher. `library`: path of libpmix; "": the system's. Errors: -ENOTSUP no libpmix, or this weft was built without its
 * headers; -ETIMEDOUT the launcher does not answer; -ECONNREFUSED the launcher has ended, or refuses the connection; -EPROTO the launcher
 * gives a rank or size that is out of range. */
int launcher_open(struct launcher **out, const char *library, int64_t deadline);
uint32_t launcher_rank(const struct launcher *p);
uint32_t launcher_size(const struct launcher *p); /* processes of the job */

/* Publish `len` bytes, and receive `len` bytes from every process into `all`, in order of rank. Waits until all processes have called this
 * function. At most one call for each connection. Errors: -ETIMEDOUT not all processes have called this function before the deadline;
 * -EPROTO a process has published another number of bytes; -ECONNRESET the launcher or a process has ended. If the launcher did not answer,
 * *p becomes NULL. */
int launcher_exchange(struct launcher **p, const void *mine, size_t len, void *all, int64_t deadline);
bool launcher_exchanged(const struct launcher *p); /* whether launcher_exchange() was called */

/* Disconnect: tells the launcher that this process may end. NULL is allowed. */
void launcher_close(struct launcher *p);

#endif
