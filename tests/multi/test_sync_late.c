/* SPDX-License-Identifier: MIT
 *
 * Barrier, exchange and lock where something comes late: nodes that are seen to leave in different orders, and a stopped node, at
 * which an operation happens after the call that began it has returned.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "cluster_test.h"
#include "fabric/fabric.h"

/* --- two nodes leave --- */

/* Leave, as one node sees it: the others see it later. */
static void leave_towards(weft *w, uint32_t node)
{
    fab_side_byte(&w->links[node], 'b');
    CHECK(shutdown(w->links[node].side_fd, SHUT_WR) == 0);
}

/* Nodes 1 and 3 leave. Node 0 sees node 3 leave first, node 2 node 1. Each begins with a set of three that the other is in and never
 * will be of. */
struct leaving {
    _Atomic uint32_t here, begun;
    bool exchange;
};

static int meet_again(weft *w, bool exchange)
{
    uint64_t all[NODES_MAX];
    int rc;
    do
        rc = exchange ? weft_exchange(w, 7, all, 100 * WEFT_SECOND) : weft_barrier(w, 100 * WEFT_SECOND);
    while (rc == -ECONNRESET);
    return rc;
}

static void leave_in_two_orders(weft *w, void *arg)
{
    struct leaving *l = arg;
    uint32_t me = weft_rank(w);
    OK(weft_barrier(w, WEFT_DEFAULT));
    meet(&l->here, 4);
    if (me % 2 == 1) {
        OK(weft_flush(w, me == 1 ? 2 : 0, WEFT_DEFAULT));
        leave_towards(w, me == 1 ? 2 : 0);
        wait_for(&l->begun, 2);
        usleep(100000); /* so that both wait for each other */
        return;
    }
    while (weft_alive(w, me == 0 ? 3 : 1))
        usleep(1000);
    CHECK(weft_alive(w, me == 0 ? 1 : 3));
    atomic_fetch_add(&l->begun, 1);
    OK(meet_again(w, l->exchange));
    CHECK(weft_alive_count(w) == 2);
    OK(meet_again(w, l->exchange));
}

static void test_leave_in_two_orders(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct leaving *l = shared_words(4096);
        l->exchange = i;
        assert_int_equal(nodes_failed_with(4, leave_in_two_orders, l, (const char *const[]){"WEFT_LOG=error", NULL}), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leave_in_two_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
