/* SPDX-License-Identifier: MIT
 *
 * Exchange: a few words from every node to every node, and a barrier. Each node writes its words into the pools of the others, with a tag
 * that identifies the barrier. Each node has two places for words in a pool, and uses them in turn, so a node that is one exchange ahead
 * does not overwrite unread words. A node cannot be two exchanges ahead, because it cannot pass a barrier at which other nodes have not
 * arrived. The exception is a node with a newer, smaller set; its tag shows the set.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "sync/state.h"

struct given {
    uint64_t tag, words[WEFT_EXCHANGE_WORDS];
};

struct exchange {
    const uint64_t *mine;
    uint32_t words;
    uint64_t *all;
    bool *gave; /* which nodes have given words; NULL: not needed */
};

static uint64_t tag_now(const struct sync *s)
{
    return s->set << 32 | s->generation;
}

static uint64_t exchange_place(const struct weft_node *w, const struct sync *s, uint32_t from)
{
    return sync_exchange_offset(w->founders, from) + (s->generation & 1) * sizeof(struct given);
}

static int put_word(struct weft_node *w, const struct fab_patience *p, uint32_t node, uint64_t offset, uint64_t value)
{
    int rc;
    do /* repeat: the node may be stopped for longer than the time-out of one write */
        rc = fab_system_set(w, node, offset, value, false);
    while (rc == -ETIMEDOUT && p->lasting);
    return rc ? rc : weft_fence(w, node);
}

/* Wait until the words have arrived at the node. Otherwise the barrier's signals, which other nodes pass on, could arrive before the
 * words. */
static int flush(struct weft_node *w, struct fab_patience *p, uint32_t node)
{
    int rc, over;
    char whom[64];
    do {
        int64_t next = fab_patience_next(p), now = base_now_ns();
        rc = fab_flush(w, node, next > now ? next - now : 0);
        over = fab_patience_check(p);
        if (rc == -ETIMEDOUT && !over && fab_patience_due(p)) {
            snprintf(whom, sizeof whom, "node %u, which is alive and has not received the value yet", node);
            fab_patience_say(p, "exchange", whom);
        }
    } while (rc == -ETIMEDOUT && !over);
    return rc == -ECONNRESET ? 0 : rc;
}

/* Write this node's words into all other pools. The tag is 0 while the words change. */
static int exchange_give(struct weft_node *w, struct fab_patience *p, void *arg)
{
    const struct exchange *x = arg;
    struct sync *s = w->sync;
    uint64_t at = exchange_place(w, s, w->rank);
    for (uint32_t i = 0; i < s->member_count && !s->put; i++) {
        int rc = put_word(w, p, s->members[i], at + offsetof(struct given, tag), 0);
        for (uint32_t k = 0; k < x->words && !rc; k++)
            rc = put_word(w, p, s->members[i], at + offsetof(struct given, words) + 8 * k, x->mine[k]);
        if (!rc)
            rc = put_word(w, p, s->members[i], at + offsetof(struct given, tag), tag_now(s));
        if (rc && rc != -ECONNRESET)
            return rc;
    }
    s->put = true;
    for (uint32_t i = 0; i < s->member_count; i++) {
        int rc = flush(w, p, s->members[i]);
        if (rc) {
            s->put = rc == -ETIMEDOUT; /* after any other error the next call writes all words again, because some may be missing */
            return rc;
        }
    }
    return 0;
}

struct word_wait {
    struct weft_node *w;
    const struct given *given;
    uint32_t from;
};

/* Whether the words have arrived, or will never arrive. */
static bool decided(void *arg)
{
    const struct word_wait *g = arg;
    const struct sync *s = g->w->sync;
    uint64_t tag = __atomic_load_n(&g->given->tag, __ATOMIC_ACQUIRE);
    bool newer = tag != 0 && tag >> 32 != s->set && tag >> 52 < s->set >> 20; /* the tag is of a smaller set */
    return tag == tag_now(s) || newer || !fab_alive(g->w, g->from) || fab_count_dead(g->w, g->w->founders) != s->dead;
}

/* Read the words of all nodes, after the barrier. Waits for each node's words: the barrier's signals come over other links and may overtake
 * the words. */
static int exchange_take(struct weft_node *w, struct fab_patience *p, void *arg)
{
    const struct exchange *x = arg;
    struct sync *s = w->sync;
    memset(x->all, 0, (size_t)w->founders * x->words * sizeof *x->all);
    for (uint32_t i = 0; i < w->founders && x->gave; i++)
        x->gave[i] = false;
    for (uint32_t i = 0; i < s->member_count; i++) {
        struct word_wait wait = {w, (const struct given *)(const void *)(w->pool_base + exchange_place(w, s, s->members[i])),
                                 s->members[i]};
        int rc = decided(&wait) ? 0 : sync_wait(p, decided, &wait, "exchange", wait.from);
        if (rc == -ETIMEDOUT)
            return base_fail(rc,
                             "exchange: node %u has arrived, but its value has not; call weft_exchange() again to continue this exchange",
                             wait.from);
        if (rc)
            return rc;
    }
    for (uint32_t i = 0; i < s->member_count; i++) {
        uint32_t from = s->members[i];
        const struct given *g = (const struct given *)(const void *)(w->pool_base + exchange_place(w, s, from));
        /* The words are consistent if the tag is the same before and after reading them. */
        uint64_t before = __atomic_load_n(&g->tag, __ATOMIC_ACQUIRE);
        for (uint32_t k = 0; k < x->words; k++)
            x->all[(size_t)from * x->words + k] = __atomic_load_n(&g->words[k], __ATOMIC_ACQUIRE);
        if (x->gave)
            x->gave[from] = true;
        if (before != tag_now(s) || __atomic_load_n(&g->tag, __ATOMIC_RELAXED) != before)
            return base_fail(-ECONNRESET,
                             "this exchange has failed, because a node is gone, and node %u has begun the next exchange already: call "
                             "weft_exchange() again; the new exchange is among the remaining nodes",
                             from);
    }
    return 0;
}

int weft_exchange(weft_node *w, const uint64_t *mine, uint32_t words, uint64_t *all, bool *gave, int64_t timeout_ns)
{
    struct exchange x = {mine, words, all, gave};
    if (words < 1 || words > WEFT_EXCHANGE_WORDS)
        return base_fail(-EINVAL, "exchange of %u words: expected 1 to %d; put larger data, and exchange its address", words,
                         WEFT_EXCHANGE_WORDS);
    return sync_meet(w, timeout_ns, &(struct sync_visit){exchange_give, exchange_take, &x});
}
