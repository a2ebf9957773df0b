/* SPDX-License-Identifier: MIT
 *
 * Finds the address of node 0 if a launcher has started the nodes by PMIx. Every node publishes a notice: the networks of its host, or why
 * its weft_open() failed. The notice of node 0 also has a port and a secret. All nodes read all notices, so all choose the same address.
 */
#include "cluster/meet.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cluster/pmix.h"

/* --- interfaces of this host --- */

static uint8_t count_bits(const uint8_t *mask, size_t bytes)
{
    unsigned n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += (unsigned)__builtin_popcount(mask[i]);
    return (uint8_t)n;
}

static bool read_interface(const struct ifaddrs *i, struct wire_interface *out)
{
    const uint8_t *address, *mask = NULL;
    size_t bytes;
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_RUNNING))
        return false;
    if (i->ifa_addr->sa_family == AF_INET) {
        address = (const uint8_t *)&((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr;
        mask = i->ifa_netmask ? (const uint8_t *)&((const struct sockaddr_in *)(const void *)i->ifa_netmask)->sin_addr : NULL;
        bytes = 4;
    } else if (i->ifa_addr->sa_family == AF_INET6) {
        const struct in6_addr *a = &((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(a))
            return false; /* leaves out link-local addresses, which are valid only with the interface of the node that connects */
        address = (const uint8_t *)a;
        mask = i->ifa_netmask ? (const uint8_t *)&((const struct sockaddr_in6 *)(const void *)i->ifa_netmask)->sin6_addr : NULL;
        bytes = 16;
    } else {
        return false;
    }
    *out = (struct wire_interface){.family = bytes == 4 ? 4 : 6, .prefix = mask ? count_bits(mask, bytes) : (uint8_t)(8 * bytes)};
    memcpy(out->address, address, bytes);
    return true;
}

/* Lists IPv4 addresses first, and the loopback only if there is no other interface. */
static void list_interfaces(struct wire_notice *n)
{
    struct ifaddrs *list;
    if (getifaddrs(&list))
        return;
    for (int round = 0; round < 4 && !(round >= 2 && n->interface_count > 0 && n->interfaces[0].address[0] != 127); round++)
        for (const struct ifaddrs *i = list; i && n->interface_count < WIRE_INTERFACES; i = i->ifa_next) {
            struct wire_interface *next = &n->interfaces[n->interface_count];
            bool loopback = i->ifa_flags & IFF_LOOPBACK;
            if (loopback == (round >= 2) && read_interface(i, next) && next->family == (round % 2 ? 6 : 4))
                n->interface_count++;
        }
    freeifaddrs(list);
}

/* --- notices of the other nodes --- */

bool meet_notice_ok(const struct wire_notice *n, uint32_t rank)
{
    if (n->magic != WIRE_MAGIC || n->rank != rank || n->interface_count > WIRE_INTERFACES || n->port > 65535 || n->error < 0 ||
        !memchr(n->host, 0, sizeof n->host) || !memchr(n->here, 0, sizeof n->here) || !memchr(n->coord, 0, sizeof n->coord) ||
        !memchr(n->text, 0, sizeof n->text))
        return false;
    for (uint32_t i = 0; i < n->interface_count; i++) {
        const struct wire_interface *w = &n->interfaces[i];
        if ((w->family != 4 && w->family != 6) || w->prefix > (w->family == 4 ? 32 : 128))
            return false;
    }
    return (!n->here[0] || strncmp(n->here, "unix:", 5) == 0) && (!n->coord[0] || cluster_address_check(n->coord) == 0);
}

static bool same_bits(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    unsigned whole = bits / 8, rest = bits % 8;
    return memcmp(a, b, whole) == 0 && (rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0);
}

/* For an interface of node 0: the number of nodes on other hosts in the same network. -1: the address is unusable, because another host has
 * the same address, as in private networks of container engines. */
static int64_t neighbours(const struct wire_notice *all, uint32_t size, const struct wire_interface *of)
{
    unsigned bits = of->family == 4 ? 32 : 128;
    int64_t count = 0;
    for (uint32_t i = 1; i < size; i++) {
        bool near = false;
        if (memcmp(all[i].host_id, all[0].host_id, sizeof all[0].host_id) == 0)
            continue;
        for (uint32_t k = 0; k < all[i].interface_count; k++) {
            const struct wire_interface *w = &all[i].interfaces[k];
            if (w->family != of->family)
                continue;
            if (same_bits(w->address, of->address, bits))
                return -1;
            near = near || (w->prefix == of->prefix && same_bits(w->address, of->address, of->prefix));
        }
        count += near;
    }
    return count;
}

/* Lists the addresses of node 0, those in networks with many nodes first. Nodes also reach each other by the network by which they reach
 * node 0, so a network of all nodes is better than a cable between two hosts. */
uint32_t meet_addresses(const struct wire_notice *all, uint32_t size, char out[WIRE_INTERFACES][128])
{
    int64_t score[WIRE_INTERFACES];
    uint32_t order[WIRE_INTERFACES], n = 0;
    for (uint32_t i = 0; i < all[0].interface_count; i++) {
        int64_t own = neighbours(all, size, &all[0].interfaces[i]);
        uint32_t at = n;
        if (own < 0)
            continue;
        for (; at > 0 && score[at - 1] < own; at--) {
            score[at] = score[at - 1];
            order[at] = order[at - 1];
        }
        score[at] = own;
        order[at] = i;
        n++;
    }
    for (uint32_t i = 0; i < n; i++) {
        char text[INET6_ADDRSTRLEN] = "";
        const struct wire_interface *w = &all[0].interfaces[order[i]];
        inet_ntop(w->family == 4 ? AF_INET : AF_INET6, w->address, text, sizeof text);
        snprintf(out[i], 128, w->family == 4 ? "%s:%u" : "[%s]:%u", text, all[0].port);
    }
    return n;
}

/* --- exchange --- */

/* `error`, `text`: why this node does not join; `error` 0: it joins. */
static int notice_make(struct wire_notice *n, const struct cluster_settings *s, int error, const char *text)
{
    memset(n, 0, sizeof *n);
    n->magic = WIRE_MAGIC;
    n->rank = s->rank;
    n->pid = (uint32_t)getpid();
    n->error = -error;
    base_host_id(n->host_id);
    if (gethostname(n->host, sizeof n->host - 1))
        snprintf(n->host, sizeof n->host, "?");
    snprintf(n->text, sizeof n->text, "%s", text);
    if (error)
        return 0;
    list_interfaces(n);
    snprintf(n->coord, sizeof n->coord, "%s", s->rank == 0 ? s->coord : "");
    return s->rank == 0 ? base_random(n->secret, sizeof n->secret) : 0;
}

/* Listen on all addresses: node 0 must publish its port before it knows which hosts will use it. */
static int listen_everywhere(struct meet_place *place, struct wire_notice *n)
{
    place->listener = cluster_listen("[::]:0", place->bound, sizeof place->bound);
    if (place->listener < 0)
        place->listener = cluster_listen("0.0.0.0:0", place->bound, sizeof place->bound);
    if (place->listener < 0)
        return base_context(place->listener, "node 0 cannot listen for the other nodes");
    base_error_clear();
    n->port = (uint32_t)strtoul(strrchr(place->bound, ':') + 1, NULL, 10);
    return cluster_private_address(n->here, sizeof n->here, "meet", NULL);
}

/* Fail with the reason of the first node that has failed. */
static int notices_check(const struct wire_notice *all, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        if (!meet_notice_ok(&all[i], i))
            return base_fail(-EPROTO, "node %u runs another version of weft; run the same version of weft on all hosts", i);
    for (uint32_t i = 0; i < size; i++)
        if (all[i].error)
            return base_fail(-ECONNRESET, "node %u (pid %u on %s) failed before joining: %s", i, all[i].pid, all[i].host, all[i].text);
    return 0;
}

static bool all_here(const struct wire_notice *all, uint32_t size)
{
    uint32_t i = 1;
    while (i < size && memcmp(all[i].host_id, all[0].host_id, sizeof all[0].host_id) == 0)
        i++;
    return i == size;
}

static void meet_at(struct meet_place *place, const char *address)
{
    snprintf(place->addresses[0], sizeof place->addresses[0], "%s", address);
    place->count = 1;
    meet_leave(place);
}

static int meet_by_launcher(struct meet_place *place, struct cluster_settings *s, struct wire_notice *mine, struct wire_notice *all,
                            int64_t deadline)
{
    int rc = notice_make(mine, s, 0, "");
    if (!rc && s->rank == 0 && !s->coord[0])
        rc = listen_everywhere(place, mine);
    if (rc)
        return rc;
    rc = launcher_exchange(&s->launcher, mine, sizeof *mine, all, deadline);
    if (rc == -ETIMEDOUT)
        return base_context(rc, "not all processes of the job called weft_open() within %.1f s (to wait longer, raise WEFT_JOIN_TIMEOUT)",
                            (double)s->join_timeout_ns / 1e9);
    if (!rc)
        rc = notices_check(all, s->size);
    if (rc)
        return rc;
    if (s->coord[0] || all[0].coord[0])
        meet_at(place, s->coord[0] ? s->coord : all[0].coord);
    else if (all_here(all, s->size))
        meet_at(place, all[0].here);
    else
        place->count = meet_addresses(all, s->size, place->addresses);
    if (place->count == 0)
        return base_fail(-EADDRNOTAVAIL,
                         "node 0 (on %s) has no address that no other host has, too: set WEFT_COORD to HOST:PORT, an address at which all "
                         "nodes reach node 0",
                         all[0].host);
    return 0;
}

int meet_agree(struct meet_place *place, struct cluster_settings *s, uint8_t secret[WIRE_MAC], bool *has_secret, int64_t deadline)
{
    *place = (struct meet_place){.listener = -1};
    *has_secret = false;
    if (!s->launcher) {
        meet_at(place, s->coord);
        return 0;
    }
    struct wire_notice *all = calloc(s->size, sizeof *all), *mine = calloc(1, sizeof *mine);
    int rc = all && mine ? 0 : base_fail(-ENOMEM, "no memory for the addresses that %u nodes exchange at node 0" BASE_MEMORY_HINT, s->size);
    if (!rc)
        rc = meet_by_launcher(place, s, mine, all, deadline);
    if (rc) {
        meet_leave(place);
    } else if (!s->secret) {
        memcpy(secret, all[0].secret, sizeof all[0].secret);
        *has_secret = true;
    }
    if (all)
        sodium_memzero(all, s->size * sizeof *all);
    if (mine)
        sodium_memzero(mine, sizeof *mine);
    free(all);
    free(mine);
    return rc;
}

void meet_leave(struct meet_place *place)
{
    if (place->listener >= 0)
        close(place->listener);
    place->listener = -1;
}

int cluster_failed(struct cluster_settings *s, int rc)
{
    struct wire_notice *all, *mine;
    char own[1024];
    if (!s->launcher || launcher_exchanged(s->launcher))
        return rc;
    snprintf(own, sizeof own, "%s", base_error());
    all = calloc(s->size, sizeof *all);
    mine = calloc(1, sizeof *mine);
    if (all && mine && notice_make(mine, s, rc, own) == 0)
        (void)launcher_exchange(&s->launcher, mine, sizeof *mine, all,
                                base_deadline(s->join_timeout_ns ? s->join_timeout_ns : 30 * WEFT_SECOND));
    free(all);
    free(mine);
    return base_fail(rc, "%s", own);
}
