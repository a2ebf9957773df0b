/* SPDX-License-Identifier: MIT
 *
 * Records for the services net and file, as a hostile kernel would submit them (weft/request.h). The input is a sequence of units of
 * UNIT bytes, one for each record:
 *
 *   0        service: 0 to 127: net, to 247: file, else the number itself
 *   1        kind
 *   2 - 3    flags
 *   4        handle: 0 to 239: one that an earlier record has got, else a wrong one
 *   5        length of the data, which is 127.0.0.1 for net, and a path for file
 *   6        time-out in ms
 *   7        zero, or a version that does not exist
 *   8 - 55   arg[0] to arg[5], of 8 bytes each, of which the first says what it is: 0: a port where somebody listens, 1: an address in the
 *            pool, 2: one in the arena, 3: one at another place, else a small number; the others are the number
 *
 * Each record is answered in time. At the end all handles are closed, and then the gateway has nothing open any more.
 */
#include <ftw.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"
#include "weft.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define UNIT    56u
#define RECORDS 64u /* of one input */
#define SCRATCH (1u << 16)

static weft_node *w;
static weft_gaddr record, text, scratch, arena;
static uint16_t port;
static char folder[] = "/tmp/weft-fuzz-records-XXXXXX";

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static void folder_remove(void)
{
    weft_close(w); /* first: a request that the node still serves may write a file there */
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Answers with what it gets, once, and closes. */
static void *serve(void *arg)
{
    int listener = *(int *)arg;
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; close(fd)) {
        char some[256];
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n = poll(&p, 1, 1) > 0 ? recv(fd, some, sizeof some, MSG_DONTWAIT) : 0;
        if (n > 0)
            (void)!send(fd, some, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    return NULL;
}

static void must(bool is)
{
    if (!is)
        abort();
}

static void open_node(void)
{
    static int listener;
    static uint8_t zeros[SCRATCH];
    char path[64], rules[64];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    pthread_t thread;
    weft_config c = {.bytes = sizeof c, .pool_bytes = 32 << 20, .size = 1};
    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    weft_gpu *gpu;
    uint32_t space = 0;
    must(mkdtemp(folder) && atexit(folder_remove) == 0);
    snprintf(path, sizeof path, "%s/file", folder);
    FILE *f = fopen(path, "w");
    must(f != NULL);
    for (unsigned i = 0; i < (1u << 20) + 100; i++)
        fputc('a' + (int)(i % 26), f);
    must(fclose(f) == 0);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(listener, 4096) == 0);
    must(getsockname(listener, (struct sockaddr *)&a, &len) == 0 && pthread_create(&thread, NULL, serve, &listener) == 0);
    port = ntohs(a.sin_port);
    snprintf(rules, sizeof rules, "allow=127.0.0.1,deny=*");
    setenv("WEFT_SERVE", "net,file", 1);
    setenv("WEFT_NET_RULES", rules, 1);
    setenv("WEFT_FILE_ROOT", folder, 1);
    must(weft_open(&w, &c) == 0);
    base_log_set("off");
    must(weft_gpu_open(w, &config, &gpu) == 0 && weft_gpu_arena(gpu, 1u << 20, &space) == 0);
    must(weft_gpu_alloc(gpu, space, SCRATCH, &arena) == 0 && weft_put_blocking(w, arena, zeros, SCRATCH) == 0);
    must(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &record) == 0 && weft_alloc(w, 4096, &text) == 0);
    must(weft_alloc(w, SCRATCH, &scratch) == 0);
    memset(weft_ptr(w, scratch, SCRATCH), 0, SCRATCH);
}

/* Submits the record, and waits for the answer. Returns its status. */
static int submit(weft_request *r)
{
    static uint64_t id;
    weft_op op;
    r->id = ++id;
    memcpy(weft_ptr(w, record, sizeof *r), r, sizeof *r);
    if (weft_request_start(w, record, &op))
        return -EINVAL;
    int rc = weft_wait(w, &op, 20 * WEFT_SECOND);
    memcpy(r, weft_ptr(w, record, sizeof *r), sizeof *r);
    must(r->answered == r->id && r->status == rc && rc <= 0);
    return rc;
}

static uint64_t number(const uint8_t *at)
{
    uint64_t n = 0;
    for (unsigned i = 1; i < 8; i++)
        n |= (uint64_t)at[i] << 8 * (i - 1);
    return at[0] == 0   ? port
           : at[0] == 1 ? scratch + n % SCRATCH
           : at[0] == 2 ? arena + n % SCRATCH
           : at[0] == 3 ? n << 8 | n % 256
                        : n & (UINT64_MAX >> at[0] % 64);
}

struct handle {
    uint64_t id;
    uint16_t service;
};

static void one(const uint8_t *u, struct handle *handles, unsigned *count)
{
    static const char host[] = "127.0.0.1", path[] = "file";
    uint16_t service = u[0] < 128 ? WEFT_SERVICE_NET : u[0] < 248 ? WEFT_SERVICE_FILE : u[0];
    const struct handle *h = u[4] < 240 && *count ? &handles[u[4] % *count] : NULL;
    weft_request r = {.version = WEFT_REQUEST_VERSION + u[7],
                      .service = service,
                      .kind = u[1],
                      .flags = u[2] | (uint32_t)u[3] << 8,
                      .timeout_ns = (1 + u[6]) * WEFT_MS,
                      .handle = h ? h->id : u[4]};
    memset(weft_ptr(w, text, 300), 0, 300);
    memcpy(weft_ptr(w, text, 300), service == WEFT_SERVICE_FILE ? path : host, service == WEFT_SERVICE_FILE ? sizeof path : sizeof host);
    r.data = u[5] ? text : 0;
    r.data_bytes = u[5];
    for (unsigned i = 0; i < 6; i++)
        r.arg[i] = number(u + 8 + 8 * i);
    if (service == WEFT_SERVICE_FILE && r.kind == WEFT_FILE_WRITE_RANGE)
        r.arg[2] %= 1u << 21; /* the disk is small */
    int rc = submit(&r);
    bool opens = service == WEFT_SERVICE_NET ? r.kind >= WEFT_NET_CONNECT && r.kind <= WEFT_NET_ACCEPT
                                             : service == WEFT_SERVICE_FILE && r.kind == WEFT_FILE_OPEN;
    if (rc == 0 && opens)
        handles[(*count)++] = (struct handle){r.result[0], service};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct handle handles[RECORDS];
    unsigned count = 0;
    weft_file_cache cache;
    if (!w)
        open_node();
    for (unsigned i = 0; i < RECORDS && size >= UNIT; i++, data += UNIT, size -= UNIT)
        one(data, handles, &count);
    while (count--) {
        bool net = handles[count].service == WEFT_SERVICE_NET;
        weft_request r = {.version = WEFT_REQUEST_VERSION,
                          .service = handles[count].service,
                          .kind = net ? WEFT_NET_CLOSE : WEFT_FILE_CLOSE,
                          .handle = handles[count].id,
                          .arg = {net}};
        (void)submit(&r); /* it may be closed already */
    }
    int64_t end = base_deadline(20 * WEFT_SECOND);
    do
        must(weft_file_cache_stat(w, 0, &cache, sizeof cache, WEFT_TIMEOUT_DEFAULT) == 0 && base_now_ns() < end);
    while (cache.readers);
    return 0;
}
