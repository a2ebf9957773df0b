/* SPDX-License-Identifier: MIT
 *
 * The slot protocol of src/queue/slot.c, for the Spin model checker: every interleaving of two submitters, two
 * workers and the home on a ring of two slots. Leases end at any time, a worker (or, with SUBMITTER_DIES, a submitter)
 * dies between any two steps, a worker may give tasks back. With LATES, the result of a swap is lost: it has been executed, is executed at any
 * later time, or never; the caller that gave up tells the home which swap it was, and the home settles it (slot_settle()).
 *
 * What is checked:
 *   - no task is lost: when nothing can move any more, every task of a living submitter is accepted (assert L).
 *     Workers sleep when head == tail, as the real ones do, so a ready slot behind head is a lost task;
 *   - a claimer's copy is of the task in the slot (assert A);
 *   - only the owner of the present claim completes it (assert B): so a task is accepted from one claim, and the table
 *     of the submitter, which drops what comes twice, does the rest;
 *   - a slot is taken for a new task only when the one in it is complete or its submitter gone (asserts C, D);
 *   - head never passes tail (assert E);
 *   - a slot that a living submitter writes into stays its own (assert F).
 * The model fails when it should: `run` checks that each MUTATION_... is found wrong.
 *
 * Steps. One access to shared memory is one step, with two exceptions that leave no behaviour out:
 *   - a loop that loads a word and swaps it for a function of itself is one step: the swap succeeds only on the word
 *     that was loaded, so the loop acts at the moment of its last swap;
 *   - a load whose word the process swaps later, and a load of something else after it, are one step: if the swap
 *     succeeds the first word had not changed in between, if it fails nothing of the two is used.
 * Memory is sequentially consistent here. What weaker orders could do is argued at the top of slot.c, and the thread
 * sanitizer watches it in tests/unit/test_slot.c.
 */
#ifndef TASKS
#define TASKS 3         /* submitter 0 has the odd ones, submitter 1 the even */
#endif
#ifndef EXPIRIES
#define EXPIRIES 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef RELEASES
#define RELEASES 0
#endif
#ifndef LATES
#define LATES 0
#endif
#define N 2             /* slots */

#define FREE    0
#define WRITING 1
#define READY   2
#define CLAIMED 3
#define DONE    4

#define SUBMITTER_OF(task) (1 - (task) % 2)
#define LEAST(a, b) ((a) < (b) -> (a) : (b))

/* The state word of each slot, its fields (one word stands for each of them), and the header. */
byte status[N], version[N], owner[N];
byte field[N];
byte tail, head, head_version;

/* The messages to each submitter: task, slot, version of the DONE word. */
chan done[2] = [TASKS + EXPIRIES + DEATHS] of { byte, byte, byte };

/* Variables that only the checks use. */
byte living[N];         /* the task in the slot, from READY to FREE; 0: none */
byte claims[N];         /* how often the slot was claimed */
bool accepted[TASKS + 1];
bool worker_dead[2], submitter_dead[2];
byte expiries, deaths, releases, lates;

/* A swap under way, from a slot's word with this status and version to the next one; and the settlements that the home must do. */
byte late_from, late_to, late_slot, late_version, late_owner;
bool late, to_settle;
byte settle_from, settle_to, settle_slot, settle_version, settle_owner, settle_then;
#define NO_LATE late = false; late_slot = 0; late_version = 0; late_from = 0; late_to = 0; late_owner = 0
#define GIVE_UP(slot, v, from, to, who, then) \
    lates++; \
    late = true; late_slot = slot; late_version = v; late_from = from; late_to = to; late_owner = who; \
    to_settle = true; settle_slot = slot; settle_version = v; settle_from = from; settle_to = to; settle_owner = who; settle_then = then
/* An attempt to take a slot has a number of its own in the word; here there is one such attempt, and the owner's number says it. */
#ifdef MUTATION_SAME_NUMBER
#define NUMBERED(me) me
#else
#define NUMBERED(me) (me + 2)
#endif
#define SETTLES(i) (status[i] == settle_to && version[i] == (settle_version + 1) % 256 && owner[i] == settle_owner)

#ifdef MUTATION_NO_SLOT_VERSION
#define SAME(i, v) true
#else
#define SAME(i, v) (version[i] == v)
#endif
/* Without versions a claimer can only see that `head` has not changed. */
#ifdef MUTATION_NO_HEAD_VERSION
#define HEAD_CHANGED (head != h)
#else
#define HEAD_CHANGED (head_version != hv)
#endif

/* Rule 1 of slot.h: what is at position p (below tail) was made ready. Uses h, hv, t of the caller. */
inline head_lower(p)
{
#ifndef MUTATION_NO_LOWER
    do
    :: atomic { h = head; hv = head_version; t = tail }
       atomic {
           if
           :: head == h && head_version == hv ->
              head = (LEAST(t - p, N) > LEAST(t - h, N) -> t - LEAST(t - p, N) : h);
#ifndef MUTATION_NO_HEAD_VERSION
              head_version++;
#endif
              assert(head <= tail); /* E */
              h = 0; hv = 0; t = 0;
              break
           :: else -> h = 0; hv = 0; t = 0
           fi
       }
    od
#else
    skip
#endif
}

/* The same for slot i: its latest position below tail, if it has one. */
inline head_lower_slot(i)
{
    atomic {
        at = tail;
        if
        :: at > 0 && (at - 1 + N - i) % N < at -> at = at - 1 - (at - 1 + N - i) % N
        :: else -> at = 255
        fi
    }
    if
    :: at < 255 -> head_lower(at)
    :: else
    fi
}

inline submit(me)
{
    task = 1 + me; /* SUBMITTER_OF(1 + me) == me */
again:
    if
    :: task > TASKS -> goto over
    :: atomic { task <= TASKS -> p = tail }
    fi;
take:
    atomic {
        if
        :: looked == N -> /* the ring is full: wait for a free slot, and try again */
           goto no_room
        :: looked < N && status[p % N] == FREE ->
           assert(living[p % N] == 0); /* C */
           i = p % N;
           status[i] = WRITING;
           version[i]++;
           owner[i] = me;
           looked = 0
        :: looked < N && status[p % N] == FREE && lates < LATES -> /* not placed: look again */
           GIVE_UP(p % N, version[p % N], FREE, WRITING, NUMBERED(me), FREE);
           looked = 0;
           p = 0;
           goto again
        :: looked < N && status[p % N] != FREE ->
           p++;
           looked++;
           goto take
        fi
    }
#ifndef MUTATION_READY_FIRST
    field[i] = task;
#endif
    if
    :: atomic {
           assert(status[i] == WRITING && owner[i] == me); /* F: no other process takes it while its submitter is alive */
           status[i] = READY; version[i]++; owner[i] = 0; living[i] = task
       }
    :: atomic { /* it counts as submitted, and the home makes it ready and shows it */
           lates < LATES ->
           GIVE_UP(i, version[i], WRITING, READY, 0, READY);
           task = task + 2;
           i = 0;
           p = 0;
           goto again
       }
    fi;
#ifdef MUTATION_READY_FIRST
    field[i] = task;
#endif
    atomic {
        t = tail;
        i = 0;
        if
        :: tail < p + 1 -> tail = p + 1
        :: else
        fi;
        task = task + 2;
#ifndef MUTATION_NO_LOWER_PASSED
        if
        :: t > p -> goto passed
        :: else
        fi;
#endif
        p = 0; t = 0;
        goto again
    }
passed:
    head_lower(p);
    p = 0;
    goto again;
no_room:
    atomic { status[0] == FREE || status[1] == FREE -> looked = 0; p = 0; goto again };
over:
    skip
}

/* The submitter's handler of completions. */
inline accept(me)
{
    skip;
end:    do
    :: atomic { done[me]?task,i,v -> accepted[task] = true } /* the submitter's table shows whether this is the first completion */
       atomic {
           if
           :: status[i] == DONE && version[i] == v ->
              assert(living[i] == task); /* D */
              status[i] = FREE;
              version[i]++;
              owner[i] = 0;
              living[i] = 0
           :: else
           fi;
           task = 0; i = 0; v = 0
       }
    od
}

inline work(me)
{
    skip;
end:    do
    :: atomic { head != tail -> h = head; hv = head_version; break }
    od;
    atomic { t = tail; p = t - LEAST(t - h, N) }
look:
    if
    :: atomic {
           p < t ->
           i = p % N;
           p++;
           if
           :: status[i] == READY -> v = version[i]; a = field[i]; goto claim
           :: else -> i = 0; goto look
           fi
       }
    :: atomic { p == t -> goto raise }
    fi;
claim:
    atomic {
        if
        :: status[i] == READY && SAME(i, v) ->
           assert(a == living[i]); /* A */
           status[i] = CLAIMED;
           version[i]++;
           owner[i] = me;
           claims[i]++;
           mine = claims[i];
           v = version[i];
           goto raise
        :: status[i] == READY && SAME(i, v) && lates < LATES -> /* and looks no further here */
           GIVE_UP(i, v, READY, CLAIMED, me, READY);
           h = 0; hv = 0; t = 0; p = 0;
           goto again
        :: else ->
           i = 0; v = 0; a = 0;
           goto look
        fi
    }
raise:
    atomic { /* rule 2 */
        if
        :: !HEAD_CHANGED && head < p -> head = p; assert(head <= tail) /* E */
        :: else
        fi;
        h = 0; hv = 0; t = 0; p = 0;
        if
        :: mine == 0 -> goto end
        :: else
        fi
    }
    if
    :: atomic {
           if
           :: status[i] == CLAIMED && owner[i] == me && SAME(i, v) ->
              assert(mine == claims[i]); /* B */
              status[i] = DONE;
              version[i]++;
              v = version[i];
#ifdef MUTATION_WORKER_FREES
              status[i] = FREE;
              owner[i] = 0;
              living[i] = 0;
#endif
              goto tell
           :: status[i] == CLAIMED && owner[i] == me && SAME(i, v) && lates < LATES -> /* refused: another worker has to do the task */
              GIVE_UP(i, v, CLAIMED, DONE, me, READY);
              goto again
           :: else -> goto again
           fi
       }
    :: atomic {
           releases < RELEASES ->
           if
           :: status[i] == CLAIMED && owner[i] == me && version[i] == v ->
              status[i] = READY;
              version[i]++;
              owner[i] = 0;
              releases++;
              goto released
           :: else -> goto again
           fi
       }
    fi;
released:
    head_lower_slot(i);
    at = 0;
    goto again;
tell:
    done[SUBMITTER_OF(a)]!a,i,v;
again:
    atomic { a = 0; i = 0; v = 0; mine = 0; goto end }
}

/* Those that can die are kinds of their own, since that costs states; once dead they hold nothing. */
#define SUBMITTER_BYTES byte task, p, i, t, h, hv, looked
#define ACCEPTER_BYTES  byte task, i, v
#define WORKER_BYTES    byte h, hv, t, p, i, v, a, mine, at
proctype submitter(byte me) { SUBMITTER_BYTES; submit(me) }
proctype accepter(byte me) { ACCEPTER_BYTES; accept(me) }
proctype worker(byte me) { WORKER_BYTES; work(me) }
#ifdef SUBMITTER_DIES
proctype mortal_submitter(byte me) { SUBMITTER_BYTES; { submit(me) } unless { atomic { submitter_dead[me] -> task = 0; p = 0; i = 0; t = 0; h = 0; hv = 0; looked = 0 } } }
proctype mortal_accepter(byte me) { ACCEPTER_BYTES; { accept(me) } unless { atomic { submitter_dead[me] -> task = 0; i = 0; v = 0 } } }
#elif DEATHS
proctype mortal_worker(byte me) { WORKER_BYTES; { work(me) } unless { atomic { worker_dead[me] -> h = 0; hv = 0; t = 0; p = 0; i = 0; v = 0; a = 0; mine = 0; at = 0 } } }
#endif

#define GONE(i) ((status[i] == CLAIMED || status[i] == DONE) && worker_dead[owner[i]])
#define ORPHAN(i) ((status[i] == WRITING && submitter_dead[owner[i]]) || \
                   (status[i] > WRITING && submitter_dead[SUBMITTER_OF(field[i])]))

proctype home()
{
    byte i, v, h, hv, t, at;
    bool free;
end:
    do
    :: atomic { status[0] == CLAIMED && expiries < EXPIRIES -> i = 0; v = version[0]; expiries++; break }
    :: atomic { status[1] == CLAIMED && expiries < EXPIRIES -> i = 1; v = version[1]; expiries++; break }
#if DEATHS
    :: atomic { GONE(0) -> i = 0; v = version[0]; break }
    :: atomic { GONE(1) -> i = 1; v = version[1]; break }
#endif
#ifdef SUBMITTER_DIES
    :: atomic { ORPHAN(0) -> i = 0; v = version[0]; free = true; break }
    :: atomic { ORPHAN(1) -> i = 1; v = version[1]; free = true; break }
#endif
    od;
    atomic {
        if
        :: version[i] != v -> goto again /* `head` has moved */
        :: version[i] == v && free ->
           status[i] = FREE;
           version[i]++;
           owner[i] = 0;
           living[i] = 0;
           goto again
        :: version[i] == v && !free ->
           status[i] = READY;
           version[i]++;
           owner[i] = 0;
           v = 0
        fi
    }
    head_lower_slot(i);
again:
    atomic { i = 0; v = 0; at = 0; free = false; goto end }
}

#if DEATHS
proctype death()
{
end:
#ifdef SUBMITTER_DIES
    d_step { submitter_dead[1] = true; deaths++ }
#else
    d_step { worker_dead[0] = true; deaths++ } /* the two are alike */
#endif
}
#endif

#if LATES
/* The swap is executed now, if the word still has its old value; or never. */
proctype delayed()
{
end:
    do
    :: atomic {
           late ->
           if
           :: status[late_slot] == late_from && version[late_slot] == late_version ->
              status[late_slot] = late_to;
              version[late_slot]++;
              owner[late_slot] = late_owner;
              if
              :: late_to == READY -> living[late_slot] = field[late_slot]
              :: late_to == CLAIMED -> claims[late_slot]++
              :: else
              fi
           :: else
           fi;
           NO_LATE
       }
    :: atomic { late -> NO_LATE }
    od
}

/* slot_settle(): the home has received the message. */
proctype settler()
{
    byte i, t;
end:
    do
    :: atomic {
           to_settle ->
           i = settle_slot;
           if
#ifndef MUTATION_SETTLE_NEW_ONLY
           :: status[i] == settle_from && version[i] == settle_version -> goto settle
#endif
           :: SETTLES(i) -> goto settle
           :: else -> goto settled
           fi
       }
settle:
       atomic { /* what was loaded and the swap are one step: it is tried again where the word has changed between them */
           if
           :: (status[i] == settle_from && version[i] == settle_version) ||
              SETTLES(i) ->
              status[i] = settle_then;
              version[i]++;
              owner[i] = 0;
              living[i] = (settle_then == READY -> field[i] : 0)
           :: else
           fi
       }
settled:
       if
       :: settle_then == READY -> /* a claimer finds it: show() */
#ifndef MUTATION_NO_SHOW
          atomic { t = tail; tail = t + (N + i - t % N) % N + 1; t = 0 };
#endif
          skip
       :: else
       fi;
       atomic {
           i = 0;
           to_settle = false; settle_slot = 0; settle_version = 0; settle_from = 0; settle_to = 0; settle_owner = 0; settle_then = 0
       }
    od
}
#endif

#define SETTLED(task) (accepted[task] || submitter_dead[SUBMITTER_OF(task)])
init
{
    byte task = 1;
    atomic {
        run submitter(0); run accepter(0); run worker(1);
#ifdef SUBMITTER_DIES
        run mortal_submitter(1); run mortal_accepter(1); run worker(0);
#else
        run submitter(1); run accepter(1);
#if DEATHS
        run mortal_worker(0);
#else
        run worker(0);
#endif
#endif
        run home();
#if DEATHS
        run death();
#endif
#if LATES
        run delayed();
#ifndef MUTATION_NO_SETTLE
        run settler();
#endif
#endif
        skip
    }
    atomic {
        timeout -> /* no other step is possible */
        do
        :: task > TASKS -> break
        :: else -> assert(SETTLED(task)); /* L */ task++
        od
    }
}
