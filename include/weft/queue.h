/* SPDX-License-Identifier: MIT
 *
 * A work queue hands out tasks to the nodes of a cluster. A task is a unit of work, described by 64 bytes. Any node submits tasks, and any
 * node claims them, carries them out and completes them. Every node that uses a queue opens it by its name.
 *
 * A claim lasts for a limited time, the lease. The node that has the claim can renew the lease. When the lease ends or the node dies, the
 * task becomes ready again. So a task may run more than once, but its submitter gets exactly one completion: the queue refuses completions
 * by nodes that have lost their claim.
 *
 * The tasks of a queue are in the pools of the nodes; the part in one node's pool is that node's shard. If a node dies, tasks of other
 * nodes that are in its shard are submitted again automatically, to other shards. If a submitter dies, its tasks are dropped. Tasks are
 * taken roughly in the order in which they were submitted, but not exactly.
 *
 * After weft_queue_close() every call with the handle returns -EBADF. weft_close() frees the handle.
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
    int64_t lease_ns; /* how long a claim of a task in this node's shard lasts without renewal; 0: 60 s. The end may be noticed up to 50 ms
                         late, with 2^20 slots a few seconds late */
    bool submit_only; /* this node has no shard */
} weft_queue_config;

/* A task. weft copies these 64 bytes, and uses only `tag`, which it returns with the completion. */
typedef struct weft_task {
    uint32_t kind;
    uint32_t payload_len; /* bytes at `payload` */
    weft_gaddr payload;   /* address of the data; WEFT_NULL for none. The submitter frees the data */
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
    uint64_t tag;        /* tag of the task */
    uint64_t id;         /* id of the task, from weft_submit() */
    int32_t status;      /* from weft_complete() */
    uint32_t worker;     /* node that did the task */
    weft_gaddr result;   /* from weft_complete() */
    uint64_t result_len; /* from weft_complete() */
} weft_done;

/* Open a queue by its name, of 1 to 31 bytes. The nodes may open it in any order, and use it at once. `config` may be NULL.
 * Errors: -EINVAL a name, a number of slots, a lease or `config->bytes` is wrong; -E2BIG `config` has fields set that this library does
 * not know; -ENOMEM no room for the shard in the pool, or no memory; -EALREADY this node has the queue open; -ENOSPC this node has 64
 * queues open; -EDEADLK called from a handler. */
WEFT_API int weft_queue_open(weft_node *w, const char *name, const weft_queue_config *config, weft_queue **out);

/* Close the queue on this node. Tasks that this node has submitted are dropped, and tasks that it has claimed are ready again. Tasks of
 * other nodes that are in this node's shard are moved to other shards. The shard's memory is free again after weft_close(). NULL is
 * allowed.
 *
 * This node may open a queue of the same name again at once. The node then gets a new, empty shard.
 * Errors: -EBUSY a thread of this node waits in the queue (nothing is closed); -EBADF the queue is closed already; -EDEADLK called from a
 * handler. */
WEFT_API int weft_queue_close(weft_queue *q);

/* Submit tasks from the start of the array, as many as there are free slots for, and return the number of submitted tasks, at least 1. The
 * call waits only if no slot is free, with WEFT_TIMEOUT_DEFAULT up to the default deadline. `ids` (may be NULL) receives the tasks'
 * numbers.
 * Errors: -EINVAL no tasks; -ETIMEDOUT no room in any shard before the deadline; -ENOMEM no memory for more outstanding tasks; -EDEADLK it
 * would wait in a handler; -EBADF the queue is closed. */
WEFT_API int weft_submit(weft_queue *q, const weft_task *tasks, uint32_t count, uint64_t *ids, int64_t timeout_ns);

/* Wait for ready tasks, claim up to `max` tasks, and return the number of claimed tasks, at least 1. With WEFT_TIMEOUT_DEFAULT the call
 * waits up to the default deadline. Tasks in this node's shard come first; claiming from a shard on another host takes a round trip. If a
 * node does not answer, the call may take 200 ms, even with a shorter time-out. With a time-out of 0, -ETIMEDOUT does not change
 * weft_error(). Errors: -EINVAL `max` is 0; -ETIMEDOUT nothing was ready before the deadline; -ESHUTDOWN nothing is ready after
 * weft_queue_shutdown(); -EDEADLK it would wait in a handler; -EBADF the queue is closed. */
WEFT_API int weft_claim(weft_queue *q, weft_lease *out, uint32_t max, int64_t timeout_ns);

/* The result of a task. The submitter gets all fields but `reserved` unchanged, so an errno has the number of the worker's system. */
typedef struct weft_result {
    int32_t status;
    uint32_t reserved;
    weft_gaddr result;
    uint64_t result_len;
} weft_result;

/* Complete `count` claimed tasks, and return how many completions the queue has accepted, which may be 0. accepted[i] is false if the
 * queue has refused completion i: this node had lost the claim, or the submitter is gone. `accepted` may be NULL.
 * Errors: -EINVAL `count` is over INT32_MAX; -EDEADLK in a handler, and the task is in a shard on another host; -EBADF the queue is
 * closed. */
WEFT_API int weft_complete(weft_queue *q, const weft_lease *claims, const weft_result *results, uint32_t count, bool *accepted);

/* Restart the lease of a claim. `*claim` changes only on success. If the node with the task does not answer, the lease may have been
 * renewed or not; the call may be repeated.
 * Errors: -ESTALE this node does not hold the claim any more; -ETIMEDOUT, -ECONNABORTED, -ENETDOWN the node that has the task did not
 * answer, the connection to it broke, or no route leads to it; -ENOMEM no memory to ask it; -EDEADLK in a handler, and the task is in a
 * shard on another host; -EBADF the queue is closed. */
WEFT_API int weft_renew(weft_queue *q, weft_lease *claim);

/* Give back a claimed task, so that any node can claim it at once. If the node with the task does not answer, the task becomes ready when
 * that node continues.
 * Errors: -ESTALE this node does not hold the claim any more; -ETIMEDOUT, -ECONNABORTED, -ENETDOWN the node that has the task did not
 * answer, the connection to it broke, or no route leads to it; -ENOMEM no memory to ask it; -EDEADLK in a handler, and the task is in a
 * shard on another host; -EBADF the queue is closed. */
WEFT_API int weft_release(weft_queue *q, const weft_lease *claim);

/* Wait for completions of tasks that this node has submitted, store up to `max` completions, and return how many were stored, at least 1.
 * With a time-out of 0, -ETIMEDOUT does not change weft_error(). weft/types.h explains how long the call waits with WEFT_TIMEOUT_DEFAULT.
 * Errors: -EINVAL `max` is 0; -ENOENT this node has no outstanding task; -ETIMEDOUT nothing was completed before the deadline; -ECONNRESET
 * no other node is left to do the work; -EDEADLK it would wait in a handler; -EBADF the queue is closed. */
WEFT_API int weft_reap(weft_queue *q, weft_done *out, uint32_t max, int64_t timeout_ns);

/* Wait until all tasks that living nodes have submitted to this queue are complete. Afterwards weft_reap() returns the completions. With a
 * time-out of 0 the call may take up to 200 ms, because it may have to ask nodes whether they have a shard. weft/types.h explains how long
 * the call waits with WEFT_TIMEOUT_DEFAULT.
 * Errors: -ETIMEDOUT work was not complete before the deadline; -ECONNRESET no other node is left to do the work; -EDEADLK it would wait
 * in a handler; -ENOMEM no memory to count the nodes' tasks; -EBADF the queue is closed. */
WEFT_API int weft_drain(weft_queue *q, int64_t timeout_ns);

/* Tell every node that no more tasks will come. Then weft_claim() fails when no task is ready.
 * Errors: -EBADF the queue is closed. */
WEFT_API int weft_queue_shutdown(weft_queue *q);

typedef struct weft_queue_stats {
    uint64_t submitted;   /* tasks that this node submitted */
    uint64_t completed;   /* how many of the submitted tasks are complete */
    uint64_t outstanding; /* how many of the submitted tasks are not complete */
    uint64_t claimed;     /* tasks that this node claimed */
    uint64_t stolen;      /* how many of the claimed tasks were in other nodes' shards */
    uint64_t refused;     /* completions by this node that the queue has refused, because the claim was lost */
    uint64_t requeued;    /* tasks in this node's shard that became ready again, because the lease ended or the worker died */
    uint64_t resubmitted; /* tasks of this node that were submitted again, because the node with their shard died */
    uint64_t duplicates;  /* dropped completions of this node's tasks that were already complete */
    uint64_t ready;       /* tasks that are ready in this node's shard, approximately */
    int64_t lease_ns;     /* how long a claim of a task in this node's shard lasts without renewal */
} weft_queue_stats;

/* Fill `*out`, with counts since the queue was opened. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: -EBADF the queue is closed. */
WEFT_API int weft_queue_stat(weft_queue *q, weft_queue_stats *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
