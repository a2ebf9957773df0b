/* SPDX-License-Identifier: MIT
 *
 * The copies that readers on other hosts have of a file's pieces: wrong contents, how much memory they take, mapped copies, a gateway whose
 * disk is full, and one that lies about copies.
 */
#include "file_hosts_test.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>

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
            if (file_slot_state(&f->reads.slot[i]) == SLOT_HELD) {
                spoil(weft_ptr(w, f->reads.slot[i].kept->at, PIECE));
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

/* A reader from which nobody gets copies uses the same little memory again and again. */
static void memory_alone(weft_node *w)
{
    weft_file *f;
    weft_pool_stats s;
    char byte;
    size_t n;
    OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
    for (uint64_t i = 0; i < PIECES; i++)
        OK(weft_file_read(f, &byte, 1, i * PIECE, &n, DEFAULT_TIME));
    OK(weft_pool_stat(w, &s, sizeof s));
    CHECK(s.file_bytes == 0);
    read_pieces(f, 0, PIECES);
    OK(weft_pool_stat(w, &s, sizeof s));
    CHECK(s.file_bytes > 0 && s.file_bytes <= (FILE_COPY_AHEAD + 2) * PIECE);
    OK(weft_file_close(f));
    wait_for_no_copies(w);
}

/* Copies take a part of the pool only, and are freed after the last handle. Bytes here and there are not copied in whole pieces. */
static void memory(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    weft_pool_stats s;
    if (weft_rank(w) == 1)
        memory_alone(w);
    OK(weft_barrier(w, DEFAULT_TIME));
    if (weft_rank(w)) {
        weft_file *f = open_together(w, b);
        read_pieces(f, 0, PIECES);
        OK(weft_pool_stat(w, &s, sizeof s));
        CHECK(s.file_bytes == w->pool_bytes / FILE_KEPT_PART);
        meet(&b->done, 2);
        OK(weft_file_close(f));
        wait_for_no_copies(w);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_memory(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(3, memory, shared_words(sizeof(struct hosts_board)), HOSTS), 0);
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

/* Mapped in order: the next pieces come in advance, each is sent once, and they take little memory. Then two threads map by one handle. */
struct map_thread {
    weft_file *f;
    uint64_t from;
};

static void *map_every_other(void *arg)
{
    const struct map_thread *t = arg;
    weft_file_view v;
    for (uint64_t i = t->from; i < PIECES; i += 2) {
        OK(weft_file_map(t->f, i * PIECE, &v, DEFAULT_TIME));
        CHECK(v.bytes == PIECE && right(v.at, SEED, i * PIECE, PIECE));
        weft_file_unmap(t->f, &v);
    }
    return NULL;
}

static bool comes_ahead(const weft_file *f, uint64_t index)
{
    for (unsigned i = 0; i < FILE_SLOTS; i++) {
        int state = file_slot_state(&f->maps_far.slot[i]);
        if (f->maps_far.slot[i].index == index && (state == SLOT_ASKED || state == SLOT_READY || state == SLOT_GETS || state == SLOT_HELD))
            return true;
    }
    return false;
}

/* How many leases there are of the only file. */
static uint32_t leases_of(weft_node *w)
{
    weft_file_cached c;
    uint64_t next = 0;
    OK(weft_file_list(w, 0, &c, sizeof c, &next, DEFAULT_TIME));
    CHECK(next == 0);
    return c.leases;
}

/* Maps all pieces in order. After each of them the next one is requested, and from the second piece on, the handle has requested as many in
   advance as it wants to. Their number grows with each piece that comes soon: returns the greatest. `kept`: NULL, or stays mapped, with the
   piece in the middle. */
static uint32_t map_in_order(weft_file *f, weft_file_view *kept)
{
    uint32_t most = 0;
    for (uint64_t i = 0; i < PIECES; i++) {
        weft_file_view v;
        OK(weft_file_map(f, i * PIECE + 9, &v, DEFAULT_TIME));
        CHECK(v.bytes == PIECE - 9 && right((const uint8_t *)v.at - 9, SEED, i * PIECE, PIECE));
        CHECK(comes_ahead(f, i + 1) == (i + 1 < PIECES));
        uint32_t ahead = f->maps_far.ahead;
        for (uint64_t k = i + 1; i > 0 && k <= i + ahead && k < PIECES; k++)
            CHECK(comes_ahead(f, k));
        if (i > 0 && i + ahead < PIECES && ahead > most)
            most = ahead;
        if (kept && i == PIECES / 2)
            *kept = v;
        else
            weft_file_unmap(f, &v);
    }
    return most;
}

static void mapped_in_order(weft_node *w, void *arg)
{
    (void)arg;
    weft_file *f;
    weft_file_view v, kept = {.at = NULL};
    weft_pool_stats s;
    if (weft_rank(w) == 1) {
        OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
        /* On a busy machine some pieces come late: then fewer are requested in advance, or a lease has ended and the piece is sent again.
         */
        uint32_t most = 0;
        bool quick = false;
        for (int64_t end = now_ns() + patience_ns(60); !quick || most < FILE_AHEAD_FAR;) {
            uint64_t before = cache_of(w).given_bytes;
            int64_t began = now_ns();
            CHECK(began < end);
            most = map_in_order(f, kept.at ? NULL : &kept);
            quick = now_ns() - began < FILE_LEASE_NS - FILE_COPY_NS;
            CHECK(quick ? cache_of(w).given_bytes - before == BYTES : cache_of(w).given_bytes - before >= BYTES);
            CHECK(leases_of(w) == 0); /* also those of the last pieces, after which nothing is requested */
            OK(weft_pool_stat(w, &s, sizeof s));
            CHECK(s.file_bytes <= (FILE_COPY_AHEAD + 3) * PIECE);
        }
        struct map_thread t[2] = {{f, 0}, {f, 1}};
        pthread_t other;
        CHECK(pthread_create(&other, NULL, map_every_other, &t[1]) == 0);
        map_every_other(&t[0]);
        pthread_join(other, NULL);
        CHECK(kept.bytes == PIECE - 9 && right((const uint8_t *)kept.at - 9, SEED, PIECES / 2 * PIECE, PIECE));
        write_file(in_folder("file"), SEED + 1, BYTES, 0);
        int64_t deadline = now_ns() + patience_ns(10);
        for (uint64_t i = 0; now_ns() < deadline; i++) { /* what came in advance is old, and is not used once this node knows */
            int rc = weft_file_map(f, i % PIECES * PIECE, &v, DEFAULT_TIME);
            CHECK(rc == -ESTALE || (rc == 0 && right(v.at, SEED, i % PIECES * PIECE, PIECE)));
            if (rc)
                break;
            weft_file_unmap(f, &v);
        }
        CHECK(now_ns() < deadline);
        CHECK(right((const uint8_t *)kept.at - 9, SEED, PIECES / 2 * PIECE, PIECE));
        OK(weft_file_close(f));
        wait_for_no_copies(w);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_mapped_in_order(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, mapped_in_order, NULL, HOSTS), 0);
}

/* Node 1 has memory for three mapped pieces. What it has requested in advance beyond these, it gives back: node 2 does not wait for it. */
static void mapped_without_room(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    static weft_gaddr all[256];
    weft_file_view v;
    unsigned n = 0;
    be_patient(w);
    if (weft_rank(w) == 0) {
        wait_for(&b->done, 2);
        return;
    }
    weft_file *f = open_together(w, b);
    if (weft_rank(w) == 1) {
        while (n < 256 && weft_alloc(w, PIECE, &all[n]) == 0)
            n++;
        for (unsigned i = 1; i <= 3; i++)
            weft_free(w, all[n - i]);
        for (uint64_t i = 0; i < 2; i++)
            OK(weft_file_map(f, i * PIECE, &v, DEFAULT_TIME));
        for (unsigned i = 0; i < FILE_SLOTS; i++) {
            CHECK(i > 0 || comes_ahead(f, 3));
            OK(fab_wait(w, file_slot_settled, &f->maps_far.slot[i], now_ns() + patience_ns(20)));
        }
        OK(weft_file_map(f, 2 * PIECE, &v, DEFAULT_TIME));
        CHECK(!comes_ahead(f, 3));
        (void)cache_of(w); /* the answer shows that the gateway has been told */
        atomic_store(&b->half, 1);
    } else {
        wait_for(&b->half, 1);
        static uint8_t some[WEFT_FILE_PIECE];
        size_t got;
        OK(weft_file_read(f, some, PIECE, 3 * PIECE, &got, patience_ns(20)));
        CHECK(got == PIECE && right(some, SEED, 3 * PIECE, got));
    }
    atomic_fetch_add(&b->done, 1);
    wait_for(&b->done, 2);
    OK(weft_file_close(f));
}

static void test_mapped_without_room(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(3, mapped_without_room, shared_words(sizeof(struct hosts_board)), HOSTS), 0);
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
    const struct CMUnitTest tests[] = {
        TEST(test_overwritten), TEST(test_memory),          TEST(test_full_pool),           TEST(test_no_room),   TEST(test_cramped),
        TEST(test_mapped),      TEST(test_mapped_in_order), TEST(test_mapped_without_room), TEST(test_full_disk), TEST(test_lies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
