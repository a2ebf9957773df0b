/* SPDX-License-Identifier: MIT
 *
 * A handle of a process that is closed while its server still writes into the ring of its output: the ring's memory is not used again
 * before the server has answered that it writes there no more. The server is stopped meanwhile, so that it is in the middle of something.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "cluster_test.h"
#include "weft/service.h"

#define RING 65536u

static const char *const environment[] = {"WEFT_SERVE=process", "WEFT_LIVENESS=120s", NULL};

struct meeting {
    _Atomic int server, over;
};

static uint64_t live(weft_node *w)
{
    weft_pool_stats s;
    OK(weft_pool_stat(w, &s, sizeof s));
    return s.live_bytes;
}

/* Stops a process, and waits until none of its threads runs any more. */
static void stop(pid_t pid)
{
    char path[64], line[512];
    bool runs = true;
    CHECK(kill(pid, SIGSTOP) == 0);
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    for (int i = 0; runs; i++) {
        DIR *threads = opendir(path);
        CHECK(threads && i < 60000);
        runs = false;
        for (struct dirent *e; (e = readdir(threads));) {
            char stat[128];
            snprintf(stat, sizeof stat, "%s/%.32s/stat", path, e->d_name);
            FILE *f = e->d_name[0] == '.' ? NULL : fopen(stat, "r");
            const char *state = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
            runs = runs || (state && strncmp(state, ") T", 3) != 0);
            if (f)
                fclose(f);
        }
        closedir(threads);
        usleep(1000);
    }
}

/* The server is stopped: it keeps the ring of a handle that is closed now. When it goes on, the memory is given back. */
static void close_while_stopped(weft_node *w, weft_process *p, pid_t server, uint64_t before)
{
    OK(weft_process_close(p));
    for (int i = 0; i < 5; i++) {
        CHECK(live(w) >= before + RING);
        usleep(10000);
    }
    CHECK(kill(server, SIGCONT) == 0);
    for (int i = 0; live(w) != before; i++) {
        CHECK(i < 60000);
        usleep(1000);
    }
}

static void closed(weft_node *w, void *arg)
{
    struct meeting *m = arg;
    if (weft_rank(w) == 0) {
        atomic_store(&m->server, (int)getpid());
        while (!atomic_load(&m->over))
            usleep(1000);
        return;
    }
    while (!atomic_load(&m->server))
        usleep(1000);
    const pid_t server = atomic_load(&m->server);
    const weft_spawn_spec fills = {.bytes = sizeof fills, .program = "yes", .flags = WEFT_SPAWN_STDOUT, .stdout_ring = RING};
    const weft_spawn_spec none = {.bytes = sizeof none, .program = "/nonexistent", .flags = WEFT_SPAWN_STDOUT, .stdout_ring = RING};
    weft_process *p;
    weft_op op;
    char byte;
    size_t got;
    uint64_t before = live(w);
    /* it runs */
    OK(weft_spawn(w, 0, &fills, &p, WEFT_TIMEOUT_DEFAULT));
    OK(weft_process_read(p, 1, &byte, 1, &got, WEFT_TIMEOUT_DEFAULT));
    stop(server);
    close_while_stopped(w, p, server, before);
    /* its start is not answered yet: it will run, or it will not */
    stop(server);
    OK(weft_spawn_start(w, 0, &fills, &p, &op));
    close_while_stopped(w, p, server, before);
    CHECK(weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT) == -ECANCELED);
    stop(server);
    OK(weft_spawn_start(w, 0, &none, &p, &op));
    close_while_stopped(w, p, server, before);
    /* nobody waits for the answer any more, and the handle is closed later */
    stop(server);
    CHECK(weft_spawn(w, 0, &fills, &p, 20 * WEFT_MS) == -ETIMEDOUT);
    CHECK(live(w) >= before + RING);
    CHECK(kill(server, SIGCONT) == 0);
    for (int i = 0; live(w) != before; i++) {
        CHECK(i < 60000);
        usleep(1000);
    }
    /* it could not be started, and has ended: the memory is free at once */
    CHECK(weft_spawn(w, 0, &none, &p, WEFT_TIMEOUT_DEFAULT) == -ENOENT);
    CHECK(live(w) == before);
    atomic_store(&m->over, 1);
}

static void test_closed(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, closed, shared_words(sizeof(struct meeting)), environment), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_closed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
