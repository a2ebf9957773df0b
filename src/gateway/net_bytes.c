/* SPDX-License-Identifier: MIT
 *
 * The asker's side of a connection: sends and receives bytes, with and without a copy.
 */
#include "gateway/net_handle.h"

#include <string.h>

static int no_connection(const struct weft_socket *s)
{
    return base_fail(
        -EINVAL, "the socket %s at node %u only listens for connections: send and receive with the sockets that weft_net_accept() returns",
        s->what, s->node);
}

uint32_t weft_net_node(const weft_socket *s)
{
    return s->node;
}

const char *weft_net_local(const weft_socket *s)
{
    return socket_is_settled((void *)(uintptr_t)s) ? s->local : "";
}

const char *weft_net_peer(const weft_socket *s)
{
    return socket_is_settled((void *)(uintptr_t)s) ? s->peer : "";
}

int weft_net_error(weft_socket *s)
{
    return socket_is_settled(s) ? socket_error(s) : -EINPROGRESS;
}

void weft_net_notify(weft_socket *s, weft_net_fn fn, void *arg)
{
    base_spin_lock(&s->g->lock);
    s->notify = fn;
    s->notify_arg = arg;
    base_spin_unlock(&s->g->lock);
}

/* --- receiving --- */

int weft_net_received(weft_socket *s, const void **at, size_t *bytes)
{
    const uint8_t *from = NULL;
    *bytes = 0;
    if (!s->in || s->flags & WEFT_NET_DATAGRAMS)
        return -EINVAL;
    base_spin_lock(&s->g->lock);
    uint64_t n = gateway_stream_next(s->in, &from);
    bool over = s->state == SOCKET_OVER, right_end = s->in->ended && !s->in->status;
    int rc = n || right_end ? 0 : over ? socket_end_of(s->error) : s->in->ended ? socket_end_of(s->in->status) : -EAGAIN;
    base_spin_unlock(&s->g->lock);
    *at = from;
    *bytes = (size_t)n;
    return rc;
}

int weft_net_taken(weft_socket *s, size_t bytes)
{
    struct gateway_credit due = {0};
    if (!s->in || s->flags & WEFT_NET_DATAGRAMS)
        return -EINVAL;
    base_spin_lock(&s->g->lock);
    bool fits = bytes <= s->in->last - s->in->first;
    if (fits && bytes)
        gateway_stream_take(s->in, bytes, &due);
    base_spin_unlock(&s->g->lock);
    gateway_credit_give(s->g, &due);
    return fits ? 0 : -EINVAL;
}

static bool has_bytes(void *arg)
{
    const void *at;
    size_t n;
    return weft_net_received(arg, &at, &n) != -EAGAIN;
}

static void receive_ends(struct weft_socket *s)
{
    base_spin_lock(&s->g->lock);
    s->in->busy = false;
    base_spin_unlock(&s->g->lock);
}

int weft_net_receive(weft_socket *s, void *buf, size_t len, size_t *got, int64_t timeout_ns)
{
    struct gateway *g = s->g;
    const void *at;
    size_t n;
    *got = 0;
    if (!s->in)
        return no_connection(s);
    if (!len && !(s->flags & WEFT_NET_DATAGRAMS))
        return 0;
    base_spin_lock(&g->lock);
    bool busy = s->in->busy;
    s->in->busy = true;
    base_spin_unlock(&g->lock);
    if (busy)
        return base_fail(-EBUSY, "another thread is receiving from %s: let one thread receive at a time", s->what);
    if (s->flags & WEFT_NET_DATAGRAMS) {
        int rc = socket_receive_datagram(s, NULL, buf, len, got, timeout_ns);
        receive_ends(s);
        return rc;
    }
    int rc = weft_net_received(s, &at, &n);
    if (rc == -EAGAIN) {
        rc = socket_wait(s, has_bytes, s, socket_until(s, timeout_ns));
        if (rc == -ETIMEDOUT && timeout_ns)
            base_fail(rc, "no bytes came from %s through node %u before the deadline; receive again, or allow more time", s->what, s->node);
        if (!rc && (rc = weft_net_received(s, &at, &n)))
            rc = socket_bytes_error(s, rc);
    } else if (rc) {
        rc = socket_bytes_error(s, rc);
    }
    if (!rc && n) {
        *got = n < len ? n : len;
        memcpy(buf, at, *got); /* without the lock: the gateway does not change these bytes before weft_net_taken() */
        (void)weft_net_taken(s, *got);
    }
    receive_ends(s);
    return rc;
}

/* --- sending --- */

int weft_net_room(weft_socket *s, void **at, size_t *bytes)
{
    *bytes = 0;
    if (!s->out || s->flags & WEFT_NET_DATAGRAMS)
        return -EINVAL;
    base_spin_lock(&s->g->lock);
    struct gateway_stream *out = s->out;
    uint64_t room = out->bytes - (out->last - out->first), from = out->last & (out->bytes - 1), gap = out->bytes - from;
    int rc = s->state == SOCKET_OVER    ? socket_end_of(s->error)
             : s->state == SOCKET_OPENS ? -EAGAIN
             : out->shut || out->ended  ? -EPIPE
             : room                     ? 0
                                        : -EAGAIN;
    base_spin_unlock(&s->g->lock);
    *at = out->memory + from;
    *bytes = rc ? 0 : (size_t)(room < gap ? room : gap);
    return rc;
}

int weft_net_put(weft_socket *s, size_t bytes)
{
    void *at;
    size_t room;
    int rc = weft_net_room(s, &at, &room);
    if (rc || bytes > room)
        return base_fail(rc ? rc : -EINVAL, "cannot send %zu bytes to %s through node %u: %s", bytes, s->what, s->node,
                         rc ? base_strerror(rc) : "the send buffer has less room; ask weft_net_room() first");
    return bytes ? gateway_stream_send(s->out, NULL, bytes, false, 0) : 0;
}

static bool has_room(void *arg)
{
    void *at;
    size_t n;
    return weft_net_room(arg, &at, &n) != -EAGAIN;
}

int weft_net_send(weft_socket *s, const void *buf, size_t len, size_t *put, int64_t timeout_ns)
{
    int64_t deadline = fab_timeout(s->g->w, timeout_ns);
    size_t done = 0, room;
    void *at;
    int rc = s->out ? 0 : no_connection(s);
    if (!rc && s->flags & WEFT_NET_DATAGRAMS) {
        rc = socket_send_datagram(s, NULL, buf, len, timeout_ns);
        done = rc ? 0 : len;
        len = 0;
    }
    while (!rc && done < len) {
        rc = weft_net_room(s, &at, &room);
        if (rc == -EAGAIN) {
            rc = socket_wait(s, has_room, s, deadline);
            if (rc == -ETIMEDOUT && timeout_ns)
                base_fail(rc,
                          "%s does not read what node %u sends to it: %zu of %zu bytes were sent before the deadline; send the rest again, "
                          "or allow more time",
                          s->what, s->node, done, len);
            continue;
        }
        if (rc) {
            rc = socket_bytes_error(s, rc);
            break;
        }
        size_t n = room < len - done ? room : len - done;
        memcpy(at, (const uint8_t *)buf + done, n);
        rc = weft_net_put(s, n);
        done += rc ? 0 : n;
    }
    if (put)
        *put = done;
    return rc;
}

int weft_net_shutdown(weft_socket *s)
{
    if (!s->out)
        return no_connection(s);
    base_spin_lock(&s->g->lock);
    bool over = s->state == SOCKET_OVER, opens = s->state == SOCKET_OPENS, ended = s->out->ended || s->out->shut;
    base_spin_unlock(&s->g->lock);
    if (over)
        return socket_error(s);
    if (opens)
        return base_fail(-EAGAIN, "the connection to %s is not open yet: call weft_net_shutdown() when it is open", s->what);
    return ended ? 0 : gateway_stream_send(s->out, NULL, 0, true, 0);
}
