/* SPDX-License-Identifier: MIT
 *
 * The other end of a link in a status (src/cli/standing_shown.c): found among as many nodes as may live, for all their links, also where
 * nodes are missing, silent, or have links to fewer nodes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>

#include "cli/standing.h"

#define NODES 1024u /* as many as may live */

/* Replacements for what shown_get() calls; the tests of `weft status` see that. */
uint32_t jobs_nodes(struct jobs *all, uint32_t **out)
{
    (void)all, (void)out;
    abort();
}
uint32_t jobs_desks(struct jobs *all, const uint32_t *nodes, uint32_t count, bool links, struct desk_page **out)
{
    (void)all, (void)nodes, (void)count, (void)links, (void)out;
    abort();
}

static uint32_t number_of(uint32_t i)
{
    return 7 + 3 * i;
}

static bool is_silent(uint32_t i)
{
    return i % 16 == 5;
}

/* The nodes have the numbers 7, 10, 13, ..., and node K has links to all but those whose index is K modulo 8. So eight pages are enough. */
static void test_all_links(void **state)
{
    (void)state;
    static uint32_t nodes[NODES];
    static struct desk_page *pages[NODES], *page[8];
    const struct shown s = {NODES, nodes, pages};
    for (uint32_t i = 0; i < NODES; i++)
        nodes[i] = number_of(i);
    for (uint32_t i = 0; i < 8; i++) {
        page[i] = calloc(1, sizeof *page[i] + NODES * sizeof page[i]->links[0]);
        assert_non_null(page[i]);
        for (uint32_t k = 0; k < NODES; k++)
            if (k % 8 != i)
                page[i]->links[page[i]->count++].node = nodes[k];
    }
    for (uint32_t i = 0; i < NODES; i++)
        pages[i] = is_silent(i) ? NULL : page[i % 8];
    for (uint32_t i = 0; i < NODES; i++)
        for (uint32_t k = 0; k < NODES; k++) {
            const struct desk_link *l = shown_link(&s, nodes[i], nodes[k]);
            if (is_silent(i) || k % 8 == i % 8) {
                assert_null(l);
            } else {
                assert_true(l >= pages[i]->links && l < pages[i]->links + pages[i]->count);
                assert_int_equal(l->node, nodes[k]);
            }
        }
    assert_null(shown_link(&s, 0, 10));
    assert_null(shown_link(&s, 8, 10));
    assert_null(shown_link(&s, number_of(NODES), 10));
    assert_null(shown_link(&s, 7, 11));
    assert_null(shown_link(&s, 7, UINT32_MAX));
    for (uint32_t i = 0; i < 8; i++)
        free(page[i]);
}

static void test_no_nodes(void **state)
{
    (void)state;
    const struct shown s = {.nodes = NULL};
    assert_null(shown_link(&s, 0, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_links), cmocka_unit_test(test_no_nodes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
