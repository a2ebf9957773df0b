/* SPDX-License-Identifier: MIT
 *
 * The operations of an endpoint. While there is room, an operation is written as a record at once. Otherwise it waits, in order, in a list
 * of works, the backlog.
 */
#include "fabric/records/endpoint_private.h"
#include "fabric/atomic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COPY_BYTES 64u /* puts up to this size are copied */

/* --- lists --- */

struct tb_work *tb_work_new(enum tb_work_kind kind, weft_op *op, uint32_t bytes)
{
    struct tb_work *k = malloc(sizeof *k + bytes);
    if (k)
        *k = (struct tb_work){.kind = kind, .op = op, .bytes = bytes};
    return k;
}

/* Makes a queued operation (a work) of this node. Only works of the kind SERVE belong to operations of the peer. */
static struct tb_work *new_op(struct tb_endpoint *e, enum tb_work_kind kind, weft_op *op, uint32_t bytes)
{
    struct tb_work *k = tb_work_new(kind, op, bytes);
    if (k) {
        k->counted = true;
        k->turn = e->turn & 1;
        e->under_way[k->turn]++;
    }
    return k;
}

void tb_work_free(struct tb_endpoint *e, struct tb_work *k)
{
    if (k->counted)
        e->under_way[k->turn]--;
    free(k);
}

void tb_work_account(struct tb_endpoint *e, struct tb_work **const *end, uint64_t bytes)
{
    uint64_t *sum = end == &e->messages_end ? &e->message_bytes : &e->backlog_bytes;
    __atomic_store_n(sum, *sum + bytes, __ATOMIC_RELAXED);
}

/* Whether later messages must wait behind this queued operation: it is a fence or a message, and its list is `works`. */
static bool work_orders(struct tb_endpoint *e, struct tb_work **const *end, const struct tb_work *k)
{
    return end == &e->works_end && (k->kind == WORK_FENCE || k->kind == WORK_MESSAGE);
}

void tb_work_append(struct tb_endpoint *e, struct tb_work ***end, struct tb_work *k)
{
    e->ordered += work_orders(e, end, k);
    k->next = NULL;
    k->linked = true;
    **end = k;
    *end = &k->next;
    tb_work_account(e, end, sizeof *k + k->bytes);
}

struct tb_work *tb_work_unlink_first(struct tb_endpoint *e, struct tb_work **first, struct tb_work ***end)
{
    struct tb_work *k = *first;
    e->ordered -= work_orders(e, end, k);
    *first = k->next;
    if (!*first)
        *end = first;
    k->linked = false;
    tb_work_account(e, end, -(sizeof *k + k->bytes));
    return k;
}

/* --- records going out --- */

/* Writes a record with as many bytes as fit, and returns their number; 0: no room. Skips an open frame with room for less than 256 bytes,
 * to avoid tiny records. */
uint32_t tb_endpoint_say_bytes(struct tb_endpoint *e, enum tb_record_kind kind, uint64_t second, const uint8_t *src, uint64_t len)
{
    uint32_t fits = tb_stream_fits(&e->stream);
    if (fits < TB_PUT_HEAD + (len < 256 ? len : 256)) /* use a new frame, if there is room for one */
        fits = tb_stream_room(&e->stream, TB_PAYLOAD_BYTES) ? TB_PAYLOAD_BYTES : 0;
    if (fits == 0)
        return 0;
    uint32_t n = len < fits - TB_PUT_HEAD ? (uint32_t)len : fits - TB_PUT_HEAD;
    uint8_t *at = tb_stream_room(&e->stream, TB_PUT_HEAD + n);
    if (!at)
        return 0;
    struct tb_record r = {.kind = (uint8_t)kind, .length = (uint16_t)(TB_PUT_HEAD + n)};
    memcpy(at, &r, sizeof r);
    memcpy(at + sizeof r, &second, sizeof second);
    fab_copy_little(at + TB_PUT_HEAD, src, n); /* other nodes may be writing to the source */
    tb_stream_commit(&e->stream, TB_PUT_HEAD + n);
    if (kind == TB_PUT) /* not for TB_DATA, the answer to a get of the peer, which counts these bytes itself */
        e->counts.sent_bytes += n;
    return n;
}

static bool say_message(struct tb_endpoint *e, uint32_t id, const void *header, uint32_t header_len, const void *payload,
                        uint32_t payload_len)
{
    uint32_t bytes = TB_MESSAGE_HEAD + tb_padded(header_len) + payload_len;
    if (e->messages_sent == e->stream.granted) {
        e->stream.credit = e->stream.credit == TB_CREDIT_OK ? TB_CREDIT_BLOCKED : e->stream.credit;
        return false;
    }
    uint8_t *at = tb_stream_room(&e->stream, bytes);
    if (!at)
        return false;
    struct tb_record r = {.kind = TB_MESSAGE, .detail = (uint16_t)id, .length = (uint16_t)bytes};
    uint32_t lengths[2] = {header_len, payload_len};
    memcpy(at, &r, sizeof r);
    memcpy(at + sizeof r, lengths, sizeof lengths);
    memset(at + TB_MESSAGE_HEAD, 0, tb_padded(header_len));
    if (header_len)
        memcpy(at + TB_MESSAGE_HEAD, header, header_len);
    if (payload_len)
        memcpy(at + TB_MESSAGE_HEAD + tb_padded(header_len), payload, payload_len);
    tb_stream_commit(&e->stream, bytes);
    e->counts.sent_bytes += (uint64_t)header_len + payload_len;
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
    e->free_ask = ask->next_free ? (uint16_t)(ask->next_free - 1) : (uint16_t)(e->free_ask + 1);
    *ask = (struct tb_ask){.used = true, .turn = work ? work->turn : e->turn & 1};
    e->tracked++;
    e->under_way[ask->turn]++;
    return ask;
}

void tb_endpoint_free_ask(struct tb_endpoint *e, struct tb_ask *ask)
{
    ask->used = false;
    ask->next_free = (uint16_t)(e->free_ask + 1);
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

bool tb_endpoint_say_get(struct tb_endpoint *e, uint8_t *to, uint64_t from, uint32_t len, weft_op *op, struct tb_work *work)
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

enum way { BY_RECORDS, BY_LANE, BY_MOVE };

static uint64_t operation_within(uint64_t n, uint64_t segment, uint64_t offset)
{
    uint64_t left = segment - (offset & (segment - 1));
    return n < left ? n : left;
}

/* Chooses in which way the next bytes of a put or get are transferred. Returns how many of them to transfer together in this way. BY_LANE:
 * *offset is the offset of `local` in the pool. */
static uint64_t operation_run(const struct tb_endpoint *e, const uint8_t *local, uint64_t remote, uint64_t len, enum way *way,
                              uint64_t *offset)
{
    uintptr_t at = (uintptr_t)local, base = (uintptr_t)e->pool;
    uint64_t least = tb_bulk_least(&e->bulk), segment = e->bulk.segment, n = len < TB_TRANSFER_MAX ? len : TB_TRANSFER_MAX;
    *way = BY_RECORDS;
    if (len >= e->move_least && (!e->env.movable || e->env.movable(e->env.ctx, local, len))) {
        *way = BY_MOVE;
        return operation_within(len < e->move_most ? len : e->move_most, e->move_segment, remote);
    }
    if (len < least || at < base || at - base > e->pool_bytes || len > e->pool_bytes - (at - base))
        return len;
    *offset = at - base;
    n = operation_within(operation_within(n, segment, *offset), segment, remote);
    *way = n >= least ? BY_LANE : BY_RECORDS;
    return n;
}

/* Queue the operation at the head of the list, because it began before all others in the list. So it waits for no fence of theirs. */
static void put_first(struct tb_endpoint *e, struct tb_work *k)
{
    k->next = e->works;
    k->linked = true;
    if (!e->works)
        e->works_end = &k->next;
    e->works = k;
    tb_work_account(e, &e->works_end, sizeof *k + k->bytes);
}

void tb_endpoint_piece_done(struct tb_endpoint *e, struct tb_work *k, int status)
{
    if (--k->pieces)
        return;
    bool again = k->restart && status == 0, unsaid = k->signal && !k->signalled && status == 0;
    if (again) {
        k->restart = k->signalled = k->records = false;
        k->begun = 0;
    }
    if (!k->linked && (again || unsaid))
        put_first(e, k);
    if (k->linked)
        return;
    if (k->op && k->records && status == 0)
        tb_stream_op(&e->stream, k->op);
    else
        tb_endpoint_complete(e, k->op, status);
    tb_work_free(e, k);
}

/* Whether a move may begin. Records are executed by the peer's processor, but moves are not. So a move after a fence waits until the
 * records before the fence have been executed. */
static bool operation_unfenced(struct tb_endpoint *e)
{
    e->fenced = e->fenced && !tb_stream_flushed(&e->stream, e->fenced_at);
    return !e->fenced;
}

/* Passes a fence. Everything before the fence has been executed, except perhaps records; moves wait for those records
 * (operation_unfenced()). */
static void operation_pass_fence(struct tb_endpoint *e)
{
    e->fenced = true;
    e->fenced_at = tb_stream_end_of_records(&e->stream);
}

static bool push_move(struct tb_endpoint *e, struct tb_work *k, bool get, uint64_t n)
{
    if (!operation_unfenced(e) || !e->env.move(e->env.ctx, get, n == k->len, k->local + k->begun, k->remote + k->begun, n, k))
        return false;
    *(get ? &e->counts.fetched_bytes : &e->counts.sent_bytes) += n;
    k->begun += n;
    k->pieces++;
    e->tracked++;
    return true;
}

/* Sends as much of a put as fits. Returns true if the whole put has begun. */
static bool push_put(struct tb_endpoint *e, struct tb_work *k)
{
    uint64_t offset;
    enum way way;
    while (k->begun < k->len) {
        uint64_t together = operation_run(e, k->local + k->begun, k->remote + k->begun, k->len - k->begun, &way, &offset);
        if (way == BY_MOVE && !push_move(e, k, false, together))
            return false;
        if (way == BY_MOVE)
            continue;
        if (way == BY_LANE) {
            bool all = together == k->len;
            if (!tb_bulk_put(&e->bulk, offset, k->remote + k->begun, together, k->word, k->add, all && k->signal, k))
                return false;
            k->signalled = all && k->signal;
            k->begun += together;
            k->pieces++;
            e->tracked++;
            continue;
        }
        uint32_t n = tb_endpoint_say_bytes(e, TB_PUT, k->remote + k->begun, k->local + k->begun, together);
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
        if (k->pieces) /* tb_endpoint_piece_done() sends the signal after the last piece */
            return true;
        if (!tb_stream_say(&e->stream, &m))
            return false;
        k->signalled = true;
    }
    return true;
}

static bool push_get(struct tb_endpoint *e, struct tb_work *k)
{
    uint64_t offset;
    enum way way;
    while (k->begun < k->len) {
        uint64_t together = operation_run(e, k->local + k->begun, k->remote + k->begun, k->len - k->begun, &way, &offset);
        if (way == BY_MOVE && !push_move(e, k, true, together))
            return false;
        if (way == BY_MOVE)
            continue;
        if (way == BY_LANE) {
            if (!tb_bulk_get(&e->bulk, offset, k->remote + k->begun, together, k))
                return false;
            e->tracked++;
            k->pieces++;
            k->begun += together;
            continue;
        }
        uint32_t n = together < TB_ASK_BYTES ? (uint32_t)together : TB_ASK_BYTES;
        if (!tb_endpoint_say_get(e, k->local + k->begun, k->remote + k->begun, n, NULL, k))
            return false;
        k->pieces++;
        k->begun += n;
        if (k->len >= TB_FRAME_BYTES)
            e->counts.staged_gets += n;
    }
    return true;
}

/* Removes the first queued operation, which has begun completely. The operation ends with its last piece, or, if it has no pieces, when its
 * last record is acknowledged. */
static void operation_begun(struct tb_endpoint *e)
{
    struct tb_work *k = tb_work_unlink_first(e, &e->works, &e->works_end);
    if (k->pieces)
        return;
    if (k->op)
        tb_stream_op(&e->stream, k->op);
    tb_work_free(e, k);
}

void tb_endpoint_push_messages(struct tb_endpoint *e)
{
    while (e->messages) {
        struct tb_work *k = e->messages;
        if (!say_message(e, k->what, k->body, k->header_len, k->body + tb_padded(k->header_len), k->payload_len))
            return;
        tb_work_unlink_first(e, &e->messages, &e->messages_end);
        tb_endpoint_complete(e, k->op, 0);
        tb_work_free(e, k);
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
            operation_begun(e);
            break;
        case WORK_GET:
            if (!push_get(e, k))
                return;
            operation_begun(e);
            break;
        case WORK_ATOMIC:
            if (!say_atomic(e, (enum fab_atomic)k->what, k->remote, k->a, k->b, k->answer, k->old, k->op, k))
                return;
            tb_work_free(e, tb_work_unlink_first(e, &e->works, &e->works_end));
            break;
        case WORK_FENCE:
            if (e->tracked || e->messages)
                return;
            operation_pass_fence(e);
            tb_work_free(e, tb_work_unlink_first(e, &e->works, &e->works_end));
            break;
        default: /* a message that waited behind other operations moves to the list of messages */
            tb_work_unlink_first(e, &e->works, &e->works_end);
            tb_work_append(e, &e->messages_end, k);
            tb_endpoint_push_messages(e);
        }
    }
}

void tb_endpoint_push_works(struct tb_endpoint *e)
{
    push_works(e);
    if (e->env.post)
        e->env.post(e->env.ctx);
}

/* --- operations --- */

static int operation_begin(struct tb_endpoint *e, struct tb_work *k)
{
    tb_work_append(e, &e->works_end, k);
    tb_endpoint_push_works(e);
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
    if (!e->works && len && len <= TB_PAYLOAD_BYTES && tb_stream_fits(&e->stream) >= TB_PUT_HEAD + tb_padded((uint32_t)len) + sizeof m) {
        m.offset = word;
        m.a = add;
        tb_endpoint_say_bytes(e, TB_PUT, to, src, len);
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
    return operation_begin(e, k);
}

int tb_endpoint_put(struct tb_endpoint *e, uint64_t to, const void *src, uint64_t len, weft_op *op)
{
    if (len == 0) {
        tb_endpoint_complete(e, op, 0);
        return 0;
    }
    if (!e->works && len <= TB_PAYLOAD_BYTES - TB_PUT_HEAD && tb_stream_fits(&e->stream) >= TB_PUT_HEAD + len) {
        tb_endpoint_say_bytes(e, TB_PUT, to, src, len);
        if (op)
            tb_stream_op(&e->stream, op);
        return 0;
    }
    struct tb_work *k = new_put(e, to, src, len, op);
    return k ? operation_begin(e, k) : -ENOMEM;
}

int tb_endpoint_get(struct tb_endpoint *e, void *dst, uint64_t from, uint64_t len, weft_op *op)
{
    if (len == 0) {
        tb_endpoint_complete(e, op, 0);
        return 0;
    }
    if (!e->works && len <= TB_ASK_BYTES && len < tb_bulk_least(&e->bulk) && len < e->move_least &&
        tb_endpoint_say_get(e, dst, from, (uint32_t)len, op, NULL))
        return 0;
    struct tb_work *k = new_op(e, WORK_GET, op, 0);
    if (!k)
        return -ENOMEM;
    k->local = dst;
    k->remote = from;
    k->len = len;
    return operation_begin(e, k);
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
    return operation_begin(e, k);
}

int tb_endpoint_message(struct tb_endpoint *e, uint32_t id, const void *header, uint32_t header_len, const void *payload,
                        uint32_t payload_len, weft_op *op)
{
    if (!e->ordered && !e->messages && say_message(e, id, header, header_len, payload, payload_len)) {
        tb_endpoint_complete(e, op, 0);
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
    if (e->ordered) /* a fence is waiting; without one, a message need not wait behind puts and gets */
        tb_work_append(e, &e->works_end, k);
    else
        tb_work_append(e, &e->messages_end, k);
    return 0;
}

int tb_endpoint_fence(struct tb_endpoint *e)
{
    if (!e->works && !e->messages && !e->tracked) {
        operation_pass_fence(e);
        return 0;
    }
    struct tb_work *k = new_op(e, WORK_FENCE, NULL, 0);
    if (!k)
        return -ENOMEM;
    tb_work_append(e, &e->works_end, k);
    return 0;
}

/* Whether all operations of the turn `turn` and of earlier turns have ended, with their requests to the peer. If `turn` is the current
 * turn, this function first begins the next turn, but only when all turns before `turn` are over. So operations of at most two turns are
 * under way, and two counters are enough. */
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
