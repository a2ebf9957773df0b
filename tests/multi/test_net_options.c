/* SPDX-License-Identifier: MIT
 *
 * The net service: the options of sockets, seen at the gateway's own sockets, and IPv6. Node 0 is the gateway, node 1 the asker.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <netinet/tcp.h>
#include <stdatomic.h>

#include "net_test.h"

/* Shared by the nodes: node 1 asks for the options of the gateway's socket at `port`, node 0 answers. */
struct board {
    _Atomic uint32_t asked, answered;
    uint32_t port, type;
    int nodelay, keepalive, receive, send;
};

static int number_of(int fd, int level, int option)
{
    int value = -1;
    socklen_t len = sizeof value;
    return getsockopt(fd, level, option, &value, &len) ? -1 : value;
}

/* Node 0: this process has the gateway's sockets. */
static void answer(struct board *b)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in a = {.sin_family = AF_UNSPEC};
        socklen_t len = sizeof a;
        if (getsockname(fd, (struct sockaddr *)&a, &len) || a.sin_family != AF_INET || ntohs(a.sin_port) != b->port ||
            number_of(fd, SOL_SOCKET, SO_TYPE) != (int)b->type || number_of(fd, SOL_SOCKET, SO_ACCEPTCONN) == 1)
            continue;
        b->nodelay = number_of(fd, IPPROTO_TCP, TCP_NODELAY);
        b->keepalive = number_of(fd, SOL_SOCKET, SO_KEEPALIVE);
        b->receive = number_of(fd, SOL_SOCKET, SO_RCVBUF);
        b->send = number_of(fd, SOL_SOCKET, SO_SNDBUF);
        return;
    }
    CHECK(!"the gateway has this socket");
}

/* Node 1: asks node 0 about a socket of the gateway. */
static void look(struct board *b, const weft_socket *s, int type)
{
    b->port = (uint32_t)atoi(strrchr(weft_net_local(s), ':') + 1);
    b->type = (uint32_t)type;
    uint32_t n = atomic_fetch_add(&b->asked, 1) + 1;
    wait_for(&b->answered, n);
}

#define ALL   (WEFT_NET_NODELAY | WEFT_NET_KEEPALIVE)
#define SIZE  100000u /* of which Linux makes twice as many */
#define LOOKS 5u

static void options(weft_node *w, void *arg)
{
    struct board *b = arg;
    if (weft_rank(w) == 0) {
        for (uint32_t i = 1; i <= LOOKS; i++) {
            wait_for(&b->asked, i);
            answer(b);
            atomic_store(&b->answered, i);
        }
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    uint32_t port;
    int listener = listen_at("127.0.0.1", &port);
    weft_socket *s, *l;
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port), &s, DEFAULT_TIME));
    look(b, s, SOCK_STREAM);
    CHECK(b->nodelay == 0 && b->keepalive == 0 && b->receive != 2 * (int)SIZE && b->send != 2 * (int)SIZE);
    OK(weft_net_close(s));
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port, .flags = ALL, .receive_buffer = SIZE, .send_buffer = SIZE), &s,
                        DEFAULT_TIME));
    look(b, s, SOCK_STREAM);
    CHECK(b->nodelay == 1 && b->keepalive == 1 && b->receive >= (int)SIZE && b->receive <= 2 * (int)SIZE && b->send >= (int)SIZE &&
          b->send <= 2 * (int)SIZE);
    OK(weft_net_close(s));
    /* With small buffers, too: the system's default is larger. */
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port, .receive_buffer = 8192, .send_buffer = 8192), &s, DEFAULT_TIME));
    look(b, s, SOCK_STREAM);
    CHECK(b->receive <= 16384 && b->send <= 16384);
    OK(weft_net_close(s));
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = 9, .flags = WEFT_NET_DATAGRAMS, .receive_buffer = 8192), &s, DEFAULT_TIME));
    look(b, s, SOCK_DGRAM);
    CHECK(b->receive <= 16384);
    OK(weft_net_close(s));
    /* A listener's connections have its options. The one end of the connection here is at the listener's port, too. */
    OK(weft_net_listen(w, 0, SPEC(.host = "127.0.0.1", .flags = ALL | WEFT_NET_REUSE, .receive_buffer = SIZE), &l, DEFAULT_TIME));
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strrchr(weft_net_local(l), ':') + 1))};
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    int fd = socket_at_gateway(SOCK_STREAM);
    CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    OK(weft_net_accept(l, &s, DEFAULT_TIME));
    look(b, s, SOCK_STREAM);
    CHECK(b->nodelay == 1 && b->keepalive == 1 && b->receive >= (int)SIZE && b->receive <= 2 * (int)SIZE);
    /* The gateway closes first, so its socket stays for a while. Only with WEFT_NET_REUSE the port can be used meanwhile. */
    char byte;
    OK(weft_net_close(s));
    CHECK(read(fd, &byte, 1) == 0);
    close(fd);
    OK(weft_net_close(l));
    int rc;
    int64_t deadline = now_ns() + patience_ns(10);
    uint32_t at = ntohs(a.sin_port);
    while ((rc = weft_net_listen(w, 0, SPEC(.host = "127.0.0.1", .port = at, .flags = WEFT_NET_REUSE), &l, DEFAULT_TIME)))
        CHECK(rc == -EADDRINUSE && now_ns() < deadline); /* the first listener is closed a moment later */
    OK(weft_net_close(l));
    do
        CHECK(now_ns() < deadline);
    while ((fd = socket_at_gateway(SOCK_STREAM)) >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0 && close(fd) == 0);
    close(fd);
    CHECK(weft_net_listen(w, 0, SPEC(.host = "127.0.0.1", .port = at), &l, DEFAULT_TIME) == -EADDRINUSE);
    close(listener);
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_options(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, options, shared_words(sizeof(struct board)), OPEN), 0);
}

/* --- IPv6 --- */

static int six_at(int type, uint32_t *port)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET6, type, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a))
        return -1;
    CHECK((type == SOCK_DGRAM || listen(fd, 16) == 0) && getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    *port = ntohs(a.sin6_port);
    return fd;
}

/* The other socket, `fd`, sends to the asker's, and receives from it. */
static void six_datagrams(weft_node *w)
{
    weft_socket *s;
    uint32_t port;
    char peer[WEFT_NET_ADDRESS], from[WEFT_NET_ADDRESS], text[16];
    size_t n;
    int fd = six_at(SOCK_DGRAM, &port);
    struct sockaddr_in6 a;
    socklen_t len = sizeof a;
    snprintf(peer, sizeof peer, "[::1]:%u", port);
    for (int bound = 0; bound < 2; bound++) {
        const weft_net_spec *spec =
            bound ? SPEC(.host = "::1", .flags = WEFT_NET_DATAGRAMS) : SPEC(.host = "::1", .port = port, .flags = WEFT_NET_DATAGRAMS);
        OK((bound ? weft_net_listen : weft_net_connect)(w, 0, spec, &s, DEFAULT_TIME));
        CHECK(strncmp(weft_net_local(s), "[::1]:", 6) == 0);
        if (bound)
            OK(weft_net_send_to(s, peer, "hello", 5, DEFAULT_TIME));
        else
            OK(weft_net_send(s, "hello", 5, NULL, DEFAULT_TIME));
        CHECK(recvfrom(fd, text, sizeof text, 0, (struct sockaddr *)&a, &len) == 5 && memcmp(text, "hello", 5) == 0);
        CHECK(ntohs(a.sin6_port) == (uint16_t)atoi(weft_net_local(s) + 6));
        CHECK(sendto(fd, "there", 5, 0, (struct sockaddr *)&a, len) == 5);
        OK(weft_net_receive_from(s, from, text, sizeof text, &n, DEFAULT_TIME));
        CHECK(n == 5 && memcmp(text, "there", 5) == 0 && strcmp(from, peer) == 0);
        OK(weft_net_close(s));
    }
    close(fd);
}

static void six(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        weft_socket *s, *l;
        uint32_t port, other;
        char peer[WEFT_NET_ADDRESS], text[8], says[128];
        size_t n;
        int listener = six_at(SOCK_STREAM, &port), fd;
        close(six_at(SOCK_STREAM, &other));
        OK(weft_net_connect(w, 0, SPEC(.host = "::1", .port = port), &s, DEFAULT_TIME));
        fd = accept_at(listener);
        snprintf(peer, sizeof peer, "[::1]:%u", port);
        CHECK(strcmp(weft_net_peer(s), peer) == 0 && strncmp(weft_net_local(s), "[::1]:", 6) == 0);
        OK(weft_net_send(s, "up", 2, NULL, DEFAULT_TIME));
        CHECK(read(fd, text, sizeof text) == 2 && memcmp(text, "up", 2) == 0);
        OK(weft_net_close(s));
        CHECK(read(fd, text, 1) == 0);
        close(fd);
        close(listener);
        must_fail(w, SPEC(.host = "::1", .port = port, .flags = WEFT_NET_IPV4), -EHOSTUNREACH, "::1");
        snprintf(says, sizeof says, "cannot connect to ::1 port %u", other);
        must_fail(w, SPEC(.host = "::1", .port = other), -ECONNREFUSED, says);
        OK(weft_net_listen(w, 0, SPEC(.host = "::1"), &l, DEFAULT_TIME));
        struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
        a.sin6_port = htons((uint16_t)atoi(weft_net_local(l) + 6));
        fd = socket(AF_INET6, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
        OK(weft_net_accept(l, &s, DEFAULT_TIME));
        CHECK(strncmp(weft_net_peer(s), "[::1]:", 6) == 0 && strcmp(weft_net_local(s), weft_net_local(l)) == 0);
        send_all(fd, "in", 2);
        OK(weft_net_receive(s, text, sizeof text, &n, DEFAULT_TIME));
        CHECK(n == 2 && memcmp(text, "in", 2) == 0);
        close(fd);
        OK(weft_net_close(s));
        OK(weft_net_close(l));
        six_datagrams(w);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_six(void **state)
{
    (void)state;
    uint32_t port;
    int fd = six_at(SOCK_STREAM, &port);
    if (fd < 0) {
        print_message("this machine has no IPv6\n");
        skip();
    }
    close(fd);
    assert_int_equal(nodes_failed_with(2, six, NULL, OPEN), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_options), cmocka_unit_test(test_six)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
