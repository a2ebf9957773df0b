/* SPDX-License-Identifier: MIT
 *
 * Persistent workers. The first thread of a worker claims tasks in advance and puts them into a ring. Blocks take tasks from the ring, and
 * return results by requests. The serving thread passes the results to the worker's second thread, which completes the tasks. One thread
 * alone would be slower than a GPU.
 *
 * Tasks are numbered, and number n goes into slot n modulo the ring's size. A slot can be filled again when its task is done; tasks may be
 * done in any order. If the slot of a number is still in use, the number is skipped: a block that draws this number does not find it in the
 * slot, and draws the next number. So a block that hangs occupies one slot and delays no other block.
 *
 * The ring is in the host's memory, so that the node can fill it without calls of the driver.
 */
#include "gpu/ring.h"
#include "gpu/work.h"

#include <sched.h>

#define BATCH        64u /* the most tasks of one claim or completion */
#define NAP_LEAST_NS (10 * WEFT_US)
#define NAP_BUSY_NS  (100 * WEFT_US) /* the longest sleep while blocks have tasks */
#define NAP_MOST_NS  WEFT_MS
#define NAP_IDLE_NS  (10 * WEFT_MS) /* the longest sleep after there has been no task for IDLE_NS */
#define IDLE_NS      WEFT_SECOND
#define CHECK_NS     WEFT_SECOND

static void work_count(_Atomic uint64_t *n, uint64_t more)
{
    atomic_store_explicit(n, atomic_load_explicit(n, memory_order_relaxed) + more, memory_order_relaxed);
}

/* Whether some task is in the ring, or is being put into it, or is being completed. */
static bool work_outstanding(const weft_gpu_worker *k)
{
    uint64_t ended = atomic_load_explicit(&k->completed, memory_order_relaxed) + atomic_load_explicit(&k->taken_back, memory_order_relaxed);
    return atomic_load_explicit(&k->claimed, memory_order_relaxed) != ended;
}

/* --- the ring --- */

/* Puts a task into a slot. Each store is a release, so a block that reads a new word also reads the 0 in `number`, by which it sees that
 * the slot has changed. */
static void fill_slot(weft_device_task_slot *s, uint64_t number, const weft_task *task)
{
    uint64_t words[8];
    memcpy(words, task, sizeof words);
    __atomic_store_n(&s->number, 0, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < 4; i++) {
        __atomic_store_n(&s->task[i].low, words[2 * i], __ATOMIC_RELEASE);
        __atomic_store_n(&s->task[i].high, words[2 * i + 1], __ATOMIC_RELEASE);
    }
    __atomic_store_n(&s->number, number + 1, __ATOMIC_RELEASE); /* pairs with weft_device_read_task() */
}

static void put_in(weft_gpu_worker *k, const weft_lease *lease, int64_t now)
{
    /* not all slots are in use, so this loop ends; acquire: pairs with finish() */
    while (atomic_load_explicit(&k->tasks[k->next & k->mask].used, memory_order_acquire))
        k->next++;
    struct work_task *t = &k->tasks[k->next & k->mask];
    t->number = k->next;
    t->taken = false;
    t->since = now;
    t->lease = *lease;
    atomic_store_explicit(&t->used, true, memory_order_relaxed);
    k->put++;
    atomic_store_explicit(&t->held, k->next + 1, memory_order_release); /* stored before a block can take the task */
    fill_slot(&k->slots[k->next & k->mask], k->next, &lease->task);
    k->next++;
}

static struct weft_gpu_worker *worker_of(struct gpu_workers *all, uint64_t number)
{
    return number < GPU_WORKERS_MAX ? atomic_load_explicit(&all->worker[number], memory_order_acquire) : NULL;
}

void gpu_work_fetch(struct gpu_workers *all, const struct gpu_ring *r, uint64_t slot)
{
    uint64_t task, first, from, more;
    if (!gpu_ring_cell(r, slot, 0, &task, &first) || first >> WEFT_DEVICE_KIND_SHIFT != WEFT_DEVICE_TASK_DONE ||
        !gpu_ring_cell(r, slot + 1, 0, &from, &more))
        return;
    const struct weft_gpu_worker *k = worker_of(all, from >> 32);
    if (k)
        base_fetch_to_write(&k->tasks[task & k->mask]);
}

int gpu_work_done(struct gpu_workers *all, const struct gpu_request *q)
{
    uint64_t task = q->low[0];
    struct weft_gpu_worker *k = worker_of(all, q->low[2] >> 32);
    if (!k || task == UINT64_MAX)
        return base_fail(-EINVAL, "the GPU has no worker with this number, or the task is none: pass what weft_device_next_task() gave");
    struct work_task *t = &k->tasks[task & k->mask];
    if (atomic_load_explicit(&t->held, memory_order_acquire) != task + 1) {
        atomic_fetch_add_explicit(&k->stale, 1, memory_order_relaxed);
        return base_fail(-ESTALE, "worker %u does not hold the task any more: it was done already, or went back to the queue after task_ns",
                         k->number);
    }
    weft_result result = {.status = (int32_t)(uint32_t)q->low[2], .result = q->low[1], .result_len = q->high[1]};
    uint64_t held = task + 1;
    if (!atomic_compare_exchange_strong_explicit(&t->held, &held, 0, memory_order_acq_rel, memory_order_relaxed))
        return base_fail(-ESTALE, "worker %u has just given the task back to the queue, after task_ns", k->number);
    t->result = result; /* the slot stays in use until the second thread finds it in `done` */
    uint64_t tail = atomic_load_explicit(&k->done_tail, memory_order_relaxed);
    k->done[tail & k->mask] = (uint32_t)(task & k->mask);
    atomic_store_explicit(&k->done_tail, tail + 1, memory_order_release); /* pairs with finish() */
    return 0;
}

/* --- the second thread --- */

/* Completes the tasks that blocks have done. Returns how many. */
static uint32_t finish(weft_gpu_worker *k)
{
    weft_lease leases[BATCH];
    weft_result results[BATCH];
    uint64_t tail = atomic_load_explicit(&k->done_tail, memory_order_acquire);
    uint64_t reached = atomic_load_explicit(&k->done_reached, memory_order_relaxed);
    uint32_t n = 0;
    if (tail == k->done_head)
        return 0;
    /* Prefetch the entries of all these tasks, because they are in the cache of the serving thread's processor. */
    for (uint64_t i = k->done_head; i != tail && i - k->done_head < BATCH; i++)
        base_fetch_to_write(&k->tasks[k->done[i & k->mask]]);
    pthread_mutex_lock(&k->lease_lock); /* wait for the end of a renewal, because the completion needs the renewed lease */
    for (; k->done_head != tail && n < BATCH; n++, k->done_head++) {
        struct work_task *t = &k->tasks[k->done[k->done_head & k->mask]];
        leases[n] = t->lease;
        results[n] = t->result;
        reached = reached <= t->number ? t->number + 1 : reached;
        atomic_store_explicit(&t->used, false, memory_order_release); /* pairs with put_in() */
    }
    pthread_mutex_unlock(&k->lease_lock);
    atomic_store_explicit(&k->done_reached, reached, memory_order_relaxed); /* stored before the completions, which may take long */
    int accepted = weft_complete(k->q, leases, results, n, NULL);
    if (accepted < 0)
        base_log(BASE_LOG_WARN, "worker %u of GPU %s cannot report that %u tasks are done: %s", k->number, k->all->name, n, base_error());
    work_count(&k->refused, n - (uint32_t)(accepted > 0 ? accepted : 0));
    /* release: pairs with work_used() and weft_gpu_worker_stat() */
    atomic_store_explicit(&k->completed, atomic_load_explicit(&k->completed, memory_order_relaxed) + n, memory_order_release);
    return n;
}

/* Sleeps after there was nothing to do, longer each time. `last`: when there was something to do. */
static void work_rest(const weft_gpu_worker *k, int64_t now, int64_t last, int64_t *nap, int64_t most)
{
    if (now - last < k->all->w->options.spin_ns) {
        sched_yield();
        return;
    }
    *nap = *nap && *nap * 2 < most ? *nap * 2 : *nap ? most : NAP_LEAST_NS;
    base_sleep_ns(*nap);
}

/* Sleeps until the first thread claims tasks, or the worker is closed. */
static void await_tasks(weft_gpu_worker *k)
{
    pthread_mutex_lock(&k->lease_lock);
    atomic_store_explicit(&k->sleeps, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* `sleeps` must be set before `claimed` is read; pairs with gpu_work_wake() */
    while (!work_outstanding(k) && !atomic_load_explicit(&k->over, memory_order_relaxed))
        pthread_cond_wait(&k->wakes, &k->lease_lock);
    atomic_store_explicit(&k->sleeps, false, memory_order_relaxed);
    pthread_mutex_unlock(&k->lease_lock);
}

void gpu_work_wake(weft_gpu_worker *k)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (BASE_LIKELY(!atomic_load_explicit(&k->sleeps, memory_order_relaxed)))
        return;
    pthread_mutex_lock(&k->lease_lock);
    pthread_cond_signal(&k->wakes);
    pthread_mutex_unlock(&k->lease_lock);
}

void *gpu_work_finish(void *arg)
{
    weft_gpu_worker *k = arg;
    int64_t nap = 0, last = base_now_ns();
    base_cpu_stay(k->all->near);
    while (!atomic_load_explicit(&k->over, memory_order_acquire)) {
        if (finish(k)) {
            last = 0;
            nap = 0;
            continue;
        }
        int64_t now = base_now_ns();
        last = last ? last : now;
        if (now - last > NAP_IDLE_NS && !work_outstanding(k))
            await_tasks(k);
        else
            work_rest(k, now, last, &nap, NAP_BUSY_NS);
    }
    return NULL;
}

/* --- the first thread --- */

/* How many slots are in use. */
static uint32_t work_used(const weft_gpu_worker *k)
{
    return (uint32_t)(k->put - atomic_load_explicit(&k->taken_back, memory_order_relaxed) -
                      atomic_load_explicit(&k->completed, memory_order_acquire));
}

static void end_claims(weft_gpu_worker *k)
{
    k->finished = true;
    __atomic_store_n(k->ended, 1, __ATOMIC_RELEASE); /* after the last task; pairs with weft_device_next_task() */
}

/* Claims as many tasks as the ring has free slots, and puts them into the ring. Returns how many. */
static uint32_t fill(weft_gpu_worker *k, int64_t now)
{
    weft_lease leases[BATCH];
    uint32_t room = k->config.ahead - work_used(k);
    if (k->finished || k->stalled || !room)
        return 0;
    int n = weft_claim(k->q, leases, room < BATCH ? room : BATCH, 0);
    for (int i = 0; i < n; i++) { /* prefetch these slots, because they were last used a round of the ring ago */
        uint64_t at = (k->next + (uint64_t)i) & k->mask;
        base_fetch_to_write(&k->tasks[at]);
        base_fetch_to_write(&k->slots[at].number);
        base_fetch_to_write(k->slots[at].task);
    }
    if (n == -ESHUTDOWN || n == -EBADF)
        end_claims(k);
    if (n <= 0)
        return 0;
    work_count(&k->claimed, (uint32_t)n); /* counted before any of these tasks can be done */
    gpu_work_wake(k);
    for (int i = 0; i < n; i++)
        put_in(k, &leases[i], now);
    __atomic_store_n(k->filled, k->next, __ATOMIC_RELEASE); /* pairs with weft_device_next_task() */
    return (uint32_t)n;
}

/* Takes a task back from the blocks. False: a block has just returned the result. */
static bool take_back(weft_gpu_worker *k, struct work_task *t)
{
    uint64_t held = t->number + 1;
    if (!atomic_compare_exchange_strong_explicit(&t->held, &held, 0, memory_order_acq_rel, memory_order_relaxed))
        return false;
    __atomic_store_n(&k->slots[t->number & k->mask].number, 0, __ATOMIC_RELEASE);
    atomic_store_explicit(&t->used, false, memory_order_relaxed);
    (void)weft_release(k->q, &t->lease); /* if the lease has ended, nothing needs to be done */
    work_count(&k->taken_back, 1);
    return true;
}

static uint32_t take_back_all(weft_gpu_worker *k)
{
    uint32_t n = 0;
    for (uint64_t i = 0; i <= k->mask; i++)
        if (atomic_load_explicit(&k->tasks[i].used, memory_order_relaxed))
            n += take_back(k, &k->tasks[i]);
    return n;
}

/* Records whether a block has shown activity. */
static void look_for_life(weft_gpu_worker *k, int64_t now)
{
    /* Tasks count as done as soon as blocks report them, because the second thread may be waiting in a completion. */
    uint64_t sum = atomic_load_explicit(&k->stale, memory_order_relaxed) + atomic_load_explicit(&k->done_tail, memory_order_relaxed);
    for (uint32_t i = 0; i < WEFT_DEVICE_BEATS; i++) {
        uint64_t beat = __atomic_load_n(&k->beats[i], __ATOMIC_RELAXED);
        sum += beat;
        if (beat && beat - 1 <= k->next && beat - 1 > k->reached)
            k->reached = beat - 1;
    }
    if (sum == k->beats_seen)
        return;
    k->beats_seen = sum;
    k->life = now;
    k->stalled = false;
}

/* Tasks that no block has done in time go back to the queue. If it is not known whether a block has taken a task, the time starts when some
 * block last showed activity. */
static void look_at_tasks(weft_gpu_worker *k, int64_t now)
{
    uint32_t hung = 0, waiting = 0;
    uint64_t done = atomic_load_explicit(&k->done_reached, memory_order_relaxed);
    k->reached = k->reached > done ? k->reached : done;
    for (uint64_t i = 0; i <= k->mask && work_used(k); i++) {
        struct work_task *t = &k->tasks[i];
        if (!atomic_load_explicit(&t->used, memory_order_relaxed))
            continue;
        if (t->number >= k->reached) {
            t->since = t->since > k->life ? t->since : k->life;
        } else if (!t->taken) {
            t->taken = true;
            t->since = now;
        }
        if (now - t->since > k->config.task_ns && take_back(k, t))
            t->taken ? hung++ : waiting++;
    }
    k->stalled = k->stalled || waiting;
    if (hung)
        base_log(BASE_LOG_WARN,
                 "worker %u of GPU %s: blocks have not done %u tasks within %lld ms, so the queue gives these tasks to other workers "
                 "(weft_gpu_worker_config.task_ns)",
                 k->number, k->all->name, hung, (long long)(k->config.task_ns / WEFT_MS));
    if (waiting)
        base_log(BASE_LOG_WARN,
                 "worker %u of GPU %s: no block has taken a task within %lld ms, so %u tasks go back to the queue, and the worker claims "
                 "no task until a block asks for one; is the kernel running?",
                 k->number, k->all->name, (long long)(k->config.task_ns / WEFT_MS), waiting);
}

static void renew(weft_gpu_worker *k)
{
    for (uint64_t i = 0; i <= k->mask; i++) {
        struct work_task *t = &k->tasks[i];
        if (!atomic_load_explicit(&t->used, memory_order_relaxed))
            continue;
        pthread_mutex_lock(&k->lease_lock);
        if (atomic_load_explicit(&t->held, memory_order_relaxed))
            (void)weft_renew(k->q, &t->lease); /* if the lease is lost, the completion will be refused */
        pthread_mutex_unlock(&k->lease_lock);
    }
}

static void work_upkeep(weft_gpu_worker *k, int64_t now)
{
    int64_t every = k->config.task_ns / 8 < 100 * WEFT_MS ? k->config.task_ns / 8 : 100 * WEFT_MS;
    every = every < k->config.renew_ns ? every : k->config.renew_ns;
    if (now - k->upkeep < every)
        return;
    k->upkeep = now;
    look_for_life(k, now);
    look_at_tasks(k, now);
    if (now - k->renewed > k->config.renew_ns) {
        k->renewed = now;
        renew(k);
    }
    if (k->all->backend->check && !k->failed && now - k->checked > CHECK_NS) {
        k->checked = now;
        k->failed = k->all->backend->check(k->all->device) != 0;
        if (k->failed) {
            end_claims(k);
            base_log(BASE_LOG_ERROR, "worker %u of GPU %s ends, and %u tasks go back to the queue: %s", k->number, k->all->name,
                     take_back_all(k), base_error());
        }
    }
}

/* For a worker that is being closed: whether nothing is left to wait for. */
static bool work_over(weft_gpu_worker *k, int64_t until, int64_t now)
{
    if (!k->finished)
        end_claims(k);
    if (work_used(k) && !k->stalled && !k->failed && now < until)
        return false;
    uint32_t n = take_back_all(k);
    if (n)
        base_log(BASE_LOG_WARN,
                 "worker %u of GPU %s was closed before its blocks had done %u of its tasks: the queue gives these tasks to other workers",
                 k->number, k->all->name, n);
    while (work_used(k)) /* the serving thread may still be passing on the last results */
        base_sleep_ns(NAP_LEAST_NS);
    return true;
}

/* Whether blocks have done tasks since the last look. */
static bool work_progress(weft_gpu_worker *k, int64_t now)
{
    uint64_t completed = atomic_load_explicit(&k->completed, memory_order_relaxed);
    if (completed == k->completed_seen)
        return false;
    k->completed_seen = completed;
    k->life = now;
    k->stalled = false;
    return true;
}

void *gpu_work_run(void *arg)
{
    weft_gpu_worker *k = arg;
    int64_t nap = 0, last = k->life = base_now_ns();
    base_cpu_stay(k->all->near);
    for (;;) {
        int64_t now = base_now_ns();
        bool moved = work_progress(k, now) + fill(k, now) > 0;
        work_upkeep(k, now);
        int64_t until = atomic_load_explicit(&k->until, memory_order_acquire);
        if (until != INT64_MAX && work_over(k, until, now))
            return NULL;
        if (moved) {
            last = now;
            nap = 0;
        } else {
            work_rest(k, now, last, &nap, work_used(k) ? NAP_BUSY_NS : now - last > IDLE_NS ? NAP_IDLE_NS : NAP_MOST_NS);
        }
    }
}
