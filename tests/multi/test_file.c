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

static void must_fail(weft_node *w, const char *path, uint32_t flags, int code, const char *says)
{
    weft_file *f = (weft_file *)1;
    int rc = weft_file_open(w, 0, path, flags, &f, DEFAULT_TIME);
    if (rc != code || !strstr(weft_error(), says))
        fprintf(stderr, "opening %s: %d, not %d: %s\n", path, rc, code, weft_error());
    CHECK(rc == code && !f && strstr(weft_error(), says));
}

static void errors(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    static char longest[WEFT_FILE_PATH_MAX + 2];
    weft_file *f;
    uint64_t next = 0;
    size_t n;
    weft_file_cached one;
    must_fail(w, in_folder("none"), 0, -ENOENT, "none at node 0: No such file");
    must_fail(w, folder, 0, -EISDIR, "this is a directory");
    must_fail(w, in_folder("fifo"), 0, -EINVAL, "not a regular file"); /* at once: nobody writes to it */
    must_fail(w, "/dev/zero", 0, -EINVAL, "not a regular file");
    if (access("/proc/version", R_OK) == 0)
        must_fail(w, "/proc/version", 0, -EINVAL, "does not tell its size"); /* and not an empty file */
    must_fail(w, in_folder("small/x"), 0, -ENOTDIR, "Not a directory");
    must_fail(w, "", 0, -EINVAL, "the path is empty");
    must_fail(w, "x", WEFT_FILE_CREATE, -EINVAL, "need WEFT_FILE_WRITE");
    must_fail(w, "x", 0x100, -EINVAL, "unknown");
    memset(longest, 'x', sizeof longest - 1);
    must_fail(w, longest, 0, -ENAMETOOLONG, "at most 3584");
    longest[WEFT_FILE_PATH_MAX] = '\0';
    must_fail(w, longest, 0, -ENAMETOOLONG, "too long");
    CHECK(weft_file_open(w, 7, "x", 0, &f, DEFAULT_TIME) == -EFAULT && !f);
    CHECK(weft_file_list(w, 0, &one, sizeof one, &next, DEFAULT_TIME) == -ENOENT && strstr(weft_error(), "has no file open or cached"));
    CHECK(weft_file_unpin(w, 0, "x", DEFAULT_TIME) == -ENOENT && strstr(weft_error(), "has not pinned x"));
    OK(weft_file_open(w, 0, in_folder("small"), 0, &f, DEFAULT_TIME));
    CHECK(weft_file_write(f, "x", 1, 0, &n, DEFAULT_TIME) == -EBADF && n == 0);
    CHECK(weft_file_sync(f, DEFAULT_TIME) == -EBADF);
    OK(weft_file_close(f));
    /* A record that names nothing. */
    weft_gaddr at;
    weft_op op;
    OK(weft_alloc(w, sizeof(weft_request), &at));
    *(weft_request *)weft_ptr(w, at, sizeof(weft_request)) =
        (weft_request){.version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_FILE, .kind = 1, .id = 1};
    OK(weft_request_start(w, at, &op));
    CHECK(weft_wait(w, &op, DEFAULT_TIME) == -EINVAL);
    OK(weft_free(w, at));
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_errors(void **state)
{
    (void)state;
    write_file(in_folder("small"), 1, 10, O_TRUNC);
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    assert_int_equal(nodes_failed_with(2, errors, NULL, OPEN), 0);
}

/* The gateway's user may not read the file, though the asker's may. A gateway of root first becomes another user. */
static void other_user(weft_node *w, void *arg)
{
    (void)arg;
    const uid_t nobody = 65534;
    weft_file *f;
    char byte;
    size_t n;
    bool root = geteuid() == 0;
    if (weft_rank(w) == 0 && root)
        CHECK(setgroups(0, NULL) == 0 && setgid(nobody) == 0 && setuid(nobody) == 0);
    OK(weft_barrier(w, DEFAULT_TIME));
    if (weft_rank(w) == 1) {
        const char *const hidden[] = {in_folder("secret"), in_folder("closed/file")};
        for (unsigned i = 0; i < 2; i++) {
            must_fail(w, hidden[i], 0, -EACCES, "Permission denied");
            must_fail(w, hidden[i], WEFT_FILE_WRITE, -EACCES, "Permission denied");
        }
        must_fail(w, in_folder("public"), WEFT_FILE_WRITE, -EACCES, "Permission denied");
        OK(weft_file_open(w, 0, in_folder("public"), 0, &f, DEFAULT_TIME));
        OK(weft_file_read(f, &byte, 1, 0, &n, DEFAULT_TIME));
        CHECK(n == 1 && byte == (char)byte_of(1, 0));
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_other_user(void **state)
{
    (void)state;
    if (geteuid() == 0 && getenv("SOFTVERBS_FABRIC"))
        return; /* the emulated device moves bytes between processes of one user only; what is tested has nothing to do with it */
    write_file(in_folder("secret"), 1, 10, O_TRUNC);
    write_file(in_folder("public"), 1, 10, O_TRUNC);
    assert_int_equal(mkdir(in_folder("closed"), 0700), 0);
    write_file(in_folder("closed/file"), 1, 10, O_TRUNC);
    assert_int_equal(chmod(in_folder("secret"), 0), 0);
    assert_int_equal(chmod(in_folder("public"), 0444), 0);
    assert_int_equal(chmod(in_folder("closed"), 0), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(nodes_failed_with(2, other_user, NULL, OPEN), 0);
    assert_int_equal(chmod(in_folder("closed"), 0700), 0);
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

/* Files of the gateway may not become larger than 2.5 MiB: a write that is cut short, as by a full disk. */
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

/* --- the root --- */

static void put_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

struct swapper {
    _Atomic bool over;
};

/* Changes root/turn from a folder to a symbolic link that leads out, and back, all the time. */
static void *swap(void *arg)
{
    struct swapper *s = arg;
    char turn[256], away[256], link[256];
    snprintf(turn, sizeof turn, "%s", in_folder("root/turn"));
    snprintf(away, sizeof away, "%s", in_folder("root/away"));
    snprintf(link, sizeof link, "%s", in_folder("root/link"));
    while (!atomic_load(&s->over)) {
        CHECK(rename(turn, away) == 0 && rename(link, turn) == 0);
        CHECK(rename(turn, link) == 0 && rename(away, turn) == 0);
    }
    return NULL;
}

static void rooted(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    weft_file *f;
    char text[16];
    size_t n;
    const char *const inside[] = {
        "file", "./file", "folder/file", "folder/../file", in_folder("root/file"), in_folder("root//folder/file")};
    for (unsigned i = 0; i < sizeof inside / sizeof inside[0]; i++) {
        OK(weft_file_open(w, 0, inside[i], 0, &f, DEFAULT_TIME));
        OK(weft_file_read(f, text, sizeof text, 0, &n, DEFAULT_TIME));
        CHECK(n == 6 && memcmp(text, "inside", 6) == 0);
        OK(weft_file_close(f));
    }
    OK(weft_file_open(w, 0, "good-link", 0, &f, DEFAULT_TIME)); /* the link does not lead out of the root */
    OK(weft_file_close(f));
    const char *const outside[] = {"../secret",          "folder/../../secret", "bad-link",          "bad-folder/secret",
                                   "/etc/passwd",        "absolute-link",       in_folder("secret"), in_folder("root/../secret"),
                                   in_folder("rootless")};
    for (unsigned i = 0; i < sizeof outside / sizeof outside[0]; i++)
        must_fail(w, outside[i], 0, -EACCES, "only files below its WEFT_FILE_ROOT");
    must_fail(w, "../made", WEFT_FILE_WRITE | WEFT_FILE_CREATE, -EACCES, "only files below its WEFT_FILE_ROOT");
    must_fail(w, ".", 0, -EISDIR, "this is a directory");
    must_fail(w, in_folder("root"), 0, -EISDIR, "this is a directory");
    must_fail(w, "none", 0, -ENOENT, "No such file");
    CHECK(access(in_folder("made"), F_OK) != 0);
    /* Opens files while a folder is replaced by a link that leads out of the root, and back. */
    struct swapper s = {false};
    pthread_t thread;
    uint32_t opened = 0, refused = 0;
    CHECK(pthread_create(&thread, NULL, swap, &s) == 0);
    for (uint32_t i = 0; i < repeats(3000); i++) {
        int rc = weft_file_open(w, 0, "turn/secret", 0, &f, DEFAULT_TIME);
        CHECK(rc == 0 || rc == -EACCES || rc == -ENOENT || rc == -EAGAIN);
        if (rc) {
            refused++;
            continue;
        }
        opened++;
        rc = weft_file_read(f, text, sizeof text, 0, &n, DEFAULT_TIME);
        CHECK(rc == 0 && n == 6 && memcmp(text, "inside", 6) == 0);
        OK(weft_file_close(f));
    }
    atomic_store(&s.over, true);
    pthread_join(thread, NULL);
    CHECK(opened && refused);
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_root(void **state)
{
    (void)state;
    char root[128];
    CHECK(mkdir(in_folder("root"), 0700) == 0 && mkdir(in_folder("root/folder"), 0700) == 0 && mkdir(in_folder("root/turn"), 0700) == 0);
    put_text(in_folder("root/file"), "inside");
    put_text(in_folder("root/folder/file"), "inside");
    put_text(in_folder("root/turn/secret"), "inside");
    put_text(in_folder("secret"), "secret");
    put_text(in_folder("rootless"), "secret");
    CHECK(symlink("folder/file", in_folder("root/good-link")) == 0 && symlink("../secret", in_folder("root/bad-link")) == 0);
    CHECK(symlink("..", in_folder("root/bad-folder")) == 0 && symlink("..", in_folder("root/link")) == 0);
    CHECK(symlink("/etc/passwd", in_folder("root/absolute-link")) == 0);
    snprintf(root, sizeof root, "WEFT_FILE_ROOT=%s", in_folder("root"));
    const char *const with_root[] = {"WEFT_SERVE=file", "WEFT_LOG=error", root, NULL};
    assert_int_equal(nodes_failed_with(2, rooted, NULL, with_root), 0);
}

static void wrong_settings(weft_node *w, void *arg)
{
    (void)w, (void)arg;
    weft_node *one;
    weft_config c = {.bytes = sizeof c, .size = 1, .pool_bytes = 16 << 20};
    static const char *const wrong[][2] = {{"WEFT_FILE_ROOT", "relative"},
                                           {"WEFT_FILE_ROOT", "/no/such/folder"},
                                           {"WEFT_FILE_ROOT", "/etc/passwd"},
                                           {"WEFT_FILE_CACHE", "1M"},
                                           {"WEFT_FILE_CACHE", "1G"}};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        setenv(wrong[i][0], wrong[i][1], 1);
        int rc = weft_open(&one, &c);
        CHECK(rc < 0 && strstr(weft_error(), wrong[i][0]));
        unsetenv(wrong[i][0]);
    }
}

static void test_settings(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(1, wrong_settings, NULL, OPEN), 0);
}

/* --- deaths --- */

struct death_board {
    _Atomic uint32_t mapped, dead;
    _Atomic uint32_t asked;
};

/* Node 1 maps half of the cache and dies: then another one can. */
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
    const struct CMUnitTest tests[] = {TEST(test_basics),    TEST(test_errors),    TEST(test_once),     TEST(test_changes),
                                       TEST(test_evictions), TEST(test_noticed),   TEST(test_pins),     TEST(test_writes),
                                       TEST(test_full),      TEST(test_root),      TEST(test_settings), TEST(test_deaths),
                                       TEST(test_stopped),   TEST(test_other_user)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
