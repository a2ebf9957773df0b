/* SPDX-License-Identifier: MIT
 *
 * The node's handle: making and destroying it, and what the higher layers (fabric.h) attach to it.
 */
#include "fabric/fabric.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Picks the transports for peers. shm is always opened, because it connects the node to itself, and owns weft_node.bell. */
static int pick_transports(struct weft_node *w, const struct fab_transport *const *all)
{
    const char *only = w->options.transport;
    bool known = !*only || strcmp(only, "rdma") == 0;
    char names[64] = "";
    for (uint32_t i = 0; i < FAB_TRANSPORTS_MAX && all[i]; i++) {
        size_t n = strlen(names);
        w->transports[i] = all[i];
        known = known || strcmp(all[i]->name, only) == 0;
        snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", all[i]->name);
    }
    return known ? 0
                 : base_fail(
                       -EINVAL,
                       "WEFT_TRANSPORT='%s': there is no such transport; set it to %s, or to rdma, which is rc or tb, as the devices allow",
                       only, names);
}

int fab_connect_self(struct weft_node *w, int64_t deadline)
{
    return w->transports[0]->connect(w, &w->links[w->rank], -1, deadline);
}

static bool node_may_use(const struct weft_node *w, const struct fab_transport *t)
{
    const char *only = w->options.transport;
    bool names_device = w->options.device[0] || w->options.rail_names[0][0];
    if (!only[0] && names_device && !t->rdma && !t->at_once)
        return false; /* the user has named a device, so weft may not use an ordinary network instead */
    return strcmp(only, "rdma") == 0 ? t->rdma : !only[0] || strcmp(t->name, only) == 0;
}

/* Appends the reason of a transport that failed (base_error()) to `why`, unless `why` has it already. */
static void node_add_why(char *why, size_t room)
{
    size_t n = strlen(why);
    if (base_error()[0] && !strstr(why, base_error()))
        snprintf(why + n, room - n, "%s%s", n ? "; " : "", base_error());
}

const struct fab_transport *fab_choose(struct weft_node *w, const uint8_t *peer_host_id)
{
    char why[800] = "";
    for (const struct fab_transport **t = w->transports; *t; t++) {
        if (!node_may_use(w, *t))
            continue;
        base_error_clear();
        if ((*t)->reaches(w, peer_host_id))
            return *t;
        node_add_why(why, sizeof why);
    }
    if (why[0])
        base_fail(-EHOSTUNREACH, "%s", why);
    return NULL;
}

int fab_may_join(struct weft_node *w, const uint8_t *peer_host_id)
{
    char why[800] = "";
    const char *founders = NULL;
    for (const struct fab_transport **t = w->transports; *t; t++) {
        if (!node_may_use(w, *t))
            continue;
        base_error_clear();
        if ((*t)->founders_only)
            founders = (*t)->name;
        else if ((*t)->reaches(w, peer_host_id))
            return 0;
        else
            node_add_why(why, sizeof why);
    }
    if (founders)
        return base_fail(-EOPNOTSUPP,
                         "transport %s connects only nodes that started the cluster together, and node %u can use no other transport: "
                         "start the cluster again with all nodes. Nodes can join later only over another network, such as Ethernet, by "
                         "libfabric, and only if WEFT_TRANSPORT is not set on any host (`weft doctor` says what is missing)",
                         founders, w->rank);
    /* `why` is empty if shm is the only transport: shm reaches no other host, and gives no reason */
    return base_fail(-EOPNOTSUPP, "node %u cannot reach the host of this node%s%s%s", w->rank, why[0] ? ": " : "", why,
                     w->options.transport[0] ? "; set WEFT_TRANSPORT to another transport on all nodes, or unset it" : "");
}

void fab_look_early(struct weft_node *w, bool networks)
{
    static const uint8_t elsewhere[sizeof w->host_id] = {0};
    for (const struct fab_transport **t = w->transports; *t; t++)
        if (node_may_use(w, *t) && !(*t)->founders_only && (networks || (*t)->rdma))
            (void)(*t)->reaches(w, elsewhere);
    base_error_clear(); /* the reason is kept, and reported when a node needs the transport */
}

/* The message by which each of the two nodes says whether it can use a transport. They exchange one for each transport, the best first,
 * until both can use one. So a node searches for devices only if no better transport connects the two nodes: a search takes time. */
struct offer {
    uint8_t index, can;
};

int fab_connect(struct weft_node *w, struct fab_link *l, const uint8_t *peer_host_id, int side_fd, int64_t deadline)
{
    char why[700] = "", there[64] = "";
    const char *fast = NULL; /* a better transport that only one of the two nodes can use; NULL: none */
    bool here = false;       /* this node can use `fast`, and the other node cannot */
    for (uint8_t i = 0; w->transports[i]; i++) {
        const struct fab_transport *t = w->transports[i];
        base_error_clear();
        bool late = t->founders_only && node_may_use(w, t) && fab_late(w, l->node);
        if (late)
            base_fail(-EOPNOTSUPP,
                      "transport %s connects only nodes that started the cluster together, and node %u or this node joined later", t->name,
                      l->node);
        struct offer mine = {.index = i, .can = !late && node_may_use(w, t) && t->reaches(w, peer_host_id)}, theirs = {0};
        if (!mine.can)
            node_add_why(why, sizeof why);
        int err = fab_side_transfer(side_fd, &mine, sizeof mine, true, deadline);
        if (!err)
            err = fab_side_transfer(side_fd, &theirs, sizeof theirs, false, deadline);
        if (err)
            return base_fail(err, "cannot agree with node %u on a transport: %s; that node may have ended", l->node, base_strerror(err));
        if (theirs.index != i || theirs.can > 1)
            return base_fail(-EPROTO, "node %u has other transports than this node has; run the same version of weft on both hosts",
                             l->node);
        if (mine.can && theirs.can) {
            if (fast) /* only one of the two nodes has RDMA devices: warn, because the link may be slower than the user expects */
                base_log(BASE_LOG_WARN, "node %u is reached over %s, although %s has RDMA devices: %s", l->node, t->name, fast,
                         here     ? "`weft doctor` on that node's host says why that node uses none"
                         : why[0] ? why
                                  : "`weft doctor` says why this node uses none");
            return t->connect(w, l, side_fd, deadline);
        }
        if (t->rdma && mine.can != theirs.can && !fast) {
            here = mine.can;
            fast = here ? "this node" : "that node";
        }
        size_t n = strlen(there);
        if (theirs.can)
            snprintf(there + n, sizeof there - n, "%s%s", n ? ", " : "", t->name);
    }
    return base_fail(-EHOSTUNREACH,
                     "node %u and this node have no transport in common: node %u can use %s%s%s; run `weft doctor` on both hosts", l->node,
                     l->node, there[0] ? there : "none", why[0] ? "; this node: " : "", why);
}

bool fab_look(struct weft_node *w, struct fab_look *l, int (*look)(struct weft_node *w))
{
    /* The thread that admits new nodes and the thread that connects to nodes may call this function at the same time. */
    static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&looking);
    if (!l->done) {
        l->done = true;
        l->failed = look(w);
        if (l->failed)
            snprintf(l->why, sizeof l->why, "%s", base_error());
    }
    pthread_mutex_unlock(&looking);
    if (l->failed)
        base_fail(l->failed, "%s", l->why);
    return l->failed == 0;
}

int fab_create(struct weft_node **out, const struct fab_config *config)
{
    struct weft_node *w = aligned_alloc(BASE_CACHE_LINE, base_round_up(sizeof *w, BASE_CACHE_LINE));
    if (!w)
        return base_fail(-ENOMEM, "no memory for the node's handle" BASE_MEMORY_HINT);
    memset(w, 0, sizeof *w);
    w->rank = config->rank;
    atomic_init(&w->size, config->size);
    w->founders = config->founders ? config->founders : config->size;
    w->room = config->grows ? WEFT_MAX_NUMBERS : config->size;
    atomic_init(&w->size_here, 1);
    w->options = *config->options;
    w->wake_fd[0] = w->wake_fd[1] = -1;
    atomic_init(&w->epoch, 1);
    pthread_mutex_init(&w->member_lock, NULL);

    int rc = pick_transports(w, config->transports);
    if (!rc)
        rc = base_pipe(w->wake_fd, O_NONBLOCK);
    if (rc)
        goto fail;
    w->links = calloc(w->room, sizeof *w->links);
    if (!w->links) {
        rc = base_fail(-ENOMEM, "no memory for the links to %u nodes" BASE_MEMORY_HINT, w->room);
        goto fail;
    }
    fab_prepare(w, w->size - 1);
    if (config->towards) {
        w->towards = calloc(w->founders, sizeof *w->towards);
        rc = w->towards ? 0 : -ENOMEM;
        for (uint32_t i = 0; i < w->founders && !rc; i++)
            if (config->towards[i] && !(w->towards[i] = strdup(config->towards[i])))
                rc = -ENOMEM;
        if (rc) {
            base_fail(rc, "no memory for the names of %u devices" BASE_MEMORY_HINT, w->founders);
            goto fail;
        }
    }
    struct mem_options pool = config->pool;
    w->heap_offset = pool.heap_offset = base_round_up(FAB_NULL_BYTES + config->system_bytes, MEM_EXTENT_BYTES);
    rc = mem_pool_create(&w->pool, &pool);
    if (rc)
        goto fail;
    w->pool_base = mem_base(w->pool);
    w->pool_bytes = mem_bytes(w->pool);
    for (const struct fab_transport **t = w->transports; *t; t++) {
        rc = (*t)->open(w);
        if (rc)
            goto fail;
    }
    *out = w;
    return 0;
fail:
    fab_destroy(w);
    return rc;
}

void fab_destroy(struct weft_node *w)
{
    if (!w)
        return;
    for (uint32_t i = 0; w->links && i < w->prepared; i++) {
        struct fab_link *l = &w->links[i];
        if (l->transport)
            l->transport->release(w, l);
        if (l->side_fd >= 0)
            close(l->side_fd);
        if (l->pid_fd >= 0)
            close(l->pid_fd);
        fab_side_free(l);
        free(l->gone_why);
    }
    for (const struct fab_transport **t = w->transports; *t; t++)
        (*t)->close(w);
    for (uint32_t i = atomic_load_explicit(&w->hook_count, memory_order_acquire); i-- > 0;)
        if (w->hooks[i].free)
            w->hooks[i].free(w, w->hooks[i].arg);
    fab_now_free(w);
    mem_pool_destroy(w->pool);
    for (int i = 0; i < 2; i++)
        if (w->wake_fd[i] >= 0)
            close(w->wake_fd[i]);
    pthread_mutex_destroy(&w->member_lock);
    free(w->poll_fds);
    free(w->poll_nodes);
    for (uint32_t i = 0; w->towards && i < w->founders; i++)
        free(w->towards[i]);
    free(w->towards);
    free(w->links);
    free(w);
}

int fab_hook(struct weft_node *w, const struct fab_hook *hook)
{
    pthread_mutex_lock(&w->member_lock);
    uint32_t n = atomic_load_explicit(&w->hook_count, memory_order_relaxed);
    int rc = 0;
    if (n == FAB_HOOKS_MAX) {
        rc = base_fail(-ENOSPC, "cannot install a callback: all %u places for callbacks are in use" BASE_BUG_HINT, FAB_HOOKS_MAX);
    } else {
        w->hooks[n] = *hook;
        /* release: the progress thread (acquire) sees a whole hook */
        atomic_store_explicit(&w->hook_count, n + 1, memory_order_release);
    }
    pthread_mutex_unlock(&w->member_lock);
    return rc;
}

void fab_run_close(struct weft_node *w)
{
    for (uint32_t i = atomic_load_explicit(&w->hook_count, memory_order_acquire); i-- > 0;)
        if (w->hooks[i].close)
            w->hooks[i].close(w, w->hooks[i].arg);
}

int fab_handle(struct weft_node *w, uint32_t id, weft_handler_fn fn, void *arg)
{
    if (id >= FAB_HANDLERS)
        return base_fail(-EINVAL, "there is no handler %u: handlers have numbers from 0 to %u", id, WEFT_HANDLERS - 1);
    /* Wait until no message is being delivered, because the old handler would get the new `arg` with that message. */
    base_spin_lock(&w->progress);
    w->handlers[id].arg = arg;
    atomic_store_explicit(&w->handlers[id].fn, fn, memory_order_release);
    base_spin_unlock(&w->progress);
    fab_kick(w);
    return 0;
}

int weft_handle(weft_node *w, uint32_t id, weft_handler_fn fn, void *arg)
{
    if (id >= WEFT_HANDLERS)
        return base_fail(-EINVAL, "handler %u: a program's handlers have numbers from 0 to %u", id, WEFT_HANDLERS - 1);
    if (fab_in_handler())
        return base_fail(-EDEADLK, "handler %u: a handler must not install handlers: call weft_handle() in another thread", id);
    return fab_handle(w, id, fn, arg);
}

/* --- the pool's addresses --- */

/* External definitions of the functions that the headers define inline. */
extern inline weft_gaddr weft_gaddr_make(uint32_t node, uint32_t space, uint64_t offset);
extern inline uint32_t weft_gaddr_node(weft_gaddr a);
extern inline uint32_t weft_gaddr_space(weft_gaddr a);
extern inline uint64_t weft_gaddr_offset(weft_gaddr a);

int weft_alloc_aligned(weft_node *w, size_t bytes, size_t align, weft_gaddr *out)
{
    uint64_t offset;
    int rc = mem_alloc(w->pool, bytes, align, &offset);
    if (BASE_LIKELY(rc == 0))
        *out = weft_gaddr_make(w->rank, 0, offset);
    return rc;
}

int weft_alloc(weft_node *w, size_t bytes, weft_gaddr *out)
{
    return mem_alloc_from(w->pool, bytes, weft_gaddr_make(w->rank, 0, 0), out);
}

int weft_free(weft_node *w, weft_gaddr addr)
{
    if (addr == WEFT_NULL)
        return 0;
    /* One comparison checks node and space: the address must be in space 0 of this node. */
    if (BASE_UNLIKELY(addr >> WEFT_OFFSET_BITS != (uint64_t)w->rank << WEFT_SPACE_BITS)) {
        if (weft_gaddr_node(addr) == w->rank && w->arenas)
            return w->arenas->free(w, addr);
        return base_fail(-EFAULT, "cannot free address %#llx: it is in the memory of node %u, space %u; a node frees only its own memory",
                         (unsigned long long)addr, weft_gaddr_node(addr), weft_gaddr_space(addr));
    }
    return mem_free(w->pool, weft_gaddr_offset(addr));
}

weft_gaddr weft_addr(weft_node *w, const void *p)
{
    uintptr_t at = (uintptr_t)p, base = (uintptr_t)w->pool_base;
    if (at < base + w->heap_offset || at - base >= w->pool_bytes)
        return WEFT_NULL;
    return weft_gaddr_make(w->rank, 0, at - base);
}

int weft_pool_stat(weft_node *w, weft_pool_stats *out, size_t bytes)
{
    struct mem_stats s;
    uint32_t on_device = 0, budget = 0;
    mem_stat(w->pool, &s);
    for (const struct fab_transport **t = w->transports; *t && !on_device; t++)
        if ((*t)->regions)
            (*t)->regions(w, &on_device, &budget);
    const weft_pool_stats stats = {
        .reserved_bytes = s.reserved_bytes,
        .live_bytes = s.live_bytes,
        .live_buffers = s.live_buffers,
        .largest_free_bytes = s.largest_free_bytes,
        .regions_used = on_device ? on_device : s.segments,
        .regions_budget = budget,
        .network_bytes = atomic_load_explicit(&w->used[FAB_USE_NETWORK], memory_order_relaxed),
        .stream_bytes = atomic_load_explicit(&w->used[FAB_USE_STREAMS], memory_order_relaxed),
        .file_bytes = atomic_load_explicit(&w->used[FAB_USE_FILES], memory_order_relaxed),
        .task_bytes = atomic_load_explicit(&w->used[FAB_USE_TASKS], memory_order_relaxed),
    };
    base_give_struct(out, bytes, &stats, sizeof stats);
    return 0;
}
