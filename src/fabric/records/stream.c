/* SPDX-License-Identifier: MIT
 *
 * See stream.h.
 */
#include "fabric/records/stream.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define US   INT64_C(1000)
#define MS   (1000 * US)
#define BUSY 2u /* if this many sends (or frames, see `paced`) are under way, records wait to share a frame */
/* with `paced`: the longest time that records wait to share a frame: acknowledgements may be late, behind the bytes of large gets */
#define GATHER     (100 * US)
#define SAY_EVERY  (TB_WINDOW / 4)
#define SAY_WITHIN (1 * MS) /* maximum delay of an acknowledgement that the peer has not asked for */
#define RTO_FIRST  (5 * MS)
/* The minimum retransmission time-out: the peer's thread may have to wait that long for a processor. */
#define RTO_LEAST (2 * MS)
#define RTO_MOST  (200 * MS)
#define BACKOFFS  7u

static uint64_t stream_checksum(const uint8_t *frame, uint32_t bytes, uint32_t session)
{
    size_t first = offsetof(struct tb_frame, from);
    return base_hash(frame + first, bytes - first, session);
}

bool tb_frame_right(const struct tb_frame *f, const void *frame, uint32_t bytes)
{
    return bytes >= sizeof *f && bytes <= TB_FRAME_BYTES && f->magic == TB_MAGIC && f->version == TB_VERSION && f->reserved == 0 &&
           (f->type == TB_SEQUENCED || f->type == TB_BARE) && f->length <= bytes - sizeof *f &&
           f->checksum == stream_checksum(frame, (uint32_t)sizeof *f + f->length, f->session);
}

void tb_frame_seal(const struct tb_frame *header, void *frame, uint32_t bytes)
{
    struct tb_frame f = *header;
    f.length = (uint16_t)(bytes - sizeof f);
    memcpy(frame, &f, sizeof f);
    f.checksum = stream_checksum(frame, bytes, f.session);
    memcpy((uint8_t *)frame + offsetof(struct tb_frame, checksum), &f.checksum, sizeof f.checksum);
}

void tb_stream_init(struct tb_stream *s, const struct tb_stream_env *env, uint16_t here, uint16_t peer, uint32_t session, uint8_t *frames)
{
    *s = (struct tb_stream){.env = *env,
                            .here = here,
                            .peer = peer,
                            .session = session,
                            .frames = frames,
                            .rto = RTO_FIRST,
                            .window = {.size = TB_WINDOW, .least = TB_WINDOW, .most = TB_WINDOW},
                            .hops = 1,
                            .rto_least = RTO_LEAST,
                            .rto_most = RTO_MOST};
}

static uint32_t slot_of(const struct tb_stream *s, uint32_t sequence)
{
    return (sequence - s->base) % TB_WINDOW;
}

static void stream_complete(struct tb_stream *s, struct tb_slot *slot, int status)
{
    while (slot->ops) {
        weft_op *op = slot->ops;
        slot->ops = op->next; /* unlink the op first, because its owner may reuse the memory at once */
        s->env.complete(s->env.ctx, op, status);
    }
}

void tb_stream_fail(struct tb_stream *s, int status)
{
    for (uint32_t i = s->first; i != s->next + 1; i++)
        stream_complete(s, &s->slots[slot_of(s, i)], status);
}

void tb_stream_end(struct tb_stream *s, int status)
{
    tb_stream_fail(s, status);
    free(s->early_frames);
    s->early_frames = NULL;
    s->early = 0;
}

/* --- sending --- */

static uint8_t *frame_at(const struct tb_stream *s, uint32_t slot)
{
    return s->frames + (size_t)slot * TB_FRAME_BYTES;
}

static bool stream_emit(struct tb_stream *s, uint32_t at, enum tb_frame_type type, uint32_t sequence, bool asks)
{
    struct tb_slot *slot = &s->slots[at];
    struct tb_frame f = {
        .magic = TB_MAGIC,
        .version = TB_VERSION,
        .type = (uint8_t)type,
        .hops = s->hops,
        .flags = asks ? TB_ASK_ACK : 0,
        .from = s->here,
        .to = s->peer,
        .session = s->session,
        .sequence = sequence,
        .ack = s->expected,
        .early = s->early,
        .grant = s->grant,
    };
    uint8_t *frame = frame_at(s, at);
    tb_frame_seal(&f, frame, slot->bytes);
    slot->posted++; /* before emit(), because the send may complete before emit() returns */
    s->unleft++;
    if (!s->env.emit(s->env.ctx, at, frame, slot->bytes)) {
        slot->posted--;
        s->unleft--;
        return false;
    }
    s->unsaid = 0;
    s->ack_now = false;
    s->ack_at = 0;
    s->grant_said = s->grant;
    return true;
}

/* The number of sends (or frames, see `paced`) under way, which decides whether records wait to share a frame. */
static uint32_t stream_busy(const struct tb_stream *s)
{
    return s->paced ? s->next - s->first : s->unleft;
}

static void stream_seal(struct tb_stream *s)
{
    struct tb_slot *slot = &s->slots[slot_of(s, s->next)];
    if (s->paced && s->first != s->next && (int32_t)(s->asked - s->first) <= 0)
        slot->asks = true; /* the next records wait until frames are acknowledged, and no frame under way asks for that */
    slot->bytes = (uint16_t)(TB_HEADER_BYTES + s->fill);
    slot->lost = s->unsent = true; /* `lost` makes the next pump send the frame */
    slot->retransmitted = false;
    slot->at = 0;
    s->fill = 0;
    s->gather_until = 0;
    s->next++;
}

/* Whether there is a free slot for frame `next`. */
static bool stream_openable(const struct tb_stream *s, uint32_t next)
{
    return next - s->first < s->window.size && s->slots[slot_of(s, next)].posted == 0;
}

uint32_t tb_stream_fits(const struct tb_stream *s)
{
    uint32_t left = TB_PAYLOAD_BYTES - s->fill;
    if (left >= TB_PAYLOAD_BYTES / 4)
        return s->fill || stream_openable(s, s->next) ? left : 0;
    return stream_openable(s, s->next + 1) ? TB_PAYLOAD_BYTES : 0;
}

void *tb_stream_room(struct tb_stream *s, uint32_t bytes)
{
    if (s->fill + bytes > TB_PAYLOAD_BYTES) {
        if (!stream_openable(s, s->next + 1))
            return NULL;
        stream_seal(s);
    }
    if (s->fill == 0) {
        if (s->first == s->next && s->unleft == 0)
            s->base = s->next; /* restart at slot 0, so that few slots are used and their memory stays in the cache */
        if (!stream_openable(s, s->next))
            return NULL;
        struct tb_slot *slot = &s->slots[slot_of(s, s->next)];
        slot->ops = NULL;
        slot->arrived = false;
        slot->asks = false;
    }
    return frame_at(s, slot_of(s, s->next)) + TB_HEADER_BYTES + s->fill;
}

void tb_stream_commit(struct tb_stream *s, uint32_t bytes)
{
    uint32_t padded = tb_padded(bytes);
    uint8_t *at = frame_at(s, slot_of(s, s->next)) + TB_HEADER_BYTES + s->fill;
    for (uint32_t i = bytes; i < padded && s->fill + i < TB_PAYLOAD_BYTES; i++)
        at[i] = 0; /* do not send bytes of an earlier frame */
    s->fill += padded;
    s->counts.records++;
    if (s->fill >= TB_PAYLOAD_BYTES) {
        s->fill = TB_PAYLOAD_BYTES;
    }
}

bool tb_stream_say(struct tb_stream *s, const struct tb_words *m)
{
    void *room = tb_stream_room(s, sizeof *m);
    if (!room)
        return false;
    memcpy(room, m, sizeof *m);
    tb_stream_commit(s, sizeof *m);
    return true;
}

void tb_stream_op(struct tb_stream *s, weft_op *op)
{
    if (s->first == s->next && s->fill == 0) {
        s->env.complete(s->env.ctx, op, 0);
        return;
    }
    struct tb_slot *slot = &s->slots[slot_of(s, s->fill ? s->next : s->next - 1)];
    op->next = slot->ops;
    slot->ops = op;
    slot->asks = true;
    s->want_ack = s->want_ack || !s->fill; /* if no frame is open, the last one may have been sent already, without TB_ASK_ACK */
}

uint32_t tb_stream_end_of_records(const struct tb_stream *s)
{
    return s->next + (s->fill != 0);
}

bool tb_stream_executed(const struct tb_stream *s, uint32_t frame)
{
    return (int32_t)(s->first - frame) >= 0;
}

bool tb_stream_flushed(struct tb_stream *s, uint32_t frame)
{
    if (tb_stream_executed(s, frame))
        return true;
    s->want_ack = true;
    return false;
}

void tb_stream_left(struct tb_stream *s, uint32_t slot)
{
    if (slot >= TB_SLOTS || s->slots[slot].posted == 0)
        return;
    s->slots[slot].posted--;
    s->unleft--;
}

void tb_stream_again(struct tb_stream *s)
{
    for (uint32_t i = s->first; i != s->next; i++) {
        struct tb_slot *slot = &s->slots[slot_of(s, i)];
        if (!slot->arrived && slot->at)
            slot->lost = s->unsent = true;
    }
}

static int64_t stream_rto(const struct tb_stream *s)
{
    int64_t t = s->rto << s->backoff;
    return t > s->rto_most ? s->rto_most : t;
}

/* The oldest frame that has not arrived, as far as is known. */
static struct tb_slot *stream_oldest(struct tb_stream *s)
{
    for (uint32_t i = s->first; i != s->next; i++)
        if (!s->slots[slot_of(s, i)].arrived)
            return &s->slots[slot_of(s, i)];
    return NULL;
}

static bool send_sealed(struct tb_stream *s, int64_t now)
{
    bool left = false;
    if (!s->unsent)
        return true;
    for (uint32_t i = s->first; i != s->next; i++) {
        struct tb_slot *slot = &s->slots[slot_of(s, i)];
        if (!slot->lost || slot->arrived)
            continue;
        if (slot->posted) { /* the send has not completed: the device holds the frame until the peer posts a receive */
            left = true;
            continue;
        }
        bool first = slot->at == 0;
        slot->crowded = tb_stream_crowded(s);
        if (!stream_emit(s, slot_of(s, i), TB_SEQUENCED, i, slot->asks))
            return false;
        slot->lost = false;
        slot->retransmitted = !first;
        slot->at = now;
        slot->order = ++s->order;
        s->counts.frames += first;
        s->counts.retransmitted += !first;
        if (slot->asks && (int32_t)(i + 1 - s->asked) > 0)
            s->asked = i + 1;
        if (i == s->first)
            s->quiet_since = now;
    }
    s->unsent = left;
    return true;
}

/* Whether to ask for credit now. A blocked sender asks from time to time, because a frame with new credit may be lost and is not
 * retransmitted. */
static bool probe_credit(struct tb_stream *s, int64_t now)
{
    if (s->credit == TB_CREDIT_OK || s->first != s->next || s->fill)
        return false; /* the next acknowledgement brings the credit */
    if (s->credit == TB_CREDIT_BLOCKED) {
        s->credit = TB_CREDIT_PROBING;
        s->quiet_since = now;
    }
    if (now - s->quiet_since < stream_rto(s))
        return false;
    s->quiet_since = now;
    if (s->backoff < BACKOFFS)
        s->backoff++;
    return true;
}

/* Whether the records in the open frame wait for others to share it. */
static bool stream_gathers(struct tb_stream *s, int64_t now)
{
    if (stream_busy(s) < BUSY || s->fill >= TB_PAYLOAD_BYTES)
        return false;
    if (s->paced && !s->gather_until)
        s->gather_until = now + GATHER;
    return !s->paced || now < s->gather_until;
}

void tb_stream_pump(struct tb_stream *s, int64_t now)
{
    s->pumped = now;
    if (s->fill && !stream_gathers(s, now)) {
        if (s->want_ack)
            s->slots[slot_of(s, s->next)].asks = true;
        stream_seal(s);
    }
    if (s->first != s->next && now - s->quiet_since >= stream_rto(s)) {
        struct tb_slot *slot = stream_oldest(s);
        if (slot && slot->at && slot->posted == 0)
            slot->lost = s->unsent = true;
        s->quiet_since = now;
        if (s->backoff < BACKOFFS)
            s->backoff++;
    }
    if (!send_sealed(s, now))
        return;
    bool ask = s->want_ack && s->first != s->next && s->fill == 0 && s->asked != s->next;
    ask = probe_credit(s, now) || ask;
    if (ask || s->ack_now || s->unsaid >= SAY_EVERY || (s->ack_at && now >= s->ack_at)) {
        for (uint32_t i = TB_WINDOW; i < TB_SLOTS; i++) {
            if (s->slots[i].posted)
                continue;
            s->slots[i].bytes = TB_HEADER_BYTES;
            if (stream_emit(s, i, TB_BARE, 0, ask)) {
                s->counts.bares++;
                if (ask)
                    s->asked = s->next;
            }
            break;
        }
    }
    s->want_ack = s->want_ack && s->asked != s->next;
}

bool tb_stream_gathers(const struct tb_stream *s)
{
    return s->fill && s->fill < TB_PAYLOAD_BYTES && stream_busy(s) >= BUSY && !s->unsent && !s->ack_now && !s->want_ack &&
           s->unsaid < SAY_EVERY && s->credit == TB_CREDIT_OK && (!s->paced || s->gather_until);
}

bool tb_stream_crowded(const struct tb_stream *s)
{
    return s->next - s->first >= s->window.size / 2;
}

int64_t tb_stream_due(const struct tb_stream *s)
{
    int64_t due = INT64_MAX;
    if (s->first != s->next || (s->credit == TB_CREDIT_PROBING && s->fill == 0))
        due = s->quiet_since + stream_rto(s);
    if (s->ack_at > s->pumped && s->ack_at < due)
        due = s->ack_at;
    if (s->gather_until && s->gather_until < due)
        due = s->gather_until;
    return due;
}

/* --- receiving --- */

static void stream_acknowledged(struct tb_stream *s, const struct tb_frame *f, int64_t now)
{
    bool any = false;
    for (; s->first != f->ack; s->first++) {
        struct tb_slot *slot = &s->slots[slot_of(s, s->first)];
        if (!slot->retransmitted && slot->at && !slot->arrived) {
            int64_t took = now > slot->at ? now - slot->at : 0; /* if another thread set slot->at, `now` may be slightly older */
            s->rtt = s->rtt ? s->rtt + (took - s->rtt) / 8 : took;
            s->rto = 4 * s->rtt + SAY_WITHIN;
            s->rto = s->rto < s->rto_least ? s->rto_least : s->rto;
            if (s->paced)
                records_window_took(&s->window, slot->at, now, slot->crowded);
        }
        if ((int32_t)(slot->order - s->order_arrived) > 0)
            s->order_arrived = slot->order;
        slot->arrived = true;
        slot->lost = false;
        stream_complete(s, slot, 0);
        any = true;
    }
    for (uint32_t i = 0; i < TB_WINDOW && f->early >> i; i++) {
        uint32_t sequence = f->ack + 1 + i;
        if (!(f->early >> i & 1) || sequence - s->first >= s->next - s->first)
            continue;
        struct tb_slot *slot = &s->slots[slot_of(s, sequence)];
        any = any || !slot->arrived;
        slot->arrived = true;
        slot->lost = false;
        if ((int32_t)(slot->order - s->order_arrived) > 0)
            s->order_arrived = slot->order;
    }
    if (any) {
        s->backoff = 0;
        s->quiet_since = now;
        /* A frame is lost if a frame that was sent later has arrived. */
        for (uint32_t i = s->first; i != s->next; i++) {
            struct tb_slot *slot = &s->slots[slot_of(s, i)];
            if (!slot->arrived && slot->at && (int32_t)(s->order_arrived - slot->order) > 0)
                slot->lost = s->unsent = true;
        }
    }
}

static bool keep_early(struct tb_stream *s, uint32_t ahead, const uint8_t *payload, uint16_t bytes)
{
    if (!s->early_frames)
        s->early_frames = malloc((size_t)TB_WINDOW * TB_PAYLOAD_BYTES);
    if (!s->early_frames)
        return false; /* dropped: the peer will send the frame again */
    uint32_t slot = (s->expected + ahead) % TB_WINDOW;
    memcpy(s->early_frames + (size_t)slot * TB_PAYLOAD_BYTES, payload, bytes);
    s->early_bytes[slot] = bytes;
    s->early |= UINT64_C(1) << (ahead - 1);
    return true;
}

int tb_stream_receive(struct tb_stream *s, const void *frame, uint32_t bytes, int64_t now)
{
    struct tb_frame f = {0};
    if (bytes >= sizeof f)
        memcpy(&f, frame, sizeof f);
    if (!tb_frame_right(&f, frame, bytes) || f.session != s->session || f.from != s->peer || f.to != s->here ||
        f.ack - s->first > s->next - s->first) {
        /* If the frame's acknowledgement is older than that of an earlier frame, this frame was delayed. Then ignore its acknowledgement,
         * but use the rest of the frame. */
        if (bytes >= sizeof f && tb_frame_right(&f, frame, bytes) && f.session == s->session && f.from == s->peer && f.to == s->here &&
            (int32_t)(f.ack - s->first) < 0) {
            f.ack = s->first;
            f.early = 0;
        } else {
            s->counts.damaged++;
            return -EBADMSG;
        }
    }
    s->counts.received++;
    stream_acknowledged(s, &f, now);
    if ((int32_t)(f.grant - s->granted) > 0) {
        s->granted = f.grant;
        s->backoff = s->credit == TB_CREDIT_PROBING ? 0 : s->backoff;
        s->credit = TB_CREDIT_OK;
    }
    s->ack_now = s->ack_now || (f.flags & TB_ASK_ACK);
    if (f.type != TB_SEQUENCED)
        return 0;

    uint32_t ahead = f.sequence - s->expected;
    if (ahead >= TB_WINDOW) {
        s->counts.repeated++;
        s->ack_now = true;
        return 0;
    }
    if (ahead > 0) {
        s->counts.out_of_order++;
        s->ack_now = true; /* the acknowledgement tells the sender which frames are missing */
        if (s->early >> (ahead - 1) & 1)
            s->counts.repeated++;
        else
            keep_early(s, ahead, (const uint8_t *)frame + sizeof f, f.length);
        return 0;
    }
    int rc = s->env.records(s->env.records_ctx, (const uint8_t *)frame + sizeof f, f.length);
    bool more;
    do {
        s->expected++;
        s->unsaid++;
        more = s->early & 1;
        s->early >>= 1;
        if (more && rc == 0) {
            uint32_t slot = s->expected % TB_WINDOW;
            rc = s->env.records(s->env.records_ctx, s->early_frames + (size_t)slot * TB_PAYLOAD_BYTES, s->early_bytes[slot]);
        }
    } while (more && rc == 0);
    if (!s->ack_at)
        s->ack_at = now + SAY_WITHIN;
    return rc;
}
