/* SPDX-License-Identifier: MIT
 *
 * Who gives a piece to whom, and how long others wait for a copy (gateway/file_holder.c). The times are the test's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>

#include "gateway/file.h"

#define NODES    8u
#define PATIENCE WEFT_SECOND
#define START    (1000 * WEFT_SECOND)
#define AT       weft_gaddr_make(1, 0, 4096)

struct scene {
    struct file_holder *of_node[NODES];
    struct files all;
    struct file_body body;
    struct file_piece piece[2];
    struct file_open open[NODES]; /* node i, which is host 100 + i */
};

static int scene_make(void **state)
{
    struct scene *s = *state = calloc(1, sizeof *s);
    s->all.holders = s->of_node;
    for (unsigned i = 0; i < 2; i++)
        s->piece[i] = (struct file_piece){.body = &s->body, .index = i, .given = 1}; /* to node 1 */
    for (uint32_t i = 1; i < NODES; i++) {
        s->open[i] = (struct file_open){.node = i, .host = 100 + i, .body = &s->body};
        s->open[i].id = gateway_table_add(&s->all.opens, &s->open[i]);
    }
    return 0;
}

static int scene_free(void **state)
{
    struct scene *s = *state;
    file_holders_free(&s->all, &s->piece[0]);
    file_holders_free(&s->all, &s->piece[1]);
    for (unsigned i = 0; i < NODES; i++)
        assert_null(s->of_node[i]);
    gateway_table_free(&s->all.opens);
    free(s);
    return 0;
}

/* Until when node `node` waits for piece 0; 0: it gets it at once, from node `from` (0: the gateway). */
static int64_t waits(struct scene *s, uint32_t node, int64_t now, uint32_t *from)
{
    struct file_holder *h;
    int64_t until = file_holder_choose(&s->all, &s->piece[0], &s->open[node], now, PATIENCE, &h);
    *from = h ? h->node : 0;
    return until;
}

#define GETS(node, now, from_whom)                        \
    do {                                                  \
        uint32_t from_;                                   \
        assert_int_equal(waits(s, node, now, &from_), 0); \
        assert_int_equal(from_, from_whom);               \
    } while (0)

/* --- patience --- */

static void test_slow(void **state)
{
    struct scene *s = *state;
    uint32_t from;
    assert_true(file_holder_gets(&s->all, &s->piece[0], &s->open[1], START));
    /* nothing is known of node 1 yet */
    assert_int_equal(waits(s, 2, START, &from), START + FILE_LEASE_NS);
    GETS(2, START + FILE_LEASE_NS, 0);
    /* a piece takes it 8 s: others wait for the next one for longer than a lease lasts */
    int64_t now = START + 8 * WEFT_SECOND;
    file_holder_has(&s->all, &s->piece[0], &s->open[1], AT, now);
    file_holder_has(&s->all, &s->piece[0], &s->open[1], AT, now); /* the second report of one get is no measure */
    GETS(2, now, 1);
    (void)file_holder_drop(&s->all, &s->piece[0], 1);
    assert_true(file_holder_gets(&s->all, &s->piece[0], &s->open[1], now));
    assert_int_equal(waits(s, 2, now + 31 * WEFT_SECOND, &from), now + 32 * WEFT_SECOND);
    GETS(2, now + 32 * WEFT_SECOND, 0);
    /* what comes meanwhile shows that it goes on */
    assert_true(file_holder_gets(&s->all, &s->piece[1], &s->open[1], now));
    file_holder_has(&s->all, &s->piece[1], &s->open[1], AT, now + 7 * WEFT_SECOND);
    int64_t until = waits(s, 2, now + 32 * WEFT_SECOND, &from);
    assert_true(until > now + 36 * WEFT_SECOND);
    GETS(2, until, 0);
}

static void test_fast(void **state)
{
    struct scene *s = *state;
    uint32_t from;
    int64_t now = START;
    for (unsigned i = 0; i < 20; i++, now += WEFT_MS) {
        assert_true(file_holder_gets(&s->all, &s->piece[1], &s->open[1], now));
        file_holder_has(&s->all, &s->piece[1], &s->open[1], AT, now + (i ? WEFT_MS : 30 * WEFT_SECOND)); /* once it was slow */
        assert_true(file_holder_drop(&s->all, &s->piece[1], 1));
    }
    s->open[1].pace.came = now;
    assert_true(file_holder_gets(&s->all, &s->piece[0], &s->open[1], now));
    assert_int_equal(waits(s, 2, now, &from), now + PATIENCE);
    GETS(2, now + PATIENCE, 0);
}

/* Other pieces come to the node all the time, and this one never does. */
static void test_never(void **state)
{
    struct scene *s = *state;
    uint32_t from;
    int64_t now = START;
    assert_true(file_holder_gets(&s->all, &s->piece[0], &s->open[1], now));
    for (unsigned i = 0; waits(s, 2, now, &from); i++, now += WEFT_MS) {
        assert_true(i < 100000);
        assert_true(file_holder_gets(&s->all, &s->piece[1], &s->open[1], now));
        file_holder_has(&s->all, &s->piece[1], &s->open[1], AT, now);
        assert_true(file_holder_drop(&s->all, &s->piece[1], 1));
    }
    assert_int_equal(now, START + FILE_GETS_MAX * PATIENCE);
}

static void test_limits(void **state)
{
    (void)state;
    struct file_pace p = {0};
    assert_int_equal(file_pace_until(&p, START, PATIENCE), START + FILE_LEASE_NS);
    file_pace_came(&p, START, START + 3600 * WEFT_SECOND); /* a program that was stopped */
    assert_int_equal(file_pace_until(&p, p.came, PATIENCE), p.came + FILE_PATIENCE_MAX);
    assert_int_equal(file_pace_until(&p, p.came, 2 * FILE_PATIENCE_MAX), p.came + 2 * FILE_PATIENCE_MAX);
}

/* --- whom nobody waits for --- */

static void test_nobody(void **state)
{
    struct scene *s = *state;
    uint32_t from;
    assert_true(file_holder_gets(&s->all, &s->piece[0], &s->open[1], START));
    GETS(1, START, 0); /* itself: another handle of the node may wait in the same thread */
    assert_true(waits(s, 2, START, &from) != 0);
    file_holder_left(&s->all, &s->piece[0], &s->open[2]); /* another one's */
    assert_true(waits(s, 2, START, &from) != 0);
    file_holder_left(&s->all, &s->piece[0], &s->open[1]);
    GETS(2, START, 0);
    assert_true(file_holder_gets(&s->all, &s->piece[0], &s->open[1], START));
    gateway_table_remove(&s->all.opens, s->open[1].id); /* closed */
    GETS(2, START, 0);
}

/* --- the chain --- */

static void give(struct scene *s, uint32_t node, uint32_t from, int64_t now)
{
    struct file_holder *h;
    assert_int_equal(file_holder_choose(&s->all, &s->piece[0], &s->open[node], now, PATIENCE, &h), 0);
    assert_int_equal(h ? h->node : 0, from);
    (*(h ? &h->given : &s->piece[0].given))++;
    assert_true(file_holder_gets(&s->all, &s->piece[0], &s->open[node], now));
}

static void test_chain(void **state)
{
    struct scene *s = *state;
    uint32_t from;
    s->piece[0].given = 0;
    give(s, 1, 0, START);
    for (uint32_t node = 2; node < 6; node++) {
        assert_true(waits(s, node, START, &from) != 0); /* all that are there have given once */
        file_holder_has(&s->all, &s->piece[0], &s->open[node - 1], AT, START);
        give(s, node, node - 1, START);
    }
    file_holder_has(&s->all, &s->piece[0], &s->open[5], AT, START);
    s->open[6].host = s->open[2].host;
    GETS(6, START, 2);                                                         /* of its own host, although that one has given more */
    assert_false(file_holder_gets(&s->all, &s->piece[0], &s->open[2], START)); /* it keeps the copy that it has */
    GETS(6, START, 2);
    /* a copy of which nothing was known comes late, after the lease and when nobody waited any more */
    file_holder_has(&s->all, &s->piece[1], &s->open[5], AT, START);
    file_holder_gone(&s->all, &s->body, 5);
    assert_null(s->of_node[5]);
    assert_null(s->piece[1].holders);
    file_holder_gone(&s->all, &(struct file_body){0}, 2);
    assert_non_null(s->of_node[2]);
    file_holder_gone(&s->all, NULL, 2);
    assert_null(s->of_node[2]);
}

static void test_many(void **state)
{
    struct scene *s = *state;
    static struct file_holder *of_node[FILE_HOLDERS_MAX + 8];
    s->all.holders = of_node;
    for (uint32_t i = 0; i < FILE_HOLDERS_MAX + 8; i++) {
        struct file_open o = {.id = 1, .node = i, .host = i + 1};
        file_holder_has(&s->all, &s->piece[0], &o, AT, START);
        assert_ptr_equal(of_node[i], s->piece[0].holders);
    }
    for (uint32_t i = 0; i < FILE_HOLDERS_MAX + 8; i++)
        assert_true(!of_node[i] == (i < 8));
    file_holders_free(&s->all, &s->piece[0]);
    s->all.holders = s->of_node;
}

/* --- requests that wait --- */

static void test_moved(void **state)
{
    struct scene *s = *state;
    struct gateway_call c = {.node = 2};
    assert_true(file_holder_gets(&s->all, &s->piece[0], &s->open[1], START));
    file_piece_moved(&s->all, &s->piece[0]);
    assert_null(s->all.moved); /* nobody waits */
    s->piece[0].delayed = &c;
    s->piece[1].delayed = &c;
    file_holder_has(&s->all, &s->piece[0], &s->open[1], AT, START);
    file_holder_gone(&s->all, NULL, 1);
    assert_ptr_equal(s->all.moved, &s->piece[0]); /* once */
    assert_null(s->piece[0].next_moved);
    s->piece[0].delayed = s->piece[1].delayed = NULL;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scene_make, scene_free)
    const struct CMUnitTest tests[] = {TEST(test_slow),   TEST(test_fast),  TEST(test_never), TEST(test_limits),
                                       TEST(test_nobody), TEST(test_chain), TEST(test_many),  TEST(test_moved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
