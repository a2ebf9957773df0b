/* SPDX-License-Identifier: MIT
 *
 * The asker's copies of pieces of files of other hosts, in its pool: pieces that its handles have requested in advance, and pieces that
 * they have read, for other nodes (file_holder.c). The copies take at most 1/FILE_KEPT_PART of the pool; then the memory of the oldest copy
 * is used again. All are freed when this node has had no file of another host open for some seconds.
 */
#include "gateway/file_handle.h"

#include <stdlib.h>

#define KEPT_NS (5 * WEFT_SECOND)

struct kept_list {
    struct file_kept *first, **last;
    uint64_t count;
};
struct file_keeps { /* guarded by gateway.lock */
    /* idle: copies that nobody uses. The list begins with copies of which the gateway does not know. Of these, the most recently used one
     * is first, because it is in the processor's caches. Then follow copies that other nodes may get, the most recently used one last. */
    struct kept_list used, idle;
    uint64_t bytes;
    uint32_t files;     /* open handles of files of other hosts */
    int64_t idle_since; /* when the last handle was closed */
};

static void list_put(struct kept_list *list, struct file_kept *k)
{
    k->next = NULL;
    k->at_next = list->last;
    *list->last = k;
    list->last = &k->next;
    list->count++;
}

static void list_put_first(struct kept_list *list, struct file_kept *k)
{
    k->next = list->first;
    k->at_next = &list->first;
    *(k->next ? &k->next->at_next : &list->last) = &k->next;
    list->first = k;
    list->count++;
}

static void list_take(struct kept_list *list, struct file_kept *k)
{
    *k->at_next = k->next;
    *(k->next ? &k->next->at_next : &list->last) = k->at_next;
    list->count--;
}

/* Whether a get may still write to the copy, even if nobody waits for the get any more. */
static bool kept_written(struct gateway *g, const struct file_kept *k)
{
    return weft_test(g->w, (weft_op *)(uintptr_t)&k->op) == -EINPROGRESS;
}

/* Takes the first idle copy with room for a whole piece out of the list. `untold`: only a copy of which the gateway does not know. The
 * caller holds gateway.lock. */
static struct file_kept *kept_take(struct gateway *g, bool untold)
{
    for (struct file_kept *k = g->file_keeps->idle.first; k && !(untold && k->told); k = k->next)
        if (k->room == WEFT_FILE_PIECE && !kept_written(g, k)) {
            list_take(&g->file_keeps->idle, k);
            return k;
        }
    return NULL;
}

/* Tells the gateway that the copy is gone. The caller does not hold gateway.lock. */
static void kept_drop(struct gateway *g, struct file_kept *k)
{
    const weft_request r = {.version = WEFT_REQUEST_VERSION,
                            .service = WEFT_SERVICE_FILE,
                            .kind = FILE_DROP,
                            .node = k->node,
                            .arg = {k->generation, k->index}};
    if (k->told && fab_alive(g->w, k->node))
        gateway_ask_ignore(g, &r);
    k->told = false;
}

static struct file_kept *kept_new(struct gateway *g, uint32_t bytes)
{
    struct file_kept *k = calloc(1, sizeof *k);
    int rc = k ? weft_alloc(g->w, bytes, &k->at) : base_fail(-ENOMEM, "no memory for a copy of a part of a file" BASE_MEMORY_HINT);
    if (rc) {
        free(k);
        return NULL;
    }
    fab_use(g->w, FAB_USE_FILES, bytes);
    k->room = bytes;
    return k;
}

/* Frees a copy that is not in the list any more. The caller does not hold gateway.lock. */
static void kept_end(struct gateway *g, struct file_kept *k)
{
    kept_drop(g, k);
    fab_use(g->w, FAB_USE_FILES, -(int64_t)k->room);
    weft_free(g->w, k->at);
    free(k);
}

static uint64_t keeps_limit(const struct gateway *g)
{
    return g->w->pool_bytes / FILE_KEPT_PART;
}

uint64_t file_keep_room(struct gateway *g)
{
    const struct file_keeps *all = g->file_keeps;
    base_spin_lock(&g->lock);
    uint64_t limit = keeps_limit(g), fresh = limit > all->bytes ? (limit - all->bytes) / WEFT_FILE_PIECE : 0;
    uint64_t room = fresh + all->idle.count;
    base_spin_unlock(&g->lock);
    return room;
}

/* Memory that is used again and again gets huge pages, because the processor copies faster from and to them. */
static void kept_enlarge(struct gateway *g, const struct file_kept *k)
{
    uint64_t place = weft_gaddr_offset(k->at);
    if (k->times >= FILE_HOT && mem_can_enlarge(g->w->pool, place, k->room))
        mem_enlarge(g->w->pool, place, k->room);
}

struct file_kept *file_keep(struct gateway *g, uint32_t node, uint32_t bytes)
{
    struct file_keeps *all = g->file_keeps;
    struct file_kept *k = NULL;
    const uint32_t size = bytes ? bytes : WEFT_FILE_PIECE;
    base_spin_lock(&g->lock);
    bool fresh = all->bytes + size <= keeps_limit(g);
    if (size == WEFT_FILE_PIECE)
        k = kept_take(g, fresh);
    fresh = !k && (fresh || bytes);
    all->bytes += fresh ? size : 0;
    base_spin_unlock(&g->lock);
    if (fresh && !(k = kept_new(g, size))) {
        base_spin_lock(&g->lock);
        all->bytes -= size;
        k = size == WEFT_FILE_PIECE ? kept_take(g, false) : NULL; /* the pool is full, so use the memory of an old copy */
        base_spin_unlock(&g->lock);
    }
    if (!k)
        return NULL;
    kept_drop(g, k);
    kept_enlarge(g, k);
    base_spin_lock(&g->lock);
    *k = (struct file_kept){.node = node, .at = k->at, .room = k->room, .times = k->times + 1};
    list_put(&all->used, k);
    base_spin_unlock(&g->lock);
    return k;
}

int64_t file_get_until(const struct gateway *g, const struct file_pace *p, int64_t since, bool other)
{
    int64_t least = FILE_HOLDER_TIMES * atomic_load_explicit(&g->file_patience, memory_order_relaxed);
    return other ? file_pace_until(p, since, least) : INT64_MAX;
}

void file_keep_tell(struct gateway *g, uint64_t there, struct file_kept *k, uint64_t lease, uint64_t generation, uint64_t index)
{
    const weft_request r = {.version = WEFT_REQUEST_VERSION,
                            .service = WEFT_SERVICE_FILE,
                            .kind = FILE_HOLD,
                            .node = k->node,
                            .handle = there,
                            .arg = {lease, k->at, generation, index}};
    k->generation = generation;
    k->index = index;
    k->told = true;
    gateway_ask_ignore(g, &r);
}

void file_keep_leave(struct gateway *g, struct file_kept *k)
{
    struct file_keeps *all = g->file_keeps;
    base_spin_lock(&g->lock);
    bool ends = (k->room < WEFT_FILE_PIECE || all->bytes > keeps_limit(g)) && !kept_written(g, k);
    list_take(&all->used, k);
    if (ends)
        all->bytes -= k->room;
    else if (k->told)
        list_put(&all->idle, k);
    else
        list_put_first(&all->idle, k);
    base_spin_unlock(&g->lock);
    if (ends)
        kept_end(g, k);
}

void file_keeps_opened(struct gateway *g)
{
    base_spin_lock(&g->lock);
    g->file_keeps->files++;
    base_spin_unlock(&g->lock);
}

void file_keeps_closed(struct gateway *g)
{
    base_spin_lock(&g->lock);
    g->file_keeps->idle_since = base_now_ns();
    g->file_keeps->files--;
    base_spin_unlock(&g->lock);
}

/* Takes all copies that can be freed out of the list. The caller holds gateway.lock. */
static struct file_kept *keeps_take(struct gateway *g)
{
    struct file_keeps *all = g->file_keeps;
    struct file_kept *list = NULL;
    for (struct file_kept *k = all->idle.first, *next; k; k = next) {
        next = k->next;
        if (kept_written(g, k))
            continue;
        list_take(&all->idle, k);
        all->bytes -= k->room;
        k->next = list;
        list = k;
    }
    return list;
}

void file_keeps_tick(struct gateway *g, int64_t now)
{
    struct file_keeps *all = g->file_keeps;
    base_spin_lock(&g->lock);
    bool idle = all->idle.first && !all->files && now - all->idle_since >= KEPT_NS;
    struct file_kept *list = idle ? keeps_take(g) : NULL;
    base_spin_unlock(&g->lock);
    for (struct file_kept *k; (k = list);) {
        list = k->next;
        kept_end(g, k);
    }
}

static void list_free(struct kept_list *list)
{
    for (struct file_kept *k; (k = list->first);) {
        list->first = k->next;
        free(k);
    }
}

/* Called when no operation can write to the op of a copy any more. The memory of the copies is freed with the pool. */
static void keeps_free(struct weft_node *w, void *arg)
{
    struct file_keeps *all = arg;
    (void)w;
    list_free(&all->used);
    list_free(&all->idle);
    free(all);
}

int file_keeps_open(struct gateway *g)
{
    g->file_keeps = calloc(1, sizeof *g->file_keeps);
    int rc = g->file_keeps ? fab_hook(g->w, &(struct fab_hook){.free = keeps_free, .arg = g->file_keeps})
                           : base_fail(-ENOMEM, "no memory for copies of parts of files" BASE_MEMORY_HINT);
    if (rc) {
        free(g->file_keeps);
        return rc;
    }
    g->file_keeps->used.last = &g->file_keeps->used.first;
    g->file_keeps->idle.last = &g->file_keeps->idle.first;
    return 0;
}
