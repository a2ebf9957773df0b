/* SPDX-License-Identifier: MIT
 *
 * How a system tells which descriptors are ready (watch.c): epoll on Linux, kqueue on macOS. docs/architecture.md says why not io_uring.
 */
#ifndef WEFT_GATEWAY_READY_H
#define WEFT_GATEWAY_READY_H

#include <stdint.h>

struct ready_way {
    const char *name;
    int (*open)(void); /* returns a close-on-exec descriptor for the calls below, or a negative errno */
    /* From now on wait() reports `arg` while `fd` is ready for one of `events` (GATEWAY_READABLE, GATEWAY_WRITABLE), or has failed.
     * `before`: the events until now, or 0. Another thread may be in wait(). Returns 0 or a negative errno. */
    int (*change)(int at, int fd, unsigned before, unsigned events, void *arg);
    /* Waits until a descriptor is ready. Stores the `arg` of each ready descriptor once. Returns how many descriptors are ready, or a
     * negative errno. */
    int (*wait)(int at, void *ready[], int most, int64_t timeout_ns);
};

extern const struct ready_way ready_epoll, ready_kqueue; /* each exists only on its own system */
#if defined(__linux__)
#define READY_WAY (&ready_epoll)
#else
#define READY_WAY (&ready_kqueue)
#endif

#define READY_MOST   64
#define READY_MAX_NS (60 * WEFT_SECOND) /* the longest wait */

#endif
