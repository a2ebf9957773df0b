/* SPDX-License-Identifier: MIT
 *
 * The arenas of this node and their allocators, and what this process reaches of others'.
 */
#include "gpu/arena.h"

#include <stdlib.h>

static struct gpu_arena *other(struct arenas *c, uint32_t node, uint32_t space)
{
    return &c->other[node * ARENA_SPACES + space];
}

/* Kernels read the length first (weft_device_ptr()): it is written last, and cleared first. */
static void show(const struct gpu_arena *a, uint64_t base, uint64_t bytes)
{
    uint64_t *entry = a->place.table + 2 * ((size_t)a->node * ARENA_SPACES + a->space);
    if (base)
        (void)a->place.backend->fill(a->place.device, entry, &base, sizeof base);
    (void)a->place.backend->fill(a->place.device, entry + 1, &bytes, sizeof bytes);
}

void arena_show(const struct gpu_arena *a)
{
    show(a, (uint64_t)(uintptr_t)a->memory.base, a->memory.bytes);
}

static void dispose(struct gpu_arena *a)
{
    a->place.backend->memory_close(a->place.device, &a->memory);
    mem_pool_destroy(a->books);
    free(a);
}

int arena_new(struct arenas *c, const struct gpu_place *place, uint64_t bytes, uint32_t *space)
{
    if (!bytes || bytes > WEFT_MAX_POOL_BYTES - 2 * MEM_EXTENT_BYTES)
        return base_fail(-EINVAL, "an arena of %llu bytes: at least 1, and less than 16 TiB", (unsigned long long)bytes);
    struct gpu_arena *a = calloc(1, sizeof *a);
    if (!a)
        return base_fail(-ENOMEM, "no memory for an arena's record");
    a->place = *place;
    a->node = c->w->rank;
    uint64_t whole = base_round_up(bytes, MEM_EXTENT_BYTES) + MEM_EXTENT_BYTES; /* the first extent is never handed out */
    int rc = base_random(&a->cookie, sizeof a->cookie);
    if (!rc)
        rc = place->backend->memory_open(place->device, whole, &a->memory);
    if (rc) {
        free(a);
        return rc;
    }
    rc = mem_pool_create_books(&a->books, whole);
    pthread_rwlock_wrlock(&c->table_lock);
    uint32_t s = 1;
    while (s < ARENA_SPACES && c->own[s])
        s++;
    if (!rc && s == ARENA_SPACES)
        rc = base_fail(-ENOSPC, "this node has %u arenas already: there are no more spaces", ARENA_SPACES - 1);
    if (!rc) {
        a->space = s;
        c->own[s] = a;
        atomic_store_explicit(&c->w->gpu_memory, true, memory_order_release);
    }
    pthread_rwlock_unlock(&c->table_lock);
    if (rc) {
        dispose(a);
        return rc;
    }
    arena_show(a);
    *space = s;
    return 0;
}

/* Under table_lock. */
static struct gpu_arena *own_open(struct arenas *c, uint32_t space)
{
    struct gpu_arena *a = space < ARENA_SPACES ? c->own[space] : NULL;
    return a && !atomic_load_explicit(&a->closing, memory_order_relaxed) ? a : NULL;
}

int arena_alloc(struct arenas *c, uint32_t space, uint64_t bytes, weft_gaddr *out)
{
    uint64_t offset;
    pthread_rwlock_rdlock(&c->table_lock);
    struct gpu_arena *a = own_open(c, space);
    int rc = a ? mem_alloc(a->books, bytes, 0, &offset) : base_fail(-EFAULT, "this node has no arena in space %u", space);
    if (!rc)
        *out = weft_gaddr_make(c->w->rank, space, offset);
    pthread_rwlock_unlock(&c->table_lock);
    return rc;
}

int arena_free(struct arenas *c, weft_gaddr addr)
{
    pthread_rwlock_rdlock(&c->table_lock);
    struct gpu_arena *a = own_open(c, weft_gaddr_space(addr));
    int rc = a ? mem_free(a->books, weft_gaddr_offset(addr))
               : base_fail(-EFAULT, "free of %#llx: this node has no space %u", (unsigned long long)addr, weft_gaddr_space(addr));
    pthread_rwlock_unlock(&c->table_lock);
    return rc;
}

static bool within(const struct gpu_arena *a, uint64_t offset, uint64_t bytes)
{
    return offset >= MEM_EXTENT_BYTES && offset <= a->memory.bytes && bytes <= a->memory.bytes - offset;
}

/* Under table_lock. */
static int enter(struct arenas *c, weft_gaddr addr, uint64_t bytes, struct gpu_arena **out, void **at)
{
    uint32_t node = weft_gaddr_node(addr), space = weft_gaddr_space(addr);
    uint64_t offset = weft_gaddr_offset(addr);
    struct gpu_arena *a = node == c->w->rank ? own_open(c, space) : c->other ? other(c, node, space) : NULL;
    if (a && node != c->w->rank &&
        (!atomic_load_explicit(&a->mapped, memory_order_acquire) || atomic_load_explicit(&a->closing, memory_order_relaxed)))
        a = NULL;
    if (!a && node == c->w->rank)
        return base_fail(-EFAULT, "address %#llx: this node has no space %u", (unsigned long long)addr, space);
    if (a && !within(a, offset, bytes))
        return base_fail(-EFAULT, "address %#llx: %llu bytes at offset %llu are outside space %u of node %u (%llu bytes)",
                         (unsigned long long)addr, (unsigned long long)bytes, (unsigned long long)offset, space, node,
                         (unsigned long long)a->memory.bytes);
    if (a) {
        atomic_fetch_add_explicit(&a->users, 1, memory_order_relaxed);
        *at = a->memory.base + offset;
    }
    *out = a;
    return 0;
}

int arena_enter(struct arenas *c, weft_gaddr addr, uint64_t bytes, struct gpu_arena **out, void **at)
{
    *out = NULL;
    *at = NULL;
    pthread_rwlock_rdlock(&c->table_lock);
    int rc = enter(c, addr, bytes, out, at);
    pthread_rwlock_unlock(&c->table_lock);
    return rc;
}

static struct gpu_arena *find_memory(struct arenas *c, const void *p, uint64_t bytes)
{
    for (uint32_t s = 1; s < ARENA_SPACES; s++) {
        struct gpu_arena *a = own_open(c, s);
        uint64_t at = a ? (uintptr_t)p - (uintptr_t)a->memory.base : 0;
        if (a && at < a->memory.bytes && bytes <= a->memory.bytes - at)
            return a;
    }
    return NULL;
}

struct gpu_arena *arena_enter_memory(struct arenas *c, const void *p, uint64_t bytes)
{
    pthread_rwlock_rdlock(&c->table_lock);
    struct gpu_arena *a = find_memory(c, p, bytes);
    if (a)
        atomic_fetch_add_explicit(&a->users, 1, memory_order_relaxed);
    pthread_rwlock_unlock(&c->table_lock);
    return a;
}

bool arena_owns(struct arenas *c, const void *p)
{
    pthread_rwlock_rdlock(&c->table_lock);
    bool is = find_memory(c, p, 0);
    pthread_rwlock_unlock(&c->table_lock);
    return is;
}

void arena_leave(struct gpu_arena *a)
{
    if (a)
        atomic_fetch_sub_explicit(&a->users, 1, memory_order_release); /* pairs with the acquire in unused() */
}

/* Nothing new begins with it; true: nothing is under way any more. */
static bool unused(struct arenas *c, struct gpu_arena *a, int64_t deadline)
{
    pthread_rwlock_wrlock(&c->table_lock);
    atomic_store_explicit(&a->closing, true, memory_order_relaxed);
    pthread_rwlock_unlock(&c->table_lock);
    while (atomic_load_explicit(&a->users, memory_order_acquire)) {
        if (base_now_ns() >= deadline)
            return false;
        base_sleep_ns(100 * WEFT_US);
    }
    return true;
}

static void close_own(struct arenas *c, uint32_t space, int64_t deadline)
{
    struct gpu_arena *a = c->own[space];
    if (!unused(c, a, deadline)) {
        base_log(BASE_LOG_WARN, "an arena is closed while operations on it are under way: its memory stays until the process ends");
        return;
    }
    show(a, 0, 0);
    pthread_rwlock_wrlock(&c->table_lock);
    c->own[space] = NULL;
    pthread_rwlock_unlock(&c->table_lock);
    dispose(a);
}

static void close_other(struct arenas *c, struct gpu_arena *a, int64_t deadline)
{
    if (!unused(c, a, deadline))
        return;
    show(a, 0, 0);
    atomic_store_explicit(&a->mapped, false, memory_order_relaxed);
    a->place.backend->memory_close(a->place.device, &a->memory);
}

void arena_close_all(struct arenas *c, const void *where, int64_t deadline)
{
    for (uint32_t s = 1; s < ARENA_SPACES; s++)
        if (c->own[s] && c->own[s]->place.table == where)
            close_own(c, s, deadline);
    for (uint32_t i = 0; c->other && i < c->w->size * ARENA_SPACES; i++)
        if (atomic_load_explicit(&c->other[i].mapped, memory_order_acquire) && c->other[i].place.table == where)
            close_other(c, &c->other[i], deadline);
}

int arena_copy(struct arena_copy *copy, const struct gpu_place *p, void *to, const void *from, uint64_t bytes)
{
    int rc = p->backend->copy(p->device, to, from, bytes, &copy->ticket);
    copy->place = rc ? NULL : p;
    return rc;
}

int arena_copied(struct arena_copy *copy)
{
    if (!copy->place)
        return 0;
    int rc = copy->place->backend->copied(copy->place->device, copy->ticket);
    if (rc != -EINPROGRESS)
        copy->place = NULL;
    return rc;
}
