/* SPDX-License-Identifier: MIT
 *
 * Waits that a node of a set may end (patience.c): when they fail, as nodes die, leave and join. The counts of nodes are the test's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fabric/fabric.h"

static uint32_t nodes_alive, nodes_dead;
static uint64_t nodes_epoch;

uint32_t __wrap_weft_alive_count(const weft_node *w);
uint32_t __wrap_weft_alive_count(const weft_node *w)
{
    (void)w;
    return nodes_alive;
}

uint32_t __wrap_fab_count_dead(const struct weft_node *w, uint32_t below);
uint32_t __wrap_fab_count_dead(const struct weft_node *w, uint32_t below)
{
    (void)w;
    (void)below;
    return nodes_dead;
}

uint64_t __wrap_weft_epoch(const weft_node *w);
uint64_t __wrap_weft_epoch(const weft_node *w)
{
    (void)w;
    return nodes_epoch;
}

/* Now so many nodes are alive, and so many have died. Returns whether the wait is bounded. */
static bool change(struct fab_patience *p, uint32_t alive, uint32_t dead)
{
    nodes_alive = alive;
    nodes_dead = dead;
    nodes_epoch++;
    assert_int_equal(fab_patience_check(p), 0); /* the deadline is an hour */
    return p->lost_at != INT64_MAX;
}

static bool begin(struct fab_patience *p, void **state, enum fab_whom whom, uint32_t alive, uint32_t dead)
{
    nodes_alive = alive;
    nodes_dead = dead;
    fab_patience_begin(p, *state, whom, WEFT_TIMEOUT_DEFAULT);
    return p->lost_at != INT64_MAX;
}

static void test_a_node_joins(void **state)
{
    static const enum fab_whom all[] = {FAB_ANY, FAB_LAST};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct fab_patience p;
        assert_true(begin(&p, state, all[i], 1, 3)); /* alone: the others died before the wait */
        assert_false(change(&p, 2, 3));
        assert_true(change(&p, 1, 3)); /* the newcomer leaves */
        assert_false(change(&p, 2, 3));
    }
}

static void test_a_node_dies(void **state)
{
    struct fab_patience p;
    assert_false(begin(&p, state, FAB_ANY, 3, 1));
    assert_true(change(&p, 2, 2)); /* perhaps it was the one that should have ended the wait */
    assert_true(change(&p, 1, 2));
    assert_true(change(&p, 2, 2)); /* so it does not matter that a node joins */
    assert_true(begin(&p, state, FAB_ANY, 1, 3));
    assert_false(change(&p, 2, 3));
    assert_true(change(&p, 1, 4)); /* the newcomer dies, */
    assert_true(change(&p, 2, 4)); /* and another one joins */
    assert_false(begin(&p, state, FAB_LAST, 3, 1));
    assert_false(change(&p, 2, 2)); /* the other one can end the wait */
    assert_true(change(&p, 1, 3));
    assert_false(change(&p, 2, 3));
}

static void test_bounded(void **state)
{
    struct weft_node *w = *state;
    struct fab_patience p;
    nodes_alive = 1;
    fab_patience_begin(&p, w, FAB_ANY, WEFT_SECOND * 3600);
    assert_true(p.lost_at == INT64_MAX && p.deadline != INT64_MAX); /* the wait ends at its own deadline */
    assert_false(begin(&p, state, FAB_KNOWN, 1, 3));                /* the caller checks for that node's death */
    assert_false(change(&p, 1, 4));
}

static int set_up(void **state)
{
    struct weft_node *w = calloc(1, sizeof *w);
    if (!w)
        return -1;
    w->size = 4;
    w->options.deadline_ns = w->options.say_after_ns = WEFT_SECOND * 3600;
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_node_joins),
        cmocka_unit_test(test_a_node_dies),
        cmocka_unit_test(test_bounded),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
