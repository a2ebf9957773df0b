/* SPDX-License-Identifier: MIT
 *
 * Joining a cluster and knowing who is in it.
 *
 * A program is started once for each node (`weft run -n 4 -- program`). It joins the cluster with weft_open() and leaves it with
 * weft_close(). A program started alone is a cluster of one. Also mpirun, prterun and `srun --mpi=pmix` can start it: then rank and size
 * come from there, by PMIx, unless one of them is set here or in the environment.
 *
 * A cluster can grow. If all nodes that start together set `grow`, other nodes may join later, with `join`, also while nodes die and leave.
 * Each of them gets a new number, the next one above all that were given before. Numbers go up to 65,535, and at most 1,024 nodes can be
 * alive at the same time. So an address of a node that is gone fails with -ECONNRESET at every node, and never reaches the memory of
 * another. Memory, messages, locks, queues and services work between all nodes. Barriers and exchanges are for the nodes that started
 * together, and the tb transport connects only those.
 */
#ifndef WEFT_NODE_H
#define WEFT_NODE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pool flags (weft_config.pool_flags). */
#define WEFT_POOL_HUGE     0x1u /* use huge pages; weft_open() fails when too few are free */
#define WEFT_POOL_LOCK     0x2u /* mlock(): never swapped; weft_open() fails past RLIMIT_MEMLOCK */
#define WEFT_POOL_PREFAULT 0x4u /* weft_open() touches every page, so that later uses do not cause page faults */

/* Settings of a node. Set `bytes` and the fields you want, and leave the rest zero: weft_config c = {.bytes = sizeof c}. A field that is
 * zero is taken from its environment variable (in parentheses), else from the hostfile, else from the default. `weft config` lists all.
 * Strings are read during weft_open() only. */
typedef struct weft_config {
    size_t bytes;            /* sizeof(weft_config): tells a later library which fields this program knows */
    const char *coord;       /* where node 0 listens: "HOST:PORT" or "unix:PATH" or "unix:@NAME" (WEFT_COORD) */
    const char *hostfile;    /* path (WEFT_HOSTFILE) */
    const char *secret;      /* cluster secret; prefer WEFT_SECRET_FILE */
    const char *transport;   /* use only this transport: "shm", "rc", "tb", "ofi", or "rdma" for rc and tb (WEFT_TRANSPORT) */
    uint32_t rank;           /* this node's number; ignored when size is 0 (WEFT_RANK) */
    uint32_t size;           /* nodes in the cluster (WEFT_SIZE) */
    uint64_t pool_bytes;     /* size of this node's pool, in bytes (WEFT_POOL) */
    uint32_t pool_flags;     /* WEFT_POOL_... or'ed */
    int64_t deadline_ns;     /* default deadline of operations. If set, waits for other nodes have it, too (WEFT_DEADLINE) */
    int64_t join_timeout_ns; /* how long to wait for the other nodes (WEFT_JOIN_TIMEOUT) */
    int64_t reconnect_ns;    /* how long to retry a broken RDMA link; negative: not at all (WEFT_RECONNECT) */
    const char *grow;        /* "HOST:PORT" of this host, where other nodes may join the running cluster. Nodes of one host may set the
                              * same address: one of them at a time listens there (WEFT_GROW) */
    const char *join;        /* join a running cluster: the `grow` addresses of its nodes, separated by commas. One that answers is
                              * enough. Leave `rank`, `size` and `coord` zero (WEFT_JOIN) */
} weft_config;

/* Join the cluster. On every node the call blocks until every node has connected to every other, or until the join time-out. After the
 * time-out weft_error() names the nodes that are missing. `config` may be NULL. After an error *out is NULL, and weft has freed everything.
 * With `join` the call returns when this node has connected to every member, and every member knows this node. If a member dies meanwhile,
 * weft begins to join again.
 * Errors: -EINVAL a setting or `config->bytes` is wrong, or the nodes' settings do not agree; -E2BIG `config` has fields set that this
 * library does not know; -ETIMEDOUT nodes are missing, or no node listens; -EACCES the secret is wrong or missing; -ECONNRESET another node
 * failed or ended while the nodes joined; -ENOMEM there is not enough memory for the pool; -EHOSTUNREACH no transport reaches a node, or a
 * host is unknown; -ENODEV, -ENETUNREACH a device or cable of the hostfile does not exist (tb); -EPROTO the other end is not weft, or is
 * another version; -EMFILE too few open files are allowed (ulimit -n); -EADDRINUSE, -EADDRNOTAVAIL node 0 cannot listen at the address;
 * -ENOTSUP started by mpirun or srun, and there is no libpmix; -ECONNREFUSED the launcher (mpirun, srun) does not answer; -ENOSPC (`join`)
 * all numbers have been given, or 1,024 nodes are alive. Errors of system calls are passed on. */
WEFT_API int weft_open(weft_node **out, const weft_config *config);

/* Leave the cluster. Waits until all that this node has sent is on its way, up to the default deadline. Then tells the other nodes, and
 * frees everything, the pool included: other nodes cannot reach its buffers any more. NULL is allowed. No other thread may begin a call
 * with `w` during this call or after it. An error changes nothing.
 *
 * If a process ends without freeing the objects of a Thunderbolt device, the device keeps them until the host restarts. So weft also frees
 * them at exit(), and at those of the signals SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2 and SIGXCPU that the
 * program has left at their default. At exec(), _exit(), SIGKILL or a crash only the guard can free them: a second process that weft
 * starts if WEFT_GUARD asks for it. Call weft_close() before exec().
 * Errors: -EBUSY a thread waits in a call of this node; -EINVAL the node is closed already (weft cannot detect this when a node that was
 * opened later has the same handle); -EDEADLK called from a handler. */
WEFT_API int weft_close(weft_node *w);

WEFT_API uint32_t weft_rank(const weft_node *w); /* this node's number, from 0 */
/* The highest number of a node that this node knows of, plus 1. Counts the nodes that started together and those that have joined since,
 * also when they are gone. Never shrinks. */
WEFT_API uint32_t weft_size(const weft_node *w);

/* Membership, as this node has seen it. The epoch starts at 1 and grows by one with every node that leaves, dies, or joins later. */
WEFT_API uint64_t weft_epoch(const weft_node *w);
WEFT_API bool weft_alive(const weft_node *w, uint32_t node); /* the node is a member: it has neither left nor died */
WEFT_API uint32_t weft_alive_count(const weft_node *w);      /* this node included */

/* A function of the program. weft calls it on a thread of weft, in the order of epochs: after a node has left by weft_close() (`died` is
 * false), has died (`died` is true), or has joined the running cluster (weft_alive() is true for this node). Like a handler, the function
 * must not wait, and must not close the node. */
typedef void (*weft_member_fn)(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg);

/* Install a membership callback, which stays until weft_close(). A node has room for at least 8 callbacks. The callback does not get the
 * changes that happened before this call: call weft_alive() afterwards.
 * Errors: -EINVAL `fn` is NULL; -ENOSPC too many callbacks are installed; -ENOMEM no memory for the callback. */
WEFT_API int weft_on_change(weft_node *w, weft_member_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
