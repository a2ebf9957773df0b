/* SPDX-License-Identifier: MIT
 *
 * Messages over shared memory, with a ring for each direction (ring.h). The sender keeps messages that find no room in the ring, and the
 * receiver keeps messages that have no handler yet. Both keep them in order.
 */
#include "fabric/shm/shm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BATCH        64u         /* maximum number of messages to take from a ring before the next ring gets its turn */
#define BACKLOG_WAIT (1u << 20)  /* senders wait while the backlog has this many bytes */
#define BACKLOG_MAX  (64u << 20) /* maximum number of bytes of a backlog; then messages fail with -ENOBUFS */

void shm_messages_init(struct shm_link *s)
{
    s->backlog_end = &s->backlog;
    stash_init(&s->stash, s->link->node);
}

void shm_fail_backlog(struct shm_link *s, int status)
{
    base_spin_lock(&s->send_lock);
    struct kept *k = s->backlog;
    s->backlog = NULL;
    s->backlog_end = &s->backlog;
    atomic_store_explicit(&s->kept_gone, atomic_load_explicit(&s->kept, memory_order_relaxed), memory_order_release);
    atomic_store_explicit(&s->backlog_bytes, 0, memory_order_relaxed);
    base_spin_unlock(&s->send_lock);
    while (k) {
        struct kept *next = k->next;
        fab_complete(k->op, status);
        free(k);
        k = next;
    }
}

void shm_forget_stash(struct shm_link *s)
{
    stash_clear(&s->stash);
}

/* Wakes the peer's progress thread if that thread sleeps and no other thread of the peer polls the rings. */
static inline void nudge(struct weft_node *w, struct shm_link *s)
{
    struct fab_bell *bell = &s->control->bell;
    if (atomic_load_explicit(&bell->pollers, memory_order_relaxed) || !atomic_load_explicit(&bell->napping, memory_order_relaxed))
        return;
    if (!atomic_exchange_explicit(&bell->napping, 0, memory_order_relaxed))
        return; /* another sender wakes the peer */
    if (s->link->node == w->rank)
        fab_kick(w);
    else
        /* if the socket is full, wake-ups are already under way */
        (void)!send(s->link->side_fd, "w", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Asks the receiver to wake this node when there is room. The caller must then try once more to send. */
static void ask_for_room(struct shm_link *s)
{
    atomic_store_explicit(&s->out.ring->want_room, 1, memory_order_relaxed);
    /* pairs with the fence in shm_message_take(): either the receiver sees want_room, or the next read of head sees the room */
    atomic_thread_fence(memory_order_seq_cst);
}

static int shm_message_keep(struct shm_link *s, uint32_t id, const void *header, size_t header_len, const void *payload, size_t payload_len,
                            weft_op *op)
{
    size_t at = ring_payload_at((uint32_t)header_len), bytes = sizeof(struct kept) + at + payload_len;
    if (atomic_load_explicit(&s->backlog_bytes, memory_order_relaxed) + bytes > BACKLOG_MAX)
        return base_fail(-ENOBUFS, "node %u accepts no more work (is its process stopped?): %u MiB are queued for it", s->link->node,
                         BACKLOG_MAX >> 20);
    struct kept *k = malloc(bytes);
    if (!k)
        return base_fail(-ENOMEM, "shm: no memory to queue a message to node %u" BASE_MEMORY_HINT, s->link->node);
    *k = (struct kept){.op = op, .id = id, .header_len = (uint32_t)header_len, .payload_len = (uint32_t)payload_len};
    if (header_len)
        memcpy(k->body, header, header_len);
    if (payload_len)
        memcpy(k->body + at, payload, payload_len);
    if (op)
        fab_pending(op, s->link->node);
    *s->backlog_end = k;
    s->backlog_end = &k->next;
    atomic_fetch_add_explicit(&s->kept, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->backlog_bytes, bytes, memory_order_relaxed);
    ask_for_room(s);
    return 0;
}

/* Sends messages of the backlog while there is room. Returns how many messages it sent. The caller holds send_lock. */
static int shm_message_drain(struct shm_link *s)
{
    int n = 0;
    bool asked = false;
    while (s->backlog) {
        struct kept *k = s->backlog;
        int rc = ring_push(&s->out, k->id, k->body, k->header_len, k->body + ring_payload_at(k->header_len), k->payload_len);
        if (rc == -EAGAIN && asked)
            break;
        if (rc == -EAGAIN) {
            ask_for_room(s);
            asked = true;
            continue; /* try once more: the receiver may have made room before it could see want_room */
        }
        if (rc)
            atomic_store_explicit(&s->broken, true, memory_order_relaxed);
        s->backlog = k->next;
        if (!s->backlog)
            s->backlog_end = &s->backlog;
        atomic_fetch_sub_explicit(&s->backlog_bytes, sizeof *k + ring_payload_at(k->header_len) + k->payload_len, memory_order_relaxed);
        fab_complete(k->op, rc ? -ECONNRESET : 0);
        free(k);
        n++;
    }
    /* release: pairs with the acquire in shm_flushed() */
    atomic_fetch_add_explicit(&s->kept_gone, (uint64_t)n, memory_order_release);
    return n;
}

static bool shm_message_has_room(void *arg)
{
    struct shm_link *s = arg;
    return atomic_load_explicit(&s->backlog_bytes, memory_order_relaxed) < BACKLOG_WAIT ||
           atomic_load_explicit(&s->link->state, memory_order_acquire) != FAB_ALIVE;
}

static BASE_COLD int send_slow(struct weft_node *w, struct shm_link *s, uint32_t id, const void *header, size_t header_len,
                               const void *payload, size_t payload_len, weft_op *op)
{
    if (!fab_queues_more() && !shm_message_has_room(s)) {
        int rc = fab_wait_for_room(w, shm_message_has_room, s);
        if (rc == -EAGAIN)
            return rc;
        if (rc)
            return base_fail(rc, "message to node %u: it accepts no more work (is its process stopped?): %llu bytes are queued for it",
                             s->link->node, (unsigned long long)atomic_load(&s->backlog_bytes));
    }
    base_spin_lock(&s->send_lock);
    int rc = shm_message_keep(s, id, header, header_len, payload, payload_len, op);
    if (rc == 0)
        shm_message_drain(s); /* there may be room now */
    base_spin_unlock(&s->send_lock);
    if (rc == 0 && atomic_load_explicit(&s->link->state, memory_order_acquire) != FAB_ALIVE)
        shm_fail_backlog(s, -ECONNRESET); /* the peer died before the message was queued, so no other thread will fail this message */
    return rc;
}

int shm_send(struct weft_node *w, struct fab_link *l, uint32_t id, const void *header, size_t header_len, const void *payload,
             size_t payload_len, weft_op *op)
{
    struct shm_link *s = l->impl;
    base_spin_lock(&s->send_lock);
    int rc = s->backlog ? -EAGAIN : ring_push(&s->out, id, header, (uint32_t)header_len, payload, (uint32_t)payload_len);
    base_spin_unlock(&s->send_lock);
    if (BASE_UNLIKELY(rc)) {
        if (rc == -EPROTO) {
            atomic_store_explicit(&s->broken, true, memory_order_relaxed);
            fab_kick(w);
            return base_fail(
                -ECONNRESET,
                "node %u has written an invalid message into the shared memory between it and this node, so it counts as dead from now on",
                l->node);
        }
        rc = send_slow(w, s, id, header, header_len, payload, payload_len, op);
    } else {
        fab_complete(op, 0);
    }
    /* Orders the store of the message into the ring before the load of `napping`. Pairs with the progress thread's fence before it naps. */
    atomic_thread_fence(memory_order_seq_cst);
    nudge(w, s);
    return rc;
}

bool shm_flushed(struct weft_node *w, struct fab_link *l, struct fab_flush *f)
{
    (void)w;
    struct shm_link *s = l->impl;
    if (!f->begun)
        /* relaxed: a thread always sees its own earlier additions to the count */
        f->kept[0] = atomic_load_explicit(&s->kept, memory_order_relaxed);
    f->begun = true;
    return atomic_load_explicit(&s->kept_gone, memory_order_acquire) >= f->kept[0];
}

/* Takes up to `most` messages from a ring, while fewer than `most_stashed` messages wait for handlers. */
static int shm_message_take(struct weft_node *w, struct shm *shm, struct shm_link *s, unsigned most, unsigned most_stashed)
{
    struct ring_message *m = &shm->message;
    uint64_t told = s->in.head_told;
    unsigned n = 0;
    while (n < most && BASE_LIKELY(s->stash.count < most_stashed)) {
        int rc = ring_pop(&s->in, m);
        if (rc == 0)
            break;
        if (rc < 0) {
            atomic_store_explicit(&s->broken, true, memory_order_relaxed);
            fab_kick(w);
            break;
        }
        n++;
        stash_deliver(w, &s->stash, m->id, m->body, m->header_len, m->body + ring_payload_at(m->header_len), m->payload_len);
    }
    if (BASE_UNLIKELY(s->in.head_told != told)) {
        atomic_thread_fence(memory_order_seq_cst); /* orders the store of head before the load of want_room; pairs with ask_for_room() */
        if (atomic_load_explicit(&s->in.ring->want_room, memory_order_relaxed)) {
            atomic_store_explicit(&s->in.ring->want_room, 0, memory_order_relaxed);
            /* orders the store of want_room before the loads of `sleepers` and `napping`; pairs with the fence before shm_idle() */
            atomic_thread_fence(memory_order_seq_cst);
            shm_wake_sleepers(s);
            nudge(w, s);
        }
    }
    return (int)n;
}

/* Whether this node still delivers messages of the peer. It does not if the peer counts as dead, because such a peer may be alive and go on
 * sending. The link's state changes only while w->progress is held, and the caller holds it. */
static bool heard_still(const struct shm_link *s)
{
    return !atomic_load_explicit(&s->broken, memory_order_relaxed) &&
           atomic_load_explicit(&s->link->state, memory_order_relaxed) == FAB_ALIVE;
}

int shm_progress(struct weft_node *w)
{
    struct shm *shm = w->shm;
    int n = 0;
    for (uint32_t i = shm->count; i-- > 0;) { /* backwards, because the first link leads to this node itself */
        struct shm_link *s = shm->here[i];
        if (BASE_UNLIKELY(s->stash.count))
            n += stash_retry(w, &s->stash);
        if (ring_has(&s->in) && heard_still(s))
            n += shm_message_take(w, shm, s, BATCH, STASH_MAX);
        if (BASE_UNLIKELY(atomic_load_explicit(&s->backlog_bytes, memory_order_relaxed)) && base_spin_try(&s->send_lock)) {
            int sent = shm_message_drain(s);
            base_spin_unlock(&s->send_lock);
            if (sent) {
                atomic_thread_fence(memory_order_seq_cst);
                nudge(w, s);
            }
            n += sent;
        }
    }
    return n;
}

bool shm_idle(struct weft_node *w)
{
    struct shm *shm = w->shm;
    for (uint32_t i = 0; i < shm->count; i++) {
        struct shm_link *s = shm->here[i];
        if (atomic_load_explicit(&s->broken, memory_order_relaxed))
            continue;
        if (ring_has(&s->in) && s->stash.count < STASH_MAX && heard_still(s))
            return false;
        /* want_room is 0 again: the receiver has made room, and it found no sleeping thread of this node. So no wake-up will arrive, and
         * this thread must send the backlog. */
        if (BASE_UNLIKELY(atomic_load_explicit(&s->backlog_bytes, memory_order_relaxed)) &&
            atomic_load_explicit(&s->out.ring->want_room, memory_order_relaxed) == 0)
            return false;
    }
    return true;
}

/* Takes the last messages of a peer that is gone. At most as many as fit into a ring, because the peer may be alive and go on sending. */
void shm_last_words(struct weft_node *w, struct fab_link *l)
{
    struct shm_link *s = l->impl;
    if (!atomic_load_explicit(&s->broken, memory_order_relaxed))
        shm_message_take(w, w->shm, s, RING_CELLS, UINT32_MAX);
}

const char *shm_broken(struct weft_node *w, struct fab_link *l)
{
    (void)w;
    struct shm_link *s = l->impl;
    return s && atomic_load_explicit(&s->broken, memory_order_relaxed) ? "it wrote an invalid message into shared memory" : NULL;
}
