/* SPDX-License-Identifier: MIT
 *
 * Joining: which nodes are missing, nodes that fail or are late while all connect, and where the nodes meet.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "cluster/cluster.h"
#include "cluster/wire.h"
#include "fabric/fabric.h"
#include "join_test.h"

/* A port for this test, below the range that the system uses for connections. */
static int port(void)
{
    static int number;
    return 20000 + ((int)getpid() * 8 + number++) % 12000;
}

static int missing(int rank, void *arg)
{
    (void)arg;
    static const uint32_t ranks[] = {0, 2, 4};
    /* Node 0 waits long enough for the two nodes that come, and tells them which nodes are missing. */
    int rc = attempt(ranks[rank], 5, (rank == 0 ? 4 : 40) * WEFT_SECOND, NULL);
    CHECK(rc == -ETIMEDOUT);
    CHECK(strstr(weft_error(), "nodes 1 and 3 of 5") != NULL); /* all of them name the missing nodes */
    return 0;
}

static void test_missing(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(3, missing, NULL), 0);
}

/* One node fails after all have met: the others are told at once which one failed, although their time-out is long. */
static int fails_half_way(int rank, void *arg)
{
    const int *failing = arg;
    if (rank == *failing) {
        setenv("WEFT_TRANSPORT", "tb", 1);
        setenv("WEFT_VERBS_LIBRARY", "/nonexistent/libibverbs.so", 1);
    }
    int rc = attempt((uint32_t)rank, 4, 300 * WEFT_SECOND, NULL);
    char who[32];
    snprintf(who, sizeof who, "node %d (pid ", *failing);
    CHECK(strstr(weft_error(), "/nonexistent/libibverbs.so")); /* the reason */
    if (rank == *failing)
        CHECK(rc == -EHOSTUNREACH);
    else
        CHECK(rc == -ECONNRESET && strstr(weft_error(), who) && strstr(weft_error(), "failed while joining"));
    return 0;
}

static void test_fails_half_way(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        new_coord();
        assert_int_equal(processes_failed(4, fails_half_way, &i), 0);
    }
}

#if defined(__linux__)
/* Nobody's weft_open() ends before all have connected with all: node 2 does not take the connection of node 3 yet, when
 * nodes 0 and 1 have connected with all others. */
struct held_up {
    _Atomic uint32_t opened, killed;
    bool dies;
};
static struct held_up *held_up; /* used in node 2 */
static _Atomic int to_drop;     /* how many side connections this process accepts and drops */

/* Whether side connections are accepted here. Node 0 also accepts at `coord`. */
static bool is_side(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_un local;
        struct sockaddr_in in;
    } here;
    socklen_t room = sizeof here;
    CHECK(getsockname(fd, &here.any, &room) == 0);
    return here.any.sa_family == AF_UNIX ? strstr(here.local.sun_path + 1, "weft-side") != NULL
                                         : ntohs(here.in.sin_port) != atoi(strrchr(coord, ':') + 1);
}

int accept4(int fd, struct sockaddr *address, socklen_t *len, int flags)
{
    if (held_up) {
        usleep(500000);
        CHECK(held_up->opened == 0);
        if (held_up->dies)
            raise(SIGKILL);
    }
    int got = (int)syscall(SYS_accept4, fd, address, len, flags);
    if (got >= 0 && to_drop > 0 && is_side(fd)) {
        to_drop--;
        close(got);
        errno = ECONNABORTED;
        return -1;
    }
    return got;
}

/* Only half of a table of nodes is sent until this time, as if the node read no faster. */
static int64_t table_until;

ssize_t send(int fd, const void *bytes, size_t len, int flags)
{
    static int fd_full = -1;
    if (table_until && fd_full < 0 && len == 4 * sizeof(struct wire_card)) {
        fd_full = fd;
        len /= 2;
    } else if (table_until && fd == fd_full && now_ns() < table_until) {
        usleep(1000);
        errno = EAGAIN;
        return -1;
    }
    return syscall(SYS_sendto, fd, bytes, len, flags, NULL, 0);
}

/* A node that does not read for a while still gets all of its table. */
static int table_late(int rank, void *arg)
{
    (void)arg;
    table_until = rank == 0 ? now_ns() + 3 * WEFT_SECOND : 0;
    OK(attempt((uint32_t)rank, 4, (rank == 0 ? 30 : 300) * WEFT_SECOND, NULL));
    return 0;
}

/* If a node does not read until node 0 gives up, all nodes are told that; the node itself must not conclude that the secret is wrong. */
static int table_never(int rank, void *arg)
{
    _Atomic uint32_t *cut = arg;
    table_until = rank == 0 ? INT64_MAX : 0;
    int rc = attempt((uint32_t)rank, 4, (rank == 0 ? 4 : 300) * WEFT_SECOND, NULL);
    if (rank && strstr(weft_error(), "failed while node 0 sent the addresses of all nodes"))
        ++*cut;
    else
        CHECK((rc == -ETIMEDOUT || rc == -ECONNRESET) && strstr(weft_error(), "does not receive the addresses of all nodes"));
    return 0;
}

static void test_table_cut(void **state)
{
    (void)state;
    _Atomic uint32_t *cut = shared_words(64);
    new_coord();
    assert_int_equal(processes_failed(4, table_late, NULL), 0);
    new_coord();
    assert_int_equal(processes_failed(4, table_never, cut), 0);
    assert_int_equal(*cut, 1);
}

static int one_connects_late(int rank, void *arg)
{
    struct held_up *h = arg;
    held_up = rank == 2 ? h : NULL;
    weft_node *w;
    weft_config c = {
        .bytes = sizeof c, .coord = coord, .rank = (uint32_t)rank, .size = 4, .pool_bytes = 1 << 20, .join_timeout_ns = 300 * WEFT_SECOND};
    int rc = weft_open(&w, &c);
    if (h->dies) {
        CHECK(rc == -ECONNRESET && strstr(weft_error(), "node 2 ") && w == NULL);
        return 0;
    }
    OK(rc);
    h->opened++;
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_close(w));
    return 0;
}

static void test_one_connects_late(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(4, one_connects_late, shared_words(64)), 0);
}

/* A node connects again if its connection is closed before it has authenticated itself. This happens to strangers when descriptors run
   out. */
static int dropped(int rank, void *arg)
{
    (void)arg;
    to_drop = rank == 0 ? 3 : 0;
    OK(attempt((uint32_t)rank, 3, 300 * WEFT_SECOND, NULL));
    CHECK(to_drop == 0);
    return 0;
}

static void test_dropped(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(3, dropped, NULL), 0);
}

/* A node dies while the nodes connect: all other nodes report its death, including those that had connected with it. */
static void test_dies_connecting(void **state)
{
    (void)state;
    int status[NODES_MAX];
    struct held_up *h = shared_words(64);
    h->dies = true;
    new_coord();
    processes_run(4, one_connects_late, h, status);
    for (int i = 0; i < 4; i++)
        assert_true(i == 2 ? WIFSIGNALED(status[i]) : status[i] == 0);
}
#endif

/* Node 0 has too few descriptors for all nodes that connect: it reports this at once, and does not report nodes as missing. */
static int few_files(int rank, void *arg)
{
    _Atomic uint32_t *failed = arg;
    struct rlimit limit;
    if (rank == 0) {
        OK(getrlimit(RLIMIT_NOFILE, &limit));
        limit.rlim_cur = 16;
        OK(setrlimit(RLIMIT_NOFILE, &limit));
        int rc = attempt(0, 64, 300 * WEFT_SECOND, NULL);
        *failed = 1;
        CHECK(rc == -EMFILE && strstr(weft_error(), "a cluster of 64") && strstr(weft_error(), "the limit is 16") &&
              strstr(weft_error(), "ulimit -n"));
        return 0;
    }
    /* All connections are nodes: a stranger would be closed to make room for the next. */
    while (!*failed)
        (void)attempt((uint32_t)rank, 64, 2 * WEFT_SECOND, NULL);
    return 0;
}

static void test_few_files(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(NODES_MAX, few_files, shared_words(4096)), 0);
}

static void test_no_coordinator(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(attempt(1, 2, 100 * WEFT_MS, NULL), -ETIMEDOUT);
    assert_non_null(strstr(weft_error(), "node 0 did not answer"));
}

/* Node 0 reports what it knows about the reason why a node is missing. */
static int why_missing(int rank, void *arg)
{
    _Atomic uint32_t *refused = arg;
    if (rank == 0) {
        CHECK(attempt(0, 3, 5 * WEFT_SECOND, "right") == -ETIMEDOUT);
        CHECK(strstr(weft_error(), "nodes 1 and 2 of 3"));
        CHECK(*refused == 2); /* otherwise the machine was so busy that five seconds were not enough */
        CHECK(strstr(weft_error(), getenv("TEST_NAMESPACES") ? "1 connection from 10.77.0.2 was refused: wrong secret"
                                                             : "1 connection from 127.0.0.1 was refused: wrong secret"));
        CHECK(strstr(weft_error(), "node 2 expects 4 nodes, but node 0 expects 3"));
        return 0;
    }
    int rc = attempt((uint32_t)rank, rank == 1 ? 3 : 4, 40 * WEFT_SECOND, rank == 1 ? "wrong" : "right");
    CHECK(rc == (rank == 1 ? -EACCES : -EINVAL));
    ++*refused;
    return 0;
}

static void test_why_missing(void **state)
{
    (void)state;
    snprintf(coord, sizeof coord, "%s:%d", first_host(), port());
    assert_int_equal(processes_failed(3, why_missing, shared_words(4096)), 0);
}

static int over_tcp(int rank, void *arg)
{
    (void)arg;
    OK(attempt((uint32_t)rank, 3, 40 * WEFT_SECOND, "s"));
    return 0;
}

static void test_tcp(void **state)
{
    (void)state;
    snprintf(coord, sizeof coord, "%s:%d", first_host(), port());
    assert_int_equal(processes_failed(3, over_tcp, NULL), 0);
}

/* Nodes that get only their number and a hostfile: weft's own, MLX's, or MLX's environment. */
struct hostfile_case {
    const char *text;
    bool mlx; /* the nodes are started by MLX's variables */
    char path[64], coordinator[64];
};

static int by_hostfile(int rank, void *arg)
{
    const struct hostfile_case *c = arg;
    char number[16];
    snprintf(number, sizeof number, "%d", rank);
    unsetenv("WEFT_RANK");
    setenv(c->mlx ? "MLX_RANK" : "WEFT_RANK", number, 1);
    setenv(c->mlx ? "MLX_IBV_DEVICES" : "WEFT_HOSTFILE", c->path, 1);
    setenv(c->mlx ? "MLX_JACCL_COORDINATOR" : "WEFT_COORD", c->coordinator, 1);
    setenv("WEFT_POOL", "1M", 1);
    weft_node *w;
    OK(weft_open(&w, NULL));
    CHECK(weft_rank(w) == (uint32_t)rank && weft_size(w) == 3);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_close(w));
    return 0;
}

static void test_hostfile(void **state)
{
    (void)state;
    struct hostfile_case cases[] = {
        {"{\"weft\": 1, \"hosts\": [{\"ips\": [\"127.0.0.1\"], \"slots\": 2}, {\"ips\": [\"127.0.0.1\"]}]}", false, "", ""},
        {"[{\"ssh\": \"a\", \"ips\": [\"127.0.0.1\"], \"rdma\": [null, \"x\", \"y\"]},"
         " {\"ssh\": \"a\", \"ips\": [\"127.0.0.1\"], \"rdma\": [\"x\", null, \"y\"]},"
         " {\"ssh\": \"a\", \"ips\": [\"127.0.0.1\"], \"rdma\": [\"x\", \"y\", null]}]",
         false, "", ""},
        {"[[null, \"x\", \"y\"], [\"x\", null, \"y\"], [\"x\", \"y\", null]]", true, "", ""},
    };
    for (int i = 0; i < 3; i++) {
        struct hostfile_case *c = &cases[i];
        int status[NODES_MAX];
        snprintf(c->path, sizeof c->path, "/tmp/weft-test-hosts-XXXXXX");
        int fd = mkstemp(c->path);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, c->text, strlen(c->text)), strlen(c->text));
        close(fd);
        snprintf(c->coordinator, sizeof c->coordinator, "%s:%d", first_host(), port());
        processes_run(3, by_hostfile, c, status);
        unlink(c->path);
        for (int k = 0; k < 3; k++)
            assert_int_equal(status[k], 0);
    }
}

static void test_alone(void **state)
{
    (void)state;
    unsetenv("WEFT_RANK");
    weft_node *w;
    assert_int_equal(weft_open(&w, NULL), 0);
    assert_int_equal(weft_size(w), 1);
    assert_int_equal(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), 0);
    assert_int_equal(weft_close(w), 0);
    assert_int_equal(weft_close(NULL), 0);
    weft_config c = {.bytes = sizeof c, .transport = "pigeon"};
    assert_int_equal(weft_open(&w, &c), -EINVAL);
    assert_null(w);
    /* many times, so that a leak would use up descriptors or memory */
    for (int i = 0; i < 300; i++) {
        assert_int_equal(weft_open(&w, NULL), 0);
        assert_int_equal(weft_close(w), 0);
    }
}

/* weft_close() succeeds once, and only while no thread waits in a call. It must know each kind of wait. */
struct closing {
    weft_node *w;
    weft_gaddr word;
    int how, rc;
};

static void *wait_for_word(void *arg)
{
    struct closing *c = arg;
    c->rc = weft_wait_until(c->w, c->word, WEFT_EQ, 1, NULL, 100 * WEFT_SECOND);
    return NULL;
}

static void *wait_for_lock(void *arg)
{
    struct closing *c = arg;
    c->rc = weft_lock(c->w, c->word, 100 * WEFT_SECOND, NULL);
    return NULL;
}

static void test_close(void **state)
{
    (void)state;
    unsetenv("WEFT_RANK");
    for (int how = 0; how < 2; how++) {
        struct closing c = {.rc = 1};
        pthread_t thread;
        assert_int_equal(weft_open(&c.w, NULL), 0);
        assert_int_equal(weft_alloc(c.w, 8, &c.word), 0);
        *(uint64_t *)weft_ptr(c.w, c.word, 8) = 0;
        if (how)
            assert_int_equal(weft_lock(c.w, c.word, WEFT_TIMEOUT_DEFAULT, NULL), 0);
        assert_int_equal(pthread_create(&thread, NULL, how ? wait_for_lock : wait_for_word, &c), 0);
        while (!atomic_load(&c.w->waiting))
            usleep(1000);
        assert_int_equal(weft_close(c.w), -EBUSY);
        assert_non_null(strstr(weft_error(), "1 thread of this node still waits in calls of weft"));
        assert_int_equal(how ? weft_unlock(c.w, c.word) : weft_put_signal(c.w, 0, NULL, 0, c.word, 1, NULL), 0);
        pthread_join(thread, NULL);
        assert_int_equal(c.rc, 0);
        assert_int_equal(weft_close(c.w), 0);
        assert_int_equal(weft_close(c.w), -EINVAL);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_close),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_fails_half_way),
#if defined(__linux__)
        cmocka_unit_test(test_one_connects_late),
        cmocka_unit_test(test_dies_connecting),
        cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_table_cut),
#endif
        cmocka_unit_test(test_few_files),
        cmocka_unit_test(test_no_coordinator),
        cmocka_unit_test(test_why_missing),
        cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_hostfile),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
