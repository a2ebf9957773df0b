/* SPDX-License-Identifier: MIT
 *
 * The submitter's table of outstanding tasks: see table.h.
 */
#include "queue/table.h"

#include <stdlib.h>
#include <string.h>

#define REAP_AHEAD 8u /* entries that are fetched before they are reaped */

int table_init(struct table *t)
{
    *t = (struct table){.free = TABLE_NONE, .pending = {TABLE_NONE, TABLE_NONE, 0}};
    t->chunks = calloc(TABLE_CHUNKS, sizeof(*t->chunks));
    return t->chunks ? 0 : base_fail(-ENOMEM, "no memory for the queue's table of tasks" BASE_MEMORY_HINT);
}

void table_clear(struct table *t)
{
    for (uint32_t i = 0; i < t->chunk_count; i++)
        free(t->chunks[i]);
    free(t->chunks);
    free(t->complete.index);
    t->chunks = NULL; /* a table without chunks finds no entry and accepts none */
    t->chunk_count = 0;
    t->free = TABLE_NONE;
    t->pending = (struct table_list){TABLE_NONE, TABLE_NONE, 0};
    t->complete = (struct table_ring){0};
}

static inline struct table_entry *at(struct table *t, uint32_t index)
{
    return &t->chunks[index / TABLE_CHUNK][index % TABLE_CHUNK];
}

static inline uint64_t id_of(uint32_t index, uint32_t generation)
{
    return (uint64_t)generation << 32 | index;
}

/* Find the entry of an id; NULL if there is none. The id may be any number, since other nodes send ids. */
static inline struct table_entry *find(struct table *t, uint64_t id)
{
    uint32_t index = (uint32_t)id;
    if (index / TABLE_CHUNK >= t->chunk_count)
        return NULL;
    struct table_entry *e = at(t, index);
    return e->generation == id >> 32 && e->state != TABLE_FREE ? e : NULL;
}

static void table_append(struct table *t, struct table_list *list, uint32_t index)
{
    struct table_entry *e = at(t, index);
    e->next = TABLE_NONE;
    e->prev = list->last;
    if (list->last == TABLE_NONE)
        list->first = index;
    else
        at(t, list->last)->next = index;
    list->last = index;
    list->count++;
}

static void unlink_entry(struct table *t, struct table_list *list, uint32_t index)
{
    struct table_entry *e = at(t, index);
    if (e->prev == TABLE_NONE)
        list->first = e->next;
    else
        at(t, e->prev)->next = e->next;
    if (e->next == TABLE_NONE)
        list->last = e->prev;
    else
        at(t, e->next)->prev = e->prev;
    list->count--;
}

static void table_release(struct table *t, uint32_t index)
{
    struct table_entry *e = at(t, index);
    e->state = TABLE_FREE;
    e->next = t->free;
    t->free = index;
}

/* Makes room for all entries of one more chunk. */
static bool ring_grow(struct table_ring *r, uint32_t entries)
{
    uint32_t room = r->room ? r->room : TABLE_CHUNK;
    while (room < entries)
        room *= 2;
    if (room == r->room)
        return true;
    uint32_t *index = malloc(room * sizeof *index);
    if (!index)
        return false;
    for (uint32_t i = 0; i < r->count; i++)
        index[i] = r->index[(r->first + i) & (r->room - 1)];
    free(r->index);
    *r = (struct table_ring){.index = index, .room = room, .count = r->count};
    return true;
}

static BASE_COLD bool table_grow(struct table *t)
{
    if (!t->chunks || t->chunk_count == TABLE_CHUNKS || !ring_grow(&t->complete, (t->chunk_count + 1) * TABLE_CHUNK))
        return false;
    struct table_entry *chunk = aligned_alloc(BASE_CACHE_LINE, TABLE_CHUNK * sizeof *chunk);
    if (!chunk)
        return false;
    memset(chunk, 0, TABLE_CHUNK * sizeof *chunk);
    uint32_t first = t->chunk_count * TABLE_CHUNK;
    t->chunks[t->chunk_count++] = chunk;
    for (uint32_t i = TABLE_CHUNK; i-- > 0;)
        table_release(t, first + i);
    return true;
}

uint32_t table_add(struct table *t, uint32_t home, const weft_task *tasks, uint32_t count, uint64_t *ids)
{
    uint32_t n = 0;
    for (; n < count; n++) {
        if (BASE_UNLIKELY(t->free == TABLE_NONE) && !table_grow(t))
            break;
        uint32_t index = t->free;
        struct table_entry *e = at(t, index);
        t->free = e->next;
        e->task = tasks[n];
        if (++e->generation == 0)
            e->generation = 1;
        e->home = (uint16_t)home;
        e->state = TABLE_OUT;
        e->tries = 0;
        ids[n] = id_of(index, e->generation);
    }
    t->submitted += n;
    return n;
}

bool table_remove(struct table *t, uint64_t id, uint32_t home)
{
    struct table_entry *e = find(t, id);
    if (!e || e->state != TABLE_OUT || e->home != home || e->tries != 0)
        return false;
    table_release(t, (uint32_t)id);
    t->submitted--;
    return true;
}

void table_fetch(const struct table *t, uint64_t id)
{
    uint32_t index = (uint32_t)id;
    if (index / TABLE_CHUNK < t->chunk_count) {
        const struct table_entry *e = &t->chunks[index / TABLE_CHUNK][index % TABLE_CHUNK];
        base_fetch_to_write(&e->generation);
    }
}

bool table_complete(struct table *t, uint64_t id, const weft_done *done)
{
    struct table_entry *e = find(t, id);
    if (!e || e->state == TABLE_COMPLETE) {
        t->duplicates++;
        return false;
    }
    if (e->state == TABLE_PENDING)
        unlink_entry(t, &t->pending, (uint32_t)id);
    e->state = TABLE_COMPLETE;
    e->status = done->status;
    e->worker = done->worker;
    e->result = done->result;
    e->result_len = done->result_len;
    struct table_ring *r = &t->complete;
    r->index[(r->first + r->count++) & (r->room - 1)] = (uint32_t)id;
    t->completed++;
    return true;
}

uint32_t table_reap(struct table *t, weft_done *out, uint32_t max)
{
    struct table_ring *r = &t->complete;
    uint32_t count = r->count < max ? r->count : max;
    for (uint32_t n = 0, fetched = 0; n < count; n++) {
        for (; fetched < count && fetched <= n + REAP_AHEAD; fetched++)
            base_fetch_to_write(&at(t, r->index[(r->first + fetched) & (r->room - 1)])->generation);
        uint32_t index = r->index[(r->first + n) & (r->room - 1)];
        struct table_entry *e = at(t, index);
        out[n] = (weft_done){.tag = e->task.tag,
                             .id = id_of(index, e->generation),
                             .status = e->status,
                             .worker = e->worker,
                             .result = e->result,
                             .result_len = e->result_len};
        table_release(t, index);
    }
    r->first += count;
    r->count -= count;
    return count;
}

uint64_t table_homes(struct table *t, bool in[], uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        in[i] = false;
    for (uint32_t index = 0; index < t->chunk_count * TABLE_CHUNK; index++) {
        const struct table_entry *e = at(t, index);
        if (e->state == TABLE_OUT && e->home < count)
            in[e->home] = true;
    }
    return t->submitted - t->completed;
}

uint32_t table_home_gone(struct table *t, uint32_t home)
{
    uint32_t n = 0;
    for (uint32_t index = 0; index < t->chunk_count * TABLE_CHUNK; index++) {
        struct table_entry *e = at(t, index);
        if (e->state == TABLE_OUT && e->home == home) {
            e->state = TABLE_PENDING;
            table_append(t, &t->pending, index);
            n++;
        }
    }
    return n;
}

bool table_take_pending(struct table *t, uint32_t home, uint64_t *id, weft_task *task, uint32_t *tries)
{
    uint32_t index = t->pending.first;
    if (index == TABLE_NONE)
        return false;
    struct table_entry *e = at(t, index);
    unlink_entry(t, &t->pending, index);
    e->state = TABLE_OUT;
    e->home = (uint16_t)home;
    if (e->tries < UINT8_MAX)
        e->tries++;
    *id = id_of(index, e->generation);
    *task = e->task;
    *tries = e->tries;
    return true;
}

void table_put_back(struct table *t, uint64_t id, uint32_t home, uint32_t tries)
{
    struct table_entry *e = find(t, id);
    if (!e || e->state != TABLE_OUT || e->home != home || e->tries != tries)
        return;
    e->state = TABLE_PENDING;
    table_append(t, &t->pending, (uint32_t)id);
}
