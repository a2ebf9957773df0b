/* SPDX-License-Identifier: MIT
 *
 * What a status shows: the nodes, and the pages of their desks. With N nodes there are N * (N - 1) links, and for each the link of its
 * other end is looked up, too. A look-up is two binary searches, so that all look-ups together are fast: nodes and links are in the order
 * of their numbers (jobs_nodes(), check_page()).
 */
#include <errno.h>
#include <stdlib.h>

#include "cli/standing.h"

void shown_free(struct shown *s)
{
    for (uint32_t i = 0; s->pages && i < s->count; i++)
        free(s->pages[i]);
    free(s->pages);
    free(s->nodes);
}

int shown_get(struct shown *s, struct jobs *jobs, bool links)
{
    s->count = jobs_nodes(jobs, &s->nodes);
    s->pages = calloc(s->count + 1, sizeof(struct desk_page *));
    if (!s->nodes || !s->pages) {
        shown_free(s);
        return -ENOMEM;
    }
    jobs_desks(jobs, s->nodes, s->count, links, s->pages); /* a node that is gone fails at once */
    return 0;
}

static int by_number(const void *number, const void *node)
{
    uint32_t a = *(const uint32_t *)number, b = *(const uint32_t *)node;
    return (a > b) - (a < b);
}

static int by_node(const void *number, const void *link)
{
    return by_number(number, &((const struct desk_link *)link)->node);
}

const struct desk_link *shown_link(const struct shown *s, uint32_t node, uint32_t to)
{
    /* bsearch() may not be given a null pointer, also for an empty array */
    const uint32_t *at = s->count ? bsearch(&node, s->nodes, s->count, sizeof *s->nodes, by_number) : NULL;
    const struct desk_page *p = at ? s->pages[at - s->nodes] : NULL;
    return p && p->count ? bsearch(&to, p->links, p->count, sizeof p->links[0], by_node) : NULL;
}
