/* SPDX-License-Identifier: MIT
 *
 * The queue while nodes are killed: five nodes submit, work and reap as fast as they can, and some of them, each a shard's home, a worker
 * and a submitter, are killed at random moments. Every survivor must see each of its tasks complete exactly once. With WEFT_TEST_LONG=1
 * this takes a minute.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "queue_test.h"

enum { NODES = 5 };

struct kill_args {
    _Atomic uint32_t ready;
    _Atomic uint32_t stop;
    _Atomic int pid[NODES];
    _Atomic bool killed[NODES];
    struct {
        _Atomic uint64_t submitted, reaped, claimed, requeued, resubmitted, duplicates;
    } node[NODES];
    uint32_t force;
};

/* Submits until told to stop, then reaps until every task has come back exactly once. Works on tasks all the time. */
static void under_fire(weft_node *w, void *arg)
{
    struct kill_args *a = arg;
    uint32_t me = weft_rank(w);
    weft_queue *q = open_queue(w, 128, 0, false, a->force);
    atomic_store(&a->pid[me], (int)getpid());
    atomic_fetch_add(&a->ready, 1);
    const uint64_t max = UINT64_C(1) << 26;
    uint8_t *seen = calloc(max, 1);
    uint64_t sent = 0, back = 0;
    weft_task tasks[16];
    unsigned seed = me + 1;
    int64_t last = base_now_ns();
    for (;;) {
        bool stop = atomic_load_explicit(&a->stop, memory_order_relaxed);
        if (!stop && sent < max - 16) {
            uint32_t n = 1 + (uint32_t)rand_r(&seed) % 16;
            for (uint32_t i = 0; i < n; i++)
                tasks[i] = numbered(sent + i);
            int rc = weft_submit(q, tasks, n, NULL, 0);
            CHECK(rc > 0 || rc == -ETIMEDOUT || rc == -ECONNRESET);
            sent += rc > 0 ? (uint32_t)rc : 0;
        }
        work(q, 1 + (uint32_t)rand_r(&seed) % 16, 0);
        uint32_t n = reap(q, seen, max, 0);
        back += n;
        if (n)
            last = base_now_ns();
        else if (sent != back && base_now_ns() - last > 20 * WEFT_SECOND) {
            weft_queue_stats s;
            weft_queue_stat(q, &s, sizeof s);
            fprintf(stderr, "node %u: nothing came back for 20 s: %lu of %lu, outstanding %lu, pending %u, ready %lu\n", me,
                    (unsigned long)back, (unsigned long)sent, (unsigned long)s.outstanding, (unsigned)q->pending, (unsigned long)s.ready);
            CHECK(sent == back); /* otherwise tasks were lost */
        }
        if (stop && sent == back) { /* this node's tasks are done; those of others perhaps not yet */
            int rc = weft_drain(q, 0);
            if (rc == 0)
                break;
        }
    }
    for (uint64_t i = 0; i < sent; i++)
        CHECK(seen[i] == 1);
    weft_queue_stats s;
    CHECK(weft_queue_stat(q, &s, sizeof s) == 0);
    CHECK(s.submitted == sent && s.completed == sent);
    atomic_store(&a->node[me].submitted, sent);
    atomic_store(&a->node[me].reaped, back);
    atomic_store(&a->node[me].claimed, s.claimed);
    atomic_store(&a->node[me].requeued, s.requeued);
    atomic_store(&a->node[me].resubmitted, s.resubmitted);
    atomic_store(&a->node[me].duplicates, s.duplicates);
    free(seen);
}

/* Runs in a process of its own: kills some nodes at random moments, then lets the others finish. */
static void killer(struct kill_args *a, unsigned seed)
{
    for (int64_t end = base_now_ns() + 50 * WEFT_SECOND; base_now_ns() < end && atomic_load(&a->ready) < NODES;)
        base_sleep_ns(WEFT_MS);
    uint32_t kills = 1 + (uint32_t)rand_r(&seed) % (NODES - 1);
    for (uint32_t k = 0; k < kills; k++) {
        base_sleep_ns((int64_t)(rand_r(&seed) % 150) * WEFT_MS);
        uint32_t victim = (uint32_t)rand_r(&seed) % NODES;
        if (atomic_load(&a->pid[victim]) && !atomic_exchange(&a->killed[victim], true))
            kill(atomic_load(&a->pid[victim]), SIGKILL);
    }
    base_sleep_ns((int64_t)(rand_r(&seed) % 100) * WEFT_MS);
    atomic_store(&a->stop, 1);
}

static void kill_rounds(int64_t for_ns, uint32_t force)
{
    static const char *const environment[] = {"WEFT_POOL=4M", "WEFT_DEADLINE=60s", NULL};
    struct kill_args *a = shared_words(sizeof *a);
    unsigned seed = (unsigned)base_now_ns();
    int64_t end = base_now_ns() + for_ns;
    uint64_t tasks = 0, requeued = 0, resubmitted = 0, duplicates = 0, killed = 0;
    printf("seed %u\n", seed);
    do {
        int status[NODES_MAX];
        memset(a, 0, sizeof *a);
        a->force = force;
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            killer(a, seed);
            _exit(0);
        }
        seed++;
        nodes_run(NODES, under_fire, a, environment, status);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        for (uint32_t i = 0; i < NODES; i++) {
            bool shot = atomic_load(&a->killed[i]);
            killed += shot;
            assert_int_equal(status[i], shot ? SIGKILL : 0);
            assert_int_equal(atomic_load(&a->node[i].submitted), atomic_load(&a->node[i].reaped));
            tasks += atomic_load(&a->node[i].submitted);
            requeued += atomic_load(&a->node[i].requeued);
            resubmitted += atomic_load(&a->node[i].resubmitted);
            duplicates += atomic_load(&a->node[i].duplicates);
        }
    } while (base_now_ns() < end);
    munmap(a, sizeof *a);
    printf("%lu nodes killed; survivors: %lu tasks, each once; %lu requeued, %lu submitted again, %lu duplicates dropped\n",
           (unsigned long)killed, (unsigned long)tasks, (unsigned long)requeued, (unsigned long)resubmitted, (unsigned long)duplicates);
}

static int64_t for_ns(void)
{
    const char *is_long = getenv("WEFT_TEST_LONG");
    return (is_long && *is_long && *is_long != '0' ? 30 : 4) * WEFT_SECOND;
}

static void test_own_shards(void **state)
{
    (void)state;
    kill_rounds(for_ns(), 0);
}

static void test_all_shards(void **state)
{
    (void)state;
    kill_rounds(for_ns(), QUEUE_SPREAD);
}

int main(void)
{
    setenv("WEFT_LOG", "error", 0); /* do not log the deaths, which are intended */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_shards),
        cmocka_unit_test(test_all_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
