/* SPDX-License-Identifier: MIT
 *
 * Sends messages without waiting. A message for which there is no room is queued, and the node's upkeep sends the queue in order. Requests
 * are bounded by WEFT_REQUESTS_MAX, the bytes of a stream by its ring, and replies by REPLIES_MAX: a node that sends requests but does not
 * read the replies is treated as dead. A message to this node itself is handled at once, on the thread that posts it.
 *
 * The bytes of a stream may be sent in many small pieces, with a DATA message for each. Later pieces are added to a DATA message that is
 * still queued, so that a stream has few DATA messages in the queue.
 */
#include "gateway/gateway.h"

#include <stdlib.h>
#include <string.h>

/* Maximum number of bytes of replies that may be queued for a node. (WEFT_REQUESTS_MAX answers take at most 72 MiB.) */
#define REPLIES_MAX ((size_t)96 << 20)
#define DATA_PLACES 1024u

struct post {
    struct post *next, *next_data; /* next_data: in the list in gateway_posts.data */
    struct gateway_message m;
    uint32_t node;
    size_t len, room; /* len: number of bytes at `payload`; room: size of the memory there */
    uint8_t *payload;
};
struct post_queue {
    struct post *first, **last; /* last: valid only if `first` is not NULL */
    size_t replies;             /* bytes of replies in the queue */
    bool sending;               /* a thread is sending the first message */
};
struct gateway_posts {
    base_spin lock;
    _Atomic uint32_t kept;
    struct post *data[DATA_PLACES]; /* for each stream: the queued DATA message to which further pieces are added; hashed by stream */
    struct post_queue queue[];      /* [room] */
};

int gateway_posts_open(struct gateway *g)
{
    struct gateway_posts *p = calloc(1, sizeof *p + g->w->room * sizeof p->queue[0]);
    if (!p)
        return base_fail(-ENOMEM, "no memory for messages to %u nodes" BASE_MEMORY_HINT, g->w->size);
    g->posts = p;
    return 0;
}

/* How much of REPLIES_MAX a message takes. Returns 0 if the message is not a reply. */
static size_t reply_bytes(const struct gateway_message *m, size_t len)
{
    bool reply = m->type == GATEWAY_ANSWER || m->type == GATEWAY_CREDIT || m->type == GATEWAY_SHUT || m->type == GATEWAY_END;
    return reply ? sizeof(struct post) + len : 0;
}

/* --- queued DATA messages to which further pieces of the stream are added; the caller holds gateway.lock --- */

/* The place in `data` for the message to which further pieces of the stream are added. There may be no such message. */
static struct post **data_at(struct gateway_posts *p, uint32_t node, uint64_t stream)
{
    struct post **at = &p->data[(stream ^ node * UINT64_C(0x9e3779b1)) % DATA_PLACES];
    while (*at && ((*at)->node != node || (*at)->m.to != stream))
        at = &(*at)->next_data;
    return at;
}

/* From now on no pieces are added to the message. */
static void data_leave(struct gateway_posts *p, const struct post *one)
{
    struct post **at = data_at(p, one->node, one->m.to);
    if (*at == one)
        *at = one->next_data;
}

static bool is_piece(const struct gateway_message *m)
{
    return m->type == GATEWAY_DATA && !m->word[3];
}

/* From now on further pieces are added to the message, which is the last one of its stream in the queue. */
static void data_enter(struct gateway_posts *p, struct post *one)
{
    struct post **at = data_at(p, one->node, one->m.to);
    if (*at)
        *at = (*at)->next_data;
    if (!is_piece(&one->m))
        return;
    at = data_at(p, one->node, one->m.to);
    one->next_data = *at;
    *at = one;
}

/* Adds a piece of a stream to the queued message that contains the previous piece. Returns false if there is no such message, or if it
 * would become too large. */
static bool data_add(struct gateway_posts *p, uint32_t node, const struct gateway_message *m, const void *payload, size_t len)
{
    struct post *one = is_piece(m) ? *data_at(p, node, m->to) : NULL;
    if (!one || one->m.word[0] != m->word[0] || one->m.word[1] + one->m.word[2] != m->word[1] || !one->len != !len ||
        one->len + len > WEFT_PAYLOAD_MAX)
        return false;
    if (one->len + len > one->room) {
        size_t room = 2 * (one->len + len) < WEFT_PAYLOAD_MAX ? 2 * (one->len + len) : WEFT_PAYLOAD_MAX;
        uint8_t *more = realloc(one->payload, room);
        if (!more)
            return false;
        one->payload = more;
        one->room = room;
    }
    if (len)
        memcpy(one->payload + one->len, payload, len);
    one->len += len;
    one->m.word[2] += m->word[2];
    return true;
}

/* --- the queues --- */

static void post_free(struct post *one)
{
    free(one->payload);
    free(one);
}

static struct post *post_new(uint32_t node, const struct gateway_message *m, const void *payload, size_t len)
{
    struct post *one = malloc(sizeof *one);
    uint8_t *bytes = one && len ? malloc(len) : NULL;
    if (!one || (len && !bytes)) {
        free(one);
        return NULL;
    }
    *one = (struct post){.m = *m, .node = node, .len = len, .room = len, .payload = bytes};
    if (len)
        memcpy(bytes, payload, len);
    return one;
}

static void drop(struct gateway_posts *p, struct post_queue *q)
{
    struct post *first = q->first;
    q->first = first->next;
    q->replies -= reply_bytes(&first->m, first->len);
    atomic_fetch_sub_explicit(&p->kept, 1, memory_order_relaxed);
    data_leave(p, first);
    post_free(first);
}

void gateway_posts_free(struct gateway *g)
{
    for (uint32_t i = 0; g->posts && i < g->w->size; i++)
        while (g->posts->queue[i].first)
            drop(g->posts, &g->posts->queue[i]);
    free(g->posts);
    g->posts = NULL;
}

static int post_now(struct gateway *g, uint32_t node, const struct gateway_message *m, const void *payload, size_t len)
{
    bool before = fab_nowait(true);
    int rc = fab_send(g->w, node, GATEWAY_HANDLER, m, sizeof *m, payload, len, NULL);
    fab_nowait(before);
    return rc == -ENOBUFS || rc == -ENOMEM || rc == -ENETDOWN ? -EAGAIN : rc;
}

/* Handles a message to this node itself. Returns false if the handler is not installed yet. */
static bool post_here(struct gateway *g, const struct gateway_message *m, const void *payload, size_t len)
{
    if (!fab_deliver(g->w, g->w->rank, GATEWAY_HANDLER, m, sizeof *m, payload, len))
        return false;
    if (m->type != GATEWAY_REQUEST && m->type != GATEWAY_CANCEL) /* requests and cancellations wake the server thread in another way */
        fab_wake_here(g->w);
    return true;
}

int gateway_post(struct gateway *g, uint32_t node, const struct gateway_message *what, const void *payload, size_t len)
{
    struct gateway_message changed = *what, *m = &changed;
    m->status = base_status_out(m->status); /* on_message() of room.c changes it back */
    if (node == g->w->rank && post_here(g, m, payload, len))
        return 0;
    struct gateway_posts *p = g->posts;
    struct post_queue *q = &p->queue[node];
    base_spin_lock(&p->lock);
    bool behind = q->first != NULL;
    base_spin_unlock(&p->lock);
    int rc = behind ? -EAGAIN : post_now(g, node, m, payload, len);
    if (rc != -EAGAIN)
        return rc;
    struct post *kept = post_new(node, m, payload, len);
    if (!kept)
        return base_fail(-ENOMEM, "no memory to queue a service's message to node %u" BASE_MEMORY_HINT, node);
    base_spin_lock(&p->lock);
    if (data_add(p, node, m, payload, len)) {
        base_spin_unlock(&p->lock);
        post_free(kept);
        return 0;
    }
    bool floods = q->replies + reply_bytes(m, len) > REPLIES_MAX;
    if (floods) {
        base_spin_unlock(&p->lock);
        post_free(kept);
        fab_give_up(g->w, node, "it keeps sending requests to services, but does not read the answers");
        return -ECONNRESET;
    }
    q->replies += reply_bytes(m, len);
    if (!q->first)
        q->last = &q->first;
    *q->last = kept;
    q->last = &kept->next;
    if (m->type == GATEWAY_DATA)
        data_enter(p, kept);
    /* wake the upkeep only for the first queued message: while messages are queued, it goes on sending them */
    bool first = atomic_fetch_add_explicit(&p->kept, 1, memory_order_relaxed) == 0;
    base_spin_unlock(&p->lock);
    if (first)
        fab_kick(g->w);
    return 0;
}

/* One thread at a time sends the messages that are queued for a node. The message that is being sent stays first in the queue, so that no
 * other message overtakes it. */
static void flush_one(struct gateway *g, uint32_t node)
{
    struct gateway_posts *p = g->posts;
    struct post_queue *q = &p->queue[node];
    base_spin_lock(&p->lock);
    if (q->sending) {
        base_spin_unlock(&p->lock);
        return;
    }
    q->sending = true;
    for (int rc = 0; q->first && rc != -EAGAIN;) {
        struct post *first = q->first;
        data_leave(p, first); /* the message must not change while it is being sent */
        base_spin_unlock(&p->lock);
        rc = post_now(g, node, &first->m, first->payload, first->len);
        base_spin_lock(&p->lock);
        if (rc != -EAGAIN)
            drop(p, q);
    }
    q->sending = false;
    base_spin_unlock(&p->lock);
}

bool gateway_posts_flush(struct gateway *g)
{
    struct gateway_posts *p = g->posts;
    if (!atomic_load_explicit(&p->kept, memory_order_relaxed))
        return false;
    for (uint32_t i = 0; i < g->w->size; i++)
        flush_one(g, i);
    return atomic_load_explicit(&p->kept, memory_order_relaxed) != 0;
}
