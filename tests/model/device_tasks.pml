/* SPDX-License-Identifier: MIT
 *
 * The ring of tasks that a node claims ahead for persistent blocks, for the Spin model checker: src/gpu/work.c on one side,
 * weft_device_next_task() and weft_device_task_done() on the other. The worker's thread fills slots, completes what is done, and takes
 * back what takes too long; blocks draw numbers by compare-and-swap, one of them may hang with its task; the serving thread hands results over.
 *
 * What is checked: a block reads one task, not parts of two (assert T); a result belongs to its task, and comes once for each claim (assert C);
 * when no step is possible any more, every task is complete, or was left to other nodes after the last claim, and no slot is in use (assert
 * D).
 * The model fails when it should: `run` checks that each MUTATION_... is found wrong.
 *
 * The model leaves out: numbers drawn by addition, the renewal of leases, the queue itself (slot.pml). One access to shared memory is one step,
 * together with the process's own computations before and after it.
 */
#ifndef TASKS
#define TASKS 3
#endif
#ifndef BACK
#define BACK 1 /* how many tasks are taken back although no block hangs */
#endif
#define BLOCKS 2
#define SLOTS  2
#define NONE   255

#define READY    0
#define CLAIMED  1
#define COMPLETE 2

byte state[TASKS];
byte number[SLOTS], first[SLOTS], second[SLOTS]; /* the ring: number + 1, and a task of two words */
byte filled, next;
bool ended;
byte held[SLOTS], result[SLOTS];
bool used[SLOTS], hung[SLOTS];
byte lease[SLOTS], at[SLOTS]; /* used only by the worker's thread */
byte put, in_use, hangs;
bool closing;
chan done = [4] of { byte };           /* slots */
chan requests = [4] of { byte, byte }; /* number, result */
byte left;

active [BLOCKS] proctype block()
{
    byte t, f, a, b;
    bool e;
    do
    :: t = next;
#ifdef MUTATION_FILLED_BEFORE_ENDED
        f = filled;
        atomic { e = ended;
#else
        e = ended;
        atomic { f = filled;
#endif
        if
        :: t >= f && e -> break
        :: t >= f && !e -> skip
        :: else -> goto draw
        fi }
        if
        :: (filled != f || ended || next != t); goto again
        fi;
draw:   if
        :: atomic { next == t -> next = t + 1 }
        :: atomic { next != t -> goto again }
        fi;
        a = first[t % SLOTS];
        b = second[t % SLOTS];
#ifndef MUTATION_NO_LOOK
        if
        :: number[t % SLOTS] != t + 1 -> goto again
        :: else
        fi;
#endif
        assert(a == b && a != NONE); /* T */
        if
        :: requests!t, a
        :: atomic { hangs == 0 -> hangs = 1;
            if
            :: held[t % SLOTS] == t + 1 -> hung[t % SLOTS] = true
            :: else
            fi };
            break
        fi;
again:  atomic { t = 0; f = 0; a = 0; b = 0; e = false }
    od;
    left++
}

active proctype serving()
{
    byte n, r;
end:
    do
    :: requests?n, r ->
#ifdef MUTATION_HELD_WITHOUT_SWAP
        if
        :: held[n % SLOTS] == n + 1
        :: else -> goto end
        fi;
        held[n % SLOTS] = 0;
#elif defined(MUTATION_ANY_NUMBER)
        if
        :: atomic { held[n % SLOTS] != 0 -> held[n % SLOTS] = 0 }
        :: atomic { held[n % SLOTS] == 0 -> goto end }
        fi;
#else
        if
        :: atomic { held[n % SLOTS] == n + 1 -> held[n % SLOTS] = 0 }
        :: atomic { held[n % SLOTS] != n + 1 -> goto end }
        fi;
#endif
        result[n % SLOTS] = r;
        done!(n % SLOTS)
    od
}

inline take_back(s)
{
    if
#ifdef MUTATION_TAKES_BACK_ANYWAY
    :: atomic { true -> held[s] = 0 }
#else
    :: atomic { held[s] == at[s] + 1 -> held[s] = 0 }
#endif
        number[s] = 0;
        atomic {
            used[s] = false; hung[s] = false; in_use--;
            assert(state[lease[s]] == CLAIMED); /* C */
            state[lease[s]] = READY
        }
    :: atomic { held[s] != at[s] + 1 -> skip }
    fi
}

active proctype worker()
{
    byte s, task, back;
end:
    do
    :: done?s -> atomic {
            assert(used[s] && state[lease[s]] == CLAIMED && result[s] == lease[s]); /* C */
            state[lease[s]] = COMPLETE; used[s] = false; hung[s] = false; in_use--
        }
    :: !ended && in_use < SLOTS -> /* claim one, if one is ready */
        atomic {
            task = 0;
            do
            :: task < TASKS && state[task] != READY -> task++
            :: else -> break
            od
        }
        if
        :: task == TASKS -> ended = true /* nothing will come */
        :: task == TASKS -> (nempty(done) || in_use == 0 || back < BACK || hung[0] || hung[1])
        :: task < TASKS ->
            atomic {
                state[task] = CLAIMED;
                do
                :: used[put % SLOTS] -> put++
                :: else -> break
                od;
                s = put % SLOTS; used[s] = true; in_use++; lease[s] = task; at[s] = put
            }
#ifdef MUTATION_FILLED_FIRST
            filled = put + 1;
#endif
            held[s] = put + 1;
            number[s] = 0;
            first[s] = task;
            second[s] = task;
            number[s] = put + 1;
            put++;
            filled = put
        fi
    :: used[0] && (hung[0] || back < BACK) -> atomic { back = (hung[0] -> back : back + 1) } take_back(0)
    :: used[1] && (hung[1] || back < BACK) -> atomic { back = (hung[1] -> back : back + 1) } take_back(1)
#ifdef CLOSE
    :: !closing -> closing = true; ended = true;
        if :: used[0] -> take_back(0) :: else fi;
        if :: used[1] -> take_back(1) :: else fi
#endif
    od
}

#define OVER(t) (state[t] == COMPLETE || (ended && state[t] == READY))

active proctype all_is_done()
{
    timeout -> assert(left == BLOCKS && in_use == 0 && ended && OVER(0) && OVER(1) && OVER(TASKS - 1)) /* D */
}
