/* SPDX-License-Identifier: MIT
 *
 * Providers: what weft needs of them, which ones it can use, in which order, and at which address of this host.
 */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/base.h"
#include "fabric/ofi/provider.h"

#define ASKED_VERSION FI_VERSION(1, 17)

/* Best first: two nodes use the first provider that both have. Of a layered provider ("tcp;ofi_rxm") the first name counts. Providers that
 * are not in this list, and verbs, are used only if WEFT_OFI_PROVIDER names them: on the devices of verbs, the transports rc and tb are
 * faster. `net` of libfabric 1.17 is what later versions call `tcp`: datagrams over TCP without another layer.
 *
 * WAKES: a test has shown that the descriptor wakes a thread. The descriptor of psm3 does not, because psm3 makes no progress while nobody
 * polls. efa has no descriptor.
 *
 * LOSES and LOCKS: see the traits of these names. */
enum { PLAIN = 1, WAKES = 2, TRIED = 4, LOSES = 8, LOCKS = 16 };
static const struct known {
    const char *name;
    uint32_t rank, traits;
} known[] = {
    {"cxi", 1, 0},
    {"efa", 2, 0},
    {"psm3", 3, PLAIN | TRIED}, /* on Ethernet */
    {"opx", 4, 0},
    {"psm2", 5, 0},
    {"net", 10, PLAIN | WAKES | TRIED},
    {"tcp", 11, PLAIN | WAKES | TRIED},
    {"verbs", OFI_NEVER, WAKES | TRIED},
    {"shm", OFI_NEVER, WAKES | TRIED | LOSES | LOCKS},
    {"udp", OFI_NEVER, PLAIN | WAKES | TRIED},
    {"sockets", OFI_NEVER, PLAIN | WAKES | TRIED},
};

static const struct known *provider_known(const char *name)
{
    size_t n = strcspn(name, ";");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].name) == n && strncmp(known[i].name, name, n) == 0)
            return &known[i];
    return NULL;
}

bool ofi_is_fast(const char *provider)
{
    const struct known *k = provider_known(provider);
    return k && k->rank < OFI_NEVER && !(k->traits & PLAIN);
}

/* If each connection has its own receive queue, ofi_rxm over verbs crashes, because it posts receives to connections that it has closed
 * (libfabric 1.17 to 2.4, libfabric's issue 11828). weft does not set the environment variable that avoids this, because the program may
 * have threads. */
bool ofi_lacks_srx(const char *provider)
{
    const char *shared = getenv("FI_OFI_RXM_USE_SRX");
    return strcmp(provider, OFI_VERBS_RXM) == 0 && (!shared || strcmp(shared, "1") != 0);
}

struct ofi_traits ofi_traits_of(const struct fi_info *info)
{
    const struct known *k = provider_known(info->fabric_attr->prov_name);
    int mr = info->domain_attr->mr_mode;
    const uint64_t rma = FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    return (struct ofi_traits){
        .rma = (info->caps & rma) == rma,
        .local = mr & FI_MR_LOCAL,
        .virtual = mr & FI_MR_VIRT_ADDR,
        .hardware = mr & (FI_MR_PROV_KEY | FI_MR_ALLOCATED),
        .bind_regions = mr & FI_MR_ENDPOINT,
        .plain = !k || k->traits & PLAIN,
        .inet = info->addr_format == FI_SOCKADDR || info->addr_format == FI_SOCKADDR_IN || info->addr_format == FI_SOCKADDR_IN6,
        .tcp = k && (strcmp(k->name, "net") == 0 || strcmp(k->name, "tcp") == 0),
        .wakes = k && k->traits & WAKES,
        .tried = k && k->traits & TRIED,
        .loses = k && k->traits & LOSES,
        .locks = k && k->traits & LOCKS,
        .rank = k ? k->rank : OFI_NEVER,
    };
}

/* Whether weft can use what a provider offers. A provider that follows libfabric's rules needs nothing that is not in the hints; these two
 * needs would damage data. */
static bool provider_usable(const struct fi_info *info)
{
    return info->fabric_attr->prov_name && !(info->mode & FI_MSG_PREFIX) && !(info->domain_attr->mr_mode & FI_MR_RAW);
}

static struct fi_info *provider_hints(const struct ofi_library *lib, const char *provider, bool rma)
{
    struct fi_info *h = lib->dupinfo(NULL);
    if (!h)
        return NULL;
    h->caps = FI_MSG | (rma ? FI_RMA : 0);
    h->mode = FI_CONTEXT | FI_CONTEXT2;
    h->ep_attr->type = FI_EP_RDM;
    h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    h->domain_attr->threading = FI_THREAD_DOMAIN;
    h->domain_attr->data_progress = h->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    h->domain_attr->resource_mgmt = FI_RM_ENABLED;
    h->domain_attr->av_type = FI_AV_UNSPEC;
    if (*provider && !(h->fabric_attr->prov_name = strdup(provider))) {
        lib->freeinfo(h);
        return NULL;
    }
    return h;
}

/* All suitable providers, in libfabric's order: those with RMA; if no provider has RMA, those without. */
static int provider_ask(const struct ofi_library *lib, const char *provider, const char *host, struct fi_info **out)
{
    int rc = -FI_ENOMEM;
    *out = NULL;
    for (int rma = 1; rma >= 0; rma--) {
        struct fi_info *h = provider_hints(lib, provider, rma);
        if (!h)
            return -ENOMEM;
        rc = lib->getinfo(ASKED_VERSION, host, NULL, host ? FI_SOURCE : 0, h, out);
        lib->freeinfo(h);
        if (rc == 0)
            return 0;
    }
    return rc;
}

/* Find a numeric address of the interface: rather IPv4 than IPv6, rather a global address than a link-local one. */
static int interface_address(const char *name, char *out, size_t room)
{
    struct ifaddrs *all, *best = NULL;
    int best_rank = 3;
    if (getifaddrs(&all))
        return base_fail(-errno, "the network interfaces cannot be listed: %s", base_strerror(errno));
    for (struct ifaddrs *i = all; i; i = i->ifa_next) {
        if (!i->ifa_addr || strcmp(i->ifa_name, name) != 0)
            continue;
        int family = i->ifa_addr->sa_family;
        struct sockaddr_in6 six = {0};
        if (family == AF_INET6)
            memcpy(&six, i->ifa_addr, sizeof six);
        int rank = family == AF_INET ? 0 : family != AF_INET6 ? 3 : IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr) ? 2 : 1;
        if (rank < best_rank) {
            best = i;
            best_rank = rank;
        }
    }
    socklen_t len = best && best->ifa_addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int rc =
        !best ? base_fail(
                    -ENODEV,
                    "WEFT_OFI_INTERFACE: '%s' is neither an interface with an address nor an address of this host; `ip address` lists them",
                    name)
        : getnameinfo(best->ifa_addr, len, out, (socklen_t)room, NULL, 0, NI_NUMERICHOST)
            ? base_fail(-EINVAL, "the address of interface %s cannot be read; name another interface in WEFT_OFI_INTERFACE", name)
            : 0;
    freeifaddrs(all);
    return rc;
}

/* Stores a numeric address at `bytes`, and returns how many bytes it has; 0: the text is no address. The interface in "fe80::1%eth0" is
 * left out. */
static size_t address_bytes(const char *text, uint8_t bytes[16])
{
    char plain[64];
    snprintf(plain, sizeof plain, "%.*s", (int)strcspn(text, "%"), text);
    return inet_pton(AF_INET, plain, bytes) == 1 ? 4 : inet_pton(AF_INET6, plain, bytes) == 1 ? 16 : 0;
}

/* Checks that a numeric address is one of this host. All addresses from 127.0.0.0 to 127.255.255.255 belong to this host, although the
 * system does not list them. */
static int address_check(const char *text)
{
    uint8_t wanted[16];
    size_t n = address_bytes(text, wanted);
    bool found = n == 4 && wanted[0] == 127;
    struct ifaddrs *all = NULL;
    if (!found && getifaddrs(&all))
        return base_fail(-errno, "the network interfaces cannot be listed: %s", base_strerror(errno));
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        struct sockaddr_in four;
        struct sockaddr_in6 six;
        if (n == 4 && i->ifa_addr && i->ifa_addr->sa_family == AF_INET) {
            memcpy(&four, i->ifa_addr, sizeof four);
            found = memcmp(&four.sin_addr, wanted, n) == 0;
        } else if (n == 16 && i->ifa_addr && i->ifa_addr->sa_family == AF_INET6) {
            memcpy(&six, i->ifa_addr, sizeof six);
            found = memcmp(&six.sin6_addr, wanted, n) == 0;
        }
    }
    if (all)
        freeifaddrs(all);
    return found ? 0
                 : base_fail(-ENODEV,
                             "WEFT_OFI_INTERFACE: %s is not an address of this host; set it to an address that this host has, or to the "
                             "name of an interface, which may be the same on all hosts; `ip address` lists both",
                             text);
}

struct choices {
    struct fi_info **list; /* [OFI_CHOICES] */
    uint32_t count;
};

/* Adds a provider to the list: at the end if the user has named it, else behind those that are equally good. Of several infos of a provider
 * the first one counts, because libfabric lists the requested address first. */
static int choices_add(const struct ofi_library *lib, struct choices *c, struct fi_info *info, bool named)
{
    const char *name = info->fabric_attr->prov_name;
    struct ofi_traits t = ofi_traits_of(info);
    for (uint32_t i = 0; i < c->count; i++)
        if (strcmp(c->list[i]->fabric_attr->prov_name, name) == 0)
            return 0;
    if (c->count == OFI_CHOICES || strlen(name) >= OFI_PROVIDER_NAME)
        return 0;
    struct fi_info *copy = lib->dupinfo(info);
    if (!copy)
        return base_fail(-ENOMEM, "no memory for a provider of libfabric" BASE_MEMORY_HINT);
    uint32_t at = c->count++;
    for (; at > 0 && !named && t.rank < ofi_traits_of(c->list[at - 1]).rank; at--)
        c->list[at] = c->list[at - 1];
    c->list[at] = copy;
    return 0;
}

/* Adds the providers of this name, or all that weft uses by itself: first those at this address, then those without IP addresses. `bound`:
 * the user has named the interface. Then providers without IP addresses are added only if there are no others, because they would not use
 * that interface. */
static int choices_ask(const struct ofi_library *lib, struct choices *c, const char *name, const char *host, bool bound, int *refused)
{
    int rc = 0;
    for (int pass = 0; pass < 2 && !(pass && bound && c->count); pass++) {
        struct fi_info *all;
        int err = provider_ask(lib, name, pass ? NULL : host, &all);
        *refused = err && !*refused ? err : *refused;
        for (struct fi_info *i = err ? NULL : all; i && !rc; i = i->next) {
            if (!provider_usable(i))
                continue;
            struct ofi_traits t = ofi_traits_of(i);
            if ((*name || t.rank < OFI_NEVER) && t.inet == !pass)
                rc = choices_add(lib, c, i, *name != 0);
        }
        if (!err)
            lib->freeinfo(all);
    }
    return rc;
}

/* Finds the numeric address of this node for providers that use IP addresses. */
static int choose_host(const struct ofi_want *want, char *host, size_t room)
{
    uint8_t bytes[16];
    if (*want->interface && !address_bytes(want->interface, bytes))
        return interface_address(want->interface, host, room);
    int rc = *want->interface ? address_check(want->interface) : 0;
    if (rc)
        return rc;
    snprintf(host, room, "%s", *want->interface ? want->interface : *want->address ? want->address : "127.0.0.1");
    return 0;
}

int ofi_choose(const struct ofi_library *lib, const struct ofi_want *want, struct fi_info *found[OFI_CHOICES])
{
    char host[128] = "", name[OFI_PROVIDER_NAME];
    struct choices c = {.list = found};
    int refused = 0, rc = choose_host(want, host, sizeof host);
    const char *p = want->provider;
    do {
        size_t n = strcspn(p, ",");
        if (!rc && (n >= sizeof name || (n == 0 && *want->provider)))
            rc = base_fail(-EINVAL, "WEFT_OFI_PROVIDER '%s': expected names of providers, with commas between them", want->provider);
        snprintf(name, sizeof name, "%.*s", (int)n, p);
        rc = rc ? rc : choices_ask(lib, &c, name, host, *want->interface != 0, &refused);
        p += n;
    } while (*p++);
    if (!rc && !c.count)
        rc = base_fail(
            -ENODEV, "libfabric (%s) has no provider%s%s for reliable datagrams at %s%s%s: %s; `weft devices --networks` lists what it has",
            lib->path, *want->provider ? " " : "", want->provider, host, *want->interface ? ", which is " : "", want->interface,
            refused ? lib->strerror(-refused) : "weft uses other providers only if WEFT_OFI_PROVIDER names them");
    while (rc && c.count)
        lib->freeinfo(found[--c.count]);
    return rc ? rc : (int)c.count;
}

void ofi_print_address(const struct fi_info *info, const void *address, size_t len, char *out, size_t room)
{
    struct sockaddr_storage at = {0};
    char host[64], port[8];
    snprintf(out, room, "(not an IP address)");
    if (!ofi_traits_of(info).inet || len > sizeof at || len < sizeof(struct sockaddr_in) || !address)
        return;
    memcpy(&at, address, len);
    if (getnameinfo((struct sockaddr *)&at, (socklen_t)len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(out, room, at.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* --- the list for `weft devices` --- */

struct listing {
    const struct ofi_library *lib;
    const struct ofi_want *want;
    struct ofi_listed *list;
    uint32_t count;
    int refused; /* libfabric's first error; 0: there was none */
};

static bool listed_same(const struct ofi_listed *a, const struct ofi_listed *b)
{
    return strcmp(a->provider, b->provider) == 0 && strcmp(a->interface, b->interface) == 0 && strcmp(a->address, b->address) == 0;
}

/* Returns the row of the list for this provider and address. Adds the row if there is none yet. Returns NULL if there is no memory. */
static struct ofi_listed *listing_row(struct listing *l, const struct fi_info *info)
{
    struct ofi_listed e = {.traits = ofi_traits_of(info), .order = OFI_UNNAMED};
    snprintf(e.provider, sizeof e.provider, "%s", info->fabric_attr->prov_name);
    snprintf(e.interface, sizeof e.interface, "%s", info->domain_attr->name ? info->domain_attr->name : "");
    if (e.traits.inet)
        ofi_print_address(info, info->src_addr, info->src_addrlen, e.address, sizeof e.address);
    size_t end = strlen(e.address);
    if (end > 2 && strcmp(e.address + end - 2, ":0") == 0)
        e.address[end - 2] = 0;
    for (uint32_t i = 0; i < l->count; i++)
        if (listed_same(&l->list[i], &e))
            return &l->list[i];
    struct ofi_listed *more = realloc(l->list, (l->count + 1) * sizeof *more);
    if (!more)
        return NULL;
    l->list = more;
    l->list[l->count] = e;
    return &l->list[l->count++];
}

/* Adds to the list what libfabric offers under this name, which is at position `place` in WEFT_OFI_PROVIDER. If `name` is empty, adds all
 * that libfabric offers. */
static int listing_ask(struct listing *l, const char *name, uint32_t place)
{
    struct fi_info *all = NULL;
    uint32_t order = place * OFI_PLACE;
    int rc = 0, err = provider_ask(l->lib, name, NULL, &all);
    l->refused = l->refused ? l->refused : err;
    for (const struct fi_info *i = err ? NULL : all; i && !rc; i = i->next) {
        if (!provider_usable(i))
            continue;
        struct ofi_listed *e = listing_row(l, i);
        rc = e ? 0 : base_fail(-ENOMEM, "no memory for the list of networks" BASE_MEMORY_HINT);
        if (e && *name && e->order == OFI_UNNAMED)
            e->order = order++;
    }
    if (!err)
        l->lib->freeinfo(all);
    return rc;
}

/* Whether the address in a row, such as "[fe80::1%eth0]", is this numeric address. */
static bool listed_at(const struct ofi_listed *e, const char *host)
{
    char text[64];
    uint8_t mine[16], wanted[16];
    snprintf(text, sizeof text, "%s", e->address + (e->address[0] == '['));
    text[strcspn(text, "]")] = '\0';
    size_t n = address_bytes(text, mine);
    return n && n == address_bytes(host, wanted) && memcmp(mine, wanted, n) == 0;
}

/* Says of one row whether weft uses it, or why not, by the rules of choices_ask(). `host`: the address of WEFT_OFI_INTERFACE. */
static enum ofi_use listed_use(const struct listing *l, const struct ofi_listed *e, const char *host)
{
    bool named = *l->want->provider != '\0', bound = *l->want->interface != '\0';
    if (named ? e->order == OFI_UNNAMED : e->traits.rank >= OFI_NEVER)
        return named ? OFI_OTHER_PROVIDER : OFI_BY_NAME;
    if (bound && e->traits.inet && !listed_at(e, host))
        return OFI_OTHER_INTERFACE;
    for (uint32_t i = 0; bound && !e->traits.inet && i < l->count; i++) {
        const struct ofi_listed *other = &l->list[i];
        bool counts = named ? other->order / OFI_PLACE <= e->order / OFI_PLACE : other->traits.rank < OFI_NEVER;
        if (other->traits.inet && counts && listed_at(other, host))
            return OFI_OTHER_INTERFACE;
    }
    return ofi_lacks_srx(e->provider) ? OFI_LACKS_SRX : OFI_USED;
}

static int by_rank(const void *a, const void *b)
{
    const struct ofi_listed *x = a, *y = b;
    if (x->traits.rank != y->traits.rank)
        return x->traits.rank < y->traits.rank ? -1 : 1;
    int p = strcmp(x->provider, y->provider);
    return p ? p : strcmp(x->address, y->address);
}

bool ofi_has(const struct ofi_library *lib, const char *provider)
{
    struct fi_info *all;
    int err = provider_ask(lib, provider, NULL, &all);
    bool has = false;
    for (const struct fi_info *i = err ? NULL : all; i; i = i->next)
        has = has || provider_usable(i);
    if (!err)
        lib->freeinfo(all);
    return has;
}

int ofi_list(const struct ofi_library *lib, const struct ofi_want *want, struct ofi_listed **list)
{
    struct listing l = {.lib = lib, .want = want};
    char host[128] = "", name[OFI_PROVIDER_NAME];
    const char *p = want->provider;
    int rc = *want->interface ? choose_host(want, host, sizeof host) : 0;
    rc = rc ? rc : listing_ask(&l, "", 0);
    for (uint32_t place = 0; *p && !rc; place++, p += strcspn(p, ","), p += *p == ',') {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(p, ","), p);
        rc = *name ? listing_ask(&l, name, place) : 0;
    }
    if (!rc && !l.count)
        rc = base_fail(-ENODEV, "libfabric (%s) has no provider that weft could use: %s; set WEFT_OFI_LIBRARY to another libfabric",
                       lib->path, lib->strerror(-l.refused));
    if (rc) {
        free(l.list);
        return rc;
    }
    qsort(l.list, l.count, sizeof *l.list, by_rank);
    for (uint32_t i = 0; i < l.count; i++)
        l.list[i].use = listed_use(&l, &l.list[i], host);
    *list = l.list;
    return (int)l.count;
}
