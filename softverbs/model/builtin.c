/* SPDX-License-Identifier: MIT
 *
 * The topologies that need no file: switch N, mesh N, ring N, chain N.
 *
 * Interfaces are en2, en3, ... as on a Mac, where en0 and en1 are Ethernet and Wi-Fi. On a switch each host has en2, with an address of
 * 192.168/16. The ends of a cable have addresses of 169.254/16, like two Macs without configuration: cable C (from 0) has 169.254.C+1.1 and
 * .2.
 *
 * mesh N: every two hosts have a cable. If N is even, both ends of a cable are interfaces of the same name, and host 0 reaches host J over
 * en(J+1). For odd N this is impossible, so host I reaches host I+K (mod N) over en(K+1).
 * ring N: en2 leads to the next host's en3. Two hosts share one cable, from en2 to en2.
 * chain N: en2 of each host except the first leads to the host before, and its last interface leads to en2 of the host after.
 */
#include "build.h"
#include "input.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MESH_MAX = 7, RING_MAX = SV_HOSTS }; /* a Mac has at most six ports */

static void add_host(struct sv_topology *t, unsigned ports)
{
    unsigned h = t->host_count++;
    struct sv_host_model *host = &t->hosts[h];
    snprintf(host->name, sizeof host->name, "%u", h);
    host->first_device = (uint16_t)t->device_count;
    host->device_count = (uint16_t)ports;
    for (unsigned port = 0; port < ports; port++) {
        struct sv_device_model *d = &t->devices[t->device_count++];
        d->host = (uint16_t)h;
        snprintf(d->interface, sizeof d->interface, "en%u", port + 2);
        /* 0x36: locally administered, as on a Mac's ports */
        const uint8_t mac[6] = {0x36, 's', 'v', (uint8_t)(h >> 8), (uint8_t)h, (uint8_t)port};
        memcpy(d->mac, mac, 6);
        d->cable = SV_NO_CABLE;
    }
}

static void add_hosts(struct sv_topology *t, unsigned hosts, unsigned ports)
{
    for (unsigned h = 0; h < hosts; h++)
        add_host(t, ports);
}

static bool builtin_address(struct sv_topology *t, uint32_t device, uint8_t a, uint8_t b, unsigned c, unsigned d,
                            const struct sv_profile *p)
{
    const struct sv_addresses addresses = {.v4_count = 1, .v4 = {{a, b, (uint8_t)c, (uint8_t)d}}};
    struct sv_device_model *m = &t->devices[device];
    m->guid = sv_eui64(m->mac);
    m->port_up = 1;
    return sv_gids_derive(m, &addresses, p) && sv_device_name(p, device - t->hosts[m->host].first_device, m->interface, m->name);
}

static bool builtin_cable(struct sv_topology *t, unsigned number, uint32_t from, uint32_t to, const struct sv_profile *p)
{
    unsigned net = 1 + number % 254, end = 1 + 2 * (number / 254);
    t->devices[from].cable = (int32_t)to;
    t->devices[to].cable = (int32_t)from;
    return builtin_address(t, from, 169, 254, net, end, p) && builtin_address(t, to, 169, 254, net, end + 1, p);
}

/* The port of host i to host j. For an even N, ports are like rounds of a tournament in which every two hosts meet once: host 0 meets host
 * j in round j - 1. */
static unsigned mesh_port(unsigned n, unsigned i, unsigned j)
{
    if (n % 2)
        return (j + n - i - 1) % n;
    unsigned round = i == n - 1 ? 2 * j : j == n - 1 ? 2 * i : i + j;
    return (round + n - 2) % (n - 1);
}

static bool build_switch(struct sv_topology *t, unsigned n, const struct sv_profile *p)
{
    bool fits = true;
    add_hosts(t, n, 1);
    for (unsigned h = 0; h < n && fits; h++) {
        t->devices[h].cable = SV_SWITCH;
        fits = builtin_address(t, h, 192, 168, h / 254, h % 254 + 1, p);
    }
    return fits;
}

static bool build_mesh(struct sv_topology *t, unsigned n, const struct sv_profile *p)
{
    bool fits = true;
    unsigned ports = n - 1, number = 0;
    add_hosts(t, n, ports);
    for (unsigned i = 0; i < n; i++)
        for (unsigned j = i + 1; j < n && fits; j++)
            fits = builtin_cable(t, number++, i * ports + mesh_port(n, i, j), j * ports + mesh_port(n, j, i), p);
    return fits;
}

static bool build_ring(struct sv_topology *t, unsigned n, const struct sv_profile *p)
{
    bool fits = true;
    if (n == 2)
        return build_mesh(t, n, p);
    add_hosts(t, n, 2);
    for (unsigned h = 0; h < n && fits; h++)
        fits = builtin_cable(t, h, 2 * h, (h + 1) % n * 2 + 1, p);
    return fits;
}

/* The first and the last host have one port, the others two. So if ports are numbered in order, cable C joins ports 2C and 2C + 1. */
static bool build_chain(struct sv_topology *t, unsigned n, const struct sv_profile *p)
{
    bool fits = true;
    for (unsigned h = 0; h < n; h++)
        add_host(t, h == 0 || h == n - 1 ? 1 : 2);
    for (unsigned h = 0; h + 1 < n && fits; h++)
        fits = builtin_cable(t, h, 2 * h, 2 * h + 1, p);
    return fits;
}

static const struct {
    const char *name, *what;
    unsigned least, most;
    bool (*build)(struct sv_topology *, unsigned, const struct sv_profile *);
} kinds[] = {
    {"switch", "hosts on one switch", 1, SV_HOSTS, build_switch},
    {"mesh", "hosts with a cable between any two", 2, MESH_MAX, build_mesh},
    {"ring", "hosts with a cable to the next and the one before", 2, RING_MAX, build_ring},
    {"chain", "hosts with a cable from each to the next", 2, SV_HOSTS, build_chain},
};

int sv_topology_builtin(int words, const char *const *word, const struct sv_profile *p, struct sv_topology *t, struct sv_why *why)
{
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        if (strcmp(word[0], kinds[k].name) != 0)
            continue;
        unsigned n = 0;
        if (words > 2)
            return sv_fail(why, EINVAL, "%s %.20s %.20s: too many words; %s N has one number", kinds[k].name, word[1], word[2],
                           kinds[k].name);
        size_t digits = words == 2 ? strspn(word[1], "0123456789") : 0;
        if (digits > 0 && digits < 8 && !word[1][digits])
            sscanf(word[1], "%u", &n);
        if (n < kinds[k].least || n > kinds[k].most)
            return sv_fail(why, EINVAL, "%s%s%.20s: %s N is N %s; N is a number from %u to %u", kinds[k].name, words > 1 ? " " : "",
                           words > 1 ? word[1] : "", kinds[k].name, kinds[k].what, kinds[k].least, kinds[k].most);
        memset(t, 0, sizeof *t);
        snprintf(t->name, sizeof t->name, "%s %u", kinds[k].name, n);
        if (kinds[k].build(t, n, p))
            return sv_topology_check(t, t->name, why);
        memset(t, 0, sizeof *t);
        return sv_fail(why, EINVAL, "%s %u: profile %s makes names of devices that are longer than %d characters", kinds[k].name, n,
                       p->name, SV_NAME - 1);
    }
    return -ENOENT;
}
