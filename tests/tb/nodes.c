/* SPDX-License-Identifier: MIT
 *
 * The nodes of sim.h: what the protocol calls, their loops, their sessions, and cables that are pulled.
 */
#include "sim.h"

#include <errno.h>

static struct queue *control(struct world *w, uint32_t from, uint32_t to)
{
    return w->queues[from][to];
}

/* --- the functions that the protocol calls (struct tb_endpoint_env) --- */

static bool refuse(struct end *e, uint32_t what)
{
    struct world *w = e->w;
    if (w->now < e->jammed_until[what])
        return true;
    if (!sim_chance(w, w->c.faults.refuse))
        return false;
    e->jammed_until[what] = w->now + (int64_t)sim_below(w, sim_below(w, 10) ? 300 * US : 50 * MS);
    sim_at(w, e->jammed_until[what], &(struct event){.kind = PUMP, .a = e->node, .b = e->peer, .generation = e->p.stream.session});
    return true;
}

static bool env_emit(void *ctx, uint32_t slot, void *frame, uint32_t bytes)
{
    struct end *e = ctx;
    struct world *w = e->w;
    struct queue *q = control(w, e->node, w->nodes[e->node].route[e->peer]);
    if (!e->up)
        sim_fail(w, "a frame was sent after the session's end");
    if (frame != e->frames + (size_t)slot * TB_FRAME_BYTES || bytes < TB_HEADER_BYTES || bytes > TB_FRAME_BYTES)
        sim_fail(w, "a frame with an invalid header or checksum was sent");
    if (device_room(w, q) == 0 || refuse(e, 0))
        return false;
    bytes = w->c.credits ? TB_FRAME_BYTES : bytes;
    device_send(w, q,
                &(struct send){.end = e, .session = e->p.stream.session, .slot = slot, .bytes = bytes, .sum = device_sum(frame, bytes)});
    return true;
}

static bool env_receive(void *ctx, uint32_t lane, uint64_t offset)
{
    struct end *e = ctx;
    struct world *w = e->w;
    struct queue *q = &w->queues[e->peer][e->node][1 + lane];
    uint32_t bytes = w->c.lanes[lane].message;
    if (refuse(e, 1))
        return false;
    if (q->receive_next - q->receive_first >= w->c.lanes[lane].depth)
        sim_fail(w, "more receives on a lane than its depth");
    if (offset != TB_SCRAP && !work_covers(w, e->node, offset, bytes))
        sim_fail(w, "a receive was posted on memory that no operation may write: node %u, offset %llu", e->node,
                 (unsigned long long)offset);
    device_receive(w, q, offset);
    return true;
}

static bool env_send(void *ctx, uint32_t lane, uint64_t offset)
{
    struct end *e = ctx;
    struct world *w = e->w;
    struct queue *q = &w->queues[e->node][e->peer][1 + lane];
    uint32_t bytes = w->c.lanes[lane].message;
    if (refuse(e, 2))
        return false;
    if (device_room(w, q) == 0)
        sim_fail(w, "more sends on a lane than its depth");
    if (offset != TB_SCRAP && (offset < FIRST || offset > w->c.pool_bytes || bytes > w->c.pool_bytes - offset))
        sim_fail(w, "a send was posted from memory outside the pool");
    device_send(w, q, &(struct send){.end = e, .session = e->p.stream.session, .offset = offset, .bytes = bytes});
    return true;
}

static void arm(struct end *e)
{
    struct world *w = e->w;
    int64_t due = tb_endpoint_due(&e->p);
    if (due <= w->now)
        sim_fail(w, "after pump: due %lld ns ago, node %u to %u", (long long)(w->now - due), e->node, e->peer);
    if (due == INT64_MAX || (e->armed <= due && e->armed > w->now))
        return;
    e->armed = due;
    sim_at(w, due, &(struct event){.kind = TIMER, .a = e->node, .b = e->peer, .generation = e->p.stream.session});
}

void sim_pump(struct end *e)
{
    if (!e->up)
        return;
    e->pump = false;
    if (e->flushing && sim_below(e->w, 4) == 0 && tb_endpoint_flushed(&e->p, &e->flush)) { /* sometimes asked before pump, too */
        e->flushing = false;
        work_flushed(e);
    }
    tb_endpoint_pump(&e->p, e->w->now);
    if (e->p.broken[0])
        sim_fail(e->w, "node %u gives up %u: %s", e->node, e->peer, e->p.broken);
    work_settle(e);
    if (e->flushing && tb_endpoint_flushed(&e->p, &e->flush)) {
        e->flushing = false;
        work_flushed(e);
    } else if (e->flushing) {
        tb_endpoint_pump(&e->p, e->w->now); /* this sends the request for an acknowledgement */
    }
    arm(e);
}

/* --- the nodes' loops --- */

static void pass_on(struct world *w, uint32_t node, uint8_t *frame, uint32_t bytes)
{
    struct tb_frame f;
    memcpy(&f, frame, sizeof f);
    if (f.to >= w->c.nodes || f.hops == 0)
        return;
    struct queue *q = control(w, node, w->nodes[node].route[f.to]);
    if (device_room(w, q) == 0)
        return; /* its sender will send it again */
    f.hops--;
    uint8_t *copy = malloc(TB_FRAME_BYTES);
    if (!copy)
        sim_fail(w, "no memory");
    memcpy(copy, frame, bytes);
    memcpy(copy, &f, sizeof f);
    device_send(w, q, &(struct send){.copy = copy, .bytes = bytes, .sum = device_sum(copy, bytes)});
}

static void frame_came(struct world *w, uint32_t node, uint8_t *frame, uint32_t bytes)
{
    struct tb_frame f = {0};
    if (bytes < sizeof f)
        return;
    memcpy(&f, frame, sizeof f);
    if (!tb_frame_right(&f, frame, bytes))
        return;
    if (f.to != node) {
        pass_on(w, node, frame, bytes);
        return;
    }
    if (f.from >= w->c.nodes || !sim_end_of(w, node, f.from)->up)
        return;
    struct end *e = sim_end_of(w, node, f.from);
    uint8_t *exact = malloc(bytes); /* an exact copy, so that the address sanitizer sees reads past its end */
    if (!exact)
        sim_fail(w, "no memory");
    memcpy(exact, frame, bytes);
    int rc = tb_endpoint_frame(&e->p, exact, bytes, w->now);
    free(exact);
    if (rc && rc != -EBADMSG)
        sim_fail(w, "node %u gives up %u: %d, %s", node, f.from, rc, e->p.broken);
    e->pump = true;
    work_look(w, node);
}

static void sent(struct world *w, struct done *d)
{
    struct queue *q = d->q;
    struct end *e = d->send.end;
    free(d->send.copy);
    if (q->number == 0) {
        /* Wake all ends that may wait for room in this queue. */
        for (uint32_t i = 0; i < w->c.nodes; i++)
            if (i != q->from && w->nodes[q->from].route[i] == q->to)
                sim_end_of(w, q->from, i)->pump = true;
        if (e && e->up && e->p.stream.session == d->send.session) {
            /* Until this moment the device might read the frame, so it must not have changed. */
            if (device_sum(e->frames + (size_t)d->send.slot * TB_FRAME_BYTES, d->send.bytes) != d->send.sum)
                sim_fail(w, "a frame was changed while the device had it");
            tb_endpoint_left(&e->p, d->send.slot);
        }
    } else if (e->up && d->generation == q->generation) {
        tb_endpoint_lane_left(&e->p, q->number - 1u);
        e->pump = true;
    }
}

static void received(struct world *w, struct done *d)
{
    struct queue *q = d->q;
    if (q->number == 0) {
        frame_came(w, q->to, d->frame, d->bytes);
        free(d->frame);
        device_receive(w, q, 0);
    } else if (sim_end_of(w, q->to, q->from)->up && d->generation == q->generation) {
        struct end *e = sim_end_of(w, q->to, q->from);
        tb_endpoint_lane_landed(&e->p, q->number - 1u, w->now);
        e->pump = true;
        work_look(w, q->to);
    }
}

void node_wake(struct world *w, uint32_t node)
{
    struct node *n = &w->nodes[node];
    n->waking = false;
    if (w->now < n->stopped_until) {
        sim_wake(w, node, n->stopped_until);
        return;
    }
    uint64_t most = 1 + sim_below(w, 64);
    while (n->done && most--) {
        struct done *d = n->done;
        n->done = d->next;
        if (!n->done)
            n->done_end = &n->done;
        if (d->kind == SENT)
            sent(w, d);
        else
            received(w, d);
        free(d);
    }
    for (uint32_t i = 0; i < w->c.nodes; i++)
        if (n->ends[i].pump)
            sim_pump(&n->ends[i]);
    if (n->done)
        sim_wake(w, node, w->now + 1 * US);
    if (sim_chance(w, w->c.faults.stop))
        n->stopped_until = w->now + (int64_t)sim_below(w, sim_below(w, 5) ? 20 * MS : 3 * S);
}

/* --- sessions --- */

void node_come_up(struct world *w, struct end *e, uint32_t session)
{
    uint32_t hops = 0;
    for (uint32_t at = e->node; at != e->peer; at = w->nodes[at].route[e->peer])
        hops++;
    struct tb_endpoint_env env = {
        .ctx = e, .emit = env_emit, .lane_receive = env_receive, .lane_send = env_send, .message = work_message, .complete = work_complete};
    struct tb_endpoint_config config = {.here = (uint16_t)e->node,
                                        .node = (uint16_t)e->peer,
                                        .session = session,
                                        .frames = e->frames,
                                        .pool = w->nodes[e->node].pool,
                                        .pool_bytes = w->c.pool_bytes,
                                        .first_byte = FIRST,
                                        .segment = w->c.segment,
                                        .check = w->c.check};
    tb_endpoint_init(&e->p, &env, &config);
    e->p.stream.hops = (uint8_t)hops;
    for (uint32_t i = 0; i < w->c.lane_count && e->adjacent; i++)
        if (tb_endpoint_add_lane(&e->p, w->c.lanes[i].message, w->c.lanes[i].depth))
            sim_fail(w, "a lane is refused");
    if (w->c.wrap) { /* the same counters on both sides */
        struct tb_stream *s = &e->p.stream;
        s->first = s->next = s->expected = s->asked = UINT32_MAX - 100;
        s->order = s->order_arrived = UINT32_MAX - 200;
        s->grant = s->granted = s->grant_said = TB_MESSAGES - 50;
        e->p.messages_sent = e->p.messages_received = (uint32_t)-50;
        for (uint32_t i = 0; i < e->p.bulk.lane_count; i++) {
            struct tb_lane *l = &e->p.bulk.lanes[i];
            l->in_first = l->in_landed = l->in_next = UINT32_MAX - 30;
            l->out_next = l->out_end = l->again_next = l->again_end = l->void_end = UINT32_MAX - 30;
        }
    }
    e->waiting_end = &e->waiting;
    e->up = true;
    e->down = false;
    e->generation = 0;
    e->armed = 0;
    e->handling = false;
}

void node_drop_messages(struct end *e)
{
    while (e->waiting) {
        struct message *m = e->waiting;
        e->waiting = m->next;
        free(m);
    }
    e->waiting_end = &e->waiting;
    e->waiting_count = 0;
}

/* Removes one direction of a queue pair, with all messages under way. */
static void cut_lane(struct queue *q)
{
    q->generation++;
    q->send_first = q->departed = q->send_next;
    q->receive_first = q->receive_next;
    q->flying = 0;
    q->leaving = false;
}

/* Removes the lanes' queue pairs of an end; frames still get through. */
static void cut(struct world *w, struct end *e)
{
    for (uint32_t i = 0; e->adjacent && i < w->c.lane_count; i++)
        cut_lane(&w->queues[e->node][e->peer][1 + i]);
    struct queue *q = control(w, e->node, w->nodes[e->node].route[e->peer]);
    for (uint32_t i = q->departed; i != q->send_next; i++) {
        struct send *s = &q->sends[i % QUEUE_MAX];
        if (s->end != e)
            continue;
        s->copy = malloc(TB_FRAME_BYTES);
        if (!s->copy)
            sim_fail(w, "no memory");
        memcpy(s->copy, e->frames + (size_t)s->slot * TB_FRAME_BYTES, TB_FRAME_BYTES);
        s->end = NULL;
    }
}

void node_restart(struct world *w, uint32_t a, uint32_t b)
{
    struct end *ends[2] = {sim_end_of(w, a, b), sim_end_of(w, b, a)};
    if (!ends[0]->up || !ends[1]->up)
        return;
    for (int i = 0; i < 2; i++) {
        cut(w, ends[i]);
        ends[i]->up = false;
        ends[i]->sent = ends[i]->came = ends[i]->handled = 0;
    }
    for (int i = 0; i < 2; i++) {
        tb_endpoint_end(&ends[i]->p, -ECONNRESET);
        node_drop_messages(ends[i]);
    }
    for (int i = 0; i < 2; i++)
        work_ended(ends[i]);
    w->session++;
    w->restarting += 2;
    for (uint32_t i = 0; i < 2; i++)
        sim_at(w, w->now + 1 + (int64_t)sim_below(w, 5 * MS),
               &(struct event){.kind = COME_UP, .a = i ? b : a, .b = i ? a : b, .generation = w->session});
}

/* A cable is pulled: some lanes go down on both sides, and come back later. If all lanes are down, transfers may use another route, or
 * there is none. */
void node_pull(struct world *w, uint32_t a, uint32_t b)
{
    struct end *ends[2] = {sim_end_of(w, a, b), sim_end_of(w, b, a)};
    if (!ends[0]->up || !ends[1]->up || ends[0]->down || ends[1]->down)
        return;
    uint32_t first = sim_below(w, 3) ? 0 : (uint32_t)sim_below(w, w->c.lane_count + 1);
    uint32_t how = first ? 0 : w->c.faults.deaf ? 2 : (uint32_t)sim_below(w, 4);
    for (uint32_t i = first; ends[0]->adjacent && i < w->c.lane_count; i++) {
        cut_lane(&w->queues[a][b][1 + i]);
        cut_lane(&w->queues[b][a][1 + i]);
        tb_endpoint_lane_down(&ends[0]->p, i);
        tb_endpoint_lane_down(&ends[1]->p, i);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct end *e = ends[i];
        e->down = true;
        e->generation++;
        if (how == 1 && sim_below(w, 4)) {
            tb_endpoint_reroute(&e->p);
        } else if (how == 2 && sim_below(w, 4)) {
            work_settle(e);
            e->failing = true;
            tb_endpoint_fail(&e->p, -ENETDOWN);
            e->failing = false;
            work_failed(e);
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        sim_pump(ends[i]);
        int64_t most = w->c.faults.deaf && sim_below(w, 2) ? 100 * US : 5 * MS;
        sim_at(w, w->now + 1 + (int64_t)sim_below(w, (uint64_t)most),
               &(struct event){
                   .kind = LANES_UP, .a = ends[i]->node, .b = ends[i]->peer, .generation = ends[i]->p.stream.session, .bytes = first});
    }
}
