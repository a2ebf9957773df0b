/* SPDX-License-Identifier: MIT
 *
 * See cluster_test.h.
 */
#include "cluster_test.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif
#include <sys/wait.h>
#include <time.h>

#define HANG_SECONDS 60

int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void *shared_words(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return p;
}

static void wait_all(int n, const pid_t *pids, int *status)
{
    int64_t end = now_ns() + (int64_t)HANG_SECONDS * 1000000000;
    bool done[NODES_MAX] = {0}, killed = false;
    for (int left = n; left > 0;) {
        for (int i = 0; i < n; i++) {
            if (!done[i] && waitpid(pids[i], &status[i], WNOHANG) == pids[i]) {
                done[i] = true;
                left--;
            }
        }
        if (left && now_ns() > end && !killed) {
            for (int i = 0; i < n; i++) {
                if (!done[i]) {
                    fprintf(stderr, "node %d (pid %d) hangs: killed\n", i, (int)pids[i]);
                    kill(pids[i], SIGKILL);
                }
            }
            killed = true;
        }
        usleep(1000);
    }
}

void processes_run(int n, process_fn fn, void *arg, int status[NODES_MAX])
{
    pid_t pids[NODES_MAX];
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < n; i++) {
        pid_t parent = getpid();
        pids[i] = fork();
        if (pids[i] == 0) {
#if defined(__linux__)
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is killed leaves no node behind */
            if (getppid() != parent)
                _exit(1);
#else
            (void)parent;
#endif
            char rank[16];
            snprintf(rank, sizeof rank, "%d", i);
            setenv("WEFT_RANK", rank, 1);
            _exit(fn(i, arg));
        }
    }
    wait_all(n, pids, status);
}

struct plan {
    int n;
    node_fn fn;
    void *arg;
    const char *const *environment;
    char coord[64];
};

static int run_node(int rank, void *arg)
{
    (void)rank;
    struct plan *p = arg;
    char size[16];
    snprintf(size, sizeof size, "%d", p->n);
    setenv("WEFT_SIZE", size, 1);
    setenv("WEFT_COORD", p->coord, 1);
    setenv("WEFT_POOL", "64M", 0);
    for (const char *const *e = p->environment; e && *e; e++)
        putenv((char *)(uintptr_t)*e); /* the test's strings live as long as the process */
    weft *w;
    OK(weft_open(&w, NULL));
    p->fn(w, p->arg);
    OK(weft_close(w));
    return 0;
}

void nodes_run(int n, node_fn fn, void *arg, const char *const *environment, int status[NODES_MAX])
{
    static unsigned number;
    struct plan p = {n, fn, arg, environment, ""};
    snprintf(p.coord, sizeof p.coord, "unix:@weft-test-%d-%u", (int)getpid(), number++);
    processes_run(n, run_node, &p, status);
}

static int count_failed(int n, const int *status)
{
    int failed = 0;
    for (int i = 0; i < n; i++) {
        if (WIFSIGNALED(status[i]))
            fprintf(stderr, "node %d was killed by signal %d\n", i, WTERMSIG(status[i]));
        failed += status[i] != 0;
    }
    return failed;
}

int nodes_failed(int n, node_fn fn, void *arg)
{
    int status[NODES_MAX];
    nodes_run(n, fn, arg, NULL, status);
    return count_failed(n, status);
}

int processes_failed(int n, process_fn fn, void *arg)
{
    int status[NODES_MAX];
    processes_run(n, fn, arg, status);
    return count_failed(n, status);
}

weft_gaddr symmetric_alloc(weft *w, size_t bytes)
{
    weft_gaddr a, all[NODES_MAX];
    OK(weft_alloc_aligned(w, bytes, 64, &a));
    memset(weft_ptr(w, a, bytes), 0, bytes);
    OK(weft_exchange(w, a, all, WEFT_DEFAULT));
    for (uint32_t i = 0; i < weft_size(w); i++)
        CHECK(all[i] == 0 || all[i] == on_node(a, i)); /* 0: gone */
    return a;
}
