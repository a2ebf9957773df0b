/* SPDX-License-Identifier: MIT
 *
 * weft topo --matrix: prints MLX's hostfile, a list of hosts. Each host has a row of the device matrix: for every other host, the device
 * that is connected to that host, or null. Both ends of a link list their cables in the same order, so the first devices of both belong to
 * the same cable.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/topo.h"
#include "cluster/cluster.h"

static const struct topo_link *topo_matrix_link_of(const struct topo *t, uint32_t from, uint32_t to)
{
    return &t->links[(uint64_t)from * t->size + to];
}

/* Length of the name of the first RDMA device that connects a node directly to another node. Returns 0 if there is no such device. */
static size_t device_of(const struct topo *t, uint32_t from, uint32_t to)
{
    const weft_link_stats *there = &topo_matrix_link_of(t, from, to)->stats, *back = &topo_matrix_link_of(t, to, from)->stats;
    bool device = from != to && there->via == to && back->via == from && strcmp(there->transport, "ofi") != 0;
    return device ? strcspn(there->devices, ",") : 0;
}

static bool several(const struct topo *t, uint32_t from, uint32_t to)
{
    return device_of(t, from, to) && strchr(topo_matrix_link_of(t, from, to)->stats.devices, ',');
}

/* Check that there is a device matrix, and that both ends of each pair agree. Prints which pairs have several devices. */
static int topo_matrix_look(const struct topo *t)
{
    uint32_t pairs = 0, a = 0, b = 0;
    bool any = false;
    for (uint32_t i = 0; i < t->size; i++)
        for (uint32_t k = i + 1; k < t->size; k++) {
            const weft_link_stats *there = &topo_matrix_link_of(t, i, k)->stats, *back = &topo_matrix_link_of(t, k, i)->stats;
            if (there->cables != back->cables || !device_of(t, i, k) != !device_of(t, k, i))
                return cli_error(
                    "topo",
                    "a cable between nodes %u and %u was plugged in or unplugged during the measurement, so there is no matrix; try again",
                    i, k);
            any = any || device_of(t, i, k);
            if ((several(t, i, k) || several(t, k, i)) && pairs++ == 0) {
                a = i;
                b = k;
            }
        }
    if (!any)
        return cli_error("topo", "no RDMA device connects one node to another, so there is no matrix; `weft doctor` finds problems of "
                                 "devices");
    if (pairs)
        fprintf(stderr,
                "weft topo: several devices connect the nodes of %u pair%s, first nodes %u (%s) and %u (%s); MLX's hostfile has one device "
                "for a "
                "pair, so the first is used\n",
                pairs, pairs == 1 ? "" : "s", a, topo_matrix_link_of(t, a, b)->stats.devices, b,
                topo_matrix_link_of(t, b, a)->stats.devices);
    return 0;
}

/* IP address of a node's host, if known: for node 0 the address in WEFT_COORD, to which MLX's processes connect. If WEFT_COORD is a Unix
 * socket, all nodes are on this host. */
static json_t *address(uint32_t node)
{
    char text[128];
    const char *coord = getenv("WEFT_COORD");
    if (!coord || strncmp(coord, "unix:", 5) == 0)
        return json_string("127.0.0.1");
    const char *colon = strrchr(coord, ':');
    size_t n = colon ? (size_t)(colon - coord) : 0;
    if (node > 0 || n == 0 || n >= sizeof text)
        return NULL;
    bool bare = coord[0] == '[' && coord[n - 1] == ']'; /* remove the brackets, as of [fe80::1]:7654 */
    snprintf(text, sizeof text, "%.*s", (int)(bare ? n - 2 : n), bare ? coord + 1 : coord);
    return json_string(text);
}

static json_t *host_json(const struct topo *t, const struct cluster_hostfile *h, uint32_t node)
{
    const struct cluster_host *said = h ? &h->hosts[node] : NULL;
    json_t *ips = json_array(), *rdma = json_array();
    for (uint32_t i = 0; said && i < said->ip_count; i++)
        json_array_append_new(ips, json_string(said->ips[i]));
    json_t *own = json_array_size(ips) ? NULL : address(node);
    if (own)
        json_array_append_new(ips, own);
    for (uint32_t i = 0; i < t->size; i++) {
        size_t n = device_of(t, node, i);
        json_t *device = n ? json_stringn(topo_matrix_link_of(t, node, i)->stats.devices, n) : json_null();
        json_array_append_new(rdma, device ? device : json_string("?")); /* jansson refuses text of another host that is not UTF-8 */
    }
    json_t *ssh = json_string(said && said->ssh ? said->ssh : t->nodes[node].host[0] ? t->nodes[node].host : "localhost");
    return json_pack("{s:o, s:o, s:o}", "ssh", ssh ? ssh : json_string("?"), "ips", ips, "rdma", rdma);
}

int topo_matrix(const struct topo *t, const char *hostfile)
{
    struct cluster_hostfile *h = NULL;
    int status = topo_matrix_look(t);
    if (!status && hostfile && cluster_hostfile_read(&h, hostfile))
        status = cli_error("topo", "%s", base_error());
    if (!status && h && h->count != t->size)
        status = cli_error("topo", "hostfile %s was changed during the measurement: it has %u nodes now, and %u were measured; try again",
                           hostfile, h->count, t->size);
    for (uint32_t i = 0; i < t->size && !status; i++) {
        json_t *host = host_json(t, h, i);
        char *text = host ? json_dumps(host, 0) : NULL;
        if (text)
            printf("%s%s%s", i ? ",\n  " : "[\n  ", text, i + 1 < t->size ? "" : "\n]\n");
        else
            status = cli_error("topo", "no memory for the matrix" BASE_MEMORY_HINT);
        free(text);
        json_decref(host);
    }
    cluster_hostfile_free(h);
    return status ? status : cli_flush("topo");
}
