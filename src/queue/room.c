/* SPDX-License-Identifier: MIT
 *
 * The queues of one node, and how queues of the same name on different nodes find each other.
 *
 * A node that opens a queue sends HELLO to every other node. Each node that has the queue open replies with ANSWER. Both messages carry the
 * address of the sender's shard. A node that does not have the queue open drops the HELLO, and sends its own HELLO when it opens the queue.
 *
 * A queue may be closed and reopened while messages about it are on their way. So each node numbers its openings, and messages contain this
 * number, the incarnation (struct queue_message).
 */
#include "queue/queue.h"

#include <stdlib.h>
#include <string.h>

#define UNSENT_NS (20 * WEFT_MS) /* between two attempts to send kept messages */

static struct weft_queue *room_enter(struct queue_room *room, uint32_t i)
{
    base_spin_lock(&room->lock);
    struct weft_queue *q = room->queues[i];
    if (q)
        q->users++;
    base_spin_unlock(&room->lock);
    return q;
}

static void room_leave(struct queue_room *room, struct weft_queue *q)
{
    base_spin_lock(&room->lock);
    q->users--;
    base_spin_unlock(&room->lock);
}

static struct weft_queue *enter_named(struct queue_room *room, uint64_t key, const char *name)
{
    struct weft_queue *q = NULL;
    base_spin_lock(&room->lock);
    for (uint32_t i = 0; i < QUEUES_MAX && !q; i++) {
        struct weft_queue *c = room->queues[i];
        if (c && c->key == key && memcmp(c->name, name, QUEUE_NAME_BYTES) == 0)
            q = c;
    }
    if (q)
        q->users++;
    base_spin_unlock(&room->lock);
    return q;
}

static void room_shut(struct weft_queue *q)
{
    atomic_store_explicit(&q->shut, true, memory_order_seq_cst);
    fab_wake_here(q->w);
}

/* A node is gone, or has closed the queue (see queue.h). `requeued`: how many tasks in this node's shard became ready again. */
static void room_gone(struct weft_queue *q, struct queue_view *v, uint32_t requeued)
{
    if (v)
        queue_home_gone(q, v);
    if (requeued) {
        atomic_fetch_add_explicit(&q->requeued, requeued, memory_order_relaxed);
        queue_wake(q, q->own);
    }
    fab_wake_here(q->w); /* wake threads that wait for room, for completions or for a drain */
}

/* Node `from` has closed this incarnation of the queue, and may have opened a newer one. */
static void closed(struct weft_queue *q, uint32_t from, uint32_t incarnation)
{
    struct queue_view *v = atomic_load_explicit(&q->views[from], memory_order_acquire);
    room_gone(q, v && v->incarnation == incarnation ? v : NULL, slot_closed(&q->own->shard, slot_user(from, incarnation)));
}

/* Handle HELLO and ANSWER, by which node `from` announces its shard. Every field is checked, since `from` may send anything. */
static void learn(struct weft_queue *q, uint32_t from, const struct queue_message *m)
{
    uint32_t slots = m->slot_bits == 0 ? 0 : m->slot_bits > 31 ? UINT32_MAX : UINT32_C(1) << (m->slot_bits - 1);
    uint64_t bytes = slot_shard_bytes(slots), offset = weft_gaddr_offset(m->shard);
    if (weft_gaddr_node(m->shard) != from || weft_gaddr_space(m->shard) || offset % BASE_CACHE_LINE || slots > SLOT_COUNT_MAX ||
        offset < FAB_NULL_BYTES || offset > q->w->links[from].pool_bytes || bytes > q->w->links[from].pool_bytes - offset) {
        base_log(BASE_LOG_WARN,
                 "queue '%s': node %u sent an invalid address of its part of the queue, which is ignored; run the same version of weft on "
                 "all hosts",
                 q->name, from);
        return;
    }
    struct queue_view *old = atomic_load_explicit(&q->views[from], memory_order_acquire);
    if (old && old->incarnation == m->incarnation) {
        if (m->shut)
            room_shut(q);
        return;
    }
    /* A message about an older incarnation may have been kept for a while, and then arrives after the HELLO of a newer incarnation. */
    if (old && (int32_t)(m->incarnation - old->incarnation) < 0)
        return;
    if (old && old->former == QUEUE_VIEWS_MAX - 1) {
        if (!atomic_load_explicit(&old->gone, memory_order_relaxed)) { /* warn only once */
            base_log(BASE_LOG_WARN,
                     "queue '%s': node %u has closed the queue and opened it again more than %u times, so this node can no longer reach "
                     "the tasks of that node: close the queue on this node and open it again",
                     q->name, from, QUEUE_VIEWS_MAX - 1);
            queue_home_gone(q, old);
        }
        return;
    }
    struct queue_view *v =
        queue_view_make(q, from, m->incarnation, m->shard, slots, atomic_load_explicit(&q->force, memory_order_relaxed) & QUEUE_REMOTE);
    if (!v) {
        base_log(BASE_LOG_WARN,
                 "queue '%s': no memory to open the part of the queue that node %u stores, so this node cannot claim the tasks stored "
                 "there" BASE_MEMORY_HINT,
                 q->name, from);
        return;
    }
    if (old) {
        v->former = old->former + 1;
        queue_home_gone(q, old);
        old->retired = q->retired;
        q->retired = old;
    }
    atomic_store_explicit(&q->views[from], v, memory_order_release); /* pairs with queue_view_of() */
    uint32_t n = atomic_load_explicit(&q->serving_count, memory_order_relaxed);
    bool listed = v->shard.slots == 0;
    /* In a cluster that grows, use the entry of a node that is gone, so that the list does not become longer and longer. */
    uint32_t at = n;
    for (uint32_t i = 0; i < n; i++) {
        listed = listed || q->serving[i] == from;
        at = q->w->room > q->w->founders && !fab_alive(q->w, q->serving[i]) ? i : at;
    }
    if (!listed) {
        q->serving[at] = from;
        if (at == n)
            atomic_store_explicit(&q->serving_count, n + 1, memory_order_release); /* pairs with the acquire loads of serving_count */
    }
    if (m->shut)
        room_shut(q);
    fab_wake_here(q->w);
}

/* Settle slots of this node's shard, for node `from`, which does not know whether its swaps of their state words have happened. */
static void room_settle(struct weft_queue *q, uint32_t from, uint32_t count, const void *payload, size_t payload_len)
{
    struct queue_settle_message m[QUEUE_SETTLES_MAX];
    bool ready = false;
    if (count > QUEUE_SETTLES_MAX || payload_len != count * sizeof m[0])
        return;
    memcpy(m, payload, payload_len);
    for (uint32_t i = 0; i < count; i++) {
        if (m[i].slot >= q->own->shard.slots || (m[i].then != SLOT_FREE && m[i].then != SLOT_READY)) {
            base_log(BASE_LOG_WARN,
                     "queue '%s': node %u sent a request about a task that cannot exist; the request is ignored; run the same version of "
                     "weft on all hosts",
                     q->name, from);
            continue;
        }
        ready = slot_settle(&q->own->shard, m[i].slot, m[i].from, m[i].to, (enum slot_status)m[i].then) || ready;
    }
    if (ready)
        queue_wake(q, q->own);
    fab_wake_here(q->w); /* wake threads that wait for room */
}

/* Answer an ASK: this node has no open queue of that name. */
static void say_none(weft_node *w, uint32_t to, const struct queue_message *ask)
{
    struct queue_message m = *ask;
    m.type = QUEUE_NONE;
    m.incarnation = 0;
    m.to = ask->incarnation;
    if (fab_send(w, to, QUEUE_HANDLER, &m, sizeof m, NULL, 0, NULL) && fab_alive(w, to))
        base_log(
            BASE_LOG_WARN,
            "this node has not opened queue '%.*s', but cannot tell node %u so: %s; weft_drain() on node %u waits until it has asked again",
            (int)QUEUE_NAME_BYTES, m.name, to, base_error(), to);
}

static void room_handle(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                        void *arg)
{
    struct queue_room *room = arg;
    struct queue_message m;
    if (header_len != sizeof m || from >= w->size)
        return;
    memcpy(&m, header, sizeof m);
    struct weft_queue *q = enter_named(room, m.key, m.name);
    if (!q) { /* the queue is not open at this node: only an ASK is answered */
        if (m.type == QUEUE_ASK)
            say_none(w, from, &m);
        return;
    }
    if (m.to && m.to != q->incarnation) { /* the message is for an earlier incarnation, which was closed */
        room_leave(room, q);
        return;
    }
    switch (m.type) {
    case QUEUE_HELLO:
    case QUEUE_ASK:
        learn(q, from, &m);
        queue_post(q, from, QUEUE_ANSWER, m.incarnation, NULL, 0, 0);
        break;
    case QUEUE_ANSWER: learn(q, from, &m); break;
    case QUEUE_SETTLE: room_settle(q, from, m.count, payload, payload_len); break;
    case QUEUE_NONE:
        atomic_store_explicit(&q->none[from], m.count, memory_order_release); /* pairs with none_open() in drain.c */
        fab_wake_here(w);
        break;
    case QUEUE_CLOSE: closed(q, from, m.incarnation); break;
    case QUEUE_SHUTDOWN: room_shut(q); break;
    case QUEUE_DONES:
        if (m.count <= QUEUE_DONES_MAX && payload_len == m.count * sizeof(struct queue_done_message)) {
            struct queue_done_message dones[QUEUE_DONES_MAX];
            memcpy(dones, payload, payload_len);
            queue_accept(q, from, dones, m.count);
        }
        break;
    default: break;
    }
    room_leave(room, q);
}

static void node_gone(struct weft_node *w, uint32_t node, bool died, void *arg)
{
    (void)w;
    (void)died;
    struct queue_room *room = arg;
    for (uint32_t i = 0; i < QUEUES_MAX; i++) {
        struct weft_queue *q = room_enter(room, i);
        if (q) {
            room_gone(q, atomic_load_explicit(&q->views[node], memory_order_acquire), slot_gone(&q->own->shard, node));
            room_leave(room, q);
        }
    }
}

static int64_t room_tick(struct weft_node *w, int64_t now, void *arg)
{
    (void)w;
    struct queue_room *room = arg;
    int64_t next = INT64_MAX;
    for (uint32_t i = 0; i < QUEUES_MAX; i++) {
        struct weft_queue *q = room_enter(room, i);
        if (q) {
            int64_t in = queue_tick(q, now);
            next = in < next ? in : next;
            room_leave(room, q);
        }
    }
    if (atomic_load_explicit(&room->unsent, memory_order_relaxed)) {
        base_spin_lock(&room->lock);
        struct weft_queue *c = room->closed;
        base_spin_unlock(&room->lock);
        for (; c; c = c->closed_before)
            queue_send_unsent(c);
        if (atomic_load_explicit(&room->unsent, memory_order_relaxed))
            next = next < UNSENT_NS ? next : UNSENT_NS;
    }
    return next;
}

/* The node closes, and no thread uses a queue any more. No CLOSE is sent, since the other nodes learn that this node has left. */
static void room_close(struct weft_node *w, void *arg)
{
    struct queue_room *room = arg;
    for (uint32_t i = 0; i < QUEUES_MAX; i++)
        if (room->queues[i])
            queue_destroy(room->queues[i]);
    while (room->closed) {
        struct weft_queue *q = room->closed;
        room->closed = q->closed_before;
        queue_destroy(q);
    }
    free(room);
    w->queues = NULL;
}

int queue_open(struct weft_node *w)
{
    struct queue_room *room = calloc(1, sizeof *room);
    if (!room)
        return base_fail(-ENOMEM, "no memory for the table of the node's queues" BASE_MEMORY_HINT);
    struct fab_hook hook = {.gone = node_gone, .tick = room_tick, .close = room_close, .arg = room};
    int rc = fab_hook(w, &hook);
    if (rc) {
        free(room);
        return rc;
    }
    w->queues = room;
    return fab_handle(w, QUEUE_HANDLER, room_handle, room);
}

uint32_t queue_room_incarnation(struct weft_node *w)
{
    struct queue_room *room = w->queues;
    return atomic_fetch_add_explicit(&room->incarnations, 1, memory_order_relaxed) + 1;
}

int queue_room_enter(struct weft_node *w, struct weft_queue *q)
{
    struct queue_room *room = w->queues;
    int rc = 0;
    uint32_t at = QUEUES_MAX;
    base_spin_lock(&room->lock);
    for (uint32_t i = QUEUES_MAX; i-- > 0;) {
        struct weft_queue *c = room->queues[i];
        if (c && c->key == q->key && memcmp(c->name, q->name, QUEUE_NAME_BYTES) == 0)
            rc = -EALREADY;
        if (!c)
            at = i;
    }
    if (rc == 0 && at < QUEUES_MAX)
        room->queues[at] = q;
    base_spin_unlock(&room->lock);
    if (rc)
        return base_fail(rc, "queue '%s' is open on this node already: use that one, or close it first", q->name);
    if (at == QUEUES_MAX)
        return base_fail(-ENOSPC, "queue '%s': a node has at most %u queues open: close one", q->name, QUEUES_MAX);
    queue_tell_all(q, QUEUE_HELLO);
    fab_kick(w); /* make the progress thread begin the queue's upkeep */
    return 0;
}

void queue_room_leave(struct weft_queue *q)
{
    struct queue_room *room = q->w->queues;
    base_spin_lock(&room->lock);
    for (uint32_t i = 0; i < QUEUES_MAX; i++)
        if (room->queues[i] == q)
            room->queues[i] = NULL;
    while (q->users) { /* handlers and hooks do not wait, so this ends soon */
        base_spin_unlock(&room->lock);
        base_sleep_ns(20000);
        base_spin_lock(&room->lock);
    }
    q->closed_before = room->closed;
    room->closed = q;
    base_spin_unlock(&room->lock);
}
