/* SPDX-License-Identifier: MIT
 *
 * Datagrams of one socket of the gateway. Streams carry bytes, so each datagram is a record in its stream: a struct net_datagram and then
 * the bytes.
 */
#include "gateway/net.h"

#include <string.h>

#define SAY_NS WEFT_SECOND /* dropped datagrams of a socket are logged at most once in this time */

int64_t net_datagram_read(struct net_datagram *out, const uint8_t *at, uint64_t have, uint64_t gap)
{
    *out = (struct net_datagram){.bytes = NET_DATAGRAM_SKIP};
    if (gap < sizeof *out)
        return (int64_t)gap;
    if (have < sizeof *out)
        return 0;
    memcpy(out, at, sizeof *out);
    if (out->bytes == NET_DATAGRAM_SKIP)
        return (int64_t)gap;
    uint64_t total = sizeof *out + out->bytes;
    if (out->bytes > WEFT_NET_DATAGRAM_MAX || total > gap || out->zero || (out->family != 0 && out->family != 4 && out->family != 6))
        return -EPROTO;
    return have < total ? 0 : (int64_t)total;
}

static void address_of(const struct net_datagram *d, struct net_address *out)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(d->port)};
    if (d->family == 4)
        memcpy(a.sin6_addr.s6_addr, (const uint8_t[12]){[10] = 0xff, [11] = 0xff}, 12);
    memcpy(a.sin6_addr.s6_addr + (d->family == 4 ? 12 : 0), d->address, d->family == 4 ? 4 : 16);
    /* converts an address such as ::ffff:10.0.0.1 to IPv4, so that the rules for IPv4 apply */
    (void)net_address_take(out, (struct sockaddr *)&a, sizeof a);
}

static void datagram_dropped(struct net_socket *s, const char *to, uint32_t bytes, const char *why)
{
    int64_t now = base_now_ns();
    if (s->said && now - s->said < SAY_NS)
        return;
    s->said = now;
    base_log(BASE_LOG_WARN, "net: dropped a datagram of %u bytes from node %u to %s: %s", bytes, s->node, to, why);
}

/* For an IPv6 socket, converts an IPv4 address to the form ::ffff:10.0.0.1. */
static void as_family(struct net_address *a, int family)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = a->v4.sin_port};
    if (a->any.sa_family == family || family != AF_INET6)
        return;
    memcpy(v6.sin6_addr.s6_addr, (const uint8_t[12]){[10] = 0xff, [11] = 0xff}, 12);
    memcpy(v6.sin6_addr.s6_addr + 12, &a->v4.sin_addr, 4);
    a->v6 = v6;
    a->len = sizeof v6;
}

int64_t net_udp_send(struct net_socket *s, const uint8_t *at, uint64_t have, uint64_t gap, bool *skip)
{
    struct net_datagram d;
    struct net_address to = {.len = 0};
    char text[NET_ADDRESS_TEXT] = "its peer", why[NET_HOST_MAX + 128];
    int64_t total = net_datagram_read(&d, at, have, gap);
    *skip = total > 0 && d.bytes == NET_DATAGRAM_SKIP;
    if (total <= 0 || *skip)
        return total;
    if (d.family) {
        address_of(&d, &to);
        net_address_text(&to, text, sizeof text);
        if (!net_rules_allow(s->all->rules, &(struct net_target){.host = "", .to = &to}, why, sizeof why)) {
            datagram_dropped(s, text, d.bytes, why);
            return total;
        }
        as_family(&to, s->address.any.sa_family);
    }
    struct iovec bytes = {(void *)(uintptr_t)(at + sizeof d), d.bytes};
    struct msghdr m = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_name = to.len ? &to.any : NULL, .msg_namelen = to.len};
    ssize_t n;
    do
        n = sendmsg(s->watch.fd, &m, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return -EAGAIN;
    if (n < 0 && errno != ECONNREFUSED) /* ECONNREFUSED is about an earlier datagram */
        datagram_dropped(s, text, d.bytes, base_strerror(-errno));
    return total;
}

/* --- from the network --- */

uint64_t net_udp_room(const struct gateway_stream *down)
{
    base_spin_lock(&down->g->lock);
    uint64_t room = down->shut || down->ended ? 0 : down->bytes - (down->last - down->first);
    base_spin_unlock(&down->g->lock);
    return room >= NET_DATAGRAM_ROOM ? room : 0;
}

/* Appends a record to the stream. The caller has checked that there is room. */
static int stream_append(struct gateway_stream *s, const uint8_t *bytes, uint64_t n)
{
    struct iovec piece[2];
    if (s->memory) {
        (void)gateway_stream_room(s, piece);
        uint64_t first = n < piece[0].iov_len ? n : piece[0].iov_len;
        memcpy(piece[0].iov_base, bytes, first);
        memcpy(piece[1].iov_base, bytes + first, n - first);
        return gateway_stream_send(s, NULL, n, false, 0);
    }
    int rc = 0;
    for (uint64_t at = 0, some; at < n && !rc; at += some) {
        some = n - at < WEFT_PAYLOAD_MAX ? n - at : WEFT_PAYLOAD_MAX;
        rc = gateway_stream_send(s, bytes + at, some, false, 0);
    }
    return rc;
}

bool net_udp_receive(struct net_socket *s)
{
    uint8_t record[NET_DATAGRAM_ROOM]; /* not thread-local, because every thread would need this memory */
    struct sockaddr_storage from;
    struct net_address a;
    struct net_datagram d = {.bytes = 0};
    if (!net_udp_room(s->down))
        return false;
    struct iovec bytes = {record + sizeof d, sizeof record - sizeof d};
    struct msghdr m = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_name = &from, .msg_namelen = sizeof from};
    ssize_t n = recvmsg(s->watch.fd, &m, 0);
    if (n < 0) /* EAGAIN: there is no datagram; any other error is about a datagram that was sent, and is ignored */
        return errno != EAGAIN && errno != EWOULDBLOCK;
    d.bytes = (uint32_t)n;
    if (net_address_take(&a, (struct sockaddr *)&from, m.msg_namelen)) {
        bool v4 = a.any.sa_family == AF_INET;
        d.family = v4 ? 4 : 6;
        d.port = ntohs(v4 ? a.v4.sin_port : a.v6.sin6_port);
        memcpy(d.address, v4 ? (const void *)&a.v4.sin_addr : a.v6.sin6_addr.s6_addr, v4 ? 4 : 16);
    }
    memcpy(record, &d, sizeof d);
    return stream_append(s->down, record, sizeof d + (uint64_t)n) == 0;
}
