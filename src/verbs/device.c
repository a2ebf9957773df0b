/* SPDX-License-Identifier: MIT
 *
 * Opens and queries the devices of this host, and decides which are usable. Nothing is allocated on a device before verbs_device_use(),
 * because a Thunderbolt device loses the protection domain of a process that dies, until the host restarts.
 */
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/verbs.h"

enum { GIDS_MOST = 1024 };

static double gbits_of(const struct ibv_port_attr *p)
{
    static const struct {
        uint8_t code;
        double gbits;
    } speeds[] = {{1, 2.5}, {2, 5}, {4, 10}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}};
    static const struct {
        uint8_t code;
        unsigned lanes;
    } widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    for (size_t s = 0; s < sizeof speeds / sizeof speeds[0]; s++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            if (speeds[s].code == p->active_speed && widths[w].code == p->active_width)
                return speeds[s].gbits * widths[w].lanes;
    return 0;
}

/* Stores why a device is not usable: the code in `usable`, the text in `why_not`. Returns the code. */
static int device_judge(struct verbs_device *d, int code, const char *format, ...) BASE_PRINTF(3, 4);
static int device_judge(struct verbs_device *d, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(d->why_not, sizeof d->why_not, format, args);
    va_end(args);
    return d->usable = code;
}

/* Finds the device's network interface. A Thunderbolt device is called rdma_ and the name of its interface. */
static void find_interface(struct verbs_device *d, unsigned index, bool thunderbolt)
{
    char name[IF_NAMESIZE];
    if (thunderbolt && strncmp(d->name, "rdma_", 5) == 0)
        snprintf(d->interface, sizeof d->interface, "%.31s", d->name + 5);
    else if (index && if_indextoname(index, name))
        snprintf(d->interface, sizeof d->interface, "%s", name);
}

/* Reads the type of GID entry `g`, if the library can report it. Returns the index of the entry's network interface; 0: unknown. */
static unsigned look_closer(const struct verbs_device *d, struct verbs_gid *g)
{
#if !defined(__APPLE__)
    struct ibv_gid_entry entry = {0};
    if (d->lib->query_gid_ex && d->lib->query_gid_ex(d->context, d->port, g->index, &entry, 0, sizeof entry) == 0) {
        if (entry.gid_type <= VERBS_GID_ROCE_V2)
            g->kind = (enum verbs_gid_kind)entry.gid_type;
        return entry.ndev_ifindex;
    }
#else
    (void)d, (void)g;
#endif
    return 0;
}

static int read_gids(struct verbs_device *d)
{
    static const union ibv_gid none;
    uint32_t count = d->traits.gids < GIDS_MOST ? d->traits.gids : GIDS_MOST;
    unsigned interface = 0;
    free(d->gids);
    d->gid_count = 0;
    d->gids = calloc(count ? count : 1, sizeof *d->gids);
    if (!d->gids)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        struct verbs_gid *g = &d->gids[i];
        *g = (struct verbs_gid){.index = i, .kind = VERBS_GID_UNKNOWN};
        if (d->lib->query_gid(d->context, d->port, (int)i, &g->raw))
            memset(&g->raw, 0, sizeof g->raw); /* an entry that cannot be read counts as not set */
        if (memcmp(&g->raw, &none, sizeof none) == 0)
            continue;
        unsigned from = look_closer(d, g);
        if (!interface)
            interface = from;
    }
    d->gid_count = count;
    find_interface(d, interface, d->traits.link == VERBS_THUNDERBOLT);
    return 0;
}

static const char *state_text(enum ibv_port_state state)
{
    switch (state) {
    case IBV_PORT_DOWN: return "down";
    case IBV_PORT_INIT: return "initializing (no subnet manager has set it up)";
    case IBV_PORT_ARMED: return "armed (the subnet manager has not made it active)";
    case IBV_PORT_ACTIVE_DEFER: return "active, deferred";
    default: return "in no known state";
    }
}

static int device_query_port(struct verbs_device *d)
{
    memset(&d->port_attr, 0, sizeof d->port_attr); /* the verb fills an older, shorter struct, so the other fields must be zero */
    int rc = d->lib->query_port(d->context, d->port, &d->port_attr), raw;
    if (rc) {
        int code = verbs_code(rc, false, &raw);
        return device_judge(d, code, "port %u cannot be queried: errno %d (%s)", d->port, raw, base_strerror(code));
    }
    return 0;
}

static int judge_port(struct verbs_device *d)
{
    if (d->port_attr.state == IBV_PORT_ACTIVE)
        return 0;
    if (d->traits.link == VERBS_THUNDERBOLT)
        return device_judge(d, -ENETDOWN,
                            "port %u is %s: check that a cable joins it to a Thunderbolt 5 port, and that RDMA is enabled at both ends "
                            "(`rdma_ctl enable` in Recovery, then a restart)",
                            d->port, state_text(d->port_attr.state));
    return device_judge(d, -ENETDOWN, "port %u is %s%s%s", d->port, state_text(d->port_attr.state),
                        d->interface[0] ? "; check the cable, and that the interface is up: " : "", d->interface);
}

bool verbs_port_up(struct verbs_device *d)
{
    struct ibv_port_attr attr = {0};
    return d->lib->query_port(d->context, d->port, &attr) == 0 && attr.state == IBV_PORT_ACTIVE;
}

/* Queries an open device, and decides whether weft can use it. */
static int device_look(struct verbs_device *d, int transport, int wanted_gid)
{
    int rc = device_query_port(d);
    if (rc)
        return rc;
    verbs_traits_from(&d->traits, transport, &d->attr, &d->port_attr, d->lib->reg_dmabuf_mr != NULL);
    d->gbits = gbits_of(&d->port_attr);
    if ((rc = read_gids(d)))
        return device_judge(d, rc, "no memory for its table of addresses (GIDs)" BASE_MEMORY_HINT);
    if (!d->traits.rc && !d->traits.uc)
        return device_judge(d, -EOPNOTSUPP, "it has neither reliable nor unreliable connections (RC, UC)");
    if ((rc = judge_port(d)))
        return rc;
    rc = verbs_choose_gid(&d->chosen, d->gids, d->gid_count, wanted_gid, d->traits.link == VERBS_INFINIBAND, d->name, d->interface);
    if (rc)
        return device_judge(d, rc, "%.*s", (int)sizeof d->why_not - 1, base_error());
    d->why_not[0] = '\0';
    return d->usable = 0;
}

int verbs_device_again(struct verbs_device *d, int wanted_gid)
{
    if (d->context && !d->pd)
        device_look(d, (int)d->context->device->transport_type, wanted_gid);
    return d->usable;
}

static void device_release(struct verbs_device *d)
{
    if (d->pd)
        d->lib->dealloc_pd(d->pd);
    if (d->context)
        d->lib->close_device(d->context);
    free(d->gids);
    memset(d, 0, sizeof *d);
}

/* Adds one port of the device to the list. If the device cannot be opened, the entry says why. */
static void visit(struct verbs_device *d, const struct verbs_library *lib, struct ibv_device *device, uint8_t port, int wanted_gid)
{
    int raw, rc;
    d->lib = lib;
    d->port = port;
    snprintf(d->name, sizeof d->name, "%s", lib->get_device_name(device));
    d->context = (errno = 0, lib->open_device(device));
    if (!d->context) {
        int code = verbs_code(0, false, &raw);
        device_judge(d, code, "cannot be opened: errno %d (%s)%s", raw, base_strerror(code),
                     code == -EACCES || code == -EPERM ? "; this user must be allowed to open /dev/infiniband/uverbs*" : "");
        return;
    }
    if ((rc = lib->query_device(d->context, &d->attr))) {
        int code = verbs_code(rc, false, &raw);
        device_judge(d, code, "cannot be queried: errno %d (%s)", raw, base_strerror(code));
        return;
    }
    if (d->attr.phys_port_cnt > 1) {
        size_t n = strnlen(d->name, sizeof d->name - 5);
        snprintf(d->name + n, sizeof d->name - n, ":%u", port);
    }
    device_look(d, (int)device->transport_type, wanted_gid);
}

int verbs_devices_of(const struct verbs_library *lib, struct ibv_device **list, int given, struct verbs_device **out, uint32_t *count,
                     int wanted_gid)
{
    struct verbs_device *all = calloc(VERBS_DEVICES_MAX, sizeof *all);
    uint32_t n = 0;
    if (!all)
        return base_fail(-ENOMEM, "no memory for the list of devices" BASE_MEMORY_HINT);
    for (int i = 0; i < given && list[i]; i++) {
        unsigned ports = 1;
        for (unsigned port = 1; port <= ports && n < VERBS_DEVICES_MAX; port++, n++) {
            visit(&all[n], lib, list[i], (uint8_t)port, wanted_gid);
            ports = all[n].attr.phys_port_cnt;
        }
    }
    *out = all;
    *count = n;
    return 0;
}

int verbs_devices(struct verbs_device **out, uint32_t *count, int wanted_gid)
{
    const struct verbs_library *lib;
    int given = 0, raw, rc = verbs_load(&lib);
    if (rc)
        return rc;
    errno = 0;
    struct ibv_device **list = lib->get_device_list(&given);
    if (!list) {
        int code = verbs_code(0, false, &raw);
        if (code == -ENOSYS || code == -ENOENT) { /* the kernel has no RDMA support */
            *out = NULL;
            *count = 0;
            return 0;
        }
        return base_fail(code,
                         "%s cannot list the RDMA devices: errno %d (%s); check that the kernel's RDMA modules are loaded, and `dmesg`",
                         lib->path, raw, base_strerror(code));
    }
    rc = verbs_devices_of(lib, list, given, out, count, wanted_gid);
    lib->free_device_list(list);
    return rc;
}

void verbs_devices_close(struct verbs_device *devices, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        device_release(&devices[i]);
    free(devices);
}

/* Returns the beginning of an error message: the device's name, or "" if the text in `why_not` contains the name already (see gid.c). */
static const char *before_reason(const struct verbs_device *d, char *text, size_t len)
{
    snprintf(text, len, "%s%s", strstr(d->why_not, d->name) ? "" : d->name, strstr(d->why_not, d->name) ? "" : ": ");
    return text;
}

static int device_refused(const struct verbs_device *d, int code)
{
    char name[sizeof d->name + 3];
    return base_fail(code, "%s%s", before_reason(d, name, sizeof name), d->why_not);
}

/* Fails with an error text that lists all devices. Unless the caller asked for a device by name, the text says why each is not usable. */
static int none(const struct verbs_device *all, uint32_t count, const char *name)
{
    char there[900] = "", before[sizeof all->name + 3];
    for (uint32_t i = 0; i < count; i++) {
        size_t n = strlen(there);
        if (name)
            snprintf(there + n, sizeof there - n, "%s%s", i ? ", " : "", all[i].name);
        else
            snprintf(there + n, sizeof there - n, "%s%s%s", i ? "; " : "", before_reason(&all[i], before, sizeof before), all[i].why_not);
    }
    if (count == 0)
        return base_fail(-ENODEV, "%s%s%sthis host has no RDMA device", name ? "no device " : "", name ? name : "", name ? ": " : "");
    if (name)
        return base_fail(-ENODEV, "no device %s; there %s %s", name, count == 1 ? "is" : "are", there);
    return base_fail(-ENODEV, "no usable RDMA device: %s", there);
}

/* Returns the device with this name; without a name, the fastest usable device. Returns NULL if there is no such device. */
static struct verbs_device *pick(struct verbs_device *all, uint32_t count, const char *name)
{
    struct verbs_device *best = NULL;
    for (uint32_t i = 0; i < count; i++) {
        if (name ? strcmp(all[i].name, name) == 0 : all[i].usable == 0 && (!best || all[i].gbits > best->gbits))
            best = &all[i];
    }
    return best;
}

int verbs_device_open(struct verbs_device **out, const char *name, int wanted_gid)
{
    struct verbs_device *all, *one = NULL;
    uint32_t count;
    int rc = verbs_devices(&all, &count, wanted_gid);
    if (rc)
        return rc;
    struct verbs_device *found = pick(all, count, name);
    if (found && found->usable == 0)
        one = malloc(sizeof *one);
    if (one) {
        *one = *found;
        memset(found, 0, sizeof *found); /* so that verbs_devices_close() does not close the device, which the caller owns now */
        *out = one;
    } else if (!found) {
        rc = none(all, count, name);
    } else if (found->usable) {
        rc = device_refused(found, found->usable);
    } else {
        rc = base_fail(-ENOMEM, "no memory for the chosen device" BASE_MEMORY_HINT);
    }
    verbs_devices_close(all, count);
    return rc;
}

int verbs_devices_like(const struct verbs_device *one, struct verbs_device **out, uint32_t max, uint32_t *count, int wanted_gid)
{
    struct verbs_device *all;
    uint32_t there;
    *count = 0;
    int rc = verbs_devices(&all, &there, wanted_gid);
    if (rc)
        return rc;
    for (uint32_t i = 0; rc == 0 && i < there && *count < max; i++) {
        struct verbs_device *d = &all[i];
        const struct verbs_traits *a = &d->traits, *b = &one->traits;
        if (d->usable || strcmp(d->name, one->name) == 0 || a->link != b->link || d->gbits < one->gbits || d->gbits > one->gbits ||
            a->rc != b->rc || a->write != b->write || a->read != b->read)
            continue;
        struct verbs_device *own = malloc(sizeof *own);
        if (own) {
            *own = *d;
            memset(d, 0, sizeof *d); /* so that verbs_devices_close() does not close the device, which the caller owns now */
            out[(*count)++] = own;
        } else {
            rc = base_fail(-ENOMEM, "no memory for one of the devices" BASE_MEMORY_HINT);
        }
    }
    verbs_devices_close(all, there);
    return rc;
}

int verbs_device_use(struct verbs_device *d)
{
    int raw, rc;
    if (d->pd)
        return 0;
    if (d->usable)
        return device_refused(d, d->usable);
    if ((rc = device_query_port(d)) || (rc = judge_port(d))) /* the port may have changed since the device was opened */
        return device_refused(d, rc);
    errno = 0;
    d->pd = d->lib->alloc_pd(d->context);
    if (d->pd)
        return 0;
    rc = verbs_code(0, d->traits.link == VERBS_THUNDERBOLT, &raw);
    if (d->traits.link == VERBS_THUNDERBOLT)
        return base_fail(rc,
                         "%s: no protection domain is left: errno %d (%s). The device has %u domains, and a killed process keeps its "
                         "domain until the host restarts: restart the host",
                         d->name, raw, base_strerror(rc), d->traits.pds);
    return base_fail(rc, "%s: cannot allocate a protection domain: errno %d (%s); end other programs that use the device", d->name, raw,
                     base_strerror(rc));
}

void verbs_device_close(struct verbs_device *d)
{
    if (!d)
        return;
    device_release(d);
    free(d);
}
