/* SPDX-License-Identifier: MIT
 *
 * What the files of the shm transport share. Each calls only those before it:
 *
 *   ring.c        a ring of messages, one direction
 *   copy*.c       large copies
 *   operations.c  puts, gets, atomics
 *   message.c     messages
 *   transport.c   joining, the end; the table
 */
#ifndef WEFT_SHM_H
#define WEFT_SHM_H

#include "fabric/fabric.h"
#include "fabric/shm/ring.h"
#include "fabric/stash.h"

/* A node's control region, shared with the nodes of its host. */
struct control {
    uint64_t magic;
    struct fab_bell bell;
    struct ring rings[]; /* [size]: messages from node i */
};

struct kept { /* a message that found no room */
    struct kept *next;
    weft_op *op;
    uint32_t id, header_len, payload_len;
    uint8_t body[];
};

struct shm_link {
    struct fab_link *link;
    uint8_t *pool;           /* the peer's, mapped here */
    struct control *control; /* likewise */
    size_t control_bytes;

    base_spin send_lock; /* guards what follows, to `in` */
    struct ring_sender out;
    struct kept *backlog, **backlog_end;
    _Atomic uint64_t backlog_bytes;   /* read without the lock as a hint */
    _Atomic uint64_t kept, kept_gone; /* messages that were ever in it; that are not any more */

    struct ring_receiver in; /* under w->progress, like the rest */
    struct stash stash;
    _Atomic bool broken;
};

struct shm {
    int control_fd;
    struct control *control;
    size_t control_bytes;
    struct shm_link **here; /* [count]: links to nodes of this host */
    uint32_t count;
    struct ring_message message;      /* being delivered */
    _Atomic(struct copy_team *) team; /* helps with large copies; NULL: nobody does */
};

/* Wake who waits at the peer for memory; after a full fence. */
void shm_ring_bell(struct fab_bell *bell);
static inline void shm_wake_sleepers(struct shm_link *s)
{
    /* pairs with the waiter's sleepers++ and fence in fab_wait() */
    if (BASE_UNLIKELY(atomic_load_explicit(&s->control->bell.sleepers, memory_order_relaxed)))
        shm_ring_bell(&s->control->bell);
}

/* For tests that write nonsense into them: the rings to and from a node. */
struct ring *shm_ring_to(struct weft_node *w, uint32_t node);
struct ring *shm_ring_from(struct weft_node *w, uint32_t node);

/* --- operations.c: of the transport's table --- */
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

/* --- message.c: the functions of the transport's table, and the end of a link --- */
int shm_send(struct weft_node *w, struct fab_link *l, uint32_t id, const void *header, size_t header_len, const void *payload,
             size_t payload_len, weft_op *op);
bool shm_flushed(struct weft_node *w, struct fab_link *l, struct fab_flush *f);
int shm_progress(struct weft_node *w);
bool shm_idle(struct weft_node *w);
void shm_last_words(struct weft_node *w, struct fab_link *l);
const char *shm_broken(struct weft_node *w, struct fab_link *l);
void shm_messages_init(struct shm_link *s);
void shm_fail_backlog(struct shm_link *s, int status); /* what found no room yet */
void shm_forget_stash(struct shm_link *s);             /* what waits for handlers */

#endif
