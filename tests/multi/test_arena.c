/* SPDX-License-Identifier: MIT
 *
 * Memory of GPUs in the address space, on the GPU `host`: operations from every node against a shadow, from processors and kernels, the
 * deaths of owners and of nodes whose kernels store. WEFT_TEST_GPU names another GPU: then everything but the kernels is tested.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "arena_test.h"

#define ARENA_BYTES (24u << 20)
#define AREA        (3u << 20) /* bytes of each node in each arena, and in each pool */

/* Whether nodes map each other's arenas. */
static bool maps(weft_node *w)
{
    weft_link_stats stats;
    OK(weft_link_stat(w, (weft_rank(w) + 1) % weft_size(w), &stats, sizeof stats));
    return !strcmp(stats.transport, "shm");
}

static uint64_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static size_t some_length(uint64_t *seed)
{
    static const size_t most[] = {16, 4000, 5000, 70000, 1u << 20, AREA};
    uint64_t r = draw(seed) % 64;
    return 1 + draw(seed) % most[r < 24 ? 0 : r < 40 ? 1 : r < 52 ? 2 : r < 60 ? 3 : r < 63 ? 4 : 5];
}

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(draw(&seed) >> 24);
}

/* The memory of this node: at each node an area of the arena, at the same offset everywhere, and an area of the pool. */
struct mine {
    weft_node *w;
    weft_gpu *g;
    weft_gaddr area[2]; /* 0: in the pool, 1: in the arena; on_node() returns those of other nodes */
    weft_gaddr local;   /* in this node's arena */
    uint8_t *near[3];   /* memory outside the pool, in the pool, and in the arena (the GPU's address) */
    uint8_t *shadow[NODES_MAX][2];
    uint64_t seed;
};

/* Writes bytes to near memory of a kind. */
static void near_write(struct mine *m, unsigned kind, const uint8_t *from, size_t n)
{
    if (kind < 2)
        memcpy(m->near[kind], from, n);
    else
        OK(weft_put_blocking(m->w, m->local, from, n));
}

static void near_read(struct mine *m, unsigned kind, uint8_t *to, size_t n)
{
    if (kind < 2)
        memcpy(to, m->near[kind], n);
    else
        OK(weft_get_blocking(m->w, to, m->local, n));
}

static void one_put(struct mine *m, uint32_t node, unsigned far, unsigned near, uint8_t *bytes)
{
    size_t n = some_length(&m->seed), at = draw(&m->seed) % (AREA - n + 1);
    weft_gaddr to = on_node(m->area[far], node) + at;
    uint64_t how = draw(&m->seed) % 4;
    fill(bytes, n, draw(&m->seed));
    near_write(m, near, bytes, n);
    weft_op op;
    if (how == 0) {
        OK(weft_put(m->w, to, m->near[near], n, NULL));
        OK(weft_flush(m->w, node, WEFT_TIMEOUT_DEFAULT));
    } else if (how == 1) {
        OK(weft_put(m->w, to, m->near[near], n, NULL));
        OK(weft_fence(m->w, node));
        OK(weft_put(m->w, to, m->near[near], n > 8 ? 8 : n, &op));
        OK(weft_wait(m->w, &op, WEFT_TIMEOUT_DEFAULT));
        OK(weft_flush(m->w, node, WEFT_TIMEOUT_DEFAULT));
    } else {
        OK(weft_put(m->w, to, m->near[near], n, &op));
        OK(weft_wait(m->w, &op, WEFT_TIMEOUT_DEFAULT));
    }
    memcpy(m->shadow[node][far] + at, bytes, n);
}

static void one_get(struct mine *m, uint32_t node, unsigned far, unsigned near, uint8_t *bytes)
{
    size_t n = some_length(&m->seed), at = draw(&m->seed) % (AREA - n + 1);
    weft_op op;
    OK(weft_get(m->w, m->near[near], on_node(m->area[far], node) + at, n, &op));
    OK(weft_wait(m->w, &op, WEFT_TIMEOUT_DEFAULT));
    near_read(m, near, bytes, n);
    if (memcmp(bytes, m->shadow[node][far] + at, n)) {
        fprintf(stderr, "node %u: %zu bytes at %zu of node %u, far %u near %u: not what was put\n", weft_rank(m->w), n, at, node, far,
                near);
        _exit(1);
    }
}

static void mine_open(struct mine *m, weft_node *w)
{
    weft_gaddr at;
    *m = (struct mine){.w = w, .seed = 88172645463325252ull + weft_rank(w) * 7919};
    m->area[0] = symmetric_alloc(w, (size_t)AREA * weft_size(w)) + (uint64_t)AREA * weft_rank(w);
    weft_gpu *g = m->g = open_arena(w, ARENA_BYTES);
    OK(weft_gpu_alloc(g, SPACE, (size_t)AREA * weft_size(w), &at)); /* the first allocation is at the same offset on every node */
    m->area[1] = at + (uint64_t)AREA * weft_rank(w);
    OK(weft_gpu_alloc(g, SPACE, AREA, &m->local));
    m->near[0] = malloc(AREA);
    OK(weft_alloc(w, AREA, &at));
    m->near[1] = weft_ptr(w, at, AREA);
    m->near[2] = weft_gpu_ptr(g, m->local, AREA);
    CHECK(m->near[0] && m->near[1] && m->near[2] && !weft_ptr(w, m->local, 1));
    for (uint32_t node = 0; node < weft_size(w); node++)
        for (int far = 0; far < 2; far++)
            CHECK((m->shadow[node][far] = calloc(1, AREA)));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t node = 0; node < weft_size(w); node++)
        OK(weft_put_blocking(w, on_node(m->area[1], node), m->shadow[node][1], AREA));
}

static void mine_close(struct mine *m)
{
    OK(weft_barrier(m->w, WEFT_TIMEOUT_DEFAULT));
    for (uint32_t node = 0; node < weft_size(m->w); node++)
        for (int far = 0; far < 2; far++)
            free(m->shadow[node][far]);
    OK(weft_barrier(m->w, WEFT_TIMEOUT_DEFAULT));
    free(m->near[0]);
}

static void node_shadow(weft_node *w, void *arg)
{
    struct mine m;
    int rounds = *(int *)arg;
    uint8_t *bytes = malloc(AREA);
    mine_open(&m, w);
    for (int i = 0; i < rounds; i++) {
        uint32_t node = (uint32_t)(draw(&m.seed) % weft_size(w));
        unsigned near = (unsigned)(draw(&m.seed) % 3), far = near == 2 ? (unsigned)(draw(&m.seed) % 2) : 1;
        (draw(&m.seed) & 1 ? one_put : one_get)(&m, node, far, near, bytes);
    }
    free(bytes);
    weft_link_stats stats;
    OK(weft_link_stat(w, weft_rank(w), &stats, sizeof stats));
    CHECK(!strcmp(stats.arena_way, "own") && stats.arena_why[0]);
    OK(weft_link_stat(w, (weft_rank(w) + 1) % weft_size(w), &stats, sizeof stats));
    CHECK(!strcmp(stats.arena_way, maps(w) ? "mapped" : !strcmp(stats.transport, "rc") ? "rdma" : "staged") && stats.arena_why[0]);
    mine_close(&m);
}

static int divided(int n)
{
    const char *by = getenv("TEST_DIVIDE");
    n /= by ? atoi(by) : 1;
    return n > 20 ? n : 20;
}

static void test_shadow(void **state)
{
    (void)state;
    int rounds = divided(300);
    assert_int_equal(nodes_failed(2, node_shadow, &rounds), 0);
}

/* All nodes change words of all arenas at the same time: no change is lost, signals arrive after their bytes, and many operations are under
   way at a time. */
static void node_words(weft_node *w, void *arg)
{
    struct mine m;
    int rounds = *(int *)arg;
    mine_open(&m, w);
    uint32_t n = weft_size(w), me = weft_rank(w);
    weft_gaddr words = m.area[1] - (uint64_t)AREA * me; /* the area that belongs to node 0 */
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (int i = 0; i < rounds; i++) {
        weft_gaddr word = on_node(words, (uint32_t)i % n);
        uint64_t old, seen;
        weft_op op;
        OK(weft_fetch_add_blocking(w, word + 8, 0, &seen));
        while (true) {
            OK(weft_compare_swap_blocking(w, word + 8, seen, seen + 1, &old));
            if (old == seen)
                break;
            seen = old;
        }
        OK(weft_fetch_add(w, word, 3, &old, &op));
        OK(weft_put_signal(w, 0, NULL, 0, word + 16, 5, NULL));
        OK(weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT));
    }
    for (uint32_t node = 0; node < n; node++)
        OK(weft_flush(w, node, WEFT_TIMEOUT_DEFAULT));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    uint64_t got[3], sum[3] = {0};
    for (uint32_t node = 0; node < n; node++) {
        OK(weft_get_blocking(w, got, on_node(words, node), sizeof got));
        for (int i = 0; i < 3; i++)
            sum[i] += got[i];
    }
    uint64_t all = (uint64_t)n * (uint64_t)rounds;
    CHECK(sum[0] == 3 * all && sum[1] == all && sum[2] == 5 * all);

    /* Puts with signal to the next node, with bytes and signal in every combination of pool and arena. */
    uint32_t next = (me + 1) % n, before = (me + n - 1) % n;
    for (int kind = 0; kind < 4; kind++) {
        const size_t bytes = 200000;
        weft_gaddr to = on_node(m.area[kind & 1], next), signal = on_node(m.area[kind >> 1], next) + AREA - 8;
        weft_gaddr mine_to =
            (weft_gaddr_make(me, 0, 0) | (m.area[kind & 1] & ((1ull << 48) - 1))) + (uint64_t)AREA * before - (uint64_t)AREA * me;
        weft_gaddr mine_signal = (weft_gaddr_make(me, 0, 0) | (m.area[kind >> 1] & ((1ull << 48) - 1))) + (uint64_t)AREA * before -
                                 (uint64_t)AREA * me + AREA - 8;
        uint64_t seen = 0;
        OK(weft_put_blocking(w, signal, &seen, 8));
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
        fill(m.near[0], bytes, (uint64_t)kind + 1);
        near_write(&m, 2, m.near[0], bytes);
        OK(weft_put_signal(w, to, m.near[kind == 3 ? 0 : 2], bytes, signal, 1, NULL));
        if (kind >> 1 == 0)
            OK(weft_wait_until(w, mine_signal, WEFT_EQ, 1, &seen, patience_ns(60)));
        for (time_t until = time(NULL) + 60; seen != 1 && time(NULL) < until;)
            OK(weft_get_blocking(w, &seen, mine_signal, 8));
        CHECK(seen == 1);
        OK(weft_get_blocking(w, m.near[1], mine_to, bytes));
        OK(weft_flush(w, next, WEFT_TIMEOUT_DEFAULT));
        CHECK(!memcmp(m.near[0], m.near[1], bytes));
        OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    }

    /* More operations than a node accepts at a time. */
    enum { MANY = 3000 };
    for (uint32_t i = 0; i < MANY; i++) {
        memcpy(m.near[0] + 8 * i, &(uint64_t){i + me}, 8);
        OK(weft_put(w, on_node(m.area[1], next) + 8 * i, m.near[0] + 8 * i, 8, NULL));
    }
    OK(weft_flush(w, next, WEFT_TIMEOUT_DEFAULT));
    OK(weft_get_blocking(w, m.near[1], on_node(m.area[1], next), 8 * MANY));
    CHECK(!memcmp(m.near[0], m.near[1], 8 * MANY));
    mine_close(&m);
}

static void test_words(void **state)
{
    (void)state;
    int rounds = divided(150);
    assert_int_equal(nodes_failed(3, node_words, &rounds), 0);
}

/* --- kernels --- */

struct kernel_job {
    weft_gaddr at, local;
    bool maps;
};

#define KERNEL(call)                                                                           \
    do {                                                                                       \
        int kernel_rc_ = (call);                                                               \
        if (kernel_rc_ != 0) {                                                                 \
            fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, kernel_rc_); \
            _exit(1);                                                                          \
        }                                                                                      \
    } while (0)

static void in_kernel(const weft_device *d, void *arg)
{
    const struct kernel_job *j = arg;
    uint64_t *own = weft_device_ptr(d, j->local, 16384), old;
    const uint64_t *others = weft_device_ptr(d, on_node(j->at, 1 - d->rank) + 16384 * d->rank, 16384);
    if (!own || weft_device_ptr(d, j->local, 1ull << 40) || !others != !j->maps) {
        fprintf(stderr, "a kernel does not find its own arena, or the other's\n");
        _exit(1);
    }
    for (uint32_t round = 0; round < 20; round++)
        for (uint32_t node = 0; node < d->size; node++) {
            weft_gaddr there = on_node(j->at, node) + 16384 * d->rank;
            weft_device_op op;
            for (uint32_t i = 0; i < 1024; i++)
                own[i] = (uint64_t)round << 32 | node << 16 | i;
            KERNEL(weft_device_put(d, there, j->local, 8192, NULL));
            KERNEL(weft_device_fence(d, node));
            KERNEL(weft_device_put_value(d, there + 8, round, NULL));
            KERNEL(weft_device_flush(d, node));
            if (node != d->rank && others && (others[0] != own[0] || others[1] != round || others[1023] != own[1023]))
                _exit(1);
            KERNEL(weft_device_get(d, j->local + 8192, there, 8192, &op));
            KERNEL(weft_device_wait(d, &op));
            own[1] = round;
            if (memcmp(own, own + 1024, 8192))
                _exit(1);
            KERNEL(weft_device_put_signal(d, there, j->local, 16, there + 8192, 2, NULL));
            KERNEL(weft_device_flush(d, node));
            KERNEL(weft_device_fetch_add(d, there + 8192, 1, &old));
            if (old != 3 * round + 2)
                _exit(1);
        }
    if (weft_device_fetch_add(d, weft_gaddr_make(d->rank, 9, 1 << 20), 1, &old) != -EFAULT)
        _exit(1);
}

static void node_kernels(weft_node *w, void *arg)
{
    (void)arg;
    struct kernel_job j = {.maps = maps(w)};
    weft_gpu *g = open_arena(w, 4 << 20);
    OK(weft_gpu_alloc(g, SPACE, (size_t)16384 * weft_size(w), &j.at));
    OK(weft_gpu_alloc(g, SPACE, 16384, &j.local));
    uint8_t *zeros = calloc(weft_size(w), 16384);
    OK(weft_put_blocking(w, j.at, zeros, (size_t)16384 * weft_size(w)));
    free(zeros);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_run(g, in_kernel, 1, &j));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_close(g));
}

static void test_kernels(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, node_kernels, NULL), 0);
}

/* --- memory of other processes --- */

static void way_is(weft_node *w, uint32_t node, const char *way, const char *why)
{
    weft_link_stats stats;
    OK(weft_link_stat(w, node, &stats, sizeof stats));
    if (strcmp(stats.arena_way, way) || !strstr(stats.arena_why, why)) {
        fprintf(stderr, "node %u: to node %u: %s (%s), not %s (%s)\n", weft_rank(w), node, stats.arena_way, stats.arena_why, way, why);
        _exit(1);
    }
}

static void is_there(weft_node *w, weft_gaddr at, uint64_t value)
{
    uint64_t got = 0;
    OK(weft_put_blocking(w, at, &value, 8));
    OK(weft_get_blocking(w, &got, at, 8));
    CHECK(got == value);
}

/* Node 0 owns the arena. Node 1 opens its GPU before that, node 2 later. Node 0 closes its arena and opens another. */
static void node_late(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t me = weft_rank(w), space;
    bool shm = maps(w);
    weft_gpu *g = NULL;
    weft_gaddr at = weft_gaddr_make(0, SPACE, 65536) + 8 * me;
    const char *way = shm ? "mapped" : !strcmp(stats(w, (me + 1) % 3).transport, "rc") ? "rdma" : "staged";
    const weft_gpu_config config = {.bytes = sizeof config, .name = gpu_name(), .rings = 1, .slots = 64};
    if (me == 1)
        OK(weft_gpu_open(w, &config, &g));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 0)
        g = open_arena(w, 1 << 20);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 2) {
        is_there(w, at, 4);
        way_is(w, 0, shm ? "staged" : way, shm ? "no open GPU" : "");
        OK(weft_gpu_open(w, &config, &g));
    }
    is_there(w, at, me + 5);
    if (me)
        way_is(w, 0, way, "");
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    volatile uint64_t *word = weft_gpu_ptr(g, at, 8);
    CHECK(!word == (me && !shm) && (!word || !gpu_is_host() || *word == me + 5));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 0)
        OK(weft_gpu_close(g));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    CHECK(weft_put(w, at, &(uint64_t){1}, 8, NULL) == -EFAULT);
    CHECK(!me || !weft_gpu_ptr(g, at, 8));
    if (me && word && gpu_is_host())
        *word = 9; /* a late kernel may still store here */
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 0) {
        g = open_arena(w, 1 << 20);
        OK(weft_gpu_arena(g, 5 << 20, &space));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    uint64_t got = 1;
    OK(weft_get_blocking(w, &got, at, 8));
    CHECK(got == 0); /* the bytes of the new arena, not of the old one */
    is_there(w, at, me + 5);
    is_there(w, weft_gaddr_make(0, 2, 5 << 20) + 8 * me, me + 6);
    if (me)
        way_is(w, 0, way, "");
    if (me == 1) { /* without a GPU of its own, node 1 asks the owner */
        OK(weft_gpu_close(g));
        is_there(w, at, 77);
        way_is(w, 0, shm ? "staged" : way, "");
        OK(weft_gpu_open(w, &config, &g));
        CHECK(!weft_gpu_ptr(g, at, 8) == !shm);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_late(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(3, node_late, NULL), 0);
}

/* --- invalid arguments --- */

static void node_wrong(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t space, next = (weft_rank(w) + 1) % weft_size(w);
    weft_gaddr a, b;
    uint64_t value = 0;
    weft_op op;
    weft_gpu *g = open_arena(w, 1 << 20);
    CHECK(weft_gpu_arena(g, 0, &space) == -EINVAL);
    CHECK(weft_gpu_arena(g, (size_t)1 << 42, &space) == -ENOMEM && strstr(weft_error(), "does not fit"));
    CHECK(weft_gpu_alloc(g, 7, 8, &a) == -EFAULT && weft_gpu_alloc(g, SPACE, 0, &a) == -EINVAL);
    CHECK(weft_gpu_alloc(g, SPACE, 2 << 20, &a) == -ENOMEM && strstr(weft_error(), "in the arena in space"));
    OK(weft_gpu_alloc(g, SPACE, 1 << 20, &a));
    CHECK(weft_gpu_alloc(g, SPACE, 65536, &b) == -ENOMEM);
    OK(weft_free(w, a));
    CHECK(weft_free(w, a) == -EALREADY && weft_free(w, weft_gaddr_make(weft_rank(w), 9, 1 << 16)) == -EFAULT);
    for (int i = 0; i < 1000; i++) {
        OK(weft_gpu_alloc(g, SPACE, 100, &a));
        OK(weft_gpu_alloc(g, SPACE, 40000, &b));
        OK(weft_free(w, a));
        OK(weft_free(w, b));
    }
    CHECK(weft_put(w, weft_gaddr_make(weft_rank(w), 9, 1 << 16), &value, 8, NULL) == -EFAULT);
    CHECK(weft_put(w, weft_gaddr_make(77, 1, 1 << 16), &value, 8, NULL) == -EFAULT);
    CHECK(weft_put(w, weft_gaddr_make(weft_rank(w), 1, 8), &value, 8, NULL) == -EFAULT);
    CHECK(weft_get(w, &value, weft_gaddr_make(weft_rank(w), 1, 8 << 20), 8, NULL) == -EFAULT);
    CHECK(weft_fetch_add(w, weft_gaddr_make(weft_rank(w), 1, (1 << 16) + 4), 1, NULL, NULL) == -EINVAL);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    CHECK(weft_put(w, weft_gaddr_make(next, 9, 1 << 16), &value, 8, &op) == -EFAULT && strstr(weft_error(), "knows no arena of node"));
    CHECK(weft_put(w, weft_gaddr_make(next, 1, 1 << 24), &value, 8, NULL) == -EFAULT &&
          strstr(weft_error(), "outside the arena in space 1"));
    CHECK(weft_fetch_add(w, weft_gaddr_make(next, 1, 8), 1, NULL, NULL) == -EFAULT);
    OK(weft_flush(w, next, WEFT_TIMEOUT_DEFAULT));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (int i = 2; i < 16; i++)
        OK(weft_gpu_arena(g, 4096, &space));
    CHECK(weft_gpu_arena(g, 4096, &space) == -ENOSPC);
    OK(weft_gpu_close(g));
    CHECK(weft_put(w, weft_gaddr_make(weft_rank(w), 1, 1 << 16), &value, 8, NULL) == -EFAULT);
}

static void test_wrong(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, node_wrong, NULL), 0);
}

/* The owner is killed while others use its arena: every operation ends, and flush reports the death. */
static void node_death(weft_node *w, void *arg)
{
    (void)arg;
    struct mine m;
    mine_open(&m, w);
    uint8_t *theirs = weft_gpu_ptr(m.g, on_node(m.area[1], 1), AREA);
    CHECK(!theirs == !maps(w) || weft_rank(w) == 1);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 1) {
        usleep(100000);
        kill(getpid(), SIGKILL);
    }
    int rc = 0;
    for (time_t until = time(NULL) + 60; rc == 0 && time(NULL) < until;) {
        weft_op ops[3];
        weft_gaddr there = on_node(m.area[1], 1);
        int started = 0;
        rc = weft_put(w, there, m.near[2], AREA, &ops[0]);
        started += rc == 0;
        rc = rc ? rc : weft_get(w, m.near[0], there, 100, &ops[1]);
        started += rc == 0;
        rc = rc ? rc : weft_fetch_add(w, there, 1, NULL, &ops[2]);
        started += rc == 0;
        for (int i = 0; i < started; i++) {
            int one = weft_wait(w, &ops[i], WEFT_TIMEOUT_DEFAULT);
            CHECK(one == 0 || one == -ECONNRESET);
            rc = rc ? rc : one;
        }
    }
    CHECK(rc == -ECONNRESET && weft_flush(w, 1, WEFT_TIMEOUT_DEFAULT) == -ECONNRESET);
    uint64_t old;
    if (theirs && gpu_is_host())
        memset((void *)(uintptr_t)theirs, 1, AREA); /* acts like a kernel that has not noticed the death */
    OK(weft_fetch_add_blocking(w, on_node(m.area[1], weft_rank(w)), 1, &old));
    OK(weft_put_blocking(w, on_node(m.area[1], weft_rank(w)), m.near[2], AREA));
    _exit(0);
}

static void test_death(void **state)
{
    (void)state;
    int status[NODES_MAX];
    nodes_run(3, node_death, NULL, (const char *const[]){"WEFT_LOG=error", NULL}, status);
    assert_true(WIFSIGNALED(status[1]));
    assert_int_equal(status[0], 0);
    assert_int_equal(status[2], 0);
}

/* --- a node is killed while its kernel stores into another node's arena --- */

#define STORED 512u /* words */

struct stores {
    weft_gaddr there; /* at node 0: STORED words of the kernel, then some of the nodes that stay alive */
    bool maps;
    struct progress *shared;
};

struct progress {
    _Atomic uint32_t met, stored, finished; /* nodes have met; the kernel has stored for a while; node 2 has finished */
    _Atomic pid_t pid;                      /* of node 1 */
};

static void store_for_ever(const weft_device *d, void *arg)
{
    const struct stores *j = arg;
    volatile uint64_t *p = weft_device_ptr(d, j->there, 8 * STORED);
    CHECK(!p == !j->maps);
    for (uint64_t i = 0;; i++) {
        if (p)
            p[i % STORED] = i;
        else
            KERNEL(weft_device_put_value(d, j->there + 8 * (i % STORED), i, NULL));
        if (i == 10 * STORED)
            atomic_store(&j->shared->stored, 1);
    }
}

/* Node 0 owns the arena. Its memory stays usable for it and for node 2: the words have what the kernel stores there, and no others have
 * changed. */
static void node_stores(weft_node *w, void *arg)
{
    struct stores j = {.maps = maps(w), .shared = arg};
    uint32_t me = weft_rank(w);
    static uint64_t words[STORED];
    uint64_t old = 0;
    weft_gpu *g = open_arena(w, 1 << 20);
    OK(weft_gpu_alloc(g, SPACE, 16 * STORED, &j.there));
    j.there = on_node(j.there, 0);
    weft_gaddr others = j.there + 8 * STORED + 64 * me;
    for (uint32_t half = 0; me == 0 && half < 2; half++)
        OK(weft_put_blocking(w, j.there + half * sizeof words, words, sizeof words));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 1)
        atomic_store(&j.shared->pid, getpid());
    meet(&j.shared->met, 3);
    if (me == 1)
        OK(weft_gpu_run(g, store_for_ever, 1, &j)); /* until node 2 kills this node */
    wait_for(&j.shared->stored, 1);
    if (me == 2)
        kill(j.shared->pid, SIGKILL);
    while (fab_alive(w, 1))
        is_there(w, others, ++old);
    is_there(w, others, 77);
    OK(weft_fetch_add_blocking(w, others, 1, &old));
    CHECK(old == 77);
    OK(weft_get_blocking(w, words, j.there, sizeof words));
    for (uint32_t i = 0; i < STORED; i++)
        CHECK(words[i] % STORED == i && words[i] > 8 * STORED);
    OK(weft_get_blocking(w, words, j.there + 8 * STORED, sizeof words));
    for (uint32_t i = 0; i < STORED; i++)
        CHECK(words[i] == 0 || i % 8 == 0);
    if (me == 2)
        atomic_store(&j.shared->finished, 1);
    wait_for(&j.shared->finished, 1);
    OK(weft_gpu_close(g));
}

static void test_stores(void **state)
{
    (void)state;
    int status[NODES_MAX];
    struct progress *shared = shared_words(sizeof *shared);
    nodes_run(3, node_stores, shared, (const char *const[]){"WEFT_LOG=error", NULL}, status);
    assert_true(WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[2], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong), cmocka_unit_test(test_shadow), cmocka_unit_test(test_words),
        cmocka_unit_test(test_late),  cmocka_unit_test(test_death),
    };
    const struct CMUnitTest kernels[] = {cmocka_unit_test(test_kernels), cmocka_unit_test(test_stores)};
    if (gpu_is_host() && cmocka_run_group_tests_name("kernels and arenas", kernels, NULL, NULL))
        return 1;
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
