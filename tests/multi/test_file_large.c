/* SPDX-License-Identifier: MIT
 *
 * A large file, read by four nodes at the same time. Node 0 is the gateway.
 *
 * The file has 128 MiB; with WEFT_TEST_LONG it has 4 GiB, which takes about a minute. It is sparse: each piece has its number and
 * version at both of its ends, so the disk need not have room for it, but the gateway reads all of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "file_test.h"

#define READERS 4u
#define STRIDE  (8 * PIECE) /* the readers wait for each other after this many bytes, because the cache is smaller than the file */
static const char *const LARGE[] = {"WEFT_SERVE=file", "WEFT_POOL=128M", "WEFT_FILE_CACHE=64M", "WEFT_LOG=error", NULL};

struct mark {
    uint64_t version, piece;
};

static uint64_t large_bytes(void)
{
    return getenv("WEFT_TEST_LONG") ? UINT64_C(4) << 30 : UINT64_C(128) << 20;
}

static void large_write(const char *path, uint64_t version, int flags)
{
    int fd = open(path, O_RDWR | O_CREAT | flags, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)large_bytes()) == 0);
    for (uint64_t i = 0; i < large_bytes() / PIECE; i++) {
        struct mark m = {version, i};
        CHECK(pwrite(fd, &m, sizeof m, (off_t)(i * PIECE)) == sizeof m);
        CHECK(pwrite(fd, &m, sizeof m, (off_t)((i + 1) * PIECE - sizeof m)) == sizeof m);
    }
    close(fd);
}

static bool large_right(const uint8_t *piece, uint64_t version, uint64_t i)
{
    struct mark want = {version, i};
    return memcmp(piece, &want, sizeof want) == 0 && memcmp(piece + PIECE - sizeof want, &want, sizeof want) == 0;
}

struct large_board {
    _Atomic uint32_t turn, at, changed, stale, old;
};

/* Reads on until the end, or until the file has changed. */
static int large_read(weft_file *f, struct large_board *b, uint64_t from, uint64_t version)
{
    static uint8_t piece[WEFT_FILE_PIECE];
    int rc = 0;
    size_t n;
    for (uint64_t at = from; !rc && at < large_bytes(); at += PIECE) {
        if (b && at % STRIDE == 0) {
            atomic_fetch_add(&b->turn, 1);
            wait_for(&b->turn, (uint32_t)(at / STRIDE + 1) * READERS);
        }
        rc = weft_file_read(f, piece, PIECE, at, &n, DEFAULT_TIME);
        CHECK(rc || (n == PIECE && large_right(piece, version, at / PIECE)));
        CHECK(!rc || (rc == -ESTALE && n == 0));
    }
    return rc;
}

/* The disk is read once, and each byte is right at each of the four nodes. */
static void large_once(weft_node *w, struct large_board *b)
{
    weft_file *f;
    uint64_t before = read_so_far(getpid());
    OK(weft_barrier(w, DEFAULT_TIME));
    if (weft_rank(w) != 0) {
        OK(weft_file_open(w, 0, in_folder("large"), 0, &f, DEFAULT_TIME));
        CHECK(large_read(f, b, 0, 1) == 0);
        weft_file_cache c = cache_of(w);
        CHECK(c.disk_bytes == large_bytes() && c.disk_reads == large_bytes() / PIECE);
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
#if defined(__linux__)
    uint64_t count = read_so_far(getpid()) - before;
    CHECK(weft_rank(w) != 0 || (count >= large_bytes() && count < large_bytes() + large_bytes() / 8));
#else
    (void)before;
#endif
}

enum large_change { REWRITTEN, RENAMED_OVER, TRUNCATED, DELETED, LARGE_CHANGES };

static void large_change(enum large_change how)
{
    switch (how) {
    case REWRITTEN: large_write(in_folder("large"), 2, 0); break;
    case RENAMED_OVER:
        large_write(in_folder("other"), 2, 0);
        CHECK(rename(in_folder("other"), in_folder("large")) == 0);
        break;
    case TRUNCATED: CHECK(truncate(in_folder("large"), (off_t)(large_bytes() / 2)) == 0); break;
    default: CHECK(unlink(in_folder("large")) == 0);
    }
}

/* The file changes when all nodes have read a quarter of it. */
static void large_changes(weft_node *w, struct large_board *b, enum large_change how)
{
    static uint8_t piece[WEFT_FILE_PIECE];
    weft_file *f;
    size_t n;
    if (weft_rank(w) == 0) {
        wait_for(&b->at, READERS);
        large_change(how);
        atomic_store(&b->changed, 1);
        return;
    }
    OK(weft_file_open(w, 0, in_folder("large"), 0, &f, DEFAULT_TIME));
    for (uint64_t at = 0; at < large_bytes() / 4; at += PIECE) {
        OK(weft_file_read(f, piece, PIECE, at, &n, DEFAULT_TIME));
        CHECK(large_right(piece, 1, at / PIECE));
    }
    atomic_fetch_add(&b->at, 1);
    int rc = large_read(f, NULL, large_bytes() / 4, 1); /* while it changes */
    if (!rc) {
        wait_for(&b->changed, 1);
        rc = large_read(f, NULL, 0, 1);
    }
    atomic_fetch_add(rc ? &b->stale : &b->old, 1);
    OK(weft_file_close(f));
    wait_for(&b->changed, 1);
    rc = weft_file_open(w, 0, in_folder("large"), 0, &f, DEFAULT_TIME);
    CHECK(rc == (how == DELETED ? -ENOENT : 0));
    if (rc)
        return;
    CHECK(weft_file_size(f) == (how == TRUNCATED ? large_bytes() / 2 : large_bytes()));
    OK(weft_file_read(f, piece, PIECE, PIECE, &n, DEFAULT_TIME));
    CHECK(n == PIECE && large_right(piece, how == TRUNCATED ? 1 : 2, 1));
    OK(weft_file_close(f));
}

static void large(weft_node *w, void *arg)
{
    struct large_board *b = arg;
    if (weft_rank(w) == 0)
        large_write(in_folder("large"), 1, O_TRUNC);
    large_once(w, b++);
    for (enum large_change how = 0; how < LARGE_CHANGES; how++, b++) {
        if (weft_rank(w) == 0)
            large_write(in_folder("large"), 1, O_TRUNC);
        OK(weft_barrier(w, DEFAULT_TIME));
        large_changes(w, b, how);
        OK(weft_barrier(w, DEFAULT_TIME));
    }
}

static void test_large(void **state)
{
    (void)state;
    struct large_board *b = shared_words((1 + LARGE_CHANGES) * sizeof *b);
    assert_int_equal(nodes_failed_with(1 + READERS, large, b, LARGE), 0);
    for (enum large_change how = 0; how < LARGE_CHANGES; how++)
        assert_int_equal(how == REWRITTEN || how == TRUNCATED ? b[1 + how].stale : b[1 + how].old, READERS);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {TEST(test_large)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
