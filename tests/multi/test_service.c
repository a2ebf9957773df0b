/* SPDX-License-Identifier: MIT
 *
 * The process service. Node 0 is the server, the other nodes are the askers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "cluster_test.h"

static const char *const OFFERS[] = {"WEFT_SERVE=process,name", NULL};
static const char *const OFFERS_AND_QUIET[] = {"WEFT_SERVE=process,name", "WEFT_LOG=error", NULL};

#define SPEC(...) ((const weft_spawn_spec){.bytes = sizeof(weft_spawn_spec), __VA_ARGS__})
#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Reads output until it ends. */
static size_t read_all(weft_process *p, uint32_t which, char *buf, size_t len)
{
    size_t n = 0, got;
    do {
        CHECK(n < len - 1);
        OK(weft_process_read(p, which, buf + n, len - 1 - n, &got, WEFT_TIMEOUT_DEFAULT));
        n += got;
    } while (got);
    buf[n] = '\0';
    return n;
}

/* Runs a program on node 0 until it ends, and returns its output. */
static char *output_of(weft_node *w, weft_spawn_spec spec, weft_exit *how)
{
    static char text[1 << 16];
    weft_process *p;
    weft_exit e;
    spec.flags |= WEFT_SPAWN_STDOUT;
    OK(weft_spawn(w, 0, &spec, &p, WEFT_TIMEOUT_DEFAULT));
    read_all(p, 1, text, sizeof text);
    OK(weft_process_wait(p, &e, sizeof e, WEFT_TIMEOUT_DEFAULT));
    if (how)
        *how = e;
    OK(weft_process_close(p));
    return text;
}

#define SH(line, ...) SPEC(.program = "/bin/sh", .argv = ARGV("sh", "-c", line), __VA_ARGS__)

static void must_fail(weft_node *w, weft_spawn_spec spec, int code, const char *says)
{
    weft_process *p = (weft_process *)1;
    CHECK(weft_spawn(w, 0, &spec, &p, WEFT_TIMEOUT_DEFAULT) == code);
    CHECK(strstr(weft_error(), says));
    CHECK(p == NULL);
}

/* Reads standard output up to the end of the text `until`. */
static void read_until(weft_process *p, const char *until)
{
    char text[4096] = "";
    size_t n = 0, got = 1;
    while (!strstr(text, until)) {
        CHECK(n < sizeof text - 1 && got);
        OK(weft_process_read(p, 1, text + n, sizeof text - 1 - n, &got, WEFT_TIMEOUT_DEFAULT));
        text[n += got] = '\0';
    }
}

static void terminals(weft_node *w)
{
    const weft_spawn_spec spec =
        SH("trap 'stty size' WINCH; tty -s && stty size; while :; do read word && echo $word; done",
           .flags = WEFT_SPAWN_TERMINAL | WEFT_SPAWN_STDIN | WEFT_SPAWN_STDOUT, .terminal_rows = 9, .terminal_columns = 300);
    weft_process *p;
    weft_exit e;
    OK(weft_spawn(w, 0, &spec, &p, WEFT_TIMEOUT_DEFAULT));
    read_until(p, "9 300\r\n");
    OK(weft_process_window(p, 65535, 1, WEFT_TIMEOUT_DEFAULT));
    OK(weft_process_write(p, "word\n", 5, NULL, WEFT_TIMEOUT_DEFAULT)); /* a shell runs the trap after the command */
    read_until(p, "65535 1\r\n");
    OK(weft_process_end_input(p)); /* is not passed on */
    OK(weft_process_signal(p, SIGQUIT, WEFT_TIMEOUT_DEFAULT));
    OK(weft_process_wait(p, &e, sizeof e, WEFT_TIMEOUT_DEFAULT));
    CHECK(e.signal == SIGQUIT);
    CHECK(weft_process_window(p, 1, 1, WEFT_TIMEOUT_DEFAULT) == -ESRCH);
    OK(weft_process_close(p));
    CHECK(strcmp(output_of(w, SH("echo out; echo err >&2; exit 3", .flags = WEFT_SPAWN_TERMINAL), &e), "out\r\nerr\r\n") == 0);
    CHECK(e.status == 3);
    /* No one reads the program's output: the program goes on. */
    const weft_spawn_spec silent = SH("head -c 1000000 /dev/zero; exit 4", .flags = WEFT_SPAWN_TERMINAL);
    OK(weft_spawn(w, 0, &silent, &p, WEFT_TIMEOUT_DEFAULT));
    OK(weft_process_wait(p, &e, sizeof e, WEFT_TIMEOUT_DEFAULT));
    CHECK(e.status == 4);
    OK(weft_process_close(p));
    OK(weft_spawn(w, 0, &SH("exit"), &p, WEFT_TIMEOUT_DEFAULT));
    CHECK(weft_process_window(p, 1, 1, WEFT_TIMEOUT_DEFAULT) == -EINVAL);
    OK(weft_process_close(p));
    must_fail(w, SPEC(.program = "true", .flags = WEFT_SPAWN_TERMINAL | WEFT_SPAWN_STDERR_TO_STDOUT), -EINVAL, "flags");
    must_fail(w, SPEC(.program = "true", .terminal_rows = 1), -EINVAL, "WEFT_SPAWN_TERMINAL");
}

static void basics(weft_node *w, void *arg)
{
    (void)arg;
    weft_exit e;
    weft_process *p;
    if (weft_rank(w) != 1) {
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        return;
    }
    uint32_t node;
    OK(weft_service_find(w, WEFT_SERVICE_PROCESS, &node, WEFT_TIMEOUT_DEFAULT));
    CHECK(weft_service_offered(w, node, WEFT_SERVICE_PROCESS) && !weft_service_offered(w, node, 40));
    weft_spawn_spec true_ = SPEC(.program = "true");
    OK(weft_spawn(w, 0, &true_, &p, WEFT_TIMEOUT_DEFAULT));
    CHECK(weft_process_node(p) == 0 && weft_process_pid(p) > 1);
    OK(weft_process_wait(p, &e, sizeof e, WEFT_TIMEOUT_DEFAULT));
    CHECK(e.status == 0 && e.signal == 0 && !e.timed_out && e.memory_bytes > 0);
    CHECK(weft_process_signal(p, SIGTERM, WEFT_TIMEOUT_DEFAULT) == -ESRCH);
    size_t got;
    CHECK(weft_process_read(p, 1, &e, 1, &got, 0) == -EINVAL);
    CHECK(weft_process_write(p, &e, 1, NULL, 0) == -EINVAL);
    OK(weft_process_close(p));
    /* a node as its own server */
    OK(weft_spawn(w, 1, &true_, &p, WEFT_TIMEOUT_DEFAULT));
    OK(weft_process_wait(p, &e, sizeof e, WEFT_TIMEOUT_DEFAULT));
    OK(weft_process_close(p));

    CHECK(strcmp(output_of(w, SH("echo out; echo err >&2; exit 7"), &e), "out\n") == 0 && e.status == 7);
    CHECK(strcmp(output_of(w, SH("echo out; echo err >&2", .flags = WEFT_SPAWN_STDERR_TO_STDOUT), &e), "out\nerr\n") == 0);
    CHECK(strcmp(output_of(w, SH("kill -USR1 $$"), &e), "") == 0 && e.signal == SIGUSR1 && e.status == 0);
    CHECK(strcmp(output_of(w, SH("pwd", .directory = "/usr"), &e), "/usr\n") == 0);
    CHECK(strcmp(output_of(w,
                           SPEC(.program = "bin/env", .directory = "/usr", .env = ARGV("A=1", "B=2", "A=3", "C=4", "C"),
                                .flags = WEFT_SPAWN_CLEAN_ENVIRONMENT),
                           &e),
                 "A=3\nB=2\n") == 0);
    CHECK(strcmp(output_of(w, SH("echo $HOME $WEFT_RANK $WEFT_SERVE $X", .env = ARGV("HOME=/there", "X=y")), &e), "/there y\n") == 0);
    const weft_process_limit limits[] = {{WEFT_LIMIT_FILES, 0, 17, 17}, {WEFT_LIMIT_CORE, 0, 0, 0}};
    CHECK(strcmp(output_of(w, SH("ulimit -n; ulimit -c", .limits = limits, .limit_count = 2), &e), "17\n0\n") == 0);
    output_of(w, SH("while :; do :; done", .time_limit_ns = 100 * WEFT_MS), &e);
    CHECK(e.timed_out && e.signal == SIGKILL && e.user_ns + e.system_ns > 0);

    terminals(w);
    must_fail(w, SPEC(.program = "no-such-program"), -ENOENT, "'no-such-program'");
    must_fail(w, SPEC(.program = "/no/such/program"), -ENOENT, "'/no/such/program'");
    must_fail(w, SPEC(.program = "/etc/passwd"), -EACCES, "'/etc/passwd'");
    must_fail(w, SPEC(.program = "/etc"), -EACCES, "'/etc'");
    must_fail(w, SPEC(.program = "true", .directory = "/no/such/directory"), -ENOENT, "'/no/such/directory'");
    must_fail(w, SPEC(.program = "true", .directory = "/etc/passwd"), -ENOTDIR, "'/etc/passwd'");
    must_fail(w, SPEC(.program = ""), -EINVAL, "no program");
    must_fail(w, SPEC(.program = "true", .flags = 0x8000), -EINVAL, "flags");
    must_fail(w, SPEC(.program = "true", .flags = WEFT_SPAWN_STDOUT, .stdout_ring = 5000), -EINVAL, "ring");
    must_fail(w, SPEC(.program = "true", .env = ARGV("=x")), -EINVAL, "name");
    CHECK(weft_spawn(w, 99, &true_, &p, WEFT_TIMEOUT_DEFAULT) == -EFAULT);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_basics(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, basics, NULL, OFFERS), 0);
}

static void none_offers(weft_node *w, void *arg)
{
    (void)arg;
    weft_spawn_spec spec = SPEC(.program = "true");
    weft_process *p;
    weft_name n;
    uint32_t node;
    CHECK(weft_spawn(w, 0, &spec, &p, WEFT_TIMEOUT_DEFAULT) == -EOPNOTSUPP);
    CHECK(strstr(weft_error(), "WEFT_SERVE=process") && strstr(weft_error(), "no node does"));
    CHECK(weft_name_lookup(w, 0, "x", &n, WEFT_TIMEOUT_DEFAULT) == -EOPNOTSUPP);
    CHECK(weft_service_find(w, WEFT_SERVICE_NAME, &node, 0) == -EOPNOTSUPP);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_none_offers(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, none_offers, NULL, NULL), 0);
}

/* --- bytes --- */

static uint8_t byte_at(uint64_t i)
{
    return (uint8_t)(i * 31 + (i >> 8) * 7 + (i >> 16));
}

/* Writes `total` bytes to `cat` on node 0, and reads them back. */
static void through_cat(weft_node *w, uint64_t total, uint64_t ring)
{
    static uint8_t in[1 << 16], out[1 << 16];
    weft_spawn_spec spec = SPEC(.program = "cat", .flags = WEFT_SPAWN_STDIN | WEFT_SPAWN_STDOUT, .stdout_ring = ring);
    weft_process *p;
    weft_exit e;
    uint64_t put = 0, got = 0;
    OK(weft_spawn(w, 0, &spec, &p, WEFT_TIMEOUT_DEFAULT));
    while (got < total) {
        size_t n = total - put < sizeof in ? (size_t)(total - put) : sizeof in, done = 0;
        for (size_t i = 0; i < n; i++)
            in[i] = byte_at(put + i);
        if (n) {
            int rc = weft_process_write(p, in, n, &done, 0);
            CHECK(rc == 0 || rc == -ETIMEDOUT);
            put += done;
            if (put == total)
                OK(weft_process_end_input(p));
        }
        int rc = weft_process_read(p, 1, out, sizeof out, &n, done ? 0 : WEFT_TIMEOUT_DEFAULT);
        CHECK(rc == 0 || (done && rc == -ETIMEDOUT));
        for (size_t i = 0; i < n; i++)
            CHECK(out[i] == byte_at(got + i));
        got += n;
    }
    size_t n;
    OK(weft_process_read(p, 1, out, sizeof out, &n, WEFT_TIMEOUT_DEFAULT));
    CHECK(n == 0);
    OK(weft_process_wait(p, &e, sizeof e, WEFT_TIMEOUT_DEFAULT));
    CHECK(e.status == 0 && e.signal == 0);
    OK(weft_process_close(p));
}

static void many_bytes(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        uint64_t mib = getenv("WEFT_TEST_LONG") ? 1024 : repeats(64);
        through_cat(w, mib << 20, 0);
        through_cat(w, 3 << 20, 4096);
        through_cat(w, 3 << 20, 1 << 20);
        through_cat(w, 1, 0);
        /* memory as input: in this node's pool, in the server's pool, and an empty one */
        weft_gaddr data;
        const size_t bytes = 1000001;
        OK(weft_alloc(w, bytes, &data));
        uint8_t *p = weft_ptr(w, data, bytes);
        for (size_t i = 0; i < bytes; i++)
            p[i] = byte_at(i);
        char want[64];
        snprintf(want, sizeof want, "%zu\n", bytes);
        weft_exit e;
        CHECK(strcmp(output_of(w, SH("wc -c", .flags = WEFT_SPAWN_STDIN_DATA, .stdin_data = data, .stdin_bytes = bytes), &e), want) == 0);
        CHECK(strcmp(output_of(w, SH("wc -c", .flags = WEFT_SPAWN_STDIN_DATA), &e), "0\n") == 0);
        CHECK(strcmp(output_of(
                         w, SH("head -c 3 >/dev/null; echo well", .flags = WEFT_SPAWN_STDIN_DATA, .stdin_data = data, .stdin_bytes = bytes),
                         &e),
                     "well\n") == 0 &&
              e.status == 0);
        must_fail(w, SH("cat", .flags = WEFT_SPAWN_STDIN_DATA, .stdin_data = weft_gaddr_make(1, 0, 1ull << 43), .stdin_bytes = 8), -EFAULT,
                  "input");
        OK(weft_free(w, data));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_many_bytes(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, many_bytes, NULL, OFFERS), 0);
}

/* Arguments with every byte but zero; 1 MB of environment. */
static void odd_arguments(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        char every[256], *text;
        weft_exit e;
        for (int i = 1; i < 256; i++)
            every[i - 1] = (char)i;
        every[255] = '\0';
        text = output_of(w, SPEC(.program = "printf", .argv = ARGV("printf", "%s|", every, "", "b c")), &e);
        CHECK(memcmp(text, every, 255) == 0 && strcmp(text + 255, "||b c|") == 0);
        enum { VARIABLES = 1000, LENGTH = 1050 };
        static char env[VARIABLES][LENGTH];
        static const char *list[VARIABLES + 1];
        for (int i = 0; i < VARIABLES; i++) {
            memset(env[i], 'x', LENGTH - 1);
            env[i][snprintf(env[i], LENGTH, "VARIABLE_%d=", i)] = 'y';
            list[i] = env[i];
        }
        text = output_of(w, SH("env | grep -c ^VARIABLE_; env | grep ^VARIABLE_ | wc -c", .env = list), &e);
        char want[64];
        snprintf(want, sizeof want, "%d\n%d\n", VARIABLES, VARIABLES * LENGTH);
        CHECK(strcmp(text, want) == 0);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_odd_arguments(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, odd_arguments, NULL, OFFERS), 0);
}

/* A slow reader of one stream does not delay the reader of another. */
static void slow_reader(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        char buf[65536];
        size_t n, got = 0;
        weft_process *slow, *quick;
        weft_spawn_spec spec = SH("head -c 3000000 /dev/zero; echo end >&2", .flags = WEFT_SPAWN_STDOUT | WEFT_SPAWN_STDERR);
        OK(weft_spawn(w, 0, &spec, &slow, WEFT_TIMEOUT_DEFAULT));
        for (int i = 0; i < 3; i++) {
            OK(weft_spawn(w, 0, &spec, &quick, WEFT_TIMEOUT_DEFAULT));
            size_t all = 0;
            do {
                OK(weft_process_read(quick, 1, buf, sizeof buf, &n, WEFT_TIMEOUT_DEFAULT));
                all += n;
            } while (n);
            CHECK(all == 3000000);
            OK(weft_process_close(quick));
        }
        CHECK(weft_process_read(slow, 2, buf, sizeof buf, &n, 50 * WEFT_MS) == -ETIMEDOUT); /* the program has not come to `echo end` yet */
        CHECK(weft_process_wait(slow, NULL, 0, 0) == -ETIMEDOUT);
        do {
            OK(weft_process_read(slow, 1, buf, sizeof buf, &n, WEFT_TIMEOUT_DEFAULT));
            got += n;
        } while (n);
        CHECK(got == 3000000);
        CHECK(read_all(slow, 2, buf, sizeof buf) == 4 && strcmp(buf, "end\n") == 0);
        OK(weft_process_close(slow));
        /* reads and waits as operations */
        weft_op ops[3];
        OK(weft_spawn_start(w, 0, &spec, &slow, &ops[0]));
        OK(weft_process_wait_start(slow, &ops[1]));
        OK(weft_process_read_start(slow, 2, buf, sizeof buf, &got, &ops[2]));
        CHECK(weft_process_read(slow, 2, buf, 1, &n, 0) == -EBUSY);
        OK(weft_wait(w, &ops[0], WEFT_TIMEOUT_DEFAULT));
        CHECK(weft_test(w, &ops[1]) == -EINPROGRESS && weft_test(w, &ops[2]) == -EINPROGRESS);
        do
            OK(weft_process_read(slow, 1, buf + 8, sizeof buf - 8, &n, WEFT_TIMEOUT_DEFAULT));
        while (n);
        OK(weft_wait(w, &ops[2], WEFT_TIMEOUT_DEFAULT));
        CHECK(got == 4 && memcmp(buf, "end\n", 4) == 0);
        OK(weft_wait(w, &ops[1], WEFT_TIMEOUT_DEFAULT));
        OK(weft_process_close(slow));
        /* a reader that closes the process ends it, and does not affect this node */
        OK(weft_spawn(w, 0, &SH("yes", .flags = WEFT_SPAWN_STDOUT), &slow, WEFT_TIMEOUT_DEFAULT));
        OK(weft_process_read(slow, 1, buf, sizeof buf, &n, WEFT_TIMEOUT_DEFAULT));
        OK(weft_process_close(slow));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_slow_reader(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, slow_reader, NULL, OFFERS), 0);
}

/* --- ends --- */

/* Whether a process is running. A zombie, which stays if its parent has ended as well, is not. */
static bool runs(pid_t pid)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    const char *state = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (f)
        fclose(f);
    return kill(pid, 0) == 0 && !(state && (strncmp(state, ") Z", 3) == 0 || strncmp(state, ") X", 3) == 0));
}

static void must_end(pid_t pid)
{
    for (int64_t end = now_ns() + patience_ns(20); runs(pid);) {
        CHECK(now_ns() < end);
        usleep(2000);
    }
}

/* Starts a shell that ignores SIGTERM, with `sleep` in the background, and gets both process IDs. */
static weft_process *stubborn(weft_node *w, pid_t pids[2], uint32_t flags)
{
    char text[64];
    weft_process *p;
    weft_spawn_spec spec = SH("trap '' TERM; sleep 1000 & echo $! $$; wait", .flags = WEFT_SPAWN_STDOUT | flags);
    OK(weft_spawn(w, 0, &spec, &p, WEFT_TIMEOUT_DEFAULT));
    size_t n = 0, got;
    do {
        OK(weft_process_read(p, 1, text + n, sizeof text - 1 - n, &got, WEFT_TIMEOUT_DEFAULT));
        n += got;
        text[n] = '\0';
    } while (!strchr(text, '\n'));
    CHECK(sscanf(text, "%d %d", &pids[0], &pids[1]) == 2);
    CHECK(runs(pids[0]) && runs(pids[1]));
    return p;
}

struct ends {
    _Atomic uint32_t ready, over, met;
    pid_t pids[8];
};

static void ends(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        pid_t pids[2];
        weft_exit e;
        weft_process *p = stubborn(w, pids, 0);
        CHECK(weft_process_wait(p, &e, sizeof e, 0) == -ETIMEDOUT);
        OK(weft_process_signal(p, SIGTERM, WEFT_TIMEOUT_DEFAULT)); /* ignored */
        CHECK(weft_process_wait(p, &e, sizeof e, 50 * WEFT_MS) == -ETIMEDOUT);
        OK(weft_process_signal(p, SIGKILL, WEFT_TIMEOUT_DEFAULT));
        OK(weft_process_wait(p, &e, sizeof e, WEFT_TIMEOUT_DEFAULT));
        CHECK(e.signal == SIGKILL);
        must_end(pids[0]);
        OK(weft_process_close(p));
        p = stubborn(w, pids, 0);
        OK(weft_process_close(p));
        must_end(pids[0]);
        must_end(pids[1]);
        /* a child that outlives its program ends with the program's group */
        CHECK(sscanf(output_of(w, SH("sleep 1000 & echo $!"), &e), "%d", &pids[0]) == 1);
        must_end(pids[0]);
        /* a detached program outlives its handle */
        p = stubborn(w, pids, WEFT_SPAWN_DETACHED);
        OK(weft_process_close(p));
        usleep(50000);
        CHECK(runs(pids[0]) && runs(pids[1]));
        kill(-pids[1], SIGKILL);
        must_end(pids[0]);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_ends(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, ends, NULL, OFFERS), 0);
}

/* Node 1 is killed: the programs that it has started end, except detached ones. */
static void asker_killed(weft_node *w, void *arg)
{
    struct ends *t = arg;
    weft_name n;
    if (weft_rank(w) == 1) {
        weft_gaddr a;
        OK(weft_alloc(w, 64, &a));
        OK(weft_name_publish(w, 0, "mine", a, 64, WEFT_TIMEOUT_DEFAULT));
        stubborn(w, &t->pids[0], 0);
        stubborn(w, &t->pids[2], WEFT_SPAWN_DETACHED);
        weft_process *p;
        OK(weft_spawn(w, 0, &SH("yes", .flags = WEFT_SPAWN_STDOUT), &p, WEFT_TIMEOUT_DEFAULT)); /* this one has filled its ring */
        t->pids[4] = (pid_t)weft_process_pid(p);
        atomic_store(&t->ready, 1);
        wait_for(&t->over, 2);
        kill(getpid(), SIGKILL);
    }
    wait_for(&t->ready, 1);
    OK(weft_name_lookup(w, 0, "mine", &n, WEFT_TIMEOUT_DEFAULT));
    CHECK(n.owner == 1 && n.bytes == 64 && strcmp(n.name, "mine") == 0);
    atomic_fetch_add(&t->over, 1);
    must_end(t->pids[0]);
    must_end(t->pids[1]);
    must_end(t->pids[4]);
    int rc;
    while (!(rc = weft_name_lookup(w, 0, "mine", &n, WEFT_TIMEOUT_DEFAULT)))
        usleep(1000);
    CHECK(rc == -ENOENT);
    CHECK(runs(t->pids[2]) && runs(t->pids[3]));
    /* other askers are not affected */
    CHECK(strcmp(output_of(w, SH("echo on"), NULL), "on\n") == 0);
    meet(&t->met, 2);
}

static void test_asker_killed(void **state)
{
    (void)state;
    struct ends *t = shared_words(sizeof *t);
    int status[NODES_MAX];
    nodes_run(3, asker_killed, t, OFFERS_AND_QUIET, status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[2], 0);
    must_end(t->pids[2]); /* it ends with the server */
    must_end(t->pids[3]);
}

/* Node 0 is killed: calls that wait for it fail, and the programs that it ran end. */
static void server_killed(weft_node *w, void *arg)
{
    struct ends *t = arg;
    if (weft_rank(w) == 0) {
        wait_for(&t->ready, 1);
        kill(getpid(), SIGKILL);
    }
    weft_process *p = stubborn(w, &t->pids[0], 0), *late;
    weft_op wait, name, read;
    weft_name n;
    char buf[8];
    size_t got;
    OK(weft_name_lookup_start(w, 0, "nobody publishes this", true, &n, WEFT_TIMEOUT_DEFAULT, &name));
    OK(weft_process_wait_start(p, &wait));
    OK(weft_process_read_start(p, 1, buf, sizeof buf, &got, &read));
    atomic_store(&t->ready, 1);
    CHECK(weft_wait(w, &wait, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    CHECK(weft_wait(w, &name, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    CHECK(weft_wait(w, &read, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    CHECK(weft_process_wait(p, NULL, 0, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    CHECK(weft_process_signal(p, SIGTERM, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    CHECK(weft_spawn(w, 0, &SH("true"), &late, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    CHECK(weft_name_withdraw(w, 0, "x", WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    OK(weft_process_close(p));
    must_end(t->pids[0]);
    must_end(t->pids[1]);
}

static void test_server_killed(void **state)
{
    (void)state;
    struct ends *t = shared_words(sizeof *t);
    int status[NODES_MAX];
    nodes_run(2, server_killed, t, OFFERS_AND_QUIET, status);
    assert_int_equal(status[1], 0);
}

/* More programs than a node runs at a time. */
static void many_spawns(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        uint32_t many = getenv("WEFT_TEST_LONG") ? 10000 : 300;
        weft_op *ops = calloc(many, sizeof *ops);
        weft_process **p = calloc(many, sizeof *p);
        for (uint32_t i = 0; i < many; i++)
            OK(weft_spawn_start(w, 0, &SPEC(.program = "true"), &p[i], &ops[i]));
        CHECK(weft_request_cancel(w, &ops[many - 1]) == 0 || weft_test(w, &ops[many - 1]) == 0);
        for (uint32_t i = 0; i < many - 1; i++) {
            weft_exit e;
            OK(weft_wait(w, &ops[i], 600 * WEFT_SECOND));
            OK(weft_process_wait(p[i], &e, sizeof e, WEFT_TIMEOUT_DEFAULT));
            CHECK(e.status == 0 && e.signal == 0);
        }
        for (uint32_t i = 0; i < many; i++)
            OK(weft_process_close(p[i]));
        free(ops);
        free(p);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_many_spawns(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, many_spawns, NULL, (const char *const[]){"WEFT_SERVE=process", "WEFT_DEADLINE=120s", NULL}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_basics),        cmocka_unit_test(test_none_offers),   cmocka_unit_test(test_many_bytes),
        cmocka_unit_test(test_odd_arguments), cmocka_unit_test(test_slow_reader),   cmocka_unit_test(test_ends),
        cmocka_unit_test(test_asker_killed),  cmocka_unit_test(test_server_killed), cmocka_unit_test(test_many_spawns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
