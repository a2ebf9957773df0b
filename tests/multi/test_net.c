/* SPDX-License-Identifier: MIT
 *
 * The net service. Node 0 is the gateway, the others are the askers. The servers and clients at the other ends are ordinary sockets of the
 * askers' processes, on loopback, which a rule allows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include "cluster_test.h"
#include "gateway/net_handle.h"

#define LOOPBACK "allow=127.0.0.1,allow=::1"
static const char *const OPEN[] = {"WEFT_SERVE=net", "WEFT_NET_RULES=" LOOPBACK, "WEFT_LOG=error", NULL};
#define DEFAULT_TIME WEFT_TIMEOUT_DEFAULT
#define SPEC(...)    (&(const weft_net_spec){.bytes = sizeof(weft_net_spec), __VA_ARGS__})

/* --- ordinary sockets --- */

static int listen_at(const char *address, uint32_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, address, &a.sin_addr);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 4096) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static int accept_at(int listener)
{
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    return fd;
}

static void send_all(int fd, const void *bytes, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, (const char *)bytes + at, len - at, MSG_NOSIGNAL);
        CHECK(n > 0);
        at += (size_t)n;
    }
}

static size_t read_to_end(int fd, void *bytes, size_t len)
{
    size_t at = 0;
    for (ssize_t n; (n = read(fd, (char *)bytes + at, len - at)) > 0; at += (size_t)n)
        ;
    return at;
}

static void reset(int fd)
{
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger)) == 0);
    close(fd);
}

/* The bytes of a stream: byte i of stream `seed`. */
static void fill(uint8_t *to, uint64_t seed, uint64_t from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (uint8_t)(((from + i) * 2654435761u >> 8) + seed);
}

struct sender {
    int fd;
    uint64_t seed, bytes;
};

static void *send_stream(void *arg)
{
    struct sender *s = arg;
    static _Thread_local uint8_t some[50000];
    for (uint64_t at = 0; at < s->bytes;) {
        size_t n = s->bytes - at < sizeof some ? (size_t)(s->bytes - at) : sizeof some;
        fill(some, s->seed, at, n);
        send_all(s->fd, some, n);
        at += n;
    }
    CHECK(shutdown(s->fd, SHUT_WR) == 0);
    return NULL;
}

static void *take_stream(void *arg)
{
    struct sender *s = arg;
    static _Thread_local uint8_t some[50000], right[50000];
    uint64_t at = 0;
    for (ssize_t n; (n = read(s->fd, some, sizeof some)) != 0; at += (uint64_t)n) {
        CHECK(n > 0);
        fill(right, s->seed, at, (size_t)n);
        CHECK(memcmp(some, right, (size_t)n) == 0);
    }
    CHECK(at == s->bytes);
    return NULL;
}

static void receive_stream(weft_socket *s, uint64_t seed, uint64_t bytes)
{
    static _Thread_local uint8_t some[30000], right[30000];
    size_t n;
    uint64_t at = 0;
    for (;;) {
        OK(weft_net_receive(s, some, sizeof some, &n, DEFAULT_TIME));
        if (!n)
            break;
        fill(right, seed, at, n);
        CHECK(memcmp(some, right, n) == 0);
        at += n;
    }
    CHECK(at == bytes);
}

/* --- the tests --- */

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
    CHECK(weft_net_receive(s, text, sizeof text, &n, 10 * WEFT_MS) == -ETIMEDOUT && strstr(weft_error(), "nothing came from 127.0.0.1"));
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

/* Large streams both ways at once, with rings of several sizes, byte by byte right. */
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
        /* What is sent must not wait for what is received: by turns, in place. */
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
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        pthread_t thread;
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
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
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int64_t deadline = now_ns() + patience_ns(10);
    while (connect(fd, (struct sockaddr *)&a, sizeof a) == 0 || errno == ECONNRESET) { /* closed there a moment later */
        CHECK(now_ns() < deadline);
        close(fd);
        fd = socket(AF_INET, SOCK_STREAM, 0);
    }
    CHECK(errno == ECONNREFUSED);
    close(fd);
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* Several wait at once; each gets a connection. What still waits when the listener is closed ends with an error. */
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
            fd[i] = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(fd[i] >= 0 && connect(fd[i], (struct sockaddr *)&a, sizeof a) == 0);
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

static void must_fail(weft_node *w, const weft_net_spec *spec, int code, const char *says)
{
    weft_socket *s = (weft_socket *)1;
    int rc = weft_net_connect(w, 0, spec, &s, DEFAULT_TIME);
    if (rc != code || !strstr(weft_error(), says))
        fprintf(stderr, "connecting to %s: %d, not %d: %s\n", spec->host ? spec->host : "-", rc, code, weft_error());
    CHECK(rc == code && !s && strstr(weft_error(), says));
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
    must_fail(w, SPEC(.host = "loc\\097lhost", .port = 80), -EINVAL, "a character that no name");
    must_fail(w, SPEC(.host = "a\nweft: error: b", .port = 80), -EINVAL, "a character that no name");
    must_fail(w, SPEC(.port = 80), -EINVAL, "host ''");
    must_fail(w, SPEC(.host = "x"), -EINVAL, "port 0");
    must_fail(w, SPEC(.host = "x", .port = 80, .flags = 0x100), -EINVAL, "flags");
    must_fail(w, SPEC(.host = "x", .port = 80, .flags = WEFT_NET_IPV4 | WEFT_NET_IPV6), -EINVAL, "flags");
    must_fail(w, SPEC(.host = "x", .port = 80, .send_ring = 5000), -EINVAL, "powers of two");
    CHECK(weft_net_connect(w, 7, SPEC(.host = "x", .port = 80), &s, DEFAULT_TIME) == -EFAULT && !s);
    /* A record for the service. */
    weft_gaddr at;
    OK(weft_alloc(w, sizeof(weft_request), &at));
    *(weft_request *)weft_ptr(w, at, sizeof(weft_request)) =
        (weft_request){.version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_NET, .kind = 1, .id = 1};
    OK(weft_request_start(w, at, &op));
    CHECK(weft_wait(w, &op, DEFAULT_TIME) == -EOPNOTSUPP);
    OK(weft_free(w, at));
    /* The peer resets the connection. */
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port), &s, DEFAULT_TIME));
    int fd = accept_at(listener);
    send_all(fd, "abc", 3);
    OK(weft_net_receive(s, text, 1, &n, DEFAULT_TIME)); /* it has arrived */
    reset(fd);
    int rc = weft_net_receive(s, text, sizeof text, &n, DEFAULT_TIME);
    while (rc == 0 && n)
        rc = weft_net_receive(s, text, sizeof text, &n, DEFAULT_TIME);
    CHECK(rc == -ECONNRESET && strstr(weft_error(), "connection to 127.0.0.1:"));
    while ((rc = weft_net_send(s, text, sizeof text, NULL, DEFAULT_TIME)) == 0)
        ;
    CHECK(rc == -EPIPE);
    OK(weft_net_close(s));
    /* Closed while it is being opened; and opened without waiting. */
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
    /* All of that gave its memory back. */
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
            must_fail(w, SPEC(.host = names[i], .port = port), -EACCES, "cannot be reached by default");
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
        must_fail(w, SPEC(.host = "127.200.0.1", .port = 80), -EACCES, "by default"); /* allow=* opens nothing that is denied by default */
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static int udp_at(const char *address, uint32_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    inet_pton(AF_INET, address, &a.sin_addr);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && getsockname(fd, (struct sockaddr *)&a, &len) == 0);
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
    CHECK(weft_net_receive(s, in, 4, &n, DEFAULT_TIME) == -EMSGSIZE && n == 5); /* it stays */
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

/* A bound socket: from and to everybody, except whom the rules forbid. */
static void without_peer(weft_node *w)
{
    weft_socket *s, *closed;
    uint32_t port[3];
    int fd[2] = {udp_at("127.0.0.1", &port[0]), udp_at("127.0.0.1", &port[1])}, denied = udp_at("127.0.0.2", &port[2]);
    char to[2][WEFT_NET_ADDRESS], from[WEFT_NET_ADDRESS], text[64], wrong[WEFT_NET_ADDRESS];
    struct sockaddr_in a = {.sin_family = AF_INET};
    size_t n;
    OK(weft_net_listen(w, 0, SPEC(.flags = WEFT_NET_DATAGRAMS), &s, DEFAULT_TIME)); /* of IPv6, takes IPv4, too */
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
    /* Nobody is there: sending goes on. */
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port[0], .flags = WEFT_NET_DATAGRAMS), &closed, DEFAULT_TIME));
    for (unsigned i = 0; i < 20; i++)
        OK(weft_net_send(closed, "x", 1, NULL, DEFAULT_TIME));
    CHECK(weft_net_receive(closed, text, sizeof text, &n, 20 * WEFT_MS) == -ETIMEDOUT);
    OK(weft_net_close(closed));
}

/* One that is not read holds up nobody, and what it has got is whole. */
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
        CHECK(strncmp(weft_net_peer(s), "127.0.0.1:", 10) == 0); /* nobody listens at ::1 */
        OK(weft_net_close(s));
        OK(weft_net_connect(w, 0, SPEC(.host = n->path, .flags = WEFT_NET_LOOPBACK), &s, DEFAULT_TIME));
        CHECK(weft_net_peer(s)[0] == '\0');
        OK(weft_net_close(s));
        must_fail(w, SPEC(.port = n->port[1], .flags = WEFT_NET_LOOPBACK), -EACCES, "rule deny="); /* the owner's rules hold */
        must_fail(w, SPEC(.host = "127.0.0.1", .port = n->port[0]), -EACCES, "by default");
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

/* One connection is not read, by its asker or by its peer: the other ones go on, and nothing of it is lost. */
static void slow(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    uint32_t port;
    int listener = listen_at("127.0.0.1", &port);
    weft_socket *s[3];
    int fd[3];
    pthread_t threads[2];
    const uint64_t bytes = (uint64_t)repeats(300) * 100000;
    for (unsigned i = 0; i < 3; i++) {
        OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port, .receive_buffer = 65536, .send_buffer = 65536), &s[i],
                            DEFAULT_TIME));
        fd[i] = accept_at(listener);
    }
    struct sender unread = {fd[0], 1, 20 << 20}, fast = {fd[1], 2, bytes};
    CHECK(pthread_create(&threads[0], NULL, send_stream, &unread) == 0);
    size_t put, all = 0;
    static uint8_t some[10000];
    int rc;
    do { /* until the peer, which does not read, has taken what fits into the buffers */
        fill(some, 3, all, sizeof some);
        rc = weft_net_send(s[2], some, sizeof some, &put, 100 * WEFT_MS);
        all += put;
    } while (rc == 0 && all < 200u << 20);
    CHECK(rc == -ETIMEDOUT);
    CHECK(pthread_create(&threads[1], NULL, send_stream, &fast) == 0);
    receive_stream(s[1], 2, bytes);
    pthread_join(threads[1], NULL);
    receive_stream(s[0], 1, unread.bytes);
    pthread_join(threads[0], NULL);
    struct sender late = {fd[2], 3, all};
    OK(weft_net_shutdown(s[2]));
    take_stream(&late);
    for (unsigned i = 0; i < 3; i++) {
        OK(weft_net_close(s[i]));
        close(fd[i]);
    }
    close(listener);
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* The gateway runs out of open files: askers are told, and it has some left for itself. */
#define FILES 256u
static void files(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        int own[16];
        OK(weft_barrier(w, DEFAULT_TIME));
        for (unsigned i = 0; i < 16; i++)
            CHECK((own[i] = open("/dev/null", O_RDONLY)) >= 0);
        for (unsigned i = 0; i < 16; i++)
            close(own[i]);
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    weft_socket *s[FILES] = {NULL}, *l;
    uint32_t port, n = 0;
    int rc = 0, listener = listen_at("127.0.0.1", &port);
    OK(weft_net_listen(w, 0, SPEC(.host = "127.0.0.1"), &l, DEFAULT_TIME));
    while (n < FILES && !(rc = weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port, .receive_ring = 4096, .send_ring = 4096),
                                                &s[n], DEFAULT_TIME)))
        n++;
    CHECK(rc == -EMFILE && n > FILES / 2);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(weft_net_local(l) + 10))};
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    CHECK(weft_net_accept(l, &s[n], DEFAULT_TIME) == -EMFILE);
    OK(weft_barrier(w, DEFAULT_TIME));
    while (n)
        OK(weft_net_close(s[--n]));
    OK(weft_net_close(l));
    close(fd);
    close(listener);
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_files(void **state)
{
    (void)state;
    struct rlimit before, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = FILES;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(nodes_failed_with(2, files, NULL, OPEN), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* An asker that lies about the bytes of its own connections: each is reset, the asker is told, and others go on. */
static void lies(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    static const struct {
        uint8_t type;
        int32_t status;
        uint64_t number, position, bytes, last; /* number: added to that of the asker's stream */
        size_t payload;
    } lie[] = {
        {GATEWAY_DATA, 0, 0, 1, 1, 0, 0},          {GATEWAY_DATA, 0, 0, UINT64_MAX, 1, 0, 0}, {GATEWAY_DATA, 0, 0, 0, 65537, 0, 0},
        {GATEWAY_DATA, 0, 0, 0, UINT64_MAX, 0, 0}, {GATEWAY_DATA, 0, 0, 0, 1, 2, 0},          {GATEWAY_DATA, 1, 0, 0, 1, 1, 0},
        {GATEWAY_DATA, 0, 1, 0, 1, 0, 0},          {GATEWAY_DATA, 0, 0, 0, 8, 0, 8},          {GATEWAY_DATA, 0, 0, 0, 9, 0, 8},
        {GATEWAY_CREDIT, 0, 1, 0, 0, 0, 0},        {GATEWAY_SHUT, 0, 0, 0, 0, 0, 0},
    };
    uint32_t port;
    char text[8] = "";
    size_t n;
    weft_socket *s, *good;
    int listener = listen_at("127.0.0.1", &port);
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port), &good, DEFAULT_TIME));
    int there = accept_at(listener);
    for (unsigned i = 0; i < sizeof lie / sizeof lie[0]; i++) {
        OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port), &s, DEFAULT_TIME));
        int fd = accept_at(listener);
        const struct gateway_message m = {.type = lie[i].type,
                                          .status = lie[i].status,
                                          .to = s->out->peer,
                                          .word = {s->out->id + lie[i].number, lie[i].position, lie[i].bytes, lie[i].last}};
        OK(fab_send(w, 0, GATEWAY_HANDLER, &m, sizeof m, text, lie[i].payload, NULL));
        int rc = weft_net_receive(s, text, sizeof text, &n, patience_ns(10));
        if (rc != -EPROTO)
            fprintf(stderr, "lie %u: %d\n", i, rc);
        CHECK(rc == -EPROTO);
        CHECK(read(fd, text, 1) < 0 && errno == ECONNRESET);
        OK(weft_net_close(s));
        close(fd);
    }
    OK(weft_net_send(good, "good", 4, NULL, DEFAULT_TIME));
    CHECK(read(there, text, 4) == 4);
    send_all(there, "good", 4);
    OK(weft_net_receive(good, text, 4, &n, DEFAULT_TIME));
    /* Lies about what it has taken: it gets no more bytes, and the connection can still be closed. */
    const struct gateway_message credit = {.type = GATEWAY_CREDIT, .to = good->in->peer, .word = {1000}};
    OK(fab_send(w, 0, GATEWAY_HANDLER, &credit, sizeof credit, NULL, 0, NULL));
    OK(weft_net_close(good));
    CHECK(read(there, text, 1) <= 0);
    close(there);
    close(listener);
    OK(weft_barrier(w, DEFAULT_TIME));
}

#if defined(__linux__)
/* Names that a name server would have to know, in place of libc's function. again.test: the name server does not answer. holes.test:
 * three addresses. */
int getaddrinfo(const char *restrict host, const char *restrict port, const struct addrinfo *restrict hints, struct addrinfo **restrict out)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!host || hints->ai_flags & AI_NUMERICHOST)
        return real(host, port, hints, out);
    if (strcmp(host, "again.test") == 0)
        return EAI_AGAIN;
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

/* The name server does not answer: that error is one of opening, not "nothing is there now", and nothing waits for more. */
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
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, address, &a.sin_addr);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 0) == 0);
    for (unsigned i = 0; i < 3; i++) {
        CHECK((client[i] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && fcntl(client[i], F_SETFL, O_NONBLOCK) == 0);
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

static void test_names(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, no_answer, NULL, OPEN), 0);
    assert_int_equal(nodes_failed_with(2, old_system, NULL, (const char *const[]){"WEFT_SERVE=net", "TEST_NO_IPV6=1", NULL}), 0);
    assert_int_equal(nodes_failed_with(2, holes, NULL, (const char *const[]){"WEFT_SERVE=net", "WEFT_NET_RULES=allow=127.0.0.0/8", NULL}),
                     0);
}
#endif

/* More peers that do not read than the gateway has buffers for what it fetches: other connections go on, and nothing is lost. */
#define STALLED 80u
static void stalled(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    static uint8_t some[50000];
    weft_socket *s[STALLED + 1];
    int fd[STALLED + 1];
    uint64_t sent[STALLED] = {0};
    uint32_t port;
    int listener = listen_at("127.0.0.1", &port);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &(int){4096}, sizeof(int)) == 0);
    for (unsigned i = 0; i <= STALLED; i++) {
        OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port, .send_buffer = 4096), &s[i], DEFAULT_TIME));
        fd[i] = accept_at(listener);
    }
    for (unsigned i = 0; i < STALLED; i++) {
        size_t put;
        int rc;
        do {
            fill(some, i, sent[i], sizeof some);
            rc = weft_net_send(s[i], some, sizeof some, &put, 20 * WEFT_MS);
            sent[i] += put;
        } while (rc == 0 && sent[i] < 20u << 20);
        CHECK(rc == -ETIMEDOUT);
    }
    const struct timeval patience = {.tv_sec = patience_ns(10) / WEFT_SECOND};
    CHECK(setsockopt(fd[STALLED], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    OK(weft_net_send(s[STALLED], "go on", 5, NULL, DEFAULT_TIME));
    CHECK(recv(fd[STALLED], some, 5, MSG_WAITALL) == 5 && memcmp(some, "go on", 5) == 0);
    for (unsigned i = 0; i <= STALLED; i++) {
        struct sender all = {fd[i], i, i < STALLED ? sent[i] : 0};
        OK(weft_net_shutdown(s[i]));
        take_stream(&all);
        OK(weft_net_close(s[i]));
        close(fd[i]);
    }
    close(listener);
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* A thousand connections at once, most of them idle. */
#define MANY 1000u
static void many(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    static weft_socket *s[MANY];
    static weft_op op[MANY];
    static int fd[MANY];
    const uint32_t n = getenv("TEST_DIVIDE") ? 100 : MANY;
    uint32_t port;
    int listener = listen_at("127.0.0.1", &port);
    for (uint32_t i = 0; i < n; i++)
        OK(weft_net_connect_start(w, 0, SPEC(.host = "127.0.0.1", .port = port, .receive_ring = 16384, .send_ring = 16384), &s[i], &op[i]));
    for (uint32_t i = 0; i < n; i++)
        fd[i] = accept_at(listener);
    for (uint32_t i = 0; i < n; i++)
        OK(weft_wait(w, &op[i], DEFAULT_TIME));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t which = 0;
        OK(weft_net_send(s[i], &i, sizeof i, NULL, DEFAULT_TIME));
        CHECK(recv(fd[i], &which, sizeof which, MSG_WAITALL) == sizeof which);
        send_all(fd[i], &which, sizeof which); /* the order of accepting need not be that of connecting */
    }
    static bool seen[MANY];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t which;
        size_t got;
        OK(weft_net_receive(s[i], &which, sizeof which, &got, DEFAULT_TIME));
        CHECK(got == sizeof which && which < n && !seen[which]);
        seen[which] = true;
    }
    for (uint32_t i = 0; i < n; i++) {
        OK(weft_net_close(s[i]));
        char text[4];
        CHECK(read_to_end(fd[i], text, sizeof text) == 0);
        close(fd[i]);
    }
    close(listener);
    OK(weft_barrier(w, DEFAULT_TIME));
}

struct board {
    _Atomic uint32_t met, port, connected;
};

/* The asker dies: its peer sees a reset, not an end, and its listener is closed. */
static void asker_dies(weft_node *w, void *arg)
{
    struct board *b = arg;
    weft_socket *s, *l;
    if (weft_rank(w) == 2) {
        uint32_t port;
        char text[4];
        int listener = listen_at("127.0.0.1", &port);
        b->port = port;
        int fd = accept_at(listener);
        CHECK(read(fd, text, 1) == 1);
        ssize_t n = read(fd, text, 1);
        CHECK(n < 0 && errno == ECONNRESET);
        int64_t deadline = now_ns() + patience_ns(20);
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)b->connected)};
        inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
        for (int rc = 0; rc == 0;) {
            fd = socket(AF_INET, SOCK_STREAM, 0);
            rc = connect(fd, (struct sockaddr *)&a, sizeof a);
            close(fd);
            CHECK(now_ns() < deadline);
        }
        return;
    }
    if (weft_rank(w) == 1) {
        wait_for(&b->port, 1);
        OK(weft_net_listen(w, 0, SPEC(.host = "127.0.0.1"), &l, DEFAULT_TIME));
        b->connected = (uint32_t)atoi(weft_net_local(l) + 10);
        OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = b->port), &s, DEFAULT_TIME));
        OK(weft_net_send(s, "x", 1, NULL, DEFAULT_TIME));
        usleep(50000);
        kill(getpid(), SIGKILL);
    }
    int64_t deadline = now_ns() + patience_ns(20);
    while (weft_alive(w, 1) || weft_alive(w, 2))
        CHECK(usleep(1000) == 0 && now_ns() < deadline);
}

/* The gateway dies in the middle of a download: what has arrived can be read, then there is an error, and at once. */
static void gateway_dies(weft_node *w, void *arg)
{
    struct board *b = arg;
    if (weft_rank(w) == 0) {
        wait_for(&b->connected, 1);
        kill(getpid(), SIGKILL);
    }
    uint32_t port;
    int listener = listen_at("127.0.0.1", &port);
    weft_socket *s, *l, *new;
    char text[6];
    size_t n;
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port), &s, DEFAULT_TIME));
    OK(weft_net_listen(w, 0, SPEC(.host = "127.0.0.1"), &l, DEFAULT_TIME));
    int fd = accept_at(listener);
    send_all(fd, "before", 6);
    OK(weft_net_receive(s, text, 1, &n, DEFAULT_TIME));
    int64_t began = now_ns();
    b->connected = 1;
    for (size_t got = 1; got < 6; got += n)
        OK(weft_net_receive(s, text, sizeof text, &n, DEFAULT_TIME));
    CHECK(weft_net_receive(s, text, sizeof text, &n, DEFAULT_TIME) == -ECONNRESET);
    CHECK(weft_net_send(s, "x", 1, NULL, DEFAULT_TIME) == -ECONNRESET);
    CHECK(weft_net_error(s) == -ECONNRESET);
    CHECK(weft_net_accept(l, &new, DEFAULT_TIME) == -ECONNRESET && !new);
    CHECK(now_ns() - began < patience_ns(10));
    CHECK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port), &new, DEFAULT_TIME) != 0 && !new);
    OK(weft_net_close(s));
    OK(weft_net_close(l));
    close(fd);
    close(listener);
}

#define TEST(name)                                                   \
    static void test_##name(void **state)                            \
    {                                                                \
        (void)state;                                                 \
        assert_int_equal(nodes_failed_with(2, name, NULL, OPEN), 0); \
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

TEST(slow)
TEST(stalled)
TEST(lies)

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

static void test_many(void **state)
{
    (void)state;
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max; /* of the nodes, too */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(nodes_failed_with(2, many, NULL, OPEN), 0);
}

static void test_deaths(void **state)
{
    (void)state;
    int status[NODES_MAX];
    struct board *b = shared_words(sizeof *b);
    nodes_run(3, asker_dies, b, OPEN, status);
    assert_true(WIFSIGNALED(status[1]));
    assert_int_equal(status[0], 0);
    assert_int_equal(status[2], 0);
    b = shared_words(sizeof *b);
    nodes_run(2, gateway_dies, b, OPEN, status);
    assert_true(WIFSIGNALED(status[0]));
    assert_int_equal(status[1], 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_basics),   cmocka_unit_test(test_streams),   cmocka_unit_test(test_listening), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_rules),     cmocka_unit_test(test_slow),      cmocka_unit_test(test_many),
        cmocka_unit_test(test_deaths),   cmocka_unit_test(test_waiting),   cmocka_unit_test(test_near),      cmocka_unit_test(test_stalled),
        cmocka_unit_test(test_lies),     cmocka_unit_test(test_datagrams), cmocka_unit_test(test_files),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
#if defined(__linux__)
    const struct CMUnitTest names[] = {cmocka_unit_test(test_names)};
    failed += cmocka_run_group_tests(names, NULL, NULL);
#endif
    return failed;
}
