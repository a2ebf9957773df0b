/* SPDX-License-Identifier: MIT
 *
 * Checks of devices: the list, opening, what queries say, and protection domains.
 */
#include <fcntl.h>
#include <unistd.h>

#include "conf.h"

static void list_counts(struct t *t, long arg)
{
    int n = -1, seen = 0;
    struct ibv_device **list = ibv_get_device_list(&n);

    (void)arg;
    want(t, list != NULL);
    while (list[seen])
        seen++;
    ibv_free_device_list(list);
    want_eq(t, n, seen);
    want(t, n >= 1);
}

static void list_names(struct t *t, long arg)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    int same = 0, empty = 0;

    (void)arg;
    want(t, list != NULL);
    for (int i = 0; list[i]; i++) {
        empty += !ibv_get_device_name(list[i]) || !ibv_get_device_name(list[i])[0];
        for (int j = 0; j < i; j++)
            same += !strcmp(ibv_get_device_name(list[i]), ibv_get_device_name(list[j]));
    }
    ibv_free_device_list(list);
    want_eq(t, same, 0);
    want_eq(t, empty, 0);
}

static void list_stays(struct t *t, long arg)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    (void)arg;
    want(t, list && list[0]);
    struct ibv_context *ctx = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    want(t, ctx != NULL);
    /* An open device stays valid after its device list was freed. */
    want(t, ibv_get_device_name(ctx->device)[0] != 0);
    want_ok(t, ibv_close_device(ctx));
}

static void guid(struct t *t, long arg)
{
    (void)arg;
    want(t, ibv_get_device_guid(t->ctx->device) == t->attr.node_guid);
    want(t, t->attr.node_guid != 0);
}

static void device_index(struct t *t, long arg)
{
    (void)arg;
    want(t, ibv_get_device_index(t->ctx->device) >= 0);
}

static void open_twice(struct t *t, long arg)
{
    struct ibv_context *other = ibv_open_device(t->ctx->device);

    (void)arg;
    want(t, other != NULL);
    want(t, other != t->ctx);
    want(t, other->async_fd != t->ctx->async_fd);
    want_ok(t, ibv_close_device(other));
}

static void open_many(struct t *t, long arg)
{
    (void)arg;
    for (int i = 0; i < 20; i++) {
        struct ibv_context *other = ibv_open_device(t->ctx->device);

        want(t, other != NULL);
        want_ok(t, ibv_close_device(other));
    }
}

static void context_fields(struct t *t, long arg)
{
    (void)arg;
    want(t, t->ctx->num_comp_vectors >= 1);
    want(t, fcntl(t->ctx->async_fd, F_GETFD) >= 0);
    want_eq(t, fcntl(t->ctx->cmd_fd, F_GETFD), FD_CLOEXEC);
    want(t, t->ctx->device->transport_type >= IBV_TRANSPORT_IB);
    want(t, t->ctx->device->node_type == IBV_NODE_CA || t->ctx->device->node_type == IBV_NODE_RNIC);
}

static void no_event(struct t *t, long arg)
{
    struct ibv_async_event event;
    int flags = fcntl(t->ctx->async_fd, F_GETFL);

    (void)arg;
    want(t, fcntl(t->ctx->async_fd, F_SETFL, flags | O_NONBLOCK) == 0);
    errno = 0;
    int ret = ibv_get_async_event(t->ctx, &event), err = errno;
    fcntl(t->ctx->async_fd, F_SETFL, flags);
    want_eq(t, ret, -1);
    want_eq(t, err, EAGAIN);
}

static void query_device(struct t *t, long arg)
{
    struct ibv_device_attr *a = &t->attr;

    (void)arg;
    want(t, a->max_qp > 0 && a->max_qp_wr > 0 && a->max_sge > 0);
    want(t, a->max_cq > 0 && a->max_cqe > 0);
    want(t, a->max_mr > 0 && a->max_mr_size > 0 && a->max_pd > 0);
    want(t, a->phys_port_cnt >= 1);
    want(t, a->max_pkeys >= 1);
    want(t, memchr(a->fw_ver, 0, sizeof a->fw_ver) != NULL);
}

static void query_device_ex(struct t *t, long arg)
{
    struct ibv_device_attr_ex ex;

    (void)arg;
    memset(&ex, 0xee, sizeof ex);
    want_ok(t, ibv_query_device_ex(t->ctx, NULL, &ex));
    /* Compare only the bytes up to the last member, because padding follows. */
    want_eq(t, memcmp(&ex.orig_attr, &t->attr, offsetof(struct ibv_device_attr, phys_port_cnt) + 1), 0);
    want_eq(t, ex.comp_mask, 0);
    want_eq(t, ex.phys_port_cnt_ex, t->attr.phys_port_cnt);
}

static void query_device_ex_input(struct t *t, long arg)
{
    struct ibv_device_attr_ex ex;
    struct ibv_query_device_ex_input in = {.comp_mask = 1};

    (void)arg;
    want_ret(t, ibv_query_device_ex(t->ctx, &in, &ex), EINVAL);
}

static void query_port(struct t *t, long arg)
{
    struct ibv_port_attr *p = &t->port_attr;

    (void)arg;
    want_eq(t, p->state, IBV_PORT_ACTIVE);
    want(t, p->active_mtu >= IBV_MTU_256 && p->active_mtu <= p->max_mtu);
    want(t, p->gid_tbl_len >= 1);
    want(t, p->pkey_tbl_len >= 1);
    want(t, p->max_msg_sz >= 1024);
    want(t, p->link_layer == IBV_LINK_LAYER_ETHERNET || p->link_layer == IBV_LINK_LAYER_INFINIBAND);
    want_eq(t, p->phys_state, 5);
}

static void query_port_wrong(struct t *t, long arg)
{
    struct ibv_port_attr p;

    want_ret(t, ibv_query_port(t->ctx, (uint8_t)(arg ? arg : t->attr.phys_port_cnt + 1), &p), EINVAL);
}

static void query_port_zero(struct t *t, long arg)
{
    struct ibv_port_attr p;

    (void)arg;
    want_ret(t, ibv_query_port(t->ctx, 0, &p), EINVAL);
}

static void gid_first(struct t *t, long arg)
{
    static const union ibv_gid none;
    union ibv_gid gid;

    (void)arg;
    want_ok(t, ibv_query_gid(t->ctx, t->port, 0, &gid));
    want(t, memcmp(&gid, &none, sizeof gid) != 0);
}

static void gid_range(struct t *t, long arg)
{
    union ibv_gid gid;

    want_eq(t, ibv_query_gid(t->ctx, t->port, (int)(arg ? arg : t->port_attr.gid_tbl_len), &gid), -1);
}

static void gid_port(struct t *t, long arg)
{
    union ibv_gid gid;

    (void)arg;
    want_eq(t, ibv_query_gid(t->ctx, (uint8_t)(t->attr.phys_port_cnt + 1), 0, &gid), -1);
}

static void gid_ex(struct t *t, long arg)
{
    struct ibv_gid_entry entry;

    (void)arg;
    memset(&entry, 0xee, sizeof entry);
    want_ok(t, ibv_query_gid_ex(t->ctx, t->port, t->gid_index, &entry, 0));
    want_eq(t, memcmp(&entry.gid, &t->gid, sizeof t->gid), 0);
    want_eq(t, entry.gid_index, t->gid_index);
    want_eq(t, entry.port_num, t->port);
    want(t, entry.gid_type <= IBV_GID_TYPE_ROCE_V2);
}

static void gid_ex_range(struct t *t, long arg)
{
    struct ibv_gid_entry entry;

    (void)arg;
    want_ret(t, ibv_query_gid_ex(t->ctx, t->port, (uint32_t)t->port_attr.gid_tbl_len, &entry, 0), EINVAL);
}

static void gid_ex_flags(struct t *t, long arg)
{
    struct ibv_gid_entry entry;

    (void)arg;
    want_ret(t, ibv_query_gid_ex(t->ctx, t->port, 0, &entry, 1), EINVAL);
}

static void gid_table(struct t *t, long arg)
{
    struct ibv_gid_entry entries[64];
    ssize_t n = ibv_query_gid_table(t->ctx, entries, 64, 0);
    bool found = false;

    (void)arg;
    want(t, n >= 1);
    for (ssize_t i = 0; i < n; i++) {
        union ibv_gid gid;

        want_ok(t, ibv_query_gid(t->ctx, (uint8_t)entries[i].port_num, (int)entries[i].gid_index, &gid));
        want_eq(t, memcmp(&gid, &entries[i].gid, sizeof gid), 0);
        found |= entries[i].gid_index == t->gid_index;
    }
    want(t, found);
}

static void gid_table_short(struct t *t, long arg)
{
    struct ibv_gid_entry entries[64];

    (void)arg;
    if (ibv_query_gid_table(t->ctx, entries, 64, 0) < 2)
        skip(t, "the device has fewer than two GIDs");
    want_eq(t, ibv_query_gid_table(t->ctx, entries, 1, 0), -EINVAL);
}

static void pkey(struct t *t, long arg)
{
    __be16 key = 0;

    (void)arg;
    want_ok(t, ibv_query_pkey(t->ctx, t->port, 0, &key));
    want_eq(t, key, 0xffff);
    want_eq(t, ibv_get_pkey_index(t->ctx, t->port, key), 0);
}

static void pkey_range(struct t *t, long arg)
{
    __be16 key;

    want_eq(t, ibv_query_pkey(t->ctx, t->port, (int)(arg ? arg : t->port_attr.pkey_tbl_len), &key), -1);
}

static void pkey_unknown(struct t *t, long arg)
{
    (void)arg;
    want_eq(t, ibv_get_pkey_index(t->ctx, t->port, 0x3412), -1);
}

static void rt_values(struct t *t, long arg)
{
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    int ret = ibv_query_rt_values_ex(t->ctx, &values);

    (void)arg;
    if (ret == EOPNOTSUPP)
        skip(t, "the device has no clock");
    want_eq(t, ret, 0);
}

static void strings(struct t *t, long arg)
{
    (void)arg;
    for (int s = IBV_WC_SUCCESS; s <= IBV_WC_TM_RNDV_INCOMPLETE; s++) {
        want(t, ibv_wc_status_str((enum ibv_wc_status)s)[0] != 0);
        want(t, strcmp(ibv_wc_status_str((enum ibv_wc_status)s), "unknown") != 0);
    }
    want(t, strcmp(ibv_wc_status_str((enum ibv_wc_status)1000), "unknown") == 0);
    for (int e = IBV_EVENT_CQ_ERR; e <= IBV_EVENT_WQ_FATAL; e++)
        want(t, strcmp(ibv_event_type_str((enum ibv_event_type)e), "unknown") != 0);
    want(t, strcmp(ibv_event_type_str((enum ibv_event_type)1000), "unknown") == 0);
    want(t, strcmp(ibv_port_state_str(IBV_PORT_ACTIVE), ibv_port_state_str(IBV_PORT_DOWN)) != 0);
    want(t, strcmp(ibv_node_type_str(IBV_NODE_CA), ibv_node_type_str(IBV_NODE_RNIC)) != 0);
}

static void rates(struct t *t, long arg)
{
    (void)arg;
    want_eq(t, ibv_rate_to_mult(IBV_RATE_10_GBPS), 4);
    want_eq(t, mult_to_ibv_rate(4), IBV_RATE_10_GBPS);
    want_eq(t, ibv_rate_to_mult((enum ibv_rate)200), -1);
    want_eq(t, ibv_rate_to_mbps(IBV_RATE_100_GBPS), 103125);
    want_eq(t, mbps_to_ibv_rate(103125), IBV_RATE_100_GBPS);
    want_eq(t, ibv_rate_to_mbps((enum ibv_rate)200), -1);
}

/* ---- Protection domains */

static void pd_two(struct t *t, long arg)
{
    struct ibv_pd *a = pd_new(t), *b = pd_new(t);

    (void)arg;
    want(t, a != b);
    want(t, a->context == t->ctx && b->context == t->ctx);
    drop(t, a);
    drop(t, b);
}

static void pd_many(struct t *t, long arg)
{
    (void)arg;
    for (int i = 0; i < 200; i++)
        drop(t, pd_new(t));
}

static void pd_busy_mr(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_mr *mr = mr_new(t, pd, mem_new(t, 4096), 4096, IBV_ACCESS_LOCAL_WRITE);

    (void)arg;
    want_ret(t, ibv_dealloc_pd(pd), EBUSY);
    drop(t, mr);
    drop(t, pd);
}

static void pd_busy_qp(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_qp *qp = qp_simple(t, pd, cq_new(t, 8, NULL), IBV_QPT_RC);

    (void)arg;
    want_ret(t, ibv_dealloc_pd(pd), EBUSY);
    drop(t, qp);
    drop(t, pd);
}

static void pd_busy_srq(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_srq *srq = srq_new(t, pd, 4);

    (void)arg;
    want_ret(t, ibv_dealloc_pd(pd), EBUSY);
    drop(t, srq);
    drop(t, pd);
}

static void pd_busy_ah(struct t *t, long arg)
{
    struct ibv_pd *pd = pd_new(t);
    struct ibv_ah *ah = ah_new(t, pd);

    (void)arg;
    want_ret(t, ibv_dealloc_pd(pd), EBUSY);
    drop(t, ah);
    drop(t, pd);
}

const struct check device_checks[] = {
    {"device.list.count", list_counts, 0, 0},
    {"device.list.names", list_names, 0, 0},
    {"device.list.freed_while_open", list_stays, 0, 0},
    {"device.guid", guid, 0, 0},
    {"device.index", device_index, 0, 0},
    {"device.open.twice", open_twice, 0, 0},
    {"device.open.many", open_many, 0, 0},
    {"device.context", context_fields, 0, 0},
    {"device.async.nonblocking", no_event, 0, 0},
    {"device.query", query_device, 0, 0},
    {"device.query_ex", query_device_ex, 0, 0},
    {"device.query_ex.unknown_input", query_device_ex_input, 0, 0},
    {"device.rt_values", rt_values, 0, 0},
    {"device.strings", strings, 0, 0},
    {"device.rates", rates, 0, 0},
    {"port.query", query_port, 0, 0},
    {"port.query.zero", query_port_zero, 0, 0},
    {"port.query.beyond", query_port_wrong, 0, 0},
    {"port.query.255", query_port_wrong, 255, 0},
    {"gid.first", gid_first, 0, 0},
    {"gid.beyond", gid_range, 0, 0},
    {"gid.negative", gid_range, -1, 0},
    {"gid.wrong_port", gid_port, 0, 0},
    {"gid.ex", gid_ex, 0, 0},
    {"gid.ex.beyond", gid_ex_range, 0, 0},
    {"gid.ex.unknown_flags", gid_ex_flags, 0, 0},
    {"gid.table", gid_table, 0, 0},
    {"gid.table.too_short", gid_table_short, 0, 0},
    {"pkey.first", pkey, 0, 0},
    {"pkey.beyond", pkey_range, 0, 0},
    {"pkey.negative", pkey_range, -1, 0},
    {"pkey.unknown", pkey_unknown, 0, 0},
    {"pd.two", pd_two, 0, 0},
    {"pd.again", pd_many, 0, 0},
    {"pd.busy.mr", pd_busy_mr, 0, 0},
    {"pd.busy.qp", pd_busy_qp, 0, 0},
    {"pd.busy.srq", pd_busy_srq, 0, NEED_SRQ},
    {"pd.busy.ah", pd_busy_ah, 0, NEED_UD},
    {0},
};
