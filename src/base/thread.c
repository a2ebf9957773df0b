/* SPDX-License-Identifier: MIT
 *
 * Threads of the library's own.
 */
#include "base/base.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

int base_thread(pthread_t *out, void *(*fn)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(out, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -rc;
}

void base_wake_in_time(int64_t slack_ns)
{
#ifdef __linux__
    prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns, 0, 0, 0);
#else
    (void)slack_ns;
#endif
}
