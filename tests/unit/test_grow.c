/* SPDX-License-Identifier: MIT
 *
 * A program that was built with an older or a newer version of the headers: its structs are shorter or longer than the library's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "weft.h"

struct later_config {
    weft_config now;
    uint64_t new_field;
};

struct later_stats {
    weft_pool_stats now;
    uint64_t new_field;
};

static void config_sizes(void **state)
{
    (void)state;
    weft_node *w;
    weft_config none = {.bytes = 0, .size = 1};
    struct later_config later = {.now = {.bytes = sizeof later, .size = 1, .pool_bytes = 4 << 20}};
    assert_int_equal(weft_open(&w, &none), -EINVAL);
    assert_non_null(strstr(weft_error(), "sizeof(weft_config)"));
    none.bytes = SIZE_MAX / 2; /* like memory that was not initialized */
    assert_int_equal(weft_open(&w, &none), -EINVAL);
    later.new_field = 1; /* this library does not know the new field */
    assert_int_equal(weft_open(&w, &later.now), -E2BIG);
    later.new_field = 0;
    assert_int_equal(weft_open(&w, &later.now), 0);

    weft_queue *q;
    assert_int_equal(weft_queue_open(w, "work", &(weft_queue_config){.bytes = 0, .slots = 8}, &q), -EINVAL);
    assert_int_equal(weft_queue_open(w, "work", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .slots = 8}, &q), 0);

    struct later_stats s;
    memset(&s, 0xff, sizeof s);
    assert_int_equal(weft_pool_stat(w, &s.now, sizeof s), 0);
    assert_int_equal(s.now.reserved_bytes, 4 << 20);
    assert_int_equal(s.new_field, 0);
    memset(&s, 0xff, sizeof s);
    /* an older program, whose struct has one field */
    assert_int_equal(weft_pool_stat(w, &s.now, offsetof(weft_pool_stats, live_bytes)), 0);
    assert_int_equal(s.now.reserved_bytes, 4 << 20);
    assert_int_equal(s.now.live_bytes, UINT64_MAX); /* unchanged */
    weft_queue_stats qs;
    memset(&qs, 0xff, sizeof qs);
    assert_int_equal(weft_queue_stat(q, &qs, sizeof qs.submitted), 0);
    assert_true(qs.submitted == 0 && qs.completed == UINT64_MAX);
    weft_link_stats l;
    memset(&l, 0xff, sizeof l);
    assert_int_equal(weft_link_stat(w, 0, &l, sizeof l.transport), 0);
    assert_string_equal(l.transport, "shm");
    assert_int_equal(l.staged_puts, UINT64_MAX);
    assert_int_equal(weft_close(w), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(config_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
