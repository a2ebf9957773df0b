/* SPDX-License-Identifier: MIT
 *
 * The file service with calls that do not wait, with the system's notices of changes, and with a gateway that offers
 * single files only. Node 0 is the gateway.
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
#include "gateway/file_handle.h"

/* --- calls that do not wait --- */

static const char *const MANY_FILES[] = {"WEFT_SERVE=file", "WEFT_POOL=256M", "WEFT_FILE_CACHE=64M", "WEFT_LOG=error", NULL};
static const char *const USUAL[] = {"WEFT_SERVE=file", "WEFT_POOL=64M", "WEFT_LOG=error", NULL};

static void started(weft_node *w, void *arg)
{
    enum { COUNT = 12 };
    (void)arg;
    static uint8_t some[COUNT][300000], wrote[2 << 20];
    weft_file *f[COUNT] = {NULL}, *none = NULL, *out;
    weft_op op[COUNT], other;
    size_t n[COUNT], put;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    for (unsigned i = 0; i < COUNT; i++)
        OK(weft_file_open_start(w, 0, in_folder("big"), 0, &f[i], &op[i]));
    OK(weft_file_open_start(w, 0, in_folder("none"), 0, &none, &other));
    for (unsigned i = 0; i < COUNT; i++) {
        OK(weft_wait(w, &op[i], DEFAULT_TIME));
        CHECK(f[i] && weft_file_size(f[i]) == 9 * PIECE);
    }
    CHECK(weft_wait(w, &other, DEFAULT_TIME) == -ENOENT && !none);
    for (unsigned round = 0; round < 5; round++) {
        for (unsigned i = 0; i < COUNT; i++)
            OK(weft_file_read_start(f[i], some[i], sizeof some[i], (i * 5 + round) * UINT64_C(99991), &n[i], &op[i]));
        for (unsigned i = COUNT; i--;) {
            OK(weft_wait(w, &op[i], DEFAULT_TIME));
            CHECK(n[i] == sizeof some[i] && right(some[i], 1, (i * 5 + round) * UINT64_C(99991), n[i]));
        }
    }
    OK(weft_file_read_start(f[0], some[0], 100, 9 * PIECE - 10, &n[0], &op[0]));
    OK(weft_wait(w, &op[0], DEFAULT_TIME));
    CHECK(n[0] == 10);
    for (unsigned i = 0; i < COUNT; i++)
        OK(weft_file_close(f[i]));
    /* Writing. */
    fill(wrote, 5, 0, sizeof wrote);
    OK(weft_file_open_start(w, 0, in_folder("written"), WEFT_FILE_WRITE | WEFT_FILE_CREATE, &out, &other));
    OK(weft_wait(w, &other, DEFAULT_TIME));
    OK(weft_file_write_start(out, wrote, sizeof wrote, 0, &put, &other));
    OK(weft_wait(w, &other, DEFAULT_TIME));
    CHECK(put == sizeof wrote && weft_file_size(out) == sizeof wrote);
    OK(weft_file_sync_start(out, &other));
    OK(weft_wait(w, &other, DEFAULT_TIME));
    OK(weft_file_read_start(out, some[0], sizeof some[0], PIECE, &n[0], &other));
    OK(weft_wait(w, &other, DEFAULT_TIME));
    CHECK(n[0] == sizeof some[0] && right(some[0], 5, PIECE, n[0]));
    OK(weft_file_close(out));
    /* What is refused at once. */
    CHECK(weft_file_open_start(w, 0, "", 0, &out, &other) == -EINVAL && !out);
    CHECK(weft_file_open_start(w, 9, "x", 0, &out, &other) == -EFAULT);
    OK(weft_file_open(w, 0, in_folder("big"), 0, &out, DEFAULT_TIME));
    CHECK(weft_file_write_start(out, wrote, 1, 0, &put, &other) == -EBADF && weft_file_sync_start(out, &other) == -EBADF);
    OK(weft_file_close(out));
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_started(void **state)
{
    (void)state;
    write_file(in_folder("big"), 1, 9 * PIECE, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, started, NULL, USUAL), 0);
}

/* The gateway is stopped: the calls are under way, the handle cannot be used or closed; then they are complete. */
static void started_busy(weft_node *w, void *arg)
{
    _Atomic uint32_t *words = arg;
    static uint8_t some[1000];
    weft_file *f;
    weft_op op, opens;
    size_t n, m;
    if (weft_rank(w) == 0) {
        atomic_store(&words[1], (uint32_t)getpid());
        wait_for(&words[0], 1);
        return;
    }
    wait_for(&words[1], 1);
    OK(weft_file_open(w, 0, in_folder("big"), 0, &f, DEFAULT_TIME));
    stop_asleep((pid_t)atomic_load(&words[1]));
    OK(weft_file_read_start(f, some, sizeof some, PIECE, &n, &op));
    weft_file *other;
    OK(weft_file_open_start(w, 0, in_folder("big"), 0, &other, &opens));
    CHECK(weft_test(w, &op) == -EINPROGRESS && weft_wait(w, &op, 20 * WEFT_MS) == -ETIMEDOUT);
    CHECK(weft_file_read(f, some, 1, 0, &m, DEFAULT_TIME) == -EBUSY && weft_file_read_start(f, some, 1, 0, &m, &op) == -EBUSY);
    CHECK(weft_file_close(f) == -EBUSY);
    CHECK(kill((pid_t)atomic_load(&words[1]), SIGCONT) == 0);
    OK(weft_wait(w, &op, DEFAULT_TIME));
    OK(weft_wait(w, &opens, DEFAULT_TIME));
    CHECK(n == sizeof some && right(some, 1, PIECE, n));
    OK(weft_file_close(f));
    OK(weft_file_close(other));
    atomic_store(&words[0], 1);
}

static void test_started_busy(void **state)
{
    (void)state;
    write_file(in_folder("big"), 1, 2 * PIECE, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, started_busy, shared_words(64), USUAL), 0);
}

/* --- notices --- */

static bool is_stale(weft_node *w, const char *path)
{
    weft_file_cached one;
    uint64_t next = 0;
    int rc;
    do {
        rc = weft_file_list(w, 0, &one, sizeof one, &next, DEFAULT_TIME);
        if (!rc && strcmp(one.path, path) == 0 && one.stale)
            return true;
    } while (!rc && next);
    return false;
}

/* Nobody asks for a piece: the gateway notices by itself that the file has changed, and a reader that holds pieces of it is told. */
static void noticed(weft_node *w, void *arg)
{
    (void)arg;
    static uint8_t some[1000];
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    for (unsigned way = 0; way < 3; way++) {
        weft_file *f;
        size_t n;
        write_file(in_folder("file"), 7, 4 * PIECE, O_TRUNC);
        OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
        OK(weft_file_read(f, some, sizeof some, PIECE, &n, DEFAULT_TIME));
        CHECK(right(some, 7, PIECE, n) && !is_stale(w, in_folder("file")));
        if (way == 0)
            write_file(in_folder("file"), 8, 4 * PIECE, 0);
        else if (way == 1)
            CHECK(truncate(in_folder("file"), 10) == 0);
        else
            CHECK(utimensat(AT_FDCWD, in_folder("file"), (struct timespec[2]){{1, 0}, {1, 0}}, 0) == 0);
        int64_t deadline = now_ns() + patience_ns(10);
        while (!is_stale(w, in_folder("file")))
            CHECK(now_ns() < deadline);
        CHECK(weft_file_read(f, some, sizeof some, PIECE, &n, DEFAULT_TIME) == -ESTALE && n == 0); /* although its lease is not over */
        OK(weft_file_close(f));
    }
    /* A file that is only cached is looked at, too. */
    weft_file *f;
    size_t n;
    write_file(in_folder("cached"), 7, 4 * PIECE, O_TRUNC);
    OK(weft_file_open(w, 0, in_folder("cached"), 0, &f, DEFAULT_TIME));
    OK(weft_file_read(f, some, sizeof some, 0, &n, DEFAULT_TIME));
    OK(weft_file_close(f));
    CHECK(chmod(in_folder("cached"), 0640) == 0); /* that is no change of its bytes */
    CHECK(unlink(in_folder("cached")) == 0);
    int64_t deadline = now_ns() + patience_ns(10);
    while (cache_of(w).cached_bytes)
        CHECK(now_ns() < deadline);
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_noticed_by_the_system(void **state)
{
    (void)state;
#if !defined(__linux__)
    skip();
#endif
    assert_int_equal(nodes_failed_with(2, noticed, NULL, USUAL), 0);
}

#if defined(__linux__)
/* While the gateway is stopped, more files change than the system keeps notices of, and then one whose notice is lost. */
static void notices_lost(weft_node *w, void *arg)
{
    _Atomic uint32_t *words = arg;
    static const char *const name[] = {"busy", "busy too", "file"};
    static uint8_t some[1000];
    if (weft_rank(w) == 0) {
        atomic_store(&words[1], (uint32_t)getpid());
        wait_for(&words[0], 1);
        return;
    }
    weft_file *f[3];
    int fd[3];
    size_t n;
    wait_for(&words[1], 1);
    for (unsigned i = 0; i < 3; i++) {
        write_file(in_folder(name[i]), 7, PIECE, O_TRUNC);
        CHECK((fd[i] = open(in_folder(name[i]), O_WRONLY)) >= 0);
        OK(weft_file_open(w, 0, in_folder(name[i]), 0, &f[i], DEFAULT_TIME));
        OK(weft_file_read(f[i], some, sizeof some, 0, &n, DEFAULT_TIME));
    }
    stop_asleep((pid_t)atomic_load(&words[1]));
    for (uint32_t i = 0; i < words[2]; i++) /* by turns, because the system would combine two notices of the same file */
        CHECK(pwrite(fd[i % 2], "x", 1, 0) == 1);
    CHECK(pwrite(fd[2], "x", 1, 0) == 1);
    CHECK(kill((pid_t)atomic_load(&words[1]), SIGCONT) == 0);
    int64_t deadline = now_ns() + patience_ns(10);
    while (!is_stale(w, in_folder("file"))) /* nobody reads it */
        CHECK(now_ns() < deadline);
    for (unsigned i = 0; i < 3; i++) {
        OK(weft_file_close(f[i]));
        close(fd[i]);
    }
    atomic_store(&words[0], 1);
}
#endif

static void test_notices_lost(void **state)
{
    (void)state;
#if defined(__linux__)
    _Atomic uint32_t *words = shared_words(64);
    unsigned most = 0;
    FILE *f = fopen("/proc/sys/fs/inotify/max_queued_events", "r");
    if (!f || fscanf(f, "%u", &most) != 1 || most > 1000000)
        most = 0;
    if (f)
        fclose(f);
    if (!most)
        skip(); /* the system keeps more than this test can lose */
    words[2] = most + 100;
    assert_int_equal(nodes_failed_with(2, notices_lost, words, USUAL), 0);
#else
    skip();
#endif
}

/* --- mapping ahead --- */

/* --- many files --- */

#define MANY (FILE_BUCKETS + 100u)

/* More pieces than the gateway's table had room for at first: all are found again. */
static void many_files(weft_node *w, void *arg)
{
    (void)arg;
    char name[32], byte;
    weft_file *f;
    size_t n;
    if (weft_rank(w) == 1) {
        for (unsigned round = 0; round < 2; round++)
            for (unsigned i = 0; i < MANY; i++) {
                snprintf(name, sizeof name, "many-%u", i);
                OK(weft_file_open(w, 0, in_folder(name), 0, &f, DEFAULT_TIME));
                OK(weft_file_read(f, &byte, 1, 0, &n, DEFAULT_TIME));
                CHECK(n == 1 && byte == (char)byte_of(i, 0));
                OK(weft_file_close(f));
            }
        weft_file_cache c = cache_of(w);
        CHECK(c.disk_reads == MANY && c.hits == MANY);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_many_files(void **state)
{
    (void)state;
    char name[32];
    for (unsigned i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "many-%u", i);
        write_file(in_folder(name), i, 1, O_TRUNC);
    }
    assert_int_equal(nodes_failed_with(2, many_files, NULL, MANY_FILES), 0);
}

/* --- a gateway that offers single files --- */

static void offers(weft_node *w, void *arg)
{
    (void)arg;
    static char longest[WEFT_FILE_PATH_MAX + 2];
    weft_file *f;
    char text[16];
    size_t n;
    if (weft_rank(w) == 0) {
        OK(weft_file_offer(w, in_folder("one")));
        OK(weft_file_offer(w, in_folder("one")));
        OK(weft_file_offer(w, in_folder("later")));
        CHECK(weft_file_offer(w, "") == -EINVAL);
        memset(longest, 'x', sizeof longest - 1);
        CHECK(weft_file_offer(w, longest) == -ENAMETOOLONG);
    } else if (weft_rank(w) == 1) {
        OK(weft_file_offer(w, "x")); /* both nodes serve */
    }
    OK(weft_barrier(w, DEFAULT_TIME));
    if (weft_rank(w) == 1) {
        OK(weft_file_open(w, 0, in_folder("one"), 0, &f, DEFAULT_TIME));
        OK(weft_file_read(f, text, sizeof text, 0, &n, DEFAULT_TIME));
        CHECK(n == 10 && right((const uint8_t *)text, 1, 0, n));
        OK(weft_file_close(f));
        const char *const refused[] = {in_folder("two"), "/etc/passwd", in_folder("../one"), in_folder("./one")};
        for (unsigned i = 0; i < sizeof refused / sizeof refused[0]; i++) {
            CHECK(weft_file_open(w, 0, refused[i], 0, &f, DEFAULT_TIME) == -EPERM && !f);
            CHECK(strstr(
                weft_error(),
                "serves only files that its program offers (weft_file_offer()), and only for reading, because its WEFT_FILE_ROOT is -"));
        }
        CHECK(weft_file_open(w, 0, in_folder("one"), WEFT_FILE_WRITE, &f, DEFAULT_TIME) == -EPERM); /* only to read */
        CHECK(weft_file_open(w, 0, in_folder("later"), 0, &f, DEFAULT_TIME) == -ENOENT);
        CHECK(weft_file_open(w, 0, in_folder("later"), WEFT_FILE_WRITE | WEFT_FILE_CREATE, &f, DEFAULT_TIME) == -EPERM);
        write_file(in_folder("later"), 2, 5, 0);
        OK(weft_file_open(w, 0, in_folder("later"), 0, &f, DEFAULT_TIME));
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_offers(void **state)
{
    (void)state;
    write_file(in_folder("one"), 1, 10, O_TRUNC);
    write_file(in_folder("two"), 1, 10, O_TRUNC);
    assert_int_equal(
        nodes_failed_with(2, offers, NULL, (const char *const[]){"WEFT_SERVE=file", "WEFT_FILE_ROOT=-", "WEFT_LOG=error", NULL}), 0);
}

/* --- a gateway whose answers have no valid form --- */

struct forged {
    _Atomic size_t payload; /* bytes of each answer. Atomic: the order of its changes and reads goes through another process */
};

static void forge(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    static const uint8_t zeros[WEFT_PAYLOAD_MAX];
    const struct forged *how = arg;
    struct gateway_message m;
    (void)payload, (void)payload_len;
    CHECK(header_len == sizeof m);
    memcpy(&m, header, sizeof m);
    if (m.type != GATEWAY_REQUEST)
        return;
    m = (struct gateway_message){.type = GATEWAY_ANSWER, .to = m.word[0], .word = {7}};
    OK(fab_send(w, from, GATEWAY_HANDLER, &m, sizeof m, zeros, atomic_load_explicit(&how->payload, memory_order_relaxed), NULL));
}

/* A record that opens a file, or has opened one, must not count as done. */
static void forged_record(weft_node *w)
{
    weft_gaddr at, text;
    weft_op op;
    OK(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &at));
    OK(weft_alloc(w, 16, &text));
    memcpy(weft_ptr(w, text, 16), "/file", 5);
    weft_request *r = weft_ptr(w, at, WEFT_REQUEST_BYTES);
    *r = (weft_request){
        .version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_FILE, .kind = WEFT_FILE_OPEN, .id = 1, .data = text, .data_bytes = 5};
    OK(weft_request_start(w, at, &op));
    CHECK(weft_wait(w, &op, DEFAULT_TIME) == -EPROTO);
    CHECK(r->answered == 1 && r->status == -EPROTO && r->result[0] == 0);
    weft_free(w, text);
    weft_free(w, at);
}

static void forged_answers(weft_node *w, void *arg)
{
    static struct forged how;
    weft_file *f;
    weft_file_cache c;
    static weft_file_cached one;
    uint64_t next = 0;
    (void)arg;
    OK(weft_barrier(w, DEFAULT_TIME));
    for (size_t bytes = 0; bytes < 3; bytes++) {
        size_t payload = bytes == 0 ? 0 : bytes == 1 ? sizeof(weft_file_info) - 8 : sizeof(weft_file_info) + 8;
        atomic_store_explicit(&how.payload, payload, memory_order_relaxed);
        if (weft_rank(w) == 0)
            OK(fab_handle(w, GATEWAY_HANDLER, forge, &how));
        OK(weft_barrier(w, DEFAULT_TIME));
        if (weft_rank(w) == 1) {
            CHECK(weft_file_open(w, 0, "/file", 0, &f, DEFAULT_TIME) == -EPROTO && !f);
            CHECK(strstr(weft_error(), "node 0 has sent an invalid answer"));
            CHECK(weft_file_cache_stat(w, 0, &c, sizeof c, DEFAULT_TIME) == -EPROTO);
            CHECK(weft_file_list(w, 0, &one, sizeof one, &next, DEFAULT_TIME) == -EPROTO);
            forged_record(w);
        }
        OK(weft_barrier(w, DEFAULT_TIME));
    }
}

static void test_forged_answers(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, forged_answers, NULL, USUAL), 0);
}

/* --- a thread maps the end of a file while another one writes there --- */

struct growing {
    weft_file *f;
    _Atomic bool stop;
    _Atomic uint32_t maps;
};

static void *map_the_end(void *arg)
{
    struct growing *g = arg;
    while (!atomic_load(&g->stop)) {
        weft_file_view v;
        uint64_t size = weft_file_size(g->f);
        int rc = weft_file_map(g->f, size - 1, &v, DEFAULT_TIME);
        if (rc == -ESTALE)
            continue; /* it was written to meanwhile */
        OK(rc);
        CHECK(v.bytes >= 1 && *(const uint8_t *)v.at == byte_of(1, size - 1));
        weft_file_unmap(g->f, &v);
        atomic_fetch_add(&g->maps, 1);
    }
    return NULL;
}

static void maps_go_on(struct growing *g)
{
    uint32_t before = atomic_load(&g->maps);
    int64_t deadline = now_ns() + patience_ns(10);
    while (atomic_load(&g->maps) < before + 2) {
        CHECK(now_ns() < deadline);
        usleep(1000);
    }
}

static void grows(weft_node *w, void *arg)
{
    (void)arg;
    static uint8_t some[5000];
    struct growing g = {.maps = 0};
    pthread_t thread;
    size_t put;
    if (weft_rank(w) == 1) {
        OK(weft_file_open(w, 0, in_folder("big"), WEFT_FILE_WRITE, &g.f, DEFAULT_TIME));
        CHECK(pthread_create(&thread, NULL, map_the_end, &g) == 0);
        for (uint32_t i = 0; i < repeats(200); i++) {
            uint64_t size = weft_file_size(g.f);
            fill(some, 1, size, sizeof some);
            OK(weft_file_write(g.f, some, sizeof some, size, &put, DEFAULT_TIME));
            CHECK(put == sizeof some && weft_file_size(g.f) == size + sizeof some);
            if (i % 4 == 0) /* a map that has begun before this write ends before the next one */
                maps_go_on(&g);
        }
        atomic_store(&g.stop, true);
        CHECK(pthread_join(thread, NULL) == 0);
        OK(weft_file_close(g.f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_grows(void **state)
{
    (void)state;
    write_file(in_folder("big"), 1, 3 * PIECE - 100000, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, grows, NULL, USUAL), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {TEST(test_started),      TEST(test_started_busy), TEST(test_noticed_by_the_system),
                                       TEST(test_notices_lost), TEST(test_offers),       TEST(test_forged_answers),
                                       TEST(test_grows),        TEST(test_many_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
