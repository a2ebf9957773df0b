/* SPDX-License-Identifier: MIT
 *
 * slot: the protocol of one shard of a queue, as functions over its words. Knows nothing of nodes, messages or the
 * fabric, so that it can be tested on plain memory and compared line by line with the model (tests/model/slot.pml).
 *
 * A shard is a header and a ring of `slots` slots of 128 bytes. All of it is 64-bit words that are only touched
 * atomically. A slot holds at most one task:
 *
 *            submitter         submitter         worker              worker
 *     FREE ------------> WRITING --------> READY --------> CLAIMED ----------> DONE
 *      ^                    |                ^ ^              |  |               | |
 *      |   home: submitter  |                | +--- home: ----+  |               | |
 *      |   is gone (from    |                | owner gone, lease |               | |
 *      |   any state)       |                | over; worker:     |               | |
 *      +--------------------+                | released          | home:         | |
 *      |                                     +-------------------)- worker gone -+ |
 *      +------------------- submitter: has accepted the completion ----------------+
 *
 * Each arrow is one compare-and-swap of the whole state word, and each raises the version in it. So:
 *   - a word that was seen once never comes back (but for a wrap of 2^32 changes of one slot): who holds a claimed
 *     word and still finds it there owns the task, and a stale owner's swap fails;
 *   - a reader that loads the word, copies the fields and swaps that same word knows that the copy is whole: fields
 *     are only written in WRITING, which lies at least two versions away.
 * The slot never holds a result: a worker that lost its lease could still write there.
 *
 * POSITIONS. `tail` and `head` count positions; position p is slot p % slots. Submitters fill slots from tail on,
 * skipping those in use, and then raise tail; tail only grows. Claimers look at [head, tail), at most the last
 * `slots` positions, and then raise head past what they looked at. What is READY must never be behind head, or no
 * claimer would find it. Two rules see to that:
 *   1. Whoever makes a slot ready that claimers may have passed (a requeue, a release, or a submitter that finds
 *      tail already past its slot) changes head afterwards: lowers it to the slot where it is beyond, and in any
 *      case raises the version in the head word.
 *   2. A claimer raises head only from a word with the version it read before it looked at the first slot.
 * The home has another way for a slot that it makes ready: it raises tail past the slot's next position, which no claimer can have
 * passed.
 * Say a slot becomes ready after a claimer has passed it. If rule 1's change of head comes before the claimer's, the
 * claimer's swap fails; if it comes after, it sees the raised head and lowers it. A submitter whose raise of tail
 * starts from at or below its first position needs nothing: no claimer went past tail, so head is not beyond.
 *
 * WHAT MAY HAVE HAPPENED. A swap of a shard that is reached through the fabric can end without an answer: the home was stopped past the
 * deadline, or the link broke. It may have happened, and it may still happen later. Who gave up says which word the swap was to change, and
 * into which, and what is to become of the slot; the home, to which all words are near, swaps either of them for a third (slot_settle()).
 * Both words are then past, and neither can come back, so a swap that is late finds nothing that it would change. What becomes of it:
 *   take a free slot     free again; also when the fields could not be written
 *   make it ready        it is ready: the task counts as submitted
 *   claim                ready again
 *   complete, release    ready again: the caller hears that it was refused, so another is to do the task
 *   renew                nothing is to be done: the claim keeps its word, and the next call finds either that or its successor
 *   free                 is always the home's doing, since the submitter cannot wait
 */
#ifndef WEFT_QUEUE_SLOT_H
#define WEFT_QUEUE_SLOT_H

#include "base/base.h"

#define SLOT_WORDS      16u /* 128 bytes */
#define SLOT_TASK_WORDS 8u
#define SLOT_COUNT_MAX  (UINT32_C(1) << 20)

/* Words of the header. Those with different writers are two cache lines apart: processors fetch lines in pairs. */
enum slot_header {
    SLOT_TAIL = 0,       /* position: submitters */
    SLOT_HEAD = 16,      /* version(32) . position, its low 32 bits: claimers */
    SLOT_IDLE = 32,      /* 1: a claimer of the home may be asleep; who takes it to 0 wakes it */
    SLOT_COMPLETED = 48, /* tasks of the home node, in any shard; written by the home only, as are these: */
    SLOT_SUBMITTED = 49, /* by the home node, to any shard */
    SLOT_CLOSED = 50,    /* 1: the home has closed the queue, and this shard is nobody's any more */
    SLOT_HEADER_WORDS = 64
};

/* Words of a slot. The state and what a claim needs first share a line, the task has the other. */
enum slot_field { SLOT_STATE = 0, SLOT_ID = 1, SLOT_SUBMITTER = 2, SLOT_TASK = 8 };

/* Who submits and claims: a node, and which of the queues that it opened one after the other, from 1 on. What was meant for a queue
 * that has been closed must not touch the one that was opened after it. The slot's word for its submitter: incarnation(32) . node(32). */
static inline uint64_t slot_user(uint32_t node, uint32_t incarnation)
{
    return (uint64_t)incarnation << 32 | node;
}

static inline uint32_t slot_user_node(uint64_t user)
{
    return (uint32_t)user;
}

static inline uint32_t slot_user_incarnation(uint64_t user)
{
    return (uint32_t)(user >> 32);
}

/* The state word: version(32) . owner(16) . attempt(8) . the owner's incarnation, its low bits(5) . status(3). While WRITING the two before
 * the status are the number of the attempt to take the slot. */
enum slot_status { SLOT_FREE, SLOT_WRITING, SLOT_READY, SLOT_CLAIMED, SLOT_DONE };
#define SLOT_INCARNATION_MASK 31u

static inline enum slot_status slot_status(uint64_t word)
{
    return (enum slot_status)(word & 7);
}

/* Of the owner's incarnation: what the word has of it. */
static inline uint32_t slot_incarnation(uint64_t word)
{
    return (uint32_t)(word >> 3) & SLOT_INCARNATION_MASK;
}

static inline uint32_t slot_attempt(uint64_t word)
{
    return (uint32_t)(word >> 8) & 0xffu;
}

static inline uint32_t slot_owner(uint64_t word)
{
    return (uint32_t)(word >> 16) & 0xffffu;
}

/* The word after `word`: the version one higher. The attempt stays at 255 once there. */
static inline uint64_t slot_next(uint64_t word, uint64_t owner, uint32_t attempt, enum slot_status status)
{
    uint64_t version = (word >> 32) + 1;
    return version << 32 | (owner & 0xffffu) << 16 | (uint64_t)(attempt > 255 ? 255 : attempt) << 8 |
           (uint64_t)(slot_user_incarnation(owner) & SLOT_INCARNATION_MASK) << 3 | (uint64_t)status;
}

/* The same owner's. */
static inline uint64_t slot_next_same(uint64_t word, enum slot_status status)
{
    return slot_next(word, slot_user(slot_owner(word), slot_incarnation(word)), slot_attempt(word), status);
}

/* How to reach a shard that this process cannot load from and store to. Each returns 0 or a negative errno. */
struct slot_remote {
    int (*load)(void *arg, uint32_t word, uint64_t *out, uint32_t count);
    int (*store)(void *arg, uint32_t word, const uint64_t *in, uint32_t count); /* seen before a later swap */
    int (*swap)(void *arg, uint32_t word, uint64_t expected, uint64_t desired, uint64_t *old);
    /* Another number each time: two attempts of this node to take a slot in the same state must not look alike, or settling the one that it
     * gave up would undo the other. */
    uint32_t (*number)(void *arg);
    /* Have the home call slot_settle(), sooner or later. */
    void (*settle)(void *arg, uint32_t slot, uint64_t from, uint64_t to, enum slot_status then);
};

struct slot_shard {
    _Atomic uint64_t *mem; /* NULL: through `remote` */
    const struct slot_remote *remote;
    void *arg;
    uint32_t slots; /* a power of two; 0: a header only */
};

struct slot_claim {
    uint64_t word; /* the claimed word */
    uint64_t id;
    uint64_t submitter; /* slot_user() */
    uint32_t slot;
    uint64_t task[SLOT_TASK_WORDS];
};

static inline uint64_t slot_shard_bytes(uint32_t slots)
{
    return ((uint64_t)SLOT_HEADER_WORDS + (uint64_t)slots * SLOT_WORDS) * sizeof(uint64_t);
}

/* Make an empty shard of fresh memory, before anyone else knows of it. */
void slot_format(struct slot_shard *s);

/* What the home has submitted, and had completed before. */
int slot_counts(const struct slot_shard *s, uint64_t *submitted, uint64_t *completed, bool *closed);
/* 1 swapped, 0 not, or an error. */
int slot_header_swap(const struct slot_shard *s, enum slot_header word, uint64_t expected, uint64_t desired);

/* Submitter `user`: place up to `count` tasks (task i: words at tasks + i * SLOT_TASK_WORDS). Returns how many, the
 * first ones; 0 when there is no room. */
int slot_submit(const struct slot_shard *s, uint64_t user, uint32_t attempt, const uint64_t *tasks, const uint64_t *ids, uint32_t count);

/* Worker `user`: claim up to `max`, with `half` at most half of what is there. Slots whose submitter is not below
 * `nodes` are not touched. Returns how many. */
int slot_claim(const struct slot_shard *s, uint64_t user, uint32_t nodes, struct slot_claim *out, uint32_t max, bool half);

/* Worker: `word` is the word it claimed. -ESTALE when the slot has another one now; else `*now` is the new word. Another error is the
 * fabric's: then it is not known whether it happened (see above). */
int slot_complete(const struct slot_shard *s, uint32_t slot, uint64_t word, uint64_t *now);
int slot_renew(const struct slot_shard *s, uint32_t slot, uint64_t word, uint64_t *now);
int slot_release(const struct slot_shard *s, uint32_t slot, uint64_t word);

/* Home: a swap of `from` for `to` may have happened, or happens later: whichever is there becomes FREE or READY, and claimers find what is
 * ready. With `to` 0 only the latter. True: claimers have something to look at. */
bool slot_settle(const struct slot_shard *s, uint32_t slot, uint64_t from, uint64_t to, enum slot_status then);

/* Submitter: it has accepted the completion that left `word` (DONE) in the slot. -ESTALE when the home took it back. */
int slot_free(const struct slot_shard *s, uint32_t slot, uint64_t word);

/* Positions that claimers have not looked at yet: an upper bound of what is ready, 0 when nothing is. */
uint32_t slot_backlog(const struct slot_shard *s);
/* Whether a submitter would find room at once (it may find some where this says no). */
bool slot_room(const struct slot_shard *s);

/* Home: node `node` is gone. Its tasks are freed, its claims made ready again; returns how many of the latter. */
uint32_t slot_gone(const struct slot_shard *s, uint32_t node);
/* Home: it lives, and has closed that queue of its own: the same for what is that one's (or an earlier one's), and nothing of the queue
 * that the node may have opened since. What it is writing is the newer one's: who closes a queue submits no more. */
uint32_t slot_closed(const struct slot_shard *s, uint64_t user);

/* Who has claimed tasks of this submitter: in[node] is set; about, and slow. */
void slot_workers(const struct slot_shard *s, uint32_t submitter, uint32_t nodes, bool in[]);

/* Home: what it has seen of its slots, private to it. */
struct slot_watch {
    uint64_t *word; /* [slots]: the claimed word last seen; 0: none */
    int64_t *since; /* [slots]: `clock` when it was first seen */
    uint64_t tail;  /* of the last look */
    bool empty;     /* and nothing was in use then */
    int64_t looked; /* when that was; 0: never */
    int64_t clock;  /* time that counts for leases, ns */
};

/* Home: end the leases of claims whose word has not changed for lease_ns; returns how many. `due_ns`: when this look was to be. One that
 * comes later than that by more than a lease means that this node was stopped, and so perhaps were the owners (Ctrl-Z stops a whole job):
 * of that time no more counts than was planned, and each look counts for something, so every lease ends. Also lowers head for
 * ready slots behind it, which a maker that died between its two steps leaves. Cheap on a shard nobody uses. */
uint32_t slot_expire(const struct slot_shard *s, struct slot_watch *watch, int64_t due_ns, int64_t now_ns, int64_t lease_ns);

#endif
