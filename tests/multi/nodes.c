/* SPDX-License-Identifier: MIT
 *
 * A cluster of forked processes for tests: see nodes.h.
 */
#include "nodes.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * WEFT_SECOND + t.tv_nsec;
}

static void child(uint32_t rank, const weft_config *config, nodes_fn fn, void *arg)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is stopped leaves no nodes behind */
    weft_config c = *config;
    c.rank = rank;
    weft *w;
    int rc = weft_open(&w, &c);
    if (rc) {
        fprintf(stderr, "node %u did not join: %s\n", rank, weft_error());
        _exit(98);
    }
    rc = fn(w, arg);
    int closed = weft_close(w);
    if (closed)
        fprintf(stderr, "node %u did not leave: %s\n", rank, weft_error());
    fflush(NULL);
    _exit(rc ? 97 : closed ? 96 : 0);
}

void nodes_start(struct nodes *n, uint32_t count, nodes_fn fn, void *arg, const weft_config *config)
{
    static unsigned serial;
    char coord[64];
    snprintf(coord, sizeof coord, "unix:@weft-test-%d-%u", (int)getpid(), serial++);
    weft_config c = config ? *config : (weft_config){0};
    c.coord = coord;
    c.size = count;
    if (!c.pool_bytes)
        c.pool_bytes = 16u << 20;
    *n = (struct nodes){.count = count};
    fflush(NULL);
    for (uint32_t i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid == 0)
            child(i, &c, fn, arg);
        if (pid < 0) {
            perror("fork");
            exit(1);
        }
        n->pid[i] = pid;
    }
}

#define KILLED_BY_TEST (-1)

void nodes_kill(struct nodes *n, uint32_t node)
{
    if (n->pid[node] == 0)
        return;
    kill(n->pid[node], SIGKILL);
    waitpid(n->pid[node], NULL, 0);
    n->pid[node] = 0;
    n->status[node] = KILLED_BY_TEST;
}

static bool bad(const struct nodes *n, uint32_t i)
{
    return n->status[i] != KILLED_BY_TEST && !(WIFEXITED(n->status[i]) && WEXITSTATUS(n->status[i]) == 0);
}

int nodes_wait(struct nodes *n, int64_t timeout_ns)
{
    int64_t end = now_ns() + timeout_ns;
    bool late = false;
    for (uint32_t left = 1; left;) {
        left = 0;
        for (uint32_t i = 0; i < n->count; i++) {
            if (n->pid[i] == 0)
                continue;
            if (waitpid(n->pid[i], &n->status[i], WNOHANG) == 0) {
                left++;
                continue;
            }
            n->pid[i] = 0;
        }
        if (left && !late && now_ns() > end) {
            late = true;
            for (uint32_t i = 0; i < n->count; i++)
                if (n->pid[i]) {
                    fprintf(stderr, "node %u (pid %d) has not ended in time: killed\n", i, (int)n->pid[i]);
                    kill(n->pid[i], SIGKILL);
                }
        }
        if (left)
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    int failed = 0;
    for (uint32_t i = 0; i < n->count; i++) {
        if (!bad(n, i))
            continue;
        failed++;
        if (WIFSIGNALED(n->status[i]))
            fprintf(stderr, "node %u: signal %s\n", i, strsignal(WTERMSIG(n->status[i])));
        else
            fprintf(stderr, "node %u: exit status %d\n", i, WEXITSTATUS(n->status[i]));
    }
    return failed;
}

int nodes_run(uint32_t count, nodes_fn fn, void *arg)
{
    struct nodes n;
    nodes_start(&n, count, fn, arg, NULL);
    return nodes_wait(&n, 60 * WEFT_SECOND);
}

void *nodes_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return p;
}

bool nodes_none_left(void)
{
    return waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD;
}
