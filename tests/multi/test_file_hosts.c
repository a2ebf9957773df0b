/* SPDX-License-Identifier: MIT
 *
 * The file service with readers on several other hosts, who get pieces from each other: what the gateway sends, readers that are killed,
 * stopped, or leave, and copies whose memory has other contents by now. Node 0 is the gateway.
 */
#include "file_test.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "gateway/file_handle.h"

#define PIECES 40u
#define BYTES  (PIECES * PIECE)
#define SEED   60
#define FEW    4u /* with those that are read ahead, a node has room for copies of so many pieces */

/* The pools have room for copies of 16 pieces. */
static const char *const HOSTS[] = {"WEFT_SERVE=file", "WEFT_POOL=128M", "WEFT_FILE_CACHE=64M", "WEFT_LOG=error", NULL};

/* With room for copies of the whole file: a reader that is far behind still gets it from others. */
static const char *const ROOMY[] = {"WEFT_SERVE=file", "WEFT_POOL=512M", "WEFT_FILE_CACHE=64M", "WEFT_LOG=error", NULL};

struct hosts_board {
    _Atomic uint32_t opened, half, done, pid, gone;
    uint64_t given, passed;
};

/* Reads some pieces and checks them. */
static void read_pieces(weft_file *f, uint64_t from, uint64_t to)
{
    static uint8_t some[WEFT_FILE_PIECE];
    size_t n;
    for (uint64_t i = from; i < to; i++) {
        OK(weft_file_read(f, some, PIECE, i * PIECE, &n, DEFAULT_TIME));
        CHECK(n == PIECE && right(some, SEED, i * PIECE, n));
    }
}

/* All have it open before any of them reads, so the gateway knows that they are several. */
static weft_file *open_together(weft_node *w, struct hosts_board *b)
{
    weft_file *f;
    OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
    meet(&b->opened, weft_size(w) - 1);
    return f;
}

/* On a busy machine, too, everybody waits for copies that are under way. */
static void be_patient(weft_node *w)
{
    atomic_store(&gateway_in(w)->file_patience, patience_ns(60));
}

static bool gateway_is_far(weft_node *w)
{
    return !weft_ptr(w, weft_gaddr_make(0, 0, w->heap_offset), 1);
}

static void wait_for_no_copies(weft_node *w)
{
    weft_pool_stats s;
    int64_t deadline = now_ns() + patience_ns(20);
    do {
        OK(weft_pool_stat(w, &s, sizeof s));
        CHECK(now_ns() < deadline);
        usleep(10000);
    } while (s.file_bytes);
}

/* What the interfaces of this network namespace have sent, without the loopback. */
static uint64_t sent_by_host(void)
{
    char line[512], name[64];
    unsigned long long sent, all = 0;
    FILE *file = fopen("/proc/self/net/dev", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, " %63[^:]: %*u %*u %*u %*u %*u %*u %*u %*u %llu", name, &sent) == 2 && strcmp(name, "lo") != 0)
            all += sent;
    if (file)
        fclose(file);
    return all;
}

/* --- the file leaves the gateway about once --- */

static void once(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    uint64_t before = sent_by_host();
    be_patient(w);
    if (weft_rank(w) == 0) {
        wait_for(&b->done, weft_size(w) - 1);
        uint64_t sent = sent_by_host() - before;
        weft_file_cache c = cache_of(w);
        b->given = c.given_bytes;
        b->passed = c.passed_bytes;
        CHECK(c.disk_bytes == BYTES && c.disk_reads == PIECES);
        CHECK(!getenv("TEST_NAMESPACES") || (sent > BYTES && sent < 2 * BYTES));
    } else {
        weft_file *f = open_together(w, b);
        read_pieces(f, 0, PIECES);
        atomic_fetch_add(&b->done, 1);
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_once(void **state)
{
    (void)state;
    enum { READERS = 4 };
    struct hosts_board *b = shared_words(sizeof *b);
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(1 + READERS, once, b, ROOMY), 0);
    uint64_t all = b->given + b->passed;
    printf("given by the gateway %.2f times, passed on %.2f times\n", (double)b->given / (double)BYTES, (double)b->passed / (double)BYTES);
    /* in namespaces the fifth node is on the gateway's host */
    assert_true(all == READERS * BYTES || all == (READERS - 1) * BYTES);
    assert_true(b->given >= BYTES && b->given < 2 * BYTES);
}

/* --- a reader ends in the middle, in several ways --- */

enum ending { KILLED, LEAVES, CLOSES, ENDINGS };
struct end_plan {
    enum ending how;
    struct hosts_board *board;
};

static void one_ends(weft_node *w, void *arg)
{
    const struct end_plan *p = arg;
    struct hosts_board *b = p->board;
    if (weft_rank(w) == 0) {
        wait_for(&b->done, 2);
        return;
    }
    weft_file *f = open_together(w, b);
    if (weft_rank(w) == 1) { /* is ahead of the others, so they get pieces from it */
        read_pieces(f, 0, PIECES / 2);
        meet(&b->half, 3);
        if (p->how == KILLED)
            kill(getpid(), SIGKILL);
        if (p->how == CLOSES)
            OK(weft_file_close(f));
        if (p->how == CLOSES)
            wait_for(&b->done, 2);
        return;
    }
    read_pieces(f, 0, PIECES / 4);
    meet(&b->half, 3);
    read_pieces(f, PIECES / 4, PIECES);
    atomic_fetch_add(&b->done, 1);
    OK(weft_file_close(f));
}

static void test_one_ends(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    for (enum ending how = KILLED; how < ENDINGS; how++) {
        struct end_plan p = {how, shared_words(sizeof *p.board)};
        int status[NODES_MAX];
        nodes_run(4, one_ends, &p, HOSTS, status);
        assert_int_equal(WIFSIGNALED(status[1]), how == KILLED);
        for (unsigned i = 0; i < 4; i++)
            assert_true(status[i] == 0 || (i == 1 && how == KILLED));
    }
}

/* --- slow links --- */

#define SLOW_PIECES 16u

static void slowly(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    if (weft_rank(w) == 0) {
        wait_for(&b->done, weft_size(w) - 1);
        b->given = cache_of(w).given_bytes;
        b->passed = cache_of(w).passed_bytes;
    } else {
        weft_file *f = open_together(w, b);
        size_t n;
        for (uint64_t i = 0; i < SLOW_PIECES; i++) {
            static uint8_t some[WEFT_FILE_PIECE];
            OK(weft_file_read(f, some, PIECE, i * PIECE, &n, patience_ns(100)));
            CHECK(n == PIECE && right(some, SEED, i * PIECE, n));
        }
        atomic_fetch_add(&b->done, 1);
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, patience_ns(100)));
}

/* Runs tc in each host's namespace. */
static bool each_host(const char *words)
{
    char paths[1024], command[1280], *rest = paths;
    snprintf(paths, sizeof paths, "%s", getenv("TEST_NAMESPACES"));
    for (char *path; (path = strsep(&rest, ":"));)
        for (unsigned net = 0; net < 2; net++) {
            snprintf(command, sizeof command, "nsenter --net=%s tc qdisc %s", path, words);
            char *at = strstr(command, "DEVICE");
            char device[8];
            snprintf(device, sizeof device, "net%u  ", net);
            memcpy(at, device, 6);
            if (system(command) != 0)
                return false;
        }
    return true;
}

/* Four hosts with links over which the pieces that are asked for together take longer than a second. All the same the gateway sends most
 * of them once. */
static void test_slow_links(void **state)
{
    (void)state;
    if (!getenv("TEST_NAMESPACES") || !each_host("add dev DEVICE root tbf rate 20mbit burst 64k latency 50ms")) {
        print_message("the links are not slow here\n");
        skip();
    }
    struct hosts_board *b = shared_words(sizeof *b);
    write_file(in_folder("file"), SEED, SLOW_PIECES * PIECE, O_TRUNC);
    int failed = nodes_failed_with(4, slowly, b, ROOMY);
    assert_true(each_host("del dev DEVICE root"));
    assert_int_equal(failed, 0);
    printf("given by the gateway %.2f times, passed on %.2f times\n", (double)b->given / (double)(SLOW_PIECES * PIECE),
           (double)b->passed / (double)(SLOW_PIECES * PIECE));
    assert_int_equal(b->given + b->passed, 3 * SLOW_PIECES * PIECE);
    assert_true(b->given < 2 * SLOW_PIECES * PIECE);
}

/* --- a holder dies while somebody gets pieces from it --- */

static void one_dies(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    be_patient(w);
    if (weft_rank(w) == 0) {
        wait_for(&b->done, 1);
        b->given = cache_of(w).given_bytes;
        b->passed = cache_of(w).passed_bytes;
        return;
    }
    weft_file *f = open_together(w, b);
    if (weft_rank(w) == 1) {
        read_pieces(f, 0, FEW);
        (void)cache_of(w); /* the answer shows that the gateway has been told of the copies */
        atomic_store(&b->pid, (uint32_t)getpid());
        wait_for(&b->done, 1);
        return;
    }
    static uint8_t some[FEW * WEFT_FILE_PIECE];
    size_t n;
    weft_op op;
    wait_for(&b->pid, 1);
    stop_asleep((pid_t)atomic_load(&b->pid));
    OK(weft_file_read_start(f, some, sizeof some, 0, &n, &op));
    bool gets = false;
    while (!gets && weft_test(w, &op) == -EINPROGRESS) /* over TCP a stopped process gives nothing; other networks need not ask it */
        for (unsigned i = 0; i < FILE_SLOTS; i++)
            gets = gets || file_slot_state(&f->slot[i]) == SLOT_GETS;
    b->half = gets;
    CHECK(kill((pid_t)atomic_load(&b->pid), SIGKILL) == 0);
    OK(weft_wait(w, &op, patience_ns(30)));
    CHECK(n == sizeof some && right(some, SEED, 0, n));
    read_pieces(f, FEW, PIECES);
    atomic_store(&b->done, 1);
    OK(weft_file_close(f));
}

static void test_one_dies(void **state)
{
    (void)state;
    struct hosts_board *b = shared_words(sizeof *b);
    int status[NODES_MAX];
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    nodes_run(3, one_dies, b, HOSTS, status);
    assert_true(status[0] == 0 && WIFSIGNALED(status[1]) && status[2] == 0);
    assert_true(b->half || !getenv("TEST_NAMESPACES"));
    assert_true(b->passed > 0);
    assert_true(!getenv("TEST_NAMESPACES") || b->given > BYTES); /* what the dead one did not give was given again */
}

/* --- readers for whom nobody waits --- */

/* Node 1 reads now and then, so it does not get soon what it has asked for in advance. Node 2 gets it from the gateway. */
static void one_is_away(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    be_patient(w);
    if (weft_rank(w) == 0) {
        wait_for(&b->done, 1);
        return;
    }
    weft_file *f = open_together(w, b);
    if (weft_rank(w) == 1) {
        atomic_store(&gateway_in(w)->file_patience, 4 * WEFT_MS);
        for (uint64_t i = 0; i < FEW; i++) {
            read_pieces(f, i, i + 1);
            usleep(10000);
        }
        atomic_store(&b->half, 1);
        wait_for(&b->done, 1);
    } else {
        wait_for(&b->half, 1);
        read_pieces(f, 0, PIECES);
        atomic_store(&b->done, 1);
    }
    OK(weft_file_close(f));
}

static void test_one_is_away(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(3, one_is_away, shared_words(sizeof(struct hosts_board)), HOSTS), 0);
}

/* A thread reads the file by two handles. What the first one has asked for in advance, the second one does not wait for; what the first one
 * has read, the second one gets from there. */
static void two_handles(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    weft_file *f[2];
    be_patient(w);
    if (weft_rank(w) == 1) {
        for (unsigned i = 0; i < 2; i++)
            OK(weft_file_open(w, 0, in_folder("file"), 0, &f[i], DEFAULT_TIME));
        read_pieces(f[0], 0, FEW);
        b->passed = cache_of(w).passed_bytes;
        read_pieces(f[1], 0, PIECES);
        b->passed = cache_of(w).passed_bytes - b->passed;
        for (unsigned i = 0; i < 2; i++)
            OK(weft_file_close(f[i]));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_two_handles(void **state)
{
    (void)state;
    struct hosts_board *b = shared_words(sizeof *b);
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, two_handles, b, ROOMY), 0);
    assert_true(b->passed >= FEW * PIECE);
}

/* --- a reader stops --- */

/* Node 1 stops while the gateway takes it for somebody who will soon have the next pieces, and while others get pieces from it. */
static void one_stops(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    if (weft_rank(w) == 0) {
        wait_for(&b->done, 3);
        return;
    }
    weft_file *f = open_together(w, b);
    if (weft_rank(w) == 1) {
        read_pieces(f, 0, PIECES / 4);
        atomic_store(&b->pid, (uint32_t)getpid());
        wait_for(&b->gone, 1);
        read_pieces(f, PIECES / 4, PIECES);
    } else {
        if (weft_rank(w) == 2) {
            wait_for(&b->pid, 1);
            stop_asleep((pid_t)atomic_load(&b->pid));
        }
        meet(&b->half, 2);
        read_pieces(f, 0, PIECES);
        if (atomic_fetch_add(&b->done, 1) == 1) {
            CHECK(kill((pid_t)atomic_load(&b->pid), SIGCONT) == 0);
            atomic_store(&b->gone, 1);
        }
    }
    if (weft_rank(w) == 1)
        atomic_fetch_add(&b->done, 1);
    OK(weft_file_close(f));
}

static void test_one_stops(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(4, one_stops, shared_words(sizeof(struct hosts_board)), HOSTS), 0);
}

/* --- copies that are not right --- */

/* Node 1 writes over its copies, as if the memory were used for something else already. */
static void overwritten(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    uint32_t spoilt = 0;
    if (weft_rank(w) == 0) {
        wait_for(&b->done, 1);
        b->given = cache_of(w).given_bytes;
        b->passed = cache_of(w).passed_bytes;
        return;
    }
    weft_file *f = open_together(w, b);
    if (weft_rank(w) == 1) {
        CHECK(gateway_is_far(w));
        read_pieces(f, 0, PIECES / 4);
        for (unsigned i = 0; i < FILE_SLOTS; i++)
            if (file_slot_state(&f->slot[i]) == SLOT_HELD) {
                memset(weft_ptr(w, f->slot[i].kept->at, PIECE), 0xee, PIECE);
                spoilt++;
            }
        CHECK(spoilt > 0); /* at least the piece that was read last */
        atomic_store(&b->half, 1);
        wait_for(&b->done, 1);
    } else {
        wait_for(&b->half, 1);
        read_pieces(f, 0, PIECES);
        atomic_store(&b->done, 1);
    }
    OK(weft_file_close(f));
}

static void test_overwritten(void **state)
{
    (void)state;
    struct hosts_board *b = shared_words(sizeof *b);
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(3, overwritten, b, HOSTS), 0);
    assert_true(b->passed > 0);
    assert_true(b->given > BYTES); /* the spoilt pieces were given twice */
}

/* --- memory --- */

/* Copies take a part of the pool only, and are freed after the last handle. Bytes here and there are not copied in whole pieces. */
static void memory(weft_node *w, void *arg)
{
    (void)arg;
    weft_file *f;
    weft_pool_stats s;
    char byte;
    size_t n;
    if (weft_rank(w) == 1) {
        OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
        for (uint64_t i = 0; i < PIECES; i++)
            OK(weft_file_read(f, &byte, 1, i * PIECE, &n, DEFAULT_TIME));
        OK(weft_pool_stat(w, &s, sizeof s));
        CHECK(s.file_bytes == 0);
        read_pieces(f, 0, PIECES);
        OK(weft_pool_stat(w, &s, sizeof s));
        CHECK(s.file_bytes == w->pool_bytes / FILE_KEPT_PART);
        OK(weft_file_close(f));
        wait_for_no_copies(w);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_memory(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, memory, NULL, HOSTS), 0);
}

/* The pool is full, but with copies that nobody needs any more: their memory is used again for what is mapped. */
static void full_pool(weft_node *w, void *arg)
{
    (void)arg;
    weft_gaddr all;
    weft_file_view v;
    if (weft_rank(w) == 1) {
        weft_file *f;
        OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
        read_pieces(f, 0, FEW);
        while (weft_alloc(w, PIECE, &all) == 0)
            ;
        OK(weft_file_map(f, (PIECES - 1) * PIECE, &v, DEFAULT_TIME));
        CHECK(v.bytes == PIECE && right(v.at, SEED, (PIECES - 1) * PIECE, PIECE));
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_full_pool(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, full_pool, NULL, HOSTS), 0);
}

/* A pool without room for copies: the bytes come all the same. */
static void no_room(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    weft_gaddr all;
    be_patient(w); /* all the same nobody waits for copies at the node that has no room */
    if (weft_rank(w) == 0) {
        wait_for(&b->done, 3);
        return;
    }
    if (weft_rank(w) == 2)
        while (weft_alloc(w, PIECE, &all) == 0)
            ;
    weft_file *f = open_together(w, b);
    if (weft_rank(w) == 2) {
        read_pieces(f, PIECES - FEW, PIECES);
        atomic_store(&b->half, 1);
        wait_for(&b->done, 2);
    }
    wait_for(&b->half, 1);
    read_pieces(f, 0, PIECES);
    atomic_fetch_add(&b->done, 1);
    OK(weft_file_close(f));
}

static void test_no_room(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(4, no_room, shared_words(sizeof(struct hosts_board)), HOSTS), 0);
}

/* Node 2 has no room for copies, so it gets the gateway's pieces. That says nothing about the copies of node 1: node 3 still gets them. */
static void cramped(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    weft_gaddr all;
    if (weft_rank(w) == 0) {
        wait_for(&b->half, 2);
        b->passed = cache_of(w).passed_bytes;
        atomic_store(&b->gone, 1);
        wait_for(&b->done, 3);
        b->passed = cache_of(w).passed_bytes - b->passed;
        return;
    }
    if (weft_rank(w) == 2)
        while (weft_alloc(w, PIECE, &all) == 0)
            ;
    weft_file *f = open_together(w, b);
    if (weft_rank(w) == 2)
        wait_for(&b->half, 1);
    if (weft_rank(w) == 3)
        wait_for(&b->gone, 1);
    read_pieces(f, 0, FEW);
    (void)cache_of(w); /* the answer shows that the gateway has been told of the copies */
    atomic_fetch_add(&b->half, 1);
    atomic_fetch_add(&b->done, 1);
    wait_for(&b->done, 3);
    OK(weft_file_close(f));
}

static void test_cramped(void **state)
{
    (void)state;
    struct hosts_board *b = shared_words(sizeof *b);
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(4, cramped, b, HOSTS), 0);
    assert_true(b->passed >= FEW * PIECE);
}

/* --- mapped pieces --- */

/* Mapped pieces are passed on, too, and stay as they are after the file has changed and when other copies need the memory. */
static void mapped(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    weft_file_view v[PIECES / 2];
    if (weft_rank(w) == 0) {
        wait_for(&b->half, 2);
        b->given = cache_of(w).given_bytes;
        b->passed = cache_of(w).passed_bytes;
        atomic_store(&b->pid, 1);
        wait_for(&b->done, 2);
        write_file(in_folder("file"), SEED + 1, BYTES, 0);
        atomic_store(&b->gone, 1);
    } else {
        weft_file *f = open_together(w, b);
        for (uint64_t i = 0; i < PIECES / 2; i++)
            OK(weft_file_map(f, i * PIECE + 5, &v[i], DEFAULT_TIME));
        atomic_fetch_add(&b->half, 1);
        wait_for(&b->pid, 1);
        read_pieces(f, 0, PIECES);
        atomic_fetch_add(&b->done, 1);
        wait_for(&b->gone, 1);
        for (uint64_t i = 0; i < PIECES / 2; i++) {
            CHECK(v[i].bytes == PIECE - 5 && right((const uint8_t *)v[i].at - 5, SEED, i * PIECE, PIECE));
            if (i % 2)
                weft_file_unmap(f, &v[i]);
        }
        OK(weft_file_close(f));
        wait_for_no_copies(w);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_mapped(void **state)
{
    (void)state;
    struct hosts_board *b = shared_words(sizeof *b);
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(3, mapped, b, HOSTS), 0);
    assert_int_equal(b->given + b->passed, 2 * (BYTES / 2));
    assert_true(b->passed > 0);
}

/* --- a full disk --- */

static void put_line(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* A file system of 6 MiB in the test's folder, which only this process and its children see. */
static bool small_disk(void)
{
    char map[64];
    unsigned user = (unsigned)geteuid(), group = (unsigned)getegid();
    if (unshare(CLONE_NEWNS)) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
            return false;
        put_line("/proc/self/setgroups", "deny");
        snprintf(map, sizeof map, "0 %u 1", user);
        put_line("/proc/self/uid_map", map);
        snprintf(map, sizeof map, "0 %u 1", group);
        put_line("/proc/self/gid_map", map);
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mkdir(in_folder("disk"), 0700) == 0 &&
           mount("tmpfs", in_folder("disk"), "tmpfs", 0, "size=6m") == 0;
}

/* Reads a file whose bytes are right at each size that it has ever had. Returns 0 or -ESTALE. */
static int read_whole(weft_file *f)
{
    static uint8_t some[WEFT_FILE_PIECE];
    size_t n = 1;
    int rc = 0;
    for (uint64_t at = 0; !rc && at < weft_file_size(f); at += n) {
        rc = weft_file_read(f, some, sizeof some, at, &n, DEFAULT_TIME);
        CHECK(right(some, SEED, at, n) && (rc || n) && (!rc || rc == -ESTALE));
    }
    return rc;
}

static void append_until_full(weft_node *w, struct hosts_board *b)
{
    static uint8_t some[500000];
    weft_file *f;
    size_t put;
    int rc;
    OK(weft_file_open(w, 0, in_folder("disk/file"), WEFT_FILE_WRITE, &f, DEFAULT_TIME));
    do {
        uint64_t size = weft_file_size(f);
        fill(some, SEED, size, sizeof some);
        rc = weft_file_write(f, some, sizeof some, size, &put, DEFAULT_TIME);
        CHECK((rc == 0 && put == sizeof some) || (rc == -ENOSPC && put < sizeof some && strstr(weft_error(), "No space left")));
        CHECK(weft_file_size(f) == size + put);
    } while (!rc);
    CHECK(weft_file_size(f) > 5 * PIECE);
    CHECK(read_whole(f) == 0);
    OK(weft_file_close(f));
    atomic_store(&b->gone, 1);
}

static void full_disk(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    weft_file *f;
    if (weft_rank(w) == 0) {
        wait_for(&b->done, 5);
        return;
    }
    meet(&b->opened, 5);
    if (weft_rank(w) == 5) {
        append_until_full(w, b);
    } else {
        for (bool last = false; !last;) { /* once more after the disk has become full */
            last = atomic_load(&b->gone);
            OK(weft_file_open(w, 0, in_folder("disk/file"), 0, &f, DEFAULT_TIME));
            int rc = read_whole(f);
            CHECK(!last || rc == 0);
            CHECK(!last || weft_file_size(f) > 5 * PIECE);
            OK(weft_file_close(f));
        }
    }
    atomic_fetch_add(&b->done, 1);
}

/* Four read the file while a fifth one appends to it until the disk is full. */
static void test_full_disk(void **state)
{
    (void)state;
    if (!small_disk()) {
        print_message("this user may not mount a file system\n");
        skip();
    }
    write_file(in_folder("disk/file"), SEED, 3 * PIECE + 1000, O_TRUNC);
    assert_int_equal(nodes_failed_with(6, full_disk, shared_words(sizeof(struct hosts_board)), HOSTS), 0);
    assert_int_equal(umount2(in_folder("disk"), MNT_DETACH), 0);
}

/* --- a gateway that lies about copies --- */

struct lie {
    weft_gaddr at;
    uint64_t hash;
    weft_gaddr true_at; /* what it answers to those who want its own piece; WEFT_NULL: the lie again */
};

static void tell_lies(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                      void *arg)
{
    const struct lie *lie = arg;
    const weft_file_info info = {.bytes = 2 * PIECE, .generation = 1};
    struct gateway_message m;
    weft_request r;
    CHECK(header_len == sizeof m);
    memcpy(&m, header, sizeof m);
    if (m.type != GATEWAY_REQUEST)
        return;
    CHECK(payload_len >= sizeof r);
    memcpy(&r, payload, sizeof r);
    struct gateway_message answer = {.type = GATEWAY_ANSWER, .to = m.word[0]};
    if (r.kind == FILE_OPEN)
        answer.word[0] = 5;
    if (r.kind == FILE_LEASE) {
        bool truth = lie->true_at && r.flags & FILE_HERE;
        memcpy(answer.word, (const uint64_t[5]){truth ? lie->true_at : lie->at, PIECE, 9, lie->hash, 1}, 5 * sizeof(uint64_t));
    }
    OK(fab_send(w, from, GATEWAY_HANDLER, &answer, sizeof answer, &info, r.kind == FILE_OPEN ? sizeof info : 0, NULL));
}

static void lies(weft_node *w, void *arg)
{
    static uint8_t some[WEFT_FILE_PIECE];
    weft_gaddr *bytes = arg, mine;
    const uint64_t far_away = w->pool_bytes;
    size_t n;
    OK(weft_alloc(w, PIECE, &mine));
    fill(weft_ptr(w, mine, PIECE), weft_rank(w) == 0 ? SEED : SEED + 1, 0, PIECE);
    bytes[weft_rank(w)] = mine;
    OK(weft_barrier(w, DEFAULT_TIME));
    const struct lie all[] = {
        {bytes[2], 77, bytes[0]}, /* bytes without that hash */
        {bytes[2], 77, WEFT_NULL},
        {bytes[1], 77, bytes[0]}, /* the asker's own */
        {weft_gaddr_make(2, 0, far_away), 77, bytes[0]},
        {weft_gaddr_make(2, 0, 8), 77, bytes[0]},
        {weft_gaddr_make(2, 3, 4096), 77, bytes[0]},
        {weft_gaddr_make(9000, 0, weft_gaddr_offset(mine)), 77, bytes[0]},
        {bytes[2], 0, bytes[0]},
    };
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (weft_rank(w) == 0)
            OK(fab_handle(w, GATEWAY_HANDLER, tell_lies, (void *)(uintptr_t)&all[i]));
        OK(weft_barrier(w, DEFAULT_TIME));
        if (weft_rank(w) == 1) {
            weft_file *f;
            OK(weft_file_open(w, 0, "/file", 0, &f, DEFAULT_TIME));
            int rc = weft_file_read(f, some, PIECE, 0, &n, DEFAULT_TIME);
            bool refused = !all[i].true_at || !all[i].hash || weft_gaddr_space(all[i].at) != 0;
            CHECK(rc == (refused ? -EPROTO : 0));
            CHECK(rc || (n == PIECE && right(some, SEED, 0, n)));
            weft_file_view v;
            rc = weft_file_map(f, 0, &v, DEFAULT_TIME);
            CHECK(rc == (refused ? -EPROTO : 0));
            CHECK(rc || right(v.at, SEED, 0, v.bytes));
            OK(weft_file_close(f));
        }
        OK(weft_barrier(w, DEFAULT_TIME));
    }
}

static void test_lies(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(3, lies, shared_words(4096), HOSTS), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {TEST(test_once),     TEST(test_one_ends),    TEST(test_one_stops),  TEST(test_overwritten),
                                       TEST(test_memory),   TEST(test_no_room),     TEST(test_cramped),    TEST(test_full_pool),
                                       TEST(test_mapped),   TEST(test_lies),        TEST(test_full_disk),  TEST(test_slow_links),
                                       TEST(test_one_dies), TEST(test_one_is_away), TEST(test_two_handles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
