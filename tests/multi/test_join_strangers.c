/* SPDX-License-Identifier: MIT
 *
 * Joining: which nodes are refused, and what processes that do not belong to the cluster can do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>

#include "cluster/cluster.h"
#include "join_test.h"

static int secrets(int rank, void *arg)
{
    _Atomic int *refused = arg;
    /* 0 and 1 have the secret; 2 has a wrong one, 3 none: they want to be node 1 */
    static const char *const secret[] = {"right", "right", "wrong", NULL};
    if (rank == 1)
        wait_refused(refused, 2);
    int rc = attempt(rank == 0 ? 0 : 1, 2, 40 * WEFT_SECOND, secret[rank]);
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
    _Atomic int *refused = arg; /* the second of nodes 1 and 3, which both claim number 1 */
    if (rank == 2)
        wait_refused(refused, 1);
    int rc = attempt(rank == 3 ? 1 : (uint32_t)rank, 3, 40 * WEFT_SECOND, NULL);
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
    _Atomic int *refused = arg; /* becomes 1 when the node that expects a cluster of another size has been refused */
    if (rank == 1)
        wait_refused(refused, 1);
    int rc = attempt(rank == 0 ? 0 : 1, rank < 2 ? 2 : 3, 40 * WEFT_SECOND, NULL);
    if (rank < 2) {
        OK(rc);
    } else {
        CHECK(rc == -EINVAL);
        CHECK(strstr(weft_error(), "3 nodes"));
        ++*refused;
    }
    return 0;
}

static void test_size_differs(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(3, sizes, shared_words(sizeof(int))), 0);
}

/* Connections that send invalid data, or nothing, do not prevent the nodes from joining. */
struct visit {
    _Atomic uint32_t visited, left;
};

static int strangers(int rank, void *arg)
{
    struct visit *visit = arg;
    if (rank < 2) {
        if (rank == 1)
            wait_for(&visit->visited, 2);
        OK(attempt((uint32_t)rank, 2, 40 * WEFT_SECOND, NULL));
        if (rank == 1)
            visit->left = 1;
        return 0;
    }
    uint64_t seed = (uint64_t)rank;
    for (int i = 0; i < 20; i++) {
        int fd = cluster_connect(coord, base_deadline(40 * WEFT_SECOND));
        CHECK(fd >= 0);
        if (rank == 3) {
            uint64_t junk[64];
            for (int k = 0; k < 64; k++)
                junk[k] = random_next(&seed);
            if (i % 2)
                junk[0] = UINT64_C(0x7765667430303031);
            (void)!write(fd, junk, random_next(&seed) % sizeof junk);
        }
        if (i % 3 == 0)
            close(fd); /* otherwise the connection stays open, and sends nothing more */
    }
    visit->visited++;
    wait_for(&visit->left, 1);
    return 0;
}

static void test_strangers(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    new_coord();
    assert_int_equal(processes_failed(4, strangers, shared_words(4096)), 0);
}

/* A connection that sends nothing is closed while node 0 still waits for its nodes. */
static int silent(int rank, void *arg)
{
    _Atomic int *dismissed = arg;
    if (rank < 2) {
        while (rank == 1 && !*dismissed)
            usleep(1000);
        OK(attempt((uint32_t)rank, 2, 40 * WEFT_SECOND, NULL));
        return 0;
    }
    int64_t deadline = base_deadline(40 * WEFT_SECOND);
    int first = cluster_connect(coord, deadline), second = cluster_connect(coord, deadline);
    CHECK(first >= 0 && second >= 0);
    struct pollfd fds[2] = {{.fd = first, .events = POLLIN}, {.fd = second, .events = POLLIN}};
    CHECK(poll(fds, 2, 40000) > 0);
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

#if defined(__linux__)
/* More silent strangers than node 0 has descriptors, and then a node: the strangers make room. */
static int too_many(int rank, void *arg)
{
    _Atomic uint32_t *connected = arg; /* 1: the strangers, 2: the nodes */
    struct rlimit limit;
    if (rank < 2) {
        OK(getrlimit(RLIMIT_NOFILE, &limit));
        limit.rlim_cur = 40;
        OK(rank ? 0 : setrlimit(RLIMIT_NOFILE, &limit));
        if (rank)
            wait_for(connected, 1);
        /* if thirty strangers together took two seconds, this would not be enough time */
        OK(attempt((uint32_t)rank, 2, 20 * WEFT_SECOND, NULL));
        *connected = 2;
        return 0;
    }
    for (int i = 0; i < 500; i++)
        CHECK(cluster_connect(coord, base_deadline(40 * WEFT_SECOND)) >= 0);
    *connected = 1;
    wait_for(connected, 2);
    return 0;
}

static void test_too_many(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(3, too_many, shared_words(4096)), 0);
}

/* Finds the address at which a process accepts side connections of its host. False: it does not listen yet. */
static bool side_address(int pid, char address[128])
{
    char path[64], link[64], line[256], name[108];
    for (int fd = 0; fd < 64; fd++) {
        unsigned long inode, of;
        snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
        ssize_t n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = '\0';
        if (sscanf(link, "socket:[%lu]", &inode) != 1)
            continue;
        bool found = false;
        FILE *all = fopen("/proc/net/unix", "r");
        while (all && !found && fgets(line, sizeof line, all))
            found = sscanf(line, "%*s %*s %*s %*s %*s %*s %lu %107s", &of, name) == 2 && of == inode && strstr(name, "@weft-side");
        if (all)
            fclose(all);
        if (found) {
            snprintf(address, 128, "unix:%s", name);
            return true;
        }
    }
    return false;
}

/* Strangers connect where side connections are accepted, and send nothing: they are not waited for one after the other. */
struct at_the_side {
    _Atomic uint32_t pid, connected, joined;
};

static int silent_at_the_side(int rank, void *arg)
{
    struct at_the_side *s = arg;
    char side[128];
    if (rank < 2) {
        if (rank == 0)
            s->pid = (uint32_t)getpid();
        else
            wait_for(&s->connected, 1);
        OK(attempt((uint32_t)rank, 2, 20 * WEFT_SECOND, NULL)); /* if each of 40 strangers took a second, this would not be enough time */
        s->joined++;
        return 0;
    }
    while (!s->pid || !side_address((int)s->pid, side))
        usleep(1000);
    for (int i = 0; i < 40; i++)
        CHECK(cluster_connect(side, base_deadline(40 * WEFT_SECOND)) >= 0);
    s->connected = 1;
    wait_for(&s->joined, 2);
    return 0;
}

static void test_silent_at_the_side(void **state)
{
    (void)state;
    new_coord();
    assert_int_equal(processes_failed(3, silent_at_the_side, shared_words(4096)), 0);
}

/* Another user listens at the address: a node that connects sends it nothing. */
static int other_user(int rank, void *arg)
{
    _Atomic uint32_t *step = arg; /* 1: the other user listens; 2: the node has connected to that listener */
    char bound[128], byte;
    if (rank == 1) {
        wait_for(step, 1);
        CHECK(attempt(1, 2, 40 * WEFT_SECOND, NULL) == -EACCES && strstr(weft_error(), "another user"));
        *step = 2;
        return 0;
    }
    OK(setuid(65534));
    int listener = cluster_listen(coord, bound, sizeof bound);
    CHECK(listener >= 0);
    *step = 1;
    struct pollfd p = {.fd = listener, .events = POLLIN};
    CHECK(poll(&p, 1, 40000) == 1);
    int fd = cluster_accept(listener);
    CHECK(fd >= 0);
    wait_for(step, 2);
    CHECK(read(fd, &byte, 1) == 0);
    return 0;
}

static void test_other_user(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can act as two users */
    new_coord();
    assert_int_equal(processes_failed(2, other_user, shared_words(4096)), 0);
}
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_secret),
        cmocka_unit_test(test_rank_twice),
        cmocka_unit_test(test_size_differs),
#if defined(__linux__)
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_silent_at_the_side),
        cmocka_unit_test(test_other_user),
#endif
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_silent),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
