/* SPDX-License-Identifier: MIT
 *
 * A block that another thread verifies counts as right only if its checksums match, and only for its own number and round.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cast/cast.h"

static _Alignas(64) uint8_t slots[CAST_SLOTS][CAST_BLOCK];

/* Replacements for the functions of chain.c that ahead.c calls. */
struct cast_block *cast_slot(struct cast *c, uint64_t number)
{
    (void)c;
    return (struct cast_block *)(void *)slots[number % CAST_SLOTS];
}

/* A block with two pieces of a file. Returns the payload of the second. */
static uint8_t *block(uint64_t round, uint64_t number)
{
    struct cast_block *b = cast_slot(NULL, number);
    uint8_t *at = (uint8_t *)(b + 1), *payload = NULL;
    for (uint64_t i = 0; i < 2; i++) {
        struct cast_record r = {.type = CAST_DATA, .file = 3, .offset = i * 100000, .bytes = 100000};
        payload = at + sizeof r;
        memset(payload, (int)(number + i), r.bytes);
        cast_record_seal(&r, payload);
        memcpy(at, &r, sizeof r);
        at = payload + r.bytes;
    }
    *b = (struct cast_block){.round = round, .number = number, .bytes = (uint32_t)(at - (uint8_t *)(b + 1))};
    cast_block_seal(b);
    return payload;
}

/* Has a block verified. The thread ends after that. */
static void verify_ahead(struct cast_ahead *a, uint64_t round, uint64_t number)
{
    cast_ahead_start(a, NULL);
    assert_true(a->running);
    assert_false(cast_ahead_is_right(a, round, number));
    cast_ahead_ask(a, round, number);
    for (bool wanted = true; wanted;) {
        pthread_mutex_lock(&a->lock);
        wanted = a->wanted;
        pthread_mutex_unlock(&a->lock);
    }
    cast_ahead_stop(a);
}

static void test_right(void **state)
{
    (void)state;
    struct cast_ahead a;
    block(1, 0);
    verify_ahead(&a, 1, 0);
    assert_true(cast_ahead_is_right(&a, 1, 0));
    assert_false(cast_ahead_is_right(&a, 1, CAST_SLOTS)); /* the same slot, later */
    assert_false(cast_ahead_is_right(&a, 2, 0));
}

static void test_wrong(void **state)
{
    (void)state;
    struct cast_ahead a;
    block(1, 1)[99999] ^= 1;
    verify_ahead(&a, 1, 1);
    assert_false(cast_ahead_is_right(&a, 1, 1));
    block(1, 3);
    cast_slot(NULL, 3)->number = 4; /* the head is damaged */
    verify_ahead(&a, 1, 3);
    assert_false(cast_ahead_is_right(&a, 1, 3));
    block(1, 5);
    cast_slot(NULL, 5)->bytes = UINT32_MAX;
    cast_block_seal(cast_slot(NULL, 5));
    verify_ahead(&a, 1, 5);
    assert_false(cast_ahead_is_right(&a, 1, 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right), cmocka_unit_test(test_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
