/* SPDX-License-Identifier: MIT
 *
 * The ring of requests between a device's threads and their node, for the Spin model checker: weft/device.h on one side, src/gpu/ring.c on
 * the other. Threads wait for room, take numbers of slots (and the place of the answer, if that is free), else wait until the answer before theirs has been looked at (or fill the slots with
 * nothing, when that takes too long), write cells that may arrive in any order, and wait for answers or leave them; the node takes requests as their cells arrive, and ends them in order, later.
 *
 * What is checked: a request is taken as it was written, once, in the order of numbers (assert T); answers are given in order
 * (assert A); and when no step is possible any more, all requests have been written, taken and ended (assert D).
 * The model fails when it should: `run` checks that each MUTATION_... is found wrong.
 *
 * One access to shared memory is one step, together with the process's own computations before and after it. No other process sees those, so
 * all interleavings of accesses are still covered. A cell is written and read as a whole. It holds the number of its request, how many slots
 * the request has, and whether an answer is wanted.
 */
#ifndef REQUESTS
#define REQUESTS 2 /* requests of each thread; a slot is used up to four times */
#endif
#define THREADS 2
#define SLOTS   2

typedef cell { bool round; byte ticket; byte slots; bool asks }
typedef slot { cell c[2] }

slot ring[SLOTS];
byte next, taken_seen;      /* used only by the device */
bool awaited[SLOTS];
byte taken;                 /* written by the node */
byte answer[SLOTS];         /* number + 1 of the request that is answered */
byte head, done;            /* used only by the node */
bool wants[SLOTS];          /* whether the request wants an answer */
byte length[SLOTS];         /* number of slots of a request under way, indexed by its first slot */
byte finished;

#ifdef MUTATION_ONE_ROUND
#define ROUND(n) true
#else
#define ROUND(n) ((((n) / SLOTS) % 2) == 0)
#endif

inline has_room(n, count, out)
{
    out = true;
    if
    :: n + count > taken_seen + SLOTS ->
        seen = taken;
        if
        :: n + count > seen + SLOTS -> out = false
        :: else -> taken_seen = seen
        fi
    :: else
    fi;
#ifdef MUTATION_NO_LOOK_FOR_ROOM
    out = true;
#endif
}

#define STORE(n, k, t, s, stored) atomic { stored = true; ring[(n) % SLOTS].c[k].ticket = t; ring[(n) % SLOTS].c[k].slots = s; \
    ring[(n) % SLOTS].c[k].asks = asks; ring[(n) % SLOTS].c[k].round = ROUND(n) }

active [THREADS] proctype thread()
{
    byte t, own, seen, slots, i;
    bool room, asks, raised, a, b, c, d;
#ifdef FEWER
    i = (_pid == 0 -> 0 : 1); /* the second thread has one request fewer */
#endif
    do
    :: i < REQUESTS ->
        atomic { if :: slots = 1 :: slots = 2 fi; if :: asks = true :: asks = false fi }
claim:  t = next;
        has_room(t, slots, room);
        if
        :: !room -> (next != t || t + slots <= taken + SLOTS); goto claim /* check again when the condition may have changed */
        :: else
        fi;
        if /* takes the place of the answer if it is free, before it takes the numbers */
        :: asks -> atomic { raised = !awaited[t % SLOTS]; awaited[t % SLOTS] = true }
        :: true
        fi;
        if
        :: atomic { next == t -> next = t + slots } /* compare and swap */
        :: atomic { next != t -> skip };
            if
            :: raised -> awaited[t % SLOTS] = false; raised = false
            :: else
            fi;
            goto claim
        fi;
        own = t; /* number of the request to which the second slot belongs */
        if
        :: asks && !raised ->
            if
#ifdef MUTATION_ANSWERS_NOT_AWAITED
            :: awaited[t % SLOTS] = true
#else
            :: atomic { !awaited[t % SLOTS] -> awaited[t % SLOTS] = true }
            :: asks = false; own = t + slots - 1 /* it gives up, and fills each slot with an empty request of one slot */
#endif
            fi
        :: else
        fi;
        atomic { a = false; b = false; c = slots == 1; d = slots == 1 }
        do /* the cells arrive */
        :: !a -> STORE(t, 0, t, (own == t -> slots : 1), a)
        :: !b -> STORE(t, 1, t, (own == t -> slots : 1), b)
#ifdef MUTATION_ONE_CELL_OF_TWO_SLOTS
        :: !c -> STORE(t + 1, 0, own, (own == t -> slots : 1), c); d = true
#else
        :: !c -> STORE(t + 1, 0, own, (own == t -> slots : 1), c)
        :: !d -> STORE(t + 1, 1, own, (own == t -> slots : 1), d)
#endif
        :: a && b && c && d -> break
        od;
        if
        :: asks ->
            if
            :: answer[t % SLOTS] == t + 1 -> awaited[t % SLOTS] = false /* the answer was read */
#ifndef NOBODY_LEAVES
            :: awaited[t % SLOTS] = false /* or the op was abandoned */
#endif
            fi
        :: else
        fi;
        atomic { i++; t = 0; own = 0; seen = 0; slots = 0; room = false; asks = false; raised = false; a = false; b = false; c = false; d = false }
    :: else -> break
    od;
    finished++
}

#define ARRIVED(n, k) (ring[(n) % SLOTS].c[k].round == ROUND(n))

active proctype node()
{
    byte slots;
end:
    do
    :: atomic { head - done < SLOTS && ARRIVED(head, 0) -> slots = ring[head % SLOTS].c[0].slots }
        if
        :: slots > SLOTS - (head - done) -> goto end /* until there is room for both slots */
        :: else
        fi;
#ifndef MUTATION_FIRST_CELL_ONLY
        ARRIVED(head, 1);
        if
        :: slots == 2 -> ARRIVED(head + 1, 0)
#ifndef MUTATION_ONE_CELL_OF_TWO_SLOTS
            ; ARRIVED(head + 1, 1)
#endif
        :: else
        fi;
#endif
        atomic {
            assert(ring[head % SLOTS].c[0].ticket == head && ring[head % SLOTS].c[1].ticket == head); /* T */
            assert(slots == 1 || (ring[(head + 1) % SLOTS].c[0].ticket == head && ring[(head + 1) % SLOTS].c[1].ticket == head)); /* T */
            length[head % SLOTS] = slots;
            wants[head % SLOTS] = ring[head % SLOTS].c[0].asks;
            head = head + slots
        }
        taken = head
    :: atomic { done < head ->
        if
        :: wants[done % SLOTS] ->
            assert(answer[done % SLOTS] <= done); /* A: no answer overwrites a newer one */
            answer[done % SLOTS] = done + 1
        :: else
        fi;
        done = done + length[done % SLOTS] }
    od
}

active proctype all_is_done()
{
    timeout -> assert(finished == THREADS && head == next && done == head) /* D */
}
