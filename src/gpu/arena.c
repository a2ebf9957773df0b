/* SPDX-License-Identifier: MIT
 *
 * The arenas of this node and their allocators, and those arenas of other nodes that are mapped in this process.
 */
#include "gpu/arena.h"

#include <stdlib.h>

void arena_ring(struct arenas *c)
{
    /* seq_cst: the carrier thread sets `sleeping` and then reads the bell. So either the thread sees this ring, or this call sees
     * `sleeping`. */
    atomic_fetch_add_explicit(&c->bell, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&c->sleeping, memory_order_seq_cst))
        base_futex_wake(&c->bell, 1);
}

int arena_start(struct arenas *c)
{
    return atomic_load_explicit(&c->started, memory_order_acquire) ? 0 : c->start(c);
}

/* Free an arena. The caller has made sure that no RDMA device has the arena registered any more. Without `quiet`, the arena's memory is not
 * freed, because a kernel may still use it. */
static void dispose(struct gpu_arena *a, bool quiet)
{
    if (quiet)
        a->place.backend->memory_close(a->place.device, &a->memory);
    mem_pool_destroy(a->books);
    free(a);
}

/* --- telling other nodes --- */

static bool all_know(void *arg)
{
    struct arenas *c = arg;
    for (uint32_t i = 0; i < c->w->size; i++)
        if (i != c->w->rank && fab_alive(c->w, i) &&
            (int32_t)(atomic_load_explicit(&c->peer[i].knows, memory_order_acquire) -
                      atomic_load_explicit(&c->peer[i].told, memory_order_relaxed)) < 0)
            return false;
    return true;
}

/* Tells all nodes about an arena, so that every node knows the arena before it gets an address in it. Waits until all nodes have confirmed,
 * or until the deadline. A stopped node handles this message later, but before any message that contains such an address. */
static void tell_all(struct arenas *c, const struct gpu_arena *a, uint64_t bytes, int64_t deadline)
{
    struct arena_space m = {.space = a->space,
                            .bytes = bytes,
                            .kind = arena_kind(&a->place),
                            .rdma = base_status_out(atomic_load_explicit(&a->rdma_why, memory_order_relaxed))};
    for (uint32_t i = 0; i < c->w->size; i++) {
        if (i == c->w->rank || !fab_alive(c->w, i))
            continue;
        atomic_fetch_add_explicit(&c->peer[i].told, 1, memory_order_relaxed);
        if (fab_send(c->w, i, ARENA_HANDLER_SPACE, &m, sizeof m, NULL, 0, NULL))
            atomic_fetch_sub_explicit(&c->peer[i].told, 1, memory_order_relaxed);
    }
    (void)fab_wait(c->w, all_know, c, deadline);
}

int arena_known(struct arenas *c, weft_gaddr addr, uint64_t bytes)
{
    uint32_t node = weft_gaddr_node(addr), space = weft_gaddr_space(addr);
    uint64_t offset = weft_gaddr_offset(addr), most = atomic_load_explicit(&c->peer[node].bytes[space], memory_order_relaxed);
    if (most == 0)
        return base_fail(-EFAULT,
                         "address %#llx: this node knows no arena of node %u in space %u: the arena was closed, was made before this node "
                         "joined, or was never made; make an arena there with weft_gpu_arena()",
                         (unsigned long long)addr, node, space);
    if (offset < MEM_EXTENT_BYTES || offset > most || bytes > most - offset)
        return base_fail(-EFAULT,
                         "address %#llx: %llu bytes at offset %llu are outside the arena in space %u of node %u; the arena has the offsets "
                         "from %llu to below %llu",
                         (unsigned long long)addr, (unsigned long long)bytes, (unsigned long long)offset, space, node,
                         (unsigned long long)MEM_EXTENT_BYTES, (unsigned long long)most);
    return 0;
}

/* --- arenas of this node --- */

/* Widens the range [low, high) of own arenas, so that it contains this memory. The caller holds table_lock for writing. */
static void widen(struct arenas *c, const struct gpu_memory *m)
{
    uint64_t low = (uint64_t)(uintptr_t)m->base, high = low + m->bytes;
    if (low < atomic_load_explicit(&c->low, memory_order_relaxed))
        atomic_store_explicit(&c->low, low, memory_order_relaxed);
    if (high > atomic_load_explicit(&c->high, memory_order_relaxed))
        atomic_store_explicit(&c->high, high, memory_order_relaxed);
}

int arena_new(struct arenas *c, const struct gpu_place *place, uint64_t bytes, uint32_t *space)
{
    if (!bytes || bytes > WEFT_MAX_POOL_BYTES - 2 * MEM_EXTENT_BYTES)
        return base_fail(-EINVAL, "an arena of %llu bytes: the size must be at least 1 byte and less than 16 TiB",
                         (unsigned long long)bytes);
    struct gpu_arena *a = calloc(1, sizeof *a);
    if (!a)
        return base_fail(-ENOMEM, "no memory for the description of an arena" BASE_MEMORY_HINT);
    a->place = *place;
    a->node = c->w->rank;
    uint64_t whole = base_round_up(bytes, MEM_EXTENT_BYTES) + MEM_EXTENT_BYTES; /* the first extent is never allocated */
    int rc = place->backend->memory_open(place->device, whole, &a->memory);
    if (rc) {
        free(a);
        return rc;
    }
    rc = mem_pool_create_books(&a->books, whole);
    if (!rc)
        rdma_open(c, a);
    pthread_rwlock_wrlock(&c->table_lock);
    uint32_t s = 1;
    while (s < ARENA_SPACES && c->own[s])
        s++;
    if (!rc && s == ARENA_SPACES)
        rc = base_fail(-ENOSPC, "this node has %u arenas, which is the most: close a GPU whose arenas are no longer needed",
                       ARENA_SPACES - 1);
    if (!rc) {
        a->space = s;
        c->own[s] = a;
        widen(c, &a->memory);
        atomic_store_explicit(&c->w->gpu_memory, true, memory_order_release);
    }
    pthread_rwlock_unlock(&c->table_lock);
    if (rc) {
        rdma_close(c, a);
        dispose(a, true);
        return rc;
    }
    view_show(c, a, NULL);
    tell_all(c, a, whole, fab_timeout(c->w, WEFT_TIMEOUT_DEFAULT));
    *space = s;
    return 0;
}

/* Returns this node's arena in the space. Returns NULL if there is no arena, or it is being closed. The caller holds table_lock. */
static struct gpu_arena *own_open(struct arenas *c, uint32_t space)
{
    struct gpu_arena *a = space < ARENA_SPACES ? c->own[space] : NULL;
    return a && !atomic_load_explicit(&a->closing, memory_order_relaxed) ? a : NULL;
}

_Static_assert(WEFT_DEVICE_FIRST == MEM_EXTENT_BYTES, "kernels and this node refuse the same offsets");

static int no_room(const struct gpu_arena *a, uint64_t bytes)
{
    struct mem_stats st;
    mem_stat(a->books, &st);
    return base_fail(-ENOMEM,
                     "no room for a buffer of %llu bytes in the arena in space %u, which has %llu bytes: the largest that fits now is %llu "
                     "bytes; free buffers, or open a larger arena (weft_gpu_arena())",
                     (unsigned long long)bytes, a->space, (unsigned long long)(a->memory.bytes - MEM_EXTENT_BYTES),
                     (unsigned long long)st.largest_free_bytes);
}

int arena_alloc(struct arenas *c, uint32_t space, uint64_t bytes, weft_gaddr *out)
{
    uint64_t offset;
    pthread_rwlock_rdlock(&c->table_lock);
    struct gpu_arena *a = own_open(c, space);
    int rc = a ? mem_alloc(a->books, bytes, 0, &offset)
               : base_fail(-EFAULT, "this node has no arena in space %u; call weft_gpu_arena() first", space);
    if (!rc)
        *out = weft_gaddr_make(c->w->rank, space, offset);
    else if (rc == -ENOMEM)
        rc = no_room(a, bytes);
    pthread_rwlock_unlock(&c->table_lock);
    return rc;
}

int arena_free(struct arenas *c, weft_gaddr addr)
{
    pthread_rwlock_rdlock(&c->table_lock);
    struct gpu_arena *a = own_open(c, weft_gaddr_space(addr));
    int rc =
        a ? mem_free(a->books, weft_gaddr_offset(addr))
          : base_fail(-EFAULT,
                      "cannot free address %#llx: this node has no arena in space %u; call weft_free() on the node that owns the arena, "
                      "before the arena is closed",
                      (unsigned long long)addr, weft_gaddr_space(addr));
    pthread_rwlock_unlock(&c->table_lock);
    return a && rc ? base_fail(rc,
                               "cannot free address %#llx: no buffer of the arena in space %u starts there, because it was freed already "
                               "or was never allocated; free each buffer once, by its start",
                               (unsigned long long)addr, weft_gaddr_space(addr))
                   : rc;
}

static bool within(const struct gpu_arena *a, uint64_t offset, uint64_t bytes)
{
    return offset >= MEM_EXTENT_BYTES && offset <= a->memory.bytes && bytes <= a->memory.bytes - offset;
}

/* Returns another node's arena in the space, if it is mapped in this process; NULL: it is not. The caller holds table_lock. */
static struct gpu_arena *other_open(struct arenas *c, uint32_t node, uint32_t space)
{
    struct arena_other *o = atomic_load_explicit(&c->other, memory_order_acquire); /* pairs with share_open() */
    if (!o)
        return NULL;
    o += node * ARENA_SPACES + space;
    bool mapped = atomic_load_explicit(&o->mapped, memory_order_acquire); /* pairs with share_map() */
    return mapped && !atomic_load_explicit(&o->arena.closing, memory_order_relaxed) ? &o->arena : NULL;
}

/* Finds the arena that contains the address, and counts a user. The caller holds table_lock. */
static int enter(struct arenas *c, weft_gaddr addr, uint64_t bytes, struct gpu_arena **out, void **at)
{
    uint32_t node = weft_gaddr_node(addr), space = weft_gaddr_space(addr);
    uint64_t offset = weft_gaddr_offset(addr);
    struct gpu_arena *a = node == c->w->rank ? own_open(c, space) : other_open(c, node, space);
    if (!a && node == c->w->rank)
        return base_fail(-EFAULT, "address %#llx: this node has no arena in space %u: it was closed, or never made (weft_gpu_arena())",
                         (unsigned long long)addr, space);
    if (a && !within(a, offset, bytes))
        return base_fail(-EFAULT,
                         "address %#llx: %llu bytes at offset %llu are outside the arena in space %u of node %u, which has the offsets "
                         "from %llu to below %llu",
                         (unsigned long long)addr, (unsigned long long)bytes, (unsigned long long)offset, space, node,
                         (unsigned long long)MEM_EXTENT_BYTES, (unsigned long long)a->memory.bytes);
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

/* Finds an arena of this node, or an arena of another node that is mapped in this process, and counts a user. Returns NULL if there is no
 * such arena. */
static struct gpu_arena *arena_hold(struct arenas *c, uint32_t node, uint32_t space)
{
    pthread_rwlock_rdlock(&c->table_lock);
    struct gpu_arena *a = node == c->w->rank ? own_open(c, space) : other_open(c, node, space);
    if (a)
        atomic_fetch_add_explicit(&a->users, 1, memory_order_relaxed);
    pthread_rwlock_unlock(&c->table_lock);
    return a;
}

static void for_all_arenas(struct arenas *c, const struct gpu_place *place,
                           void (*what)(struct arenas *, struct gpu_arena *, const struct gpu_place *))
{
    for (uint32_t node = 0; node < c->w->size; node++)
        for (uint32_t s = 1; s < ARENA_SPACES && (node == c->w->rank || node < c->w->founders); s++) {
            struct gpu_arena *a = arena_hold(c, node, s);
            if (a)
                what(c, a, place);
            arena_leave(a);
        }
}

/* Tells the other nodes that the RDMA device has refused the arena. Never waits. Returns false if the message to some node cannot be sent
 * now. */
static bool tell_refusal(struct arenas *c, struct gpu_arena *a)
{
    struct arena_space m = {
        .space = a->space, .bytes = ARENA_AS_BEFORE, .rdma = base_status_out(atomic_load_explicit(&a->rdma_why, memory_order_relaxed))};
    for (; m.rdma && a->rdma_tell < c->w->size; a->rdma_tell++) {
        uint32_t node = a->rdma_tell;
        if (fab_memory_leads(c->w, a->rdma, node) && fab_alive(c->w, node) &&
            fab_send(c->w, node, ARENA_HANDLER_SPACE, &m, sizeof m, NULL, 0, NULL) == -EAGAIN)
            return false;
    }
    return true;
}

void arena_tell_refusals(struct arenas *c)
{
    if (!atomic_load_explicit(&c->refusals, memory_order_relaxed) || !atomic_exchange_explicit(&c->refusals, false, memory_order_relaxed))
        return;
    for (uint32_t s = 1; s < ARENA_SPACES; s++) {
        struct gpu_arena *a = arena_hold(c, c->w->rank, s); /* hold the arena, so that no other arena gets this space meanwhile */
        if (a && !tell_refusal(c, a))
            atomic_store_explicit(&c->refusals, true, memory_order_relaxed);
        arena_leave(a);
    }
}

void arena_gpu_opened(struct arenas *c, const struct gpu_place *place)
{
    for_all_arenas(c, place, view_show);
}

void arena_gpu_closed(struct arenas *c, const struct gpu_place *place)
{
    for_all_arenas(c, place, view_drop);
}

/* Whether the memory may be in an arena of this node. relaxed: a thread that has an address in an arena has seen that the arena was opened
 */
static bool may_be_own(const struct arenas *c, const void *p)
{
    uint64_t at = (uint64_t)(uintptr_t)p;
    return at >= atomic_load_explicit(&c->low, memory_order_relaxed) && at < atomic_load_explicit(&c->high, memory_order_relaxed);
}

/* Finds this node's arena that contains the memory, even if the arena is being closed. The caller holds table_lock. */
static struct gpu_arena *find_memory(struct arenas *c, const void *p, uint64_t bytes)
{
    for (uint32_t s = 1; s < ARENA_SPACES; s++) {
        struct gpu_arena *a = c->own[s];
        uint64_t at = a ? (uintptr_t)p - (uintptr_t)a->memory.base : 0;
        if (a && at < a->memory.bytes && bytes <= a->memory.bytes - at)
            return a;
    }
    return NULL;
}

struct gpu_arena *arena_enter_memory(struct arenas *c, const void *p, uint64_t bytes)
{
    if (!may_be_own(c, p))
        return NULL;
    pthread_rwlock_rdlock(&c->table_lock);
    struct gpu_arena *a = find_memory(c, p, bytes);
    if (a && atomic_load_explicit(&a->closing, memory_order_relaxed))
        a = NULL;
    if (a)
        atomic_fetch_add_explicit(&a->users, 1, memory_order_relaxed);
    pthread_rwlock_unlock(&c->table_lock);
    return a;
}

/* Whether the memory is in an arena of this node. Also true if the arena is being closed: callers must not let the processor copy this
 * memory, which perhaps only a GPU can access. */
bool arena_owns(struct arenas *c, const void *p)
{
    if (!may_be_own(c, p))
        return false;
    pthread_rwlock_rdlock(&c->table_lock);
    bool is = find_memory(c, p, 0);
    pthread_rwlock_unlock(&c->table_lock);
    return is;
}

void arena_leave(struct gpu_arena *a)
{
    if (a)
        atomic_fetch_sub_explicit(&a->users, 1, memory_order_release); /* pairs with the acquire in arena_unused() */
}

void arena_refuse(struct arenas *c, struct gpu_arena *a)
{
    pthread_rwlock_wrlock(&c->table_lock);
    atomic_store_explicit(&a->closing, true, memory_order_relaxed);
    pthread_rwlock_unlock(&c->table_lock);
}

bool arena_unused(struct arenas *c, struct gpu_arena *a, int64_t deadline)
{
    arena_refuse(c, a);
    while (atomic_load_explicit(&a->users, memory_order_acquire)) {
        if (base_now_ns() >= deadline)
            return false;
        base_sleep_ns(100 * WEFT_US);
    }
    return true;
}

static bool close_own(struct arenas *c, struct gpu_arena *a, bool quiet, int64_t deadline)
{
    tell_all(c, a, 0, deadline);
    bool unused = arena_unused(c, a, deadline);
    if (!unused)
        base_log(BASE_LOG_WARN,
                 "the arena of this node in space %u was closed while operations on it were under way, so its memory is freed only when "
                 "this node is closed; wait for all operations on an arena before you close its GPU",
                 a->space);
    if (!unused || !quiet)
        return false;
    view_hide(c, a);
    pthread_rwlock_wrlock(&c->table_lock);
    c->own[a->space] = NULL;
    pthread_rwlock_unlock(&c->table_lock);
    rdma_close(c, a);
    dispose(a, true);
    return true;
}

/* Returns the arena in a space, if it is memory of that GPU and no other thread is closing it. The caller then closes the arena. */
static struct gpu_arena *own_of(struct arenas *c, uint32_t space, const void *where)
{
    pthread_rwlock_rdlock(&c->table_lock);
    struct gpu_arena *a = own_open(c, space);
    bool is = a && a->place.table == where;
    pthread_rwlock_unlock(&c->table_lock);
    return is ? a : NULL;
}

bool arena_close_all(struct arenas *c, const void *where, bool quiet, int64_t deadline)
{
    bool all = true;
    for (uint32_t s = 1; s < ARENA_SPACES; s++) {
        struct gpu_arena *a = own_of(c, s, where);
        all &= !a || close_own(c, a, quiet, deadline);
    }
    return all;
}

/* Call this after the transports are closed: from then on no device has an arena registered. */
void arena_free_all(struct arenas *c, bool quiet)
{
    for (uint32_t s = 1; s < ARENA_SPACES; s++)
        if (c->own[s])
            dispose(c->own[s], quiet);
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
