/* SPDX-License-Identifier: MIT
 *
 * The lock of src/sync/lock.h, for the Spin model checker: two nodes take a lock whose home is a third node, again and again. Each wait may time
 * out (the home was stopped, and executes the requests later), and a swap may end with an error although it was executed, or is executed
 * later, at the latest before the same node's next swap.
 *
 * What is checked:
 *   - at most one claim has the lock (assert A);
 *   - when no step is possible any more, the lock is free, no claim waits in the home's queue, and no call is still waiting (assert L): so
 *     no late swap and no late grant leaves the lock with a claim that no call knows.
 * The model fails when it should: `run` checks that each MUTATION_... is found wrong.
 *
 * Each node has two processes: `user` is a thread in weft_lock() and weft_unlock(), `upkeep` its progress thread (handlers, and the tick that
 * settles abandoned attempts). Atomics of a node are executed in order, and so are its messages; there is no order between the two.
 */
#ifndef ATTEMPTS
#define ATTEMPTS 2  /* calls of each node */
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 1
#endif
#ifndef FAILURES
#define FAILURES 0  /* swaps whose result is lost */
#endif
#define CLAIMS (2 * ATTEMPTS)
#define NODE(c) (((c) - 1) % 2)

#define REQUEST 1
#define RELEASE 2
#define CANCEL  3

/* The lock's word: the claim that holds it, and the flag LOCK_WAITERS. */
byte word;
bool waiters;
chan line = [CLAIMS] of { byte };

/* To the home: swaps (0 to claim, or claim to 0) and messages. From the home: grants. */
chan swaps[2] = [4] of { byte, bool };
chan messages[2] = [8] of { byte, byte };
chan grants[2] = [4] of { byte };

/* For each claim: the state of its swap and of the call. */
#define NONE   0
#define SWAPS  1 /* a thread waits for the swap to it */
#define WAITS  2 /* a thread waits for the home */
#define HELD   3
#define LEFT   4 /* an attempt whose call has timed out */
#define BACK   5 /* the upkeep must release this claim */
#define OVER   6
byte state[CLAIMS + 1];
bool pending[CLAIMS + 1], bad[CLAIMS + 1], old_waiters[CLAIMS + 1];
byte old[CLAIMS + 1];
byte lost[CLAIMS + 1]; /* swaps of this claim that have ended at its node, but were not executed at the home yet */

/* Variables that only the checks use. */
byte holders, timeouts, failures, finished;

inline begin_swap(c, back)
{
    pending[c] = true; bad[c] = false;
    swaps[NODE(c)]!c,back
}

/* The home grants the lock to the first waiting claim, or frees it. */
inline hand_over()
{
    if
    :: line?word -> waiters = (len(line) > 0); grants[NODE(word)]!word
    :: empty(line) -> word = 0; waiters = false
    fi
}

/* Whether the word names this claim. */
#ifdef MUTATION_WORD_NAMES_NODE
#define NAMES(c) (word != 0 && NODE(word) == NODE(c))
#else
#define NAMES(c) (word == c)
#endif

inline do_swap(n)
{
    swaps[n]?c,back;
    if
    :: lost[c] > 0 -> /* no call waits for its result; it may be lost with its link */
       lost[c]--;
       if
       :: true -> goto done
       :: true
       fi
    :: else ->
       pending[c] = false;
       old[c] = word;
       old_waiters[c] = waiters
    fi;
    if
    :: !back && word == 0 -> word = c
    :: back && NAMES(c) && !waiters -> word = 0
    :: else
    fi
}

inline do_message(n)
{
    messages[n]?verb,c;
    if
    :: verb == REQUEST ->
       line!c;
       if
       :: word == 0 -> hand_over()
       :: else -> waiters = true
       fi
    :: verb == RELEASE ->
       if
       :: NAMES(c) -> hand_over()
       :: else
       fi
    :: verb == CANCEL ->
       if
       :: line??[eval(c)] -> line??eval(c)
       :: else
       fi
    fi
}

proctype home()
{
    byte c, verb;
    bool back;
end:
    do
    :: atomic { nempty(swaps[0]) -> do_swap(0); goto done }
    :: atomic { nempty(swaps[1]) -> do_swap(1); goto done }
    :: atomic { nempty(messages[0]) -> do_message(0); goto done }
    :: atomic { nempty(messages[1]) -> do_message(1); goto done }
    od;
done:
    atomic { c = 0; verb = 0; back = false; goto end }
}

#define CAN_FAIL(c) (pending[c] && failures < FAILURES)
inline fail(c)
{
    failures++; lost[c]++; pending[c] = false; bad[c] = true
}

/* weft_lock() and, when it succeeds, weft_unlock(). */
proctype user(byte me)
{
    byte c, made, left;
again:
    atomic {
        if
        :: made == ATTEMPTS -> finished++; goto over
        :: else
        fi;
        c = 1 + me + 2 * made;
        made++;
        /* It may find an earlier attempt of the same node that was abandoned. */
        left = 1 + me;
        do
        :: left < c && state[left] != LEFT -> left = left + 2
        :: else -> break
        od;
        if
        :: left < c -> state[c] = OVER; c = left; state[c] = SWAPS
        :: else -> state[c] = SWAPS; begin_swap(c, false)
        fi;
        left = 0
    }
    if
    :: atomic { !pending[c] && !bad[c] && old[c] == 0 -> state[c] = HELD; goto held }
    :: atomic { !pending[c] && !bad[c] && old[c] != 0 -> state[c] = WAITS; messages[me]!REQUEST,c; goto wait }
    :: atomic { !pending[c] && bad[c] ->
#ifdef MUTATION_UNSURE_FORGOTTEN
       state[c] = OVER;
#elif defined(MUTATION_UNSURE_BY_MESSAGE)
       state[c] = OVER; messages[me]!RELEASE,c;
#else
       state[c] = BACK;
#endif
       goto again }
    :: atomic { CAN_FAIL(c) -> fail(c); state[c] = BACK; goto again }
    :: atomic { pending[c] && timeouts < TIMEOUTS -> timeouts++;
#ifdef MUTATION_LATE_FORGOTTEN
       state[c] = OVER;
#elif defined(MUTATION_LATE_BY_MESSAGE)
       state[c] = OVER; messages[me]!RELEASE,c;
#else
       state[c] = LEFT;
#endif
       goto again }
    fi;
wait:
    if
    :: atomic { state[c] == HELD -> goto held }
    :: atomic { state[c] == WAITS && timeouts < TIMEOUTS -> timeouts++; state[c] = OVER; messages[me]!CANCEL,c; goto again }
    fi;
held:
    atomic { holders++; assert(holders == 1) /* A */ }
    atomic { holders--; state[c] = OVER; begin_swap(c, true) }
    if
    :: atomic { !pending[c] && !bad[c] && old[c] == c && old_waiters[c] -> messages[me]!RELEASE,c; goto again }
#ifndef MUTATION_WORD_NAMES_NODE
    :: atomic { !pending[c] && !bad[c] && old[c] == c && !old_waiters[c] -> goto again }
    :: atomic { !pending[c] && !bad[c] && old[c] != c -> assert(false); goto again }
#else
    :: atomic { !pending[c] && !bad[c] && !(old[c] == c && old_waiters[c]) -> goto again }
#endif
    :: atomic { CAN_FAIL(c) -> fail(c); state[c] = BACK; goto again }
    :: atomic { pending[c] && timeouts < TIMEOUTS -> timeouts++;
#ifndef MUTATION_UNLOCK_FORGOTTEN
       state[c] = BACK;
#endif
       goto again }
    fi;
over:
    skip
}

/* Handles a grant, or does one step for an abandoned attempt. */
inline settle(c)
{
    if
    :: bad[c] -> begin_swap(c, true); state[c] = BACK
    :: !bad[c] && state[c] == LEFT && old[c] == 0 -> begin_swap(c, true); state[c] = BACK
    :: !bad[c] && state[c] == LEFT && old[c] != 0 -> state[c] = OVER
    :: !bad[c] && state[c] == BACK && old[c] == c && old_waiters[c] -> state[c] = OVER; messages[NODE(c)]!RELEASE,c
    :: !bad[c] && state[c] == BACK && !(old[c] == c && old_waiters[c]) -> state[c] = OVER
    fi
}

proctype upkeep(byte me)
{
    byte c;
end:
    do
    :: atomic {
           grants[me]?c ->
           if
           :: state[c] == WAITS -> state[c] = HELD
#ifndef MUTATION_GRANT_DROPPED
           :: state[c] != WAITS -> messages[me]!RELEASE,c
#else
           :: state[c] != WAITS
#endif
           fi;
           c = 0
       }
    :: atomic { (state[1 + me] == LEFT || state[1 + me] == BACK) && !pending[1 + me] -> settle(1 + me) }
    :: atomic { (state[1 + me] == LEFT || state[1 + me] == BACK) && CAN_FAIL(1 + me) -> fail(1 + me) }
#if ATTEMPTS > 1
    :: atomic { (state[3 + me] == LEFT || state[3 + me] == BACK) && !pending[3 + me] -> settle(3 + me) }
    :: atomic { (state[3 + me] == LEFT || state[3 + me] == BACK) && CAN_FAIL(3 + me) -> fail(3 + me) }
#endif
#if ATTEMPTS > 2
    :: atomic { (state[5 + me] == LEFT || state[5 + me] == BACK) && !pending[5 + me] -> settle(5 + me) }
    :: atomic { (state[5 + me] == LEFT || state[5 + me] == BACK) && CAN_FAIL(5 + me) -> fail(5 + me) }
#endif
    od
}

init
{
    atomic { run home(); run user(0); run user(1); run upkeep(0); run upkeep(1) }
    atomic {
        timeout -> /* no other step is possible */
        assert(finished == 2 && word == 0 && !waiters && empty(line)) /* L */
    }
}
