/* SPDX-License-Identifier: MIT
 *
 * Files of kernels, on the GPU `host`: kernels of node 1 read and write files of node 0, to and from pools and arenas of both nodes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "file_test.h"
#include "gpu/arena.h"
#include "kernel_test.h"
#include "weft/device_file.h"

static const char *const OPEN[] = {"WEFT_SERVE=file", "WEFT_POOL=64M", "WEFT_LOG=error", NULL};
static const char *const SMALL[] = {"WEFT_SERVE=file", "WEFT_POOL=64M", "WEFT_FILE_CACHE=4M", "WEFT_LOG=error", NULL};
#define SEED   1u /* of the bytes of all files */
#define BYTES  (5 * PIECE + 12345)
#define PART   100000u
#define BLOCKS 40u

#define MUST(is)                                                                                                 \
    do {                                                                                                         \
        if (!(is)) {                                                                                             \
            fprintf(stderr, "%s:%d: block %u: %s (rc %d)\n", __FILE__, __LINE__, weft_device_block(d), #is, rc); \
            job->failed[weft_device_block(d)] = true;                                                            \
            return;                                                                                              \
        }                                                                                                        \
    } while (0)

struct job {
    uint64_t record[BLOCKS], path;
    uint64_t to[BLOCKS], to_bytes;
    uint64_t none; /* the path of a file that does not exist, of the same length */
    uint32_t path_bytes;
    _Atomic uint32_t *reads; /* counts what has been read, for other nodes */
    weft_device_file file;
    bool failed[BLOCKS];
    int rc;
};

static bool none_failed(const struct job *job)
{
    for (uint32_t b = 0; b < BLOCKS; b++)
        if (job->failed[b])
            return false;
    return true;
}

/* Makes the records; every second one is in the arena. */
static void new_job(weft_node *w, weft_gpu *g, uint32_t space, const char *path, struct job *job)
{
    for (uint32_t b = 0; b < BLOCKS; b++)
        job->record[b] = new_record(w, g, space, b % 2);
    job->path = at_text(w, path, &job->path_bytes);
}

/* --- reading --- */

static void open_kernel(const weft_device *d, void *arg)
{
    struct job *job = arg;
    int rc = weft_device_file_open(d, job->record[0], 0, job->none, job->path_bytes, 0, &job->file);
    MUST(rc == -WEFT_DEVICE_ENOENT);
    rc = weft_device_file_open(d, job->record[0], 0, job->path, 0, 0, &job->file);
    MUST(rc == -WEFT_DEVICE_EINVAL);
    rc = weft_device_file_open(d, job->record[0], 0, job->path, job->path_bytes, 0x80, &job->file);
    MUST(rc == -WEFT_DEVICE_EINVAL);
    rc = weft_device_file_open(d, job->record[0], 0, job->path, job->path_bytes, 0, &job->file);
    MUST(rc == 0 && job->file.bytes == BYTES && job->file.inode);
}

/* Reads a file from its beginning to its end, in parts whose length does not divide the length of a piece; and tries to read what cannot be
 * read. */
static void read_kernel(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint64_t n, at = 0;
    int rc = 0;
    do {
        rc = weft_device_file_read(d, job->record[0], &job->file, job->to[0] + at, PART, at, &n);
        MUST(rc == 0);
        at += n;
    } while (n == PART);
    MUST(at == BYTES);
    rc = weft_device_file_read(d, job->record[0], &job->file, job->to[0], 2 * BYTES, 0, &n); /* the whole range in one call */
    MUST(rc == 0 && n == BYTES);
    rc = weft_device_file_read(d, job->record[0], &job->file, job->to[0], 1, UINT64_MAX, &n);
    MUST(rc == 0 && n == 0);
    rc = weft_device_file_read(d, job->record[0], &job->file, (uint64_t)9 << 48, 1, 0, &n);
    MUST(rc == -WEFT_DEVICE_EFAULT && n == 0);
    rc = weft_device_file_read(d, job->record[0], &job->file, (uint64_t)d->rank << 48 | 8, 1, 0, &n); /* an address in the null page */
    MUST(rc == -WEFT_DEVICE_EFAULT && n == 0);
    rc = weft_device_file_write(d, job->record[0], &job->file, job->to[0], 1, 0, &n);
    MUST(rc == -WEFT_DEVICE_EBADF && n == 0);
    rc = weft_device_file_stat(d, job->record[0], &job->file);
    MUST(rc == 0 && job->file.bytes == BYTES);
}

static void close_kernel(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint64_t n;
    int rc = weft_device_file_close(d, job->record[0], &job->file);
    MUST(rc == 0);
    rc = weft_device_file_close(d, job->record[0], &job->file);
    MUST(rc == -WEFT_DEVICE_EBADF);
    rc = weft_device_file_read(d, job->record[0], &job->file, job->to[0], 1, 0, &n);
    MUST(rc == -WEFT_DEVICE_EBADF);
}

static void must_hold(weft_node *w, weft_gaddr at)
{
    uint8_t *got = malloc(BYTES);
    OK(weft_get_blocking(w, got, at, BYTES));
    CHECK(right(got, SEED, 0, BYTES));
    memset(got, 0, BYTES);
    OK(weft_put_blocking(w, at, got, BYTES));
    free(got);
}

static void reading(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t space = 0;
    weft_gpu *g = gpu_with_arena(w, &space);
    weft_gaddr arena, all[3], pool = symmetric_alloc(w, BYTES);
    OK(weft_gpu_alloc(g, space, BYTES, &arena));
    OK(weft_exchange(w, &arena, 1, all, NULL, DEFAULT_TIME));
    if (weft_rank(w) == 1) {
        static struct job job;
        write_file(in_folder("one"), SEED, BYTES, 0);
        new_job(w, g, space, in_folder("one"), &job);
        job.none = at_text(w, in_folder("not"), &job.path_bytes);
        OK(weft_gpu_run(g, open_kernel, 1, &job));
        const weft_gaddr to[] = {on_node(pool, 1), arena, on_node(pool, 0), all[0], on_node(pool, 2), all[2]};
        for (uint32_t i = 0; i < 6 && none_failed(&job); i++) {
            const uint64_t direct = gpu_arenas_of(w)->direct;
            job.to[0] = to[i];
            OK(weft_gpu_run(g, read_kernel, 1, &job));
            CHECK(none_failed(&job));
            if (to[i] == arena && strcmp(stats(w, 0).transport, "rc") == 0) /* the RDMA device has moved the pieces, without a stage */
                CHECK(gpu_arenas_of(w)->direct >= direct + BYTES / PIECE);
            must_hold(w, to[i]);
        }
        OK(weft_gpu_run(g, close_kernel, 1, &job));
        CHECK(none_failed(&job));
        weft_file_cache c;
        do
            c = cache_of(w);
        while (c.readers);            /* closing does not wait */
        CHECK(c.disk_bytes == BYTES); /* the disk was read once for all blocks */
    }
    OK(weft_barrier(w, DEFAULT_TIME));
    OK(weft_gpu_close(g));
}

static void test_reading(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(3, reading, NULL, OPEN), 0);
}

/* Many blocks read different pieces of one file through one handle, and the cache is smaller than the file. */
static void many_kernel(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint32_t b = weft_device_block(d);
    uint64_t state = b, n;
    int rc = 0;
    for (uint32_t i = 0; i < 6; i++) {
        uint64_t at = random_next(&state) % job->file.bytes, want = job->file.bytes - at;
        want = want < job->to_bytes ? want : job->to_bytes;
        rc = weft_device_file_read(d, job->record[b], &job->file, job->to[b], job->to_bytes, at, &n);
        MUST(rc == 0 && n == want);
        const uint8_t *got = weft_device_ptr(d, job->to[b], n);
        MUST(got != NULL && right(got, SEED, at, n));
    }
}

static void open_only(const weft_device *d, void *arg)
{
    struct job *job = arg;
    int rc = weft_device_file_open(d, job->record[0], 0, job->path, job->path_bytes, 0, &job->file);
    MUST(rc == 0);
}

static void many(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        static struct job job;
        uint32_t space = 0;
        weft_gpu *g = gpu_with_arena(w, &space);
        write_file(in_folder("large"), SEED, 30 * PIECE + 5, 0);
        new_job(w, g, space, in_folder("large"), &job);
        job.to_bytes = 70000;
        for (uint32_t b = 0; b < BLOCKS; b++)
            OK(b % 3 ? weft_gpu_alloc(g, space, job.to_bytes, &job.to[b]) : weft_alloc(w, job.to_bytes, &job.to[b]));
        OK(weft_gpu_run(g, open_only, 1, &job));
        OK(weft_gpu_run(g, many_kernel, BLOCKS, &job));
        CHECK(none_failed(&job)); /* the file stays open: it is closed with the node */
        OK(weft_gpu_close(g));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
    if (weft_rank(w) == 0) {
        weft_file_cache c = cache_of(w);
        CHECK(c.readers == 1 && c.cached_bytes <= c.limit_bytes);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_many(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, many, NULL, SMALL), 0);
}

/* --- writing --- */

static void write_kernel(const weft_device *d, void *arg)
{
    struct job *job = arg;
    weft_device_file *f = &job->file, other;
    uint64_t n, record = job->record[0];
    int rc = weft_device_file_open(d, record, 0, job->path, job->path_bytes, WEFT_FILE_WRITE | WEFT_FILE_CREATE, f);
    MUST(rc == 0 && f->bytes == 0);
    rc = weft_device_file_write(d, record, f, job->to[0], BYTES, 0, &n); /* from the pool */
    MUST(rc == 0 && n == BYTES && f->bytes == BYTES);
    rc = weft_device_file_open(d, record, 0, job->path, job->path_bytes, 0, &other);
    MUST(rc == 0 && other.bytes == BYTES && other.generation == f->generation);
    rc = weft_device_file_read(d, record, &other, job->to[1], BYTES, 0, &n);
    MUST(rc == 0 && n == BYTES);
    rc = weft_device_file_write(d, record, f, job->to[1] + 1, PART, BYTES - 1, &n); /* from the arena, and beyond the end of the file */
    MUST(rc == 0 && n == PART && f->bytes == BYTES - 1 + PART);
    rc = weft_device_file_write(d, record, f, job->to[2], 10, 5, &n); /* from node 0's arena */
    MUST(rc == 0 && n == 10);
    rc = weft_device_file_sync(d, record, f);
    MUST(rc == 0);
    rc = weft_device_file_read(d, record, f, job->to[1], PART, BYTES - 1, &n);
    MUST(rc == 0 && n == PART);
    rc = weft_device_file_read(d, record, &other, job->to[1], PART, PIECE, &n);
    MUST(rc == 0 || rc == -WEFT_DEVICE_ESTALE); /* the bytes that it had, or none */
    rc = weft_device_file_stat(d, record, &other);
    MUST(rc == -WEFT_DEVICE_ESTALE);
    rc = weft_device_file_read(d, record, &other, job->to[1] + PART, PART, 4 * PIECE + 5, &n);
    MUST(rc == 0 || rc == -WEFT_DEVICE_ESTALE);
    rc = weft_device_file_sync(d, record, &other);
    MUST(rc == -WEFT_DEVICE_EBADF);
    rc = weft_device_file_write(d, record, f, (uint64_t)1 << 48 | (uint64_t)1 << 47, 10, 5, &n);
    MUST(rc == -WEFT_DEVICE_EFAULT && n == 0);
    rc = weft_device_file_close(d, record, &other);
    MUST(rc == 0);
    rc = weft_device_file_close(d, record, f);
    MUST(rc == 0);
}

static void writing(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t space = 0;
    weft_gpu *g = gpu_with_arena(w, &space);
    weft_gaddr arena, all[2];
    OK(weft_gpu_alloc(g, space, BYTES, &arena));
    OK(weft_put_blocking(w, arena, "0123456789", 10));
    OK(weft_exchange(w, &arena, 1, all, NULL, DEFAULT_TIME));
    if (weft_rank(w) == 1) {
        static struct job job;
        new_job(w, g, space, in_folder("written"), &job);
        OK(weft_alloc(w, BYTES, &job.to[0]));
        job.to[1] = arena;
        job.to[2] = all[0];
        fill(weft_ptr(w, job.to[0], BYTES), SEED, 0, BYTES);
        OK(weft_gpu_run(g, write_kernel, 1, &job));
        CHECK(none_failed(&job));
        FILE *f = fopen(in_folder("written"), "r");
        for (uint64_t i = 0; i < BYTES - 1 + PART; i++) {
            uint8_t want = i >= 5 && i < 15 ? (uint8_t)('0' + i - 5) : byte_of(SEED, i < BYTES - 1 ? i : i - (BYTES - 1) + 1);
            CHECK(fgetc(f) == want);
        }
        CHECK(fgetc(f) == EOF);
        fclose(f);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
    OK(weft_gpu_close(g));
}

static void test_writing(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, writing, NULL, OPEN), 0);
}

/* Several blocks write through one open file at the same time, each its own part. Which write the gateway's threads end first is a matter
 * of luck, so there are many rounds. After them the file is as the last of the writes has left it. */
#define WRITERS 4u
#define LINE    50u

static void open_shared(const weft_device *d, void *arg)
{
    struct job *job = arg;
    int rc = weft_device_file_open(d, job->record[0], 0, job->path, job->path_bytes, WEFT_FILE_WRITE | WEFT_FILE_CREATE, &job->file);
    MUST(rc == 0);
}

static void write_part(const weft_device *d, void *arg)
{
    struct job *job = arg;
    weft_device_file f = job->file;
    uint32_t b = weft_device_block(d);
    uint64_t n;
    int rc = weft_device_file_write(d, job->record[b], &f, job->to[b], LINE, job->to_bytes + (uint64_t)b * LINE, &n);
    MUST(rc == 0 && n == LINE);
}

static void stat_shared(const weft_device *d, void *arg)
{
    struct job *job = arg;
    int rc = weft_device_file_stat(d, job->record[0], &job->file);
    MUST(rc == 0 && job->file.bytes == job->to_bytes);
}

static void writing_at_once(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t space = 0;
    weft_gpu *g = gpu_with_arena(w, &space);
    if (weft_rank(w) == 1) {
        static struct job job;
        new_job(w, g, space, in_folder("shared"), &job);
        for (uint32_t b = 0; b < WRITERS; b++)
            OK(weft_alloc(w, LINE, &job.to[b]));
        OK(weft_gpu_run(g, open_shared, 1, &job));
        uint32_t rounds = repeats(200);
        for (uint32_t i = 0; i < rounds && none_failed(&job); i++) {
            OK(weft_gpu_run(g, write_part, WRITERS, &job));
            job.to_bytes += WRITERS * LINE;
            OK(weft_gpu_run(g, stat_shared, 1, &job));
        }
        CHECK(none_failed(&job));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
    OK(weft_gpu_close(g));
}

static void test_writing_at_once(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, writing_at_once, NULL, OPEN), 0);
}

/* --- wrong records --- */

static int submit(weft_node *w, weft_gaddr at, weft_request *r)
{
    static uint64_t id;
    weft_op op;
    r->version = WEFT_REQUEST_VERSION;
    r->id = ++id;
    memcpy(weft_ptr(w, at, sizeof *r), r, sizeof *r);
    OK(weft_request_start(w, at, &op));
    int rc = weft_wait(w, &op, DEFAULT_TIME);
    memcpy(r, weft_ptr(w, at, sizeof *r), sizeof *r);
    return rc;
}

static int submit_file(weft_node *w, weft_gaddr at, uint16_t kind, uint64_t handle, uint64_t to, uint64_t bytes)
{
    weft_request r = {.service = WEFT_SERVICE_FILE, .kind = kind, .handle = handle, .arg = {to, bytes}};
    int rc = submit(w, at, &r);
    CHECK(rc == 0 || r.result[0] == 0);
    return rc;
}

/* Lengths that a kernel's calls never give, and a file that is named as a socket. */
static void wrong(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        weft_gaddr at, some;
        uint32_t bytes;
        char path[256];
        snprintf(path, sizeof path, "%s/wrong", folder);
        OK(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &at));
        OK(weft_alloc(w, PIECE + 1, &some));
        memset(weft_ptr(w, some, PIECE + 1), 'x', PIECE + 1);
        weft_request r = {.service = WEFT_SERVICE_FILE,
                          .kind = WEFT_FILE_OPEN,
                          .flags = WEFT_FILE_WRITE | WEFT_FILE_CREATE,
                          .data = at_text(w, path, &bytes)};
        r.data_bytes = bytes;
        CHECK(submit(w, at, &r) == 0);
        const uint64_t file = r.result[0];
        const uint16_t as_socket[] = {WEFT_NET_OPENED, WEFT_NET_ACCEPT, WEFT_NET_RECEIVE, WEFT_NET_SEND, WEFT_NET_RECEIVED, WEFT_NET_CLOSE};
        for (unsigned i = 0; i < sizeof as_socket / sizeof as_socket[0]; i++) {
            r = (weft_request){.service = WEFT_SERVICE_NET, .kind = as_socket[i], .handle = file, .arg = {some, 1}};
            CHECK(submit(w, at, &r) == -EBADF);
        }
        CHECK(submit_file(w, at, WEFT_FILE_WRITE_RANGE, file, some, PIECE + 1) == -EINVAL);
        CHECK(submit_file(w, at, WEFT_FILE_WRITE_RANGE, file, some, 0) == -EINVAL);
        CHECK(submit_file(w, at, WEFT_FILE_WRITE_RANGE, file, some, UINT64_MAX) == -EINVAL);
        r = (weft_request){.service = WEFT_SERVICE_FILE, .kind = WEFT_FILE_STAT, .handle = file};
        CHECK(submit(w, at, &r) == 0 && r.result[1] == 0); /* nothing was written */
        CHECK(submit_file(w, at, WEFT_FILE_WRITE_RANGE, file, some, PIECE) == 0);
        CHECK(submit_file(w, at, WEFT_FILE_READ_RANGE, file, some, 0) == -EINVAL);
        CHECK(submit_file(w, at, WEFT_FILE_READ_RANGE, file + 1, some, 1) == -EBADF);
        CHECK(submit_file(w, at, WEFT_FILE_CLOSE, file, 0, 0) == 0);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_wrong(void **state)
{
    (void)state;
    assert_int_equal(
        nodes_failed_with(2, wrong, NULL, (const char *const[]){"WEFT_SERVE=net,file", "WEFT_POOL=64M", "WEFT_LOG=error", NULL}), 0);
}

/* --- the end of nodes --- */

static void until_error(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint64_t n, at = 0;
    do {
        job->rc = weft_device_file_read(d, job->record[0], &job->file, job->to[0], PART, at, &n);
        at = n == PART ? at + n : 0;
        (*job->reads)++;
    } while (!job->rc);
}

static void read_until_error(weft_node *w, _Atomic uint32_t *reads)
{
    static struct job job;
    uint32_t space = 0;
    weft_gpu *g = gpu_with_arena(w, &space);
    write_file(in_folder("dies"), SEED, BYTES, 0);
    new_job(w, g, space, in_folder("dies"), &job);
    job.reads = reads;
    OK(weft_alloc(w, PART, &job.to[0]));
    OK(weft_gpu_run(g, open_only, 1, &job));
    OK(weft_gpu_run(g, until_error, 1, &job));
    CHECK(none_failed(&job) && job.rc == -WEFT_DEVICE_ECONNRESET);
    OK(weft_gpu_close(g));
}

/* The gateway is killed while a kernel reads: the kernel gets an error. */
static void gateway_dies(weft_node *w, void *arg)
{
    _Atomic uint32_t *reads = arg;
    if (weft_rank(w) == 0) {
        wait_for(reads, 20);
        raise(SIGKILL);
    }
    read_until_error(w, reads);
}

static void test_gateway_dies(void **state)
{
    (void)state;
    one_is_killed(gateway_dies, OPEN, 0);
}

/* The asker is killed while its kernel reads: the gateway closes the files that the asker had open. */
static void asker_dies(weft_node *w, void *arg)
{
    _Atomic uint32_t *reads = arg, *pid = reads + 1;
    if (weft_rank(w) == 1) {
        atomic_store(pid, (uint32_t)getpid());
        read_until_error(w, reads);
        return;
    }
    weft_file_cache c;
    wait_for(reads, 20);
    CHECK(cache_of(w).readers == 1);
    kill((pid_t)*pid, SIGKILL);
    do
        c = cache_of(w);
    while (c.readers || c.open_files > 1);
}

static void test_asker_dies(void **state)
{
    (void)state;
    one_is_killed(asker_dies, OPEN, 1);
}

#define ONE(name) cmocka_unit_test_setup_teardown(test_##name, folder_make, folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {ONE(reading), ONE(many),         ONE(writing),   ONE(writing_at_once),
                                       ONE(wrong),   ONE(gateway_dies), ONE(asker_dies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
