/* SPDX-License-Identifier: MIT
 *
 * The operations of the nodes of sim.h: begins them. work_check.c checks their results.
 *
 * The unit is a chain: several operations on one range of a peer's memory, all started at once, with a fence between each and the next. So
 * the result of each operation and the final bytes are known, however the world delays them. No other operation writes to the range
 * meanwhile. `shadow` holds the bytes that a pool must have outside the ranges of chains under way.
 */
#include "work.h"

struct range *ranges[NODES_MAX];
struct chain *signalled[NODES_MAX]; /* chains that signal to each node */
struct chain *hot[NODES_MAX];       /* at most one chain for each node */
uint64_t chain_id;

/* --- ranges --- */

static bool free_range(uint32_t node, uint64_t low, uint64_t high)
{
    for (struct range *r = ranges[node]; r; r = r->next)
        if (low < r->high && r->low < high)
            return false;
    return true;
}

static void take_range(struct range *r, uint32_t node, uint64_t low, uint64_t bytes, bool written)
{
    *r = (struct range){.next = ranges[node], .back = &ranges[node], .low = low, .high = low + bytes, .written = written};
    if (r->next)
        r->next->back = &r->next;
    ranges[node] = r;
}

void give_range(struct world *w, struct range *r, uint32_t node)
{
    if (!r->back)
        return;
    *r->back = r->next;
    if (r->next)
        r->next->back = r->back;
    r->back = NULL;
    /* No posted receive may be left that could write to this memory later. */
    for (uint32_t from = 0; from < w->c.nodes; from++)
        for (uint32_t k = 1; w->queues[from][node] && k <= w->c.lane_count; k++) {
            const struct queue *q = &w->queues[from][node][k];
            for (uint32_t i = q->receive_first; i != q->receive_next; i++) {
                uint64_t at = q->receives[i % QUEUE_MAX];
                if (at != TB_SCRAP && at < r->high && r->low < at + w->c.lanes[k - 1].message)
                    sim_fail(w, "an operation is complete, and a receive is still posted on its memory");
            }
        }
}

bool work_covers(struct world *w, uint32_t node, uint64_t offset, uint64_t bytes)
{
    (void)w;
    for (struct range *r = ranges[node]; r; r = r->next)
        if (r->written && offset >= r->low && offset + bytes <= r->high)
            return true;
    return false;
}

void work_heat(struct world *w, uint32_t node, uint64_t offset, uint64_t bytes)
{
    const struct chain *c = hot[node];
    uint64_t v = sim_random(w);
    if (c && c->hot_at >= offset && c->hot_at + 8 <= offset + bytes)
        memcpy(w->nodes[node].pool + c->hot_at, &v, 8);
}

static bool find_range(struct world *w, uint32_t node, uint64_t bytes, uint64_t align, uint64_t *offset)
{
    uint64_t low = FIRST + 8 * WORDS;
    if (bytes > w->c.pool_bytes - low)
        return false;
    for (int tries = 0; tries < 6; tries++) {
        uint64_t at = low + sim_below(w, w->c.pool_bytes - low - bytes + 1);
        at = at / align * align;
        if (at >= low && free_range(node, at, at + bytes)) {
            *offset = at;
            return true;
        }
    }
    return false;
}

/* --- starting operations --- */

static void fill(struct world *w, uint8_t *at, uint64_t len)
{
    uint64_t i = 0, v = 0;
    bool plain = sim_below(w, 16) == 0; /* identical pieces, with which exchanged pieces would not be noticed by their bytes */
    for (; i < len; i++) {
        if (i % 8 == 0 && !(plain && i))
            v = sim_random(w);
        at[i] = (uint8_t)(v >> 8 * (i % 8));
    }
}

static uint8_t *copy_of(struct world *w, const void *at, uint64_t len)
{
    uint8_t *c = malloc(len ? len : 1);
    if (!c)
        sim_fail(w, "no memory");
    memcpy(c, at, len);
    return c;
}

static uint64_t draw_length(struct world *w)
{
    uint64_t bits = sim_below(w, w->c.biggest + 1), n = (UINT64_C(1) << bits) + sim_below(w, UINT64_C(1) << bits);
    if (sim_below(w, 4) == 0 && w->c.lane_count) /* sizes around multiples of a lane's message */
        n = w->c.lanes[0].message * (1 + sim_below(w, 4)) + sim_below(w, 3) - 1;
    return n < UINT64_C(1) << w->c.biggest ? n : UINT64_C(1) << w->c.biggest;
}

static void choose_local(struct world *w, struct chain *c, struct step *s, uint64_t len, bool written)
{
    struct node *n = &w->nodes[c->e->node];
    uint64_t at;
    if (len && sim_below(w, 4) && find_range(w, c->e->node, len, sim_below(w, 2) ? 8 : 1, &at)) {
        take_range(&s->range, c->e->node, at, len, written);
        s->local = n->pool + at;
        s->in_pool = true;
    } else {
        s->local = malloc(len ? len : 1);
        if (!s->local)
            sim_fail(w, "no memory");
    }
    if (!written) {
        fill(w, s->local, len);
        if (s->in_pool)
            memcpy(n->shadow + (s->local - n->pool), s->local, len);
    }
}

static void begin_put(struct world *w, struct chain *c, struct step *s)
{
    struct tb_endpoint *p = &c->e->p;
    choose_local(w, c, s, c->len, false);
    s->after = copy_of(w, s->local, c->len);
    s->changes = true;
    weft_op *op = s->has_op ? &s->op : NULL;
    int rc;
    if (s->kind == SIGNAL) {
        uint64_t add = sim_random(w) | 1;
        s->sum += add;
        rc = tb_endpoint_put_signal(p, c->to, s->local, c->len, c->word, add, op);
    } else {
        rc = tb_endpoint_put(p, c->to, s->local, c->len, op);
    }
    if (rc)
        sim_fail(w, "put: %d", rc);
    if (c->len <= 64 && !s->in_pool) /* the put has copied the bytes, so they may be overwritten */
        memset(s->local, 0xee, c->len);
}

static void begin_atomic(struct world *w, struct chain *c, struct step *s, const uint8_t *before)
{
    uint64_t a = sim_random(w), b = sim_random(w), was, is;
    if (!before)
        sim_fail(w, "an atomic whose range is smaller than a word");
    memcpy(&was, before, 8); /* NOLINT(clang-analyzer-core.NonNullParamChecker): that does not return */
    enum fab_atomic kind = s->kind == ADD ? FAB_ADD : s->kind == SWAP ? FAB_SWAP : FAB_CAS;
    if (s->kind == CAS && sim_below(w, 2))
        a = was;
    is = s->kind == ADD ? was + a : s->kind == SWAP ? a : was == a ? b : was;
    s->expected = was;
    s->answer = s->kind != ADD || s->has_op || sim_below(w, 2);
    s->changes = true;
    s->after = copy_of(w, &is, 8);
    int rc = tb_endpoint_atomic(&c->e->p, kind, c->to, a, b, s->answer, s->answer ? &s->old : NULL, s->has_op ? &s->op : NULL);
    if (rc)
        sim_fail(w, "atomic: %d", rc);
}

static void begin_shared(struct world *w, struct chain *c, struct step *s)
{
    struct node *n = &w->nodes[c->e->peer];
    uint32_t i = (uint32_t)sim_below(w, WORDS);
    c->to = i; /* the word's number */
    s->answer = i & 1 || s->has_op || sim_below(w, 2);
    s->expected = i & 1 ? sim_random(w) : 1;
    if (i & 1)
        n->word_sum[i] += s->expected;
    int rc = tb_endpoint_atomic(&c->e->p, i & 1 ? FAB_SWAP : FAB_ADD, FIRST + 8 * i, s->expected, 0, s->answer, s->answer ? &s->old : NULL,
                                s->has_op ? &s->op : NULL);
    if (rc)
        sim_fail(w, "atomic: %d", rc);
}

uint8_t letter(uint64_t number, uint64_t i)
{
    return (uint8_t)((number * 0x9e3779b97f4a7c15u >> 32) + i * 7);
}

static void begin_message(struct world *w, struct chain *c, struct step *s, uint32_t index)
{
    uint64_t header[8] = {c->e->sent++, c->id, index};
    uint8_t payload[WEFT_PAYLOAD_MAX];
    uint32_t header_len = 24 + (uint32_t)sim_below(w, WEFT_HEADER_MAX - 24 + 1);
    uint32_t len = (uint32_t)sim_below(w, sim_below(w, 4) ? 200 : WEFT_PAYLOAD_MAX + 1);
    for (uint32_t i = 24; i < header_len; i++)
        ((uint8_t *)header)[i] = letter(header[0], i);
    for (uint32_t i = 0; i < len; i++)
        payload[i] = letter(header[0] + 1, i);
    uint32_t id = (uint32_t)(header[0] % 100);
    int rc = tb_endpoint_message(&c->e->p, id, header, header_len, payload, len, s->has_op ? &s->op : NULL);
    if (rc)
        sim_fail(w, "message: %d", rc);
    memset(payload, 0xee, sizeof payload);
}

void work_begin(struct world *w, struct end *e)
{
    uint64_t draw = sim_below(w, 100);
    const struct config *k = &w->c;
    bool word = draw < k->words, shared = !word && draw < k->words + k->shared,
         message = !word && !shared && draw < k->words + k->shared + k->messages;
    struct chain *c = calloc(1, sizeof *c);
    if (!c)
        sim_fail(w, "no memory");
    c->e = e;
    c->id = ++chain_id;
    c->count = shared || message || k->puts || sim_below(w, 2) ? 1 : 1 + (uint32_t)sim_below(w, STEPS_OF_CHAIN);
    c->len = word ? 8 : draw_length(w);
    if (!shared && !message) {
        if (!find_range(w, e->peer, c->len, word || sim_below(w, 2) ? 8 : 1, &c->to)) {
            free(c);
            w->begun++;
            return;
        }
        take_range(&c->range, e->peer, c->to, c->len, true);
        c->first = copy_of(w, w->nodes[e->peer].shadow + c->to, c->len);
        c->signals = !word && sim_below(w, 2) && find_range(w, e->peer, 8, 8, &c->word);
    }
    if (w->c.heat && c->first && c->count == 1 && !word && !hot[e->peer] && c->len >= 4096) {
        c->hot = true;
        c->hot_at = c->to + sim_below(w, c->len - 8);
        c->signals = false;
        hot[e->peer] = c;
    }
    if (c->signals) {
        take_range(&c->word_range, e->peer, c->word, 8, true);
        memcpy(&c->first_sum, w->nodes[e->peer].shadow + c->word, 8);
        c->next_signal = signalled[e->peer];
        c->back_signal = &signalled[e->peer];
        if (c->next_signal)
            c->next_signal->back_signal = &c->next_signal;
        signalled[e->peer] = c;
    }
    c->next = e->chains;
    e->chains = c;
    e->chain_count++;
    w->chains_open++;
    uint8_t *now = c->first;
    uint64_t sum = c->first_sum;
    for (uint32_t i = 0; i < c->count; i++) {
        struct step *s = &c->steps[i];
        if (i && tb_endpoint_fence(&e->p))
            sim_fail(w, "fence");
        static const enum step_kind of_word[] = {PUT, GET, ADD, SWAP, CAS, MESSAGE}, of_block[] = {PUT, PUT, GET, GET, MESSAGE};
        s->kind = shared ? SHARED : message ? MESSAGE : word ? of_word[sim_below(w, 6)] : of_block[sim_below(w, 5)];
        if (k->puts && !word && !shared && !message)
            s->kind = PUT;
        if (c->hot)
            s->kind = GET;
        if (c->signals && (s->kind == PUT || i + 1 == c->count))
            s->kind = SIGNAL;
        s->has_op = sim_below(w, 2);
        s->op = (weft_op){.status = 1};
        s->sum = sum;
        w->begun++;
        switch (s->kind) {
        case PUT:
        case SIGNAL: begin_put(w, c, s); break;
        case GET: {
            choose_local(w, c, s, c->len, true);
            int rc = tb_endpoint_get(&e->p, s->local, c->to, c->len, s->has_op ? &s->op : NULL);
            if (rc)
                sim_fail(w, "get: %d", rc);
            break;
        }
        case MESSAGE: begin_message(w, c, s, i); break;
        case SHARED: begin_shared(w, c, s); break;
        default: begin_atomic(w, c, s, now);
        }
        if (!s->changes)
            s->after = now;
        now = s->after;
        sum = s->sum;
    }
}
