/* SPDX-License-Identifier: MIT
 *
 * cuda_stencil: on an NVIDIA GPU. Heat spreads over a plate, whose rows are divided among the nodes, and are in the memory of their GPUs.
 * In each step every point becomes the mean of its four neighbours, so a node needs the border rows of the nodes above and below. The
 * kernels put these rows themselves: each node runs one kernel for all steps. At the end node 0 computes the plate alone and compares.
 *
 * It shows memory of a GPU that all nodes reach (weft_gpu_arena(), weft_gpu_alloc()), and how kernels synchronise by signals
 * (weft_device_put_signal_block(), weft_device_wait_for_block()). examples/stencil.c is for the GPU `host`, which needs no CUDA.
 *
 * Compile:
 *     nvcc -O2 -arch=native -o cuda_stencil cuda_stencil.cu -lweft
 * Run:
 *     weft run -n 3 -- ./cuda_stencil
 * It prints:
 *     after 200 steps the plates of 3 nodes and of one are equal
 */
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <vector>
#include <weft.h>
#include <weft/device.cuh>

#define ROWS    16 /* rows of a node */
#define COLUMNS 64
#define STEPS   200

typedef double row[COLUMNS];

/* A node's part of the plate, in its arena. Step s reads plate[s % 2] and writes the other plate. */
struct part {
    /* The first and the last row are border rows of the neighbours; at the edges of the whole plate they never change. */
    row plate[2][ROWS + 2];
    uint64_t from_above, from_below; /* number of border rows that have arrived, one for each step */
};

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "cuda_stencil: %s: %s\n", what, weft_error());
        exit(1);
    }
}

static void check_cuda(cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess) {
        fprintf(stderr, "cuda_stencil: %s: %s\n", what, cudaGetErrorString(rc));
        exit(1);
    }
}

static __host__ __device__ double mean(const row *from, int y, int x)
{
    return (from[y - 1][x] + from[y + 1][x] + from[y][x - 1] + from[y][x + 1]) / 4;
}

static __host__ __device__ uint64_t row_of(uint64_t part, uint64_t plate, uint64_t y)
{
    return part + (plate * (ROWS + 2) + y) * sizeof(row);
}

/* Puts this node's border rows of plate `next` to the neighbours, and waits for theirs. `count`: how many rows must have come by then. All
 * threads of the block make the call. */
static __device__ int swap_borders(const weft_device *d, const uint64_t *parts, uint64_t next, uint64_t count)
{
    uint64_t mine = parts[d->rank];
    bool above = d->rank > 0, below = d->rank + 1 < d->size;
    int rc = 0;
    if (above) {
        uint64_t there = parts[d->rank - 1];
        rc = weft_device_put_signal_block(d, row_of(there, next, ROWS + 1), row_of(mine, next, 1), sizeof(row),
                                          there + offsetof(struct part, from_below), 1, NULL);
    }
    if (below && !rc) {
        uint64_t there = parts[d->rank + 1];
        rc = weft_device_put_signal_block(d, row_of(there, next, 0), row_of(mine, next, ROWS), sizeof(row),
                                          there + offsetof(struct part, from_above), 1, NULL);
    }
    if (above && !rc)
        rc = weft_device_wait_for_block(d, d->rank - 1, mine + offsetof(struct part, from_above), count, NULL);
    if (below && !rc)
        rc = weft_device_wait_for_block(d, d->rank + 1, mine + offsetof(struct part, from_below), count, NULL);
    return rc;
}

/* The kernel, of one block. Before each step, a node waits for its neighbours' border rows, so no neighbour is more than one step ahead,
 * and has read a row before that row changes. An early border row goes to the plate that this step does not read. */
static __global__ void spread(const weft_device *d, const uint64_t *parts, int *result)
{
    struct part *here = (struct part *)weft_device_ptr(d, parts[d->rank], sizeof *here); /* in this GPU's own arena, so never NULL */
    int rc = 0;
    for (uint64_t s = 0; s < STEPS && !rc; s++) {
        const row *from = here->plate[s % 2];
        row *to = here->plate[(s + 1) % 2];
        for (int i = (int)threadIdx.x; i < ROWS * COLUMNS; i += (int)blockDim.x) {
            int y = i / COLUMNS + 1, x = i % COLUMNS;
            if (x > 0 && x < COLUMNS - 1)
                to[y][x] = mean(from, y, x);
        }
        rc = swap_borders(d, parts, (s + 1) % 2, s + 1);
        __syncthreads(); /* also with a single node, whose block makes no call */
    }
    for (uint32_t node = 0; node < d->size && !rc; node++)
        if (node + 1 == d->rank || node == d->rank + 1)
            rc = weft_device_flush_block(d, node);
    if (threadIdx.x == 0)
        *result = rc;
}

/* The initial state: only the upper edge of the whole plate is hot. `first`: number of the first row in the whole plate. */
static void begin(row *plate, int first, int rows)
{
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < COLUMNS; x++)
            plate[y][x] = first + y == 0 ? 100 + x : 0;
}

/* Node 0: computes the whole plate, and compares the parts of all nodes with it. */
static bool compare(weft_node *w, const uint64_t *parts)
{
    int rows = (int)weft_size(w) * ROWS;
    std::vector<double> first((size_t)(rows + 2) * COLUMNS), second(first.size());
    row *plate[2] = {(row *)first.data(), (row *)second.data()}, got[ROWS];
    begin(plate[0], 0, rows + 2);
    begin(plate[1], 0, rows + 2);
    for (int s = 0; s < STEPS; s++)
        for (int y = 1; y <= rows; y++)
            for (int x = 1; x < COLUMNS - 1; x++)
                plate[(s + 1) % 2][y][x] = mean(plate[s % 2], y, x);
    bool equal = true;
    for (uint32_t node = 0; node < weft_size(w); node++) {
        check(weft_get_blocking(w, got, row_of(parts[node], STEPS % 2, 1), sizeof got), "get");
        equal = equal && memcmp(got, plate[STEPS % 2] + 1 + node * ROWS, sizeof got) == 0;
    }
    return equal;
}

int main(void)
{
    weft_node *w;
    weft_gpu *gpu;
    weft_gaddr mine;
    static struct part start;
    uint64_t *parts; /* addresses of all nodes' parts, in memory that kernels reach, too */
    uint32_t space;
    int *result;
    check(weft_open(&w, NULL), "open");
    weft_gpu_config config = {};
    config.bytes = sizeof config;
    config.name = "cuda:0";
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    check(weft_gpu_arena(gpu, 1 << 20, &space), "arena");
    check(weft_gpu_alloc(gpu, space, sizeof(struct part), &mine), "alloc");
    for (int i = 0; i < 2; i++)
        begin(start.plate[i], (int)weft_rank(w) * ROWS, ROWS + 2);
    check(weft_put_blocking(w, mine, &start, sizeof start), "put");

    check_cuda(cudaSetDevice(0), "device"); /* the same one */
    check_cuda(cudaHostAlloc(&parts, WEFT_MAX_NODES * sizeof *parts, cudaHostAllocMapped), "memory");
    check_cuda(cudaHostAlloc(&result, sizeof *result, cudaHostAllocMapped), "memory");
    check(weft_exchange(w, &mine, 1, parts, NULL, WEFT_TIMEOUT_DEFAULT), "exchange"); /* all parts are filled now */
    spread<<<1, 256>>>(weft_gpu_device(gpu), parts, result);
    check_cuda(cudaGetLastError(), "start of the kernel");
    check_cuda(cudaDeviceSynchronize(), "kernel");
    if (*result) {
        fprintf(stderr,
                "cuda_stencil: node %u: a call of the kernel ended with %d (weft/device.h lists the errors): has a neighbour died?\n",
                weft_rank(w), *result);
        exit(1);
    }

    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    if (weft_rank(w) == 0)
        printf("after %d steps the plates of %u nodes and of one are %s\n", STEPS, weft_size(w), compare(w, parts) ? "equal" : "different");
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    check(weft_gpu_close(gpu), "GPU");
    check(weft_close(w), "close");
    return 0;
}
