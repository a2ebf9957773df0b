/* SPDX-License-Identifier: MIT
 *
 * kernels: GPU kernels on all nodes pass a number around in a ring, and each adds 1 to it.
 *
 * It shows how to open a GPU (weft_gpu_open()), how to run a kernel on the GPU `host`, whose blocks are threads (weft_gpu_run()), and the
 * functions that kernels call (weft/device.h). A kernel for CUDA calls the same functions (cuda_put.cu).
 *
 * Run:
 *     weft run -n 3 -- ./kernels
 * It prints:
 *     the number has been added to 300 times
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

#define ROUNDS 100

/* In each node's pool: the number, and a signal that counts how many times it has arrived. */
struct place {
    uint64_t number, arrivals;
};

static void check(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "kernels: %s: %s\n", what, weft_error());
        exit(1);
    }
}

struct ring {
    uint64_t places[WEFT_MAX_NODES]; /* addresses */
    int rc;                          /* result of this node's kernel */
};

static void pass_on(const weft_device *d, void *arg)
{
    struct ring *ring = arg;
    uint64_t mine = ring->places[d->rank], next = ring->places[(d->rank + 1) % d->size];
    struct place *here = weft_device_ptr(d, mine, sizeof *here);
    int rc = 0;
    for (uint64_t round = 1; round <= ROUNDS && !rc; round++) {
        if (d->rank != 0 || round != 1) /* node 0 begins */
            rc = weft_device_wait_at_least(d, mine + 8, d->rank == 0 ? round - 1 : round, NULL);
        if (rc)
            break;
        here->number++;
        weft_device_op op; /* the kernel must not change `here` before this op is complete */
        rc = weft_device_put_signal(d, next, mine, 8, next + 8, 1, &op);
        if (!rc)
            rc = weft_device_wait(d, &op);
    }
    ring->rc = rc ? rc : weft_device_flush(d, (d->rank + 1) % d->size);
}

int main(void)
{
    weft_node *w;
    weft_gpu *gpu;
    weft_gaddr mine;
    static struct ring ring;
    uint64_t number;
    check(weft_open(&w, NULL), "open");
    check(weft_alloc(w, sizeof(struct place), &mine), "alloc");
    memset(weft_ptr(w, mine, sizeof(struct place)), 0, sizeof(struct place));
    check(weft_exchange(w, &mine, 1, ring.places, NULL, WEFT_TIMEOUT_DEFAULT), "exchange");

    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    check(weft_gpu_open(w, &config, &gpu), "GPU");
    check(weft_gpu_run(gpu, pass_on, 1, &ring), "kernel");
    if (ring.rc) {
        fprintf(stderr, "kernels: node %u: a call of the kernel ended with %d (weft/device.h lists the errors)\n", weft_rank(w), ring.rc);
        exit(1);
    }
    check(weft_gpu_close(gpu), "GPU");

    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    if (weft_rank(w) == 0) {
        check(weft_get_blocking(w, &number, mine, 8), "get");
        printf("the number has been added to %llu times\n", (unsigned long long)number);
    }
    check(weft_barrier(w, WEFT_TIMEOUT_DEFAULT), "barrier");
    check(weft_close(w), "close");
    return 0;
}
