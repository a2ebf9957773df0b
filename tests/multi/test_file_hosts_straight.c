/* SPDX-License-Identifier: MIT
 *
 * Large reads of a file of another host, whose pieces go straight to the buffer of the call: that they need no copies, and that nothing
 * writes to the buffer after the call, however it ends.
 */
#include "file_hosts_test.h"

#include <errno.h>
#include <signal.h>

#define SPARE 4096u /* bytes around what is read, which must stay as they are */

static uint8_t outside[BYTES + 2 * SPARE];

static bool all_are(const uint8_t *bytes, uint8_t value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

static uint64_t copies_bytes(weft_node *w)
{
    weft_pool_stats s;
    OK(weft_pool_stat(w, &s, sizeof s));
    return s.file_bytes;
}

/* --- without copies --- */

static void read_around(weft_file *f, uint8_t *buffer, uint64_t from, size_t len)
{
    size_t n;
    memset(buffer, 0xab, len + 2 * SPARE);
    OK(weft_file_read(f, buffer + SPARE, len, from, &n, DEFAULT_TIME));
    CHECK(n == len && all_are(buffer, 0xab, SPARE) && all_are(buffer + SPARE + len, 0xab, SPARE));
    uint64_t word = from / 8 * 8; /* right() begins at a word */
    CHECK(from == word && right(buffer + SPARE, SEED, from, n));
}

static void straight(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        weft_file *f;
        weft_gaddr at;
        OK(weft_alloc(w, sizeof outside, &at));
        uint8_t *inside = weft_ptr(w, at, sizeof outside);
        OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
        CHECK(f->far);
        read_around(f, inside, 0, BYTES);
        CHECK(copies_bytes(w) == 0);
        read_around(f, outside, 0, BYTES);
        CHECK((copies_bytes(w) == 0) == fab_direct(w, 0, outside, PIECE));
        read_around(f, inside, PIECE / 2, BYTES - PIECE); /* its first and last bytes are parts of pieces */
        read_around(f, outside, PIECE / 2, BYTES - PIECE);
        for (uint64_t i = 0; i + 3 <= PIECES; i += 3) { /* what one call gets in advance is copied by the next one */
            read_around(f, outside, i * PIECE, 3 * PIECE);
            read_around(f, inside, i * PIECE, 2 * PIECE);
        }
        OK(weft_file_close(f));
        OK(weft_free(w, at));
        wait_for_no_copies(w);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_straight(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, straight, NULL, HOSTS), 0);
}

/* Several nodes read it: each has copies for the others all the same. */
static void shared(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    be_patient(w);
    if (weft_rank(w) == 0) {
        wait_for(&b->done, 2);
        b->given = cache_of(w).given_bytes;
    } else {
        weft_file *f = open_together(w, b);
        read_around(f, outside, 0, BYTES);
        CHECK(copies_bytes(w) > 0);
        atomic_fetch_add(&b->done, 1);
        wait_for(&b->done, 2);
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_shared(void **state)
{
    (void)state;
    struct hosts_board *b = shared_words(sizeof *b);
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(3, shared, b, HOSTS), 0);
    assert_true(b->given < 2 * BYTES);
}

/* --- the call ends early --- */

/* The call has ended, and nothing is under way any more. */
static void check_quiet(void)
{
    memset(outside, 0xcd, sizeof outside);
    usleep(100000);
    CHECK(all_are(outside, 0xcd, sizeof outside));
}

/* The file changes while it is read: what was read is of one generation, and the bytes of other pieces no longer come. */
static void changes(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    if (weft_rank(w) == 0) {
        for (uint32_t i = 1; !atomic_load(&b->done); i++) {
            usleep(30000);
            write_file(in_folder("file"), SEED + i, BYTES, 0);
        }
    } else {
        for (unsigned stale = 0, tries = 0; stale < 3 && tries < 200; tries++) {
            weft_file *f;
            size_t n = 0;
            OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
            int rc = weft_file_read(f, outside, BYTES, 0, &n, DEFAULT_TIME);
            CHECK((rc == 0 && n == BYTES) || (rc == -ESTALE && n < BYTES));
            stale += rc == -ESTALE;
            check_quiet();
            OK(weft_file_close(f));
        }
        atomic_store(&b->done, 1);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_changes(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, changes, shared_words(sizeof(struct hosts_board)), HOSTS), 0);
}

/* The gateway stops. The call ends at its deadline, and after weft_flush() the buffer is the program's again. */
static void stops(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    if (weft_rank(w) == 0) {
        atomic_store(&b->pid, (uint32_t)getpid());
        wait_for(&b->done, 1);
        return;
    }
    weft_file *f;
    size_t n;
    wait_for(&b->pid, 1);
    OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
    read_pieces(f, 0, 2);
    stop_asleep((pid_t)atomic_load(&b->pid));
    int rc = weft_file_read(f, outside, BYTES, 0, &n, 300 * WEFT_MS);
    CHECK(rc == -ETIMEDOUT || (rc == 0 && !getenv("TEST_NAMESPACES"))); /* an RDMA device needs no process there, once there is a lease */
    CHECK(kill((pid_t)atomic_load(&b->pid), SIGCONT) == 0);
    OK(weft_flush(w, 0, patience_ns(30)));
    check_quiet();
    read_around(f, outside, 0, BYTES);
    OK(weft_file_close(f));
    wait_for_no_copies(w);
    atomic_store(&b->done, 1);
}

static void test_stops(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, stops, shared_words(sizeof(struct hosts_board)), HOSTS), 0);
}

static void dies(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    if (weft_rank(w) == 0) {
        atomic_store(&b->pid, (uint32_t)getpid());
        wait_for(&b->done, 1);
        return;
    }
    weft_file *f;
    size_t n;
    weft_op op;
    wait_for(&b->pid, 1);
    OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
    read_pieces(f, 0, 2);
    OK(weft_file_read_start(f, outside, BYTES, 0, &n, &op));
    bool gets = false;
    while (!gets && weft_test(w, &op) == -EINPROGRESS)
        for (unsigned i = 0; i < FILE_SLOTS; i++)
            gets = gets || file_slot_state(&f->reads.slot[i]) == SLOT_GETS;
    CHECK(kill((pid_t)atomic_load(&b->pid), SIGKILL) == 0);
    int rc = weft_wait(w, &op, patience_ns(30));
    CHECK(rc == -ECONNRESET || rc == 0);
    CHECK(right(outside, SEED, 0, n));
    check_quiet();
    OK(weft_file_close(f));
}

static void test_dies(void **state)
{
    (void)state;
    int status[NODES_MAX];
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    nodes_run(2, dies, shared_words(sizeof(struct hosts_board)), HOSTS, status);
    assert_true(WIFSIGNALED(status[0]) && status[1] == 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {TEST(test_straight), TEST(test_shared), TEST(test_changes), TEST(test_stops), TEST(test_dies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
