/* SPDX-License-Identifier: MIT
 *
 * The distributed work queue. A queue has a name, and a shard in the pool of every node that serves it; that node is the shard's home.
 *
 * Any node submits tasks and any node claims them. A task is 64 bytes: a kind, a few words of the program's, and the address of a payload.
 * A claim is held under a lease. When the lease ends or the claiming node dies, the task is ready again, and a later completion by the
 * former holder is refused. So a task may run more than once, but its submitter sees it complete exactly once. The submitter keeps what it
 * submitted: when a shard's home dies, it submits those tasks again elsewhere. When a submitter dies, its tasks are dropped.
 *
 * Tasks are taken roughly first in, first out; nothing more is promised about order.
 *
 * On a queue that this node has closed every call returns -EBADF. The handle stays valid for that until weft_close().
 */
#ifndef WEFT_QUEUE_H
#define WEFT_QUEUE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_queue weft_queue;

typedef struct weft_queue_config {
    size_t bytes;   /* sizeof(weft_queue_config): weft_queue_config c = {.bytes = sizeof c, .slots = 64} */
    uint32_t slots; /* slots in this node's shard: a power of two, at most 2^20; 0: 4096 */
    int64_t
        lease_ns; /* how long a claim of a task in this node's shard is held at least, without renewal; 0: 60 s. The end is noticed up to
                   * 50 ms late; with 2^20 slots up to a few seconds, because a look at all slots takes tens of milliseconds and
                   * may use a hundredth of a processor */
    bool submit_only; /* this node serves no shard */
} weft_queue_config;

/* A task: 64 bytes, copied into a slot. All fields are the program's. */
typedef struct weft_task {
    uint32_t kind;
    uint32_t payload_len; /* bytes at `payload` */
    weft_gaddr payload;   /* where the data is; WEFT_NULL for none. The submitter frees it */
    uint64_t arg[5];
    uint64_t tag; /* returned with the completion */
} weft_task;

/* A claim: a task that this node has claimed, until its lease ends. */
typedef struct weft_lease {
    weft_task task;
    uint32_t submitter; /* node that submitted it */
    uint32_t attempt;   /* 0 the first time it is claimed */
    uint64_t private_[4];
} weft_lease;

/* A completion, as the submitter gets it: one for each task. */
typedef struct weft_done {
    uint64_t tag;        /* of the task */
    uint64_t id;         /* from weft_submit() */
    int32_t status;      /* from weft_complete() */
    uint32_t worker;     /* node that did it */
    weft_gaddr result;   /* from weft_complete() */
    uint64_t result_len; /* from weft_complete() */
} weft_done;

/* Open a queue by name (1 to 31 bytes). Every node of the cluster opens it, in any order. It is usable at once; shards appear as nodes open
 * it. `config` may be NULL.
 * Errors: -EINVAL a name, a number of slots, a lease or `config->bytes` is wrong; -E2BIG `config` has fields set that this library does not
 * know; -ENOMEM no room for the shard in the pool, or no memory; -EALREADY this node has the queue open; -ENOSPC this node has 64 queues
 * open; -EDEADLK called from a handler. */
WEFT_API int weft_queue_open(weft_node *w, const char *name, const weft_queue_config *config, weft_queue **out);

/* Close this node's end. Its own tasks that are not complete are dropped; what it had claimed is ready again; what others had in its shard
 * they submit again elsewhere. The shard's memory returns to the pool at weft_close(). The name may be opened again at once: that is
 * another queue to all nodes, and nothing of the former one reaches it. NULL is allowed.
 * Errors: -EBUSY a thread of this node waits in the queue (nothing is closed); -EBADF it is closed already; -EDEADLK called from a
 * handler. */
WEFT_API int weft_queue_close(weft_queue *q);

/* Submit `count` tasks. `ids` (may be NULL) receives their ids. Submits those that find room now and returns how many, at least 1; they are
 * the first ones. Waits only while there is room for none.
 * Errors: -EINVAL no tasks; -ETIMEDOUT no room in any shard before the deadline; -ENOMEM no memory for more outstanding tasks; -EDEADLK it
 * would wait in a handler; -EBADF the queue is closed. */
WEFT_API int weft_submit(weft_queue *q, const weft_task *tasks, uint32_t count, uint64_t *ids, int64_t timeout_ns);

/* Claim up to `max` tasks, from this node's shard first, then from others. Returns how many, at least 1. With a time-out of 0, for loops
 * that poll, -ETIMEDOUT leaves weft_error() as it was. To look into a shard on another host takes a round trip; with a shorter time-out the
 * call may take up to 200 ms, for one home that does not answer.
 * Errors: -EINVAL `max` is 0; -ETIMEDOUT nothing was ready before the deadline; -ESHUTDOWN nothing is ready after weft_queue_shutdown();
 * -EDEADLK it would wait in a handler; -EBADF the queue is closed. */
WEFT_API int weft_claim(weft_queue *q, weft_lease *out, uint32_t max, int64_t timeout_ns);

/* The outcome of a task. All but `reserved` go to its submitter unchanged. */
typedef struct weft_result {
    int32_t status;
    uint32_t reserved;
    weft_gaddr result;
    uint64_t result_len;
} weft_result;

/* Complete `count` claimed tasks. Returns how many were accepted, which may be 0. Where accepted[i] is false (`accepted` may be NULL), the
 * lease had ended, and the task is or was done by another, or the submitter is gone.
 * Errors: -EINVAL `count` is over INT32_MAX; -EDEADLK in a handler, and the task's home is on another host; -EBADF the queue is closed. */
WEFT_API int weft_complete(weft_queue *q, const weft_lease *claims, const weft_result *results, uint32_t count, bool *accepted);

/* Start the lease of a claim again, from now. The claim changes only on success. If the home does not answer, the lease may have been
 * renewed or not: the call may be repeated.
 * Errors: -ESTALE the claim is no longer this node's; -ETIMEDOUT, -ECONNABORTED, -ENETDOWN the home did not answer, its link broke, or no
 * route leads to it; -ENOMEM no memory to ask it; -EDEADLK in a handler, and the home is on another host; -EBADF the queue is closed. */
WEFT_API int weft_renew(weft_queue *q, weft_lease *claim);

/* Give a claimed task back: it is ready again at once, for any node. If the home does not answer, it is given back as soon as it does.
 * Errors: -ESTALE the claim is no longer this node's; -ETIMEDOUT, -ECONNABORTED, -ENETDOWN the home did not answer, its link broke, or no
 * route leads to it; -ENOMEM no memory to ask it; -EDEADLK in a handler, and the home is on another host; -EBADF the queue is closed. */
WEFT_API int weft_release(weft_queue *q, const weft_lease *claim);

/* Take up to `max` completions of tasks that this node submitted. Returns how many, at least 1. With a time-out of 0 -ETIMEDOUT leaves
 * weft_error() as it was. How long it waits with WEFT_TIMEOUT_DEFAULT is said in weft/types.h.
 * Errors: -EINVAL `max` is 0; -ENOENT this node has no outstanding task; -ETIMEDOUT nothing was completed before the deadline;
 * -ECONNRESET no other node is left to do the work; -EDEADLK it would wait in a handler; -EBADF the queue is closed. */
WEFT_API int weft_reap(weft_queue *q, weft_done *out, uint32_t max, int64_t timeout_ns);

/* Wait until all work that any living node has submitted is complete. Completions stay to be reaped. A node whose shard this one does not
 * know, because it has just opened the queue for example, is asked whether it has one; with a time-out of 0 the call waits up to 200 ms for
 * the answers, and for nothing else. How long it waits with WEFT_TIMEOUT_DEFAULT is said in weft/types.h.
 * Errors: -ETIMEDOUT work was not complete before the deadline; -ECONNRESET no other node is left to do the work; -EDEADLK it would wait in
 * a handler; -EBADF the queue is closed. */
WEFT_API int weft_drain(weft_queue *q, int64_t timeout_ns);

/* Tell every node that no more work will come: weft_claim() then fails once nothing is ready.
 * Errors: -EBADF the queue is closed. */
WEFT_API int weft_queue_shutdown(weft_queue *q);

typedef struct weft_queue_stats {
    uint64_t submitted;   /* tasks that this node submitted */
    uint64_t completed;   /* of those, complete */
    uint64_t outstanding; /* of those, not complete */
    uint64_t claimed;     /* tasks that this node claimed */
    uint64_t stolen;      /* of those, from other nodes' shards */
    uint64_t refused;     /* completions by this node that were refused as stale */
    uint64_t requeued;    /* leases in this node's shard that ended by time or by a death */
    uint64_t resubmitted; /* tasks of this node submitted again because a shard's home died */
    uint64_t duplicates;  /* completions of this node's tasks that came a second time and were dropped */
    uint64_t ready;       /* tasks ready in this node's shard, about */
} weft_queue_stats;

/* Fill `*out`, with counts since the queue was opened. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: -EBADF the queue is closed. */
WEFT_API int weft_queue_stat(weft_queue *q, weft_queue_stats *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
