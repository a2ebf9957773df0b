/* SPDX-License-Identifier: MIT
 *
 * A node of test_rejoin.c: it sends messages, puts, adds, and does tasks with all other nodes, until the test tells it otherwise.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "cluster/join.h"
#include "fabric/ofi/ofi.h"
#include "gateway/gateway.h"
#include "rejoin_test.h"
#include "weft/service.h"

struct member {
    weft_node *w;
    struct place *place;
    _Atomic uint32_t messages;
    uint64_t random;
};

static void on_change(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    struct member *m = arg;
    (void)epoch;
    CHECK(node < NUMBERS);
    if (weft_alive(w, node))
        m->place->joined[node]++;
    else
        m->place->died[node] += died;
}

static void on_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    struct member *m = arg;
    (void)payload;
    uint32_t sender;
    CHECK(header_len == sizeof sender && payload_len == 100);
    memcpy(&sender, header, sizeof sender);
    CHECK(sender == from && from < weft_size(w));
    m->messages++;
}

static void on_hold(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    (void)w, (void)from, (void)header, (void)header_len, (void)payload, (void)payload_len, (void)arg;
    wait_for(&board->sent, 1);
}

/* Check the result of an operation to `node`: it may fail only if that node is gone. */
static void allowed(struct member *m, uint32_t node, int rc, const char *what)
{
    if (rc == 0 || (rc == -ECONNRESET && !weft_alive(m->w, node)))
        return;
    fprintf(stderr, "node %u: %s to node %u returned %d: %s\n", weft_rank(m->w), what, node, rc, weft_error());
    _exit(1);
}

static void use(struct member *m, uint32_t node)
{
    static uint8_t own[2 * BYTES];
    weft_gaddr area = board->area[node];
    uint32_t me = weft_rank(m->w);
    uint8_t payload[100] = {0}, *in_pool = weft_ptr(m->w, board->area[me] + 64 + SLOTS * BYTES, 2 * BYTES);
    uint8_t *buffer = random_next(&m->random) & 1 ? own : in_pool, *back = buffer + BYTES;
    if (!area)
        return;
    weft_gaddr mine = area + 64 + (uint64_t)(m->place - board->place) * BYTES;
    memset(buffer, (int)(random_next(&m->random) & 0xff), BYTES);
    int rc = weft_put_blocking(m->w, mine, buffer, BYTES);
    allowed(m, node, rc, "put");
    if (rc == 0)
        rc = weft_get_blocking(m->w, back, mine, BYTES);
    allowed(m, node, rc, "get");
    if (rc == 0)
        CHECK(memcmp(buffer, back, BYTES) == 0);
    allowed(m, node, weft_fetch_add_blocking(m->w, area, 1, NULL), "fetch_add");
    allowed(m, node, weft_send(m->w, node, 1, &me, sizeof me, payload, sizeof payload, NULL), "send");
}

static void tasks(struct member *m, weft_queue *q)
{
    weft_task t = {.kind = 1, .tag = random_next(&m->random)};
    weft_lease lease[8];
    weft_done done[8];
    uint64_t id;
    (void)weft_submit(q, &t, 1, &id, 0);
    int n = weft_claim(q, lease, 8, 0);
    for (int i = 0; i < n; i++) {
        weft_result r = {.status = 0, .result = lease[i].task.tag};
        (void)weft_complete(q, &lease[i], &r, 1, NULL);
    }
    n = weft_reap(q, done, 8, 0);
    m->place->done += n > 0 ? (uint32_t)n : 0;
}

/* Addresses of nodes that are gone. */
static void check_old(struct member *m)
{
    uint8_t byte = 1;
    uint32_t refused = 0;
    for (uint32_t i = 0; i < NUMBERS; i++) {
        if (!board->dead[i] || i >= weft_size(m->w))
            continue;
        CHECK(!weft_alive(m->w, i));
        CHECK(weft_put_blocking(m->w, board->area[i], &byte, 1) == -ECONNRESET);
        CHECK(weft_fetch_add_blocking(m->w, board->area[i], 1, NULL) == -ECONNRESET);
        refused++;
    }
    m->place->refused = refused;
}

/* Run a program at every other node, and look up the name that every other node has published. */
static void serve(weft_node *w)
{
    const weft_spawn_spec spec = {.bytes = sizeof spec, .program = "true"};
    char name[32];
    snprintf(name, sizeof name, "area-%u", weft_rank(w));
    OK(weft_name_publish(w, weft_rank(w), name, board->area[weft_rank(w)], 8, LONG));
    for (uint32_t i = 0; i < weft_size(w); i++) {
        weft_process *p;
        weft_exit e;
        weft_name n;
        if (!weft_alive(w, i))
            continue;
        OK(weft_spawn(w, i, &spec, &p, LONG));
        OK(weft_process_wait(p, &e, sizeof e, LONG));
        CHECK(e.status == 0 && e.signal == 0);
        OK(weft_process_close(p));
        snprintf(name, sizeof name, "area-%u", i);
        OK(weft_name_wait(w, i, name, &n, LONG));
        CHECK(n.addr == board->area[i]);
    }
}

/* Send messages that only a dishonest member sends to all other members. */
static void lie(struct member *m)
{
    struct grow_message g;
    struct grow_ask ask;
    for (uint32_t k = 0; k < 2000; k++)
        for (uint32_t i = 0; i < weft_size(m->w); i++) {
            uint64_t r = random_next(&m->random);
            g = (struct grow_message){.magic = GROW_MAGIC,
                                      .kind = (uint32_t)(r % 6),
                                      .number = r >> 8 & 1 ? (uint32_t)(r >> 16 & 31) : (uint32_t)(r >> 16),
                                      .attempt = r >> 40 & 3,
                                      .answer = (int32_t)(r >> 44 & 31),
                                      .highest = r >> 56 & 1 ? (uint32_t)(r >> 16 & 31) : UINT32_MAX};
            /* a high number that other members believe uses up all numbers below it, and the test needs some */
            g.number = g.number > 31 && g.number < WEFT_MAX_NUMBERS ? WEFT_MAX_NUMBERS : g.number;
            memset(&ask, (int)(r >> 32 & 0xff), sizeof ask);
            ask.card.rank = g.number;
            if (r >> 57 & 1)
                ask.card = (struct wire_card){.rank = g.number, .liveness_ns = 1, .side = "unix:@nowhere"};
            bool with = g.kind == GROW_ASK ? r >> 58 & 3 : r >> 58 & 1;
            if (i != weft_rank(m->w) && weft_alive(m->w, i))
                (void)fab_send(m->w, i, FAB_ROOM_HANDLERS(4), &g, r >> 60 ? sizeof g : 8, &ask, with ? sizeof ask : 0, NULL);
        }
}

/* Messages of the services to a node that reads none now: more than there is room for. They name a stream that does not exist. */
static void post(weft_node *w, const struct place *to)
{
    const struct gateway_message m = {.type = GATEWAY_CREDIT, .to = 1};
    OK(weft_send(w, to->number - 1, 2, NULL, 0, NULL, 0, NULL));
    for (uint32_t i = 0; i < 20000; i++)
        OK(gateway_post(gateway_in(w), to->number - 1, &m, NULL, 0));
    board->sent = 1;
}

/* The node replaces its endpoint, as if nothing got through to a peer. Meanwhile its other threads may use it. */
static void renew(weft_node *w)
{
    struct ofi *o;
    for (uint32_t i = 0; w->ofi && (o = ofi_device_at(w, i)); i++) {
        base_spin_lock(&o->receiving);
        o->renew = true;
        base_spin_unlock(&o->receiving);
    }
    fab_kick(w);
}

static uint32_t endpoints(weft_node *w)
{
    struct ofi *o;
    uint32_t count = 0; /* 0: another transport */
    for (uint32_t i = 0; w->ofi && (o = ofi_device_at(w, i)); i++) {
        base_spin_lock(&o->receiving);
        count += o->generation;
        base_spin_unlock(&o->receiving);
    }
    return count;
}

static uint32_t frames_of_links(weft_node *w)
{
    struct ofi *o;
    uint32_t count = 0;
    for (uint32_t i = 0; w->ofi && (o = ofi_device_at(w, i)); i++) {
        base_spin_lock(&o->calls);
        for (const struct ofi_frames *f = o->frames; f; f = f->next)
            count++;
        base_spin_unlock(&o->calls);
    }
    return count;
}

/* A thread of a node that waits until it is told to die. */
static void *die(void *arg)
{
    const struct member *m = arg;
    struct ofi *o;
    while (m->place->order != DIE)
        usleep(500);
    for (uint32_t i = 0; (o = ofi_device_at(m->w, i)); i++)
        base_spin_lock(&o->calls); /* no thread is in libfabric now */
    raise(SIGKILL);
    return NULL;
}

void live(weft_node *w, struct place *place)
{
    struct member m = {.w = w, .place = place, .random = (uint64_t)getpid()};
    pthread_t killer;
    if (killing_hangs())
        CHECK(pthread_create(&killer, NULL, die, &m) == 0);
    weft_queue *q;
    weft_gaddr area;
    weft_queue_config c = {.bytes = sizeof c, .slots = 256};
    OK(weft_on_change(w, on_change, &m));
    OK(weft_handle(w, 1, on_message, &m));
    OK(weft_handle(w, 2, on_hold, NULL));
    OK(weft_queue_open(w, "work", &c, &q));
    OK(weft_alloc_aligned(w, 64 + (SLOTS + 2) * BYTES, 64, &area)); /* a word, what the others write, and this node's buffers */
    memset(weft_ptr(w, area, 64), 0, 64);
    CHECK(weft_rank(w) < NUMBERS);
    board->area[weft_rank(w)] = area;
    place->number = weft_rank(w) + 1;
    place->up = 1;
    while (place->order != END) {
        for (uint32_t i = 0; i < weft_size(w); i++)
            if (weft_alive(w, i))
                use(&m, i);
        tasks(&m, q);
        check_old(&m);
        for (uint32_t i = 0; i < NUMBERS; i++)
            place->gone[i] = !weft_alive(w, i);
        weft_progress(w);
        place->here = w->size_here;
        place->turns++;
        if (place->order == BARRIER && place->obeyed != BARRIER) {
            int rc = weft_barrier(w, LONG);
            board->result[place - board->place] = (uint32_t)-rc;
            place->obeyed = BARRIER;
        }
        if (place->order == SERVE && place->obeyed != SERVE) {
            serve(w);
            place->obeyed = SERVE;
        }
        if (place->order == LIE && place->obeyed != LIE) {
            lie(&m);
            place->obeyed = LIE;
        }
        if (place->order == POST && place->obeyed != POST) {
            post(w, &board->place[2]);
            place->obeyed = POST;
        }
        if (place->order == RENEW && place->obeyed != RENEW) {
            renew(w);
            place->obeyed = RENEW;
        }
        place->renewed = endpoints(w);
        place->frames = frames_of_links(w);
        usleep(500);
    }
    _exit(weft_close(w) ? 1 : 0);
}
