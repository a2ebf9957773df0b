/* SPDX-License-Identifier: MIT
 *
 * Tests with several nodes: forked processes that join one cluster. A check that fails prints where, and ends its node with status
 * CHECK_FAILED. The test in the parent sees how each node ended.
 */
#ifndef WEFT_CLUSTER_TEST_H
#define WEFT_CLUSTER_TEST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "weft.h"

#define NODES_MAX    16
#define CHECK_FAILED 99 /* exit status */

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "%s:%d: node %s: check failed: %s (last error: %s)\n", __FILE__, __LINE__, \
                    getenv("WEFT_RANK") ? getenv("WEFT_RANK") : "-", #condition, weft_error());        \
            _exit(CHECK_FAILED);                                                                       \
        }                                                                                              \
    } while (0)

/* A call that must return 0. */
#define OK(call)                                                                                                                         \
    do {                                                                                                                                 \
        int ok_rc_ = (call);                                                                                                             \
        if (ok_rc_ != 0) {                                                                                                               \
            fprintf(stderr, "%s:%d: node %s: %s returned %d: %s\n", __FILE__, __LINE__, getenv("WEFT_RANK") ? getenv("WEFT_RANK") : "-", \
                    #call, ok_rc_, weft_error());                                                                                        \
            _exit(CHECK_FAILED);                                                                                                         \
        }                                                                                                                                \
    } while (0)

typedef void (*node_fn)(weft_node *w, void *arg);

/* Starts `n` nodes, which open (with `environment`, "NAME=VALUE" strings that end with NULL; may be NULL), run `fn` and close. Returns when
   all have ended. `status[i]` is as from waitpid(). Nodes that hang are killed after two minutes, or
   ten seconds after a check has failed in another node. */
void nodes_run(int n, node_fn fn, void *arg, const char *const *environment, int status[NODES_MAX]);

/* Like nodes_run(), but returns how many nodes failed. */
int nodes_failed_with(int n, node_fn fn, void *arg, const char *const *environment);
int nodes_failed(int n, node_fn fn, void *arg);

/* A function for processes that do not join: it gets no node; the process's number is in WEFT_RANK. */
typedef int (*process_fn)(int rank, void *arg); /* exit status */
void processes_run(int n, process_fn fn, void *arg, int status[NODES_MAX]);

/* Like nodes_run(), for such processes. Returns how many of them did not end with status 0. */
int processes_failed(int n, process_fn fn, void *arg);

/* In a node: allocates `bytes` zeros, at the same offset on every node. Collective. */
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

/* A handler for messages whose header is a number (uint32_t), counted from 0. Its argument is a `struct numbers`. */
struct numbers {
    uint32_t next;
    bool wrong; /* a message was out of order */
};
void on_number(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg);

/* Linux: moves this process into the network namespace. */
void enter_namespace(const char *path);

/* Linux: moves this thread to the host of node `rank`. Under over_network.py, node after node is on the hosts in turn, and a process that a
   test starts is there already. Elsewhere all nodes are on one host. */
void enter_host(int rank);

/* An address at which all nodes reach node 0's host. */
const char *first_host(void);

/* A socket of this process on the host of node `rank`: it listens and connects there. */
int socket_on_host(int rank, int family, int type);

/* Runs the command softverbs with these words on the test's fabric. Returns what it prints, valid until the next call. It must succeed. */
char *softverbs(const char *words);

/* Waits until a word in shared memory is `at_least`. If it never is, nodes_run() ends the wait. */
void wait_for(const _Atomic uint32_t *word, uint32_t at_least);
/* Waits for all `n` nodes by a shared word, not by weft. If a node is killed after meet(), no earlier barrier or exchange fails. After a
 * barrier this would not be certain: when one node has passed the barrier, it may still be under way at another node, where the death would
 * make it fail. */
void meet(_Atomic uint32_t *word, uint32_t n);

/* Sends SIGSTOP when all threads of the process sleep. A process that is stopped in the middle of a step of an emulated device would hold
   up others, which does not happen with a real device (softverbs/docs/design.md). */
void stop_asleep(pid_t pid);

/* Prints what each thread of a process that hangs waits for: its system call, and by gdb, if that is there, its functions. */
void show_threads(pid_t pid);

/* Memory that the forked nodes and the parent share, zero at first. */
void *shared_words(size_t bytes);

int64_t now_ns(void);

/* How long to wait for something that takes far less than `seconds` on a fast and idle machine. tests/speed says how fast this one was at
 * the start, and its load how many others share it now. */
int64_t patience_ns(uint32_t seconds);

/* How often a test should repeat what it normally does `n` times: fewer times, divided by TEST_DIVIDE, where every step is slow (an
   emulated machine). TEST_HANG=SECONDS is the time after which a node counts as hanging. */
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
