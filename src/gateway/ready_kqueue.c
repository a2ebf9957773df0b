/* SPDX-License-Identifier: MIT
 *
 * Which descriptors are ready, by kqueue.
 */
#if !defined(__linux__) || defined(READY_KQUEUE) /* tests/unit/test_kqueue.c */
#include "gateway/ready.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/types.h>

#include <sys/event.h>
#include <sys/time.h>
#include <time.h>

#include "gateway/gateway.h"

static int kqueue_open(void)
{
    int at = kqueue();
    if (at >= 0)
        (void)fcntl(at, F_SETFD, FD_CLOEXEC);
    return at < 0 ? -errno : at;
}

/* Each direction has a filter of its own. */
static int kqueue_change(int at, int fd, unsigned before, unsigned events, void *arg)
{
    struct kevent e[2];
    int n = 0;
    for (unsigned bit = GATEWAY_READABLE; bit <= GATEWAY_WRITABLE; bit <<= 1) {
        if ((before & bit) == (events & bit))
            continue;
        EV_SET(&e[n], (uintptr_t)fd, bit == GATEWAY_READABLE ? EVFILT_READ : EVFILT_WRITE, events & bit ? EV_ADD : EV_DELETE, 0, 0, arg);
        n++;
    }
    return n == 0 || kevent(at, e, n, NULL, 0, NULL) >= 0 ? 0 : -errno;
}

static bool is_among(void *const ready[], int n, const void *arg)
{
    for (int i = 0; i < n; i++)
        if (ready[i] == arg)
            return true;
    return false;
}

static int kqueue_ready(int at, void *ready[], int most, int64_t timeout_ns)
{
    struct kevent e[READY_MOST];
    int64_t ns = timeout_ns < READY_MAX_NS ? timeout_ns : READY_MAX_NS;
    const struct timespec time = {.tv_sec = ns > 0 ? ns / WEFT_SECOND : 0, .tv_nsec = ns > 0 ? (long)(ns % WEFT_SECOND) : 0};
    int n = kevent(at, NULL, 0, e, most < READY_MOST ? most : READY_MOST, &time), kept = 0;
    /* a descriptor that is ready in both directions is reported twice, but must be stored once */
    for (int i = 0; i < n; i++)
        if (!is_among(ready, kept, e[i].udata))
            ready[kept++] = e[i].udata;
    return n < 0 ? -errno : kept;
}

const struct ready_way ready_kqueue = {.name = "kqueue", .open = kqueue_open, .change = kqueue_change, .wait = kqueue_ready};
#else
typedef int ready_kqueue_none; /* a file must not be empty */
#endif
