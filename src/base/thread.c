/* SPDX-License-Identifier: MIT
 *
 * The library's own threads: starting them, and what they need of the system.
 */
#include "base/base.h"

#include <unistd.h>
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

struct touch {
    const uint64_t *set;
    uint8_t *memory;
    size_t bytes;
};

static void *touch(void *arg)
{
    const struct touch *t = arg;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    base_cpu_stay(t->set);
    for (size_t at = 0; at < t->bytes; at += page)
        *(volatile uint8_t *)(t->memory + at) = 0;
    return NULL;
}

/* A thread of its own, because the caller's thread could not return to its own processors. */
void base_touch_near(const uint64_t set[BASE_CPU_WORDS], void *memory, size_t bytes)
{
    struct touch t = {set, memory, bytes};
    uint64_t any = 0;
    pthread_t thread;
    for (size_t i = 0; i < BASE_CPU_WORDS; i++)
        any |= set[i];
    if (any && base_thread(&thread, touch, &t) == 0)
        pthread_join(thread, NULL);
}

void base_wake_in_time(int64_t slack_ns)
{
#ifdef __linux__
    prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns, 0, 0, 0);
#else
    (void)slack_ns;
#endif
}
