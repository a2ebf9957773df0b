/* SPDX-License-Identifier: MIT
 *
 * Address handles: the destinations of datagrams. They exist only in the process, not on the fabric.
 */
#include "lib.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint32_t handles; /* address handles of this process; limited by the profile's max_ah */

SV_PUBLIC struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct sv_context *context = sv_context_of(pd->context);
    const struct sv_profile *p = sv_lib.profile;
    struct sv_ah *ah = NULL;

    int error = sv_refused(SF_VERB_CREATE_AH, context->device);
    if (!error)
        error = sv_check_route(context->device, attr, "ibv_create_ah");
    if (error)
        goto refused;
    if (atomic_fetch_add(&handles, 1) >= p->max_ah && p->max_ah != 0) {
        error = sv_refuse(
            ENOMEM,
            "ibv_create_ah: the device already has %u address handles, its limit: destroy one first (profile %s, max_ah; " SV_DOCUMENTED
            ")",
            p->max_ah, p->name);
        goto uncounted;
    }
    error = ENOMEM;
    ah = calloc(1, sizeof *ah);
    if (!ah)
        goto uncounted;
    ah->base.context = pd->context;
    ah->base.pd = pd;
    ah->attr = *attr;
    ah->device = sv_find_port(attr, NULL);
    if (ah->device == SF_NO_DEVICE)
        sv_log(SV_INFO, "ibv_create_ah: no port of the fabric has this %s: messages sent to it are lost",
               p->link_layer == IBV_LINK_LAYER_ETHERNET ? "GID"
               : attr->is_global                        ? "LID with this GID"
                                                        : "LID");
    atomic_fetch_add(&sv_container(pd, struct sv_pd, base)->users, 1);
    atomic_fetch_add(&context->objects, 1);
    return &ah->base;

uncounted:
    atomic_fetch_sub(&handles, 1);
refused:
    errno = error;
    return NULL;
}

SV_PUBLIC int ibv_destroy_ah(struct ibv_ah *base)
{
    struct sv_ah *ah = sv_container(base, struct sv_ah, base);

    atomic_fetch_sub(&sv_container(base->pd, struct sv_pd, base)->users, 1);
    atomic_fetch_sub(&sv_context_of(base->context)->objects, 1);
    atomic_fetch_sub(&handles, 1);
    free(ah);
    return 0;
}

/* ---- The address that a datagram came from ------------------------------------------------------------------------ */
/* The addresses in the 40 bytes before a datagram's data: an IPv6 header, or 20 unused bytes and an IPv4 header. */
struct route {
    uint8_t from[16], to[16];
    uint32_t flow_label;
    uint8_t traffic_class;
};

static int read_header(const struct ibv_grh *grh, struct route *r)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    uint8_t b[40];

    memcpy(b, grh, sizeof b);
    memset(r, 0, sizeof *r);
    if (b[0] >> 4 == 6) {
        r->traffic_class = (uint8_t)(b[0] << 4 | b[1] >> 4);
        r->flow_label = (uint32_t)(b[1] & 0xf) << 16 | (uint32_t)b[2] << 8 | b[3];
        memcpy(r->from, b + 8, 16);
        memcpy(r->to, b + 24, 16);
        return 0;
    }
    if (b[20] != 0x45) /* version 4, no options */
        return EINVAL;
    r->traffic_class = b[21];
    memcpy(r->from, mapped, 12);
    memcpy(r->from + 12, b + 32, 4);
    memcpy(r->to, mapped, 12);
    memcpy(r->to + 12, b + 36, 4);
    return 0;
}

SV_PUBLIC int ibv_init_ah_from_wc(struct ibv_context *base, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
    const struct sv_device_model *d = &sv_lib.fabric->model.topology.devices[sv_context_of(base)->device];
    struct route r;

    memset(attr, 0, sizeof *attr);
    attr->dlid = wc->slid;
    attr->sl = wc->sl;
    attr->src_path_bits = wc->dlid_path_bits;
    attr->port_num = port;
    if (!(wc->wc_flags & IBV_WC_GRH))
        return 0;
    if (read_header(grh, &r))
        return sv_refuse(EINVAL, "ibv_init_ah_from_wc: the first 40 bytes of the buffer are not a global route header: pass the address at "
                                 "which the received datagram begins"),
               -1;
    for (uint32_t i = 0; i < d->gid_count && i < SV_GIDS; i++) {
        if (memcmp(d->gids[i].raw, r.to, 16) != 0)
            continue;
        attr->is_global = 1;
        memcpy(attr->grh.dgid.raw, r.from, 16);
        attr->grh.flow_label = r.flow_label;
        attr->grh.sgid_index = (uint8_t)i;
        attr->grh.traffic_class = r.traffic_class;
        attr->grh.hop_limit = 0xff;
        return 0;
    }
    return sv_refuse(EINVAL, "ibv_init_ah_from_wc: the header's destination is not a GID of this device: call it with the device that "
                             "received the datagram"),
           -1;
}

SV_PUBLIC struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
    struct ibv_ah_attr attr;

    if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
        return NULL;
    return ibv_create_ah(pd, &attr);
}
