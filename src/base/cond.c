/* SPDX-License-Identifier: MIT
 *
 * Waits for condition variables with a deadline. Such waits use the monotonic clock, so setting the wall clock does not change them.
 */
#include "base/base.h"

#include <time.h>

#ifdef __APPLE__ /* macOS has no pthread_condattr_setclock() */

void base_cond_init(pthread_cond_t *cond)
{
    pthread_cond_init(cond, NULL);
}

bool base_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline)
{
    int64_t left = deadline - base_now_ns();
    if (left <= 0)
        return false;
    struct timespec t = {.tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000)};
    return pthread_cond_timedwait_relative_np(cond, lock, &t) != ETIMEDOUT;
}

#else

void base_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* the clock of base_now_ns() */
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool base_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline)
{
    struct timespec t = {.tv_sec = (time_t)(deadline / 1000000000), .tv_nsec = (long)(deadline % 1000000000)};
    return pthread_cond_timedwait(cond, lock, &t) != ETIMEDOUT;
}

#endif
