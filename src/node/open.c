/* SPDX-License-Identifier: MIT
 *
 * weft_open() and weft_close(): open the parts of a node in the order of their layers, the lowest (shared memory, the fabric) first; and
 * close them in the opposite order.
 */
#include <stddef.h>
#include <stdio.h>

#include "cluster/cluster.h"
#include "fabric/fabric.h"
#include "fabric/transports.h"
#include "gateway/gateway.h"
#include "gpu/gpu.h"
#include "queue/queue.h"
#include "sync/sync.h"

#define AGAIN_FIRST (20 * WEFT_MS)    /* first pause before a node tries again to join the running cluster; doubled each time */
#define AGAIN_LAST  (1 * WEFT_SECOND) /* about the longest pause */

/* The size of weft_config in version 0.1, the first version. */
#define CONFIG_FIRST (offsetof(weft_config, reconnect_ns) + sizeof((weft_config *)0)->reconnect_ns)

/* All transports, the preferred ones first (see fabric/transports.h). */
static const struct fab_transport *const transports[] = {&fab_shm, &fab_rc, &fab_tb, &fab_ofi, NULL};

/* The open handles of this process. A closed handle points to freed memory, so only this list can show that a handle is not open. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static struct weft_node *open_nodes;

static void enlist(struct weft_node *w)
{
    pthread_mutex_lock(&open_lock);
    w->next_open = open_nodes;
    open_nodes = w;
    pthread_mutex_unlock(&open_lock);
}

/* Remove a node from `open_nodes`. Fails if the node is not open, or if a thread waits in a call that uses the node. */
static int delist(struct weft_node *w)
{
    struct weft_node **at = &open_nodes;
    int rc = 0;
    pthread_mutex_lock(&open_lock);
    while (*at && *at != w)
        at = &(*at)->next_open;
    uint32_t waiting = *at ? atomic_load_explicit(&w->waiting, memory_order_relaxed) : 0;
    if (!*at)
        rc = base_fail(-EINVAL, "weft_close(): this node is closed already; close each node once");
    else if (waiting)
        rc = base_fail(-EBUSY,
                       "weft_close(): %u thread%s of this node still wait%s in calls of weft: call weft_close() again when these calls "
                       "have returned (a time-out of a call bounds its wait)",
                       waiting, waiting == 1 ? "" : "s", waiting == 1 ? "s" : "");
    else
        *at = w->next_open;
    pthread_mutex_unlock(&open_lock);
    return rc;
}

/* Close all parts of the node that are open. Also used when weft_open() fails. */
static void take_apart(struct weft_node *w)
{
    cluster_door_close(w);
    gateway_leave(w);
    gpu_end(w);
    fab_stop(w);
    fab_run_close(w);
    fab_destroy(w);
}

/* This node's row of the device matrix in the hostfile; NULL: none. */
static const char *const *devices_towards(const struct cluster_settings *s)
{
    const struct cluster_host *me = s->hosts && s->rank < s->hosts->count ? &s->hosts->hosts[s->rank] : NULL;
    return me && me->rdma && me->rdma_count == s->size && !s->join[0] ? (const char *const *)me->rdma : NULL;
}

/* *again: the time until which the caller should try again after -ECONNRESET; 0: it should not try again. */
static int open_once(weft_node **out, const weft_config *config, int64_t *again)
{
    struct cluster_settings s;
    struct weft_node *w = NULL;
    int rc = cluster_settings_resolve(&s, config);
    if (rc)
        return rc;
    if (s.join[0]) {
        *again = *again ? *again : base_deadline(s.join_timeout_ns);
        rc = cluster_enter(&s);
    }
    if (rc) {
        cluster_settings_clear(&s);
        return rc;
    }
    char name[32];
    snprintf(name, sizeof name, "node %u", s.rank);
    if (s.size > 1)
        base_log_name(name);
    const struct fab_config fab = {
        .rank = s.rank,
        .size = s.size,
        .founders = s.founders,
        .grows = cluster_grows(&s),
        .transports = transports,
        .options = &s.fabric,
        .towards = devices_towards(&s),
        .system_bytes = sync_system_bytes(s.founders),
        .pool = s.pool,
    };
    struct gateway_groups *groups;
    rc = gateway_prepare(s.serve, &groups);
    if (rc)
        goto out;
    rc = fab_create(&w, &fab);
    if (rc) {
        gateway_groups_close(groups);
        goto out;
    }
    /* Before joining, open all parts that have message handlers: a peer that has joined earlier may send messages at once. */
    rc = sync_open(w);
    if (!rc)
        rc = queue_open(w);
    if (!rc)
        rc = gpu_open(w);
    if (!rc)
        rc = gateway_open(w,
                          &(struct gateway_settings){.serve = s.serve,
                                                     .net_rules = s.net_rules,
                                                     .net_sockets = s.net_sockets,
                                                     .names = s.names,
                                                     .file_root = s.file_root,
                                                     .file_cache = s.file_cache},
                          groups);
    else
        gateway_groups_close(groups);
    if (!rc)
        rc = cluster_join(w, &s);
    if (!rc)
        rc = fab_start(w);
    if (!rc)
        rc = fab_settle(w, base_deadline(s.join_timeout_ns));
    if (!rc)
        rc = gateway_start(w);
    if (!rc)
        rc = cluster_door_open(w);
    if (rc) {
        take_apart(w);
        goto out;
    }
    enlist(w);
    *out = w;
out:
    if (rc)
        rc = cluster_failed(&s, rc);
    cluster_settings_clear(&s);
    return rc;
}

int weft_open(weft_node **out, const weft_config *config)
{
    weft_config c;
    int64_t again = 0;
    *out = NULL;
    int rc = config ? base_take_struct(&c, sizeof c, config, CONFIG_FIRST, "weft_config") : 0;
    if (rc)
        return rc;
    /* After -ECONNRESET try again: a member may have died while this node joined the running cluster. Each attempt uses up one of the
     * cluster's WEFT_MAX_NUMBERS node numbers, so the pauses between attempts grow. */
    for (int64_t pause = AGAIN_FIRST;; pause = pause < AGAIN_LAST ? 2 * pause : pause) {
        rc = open_once(out, config ? &c : NULL, &again);
        if (rc != -ECONNRESET || base_now_ns() >= again)
            return rc;
        base_sleep_ns(pause);
    }
}

int weft_close(weft_node *w)
{
    if (!w)
        return 0;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_close() must not be called from a handler: call it in another thread");
    int rc = delist(w);
    if (rc)
        return rc;
    cluster_door_close(w);
    gateway_leave(w);
    gpu_leave(w);
    /* All flushes share one deadline, so that many peers that do not answer delay the close no longer than one such peer. */
    int64_t deadline = fab_timeout(w, WEFT_TIMEOUT_DEFAULT);
    for (uint32_t i = 0; i < w->size; i++) {
        int64_t left = deadline - base_now_ns();
        if (fab_alive(w, i))
            (void)weft_flush(w, i, left > 0 ? left : 0);
    }
    take_apart(w);
    return 0;
}
