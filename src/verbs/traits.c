/* SPDX-License-Identifier: MIT
 *
 * Computes the traits of a device: its reported attributes, corrected by what is known about its kind. All knowledge about kinds of devices
 * is in this file.
 */
#include <string.h>

#include "verbs/verbs.h"

enum { THUNDERBOLT = 100 }; /* the value of transport_type; no header defines it */

#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

/* Returns a limit that the device reports, capped at `limit`. Devices report limits as int. */
static uint32_t traits_at_most(int said, uint32_t limit)
{
    return said <= 0 ? 0 : (uint32_t)said < limit ? (uint32_t)said : limit;
}

/* As traits_at_most(), but a reported 0 means that the device has not reported a limit. */
static uint32_t else_at_most(int said, uint32_t limit)
{
    return said <= 0 ? limit : traits_at_most(said, limit);
}

/* Limits of Apple's device up to macOS 26.4, as published. Some of the reported limits are wrong. */
static void traits_thunderbolt(struct verbs_traits *t, const struct ibv_device_attr *d)
{
    t->link = VERBS_THUNDERBOLT;
    t->uc = true;
    t->qps = else_at_most(d->max_qp, 10); /* the device reports 11, but refuses the eleventh */
    t->pds = else_at_most(d->max_pd, 11);
    t->regions = else_at_most(d->max_mr, 100);
    t->cqe = else_at_most(d->max_cqe, 4096);
    t->region_bytes = VERBS_SEGMENT; /* the device reports 16.4 MB; regions of 2 GiB have worked, but 4 GiB and more corrupt data */
    t->depth_unit_bytes = 4096;
    t->depth = else_at_most(d->max_qp_wr, 4095);
    t->message_bytes = UINT64_C(4095) * 4096;
    t->sge = 1;
    t->access = REMOTE;
    t->access_else = IBV_ACCESS_LOCAL_WRITE; /* enough for this device; some users report that it accepts no other flag */
}

static void iwarp(struct verbs_traits *t)
{
    t->link = VERBS_ETHERNET;
    t->rc = t->write = t->read = t->acknowledges = true;
}

static void infiniband(struct verbs_traits *t, const struct ibv_port_attr *port)
{
    t->link = port->link_layer == IBV_LINK_LAYER_ETHERNET ? VERBS_ETHERNET : VERBS_INFINIBAND;
    t->rc = t->uc = t->ud = t->write = t->read = t->acknowledges = true;
}

static void others_limits(struct verbs_traits *t, const struct ibv_device_attr *d, const struct ibv_port_attr *port)
{
    t->srq = d->max_srq > 0 && d->max_srq_wr > 0;
    t->srq_depth = t->srq ? traits_at_most(d->max_srq_wr, UINT32_MAX) : 0;
    t->atomics = t->rc && d->atomic_cap != IBV_ATOMIC_NONE;
    t->atomics_with_cpu = t->rc && d->atomic_cap == IBV_ATOMIC_GLOB;
    t->qps = traits_at_most(d->max_qp, UINT32_MAX);
    t->pds = traits_at_most(d->max_pd, UINT32_MAX);
    t->regions = traits_at_most(d->max_mr, UINT32_MAX);
    t->cqe = traits_at_most(d->max_cqe, UINT32_MAX);
    t->region_bytes = d->max_mr_size && d->max_mr_size < VERBS_SEGMENT ? d->max_mr_size : VERBS_SEGMENT;
    t->depth = traits_at_most(d->max_qp_wr, UINT32_MAX);
    t->message_bytes = port->max_msg_sz ? port->max_msg_sz : UINT32_C(1) << 30;
    t->sge = traits_at_most(d->max_sge, UINT32_MAX);
    t->inline_bytes = 256; /* no query tells the limit; verbs_qp_create() asks for less if the device refuses */
    int as_target = d->max_qp_rd_atom, as_source = d->max_qp_init_rd_atom;
    t->rd_atomic = traits_at_most(as_source < as_target && as_source > 0 ? as_source : as_target, UINT8_MAX);
    t->heap = true;
    t->access = IBV_ACCESS_LOCAL_WRITE;
    if (t->write || t->read)
        t->access = REMOTE | (t->atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);
    t->access_else = t->atomics ? REMOTE : 0;
}

void verbs_traits_from(struct verbs_traits *out, int transport, const struct ibv_device_attr *device, const struct ibv_port_attr *port,
                       bool has_dmabuf)
{
    struct verbs_traits t = {.link = VERBS_OTHER};
    if (transport == THUNDERBOLT) {
        traits_thunderbolt(&t, device);
    } else {
        switch (transport) {
        case IBV_TRANSPORT_IB: infiniband(&t, port); break;
        case IBV_TRANSPORT_IWARP: iwarp(&t); break;
        default: t.ud = true; /* usNIC and EFA have datagrams, and queue pairs of vendor types */
        }
        others_limits(&t, device, port);
    }
    t.dmabuf = has_dmabuf;
    t.cqs = traits_at_most(device->max_cq, UINT32_MAX);
    t.pkeys = port->pkey_tbl_len;
    t.gids = traits_at_most(port->gid_tbl_len, UINT32_MAX);
    t.mtu = port->active_mtu >= IBV_MTU_256 && port->active_mtu <= IBV_MTU_4096 ? port->active_mtu : IBV_MTU_1024;
    *out = t;
}

bool verbs_thunderbolt_here(void)
{
    const struct verbs_library *lib;
    int count = 0;
    bool found = false;
    struct ibv_device **list = verbs_load(&lib) ? NULL : lib->get_device_list(&count);
    for (int i = 0; list && i < count; i++) {
        int transport;
        memcpy(&transport, &list[i]->transport_type, sizeof transport); /* memcpy(), because the value may not be in the enumeration */
        found = found || transport == THUNDERBOLT;
    }
    if (list)
        lib->free_device_list(list);
    return found;
}
