/* SPDX-License-Identifier: MIT
 *
 * Checks a whole topology, whether it was built in or read from a file.
 */
#include "build.h"
#include "input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sv_place(const struct sv_topology *t, uint32_t device, char place[SV_PLACE])
{
    const struct sv_device_model *d = &t->devices[device];
    snprintf(place, SV_PLACE, "%.*s/%.*s", SV_NAME - 1, t->hosts[d->host].name, (int)sizeof d->interface - 1, d->interface);
    return place;
}

/* A value that must be unique, and the device that has it. */
struct claim {
    uint8_t what[16];
    uint32_t device;
};

static int by_what(const void *a, const void *b)
{
    return memcmp(a, b, sizeof((struct claim *)0)->what);
}

enum claimed { GIDS, MACS, GUIDS };

static size_t check_collect(const struct sv_topology *t, enum claimed kind, struct claim *claims)
{
    static const uint8_t none[16];
    size_t n = 0;
    for (uint32_t i = 0; i < t->device_count; i++) {
        const struct sv_device_model *d = &t->devices[i];
        for (unsigned g = 0; kind == GIDS && g < d->gid_count; g++) {
            if (memcmp(d->gids[g].raw, none, 16) == 0)
                continue; /* empty entries need not be unique */
            memcpy(claims[n].what, d->gids[g].raw, 16);
            claims[n++].device = i;
        }
        if (kind == MACS)
            memcpy(claims[n].what, d->mac, sizeof d->mac);
        if (kind == GUIDS)
            memcpy(claims[n].what, &d->guid, sizeof d->guid);
        if (kind != GIDS)
            claims[n++].device = i;
    }
    return n;
}

static int check_claims(const struct sv_topology *t, enum claimed kind, const char *origin, struct sv_why *why)
{
    struct claim *claims = calloc((size_t)SV_DEVICES * SV_GIDS, sizeof *claims);
    int rc = 0;
    if (!claims)
        return sv_fail(why, ENOMEM, "%s: no memory to check it; end other programs", origin);
    size_t n = check_collect(t, kind, claims);
    qsort(claims, n, sizeof *claims, by_what);
    for (size_t i = 1; i < n && !rc; i++) {
        char one[SV_PLACE], other[SV_PLACE], text[SV_ADDRESS_TEXT];
        if (by_what(&claims[i - 1], &claims[i]) != 0)
            continue;
        if (kind == GIDS)
            sv_gid_text(claims[i].what, text);
        else if (kind == MACS)
            sv_mac_text(claims[i].what, text);
        else
            sv_guid_text(t->devices[claims[i].device].guid, text);
        uint32_t a = claims[i - 1].device, b = claims[i].device;
        rc = sv_fail(why, EEXIST, "%s: %s %s is given both to %s and to %s; give each device a different one", origin,
                     kind == GIDS   ? "GID"
                     : kind == MACS ? "mac"
                                    : "guid",
                     text, sv_place(t, a < b ? a : b, one), sv_place(t, a < b ? b : a, other));
    }
    free(claims);
    return rc;
}

static int check_names(const struct sv_topology *t, const char *origin, struct sv_why *why)
{
    for (uint32_t h = 0; h < t->host_count; h++) {
        const struct sv_host_model *host = &t->hosts[h];
        for (uint32_t other = 0; other < h; other++)
            if (strcmp(host->name, t->hosts[other].name) == 0)
                return sv_fail(why, EEXIST, "%s: hosts %u and %u (from 0) are both named \"%s\"; give each host its own name", origin,
                               other, h, host->name);
        for (uint32_t i = host->first_device; i < (uint32_t)host->first_device + host->device_count; i++)
            for (uint32_t other = host->first_device; other < i; other++) {
                const struct sv_device_model *a = &t->devices[other], *b = &t->devices[i];
                if (strcmp(a->interface, b->interface) == 0)
                    return sv_fail(why, EEXIST, "%s: host \"%s\" has interface \"%s\" twice; give each interface of a host its own name",
                                   origin, host->name, a->interface);
                if (strcmp(a->name, b->name) == 0)
                    return sv_fail(why, EEXIST,
                                   "%s: host \"%s\" has two devices named \"%s\", of %s and of %s; give each device its own name", origin,
                                   host->name, a->name, a->interface, b->interface);
            }
    }
    return 0;
}

int sv_topology_check(struct sv_topology *t, const char *origin, struct sv_why *why)
{
    /* a copy, because `origin` may be the topology's name, which is cleared */
    char from[256];
    snprintf(from, sizeof from, "%s", origin);
    int rc = check_names(t, from, why);
    for (int kind = GIDS; kind <= GUIDS && !rc; kind++)
        rc = check_claims(t, (enum claimed)kind, from, why);
    if (rc)
        memset(t, 0, sizeof *t);
    return rc;
}
