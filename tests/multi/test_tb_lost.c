/* SPDX-License-Identifier: MIT
 *
 * A cable is pulled while large puts and gets without an op are under way. Run by over_softverbs.py on mesh:2 of a device whose driver does
 * not crash if a receive is posted just then.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cluster_test.h"

#define BIG  (1u << 20)
#define LONG patience_ns(60)

struct stage {
    _Atomic uint32_t here;
};

/* Repeats a get until it returns `expected`. */
static void goes(weft_node *w, weft_gaddr to, uint8_t *mine, int expected)
{
    int rc;
    for (int64_t end = now_ns() + LONG; (rc = weft_get_blocking(w, mine, to, BIG)) != expected && now_ns() < end;)
        usleep(1000);
    CHECK(rc == expected);
}

/* If a flush returns 0, the puts and gets before it are really complete. */
#define LOST_PUTS 6u
static void unheard(weft_node *w, void *arg)
{
    struct stage *stage = arg;
    weft_gaddr area = symmetric_alloc(w, LOST_PUTS * BIG), own = symmetric_alloc(w, LOST_PUTS * BIG);
    uint32_t rounds = repeats(24), met = 0, me = weft_rank(w), lost = 0;
    uint8_t *mine = weft_ptr(w, on_node(own, me), LOST_PUTS * BIG), *here = weft_ptr(w, on_node(area, me), LOST_PUTS * BIG);
    uint8_t *small = malloc(BIG);
    CHECK(small);
    for (uint32_t i = 1; i <= rounds; i++) {
        bool get = i % 3 == 0;
        goes(w, on_node(area, 1 - me), small, 0);
        memset(me == 0 ? mine : here, (me == 0) == get ? 0 : (int)i, LOST_PUTS * BIG);
        meet(&stage->here, 2 * ++met);
        if (me == 0) {
            for (uint32_t k = 0; k < LOST_PUTS; k++) {
                uint8_t *at = mine + (size_t)k * BIG;
                weft_gaddr there = on_node(area, 1) + (uint64_t)k * BIG;
                OK(get ? weft_get(w, at, there, BIG, NULL) : weft_put(w, there, at, BIG, NULL));
            }
            softverbs("fault pull 0:rdma_en2");
        }
        goes(w, on_node(area, 1 - me), small, -ENETDOWN);
        meet(&stage->here, 2 * ++met);
        if (me == 0) {
            int rc;
            softverbs("fault plug 0:rdma_en2");
            for (int64_t end = now_ns() + LONG; (rc = weft_flush(w, 1, LONG)) == -ENETDOWN && now_ns() < end;)
                usleep(1000);
            CHECK(rc == 0 || rc == -ECONNABORTED);
            lost += rc != 0;
            for (uint32_t k = 0; k < LOST_PUTS && rc == 0; k++) {
                if (!get)
                    goes(w, on_node(area, 1) + (uint64_t)k * BIG, small, 0);
                const uint8_t *got = get ? mine + (size_t)k * BIG : small;
                for (uint32_t n = 0; n < BIG; n++)
                    CHECK(got[n] == (uint8_t)i);
            }
            OK(weft_flush(w, 1, LONG)); /* the failure is reported once */
        }
        meet(&stage->here, 2 * ++met);
    }
    CHECK(me != 0 || rounds < 10 || lost > 0);
    free(small);
    OK(weft_barrier(w, LONG));
}

static void test_unheard(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, unheard, shared_words(4096), (const char *const[]){"WEFT_LOG=error", NULL}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unheard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
