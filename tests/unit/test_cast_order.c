/* SPDX-License-Identifier: MIT
 *
 * The order of a cast's chain: nodes of one host are next to each other, a better link comes first, and nodes about which nothing is known
 * are ordered by number.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cast/cast.h"

#define NODES 6u

/* a stand-in for a function that order.c calls and these tests do not need */
void cast_send(struct cast *c, uint32_t to, enum cast_kind kind, uint32_t round, uint64_t a, uint64_t b, const void *payload, size_t bytes)
{
    (void)c, (void)to, (void)kind, (void)round, (void)a, (void)b, (void)payload, (void)bytes;
}

static void order(const uint8_t cost[NODES][NODES], bool known, uint32_t *chain, uint32_t count)
{
    const uint8_t *rows[NODES];
    for (uint32_t i = 0; i < NODES; i++)
        rows[i] = known ? cost[i] : NULL;
    cast_order(rows, 0, chain, count);
}

static void test_hosts(void **state)
{
    (void)state;
    uint8_t cost[NODES][NODES];
    for (uint32_t a = 0; a < NODES; a++) /* hosts: 0 and 3; 1 and 5; 2 and 4 */
        for (uint32_t b = 0; b < NODES; b++)
            cost[a][b] = a + b == 3 && a % 3 == 0 ? 0 : (a + b == 6 && a && b && a != b) ? 0 : 30;
    uint32_t chain[] = {1, 2, 3, 4, 5};
    order(cost, true, chain, 5);
    assert_memory_equal(chain, ((uint32_t[]){3, 1, 5, 2, 4}), sizeof chain);
    uint32_t some[] = {1, 2, 5};
    order(cost, true, some, 3);
    assert_memory_equal(some, ((uint32_t[]){1, 5, 2}), sizeof some);
}

static void test_better_first(void **state)
{
    (void)state;
    uint8_t cost[NODES][NODES];
    memset(cost, 90, sizeof cost);
    cost[0][4] = 20;
    cost[4][2] = 20;
    cost[2][5] = 19;
    uint32_t chain[] = {1, 2, 3, 4, 5};
    order(cost, true, chain, 5);
    assert_memory_equal(chain, ((uint32_t[]){4, 2, 5, 1, 3}), sizeof chain);
}

static void test_unknown(void **state)
{
    (void)state;
    uint8_t cost[NODES][NODES] = {{0}};
    uint32_t chain[] = {1, 2, 3, 4, 5};
    order(cost, false, chain, 5);
    assert_memory_equal(chain, ((uint32_t[]){1, 2, 3, 4, 5}), sizeof chain);
    order(cost, true, chain, 0);
    assert_string_equal(cast_order_link(0), "shm");
    assert_string_equal(cast_order_link(79), "ofi");
    assert_string_equal(cast_order_link(80), "unknown");
    assert_string_equal(cast_order_link(255), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hosts), cmocka_unit_test(test_better_first), cmocka_unit_test(test_unknown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
