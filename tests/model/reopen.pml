/* SPDX-License-Identifier: MIT
 *
 * A queue that is closed and opened again while messages about the earlier opening are under way, for the Spin model checker: room.c, outbox.c,
 * submit.c and claim.c of src/queue. Node A submits one task in each of its openings, and claims now and then. Node B has a shard of one slot,
 * another one in each opening, and works. Each node closes the queue once, at any time; A opens it again, and B may do so.
 *
 * As in the code, every opening uses the same id for its first task, and slots with the same history have the same words. Messages of one
 * opening stay in order, those of two openings do not, because messages that found no room are sent later. A handler is one step, because
 * closing a queue waits for handlers that are running.
 *
 * What is checked:
 *   - a completion counts for the task of its own opening (assert D);
 *   - the end of an opening removes no task (assert F) and no claim (assert H) of the next opening, and neither does a settlement in a shard
 *     (assert H);
 *   - when no step is possible any more, the task of A's last opening is complete if B has the queue open, and A knows only the shard of B's
 *     last opening (asserts L, V).
 * The model fails when it should: `run` checks that each MUTATION_... is found wrong.
 */
#ifndef CLAIMS
#define CLAIMS 2 /* how often A claims */
#endif
#define OPENINGS 2

mtype = { HELLO, ANSWER, CLOSE, SETTLE, COMPLETED };

#define FREE    0
#define READY   1
#define CLAIMED 2
#define DONE    3

/* The shards, indexed by B's openings. `owner` is an opening of A, or B. */
#define B 7
byte status[OPENINGS + 1], version[OPENINGS + 1], owner[OPENINGS + 1], submitter[OPENINGS + 1];

/* A's table of tasks, and A's view of B. Neither keeps anything of an earlier opening. */
#define NONE     0
#define OUT      1
#define PENDING  2
#define COMPLETE 3
byte task, home;
byte view, newest; /* B's opening, 0: not known; the newest that A has heard of */

byte a, b;         /* the present opening; 0: the queue is closed */

/* From each opening: type, the receiver's opening (0: any), and of a slot its shard and the version. */
chan to_a[OPENINGS + 1] = [8] of { mtype, byte, byte, byte };
chan to_b[OPENINGS + 1] = [4] of { mtype, byte, byte, byte };

byte holds; /* only for the checker: the shard where A has a claim */

#define PLACE(shard) \
    assert(status[shard] == FREE); \
    status[shard] = READY; version[shard]++; owner[shard] = 0; submitter[shard] = a

/* A completion from shard `x`, whose word has version `y` */
inline accept(whose, x, y)
{
    if
    :: task == OUT || task == PENDING -> assert(whose == a) /* D */; task = COMPLETE
    :: else /* a second completion, or one with an unknown id */
    fi;
    if
    :: view == x && status[x] == DONE && version[x] == y -> status[x] = FREE; version[x]++; owner[x] = 0; submitter[x] = 0
    :: else
    fi
}

inline home_gone()
{
    if
    :: task == OUT && home == view -> task = PENDING
    :: else
    fi
}

proctype node_a()
{
    byte opening, claims, shard, v;
again:
    atomic { opening++; task = NONE; home = 0; view = 0; newest = 0; a = opening };
    to_b[opening]!HELLO, 0, 0, 0;
end:
    do
    :: atomic { task == NONE && view != 0 && status[view] == FREE -> task = OUT; home = view; shard = view };
       atomic { PLACE(shard); shard = 0 }
    :: atomic {
           claims < CLAIMS && view != 0 && status[view] == READY ->
           claims++;
           shard = view;
           status[shard] = CLAIMED; version[shard]++; owner[shard] = a;
           v = version[shard];
           holds = shard
       };
       if
       :: atomic {
              holds = 0;
              if
              :: status[shard] == CLAIMED && version[shard] == v && owner[shard] == a ->
                 status[shard] = DONE; version[shard]++;
                 if
#ifndef MUTATION_OWN_OF_ANY
                 :: submitter[shard] != a /* B has got the CLOSE, or will get it */
#endif
                 :: else -> accept(submitter[shard], shard, version[shard])
                 fi
              :: else
              fi;
              shard = 0; v = 0
          }
       :: atomic { /* the result of the swap is lost */
              holds = 0;
              if
              :: status[shard] == CLAIMED && version[shard] == v && owner[shard] == a -> status[shard] = DONE; version[shard]++
              :: true
              fi
          };
          atomic { to_b[opening]!SETTLE, shard, shard, v; shard = 0; v = 0 }
       :: opening < OPENINGS -> break
       fi
    :: opening < OPENINGS -> break
    :: atomic { opening == OPENINGS && task == COMPLETE -> goto over }
    od;
    atomic { holds = 0; shard = 0; v = 0; a = 0 };
    to_b[opening]!CLOSE, 0, 0, 0;
    goto again;
over:
    skip
}

inline learn(opening)
{
    if
#ifdef MUTATION_ANY_SHARD
    :: newest != opening ->
#else
    :: newest < opening ->
#endif
       home_gone();
       view = opening;
       newest = opening
    :: else
    fi
}

inline handle_at_a(from)
{
    if
    :: a == 0 || (to != 0 && to != a
#ifdef MUTATION_COMPLETED_FOR_ANY
           && type != COMPLETED
#endif
       )
    :: else ->
       if
       :: type == HELLO || type == ANSWER -> learn(from)
       :: type == CLOSE ->
          if
          :: view == from -> home_gone(); view = 0
          :: else
          fi
       :: type == COMPLETED -> accept(to, x, y)
       fi
    fi;
    type = 0; to = 0; x = 0; y = 0
}

/* A's handler, and its upkeep. */
proctype handler_a()
{
    mtype type;
    byte to, x, y;
end:
    do
    :: atomic { to_a[1]?type, to, x, y -> handle_at_a(1) }
    :: atomic { to_a[2]?type, to, x, y -> handle_at_a(2) }
#ifdef MUTATION_OVERTAKEN
    :: atomic { to_a[1]??CLOSE, to, x, y -> type = CLOSE; handle_at_a(1) }
#endif
    :: atomic {
           a != 0 && task == PENDING && view != 0 && status[view] == FREE ->
           task = OUT; home = view; PLACE(view)
       }
    od
}

proctype node_b()
{
    byte opening, v;
again:
    atomic { opening++; b = opening };
    to_a[opening]!HELLO, 0, 0, 0;
end:
    do
    :: atomic {
           status[opening] == READY ->
           status[opening] = CLAIMED; version[opening]++; owner[opening] = B;
           v = version[opening]
       };
       if
       :: atomic {
              status[opening] == CLAIMED && version[opening] == v ->
              status[opening] = DONE; version[opening]++;
              v = version[opening];
              to_a[opening]!COMPLETED, submitter[opening], opening, v
          }
       :: status[opening] != CLAIMED || version[opening] != v
       :: opening < OPENINGS -> break
       fi;
       v = 0
    :: opening < OPENINGS -> break
    od;
    atomic { v = 0; b = 0 };
    to_a[opening]!CLOSE, 0, 0, 0;
    if
    :: goto again
    :: true /* B keeps the queue closed */
    fi
}

#ifdef MUTATION_CLOSE_OF_TASKS
#define SUBMITTED_BY(opening) (submitter[b] != 0)
#else
#define SUBMITTED_BY(opening) (submitter[b] != 0 && submitter[b] <= opening)
#endif
#ifdef MUTATION_CLOSE_OF_CLAIMS
#define OWNED_BY(opening) (owner[b] != 0 && owner[b] != B)
#else
#define OWNED_BY(opening) (owner[b] == opening)
#endif
#define GIVEN_UP(opening) (owner[b] == opening && ((status[b] == CLAIMED && version[b] == y) || (status[b] == DONE && version[b] == y + 1)))

inline ready_again()
{
    assert(holds != b || owner[b] != a); /* H */
    status[b] = READY; version[b]++; owner[b] = 0
}

inline handle_at_b(from)
{
    if
    :: b == 0 || (to != 0 && to != b
#ifdef MUTATION_SETTLE_IN_ANY
           && type != SETTLE
#endif
       )
    :: else ->
       if
       :: type == HELLO -> to_a[b]!ANSWER, from, 0, 0
       :: type == CLOSE && status[b] != FREE ->
          if
          :: SUBMITTED_BY(from) ->
             assert(submitter[b] != a); /* F */
             status[b] = FREE; version[b]++; owner[b] = 0; submitter[b] = 0
          :: !SUBMITTED_BY(from) && (status[b] == CLAIMED || status[b] == DONE) && OWNED_BY(from) -> ready_again()
          :: else
          fi
       :: type == SETTLE && GIVEN_UP(from) -> ready_again()
       :: else
       fi
    fi;
    type = 0; to = 0; x = 0; y = 0
}

proctype handler_b()
{
    mtype type;
    byte to, x, y;
end:
    do
    :: atomic { to_b[1]?type, to, x, y -> handle_at_b(1) }
    :: atomic { to_b[2]?type, to, x, y -> handle_at_b(2) }
    od
}

init
{
    atomic { run node_a(); run handler_a(); run node_b(); run handler_b() }
    atomic {
        timeout -> /* no other step is possible */
        assert(a == OPENINGS && (b == 0 || task == COMPLETE)); /* L */
        assert(view == b) /* V */
    }
}
