/* SPDX-License-Identifier: MIT
 *
 * Calls libpmix, which is loaded at run time. MPI may use the same library in this process: PMIx_Init() and PMIx_Finalize() count their
 * callers.
 *
 * Some calls of PMIx wait for the launcher without a limit. So a thread makes each call. After the deadline the caller abandons the thread,
 * which closes the connection if its call ever returns.
 */
#include "cluster/pmix.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/join.h"

bool launcher_is_here(void)
{
    const char *space = getenv("PMIX_NAMESPACE"), *rank = getenv("PMIX_RANK");
    return space && space[0] && rank && rank[0];
}

#if !defined(WEFT_PMIX_HEADERS)

int launcher_open(struct launcher **out, const char *library, int64_t deadline)
{
    (void)out, (void)library, (void)deadline;
    return base_fail(-ENOTSUP,
                     "a launcher has started this process by PMIx, and this weft was built without PMIx's headers (Debian: "
                     "libpmix-dev): build it with them, or start the program with `weft run`; for one node alone, set WEFT_SIZE=1");
}

uint32_t launcher_rank(const struct launcher *p)
{
    (void)p;
    return 0;
}

uint32_t launcher_size(const struct launcher *p)
{
    (void)p;
    return 1;
}

int launcher_exchange(struct launcher **p, const void *mine, size_t len, void *all, int64_t deadline)
{
    (void)p, (void)mine, (void)len, (void)all, (void)deadline;
    return -ENOTSUP;
}

bool launcher_exchanged(const struct launcher *p)
{
    (void)p;
    return true;
}

void launcher_close(struct launcher *p)
{
    (void)p;
}

#else

#include <pmix.h>
#include <sodium.h>
#include <unistd.h>

#define LEAVE_WAIT (5 * WEFT_SECOND) /* time for PMIx_Finalize() */
#define AGAIN_WAIT (20 * WEFT_MS)
/* how long after its deadline a caller still waits: PMIx rounds the deadline up to seconds, and reports missing processes only after
 * that */
#define GRACE      (4 * WEFT_SECOND)

/* --- the library --- */

#if defined(__APPLE__)
static const char *const names[] = {"libpmix.2.dylib", "libpmix.dylib", "/opt/homebrew/lib/libpmix.dylib", "/usr/local/lib/libpmix.dylib"};
#define WHO_HAS_IT "install it (brew install pmix)"
#else
static const char *const names[] = {"libpmix.so.2", "libpmix.so"};
#define WHO_HAS_IT "install it (Debian, Ubuntu: libpmix2; Fedora: pmix)"
#endif
#define NAMES (sizeof names / sizeof names[0])

struct launcher_library {
    __typeof__(PMIx_Init) *init;
    __typeof__(PMIx_Finalize) *finalize;
    __typeof__(PMIx_Get) *get;
    __typeof__(PMIx_Put) *put;
    __typeof__(PMIx_Commit) *commit;
    __typeof__(PMIx_Fence) *fence;
    __typeof__(PMIx_Error_string) *error_string;
    __typeof__(PMIx_Register_event_handler) *register_event_handler;
    __typeof__(PMIx_Deregister_event_handler) *deregister_event_handler;
};

static const struct {
    const char *name;
    size_t at;
} symbols[] = {
    {"PMIx_Init", offsetof(struct launcher_library, init)},
    {"PMIx_Finalize", offsetof(struct launcher_library, finalize)},
    {"PMIx_Get", offsetof(struct launcher_library, get)},
    {"PMIx_Put", offsetof(struct launcher_library, put)},
    {"PMIx_Fence", offsetof(struct launcher_library, fence)},
    {"PMIx_Error_string", offsetof(struct launcher_library, error_string)},
    {"PMIx_Register_event_handler", offsetof(struct launcher_library, register_event_handler)},
    {"PMIx_Deregister_event_handler", offsetof(struct launcher_library, deregister_event_handler)},
    {"PMIx_Commit", offsetof(struct launcher_library, commit)},
};

/* RTLD_GLOBAL because plugins of libpmix may not be linked with it. Never unloaded, because its threads may be running. */
static int library_load(struct launcher_library *l, const char *chosen)
{
    char why[256] = "";
    void *handle = NULL;
    for (size_t i = 0; !handle && i < (chosen[0] ? 1 : NAMES); i++) {
        handle = dlopen(chosen[0] ? chosen : names[i], RTLD_NOW | RTLD_GLOBAL);
        const char *said = handle ? NULL : dlerror();
        if (said && !why[0])
            snprintf(why, sizeof why, "%s", said);
    }
    if (!handle)
        return base_fail(-ENOTSUP,
                         "a launcher has started this process by PMIx, but the library libpmix cannot be loaded (%s): " WHO_HAS_IT
                         ", name it by WEFT_PMIX_LIBRARY, or start the program with `weft run` (or set WEFT_SIZE=1, to run it alone)",
                         why);
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *found = dlsym(handle, symbols[i].name);
        if (!found)
            return base_fail(
                -ENOTSUP,
                "the library %s lacks the function %s, so it is too old, or is not a PMIx library: set WEFT_PMIX_LIBRARY to another one",
                chosen[0] ? chosen : "libpmix", symbols[i].name);
        /* ISO C cannot convert dlsym()'s void pointer to a function pointer. */
        memcpy((char *)l + symbols[i].at, &found, sizeof found);
    }
    return 0;
}

/* --- calls with a deadline --- */

enum call_state { IDLE, RUNNING, DONE, ABANDONED };

struct launcher {
    struct launcher_library library;
    pmix_proc_t me;
    uint32_t size;
    bool connected, exchanged;
    bool one_host;         /* all processes of the job are on this host */
    bool fenced;           /* this process has exchanged data over an earlier connection */
    pmix_status_t handler; /* registration of launcher_gone(); negative: not registered */
    char key[32];
    void *mine, *all; /* mine: data of this process, `len` bytes; all: data of all processes, size * len bytes */
    size_t len;
    /* The call that is running: */
    int (*step)(struct launcher *p, int64_t deadline);
    int64_t deadline;
    int rc;
    char sentence[1024];
    _Atomic uint32_t state;
};

/* Wipes the data before freeing it, because it may contain a secret. */
static void launcher_free(struct launcher *p)
{
    if (p->mine)
        sodium_memzero(p->mine, p->len);
    if (p->all)
        sodium_memzero(p->all, p->size * p->len);
    free(p->mine);
    free(p->all);
    free(p);
}

static void launcher_disconnect(const struct launcher *p)
{
    if (p->handler >= 0)
        p->library.deregister_event_handler((size_t)p->handler, NULL, NULL);
    p->library.finalize(NULL, 0);
}

static void *launcher_thread(void *arg)
{
    struct launcher *p = arg;
    uint32_t running = RUNNING;
    base_error_clear();
    p->rc = p->step(p, p->deadline);
    snprintf(p->sentence, sizeof p->sentence, "%s", base_error());
    /* release: the waiting thread (acquire) sees all stores above */
    if (atomic_compare_exchange_strong_explicit(&p->state, &running, DONE, memory_order_acq_rel, memory_order_acquire)) {
        base_futex_wake(&p->state, 1);
        return NULL;
    }
    if (p->connected)
        launcher_disconnect(p);
    launcher_free(p);
    return NULL;
}

/* Run `step` on a new thread, so that the caller can stop waiting for it. After a time-out or an interrupt the thread owns the connection,
 * and *at becomes NULL. */
static int launcher_call(struct launcher **at, int (*step)(struct launcher *, int64_t), int64_t deadline, const char *what)
{
    struct launcher *p = *at;
    pthread_t thread;
    p->step = step;
    p->deadline = deadline;
    atomic_store_explicit(&p->state, RUNNING, memory_order_relaxed);
    int rc = base_thread(&thread, launcher_thread, p);
    if (rc)
        return base_fail(rc, "cannot start the thread that calls PMIx: %s" BASE_THREAD_HINT, base_strerror(rc));
    pthread_detach(thread);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&p->state, memory_order_acquire);
        int64_t left = base_after(deadline, GRACE) - base_now_ns();
        if (seen == DONE)
            break;
        rc = left <= 0
                 ? base_fail(-ETIMEDOUT, "%s: the launcher did not answer in time (PMIx); to wait longer, raise WEFT_JOIN_TIMEOUT", what)
                 : join_stopped();
        if (rc && atomic_compare_exchange_strong_explicit(&p->state, &seen, ABANDONED, memory_order_acq_rel, memory_order_acquire)) {
            *at = NULL;
            return rc;
        }
        base_futex_wait(&p->state, RUNNING, left < 100 * WEFT_MS ? left : 100 * WEFT_MS);
    }
    return p->rc ? base_fail(p->rc, "%s", p->sentence) : 0;
}

static int launcher_failed(const struct launcher *p, pmix_status_t status, const char *what)
{
    const char *why = p->library.error_string(status);
    int rc = status == PMIX_ERR_TIMEOUT                                         ? -ETIMEDOUT
             : status == PMIX_ERR_NOMEM || status == PMIX_ERR_OUT_OF_RESOURCE   ? -ENOMEM
             : status == PMIX_ERR_NOT_FOUND || status == PMIX_ERR_TYPE_MISMATCH ? -EPROTO
                                                                                : -ECONNRESET;
    return base_fail(rc, "%s failed: PMIx reports %s (%d); see the messages of the launcher", what, why ? why : "nothing", status);
}

/* PMIX_TIMEOUT: the remaining time in seconds. */
static pmix_info_t option_timeout(int64_t deadline)
{
    int64_t left = (deadline - base_now_ns() + WEFT_SECOND - 1) / WEFT_SECOND;
    pmix_info_t o = {.key = PMIX_TIMEOUT, .value = {.type = PMIX_INT}};
    o.value.data.integer = left < 1 ? 1 : left > INT32_MAX ? INT32_MAX : (int)left;
    return o;
}

static pmix_info_t option_flag(const char *key)
{
    pmix_info_t o = {.value = {.type = PMIX_BOOL, .data.flag = true}};
    snprintf(o.key, sizeof o.key, "%s", key);
    return o;
}

/* Read a value that `rank` has published. `now`: do not wait for the value. Free it with launcher_drop(). */
static pmix_status_t launcher_get(const struct launcher *p, uint32_t rank, const char *key, bool now, int64_t deadline, pmix_value_t **out)
{
    pmix_proc_t of = p->me;
    pmix_info_t options[2] = {option_timeout(deadline), option_flag(PMIX_IMMEDIATE)};
    of.rank = rank;
    *out = NULL;
    pmix_status_t status = p->library.get(&of, key, options, now ? 2 : 1, out);
    return status == PMIX_SUCCESS && !*out ? PMIX_ERR_NOT_FOUND : status;
}

/* Frees a value without PMIX_VALUE_RELEASE(), which calls functions that only some versions of libpmix have. */
static void launcher_drop(pmix_value_t *v)
{
    if (v && v->type == PMIX_BYTE_OBJECT)
        free(v->data.bo.bytes);
    free(v);
}

static pmix_status_t launcher_number(const struct launcher *p, const char *key, int64_t deadline, uint32_t *out)
{
    pmix_value_t *v;
    pmix_status_t status = launcher_get(p, PMIX_RANK_WILDCARD, key, false, deadline, &v);
    if (status == PMIX_SUCCESS && v->type != PMIX_UINT32)
        status = PMIX_ERR_TYPE_MISMATCH;
    *out = status == PMIX_SUCCESS ? v->data.uint32 : 0;
    launcher_drop(v);
    return status;
}

/* --- the calls --- */

/* Called by a thread of PMIx when the launcher is gone. A launcher that ends normally sends SIGTERM to its processes. A killed launcher
 * cannot do that, so this process sends SIGTERM to itself. */
static void launcher_gone(size_t handler, pmix_status_t status, const pmix_proc_t *source, pmix_info_t *info, size_t infos,
                          pmix_info_t *results, size_t result_count, pmix_event_notification_cbfunc_fn_t next, void *cookie)
{
    (void)handler, (void)status, (void)source, (void)info, (void)infos, (void)results, (void)result_count;
    base_log(BASE_LOG_ERROR, "the launcher of this process has ended, so the process ends itself (SIGTERM)");
    kill(getpid(), SIGTERM);
    if (next)
        next(PMIX_EVENT_NO_ACTION_TAKEN, NULL, 0, NULL, NULL, cookie);
}

static int step_open(struct launcher *p, int64_t deadline)
{
    pmix_status_t status = p->library.init(&p->me, NULL, 0);
    if (status != PMIX_SUCCESS) {
        const char *why = p->library.error_string(status);
        return base_fail(
            -ECONNREFUSED,
            "the launcher that started this process (PMIX_NAMESPACE=%s) does not accept its connection: PMIx reports %s (%d); has "
            "it ended? To run without it, use `weft run`, or for a single process WEFT_SIZE=1",
            getenv("PMIX_NAMESPACE"), why ? why : "nothing", status);
    }
    p->connected = true;
    pmix_status_t lost = PMIX_ERR_LOST_CONNECTION;
    p->handler = p->library.register_event_handler(&lost, 1, NULL, 0, launcher_gone, NULL, NULL);
    status = launcher_number(p, PMIX_JOB_SIZE, deadline, &p->size);
    if (status != PMIX_SUCCESS)
        return launcher_failed(p, status, "asking for the number of processes of the job");
    uint32_t here;
    p->one_host = launcher_number(p, PMIX_LOCAL_SIZE, deadline, &here) == PMIX_SUCCESS && here == p->size;
    if (p->size == 0 || p->size > WEFT_MAX_NODES || p->me.rank >= p->size)
        return base_fail(
            -EPROTO,
            "the launcher reports (over PMIx) that this is process %u of %u, but a weft cluster has 1 to %u nodes: start fewer processes",
            p->me.rank, p->size, WEFT_MAX_NODES);
    return 0;
}

/* Fails with the list of processes that have published nothing. Asks the launcher about each process, for one second in all. If some
 * processes are on other hosts, asks about none, because about those the launcher may need longer than a second to answer. */
static int say_who_is_missing(const struct launcher *p)
{
    char text[64] = "";
    size_t n = 0;
    uint32_t missing = 0;
    int64_t end = base_deadline(WEFT_SECOND);
    for (uint32_t i = 0; p->one_host && i < p->size && n < sizeof text - 16 && base_now_ns() < end; i++) {
        pmix_value_t *v;
        pmix_status_t status = launcher_get(p, i, p->key, true, end, &v);
        launcher_drop(v);
        if (status == PMIX_ERR_TIMEOUT || status == PMIX_ERR_NOT_FOUND)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%u", missing++ ? ", " : "", i);
    }
    if (missing == 0)
        return base_fail(
            -ETIMEDOUT,
            "not all %u nodes have joined: do all processes of the job call weft_open()? WEFT_JOIN_TIMEOUT sets how long to wait", p->size);
    return base_fail(-ETIMEDOUT,
                     "node%s %s of %u %s missing: have the processes ended before weft_open(), or do they start late? WEFT_JOIN_TIMEOUT "
                     "sets how long to wait",
                     missing == 1 ? "" : "s", text, p->size, missing == 1 ? "is" : "are");
}

/* Waits in a fence for all processes of the job. A partial success means that an earlier program of a rank has disconnected meanwhile.
 * Another fence then waits for the new program of that rank. */
static pmix_status_t step_fence(const struct launcher *p, int64_t deadline)
{
    pmix_proc_t everyone = p->me;
    everyone.rank = PMIX_RANK_WILDCARD;
    for (;; base_sleep_ns(AGAIN_WAIT)) {
        pmix_info_t options[2] = {option_flag(PMIX_COLLECT_DATA), option_timeout(deadline)};
        pmix_status_t status = p->library.fence(&everyone, 1, options, 2);
        if (status != PMIX_ERR_PARTIAL_SUCCESS || base_now_ns() >= deadline)
            return status;
    }
}

/* Reads, without a fence, the data that `rank` publishes for this exchange. A request that waits for the data may never be answered if the
 * process of `rank` reconnects meanwhile. So such a request ends after a second. Seven requests follow that do not wait: they ask only the
 * launcher's daemon on this host. */
static pmix_status_t step_wait_for(const struct launcher *p, uint32_t rank, int64_t deadline, pmix_value_t **v)
{
    for (uint32_t i = 1;; i++) {
        bool now = i % 8 != 0;
        pmix_status_t status = launcher_get(p, rank, p->key, now, now ? deadline : base_deadline(WEFT_SECOND), v);
        if (status == PMIX_SUCCESS)
            return status;
        if (base_now_ns() >= deadline)
            return PMIX_ERR_TIMEOUT;
        base_sleep_ns(AGAIN_WAIT);
    }
}

static int step_exchange(struct launcher *p, int64_t deadline)
{
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT, .data.bo = {.bytes = p->mine, .size = p->len}};
    pmix_status_t status = p->library.put(PMIX_GLOBAL, p->key, &value);
    if (status == PMIX_SUCCESS)
        status = p->library.commit();
    if (status != PMIX_SUCCESS)
        return launcher_failed(p, status, "publishing this node's data");
    if (!p->fenced)
        status = step_fence(p, deadline);
    if (status == PMIX_ERR_TIMEOUT)
        return say_who_is_missing(p);
    if (status != PMIX_SUCCESS)
        return launcher_failed(p, status, "waiting for the other nodes");
    for (uint32_t i = 0; i < p->size; i++) {
        pmix_value_t *v;
        status = p->fenced ? step_wait_for(p, i, deadline, &v) : launcher_get(p, i, p->key, false, deadline, &v);
        if (status == PMIX_ERR_TIMEOUT)
            return say_who_is_missing(p);
        if (status != PMIX_SUCCESS)
            return base_context(launcher_failed(p, status, "reading what it has published"), "node %u", i);
        bool right = v->type == PMIX_BYTE_OBJECT && v->data.bo.size == p->len && v->data.bo.bytes;
        if (right)
            memcpy((char *)p->all + i * p->len, v->data.bo.bytes, p->len);
        launcher_drop(v);
        if (!right)
            return base_fail(-EPROTO, "node %u has published data of another version of weft; run the same version of weft on all hosts",
                             i);
    }
    return 0;
}

static int step_close(struct launcher *p, int64_t deadline)
{
    (void)deadline;
    p->connected = false;
    launcher_disconnect(p);
    return 0;
}

int launcher_open(struct launcher **out, const char *library, int64_t deadline)
{
    struct launcher *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return base_fail(-ENOMEM, "no memory for the connection to the launcher" BASE_MEMORY_HINT);
    int rc = library_load(&p->library, library);
    if (!rc)
        rc = launcher_call(&p, step_open, deadline, "connecting to the launcher");
    if (rc)
        launcher_close(p);
    else
        *out = p;
    return rc;
}

int launcher_exchange(struct launcher **at, const void *mine, size_t len, void *all, int64_t deadline)
{
    struct launcher *p = *at;
    /* Published values may stay visible for ever, so each exchange uses a new key. */
    static _Atomic unsigned times;
    p->exchanged = true;
    p->mine = malloc(len);
    p->all = calloc(p->size, len);
    p->len = len;
    if (!p->mine || !p->all)
        return base_fail(-ENOMEM, "no memory for the data that %u nodes exchange over PMIx" BASE_MEMORY_HINT, p->size);
    memcpy(p->mine, mine, len);
    unsigned earlier = atomic_fetch_add_explicit(&times, 1, memory_order_relaxed);
    snprintf(p->key, sizeof p->key, "weft.%u", earlier);
    /* A fence does not wait for a process that reconnects. So all exchanges except the first wait for each process's value under the new
     * key instead. */
    p->fenced = earlier > 0;
    int rc = launcher_call(at, step_exchange, deadline, "waiting for the other nodes");
    if (!rc)
        memcpy(all, p->all, p->size * len);
    return rc;
}

uint32_t launcher_rank(const struct launcher *p)
{
    return p->me.rank;
}

uint32_t launcher_size(const struct launcher *p)
{
    return p->size;
}

bool launcher_exchanged(const struct launcher *p)
{
    return p->exchanged;
}

void launcher_close(struct launcher *p)
{
    if (p && p->connected && launcher_call(&p, step_close, base_deadline(LEAVE_WAIT), "leaving"))
        base_log(BASE_LOG_WARN, "%s", base_error());
    if (p)
        launcher_free(p);
}

#endif
