/* SPDX-License-Identifier: MIT
 *
 * The receiving side of bulk: posts receives, verifies the pieces that arrive, and repairs lanes that have lost pieces.
 */
#include "fabric/records/bulk_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_MOST                (100 * WEFT_MS)
#define REST_LEAST                   (WEFT_MS / 5)
#define REST_MOST                    (2 * WEFT_MS)
#define REPAIRS_WITHOUT_PROGRESS_MAX 4u /* after this many lane repairs a transfer uses records */
#define FETCH_BYTES                  (32u << 10)
#define GROW_AFTER                   16u /* after this many correct pieces, the queue of a repaired lane gets deeper again */

int tb_bulk_receive_begin(struct tb_bulk *b, uint32_t id, bool own, uint64_t offset, uint64_t length)
{
    struct tb_transfer *t = &b->in[id];
    uint32_t message = tb_bulk_message_for(b, length), pieces = message ? tb_bulk_pieces(length, message) : 0;
    if (!pieces)
        return -EINVAL; /* smaller than the smallest lane */
    *t = (struct tb_transfer){
        .used = true, .own = own, .message = message, .offset = offset, .length = length, .pieces = pieces, .left = pieces};
    t->wanted = malloc((pieces + 63) / 64 * sizeof *t->wanted);
    if (!t->wanted) {
        t->used = false;
        return -ENOMEM;
    }
    memset(t->wanted, 0xff, (pieces + 63) / 64 * sizeof *t->wanted);
    return 0;
}

bool tb_bulk_get(struct tb_bulk *b, uint64_t to, uint64_t from, uint64_t length, void *cookie)
{
    b->active = true;
    uint32_t id = TB_TRANSFERS / 2;
    while (id < TB_TRANSFERS && b->in[id].used)
        id++;
    if (id == TB_TRANSFERS || b->drop_count)
        return false;
    struct tb_words m = tb_words_of(TB_FETCH, 0, id);
    m.r.generation = (uint16_t)(b->begun + 1);
    m.offset = from;
    m.a = length;
    if (!tb_stream_room(b->stream, sizeof m) || tb_bulk_receive_begin(b, id, true, to, length) != 0)
        return false;
    tb_stream_say(b->stream, &m);
    b->in[id].generation = ++b->begun;
    b->in[id].cookie = cookie;
    b->in[id].from = from;
    return true;
}

void tb_bulk_receive_want(struct tb_transfer *t, uint32_t piece)
{
    t->wanted[piece / 64] |= UINT64_C(1) << (piece % 64);
    if (piece < t->cursor)
        t->cursor = piece;
}

/* The next piece that needs a receive; t->pieces: none. */
static uint32_t receive_next_wanted(struct tb_transfer *t)
{
    for (; t->cursor < t->pieces; t->cursor++) {
        uint64_t word = t->wanted[t->cursor / 64] >> (t->cursor % 64);
        if (!word) {
            t->cursor |= 63;
            continue;
        }
        t->cursor += (uint32_t)__builtin_ctzll(word);
        return t->cursor < t->pieces ? t->cursor : t->pieces;
    }
    return t->pieces;
}

static bool receive_begin_repair(struct tb_lane *l)
{
    if (l->repair != TB_LANE_RUNS)
        return false;
    l->repair = TB_LANE_ASKS;
    l->ask = true;
    l->in_depth = l->in_depth > 1 ? l->in_depth / 2 : 1;
    l->good = 0;
    return true;
}

static void receive_finish(struct tb_bulk *b, uint32_t id)
{
    struct tb_transfer *t = &b->in[id];
    b->counts.received_bytes += t->length;
    b->done[b->done_count++] = (uint16_t)id; /* there is room: the peer reuses an id only after TB_DONE */
    if (t->own) {
        b->counts.get_bytes += tb_bulk_count(&t->counted, t->length, t->length);
        b->env.done(b->env.ctx, t->cookie);
    } else {
        b->env.received(b->env.ctx, t->word, t->add, t->what);
    }
    b->use_records -= t->use_records;
    free(t->wanted);
    *t = (struct tb_transfer){.used = true, .generation = t->generation}; /* still in use until TB_DONE is sent */
}

static void receive_judge(struct tb_bulk *b, struct tb_lane *l, const struct tb_posted *p)
{
    struct tb_transfer *t = p->transfer == TB_NO_TRANSFER ? NULL : &b->in[p->transfer];
    if (!t)
        return;
    b->counts.pieces++;
    bool right = tb_bulk_sum(b, tb_bulk_piece_offset(t->offset, t->length, t->message, p->piece), t->message) == p->sum;
    if (!right) {
        b->counts.rejected++;
        tb_bulk_receive_want(t, p->piece);
        /* If other nodes keep writing to the source of a get, its pieces may never match their checksums. */
        if (receive_begin_repair(l) && t->own && !t->use_records && ++t->repairs_without_progress == REPAIRS_WITHOUT_PROGRESS_MAX) {
            t->use_records = true;
            b->use_records++;
            b->counts.use_records++;
        }
        return;
    }
    l->patience = TB_BULK_PATIENCE_LEAST;
    if (++l->good >= GROW_AFTER && l->in_depth < l->depth) {
        l->good = 0;
        l->in_depth++;
    }
    t->repairs_without_progress = 0;
    if (t->own)
        b->counts.get_bytes += tb_bulk_count(&t->counted, t->length, t->message);
    if (--t->left == 0 && t->asks == 0)
        receive_finish(b, p->transfer);
}

/* Verifies, in order, pieces with a completed receive and a known checksum. */
static void receive_settle(struct tb_bulk *b, struct tb_lane *l)
{
    while (l->in_first != l->in_landed) {
        struct tb_posted *p = &l->in[l->in_first % TB_LANE_DEPTH];
        if (!p->has_sum && p->transfer != TB_NO_TRANSFER)
            break;
        struct tb_posted now = *p;
        l->in_first++;
        receive_judge(b, l, &now);
    }
    if (l->repair == TB_LANE_RESENDS && l->in_first == l->in_next)
        l->repair = TB_LANE_RUNS;
}

void tb_bulk_landed(struct tb_bulk *b, uint32_t lane, int64_t now)
{
    b->active = true;
    struct tb_lane *l = &b->lanes[lane];
    if (l->in_landed == l->in_next)
        return; /* the receive belonged to an earlier queue pair */
    l->in[l->in_landed++ % TB_LANE_DEPTH].landed = true;
    l->last = now;
    receive_settle(b, l);
}

static uint32_t receive_next_transfer(struct tb_bulk *b, uint32_t message)
{
    for (uint32_t i = 0; i < TB_TRANSFERS; i++) {
        uint32_t id = (b->turn + i) % TB_TRANSFERS;
        struct tb_transfer *t = &b->in[id];
        if (t->used && !t->use_records && t->message == message && receive_next_wanted(t) < t->pieces) {
            b->turn = id;
            return id;
        }
    }
    return TB_NO_TRANSFER;
}

bool tb_bulk_receive_post(struct tb_bulk *b, uint32_t lane, int64_t now)
{
    struct tb_lane *l = &b->lanes[lane];
    if (l->repair != TB_LANE_RUNS || l->peer_generation != l->generation || l->in_next - l->in_first >= l->in_depth ||
        !tb_stream_room(b->stream, sizeof(struct tb_words)))
        return false;
    uint32_t id = receive_next_transfer(b, l->message);
    if (id == TB_NO_TRANSFER)
        return false;
    struct tb_transfer *t = &b->in[id];
    struct tb_words m = tb_bulk_lane_words(b, TB_READY, lane, id);
    m.token = l->in_next;
    m.a = receive_next_wanted(t);
    while (l->in_next - l->in_first < l->in_depth && receive_next_wanted(t) == m.a + m.b && m.a + m.b < t->pieces) {
        uint32_t piece = t->cursor;
        if (!b->env.lane_receive(b->env.lane_ctx, lane, tb_bulk_piece_offset(t->offset, t->length, t->message, piece)))
            break;
        t->wanted[piece / 64] &= ~(UINT64_C(1) << (piece % 64));
        l->in[l->in_next++ % TB_LANE_DEPTH] = (struct tb_posted){.transfer = (uint16_t)id, .piece = piece};
        m.b++;
    }
    if (m.b == 0)
        return false;
    l->last = now;
    b->turn = (id + 1) % TB_TRANSFERS; /* take turns between transfers */
    return tb_stream_say(b->stream, &m);
}

/* Requests the pieces of transfers that use records. The peer copies bytes into a record before it computes the checksum, so writes of
 * other nodes cannot make the checksum wrong. */
void tb_bulk_receive_fetch(struct tb_bulk *b)
{
    for (uint32_t id = 0; id < TB_TRANSFERS && b->use_records; id++) {
        struct tb_transfer *t = &b->in[id];
        while (t->use_records && (t->asked || receive_next_wanted(t) < t->pieces)) {
            t->fetching = t->asked ? t->fetching : t->cursor;
            uint32_t piece = t->fetching, rest = t->message - t->asked, n = rest < FETCH_BYTES ? rest : FETCH_BYTES;
            uint64_t at = tb_bulk_piece_offset(0, t->length, t->message, piece) + t->asked;
            if (!b->env.fetch(b->env.ctx, id, t->generation, t->offset + at, t->from + at, n))
                return;
            t->wanted[piece / 64] &= ~(UINT64_C(1) << (piece % 64));
            t->asks++;
            t->asked = t->asked + n < t->message ? t->asked + n : 0;
            t->left -= t->asked == 0;
        }
    }
}

void tb_bulk_fetched(struct tb_bulk *b, uint32_t transfer, uint16_t generation)
{
    struct tb_transfer *t = &b->in[transfer];
    if (!t->used || t->generation != generation || t->asks == 0)
        return; /* the transfer was given up */
    if (--t->asks == 0 && t->left == 0)
        receive_finish(b, transfer);
}

/* Whether a posted receive should have completed by now. */
static bool receive_overdue(const struct tb_lane *l, int64_t now)
{
    if (l->in_landed == l->in_next || now - l->last < l->patience)
        return false;
    for (uint32_t i = l->in_landed; i != l->in_next; i++)
        if (!l->in[i % TB_LANE_DEPTH].has_sum)
            return false; /* the peer has not sent this piece yet */
    return true;
}

void tb_bulk_receive_repair(struct tb_bulk *b, uint32_t lane, int64_t now)
{
    struct tb_lane *l = &b->lanes[lane];
    if (l->repair == TB_LANE_RUNS && receive_overdue(l, now))
        receive_begin_repair(l);
    if (l->repair == TB_LANE_RESENDS && receive_overdue(l, now)) { /* retransmitted pieces were also lost: repair again */
        l->repair = TB_LANE_ASKS;
        l->ask = true;
        l->quiet = false;
    }
    if (l->repair != TB_LANE_ASKS)
        return;
    if (l->ask) {
        struct tb_words m = tb_bulk_lane_words(b, TB_QUIESCE, lane, 0);
        if (!tb_stream_say(b->stream, &m))
            return;
        l->ask = false;
        l->quiet = false;
        l->last = l->asked_at = now;
        b->counts.repairs++;
        l->patience = 2 * l->patience > PATIENCE_MOST ? PATIENCE_MOST : 2 * l->patience;
    }
    /* Wait until the sender's queue is empty and bytes on the wire have arrived. */
    if (!l->quiet || (l->in_landed != l->in_next && now - l->last < l->rest))
        return;
    if (l->in_landed == l->in_next) {
        l->repair = TB_LANE_RESENDS;
        receive_settle(b, l); /* all receives have completed */
        return;
    }
    struct tb_words m = tb_bulk_lane_words(b, TB_RESEND, lane, 0);
    m.token = l->in_landed;
    m.a = l->in_next - l->in_landed;
    if (!tb_stream_say(b->stream, &m))
        return;
    for (uint32_t i = l->in_landed; i != l->in_next; i++)
        l->in[i % TB_LANE_DEPTH].has_sum = false;
    l->repair = TB_LANE_RESENDS;
    l->quiet = false;
    l->last = now;
}

int tb_bulk_receive_sum(struct tb_bulk *b, struct tb_lane *l, const struct tb_words *m, int64_t now)
{
    if ((int32_t)(m->token - l->in_next) >= 0 || l->in_next - m->token > TB_LANE_DEPTH + l->depth)
        return -EPROTO;
    if ((int32_t)(m->token - l->in_first) < 0)
        return 0; /* a receive into the dummy buffer: no piece is needed */
    struct tb_posted *p = &l->in[m->token % TB_LANE_DEPTH];
    p->sum = m->a;
    p->has_sum = true;
    l->last = now;
    receive_settle(b, l);
    return 0;
}

int tb_bulk_receive_quiet(struct tb_bulk *b, uint32_t lane, const struct tb_words *m, int64_t now)
{
    struct tb_lane *l = &b->lanes[lane];
    if (l->repair != TB_LANE_ASKS || l->ask)
        return -EPROTO;
    if (m->a == 0) {
        l->quiet = true;
        l->last = now;
        l->rest = 2 * (now - l->asked_at); /* twice the measured round trip is enough for bytes on the wire */
        l->rest = l->rest < REST_LEAST ? REST_LEAST : l->rest > REST_MOST ? REST_MOST : l->rest;
        return 0;
    }
    /* Post a receive into the dummy buffer for each send that has no receive. */
    struct tb_words ready = tb_bulk_lane_words(b, TB_READY, lane, TB_NO_TRANSFER);
    ready.token = l->in_next;
    if (l->in_landed != l->in_next || !tb_stream_room(b->stream, sizeof ready))
        return 0; /* the sends will use the posted receives; or there is no room for the record, and the next TB_QUIET reports them again */
    while (ready.b < m->a && l->in_next - l->in_first < l->depth && b->env.lane_receive(b->env.lane_ctx, lane, TB_SCRAP)) {
        l->in[l->in_next++ % TB_LANE_DEPTH] = (struct tb_posted){.transfer = TB_NO_TRANSFER};
        ready.b++;
    }
    if (ready.b)
        tb_stream_say(b->stream, &ready);
    l->last = now;
    return 0;
}
