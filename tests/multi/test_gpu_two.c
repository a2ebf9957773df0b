/* SPDX-License-Identifier: MIT
 *
 * Several GPUs of one node: which of them reach which arenas, and copies between arenas of two GPUs. With `host`, opened twice, kernels
 * test this. With three GPUs of a CUDA driver for tests (WEFT_TEST_GPU=cuda), copies test it; the third of these GPUs is not connected to
 * the other two.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cluster_test.h"
#include "gpu/arena.h"

#define BYTES 300000u

static bool cuda(void)
{
    const char *name = getenv("WEFT_TEST_GPU");
    return name && !strcmp(name, "cuda");
}

static weft_gpu *open_gpu(weft_node *w, int i)
{
    char name[16];
    weft_gpu *g;
    snprintf(name, sizeof name, cuda() ? "cuda:%d" : "host", i);
    weft_gpu_config config = {.bytes = sizeof config, .name = name, .rings = 1, .slots = 64};
    OK(weft_gpu_open(w, &config, &g));
    return g;
}

static weft_gaddr open_arena(weft_gpu *g, uint32_t space)
{
    weft_gaddr at;
    uint32_t made;
    OK(weft_gpu_arena(g, 4 * BYTES, &made));
    CHECK(made == space);
    OK(weft_gpu_alloc(g, made, BYTES, &at));
    return at;
}

/* Puts from an arena into another one and gets it back, by local pointers into arenas. */
static void copy_between(weft_node *w, weft_gpu *of_near, weft_gaddr near, weft_gaddr far, uint64_t seed)
{
    static uint8_t bytes[BYTES], back[BYTES];
    for (size_t i = 0; i < BYTES; i += 4) {
        uint32_t r = (uint32_t)random_next(&seed);
        memcpy(bytes + i, &r, 4);
    }
    OK(weft_put_blocking(w, near, bytes, BYTES));
    OK(weft_put_blocking(w, far, weft_gpu_ptr(of_near, near, BYTES), BYTES));
    memset(back, 0, sizeof back);
    OK(weft_put_blocking(w, near, back, BYTES));
    OK(weft_get_blocking(w, back, far, BYTES));
    CHECK(!memcmp(bytes, back, BYTES));
    OK(weft_get_blocking(w, weft_gpu_ptr(of_near, near, BYTES), far, BYTES));
    OK(weft_get_blocking(w, back, near, BYTES));
    CHECK(!memcmp(bytes, back, BYTES));
    OK(weft_put_blocking(w, far, weft_gpu_ptr(of_near, near, 100), 100)); /* as much as a message carries */
}

struct seen {
    weft_gaddr at;
    uint64_t add;
    bool there;
};

static void look(const weft_device *d, void *arg)
{
    struct seen *s = arg;
    uint64_t *p = weft_device_ptr(d, s->at, BYTES);
    s->there = p;
    if (p)
        *p += s->add;
}

/* Check which pointer kernels of the GPU, and the program, get for this address. */
static void reaches(weft_gpu *g, weft_gaddr at, bool is)
{
    struct seen s = {.at = at, .add = 3};
    CHECK(!weft_gpu_ptr(g, at, BYTES) == !is);
    if (cuda())
        return;
    OK(weft_gpu_run(g, look, 1, &s));
    CHECK(s.there == is);
}

/* Arenas of one node's GPUs. */
static void node_own(weft_node *w, void *arg)
{
    (void)arg;
    weft_gpu *g[3] = {open_gpu(w, 0)};
    weft_gaddr at[3] = {open_arena(g[0], 1)};
    g[1] = open_gpu(w, 1); /* finds the arena that exists already */
    g[2] = open_gpu(w, 2);
    at[1] = open_arena(g[1], 2); /* becomes known to the GPUs that are open */
    at[2] = open_arena(g[2], 3);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            reaches(g[i], at[k], !cuda() || i == k || (i < 2 && k < 2));
            if (i != k)
                copy_between(w, g[i], at[i], at[k], (uint64_t)(3 * i + k + 1));
        }
    OK(weft_gpu_close(g[0]));
    CHECK(!weft_gpu_ptr(g[1], at[0], 8) && weft_put(w, at[0], &(uint64_t){1}, 8, NULL) == -EFAULT);
    reaches(g[1], at[1], true);
    copy_between(w, g[1], at[1], at[2], 77);
    g[0] = open_gpu(w, 0);
    reaches(g[0], at[1], true);
    reaches(g[0], at[2], !cuda());
    OK(weft_gpu_close(g[1]));
    CHECK(!weft_gpu_ptr(g[0], at[1], 8));
    at[1] = open_arena(g[0], 1);
    copy_between(w, g[2], at[2], at[1], 78);
}

/* Arenas of the other node's GPU 0: each GPU that is connected to it reaches them, also when the GPU that has mapped them is closed. */
static void node_others(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t peer = 1 - weft_rank(w);
    weft_gpu *g[3] = {open_gpu(w, 0), open_gpu(w, 1), open_gpu(w, 2)};
    weft_gaddr own = open_arena(g[0], 1), third = open_arena(g[2], 2), theirs = on_node(own, peer);
    static uint64_t words[BYTES / 8];
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    for (int i = 0; i < 3; i++)
        reaches(g[i], theirs, !cuda() || i < 2);
    copy_between(w, g[0], own + BYTES, theirs, 5 + peer);
    copy_between(w, g[2], third, theirs, 6 + peer);
    CHECK(!strcmp(stats(w, peer).arena_way, "mapped"));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    words[0] = 40;
    OK(weft_put_blocking(w, theirs, words, sizeof words));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    reaches(g[1], theirs, true); /* adds 3 */
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_get_blocking(w, words, own, 8));
    CHECK(words[0] == (cuda() ? 40 : 43));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (weft_rank(w) == 1) {
        OK(weft_gpu_close(g[0])); /* another GPU maps the arena instead */
        for (int64_t until = now_ns() + patience_ns(20); !weft_gpu_ptr(g[1], theirs, 8) && now_ns() < until;)
            usleep(1000);
        reaches(g[1], theirs, true);
        copy_between(w, g[2], third, theirs, 9);
        CHECK(!strcmp(stats(w, peer).arena_way, "mapped"));
        OK(weft_gpu_close(g[1]));
        OK(weft_gpu_close(g[2]));
        OK(weft_get_blocking(w, words, theirs, 8));
        CHECK(!strcmp(stats(w, peer).arena_way, "staged"));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_own(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_own, NULL), 0);
}

static void test_others(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(2, node_others, NULL), 0);
}

/* More GPUs than a node may open. */
static void node_many(weft_node *w, void *arg)
{
    (void)arg;
    weft_gpu *g;
    const weft_gpu_config config = {.bytes = sizeof config, .name = "host", .rings = 1, .slots = 2};
    for (uint32_t i = 0; i < ARENA_GPUS; i++)
        OK(weft_gpu_open(w, &config, &g));
    CHECK(weft_gpu_open(w, &config, &g) == -ENOSPC && strstr(weft_error(), "64 GPUs open"));
}

static void test_many(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed(1, node_many, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own), cmocka_unit_test(test_others), cmocka_unit_test(test_many)};
    return cmocka_run_group_tests_name("gpus", tests, NULL, NULL);
}
