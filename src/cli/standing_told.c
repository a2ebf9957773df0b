/* SPDX-License-Identifier: MIT
 *
 * What this node has learned from the desks of all nodes: their hosts, doors and slots, also those of nodes that are gone.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/standing_job.h"

#define SILENT_MAX 2u /* stop after this many nodes that do not answer: each costs two seconds */

int jobs_desk(struct jobs *all, uint32_t node, struct desk_page **out)
{
    int rc = desk_get(all->desks, node, out);
    if (rc)
        return rc;
    pthread_mutex_lock(&all->lock);
    snprintf(all->told[node].host, sizeof all->told[node].host, "%s", (*out)->node.host);
    snprintf(all->told[node].door, sizeof all->told[node].door, "%s", (*out)->door);
    all->told[node].slot = (*out)->slot;
    pthread_mutex_unlock(&all->lock);
    return 0;
}

bool jobs_known(struct jobs *all, uint32_t node)
{
    pthread_mutex_lock(&all->lock);
    bool known = all->told[node].host[0];
    pthread_mutex_unlock(&all->lock);
    return known;
}

void jobs_host(struct jobs *all, uint32_t node, char *out, size_t len)
{
    struct desk_page *p = NULL;
    snprintf(out, len, "node %u", node);
    if (node >= WEFT_MAX_NUMBERS || (!jobs_known(all, node) && (!weft_alive(all->w, node) || jobs_desk(all, node, &p))))
        return;
    free(p);
    pthread_mutex_lock(&all->lock);
    snprintf(out, len, "%s", all->told[node].host);
    pthread_mutex_unlock(&all->lock);
}

bool jobs_learn(struct jobs *all)
{
    uint32_t size = weft_size(all->w);
    uint32_t silent = 0;
    for (uint32_t i = 0; i < size && silent < SILENT_MAX; i++) {
        struct desk_page *p;
        if (!weft_alive(all->w, i) || jobs_known(all, i))
            continue;
        if (jobs_desk(all, i, &p))
            silent++;
        else
            free(p);
    }
    return silent == 0;
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
    jobs_learn(all); /* first read the desks of new nodes, which may be successors */
    pthread_mutex_lock(&all->lock);
    for (uint32_t i = size; list && i-- > 0;) /* from the newest to the oldest, because a successor has a higher number */
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
