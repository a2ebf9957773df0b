/* SPDX-License-Identifier: MIT
 *
 * What the files of the shm transport share. Each file calls only those before it:
 *
 *   ring.c        a ring of messages in one direction
 *   copy*.c       large copies
 *   operations.c  puts, gets, atomics
 *   message.c     messages
 *   transport.c   joining, closing; the table
 */
#ifndef WEFT_SHM_H
#define WEFT_SHM_H

#include "fabric/fabric.h"
#include "fabric/shm/ring.h"
#include "fabric/stash.h"

/* A node's control region, which all nodes of the host map. */
struct control {
    uint64_t magic;
    struct fab_bell bell;
    /* [founders]: rings[i] has the messages from node i. A node that joined later has one ring, for messages to itself. */
    struct ring rings[];
};

struct kept { /* a message that found no room in the ring */
    struct kept *next;
    weft_op *op;
    uint32_t id, header_len, payload_len;
    uint8_t body[];
};

struct shm_link {
    struct fab_link *link;
    uint8_t *pool;           /* the peer's pool, mapped into this process */
    struct control *control; /* mapped into this process as well */
    size_t control_bytes;
    struct ring *late[2]; /* rings of this pair alone, used if one of the two nodes joined later: [0] to the peer, [1] from the peer */

    base_spin send_lock; /* protects the members from here to `in` */
    struct ring_sender out;
    struct kept *backlog, **backlog_end;
    _Atomic uint64_t backlog_bytes; /* also read without the lock, as a hint */
    /* kept: how many messages were ever put into the backlog; kept_gone: how many have left the backlog */
    _Atomic uint64_t kept, kept_gone;

    struct ring_receiver in; /* protected by w->progress, like `stash` */
    struct stash stash;
    _Atomic bool broken;
};

struct shm {
    int control_fd;
    struct control *control;
    size_t control_bytes;
    struct shm_link **here; /* [count]: links to the nodes of this host; after joining, changed only while w->progress is held */
    uint32_t count;
    struct ring_message message;      /* the message being delivered */
    _Atomic(struct copy_team *) team; /* threads that help with large copies; NULL: none */
};

/* Wakes the threads of the peer that wait for memory to change. Call this after a full fence. */
void shm_ring_bell(struct fab_bell *bell);
static inline void shm_wake_sleepers(struct shm_link *s)
{
    /* pairs with the waiter's sleepers++ and fence in fab_wait() */
    if (BASE_UNLIKELY(atomic_load_explicit(&s->control->bell.sleepers, memory_order_relaxed)))
        shm_ring_bell(&s->control->bell);
}

/* For tests, which write invalid data into rings. */
struct ring *shm_ring_to(struct weft_node *w, uint32_t node);
struct ring *shm_ring_from(struct weft_node *w, uint32_t node);

/* --- operations.c: functions of the transport's table --- */
int shm_put(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, weft_op *op);
int shm_get(struct weft_node *w, struct fab_link *l, void *dst, uint64_t from, size_t len, weft_op *op);
int shm_atomic(struct weft_node *w, struct fab_link *l, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, uint64_t *old,
               weft_op *op);
int shm_put_signal(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, uint64_t signal, uint64_t add,
                   weft_op *op);
int shm_set_system(struct weft_node *w, struct fab_link *l, uint64_t at, uint64_t value, bool wake);
void shm_fence(struct weft_node *w, struct fab_link *l);
void *shm_pointer(struct weft_node *w, struct fab_link *l, uint64_t offset);
void shm_wake(struct weft_node *w, struct fab_link *l);

/* --- message.c: functions of the transport's table, and of transport.c --- */
int shm_send(struct weft_node *w, struct fab_link *l, uint32_t id, const void *header, size_t header_len, const void *payload,
             size_t payload_len, weft_op *op);
bool shm_flushed(struct weft_node *w, struct fab_link *l, struct fab_flush *f);
int shm_progress(struct weft_node *w);
bool shm_idle(struct weft_node *w);
void shm_last_words(struct weft_node *w, struct fab_link *l);
const char *shm_broken(struct weft_node *w, struct fab_link *l);
void shm_messages_init(struct shm_link *s);
void shm_fail_backlog(struct shm_link *s, int status);
void shm_forget_stash(struct shm_link *s); /* drops the messages that wait for a handler */

#endif
