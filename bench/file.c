/* SPDX-License-Identifier: MIT
 *
 * The file service, beside what a program does without it. Node 0 is the gateway, the last node reads; a file of BYTES, in $TMPDIR or /tmp.
 *
 *   read   weft_file_read() of the cached file, one piece after the other; GB/s
 *   map    weft_file_map() of each piece, and a sum of its words; GB/s
 *   get    weft_get() of as many bytes from the gateway's pool: what the transport can do; GB/s
 *   gets   the same, with as many gets under way as a read from another host has, each copied to the buffer like a read; GB/s
 *   cold   all nodes but node 0 read, at the same time, a file that neither weft nor the system has cached; ms for the slowest
 *   pread, mmap   the same as read and map by the system alone, from its cache
 *   mounted       as cold, but four processes read without weft, by a mount: BENCH_PATH is the file's path below the mount, BENCH_UNDER
 *                 its path on the disk; ms
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spec.h"
#include "weft.h"

#define PIECE WEFT_FILE_PIECE
/* What a read from another host has (src/gateway/file_handle.h): copies of pieces, and how many pieces are got ahead. */
#define COPIES 14u
#define AHEAD  8u

static char path[4096];
static uint8_t *buffer;
static volatile uint64_t sink;

static int failed(const char *what, int rc)
{
    fprintf(stderr, "weft: %s: %s (%s)\n", what, weft_error(), strerror(-rc));
    return -1;
}

static void sum(const void *at, size_t bytes)
{
    const uint64_t *p = at;
    uint64_t total = 0;
    for (size_t i = 0; i < bytes / 8; i++)
        total += p[i];
    sink += total;
}

static int make_file(uint64_t bytes)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (uint64_t at = 0; fd >= 0 && at < bytes; at += PIECE) {
        memset(buffer, (int)(at / PIECE), PIECE);
        if (write(fd, buffer, PIECE) != (ssize_t)PIECE)
            return -1;
    }
    return fd;
}

static int by_system(const struct spec *s, int fd)
{
    if (strcmp(s->test, "pread") == 0) {
        for (uint64_t at = 0; at < s->bytes; at += PIECE)
            if (pread(fd, buffer, PIECE, (off_t)at) != (ssize_t)PIECE)
                return -1;
        return 0;
    }
    void *m = mmap(NULL, s->bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (m == MAP_FAILED)
        return -1;
    sum(m, s->bytes);
    return munmap(m, s->bytes);
}

static int by_gets(weft_node *w, uint64_t pieces, weft_gaddr from)
{
    static weft_gaddr copy[COPIES];
    static weft_op op[COPIES];
    int rc = 0;
    for (unsigned i = 0; i < COPIES && !rc && !copy[i]; i++)
        rc = weft_alloc(w, PIECE, &copy[i]);
    for (uint64_t i = 0, next = 0; i < pieces && !rc; i++) {
        for (; next < pieces && next <= i + AHEAD && !rc; next++)
            rc = weft_get(w, weft_ptr(w, copy[next % COPIES], PIECE), from + next * PIECE, PIECE, &op[next % COPIES]);
        if (!rc)
            rc = weft_wait(w, &op[i % COPIES], WEFT_TIMEOUT_DEFAULT);
        if (!rc)
            memcpy(buffer, weft_ptr(w, copy[i % COPIES], PIECE), PIECE);
    }
    return rc;
}

static int by_weft(weft_node *w, const struct spec *s, weft_file *f, weft_gaddr at)
{
    bool gets = strcmp(s->test, "gets") == 0;
    int rc = gets ? by_gets(w, s->bytes / PIECE, at) : 0;
    size_t n;
    for (uint64_t i = 0; !rc && !gets && i < s->bytes; i += PIECE) {
        weft_file_view v;
        if (strcmp(s->test, "get") == 0) {
            rc = weft_get_blocking(w, buffer, at + i, PIECE);
        } else if (strcmp(s->test, "map") == 0) {
            rc = weft_file_map(f, i, &v, WEFT_TIMEOUT_DEFAULT);
            if (!rc) {
                sum(v.at, v.bytes);
                weft_file_unmap(f, &v);
            }
        } else {
            rc = weft_file_read(f, buffer, PIECE, i, &n, WEFT_TIMEOUT_DEFAULT);
        }
    }
    return rc ? failed(s->test, rc) : 0;
}

/* A file that the system has not cached. */
static int make_cold(uint64_t bytes)
{
    int fd = make_file(bytes), rc = fd < 0 || fsync(fd) ? -1 : 0;
#if defined(POSIX_FADV_DONTNEED)
    if (!rc)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
#endif
    close(fd);
    return rc;
}

static int read_all(const char *from, uint64_t bytes)
{
    int fd = open(from, O_RDONLY), rc = fd < 0 ? -1 : 0;
    for (uint64_t at = 0, n; !rc && at < bytes; at += n) {
        ssize_t got = pread(fd, buffer, PIECE, (off_t)at);
        rc = got > 0 ? 0 : -1;
        n = got > 0 ? (uint64_t)got : 0;
    }
    close(fd);
    return rc;
}

static int by_mount(const struct spec *s, const char *from)
{
    enum { READERS = 4 };
    int failures = 0, status;
    if (make_cold(s->bytes))
        return -1;
    uint64_t start = spec_now_ns();
    for (unsigned i = 0; i < READERS; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(read_all(from, s->bytes) ? 1 : 0);
        failures += pid < 0;
    }
    while (wait(&status) > 0)
        failures += status != 0;
    spec_value(s, (double)(spec_now_ns() - start) / 1e6);
    return failures ? -1 : 0;
}

static int measure(weft_node *w, const struct spec *s)
{
    weft_file *f = NULL;
    weft_name there = {.addr = WEFT_NULL};
    bool last = weft_rank(w) + 1 == weft_size(w), cold = strcmp(s->test, "cold") == 0;
    uint64_t start = 0, elapsed = 0;
    if (weft_rank(w) == 0 && !cold && weft_alloc(w, s->bytes, &there.addr))
        return -1;
    if (weft_rank(w) == 0 && !cold)
        memset(weft_ptr(w, there.addr, s->bytes), 1, s->bytes);
    if (weft_rank(w) == 0 && !cold && weft_name_publish(w, 0, "bytes", there.addr, s->bytes, WEFT_TIMEOUT_DEFAULT))
        return -1;
    if (weft_rank(w) == 0) {
        if (make_cold(s->bytes))
            return -1;
        usleep(50000); /* a file that has just changed is not read at once */
    }
    int rc = weft_barrier(w, WEFT_TIMEOUT_DEFAULT);
    if (!rc && weft_rank(w) != 0 && (cold || last)) {
        if (!cold)
            rc = weft_name_wait(w, 0, "bytes", &there, WEFT_TIMEOUT_DEFAULT);
        start = spec_now_ns();
        if (!rc)
            rc = weft_file_open(w, 0, path, 0, &f, WEFT_TIMEOUT_DEFAULT);
        for (uint64_t i = 0; !rc && !cold && i < s->warmup + 1; i++)
            rc = by_weft(w, s, f, there.addr);
        start = cold ? start : spec_now_ns();
        for (uint64_t i = 0; !rc && i < (cold ? 1 : s->iterations); i++)
            rc = by_weft(w, s, f, there.addr);
        elapsed = spec_now_ns() - start;
        weft_file_close(f);
    }
    uint64_t all[WEFT_MAX_NODES];
    if (!rc)
        rc = weft_exchange(w, &elapsed, 1, all, NULL, WEFT_TIMEOUT_DEFAULT);
    for (uint32_t i = 0; !rc && i < weft_size(w); i++)
        elapsed = all[i] > elapsed ? all[i] : elapsed;
    if (!rc && last)
        spec_value(s, cold ? (double)elapsed / 1e6 : (double)s->bytes * (double)s->iterations / (double)elapsed);
    if (weft_rank(w) == 0)
        unlink(path);
    return rc ? failed(s->test, rc) : 0;
}

int main(int argc, char **argv)
{
    struct spec s;
    const char *folder = getenv("TMPDIR");
    if (argc < 2 || spec_parse(&s, argv[1]) || s.bytes % PIECE || !s.bytes) {
        fprintf(stderr, "usage: %s read|map|get|gets|cold|pread|mmap|mounted:BYTES:ITERATIONS:WARMUP, with BYTES a multiple of 1 MiB\n",
                argv[0]);
        return 2;
    }
    buffer = malloc(PIECE);
    if (!buffer)
        return 1;
    if (strcmp(s.test, "pread") == 0 || strcmp(s.test, "mmap") == 0) {
        snprintf(path, sizeof path, "%s/weft-bench-file-%d", folder ? folder : "/tmp", (int)getpid());
        int fd = make_file(s.bytes), rc = fd < 0 ? -1 : 0;
        for (uint64_t i = 0; !rc && i < s.warmup + 1; i++)
            rc = by_system(&s, fd);
        uint64_t start = spec_now_ns();
        for (uint64_t i = 0; !rc && i < s.iterations; i++)
            rc = by_system(&s, fd);
        if (!rc)
            spec_value(&s, (double)s.bytes * (double)s.iterations / (double)(spec_now_ns() - start));
        unlink(path);
        return rc ? 1 : 0;
    }
    if (strcmp(s.test, "mounted") == 0) {
        const char *from = getenv("BENCH_PATH"), *under = getenv("BENCH_UNDER");
        if (!from || !under)
            return 2;
        snprintf(path, sizeof path, "%s", under);
        int rc = by_mount(&s, from);
        unlink(path);
        return rc ? 1 : 0;
    }
    weft_node *w;
    char cache[32];
    snprintf(cache, sizeof cache, "%lluM", (unsigned long long)(2 * s.bytes >> 20) + 8);
    setenv("WEFT_SERVE", "file,name", 1);
    setenv("WEFT_FILE_CACHE", cache, 1);
    snprintf(cache, sizeof cache, "%lluM", (unsigned long long)(3 * s.bytes >> 20) + 64);
    setenv("WEFT_POOL", cache, 1);
    int rc = weft_open(&w, NULL);
    if (rc)
        return failed("open", rc) ? 1 : 0;
    snprintf(path, sizeof path, "%s/weft-bench-file-%s", folder ? folder : "/tmp", getenv("BENCH_FILE") ? getenv("BENCH_FILE") : "shared");
    rc = measure(w, &s);
    weft_close(w);
    return rc ? 1 : 0;
}
