/* SPDX-License-Identifier: MIT
 *
 * A wait for a condition variable ends at its deadline or at a signal, whatever the wall clock shows. Here the wall clock jumps: the
 * program reads it through the function below. A wait that is computed from it would end at once, or an hour late.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <time.h>

#include "base/base.h"
#include "weft/types.h"

#define HOUR    3600
#define WAIT_NS (20 * WEFT_MS)

static time_t jump; /* seconds by which somebody has moved the wall clock */

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = __real_clock_gettime(id, t);
    if (id == CLOCK_REALTIME)
        t->tv_sec += jump;
    return rc;
}

struct room {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ready;
};

static void room_open(struct room *r)
{
    pthread_mutex_init(&r->lock, NULL);
    base_cond_init(&r->changed);
    r->ready = false;
}

static void room_close(struct room *r)
{
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
}

/* Without a signal: the wait lasts until its deadline, and ends. */
static void wait_alone(void)
{
    struct room r;
    room_open(&r);
    pthread_mutex_lock(&r.lock);
    int64_t deadline = base_deadline(WAIT_NS);
    while (base_cond_wait(&r.changed, &r.lock, deadline)) /* true before the deadline only: a wait may end by itself */
        assert_true(base_now_ns() < deadline + 60 * WEFT_SECOND);
    assert_true(base_now_ns() >= deadline);
    assert_false(base_cond_wait(&r.changed, &r.lock, base_now_ns() - 1));
    pthread_mutex_unlock(&r.lock);
    room_close(&r);
}

static void test_deadline(void **state)
{
    (void)state;
    static const time_t jumps[] = {0, -HOUR, HOUR};
    for (size_t i = 0; i < sizeof jumps / sizeof *jumps; i++) {
        jump = jumps[i];
        wait_alone();
    }
    jump = 0;
}

static void *signal_it(void *arg)
{
    struct room *r = arg;
    pthread_mutex_lock(&r->lock);
    r->ready = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* A signal ends a wait long before its deadline. */
static void test_signal(void **state)
{
    (void)state;
    struct room r;
    pthread_t thread;
    bool in_time = true;
    room_open(&r);
    pthread_mutex_lock(&r.lock);
    assert_int_equal(base_thread(&thread, signal_it, &r), 0);
    int64_t deadline = base_deadline(HOUR * WEFT_SECOND);
    while (!r.ready && in_time)
        in_time = base_cond_wait(&r.changed, &r.lock, deadline);
    pthread_mutex_unlock(&r.lock);
    assert_true(r.ready && in_time);
    assert_int_equal(pthread_join(thread, NULL), 0);
    room_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_deadline), cmocka_unit_test(test_signal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
