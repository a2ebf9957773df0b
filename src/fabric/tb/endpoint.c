/* SPDX-License-Identifier: MIT
 *
 * See endpoint.h.
 */
#include "fabric/tb/endpoint.h"
#include "fabric/copy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPY_BYTES  64u  /* a put is copied up to here */
#define PUT_HEAD    16u  /* struct tb_record, offset */
#define DATA_HEAD   16u  /* struct tb_record, token */
#define MESSAGE_HEAD 16u /* struct tb_record, lengths */
#define TELL_GRANT  (TB_MESSAGES / 4)

enum work_kind { WORK_PUT, WORK_GET, WORK_ATOMIC, WORK_MESSAGE, WORK_FENCE, SERVE_DATA, SERVE_ANSWER };

/* What did not go at once, or goes in pieces. */
struct tb_work {
    struct tb_work *next;
    enum work_kind kind;
    weft_op *op;
    uint8_t *local;      /* PUT, GET */
    uint64_t remote, len, begun;
    uint32_t pieces;     /* asks or transfers under way */
    bool signal, signalled; /* add at `word` when the bytes are there */
    bool records;        /* some of a put went in records */
    bool linked;         /* still in a list */
    bool counted;        /* in p->under_way[turn] */
    uint8_t turn;
    bool restart;        /* when its last piece has ended, from the beginning, another way */
    uint64_t word, add;
    uint64_t *old;       /* ATOMIC */
    uint32_t what, token; /* ATOMIC: kind; MESSAGE: handler; SERVE: token */
    bool answer;
    uint16_t header_len, payload_len;
    uint64_t a, b;
    uint32_t bytes;      /* of body */
    _Alignas(8) uint8_t body[];
};

static int nonsense(struct tb_endpoint *p, const char *what)
{
    if (!p->broken[0])
        snprintf(p->broken, sizeof p->broken, "it sent %s", what);
    return -EPROTO;
}

/* --- lists --- */

static struct tb_work *new_work(enum work_kind kind, weft_op *op, uint32_t bytes)
{
    struct tb_work *k = malloc(sizeof *k + bytes);
    if (k)
        *k = (struct tb_work){.kind = kind, .op = op, .bytes = bytes};
    return k;
}

/* Of this node's own, and not for the peer. */
static struct tb_work *new_op(struct tb_endpoint *p, enum work_kind kind, weft_op *op, uint32_t bytes)
{
    struct tb_work *k = new_work(kind, op, bytes);
    if (k) {
        k->counted = true;
        k->turn = p->turn & 1;
        p->under_way[k->turn]++;
    }
    return k;
}

static void free_work(struct tb_endpoint *p, struct tb_work *k)
{
    if (k->counted)
        p->under_way[k->turn]--;
    free(k);
}

/* Which of the two backlogs a list belongs to. */
static void account(struct tb_endpoint *p, struct tb_work **const *end, uint64_t bytes)
{
    uint64_t *sum = end == &p->messages_end ? &p->message_bytes : &p->backlog_bytes;
    __atomic_store_n(sum, *sum + bytes, __ATOMIC_RELAXED);
}

static void append(struct tb_endpoint *p, struct tb_work ***end, struct tb_work *k)
{
    k->next = NULL;
    k->linked = true;
    **end = k;
    *end = &k->next;
    account(p, end, sizeof *k + k->bytes);
}

static struct tb_work *unlink_first(struct tb_endpoint *p, struct tb_work **first, struct tb_work ***end)
{
    struct tb_work *k = *first;
    *first = k->next;
    if (!*first)
        *end = first;
    k->linked = false;
    account(p, end, -(sizeof *k + k->bytes));
    return k;
}

static void complete(struct tb_endpoint *p, weft_op *op, int status)
{
    if (op)
        p->env.complete(p->env.ctx, op, status);
}

/* --- records going out --- */

static bool say(struct tb_endpoint *p, const struct tb_words *m)
{
    void *room = tb_stream_room(&p->stream, sizeof *m);
    if (!room)
        return false;
    memcpy(room, m, sizeof *m);
    tb_stream_commit(&p->stream, sizeof *m);
    return true;
}

static struct tb_words words(enum tb_record_kind kind, uint32_t detail)
{
    return (struct tb_words){.r = {.kind = (uint8_t)kind, .detail = (uint16_t)detail, .length = sizeof(struct tb_words)}};
}

/* Of the bytes at `src`, as many as the open frame takes: how many. A small rest is not split. */
static uint32_t say_bytes(struct tb_endpoint *p, enum tb_record_kind kind, uint64_t second, const uint8_t *src, uint64_t len)
{
    uint32_t fits = tb_stream_fits(&p->stream);
    if (fits < PUT_HEAD + (len < 256 ? len : 256)) /* a fresh frame, then; or no room */
        fits = tb_stream_room(&p->stream, TB_PAYLOAD_BYTES) ? TB_PAYLOAD_BYTES : 0;
    if (fits == 0)
        return 0;
    uint32_t n = len < fits - PUT_HEAD ? (uint32_t)len : fits - PUT_HEAD;
    uint8_t *at = tb_stream_room(&p->stream, PUT_HEAD + n);
    if (!at)
        return 0;
    struct tb_record r = {.kind = (uint8_t)kind, .length = (uint16_t)(PUT_HEAD + n)};
    memcpy(at, &r, sizeof r);
    memcpy(at + sizeof r, &second, sizeof second);
    copy_bytes(at + PUT_HEAD, src, n); /* of a pool: others may write there now */
    tb_stream_commit(&p->stream, PUT_HEAD + n);
    return n;
}

static bool say_message(struct tb_endpoint *p, uint32_t id, const void *header, uint32_t header_len, const void *payload,
                        uint32_t payload_len)
{
    uint32_t bytes = MESSAGE_HEAD + tb_padded(header_len) + payload_len;
    if (p->messages_sent == p->stream.granted) {
        p->stream.hunger = p->stream.hunger == TB_FED ? TB_HUNGRY : p->stream.hunger;
        return false;
    }
    uint8_t *at = tb_stream_room(&p->stream, bytes);
    if (!at)
        return false;
    struct tb_record r = {.kind = TB_MESSAGE, .detail = (uint16_t)id, .length = (uint16_t)bytes};
    uint32_t lengths[2] = {header_len, payload_len};
    memcpy(at, &r, sizeof r);
    memcpy(at + sizeof r, lengths, sizeof lengths);
    memset(at + MESSAGE_HEAD, 0, tb_padded(header_len));
    if (header_len)
        memcpy(at + MESSAGE_HEAD, header, header_len);
    if (payload_len)
        memcpy(at + MESSAGE_HEAD + tb_padded(header_len), payload, payload_len);
    tb_stream_commit(&p->stream, bytes);
    p->messages_sent++;
    return true;
}

/* --- asks --- */

static struct tb_ask *take_ask(struct tb_endpoint *p, const struct tb_work *work, uint32_t *token)
{
    if (p->free_ask == TB_ASKS)
        return NULL;
    struct tb_ask *ask = &p->asks[p->free_ask];
    *token = p->free_ask;
    p->free_ask = ask->next_free;
    *ask = (struct tb_ask){.used = true, .turn = work ? work->turn : p->turn & 1};
    p->tracked++;
    p->under_way[ask->turn]++;
    return ask;
}

static void free_ask(struct tb_endpoint *p, struct tb_ask *ask)
{
    ask->used = false;
    ask->next_free = p->free_ask;
    p->free_ask = (uint16_t)(ask - p->asks);
    p->tracked--;
    p->under_way[ask->turn]--;
}

static bool say_atomic(struct tb_endpoint *p, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, bool answer, uint64_t *old,
                       weft_op *op, const struct tb_work *work)
{
    struct tb_words m = words(TB_ATOMIC, kind);
    m.offset = at;
    m.a = a;
    m.b = b;
    m.token = TB_ASKS;
    if (!tb_stream_room(&p->stream, sizeof m))
        return false;
    if (answer) {
        struct tb_ask *ask = take_ask(p, work, &m.token);
        if (!ask)
            return false;
        ask->op = op;
        ask->old = old;
    }
    return say(p, &m);
}

/* A piece of a get as a question. */
static bool say_get(struct tb_endpoint *p, uint8_t *to, uint64_t from, uint32_t len, weft_op *op, struct tb_work *work)
{
    struct tb_words m = words(TB_GET, 0);
    m.offset = from;
    m.a = len;
    if (!tb_stream_room(&p->stream, sizeof m))
        return false;
    struct tb_ask *ask = take_ask(p, work, &m.token);
    if (!ask)
        return false;
    ask->get = true;
    ask->to = to;
    ask->left = len;
    ask->op = op;
    ask->work = work;
    return say(p, &m);
}

/* --- works --- */

/* How many of these bytes go together, and whether by a lane (then `offset` is where they are in the pool). */
static uint64_t run(const struct tb_endpoint *p, const uint8_t *local, uint64_t remote, uint64_t len, bool *lane, uint64_t *offset)
{
    uintptr_t at = (uintptr_t)local, base = (uintptr_t)p->pool;
    uint64_t least = tb_bulk_least(&p->bulk), segment = p->bulk.segment, n = len < TB_TRANSFER_MAX ? len : TB_TRANSFER_MAX;
    *lane = false;
    if (len < least || at < base || at - base > p->pool_bytes || len > p->pool_bytes - (at - base))
        return len;
    *offset = at - base;
    uint64_t here = segment - (*offset & (segment - 1)), there = segment - (remote & (segment - 1));
    n = n < here ? n : here;
    n = n < there ? n : there;
    *lane = n >= least;
    return n;
}

/* Ahead of all that waits, so that no fence is passed. */
static void put_first(struct tb_endpoint *p, struct tb_work *k)
{
    k->next = p->works;
    k->linked = true;
    if (!p->works)
        p->works_end = &k->next;
    p->works = k;
    account(p, &p->works_end, sizeof *k + k->bytes);
}

/* A transfer or an ask of this work is done; with the last, unless some have not begun, so is the work. */
static void piece_done(struct tb_endpoint *p, struct tb_work *k, int status)
{
    if (--k->pieces)
        return;
    if (k->restart && status == 0) {
        k->restart = k->signalled = k->records = false;
        k->begun = 0;
        if (!k->linked)
            put_first(p, k);
        return;
    }
    if (k->linked)
        return;
    if (k->op && k->records && status == 0)
        tb_stream_op(&p->stream, k->op);
    else
        complete(p, k->op, status);
    free_work(p, k);
}

/* What is left of a put, as far as it goes. True: all has begun. */
static bool push_put(struct tb_endpoint *p, struct tb_work *k)
{
    uint64_t offset;
    bool lane;
    while (k->begun < k->len) {
        uint64_t together = run(p, k->local + k->begun, k->remote + k->begun, k->len - k->begun, &lane, &offset);
        if (lane) {
            bool all = together == k->len;
            if (!tb_bulk_put(&p->bulk, offset, k->remote + k->begun, together, k->word, k->add, all && k->signal, k))
                return false;
            k->signalled = all && k->signal;
            k->begun += together;
            k->pieces++;
            p->tracked++;
            continue;
        }
        uint32_t n = say_bytes(p, TB_PUT, k->remote + k->begun, k->local + k->begun, together);
        if (n == 0)
            return false;
        k->begun += n;
        k->records = true;
        if (k->len >= TB_FRAME_BYTES)
            p->counts.staged_puts += n;
    }
    if (k->signal && !k->signalled) {
        struct tb_words m = words(TB_SIGNAL, 0);
        m.offset = k->word;
        m.a = k->add;
        if (k->pieces || !say(p, &m)) /* the bytes first */
            return false;
        k->signalled = true;
    }
    return true;
}

static bool push_get(struct tb_endpoint *p, struct tb_work *k)
{
    uint64_t offset;
    bool lane;
    while (k->begun < k->len) {
        uint64_t together = run(p, k->local + k->begun, k->remote + k->begun, k->len - k->begun, &lane, &offset);
        if (lane) {
            if (!tb_bulk_get(&p->bulk, offset, k->remote + k->begun, together, k))
                return false;
            p->tracked++;
            k->pieces++;
            k->begun += together;
            continue;
        }
        uint32_t n = together < TB_ASK_BYTES ? (uint32_t)together : TB_ASK_BYTES;
        if (!say_get(p, k->local + k->begun, k->remote + k->begun, n, NULL, k))
            return false;
        k->pieces++;
        k->begun += n;
        if (k->len >= TB_FRAME_BYTES)
            p->counts.staged_gets += n;
    }
    return true;
}

/* Take the first work out of the list: all of it has begun. Where it has pieces the last of them ends it, else the record
 * that was just said. */
static void begun(struct tb_endpoint *p)
{
    struct tb_work *k = unlink_first(p, &p->works, &p->works_end);
    if (k->pieces)
        return;
    if (k->op)
        tb_stream_op(&p->stream, k->op);
    free_work(p, k);
}

static void push_messages(struct tb_endpoint *p)
{
    while (p->messages) {
        struct tb_work *k = p->messages;
        if (!say_message(p, k->what, k->body, k->header_len, k->body + tb_padded(k->header_len), k->payload_len))
            return;
        unlink_first(p, &p->messages, &p->messages_end);
        complete(p, k->op, 0);
        free_work(p, k);
    }
}

static void push_works(struct tb_endpoint *p)
{
    while (p->works) {
        struct tb_work *k = p->works;
        switch (k->kind) {
        case WORK_PUT:
            if (!push_put(p, k))
                return;
            begun(p);
            break;
        case WORK_GET:
            if (!push_get(p, k))
                return;
            begun(p);
            break;
        case WORK_ATOMIC:
            if (!say_atomic(p, (enum fab_atomic)k->what, k->remote, k->a, k->b, k->answer, k->old, k->op, k))
                return;
            free_work(p, unlink_first(p, &p->works, &p->works_end));
            break;
        case WORK_FENCE:
            if (p->tracked || p->messages)
                return;
            free_work(p, unlink_first(p, &p->works, &p->works_end));
            break;
        default: /* a message behind other works: among the messages now */
            unlink_first(p, &p->works, &p->works_end);
            append(p, &p->messages_end, k);
            push_messages(p);
        }
    }
}

/* --- operations --- */

static int begin(struct tb_endpoint *p, struct tb_work *k)
{
    append(p, &p->works_end, k);
    push_works(p);
    return 0;
}

static struct tb_work *new_put(struct tb_endpoint *p, uint64_t to, const void *src, uint64_t len, weft_op *op)
{
    struct tb_work *k = new_op(p, WORK_PUT, op, len <= COPY_BYTES ? (uint32_t)len : 0);
    if (!k)
        return NULL;
    k->local = (uint8_t *)(uintptr_t)src;
    if (len && len <= COPY_BYTES) {
        memcpy(k->body, src, len);
        k->local = k->body;
    }
    k->remote = to;
    k->len = len;
    return k;
}

int tb_endpoint_put_signal(struct tb_endpoint *p, uint64_t to, const void *src, uint64_t len, uint64_t word, uint64_t add, weft_op *op)
{
    struct tb_words m = words(TB_SIGNAL, 0);
    if (!p->works && len && len <= TB_PAYLOAD_BYTES && tb_stream_fits(&p->stream) >= PUT_HEAD + tb_padded((uint32_t)len) + sizeof m) {
        m.offset = word;
        m.a = add;
        say_bytes(p, TB_PUT, to, src, len);
        say(p, &m);
        if (op)
            tb_stream_op(&p->stream, op);
        return 0;
    }
    struct tb_work *k = new_put(p, to, src, len, op);
    if (!k)
        return -ENOMEM;
    k->signal = true;
    k->word = word;
    k->add = add;
    return begin(p, k);
}

int tb_endpoint_put(struct tb_endpoint *p, uint64_t to, const void *src, uint64_t len, weft_op *op)
{
    if (len == 0) {
        complete(p, op, 0);
        return 0;
    }
    if (!p->works && len <= TB_PAYLOAD_BYTES - PUT_HEAD && tb_stream_fits(&p->stream) >= PUT_HEAD + len) {
        say_bytes(p, TB_PUT, to, src, len);
        if (op)
            tb_stream_op(&p->stream, op);
        return 0;
    }
    struct tb_work *k = new_put(p, to, src, len, op);
    return k ? begin(p, k) : -ENOMEM;
}

int tb_endpoint_get(struct tb_endpoint *p, void *dst, uint64_t from, uint64_t len, weft_op *op)
{
    if (len == 0) {
        complete(p, op, 0);
        return 0;
    }
    if (!p->works && len <= TB_ASK_BYTES && len < tb_bulk_least(&p->bulk) && say_get(p, dst, from, (uint32_t)len, op, NULL))
        return 0;
    struct tb_work *k = new_op(p, WORK_GET, op, 0);
    if (!k)
        return -ENOMEM;
    k->local = dst;
    k->remote = from;
    k->len = len;
    return begin(p, k);
}

int tb_endpoint_atomic(struct tb_endpoint *p, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, bool answer, uint64_t *old,
                   weft_op *op)
{
    if (!p->works && say_atomic(p, kind, at, a, b, answer, old, op, NULL))
        return 0;
    struct tb_work *k = new_op(p, WORK_ATOMIC, op, 0);
    if (!k)
        return -ENOMEM;
    k->what = kind;
    k->remote = at;
    k->a = a;
    k->b = b;
    k->answer = answer;
    k->old = old;
    return begin(p, k);
}

int tb_endpoint_message(struct tb_endpoint *p, uint32_t id, const void *header, uint32_t header_len, const void *payload,
                    uint32_t payload_len, weft_op *op)
{
    if (!p->works && !p->messages && say_message(p, id, header, header_len, payload, payload_len)) {
        complete(p, op, 0);
        return 0;
    }
    struct tb_work *k = new_op(p, WORK_MESSAGE, op, tb_padded(header_len) + payload_len);
    if (!k)
        return -ENOMEM;
    k->what = id;
    k->header_len = (uint16_t)header_len;
    k->payload_len = (uint16_t)payload_len;
    if (header_len)
        memcpy(k->body, header, header_len);
    if (payload_len)
        memcpy(k->body + tb_padded(header_len), payload, payload_len);
    if (p->works) /* perhaps there is a fence among them */
        append(p, &p->works_end, k);
    else
        append(p, &p->messages_end, k);
    return 0;
}

int tb_endpoint_fence(struct tb_endpoint *p)
{
    if (!p->works && !p->messages && !p->tracked)
        return 0;
    struct tb_work *k = new_op(p, WORK_FENCE, NULL, 0);
    if (!k)
        return -ENOMEM;
    append(p, &p->works_end, k);
    return 0;
}

/* All works and asks of turns up to this one are over. The counts are of two turns: the next begins when the one before this is over. */
static bool turn_over(struct tb_endpoint *p, uint32_t turn)
{
    if (p->turn == turn && p->under_way[1 - (turn & 1)] == 0)
        p->turn++;
    return p->turn - turn > 1 || (p->turn != turn && p->under_way[turn & 1] == 0);
}

bool tb_endpoint_flushed(struct tb_endpoint *p, struct fab_flush *f)
{
    if (!f->begun) {
        f->begun = true;
        f->turn = p->turn;
    }
    if (!f->gone) {
        f->gone = turn_over(p, f->turn);
        f->at = tb_stream_end_of_records(&p->stream);
    }
    return tb_stream_flushed(&p->stream, (uint32_t)f->at) && f->gone;
}

/* --- records that come --- */

static bool serve_data(struct tb_endpoint *p, struct tb_work *k)
{
    while (k->begun < k->len) {
        uint32_t n = say_bytes(p, TB_DATA, k->token, p->pool + k->remote + k->begun, k->len - k->begun);
        if (n == 0)
            return false;
        k->begun += n;
    }
    return true;
}

static bool serve_answer(struct tb_endpoint *p, uint32_t token, uint64_t value)
{
    struct tb_words m = words(TB_ANSWER, 0);
    m.token = token;
    m.a = value;
    return say(p, &m);
}

static void push_serves(struct tb_endpoint *p)
{
    while (p->serves) {
        struct tb_work *k = p->serves;
        if (k->kind == SERVE_DATA ? !serve_data(p, k) : !serve_answer(p, k->token, k->a))
            return;
        free(unlink_first(p, &p->serves, &p->serves_end));
        p->serve_count--;
    }
}

static int later(struct tb_endpoint *p, const struct tb_work *what)
{
    if (p->serve_count == TB_ASKS)
        return nonsense(p, "more questions than it may have open");
    struct tb_work *k = new_work(what->kind, NULL, 0);
    if (!k)
        return nonsense(p, "questions for which there is no memory");
    *k = *what;
    p->serve_count++;
    append(p, &p->serves_end, k);
    return 0;
}

static bool in_pool(const struct tb_endpoint *p, uint64_t offset, uint64_t bytes)
{
    return offset >= p->first_byte && offset <= p->pool_bytes && bytes <= p->pool_bytes - offset;
}

static uint64_t *word_at(const struct tb_endpoint *p, uint64_t offset)
{
    return (offset & 7) == 0 && in_pool(p, offset, 8) ? (uint64_t *)(void *)(p->pool + offset) : NULL;
}

static int on_put(struct tb_endpoint *p, const uint8_t *at, uint32_t bytes)
{
    uint64_t offset, word;
    if (bytes < PUT_HEAD)
        return nonsense(p, "a put without an address");
    memcpy(&offset, at + sizeof(struct tb_record), sizeof offset);
    bytes -= PUT_HEAD;
    if (!in_pool(p, offset, bytes))
        return nonsense(p, "a put outside the pool");
    if (bytes == 8 && (offset & 7) == 0) { /* a word is seen whole: flags and the rooms' own words are put */
        memcpy(&word, at + PUT_HEAD, sizeof word);
        __atomic_store_n((uint64_t *)(void *)(p->pool + offset), word, __ATOMIC_RELEASE);
    } else {
        copy_bytes(p->pool + offset, at + PUT_HEAD, bytes);
    }
    return 0;
}

static int on_get(struct tb_endpoint *p, const struct tb_words *m)
{
    if (m->a == 0 || m->a > TB_ASK_BYTES || !in_pool(p, m->offset, m->a) || m->token >= TB_ASKS)
        return nonsense(p, "a get that makes no sense");
    struct tb_work k = {.kind = SERVE_DATA, .remote = m->offset, .len = m->a, .token = m->token};
    if (!p->serves && serve_data(p, &k))
        return 0;
    return later(p, &k);
}

static struct tb_ask *asked(struct tb_endpoint *p, uint64_t token, bool get)
{
    return token < TB_ASKS && p->asks[token].used && p->asks[token].get == get ? &p->asks[token] : NULL;
}

static int on_data(struct tb_endpoint *p, const uint8_t *at, uint32_t bytes)
{
    uint64_t token;
    if (bytes <= DATA_HEAD)
        return nonsense(p, "an answer without data");
    memcpy(&token, at + sizeof(struct tb_record), sizeof token);
    bytes -= DATA_HEAD;
    struct tb_ask *ask = asked(p, token, true);
    if (!ask || bytes > ask->left)
        return nonsense(p, "data that nobody asked for");
    if (ask->to) { /* else it has been given up */
        memcpy(ask->to, at + DATA_HEAD, bytes);
        ask->to += bytes;
    }
    ask->left -= bytes;
    if (ask->left == 0) {
        struct tb_ask was = *ask;
        free_ask(p, ask);
        if (was.bulk)
            tb_bulk_fetched(&p->bulk, was.transfer, was.generation);
        else if (was.work)
            piece_done(p, was.work, 0);
        else
            complete(p, was.op, 0);
    }
    return 0;
}

static int on_answer(struct tb_endpoint *p, const struct tb_words *m)
{
    struct tb_ask *ask = asked(p, m->token, false);
    if (!ask)
        return nonsense(p, "an answer to nothing");
    struct tb_ask was = *ask;
    free_ask(p, ask);
    if (was.old)
        *was.old = m->a;
    complete(p, was.op, 0);
    return 0;
}

static int on_atomic(struct tb_endpoint *p, const struct tb_words *m)
{
    uint64_t *word = word_at(p, m->offset), before;
    if (!word || m->token > TB_ASKS)
        return nonsense(p, "an atomic outside the pool");
    if (!fab_atomic_do(m->r.detail, word, m->a, m->b, &before))
        return nonsense(p, "an atomic of an unknown kind");
    if (m->token == TB_ASKS)
        return 0;
    struct tb_work k = {.kind = SERVE_ANSWER, .token = m->token, .a = before};
    if (!p->serves && serve_answer(p, m->token, before))
        return 0;
    return later(p, &k);
}

static int on_signal(struct tb_endpoint *p, uint64_t offset, uint64_t add)
{
    uint64_t *word = word_at(p, offset);
    if (!word)
        return nonsense(p, "a signal outside the pool");
    __atomic_fetch_add(word, add, __ATOMIC_SEQ_CST); /* release: what was put before it */
    return 0;
}

static int on_message(struct tb_endpoint *p, const uint8_t *at, uint32_t bytes)
{
    struct tb_record r;
    uint32_t lengths[2];
    if (bytes < MESSAGE_HEAD)
        return nonsense(p, "a message without its lengths");
    memcpy(&r, at, sizeof r);
    memcpy(lengths, at + sizeof r, sizeof lengths);
    if (lengths[0] > WEFT_HEADER_MAX || lengths[1] > WEFT_PAYLOAD_MAX ||
        MESSAGE_HEAD + tb_padded(lengths[0]) + lengths[1] != bytes || p->messages_came == p->stream.grant)
        return nonsense(p, "a message that makes no sense");
    p->messages_came++;
    if (!p->env.message(p->env.ctx, r.detail, at + MESSAGE_HEAD, lengths[0], at + MESSAGE_HEAD + tb_padded(lengths[0]), lengths[1]))
        return nonsense(p, "a message for which there is no memory");
    return 0;
}

static int on_words(struct tb_endpoint *p, const uint8_t *at, uint32_t bytes)
{
    struct tb_words m;
    if (bytes != sizeof m)
        return nonsense(p, "a record of a wrong length");
    memcpy(&m, at, sizeof m);
    switch (m.r.kind) {
    case TB_GET:
        return on_get(p, &m);
    case TB_ATOMIC:
        return on_atomic(p, &m);
    case TB_ANSWER:
        return on_answer(p, &m);
    case TB_SIGNAL:
        return on_signal(p, m.offset, m.a);
    default:
        if (m.r.kind < TB_OPEN || m.r.kind > TB_LANE)
            return nonsense(p, "a record of an unknown kind");
        return tb_bulk_record(&p->bulk, &m, p->now) ? nonsense(p, "a word about a transfer that makes no sense") : 0;
    }
}

static int on_records(void *ctx, const uint8_t *payload, uint32_t bytes)
{
    struct tb_endpoint *p = ctx;
    uint32_t at = 0;
    int rc = 0;
    while (rc == 0 && at < bytes) {
        struct tb_record r;
        if (bytes - at < sizeof r)
            return nonsense(p, "half a record");
        memcpy(&r, payload + at, sizeof r);
        if (r.length < sizeof r || r.length > bytes - at)
            return nonsense(p, "a record longer than its frame");
        switch (r.kind) {
        case TB_PUT:
            rc = on_put(p, payload + at, r.length);
            break;
        case TB_DATA:
            rc = on_data(p, payload + at, r.length);
            break;
        case TB_MESSAGE:
            rc = on_message(p, payload + at, r.length);
            break;
        default:
            rc = on_words(p, payload + at, r.length);
        }
        at += tb_padded(r.length);
    }
    return rc;
}

/* --- transfers --- */

static void transfer_came(void *ctx, uint64_t word, uint64_t add, uint32_t what)
{
    if (what)
        (void)on_signal(ctx, word, add);
}

static void transfer_done(void *ctx, void *cookie)
{
    struct tb_endpoint *p = ctx;
    p->tracked--;
    piece_done(p, cookie, 0);
}

static void transfer_again(void *ctx, void *cookie)
{
    struct tb_endpoint *p = ctx;
    struct tb_work *k = cookie;
    p->tracked--;
    k->restart = true;
    piece_done(p, k, 0);
}

void tb_endpoint_reroute(struct tb_endpoint *p)
{
    tb_bulk_reroute(&p->bulk);
}

/* --- events --- */

int tb_endpoint_frame(struct tb_endpoint *p, const void *frame, uint32_t bytes, int64_t now)
{
    p->now = now;
    return tb_stream_receive(&p->stream, frame, bytes, now);
}

void tb_endpoint_left(struct tb_endpoint *p, uint32_t slot)
{
    tb_stream_left(&p->stream, slot);
}

void tb_endpoint_lane_landed(struct tb_endpoint *p, uint32_t lane, int64_t now)
{
    if (lane < p->bulk.lane_count)
        tb_bulk_landed(&p->bulk, lane, now);
}

void tb_endpoint_lane_left(struct tb_endpoint *p, uint32_t lane)
{
    if (lane < p->bulk.lane_count)
        tb_bulk_left(&p->bulk, lane);
}

void tb_endpoint_granted(struct tb_endpoint *p, uint32_t messages)
{
    p->stream.grant += messages;
    if (p->stream.grant - p->stream.grant_said >= TELL_GRANT)
        p->stream.ack_now = true;
}

void tb_endpoint_pump(struct tb_endpoint *p, int64_t now)
{
    p->now = now;
    push_serves(p);
    push_messages(p);
    push_works(p);
    tb_bulk_pump(&p->bulk, now);
    tb_stream_pump(&p->stream, now);
}

bool tb_endpoint_gathers(const struct tb_endpoint *p)
{
    return !p->works && !p->messages && !p->serves && !p->bulk.active && tb_stream_gathers(&p->stream);
}

int64_t tb_endpoint_due(const struct tb_endpoint *p)
{
    int64_t a = tb_stream_due(&p->stream), b = tb_bulk_due(&p->bulk);
    return a < b ? a : b;
}

/* --- beginning and end --- */

static bool emit(void *ctx, uint32_t slot, void *frame, uint32_t bytes)
{
    struct tb_endpoint *p = ctx;
    return p->env.emit(p->env.ctx, slot, frame, bytes);
}

static void op_complete(void *ctx, weft_op *op, int status)
{
    complete(ctx, op, status);
}

static bool lane_receive(void *ctx, uint32_t lane, uint64_t offset)
{
    struct tb_endpoint *p = ctx;
    return p->env.lane_receive(p->env.ctx, lane, offset);
}

static bool fetch(void *ctx, uint32_t transfer, uint16_t generation, uint64_t to, uint64_t from, uint32_t bytes)
{
    struct tb_endpoint *p = ctx;
    uint32_t ask = p->free_ask;
    if (!say_get(p, p->pool + to, from, bytes, NULL, NULL))
        return false;
    p->asks[ask].bulk = true;
    p->asks[ask].transfer = (uint16_t)transfer;
    p->asks[ask].generation = generation;
    return true;
}

static bool lane_send(void *ctx, uint32_t lane, uint64_t offset)
{
    struct tb_endpoint *p = ctx;
    return p->env.lane_send(p->env.ctx, lane, offset);
}

void tb_endpoint_init(struct tb_endpoint *p, const struct tb_endpoint_env *env, const struct tb_endpoint_config *config)
{
    *p = (struct tb_endpoint){.env = *env, .pool = config->pool, .pool_bytes = config->pool_bytes, .first_byte = config->first_byte};
    p->works_end = &p->works;
    p->messages_end = &p->messages;
    p->serves_end = &p->serves;
    for (uint32_t i = 0; i < TB_ASKS; i++)
        p->asks[i].next_free = (uint16_t)(i + 1);
    tb_stream_init(&p->stream, &(struct tb_stream_env){.ctx = p, .emit = emit, .records = on_records, .complete = op_complete},
                   config->here, config->node, config->session, config->frames);
    p->stream.grant = p->stream.granted = p->stream.grant_said = TB_MESSAGES;
    tb_bulk_init(&p->bulk, &p->stream,
                 &(struct tb_bulk_env){.ctx = p, .receive = lane_receive, .send = lane_send, .fetch = fetch,
                                       .came = transfer_came, .done = transfer_done, .again = transfer_again},
                 config->pool, config->pool_bytes, config->first_byte, config->segment, config->check);
}

int tb_endpoint_add_lane(struct tb_endpoint *p, uint32_t message_bytes, uint32_t depth)
{
    return tb_bulk_add_lane(&p->bulk, message_bytes, depth);
}

void tb_endpoint_lane_down(struct tb_endpoint *p, uint32_t lane)
{
    tb_bulk_lane_down(&p->bulk, lane);
}

void tb_endpoint_lane_up(struct tb_endpoint *p, uint32_t lane, uint16_t generation)
{
    tb_bulk_lane_up(&p->bulk, lane, generation);
}

static void drop(struct tb_endpoint *p, struct tb_work **first, struct tb_work ***end, int status)
{
    while (*first) {
        struct tb_work *k = unlink_first(p, first, end);
        complete(p, k->op, status);
        free_work(p, k);
    }
}

/* Does a work touch memory that is not its own? Then it goes with its op. */
static bool borrows(const struct tb_work *k)
{
    return (k->kind == WORK_PUT && k->len && k->local != k->body) || k->kind == WORK_GET || (k->kind == WORK_ATOMIC && (k->op || k->old));
}

void tb_endpoint_fail(struct tb_endpoint *p, int status)
{
    for (uint32_t i = 0; i < TB_ASKS; i++) {
        struct tb_ask *ask = &p->asks[i], was = *ask;
        if (!was.used)
            continue;
        ask->op = NULL; /* the answer will find nobody */
        ask->work = NULL;
        ask->old = NULL;
        ask->to = NULL;
        if (was.work)
            piece_done(p, was.work, status);
        else
            complete(p, was.op, status);
    }
    for (void *cookie; (cookie = tb_bulk_give_up(&p->bulk));) {
        p->tracked--;
        piece_done(p, cookie, status);
    }
    struct tb_work *works = p->works;
    for (p->works = NULL, p->works_end = &p->works; works;) {
        struct tb_work *k = works;
        works = k->next;
        account(p, &p->works_end, -(sizeof *k + k->bytes));
        weft_op *op = k->op;
        k->op = NULL;
        if (borrows(k))
            free_work(p, k);
        else
            append(p, &p->works_end, k);
        complete(p, op, status);
    }
    for (struct tb_work *k = p->messages; k; k = k->next) {
        complete(p, k->op, status);
        k->op = NULL;
    }
    tb_stream_fail(&p->stream, status);
}

void tb_endpoint_end(struct tb_endpoint *p, int status)
{
    /* Pieces first: a work that has some and is in a list stays there, and ends with the list. */
    for (uint32_t i = 0; i < TB_ASKS; i++) {
        struct tb_ask was = p->asks[i];
        if (!was.used)
            continue;
        free_ask(p, &p->asks[i]);
        if (was.work)
            piece_done(p, was.work, status);
        else
            complete(p, was.op, status);
    }
    for (uint32_t i = 0; i < TB_TRANSFERS; i++) {
        void *put = p->bulk.out[i].used ? p->bulk.out[i].cookie : NULL;
        void *get = p->bulk.in[i].used && p->bulk.in[i].own ? p->bulk.in[i].cookie : NULL;
        if (put)
            piece_done(p, put, status);
        if (get)
            piece_done(p, get, status);
    }
    tb_bulk_end(&p->bulk);
    drop(p, &p->works, &p->works_end, status);
    drop(p, &p->messages, &p->messages_end, status);
    drop(p, &p->serves, &p->serves_end, status);
    p->serve_count = 0;
    p->tracked = 0;
    tb_stream_end(&p->stream, status);
    p->stream.first = p->stream.next;
    p->stream.fill = 0;
}
