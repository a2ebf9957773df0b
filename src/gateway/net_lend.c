/* SPDX-License-Identifier: MIT
 *
 * Lends a connection to an asker of this host: the asker gets a duplicate of the descriptor, and itself reads and writes the connection,
 * until it returns the duplicate or closes the socket. So one thread less is woken for the bytes. The gateway keeps its own descriptor, and
 * resets the connection if the asker dies.
 *
 * With the descriptor the asker could connect to another address. So a gateway lends only if it also runs programs for its askers, which
 * could do the same.
 */
#include "gateway/net.h"

#include <fcntl.h>

static bool all_sent(const struct net_socket *s)
{
    base_spin_lock(&s->up->g->lock);
    bool sent = s->up->first == s->up->last && !s->up->ended;
    base_spin_unlock(&s->up->g->lock);
    return sent && !s->piece;
}

void net_lend(struct net_socket *s, struct gateway_call *c)
{
    struct gateway *g = gateway_of(s->all->server);
    int rc = 0;
    if (s->flags & WEFT_NET_DATAGRAMS || s->node == g->w->rank || !(g->offered >> WEFT_SERVICE_PROCESS & 1) || !s->down || !s->down->memory)
        rc = -EOPNOTSUPP;
    else if (s->down_over || s->up_over || !all_sent(s))
        rc = -EAGAIN;
    else
        rc = fab_side_give(&g->w->links[s->node], c->record.arg[0], s->watch.fd);
    if (!rc) {
        gateway_watch_events(gateway_server_watches(s->all->server), &s->watch, 0);
        net_socket_untime(s);
        s->state = NET_LENT;
    }
    gateway_answer(c, rc, NULL, 0, NULL, 0);
}

void net_return(struct net_socket *s, struct gateway_call *c)
{
    s->state = NET_OPEN;
    (void)fcntl(s->watch.fd, F_SETFL, O_NONBLOCK); /* the asker may have changed this flag, which both descriptors share */
    gateway_answer(c, 0, NULL, 0, NULL, 0);
    net_socket_move(s);
}
