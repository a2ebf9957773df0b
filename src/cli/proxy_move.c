/* SPDX-License-Identifier: MIT
 *
 * Moves the bytes of a proxy's clients: through the rings of their connections at the gateway or, for short requests and answers, directly
 * over a socket that the gateway lends (forward_direct.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/proxy_client.h"

#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0 /* the socket has SO_NOSIGPIPE */
#endif

/* --- clients --- */

/* Counts the client in proxy.directs if it has a lent socket or has asked for one. */
static void count_direct(struct client *c)
{
    bool is = c->borrows || c->lent >= 0 || c->direct;
    c->p->directs += is;
    c->p->directs -= c->counted;
    c->counted = is;
}

void client_free(struct client *c)
{
    struct proxy *p = c->p;
    direct_free(c->direct, false);
    p->directs -= c->counted;
    if (c->lent >= 0)
        close(c->lent);
    weft_net_close(c->net); /* after this, notice() is not called any more */
    proxy_udp_leave(c->association);
    forward_list_remove(&p->loop.changed, &c->changed);
    gateway_unwatch(p->loop.watches, &c->watch);
    *c->at = c->next;
    if (c->next)
        c->next->at = c->at;
    p->count--;
    atomic_store_explicit(&p->f->open, p->count, memory_order_relaxed);
    p->talking -= c->speech != NULL;
    free(c->speech);
    free(c);
    if (p->count < FORWARD_CONNECTIONS_MAX && !p->paused)
        gateway_watch_events(p->loop.watches, &p->listener, GATEWAY_READABLE);
}

void client_reset(struct client *c)
{
    const struct linger now = {.l_onoff = 1};
    setsockopt(c->watch.fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    direct_free(c->direct, true);
    c->direct = NULL;
    weft_net_abort(c->net);
    c->net = NULL;
    client_free(c);
}

/* --- moving bytes --- */

/* Counts pieces, to find connections on which short requests and short answers alternate. */
static void count_piece(struct client *c, bool up, size_t bytes)
{
    if (bytes >= DIRECT_PIECE)
        c->exchanges = 0;
    else if (!up && c->asked && c->exchanges < DIRECT_AFTER)
        c->exchanges++;
    c->asked = up;
}

/* Returns how many of the client's bytes belong to its request of plain HTTP. Bytes after the request are dropped, because they may be a
 * request for another server. `*broken`: reset the connection, because the client sends more although it has received the answer. */
static size_t take_body(struct client *c, const void *bytes, size_t n, bool *broken)
{
    const void *at;
    size_t some, right = talk_body(&c->body, bytes, n);
    *broken = right < n && c->answered && weft_net_received(c->net, &at, &some) == -EAGAIN;
    return right;
}

/* Moves one piece from the client to the network. Returns false if nothing can be moved now. `*wants`: call this again when the client
 * sends more; `*broken`: the connection is lost. */
static bool move_up(struct client *c, bool *wants, bool *broken)
{
    void *at;
    size_t room;
    int rc = weft_net_room(c->net, &at, &room);
    if (rc == -EAGAIN)
        return false; /* notice() is called when there is room */
    if (rc) {
        c->up_over = true; /* the server reads no more, but may have sent bytes */
        return false;
    }
    size_t most = forward_piece(&c->p->loop, room);
    ssize_t n = read(c->watch.fd, at, most);
    if (n > 0) {
        size_t right = c->plain ? take_body(c, at, (size_t)n, broken) : (size_t)n;
        forward_count(&c->p->f->up_bytes, right);
        count_piece(c, true, right);
        *wants = (size_t)n < most; /* fewer bytes than asked for: the client has sent no more so far */
        return !*broken && weft_net_put(c->net, right) == 0 && !*wants;
    }
    if (n < 0 && errno == EINTR)
        return true;
    *wants = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (*wants)
        return false;
    c->up_over = n == 0;
    *broken = n < 0;
    if (n == 0)
        weft_net_shutdown(c->net);
    return false;
}

/* Moves one piece from the network to the client. Returns false if nothing can be moved now. `*full`: call this again when the client can
 * take more; `*broken`: reset the connection. */
static bool move_down(struct client *c, bool *full, bool *broken)
{
    const void *at;
    size_t bytes;
    int rc = weft_net_received(c->net, &at, &bytes);
    if (rc == -EAGAIN)
        return false; /* notice() is called when bytes arrive */
    if (rc) {
        *broken = true;
        return false;
    }
    if (!bytes) {
        c->down_over = true;
        shutdown(c->watch.fd, SHUT_WR);
        return false;
    }
    ssize_t n = send(c->watch.fd, at, forward_piece(&c->p->loop, bytes), MSG_NOSIGNAL);
    if (n > 0) {
        forward_count(&c->p->f->down_bytes, (uint64_t)n);
        count_piece(c, false, (size_t)n);
        c->answered = true;
        return weft_net_taken(c->net, (size_t)n) == 0;
    }
    if (n < 0 && errno == EINTR)
        return true;
    *full = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    *broken = !*full;
    return false;
}

/* --- a socket of the gateway's, for short requests --- */

static void on_far(struct gateway_watch *watch)
{
    client_direct(watch->arg, false, true);
}

static bool ring_is_empty(struct client *c)
{
    const void *at;
    size_t bytes;
    return weft_net_received(c->net, &at, &bytes) == -EAGAIN;
}

static void direct_begin(struct client *c)
{
    struct proxy *p = c->p;
    c->direct = direct_new(p->f, &p->loop, &c->watch, c->lent, on_far);
    c->lent = -1;
    if (!c->direct) {
        client_reset(c);
        return;
    }
    c->state = CLIENT_DIRECT;
    client_direct(c, true, true);
}

/* Gives the socket back to the gateway, because from now on large pieces move through the rings of the connection. */
static void direct_end(struct client *c)
{
    c->up_over = direct_client_ended(c->direct);
    direct_free(c->direct, false);
    c->direct = NULL;
    count_direct(c);
    c->state = CLIENT_MOVES;
    if (gateway_net_return(c->net)) {
        client_reset(c);
        return;
    }
    if (c->up_over)
        weft_net_shutdown(c->net);
    client_move(c, true);
}

void client_direct(struct client *c, bool client, bool far)
{
    switch (direct_move(c->direct, client, far)) {
    case DIRECT_LARGE: direct_end(c); break;
    case DIRECT_OVER: client_free(c); break;
    case DIRECT_BROKEN: client_reset(c); break;
    default: break;
    }
}

/* Asks the gateway to lend the socket, if the connection had enough short exchanges. */
static void borrow(struct client *c)
{
    struct proxy *p = c->p;
    if (c->exchanges < DIRECT_AFTER || c->plain || c->up_over || c->down_over || p->never_lends || p->directs >= DIRECT_MAX)
        return;
    c->exchanges = 0;
    c->borrows = gateway_net_borrow(c->net) == 0;
    count_direct(c);
}

/* Called when the gateway may have answered the request to lend the socket. */
static void borrowed(struct client *c)
{
    int rc = gateway_net_borrowed(c->net);
    if (rc == -EINPROGRESS)
        return;
    c->borrows = false;
    if (rc >= 0)
        c->lent = rc;
    count_direct(c);
    c->p->never_lends = c->p->never_lends || rc == -EOPNOTSUPP;
}

void client_changed(struct client *c)
{
    if (c->state == CLIENT_DIRECT) {
        if (weft_net_error(c->net)) /* the gateway is gone */
            client_reset(c);
        return;
    }
    if (c->borrows)
        borrowed(c);
    client_move(c, !(c->watch.events & GATEWAY_READABLE)); /* if the client is watched, epoll reports its bytes */
}

void client_move(struct client *c, bool readable)
{
    bool holds = c->borrows || c->lent >= 0, wants = !readable && !holds, full = false, broken = false;
    const unsigned turns = forward_turns(&c->p->loop);
    unsigned i = 0;
    while (readable && !holds && !c->up_over && i < turns && move_up(c, &wants, &broken))
        i++;
    wants = wants || (i == turns && !c->up_over);
    for (i = 0; !broken && !c->down_over && i < turns && move_down(c, &full, &broken); i++)
        ;
    full = full || (i == turns && !c->down_over);
    if (broken)
        client_reset(c);
    else if (c->up_over && c->down_over)
        client_free(c);
    else if (c->lent >= 0 && ring_is_empty(c))
        direct_begin(c);
    else {
        if (!holds)
            borrow(c);
        wants = wants && !c->borrows;
        gateway_watch_events(c->p->loop.watches, &c->watch, (wants ? GATEWAY_READABLE : 0u) | (full ? GATEWAY_WRITABLE : 0u));
    }
}
