/* SPDX-License-Identifier: MIT
 *
 * Sends blocks to the next node of the chain. Every node has a ring of CAST_SLOTS blocks. Block K of a round is in slot K % CAST_SLOTS of
 * every node, so a block is put from slot to slot and never copied. For each round, a node has two kinds of words. A word `filled` for each
 * slot counts the blocks that have arrived in the slot; blocks may arrive in any order, so one word for all slots is not enough. One word
 * `credits` counts the slots that the next node has freed. Words of an old round are not reused.
 *
 * A thread sends the blocks while the calling thread reads or writes files, so disk and link work at the same time. The ring is the queue
 * between the two threads.
 */
#include <string.h>

#include "cast/cast.h"

#define LOOK_NS (20 * WEFT_MS) /* how often the thread checks whether the next node has died */

uint64_t cast_word_at(struct cast *c, weft_gaddr word)
{
    /* acquire: the bytes of a block are read after its count. Pairs with the release in the fabric's addition to the word */
    return atomic_load_explicit((_Atomic uint64_t *)weft_ptr(c->w, word, sizeof(uint64_t)), memory_order_acquire);
}

static weft_gaddr filled_word(const struct cast *c, uint32_t node, uint64_t round, uint64_t number)
{
    return c->filled[node] + 8 * (round * CAST_SLOTS + number % CAST_SLOTS);
}

static weft_gaddr credit_word(const struct cast *c, uint64_t round)
{
    return c->credits[c->rank] + 8 * round;
}

static weft_gaddr slot_at(const struct cast *c, uint32_t node, uint64_t number)
{
    return c->rings[node] + number % CAST_SLOTS * CAST_BLOCK;
}

struct cast_block *cast_slot(struct cast *c, uint64_t number)
{
    return weft_ptr(c->w, slot_at(c, c->rank, number), CAST_BLOCK);
}

bool cast_arrived(struct cast *c, uint64_t round, uint64_t number)
{
    return cast_word_at(c, filled_word(c, c->rank, round, number)) > number / CAST_SLOTS;
}

void cast_wait_block(struct cast *c, uint64_t round, uint64_t number, int64_t ns)
{
    weft_wait_until(c->w, filled_word(c, c->rank, round, number), WEFT_GT, number / CAST_SLOTS, NULL, ns);
}

/* Add one to a word. Fails only if the word's node is gone, or there is no route to it (tb). */
static int add_one(struct cast *c, weft_gaddr word)
{
    return weft_put_signal(c->w, WEFT_NULL, NULL, 0, word, 1, NULL);
}

void cast_fill(struct cast *c, uint64_t round, uint64_t number)
{
    add_one(c, filled_word(c, c->rank, round, number));
}

void cast_give_credit(struct cast *c, uint32_t to, uint64_t round)
{
    if (add_one(c, c->credits[to] + 8 * round))
        c->lost = true;
}

/* --- the thread --- */

/* Start to send a block to the same slot of the next node. Returns what weft_put_signal() returns, or -EPROTO if this node's slot does not
 * have the block. */
static int put_block(struct cast_relay *r, uint64_t number, weft_op *op)
{
    struct cast *c = r->c;
    const struct cast_block *b = cast_slot(c, number);
    const uint32_t bytes = *(const volatile uint32_t *)&b->bytes; /* read once: another node might write here meanwhile */
    if (!cast_block_fits(b, r->round, number, CAST_BLOCK) || bytes > CAST_BLOCK - sizeof *b)
        return -EPROTO;
    return weft_put_signal(c->w, slot_at(c, r->to, number), b, sizeof *b + bytes, filled_word(c, r->to, r->round, number), 1, op);
}

static void *relay_thread(void *arg)
{
    struct cast_relay *r = arg;
    struct cast *c = r->c;
    while (!r->stop && cast_relay_has_next(r)) {
        uint64_t put = r->put;
        if (!cast_arrived(c, r->round, put)) {
            cast_wait_block(c, r->round, put, LOOK_NS);
            continue;
        }
        if (put >= cast_word_at(c, credit_word(c, r->round)) + CAST_SLOTS) {
            weft_wait_until(c->w, credit_word(c, r->round), WEFT_GT, put - CAST_SLOTS, NULL, LOOK_NS);
            continue;
        }
        /* -EPROTO if the next node's slot is not free: then `op` is still in use */
        int rc = put >= r->given + CAST_SLOTS ? -EPROTO : put_block(r, put, &r->op[put % CAST_SLOTS]);
        /* end the round, because the next node would wait for this block for ever. (If the next node is gone, the source notices that by
         * itself) */
        if (rc) {
            r->broken = true;
            break;
        }
        r->busy[put % CAST_SLOTS] = true;
        pthread_mutex_lock(&r->lock);
        r->put = put + 1;
        pthread_cond_signal(&r->moved);
        pthread_mutex_unlock(&r->lock);
    }
    return NULL;
}

int cast_relay_start(struct cast_relay *r, struct cast *c, uint32_t to, uint32_t round)
{
    *r = (struct cast_relay){.c = c, .to = to, .round = round};
    if (to == WEFT_MAX_NODES)
        return 0;
    pthread_mutex_init(&r->lock, NULL);
    base_cond_init(&r->moved);
    int rc = base_thread(&r->thread, relay_thread, r);
    r->running = rc == 0;
    return rc ? base_fail(rc, "cannot start the thread that sends data: %s" BASE_THREAD_HINT, base_strerror(rc)) : 0;
}

void cast_relay_stop(struct cast_relay *r)
{
    if (!r->running)
        return;
    r->running = false;
    r->stop = true;
    for (uint64_t i = 0; i < CAST_SLOTS; i++)
        cast_fill(r->c, r->round, i); /* wakes waiting threads of this node; later rounds do not use these words */
    add_one(r->c, credit_word(r->c, r->round));
    pthread_join(r->thread, NULL);
    for (uint64_t i = 0; i < CAST_SLOTS; i++) {
        while (r->busy[i] && weft_wait(r->c->w, &r->op[i], WEFT_SECOND) == -ETIMEDOUT)
            ;
        r->busy[i] = false;
    }
    pthread_cond_destroy(&r->moved);
    pthread_mutex_destroy(&r->lock);
}

bool cast_relay_has_next(const struct cast_relay *r)
{
    return r->to != WEFT_MAX_NODES && weft_alive(r->c->w, r->to);
}

bool cast_relay_done(struct cast_relay *r, uint64_t number)
{
    if (r->put <= number)
        return !cast_relay_has_next(r);
    const uint64_t i = number % CAST_SLOTS;
    int rc = r->busy[i] ? weft_test(r->c->w, &r->op[i]) : 0;
    if (rc == -EINPROGRESS)
        return false;
    r->busy[i] = false;
    r->broken = r->broken || rc;
    return true;
}

void cast_relay_test(struct cast_relay *r)
{
    for (uint64_t i = r->given, put = r->put; i < put; i++)
        cast_relay_done(r, i);
}

void cast_relay_wait(struct cast_relay *r, uint64_t number, int64_t ns)
{
    if (r->put > number) {
        if (r->busy[number % CAST_SLOTS])
            weft_wait(r->c->w, &r->op[number % CAST_SLOTS], ns);
        return;
    }
    pthread_mutex_lock(&r->lock);
    if (r->put <= number)
        base_cond_wait(&r->moved, &r->lock, base_deadline(ns));
    pthread_mutex_unlock(&r->lock);
}
