/* SPDX-License-Identifier: MIT
 *
 * `weft up`: the address at which a node lets others join (WEFT_GROW).
 */
#include <stdlib.h>
#include <string.h>

#include "cli/up.h"
#include "cluster/cluster.h"

const char *up_port_of(const char *address)
{
    const char *colon = strrchr(address, ':');
    return colon ? colon + 1 : "";
}

bool up_is_unix(const char *address)
{
    return strncmp(address, "unix:", 5) == 0;
}

bool up_is_any(const char *address)
{
    return strncmp(address, "0.0.0.0:", 8) == 0 || strncmp(address, "[::]:", 5) == 0;
}

int up_door_beside(char *door, size_t len, const char *coord, const char *other)
{
    char host[96];
    int port = atoi(up_port_of(coord)), rc = cluster_address_towards(other, host, sizeof host);
    if (!rc)
        snprintf(door, len, "%s:%d", host, port < 65535 ? port + 1 : port - 1);
    return rc;
}

int up_own_door(struct up *u, const char *coord, const char *other)
{
    char host[96], set[sizeof u->door];
    const char *given = getenv("WEFT_GROW");
    int rc = 0;
    snprintf(set, sizeof set, "%s", given ? given : "");
    if (!set[0]) {
        rc = up_door_beside(u->door, sizeof u->door, coord, other);
    } else if (up_is_any(set)) {
        rc = cluster_address_towards(other, host, sizeof host);
        snprintf(u->door, sizeof u->door, "%s:%s", host, up_port_of(set));
    } else {
        snprintf(u->door, sizeof u->door, "%s", set);
    }
    setenv("WEFT_GROW", u->door, 1);
    return rc;
}
