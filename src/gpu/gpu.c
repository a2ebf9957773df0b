/* SPDX-License-Identifier: MIT
 *
 * Opening and closing a GPU: its back end, its rings, what kernels need in the device's memory, and the thread that serves it.
 */
#include "gpu/handle.h"
#include "gpu/pci.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define LAST_WAIT_NS WEFT_SECOND     /* how long a node that is being closed waits for kernels that did not end at the deadline */
#define ENDING_NS    (100 * WEFT_MS) /* how long kernels may take to end after their waits have ended, also after the deadline */
#define CONFIG_FIRST (offsetof(weft_gpu_config, slots) + sizeof((weft_gpu_config *)0)->slots)

/* The open GPUs of this process. Before a handle is used, it is looked up in this list, because closing a GPU frees its handle. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static weft_gpu *open_gpus;
static weft_gpu *kept_gpus; /* GPUs of closed nodes whose kernels may still run; also protected by open_lock */

/* --- closing --- */

static void gpu_detach(weft_gpu *g)
{
    for (uint32_t i = 0; i < g->attached; i++)
        g->backend->detach(g->device, g->ring[i].memory);
    g->attached = 0;
    for (uint32_t i = 0; g->pool_attached && i < g->nodes; i++)
        if (g->pool_attached[i])
            g->backend->detach(g->device, g->pool_attached[i]);
    free(g->pool_attached);
    g->pool_attached = NULL;
    if (g->notice_attached)
        g->backend->detach(g->device, g->notice);
    g->notice_attached = false;
}

/* Tells the back end that the pools of nodes will be unmapped, although kernels of the GPU may still run. */
static void gpu_forget_pools(const weft_gpu *g)
{
    for (uint32_t i = 0; g->backend->forget && i < g->nodes; i++)
        if (g->pool_attached[i])
            g->backend->forget(g->device, g->pool_attached[i]);
}

static void gpu_close_device(weft_gpu *g)
{
    if (g->own)
        g->backend->free(g->device, g->own);
    g->own = NULL;
    if (g->opened)
        g->backend->close(g->device);
    g->opened = false;
}

/* Waits until the kernels of the GPU have ended; false: the deadline has passed, or the back end cannot tell. The notice
 * (weft_device.notice) ends the waits of kernels, and kernels of persistent workers end because the workers are closed. */
static bool gpu_ended(weft_gpu *g, int64_t deadline)
{
    int64_t least = base_now_ns() + ENDING_NS;
    deadline = deadline > least ? deadline : least;
    while (atomic_load_explicit(&g->running, memory_order_acquire)) { /* pairs with the release in weft_gpu_run() */
        if (base_now_ns() >= deadline)
            return false;
        base_sleep_ns(100 * WEFT_US);
    }
    int rc = g->shown && g->backend->idle ? g->backend->idle(g->device, deadline) : 0;
    if (rc && rc != -ETIMEDOUT)
        base_log(BASE_LOG_WARN, "kernels of GPU %s may still run: %s", g->workers.name, base_error());
    return rc == 0;
}

/* Waits for the kernels of all GPUs of a list. False: some kernels still run. */
static bool all_ended(weft_gpu *list, int64_t deadline)
{
    bool all = true;
    for (weft_gpu *g = list; g; g = g->next) {
        g->ended = g->ended || gpu_ended(g, deadline);
        all &= g->ended;
    }
    return all;
}

static void dismantle(weft_gpu *g)
{
    gpu_work_free(&g->workers);
    gpu_detach(g);
    gpu_close_device(g);
    for (uint32_t i = 0; g->ring && i < g->rings; i++)
        gpu_ring_close(&g->ring[i]);
    free(g->ring);
    free(g->pool_at);
    if (g->notice)
        munmap(g->notice, g->notice_bytes);
    pthread_mutex_destroy(&g->workers.lock);
    pthread_mutex_destroy(&g->run_lock);
    pthread_mutex_destroy(&g->server_lock);
    free(g);
}

/* Ends the waits of the GPU's kernels. */
static void gpu_end_waits(weft_gpu *g, int64_t deadline)
{
    gpu_work_end(&g->workers, deadline);
    if (g->notice)
        atomic_store_explicit(g->notice, 1, memory_order_release); /* pairs with weft_device_late() */
}

/* Ends all use of the GPU by its serving thread and the device. `quiet`: no kernel uses its arenas any more. False: a kernel still runs, or
 * operations are under way that use the device or its rings. */
static bool gpu_shut(weft_gpu *g, bool quiet, int64_t deadline)
{
    pthread_mutex_lock(&g->server_lock);
    struct gpu_server *server = g->server;
    g->server = NULL;
    pthread_mutex_unlock(&g->server_lock);
    bool done = !server || gpu_serve_end(server, deadline);
    gpu_tasks_end(&g->workers);
    bool arenas = !g->place.table || gpu_arenas_close(gpu_arenas_of(g->w), &g->place, quiet, deadline);
    if (g->ended) {
        gpu_work_free(&g->workers);
        gpu_detach(g);
    }
    if (g->ended && arenas)
        gpu_close_device(g);
    return g->ended && done && arenas;
}

static void close_one(weft_gpu *g, bool quiet, int64_t deadline)
{
    struct gpus *all = g->w->gpus;
    if (gpu_shut(g, quiet, deadline)) {
        dismantle(g);
        return;
    }
    base_log(BASE_LOG_WARN,
             "GPU %s was closed while its kernels still ran, or while operations on its memory were under way: unfinished requests of its "
             "kernels get no results, and its memory is kept until the node is closed; wait for kernels and operations before you call "
             "weft_gpu_close()",
             g->workers.name);
    pthread_mutex_lock(&all->lock);
    g->next = all->left;
    all->left = g;
    pthread_mutex_unlock(&all->lock);
}

static void gpu_enlist(weft_gpu *g)
{
    pthread_mutex_lock(&open_lock);
    g->next = open_gpus;
    open_gpus = g;
    pthread_mutex_unlock(&open_lock);
}

/* Removes the GPU from the list. False: it was not in the list, so it is not open. */
static bool gpu_delist(const weft_gpu *g)
{
    pthread_mutex_lock(&open_lock);
    weft_gpu **at = &open_gpus;
    while (*at && *at != g)
        at = &(*at)->next;
    bool found = *at;
    if (found)
        *at = g->next;
    pthread_mutex_unlock(&open_lock);
    return found;
}

/* Moves the node's GPUs from the list to a list of their own, so that they count as closed. */
static weft_gpu *gpu_take_all(const struct weft_node *w)
{
    weft_gpu *taken = NULL, **end = &taken, **at = &open_gpus, *g;
    pthread_mutex_lock(&open_lock);
    while ((g = *at)) {
        if (g->w != w) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        g->next = NULL;
        *end = g;
        end = &g->next;
    }
    pthread_mutex_unlock(&open_lock);
    return taken;
}

int weft_gpu_close(weft_gpu *g)
{
    if (!g)
        return 0;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_gpu_close() must not be called from a handler: call it in another thread");
    if (!gpu_delist(g))
        return base_fail(-EINVAL, "weft_gpu_close(): this GPU is closed already; close each GPU once");
    int64_t deadline = fab_timeout(g->w, WEFT_TIMEOUT_DEFAULT);
    gpu_end_waits(g, deadline);
    g->ended = gpu_ended(g, deadline);
    close_one(g, g->ended, deadline);
    return 0;
}

void gpu_leave(struct weft_node *w)
{
    if (!w->gpus)
        return;
    gpu_arenas_leave(gpu_arenas_of(w));
    weft_gpu *taken = gpu_take_all(w);
    int64_t deadline = fab_timeout(w, WEFT_TIMEOUT_DEFAULT);
    /* do this for all GPUs before any wait: two handles may be for the same GPU, and then each waits for the kernels of both */
    for (weft_gpu *g = taken; g; g = g->next)
        gpu_end_waits(g, deadline);
    bool quiet = all_ended(taken, deadline);
    quiet &= all_ended(((struct gpus *)w->gpus)->left, 0); /* deadline 0: closing these GPUs has already waited for their kernels */
    for (weft_gpu *g; (g = taken);) {
        taken = g->next;
        close_one(g, quiet, deadline);
    }
}

/* Called before the links are closed: closing them unmaps the pools of other nodes, and before that these pools must be unregistered from
 * the GPUs. */
static void last_wait(struct weft_node *w, void *arg)
{
    const struct gpus *all = arg;
    (void)w;
    if (!all_ended(all->left, base_now_ns() + LAST_WAIT_NS))
        base_log(BASE_LOG_ERROR, "a kernel of a GPU still runs although its node is closed, so the memory of the node's GPUs is not freed; "
                                 "wait for the kernels before weft_close()");
    for (weft_gpu *g = all->left; g; g = g->next) {
        if (!g->ended) {
            gpu_forget_pools(g);
            continue;
        }
        gpu_work_free(&g->workers);
        gpu_detach(g);
    }
}

/* Keeps a GPU for ever. */
static void gpu_keep(weft_gpu *g)
{
    pthread_mutex_lock(&open_lock);
    g->next = kept_gpus;
    kept_gpus = g;
    pthread_mutex_unlock(&open_lock);
}

static void free_all(struct weft_node *w, void *arg)
{
    struct gpus *all = arg;
    bool ended = true;
    for (const weft_gpu *g = all->left; g; g = g->next)
        ended &= g->ended;
    gpu_arenas_free(all->arenas, ended);
    for (weft_gpu *g; (g = all->left);) {
        all->left = g->next;
        ended ? dismantle(g) : gpu_keep(g);
    }
    pthread_mutex_destroy(&all->lock);
    free(all);
    w->gpus = NULL;
}

void gpu_end(struct weft_node *w)
{
    if (w->gpus)
        gpu_arenas_end(gpu_arenas_of(w));
}

int gpu_open(struct weft_node *w)
{
    struct gpus *all = calloc(1, sizeof *all);
    if (!all)
        return base_fail(-ENOMEM, "no memory for the list of the node's GPUs" BASE_MEMORY_HINT);
    pthread_mutex_init(&all->lock, NULL);
    w->gpus = all;
    int rc = gpu_arenas_new(w, &all->arenas);
    if (!rc)
        rc = fab_hook(w, &(struct fab_hook){.close = last_wait, .free = free_all, .arg = all});
    if (rc)
        free_all(w, all);
    return rc;
}

/* --- opening --- */

/* Layout of the memory for kernels: weft_device, the tables, and the words that only kernels write. */
struct layout {
    size_t rings, pools, pool_bytes, arenas, words, awaited, bytes;
};
#define RING_WORDS 32u /* two lines of 128 bytes: one for `next`, one for `taken_seen` and `guess`, which are read together */

static struct layout lay_out(uint32_t nodes, uint32_t rings, uint32_t slots)
{
    struct layout l = {.rings = base_round_up(sizeof(weft_device), 128)};
    l.pools = base_round_up(l.rings + rings * sizeof(weft_device_ring), 128);
    l.pool_bytes = base_round_up(l.pools + nodes * sizeof(uint64_t), 128);
    l.arenas = base_round_up(l.pool_bytes + nodes * sizeof(uint64_t), 128);
    l.words = base_round_up(l.arenas + ((size_t)nodes * 2 * sizeof(uint64_t) << WEFT_SPACE_BITS), 128);
    l.awaited = l.words + (size_t)rings * RING_WORDS * sizeof(uint64_t);
    l.bytes = l.awaited + (size_t)rings * slots * sizeof(uint32_t);
    return l;
}

static int open_rings(weft_gpu *g, uint32_t slots, const struct layout *l, weft_device_ring *table)
{
    uint8_t *own = g->own;
    for (uint32_t i = 0; i < g->rings; i++) {
        struct gpu_ring *r = &g->ring[i];
        uint64_t there;
        int rc = gpu_ring_open(r, slots, g->nodes);
        if (rc)
            return rc;
        base_touch_near(g->workers.near, r->memory, r->bytes); /* the back end touches it, too, on this thread */
        rc = g->backend->attach(g->device, r->memory, r->bytes, &there);
        if (rc)
            return rc;
        g->attached++;
        uint64_t *words = (uint64_t *)(void *)(own + l->words) + (size_t)i * RING_WORDS;
        uint8_t *at = (uint8_t *)(uintptr_t)there, *base = r->memory;
        table[i] = (weft_device_ring){
            .slots = (weft_device_slot *)(void *)at,
            .answers = (weft_device_cell *)(void *)(at + ((uint8_t *)r->answers - base)),
            .taken = (uint64_t *)(void *)(at + ((uint8_t *)r->taken - base)),
            .mask = r->mask,
            .next = words,
            .taken_seen = words + RING_WORDS / 2,
            .guess = words + RING_WORDS / 2 + 1,
            .awaited = (uint32_t *)(void *)(own + l->awaited) + (size_t)i * slots,
        };
    }
    return 0;
}

/* Fills the tables of pools. `spaces`: weft_device.arena, which also lists the pools. Kernels make requests for the pools of nodes that the
 * GPU cannot access, as for those on other hosts. */
static int attach_pools(weft_gpu *g, uint64_t *pools, uint64_t *bytes, uint64_t *spaces)
{
    uint32_t refused = 0;
    for (uint32_t i = 0; i < g->nodes; i++) {
        struct fab_link *l = &g->w->links[i];
        void *base = l->transport ? l->transport->pointer(g->w, l, 0) : NULL;
        if (!base)
            continue;
        int rc = g->backend->attach(g->device, base, l->pool_bytes, &pools[i]);
        if (rc && i == g->w->rank)
            return base_context(rc, "GPU %s cannot use the pool of this node, node %u", g->workers.name, i);
        if (rc) {
            if (!refused++)
                base_log(BASE_LOG_INFO, "GPU %s cannot access the pool of node %u, so its kernels send requests to their node instead: %s",
                         g->workers.name, i, base_error());
            continue;
        }
        g->pool_attached[i] = base;
        bytes[i] = l->pool_bytes;
        uint64_t *pool = spaces + ((size_t)i * 2 << WEFT_SPACE_BITS);
        pool[0] = pools[i];
        pool[1] = l->pool_bytes;
        g->pool_at[i] = pools[i];
    }
    return 0;
}

/* Allocates the page that tells kernels which nodes are gone, and that the GPU is being closed (weft_device.notice). */
static int make_notice(weft_gpu *g, const uint64_t **there)
{
    uint64_t at;
    g->notice_bytes = base_round_up((2 + g->nodes / 64) * sizeof(uint64_t), (uint64_t)sysconf(_SC_PAGESIZE));
    void *memory = mmap(NULL, g->notice_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return base_fail(-ENOMEM, "no memory for the page that tells a GPU's kernels which nodes are gone" BASE_MEMORY_HINT);
    g->notice = memory;
    base_touch_near(g->workers.near, memory, g->notice_bytes);
    int rc = g->backend->attach(g->device, memory, g->notice_bytes, &at);
    g->notice_attached = rc == 0;
    if (!rc)
        *there = (const uint64_t *)(uintptr_t)at;
    return rc;
}

static int fill_device(weft_gpu *g, uint32_t slots)
{
    struct layout l = lay_out(g->nodes, g->rings, slots);
    int rc = g->backend->alloc(g->device, l.bytes, &g->own);
    uint8_t *own = g->own, *image = rc ? NULL : calloc(1, l.words);
    if (!rc && !image)
        rc = base_fail(-ENOMEM, "no memory for the tables of nodes and pools of a GPU" BASE_MEMORY_HINT);
    if (!rc)
        rc = open_rings(g, slots, &l, (weft_device_ring *)(void *)(image + l.rings));
    if (!rc)
        rc = attach_pools(g, (uint64_t *)(void *)(image + l.pools), (uint64_t *)(void *)(image + l.pool_bytes),
                          (uint64_t *)(void *)(image + l.arenas));
    const uint64_t *notice = NULL;
    if (!rc)
        rc = make_notice(g, &notice);
    if (!rc) {
        g->here = (weft_device){
            .rank = g->w->rank,
            .size = g->nodes,
            .rings = g->rings,
            .deadline_ns = g->w->options.deadline_ns,
            .ring = (weft_device_ring *)(void *)(own + l.rings),
            .pool = (const uint64_t *)(void *)(own + l.pools),
            .pool_bytes = (const uint64_t *)(void *)(own + l.pool_bytes),
            .arena = (const uint64_t *)(void *)(own + l.arenas),
            .notice = notice,
        };
        memcpy(image, &g->here, sizeof g->here);
        g->there = g->own;
        g->place = (struct gpu_place){
            .backend = g->backend, .device = g->device, .table = (uint64_t *)(void *)(own + l.arenas), .near = g->workers.near};
        rc = g->backend->fill(g->device, own, image, l.words);
    }
    free(image);
    return rc;
}

static int gpu_check(const weft_gpu_config *config, weft_gpu_config *c)
{
    *c = (weft_gpu_config){0};
    int rc = config ? base_take_struct(c, sizeof *c, config, CONFIG_FIRST, "weft_gpu_config") : 0;
    if (rc)
        return rc;
    c->rings = c->rings ? c->rings : GPU_RINGS_DEFAULT;
    c->slots = c->slots ? c->slots : GPU_SLOTS_DEFAULT;
    if (c->rings > GPU_RINGS_MAX)
        return base_fail(-EINVAL, "weft_gpu_config.rings is %u: it must be at most %u", c->rings, GPU_RINGS_MAX);
    if (c->slots < 2 || c->slots > GPU_SLOTS_MAX || (c->slots & (c->slots - 1)))
        return base_fail(-EINVAL, "weft_gpu_config.slots is %u: it must be a power of two from 2 to %u", c->slots, GPU_SLOTS_MAX);
    if (c->turns > 1)
        return base_fail(-EINVAL, "weft_gpu_config.turns is %u: it must be 0 or 1", c->turns);
    return 0;
}

static int open_one(weft_gpu *g, const weft_gpu_config *c)
{
    uint32_t index;
    int rc = gpu_choose(c->name, &g->backend, &index);
    if (!rc)
        rc = g->backend->open(index, &g->device);
    if (rc)
        return rc;
    g->opened = true;
    gpu_name_of(g->backend, index, g->workers.name, sizeof g->workers.name);
    g->turns = c->turns || g->backend->turns;
    g->rings = c->rings;
    g->nodes = g->w->size;
    g->ring = calloc(c->rings, sizeof *g->ring);
    g->pool_attached = calloc(g->nodes, sizeof *g->pool_attached);
    g->pool_at = calloc(g->nodes, sizeof *g->pool_at);
    if (!g->ring || !g->pool_attached || !g->pool_at)
        return base_fail(-ENOMEM, "no memory for %u rings of GPU %s" BASE_MEMORY_HINT, c->rings, g->workers.name);
    g->workers.backend = g->backend;
    g->workers.device = g->device;
    weft_gpu_info info = {0};
    if (g->backend->look(index, &info) && info.pci[0])
        gpu_pci_processors("", info.pci, g->workers.near);
    rc = fill_device(g, c->slots);
    if (!rc)
        rc = gpu_arenas_share(gpu_arenas_of(g->w), &g->place);
    return rc ? rc : gpu_serve(&g->server, &g->workers, g->ring, g->rings, g->notice, g->turns);
}

int weft_gpu_open(weft_node *w, const weft_gpu_config *config, weft_gpu **out)
{
    weft_gpu_config c;
    *out = NULL;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_gpu_open() must not be called from a handler: call it in another thread");
    int rc = gpu_check(config, &c);
    if (rc)
        return rc;
    weft_gpu *g = calloc(1, sizeof *g);
    if (!g)
        return base_fail(-ENOMEM, "no memory for the handle of a GPU" BASE_MEMORY_HINT);
    g->w = w;
    g->workers.w = w;
    g->workers.services = ((struct gpus *)w->gpus)->services;
    pthread_mutex_init(&g->workers.lock, NULL);
    pthread_mutex_init(&g->run_lock, NULL);
    pthread_mutex_init(&g->server_lock, NULL);
    rc = open_one(g, &c);
    if (rc) {
        g->ended = true; /* no kernel has begun */
        close_one(g, true, 0);
        return rc;
    }
    g->shown = true;
    gpu_enlist(g);
    *out = g;
    return 0;
}

bool gpu_enter(weft_gpu *g)
{
    pthread_mutex_lock(&open_lock);
    const weft_gpu *at = open_gpus;
    while (at && at != g)
        at = at->next;
    if (at)
        atomic_fetch_add_explicit(&g->running, 1, memory_order_relaxed);
    pthread_mutex_unlock(&open_lock);
    return at;
}

void gpu_exit(weft_gpu *g)
{
    atomic_fetch_sub_explicit(&g->running, 1, memory_order_release); /* pairs with gpu_ended() */
}
