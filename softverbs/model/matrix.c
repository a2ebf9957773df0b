/* SPDX-License-Identifier: MIT
 *
 * Prints a topology as MLX's hostfile, a list of hosts. Each host has its row of the matrix of devices: for every host the device that
 * leads there, or null for itself and for hosts without a cable.
 *
 * For a pair of hosts, MLX uses one device at each. These must be the ends of one cable, so the host with the lower number chooses the
 * cable.
 */
#include "build.h"
#include "input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t end_of(const struct sv_topology *t, uint32_t host)
{
    return (uint32_t)t->hosts[host].first_device + t->hosts[host].device_count;
}

/* Returns a host's first device on the switch; -1: none. A device whose port is down at the start is chosen only if there is no other. */
static int32_t on_switch(const struct sv_topology *t, uint32_t host)
{
    for (int up = 1; up >= 0; up--)
        for (uint32_t i = t->hosts[host].first_device; i < end_of(t, host); i++)
            if (t->devices[i].cable == SV_SWITCH && t->devices[i].port_up >= up)
                return (int32_t)i;
    return -1;
}

/* Returns the number of cables from host `a` to host `b`. *first gets the first of these cables; a cable whose port is down at the start is
 * chosen only if there is no other. */
static uint32_t cable_between(const struct sv_topology *t, uint32_t a, uint32_t b, int32_t *first)
{
    uint32_t count = 0;
    *first = -1;
    for (int up = 1; up >= 0; up--)
        for (uint32_t i = t->hosts[a].first_device; i < end_of(t, a); i++) {
            int32_t other = t->devices[i].cable;
            if (other < 0 || t->devices[other].host != b || t->devices[i].port_up != up)
                continue;
            *first = count++ ? *first : (int32_t)i;
        }
    return count;
}

/* Fills [from][to] with the device of host `from` that leads to host `to`; -1: none. Returns whether there is such a device, or only one
 * host. */
static bool matrix_fill(const struct sv_topology *t, int32_t *devices, struct sv_several *several)
{
    uint32_t n = t->host_count;
    bool any = n == 1;
    *several = (struct sv_several){0};
    for (uint32_t a = 0; a < n; a++) {
        devices[a * n + a] = -1;
        for (uint32_t b = a + 1; b < n; b++) {
            int32_t here, there;
            uint32_t count = cable_between(t, a, b, &here);
            there = here >= 0 ? t->devices[here].cable : -1;
            if (count > 1 && several->pairs++ == 0) {
                several->a = a;
                several->b = b;
            }
            if (count == 0) {
                here = on_switch(t, a);
                there = on_switch(t, b);
                if (here < 0 || there < 0)
                    here = there = -1;
            }
            devices[a * n + b] = here;
            devices[b * n + a] = there;
            any = any || here >= 0;
        }
    }
    return any;
}

/* All hosts are on this machine, so their IP address is this machine's. */
static json_t *host_json(const struct sv_topology *t, uint32_t host, const int32_t *row)
{
    json_t *rdma = json_array();
    for (uint32_t i = 0; i < t->host_count; i++)
        json_array_append_new(rdma, row[i] < 0 ? json_null() : json_string(t->devices[row[i]].name));
    if (json_array_size(rdma) != t->host_count) {
        json_decref(rdma);
        return NULL;
    }
    return json_pack("{s:s, s:[s], s:o}", "ssh", t->hosts[host].name, "ips", "127.0.0.1", "rdma", rdma);
}

char *sv_topology_matrix(const struct sv_topology *t, struct sv_several *several)
{
    char *text = NULL;
    size_t bytes = 0;
    if (!sv_topology_sane(t)) {
        errno = EINVAL;
        return NULL;
    }
    int32_t *devices = calloc((size_t)t->host_count * t->host_count + 1, sizeof *devices);
    if (!devices)
        return NULL;
    if (!matrix_fill(t, devices, several)) {
        free(devices);
        errno = ENXIO;
        return NULL;
    }
    FILE *out = open_memstream(&text, &bytes);
    bool bad = !out;
    for (uint32_t h = 0; h < t->host_count && !bad; h++) {
        json_t *host = host_json(t, h, devices + (size_t)h * t->host_count);
        bad = fputs(h ? ",\n  " : "[\n  ", out) < 0 || !host || json_dumpf(host, out, 0);
        json_decref(host);
    }
    if (out) {
        bad = fputs("\n]\n", out) < 0 || bad;
        bad = fclose(out) || bad;
    }
    free(devices);
    if (!bad)
        return text;
    free(text);
    errno = ENOMEM;
    return NULL;
}
