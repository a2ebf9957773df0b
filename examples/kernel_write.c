/* SPDX-License-Identifier: MIT
 *
 * kernel_write: the blocks of a kernel write a file of another node, node 0. Each block has its own lines, which it writes through the one
 * open file that all blocks share. Another kernel then waits until the bytes are on the disk, and closes the file.
 *
 * Shown: weft_device_file_write(), _stat() and _sync() (weft/device_file.h). The kernels run on the GPU `host`; kernels for CUDA make the
 * same calls (tests/gpu/files.cu).
 *
 * Run:
 *     weft run -n 2 -- ./kernel_write
 * It prints:
 *     the file has 800 bytes: "line 000" to "line 099"
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>
#include <weft/device_file.h>

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "kernel_write: %s: %s\n", what, weft_error());
        exit(1);
    }
}

/* --- the kernel --- */

#define BLOCKS 4u
#define LINES  25u /* of each block */
#define LINE   8u  /* bytes */

struct job {
    uint64_t record[BLOCKS], path, lines[BLOCKS]; /* addresses in this node's pool */
    uint64_t path_bytes;
    weft_device_file file; /* shared by all blocks; a block that writes changes only its own copy */
    int rc[BLOCKS];        /* result of each block */
};

static void open_file(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint32_t flags = WEFT_FILE_WRITE | WEFT_FILE_CREATE | WEFT_FILE_TRUNCATE;
    job->rc[0] = weft_device_file_open(d, job->record[0], 0, job->path, job->path_bytes, flags, &job->file);
}

static void write_lines(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint32_t b = weft_device_block(d);
    char *line = weft_device_ptr(d, job->lines[b], (uint64_t)LINES * LINE);
    weft_device_file file = job->file;
    for (uint32_t i = 0; i < LINES; i++, line += LINE) {
        uint32_t n = b * LINES + i;
        const char text[LINE] = {'l', 'i', 'n', 'e', ' ', (char)('0' + n / 100), (char)('0' + n / 10 % 10), (char)('0' + n % 10)};
        for (uint32_t k = 0; k < LINE; k++)
            line[k] = text[k];
    }
    job->rc[b] = weft_device_file_write(d, job->record[b], &file, job->lines[b], (uint64_t)LINES * LINE, (uint64_t)b * LINES * LINE, NULL);
}

static void close_file(const weft_device *d, void *arg)
{
    struct job *job = arg;
    int rc = weft_device_file_sync(d, job->record[0], &job->file);
    job->rc[0] = rc ? rc : weft_device_file_stat(d, job->record[0], &job->file); /* sets the file's size, with the data of all blocks */
    (void)weft_device_file_close(d, job->record[0], &job->file);
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

static void run(weft_gpu *gpu, weft_gpu_kernel kernel, uint32_t blocks, struct job *job)
{
    check(weft_gpu_run(gpu, kernel, blocks, job), "kernel");
    for (uint32_t b = 0; b < BLOCKS; b++)
        if (job->rc[b]) {
            fprintf(stderr, "kernel_write: block %u of the kernel: %s\n", b, strerror(-job->rc[b])); /* kernels use Linux's error numbers */
            exit(1);
        }
}

static void run_kernel(weft_node *w, const char *path)
{
    weft_gpu *gpu;
    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    struct job job = {.path = in_pool(w, path, strlen(path)), .path_bytes = strlen(path)};
    for (uint32_t b = 0; b < BLOCKS; b++) {
        job.record[b] = in_pool(w, NULL, WEFT_REQUEST_BYTES);
        job.lines[b] = in_pool(w, NULL, (uint64_t)LINES * LINE);
    }
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    run(gpu, open_file, 1, &job);
    run(gpu, write_lines, BLOCKS, &job);
    run(gpu, close_file, 1, &job);
    check(weft_gpu_close(gpu), "GPU");
}

/* Node 0 reads what the kernel has written to its disk. */
static void print_file(const char *path)
{
    char all[BLOCKS * LINES * LINE + 1];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(all, 1, sizeof all, f) : 0;
    if (f)
        fclose(f);
    if (n < LINE) {
        fprintf(stderr, "kernel_write: %s is not there, or is too short\n", path);
        exit(1);
    }
    printf("the file has %zu bytes: \"%.8s\" to \"%.8s\"\n", n, all, all + n - LINE);
}

int main(void)
{
    weft_node *w;
    char path[64] = "/tmp/weft-kernel-write-XXXXXX";
    weft_gaddr at, all[WEFT_MAX_NODES];
    const char *rank = getenv("WEFT_RANK");
    if (rank && strcmp(rank, "0") == 0)
        setenv("WEFT_SERVE", "file", 1);
    check(weft_open(&w, NULL), "open");
    if (weft_size(w) < 2) {
        fprintf(stderr, "kernel_write: one node is not enough: start it by weft run -n 2 -- ./kernel_write\n");
        return 1;
    }
    if (weft_rank(w) == 0 && !mkdtemp(path)) {
        perror("kernel_write: a directory for the file");
        return 1;
    }
    at = in_pool(w, path, sizeof path);
    check(weft_exchange(w, &at, 1, all, NULL, WEFT_TIMEOUT_DEFAULT), "exchange");
    check(weft_get_blocking(w, path, all[0], sizeof path), "get"); /* node 0's path */
    char file[80];
    snprintf(file, sizeof file, "%s/lines", path);
    if (weft_rank(w) == 1)
        run_kernel(w, file);
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    if (weft_rank(w) == 0) {
        print_file(file);
        remove(file);
        remove(path);
    }
    check(weft_close(w), "close");
    return 0;
}
