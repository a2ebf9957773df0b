/* SPDX-License-Identifier: MIT
 *
 * What the files of an endpoint share. Each calls only those after it: endpoint.c (its life and events), endpoint_records.c (what the
 * peer's records ask for), endpoint_operations.c (this node's own operations).
 */
#ifndef WEFT_TB_ENDPOINT_PRIVATE_H
#define WEFT_TB_ENDPOINT_PRIVATE_H

#include "fabric/tb/endpoint.h"

#define TB_PUT_HEAD     16u /* struct tb_record, offset */
#define TB_DATA_HEAD    16u /* struct tb_record, token */
#define TB_MESSAGE_HEAD 16u /* struct tb_record, lengths */

enum tb_work_kind { WORK_PUT, WORK_GET, WORK_ATOMIC, WORK_MESSAGE, WORK_FENCE, SERVE_DATA, SERVE_ANSWER };

/* What did not go at once, or goes in pieces. */
struct tb_work {
    struct tb_work *next;
    enum tb_work_kind kind;
    weft_op *op;
    uint8_t *local; /* PUT, GET */
    uint64_t remote, len, begun;
    uint32_t pieces;        /* asks or transfers under way */
    bool signal, signalled; /* add at `word` when the bytes are there */
    bool records;           /* some of a put went in records */
    bool linked;            /* still in a list */
    bool counted;           /* in e->under_way[turn] */
    uint8_t turn;
    bool restart; /* when its last piece has ended, from the beginning, another way */
    uint64_t word, add;
    uint64_t *old;        /* ATOMIC */
    uint32_t what, token; /* ATOMIC: kind; MESSAGE: handler; SERVE: token */
    bool answer;
    uint16_t header_len, payload_len;
    uint64_t a, b;
    uint32_t bytes; /* of body */
    _Alignas(8) uint8_t body[];
};

static inline void tb_endpoint_complete(struct tb_endpoint *e, weft_op *op, int status)
{
    if (op)
        e->env.complete(e->env.ctx, op, status);
}

/* endpoint_operations.c. Works are in one of an endpoint's three lists; `end` is where the next one is to be linked. */
struct tb_work *tb_work_new(enum tb_work_kind kind, weft_op *op, uint32_t bytes); /* bytes: of its body. NULL: no memory */
void tb_work_free(struct tb_endpoint *e, struct tb_work *k);
void tb_work_account(struct tb_endpoint *e, struct tb_work **const *end, uint64_t bytes); /* so many more are kept in that list */
void tb_work_append(struct tb_endpoint *e, struct tb_work ***end, struct tb_work *k);
struct tb_work *tb_work_unlink_first(struct tb_endpoint *e, struct tb_work **first, struct tb_work ***end);
/* A record of `kind` with as many of the bytes at `src` as go into the open frame: how many; 0: no room. `second`: its second word. */
uint32_t tb_endpoint_say_bytes(struct tb_endpoint *e, enum tb_record_kind kind, uint64_t second, const uint8_t *src, uint64_t len);
/* Ask for at most TB_ASK_BYTES. False: no room now. */
bool tb_endpoint_say_get(struct tb_endpoint *e, uint8_t *to, uint64_t from, uint32_t len, weft_op *op, struct tb_work *work);
void tb_endpoint_free_ask(struct tb_endpoint *e, struct tb_ask *ask);
/* A transfer or an ask of this work has ended: with the last of them, unless some have not begun, the work does. */
void tb_endpoint_piece_done(struct tb_endpoint *e, struct tb_work *k, int status);
void tb_endpoint_push_messages(struct tb_endpoint *e); /* what waits, as far as there is room and credit */
void tb_endpoint_push_works(struct tb_endpoint *e);

/* endpoint_records.c */
int tb_endpoint_records(void *ctx, const uint8_t *payload, uint32_t bytes);   /* of tb_stream_env */
int tb_endpoint_signal(struct tb_endpoint *e, uint64_t offset, uint64_t add); /* add to a word of the pool */
void tb_endpoint_push_serves(struct tb_endpoint *e);                          /* the answers that wait, as far as there is room */

#endif
