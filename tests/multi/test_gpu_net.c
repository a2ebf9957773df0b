/* SPDX-License-Identifier: MIT
 *
 * Sockets of kernels, on the GPU `host`: kernels of node 1 connect, listen, send and receive through node 0, from and to pools and arenas of
 * both nodes. The other ends are ordinary sockets of node 1's process, on loopback, which a rule allows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "net_test.h"
#include "weft/device_net.h"

#define BYTES  300000u /* more than a ring holds */
#define BLOCKS 4u

#define MUST(is)                                                                                            \
    do {                                                                                                    \
        if (!(is)) {                                                                                        \
            fprintf(stderr, "%s:%d: block %u: %s (rc %d)\n", __FILE__, __LINE__, weft_device_block(d), #is, rc); \
            c->failed = true;                                                                               \
            return;                                                                                         \
        }                                                                                                   \
    } while (0)

/* What one block works with: addresses. */
struct call {
    uint64_t record, host, from, to;
    uint32_t port, host_bytes;
    bool failed;
};
struct calls {
    struct call of[BLOCKS];
};

static uint64_t at_host(weft_node *w, const char *host, uint32_t *bytes)
{
    weft_gaddr a;
    OK(weft_alloc(w, 256, &a));
    memcpy(weft_ptr(w, a, 256), host, strlen(host) + 1);
    *bytes = (uint32_t)strlen(host);
    return a;
}

static weft_gpu *gpu_with_arena(weft_node *w, uint32_t *space)
{
    weft_gpu *g;
    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    OK(weft_gpu_open(w, &config, &g));
    OK(weft_gpu_arena(g, 16u << 20, space));
    return g;
}

/* A record in the pool, or in the arena. */
static uint64_t new_record(weft_node *w, weft_gpu *g, uint32_t space, bool in_arena)
{
    static const uint8_t zeros[WEFT_REQUEST_BYTES];
    weft_gaddr at;
    if (in_arena)
        OK(weft_gpu_alloc(g, space, WEFT_REQUEST_BYTES, &at));
    else
        OK(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &at));
    OK(weft_put_blocking(w, at, zeros, sizeof zeros));
    return at;
}

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
            one.of[0].host = at_host(w, "127.0.0.1", &one.of[0].host_bytes);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_streams)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
