/* SPDX-License-Identifier: MIT
 *
 * Descriptors over a Unix socket: they arrive with their bytes, close-on-exec. If they cannot arrive, there is an error, and no descriptor
 * is left open.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

#define SOON base_deadline(INT64_C(10000000000))

static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static bool same(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static void they_arrive(void **state)
{
    (void)state;
    int s[2], p[2], got[2], before;
    char text[8];
    assert_int_equal(base_socketpair(s), 0);
    assert_int_equal(base_pipe(p, 0), 0);
    before = open_descriptors();
    assert_int_equal(base_send_fds(s[0], "both", 4, p, 2), 0);
    assert_int_equal(base_receive_fds(s[1], text, 4, got, 2, SOON), 0);
    assert_memory_equal(text, "both", 4);
    assert_true(same(got[0], p[0]) && same(got[1], p[1]));
    assert_true(fcntl(got[0], F_GETFD) & FD_CLOEXEC);
    close(got[0]), close(got[1]);
    /* Fewer descriptors than there is room for, and bytes that arrive in pieces. */
    assert_int_equal(base_send_fds(s[0], "on", 2, p, 1), 0);
    assert_int_equal(base_send_fds(s[0], "e", 1, NULL, 0), 0);
    assert_int_equal(base_receive_fds(s[1], text, 3, got, 2, SOON), 0);
    assert_true(same(got[0], p[0]));
    assert_int_equal(got[1], -1);
    close(got[0]);
    /* More descriptors than the receiver expects. */
    assert_int_equal(base_send_fds(s[0], "more", 4, p, 2), 0);
    assert_int_equal(base_receive_fds(s[1], text, 4, got, 1, SOON), 0);
    close(got[0]);
    assert_int_equal(open_descriptors(), before);
    close(s[0]), close(s[1]), close(p[0]), close(p[1]);
}

static void an_end_and_a_deadline(void **state)
{
    (void)state;
    int s[2], p[2], got[2], before;
    char text[8];
    assert_int_equal(base_socketpair(s), 0);
    assert_int_equal(base_pipe(p, 0), 0);
    before = open_descriptors();
    assert_int_equal(base_receive_fds(s[1], text, 4, got, 2, base_deadline(1000000)), -ETIMEDOUT);
    assert_int_equal(base_send_fds(s[0], "half", 2, p, 1), 0);
    close(s[0]);
    assert_int_equal(base_receive_fds(s[1], text, 4, got, 2, SOON), -ECONNRESET);
    assert_int_equal(got[0], -1); /* the descriptor that came with the first half was closed */
    assert_int_equal(open_descriptors(), before - 1);
    close(s[1]), close(p[0]), close(p[1]);
}

static void no_room_for_them(void **state)
{
    (void)state;
    struct rlimit limit, none;
    int s[2], p[2], got[2], before;
    char text[8];
    assert_int_equal(base_socketpair(s), 0);
    assert_int_equal(base_pipe(p, 0), 0);
    before = open_descriptors();
    assert_int_equal(base_send_fds(s[0], "both", 4, p, 2), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 1; /* no new descriptor fits. 1 and not 0, because poll() refuses more descriptors than the limit */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = base_receive_fds(s[1], text, 4, got, 2, SOON);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(rc, -EMFILE);
    assert_int_equal(open_descriptors(), before);
    close(s[0]), close(s[1]), close(p[0]), close(p[1]);
}

#if defined(__linux__)
/* Descriptors are sent to a place by its name, which is invalid once the place is closed. Both ends refuse another user. */
static void to_a_place(void **state)
{
    (void)state;
    char name[BASE_PLACE_NAME], again[BASE_PLACE_NAME], text[4];
    int p[2], got, before = open_descriptors();
    int place = base_place_open("weft-test", name), other = base_place_open("weft-test", again);
    assert_true(place >= 0 && other >= 0);
    assert_memory_equal(name, "weft-test-", 10);
    assert_string_not_equal(name, again);
    assert_int_equal(base_place_take(place), -EAGAIN);
    assert_int_equal(base_pipe(p, 0), 0);
    int from = base_place_go(name), to = base_place_take(place);
    assert_true(from >= 0 && to >= 0);
    assert_int_equal(base_send_fds(from, "this", 4, p, 1), 0);
    close(from);
    assert_int_equal(base_receive_fds(to, text, 4, &got, 1, SOON), 0);
    assert_true(same(got, p[0]));
    close(got), close(to), close(p[0]), close(p[1]);
    if (geteuid() == 0) {
        pid_t child = fork();
        if (child == 0)
            _exit(setuid(65534) == 0 && base_place_go(name) == -EPERM ? 0 : 1);
        int status;
        assert_true(waitpid(child, &status, 0) == child && status == 0);
        assert_int_equal(base_place_take(place), -EPERM);
    }
    close(place), close(other);
    assert_int_equal(base_place_go(name), -ECONNREFUSED);
    assert_int_equal(open_descriptors(), before);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_arrive),
        cmocka_unit_test(an_end_and_a_deadline),
        cmocka_unit_test(no_room_for_them),
#if defined(__linux__)
        cmocka_unit_test(to_a_place),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
