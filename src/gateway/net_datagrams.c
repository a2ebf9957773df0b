/* SPDX-License-Identifier: MIT
 *
 * The asker's side of datagrams. Each datagram is a record in the ring (struct net_datagram). A record to send is contiguous, so that the
 * gateway can fetch it with one get. A received record may wrap from the end of the ring to its start.
 */
#include "gateway/net_handle.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

int socket_read_address(const char *text, struct net_datagram *d)
{
    char host[64] = "";
    int64_t port = 0;
    bool v6 = text[0] == '[';
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    if (colon && n < sizeof host && (!v6 || colon[-1] == ']'))
        snprintf(host, sizeof host, "%.*s", (int)(n - 2 * v6), text + v6);
    d->family = v6 ? 6 : 4;
    if (!host[0] || inet_pton(v6 ? AF_INET6 : AF_INET, host, d->address) != 1 || base_parse_number(colon + 1, 1, 65535, &port))
        return base_fail(-EINVAL, "'%.80s' is not an address for a datagram: write it as in 10.0.0.1:53 or [fd00::1]:53", text);
    d->port = (uint16_t)port;
    return 0;
}

static void write_address(const struct net_datagram *d, char out[WEFT_NET_ADDRESS])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (d->family)
        inet_ntop(d->family == 6 ? AF_INET6 : AF_INET, d->address, host, sizeof host);
    snprintf(out, WEFT_NET_ADDRESS, d->family == 6 ? "[%s]:%u" : "%s:%u", host, d->port);
}

/* --- receiving --- */

static void ring_read(const struct gateway_stream *s, uint64_t from, void *to, uint64_t n)
{
    uint64_t at = from & (s->bytes - 1), gap = s->bytes - at, first = n < gap ? n : gap;
    memcpy(to, s->memory + at, first);
    memcpy((uint8_t *)to + first, s->memory, n - first);
}

int socket_next_datagram(struct weft_socket *s, struct net_datagram *d)
{
    base_spin_lock(&s->g->lock);
    const struct gateway_stream *in = s->in;
    uint64_t n = in->last - in->first;
    int rc = -EAGAIN;
    if (n >= sizeof *d) {
        ring_read(in, in->first, d, sizeof *d);
        uint64_t total = sizeof *d + d->bytes;
        rc = d->bytes > NET_DATAGRAM_ROOM - sizeof *d || total > in->bytes ? -EPROTO : n < total ? -EAGAIN : 0;
    }
    if (rc == -EAGAIN && (in->ended || s->state == SOCKET_OVER))
        rc = socket_end_of(s->state == SOCKET_OVER ? s->error : in->status ? in->status : -ECONNRESET);
    base_spin_unlock(&s->g->lock);
    return rc;
}

void socket_datagram_taken(struct weft_socket *s, const struct net_datagram *d)
{
    struct gateway_credit due = {0};
    base_spin_lock(&s->g->lock);
    gateway_stream_take(s->in, sizeof *d + d->bytes, &due);
    base_spin_unlock(&s->g->lock);
    gateway_credit_give(s->g, &due);
}

static bool has_datagram(void *arg)
{
    struct net_datagram d;
    return socket_next_datagram(arg, &d) != -EAGAIN;
}

int socket_receive_datagram(struct weft_socket *s, char from[WEFT_NET_ADDRESS], void *buf, size_t len, size_t *got, int64_t timeout_ns)
{
    struct net_datagram d;
    int rc = socket_next_datagram(s, &d);
    if (rc == -EAGAIN) {
        rc = socket_wait(s, has_datagram, s, socket_until(s, timeout_ns));
        if (rc == -ETIMEDOUT) /* a caller that does not want to wait (time-out 0) gets no error text */
            return timeout_ns
                       ? base_fail(rc, "no datagram came from %s through node %u before the deadline; receive again, or allow more time",
                                   s->what, s->node)
                       : rc;
        rc = rc ? rc : socket_next_datagram(s, &d);
    }
    if (rc)
        return socket_bytes_error(s, rc);
    if (from)
        write_address(&d, from);
    *got = d.bytes;
    if (d.bytes > len)
        return base_fail(-EMSGSIZE, "the next datagram from %s has %u bytes, but the buffer only %zu: call again with a larger buffer",
                         s->what, d.bytes, len);
    ring_read(s->in, s->in->first + sizeof d, buf, d.bytes); /* without the lock: only the thread that receives changes `first` */
    socket_datagram_taken(s, &d);
    return 0;
}

/* --- sending --- */

struct wanted {
    struct weft_socket *s;
    uint64_t bytes, skip; /* bytes of the record, and bytes to skip before the record (struct net_datagram) */
};

/* Finds room for a record. Returns -EAGAIN if there is no room now. */
static int record_room(struct wanted *want)
{
    struct weft_socket *s = want->s;
    base_spin_lock(&s->g->lock);
    const struct gateway_stream *out = s->out;
    uint64_t room = out->bytes - (out->last - out->first), gap = out->bytes - (out->last & (out->bytes - 1));
    want->skip = gap < want->bytes ? gap : 0;
    int rc = s->state == SOCKET_OVER           ? socket_end_of(s->error)
             : s->state == SOCKET_OPENS        ? -EAGAIN
             : out->shut || out->ended         ? -EPIPE
             : room < want->skip + want->bytes ? -EAGAIN
                                               : 0;
    base_spin_unlock(&s->g->lock);
    return rc;
}

static bool has_record_room(void *arg)
{
    return record_room(arg) != -EAGAIN;
}

int socket_datagram_room(struct weft_socket *s, size_t len, uint64_t *skip)
{
    struct wanted want = {s, sizeof(struct net_datagram) + len, 0};
    int rc = record_room(&want);
    *skip = want.skip;
    return rc;
}

int socket_datagram_put(struct weft_socket *s, const struct net_datagram *d, uint64_t skip)
{
    struct gateway_stream *out = s->out;
    uint8_t *at = out->memory + (out->last & (out->bytes - 1)); /* without the lock: only the thread that sends changes `last` */
    if (skip >= sizeof *d)
        memcpy(at, &(struct net_datagram){.bytes = NET_DATAGRAM_SKIP}, sizeof *d);
    memcpy(skip ? out->memory : at, d, sizeof *d);
    return gateway_stream_send(out, NULL, skip + sizeof *d + d->bytes, false, 0);
}

int socket_send_datagram(struct weft_socket *s, const char *to, const void *buf, size_t len, int64_t timeout_ns)
{
    struct net_datagram d = {.bytes = (uint32_t)len};
    struct wanted want = {s, sizeof d + len, 0};
    int64_t deadline = fab_timeout(s->g->w, timeout_ns);
    if (len > WEFT_NET_DATAGRAM_MAX)
        return base_fail(-EMSGSIZE, "a datagram of %zu bytes to %s is too large: send at most %u bytes in one datagram", len,
                         to ? to : s->what, WEFT_NET_DATAGRAM_MAX);
    int rc = to ? socket_read_address(to, &d) : 0;
    if (!rc && (rc = record_room(&want)) == -EAGAIN) {
        rc = socket_wait(s, has_record_room, &want, deadline);
        if (rc == -ETIMEDOUT)
            return timeout_ns ? base_fail(rc,
                                          "node %u has not yet sent earlier datagrams to %s, so there was no room for another one before "
                                          "the deadline; try again, or allow more time",
                                          s->node, s->what)
                              : rc;
        rc = rc ? rc : record_room(&want);
        if (rc)
            return socket_bytes_error(s, rc);
    } else if (rc) {
        return to && rc == -EINVAL ? rc : socket_bytes_error(s, rc);
    }
    const struct gateway_stream *out = s->out;
    uint8_t *at = out->memory + (want.skip ? 0 : out->last & (out->bytes - 1));
    memcpy(at + sizeof d, buf, len);
    return socket_datagram_put(s, &d, want.skip);
}

static int no_datagrams(const struct weft_socket *s)
{
    return base_fail(-EINVAL, "the socket %s at node %u is not for datagrams: open it with WEFT_NET_DATAGRAMS", s->what, s->node);
}

int weft_net_send_to(weft_socket *s, const char *to, const void *buf, size_t len, int64_t timeout_ns)
{
    if (!(s->flags & WEFT_NET_DATAGRAMS))
        return no_datagrams(s);
    if (s->peer[0] || !to) /* a socket with a peer sends only to this peer, because the gateway has checked no other address */
        return base_fail(-EINVAL,
                         s->peer[0] ? "the socket %s sends only to the address that it was opened for: use weft_net_send()"
                                    : "the socket %s was opened without an address: give weft_net_send_to() one",
                         s->what);
    return socket_send_datagram(s, to, buf, len, timeout_ns);
}

int weft_net_receive_from(weft_socket *s, char from[WEFT_NET_ADDRESS], void *buf, size_t len, size_t *got, int64_t timeout_ns)
{
    *got = 0;
    return s->flags & WEFT_NET_DATAGRAMS ? socket_receive_datagram(s, from, buf, len, got, timeout_ns) : no_datagrams(s);
}
