/* SPDX-License-Identifier: MIT
 *
 * Describes RDMA devices as text and as JSON: see device_words.h.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/device_words.h"
#include "cluster/cluster.h"

const char *cli_link_text(enum verbs_link link)
{
    switch (link) {
    case VERBS_INFINIBAND: return "InfiniBand";
    case VERBS_ETHERNET: return "Ethernet";
    case VERBS_THUNDERBOLT: return "Thunderbolt";
    default: return "other";
    }
}

const char *cli_port_state_text(enum ibv_port_state state)
{
    switch (state) {
    case IBV_PORT_DOWN: return "down";
    case IBV_PORT_INIT: return "init";
    case IBV_PORT_ARMED: return "armed";
    case IBV_PORT_ACTIVE: return "active";
    case IBV_PORT_ACTIVE_DEFER: return "deferred";
    default: return "unknown";
    }
}

const char *cli_gid_kind_text(enum verbs_gid_kind kind)
{
    switch (kind) {
    case VERBS_GID_IB: return "InfiniBand";
    case VERBS_GID_ROCE_V1: return "RoCE v1";
    case VERBS_GID_ROCE_V2: return "RoCE v2";
    default: return "";
    }
}

const char *cli_transport_of(const struct verbs_device *d)
{
    if (d->usable)
        return NULL;
    return d->traits.rc && d->traits.write && d->traits.read ? "rc" : d->traits.uc ? "tb" : NULL;
}

const char *cli_reason(const struct verbs_device *d)
{
    switch (d->usable) {
    case 0: return NULL;
    case -ENETDOWN: return "port-down";
    case -EADDRNOTAVAIL: return "no-gid";
    case -EOPNOTSUPP: return "no-connections";
    case -EACCES:
    case -EPERM: return "no-access";
    default: return "error";
    }
}

int cli_gid_index(int *out)
{
    struct cluster_setting_row rows[CLUSTER_SETTINGS_MAX];
    int count = cluster_settings_list(rows, CLUSTER_SETTINGS_MAX, NULL, false);
    if (count < 0)
        return count;
    *out = -1;
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].name, "gid_index") == 0)
            *out = atoi(rows[i].value); /* a valid number: cluster_settings_list() has checked it */
    return 0;
}

const char *cli_access_text(int access, char *out, size_t len)
{
    static const struct {
        int flag;
        const char *name;
    } flags[] = {{IBV_ACCESS_LOCAL_WRITE, "LOCAL_WRITE"},
                 {IBV_ACCESS_REMOTE_WRITE, "REMOTE_WRITE"},
                 {IBV_ACCESS_REMOTE_READ, "REMOTE_READ"},
                 {IBV_ACCESS_REMOTE_ATOMIC, "REMOTE_ATOMIC"}};
    out[0] = '\0';
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        size_t n = strlen(out);
        if (access & flags[i].flag)
            snprintf(out + n, len - n, "%s%s", n ? " " : "", flags[i].name);
    }
    return out;
}

static json_t *gid_json(const struct verbs_gid *g)
{
    char text[48];
    json_t *j = json_pack("{s:i, s:s}", "index", (int)g->index, "gid", verbs_gid_text(&g->raw, text, sizeof text));
    const char *kind = cli_gid_kind_text(g->kind);
    if (j)
        json_object_set_new(j, "kind", kind[0] ? json_string(kind) : json_null());
    return j;
}

static json_t *table_json(const struct verbs_device *d)
{
    static const union ibv_gid none;
    json_t *list = json_array();
    for (uint32_t i = 0; i < d->gid_count; i++)
        if (memcmp(&d->gids[i].raw, &none, sizeof none) != 0)
            json_array_append_new(list, gid_json(&d->gids[i]));
    return list;
}

static json_t *limit_json(int64_t used, uint32_t total)
{
    json_t *j = json_pack("{s:I}", "total", (json_int_t)total);
    if (j)
        json_object_set_new(j, "used", used < 0 ? json_null() : json_integer(used));
    return j;
}

static json_t *traits_json(const struct verbs_traits *t)
{
    char access[96], otherwise[96];
    return json_pack("{s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:s, "
                     "s:s, s:i}",
                     "rc", t->rc, "uc", t->uc, "ud", t->ud, "write", t->write, "read", t->read, "srq", t->srq, "atomics", t->atomics,
                     "atomics_with_cpu", t->atomics_with_cpu, "dmabuf", t->dmabuf, "acknowledges", t->acknowledges, "heap", t->heap,
                     "region_bytes", (json_int_t)t->region_bytes, "message_bytes", (json_int_t)t->message_bytes, "depth", (int)t->depth,
                     "depth_unit_bytes", (int)t->depth_unit_bytes, "cqe", (int)t->cqe, "sge", (int)t->sge, "inline_bytes",
                     (int)t->inline_bytes, "rd_atomic", (int)t->rd_atomic, "access", cli_access_text(t->access, access, sizeof access),
                     "access_else", cli_access_text(t->access_else, otherwise, sizeof otherwise), "mtu", 128 << t->mtu);
}

json_t *cli_device_json(const struct verbs_device *d)
{
    struct verbs_usage u;
    const char *transport = cli_transport_of(d);
    verbs_usage(d->name, &u);
    json_t *j = json_pack("{s:s, s:i, s:s, s:s, s:s, s:f, s:b}", "device", d->name, "port", (int)d->port, "interface", d->interface,
                          "state", cli_port_state_text(d->port_attr.state), "link", cli_link_text(d->traits.link), "gbits", d->gbits,
                          "usable", d->usable == 0);
    if (!j)
        return NULL;
    json_object_set_new(j, "transport", transport ? json_string(transport) : json_null());
    json_object_set_new(j, "reason", d->usable ? json_string(cli_reason(d)) : json_null());
    json_object_set_new(j, "why_not", d->usable ? json_string(d->why_not) : json_null());
    json_t *chosen = d->usable ? json_null() : gid_json(&d->chosen.gid);
    if (d->usable == 0)
        json_object_set_new(chosen, "why", json_string(d->chosen.why));
    json_object_set_new(j, "gid", chosen);
    json_object_set_new(j, "gids", table_json(d));
    json_t *limits = json_object();
    json_object_set_new(limits, "queue_pairs", limit_json(u.qps, d->traits.qps));
    json_object_set_new(limits, "protection_domains", limit_json(u.pds, d->traits.pds));
    json_object_set_new(limits, "regions", limit_json(u.regions, d->traits.regions));
    json_object_set_new(limits, "completion_queues", limit_json(u.cqs, d->traits.cqs));
    json_object_set_new(j, "limits", limits);
    json_object_set_new(j, "traits", traits_json(&d->traits));
    return j;
}
