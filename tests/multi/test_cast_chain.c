/* SPDX-License-Identifier: MIT
 *
 * The chain of a cast (src/cast/chain.c) over three nodes: the source, a node that passes blocks on, and a slow last node. Credits hold the
 * first two back: no block is put into a slot that is still in use, however slow the last node is. Each slot that the last node frees lets
 * exactly one more block through. The rings are all the memory that the chain needs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>

#include "cast/cast.h"
#include "cluster_test.h"

#define NODES    3u
#define BLOCKS   100u
#define ROUND    7u
#define GUARD    4096u
#define UNTAKEN  ((NODES - 1) * CAST_SLOTS) /* as many blocks fit into the rings of the other nodes */
#define GUARDED  0xa5
#define HELD_FOR 50 /* how often to check, once a millisecond, that a node which must wait does not go on */

struct seen {
    _Atomic uint32_t put[NODES]; /* blocks that each node has put to the next one */
    _Atomic uint32_t over;
};

/* --- one node --- */

static void chain_open(struct cast *c, weft_node *w)
{
    weft_gaddr ring = symmetric_alloc(w, CAST_SLOTS * CAST_BLOCK + GUARD), words = symmetric_alloc(w, 8 * CAST_ROUNDS * (CAST_SLOTS + 1));
    *c = (struct cast){.w = w, .rank = weft_rank(w)};
    c->rings = calloc(3 * NODES, sizeof *c->rings);
    CHECK(c->rings);
    c->filled = c->rings + NODES;
    c->credits = c->filled + NODES;
    for (uint32_t i = 0; i < NODES; i++) {
        c->rings[i] = on_node(ring, i);
        c->filled[i] = on_node(words, i);
        c->credits[i] = c->filled[i] + 8 * CAST_ROUNDS * CAST_SLOTS;
    }
    memset((uint8_t *)cast_slot(c, 0) + CAST_SLOTS * CAST_BLOCK, GUARDED, GUARD);
}

static uint32_t bytes_of(uint64_t number)
{
    return number % 5 == 0 ? CAST_BLOCK - (uint32_t)sizeof(struct cast_block) : 64 + (uint32_t)number;
}

static void block_write(struct cast *c, uint64_t number)
{
    struct cast_block *b = cast_slot(c, number);
    *b = (struct cast_block){.round = ROUND, .number = number, .bytes = bytes_of(number)};
    memset(b + 1, (int)number, b->bytes);
    cast_block_seal(b);
}

/* Detects another block in the slot, or a part of one. */
static void block_check(struct cast *c, uint64_t number)
{
    const struct cast_block *b = cast_slot(c, number);
    const uint8_t *at = (const uint8_t *)(b + 1);
    CHECK(cast_block_fits(b, ROUND, number, CAST_BLOCK) && b->bytes == bytes_of(number));
    for (uint32_t i = 0; i < b->bytes; i++)
        CHECK(at[i] == (uint8_t)number);
}

static uint64_t credits(struct cast *c)
{
    return cast_word_at(c, c->credits[c->rank] + 8 * ROUND);
}

static uint64_t arrived(struct cast *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < CAST_SLOTS; i++)
        sum += cast_word_at(c, c->filled[c->rank] + 8 * (ROUND * CAST_SLOTS + i));
    return sum;
}

/* --- the three --- */

static void feed(struct cast *c, struct seen *seen)
{
    struct cast_relay r;
    OK(cast_relay_start(&r, c, 1, ROUND));
    for (uint64_t number = 0; number < BLOCKS || r.put < BLOCKS;) {
        bool slot = number < CAST_SLOTS || cast_relay_done(&r, number - CAST_SLOTS);
        atomic_store(&seen->put[0], (uint32_t)r.put);
        CHECK(!r.broken);
        if (number == BLOCKS || !slot) {
            usleep(100);
            continue;
        }
        r.given = number < CAST_SLOTS ? 0 : number - CAST_SLOTS + 1;
        block_write(c, number);
        cast_fill(c, ROUND, number++);
    }
    atomic_store(&seen->put[0], (uint32_t)r.put);
    wait_for(&seen->over, 1);
    while (credits(c) < BLOCKS) /* the last credits are on their way */
        usleep(1000);
    CHECK(credits(c) == BLOCKS && arrived(c) == BLOCKS); /* the node counts credits for its own slots, too */
    cast_relay_stop(&r);
}

static void pass_on(struct cast *c, struct seen *seen)
{
    struct cast_relay r;
    uint64_t taken = 0, given = 0;
    OK(cast_relay_start(&r, c, 2, ROUND));
    while (given < BLOCKS) {
        bool any = cast_arrived(c, ROUND, taken);
        CHECK(!r.broken && arrived(c) <= given + CAST_SLOTS);
        if (any)
            block_check(c, taken++);
        while (given < taken && cast_relay_done(&r, given)) {
            r.given = ++given;
            cast_give_credit(c, 0, ROUND);
        }
        atomic_store(&seen->put[1], (uint32_t)r.put);
        if (!any)
            usleep(100);
    }
    wait_for(&seen->over, 1);
    while (credits(c) < BLOCKS)
        usleep(1000);
    CHECK(credits(c) == BLOCKS && arrived(c) == BLOCKS);
    cast_relay_stop(&r);
}

/* Checks that the nodes before this one wait for its credits: they have sent as many blocks as the credits allow, and no more. */
static void held(struct cast *c, const struct seen *seen, uint32_t given)
{
    const uint32_t most = given + UNTAKEN < BLOCKS ? given + UNTAKEN : BLOCKS,
                   here = given + CAST_SLOTS < BLOCKS ? given + CAST_SLOTS : BLOCKS;
    wait_for(&seen->put[0], most);
    wait_for(&seen->put[1], here);
    while (arrived(c) < here) /* a block that was put may still be on its way */
        usleep(1000);
    for (int i = 0; i < (given % 16 ? 1 : HELD_FOR); i++) {
        CHECK(atomic_load(&seen->put[0]) == most && atomic_load(&seen->put[1]) == here);
        CHECK(arrived(c) == here);
        usleep(1000);
    }
}

static void take_slowly(struct cast *c, struct seen *seen)
{
    for (uint32_t given = 0; given < BLOCKS; given++) {
        while (!cast_arrived(c, ROUND, given))
            cast_wait_block(c, ROUND, given, WEFT_SECOND);
        held(c, seen, given);
        block_check(c, given);
        cast_give_credit(c, 1, ROUND);
    }
    atomic_store(&seen->over, 1);
}

static void chain(weft_node *w, void *arg)
{
    struct seen *seen = arg;
    struct cast c;
    chain_open(&c, w);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    weft_pool_stats before, after;
    OK(weft_pool_stat(w, &before, sizeof before));
    (c.rank == 0 ? feed : c.rank == 1 ? pass_on : take_slowly)(&c, seen);
    OK(weft_pool_stat(w, &after, sizeof after));
    CHECK(after.live_bytes == before.live_bytes && !c.lost);
    const uint8_t *guard = (const uint8_t *)cast_slot(&c, 0) + CAST_SLOTS * CAST_BLOCK;
    for (uint32_t i = 0; i < GUARD; i++)
        CHECK(guard[i] == GUARDED);
    free(c.rings);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_chain(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(NODES, chain, shared_words(sizeof(struct seen)), (const char *const[]){"WEFT_POOL=64M", NULL}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
