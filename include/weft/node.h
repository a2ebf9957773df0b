/* SPDX-License-Identifier: MIT
 *
 * Joining a cluster and knowing who is in it.
 *
 * A program is started once for each node (`weft run -n 4 -- program`). It joins the cluster with weft_open() and leaves it with
 * weft_close(). A program started alone is a cluster of one. Also mpirun, prterun and `srun --mpi=pmix` can start it: then rank and size
 * come from there, by PMIx, unless one of them is set here or in the environment.
 *
 * A cluster can grow: if all nodes that start together set `grow`, others may join it later, with `join`, also while nodes die and leave.
 * Each gets a new number: the next one above all that were given before, up to 65,535, while at most 1,024 nodes are alive at once. So an
 * address of a node that is gone fails with -ECONNRESET at every node, and never reaches the memory of another. Memory, messages, locks,
 * queues and services work between all nodes. Barriers and exchanges are for the nodes that started together, and the tb transport connects
 * only those.
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
#define WEFT_POOL_PREFAULT 0x4u /* touch every page in weft_open(), so that no first use pays for it */

/* Settings of a node. Set `bytes` and the fields you want, and leave the rest zero: weft_config c = {.bytes = sizeof c}. A field that is
 * zero is taken from its environment variable (in parentheses), else from the hostfile, else from the default. `weft config` lists all.
 * Strings are read during weft_open() only. */
typedef struct weft_config {
    size_t bytes;            /* sizeof(weft_config): tells a later library which fields this program knows */
    const char *coord;       /* where node 0 listens: "HOST:PORT" or "unix:PATH" or "unix:@NAME" (WEFT_COORD) */
    const char *hostfile;    /* path (WEFT_HOSTFILE) */
    const char *secret;      /* cluster secret; prefer WEFT_SECRET_FILE */
    const char *transport;   /* use only this one: "shm", "rc", "tb", or "rdma" for rc and tb (WEFT_TRANSPORT) */
    uint32_t rank;           /* this node's number; ignored when size is 0 (WEFT_RANK) */
    uint32_t size;           /* nodes in the cluster (WEFT_SIZE) */
    uint64_t pool_bytes;     /* size of this node's pool, in bytes (WEFT_POOL) */
    uint32_t pool_flags;     /* WEFT_POOL_... or'ed */
    int64_t deadline_ns;     /* default deadline of operations; if set, of waits for other nodes too (WEFT_DEADLINE) */
    int64_t join_timeout_ns; /* how long to wait for the other nodes (WEFT_JOIN_TIMEOUT) */
    int64_t reconnect_ns;    /* how long to retry a broken RDMA link; negative: not at all (WEFT_RECONNECT) */
    const char *grow;        /* other nodes may join the running cluster, at this address of this host; nodes of one host may give the
                              * same one, which one of them has at a time (WEFT_GROW) */
    const char *join; /* join a running cluster: what its nodes have as `grow`, with commas between. The first that answers is enough.
                       * `rank`, `size` and `coord` are not given (WEFT_JOIN) */
} weft_config;

/* Join the cluster. On every node it blocks until every node has connected to every other, or until the join time-out. Then the
 * error names the nodes that are missing. `config` may be NULL. On an error *out is NULL and nothing is left behind.
 * With `join` it returns when the node has connected to every member, and every member knows it. If a member dies meanwhile, it begins
 * again. Errors: -EINVAL a setting or `config->bytes` is wrong, or the nodes do not agree; -E2BIG `config` has fields set that this library
 * does not know; -ETIMEDOUT nodes are missing, or nobody listens; -EACCES the secret is wrong or missing; -ECONNRESET a node failed or
 * ended meanwhile; -ENOMEM the pool does not fit; -EHOSTUNREACH no transport to a node, or unknown host; -ENODEV, -ENETUNREACH a device or
 * cable of the hostfile does not exist (tb); -EPROTO the other end is no weft of this version; -EMFILE too few open files (ulimit -n);
 * -EADDRINUSE, -EADDRNOTAVAIL node 0 cannot listen at the address; -ENOTSUP under mpirun or srun: no libpmix; -ECONNREFUSED these are gone;
 * -ENOSPC (`join`) all numbers were given, or 1,024 nodes are alive. Errors of system calls are passed on. */
WEFT_API int weft_open(weft_node **out, const weft_config *config);

/* Leave the cluster. Waits until what this node has sent is on its way, up to the default deadline, tells the other nodes, and frees
 * everything: the buffers of this node's pool are gone for the others too. NULL is allowed. No other thread may begin a call with `w`
 * during this call or after it. An error changes nothing.
 *
 * If a process ends without freeing the objects of a Thunderbolt device, the device keeps them until the host restarts. So weft also frees
 * them at exit(), and at SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2 and SIGXCPU, where the program has left these
 * at their default. At exec(), _exit(), SIGKILL or a crash only a guard frees them (WEFT_GUARD): call
 * weft_close() before exec().
 * Errors: -EBUSY a thread waits in a call of this node; -EINVAL the node is closed already (not detected once another node is open,
 * which may have got the same handle); -EDEADLK called from a handler. */
WEFT_API int weft_close(weft_node *w);

WEFT_API uint32_t weft_rank(const weft_node *w); /* this node's number, from 0 */
/* Numbers of nodes that this node knows of are below this one: those the cluster was made of, and those that have joined it since, gone
 * ones included. It never shrinks. */
WEFT_API uint32_t weft_size(const weft_node *w);

/* Membership, as this node has seen it. The epoch starts at 1 and grows by one with every node that leaves, dies, or joins later. */
WEFT_API uint64_t weft_epoch(const weft_node *w);
WEFT_API bool weft_alive(const weft_node *w, uint32_t node); /* it is a member: it has neither left nor died */
WEFT_API uint32_t weft_alive_count(const weft_node *w);      /* this node included */

/* Called after a node has left by weft_close() (`died` false) or died (`died` true), and after one has joined the running cluster
 * (weft_alive() is true for it), in the order of epochs, on a thread of weft. Like a handler it must not wait, and must not close the node.
 */
typedef void (*weft_member_fn)(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg);

/* Install a membership callback, until weft_close(): it cannot be removed. There is room for at least 8. Nodes that left, died or joined
 * before are not reported: call weft_alive() afterwards. Errors: -EINVAL no function; -ENOSPC too many callbacks are installed; -ENOMEM no
 * memory for it. */
WEFT_API int weft_on_change(weft_node *w, weft_member_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
