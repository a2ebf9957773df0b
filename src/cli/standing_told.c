/* SPDX-License-Identifier: MIT
 *
 * Keeps what each node says about itself on its desk (standing_desk.c), also when the node is gone: its host, its slot on that host, and
 * its door, the address at which other nodes can join through it.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/standing_job.h"

uint32_t jobs_desks(struct jobs *all, const uint32_t *nodes, uint32_t count, bool links, struct desk_page **out)
{
    uint32_t silent = desks_get(all->desks, nodes, count, links, out);
    pthread_mutex_lock(&all->lock);
    for (uint32_t i = 0; i < count; i++) {
        if (!out[i])
            continue;
        struct told *t = &all->told[nodes[i]];
        snprintf(t->host, sizeof t->host, "%s", out[i]->node.host);
        snprintf(t->door, sizeof t->door, "%s", out[i]->door);
        t->slot = out[i]->slot;
    }
    pthread_mutex_unlock(&all->lock);
    return silent;
}

void jobs_host(struct jobs *all, uint32_t node, char *out, size_t len)
{
    snprintf(out, len, "node %u", node);
    if (node >= WEFT_MAX_NUMBERS)
        return;
    pthread_mutex_lock(&all->lock);
    if (all->told[node].host[0])
        snprintf(out, len, "%s", all->told[node].host);
    pthread_mutex_unlock(&all->lock);
}

bool jobs_learn(struct jobs *all, uint32_t most)
{
    uint32_t size = weft_size(all->w), count = 0, *list = calloc(size, sizeof *list);
    pthread_mutex_lock(&all->lock);
    for (uint32_t k = 0, first = all->learn_from; k < size && list && count < most; k++) {
        uint32_t i = (first + k) % size;
        if (all->told[i].host[0] || !weft_alive(all->w, i))
            continue;
        list[count++] = i;
        all->learn_from = i + 1; /* a node that does not answer is asked again after all others */
    }
    pthread_mutex_unlock(&all->lock);
    struct desk_page **pages = calloc(count + 1, sizeof(struct desk_page *));
    bool learned = list && pages && jobs_desks(all, list, count, false, pages) == 0 && count < most;
    for (uint32_t i = 0; pages && i < count; i++)
        free(pages[i]);
    free(pages);
    free(list);
    return learned;
}

uint32_t jobs_slot(struct jobs *all, uint32_t node)
{
    pthread_mutex_lock(&all->lock);
    uint32_t slot = all->told[node].slot;
    pthread_mutex_unlock(&all->lock);
    return slot;
}

/* Whether a later node of the list has replaced this node. */
static bool has_successor(const struct jobs *all, uint32_t node, const uint32_t *list, uint32_t count)
{
    const struct told *t = &all->told[node];
    for (uint32_t i = 0; i < count; i++) {
        const struct told *o = &all->told[list[i]];
        if (o->slot == t->slot && strcmp(o->host, t->host) == 0 && strcmp(o->door, t->door) == 0)
            return true;
    }
    return false;
}

uint32_t jobs_nodes(struct jobs *all, uint32_t **out)
{
    uint32_t size = weft_size(all->w), count = 0;
    uint32_t *list = *out = calloc(size, sizeof *list);
    jobs_learn(all, UINT32_MAX); /* read the desks of new nodes, because these may be successors */
    pthread_mutex_lock(&all->lock);
    for (uint32_t i = size; list && i-- > 0;) /* go from the newest to the oldest, because a successor has a higher number */
        if (weft_alive(all->w, i) || (all->told[i].host[0] && !has_successor(all, i, list, count)))
            list[count++] = i;
    pthread_mutex_unlock(&all->lock);
    for (uint32_t i = 0; i < count / 2; i++) {
        uint32_t other = list[count - 1 - i];
        list[count - 1 - i] = list[i];
        list[i] = other;
    }
    return count;
}
