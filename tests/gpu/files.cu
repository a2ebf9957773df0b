// SPDX-License-Identifier: MIT
//
// Files of kernels of a real GPU: the blocks of each node read a file of node 0 piece by piece, into the arena of their own GPU, and check
// it; then each writes a part of another file from its arena, and reads it again. weft run -n N -- files
#include <unistd.h>

#include "check.cuh"
#include "weft/device_file.h"

#define BLOCKS 4u
#define BYTES  (24ull * WEFT_FILE_PIECE + 4321)

struct addresses {
    uint64_t record, in_arena, read, written, to;
    uint32_t path_bytes;
};

__host__ __device__ uint8_t byte_at(uint64_t i)
{
    return (uint8_t)(i * 0x9e3779b97f4a7c15ull >> 56);
}

__global__ void read_pieces(const weft_device *d, addresses a, struct report *bad)
{
    __shared__ uint64_t n;
    __shared__ int rc;
    __shared__ weft_device_file file;
    uint32_t b = blockIdx.x;
    uint64_t record = (b % 2 ? a.record : a.in_arena) + b * WEFT_REQUEST_BYTES, to = a.to + (uint64_t)b * WEFT_FILE_PIECE;
    const volatile uint8_t *p = (const volatile uint8_t *)weft_device_ptr(d, to, WEFT_FILE_PIECE);
    if (threadIdx.x == 0)
        rc = weft_device_file_open(d, record, 0, a.read, a.path_bytes, 0, &file);
    __syncthreads();
    KERNEL(rc);
    KERNEL_CHECK(file.bytes == BYTES && p != NULL);
    for (uint64_t at = (uint64_t)b * WEFT_FILE_PIECE; at < BYTES; at += (uint64_t)BLOCKS * WEFT_FILE_PIECE) {
        uint64_t want = BYTES - at < WEFT_FILE_PIECE ? BYTES - at : WEFT_FILE_PIECE;
        if (threadIdx.x == 0)
            rc = weft_device_file_read(d, record, &file, to, WEFT_FILE_PIECE, at, &n);
        __syncthreads();
        KERNEL(rc);
        KERNEL_CHECK(n == want);
        for (uint64_t i = threadIdx.x; i < n; i += blockDim.x)
            KERNEL_CHECK(p[i] == byte_at(at + i));
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        file.bytes = 0;
        rc = weft_device_file_stat(d, record, &file);
        rc = rc ? rc : weft_device_file_close(d, record, &file);
    }
    __syncthreads();
    KERNEL(rc);
    KERNEL_CHECK(file.bytes == BYTES);
}

__global__ void write_part(const weft_device *d, addresses a, struct report *bad)
{
    if (threadIdx.x)
        return;
    uint64_t n, part = 2 * WEFT_FILE_PIECE + 99, record = a.in_arena, offset = d->rank * part;
    uint8_t *p = (uint8_t *)weft_device_ptr(d, a.to, part);
    weft_device_file file;
    KERNEL_CHECK(p != NULL);
    for (uint64_t i = 0; i < part; i++)
        p[i] = byte_at(offset + i + 7);
    weft_device_publish();
    KERNEL(weft_device_file_open(d, record, 0, a.written, a.path_bytes, WEFT_FILE_WRITE | WEFT_FILE_CREATE, &file));
    KERNEL(weft_device_file_write(d, record, &file, a.to, part, offset, &n));
    KERNEL_CHECK(n == part && file.bytes >= offset + part);
    for (uint64_t i = 0; i < part; i++)
        p[i] = 0;
    weft_device_publish();
    KERNEL(weft_device_file_sync(d, record, &file));
    int rc = weft_device_file_read(d, record, &file, a.to, part, offset, &n);
    KERNEL_CHECK(rc == 0 || rc == -WEFT_DEVICE_ESTALE); // another node has written meanwhile
    for (uint64_t i = 0; rc == 0 && i < part; i++)
        KERNEL_CHECK(((volatile uint8_t *)p)[i] == byte_at(offset + i + 7));
    KERNEL(weft_device_file_close(d, record, &file));
}

int main(void)
{
    setenv("WEFT_SERVE", "file", 1);
    open_node();
    uint32_t space = 0;
    addresses a = {};
    char path[64], written[64];
    uint64_t pid = (uint64_t)getpid(), pids[WEFT_MAX_NODES];
    OK(weft_exchange(w, &pid, 1, pids, NULL, 60 * WEFT_SECOND));
    snprintf(path, sizeof path, "/tmp/weft-gpu-file-%llu.r", (unsigned long long)pids[0]);
    snprintf(written, sizeof written, "/tmp/weft-gpu-file-%llu.w", (unsigned long long)pids[0]);
    a.path_bytes = (uint32_t)strlen(path);
    a.read = on_node(same_place(64), weft_rank(w));
    a.written = on_node(same_place(64), weft_rank(w));
    memcpy(weft_ptr(w, a.read, 64), path, a.path_bytes);
    memcpy(weft_ptr(w, a.written, 64), written, a.path_bytes);
    if (weft_rank(w) == 0) {
        FILE *f = fopen(path, "w");
        CHECK(f);
        for (uint64_t i = 0; i < BYTES; i++)
            fputc(byte_at(i), f);
        CHECK(fclose(f) == 0);
    }
    a.record = on_node(same_place(BLOCKS * WEFT_REQUEST_BYTES), weft_rank(w));
    open_gpu(2, 256);
    OK(weft_gpu_arena(gpu, 16u << 20, &space));
    OK(weft_gpu_alloc(gpu, space, BLOCKS * WEFT_FILE_PIECE, &a.to));
    OK(weft_gpu_alloc(gpu, space, BLOCKS * WEFT_REQUEST_BYTES, &a.in_arena));
    all_here();
    read_pieces<<<BLOCKS, 256>>>(weft_gpu_device(gpu), a, bad);
    KERNEL_DONE();
    write_part<<<1, 32>>>(weft_gpu_device(gpu), a, bad);
    KERNEL_DONE();
    all_here();
    if (weft_rank(w) == 0) {
        uint64_t bytes = weft_size(w) * (2ull * WEFT_FILE_PIECE + 99), i = 0;
        FILE *f = fopen(written, "r");
        CHECK(f);
        while (i < bytes && fgetc(f) == byte_at(i + 7))
            i++;
        CHECK(i == bytes && fgetc(f) == EOF);
        fclose(f);
        unlink(path);
        unlink(written);
        weft_file_cache cache;
        OK(weft_file_cache_stat(w, 0, &cache, sizeof cache, 60 * WEFT_SECOND));
        printf("node 0 has read %llu pieces from its disk\n", (unsigned long long)cache.disk_reads);
    }
    all_here();
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    printf("all right\n");
    return 0;
}
