/* SPDX-License-Identifier: MIT
 *
 * Where the threads of a GPU run, and where the memory that it shares with the node is first touched: on the processors of its NUMA node.
 * The GPU is that of a CUDA driver for tests. The linker replaces the function that reads those processors from sysfs.
 */
#include <dirent.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "cluster_test.h"
#include "gpu/pci.h"

#define RINGS   3
#define THREADS 5 /* the serving thread, that for queues, that for arenas, and two of the worker */

static uint64_t near[BASE_CPU_WORDS]; /* one of the processors that this process may use */
static uint32_t touches;

bool __wrap_gpu_pci_processors(const char *root, const char *address, uint64_t set[BASE_CPU_WORDS]);
bool __wrap_gpu_pci_processors(const char *root, const char *address, uint64_t set[BASE_CPU_WORDS])
{
    CHECK(strcmp(root, "") == 0 && strcmp(address, "0000:f0:00.0") == 0);
    memcpy(set, near, sizeof near);
    return true;
}

void __real_base_touch_near(const uint64_t set[BASE_CPU_WORDS], void *memory, size_t bytes);
void __wrap_base_touch_near(const uint64_t set[BASE_CPU_WORDS], void *memory, size_t bytes);
void __wrap_base_touch_near(const uint64_t set[BASE_CPU_WORDS], void *memory, size_t bytes)
{
    CHECK(memcmp(set, near, sizeof near) == 0);
    __real_base_touch_near(set, memory, bytes);
    touches++;
}

static void processors_of(int thread, uint64_t set[BASE_CPU_WORDS])
{
    cpu_set_t cpus;
    memset(set, 0, sizeof near);
    CHECK(sched_getaffinity(thread, sizeof cpus, &cpus) == 0);
    for (int i = 0; i < BASE_CPU_WORDS * 64 && i < CPU_SETSIZE; i++)
        set[i / 64] |= (uint64_t)(CPU_ISSET((size_t)i, &cpus) != 0) << i % 64;
}

#define THREADS_MOST 64u
struct threads {
    uint32_t count;
    int id[THREADS_MOST];
};

static struct threads threads_now(void)
{
    struct threads t = {0};
    DIR *d = opendir("/proc/self/task");
    CHECK(d);
    for (const struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') {
            CHECK(t.count < THREADS_MOST);
            t.id[t.count++] = atoi(e->d_name);
        }
    closedir(d);
    return t;
}

static bool has(const struct threads *t, int id)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (t->id[i] == id)
            return true;
    return false;
}

/* Waits until the thread runs only where it should: it has just been started. */
static void is_near(int id)
{
    uint64_t set[BASE_CPU_WORDS];
    do {
        usleep(1000);
        processors_of(id, set);
    } while (memcmp(set, near, sizeof near) != 0);
}

static void node(weft_node *w, void *arg)
{
    (void)arg;
    uint64_t all[BASE_CPU_WORDS], set[BASE_CPU_WORDS];
    weft_gpu *g;
    weft_queue *q;
    weft_gpu_worker *k;
    uint32_t space, number, word = BASE_CPU_WORDS, more = 0;
    weft_gpu_config config = {.bytes = sizeof config, .name = "cuda:0", .rings = RINGS, .slots = 64};
    processors_of(0, all);
    while (!all[--word])
        ;
    near[word] = all[word] & -all[word];
    OK(weft_queue_open(w, "near", NULL, &q));
    struct threads before = threads_now();
    OK(weft_gpu_open(w, &config, &g));
    CHECK(touches == RINGS + 1); /* with the page that tells which nodes are gone */
    OK(weft_gpu_arena(g, 1u << 20, &space));
    OK(weft_gpu_queue(g, q, &number));
    OK(weft_gpu_worker_open(g, q, NULL, &k));
    CHECK(touches == RINGS + 2);
    struct threads now = threads_now();
    for (uint32_t i = 0; i < now.count; i++)
        if (!has(&before, now.id[i])) {
            is_near(now.id[i]);
            more++;
        }
    CHECK(more == THREADS);
    for (uint32_t i = 0; i < before.count; i++) {
        processors_of(before.id[i], set);
        CHECK(memcmp(set, all, sizeof all) == 0);
    }
    OK(weft_gpu_close(g));
}

static void test_near(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_near)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
