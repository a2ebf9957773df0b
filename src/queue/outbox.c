/* SPDX-License-Identifier: MIT
 *
 * Messages that must arrive and that nobody waits for: completions, what is to be settled, the end of a queue. What finds no room at its
 * node is kept, also past the close of the queue, and sent by the room's upkeep.
 */
#include "queue/queue.h"

#include <stdlib.h>
#include <string.h>

struct queue_unsent {
    struct queue_unsent *next;
    uint32_t node, to, count;
    enum queue_message_type type;
    size_t len;
    uint8_t payload[];
};

/* An answer says where this node's shard is, and nothing else: one is enough. Else a node that asks without end, and takes none of
 * the answers, would have this one keep them all. */
static bool supersedes(const struct queue_unsent *u, const struct queue_unsent *kept)
{
    return u->type == QUEUE_ANSWER && kept->type == QUEUE_ANSWER && kept->node == u->node;
}

int queue_send(struct weft_queue *q, uint32_t node, enum queue_message_type type, uint32_t to, const void *payload, uint32_t count,
               size_t payload_len)
{
    struct queue_message m = {.type = (uint8_t)type,
                              .shut = atomic_load_explicit(&q->shut, memory_order_relaxed),
                              .slot_bits = q->own->shard.slots ? (uint8_t)(__builtin_ctz(q->own->shard.slots) + 1) : 0,
                              .count = count,
                              .incarnation = q->incarnation,
                              .to = to,
                              .key = q->key,
                              .shard = q->own->at};
    memcpy(m.name, q->name, sizeof m.name);
    return fab_send(q->w, node, QUEUE_HANDLER, &m, sizeof m, payload, payload_len, NULL);
}

static void count_unsent(struct weft_queue *q, int32_t more)
{
    struct queue_room *room = q->w->queues;
    atomic_fetch_add_explicit(&room->unsent, (uint32_t)more, memory_order_relaxed);
}

static void keep(struct weft_queue *q, struct queue_unsent *u)
{
    u->next = NULL;
    base_spin_lock(&q->unsent_lock);
    struct queue_unsent **end = &q->unsent;
    while (*end && !supersedes(u, *end))
        end = &(*end)->next;
    if (*end) {
        (*end)->to = u->to;
        base_spin_unlock(&q->unsent_lock);
        free(u);
        return;
    }
    *end = u;
    count_unsent(q, 1);
    base_spin_unlock(&q->unsent_lock);
}

void queue_keep(struct weft_queue *q, uint32_t node, enum queue_message_type type, uint32_t to, const void *payload, uint32_t count,
                size_t len)
{
    struct queue_unsent *u = malloc(sizeof *u + len);
    if (!u) {
        base_log(BASE_LOG_ERROR, "queue '%s': no memory to keep a message to node %u about %u tasks: they stay outstanding there", q->name,
                 node, count);
        return;
    }
    *u = (struct queue_unsent){.node = node, .to = to, .count = count, .type = type, .len = len};
    if (len)
        memcpy(u->payload, payload, len);
    keep(q, u);
    fab_kick(q->w);
}

void queue_post(struct weft_queue *q, uint32_t node, enum queue_message_type type, uint32_t to, const void *payload, uint32_t count,
                size_t len)
{
    int64_t before = fab_limit(1); /* a moment that is past: where there is no room now, it does not wait */
    int rc = queue_send(q, node, type, to, payload, count, len);
    fab_limit(before);
    if (rc && fab_alive(q->w, node))
        queue_keep(q, node, type, to, payload, count, len);
}

void queue_send_unsent(struct weft_queue *q)
{
    base_spin_lock(&q->unsent_lock);
    struct queue_unsent *u = q->unsent;
    q->unsent = NULL;
    base_spin_unlock(&q->unsent_lock);
    while (u) {
        struct queue_unsent *next = u->next;
        count_unsent(q, -1);
        if (queue_send(q, u->node, u->type, u->to, u->payload, u->count, u->len) && fab_alive(q->w, u->node))
            keep(q, u);
        else
            free(u);
        u = next;
    }
}

void queue_drop_unsent(struct weft_queue *q)
{
    while (q->unsent) {
        struct queue_unsent *u = q->unsent;
        q->unsent = u->next;
        free(u);
    }
}

uint32_t queue_unsent_count(const struct weft_queue *q)
{
    uint32_t n = 0;
    for (const struct queue_unsent *u = q->unsent; u; u = u->next)
        n++;
    return n;
}

void queue_tell_all(struct weft_queue *q, enum queue_message_type type)
{
    for (uint32_t i = 0; i < q->w->size; i++) {
        struct queue_view *v = queue_view_of(q, i);
        if (i != q->w->rank && fab_alive(q->w, i) && (v || type != QUEUE_SHUTDOWN))
            queue_post(q, i, type, type == QUEUE_SHUTDOWN ? v->incarnation : 0, NULL, 0, 0);
    }
}
