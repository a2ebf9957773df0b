/* SPDX-License-Identifier: MIT
 *
 * Allocation and free. The fast path uses the thread's own stack of blocks for each class: allocation pops a block and sets its mark; free
 * checks and clears the mark and pushes the block. All other paths are slow, and take the pool's lock.
 *
 * Limits of caches: STACK_BLOCKS blocks and STACK_BYTES for a class, THREAD_BYTES for a thread, an eighth of the pool for all threads
 * together. A stack starts small, and its limit grows when it becomes empty or full. When a thread that has reached its limit needs blocks
 * of a new class, it returns all its cached blocks and starts again. So when a pool is exhausted, the caches of other threads hold at most
 * an eighth of the pool.
 */
#include "mem/heap.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK_BLOCKS 256u
#define STACK_BYTES  (4u << 20)
#define THREAD_BYTES (8u << 20)
#define POOL_SHARE   8u

#define LIVE 1u

/* A stack of free blocks of one class: first <= top <= limit. Only the owning thread writes these fields; mem_stat() reads `top` and
 * `first`. */
struct stack {
    _Atomic(struct mem_block *) top;
    struct mem_block *first, *limit;
    uint32_t blocks; /* capacity of the array at `first` */
};

struct mem_cache {
    struct stack stack[CLASSES];
    uint64_t pool_id;
    uint64_t granted;              /* sum of the limits of all stacks, in bytes */
    struct mem_pool *pool;         /* NULL: the pool was destroyed; guarded by `registry` */
    struct mem_cache *mine;        /* list of the thread's caches */
    struct mem_cache *next, *prev; /* list of the pool's caches; guarded by the pool's lock */
};

/* The calling thread's caches: the cache that was used last, and the list of all its caches. */
static BASE_THREAD_LOCAL struct {
    uint64_t pool_id;
    struct mem_cache *cache, *all;
} here;

/* Guards the links between caches and pools, because a thread may end while a pool is being destroyed. */
static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_key; /* its destructor runs at the end of a thread */
static bool thread_key_made;

static inline struct mem_block *top_of(const struct stack *s)
{
    return atomic_load_explicit(&s->top, memory_order_relaxed);
}

static inline void set_top(struct stack *s, struct mem_block *top)
{
    atomic_store_explicit(&s->top, top, memory_order_relaxed);
}

/* --- returning blocks; the caller holds pool->lock --- */

/* Return the oldest `n` blocks of a stack to their slabs. The newest blocks stay, because they are likely in the processor's cache. */
static void give_oldest(struct mem_pool *p, struct stack *s, size_t n)
{
    struct mem_block *top = top_of(s);
    if (!n) /* the stack may not be allocated yet */
        return;
    for (size_t i = 0; i < n; i++)
        slab_put(p, s->first[i]);
    memmove(s->first, s->first + n, (size_t)(top - s->first - (ptrdiff_t)n) * sizeof *top);
    set_top(s, top - n);
}

static void empty(struct mem_pool *p, struct mem_cache *c)
{
    for (uint32_t i = 0; i < CLASSES; i++) {
        struct stack *s = &c->stack[i];
        give_oldest(p, s, (size_t)(top_of(s) - s->first));
        s->limit = s->first;
    }
    p->granted -= c->granted;
    c->granted = 0;
}

void cache_empty_own(struct mem_pool *p)
{
    for (struct mem_cache *c = here.all; c; c = c->mine) {
        if (c->pool_id == p->id)
            empty(p, c);
    }
}

uint64_t cache_blocks(const struct mem_pool *p, uint32_t class)
{
    uint64_t n = 0;
    for (const struct mem_cache *c = p->caches; c; c = c->next) {
        const struct stack *s = &c->stack[class];
        n += (uint64_t)(top_of(s) - s->first);
    }
    return n;
}

/* --- creating and freeing caches --- */

static void cache_release(struct mem_cache *c)
{
    for (uint32_t i = 0; i < CLASSES; i++)
        free(c->stack[i].first);
    free(c);
}

static void unlink_from_pool(struct mem_pool *p, struct mem_cache *c)
{
    if (c->next)
        c->next->prev = c->prev;
    if (c->prev)
        c->prev->next = c->next;
    else
        p->caches = c->next;
}

static void thread_ends(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&registry);
    while (here.all) {
        struct mem_cache *c = here.all;
        struct mem_pool *p = c->pool;
        here.all = c->mine;
        if (p) {
            base_spin_lock(&p->lock);
            empty(p, c);
            unlink_from_pool(p, c);
            base_spin_unlock(&p->lock);
        }
        cache_release(c);
    }
    here.cache = NULL;
    here.pool_id = 0;
    pthread_mutex_unlock(&registry);
}

static void make_key(void)
{
    thread_key_made = pthread_key_create(&thread_key, thread_ends) == 0;
}

/* Free this thread's caches of destroyed pools. The caller holds `registry`. */
static void prune(void)
{
    for (struct mem_cache **at = &here.all; *at;) {
        struct mem_cache *c = *at;
        if (c->pool) {
            at = &c->mine;
        } else {
            *at = c->mine;
            cache_release(c);
        }
    }
}

void cache_detach(struct mem_pool *p)
{
    pthread_mutex_lock(&registry);
    for (struct mem_cache *c = p->caches; c; c = c->next)
        c->pool = NULL;
    /* Other threads keep their detached caches until they end or create another cache. Ids of pools are never reused. */
    prune();
    if (here.pool_id == p->id) {
        here.cache = NULL;
        here.pool_id = 0;
    }
    pthread_mutex_unlock(&registry);
}

static struct mem_cache *make_cache(struct mem_pool *p)
{
    pthread_once(&once, make_key);
    /* Without the destructor, cached blocks would leak at the end of the thread. */
    if (!thread_key_made || pthread_setspecific(thread_key, &here))
        return NULL;
    size_t bytes = base_round_up(sizeof(struct mem_cache), BASE_CACHE_LINE);
    struct mem_cache *c = aligned_alloc(BASE_CACHE_LINE, bytes);
    if (!c)
        return NULL;
    memset(c, 0, bytes);
    c->pool = p;
    c->pool_id = p->id;
    pthread_mutex_lock(&registry);
    prune();
    c->mine = here.all;
    here.all = c;
    base_spin_lock(&p->lock);
    c->next = p->caches;
    if (c->next)
        c->next->prev = c;
    p->caches = c;
    base_spin_unlock(&p->lock);
    pthread_mutex_unlock(&registry);
    return c;
}

/* The calling thread's cache of a pool. Returns NULL if the cache cannot be created; then every operation takes the lock. */
static struct mem_cache *cache_here(struct mem_pool *p)
{
    if (here.pool_id == p->id)
        return here.cache;
    struct mem_cache *c = here.all;
    while (c && c->pool_id != p->id)
        c = c->mine;
    if (!c)
        c = make_cache(p);
    if (c) {
        here.cache = c;
        here.pool_id = p->id;
    }
    return c;
}

/* Raise the limit of a stack, within the limits of the thread and of the pool. The caller holds pool->lock. */
static void cache_grow(struct mem_pool *p, struct mem_cache *c, uint32_t class)
{
    struct stack *s = &c->stack[class];
    uint64_t size = p->class[class].size;
    if (!s->first) {
        uint64_t n = STACK_BYTES / size < STACK_BLOCKS ? STACK_BYTES / size : STACK_BLOCKS;
        struct mem_block *blocks = malloc(n * sizeof *blocks);
        if (!blocks)
            return;
        s->blocks = (uint32_t)n;
        s->first = s->limit = blocks;
        set_top(s, blocks);
    }
    uint64_t now = (uint64_t)(s->limit - s->first);
    /* The first limit is the number of blocks that one word of a slab's map covers, because the marks of these blocks fill one cache line.
     * So threads do not share cache lines of marks. */
    uint64_t wanted = now ? now * 2 : ((UINT64_C(64) << p->class[class].grain) + size - 1) / size;
    if (wanted > s->blocks)
        wanted = s->blocks;
    for (unsigned pass = 0; pass < 2; pass++) {
        uint64_t pool_left = p->bytes / POOL_SHARE > p->granted ? p->bytes / POOL_SHARE - p->granted : 0;
        uint64_t left = THREAD_BYTES - c->granted < pool_left ? THREAD_BYTES - c->granted : pool_left;
        uint64_t more = wanted - now < left / size ? wanted - now : left / size;
        if (more || now || !c->granted) {
            s->limit += more;
            c->granted += more * size;
            p->granted += more * size;
            return;
        }
        empty(p, c);
    }
}

/* --- statistics --- */

void mem_stat(struct mem_pool *p, struct mem_stats *out)
{
    *out = (struct mem_stats){.reserved_bytes = p->bytes, .segments = (uint32_t)((p->bytes + MEM_SEGMENT_BYTES - 1) / MEM_SEGMENT_BYTES)};
    base_spin_lock(&p->lock);
    /* Memory that an allocation can reclaim counts as free. */
    cache_empty_own(p);
    slab_trim(p);
    out->live_bytes = p->large_bytes;
    out->live_buffers = p->large_buffers;
    for (uint32_t i = 0; i < CLASSES; i++) {
        uint64_t cached = cache_blocks(p, i);
        uint64_t live = p->class[i].out > cached ? p->class[i].out - cached : 0;
        out->live_bytes += live * p->class[i].size;
        out->live_buffers += live;
    }
    out->largest_free_bytes = (uint64_t)run_largest(p) << EXTENT_SHIFT;
    for (uint32_t i = CLASSES; i-- > 0 && !out->largest_free_bytes;) {
        if (p->class[i].slabs)
            out->largest_free_bytes = p->class[i].size;
    }
    base_spin_unlock(&p->lock);
}

/* --- allocation --- */

static BASE_COLD int no_room(struct mem_pool *p, uint64_t bytes, uint64_t align)
{
    struct mem_stats st;
    char want[32], whole[32], largest[32], aligned[48] = "";
    mem_stat(p, &st);
    if (align > 16)
        snprintf(aligned, sizeof aligned, " aligned to %llu", (unsigned long long)align);
    return base_fail(-ENOMEM,
                     "no room for a buffer of %s%s in the pool of %s: the largest that fits now is %s; free buffers, or "
                     "open the node with a larger pool (WEFT_POOL)",
                     base_format_bytes(bytes, want, sizeof want), aligned, base_format_bytes(p->bytes, whole, sizeof whole),
                     base_format_bytes(st.largest_free_bytes, largest, sizeof largest));
}

static __attribute__((noinline)) int alloc_small(struct mem_pool *p, uint32_t class, uint64_t bytes, uint64_t *offset)
{
    struct mem_cache *c = cache_here(p);
    struct stack *s = c ? &c->stack[class] : NULL;
    struct mem_block *top = s ? top_of(s) : NULL;
    struct mem_block block;

    /* The cache may contain a block: the fast path is skipped if the thread has last used another pool, or if an alignment is requested. */
    if (s && top != s->first) {
        block = *--top;
        set_top(s, top);
    } else {
        base_spin_lock(&p->lock);
        uint32_t got = 0;
        if (s) {
            cache_grow(p, c, class);
            uint32_t room = (uint32_t)(s->limit - s->first);
            if (room) {
                got = slab_take(p, class, s->first, (room + 1) / 2, room);
                set_top(s, s->first + got - (got > 0));
                if (got)
                    block = s->first[got - 1];
            }
        }
        if (!got)
            got = slab_take(p, class, &block, 1, 1);
        if (!got) {
            /* Free this thread's cached blocks and all unused slabs, and try again. */
            cache_empty_own(p);
            slab_trim(p);
            got = slab_take(p, class, &block, 1, 1);
        }
        base_spin_unlock(&p->lock);
        if (!got)
            return no_room(p, bytes, 1);
    }
    atomic_store_explicit(block.mark, LIVE, memory_order_relaxed);
    *offset = block.offset;
    return 0;
}

static int alloc_large(struct mem_pool *p, uint64_t bytes, uint64_t align, uint64_t *offset)
{
    if (bytes > p->bytes)
        return no_room(p, bytes, align);
    uint64_t extents = (bytes + MEM_EXTENT_BYTES - 1) >> EXTENT_SHIFT;
    uint32_t step = align > MEM_EXTENT_BYTES ? (uint32_t)(align >> EXTENT_SHIFT) : 1;
    base_spin_lock(&p->lock);
    uint32_t first = run_take(p, extents, step);
    if (!first) {
        cache_empty_own(p);
        slab_trim(p);
        first = run_take(p, extents, step);
    }
    if (first) {
        p->kind[first] = RUN_LARGE;
        p->extent[first].run = (uint32_t)extents;
        p->large_bytes += extents << EXTENT_SHIFT;
        p->large_buffers++;
    }
    base_spin_unlock(&p->lock);
    if (!first)
        return no_room(p, bytes, align);
    *offset = (uint64_t)first << EXTENT_SHIFT;
    return 0;
}

static __attribute__((noinline)) int alloc_other(struct mem_pool *p, uint64_t bytes, uint64_t align, uint64_t *offset)
{
    if (!bytes)
        return base_fail(-EINVAL, "a buffer of 0 bytes was requested; request at least 1 byte");
    if (align & (align - 1) || align > MEM_ALIGN_MAX)
        return base_fail(-EINVAL, "a buffer with alignment %llu was requested: the alignment must be a power of two, at most %llu",
                         (unsigned long long)align, (unsigned long long)MEM_ALIGN_MAX);
    if (bytes > MEM_SMALL_MAX || align > MEM_SMALL_MAX)
        return alloc_large(p, bytes, align, offset);
    /* Slabs start at extents, so all blocks are aligned if their size is a multiple of the alignment. The largest class, 32 KiB, always
     * qualifies. */
    uint32_t class = class_of(bytes);
    while (p->class[class].size & (align - 1))
        class ++;
    return alloc_small(p, class, bytes, offset);
}

static __attribute__((noinline)) int alloc_slow(struct mem_pool *p, uint64_t bytes, uint64_t origin, uint64_t *out)
{
    uint64_t offset = 0;
    int rc = bytes - 1 < MEM_SMALL_MAX ? alloc_small(p, class_of(bytes), bytes, &offset) : alloc_other(p, bytes, 1, &offset);
    if (rc == 0)
        *out = origin + offset;
    return rc;
}

int mem_alloc_from(struct mem_pool *p, uint64_t bytes, uint64_t origin, uint64_t *out)
{
    if (BASE_LIKELY(bytes - 1 < MEM_SMALL_MAX && here.pool_id == p->id)) {
        struct stack *s = &here.cache->stack[class_of(bytes)];
        struct mem_block *top = top_of(s);
        if (BASE_LIKELY(top != s->first)) {
            struct mem_block block = *--top;
            set_top(s, top);
            atomic_store_explicit(block.mark, LIVE, memory_order_relaxed);
            *out = origin + block.offset;
            return 0;
        }
    }
    return alloc_slow(p, bytes, origin, out);
}

int mem_alloc(struct mem_pool *p, uint64_t bytes, uint64_t align, uint64_t *offset)
{
    return align <= 1 ? mem_alloc_from(p, bytes, 0, offset) : alloc_other(p, bytes, align, offset);
}

/* --- free --- */

/* Make the error for an offset at which no live buffer starts. If another thread is freeing a buffer at this offset, the error may describe
 * the state before or after that free. */
static BASE_COLD int cache_refuse(struct mem_pool *p, uint64_t offset)
{
    uint64_t e = offset >> EXTENT_SHIFT, start = 0, size = 0;
    if (e < p->heap || e >= p->extents)
        return base_fail(-EFAULT,
                         "cannot free pool offset 0x%llx: buffers are at offsets from 0x%llx to 0x%llx; free only what weft_alloc() "
                         "returned on this node",
                         (unsigned long long)offset, (unsigned long long)p->heap << EXTENT_SHIFT, (unsigned long long)p->bytes);
    base_spin_lock(&p->lock);
    if (p->kind[e] == RUN_SLAB) {
        struct mem_slab *s = p->extent[e].slab;
        uint32_t block = p->class[s->class].size;
        uint64_t base = (uint64_t)s->extent << EXTENT_SHIFT;
        uint64_t index = (offset - base) / block;
        if (index < s->blocks && atomic_load_explicit(&s->marks[index * (block >> p->class[s->class].grain)], memory_order_relaxed)) {
            start = base + index * block;
            size = block;
        }
    } else {
        uint32_t head = run_head_of(p, (uint32_t)e);
        if (p->kind[head] == RUN_LARGE) {
            start = (uint64_t)head << EXTENT_SHIFT;
            size = (uint64_t)p->extent[head].run << EXTENT_SHIFT;
        }
    }
    base_spin_unlock(&p->lock);
    if (size)
        return base_fail(-EINVAL,
                         "cannot free pool offset 0x%llx: it is inside the buffer of %llu bytes at 0x%llx; free the buffer by its start",
                         (unsigned long long)offset, (unsigned long long)size, (unsigned long long)start);
    return base_fail(-EALREADY,
                     "cannot free pool offset 0x%llx: no buffer starts there, because it was freed already or was never allocated; free "
                     "each buffer once",
                     (unsigned long long)offset);
}

static __attribute__((noinline)) int free_large(struct mem_pool *p, uint64_t offset)
{
    uint64_t e = offset >> EXTENT_SHIFT;
    bool live = false;
    if (e < p->extents && (offset & (MEM_EXTENT_BYTES - 1)) == 0) {
        base_spin_lock(&p->lock);
        live = p->kind[e] == RUN_LARGE;
        if (live) {
            uint32_t run = p->extent[e].run;
            p->large_bytes -= (uint64_t)run << EXTENT_SHIFT;
            p->large_buffers--;
            run_give(p, (uint32_t)e, run);
        }
        base_spin_unlock(&p->lock);
    }
    return live ? 0 : cache_refuse(p, offset);
}

/* The slow path of mem_free(): the stack is full, or this thread has last used another pool. */
static __attribute__((noinline)) int free_small(struct mem_pool *p, uint32_t class, struct mem_block block)
{
    atomic_store_explicit(block.mark, 0, memory_order_relaxed);
    struct mem_cache *c = cache_here(p);
    struct stack *s = c ? &c->stack[class] : NULL;
    if (s && top_of(s) == s->limit) {
        base_spin_lock(&p->lock);
        cache_grow(p, c, class);
        if (top_of(s) == s->limit)
            give_oldest(p, s, ((size_t)(s->limit - s->first) + 1) / 2);
        base_spin_unlock(&p->lock);
    }
    if (s && top_of(s) != s->limit) {
        struct mem_block *top = top_of(s);
        *top = block;
        set_top(s, top + 1);
    } else {
        base_spin_lock(&p->lock);
        slab_put(p, block);
        base_spin_unlock(&p->lock);
    }
    return 0;
}

static inline uint64_t tag_of(struct mem_pool *p, uint64_t offset)
{
    uint64_t e = offset >> EXTENT_SHIFT;
    /* acquire: pairs with the release in slab_make(). Usually the program already orders the two accesses, but the thread sanitizer cannot
     * see this order if the offset passes through another process. */
    return BASE_LIKELY(e < p->extents) ? atomic_load_explicit(&p->extent[e].tag, memory_order_acquire) : 0;
}

int mem_free(struct mem_pool *p, uint64_t offset)
{
    uint64_t tag = tag_of(p, offset);
    if (BASE_UNLIKELY(!tag))
        return free_large(p, offset);
    uint32_t granule = granule_of(tag, offset);
    if (BASE_UNLIKELY(granule >= MEM_EXTENT_BYTES))
        return cache_refuse(p, offset);
    mem_mark *mark = mark_of(tag, granule);
    if (BASE_UNLIKELY(!atomic_load_explicit(mark, memory_order_relaxed)))
        return cache_refuse(p, offset);
    uint32_t class = (uint32_t)(tag >> TAG_CLASS_SHIFT) & 0xff;
    if (BASE_LIKELY(here.pool_id == p->id)) {
        struct stack *s = &here.cache->stack[class];
        struct mem_block *top = top_of(s);
        if (BASE_LIKELY(top != s->limit)) {
            atomic_store_explicit(mark, 0, memory_order_relaxed);
            *top = (struct mem_block){.offset = offset, .mark = mark};
            set_top(s, top + 1);
            return 0;
        }
    }
    return free_small(p, class, (struct mem_block){.offset = offset, .mark = mark});
}

uint64_t mem_size(struct mem_pool *p, uint64_t offset)
{
    uint64_t tag = tag_of(p, offset), size = 0;
    if (tag) {
        uint32_t granule = granule_of(tag, offset);
        if (granule < MEM_EXTENT_BYTES && atomic_load_explicit(mark_of(tag, granule), memory_order_relaxed))
            size = p->class[(tag >> TAG_CLASS_SHIFT) & 0xff].size;
        return size;
    }
    uint64_t e = offset >> EXTENT_SHIFT;
    if (e < p->extents && (offset & (MEM_EXTENT_BYTES - 1)) == 0) {
        base_spin_lock(&p->lock);
        if (p->kind[e] == RUN_LARGE)
            size = (uint64_t)p->extent[e].run << EXTENT_SHIFT;
        base_spin_unlock(&p->lock);
    }
    return size;
}
