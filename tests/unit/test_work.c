/* SPDX-License-Identifier: MIT
 *
 * Jobs on threads (gateway/work.c) where the system can start no thread, and works without watches. pthread_create() is replaced.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>

#include "gateway/file.h"

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg);
static bool refuses;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg)
{
    return refuses ? EAGAIN : __real_pthread_create(thread, attributes, run, arg);
}

static void drop(struct gateway_work *job)
{
    *job = (struct gateway_work){.asker = 99};
}

/* --- a job of the file service whose end starts the next one --- */

#define JOBS 100000u

static struct files all;
static uint32_t ended, depth, deepest;
static int result;

static void job_done(struct gateway_work *work)
{
    struct file_job *job = (struct file_job *)(void *)work;
    deepest = ++depth > deepest ? depth : deepest;
    result = job->result;
    if (++ended < JOBS)
        file_job_start(&all, file_job_new(&all, FILE_TASK_SYNC, job_done));
    file_job_over(job);
    depth--;
}

static void test_no_thread(void **state)
{
    (void)state;
    struct gateway_watches *watches;
    assert_int_equal(gateway_watches_open(&watches), 0);
    assert_int_equal(gateway_works_open(&all.works, watches, &(struct gateway_works_how){.threads = 4, .drop = drop}), 0);
    refuses = true;
    file_job_start(&all, file_job_new(&all, FILE_TASK_SYNC, job_done));
    while (ended < JOBS)
        gateway_watches_wait(watches, WEFT_SECOND);
    refuses = false;
    assert_int_equal(result, -EAGAIN);
    assert_int_equal(deepest, 1);
    gateway_works_close(all.works);
    gateway_watches_close(watches);
}

/* --- works without watches --- */

static _Atomic uint32_t ran, reported;

static void count_run(struct gateway_work *job)
{
    (void)job;
    atomic_fetch_add(&ran, 1);
}

static void count_done(struct gateway_work *job)
{
    (void)job;
    atomic_fetch_add(&reported, 1);
}

static void test_no_watches(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static struct gateway_work jobs[COUNT];
    struct gateway_works *works;
    assert_int_equal(gateway_works_open(&works, NULL, &(struct gateway_works_how){.threads = 3, .drop = drop}), 0);
    refuses = true;
    assert_int_equal(gateway_work(works, &jobs[0]), -EAGAIN);
    refuses = false;
    for (unsigned i = 0; i < COUNT; i++) {
        jobs[i] = (struct gateway_work){.run = count_run, .done = count_done};
        assert_int_equal(gateway_work(works, &jobs[i]), 0);
    }
    gateway_works_close(works); /* those that were not begun are dropped */
    uint32_t dropped = 0;
    for (unsigned i = 0; i < COUNT; i++)
        dropped += jobs[i].asker == 99;
    assert_int_equal(atomic_load(&ran) + dropped, COUNT);
    assert_int_equal(atomic_load(&reported), atomic_load(&ran));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_thread), cmocka_unit_test(test_no_watches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
