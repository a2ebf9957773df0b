/* SPDX-License-Identifier: MIT
 *
 * The world of sim.h: its chance and its clock, what happens at each event, and a run from the beginning to the end.
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

void sim_wake(struct world *w, uint32_t node, int64_t at)
{
    struct node *n = &w->nodes[node];
    if (n->waking)
        return;
    n->waking = true;
    at = at < n->stopped_until ? n->stopped_until : at;
    sim_at(w, at, &(struct event){.kind = WAKE, .a = node});
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
    case WAKE: node_wake(w, e->a); break;
    case TIMER:
    case PUMP:
        end = sim_end_of(w, e->a, e->b);
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
        end = sim_end_of(w, e->a, e->b);
        if (end->up && e->generation == end->p.stream.session)
            work_handle(end);
        break;
    case RESTART:
        if (sim_chance(w, w->c.faults.restart)) {
            uint32_t a = (uint32_t)sim_below(w, w->c.nodes);
            node_restart(w, a, (a + 1 + (uint32_t)sim_below(w, w->c.nodes - 1)) % w->c.nodes);
        }
        if (sim_chance(w, w->c.faults.deaf)) { /* frames of one direction are lost, those of the other arrive */
            uint32_t a = (uint32_t)sim_below(w, w->c.nodes), b = (a + 1 + (uint32_t)sim_below(w, w->c.nodes - 1)) % w->c.nodes;
            if (w->queues[a][b])
                w->queues[a][b][0].deaf_until = w->now + (int64_t)sim_below(w, 8 * MS);
        }
        if (sim_chance(w, w->c.faults.pull)) {
            uint32_t a = (uint32_t)sim_below(w, w->c.nodes);
            node_pull(w, a, (a + 1 + (uint32_t)sim_below(w, w->c.nodes - 1)) % w->c.nodes);
        }
        if (w->begun < w->c.ops && !w->calm)
            sim_at(w, w->now + 1 * MS, &(struct event){.kind = RESTART});
        break;
    case LANES_UP:
        end = sim_end_of(w, e->a, e->b);
        if (!end->up || e->generation != end->p.stream.session || !end->down)
            break;
        end->down = false;
        for (uint32_t i = e->bytes; end->adjacent && i < w->c.lane_count; i++)
            tb_endpoint_lane_up(&end->p, i, (uint16_t)(1 + end->generation));
        sim_pump(end);
        break;
    case COME_UP:
        w->restarting--;
        node_come_up(w, sim_end_of(w, e->a, e->b), e->generation);
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
            struct end *e = sim_end_of(w, i, j), *o = sim_end_of(w, j, i);
            if (i != j && (e->sent != o->came || !tb_endpoint_flushed(&e->p, &(struct fab_flush){0})))
                return false;
        }
    return true;
}

static void ask_flushes(struct world *w)
{
    for (uint32_t i = 0; i < w->c.nodes; i++)
        for (uint32_t j = 0; j < w->c.nodes; j++)
            if (i != j && !sim_end_of(w, i, j)->flushing && w->now >= w->nodes[i].stopped_until) {
                work_flush(sim_end_of(w, i, j));
                if (sim_end_of(w, i, j)->up)
                    sim_pump(sim_end_of(w, i, j));
            }
}

static void tell(struct world *w)
{
    struct tb_stream_counts s = {0};
    struct tb_bulk_counts b = {0};
    for (uint32_t i = 0; i < w->c.nodes; i++)
        for (uint32_t j = 0; j < w->c.nodes; j++) {
            struct tb_endpoint *p = &sim_end_of(w, i, j)->p;
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
            const struct tb_endpoint *p = &sim_end_of(w, i, j)->p;
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
            node_drop_messages(&n->ends[j]);
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
            struct end *e = sim_end_of(w, i, j);
            *e = (struct end){.w = w, .node = i, .peer = j, .adjacent = e->adjacent};
            if (i == j)
                continue;
            e->frames = calloc(TB_SLOTS, TB_FRAME_BYTES);
            if (!e->frames)
                sim_fail(w, "no memory");
            node_come_up(w, e, w->session);
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
