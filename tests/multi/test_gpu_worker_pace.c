/* SPDX-License-Identifier: MIT
 *
 * A persistent worker whose threads have to wait: for completions that take long, for tasks, and for blocks that work on one task for
 * longer than its lease.
 */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cluster_test.h"

#include "gpu/gpu.h"
#include "queue/queue.h"

#define TASKS 150u

struct farm {
    weft_gpu *g;
    weft_gpu_worker *k;
    weft_queue *q;
    const weft_device_worker *there;
    _Atomic uint32_t done;
};

static void farm_open(weft_node *w, struct farm *f, int64_t task_ns, int64_t lease_ns)
{
    weft_queue_config qc = {.bytes = sizeof qc, .slots = 512, .lease_ns = lease_ns};
    OK(weft_queue_open(w, "farm", &qc, &f->q));
    weft_gpu_config gc = {.bytes = sizeof gc, .name = "host"};
    OK(weft_gpu_open(w, &gc, &f->g));
    weft_gpu_worker_config kc = {.bytes = sizeof kc, .ahead = 256, .task_ns = task_ns};
    OK(weft_gpu_worker_open(f->g, f->q, &kc, &f->k));
    f->there = weft_gpu_worker_device(f->k);
}

static void work_slowly(const weft_device *d, void *arg)
{
    struct farm *f = arg;
    weft_device_task t;
    while (weft_device_next_task(d, f->there, &t) == 0) {
        usleep(20000);
        CHECK(weft_device_task_done(d, f->there, &t, 0, 0, 0) == 0);
        atomic_fetch_add(&f->done, 1);
    }
}

static void *run_kernel(void *arg)
{
    struct farm *f = arg;
    OK(weft_gpu_run(f->g, work_slowly, 1, f));
    return NULL;
}

static void submit(struct farm *f, uint32_t count)
{
    weft_task tasks[TASKS] = {{.kind = 0}};
    CHECK(weft_submit(f->q, tasks, count, NULL, WEFT_TIMEOUT_DEFAULT) == (int)count);
}

/* Waits for the results of `count` tasks, and then for the end of the kernel. */
static void finish(struct farm *f, uint32_t count, pthread_t kernel)
{
    weft_done done;
    for (uint32_t i = 0; i < count; i++)
        CHECK(weft_reap(f->q, &done, 1, WEFT_TIMEOUT_DEFAULT) == 1);
    OK(weft_queue_shutdown(f->q));
    pthread_join(kernel, NULL);
    weft_gpu_worker_stats stats;
    OK(weft_gpu_worker_stat(f->k, &stats, sizeof stats));
    CHECK(stats.claimed == count && stats.done == count && stats.taken_back == 0 && stats.refused == 0);
    OK(weft_gpu_close(f->g));
}

/* The worker's second thread waits in a completion for longer than task_ns, as it does if the task's node is silent. The kernel works all
 * the time, and keeps its tasks. */
static void node_slow_queue(weft_node *w, void *arg)
{
    (void)arg;
    struct farm f = {0};
    pthread_t kernel;
    farm_open(w, &f, WEFT_SECOND, 0);
    submit(&f, TASKS);
    CHECK(pthread_create(&kernel, NULL, run_kernel, &f) == 0);
    wait_for(&f.done, 1);
    base_spin_lock(&f.q->table.lock);
    wait_for(&f.done, TASKS);
    base_spin_unlock(&f.q->table.lock);
    finish(&f, TASKS, kernel);
}

static void test_slow_queue(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_slow_queue, NULL), 0);
}

/* --- a block hangs while a completion waits --- */

struct hang {
    struct farm f;
    _Atomic uint32_t blocks, over;
};

/* The first block keeps its task. The second one does its task, and from then on shows only that it is alive: a result that comes twice
 * counts once. */
static void one_hangs(const weft_device *d, void *arg)
{
    struct hang *h = arg;
    weft_device_task t;
    CHECK(weft_device_next_task(d, h->f.there, &t) == 0);
    atomic_fetch_add(&h->blocks, 1);
    wait_for(&h->blocks, 2); /* each has a task */
    bool hangs = t.number == 0;
    while (!hangs && !atomic_load(&h->over)) {
        (void)weft_device_task_done(d, h->f.there, &t, 0, 0, 0);
        usleep(10000);
    }
    wait_for(&h->over, 1);
}

static void *run_hanging(void *arg)
{
    struct hang *h = arg;
    OK(weft_gpu_run(h->f.g, one_hangs, 2, h));
    return NULL;
}

static weft_gpu_worker_stats worker_stats(const struct farm *f)
{
    weft_gpu_worker_stats stats;
    OK(weft_gpu_worker_stat(f->k, &stats, sizeof stats));
    return stats;
}

/* The worker's second thread waits in the completion of a later task. All the same, the time of the task that hangs runs, and the queue
 * gets it back: other nodes can do it. */
static void node_hangs(weft_node *w, void *arg)
{
    (void)arg;
    struct hang h = {.blocks = 0};
    pthread_t kernel;
    farm_open(w, &h.f, WEFT_SECOND, 0);
    submit(&h.f, 2);
    int64_t until = now_ns() + patience_ns(20);
    while (worker_stats(&h.f).claimed < 2 && now_ns() < until)
        usleep(1000);
    base_spin_lock(&h.f.q->table.lock);
    CHECK(pthread_create(&kernel, NULL, run_hanging, &h) == 0);
    until = now_ns() + patience_ns(20);
    while (!worker_stats(&h.f).taken_back && now_ns() < until)
        usleep(1000);
    weft_gpu_worker_stats stats = worker_stats(&h.f);
    base_spin_unlock(&h.f.q->table.lock);
    CHECK(stats.taken_back && stats.done == 0);
    atomic_store(&h.over, 1);
    pthread_join(kernel, NULL);
    OK(weft_gpu_close(h.f.g));
}

static void test_hangs(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_hangs, NULL), 0);
}

/* --- a block works on one task for longer than the lease --- */

#define LEASE_NS (2 * WEFT_SECOND)
#define LONG_NS  (9 * WEFT_SECOND / 2)

/* The first task takes long, and the other block goes on asking for tasks: it would get the task again if its lease ended. */
static void work_long(const weft_device *d, void *arg)
{
    struct farm *f = arg;
    weft_device_task t;
    while (weft_device_next_task(d, f->there, &t) == 0) {
        CHECK(atomic_fetch_add(&f->done, 1) == 0);
        base_sleep_ns(LONG_NS);
        CHECK(weft_device_task_done(d, f->there, &t, 0, 0, 0) == 0);
    }
}

static void *run_long(void *arg)
{
    struct farm *f = arg;
    OK(weft_gpu_run(f->g, work_long, 2, f));
    return NULL;
}

/* With the default setting the worker renews the lease in time: the task is done once, and its result is accepted. */
static void node_long(weft_node *w, void *arg)
{
    (void)arg;
    struct farm f = {0};
    pthread_t kernel;
    farm_open(w, &f, 0, LEASE_NS);
    CHECK(pthread_create(&kernel, NULL, run_long, &f) == 0);
    submit(&f, 1);
    finish(&f, 1, kernel);
}

static void test_long(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_long, NULL), 0);
}

#if defined(__linux__)
#define IDLE_MS     2000
#define THREADS_MAX 64u

/* How often a thread of this process has gone to sleep. */
static uint64_t sleeps_of(pid_t thread)
{
    char path[64], line[128];
    unsigned long long n = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)thread);
    FILE *file = fopen(path, "r");
    CHECK(file);
    while (fgets(line, sizeof line, file) && sscanf(line, "voluntary_ctxt_switches: %llu", &n) != 1)
        ;
    fclose(file);
    return n;
}

static uint32_t threads_of_process(pid_t out[THREADS_MAX])
{
    uint32_t n = 0;
    DIR *d = opendir("/proc/self/task");
    CHECK(d);
    for (struct dirent *e; (e = readdir(d)) && n < THREADS_MAX;)
        if (e->d_name[0] != '.')
            out[n++] = (pid_t)atoi(e->d_name);
    closedir(d);
    return n;
}

/* Opens a second worker. Returns its two threads in `out`. */
static weft_gpu_worker *open_another(struct farm *f, pid_t out[2])
{
    pid_t before[THREADS_MAX], after[THREADS_MAX];
    weft_gpu_worker *k;
    uint32_t had = threads_of_process(before), found = 0;
    OK(weft_gpu_worker_open(f->g, f->q, NULL, &k));
    uint32_t have = threads_of_process(after);
    for (uint32_t i = 0; i < have; i++) {
        bool old = false;
        for (uint32_t j = 0; j < had; j++)
            old = old || before[j] == after[i];
        if (!old && found++ < 2)
            out[found - 1] = after[i];
    }
    CHECK(found == 2);
    return k;
}

/* The two threads of a worker that has had no task for a while sleep nearly all the time. A task wakes them. */
static void node_asleep(weft_node *w, void *arg)
{
    (void)arg;
    struct farm f = {0};
    pid_t thread[2];
    uint64_t sleeps[2];
    pthread_t kernel;
    farm_open(w, &f, 0, 0);
    weft_gpu_worker *other = open_another(&f, thread);
    usleep(IDLE_MS * 1000); /* until it counts as idle */
    for (uint32_t i = 0; i < 2; i++)
        sleeps[i] = sleeps_of(thread[i]);
    usleep(IDLE_MS * 1000);
    for (uint32_t i = 0; i < 2; i++)
        CHECK(sleeps_of(thread[i]) - sleeps[i] <= IDLE_MS / 5);
    OK(weft_gpu_worker_close(other));
    CHECK(pthread_create(&kernel, NULL, run_kernel, &f) == 0);
    submit(&f, 10);
    finish(&f, 10, kernel);
}

static void test_asleep(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_asleep, NULL), 0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_queue),
        cmocka_unit_test(test_hangs),
        cmocka_unit_test(test_long),
#if defined(__linux__)
        cmocka_unit_test(test_asleep),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
