/* SPDX-License-Identifier: MIT
 *
 * Reads a topology from JSON.
 *
 *   { "name": "two Macs",
 *     "hosts": [ { "name": "a", "devices": [ { "interface": "en2", "ipv4": "169.254.1.1" } ] },
 *                { "name": "b", "devices": [ { "interface": "en2", "ipv4": "169.254.1.2" } ] } ],
 *     "cables": [ { "from": "a/en2", "to": "b/en2" } ] }
 *
 * "switch": true, instead of cables, joins all devices that have no cable; an array such as [ "a/en2", "b/en2" ] joins only these. A host
 * may be given by its name alone (then it has en2), and a device by its interface alone. The keys of a device are: name, interface, mac,
 * guid, ipv4, ipv6 (one address or an array); instead of addresses gids, the whole table (each an address, or { "gid", "unreachable" });
 * and port ("up", "down").
 */
#include "build.h"
#include "input.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct sv_topology *t;
    const struct sv_profile *profile;
    const char *origin;
    struct sv_why *why;
};

/* Checks that an object has only known keys, so that a misspelt key is not ignored. */
static int check_keys(struct reader *r, const json_t *object, const char *where, const char *const *keys)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)object, name, value) {
        char all[128] = "";
        size_t n = 0;
        bool known = false;
        for (const char *const *k = keys; *k && !known; k++) {
            known = strcmp(*k, name) == 0;
            n += n < sizeof all ? (size_t)snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", *k) : 0;
        }
        if (!known)
            return sv_fail(r->why, EINVAL, "%s: %s has a key \"%.40s\"; it may have %s", r->origin, where, name, all);
    }
    return 0;
}

static int topology_wrong(struct reader *r, const char *where, const char *key, const json_t *value, const char *allowed)
{
    char found[SV_FOUND];
    return sv_fail(r->why, EINVAL, "%s: %s%s%s is %s; it must be %s", r->origin, where, key[0] ? "." : "", key,
                   value ? sv_found(value, found) : "missing", allowed);
}

static const char name_rule[] = "a string of letters, digits, - _ and ., at most 31, not starting with - or .";

static int read_name(struct reader *r, const json_t *value, const char *where, const char *key, char *name, size_t bytes)
{
    if (!json_is_string(value) || !sv_name_valid(json_string_value(value), bytes))
        return topology_wrong(r, where, key, value,
                              bytes == SV_NAME ? name_rule
                                               : "a string of letters, digits, - _ and ., at most 15, not starting with - or .");
    snprintf(name, bytes, "%s", json_string_value(value));
    return 0;
}

/* ---- Addresses ---- */

static int read_addresses(struct reader *r, const json_t *value, const char *where, int family, struct sv_addresses *a)
{
    const char *key = family == AF_INET ? "ipv4" : "ipv6";
    const char *allowed = family == AF_INET ? "an address as \"169.254.1.1\", or an array of at most 15"
                                            : "an address as \"fe80::1\" or \"fd00::1\", or an array of at most 15";
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n >= SV_GIDS)
        return topology_wrong(r, where, key, value, allowed);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(value) ? json_array_get(value, i) : value;
        uint8_t raw[16] = {0};
        if (!json_is_string(one) || inet_pton(family, json_string_value(one), raw) != 1)
            return topology_wrong(r, where, key, one, allowed);
        /* no interface has the unspecified address or a multicast address */
        static const uint8_t none[16];
        if (memcmp(raw, none, 16) == 0 || (family == AF_INET ? raw[0] >= 224 : raw[0] == 0xff))
            return topology_wrong(r, where, key, one, "an address that an interface can have");
        if (family == AF_INET)
            memcpy(a->v4[a->v4_count++], raw, 4);
        else
            memcpy(a->v6[a->v6_count++], raw, 16);
    }
    return 0;
}

static int read_gids(struct reader *r, const json_t *value, const char *where, struct sv_device_model *d)
{
    static const char *const keys[] = {"gid", "unreachable", NULL};
    if (!json_is_array(value) || json_array_size(value) > SV_GIDS)
        return topology_wrong(r, where, "gids", value, "an array of at most 16 addresses");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i), *text = one, *mark = NULL;
        struct sv_gid_model *g = &d->gids[i];
        if (json_is_object(one)) {
            int rc = check_keys(r, one, "an entry of gids", keys);
            if (rc)
                return rc;
            text = json_object_get(one, "gid");
            mark = json_object_get(one, "unreachable");
        }
        if (!json_is_string(text) || inet_pton(AF_INET6, json_string_value(text), g->raw) != 1 || (mark && !json_is_boolean(mark)))
            return topology_wrong(r, where, "gids[]", one,
                                  "as \"fe80::1\", \"::ffff:169.254.1.1\", \"::\" for an empty entry, or "
                                  "{ \"gid\": \"fe80::1\", \"unreachable\": true }");
        g->unreachable = json_is_true(mark);
    }
    d->gid_count = (uint16_t)json_array_size(value);
    return 0;
}

/* ---- Hosts and devices ---- */

static int read_identity(struct reader *r, const json_t *o, const char *where, struct sv_device_model *d, unsigned index)
{
    const json_t *mac = json_object_get(o, "mac"), *guid = json_object_get(o, "guid"), *name = json_object_get(o, "name");
    const uint8_t given[6] = {0x36, 's', 'v', (uint8_t)(d->host >> 8), (uint8_t)d->host, (uint8_t)index};
    memcpy(d->mac, given, 6);
    if (mac && (!json_is_string(mac) || !sv_mac_parse(json_string_value(mac), d->mac)))
        return topology_wrong(r, where, "mac", mac, "a unicast address such as \"36:74:d9:9d:cc:84\"");
    d->guid = sv_eui64(d->mac);
    if (guid && (!json_is_string(guid) || !sv_guid_parse(json_string_value(guid), &d->guid)))
        return topology_wrong(r, where, "guid", guid, "16 hexadecimal digits, not all 0, such as \"3474:d9ff:fe9d:cc84\"");
    if (name)
        return read_name(r, name, where, "name", d->name, sizeof d->name);
    if (sv_device_name(r->profile, index, d->interface, d->name))
        return 0;
    return sv_fail(r->why, EINVAL, "%s: %s: profile %s names it \"%s...\", which is longer than %d characters", r->origin, where,
                   r->profile->name, d->name, SV_NAME - 1);
}

static int read_device(struct reader *r, const json_t *value, unsigned index, uint32_t host)
{
    static const char *const keys[] = {"interface", "name", "mac", "guid", "ipv4", "ipv6", "gids", "port", NULL};
    struct sv_topology *t = r->t;
    char where[SV_NAME + 64];
    snprintf(where, sizeof where, "host %s: devices[%u]", t->hosts[host].name, index);
    if (t->device_count == SV_DEVICES)
        return sv_fail(r->why, E2BIG, "%s: %s is device %d of the file; a fabric has at most %d", r->origin, where, SV_DEVICES + 1,
                       SV_DEVICES);
    if (index == 256)
        return sv_fail(r->why, E2BIG, "%s: %s: a host has at most 256 devices", r->origin, where);
    struct sv_device_model *d = &t->devices[t->device_count];
    const bool short_form = json_is_string(value);
    d->host = (uint16_t)host;
    d->cable = SV_NO_CABLE;
    d->port_up = 2; /* 2: the file does not say */
    if (!short_form && !json_is_object(value))
        return topology_wrong(r, where, "", value, "an object, or the name of its interface");
    const json_t *o = short_form ? NULL : value;
    int rc = o ? check_keys(r, o, where, keys) : 0;
    if (!rc)
        rc = read_name(r, short_form ? value : json_object_get(o, "interface"), where, "interface", d->interface, sizeof d->interface);
    if (!rc)
        rc = read_identity(r, o, where, d, index);
    if (rc)
        return rc;

    struct sv_addresses addresses = {0};
    const json_t *v4 = json_object_get(o, "ipv4"), *v6 = json_object_get(o, "ipv6"), *gids = json_object_get(o, "gids");
    const json_t *port = json_object_get(o, "port");
    if (gids && (v4 || v6))
        return sv_fail(r->why, EINVAL, "%s: %s has gids, which is the whole table, and %s too; give only one of them", r->origin, where,
                       v4 ? "ipv4" : "ipv6");
    if (v4)
        rc = read_addresses(r, v4, where, AF_INET, &addresses);
    if (v6 && !rc)
        rc = read_addresses(r, v6, where, AF_INET6, &addresses);
    if (gids && !rc)
        rc = read_gids(r, gids, where, d);
    if (rc)
        return rc;
    if (!gids && !sv_gids_derive(d, &addresses, r->profile))
        return sv_fail(r->why, E2BIG, "%s: %s has more addresses than the %d entries of its GID table", r->origin, where, SV_GIDS);
    if (port) {
        const char *state = json_string_value(port);
        if (!state || (strcmp(state, "up") != 0 && strcmp(state, "down") != 0))
            return topology_wrong(r, where, "port", port, "\"up\" or \"down\"");
        d->port_up = strcmp(state, "up") == 0;
    }
    t->device_count++;
    t->hosts[host].device_count++;
    return 0;
}

static int read_host(struct reader *r, const json_t *value, size_t number)
{
    static const char *const keys[] = {"name", "devices", NULL};
    struct sv_topology *t = r->t;
    char where[32];
    snprintf(where, sizeof where, "hosts[%zu]", number);
    if (number == SV_HOSTS)
        return sv_fail(r->why, E2BIG, "%s: %s: a fabric has at most %d hosts", r->origin, where, SV_HOSTS);
    uint32_t host = t->host_count++;
    struct sv_host_model *h = &t->hosts[host];
    h->first_device = (uint16_t)t->device_count;
    if (json_is_string(value)) {
        json_t *interface = json_string("en2");
        int rc = read_name(r, value, where, "", h->name, sizeof h->name);
        if (!rc)
            rc = interface ? read_device(r, interface, 0, host) : sv_fail(r->why, ENOMEM, "%s: no memory; end other programs", r->origin);
        json_decref(interface);
        return rc;
    }
    if (!json_is_object(value))
        return topology_wrong(r, where, "", value, "an object, or the name of a host with one device");
    int rc = check_keys(r, value, where, keys);
    if (!rc)
        rc = read_name(r, json_object_get(value, "name"), where, "name", h->name, sizeof h->name);
    const json_t *devices = json_object_get(value, "devices");
    if (!rc && !json_is_array(devices))
        rc = topology_wrong(r, where, "devices", devices, "an array of devices (it may be empty)");
    for (size_t i = 0; !rc && i < json_array_size(devices); i++)
        rc = read_device(r, json_array_get(devices, i), (unsigned)i, host);
    return rc;
}

/* ---- Cables and the switch ---- */

/* Finds the device named "HOST/INTERFACE" or "HOST/DEVICE". */
static int read_place(struct reader *r, const json_t *value, const char *where, const char *key, uint32_t *device)
{
    const struct sv_topology *t = r->t;
    const char *text = json_string_value(value), *slash = text ? strchr(text, '/') : NULL;
    if (!slash)
        return topology_wrong(r, where, key, value, "a device, as \"HOST/INTERFACE\"");
    for (uint32_t h = 0; h < t->host_count; h++) {
        const struct sv_host_model *host = &t->hosts[h];
        if (strlen(host->name) != (size_t)(slash - text) || memcmp(host->name, text, (size_t)(slash - text)) != 0)
            continue;
        for (uint32_t i = host->first_device; i < (uint32_t)host->first_device + host->device_count; i++)
            if (strcmp(t->devices[i].interface, slash + 1) == 0 || strcmp(t->devices[i].name, slash + 1) == 0) {
                *device = i;
                return 0;
            }
        return sv_fail(r->why, EINVAL, "%s: %s.%s is \"%.60s\": host %s has no interface or device \"%.31s\"", r->origin, where, key, text,
                       host->name, slash + 1);
    }
    return sv_fail(r->why, EINVAL, "%s: %s.%s is \"%.60s\": there is no host \"%.*s\"", r->origin, where, key, text,
                   slash - text < 31 ? (int)(slash - text) : 31, text);
}

static int topology_claim(struct reader *r, uint32_t device, const char *where)
{
    char place[SV_PLACE], other[SV_PLACE];
    int32_t at = r->t->devices[device].cable;
    if (at == SV_NO_CABLE)
        return 0;
    return sv_fail(r->why, EEXIST, "%s: %s: %s already goes to %s; a device has one cable", r->origin, where, sv_place(r->t, device, place),
                   at == SV_SWITCH ? "the switch" : sv_place(r->t, (uint32_t)at, other));
}

static int read_cable(struct reader *r, const json_t *value, size_t number)
{
    static const char *const keys[] = {"from", "to", NULL};
    struct sv_device_model *devices = r->t->devices;
    uint32_t from = 0, to = 0;
    char where[32];
    snprintf(where, sizeof where, "cables[%zu]", number);
    if (!json_is_object(value))
        return topology_wrong(r, where, "", value, "{ \"from\": \"HOST/INTERFACE\", \"to\": \"HOST/INTERFACE\" }");
    int rc = check_keys(r, value, where, keys);
    if (!rc)
        rc = read_place(r, json_object_get(value, "from"), where, "from", &from);
    if (!rc)
        rc = read_place(r, json_object_get(value, "to"), where, "to", &to);
    if (!rc)
        rc = topology_claim(r, from, where);
    if (!rc)
        rc = topology_claim(r, to, where);
    if (rc)
        return rc;
    if (from == to) {
        char place[SV_PLACE];
        return sv_fail(r->why, EINVAL, "%s: %s goes from %s to itself", r->origin, where, sv_place(r->t, from, place));
    }
    devices[from].cable = (int32_t)to;
    devices[to].cable = (int32_t)from;
    return 0;
}

static int read_switch(struct reader *r, const json_t *value)
{
    struct sv_topology *t = r->t;
    if (value && !json_is_boolean(value) && !json_is_array(value))
        return topology_wrong(r, "switch", "", value, "true (all devices without a cable), or an array of \"HOST/INTERFACE\"");
    for (size_t i = 0; i < json_array_size(value); i++) {
        uint32_t device = 0;
        int rc = read_place(r, json_array_get(value, i), "switch", "place", &device);
        if (!rc)
            rc = topology_claim(r, device, "switch");
        if (rc)
            return rc;
        t->devices[device].cable = SV_SWITCH;
    }
    for (uint32_t i = 0; i < t->device_count; i++)
        if (json_is_true(value) && t->devices[i].cable == SV_NO_CABLE)
            t->devices[i].cable = SV_SWITCH;
    return 0;
}

/* Decides which ports are up: those with a cable, if neither end is set to "down". */
static int settle_ports(struct reader *r)
{
    struct sv_topology *t = r->t;
    for (uint32_t i = 0; i < t->device_count; i++) {
        struct sv_device_model *d = &t->devices[i];
        char place[SV_PLACE], other[SV_PLACE];
        if (d->port_up != 1)
            continue;
        if (d->cable == SV_NO_CABLE)
            return sv_fail(r->why, EINVAL, "%s: the port of %s cannot be \"up\": it has no cable", r->origin, sv_place(t, i, place));
        if (d->cable >= 0 && t->devices[d->cable].port_up == 0)
            return sv_fail(r->why, EINVAL,
                           "%s: the port of %s cannot be \"up\": the port of %s, at the other end of its cable, is \"down\"", r->origin,
                           sv_place(t, i, place), sv_place(t, (uint32_t)d->cable, other));
    }
    for (uint32_t i = 0; i < t->device_count; i++)
        if (t->devices[i].port_up == 0 && t->devices[i].cable >= 0)
            t->devices[t->devices[i].cable].port_up = 0;
    for (uint32_t i = 0; i < t->device_count; i++)
        if (t->devices[i].port_up == 2)
            t->devices[i].port_up = t->devices[i].cable != SV_NO_CABLE;
    return 0;
}

/* ---- The whole topology ---- */

static int read_topology_name(struct reader *r, const json_t *value)
{
    char *name = r->t->name;
    if (value) {
        /* unlike other names, this one may have blanks, as in "switch 8" */
        char packed[SV_NAME] = "";
        const char *s = json_string_value(value);
        size_t n = s ? strlen(s) : 0;
        if (n > 0 && n < sizeof packed)
            for (size_t i = 0; i <= n; i++)
                packed[i] = s[i] == ' ' && i > 0 && i + 1 < n ? '_' : s[i];
        if (!sv_name_valid(packed, sizeof packed))
            return topology_wrong(r, "name", "", value,
                                  "a string of at most 31 letters, digits, blanks, '-', '_' and '.' that does not start with '-' or '.'");
        snprintf(name, SV_NAME, "%s", s);
        return 0;
    }
    const char *base = strrchr(r->origin, '/');
    size_t n = 0;
    base = base ? base + 1 : r->origin;
    for (; base[n] && n < SV_NAME - 1 && strcmp(base + n, ".json") != 0; n++)
        name[n] = base[n];
    if (!sv_name_valid(name, SV_NAME))
        snprintf(name, SV_NAME, "topology");
    return 0;
}

int sv_topology_parse(const char *json, size_t bytes, const char *origin, const struct sv_profile *profile, struct sv_topology *t,
                      struct sv_why *why)
{
    static const char *const keys[] = {"name", "hosts", "cables", "switch", NULL};
    struct reader r = {.t = t, .profile = profile, .origin = origin, .why = why};
    json_t *root = NULL;
    memset(t, 0, sizeof *t);
    int rc = sv_read_object(json, bytes, origin, &root, why);
    if (rc)
        return rc;
    const json_t *hosts = json_object_get(root, "hosts"), *cables = json_object_get(root, "cables");
    rc = check_keys(&r, root, "the top", keys);
    if (!rc)
        rc = read_topology_name(&r, json_object_get(root, "name"));
    if (!rc && json_array_size(hosts) == 0)
        rc = topology_wrong(&r, "hosts", "", hosts, "an array of at least one host");
    for (size_t i = 0; !rc && i < json_array_size(hosts); i++)
        rc = read_host(&r, json_array_get(hosts, i), i);
    if (!rc && cables && !json_is_array(cables))
        rc = topology_wrong(&r, "cables", "", cables, "an array of { \"from\", \"to\" }");
    for (size_t i = 0; !rc && i < json_array_size(cables); i++)
        rc = read_cable(&r, json_array_get(cables, i), i);
    if (!rc)
        rc = read_switch(&r, json_object_get(root, "switch"));
    if (!rc)
        rc = settle_ports(&r);
    json_decref(root);
    if (rc) {
        memset(t, 0, sizeof *t);
        return rc;
    }
    return sv_topology_check(t, origin, why);
}

int sv_topology_load(int words, const char *const *word, const struct sv_profile *profile, struct sv_topology *t, struct sv_why *why)
{
    char *text;
    size_t bytes;
    memset(t, 0, sizeof *t);
    if (words < 1)
        return sv_fail(why, EINVAL, "no topology: give switch N, mesh N, ring N, chain N, or a file");
    int rc = sv_topology_builtin(words, word, profile, t, why);
    if (rc != -ENOENT)
        return rc;
    if (words > 1)
        return sv_fail(why, EINVAL, "%.40s %.40s: a topology is switch N, mesh N, ring N, chain N, or one file", word[0], word[1]);
    rc = sv_read_file(word[0], &text, &bytes, why);
    if (rc == -ENOENT)
        return sv_fail(why, ENOENT, "%.200s: there is no such file, nor is it a built-in topology (switch N, mesh N, ring N, chain N)",
                       word[0]);
    if (rc)
        return rc;
    rc = sv_topology_parse(text, bytes, word[0], profile, t, why);
    free(text);
    return rc;
}
