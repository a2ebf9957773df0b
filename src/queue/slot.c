/* SPDX-License-Identifier: MIT
 *
 * The protocol of one shard: see slot.h for the states and the reasons.
 *
 * Memory orders, for shards that are reached by loads and stores:
 *   (S) state words: a swap is acq_rel, a load acquire. READY is stored with a release after the fields, so a claimer that loads READY sees
 *   the fields. A claimer's swap is also a release, so its loads of the fields cannot sink below it.
 *   (T) tail: raised with a release after READY; claimers acquire it. Raises are read-modify-writes, so a later
 *       raise by another submitter carries the earlier ones (release sequence).
 *   (H) head: rules 1 and 2 of slot.h need only the total order of the changes of head, and that a claimer that loads a
 *       maker's change sees the slot that was made ready before it: acq_rel and acquire.
 *   (I) idle: see queue.h; because of it the raise of tail is seq_cst.
 */
#include "queue/slot.h"

static inline uint32_t slot_base(const struct slot_shard *s, uint64_t position)
{
    return SLOT_HEADER_WORDS + (uint32_t)(position & (s->slots - 1)) * SLOT_WORDS;
}

static inline int load(const struct slot_shard *s, uint32_t word, uint64_t *out)
{
    if (BASE_LIKELY(s->mem != NULL)) {
        *out = atomic_load_explicit(&s->mem[word], memory_order_acquire); /* (S) (T) (H) */
        return 0;
    }
    return s->remote->load(s->arg, word, out, 1);
}

/* Compare-and-swap. Returns 1 if the word was swapped; 0 if not, with the word's value in *seen (spurious failures are harmless); or an
 * error. */
static inline int swap(const struct slot_shard *s, uint32_t word, uint64_t *seen, uint64_t desired)
{
    if (BASE_LIKELY(s->mem != NULL))
        return atomic_compare_exchange_strong_explicit(&s->mem[word], seen, desired, memory_order_seq_cst,
                                                       memory_order_acquire); /* (S) (T) (H) (I) */
    uint64_t old = 0;
    int rc = s->remote->swap(s->arg, word, *seen, desired, &old);
    if (rc)
        return rc;
    bool same = old == *seen;
    *seen = old;
    return same;
}

/* Whether a swap through the fabric that ended with error `rc` may have happened. It cannot have happened if the home is gone
 * (-ECONNRESET), or if the operation was never started (-EDEADLK). */
static bool may_have_happened(int rc)
{
    return rc < 0 && rc != -ECONNRESET && rc != -EDEADLK;
}

static BASE_COLD void slot_ask_settle(const struct slot_shard *s, int rc, uint32_t slot, uint64_t from, uint64_t to, enum slot_status then)
{
    if (may_have_happened(rc))
        s->remote->settle(s->arg, slot, from, to, then);
}

static inline int store_fields(const struct slot_shard *s, uint32_t base, uint64_t user, uint64_t id, const uint64_t *task)
{
    if (BASE_LIKELY(s->mem != NULL)) {
        _Atomic uint64_t *m = s->mem + base;
        atomic_store_explicit(&m[SLOT_ID], id, memory_order_relaxed);
        atomic_store_explicit(&m[SLOT_SUBMITTER], user, memory_order_relaxed);
        for (uint32_t i = 0; i < SLOT_TASK_WORDS; i++)
            atomic_store_explicit(&m[SLOT_TASK + i], task[i], memory_order_relaxed);
        return 0;
    }
    uint64_t all[SLOT_WORDS - 1] = {0}; /* all words of the slot except the state */
    all[SLOT_ID - 1] = id;
    all[SLOT_SUBMITTER - 1] = user;
    for (uint32_t i = 0; i < SLOT_TASK_WORDS; i++)
        all[SLOT_TASK - 1 + i] = task[i];
    return s->remote->store(s->arg, base + 1, all, SLOT_WORDS - 1);
}

void slot_fetch(const struct slot_shard *s, uint32_t slot)
{
    if (s->mem)
        base_fetch_to_write(s->mem + slot_base(s, slot));
}

/* A call that goes through several slots fetches this many of them in advance. Each swap is a memory barrier: without the fetch, the load
 * of a slot would begin only after the swap of the slot before. */
#define SLOT_AHEAD 8u

/* Fetches both cache lines of the slot at a position. */
static inline void fetch_whole(const struct slot_shard *s, uint64_t position)
{
    const _Atomic uint64_t *m = s->mem + slot_base(s, position);
    base_fetch_to_write(m);
    base_fetch_to_write(m + SLOT_WORDS / 2);
}

/* For a call that goes through `count` slots from position `p` on: fetches the first slots. Does nothing for a single slot, or for a shard
 * that is reached through the fabric. */
static inline void fetch_first(const struct slot_shard *s, uint64_t p, uint64_t count)
{
    for (uint64_t i = 0; s->mem && count > 1 && i < SLOT_AHEAD && i < count; i++)
        fetch_whole(s, p + i);
}

/* Call it at position `p`: fetches the slot that lies SLOT_AHEAD positions further, if it is before `end`. */
static inline void fetch_next(const struct slot_shard *s, uint64_t p, uint64_t end)
{
    if (s->mem && p + SLOT_AHEAD < end)
        fetch_whole(s, p + SLOT_AHEAD);
}

static inline int load_fields(const struct slot_shard *s, uint32_t base, struct slot_claim *c, uint32_t nodes)
{
    if (BASE_LIKELY(s->mem != NULL)) {
        _Atomic uint64_t *m = s->mem + base;
        c->id = atomic_load_explicit(&m[SLOT_ID], memory_order_relaxed);
        c->submitter = atomic_load_explicit(&m[SLOT_SUBMITTER], memory_order_relaxed);
        for (uint32_t i = 0; i < SLOT_TASK_WORDS; i++)
            c->task[i] = atomic_load_explicit(&m[SLOT_TASK + i], memory_order_relaxed);
    } else {
        /* Read the fields in a transfer of their own, after the state word: one transfer of both could read the fields first. */
        uint64_t all[SLOT_WORDS - 1];
        int rc = s->remote->load(s->arg, base + 1, all, SLOT_WORDS - 1);
        if (rc)
            return rc;
        c->id = all[SLOT_ID - 1];
        c->submitter = all[SLOT_SUBMITTER - 1];
        for (uint32_t i = 0; i < SLOT_TASK_WORDS; i++)
            c->task[i] = all[SLOT_TASK - 1 + i];
    }
    return slot_user_node(c->submitter) < nodes ? 0 : -EBADMSG;
}

void slot_format(struct slot_shard *s)
{
    for (uint64_t i = 0; i < slot_shard_bytes(s->slots) / sizeof(uint64_t); i++)
        atomic_store_explicit(&s->mem[i], 0, memory_order_relaxed);
}

int slot_counts(const struct slot_shard *s, uint64_t *submitted, uint64_t *completed, bool *closed)
{
    uint64_t two[2] = {0};
    /* Read `completed` first, so that the counters differ if a task is submitted after this read. */
    int rc = load(s, SLOT_COMPLETED, completed);
    if (rc)
        return rc;
    if (s->mem) {
        two[0] = atomic_load_explicit(&s->mem[SLOT_SUBMITTED], memory_order_acquire); /* pairs with queue_publish_counts() */
        two[1] = atomic_load_explicit(&s->mem[SLOT_CLOSED], memory_order_acquire);    /* pairs with weft_queue_close() */
    } else {
        rc = s->remote->load(s->arg, SLOT_SUBMITTED, two, 2);
    }
    *submitted = two[0];
    *closed = two[1] != 0;
    return rc;
}

int slot_header_swap(const struct slot_shard *s, enum slot_header word, uint64_t expected, uint64_t desired)
{
    return swap(s, (uint32_t)word, &expected, desired);
}

/* How many slots the head word is behind `tail`, at most the length of the ring. For an invalid head word, the length of the ring. */
static inline uint32_t lag_of(const struct slot_shard *s, uint64_t head, uint64_t tail)
{
    uint32_t lag = (uint32_t)tail - (uint32_t)head;
    return lag > s->slots ? s->slots : lag;
}

/* Loads head first, then tail: tail only grows, and head never passes tail, so tail - head is not negative. */
static inline int load_ends(const struct slot_shard *s, uint64_t *head, uint64_t *tail)
{
    int rc = load(s, SLOT_HEAD, head);
    return rc ? rc : load(s, SLOT_TAIL, tail);
}

/* Rule 1 of slot.h, for a slot that was made ready at `position` or at a later position below tail. */
static int head_lower(const struct slot_shard *s, uint64_t position)
{
    uint64_t head, tail;
    int rc = load_ends(s, &head, &tail);
    while (rc == 0) {
        uint32_t lag = lag_of(s, head, tail);
        uint64_t want = tail - position; /* at least 1: position is below tail */
        if (want > s->slots)
            want = s->slots;
        uint32_t to = want > lag ? (uint32_t)(tail - want) : (uint32_t)head;
        int swapped = swap(s, SLOT_HEAD, &head, ((head >> 32) + 1) << 32 | to); /* (H) */
        if (swapped)
            return swapped < 0 ? swapped : 0;
        rc = load_ends(s, &head, &tail);
    }
    return rc;
}

/* Rule 1 for slot number `slot`. If the slot is not before the head, the head stays. */
static int head_lower_slot(const struct slot_shard *s, uint32_t slot)
{
    uint64_t tail;
    int rc = load(s, SLOT_TAIL, &tail);
    if (rc || tail == 0)
        return rc;
    uint64_t back = (tail - 1 - slot) & (s->slots - 1); /* distance from the last position back to the slot's latest position */
    return back < tail ? head_lower(s, tail - 1 - back) : 0;
}

/* Take a free slot for a task. Returns 1 with the slot's new word in *writing, 0 if the slot is in use, or an error. */
BASE_INLINE int take(const struct slot_shard *s, uint32_t slot, uint64_t user, uint32_t attempt, uint64_t *writing)
{
    uint64_t word;
    int rc = load(s, slot_base(s, slot), &word);
    if (rc < 0 || slot_status(word) != SLOT_FREE)
        return rc;
    uint64_t seen = word;
    if (BASE_LIKELY(s->mem != NULL)) {
        *writing = slot_next(word, user, attempt, SLOT_WRITING);
    } else {
        uint32_t number = s->remote->number(s->arg);
        *writing = slot_next(word, slot_user(slot_user_node(user), number >> 8), number & 0xff, SLOT_WRITING);
    }
    rc = swap(s, slot_base(s, slot), &seen, *writing);
    if (BASE_UNLIKELY(rc < 0))
        slot_ask_settle(s, rc, slot, word, *writing, SLOT_FREE);
    return rc;
}

/* Write a task into a slot that take() took, and make it ready. Returns 0 if the task is ready. Also returns 0, with *error set, if the
 * home makes the task ready later.
 */
BASE_INLINE int fill(const struct slot_shard *s, uint32_t slot, uint64_t user, uint32_t attempt, uint64_t writing, uint64_t id,
                     const uint64_t *task, int *error)
{
    uint64_t mine = writing, ready = slot_next(writing, 0, attempt, SLOT_READY);
    int rc = store_fields(s, slot_base(s, slot), user, id, task);
    if (BASE_UNLIKELY(rc < 0)) {
        slot_ask_settle(s, rc, slot, writing, writing, SLOT_FREE);
        return rc;
    }
    rc = swap(s, slot_base(s, slot), &mine, ready); /* (S) */
    if (BASE_UNLIKELY(rc < 0)) {
        slot_ask_settle(s, rc, slot, writing, ready, SLOT_READY);
        *error = rc;
        return may_have_happened(rc) ? 0 : rc;
    }
    return rc ? 0 : -ECONNRESET; /* the home has declared this node dead, and has taken the slot back */
}

int slot_submit(const struct slot_shard *s, uint64_t user, uint32_t attempt, const uint64_t *tasks, const uint64_t *ids, uint32_t count)
{
    /* When at least one task is placed, `patience` used slots in a row end the search, because the caller can fill other shards. */
    const uint32_t patience = 16;
    uint64_t tail;
    int rc = load(s, SLOT_TAIL, &tail), error = 0;
    if (rc)
        return rc;
    uint64_t first = 0, last = 0;
    uint32_t placed = 0, missed = 0;
    fetch_first(s, tail, count);
    for (uint64_t p = tail; placed < count && p - tail < s->slots && error == 0; p++) {
        fetch_next(s, p, tail + count);
        uint32_t slot = (uint32_t)p & (s->slots - 1);
        uint64_t writing = 0;
        rc = take(s, slot, user, attempt, &writing);
        if (BASE_LIKELY(rc > 0)) {
            rc = fill(s, slot, user, attempt, writing, ids[placed], tasks + (size_t)placed * SLOT_TASK_WORDS, &error);
            if (rc < 0)
                break;
            if (placed++ == 0)
                first = p;
            last = p + 1;
            missed = 0;
            continue;
        }
        if (rc < 0 || (placed && ++missed == patience))
            break;
    }
    if (placed == 0)
        return rc < 0 ? rc : 0;
    if (rc == 0)
        rc = error; /* after an error, start no further operations: each of them would wait again */
    if (s->mem)
        rc = 0;
    while (rc >= 0 && tail < last) {
        rc = swap(s, SLOT_TAIL, &tail, last); /* (T) */
        if (rc)
            break;
    }
    /* `tail` is the value before the swap. If that was beyond our first position, claimers may have passed our slots while we wrote
     * them. */
    if (BASE_UNLIKELY(rc >= 0 && tail > first))
        rc = head_lower(s, first);
    /* If the home is gone, the tasks in its shard are lost, and the caller is told of its death. */
    for (uint64_t p = first; BASE_UNLIKELY(rc < 0) && p < last; p++)
        slot_ask_settle(s, rc, (uint32_t)p & (s->slots - 1), 0, 0, SLOT_READY);
    return (int)placed;
}

/* State words that a claimer has read in advance from a shard that is reached through the fabric. Each read takes a round trip, and many
 * slots in a row may not be ready. */
struct look {
    uint64_t from; /* position of the first slot that was read */
    uint32_t count, next;
    uint64_t words[SLOT_LOAD_WORDS];
};

/* The state of the slot at a position below `tail`. The word may have changed since it was read in advance. That does no harm: the swap
 * from an old word fails, and rule 1 of slot.h holds for a slot that has become ready meanwhile. */
static int look_at(const struct slot_shard *s, struct look *l, uint64_t position, uint64_t tail, uint64_t *word)
{
    if (BASE_LIKELY(s->mem != NULL))
        return load(s, slot_base(s, position), word);
    if (position - l->from >= l->count) {
        uint64_t left = s->slots - (position & (s->slots - 1)); /* slots up to the end of the ring */
        left = left < tail - position ? left : tail - position;
        uint32_t n = l->next < left ? l->next : (uint32_t)left;
        int rc = s->remote->load(s->arg, slot_base(s, position), l->words, (n - 1) * SLOT_WORDS + 1);
        if (rc)
            return rc;
        l->from = position;
        l->count = n;
        l->next = 4 * l->next < SLOT_LOOK ? 4 * l->next : SLOT_LOOK;
    }
    *word = l->words[(position - l->from) * SLOT_WORDS];
    return 0;
}

/* Whether this thread may try to claim the READY `word` of a slot through the fabric. Only the first thread of this node that reads the
 * word may try. If that thread gives up its swap, the home makes claimers look at the slot again. A word up to SLOT_BEHIND versions older
 * than the one tried last is outdated. The memory order is relaxed, because no other load depends on this entry. */
static bool try_once(const struct slot_shard *s, uint32_t slot, uint64_t word)
{
    uint64_t seen = atomic_load_explicit(&s->tried[slot], memory_order_relaxed), mine = (uint64_t)s->incarnation << 32 | word >> 32;
    do {
        int32_t later = (int32_t)((uint32_t)(seen >> 32) - s->incarnation);
        if (later > 0 || (later == 0 && (uint32_t)(seen - mine) < SLOT_BEHIND))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&s->tried[slot], &seen, mine, memory_order_relaxed, memory_order_relaxed));
    return true;
}

int slot_claim(const struct slot_shard *s, uint64_t user, uint32_t nodes, struct slot_claim *out, uint32_t max, bool half)
{
    uint64_t head, tail;
    int rc = load_ends(s, &head, &tail);
    if (rc)
        return rc;
    uint32_t lag = lag_of(s, head, tail), got = 0;
    if (lag == 0)
        return 0;
    if (half && max > (lag + 1) / 2)
        max = (lag + 1) / 2;
    uint64_t p = tail - lag;
    struct look look;
    look.count = 0; /* `words` stays uninitialized: setting it would cost more than the rest of a claim */
    look.from = 0;
    look.next = 1;                              /* most often the first slot is ready */
    uint64_t end = p + (max < lag ? max : lag); /* where the claim ends if all slots are ready */
    fetch_first(s, p, end - p);
    for (; p != tail && got < max; p++) {
        fetch_next(s, p, end);
        uint32_t base = slot_base(s, p);
        struct slot_claim *c = &out[got];
        uint64_t word = 0;
        if ((rc = look_at(s, &look, p, tail, &word)) < 0) /* (S) */
            break;
        if (slot_status(word) != SLOT_READY)
            continue;
        if ((rc = load_fields(s, base, c, nodes)) < 0) {
            if (rc != -EBADMSG)
                break;
            rc = 0; /* the submitter's number is invalid: skip the slot */
            continue;
        }
        uint64_t ready = word;
        c->word = slot_next(word, user, slot_attempt(word), SLOT_CLAIMED);
        c->slot = (uint32_t)p & (s->slots - 1);
        if (BASE_UNLIKELY(s->mem == NULL) && !try_once(s, c->slot, word))
            continue;
        if ((rc = swap(s, base, &word, c->word)) < 0) { /* (S): if the swap succeeds, the fields were not changed while they were copied */
            slot_ask_settle(s, rc, c->slot, ready, c->word, SLOT_READY);
            break;
        }
        got += (uint32_t)rc;
    }
    /* Rule 2 of slot.h: raise head only while its version is the one read at the start. Other claimers may have raised head meanwhile,
     * which does not change its version. */
    for (uint64_t seen = head; rc >= 0 && seen >> 32 == head >> 32;) {
        if ((int32_t)((uint32_t)p - (uint32_t)seen) <= 0)
            break;
        rc = swap(s, SLOT_HEAD, &seen, (head >> 32) << 32 | (uint32_t)p); /* (H) */
        if (rc)
            break;
    }
    return got ? (int)got : rc < 0 ? rc : 0;
}

static int change(const struct slot_shard *s, uint32_t slot, uint64_t word, uint64_t to)
{
    int rc = swap(s, slot_base(s, slot), &word, to); /* (S) */
    return rc < 0 ? rc : rc ? 0 : -ESTALE;
}

static inline uint64_t after_claim(uint64_t word, enum slot_status to)
{
    return to == SLOT_READY ? slot_next(word, 0, slot_attempt(word) + 1, to) : slot_next_same(word, to);
}

/* Change a claim in a shard that is reached through the fabric. */
static BASE_COLD int change_claim_elsewhere(const struct slot_shard *s, uint32_t slot, uint64_t word, enum slot_status to, uint64_t *now)
{
    for (bool renewed = false;; renewed = true) {
        uint64_t seen = word, next = after_claim(word, to);
        int rc = swap(s, slot_base(s, slot), &seen, next); /* (S) */
        if (rc > 0) {
            *now = next;
            return 0;
        }
        if (rc < 0) {
            if (to != SLOT_CLAIMED || renewed) /* after two renewals the caller would hold an outdated word */
                slot_ask_settle(s, rc, slot, word, next, SLOT_READY);
            return to == SLOT_CLAIMED && renewed && may_have_happened(rc) ? -ESTALE : rc;
        }
        /* If the slot holds the successor of `word`, an earlier renewal has happened, but its answer was lost. */
        if (renewed || seen != slot_next_same(word, SLOT_CLAIMED))
            return -ESTALE;
        word = seen;
    }
}

/* Swap the claimed `word` for its successor, stored in `*now`. The owner stays the same unless the slot becomes READY. */
BASE_INLINE int change_claim(const struct slot_shard *s, uint32_t slot, uint64_t word, enum slot_status to, uint64_t *now)
{
    if (BASE_UNLIKELY(s->mem == NULL))
        return change_claim_elsewhere(s, slot, word, to, now);
    uint64_t next = after_claim(word, to);
    int rc = change(s, slot, word, next);
    if (BASE_LIKELY(rc == 0))
        *now = next;
    return rc;
}

int slot_complete(const struct slot_shard *s, uint32_t slot, uint64_t word, uint64_t *now)
{
    return change_claim(s, slot, word, SLOT_DONE, now);
}

int slot_renew(const struct slot_shard *s, uint32_t slot, uint64_t word, uint64_t *now)
{
    return change_claim(s, slot, word, SLOT_CLAIMED, now);
}

int slot_release(const struct slot_shard *s, uint32_t slot, uint64_t word)
{
    uint64_t ready;
    int rc = change_claim(s, slot, word, SLOT_READY, &ready);
    if (rc == 0)
        slot_ask_settle(s, head_lower_slot(s, slot), slot, 0, 0, SLOT_READY);
    return rc;
}

int slot_free(const struct slot_shard *s, uint32_t slot, uint64_t word)
{
    if (BASE_LIKELY(s->mem != NULL))
        return change(s, slot, word, slot_next(word, 0, 0, SLOT_FREE));
    s->remote->settle(s->arg, slot, word, word, SLOT_FREE);
    return 0;
}

/* Home: make claimers check a slot again, by raising `tail` past the slot's next position. */
static void show(const struct slot_shard *s, uint32_t slot)
{
    uint64_t tail;
    if (load(s, SLOT_TAIL, &tail))
        return;
    while (swap(s, SLOT_TAIL, &tail, tail + ((slot - tail) & (s->slots - 1)) + 1) == 0)
        ;
}

bool slot_settle(const struct slot_shard *s, uint32_t slot, uint64_t from, uint64_t to, enum slot_status then)
{
    /* The claim may have been changed by an earlier renewal whose answer was lost. So the renewed word counts as `from`, too. */
    uint64_t word, renewed = slot_status(from) == SLOT_CLAIMED ? slot_next_same(from, SLOT_CLAIMED) : from;
    if (to && load(s, slot_base(s, slot), &word) == 0)
        while (word == from || word == to || word == renewed) {
            bool again = slot_status(word) == SLOT_CLAIMED || slot_status(word) == SLOT_DONE;
            uint64_t next =
                then == SLOT_FREE ? slot_next(word, 0, 0, SLOT_FREE) : slot_next(word, 0, slot_attempt(word) + again, SLOT_READY);
            if (swap(s, slot_base(s, slot), &word, next)) /* (S) */
                break;
        }
    if (then == SLOT_READY)
        show(s, slot);
    return then == SLOT_READY;
}

uint32_t slot_backlog(const struct slot_shard *s)
{
    uint64_t head, tail;
    return load_ends(s, &head, &tail) ? 0 : lag_of(s, head, tail);
}

bool slot_room(const struct slot_shard *s)
{
    uint64_t tail, word;
    return s->slots && load(s, SLOT_TAIL, &tail) == 0 && load(s, slot_base(s, tail), &word) == 0 && slot_status(word) == SLOT_FREE;
}

/* Home: take a slot back if its word is still `word`. Returns true if the task became ready. */
static bool requeue(const struct slot_shard *s, uint32_t slot, uint64_t word)
{
    if (change(s, slot, word, slot_next(word, 0, slot_attempt(word) + 1, SLOT_READY)))
        return false;
    head_lower_slot(s, slot);
    return true;
}

/* Take back slots of a node: all slots if it has died, otherwise only the slots of incarnations up to `incarnation` of its queue. */
static uint32_t take_back(const struct slot_shard *s, uint32_t node, bool died, uint32_t incarnation)
{
    uint32_t requeued = 0;
    for (uint32_t i = 0; i < s->slots; i++) {
        uint32_t base = slot_base(s, i);
        for (;;) {
            uint64_t word, submitter;
            if (load(s, base, &word) || slot_status(word) == SLOT_FREE || load(s, base + SLOT_SUBMITTER, &submitter))
                break;
            bool writing = slot_status(word) == SLOT_WRITING; /* in state WRITING, the fields are not valid yet */
            bool owned = slot_owner(word) == node && slot_status(word) != SLOT_READY &&
                         (died || (!writing && slot_incarnation(word) == (incarnation & SLOT_INCARNATION_MASK)));
            bool submitted = !writing && slot_user_node(submitter) == node && (died || slot_user_incarnation(submitter) <= incarnation);
            int rc = 0;
            if (writing ? owned : submitted) {
                rc = slot_free(s, i, word);
            } else if (owned) {
                bool taken = requeue(s, i, word);
                requeued += taken;
                rc = taken ? 0 : -ESTALE;
            }
            if (rc != -ESTALE)
                break; /* if the swap fails, another thread has changed the slot: look again */
        }
    }
    return requeued;
}

uint32_t slot_gone(const struct slot_shard *s, uint32_t node)
{
    return take_back(s, node, true, 0);
}

uint32_t slot_closed(const struct slot_shard *s, uint64_t user)
{
    return take_back(s, slot_user_node(user), false, slot_user_incarnation(user));
}

void slot_workers(const struct slot_shard *s, uint32_t submitter, uint32_t nodes, bool in[])
{
    for (uint32_t i = 0; i < s->slots; i++) {
        uint64_t word, by;
        uint32_t base = slot_base(s, i);
        if (load(s, base, &word) == 0 && slot_status(word) == SLOT_CLAIMED && load(s, base + SLOT_SUBMITTER, &by) == 0 &&
            slot_user_node(by) == submitter && slot_owner(word) < nodes)
            in[slot_owner(word)] = true;
    }
}

uint32_t slot_expire(const struct slot_shard *s, struct slot_watch *watch, int64_t due_ns, int64_t now_ns, int64_t lease_ns)
{
    uint64_t tail;
    if (watch->looked)
        watch->clock += now_ns - due_ns > lease_ns && due_ns > watch->looked ? due_ns - watch->looked : now_ns - watch->looked;
    watch->looked = now_ns;
    if (s->slots == 0 || load(s, SLOT_TAIL, &tail) || (watch->empty && tail == watch->tail))
        return 0;
    uint32_t requeued = 0;
    bool empty = true;
    watch->tail = tail;
    for (uint32_t i = 0; i < s->slots; i++) {
        uint64_t word;
        if (load(s, slot_base(s, i), &word))
            return requeued;
        enum slot_status status = slot_status(word);
        empty = empty && status == SLOT_FREE;
        if (status == SLOT_READY) {
            uint64_t back = (tail - 1 - i) & (s->slots - 1);
            if (back >= tail || back + 1 > slot_backlog(s))
                show(s, i);
        }
        if (status != SLOT_CLAIMED) {
            watch->word[i] = 0;
        } else if (watch->word[i] != word) {
            watch->word[i] = word;
            watch->since[i] = watch->clock;
        } else if (watch->clock - watch->since[i] >= lease_ns) {
            requeued += requeue(s, i, word);
            watch->word[i] = 0;
        }
    }
    watch->empty = empty;
    return requeued;
}
