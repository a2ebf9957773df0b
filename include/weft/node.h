/* SPDX-License-Identifier: MIT
 *
 * Join a cluster, leave it, and know who is in it.
 *
 * A launcher starts a program once for each node (`weft run -n 4 -- program`). The program joins the cluster with weft_open() and leaves it
 * with weft_close(). A program that is started directly is a cluster of one node. mpirun, prterun and `srun --mpi=pmix` can also start a
 * program. Then rank and size come from the launcher by PMIx, unless rank or size is set.
 *
 * A cluster can grow. If all first nodes set `grow`, other nodes may join later, with `join`. Each new node gets a new number: one more
 * than the highest number so far. No number is reused, so a memory address of a node that is gone never leads to the memory of another
 * node. Numbers go up to 65535, and at most 1024 nodes can be alive at the same time. Memory, messages, locks, queues and services work
 * between all nodes. Only the nodes that started together can use barriers and exchanges, and Thunderbolt (tb) connects only these nodes.
 */
#ifndef WEFT_NODE_H
#define WEFT_NODE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pool flags (weft_config.pool_flags). */
#define WEFT_POOL_HUGE     0x1u /* use huge pages; weft_open() fails when too few are free */
#define WEFT_POOL_LOCK     0x2u /* mlock(): never swapped; weft_open() fails beyond RLIMIT_MEMLOCK */
#define WEFT_POOL_PREFAULT 0x4u /* weft_open() touches every page, so that later uses do not cause page faults */

/* The settings of a node. Set `bytes` and the fields that you want, and leave the others zero: weft_config c = {.bytes = sizeof c}. For a
 * field that is zero, weft uses the environment variable in parentheses, else the hostfile, else the default. `weft config` lists all
 * settings. The strings may be freed after weft_open(). */
typedef struct weft_config {
    size_t bytes;            /* sizeof(weft_config): tells a later library which fields this program knows */
    const char *coord;       /* where node 0 listens: "HOST:PORT" or "unix:PATH" or "unix:@NAME" (WEFT_COORD) */
    const char *hostfile;    /* path (WEFT_HOSTFILE) */
    const char *secret;      /* the cluster's secret (WEFT_SECRET). Safer: leave it NULL, and set WEFT_SECRET_FILE to the path of a file */
    const char *transport;   /* use only this transport: "shm", "rc", "tb", "ofi", or "rdma" for rc and tb (WEFT_TRANSPORT) */
    uint32_t rank;           /* this node's number; ignored when size is 0 (WEFT_RANK) */
    uint32_t size;           /* nodes in the cluster (WEFT_SIZE) */
    uint64_t pool_bytes;     /* size of this node's pool, in bytes (WEFT_POOL) */
    uint32_t pool_flags;     /* WEFT_POOL_... or'ed */
    int64_t deadline_ns;     /* default deadline of operations; if set, also of calls that wait for other nodes (WEFT_DEADLINE) */
    int64_t join_timeout_ns; /* maximum wait for the other nodes when joining (WEFT_JOIN_TIMEOUT) */
    int64_t reconnect_ns;    /* maximum time to repair a broken RDMA connection; negative: not repaired (WEFT_RECONNECT) */
    const char *grow; /* "HOST:PORT" of this host, at which other nodes may join the running cluster. Nodes of one host may set the same
                         address: one node at a time listens at it (WEFT_GROW) */
    const char *join; /* join a running cluster: the `grow` addresses of its nodes, separated by commas. One answer is enough. Leave `rank`,
                         `size` and `coord` zero (WEFT_JOIN) */
} weft_config;

/* Join the cluster, and store the handle of this node in `*out`. The call returns when every node has connected to every other node. After
 * the join time-out it fails, and weft_error() says which nodes are missing. `config` may be NULL. After an error `*out` is NULL, and there
 * is nothing to free.
 *
 * With `join`, the call returns when this node and all members have connected. If a member dies meanwhile, the call tries again.
 * Errors: -EINVAL a setting or `config->bytes` is wrong, or the nodes' settings do not agree; -E2BIG `config` has fields set that this
 * library does not know; -ETIMEDOUT nodes are missing, or no node listens; -EACCES the secret is wrong or missing; -ECONNRESET another
 * node failed or ended while the nodes joined; -ENOMEM there is not enough memory for the pool; -EHOSTUNREACH no transport reaches a node,
 * or a host is unknown; -ENODEV, -ENETUNREACH a device or cable of the hostfile does not exist (tb); -EPROTO the other end is not weft, or
 * is another version; -EMFILE too few open files are allowed (ulimit -n); -EADDRINUSE, -EADDRNOTAVAIL node 0 cannot listen at the address;
 * -ENOTSUP started by mpirun or srun, and there is no libpmix; -ECONNREFUSED the launcher (mpirun, srun) does not answer; -ENOSPC (`join`)
 * all numbers have been given, or 1024 nodes are alive. Errors of system calls are passed on. */
WEFT_API int weft_open(weft_node **out, const weft_config *config);

/* Leave the cluster, and free the node with its pool. Other nodes cannot access the pool any more. The call first waits until all
 * operations of this node are complete and its messages have arrived. At the default deadline, the call stops waiting and closes the node
 * anyway. NULL is allowed. Other threads must not use `w` during this call or after it. A call that fails has changed nothing.
 *
 * A program that uses Thunderbolt devices should always call this. Otherwise the device may keep the program's protection domain until the
 * host restarts, and a device has only 11 protection domains. weft also frees the domain at exit(), and at each of the signals SIGTERM,
 * SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2 and SIGXCPU that the program does not handle. It cannot free the domain at
 * SIGKILL, _exit(), exec() or a crash. If WEFT_GUARD is set, a second process, the guard, frees the domain in these cases.
 * Errors: -EBUSY a thread waits in a call of this node; -EINVAL the node is closed already (weft cannot notice this if a node that was
 * opened later has the same handle); -EDEADLK called from a handler. */
WEFT_API int weft_close(weft_node *w);

WEFT_API uint32_t weft_rank(const weft_node *w); /* this node's number, from 0 */
/* The number of nodes that started together, or if nodes have joined later, the highest number so far plus 1. Nodes that are gone still
 * count. */
WEFT_API uint32_t weft_size(const weft_node *w);

/* The epoch is 1 plus the number of changes of membership that this node has seen: nodes that left, died, or joined later. */
WEFT_API uint64_t weft_epoch(const weft_node *w);
WEFT_API bool weft_alive(const weft_node *w, uint32_t node); /* the node is a member: it has neither left nor died */
WEFT_API uint32_t weft_alive_count(const weft_node *w);      /* this node included */

/* A function of the program that weft calls when `node` has left (`died` is false), has died (`died` is true), or has joined later
 * (weft_alive() is true for the node). It runs on a thread of weft. It must not wait, and must not close the node. */
typedef void (*weft_member_fn)(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg);

/* Install a weft_member_fn, which stays until weft_close(). A node can have at least 8 such functions. The functions are not called for
 * earlier changes: after installing one, check the nodes with weft_alive().
 * Errors: -EINVAL `fn` is NULL; -ENOSPC too many callbacks are installed; -ENOMEM no memory for the callback. */
WEFT_API int weft_on_change(weft_node *w, weft_member_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
