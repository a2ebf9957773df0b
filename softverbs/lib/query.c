/* SPDX-License-Identifier: MIT
 *
 * What a device reports about itself: its limits (from the profile), its port, its GID and P_Key tables.
 */
#include "entry.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static struct sf_device *now_of(uint32_t device)
{
    return &sv_lib.fabric->devices[device];
}

static const struct sv_device_model *model_of(uint32_t device)
{
    return &sv_lib.fabric->model.topology.devices[device];
}

static uint32_t gids_of(uint32_t device)
{
    uint32_t count = model_of(device)->gid_count;

    return count < SV_GIDS ? count : SV_GIDS;
}

static int as_int(uint64_t count)
{
    return count < INT_MAX ? (int)count : INT_MAX;
}

/* Returns 0, or the errno with which a query about this port fails. */
static int query_refused(const char *call, struct ibv_context *context, enum sf_verb verb, uint32_t port)
{
    uint32_t device = sv_context_of(context)->device;
    int error = sv_refused(verb, device);

    if (error)
        return sv_refuse(error, "%s: %s: refused by a rule, which `softverbs fault list` shows", call, context->device->name);
    if (atomic_load_explicit(&now_of(device)->removed, memory_order_relaxed))
        return sv_refuse(EIO, "%s: %s: the device was removed; `softverbs fault restore` brings it back", call, context->device->name);
    if (port != 1)
        return sv_refuse(EINVAL, "%s: %s: port %u: the device has only port 1", call, context->device->name, port);
    return 0;
}

/* ---- The device ------------------------------------------------------------------------------------------------ */
static void fill_device(uint32_t device, struct ibv_device_attr *attr)
{
    const struct sv_profile *profile = sv_lib.profile;

    memset(attr, 0, sizeof *attr);
    snprintf(attr->fw_ver, sizeof attr->fw_ver, "%.*s", SV_TEXT - 1, profile->firmware);
    attr->node_guid = attr->sys_image_guid = htobe64(model_of(device)->guid);
    attr->max_mr_size = profile->max_mr_size;
    attr->page_size_cap = ~UINT64_C(0xfff);
    attr->vendor_id = profile->vendor_id;
    attr->vendor_part_id = profile->vendor_part;
    attr->hw_ver = profile->hardware_version;
    attr->max_qp = as_int(profile->max_qp);
    attr->max_qp_wr = as_int(profile->max_qp_wr);
    attr->device_cap_flags = IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID;
    if (profile->transports & SV_RC)
        attr->device_cap_flags |= IBV_DEVICE_RC_RNR_NAK_GEN;
    if (profile->max_srq)
        attr->device_cap_flags |= IBV_DEVICE_SRQ_RESIZE;
    attr->max_sge = as_int(profile->max_sge);
    attr->max_sge_rd = as_int(profile->max_sge_rd);
    attr->max_cq = as_int(profile->max_cq);
    attr->max_cqe = as_int(profile->max_cqe);
    attr->max_mr = as_int(profile->max_mr);
    attr->max_pd = as_int(profile->max_pd);
    attr->max_qp_rd_atom = as_int(profile->max_rd_atomic);
    attr->max_res_rd_atom = as_int(profile->max_res_rd_atomic);
    attr->max_qp_init_rd_atom = as_int(profile->max_rd_atomic);
    attr->atomic_cap = (enum ibv_atomic_cap)profile->atomics;
    attr->max_ah = as_int(profile->max_ah);
    attr->max_srq = as_int(profile->max_srq);
    attr->max_srq_wr = as_int(profile->max_srq_wr);
    attr->max_srq_sge = as_int(profile->max_srq_sge);
    attr->max_pkeys = profile->pkeys;
    attr->phys_port_cnt = 1;
}

SV_PUBLIC int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    int error = query_refused("ibv_query_device", context, SF_VERB_QUERY_DEVICE, 1);

    if (!error)
        fill_device(sv_context_of(context)->device, attr);
    return error;
}

/* The caller's structure may be shorter or longer than this library's. The common part is filled in, and the rest is zeroed. */
int sv_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr,
                       size_t bytes)
{
    struct ibv_device_attr_ex full = {.comp_mask = 0};
    int error;

    if (input && input->comp_mask)
        return sv_refuse(EINVAL, "ibv_query_device_ex: comp_mask of the input is %#x: it must be 0", input->comp_mask);
    if (bytes < sizeof full.orig_attr)
        return sv_refuse(EINVAL, "ibv_query_device_ex: the output structure has %zu bytes: it must have at least %zu", bytes,
                         sizeof full.orig_attr);
    error = query_refused("ibv_query_device_ex", context, SF_VERB_QUERY_DEVICE, 1);
    if (error)
        return error;
    fill_device(sv_context_of(context)->device, &full.orig_attr);
    full.completion_timestamp_mask = UINT64_MAX;
    full.hca_core_clock = 1000000; /* kHz: completion timestamps are in nanoseconds */
    full.device_cap_flags_ex = full.orig_attr.device_cap_flags;
    full.phys_port_cnt_ex = 1;
    memset(attr, 0, bytes);
    memcpy(attr, &full, bytes < sizeof full ? bytes : sizeof full);
    return 0;
}

int sv_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
    (void)context;
    if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
        return EOPNOTSUPP;
    if (values->comp_mask & IBV_VALUES_MASK_RAW_CLOCK)
        clock_gettime(CLOCK_MONOTONIC, &values->raw_clock);
    return 0;
}

/* ---- The port -------------------------------------------------------------------------------------------------- */
static void fill_port(uint32_t device, struct ibv_port_attr *attr)
{
    const struct sv_profile *profile = sv_lib.profile;
    bool up = atomic_load_explicit(&now_of(device)->port_up, memory_order_relaxed);

    memset(attr, 0, sizeof *attr);
    attr->state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    attr->phys_state = up ? 5 : 2; /* 5: link up, 2: polling */
    attr->max_mtu = IBV_MTU_4096;
    attr->active_mtu = (enum ibv_mtu)profile->active_mtu;
    attr->gid_tbl_len = SV_GIDS;
    attr->max_msg_sz = profile->max_message < UINT32_MAX ? (uint32_t)profile->max_message : UINT32_MAX;
    attr->pkey_tbl_len = profile->pkeys;
    attr->link_layer = profile->link_layer;
    attr->active_speed = profile->active_speed;
    attr->active_width = profile->active_width;
    attr->max_vl_num = 1;
    attr->port_cap_flags = IBV_PORT_CM_SUP;
    if (profile->link_layer == IBV_LINK_LAYER_ETHERNET) {
        attr->port_cap_flags |= IBV_PORT_IP_BASED_GIDS;
        attr->flags = IBV_QPF_GRH_REQUIRED;
    } else {
        attr->lid = sf_lid(sv_lib.fabric, device);
        attr->sm_lid = sf_lid(sv_lib.fabric, 0); /* the subnet manager is on the host of the first device */
    }
}

int sv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t bytes)
{
    int error = query_refused("ibv_query_port", context, SF_VERB_QUERY_PORT, port);
    struct ibv_port_attr full;

    if (error)
        return error;
    fill_port(sv_context_of(context)->device, &full);
    memset(attr, 0, bytes);
    memcpy(attr, &full, bytes < sizeof full ? bytes : sizeof full);
    return 0;
}

/* for programs built before the structure got its last fields; newer programs call the context's operation */
#undef ibv_query_port
SV_PUBLIC int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    return sv_query_port(context, port, (struct ibv_port_attr *)(void *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* ---- The port's tables ------------------------------------------------------------------------------------------------ */
static bool query_empty(const struct sv_gid_model *gid)
{
    static const uint8_t nothing[16];

    return !memcmp(gid->raw, nothing, sizeof nothing);
}

static int gid_entry(uint32_t device, uint32_t index, struct ibv_gid_entry *entry)
{
    const struct sv_device_model *model = model_of(device);

    if (index >= SV_GIDS)
        return EINVAL;
    if (index >= gids_of(device) || query_empty(&model->gids[index]))
        return ENODATA;
    *entry = (struct ibv_gid_entry){.gid_index = index, .port_num = 1, .gid_type = sv_lib.profile->gid_type};
    memcpy(entry->gid.raw, model->gids[index].raw, sizeof entry->gid.raw);
    return 0;
}

SV_PUBLIC int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    struct ibv_gid_entry entry;
    int error = query_refused("ibv_query_gid", context, SF_VERB_QUERY_GID, port);

    if (error)
        return -1;
    error = gid_entry(sv_context_of(context)->device, (uint32_t)index, &entry);
    if (error == ENODATA) {
        memset(gid, 0, sizeof *gid); /* unused entries are zero */
        return 0;
    }
    if (error) {
        sv_refuse(error, "ibv_query_gid: %s: index %d is beyond the end of the GID table, which has %d entries", context->device->name,
                  index, SV_GIDS);
        return -1;
    }
    *gid = entry.gid;
    return 0;
}

SV_PUBLIC int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *to, uint32_t flags,
                                size_t bytes)
{
    struct ibv_gid_entry entry;
    int error = flags ? EINVAL : query_refused("ibv_query_gid_ex", context, SF_VERB_QUERY_GID, port);

    if (!error)
        error = gid_entry(sv_context_of(context)->device, index, &entry);
    if (error) {
        errno = error;
        return error;
    }
    memset(to, 0, bytes);
    memcpy(to, &entry, bytes < sizeof entry ? bytes : sizeof entry);
    return 0;
}

/* Returns all used entries. As in the kernel, it fails if there is too little room. */
SV_PUBLIC ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *to, size_t most, uint32_t flags, size_t bytes)
{
    uint32_t device = sv_context_of(context)->device;
    int error = flags ? EINVAL : query_refused("ibv_query_gid_table", context, SF_VERB_QUERY_GID, 1);
    size_t count = 0;

    for (uint32_t i = 0; !error && i < gids_of(device); i++) {
        struct ibv_gid_entry entry;

        if (gid_entry(device, i, &entry))
            continue;
        if (count == most) {
            error = EINVAL;
            break;
        }
        memset((char *)to + count * bytes, 0, bytes);
        memcpy((char *)to + count * bytes, &entry, bytes < sizeof entry ? bytes : sizeof entry);
        count++;
    }
    if (error) {
        errno = error;
        return -error;
    }
    return (ssize_t)count;
}

/* Used by libibverbs and its tools: 0 for InfiniBand or RoCE v1, 1 for RoCE v2. */
SV_PUBLIC int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, unsigned *type);
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, unsigned *type)
{
    struct ibv_gid_entry entry;
    int error = query_refused("ibv_query_gid_type", context, SF_VERB_QUERY_GID, port);

    if (!error)
        error = gid_entry(sv_context_of(context)->device, index, &entry);
    if (error && error != ENODATA) {
        errno = error;
        return -1;
    }
    *type = !error && entry.gid_type == IBV_GID_TYPE_ROCE_V2;
    return 0;
}

SV_PUBLIC int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    if (query_refused("ibv_query_pkey", context, SF_VERB_QUERY_PORT, port))
        return -1;
    if (index < 0 || index >= sv_lib.profile->pkeys) {
        sv_refuse(EINVAL, "ibv_query_pkey: %s: index %d is beyond the end of the table of partition keys, which has %u entries",
                  context->device->name, index, sv_lib.profile->pkeys);
        return -1;
    }
    *pkey = index ? 0 : 0xffff;
    return 0;
}

SV_PUBLIC int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 wanted)
{
    __be16 found;

    for (int i = 0; !ibv_query_pkey(context, port, i, &found); i++) {
        if (found == wanted)
            return i;
    }
    return -1;
}
