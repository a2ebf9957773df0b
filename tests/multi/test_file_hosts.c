/* SPDX-License-Identifier: MIT
 *
 * The file service with readers on several other hosts, who get pieces from each other: what the gateway sends, slow links, and readers
 * that are killed, stopped, away, or leave.
 */
#include "file_hosts_test.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>

/* With room for copies of the whole file: a reader that is far behind still gets the file from other readers. */
static const char *const ROOMY[] = {"WEFT_SERVE=file", "WEFT_POOL=512M", "WEFT_FILE_CACHE=64M", "WEFT_LOG=error", NULL};

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

/* What this node has got from all others. */
static uint64_t fetched_by(weft_node *w)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < weft_size(w); i++)
        bytes += i == weft_rank(w) ? 0 : stats(w, i).fetched_bytes;
    return bytes;
}

/* --- the file leaves the gateway about once, and each reader gets it once --- */

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
        CHECK(!getenv("TEST_NAMESPACES") || (sent > BYTES && sent < BYTES + BYTES / 2));
    } else {
        weft_file *f = open_together(w, b);
        before = fetched_by(w);
        read_pieces(f, 0, PIECES);
        CHECK(fetched_by(w) - before == BYTES);
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
    assert_true(all >= READERS * BYTES); /* a piece is named again if a reader did not begin to get it before its lease ended */
    assert_true(b->given >= BYTES && b->given < 2 * BYTES);
}

/* --- the node that asks first gets the piece first --- */

/* Nodes ask one after the other for a piece that the gateway is still reading. The first one gets it from the gateway. */
static void in_turn(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    be_patient(w);
    if (weft_rank(w) == 0) {
        /* The file's time is a whole second, as on file systems without fractions: the gateway reads it when it is two seconds old. */
        struct timespec t[2];
        clock_gettime(CLOCK_REALTIME, &t[0]);
        t[0].tv_nsec = 0;
        t[1] = t[0];
        CHECK(utimensat(AT_FDCWD, in_folder("file"), t, 0) == 0);
        atomic_store(&b->pid, 1);
        wait_for(&b->done, weft_size(w) - 1);
        return;
    }
    static uint8_t some[WEFT_FILE_PIECE];
    weft_op op = {0};
    size_t n;
    wait_for(&b->pid, 1);
    weft_file *f = open_together(w, b);
    wait_for(&b->half, weft_rank(w) - 1);
    OK(weft_file_read_start(f, some, PIECE, 0, &n, &op));
    int64_t deadline = now_ns() + patience_ns(10);
    while (cache_of(w).disk_reads + cache_of(w).hits < weft_rank(w)) /* the gateway has this request */
        CHECK(now_ns() < deadline);
    atomic_fetch_add(&b->half, 1);
    OK(weft_wait(w, &op, DEFAULT_TIME));
    CHECK(n == PIECE && right(some, SEED, 0, n));
    for (unsigned i = 0; i < FILE_SLOTS; i++)
        if (file_slot_state(&f->reads.slot[i]) == SLOT_HELD && f->reads.slot[i].index == 0)
            CHECK((weft_gaddr_node(f->reads.slot[i].at) == 0) == (weft_rank(w) == 1));
    meet(&b->done, weft_size(w) - 1);
    OK(weft_file_close(f));
}

static void test_in_turn(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(4, in_turn, shared_words(sizeof(struct hosts_board)), HOSTS), 0);
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

/* Runs nodes on hosts whose links have this rate, with a file of so many bytes. What they have told is in the result. */
static struct hosts_board *over_slow_links(const char *rate, int nodes, node_fn fn, uint64_t bytes)
{
    char how[96];
    snprintf(how, sizeof how, "add dev DEVICE root tbf rate %s burst 64k latency 50ms", rate);
    if (!getenv("TEST_NAMESPACES") || !each_host(how)) {
        print_message("the links are not slow here\n");
        skip();
    }
    struct hosts_board *b = shared_words(sizeof *b);
    write_file(in_folder("file"), SEED, bytes, O_TRUNC);
    int failed = nodes_failed_with(nodes, fn, b, ROOMY);
    assert_true(each_host("del dev DEVICE root"));
    assert_int_equal(failed, 0);
    return b;
}

/* Four hosts with links over which the pieces that are asked for together take longer than a second. All the same the gateway sends most
 * of them once. */
static void test_slow_links(void **state)
{
    (void)state;
    const struct hosts_board *b = over_slow_links("20mbit", 4, slowly, SLOW_PIECES * PIECE);
    printf("given by the gateway %.2f times, passed on %.2f times\n", (double)b->given / (double)(SLOW_PIECES * PIECE),
           (double)b->passed / (double)(SLOW_PIECES * PIECE));
    assert_int_equal(b->given + b->passed, 3 * SLOW_PIECES * PIECE);
    assert_true(b->given < 2 * SLOW_PIECES * PIECE);
}

/* Over a link on which a piece takes long, a reader asks for many pieces in advance, but has few of them under way, because messages wait
 * behind them. */
static void few_at_once(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    if (weft_rank(w) == 1) {
        static uint8_t some[WEFT_FILE_PIECE];
        weft_file *f;
        uint32_t most = 0, asked = 0;
        OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
        for (uint64_t piece = 0; piece < 3 * FILE_AHEAD_FAR; piece++) {
            weft_op op;
            size_t n;
            OK(weft_file_read_start(f, some, PIECE, piece * PIECE, &n, &op));
            while (weft_test(w, &op) == -EINPROGRESS) {
                uint32_t gets = 0, ready = 0;
                for (unsigned i = 0; i < FILE_SLOTS; i++) {
                    int state = file_slot_state(&f->reads.slot[i]);
                    gets += state == SLOT_GETS;
                    ready += state == SLOT_GETS || state == SLOT_READY;
                }
                most = gets > most ? gets : most;
                asked = ready > asked ? ready : asked;
                usleep(1000);
            }
            OK(weft_wait(w, &op, patience_ns(100)));
            CHECK(n == PIECE && right(some, SEED, piece * PIECE, n));
        }
        b->given = most;
        b->passed = asked;
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, patience_ns(100)));
}

static void test_few_at_once(void **state)
{
    (void)state;
    const struct hosts_board *b = over_slow_links("200mbit", 2, few_at_once, BYTES);
    printf("at most %u pieces under way, of %u that were asked for\n", (unsigned)b->given, (unsigned)b->passed);
    assert_true(b->given >= 1 && b->given <= FILE_GETS_LEAST + 1); /* the one that is wanted now may come in addition */
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
            gets = gets || file_slot_state(&f->reads.slot[i]) == SLOT_GETS;
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

/* --- readers that got a lease and went away --- */

/* Gets a lease of a piece, as if to get it into this node's pool, and does nothing with it. */
static void lease_only(weft_node *w, weft_file *f, uint64_t index)
{
    weft_request r = file_request(f, FILE_LEASE);
    struct gateway_question q = {.record = &r};
    r.flags = FILE_KEEPS;
    r.arg[0] = index;
    OK(gateway_ask_wait(gateway_in(w), &q, DEFAULT_TIME, NULL, NULL, NULL));
}

/* The leases of nodes 1 and 3 have ended by time, and node 2 waits for the copies that they seem to be getting. When node 1 closes its
 * handle, node 2 gets the piece from the gateway. When the file changes, it gets an error. */
static void left(weft_node *w, void *arg)
{
    struct hosts_board *b = arg;
    static uint8_t some[WEFT_FILE_PIECE];
    size_t n;
    uint32_t me = weft_rank(w);
    be_patient(w);
    if (me == 0) {
        wait_for(&b->half, 3);
        usleep(300000); /* node 2's request is most likely here */
        write_file(in_folder("file"), SEED + 1, BYTES, 0);
        wait_for(&b->done, 1);
        return;
    }
    weft_file *f = open_together(w, b);
    if (me != 2)
        lease_only(w, f, me == 1 ? 0 : 2);
    meet(&b->gone, 3);
    if (me == 1) {
        usleep((useconds_t)(FILE_LEASE_NS / 1000) + 1500000);
        atomic_fetch_add(&b->half, 1);
        usleep(300000); /* as above */
        OK(weft_file_close(f));
        wait_for(&b->done, 1); /* a node that leaves is another matter */
        return;
    }
    if (me == 2) {
        wait_for(&b->half, 1);
        OK(weft_file_read(f, some, PIECE, 0, &n, patience_ns(20)));
        CHECK(n == PIECE && right(some, SEED, 0, n));
        atomic_fetch_add(&b->half, 2);
        CHECK(weft_file_read(f, some, PIECE, 2 * PIECE, &n, patience_ns(20)) == -ESTALE);
        atomic_store(&b->done, 1);
    }
    wait_for(&b->done, 1);
    OK(weft_file_close(f));
}

static void test_left(void **state)
{
    (void)state;
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(4, left, shared_words(sizeof(struct hosts_board)), HOSTS), 0);
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

/* --- a reader that has copies is silent --- */

struct silence_plan {
    enum silence how;
    struct hosts_board *board;
};

/* Node 1 has copies of the first pieces when it becomes silent. Each read of node 2 gets right bytes before its deadline. */
static void one_is_silent(weft_node *w, void *arg)
{
    const struct silence_plan *p = arg;
    struct hosts_board *b = p->board;
    if (weft_rank(w) == 0) {
        wait_for(&b->done, 1);
        b->given = cache_of(w).given_bytes;
        end_silence(p->how, b);
        atomic_store(&b->gone, 1);
        return;
    }
    weft_file *f = open_together(w, b);
    if (weft_rank(w) == 1) {
        read_pieces(f, 0, FEW);
        (void)cache_of(w); /* the answer shows that the gateway has been told of the copies */
        atomic_store(&b->pid, (uint32_t)getpid());
        wait_for(&b->gone, 1);
    } else {
        wait_for(&b->pid, 1);
        make_silent(p->how, b);
        read_pieces(f, 0, PIECES);
        note_silence(w, p->how, b);
        atomic_store(&b->done, 1);
        wait_for(&b->gone, 1);
    }
    OK(weft_file_close(f));
}

static void silence(enum silence how)
{
    struct silence_plan p = {how, shared_words(sizeof *p.board)};
    write_file(in_folder("file"), SEED, BYTES, O_TRUNC);
    assert_int_equal(nodes_failed_with(3, one_is_silent, &p, SILENCE), 0);
    check_silence(how, p.board);
}

static void test_stopped(void **state)
{
    (void)state;
    silence(STOPPED);
}

static void test_cut_off(void **state)
{
    (void)state;
    if (can_cut_off())
        silence(CUT_OFF);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {TEST(test_once),      TEST(test_in_turn),     TEST(test_one_ends),    TEST(test_slow_links),
                                       TEST(test_one_dies),  TEST(test_one_is_away), TEST(test_two_handles), TEST(test_left),
                                       TEST(test_one_stops), TEST(test_few_at_once), TEST(test_stopped),     TEST(test_cut_off)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
