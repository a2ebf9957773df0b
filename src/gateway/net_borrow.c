/* SPDX-License-Identifier: MIT
 *
 * The asker borrows the socket of a connection from a gateway of its host (net_lend.c), reads and writes it itself, and returns it.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "gateway/net_handle.h"

/* Finds a handle by its number. A pointer is not enough: the handle may be closed and freed before the answer arrives. */
static struct weft_socket *handle_of(struct gateway *g, uint64_t id, uint32_t node)
{
    struct weft_socket *s = gateway_table_find(&g->sockets, id);
    return s && s->node == node && s->lend_asked ? s : NULL;
}

static void answered(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    struct weft_socket *s = handle_of(g, (uintptr_t)a->arg, a->node);
    if (!s || s->lend_status != -EINPROGRESS)
        return;
    s->lend_status = r->status == -EINPROGRESS ? -EPROTO : r->status;
    socket_notify(s);
}

int gateway_net_borrow(weft_socket *s)
{
    struct gateway *g = s->g;
    const weft_request r = {.version = WEFT_REQUEST_VERSION,
                            .service = WEFT_SERVICE_NET,
                            .kind = NET_LEND,
                            .node = s->node,
                            .handle = s->there,
                            .timeout_ns = INT64_MAX,
                            .arg = {s->id}};
    base_spin_lock(&g->lock);
    bool can = s->state == SOCKET_OPEN && s->out && !s->lend_asked && s->lent < 0;
    if (can) {
        s->lend_asked = true;
        s->lend_came = false;
        s->lend_status = -EINPROGRESS;
    }
    base_spin_unlock(&g->lock);
    if (!can)
        return -EINVAL;
    int rc =
        gateway_ask(g, &(struct gateway_question){.record = &r, .tell = answered, .arg = (void *)(uintptr_t)s->id, .post = true}, NULL);
    if (rc) {
        base_spin_lock(&g->lock);
        s->lend_asked = false;
        base_spin_unlock(&g->lock);
    }
    return rc;
}

/* Checks the descriptor, which any process of this host may have sent. */
static bool is_stream(int fd)
{
    int type = 0;
    socklen_t len = sizeof type;
    return fd >= 0 && (uint64_t)fd < gateway_connections_max() && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 &&
           type == SOCK_STREAM;
}

bool gateway_socket_given(struct gateway *g, uint32_t node, uint64_t what, int fd)
{
    bool right = is_stream(fd), taken = false;
    base_spin_lock(&g->lock);
    struct weft_socket *s = handle_of(g, what, node);
    if (s && !s->lend_came) {
        s->lend_came = true;
        taken = right;
        s->lent = right ? fd : -1;
        socket_notify(s);
    }
    base_spin_unlock(&g->lock);
    return taken;
}

int gateway_net_borrowed(weft_socket *s)
{
    struct gateway *g = s->g;
    base_spin_lock(&g->lock);
    int rc = s->lend_status, fd = -1;
    if (rc == 0 && !s->lend_came)
        rc = -EINPROGRESS;
    if (rc != -EINPROGRESS) {
        s->lend_asked = false;
        fd = s->lent;
        s->lent = -1;
    }
    base_spin_unlock(&g->lock);
    if (rc == -EINPROGRESS)
        return rc;
    if (rc && fd >= 0)
        close(fd);
    if (rc || fd >= 0)
        return rc ? rc : fd;
    rc = gateway_net_return(s);
    if (rc) { /* the gateway still counts the socket as lent, so nobody moves the connection's bytes any more: end it */
        base_spin_lock(&g->lock);
        s->in->ended = true;
        s->in->status = -ECONNRESET;
        base_spin_unlock(&g->lock);
    }
    return rc ? rc : -EMFILE;
}

/* Handles the answer to a request to take a socket back. If the gateway refuses, the connection is broken, and the caller must close it. */
static void returned(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    struct weft_socket *s = gateway_table_find(&g->sockets, (uintptr_t)a->arg);
    if (!r->status || !s || s->node != a->node || !s->notify) /* a handle without notify() is being closed, and has no stream any more */
        return;
    s->in->ended = true;
    s->in->status = -ECONNRESET;
    socket_notify(s);
}

int gateway_net_return(weft_socket *s)
{
    const weft_request r = {.version = WEFT_REQUEST_VERSION,
                            .service = WEFT_SERVICE_NET,
                            .kind = NET_RETURN,
                            .node = s->node,
                            .handle = s->there,
                            .timeout_ns = INT64_MAX};
    return gateway_ask(s->g, &(struct gateway_question){.record = &r, .tell = returned, .arg = (void *)(uintptr_t)s->id, .post = true},
                       NULL);
}
