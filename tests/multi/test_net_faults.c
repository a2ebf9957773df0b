/* SPDX-License-Identifier: MIT
 *
 * The net service under load and failures: slow and stalled peers, many connections, too few descriptors, invalid messages, deaths, and
 * nodes that ask for more than their share (net_test.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "gateway/net_handle.h"
#include "net_test.h"

/* One connection is not read by its asker or by its peer. The other connections go on, and no byte of this one is lost. */
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
    do { /* until the buffers of the peer, which does not read, are full */
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
    int fd = socket_at_gateway(SOCK_STREAM);
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
            fd = socket_at_gateway(SOCK_STREAM);
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

/* Requests whose messages do not have the data that they announce: the server thread, which sleeps, must answer each of them soon. */
static void no_data(weft_node *w, void *arg)
{
    struct board *b = arg;
    if (weft_rank(w) == 0) {
        wait_for(&b->connected, 1); /* only the progress thread handles messages */
        return;
    }
    const weft_request r = {.version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_NET, .kind = NET_CONNECT, .data_bytes = 9};
    for (unsigned i = 0; i < 20; i++) {
        struct gateway_question q = {.record = &r};
        usleep(10000); /* the server thread goes to sleep */
        CHECK(gateway_ask_wait(w->gateway, &q, patience_ns(10), NULL, NULL, NULL) == -EINVAL);
    }
    b->connected = 1;
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

/* Shared by the nodes. */
struct greed {
    _Atomic uint32_t ends, full, port;
};

/* One node opens sockets until it gets an error, which says why. Another node can still open some. */
static void greedy_sockets(weft_node *w, void *arg)
{
    enum { MOST = 1000, MODEST = 19 };
    static weft_socket *s[MOST];
    struct greed *g = arg;
    const char *own = getenv("WEFT_NET_SOCKETS");
    uint32_t port, n = 0, most = own ? (uint32_t)atoi(own) : 168; /* three quarters of 256 open files, less 32 for the gateway itself */
    char text[64];
    int rc = 0;
    if (weft_rank(w) == 1) {
        int listener = listen_at("127.0.0.1", &port);
        g->port = port;
        while (n < MOST && !(rc = weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port, .receive_ring = 4096, .send_ring = 4096),
                                                   &s[n], DEFAULT_TIME)))
            n++;
        snprintf(text, sizeof text, "node 1 has %u sockets at node 0", most);
        if (n != most || !strstr(weft_error(), text))
            fprintf(stderr, "%u sockets: %s\n", n, weft_error());
        CHECK(rc == -EMFILE && n == most && strstr(weft_error(), text) && strstr(weft_error(), "WEFT_NET_SOCKETS"));
        OK(weft_net_close(s[--n])); /* the next one gets its place, when the gateway has closed it */
        for (int64_t deadline = now_ns() + patience_ns(20); rc;) {
            CHECK(now_ns() < deadline);
            rc = weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port), &s[n], DEFAULT_TIME);
        }
        g->full = 1;
        wait_for(&g->ends, 1);
        for (uint32_t i = 0; i <= n; i++)
            OK(weft_net_close(s[i]));
        close(listener);
    } else if (weft_rank(w) == 2) {
        wait_for(&g->full, 1);
        for (unsigned i = 0; i < MODEST; i++)
            OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = g->port), &s[i], DEFAULT_TIME));
        for (unsigned i = 0; i < MODEST; i++)
            OK(weft_net_close(s[i]));
        g->ends = 1;
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_greed(void **state)
{
    (void)state;
    struct rlimit before, few;
    struct greed *g = shared_words(sizeof *g);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(nodes_failed_with(3, greedy_sockets, g,
                                       (const char *const[]){"WEFT_SERVE=net", "WEFT_NET_RULES=" LOOPBACK, "WEFT_NET_SOCKETS=20", NULL}),
                     0);
    few = before;
    few.rlim_cur = FILES;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    g = shared_words(sizeof *g);
    assert_int_equal(nodes_failed_with(3, greedy_sockets, g, OPEN), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* Sanitizers keep freed memory for a while, and need much memory of their own. */
#define MEMORY_COUNTS (!BASE_ADDRESS_SANITIZER && !BASE_THREAD_SANITIZER)

static uint64_t memory_kib(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "RssAnon: %llu", &kib) != 1)
        ;
    if (f)
        fclose(f);
    return kib;
}

/* A node sends messages for streams that do not exist, and reads none of the replies. The gateway must give the node up before unsent
 * replies fill the gateway's memory, and the other nodes go on. */
static void flood(weft_node *w, void *arg)
{
    struct greed *g = arg;
    uint32_t port;
    weft_socket *s;
    if (weft_rank(w) == 1) {
        const struct gateway_message m = {.type = GATEWAY_DATA, .to = 1, .word = {77, 0, 1, 0}};
        weft_handler_fn fn = w->handlers[GATEWAY_HANDLER].fn;
        atomic_store(&w->handlers[GATEWAY_HANDLER].fn, NULL); /* after this, received bytes stay in the ring */
        (void)fab_nowait(true);
        for (int rc = 0; !g->ends && rc != -ECONNRESET;)
            rc = fab_send(w, 0, GATEWAY_HANDLER, &m, sizeof m, NULL, 0, NULL);
        (void)fab_nowait(false);
        atomic_store(&w->handlers[GATEWAY_HANDLER].fn, fn);
        return;
    }
    if (weft_rank(w) == 0) {
        uint64_t before = memory_kib(), most = before;
        for (int64_t deadline = now_ns() + patience_ns(40); weft_alive(w, 1); usleep(10000)) {
            uint64_t now = memory_kib();
            most = now > most ? now : most;
            CHECK(now_ns() < deadline);
        }
        g->ends = 1;
        if (MEMORY_COUNTS)
            CHECK(most - before < 300 << 10);
        wait_for(&g->full, 1);
        return;
    }
    wait_for(&g->ends, 1);
    int listener = listen_at("127.0.0.1", &port);
    OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port), &s, DEFAULT_TIME));
    OK(weft_net_close(s));
    close(listener);
    g->full = 1;
}

static void test_flood(void **state)
{
    (void)state;
    struct greed *g = shared_words(sizeof *g);
    assert_int_equal(nodes_failed_with(3, flood, g, OPEN), 0);
}

/* The gateway's end of the stream to the asker of its n-th socket. */
static struct gateway_stream *stream_down(weft_node *w, unsigned n)
{
    uint32_t at = 0;
    struct gateway_stream *s = NULL;
    base_spin_lock(&gateway_in(w)->lock);
    while ((s = gateway_table_next(&gateway_in(w)->streams, &at)) && (!s->sends || n--))
        ;
    base_spin_unlock(&gateway_in(w)->lock);
    CHECK(s);
    return s;
}

/* A stopped asker has two connections whose bytes come one by one. The gateway keeps few messages for them, and no byte is lost. The
 * gateway has mapped the ring of the first connection only. */
#define CRUMBS (1u << 20)
static void crumbs(weft_node *w, void *arg)
{
    struct greed *g = arg;
    weft_socket *s[2];
    int fd[2];
    if (weft_rank(w) == 0) {
        struct iovec piece[2];
        uint8_t byte;
        wait_for(&g->full, 1);
        struct gateway_stream *down[2] = {stream_down(w, 0), stream_down(w, 1)};
        uint64_t before = memory_kib();
        down[1]->memory = NULL;
        for (uint64_t i = 0; i < CRUMBS; i++)
            for (unsigned k = 0; k < 2; k++) {
                fill(&byte, k, i, 1);
                CHECK(gateway_stream_room(down[k], piece) > 0);
                if (down[k]->memory)
                    *(uint8_t *)piece[0].iov_base = byte;
                OK(gateway_stream_send(down[k], &byte, 1, false, 0));
            }
        if (MEMORY_COUNTS)
            CHECK(memory_kib() - before < 16 << 10);
        g->ends = 1;
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    uint32_t port;
    int listener = listen_at("127.0.0.1", &port);
    for (unsigned k = 0; k < 2; k++) {
        OK(weft_net_connect(w, 0, SPEC(.host = "127.0.0.1", .port = port, .receive_ring = CRUMBS), &s[k], DEFAULT_TIME));
        fd[k] = accept_at(listener);
    }
    weft_handler_fn fn = w->handlers[GATEWAY_HANDLER].fn;
    atomic_store(&w->handlers[GATEWAY_HANDLER].fn, NULL); /* after this, received messages stay in the ring */
    g->full = 1;
    wait_for(&g->ends, 1);
    atomic_store(&w->handlers[GATEWAY_HANDLER].fn, fn);
    for (unsigned k = 0; k < 2; k++) {
        close(fd[k]);
        receive_stream(s[k], k, CRUMBS);
        OK(weft_net_close(s[k]));
    }
    close(listener);
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_crumbs(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, crumbs, shared_words(sizeof(struct greed)), OPEN), 0);
}

TEST(slow)
TEST(stalled)
TEST(lies)

static void test_many(void **state)
{
    (void)state;
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max; /* the nodes inherit this limit */
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

static void test_no_data(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, no_data, shared_words(sizeof(struct board)), OPEN), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow),    cmocka_unit_test(test_many),   cmocka_unit_test(test_deaths), cmocka_unit_test(test_stalled),
        cmocka_unit_test(test_lies),    cmocka_unit_test(test_files),  cmocka_unit_test(test_greed),  cmocka_unit_test(test_flood),
        cmocka_unit_test(test_no_data), cmocka_unit_test(test_crumbs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
