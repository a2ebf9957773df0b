/* SPDX-License-Identifier: MIT
 *
 * A kqueue for test_kqueue.c, on systems without one: the names and the layout that src/gateway/ready_kqueue.c uses. The test has the
 * functions.
 */
#ifndef WEFT_TESTS_KQUEUE_H
#define WEFT_TESTS_KQUEUE_H

#include <stdint.h>
#include <time.h>

struct kevent {
    uintptr_t ident;
    int16_t filter;
    uint16_t flags;
    uint32_t fflags;
    intptr_t data;
    void *udata;
};
#define EV_SET(e, i, f, g, h, d, u) (*(e) = (struct kevent){(i), (int16_t)(f), (uint16_t)(g), (h), (d), (u)})
#define EVFILT_READ                 (-1)
#define EVFILT_WRITE                (-2)
#define EV_ADD                      1
#define EV_DELETE                   2

int kqueue(void);
int kevent(int at, const struct kevent *changes, int change_count, struct kevent *events, int event_count, const struct timespec *timeout);

#endif
