/* SPDX-License-Identifier: MIT
 *
 * Which descriptors are ready, by kqueue (gateway/ready_kqueue.c), on a system without kqueue: over functions that behave as macOS's are
 * said to. Each direction of a descriptor is a filter of its own; a filter that is deleted must exist; what is ready is reported again and
 * again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/event.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gateway/gateway.h"
#include "gateway/ready.h"

/* --- the functions --- */

#define FILTERS 16

static struct kevent filters[FILTERS]; /* flags 0: none */
static int64_t waited_ns;

int kqueue(void)
{
    return open("/dev/null", O_RDONLY);
}

static struct kevent *filter_of(const struct kevent *e)
{
    struct kevent *spare = NULL;
    for (int i = 0; i < FILTERS; i++) {
        if (filters[i].flags && filters[i].ident == e->ident && filters[i].filter == e->filter)
            return &filters[i];
        spare = filters[i].flags ? spare : &filters[i];
    }
    return e->flags == EV_ADD ? spare : NULL;
}

int kevent(int at, const struct kevent *changes, int change_count, struct kevent *events, int event_count, const struct timespec *timeout)
{
    int n = 0;
    assert_true(at >= 0 && fcntl(at, F_GETFD) == FD_CLOEXEC);
    for (int i = 0; i < change_count; i++) {
        struct kevent *f = filter_of(&changes[i]);
        if (!f || fcntl((int)changes[i].ident, F_GETFD) < 0) {
            errno = f ? EBADF : ENOENT;
            return -1;
        }
        *f = changes[i];
        f->flags = changes[i].flags == EV_ADD;
    }
    if (timeout)
        waited_ns = timeout->tv_sec * WEFT_SECOND + timeout->tv_nsec;
    for (int i = 0; i < FILTERS && n < event_count; i++) {
        struct pollfd p = {.fd = (int)filters[i].ident, .events = filters[i].filter == EVFILT_READ ? POLLIN : POLLOUT};
        if (filters[i].flags && poll(&p, 1, 0) == 1)
            events[n++] = filters[i];
    }
    return n;
}

/* --- the tests --- */

static int at;

static int ready(void *args[4])
{
    return ready_kqueue.wait(at, args, 4, WEFT_MS);
}

static int open_it(void **state)
{
    (void)state;
    at = ready_kqueue.open();
    return at < 0;
}

static int close_it(void **state)
{
    (void)state;
    return close(at);
}

static void test_ready(void **state)
{
    (void)state;
    int pair[2], other[2], one, two;
    void *args[4];
    char byte;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
    assert_int_equal(ready_kqueue.change(at, pair[0], 0, 0, &one), 0); /* nothing to be told of */
    assert_int_equal(ready_kqueue.change(at, pair[0], 0, GATEWAY_READABLE, &one), 0);
    assert_int_equal(ready(args), 0);
    assert_int_equal(write(pair[1], "x", 1), 1);
    for (int i = 0; i < 2; i++) { /* until it is read */
        assert_int_equal(ready(args), 1);
        assert_ptr_equal(args[0], &one);
    }
    assert_int_equal(ready_kqueue.change(at, pair[0], GATEWAY_READABLE, GATEWAY_READABLE | GATEWAY_WRITABLE, &one), 0);
    assert_int_equal(ready_kqueue.change(at, other[0], 0, GATEWAY_WRITABLE, &two), 0);
    assert_int_equal(ready(args), 2); /* the first one once, although it is ready in both directions */
    assert_true((args[0] == &one && args[1] == &two) || (args[0] == &two && args[1] == &one));
    assert_int_equal(read(pair[0], &byte, 1), 1);
    assert_int_equal(ready(args), 2);
    assert_int_equal(ready_kqueue.change(at, pair[0], GATEWAY_READABLE | GATEWAY_WRITABLE, GATEWAY_READABLE, &one), 0);
    assert_int_equal(ready_kqueue.change(at, other[0], GATEWAY_WRITABLE, 0, &two), 0);
    assert_int_equal(ready(args), 0);
    close(pair[1]); /* the other end is gone */
    assert_int_equal(ready(args), 1);
    assert_int_equal(ready_kqueue.change(at, pair[0], GATEWAY_READABLE, 0, &one), 0);
    assert_int_equal(ready(args), 0);
    close(pair[0]);
    close(other[0]);
    close(other[1]);
}

static void test_errors(void **state)
{
    (void)state;
    int one;
    assert_int_equal(ready_kqueue.change(at, 0, GATEWAY_READABLE, 0, &one), -ENOENT);
    assert_int_equal(ready_kqueue.change(at, 9999, 0, GATEWAY_READABLE, &one), -EBADF);
}

static void test_time(void **state)
{
    (void)state;
    void *args[4];
    const int64_t times[][2] = {{-5, 0}, {0, 0}, {1500 * WEFT_MS, 1500 * WEFT_MS}, {INT64_MAX, 60 * WEFT_SECOND}};
    for (unsigned i = 0; i < sizeof times / sizeof times[0]; i++) {
        assert_int_equal(ready_kqueue.wait(at, args, 4, times[i][0]), 0);
        assert_int_equal(waited_ns, times[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ready), cmocka_unit_test(test_errors), cmocka_unit_test(test_time)};
    return cmocka_run_group_tests(tests, open_it, close_it);
}
