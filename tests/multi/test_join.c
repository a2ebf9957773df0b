/* SPDX-License-Identifier: MIT
 *
 * Joining: who is missing, who is refused, what a stranger can do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "cluster/cluster.h"
#include "cluster_test.h"

static char coord[64];

static void new_coord(void)
{
    static unsigned number;
    snprintf(coord, sizeof coord, "unix:@weft-join-%d-%u", (int)getpid(), number++);
    unsetenv("WEFT_SECRET");
}

/* Open as `rank` of `size`; what came of it, and what was said. */
static int attempt(uint32_t rank, uint32_t size, int64_t timeout, const char *secret)
{
    weft *w;
    weft_config c = {.coord = coord, .rank = rank, .size = size, .pool_bytes = 1 << 20, .join_timeout_ns = timeout,
                     .secret = secret};
    int rc = weft_open(&w, &c);
    if (rc == 0) {
        CHECK(weft_rank(w) == rank && weft_size(w) == size && weft_alive_count(w) == size && weft_epoch(w) == 1);
        OK(weft_barrier(w, WEFT_DEFAULT));
        OK(weft_close(w));
    } else {
        CHECK(w == NULL);
    }
    return rc;
}

static int missing(int rank, void *arg)
{
    (void)arg;
    static const uint32_t ranks[] = {0, 2, 4};
    int rc = attempt(ranks[rank], 5, 300 * WEFT_MS, NULL);
    CHECK(rc == -ETIMEDOUT);
    CHECK(strstr(weft_error(), "nodes 1 and 3 of 5") != NULL); /* all of them know who */
    return 0;
}

static void test_missing(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(3, missing, NULL), 0);
}

static void test_no_coordinator(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(attempt(1, 2, 100 * WEFT_MS, NULL), -ETIMEDOUT);
    assert_non_null(strstr(weft_error(), "node 0 has not come"));
}

/* The last to come waits until the others have had their answer: node 0 stops listening when all are there. */
static void wait_refused(const _Atomic int *refused, int count)
{
    while (*refused < count)
        usleep(1000);
}

static int secrets(int rank, void *arg)
{
    _Atomic int *refused = arg;
    /* 0 and 1 have the secret; 2 has a wrong one, 3 none: they want to be node 1 */
    static const char *const secret[] = {"right", "right", "wrong", NULL};
    if (rank == 1)
        wait_refused(refused, 2);
    int rc = attempt(rank == 0 ? 0 : 1, 2, 20 * WEFT_SECOND, secret[rank]);
    if (rank < 2) {
        OK(rc);
    } else {
        CHECK(rc == -EACCES);
        ++*refused;
    }
    return 0;
}

static void test_secret(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(4, secrets, shared_words(sizeof(int))), 0);
}

static int twice(int rank, void *arg)
{
    _Atomic int *refused = arg; /* the second of 1 and 3, which both want to be node 1 */
    if (rank == 2)
        wait_refused(refused, 1);
    int rc = attempt(rank == 3 ? 1 : (uint32_t)rank, 3, 20 * WEFT_SECOND, NULL);
    if (rank % 2 == 1 && rc) {
        CHECK(rc == -EINVAL);
        CHECK(strstr(weft_error(), "node 1 has joined already") != NULL);
        CHECK(++*refused == 1);
    } else {
        OK(rc);
    }
    return 0;
}

static void test_rank_twice(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(4, twice, shared_words(sizeof(int))), 0);
}

static int sizes(int rank, void *arg)
{
    (void)arg;
    int rc = attempt((uint32_t)rank, rank == 0 ? 2 : 3, 400 * WEFT_MS, NULL);
    CHECK(rank == 0 ? rc == -ETIMEDOUT : rc == -EINVAL);
    CHECK(rank == 0 || strstr(weft_error(), "3 nodes"));
    return 0;
}

static void test_size_differs(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(2, sizes, NULL), 0);
}

/* Strangers that talk nonsense, or nothing, do not keep the nodes from joining. */
static int strangers(int rank, void *arg)
{
    (void)arg;
    if (rank < 2) {
        if (rank == 1)
            usleep(300000);
        OK(attempt((uint32_t)rank, 2, 5 * WEFT_SECOND, NULL));
        return 0;
    }
    usleep(50000);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = strlen(coord + 6);
    memcpy(a.sun_path + 1, coord + 6, n);
    uint64_t seed = (uint64_t)rank;
    for (int i = 0; i < 20; i++) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) == 0 && rank == 3) {
            uint64_t junk[64];
            for (int k = 0; k < 64; k++)
                junk[k] = random_next(&seed);
            if (i % 2)
                junk[0] = UINT64_C(0x7765667430303031);
            (void)!write(fd, junk, random_next(&seed) % sizeof junk);
        }
        if (i % 3 == 0)
            close(fd); /* else it stays open and says nothing more */
    }
    usleep(400000);
    return 0;
}

static void test_strangers(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    new_coord();
    assert_int_equal(processes_failed(4, strangers, NULL), 0);
}

/* Who says nothing is sent away, though node 0 waits on. */
static int silent(int rank, void *arg)
{
    _Atomic int *dismissed = arg;
    if (rank < 2) {
        while (rank == 1 && !*dismissed)
            usleep(1000);
        OK(attempt((uint32_t)rank, 2, 20 * WEFT_SECOND, NULL));
        return 0;
    }
    int64_t deadline = base_deadline(20 * WEFT_SECOND);
    int first = cluster_connect(coord, deadline), second = cluster_connect(coord, deadline);
    CHECK(first >= 0 && second >= 0);
    struct pollfd fds[2] = {{.fd = first, .events = POLLIN}, {.fd = second, .events = POLLIN}};
    CHECK(poll(fds, 2, 20000) > 0);
    *dismissed = 1;
    close(first);
    close(second);
    return 0;
}

static void test_silent(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(3, silent, shared_words(sizeof(int))), 0);
}

static int over_tcp(int rank, void *arg)
{
    (void)arg;
    OK(attempt((uint32_t)rank, 3, 10 * WEFT_SECOND, "s"));
    return 0;
}

static void test_tcp(void **state)
{
    (void)state;
    snprintf(coord, sizeof coord, "127.0.0.1:%d", 20000 + (int)getpid() % 20000);
    assert_int_equal(processes_failed(3, over_tcp, NULL), 0);
}

/* Nodes that are told nothing but their number and a hostfile: weft's own, MLX's, or MLX's environment. */
struct hostfile_case {
    const char *text;
    bool mlx; /* by MLX's variables */
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
    weft *w;
    OK(weft_open(&w, NULL));
    CHECK(weft_rank(w) == (uint32_t)rank && weft_size(w) == 3);
    OK(weft_barrier(w, WEFT_DEFAULT));
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
         " {\"ssh\": \"a\", \"ips\": [\"127.0.0.1\"], \"rdma\": [\"x\", \"y\", null]}]", false, "", ""},
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
        snprintf(c->coordinator, sizeof c->coordinator, "127.0.0.1:%d", 20000 + ((int)getpid() + 1 + i) % 20000);
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
    weft *w;
    assert_int_equal(weft_open(&w, NULL), 0);
    assert_int_equal(weft_size(w), 1);
    assert_int_equal(weft_barrier(w, WEFT_DEFAULT), 0);
    assert_int_equal(weft_close(w), 0);
    assert_int_equal(weft_close(NULL), 0);
    weft_config c = {.transport = "pigeon"};
    assert_int_equal(weft_open(&w, &c), -EINVAL);
    assert_null(w);
    /* many times: nothing is left behind that would run out */
    for (int i = 0; i < 300; i++) {
        assert_int_equal(weft_open(&w, NULL), 0);
        assert_int_equal(weft_close(w), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),      cmocka_unit_test(test_missing),      cmocka_unit_test(test_no_coordinator),
        cmocka_unit_test(test_secret),     cmocka_unit_test(test_rank_twice),   cmocka_unit_test(test_size_differs),
        cmocka_unit_test(test_strangers),  cmocka_unit_test(test_silent),       cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_hostfile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
