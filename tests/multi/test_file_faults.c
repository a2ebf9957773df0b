/* SPDX-License-Identifier: MIT
 *
 * The file service when something fails: a full disk, the death of an asker or the gateway, a gateway that does not answer. Node 0 is the
 * gateway, the others are the askers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "file_test.h"

static const char *const OPEN[] = {"WEFT_SERVE=file", "WEFT_POOL=64M", "WEFT_LOG=error", NULL};
static const char *const SMALL[] = {"WEFT_SERVE=file", "WEFT_POOL=64M", "WEFT_FILE_CACHE=4M", "WEFT_LOG=error", NULL};

/* Files of the gateway may not become larger than 2.5 MiB, so a write is cut short, as by a full disk. */
static void full(weft_node *w, void *arg)
{
    (void)arg;
    static uint8_t some[3 << 20], back[3 << 20];
    const uint64_t most = 5 * PIECE / 2;
    if (weft_rank(w) == 0) {
        CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){most, most}) == 0);
        OK(weft_barrier(w, DEFAULT_TIME));
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    weft_file *f, *reader;
    size_t n;
    OK(weft_barrier(w, DEFAULT_TIME));
    OK(weft_file_open(w, 0, in_folder("full"), WEFT_FILE_WRITE, &f, DEFAULT_TIME));
    OK(weft_file_open(w, 0, in_folder("full"), 0, &reader, DEFAULT_TIME));
    OK(weft_file_read(reader, back, 10, 0, &n, DEFAULT_TIME));
    fill(some, 45, 0, sizeof some);
    CHECK(weft_file_write(f, some, sizeof some, 0, &n, DEFAULT_TIME) == -EFBIG && n == most && strstr(weft_error(), "File too large"));
    CHECK(weft_file_stat(reader, NULL, 0, DEFAULT_TIME) == -ESTALE);
    CHECK(weft_file_size(f) == most);
    OK(weft_file_read(f, back, sizeof back, 0, &n, DEFAULT_TIME));
    CHECK(n == most && right(back, 45, 0, n));
    OK(weft_file_close(f));
    OK(weft_file_close(reader));
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_full(void **state)
{
    (void)state;
    write_file(in_folder("full"), 44, 5000, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, full, NULL, OPEN), 0);
}

/* --- deaths --- */

struct death_board {
    _Atomic uint32_t mapped, dead;
    _Atomic uint32_t asked;
};

/* Node 1 maps half of the cache and dies: then another node can map half of it. */
static void asker_dies(weft_node *w, void *arg)
{
    struct death_board *b = arg;
    weft_file *f;
    weft_file_view v[2];
    bool here = stats(w, 0).transport[0] == 's'; /* on another host the view is a copy, so nothing is mapped at the gateway */
    if (weft_rank(w) == 0) {
        wait_for(&b->dead, 1);
        return;
    }
    if (weft_rank(w) == 2) {
        wait_for(&b->mapped, 1);
        OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
        int64_t deadline = now_ns() + patience_ns(10);
        while (cache_of(w).mapped_bytes || cache_of(w).readers != 1)
            CHECK(now_ns() < deadline);
        OK(weft_file_map(f, 3 * PIECE, &v[0], DEFAULT_TIME));
        OK(weft_file_map(f, 2 * PIECE, &v[1], DEFAULT_TIME));
        CHECK(right(v[0].at, 50, 3 * PIECE, PIECE) && right(v[1].at, 50, 2 * PIECE, PIECE));
        OK(weft_file_close(f));
        atomic_store(&b->dead, 1);
        return;
    }
    OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
    OK(weft_file_map(f, 0, &v[0], DEFAULT_TIME));
    OK(weft_file_map(f, PIECE, &v[1], DEFAULT_TIME));
    CHECK(cache_of(w).mapped_bytes == (here ? 2 * PIECE : 0));
    atomic_store(&b->mapped, 1);
    kill(getpid(), SIGKILL);
}

/* The gateway dies while a node reads: the call fails at once, and mapped bytes stay readable. */
static void gateway_dies(weft_node *w, void *arg)
{
    struct death_board *b = arg;
    static uint8_t some[1 << 20];
    weft_file *f, *other;
    weft_file_view v;
    size_t n;
    if (weft_rank(w) == 0) {
        wait_for(&b->asked, 20);
        kill(getpid(), SIGKILL);
    }
    OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
    OK(weft_file_map(f, 5, &v, DEFAULT_TIME));
    int rc = 0;
    int64_t deadline = now_ns() + patience_ns(10);
    for (uint64_t i = 0; !rc; i++) {
        rc = weft_file_read(f, some, sizeof some, i % 8 * PIECE, &n, 60 * WEFT_SECOND);
        CHECK(right(some, 50, i % 8 * PIECE, n));
        atomic_fetch_add(&b->asked, 1);
    }
    CHECK(rc == -ECONNRESET && now_ns() < deadline);
    CHECK(weft_file_open(w, 0, in_folder("file"), 0, &other, DEFAULT_TIME) == -ECONNRESET && !other);
    CHECK(weft_file_stat(f, NULL, 0, DEFAULT_TIME) == -ECONNRESET);
    CHECK(right(v.at, 50, 5, v.bytes));
    weft_file_unmap(f, &v);
    OK(weft_file_close(f));
}

static void test_deaths(void **state)
{
    (void)state;
    int status[NODES_MAX];
    struct death_board *b = shared_words(sizeof *b);
    write_file(in_folder("file"), 50, 8 * PIECE, O_TRUNC);
    nodes_run(3, asker_dies, b, SMALL, status);
    assert_true(WIFSIGNALED(status[1]));
    assert_int_equal(status[0], 0);
    assert_int_equal(status[2], 0);
    b = shared_words(sizeof *b);
    nodes_run(2, gateway_dies, b, SMALL, status);
    assert_true(WIFSIGNALED(status[0]));
    assert_int_equal(status[1], 0);
}

/* --- a gateway that does not answer --- */

static void stopped(weft_node *w, void *arg)
{
    _Atomic uint32_t *words = arg;
    static uint8_t some[1 << 20];
    weft_file *f, *late;
    weft_file_view v;
    size_t n;
    if (weft_rank(w) == 0) {
        atomic_store(&words[1], (uint32_t)getpid());
        wait_for(&words[0], 1);
        return;
    }
    wait_for(&words[1], 1);
    OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
    OK(weft_file_read(f, some, 10, 0, &n, DEFAULT_TIME));
    stop_asleep((pid_t)atomic_load(&words[1]));
    CHECK(weft_file_open(w, 0, in_folder("file"), 0, &late, 50 * WEFT_MS) == -ETIMEDOUT && !late);
    CHECK(weft_file_read(f, some, 10, 3 * PIECE, &n, 50 * WEFT_MS) == -ETIMEDOUT && strstr(weft_error(), "no answer before the deadline"));
    CHECK(weft_file_map(f, 0, &v, 50 * WEFT_MS) == -ETIMEDOUT && !v.at);
    CHECK(kill((pid_t)atomic_load(&words[1]), SIGCONT) == 0);
    OK(weft_file_read(f, some, 10, 3 * PIECE, &n, DEFAULT_TIME));
    CHECK(n == 10 && right(some, 50, 3 * PIECE, n));
    int64_t deadline = now_ns() + patience_ns(10);
    while (cache_of(w).readers != 1 || cache_of(w).mapped_bytes) /* handles and leases of cancelled requests are freed */
        CHECK(now_ns() < deadline);
    OK(weft_file_close(f));
    while (cache_of(w).readers)
        CHECK(now_ns() < deadline);
    atomic_store(&words[0], 1);
}

static void test_stopped(void **state)
{
    (void)state;
    write_file(in_folder("file"), 50, 8 * PIECE, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, stopped, shared_words(64), OPEN), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {TEST(test_full), TEST(test_deaths), TEST(test_stopped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
