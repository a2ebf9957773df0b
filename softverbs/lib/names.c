/* SPDX-License-Identifier: MIT
 *
 * Names of values, rates, and structures of the connection manager.
 */
#include "lib.h"

#include <errno.h>
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <string.h>

/* The names in the InfiniBand specification, as programs usually print them. */
static const char *const statuses[] = {
    [IBV_WC_SUCCESS] = "success",
    [IBV_WC_LOC_LEN_ERR] = "local length error",
    [IBV_WC_LOC_QP_OP_ERR] = "local QP operation error",
    [IBV_WC_LOC_EEC_OP_ERR] = "local EE context operation error",
    [IBV_WC_LOC_PROT_ERR] = "local protection error",
    [IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
    [IBV_WC_MW_BIND_ERR] = "memory management operation error",
    [IBV_WC_BAD_RESP_ERR] = "bad response error",
    [IBV_WC_LOC_ACCESS_ERR] = "local access error",
    [IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
    [IBV_WC_REM_ACCESS_ERR] = "remote access error",
    [IBV_WC_REM_OP_ERR] = "remote operation error",
    [IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
    [IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
    [IBV_WC_LOC_RDD_VIOL_ERR] = "local RDD violation error",
    [IBV_WC_REM_INV_RD_REQ_ERR] = "remote invalid RD request",
    [IBV_WC_REM_ABORT_ERR] = "aborted error",
    [IBV_WC_INV_EECN_ERR] = "invalid EE context number",
    [IBV_WC_INV_EEC_STATE_ERR] = "invalid EE context state",
    [IBV_WC_FATAL_ERR] = "fatal error",
    [IBV_WC_RESP_TIMEOUT_ERR] = "response timeout error",
    [IBV_WC_GENERAL_ERR] = "general error",
    [IBV_WC_TM_ERR] = "TM error",
    [IBV_WC_TM_RNDV_INCOMPLETE] = "TM software rendezvous",
};

static const char *const nodes[] = {
    [IBV_NODE_CA] = "InfiniBand channel adapter",
    [IBV_NODE_SWITCH] = "InfiniBand switch",
    [IBV_NODE_ROUTER] = "InfiniBand router",
    [IBV_NODE_RNIC] = "iWARP NIC",
    [IBV_NODE_USNIC] = "usNIC",
    [IBV_NODE_USNIC_UDP] = "usNIC UDP",
    [IBV_NODE_UNSPECIFIED] = "unspecified",
};

static const char *const ports[] = {
    [IBV_PORT_NOP] = "no state change (NOP)",
    [IBV_PORT_DOWN] = "down",
    [IBV_PORT_INIT] = "init",
    [IBV_PORT_ARMED] = "armed",
    [IBV_PORT_ACTIVE] = "active",
    [IBV_PORT_ACTIVE_DEFER] = "active defer",
};

static const char *const events[] = {
    [IBV_EVENT_CQ_ERR] = "CQ error",
    [IBV_EVENT_QP_FATAL] = "local work queue catastrophic error",
    [IBV_EVENT_QP_REQ_ERR] = "invalid request local work queue error",
    [IBV_EVENT_QP_ACCESS_ERR] = "local access violation work queue error",
    [IBV_EVENT_COMM_EST] = "communication established",
    [IBV_EVENT_SQ_DRAINED] = "send queue drained",
    [IBV_EVENT_PATH_MIG] = "path migrated",
    [IBV_EVENT_PATH_MIG_ERR] = "path migration request error",
    [IBV_EVENT_DEVICE_FATAL] = "local catastrophic error",
    [IBV_EVENT_PORT_ACTIVE] = "port active",
    [IBV_EVENT_PORT_ERR] = "port error",
    [IBV_EVENT_LID_CHANGE] = "LID change",
    [IBV_EVENT_PKEY_CHANGE] = "P_Key change",
    [IBV_EVENT_SM_CHANGE] = "SM change",
    [IBV_EVENT_SRQ_ERR] = "SRQ catastrophic error",
    [IBV_EVENT_SRQ_LIMIT_REACHED] = "SRQ limit reached",
    [IBV_EVENT_QP_LAST_WQE_REACHED] = "last WQE reached",
    [IBV_EVENT_CLIENT_REREGISTER] = "client reregistration",
    [IBV_EVENT_GID_CHANGE] = "GID table change",
    [IBV_EVENT_WQ_FATAL] = "WQ fatal",
};

static const char *name_of(const char *const *names, size_t count, unsigned value, const char *other)
{
    return value < count && names[value] ? names[value] : other;
}
#define NAME(names, value, other) name_of(names, sizeof(names) / sizeof *(names), (unsigned)(value), other)

SV_PUBLIC const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    return NAME(statuses, status, "unknown");
}

SV_PUBLIC const char *ibv_node_type_str(enum ibv_node_type type)
{
    return NAME(nodes, type, "unknown");
}

SV_PUBLIC const char *ibv_port_state_str(enum ibv_port_state state)
{
    return NAME(ports, state, "unknown");
}

SV_PUBLIC const char *ibv_event_type_str(enum ibv_event_type type)
{
    return NAME(events, type, "unknown");
}

/* ---- Rates ----------------------------------------------------------------------------------------------------- */
static const struct {
    enum ibv_rate rate;
    int mult; /* multiple of 2.5 Gb/s; 0: not a multiple */
    int mbps;
} rates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},     {IBV_RATE_5_GBPS, 2, 5000},         {IBV_RATE_10_GBPS, 4, 10000},
    {IBV_RATE_20_GBPS, 8, 20000},     {IBV_RATE_30_GBPS, 12, 30000},      {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},    {IBV_RATE_80_GBPS, 32, 80000},      {IBV_RATE_120_GBPS, 48, 120000},
    {IBV_RATE_14_GBPS, 0, 14062},     {IBV_RATE_56_GBPS, 0, 56250},       {IBV_RATE_112_GBPS, 0, 112500},
    {IBV_RATE_168_GBPS, 0, 168750},   {IBV_RATE_25_GBPS, 0, 25781},       {IBV_RATE_100_GBPS, 0, 103125},
    {IBV_RATE_200_GBPS, 0, 206250},   {IBV_RATE_300_GBPS, 0, 309375},     {IBV_RATE_28_GBPS, 11, 28125},
    {IBV_RATE_50_GBPS, 20, 53125},    {IBV_RATE_400_GBPS, 160, 425000},   {IBV_RATE_600_GBPS, 240, 637500},
    {IBV_RATE_800_GBPS, 320, 850000}, {IBV_RATE_1200_GBPS, 480, 1275000},
};
enum { RATES = sizeof rates / sizeof *rates };

SV_PUBLIC int ibv_rate_to_mult(enum ibv_rate rate)
{
    for (int i = 0; i < RATES; i++) {
        if (rates[i].rate == rate && rates[i].mult)
            return rates[i].mult;
    }
    return -1;
}

SV_PUBLIC enum ibv_rate mult_to_ibv_rate(int mult)
{
    for (int i = 0; i < RATES; i++) {
        if (rates[i].mult == mult && mult)
            return rates[i].rate;
    }
    return IBV_RATE_MAX;
}

SV_PUBLIC int ibv_rate_to_mbps(enum ibv_rate rate)
{
    for (int i = 0; i < RATES; i++) {
        if (rates[i].rate == rate)
            return rates[i].mbps;
    }
    return -1;
}

SV_PUBLIC enum ibv_rate mbps_to_ibv_rate(int mbps)
{
    for (int i = 0; i < RATES; i++) {
        if (rates[i].mbps == mbps)
            return rates[i].rate;
    }
    return IBV_RATE_MAX;
}

/* ---- An address ------------------------------------------------------------------------------------------------ */
/* Finds the Ethernet address for frames to this GID. There are no VLANs. */
SV_PUBLIC int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr, uint8_t mac[6], uint16_t *vid)
{
    uint32_t device = sf_find_gid(sv_lib.fabric, attr->grh.dgid.raw, NULL);

    (void)context;
    if (device == SF_NO_DEVICE) {
        errno = EHOSTUNREACH;
        return -1;
    }
    memcpy(mac, sv_lib.fabric->model.topology.devices[device].mac, 6);
    if (vid)
        *vid = 0xffff;
    return 0;
}

/* ---- Structures of the kernel's connection manager, which librdmacm uses ----------------------------------------- */
SV_PUBLIC void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from);
SV_PUBLIC void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from);
SV_PUBLIC void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from);
SV_PUBLIC void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *to, struct ibv_sa_path_rec *from);

void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from)
{
    memset(to, 0, sizeof *to);
    memcpy(to->grh.dgid.raw, from->grh.dgid, sizeof to->grh.dgid.raw);
    to->grh.flow_label = from->grh.flow_label;
    to->grh.sgid_index = from->grh.sgid_index;
    to->grh.hop_limit = from->grh.hop_limit;
    to->grh.traffic_class = from->grh.traffic_class;
    to->dlid = from->dlid;
    to->sl = from->sl;
    to->src_path_bits = from->src_path_bits;
    to->static_rate = from->static_rate;
    to->is_global = from->is_global;
    to->port_num = from->port_num;
}

void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from)
{
    memset(to, 0, sizeof *to);
    to->qp_state = (enum ibv_qp_state)from->qp_state;
    to->cur_qp_state = (enum ibv_qp_state)from->cur_qp_state;
    to->path_mtu = (enum ibv_mtu)from->path_mtu;
    to->path_mig_state = (enum ibv_mig_state)from->path_mig_state;
    to->qkey = from->qkey;
    to->rq_psn = from->rq_psn;
    to->sq_psn = from->sq_psn;
    to->dest_qp_num = from->dest_qp_num;
    to->qp_access_flags = from->qp_access_flags;
    to->cap.max_send_wr = from->max_send_wr;
    to->cap.max_recv_wr = from->max_recv_wr;
    to->cap.max_send_sge = from->max_send_sge;
    to->cap.max_recv_sge = from->max_recv_sge;
    to->cap.max_inline_data = from->max_inline_data;
    ibv_copy_ah_attr_from_kern(&to->ah_attr, &from->ah_attr);
    ibv_copy_ah_attr_from_kern(&to->alt_ah_attr, &from->alt_ah_attr);
    to->pkey_index = from->pkey_index;
    to->alt_pkey_index = from->alt_pkey_index;
    to->en_sqd_async_notify = from->en_sqd_async_notify;
    to->sq_draining = from->sq_draining;
    to->max_rd_atomic = from->max_rd_atomic;
    to->max_dest_rd_atomic = from->max_dest_rd_atomic;
    to->min_rnr_timer = from->min_rnr_timer;
    to->port_num = from->port_num;
    to->timeout = from->timeout;
    to->retry_cnt = from->retry_cnt;
    to->rnr_retry = from->rnr_retry;
    to->alt_port_num = from->alt_port_num;
    to->alt_timeout = from->alt_timeout;
}

#define COPY_PATH(to, from)                                                  \
    do {                                                                     \
        memset(to, 0, sizeof *(to));                                         \
        memcpy(&(to)->dgid, &(from)->dgid, 16);                              \
        memcpy(&(to)->sgid, &(from)->sgid, 16);                              \
        (to)->dlid = (from)->dlid;                                           \
        (to)->slid = (from)->slid;                                           \
        (to)->flow_label = (from)->flow_label;                               \
        (to)->hop_limit = (from)->hop_limit;                                 \
        (to)->traffic_class = (from)->traffic_class;                         \
        (to)->numb_path = (from)->numb_path;                                 \
        (to)->pkey = (from)->pkey;                                           \
        (to)->sl = (from)->sl;                                               \
        (to)->mtu_selector = (from)->mtu_selector;                           \
        (to)->rate_selector = (from)->rate_selector;                         \
        (to)->rate = (from)->rate;                                           \
        (to)->packet_life_time_selector = (from)->packet_life_time_selector; \
        (to)->packet_life_time = (from)->packet_life_time;                   \
        (to)->preference = (from)->preference;                               \
    } while (0)

void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from)
{
    COPY_PATH(to, from);
    to->raw_traffic = (int)from->raw_traffic;
    to->reversible = (int)from->reversible;
    to->mtu = (uint8_t)from->mtu;
}

void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *to, struct ibv_sa_path_rec *from)
{
    COPY_PATH(to, from);
    to->raw_traffic = (uint32_t)from->raw_traffic;
    to->reversible = (uint32_t)from->reversible;
    to->mtu = from->mtu;
}

/* ---- Fork: memory is not pinned, so there is nothing to do ---- */
SV_PUBLIC int ibv_dontfork_range(void *base, size_t size);
SV_PUBLIC int ibv_dofork_range(void *base, size_t size);

SV_PUBLIC int ibv_fork_init(void)
{
    return 0;
}

SV_PUBLIC enum ibv_fork_status ibv_is_fork_initialized(void)
{
    return IBV_FORK_UNNEEDED;
}

int ibv_dontfork_range(void *base, size_t size)
{
    (void)base;
    (void)size;
    return 0;
}

int ibv_dofork_range(void *base, size_t size)
{
    (void)base;
    (void)size;
    return 0;
}
