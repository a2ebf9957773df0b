/* SPDX-License-Identifier: MIT
 *
 * The asker's handles of sockets at a gateway: opens, accepts and closes them.
 */
#include "gateway/net_handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the caller holds gateway.lock --- */

void socket_notify(const struct weft_socket *s)
{
    if (s->notify)
        s->notify(s->notify_arg);
}

static void socket_over(struct weft_socket *s, int error)
{
    s->state = SOCKET_OVER;
    s->error = error;
    socket_notify(s);
}

/* Call this when the gateway no longer uses the rings. */
static void socket_unserved(struct weft_socket *s)
{
    if (!s->served)
        return;
    s->served = s->unclosed = false;
    if (!s->closed)
        return;
    s->next_dead = s->g->dead;
    s->g->dead = s;
    if (!fab_on_progress_thread()) /* the upkeep frees the handle; the progress thread runs the upkeep after each message anyway */
        fab_kick(s->g->w);
}

static void copy_addresses(struct weft_socket *s, const struct gateway_result *r)
{
    const char *at = (const char *)r->payload, *end = at + r->len;
    char *const to[2] = {s->local, s->peer};
    for (unsigned i = 0; i < 2 && at < end; i++) {
        size_t n = strnlen(at, (size_t)(end - at));
        if (n < NET_ADDRESS_TEXT)
            memcpy(to[i], at, n); /* the rest of the text is already zero */
        at += n + 1;
    }
}

static void opened(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    (void)g;
    struct weft_socket *s = a->arg;
    if (r->status) {
        if (r->answered)
            s->served = false; /* without socket_unserved(), because the handle is open: had it been closed, opened_late() would handle the
                                  answer */
        s->text = r->len ? strndup((const char *)r->payload, r->len) : NULL;
        socket_over(s, r->status == -EINPROGRESS ? -EPROTO : r->status); /* -EINPROGRESS is not a valid answer */
        return;
    }
    s->there = r->word[0];
    copy_addresses(s, r);
    if (s->out)
        s->out->peer = r->word[1];
    s->state = SOCKET_OPEN;
    socket_notify(s);
}

static void stream_moved(struct gateway_stream *stream)
{
    socket_notify(stream->arg);
}

/* --- closing at the gateway --- */

static void closed_there(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    struct weft_socket *s = a->arg;
    if (r->answered && (r->status == -ENOMEM || r->status == -EAGAIN))
        /* There was no room for the request: the node's upkeep will send it again. */
        g->unclosed = s->unclosed = true;
    else if (r->answered || r->status == -ECONNRESET)
        socket_unserved(s);
}

static void late_closed(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    base_spin_lock(&g->lock);
    closed_there(g, a, r);
    base_spin_unlock(&g->lock);
}

static void close_there(struct weft_socket *s, bool drop)
{
    struct gateway *g = s->g;
    const weft_request r = {.version = WEFT_REQUEST_VERSION,
                            .service = WEFT_SERVICE_NET,
                            .kind = NET_CLOSE,
                            .node = s->node,
                            .handle = s->there,
                            .arg = {drop}};
    int rc =
        gateway_ask(g, &(struct gateway_question){.record = &r, .tell = closed_there, .late = late_closed, .arg = s, .post = true}, NULL);
    if (!rc)
        return;
    base_spin_lock(&g->lock);
    if (rc == -ECONNRESET)
        socket_unserved(s);
    else
        g->unclosed = s->unclosed = true; /* the node's upkeep will send the request again */
    base_spin_unlock(&g->lock);
}

/* Handles the answer to a request to open a socket, after this node has cancelled the request. Now it is known whether the gateway has the
 * socket. */
static void opened_late(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    struct weft_socket *s = a->arg;
    if (r->status == 0) {
        s->there = r->word[0];
        close_there(s, true);
        return;
    }
    base_spin_lock(&g->lock);
    socket_unserved(s);
    base_spin_unlock(&g->lock);
}

/* --- making --- */

static void socket_free(struct weft_socket *s)
{
    struct gateway *g = s->g;
    gateway_stream_close(s->in);
    gateway_stream_close(s->out);
    base_spin_lock(&g->lock);
    gateway_table_remove(&g->sockets, s->id);
    base_spin_unlock(&g->lock);
    if (s->lent >= 0)
        close(s->lent);
    if (s->memory)
        fab_use(g->w, FAB_USE_NETWORK, -(int64_t)(s->receive_ring + s->send_ring));
    weft_free(g->w, s->memory);
    free(s->text);
    free(s);
}

static int make_rings(struct weft_socket *s)
{
    struct gateway *g = s->g;
    int rc = weft_alloc(g->w, s->receive_ring + s->send_ring, &s->memory);
    if (!rc) {
        fab_use(g->w, FAB_USE_NETWORK, (int64_t)(s->receive_ring + s->send_ring));
        rc = gateway_stream_read_at(g, s->node, s->memory, s->receive_ring, stream_moved, s, &s->in);
    }
    if (!rc)
        rc = gateway_stream_offer(g, s->node, s->memory + s->receive_ring, s->send_ring, stream_moved, s, &s->out);
    return rc;
}

/* Makes a handle with the members of `like` up to `flags`. */
static int socket_new(const struct weft_socket *like, bool listens, struct weft_socket **out)
{
    struct gateway *g = like->g;
    struct weft_socket *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(-ENOMEM, "no memory for the handle of a socket at node %u" BASE_MEMORY_HINT, like->node);
    *s = (struct weft_socket){.g = g,
                              .node = like->node,
                              .listens = listens,
                              .receive_ring = like->receive_ring,
                              .send_ring = like->send_ring,
                              .flags = like->flags,
                              .lent = -1,
                              .memory = WEFT_NULL};
    snprintf(s->what, sizeof s->what, "%s", like->what);
    base_spin_lock(&g->lock);
    s->id = gateway_table_add(&g->sockets, s);
    base_spin_unlock(&g->lock);
    int rc = s->id ? 0
                   : base_fail(-ENOMEM,
                               "no memory for the handle of a socket, or this node has too many handles: close some with weft_net_close()");
    if (!rc && !listens)
        rc = make_rings(s);
    if (rc) {
        socket_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

/* Sends the request that opens the socket. If sending fails, frees the handle. */
static int socket_ask(struct weft_socket *s, weft_request *r, const void *data, weft_op *op)
{
    r->version = WEFT_REQUEST_VERSION;
    r->service = WEFT_SERVICE_NET;
    r->node = s->node;
    if (s->in) {
        r->arg[1] = s->in->id;
        r->arg[2] = s->in->ring;
        r->arg[3] = s->in->bytes;
        r->arg[4] = s->out->id;
        r->arg[5] = s->out->ring;
        r->arg[6] = s->out->bytes;
    }
    s->served = true;
    int rc = gateway_ask(
        s->g,
        &(struct gateway_question){.record = r, .data = data, .tell = opened, .late = opened_late, .arg = s, .op = op, .post = op != NULL},
        &s->ask);
    if (rc)
        socket_free(s);
    return rc;
}

static int check_spec(const weft_net_spec *spec, uint32_t kind)
{
    const uint32_t both = WEFT_NET_IPV4 | WEFT_NET_IPV6;
    const char *host = spec->host ? spec->host : "";
    bool near = spec->flags & WEFT_NET_LOOPBACK;
    bool rings = (!spec->receive_ring || gateway_ring_fits(spec->receive_ring)) && (!spec->send_ring || gateway_ring_fits(spec->send_ring));
    if (!rings)
        return base_fail(-EINVAL,
                         "weft_net_spec: buffers (receive_ring, send_ring) of %llu and %llu bytes are not possible: give powers of two "
                         "from 4 KiB to 16 MiB",
                         (unsigned long long)spec->receive_ring, (unsigned long long)spec->send_ring);
    if (strlen(host) > NET_HOST_MAX || spec->port > 65535 || (kind == NET_CONNECT && !near && (!host[0] || !spec->port)))
        return base_fail(-EINVAL,
                         "weft_net_spec: host '%.64s' and port %u are not valid: give a name or an address of at most %u bytes, and a port "
                         "from 1 to 65535",
                         host, spec->port, NET_HOST_MAX);
    if (near && (kind != NET_CONNECT || (host[0] ? host[0] != '/' || spec->port : !spec->port)))
        return base_fail(
            -EINVAL,
            "weft_net_spec: WEFT_NET_LOOPBACK connects to a port (then give no host) or to the path of a Unix socket (then give no port)");
    bool small = (spec->receive_ring && spec->receive_ring < NET_DATAGRAM_RING) || (spec->send_ring && spec->send_ring < NET_DATAGRAM_RING);
    if (spec->flags & WEFT_NET_DATAGRAMS && near && host[0])
        return base_fail(-EINVAL, "weft_net_spec: WEFT_NET_DATAGRAMS cannot be used with a Unix socket (host '%.64s'): leave it out", host);
    if (spec->flags & WEFT_NET_DATAGRAMS && small)
        return base_fail(-EINVAL, "weft_net_spec: WEFT_NET_DATAGRAMS needs buffers (receive_ring, send_ring) of at least 128 KiB");
    if (spec->flags & ~WEFT_NET_FLAGS)
        return base_fail(-EINVAL, "weft_net_spec: unknown flags (%#x): leave them out", spec->flags & ~WEFT_NET_FLAGS);
    if ((spec->flags & both) == both)
        return base_fail(-EINVAL, "weft_net_spec: WEFT_NET_IPV4 and WEFT_NET_IPV6 exclude each other: give only one of them");
    if (spec->receive_buffer > INT32_MAX || spec->send_buffer > INT32_MAX)
        return base_fail(-EINVAL, "weft_net_spec: receive_buffer and send_buffer must be less than 2 GiB");
    return 0;
}

int socket_open(weft_node *w, uint32_t node, uint32_t kind, const weft_net_spec *given, int64_t timeout_ns, weft_socket **out, weft_op *op)
{
    weft_net_spec spec;
    struct weft_socket *s, like = {.g = gateway_in(w), .node = node};
    *out = NULL;
    int rc = base_take_struct(&spec, sizeof spec, given, sizeof spec, "weft_net_spec");
    if (!rc)
        rc = check_spec(&spec, kind);
    if (!rc && node >= w->size)
        rc = base_fail(-EFAULT, "cannot open a socket at node %u: there is no such node; the cluster has nodes 0 to %u", node, w->size - 1);
    if (rc)
        return rc;
    const char *host = spec.host ? spec.host : "";
    uint64_t usual = spec.flags & WEFT_NET_DATAGRAMS ? NET_DATAGRAM_RING : GATEWAY_RING;
    like.receive_ring = spec.receive_ring ? spec.receive_ring : usual;
    like.send_ring = spec.send_ring ? spec.send_ring : usual;
    like.flags = spec.flags;
    if (host[0] == '/')
        snprintf(like.what, sizeof like.what, "%s", host);
    else
        snprintf(like.what, sizeof like.what, strchr(host, ':') ? "[%s]:%u" : "%s:%u",
                 host[0]                          ? host
                 : spec.flags & WEFT_NET_LOOPBACK ? "localhost"
                                                  : "*",
                 spec.port);
    rc = socket_new(&like, kind == NET_LISTEN && !(spec.flags & WEFT_NET_DATAGRAMS), &s);
    if (rc)
        return rc;
    weft_request r = {.kind = (uint16_t)kind,
                      .flags = spec.flags,
                      .data_bytes = strlen(host),
                      .timeout_ns = timeout_ns,
                      .arg = {[0] = spec.port, [7] = spec.receive_buffer, [8] = spec.send_buffer, [9] = spec.backlog}};
    rc = socket_ask(s, &r, host, op);
    if (!rc)
        *out = s;
    return rc;
}

int weft_net_connect_start(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, weft_op *op)
{
    return socket_open(w, node, NET_CONNECT, spec, 0, out, op);
}

/* --- waiting --- */

bool socket_is_settled(void *arg)
{
    struct weft_socket *s = arg;
    base_spin_lock(&s->g->lock);
    bool settled = s->state != SOCKET_OPENS;
    base_spin_unlock(&s->g->lock);
    return settled;
}

int socket_error(struct weft_socket *s)
{
    const weft_request r = {.service = WEFT_SERVICE_NET, .node = s->node};
    base_spin_lock(&s->g->lock);
    int error = s->error;
    base_spin_unlock(&s->g->lock);
    return gateway_ask_status(s->g, &r, error, s->text);
}

int socket_bytes_error(struct weft_socket *s, int rc)
{
    base_spin_lock(&s->g->lock);
    bool lost = s->state == SOCKET_OVER;
    base_spin_unlock(&s->g->lock);
    if (lost)
        return socket_error(s);
    return base_fail(rc, "the connection to %s through node %u has failed: %s", s->what, s->node, base_strerror(rc));
}

int64_t socket_until(const struct weft_socket *s, int64_t timeout_ns)
{
    return timeout_ns < 0 && !s->g->w->options.bounded ? INT64_MAX : fab_timeout(s->g->w, timeout_ns);
}

static void socket_use(struct weft_socket *s, int users)
{
    base_spin_lock(&s->g->lock);
    s->users += (uint32_t)users;
    base_spin_unlock(&s->g->lock);
}

int socket_wait(struct weft_socket *s, fab_ready_fn ready, void *arg, int64_t deadline)
{
    socket_use(s, 1);
    int rc = fab_wait(s->g->w, ready, arg, deadline);
    socket_use(s, -1);
    return rc;
}

/* Waits until the socket is open. If the socket could not be opened, closes the handle. */
static int settle(struct weft_socket *s, int64_t deadline, weft_socket **out)
{
    int rc = fab_wait(s->g->w, socket_is_settled, s, deadline);
    if (rc == -ETIMEDOUT)
        rc = base_fail(
            rc, "node %u has not opened the socket %s before the deadline, so the request was cancelled; try again, or allow more time",
            s->node, s->what);
    else if (!rc)
        rc = socket_error(s);
    if (rc)
        weft_net_close(s);
    else
        *out = s;
    return rc;
}

static int open_now(weft_node *w, uint32_t node, uint32_t kind, const weft_net_spec *spec, weft_socket **out, int64_t timeout_ns)
{
    struct weft_socket *s;
    *out = NULL;
    if (fab_in_handler())
        return base_fail(
            -EDEADLK, kind == NET_LISTEN
                          ? "weft_net_listen(): a handler must not wait for a socket; call it in another thread"
                          : "weft_net_connect(): a handler must not wait for a socket; call weft_net_connect_start(), which does not wait");
    int64_t deadline = fab_timeout(w, timeout_ns), before = fab_limit(deadline);
    /* no time-out for the request, because this thread waits with a deadline of its own */
    int rc = socket_open(w, node, kind, spec, INT64_MAX, &s, NULL);
    fab_limit(before);
    return rc ? rc : settle(s, deadline, out);
}

int weft_net_connect(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, int64_t timeout_ns)
{
    return open_now(w, node, NET_CONNECT, spec, out, timeout_ns);
}

int weft_net_listen(weft_node *w, uint32_t node, const weft_net_spec *spec, weft_socket **out, int64_t timeout_ns)
{
    return open_now(w, node, NET_LISTEN, spec, out, timeout_ns);
}

static int accept_new(struct weft_socket *listener, struct weft_socket **out, weft_op *op)
{
    int rc = socket_new(listener, false, out);
    weft_request r = {.kind = NET_ACCEPT, .handle = listener->there, .timeout_ns = INT64_MAX};
    return rc ? rc : socket_ask(*out, &r, NULL, op);
}

/* Gets a handle for the next connection: the handle of an earlier call that timed out, or a new handle. */
static int accept_begin(struct weft_socket *listener, struct weft_socket **out)
{
    struct gateway *g = listener->g;
    base_spin_lock(&g->lock);
    struct weft_socket *s = listener->spare;
    if (s)
        listener->spare = s->spare;
    base_spin_unlock(&g->lock);
    *out = s;
    int rc = s ? 0 : socket_error(listener);
    return s || rc ? rc : accept_new(listener, out, NULL);
}

int weft_net_accept(weft_socket *listener, weft_socket **out, int64_t timeout_ns)
{
    struct weft_socket *s;
    struct gateway *g = listener->g;
    *out = NULL;
    if (!listener->listens)
        return base_fail(-EINVAL, "weft_net_accept(): this socket does not listen: pass a socket that weft_net_listen() returned");
    if (fab_in_handler())
        return base_fail(-EDEADLK,
                         "weft_net_accept(): a handler must not wait for a connection; call weft_net_accept_start(), which does not wait");
    int rc = accept_begin(listener, &s);
    if (rc)
        return rc;
    socket_use(listener, 1);
    rc = fab_wait(g->w, socket_is_settled, s, socket_until(listener, timeout_ns));
    if (rc == -ETIMEDOUT) { /* keep the handle: if the connection arrives later, the next call gets it */
        base_spin_lock(&g->lock);
        s->spare = listener->spare;
        listener->spare = s;
        base_spin_unlock(&g->lock);
        if (timeout_ns)
            base_fail(rc, "no connection came to %s at node %u before the deadline; wait again, or allow more time", listener->local,
                      listener->node);
    } else {
        rc = rc ? rc : socket_error(s);
        if (rc)
            weft_net_close(s);
        else
            *out = s;
    }
    socket_use(listener, -1);
    return rc;
}

int weft_net_accept_start(weft_socket *listener, weft_socket **out, weft_op *op)
{
    struct weft_socket *s;
    *out = NULL;
    if (!listener->listens)
        return base_fail(-EINVAL, "weft_net_accept_start(): this socket does not listen: pass a socket that weft_net_listen() returned");
    if (!socket_is_settled(listener))
        return base_fail(-EAGAIN, "the listener %s at node %u is not open yet: wait until weft_net_error() returns 0", listener->what,
                         listener->node);
    int rc = socket_error(listener);
    rc = rc ? rc : accept_new(listener, &s, op);
    if (!rc)
        *out = s;
    return rc;
}

/* --- the end --- */

static int socket_close(weft_socket *s, bool drop)
{
    if (!s)
        return 0;
    struct gateway *g = s->g;
    base_spin_lock(&g->lock);
    bool busy = s->users != 0, opens = s->state == SOCKET_OPENS;
    if (!busy)
        s->notify = NULL;
    base_spin_unlock(&g->lock);
    if (busy)
        return base_fail(-EBUSY,
                         "the socket %s at node %u cannot be closed while a thread waits in a call with it: let that call return first",
                         s->what, s->node);
    for (struct weft_socket *spare; (spare = s->spare);) {
        s->spare = spare->spare;
        spare->spare = NULL;
        socket_close(spare, true);
    }
    if (opens)
        gateway_ask_leave(g, s->ask, -ECANCELED);
    base_spin_lock(&g->lock);
    bool open = s->state == SOCKET_OPEN, ends = open && s->out && !s->out->ended && !s->out->shut && !drop;
    base_spin_unlock(&g->lock);
    /* end the stream, so that the peer sees all bytes and then the end, not a reset */
    if (ends)
        (void)gateway_stream_send(s->out, NULL, 0, true, 0);
    gateway_stream_close(s->in);
    gateway_stream_close(s->out);
    s->in = s->out = NULL;
    if (open)
        close_there(s, drop); /* if the socket is not open yet, opened_late() closes it at the gateway later */
    base_spin_lock(&g->lock);
    s->closed = true; /* set last, because after this another thread may free the handle */
    bool served = s->served;
    base_spin_unlock(&g->lock);
    if (!served)
        socket_free(s);
    fab_wake_here(g->w);
    return 0;
}

int weft_net_close(weft_socket *s)
{
    return socket_close(s, false);
}

int weft_net_abort(weft_socket *s)
{
    return socket_close(s, true);
}

void gateway_sockets_gone(struct gateway *g, uint32_t node)
{
    uint32_t at = 0;
    base_spin_lock(&g->lock);
    for (struct weft_socket *s; (s = gateway_table_next(&g->sockets, &at));) {
        if (s->node != node)
            continue;
        if (s->state != SOCKET_OVER)
            socket_over(s, -ECONNRESET);
        if (s->served)
            socket_unserved(s);
    }
    base_spin_unlock(&g->lock);
}

void gateway_sockets_tick(struct gateway *g)
{
    uint32_t at = 0;
    base_spin_lock(&g->lock);
    struct weft_socket *dead = g->dead, *again = NULL;
    g->dead = NULL;
    for (struct weft_socket *s; g->unclosed && (s = gateway_table_next(&g->sockets, &at));)
        if (s->unclosed) {
            s->unclosed = false;
            s->next_dead = again;
            again = s;
        }
    g->unclosed = false;
    base_spin_unlock(&g->lock);
    for (struct weft_socket *s; (s = dead);) {
        dead = s->next_dead;
        socket_free(s);
    }
    for (struct weft_socket *s; (s = again);) {
        again = s->next_dead;
        close_there(s, false);
    }
}

void gateway_sockets_free(struct gateway *g)
{
    uint32_t at = 0;
    for (struct weft_socket *s; (s = gateway_table_next(&g->sockets, &at));) {
        if (s->lent >= 0)
            close(s->lent);
        free(s->text);
        free(s);
    }
    gateway_table_free(&g->sockets);
}
