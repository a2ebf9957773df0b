/* SPDX-License-Identifier: MIT
 *
 * Starts the library's own threads.
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
