/* SPDX-License-Identifier: MIT
 *
 * The top level of the gateway: passes incoming messages and the deaths of nodes to the other files, and opens and closes the services.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/gateway.h"
#include "weft/gpu.h"

/* Handles a message of node `from`. Header and payload are not trusted: they may contain anything. */
static void on_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    struct gateway *g = arg;
    struct gateway_message m;
    struct gateway_turns turns;
    if (header_len != sizeof m || from >= w->size)
        return;
    memcpy(&m, header, sizeof m);
    m.status = base_status_in(m.status);
    gateway_turns_begin(&turns);
    switch (m.type) {
    case GATEWAY_OFFERS: atomic_store_explicit(&g->offers[from], m.word[0], memory_order_release); break;
    case GATEWAY_REQUEST: gateway_server_request(g, from, &m, payload, payload_len); break;
    case GATEWAY_ANSWER: gateway_ask_answered(g, from, &m, payload, payload_len); break;
    case GATEWAY_CANCEL: gateway_server_cancel(g, from, m.word[0]); break;
    case GATEWAY_DATA:
    case GATEWAY_CREDIT:
    case GATEWAY_SHUT: gateway_stream_message(g, from, &m, payload, payload_len); break;
    case GATEWAY_END: gateway_handle_ended(g, from, &m, payload, payload_len); break;
    case GATEWAY_CHANGED:
        gateway_file_changed(g, from, &m);
        gateway_file_record_changed(g, from, &m);
        break;
    case GATEWAY_UNREAD: gateway_handle_unread(g, from, &m); break;
    default: break;
    }
    gateway_turns_end(g, &turns);
}

static void on_gone(struct weft_node *w, uint32_t node, bool died, void *arg)
{
    (void)died;
    struct gateway *g = arg;
    gateway_streams_gone(g, node);
    gateway_asks_gone(g, node);
    gateway_handles_gone(g, node);
    gateway_sockets_gone(g, node);
    gateway_server_gone(g, node);
    fab_wake_here(w);
}

/* Tells a node that has joined the running cluster which services this node offers. */
static void on_joined(struct weft_node *w, uint32_t node, void *arg)
{
    struct gateway *g = arg;
    uint64_t offered = atomic_load_explicit(&g->offers[w->rank], memory_order_acquire);
    if (offered)
        (void)gateway_post(g, node, &(struct gateway_message){.type = GATEWAY_OFFERS, .word = {offered}}, NULL, 0);
}

static int64_t on_tick(struct weft_node *w, int64_t now, void *arg)
{
    (void)w;
    struct gateway *g = arg;
    int64_t next = gateway_asks_tick(g, now);
    gateway_handles_tick(g);
    gateway_sockets_tick(g);
    gateway_objects_tick(g);
    file_keeps_tick(g, now);
    if ((gateway_posts_flush(g) || g->unclosed) && next > WEFT_MS)
        next = WEFT_MS;
    return next < 0 ? 0 : next;
}

static void on_close(struct weft_node *w, void *arg)
{
    struct gateway *g = arg;
    uint32_t at = 0;
    gateway_asks_end(g, -ECONNRESET);
    gateway_server_free(g);
    gateway_groups_close(g->groups);
    gateway_handles_free(g);
    gateway_objects_free(g);
    gateway_sockets_free(g);
    gateway_copies_free(g);
    for (struct gateway_stream *s; (s = gateway_table_next(&g->streams, &at));)
        free(s);
    gateway_table_free(&g->streams);
    gateway_table_free(&g->asks);
    gateway_posts_free(g);
    file_async_free(g);
    free((void *)g->offers);
    free(g->outstanding);
    free((void *)g->later);
    free(g);
    w->gateway = NULL;
}

static bool on_given(struct weft_node *w, uint32_t node, uint64_t what, int fd, void *arg)
{
    (void)w;
    return gateway_socket_given(arg, node, what, fd);
}

int gateway_prepare(const char *serve, struct gateway_groups **out)
{
    uint64_t offered;
    *out = NULL;
    int rc = gateway_services_read(serve, &offered);
    return rc || !(offered >> WEFT_SERVICE_PROCESS & 1) ? rc : gateway_groups_open(out);
}

int gateway_open(struct weft_node *w, const struct gateway_settings *settings, struct gateway_groups *groups)
{
    struct gateway *g = calloc(1, sizeof *g);
    if (!g) {
        gateway_groups_close(groups);
        return base_fail(-ENOMEM, "no memory for the state of the services" BASE_MEMORY_HINT);
    }
    g->w = w;
    g->services = gateway_services;
    g->groups = groups;
    snprintf(g->net_rules, sizeof g->net_rules, "%s", settings->net_rules);
    snprintf(g->file_root, sizeof g->file_root, "%s", settings->file_root);
    g->file_cache = settings->file_cache;
    g->file_patience = WEFT_SECOND;
    g->net_sockets = settings->net_sockets;
    g->names = settings->names;
    g->next_deadline = INT64_MAX;
    w->gateway = g;
    g->offers = calloc(w->room, sizeof *g->offers);
    g->outstanding = calloc(w->room, sizeof *g->outstanding);
    g->later = calloc(w->room, sizeof *g->later);
    int rc = g->offers && g->outstanding && g->later
                 ? 0
                 : base_fail(-ENOMEM, "no memory for the services of %u nodes" BASE_MEMORY_HINT, w->size);
    if (!rc)
        rc = gateway_posts_open(g);
    if (!rc)
        rc = gateway_copies_open(g);
    if (!rc)
        rc = file_async_open(g);
    if (!rc)
        rc = file_keeps_open(g);
    if (!rc)
        rc = fab_hook(
            w, &(struct fab_hook){.gone = on_gone, .joined = on_joined, .tick = on_tick, .given = on_given, .close = on_close, .arg = g});
    if (rc) {
        on_close(w, g);
        return rc;
    }
    rc = gateway_services_read(settings->serve, &g->offered);
    if (!rc && g->offered)
        rc = gateway_server_open(g);
    if (!rc && g->server)
        gateway_server_take_turns(g->server);
    if (!rc)
        rc = weft_gpu_service(w, WEFT_REQUEST_SERVICE, gateway_record_of_kernel, g);
    return rc ? rc : fab_handle(w, GATEWAY_HANDLER, on_message, g);
}

int gateway_start(struct weft_node *w)
{
    struct gateway *g = gateway_in(w);
    if (!g->offered)
        return 0;
    int rc = gateway_server_start(g);
    atomic_store_explicit(&g->offers[w->rank], g->offered, memory_order_release);
    for (uint32_t i = 0; i < w->size && !rc; i++)
        if (i != w->rank && fab_alive(w, i))
            (void)gateway_post(g, i, &(struct gateway_message){.type = GATEWAY_OFFERS, .word = {g->offered}}, NULL, 0);
    return rc;
}

void gateway_leave(struct weft_node *w)
{
    struct gateway *g = gateway_in(w);
    if (!g)
        return;
    atomic_store_explicit(&g->closing, true, memory_order_release);
    gateway_server_end(g);
    gateway_asks_end(g, -ECONNRESET);
    gateway_copies_end(g);
    fab_wake_here(w);
    file_async_end(g);
}
