/* SPDX-License-Identifier: MIT
 *
 * Which pieces of files may be dropped (gateway/file_cache.c).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gateway/file.h"

/* A piece for which requests wait, because another node is getting it, is still in a list when the last lease ends. So it must not become
 * one that may be dropped, also when its file is unpinned just then. */
static void test_unpinned(void **state)
{
    (void)state;
    static struct files all = {.limit = 16 * WEFT_FILE_PIECE, .pinned = WEFT_FILE_PIECE};
    struct gateway_call waits = {.node = 1};
    struct file_body b = {.is = {.bytes = WEFT_FILE_PIECE}, .pinned = true};
    struct file_piece p = {.body = &b, .bytes = WEFT_FILE_PIECE, .ready = true, .delayed = &waits};
    b.pieces = &p;
    assert_true(file_body_pin(&all, &b, false));
    assert_false(p.idle);
    assert_null(all.oldest);
    p.delayed = NULL;
    file_piece_rest(&all, &p);
    assert_true(p.idle);
    assert_ptr_equal(all.oldest, &p);
    assert_true(file_body_pin(&all, &b, true));
    assert_false(p.idle);
    assert_true(file_body_pin(&all, &b, false));
    assert_true(p.idle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_unpinned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
