/* SPDX-License-Identifier: MIT
 *
 * The world of sim.h: its clock, the nodes' loops, their sessions, and the faults.
 */
#include "sim.h"

#include <errno.h>

/* --- chance --- */

uint64_t sim_random(struct world *w)
{
    uint64_t z = w->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t sim_below(struct world *w, uint64_t n)
{
    return n ? sim_random(w) % n : 0;
}

bool sim_chance(struct world *w, uint32_t in_100000)
{
    return in_100000 && !w->calm && sim_below(w, 100000) < in_100000;
}

void sim_fail(struct world *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "seed %llu, step %llu, %.6f ms: ", (unsigned long long)w->c.seed, (unsigned long long)w->steps, (double)w->now / 1e6);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nto see it again: WEFT_TEST_SEED=%llu\n", (unsigned long long)w->c.seed);
    va_end(args);
    exit(1);
}

/* --- clock: a heap of events; events of the same time keep the order in which they were added --- */

static bool before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void sim_at(struct world *w, int64_t at, const struct event *e)
{
    if (w->heap_count == w->heap_room) {
        w->heap_room = w->heap_room ? 2 * w->heap_room : 1024;
        w->heap = realloc(w->heap, w->heap_room * sizeof *w->heap);
        if (!w->heap)
            sim_fail(w, "no memory");
    }
    uint32_t i = w->heap_count++;
    struct event new = *e;
    new.at = at > w->now ? at : w->now;
    new.order = w->order++;
    for (; i && before(&new, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = new;
}

static struct event next_event(struct world *w)
{
    struct event first = w->heap[0], last = w->heap[--w->heap_count];
    uint32_t i = 0;
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= w->heap_count)
            break;
        if (c + 1 < w->heap_count && before(&w->heap[c + 1], &w->heap[c]))
            c++;
        if (!before(&w->heap[c], &last))
            break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = last;
    return first;
}

/* --- nodes --- */

static struct end *end_of(struct world *w, uint32_t node, uint32_t peer)
{
    return &w->nodes[node].ends[peer];
}

static struct queue *control(struct world *w, uint32_t from, uint32_t to)
{
    return w->queues[from][to];
}

void sim_wake(struct world *w, uint32_t node, int64_t at)
{
    struct node *n = &w->nodes[node];
    if (n->waking)
        return;
    n->waking = true;
    at = at < n->stopped_until ? n->stopped_until : at;
    sim_at(w, at, &(struct event){.kind = WAKE, .a = node});
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
    if (f.from >= w->c.nodes || !end_of(w, node, f.from)->up)
        return;
    struct end *e = end_of(w, node, f.from);
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
                end_of(w, q->from, i)->pump = true;
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
    } else if (end_of(w, q->to, q->from)->up && d->generation == q->generation) {
        struct end *e = end_of(w, q->to, q->from);
        tb_endpoint_lane_landed(&e->p, q->number - 1u, w->now);
        e->pump = true;
        work_look(w, q->to);
    }
}

static void on_wake(struct world *w, uint32_t node)
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

static void come_up(struct world *w, struct end *e, uint32_t session)
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

static void drop_messages(struct end *e)
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

static void restart(struct world *w, uint32_t a, uint32_t b)
{
    struct end *ends[2] = {end_of(w, a, b), end_of(w, b, a)};
    if (!ends[0]->up || !ends[1]->up)
        return;
    for (int i = 0; i < 2; i++) {
        cut(w, ends[i]);
        ends[i]->up = false;
        ends[i]->sent = ends[i]->came = ends[i]->handled = 0;
    }
    for (int i = 0; i < 2; i++) {
        tb_endpoint_end(&ends[i]->p, -ECONNRESET);
        drop_messages(ends[i]);
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
static void pull(struct world *w, uint32_t a, uint32_t b)
{
    struct end *ends[2] = {end_of(w, a, b), end_of(w, b, a)};
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

/* --- all of it --- */

static void step(struct world *w, struct event *e)
{
    struct end *end;
    switch (e->kind) {
    case LEAVE:
        if (e->generation == e->q->generation)
            device_leave(w, e->q);
        break;
    case ARRIVE:
        if (e->generation == e->q->generation)
            device_arrive(w, e->q, e);
        else
            free(e->data);
        break;
    case SENT_DONE:
    case RECEIVE_DONE:
        if (e->generation == e->q->generation)
            device_completed(w, e);
        else
            free(e->data);
        break;
    case WAKE: on_wake(w, e->a); break;
    case TIMER:
    case PUMP:
        end = end_of(w, e->a, e->b);
        if (!end->up || e->generation != end->p.stream.session)
            break;
        if (e->kind == TIMER && end->armed == e->at)
            end->armed = 0;
        end->pump = true;
        sim_wake(w, e->a, w->now); /* frames that have arrived are handled first */
        break;
    case WORK: {
        struct node *n = &w->nodes[e->a];
        uint32_t begun = w->begun;
        if (w->begun >= w->c.ops)
            break;
        if (w->now >= n->stopped_until) {
            uint32_t peer = (e->a + 1 + (uint32_t)sim_below(w, w->c.nodes - 1)) % w->c.nodes;
            end = &n->ends[peer];
            for (uint64_t i = 1 + sim_below(w, w->c.burst); i && end->up && end->chain_count < 40; i--)
                work_begin(w, end);
            if (sim_below(w, 8) == 0)
                work_flush(end);
            if (end->up) {
                if (sim_below(w, 4))
                    sim_pump(end);
                else
                    sim_at(w, w->now + (int64_t)sim_below(w, 20 * US),
                           &(struct event){.kind = PUMP, .a = e->a, .b = peer, .generation = end->p.stream.session});
            }
        }
        sim_at(w, w->now + (int64_t)sim_below(w, (uint64_t)w->c.idle_most * (w->begun == begun ? 16 : 1)),
               &(struct event){.kind = WORK, .a = e->a});
        break;
    }
    case HANDLE:
        end = end_of(w, e->a, e->b);
        if (end->up && e->generation == end->p.stream.session)
            work_handle(end);
        break;
    case RESTART:
        if (sim_chance(w, w->c.faults.restart)) {
            uint32_t a = (uint32_t)sim_below(w, w->c.nodes);
            restart(w, a, (a + 1 + (uint32_t)sim_below(w, w->c.nodes - 1)) % w->c.nodes);
        }
        if (sim_chance(w, w->c.faults.deaf)) { /* frames of one direction are lost, those of the other arrive */
            uint32_t a = (uint32_t)sim_below(w, w->c.nodes), b = (a + 1 + (uint32_t)sim_below(w, w->c.nodes - 1)) % w->c.nodes;
            if (w->queues[a][b])
                w->queues[a][b][0].deaf_until = w->now + (int64_t)sim_below(w, 8 * MS);
        }
        if (sim_chance(w, w->c.faults.pull)) {
            uint32_t a = (uint32_t)sim_below(w, w->c.nodes);
            pull(w, a, (a + 1 + (uint32_t)sim_below(w, w->c.nodes - 1)) % w->c.nodes);
        }
        if (w->begun < w->c.ops && !w->calm)
            sim_at(w, w->now + 1 * MS, &(struct event){.kind = RESTART});
        break;
    case LANES_UP:
        end = end_of(w, e->a, e->b);
        if (!end->up || e->generation != end->p.stream.session || !end->down)
            break;
        end->down = false;
        for (uint32_t i = e->bytes; end->adjacent && i < w->c.lane_count; i++)
            tb_endpoint_lane_up(&end->p, i, (uint16_t)(1 + end->generation));
        sim_pump(end);
        break;
    case COME_UP:
        w->restarting--;
        come_up(w, end_of(w, e->a, e->b), e->generation);
        break;
    }
}

static void make_cables(struct world *w)
{
    bool cable[NODES_MAX][NODES_MAX] = {{false}};
    for (uint32_t i = 1; i < w->c.nodes; i++) { /* a tree, and some more cables */
        uint32_t to = (uint32_t)sim_below(w, i);
        cable[i][to] = cable[to][i] = true;
    }
    for (uint32_t i = 0; i < w->c.nodes; i++)
        for (uint32_t j = 0; j < i; j++)
            if (sim_below(w, 3) == 0)
                cable[i][j] = cable[j][i] = true;
    for (uint32_t i = 0; i < w->c.nodes; i++) { /* compute the shortest routes */
        uint32_t far[NODES_MAX];
        for (uint32_t j = 0; j < w->c.nodes; j++)
            far[j] = j == i ? 0 : 100;
        for (uint32_t round = 0; round < w->c.nodes; round++)
            for (uint32_t a = 0; a < w->c.nodes; a++)
                for (uint32_t b = 0; b < w->c.nodes; b++)
                    if (cable[a][b] && far[b] + 1 < far[a]) {
                        far[a] = far[b] + 1;
                        w->nodes[a].route[i] = (uint8_t)b;
                    }
        for (uint32_t j = 0; j < w->c.nodes; j++) {
            w->nodes[i].ends[j].adjacent = cable[i][j];
            if (!cable[i][j])
                continue;
            struct queue *q = w->queues[i][j] = calloc(QUEUES, sizeof *q);
            if (!q)
                sim_fail(w, "no memory");
            for (uint32_t k = 0; k < QUEUES; k++)
                q[k].from = (uint8_t)i, q[k].to = (uint8_t)j, q[k].number = (uint8_t)k;
            for (uint32_t k = 0; k < w->c.control_depth; k++)
                device_receive(w, &q[0], 0);
        }
    }
}

static bool all_done(struct world *w)
{
    if (w->begun < w->c.ops || w->restarting || w->chains_open)
        return false;
    for (uint32_t i = 0; i < w->c.nodes; i++)
        for (uint32_t j = 0; j < w->c.nodes; j++) {
            struct end *e = end_of(w, i, j), *o = end_of(w, j, i);
            if (i != j && (e->sent != o->came || !tb_endpoint_flushed(&e->p, &(struct fab_flush){0})))
                return false;
        }
    return true;
}

static void ask_flushes(struct world *w)
{
    for (uint32_t i = 0; i < w->c.nodes; i++)
        for (uint32_t j = 0; j < w->c.nodes; j++)
            if (i != j && !end_of(w, i, j)->flushing && w->now >= w->nodes[i].stopped_until) {
                work_flush(end_of(w, i, j));
                if (end_of(w, i, j)->up)
                    sim_pump(end_of(w, i, j));
            }
}

static void tell(struct world *w)
{
    struct tb_stream_counts s = {0};
    struct tb_bulk_counts b = {0};
    for (uint32_t i = 0; i < w->c.nodes; i++)
        for (uint32_t j = 0; j < w->c.nodes; j++) {
            struct tb_endpoint *p = &end_of(w, i, j)->p;
            s.frames += p->stream.counts.frames, s.retransmitted += p->stream.counts.retransmitted, s.bares += p->stream.counts.bares;
            s.records += p->stream.counts.records, s.repeated += p->stream.counts.repeated;
            b.sent_bytes += p->bulk.counts.sent_bytes, b.received_bytes += p->bulk.counts.received_bytes;
            b.pieces += p->bulk.counts.pieces, b.rejected += p->bulk.counts.rejected, b.repairs += p->bulk.counts.repairs;
        }
    const struct faults *f = &w->c.faults;
    printf("seed %llu: %u nodes, %u lanes, %s; lose %u %u spoil %u %u twice %u reorder %u withhold %u stop %u restart %u pull %u: "
           "%.1f ms, %llu steps, %llu ops, %llu bytes; frames %llu again %llu repeated %llu bare %llu records %llu; "
           "bulk %llu of %llu, pieces %llu wrong %llu repairs %llu\n",
           (unsigned long long)w->c.seed, w->c.nodes, w->c.lane_count, w->c.credits ? "credits" : "plain", f->lose, f->lose_lane, f->spoil,
           f->spoil_lane, f->twice, f->reorder, f->withhold, f->stop, f->restart, f->pull, (double)w->now / 1e6,
           (unsigned long long)w->steps, (unsigned long long)w->ops_done, (unsigned long long)w->bytes_done, (unsigned long long)s.frames,
           (unsigned long long)s.retransmitted, (unsigned long long)s.repeated, (unsigned long long)s.bares, (unsigned long long)s.records,
           (unsigned long long)b.received_bytes, (unsigned long long)b.sent_bytes, (unsigned long long)b.pieces,
           (unsigned long long)b.rejected, (unsigned long long)b.repairs);
}

/* In a world without faults, in which no send is lost for lack of a receive, nothing may be sent twice. */
static void check_economy(struct world *w)
{
    static const struct faults none;
    if (memcmp(&w->c.faults, &none, sizeof none) != 0 || !w->c.credits || w->c.heat ||
        w->c.nodes > 2) /* a forwarding node without room drops the frame */
        return;
    for (uint32_t i = 0; i < w->c.nodes; i++)
        for (uint32_t j = 0; j < w->c.nodes; j++) {
            const struct tb_endpoint *p = &end_of(w, i, j)->p;
            const struct tb_bulk_counts *b = &p->bulk.counts;
            if (i != j &&
                (p->stream.counts.retransmitted || p->stream.counts.repeated || p->stream.counts.damaged || b->rejected || b->repairs))
                sim_fail(w, "in a world without faults %llu frames were sent again, %llu pieces were rejected, %llu lanes were repaired",
                         (unsigned long long)p->stream.counts.retransmitted, (unsigned long long)b->rejected,
                         (unsigned long long)b->repairs);
        }
}

static void take_down(struct world *w)
{
    for (uint32_t i = 0; i < w->heap_count; i++)
        free(w->heap[i].data);
    free(w->heap);
    for (uint32_t i = 0; i < w->c.nodes; i++) {
        struct node *n = &w->nodes[i];
        for (uint32_t j = 0; j < w->c.nodes; j++) {
            if (i == j)
                continue;
            tb_endpoint_end(&n->ends[j].p, -ESHUTDOWN);
            drop_messages(&n->ends[j]);
            free(n->ends[j].frames);
            free(w->queues[i][j]);
        }
        free(n->pool);
        free(n->shadow);
    }
}

#define STEPS_MOST 20000000u

uint64_t sim_run(const struct config *c, bool verbose)
{
    static struct world world;
    struct world *w = &world;
    memset(w, 0, sizeof *w);
    w->c = *c;
    w->random = c->seed;
    w->now = 1 * MS;
    w->verbose = verbose;
    w->session = (uint32_t)sim_random(w);
    for (uint32_t i = 0; i < c->nodes; i++) {
        struct node *n = &w->nodes[i];
        n->pool = aligned_alloc(4096, c->pool_bytes);
        n->shadow = malloc(c->pool_bytes);
        if (!n->pool || !n->shadow)
            sim_fail(w, "no memory");
        for (uint64_t j = 0; j < c->pool_bytes; j += 8) {
            uint64_t v = j < FIRST + 8 * WORDS ? 0 : sim_random(w);
            memcpy(n->pool + j, &v, 8);
        }
        memcpy(n->shadow, n->pool, c->pool_bytes);
        n->done_end = &n->done;
    }
    make_cables(w);
    for (uint32_t i = 0; i < c->nodes; i++)
        for (uint32_t j = 0; j < c->nodes; j++) {
            struct end *e = end_of(w, i, j);
            *e = (struct end){.w = w, .node = i, .peer = j, .adjacent = e->adjacent};
            if (i == j)
                continue;
            e->frames = calloc(TB_SLOTS, TB_FRAME_BYTES);
            if (!e->frames)
                sim_fail(w, "no memory");
            come_up(w, e, w->session);
        }
    for (uint32_t i = 0; i < (c->one_sided ? 1 : c->nodes); i++)
        sim_at(w, w->now, &(struct event){.kind = WORK, .a = i});
    sim_at(w, w->now, &(struct event){.kind = RESTART});

    if (verbose)
        printf("seed %llu: %spools of %llu KiB, segments of %llu, control %u deep, delay up to %lld us, pauses %lld us, "
               "%u ops in bursts of %u, up to 2^%u bytes, "
               "%u%% words, %u%% shared, %u%% messages, faults in %u%%, hang %u, refuse %u%s\n",
               (unsigned long long)c->seed, c->heat ? "heat, " : "", (unsigned long long)c->pool_bytes >> 10,
               (unsigned long long)c->segment, c->control_depth, (long long)c->delay_most / US, (long long)c->idle_most / US, c->ops,
               c->burst, c->biggest, c->words, c->shared, c->messages, c->faults_percent, c->faults.hang, c->faults.refuse,
               c->wrap ? ", near the wrap" : "");
    int64_t asked = 0, moved_at = w->now;
    uint64_t moved = 0;
    while (!all_done(w)) {
        if (w->begun >= w->c.ops && w->now - asked > 500 * US) {
            ask_flushes(w); /* as a waiting program that tests again and again */
            asked = w->now;
        }
        if (!w->calm && c->faults_percent < 100 && w->begun >= (uint64_t)c->ops * c->faults_percent / 100)
            w->calm = true;
        if (w->heap_count == 0)
            sim_fail(w, "no event is left, but %u chains of operations are not complete", w->chains_open);
        if (w->ops_done + w->begun != moved) {
            moved = w->ops_done + w->begun;
            moved_at = w->now;
        }
        /* If most messages are lost, a large transfer may take long. */
        if (w->now - moved_at > (w->c.faults.lose == 60000 ? 300 : 30) * S)
            sim_fail(w, "no operation has completed for too long");
        struct event e = next_event(w);
        w->now = e.at;
        if (++w->steps > STEPS_MOST)
            sim_fail(w, "too many steps");
        step(w, &e);
        if (w->steps % 20000 == 0)
            work_check_all(w, (uint32_t)sim_below(w, c->nodes));
    }
    /* When all operations are complete, no timer may be left that runs for ever. */
    w->calm = true;
    uint64_t rest = w->steps + 200000;
    while (w->heap_count) {
        struct event e = next_event(w);
        w->now = e.at;
        if (++w->steps > rest)
            sim_fail(w, "all operations are complete, but timers still run");
        step(w, &e);
    }
    for (uint32_t i = 0; i < c->nodes; i++)
        work_check_all(w, i);
    work_check_words(w);
    check_economy(w);
    if (verbose)
        tell(w);
    uint64_t steps = w->steps;
    take_down(w);
    return steps;
}
