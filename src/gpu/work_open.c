/* SPDX-License-Identifier: MIT
 *
 * Opening and closing persistent workers: their settings, their memory and their threads (work.c).
 */
#include "gpu/work.h"

#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define CONFIG_FIRST  (offsetof(weft_gpu_worker_config, renew_ns) + sizeof((weft_gpu_worker_config *)0)->renew_ns)
#define AHEAD_DEFAULT 1024u
#define AHEAD_MAX     65536u
#define SLOTS_A_TASK  4u
#define TASK_NS       (10 * WEFT_SECOND)
#define RENEW_NS      (10 * WEFT_SECOND)
#define RENEWALS      4 /* by default, the number of renewals within one lease; so a late renewal does no harm */
#define LINE          128u

/* How often leases are renewed by default: a part of the lease with which this node has opened the queue. Other nodes may have opened it
 * with a shorter lease, which this node does not know. */
static int64_t renew_default(weft_queue *q)
{
    weft_queue_stats stats;
    if (weft_queue_stat(q, &stats, sizeof stats))
        return RENEW_NS; /* the queue is closed */
    int64_t part = stats.lease_ns / RENEWALS;
    return part < 1 ? 1 : part < RENEW_NS ? part : RENEW_NS;
}

static int work_check(weft_queue *q, const weft_gpu_worker_config *config, weft_gpu_worker_config *c)
{
    *c = (weft_gpu_worker_config){0};
    int rc = config ? base_take_struct(c, sizeof *c, config, CONFIG_FIRST, "weft_gpu_worker_config") : 0;
    if (rc)
        return rc;
    c->ahead = c->ahead ? c->ahead : AHEAD_DEFAULT;
    c->task_ns = c->task_ns ? c->task_ns : TASK_NS;
    c->renew_ns = c->renew_ns ? c->renew_ns : renew_default(q);
    if (c->ahead > AHEAD_MAX || (c->ahead & (c->ahead - 1)))
        return base_fail(-EINVAL, "weft_gpu_worker_config.ahead is %u: it must be a power of two, at most %u", c->ahead, AHEAD_MAX);
    if (c->task_ns < 0 || c->renew_ns < 0)
        return base_fail(-EINVAL, "weft_gpu_worker_config.%s is negative: it must be positive, or 0 for the default",
                         c->task_ns < 0 ? "task_ns" : "renew_ns");
    return 0;
}

/* Makes the memory that kernels and node share. */
static int make_ring(weft_gpu_worker *k, uint64_t *there)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), slots = k->mask + 1;
    k->bytes = base_round_up(slots * sizeof *k->slots + 2 * LINE + WEFT_DEVICE_BEATS * sizeof(uint64_t), page);
    k->memory = mmap(NULL, k->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    k->tasks = aligned_alloc(BASE_CACHE_LINE, slots * sizeof *k->tasks);
    k->done = calloc(slots, sizeof *k->done);
    if (k->memory == MAP_FAILED || !k->tasks || !k->done) {
        k->memory = k->memory == MAP_FAILED ? NULL : k->memory;
        return base_fail(-ENOMEM, "no memory for a ring of %zu tasks of a GPU's worker" BASE_MEMORY_HINT, slots);
    }
    base_touch_near(k->all->near, k->memory, k->bytes);
    memset(k->tasks, 0, slots * sizeof *k->tasks);
    k->slots = k->memory;
    uint8_t *rest = (uint8_t *)(k->slots + slots);
    k->filled = (uint64_t *)(void *)rest;
    k->ended = (uint64_t *)(void *)(rest + LINE);
    k->beats = (uint64_t *)(void *)(rest + (size_t)2 * LINE);
    int rc = k->all->backend->attach(k->all->device, k->memory, k->bytes, there);
    k->attached = rc == 0;
    return rc;
}

static int work_make(weft_gpu_worker *k)
{
    const struct gpu_backend *b = k->all->backend;
    uint64_t there;
    int rc = make_ring(k, &there);
    if (!rc)
        rc = b->alloc(k->all->device, base_round_up(sizeof(weft_device_worker), LINE) + 2 * (size_t)LINE, &k->own);
    if (rc)
        return rc;
    uint64_t rest = there + (k->mask + 1) * sizeof *k->slots;
    uint8_t *words = (uint8_t *)k->own + base_round_up(sizeof(weft_device_worker), LINE);
    weft_device_worker image = {
        .number = k->number,
        .mask = k->mask,
        .slots = (const weft_device_task_slot *)(uintptr_t)there,
        .filled = (const uint64_t *)(uintptr_t)rest,
        .ended = (const uint64_t *)(uintptr_t)(rest + LINE),
        .beats = (uint64_t *)(uintptr_t)(rest + 2 * (uint64_t)LINE),
        .next = (uint64_t *)(void *)words,
        .filled_seen = (uint64_t *)(void *)(words + LINE),
    };
    return b->fill(k->all->device, k->own, &image, sizeof image);
}

static void work_unmake(weft_gpu_worker *k)
{
    if (k->own)
        k->all->backend->free(k->all->device, k->own);
    if (k->attached)
        k->all->backend->detach(k->all->device, k->memory);
    if (k->memory)
        munmap(k->memory, k->bytes);
    free(k->tasks);
    free(k->done);
    pthread_mutex_destroy(&k->lease_lock);
    pthread_cond_destroy(&k->wakes);
    free(k);
}

static void work_end_second(weft_gpu_worker *k)
{
    atomic_store_explicit(&k->over, true, memory_order_release);
    gpu_work_wake(k);
    pthread_join(k->second, NULL);
}

static int work_open_one(struct gpu_workers *all, weft_gpu_worker *k)
{
    if (all->count == GPU_WORKERS_MAX)
        return base_fail(-ENOSPC,
                         "weft_gpu_worker_open(): %u workers were opened on GPU %s, which is the most, and closed workers count, too; use "
                         "workers again instead of opening new ones, or close the GPU and open it again",
                         GPU_WORKERS_MAX, all->name);
    k->number = all->count;
    int rc = work_make(k);
    if (rc)
        return rc;
    k->open = true;
    rc = base_thread(&k->second, gpu_work_finish, k);
    if (!rc && (rc = base_thread(&k->thread, gpu_work_run, k)) != 0)
        work_end_second(k);
    if (rc)
        return base_fail(rc, "cannot start the thread of a GPU's worker: %s" BASE_THREAD_HINT, base_strerror(rc));
    atomic_store_explicit(&all->worker[all->count++], k, memory_order_release);
    return 0;
}

int gpu_work_open(struct gpu_workers *all, weft_queue *q, const weft_gpu_worker_config *config, weft_gpu_worker **out)
{
    weft_gpu_worker_config c;
    int rc = work_check(q, config, &c);
    if (rc)
        return rc;
    weft_gpu_worker *k = aligned_alloc(BASE_CACHE_LINE, sizeof *k);
    if (!k)
        return base_fail(-ENOMEM, "no memory for a worker of a GPU" BASE_MEMORY_HINT);
    memset(k, 0, sizeof *k);
    pthread_mutex_init(&k->lease_lock, NULL);
    pthread_cond_init(&k->wakes, NULL);
    k->all = all;
    k->q = q;
    k->config = c;
    k->mask = (uint64_t)c.ahead * SLOTS_A_TASK - 1;
    k->until = INT64_MAX;
    pthread_mutex_lock(&all->lock);
    rc = work_open_one(all, k);
    pthread_mutex_unlock(&all->lock);
    if (rc)
        work_unmake(k);
    else
        *out = k;
    return rc;
}

/* Begins to close the worker. False: it was closed already. */
static bool work_close(weft_gpu_worker *k, int64_t deadline)
{
    pthread_mutex_lock(&k->all->lock);
    bool open = k->open;
    k->open = false;
    pthread_mutex_unlock(&k->all->lock);
    if (open)
        atomic_store_explicit(&k->until, deadline, memory_order_release);
    return open;
}

static void work_join(weft_gpu_worker *k)
{
    pthread_join(k->thread, NULL);
    work_end_second(k);
}

void gpu_work_end(struct gpu_workers *all, int64_t deadline)
{
    bool open[GPU_WORKERS_MAX];
    for (uint32_t i = 0; i < all->count; i++)
        open[i] = work_close(atomic_load_explicit(&all->worker[i], memory_order_relaxed), deadline);
    for (uint32_t i = 0; i < all->count; i++)
        if (open[i])
            work_join(atomic_load_explicit(&all->worker[i], memory_order_relaxed));
}

void gpu_work_free(struct gpu_workers *all)
{
    for (uint32_t i = 0; i < all->count; i++)
        work_unmake(atomic_load_explicit(&all->worker[i], memory_order_relaxed));
    all->count = 0;
}

const weft_device_worker *weft_gpu_worker_device(weft_gpu_worker *k)
{
    return k->own;
}

int weft_gpu_worker_close(weft_gpu_worker *k)
{
    if (!k)
        return 0;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_gpu_worker_close() must not be called from a handler: call it in another thread");
    if (!work_close(k, fab_timeout(k->all->w, WEFT_TIMEOUT_DEFAULT)))
        return base_fail(-EINVAL, "weft_gpu_worker_close(): this worker is closed already; close each worker once");
    work_join(k);
    return 0;
}

int weft_gpu_worker_stat(weft_gpu_worker *k, weft_gpu_worker_stats *out, size_t bytes)
{
    weft_gpu_worker_stats stats = {0};
    /* acquire, and read `claimed` last: a task that counts as done must also count as claimed */
    stats.done = atomic_load_explicit(&k->completed, memory_order_acquire);
    stats.refused = atomic_load_explicit(&k->refused, memory_order_relaxed);
    stats.taken_back = atomic_load_explicit(&k->taken_back, memory_order_acquire);
    stats.claimed = atomic_load_explicit(&k->claimed, memory_order_relaxed);
    base_give_struct(out, bytes, &stats, sizeof stats);
    return 0;
}
