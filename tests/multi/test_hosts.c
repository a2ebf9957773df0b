/* SPDX-License-Identifier: MIT
 *
 * Nodes on different hosts: side connections over TCP, shm to some peers and rc to others, heartbeats, and the errors when a host cannot be
 * reached. In these tests, a host is an IPC namespace of its own (see base_host_id()). Started by over_softverbs.py, where all hosts share
 * the network, or by over_network.py, where each host has its own, and the transport is ofi.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "peer_checks.h"

struct place {
    char coord[64], listen[64]; /* listen: where node 0 listens, if that is not coord */
    int host_b;                 /* nodes from this number on are each on a host of its own */
    int size;
    int how;
    struct ends *shared;
};

static bool own_host(void)
{
    return unshare(CLONE_NEWIPC) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWIPC) == 0;
}

static const char *first_host_6(void)
{
    const char *there = getenv("TEST_COORD_6");
    return there ? there : "[::1]";
}

/* Finds a port that was free a moment ago, on every address. */
static void new_coord(struct place *p, const char *host)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    socklen_t len = sizeof at;
    int fd = socket_on_host(0, AF_INET6, SOCK_STREAM);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    close(fd);
    snprintf(p->coord, sizeof p->coord, "%s:%d", host, ntohs(at.sin6_port));
}

static weft_node *join_at(int rank, const struct place *p, int *failed)
{
    weft_node *w = NULL;
    weft_config c = {.bytes = sizeof c,
                     .coord = rank == 0 && p->listen[0] ? p->listen : p->coord,
                     .rank = (uint32_t)rank,
                     .size = (uint32_t)p->size,
                     .pool_bytes = 32 << 20,
                     .join_timeout_ns = 40 * WEFT_SECOND,
                     .secret = "of the test"};
    if (rank >= p->host_b)
        CHECK(own_host());
    else
        enter_host(0);
    int rc = weft_open(&w, &c);
    if (failed)
        *failed = rc;
    else
        OK(rc);
    return w;
}

static bool can_have_hosts(void)
{
    pid_t pid = fork();
    int status = 1;
    if (pid == 0)
        _exit(!own_host());
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static void prepare(struct place *p, const char *host)
{
    if (!can_have_hosts())
        skip(); /* namespaces are not permitted here */
    unsetenv("WEFT_TRANSPORT");
    new_coord(p, host);
}

/* --- everything works over every mixture of transports --- */

static int works(int rank, void *arg)
{
    const struct place *p = arg;
    weft_node *w = join_at(rank, p, NULL);
    for (int i = 0; i < p->size; i++) {
        bool same = i == rank || (i < p->host_b && rank < p->host_b);
        CHECK((weft_ptr(w, weft_gaddr_make((uint32_t)i, 0, 1 << 20), 8) != NULL) == same); /* loads and stores: shm */
    }
    check_everything(w, 100);
    OK(weft_close(w));
    return 0;
}

static void test_works(void **state)
{
    (void)state;
    struct place p = {.host_b = 2, .size = 4};
    prepare(&p, first_host());
    assert_int_equal(processes_failed(p.size, works, &p), 0);
    new_coord(&p, first_host());
    /* node 0 listens on all addresses: the others know the address at which they found it */
    snprintf(p.listen, sizeof p.listen, "0.0.0.0%s", strrchr(p.coord, ':'));
    p.host_b = 1;
    p.size = 3;
    assert_int_equal(processes_failed(p.size, works, &p), 0);
}

static void test_ipv6(void **state)
{
    (void)state;
    struct place p = {.host_b = 1, .size = 3};
    prepare(&p, first_host_6());
    int fd = socket_on_host(0, AF_INET6, SOCK_STREAM);
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    bool there = bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    if (!there)
        skip();
    assert_int_equal(processes_failed(p.size, works, &p), 0);
}

/* --- a node that is killed or stopped --- */

enum { KILLED, STOPPED, SLOW_HANDLER };

/* WEFT_LIVENESS. A process whose host answers may be silent for five times as long, because a busy machine may give it no processor
 * time. */
static const char *const silence[] = {[KILLED] = "60s", [STOPPED] = "1s", [SLOW_HANDLER] = "1s"};

/* Shared by the nodes. */
struct ends {
    _Atomic uint32_t here;
    _Atomic int pid, stopped, goes_on;
};

static void sleep_long(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    _Atomic int *done = arg;
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len;
    usleep(6000000); /* longer than a stopped process may be silent */
    *done = 1;
}

static int ends(int rank, void *arg)
{
    const struct place *p = arg;
    static _Atomic int handled;
    setenv("WEFT_LIVENESS", silence[p->how], 1);
    setenv("WEFT_LOG", "error", 1);
    weft_node *w = join_at(rank, p, NULL);
    OK(weft_handle(w, 3, sleep_long, (void *)&handled));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    meet(&p->shared->here, (uint32_t)p->size);
    if (rank == 2) {
        p->shared->pid = getpid();
        if (p->how == KILLED)
            kill(getpid(), SIGKILL);
        if (p->how == STOPPED) {
            while (!p->shared->stopped)
                usleep(1000);
            p->shared->goes_on = 1;
            /* Node 0 has stopped and continued this node: by now the others consider it dead, and it learns that. */
            int64_t end = now_ns() + patience_ns(40);
            while (weft_alive(w, 0) || weft_alive(w, 1)) {
                CHECK(now_ns() < end);
                usleep(1000);
            }
            OK(weft_close(w));
            return 0;
        }
    }
    if (p->how == SLOW_HANDLER) { /* a node whose progress thread is busy is still alive */
        if (rank == 0)
            OK(weft_send(w, 2, 3, "", 0, NULL, 0, NULL));
        if (rank == 2)
            while (!handled)
                usleep(1000);
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        CHECK(weft_alive_count(w) == 3);
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT)); /* no node leaves before all have checked */
    } else {
        if (rank == 0 && p->how == STOPPED) {
            while (!p->shared->pid)
                usleep(1000);
            stop_asleep(p->shared->pid);
            p->shared->stopped = 1;
        }
        int64_t end = now_ns() + patience_ns(40);
        /* No node sends anything to node 2, so only its silence shows its death. The epoch is raised last, after the operations to it have
         * failed. */
        while (weft_alive(w, 2) || weft_epoch(w) == 1) {
            CHECK(now_ns() < end);
            usleep(1000);
        }
        CHECK(weft_alive_count(w) == 2 && weft_epoch(w) == 2);
        uint64_t old;
        CHECK(weft_fetch_add_blocking(w, weft_gaddr_make(2, 0, 1 << 20), 1, &old) == -ECONNRESET);
        int rc;
        while ((rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT)) == -ECONNRESET)
            ;
        OK(rc);
        for (; rank == 0 && p->how == STOPPED && !p->shared->goes_on; usleep(1000))
            kill(p->shared->pid, SIGCONT);
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    }
    OK(weft_close(w));
    return 0;
}

static void end_how(int how)
{
    struct place p = {.host_b = 1, .size = 3, .how = how, .shared = shared_words(4096)};
    int status[NODES_MAX];
    prepare(&p, first_host());
    processes_run(p.size, ends, &p, status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
    assert_true(how == KILLED ? WIFSIGNALED(status[2]) : status[2] == 0);
}

static void test_killed(void **state)
{
    (void)state;
    end_how(KILLED);
}

static void test_stopped(void **state)
{
    (void)state;
    end_how(STOPPED);
}

static void test_slow_handler(void **state)
{
    (void)state;
    end_how(SLOW_HANDLER);
}

/* --- errors name the node that is missing --- */

static int unreachable(int rank, void *arg)
{
    const struct place *p = arg;
    int rc;
    if (p->how == 0)
        setenv("WEFT_TRANSPORT", "shm", 1);
    if (p->how == 1)
        setenv("WEFT_DEVICE", "no_such_device", 1);
    weft_node *w = join_at(rank, p, &rc);
    CHECK(rc == -EHOSTUNREACH && !w);
    CHECK(strstr(weft_error(), p->how == 0 ? "WEFT_TRANSPORT" : p->how == 1 ? "no_such_device" : "WEFT_COORD"));
    return 0;
}

static void test_unreachable(void **state)
{
    (void)state;
    struct place p = {.host_b = 1, .size = 2};
    for (p.how = 0; p.how < 3; p.how++) {
        prepare(&p, first_host());
        if (p.how == 2)
            snprintf(p.coord, sizeof p.coord, "unix:/tmp/weft-hosts-%d", (int)getpid());
        assert_int_equal(processes_failed(2, unreachable, &p), 0);
    }
}

/* A node of another host that wants to join a cluster on shm, and the one member. */
static int refused(int rank, void *arg)
{
    const struct place *p = arg;
    setenv("WEFT_TRANSPORT", "shm", 1);
    if (rank == 0) {
        setenv("WEFT_GROW", p->coord, 1);
        weft_node *w;
        OK(weft_open(&w, &(weft_config){.bytes = sizeof(weft_config), .size = 1, .pool_bytes = 32 << 20, .secret = "of the test"}));
        atomic_store(&p->shared->here, 1);
        wait_for(&p->shared->here, 2);
        OK(weft_close(w));
        return 0;
    }
    wait_for(&p->shared->here, 1);
    CHECK(own_host());
    unsetenv("WEFT_RANK");
    setenv("WEFT_JOIN", p->coord, 1);
    weft_node *w = NULL;
    int rc = weft_open(&w, &(weft_config){.bytes = sizeof(weft_config), .pool_bytes = 32 << 20, .secret = "of the test"});
    CHECK(rc == -EINVAL && !w && strstr(weft_error(), "node 0 cannot reach the host of this node; set WEFT_TRANSPORT"));
    atomic_store(&p->shared->here, 2);
    return 0;
}

static void test_refused(void **state)
{
    (void)state;
    struct place p = {.shared = shared_words(sizeof *p.shared)};
    prepare(&p, first_host());
    assert_int_equal(processes_failed(2, refused, &p), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_works),   cmocka_unit_test(test_ipv6),         cmocka_unit_test(test_killed),
        cmocka_unit_test(test_stopped), cmocka_unit_test(test_slow_handler), cmocka_unit_test(test_unreachable),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
