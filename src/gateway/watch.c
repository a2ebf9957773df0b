/* SPDX-License-Identifier: MIT
 *
 * Waits for descriptors in one thread: with epoll on Linux, with poll elsewhere. A call of ready() may stop watching any descriptor. If
 * that descriptor is ready as well, its ready() is then not called.
 *
 * On Linux, while that thread sleeps, another thread may work in its place (gateway_watches_try()), and may start and stop watching
 * descriptors. Then the events that epoll has reported may be outdated, so the thread asks epoll once more.
 */
#include "gateway/gateway.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define SPARE_FILES 64u

uint64_t gateway_connections_max(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files))
        return UINT64_MAX;
    return files.rlim_cur - (files.rlim_cur / 8 < SPARE_FILES ? files.rlim_cur / 8 : SPARE_FILES);
}

/* Takes the result of socket() or accept(). */
static int connection_of(int fd)
{
    if (fd < 0)
        return -errno;
#if !defined(__linux__)
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
#endif
    if ((uint64_t)fd <
        gateway_connections_max()) /* a new descriptor always has the lowest free number, so a high number means that few are left */
        return fd;
    close(fd);
    return -EMFILE;
}

int gateway_socket(int family, int type)
{
#if defined(__linux__)
    type |= SOCK_CLOEXEC | SOCK_NONBLOCK;
#endif
    return connection_of(socket(family, type, 0));
}

int gateway_accept(int listener)
{
#if defined(__linux__)
    return connection_of(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
#else
    return connection_of(accept(listener, NULL, NULL));
#endif
}

#if defined(__linux__)
#include <sched.h>
#include <sys/epoll.h>

#define AT_A_TIME 64

struct gateway_watches {
    _Atomic bool
        taken;        /* a thread is at work: the one that waits, or one that works in its place. Only that thread uses the other members */
    int fd, count;    /* count: events that are not handled yet */
    uint64_t changes; /* counts changes of what is watched: a descriptor, or its events */
    struct epoll_event events[AT_A_TIME];
};

bool gateway_watches_try(struct gateway_watches *all)
{
    /* acquire and release: a thread that begins to work here sees what the thread before it has done */
    return !atomic_load_explicit(&all->taken, memory_order_relaxed) && !atomic_exchange_explicit(&all->taken, true, memory_order_acquire);
}

void gateway_watches_leave(struct gateway_watches *all)
{
    atomic_store_explicit(&all->taken, false, memory_order_release);
}

#define TRIES 100u

static void watches_take(struct gateway_watches *all)
{
    for (unsigned i = 0; !gateway_watches_try(all); i++) { /* another thread works in this thread's place, for a few microseconds */
        if (i < TRIES)
            base_relax();
        else
            sched_yield();
    }
}

static uint32_t watch_bits(unsigned events)
{
    return (events & GATEWAY_READABLE ? (uint32_t)EPOLLIN : 0) | (events & GATEWAY_WRITABLE ? (uint32_t)EPOLLOUT : 0);
}

int gateway_watches_open(struct gateway_watches **out)
{
    struct gateway_watches *all = calloc(1, sizeof *all);
    if (!all)
        return -ENOMEM;
    all->fd = epoll_create1(EPOLL_CLOEXEC);
    if (all->fd < 0) {
        int rc = -errno;
        free(all);
        return rc;
    }
    atomic_init(&all->taken, true);
    *out = all;
    return 0;
}

void gateway_watches_close(struct gateway_watches *all)
{
    if (all)
        close(all->fd);
    free(all);
}

int gateway_watch(struct gateway_watches *all, struct gateway_watch *watch, int fd, unsigned events)
{
    watch->fd = fd;
    watch->events = events;
    all->changes++;
    /* Not added to epoll while it waits for no events: epoll would report a closed pipe again and again. */
    if (!events || epoll_ctl(all->fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = watch_bits(events), .data.ptr = watch}) == 0)
        return 0;
    watch->fd = -1;
    return -errno;
}

void gateway_watch_events(struct gateway_watches *all, struct gateway_watch *watch, unsigned events)
{
    if (watch->fd < 0 || watch->events == events)
        return;
    int how = !events ? EPOLL_CTL_DEL : watch->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    epoll_ctl(all->fd, how, watch->fd, &(struct epoll_event){.events = watch_bits(events), .data.ptr = watch});
    watch->events = events;
    all->changes++;
}

void gateway_unwatch(struct gateway_watches *all, struct gateway_watch *watch)
{
    if (watch->fd < 0)
        return;
    gateway_watch_events(all, watch, 0);
    close(watch->fd);
    watch->fd = -1;
    for (int i = 0; i < all->count; i++)
        if (all->events[i].data.ptr == watch)
            all->events[i].data.ptr = NULL;
}

void gateway_watches_wait(struct gateway_watches *all, int64_t timeout_ns)
{
    int64_t ms = (timeout_ns + WEFT_MS - 1) / WEFT_MS;
    uint64_t before = all->changes;
    if (ms > 0)
        gateway_watches_leave(all);
    int n = epoll_wait(all->fd, all->events, AT_A_TIME, ms > 60000 ? 60000 : (int)ms);
    if (ms > 0)
        watches_take(all);
    if (n > 0 && before != all->changes)
        n = epoll_wait(all->fd, all->events, AT_A_TIME, 0);
    all->count = n;
    for (int i = 0; i < all->count; i++) {
        struct gateway_watch *watch = all->events[i].data.ptr;
        if (watch)
            watch->ready(watch);
    }
    all->count = 0;
}
#else
struct gateway_watches {
    struct gateway_watch **list;
    struct pollfd *fds;
    nfds_t count, made;
};

/* With poll(), the thread that waits would not notice changes that another thread makes, so no thread may work in its place. */
bool gateway_watches_try(struct gateway_watches *all)
{
    (void)all;
    return false;
}

void gateway_watches_leave(struct gateway_watches *all)
{
    (void)all;
}

int gateway_watches_open(struct gateway_watches **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? 0 : -ENOMEM;
}

void gateway_watches_close(struct gateway_watches *all)
{
    if (all) {
        free(all->list);
        free(all->fds);
    }
    free(all);
}

int gateway_watch(struct gateway_watches *all, struct gateway_watch *watch, int fd, unsigned events)
{
    if (all->count == all->made) {
        nfds_t made = all->made ? all->made * 2 : 64;
        struct gateway_watch **list = realloc(all->list, made * sizeof(*list));
        all->list = list ? list : all->list;
        struct pollfd *fds = realloc(all->fds, made * sizeof *fds);
        all->fds = fds ? fds : all->fds;
        if (!list || !fds)
            return -ENOMEM;
        all->made = made;
    }
    watch->fd = fd;
    watch->events = events;
    all->list[all->count++] = watch;
    return 0;
}

void gateway_watch_events(struct gateway_watches *all, struct gateway_watch *watch, unsigned events)
{
    (void)all;
    watch->events = events;
}

void gateway_unwatch(struct gateway_watches *all, struct gateway_watch *watch)
{
    if (watch->fd < 0)
        return;
    close(watch->fd);
    watch->fd = -1;
    for (nfds_t i = 0; i < all->count; i++)
        if (all->list[i] == watch)
            all->list[i] = NULL;
}

void gateway_watches_wait(struct gateway_watches *all, int64_t timeout_ns)
{
    int64_t ms = (timeout_ns + WEFT_MS - 1) / WEFT_MS;
    nfds_t n = 0;
    for (nfds_t i = 0; i < all->count; i++)
        if (all->list[i])
            all->list[n++] = all->list[i];
    all->count = n;
    for (nfds_t i = 0; i < n; i++) {
        unsigned events = all->list[i]->events;
        all->fds[i] = (struct pollfd){
            .fd = events ? all->list[i]->fd : -1,
            .events = (short)((events & GATEWAY_READABLE ? POLLIN : 0) | (events & GATEWAY_WRITABLE ? POLLOUT : 0)),
        };
    }
    if (poll(all->fds, n, ms > 60000 ? 60000 : (int)ms) <= 0)
        return;
    for (nfds_t i = 0; i < n; i++)
        if (all->fds[i].revents && all->list[i])
            all->list[i]->ready(all->list[i]);
}
#endif
