/* SPDX-License-Identifier: MIT
 *
 * The distributed work queue. A queue has a name. Every node that serves the queue holds a part of it in its pool, a shard; the node is the
 * shard's home.
 *
 * Any node submits tasks, and any node claims them. A task is 64 bytes: a kind, a few words of the program, and the address of a payload.
 * A claim lasts as long as its lease, which the claiming node can renew. When the lease ends or the claiming node dies, the task is ready
 * again, and the queue refuses a later completion by the former holder. So a task may run more than once, but its submitter sees it
 * complete exactly once. The submitter keeps a copy of its tasks: when a shard's home dies, the submitter submits the tasks of that shard
 * again elsewhere. When a submitter dies, its tasks are dropped.
 *
 * Tasks are taken roughly first in, first out; the queue guarantees no order.
 *
 * After this node has closed a queue, every call on its handle returns -EBADF. The handle is freed at weft_close().
 */
#ifndef WEFT_QUEUE_H
#define WEFT_QUEUE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_queue weft_queue;

typedef struct weft_queue_config {
    size_t bytes;     /* sizeof(weft_queue_config): weft_queue_config c = {.bytes = sizeof c, .slots = 64} */
    uint32_t slots;   /* slots in this node's shard: a power of two, at most 2^20; 0: 4096 */
    int64_t lease_ns; /* how long a claim of a task in this node's shard lasts without renewal; 0: 60 s. A claim may last up to 50 ms
                       * longer. With 2^20 slots it may last a few seconds longer: checking all slots takes tens of milliseconds, and the
                       * check may use only a hundredth of a processor */
    bool submit_only; /* this node holds no shard */
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
    uint32_t submitter; /* node that submitted the task */
    uint32_t attempt;   /* 0 the first time the task is claimed */
    uint64_t private_[4];
} weft_lease;

/* A completion, as the submitter gets it: one for each task. */
typedef struct weft_done {
    uint64_t tag;        /* of the task */
    uint64_t id;         /* from weft_submit() */
    int32_t status;      /* from weft_complete() */
    uint32_t worker;     /* node that did the task */
    weft_gaddr result;   /* from weft_complete() */
    uint64_t result_len; /* from weft_complete() */
} weft_done;

/* Open a queue by name (1 to 31 bytes). Every node that uses the queue opens it, in any order. A node can use the queue at once; the shards
 * of other nodes appear as those nodes open the queue. `config` may be NULL.
 * Errors: -EINVAL a name, a number of slots, a lease or `config->bytes` is wrong; -E2BIG `config` has fields set that this library does not
 * know; -ENOMEM no room for the shard in the pool, or no memory; -EALREADY this node has the queue open; -ENOSPC this node has 64 queues
 * open; -EDEADLK called from a handler. */
WEFT_API int weft_queue_open(weft_node *w, const char *name, const weft_queue_config *config, weft_queue **out);

/* Close the queue on this node. Tasks that this node has submitted and that are not complete are dropped. Tasks that this node has claimed
 * are ready again. Other nodes submit their tasks in this node's shard again elsewhere. The shard's memory returns to the pool at
 * weft_close(). This node may open the name again at once. To all nodes this is a new shard, and nothing of the former one reaches it. NULL
 * is allowed.
 * Errors: -EBUSY a thread of this node waits in the queue (nothing is closed); -EBADF the queue is closed already; -EDEADLK called from a
 * handler. */
WEFT_API int weft_queue_close(weft_queue *q);

/* Submit `count` tasks. `ids` (may be NULL) receives their ids. The call submits as many of the first tasks as there is room for now, and
 * returns how many, at least 1. The call waits only while there is no room for any task.
 * Errors: -EINVAL no tasks; -ETIMEDOUT no room in any shard before the deadline; -ENOMEM no memory for more outstanding tasks; -EDEADLK it
 * would wait in a handler; -EBADF the queue is closed. */
WEFT_API int weft_submit(weft_queue *q, const weft_task *tasks, uint32_t count, uint64_t *ids, int64_t timeout_ns);

/* Claim up to `max` tasks, from this node's shard first, then from others. Returns how many, at least 1. With a time-out of 0, for loops
 * that poll, -ETIMEDOUT leaves weft_error() unchanged. Claiming from a shard on another host takes a round trip. If the shard's home does
 * not answer, the call takes up to 200 ms, even with a shorter time-out.
 * Errors: -EINVAL `max` is 0; -ETIMEDOUT nothing was ready before the deadline; -ESHUTDOWN nothing is ready after weft_queue_shutdown();
 * -EDEADLK it would wait in a handler; -EBADF the queue is closed. */
WEFT_API int weft_claim(weft_queue *q, weft_lease *out, uint32_t max, int64_t timeout_ns);

/* The outcome of a task. The submitter gets all fields but `reserved` unchanged. */
typedef struct weft_result {
    int32_t status;
    uint32_t reserved;
    weft_gaddr result;
    uint64_t result_len;
} weft_result;

/* Complete `count` claimed tasks. Returns how many completions the queue accepted, which may be 0. accepted[i] is false if the queue
 * refused completion i: the lease had ended, so that another worker does or has done the task, or the submitter is gone. `accepted` may be
 * NULL.
 * Errors: -EINVAL `count` is over INT32_MAX; -EDEADLK in a handler, and the task's home is on another host; -EBADF the queue is closed. */
WEFT_API int weft_complete(weft_queue *q, const weft_lease *claims, const weft_result *results, uint32_t count, bool *accepted);

/* Renew a claim: its lease starts again, from now. `*claim` changes only on success. If the home does not answer, the lease may have been
 * renewed or not: the call may be repeated.
 * Errors: -ESTALE the claim is no longer this node's; -ETIMEDOUT, -ECONNABORTED, -ENETDOWN the home did not answer, its link broke, or no
 * route leads to it; -ENOMEM no memory to ask it; -EDEADLK in a handler, and the home is on another host; -EBADF the queue is closed. */
WEFT_API int weft_renew(weft_queue *q, weft_lease *claim);

/* Give a claimed task back: the task is ready again at once, for any node. If the home does not answer before the deadline, the task is
 * given back as soon as the home runs again.
 * Errors: -ESTALE the claim is no longer this node's; -ETIMEDOUT, -ECONNABORTED, -ENETDOWN the home did not answer, its link broke, or no
 * route leads to it; -ENOMEM no memory to ask it; -EDEADLK in a handler, and the home is on another host; -EBADF the queue is closed. */
WEFT_API int weft_release(weft_queue *q, const weft_lease *claim);

/* Take up to `max` completions of tasks that this node submitted. Returns how many, at least 1. With a time-out of 0 -ETIMEDOUT leaves
 * weft_error() unchanged. weft/types.h explains how long the call waits with WEFT_TIMEOUT_DEFAULT.
 * Errors: -EINVAL `max` is 0; -ENOENT this node has no outstanding task; -ETIMEDOUT nothing was completed before the deadline;
 * -ECONNRESET no other node is left to do the work; -EDEADLK it would wait in a handler; -EBADF the queue is closed. */
WEFT_API int weft_reap(weft_queue *q, weft_done *out, uint32_t max, int64_t timeout_ns);

/* Wait until all tasks that any living node has submitted are complete. weft_reap() can take their completions afterwards. If this node
 * does not know whether another node has a shard, for example because that node has just opened the queue, it asks that node. With a
 * time-out of 0 the call waits up to 200 ms for these answers, and for nothing else. weft/types.h explains how long the call waits with
 * WEFT_TIMEOUT_DEFAULT.
 * Errors: -ETIMEDOUT work was not complete before the deadline; -ECONNRESET no other node is left to do the work; -EDEADLK it would wait in
 * a handler; -EBADF the queue is closed. */
WEFT_API int weft_drain(weft_queue *q, int64_t timeout_ns);

/* Tell every node that no more tasks will come: weft_claim() then fails once no task is ready.
 * Errors: -EBADF the queue is closed. */
WEFT_API int weft_queue_shutdown(weft_queue *q);

typedef struct weft_queue_stats {
    uint64_t submitted;   /* tasks that this node submitted */
    uint64_t completed;   /* how many of the submitted tasks are complete */
    uint64_t outstanding; /* how many of the submitted tasks are not complete */
    uint64_t claimed;     /* tasks that this node claimed */
    uint64_t stolen;      /* how many of the claimed tasks were in other nodes' shards */
    uint64_t refused;     /* completions by this node that were refused as stale */
    uint64_t requeued;    /* leases in this node's shard that ended by time or by a death */
    uint64_t resubmitted; /* tasks of this node submitted again because a shard's home died */
    uint64_t duplicates;  /* completions of this node's tasks that arrived a second time and were dropped */
    uint64_t ready;       /* about how many tasks are ready in this node's shard */
} weft_queue_stats;

/* Fill `*out`, with counts since the queue was opened. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: -EBADF the queue is closed. */
WEFT_API int weft_queue_stat(weft_queue *q, weft_queue_stats *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
