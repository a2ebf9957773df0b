// SPDX-License-Identifier: MIT
//
// Sockets of kernels of a real GPU: blocks connect through node 0 to an echo of their own node, send from the pool or from the arena, and
// receive into the arena of their own GPU, or read what has come in the ring. weft run -n N -- fetch
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
    all_here();
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    printf("all right\n");
    return 0;
}
