/* SPDX-License-Identifier: MIT
 *
 * The file service. Node 0 is the gateway, the others are the askers. The files are in a folder of the test's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "file_test.h"

static const char *const OPEN[] = {"WEFT_SERVE=file", "WEFT_POOL=64M", "WEFT_LOG=error", NULL};
static const char *const SMALL[] = {"WEFT_SERVE=file", "WEFT_POOL=64M", "WEFT_FILE_CACHE=4M", "WEFT_LOG=error", NULL};

/* --- the tests --- */

static void basics(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    uint32_t node;
    weft_file *f;
    weft_file_view v, other;
    weft_file_info info;
    struct stat st;
    size_t n;
    const uint64_t bytes = 3 * PIECE + 12345;
    uint8_t *all = malloc(bytes);
    CHECK(all);
    OK(weft_service_find(w, WEFT_SERVICE_FILE, &node, DEFAULT_TIME));
    OK(weft_file_open(w, 0, in_folder("big"), 0, &f, DEFAULT_TIME));
    CHECK(weft_file_size(f) == bytes && weft_file_node(f) == 0);
    OK(weft_file_read(f, all, bytes, 0, &n, DEFAULT_TIME));
    CHECK(n == bytes && right(all, 1, 0, bytes));
    OK(weft_file_read(f, all, 100, bytes - 10, &n, DEFAULT_TIME));
    CHECK(n == 10 && right(all, 1, bytes - 10, 10));
    OK(weft_file_read(f, all, 100, bytes, &n, DEFAULT_TIME));
    CHECK(n == 0);
    OK(weft_file_read(f, all, 100, UINT64_MAX, &n, DEFAULT_TIME));
    CHECK(n == 0);
    OK(weft_file_read(f, all, 2 * 4096, PIECE - 4096, &n, DEFAULT_TIME));
    CHECK(n == 2 * 4096 && right(all, 1, PIECE - 4096, n));
    for (unsigned i = 0; i < 50; i++) { /* at random offsets */
        uint64_t seed = i, at = random_next(&seed) % bytes, len = random_next(&seed) % (2 * PIECE);
        OK(weft_file_read(f, all, len, at, &n, DEFAULT_TIME));
        CHECK(n == (len < bytes - at ? len : bytes - at) && right(all, 1, at, n));
    }
    /* Mapped. */
    OK(weft_file_map(f, PIECE + 7, &v, DEFAULT_TIME));
    CHECK(v.bytes == PIECE - 7 && right(v.at, 1, PIECE + 7, v.bytes));
    OK(weft_file_map(f, bytes - 1, &other, DEFAULT_TIME));
    CHECK(other.bytes == 1 && right(other.at, 1, bytes - 1, 1));
    weft_file_unmap(f, &v);
    CHECK(!v.at && weft_file_map(f, bytes, &v, DEFAULT_TIME) == -EINVAL && strstr(weft_error(), "cannot be mapped"));
    /* The handle's information must equal that of stat(). */
    CHECK(stat(in_folder("big"), &st) == 0);
    OK(weft_file_stat(f, &info, sizeof info, DEFAULT_TIME));
    CHECK(info.bytes == bytes && info.inode == st.st_ino && info.modified_ns / WEFT_SECOND == st.st_mtime && info.generation);
    OK(weft_file_close(f)); /* while a piece is mapped */
    OK(weft_file_close(NULL));
    /* An empty file, and a small one. */
    OK(weft_file_open(w, 0, in_folder("empty"), 0, &f, DEFAULT_TIME));
    OK(weft_file_read(f, all, 10, 0, &n, DEFAULT_TIME));
    CHECK(n == 0 && weft_file_size(f) == 0);
    OK(weft_file_close(f));
    OK(weft_file_open(w, 0, in_folder("small"), 0, &f, DEFAULT_TIME));
    OK(weft_file_read(f, all, 10, 0, &n, DEFAULT_TIME));
    CHECK(n == 5 && right(all, 2, 0, 5));
    OK(weft_file_close(f));
    free(all);
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_basics(void **state)
{
    (void)state;
    write_file(in_folder("big"), 1, 3 * PIECE + 12345, O_TRUNC);
    write_file(in_folder("empty"), 1, 0, O_TRUNC);
    write_file(in_folder("small"), 2, 5, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, basics, NULL, OPEN), 0);
}

/* Four nodes read one file at the same time: the disk is read once. */
static void once(weft_node *w, void *arg)
{
    (void)arg;
    const uint64_t bytes = 14 * PIECE + 5;
    static uint8_t some[300000];
    if (weft_rank(w) == 0) {
        uint64_t before = read_so_far(getpid());
        OK(weft_barrier(w, DEFAULT_TIME));
        OK(weft_barrier(w, DEFAULT_TIME));
        uint64_t after = read_so_far(getpid());
#if defined(__linux__)
        CHECK(after - before >= bytes && after - before < bytes + (bytes >> 2)); /* the rest are reads of a few pipes */
#else
        (void)before, (void)after;
#endif
        return;
    }
    weft_file *f;
    size_t n;
    OK(weft_barrier(w, DEFAULT_TIME));
    OK(weft_file_open(w, 0, in_folder("big"), 0, &f, DEFAULT_TIME));
    for (uint64_t at = 0; at < bytes; at += n) {
        OK(weft_file_read(f, some, sizeof some, at, &n, DEFAULT_TIME));
        CHECK(n && right(some, 3, at, n));
    }
    OK(weft_file_close(f));
    weft_file_cache c = cache_of(w);
    CHECK(c.disk_reads == 15 && c.disk_bytes == bytes && c.cached_bytes >= bytes && c.dropped == 0);
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_once(void **state)
{
    (void)state;
    write_file(in_folder("big"), 3, 14 * PIECE + 5, O_TRUNC);
    assert_int_equal(nodes_failed_with(5, once, NULL, OPEN), 0);
}

/* --- changes --- */

enum change { REWRITE, RENAME, TRUNCATE, DELETE, CHANGES };
static const char *const change_name[] = {"rewritten", "renamed over", "truncated", "deleted"};
#define CHANGED_BYTES (12 * PIECE)
struct change_board {
    _Atomic uint32_t open, over;
    _Atomic uint32_t old_reads, stale;
};

/* Readers read the whole file repeatedly while it is changed. They get the old bytes or -ESTALE. A reader that opens the file again gets
 * the new bytes. */
static void change_reader(weft_node *w, struct change_board *b, enum change how)
{
    static uint8_t some[400000];
    weft_file *f;
    size_t n;
    int rc = 0;
    OK(weft_file_open(w, 0, in_folder("changing"), 0, &f, DEFAULT_TIME));
    OK(weft_file_read(f, some, sizeof some, 5 * PIECE, &n, DEFAULT_TIME));
    meet(&b->open, 4);
    bool last = false;
    while (!rc && !last) {
        last = atomic_load(&b->over);
        for (uint64_t at = 0; !rc && at < CHANGED_BYTES; at += n) {
            rc = weft_file_read(f, some, sizeof some, at, &n, DEFAULT_TIME);
            CHECK((rc || n) && right(some, 10, at, n)); /* bytes that were read before an error are right, too */
            atomic_fetch_add(&b->old_reads, rc == 0);
        }
    }
    if (rc) {
        CHECK(rc == -ESTALE && strstr(weft_error(), "has changed since it was opened"));
        atomic_fetch_add(&b->stale, 1);
    }
    wait_for(&b->over, 1);
    rc = weft_file_stat(f, NULL, 0, DEFAULT_TIME);
    CHECK(how == REWRITE || how == TRUNCATE ? rc == -ESTALE : rc == 0); /* the others have another inode */
    OK(weft_file_close(f));
    rc = weft_file_open(w, 0, in_folder("changing"), 0, &f, DEFAULT_TIME);
    if (how == DELETE) {
        CHECK(rc == -ENOENT);
        return;
    }
    OK(rc);
    uint64_t want = how == TRUNCATE ? PIECE / 2 : CHANGED_BYTES;
    CHECK(weft_file_size(f) == want);
    for (uint64_t at = 0; at < want; at += n) {
        OK(weft_file_read(f, some, sizeof some, at, &n, DEFAULT_TIME));
        CHECK(n && right(some, how == TRUNCATE ? 10 : 11, at, n));
    }
    OK(weft_file_close(f));
}

static void change_file(enum change how)
{
    switch (how) {
    case REWRITE: write_file(in_folder("changing"), 11, CHANGED_BYTES, 0); break;
    case RENAME:
        write_file(in_folder("new"), 11, CHANGED_BYTES, O_TRUNC);
        CHECK(rename(in_folder("new"), in_folder("changing")) == 0);
        break;
    case TRUNCATE: CHECK(truncate(in_folder("changing"), PIECE / 2) == 0); break;
    default: CHECK(unlink(in_folder("changing")) == 0);
    }
}

static void changes(weft_node *w, void *arg)
{
    struct change_board *b = arg;
    for (enum change how = 0; how < CHANGES; how++, b++) {
        if (weft_rank(w) == 0)
            write_file(in_folder("changing"), 10, CHANGED_BYTES, O_TRUNC);
        OK(weft_barrier(w, DEFAULT_TIME));
        if (weft_rank(w) == 0) {
            wait_for(&b->open, 4);
            change_file(how);
            atomic_store(&b->over, 1);
        } else {
            change_reader(w, b, how);
        }
        OK(weft_barrier(w, DEFAULT_TIME));
    }
}

static void test_changes(void **state)
{
    (void)state;
    struct change_board *b = shared_words(CHANGES * sizeof *b);
    assert_int_equal(nodes_failed_with(5, changes, b, SMALL), 0); /* a cache that is too small for the file: they read from the disk */
    for (enum change how = 0; how < CHANGES; how++) {
        print_message("%s: %u reads, %u of 4 readers got -ESTALE\n", change_name[how], b[how].old_reads, b[how].stale);
        if (how == REWRITE || how == TRUNCATE)
            assert_int_equal(b[how].stale, 4); /* bytes that were not cached are lost */
        else
            assert_int_equal(b[how].stale, 0); /* the gateway has the old file open */
    }
}

/* A file is cut short while four have a piece of it mapped: all bytes of the piece stay readable, as they were. */
static void cut_short(weft_node *w, void *arg)
{
    struct change_board *b = arg;
    if (weft_rank(w) == 0) {
        wait_for(&b->open, 4);
        CHECK(truncate(in_folder("cut"), 10) == 0);
        atomic_store(&b->over, 1);
    } else {
        weft_file *f;
        weft_file_view v, other;
        OK(weft_file_open(w, 0, in_folder("cut"), 0, &f, DEFAULT_TIME));
        OK(weft_file_map(f, 5 * PIECE, &v, DEFAULT_TIME));
        meet(&b->open, 4);
        wait_for(&b->over, 1);
        CHECK(v.bytes == PIECE && right(v.at, 12, 5 * PIECE, PIECE));
        CHECK(weft_file_map(f, 9 * PIECE, &other, DEFAULT_TIME) == -ESTALE && !other.at); /* a piece that nobody has read */
        CHECK(right(v.at, 12, 5 * PIECE, PIECE));
        weft_file_unmap(f, &v);
        OK(weft_file_close(f));
        OK(weft_file_open(w, 0, in_folder("cut"), 0, &f, DEFAULT_TIME));
        OK(weft_file_map(f, 0, &v, DEFAULT_TIME));
        CHECK(weft_file_size(f) == 10 && v.bytes == 10 && right(v.at, 12, 0, 10));
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_cut_short(void **state)
{
    (void)state;
    write_file(in_folder("cut"), 12, CHANGED_BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(5, cut_short, shared_words(sizeof(struct change_board)), OPEN), 0);
}

/* --- a cache that is smaller than what is read --- */

static void evictions(weft_node *w, void *arg)
{
    (void)arg;
    static uint8_t some[700001];
    if (weft_rank(w) != 0) {
        uint64_t seed = weft_rank(w);
        weft_file *f;
        weft_file_view v;
        size_t n;
        OK(weft_file_open(w, 0, in_folder("large"), 0, &f, DEFAULT_TIME));
        for (uint64_t at = 0; at < 40 * PIECE; at += n) { /* in order */
            OK(weft_file_read(f, some, sizeof some, at, &n, DEFAULT_TIME));
            CHECK(n && right(some, 20, at, n));
        }
        for (uint32_t i = 0; i < repeats(100); i++) { /* at random offsets, also mapped */
            uint64_t at = random_next(&seed) % (40 * PIECE);
            OK(weft_file_read(f, some, 5000, at, &n, DEFAULT_TIME));
            CHECK(right(some, 20, at, n));
            if (i % 8)
                continue;
            int rc = weft_file_map(f, at, &v, DEFAULT_TIME);
            CHECK(rc == 0 || (rc == -ENOBUFS && strstr(weft_error(), "half of the file cache")));
            CHECK(rc || right(v.at, 20, at, v.bytes));
            if (!rc)
                weft_file_unmap(f, &v);
        }
        weft_file_cache c = cache_of(w);
        CHECK(c.limit_bytes == 4 * PIECE && c.cached_bytes <= c.limit_bytes && c.dropped > 30);
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_evictions(void **state)
{
    (void)state;
    write_file(in_folder("large"), 20, 40 * PIECE, O_TRUNC);
    assert_int_equal(nodes_failed_with(5, evictions, NULL, SMALL), 0);
}

/* Returns how many pieces the gateway has read from the disk, after one byte of a piece was read. */
static uint64_t read_piece(weft_node *w, uint64_t i)
{
    weft_file *f;
    char byte;
    size_t n;
    OK(weft_file_open(w, 0, in_folder("large"), 0, &f, DEFAULT_TIME));
    OK(weft_file_read(f, &byte, 1, i * PIECE, &n, DEFAULT_TIME));
    OK(weft_file_close(f));
    return cache_of(w).disk_reads;
}

/* The cache has room for four pieces. The piece that was used least recently is dropped first. */
static void least_recent(weft_node *w, void *arg)
{
    (void)arg;
    /* a node of another host may keep copies, so the gateway does not learn of each use */
    if (weft_rank(w) == 1 && stats(w, 0).transport[0] == 's') {
        static const struct {
            uint64_t piece, reads;
        } step[] = {{0, 1}, {2, 2}, {4, 3},
                    {6, 4}, {0, 4}, {8, 5} /* drops 2 */,
                    {4, 5}, {0, 5}, {2, 6} /* drops 6 */,
                    {8, 6}, {4, 6}, {6, 7} /* drops 0 */,
                    {0, 8}};
        for (unsigned i = 0; i < sizeof step / sizeof step[0]; i++)
            CHECK(read_piece(w, step[i].piece) == step[i].reads);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_least_recent(void **state)
{
    (void)state;
    write_file(in_folder("large"), 20, 10 * PIECE, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, least_recent, NULL, SMALL), 0);
}

/* --- a change that only the cache's readers could notice --- */

static void noticed(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) != 0) {
        static uint8_t some[5000];
        weft_file *f;
        size_t n;
        int rc = 0;
        int64_t deadline = now_ns() + patience_ns(20);
        OK(weft_file_open(w, 0, in_folder("cached"), 0, &f, DEFAULT_TIME));
        for (uint64_t i = 0; i < 12; i++)
            OK(weft_file_read(f, some, sizeof some, i * PIECE, &n, DEFAULT_TIME));
        uint64_t reads = cache_of(w).disk_reads;
        write_file(in_folder("cached"), 26, 12 * PIECE, 0);
        for (uint64_t i = 0; !rc; i++) {
            rc = weft_file_read(f, some, sizeof some, i % 12 * PIECE, &n, DEFAULT_TIME);
            CHECK(right(some, 25, i % 12 * PIECE, n) && now_ns() < deadline);
        }
        CHECK(rc == -ESTALE && cache_of(w).disk_reads == reads);
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_noticed(void **state)
{
    (void)state;
    write_file(in_folder("cached"), 25, 12 * PIECE, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, noticed, NULL, OPEN), 0);
}

/* --- pins --- */

static void pins(weft_node *w, void *arg)
{
    (void)arg;
    static uint8_t some[1 << 20];
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    weft_file *f, *large;
    weft_file_view v[4];
    weft_file_cached one;
    uint64_t next = 0;
    size_t n;
    OK(weft_file_open(w, 0, in_folder("two"), 0, &f, DEFAULT_TIME));
    OK(weft_file_open(w, 0, in_folder("large"), 0, &large, DEFAULT_TIME));
    CHECK(weft_file_pin(large, DEFAULT_TIME) == -ENOBUFS);
    OK(weft_file_pin(f, DEFAULT_TIME));
    OK(weft_file_pin(f, DEFAULT_TIME));
    for (uint64_t at = 0; at < 2 * PIECE; at += n)
        OK(weft_file_read(f, some, sizeof some, at, &n, DEFAULT_TIME));
    OK(weft_file_close(f));
    for (uint64_t at = 0; at < 8 * PIECE; at += n)
        OK(weft_file_read(large, some, sizeof some, at, &n, DEFAULT_TIME));
    uint64_t reads = cache_of(w).disk_reads;
    CHECK(cache_of(w).pinned_bytes == 2 * PIECE);
    OK(weft_file_open(w, 0, in_folder("two"), 0, &f, DEFAULT_TIME));
    for (uint64_t at = 0; at < 2 * PIECE; at += n) {
        OK(weft_file_read(f, some, sizeof some, at, &n, DEFAULT_TIME));
        CHECK(right(some, 30, at, n));
    }
    CHECK(cache_of(w).disk_reads == reads);
    if (stats(w, 0).transport[0] == 's') { /* on the gateway's host, a view points into the gateway's own memory */
        CHECK(weft_file_map(large, 0, &v[0], DEFAULT_TIME) == -ENOBUFS);
    }
    bool found = false;
    do {
        OK(weft_file_list(w, 0, &one, sizeof one, &next, DEFAULT_TIME));
        if (strcmp(one.path, in_folder("two")) == 0) {
            found = true;
            CHECK(one.pinned && !one.stale && one.cached_bytes == 2 * PIECE && one.info.bytes == 2 * PIECE && one.readers == 1);
        }
    } while (next);
    CHECK(found);
    OK(weft_file_unpin(w, 0, in_folder("two"), DEFAULT_TIME));
    CHECK(weft_file_unpin(w, 0, in_folder("two"), DEFAULT_TIME) == -ENOENT && cache_of(w).pinned_bytes == 0);
    if (stats(w, 0).transport[0] == 's') {
        OK(weft_file_map(large, 0, &v[0], DEFAULT_TIME));
        OK(weft_file_map(large, PIECE, &v[1], DEFAULT_TIME));
        CHECK(weft_file_map(large, 2 * PIECE, &v[2], DEFAULT_TIME) == -ENOBUFS && cache_of(w).mapped_bytes == 2 * PIECE);
        weft_file_unmap(large, &v[1]);
        OK(weft_file_map(large, 2 * PIECE, &v[2], DEFAULT_TIME));
        CHECK(right(v[0].at, 31, 0, PIECE) && right(v[2].at, 31, 2 * PIECE, PIECE));
    }
    CHECK(weft_file_pin(f, DEFAULT_TIME) == (stats(w, 0).transport[0] == 's' ? -ENOBUFS : 0));
    OK(weft_file_close(large)); /* while pieces are mapped */
    OK(weft_file_pin(f, DEFAULT_TIME));
    OK(weft_file_close(f));
    /* A pin ends when the file changes, or when another one has its name. */
    write_file(in_folder("two"), 32, 2 * PIECE, 0);
    OK(weft_file_open(w, 0, in_folder("two"), 0, &f, DEFAULT_TIME));
    CHECK(cache_of(w).pinned_bytes == 0);
    OK(weft_file_pin(f, DEFAULT_TIME));
    OK(weft_file_close(f));
    write_file(in_folder("three"), 33, PIECE, O_TRUNC);
    CHECK(rename(in_folder("three"), in_folder("two")) == 0);
    OK(weft_file_open(w, 0, in_folder("two"), 0, &f, DEFAULT_TIME));
    CHECK(cache_of(w).pinned_bytes == 0);
    OK(weft_file_close(f));
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_pins(void **state)
{
    (void)state;
    write_file(in_folder("two"), 30, 2 * PIECE, O_TRUNC);
    write_file(in_folder("large"), 31, 8 * PIECE, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, pins, NULL, SMALL), 0);
}

/* --- writing --- */

static void writes(weft_node *w, void *arg)
{
    (void)arg;
    static uint8_t some[3 << 20], back[3 << 20];
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    weft_file *f, *reader;
    size_t n, put;
    OK(weft_file_open(w, 0, in_folder("written"), WEFT_FILE_WRITE | WEFT_FILE_CREATE, &f, DEFAULT_TIME));
    CHECK(weft_file_size(f) == 0);
    fill(some, 40, 0, sizeof some);
    OK(weft_file_write(f, some, 10, 0, &put, DEFAULT_TIME));
    OK(weft_file_write(f, some + 10, sizeof some - 10, 10, &put, DEFAULT_TIME));
    CHECK(put == sizeof some - 10 && weft_file_size(f) == sizeof some);
    OK(weft_file_sync(f, DEFAULT_TIME));
    OK(weft_file_open(w, 0, in_folder("written"), 0, &reader, DEFAULT_TIME));
    OK(weft_file_read(reader, back, sizeof back, 0, &n, DEFAULT_TIME));
    CHECK(n == sizeof some && memcmp(some, back, n) == 0);
    /* The next write ends the generation that other readers have, but not that of this handle. */
    fill(some, 41, PIECE, PIECE);
    OK(weft_file_write(f, some, PIECE, PIECE, NULL, DEFAULT_TIME));
    int rc = weft_file_stat(reader, NULL, 0, DEFAULT_TIME);
    CHECK(rc == -ESTALE);
    OK(weft_file_read(f, back, sizeof back, 0, &n, DEFAULT_TIME));
    CHECK(n == sizeof back && right(back, 40, 0, PIECE) && right(back + PIECE, 41, PIECE, PIECE) &&
          right(back + 2 * PIECE, 40, 2 * PIECE, PIECE));
    OK(weft_file_close(reader));
    OK(weft_file_close(f));
    OK(weft_file_open(w, 0, in_folder("written"), WEFT_FILE_WRITE | WEFT_FILE_TRUNCATE, &f, DEFAULT_TIME));
    CHECK(weft_file_size(f) == 0);
    OK(weft_file_close(f));
    if (access("/dev/full", F_OK) == 0)
        must_fail(w, "/dev/full", WEFT_FILE_WRITE | WEFT_FILE_TRUNCATE, -EINVAL, "not a regular file");
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_writes(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, writes, NULL, OPEN), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {TEST(test_basics),    TEST(test_once),      TEST(test_changes),
                                       TEST(test_cut_short), TEST(test_evictions), TEST(test_least_recent),
                                       TEST(test_noticed),   TEST(test_pins),      TEST(test_writes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
