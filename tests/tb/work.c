/* SPDX-License-Identifier: MIT
 *
 * The operations of the nodes of sim.h, and the checks of their results.
 *
 * The unit is a chain: several operations on one range of a peer's memory, all started at once, with a fence between each and the next. So
 * the result of each operation and the final bytes are known, however the world delays them. No other operation writes to the range
 * meanwhile. `shadow` holds the bytes that a pool must have outside the ranges of chains under way.
 */
#include "sim.h"

#include <errno.h>

#define STEPS_OF_CHAIN 6u

enum step_kind { PUT, SIGNAL, GET, MESSAGE, ADD, SWAP, CAS, SHARED };

struct range {
    struct range *next, **back;
    uint64_t low, high;
    bool written;
};

struct step {
    weft_op op;
    enum step_kind kind;
    bool has_op, done;
    uint8_t *local;         /* source or destination */
    bool in_pool;           /* `local` is in the pool; false: it was allocated for this step */
    uint64_t old, expected; /* of an atomic */
    bool answer;
    uint8_t *after; /* the bytes of the range after this step; allocated for it if `changes` */
    bool changes;
    uint64_t sum;       /* the value of the word after this step */
    struct range range; /* of `local` */
};

struct chain {
    struct chain *next;                       /* in the list of its end */
    struct chain *next_signal, **back_signal; /* in the list of its target node */
    uint64_t id;
    struct end *e;
    uint64_t to, len, word;
    uint8_t *first; /* the bytes of the range before the chain */
    uint64_t first_sum;
    bool signals, hot;
    bool failed;     /* it is unknown which of its operations took effect, until the next flush */
    uint64_t hot_at; /* offset of 8 bytes that change all the time */
    uint32_t count;
    struct range range, word_range;
    struct step steps[STEPS_OF_CHAIN];
};

static struct range *ranges[NODES_MAX];
static struct chain *signalled[NODES_MAX]; /* chains that signal to each node */
static struct chain *hot[NODES_MAX];       /* at most one chain for each node */
static uint64_t chain_id;

struct seen {
    uint64_t *olds, count, room;
};
static struct seen seen[NODES_MAX][WORDS];

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

static void give_range(struct world *w, struct range *r, uint32_t node)
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

static uint8_t letter(uint64_t number, uint64_t i)
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

/* --- checking results --- */

void work_complete(void *ctx, weft_op *op, int status)
{
    struct end *e = ctx;
    if (op->status != 1)
        sim_fail(e->w, "an operation is complete twice");
    if (status && e->up && !e->failing)
        sim_fail(e->w, "an operation failed: %d", status);
    op->status = status;
}

static const uint8_t *before(const struct chain *c, uint32_t step)
{
    return step ? c->steps[step - 1].after : c->first;
}

static void same(struct world *w, const char *what, const uint8_t *is, const uint8_t *should, uint64_t len)
{
    if (memcmp(is, should, len) == 0)
        return;
    uint64_t i = 0;
    while (is[i] == should[i])
        i++;
    sim_fail(w, "%s: wrong from byte %llu of %llu on", what, (unsigned long long)i, (unsigned long long)len);
}

static void remember(struct world *w, struct seen *s, uint64_t old)
{
    if (s->count == s->room) {
        s->room = s->room ? 2 * s->room : 64;
        s->olds = realloc(s->olds, s->room * sizeof *s->olds);
        if (!s->olds)
            sim_fail(w, "no memory");
    }
    s->olds[s->count++] = old;
}

static void check_step(struct chain *c, uint32_t index)
{
    struct end *e = c->e;
    struct world *w = e->w;
    struct step *s = &c->steps[index];
    struct node *there = &w->nodes[e->peer];
    w->ops_done++;
    switch (s->kind) {
    case GET:
        if (c->hot) /* except for the bytes that change all the time */
            memcpy(s->local + (c->hot_at - c->to), before(c, index) + (c->hot_at - c->to), 8);
        same(w, "get", s->local, before(c, index), c->len);
        if (s->in_pool)
            memcpy(w->nodes[e->node].shadow + (s->local - w->nodes[e->node].pool), s->local, c->len);
        w->bytes_done += c->len;
        break;
    case ADD:
    case SWAP:
    case CAS:
        if (s->answer && s->old != s->expected)
            sim_fail(w, "an atomic found %llx, not %llx", (unsigned long long)s->old, (unsigned long long)s->expected);
        break;
    case SHARED:
        if (c->to & 1) {
            there->word_sum[c->to] -= s->old;
        } else {
            there->word_sum[c->to]++;
            if (s->answer)
                remember(w, &seen[e->peer][c->to], s->old);
        }
        break;
    default: w->bytes_done += c->len;
    }
}

static void free_chain(struct chain *c)
{
    struct world *w = c->e->w;
    give_range(w, &c->range, c->e->peer);
    give_range(w, &c->word_range, c->e->peer);
    if (c->hot)
        hot[c->e->peer] = NULL;
    if (c->signals) {
        *c->back_signal = c->next_signal;
        if (c->next_signal)
            c->next_signal->back_signal = c->back_signal;
    }
    for (uint32_t i = 0; i < c->count; i++) {
        struct step *s = &c->steps[i];
        give_range(w, &s->range, c->e->node);
        if (!s->in_pool)
            free(s->local);
        if (s->changes)
            free(s->after);
    }
    free(c->first);
    c->e->chain_count--;
    w->chains_open--;
    free(c);
}

static void end_chain(struct chain *c)
{
    struct world *w = c->e->w;
    struct node *n = &w->nodes[c->e->peer];
    if (c->first) {
        const uint8_t *last = before(c, c->count);
        if (c->hot)
            memcpy(n->pool + c->hot_at, last + (c->hot_at - c->to), 8);
        same(w, "what was put", n->pool + c->to, last, c->len);
        memcpy(n->shadow + c->to, last, c->len);
    }
    if (c->signals) {
        uint64_t sum = c->steps[c->count - 1].sum, is;
        memcpy(&is, n->pool + c->word, 8);
        if (sum != is)
            sim_fail(w, "signals were added wrongly");
        memcpy(n->shadow + c->word, &sum, 8);
    }
    free_chain(c);
}

void work_settle(struct end *e)
{
    for (struct chain **at = &e->chains; *at;) {
        struct chain *c = *at;
        bool all = !c->failed;
        for (uint32_t i = 0; i < c->count; i++) {
            struct step *s = &c->steps[i];
            if (!c->failed && !s->done && s->has_op && s->op.status == 0) {
                s->done = true;
                check_step(c, i);
            }
            all = all && s->done;
        }
        if (all) {
            *at = c->next;
            end_chain(c);
        } else {
            at = &c->next;
        }
    }
}

/* It is unknown which operations of the chain took effect: use the present bytes as the expected ones. */
static void forget(struct chain *c)
{
    struct end *e = c->e;
    struct world *w = e->w;
    struct node *there = &w->nodes[e->peer], *here = &w->nodes[e->node];
    for (uint32_t i = 0; i < c->count; i++) {
        struct step *s = &c->steps[i];
        if (s->kind == SHARED && c->to & 1)
            there->word_unknown[c->to] = true;
        else if (s->kind == SHARED && !s->done)
            there->word_maybe[c->to]++;
        if (s->in_pool && s->range.written)
            memcpy(here->shadow + s->range.low, here->pool + s->range.low, s->range.high - s->range.low);
    }
    if (c->first)
        memcpy(there->shadow + c->to, there->pool + c->to, c->len);
    if (c->signals)
        memcpy(there->shadow + c->word, there->pool + c->word, 8);
    free_chain(c);
}

void work_flush(struct end *e)
{
    if (e->flushing)
        return;
    e->flushing = true;
    e->flush = (struct fab_flush){0};
    e->flush_chain = chain_id;
    e->flush_sent = e->sent;
    if (e->up)
        (void)tb_endpoint_flushed(&e->p, &e->flush);
}

void work_flushed(struct end *e)
{
    work_settle(e);
    if (e->w->nodes[e->peer].ends[e->node].came < e->flush_sent)
        sim_fail(e->w, "a flush is complete, but not all messages have arrived");
    for (struct chain **at = &e->chains; *at;) {
        struct chain *c = *at;
        if (c->failed && c->id <= e->flush_chain) {
            *at = c->next;
            forget(c);
        } else {
            at = &c->next;
        }
    }
    for (struct chain *c = e->chains; c; c = c->next)
        for (uint32_t i = 0; i < c->count && c->id <= e->flush_chain; i++) {
            struct step *s = &c->steps[i];
            if (s->done)
                continue;
            if (s->has_op)
                sim_fail(e->w, "a flush is complete, but an earlier operation (%d) is not", s->kind);
            s->done = true;
            check_step(c, i);
        }
    work_settle(e);
}

void work_failed(struct end *e)
{
    for (struct chain *c = e->chains; c; c = c->next) {
        c->failed = true;
        for (uint32_t i = 0; i < c->count; i++) {
            struct step *s = &c->steps[i];
            if (s->has_op && s->op.status == 1)
                sim_fail(e->w, "no route is left, but an operation (%d) has not ended", s->kind);
            if (!s->in_pool) { /* the program may free it now */
                free(s->local);
                s->local = NULL;
            }
        }
    }
    e->flushing = false; /* a flush that began before does not cover the failed operations */
    work_flush(e);
}

/* The session has ended. Operations under way may or may not have taken effect. */
void work_ended(struct end *e)
{
    while (e->chains) {
        struct chain *c = e->chains;
        e->chains = c->next;
        for (uint32_t i = 0; i < c->count; i++)
            if (c->steps[i].has_op && c->steps[i].op.status == 1)
                sim_fail(e->w, "the session ended, and an operation (%d) is not complete", c->steps[i].kind);
        forget(c);
    }
    e->flush = (struct fab_flush){0};
    e->flush_sent = 0;
}
/* Checks that the bytes of a put are there when its signal is. */
void work_look(struct world *w, uint32_t node)
{
    uint8_t *pool = w->nodes[node].pool;
    for (struct chain *c = signalled[node]; c; c = c->next_signal) {
        uint64_t is;
        if (c->failed)
            continue;
        memcpy(&is, pool + c->word, 8);
        bool known = is == c->first_sum;
        for (uint32_t i = 0; i < c->count && !known; i++)
            known = c->steps[i].sum == is;
        if (!known)
            sim_fail(w, "a word has a signal that no node has sent");
        if (is == c->steps[c->count - 1].sum)
            same(w, "what was put before a signal", pool + c->to, before(c, c->count), c->len);
    }
}

/* --- messages --- */

bool work_message(void *ctx, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len)
{
    struct end *e = ctx;
    struct world *w = e->w;
    struct end *o = &w->nodes[e->peer].ends[e->node];
    uint64_t h[3];
    if (header_len < sizeof h)
        sim_fail(w, "a message has the wrong length");
    memcpy(h, header, sizeof h);
    if (h[0] != e->came || id != h[0] % 100)
        sim_fail(w, "message %llu instead of %llu", (unsigned long long)h[0], (unsigned long long)e->came);
    for (uint32_t i = sizeof h; i < header_len; i++)
        if (((const uint8_t *)header)[i] != letter(h[0], i))
            sim_fail(w, "a message's header is wrong");
    for (uint32_t i = 0; i < payload_len; i++)
        if (((const uint8_t *)payload)[i] != letter(h[0] + 1, i))
            sim_fail(w, "a message is wrong");
    e->came++;
    for (struct chain *c = o->chains; c; c = c->next)
        if (c->id == h[1] && c->first && !c->failed)
            same(w, "what was put before a message", w->nodes[e->node].pool + c->to, before(c, (uint32_t)h[2]), c->len);
    if (++e->waiting_count > TB_MESSAGES)
        sim_fail(w, "more messages wait than the receiver has room for");
    struct message *m = calloc(1, sizeof *m);
    if (!m)
        sim_fail(w, "no memory");
    *e->waiting_end = m;
    e->waiting_end = &m->next;
    if (!e->handling) {
        e->handling = true;
        sim_at(w, w->now + 1, &(struct event){.kind = HANDLE, .a = e->node, .b = e->peer, .generation = e->p.stream.session});
    }
    return true;
}

void work_handle(struct end *e)
{
    struct world *w = e->w;
    uint32_t most = 1 + (uint32_t)sim_below(w, 20), n = 0;
    while (e->waiting && n < most) {
        struct message *m = e->waiting;
        e->waiting = m->next;
        if (!e->waiting)
            e->waiting_end = &e->waiting;
        free(m);
        e->waiting_count--;
        e->handled++;
        n++;
    }
    tb_endpoint_granted(&e->p, n);
    sim_pump(e);
    e->handling = e->waiting != NULL;
    int64_t at = w->now + (int64_t)sim_below(w, (uint64_t)w->c.handle_most);
    if (sim_chance(w, w->c.faults.hang))
        at += (int64_t)sim_below(w, 2 * S);
    if (e->handling)
        sim_at(w, at, &(struct event){.kind = HANDLE, .a = e->node, .b = e->peer, .generation = e->p.stream.session});
}

/* --- the whole world --- */

static bool being_written(uint32_t node, uint64_t at)
{
    for (struct range *r = ranges[node]; r; r = r->next)
        if (r->written && at >= r->low && at < r->high)
            return true;
    return false;
}

void work_check_all(struct world *w, uint32_t node)
{
    const struct node *n = &w->nodes[node];
    for (uint64_t at = 0; at < w->c.pool_bytes; at += 4096) {
        if (at == FIRST || memcmp(n->pool + at, n->shadow + at, 4096) == 0)
            continue;
        for (uint64_t i = at; i < at + 4096; i++)
            if (n->pool[i] != n->shadow[i] && !being_written(node, i))
                sim_fail(w, "node %u: byte %llu was changed, but no operation wrote to it", node, (unsigned long long)i);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

void work_check_words(struct world *w)
{
    for (uint32_t node = 0; node < w->c.nodes; node++)
        for (uint32_t i = 0; i < WORDS; i++) {
            const struct node *n = &w->nodes[node];
            struct seen *s = &seen[node][i];
            uint64_t is;
            memcpy(&is, n->pool + FIRST + 8 * i, 8);
            if (i & 1) {
                if (!n->word_unknown[i] && is != n->word_sum[i])
                    sim_fail(w, "a swap was lost, or executed twice");
                continue;
            }
            if (is < n->word_sum[i] || is - n->word_sum[i] > n->word_maybe[i])
                sim_fail(w, "%llu was added to a word, but its value is %llu", (unsigned long long)n->word_sum[i], (unsigned long long)is);
            if (s->count)
                qsort(s->olds, s->count, sizeof *s->olds, by_value);
            for (uint64_t j = 0; j < s->count; j++)
                if (s->olds[j] >= is || (j && s->olds[j] == s->olds[j - 1]))
                    sim_fail(w, "two adds returned the same former value");
            free(s->olds);
            *s = (struct seen){0};
        }
}
