/* SPDX-License-Identifier: MIT
 *
 * Requests of kernels to queues: submit, claim, renew, complete. A thread of its own carries them out, because a request may have to wait
 * for a shard on another host, and the serving thread must not wait. This thread tries each request once. A kernel that wants to wait
 * repeats its request.
 *
 * A kernel may change its memory at any time, so the memory is first copied and then checked. Memory in an arena is copied by the GPU,
 * because the processor may be unable to access it.
 */
#include "gpu/arena.h"
#include "gpu/ring.h"

#include <sched.h>
#include <stdlib.h>

/* Requests from the serving thread, oldest first. */
struct gpu_tasks {
    struct gpu_workers *all;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct gpu_request *first, **last; /* guarded by `lock` */
    _Atomic bool over;                 /* the thread must end, and drops requests that it has not begun */
    _Atomic bool some;                 /* the list is not empty; this flag is read without the lock */
    pthread_t thread;
};

int gpu_pool_memory(struct weft_node *w, uint64_t addr, uint64_t bytes, void **out)
{
    bool own = weft_gaddr_node(addr) == w->rank && weft_gaddr_space(addr) == 0;
    *out = own ? weft_ptr(w, addr, bytes) : NULL;
    return *out ? 0
                : base_fail(-EFAULT,
                            "a kernel's request names address %#llx, %llu bytes, which are not in this node's pool; use memory that this "
                            "node has allocated",
                            (unsigned long long)addr, (unsigned long long)bytes);
}

static void tasks_answer(struct gpu_request *q, int rc)
{
    if (rc < 0 && rc != -ETIMEDOUT)
        base_log(BASE_LOG_DEBUG, "a kernel's request to a queue has failed: %s", base_error());
    int status = rc == -ETIMEDOUT ? -EAGAIN : rc < 0 ? rc : 0; /* -ETIMEDOUT: no task is ready, or there is no room */
    q->value = rc > 0 && q->kind < WEFT_DEVICE_COMPLETE ? (uint64_t)rc : q->value;
    __atomic_store_n(&q->op.status, status, __ATOMIC_RELEASE); /* release: server_look() sees what was written */
}

/* --- the kernel's memory --- */

/* Memory at an address that a kernel has given, in this node's pool or in an arena of this node. The arena stays open until
 * memory_leave(). */
struct kernel_memory {
    uint8_t *at;
    struct gpu_arena *arena; /* NULL: in the pool */
};

static int memory_find(struct weft_node *w, uint64_t addr, uint64_t bytes, struct kernel_memory *out)
{
    *out = (struct kernel_memory){0};
    void *at = NULL;
    bool own = weft_gaddr_node(addr) == w->rank;
    if (own && weft_gaddr_space(addr) == 0)
        at = weft_ptr(w, addr, bytes);
    else if (own && arena_enter(gpu_arenas_of(w), addr, bytes, &out->arena, &at))
        at = NULL;
    out->at = at;
    return at ? 0
              : base_fail(-EFAULT,
                          "a kernel's request names address %#llx, %llu bytes, which are not in this node's pool or arenas; use memory "
                          "that this node has allocated",
                          (unsigned long long)addr, (unsigned long long)bytes);
}

static void memory_leave(struct kernel_memory *m)
{
    arena_leave(m->arena);
    m->arena = NULL;
}

/* Waits for the GPU, since a copy of a few KiB takes microseconds. */
static int memory_copy(struct kernel_memory *m, void *to, const void *from, uint64_t bytes)
{
    struct arena_copy copy;
    if (!m->arena) {
        memcpy(to, from, bytes);
        return 0;
    }
    int rc = arena_copy(&copy, &m->arena->place, to, from, bytes);
    while (!rc && (rc = arena_copied(&copy)) == -EINPROGRESS) {
        rc = 0;
        sched_yield();
    }
    return rc;
}

/* Copies an array from an address that a kernel has given. */
static int memory_load(struct weft_node *w, uint64_t addr, void *to, uint64_t bytes)
{
    struct kernel_memory m;
    int rc = memory_find(w, addr, bytes, &m);
    if (!rc)
        rc = memory_copy(&m, to, m.at, bytes);
    memory_leave(&m);
    return rc;
}

/* --- requests --- */

static int tasks_submit(struct weft_node *w, weft_queue *queue, const struct gpu_request *q, uint32_t count)
{
    weft_task tasks[WEFT_DEVICE_TASKS];
    uint64_t ids[WEFT_DEVICE_TASKS];
    struct kernel_memory to = {0};
    int rc = q->low[1] ? memory_find(w, q->low[1], count * sizeof *ids, &to) : 0;
    if (!rc)
        rc = memory_load(w, q->low[0], tasks, count * sizeof *tasks);
    if (!rc)
        rc = weft_submit(queue, tasks, count, ids, 0);
    int failed = rc > 0 && to.at ? memory_copy(&to, to.at, ids, (size_t)rc * sizeof *ids) : 0;
    memory_leave(&to);
    return failed ? failed : rc;
}

static int tasks_claim(struct weft_node *w, weft_queue *queue, const struct gpu_request *q, uint32_t count)
{
    weft_lease leases[WEFT_DEVICE_TASKS];
    struct kernel_memory to;
    int rc = memory_find(w, q->low[0], count * sizeof *leases, &to);
    if (!rc)
        rc = weft_claim(queue, leases, count, 0);
    int failed = rc > 0 ? memory_copy(&to, to.at, leases, (size_t)rc * sizeof *leases) : 0;
    memory_leave(&to);
    for (int i = 0; failed && i < rc; i++)
        (void)weft_release(queue, &leases[i]); /* the GPU has failed, so let other nodes do the task now */
    return failed ? failed : rc;
}

static int tasks_complete(struct weft_node *w, weft_queue *queue, struct gpu_request *q, uint32_t count)
{
    weft_lease leases[WEFT_DEVICE_TASKS];
    weft_result results[WEFT_DEVICE_TASKS];
    bool accepted[WEFT_DEVICE_TASKS] = {false};
    int rc = memory_load(w, q->low[0], leases, count * sizeof *leases);
    if (!rc)
        rc = memory_load(w, q->low[1], results, count * sizeof *results);
    if (!rc)
        rc = weft_complete(queue, leases, results, count, accepted);
    for (uint32_t i = 0; rc > 0 && i < count; i++)
        q->value |= (uint64_t)accepted[i] << i;
    return rc;
}

/* Renews claims. If a node does not answer, the remaining claims are left to the next request. */
static int tasks_renew(struct weft_node *w, weft_queue *queue, struct gpu_request *q, uint32_t count)
{
    weft_lease leases[WEFT_DEVICE_TASKS];
    struct kernel_memory at;
    int rc = memory_find(w, q->low[0], count * sizeof *leases, &at);
    if (!rc)
        rc = memory_copy(&at, leases, at.at, count * sizeof *leases);
    bool read = rc == 0;
    for (uint32_t i = 0; i < count && read && (rc == 0 || rc == -ESTALE); i++) {
        rc = weft_renew(queue, &leases[i]);
        q->value |= (uint64_t)(rc == 0) << i;
    }
    int failed = read ? memory_copy(&at, at.at, leases, count * sizeof *leases) : rc;
    memory_leave(&at);
    return failed ? failed : rc == -EBADF ? rc : 0;
}

static int tasks_do(struct gpu_tasks *t, struct gpu_request *q)
{
    struct weft_node *w = t->all->w;
    weft_queue *queue = atomic_load_explicit(&t->all->queue[q->high[1]], memory_order_acquire);
    uint32_t count = (uint32_t)q->high[0];
    switch (q->kind) {
    case WEFT_DEVICE_SUBMIT: return tasks_submit(w, queue, q, count);
    case WEFT_DEVICE_CLAIM: return tasks_claim(w, queue, q, count);
    case WEFT_DEVICE_RENEW: return tasks_renew(w, queue, q, count);
    default: return tasks_complete(w, queue, q, count);
    }
}

static bool tasks_over(struct gpu_tasks *t)
{
    return atomic_load_explicit(&t->over, memory_order_relaxed);
}

static struct gpu_request *tasks_take_all(struct gpu_tasks *t)
{
    struct gpu_request *q = t->first;
    t->first = NULL;
    t->last = &t->first;
    atomic_store_explicit(&t->some, false, memory_order_relaxed);
    return q;
}

/* Polls for a moment before the thread sleeps, because requests often follow each other. */
static void tasks_spin(struct gpu_tasks *t)
{
    int64_t until = base_now_ns() + t->all->w->options.spin_ns;
    while (!atomic_load_explicit(&t->some, memory_order_relaxed) && base_now_ns() < until)
        sched_yield();
}

static void *tasks_run(void *arg)
{
    struct gpu_tasks *t = arg;
    base_cpu_stay(t->all->near);
    for (;;) {
        tasks_spin(t);
        pthread_mutex_lock(&t->lock);
        while (!t->first && !tasks_over(t))
            pthread_cond_wait(&t->more, &t->lock);
        struct gpu_request *q = tasks_over(t) ? NULL : tasks_take_all(t);
        pthread_mutex_unlock(&t->lock);
        if (!q)
            return NULL;
        while (q && !tasks_over(t)) {
            struct gpu_request *next = q->next; /* read `next` first, because an answered request is reused at once */
            tasks_answer(q, tasks_do(t, q));
            q = next;
        }
    }
}

int gpu_tasks_ask(struct gpu_workers *all, struct gpu_request *q)
{
    struct gpu_tasks *t = atomic_load_explicit(&all->tasks, memory_order_acquire);
    if (!t || q->high[1] >= GPU_QUEUES || !atomic_load_explicit(&all->queue[q->high[1]], memory_order_acquire))
        return base_fail(-ENOENT, "no queue has the number %llu on this GPU (weft_gpu_queue())", (unsigned long long)q->high[1]);
    if (q->high[0] == 0 || q->high[0] > WEFT_DEVICE_TASKS)
        return base_fail(-EINVAL, "the call is for %llu tasks: it must be for 1 to %u", (unsigned long long)q->high[0], WEFT_DEVICE_TASKS);
    q->op.status = 1;
    q->next = NULL;
    pthread_mutex_lock(&t->lock);
    bool sleeps = !t->first;
    *t->last = q;
    t->last = &q->next;
    atomic_store_explicit(&t->some, true, memory_order_relaxed);
    if (sleeps)
        pthread_cond_signal(&t->more);
    pthread_mutex_unlock(&t->lock);
    return 0;
}

/* --- opening and closing --- */

static int tasks_open(struct gpu_workers *all)
{
    struct gpu_tasks *t = calloc(1, sizeof *t);
    if (!t)
        return base_fail(-ENOMEM, "no memory for the table of queues that kernels of a GPU use" BASE_MEMORY_HINT);
    t->all = all;
    t->last = &t->first;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->more, NULL);
    int rc = base_thread(&t->thread, tasks_run, t);
    if (!rc) {
        atomic_store_explicit(&all->tasks, t, memory_order_release);
        return 0;
    }
    pthread_cond_destroy(&t->more);
    pthread_mutex_destroy(&t->lock);
    free(t);
    return base_fail(rc, "cannot start the thread for the queues of a GPU: %s" BASE_THREAD_HINT, base_strerror(rc));
}

static int tasks_add(struct gpu_workers *all, weft_queue *q, uint32_t *number)
{
    uint32_t i = 0;
    weft_queue *at = NULL;
    while (i < GPU_QUEUES && (at = atomic_load_explicit(&all->queue[i], memory_order_relaxed)) && at != q)
        i++;
    if (i == GPU_QUEUES)
        return base_fail(-ENOSPC,
                         "weft_gpu_queue(): GPU %s has given all its %u numbers to queues, and closing a queue frees no number; use fewer "
                         "queues, or close the GPU and open it again",
                         all->name, GPU_QUEUES);
    int rc = atomic_load_explicit(&all->tasks, memory_order_relaxed) ? 0 : tasks_open(all);
    if (!rc) {
        atomic_store_explicit(&all->queue[i], q, memory_order_release); /* pairs with gpu_tasks_ask() */
        *number = i;
    }
    return rc;
}

int gpu_tasks_queue(struct gpu_workers *all, weft_queue *q, uint32_t *number)
{
    pthread_mutex_lock(&all->lock);
    int rc = tasks_add(all, q, number);
    pthread_mutex_unlock(&all->lock);
    return rc;
}

void gpu_tasks_end(struct gpu_workers *all)
{
    struct gpu_tasks *t = atomic_load_explicit(&all->tasks, memory_order_relaxed);
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    atomic_store_explicit(&t->over, true, memory_order_relaxed);
    pthread_cond_signal(&t->more);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    atomic_store_explicit(&all->tasks, NULL, memory_order_relaxed);
    pthread_cond_destroy(&t->more);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
