/* SPDX-License-Identifier: MIT
 *
 * weft_drain() of src/queue/drain.c, for the Spin model checker, with a node whose shard the drainer does not know. Node 0 drains. It knows
 * the shard of node 2, which has one task outstanding. Node 1 opens the queue at any time (its HELLO is handled at any later time), runs
 * that task, and while it runs submits another, which no node runs. With BARRIER node 2 has no task; node 1 opens the queue and submits, and
 * then the drain begins. With REOPEN node 0 knows the shard of node 1, which has the task; while this runs, it submits a task to node 2, and
 * that one submits a task to node 0. When its task is complete, node 1 closes the queue and opens it again.
 *
 * What is checked: a drain never ends while a task is outstanding that was submitted before the drain began, or by such a task.
 * The model fails when it should: `run` checks that each MUTATION_... is found wrong.
 */
#define ASKS 3 /* how often the drain repeats its reads; more would only repeat the same states */

mtype = { HELLO, CLOSE, ASK, ANSWER, NONE };

/* The published counters of the three nodes; index ANEW: those of node 1 after it has opened the queue again. */
#define ANEW  3
#define NO    4                  /* no queue, no shard */
byte submitted[4], completed[4];
bool closed;                     /* node 1 has closed its first opening of the queue, as its shard shows */
byte open = NO, view = NO;       /* open: node 1's opening; view: the opening that node 0 knows */
bool ready;                      /* the first task waits for a worker */
byte none = 1;                   /* the newest ASK that node 1 has answered with NONE; ASK 1 was sent by an earlier drain */
chan to_0 = [ASKS + 4] of { mtype, byte };
chan to_1 = [ASKS + 1] of { mtype, byte };

proctype node_1()
{
#ifdef REOPEN
    completed[1] == 1;
    closed = true;
    open = NO;
    to_0!CLOSE, 1;
    open = ANEW;
    to_0!HELLO, ANEW
#else
    open = 1;
    to_0!HELLO, 1;
#ifdef BARRIER
    submitted[1] = 1
#else
    atomic { ready -> ready = false };
    submitted[1] = 1;
    completed[2] = 1
#endif
#endif
}

#ifdef REOPEN
proctype worker()
{
    submitted[2] = 1;
    completed[1] = 1;
    submitted[0] = 1;
    completed[2] = 1
}
#endif

proctype handler_1()
{
    byte n;
end:
    do
    :: atomic {
           to_1?ASK, n ->
           if
           :: open != NO -> to_0!ANSWER, open
           :: else -> to_0!NONE, n
           fi;
           n = 0
       }
    od
}

/* Messages of node 1 about one opening arrive before those about the next. */
proctype handler_0()
{
    byte n;
end:
    do
    :: atomic { to_0?HELLO, n -> view = n; n = 0 }
    :: atomic { to_0?ANSWER, n -> view = n; n = 0 }
    :: atomic { to_0?CLOSE, n -> view = (view == n -> NO : view); n = 0 }
    :: atomic { to_0?NONE, n -> none = n; n = 0 }
    od
}

#define SHUT(at) (at == 1 && closed)
/* Reads how much a node has submitted, and in which opening; 0: that is not known. */
#define SEEN(at) (submitted[at] * 4 + (at == ANEW -> 2 : 1))

/* Reads `completed` first, then `submitted` and `closed`. */
inline count(node, at)
{
    c = completed[at];
    atomic {
        if
        :: SHUT(at) -> unknown = true; now = 0
        :: else ->
           equal = equal && c == submitted[at];
           sum = sum + submitted[at] + 1;
           now = SEEN(at)
        fi;
        same = same && seen[node] == now;
        seen[node] = now;
        c = 0; now = 0
    }
}

/* One reading of all counters. */
inline look()
{
    atomic { equal = true; same = true; unknown = false; sum = 0 };
    count(0, 0);
    count(2, 2);
    v = view;
    if
    :: v == NO -> atomic { unknown = true; same = same && seen[1] == 0; seen[1] = 0 }
    :: else -> count(1, v)
    fi;
    atomic {
        v = 0;
#ifdef MUTATION_SUMS
        same = sum == before;
        before = sum;
#endif
        sum = 0
    }
}

proctype drain()
{
    byte c, v, sum, before, now, asks = 1;
    byte seen[3];
    bool equal, same, unknown, asked;
#ifdef BARRIER
    submitted[1] == 1;
#endif
again:
    look();
    if
    :: !equal -> asked = false; goto next
    :: else
    fi;
    if
#ifdef MUTATION_UNKNOWN_IS_NONE
    :: true ->
#else
    :: !unknown ->
#endif
       asked = false;
#ifdef MUTATION_ONE_LOOK
       same = true;
#else
       look();
#endif
       if
       :: equal && same -> goto over
       :: else -> goto next
       fi
    :: else
    fi;
#ifdef MUTATION_OLD_ANSWER
    if
    :: none > 0 && unknown -> goto over /* whatever it has submitted since */
    :: else
    fi;
#endif
    if
    :: asked && same ->
       if
       :: none >= asks -> goto over
       :: else -> goto next
       fi
    :: else ->
       if
       :: asks == ASKS -> goto stop
       :: else
       fi;
       atomic { asked = true; asks++ };
       to_1!ASK, asks
    fi;
next:
    if
    :: goto again
    :: goto stop /* the drain's time-out */
    fi;
over:
    assert(submitted[0] == completed[0] && submitted[1] == completed[1] && submitted[2] == completed[2] && submitted[3] == completed[3]);
stop:
    skip
}

init
{
    atomic {
#ifdef REOPEN
        open = 1;
        view = 1;
        submitted[1] = 1;
        run worker();
#elif !defined(BARRIER)
        submitted[2] = 1;
        ready = true;
#endif
        run node_1();
        run handler_1();
        run handler_0();
        run drain()
    }
}
