/* SPDX-License-Identifier: MIT
 *
 * The net service: what its calls do (net_test.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sys/un.h>

#include "net_test.h"

static void basics(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t port, node;
    weft_socket *s;
    char text[64], want[64];
    size_t n, put;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    OK(weft_service_find(w, WEFT_SERVICE_NET, &node, DEFAULT_TIME));
    CHECK(node < 2);
    int listener = listen_at("127.0.0.1", &port);
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port, .flags = WEFT_NET_NODELAY | WEFT_NET_KEEPALIVE), &s, DEFAULT_TIME));
    int fd = accept_at(listener);
    snprintf(want, sizeof want, "127.0.0.1:%u", port);
    CHECK(weft_net_node(s) == 0 && strcmp(weft_net_peer(s), want) == 0 && strncmp(weft_net_local(s), "127.0.0.1:", 10) == 0);
    CHECK(weft_net_error(s) == 0);
    OK(weft_net_send(s, "hello", 5, &put, DEFAULT_TIME));
    CHECK(put == 5 && read(fd, text, sizeof text) == 5 && memcmp(text, "hello", 5) == 0);
    CHECK(weft_net_receive(s, text, sizeof text, &n, 0) == -ETIMEDOUT && n == 0);
    CHECK(weft_net_receive(s, text, sizeof text, &n, 10 * WEFT_MS) == -ETIMEDOUT && strstr(weft_error(), "no bytes came from 127.0.0.1"));
    send_all(fd, "there", 5);
    OK(weft_net_receive(s, text, sizeof text, &n, DEFAULT_TIME));
    CHECK(n == 5 && memcmp(text, "there", 5) == 0);
    /* Half-close: this side ends, and the other one still sends. */
    OK(weft_net_shutdown(s));
    OK(weft_net_shutdown(s));
    CHECK(read(fd, text, sizeof text) == 0);
    CHECK(weft_net_send(s, "x", 1, &put, DEFAULT_TIME) == -EPIPE && put == 0);
    send_all(fd, "end", 3);
    close(fd);
    OK(weft_net_receive(s, text, 2, &n, DEFAULT_TIME));
    CHECK(n == 2);
    OK(weft_net_receive(s, text, 2, &n, DEFAULT_TIME));
    CHECK(n == 1 && text[0] == 'd');
    OK(weft_net_receive(s, text, 2, &n, DEFAULT_TIME));
    CHECK(n == 0);
    OK(weft_net_close(s));
    OK(weft_net_close(NULL));
    /* Closed with bytes under way: they arrive, and then the end. */
    OK(weft_net_connect(w, 0, SPEC(.host = "localhost", .port = port, .flags = WEFT_NET_IPV4), &s, DEFAULT_TIME));
    fd = accept_at(listener);
    OK(weft_net_send(s, "last words", 10, NULL, DEFAULT_TIME));
    OK(weft_net_close(s));
    CHECK(read_to_end(fd, text, sizeof text) == 10 && memcmp(text, "last words", 10) == 0);
    close(fd);
    close(listener);
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* Large streams both ways at once, with rings of several sizes. Every byte is checked. */
static void streams(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    uint32_t port;
    int listener = listen_at("127.0.0.1", &port);
    const uint64_t rings[][2] = {{4096, 4096}, {65536, 8192}, {0, 0}, {1 << 20, 1 << 20}};
    for (unsigned i = 0; i < 4; i++) {
        const uint64_t bytes = (uint64_t)repeats(i == 0 ? 60 : 600) * 10007;
        weft_socket *s;
        pthread_t threads[2];
        OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port, .receive_ring = rings[i][0], .send_ring = rings[i][1]), &s,
                            DEFAULT_TIME));
        int fd = accept_at(listener);
        struct sender down = {fd, i, bytes}, up = {fd, i + 100, bytes / 2};
        CHECK(pthread_create(&threads[0], NULL, send_stream, &down) == 0 && pthread_create(&threads[1], NULL, take_stream, &up) == 0);
        /* Sending must not wait for receiving: send and receive in turn, in place. */
        uint64_t got = 0, sent = 0;
        bool ended = false;
        static uint8_t right[1 << 20];
        for (bool over = false; !over || !ended;) {
            const void *at;
            void *to;
            size_t n;
            int rc = weft_net_received(s, &at, &n);
            CHECK(rc == 0 || rc == -EAGAIN);
            over = rc == 0 && n == 0;
            fill(right, down.seed, got, n);
            CHECK(memcmp(at, right, n) == 0);
            OK(weft_net_taken(s, n));
            got += n;
            rc = ended ? -EAGAIN : weft_net_room(s, &to, &n);
            CHECK(rc == 0 || rc == -EAGAIN);
            n = n < up.bytes - sent ? n : (size_t)(up.bytes - sent);
            if (rc == 0 && n) {
                fill(to, up.seed, sent, n);
                OK(weft_net_put(s, n));
                sent += n;
            }
            if (!ended && sent == up.bytes) {
                OK(weft_net_shutdown(s));
                ended = true;
            }
            weft_progress(w);
        }
        CHECK(got == down.bytes && sent == up.bytes);
        pthread_join(threads[0], NULL);
        pthread_join(threads[1], NULL);
        OK(weft_net_close(s));
        close(fd);
    }
    close(listener);
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* Listening at the gateway. */
static void listening(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    weft_socket *l, *again, *s;
    struct sockaddr_in a = {.sin_family = AF_INET};
    OK(weft_net_listen(w, 0, SPEC(.host = "127.0.0.1", .flags = WEFT_NET_REUSE, .receive_ring = 8192), &l, DEFAULT_TIME));
    CHECK(strncmp(weft_net_local(l), "127.0.0.1:", 10) == 0 && weft_net_peer(l)[0] == '\0');
    uint32_t port = (uint32_t)atoi(weft_net_local(l) + 10);
    CHECK(weft_net_listen(w, 0, SPEC(.host = "127.0.0.1", .port = port), &again, DEFAULT_TIME) == -EADDRINUSE && !again);
    CHECK(strstr(weft_error(), "cannot listen at 127.0.0.1"));
    CHECK(weft_net_accept(l, &s, 20 * WEFT_MS) == -ETIMEDOUT && !s);
    CHECK(weft_net_send(l, "x", 1, NULL, DEFAULT_TIME) == -EINVAL && weft_net_shutdown(l) == -EINVAL);
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    a.sin_port = htons((uint16_t)port);
    for (unsigned i = 0; i < 20; i++) {
        int fd = socket_at_gateway(SOCK_STREAM);
        pthread_t thread;
        CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
        OK(weft_net_accept(l, &s, DEFAULT_TIME));
        CHECK(strcmp(weft_net_local(s), weft_net_local(l)) == 0 && strncmp(weft_net_peer(s), "127.0.0.1:", 10) == 0);
        struct sender down = {fd, i, 100003};
        CHECK(pthread_create(&thread, NULL, send_stream, &down) == 0);
        receive_stream(s, i, down.bytes);
        pthread_join(thread, NULL);
        OK(weft_net_send(s, "ok", 2, NULL, DEFAULT_TIME));
        OK(weft_net_close(s));
        char text[8];
        CHECK(read_to_end(fd, text, sizeof text) == 2);
        close(fd);
    }
    OK(weft_net_close(l));
    int fd = socket_at_gateway(SOCK_STREAM);
    int64_t deadline = now_ns() + patience_ns(10);
    while (connect(fd, (struct sockaddr *)&a, sizeof a) == 0 || errno == ECONNRESET) { /* closed there a moment later */
        CHECK(now_ns() < deadline);
        close(fd);
        fd = socket_at_gateway(SOCK_STREAM);
    }
    CHECK(errno == ECONNREFUSED);
    close(fd);
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* Several accepts wait at once, and each gets a connection. An accept that still waits when the listener is closed ends with an error. */
static void waiting(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        enum { WAITING = 5, COME = 3 };
        weft_socket *l, *s[WAITING], *none;
        weft_op op[WAITING];
        int fd[COME];
        char text[2];
        size_t n;
        struct sockaddr_in a = {.sin_family = AF_INET};
        OK(weft_net_listen(w, 0, SPEC(.host = "127.0.0.1"), &l, DEFAULT_TIME));
        a.sin_port = htons((uint16_t)atoi(weft_net_local(l) + 10));
        inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
        for (unsigned i = 0; i < WAITING; i++)
            OK(weft_net_accept_start(l, &s[i], &op[i]));
        CHECK(weft_net_error(s[0]) == -EINPROGRESS && weft_net_accept_start(s[0], &none, &op[0]) == -EINVAL && !none);
        for (unsigned i = 0; i < COME; i++) {
            fd[i] = socket_at_gateway(SOCK_STREAM);
            CHECK(connect(fd[i], (struct sockaddr *)&a, sizeof a) == 0);
            send_all(fd[i], &(char){(char)('a' + i)}, 1);
            OK(weft_wait(w, &op[i], DEFAULT_TIME));
            OK(weft_net_error(s[i]));
            OK(weft_net_receive(s[i], text, sizeof text, &n, DEFAULT_TIME));
            CHECK(n == 1 && text[0] == (char)('a' + i));
        }
        CHECK(weft_net_error(s[COME]) == -EINPROGRESS);
        OK(weft_net_close(s[COME])); /* while it waits */
        OK(weft_net_close(l));
        CHECK(weft_wait(w, &op[COME], DEFAULT_TIME) == -ECANCELED && weft_wait(w, &op[COME + 1], DEFAULT_TIME) == -ECANCELED);
        CHECK(weft_net_error(s[COME + 1]) == -ECANCELED);
        OK(weft_net_close(s[COME + 1]));
        for (unsigned i = 0; i < COME; i++) {
            OK(weft_net_close(s[i]));
            close(fd[i]);
        }
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void errors(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    uint32_t port, other;
    weft_socket *s;
    weft_op op;
    char text[8];
    size_t n;
    int listener = listen_at("127.0.0.1", &port);
    close(listen_at("127.0.0.1", &other));
    must_fail(w, SPEC(.host = "127.0.0.1", .port = other), -ECONNREFUSED, "node 0 cannot connect to 127.0.0.1 port");
    must_fail(w, SPEC(.host = "no.such.name.invalid", .port = 80), -EHOSTUNREACH, "cannot resolve 'no.such.name.invalid'");
    must_fail(w, SPEC(.host = "loc\\097lhost", .port = 80), -EINVAL, "a character that cannot be in a name");
    must_fail(w, SPEC(.host = "a\nweft: error: b", .port = 80), -EINVAL, "a character that cannot be in a name");
    must_fail(w, SPEC(.port = 80), -EINVAL, "host ''");
    must_fail(w, SPEC(.host = "x"), -EINVAL, "port 0");
    must_fail(w, SPEC(.host = "x", .port = 80, .flags = 0x100), -EINVAL, "flags");
    must_fail(w, SPEC(.host = "x", .port = 80, .flags = WEFT_NET_IPV4 | WEFT_NET_IPV6), -EINVAL, "exclude each other");
    must_fail(w, SPEC(.host = "x", .port = 80, .send_ring = 5000), -EINVAL, "powers of two");
    CHECK(weft_net_connect(w, 7, SPEC(.host = "x", .port = 80), &s, DEFAULT_TIME) == -EFAULT && !s);
    /* A record that names nothing. */
    weft_gaddr at;
    OK(weft_alloc(w, sizeof(weft_request), &at));
    *(weft_request *)weft_ptr(w, at, sizeof(weft_request)) =
        (weft_request){.version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_NET, .kind = 1, .id = 1};
    OK(weft_request_start(w, at, &op));
    CHECK(weft_wait(w, &op, DEFAULT_TIME) == -EINVAL);
    OK(weft_free(w, at));
    /* The peer resets the connection. */
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port), &s, DEFAULT_TIME));
    int fd = accept_at(listener);
    send_all(fd, "abc", 3);
    OK(weft_net_receive(s, text, 1, &n, DEFAULT_TIME)); /* the first byte has arrived */
    reset(fd);
    int rc = weft_net_receive(s, text, sizeof text, &n, DEFAULT_TIME);
    while (rc == 0 && n)
        rc = weft_net_receive(s, text, sizeof text, &n, DEFAULT_TIME);
    CHECK(rc == -ECONNRESET && strstr(weft_error(), "connection to 127.0.0.1:"));
    while ((rc = weft_net_send(s, text, sizeof text, NULL, DEFAULT_TIME)) == 0)
        ;
    CHECK(rc == -EPIPE);
    OK(weft_net_close(s));
    /* Sockets that are closed while they are being opened, and sockets that are opened without waiting. */
    for (unsigned i = 0; i < repeats(200); i++) {
        OK(weft_net_connect_start(w, 0, SPEC(.host = "127.0.0.1", .port = i % 2 ? port : other), &s, &op));
        if (i % 3 == 0)
            (void)weft_wait(w, &op, DEFAULT_TIME);
        OK(weft_net_close(s));
        rc = weft_test(w, &op);
        CHECK(rc == 0 || rc == -ECANCELED || rc == -ECONNREFUSED);
    }
    OK(weft_net_connect_start(w, 0, SPEC(.host = "127.0.0.1", .port = other), &s, &op));
    CHECK(weft_wait(w, &op, DEFAULT_TIME) == -ECONNREFUSED && weft_net_error(s) == -ECONNREFUSED);
    CHECK(strstr(weft_error(), "cannot connect to 127.0.0.1"));
    CHECK(weft_net_receive(s, text, 1, &n, DEFAULT_TIME) == -ECONNREFUSED);
    OK(weft_net_close(s));
    close(listener);
    /* All sockets have freed their memory. */
    int64_t deadline = now_ns() + patience_ns(10);
    weft_pool_stats p;
    do {
        CHECK(now_ns() < deadline);
        weft_progress(w);
        OK(weft_pool_stat(w, &p, sizeof p));
    } while (p.live_bytes > 100000);
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* Rules: without any, loopback and link-local addresses cannot be reached, however they are written. */
static void defaults(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        static const char *const names[] = {"127.0.0.1",
                                            "127.1.2.3",
                                            "::1",
                                            "::ffff:127.0.0.1",
                                            "::127.0.0.1",
                                            "::",
                                            "0.0.0.0",
                                            "localhost",
                                            "0.1.2.3",
                                            "127.1",
                                            "0x7f000001",
                                            "2130706433",
                                            "64:ff9b::127.0.0.1",
                                            "169.254.169.254",
                                            "::ffff:169.254.169.254",
                                            "fe80::1%lo",
                                            "fd00:ec2::254",
                                            "64:ff9b::a9fe:a9fe",
                                            "64:ff9b:1::7f00:1",
                                            "2002:7f00:1::1",
                                            "2002:a9fe:a9fe::",
                                            "::ffff:0:127.0.0.1",
                                            "fd20:ce::254",
                                            "239.255.255.250",
                                            "255.255.255.255",
                                            "ff02::fb%lo"};
        uint32_t port;
        close(listen_at("127.0.0.1", &port));
        for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
            must_fail(w, SPEC(.host = names[i], .port = port), -EACCES, "a default rule of the gateway forbids");
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void rules(weft_node *w, void *arg)
{
    const uint32_t *port = arg;
    if (weft_rank(w) == 1) {
        weft_socket *s;
        OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port[0]), &s, DEFAULT_TIME));
        OK(weft_net_close(s));
        OK(weft_net_connect(w, 0, SPEC(.host = "::ffff:127.0.0.1", .port = port[0]), &s, DEFAULT_TIME));
        OK(weft_net_close(s));
        must_fail(w, SPEC(.host = "127.0.0.1", .port = port[1]), -EACCES, "deny=127.0.0.0/9");
        must_fail(w, SPEC(.host = "localhost", .port = port[0]), -EACCES, "rule deny=LocalHost");
        must_fail(w, SPEC(.host = "LOCALHOST", .port = port[0]), -EACCES, "rule deny=LocalHost");
        must_fail(w, SPEC(.host = "10.1.2.3", .port = 80), -EACCES, "rule deny=10.0.0.0/8");
        must_fail(w, SPEC(.host = "::ffff:10.1.2.3", .port = 80), -EACCES, "rule deny=10.0.0.0/8");
        must_fail(w, SPEC(.host = "2002:a01:203::1", .port = 80), -EACCES, "rule deny=10.0.0.0/8");
        must_fail(w, SPEC(.host = "11.1.2.3", .port = 80), -EACCES, "rule deny=::ffff:11.0.0.0/104");
        must_fail(w, SPEC(.host = "12.1.2.3", .port = 80), -EACCES, "rule deny=[::ffff:12.1.2.3]:80");
        must_fail(w, SPEC(.host = "192.0.2.1", .port = 25), -EACCES, "rule deny=*:20-30");
        must_fail(w, SPEC(.host = "2001:db8::7", .port = 80), -EACCES, "rule deny=[2001:db8::]/32:80");
        /* allow=* opens nothing that is denied by default */
        must_fail(w, SPEC(.host = "127.200.0.1", .port = 80), -EACCES, "a default rule");
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static int udp_at(const char *address, uint32_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof a;
    int fd = socket_at_gateway(SOCK_DGRAM);
    inet_pton(AF_INET, address, &a.sin_addr);
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    *port = ntohs(a.sin_port);
    return fd;
}

/* Sends each datagram back, until one is "end". */
static void *echo_datagrams(void *arg)
{
    static uint8_t some[65536];
    const int *fd = arg;
    for (;;) {
        struct sockaddr_in from;
        socklen_t len = sizeof from;
        ssize_t n = recvfrom(*fd, some, sizeof some, 0, (struct sockaddr *)&from, &len);
        CHECK(n >= 0);
        if (n == 3 && memcmp(some, "end", 3) == 0)
            return NULL;
        CHECK(sendto(*fd, some, (size_t)n, 0, (struct sockaddr *)&from, len) == n);
    }
}

static void with_peer(weft_node *w, uint32_t port)
{
    static uint8_t out[WEFT_NET_DATAGRAM_MAX + 1], in[sizeof out];
    static const size_t sizes[] = {0, 1, 23, 24, 25, 1472, 3584, 3585, 9000, 40000, 65506, WEFT_NET_DATAGRAM_MAX};
    weft_socket *s, *none;
    const void *at;
    void *room;
    size_t n;
    char from[WEFT_NET_ADDRESS], peer[WEFT_NET_ADDRESS];
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port, .flags = WEFT_NET_DATAGRAMS), &s, DEFAULT_TIME));
    snprintf(peer, sizeof peer, "127.0.0.1:%u", port);
    CHECK(strcmp(weft_net_peer(s), peer) == 0);
    CHECK(weft_net_receive(s, in, sizeof in, &n, 0) == -ETIMEDOUT && weft_net_receive(s, in, sizeof in, &n, WEFT_MS) == -ETIMEDOUT);
    for (unsigned i = 0; i < 60; i++) { /* goes round the rings many times */
        size_t size = i < 24 ? sizes[i % 12] : (i * 7919u) % 60000u;
        fill(out, i, 0, size);
        OK(weft_net_send(s, out, size, &n, DEFAULT_TIME));
        CHECK(n == size);
        OK(weft_net_receive_from(s, from, in, sizeof in, &n, DEFAULT_TIME));
        CHECK(n == size && memcmp(in, out, size) == 0 && strcmp(from, peer) == 0);
    }
    OK(weft_net_send(s, "hello", 5, NULL, DEFAULT_TIME));
    CHECK(weft_net_receive(s, in, 4, &n, DEFAULT_TIME) == -EMSGSIZE && n == 5); /* the datagram can still be received */
    OK(weft_net_receive(s, in, 5, &n, DEFAULT_TIME));
    CHECK(n == 5 && memcmp(in, "hello", 5) == 0);
    CHECK(weft_net_send(s, out, WEFT_NET_DATAGRAM_MAX + 1, &n, DEFAULT_TIME) == -EMSGSIZE && n == 0);
    CHECK(weft_net_send_to(s, peer, "x", 1, DEFAULT_TIME) == -EINVAL && weft_net_accept(s, &none, 0) == -EINVAL);
    CHECK(weft_net_received(s, &at, &n) == -EINVAL && weft_net_room(s, &room, &n) == -EINVAL);
    OK(weft_net_send(s, "end", 3, NULL, DEFAULT_TIME));
    OK(weft_net_shutdown(s));
    CHECK(weft_net_send(s, "x", 1, NULL, DEFAULT_TIME) == -EPIPE);
    OK(weft_net_close(s));
}

/* A bound socket receives from everybody and sends to everybody, except addresses that the rules forbid. */
static void without_peer(weft_node *w)
{
    weft_socket *s, *closed;
    uint32_t port[3];
    int fd[2] = {udp_at("127.0.0.1", &port[0]), udp_at("127.0.0.1", &port[1])}, denied = udp_at("127.0.0.2", &port[2]);
    char to[2][WEFT_NET_ADDRESS], from[WEFT_NET_ADDRESS], text[64], wrong[WEFT_NET_ADDRESS];
    struct sockaddr_in a = {.sin_family = AF_INET};
    size_t n;
    /* an IPv6 socket, which receives datagrams over IPv4, too */
    OK(weft_net_listen(w, 0, SPEC(.flags = WEFT_NET_DATAGRAMS), &s, DEFAULT_TIME));
    CHECK(weft_net_peer(s)[0] == '\0' && strncmp(weft_net_local(s), "[::]:", 5) == 0);
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    a.sin_port = htons((uint16_t)atoi(weft_net_local(s) + 5));
    snprintf(wrong, sizeof wrong, "127.0.0.2:%u", port[2]);
    OK(weft_net_send_to(s, wrong, "denied", 6, DEFAULT_TIME)); /* before the others: the gateway sends in order */
    snprintf(wrong, sizeof wrong, "[::ffff:127.0.0.2]:%u", port[2]);
    OK(weft_net_send_to(s, wrong, "denied", 6, DEFAULT_TIME));
    for (unsigned i = 0; i < 200; i++) {
        unsigned k = i % 2;
        snprintf(to[k], sizeof to[k], k ? "127.0.0.1:%u" : "[::ffff:127.0.0.1]:%u", port[k]);
        OK(weft_net_send_to(s, to[k], &i, sizeof i, DEFAULT_TIME));
        CHECK(recv(fd[k], text, sizeof text, 0) == sizeof i && memcmp(text, &i, sizeof i) == 0);
        CHECK(sendto(fd[k], &i, sizeof i, 0, (struct sockaddr *)&a, sizeof a) == sizeof i);
        OK(weft_net_receive_from(s, from, text, sizeof text, &n, DEFAULT_TIME));
        snprintf(to[k], sizeof to[k], "127.0.0.1:%u", port[k]);
        CHECK(n == sizeof i && memcmp(text, &i, sizeof i) == 0 && strcmp(from, to[k]) == 0);
    }
    CHECK(recv(denied, text, sizeof text, MSG_DONTWAIT) < 0);
    static const char *const no_address[] = {"",      "127.0.0.1", "localhost:53", "127.0.0.1:0", "127.0.0.1:70000",
                                             "[::1]", "::1:53",    "[::1:53",      ":53",         "[]:1"};
    for (unsigned i = 0; i < sizeof no_address / sizeof no_address[0]; i++)
        CHECK(weft_net_send_to(s, no_address[i], "x", 1, DEFAULT_TIME) == -EINVAL);
    CHECK(weft_net_send_to(s, NULL, "x", 1, DEFAULT_TIME) == -EINVAL);
    OK(weft_net_close(s));
    close(fd[0]);
    close(fd[1]);
    close(denied);
    CHECK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.2", .port = port[2], .flags = WEFT_NET_DATAGRAMS), &closed, DEFAULT_TIME) ==
          -EACCES);
    CHECK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = 9, .flags = WEFT_NET_DATAGRAMS, .send_ring = 65536), &closed,
                           DEFAULT_TIME) == -EINVAL);
    /* No socket receives at this port: sending still succeeds. */
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port[0], .flags = WEFT_NET_DATAGRAMS), &closed, DEFAULT_TIME));
    for (unsigned i = 0; i < 20; i++)
        OK(weft_net_send(closed, "x", 1, NULL, DEFAULT_TIME));
    CHECK(weft_net_receive(closed, text, sizeof text, &n, 20 * WEFT_MS) == -ETIMEDOUT);
    OK(weft_net_close(closed));
}

/* A socket whose datagrams are not read does not delay others, and the datagrams that it has received are whole. */
static void not_read(weft_node *w)
{
    static uint8_t some[20000], right[sizeof some];
    weft_socket *s;
    uint32_t port;
    char text[WEFT_NET_ADDRESS];
    size_t n;
    int fd = udp_at("127.0.0.1", &port);
    struct sockaddr_in a = {.sin_family = AF_INET};
    OK(weft_net_listen(w, 0, SPEC(.host = "127.0.0.1", .flags = WEFT_NET_DATAGRAMS), &s, DEFAULT_TIME));
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    a.sin_port = htons((uint16_t)atoi(weft_net_local(s) + 10));
    for (unsigned i = 0; i < 100; i++) {
        fill(some, i, 0, sizeof some);
        memcpy(some, &i, sizeof i);
        CHECK(sendto(fd, some, sizeof some, 0, (struct sockaddr *)&a, sizeof a) == sizeof some);
    }
    unsigned count = 0, before = 0, this;
    for (; weft_net_receive_from(s, text, some, sizeof some, &n, 100 * WEFT_MS) == 0; count++) {
        CHECK(n == sizeof some);
        memcpy(&this, some, sizeof this);
        CHECK(count == 0 || this > before);
        before = this;
        fill(right, this, 0, sizeof right);
        CHECK(memcmp(some + 4, right + 4, sizeof some - 4) == 0);
    }
    CHECK(count >= 3 && count <= 100);
    OK(weft_net_close(s));
    close(fd);
}

static void datagrams(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        uint32_t port;
        pthread_t thread;
        int fd = udp_at("127.0.0.1", &port);
        CHECK(pthread_create(&thread, NULL, echo_datagrams, &fd) == 0);
        with_peer(w, port);
        pthread_join(thread, NULL);
        close(fd);
        without_peer(w);
        not_read(w);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

struct near {
    uint32_t port[2];
    char path[64];
};

/* The gateway's own loopback and its Unix sockets, for askers that may start programs there. */
static void near(weft_node *w, void *arg)
{
    const struct near *n = arg;
    if (weft_rank(w) == 1) {
        weft_socket *s;
        OK(weft_net_connect(w, 0, SPEC(.port = n->port[0], .flags = WEFT_NET_LOOPBACK), &s, DEFAULT_TIME));
        CHECK(strncmp(weft_net_peer(s), "127.0.0.1:", 10) == 0); /* no server listens at ::1 */
        OK(weft_net_close(s));
        OK(weft_net_connect(w, 0, SPEC(.host = n->path, .flags = WEFT_NET_LOOPBACK), &s, DEFAULT_TIME));
        CHECK(weft_net_peer(s)[0] == '\0');
        OK(weft_net_close(s));
        must_fail(w, SPEC(.port = n->port[1], .flags = WEFT_NET_LOOPBACK), -EACCES, "rule deny="); /* the gateway's own rules still hold */
        must_fail(w, SPEC(.host = "127.0.0.1", .port = n->port[0]), -EACCES, "a default rule");
        must_fail(w, SPEC(.host = "127.0.0.1", .port = n->port[0], .flags = WEFT_NET_LOOPBACK), -EINVAL, "WEFT_NET_LOOPBACK");
        must_fail(w, SPEC(.host = n->path, .port = 1, .flags = WEFT_NET_LOOPBACK), -EINVAL, "WEFT_NET_LOOPBACK");
        must_fail(w, SPEC(.host = "/no/such", .flags = WEFT_NET_LOOPBACK), -ENOENT, "cannot connect to /no/such: ");
        must_fail(w, SPEC(.flags = WEFT_NET_LOOPBACK), -EINVAL, "WEFT_NET_LOOPBACK");
        CHECK(weft_net_listen(w, 0, SPEC(.port = 1, .flags = WEFT_NET_LOOPBACK), &s, DEFAULT_TIME) == -EINVAL && !s);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void not_near(weft_node *w, void *arg)
{
    const struct near *n = arg;
    if (weft_rank(w) == 1) {
        must_fail(w, SPEC(.port = n->port[0], .flags = WEFT_NET_LOOPBACK), -EACCES, "because it does not offer 'process'");
        must_fail(w, SPEC(.host = n->path, .flags = WEFT_NET_LOOPBACK), -EACCES, "because it does not offer 'process'");
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static int wrong_rules(int rank, void *arg)
{
    (void)rank, (void)arg;
    static const char *const wrong[] = {
        "allow",      "allow=",          "permit=*",        "deny=10.0.0.0/33", "deny=1.2.3.4:0", "deny=1.2.3.4:9-8",
        "deny=a b",   "deny=*x",         "deny=[::1",       "deny=[::1]x",      "deny=x:70000",   "deny=::1/129",
        "deny=127.1", "deny=0x7f000001", "deny=2130706433", "deny=10.0.0.256",  "deny=*.",        "deny=a\\097"};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        weft_node *w;
        setenv("WEFT_SERVE", "net", 1);
        setenv("WEFT_SIZE", "1", 1);
        setenv("WEFT_RANK", "0", 1);
        setenv("WEFT_NET_RULES", wrong[i], 1);
        int rc = weft_open(&w, NULL);
        if (rc != -EINVAL || !strstr(weft_error(), "WEFT_NET_RULES"))
            fprintf(stderr, "rule '%s': %d: %s\n", wrong[i], rc, weft_error());
        CHECK(rc == -EINVAL && strstr(weft_error(), "WEFT_NET_RULES"));
    }
    return 0;
}

TEST(basics)
TEST(streams)
TEST(listening)
TEST(waiting)

static void test_datagrams(void **state)
{
    (void)state;
    const char *const settings[] = {"WEFT_SERVE=net", "WEFT_NET_RULES=allow=127.0.0.1", "WEFT_LOG=error", NULL};
    assert_int_equal(nodes_failed_with(2, datagrams, NULL, settings), 0);
}

static void test_near(void **state)
{
    (void)state;
    struct near n;
    char text[100];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int listener[2] = {listen_at("127.0.0.1", &n.port[0]), listen_at("127.0.0.1", &n.port[1])}, fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(n.path, sizeof n.path, "/tmp/weft-net-%d", (int)getpid());
    memcpy(a.sun_path, n.path, strlen(n.path));
    unlink(n.path);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 16), 0);
    snprintf(text, sizeof text, "WEFT_NET_RULES=deny=127.0.0.1:%u,deny=[::1]:%u", n.port[1], n.port[1]);
    int failed = nodes_failed_with(2, near, &n, (const char *const[]){"WEFT_SERVE=net,process", "WEFT_LOG=error", text, NULL});
    int failed_without = nodes_failed_with(2, not_near, &n, OPEN);
    unlink(n.path);
    assert_int_equal(failed, 0);
    assert_int_equal(failed_without, 0);
    close(fd);
    close(listener[0]);
    close(listener[1]);
}

static void test_errors(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, errors, NULL, OPEN), 0);
}

static void test_defaults(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, defaults, NULL, (const char *const[]){"WEFT_SERVE=net", "WEFT_LOG=error", NULL}), 0);
}

static void test_rules(void **state)
{
    (void)state;
    uint32_t port[2];
    char text[400];
    int listener[2] = {listen_at("127.0.0.1", &port[0]), listen_at("127.0.0.1", &port[1])};
    snprintf(text, sizeof text,
             "WEFT_NET_RULES=deny=LocalHost,allow=127.0.0.1:%u,deny=127.0.0.0/9,deny=10.0.0.0/8,deny=::ffff:11.0.0.0/"
             "104,deny=[::ffff:12.1.2.3]:80,deny=*:20-30,deny=[2001:db8::]/32:80,allow=*",
             port[0]);
    assert_int_equal(nodes_failed_with(2, rules, port, (const char *const[]){"WEFT_SERVE=net", "WEFT_LOG=error", text, NULL}), 0);
    close(listener[0]);
    close(listener[1]);
    assert_int_equal(processes_failed(1, wrong_rules, NULL), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_basics),  cmocka_unit_test(test_streams),  cmocka_unit_test(test_listening),
        cmocka_unit_test(test_errors),  cmocka_unit_test(test_defaults), cmocka_unit_test(test_rules),
        cmocka_unit_test(test_waiting), cmocka_unit_test(test_near),     cmocka_unit_test(test_datagrams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
