/* SPDX-License-Identifier: MIT
 *
 * kernel_serve: one block of a kernel is a TCP server at the gateway, node 0, and another block is its client. Node 1, where the kernel
 * runs, needs no network. The server reads the received bytes in place, in the ring, and answers with the number of bytes. The client looks
 * up a name: the server has published the memory that contains its port.
 *
 * Shown: weft_device_net_listen(), _opened(), _accept(), _received(), _taken(), _shutdown() and _abort() (weft/device_net.h), and
 * weft_device_name_publish(), _lookup() and _withdraw() (weft/device_service.h). The kernel runs on the GPU `host`; a kernel for CUDA makes
 * the same calls.
 *
 * Run:
 *     weft run -n 2 -- ./kernel_serve
 * It prints:
 *     the server has received 200000 bytes, and the client was told 200000
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>
#include <weft/device_net.h>

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "kernel_serve: %s: %s\n", what, weft_error());
        exit(1);
    }
}

/* --- the kernel --- */

#define BLOCKS 2u
#define BYTES  200000u

struct job {
    uint64_t record[BLOCKS], host, port, request, count, answer; /* addresses in this node's pool */
    uint32_t host_bytes;
    int rc[BLOCKS]; /* result of each block */
    uint64_t received, told;
};

static int serve_one(const weft_device *d, struct job *job, uint64_t listener)
{
    uint64_t record = job->record[0], socket, at, n = 1;
    int rc = weft_device_net_accept(d, record, listener, &socket);
    if (rc)
        return rc;
    while (!rc && n) { /* the bytes at address `at` could be used here */
        rc = weft_device_net_received(d, record, socket, &at, &n);
        if (!rc && n)
            rc = weft_device_net_taken(d, record, socket, n);
        job->received += rc ? 0 : n;
    }
    *(uint64_t *)weft_device_ptr(d, job->count, 8) = job->received;
    if (!rc)
        rc = weft_device_net_send(d, record, socket, job->count, 8, NULL);
    if (!rc)
        rc = weft_device_net_shutdown(d, record, socket);
    if (!rc)
        return weft_device_net_close(d, record, socket);
    (void)weft_device_net_abort(d, record, socket); /* the client sees that the connection is broken */
    return rc;
}

static int server(const weft_device *d, struct job *job)
{
    uint64_t record = job->record[0], listener;
    weft_device_net_address own = {.port = 0}, none;
    int rc = weft_device_net_listen(d, record, 0, job->host, job->host_bytes, 0, 0, &listener);
    if (rc)
        return rc;
    rc = weft_device_net_opened(d, record, listener, &own, &none);
    *(uint64_t *)weft_device_ptr(d, job->port, 8) = own.port;
    if (!rc)
        rc = weft_device_name_publish(d, record, 0, "port", job->port, 8);
    if (!rc)
        rc = serve_one(d, job, listener);
    (void)weft_device_name_withdraw(d, record, 0, "port");
    (void)weft_device_net_close(d, record, listener);
    return rc;
}

static int client(const weft_device *d, struct job *job)
{
    uint64_t record = job->record[1], port, bytes, socket, got = 0, n = 1;
    int rc = weft_device_name_lookup(d, record, 0, "port", true, &port, &bytes);
    if (rc)
        return rc;
    const uint64_t *number = weft_device_ptr(d, port, 8); /* a block on another node would use weft_device_get() */
    rc = weft_device_net_connect(d, record, 0, job->host, job->host_bytes, (uint32_t)*number, 0, &socket);
    if (rc)
        return rc;
    rc = weft_device_net_send(d, record, socket, job->request, BYTES, NULL);
    if (!rc)
        rc = weft_device_net_shutdown(d, record, socket);
    for (; !rc && n && got < 8; got += n)
        rc = weft_device_net_receive(d, record, socket, job->answer + got, 8 - got, &n);
    job->told = *(uint64_t *)weft_device_ptr(d, job->answer, 8);
    (void)weft_device_net_close(d, record, socket);
    return rc;
}

static void talk(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint32_t b = weft_device_block(d);
    job->rc[b] = b ? client(d, job) : server(d, job);
}

/* --- the nodes --- */

static uint64_t in_pool(weft_node *w, const void *bytes, uint64_t len)
{
    weft_gaddr at;
    check(weft_alloc_aligned(w, len, 64, &at), "alloc");
    if (bytes)
        memcpy(weft_ptr(w, at, len), bytes, len);
    else
        memset(weft_ptr(w, at, len), 0, len);
    return at;
}

static void run_kernel(weft_node *w)
{
    static const char host[] = "127.0.0.1";
    weft_gpu *gpu;
    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    struct job job = {.host = in_pool(w, host, sizeof host), .host_bytes = sizeof host - 1};
    for (uint32_t b = 0; b < BLOCKS; b++)
        job.record[b] = in_pool(w, NULL, WEFT_REQUEST_BYTES);
    job.port = in_pool(w, NULL, 8);
    job.count = in_pool(w, NULL, 8);
    job.answer = in_pool(w, NULL, 8);
    job.request = in_pool(w, NULL, BYTES);
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    check(weft_gpu_run(gpu, talk, BLOCKS, &job), "kernel");
    for (uint32_t b = 0; b < BLOCKS; b++)
        if (job.rc[b]) {
            fprintf(stderr, "kernel_serve: block %u of the kernel: %s\n", b, strerror(-job.rc[b])); /* kernels use Linux's error numbers */
            exit(1);
        }
    printf("the server has received %llu bytes, and the client was told %llu\n", (unsigned long long)job.received,
           (unsigned long long)job.told);
    check(weft_gpu_close(gpu), "GPU");
}

int main(void)
{
    weft_node *w;
    const char *rank = getenv("WEFT_RANK");
    if (rank && strcmp(rank, "0") == 0) {
        setenv("WEFT_SERVE", "net,name", 1);
        setenv("WEFT_NET_RULES", "allow=127.0.0.1", 0); /* without this rule no node may reach the gateway's loopback */
    }
    check(weft_open(&w, NULL), "open");
    if (weft_size(w) < 2) {
        fprintf(stderr, "kernel_serve: one node is not enough: start it by weft run -n 2 -- ./kernel_serve\n");
        return 1;
    }
    if (weft_rank(w) == 1)
        run_kernel(w);
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    check(weft_close(w), "close");
    return 0;
}
