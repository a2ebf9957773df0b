/* SPDX-License-Identifier: MIT
 *
 * A mixed cluster, under over_network.py and over_softverbs.py: nodes 0 and 1 have devices, node 2 has none. So 0 and 1 use tb, if the
 * devices can only send and receive, or rc, and both reach node 2 over TCP, of which they are warned. Everything works between all of them,
 * and goes on between the others when a node of either kind is killed.
 *
 * Usage: test_mixed tb|rc
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "peer_checks.h"

#define PLAIN 2 /* the node without devices */

static const char *fast; /* the transport of the devices */

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
        const char *expected = i == PLAIN || weft_rank(w) == PLAIN ? "ofi" : fast;
        if (strcmp(s.transport, expected) != 0)
            fprintf(stderr, "node %u reaches node %u over %s, not %s\n", weft_rank(w), i, s.transport, expected);
        CHECK(strcmp(s.transport, expected) == 0);
        /* of ofi: libfabric's provider, and the peer's address */
        const char *named = expected != fast ? " 10.77.0." : strcmp(fast, "tb") == 0 ? "rdma_" : "sv0";
        CHECK(strstr(s.devices, named) != NULL);
    }
}

/* Opens the node, and checks what it says of the slow way: each node warns of each pair of which only one node has devices. */
static void open_warned(weft_node **w, int rank)
{
    static char said[16384];
    int fd[2], own = dup(2);
    CHECK(own >= 0 && pipe(fd) == 0 && dup2(fd[1], 2) == 2);
    int rc = weft_open(w, NULL);
    CHECK(dup2(own, 2) == 2);
    close(own);
    close(fd[1]);
    ssize_t n = read(fd[0], said, sizeof said - 1); /* less than a pipe holds */
    close(fd[0]);
    fprintf(stderr, "%s", said);
    OK(rc);
    CHECK(n > 0);
    for (int i = 0; i < 3; i++) {
        char text[128];
        snprintf(text, sizeof text, "node %d is reached over ofi, although %s node has RDMA devices: ", i, rank == PLAIN ? "that" : "this");
        const char *at = strstr(said, text);
        CHECK((at != NULL) == (i != rank && (i == PLAIN || rank == PLAIN)));
        CHECK(!at || strstr(at, rank == PLAIN ? "/nonexistent" : "`weft doctor` on that node's host says why")); /* the reason */
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
    open_warned(&w, rank);
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

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    fast = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_plain_killed),
        cmocka_unit_test(test_with_device_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
