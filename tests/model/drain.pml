/* SPDX-License-Identifier: MIT
 *
 * weft_drain() of src/queue/drain.c, for the Spin model checker, with a node whose shard the drainer does not know. Node 0 drains. It knows
 * the shard of node 2, which has one task outstanding. Node 1 opens the queue at any time (its HELLO is handled at any later time), runs
 * that task, and submits another in it, which nobody runs. With BARRIER the task of node 2 is none; node 1 opens and submits, and then the
 * drain begins.
 *
 * What is checked: a drain never ends while work is outstanding that had been submitted before it began, or by work that was.
 * The model fails when it should: `run` checks that each MUTATION_... is found wrong.
 */
#define ASKS 3 /* looks again so often; more would only repeat */

mtype = { HELLO, ASK, ANSWER, NONE };

byte submitted[3], completed[3]; /* as each node publishes them */
bool open, known;                /* node 1 has opened the queue; node 0 knows its shard */
bool ready;                      /* node 2's task waits for a worker */
byte none = 1;                   /* the newest ASK that node 1 has answered with NONE; the first was an earlier drain's */
chan to_0 = [ASKS + 2] of { mtype, byte };
chan to_1 = [ASKS + 1] of { mtype, byte };

proctype node_1()
{
    open = true;
    to_0!HELLO, 0;
#ifdef BARRIER
    submitted[1] = 1
#else
    atomic { ready -> ready = false };
    submitted[1] = 1;
    completed[2] = 1
#endif
}

proctype handler_1()
{
    byte n;
end:
    do
    :: atomic {
           to_1?ASK, n ->
           if
           :: open -> to_0!ANSWER, n
           :: else -> to_0!NONE, n
           fi;
           n = 0
       }
    od
}

proctype handler_0()
{
    byte n;
end:
    do
    :: atomic { to_0?HELLO, n -> known = true }
    :: atomic { to_0?ANSWER, n -> known = true; n = 0 }
    :: atomic { to_0?NONE, n -> none = n; n = 0 }
    od
}

/* One look: completed first, then submitted. Node 1 counts one more, so that a node that becomes known is a change. */
inline look()
{
    atomic { equal = true; sum = 0 };
    c = completed[2];
    atomic { equal = equal && c == submitted[2]; sum = sum + submitted[2]; c = 0 };
    unknown = !known;
    if
    :: unknown
    :: else ->
       c = completed[1];
       atomic { equal = equal && c == submitted[1]; sum = sum + submitted[1] + 1; c = 0 }
    fi
}

proctype drain()
{
    byte c, sum, first, asks = 1;
    bool equal, unknown, asked;
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
       first = sum;
#ifndef MUTATION_ONE_LOOK
       look();
#endif
       if
       :: equal && sum == first -> goto over
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
    :: asked && sum == first ->
       if
       :: none >= asks -> goto over
       :: else -> goto next
       fi
    :: else ->
       if
       :: asks == ASKS -> goto stop
       :: else
       fi;
       atomic { asked = true; first = sum; asks++ };
       to_1!ASK, asks
    fi;
next:
    if
    :: goto again
    :: goto stop /* its time is over */
    fi;
over:
    assert(submitted[1] == completed[1] && submitted[2] == completed[2]);
stop:
    skip
}

init
{
    atomic {
#ifndef BARRIER
        submitted[2] = 1;
        ready = true;
#endif
        run node_1();
        run handler_1();
        run handler_0();
        run drain()
    }
}
