/* SPDX-License-Identifier: MIT
 *
 * Kernels of the GPU `host` that wait for a word (weft_device_wait_until()): the six comparisons, the time-out, the value that is stored
 * also after a time-out, wrong arguments; words in pools and arenas that a kernel of another node changes.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "gpu_test.h"

struct job {
    weft_gaddr word; /* of this node, or for the kernel that changes words of the other one */
    weft_gaddr ack;  /* a word of node 0 */
};

static const weft_cmp comparisons[] = {WEFT_EQ, WEFT_NE, WEFT_LT, WEFT_LE, WEFT_GT, WEFT_GE};

static bool is_true(uint64_t word, weft_cmp cmp, uint64_t value)
{
    const bool all[] = {word == value, word != value, word<value, word <= value, word> value, word >= value};
    return all[cmp];
}

/* --- a word that does not change --- */

static void compare_all(const weft_device *d, weft_gaddr word)
{
    const uint64_t values[] = {0, 1, 5, 6, 1ull << 63, UINT64_MAX - 1, UINT64_MAX};
    const uint32_t n = sizeof values / sizeof *values;
    for (uint32_t i = 0; i < n; i++) {
        KERNEL(weft_device_swap(d, word, values[i], NULL));
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t c = 0; c < 6; c++) {
                uint64_t seen = values[i] + 1;
                int rc = weft_device_wait_until(d, word, comparisons[c], values[k], &seen, 0);
                CHECK(rc == (is_true(values[i], comparisons[c], values[k]) ? 0 : -WEFT_DEVICE_ETIMEDOUT) && seen == values[i]);
            }
    }
}

static void still(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    uint64_t seen = 0;
    compare_all(d, j->word);
    KERNEL(weft_device_swap(d, j->word, 5, NULL));
    int64_t began = weft_device_now_ns();
    CHECK(weft_device_wait_until(d, j->word, WEFT_NE, 5, &seen, 20 * WEFT_MS) == -WEFT_DEVICE_ETIMEDOUT && seen == 5);
    CHECK(weft_device_now_ns() - began >= 20 * WEFT_MS);
    CHECK(weft_device_wait_until(d, j->word, WEFT_LT, 5, NULL, 1) == -WEFT_DEVICE_ETIMEDOUT);
    weft_device hurried = *d;
    hurried.deadline_ns = 20 * WEFT_MS;
    CHECK(weft_device_wait_until(&hurried, j->word, WEFT_GT, 5, &seen, WEFT_TIMEOUT_DEFAULT) == -WEFT_DEVICE_ETIMEDOUT);
    CHECK(weft_device_wait_at_least(&hurried, j->word, 6, &seen) == -WEFT_DEVICE_ETIMEDOUT && seen == 5);
    CHECK(weft_device_now_ns() - began < 20 * WEFT_SECOND); /* none has waited until the default deadline, which is 30 s */
    CHECK(weft_device_wait_until(d, j->word, (weft_cmp)6, 5, &seen, 0) == -WEFT_DEVICE_EINVAL);
    CHECK(weft_device_wait_until(d, j->word + 4, WEFT_EQ, 5, &seen, 0) == -WEFT_DEVICE_EINVAL);
    CHECK(weft_device_wait_until(d, j->word + (1ull << 48), WEFT_EQ, 5, &seen, 0) == -WEFT_DEVICE_EINVAL);
    CHECK(weft_device_wait_until(d, weft_gaddr_make(d->rank, 9, 64), WEFT_EQ, 5, &seen, 0) == -WEFT_DEVICE_EINVAL);
}

static weft_gaddr place_for(weft_node *w, weft_gpu *g, bool in_arena)
{
    uint32_t space;
    weft_gaddr at;
    const uint64_t ten = 10;
    if (in_arena) {
        OK(weft_gpu_arena(g, 1 << 16, &space));
        OK(weft_gpu_alloc(g, space, 64, &at));
    } else {
        at = symmetric_alloc(w, 64);
    }
    OK(weft_put_blocking(w, on_node(at, weft_rank(w)), &ten, 8));
    return at;
}

static void node_still(weft_node *w, void *arg)
{
    weft_gpu *g = open_host(w, 1, 64);
    struct job j = {.word = place_for(w, g, *(const bool *)arg)};
    OK(weft_gpu_run(g, still, 1, &j));
    OK(weft_gpu_close(g));
}

static void test_still(void **state)
{
    (void)state;
    for (int in_arena = 0; in_arena < 2; in_arena++)
        assert_int_equal(nodes_failed(1, node_still, &(bool){in_arena}), 0);
}

/* --- a word that a kernel of another node changes --- */

/* The word is 10 at first. Before each step the comparison is false, and the new value makes it true. */
static const struct step {
    weft_cmp cmp;
    uint64_t value, becomes;
} steps[] = {{WEFT_EQ, 7, 7}, {WEFT_NE, 7, 8}, {WEFT_LT, 8, 3}, {WEFT_LE, 2, 2}, {WEFT_GT, 2, 9}, {WEFT_GE, 10, 10}};

static void change(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    for (uint32_t i = 0; i < 6; i++) {
        KERNEL(weft_device_swap(d, j->word, steps[i].becomes, NULL));
        KERNEL(weft_device_wait_until(d, j->ack, WEFT_EQ, i + 1, NULL, WEFT_TIMEOUT_DEFAULT));
    }
}

static void observe(const weft_device *d, void *arg)
{
    const struct job *j = arg;
    for (uint32_t i = 0; i < 6; i++) {
        uint64_t seen;
        KERNEL(weft_device_wait_until(d, j->word, steps[i].cmp, steps[i].value, &seen, patience_ns(60)));
        CHECK(seen == steps[i].becomes);
        KERNEL(weft_device_fetch_add(d, j->ack, 1, NULL));
    }
}

static void node_changes(weft_node *w, void *arg)
{
    weft_gpu *g = open_host(w, 1, 64);
    weft_gaddr ack = symmetric_alloc(w, 64), word = place_for(w, g, *(const bool *)arg);
    struct job j = {.word = on_node(word, 1), .ack = on_node(ack, 0)};
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_run(g, weft_rank(w) ? observe : change, 1, &j));
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    OK(weft_gpu_close(g));
}

static void test_changes(void **state)
{
    (void)state;
    for (int in_arena = 0; in_arena < 2; in_arena++)
        assert_int_equal(nodes_failed(2, node_changes, &(bool){in_arena}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_still), cmocka_unit_test(test_changes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
