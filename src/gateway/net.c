/* SPDX-License-Identifier: MIT
 *
 * The net service at the gateway: handles the requests of askers, and closes their sockets when they leave or die.
 */
#include "gateway/net.h"

#include <stdlib.h>

#include "gateway/record.h"

#define LOOK_NS (100 * WEFT_US) /* how often net_tick() checks sockets whose bytes are being fetched */

static int net_open(struct gateway_server *server, void **state)
{
    struct net *all = calloc(1, sizeof *all);
    if (!all)
        return base_fail(-ENOMEM, "no memory to open sockets for other nodes (WEFT_SERVE=net)" BASE_MEMORY_HINT);
    *state = all;
    all->server = server;
    uint32_t askers = gateway_of(server)->w->room;
    if (!(all->asker = calloc(askers, sizeof *all->asker)))
        return base_fail(-ENOMEM, "no memory to open sockets for %u nodes (WEFT_SERVE=net)" BASE_MEMORY_HINT, askers);
    int rc = net_rules_read(gateway_of(server)->net_rules, &all->rules);
    return rc ? base_context(rc, "WEFT_NET_RULES") : net_names_open(&all->names, gateway_server_watches(server), askers);
}

static struct net_socket *socket_of(struct net *all, const struct gateway_call *c)
{
    struct net_socket *s = gateway_table_find(&all->table, c->record.handle);
    return s && s->node == c->node && !s->closing ? s : NULL;
}

static void answer_accepts(struct net_socket *s, int status)
{
    for (struct gateway_call *c; (c = s->accepts);) {
        s->accepts = c->next;
        gateway_answer(c, status, NULL, 0, NULL, 0);
    }
    s->accepts_last = &s->accepts;
}

static void net_begin(void *state, struct gateway_call *c)
{
    struct net *all = state;
    const weft_request *r = &c->record;
    struct net_socket *s = socket_of(all, c);
    switch (r->kind) {
    case NET_CONNECT:
    case NET_LISTEN: net_open_connect(all, c); return;
    case NET_ACCEPT:
        if (s && s->state == NET_LISTENS)
            net_open_accept(s, c);
        else
            gateway_answer(c, -EBADF, NULL, 0, NULL, 0);
        return;
    case NET_CLOSE:
        if (!s || s->call) {
            gateway_answer(c, s ? -EBUSY : 0, NULL, 0, NULL, 0);
            return;
        }
        answer_accepts(s, -ECANCELED);
        if (r->arg[0])
            net_socket_drop(s, c);
        else
            net_socket_close(s, c);
        return;
    case NET_LEND:
    case NET_RETURN:
        if (!s || s->call || s->state != (r->kind == NET_LEND ? NET_OPEN : NET_LENT))
            gateway_answer(c, -EBADF, NULL, 0, NULL, 0);
        else if (r->kind == NET_LEND)
            net_lend(s, c);
        else
            net_return(s, c);
        return;
    default: gateway_answer(c, -EINVAL, NULL, 0, NULL, 0);
    }
}

/* Cancels a request: finds the socket that the request is about, and answers the request. */
static void net_cancel(void *state, struct gateway_call *c)
{
    struct net *all = state;
    uint32_t at = 0;
    for (struct net_socket *s; (s = gateway_table_next(&all->table, &at));) {
        for (struct gateway_call **one = &s->accepts; *one; one = &(*one)->next)
            if (*one == c) {
                if (!(*one = c->next))
                    s->accepts_last = one;
                gateway_answer(c, -ECANCELED, NULL, 0, NULL, 0);
                return;
            }
        if (s->call == c) {
            s->call = NULL;
            net_socket_free(s);
            break;
        }
    }
    gateway_answer(c, -ECANCELED, NULL, 0, NULL, 0);
}

static void net_gone(void *state, uint32_t node)
{
    struct net *all = state;
    uint32_t at = 0;
    for (struct net_socket *s; (s = gateway_table_next(&all->table, &at));)
        if (s->node == node)
            net_socket_free(s);
}

static int64_t net_tick(void *state, int64_t now)
{
    struct net *all = state;
    int64_t next = net_pieces_tick(all);
    for (struct net_socket *s = all->timed, *after; s; s = after) {
        after = s->timed_next;
        int64_t in = s->wants_piece ? LOOK_NS : INT64_MAX;
        if (s->deadline <= now) {
            net_open_timeout(s);
            in = 0; /* look again at once: the next address may have a deadline now */
        } else if (s->wants_piece) {
            if (!gateway_server_brief(all->server)) /* the progress thread cannot fetch bytes while it handles a message */
                net_socket_move(s);
        } else if (s->deadline != INT64_MAX) {
            in = s->deadline - now;
        }
        next = in < next ? in : next;
    }
    return next;
}

static void net_close(void *state)
{
    struct net *all = state;
    uint32_t at = 0;
    for (struct net_socket *s; (s = gateway_table_next(&all->table, &at));)
        net_socket_free(s);
    net_pieces_free(all);
    gateway_table_free(&all->table);
    net_rules_free(all->rules);
    gateway_works_close(all->names);
    free(all->asker);
    free(all);
}

const struct gateway_service gateway_net = {
    .name = "net",
    .number = WEFT_SERVICE_NET,
    .quick = true,
    .open = net_open,
    .close = net_close,
    .begin = net_begin,
    .cancel = net_cancel,
    .gone = net_gone,
    .tick = net_tick,
    .submit = gateway_net_submit,
};
