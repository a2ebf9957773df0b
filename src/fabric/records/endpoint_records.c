/* SPDX-License-Identifier: MIT
 *
 * Executes the records that an endpoint receives: the peer's operations, and the answers to this node's own. All records are untrusted.
 */
#include "fabric/records/endpoint_private.h"
#include "fabric/atomic.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int record_nonsense(struct tb_endpoint *e, const char *what)
{
    if (!e->broken[0])
        snprintf(e->broken, sizeof e->broken, "it sent %s", what);
    return -EPROTO;
}

/* --- records that arrive --- */

static bool serve_data(struct tb_endpoint *e, struct tb_work *k)
{
    while (k->begun < k->len) {
        uint32_t n = tb_endpoint_say_bytes(e, TB_DATA, k->token, e->pool + k->remote + k->begun, k->len - k->begun);
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

void tb_endpoint_push_serves(struct tb_endpoint *e)
{
    while (e->serves) {
        struct tb_work *k = e->serves;
        if (k->kind == SERVE_DATA ? !serve_data(e, k) : !serve_answer(e, k->token, k->a))
            return;
        free(tb_work_unlink_first(e, &e->serves, &e->serves_end));
        e->serve_count--;
    }
}

static int record_serve_later(struct tb_endpoint *e, const struct tb_work *what)
{
    if (e->serve_count == TB_ASKS)
        return record_nonsense(e, "more requests than it may have open");
    struct tb_work *k = tb_work_new(what->kind, NULL, 0);
    if (!k)
        return record_nonsense(e, "requests for which there is no memory");
    *k = *what;
    e->serve_count++;
    tb_work_append(e, &e->serves_end, k);
    return 0;
}

static bool record_in_pool(const struct tb_endpoint *e, uint64_t offset, uint64_t bytes)
{
    return offset >= e->first_byte && offset <= e->pool_bytes && bytes <= e->pool_bytes - offset;
}

static uint64_t *record_word_at(const struct tb_endpoint *e, uint64_t offset)
{
    return (offset & 7) == 0 && record_in_pool(e, offset, 8) ? (uint64_t *)(void *)(e->pool + offset) : NULL;
}

static int record_put(struct tb_endpoint *e, const uint8_t *at, uint32_t bytes)
{
    uint64_t offset, word;
    if (bytes < TB_PUT_HEAD)
        return record_nonsense(e, "a put without an address");
    memcpy(&offset, at + sizeof(struct tb_record), sizeof offset);
    bytes -= TB_PUT_HEAD;
    if (!record_in_pool(e, offset, bytes))
        return record_nonsense(e, "a put outside the pool");
    if (bytes == 8 && (offset & 7) == 0) { /* an aligned word is written in one store: flags and system words rely on this */
        memcpy(&word, at + TB_PUT_HEAD, sizeof word);
        __atomic_store_n((uint64_t *)(void *)(e->pool + offset), word, __ATOMIC_RELEASE);
    } else {
        fab_copy_little(e->pool + offset, at + TB_PUT_HEAD, bytes);
    }
    return 0;
}

static int record_get(struct tb_endpoint *e, const struct tb_words *m)
{
    if (m->a == 0 || m->a > TB_ASK_BYTES || !record_in_pool(e, m->offset, m->a) || m->token >= TB_ASKS)
        return record_nonsense(e, "an invalid get");
    struct tb_work k = {.kind = SERVE_DATA, .remote = m->offset, .len = m->a, .token = m->token};
    if (!e->serves && serve_data(e, &k))
        return 0;
    return record_serve_later(e, &k);
}

static struct tb_ask *record_asked(struct tb_endpoint *e, uint64_t token, bool get)
{
    return token < TB_ASKS && e->asks[token].used && e->asks[token].get == get ? &e->asks[token] : NULL;
}

static int record_data(struct tb_endpoint *e, const uint8_t *at, uint32_t bytes)
{
    uint64_t token;
    if (bytes <= TB_DATA_HEAD)
        return record_nonsense(e, "an answer without data");
    memcpy(&token, at + sizeof(struct tb_record), sizeof token);
    bytes -= TB_DATA_HEAD;
    struct tb_ask *ask = record_asked(e, token, true);
    if (!ask || bytes > ask->left)
        return record_nonsense(e, "data that nobody asked for");
    if (ask->to) { /* NULL: the get was given up */
        memcpy(ask->to, at + TB_DATA_HEAD, bytes);
        ask->to += bytes;
    }
    ask->left -= bytes;
    if (!ask->bulk)
        e->counts.fetched_bytes += bytes;
    if (ask->left == 0) {
        struct tb_ask was = *ask;
        tb_endpoint_free_ask(e, ask);
        if (was.bulk)
            tb_bulk_fetched(&e->bulk, was.transfer, was.generation);
        else if (was.work)
            tb_endpoint_piece_done(e, was.work, 0);
        else
            tb_endpoint_complete(e, was.op, 0);
    }
    return 0;
}

static int record_answer(struct tb_endpoint *e, const struct tb_words *m)
{
    struct tb_ask *ask = record_asked(e, m->token, false);
    if (!ask)
        return record_nonsense(e, "an answer that nobody asked for");
    struct tb_ask was = *ask;
    tb_endpoint_free_ask(e, ask);
    if (was.old)
        *was.old = m->a;
    tb_endpoint_complete(e, was.op, 0);
    return 0;
}

static int record_atomic(struct tb_endpoint *e, const struct tb_words *m)
{
    uint64_t *word = record_word_at(e, m->offset), before;
    if (!word || m->token > TB_ASKS)
        return record_nonsense(e, "an atomic outside the pool");
    if (!fab_atomic_do(m->r.detail, word, m->a, m->b, &before))
        return record_nonsense(e, "an atomic of an unknown kind");
    if (m->token == TB_ASKS)
        return 0;
    struct tb_work k = {.kind = SERVE_ANSWER, .token = m->token, .a = before};
    if (!e->serves && serve_answer(e, m->token, before))
        return 0;
    return record_serve_later(e, &k);
}

int tb_endpoint_signal(struct tb_endpoint *e, uint64_t offset, uint64_t add)
{
    uint64_t *word = record_word_at(e, offset);
    if (!word)
        return record_nonsense(e, "a signal outside the pool");
    __atomic_fetch_add(word, add, __ATOMIC_SEQ_CST); /* release: bytes of earlier puts are visible before the signal */
    return 0;
}

static int record_message(struct tb_endpoint *e, const uint8_t *at, uint32_t bytes)
{
    struct tb_record r;
    uint32_t lengths[2];
    if (bytes < TB_MESSAGE_HEAD)
        return record_nonsense(e, "a message without its lengths");
    memcpy(&r, at, sizeof r);
    memcpy(lengths, at + sizeof r, sizeof lengths);
    if (lengths[0] > WEFT_HEADER_MAX || lengths[1] > WEFT_PAYLOAD_MAX || TB_MESSAGE_HEAD + tb_padded(lengths[0]) + lengths[1] != bytes ||
        e->messages_received == e->stream.grant)
        return record_nonsense(e, "an invalid message");
    e->messages_received++;
    if (!e->env.message(e->env.ctx, r.detail, at + TB_MESSAGE_HEAD, lengths[0], at + TB_MESSAGE_HEAD + tb_padded(lengths[0]), lengths[1]))
        return record_nonsense(e, "a message, and this node has no memory for it");
    return 0;
}

static int record_words(struct tb_endpoint *e, const uint8_t *at, uint32_t bytes)
{
    struct tb_words m;
    if (bytes != sizeof m)
        return record_nonsense(e, "a frame with a part of a wrong length");
    memcpy(&m, at, sizeof m);
    switch (m.r.kind) {
    case TB_GET: return record_get(e, &m);
    case TB_ATOMIC: return record_atomic(e, &m);
    case TB_ANSWER: return record_answer(e, &m);
    case TB_SIGNAL: return tb_endpoint_signal(e, m.offset, m.a);
    default:
        if (m.r.kind < TB_OPEN || m.r.kind > TB_LANE)
            return record_nonsense(e, "a frame with a part of an unknown kind");
        return tb_bulk_record(&e->bulk, &m, e->now) ? record_nonsense(e, "a frame with an invalid part about a transfer") : 0;
    }
}

int tb_endpoint_records(void *ctx, const uint8_t *payload, uint32_t bytes)
{
    struct tb_endpoint *e = ctx;
    uint32_t at = 0;
    int rc = 0;
    while (rc == 0 && at < bytes) {
        struct tb_record r;
        if (bytes - at < sizeof r)
            return record_nonsense(e, "a frame with an incomplete part");
        memcpy(&r, payload + at, sizeof r);
        if (r.length < sizeof r || r.length > bytes - at)
            return record_nonsense(e, "a frame with a part longer than the frame");
        switch (r.kind) {
        case TB_PUT: rc = record_put(e, payload + at, r.length); break;
        case TB_DATA: rc = record_data(e, payload + at, r.length); break;
        case TB_MESSAGE: rc = record_message(e, payload + at, r.length); break;
        default: rc = record_words(e, payload + at, r.length);
        }
        at += tb_padded(r.length);
    }
    return rc;
}
