// SPDX-License-Identifier: MIT
//
// examples/stencil.c on CUDA GPUs: the rows of a plate are divided among the nodes, and are in their GPUs' arenas. One kernel on each node
// does all steps; kernels send border rows to each other by put with signal. The result is compared with the processor's, bit by bit. Run:
// weft run -n N -- stencil [pool]. pool: the rows are in the nodes' pools instead.
#include <cstddef>
#include <ctime>
#include <vector>

#include "check.cuh"

#define ROWS    64 /* of a node */
#define COLUMNS 512
#define STEPS   1000

typedef double row[COLUMNS];

struct part {
    row plate[2][ROWS + 2];
    uint64_t from_above, from_below;
};

static __host__ __device__ double mean(const row *from, int y, int x)
{
    return (from[y - 1][x] + from[y + 1][x] + from[y][x - 1] + from[y][x + 1]) / 4;
}

static __host__ __device__ uint64_t row_of(uint64_t part, uint64_t plate, uint64_t y)
{
    return part + (plate * (ROWS + 2) + y) * sizeof(row);
}

static __device__ int swap_borders(const weft_device *d, const uint64_t *parts, uint64_t s)
{
    uint64_t mine = parts[d->rank], next = (s + 1) % 2;
    bool above = d->rank > 0, below = d->rank + 1 < d->size;
    weft_device_op up, down;
    int rc = 0;
    if (above)
        rc = weft_device_put_signal(d, row_of(parts[d->rank - 1], next, ROWS + 1), row_of(mine, next, 1), sizeof(row),
                                    parts[d->rank - 1] + offsetof(struct part, from_below), 1, &up);
    if (below && !rc)
        rc = weft_device_put_signal(d, row_of(parts[d->rank + 1], next, 0), row_of(mine, next, ROWS), sizeof(row),
                                    parts[d->rank + 1] + offsetof(struct part, from_above), 1, &down);
    if (above && !rc)
        rc = weft_device_wait(d, &up);
    if (below && !rc)
        rc = weft_device_wait(d, &down);
    if (above && !rc)
        rc = weft_device_wait_at_least(d, mine + offsetof(struct part, from_above), s + 1, NULL);
    if (below && !rc)
        rc = weft_device_wait_at_least(d, mine + offsetof(struct part, from_below), s + 1, NULL);
    __threadfence_system();
    return rc;
}

__global__ void spread(const weft_device *d, const uint64_t *parts, struct report *bad)
{
    __shared__ int rc;
    struct part *here = (struct part *)weft_device_ptr(d, parts[d->rank], sizeof *here);
    KERNEL_CHECK(here != NULL);
    for (uint64_t s = 0; s < STEPS; s++) {
        volatile row *to = here->plate[(s + 1) % 2];
        const row *from = here->plate[s % 2];
        for (int i = (int)threadIdx.x; i < ROWS * COLUMNS; i += (int)blockDim.x)
            if (i % COLUMNS > 0 && i % COLUMNS < COLUMNS - 1)
                to[i / COLUMNS + 1][i % COLUMNS] = mean(from, i / COLUMNS + 1, i % COLUMNS);
        __threadfence_system();
        __syncthreads();
        if (threadIdx.x == 0)
            rc = swap_borders(d, parts, s);
        __syncthreads();
        KERNEL(rc);
    }
}

/* The upper edge of the whole plate is hot. */
static void begin(row *plate, int first, int rows)
{
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < COLUMNS; x++)
            plate[y][x] = first + y == 0 ? 100 + x : 0;
}

static bool same_as_alone(const uint64_t *parts)
{
    int rows = (int)weft_size(w) * ROWS;
    std::vector<double> one((size_t)(rows + 2) * COLUMNS), two(one.size()), got((size_t)ROWS * COLUMNS);
    row *plate[2] = {(row *)one.data(), (row *)two.data()};
    begin(plate[0], 0, rows + 2);
    begin(plate[1], 0, rows + 2);
    for (int s = 0; s < STEPS; s++)
        for (int y = 1; y <= rows; y++)
            for (int x = 1; x < COLUMNS - 1; x++)
                plate[(s + 1) % 2][y][x] = mean(plate[s % 2], y, x);
    for (uint32_t node = 0; node < weft_size(w); node++) {
        OK(weft_get_blocking(w, got.data(), row_of(parts[node], STEPS % 2, 1), ROWS * sizeof(row)));
        if (memcmp(got.data(), plate[STEPS % 2][1 + node * ROWS], ROWS * sizeof(row)) != 0)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    bool pool = argc > 1 && strcmp(argv[1], "pool") == 0;
    uint64_t all[WEFT_MAX_NODES], mine, *parts;
    uint32_t space;
    open_node();
    open_gpu(2, 256);
    if (pool) {
        OK(weft_alloc_aligned(w, sizeof(struct part), 64, &mine));
    } else {
        OK(weft_gpu_arena(gpu, 4u << 20, &space));
        OK(weft_gpu_alloc(gpu, space, sizeof(struct part), &mine));
    }
    static struct part start;
    for (int i = 0; i < 2; i++)
        begin(start.plate[i], (int)weft_rank(w) * ROWS, ROWS + 2);
    OK(weft_put_blocking(w, mine, &start, sizeof start));
    OK(weft_exchange(w, &mine, 1, all, NULL, WEFT_TIMEOUT_DEFAULT));
    CUDA(cudaMalloc(&parts, sizeof all));
    CUDA(cudaMemcpy(parts, all, sizeof all, cudaMemcpyHostToDevice));
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    spread<<<1, 1024>>>(weft_gpu_device(gpu), parts, bad);
    KERNEL_DONE();
    clock_gettime(CLOCK_MONOTONIC, &to);
    all_here();
    double s = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    if (weft_rank(w) == 0) {
        CHECK(same_as_alone(all));
        printf("stencil: %d steps of %d rows of %d points a node, in one kernel, %s: %.1f us a step: all right\n", STEPS, ROWS, COLUMNS,
               pool ? "in pools" : "in arenas", 1e6 * s / STEPS);
    }
    all_here();
    OK(weft_gpu_close(gpu));
    OK(weft_close(w));
    return 0;
}
