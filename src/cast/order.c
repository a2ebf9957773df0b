/* SPDX-License-Identifier: MIT
 *
 * The order of the chain. Each target tells the source the kind of its link to each other node; nothing is measured. After each node, the
 * next in the chain is the remaining node with the best link from it. The best link is to a node of the same host. The next best are direct
 * links by RDMA; of these, links with more cables or devices are better. The worst are links over an ordinary network. So nodes of one host
 * are neighbours in the chain, and data crosses each cable once.
 */
#include <stdlib.h>
#include <string.h>

#include "cast/cast.h"
#include "cast/source.h"

/* how long the source waits for CAST_LINKS. In the chain, a target that has not answered is followed by the next rank */
#define LINKS_NS (WEFT_SECOND)
#define LOOK_NS  (20 * WEFT_MS)

/* A link costs 16 times the index of its kind in this list, minus a little for each additional cable or device. */
static const char *const kinds[] = {"shm", "rc", "tb", "tb through other nodes", "ofi"};
#define KINDS      (sizeof kinds / sizeof kinds[0])
#define COST_WORST ((uint8_t)(KINDS * 16))

const char *cast_order_link(uint32_t cost)
{
    return cost / 16 < KINDS ? kinds[cost / 16] : "unknown";
}

static uint8_t link_cost(struct cast *c, uint32_t node)
{
    weft_link_stats s;
    if (node == c->rank || weft_link_stat(c->w, node, &s, sizeof s))
        return COST_WORST;
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        if (strcmp(s.transport, kinds[kind]) != 0)
            continue;
        const uint32_t ways = s.cables > s.rails ? s.cables : s.rails;
        const bool detour = strcmp(s.transport, "tb") == 0 && s.via != node;
        return (uint8_t)((kind + detour) * 16 + (kind && ways < 16 ? 15 - ways : 0));
    }
    return COST_WORST;
}

static void fill_costs(struct cast *c, uint8_t *cost)
{
    for (uint32_t i = 0; i < c->config.head.size; i++)
        cost[i] = link_cost(c, i);
}

void cast_order_tell(struct cast *c)
{
    uint8_t cost[WEFT_PAYLOAD_MAX];
    if (c->config.head.size > sizeof cost)
        return;
    fill_costs(c, cost);
    cast_send(c, c->config.head.source, CAST_LINKS, 0, 0, 0, cost, c->config.head.size);
}

void cast_order_take(struct cast_source *s, uint32_t from, const void *payload, size_t bytes)
{
    struct receiver *t = &s->receiver[from];
    if (t->cost || bytes != s->c->config.head.size || !(t->cost = malloc(bytes)))
        return;
    memcpy(t->cost, payload, bytes);
}

void cast_order_wait(struct cast_source *s)
{
    struct cast *c = s->c;
    bool missing = true;
    for (int64_t deadline = base_deadline(LINKS_NS); missing && base_now_ns() < deadline && !c->stopped() && !c->quit;) {
        missing = false;
        pthread_mutex_lock(&c->lock);
        for (uint32_t i = 0; i < c->config.head.size; i++)
            missing = missing || (s->receiver[i].chosen && !s->receiver[i].cost && weft_alive(c->w, i));
        if (missing)
            base_cond_wait(&c->changed, &c->lock, base_deadline(LOOK_NS));
        pthread_mutex_unlock(&c->lock);
    }
    struct receiver *own = &s->receiver[c->rank];
    if (!own->cost && (own->cost = malloc(c->config.head.size)))
        fill_costs(c, own->cost);
}

void cast_order(const uint8_t *const *cost, uint32_t from, uint32_t *chain, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *row = cost[i ? chain[i - 1] : from];
        uint32_t best = i;
        for (uint32_t k = i + 1; k < count && row; k++)
            if (row[chain[k]] < row[chain[best]])
                best = k;
        uint32_t node = chain[best];
        memmove(&chain[i + 1], &chain[i], (best - i) * sizeof *chain); /* all other nodes keep their order */
        chain[i] = node;
    }
}

void cast_order_chain(struct cast_source *s)
{
    struct cast *c = s->c;
    const uint8_t *cost[WEFT_MAX_NODES];
    uint32_t links[WEFT_MAX_NODES];
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->config.head.size; i++)
        cost[i] = s->receiver[i].cost;
    pthread_mutex_unlock(&c->lock);
    cast_order(cost, c->rank, s->chain, s->count);
    for (uint32_t i = 0; i < s->count; i++) {
        const uint8_t *row = cost[i ? s->chain[i - 1] : c->rank];
        links[i] = s->chain[i] | (uint32_t)(row ? row[s->chain[i]] : COST_WORST) << 24;
    }
    cast_send(c, 0, CAST_CHAIN, s->round, 0, 0, links, s->count * sizeof *links);
}
