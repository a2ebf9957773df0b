/* SPDX-License-Identifier: MIT
 *
 * The operations of the nodes of sim.h: checks their results, as they come and when the world has come to rest.
 */
#include "work.h"

struct seen {
    uint64_t *olds, count, room;
};
static struct seen seen[NODES_MAX][WORDS];

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
