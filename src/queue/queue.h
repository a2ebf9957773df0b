/* SPDX-License-Identifier: MIT
 *
 * queue: the room's own header. No room above needs it; tests use queue_set_force() and queue_set_lease().
 *
 * Each file calls only those before it:
 *
 *   slot.c    the protocol of one shard: pure, over words
 *   table.c   what this node has submitted and not reaped: private
 *   outbox.c  messages to other nodes, kept until they find room
 *   view.c    how this node reaches the shards: its own, and those of others, by loads and stores or by the fabric
 *   wait.c    around waits
 *   submit.c  submitting, completions as the submitter sees them, reaping
 *   claim.c   claiming, completing, renewing, releasing
 *   drain.c   waiting until all work of all nodes is complete
 *   upkeep.c  a queue between its opening and its end
 *   room.c    the queues of this node: finding each other, messages, the death of nodes
 *   queue.c   open, close, shutdown, statistics
 *
 * The way of a task: the submitter notes it in its table (OUT, at a home), writes it into a slot of that home's
 * shard, and wakes a node that may be asleep. A worker claims it from its own shard or another's, and when done
 * swaps the slot to DONE and tells the submitter by message. The submitter finds the id in its table: the first
 * completion counts and can be reaped, any other is dropped; either way it frees the slot.
 *
 * Who dies, and what then (`gone` in room.c, which a weft_queue_close() elsewhere also calls):
 *   worker     each home makes its claims ready again; also what it had done but the submitter has not freed, since
 *              the message may have died with it. If it had not, the task runs twice and the second completion is
 *              dropped: fab_peer_gone() delivers the last messages first, but homes and submitters learn of a death
 *              at different times.
 *   submitter  each home frees its tasks; completions of them are refused.
 *   home       each submitter has its tasks in that shard pending and places them elsewhere. Workers that had claimed
 *              there are refused; if one's completion comes through all the same, it counts if it is the first.
 *
 * SLEEPING. A claimer sets the `idle` word of its own node's header to 1, then looks at the shards, then sleeps. Who
 * made work ready looks at idle afterwards; finding 1 it swaps it to 0 and wakes that node. Both steps are seq_cst on
 * both sides (store idle, load tail | raise tail, load idle), so not both can miss. Only a node's own shard is
 * covered by this; work elsewhere is found because submitters look for other idle nodes, and at the latest when a
 * claimer looks again by itself (CLAIM_SLICE_NS).
 */
#ifndef WEFT_QUEUE_ROOM_H
#define WEFT_QUEUE_ROOM_H

#include "fabric/fabric.h"
#include "queue/slot.h"
#include "queue/table.h"
#include "weft/queue.h"

#define QUEUE_NAME_BYTES 32u
#define QUEUES_MAX       64u /* open at once on a node */
#define QUEUE_SLOTS      4096u
#define QUEUE_LEASE_NS   (60 * WEFT_SECOND)
#define CLAIM_SLICE_NS   (10 * WEFT_MS)
/* A call that is not to wait gives a node that it must ask so long to answer; one that may wait gives no single node longer than the
 * other, since the next may have what it looks for. */
#define QUEUE_LOOK_NS   (200 * WEFT_MS)
#define QUEUE_ANSWER_NS WEFT_SECOND

/* One node's part of one queue, as this node reaches it. A node that closes and opens again gets a new view; the
 * old ones live until this node closes the queue, since another thread may be using them. */
struct queue_view {
    struct slot_shard shard;
    struct weft_queue *q;
    weft_gaddr at;
    uint32_t node, incarnation;   /* of the queue there */
    _Atomic bool gone;            /* set under the table's lock */
    _Atomic uint32_t attempts;    /* to take a slot */
    _Atomic int64_t silent_until; /* its node has not answered: until then others are asked first; 0: it has; relaxed, a hint */
    uint32_t former;              /* views of that node in this queue before it: they are kept until this node closes the queue */
    struct queue_view *retired;
};
/* A node that opens a queue anew more often, while this one has it open, is not followed any more. */
#define QUEUE_VIEWS_MAX 65536u

/* Tests: what to do otherwise than usual. */
enum queue_force {
    QUEUE_REMOTE = 1, /* reach other nodes' shards through the fabric even where loads and stores would do */
    QUEUE_SPREAD = 2, /* place tasks round-robin from the first */
};

/* A message that could not be sent. */
struct queue_unsent;

struct weft_queue {
    struct weft_node *w;
    char name[QUEUE_NAME_BYTES];
    uint64_t key;             /* of the name */
    uint32_t incarnation;     /* which of the queues that this node opened, from 1 on */
    _Atomic int64_t lease_ns; /* relaxed: a setting of the home's */
    _Atomic uint32_t force;
    _Atomic bool shut, closed;
    _Atomic bool elsewhere; /* one of the shards was ever such that it is reached by waiting */
    base_spin waiting_lock; /* of `waiting` and the change of `closed` */
    uint32_t waiting;       /* threads in calls that wait */

    struct queue_view *own;              /* the header even with submit_only */
    _Atomic(struct queue_view *) *views; /* [size]; NULL: not known */
    /* Nodes with a shard, in the order they appeared, the dead included: entries below the count never change. */
    uint32_t *serving;
    _Atomic uint32_t serving_count;
    struct queue_view *retired; /* the progress thread's and close's */
    _Atomic uint32_t asks;      /* ASKs so far: each drain that needs one has a number */
    _Atomic uint32_t *none;     /* [size]: the newest of them that the node has answered with NONE */

    /* Submitter. */
    _Alignas(BASE_CACHE_LINE) struct table table;
    _Atomic uint32_t reapable; /* table.complete.count, to look at without the lock */
    _Atomic uint32_t pending;  /* table.pending.count, likewise */
    _Atomic uint32_t next;     /* round-robin over `serving` */

    /* Worker. */
    _Alignas(BASE_CACHE_LINE) _Atomic uint64_t claimed, stolen;
    _Atomic uint64_t refused;
    _Atomic uint32_t victim; /* where to steal next */
    base_spin unsent_lock;
    struct queue_unsent *unsent;

    /* Home; the progress thread's. */
    _Alignas(BASE_CACHE_LINE) struct slot_watch watch;
    _Atomic uint64_t requeued;
    int64_t next_scan;

    uint32_t users;                   /* handlers and hooks inside; under the room's lock */
    struct weft_queue *closed_before; /* in the room's list of what was closed: a second close must find out that it is one */
};

/* --- messages, all to QUEUE_HANDLER --- */
enum { QUEUE_HANDLER = FAB_ROOM_HANDLERS(1) };
enum queue_message_type {
    QUEUE_HELLO = 1, /* I have opened it, my shard is there: answer with yours */
    QUEUE_ANSWER,
    QUEUE_CLOSE,
    QUEUE_SHUTDOWN,
    QUEUE_DONES,  /* payload: struct queue_done_message[count] */
    QUEUE_SETTLE, /* payload: struct queue_settle_message[count], about the receiver's shard */
    QUEUE_ASK,    /* who has it open: ANSWER, */
    QUEUE_NONE,   /* and who has not; `count` is the ASK's */
};
/* Each names the queues it means, not only by name: a message may be handled late, when one or both ends have closed the queue that it
 * is about, and have opened it again. */
struct queue_message {
    uint8_t type;
    uint8_t shut, slot_bits; /* HELLO, ANSWER, as is `shard`; slots: 2^(slot_bits - 1), or none */
    uint8_t zero;
    uint32_t count;
    uint32_t incarnation; /* the sender's */
    uint32_t to;          /* the receiver's; 0: whichever is open there (HELLO, CLOSE) */
    uint64_t key;
    weft_gaddr shard;
    char name[QUEUE_NAME_BYTES];
};
_Static_assert(sizeof(struct queue_message) == WEFT_HEADER_MAX, "a message header");

struct queue_done_message {
    uint64_t id;
    weft_gaddr slot; /* of its state word */
    uint64_t word;   /* the DONE word in it */
    weft_gaddr result;
    uint64_t result_len;
    int32_t status;
    uint32_t reserved;
};
struct queue_settle_message {
    uint64_t from, to; /* slot_settle() */
    uint32_t slot, then;
};
#define QUEUE_SETTLES_MAX (WEFT_PAYLOAD_MAX / (uint32_t)sizeof(struct queue_settle_message))
#define QUEUE_DONES_MAX   (WEFT_PAYLOAD_MAX / (uint32_t)sizeof(struct queue_done_message))

/* The queues of a node. */
struct queue_room {
    base_spin lock;
    struct weft_queue *queues[QUEUES_MAX];
    struct weft_queue *closed;     /* under the lock; what is in the list never changes */
    _Atomic uint32_t incarnations; /* queues that this node has opened so far */
    _Atomic uint32_t unsent;       /* messages that queues keep */
};

/* --- room.c --- */
int queue_open(struct weft_node *w);                             /* before joining: its handler must be there for the first message */
uint32_t queue_room_incarnation(struct weft_node *w);            /* of a queue that is being opened */
int queue_room_enter(struct weft_node *w, struct weft_queue *q); /* find the others; from now on messages reach q */
void queue_room_leave(struct weft_queue *q); /* returns when no handler is inside q; the room frees it at the node's end */

/* --- view.c --- */
struct queue_view *queue_view_make(struct weft_queue *q, uint32_t node, uint32_t incarnation, weft_gaddr at, uint32_t slots, bool remote);
/* The view of a node; NULL when it has none or is gone. */
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
/* Whether to use it from here: in a handler only those that never wait, and none whose node did not answer just now. */
static inline bool queue_view_usable(const struct queue_view *v)
{
    return v && v->shard.slots && (v->shard.mem || (!fab_in_handler() && !queue_view_silent(v)));
}
/* No operation of this thread on shards waits longer from now on: of a call that ends at `deadline`. Returns what to give to fab_limit()
 * afterwards. */
int64_t queue_limit(int64_t deadline);
/* The view and slot of a slot's address; NULL when it is not one of a shard that is known. */
struct queue_view *queue_slot_find(const struct weft_queue *q, weft_gaddr slot, uint32_t *index);
static inline weft_gaddr queue_slot_address(const struct queue_view *v, uint32_t slot)
{
    return v->at + ((uint64_t)SLOT_HEADER_WORDS + (uint64_t)slot * SLOT_WORDS) * 8;
}
/* After work was made ready at `v`: wake a node that sleeps, its own first. */
void queue_wake(struct weft_queue *q, struct queue_view *v);
/* Who this node is to slots: in this queue, and no other that it opened. */
static inline uint64_t queue_user(const struct weft_queue *q)
{
    return slot_user(q->w->rank, q->incarnation);
}
/* Store this node's counters where drains look. Under the table's lock. */
void queue_publish_counts(struct weft_queue *q);

/* --- submit.c --- */
/* Completions for tasks of this queue, from `worker`. */
void queue_accept(struct weft_queue *q, uint32_t worker, const struct queue_done_message *dones, uint32_t count);
/* Try to place pending tasks again. */
void queue_place_pending(struct weft_queue *q);
/* The home behind a view is gone: no more to it, and what it had of ours is pending. */
void queue_home_gone(struct weft_queue *q, struct queue_view *v);

/* --- outbox.c --- */
int queue_send(struct weft_queue *q, uint32_t node, enum queue_message_type type, uint32_t to, const void *payload, uint32_t count,
               size_t payload_len);
/* Send, and if there is no room now keep it and send it later: never waits. The node's death is the only end that it has else. */
void queue_post(struct weft_queue *q, uint32_t node, enum queue_message_type type, uint32_t to, const void *payload, uint32_t count,
                size_t len);
/* Only the second half, for what could not be sent. */
void queue_keep(struct weft_queue *q, uint32_t node, enum queue_message_type type, uint32_t to, const void *payload, uint32_t count,
                size_t len);
void queue_send_unsent(struct weft_queue *q);
void queue_drop_unsent(struct weft_queue *q);
uint32_t queue_unsent_count(const struct weft_queue *q); /* for tests; under unsent_lock */
/* HELLO or CLOSE to every other node that is alive. SHUTDOWN to those whose queue is known: others will ask, and are answered. */
void queue_tell_all(struct weft_queue *q, enum queue_message_type type);

/* --- wait.c --- */
/* Around a wait: the queue cannot be closed meanwhile. -EBADF when it is already. */
int queue_begin_wait(struct weft_queue *q);
void queue_end_wait(struct weft_queue *q);
int queue_refuse_closed(const struct weft_queue *q); /* a call on a queue that this node has closed: -EBADF */
/* fab_patience_check() and fab_patience_say() for waits of this room. */
int queue_check(struct weft_queue *q, struct fab_patience *p);
void queue_say(const struct weft_queue *q, const struct fab_patience *p, const char *what, const char *whom);

/* --- upkeep.c --- */
int64_t queue_tick(struct weft_queue *q, int64_t now); /* ns until the next; in the progress thread */
void queue_free_watch(struct slot_watch *watch);
void queue_destroy(struct weft_queue *q); /* free what is private; nobody is inside */

/* --- queue.c --- */
static inline bool queue_elsewhere(const struct weft_queue *q)
{
    return atomic_load_explicit(&q->elsewhere, memory_order_relaxed);
}
/* This node has closed it. */
static inline bool queue_closed(const struct weft_queue *q)
{
    return BASE_UNLIKELY(atomic_load_explicit(&q->closed, memory_order_relaxed));
}

/* Tests only: once the views are there and before the queue is used. */
void queue_set_force(weft_queue *q, uint32_t force);
void queue_set_lease(weft_queue *q, int64_t lease_ns); /* of the claims in this node's shard, those there are included */

#endif
