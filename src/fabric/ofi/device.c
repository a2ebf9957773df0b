/* SPDX-License-Identifier: MIT
 *
 * A node's libfabric objects (fabric, domain, address vector, completion queue, endpoint), the registered regions of its pool, and the
 * buffers into which frames are received.
 */
#include "fabric/ofi/ofi.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The remedy for an error text, for those errors for which libfabric gives no reason. */
static const char *device_remedy(const char *provider, int error)
{
    if (error == EINVAL && strcmp(provider, OFI_VERBS_RXM) == 0)
        return " (a device with few entries in a completion queue needs FI_UNIVERSE_SIZE, the number of nodes)";
    if (error == EADDRINUSE || error == EADDRNOTAVAIL)
        return " (no port is free; libfabric's settings FI_NET_PORT_LOW_RANGE and FI_NET_PORT_HIGH_RANGE, or FI_TCP_... for tcp, set the "
               "range of ports)";
    return "";
}

static int device_failed(const struct ofi *o, int rc, const char *what)
{
    const char *provider = o->info->fabric_attr->prov_name;
    rc = rc < 0 ? -rc : rc;
    return base_fail(-rc, "provider %s of libfabric: %s failed: %s%s", provider, what, o->lib->strerror(rc), device_remedy(provider, rc));
}

/* --- memory regions --- */

/* A random key, so that only nodes to which it was sent know it. */
static int region_key(const struct ofi *o, uint64_t *key)
{
    size_t size = o->info->domain_attr->mr_key_size;
    int rc = base_random(key, sizeof *key);
    *key = size >= sizeof *key ? *key >> 1 : *key & ((UINT64_C(1) << (8 * (size ? size : 1))) - 1);
    return rc;
}

static void device_close(struct fid *f)
{
    if (f)
        fi_close(f);
}

static void region_close(struct fid_mr **mr)
{
    device_close(*mr ? &(*mr)->fid : NULL);
    *mr = NULL;
}

static int region_open(struct ofi *o, void *at, uint64_t bytes, uint64_t access, uint64_t key, struct fid_mr **out)
{
    int rc = fi_mr_reg(o->domain, at, bytes, access, 0, key, 0, out, NULL);
    if (!rc && o->traits.bind_regions) {
        rc = fi_mr_bind(*out, &o->ep->fid, 0);
        rc = rc ? rc : fi_mr_enable(*out);
        if (rc)
            region_close(out);
    }
    return rc ? device_failed(o, rc, "registering memory") : 0;
}

static void regions_close(struct ofi_regions *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        region_close(&r->list[i]);
}

static int regions_open(struct ofi *o, struct ofi_regions *r)
{
    int rc = 0;
    for (uint32_t i = 0; i < r->count && !rc; i++) {
        uint64_t at = (uint64_t)i << o->shift, left = o->w->pool_bytes - at, segment = UINT64_C(1) << o->shift;
        rc = region_open(o, o->w->pool_base + at, left < segment ? left : segment, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
                         ofi_key(r->keys[i], r->shift), &r->list[i]);
    }
    return rc;
}

/* Registers memory for frames, if the provider needs local memory registered, and if it is not registered yet. */
static int region_of_frames(struct ofi *o, void *at, uint64_t bytes, struct fid_mr **mr)
{
    uint64_t key;
    if (!o->traits.local || *mr)
        return 0;
    int rc = region_key(o, &key);
    return rc ? rc : region_open(o, at, bytes, FI_SEND | FI_RECV, key, mr);
}

static int regions_of_frames(struct ofi *o)
{
    int rc = region_of_frames(o, o->memory, o->memory_bytes, &o->memory_mr);
    for (struct ofi_frames *f = o->frames; f && !rc; f = f->next)
        rc = region_of_frames(o, f->at, OFI_LINK_FRAMES, &f->mr);
    return rc;
}

/* Allocates memory for the frames of one link, and adds it to the list o->frames. Does not register the memory yet. */
static struct ofi_frames *frames_add(struct ofi *o)
{
    struct ofi_frames *f = calloc(1, sizeof *f);
    void *at = f ? mmap(NULL, OFI_LINK_FRAMES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (at == MAP_FAILED) {
        free(f);
        return NULL;
    }
    f->at = at;
    f->next = o->frames;
    o->frames = f;
    return f;
}

int ofi_frames_take_locked(struct ofi *o, uint32_t node, struct ofi_frames **out)
{
    struct ofi_frames *f = o->frames;
    while (f && (f->used || o->held[f->node]))
        f = f->next;
    f = f ? f : frames_add(o);
    if (!f)
        return base_fail(-ENOMEM, "no memory for the frames of another link" BASE_MEMORY_HINT);
    int rc = region_of_frames(o, f->at, OFI_LINK_FRAMES, &f->mr);
    f->used = rc == 0;
    f->node = node;
    *out = rc ? NULL : f;
    return rc;
}

int ofi_register_locked(struct ofi *o, struct ofi_regions *r)
{
    uint32_t count = (uint32_t)((o->w->pool_bytes + (UINT64_C(1) << o->shift) - 1) >> o->shift);
    int rc = 0;
    r->list = calloc(count, sizeof *r->list);
    r->keys = calloc(count, sizeof *r->keys);
    if (!r->list || !r->keys)
        rc = base_fail(-ENOMEM, "no memory for %u regions" BASE_MEMORY_HINT, count);
    for (uint32_t i = 0; i < count && !rc; i++)
        rc = region_key(o, &r->keys[i]);
    r->count = rc ? 0 : count;
    r->next = o->regions;
    o->regions = r;
    rc = rc ? rc : regions_open(o, r);
    if (rc)
        ofi_unregister_locked(o, r);
    return rc;
}

int ofi_register_again_locked(struct ofi *o, struct ofi_regions *r, uint64_t shift)
{
    regions_close(r);
    r->shift = shift;
    return regions_open(o, r);
}

void ofi_unregister_locked(struct ofi *o, struct ofi_regions *r)
{
    struct ofi_regions **at = &o->regions;
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at)
        *at = r->next;
    regions_close(r);
    free(r->list);
    free(r->keys);
    *r = (struct ofi_regions){0};
}

void *ofi_descriptor_locked(const struct ofi *o, const void *at)
{
    const uint8_t *p = at;
    if (!o->traits.local)
        return NULL;
    if (p >= o->w->pool_base && p < o->w->pool_base + o->w->pool_bytes)
        return o->pool.count ? fi_mr_desc(o->pool.list[(uint64_t)(p - o->w->pool_base) >> o->shift]) : NULL;
    return o->memory_mr ? fi_mr_desc(o->memory_mr) : NULL;
}

/* --- requests and receives; under `calls` --- */

struct ofi_request *ofi_request_take_locked(struct ofi *o, enum ofi_request_kind kind, uint32_t node)
{
    struct ofi_request *q = o->free;
    bool own = o->held[node] < OFI_SHARE;
    if (!q || (!own && !o->common))
        return NULL;
    o->free = q->next;
    o->held[node]++;
    o->common -= !own;
    q->kind = kind;
    q->node = (uint16_t)node;
    q->busy = true;
    q->given_up = false;
    q->pieces = 0;
    return q;
}

static void request_put(struct ofi *o, struct ofi_request *q)
{
    q->busy = false;
    q->next = o->free;
    o->free = q;
}

void ofi_request_free_locked(struct ofi *o, struct ofi_request *q)
{
    o->common += --o->held[q->node] >= OFI_SHARE;
    request_put(o, q);
}

static bool receive_post(struct ofi *o, struct ofi_request *q)
{
    void *at = o->receive_frames + (size_t)q->slot * TB_FRAME_BYTES;
    q->busy = fi_recv(o->ep, at, TB_FRAME_BYTES, ofi_descriptor_locked(o, at), FI_ADDR_UNSPEC, &q->context) == 0;
    return q->busy;
}

void ofi_receive_again_locked(struct ofi *o, struct ofi_request *q)
{
    q->busy = false;
    if (receive_post(o, q))
        return;
    q->next = o->owed;
    o->owed = q;
}

void ofi_receive_owed_locked(struct ofi *o)
{
    while (o->owed) {
        struct ofi_request *q = o->owed;
        if (!receive_post(o, q))
            return;
        o->owed = q->next;
    }
}

/* Gives the queue a wait set. In libfabric 1.17, fi_trywait() of `net` does not clear the signal of a completion, so the descriptor stays
 * readable; fi_wait() on a wait set does. */
static void device_wait_set(struct ofi *o)
{
    struct fi_wait_attr attr = {.wait_obj = FI_WAIT_FD};
    if (!o->wait && strcmp(o->info->fabric_attr->prov_name, "net") == 0 && fi_wait_open(o->fabric, &attr, &o->wait))
        o->wait = NULL;
}

/* Opens the queue without a descriptor to sleep on, so it must be polled. */
static int device_queue_polled(struct ofi *o, struct fi_cq_attr *attr)
{
    o->cq = NULL;
    o->fd = -1;
    attr->wait_obj = FI_WAIT_NONE;
    attr->wait_set = NULL;
    return fi_cq_open(o->domain, attr, &o->cq, NULL);
}

static int device_queue(struct ofi *o)
{
    device_wait_set(o);
    struct fi_cq_attr attr = {.size = o->receives_count + o->requests_count + 16,
                              .format = FI_CQ_FORMAT_MSG,
                              .wait_obj = o->wait ? FI_WAIT_SET : FI_WAIT_FD,
                              .wait_set = o->wait};
    if (!o->traits.wakes)
        return device_queue_polled(o, &attr);
    int rc = fi_cq_open(o->domain, &attr, &o->cq, NULL);
    if (rc == 0 && fi_control(o->wait ? &o->wait->fid : &o->cq->fid, FI_GETWAIT, &o->fd) == 0)
        return 0;
    if (rc == 0)
        fi_close(&o->cq->fid);
    return device_queue_polled(o, &attr);
}

bool ofi_queue_quiet_locked(struct ofi *o)
{
    struct fid *queue = &o->cq->fid;
    return o->wait ? fi_wait(o->wait, 0) == -FI_ETIMEDOUT : o->fabric->ops->trywait(o->fabric, &queue, 1) == 0;
}

/* --- the endpoint --- */

/* Opens the endpoint of a device without one, and posts its receives. After an error, the caller closes what this function has opened. */
static int device_endpoint(struct ofi *o)
{
    const char *what = "fi_endpoint";
    int rc = fi_endpoint(o->domain, o->info, &o->ep, NULL);
    if (!rc && (what = "binding the address vector"))
        rc = fi_ep_bind(o->ep, &o->av->fid, 0);
    if (!rc && (what = "binding the completion queue"))
        rc = fi_ep_bind(o->ep, &o->cq->fid, FI_TRANSMIT | FI_RECV);
    if (!rc && (what = "fi_enable"))
        rc = fi_enable(o->ep);
    o->address_bytes = sizeof o->address;
    if (!rc && (what = "fi_getname"))
        rc = fi_getname(&o->ep->fid, o->address, &o->address_bytes);
    if (rc) {
        if (o->ep)
            fi_close(&o->ep->fid);
        o->ep = NULL;
        return device_failed(o, rc, what);
    }
    ofi_print_address(o->info, o->address, o->address_bytes, o->name, sizeof o->name);
    rc = regions_of_frames(o); /* after the endpoint was opened, because the regions may have to be bound to it */
    if (rc)
        return rc;
    o->generation++;
    o->owed = NULL;
    for (uint32_t i = 0; i < o->receives_count; i++)
        ofi_receive_again_locked(o, &o->receives[i]);
    return 0;
}

static int device_memory(struct ofi *o)
{
    struct weft_node *w = o->w;
    /* links to nodes that join later allocate their own frames */
    uint64_t links = (uint64_t)(w->founders - 1) * OFI_LINK_FRAMES, receives = (uint64_t)o->receives_count * TB_FRAME_BYTES;
    o->memory_bytes = base_round_up(links + receives, BASE_PAGE);
    o->memory = mmap(NULL, o->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (o->memory == MAP_FAILED) {
        o->memory = NULL;
        return base_fail(-ENOMEM, "no memory for the frames of %u links" BASE_MEMORY_HINT, w->founders - 1);
    }
    o->link_frames = o->memory;
    o->receive_frames = o->memory + links;
    o->receives = calloc(o->receives_count, sizeof *o->receives);
    o->requests = calloc(o->requests_count, sizeof *o->requests);
    o->held = calloc(w->room, sizeof *o->held);
    if (!o->receives || !o->requests || !o->held)
        return base_fail(-ENOMEM, "no memory for %u requests" BASE_MEMORY_HINT, o->receives_count + o->requests_count);
    for (uint32_t i = 0; i < o->receives_count; i++) {
        o->receives[i].kind = OFI_RECEIVE;
        o->receives[i].slot = i;
    }
    for (uint32_t i = 0; i < o->requests_count; i++)
        request_put(o, &o->requests[i]);
    return 0;
}

/* Computes how many receives and requests the device has. A provider accepts a limited number of requests. Each peer gets OFI_SHARE of them
 * for itself, and the rest is common to all peers; if the shares would take more than half of the requests, one half is common. */
static void device_count(struct ofi *o)
{
    const struct fi_info *info = o->info;
    uint32_t nodes = o->w->room < WEFT_MAX_NODES ? o->w->room : WEFT_MAX_NODES, shares = (nodes - 1) * OFI_SHARE;
    size_t most = info->rx_attr->size;
    o->receives_count = most && most < OFI_RECEIVES ? (uint32_t)most : OFI_RECEIVES;
    most = info->tx_attr->size ? info->tx_attr->size : OFI_REQUESTS + shares;
    most = most < 2 * (size_t)shares ? most / 2 : most - shares;
    o->common = most < OFI_REQUESTS ? (uint32_t)most : OFI_REQUESTS;
    o->requests_count = o->common + shares;
}

static int device_refuse(const struct fi_info *info)
{
    const char *provider = info->fabric_attr->prov_name;
    if (ofi_lacks_srx(provider))
        return base_fail(-ENOTSUP,
                         "provider %s of libfabric crashes when a node closes it, unless its connections share one receive queue: set "
                         "FI_OFI_RXM_USE_SRX=1 on all nodes",
                         provider);
    if (info->ep_attr->max_msg_size < TB_FRAME_BYTES)
        return base_fail(
            -EMSGSIZE,
            "provider %s of libfabric accepts messages of at most %zu bytes, and weft needs %u: name another provider in WEFT_OFI_PROVIDER",
            provider, info->ep_attr->max_msg_size, TB_FRAME_BYTES);
    return 0;
}

static int device_objects(struct ofi *o)
{
    struct fi_info *info = o->info;
    const char *what = "fi_fabric";
    int rc = o->lib->fabric(info->fabric_attr, &o->fabric, NULL);
    if (!rc && (what = "fi_domain"))
        rc = fi_domain(o->fabric, info, &o->domain, NULL);
    struct fi_av_attr av = {.type = info->domain_attr->av_type, .count = o->w->founders};
    if (!rc && (what = "fi_av_open"))
        rc = fi_av_open(o->domain, &av, &o->av, NULL);
    if (!rc && (what = "fi_cq_open"))
        rc = device_queue(o);
    return rc ? device_failed(o, rc, what) : 0;
}

static int device_open(struct ofi *o)
{
    device_count(o);
    o->shift = OFI_SEGMENT_SHIFT;
    int rc = device_refuse(o->info);
    rc = rc ? rc : device_objects(o);
    rc = rc ? rc : device_memory(o);
    rc = rc ? rc : device_endpoint(o);
    if (!rc && o->traits.rma && (o->traits.hardware || o->traits.local))
        rc = ofi_register_locked(o, &o->pool);
    return rc;
}

/* --- the end of the objects --- */

static void device_shut_regions(struct ofi *o)
{
    for (struct ofi_regions *r = o->regions; r; r = r->next)
        regions_close(r);
    region_close(&o->memory_mr);
    for (struct ofi_frames *f = o->frames; f; f = f->next)
        region_close(&f->mr);
}

static void device_shut_endpoint(struct ofi *o)
{
    if (o->traits.bind_regions) /* an endpoint cannot be closed while regions are bound to it */
        device_shut_regions(o);
    device_close(o->ep ? &o->ep->fid : NULL);
    device_close(o->cq ? &o->cq->fid : NULL);
    o->ep = NULL;
    o->cq = NULL;
    o->armed = false;
}

/* Closes everything except the endpoint. An object that cannot be closed, because something still belongs to it, is never freed. `net` of
 * libfabric 1.17 does not close accepted connections that have sent no request. */
static void device_shut_objects(struct ofi *o)
{
    device_shut_regions(o);
    device_close(o->wait ? &o->wait->fid : NULL);
    device_close(o->av ? &o->av->fid : NULL);
    device_close(o->domain ? &o->domain->fid : NULL);
    device_close(o->fabric ? &o->fabric->fid : NULL);
    o->wait = NULL;
    o->av = NULL;
    o->domain = NULL;
    o->fabric = NULL;
    o->fd = -1;
}

/* Over TCP the domain is closed, too, because `net` of libfabric 1.17 has two defects. If its endpoint is closed while bytes of a get
 * arrive, the domain later uses the entry of this get for two requests at the same time. If its endpoint is closed while a connection is
 * being made, the domain may crash later. */
void ofi_device_shut_locked(struct ofi *o)
{
    device_shut_endpoint(o);
    if (o->traits.tcp)
        device_shut_objects(o);
}

static int device_queue_again(struct ofi *o)
{
    int rc = device_queue(o);
    return rc ? device_failed(o, rc, "fi_cq_open") : 0;
}

static int device_insert_peers(struct ofi *o)
{
    for (uint32_t i = 0; i < o->w->room; i++) {
        struct ofi_link *l = ofi_link_joining(o, i);
        if (l)
            l->was = FI_ADDR_NOTAVAIL;
        if (l && !l->r.closed && fi_av_insert(o->av, l->address, 1, &l->peer, 0, NULL) != 1)
            return base_fail(-EHOSTUNREACH,
                             "provider %s of libfabric now refuses the address of node %u, which it accepted before; restart this node",
                             o->info->fabric_attr->prov_name, i);
    }
    return 0;
}

int ofi_device_again_locked(struct ofi *o)
{
    if (o->traits.hardware && o->traits.bind_regions)
        return base_fail(
            -EOPNOTSUPP,
            "libfabric's provider %s cannot replace its endpoint, because the other nodes could then not access the memory of this node; "
            "set WEFT_OFI_PROVIDER to another provider on all nodes",
            o->info->fabric_attr->prov_name);
    int rc = o->traits.tcp ? device_objects(o) : device_queue_again(o);
    rc = rc ? rc : device_endpoint(o);
    for (struct ofi_regions *r = o->traits.tcp || o->traits.bind_regions ? o->regions : NULL; r && !rc; r = r->next)
        rc = regions_open(o, r);
    rc = rc || !o->traits.tcp ? rc : device_insert_peers(o);
    if (rc)
        ofi_device_shut_locked(o);
    else if (o->fd < 0) /* the new queue may have no descriptor, although the former one had */
        atomic_store_explicit(&o->w->polled, true, memory_order_relaxed);
    return rc;
}

void ofi_device_close(struct ofi *o)
{
    device_shut_endpoint(o);
    device_shut_objects(o);
    ofi_unregister_locked(o, &o->pool);
    if (o->info)
        o->lib->freeinfo(o->info);
    free(o->receives);
    free(o->requests);
    free(o->held);
    if (o->memory)
        munmap(o->memory, o->memory_bytes);
    for (struct ofi_frames *f; (f = o->frames);) {
        o->frames = f->next;
        munmap(f->at, OFI_LINK_FRAMES);
        free(f);
    }
    free(o->links);
    free(o);
}

int ofi_device_open(struct weft_node *w, const struct ofi_library *lib, const struct fi_info *info, struct ofi **out)
{
    struct ofi *o = calloc(1, sizeof *o);
    if (!o)
        return base_fail(-ENOMEM, "no memory for a device of the ofi transport" BASE_MEMORY_HINT);
    o->w = w;
    o->lib = lib;
    o->fd = -1;
    atomic_init(&o->due, INT64_MAX);
    o->links = calloc(w->room, sizeof(struct ofi_link *));
    o->info = lib->dupinfo(info);
    int rc = o->links && o->info ? 0 : base_fail(-ENOMEM, "ofi: no memory for %u links" BASE_MEMORY_HINT, w->room);
    if (!rc) {
        o->traits = ofi_traits_of(o->info);
        rc = device_open(o);
    }
    if (rc)
        ofi_device_close(o);
    *out = rc ? NULL : o;
    return rc;
}
