/* SPDX-License-Identifier: MIT
 *
 * Devices that a guard owns: if a node is killed, its device leaks nothing; if the guard is killed, its node notices it. Run by
 * over_softverbs.py on a mesh of tb5; WEFT_COMMAND is the path of the command weft.
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
#include <sys/wait.h>

#include "cluster_test.h"

#define DOMAINS 11 /* protection domains of a tb5 device */
#define LONG    patience_ns(60)

/* The sum over all devices of a number in the output of softverbs ls: "leaked_pd": N, or with `used` the N in "pd": {... "used": N. */
static uint32_t sum(const char *field, bool used)
{
    uint32_t n = 0;
    size_t len = strlen(field);
    for (const char *at = softverbs("ls --all --json"); (at = strstr(at, field)); at += len) {
        const char *value = used ? strstr(at, "\"used\": ") + strlen("\"used\": ") : at + len + 2;
        n += (uint32_t)strtoul(value, NULL, 10);
    }
    return n;
}

/* Waits until the guards have freed everything that programs which have ended had left. */
static void wait_for_guards(void)
{
    for (int i = 0; i < 6000 && (sum("\"pd\": {", true) || sum("\"qp\": {", true)); i++)
        usleep(10000);
    assert_int_equal(sum("\"qp\": {", true), 0);
    assert_int_equal(sum("\"mr\": {", true), 0);
    assert_int_equal(sum("\"cq\": {", true), 0);
}

/* --- the program is killed --- */

/* Node 1 is killed during traffic; node 0 notices it, and closes normally. */
static void struck(weft_node *w, void *arg)
{
    _Atomic uint32_t *here = arg;
    weft_gaddr area = symmetric_alloc(w, 1u << 20);
    uint32_t other = 1 - weft_rank(w);
    uint8_t *buffer = weft_ptr(w, on_node(area, weft_rank(w)), 1u << 20);
    meet(here, 2);
    if (weft_rank(w) == 1) {
        for (int i = 0; i < 20; i++)
            OK(weft_put(w, on_node(area, other), buffer, 300000, NULL));
        kill(getpid(), SIGKILL);
    }
    int rc = 0;
    while (rc == 0)
        rc = weft_put_blocking(w, on_node(area, other), buffer, 64);
    CHECK(rc == -ECONNRESET);
}

/* The setting WEFT_GUARD as a string for the nodes' environment. */
static const char *guarded_by(const char *command)
{
    static char setting[600];
    snprintf(setting, sizeof setting, "WEFT_GUARD=%s", command);
    return setting;
}

static void strike(const char *guard, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        _Atomic uint32_t *here = shared_words(4096);
        int status[NODES_MAX];
        nodes_run(2, struck, here, (const char *const[]){"WEFT_LOG=error", guarded_by(guard), NULL}, status);
        assert_int_equal(status[0], 0);
        assert_true(WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL);
    }
}

static void test_killed_without(void **state)
{
    (void)state;
    strike("", 1);
    uint32_t leaked = sum("\"leaked_pd\"", false);
    assert_true(leaked > 0); /* each device of the host has leaked some */
    softverbs("reboot 1");
    assert_int_equal(sum("\"leaked_pd\"", false), 0);
}

/* Nodes are killed more often than the device has domains. */
static void test_killed(void **state)
{
    (void)state;
    strike(getenv("WEFT_COMMAND"), DOMAINS + 2);
    wait_for_guards();
    assert_int_equal(sum("\"leaked_pd\"", false), 0);
    assert_int_equal(sum("\"pd\": {", true), 0);
}

/* A forked child of the program keeps the sockets to the guard open. */
static void forked(weft_node *w, void *arg)
{
    _Atomic uint32_t *words = arg;
    meet(&words[0], 2);
    if (weft_rank(w) == 1) {
        pid_t child = fork();
        if (child == 0) {
            wait_for(&words[1], 1);
            _exit(0);
        }
        kill(getpid(), SIGKILL);
    }
    while (weft_alive(w, 1))
        usleep(1000);
}

static void test_killed_with_a_child(void **state)
{
    (void)state;
    int status[NODES_MAX];
    _Atomic uint32_t *words = shared_words(4096);
    const char *settings[] = {"WEFT_LOG=error", "WEFT_LIVENESS=1s", guarded_by(getenv("WEFT_COMMAND")), NULL};
    nodes_run(2, forked, words, settings, status);
    wait_for_guards();
    words[1] = 1;
    assert_int_equal(status[0], 0);
    assert_int_equal(sum("\"leaked_pd\"", false), 0);
}

/* --- the guard is killed --- */

/* The processes named weft-guard whose WEFT_RANK is 1. */
static pid_t guard_of_node_1(const char *coord)
{
    DIR *d = opendir("/proc");
    pid_t found = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[300], text[1u << 14];
        pid_t pid = (pid_t)atoi(e->d_name);
        snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
        FILE *f = pid > 0 ? fopen(path, "re") : NULL;
        bool guard = f && fgets(text, sizeof text, f) && strcmp(text, "weft-guard\n") == 0;
        if (f)
            fclose(f);
        if (!guard)
            continue;
        snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
        f = fopen(path, "re");
        size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        if (f)
            fclose(f);
        bool ours = false, one = false;
        for (size_t i = 0; i < n; i += strnlen(text + i, n - i) + 1) {
            ours = ours || strcmp(text + i, coord) == 0;
            one = one || strcmp(text + i, "WEFT_RANK=1") == 0;
        }
        found = ours && one ? pid : found;
    }
    if (d)
        closedir(d);
    return found;
}

/* `asleep`: the guard is killed while it sleeps. Its node is in a slow handler, and notices the guard's end only when it tries to wake it.
 */
struct unguarding {
    bool asleep;
    _Atomic uint32_t here, handling, struck, seen;
};

/* Whether the process still runs: one that has ended has no files, even before its parent has waited for it. */
static bool has_files(pid_t pid)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    const char *state = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (f)
        fclose(f);
    return state && strncmp(state, ") Z", 3) != 0 && strncmp(state, ") X", 3) != 0;
}

static void handle_long(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                        void *arg)
{
    struct unguarding *u = arg;
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    u->handling = 1;
    usleep(400000);
}

static void unguarded(weft_node *w, void *arg)
{
    struct unguarding *u = arg;
    weft_gaddr area = symmetric_alloc(w, 1u << 20);
    uint8_t *buffer = weft_ptr(w, on_node(area, weft_rank(w)), 1u << 20);
    weft_op op;
    OK(weft_handle(w, 1, handle_long, u));
    OK(weft_put_blocking(w, on_node(area, 1 - weft_rank(w)), buffer, 300000));
    meet(&u->here, 2);
    if (u->asleep && weft_rank(w) == 0) {
        OK(weft_send(w, 1, 1, "", 0, NULL, 0, NULL));
        wait_for(&u->struck, 1);
    }
    if (weft_rank(w) == 1) {
        if (u->asleep) {
            wait_for(&u->handling, 1);
            usleep(100000);
        }
        char coord[128];
        snprintf(coord, sizeof coord, "WEFT_COORD=%s", getenv("WEFT_COORD"));
        pid_t guard = guard_of_node_1(coord);
        CHECK(guard > 0 && kill(guard, SIGKILL) == 0);
        for (int64_t end = now_ns() + LONG; u->asleep && has_files(guard) && now_ns() < end;)
            usleep(100);
    }
    int rc = 0;
    while (rc == 0) {
        rc = weft_put(w, on_node(area, 1 - weft_rank(w)), buffer, 4096, &op);
        u->struck = 1;
        rc = rc ? rc : weft_wait(w, &op, LONG);
    }
    CHECK(rc == -ENETDOWN || rc == -ECONNRESET); /* the node is alive, but none of its cables works; or its peer has left by now */
    meet(&u->seen, 2);
}

static void guard_killed(bool asleep)
{
    struct unguarding *u = shared_words(4096);
    u->asleep = asleep;
    const char *settings[] = {"WEFT_LOG=error", "WEFT_DEADLINE=5s", guarded_by(getenv("WEFT_COMMAND")), NULL};
    assert_int_equal(nodes_failed_with(2, unguarded, u, settings), 0);
    assert_true(sum("\"leaked_pd\"", false) >
                0); /* if the process that owns the devices is killed, its domains leak: nothing prevents that */
    softverbs("reboot 1");
    wait_for_guards();
}

static void test_guard_killed(void **state)
{
    (void)state;
    guard_killed(false);
    guard_killed(true);
}

static int opens_with(int rank, void *arg)
{
    weft_node *w = NULL;
    (void)rank;
    setenv("WEFT_GUARD", arg, 1);
    setenv("WEFT_SIZE", "2", 1);
    setenv("WEFT_COORD", "unix:@weft-no-guard", 1);
    setenv("WEFT_LOG", "error", 1);
    setenv("WEFT_JOIN_TIMEOUT", "5s", 1);
    CHECK(weft_open(&w, NULL) < 0);
    CHECK(rank != 0 || strstr(weft_error(), "WEFT_GUARD"));
    return 0;
}

static void test_no_guard(void **state)
{
    (void)state;
    static char nothing[] = "/nonexistent/weft", other[] = "/bin/true";
    assert_int_equal(processes_failed(2, opens_with, nothing), 0);
    assert_int_equal(processes_failed(2, opens_with, other), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_without), cmocka_unit_test(test_killed),   cmocka_unit_test(test_killed_with_a_child),
        cmocka_unit_test(test_guard_killed),   cmocka_unit_test(test_no_guard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
