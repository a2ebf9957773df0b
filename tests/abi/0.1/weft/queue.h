/* SPDX-License-Identifier: MIT
 *
 * The distributed work queue: named, with a shard in the pool of every node that serves it.
 *
 * A task is a kind, a few words of the program's own, and the gaddr of a payload. Any node submits, any node
 * claims. A claim is a lease: when the claiming node dies or the lease ends (the node whose shard holds the task
 * measures it, by its own setting), the task becomes ready again, and a completion by the stale owner is refused. A
 * task may run more than once; its submitter sees it complete exactly once. The submitter keeps what it submitted:
 * when a shard's home dies, it submits again elsewhere. Order is about first in, first out; nothing more is promised.
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
    uint32_t slots;   /* slots in this node's shard, a power of two; 0: 4096 */
    int64_t lease_ns; /* how long a claim of a task in this node's shard holds without renewal, at least; 0: 60 s. It ends when
                       * this node next looks: after up to 50 ms more, with 2^20 slots after a few seconds (a look at them takes
                       * tens of milliseconds, and they take no more than a hundredth of a processor) */
    bool submit_only; /* true: this node serves no shard of its own */
} weft_queue_config;

/* What travels. 64 bytes, copied into a slot. */
typedef struct weft_task {
    uint32_t kind;        /* the program's */
    uint32_t payload_len; /* bytes at payload */
    weft_gaddr payload;   /* the program's; WEFT_NULL for none */
    uint64_t arg[5];      /* the program's */
    uint64_t tag;         /* the program's: comes back with the completion */
} weft_task;

/* A task that this node has claimed. */
typedef struct weft_lease {
    weft_task task;
    uint32_t submitter; /* node */
    uint32_t attempt;   /* 0 the first time it is claimed */
    uint64_t private_[4];
} weft_lease;

/* What the submitter gets back, once a task. */
typedef struct weft_done {
    uint64_t tag;        /* of the task */
    uint64_t id;         /* from weft_submit() */
    int32_t status;      /* from weft_complete() */
    uint32_t worker;     /* node that did it */
    weft_gaddr result;   /* from weft_complete() */
    uint64_t result_len; /* from weft_complete() */
} weft_done;

/* Open a queue by name (at most 31 bytes). Collective: every node of the cluster opens it, in any order; it is
 * usable at once, and shards appear as nodes open. `config` may be NULL.
 * Errors: -EINVAL a name, a number of slots, a lease or `bytes` is wrong, -E2BIG fields are set that this library does not know, -ENOMEM no
 * room for the shard in the pool, -EALREADY the queue is open on this node already, -ENOSPC 64 queues are open on this node, -EDEADLK in a
 * handler. */
WEFT_API int weft_queue_open(weft_node *w, const char *name, const weft_queue_config *config, weft_queue **out);

/* Close this node's end. Its own tasks that are not complete are dropped; what it had claimed is ready again, and
 * what others had in its shard they place elsewhere. The shard's memory returns to the pool when the node closes.
 * The same name may be opened again at once, and is another queue to all nodes: nothing of the former one reaches it.
 * Errors: -EBUSY a thread of this node waits in the queue: nothing is closed; -EBADF it is closed already, as every other call on it
 * says (the handle stays valid for that until weft_close()); -EDEADLK in a handler. */
WEFT_API int weft_queue_close(weft_queue *q);

/* Submit `count` tasks. `ids` (may be NULL) receives their ids. Returns how many were submitted, at least 1 (the
 * first ones): what finds room now. Waits, until the deadline, only while there is room for none (-ETIMEDOUT). */
WEFT_API int weft_submit(weft_queue *q, const weft_task *tasks, uint32_t count, uint64_t *ids, int64_t timeout_ns);

/* Claim up to `max` tasks, from this node's shard first, then from others. Returns how many, at least 1;
 * -ETIMEDOUT when there was none until the deadline; -ESHUTDOWN after weft_queue_shutdown(). To look into a shard on another host
 * takes a round trip; a call with a shorter time-out than that waits for one home that does not answer up to 200 ms. With a time-out of 0,
 * for loops that poll, -ETIMEDOUT sets no sentence: weft_error() still has the one before. */
WEFT_API int weft_claim(weft_queue *q, weft_lease *out, uint32_t max, int64_t timeout_ns);

/* Say that claimed tasks are done. `status`, `result` and `result_len` go to their submitters as they are.
 * Returns how many were accepted; those that were not (`accepted[i]` false, may be NULL) belong to a lease that
 * had ended, or to a submitter that is gone: the work is being, or was, done by another. */
typedef struct weft_result {
    int32_t status;
    uint32_t reserved;
    weft_gaddr result;
    uint64_t result_len;
} weft_result;
WEFT_API int weft_complete(weft_queue *q, const weft_lease *claims, const weft_result *results, uint32_t count, bool *accepted);

/* Start the lease of a claim again, from now. -ESTALE when it is no longer this node's. -ETIMEDOUT, -ECONNABORTED, -ENETDOWN: the home did
 * not answer; the lease may have begun again or not, and the call may be repeated. -EDEADLK as above. The claim changes only on success. */
WEFT_API int weft_renew(weft_queue *q, weft_lease *claim);

/* Give a claimed task back: it is ready again at once, for any node. Errors as above; when the home did not answer, the task is given back
 * as soon as it does. */
WEFT_API int weft_release(weft_queue *q, const weft_lease *claim);

/* Take up to `max` completions of tasks that this node submitted. Returns how many, at least 1; -ETIMEDOUT;
 * -ENOENT when nothing of this node's is outstanding. With a time-out of 0 -ETIMEDOUT sets no sentence, as above.
 * With WEFT_TIMEOUT_DEFAULT it lasts as long as somebody can do the work; -ECONNRESET when nobody is left: see weft/types.h. */
WEFT_API int weft_reap(weft_queue *q, weft_done *out, uint32_t max, int64_t timeout_ns);

/* Wait until all submitted work of all nodes alive is complete, also of those that have opened the queue a moment ago: a node whose shard
 * this one does not know is asked whether it has one. Completions not yet reaped stay to be reaped. Lasts as weft_reap() does; with a
 * time-out of 0 it waits only for such answers, 200 ms at most. */
WEFT_API int weft_drain(weft_queue *q, int64_t timeout_ns);

/* Tell every node that no more work will come: claims return -ESHUTDOWN once nothing is ready. */
WEFT_API int weft_queue_shutdown(weft_queue *q);

typedef struct weft_queue_stats {
    uint64_t submitted;   /* by this node */
    uint64_t completed;   /* of this node's tasks, as seen by it */
    uint64_t outstanding; /* submitted - completed */
    uint64_t claimed;     /* by this node */
    uint64_t stolen;      /* of those, from other nodes' shards */
    uint64_t refused;     /* completions of this node refused as stale */
    uint64_t requeued;    /* leases of this node's shard that ended by death or time */
    uint64_t resubmitted; /* tasks of this node submitted again because a shard's home died */
    uint64_t duplicates;  /* completions of this node's tasks that came a second time, dropped */
    uint64_t ready;       /* tasks waiting in this node's shard, about */
} weft_queue_stats;
/* `bytes`: sizeof *out. What this library does not know is 0. -EBADF: the queue is closed. */
WEFT_API int weft_queue_stat(weft_queue *q, weft_queue_stats *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
