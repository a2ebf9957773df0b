/* SPDX-License-Identifier: MIT
 *
 * Gives objects numbers by which other nodes name them. A number consists of an index and a count of how often this index was used, so the
 * number of a removed object finds nothing.
 */
#include "gateway/gateway.h"

#include <stdlib.h>

#define TABLE_FIRST 64u
#define TABLE_MASK  ((1u << GATEWAY_TABLE_BITS) - 1)

static bool table_grow(struct gateway_table *t)
{
    uint32_t made = t->made ? t->made * 2 : TABLE_FIRST;
    struct gateway_slot *more = made > TABLE_MASK + 1 ? NULL : realloc(t->slots, made * sizeof *more);
    if (!more)
        return false;
    for (uint32_t i = t->made; i < made; i++)
        more[i] = (struct gateway_slot){.next = i + 1 < made ? i + 2 : 0};
    t->slots = more;
    t->free = t->made + 1;
    t->made = made;
    return true;
}

uint64_t gateway_table_add(struct gateway_table *t, void *object)
{
    if (!t->free && !table_grow(t))
        return 0;
    uint32_t i = t->free - 1;
    struct gateway_slot *s = &t->slots[i];
    t->free = s->next;
    t->used++;
    s->object = object;
    s->id = (uint64_t)++s->round << GATEWAY_TABLE_BITS | i;
    if (s->id >> GATEWAY_TABLE_BITS == 0) /* the count has wrapped to 0: skip that value */
        s->id = (uint64_t)++s->round << GATEWAY_TABLE_BITS | i;
    return s->id;
}

void *gateway_table_find(const struct gateway_table *t, uint64_t id)
{
    uint32_t i = (uint32_t)id & TABLE_MASK;
    return id && i < t->made && t->slots[i].id == id ? t->slots[i].object : NULL;
}

void gateway_table_remove(struct gateway_table *t, uint64_t id)
{
    struct gateway_slot *s = &t->slots[(uint32_t)id & TABLE_MASK];
    if (!gateway_table_find(t, id))
        return;
    s->id = 0;
    s->object = NULL;
    s->next = t->free;
    t->free = ((uint32_t)id & TABLE_MASK) + 1;
    t->used--;
}

void *gateway_table_next(const struct gateway_table *t, uint32_t *at)
{
    while (*at < t->made) {
        struct gateway_slot *s = &t->slots[(*at)++];
        if (s->id)
            return s->object;
    }
    return NULL;
}

void gateway_table_free(struct gateway_table *t)
{
    free(t->slots);
    *t = (struct gateway_table){0};
}
