/* SPDX-License-Identifier: MIT
 *
 * kernel_datagrams: two blocks of a kernel send datagrams to each other over UDP, through the gateway, node 0. Node 1, where the kernel
 * runs, needs no network. The first block sends each datagram back to the address from which it came.
 *
 * Shown: weft_device_net_send_to() and weft_device_net_receive_from() (weft/device_net.h). The kernel runs on the GPU `host`; a kernel for
 * CUDA makes the same calls.
 *
 * Run:
 *     weft run -n 2 -- ./kernel_datagrams
 * It prints:
 *     10 datagrams went there and back
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
        fprintf(stderr, "kernel_datagrams: %s: %s\n", what, weft_error());
        exit(1);
    }
}

/* --- the kernel --- */

#define BLOCKS    2u
#define DATAGRAMS 10u

struct job {
    uint64_t record[BLOCKS], host, port, some[BLOCKS]; /* addresses in this node's pool */
    uint32_t host_bytes, back;
    int rc[BLOCKS]; /* result of each block */
};

static int echo(const weft_device *d, struct job *job, uint64_t socket)
{
    uint64_t record = job->record[0], n;
    weft_device_net_address own = {.port = 0}, from;
    int rc = weft_device_net_opened(d, record, socket, &own, &from);
    *(uint64_t *)weft_device_ptr(d, job->port, 8) = own.port;
    if (!rc)
        rc = weft_device_name_publish(d, record, 0, "echo", job->port, 8);
    for (uint32_t i = 0; i < DATAGRAMS && !rc; i++) {
        rc = weft_device_net_receive_from(d, record, socket, &from, job->some[0], 64, &n);
        if (!rc)
            rc = weft_device_net_send_to(d, record, socket, &from, job->some[0], n);
    }
    (void)weft_device_name_withdraw(d, record, 0, "echo");
    return rc;
}

static int ask(const weft_device *d, struct job *job, uint64_t socket)
{
    uint64_t record = job->record[1], *number = weft_device_ptr(d, job->some[1], 8), port, bytes, n;
    weft_device_net_address to = {.family = 4, .bytes = {127, 0, 0, 1}}, from;
    int rc = weft_device_name_lookup(d, record, 0, "echo", true, &port, &bytes);
    const uint64_t *there = rc ? NULL : weft_device_ptr(d, port, 8);
    to.port = there ? (uint16_t)*there : 0;
    for (uint64_t i = 0; i < DATAGRAMS && !rc; i++) { /* no datagram is lost on loopback */
        *number = i;
        rc = weft_device_net_send_to(d, record, socket, &to, job->some[1], 8);
        if (!rc)
            rc = weft_device_net_receive_from(d, record, socket, &from, job->some[1] + 64, 64, &n);
        job->back += !rc && n == 8 && number[8] == i && from.port == to.port;
    }
    return rc;
}

static void talk(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint32_t b = weft_device_block(d);
    uint64_t socket;
    job->rc[b] = weft_device_net_listen(d, job->record[b], 0, job->host, job->host_bytes, 0, WEFT_NET_DATAGRAMS, &socket);
    if (job->rc[b])
        return;
    job->rc[b] = b ? ask(d, job, socket) : echo(d, job, socket);
    (void)weft_device_net_close(d, job->record[b], socket);
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
    job.port = in_pool(w, NULL, 8);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        job.record[b] = in_pool(w, NULL, WEFT_REQUEST_BYTES);
        job.some[b] = in_pool(w, NULL, 128);
    }
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    check(weft_gpu_run(gpu, talk, BLOCKS, &job), "kernel");
    for (uint32_t b = 0; b < BLOCKS; b++)
        if (job.rc[b]) {
            /* kernels use Linux's error numbers */
            fprintf(stderr, "kernel_datagrams: block %u of the kernel: %s\n", b, strerror(-job.rc[b]));
            exit(1);
        }
    printf("%u datagrams went there and back\n", job.back);
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
        fprintf(stderr, "kernel_datagrams: one node is not enough: start it by weft run -n 2 -- ./kernel_datagrams\n");
        return 1;
    }
    if (weft_rank(w) == 1)
        run_kernel(w);
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    check(weft_close(w), "close");
    return 0;
}
