/* SPDX-License-Identifier: MIT
 *
 * A stream: bytes from one node to another. Usually the reader has a ring in its pool. The writer writes as many bytes as it has credit
 * for. If it has mapped the reader's pool, it writes into the ring itself, and announces the bytes by a DATA message; otherwise DATA
 * messages contain the bytes. The reader gives credit when it has taken a quarter of the ring.
 *
 * Sockets are an exception. A socket has one stream for each direction, and both rings are in the pool of the asker. So for bytes to the
 * network, the ring is at the writing end, which announces the bytes (gateway_stream_offer()). The reading end (gateway_stream_fetch())
 * reads them in place or fetches them by gets.
 *
 * Positions count bytes from the start of the stream. Each end keeps both positions in private memory and checks what the other end sends.
 */
#include "gateway/gateway.h"

#include <stdlib.h>
#include <string.h>

bool gateway_ring_fits(uint64_t bytes)
{
    return bytes >= GATEWAY_RING_LEAST && bytes <= GATEWAY_RING_MOST && (bytes & (bytes - 1)) == 0;
}

static int stream_add(struct gateway *g, struct gateway_stream *s)
{
    base_spin_lock(&g->lock);
    s->id = gateway_table_add(&g->streams, s);
    base_spin_unlock(&g->lock);
    return s->id
               ? 0
               : base_fail(-ENOMEM,
                           "there is no memory for the input or output of another process, or this node has too many processes: end some, "
                           "or close their handles");
}

/* Adds a copy of `s` to the table. */
static int stream_make(const struct gateway_stream *s, struct gateway_stream **out)
{
    struct gateway_stream *made = malloc(sizeof *made);
    if (!made)
        return base_fail(-ENOMEM, "no memory for the input or output of a process of another node" BASE_MEMORY_HINT);
    *made = *s;
    made->memory = weft_ptr(s->g->w, s->ring, s->bytes);
    int rc = stream_add(s->g, made);
    if (rc) {
        free(made);
        return rc;
    }
    *out = made;
    return 0;
}

int gateway_stream_read(struct gateway *g, uint32_t node, uint64_t bytes, void (*moved)(struct gateway_stream *), void *arg,
                        struct gateway_stream **out)
{
    weft_gaddr ring;
    int rc = weft_alloc(g->w, bytes, &ring);
    if (rc)
        return rc;
    rc = gateway_stream_read_at(g, node, ring, bytes, moved, arg, out);
    if (rc)
        weft_free(g->w, ring);
    else
        (*out)->owned = true;
    fab_use(g->w, FAB_USE_STREAMS, rc ? 0 : (int64_t)bytes);
    return rc;
}

int gateway_stream_read_at(struct gateway *g, uint32_t node, weft_gaddr ring, uint64_t bytes, void (*moved)(struct gateway_stream *),
                           void *arg, struct gateway_stream **out)
{
    return stream_make(&(struct gateway_stream){.g = g, .node = node, .ring = ring, .bytes = bytes, .moved = moved, .arg = arg}, out);
}

int gateway_stream_offer(struct gateway *g, uint32_t node, weft_gaddr ring, uint64_t bytes, void (*moved)(struct gateway_stream *),
                         void *arg, struct gateway_stream **out)
{
    const struct gateway_stream s = {.g = g, .node = node, .sends = true, .ring = ring, .bytes = bytes, .moved = moved, .arg = arg};
    return stream_make(&s, out);
}

static int stream_check(struct gateway *g, uint32_t node, weft_gaddr ring, uint64_t bytes)
{
    struct fab_link *link;
    if (!gateway_ring_fits(bytes) || weft_gaddr_node(ring) != node || weft_gaddr_space(ring) || fab_resolve(g->w, ring, bytes, &link))
        return base_fail(
            -EINVAL,
            "node %u wants bytes in a buffer of %llu bytes at %#llx: the buffer must be in that node's pool, and its size a power of "
            "two from 4 KiB to 16 MiB",
            node, (unsigned long long)bytes, (unsigned long long)ring);
    return 0;
}

int gateway_stream_write(struct gateway *g, uint32_t node, uint64_t peer, weft_gaddr ring, uint64_t bytes,
                         void (*moved)(struct gateway_stream *), void *arg, struct gateway_stream **out)
{
    const struct gateway_stream s = {
        .g = g, .node = node, .peer = peer, .sends = true, .ring = ring, .bytes = bytes, .moved = moved, .arg = arg};
    int rc = stream_check(g, node, ring, bytes);
    return rc ? rc : stream_make(&s, out);
}

int gateway_stream_fetch(struct gateway *g, uint32_t node, uint64_t peer, weft_gaddr ring, uint64_t bytes,
                         void (*moved)(struct gateway_stream *), void *arg, struct gateway_stream **out)
{
    const struct gateway_stream s = {
        .g = g, .node = node, .peer = peer, .fetches = true, .ring = ring, .bytes = bytes, .moved = moved, .arg = arg};
    int rc = stream_check(g, node, ring, bytes);
    return rc ? rc : stream_make(&s, out);
}

void gateway_stream_close(struct gateway_stream *s)
{
    if (!s)
        return;
    struct gateway *g = s->g;
    base_spin_lock(&g->lock);
    gateway_table_remove(&g->streams, s->id);
    bool shut = !s->sends && !s->ended && s->peer, cut = s->sends && !s->ended;
    base_spin_unlock(&g->lock);
    if (shut) /* if the writer's number of the stream is not known yet, SHUT is sent when the first bytes arrive */
        (void)gateway_post(g, s->node, &(struct gateway_message){.type = GATEWAY_SHUT, .to = s->peer}, NULL, 0);
    if (cut) /* sent even after SHUT, to tell the reader that nobody writes to its ring any more */
        (void)gateway_stream_send(s, NULL, 0, true, -ECONNRESET);
    if (s->owned) {
        fab_use(g->w, FAB_USE_STREAMS, -(int64_t)s->bytes);
        weft_free(g->w, s->ring);
    }
    free(s);
}

/* --- reading --- */

uint64_t gateway_stream_next(const struct gateway_stream *s, const uint8_t **at)
{
    uint64_t from = s->first & (s->bytes - 1), n = s->last - s->first, gap = s->bytes - from;
    *at = s->memory + from;
    return n < gap ? n : gap;
}

void gateway_stream_take(struct gateway_stream *s, uint64_t n, struct gateway_credit *due)
{
    s->first += n;
    due->m.type = 0;
    if (s->ended || s->first - s->told < s->bytes / 4)
        return;
    s->told = s->first;
    due->node = s->node;
    due->m = (struct gateway_message){.type = GATEWAY_CREDIT, .to = s->peer, .word = {s->first}};
}

void gateway_credit_give(struct gateway *g, const struct gateway_credit *due)
{
    if (due->m.type)
        (void)gateway_post(g, due->node, &due->m, NULL, 0);
}

/* --- writing --- */

uint64_t gateway_stream_room(struct gateway_stream *s, struct iovec piece[2])
{
    struct gateway *g = s->g;
    base_spin_lock(&g->lock);
    uint64_t room = s->shut || s->ended ? 0 : s->bytes - (s->last - s->first), at = s->last & (s->bytes - 1);
    base_spin_unlock(&g->lock);
    if (s->memory) {
        uint64_t gap = s->bytes - at;
        piece[0] = (struct iovec){s->memory + at, (size_t)(room < gap ? room : gap)};
        piece[1] = (struct iovec){s->memory, (size_t)(room < gap ? 0 : room - gap)};
    } else if (room > WEFT_PAYLOAD_MAX) {
        room = WEFT_PAYLOAD_MAX;
    }
    return room;
}

int gateway_stream_send(struct gateway_stream *s, const void *bytes, uint64_t n, bool last, int status)
{
    struct gateway *g = s->g;
    base_spin_lock(&g->lock);
    struct gateway_message m = {.type = GATEWAY_DATA, .status = status, .to = s->peer, .word = {s->id, s->last, n, last}};
    s->last += n;
    s->ended = last;
    base_spin_unlock(&g->lock);
    return gateway_post(g, s->node, &m, s->memory ? NULL : bytes, s->memory ? 0 : (size_t)n);
}

/* --- messages of the other end --- */

static void stream_put(const struct gateway_stream *s, const void *payload, uint64_t n)
{
    uint64_t at = s->last & (s->bytes - 1), gap = s->bytes - at;
    memcpy(s->memory + at, payload, (size_t)(n < gap ? n : gap));
    if (n > gap)
        memcpy(s->memory, (const uint8_t *)payload + gap, (size_t)(n - gap));
}

/* Handles DATA. Returns false if the message is invalid. */
static bool stream_data(struct gateway_stream *s, const struct gateway_message *m, const void *payload, size_t len)
{
    uint64_t n = m->word[2];
    if (s->sends || s->ended || m->word[1] != s->last || n > s->bytes - (s->last - s->first) || (len && (len != n || s->fetches)) ||
        m->word[3] > 1 || m->status > 0 || (s->peer && s->peer != m->word[0]))
        return false;
    s->peer = m->word[0];
    if (len)
        stream_put(s, payload, len);
    s->last += n;
    s->ended = m->word[3];
    s->status = s->ended ? m->status : 0;
    return true;
}

static bool stream_credit(struct gateway_stream *s, uint64_t taken)
{
    if (!s->sends || taken - s->first > s->last - s->first)
        return false;
    s->first = taken;
    return true;
}

static bool stream_shut(struct gateway_stream *s)
{
    s->shut = s->shut || s->sends;
    return s->sends;
}

void gateway_stream_message(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len)
{
    bool right = true, none = false;
    struct gateway_credit due = {0};
    base_spin_lock(&g->lock);
    struct gateway_stream *s = gateway_table_find(&g->streams, m->to);
    if (!s || s->node != from) {
        none = true;
    } else {
        right = m->type == GATEWAY_DATA     ? stream_data(s, m, payload, len)
                : m->type == GATEWAY_CREDIT ? stream_credit(s, m->word[0])
                                            : stream_shut(s);
        if (!right && !s->ended) {
            s->ended = true;
            s->shut = s->sends;
            s->status = -EPROTO;
        }
        s->moved(s);
        due = s->due;
        s->due.m.type = 0;
    }
    base_spin_unlock(&g->lock);
    gateway_credit_give(g, &due);
    if (!right)
        base_log(BASE_LOG_WARN,
                 "node %u sent an invalid message (%s) about connection %llu of a process or socket: the connection has been ended, and "
                 "the rest of its bytes is lost; run the same version of weft on all hosts",
                 from,
                 m->type == GATEWAY_DATA     ? "data"
                 : m->type == GATEWAY_CREDIT ? "credit"
                                             : "end of reading",
                 (unsigned long long)m->to);
    if (none && m->type == GATEWAY_DATA && !m->word[3]) /* the reader closed the stream before it knew the writer's number of the stream */
        (void)gateway_post(g, from, &(struct gateway_message){.type = GATEWAY_SHUT, .to = m->word[0]}, NULL, 0);
}

void gateway_streams_gone(struct gateway *g, uint32_t node)
{
    base_spin_lock(&g->lock);
    uint32_t at = 0;
    for (struct gateway_stream *s; (s = gateway_table_next(&g->streams, &at));) {
        if (s->node != node)
            continue;
        s->status = s->ended ? s->status : -ECONNRESET;
        s->ended = true;
        s->shut = s->sends;
        s->moved(s);
    }
    base_spin_unlock(&g->lock);
}
