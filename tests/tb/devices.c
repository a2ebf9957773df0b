/* SPDX-License-Identifier: MIT
 *
 * The devices of sim.h: queue pairs that lose, delay, damage and reorder messages.
 *
 * A device reads the bytes of a send when the message leaves, not when it is posted. It writes received bytes before the completion comes.
 * A message that is lost may have written its first half.
 */
#include "sim.h"

static void leave_soon(struct world *w, struct queue *q)
{
    bool may = q->departed != q->send_next && (!w->c.credits || q->receive_next - q->receive_first > q->flying);
    if (q->leaving || !may)
        return;
    q->leaving = true;
    uint32_t bytes = q->sends[q->departed % QUEUE_MAX].bytes;
    sim_at(w, w->now + 200 + bytes / 9 + (int64_t)sim_below(w, 500), &(struct event){.kind = LEAVE, .q = q, .generation = q->generation});
}

uint32_t device_room(const struct world *w, const struct queue *q)
{
    uint32_t depth = q->number ? w->c.lanes[q->number - 1].depth : w->c.control_depth;
    return depth - (q->send_next - q->send_first);
}

uint64_t device_sum(const uint8_t *at, uint32_t bytes)
{
    uint64_t sum = bytes;
    for (uint32_t i = 0; i < bytes; i++)
        sum = (sum ^ at[i]) * 0x100000001b3u;
    return sum;
}

void device_send(struct world *w, struct queue *q, const struct send *s)
{
    q->sends[q->send_next++ % QUEUE_MAX] = *s;
    leave_soon(w, q);
}

void device_receive(struct world *w, struct queue *q, uint64_t offset)
{
    if (q->receive_next - q->receive_first >= QUEUE_MAX)
        sim_fail(w, "more receives than a queue takes");
    q->receives[q->receive_next++ % QUEUE_MAX] = offset;
    leave_soon(w, q);
}

static void complete_later(struct world *w, struct queue *q, bool sent, uint8_t *data, uint32_t bytes)
{
    int64_t *last = sent ? &q->last_sent : &q->last_received;
    int64_t at = w->now + 100 + (int64_t)sim_below(w, 2 * US);
    if (sim_chance(w, w->c.faults.withhold))
        at += (int64_t)sim_below(w, sim_below(w, 4) ? 3 * MS : 200 * MS);
    *last = at = at > *last ? at : *last + 1;
    sim_at(w, at,
           &(struct event){.kind = sent ? SENT_DONE : RECEIVE_DONE, .q = q, .generation = q->generation, .data = data, .bytes = bytes});
}

void device_leave(struct world *w, struct queue *q)
{
    q->leaving = false;
    if (q->departed == q->send_next || (w->c.credits && q->receive_next - q->receive_first <= q->flying))
        return;
    struct send *s = &q->sends[q->departed++ % QUEUE_MAX];
    uint8_t *data = malloc(s->bytes);
    if (!data)
        sim_fail(w, "no memory");
    if (q->number && s->offset != TB_SCRAP)
        work_heat(w, q->from, s->offset, s->bytes);
    if (s->copy)
        memcpy(data, s->copy, s->bytes);
    else if (q->number == 0)
        memcpy(data, s->end->frames + (size_t)s->slot * TB_FRAME_BYTES, s->bytes);
    else if (s->offset == TB_SCRAP)
        memset(data, 0x5c, s->bytes);
    else
        memcpy(data, w->nodes[q->from].pool + s->offset, s->bytes);
    const struct faults *f = &w->c.faults;
    if (sim_chance(w, q->number ? f->spoil_lane : f->spoil))
        for (uint64_t n = 1 + sim_below(w, 3); n; n--)
            data[sim_below(w, s->bytes)] ^= (uint8_t)(1u << sim_below(w, 8));
    bool lost = sim_chance(w, q->number ? f->lose_lane : f->lose) || w->now < q->deaf_until;
    int64_t at = w->now + 1 * US + (int64_t)sim_below(w, (uint64_t)w->c.delay_most);
    if (q->number && sim_chance(w, f->reorder)) /* this message is late, and so are all behind it */
        at += (int64_t)sim_below(w, 6 * MS);
    if (q->number == 0 && sim_chance(w, f->reorder))
        at += (int64_t)sim_below(w, 1 * MS);
    else
        q->last_arrival = at = at > q->last_arrival ? at : q->last_arrival + 1;
    q->flying++;
    struct event arrive = {.kind = ARRIVE, .q = q, .generation = q->generation, .data = data, .bytes = s->bytes, .lost = lost};
    if (q->number == 0 && sim_chance(w, f->twice)) {
        struct event again = arrive;
        again.data = malloc(s->bytes);
        if (!again.data)
            sim_fail(w, "no memory");
        memcpy(again.data, data, s->bytes);
        again.lost = false;
        q->flying++;
        sim_at(w, at + (int64_t)sim_below(w, 5 * MS), &again);
    }
    sim_at(w, at, &arrive);
    complete_later(w, q, true, NULL, 0);
    leave_soon(w, q);
}

static void write_memory(struct world *w, uint32_t node, uint64_t offset, const uint8_t *data, uint32_t bytes)
{
    if (offset == TB_SCRAP)
        return;
    memcpy(w->nodes[node].pool + offset, data, bytes);
}

void device_arrive(struct world *w, struct queue *q, struct event *e)
{
    q->flying--;
    bool room = q->receive_first != q->receive_next;
    if (e->lost || !room) {
        /* The first frames of the lost message may have arrived. */
        if (room && q->number && sim_below(w, 2))
            write_memory(w, q->to, q->receives[q->receive_first % QUEUE_MAX], e->data,
                         e->bytes / TB_FRAME_BYTES / 2 * TB_FRAME_BYTES + 100);
        free(e->data);
        leave_soon(w, q);
        return;
    }
    uint64_t offset = q->receives[q->receive_first++ % QUEUE_MAX];
    if (q->number) {
        write_memory(w, q->to, offset, e->data, e->bytes);
        free(e->data);
        e->data = NULL;
    }
    complete_later(w, q, false, e->data, e->bytes);
}

void device_completed(struct world *w, const struct event *e)
{
    struct queue *q = e->q;
    bool sent = e->kind == SENT_DONE;
    uint32_t node = sent ? q->from : q->to;
    struct done *d = calloc(1, sizeof *d);
    if (!d)
        sim_fail(w, "no memory");
    *d = (struct done){.kind = sent ? SENT : RECEIVED, .q = q, .generation = e->generation, .frame = e->data, .bytes = e->bytes};
    if (sent)
        d->send = q->sends[q->send_first++ % QUEUE_MAX];
    *w->nodes[node].done_end = d;
    w->nodes[node].done_end = &d->next;
    sim_wake(w, node, w->now + (int64_t)sim_below(w, 3 * US));
}
