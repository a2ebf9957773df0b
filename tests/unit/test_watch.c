/* SPDX-License-Identifier: MIT
 *
 * While a thread that waits for descriptors sleeps, and only then, another thread may do its work. What that thread changes counts: a
 * descriptor that it removes is not reported any more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "gateway/gateway.h"

#if defined(__linux__)
static struct gateway_watches *all;
static struct gateway_watch gone = {.fd = -1}, stays = {.fd = -1};
static _Atomic unsigned readied, wrong;

static void on_ready(struct gateway_watch *watch)
{
    char byte;
    wrong += watch != &stays || read(watch->fd, &byte, 1) != 1;
    readied++;
}

static void *wait_once(void *arg)
{
    (void)arg;
    gateway_watches_wait(all, 60 * WEFT_SECOND);
    return NULL;
}

static void test_turn(void **state)
{
    (void)state;
    int one[2], other[2];
    pthread_t thread;
    assert_int_equal(gateway_watches_open(&all), 0);
    assert_false(gateway_watches_try(all)); /* nobody sleeps */
    assert_true(pipe(one) == 0 && pipe(other) == 0);
    gone.ready = stays.ready = on_ready;
    assert_int_equal(gateway_watch(all, &gone, one[0], GATEWAY_READABLE), 0);
    assert_int_equal(pthread_create(&thread, NULL, wait_once, NULL), 0);
    while (!gateway_watches_try(all)) /* until the other thread sleeps */
        sched_yield();
    assert_false(gateway_watches_try(all));
    assert_int_equal(write(one[1], "x", 1), 1); /* the thread wakes up, and waits until the other thread is done */
    usleep(20000);
    assert_int_equal(readied, 0);
    gateway_unwatch(all, &gone);
    assert_int_equal(gateway_watch(all, &stays, other[0], GATEWAY_READABLE), 0);
    assert_int_equal(write(other[1], "x", 1), 1);
    gateway_watches_leave(all);
    pthread_join(thread, NULL);
    assert_int_equal(readied, 1);
    assert_int_equal(wrong, 0);
    assert_false(gateway_watches_try(all)); /* the first thread works again */
    gateway_unwatch(all, &stays);
    gateway_watches_close(all);
    close(one[1]);
    close(other[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_turn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    return 77; /* on this system no other thread does the work */
}
#endif
