/* SPDX-License-Identifier: MIT
 *
 * Datagrams of a proxy: see proxy_udp.h. A datagram for which there is no room is dropped, as on any network.
 */
#include "cli/proxy_udp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/proxy_talk.h"
#include "gateway/net.h"

#define TURNS    64u                 /* how many datagrams are handled before other connections are served */
#define WAIT_MAX 8u                  /* how many datagrams of a flow may wait until the flow is open */
#define IDLE_NS  (120 * WEFT_SECOND) /* a flow without datagrams for this time ends */
#define AGAIN_NS (5 * WEFT_SECOND)   /* how long a flow that could not be opened stays refused */

struct datagram {
    struct datagram *next;
    size_t bytes;
    uint8_t at[];
};
struct flow {
    struct forward_changed changed; /* must be the first member */
    struct association *a;
    struct flow *next;
    char host[256];
    uint32_t port;
    weft_socket *net;
    weft_op op;
    bool open, refused;
    int64_t used;
    struct datagram *waiting;
    unsigned waits;
};
struct association {
    struct proxy_udp *u;
    struct association *next, **at;
    struct net_address client;  /* where the client's datagrams come from; port 0: not known yet */
    struct sockaddr_storage to; /* the address `client` in the form that sendto() needs, once it is known */
    socklen_t to_len;
    struct flow *flows;
};
struct proxy_udp {
    struct forward *f;
    struct gateway_watches *watches;
    struct gateway_watch watch;
    struct forward_list changed;
    struct association *associations;
    uint32_t count, flows;
    uint8_t buffer[65536 + TALK_DATAGRAM_HEAD];
};

/* --- flows --- */

static void notice(void *arg)
{
    struct flow *w = arg;
    forward_list_add(&w->a->u->changed, &w->changed);
}

static void flow_free(struct flow **at)
{
    struct flow *w = *at;
    struct proxy_udp *u = w->a->u;
    weft_net_close(w->net); /* after this, notice() is not called any more */
    forward_list_remove(&u->changed, &w->changed);
    for (struct datagram *d; (d = w->waiting);) {
        w->waiting = d->next;
        free(d);
    }
    *at = w->next;
    u->flows--;
    free(w);
}

static void free_oldest(struct proxy_udp *u)
{
    struct flow **oldest = NULL;
    for (struct association *a = u->associations; a; a = a->next)
        for (struct flow **at = &a->flows; *at; at = &(*at)->next)
            if (!oldest || (*at)->used < (*oldest)->used)
                oldest = at;
    if (oldest)
        flow_free(oldest);
}

static struct flow *flow_new(struct association *a, const char *host, uint32_t port)
{
    struct proxy_udp *u = a->u;
    if (u->flows >= FLOWS_MAX)
        free_oldest(u);
    struct flow *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->a = a;
    w->port = port;
    snprintf(w->host, sizeof w->host, "%s", host);
    const weft_net_spec spec = {.bytes = sizeof spec, .host = w->host, .port = port, .flags = WEFT_NET_DATAGRAMS};
    if (weft_net_connect_start(u->f->w, u->f->gateway, &spec, &w->net, &w->op)) {
        free(w);
        return NULL;
    }
    w->next = a->flows;
    a->flows = w;
    u->flows++;
    weft_net_notify(w->net, notice, w);
    notice(w); /* the socket may be open already */
    return w;
}

static void flow_send(struct flow *w, const uint8_t *bytes, size_t n)
{
    if (weft_net_send(w->net, bytes, n, NULL, 0) == 0)
        forward_count(&w->a->u->f->up_bytes, n);
}

static void flow_keep(struct flow *w, const uint8_t *bytes, size_t n)
{
    struct datagram *d = w->waits < WAIT_MAX ? malloc(sizeof *d + n) : NULL, **last = &w->waiting;
    if (!d)
        return;
    d->next = NULL;
    d->bytes = n;
    memcpy(d->at, bytes, n);
    while (*last)
        last = &(*last)->next;
    *last = d;
    w->waits++;
}

static void flow_opened(struct flow *w)
{
    int rc = weft_net_error(w->net);
    if (rc == -EINPROGRESS)
        return;
    w->open = rc == 0;
    w->refused = rc != 0;
    w->used = base_now_ns();
    forward_count(rc ? &w->a->u->f->refused : &w->a->u->f->connections, 1);
    for (struct datagram *d; (d = w->waiting);) {
        if (w->open)
            flow_send(w, d->at, d->bytes);
        w->waiting = d->next;
        free(d);
    }
}

/* Passes datagrams that have arrived from the network on to the client. */
static void flow_receive(struct flow *w)
{
    struct proxy_udp *u = w->a->u;
    char from[WEFT_NET_ADDRESS];
    size_t n = 0;
    for (unsigned i = 0; i < TURNS; i++) {
        uint8_t *at = u->buffer + TALK_DATAGRAM_HEAD;
        if (weft_net_receive_from(w->net, from, at, 65536, &n, 0))
            return;
        size_t head = talk_datagram_head(at, from);
        w->used = base_now_ns();
        if (sendto(u->watch.fd, at - head, head + n, MSG_DONTWAIT, (struct sockaddr *)&w->a->to, w->a->to_len) > 0)
            forward_count(&u->f->down_bytes, n);
    }
    notice(w); /* continue after other flows were served */
}

bool proxy_udp_go_on(struct proxy_udp *u)
{
    for (unsigned i = 0; i < FLOWS_MAX; i++) {
        struct flow *w = (struct flow *)forward_list_take(&u->changed);
        if (!w)
            return true;
        if (!w->open && !w->refused)
            flow_opened(w);
        if (w->open)
            flow_receive(w);
    }
    return false;
}

void proxy_udp_tick(struct proxy_udp *u)
{
    int64_t now = base_now_ns();
    for (struct association *a = u->associations; a; a = a->next)
        for (struct flow **at = &a->flows; *at;)
            if (now - (*at)->used > ((*at)->refused ? AGAIN_NS : IDLE_NS))
                flow_free(at);
            else
                at = &(*at)->next;
}

/* --- clients --- */

static uint16_t *port_of(struct net_address *a)
{
    return a->any.sa_family == AF_INET6 ? &a->v6.sin6_port : &a->v4.sin_port;
}

static bool same_host(const struct net_address *a, const struct net_address *b)
{
    if (a->any.sa_family != b->any.sa_family)
        return false;
    return a->any.sa_family == AF_INET6 ? memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, 16) == 0
                                        : a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
}

/* Finds the association to which a datagram belongs. This is the association whose client has the datagram's source address and port. If
 * there is none, it is the oldest association with this address whose port is not known yet. */
static struct association *association_of(struct proxy_udp *u, struct net_address *from)
{
    struct association *first = NULL;
    for (struct association *a = u->associations; a; a = a->next) {
        if (!same_host(&a->client, from))
            continue;
        if (*port_of(&a->client) == *port_of(from))
            return a;
        if (!*port_of(&a->client))
            first = a; /* no break: the list begins with the newest association, and the oldest is wanted */
    }
    if (first)
        *port_of(&first->client) = *port_of(from);
    return first;
}

static struct association *take_datagram(struct proxy_udp *u, struct net_address *from, const uint8_t *in, size_t n)
{
    char host[256];
    uint32_t port;
    size_t head = talk_datagram(in, n, host, &port);
    struct association *a = head ? association_of(u, from) : NULL;
    if (!a)
        return NULL;
    struct flow *w = a->flows;
    while (w && (w->port != port || strcmp(w->host, host) != 0))
        w = w->next;
    if (!w && !(w = flow_new(a, host, port)))
        return a;
    if (!w->refused)
        w->used = base_now_ns();
    if (w->open)
        flow_send(w, in + head, n - head);
    else if (!w->refused)
        flow_keep(w, in + head, n - head);
    return a;
}

static void on_datagram(struct gateway_watch *watch)
{
    struct proxy_udp *u = watch->arg;
    for (unsigned i = 0; i < TURNS; i++) {
        struct net_address from;
        struct sockaddr_storage a;
        socklen_t len = sizeof a;
        ssize_t n = recvfrom(watch->fd, u->buffer, sizeof u->buffer, MSG_DONTWAIT, (struct sockaddr *)&a, &len);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        struct association *of =
            n > 0 && net_address_take(&from, (struct sockaddr *)&a, len) ? take_datagram(u, &from, u->buffer, (size_t)n) : NULL;
        if (of) {
            of->to = a;
            of->to_len = len;
        }
    }
}

struct association *proxy_udp_associate(struct proxy_udp *u, int client, uint32_t port, char at[FORWARD_ADDRESS])
{
    struct sockaddr_storage peer, own, bound;
    socklen_t peer_len = sizeof peer, own_len = sizeof own, bound_len = sizeof bound;
    struct net_address here, there;
    struct association *a = u->watch.fd >= 0 && u->count < ASSOCIATIONS_MAX ? calloc(1, sizeof *a) : NULL;
    if (!a || getpeername(client, (struct sockaddr *)&peer, &peer_len) || getsockname(client, (struct sockaddr *)&own, &own_len) ||
        getsockname(u->watch.fd, (struct sockaddr *)&bound, &bound_len) ||
        !net_address_take(&a->client, (struct sockaddr *)&peer, peer_len) || !net_address_take(&here, (struct sockaddr *)&own, own_len) ||
        !net_address_take(&there, (struct sockaddr *)&bound, bound_len)) {
        free(a);
        return NULL;
    }
    *port_of(&a->client) = htons((uint16_t)port);
    *port_of(&here) = *port_of(&there); /* `here` is the proxy's address to which the client has connected, so the client can reach it */
    net_address_text(&here, at, FORWARD_ADDRESS);
    a->u = u;
    a->next = u->associations;
    a->at = &u->associations;
    if (a->next)
        a->next->at = &a->next;
    u->associations = a;
    u->count++;
    return a;
}

void proxy_udp_leave(struct association *a)
{
    if (!a)
        return;
    while (a->flows)
        flow_free(&a->flows);
    *a->at = a->next;
    if (a->next)
        a->next->at = a->at;
    a->u->count--;
    free(a);
}

/* --- begin and end --- */

int proxy_udp_open(struct proxy_udp **out, struct forward *f, struct forward_loop *loop, int fd)
{
    struct proxy_udp *u = *out = calloc(1, sizeof *u);
    if (!u)
        return -ENOMEM;
    u->f = f;
    u->watches = loop->watches;
    u->watch.fd = -1;
    forward_list_init(&u->changed, loop->changed.wake_fd);
    return fd < 0 ? 0 : forward_loop_watch(loop, &u->watch, fd, on_datagram, u);
}

void proxy_udp_close(struct proxy_udp *u)
{
    if (!u)
        return;
    while (u->associations)
        proxy_udp_leave(u->associations);
    gateway_unwatch(u->watches, &u->watch);
    free(u);
}
