/* SPDX-License-Identifier: MIT
 *
 * The pool's range of memory: creates, maps, locks and frees it, and reports its properties.
 */
#include "mem/heap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "weft/types.h"

#define HUGE_PAGE MEM_ALIGN_MAX

/* Reserve private memory; only touched pages take physical memory. */
static void *reserve(uint64_t bytes)
{
    void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return m == MAP_FAILED ? NULL : m;
}

static int pool_check_size(uint64_t bytes, bool huge)
{
    char want[32], have[32], whole[32];
    base_format_bytes(bytes, want, sizeof want);
    uint64_t available = base_memory_available();
    if (!huge && bytes > available)
        return base_fail(-ENOMEM, "a pool of %s does not fit: this machine has %s available of %s; set a smaller WEFT_POOL", want,
                         base_format_bytes(available, have, sizeof have), base_format_bytes(base_memory_total(), whole, sizeof whole));
    if (bytes > WEFT_MAX_POOL_BYTES)
        return base_fail(-EINVAL, "a pool of %s is too large: the largest possible pool has %s; set a smaller WEFT_POOL", want,
                         base_format_bytes(WEFT_MAX_POOL_BYTES, have, sizeof have));
    uint64_t free_huge = base_memory_huge();
    if (huge && bytes > free_huge)
        return base_fail(-ENOMEM,
                         "a pool of %s in huge pages needs %llu pages of 2 MiB: this machine has %llu free; reserve them (as root: sysctl "
                         "vm.nr_hugepages=%llu) or unset WEFT_POOL_HUGE",
                         want, (unsigned long long)(bytes / HUGE_PAGE), (unsigned long long)(free_huge / HUGE_PAGE),
                         (unsigned long long)(bytes / HUGE_PAGE));
    return 0;
}

void *mem_map(int fd, uint64_t bytes)
{
    uint64_t wide = bytes + HUGE_PAGE;
    uint8_t *range = mmap(NULL, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
        return NULL;
    uint8_t *base = (uint8_t *)(uintptr_t)base_round_up((uintptr_t)range, HUGE_PAGE);
    void *got = mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
    if (got == MAP_FAILED) {
        int error = errno;
        munmap(range, wide);
        errno = error;
        return NULL;
    }
    if (base > range)
        munmap(range, (size_t)(base - range));
    uint8_t *end = base + bytes;
    if (range + wide > end)
        munmap(end, (size_t)(range + wide - end));
    return base;
}

/* --- pages --- */

#if defined(__linux__) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25 /* since Linux 6.1; missing in older headers */
#endif

bool mem_can_enlarge(const struct mem_pool *p, uint64_t offset, uint64_t bytes)
{
#if defined(MADV_COLLAPSE)
    uint64_t i = offset / HUGE_PAGE;
    return p->asked && bytes >= HUGE_PAGE / 4 && (i + 1) * HUGE_PAGE <= p->bytes &&
           !atomic_load_explicit(&p->asked[i], memory_order_relaxed) && !atomic_load_explicit(&p->enlarging, memory_order_relaxed);
#else
    (void)p, (void)offset, (void)bytes;
    return false;
#endif
}

#if defined(MADV_COLLAPSE)
/* The system first waits until one of its threads has run on each processor (lru_add_drain_all() in Linux). On a busy machine this takes
 * hundreds of milliseconds, and up to a minute was seen. Meanwhile no other thread of this process can map or unmap memory. */
static void *enlarge(void *arg)
{
    struct mem_pool *p = arg;
    for (uint64_t i = p->enlarge_at / HUGE_PAGE; i * HUGE_PAGE < p->enlarge_at + p->enlarge_bytes && (i + 1) * HUGE_PAGE <= p->bytes; i++)
        if (!atomic_exchange_explicit(&p->asked[i], 1, memory_order_relaxed)) /* madvise() fails if a device has the pages registered */
            (void)madvise(p->base + i * HUGE_PAGE, HUGE_PAGE, MADV_COLLAPSE);
    atomic_store_explicit(&p->enlarging, false, memory_order_release); /* pairs with the acquire in mem_enlarge() */
    return NULL;
}
#endif

void mem_enlarge(struct mem_pool *p, uint64_t offset, uint64_t bytes)
{
#if defined(MADV_COLLAPSE)
    if (!p->asked || atomic_exchange_explicit(&p->enlarging, true, memory_order_acquire))
        return;
    p->enlarge_at = offset;
    p->enlarge_bytes = bytes;
    pthread_t thread;
    if (base_thread(&thread, enlarge, p) == 0)
        pthread_detach(thread); /* joining it could wait until a processor is free */
    else
        atomic_store_explicit(&p->enlarging, false, memory_order_release); /* pairs with the acquire above */
#else
    (void)p, (void)offset, (void)bytes;
#endif
}

void mem_prepare(struct mem_pool *p, uint64_t offset, uint64_t bytes)
{
#if defined(MADV_POPULATE_WRITE)
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = offset / page * page;
    int error = errno;
    (void)madvise(p->base + first, offset + bytes - first, MADV_POPULATE_WRITE); /* fails before Linux 5.14 */
    errno = error;
#else
    (void)p, (void)offset, (void)bytes;
#endif
}

static int prefault(struct mem_pool *p)
{
#if defined(MADV_POPULATE_WRITE)
    if (madvise(p->base, p->bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL) /* kernels before Linux 5.14 return EINVAL */
        return base_fail(-errno,
                         "cannot touch the %llu bytes of the pool when the node opens (WEFT_POOL_PREFAULT): %s; make the pool smaller "
                         "(WEFT_POOL), or unset WEFT_POOL_PREFAULT",
                         (unsigned long long)p->bytes, base_strerror(errno));
#endif
    long page = sysconf(_SC_PAGESIZE);
    for (uint64_t at = 0; at < p->bytes; at += (uint64_t)page)
        *(volatile uint8_t *)(p->base + at) = 0;
    return 0;
}

static int lock_pages(struct mem_pool *p)
{
    if (mlock(p->base, p->bytes) == 0)
        return 0;
    int error = errno;
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    char want[32], have[32];
    return base_fail(-error,
                     "cannot lock the pool of %s in memory: %s; this process may lock %s: raise that limit (ulimit -l, or memlock in "
                     "/etc/security/limits.conf), or unset WEFT_POOL_LOCK",
                     base_format_bytes(p->bytes, want, sizeof want), base_strerror(error),
                     limit.rlim_cur == RLIM_INFINITY ? "unlimited" : base_format_bytes(limit.rlim_cur, have, sizeof have));
}

/* Allocate a pool's record, without the pool's memory. */
static struct mem_pool *pool_new(uint64_t bytes, uint64_t heap)
{
    static _Atomic uint64_t next_id = 1;
    struct mem_pool *p = aligned_alloc(BASE_CACHE_LINE, base_round_up(sizeof *p, BASE_CACHE_LINE));
    if (!p) {
        base_fail(-ENOMEM, "no memory to manage the buffers of the pool" BASE_MEMORY_HINT);
        return NULL;
    }
    memset(p, 0, sizeof *p);
    p->id = atomic_fetch_add_explicit(&next_id, 1, memory_order_relaxed);
    p->bytes = bytes;
    p->extents = bytes >> EXTENT_SHIFT;
    p->heap = (uint32_t)(heap >> EXTENT_SHIFT);
    p->fd = -1;
    return p;
}

/* Create the allocator's records of extents, with one free run for the whole heap. */
static int pool_start(struct mem_pool *p)
{
    p->extent = reserve(p->extents * sizeof *p->extent);
    p->kind = reserve(p->extents);
    if (!p->extent || !p->kind) {
        if (p->extent)
            munmap(p->extent, p->extents * sizeof *p->extent);
        if (p->kind)
            munmap(p->kind, p->extents);
        return base_fail(-ENOMEM, "no memory to manage the %llu parts of 64 KiB of the pool" BASE_MEMORY_HINT,
                         (unsigned long long)p->extents);
    }
    slab_init(p);
    run_init(p);
    return 0;
}

int mem_pool_create_books(struct mem_pool **out, uint64_t bytes)
{
    if (bytes < 2 * MEM_EXTENT_BYTES || bytes % MEM_EXTENT_BYTES || bytes > WEFT_MAX_POOL_BYTES)
        return base_fail(-EINVAL, "an arena of %llu bytes: the size must be a multiple of 64 KiB, at least 128 KiB and at most 16 TiB",
                         (unsigned long long)bytes);
    struct mem_pool *p = pool_new(bytes, MEM_EXTENT_BYTES);
    int rc = p ? pool_start(p) : -ENOMEM;
    if (rc) {
        free(p);
        return rc;
    }
    *out = p;
    return 0;
}

int mem_pool_create(struct mem_pool **out, const struct mem_options *o)
{
    uint64_t heap = o->heap_offset ? base_round_up(o->heap_offset, MEM_EXTENT_BYTES) : MEM_EXTENT_BYTES;
    uint64_t unit = o->huge ? HUGE_PAGE : MEM_EXTENT_BYTES;
    /* Check the size first, because rounding up could overflow. */
    int rc = pool_check_size(o->bytes, o->huge);
    if (rc)
        return rc;
    uint64_t bytes = base_round_up(o->bytes, unit);
    rc = pool_check_size(bytes, o->huge);
    if (rc)
        return rc;
    uint64_t least = heap + MEM_EXTENT_BYTES;
    if (o->heap_offset > o->bytes || bytes < least)
        return base_fail(-EINVAL,
                         "a pool of %llu bytes is too small: weft itself uses the first %llu bytes, so set WEFT_POOL to at least %llu",
                         (unsigned long long)o->bytes, (unsigned long long)heap, (unsigned long long)least);

    struct mem_pool *p = pool_new(bytes, heap);
    if (!p)
        return -ENOMEM;
    p->fd = base_memory_fd("weft-pool", bytes, o->huge);
    rc = p->fd;
    if (rc < 0)
        goto fail_fd;
    p->base = mem_map(p->fd, bytes);
    if (!p->base) {
        rc = base_fail(
            -errno,
            "cannot map the pool's memory of %llu bytes: %s; a limit may be too low (ulimit -v), or make the pool smaller (WEFT_POOL)",
            (unsigned long long)bytes, base_strerror(errno));
        goto fail_map;
    }
    if (!o->huge && bytes >= 16 * HUGE_PAGE) {
#if defined(MADV_HUGEPAGE)
        /* Huge pages make large pools faster. Errors are ignored: not every system supports them for shared memory. */
        (void)madvise(p->base, bytes, MADV_HUGEPAGE);
#endif
        p->asked = reserve(bytes / HUGE_PAGE);
    }
    if (o->lock && (rc = lock_pages(p)))
        goto fail_books;
    if (o->prefault && (rc = prefault(p)))
        goto fail_books;
    rc = pool_start(p);
    if (rc)
        goto fail_books;
    *out = p;
    return 0;

fail_books:
    if (p->asked)
        munmap((void *)p->asked, bytes / HUGE_PAGE);
    munmap(p->base, p->bytes);
fail_map:
    close(p->fd);
fail_fd:
    free(p);
    return rc;
}

void mem_pool_destroy(struct mem_pool *p)
{
    if (!p)
        return;
    while (atomic_load_explicit(&p->enlarging, memory_order_acquire)) /* pairs with the release in enlarge() */
        base_sleep_ns(WEFT_MS);
    cache_detach(p);
    slab_fini(p);
    munmap(p->kind, p->extents);
    munmap(p->extent, p->extents * sizeof *p->extent);
    if (p->asked)
        munmap((void *)p->asked, p->bytes / HUGE_PAGE);
    if (p->base)
        munmap(p->base, p->bytes);
    if (p->fd >= 0)
        close(p->fd);
    free(p);
}

void *mem_base(const struct mem_pool *p)
{
    return p->base;
}

uint64_t mem_bytes(const struct mem_pool *p)
{
    return p->bytes;
}

int mem_fd(const struct mem_pool *p)
{
    return p->fd;
}
