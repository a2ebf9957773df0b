/* SPDX-License-Identifier: MIT
 *
 * Which descriptors are ready, by epoll.
 */
#if defined(__linux__)
#include "gateway/ready.h"

#include <errno.h>
#include <sys/epoll.h>

#include "gateway/gateway.h"

static int epoll_open(void)
{
    int at = epoll_create1(EPOLL_CLOEXEC);
    return at < 0 ? -errno : at;
}

static int epoll_change(int at, int fd, unsigned before, unsigned events, void *arg)
{
    /* A descriptor without events is not kept in epoll, which would report a closed pipe again and again. */
    int how = !events ? EPOLL_CTL_DEL : before ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    struct epoll_event e = {.data.ptr = arg};
    e.events = (events & GATEWAY_READABLE ? (uint32_t)EPOLLIN : 0) | (events & GATEWAY_WRITABLE ? (uint32_t)EPOLLOUT : 0);
    return (!before && !events) || epoll_ctl(at, how, fd, &e) == 0 ? 0 : -errno;
}

static int epoll_ready(int at, void *ready[], int most, int64_t timeout_ns)
{
    struct epoll_event e[READY_MOST];
    int64_t ns = timeout_ns < READY_MAX_NS ? timeout_ns : READY_MAX_NS;
    int n = epoll_wait(at, e, most < READY_MOST ? most : READY_MOST, (int)((ns + WEFT_MS - 1) / WEFT_MS));
    for (int i = 0; i < n; i++)
        ready[i] = e[i].data.ptr;
    return n < 0 ? -errno : n;
}

const struct ready_way ready_epoll = {.name = "epoll", .open = epoll_open, .change = epoll_change, .wait = epoll_ready};
#else
typedef int ready_epoll_none; /* a file must not be empty */
#endif
