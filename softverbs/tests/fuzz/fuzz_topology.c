/* SPDX-License-Identifier: MIT
 *
 * Any bytes as a topology: it is read, or refused with a message, and never crashes. A topology that was read has only valid indices, and
 * printing and reading it again gives the same topology.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct sv_topology t, again;
static struct sv_profile profile;

static void check(void)
{
    if (t.host_count < 1 || t.host_count > SV_HOSTS || t.device_count > SV_DEVICES)
        abort();
    uint32_t next = 0;
    for (uint32_t h = 0; h < t.host_count; h++) {
        if (t.hosts[h].first_device != next || !memchr(t.hosts[h].name, 0, SV_NAME))
            abort();
        next += t.hosts[h].device_count;
    }
    if (next != t.device_count)
        abort();
    for (uint32_t i = 0; i < t.device_count; i++) {
        const struct sv_device_model *d = &t.devices[i];
        if (d->host >= t.host_count || d->gid_count > SV_GIDS || d->port_up > 1 || !d->name[0] || !memchr(d->name, 0, SV_NAME))
            abort();
        if (d->cable < SV_NO_CABLE || d->cable >= (int32_t)t.device_count || d->cable == (int32_t)i)
            abort();
        if (d->cable >= 0 && (t.devices[d->cable].cable != (int32_t)i || t.devices[d->cable].port_up != d->port_up))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sv_why why = {""};
    if (!profile.name[0] && sv_profile_load("tb5-strict", &profile, &why))
        abort();
    int rc = sv_topology_parse((const char *)data, size, "fuzz", &profile, &t, &why);
    if (rc) {
        if (rc > 0 || strncmp(why.text, "fuzz:", 5) != 0)
            abort();
        return 0;
    }
    check();
    char *json = sv_topology_json(&t), *dot = sv_topology_dot(&t);
    if (!json || !dot || sv_topology_parse(json, strlen(json), "again", &profile, &again, &why) || memcmp(&t, &again, sizeof t) != 0)
        abort();
    free(json);
    free(dot);
    return 0;
}
