/* SPDX-License-Identifier: MIT
 *
 * Two nodes that join each other first exchange, over their side connection, which providers they can use. Then they exchange the address
 * of the endpoint, the address of the pool and the keys of its regions. The provider connects at the first operation.
 */
#include "fabric/ofi/ofi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define OFI_OFFER UINT64_C(0x776566746f666c31) /* "weftofl1" */
#define OFI_HELLO UINT64_C(0x776566746f663031) /* "weftof01" */

static int connect_exchange(uint32_t node, int fd, const void *mine, size_t mine_len, void *theirs, size_t their_len, int64_t deadline)
{
    int err = fab_side_transfer(fd, (void *)(uintptr_t)mine, mine_len, true, deadline);
    if (!err)
        err = fab_side_transfer(fd, theirs, their_len, false, deadline);
    return err ? base_fail(err, "node %u did not send its network address (ofi): %s; see the messages of that node", node,
                           base_strerror(err))
               : 0;
}

/* --- the provider --- */

bool ofi_offer_valid(const struct ofi_offer *offer)
{
    bool valid = offer->magic == OFI_OFFER && offer->count > 0 && offer->count <= OFI_CHOICES;
    for (uint32_t i = 0; valid && i < offer->count; i++)
        valid = offer->provider[i][0] && memchr(offer->provider[i], 0, OFI_PROVIDER_NAME);
    return valid;
}

int ofi_common(const struct ofi_offer *first, const struct ofi_offer *second)
{
    for (uint32_t i = 0; i < first->count; i++)
        for (uint32_t k = 0; k < second->count; k++)
            if (strcmp(first->provider[i], second->provider[k]) == 0)
                return (int)i;
    return -1;
}

static void connect_list(const struct ofi_offer *offer, char *out, size_t room)
{
    size_t n = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < offer->count && n < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%s", i ? ", " : "", offer->provider[i]);
}

static int connect_no_common(uint32_t node, const struct ofi_offer *mine, const struct ofi_offer *theirs)
{
    char here[OFI_CHOICES * OFI_PROVIDER_NAME], there[sizeof here];
    connect_list(mine, here, sizeof here);
    connect_list(theirs, there, sizeof there);
    return base_fail(
        -EINVAL,
        "node %u and this node have no provider of libfabric in common: that node can use %s, and this node can use %s. Set "
        "WEFT_OFI_PROVIDER on both nodes to a provider that both hosts have; `weft devices --networks` lists the providers of a host",
        node, there, here);
}

static const char *connect_fast(const struct ofi_offer *offer)
{
    for (uint32_t i = 0; i < offer->count; i++)
        if (ofi_is_fast(offer->provider[i]))
            return offer->provider[i];
    return NULL;
}

/* Warns of a slower link than the user expects: only one of the two nodes has a provider for a faster network. */
static void connect_warn_slow(uint32_t node, const char *agreed, const struct ofi_offer *mine, const struct ofi_offer *theirs)
{
    const char *here = connect_fast(mine), *there = connect_fast(theirs);
    if (ofi_is_fast(agreed) || (!here && !there))
        return;
    if (here && there)
        base_log(BASE_LOG_WARN,
                 "node %u is reached over provider %s of libfabric, although both nodes have faster providers, which differ: that node has "
                 "%s, and this node has %s",
                 node, agreed, there, here);
    else
        base_log(BASE_LOG_WARN, "node %u is reached over provider %s of libfabric, although %s node has the faster %s: `weft doctor` %s",
                 node, agreed, here ? "this" : "that", here ? here : there,
                 here ? "on that node's host says why that node does not have it" : "says why this node does not have it");
}

int ofi_agree(struct weft_node *w, uint32_t node, int side_fd, int64_t deadline)
{
    const struct ofi_node *n = w->ofi;
    struct ofi_offer mine = {.magic = OFI_OFFER, .count = n->choices_count}, theirs = {0};
    for (uint32_t i = 0; i < mine.count; i++)
        snprintf(mine.provider[i], sizeof mine.provider[i], "%s", n->choices[i]->fabric_attr->prov_name);
    int rc = connect_exchange(node, side_fd, &mine, sizeof mine, &theirs, sizeof theirs, deadline);
    if (rc)
        return rc;
    if (!ofi_offer_valid(&theirs))
        return base_fail(-EPROTO, "node %u does not speak this version of the ofi transport; run the same version of weft on both hosts",
                         node);
    bool lower = w->rank < node;
    int at = ofi_common(lower ? &mine : &theirs, lower ? &theirs : &mine);
    if (at < 0)
        return connect_no_common(node, &mine, &theirs);
    connect_warn_slow(node, lower ? mine.provider[at] : theirs.provider[at], &mine, &theirs);
    if (lower)
        return at;
    struct ofi_offer agreed = {.count = 1};
    memcpy(agreed.provider[0], theirs.provider[at], OFI_PROVIDER_NAME);
    return ofi_common(&mine, &agreed);
}

/* --- the endpoints --- */

/* Fills in the hello for the peer. Returns the number of this node's endpoint whose address the hello contains. */
static uint32_t connect_introduce(struct ofi_link *l, struct ofi_hello *h)
{
    struct ofi *o = l->ofi;
    base_spin_lock(&o->calls);
    const uint32_t generation = o->generation;
    const struct ofi_regions *r = l->own.count ? &l->own : &o->pool;
    *h = (struct ofi_hello){.magic = OFI_HELLO,
                            .pool_bytes = o->w->pool_bytes,
                            .rank = o->w->rank,
                            .size = o->w->founders,
                            .base = o->traits.virtual ? (uintptr_t)o->w->pool_base : 0,
                            .shift = o->shift,
                            .keys = r->count,
                            .fixed = !ofi_keys_change(l),
                            .format = o->info->addr_format,
                            .address_bytes = (uint32_t)o->address_bytes};
    snprintf(h->provider, sizeof h->provider, "%s", o->info->fabric_attr->prov_name);
    memcpy(h->address, o->address, o->address_bytes);
    base_spin_unlock(&o->calls);
    return generation;
}

bool ofi_hello_valid(const struct ofi_hello *h, uint32_t node, uint32_t size, uint64_t heap_offset)
{
    return h->magic == OFI_HELLO && h->rank == node && h->size == size && h->pool_bytes >= heap_offset &&
           h->pool_bytes <= WEFT_MAX_POOL_BYTES && h->shift >= 24 && h->shift <= 40 && h->fixed <= 1 &&
           (h->keys == 0 || h->keys == (h->pool_bytes + (UINT64_C(1) << h->shift) - 1) >> h->shift) && h->address_bytes > 0 &&
           h->address_bytes <= sizeof h->address && memchr(h->provider, 0, sizeof h->provider);
}

bool ofi_address_fits(const struct ofi *o, const uint8_t *address, size_t bytes)
{
    if (o->info->addr_format == FI_ADDR_STR) /* a name of any length; that of `shm` has the number of the process */
        return bytes && !address[bytes - 1];
    return bytes == o->address_bytes;
}

/* Whether only its own host reaches this address of an endpoint, although the nodes have joined from host to host. */
static bool connect_unreachable(const struct ofi *o, const uint8_t address[OFI_ADDRESS], int side_fd)
{
    struct sockaddr_storage at, side = {0};
    socklen_t len = sizeof side;
    memcpy(&at, address, sizeof at);
    return o->traits.inet && base_is_loopback((const struct sockaddr *)&at) && getpeername(side_fd, (struct sockaddr *)&side, &len) == 0 &&
           (side.ss_family == AF_INET || side.ss_family == AF_INET6) && !base_is_loopback((const struct sockaddr *)&side);
}

static int connect_check(struct ofi_link *l, const struct ofi_hello *h, int side_fd)
{
    const struct ofi *o = l->ofi;
    uint32_t node = l->r.link->node;
    char there[64];
    if (!ofi_hello_valid(h, node, o->w->founders, o->w->heap_offset))
        return base_fail(-EPROTO,
                         "node %u uses another transport, or another version of weft: set the same WEFT_TRANSPORT on all nodes, and run "
                         "the same version of weft on all hosts",
                         node);
    if (strcmp(h->provider, o->info->fabric_attr->prov_name) != 0)
        return base_fail(
            -EPROTO, "node %u uses %.47s of libfabric, although both nodes had agreed on %s; run the same version of weft on both hosts",
            node, h->provider, o->info->fabric_attr->prov_name);
    if (h->format != o->info->addr_format || !ofi_address_fits(o, h->address, h->address_bytes))
        return base_fail(-EINVAL,
                         "node %u and this node have addresses of different families (IPv4 and IPv6) for %s: set WEFT_OFI_INTERFACE on "
                         "both nodes to addresses of one family",
                         node, o->info->fabric_attr->prov_name);
    bool own = connect_unreachable(o, o->address, side_fd);
    if (own || connect_unreachable(o, h->address, side_fd)) {
        ofi_print_address(o->info, h->address, h->address_bytes, there, sizeof there);
        return base_fail(-EHOSTUNREACH,
                         "other hosts cannot reach %s at %s, where its provider %s of libfabric listens: on its host, unset "
                         "WEFT_OFI_INTERFACE, or set it to an interface that the other hosts reach",
                         own ? "this node" : "that node", own ? o->name : there, o->info->fabric_attr->prov_name);
    }
    return 0;
}

static int connect_keys(struct ofi_link *l, const struct ofi_hello *h, int fd, int64_t deadline)
{
    struct ofi *o = l->ofi;
    const struct ofi_regions *r = l->own.count ? &l->own : &o->pool;
    uint64_t *mine = calloc(r->count + 1, sizeof *mine);
    l->keys = calloc(h->keys + 1, sizeof *l->keys);
    int err =
        mine && l->keys ? 0 : base_fail(-ENOMEM, "ofi: no memory for the %u keys of the pool of another node" BASE_MEMORY_HINT, h->keys);
    base_spin_lock(&o->receiving); /* otherwise another thread could be replacing this node's endpoint, and its regions */
    base_spin_lock(&o->calls);
    for (uint32_t i = 0; i < r->count && !err; i++)
        mine[i] = ofi_keys_change(l) ? r->keys[i] : r->list[i] ? fi_mr_key(r->list[i]) : 0;
    base_spin_unlock(&o->calls);
    base_spin_unlock(&o->receiving);
    if (!err)
        err = connect_exchange(l->r.link->node, fd, mine, r->count * sizeof *mine, l->keys, h->keys * sizeof *l->keys, deadline);
    free(mine);
    l->keys_count = h->keys;
    return err;
}

int ofi_connect(struct ofi_link *l, int side_fd, int64_t deadline)
{
    struct ofi *o = l->ofi;
    struct fab_link *link = l->r.link;
    struct ofi_hello mine, theirs = {0};
    int err = 0;
    base_spin_lock(&o->receiving); /* otherwise another thread could be replacing this node's endpoint and domain */
    base_spin_lock(&o->calls);
    if (!o->ep)
        err = base_fail(-ENOTCONN, "provider %s of libfabric has failed on this node; restart this node", o->info->fabric_attr->prov_name);
    else if (o->traits.rma && !o->pool.count)
        err = ofi_register_locked(o, &l->own);
    base_spin_unlock(&o->calls);
    base_spin_unlock(&o->receiving);
    const uint32_t introduced = connect_introduce(l, &mine);
    if (!err)
        err = base_random(&mine.session, sizeof mine.session);
    if (!err)
        err = connect_exchange(l->r.link->node, side_fd, &mine, sizeof mine, &theirs, sizeof theirs, deadline);
    if (!err)
        err = connect_check(l, &theirs, side_fd);
    if (!err)
        err = connect_keys(l, &theirs, side_fd, deadline);
    if (err)
        return base_context(err, "link to node %u", link->node);
    l->base = theirs.base;
    l->shift = theirs.shift;
    l->fixed = theirs.fixed;
    link->pool_bytes = theirs.pool_bytes;
    ofi_print_address(o->info, theirs.address, theirs.address_bytes, l->name, sizeof l->name);
    memcpy(l->address, theirs.address, theirs.address_bytes);
    base_spin_lock(&o->receiving);
    base_spin_lock(&o->calls);
    bool inserted = o->ep && fi_av_insert(o->av, theirs.address, 1, &l->peer, 0, NULL) == 1;
    base_spin_unlock(&o->calls);
    err = inserted ? ofi_link_ready(l, mine.session + theirs.session)
                   : base_fail(-EHOSTUNREACH,
                               "link to node %u: %s of libfabric does not accept the node's address, %s; set WEFT_OFI_INTERFACE to an "
                               "interface that reaches that node",
                               link->node, o->info->fabric_attr->prov_name, l->name);
    if (!err && introduced != o->generation) /* this node has replaced its endpoint since it sent its hello: tell the peer */
        l->shut = l->tell = l->awaits = true;
    base_spin_unlock(&o->receiving);
    /* Both nodes must have their endpoints before either sends a frame. */
    char ready = 'r', answer = 0;
    if (!err)
        err = connect_exchange(l->r.link->node, side_fd, &ready, 1, &answer, 1, deadline);
    if (!err && answer != 'r')
        err = base_fail(-EPROTO,
                        "link to node %u: that node sent byte 0x%02x instead of 'r' (ready) after both nodes had exchanged addresses; run "
                        "the same version of weft on all hosts",
                        link->node, (unsigned)(unsigned char)answer);
    if (!err)
        base_log(BASE_LOG_DEBUG, "node %u has the address %s (provider %s)", link->node, l->name, mine.provider);
    return err;
}
