/* SPDX-License-Identifier: MIT
 *
 * Threads of the library's own.
 */
#include "base/base.h"

int base_thread(pthread_t *out, void *(*fn)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(out, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -rc;
}
