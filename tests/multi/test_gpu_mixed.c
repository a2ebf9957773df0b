/* SPDX-License-Identifier: MIT
 *
 * Mixed operations of processors and kernels of four nodes, on the pools of all nodes and on the arenas of the two nodes that have a GPU,
 * all compared with a shadow copy. Every caller has bytes of its own at each node, and all callers share words to which they only add. The
 * operands are random. The argument is the number of operations.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cluster_test.h"

#define NODES   4u
#define GPUS    2u /* of the first nodes */
#define BLOCKS  2u
#define CALLERS (1 + BLOCKS) /* callers of a node: its processor, and its blocks */
#define AREA    6000u        /* bytes of one caller in each place */
#define PLACES  (NODES + GPUS)
#define WORDS   4096u /* bytes at the start of each place, before the callers' bytes; all callers add to the first word */

struct caller {
    weft_node *w;
    const weft_device *d; /* NULL: a processor */
    weft_gaddr place[PLACES];
    weft_gaddr near; /* the local buffer, in this node's pool */
    uint8_t *near_at;
    uint32_t rounds;
    uint64_t seed, added[PLACES];
    uint8_t shadow[PLACES][AREA];
};

static uint64_t next(struct caller *c)
{
    return random_next(&c->seed);
}

#define MIXED(call)                                                                           \
    do {                                                                                      \
        int mixed_rc_ = (call);                                                               \
        if (mixed_rc_ != 0) {                                                                 \
            fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, mixed_rc_); \
            _exit(1);                                                                         \
        }                                                                                     \
    } while (0)

static void by_kernel(struct caller *c, weft_gaddr at, weft_gaddr word, size_t n, unsigned what)
{
    const weft_device *d = c->d;
    uint32_t node = weft_gaddr_node(at);
    uint64_t old;
    weft_device_op op;
    switch (what) {
    case 0: MIXED(weft_device_put(d, at, c->near, n, &op)); break;
    case 1: MIXED(weft_device_get(d, c->near, at, n, &op)); break;
    case 2: MIXED(weft_device_put_signal(d, at, c->near, n, word, 1, NULL)); break;
    default: MIXED(weft_device_fetch_add(d, word, 1, &old)); return;
    }
    MIXED(what == 2 ? weft_device_flush(d, node) : weft_device_wait(d, &op));
}

static void by_processor(struct caller *c, weft_gaddr at, weft_gaddr word, size_t n, unsigned what)
{
    uint64_t old;
    switch (what) {
    case 0: MIXED(weft_put_blocking(c->w, at, c->near_at, n)); break;
    case 1: MIXED(weft_get_blocking(c->w, c->near_at, at, n)); break;
    case 2:
        MIXED(weft_put_signal(c->w, at, c->near_at, n, word, 1, NULL));
        MIXED(weft_flush(c->w, weft_gaddr_node(at), WEFT_TIMEOUT_DEFAULT));
        break;
    default: MIXED(weft_fetch_add_blocking(c->w, word, 1, &old));
    }
}

static void one(struct caller *c, uint32_t number)
{
    uint32_t p = (uint32_t)(next(c) % PLACES);
    unsigned what = (unsigned)(next(c) % 4);
    size_t n = 1 + next(c) % (next(c) % 8 ? 64 : AREA), at = next(c) % (AREA - n + 1);
    weft_gaddr far = c->place[p] + WORDS + (uint64_t)number * AREA + at, word = c->place[p];
    if (what == 1)
        memset(c->near_at, 0xee, n);
    for (size_t i = 0; what != 1 && what < 3 && i < n; i++)
        c->near_at[i] = c->shadow[p][at + i] = (uint8_t)next(c);
    (c->d ? by_kernel : by_processor)(c, far, word, n, what);
    c->added[p] += what >= 2;
    if (what == 1 && memcmp(c->near_at, c->shadow[p] + at, n)) {
        fprintf(stderr, "caller %u: %zu bytes at %zu of place %u are not what was put\n", number, n, at, p);
        _exit(1);
    }
}

struct callers {
    uint32_t first; /* of this node, of all */
    struct caller *c;
};

static void kernel(const weft_device *d, void *arg)
{
    struct callers *all = arg;
    struct caller *c = &all->c[1 + d->block];
    c->d = d;
    for (uint32_t i = 0; i < c->rounds; i++)
        one(c, all->first + 1 + d->block);
}

static void *processor(void *arg)
{
    struct callers *all = arg;
    for (uint32_t i = 0; i < all->c[0].rounds; i++)
        one(&all->c[0], all->first);
    return NULL;
}

/* Allocates the places: first in pools, then in arenas, each at the same offset everywhere. */
static void lay_out(weft_node *w, weft_gpu *g, weft_gaddr place[PLACES])
{
    const size_t bytes = WORDS + (size_t)NODES * CALLERS * AREA;
    weft_gaddr pool = symmetric_alloc(w, bytes), arena = weft_gaddr_make(0, 1, 1 << 16), got;
    uint32_t space;
    if (g) {
        OK(weft_gpu_arena(g, bytes, &space));
        OK(weft_gpu_alloc(g, space, bytes, &got));
        CHECK(got == on_node(arena, weft_rank(w)));
    }
    for (uint32_t p = 0; p < PLACES; p++)
        place[p] = p < NODES ? on_node(pool, p) : on_node(arena, p - NODES);
}

static void node_mixed(weft_node *w, void *arg)
{
    uint32_t me = weft_rank(w);
    weft_gpu *g = NULL;
    weft_gpu_config config = {.bytes = sizeof config, .name = "host", .rings = 2, .slots = 64};
    struct callers all = {.first = me * CALLERS, .c = calloc(CALLERS, sizeof(struct caller))};
    weft_gaddr place[PLACES], sums = symmetric_alloc(w, sizeof(uint64_t) * PLACES);
    pthread_t thread;
    if (me < GPUS)
        OK(weft_gpu_open(w, &config, &g));
    lay_out(w, g, place);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t i = 0; i < CALLERS; i++) {
        struct caller *c = &all.c[i];
        memcpy(c->place, place, sizeof place);
        c->w = w;
        c->seed = all.first + i + 1;
        c->rounds = *(uint32_t *)arg / (NODES + GPUS * BLOCKS);
        OK(weft_alloc(w, AREA, &c->near));
        c->near_at = weft_ptr(w, c->near, AREA);
    }
    CHECK(pthread_create(&thread, NULL, processor, &all) == 0);
    if (g)
        OK(weft_gpu_run(g, kernel, BLOCKS, &all));
    pthread_join(thread, NULL);
    for (uint32_t i = 0; i < CALLERS; i++)
        for (uint32_t p = 0; p < PLACES; p++)
            OK(weft_fetch_add_blocking(w, on_node(sums, 0) + 8 * p, all.c[i].added[p], NULL));
    weft_link_stats way;
    OK(weft_link_stat(w, me == 0 ? 1 : 0, &way, sizeof way));
    const char *across = !strcmp(way.transport, "rc") ? "rdma" : "staged";
    CHECK(!strcmp(way.arena_way, me < GPUS && !strcmp(way.transport, "shm") ? "mapped" : across));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t p = 0; p < PLACES; p++) {
        uint64_t is, sum;
        OK(weft_get_blocking(w, &is, place[p], 8));
        OK(weft_get_blocking(w, &sum, on_node(sums, 0) + 8 * p, 8));
        CHECK(is == sum);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    free(all.c);
}

static uint32_t operations;

static void test_mixed(void **state)
{
    (void)state;
    uint32_t n = repeats(operations);
    assert_int_equal(nodes_failed(NODES, node_mixed, &n), 0);
}

int main(int argc, char **argv)
{
    operations = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 20000;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mixed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
