/* SPDX-License-Identifier: MIT
 *
 * Finds the device with a GID or LID, and whether messages can get from one device to another.
 */
#include "shared.h"

#include <string.h>
#include <time.h>

uint32_t sf_find_gid(const struct sf_fabric *f, const uint8_t raw[16], uint32_t *gid)
{
    const struct sv_topology *t = &f->model.topology;
    for (uint32_t d = 0; d < t->device_count && d < SV_DEVICES; d++)
        for (uint32_t g = 0; g < t->devices[d].gid_count && g < SV_GIDS; g++)
            if (memcmp(t->devices[d].gids[g].raw, raw, 16) == 0) {
                if (gid)
                    *gid = g;
                return d;
            }
    return SF_NO_DEVICE;
}

uint16_t sf_lid(const struct sf_fabric *f, uint32_t device)
{
    return f->model.profile.link_layer == SV_LINK_INFINIBAND ? (uint16_t)(f->model.profile.lid_base + device) : 0;
}

uint32_t sf_find_lid(const struct sf_fabric *f, uint16_t lid)
{
    const struct sv_model *m = &f->model;
    if (m->profile.link_layer != SV_LINK_INFINIBAND || lid < m->profile.lid_base)
        return SF_NO_DEVICE;
    uint32_t d = (uint32_t)lid - m->profile.lid_base;
    return d < m->topology.device_count && d < SV_DEVICES ? d : SF_NO_DEVICE;
}

static bool path_is_up(const struct sf_fabric *f, uint32_t d)
{
    return atomic_load_explicit(&f->devices[d].port_up, memory_order_relaxed) != 0 &&
           atomic_load_explicit(&f->devices[d].removed, memory_order_relaxed) == 0;
}

bool sf_reachable(const struct sf_fabric *f, uint32_t from, uint32_t to)
{
    const struct sv_topology *t = &f->model.topology;
    if (from >= t->device_count || to >= t->device_count || from >= SV_DEVICES || to >= SV_DEVICES)
        return false;
    if (!path_is_up(f, from) || !path_is_up(f, to))
        return false;
    int32_t cable = t->devices[from].cable;
    if (cable == SV_SWITCH)
        return t->devices[to].cable == SV_SWITCH;
    return cable >= 0 && (uint32_t)cable == to;
}

uint64_t sf_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
