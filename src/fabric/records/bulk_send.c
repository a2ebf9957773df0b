/* SPDX-License-Identifier: MIT
 *
 * The sending side of bulk: sends the pieces for which the receiver has posted receives, in the announced order.
 */
#include "fabric/records/bulk_private.h"

#include <errno.h>

static uint32_t free_outgoing(const struct tb_bulk *b)
{
    for (uint32_t i = 0; i < TB_TRANSFERS / 2; i++)
        if (!b->out[i].used)
            return i;
    return TB_NO_TRANSFER;
}

bool tb_bulk_put(struct tb_bulk *b, uint64_t from, uint64_t to, uint64_t length, uint64_t word, uint64_t add, uint32_t what, void *cookie)
{
    b->active = true;
    uint32_t id = free_outgoing(b);
    if (id == TB_NO_TRANSFER || b->drop_count)
        return false;
    struct tb_words m = tb_words_of(TB_OPEN, 0, id);
    m.r.generation = (uint16_t)(b->begun + 1);
    m.offset = to;
    m.a = length;
    m.token = what;
    m.b = word;
    m.more = add;
    if (!tb_stream_say(b->stream, &m))
        return false;
    b->out[id] = (struct tb_outgoing){.generation = ++b->begun,
                                      .used = true,
                                      .message = tb_bulk_message_for(b, length),
                                      .offset = from,
                                      .length = length,
                                      .cookie = cookie};
    return true;
}

static bool send_piece(struct tb_bulk *b, uint32_t lane, uint32_t number)
{
    struct tb_lane *l = &b->lanes[lane];
    uint32_t id = l->out[number % TB_LANE_DEPTH].transfer;
    struct tb_outgoing *o = id == TB_NO_TRANSFER || !b->out[id].used || b->out[id].message != l->message ? NULL : &b->out[id];
    uint64_t offset = o ? tb_bulk_piece_offset(o->offset, o->length, o->message, l->out[number % TB_LANE_DEPTH].piece) : TB_SCRAP;
    if (!tb_stream_room(b->stream, sizeof(struct tb_words)))
        return false;
    struct tb_words m = tb_bulk_lane_words(b, TB_SUM, lane, 0);
    m.token = number;
    if ((int32_t)(number - l->void_end) <
        0) /* an earlier send has used this receive: the checksum 0 makes the peer ask for the piece again */
        return tb_stream_say(b->stream, &m);
    if (l->unleft >= l->depth)
        return false;
    l->void_end = number; /* keep void_end close to the current number, because numbers are compared modulo 2^32 */
    l->unleft++;
    if (!b->env.lane_send(b->env.lane_ctx, lane, offset)) {
        l->unleft--;
        return false;
    }
    m.a = o ? tb_bulk_sum(b, offset, l->message) : 0;
    b->counts.sent_bytes += l->message;
    if (o && o->cookie)
        b->counts.put_bytes += tb_bulk_count(&o->counted, o->length, l->message);
    return tb_stream_say(b->stream, &m);
}

/* Sends pieces. After half as many pieces as the lane holds, the checksums of these pieces are sent at once, so that the peer can verify
 * them and post new receives while the other half is sent. */
void tb_bulk_send_pieces(struct tb_bulk *b, uint32_t lane, int64_t now)
{
    struct tb_lane *l = &b->lanes[lane];
    uint32_t half = (l->depth + 1) / 2, sent = 0;
    while (l->again_next != l->again_end && send_piece(b, lane, l->again_next))
        l->again_next++;
    while (l->again_next == l->again_end && l->out_next != l->out_end && send_piece(b, lane, l->out_next)) {
        l->out_next++;
        if (++sent % half == 0 && l->out_next != l->out_end)
            tb_stream_pump(b->stream, now);
    }
}

void tb_bulk_left(struct tb_bulk *b, uint32_t lane)
{
    b->active = true;
    if (b->lanes[lane].unleft)
        b->lanes[lane].unleft--;
}

void tb_bulk_send_quiet(struct tb_bulk *b, uint32_t lane, int64_t now)
{
    struct tb_lane *l = &b->lanes[lane];
    bool all = l->unleft == 0 && l->out_next == l->out_end && l->again_next == l->again_end;
    if (!l->quiesce || (!all && (l->unleft == 0 || now - l->quiesce_at < TB_BULK_QUIET_WITHIN)))
        return; /* not asked, or not yet: with unleft 0, TB_QUIET would say that all sends have left, but some still wait for room */
    struct tb_words m = tb_bulk_lane_words(b, TB_QUIET, lane, 0);
    m.a = l->unleft;
    if (tb_stream_say(b->stream, &m)) {
        l->quiesce = !all;
        l->quiesce_at = now;
    }
}

int tb_bulk_send_ready(struct tb_bulk *b, struct tb_lane *l, const struct tb_words *m)
{
    uint64_t count = m->b;
    if (count == 0 || count > l->depth || m->token != l->out_end || l->out_end - l->out_next + count > TB_LANE_DEPTH)
        return -EPROTO;
    if (m->r.detail != TB_NO_TRANSFER) {
        if (m->r.detail >= TB_TRANSFERS || !b->out[m->r.detail].used || b->out[m->r.detail].message != l->message)
            return -EPROTO;
        uint32_t pieces = tb_bulk_pieces(b->out[m->r.detail].length, l->message);
        if (m->a >= pieces || count > pieces - m->a)
            return -EPROTO;
    }
    for (uint32_t i = 0; i < count; i++) {
        l->out[l->out_end % TB_LANE_DEPTH].transfer = m->r.detail;
        l->out[l->out_end++ % TB_LANE_DEPTH].piece = (uint32_t)m->a + i;
    }
    /* Receives into the dummy buffer are for sends that have not left. No piece is sent for these receives or earlier ones. */
    if (m->r.detail == TB_NO_TRANSFER)
        l->void_end = l->out_end;
    return 0;
}

int tb_bulk_send_again(struct tb_lane *l, const struct tb_words *m)
{
    uint32_t next = l->again_next != l->again_end ? l->again_next : l->out_next; /* the first receive for which nothing was sent */
    if (m->a == 0 || m->a > l->depth || (uint32_t)(m->token + m->a) != l->out_end ||
        (next != l->out_end && (int32_t)(l->void_end - l->out_end) < 0))
        return -EPROTO;
    l->again_next = (int32_t)(next - m->token) < 0 ? next : m->token;
    l->again_end = l->out_next = l->out_end;
    l->void_end = m->token; /* receives from `token` on are valid again */
    return 0;
}
