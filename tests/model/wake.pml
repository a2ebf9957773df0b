/* SPDX-License-Identifier: MIT
 *
 * Which threads poll a message ring, and which thread wakes which, for the Spin model checker: wait.c, progress.c and shm/message.c of
 * src/fabric. Node A sends to node B over a ring; messages that find no room are queued, and A's progress thread sends them when there is room.
 * At B three threads poll: the progress thread, a thread that waits (it counts itself in `pollers`), and one that calls weft_progress() (it
 * does not). Both progress threads sleep when there is nothing to do.
 *
 * What is checked: when no step is possible any more, every message has been delivered (assert D). A real sleep ends after a second at the
 * latest; here it lasts until another thread wakes the sleeper, so a message that only the end of a sleep would deliver counts as lost.
 * The model fails when it should: `run` checks that each MUTATION_... is found wrong.
 *
 * One access to shared memory is one step, but for pushing into the ring and taking from the list of kept messages, which are under
 * locks. Memory is sequentially consistent here, as between the fences that the code has; two mutations are orders that a processor
 * may choose where one of them is missing.
 */
#ifndef MESSAGES
#define MESSAGES 2
#endif

#ifdef KEPT                /* one half of the model: the ring is sometimes full, and only B's progress thread polls */
#define ROOM 1
#else                      /* the other half: there is always room in the ring */
#define ROOM MESSAGES
#endif

byte available, room = ROOM;  /* in the ring */
byte kept, delivered;
bool want_room;
bool sending;              /* locks: A's send_lock */
bool looking;              /* B's w->progress */
byte pollers;              /* threads of B that poll */
bool napping_a, napping_b;
bool woken_a, woken_b;     /* a byte in the pipe */

#define LOCK(l) atomic { !l -> l = true }
#define UNLOCK(l) l = false

inline try_lock(l, got)
{
    atomic { got = !l; l = true }
}

inline exchange_and_wake(napping, woken)
{
    atomic { was = napping; napping = false }
    if
    :: was -> woken = true
    :: else
    fi
}

inline nudge_b()
{
    if
    :: pollers > 0
    :: else ->
        if
        :: napping_b -> exchange_and_wake(napping_b, woken_b)
        :: else
        fi
    fi
}

inline nudge_a()
{
    if
    :: napping_a -> exchange_and_wake(napping_a, woken_a)
    :: else
    fi
}

/* shm_message_drain(), with the send lock */
inline drain()
{
    asked = false;
    do
    :: kept == 0 -> break
    :: kept > 0 && room > 0 -> atomic { room--; available++; kept--; moved = true }
    :: kept > 0 && room == 0 && !asked -> asked = true; want_room = true
    :: kept > 0 && room == 0 && asked -> break
    od
}

/* shm_message_take(), with the polling thread's lock: takes some of the messages */
inline take()
{
    took = false;
    do
    :: available == 0 -> break
    :: took -> break
    :: available > 0 -> available--; delivered++; room++; took = true
    od
    if
    :: took && want_room ->
#ifdef MUTATION_WAKES_BEFORE_CLEARING /* no fence between them */
        nudge_a();
        want_room = false
#else
        want_room = false;
        nudge_a()
#endif
    :: else
    fi
}

active proctype sender()
{
    byte i;
    bool asked, moved, was, pushed;
    for (i : 1 .. MESSAGES) {
        LOCK(sending);
        if
        :: kept == 0 && room > 0 -> atomic { room--; available++ }; pushed = true
        :: else -> pushed = false
        fi
        UNLOCK(sending);
        if
        :: pushed
        :: else ->
            LOCK(sending);
            kept++;
            want_room = true;
            drain();
            UNLOCK(sending)
        fi
        nudge_b()
    }
}

#ifdef KEPT
active proctype progress_of_a()
{
    bool asked, moved, was, got, idle;
again:
    moved = false;
    if
    :: kept > 0 ->
        try_lock(sending, got);
        if
        :: got -> drain(); UNLOCK(sending)
        :: else
        fi
    :: else
    fi
    if
    :: moved -> nudge_b(); goto again
    :: else
    fi
    napping_a = true;
    idle = true;
#ifndef MUTATION_IDLE_WITHOUT_KEPT
    if
    :: kept > 0 -> idle = want_room
    :: else
    fi
#endif
    if
    :: idle ->
end_nap:
        woken_a -> woken_a = false
    :: else
    fi
    napping_a = false;
    goto again
}

#endif

active proctype progress_of_b()
{
    bool took, was, got, idle;
again:
    took = false;
    try_lock(looking, got);
    if
    :: got -> take(); UNLOCK(looking)
    :: else
    fi
    if
    :: took -> goto again
    :: else
    fi
    if
    :: pollers > 0 -> goto again /* lazy: this sleep ends by itself */
    :: else
    fi
    napping_b = true;
    try_lock(looking, got);
    if
    :: got -> idle = available == 0; UNLOCK(looking)
    :: else -> idle = false
    fi
    if
    :: idle ->
end_nap:
        woken_b -> woken_b = false
    :: else
    fi
    napping_b = false;
    goto again
}

inline last_look()
{
    if
    :: napping_b ->
        took = false;
        try_lock(looking, got);
        if
        :: got -> take(); UNLOCK(looking)
        :: else
        fi
        if
#ifdef MUTATION_LAST_LOOK_GIVES_UP
        :: took -> woken_b = true
#else
        :: took || !got -> woken_b = true
#endif
        :: else
        fi
    :: else
    fi
}

#ifndef KEPT
/* A thread of B that waits for an event, which happens at any time. */
proctype waiter()
{
    bool took, was, got, last;
    pollers++;
    do
    :: try_lock(looking, got);
        if
        :: got -> take(); UNLOCK(looking)
        :: else
        fi
    :: break
    od
#ifdef MUTATION_LAST_LOOK_FIRST /* no fence behind the subtraction */
    last_look();
#endif
    atomic { pollers--; last = pollers == 0 }
#if !defined(MUTATION_NO_LAST_LOOK) && !defined(MUTATION_LAST_LOOK_FIRST)
    if
    :: last -> last_look()
    :: else
    fi
#endif
}

/* A thread of B that calls weft_progress() once. */
active proctype caller()
{
    bool took, was, got;
    try_lock(looking, got);
    if
    :: got -> take(); UNLOCK(looking)
    :: else
    fi
}

#endif

init
{
#ifndef KEPT
    run waiter();
#endif
    timeout;
    assert(delivered == MESSAGES) /* D */
}
