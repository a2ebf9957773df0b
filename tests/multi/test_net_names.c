/* SPDX-License-Identifier: MIT
 *
 * Names that the net service resolves: a name server that does not answer, addresses that do not answer, names that stand for others, a
 * system without IPv6, and a node that asks for more than its share. This program replaces libc's getaddrinfo() and socket(), which needs
 * Linux.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "gateway/net_handle.h"
#include "net_test.h"

/* Replaces libc's getaddrinfo() for names that a name server would have to know. again.test: the name server does not answer. holes.test:
 * three addresses. slow.test: waits until `slow_ends`. one.example, and alias.example and short, which stand for secret.test: one
 * address. */
static _Atomic uint32_t *slow_ends, *slow_begun;

static int one_address(const char *port, const struct addrinfo *hints, struct addrinfo **out, const char *canonical)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    int rc = real("127.0.0.1", port, hints, out);
    if (!rc && hints->ai_flags & AI_CANONNAME) {
        free((*out)->ai_canonname);
        (*out)->ai_canonname = strdup(canonical);
    }
    return rc;
}

int getaddrinfo(const char *restrict host, const char *restrict port, const struct addrinfo *restrict hints, struct addrinfo **restrict out)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!host || hints->ai_flags & AI_NUMERICHOST)
        return real(host, port, hints, out);
    if (strcmp(host, "again.test") == 0)
        return EAI_AGAIN;
    if (strcmp(host, "slow.test") == 0) {
        ++*slow_begun;
        wait_for(slow_ends, 1);
        return EAI_NONAME;
    }
    if (strcmp(host, "one.example") == 0)
        return one_address(port, hints, out, host);
    if (strcmp(host, "alias.example") == 0 || strcmp(host, "short") == 0)
        return one_address(port, hints, out, "Secret.TEST");
    if (strcmp(host, "holes.test") != 0)
        return real(host, port, hints, out);
    static const char *const addresses[] = {"127.0.0.2", "127.0.0.3", "127.0.0.4"};
    for (unsigned i = 0; i < 3; i++) {
        int rc = real(addresses[i], port, hints, out);
        if (rc)
            return rc;
        while (*out)
            out = &(*out)->ai_next;
    }
    return 0;
}

/* A system without IPv6. */
int socket(int family, int type, int protocol)
{
    if (family == AF_INET6 && getenv("TEST_NO_IPV6")) {
        errno = EAFNOSUPPORT;
        return -1;
    }
    return (int)syscall(SYS_socket, family, type, protocol);
}

static void old_system(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        weft_socket *l;
        OK(weft_net_listen(w, 0, SPEC(.host = NULL), &l, DEFAULT_TIME));
        CHECK(strncmp(weft_net_local(l), "0.0.0.0:", 8) == 0);
        OK(weft_net_close(l));
        CHECK(weft_net_listen(w, 0, SPEC(.host = NULL, .flags = WEFT_NET_IPV6), &l, DEFAULT_TIME) == -EAFNOSUPPORT);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* The name server does not answer: opening fails with that error. It is not mistaken for "no bytes now", so nothing goes on waiting. */
static void no_answer(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        weft_socket *s;
        weft_op op;
        const void *at;
        void *to;
        char text[4];
        size_t n;
        must_fail(w, SPEC(.host = "again.test", .port = 80), -EAGAIN, "the name server does not answer");
        OK(weft_net_connect_start(w, 0, SPEC(.host = "again.test", .port = 80), &s, &op));
        CHECK(weft_wait(w, &op, DEFAULT_TIME) == -EAGAIN && weft_net_error(s) == -EAGAIN);
        CHECK(weft_net_received(s, &at, &n) == -ENOTCONN && n == 0 && weft_net_room(s, &to, &n) == -ENOTCONN && n == 0);
        CHECK(weft_net_receive(s, text, sizeof text, &n, DEFAULT_TIME) == -EAGAIN && strstr(weft_error(), "name server"));
        CHECK(weft_net_send(s, text, sizeof text, &n, DEFAULT_TIME) == -EAGAIN && n == 0 && strstr(weft_error(), "name server"));
        OK(weft_net_close(s));
        OK(weft_net_connect_start(w, 0, SPEC(.host = "again.test", .port = 80, .flags = WEFT_NET_DATAGRAMS), &s, &op));
        CHECK(weft_wait(w, &op, DEFAULT_TIME) == -EAGAIN && weft_net_error(s) == -EAGAIN);
        CHECK(weft_net_receive(s, text, sizeof text, &n, DEFAULT_TIME) == -EAGAIN && strstr(weft_error(), "name server"));
        CHECK(weft_net_send(s, text, sizeof text, &n, DEFAULT_TIME) == -EAGAIN && strstr(weft_error(), "name server"));
        OK(weft_net_close(s));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* Listens, and lets no connection come: its queue is full. */
static int hole_at(const char *address, uint32_t port, int *client)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket_at_gateway(SOCK_STREAM);
    inet_pton(AF_INET, address, &a.sin_addr);
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 0) == 0);
    for (unsigned i = 0; i < 3; i++) {
        client[i] = socket_at_gateway(SOCK_STREAM);
        CHECK(fcntl(client[i], F_SETFL, O_NONBLOCK) == 0);
        CHECK(connect(client[i], (struct sockaddr *)&a, sizeof a) == 0 || errno == EINPROGRESS);
    }
    return fd;
}

/* A name has three addresses, of which two do not answer: each gets its three seconds, and no more. */
static void holes(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        uint32_t port;
        int client[6], listener = listen_at("127.0.0.4", &port);
        int hole[2] = {hole_at("127.0.0.2", port, client), hole_at("127.0.0.3", port, client + 3)};
        weft_socket *s;
        OK(weft_net_connect(w, 0, SPEC(.host = "holes.test", .port = port), &s, patience_ns(20)));
        CHECK(strncmp(weft_net_peer(s), "127.0.0.4:", 10) == 0);
        OK(weft_net_close(s));
        for (unsigned i = 0; i < 6; i++)
            close(client[i]);
        close(hole[0]);
        close(hole[1]);
        close(listener);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* A name that is denied cannot be reached by another one that stands for it: an alias, or one that a search list completes. */
static void aliases(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        uint32_t port;
        weft_socket *s;
        int listener = listen_at("127.0.0.1", &port);
        must_fail(w, SPEC(.host = "alias.example", .port = port), -EACCES,
                  "rule deny=*.TEST of the gateway forbids it, because the name stands for Secret.TEST");
        must_fail(w, SPEC(.host = "short", .port = port), -EACCES,
                  "rule deny=*.TEST of the gateway forbids it, because the name stands for Secret.TEST");
        OK(weft_net_connect(w, 0, SPEC(.host = "one.example", .port = port), &s, DEFAULT_TIME));
        OK(weft_net_close(s));
        close(listener);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* Shared by the askers and the gateway's resolver. */
struct greed {
    _Atomic uint32_t ends, begun, full;
};

/* One node asks for more names than a gateway resolves at a time, and no server answers for them. Names of other nodes are still resolved.
 */
static void greedy(weft_node *w, void *arg)
{
    enum { ASKS = NET_LOOKUPS_MAX };
    static weft_socket *s[ASKS];
    static weft_op op[ASKS];
    struct greed *g = arg;
    uint32_t port, refused = 0;
    slow_ends = &g->ends;
    slow_begun = &g->begun;
    OK(weft_barrier(w, DEFAULT_TIME));
    if (weft_rank(w) == 1) {
        for (unsigned i = 0; i < ASKS; i++)
            OK(weft_net_connect_start(w, 0, SPEC(.host = "slow.test", .port = 80, .receive_ring = 4096, .send_ring = 4096), &s[i], &op[i]));
        for (int64_t deadline = now_ns() + patience_ns(20); g->begun < 6;)
            CHECK(usleep(1000) == 0 && now_ns() < deadline);
        must_fail(w, SPEC(.host = "slow.test", .port = 80), -EAGAIN, "resolves at most 1024 names at the same time");
        g->full = 1;
        wait_for(&g->ends, 1);
        for (unsigned i = 0; i < ASKS; i++) {
            int rc = weft_wait(w, &op[i], DEFAULT_TIME);
            CHECK(rc == -EHOSTUNREACH || rc == -EAGAIN || rc == -ETIMEDOUT);
            refused += rc == -EAGAIN;
            OK(weft_net_close(s[i]));
        }
        CHECK(refused == ASKS - ASKS / 4 * 3);
    } else if (weft_rank(w) == 2) {
        int listener = listen_at("127.0.0.1", &port);
        wait_for(&g->full, 1);
        for (unsigned i = 0; i < 20; i++) {
            OK(weft_net_connect(w, 0, SPEC(.host = "one.example", .port = port), &s[i], DEFAULT_TIME));
            OK(weft_net_close(s[i]));
        }
        CHECK(g->begun == 6); /* of the gateway's eight threads */
        g->ends = 1;
        close(listener);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_greedy(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(3, greedy, shared_words(sizeof(struct greed)), OPEN), 0);
}

static void test_aliases(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, aliases, NULL,
                                       (const char *const[]){"WEFT_SERVE=net",
                                                             "WEFT_NET_RULES=allow=127.0.0.1:1,deny=*.TEST,"
                                                             "allow=127.0.0.1",
                                                             "WEFT_LOG=error", NULL}),
                     0);
}

TEST(no_answer)

static void test_old_system(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, old_system, NULL, (const char *const[]){"WEFT_SERVE=net", "TEST_NO_IPV6=1", NULL}), 0);
}

static void test_holes(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, holes, NULL, (const char *const[]){"WEFT_SERVE=net", "WEFT_NET_RULES=allow=127.0.0.0/8", NULL}),
                     0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_greedy), cmocka_unit_test(test_aliases), cmocka_unit_test(test_no_answer),
                                       cmocka_unit_test(test_old_system), cmocka_unit_test(test_holes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
