/* SPDX-License-Identifier: MIT
 *
 * The program's calls on an open GPU, except opening and closing it.
 */
#include "gpu/handle.h"

const weft_device *weft_gpu_device(weft_gpu *g)
{
    return g->there;
}

void weft_gpu_device_copy(weft_gpu *g, weft_device *out, size_t bytes)
{
    base_give_struct(out, bytes, &g->here, sizeof g->here);
}

/* Begins a call that uses the GPU. Closing the GPU waits for gpu_exit(). */
static int enter(weft_gpu *g, const char *call)
{
    return gpu_enter(g) ? 0 : base_fail(-EINVAL, "%s: this GPU is closed already; open it again with weft_gpu_open()", call);
}

static int64_t run_deadline(const weft_gpu *g)
{
    return fab_timeout(g->w, WEFT_TIMEOUT_DEFAULT);
}

/* For a GPU whose kernels and node take turns: lets the node do all requests of the kernel. */
static int run_turn(weft_gpu *g, int (*turn)(struct gpu_server *, int64_t))
{
    pthread_mutex_lock(&g->server_lock); /* the GPU may be closed meanwhile */
    int rc = g->server
                 ? turn(g->server, run_deadline(g))
                 : base_fail(-EINVAL,
                             "GPU %s was closed while a kernel ran or waited to run; wait for all kernels before you call weft_gpu_close()",
                             g->workers.name);
    pthread_mutex_unlock(&g->server_lock);
    return rc;
}

static int run_begin(weft_gpu *g)
{
    if (!g->turns)
        return 0;
    pthread_mutex_lock(&g->run_lock);
    return run_turn(g, gpu_serve_wait);
}

static int run_end(weft_gpu *g, int rc)
{
    if (!g->turns)
        return rc;
    if (!rc)
        rc = run_turn(g, gpu_serve_turn);
    pthread_mutex_unlock(&g->run_lock);
    return rc;
}

int weft_gpu_run(weft_gpu *g, weft_gpu_kernel kernel, uint32_t blocks, void *arg)
{
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_gpu_run() must not be called from a handler: call it in another thread");
    if (!kernel || !blocks)
        return base_fail(-EINVAL, "weft_gpu_run(): kernel must not be NULL, and blocks must not be 0");
    int rc = enter(g, "weft_gpu_run()");
    if (rc)
        return rc;
    rc = g->backend->run ? run_begin(g)
                         : base_fail(-ENOTSUP,
                                     "weft_gpu_run() runs C functions, and GPU %s cannot run these: use the GPU `host`, or start the "
                                     "kernel as weft_gpu_run(3) says for this kind of GPU",
                                     g->workers.name);
    if (g->backend->run)
        rc = run_end(g, rc ? rc : g->backend->run(g->device, &g->here, kernel, blocks, arg));
    gpu_exit(g);
    return rc;
}

int weft_gpu_run_text(weft_gpu *g, const char *text, const char *kernel, uint32_t blocks, uint32_t threads, void *arg, size_t bytes)
{
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_gpu_run_text() must not be called from a handler: call it in another thread");
    if (!text || !kernel || !blocks || !threads || (bytes && !arg))
        return base_fail(-EINVAL, "weft_gpu_run_text(): text and kernel must not be NULL, blocks and threads must not be 0, and arg must "
                                  "not be NULL unless bytes is 0");
    int rc = enter(g, "weft_gpu_run_text()");
    if (rc)
        return rc;
    rc = g->backend->run_text
             ? run_begin(g)
             : base_fail(-ENOTSUP, "weft_gpu_run_text() runs kernels of Metal, and GPU %s cannot run these: use a GPU of Metal",
                         g->workers.name);
    if (g->backend->run_text)
        rc = run_end(g, rc ? rc : g->backend->run_text(g->device, g->there, text, kernel, blocks, threads, arg, bytes));
    gpu_exit(g);
    return rc;
}

int weft_gpu_arena(weft_gpu *g, size_t bytes, uint32_t *space)
{
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_gpu_arena() must not be called from a handler: call it in another thread");
    int rc = enter(g, "weft_gpu_arena()");
    if (rc)
        return rc;
    rc = gpu_arena_open(gpu_arenas_of(g->w), &g->place, bytes, space);
    gpu_exit(g);
    return rc;
}

int weft_gpu_alloc(weft_gpu *g, uint32_t space, size_t bytes, weft_gaddr *out)
{
    return gpu_arena_alloc(gpu_arenas_of(g->w), space, bytes, out);
}

void *weft_gpu_ptr(weft_gpu *g, weft_gaddr addr, size_t bytes)
{
    if (weft_gaddr_space(addr))
        return gpu_arena_reached(gpu_arenas_of(g->w), &g->place, addr, bytes);
    uint32_t node = weft_gaddr_node(addr);
    uint64_t offset = weft_gaddr_offset(addr);
    if (node >= g->nodes)
        return NULL;
    void *here = weft_ptr(g->w, addr, bytes);
    if (!here || !g->pool_at[node])
        return NULL;
    if (g->backend->run_text)
        return here;
    return (void *)(uintptr_t)(g->pool_at[node] + offset);
}

int weft_gpu_service(weft_node *w, uint32_t number, weft_gpu_service_fn fn, void *arg)
{
    struct gpus *all = w->gpus;
    if (number >= WEFT_GPU_SERVICES || !fn)
        return base_fail(-EINVAL, "weft_gpu_service(): number is %u and must be below %u, and fn must not be NULL", number,
                         WEFT_GPU_SERVICES);
    struct gpu_service *s = &all->services[number];
    pthread_mutex_lock(&all->lock);
    bool there = atomic_load_explicit(&s->fn, memory_order_relaxed);
    if (!there) {
        s->arg = arg;
        atomic_store_explicit(&s->fn, fn, memory_order_release); /* pairs with start_record() */
    }
    pthread_mutex_unlock(&all->lock);
    return there ? base_fail(-EALREADY, "weft_gpu_service(): number %u has a service already; choose another number", number) : 0;
}

int weft_gpu_worker_open(weft_gpu *g, weft_queue *q, const weft_gpu_worker_config *config, weft_gpu_worker **out)
{
    *out = NULL;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_gpu_worker_open() must not be called from a handler: call it in another thread");
    if (!q)
        return base_fail(-EINVAL, "weft_gpu_worker_open(): q must not be NULL");
    int rc = enter(g, "weft_gpu_worker_open()");
    if (rc)
        return rc;
    rc = !g->turns ? gpu_work_open(&g->workers, q, config, out)
                   : base_fail(-ENOTSUP,
                               "weft_gpu_worker_open(): a worker needs kernels that run at the same time as the node, but with GPU %s the "
                               "node waits while a kernel runs: use another GPU",
                               g->workers.name);
    gpu_exit(g);
    return rc;
}

int weft_gpu_queue(weft_gpu *g, weft_queue *q, uint32_t *number)
{
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_gpu_queue() must not be called from a handler: call it in another thread");
    if (!q)
        return base_fail(-EINVAL, "weft_gpu_queue(): q must not be NULL");
    int rc = enter(g, "weft_gpu_queue()");
    if (rc)
        return rc;
    rc = gpu_tasks_queue(&g->workers, q, number);
    gpu_exit(g);
    return rc;
}

int weft_gpu_stat(weft_gpu *g, weft_gpu_stats *out, size_t bytes)
{
    weft_gpu_stats stats = {0};
    gpu_serve_stat(g->server, &stats);
    base_give_struct(out, bytes, &stats, sizeof stats);
    return 0;
}
