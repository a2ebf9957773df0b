/* SPDX-License-Identifier: MIT
 *
 * What the files of an endpoint share. Each calls only those after it: endpoint.c (creation, end, events), endpoint_records.c (executes
 * the peer's records), endpoint_operations.c (this node's own operations).
 */
#ifndef WEFT_RECORDS_ENDPOINT_PRIVATE_H
#define WEFT_RECORDS_ENDPOINT_PRIVATE_H

#include "fabric/records/endpoint.h"

#define TB_PUT_HEAD     16u /* struct tb_record, offset */
#define TB_DATA_HEAD    16u /* struct tb_record, token */
#define TB_MESSAGE_HEAD 16u /* struct tb_record, lengths */

enum tb_work_kind { WORK_PUT, WORK_GET, WORK_ATOMIC, WORK_MESSAGE, WORK_FENCE, SERVE_DATA, SERVE_ANSWER };

/* An operation that waits in a list, or is sent in pieces. */
struct tb_work {
    struct tb_work *next;
    enum tb_work_kind kind;
    weft_op *op;
    uint8_t *local; /* PUT, GET */
    uint64_t remote, len, begun;
    uint32_t pieces;        /* requests to the peer or transfers that are under way for this operation */
    bool signal, signalled; /* signal: add to `word` when the bytes have arrived */
    bool records;           /* a part of a put was sent in records */
    bool linked;            /* the operation is in one of the lists */
    bool counted;           /* the operation is counted in e->under_way[turn] */
    uint8_t turn;
    bool restart; /* after the last piece, repeat the whole operation in another way */
    uint64_t word, add;
    uint64_t *old;        /* ATOMIC */
    uint32_t what, token; /* ATOMIC: kind; MESSAGE: handler; SERVE: token */
    bool answer;
    uint16_t header_len, payload_len;
    uint64_t a, b;
    uint32_t bytes; /* size of `body` */
    _Alignas(8) uint8_t body[];
};

static inline void tb_endpoint_complete(struct tb_endpoint *e, weft_op *op, int status)
{
    if (op)
        e->env.complete(e->env.ctx, op, status);
}

/* endpoint_operations.c. `end` is the end pointer of one of an endpoint's three lists. */
struct tb_work *tb_work_new(enum tb_work_kind kind, weft_op *op, uint32_t bytes); /* bytes: size of the body. NULL: out of memory */
void tb_work_free(struct tb_endpoint *e, struct tb_work *k);
void tb_work_account(struct tb_endpoint *e, struct tb_work **const *end, uint64_t bytes);
void tb_work_append(struct tb_endpoint *e, struct tb_work ***end, struct tb_work *k);
struct tb_work *tb_work_unlink_first(struct tb_endpoint *e, struct tb_work **first, struct tb_work ***end);
/* Writes a record of `kind` with as many of the bytes at `src` as fit into the open frame. Returns how many; 0: no room. `second`: the
   record's second word. */
uint32_t tb_endpoint_say_bytes(struct tb_endpoint *e, enum tb_record_kind kind, uint64_t second, const uint8_t *src, uint64_t len);
/* Requests at most TB_ASK_BYTES. Returns false if there is no room now. */
bool tb_endpoint_say_get(struct tb_endpoint *e, uint8_t *to, uint64_t from, uint32_t len, weft_op *op, struct tb_work *work);
void tb_endpoint_free_ask(struct tb_endpoint *e, struct tb_ask *ask);
/* A piece of this operation (a transfer or a request to the peer) has ended. If it was the last piece, and no part of the operation still
 * has to begin, the operation ends. */
void tb_endpoint_piece_done(struct tb_endpoint *e, struct tb_work *k, int status);
void tb_endpoint_push_messages(struct tb_endpoint *e); /* sends waiting messages while there is room and credit */
void tb_endpoint_push_works(struct tb_endpoint *e);

/* endpoint_records.c */
int tb_endpoint_records(void *ctx, const uint8_t *payload, uint32_t bytes);   /* the function `records` of struct tb_stream_env */
int tb_endpoint_signal(struct tb_endpoint *e, uint64_t offset, uint64_t add); /* adds to a word of the pool */
void tb_endpoint_push_serves(struct tb_endpoint *e);                          /* sends waiting answers while there is room */

#endif
