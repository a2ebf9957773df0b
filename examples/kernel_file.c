/* SPDX-License-Identifier: MIT
 *
 * kernel_file: the blocks of a kernel read a file of another node, piece by piece, and count its lines. Node 0 has the file, and reads each
 * piece from its disk once. The pieces are copied into an arena, which is memory of the reading node's GPU.
 *
 * Shown: weft_device_file_open(), _read() and _close() (weft/device_file.h). The kernels run on the GPU `host`; a kernel for CUDA makes the
 * same calls (tests/gpu/files.cu). Without a file name, the program makes a file itself.
 *
 * Run:
 *     weft run -n 3 -- ./kernel_file
 * It prints:
 *     node 1: 700000 lines, in 5 pieces
 *     node 2: 700000 lines, in 5 pieces
 *     node 0 has read 5 pieces from its disk
 *
 * With a file: weft run -n 3 -- ./kernel_file /usr/share/dict/words
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <weft.h>
#include <weft/device_file.h>

#define BLOCKS 4u

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "kernel_file: %s: %s\n", what, weft_error());
        exit(1);
    }
}

/* --- the kernel --- */

struct job {
    /* addresses: `pieces` is in the arena, the other memory in the pool; `records` has one record for each block */
    uint64_t records, path, path_bytes, pieces;
    int rc[BLOCKS]; /* result of each block */
    uint64_t lines[BLOCKS], read[BLOCKS];
};

static void count_lines(const weft_device *d, void *arg)
{
    struct job *job = arg;
    uint32_t b = weft_device_block(d);
    uint64_t record = job->records + b * WEFT_REQUEST_BYTES, to = job->pieces + (uint64_t)b * WEFT_FILE_PIECE, n;
    const char *piece = weft_device_ptr(d, to, WEFT_FILE_PIECE);
    weft_device_file file;
    job->rc[b] = weft_device_file_open(d, record, 0, job->path, job->path_bytes, 0, &file);
    if (job->rc[b])
        return;
    for (uint64_t at = (uint64_t)b * WEFT_FILE_PIECE; at < file.bytes && !job->rc[b]; at += (uint64_t)BLOCKS * WEFT_FILE_PIECE) {
        job->rc[b] = weft_device_file_read(d, record, &file, to, WEFT_FILE_PIECE, at, &n);
        for (uint64_t i = 0; !job->rc[b] && i < n; i++)
            job->lines[b] += piece[i] == '\n';
        job->read[b]++;
    }
    (void)weft_device_file_close(d, record, &file);
}

/* --- the nodes --- */

static char made[4096]; /* path of the file that this program has made */

static void remove_file(void)
{
    unlink(made);
}

static void make_file(char *path)
{
    int fd = mkstemp(path);
    strcpy(made, path);
    if (fd >= 0)
        atexit(remove_file);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    for (int i = 0; f && i < 700000; i++)
        fprintf(f, "%d\n", 100000 + i);
    if (!f || fclose(f)) {
        perror("kernel_file: a file to read");
        exit(1);
    }
}

static void run_kernel(weft_node *w, const char *path, uint64_t result[2])
{
    weft_gpu *gpu;
    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    uint32_t space = 0;
    struct job job = {.path_bytes = strlen(path)};
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    check(weft_gpu_arena(gpu, 2u * BLOCKS * WEFT_FILE_PIECE, &space), "arena");
    check(weft_gpu_alloc(gpu, space, BLOCKS * WEFT_FILE_PIECE, &job.pieces), "memory of the GPU");
    check(weft_alloc_aligned(w, BLOCKS * WEFT_REQUEST_BYTES, 64, &job.records), "alloc");
    memset(weft_ptr(w, job.records, BLOCKS * WEFT_REQUEST_BYTES), 0, BLOCKS * WEFT_REQUEST_BYTES);
    check(weft_alloc(w, job.path_bytes, &job.path), "alloc");
    memcpy(weft_ptr(w, job.path, job.path_bytes), path, job.path_bytes);
    check(weft_gpu_run(gpu, count_lines, BLOCKS, &job), "kernel");
    for (uint32_t b = 0; b < BLOCKS; b++) {
        if (job.rc[b]) {
            fprintf(stderr, "kernel_file: node %u: the kernel could not read %s: %s\n", weft_rank(w), path,
                    strerror(-job.rc[b])); /* kernels use Linux's error numbers */
            exit(1);
        }
        result[0] += job.lines[b];
        result[1] += job.read[b];
    }
    check(weft_gpu_close(gpu), "GPU");
}

int main(int argc, char **argv)
{
    weft_node *w;
    char path[4096] = "/tmp/weft-kernel-file-XXXXXX";
    weft_gaddr at = WEFT_NULL, all[WEFT_MAX_NODES];
    uint64_t result[2] = {0, 0}, results[2 * WEFT_MAX_NODES];
    const char *rank = getenv("WEFT_RANK");
    if (rank && strcmp(rank, "0") == 0)
        setenv("WEFT_SERVE", "file", 1);
    check(weft_open(&w, NULL), "open");
    if (weft_rank(w) == 0) { /* the other nodes get the path from node 0's pool */
        if (argc > 1)
            snprintf(path, sizeof path, "%s", argv[1]);
        else
            make_file(path);
        check(weft_alloc(w, sizeof path, &at), "alloc");
        memcpy(weft_ptr(w, at, sizeof path), path, sizeof path);
    }
    check(weft_exchange(w, &at, 1, all, NULL, WEFT_TIMEOUT_DEFAULT), "exchange");
    if (weft_rank(w) != 0) {
        check(weft_get_blocking(w, path, all[0], sizeof path), "get");
        run_kernel(w, path, result);
    }
    check(weft_exchange(w, result, 2, results, NULL, WEFT_TIMEOUT_DEFAULT), "exchange");
    if (weft_rank(w) == 0) {
        weft_file_cache cache;
        for (uint32_t i = 1; i < weft_size(w); i++)
            printf("node %u: %llu lines, in %llu pieces\n", i, (unsigned long long)results[2 * i], (unsigned long long)results[2 * i + 1]);
        check(weft_file_cache_stat(w, 0, &cache, sizeof cache, WEFT_TIMEOUT_DEFAULT), "cache");
        printf("node 0 has read %llu pieces from its disk\n", (unsigned long long)cache.disk_reads);
    }
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    check(weft_close(w), "close");
    return 0;
}
