/* SPDX-License-Identifier: MIT
 *
 * See bulk.h.
 */
#include "fabric/tb/bulk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define MS             INT64_C(1000000)
#define PATIENCE_LEAST (2 * MS)
#define PATIENCE_MOST  (100 * MS)
#define REST_LEAST     (MS / 5)
#define REST_MOST      (2 * MS)
#define QUIET_WITHIN   (10 * MS) /* sends that have not left by then are told of as they are */
#define SPOILT_MOST    4u        /* repairs of lanes without a right piece, for one transfer */
#define FETCH_BYTES    (32u << 10)
#define AHEAD          6u         /* frames: of which a part is checked, that is fetched before it is needed */
#define GROW_AFTER     16u       /* right pieces, before a lane that had to be repaired gets deeper again */

void tb_bulk_init(struct tb_bulk *b, struct tb_stream *s, const struct tb_bulk_env *env, uint8_t *pool, uint64_t pool_bytes,
                  uint64_t first_byte, uint64_t segment, enum tb_check check)
{
    *b = (struct tb_bulk){.stream = s, .env = *env, .pool = pool, .pool_bytes = pool_bytes, .first_byte = first_byte,
                          .segment = segment, .check = check};
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
    b->lanes[b->lane_count++] = (struct tb_lane){.up = true, .generation = 1, .peer_generation = 1, .message = message_bytes,
                                                 .depth = depth, .in_depth = depth, .patience = PATIENCE_LEAST};
    return 0;
}

/* The size of pieces for so many bytes: of the largest lanes that it fills. */
static uint32_t message_for(const struct tb_bulk *b, uint64_t length)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < b->lane_count; i++)
        if (b->lanes[i].message <= length && b->lanes[i].message > best)
            best = b->lanes[i].message;
    return best;
}

static uint64_t least(const struct tb_bulk *b, bool down_too)
{
    uint64_t bytes = UINT64_MAX;
    for (uint32_t i = 0; i < b->lane_count; i++)
        if ((down_too || b->lanes[i].up) && b->lanes[i].message < bytes)
            bytes = b->lanes[i].message;
    return bytes;
}

uint64_t tb_bulk_least(const struct tb_bulk *b)
{
    return least(b, false);
}

static uint64_t sum_of(const struct tb_bulk *b, uint64_t offset, uint32_t bytes)
{
    const uint8_t *at = b->pool + offset;
    if (b->check == TB_CHECK_FULL)
        return base_hash(at, bytes, 0);
    uint64_t sum = bytes;
    for (uint32_t i = 0; i < bytes; i += TB_FRAME_BYTES) {
        __builtin_prefetch(at + i + AHEAD * TB_FRAME_BYTES); /* no processor sees this step by itself */
        sum += base_hash(at + i, 64, i); /* none waits for the one before it */
    }
    return sum;
}

static uint64_t piece_offset(uint64_t offset, uint64_t length, uint32_t message, uint32_t piece)
{
    uint64_t at = (uint64_t)piece * message;
    return offset + (at + message <= length ? at : length - message);
}

static uint32_t pieces_of(uint64_t length, uint32_t message)
{
    return (uint32_t)((length + message - 1) / message);
}

static struct tb_words lane_words(const struct tb_bulk *b, enum tb_record_kind kind, uint32_t lane, uint32_t detail)
{
    struct tb_words m = tb_words_of(kind, lane, detail);
    m.r.generation = b->lanes[lane].generation;
    return m;
}

/* --- beginning --- */

static uint32_t free_outgoing(const struct tb_bulk *b)
{
    for (uint32_t i = 0; i < TB_TRANSFERS / 2; i++)
        if (!b->out[i].used)
            return i;
    return TB_NO_TRANSFER;
}

bool tb_bulk_put(struct tb_bulk *b, uint64_t from, uint64_t to, uint64_t length, uint64_t word, uint64_t add, uint32_t what,
                 void *cookie)
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
    b->out[id] = (struct tb_outgoing){.generation = ++b->begun, .used = true, .message = message_for(b, length), .offset = from,
                                      .length = length, .cookie = cookie};
    return true;
}

static int begin_in(struct tb_bulk *b, uint32_t id, bool own, uint64_t offset, uint64_t length)
{
    struct tb_transfer *t = &b->in[id];
    uint32_t message = message_for(b, length), pieces = message ? pieces_of(length, message) : 0;
    if (!pieces)
        return -EINVAL; /* no lane is that small */
    *t = (struct tb_transfer){.used = true, .own = own, .message = message, .offset = offset,
                              .length = length, .pieces = pieces, .left = pieces};
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
    if (!tb_stream_room(b->stream, sizeof m) || begin_in(b, id, true, to, length) != 0)
        return false;
    tb_stream_say(b->stream, &m);
    b->in[id].generation = ++b->begun;
    b->in[id].cookie = cookie;
    b->in[id].from = from;
    return true;
}

/* --- receiving --- */

static void want(struct tb_transfer *t, uint32_t piece)
{
    t->wanted[piece / 64] |= UINT64_C(1) << (piece % 64);
    if (piece < t->cursor)
        t->cursor = piece;
}

/* The next piece that needs a receive; t->pieces: none. */
static uint32_t next_wanted(struct tb_transfer *t)
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

static bool mend(struct tb_lane *l)
{
    if (l->repair != TB_LANE_RUNS)
        return false;
    l->repair = TB_LANE_ASKS;
    l->ask = true;
    l->in_depth = l->in_depth > 1 ? l->in_depth / 2 : 1;
    l->good = 0;
    return true;
}

static void finish(struct tb_bulk *b, uint32_t id)
{
    struct tb_transfer *t = &b->in[id];
    b->counts.came_bytes += t->length;
    b->done[b->done_count++] = (uint16_t)id; /* each id at most once: it is free for the peer only after it has heard */
    if (t->own)
        b->env.done(b->env.ctx, t->cookie);
    else
        b->env.came(b->env.ctx, t->word, t->add, t->what);
    b->hot -= t->hot;
    free(t->wanted);
    *t = (struct tb_transfer){.used = true, .generation = t->generation}; /* until TB_DONE is said */
}

/* A piece whose receive was written to, and of which the checksum is known. */
static void judge(struct tb_bulk *b, struct tb_lane *l, const struct tb_posted *p)
{
    struct tb_transfer *t = p->transfer == TB_NO_TRANSFER ? NULL : &b->in[p->transfer];
    if (!t)
        return;
    b->counts.pieces++;
    bool right = sum_of(b, piece_offset(t->offset, t->length, t->message, p->piece), t->message) == p->sum;
    if (!right) {
        b->counts.wrong++;
        want(t, p->piece);
        /* A get of memory that never rests is never right. */
        if (mend(l) && t->own && !t->hot && ++t->spoilt == SPOILT_MOST) {
            t->hot = true;
            b->hot++;
            b->counts.hot++;
        }
        return;
    }
    l->patience = PATIENCE_LEAST;
    if (++l->good >= GROW_AFTER && l->in_depth < l->depth) {
        l->good = 0;
        l->in_depth++;
    }
    t->spoilt = 0;
    if (--t->left == 0 && t->asks == 0)
        finish(b, p->transfer);
}

/* From the oldest on: those that were written to and whose checksums are known. */
static void settle(struct tb_bulk *b, struct tb_lane *l)
{
    while (l->in_first != l->in_landed) {
        struct tb_posted *p = &l->in[l->in_first % TB_LANE_DEPTH];
        if (!p->has_sum && p->transfer != TB_NO_TRANSFER)
            break;
        struct tb_posted now = *p;
        l->in_first++;
        judge(b, l, &now);
    }
    if (l->repair == TB_LANE_RESENDS && l->in_first == l->in_next)
        l->repair = TB_LANE_RUNS;
}

void tb_bulk_landed(struct tb_bulk *b, uint32_t lane, int64_t now)
{
    b->active = true;
    struct tb_lane *l = &b->lanes[lane];
    if (l->in_landed == l->in_next)
        return; /* of a queue that is gone */
    l->in[l->in_landed++ % TB_LANE_DEPTH].landed = true;
    l->last = now;
    settle(b, l);
}

void tb_bulk_lane_down(struct tb_bulk *b, uint32_t lane)
{
    b->active = true;
    struct tb_lane *l = &b->lanes[lane];
    for (uint32_t i = l->in_first; i != l->in_next; i++) {
        const struct tb_posted *p = &l->in[i % TB_LANE_DEPTH];
        if (p->transfer != TB_NO_TRANSFER)
            want(&b->in[p->transfer], p->piece);
    }
    uint16_t peer = l->peer_generation;
    *l = (struct tb_lane){.peer_generation = peer, .message = l->message, .depth = l->depth, .in_depth = l->depth,
                          .patience = PATIENCE_LEAST};
}

void tb_bulk_lane_up(struct tb_bulk *b, uint32_t lane, uint16_t generation)
{
    b->active = true;
    struct tb_lane *l = &b->lanes[lane];
    l->up = l->say_up = true;
    l->generation = generation;
}

static uint32_t next_transfer(struct tb_bulk *b, uint32_t message)
{
    for (uint32_t i = 0; i < TB_TRANSFERS; i++) {
        uint32_t id = (b->turn + i) % TB_TRANSFERS;
        struct tb_transfer *t = &b->in[id];
        if (t->used && !t->hot && t->message == message && next_wanted(t) < t->pieces) {
            b->turn = id;
            return id;
        }
    }
    return TB_NO_TRANSFER;
}

/* Post receives for pieces that follow one another, and say so with one record. False: nothing more goes now. */
static bool post_run(struct tb_bulk *b, uint32_t lane, int64_t now)
{
    struct tb_lane *l = &b->lanes[lane];
    if (l->repair != TB_LANE_RUNS || l->peer_generation != l->generation || l->in_next - l->in_first >= l->in_depth ||
        !tb_stream_room(b->stream, sizeof(struct tb_words)))
        return false;
    uint32_t id = next_transfer(b, l->message);
    if (id == TB_NO_TRANSFER)
        return false;
    struct tb_transfer *t = &b->in[id];
    struct tb_words m = lane_words(b, TB_READY, lane, id);
    m.token = l->in_next;
    m.a = next_wanted(t);
    while (l->in_next - l->in_first < l->in_depth && next_wanted(t) == m.a + m.b && m.a + m.b < t->pieces) {
        uint32_t piece = t->cursor;
        if (!b->env.lane_receive(b->env.lane_ctx, lane, piece_offset(t->offset, t->length, t->message, piece)))
            break;
        t->wanted[piece / 64] &= ~(UINT64_C(1) << (piece % 64));
        l->in[l->in_next++ % TB_LANE_DEPTH] = (struct tb_posted){.transfer = (uint16_t)id, .piece = piece};
        m.b++;
    }
    if (m.b == 0)
        return false;
    l->last = now;
    b->turn = (id + 1) % TB_TRANSFERS; /* the next run is another's, if there is one */
    return tb_stream_say(b->stream, &m);
}

/* Records are copied before they are summed: whatever memory holds then is right. */
static void fetch_hot(struct tb_bulk *b)
{
    for (uint32_t id = 0; id < TB_TRANSFERS && b->hot; id++) {
        struct tb_transfer *t = &b->in[id];
        while (t->hot && (t->asked || next_wanted(t) < t->pieces)) {
            t->fetching = t->asked ? t->fetching : t->cursor;
            uint32_t piece = t->fetching, rest = t->message - t->asked, n = rest < FETCH_BYTES ? rest : FETCH_BYTES;
            uint64_t at = piece_offset(0, t->length, t->message, piece) + t->asked;
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
        return; /* it was given up */
    if (--t->asks == 0 && t->left == 0)
        finish(b, transfer);
}

/* Is a receive left that should have been written to? */
static bool overdue(const struct tb_lane *l, int64_t now)
{
    if (l->in_landed == l->in_next || now - l->last < l->patience)
        return false;
    for (uint32_t i = l->in_landed; i != l->in_next; i++)
        if (!l->in[i % TB_LANE_DEPTH].has_sum)
            return false; /* its sender is not that far yet */
    return true;
}

static void repair(struct tb_bulk *b, uint32_t lane, int64_t now)
{
    struct tb_lane *l = &b->lanes[lane];
    if (l->repair == TB_LANE_RUNS && overdue(l, now))
        mend(l);
    if (l->repair == TB_LANE_RESENDS && overdue(l, now)) { /* again */
        l->repair = TB_LANE_ASKS;
        l->ask = true;
        l->quiet = false;
    }
    if (l->repair != TB_LANE_ASKS)
        return;
    if (l->ask) {
        struct tb_words m = lane_words(b, TB_QUIESCE, lane, 0);
        if (!tb_stream_say(b->stream, &m))
            return;
        l->ask = false;
        l->quiet = false;
        l->last = l->asked_at = now;
        b->counts.repairs++;
        l->patience = 2 * l->patience > PATIENCE_MOST ? PATIENCE_MOST : 2 * l->patience;
    }
    /* The sender is at rest; what is still on the wire gets its time. */
    if (!l->quiet || (l->in_landed != l->in_next && now - l->last < l->rest))
        return;
    if (l->in_landed == l->in_next) {
        l->repair = TB_LANE_RESENDS;
        settle(b, l); /* nothing is left */
        return;
    }
    struct tb_words m = lane_words(b, TB_RESEND, lane, 0);
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

/* --- sending --- */

static bool send_piece(struct tb_bulk *b, uint32_t lane, uint32_t number)
{
    struct tb_lane *l = &b->lanes[lane];
    uint32_t id = l->out[number % TB_LANE_DEPTH].transfer;
    const struct tb_outgoing *o = id == TB_NO_TRANSFER || !b->out[id].used || b->out[id].message != l->message ? NULL : &b->out[id];
    uint64_t offset = o ? piece_offset(o->offset, o->length, o->message, l->out[number % TB_LANE_DEPTH].piece) : TB_SCRAP;
    if (!tb_stream_room(b->stream, sizeof(struct tb_words)))
        return false;
    struct tb_words m = lane_words(b, TB_SUM, lane, 0);
    m.token = number;
    if ((int32_t)(number - l->void_end) < 0) /* its receive has taken something else: 0 says so */
        return tb_stream_say(b->stream, &m);
    if (l->unleft >= l->depth)
        return false;
    l->void_end = number; /* it follows, so that it is never far away */
    l->unleft++;
    if (!b->env.lane_send(b->env.lane_ctx, lane, offset)) {
        l->unleft--;
        return false;
    }
    m.a = o ? sum_of(b, offset, l->message) : 0;
    b->counts.sent_bytes += l->message;
    return tb_stream_say(b->stream, &m);
}

/* Half a lane's pieces are told of before the other half leaves: the peer judges them, and posts receives anew, meanwhile. */
static void send_pieces(struct tb_bulk *b, uint32_t lane, int64_t now)
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

static void answer_quiesce(struct tb_bulk *b, uint32_t lane, int64_t now)
{
    struct tb_lane *l = &b->lanes[lane];
    bool all = l->unleft == 0 && l->out_next == l->out_end && l->again_next == l->again_end;
    if (!l->quiesce || (!all && (l->unleft == 0 || now - l->quiesce_at < QUIET_WITHIN)))
        return; /* 0 must mean all: what only waits for room goes when there is some */
    struct tb_words m = lane_words(b, TB_QUIET, lane, 0);
    m.a = l->unleft;
    if (tb_stream_say(b->stream, &m)) {
        l->quiesce = !all;
        l->quiesce_at = now;
    }
}

/* --- what the peer says --- */

/* A put that is whole, which could not be said yet; the peer has given it up, and uses its number again. */
static bool forget_done(struct tb_bulk *b, uint32_t id)
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

static bool within(const struct tb_bulk *b, uint64_t offset, uint64_t length)
{
    return length >= least(b, true) && length <= TB_TRANSFER_MAX && offset >= b->first_byte && offset <= b->pool_bytes &&
           length <= b->pool_bytes - offset && offset / b->segment == (offset + length - 1) / b->segment;
}

static int on_ready(struct tb_bulk *b, struct tb_lane *l, const struct tb_words *m)
{
    uint64_t count = m->b;
    if (count == 0 || count > l->depth || m->token != l->out_end || l->out_end - l->out_next + count > TB_LANE_DEPTH)
        return -EPROTO;
    if (m->r.detail != TB_NO_TRANSFER) {
        if (m->r.detail >= TB_TRANSFERS || !b->out[m->r.detail].used || b->out[m->r.detail].message != l->message)
            return -EPROTO;
        uint32_t pieces = pieces_of(b->out[m->r.detail].length, l->message);
        if (m->a >= pieces || count > pieces - m->a)
            return -EPROTO;
    }
    for (uint32_t i = 0; i < count; i++) {
        l->out[l->out_end % TB_LANE_DEPTH].transfer = m->r.detail;
        l->out[l->out_end++ % TB_LANE_DEPTH].piece = (uint32_t)m->a + i;
    }
    if (m->r.detail == TB_NO_TRANSFER) /* receives for what does not leave: nothing is sent for them, nor for any before them */
        l->void_end = l->out_end;
    return 0;
}

static int on_sum(struct tb_bulk *b, struct tb_lane *l, const struct tb_words *m, int64_t now)
{
    if ((int32_t)(m->token - l->in_next) >= 0 || l->in_next - m->token > TB_LANE_DEPTH + l->depth)
        return -EPROTO;
    if ((int32_t)(m->token - l->in_first) < 0)
        return 0; /* of a receive for scrap: it needed none */
    struct tb_posted *p = &l->in[m->token % TB_LANE_DEPTH];
    p->sum = m->a;
    p->has_sum = true;
    l->last = now;
    settle(b, l);
    return 0;
}

static int on_quiet(struct tb_bulk *b, uint32_t lane, const struct tb_words *m, int64_t now)
{
    struct tb_lane *l = &b->lanes[lane];
    if (l->repair != TB_LANE_ASKS || l->ask)
        return -EPROTO;
    if (m->a == 0) {
        l->quiet = true;
        l->last = now;
        l->rest = 2 * (now - l->asked_at); /* what the same two nodes and cables need just now */
        l->rest = l->rest < REST_LEAST ? REST_LEAST : l->rest > REST_MOST ? REST_MOST : l->rest;
        return 0;
    }
    /* Sends that find no receive: one for each, where it does no harm. */
    struct tb_words ready = lane_words(b, TB_READY, lane, TB_NO_TRANSFER);
    ready.token = l->in_next;
    if (l->in_landed != l->in_next || !tb_stream_room(b->stream, sizeof ready))
        return 0; /* the receives that are there take them, or it is said again */
    while (ready.b < m->a && l->in_next - l->in_first < l->depth && b->env.lane_receive(b->env.lane_ctx, lane, TB_SCRAP)) {
        l->in[l->in_next++ % TB_LANE_DEPTH] = (struct tb_posted){.transfer = TB_NO_TRANSFER};
        ready.b++;
    }
    if (ready.b)
        tb_stream_say(b->stream, &ready);
    l->last = now;
    return 0;
}

static int on_resend(struct tb_lane *l, const struct tb_words *m)
{
    uint32_t next = l->again_next != l->again_end ? l->again_next : l->out_next; /* of what is not served yet */
    if (m->a == 0 || m->a > l->depth || (uint32_t)(m->token + m->a) != l->out_end ||
        (next != l->out_end && (int32_t)(l->void_end - l->out_end) < 0))
        return -EPROTO;
    /* That is void up to now; from token on it is not any more. */
    l->again_next = (int32_t)(next - m->token) < 0 ? next : m->token;
    l->again_end = l->out_next = l->out_end;
    l->void_end = m->token;
    return 0;
}

/* The receives of one that comes are gone already: it is given up only while no lane is up at the other end, and none comes up there
 * before this was said. */
static int on_drop(struct tb_bulk *b, uint32_t id, const struct tb_words *m)
{
    if (m->token) {
        if (b->out[id].used && !b->out[id].cookie && b->out[id].generation == m->r.generation)
            b->out[id] = (struct tb_outgoing){0};
        return 0;
    }
    struct tb_transfer *t = &b->in[id];
    /* One answer a number: where an earlier one could not be said yet, the peer waits for none any more, or it had not used the number
     * again. */
    uint32_t at = 0;
    while (at < b->dropped_count && b->dropped[at].transfer != id)
        at++;
    b->dropped_count += at == b->dropped_count;
    b->dropped[at] = (struct tb_drop){.transfer = (uint16_t)id, .generation = m->r.generation};
    if (!t->used || t->own || t->generation != m->r.generation || !t->wanted)
        return 0; /* it is whole, or was never heard of */
    for (uint32_t i = 0; i < b->lane_count; i++)
        for (uint32_t k = b->lanes[i].in_first; k != b->lanes[i].in_next; k++)
            if (b->lanes[i].in[k % TB_LANE_DEPTH].transfer == id)
                b->lanes[i].in[k % TB_LANE_DEPTH].transfer = TB_NO_TRANSFER;
    free(t->wanted);
    *t = (struct tb_transfer){0};
    return 0;
}

static void on_dropped(struct tb_bulk *b, uint32_t id, const struct tb_words *m)
{
    struct tb_outgoing *o = &b->out[id];
    if (!o->used || !o->dropping || o->generation != m->r.generation)
        return;
    void *cookie = o->cookie;
    *o = (struct tb_outgoing){0};
    b->env.again(b->env.ctx, cookie);
}

static void drop(struct tb_bulk *b, uint32_t id, uint16_t generation, bool fetched)
{
    b->drops[b->drop_count++] = (struct tb_drop){(uint16_t)id, generation, fetched}; /* a number is there once in each direction */
}

void tb_bulk_reroute(struct tb_bulk *b)
{
    b->active = true;
    for (uint32_t i = 0; i < TB_TRANSFERS; i++) {
        struct tb_outgoing *o = &b->out[i];
        struct tb_transfer *t = &b->in[i];
        if (o->used && o->cookie && !o->dropping) {
            o->dropping = true;
            drop(b, i, o->generation, false);
        }
        if (t->used && t->own) {
            void *cookie = t->cookie;
            drop(b, i, t->generation, true);
            b->hot -= t->hot;
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
                drop(b, i, o->generation, false);
            *o = (struct tb_outgoing){0};
        } else if (t->used && t->own) {
            cookie = t->cookie;
            drop(b, i, t->generation, true);
            b->hot -= t->hot;
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
        return 0; /* about a queue pair that is gone */
    switch (m->r.kind) {
    case TB_OPEN:
        if (id >= TB_TRANSFERS / 2 || (b->in[id].used && !forget_done(b, id)) || !within(b, m->offset, m->a))
            return -EPROTO;
        if (begin_in(b, id, false, m->offset, m->a) != 0)
            return -ENOMEM;
        b->in[id].generation = m->r.generation;
        b->in[id].what = m->token;
        b->in[id].word = m->b;
        b->in[id].add = m->more;
        return 0;
    case TB_FETCH:
        if (id < TB_TRANSFERS / 2 || b->out[id].used || !within(b, m->offset, m->a))
            return -EPROTO;
        b->out[id] = (struct tb_outgoing){.generation = m->r.generation, .used = true, .message = message_for(b, m->a),
                                          .offset = m->offset, .length = m->a};
        return 0;
    case TB_READY:
        return on_ready(b, l, m);
    case TB_SUM:
        return on_sum(b, l, m, now);
    case TB_QUIESCE:
        l->quiesce = true;
        l->quiesce_at = now;
        return 0;
    case TB_QUIET:
        return on_quiet(b, lane, m, now);
    case TB_RESEND:
        return on_resend(l, m);
    case TB_DONE:
        if (!b->out[id].used || b->out[id].generation != m->r.generation)
            return 0; /* it was given up meanwhile */
        if (b->out[id].cookie) /* of a put */
            b->env.done(b->env.ctx, b->out[id].cookie);
        b->out[id] = (struct tb_outgoing){0};
        return 0;
    case TB_DROP:
        return on_drop(b, id, m);
    case TB_DROPPED:
        on_dropped(b, id, m);
        return 0;
    case TB_LANE:
        l->peer_generation = m->r.detail;
        return 0;
    default:
        return -EPROTO;
    }
}

static bool at_rest(const struct tb_bulk *b)
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
    fetch_hot(b);
    for (uint32_t i = 0; i < b->lane_count; i++) {
        struct tb_words m = tb_words_of(TB_LANE, i, b->lanes[i].generation);
        if (b->lanes[i].say_up && tb_stream_say(b->stream, &m))
            b->lanes[i].say_up = false;
        if (!b->lanes[i].up)
            continue;
        repair(b, i, now);
        while (post_run(b, i, now))
            ;
        send_pieces(b, i, now);
        answer_quiesce(b, i, now);
    }
    b->active = !at_rest(b);
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
        at = l->quiesce ? l->quiesce_at + QUIET_WITHIN : INT64_MAX;
        due = at > b->pumped && at < due ? at : due;
    }
    return due;
}
