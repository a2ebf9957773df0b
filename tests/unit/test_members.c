/* SPDX-License-Identifier: MIT
 *
 * Nodes that join a running cluster: the numbers they get, and which messages of members are valid.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cluster/join.h"
#include "weft.h"

/* No number is given twice, so the numbers run out at 65,536. */
static void test_numbers(void **state)
{
    (void)state;
    uint32_t number = 0;
    assert_int_equal(grow_next_number(3, 4, &number), 0);
    assert_int_equal(number, 4);
    assert_int_equal(grow_next_number(WEFT_MAX_NUMBERS - 2, 4, &number), 0);
    assert_int_equal(number, WEFT_MAX_NUMBERS - 1);
    assert_int_equal(grow_next_number(WEFT_MAX_NUMBERS - 1, 4, &number), -ENOSPC);
    assert_non_null(strstr(weft_error(), "start the cluster anew"));
    assert_int_equal(grow_next_number(2000, WEFT_MAX_NODES - 1, &number), 0);
    assert_int_equal(grow_next_number(2000, WEFT_MAX_NODES, &number), -ENOSPC);
    assert_non_null(strstr(weft_error(), "end a node first"));
}

static void test_messages(void **state)
{
    (void)state;
    struct grow_message m = {.magic = GROW_MAGIC, .kind = GROW_ASK, .attempt = 1, .number = 7};
    struct grow_ask ask = {.card = {.rank = 7, .pool_bytes = 1 << 20, .liveness_ns = WEFT_SECOND, .grows = 1}};
    snprintf(ask.card.side, sizeof ask.card.side, "unix:@here");
    assert_true(grow_message_ok(&m, &ask, sizeof ask));
    assert_false(grow_message_ok(&m, &ask, sizeof ask - 1));
    ask.card.rank = 8; /* the card of another node */
    assert_false(grow_message_ok(&m, &ask, sizeof ask));
    ask.card.rank = m.number = WEFT_MAX_NUMBERS;
    assert_false(grow_message_ok(&m, &ask, sizeof ask));
    ask.card.rank = m.number = 0;
    assert_false(grow_message_ok(&m, &ask, sizeof ask));
    ask.card.rank = m.number = 7;
    memset(ask.card.host, 'h', sizeof ask.card.host); /* no end */
    assert_false(grow_message_ok(&m, &ask, sizeof ask));
    m.kind = GROW_ANSWER;
    assert_false(grow_message_ok(&m, &ask, sizeof ask));
    assert_true(grow_message_ok(&m, NULL, 0));
    m.answer = EEXIST;
    assert_true(grow_message_ok(&m, NULL, 0));
    m.answer = EPERM;
    assert_false(grow_message_ok(&m, NULL, 0));
    m.answer = 0;
    m.highest = WEFT_MAX_NUMBERS;
    assert_false(grow_message_ok(&m, NULL, 0));
    m.highest = 0;
    m.kind = GROW_END + 1;
    assert_false(grow_message_ok(&m, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
