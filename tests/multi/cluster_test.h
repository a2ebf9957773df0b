/* SPDX-License-Identifier: MIT
 *
 * Several nodes in a test: forked processes that join one cluster. A check that fails says where and ends its node
 * with status 1; the test in the parent sees who ended how.
 */
#ifndef WEFT_CLUSTER_TEST_H
#define WEFT_CLUSTER_TEST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "weft.h"

#define NODES_MAX 16

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "%s:%d: node %s: check failed: %s (last error: %s)\n", __FILE__, __LINE__, \
                    getenv("WEFT_RANK") ? getenv("WEFT_RANK") : "-", #condition, weft_error());        \
            _exit(1);                                                                                  \
        }                                                                                              \
    } while (0)

/* A call that must return 0. */
#define OK(call)                                                                                                                         \
    do {                                                                                                                                 \
        int ok_rc_ = (call);                                                                                                             \
        if (ok_rc_ != 0) {                                                                                                               \
            fprintf(stderr, "%s:%d: node %s: %s returned %d: %s\n", __FILE__, __LINE__, getenv("WEFT_RANK") ? getenv("WEFT_RANK") : "-", \
                    #call, ok_rc_, weft_error());                                                                                        \
            _exit(1);                                                                                                                    \
        }                                                                                                                                \
    } while (0)

typedef void (*node_fn)(weft_node *w, void *arg);

/* Start `n` nodes that open (with `environment`, "NAME=VALUE" strings ended by NULL, or NULL), run `fn` and close.
 * Returns when all have ended. `status[i]` is as from waitpid(); those that hang are killed after two minutes. */
void nodes_run(int n, node_fn fn, void *arg, const char *const *environment, int status[NODES_MAX]);

/* The same, and all must end well: how many did not. */
int nodes_failed_with(int n, node_fn fn, void *arg, const char *const *environment);
int nodes_failed(int n, node_fn fn, void *arg);

/* Without joining: `fn` gets no node and its number in WEFT_RANK. */
typedef int (*process_fn)(int rank, void *arg); /* exit status */
void processes_run(int n, process_fn fn, void *arg, int status[NODES_MAX]);

/* The same, and all must end with status 0: how many did not. */
int processes_failed(int n, process_fn fn, void *arg);

/* In a node: `bytes` zeros, at the same offset on every node. Collective. */
weft_gaddr symmetric_alloc(weft_node *w, size_t bytes);
static inline weft_gaddr on_node(weft_gaddr a, uint32_t node)
{
    return weft_gaddr_make(node, weft_gaddr_space(a), weft_gaddr_offset(a));
}

static inline weft_link_stats stats(weft_node *w, uint32_t node)
{
    weft_link_stats s;
    OK(weft_link_stat(w, node, &s, sizeof s));
    return s;
}

/* A handler of messages that are numbered from 0 on (uint32_t, the header), with `struct numbers` as its argument. */
struct numbers {
    uint32_t next;
    bool wrong; /* one was out of order */
};
void on_number(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg);

/* Linux: this process is in the network namespace from now on. */
void enter_namespace(const char *path);

/* The command softverbs with these words, about the fabric of the test: what it prints, until the next call. It must succeed. */
char *softverbs(const char *words);

/* Wait until a word in shared memory has come to `at_least`; when it never does, nodes_run() ends it. */
void wait_for(const _Atomic uint32_t *word, uint32_t at_least);
/* All `n` meet, by a shared word and not by weft. A node that is then killed disturbs nobody's barrier or exchange before
 * it: a barrier that one of them has passed may still be under way at another, and the death would fail it there. */
void meet(_Atomic uint32_t *word, uint32_t n);

/* SIGSTOP, at a moment when each of the process's threads sleeps. In the middle of a step of an emulated device it would keep
 * others from theirs, which who is stopped does not with a real one (softverbs/docs/design.md). */
void stop_asleep(pid_t pid);

/* Shared between the forked nodes and the parent, zero at first. */
void *shared_words(size_t bytes);

int64_t now_ns(void);

/* How long to wait for what takes far less than `seconds` on a machine that is quick and quiet: tests/speed says what this one is. */
int64_t patience_ns(uint32_t seconds);

/* How often a test is to do what it does `n` times: fewer by the factor TEST_DIVIDE, where every step is slow (an emulated
 * machine). TEST_HANG=SECONDS, likewise, is the time after which a node counts as hanging. */
uint32_t repeats(uint32_t n);

/* A cheap seeded generator, so that a failure can be replayed. */
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

#endif
