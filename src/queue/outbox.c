/* SPDX-License-Identifier: MIT
 *
 * Sends messages that must arrive, but for whose arrival no thread waits: completions, requests to settle a slot, the close of a queue. A
 * message that cannot be sent now is kept, and upkeep.c sends it later, even after the queue was closed.
 */
#include "queue/queue.h"

#include <stdlib.h>
#include <string.h>

struct queue_unsent {
    struct queue_unsent *next;
    uint32_t node, to, count;
    enum queue_message_type type;
    bool sending; /* guarded by the outbox lock; while `sending` is true, the message must not be changed */
    size_t len;
    uint8_t payload[];
};

/* Whether message `u` makes the kept message `kept` superfluous. Of the ASKs of drains only the newest counts. One ANSWER to each node is
 * enough: otherwise a node that asks for ever and receives nothing would fill this node's memory. */
static bool supersedes(const struct queue_unsent *u, const struct queue_unsent *kept)
{
    return (u->type == QUEUE_ANSWER || u->type == QUEUE_ASK) && kept->type == u->type && kept->node == u->node && !kept->sending;
}

/* Whether kept messages to this node are waiting. A later message must not overtake them: if a CLOSE overtook a SETTLE, for example, nobody
 * would free the slot. */
static bool others_wait(struct weft_queue *q, uint32_t node)
{
    bool found = false;
    base_spin_lock(&q->unsent_lock);
    for (const struct queue_unsent *u = q->unsent; u && !found; u = u->next)
        found = u->node == node;
    base_spin_unlock(&q->unsent_lock);
    return found;
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

static void outbox_keep(struct weft_queue *q, struct queue_unsent *u)
{
    u->next = NULL;
    base_spin_lock(&q->unsent_lock);
    struct queue_unsent **end = &q->unsent;
    while (*end && !supersedes(u, *end))
        end = &(*end)->next;
    if (*end) {
        (*end)->to = u->to;
        (*end)->count = u->count;
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
        base_log(BASE_LOG_ERROR,
                 "queue '%s': no memory for a message to node %u about %u of its tasks: that node will wait for these tasks for "
                 "ever" BASE_MEMORY_HINT,
                 q->name, node, count);
        return;
    }
    *u = (struct queue_unsent){.node = node, .to = to, .count = count, .type = type, .len = len};
    if (len)
        memcpy(u->payload, payload, len);
    outbox_keep(q, u);
    fab_kick(q->w);
}

void queue_post(struct weft_queue *q, uint32_t node, enum queue_message_type type, uint32_t to, const void *payload, uint32_t count,
                size_t len)
{
    if (others_wait(q, node)) {
        queue_keep(q, node, type, to, payload, count, len);
        return;
    }
    int64_t before = fab_limit(1); /* a deadline in the past: the send fails at once if there is no room */
    int rc = queue_send(q, node, type, to, payload, count, len);
    fab_limit(before);
    if (rc && fab_alive(q->w, node))
        queue_keep(q, node, type, to, payload, count, len);
}

/* Runs in the progress thread only; other threads only append to the list. A message stays in the list until it is sent, so that no later
 * message overtakes it. */
void queue_send_unsent(struct weft_queue *q)
{
    uint64_t full[WEFT_MAX_NUMBERS / 64]; /* a bit for each node that has no room for a message now: later messages wait as well */
    base_spin_lock(&q->unsent_lock);
    if (q->unsent)
        memset(full, 0, sizeof full);
    for (struct queue_unsent **at = &q->unsent; *at;) {
        struct queue_unsent *u = *at;
        if (full[u->node / 64] >> u->node % 64 & 1) {
            at = &u->next;
            continue;
        }
        u->sending = true;
        base_spin_unlock(&q->unsent_lock);
        bool waits = queue_send(q, u->node, u->type, u->to, u->payload, u->count, u->len) && fab_alive(q->w, u->node);
        base_spin_lock(&q->unsent_lock);
        u->sending = false;
        if (waits) {
            full[u->node / 64] |= UINT64_C(1) << u->node % 64;
            at = &u->next;
            continue;
        }
        *at = u->next;
        count_unsent(q, -1);
        free(u);
    }
    base_spin_unlock(&q->unsent_lock);
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
