/* SPDX-License-Identifier: MIT
 *
 * Opens the sockets of the net service: resolves a name, checks each address by the rules, and connects to the first address that answers.
 * A name is resolved only once, so that the gateway connects to the address that it has checked.
 */
#include "gateway/net.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define RESOLVE_NS (15 * WEFT_SECOND) /* how long resolving a name may take */
#define TRY_NS     (3 * WEFT_SECOND)  /* how long to try an address if other addresses are left to try */
#define BACKLOG    128

static uint32_t own_rank(const struct net *all)
{
    return gateway_of(all->server)->w->rank;
}

/* A socket could not be opened: answers its request with this thread's weft_error() text, and frees the socket. */
static void open_failed(struct net_socket *s, int rc)
{
    struct gateway_call *c = s->call;
    s->call = NULL;
    s->down_over = s->up_over = true;
    gateway_answer_error(c, rc); /* called before net_socket_free(), which may set another error text */
    net_socket_free(s);
}

static void open_done(struct net_socket *s, struct gateway_call *c, enum net_state state)
{
    char text[2 * NET_ADDRESS_TEXT] = "";
    size_t n = 0;
    s->call = NULL;
    s->state = state;
    net_socket_untime(s);
    s->deadline = INT64_MAX;
    if (state != NET_LISTENS && s->lookup) {
        net_lookup_free(s->lookup);
        s->lookup = NULL;
    }
    for (int far = 0; far < 2; far++) {
        struct sockaddr_storage a;
        struct net_address own;
        socklen_t len = sizeof a;
        if (far && c->record.kind == NET_CONNECT && s->address.len) {
            net_address_text(&s->address, text + n, NET_ADDRESS_TEXT);
            n += strlen(text + n) + 1;
            continue;
        }
        int rc = far ? getpeername(s->watch.fd, (struct sockaddr *)&a, &len) : getsockname(s->watch.fd, (struct sockaddr *)&a, &len);
        if (rc == 0 && net_address_take(&own, (struct sockaddr *)&a, len))
            net_address_text(&own, text + n, NET_ADDRESS_TEXT);
        n += strlen(text + n) + 1;
    }
    const uint64_t words[2] = {s->id, s->up ? s->up->id : 0};
    gateway_answer(c, 0, words, 2, text, n);
    if (!(s->watch.events & GATEWAY_READABLE)) /* if the socket is watched, ready() is called when the first bytes arrive */
        net_socket_move(s);
}

/* --- options --- */

static void set_number(int fd, int level, int option, int value)
{
    /* errors are ignored: these options only tune a connection, which works without them */
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

static void set_options(int fd, uint32_t flags, uint64_t receive, uint64_t send)
{
    if (flags & WEFT_NET_NODELAY && !(flags & WEFT_NET_DATAGRAMS))
        set_number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (flags & WEFT_NET_KEEPALIVE)
        set_number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    if (receive)
        set_number(fd, SOL_SOCKET, SO_RCVBUF, (int)receive);
    if (send)
        set_number(fd, SOL_SOCKET, SO_SNDBUF, (int)send);
#if defined(SO_NOSIGPIPE)
    set_number(fd, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
}

static int open_socket(const struct net_socket *s)
{
    const weft_request *r = &s->call->record;
    int fd = gateway_socket(s->address.any.sa_family, s->lookup->type);
    if (fd < 0)
        return fd;
    set_options(fd, s->flags, r->arg[7], r->arg[8]);
    return fd;
}

/* --- connecting --- */

static const char *host_of(const struct net_socket *s)
{
    return s->lookup->host[0] ? s->lookup->host : "*";
}

static int connect_refused(struct net_socket *s)
{
    const char *port = s->lookup->port, *host = !s->lookup->host[0] ? "localhost" : s->lookup->host;
    if (s->tried == -EACCES && port[0])
        return s->tried; /* deny() has set the error text */
    return base_fail(s->tried, "node %u cannot connect to %s%s%s: %s", own_rank(s->all), host, port[0] ? " port " : "", port,
                     base_strerror(s->tried));
}

/* The canonical name of the host; NULL: the name server gave none. */
static const char *canonical_of(const struct net_socket *s)
{
    const struct addrinfo *first = s->lookup->found;
    return first && s->lookup->canonical ? first->ai_canonname : NULL;
}

static int deny(struct net_socket *s, const char *why)
{
    char text[NET_ADDRESS_TEXT];
    net_address_text(&s->address, text, sizeof text);
    base_log(BASE_LOG_WARN, "net: refused to connect to %s port %s (%s) for node %u: %s", host_of(s), s->lookup->port, text, s->node, why);
    return base_fail(-EACCES, "node %u may not connect to %s port %s (%s): %s", own_rank(s->all), host_of(s), s->lookup->port, text, why);
}

static bool is_connected(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    return getpeername(fd, (struct sockaddr *)&a, &len) == 0;
}

/* Tries the next address that the rules allow. Returns 0 if it is connected, 1 if it is still connecting, or the error of the last address
 * that failed. */
static int connect_next(struct net_socket *s)
{
    char why[2 * NET_HOST_MAX + 128];
    while (s->next_address) {
        const struct addrinfo *a = s->next_address;
        s->next_address = a->ai_next;
        if (!net_address_take(&s->address, a->ai_addr, (socklen_t)a->ai_addrlen))
            continue;
        const struct net_target target = {
            .host = s->lookup->host, .canonical = canonical_of(s), .to = &s->address, .near = s->flags & WEFT_NET_LOOPBACK};
        if (!net_rules_allow(s->all->rules, &target, why, sizeof why)) {
            int rc = deny(s, why);
            s->tried = s->tried ? s->tried : rc;
            continue;
        }
        int fd = open_socket(s), rc = fd < 0 ? fd : connect(fd, &s->address.any, s->address.len) ? -errno : 0;
        if (rc == -EINPROGRESS && is_connected(fd)) /* a host nearby answers while connect() runs */
            rc = 0;
        if (rc && rc != -EINPROGRESS) {
            if (fd >= 0)
                close(fd);
            s->tried = rc;
            continue;
        }
        s->tried = net_socket_watch(s, fd, rc ? GATEWAY_WRITABLE : GATEWAY_READABLE);
        if (!s->tried) {
            net_socket_time(s, s->next_address ? base_deadline(TRY_NS) : INT64_MAX);
            return rc ? 1 : 0;
        }
    }
    s->tried = s->tried ? s->tried : -EADDRNOTAVAIL;
    return s->tried;
}

static void connect_go_on(struct net_socket *s)
{
    s->state = NET_CONNECTS;
    int rc = connect_next(s);
    if (rc == 0)
        open_done(s, s->call, NET_OPEN);
    else if (rc < 0)
        open_failed(s, connect_refused(s));
}

/* Connects to a Unix socket of this host. s->lookup->host is its path. */
static void connect_path(struct net_socket *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const weft_request *r = &s->call->record;
    size_t len = strlen(s->lookup->host);
    int fd = -1, rc = 0;
    s->state = NET_CONNECTS;
    s->lookup->port[0] = '\0';
    if (len >= sizeof a.sun_path)
        rc = -ENAMETOOLONG;
    else if ((fd = gateway_socket(AF_UNIX, SOCK_STREAM)) < 0)
        rc = fd;
    if (!rc) {
        memcpy(a.sun_path, s->lookup->host, len + 1);
        set_options(fd, 0, r->arg[7], r->arg[8]);
        /* connect() does not wait here: -EAGAIN means that the listener's backlog is full */
        rc = connect(fd, (struct sockaddr *)&a, sizeof a) ? -errno : 0;
        if (!rc)
            rc = net_socket_watch(s, fd, 0);
        else
            close(fd);
    }
    s->tried = rc;
    if (rc)
        open_failed(s, connect_refused(s));
    else
        open_done(s, s->call, NET_OPEN);
}

static void connect_ready(struct net_socket *s)
{
    int error = 0;
    socklen_t len = sizeof error;
    if (getsockopt(s->watch.fd, SOL_SOCKET, SO_ERROR, &error, &len))
        error = errno;
    if (!error) {
        open_done(s, s->call, NET_OPEN);
        return;
    }
    s->tried = -error;
    gateway_unwatch(gateway_server_watches(s->all->server), &s->watch);
    connect_go_on(s);
}

/* --- listening --- */

static int listen_now(struct net_socket *s)
{
    const weft_request *r = &s->call->record;
    int rc = -EADDRNOTAVAIL, fd;
    for (const struct addrinfo *a = s->next_address; a; a = a->ai_next) {
        if (!net_address_take(&s->address, a->ai_addr, (socklen_t)a->ai_addrlen))
            continue;
        if ((fd = open_socket(s)) < 0) {
            rc = fd;
            continue;
        }
        if (s->flags & WEFT_NET_REUSE)
            set_number(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        if (s->address.any.sa_family == AF_INET6)
            set_number(fd, IPPROTO_IPV6, IPV6_V6ONLY, s->flags & WEFT_NET_IPV6 ? 1 : 0);
        int backlog = r->arg[9] && r->arg[9] < 65536 ? (int)r->arg[9] : BACKLOG;
        if (bind(fd, &s->address.any, s->address.len) == 0 && (s->lookup->type == SOCK_DGRAM || listen(fd, backlog) == 0))
            return net_socket_watch(s, fd, 0);
        rc = -errno;
        close(fd);
    }
    return rc;
}

static void listen_go_on(struct net_socket *s)
{
    int rc = listen_now(s);
    /* the system has no IPv6: listen at all addresses of IPv4 instead */
    if (rc == -EAFNOSUPPORT && !s->lookup->host[0] && !(s->flags & WEFT_NET_IPV6)) {
        freeaddrinfo(s->lookup->found);
        s->lookup->family = AF_INET;
        rc = net_names_numeric(s->lookup);
        s->next_address = s->lookup->found;
        rc = rc ? rc : listen_now(s);
    }
    if (rc)
        open_failed(
            s, base_fail(rc, "node %u cannot listen at %s port %s: %s", own_rank(s->all), host_of(s), s->lookup->port, base_strerror(rc)));
    else
        open_done(s, s->call, s->lookup->type == SOCK_DGRAM ? NET_OPEN : NET_LISTENS);
}

static void accept_ready(struct net_socket *s)
{
    for (struct gateway_call *c; (c = s->accepts);) {
        struct net_socket *new;
        int fd = gateway_accept(s->watch.fd);
        int rc = fd < 0 ? fd : 0;
        if (rc == -EINTR || rc == -ECONNABORTED)
            continue;
        if (rc == -EAGAIN || rc == -EWOULDBLOCK)
            break;
        if (!(s->accepts = c->next))
            s->accepts_last = &s->accepts;
        if (rc)
            base_fail(rc, "node %u cannot accept a connection at port %s: %s", own_rank(s->all), s->lookup->port, base_strerror(rc));
        else if ((rc = net_socket_new(s->all, s->node, s->flags, &new)))
            close(fd);
        if (rc) {
            gateway_answer_error(c, rc);
            continue;
        }
        set_options(fd, s->flags, 0, 0);
        new->call = c;
        new->state = NET_CONNECTS;
        rc = net_socket_streams(new, &c->record);
        if (rc) {
            close(fd);
            open_failed(new, rc);
        } else if ((rc = net_socket_watch(new, fd, 0))) {
            open_failed(new, base_fail(rc, "node %u cannot wait for bytes of a new connection: %s", own_rank(s->all), base_strerror(rc)));
        } else {
            open_done(new, c, NET_OPEN);
        }
    }
    gateway_watch_events(gateway_server_watches(s->all->server), &s->watch, s->accepts ? GATEWAY_READABLE : 0);
}

void net_open_accept(struct net_socket *listener, struct gateway_call *c)
{
    c->next = NULL;
    *listener->accepts_last = c;
    listener->accepts_last = &c->next;
    accept_ready(listener);
}

/* --- the start of all requests for a socket --- */

static void on_open_ready(struct gateway_watch *watch)
{
    struct net_socket *s = watch->arg;
    if (s->state == NET_CONNECTS)
        connect_ready(s);
    else if (s->state == NET_LISTENS)
        accept_ready(s);
    else
        net_socket_move(s);
}

static void open_go_on(struct net_socket *s)
{
    s->next_address = s->lookup->found;
    net_socket_untime(s);
    if (s->call->record.kind == NET_LISTEN)
        listen_go_on(s);
    else
        connect_go_on(s);
}

static void resolve_failed(struct net_socket *s, int rc)
{
    const char *why = rc == -ENOENT      ? "the name is not known; check it"
                      : rc == -EAGAIN    ? "the name server does not answer; check the name servers of that node's host"
                      : rc == -ETIMEDOUT ? "no answer within 15 s"
                                         : base_strerror(rc);
    open_failed(s, base_fail(rc == -ENOENT ? -EHOSTUNREACH : rc, "node %u cannot resolve '%s': %s", own_rank(s->all), host_of(s), why));
}

void net_open_resolved(struct net_lookup *l)
{
    struct net_socket *s = l->owner;
    s->state = NET_CONNECTS; /* from here on the socket owns the lookup */
    if (l->result)
        resolve_failed(s, l->result);
    else
        open_go_on(s);
}

void net_open_timeout(struct net_socket *s)
{
    s->deadline = INT64_MAX;
    if (s->state == NET_RESOLVES) {
        base_fail(-ETIMEDOUT, "node %u cannot resolve '%s': no answer within 15 s; check the name servers of that node's host",
                  own_rank(s->all), host_of(s));
        open_failed(s, -ETIMEDOUT);
    } else if (s->state == NET_CONNECTS) {
        s->tried = -ETIMEDOUT;
        gateway_unwatch(gateway_server_watches(s->all->server), &s->watch);
        connect_go_on(s);
    } else if (s->closing) {
        struct gateway_call *c = s->call;
        s->call = NULL;
        s->up_over = false; /* makes net_socket_free() reset the connection */
        net_socket_free(s);
        base_fail(-ETIMEDOUT, "the gateway has reset the connection, because the other end did not read the last bytes within 10 s after "
                              "this end had closed the connection");
        gateway_answer_error(c, -ETIMEDOUT);
    }
}

static int check_open(const weft_request *r)
{
    const uint32_t both = WEFT_NET_IPV4 | WEFT_NET_IPV6;
    if (r->flags & ~WEFT_NET_FLAGS || (r->flags & both) == both)
        return base_fail(-EINVAL, "the request to open a socket has flags (%#x) that are unknown, or exclude each other", r->flags);
    if (r->arg[0] > 65535)
        return base_fail(-EINVAL, "the request to open a socket has the port %llu: expected at most 65535", (unsigned long long)r->arg[0]);
    if (r->data_bytes > NET_HOST_MAX)
        return base_fail(-EINVAL, "the request to open a socket has a host's name of %llu bytes: expected at most %u",
                         (unsigned long long)r->data_bytes, NET_HOST_MAX);
    if (r->arg[7] > INT32_MAX || r->arg[8] > INT32_MAX)
        return base_fail(-EINVAL, "the request to open a socket has a system's buffer of 2 GiB or more: expected less");
    bool near = r->flags & WEFT_NET_LOOPBACK, path = near && r->data_bytes;
    if (near ? r->kind != NET_CONNECT || path == (r->arg[0] != 0) : r->kind == NET_CONNECT && (!r->arg[0] || !r->data_bytes))
        return base_fail(
            -EINVAL,
            "the request to connect is invalid: the host or the port is missing, or both a port and a path of a Unix socket are given");
    bool udp = r->flags & WEFT_NET_DATAGRAMS;
    if (udp && (path || r->arg[3] < NET_DATAGRAM_RING || r->arg[6] < NET_DATAGRAM_RING))
        return base_fail(-EINVAL, "the request to open a socket for datagrams is invalid: it must not name a Unix socket, and its buffers "
                                  "must have at least 128 KiB");
    return 0;
}

/* Askers may connect to servers on this host only if they may also start programs here, because such a program could connect, too. */
static int check_near(const struct net *all, const struct gateway_call *c)
{
    if (!(c->record.flags & WEFT_NET_LOOPBACK))
        return 0;
    if (!(gateway_of(all->server)->offered >> WEFT_SERVICE_PROCESS & 1))
        return base_fail(-EACCES,
                         "node %u does not connect other nodes to servers on its own host, because it does not offer 'process'; set "
                         "WEFT_SERVE=process,net there",
                         own_rank(all));
    if (c->record.data_bytes && c->data[0] != '/')
        return base_fail(-EINVAL, "the request to connect to a Unix socket is invalid: the path must be absolute");
    return 0;
}

/* Whether a host has only allowed characters. Others could deceive the rules or the log: the resolver reads "\097" as "a", and a line break
 * could forge lines of the log. */
static bool is_host(const uint8_t *host, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (host[i] <= ' ' || host[i] == 0x7f || host[i] == '\\')
            return false;
    return true;
}

static struct net_lookup *lookup_of(struct net_socket *s, const struct gateway_call *c)
{
    const weft_request *r = &c->record;
    struct net_lookup *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    *l = (struct net_lookup){.work.asker = c->node,
                             .canonical = r->kind == NET_CONNECT && net_rules_deny_names(s->all->rules),
                             .resolved = net_open_resolved,
                             .family = r->flags & WEFT_NET_IPV4   ? AF_INET
                                       : r->flags & WEFT_NET_IPV6 ? AF_INET6
                                                                  : AF_UNSPEC,
                             .type = r->flags & WEFT_NET_DATAGRAMS ? SOCK_DGRAM : SOCK_STREAM,
                             .passive = r->kind == NET_LISTEN,
                             .owner = s};
    if (r->data_bytes)
        memcpy(l->host, c->data, (size_t)r->data_bytes);
    snprintf(l->port, sizeof l->port, "%u", (unsigned)r->arg[0]);
    if (l->passive && !l->host[0] && !l->family)
        l->family = AF_INET6; /* an IPv6 listener accepts IPv4 connections, too */
    return l;
}

void net_open_connect(struct net *all, struct gateway_call *c)
{
    struct net_socket *s;
    int rc = check_open(&c->record);
    bool near = c->record.flags & WEFT_NET_LOOPBACK;
    const size_t len = (size_t)c->record.data_bytes;
    if (!rc && c->data && (near ? memchr(c->data, 0, len) != NULL : !is_host(c->data, len)))
        rc = base_fail(-EINVAL, "the request to open a socket is invalid: the host has a character that cannot be in a name or an address");
    if (!rc)
        rc = check_near(all, c);
    if (!rc)
        rc = net_socket_new(all, c->node, c->record.flags, &s);
    if (rc) {
        gateway_answer_error(c, rc);
        return;
    }
    s->call = c;
    s->watch.ready = on_open_ready;
    s->state = NET_CONNECTS;
    if (!(s->lookup = lookup_of(s, c)))
        rc = base_fail(-ENOMEM, "no memory to open a socket for node %u" BASE_MEMORY_HINT, c->node);
    if (!rc && (c->record.kind == NET_CONNECT || c->record.flags & WEFT_NET_DATAGRAMS))
        rc = net_socket_streams(s, &c->record);
    if (rc) {
        open_failed(s, rc);
        return;
    }
    if (c->record.flags & WEFT_NET_LOOPBACK && c->record.data_bytes) {
        connect_path(s);
        return;
    }
    if (net_names_numeric(s->lookup) == 0) {
        open_go_on(s);
        return;
    }
    rc = net_names_ask(all->names, s->lookup);
    if (rc) {
        if (rc == -EDQUOT)
            open_failed(s, base_fail(-EAGAIN,
                                     "node %u resolves at most %u names at the same time, and must leave some for other nodes: node %u "
                                     "must wait until earlier names are resolved; try again",
                                     own_rank(all), NET_LOOKUPS_MAX, c->node));
        else
            resolve_failed(s, rc);
        return;
    }
    s->state = NET_RESOLVES;
    net_socket_time(s, base_deadline(RESOLVE_NS));
}
