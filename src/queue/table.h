/* SPDX-License-Identifier: MIT
 *
 * The tasks that this node has submitted to one queue and not reaped yet, in private memory that no other node can write.
 *
 * A task's id is the index and generation of its entry. So the entry is found without a search, and an outdated id is recognised. An entry
 * is OUT (the task is in the shard of its home), PENDING (the home is gone, and the task waits for another home), or COMPLETE. Only the
 * first completion of an entry counts.
 *
 * All functions except table_init() and table_clear() are called with `lock` held. The caller must not wait meanwhile.
 */
#ifndef WEFT_QUEUE_TABLE_H
#define WEFT_QUEUE_TABLE_H

#include "base/base.h"
#include "weft/queue.h"

#define TABLE_CHUNK  1024u
#define TABLE_CHUNKS 16384u /* allows 16 Mi outstanding tasks for each queue and node */
#define TABLE_NONE   UINT32_MAX

enum table_state { TABLE_FREE, TABLE_OUT, TABLE_PENDING, TABLE_COMPLETE };

/* The fields that a completion reads and writes are on a cache line of their own, so that only this line moves from the submitter's
 * processor to the worker's and back. */
struct table_entry {
    _Alignas(BASE_CACHE_LINE) weft_task task;
    _Alignas(BASE_CACHE_LINE) uint32_t generation; /* generation of the current id; never 0 */
    uint32_t next, prev;                           /* links of the free list or of the pending list; `prev` only in the pending list */
    uint16_t home;                                 /* in state OUT: the node whose shard has the task */
    uint8_t state;
    uint8_t tries;  /* how many times the task was placed again */
    int32_t status; /* this and the next three fields come from the completion */
    uint32_t worker;
    weft_gaddr result;
    uint64_t result_len;
};

struct table_list {
    uint32_t first, last, count;
};

/* The indices of the complete entries, oldest first. A ring, not a list: the entries of a ring can be fetched together, those of a list
 * only one after the other. */
struct table_ring {
    uint32_t *index;
    uint32_t room; /* a power of two, or 0 */
    uint32_t first, count;
};

struct table {
    base_spin lock;
    struct table_entry **chunks; /* [TABLE_CHUNKS]; a chunk never moves */
    uint32_t chunk_count;
    uint32_t free; /* head of the list of free entries, used as a stack */
    struct table_list pending;
    struct table_ring complete;
    uint64_t submitted, completed, resubmitted, duplicates;
};

int table_init(struct table *t);
void table_clear(struct table *t);

/* Add entries for `count` tasks at `home`, and store their ids in ids[]. Returns how many were added, which is less than `count` if memory
 * is short. */
uint32_t table_add(struct table *t, uint32_t home, const weft_task *tasks, uint32_t count, uint64_t *ids);
/* Undo table_add() for a task that was not placed. Returns false if the home has died meanwhile; then the entry is no longer OUT, and the
 * task counts as submitted. */
bool table_remove(struct table *t, uint64_t id, uint32_t home);

/* Starts to load the id's entry, for a completion that follows soon. */
void table_fetch(const struct table *t, uint64_t id);
/* Accept a completion. Returns true if the task is now complete. Returns false if the completion is a duplicate, or if no task has this
 * id. */
bool table_complete(struct table *t, uint64_t id, const weft_done *done);
uint32_t table_reap(struct table *t, weft_done *out, uint32_t max);

/* Set in[i] to whether node i's shard has incomplete tasks, for each node i below `count`. Returns the number of all incomplete tasks. */
uint64_t table_homes(struct table *t, bool in[], uint32_t count);
/* A home has died: the entries of its tasks become pending. Returns how many. */
uint32_t table_home_gone(struct table *t, uint32_t home);
/* Take the first pending task, to place it at `home`. Returns false if there is none. */
bool table_take_pending(struct table *t, uint32_t home, uint64_t *id, weft_task *task, uint32_t *tries);
/* Undo table_take_pending() for a task that `home` had no room for. Does nothing if the task is complete or elsewhere by now. */
void table_put_back(struct table *t, uint64_t id, uint32_t home, uint32_t tries);

#endif
