/* SPDX-License-Identifier: MIT
 *
 * The thread that lets nodes join (door.c): how often it tries to listen at an address at which another node listens. The clock is the
 * test's.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cluster/join.h"

enum { TRIES = 6 };
#define PAUSE_LEAST (100 * WEFT_MS)

static _Atomic int64_t now;
static _Atomic uint32_t tries;
static int64_t began[TRIES], ended[TRIES];

int64_t __wrap_base_now_ns(void);
int64_t __wrap_base_now_ns(void)
{
    return atomic_fetch_add(&now, WEFT_MS) + WEFT_MS;
}

/* Another node listens there, and another process has locked the folder for long. */
int __wrap_cluster_listen(const char *address, char *bound, size_t bound_len);
int __wrap_cluster_listen(const char *address, char *bound, size_t bound_len)
{
    (void)address, (void)bound, (void)bound_len;
    uint32_t i = atomic_load(&tries);
    if (i == TRIES)
        return -EADDRINUSE;
    began[i] = atomic_load(&now);
    ended[i] = atomic_fetch_add(&now, WEFT_SECOND) + WEFT_SECOND;
    atomic_store(&tries, i + 1);
    return -EADDRINUSE;
}

static void test_pauses(void **state)
{
    struct grow g = {.address = "unix:@door"};
    struct weft_node w = {.cluster = &g, .size = 1, .room = 1};
    int end[2], wake[2];
    (void)state;
    g.w = &w;
    g.j.here.fd = g.j.away.fd = -1;
    atomic_init(&g.busy_fd, -1);
    pthread_mutex_init(&g.lock, NULL);
    assert_int_equal(pipe(end) | pipe(wake), 0);
    close(end[1]); /* poll() returns at once, so the rounds of the thread take no time */
    g.wake[0] = end[0];
    g.wake[1] = wake[1];
    assert_int_equal(cluster_door_open(&w), 0);
    while (atomic_load(&tries) < TRIES)
        usleep(100);
    cluster_door_close(&w);
    for (int i = 2; i < TRIES; i++) /* the thread makes its first try at once */
        assert_true(began[i] - ended[i - 1] >= PAUSE_LEAST);
    close(end[0]);
    close(wake[0]);
    close(wake[1]);
    pthread_mutex_destroy(&g.lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pauses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
