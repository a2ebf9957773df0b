/* SPDX-License-Identifier: MIT
 *
 * Joining a cluster and knowing who is in it.
 *
 * A program is started once a node (`weft run -n 4 -- program`), calls weft_open() and is part of the cluster
 * from then until weft_close(). A program started alone is a cluster of one.
 */
#ifndef WEFT_NODE_H
#define WEFT_NODE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pool flags. */
#define WEFT_POOL_HUGE     0x1u /* huge pages; refused when the machine has none to give */
#define WEFT_POOL_LOCK     0x2u /* mlock: never swapped; refused past RLIMIT_MEMLOCK */
#define WEFT_POOL_PREFAULT 0x4u /* touch every page at open, so that no first use pays for it */

/* What weft_open() may be told. Fill it with zeros but for `bytes`: weft_config c = {.bytes = sizeof c}. A field left zero is taken from
 * the environment (WEFT_...), then from the hostfile, then from the default. `weft config` lists them all. */
typedef struct weft_config {
    size_t bytes;            /* sizeof(weft_config): later libraries have more fields, and know by this which a program has */
    const char *coord;       /* where node 0 listens: "HOST:PORT" or "unix:PATH" or "unix:@NAME" (WEFT_COORD) */
    const char *hostfile;    /* path (WEFT_HOSTFILE) */
    const char *secret;      /* cluster secret; prefer WEFT_SECRET_FILE */
    const char *transport;   /* force one: "shm", "rc", "tb" or "rdma" (WEFT_TRANSPORT) */
    uint32_t rank;           /* this node's number; looked at only when size is not 0 (WEFT_RANK) */
    uint32_t size;           /* nodes in the cluster (WEFT_SIZE) */
    uint64_t pool_bytes;     /* size of this node's pool (WEFT_POOL) */
    uint32_t pool_flags;     /* WEFT_POOL_... or'ed */
    int64_t deadline_ns;     /* default deadline of operations; when set, of every wait (WEFT_DEADLINE) */
    int64_t join_timeout_ns; /* how long to wait for the other nodes (WEFT_JOIN_TIMEOUT) */
    int64_t reconnect_ns;    /* how long to try to build a broken RDMA link anew; negative: not at all (WEFT_RECONNECT) */
} weft_config;

/* Join. Blocks until all nodes are connected with all or the join deadline has passed; then the error names the nodes
 * that are missing. It ends at all nodes together: what a program does first meets none that still connects. `config` may be NULL.
 * Errors: -EINVAL a setting is wrong, or `bytes` (weft_error() names it), -E2BIG the program sets fields that this library does not know,
 * -ETIMEDOUT nodes missing, -EACCES refused by the coordinator, -ECONNRESET a node has failed or ended meanwhile, -ENOMEM the pool does not
 * fit, -EHOSTUNREACH no transport to a node, -EPROTO what answered is not a weft of this version. Nothing is left behind. */
WEFT_API int weft_open(weft_node **out, const weft_config *config);

/* Leave. Waits until what this node has sent is on its way, tells the others, frees everything.
 * Buffers of this node's pool are gone for the others. NULL is allowed. No other thread may begin a call with this node meanwhile or after.
 * Errors, with nothing changed: -EBUSY a thread waits in a call of this node, -EINVAL the node is closed already (as long as no
 * other has been opened since, whose handle may be the same), -EDEADLK called from a handler. */
WEFT_API int weft_close(weft_node *w);

WEFT_API uint32_t weft_rank(const weft_node *w);
WEFT_API uint32_t weft_size(const weft_node *w);

/* Membership. The epoch starts at 1 and grows by one with every node that leaves or dies. */
WEFT_API uint64_t weft_epoch(const weft_node *w);
WEFT_API bool weft_alive(const weft_node *w, uint32_t node);
WEFT_API uint32_t weft_alive_count(const weft_node *w);

/* Called after a node has gone: `died` is false when it left by weft_close(). Runs on a weft thread, in the
 * order of epochs; must not wait or close. It cannot be taken back.
 * Errors: -EINVAL no function, -ENOSPC too many callbacks are installed, -ENOMEM. */
typedef void (*weft_member_fn)(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg);
WEFT_API int weft_on_change(weft_node *w, weft_member_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
