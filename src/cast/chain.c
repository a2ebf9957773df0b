/* SPDX-License-Identifier: MIT
 *
 * Blocks from a node to the next one of the chain. Every node has a ring of CAST_SLOTS blocks. Block K of a round is in slot K % CAST_SLOTS
 * of every node, so it is put from slot to slot and never copied. For each round a node has two words: `filled` grows with each block that
 * has arrived, `credits` with each slot that the next node has given back. Words of an old round are not used again.
 */
#include "cast/cast.h"

uint64_t cast_word_at(struct cast *c, weft_gaddr word)
{
    /* acquire: what a block has is seen after its count; the other side is the fabric's signal */
    return atomic_load_explicit((_Atomic uint64_t *)weft_ptr(c->w, word, sizeof(uint64_t)), memory_order_acquire);
}

static weft_gaddr slot_at(const struct cast *c, uint32_t node, uint64_t number)
{
    return c->rings[node] + number % CAST_SLOTS * CAST_BLOCK;
}

struct cast_block *cast_slot(struct cast *c, uint64_t number)
{
    return weft_ptr(c->w, slot_at(c, c->rank, number), CAST_BLOCK);
}

int cast_put_block(struct cast *c, uint32_t to, uint64_t round, uint64_t number, weft_op *op)
{
    const struct cast_block *b = cast_slot(c, number);
    const uint32_t bytes = *(const volatile uint32_t *)&b->bytes; /* read once: another node may write here */
    if (bytes > CAST_BLOCK - sizeof *b)
        return -EPROTO;
    return weft_put_signal(c->w, slot_at(c, to, number), b, sizeof *b + bytes, c->filled[to] + 8 * round, 1, op);
}

void cast_give_credit(struct cast *c, uint32_t to, uint64_t round)
{
    weft_put_signal(c->w, WEFT_NULL, NULL, 0, c->credits[to] + 8 * round, 1, NULL); /* fails only when that node is gone */
}
