/* SPDX-License-Identifier: MIT
 *
 * Puts and gets of a processor to and from the other node's arena, where their data is staged, and between the pools of the two nodes, which
 * is the link's limit. The first argument is the GPU, "host" or "cuda:0"; the others are tests: staged_put, staged_get, pool_put, pool_get.
 */
#include <stdbool.h>

#include "spec.h"
#include "weft.h"
#include "weft/gpu.h"

#define MOST (64u << 20) /* the most bytes of a test */

#define OK(call)                                                                                                           \
    do {                                                                                                                   \
        int rc_ = (call);                                                                                                  \
        if (rc_ < 0) {                                                                                                     \
            fprintf(stderr, "bench_gpu_staged: %s: %s\n", #call, weft_error());                                            \
            exit(1);                                                                                                       \
        }                                                                                                                  \
    } while (0)

/* Gigabytes a second. */
static double measure(weft_node *w, const struct spec *s, void *near, weft_gaddr far)
{
    bool get = strstr(s->test, "_get") != NULL;
    uint64_t start = 0;
    for (uint64_t i = 0; i < s->warmup + s->iterations; i++) {
        if (i == s->warmup)
            start = spec_now_ns();
        weft_op op;
        OK(get ? weft_get(w, near, far, s->bytes, &op) : weft_put(w, far, near, s->bytes, &op));
        OK(weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT));
    }
    return spec_gbs(spec_now_ns() - start, s->bytes, s->iterations);
}

int main(int argc, char **argv)
{
    weft_node *w;
    weft_gpu *g;
    uint32_t space;
    weft_gaddr mine[2], all[4];
    if (argc < 3) {
        fprintf(stderr, "usage: bench_gpu_staged GPU TEST:BYTES:ITERATIONS:WARMUP..., in two nodes\n");
        return 2;
    }
    OK(weft_open(&w, NULL));
    if (weft_size(w) != 2) {
        fprintf(stderr, "bench_gpu_staged: needs two nodes\n");
        return 2;
    }
    const weft_gpu_config config = {.bytes = sizeof config, .name = argv[1]};
    OK(weft_gpu_open(w, &config, &g));
    OK(weft_gpu_arena(g, MOST, &space));
    OK(weft_gpu_alloc(g, space, MOST, &mine[0]));
    OK(weft_alloc_aligned(w, MOST, 4096, &mine[1]));
    memset(weft_ptr(w, mine[1], MOST), 1, MOST);
    OK(weft_exchange(w, mine, 2, all, NULL, WEFT_TIMEOUT_DEFAULT));
    for (int i = 2; i < argc; i++) {
        struct spec s;
        if (spec_parse(&s, argv[i]) || s.bytes > MOST)
            return 2;
        bool staged = strncmp(s.test, "staged_", 7) == 0;
        if (weft_rank(w) == 0)
            spec_value(&s, measure(w, &s, weft_ptr(w, mine[1], MOST), all[staged ? 2 : 3]));
    }
    while (weft_barrier(w, WEFT_TIMEOUT_DEFAULT) < 0)
        ; /* node 1 waits until node 0 has measured everything */
    OK(weft_gpu_close(g));
    return weft_close(w);
}
