/* SPDX-License-Identifier: MIT
 *
 * The top level of bulk: lanes that go up and down, transfers that are given up, records of the peer, timers. See bulk.h.
 */
#include "fabric/records/bulk_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

void tb_bulk_init(struct tb_bulk *b, struct tb_stream *s, const struct tb_bulk_env *env, uint8_t *pool, uint64_t pool_bytes,
                  uint64_t first_byte, uint64_t segment, enum tb_check check)
{
    base_clear(b, sizeof *b); /* without lanes, most of this memory stays untouched and takes no pages */
    b->stream = s;
    b->env = *env;
    b->pool = pool;
    b->pool_bytes = pool_bytes;
    b->first_byte = first_byte;
    b->segment = segment;
    b->check = check;
}

void tb_bulk_end(struct tb_bulk *b)
{
    for (uint32_t i = 0; i < TB_TRANSFERS; i++) {
        free(b->in[i].wanted);
        b->in[i] = (struct tb_transfer){0};
    }
}

int tb_bulk_add_lane(struct tb_bulk *b, uint32_t message_bytes, uint32_t depth)
{
    if (b->lane_count == TB_LANES || message_bytes < TB_FRAME_BYTES || message_bytes % TB_FRAME_BYTES || depth == 0)
        return -EINVAL;
    if (depth > TB_LANE_DEPTH)
        depth = TB_LANE_DEPTH;
    b->lanes[b->lane_count++] = (struct tb_lane){.up = true,
                                                 .generation = 1,
                                                 .peer_generation = 1,
                                                 .message = message_bytes,
                                                 .depth = depth,
                                                 .in_depth = depth,
                                                 .patience = TB_BULK_PATIENCE_LEAST};
    return 0;
}

uint64_t tb_bulk_least(const struct tb_bulk *b)
{
    return tb_bulk_least_of(b, false);
}

void tb_bulk_lane_down(struct tb_bulk *b, uint32_t lane)
{
    b->active = true;
    struct tb_lane *l = &b->lanes[lane];
    for (uint32_t i = l->in_first; i != l->in_next; i++) {
        const struct tb_posted *p = &l->in[i % TB_LANE_DEPTH];
        if (p->transfer != TB_NO_TRANSFER)
            tb_bulk_receive_want(&b->in[p->transfer], p->piece);
    }
    uint16_t peer = l->peer_generation;
    *l = (struct tb_lane){
        .peer_generation = peer, .message = l->message, .depth = l->depth, .in_depth = l->depth, .patience = TB_BULK_PATIENCE_LEAST};
}

void tb_bulk_lane_up(struct tb_bulk *b, uint32_t lane, uint16_t generation)
{
    b->active = true;
    struct tb_lane *l = &b->lanes[lane];
    l->up = l->say_up = true;
    l->generation = generation;
}

/* Removes a pending TB_DONE of a complete incoming put: the peer has given up this put and reuses its number. */
static bool bulk_forget_done(struct tb_bulk *b, uint32_t id)
{
    for (uint32_t i = 0; i < b->done_count; i++) {
        if (b->done[i] != id)
            continue;
        b->done[i] = b->done[--b->done_count];
        b->in[id].used = false;
        return true;
    }
    return false;
}

static bool bulk_within(const struct tb_bulk *b, uint64_t offset, uint64_t length)
{
    return length >= tb_bulk_least_of(b, true) && length <= TB_TRANSFER_MAX && offset >= b->first_byte && offset <= b->pool_bytes &&
           length <= b->pool_bytes - offset && offset / b->segment == (offset + length - 1) / b->segment;
}

/* Handles TB_DROP: the peer has given up a transfer. The peer sends TB_DROP only while all its lanes are down, so no more bytes of the
 * transfer arrive. */
static int bulk_on_drop(struct tb_bulk *b, uint32_t id, const struct tb_words *m)
{
    if (m->token) {
        if (b->out[id].used && !b->out[id].cookie && b->out[id].generation == m->r.generation)
            b->out[id] = (struct tb_outgoing){0};
        return 0;
    }
    struct tb_transfer *t = &b->in[id];
    /* A new answer replaces an older one with the same number. The peer has reused the number, so it no longer waits for the older
     * answer. */
    uint32_t at = 0;
    while (at < b->dropped_count && b->dropped[at].transfer != id)
        at++;
    b->dropped_count += at == b->dropped_count;
    b->dropped[at] = (struct tb_drop){.transfer = (uint16_t)id, .generation = m->r.generation};
    if (!t->used || t->own || t->generation != m->r.generation || !t->wanted)
        return 0; /* the transfer is already complete, or was never announced */
    for (uint32_t i = 0; i < b->lane_count; i++)
        for (uint32_t k = b->lanes[i].in_first; k != b->lanes[i].in_next; k++)
            if (b->lanes[i].in[k % TB_LANE_DEPTH].transfer == id)
                b->lanes[i].in[k % TB_LANE_DEPTH].transfer = TB_NO_TRANSFER;
    free(t->wanted);
    *t = (struct tb_transfer){0};
    return 0;
}

static void bulk_on_dropped(struct tb_bulk *b, uint32_t id, const struct tb_words *m)
{
    struct tb_outgoing *o = &b->out[id];
    if (!o->used || !o->dropping || o->generation != m->r.generation)
        return;
    void *cookie = o->cookie;
    *o = (struct tb_outgoing){0};
    b->env.again(b->env.ctx, cookie);
}

static void bulk_drop(struct tb_bulk *b, uint32_t id, uint16_t generation, bool fetched)
{
    /* there is room, because in each direction at most one transfer at a time has this number */
    b->drops[b->drop_count++] = (struct tb_drop){(uint16_t)id, generation, fetched};
}

void tb_bulk_reroute(struct tb_bulk *b)
{
    b->active = true;
    for (uint32_t i = 0; i < TB_TRANSFERS; i++) {
        struct tb_outgoing *o = &b->out[i];
        struct tb_transfer *t = &b->in[i];
        if (o->used && o->cookie && !o->dropping) {
            o->dropping = true;
            bulk_drop(b, i, o->generation, false);
        }
        if (t->used && t->own) {
            void *cookie = t->cookie;
            bulk_drop(b, i, t->generation, true);
            b->use_records -= t->use_records;
            free(t->wanted);
            *t = (struct tb_transfer){0};
            b->env.again(b->env.ctx, cookie);
        }
    }
}

void *tb_bulk_give_up(struct tb_bulk *b)
{
    b->active = true;
    for (uint32_t i = 0; i < TB_TRANSFERS; i++) {
        struct tb_outgoing *o = &b->out[i];
        struct tb_transfer *t = &b->in[i];
        void *cookie = NULL;
        if (o->used && o->cookie) {
            cookie = o->cookie;
            if (!o->dropping)
                bulk_drop(b, i, o->generation, false);
            *o = (struct tb_outgoing){0};
        } else if (t->used && t->own) {
            cookie = t->cookie;
            bulk_drop(b, i, t->generation, true);
            b->use_records -= t->use_records;
            free(t->wanted);
            *t = (struct tb_transfer){0};
        }
        if (cookie)
            return cookie;
    }
    return NULL;
}

int tb_bulk_record(struct tb_bulk *b, const struct tb_words *m, int64_t now)
{
    b->active = true;
    uint32_t id = m->r.detail, lane = m->r.lane;
    struct tb_lane *l = &b->lanes[lane < b->lane_count ? lane : 0];
    bool of_lane = (m->r.kind >= TB_READY && m->r.kind <= TB_RESEND) || m->r.kind == TB_LANE;
    if (b->lane_count == 0 || lane >= b->lane_count || (!of_lane && (id >= TB_TRANSFERS || lane != 0)))
        return -EPROTO;
    if (of_lane && m->r.kind != TB_LANE && (!l->up || m->r.generation != l->generation))
        return 0; /* the message is about an earlier queue pair of the lane */
    switch (m->r.kind) {
    case TB_OPEN:
        if (id >= TB_TRANSFERS / 2 || (b->in[id].used && !bulk_forget_done(b, id)) || !bulk_within(b, m->offset, m->a))
            return -EPROTO;
        if (tb_bulk_receive_begin(b, id, false, m->offset, m->a) != 0)
            return -ENOMEM;
        b->in[id].generation = m->r.generation;
        b->in[id].what = m->token;
        b->in[id].word = m->b;
        b->in[id].add = m->more;
        return 0;
    case TB_FETCH:
        if (id < TB_TRANSFERS / 2 || b->out[id].used || !bulk_within(b, m->offset, m->a))
            return -EPROTO;
        b->out[id] = (struct tb_outgoing){
            .generation = m->r.generation, .used = true, .message = tb_bulk_message_for(b, m->a), .offset = m->offset, .length = m->a};
        return 0;
    case TB_READY: return tb_bulk_send_ready(b, l, m);
    case TB_SUM: return tb_bulk_receive_sum(b, l, m, now);
    case TB_QUIESCE:
        l->quiesce = true;
        l->quiesce_at = now;
        return 0;
    case TB_QUIET: return tb_bulk_receive_quiet(b, lane, m, now);
    case TB_RESEND: return tb_bulk_send_again(l, m);
    case TB_DONE:
        if (!b->out[id].used || b->out[id].generation != m->r.generation)
            return 0;            /* the transfer was given up */
        if (b->out[id].cookie) { /* a put of this node; a get of the peer has no cookie */
            b->counts.put_bytes += tb_bulk_count(&b->out[id].counted, b->out[id].length, b->out[id].length);
            b->env.done(b->env.ctx, b->out[id].cookie);
        }
        b->out[id] = (struct tb_outgoing){0};
        return 0;
    case TB_DROP: return bulk_on_drop(b, id, m);
    case TB_DROPPED: bulk_on_dropped(b, id, m); return 0;
    case TB_LANE: l->peer_generation = m->r.detail; return 0;
    default: return -EPROTO;
    }
}

static bool bulk_at_rest(const struct tb_bulk *b)
{
    bool rest = b->done_count == 0 && b->drop_count == 0 && b->dropped_count == 0;
    for (uint32_t i = 0; i < TB_TRANSFERS && rest; i++)
        rest = !b->in[i].used && !b->out[i].used;
    for (uint32_t i = 0; i < b->lane_count && rest; i++) {
        const struct tb_lane *l = &b->lanes[i];
        rest = l->in_first == l->in_next && l->out_next == l->out_end && l->again_next == l->again_end && l->repair == TB_LANE_RUNS &&
               !l->quiesce && !l->say_up;
    }
    return rest;
}

void tb_bulk_pump(struct tb_bulk *b, int64_t now)
{
    if (!b->active)
        return;
    b->pumped = now;
    while (b->done_count) {
        uint32_t id = b->done[b->done_count - 1];
        struct tb_words m = tb_words_of(TB_DONE, 0, id);
        m.r.generation = b->in[id].generation;
        if (!tb_stream_say(b->stream, &m))
            break;
        b->in[id].used = false;
        b->done_count--;
    }
    while (b->drop_count) {
        struct tb_words m = tb_words_of(TB_DROP, 0, b->drops[b->drop_count - 1].transfer);
        m.r.generation = b->drops[b->drop_count - 1].generation;
        m.token = b->drops[b->drop_count - 1].fetched;
        if (!tb_stream_say(b->stream, &m))
            break;
        b->drop_count--;
    }
    while (b->dropped_count) {
        struct tb_words m = tb_words_of(TB_DROPPED, 0, b->dropped[b->dropped_count - 1].transfer);
        m.r.generation = b->dropped[b->dropped_count - 1].generation;
        if (!tb_stream_say(b->stream, &m))
            break;
        b->dropped_count--;
    }
    tb_bulk_receive_fetch(b);
    for (uint32_t i = 0; i < b->lane_count; i++) {
        struct tb_words m = tb_words_of(TB_LANE, i, b->lanes[i].generation);
        if (b->lanes[i].say_up && tb_stream_say(b->stream, &m))
            b->lanes[i].say_up = false;
        if (!b->lanes[i].up)
            continue;
        tb_bulk_receive_repair(b, i, now);
        while (tb_bulk_receive_post(b, i, now))
            ;
        tb_bulk_send_pieces(b, i, now);
        tb_bulk_send_quiet(b, i, now);
    }
    b->active = !bulk_at_rest(b);
}

int64_t tb_bulk_due(const struct tb_bulk *b)
{
    int64_t due = INT64_MAX;
    if (!b->active)
        return due;
    for (uint32_t i = 0; i < b->lane_count; i++) {
        const struct tb_lane *l = &b->lanes[i];
        int64_t at = INT64_MAX;
        if (l->repair != TB_LANE_ASKS && l->in_landed != l->in_next)
            at = l->last + l->patience;
        else if (l->repair == TB_LANE_ASKS && l->quiet)
            at = l->last + l->rest;
        due = at > b->pumped && at < due ? at : due;
        at = l->quiesce ? l->quiesce_at + TB_BULK_QUIET_WITHIN : INT64_MAX;
        due = at > b->pumped && at < due ? at : due;
    }
    return due;
}
