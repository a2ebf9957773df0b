/* SPDX-License-Identifier: MIT
 *
 * kernel_fetch: a kernel fetches a page over HTTP, through the gateway, node 0. Node 1, where the kernel runs, needs no network. The bytes
 * of the page are copied into an arena, which is memory of the GPU, and the kernel reads them from the arena.
 *
 * Shown: weft_device_net_connect(), _send(), _receive() and _close() (weft/device_net.h). The kernel runs on the GPU `host`; a kernel for
 * CUDA makes the same calls (tests/gpu/fetch.cu). Without a URL, the kernel fetches a page of a small server that this program starts on
 * node 0.
 *
 * Run:
 *     weft run -n 2 -- ./kernel_fetch
 * It prints:
 *     HTTP/1.0 200 OK
 *     the page has 30 bytes, 2 lines and 7 words
 *
 * With a URL: weft run -n 2 -- ./kernel_fetch http://example.com/
 */
#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <weft.h>
#include <weft/device_net.h>

#define PAGE_MAX (1u << 20)

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "kernel_fetch: %s: %s\n", what, weft_error());
        exit(1);
    }
}

/* --- the kernel --- */

struct job {
    uint64_t record, host, request, page; /* addresses: `page` in the arena, the others in the pool */
    uint32_t host_bytes, request_bytes, port;
    int rc; /* result of the kernel */
    uint64_t bytes, lines, words, head_bytes;
};

static void fetch(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint64_t socket, n;
    job->rc = weft_device_net_connect(d, job->record, 0, job->host, job->host_bytes, job->port, 0, &socket);
    if (job->rc)
        return;
    job->rc = weft_device_net_send(d, job->record, socket, job->request, job->request_bytes, NULL);
    do {
        if (!job->rc)
            job->rc = weft_device_net_receive(d, job->record, socket, job->page + job->bytes, PAGE_MAX - job->bytes, &n);
        job->bytes += job->rc ? 0 : n;
    } while (!job->rc && n && job->bytes < PAGE_MAX);
    (void)weft_device_net_close(d, job->record, socket);
    const char *page = weft_device_ptr(d, job->page, PAGE_MAX);
    uint64_t at = 0;
    while (at + 4 <= job->bytes && memcmp(page + at, "\r\n\r\n", 4) != 0)
        at++;
    job->head_bytes = at + 4 < job->bytes ? at + 4 : job->bytes;
    for (uint64_t i = job->head_bytes; i < job->bytes; i++) {
        bool space = page[i] == ' ' || page[i] == '\n', before = i == job->head_bytes || page[i - 1] == ' ' || page[i - 1] == '\n';
        job->lines += page[i] == '\n';
        job->words += !space && before;
    }
}

/* --- a server on node 0 --- */

static void *serve(void *arg)
{
    static const char answer[] = "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello from node 0\nto a kernel\n";
    char request[4096];
    int fd = accept(*(int *)arg, NULL, NULL);
    if (fd < 0 || read(fd, request, sizeof request) <= 0 || write(fd, answer, sizeof answer - 1) <= 0)
        perror("kernel_fetch: the server");
    close(fd);
    return NULL;
}

static uint32_t start_server(int *listener, pthread_t *thread)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    *listener = socket(AF_INET, SOCK_STREAM, 0);
    if (*listener < 0 || bind(*listener, (struct sockaddr *)&a, sizeof a) || listen(*listener, 1) ||
        getsockname(*listener, (struct sockaddr *)&a, &len) || pthread_create(thread, NULL, serve, listener)) {
        perror("kernel_fetch: a server");
        exit(1);
    }
    return ntohs(a.sin_port);
}

/* --- node 1 --- */

static uint64_t in_pool(weft_node *w, const char *text, uint32_t *bytes)
{
    weft_gaddr at;
    *bytes = (uint32_t)strlen(text);
    check(weft_alloc(w, *bytes + 1, &at), "alloc");
    memcpy(weft_ptr(w, at, *bytes + 1), text, *bytes + 1);
    return at;
}

/* Splits http://HOST[:PORT][/PATH]. */
static void read_url(weft_node *w, const char *url, struct job *job)
{
    char host[256] = "", path[1024] = "/", request[1600];
    unsigned port = 80;
    if (sscanf(url, "http://%255[^:/]:%u%1023s", host, &port, path) < 2 && sscanf(url, "http://%255[^/]%1023s", host, path) < 1) {
        fprintf(stderr, "kernel_fetch: '%s' is no URL: expected one as in http://example.com:80/page\n", url);
        exit(1);
    }
    job->port = port;
    job->host = in_pool(w, host, &job->host_bytes);
    snprintf(request, sizeof request, "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n", path, host);
    job->request = in_pool(w, request, &job->request_bytes);
}

static void run_kernel(weft_node *w, const char *url)
{
    weft_gpu *gpu;
    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    uint32_t space = 0;
    struct job job = {.rc = 0};
    read_url(w, url, &job);
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    check(weft_gpu_arena(gpu, PAGE_MAX + (1u << 20), &space), "arena");
    check(weft_gpu_alloc(gpu, space, PAGE_MAX, &job.page), "memory of the GPU");
    check(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &job.record), "alloc");
    memset(weft_ptr(w, job.record, WEFT_REQUEST_BYTES), 0, WEFT_REQUEST_BYTES);
    check(weft_gpu_run(gpu, fetch, 1, &job), "kernel");
    if (job.rc) {
        /* kernels use Linux's error numbers */
        fprintf(stderr, "kernel_fetch: the kernel could not fetch %s: %s\n", url, strerror(-job.rc));
        exit(1);
    }
    char head[200] = "";
    /* the arena is longer than `head`; bytes of the arena that the kernel has not written are 0 */
    check(weft_get_blocking(w, head, job.page, sizeof head - 1), "get");
    head[strcspn(head, "\r\n")] = '\0';
    printf("%s\nthe page has %llu bytes, %llu lines and %llu words\n", head, (unsigned long long)(job.bytes - job.head_bytes),
           (unsigned long long)job.lines, (unsigned long long)job.words);
    check(weft_gpu_close(gpu), "GPU");
}

int main(int argc, char **argv)
{
    weft_node *w;
    pthread_t thread;
    int listener = -1;
    uint64_t port = 0, ports[WEFT_MAX_NODES];
    const char *rank = getenv("WEFT_RANK");
    bool gateway = rank && strcmp(rank, "0") == 0;
    if (gateway) {
        setenv("WEFT_SERVE", "net", 1);
        /* the server's address; without this rule no node may reach the gateway's loopback */
        setenv("WEFT_NET_RULES", "allow=127.0.0.1", 0);
        port = argc > 1 ? 0 : start_server(&listener, &thread);
    }
    check(weft_open(&w, NULL), "open");
    if (weft_size(w) < 2) {
        fprintf(stderr, "kernel_fetch: one node has nobody to fetch through: start it by weft run -n 2 -- kernel_fetch\n");
        return 1;
    }
    check(weft_exchange(w, &port, 1, ports, NULL, WEFT_TIMEOUT_DEFAULT), "exchange");
    if (weft_rank(w) == 1) {
        char url[64];
        snprintf(url, sizeof url, "http://127.0.0.1:%u/", (unsigned)ports[0]);
        run_kernel(w, argc > 1 ? argv[1] : url);
    }
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    if (listener >= 0) {
        pthread_join(thread, NULL);
        close(listener);
    }
    check(weft_close(w), "close");
    return 0;
}
