/* SPDX-License-Identifier: MIT
 *
 * The protocol of one shard of a queue, as functions over its words. These functions know nothing of nodes, messages or the fabric, so that
 * they can be tested on plain memory and compared with the model (tests/model/slot.pml).
 *
 * A shard is a header and a ring of `slots` slots of 128 bytes. It lies in the pool of one node, its home. Header and slots are 64-bit
 * words, which are only accessed atomically. A slot holds at most one task:
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
 * Each arrow is one compare-and-swap of the whole state word, and raises the version in the word. So:
 *   - a word that was seen once never comes back (except after 2^32 changes of one slot): a worker that finds its claimed
 *     word still in the slot owns the task, and the swap of any former owner fails;
 *   - a reader that loads the word, copies the fields and swaps that same word knows that the copy is whole: fields
 *     are only written in WRITING, which lies at least two versions away.
 * A slot never holds a result: a worker whose lease has ended could overwrite it.
 *
 * POSITIONS. `tail` and `head` count positions; position p is slot p % slots. Submitters fill slots from tail on,
 * skipping those in use, and then raise tail; tail only grows. Claimers look at [head, tail), at most the last
 * `slots` positions, and then raise head past what they looked at. A READY slot must never be behind head, or no claimer would find it. Two
 * rules see to that:
 *   1. Claimers may already have passed a slot when it is made ready: by a requeue, by a release, or by a submitter that finds tail past
 *      its slot. The thread that makes such a slot ready changes the head word afterwards. It raises the version in the word and, if
 *      head is beyond the slot, lowers head to the slot.
 *   2. A claimer raises head only from a word with the version it read before it looked at the first slot.
 * Instead of rule 1, the home may raise tail past the next position of a slot that it made ready. No claimer can have passed that position.
 * Say a slot becomes ready after a claimer has passed it. If rule 1 changes head before the claimer does, the claimer's swap fails. If rule
 * 1 changes head later, it sees the raised head and lowers it. If a submitter finds tail at or below its first position, it need not change
 * head, because no claimer goes past tail.
 *
 * SWAPS WITHOUT AN ANSWER. A swap through the fabric can end without an answer: the home's process was stopped past the deadline, or the
 * link broke. Then nobody knows whether the swap has happened, or will happen later. The node that gave up sends the home the expected
 * word, the desired word, and the state that the slot should get. The home then swaps whichever of the two words is there for a third one
 * (slot_settle()). Each change raises the version, so neither word can return, and a late swap fails. What the home does with the slot
 * depends on the operation that was given up:
 *   take a free slot     makes it free again, also if the fields could not be written
 *   make it ready        makes it ready: the task counts as submitted
 *   claim                makes it ready again
 *   complete, release    makes it ready again: the caller is told that the call was refused, so another worker must do the task
 *   renew                nothing: the next call of the owner finds its word or the successor of this word
 *   free                 frees it. Through the fabric, the home always frees slots, since the submitter must not wait
 * All threads of a node would swap a READY word for the same claimed word. So a node tries each READY word only once through the fabric
 * (slot_shard.tried). Otherwise, settling a claim that one thread has given up could undo the claim of another thread.
 */
#ifndef WEFT_QUEUE_SLOT_H
#define WEFT_QUEUE_SLOT_H

#include "base/base.h"

#define SLOT_WORDS      16u /* 128 bytes */
#define SLOT_TASK_WORDS 8u
#define SLOT_COUNT_MAX  (UINT32_C(1) << 20)
#define SLOT_BEHIND     (UINT32_C(1) << 20)

/* Words of the header. Words with different writers are two cache lines apart: processors fetch lines in pairs. */
enum slot_header {
    SLOT_TAIL = 0,  /* a position; written by submitters */
    SLOT_HEAD = 16, /* version(32) . low 32 bits of a position; written by claimers */
    SLOT_IDLE = 32, /* 1: a claimer of the home may be asleep; the node that swaps this word to 0 must wake the claimer */
    /* Only the home writes these three words. */
    SLOT_COMPLETED = 48, /* completed tasks that the home node submitted to any shard */
    SLOT_SUBMITTED = 49, /* tasks that the home node submitted to any shard */
    SLOT_CLOSED = 50,    /* 1: the home has closed the queue, and this shard is no longer in use */
    SLOT_HEADER_WORDS = 64
};

/* Words of a slot. The state and the words that a claim reads first share a cache line; the task fills the slot's second line. */
enum slot_field { SLOT_STATE = 0, SLOT_ID = 1, SLOT_SUBMITTER = 2, SLOT_TASK = 8 };

/* The submitter or worker of a slot: incarnation(32) . node(32). Each time a node opens a queue, the queue gets a new incarnation, so that
 * operations for a closed queue cannot change a queue that was opened later. */
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

/* The state word, from the high bits down: version(32) . owner(16) . attempt(8) . low bits of the owner's incarnation(5) . status(3). While
 * WRITING, the attempt and the incarnation together hold the number of the attempt to take the slot. */
enum slot_status { SLOT_FREE, SLOT_WRITING, SLOT_READY, SLOT_CLAIMED, SLOT_DONE };
#define SLOT_INCARNATION_MASK 31u

static inline enum slot_status slot_status(uint64_t word)
{
    return (enum slot_status)(word & 7);
}

/* The low bits of the owner's incarnation, as many as the word holds. */
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

/* The successor of `word`: its version is one higher. The attempt counter stops at 255. */
static inline uint64_t slot_next(uint64_t word, uint64_t owner, uint32_t attempt, enum slot_status status)
{
    uint64_t version = (word >> 32) + 1;
    return version << 32 | (owner & 0xffffu) << 16 | (uint64_t)(attempt > 255 ? 255 : attempt) << 8 |
           (uint64_t)(slot_user_incarnation(owner) & SLOT_INCARNATION_MASK) << 3 | (uint64_t)status;
}

/* The successor of `word` with the same owner and attempt. */
static inline uint64_t slot_next_same(uint64_t word, enum slot_status status)
{
    return slot_next(word, slot_user(slot_owner(word), slot_incarnation(word)), slot_attempt(word), status);
}

/* How to reach a shard that this process cannot load from and store to. Each function returns 0 or a negative errno. After an error, the
 * operation must not touch `out` and `in` any more, because they are on the caller's stack. A load has at most SLOT_LOAD_WORDS. */
#define SLOT_LOOK       16u /* a claimer reads the state words of this many slots at once */
#define SLOT_LOAD_WORDS ((SLOT_LOOK - 1) * SLOT_WORDS + 1)
struct slot_remote {
    int (*load)(void *arg, uint32_t word, uint64_t *out, uint32_t count);
    int (*store)(void *arg, uint32_t word, const uint64_t *in, uint32_t count); /* the stored words are visible before any later swap */
    int (*swap)(void *arg, uint32_t word, uint64_t expected, uint64_t desired, uint64_t *old);
    /* Returns a new number at each call, so that two attempts of this node to take the same slot differ. Otherwise, settling the first
     * attempt could undo the second one. */
    uint32_t (*number)(void *arg);
    /* Ask the home, by message, to call slot_settle(). */
    void (*settle)(void *arg, uint32_t slot, uint64_t from, uint64_t to, enum slot_status then);
};

struct slot_shard {
    _Atomic uint64_t *mem; /* NULL: the shard is reached through `remote` */
    const struct slot_remote *remote;
    void *arg;
    uint32_t slots;       /* a power of two; 0: the shard has only a header */
    uint32_t incarnation; /* incarnation of the home's queue, for `tried` */
    /* [slots]; only for a shard that is reached through the fabric. For each slot: the READY word that this node has last tried to claim,
     * as incarnation(32) . version(32). Views of several incarnations may share the array. */
    _Atomic uint64_t *tried;
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

/* Initialize new memory as an empty shard, before any other thread or node knows its address. */
void slot_format(struct slot_shard *s);

/* Read the counters of the home node's tasks. `completed` is read before `submitted`. */
int slot_counts(const struct slot_shard *s, uint64_t *submitted, uint64_t *completed, bool *closed);
/* Compare-and-swap of a header word. Returns 1 if swapped, 0 if not, or an error. */
int slot_header_swap(const struct slot_shard *s, enum slot_header word, uint64_t expected, uint64_t desired);

/* Submitter `user`: place `count` tasks in order, until no slot is free. The words of task i are at tasks + i * SLOT_TASK_WORDS. Returns
 * how many tasks were placed. */
int slot_submit(const struct slot_shard *s, uint64_t user, uint32_t attempt, const uint64_t *tasks, const uint64_t *ids, uint32_t count);

/* Worker `user`: claim up to `max` tasks; if `half` is true, at most half of the ready tasks. Skips a slot if its submitter's node is not
 * below `nodes`. Returns how many tasks were claimed. */
int slot_claim(const struct slot_shard *s, uint64_t user, uint32_t nodes, struct slot_claim *out, uint32_t max, bool half);

/* Starts to load the slot's memory, for a call that changes the slot soon. */
void slot_fetch(const struct slot_shard *s, uint32_t slot);
/* Worker: change a claim; `word` is the claimed word. On success `*now` is the new word. Returns -ESTALE if the slot has another word now.
 * After any other error, which comes from the fabric, it is not known whether the change has happened. */
int slot_complete(const struct slot_shard *s, uint32_t slot, uint64_t word, uint64_t *now);
int slot_renew(const struct slot_shard *s, uint32_t slot, uint64_t word, uint64_t *now);
int slot_release(const struct slot_shard *s, uint32_t slot, uint64_t word);

/* Home: settle a swap of `from` for `to` that ended without an answer. If the slot has one of the two words, its state becomes `then`: FREE
 * or READY. Claimers find a slot that became READY. With `to` 0 the function only makes claimers look at the slot again. Returns true if
 * claimers should be woken. */
bool slot_settle(const struct slot_shard *s, uint32_t slot, uint64_t from, uint64_t to, enum slot_status then);

/* Submitter: free a slot whose completion was accepted; `word` is its DONE word. Returns -ESTALE if the home has taken the slot back. */
int slot_free(const struct slot_shard *s, uint32_t slot, uint64_t word);

/* An upper bound of the number of ready tasks; 0 if none is ready. */
uint32_t slot_backlog(const struct slot_shard *s);
/* Whether a submitter would find a free slot at once. The answer false may be wrong. */
bool slot_room(const struct slot_shard *s);

/* Home: `node` has died or left. Frees its tasks and makes its claims ready again. Returns how many became ready. */
uint32_t slot_gone(const struct slot_shard *s, uint32_t node);
/* Home: the node in `user` is alive, but has closed the queue's incarnation in `user`. Like slot_gone(), but only for tasks and claims of
 * that incarnation and earlier ones. A slot in state WRITING belongs to a newer incarnation, since a node submits nothing to a queue that
 * it has closed. */
uint32_t slot_closed(const struct slot_shard *s, uint64_t user);

/* Set in[node] for each node that has claimed tasks of this submitter. Approximate, and slow: for messages to people. */
void slot_workers(const struct slot_shard *s, uint32_t submitter, uint32_t nodes, bool in[]);

/* Home: private record of the claimed slots, for ending leases. */
struct slot_watch {
    uint64_t *word; /* [slots]: the claimed word last seen; 0: none */
    int64_t *since; /* [slots]: `clock` when that word was first seen */
    uint64_t tail;  /* tail at the last look */
    bool empty;     /* no slot was in use at the last look */
    int64_t looked; /* time of the last look; 0: none yet */
    int64_t clock;  /* ns of time that counts towards leases */
};

/* Home: end the leases of claims whose word has not changed for lease_ns; returns how many. `due_ns`: when this call was planned. A call
 * that comes more than a lease too late means that this node was stopped, and perhaps the workers, too (Ctrl-Z stops a whole job). Then
 * only the planned time counts, so that workers keep their claims. Also lowers head to ready slots behind it, because a node may have died
 * between making a slot ready and lowering head. Cheap on an unused shard. */
uint32_t slot_expire(const struct slot_shard *s, struct slot_watch *watch, int64_t due_ns, int64_t now_ns, int64_t lease_ns);

#endif
