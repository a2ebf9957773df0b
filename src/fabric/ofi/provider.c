/* SPDX-License-Identifier: MIT
 *
 * Providers of libfabric: what weft needs from a provider, which one it chooses, and which address of this host it uses.
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

/* The known providers, best first. Of a layered provider ("tcp;ofi_rxm") the first name counts. WEFT_OFI_PROVIDER must name a provider to
 * use one that is not in this list. It must also name verbs, because on the devices of verbs the transports rc and tb are faster. `net` of
 * libfabric 1.17 is called `tcp` in later versions: datagrams over TCP without a layer in between, with two thirds of the latency of
 * "tcp;ofi_rxm" and a fortieth of its memory (bench/run ofi). */
static const struct known {
    const char *name;
    bool plain;
    uint32_t rank;
} known[] = {
    {"cxi", false, 1},
    {"efa", false, 2},
    {"psm3", false, 3},
    {"opx", false, 4},
    {"psm2", false, 5},
    {"net", true, 10},
    {"tcp", true, 11},
    {"verbs", false, OFI_NEVER},
    {"shm", false, OFI_NEVER},
    {"udp", true, OFI_NEVER},
    {"sockets", true, OFI_NEVER},
};

static const struct known *provider_known(const char *name)
{
    size_t n = strcspn(name, ";");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].name) == n && strncmp(known[i].name, name, n) == 0)
            return &known[i];
    return NULL;
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
        .plain = k ? k->plain : true,
        .inet = info->addr_format == FI_SOCKADDR || info->addr_format == FI_SOCKADDR_IN || info->addr_format == FI_SOCKADDR_IN6,
        .rank = k ? k->rank : OFI_NEVER,
    };
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

/* All suitable providers, in libfabric's order: those with RMA, or if there are none, those without. */
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

/* Find an address of the interface, as a number: IPv4 is preferred to IPv6, and a global address to a link-local one. */
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
    int rc = !best
                 ? base_fail(-ENODEV, "WEFT_OFI_INTERFACE: '%s' is neither an interface with an address nor an address of this host", name)
             : getnameinfo(best->ifa_addr, len, out, (socklen_t)room, NULL, 0, NI_NUMERICHOST)
                 ? base_fail(-EINVAL, "the address of interface %s cannot be printed", name)
                 : 0;
    freeifaddrs(all);
    return rc;
}

static bool is_address(const char *text)
{
    unsigned char bytes[16];
    char plain[64];
    snprintf(plain, sizeof plain, "%.*s", (int)strcspn(text, "%"), text);
    return inet_pton(AF_INET, plain, bytes) == 1 || inet_pton(AF_INET6, plain, bytes) == 1;
}

/* The better of two providers; `a` may be NULL. If both are equally good, `a` is returned, because libfabric lists the requested address
 * first. */
static struct fi_info *provider_better(struct fi_info *a, struct fi_info *b)
{
    return !a || ofi_traits_of(b).rank < ofi_traits_of(a).rank ? b : a;
}

int ofi_choose(const struct ofi_library *lib, const struct ofi_want *want, struct fi_info **out, struct ofi_traits *traits)
{
    char host[128] = "";
    struct fi_info *all, *best = NULL;
    int rc = 0;
    if (!*want->interface)
        snprintf(host, sizeof host, "%s", *want->address ? want->address : "127.0.0.1");
    else if (is_address(want->interface))
        snprintf(host, sizeof host, "%s", want->interface);
    else
        rc = interface_address(want->interface, host, sizeof host);
    if (rc)
        return rc;
    /* first providers at this address, then providers without IP addresses: peers could not reach an IP provider at any other address */
    for (int pass = 0; pass < 2 && !best; pass++) {
        rc = provider_ask(lib, want->provider, pass ? NULL : host, &all);
        for (struct fi_info *i = rc ? NULL : all; i; i = i->next) {
            struct ofi_traits t = ofi_traits_of(i);
            if ((*want->provider || t.rank < OFI_NEVER) && t.inet == !pass)
                best = provider_better(best, i);
        }
        best = best ? lib->dupinfo(best) : NULL;
        if (!rc)
            lib->freeinfo(all);
    }
    if (!best)
        return base_fail(-ENODEV,
                         "libfabric (%s) has no provider%s%s for reliable datagrams at %s%s%s: %s; `weft devices` lists what it has",
                         lib->path, *want->provider ? " " : "", want->provider, host, *want->interface ? ", which is " : "",
                         want->interface, rc ? lib->strerror(-rc) : "none that weft uses by itself (WEFT_OFI_PROVIDER)");
    *traits = ofi_traits_of(best);
    *out = best;
    return 0;
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

static int by_rank(const void *a, const void *b)
{
    const struct ofi_listed *x = a, *y = b;
    if (x->traits.rank != y->traits.rank)
        return x->traits.rank < y->traits.rank ? -1 : 1;
    int p = strcmp(x->provider, y->provider);
    return p ? p : strcmp(x->address, y->address);
}

int ofi_list(const struct ofi_library *lib, struct ofi_listed list[OFI_LISTED_MAX])
{
    struct fi_info *all;
    uint32_t n = 0;
    memset(list, 0, OFI_LISTED_MAX * sizeof *list);
    int rc = provider_ask(lib, "", NULL, &all);
    if (rc)
        return base_fail(-ENODEV, "libfabric (%s) has no provider that weft could use: %s", lib->path, lib->strerror(-rc));
    for (struct fi_info *i = all; i && n + 1 < OFI_LISTED_MAX; i = i->next) {
        struct ofi_listed e = {.traits = ofi_traits_of(i)};
        bool seen = false;
        snprintf(e.provider, sizeof e.provider, "%s", i->fabric_attr->prov_name);
        snprintf(e.interface, sizeof e.interface, "%s", i->domain_attr->name ? i->domain_attr->name : "");
        if (e.traits.inet)
            ofi_print_address(i, i->src_addr, i->src_addrlen, e.address, sizeof e.address);
        size_t end = strlen(e.address);
        if (end > 2 && strcmp(e.address + end - 2, ":0") == 0)
            e.address[end - 2] = 0;
        for (uint32_t k = 0; k < n && !seen; k++)
            seen = strcmp(list[k].provider, e.provider) == 0 && strcmp(list[k].interface, e.interface) == 0 &&
                   strcmp(list[k].address, e.address) == 0;
        if (!seen)
            list[n++] = e;
    }
    lib->freeinfo(all);
    qsort(list, n, sizeof *list, by_rank);
    return 0;
}
