/* SPDX-License-Identifier: MIT
 *
 * A mixed cluster, under over_network.py and over_softverbs.py with devices that can only send and receive: nodes 0 and 1 have such
 * devices, node 2 has none. So 0 and 1 use tb, and both reach node 2 over TCP. Everything works between all of them, and goes on between
 * the others when a node of either kind is killed.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "peer_checks.h"

#define PLAIN 2 /* the node without devices */

struct plan {
    unsigned number; /* of the run: each has a port of its own */
    int victim;      /* -1: none */
};

static void check_transports(weft_node *w)
{
    for (uint32_t i = 0; i < weft_size(w); i++) {
        weft_link_stats s;
        if (i == weft_rank(w))
            continue;
        OK(weft_link_stat(w, i, &s, sizeof s));
        const char *expected = i == PLAIN || weft_rank(w) == PLAIN ? "ofi" : "tb";
        if (strcmp(s.transport, expected) != 0)
            fprintf(stderr, "node %u reaches node %u over %s, not %s\n", weft_rank(w), i, s.transport, expected);
        CHECK(strcmp(s.transport, expected) == 0);
        /* libfabric's provider, and the peer's address */
        CHECK(expected[0] == 't' ? strstr(s.devices, "rdma_") != NULL : strstr(s.devices, " 10.77.0.") != NULL);
    }
}

static int mixed_node(int rank, void *arg)
{
    struct plan *p = arg;
    char coord[64];
    weft_node *w;
    snprintf(coord, sizeof coord, "%s:%u", getenv("TEST_COORD"), 20000 + p->number);
    setenv("WEFT_SIZE", "3", 1);
    setenv("WEFT_COORD", coord, 1);
    setenv("WEFT_POOL", "64M", 0);
    unsetenv("WEFT_TRANSPORT");
    if (rank == PLAIN)
        setenv("WEFT_VERBS_LIBRARY", "/nonexistent", 1);
    OK(weft_open(&w, NULL));
    check_transports(w);
    check_everything(w, 4);
    weft_gaddr word = symmetric_alloc(w, 64);
    OK(weft_barrier(w, patience_ns(60)));
    /* Wait until all nodes have left the barrier: otherwise the death would make it fail. */
    if (p->victim >= 0 && rank != p->victim)
        OK(weft_fetch_add(w, on_node(word, (uint32_t)p->victim), 1, NULL, NULL));
    if (rank == p->victim) {
        OK(weft_wait_until(w, on_node(word, (uint32_t)rank), WEFT_EQ, 2, NULL, patience_ns(60)));
        kill(getpid(), SIGKILL);
    }
    for (int i = 0; i < 3 && p->victim >= 0; i++) {
        uint64_t old;
        if (i != p->victim) {
            OK(weft_fetch_add_blocking(w, on_node(word, (uint32_t)i), 1, &old));
            continue;
        }
        for (int64_t end = now_ns() + patience_ns(60); weft_alive(w, (uint32_t)i); usleep(1000))
            CHECK(now_ns() < end);
        CHECK(weft_fetch_add_blocking(w, on_node(word, (uint32_t)i), 1, &old) == -ECONNRESET);
    }
    if (p->victim >= 0)
        OK(weft_wait_until(w, on_node(word, (uint32_t)rank), WEFT_EQ, 2, NULL, patience_ns(60)));
    OK(weft_close(w));
    return 0;
}

static void run(int victim)
{
    static unsigned number;
    struct plan p = {.number = number++, .victim = victim};
    int status[NODES_MAX];
    processes_run(3, mixed_node, &p, status);
    for (int i = 0; i < 3; i++)
        assert_int_equal(status[i], i == victim ? SIGKILL : 0);
}

static void test_together(void **state)
{
    (void)state;
    run(-1);
}

static void test_plain_killed(void **state)
{
    (void)state;
    run(PLAIN);
}

static void test_with_device_killed(void **state)
{
    (void)state;
    run(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_plain_killed),
        cmocka_unit_test(test_with_device_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
