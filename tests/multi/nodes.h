/* SPDX-License-Identifier: MIT
 *
 * nodes: a cluster of forked processes for tests. Each child joins as one node, runs the test's function, leaves, and
 * exits with the function's result. The parent never joins; it waits, kills, and looks at how the children ended.
 *
 *     static int hello(weft *w, void *arg) { CHECK(weft_size(w) == 3); return 0; }
 *     static void test_hello(void **state) { assert_int_equal(nodes_run(3, hello, NULL), 0); }
 */
#ifndef WEFT_TEST_NODES_H
#define WEFT_TEST_NODES_H

#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

#include "weft.h"

#define NODES_MAX 64u

typedef int (*nodes_fn)(weft *w, void *arg);

struct nodes {
    uint32_t count;
    pid_t pid[NODES_MAX]; /* 0: has ended */
    int status[NODES_MAX]; /* of waitpid(), once it has ended */
};

/* Start n nodes. `config` (may be NULL) gives everything but the place in the cluster. */
void nodes_start(struct nodes *n, uint32_t count, nodes_fn fn, void *arg, const weft_config *config);
void nodes_kill(struct nodes *n, uint32_t node); /* SIGKILL */
/* Wait until all have ended, at most so long; those that have not are killed. Returns how many did not exit with 0,
 * those killed by nodes_kill() left out, and says on stderr which and how. */
int nodes_wait(struct nodes *n, int64_t timeout_ns);
/* Start, wait a minute at most. */
int nodes_run(uint32_t count, nodes_fn fn, void *arg);
/* Zeroed memory that the children share with the parent. */
void *nodes_shared(size_t bytes);
/* Nothing of the test may stay behind. */
bool nodes_none_left(void);

/* In a child: a check that says where it failed, and ends the node as failed. */
#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: pid %d: not true: %s (%s)\n", __FILE__, __LINE__, (int)getpid(), #condition,      \
                    weft_error());                                                                                    \
            _exit(99);                                                                                                \
        }                                                                                                             \
    } while (0)

#endif
