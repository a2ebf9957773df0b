/* SPDX-License-Identifier: MIT
 *
 * The submitter's table of outstanding tasks: completions are reaped once each, in the order in which they came, while the table grows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "queue/table.h"

#define TASKS (5 * TABLE_CHUNK)

struct all {
    struct table t;
    uint64_t id[TASKS];
    uint32_t added, completed, reaped;
};

static void add(struct all *a, uint32_t count)
{
    for (; count; count--, a->added++) {
        weft_task task = {.tag = a->added};
        assert_int_equal(table_add(&a->t, 0, &task, 1, &a->id[a->added]), 1);
    }
}

static void complete(struct all *a, uint32_t count)
{
    for (; count; count--, a->completed++) {
        weft_done done = {.status = (int32_t)a->completed, .worker = 7, .result = 2 * a->completed, .result_len = 8};
        table_fetch(&a->t, a->id[a->completed]);
        assert_true(table_complete(&a->t, a->id[a->completed], &done));
        assert_false(table_complete(&a->t, a->id[a->completed], &done)); /* a duplicate */
    }
}

static void reap(struct all *a, uint32_t count)
{
    weft_done done[100];
    while (count) {
        uint32_t n = table_reap(&a->t, done, count < 100 ? count : 100);
        assert_int_equal(n, count < 100 ? count : 100);
        for (uint32_t i = 0; i < n; i++, a->reaped++) {
            assert_int_equal(done[i].tag, a->reaped);
            assert_int_equal(done[i].id, a->id[a->reaped]);
            assert_int_equal(done[i].status, a->reaped);
            assert_int_equal(done[i].result, 2 * a->reaped);
            assert_int_equal(done[i].worker, 7);
        }
        count -= n;
    }
}

static void test_order(void **state)
{
    struct all *a = calloc(1, sizeof *a);
    weft_done none;
    (void)state;
    assert_non_null(a);
    assert_int_equal(table_init(&a->t), 0);
    assert_int_equal(table_reap(&a->t, &none, 1), 0);
    add(a, 1000);
    complete(a, 900);
    reap(a, 700); /* the ring begins in the middle */
    add(a, 800);
    complete(a, 600); /* it wraps around its end */
    add(a, 2000);     /* it grows with completions in it */
    complete(a, 1500);
    reap(a, 2000);
    add(a, TASKS - a->added);
    complete(a, TASKS - a->completed);
    reap(a, TASKS - a->reaped);
    assert_int_equal(table_reap(&a->t, &none, 1), 0);
    assert_int_equal(a->t.submitted, TASKS);
    assert_int_equal(a->t.completed, TASKS);
    assert_int_equal(a->t.duplicates, TASKS);
    table_clear(&a->t);
    assert_int_equal(table_reap(&a->t, &none, 1), 0);
    assert_false(table_complete(&a->t, a->id[0], &none));
    free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
