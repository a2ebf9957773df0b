/* SPDX-License-Identifier: MIT
 *
 * A target: in each round it receives blocks from the node before it in the chain, and writes the files that it needs. Meanwhile a thread
 * sends the blocks to the next node (chain.c) when that node has free slots. A slot is free when its block was both written to files and
 * sent to the next node.
 */
#include <stdlib.h>
#include <string.h>

#include "cast/cast.h"

#define LOOK_NS   (20 * WEFT_MS) /* how often to check whether another round has begun, or a node has died */
#define BEHIND_NS (2 * WEFT_MS)  /* how often to check for a block while the next node has not received earlier blocks */

struct target {
    struct cast *c;
    struct cast_disk disk;
    bool listed, compared, told_failure;
    /* This round. */
    uint32_t round, before, next; /* next: WEFT_MAX_NODES if there is no next node */
    bool broken, ended, send_list, verify;
    uint64_t taken, given; /* taken: number of blocks that were written to files; given: number of blocks whose slots were freed */
    struct cast_relay relay;
    struct cast_ahead ahead;
};

static bool to_end(const struct cast *c)
{
    return c->quit || c->stopped() || !weft_alive(c->w, c->config.head.source) || !weft_alive(c->w, 0);
}

static bool given_up(struct target *t)
{
    pthread_mutex_lock(&t->c->lock);
    bool other = t->c->wanted_round != t->round;
    pthread_mutex_unlock(&t->c->lock);
    return other || to_end(t->c);
}

static void tell_source(struct target *t, enum cast_kind kind, uint64_t a, uint64_t b, const void *payload, size_t bytes)
{
    cast_send(t->c, t->c->config.head.source, kind, t->round, a, b, payload, bytes);
}

/* Marks the round as broken, and tells the source once, which then begins another round. Also called after this target has handled the end
 * of the round: then the target may still have to send blocks to the next node, and that can fail. */
static void break_round(struct target *t)
{
    if (!t->broken)
        tell_source(t, CAST_BROKEN, 0, 0, NULL, 0);
    t->broken = true;
}

static void tell_failure(struct target *t)
{
    if (t->disk.failed && !t->told_failure)
        tell_source(t, CAST_FAILED, 0, 0, NULL, 0);
    t->told_failure = t->told_failure || t->disk.failed;
}

static void send_needs(struct target *t)
{
    struct cast_need some[WEFT_PAYLOAD_MAX / sizeof(struct cast_need)];
    const size_t most = sizeof some / sizeof some[0];
    size_t n = 0;
    bool dry = t->c->config.head.flags & CAST_DRY_RUN;
    for (uint32_t i = 0; i < t->c->list.count && t->compared && !t->disk.failed; i++) {
        const struct cast_file *f = &t->disk.file[i];
        char path[4096];
        if (f->state != CAST_WANTED && f->state != CAST_COMPARE)
            continue;
        some[n++] = (struct cast_need){i, 0, f->have, f->verified};
        if (dry)
            cast_say(t->c, false, "would get %s", cast_list_path(&t->c->list, i, path, sizeof path));
        if (n == most) {
            tell_source(t, CAST_NEED, 0, 0, some, sizeof some);
            n = 0;
        }
    }
    if (n)
        tell_source(t, CAST_NEED, 0, 0, some, n * sizeof *some);
    tell_failure(t);
    tell_source(t, CAST_READY, 1, 0, NULL, 0);
}

/* --- records --- */

static void end_list(struct target *t, const struct cast_record *r)
{
    if (t->disk.failed) {
        send_needs(t);
        return;
    }
    if (!t->listed && r->file != t->c->list.count) {
        break_round(t);
        return;
    }
    t->listed = true;
    if (!t->compared) {
        t->c->list.mode = (uint32_t)r->offset & 01777;
        cast_tell_state(t->c, CAST_COMPARING, true);
        cast_disk_compare(&t->disk);
        t->compared = !t->disk.failed;
    }
    send_needs(t);
}

static void end_round(struct target *t, const struct cast_record *r)
{
    bool dry = t->c->config.head.flags & CAST_DRY_RUN;
    cast_disk_settle(&t->disk);
    if (t->compared && (t->disk.wanted == 0 || dry))
        cast_finish(&t->disk, r->file != 0);
    tell_failure(t);
    t->ended = true;
    cast_tell_state(t->c, t->disk.failed ? CAST_GAVE_UP : CAST_WAITING, true);
    tell_source(t, CAST_READY, 2, dry || t->disk.failed ? 0 : t->disk.wanted, NULL, 0);
}

static void take_record(struct target *t, const struct cast_record *r, const uint8_t *payload)
{
    switch (r->type) {
    case CAST_ENTRY:
        if (!t->listed && !t->disk.failed && cast_list_take(&t->c->list, r, payload)) {
            t->disk.failed = true; /* the list cannot be used, and would fail in each later round, too */
            cast_say(t->c, true, "%s; nothing is written on this host", base_error());
        }
        break;
    case CAST_LIST_END: end_list(t, r); break;
    case CAST_SIZE:
        if (t->compared && (!t->c->config.head.follow || cast_list_resize(&t->c->list, r, payload)))
            break_round(t);
        break;
    case CAST_ROUND_END: end_round(t, r); break;
    default:
        if (t->compared)
            cast_disk_record(&t->disk, r, payload);
    }
}

static void take_block(struct target *t, uint64_t number)
{
    const struct cast_block *b = cast_slot(t->c, number);
    struct cast_record r;
    const uint8_t *payload;
    uint32_t at = 0;
    int rc = 0;
    if (t->broken)
        return;
    if (!cast_block_fits(b, t->round, number, CAST_BLOCK)) {
        break_round(t);
        return;
    }
    const uint32_t bytes = *(const volatile uint32_t *)&b->bytes; /* read once: another node might write here meanwhile */
    t->disk.verified = cast_ahead_is_right(&t->ahead, t->round, number);
    if (cast_arrived(t->c, t->round, number + 1))
        cast_ahead_ask(&t->ahead, t->round, number + 1);
    while (!t->broken && !t->ended &&
           (rc = cast_record_next((const uint8_t *)(b + 1), bytes <= CAST_BLOCK - sizeof *b ? bytes : 0, &at, &r, &payload)) == 1) {
        take_record(t, &r, payload);
        if (t->disk.again)
            break_round(t);
        t->disk.again = false;
        if (given_up(t))
            return;
    }
    if (rc < 0)
        break_round(t);
    tell_failure(t);
    cast_tell_state(t->c, t->disk.failed ? CAST_RELAYING : CAST_WRITING, false);
}

/* --- the chain --- */

/* Frees slots whose blocks are both written to files and sent to the next node. For each slot, gives a credit to the node before this one.
 */
static bool give_back(struct target *t)
{
    bool any = false;
    while (t->given < t->taken && cast_relay_done(&t->relay, t->given)) {
        t->relay.given = ++t->given;
        any = true;
        cast_give_credit(t->c, t->before, t->round);
    }
    return any;
}

static void wait_for_more(struct target *t)
{
    if (t->given < t->taken) /* the next node is slower: wait for it instead of polling for new blocks */
        cast_relay_wait(&t->relay, t->given, BEHIND_NS);
    else
        cast_wait_block(t->c, t->round, t->taken, LOOK_NS);
}

static void run_chain(struct target *t)
{
    struct cast *c = t->c;
    if (cast_relay_start(&t->relay, c, t->next, t->round)) {
        t->disk.failed = true;
        cast_say(c, true, "%s; nothing more is written on this host", base_error());
        tell_failure(t);
        break_round(t);
    }
    while (!given_up(t)) {
        bool any = cast_arrived(c, t->round, t->taken);
        if (c->lost || (t->relay.broken && cast_relay_has_next(&t->relay)))
            break_round(t);
        if (any) {
            take_block(t, t->taken);
            t->taken++;
        }
        any = give_back(t) || any;
        if (!any) {
            cast_look_lost(c, t->before); /* detects a lost credit: the node before this one would wait for it for ever */
            cast_tell_state(c, t->disk.failed ? CAST_GAVE_UP : CAST_WAITING, false);
            wait_for_more(t);
        }
    }
    cast_relay_stop(&t->relay);
}

/* --- rounds --- */

/* Take over the round and chain that the source has announced. Returns false if this target is not in the chain. */
static bool begin_round(struct target *t)
{
    struct cast *c = t->c;
    bool member = false;
    pthread_mutex_lock(&c->lock);
    t->round = c->wanted_round;
    t->before = c->config.head.source;
    t->next = WEFT_MAX_NODES;
    for (uint32_t i = 0; i < c->chain_count && !member; i++) {
        member = c->chain[i] == c->rank;
        if (member && i + 1 < c->chain_count && c->chain[i + 1] < c->config.head.size)
            t->next = c->chain[i + 1];
        else if (!member && c->chain[i] < c->config.head.size)
            t->before = c->chain[i];
    }
    t->send_list = c->send_list;
    t->verify = c->verify;
    pthread_mutex_unlock(&c->lock);
    t->taken = t->given = 0;
    t->broken = t->ended = false;
    c->lost = false; /* a write that was lost in an earlier round does not count */
    return member;
}

static void run_round(struct target *t)
{
    bool member = begin_round(t);
    if (!t->listed)
        cast_list_free(&t->c->list);
    if (t->verify && t->compared)
        cast_disk_verify(&t->disk);
    tell_source(t, CAST_READY, 0, 0, NULL, 0);
    if (member && !t->send_list)
        send_needs(t);
    if (member)
        run_chain(t);
    else
        while (!given_up(t))
            base_sleep_ns(WEFT_MS);
    if (t->compared)
        cast_disk_settle(&t->disk);
}

static void wait_for_round(struct target *t)
{
    struct cast *c = t->c;
    /* report the state now, because the source may take long to make the list */
    cast_tell_state(c, (enum cast_doing)c->state.doing, false);
    pthread_mutex_lock(&c->lock);
    if (c->wanted_round == t->round && !c->quit)
        base_cond_wait(&c->changed, &c->lock, base_deadline(LOOK_NS));
    pthread_mutex_unlock(&c->lock);
}

int cast_target_run(struct cast *c)
{
    static struct target t;
    t = (struct target){.c = c};
    int rc = cast_disk_open(&t.disk, c);
    if (rc) {
        cast_say(c, true, "%s", base_error());
        return 1;
    }
    cast_order_tell(c);
    cast_ahead_start(&t.ahead, c);
    while (!to_end(c)) {
        pthread_mutex_lock(&c->lock);
        bool begun = c->wanted_round != t.round;
        pthread_mutex_unlock(&c->lock);
        if (begun)
            run_round(&t);
        else
            wait_for_round(&t);
    }
    cast_ahead_stop(&t.ahead);
    cast_tell_state(c, t.disk.failed ? CAST_GAVE_UP : CAST_ENDED, true);
    cast_disk_close(&t.disk);
    return 0;
}
