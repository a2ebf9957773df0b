/* SPDX-License-Identifier: MIT
 *
 * stencil: heat spreads over a plate. The rows of the plate are divided among the nodes. In each step every point becomes the mean of its
 * four neighbours, so a node needs the border rows of the nodes above and below. The kernels put these rows themselves: each node runs one
 * kernel for all steps. At the end node 0 computes the plate alone and compares.
 *
 * It shows weft_device_put_signal() and weft_device_wait_at_least(), by which kernels synchronise, and weft_device_ptr(). On the GPU `host`
 * blocks are threads; cuda_stencil.cu is the same for CUDA.
 *
 * Run:
 *     weft run -n 3 -- ./stencil
 * It prints:
 *     after 200 steps the plates of 3 nodes and of one are equal
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

#define ROWS    16 /* rows of a node */
#define COLUMNS 64
#define STEPS   200

typedef double row[COLUMNS];

/* A node's part of the plate, in its pool. Step s reads plate[s % 2] and writes the other plate. */
struct part {
    /* The first and the last row are border rows of the neighbours; at the edges of the whole plate they never change. */
    row plate[2][ROWS + 2];
    uint64_t from_above, from_below; /* number of border rows that have arrived, one for each step */
};

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "stencil: %s: %s\n", what, weft_error());
        exit(1);
    }
}

static void step(row *to, row *from, int rows)
{
    for (int y = 1; y <= rows; y++)
        for (int x = 1; x < COLUMNS - 1; x++)
            to[y][x] = (from[y - 1][x] + from[y + 1][x] + from[y][x - 1] + from[y][x + 1]) / 4;
}

/* Set the initial state: only the upper edge of the whole plate is hot. `first`: number of the first row in the whole plate. */
static void begin(row *plate, int first, int rows)
{
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < COLUMNS; x++)
            plate[y][x] = first + y == 0 ? 100 + x : 0;
}

static uint64_t row_of(uint64_t part, uint64_t plate, uint64_t y)
{
    return part + (plate * (ROWS + 2) + y) * sizeof(row);
}

struct plate_of_all {
    uint64_t parts[WEFT_MAX_NODES]; /* addresses */
    int rc;                         /* result of this node's kernel */
};

/* The kernel. Before each step, a node waits for its neighbours' border rows, so no neighbour is more than one step ahead. An early border
 * row goes to the plate that this step does not read. */
static void spread(const weft_device *d, void *arg)
{
    struct plate_of_all *all = arg;
    const uint64_t *parts = all->parts;
    uint64_t mine = parts[d->rank];
    struct part *here = weft_device_ptr(d, mine, sizeof *here);
    bool above = d->rank > 0, below = d->rank + 1 < d->size;
    int rc = 0;
    for (uint64_t s = 0; s < STEPS && !rc; s++) {
        uint64_t next = (s + 1) % 2;
        step(here->plate[next], here->plate[s % 2], ROWS);
        weft_device_op up, down; /* when both ops are complete, the rows may change */
        if (above) {
            uint64_t there = parts[d->rank - 1];
            rc = weft_device_put_signal(d, row_of(there, next, ROWS + 1), row_of(mine, next, 1), sizeof(row),
                                        there + offsetof(struct part, from_below), 1, &up);
        }
        if (below && !rc) {
            uint64_t there = parts[d->rank + 1];
            rc = weft_device_put_signal(d, row_of(there, next, 0), row_of(mine, next, ROWS), sizeof(row),
                                        there + offsetof(struct part, from_above), 1, &down);
        }
        if (above && !rc)
            rc = weft_device_wait(d, &up);
        if (below && !rc)
            rc = weft_device_wait(d, &down);
        if (above && !rc)
            rc = weft_device_wait_at_least(d, mine + offsetof(struct part, from_above), s + 1, NULL);
        if (below && !rc)
            rc = weft_device_wait_at_least(d, mine + offsetof(struct part, from_below), s + 1, NULL);
    }
    all->rc = rc;
}

/* Node 0: compute the whole plate, and compare the parts of all nodes with it. */
static bool compare(weft_node *w, const uint64_t *parts)
{
    int rows = (int)weft_size(w) * ROWS;
    row *plate[2] = {calloc((size_t)rows + 2, sizeof(row)), calloc((size_t)rows + 2, sizeof(row))}, got[ROWS];
    if (!plate[0] || !plate[1])
        exit(1);
    begin(plate[0], 0, rows + 2);
    begin(plate[1], 0, rows + 2);
    for (int s = 0; s < STEPS; s++)
        step(plate[(s + 1) % 2], plate[s % 2], rows);
    bool equal = true;
    for (uint32_t node = 0; node < weft_size(w); node++) {
        check(weft_get_blocking(w, got, row_of(parts[node], STEPS % 2, 1), sizeof got), "get");
        equal = equal && memcmp(got, plate[STEPS % 2] + 1 + node * ROWS, sizeof got) == 0;
    }
    free(plate[0]);
    free(plate[1]);
    return equal;
}

int main(void)
{
    weft_node *w;
    weft_gpu *gpu;
    weft_gaddr mine;
    static struct plate_of_all all;
    check(weft_open(&w, NULL), "open");
    check(weft_alloc(w, sizeof(struct part), &mine), "alloc");
    struct part *here = weft_ptr(w, mine, sizeof *here);
    memset(here, 0, sizeof *here);
    for (int i = 0; i < 2; i++)
        begin(here->plate[i], (int)weft_rank(w) * ROWS, ROWS + 2);
    check(weft_exchange(w, &mine, 1, all.parts, NULL, WEFT_TIMEOUT_DEFAULT), "exchange");

    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    check(weft_gpu_run(gpu, spread, 1, &all), "kernel");
    if (all.rc) {
        fprintf(stderr, "stencil: node %u: a call of the kernel ended with %d (weft/device.h lists the errors): has a neighbour died?\n",
                weft_rank(w), all.rc);
        exit(1);
    }
    check(weft_gpu_close(gpu), "GPU");

    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    if (weft_rank(w) == 0)
        printf("after %d steps the plates of %u nodes and of one are %s\n", STEPS, weft_size(w),
               compare(w, all.parts) ? "equal" : "different");
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    check(weft_close(w), "close");
    return 0;
}
