/* SPDX-License-Identifier: MIT
 *
 * The transport ofi, over libfabric: its table, opening and closing, joining, the end of a link, and statistics.
 */
#include "fabric/ofi/ofi.h"
#include "fabric/transports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAST_MOVES (20 * WEFT_MS) /* how long the provider has to complete requests to a peer that is gone */

static int ofi_open(struct weft_node *w)
{
    struct ofi_node *n = calloc(1, sizeof *n);
    if (!n)
        return base_fail(-ENOMEM, "no memory for the ofi transport" BASE_MEMORY_HINT);
    n->w = w;
    pthread_mutex_init(&n->opening, NULL);
    w->ofi = n;
    return 0;
}

/* Opens a device for the provider choices[choice]. Adds it to `devices` only when it is complete, because other threads may be polling. */
static int transport_open_device(struct ofi_node *n, uint32_t choice)
{
    uint32_t at = atomic_load_explicit(&n->devices_count, memory_order_relaxed);
    int rc = ofi_device_open(n->w, n->lib, n->choices[choice], &n->devices[at]);
    if (rc)
        return rc;
    const struct ofi *o = n->devices[at];
    atomic_store_explicit(&n->devices_count, at + 1, memory_order_release); /* pairs with the acquire in ofi_device_at() */
    base_log(BASE_LOG_INFO, "this node uses libfabric's provider %s at address %s%s", o->info->fabric_attr->prov_name, o->name,
             o->traits.plain ? ": data travels in the clear, and only joining is authenticated (man weft-networks)" : "");
    if (o->traits.locks)
        base_log(BASE_LOG_WARN,
                 "if a node is killed, others may hang or crash, because of defects of libfabric's provider %s (man weft-networks)",
                 o->info->fabric_attr->prov_name);
    return 0;
}

static void transport_drop_first(struct ofi_node *n)
{
    n->lib->freeinfo(n->choices[0]);
    memmove(n->choices, n->choices + 1, --n->choices_count * sizeof *n->choices);
}

/* Finds the providers, and opens a device for the best one. Removes a provider that cannot be opened from the choices, unless it is the
 * last one. */
static int transport_look(struct weft_node *w)
{
    struct ofi_node *n = w->ofi;
    const struct ofi_want want = {.provider = w->options.ofi_provider, .interface = w->options.ofi_interface, .address = w->address};
    int rc = ofi_load(&n->lib);
    if (!rc)
        rc = ofi_choose(n->lib, &want, n->choices);
    if (rc < 0)
        return rc;
    n->choices_count = (uint32_t)rc;
    while ((rc = transport_open_device(n, 0)) && n->choices_count > 1) {
        base_log(ofi_is_fast(n->choices[0]->fabric_attr->prov_name) ? BASE_LOG_WARN : BASE_LOG_INFO, "%s; weft uses another provider",
                 base_error());
        transport_drop_first(n);
    }
    return rc;
}

static bool ofi_reaches(struct weft_node *w, const uint8_t *peer_host_id)
{
    struct ofi_node *n = w->ofi;
    (void)peer_host_id;
    return fab_look(w, &n->look, transport_look);
}

static void ofi_close(struct weft_node *w)
{
    struct ofi_node *n = w->ofi;
    if (!n)
        return;
    for (uint32_t i = n->devices_count; i-- > 0;)
        ofi_device_close(n->devices[i]);
    while (n->choices_count)
        transport_drop_first(n);
    pthread_mutex_destroy(&n->opening);
    free(n);
    w->ofi = NULL;
}

static struct ofi *transport_find(const struct ofi_node *n, const char *provider)
{
    struct ofi *o;
    for (uint32_t i = 0; (o = ofi_device_at(n->w, i)); i++)
        if (strcmp(o->info->fabric_attr->prov_name, provider) == 0)
            return o;
    return NULL;
}

/* The device of the provider choices[choice]. Opens it, if no peer has needed it before. */
static int transport_device(struct ofi_node *n, uint32_t choice, struct ofi **out)
{
    const char *provider = n->choices[choice]->fabric_attr->prov_name;
    pthread_mutex_lock(&n->opening);
    int rc = transport_find(n, provider) ? 0 : transport_open_device(n, choice);
    pthread_mutex_unlock(&n->opening);
    *out = rc ? NULL : transport_find(n, provider);
    return rc;
}

static int transport_connect(struct weft_node *w, struct fab_link *link, int side_fd, int64_t deadline)
{
    struct ofi *o;
    int rc = ofi_agree(w, link->node, side_fd, deadline);
    if (rc >= 0)
        rc = transport_device(w->ofi, (uint32_t)rc, &o);
    if (rc)
        return base_context(rc, "link to node %u", link->node);
    struct ofi_link *l = ofi_link_make(o, link);
    if (!l)
        return base_fail(-ENOMEM, "ofi: no memory for the link to node %u" BASE_MEMORY_HINT, link->node);
    l->r.make_room = ofi_make_room;
    link->transport = &fab_ofi;
    return ofi_connect(l, side_fd, deadline);
}

static const char *ofi_broken(struct weft_node *w, struct fab_link *link)
{
    struct ofi_link *l = link->impl;
    (void)w;
    return l && atomic_load_explicit(&l->r.broken, memory_order_acquire) ? l->r.why : NULL;
}

/* Handles everything that a peer has sent before it was gone, limited to the peer's credit, since the peer may be alive and still be
 * sending. */
static void ofi_last_words(struct weft_node *w, struct fab_link *link)
{
    struct ofi_link *l = link->impl;
    struct ofi *o = l->ofi;
    uint32_t left = TB_MESSAGES;
    int n;
    do {
        base_spin_lock(&o->receiving);
        for (uint32_t most = OFI_RECEIVES; most > 0 && ofi_poll(o) > 0; most--)
            ;
        base_spin_unlock(&o->receiving);
        n = records_message_deliver(w, &l->r, left);
        left -= (uint32_t)n;
    } while (n > 0 && left > 0);
}

/* RMA requests to a peer that were still under way when the peer was given up. */
struct ending {
    void *cookies[OFI_MOVES * OFI_TOGETHER];
    uint32_t count;
};

/* Marks all requests to a peer as given up. Returns how many RMA requests are still under way. Under o->receiving and the link's lock. */
static uint32_t transport_give_up(struct ofi *o, const struct ofi_link *l, struct ending *e)
{
    uint32_t left = 0;
    base_spin_lock(&o->calls);
    for (uint32_t i = 0; i < o->requests_count; i++) {
        struct ofi_request *q = &o->requests[i];
        if (!q->busy || q->node != l->r.link->node)
            continue;
        left += q->kind != OFI_FRAME;
        for (uint32_t p = 0; q->kind != OFI_FRAME && !q->given_up && p < q->pieces && e->count < OFI_MOVES * OFI_TOGETHER; p++)
            e->cookies[e->count++] = q->cookies[p];
        q->given_up = true;
    }
    base_spin_unlock(&o->calls);
    return left;
}

/* Ends all RMA requests to a peer: the program may reuse the memory of failed puts and gets, so the provider must not use it any more. If
 * the provider does not complete the requests in time, the endpoint is replaced. */
static void transport_end_moves(struct ofi *o, struct ofi_link *l, struct ending *e)
{
    for (int64_t end = base_deadline(LAST_MOVES); base_now_ns() < end; base_sleep_ns(WEFT_MS)) {
        ofi_poll(o);
        base_spin_lock(&l->r.lock);
        uint32_t left = transport_give_up(o, l, e);
        base_spin_unlock(&l->r.lock);
        if (!left)
            return;
    }
    base_log(BASE_LOG_INFO,
             "node %u is gone, but the libfabric provider %s has not completed this node's requests to it: this node opens a new endpoint",
             l->r.link->node, o->info->fabric_attr->prov_name);
    ofi_renew(o, "requests to a node that is gone do not end");
}

/* Ends a link: stops sending to the peer, revokes the peer's keys so that it can no longer write here, and fails the pending operations. */
static void ofi_disconnect(struct weft_node *w, struct fab_link *link)
{
    struct ofi_link *l = link->impl;
    struct ending e = {.count = 0};
    (void)w;
    if (!l)
        return;
    struct ofi *o = l->ofi;
    base_spin_lock(&o->receiving);
    base_spin_lock(&l->r.lock);
    bool end = !l->r.closed && ofi_link_of(o, link->node);
    l->r.closed = true;
    uint32_t left = end ? transport_give_up(o, l, &e) : 0;
    base_spin_unlock(&l->r.lock);
    base_spin_lock(&o->calls);
    ofi_unregister_locked(o, &l->own);
    if (end && o->av)
        (void)fi_av_remove(o->av, &l->peer, 1, 0);
    if (end && o->av && l->probes && l->was != FI_ADDR_NOTAVAIL)
        (void)fi_av_remove(o->av, &l->was, 1, 0);
    l->probes = false;
    base_spin_unlock(&o->calls);
    if (left)
        transport_end_moves(o, l, &e);
    base_spin_lock(&l->r.lock);
    for (uint32_t i = 0; i < e.count; i++)
        tb_endpoint_moved(&l->r.endpoint, e.cookies[i], -ECONNRESET);
    l->moves = 0;
    l->moving = 0;
    if (end)
        tb_endpoint_end(&l->r.endpoint, -ECONNRESET);
    base_spin_lock(&o->calls);
    ofi_frames_leave_locked(l);
    base_spin_unlock(&o->calls);
    atomic_store_explicit(&l->r.due, INT64_MAX, memory_order_relaxed);
    base_spin_unlock(&l->r.lock);
    base_spin_unlock(&o->receiving);
}

static void ofi_release(struct weft_node *w, struct fab_link *link)
{
    struct ofi_link *l = link->impl;
    if (!l)
        return;
    struct ofi *o = l->ofi;
    ofi_disconnect(w, link);
    __atomic_store_n(&o->links[link->node], NULL, __ATOMIC_RELEASE);
    ofi_link_free(l);
    link->impl = NULL;
}

static void ofi_stat(struct weft_node *w, struct fab_link *link, weft_link_stats *out)
{
    struct ofi_link *l = link->impl;
    struct ofi *o = l->ofi;
    (void)w;
    base_spin_lock(&l->r.lock);
    records_stat_locked(&l->r, out);
    out->via = link->node;
    out->breaks = atomic_load_explicit(&l->errors, memory_order_relaxed);
    out->connects = atomic_load_explicit(&l->connects, memory_order_relaxed);
    snprintf(out->devices, sizeof out->devices, "%s %s", o->info->fabric_attr->prov_name, l->name);
    base_spin_unlock(&l->r.lock);
}

static void ofi_regions(struct weft_node *w, uint32_t *used, uint32_t *budget)
{
    const struct ofi *o;
    *used = *budget = 0;
    for (uint32_t i = 0; (o = ofi_device_at(w, i)); i++)
        *used += o->pool.count;
}

const struct fab_transport fab_ofi = {
    .name = "ofi",
    .open = ofi_open,
    .close = ofi_close,
    .reaches = ofi_reaches,
    .connect = transport_connect,
    .broken = ofi_broken,
    .last_words = ofi_last_words,
    .disconnect = ofi_disconnect,
    .release = ofi_release,
    .put = records_put,
    .get = records_get,
    .atomic = records_atomic,
    .put_signal = records_put_signal,
    .set_system = records_set_system,
    .send = records_send,
    .flushed = records_flushed,
    .fence = records_fence,
    .service = ofi_service,
    .progress = ofi_progress,
    .idle = ofi_idle,
    .pointer = fab_no_pointer,
    .wake = records_no_wake,
    .stat = ofi_stat,
    .regions = ofi_regions,
    .fd = ofi_fd,
    .woken = ofi_woken,
    .side = ofi_side,
    .upkeep = ofi_upkeep,
};
