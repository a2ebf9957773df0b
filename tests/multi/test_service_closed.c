/* SPDX-License-Identifier: MIT
 *
 * The reader of a stream frees its ring only when the writer can no longer write to it. These tests end the reading while the writer is
 * stopped in the middle of its work, and check that the ring's memory is not used for anything else until the writer has confirmed. For the
 * output of a process, the writer is the server, and the asker closes the handle. For the input, the writer is the asker, and the process
 * ends. The rings that are kept for a writer that never confirms are bounded.
 *
 * Also: the names that one asker can publish are bounded.
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
#include "gateway/gateway.h"
#include "weft/service.h"

#define RING 65536u

static const char *const environment[] = {"WEFT_SERVE=process", "WEFT_LIVENESS=120s", NULL};

struct meeting {
    _Atomic int server, over;
    _Atomic int asker, pid;
    _Atomic uint32_t killed;
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
    /* the process runs */
    OK(weft_spawn(w, 0, &fills, &p, WEFT_TIMEOUT_DEFAULT));
    OK(weft_process_read(p, 1, &byte, 1, &got, WEFT_TIMEOUT_DEFAULT));
    stop(server);
    close_while_stopped(w, p, server, before);
    /* the request to start it is not answered yet, so the process may or may not run */
    stop(server);
    OK(weft_spawn_start(w, 0, &fills, &p, &op));
    close_while_stopped(w, p, server, before);
    CHECK(weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT) == -ECANCELED);
    stop(server);
    OK(weft_spawn_start(w, 0, &none, &p, &op));
    close_while_stopped(w, p, server, before);
    /* the request is cancelled, and the handle is closed later */
    stop(server);
    CHECK(weft_spawn(w, 0, &fills, &p, 20 * WEFT_MS) == -ETIMEDOUT);
    CHECK(live(w) >= before + RING);
    CHECK(kill(server, SIGCONT) == 0);
    for (int i = 0; live(w) != before; i++) {
        CHECK(i < 60000);
        usleep(1000);
    }
    /* the process could not be started: the memory is free at once */
    CHECK(weft_spawn(w, 0, &none, &p, WEFT_TIMEOUT_DEFAULT) == -ENOENT);
    CHECK(live(w) == before);
    atomic_store(&m->over, 1);
}

static void test_closed(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, closed, shared_words(sizeof(struct meeting)), environment), 0);
}

static void wait_live(weft_node *w, uint64_t bytes)
{
    for (int i = 0; live(w) != bytes; i++) {
        CHECK(i < 60000);
        usleep(1000);
    }
}

/* The server ends the process while the asker is stopped. */
static void end_while_stopped(weft_node *w, struct meeting *m, uint64_t before)
{
    while (!atomic_load(&m->pid))
        usleep(1000);
    const pid_t asker = atomic_load(&m->asker), pid = atomic_exchange(&m->pid, 0);
    CHECK(live(w) == before + RING);
    stop(asker);
    CHECK(kill(pid, SIGKILL) == 0);
    for (int i = 0; kill(pid, 0) == 0; i++) {
        CHECK(i < 60000);
        usleep(1000);
    }
    for (int i = 0; i < 5; i++) {
        CHECK(live(w) == before + RING);
        usleep(10000);
    }
    CHECK(kill(asker, SIGCONT) == 0);
    wait_live(w, before); /* although the asker keeps the handle */
    atomic_fetch_add(&m->killed, 1);
}

static void ask_for_input(weft_node *w, struct meeting *m, uint32_t writes, uint32_t number)
{
    static const char zeros[3 * RING];
    const weft_spawn_spec spec = {
        .bytes = sizeof spec, .program = "sleep", .argv = (const char *const[]){"sleep", "1000", NULL}, .flags = WEFT_SPAWN_STDIN};
    weft_process *p;
    OK(weft_spawn(w, 0, &spec, &p, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t i = 0; i < writes; i++)
        CHECK(weft_process_write(p, zeros, sizeof zeros, NULL, 0) == -ETIMEDOUT);
    atomic_store(&m->pid, (int)weft_process_pid(p));
    wait_for(&m->killed, number);
    CHECK(weft_process_write(p, "x", 1, NULL, WEFT_TIMEOUT_DEFAULT) == -EPIPE);
    OK(weft_process_end_input(p));
    OK(weft_process_close(p));
}

static void input_unread(weft_node *w, void *arg)
{
    struct meeting *m = arg;
    const weft_spawn_spec closes = {.bytes = sizeof closes,
                                    .program = "sh",
                                    .argv = (const char *const[]){"sh", "-c", "exec <&-; sleep 1000", NULL},
                                    .flags = WEFT_SPAWN_STDIN};
    const weft_spawn_spec shortly = {.bytes = sizeof shortly, .program = "true", .flags = WEFT_SPAWN_STDIN};
    uint64_t before = live(w);
    if (weft_rank(w) == 0) {
        atomic_store(&m->server, 1);
        end_while_stopped(w, m, before);
        end_while_stopped(w, m, before);
        while (!atomic_load(&m->over))
            usleep(1000);
        wait_live(w, before);
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        return;
    }
    while (!atomic_load(&m->server))
        usleep(1000);
    atomic_store(&m->asker, (int)getpid());
    ask_for_input(w, m, 0, 1); /* no bytes were written yet, so the server does not know the number of the asker's end of the stream */
    ask_for_input(w, m, 1, 2);
    weft_process *p;
    int rc;
    OK(weft_spawn(w, 0, &closes, &p, WEFT_TIMEOUT_DEFAULT)); /* the process goes on */
    do
        rc = weft_process_write(p, "some", 4, NULL, WEFT_TIMEOUT_DEFAULT);
    while (rc == 0);
    CHECK(rc == -EPIPE && weft_process_wait(p, NULL, 0, 0) == -ETIMEDOUT);
    OK(weft_process_close(p));
    for (int i = 0; i < 30; i++) { /* ended, closed and written to in any order */
        OK(weft_spawn(w, 0, &shortly, &p, WEFT_TIMEOUT_DEFAULT));
        if (i % 3)
            rc = weft_process_write(p, "some", 4, NULL, 0);
        CHECK(rc == 0 || rc == -EPIPE);
        if (i % 2)
            OK(weft_process_wait(p, NULL, 0, WEFT_TIMEOUT_DEFAULT));
        OK(weft_process_close(p));
    }
    atomic_store(&m->over, 1);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_input_unread(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, input_unread, shared_words(sizeof(struct meeting)), environment), 0);
}

/* --- an asker that never confirms --- */

static weft_handler_fn hears;

static void deaf(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    struct gateway_message m;
    CHECK(header_len == sizeof m);
    memcpy(&m, header, sizeof m);
    if (m.type != GATEWAY_UNREAD)
        hears(w, from, header, header_len, payload, payload_len, arg);
}

/* The server keeps the rings of processes that have ended for it, but not of any number of them. */
static void never_confirms(weft_node *w, void *arg)
{
    struct meeting *m = arg;
    const weft_spawn_spec spec = {.bytes = sizeof spec, .program = "true", .flags = WEFT_SPAWN_STDIN};
    static weft_process *p[GATEWAY_PROCESSES + 1];
    uint64_t before = live(w);
    if (weft_rank(w) == 0) {
        atomic_store(&m->server, 1);
        while (!atomic_load(&m->over))
            usleep(1000);
        wait_live(w, before);
        return;
    }
    while (!atomic_load(&m->server))
        usleep(1000);
    hears = w->handlers[GATEWAY_HANDLER].fn;
    atomic_store(&w->handlers[GATEWAY_HANDLER].fn, deaf);
    for (uint32_t i = 0; i < GATEWAY_PROCESSES; i++) {
        OK(weft_spawn(w, 0, &spec, &p[i], WEFT_TIMEOUT_DEFAULT));
        OK(weft_process_wait(p[i], NULL, 0, WEFT_TIMEOUT_DEFAULT));
    }
    CHECK(weft_spawn(w, 0, &spec, &p[GATEWAY_PROCESSES], WEFT_TIMEOUT_DEFAULT) == -ENOBUFS);
    CHECK(strstr(weft_error(), "but their standard input is still open: close the handles of processes that have ended"));
    OK(weft_process_close(p[0])); /* this does confirm */
    int rc;
    for (int i = 0; (rc = weft_spawn(w, 0, &spec, &p[0], WEFT_TIMEOUT_DEFAULT)) == -ENOBUFS; i++)
        CHECK(i < 60000 && usleep(1000) == 0);
    OK(rc);
    for (uint32_t i = 0; i < GATEWAY_PROCESSES; i++)
        OK(weft_process_close(p[i]));
    atomic_store(&m->over, 1);
}

static void test_never_confirms(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, never_confirms, shared_words(sizeof(struct meeting)),
                                       (const char *const[]){"WEFT_SERVE=process", "WEFT_POOL=256M", "WEFT_LIVENESS=120s", NULL}),
                     0);
}

/* --- names --- */

/* One node publishes names until it gets an error, which says why. Another node can still publish some. */
static void greedy_names(weft_node *w, void *arg)
{
    struct meeting *m = arg;
    const char *own = getenv("WEFT_NAMES");
    uint32_t n = 0, most = own ? (uint32_t)atoi(own) : 49152; /* three quarters of 65,536 */
    weft_gaddr a;
    char text[96];
    int rc = 0;
    OK(weft_alloc(w, 64, &a));
    if (weft_rank(w) == 1) {
        for (; !rc && n <= most; n += !rc) {
            snprintf(text, sizeof text, "%u", n);
            rc = weft_name_publish(w, 0, text, a, 64, WEFT_TIMEOUT_DEFAULT);
        }
        snprintf(text, sizeof text, "node 1 has published %u names at node 0", most);
        if (n != most || !strstr(weft_error(), text))
            fprintf(stderr, "%u names: %s\n", n, weft_error());
        CHECK(rc == -ENOSPC && n == most && strstr(weft_error(), text) && strstr(weft_error(), "WEFT_NAMES"));
        OK(weft_name_publish(w, 0, "3", a, 32, WEFT_TIMEOUT_DEFAULT)); /* a name that it has */
        OK(weft_name_withdraw(w, 0, "3", WEFT_TIMEOUT_DEFAULT));
        OK(weft_name_publish(w, 0, "another", a, 64, WEFT_TIMEOUT_DEFAULT));
        CHECK(weft_name_publish(w, 0, "3", a, 64, WEFT_TIMEOUT_DEFAULT) == -ENOSPC);
        atomic_store(&m->asker, 1);
        while (!atomic_load(&m->over))
            usleep(1000);
    } else if (weft_rank(w) == 2) {
        while (!atomic_load(&m->asker))
            usleep(1000);
        for (; n < 20; n++) {
            snprintf(text, sizeof text, "of 2: %u", n);
            OK(weft_name_publish(w, 0, text, a, 64, WEFT_TIMEOUT_DEFAULT));
        }
        CHECK(weft_name_publish(w, 0, "another", a, 64, WEFT_TIMEOUT_DEFAULT) == -EEXIST);
        atomic_store(&m->over, 1);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_greedy_names(void **state)
{
    (void)state;
    static const char *const settings[][3] = {{"WEFT_SERVE=name", "WEFT_NAMES=20", NULL}, {"WEFT_SERVE=name", NULL}};
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(nodes_failed_with(3, greedy_names, shared_words(sizeof(struct meeting)), settings[i]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_closed), cmocka_unit_test(test_input_unread),
                                       cmocka_unit_test(test_never_confirms), cmocka_unit_test(test_greedy_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
