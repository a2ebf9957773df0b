/* SPDX-License-Identifier: MIT
 *
 * Time: monotonic nanoseconds.
 */
#include "base/base.h"

#include <time.h>

int64_t base_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void base_sleep_ns(int64_t ns)
{
    if (ns <= 0)
        return;
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    while (nanosleep(&t, &t) && errno == EINTR)
        ;
}
