/* SPDX-License-Identifier: MIT
 *
 * The header of the folder queue. Other folders use only queue_is_shut() and queue_open(). Tests use queue_set_force() and
 * queue_set_lease().
 *
 * Each file calls only the files listed before it:
 *
 *   slot.c    the protocol of one shard: functions over its words, without I/O
 *   table.c   in private memory: the tasks that this node has submitted and not reaped
 *   outbox.c  messages to other nodes, kept until they can be sent
 *   view.c    how this node reaches its own shard and those of other nodes: by loads and stores, or through the fabric
 *   wait.c    begins and ends waits (the queue cannot be closed meanwhile); prints which nodes a wait is for
 *   submit.c  submitting, completions as the submitter sees them, reaping
 *   claim.c   claiming, completing, renewing, releasing
 *   drain.c   waiting until all work of all nodes is complete
 *   upkeep.c  periodic work of an open queue: leases, pending tasks, unsent messages
 *   room.c    the queues of this node: how they find the queues of other nodes, their messages, and what happens when a node dies
 *   queue.c   open, close, shutdown, statistics
 *
 * The way of a task: the submitter chooses a home, which is a node with a shard in its pool. The submitter enters the task in its table,
 * writes the task into a slot of the home's shard, and wakes a node that may be asleep. A worker claims the task, from its own shard or
 * from another one. When the worker has done the task, it swaps the slot to DONE and sends the submitter a message. The submitter finds the
 * task's id in its table, and frees the slot. Only the first completion of a task counts.
 *
 * What happens when a node dies, or closes the queue (room_gone() in room.c):
 *   worker: each home makes the tasks that the worker has claimed ready again. The same goes for the worker's tasks that are DONE and not
 *   freed, since the completion may be lost. If the completion was not lost, the task runs twice, and the submitter drops the second
 *   completion.
 *   submitter: each home frees the submitter's tasks, and refuses completions of them.
 *   home: each submitter marks its tasks in that shard as pending, and places them in other shards. A worker that had claimed such a task
 *   can no longer complete it. If its completion was sent before, it counts if it is the task's first.
 *
 * SLEEPING. A claimer sets the `idle` word of its own node's header to 1, then looks at the shards, then sleeps. A node that makes work
 * ready loads `idle` afterwards; if it is 1, the node swaps it to 0 and wakes the claimer's node. All four steps are seq_cst (the claimer
 * stores `idle` and loads `tail`; the other node raises `tail` and loads `idle`), so at least one of the two sees what the other has
 * stored. This covers only the claimer's own shard. For work in other shards: if the node that a submitter has chosen is busy, the
 * submitter wakes another idle node; and a sleeping claimer looks again every CLAIM_SLICE_NS.
 */
#ifndef WEFT_QUEUE_ROOM_H
#define WEFT_QUEUE_ROOM_H

#include "fabric/fabric.h"
#include "queue/slot.h"
#include "queue/table.h"
#include "weft/queue.h"

#define QUEUE_NAME_BYTES 32u
#define QUEUES_MAX       64u /* queues that one node may have open at once */
/* Calls that complete at least this many tasks fetch the tasks' memory in advance. The memory of fewer tasks is mostly in the cache. */
#define QUEUE_FETCH    32u
#define QUEUE_SLOTS    4096u
#define QUEUE_LEASE_NS (60 * WEFT_SECOND)
/* A claimer that waits looks again after CLAIM_FIRST_NS. Each further pause is twice as long, up to CLAIM_SLICE_NS. */
#define CLAIM_FIRST_NS WEFT_MS
#define CLAIM_SLICE_NS (10 * WEFT_MS)
/* How long a call waits for the answer of one node before it tries other nodes: QUEUE_LOOK_NS with time-out 0, else QUEUE_ANSWER_NS. */
#define QUEUE_LOOK_NS   (200 * WEFT_MS)
#define QUEUE_ANSWER_NS WEFT_SECOND

/* How this node reaches one other node's shard of a queue. When that node closes the queue and opens it again, a new view replaces the old
 * one. The old view is freed only when this node closes the queue, since another thread may still be using it. */
struct queue_view {
    struct slot_shard shard;
    struct weft_queue *q;
    weft_gaddr at;
    uint32_t node, incarnation; /* the shard's node, and the incarnation of the queue there */
    _Atomic bool gone;          /* the node died, left or closed the queue; set while the table's lock is held */
    _Atomic uint32_t attempts;  /* number of attempts to take a slot */
    /* Until this time other nodes are tried first, because an operation on this shard timed out; 0: none did. A hint, so relaxed. */
    _Atomic int64_t silent_until;
    uint32_t tried_room;         /* length of shard.tried */
    _Atomic uint64_t *tried_own; /* shard.tried, if this view allocated it; NULL: an older view did */
    uint32_t former;             /* number of older views of the same node, kept until this node closes the queue */
    struct queue_view *retired;
};
/* How many times another node may reopen a queue while this node has the queue open. Later reopenings are ignored. */
#define QUEUE_VIEWS_MAX 65536u

/* For tests: ways to force a code path. */
enum queue_force {
    QUEUE_REMOTE = 1, /* reach other nodes' shards through the fabric even where loads and stores would do */
    QUEUE_SPREAD = 2, /* place even the first tasks round-robin, not in the node's own shard */
};

/* A message that could not be sent. */
struct queue_unsent;

struct weft_queue {
    struct weft_node *w;
    char name[QUEUE_NAME_BYTES];
    uint64_t key;             /* the hash of the name */
    uint32_t incarnation;     /* how many queues this node has opened so far, including this one */
    _Atomic int64_t lease_ns; /* how long a claim in this node's shard lasts without renewal; relaxed */
    _Atomic uint32_t force;
    _Atomic bool shut, closed;
    _Atomic bool elsewhere; /* at least one shard is, or was, reached through the fabric */
    base_spin waiting_lock; /* guards `waiting`, and setting `closed` */
    uint32_t waiting;       /* number of threads inside calls that wait */

    struct queue_view *own;              /* this node's own shard; with submit_only a header without slots */
    _Atomic(struct queue_view *) *views; /* [size]; NULL: that node's shard is unknown */
    /* Nodes with a shard, in the order in which they appeared, including dead ones. In a cluster that grows, a new node may take the entry
     * of a node that is gone; otherwise entries do not change. */
    _Atomic uint32_t *serving;
    _Atomic uint32_t serving_count;
    struct queue_view *retired; /* list of old views; used by the progress thread, and by weft_queue_close() */
    _Atomic uint32_t asks;      /* number of ASKs sent so far; each drain that asks uses the next number */
    _Atomic uint32_t *none;     /* [size]: for each node, the newest ASK that it has answered with NONE */

    /* Submitter. */
    _Alignas(BASE_CACHE_LINE) struct table table;
    _Atomic uint32_t reapable; /* a copy of table.complete.count that is read without the lock */
    _Atomic uint32_t pending;  /* a copy of table.pending.count that is read without the lock */
    _Atomic uint32_t next;     /* round-robin over `serving` */

    /* Worker. */
    _Alignas(BASE_CACHE_LINE) _Atomic uint64_t claimed, stolen;
    _Atomic uint64_t refused;
    _Atomic uint32_t victim; /* the node to steal from next */
    base_spin unsent_lock;
    struct queue_unsent *unsent;

    /* About this node's own shard. Used by the progress thread only. */
    _Alignas(BASE_CACHE_LINE) struct slot_watch watch;
    _Atomic uint64_t requeued;
    int64_t next_scan;

    uint32_t users; /* number of handlers and hooks that are using the queue now; guarded by the lock of struct queue_room */
    /* Link of the list queue_room.closed. That list shows whether a handle is closed for the second time. */
    struct weft_queue *closed_before;
};

/* --- messages, all to QUEUE_HANDLER --- */
enum { QUEUE_HANDLER = FAB_ROOM_HANDLERS(1) };
enum queue_message_type {
    QUEUE_HELLO = 1, /* the sender has opened the queue and gives the address of its shard; the receiver answers with its own address */
    QUEUE_ANSWER,
    QUEUE_CLOSE,
    QUEUE_SHUTDOWN,
    QUEUE_DONES,  /* payload: struct queue_done_message[count] */
    QUEUE_SETTLE, /* payload: struct queue_settle_message[count], asks the receiver to settle slots of its shard */
    QUEUE_ASK,    /* asks whether the receiver has the queue open: it replies with ANSWER or NONE */
    QUEUE_NONE,   /* reply to ASK: the queue is not open at the sender. `count` is that of the ASK */
};
/* A message contains the key of its queue and the incarnations at both ends. If one end has closed and reopened the queue before it handles
 * the message, the incarnation shows that the message is for the former queue. */
struct queue_message {
    uint8_t type;
    uint8_t shut, slot_bits; /* slot_bits: only in HELLO and ANSWER; the shard has 2^(slot_bits - 1) slots, or no slots if slot_bits is 0 */
    uint8_t zero;
    uint32_t count;
    uint32_t incarnation; /* of the sender's queue */
    uint32_t to;          /* incarnation of the receiver's queue; 0: any incarnation (HELLO, CLOSE) */
    uint64_t key;
    weft_gaddr shard;
    char name[QUEUE_NAME_BYTES];
};
_Static_assert(sizeof(struct queue_message) == WEFT_HEADER_MAX, "a message header");

struct queue_done_message {
    uint64_t id;
    weft_gaddr slot; /* address of the slot's state word */
    uint64_t word;   /* the DONE word that the worker left in the slot */
    weft_gaddr result;
    uint64_t result_len;
    int32_t status;
    uint32_t reserved;
};
struct queue_settle_message {
    uint64_t from, to; /* arguments of slot_settle() */
    uint32_t slot, then;
};
#define QUEUE_SETTLES_MAX (WEFT_PAYLOAD_MAX / (uint32_t)sizeof(struct queue_settle_message))
#define QUEUE_DONES_MAX   (WEFT_PAYLOAD_MAX / (uint32_t)sizeof(struct queue_done_message))

/* The queues of a node. */
struct queue_room {
    base_spin lock;
    struct weft_queue *queues[QUEUES_MAX];
    struct weft_queue *closed;     /* list of closed queues; guarded by the lock; its entries never change */
    _Atomic uint32_t incarnations; /* how many queues this node has opened so far */
    _Atomic uint32_t unsent;       /* how many messages all queues together keep for sending later */
};

/* --- room.c --- */
int queue_open(struct weft_node *w);                             /* called before joining: the first message needs the handler */
uint32_t queue_room_incarnation(struct weft_node *w);            /* the incarnation for a queue that is being opened */
int queue_room_enter(struct weft_node *w, struct weft_queue *q); /* looks for the queue on other nodes; from now on messages reach q */
void queue_room_leave(struct weft_queue *q); /* returns when no handler uses q any more. q stays allocated until the node closes */

/* --- view.c --- */
struct queue_view *queue_view_make(struct weft_queue *q, uint32_t node, uint32_t incarnation, weft_gaddr at, uint32_t slots, bool remote);
/* Gives a view its shard.tried. If the array of the older view `old` is long enough, both views share it, so that reopening the queue takes
 * no more memory. Returns false if there is no memory. */
bool queue_view_tried(struct queue_view *v, const struct queue_view *old);
void queue_view_free(struct queue_view *v); /* no later view of the same node may be in use, since that view may share shard.tried */
/* The view of a node's shard; NULL if no shard of the node is known, or the node is gone. */
static inline struct queue_view *queue_view_of(const struct weft_queue *q, uint32_t node)
{
    struct queue_view *v = atomic_load_explicit(&q->views[node], memory_order_acquire);
    return v && !atomic_load_explicit(&v->gone, memory_order_relaxed) ? v : NULL;
}
static inline bool queue_view_silent(const struct queue_view *v)
{
    int64_t until = atomic_load_explicit(&v->silent_until, memory_order_relaxed);
    return BASE_UNLIKELY(until != 0) && base_now_ns() < until;
}
/* Whether the calling thread may use the view. A handler may use only shards that need no waiting. No caller may use the shard of a node
 * that has recently failed to answer. */
static inline bool queue_view_usable(const struct queue_view *v)
{
    return v && v->shard.slots && (v->shard.mem || (!fab_in_handler() && !queue_view_silent(v)));
}
/* Bound how long this thread's operations on shards wait, for a call that ends at `deadline`. Returns the former limit. Pass that to
 * fab_limit() when the call ends. */
int64_t queue_limit(int64_t deadline);
/* Returns the view of the shard that has a slot at address `slot`, and stores the slot's index. Returns NULL if no known shard has such a
 * slot. */
struct queue_view *queue_slot_find(const struct weft_queue *q, weft_gaddr slot, uint32_t *index);
static inline weft_gaddr queue_slot_address(const struct queue_view *v, uint32_t slot)
{
    return v->at + ((uint64_t)SLOT_HEADER_WORDS + (uint64_t)slot * SLOT_WORDS) * 8;
}
/* Called after tasks were made ready in the shard of `v`: wake an idle node, preferably the shard's own. */
void queue_wake(struct weft_queue *q, struct queue_view *v);
/* The value by which slots identify this node as their owner. */
static inline uint64_t queue_user(const struct weft_queue *q)
{
    return slot_user(q->w->rank, q->incarnation);
}
/* Store the numbers of submitted and completed tasks in the header of this node's shard, where weft_drain() of any node reads them. The
 * caller holds the table's lock. */
void queue_publish_counts(struct weft_queue *q);

/* --- submit.c --- */
/* Take completions of this node's tasks that `worker` has sent. */
void queue_accept(struct weft_queue *q, uint32_t worker, const struct queue_done_message *dones, uint32_t count);
/* Try to place pending tasks again. */
void queue_place_pending(struct weft_queue *q);
/* Node v->node is gone: use its shard no more. This node's tasks in that shard become pending. */
void queue_home_gone(struct weft_queue *q, struct queue_view *v);

/* --- outbox.c --- */
int queue_send(struct weft_queue *q, uint32_t node, enum queue_message_type type, uint32_t to, const void *payload, uint32_t count,
               size_t payload_len);
/* Send a message, or keep it and send it later if there is no room now. Never waits. A kept message is dropped only when the receiver dies
 * or leaves. */
void queue_post(struct weft_queue *q, uint32_t node, enum queue_message_type type, uint32_t to, const void *payload, uint32_t count,
                size_t len);
/* Keep a message that could not be sent, and send it later. */
void queue_keep(struct weft_queue *q, uint32_t node, enum queue_message_type type, uint32_t to, const void *payload, uint32_t count,
                size_t len);
void queue_send_unsent(struct weft_queue *q);
void queue_drop_unsent(struct weft_queue *q);
uint32_t queue_unsent_count(const struct weft_queue *q); /* for tests; the caller holds unsent_lock */
/* Send HELLO or CLOSE to every other node that is alive, or SHUTDOWN to the nodes that are known to have the queue open. A node that opens
 * the queue later learns of a shutdown by the ANSWER to its HELLO. */
void queue_tell_all(struct weft_queue *q, enum queue_message_type type);

/* --- wait.c --- */
/* Begin a wait: until it ends, the queue cannot be closed. Returns -EBADF if the queue is closed already. */
int queue_begin_wait(struct weft_queue *q);
void queue_end_wait(struct weft_queue *q);
int queue_refuse_closed(const struct weft_queue *q); /* sets the error of a call on a closed queue, and returns -EBADF */
/* fab_patience_check() and fab_patience_say(), for waits in a queue. */
int queue_check(struct weft_queue *q, struct fab_patience *p);
void queue_say(const struct weft_queue *q, const struct fab_patience *p, const char *what, const char *whom);

/* --- upkeep.c --- */
/* Does the work that is due now. Returns after how many ns it should be called again. Called by the progress thread. */
int64_t queue_tick(struct weft_queue *q, int64_t now);
void queue_free_watch(struct slot_watch *watch);
void queue_destroy(struct weft_queue *q); /* free the queue's private memory; no thread may be using it */

/* --- queue.c --- */
static inline bool queue_elsewhere(const struct weft_queue *q)
{
    return atomic_load_explicit(&q->elsewhere, memory_order_relaxed);
}
/* Whether this node has closed the queue. */
static inline bool queue_closed(const struct weft_queue *q)
{
    return BASE_UNLIKELY(atomic_load_explicit(&q->closed, memory_order_relaxed));
}

/* Whether weft_queue_shutdown() has reached this node. */
static inline bool queue_is_shut(const struct weft_queue *q)
{
    return atomic_load_explicit(&q->shut, memory_order_relaxed);
}

/* For tests only: call it after all views exist and before the queue is used. */
void queue_set_force(weft_queue *q, uint32_t force);
void queue_set_lease(weft_queue *q, int64_t lease_ns); /* the lease of all claims in this node's shard, including existing ones */

#endif
