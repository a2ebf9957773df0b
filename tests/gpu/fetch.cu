// SPDX-License-Identifier: MIT
//
// Sockets of kernels of a real GPU: blocks connect through node 0 to an echo of their own node, send from the pool or from the arena, and
// receive into the arena of their own GPU, or read what has come in the ring. Other threads listen, accept and abort connections, and
// exchange datagrams. weft run -n N -- fetch
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.cuh"
#include "weft/device_net.h"

#define BLOCKS 4u
#define BYTES  (1u << 20)
#define PART   30000u

struct addresses {
    uint64_t record, in_arena, host, from, from_arena, to;
    uint32_t port;
};

__device__ uint8_t byte_at(uint64_t i, uint32_t block)
{
    return (uint8_t)((i * 2654435761u >> 11) + block);
}

__global__ void echo(const weft_device *d, addresses a, struct report *bad)
{
    if (threadIdx.x)
        return;
    uint32_t b = blockIdx.x;
    uint64_t record = (b % 2 ? a.record : a.in_arena) + b * WEFT_REQUEST_BYTES, s, n, at, sent = 0, got = 0, wrong = 0;
    uint64_t from = (b / 2 % 2 ? a.from : a.from_arena) + (uint64_t)b * PART, to = a.to + (uint64_t)b * PART;
    uint8_t *p = (uint8_t *)weft_device_ptr(d, from, PART);
    const uint8_t *q = (const uint8_t *)weft_device_ptr(d, to, PART);
    weft_device_net_address own, peer;
    KERNEL_CHECK(p != NULL && q != NULL);
    KERNEL_CHECK(weft_device_net_connect(d, record, 0, a.host, 9, 1, 0, &s) == -WEFT_DEVICE_ECONNREFUSED);
    KERNEL(weft_device_net_connect(d, record, 0, a.host, 9, a.port, WEFT_NET_NODELAY, &s));
    KERNEL(weft_device_net_opened(d, record, s, &own, &peer));
    KERNEL_CHECK(peer.port == a.port && peer.family == 4 && peer.bytes[0] == 127);
    while (got < BYTES) {
        uint64_t some = BYTES - sent < PART ? BYTES - sent : PART;
        if (sent == got && some) {
            for (uint64_t i = 0; i < some; i++)
                p[i] = byte_at(sent + i, b);
            weft_device_publish(); // the node reads them
            KERNEL(weft_device_net_send(d, record, s, from, some, &n));
            KERNEL_CHECK(n == some);
            sent += n;
        } else if (got / PART % 2) {
            KERNEL(weft_device_net_receive(d, record, s, to, PART, &n));
            KERNEL_CHECK(n > 0);
            for (uint64_t i = 0; i < n; i++)
                wrong += ((volatile const uint8_t *)q)[i] != byte_at(got + i, b);
            got += n;
        } else {
            KERNEL(weft_device_net_received(d, record, s, &at, &n));
            const volatile uint8_t *in = (const volatile uint8_t *)weft_device_ptr(d, at, n);
            KERNEL_CHECK(in != NULL && n > 0);
            for (uint64_t i = 0; i < n; i++)
                wrong += in[i] != byte_at(got + i, b);
            got += n;
            KERNEL(weft_device_net_taken(d, record, s, n));
        }
    }
    KERNEL_CHECK(wrong == 0);
    KERNEL(weft_device_net_shutdown(d, record, s));
    KERNEL(weft_device_net_receive(d, record, s, to, 1, &n));
    KERNEL_CHECK(n == 0);
    KERNEL(weft_device_net_close(d, record, s));
}

/* A thread listens at node 0, connects to itself there, and breaks the connection. */
__global__ void listen_and_abort(const weft_device *d, addresses a, struct report *bad)
{
    uint64_t listener, out, in, n;
    weft_device_net_address own, peer;
    volatile uint8_t *from = (volatile uint8_t *)weft_device_ptr(d, a.from, 8), *to = (volatile uint8_t *)weft_device_ptr(d, a.to, 8);
    KERNEL_CHECK(from && to);
    KERNEL(weft_device_net_listen(d, a.record, 0, a.host, 9, 0, 0, &listener));
    KERNEL(weft_device_net_opened(d, a.record, listener, &own, NULL));
    KERNEL(weft_device_net_connect(d, a.record, 0, a.host, 9, own.port, 0, &out));
    KERNEL(weft_device_net_accept(d, a.record, listener, &in));
    KERNEL(weft_device_net_opened(d, a.record, in, &own, &peer));
    KERNEL_CHECK(peer.port != own.port && peer.family == 4);
    from[0] = 77;
    to[0] = 0;
    KERNEL(weft_device_net_send(d, a.record, out, a.from, 1, &n));
    KERNEL(weft_device_net_receive(d, a.record, in, a.to, 1, &n));
    KERNEL_CHECK(n == 1 && to[0] == 77);
    KERNEL(weft_device_net_abort(d, a.record, out));
    KERNEL_IS(weft_device_net_receive(d, a.record, in, a.to, 1, &n), -WEFT_DEVICE_ECONNRESET);
    KERNEL(weft_device_net_close(d, a.record, in));
    KERNEL(weft_device_net_close(d, a.record, listener));
}

/* Two sockets for datagrams at node 0: one asks, the other one answers whoever has asked. */
__global__ void datagrams(const weft_device *d, addresses a, struct report *bad)
{
    uint64_t asks, answers, n;
    weft_device_net_address asker, answerer, from;
    volatile uint64_t *number = (volatile uint64_t *)weft_device_ptr(d, a.from, 8), *to = (volatile uint64_t *)weft_device_ptr(d, a.to, 16);
    KERNEL_CHECK(number && to);
    KERNEL(weft_device_net_listen(d, a.record, 0, a.host, 9, 0, WEFT_NET_DATAGRAMS, &asks));
    KERNEL(weft_device_net_listen(d, a.in_arena, 0, a.host, 9, 0, WEFT_NET_DATAGRAMS, &answers));
    KERNEL(weft_device_net_opened(d, a.record, asks, &asker, NULL));
    KERNEL(weft_device_net_opened(d, a.record, answers, &answerer, NULL));
    for (uint64_t i = 1; i <= 5; i++) {
        *number = i;
        KERNEL(weft_device_net_send_to(d, a.record, asks, &answerer, a.from, 8));
        KERNEL(weft_device_net_receive_from(d, a.in_arena, answers, &from, a.to, 16, &n));
        KERNEL_CHECK(n == 8 && *to == i && from.port == asker.port && from.bytes[0] == 127 && from.bytes[3] == 1);
        *to = 3 * i;
        KERNEL(weft_device_net_send_to(d, a.in_arena, answers, &from, a.to, 4));
        KERNEL(weft_device_net_receive_from(d, a.record, asks, &from, a.to + 8, 8, &n));
        KERNEL_CHECK(n == 4 && *(volatile uint32_t *)(to + 1) == 3 * i && from.port == answerer.port);
    }
    KERNEL(weft_device_net_close(d, a.record, asks));
    KERNEL(weft_device_net_close(d, a.record, answers));
}

static void *echo_one(void *arg)
{
    static thread_local uint8_t some[50000];
    int fd = (int)(intptr_t)arg;
    for (ssize_t n; (n = read(fd, some, sizeof some)) > 0;)
        for (ssize_t at = 0, k; at < n; at += k)
            if ((k = write(fd, some + at, (size_t)(n - at))) <= 0)
                return NULL;
    close(fd);
    return NULL;
}

static void *echo_all(void *arg)
{
    for (;;) {
        pthread_t t;
        int fd = accept(*(int *)arg, NULL, NULL);
        if (fd < 0 || pthread_create(&t, NULL, echo_one, (void *)(intptr_t)fd))
            return NULL;
        pthread_detach(t);
    }
}

int main(void)
{
    setenv("WEFT_SERVE", "net", 1);
    setenv("WEFT_NET_RULES", "allow=127.0.0.1", 1);
    open_node();
    uint32_t space = 0;
    addresses a = {};
    struct sockaddr_in at = {};
    socklen_t len = sizeof at;
    pthread_t thread;
    static int listener;
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 64) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &len) == 0 && pthread_create(&thread, NULL, echo_all, &listener) == 0);
    a.port = ntohs(at.sin_port);
    a.record = on_node(same_place(BLOCKS * WEFT_REQUEST_BYTES), weft_rank(w));
    a.host = on_node(same_place(16), weft_rank(w));
    a.from = on_node(same_place(BLOCKS * PART), weft_rank(w));
    memcpy(weft_ptr(w, a.host, 16), "127.0.0.1", 9);
    open_gpu(2, 256);
    OK(weft_gpu_arena(gpu, 16u << 20, &space));
    OK(weft_gpu_alloc(gpu, space, BLOCKS * PART, &a.to));
    OK(weft_gpu_alloc(gpu, space, BLOCKS * PART, &a.from_arena));
    OK(weft_gpu_alloc(gpu, space, BLOCKS * WEFT_REQUEST_BYTES, &a.in_arena));
    all_here();
    echo<<<BLOCKS, 32>>>(weft_gpu_device(gpu), a, bad);
    KERNEL_DONE();
    listen_and_abort<<<1, 1>>>(weft_gpu_device(gpu), a, bad);
    KERNEL_DONE();
    datagrams<<<1, 1>>>(weft_gpu_device(gpu), a, bad);
    KERNEL_DONE();
    all_here();
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    printf("all right\n");
    return 0;
}
