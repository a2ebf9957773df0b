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
    bool counted;        /* in e->under_way[turn] */
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

static int nonsense(struct tb_endpoint *e, const char *what)
{
    if (!e->broken[0])
        snprintf(e->broken, sizeof e->broken, "it sent %s", what);
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
static struct tb_work *new_op(struct tb_endpoint *e, enum work_kind kind, weft_op *op, uint32_t bytes)
{
    struct tb_work *k = new_work(kind, op, bytes);
    if (k) {
        k->counted = true;
        k->turn = e->turn & 1;
        e->under_way[k->turn]++;
    }
    return k;
}

static void free_work(struct tb_endpoint *e, struct tb_work *k)
{
    if (k->counted)
        e->under_way[k->turn]--;
    free(k);
}

/* Which of the two backlogs a list belongs to. */
static void account(struct tb_endpoint *e, struct tb_work **const *end, uint64_t bytes)
{
    uint64_t *sum = end == &e->messages_end ? &e->message_bytes : &e->backlog_bytes;
    __atomic_store_n(sum, *sum + bytes, __ATOMIC_RELAXED);
}

static void append(struct tb_endpoint *e, struct tb_work ***end, struct tb_work *k)
{
    k->next = NULL;
    k->linked = true;
    **end = k;
    *end = &k->next;
    account(e, end, sizeof *k + k->bytes);
}

static struct tb_work *unlink_first(struct tb_endpoint *e, struct tb_work **first, struct tb_work ***end)
{
    struct tb_work *k = *first;
    *first = k->next;
    if (!*first)
        *end = first;
    k->linked = false;
    account(e, end, -(sizeof *k + k->bytes));
    return k;
}

static void complete(struct tb_endpoint *e, weft_op *op, int status)
{
    if (op)
        e->env.complete(e->env.ctx, op, status);
}

/* --- records going out --- */

/* Of the bytes at `src`, as many as the open frame takes: how many. A small rest is not split. */
static uint32_t say_bytes(struct tb_endpoint *e, enum tb_record_kind kind, uint64_t second, const uint8_t *src, uint64_t len)
{
    uint32_t fits = tb_stream_fits(&e->stream);
    if (fits < PUT_HEAD + (len < 256 ? len : 256)) /* a fresh frame, then; or no room */
        fits = tb_stream_room(&e->stream, TB_PAYLOAD_BYTES) ? TB_PAYLOAD_BYTES : 0;
    if (fits == 0)
        return 0;
    uint32_t n = len < fits - PUT_HEAD ? (uint32_t)len : fits - PUT_HEAD;
    uint8_t *at = tb_stream_room(&e->stream, PUT_HEAD + n);
    if (!at)
        return 0;
    struct tb_record r = {.kind = (uint8_t)kind, .length = (uint16_t)(PUT_HEAD + n)};
    memcpy(at, &r, sizeof r);
    memcpy(at + sizeof r, &second, sizeof second);
    copy_bytes(at + PUT_HEAD, src, n); /* of a pool: others may write there now */
    tb_stream_commit(&e->stream, PUT_HEAD + n);
    return n;
}

static bool say_message(struct tb_endpoint *e, uint32_t id, const void *header, uint32_t header_len, const void *payload,
                        uint32_t payload_len)
{
    uint32_t bytes = MESSAGE_HEAD + tb_padded(header_len) + payload_len;
    if (e->messages_sent == e->stream.granted) {
        e->stream.hunger = e->stream.hunger == TB_FED ? TB_HUNGRY : e->stream.hunger;
        return false;
    }
    uint8_t *at = tb_stream_room(&e->stream, bytes);
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
    tb_stream_commit(&e->stream, bytes);
    e->messages_sent++;
    return true;
}

/* --- asks --- */

static struct tb_ask *take_ask(struct tb_endpoint *e, const struct tb_work *work, uint32_t *token)
{
    if (e->free_ask == TB_ASKS)
        return NULL;
    struct tb_ask *ask = &e->asks[e->free_ask];
    *token = e->free_ask;
    e->free_ask = ask->next_free;
    *ask = (struct tb_ask){.used = true, .turn = work ? work->turn : e->turn & 1};
    e->tracked++;
    e->under_way[ask->turn]++;
    return ask;
}

static void free_ask(struct tb_endpoint *e, struct tb_ask *ask)
{
    ask->used = false;
    ask->next_free = e->free_ask;
    e->free_ask = (uint16_t)(ask - e->asks);
    e->tracked--;
    e->under_way[ask->turn]--;
}

static bool say_atomic(struct tb_endpoint *e, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, bool answer, uint64_t *old,
                       weft_op *op, const struct tb_work *work)
{
    struct tb_words m = tb_words_of(TB_ATOMIC, 0, kind);
    m.offset = at;
    m.a = a;
    m.b = b;
    m.token = TB_ASKS;
    if (!tb_stream_room(&e->stream, sizeof m))
        return false;
    if (answer) {
        struct tb_ask *ask = take_ask(e, work, &m.token);
        if (!ask)
            return false;
        ask->op = op;
        ask->old = old;
    }
    return tb_stream_say(&e->stream, &m);
}

/* A piece of a get as a question. */
static bool say_get(struct tb_endpoint *e, uint8_t *to, uint64_t from, uint32_t len, weft_op *op, struct tb_work *work)
{
    struct tb_words m = tb_words_of(TB_GET, 0, 0);
    m.offset = from;
    m.a = len;
    if (!tb_stream_room(&e->stream, sizeof m))
        return false;
    struct tb_ask *ask = take_ask(e, work, &m.token);
    if (!ask)
        return false;
    ask->get = true;
    ask->to = to;
    ask->left = len;
    ask->op = op;
    ask->work = work;
    return tb_stream_say(&e->stream, &m);
}

/* --- works --- */

/* How many of these bytes go together, and whether by a lane (then `offset` is where they are in the pool). */
static uint64_t run(const struct tb_endpoint *e, const uint8_t *local, uint64_t remote, uint64_t len, bool *lane, uint64_t *offset)
{
    uintptr_t at = (uintptr_t)local, base = (uintptr_t)e->pool;
    uint64_t least = tb_bulk_least(&e->bulk), segment = e->bulk.segment, n = len < TB_TRANSFER_MAX ? len : TB_TRANSFER_MAX;
    *lane = false;
    if (len < least || at < base || at - base > e->pool_bytes || len > e->pool_bytes - (at - base))
        return len;
    *offset = at - base;
    uint64_t here = segment - (*offset & (segment - 1)), there = segment - (remote & (segment - 1));
    n = n < here ? n : here;
    n = n < there ? n : there;
    *lane = n >= least;
    return n;
}

/* Ahead of all that waits, so that no fence is passed. */
static void put_first(struct tb_endpoint *e, struct tb_work *k)
{
    k->next = e->works;
    k->linked = true;
    if (!e->works)
        e->works_end = &k->next;
    e->works = k;
    account(e, &e->works_end, sizeof *k + k->bytes);
}

/* A transfer or an ask of this work is done; with the last, unless some have not begun, so is the work. */
static void piece_done(struct tb_endpoint *e, struct tb_work *k, int status)
{
    if (--k->pieces)
        return;
    if (k->restart && status == 0) {
        k->restart = k->signalled = k->records = false;
        k->begun = 0;
        if (!k->linked)
            put_first(e, k);
        return;
    }
    if (k->linked)
        return;
    if (k->op && k->records && status == 0)
        tb_stream_op(&e->stream, k->op);
    else
        complete(e, k->op, status);
    free_work(e, k);
}

/* What is left of a put, as far as it goes. True: all has begun. */
static bool push_put(struct tb_endpoint *e, struct tb_work *k)
{
    uint64_t offset;
    bool lane;
    while (k->begun < k->len) {
        uint64_t together = run(e, k->local + k->begun, k->remote + k->begun, k->len - k->begun, &lane, &offset);
        if (lane) {
            bool all = together == k->len;
            if (!tb_bulk_put(&e->bulk, offset, k->remote + k->begun, together, k->word, k->add, all && k->signal, k))
                return false;
            k->signalled = all && k->signal;
            k->begun += together;
            k->pieces++;
            e->tracked++;
            continue;
        }
        uint32_t n = say_bytes(e, TB_PUT, k->remote + k->begun, k->local + k->begun, together);
        if (n == 0)
            return false;
        k->begun += n;
        k->records = true;
        if (k->len >= TB_FRAME_BYTES)
            e->counts.staged_puts += n;
    }
    if (k->signal && !k->signalled) {
        struct tb_words m = tb_words_of(TB_SIGNAL, 0, 0);
        m.offset = k->word;
        m.a = k->add;
        if (k->pieces || !tb_stream_say(&e->stream, &m)) /* the bytes first */
            return false;
        k->signalled = true;
    }
    return true;
}

static bool push_get(struct tb_endpoint *e, struct tb_work *k)
{
    uint64_t offset;
    bool lane;
    while (k->begun < k->len) {
        uint64_t together = run(e, k->local + k->begun, k->remote + k->begun, k->len - k->begun, &lane, &offset);
        if (lane) {
            if (!tb_bulk_get(&e->bulk, offset, k->remote + k->begun, together, k))
                return false;
            e->tracked++;
            k->pieces++;
            k->begun += together;
            continue;
        }
        uint32_t n = together < TB_ASK_BYTES ? (uint32_t)together : TB_ASK_BYTES;
        if (!say_get(e, k->local + k->begun, k->remote + k->begun, n, NULL, k))
            return false;
        k->pieces++;
        k->begun += n;
        if (k->len >= TB_FRAME_BYTES)
            e->counts.staged_gets += n;
    }
    return true;
}

/* Take the first work out of the list: all of it has begun. Where it has pieces the last of them ends it, else the record
 * that was just said. */
static void begun(struct tb_endpoint *e)
{
    struct tb_work *k = unlink_first(e, &e->works, &e->works_end);
    if (k->pieces)
        return;
    if (k->op)
        tb_stream_op(&e->stream, k->op);
    free_work(e, k);
}

static void push_messages(struct tb_endpoint *e)
{
    while (e->messages) {
        struct tb_work *k = e->messages;
        if (!say_message(e, k->what, k->body, k->header_len, k->body + tb_padded(k->header_len), k->payload_len))
            return;
        unlink_first(e, &e->messages, &e->messages_end);
        complete(e, k->op, 0);
        free_work(e, k);
    }
}

static void push_works(struct tb_endpoint *e)
{
    while (e->works) {
        struct tb_work *k = e->works;
        switch (k->kind) {
        case WORK_PUT:
            if (!push_put(e, k))
                return;
            begun(e);
            break;
        case WORK_GET:
            if (!push_get(e, k))
                return;
            begun(e);
            break;
        case WORK_ATOMIC:
            if (!say_atomic(e, (enum fab_atomic)k->what, k->remote, k->a, k->b, k->answer, k->old, k->op, k))
                return;
            free_work(e, unlink_first(e, &e->works, &e->works_end));
            break;
        case WORK_FENCE:
            if (e->tracked || e->messages)
                return;
            free_work(e, unlink_first(e, &e->works, &e->works_end));
            break;
        default: /* a message behind other works: among the messages now */
            unlink_first(e, &e->works, &e->works_end);
            append(e, &e->messages_end, k);
            push_messages(e);
        }
    }
}

/* --- operations --- */

static int begin(struct tb_endpoint *e, struct tb_work *k)
{
    append(e, &e->works_end, k);
    push_works(e);
    return 0;
}

static struct tb_work *new_put(struct tb_endpoint *e, uint64_t to, const void *src, uint64_t len, weft_op *op)
{
    struct tb_work *k = new_op(e, WORK_PUT, op, len <= COPY_BYTES ? (uint32_t)len : 0);
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

int tb_endpoint_put_signal(struct tb_endpoint *e, uint64_t to, const void *src, uint64_t len, uint64_t word, uint64_t add, weft_op *op)
{
    struct tb_words m = tb_words_of(TB_SIGNAL, 0, 0);
    if (!e->works && len && len <= TB_PAYLOAD_BYTES && tb_stream_fits(&e->stream) >= PUT_HEAD + tb_padded((uint32_t)len) + sizeof m) {
        m.offset = word;
        m.a = add;
        say_bytes(e, TB_PUT, to, src, len);
        tb_stream_say(&e->stream, &m);
        if (op)
            tb_stream_op(&e->stream, op);
        return 0;
    }
    struct tb_work *k = new_put(e, to, src, len, op);
    if (!k)
        return -ENOMEM;
    k->signal = true;
    k->word = word;
    k->add = add;
    return begin(e, k);
}

int tb_endpoint_put(struct tb_endpoint *e, uint64_t to, const void *src, uint64_t len, weft_op *op)
{
    if (len == 0) {
        complete(e, op, 0);
        return 0;
    }
    if (!e->works && len <= TB_PAYLOAD_BYTES - PUT_HEAD && tb_stream_fits(&e->stream) >= PUT_HEAD + len) {
        say_bytes(e, TB_PUT, to, src, len);
        if (op)
            tb_stream_op(&e->stream, op);
        return 0;
    }
    struct tb_work *k = new_put(e, to, src, len, op);
    return k ? begin(e, k) : -ENOMEM;
}

int tb_endpoint_get(struct tb_endpoint *e, void *dst, uint64_t from, uint64_t len, weft_op *op)
{
    if (len == 0) {
        complete(e, op, 0);
        return 0;
    }
    if (!e->works && len <= TB_ASK_BYTES && len < tb_bulk_least(&e->bulk) && say_get(e, dst, from, (uint32_t)len, op, NULL))
        return 0;
    struct tb_work *k = new_op(e, WORK_GET, op, 0);
    if (!k)
        return -ENOMEM;
    k->local = dst;
    k->remote = from;
    k->len = len;
    return begin(e, k);
}

int tb_endpoint_atomic(struct tb_endpoint *e, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, bool answer, uint64_t *old,
                   weft_op *op)
{
    if (!e->works && say_atomic(e, kind, at, a, b, answer, old, op, NULL))
        return 0;
    struct tb_work *k = new_op(e, WORK_ATOMIC, op, 0);
    if (!k)
        return -ENOMEM;
    k->what = kind;
    k->remote = at;
    k->a = a;
    k->b = b;
    k->answer = answer;
    k->old = old;
    return begin(e, k);
}

int tb_endpoint_message(struct tb_endpoint *e, uint32_t id, const void *header, uint32_t header_len, const void *payload,
                    uint32_t payload_len, weft_op *op)
{
    if (!e->works && !e->messages && say_message(e, id, header, header_len, payload, payload_len)) {
        complete(e, op, 0);
        return 0;
    }
    struct tb_work *k = new_op(e, WORK_MESSAGE, op, tb_padded(header_len) + payload_len);
    if (!k)
        return -ENOMEM;
    k->what = id;
    k->header_len = (uint16_t)header_len;
    k->payload_len = (uint16_t)payload_len;
    if (header_len)
        memcpy(k->body, header, header_len);
    if (payload_len)
        memcpy(k->body + tb_padded(header_len), payload, payload_len);
    if (e->works) /* perhaps there is a fence among them */
        append(e, &e->works_end, k);
    else
        append(e, &e->messages_end, k);
    return 0;
}

int tb_endpoint_fence(struct tb_endpoint *e)
{
    if (!e->works && !e->messages && !e->tracked)
        return 0;
    struct tb_work *k = new_op(e, WORK_FENCE, NULL, 0);
    if (!k)
        return -ENOMEM;
    append(e, &e->works_end, k);
    return 0;
}

/* All works and asks of turns up to this one are over. The counts are of two turns: the next begins when the one before this is over. */
static bool turn_over(struct tb_endpoint *e, uint32_t turn)
{
    if (e->turn == turn && e->under_way[1 - (turn & 1)] == 0)
        e->turn++;
    return e->turn - turn > 1 || (e->turn != turn && e->under_way[turn & 1] == 0);
}

bool tb_endpoint_flushed(struct tb_endpoint *e, struct fab_flush *f)
{
    if (!f->begun) {
        f->begun = true;
        f->turn = e->turn;
    }
    if (!f->gone) {
        f->gone = turn_over(e, f->turn);
        f->at = tb_stream_end_of_records(&e->stream);
    }
    return tb_stream_flushed(&e->stream, (uint32_t)f->at) && f->gone;
}

/* --- records that come --- */

static bool serve_data(struct tb_endpoint *e, struct tb_work *k)
{
    while (k->begun < k->len) {
        uint32_t n = say_bytes(e, TB_DATA, k->token, e->pool + k->remote + k->begun, k->len - k->begun);
        if (n == 0)
            return false;
        k->begun += n;
    }
    return true;
}

static bool serve_answer(struct tb_endpoint *e, uint32_t token, uint64_t value)
{
    struct tb_words m = tb_words_of(TB_ANSWER, 0, 0);
    m.token = token;
    m.a = value;
    return tb_stream_say(&e->stream, &m);
}

static void push_serves(struct tb_endpoint *e)
{
    while (e->serves) {
        struct tb_work *k = e->serves;
        if (k->kind == SERVE_DATA ? !serve_data(e, k) : !serve_answer(e, k->token, k->a))
            return;
        free(unlink_first(e, &e->serves, &e->serves_end));
        e->serve_count--;
    }
}

static int later(struct tb_endpoint *e, const struct tb_work *what)
{
    if (e->serve_count == TB_ASKS)
        return nonsense(e, "more questions than it may have open");
    struct tb_work *k = new_work(what->kind, NULL, 0);
    if (!k)
        return nonsense(e, "questions for which there is no memory");
    *k = *what;
    e->serve_count++;
    append(e, &e->serves_end, k);
    return 0;
}

static bool in_pool(const struct tb_endpoint *e, uint64_t offset, uint64_t bytes)
{
    return offset >= e->first_byte && offset <= e->pool_bytes && bytes <= e->pool_bytes - offset;
}

static uint64_t *word_at(const struct tb_endpoint *e, uint64_t offset)
{
    return (offset & 7) == 0 && in_pool(e, offset, 8) ? (uint64_t *)(void *)(e->pool + offset) : NULL;
}

static int on_put(struct tb_endpoint *e, const uint8_t *at, uint32_t bytes)
{
    uint64_t offset, word;
    if (bytes < PUT_HEAD)
        return nonsense(e, "a put without an address");
    memcpy(&offset, at + sizeof(struct tb_record), sizeof offset);
    bytes -= PUT_HEAD;
    if (!in_pool(e, offset, bytes))
        return nonsense(e, "a put outside the pool");
    if (bytes == 8 && (offset & 7) == 0) { /* a word is seen whole: flags and the rooms' own words are put */
        memcpy(&word, at + PUT_HEAD, sizeof word);
        __atomic_store_n((uint64_t *)(void *)(e->pool + offset), word, __ATOMIC_RELEASE);
    } else {
        copy_bytes(e->pool + offset, at + PUT_HEAD, bytes);
    }
    return 0;
}

static int on_get(struct tb_endpoint *e, const struct tb_words *m)
{
    if (m->a == 0 || m->a > TB_ASK_BYTES || !in_pool(e, m->offset, m->a) || m->token >= TB_ASKS)
        return nonsense(e, "a get that makes no sense");
    struct tb_work k = {.kind = SERVE_DATA, .remote = m->offset, .len = m->a, .token = m->token};
    if (!e->serves && serve_data(e, &k))
        return 0;
    return later(e, &k);
}

static struct tb_ask *asked(struct tb_endpoint *e, uint64_t token, bool get)
{
    return token < TB_ASKS && e->asks[token].used && e->asks[token].get == get ? &e->asks[token] : NULL;
}

static int on_data(struct tb_endpoint *e, const uint8_t *at, uint32_t bytes)
{
    uint64_t token;
    if (bytes <= DATA_HEAD)
        return nonsense(e, "an answer without data");
    memcpy(&token, at + sizeof(struct tb_record), sizeof token);
    bytes -= DATA_HEAD;
    struct tb_ask *ask = asked(e, token, true);
    if (!ask || bytes > ask->left)
        return nonsense(e, "data that nobody asked for");
    if (ask->to) { /* else it has been given up */
        memcpy(ask->to, at + DATA_HEAD, bytes);
        ask->to += bytes;
    }
    ask->left -= bytes;
    if (ask->left == 0) {
        struct tb_ask was = *ask;
        free_ask(e, ask);
        if (was.bulk)
            tb_bulk_fetched(&e->bulk, was.transfer, was.generation);
        else if (was.work)
            piece_done(e, was.work, 0);
        else
            complete(e, was.op, 0);
    }
    return 0;
}

static int on_answer(struct tb_endpoint *e, const struct tb_words *m)
{
    struct tb_ask *ask = asked(e, m->token, false);
    if (!ask)
        return nonsense(e, "an answer to nothing");
    struct tb_ask was = *ask;
    free_ask(e, ask);
    if (was.old)
        *was.old = m->a;
    complete(e, was.op, 0);
    return 0;
}

static int on_atomic(struct tb_endpoint *e, const struct tb_words *m)
{
    uint64_t *word = word_at(e, m->offset), before;
    if (!word || m->token > TB_ASKS)
        return nonsense(e, "an atomic outside the pool");
    if (!fab_atomic_do(m->r.detail, word, m->a, m->b, &before))
        return nonsense(e, "an atomic of an unknown kind");
    if (m->token == TB_ASKS)
        return 0;
    struct tb_work k = {.kind = SERVE_ANSWER, .token = m->token, .a = before};
    if (!e->serves && serve_answer(e, m->token, before))
        return 0;
    return later(e, &k);
}

static int on_signal(struct tb_endpoint *e, uint64_t offset, uint64_t add)
{
    uint64_t *word = word_at(e, offset);
    if (!word)
        return nonsense(e, "a signal outside the pool");
    __atomic_fetch_add(word, add, __ATOMIC_SEQ_CST); /* release: what was put before it */
    return 0;
}

static int on_message(struct tb_endpoint *e, const uint8_t *at, uint32_t bytes)
{
    struct tb_record r;
    uint32_t lengths[2];
    if (bytes < MESSAGE_HEAD)
        return nonsense(e, "a message without its lengths");
    memcpy(&r, at, sizeof r);
    memcpy(lengths, at + sizeof r, sizeof lengths);
    if (lengths[0] > WEFT_HEADER_MAX || lengths[1] > WEFT_PAYLOAD_MAX ||
        MESSAGE_HEAD + tb_padded(lengths[0]) + lengths[1] != bytes || e->messages_came == e->stream.grant)
        return nonsense(e, "a message that makes no sense");
    e->messages_came++;
    if (!e->env.message(e->env.ctx, r.detail, at + MESSAGE_HEAD, lengths[0], at + MESSAGE_HEAD + tb_padded(lengths[0]), lengths[1]))
        return nonsense(e, "a message for which there is no memory");
    return 0;
}

static int on_words(struct tb_endpoint *e, const uint8_t *at, uint32_t bytes)
{
    struct tb_words m;
    if (bytes != sizeof m)
        return nonsense(e, "a record of a wrong length");
    memcpy(&m, at, sizeof m);
    switch (m.r.kind) {
    case TB_GET:
        return on_get(e, &m);
    case TB_ATOMIC:
        return on_atomic(e, &m);
    case TB_ANSWER:
        return on_answer(e, &m);
    case TB_SIGNAL:
        return on_signal(e, m.offset, m.a);
    default:
        if (m.r.kind < TB_OPEN || m.r.kind > TB_LANE)
            return nonsense(e, "a record of an unknown kind");
        return tb_bulk_record(&e->bulk, &m, e->now) ? nonsense(e, "a word about a transfer that makes no sense") : 0;
    }
}

static int on_records(void *ctx, const uint8_t *payload, uint32_t bytes)
{
    struct tb_endpoint *e = ctx;
    uint32_t at = 0;
    int rc = 0;
    while (rc == 0 && at < bytes) {
        struct tb_record r;
        if (bytes - at < sizeof r)
            return nonsense(e, "half a record");
        memcpy(&r, payload + at, sizeof r);
        if (r.length < sizeof r || r.length > bytes - at)
            return nonsense(e, "a record longer than its frame");
        switch (r.kind) {
        case TB_PUT:
            rc = on_put(e, payload + at, r.length);
            break;
        case TB_DATA:
            rc = on_data(e, payload + at, r.length);
            break;
        case TB_MESSAGE:
            rc = on_message(e, payload + at, r.length);
            break;
        default:
            rc = on_words(e, payload + at, r.length);
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
    struct tb_endpoint *e = ctx;
    e->tracked--;
    piece_done(e, cookie, 0);
}

static void transfer_again(void *ctx, void *cookie)
{
    struct tb_endpoint *e = ctx;
    struct tb_work *k = cookie;
    e->tracked--;
    k->restart = true;
    piece_done(e, k, 0);
}

void tb_endpoint_reroute(struct tb_endpoint *e)
{
    tb_bulk_reroute(&e->bulk);
}

/* --- events --- */

int tb_endpoint_frame(struct tb_endpoint *e, const void *frame, uint32_t bytes, int64_t now)
{
    e->now = now;
    return tb_stream_receive(&e->stream, frame, bytes, now);
}

void tb_endpoint_left(struct tb_endpoint *e, uint32_t slot)
{
    tb_stream_left(&e->stream, slot);
}

void tb_endpoint_lane_landed(struct tb_endpoint *e, uint32_t lane, int64_t now)
{
    if (lane < e->bulk.lane_count)
        tb_bulk_landed(&e->bulk, lane, now);
}

void tb_endpoint_lane_left(struct tb_endpoint *e, uint32_t lane)
{
    if (lane < e->bulk.lane_count)
        tb_bulk_left(&e->bulk, lane);
}

void tb_endpoint_granted(struct tb_endpoint *e, uint32_t messages)
{
    e->stream.grant += messages;
    if (e->stream.grant - e->stream.grant_said >= TELL_GRANT)
        e->stream.ack_now = true;
}

void tb_endpoint_pump(struct tb_endpoint *e, int64_t now)
{
    e->now = now;
    push_serves(e);
    push_messages(e);
    push_works(e);
    tb_bulk_pump(&e->bulk, now);
    tb_stream_pump(&e->stream, now);
}

bool tb_endpoint_gathers(const struct tb_endpoint *e)
{
    return !e->works && !e->messages && !e->serves && !e->bulk.active && tb_stream_gathers(&e->stream);
}

int64_t tb_endpoint_due(const struct tb_endpoint *e)
{
    int64_t a = tb_stream_due(&e->stream), b = tb_bulk_due(&e->bulk);
    return a < b ? a : b;
}

/* --- beginning and end --- */

static bool emit(void *ctx, uint32_t slot, void *frame, uint32_t bytes)
{
    struct tb_endpoint *e = ctx;
    return e->env.emit(e->env.ctx, slot, frame, bytes);
}

static void op_complete(void *ctx, weft_op *op, int status)
{
    complete(ctx, op, status);
}

static bool lane_receive(void *ctx, uint32_t lane, uint64_t offset)
{
    struct tb_endpoint *e = ctx;
    return e->env.lane_receive(e->env.ctx, lane, offset);
}

static bool fetch(void *ctx, uint32_t transfer, uint16_t generation, uint64_t to, uint64_t from, uint32_t bytes)
{
    struct tb_endpoint *e = ctx;
    uint32_t ask = e->free_ask;
    if (!say_get(e, e->pool + to, from, bytes, NULL, NULL))
        return false;
    e->asks[ask].bulk = true;
    e->asks[ask].transfer = (uint16_t)transfer;
    e->asks[ask].generation = generation;
    return true;
}

static bool lane_send(void *ctx, uint32_t lane, uint64_t offset)
{
    struct tb_endpoint *e = ctx;
    return e->env.lane_send(e->env.ctx, lane, offset);
}

void tb_endpoint_init(struct tb_endpoint *e, const struct tb_endpoint_env *env, const struct tb_endpoint_config *config)
{
    *e = (struct tb_endpoint){.env = *env, .pool = config->pool, .pool_bytes = config->pool_bytes, .first_byte = config->first_byte};
    e->works_end = &e->works;
    e->messages_end = &e->messages;
    e->serves_end = &e->serves;
    for (uint32_t i = 0; i < TB_ASKS; i++)
        e->asks[i].next_free = (uint16_t)(i + 1);
    tb_stream_init(&e->stream, &(struct tb_stream_env){.ctx = e, .emit = emit, .records = on_records, .complete = op_complete},
                   config->here, config->node, config->session, config->frames);
    e->stream.grant = e->stream.granted = e->stream.grant_said = TB_MESSAGES;
    tb_bulk_init(&e->bulk, &e->stream,
                 &(struct tb_bulk_env){.ctx = e, .receive = lane_receive, .send = lane_send, .fetch = fetch,
                                       .came = transfer_came, .done = transfer_done, .again = transfer_again},
                 config->pool, config->pool_bytes, config->first_byte, config->segment, config->check);
}

int tb_endpoint_add_lane(struct tb_endpoint *e, uint32_t message_bytes, uint32_t depth)
{
    return tb_bulk_add_lane(&e->bulk, message_bytes, depth);
}

void tb_endpoint_lane_down(struct tb_endpoint *e, uint32_t lane)
{
    tb_bulk_lane_down(&e->bulk, lane);
}

void tb_endpoint_lane_up(struct tb_endpoint *e, uint32_t lane, uint16_t generation)
{
    tb_bulk_lane_up(&e->bulk, lane, generation);
}

static void drop(struct tb_endpoint *e, struct tb_work **first, struct tb_work ***end, int status)
{
    while (*first) {
        struct tb_work *k = unlink_first(e, first, end);
        complete(e, k->op, status);
        free_work(e, k);
    }
}

/* Does a work touch memory that is not its own? Then it goes with its op. */
static bool borrows(const struct tb_work *k)
{
    return (k->kind == WORK_PUT && k->len && k->local != k->body) || k->kind == WORK_GET || (k->kind == WORK_ATOMIC && (k->op || k->old));
}

void tb_endpoint_fail(struct tb_endpoint *e, int status)
{
    for (uint32_t i = 0; i < TB_ASKS; i++) {
        struct tb_ask *ask = &e->asks[i], was = *ask;
        if (!was.used)
            continue;
        ask->op = NULL; /* the answer will find nobody */
        ask->work = NULL;
        ask->old = NULL;
        ask->to = NULL;
        if (was.work)
            piece_done(e, was.work, status);
        else
            complete(e, was.op, status);
    }
    for (void *cookie; (cookie = tb_bulk_give_up(&e->bulk));) {
        e->tracked--;
        piece_done(e, cookie, status);
    }
    struct tb_work *works = e->works;
    for (e->works = NULL, e->works_end = &e->works; works;) {
        struct tb_work *k = works;
        works = k->next;
        account(e, &e->works_end, -(sizeof *k + k->bytes));
        weft_op *op = k->op;
        k->op = NULL;
        if (borrows(k))
            free_work(e, k);
        else
            append(e, &e->works_end, k);
        complete(e, op, status);
    }
    for (struct tb_work *k = e->messages; k; k = k->next) {
        complete(e, k->op, status);
        k->op = NULL;
    }
    tb_stream_fail(&e->stream, status);
}

void tb_endpoint_end(struct tb_endpoint *e, int status)
{
    /* Pieces first: a work that has some and is in a list stays there, and ends with the list. */
    for (uint32_t i = 0; i < TB_ASKS; i++) {
        struct tb_ask was = e->asks[i];
        if (!was.used)
            continue;
        free_ask(e, &e->asks[i]);
        if (was.work)
            piece_done(e, was.work, status);
        else
            complete(e, was.op, status);
    }
    for (uint32_t i = 0; i < TB_TRANSFERS; i++) {
        void *put = e->bulk.out[i].used ? e->bulk.out[i].cookie : NULL;
        void *get = e->bulk.in[i].used && e->bulk.in[i].own ? e->bulk.in[i].cookie : NULL;
        if (put)
            piece_done(e, put, status);
        if (get)
            piece_done(e, get, status);
    }
    tb_bulk_end(&e->bulk);
    drop(e, &e->works, &e->works_end, status);
    drop(e, &e->messages, &e->messages_end, status);
    drop(e, &e->serves, &e->serves_end, status);
    e->serve_count = 0;
    e->tracked = 0;
    tb_stream_end(&e->stream, status);
    e->stream.first = e->stream.next;
    e->stream.fill = 0;
}
