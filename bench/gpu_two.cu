// SPDX-License-Identifier: MIT
//
// Kernels of two GPUs of one node reach each other's arenas: a word and the flag that announces it, and copies by blocks; beside them the
// same in CUDA alone, and the copy engine. `bytes` of a test is the number of blocks. Started as one node.
#include <cuda_runtime.h>

#include "must.cuh"
#include "spec.h"
#include "weft.h"
#include "weft/device.cuh"
#include "weft/gpu.h"

#define THREADS     1024u
#define PIECE       (1u << 20) /* bytes that a block copies at a time */
#define ARENA_BYTES (320u << 20)
#define BYTES       (256u << 20)

static weft_node *w;
static weft_gpu *gpu[2];
static weft_gaddr arena[2]; /* BYTES of each GPU; the first 4 KiB are for words */
static uint8_t *own[2];     /* memory for the same test without weft */
static cudaStream_t stream[2];
static int *rc;

static void sync_both(void)
{
    for (int i = 0; i < 2; i++)
        CUDA(cudaStreamSynchronize(stream[i]));
    if (*rc) {
        fprintf(stderr, "a kernel's call failed: %d\n", *rc);
        exit(1);
    }
}

/* --- a word and its flag, to the other GPU and back --- */

/* When a kernel asks for the pointer: LATE: for each word, right before it stores the word; EARLY: for each word, before it waits; ONCE:
 * once for all. */
enum when { LATE, EARLY, ONCE };

/* Stores a word, then the flag that announces it, to the other GPU; then waits for that GPU's flag. `second`: waits first. */
static __device__ __forceinline__ void ping_by(const weft_device *d, uint64_t there, uint64_t here, uint64_t from, uint64_t n, bool second,
                                               enum when when, int *failed)
{
    uint64_t *word = (uint64_t *)weft_device_ptr(d, there, 16);
    for (uint64_t i = from; i < from + n; i++) {
        if (second && weft_device_wait_at_least(d, here + 8, i, NULL)) {
            *failed = 1;
            return;
        }
        if (when == LATE)
            word = (uint64_t *)weft_device_ptr(d, there, 16);
        if (!word) {
            *failed = 2;
            return;
        }
        word[0] = i;
        weft_device_publish();
        weft_device_tell(word + 1, i);
        if (when == EARLY)
            word = (uint64_t *)weft_device_ptr(d, there, 16);
        if (!second && weft_device_wait_at_least(d, here + 8, i, NULL)) {
            *failed = 3;
            return;
        }
    }
}

__global__ void ping(const weft_device *d, uint64_t there, uint64_t here, uint64_t from, uint64_t n, bool second, enum when when,
                     int *failed)
{
    ping_by(d, there, here, from, n, second, when, failed);
}

/* The same with the weft_device itself as the parameter, so that it is in constant memory. */
__global__ void ping_given(const __grid_constant__ weft_device d, uint64_t there, uint64_t here, uint64_t from, uint64_t n, bool second,
                           enum when when, int *failed)
{
    ping_by(&d, there, here, from, n, second, when, failed);
}

__global__ void bare_ping(volatile uint64_t *there, volatile uint64_t *here, uint64_t from, uint64_t n, bool second)
{
    for (uint64_t i = from; i < from + n; i++) {
        if (second)
            while (here[1] < i)
                ;
        there[0] = i;
        __threadfence_system();
        there[1] = i;
        if (!second)
            while (here[1] < i)
                ;
    }
}

/* Microseconds from one GPU to the other and back. */
static double ping_us(bool ours, bool given, enum when when, uint64_t from, uint64_t n)
{
    uint64_t start = spec_now_ns();
    for (int i = 1; i >= 0; i--) {
        CUDA(cudaSetDevice(i));
        if (ours && given) {
            weft_device d;
            weft_gpu_device_copy(gpu[i], &d, sizeof d);
            ping_given<<<1, 1, 0, stream[i]>>>(d, arena[!i], arena[i], from, n, i == 1, when, rc);
        } else if (ours)
            ping<<<1, 1, 0, stream[i]>>>(weft_gpu_device(gpu[i]), arena[!i], arena[i], from, n, i == 1, when, rc);
        else
            bare_ping<<<1, 1, 0, stream[i]>>>((volatile uint64_t *)own[!i], (volatile uint64_t *)own[i], from, n, i == 1);
        CUDA(cudaGetLastError());
    }
    sync_both();
    return (double)(spec_now_ns() - start) / 1e3 / (double)n;
}

/* --- copies --- */

/* Blocks copy pieces from their GPU's memory to the other's. */
__global__ void copy(const weft_device *d, uint64_t to, uint64_t from, uint64_t pieces, bool get, int *failed)
{
    for (uint64_t i = blockIdx.x; i < pieces; i += gridDim.x) {
        uint64_t at = i % (BYTES / PIECE) * PIECE;
        int r = get ? weft_device_get_block(d, from + at, to + at, PIECE, NULL) : weft_device_put_block(d, to + at, from + at, PIECE, NULL);
        if (r && threadIdx.x == 0)
            *failed = r;
    }
}

__global__ void bare_copy(uint8_t *to, const uint8_t *from, uint64_t pieces)
{
    for (uint64_t i = blockIdx.x; i < pieces; i += gridDim.x) {
        uint64_t at = i % (BYTES / PIECE) * PIECE;
        uint4 *t = (uint4 *)(to + at);
        const uint4 *f = (const uint4 *)(from + at);
#pragma unroll 8
        for (uint32_t k = threadIdx.x; k < PIECE / 16; k += THREADS)
            t[k] = f[k];
        __threadfence_system();
        __syncthreads();
    }
}

static double copy_gbs(const char *test, uint32_t blocks, uint64_t pieces)
{
    bool get = strstr(test, "get") != NULL;
    CUDA(cudaSetDevice(0));
    uint64_t start = spec_now_ns();
    if (strncmp(test, "engine", 6) == 0)
        for (uint64_t i = 0; i < pieces; i += BYTES / PIECE)
            CUDA(cudaMemcpyPeerAsync(own[!get], !get, own[get], get, BYTES, stream[0]));
    else if (strncmp(test, "bare", 4) == 0)
        bare_copy<<<blocks, THREADS, 0, stream[0]>>>(own[!get], own[get], pieces);
    else
        copy<<<blocks, THREADS, 0, stream[0]>>>(weft_gpu_device(gpu[0]), arena[1], arena[0], pieces, get, rc);
    CUDA(cudaGetLastError());
    sync_both();
    return spec_gbs(spec_now_ns() - start, PIECE, pieces);
}

static void open_both(void)
{
    for (int i = 0; i < 2; i++) {
        char name[16];
        uint32_t space;
        weft_gpu_config config = {};
        snprintf(name, sizeof name, "cuda:%d", i);
        config.bytes = sizeof config;
        config.name = name;
        OK(weft_gpu_open(w, &config, &gpu[i]));
        OK(weft_gpu_arena(gpu[i], ARENA_BYTES, &space));
        OK(weft_gpu_alloc(gpu[i], space, BYTES, &arena[i]));
        CUDA(cudaSetDevice(i));
        CUDA(cudaMemset(weft_gpu_ptr(gpu[i], arena[i], BYTES), 0, BYTES));
        CUDA(cudaMalloc(&own[i], BYTES));
        CUDA(cudaMemset(own[i], 0, BYTES));
        CUDA(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking));
        cudaError_t e = cudaDeviceEnablePeerAccess(!i, 0);
        if (e != cudaErrorPeerAccessAlreadyEnabled)
            CUDA(e);
        (void)cudaGetLastError();
        CUDA(cudaDeviceSynchronize());
    }
    CUDA(cudaHostAlloc(&rc, sizeof *rc, cudaHostAllocMapped | cudaHostAllocPortable));
    *rc = 0;
}

int main(int argc, char **argv)
{
    int devices = 0, can = 0;
    (void)cudaGetDeviceCount(&devices);
    if (devices > 1)
        CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
    if (can) {
        OK(weft_open(&w, NULL));
        open_both();
    }
    for (int i = 1; i < argc; i++) {
        struct spec s;
        if (spec_parse(&s, argv[i]))
            return 2;
        if (!can)
            spec_missing(&s, "needs two GPUs that can access each other's memory");
        else if (strstr(s.test, "lat")) {
            static uint64_t from = 1; /* the words increase over all tests, so that each is new */
            bool ours = strncmp(s.test, "bare", 4) != 0, given = strstr(s.test, "given_") != NULL;
            enum when when = strstr(s.test, "keep") ? ONCE : strstr(s.test, "early") ? EARLY : LATE;
            (void)ping_us(ours, given, when, from, s.warmup);
            spec_value(&s, ping_us(ours, given, when, from + s.warmup, s.iterations));
            from += s.warmup + s.iterations;
        } else {
            (void)copy_gbs(s.test, (uint32_t)s.bytes, s.warmup);
            spec_value(&s, copy_gbs(s.test, (uint32_t)s.bytes, s.iterations));
        }
    }
    if (!can)
        return 0;
    OK(weft_gpu_close(gpu[0]));
    OK(weft_gpu_close(gpu[1]));
    return weft_close(w);
}
