/* SPDX-License-Identifier: MIT
 *
 * Sends messages without waiting. A message to another node that finds no room is queued, and the node's upkeep sends the queue in order.
 * The callers bound what this node sends of its own accord: requests by WEFT_REQUESTS_MAX, the bytes of a stream by its ring. Replies are
 * bounded here: a node that keeps sending, but does not read the replies, is treated as dead. A message to this node itself is handled at
 * once, on the thread that posts it, so no other thread has to be woken for it.
 */
#include "gateway/gateway.h"

#include <stdlib.h>
#include <string.h>

/* The most bytes of replies that are queued for a node. One that keeps to the rules has at most WEFT_REQUESTS_MAX answers to come, 72 MiB
 * of the largest ones, and a few credits for each of its streams. */
#define REPLIES_MAX ((size_t)96 << 20)

struct post {
    struct post *next;
    struct gateway_message m;
    size_t len;
    uint8_t payload[];
};
struct post_queue {
    struct post *first, **last; /* last: valid only if `first` is not NULL */
    size_t replies;             /* bytes of the replies in it */
    bool sending;               /* a thread is sending the first message */
};
struct gateway_posts {
    base_spin lock;
    _Atomic uint32_t kept;
    struct post_queue queue[]; /* [room] */
};

int gateway_posts_open(struct gateway *g)
{
    struct gateway_posts *p = calloc(1, sizeof *p + g->w->room * sizeof p->queue[0]);
    if (!p)
        return base_fail(-ENOMEM, "no memory for messages to %u nodes" BASE_MEMORY_HINT, g->w->size);
    g->posts = p;
    return 0;
}

/* How much of REPLIES_MAX a message takes. 0: it is no reply to a message of its node. */
static size_t reply_bytes(const struct gateway_message *m, size_t len)
{
    bool reply = m->type == GATEWAY_ANSWER || m->type == GATEWAY_CREDIT || m->type == GATEWAY_SHUT || m->type == GATEWAY_END;
    return reply ? sizeof(struct post) + len : 0;
}

static void drop(struct gateway_posts *p, struct post_queue *q)
{
    struct post *first = q->first;
    q->first = first->next;
    q->replies -= reply_bytes(&first->m, first->len);
    atomic_fetch_sub_explicit(&p->kept, 1, memory_order_relaxed);
    free(first);
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

/* Handles a message to this node itself. False: the handler is not installed yet. */
static bool post_here(struct gateway *g, const struct gateway_message *m, const void *payload, size_t len)
{
    if (!fab_deliver(g->w, g->w->rank, GATEWAY_HANDLER, m, sizeof *m, payload, len))
        return false;
    if (m->type != GATEWAY_REQUEST && m->type != GATEWAY_CANCEL) /* these two types are for the server thread, which is woken on its own */
        fab_wake_here(g->w);
    return true;
}

int gateway_post(struct gateway *g, uint32_t node, const struct gateway_message *m, const void *payload, size_t len)
{
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
    struct post *kept = malloc(sizeof *kept + len);
    if (!kept)
        return base_fail(-ENOMEM, "no memory to queue a service's message to node %u" BASE_MEMORY_HINT, node);
    *kept = (struct post){.m = *m, .len = len};
    if (len)
        memcpy(kept->payload, payload, len);
    base_spin_lock(&p->lock);
    bool floods = q->replies + reply_bytes(m, len) > REPLIES_MAX;
    if (floods) {
        base_spin_unlock(&p->lock);
        free(kept);
        fab_give_up(g->w, node, "it keeps asking services, but does not read the answers");
        return -ECONNRESET;
    }
    q->replies += reply_bytes(m, len);
    if (!q->first)
        q->last = &q->first;
    *q->last = kept;
    q->last = &kept->next;
    bool first =
        atomic_fetch_add_explicit(&p->kept, 1, memory_order_relaxed) == 0; /* otherwise the upkeep is sending queued messages already */
    base_spin_unlock(&p->lock);
    if (first)
        fab_kick(g->w);
    return 0;
}

/* One thread at a time sends the messages queued for a node. The message being sent stays first in the queue, so none overtakes it. */
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
