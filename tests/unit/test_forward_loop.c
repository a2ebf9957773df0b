/* SPDX-License-Identifier: MIT
 *
 * The list of changed connections: the connection that changed first is served first; none is served twice, and none after it was removed;
 * the thread is woken once. The loop ends when the other end of its control socket is closed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/forward_loop.h"

static void test_list(void **state)
{
    (void)state;
    int wake[2];
    char bytes[8];
    struct forward_list l;
    struct forward_changed c[4] = {{0}};
    assert_int_equal(base_pipe(wake, O_NONBLOCK), 0);
    forward_list_init(&l, wake[1]);
    assert_null(forward_list_take(&l));
    for (int i = 0; i < 4; i++)
        forward_list_add(&l, &c[i]);
    forward_list_add(&l, &c[1]); /* is in the list */
    assert_int_equal(read(wake[0], bytes, sizeof bytes), 1);
    assert_ptr_equal(forward_list_take(&l), &c[0]);
    forward_list_add(&l, &c[0]); /* the first connection changes again: it goes to the end of the list */
    forward_list_remove(&l, &c[2]);
    forward_list_remove(&l, &c[2]);
    assert_ptr_equal(forward_list_take(&l), &c[1]);
    assert_ptr_equal(forward_list_take(&l), &c[3]);
    forward_list_remove(&l, &c[0]); /* the last one */
    assert_null(forward_list_take(&l));
    forward_list_add(&l, &c[2]);
    assert_int_equal(read(wake[0], bytes, sizeof bytes), 1);
    assert_ptr_equal(forward_list_take(&l), &c[2]);
    assert_null(forward_list_take(&l));
    close(wake[0]);
    close(wake[1]);
}

static void test_end(void **state)
{
    (void)state;
    int pair[2];
    struct forward_loop l;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(forward_loop_open(&l, NULL, pair[0], NULL, NULL), 0);
    close(pair[0]); /* the loop has a copy of this descriptor */
    forward_wake(l.changed.wake_fd);
    gateway_watches_wait(l.watches, 5 * WEFT_SECOND);
    assert_false(l.over);
    close(pair[1]);
    for (int i = 0; i < 100 && !l.over; i++)
        gateway_watches_wait(l.watches, 50 * WEFT_MS);
    assert_true(l.over);
    forward_loop_close(&l);
}

static void test_bad_descriptor(void **state)
{
    (void)state;
    struct forward_loop l;
    assert_int_equal(forward_loop_open(&l, NULL, -1, NULL, NULL), -EBADF);
    forward_loop_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_list), cmocka_unit_test(test_end), cmocka_unit_test(test_bad_descriptor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
