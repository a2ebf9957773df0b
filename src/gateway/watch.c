/* SPDX-License-Identifier: MIT
 *
 * Waits for descriptors in one thread (ready.h). A call of ready() may stop the watching of any descriptor; then the ready() of that
 * descriptor is not called.
 *
 * While the thread sleeps, another thread may work in its place (gateway_watches_try()), and change what is watched. So the events with
 * which the sleeping thread wakes may be outdated; in that case it asks the system again.
 */
#include "gateway/gateway.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gateway/ready.h"

#define SPARE_FILES 64u
#define ASK_NS      (100 * WEFT_MS)

uint64_t gateway_connections_max(void)
{
    static _Atomic int64_t asked; /* when getrlimit() was called last; its result is kept for a while */
    static _Atomic uint64_t most;
    struct rlimit files;
    int64_t now = base_now_ns(), before = atomic_load_explicit(&asked, memory_order_acquire);
    if (before && now - before < ASK_NS)
        return atomic_load_explicit(&most, memory_order_relaxed);
    uint64_t n = UINT64_MAX;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        n = files.rlim_cur - (files.rlim_cur / 8 < SPARE_FILES ? files.rlim_cur / 8 : SPARE_FILES);
    atomic_store_explicit(&most, n, memory_order_relaxed);
    atomic_store_explicit(&asked, now, memory_order_release);
    return n;
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
    /* A new descriptor has the lowest free number, so a high number means that few descriptors are left. */
    if ((uint64_t)fd < gateway_connections_max())
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

struct gateway_watches {
    /* a thread works here: the thread that waits, or another one in its place. Only the working thread uses the other fields */
    _Atomic bool taken;
    const struct ready_way *way;
    int fd, count;    /* count: descriptors in `ready` that are not handled yet */
    uint64_t changes; /* how often the set of watched descriptors, or the events of one of them, has changed */
    void *ready[READY_MOST];
};

bool gateway_watches_try(struct gateway_watches *all)
{
    /* acquire and release: a thread that begins to work here sees what the previous one has done */
    return !atomic_load_explicit(&all->taken, memory_order_relaxed) && !atomic_exchange_explicit(&all->taken, true, memory_order_acquire);
}

void gateway_watches_leave(struct gateway_watches *all)
{
    atomic_store_explicit(&all->taken, false, memory_order_release);
}

#define TRIES 100u

static void watches_take(struct gateway_watches *all)
{
    for (unsigned i = 0; !gateway_watches_try(all); i++) { /* another thread works here, but only for a few microseconds */
        if (i < TRIES)
            base_relax();
        else
            sched_yield();
    }
}

int gateway_watches_open(struct gateway_watches **out)
{
    struct gateway_watches *all = calloc(1, sizeof *all);
    if (!all)
        return -ENOMEM;
    all->way = READY_WAY;
    all->fd = all->way->open();
    if (all->fd < 0) {
        int rc = all->fd;
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
    int rc = all->way->change(all->fd, fd, 0, events, watch);
    watch->fd = rc ? -1 : fd;
    watch->events = events;
    all->changes++;
    return rc;
}

void gateway_watch_events(struct gateway_watches *all, struct gateway_watch *watch, unsigned events)
{
    if (watch->fd < 0 || watch->events == events)
        return;
    (void)all->way->change(all->fd, watch->fd, watch->events, events, watch);
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
        if (all->ready[i] == watch)
            all->ready[i] = NULL;
}

void gateway_watches_wait(struct gateway_watches *all, int64_t timeout_ns)
{
    uint64_t before = all->changes;
    if (timeout_ns > 0)
        gateway_watches_leave(all);
    int n = all->way->wait(all->fd, all->ready, READY_MOST, timeout_ns > 0 ? timeout_ns : 0);
    if (timeout_ns > 0)
        watches_take(all);
    if (n > 0 && before != all->changes)
        n = all->way->wait(all->fd, all->ready, READY_MOST, 0);
    all->count = n;
    for (int i = 0; i < all->count; i++) {
        struct gateway_watch *watch = all->ready[i];
        if (watch)
            watch->ready(watch);
    }
    all->count = 0;
}
