/* SPDX-License-Identifier: MIT
 *
 * Large copies by several threads between nodes of one host. When an operation returns, all bytes have arrived, and a node that sees the
 * signal after them sees all bytes. There are as many helper threads as the setting says, and they end with the node. When a node is killed
 * during such a copy, the others go on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "cluster_test.h"

#define LEN ((6u << 20) + 123)

static const char *const three[] = {"WEFT_COPY_THREADS=3", "WEFT_TRANSPORT=shm", NULL};

static void fill(uint8_t *p, uint64_t seed)
{
    for (size_t i = 0; i + 8 <= LEN; i += 8) {
        uint64_t word = random_next(&seed);
        memcpy(p + i, &word, 8);
    }
}

static void signals(weft_node *w, void *arg)
{
    (void)arg;
    const uint64_t rounds = repeats(24);
    uint32_t me = weft_rank(w), n = weft_size(w), to = (me + 1) % n, from = (me + n - 1) % n;
    weft_gaddr area = symmetric_alloc(w, LEN), ready = symmetric_alloc(w, 64), taken = symmetric_alloc(w, 64);
    uint8_t *block = calloc(1, LEN), *expected = calloc(1, LEN), *mine = weft_ptr(w, area, LEN);
    CHECK(block && expected && mine);
    for (uint64_t i = 1; i <= rounds; i++) {
        fill(block, i * 1000 + me);
        fill(expected, i * 1000 + from);
        OK(weft_put_signal(w, on_node(area, to), block, LEN, on_node(ready, to), 1, NULL));
        OK(weft_wait_until(w, on_node(ready, me), WEFT_GE, i, NULL, WEFT_TIMEOUT_DEFAULT));
        CHECK(memcmp(mine, expected, LEN) == 0);
        OK(weft_get(w, expected, on_node(area, to), LEN, NULL)); /* over shm the operation is complete when the call returns */
        CHECK(memcmp(expected, block, LEN) == 0);
        OK(weft_put_signal(w, 0, NULL, 0, on_node(taken, from), 1, NULL));
        OK(weft_wait_until(w, on_node(taken, me), WEFT_EQ, i, NULL, WEFT_TIMEOUT_DEFAULT));
    }
    free(block);
    free(expected);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_bytes_come_before_their_signal(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, signals, NULL, three), 0);
}

#if defined(__linux__)
static int threads_here(void)
{
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *e; (e = readdir(tasks));)
        n += e->d_name[0] != '.';
    closedir(tasks);
    return n;
}

static int helpers(int rank, void *arg)
{
    (void)rank;
    const char *setting = arg;
    int threads = atoi(setting);
    setenv("WEFT_COPY_THREADS", setting, 1);
    setenv("WEFT_RANK", "0", 1);
    weft_node *w;
    OK(weft_open(&w, NULL));
    OK(weft_close(w));
    usleep(10000);
    int before = threads_here(); /* a sanitizer starts a thread of its own together with the first thread */
    for (int again = 0; again < 2; again++) {
        weft_gaddr area;
        OK(weft_open(&w, NULL));
        OK(weft_alloc(w, LEN, &area));
        uint8_t *block = calloc(1, LEN);
        CHECK(block);
        int open = threads_here();
        OK(weft_put(w, area, block, 1 << 20, NULL)); /* not large enough for the helper threads */
        CHECK(threads_here() == open);
        for (int i = 0; i < 3; i++)
            OK(weft_put(w, area, block, LEN, NULL));
        CHECK(threads_here() == open + threads - 1);
        OK(weft_close(w));
        free(block);
        /* A joined thread is still listed for a moment. */
        for (int i = 0; i < 5000 && threads_here() > before; i++)
            usleep(1000);
        CHECK(threads_here() == before);
    }
    return 0;
}

static void test_helpers_end_with_the_node(void **state)
{
    (void)state;
    assert_int_equal(processes_failed(1, helpers, (void *)(uintptr_t) "1"), 0);
    assert_int_equal(processes_failed(1, helpers, (void *)(uintptr_t) "4"), 0);
    assert_int_equal(processes_failed(1, helpers, (void *)(uintptr_t) "16"), 0);
}
#endif

struct killing {
    _Atomic uint32_t pid, copies, done;
};

static void killed_in_a_copy(weft_node *w, void *arg)
{
    struct killing *k = arg;
    uint32_t me = weft_rank(w);
    weft_gaddr area = symmetric_alloc(w, 3 * (uint64_t)LEN);
    uint8_t *block = calloc(1, LEN), *back = calloc(1, LEN);
    CHECK(block && back);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 2) {
        atomic_store(&k->pid, (uint32_t)getpid());
        for (;;) {
            OK(weft_put(w, on_node(area, 0), block, LEN, NULL));
            atomic_fetch_add(&k->copies, 1);
        }
    }
    if (me == 0) {
        wait_for(&k->copies, 5);
        CHECK(kill((pid_t)atomic_load(&k->pid), SIGKILL) == 0);
    }
    while (weft_alive(w, 2))
        usleep(1000);
    for (uint64_t i = 0; i < 5; i++) {
        fill(block, 77 * i + me);
        weft_gaddr there = on_node(area, !me) + (1 + (uint64_t)me) * LEN;
        OK(weft_put(w, there, block, LEN, NULL));
        OK(weft_get(w, back, there, LEN, NULL));
        CHECK(memcmp(back, block, LEN) == 0);
    }
    free(block);
    free(back);
    meet(&k->done, 2);
}

static void test_a_node_killed_in_a_copy_leaves_the_others(void **state)
{
    (void)state;
    struct killing *k = shared_words(sizeof *k);
    int status[NODES_MAX];
    nodes_run(3, killed_in_a_copy, k, three, status);
    assert_true(WIFEXITED(status[0]) && WEXITSTATUS(status[0]) == 0);
    assert_true(WIFEXITED(status[1]) && WEXITSTATUS(status[1]) == 0);
    assert_true(WIFSIGNALED(status[2]) && WTERMSIG(status[2]) == SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_come_before_their_signal),
#if defined(__linux__)
        cmocka_unit_test(test_helpers_end_with_the_node),
#endif
        cmocka_unit_test(test_a_node_killed_in_a_copy_leaves_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
