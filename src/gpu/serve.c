/* SPDX-License-Identifier: MIT
 *
 * The serving thread: it reads the requests of kernels from the rings, starts them as operations of the fabric, and writes the answers. The
 * thread never waits for a single operation. If a request cannot be started now, only its ring waits. The thread polls, because a device
 * cannot wake it. While no requests arrive, it sleeps between polls, longer each time.
 */
#include "gpu/ring.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>

#define NAP_LEAST_NS (10 * WEFT_US)
#define NAP_BUSY_NS  (100 * WEFT_US) /* the longest sleep while the last request was recent */
#define NAP_MOST_NS  WEFT_MS
#define LATELY_NS    WEFT_SECOND
#define LOOKS        128u /* how many times all rings are polled between two readings of the clock */
#define RELAX        4u   /* polls between two pauses; a pause takes as long as a poll of all rings */
#define CHECK_NS     WEFT_SECOND
#define AT_A_TIME    64u /* maximum number of requests of one ring before the next ring is served */
#define FETCH_AHEAD  16u /* slots that are prefetched, because reading what a device wrote takes long */
/* the longest sleep between two turns, in case gpu_serve_end() wakes the thread just before the sleep */
#define TURN_NAP_NS (100 * WEFT_MS)

struct gpu_server {
    struct weft_node *w;
    struct gpu_workers *workers;
    struct gpu_ring *rings;
    uint32_t count;
    /* When the thread ends, even if requests are not done; INT64_MAX: it was not asked to end. */
    _Atomic int64_t until;
    bool all_done;              /* written by the serving thread; read after that thread was joined */
    int (*check)(void *device); /* NULL: the back end has no check(), or the check has failed already */
    void *device;
    uint32_t failed_now;        /* requests that have failed and are not in `failed` yet */
    struct gpu_records records; /* records in arenas, of requests that are not complete */
    _Atomic uint64_t *notice;
    uint64_t epoch; /* the membership epoch at which `notice` was last written */
    /* asked, served: how many turns were requested, and how many are done; the thread reads the rings while the two differ */
    _Atomic uint32_t asked, served;
    int error; /* the first error, in the last turn, of a request without an answer; written before `served` */
    pthread_t thread;
    _Atomic uint64_t requests, failed, waits;
};

static void server_count(_Atomic uint64_t *n, uint64_t more)
{
    atomic_store_explicit(n, atomic_load_explicit(n, memory_order_relaxed) + more, memory_order_relaxed);
}

/* Finds the memory at an address of this node that a kernel has given. For 0 bytes any address of this node is accepted. Holds the memory's
 * arena, since another thread may be closing the arena's GPU. */
static int local(struct weft_node *w, uint64_t addr, uint64_t bytes, void **out, struct gpu_arena **held)
{
    static uint64_t nothing;
    bool own = weft_gaddr_node(addr) == w->rank;
    *held = NULL;
    *out = !own ? NULL : weft_gaddr_space(addr) ? gpu_arena_hold(gpu_arenas_of(w), addr, bytes, held) : weft_ptr(w, addr, bytes);
    if (!bytes)
        *out = &nothing;
    return *out ? 0
                : base_fail(-EFAULT,
                            "a kernel's request names address %#llx, %llu bytes, which are not in this node's pool or arenas; use memory "
                            "that this node has allocated",
                            (unsigned long long)addr, (unsigned long long)bytes);
}

static int start_transfer(struct weft_node *w, struct gpu_request *q, void *here)
{
    uint64_t len = q->high[0];
    if (q->kind == WEFT_DEVICE_PUT)
        return weft_put(w, q->low[0], here, len, &q->op);
    if (q->kind == WEFT_DEVICE_GET)
        return weft_get(w, here, q->low[0], len, &q->op);
    uint64_t place = q->high[1] & ((1ull << (WEFT_OFFSET_BITS + WEFT_SPACE_BITS)) - 1);
    weft_gaddr signal = weft_gaddr_make(weft_gaddr_node(q->low[0]), 0, 0) | place;
    return weft_put_signal(w, q->low[0], here, len, signal, q->low[2], &q->op);
}

static int start_copy(struct weft_node *w, struct gpu_request *q)
{
    void *here;
    struct gpu_arena *held;
    int rc = local(w, q->low[1], q->high[0], &here, &held);
    if (!rc)
        rc = start_transfer(w, q, here); /* now the operation itself holds the arena */
    gpu_arena_release(held);
    return rc;
}

static int start_send(struct weft_node *w, struct gpu_request *q)
{
    void *payload = NULL;
    int rc = q->high[0] ? gpu_pool_memory(w, q->low[1], q->high[0], &payload) : 0;
    if (rc)
        return rc;
    if (q->low[0] > UINT32_MAX || q->high[1] > UINT32_MAX)
        return base_fail(-EMSGSIZE, "a kernel cannot send a message to handler %llu of node %llu: one of the two numbers is too large",
                         (unsigned long long)q->high[1], (unsigned long long)q->low[0]);
    if (q->high[0] > WEFT_PAYLOAD_MAX)
        return base_fail(-EMSGSIZE, "a kernel cannot send a message of %llu bytes to node %llu: at most %u bytes are possible",
                         (unsigned long long)q->high[0], (unsigned long long)q->low[0], WEFT_PAYLOAD_MAX);
    return weft_send(w, (uint32_t)q->low[0], (uint32_t)q->high[1], &q->low[2], 8, payload, q->high[0], &q->op);
}

/* Starts a fence. The fence also waits for operations that are begun after this call, but before the fence is first checked. */
static int start_fence(struct weft_node *w, struct gpu_ring *r, const struct gpu_request *q)
{
    if (q->low[0] > UINT32_MAX)
        return base_fail(-EFAULT, "node %#llx does not exist", (unsigned long long)q->low[0]);
    if (r->fenced != r->head + 1)
        r->fence = (struct fab_flush){0};
    r->fenced = r->head + 1;
    return fab_fence_look(w, (uint32_t)q->low[0], &r->fence);
}

/* Hands a record to a service. The service may answer before this returns. */
static int start_record(struct gpu_server *s, struct gpu_request *q)
{
    void *record = NULL;
    bool in_arena = weft_gaddr_node(q->low[0]) == s->w->rank && weft_gaddr_space(q->low[0]);
    q->record = NULL;
    int rc = in_arena ? 0 : gpu_pool_memory(s->w, q->low[0], WEFT_DEVICE_RECORD_BYTES, &record);
    if (rc)
        return rc;
    struct gpu_service *service = q->low[1] < WEFT_GPU_SERVICES ? &s->workers->services[q->low[1]] : NULL;
    weft_gpu_service_fn fn = service ? atomic_load_explicit(&service->fn, memory_order_acquire) : NULL;
    if (!fn)
        return base_fail(-ENOENT, "the program has no service %llu (weft_gpu_service())", (unsigned long long)q->low[1]);
    if (q->low[0] % 8 || q->high[0] != WEFT_DEVICE_RECORD_BYTES)
        return base_fail(-EINVAL, "the record at %#llx has %llu bytes: it must have %u, at a multiple of 8", (unsigned long long)q->low[0],
                         (unsigned long long)q->high[0], WEFT_DEVICE_RECORD_BYTES);
    if (in_arena)
        return gpu_record_begin(s->w, &s->records, q, service);
    q->op.status = 1;
    fn(s->w, record, (weft_gpu_call *)q, service->arg);
    return 0;
}

int weft_gpu_answer(weft_gpu_call *call, int status, uint64_t value)
{
    struct gpu_request *q = (struct gpu_request *)call;
    if (status > 0 || status == -EINPROGRESS)
        return base_fail(-EINVAL, "weft_gpu_answer(): the status is %d: give 0, or a negative errno other than -EINPROGRESS", status);
    if (__atomic_load_n(&q->op.status, __ATOMIC_RELAXED) != 1)
        return base_fail(-EINVAL, "weft_gpu_answer(): this call was answered already: answer each call once");
    q->value = value;
    __atomic_store_n(&q->op.status, status, __ATOMIC_RELEASE); /* pairs with server_begin() and server_look() */
    return 0;
}

/* Starts a request. Returns -EAGAIN if the queue to its node is full now. */
static int server_start(struct gpu_server *s, struct gpu_ring *r, struct gpu_request *q)
{
    struct weft_node *w = s->w;
    switch (q->kind) {
    case WEFT_DEVICE_PUT_VALUE: return weft_put(w, q->low[0], &q->low[1], 8, &q->op);
    case WEFT_DEVICE_PUT:
    case WEFT_DEVICE_GET:
    case WEFT_DEVICE_PUT_SIGNAL: return start_copy(w, q);
    case WEFT_DEVICE_FETCH_ADD: return weft_fetch_add(w, q->low[0], q->low[1], &q->value, &q->op);
    case WEFT_DEVICE_SWAP: return weft_swap(w, q->low[0], q->low[1], &q->value, &q->op);
    case WEFT_DEVICE_COMPARE_SWAP: return weft_compare_swap(w, q->low[0], q->low[1], q->low[2], &q->value, &q->op);
    case WEFT_DEVICE_SEND: return start_send(w, q);
    case WEFT_DEVICE_FENCE: return start_fence(w, r, q);
    case WEFT_DEVICE_RECORD: return start_record(s, q);
    case WEFT_DEVICE_TASK_DONE:
        /* Prefetch for the request after the next one, since a prefetch takes about as long as a request. */
        gpu_work_fetch(s->workers, r, r->head + 2 * q->slots);
        return gpu_work_done(s->workers, q);
    case WEFT_DEVICE_SUBMIT:
    case WEFT_DEVICE_CLAIM:
    case WEFT_DEVICE_COMPLETE:
    case WEFT_DEVICE_RENEW: return gpu_tasks_ask(s->workers, q);
    default: return 0; /* flushes: they begin only when they are the oldest request */
    }
}

/* Checks a request that is under way: -EINPROGRESS, or its result. */
static int server_look(struct weft_node *w, struct gpu_ring *r, struct gpu_request *q)
{
    if (q->status != -EINPROGRESS)
        return q->status;
    if (q->kind == WEFT_DEVICE_RECORD && q->record)
        return gpu_record_result(w, q);
    if (q->kind >= WEFT_DEVICE_RECORD) { /* services and tasks.c complete these requests, in other threads */
        int status = __atomic_load_n(&q->op.status, __ATOMIC_ACQUIRE);
        return status == 1 ? -EINPROGRESS : status;
    }
    if (q->kind != WEFT_DEVICE_FLUSH)
        return weft_test(w, &q->op);
    int rc = q->low[0] > UINT32_MAX ? -EFAULT : fab_flush_look(w, (uint32_t)q->low[0], &q->flush); /* earlier requests are done */
    int failure = rc == -EINPROGRESS ? 0 : gpu_ring_failure(r, q->low[0]);
    return failure ? failure : rc;
}

/* Logs why a request has failed, because a kernel gets only the error number. Attempts that may succeed later are not logged. */
static BASE_COLD void server_say(const struct gpu_server *s, const struct gpu_ring *r, const struct gpu_request *q, int status,
                                 const char *why)
{
    static const char *const kinds[WEFT_DEVICE_KINDS] = {"",          "nothing", "put",          "put_value", "get",      "put_signal",
                                                         "fetch_add", "swap",    "compare_swap", "send",      "fence",    "flush",
                                                         "task_done", "record",  "submit",       "claim",     "complete", "renew"};
    if (status != -EAGAIN)
        base_log(BASE_LOG_DEBUG, "GPU %s: a kernel's request %s(%#llx) in ring %u has failed: %s", s->workers->name, kinds[q->kind],
                 (unsigned long long)q->low[0], (unsigned)(r - s->rings), why);
}

/* Counts a request that has failed. `begun`: it failed after it had begun; otherwise the reason is logged already. */
static BASE_COLD void server_failed(struct gpu_server *s, const struct gpu_ring *r, const struct gpu_request *q, int status, bool begun)
{
    s->failed_now++;
    if (begun)
        server_say(s, r, q, status, base_strerror(status));
}

/* Begins a request. Many requests, such as those within a host, are complete when this returns. */
static int server_begin(struct gpu_server *s, struct gpu_ring *r, struct gpu_request *q)
{
    q->op.status = 0;
    int rc = server_start(s, r, q);
    if (rc == -EAGAIN)
        return rc;
    if (BASE_UNLIKELY(rc))
        server_say(s, r, q, rc, base_error());
    if (q->kind == WEFT_DEVICE_FLUSH) {
        q->flush = (struct fab_flush){0};
        q->status = -EINPROGRESS;
    } else {
        int status = __atomic_load_n(&q->op.status, __ATOMIC_ACQUIRE); /* acquire, as in weft_test() */
        q->status = rc ? rc : status == 1 ? -EINPROGRESS : status;
    }
    if (r->done == r->head && (q->status = server_look(s->w, r, q)) != -EINPROGRESS) {
        if (BASE_UNLIKELY(q->status))
            server_failed(s, r, q, q->status, !rc);
        gpu_ring_end(r, q);
    } else {
        gpu_ring_keep(r, q);
    }
    return 0;
}

/* A ring has an invalid request, so nothing more is read from this ring. */
static BASE_COLD void server_refuse(struct gpu_server *s, struct gpu_ring *r, int why)
{
    if (r->errors[r->nodes] == why)
        return; /* this was logged already */
    base_log(BASE_LOG_ERROR,
             "GPU %s: a kernel wrote an invalid request into ring %u (weft knows no request of that kind): weft ignores this request and "
             "all later ones in that ring; correct the kernel, or build it with the header of this version of weft",
             s->workers->name, (unsigned)(r - s->rings));
    r->errors[r->nodes] = why; /* replaces the error of an earlier request for no node */
}

/* Begins the requests that have arrived, in order. Returns their number. */
static uint32_t server_take(struct gpu_server *s, struct gpu_ring *r)
{
    uint32_t n = 0;
    for (; n < AT_A_TIME; n++) {
        int why;
        struct gpu_request *q = gpu_ring_next(r, &why);
        if (!q) {
            if (why)
                server_refuse(s, r, why);
            break;
        }
        if (n) /* requests often come close together */
            __builtin_prefetch(&r->slots[(r->head + FETCH_AHEAD) & r->mask]);
        if (server_begin(s, r, q) == -EAGAIN) {
            server_count(&s->waits, 1);
            break;
        }
    }
    if (n)
        gpu_ring_publish(r);
    return n;
}

/* Ends the requests that are complete, in order. Returns their number. */
static uint32_t server_end(struct gpu_server *s, struct gpu_ring *r)
{
    uint32_t n = 0;
    for (struct gpu_request *q; (q = gpu_ring_oldest(r)); n++) {
        int status = server_look(s->w, r, q);
        if (status == -EINPROGRESS)
            break;
        if (BASE_UNLIKELY(status < 0))
            server_failed(s, r, q, status, q->status == -EINPROGRESS);
        gpu_ring_done(r, status);
    }
    return n;
}

static bool all_done(struct gpu_server *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (gpu_ring_oldest(&s->rings[i]))
            return false;
    return true;
}

/* Polls each ring once. Returns true if there was something to do. */
static bool server_round(struct gpu_server *s)
{
    uint32_t taken = 0, ended = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        if (BASE_LIKELY(gpu_ring_quiet(&s->rings[i])))
            continue;
        taken += server_take(s, &s->rings[i]);
        ended += server_end(s, &s->rings[i]);
    }
    if (taken)
        server_count(&s->requests, taken);
    if (s->failed_now) {
        server_count(&s->failed, s->failed_now);
        s->failed_now = 0;
    }
    bool moved = s->records.first && gpu_records_step(s->w, &s->records);
    return taken + ended > 0 || moved;
}

/* Polls for a moment, without reading the clock and without yielding the processor. */
static bool server_spin(struct gpu_server *s)
{
    for (uint32_t i = 0; i < LOOKS; i++) {
        if (server_round(s))
            return true;
        if (!all_done(s) && fab_service(s->w) > 0)
            return true;
        if (i % RELAX == 0)
            base_relax();
    }
    return false;
}

/* Tells kernels which nodes are gone. */
static void server_notice(struct gpu_server *s)
{
    uint64_t epoch = weft_epoch(s->w);
    if (epoch == s->epoch)
        return;
    s->epoch = epoch;
    for (uint32_t i = 0; i < s->rings[0].nodes; i++)
        if (!fab_alive(s->w, i))
            atomic_fetch_or_explicit(&s->notice[1 + i / 64], 1ull << i % 64, memory_order_release); /* pairs with weft_device_gone() */
}

static void *server_run(void *arg)
{
    struct gpu_server *s = arg;
    int64_t last = 0, nap = 0, checked = 0, spin = s->w->options.spin_ns;
    base_cpu_stay(s->workers->near);
    (void)fab_nowait(true);
    for (;;) {
        server_notice(s);
        if (server_spin(s)) {
            last = 0;
            nap = 0;
            if (atomic_load_explicit(&s->until, memory_order_relaxed) == INT64_MAX)
                continue;
        }
        int64_t until = atomic_load_explicit(&s->until, memory_order_acquire), now = base_now_ns();
        if (!last)
            last = now;
        /* a request may have arrived after the last poll, before the thread was asked to end */
        bool more = until != INT64_MAX && server_round(s);
        s->all_done = !more && all_done(s);
        if (until != INT64_MAX && (s->all_done || now >= until))
            return NULL;
        if (now - last < spin) {
            sched_yield(); /* kernels of the `host` back end may need this processor */
            continue;
        }
        if (s->check && now - checked > CHECK_NS) {
            checked = now;
            if (s->check(s->device)) {
                base_log(BASE_LOG_ERROR, "%s", base_error());
                s->check = NULL;
            }
        }
        int64_t most = now - last < LATELY_NS ? NAP_BUSY_NS : NAP_MOST_NS;
        nap = nap && nap * 2 < most ? nap * 2 : nap ? most : NAP_LEAST_NS;
        base_sleep_ns(nap);
    }
}

/* --- turns --- */

/* Returns true if all requests of the kernel are done, and the rings hold nothing except invalid slots. */
static bool server_nothing_left(struct gpu_server *s)
{
    int why;
    for (uint32_t i = 0; i < s->count; i++)
        if (gpu_ring_oldest(&s->rings[i]) || gpu_ring_next(&s->rings[i], &why))
            return false;
    return true;
}

/* Returns the first error of a request without an answer, and clears all such errors. */
static int server_errors(struct gpu_server *s)
{
    int first = 0;
    for (uint32_t i = 0; i < s->count; i++)
        for (uint32_t node = 0; node <= s->rings[i].nodes; node++) {
            int *error = &s->rings[i].errors[node];
            first = first ? first : *error;
            *error = 0;
        }
    return first;
}

static void *server_run_turns(void *arg)
{
    struct gpu_server *s = arg;
    (void)fab_nowait(true);
    for (;;) {
        uint32_t asked = atomic_load_explicit(&s->asked, memory_order_acquire); /* pairs with gpu_serve_turn(): the kernel has ended */
        int64_t until = atomic_load_explicit(&s->until, memory_order_acquire);
        bool turn = asked != atomic_load_explicit(&s->served, memory_order_relaxed);
        s->all_done = !turn;
        if (until != INT64_MAX && (!turn || base_now_ns() >= until))
            return NULL;
        if (!turn) {
            base_futex_wait(&s->asked, asked, TURN_NAP_NS);
        } else if (!server_spin(s) && server_nothing_left(s)) {
            server_notice(s);
            s->error = server_errors(s);
            atomic_store_explicit(&s->served, asked, memory_order_release); /* pairs with gpu_serve_wait() */
            base_futex_wake(&s->served, INT_MAX);
        } else {
            sched_yield();
        }
    }
}

int gpu_serve_wait(struct gpu_server *s, int64_t deadline)
{
    uint32_t asked = atomic_load_explicit(&s->asked, memory_order_relaxed), served;
    while ((served = atomic_load_explicit(&s->served, memory_order_acquire)) != asked) {
        int64_t left = deadline - base_now_ns();
        if (left <= 0)
            return base_fail(-ETIMEDOUT,
                             "requests of a kernel of GPU %s were not complete at the deadline, because a node does not answer (is its "
                             "process stopped?); the next kernel starts only when they are complete",
                             s->workers->name);
        base_futex_wait(&s->served, served, left < WEFT_SECOND ? left : WEFT_SECOND);
    }
    return 0;
}

int gpu_serve_turn(struct gpu_server *s, int64_t deadline)
{
    int rc = gpu_serve_wait(s, deadline);
    if (rc)
        return rc;
    atomic_fetch_add_explicit(&s->asked, 1, memory_order_release);
    base_futex_wake(&s->asked, 1);
    rc = gpu_serve_wait(s, deadline);
    if (!rc && s->error)
        rc = base_fail(s->error, "a request of a kernel of GPU %s has failed: %s; weft_gpu_stat() counts such requests", s->workers->name,
                       base_strerror(s->error));
    return rc;
}

int gpu_serve(struct gpu_server **out, struct gpu_workers *workers, struct gpu_ring *rings, uint32_t n, _Atomic uint64_t *notice,
              bool turns)
{
    struct gpu_server *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(-ENOMEM, "no memory for the thread that serves a GPU" BASE_MEMORY_HINT);
    s->w = workers->w;
    s->workers = workers;
    s->rings = rings;
    s->count = n;
    s->notice = notice;
    s->check = workers->backend->check;
    s->device = workers->device;
    s->until = INT64_MAX;
    s->records.end = &s->records.first;
    int rc = base_thread(&s->thread, turns ? server_run_turns : server_run, s);
    if (rc) {
        free(s);
        return base_fail(rc, "cannot start the thread that serves a GPU: %s" BASE_THREAD_HINT, base_strerror(rc));
    }
    *out = s;
    return 0;
}

bool gpu_serve_end(struct gpu_server *s, int64_t deadline)
{
    atomic_store_explicit(&s->until, deadline, memory_order_release);
    base_futex_wake(&s->asked, 1);
    pthread_join(s->thread, NULL);
    bool done = s->all_done;
    free(s);
    return done;
}

void gpu_serve_stat(const struct gpu_server *s, weft_gpu_stats *out)
{
    out->requests = atomic_load_explicit(&s->requests, memory_order_relaxed);
    out->failed = atomic_load_explicit(&s->failed, memory_order_relaxed);
    out->waits = atomic_load_explicit(&s->waits, memory_order_relaxed);
}
