/* SPDX-License-Identifier: MIT
 *
 * The open GPUs of this node, and which of them can access which arena. Kernels of another GPU of this process can access an arena if the
 * back end gives that GPU access. Each GPU has a table of the arenas that its kernels can access.
 */
#include "gpu/arena.h"

uint64_t arena_kind(const struct gpu_place *p)
{
    uint64_t kind = 0;
    memcpy(&kind, p->backend->name, strnlen(p->backend->name, sizeof kind));
    return kind;
}

int view_list(struct arenas *c, struct gpu_place *place)
{
    uint32_t i = 0;
    pthread_mutex_lock(&c->gpus_lock);
    while (i < ARENA_GPUS && c->gpus[i].backend)
        i++;
    if (i < ARENA_GPUS) {
        place->number = i;
        c->gpus[i] = *place;
        c->gpu_ends[i] = false;
    }
    pthread_mutex_unlock(&c->gpus_lock);
    return i < ARENA_GPUS
               ? 0
               : base_fail(-ENOSPC, "this node has %u GPUs open, which is the most: close a GPU first (weft_gpu_close())", ARENA_GPUS);
}

void view_end(struct arenas *c, const struct gpu_place *place)
{
    pthread_mutex_lock(&c->gpus_lock);
    c->gpu_ends[place->number] = true;
    pthread_mutex_unlock(&c->gpus_lock);
}

void view_unlist(struct arenas *c, const struct gpu_place *place)
{
    pthread_mutex_lock(&c->gpus_lock);
    c->gpus[place->number] = (struct gpu_place){0};
    pthread_mutex_unlock(&c->gpus_lock);
}

bool view_find(struct arenas *c, uint64_t kind, struct gpu_place *out)
{
    bool any = false;
    pthread_mutex_lock(&c->gpus_lock);
    *out = (struct gpu_place){0};
    for (uint32_t i = 0; i < ARENA_GPUS && !out->backend; i++) {
        bool usable = c->gpus[i].backend && !c->gpu_ends[i];
        any |= usable;
        if (usable && arena_kind(&c->gpus[i]) == kind)
            *out = c->gpus[i];
    }
    pthread_mutex_unlock(&c->gpus_lock);
    return any;
}

/* Writes the arena into the GPU's table. The length is cleared first and written last, because kernels read it first (weft_device_ptr()).
 */
static void show(const struct gpu_arena *a, const struct gpu_place *gpu, uint64_t base, uint64_t bytes)
{
    uint64_t *entry = gpu->table + 2 * ((size_t)a->node * ARENA_SPACES + a->space);
    if (base)
        (void)gpu->backend->fill(gpu->device, entry, &base, sizeof base);
    (void)gpu->backend->fill(gpu->device, entry + 1, &bytes, sizeof bytes);
}

/* Whether kernels of a GPU can access the arena: the GPU is the arena's own, or the back end gives it access. */
static bool allow(const struct gpu_arena *a, const struct gpu_place *gpu)
{
    const struct gpu_backend *b = gpu->backend;
    if (gpu->table == a->place.table)
        return true;
    if (b != a->place.backend || !b->memory_allow)
        return false;
    bool may = b->memory_allow(gpu->device, &a->memory) == 0;
    if (!may)
        base_error_clear(); /* clear the error, because the GPU's kernels can make requests instead */
    return may;
}

/* The caller holds gpus_lock. */
static void view_add(struct gpu_arena *a, const struct gpu_place *gpu)
{
    uint64_t bit = UINT64_C(1) << gpu->number;
    if (!(atomic_load_explicit(&a->gpus, memory_order_relaxed) & bit) && allow(a, gpu)) {
        show(a, gpu, a->memory.there, a->memory.bytes);
        atomic_fetch_or_explicit(&a->gpus, bit, memory_order_release); /* pairs with view_reaches() */
    }
}

void view_show(struct arenas *c, struct gpu_arena *a, const struct gpu_place *only)
{
    pthread_mutex_lock(&c->gpus_lock);
    for (uint32_t i = 0; i < ARENA_GPUS; i++)
        if (c->gpus[i].backend && !c->gpu_ends[i] && (!only || only->number == i))
            view_add(a, &c->gpus[i]);
    pthread_mutex_unlock(&c->gpus_lock);
}

void view_hide(struct arenas *c, struct gpu_arena *a)
{
    pthread_mutex_lock(&c->gpus_lock);
    uint64_t gpus = atomic_exchange_explicit(&a->gpus, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < ARENA_GPUS; i++)
        if (gpus >> i & 1 && c->gpus[i].backend)
            show(a, &c->gpus[i], 0, 0);
    pthread_mutex_unlock(&c->gpus_lock);
}

void view_drop(struct arenas *c, struct gpu_arena *a, const struct gpu_place *gpu)
{
    pthread_mutex_lock(&c->gpus_lock);
    atomic_fetch_and_explicit(&a->gpus, ~(UINT64_C(1) << gpu->number), memory_order_relaxed);
    pthread_mutex_unlock(&c->gpus_lock);
}

bool view_reaches(const struct gpu_arena *a, const struct gpu_place *gpu)
{
    return gpu->table == a->place.table || atomic_load_explicit(&a->gpus, memory_order_acquire) >> gpu->number & 1;
}

const struct gpu_place *view_copier(const struct gpu_arena *a, const struct gpu_arena *b)
{
    if (!a || !b)
        return a ? &a->place : &b->place;
    if (a->place.backend != b->place.backend) /* a GPU can access memory of `host`, but `host` cannot access a GPU's memory */
        return a->place.backend == &gpu_host ? &b->place : &a->place;
    return view_reaches(b, &a->place) ? &a->place : view_reaches(a, &b->place) ? &b->place : NULL;
}
