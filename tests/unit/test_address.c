/* SPDX-License-Identifier: MIT
 *
 * Addresses: which are well-formed, listening and connecting at each kind, and what happens when nobody listens.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__linux__)
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#endif

#include <cmocka.h>

#include "cluster/cluster.h"

static void knows_a_well_formed_address(void **state)
{
    (void)state;
    static const char *const good[] = {
        "10.0.0.1:7654",
        "localhost:0",
        "[::1]:65535",
        "[fe80::1%en1]:1",
        "unix:/a/b",
        "unix:x",
#if defined(__linux__)
        "unix:@name"
#endif
    };
    static const char *const wrong[] = {"",      "host", "host:",   ":1",      "host:65536", "host:1x", "::1:5",    "[::1]5",
                                        "[::1]", "[]:1", "host:-1", "ho st:1", "unix:",      "unix:@",  "h:123456", "a/b:1"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (cluster_address_check(good[i]))
            fail_msg("%s", base_error());
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        base_error_clear();
        assert_int_equal(cluster_address_check(wrong[i]), -EINVAL);
        assert_non_null(strstr(base_error(), wrong[i]));
    }
    char longest[400] = "unix:/";
    memset(longest + 6, 'x', 200);
    assert_int_equal(cluster_address_check(longest), -EINVAL);
    memset(longest, 'h', 300);
    memcpy(longest + 300, ":1", 3);
    assert_int_equal(cluster_address_check(longest), -EINVAL);
}

/* A byte from the client arrives at the server; both ends are close-on-exec and non-blocking. */
static void meet(const char *address, const char *pattern)
{
    char bound[160];
    int listener = cluster_listen(address, bound, sizeof bound);
    if (listener < 0)
        fail_msg("%s", base_error());
    assert_non_null(strstr(bound, pattern));
    assert_null(strstr(bound, ":0"));
    assert_true(fcntl(listener, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(listener, F_GETFD) & FD_CLOEXEC);
    int client = cluster_connect(bound, base_deadline(10 * WEFT_SECOND));
    if (client < 0)
        fail_msg("%s", base_error());
    assert_true(fcntl(client, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(client, F_GETFD) & FD_CLOEXEC);
    struct pollfd p = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    int server = accept(listener, NULL, NULL);
    assert_true(server >= 0);
    char byte = 'x';
    assert_int_equal(write(client, &byte, 1), 1);
    byte = 0;
    p = (struct pollfd){.fd = server, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_int_equal(read(server, &byte, 1), 1);
    assert_int_equal(byte, 'x');
    close(server);
    close(client);
    cluster_unlisten(listener, bound);
}

static void listens_and_connects(void **state)
{
    (void)state;
    char dir[] = "/tmp/address-test-XXXXXX", address[96], path[64];
    meet("127.0.0.1:0", "127.0.0.1:");
    meet("localhost:0", "localhost:");
    int probe = socket(AF_INET6, SOCK_STREAM, 0);
    char bound[64];
    int v6 = cluster_listen("[::1]:0", bound, sizeof bound);
    if (probe >= 0 && v6 >= 0) /* a machine may have no IPv6 */
        meet("[::1]:0", "[::1]:");
    cluster_unlisten(v6, v6 >= 0 ? bound : "");
    close(probe);
#if defined(__linux__)
    snprintf(address, sizeof address, "unix:@address-test-%d", (int)getpid());
    meet(address, address);
#endif
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/s", dir);
    snprintf(address, sizeof address, "unix:%s", path);
    meet(address, address);
    assert_int_equal(access(path, F_OK), -1); /* cluster_unlisten() removed it */
    rmdir(dir);
}

static void replaces_only_a_dead_socket(void **state)
{
    (void)state;
    char dir[] = "/tmp/address-test-XXXXXX", address[96], path[64], bound[128];
    struct stat st;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/s", dir);
    snprintf(address, sizeof address, "unix:%s", path);
    int first = cluster_listen(address, bound, sizeof bound);
    assert_true(first >= 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(cluster_listen(address, bound, sizeof bound), -EADDRINUSE);
    assert_non_null(strstr(base_error(), path));
    close(first); /* as a killed process would: the file stays */
    int second = cluster_listen(address, bound, sizeof bound);
    assert_true(second >= 0);
    cluster_unlisten(second, bound);
    FILE *f = fopen(path, "w"); /* not a socket: never replaced */
    fclose(f);
    assert_int_equal(cluster_listen(address, bound, sizeof bound), -EADDRINUSE);
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
    rmdir(dir);
}

static void says_when_nobody_listens(void **state)
{
    (void)state;
    char bound[64];
    int fd = cluster_listen("127.0.0.1:0", bound, sizeof bound); /* a port that is free when closed */
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(cluster_connect(bound, base_deadline(30 * WEFT_MS)), -ETIMEDOUT);
    assert_non_null(strstr(base_error(), bound));
    assert_non_null(strstr(base_error(), "refused"));
    assert_int_equal(cluster_connect("unix:/nonexistent/s", base_deadline(30 * WEFT_MS)), -ETIMEDOUT);
    assert_non_null(strstr(base_error(), "/nonexistent/s"));
    assert_int_equal(cluster_connect("no-such-host.invalid:1", base_deadline(30 * WEFT_MS)), -EHOSTUNREACH);
    assert_int_equal(cluster_listen("192.0.2.1:0", bound, sizeof bound), -EADDRNOTAVAIL);
}

struct late {
    char address[64], bound[96];
    int fd;
};

static void *listen_late(void *arg)
{
    struct late *l = arg;
    base_sleep_ns(50 * WEFT_MS);
    l->fd = cluster_listen(l->address, l->bound, sizeof l->bound);
    return NULL;
}

static void waits_for_the_listener(void **state)
{
    (void)state;
    char dir[] = "/tmp/address-test-XXXXXX";
    struct late l = {.fd = -1};
    pthread_t thread;
    assert_non_null(mkdtemp(dir));
    snprintf(l.address, sizeof l.address, "unix:%s/s", dir);
    assert_int_equal(pthread_create(&thread, NULL, listen_late, &l), 0);
    int fd = cluster_connect(l.address, base_deadline(10 * WEFT_SECOND));
    pthread_join(thread, NULL);
    assert_true(fd >= 0);
    close(fd);
    cluster_unlisten(l.fd, l.bound);
    rmdir(dir);
}

#if defined(__linux__)
static void *come_up(void *arg)
{
    struct late *l = arg;
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    usleep(50000);
    if (!ioctl(fd, SIOCSIFFLAGS, &lo))
        l->fd = cluster_listen(l->address, l->bound, sizeof l->bound);
    close(fd);
    return NULL;
}

/* The only interface is down, and comes up later. Returns 0, or 77 if this user may have no network of its own. */
static int in_own_network(void)
{
    struct late l = {.fd = -1, .address = "127.0.0.1:7000"};
    const struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(7000), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    pthread_t thread;
    if (unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNET : CLONE_NEWNET))
        return 77;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!connect(fd, (const struct sockaddr *)&to, sizeof to) || errno != ENETUNREACH || pthread_create(&thread, NULL, come_up, &l))
        return 1;
    close(fd);
    fd = cluster_connect(l.address, base_deadline(30 * WEFT_SECOND));
    pthread_join(thread, NULL);
    if (fd < 0)
        fprintf(stderr, "%s\n", base_error());
    return fd < 0;
}

static void waits_for_the_network(void **state)
{
    (void)state;
    int how = 0;
    pid_t pid = fork();
    if (pid == 0)
        _exit(in_own_network());
    assert_true(pid > 0 && waitpid(pid, &how, 0) == pid && WIFEXITED(how));
    if (WEXITSTATUS(how) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(how), 0);
}
#endif

/* --- several nodes of a host listen at one address: exactly one of them does, also if a killed node has left the socket file --- */

enum { RIVALS = 4, RACES = 300 };

struct race {
    const char *address;
    _Atomic int round, ready;
    int fd[RIVALS];
};

struct rival {
    struct race *race;
    int k;
};

static void *listens(void *arg)
{
    const struct rival *r = arg;
    char bound[128];
    for (int i = 1; i <= RACES; i++) {
        while (atomic_load(&r->race->round) < i)
            sched_yield();
        r->race->fd[r->k] = cluster_listen(r->race->address, bound, sizeof bound);
        atomic_fetch_add(&r->race->ready, 1);
    }
    return NULL;
}

/* Begins a round, and returns whether one thread listens and can be reached. */
static bool one_listens(struct race *race, int round)
{
    atomic_store(&race->round, round);
    while (atomic_load(&race->ready) < round * RIVALS)
        sched_yield();
    int listeners = 0, others = 0;
    for (int k = 0; k < RIVALS; k++) {
        listeners += race->fd[k] >= 0;
        others += race->fd[k] == -EADDRINUSE;
    }
    int fd = cluster_connect(race->address, base_deadline(WEFT_SECOND));
    close(fd);
    for (int k = 0; k < RIVALS; k++)
        close(race->fd[k]); /* as killed processes would: the file stays */
    return fd >= 0 && listeners == 1 && others == RIVALS - 1;
}

static void one_of_several_listens(void **state)
{
    (void)state;
    char dir[] = "/tmp/address-test-XXXXXX", address[96];
    assert_non_null(mkdtemp(dir));
    snprintf(address, sizeof address, "unix:%s/s", dir);
    struct race race = {.address = address};
    struct rival rival[RIVALS];
    pthread_t thread[RIVALS];
    int wrong = 0;
    for (int k = 0; k < RIVALS; k++) {
        rival[k] = (struct rival){&race, k};
        assert_int_equal(pthread_create(&thread[k], NULL, listens, &rival[k]), 0);
    }
    for (int round = 1; round <= RACES; round++)
        wrong += !one_listens(&race, round);
    for (int k = 0; k < RIVALS; k++)
        pthread_join(thread[k], NULL);
    unlink(address + strlen("unix:"));
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_a_well_formed_address),
        cmocka_unit_test(listens_and_connects),
        cmocka_unit_test(replaces_only_a_dead_socket),
        cmocka_unit_test(one_of_several_listens),
        cmocka_unit_test(says_when_nobody_listens),
        cmocka_unit_test(waits_for_the_listener),
#if defined(__linux__)
        cmocka_unit_test(waits_for_the_network),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
