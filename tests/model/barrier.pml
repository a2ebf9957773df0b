/* SPDX-License-Identifier: MIT
 *
 * The barrier of src/sync/barrier.c while nodes leave, for the Spin model checker. Of NODES nodes, two leave, each after as many barriers
 * as LEAVES_1 and LEAVES_3 say; every other node notices that at any later time, and in any order. The remaining nodes call the barrier until
 * they have passed PASSES barriers.
 *
 * What is checked:
 *   - no node passes a barrier before all remaining nodes have entered it (assert A);
 *   - when no step is possible any more, all remaining nodes have passed (assert L): no two nodes wait for each other.
 * The model fails when it should: `run` checks that each MUTATION_... is found wrong.
 *
 * Each write into another node's line is one step, and so is each read of a word. A word holds the set as a mask, and the generation.
 * There are fewer nodes than a line has words for the sizes of sets, so a word is never used again for another set of another size.
 */
#ifndef NODES
#define NODES 4
#endif
#ifndef PASSES
#define PASSES 2
#endif
#ifndef LEAVES_1
#define LEAVES_1 1
#endif
#ifndef LEAVES_3
#define LEAVES_3 1
#endif
#if NODES == 4
#define ALL 15
#else
#define ALL 31
#endif
#define BIT(i) (1 << (i))
#define STAYS(i) ((i) != 1 && (i) != 3)

/* Words: mask . generation (3 bits). 0: never written. */
#define WORD(set, generation) ((set) << 3 | (generation))
#define SET(word)        ((word) >> 3)
#define GENERATION(word) ((word) & 7)

/* What node j has written at node i: [i * NODES + j]; a signal word for each size of a set. */
byte signal[NODES * NODES * (NODES + 1)];
byte told[2 * NODES * NODES];
#define LINE(at, from)     ((at) * NODES + (from))
#define GIVEN_UP(at, from) told[LINE(at, from)]
#define NEWEST(at, from)   told[NODES * NODES + LINE(at, from)]
#define SIGNAL(at, from, size) signal[LINE(at, from) * (NODES + 1) + (size)]

byte left;             /* nodes that have */
byte seen[NODES];      /* those that node i has seen leave */

/* What only the checker sees. */
byte come[NODES], finished;

byte size_of[ALL + 1]; /* of a set */

/* The member of `set` that is `steps` places after `me`: in `found`. */
inline member(steps)
{
    d_step {
        found = me; k = steps;
        do
        :: k == 0 -> break
        :: else ->
           found = (found + 1) % NODES;
           if
           :: set & BIT(found) -> k--
           :: else
           fi
        od;
        k = 0
    }
}

/* Tell all of `whom` by a word of their lines: the one of GIVEN_UP (0) or of NEWEST (NODES * NODES). */
inline tell(where, whom, what)
{
    j = 0;
    do
    :: j == NODES -> break
    :: else ->
       if
       :: j != me && (whom & BIT(j)) -> told[where + LINE(j, me)] = what
       :: else
       fi;
       j++
    od;
    j = 0
}

inline take_stock()
{
    atomic { stock = seen[me]; now = ALL & ~stock }
    if
    :: now != set ->
       set = now; generation = 0;
#ifndef MUTATION_NEWEST_NOT_TOLD
       tell(NODES * NODES, set, set)
#endif
    :: else
    fi
}

#define HAS_SIGNALLED (SET(SIGNAL(me, found, size_of[set])) == set && \
                       GENERATION(SIGNAL(me, found, size_of[set])) >= generation)
#define THEIRS NEWEST(me, found)
#ifdef MUTATION_ONLY_SMALLER
#define HAS_NEWER (THEIRS != 0 && size_of[THEIRS] < size_of[set])
#else
#define HAS_NEWER (THEIRS != 0 && THEIRS != set && size_of[THEIRS] <= size_of[set])
#endif
#define HAS_GIVEN_UP (GIVEN_UP(me, found) != 0 && SET(GIVEN_UP(me, found)) == set && \
                      GENERATION(GIVEN_UP(me, found)) <= generation)
#define HAS_ENDED (HAS_GIVEN_UP || HAS_NEWER || (seen[me] & BIT(found)))

proctype node(byte me; byte passes)
{
    byte set = ALL, now, stock, generation, distance, found, j, k, passed;
call:
    if
    :: passed == passes -> goto over
    :: else
    fi;
    if
    :: seen[me] != stock -> take_stock()
    :: else
    fi;
    atomic { generation++; distance = 1; come[me] = passed + 1 }
    do
    :: distance >= size_of[set] -> break
    :: else ->
       atomic { member(distance); SIGNAL(found, me, size_of[set]) = WORD(set, generation); found = 0 }
       atomic { member(size_of[set] - distance); distance = distance * 2 }
       if
       :: HAS_SIGNALLED
       :: HAS_ENDED ->
#ifndef MUTATION_NO_SECOND_LOOK
          if
          :: HAS_SIGNALLED
          :: else -> goto fail
          fi
#else
          goto fail
#endif
       fi;
       found = 0
    od;
    atomic {
        passed++; distance = 0;
        j = 0;
        do
        :: j == NODES -> break
        :: else -> assert(!STAYS(j) || come[j] >= passed) /* A */; j++
        od;
        j = 0
    }
    goto call;
fail:
    distance = 0; found = 0;
    tell(0, set, WORD(set, generation));
    seen[me] != stock; /* who has left? */
    take_stock();
    goto call;
over:
    atomic {
        if
        :: STAYS(me) -> finished++
        :: else -> left = left | BIT(me)
        fi
    }
}

/* A node sees that another has left. */
proctype eyes(byte me)
{
end:
    do
    :: atomic { (left & ~seen[me]) & BIT(1) -> seen[me] = seen[me] | BIT(1) }
    :: atomic { (left & ~seen[me]) & BIT(3) -> seen[me] = seen[me] | BIT(3) }
    od
}

init
{
    byte i, k;
    atomic {
        i = 1;
        do
        :: i > ALL -> break
        :: else ->
           k = 0;
           do
           :: k == NODES -> break
           :: else -> size_of[i] = size_of[i] + ((i >> k) & 1); k++
           od;
           i++
        od;
        i = 0; k = 0;
        do
        :: i == NODES -> break
        :: else ->
           run node(i, (i == 1 -> LEAVES_1 : (i == 3 -> LEAVES_3 : PASSES)));
           run eyes(i);
           i++
        od;
        i = 0
    }
    atomic {
        timeout -> /* nothing else can move */
        assert(finished == NODES - 2) /* L */
    }
}
