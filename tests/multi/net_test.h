/* SPDX-License-Identifier: MIT
 *
 * Helpers of the net service's tests. Node 0 is the gateway, the others are the askers. The servers and clients at the other ends are
 * ordinary sockets of the askers' processes, on the loopback of the gateway's host, which a rule allows.
 */
#ifndef WEFT_TESTS_NET_TEST_H
#define WEFT_TESTS_NET_TEST_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "cluster_test.h"
#include "pattern.h"
#include "weft/net.h"

#define LOOPBACK "allow=127.0.0.1,allow=::1"
static const char *const OPEN[] __attribute__((unused)) = {"WEFT_SERVE=net", "WEFT_NET_RULES=" LOOPBACK, "WEFT_LOG=error", NULL};
#define DEFAULT_TIME WEFT_TIMEOUT_DEFAULT
#define SPEC(...)    (&(const weft_net_spec){.bytes = sizeof(weft_net_spec), __VA_ARGS__})

/* --- ordinary sockets --- */

static inline int socket_at_gateway(int type)
{
    return socket_on_host(0, AF_INET, type);
}

static inline int listen_at(const char *address, uint32_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof a;
    int fd = socket_at_gateway(SOCK_STREAM);
    inet_pton(AF_INET, address, &a.sin_addr);
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 4096) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static inline int accept_at(int listener)
{
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    return fd;
}

static inline void send_all(int fd, const void *bytes, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, (const char *)bytes + at, len - at, MSG_NOSIGNAL);
        CHECK(n > 0);
        at += (size_t)n;
    }
}

static inline size_t read_to_end(int fd, void *bytes, size_t len)
{
    size_t at = 0;
    for (ssize_t n; (n = read(fd, (char *)bytes + at, len - at)) > 0; at += (size_t)n)
        ;
    return at;
}

static inline void reset(int fd)
{
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger)) == 0);
    close(fd);
}

struct sender {
    int fd;
    uint64_t seed, bytes;
};

static inline void *send_stream(void *arg)
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

static inline void *take_stream(void *arg)
{
    struct sender *s = arg;
    static _Thread_local uint8_t some[50000];
    uint64_t at = 0;
    for (ssize_t n; (n = read(s->fd, some, sizeof some)) != 0; at += (uint64_t)n) {
        CHECK(n > 0);
        CHECK(right(some, s->seed, at, (size_t)n));
    }
    CHECK(at == s->bytes);
    return NULL;
}

static inline void receive_stream(weft_socket *s, uint64_t seed, uint64_t bytes)
{
    static _Thread_local uint8_t some[30000];
    size_t n;
    uint64_t at = 0;
    for (;;) {
        OK(weft_net_receive(s, some, sizeof some, &n, DEFAULT_TIME));
        if (!n)
            break;
        CHECK(right(some, seed, at, n));
        at += n;
    }
    CHECK(at == bytes);
}

static inline void must_fail(weft_node *w, const weft_net_spec *spec, int code, const char *says)
{
    weft_socket *s = (weft_socket *)1;
    int rc = weft_net_connect(w, 0, spec, &s, DEFAULT_TIME);
    if (rc != code || !strstr(weft_error(), says))
        fprintf(stderr, "connecting to %s: %d, not %d: %s\n", spec->host ? spec->host : "-", rc, code, weft_error());
    CHECK(rc == code && !s && strstr(weft_error(), says));
}

#define TEST(name)                                                   \
    static void test_##name(void **state)                            \
    {                                                                \
        (void)state;                                                 \
        assert_int_equal(nodes_failed_with(2, name, NULL, OPEN), 0); \
    }

#endif
