/* SPDX-License-Identifier: MIT
 *
 * Sockets of kernels, on the GPU `host`: kernels of node 1 connect, listen, send and receive through node 0, from and to pools and arenas
 * of both nodes. The other ends are ordinary sockets of node 1's process (net_test.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>

#include "kernel_test.h"
#include "net_test.h"
#include "weft/device_file.h"
#include "weft/device_net.h"

#define BYTES  300000u /* more than a ring holds */
#define BLOCKS 4u

#define MUST(is)                                                                                                 \
    do {                                                                                                         \
        if (!(is)) {                                                                                             \
            fprintf(stderr, "%s:%d: block %u: %s (rc %d)\n", __FILE__, __LINE__, weft_device_block(d), #is, rc); \
            c->failed = true;                                                                                    \
            return;                                                                                              \
        }                                                                                                        \
    } while (0)

/* The addresses that one block uses. */
struct call {
    uint64_t record, host, from, to;
    uint32_t port, host_bytes;
    bool failed;
};
struct calls {
    struct call of[BLOCKS];
};

/* --- streams --- */

/* Sends a stream to an echo, and receives it again, in parts of any size. */
static void echo_kernel(const weft_device *d, void *arg)
{
    struct call *c = &((struct calls *)arg)->of[weft_device_block(d)];
    uint64_t s, n, at, sent = 0, got = 0;
    weft_device_net_address own, peer;
    int rc = weft_device_net_connect(d, c->record, 0, c->host, c->host_bytes, c->port, WEFT_NET_NODELAY, &s);
    MUST(rc == 0);
    rc = weft_device_net_opened(d, c->record, s, &own, &peer);
    MUST(rc == 0 && own.family == 4 && own.port && peer.port == c->port && peer.bytes[0] == 127 && peer.bytes[3] == 1);
    while (got < BYTES) {
        if (sent < BYTES && sent - got < 20000) {
            uint64_t some = BYTES - sent < 9000 ? BYTES - sent : 9000;
            rc = weft_device_net_send(d, c->record, s, c->from + sent, some, &n);
            MUST(rc == 0 && n == some);
            sent += n;
        } else {
            rc = weft_device_net_receive(d, c->record, s, c->to + got, BYTES - got < 7000 ? BYTES - got : 7000, &n);
            MUST(rc == 0 && n > 0);
            got += n;
        }
    }
    rc = weft_device_net_shutdown(d, c->record, s);
    MUST(rc == 0);
    rc = weft_device_net_receive(d, c->record, s, c->to, 1, &n);
    MUST(rc == 0 && n == 0);
    rc = weft_device_net_received(d, c->record, s, &at, &n);
    MUST(rc == 0 && n == 0);
    rc = weft_device_net_send(d, c->record, s, c->from, 1, &n);
    MUST(rc == -WEFT_DEVICE_EPIPE && n == 0);
    rc = weft_device_net_close(d, c->record, s);
    MUST(rc == 0);
    rc = weft_device_net_close(d, c->record, s);
    MUST(rc == -WEFT_DEVICE_EBADF);
}

static void *echo_one(void *arg)
{
    static _Thread_local uint8_t some[20000];
    int fd = (int)(intptr_t)arg;
    for (ssize_t n; (n = read(fd, some, sizeof some)) > 0;)
        send_all(fd, some, (size_t)n);
    close(fd);
    return NULL;
}

static void *echo_all(void *arg)
{
    pthread_t t[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++)
        CHECK(pthread_create(&t[i], NULL, echo_one, (void *)(intptr_t)accept_at(*(int *)arg)) == 0);
    for (unsigned i = 0; i < BLOCKS; i++)
        pthread_join(t[i], NULL);
    return NULL;
}

static void streams(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t space = 0;
    weft_gpu *g = gpu_with_arena(w, &space);
    weft_gaddr arena, all[2];
    OK(weft_gpu_alloc(g, space, BYTES, &arena));
    weft_gaddr pool = symmetric_alloc(w, BYTES);
    OK(weft_exchange(w, &arena, 1, all, NULL, DEFAULT_TIME));
    if (weft_rank(w) == 1) {
        static uint8_t right[BYTES], got[BYTES];
        uint32_t port;
        int listener = listen_at("127.0.0.1", &port);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, echo_all, &listener) == 0);
        weft_gaddr mine, far = on_node(pool, 0);
        OK(weft_alloc(w, BYTES, &mine));
        const weft_gaddr from[BLOCKS] = {mine, arena, all[0], far}, to[BLOCKS] = {arena, mine, far, all[0]};
        for (uint32_t b = 0; b < BLOCKS; b++) {
            struct calls one = {.of = {{.from = from[b], .to = to[b], .port = port}}};
            one.of[0].record = new_record(w, g, space, b % 2);
            one.of[0].host = at_text(w, "127.0.0.1", &one.of[0].host_bytes);
            fill(right, b, 0, BYTES);
            OK(weft_put_blocking(w, from[b], right, BYTES));
            OK(weft_gpu_run(g, echo_kernel, 1, &one));
            CHECK(!one.of[0].failed);
            OK(weft_get_blocking(w, got, to[b], BYTES));
            CHECK(memcmp(got, right, BYTES) == 0);
        }
        pthread_join(thread, NULL);
        close(listener);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
    OK(weft_gpu_close(g));
}
TEST(streams)

/* All blocks at once, each with a connection of its own. */
static void blocks(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        static uint8_t right[BYTES], got[BYTES];
        uint32_t space = 0, port;
        weft_gpu *g = gpu_with_arena(w, &space);
        int listener = listen_at("127.0.0.1", &port);
        struct calls calls;
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, echo_all, &listener) == 0);
        for (uint32_t b = 0; b < BLOCKS; b++) {
            struct call *c = &calls.of[b];
            *c = (struct call){.record = new_record(w, g, space, b % 2), .port = port};
            c->host = at_text(w, "127.0.0.1", &c->host_bytes);
            OK(weft_alloc(w, BYTES, b / 2 ? &c->to : &c->from));
            OK(weft_gpu_alloc(g, space, BYTES, b / 2 ? &c->from : &c->to));
            fill(right, b, 0, BYTES);
            OK(weft_put_blocking(w, c->from, right, BYTES));
        }
        OK(weft_gpu_run(g, echo_kernel, BLOCKS, &calls));
        for (uint32_t b = 0; b < BLOCKS; b++) {
            CHECK(!calls.of[b].failed);
            fill(right, b, 0, BYTES);
            OK(weft_get_blocking(w, got, calls.of[b].to, BYTES));
            CHECK(memcmp(got, right, BYTES) == 0);
        }
        pthread_join(thread, NULL);
        close(listener);
        OK(weft_gpu_close(g));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}
TEST(blocks)

/* --- listening; bytes that are read in the ring --- */

struct words { /* in shared memory */
    _Atomic uint32_t port, step, pid;
};

struct listening {
    struct call call;
    struct words *words;
};

static void listen_kernel(const weft_device *d, void *arg)
{
    struct listening *l = arg;
    struct call *c = &l->call;
    uint64_t listener, s, at, n, sum = 0, all = 0;
    weft_device_net_address own, peer;
    int rc = weft_device_net_listen(d, c->record, 0, c->host, c->host_bytes, 0, 0, &listener);
    MUST(rc == 0);
    rc = weft_device_net_opened(d, c->record, listener, &own, &peer);
    MUST(rc == 0 && own.family == 4 && own.port && peer.family == 0);
    rc = weft_device_net_receive(d, c->record, listener, c->to, 1, &n);
    MUST(rc == -WEFT_DEVICE_EINVAL);
    rc = weft_device_net_send(d, c->record, listener, c->from, 1, NULL);
    MUST(rc == -WEFT_DEVICE_EINVAL);
    atomic_store(&l->words->port, own.port);
    rc = weft_device_net_accept(d, c->record, listener, &s);
    MUST(rc == 0);
    rc = weft_device_net_opened(d, c->record, s, &own, &peer);
    MUST(rc == 0 && own.port == l->words->port && peer.family == 4 && peer.port);
    rc = weft_device_net_accept(d, c->record, s, &at);
    MUST(rc == -WEFT_DEVICE_EINVAL);
    do {
        rc = weft_device_net_received(d, c->record, s, &at, &n);
        const uint8_t *p = weft_device_ptr(d, at, n);
        MUST(rc == 0 && (n == 0 || p));
        uint64_t some = n < 3000 ? n : 3000;
        for (uint64_t i = 0; i < some; i++)
            sum += p[i] * (all + i + 1);
        all += some;
        rc = weft_device_net_taken(d, c->record, s, some);
        MUST(rc == 0);
    } while (n);
    rc = weft_device_net_taken(d, c->record, s, 1);
    MUST(rc == -WEFT_DEVICE_EINVAL);
    MUST(all == BYTES);
    *(uint64_t *)weft_device_ptr(d, c->from, 8) = sum;
    rc = weft_device_net_send(d, c->record, s, c->from, 8, NULL);
    MUST(rc == 0);
    rc = weft_device_net_close(d, c->record, s);
    MUST(rc == 0);
    rc = weft_device_net_close(d, c->record, listener);
    MUST(rc == 0);
}

static void *talk(void *arg)
{
    struct words *words = arg;
    static uint8_t some[BYTES];
    uint64_t sum = 0, got = 0;
    wait_for(&words->port, 1);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)words->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket_at_gateway(SOCK_STREAM);
    CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    fill(some, 5, 0, sizeof some);
    for (uint64_t i = 0; i < BYTES; i++)
        sum += some[i] * (i + 1);
    send_all(fd, some, sizeof some);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(read_to_end(fd, &got, sizeof got) == sizeof got && got == sum);
    close(fd);
    return NULL;
}

static void listening(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        uint32_t space = 0;
        weft_gpu *g = gpu_with_arena(w, &space);
        struct words words = {.port = 0};
        struct listening l = {.words = &words};
        pthread_t thread;
        l.call.record = new_record(w, g, space, true);
        l.call.host = at_text(w, "127.0.0.1", &l.call.host_bytes);
        OK(weft_alloc(w, 64, &l.call.from));
        l.call.to = l.call.from;
        CHECK(pthread_create(&thread, NULL, talk, &words) == 0);
        OK(weft_gpu_run(g, listen_kernel, 1, &l));
        CHECK(!l.call.failed);
        pthread_join(thread, NULL);
        OK(weft_gpu_close(g));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}
TEST(listening)

/* --- datagrams --- */

static void datagram_kernel(const weft_device *d, void *arg)
{
    struct call *c = arg;
    uint64_t s, all, n;
    uint8_t *p = weft_device_ptr(d, c->from, BYTES), *q = weft_device_ptr(d, c->to, BYTES);
    weft_device_net_address own, other;
    int rc = weft_device_net_connect(d, c->record, 0, c->host, c->host_bytes, c->port, WEFT_NET_DATAGRAMS, &s);
    MUST(rc == 0 && p && q);
    rc = weft_device_net_listen(d, c->record, 0, c->host, c->host_bytes, 0, WEFT_NET_DATAGRAMS, &all);
    MUST(rc == 0);
    for (uint32_t i = 0; i < 40; i++) { /* many times round the rings */
        uint64_t bytes = i % 4 == 0 ? 1 : i % 4 == 1 ? 1400 : 20000 + 37 * i;
        fill(p, i, 0, bytes);
        rc = weft_device_net_send(d, c->record, s, c->from, bytes, &n);
        MUST(rc == 0 && n == bytes);
        if (bytes > 1) {
            rc = weft_device_net_receive(d, c->record, s, c->to, bytes - 1, &n);
            MUST(rc == -WEFT_DEVICE_EMSGSIZE && n == bytes);
        }
        rc = weft_device_net_receive(d, c->record, s, c->to, BYTES, &n);
        MUST(rc == 0 && n == bytes && memcmp(p, q, bytes) == 0);
    }
    rc = weft_device_net_send(d, c->record, s, c->from, WEFT_NET_DATAGRAM_MAX + 1, &n);
    MUST(rc == -WEFT_DEVICE_EMSGSIZE && n == 0);
    rc = weft_device_net_received(d, c->record, s, &n, &n);
    MUST(rc == -WEFT_DEVICE_EINVAL);
    rc = weft_device_net_opened(d, c->record, s, &own, &other);
    MUST(rc == 0 && other.port == c->port);
    rc = weft_device_net_send_to(d, c->record, s, &other, c->from, 10); /* refused: the socket has a peer */
    MUST(rc == -WEFT_DEVICE_EINVAL);
    rc = weft_device_net_send(d, c->record, all, c->from, 10, &n); /* refused: the socket has no peer */
    MUST(rc == -WEFT_DEVICE_EINVAL);
    rc = weft_device_net_send_to(d, c->record, all, &other, c->from, 777);
    MUST(rc == 0);
    rc = weft_device_net_receive_from(d, c->record, all, &own, c->to, BYTES, &n);
    MUST(rc == 0 && n == 777 && own.port == other.port && own.family == 4 && own.bytes[0] == 127);
    rc = weft_device_net_close(d, c->record, all);
    MUST(rc == 0);
    rc = weft_device_net_abort(d, c->record, s);
    MUST(rc == 0);
}

struct udp {
    int fd;
    _Atomic bool stop;
};

static void *echo_datagrams(void *arg)
{
    static uint8_t some[70000];
    struct udp *u = arg;
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    for (ssize_t n; (n = recvfrom(u->fd, some, sizeof some, 0, (struct sockaddr *)&a, &len)) >= 0 && !u->stop; len = sizeof a)
        CHECK(sendto(u->fd, some, (size_t)n, 0, (struct sockaddr *)&a, len) == n);
    return NULL;
}

static void datagrams(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        uint32_t space = 0;
        weft_gpu *g = gpu_with_arena(w, &space);
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof a;
        struct udp udp = {.fd = socket_at_gateway(SOCK_DGRAM)};
        CHECK(bind(udp.fd, (struct sockaddr *)&a, sizeof a) == 0 && getsockname(udp.fd, (struct sockaddr *)&a, &len) == 0);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, echo_datagrams, &udp) == 0);
        for (uint32_t turn = 0; turn < 2; turn++) {
            struct call c = {.record = new_record(w, g, space, turn), .port = ntohs(a.sin_port)};
            c.host = at_text(w, "127.0.0.1", &c.host_bytes);
            OK(weft_alloc(w, BYTES, turn ? &c.to : &c.from));
            OK(weft_gpu_alloc(g, space, BYTES, turn ? &c.from : &c.to));
            OK(weft_gpu_run(g, datagram_kernel, 1, &c));
            CHECK(!c.failed);
        }
        udp.stop = true;
        CHECK(sendto(udp.fd, "", 0, 0, (struct sockaddr *)&a, len) == 0);
        pthread_join(thread, NULL);
        close(udp.fd);
        OK(weft_gpu_close(g));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}
TEST(datagrams)

/* --- errors, and time --- */

#define EHOSTUNREACH_OF_LINUX 113

struct wrong {
    struct call call;
    uint32_t closed, silent, full; /* ports: nobody listens; nobody speaks; connections are not answered */
    uint64_t denied, nobody;
    uint32_t denied_bytes, nobody_bytes;
    int fd; /* the socket of the silent peer, when it is connected */
    int listener;
};

static void wrong_kernel(const weft_device *d, void *arg)
{
    struct wrong *x = arg;
    struct call *c = &x->call;
    uint64_t s, n;
    int rc = weft_device_net_connect(d, c->record, 0, c->host, c->host_bytes, x->closed, 0, &s);
    MUST(rc == -WEFT_DEVICE_ECONNREFUSED);
    rc = weft_device_net_connect(d, c->record, 7, c->host, c->host_bytes, x->silent, 0, &s);
    MUST(rc == -WEFT_DEVICE_EFAULT);
    rc = weft_device_net_connect(d, c->record, 0, x->denied, x->denied_bytes, 80, 0, &s);
    MUST(rc == -WEFT_DEVICE_EACCES);
    rc = weft_device_net_connect(d, c->record, 0, x->nobody, x->nobody_bytes, 80, 0, &s);
    MUST(rc == -EHOSTUNREACH_OF_LINUX);
    rc = weft_device_net_connect(d, c->record, 0, c->host, c->host_bytes + 1, 80, 0, &s); /* a zero byte */
    MUST(rc == -WEFT_DEVICE_EINVAL);
    rc = weft_device_net_connect(d, c->record, 0, c->host, c->host_bytes, 65536, 0, &s);
    MUST(rc == -WEFT_DEVICE_EINVAL);
    rc = weft_device_net_connect(d, c->record, 0, c->host, c->host_bytes, 80, 0x8000, &s);
    MUST(rc == -WEFT_DEVICE_EINVAL);
    rc = weft_device_net_connect(d, c->record, 0, 8, 9, 80, 0, &s); /* refused: the host's name is not in this node's pool */
    MUST(rc == -WEFT_DEVICE_EFAULT);
    rc = weft_device_net_connect(d, c->record + 4, 0, c->host, c->host_bytes, 80, 0, &s);
    MUST(rc == -WEFT_DEVICE_EFAULT);
    rc = weft_device_net_receive(d, c->record, 12345, c->to, 1, &n);
    MUST(rc == -WEFT_DEVICE_EBADF);
    rc = weft_device_net_connect(d, c->record, 0, c->host, c->host_bytes, x->full, 0, &s);
    MUST(rc == -WEFT_DEVICE_ETIMEDOUT);
    /* One that is not waited for, and stays until the node closes. */
    weft_request *r = weft_device_record(d, c->record, WEFT_SERVICE_NET, WEFT_NET_CONNECT, 0);
    r->data = c->host;
    r->data_bytes = c->host_bytes;
    r->arg[0] = x->full;
    rc = weft_device_request_ask(d, c->record);
    MUST(rc == 0);
    rc = weft_device_net_send(d, c->record, weft_device_request_result(r, 0), c->to, 1, &n);
    MUST(rc == -WEFT_DEVICE_ETIMEDOUT && n == 0);

    rc = weft_device_net_connect(d, c->record, 0, c->host, c->host_bytes, x->silent, 0, &s);
    MUST(rc == 0);
    x->fd = accept_at(x->listener);
    rc = weft_device_net_receive(d, c->record, s, c->to, 10, &n);
    MUST(rc == -WEFT_DEVICE_ETIMEDOUT && n == 0);
    send_all(x->fd, "0123456789", 10);
    rc = weft_device_net_receive(d, c->record, s, c->to, 0, &n);
    MUST(rc == -WEFT_DEVICE_EINVAL);
    rc = weft_device_net_receive(d, c->record, s, (uint64_t)9 << 48, 10, &n); /* after the error, the received bytes are still there */
    MUST(rc == -WEFT_DEVICE_EFAULT && n == 0);
    rc = weft_device_net_receive(d, c->record, s, (uint64_t)d->rank << 48 | 64, 10, &n);
    MUST(rc == -WEFT_DEVICE_EFAULT && n == 0);
    rc = weft_device_net_receive(d, c->record, s, c->to, 10, &n);
    MUST(rc == 0 && n == 10 && memcmp(weft_device_ptr(d, c->to, 10), "0123456789", 10) == 0);
    rc = weft_device_net_send(d, c->record, s, (uint64_t)9 << 48, 10, &n);
    MUST(rc == -WEFT_DEVICE_EFAULT && n == 0);
    reset(x->fd);
    do
        rc = weft_device_net_receive(d, c->record, s, c->to, 10, &n);
    while (rc == -WEFT_DEVICE_ETIMEDOUT);
    MUST(rc == -WEFT_DEVICE_ECONNRESET);
    rc = weft_device_net_close(d, c->record, s);
    MUST(rc == 0);
}

/* A port whose queue of connections is full. */
static void fill_port(uint32_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = listen_at("127.0.0.1", port);
    CHECK(listen(listener, 0) == 0);
    a.sin_port = htons((uint16_t)*port);
    for (unsigned i = 0; i < 3; i++) {
        int fd = socket_at_gateway(SOCK_STREAM);
        CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
        CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == 0 || errno == EINPROGRESS);
    }
}

static void wrong(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        uint32_t space = 0;
        weft_gpu *g = gpu_with_arena(w, &space);
        static struct wrong x;
        close(listen_at("127.0.0.1", &x.closed));
        x.listener = listen_at("127.0.0.1", &x.silent);
        fill_port(&x.full);
        x.call.record = new_record(w, g, space, false);
        x.call.host = at_text(w, "127.0.0.1", &x.call.host_bytes);
        x.denied = at_text(w, "169.254.169.254", &x.denied_bytes);
        x.nobody = at_text(w, "no.such.name.invalid", &x.nobody_bytes);
        OK(weft_alloc(w, 64, &x.call.to));
        OK(weft_gpu_run(g, wrong_kernel, 1, &x));
        CHECK(!x.call.failed);
        OK(weft_gpu_close(g));
    }
    OK(weft_barrier(w, 60 * WEFT_SECOND));
}

static void test_wrong(void **state)
{
    static const char *const soon[] = {"WEFT_SERVE=net", "WEFT_NET_RULES=" LOOPBACK, "WEFT_LOG=error", "WEFT_DEADLINE=3s", NULL};
    (void)state;
    assert_int_equal(nodes_failed_with(2, wrong, NULL, soon), 0);
}

static void none_kernel(const weft_device *d, void *arg)
{
    struct call *c = arg;
    uint64_t s;
    int rc = weft_device_net_connect(d, c->record, 0, c->host, c->host_bytes, 80, 0, &s);
    MUST(rc == -WEFT_DEVICE_EOPNOTSUPP);
    rc = weft_device_net_listen(d, c->record, 0, c->host, c->host_bytes, 80, 0, &s);
    MUST(rc == -WEFT_DEVICE_EOPNOTSUPP);
    weft_device_file f;
    rc = weft_device_file_open(d, c->record, 0, c->host, c->host_bytes, 0, &f);
    MUST(rc == -WEFT_DEVICE_EOPNOTSUPP);
}

static void none_offers(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t space = 0;
    weft_gpu *g = gpu_with_arena(w, &space);
    struct call c = {.record = new_record(w, g, space, false)};
    c.host = at_text(w, "127.0.0.1", &c.host_bytes);
    OK(weft_gpu_run(g, none_kernel, 1, &c));
    CHECK(!c.failed);
    OK(weft_gpu_close(g));
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_none_offers(void **state)
{
    static const char *const others[] = {"WEFT_SERVE=name", NULL};
    (void)state;
    assert_int_equal(nodes_failed_with(2, none_offers, NULL, others), 0);
}

/* --- the end of nodes --- */

static void until_error(const weft_device *d, void *arg)
{
    struct listening *l = arg;
    struct call *c = &l->call;
    uint64_t s, n;
    int rc = weft_device_net_connect(d, c->record, 0, c->host, c->host_bytes, c->port, 0, &s);
    MUST(rc == 0);
    do {
        rc = weft_device_net_receive(d, c->record, s, c->to, 1000, &n);
        atomic_fetch_add(&l->words->step, 1);
    } while (rc == 0 && n);
    MUST(rc == -WEFT_DEVICE_ECONNRESET);
}

static void receive_until_error(weft_node *w, struct words *words, uint32_t port)
{
    uint32_t space = 0;
    weft_gpu *g = gpu_with_arena(w, &space);
    struct listening l = {.words = words};
    l.call.port = port;
    l.call.record = new_record(w, g, space, true);
    l.call.host = at_text(w, "127.0.0.1", &l.call.host_bytes);
    OK(weft_gpu_alloc(g, space, 1000, &l.call.to));
    OK(weft_gpu_run(g, until_error, 1, &l));
    CHECK(!l.call.failed);
    OK(weft_gpu_close(g));
}

static void *send_until_error(void *arg)
{
    static uint8_t some[10000];
    int fd = accept_at(*(int *)arg);
    while (send(fd, some, sizeof some, MSG_NOSIGNAL) > 0)
        ;
    return NULL;
}

/* Node 0 is killed while a kernel of node 1 receives. */
static void gateway_dies(weft_node *w, void *arg)
{
    struct words *words = arg;
    if (weft_rank(w) == 0) {
        wait_for(&words->step, 50);
        raise(SIGKILL);
    }
    uint32_t port;
    int listener = listen_at("127.0.0.1", &port);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, send_until_error, &listener) == 0);
    receive_until_error(w, words, port);
    pthread_join(thread, NULL);
}

static void test_gateway_dies(void **state)
{
    (void)state;
    one_is_killed(gateway_dies, OPEN, 0);
}

/* Node 1 is killed while its kernel receives: its peer, which is here at node 0, sees a reset. */
static void asker_dies(weft_node *w, void *arg)
{
    struct words *words = arg;
    if (weft_rank(w) == 1) {
        atomic_store(&words->pid, (uint32_t)getpid());
        wait_for(&words->port, 1);
        receive_until_error(w, words, words->port);
        return;
    }
    uint32_t port;
    int listener = listen_at("127.0.0.1", &port);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, send_until_error, &listener) == 0);
    atomic_store(&words->port, port);
    wait_for(&words->step, 50);
    kill((pid_t)words->pid, SIGKILL);
    pthread_join(thread, NULL);
}

static void test_asker_dies(void **state)
{
    (void)state;
    one_is_killed(asker_dies, OPEN, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),      cmocka_unit_test(test_blocks),     cmocka_unit_test(test_listening),
        cmocka_unit_test(test_datagrams),    cmocka_unit_test(test_wrong),      cmocka_unit_test(test_none_offers),
        cmocka_unit_test(test_gateway_dies), cmocka_unit_test(test_asker_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
