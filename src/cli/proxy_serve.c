/* SPDX-License-Identifier: MIT
 *
 * Serves all clients of one `weft proxy` on one thread. A client, a program that has connected to the proxy, first sends a request that
 * names a host and a port (proxy_talk.h), which is read into a buffer (struct speech). After that, bytes move directly between the client's
 * socket and the rings of its connection at the gateway.
 */
#include "cli/proxy_client.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "weft/pool.h"

#define ACCEPTS   16u                /* how many clients are accepted before connections are served */
#define READY_MAX 256u               /* how many changed connections are served before sockets are polled again */
#define TALK_NS   (30 * WEFT_SECOND) /* the connection of a client that has not sent a whole request after this time is closed */
#define LOOK_NS   WEFT_SECOND        /* how often to check the clients that are sending a request */
#define PAUSE_NS  (20 * WEFT_MS)     /* how long accepting pauses when there are no more descriptors */
#define REPLY_MAX 1024u              /* largest reply, in bytes; kept until the client has read it */

#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0 /* the socket has SO_NOSIGPIPE */
#endif

/* weft calls this on any thread when the connection at the gateway has changed (weft_net_notify()). */
static void notice(void *arg)
{
    struct client *c = arg;
    forward_notice(&c->p->loop, &c->changed);
}

/* --- the client's request --- */

/* Sends a reply. It fits into the socket buffer, because it is short, and nothing was sent before. */
static bool send_reply(struct client *c)
{
    const struct talk_reply *r = &c->speech->reply;
    return r->bytes == 0 || send(c->watch.fd, r->at, r->bytes, MSG_NOSIGNAL) == (ssize_t)r->bytes;
}

/* Sends a reply that refuses the request, and closes the connection after the client has read the reply. */
static void client_refuse(struct client *c)
{
    if (!send_reply(c)) {
        client_free(c);
        return;
    }
    weft_net_close(c->net);
    c->net = NULL;
    shutdown(c->watch.fd, SHUT_WR);
    c->state = CLIENT_REFUSED;
    c->speech->deadline = base_deadline(2 * WEFT_SECOND);
    gateway_watch_events(c->p->loop.watches, &c->watch, GATEWAY_READABLE);
}

static void client_failed(struct client *c, int rc)
{
    forward_count(&c->p->f->refused, 1);
    talk_failed(&c->speech->talk, rc, weft_error(), &c->speech->reply);
    client_refuse(c);
}

/* Sends bytes that the client has sent after its request. They fit into the ring, which is empty. */
static bool pass_on(struct client *c, const uint8_t *bytes, size_t len)
{
    size_t put = 0;
    forward_count(&c->p->f->up_bytes, len);
    return len == 0 || (weft_net_send(c->net, bytes, len, &put, 0) == 0 && put == len);
}

static void client_opened(struct client *c)
{
    struct speech *s = c->speech;
    bool plain = s->talk.state == TALK_PLAIN; /* then `reply` holds the head of the request for the server */
    int rc = weft_net_error(c->net);
    if (rc == -EINPROGRESS)
        return; /* notice() is called when the connection is open or has failed */
    if (rc) {
        client_failed(c, rc);
        return;
    }
    bool right = !plain || pass_on(c, s->reply.at, s->reply.bytes);
    size_t more = s->bytes - s->at;
    if (plain) {
        c->plain = true;
        c->body = s->talk.body;
        more = talk_body(&c->body, s->in + s->at, more);
    }
    talk_opened(&s->talk, weft_net_local(c->net), &s->reply);
    if (!right || !send_reply(c) || !pass_on(c, s->in + s->at, more)) {
        client_reset(c);
        return;
    }
    c->p->talking--;
    free(s);
    c->speech = NULL;
    c->state = CLIENT_MOVES;
    client_move(c, false); /* epoll reports when the client sends more */
}

/* Returns the size of each ring of a new connection. The first connections get large rings, which are faster; later ones get smaller rings,
 * so that 10,000 connections fit into the default pool. */
static uint64_t ring_for(const struct proxy *p)
{
    uint32_t open = p->count;
    uint64_t ring = (open < 8 ? 1024u : open < 32 ? 256u : open < 256 ? 64u : open < 2048 ? 16u : 4u) << 10;
    while (ring > 4096 && ring > p->pool_bytes / 256)
        ring /= 4;
    return ring;
}

static void client_connect(struct client *c)
{
    struct speech *s = c->speech;
    size_t first = s->bytes - s->at + s->reply.bytes; /* all these bytes are put into the ring before the gateway reads from it */
    uint64_t ring = ring_for(c->p);
    weft_net_spec spec = {.bytes = sizeof spec, .host = s->talk.host, .port = s->talk.port, .flags = WEFT_NET_NODELAY | WEFT_NET_KEEPALIVE};
    int rc;
    c->state = CLIENT_WAITS;
    gateway_watch_events(c->p->loop.watches, &c->watch, 0);
    while (ring < first)
        ring *= 4;
    do { /* tries smaller rings if the pool has no room */
        spec.receive_ring = spec.send_ring = ring;
        rc = weft_net_connect_start(c->p->w, c->p->f->gateway, &spec, &c->net, &c->op);
        ring /= 4;
    } while (rc == -ENOMEM && ring >= 4096 && ring >= first);
    if (rc) {
        client_failed(c, rc);
        return;
    }
    weft_net_notify(c->net, notice, c);
    client_opened(c);
}

/* Starts to serve datagrams of the client, for as long as the client's TCP connection is open. */
static void client_associate(struct client *c)
{
    struct speech *s = c->speech;
    char at[FORWARD_ADDRESS];
    c->association = proxy_udp_associate(c->p->udp, c->watch.fd, s->talk.port, at);
    if (!c->association) {
        talk_failed(&s->talk, -ENOBUFS, "the proxy already serves datagrams for as many clients as it can: try again later", &s->reply);
        client_refuse(c);
        return;
    }
    talk_opened(&s->talk, at, &s->reply);
    if (!send_reply(c)) {
        client_free(c);
        return;
    }
    c->p->talking--;
    free(s);
    c->speech = NULL;
    c->state = CLIENT_ASSOCIATED;
}

/* Reads and handles a part of the client's request. Returns false if the connection was closed, or if the request is complete. */
static bool client_hear(struct client *c)
{
    struct speech *s = c->speech;
    size_t taken;
    enum talk_next next = talk_read(&s->talk, s->in + s->at, s->bytes - s->at, &taken, &s->reply);
    s->at += taken;
    switch (next) {
    case TALK_REPLY:
        if (send_reply(c))
            return true;
        client_free(c);
        return false;
    case TALK_REFUSE: client_refuse(c); return false;
    case TALK_GO: client_connect(c); return false;
    case TALK_ASSOCIATE: client_associate(c); return false;
    default:
        if (s->at && s->bytes > s->at)
            memmove(s->in, s->in + s->at, s->bytes - s->at);
        s->bytes -= s->at;
        s->at = 0;
        return false;
    }
}

static void client_talk(struct client *c)
{
    struct speech *s = c->speech;
    ssize_t n = read(c->watch.fd, s->in + s->bytes, sizeof s->in - s->bytes);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (n <= 0) {
        client_free(c);
        return;
    }
    s->bytes += (size_t)n;
    while (client_hear(c))
        ;
}

static void on_client(struct gateway_watch *watch)
{
    struct client *c = watch->arg;
    char some[4096];
    switch (c->state) {
    case CLIENT_TALKS: client_talk(c); break;
    case CLIENT_MOVES: client_move(c, true); break;
    case CLIENT_DIRECT: client_direct(c, true, false); break;
    case CLIENT_ASSOCIATED:
    case CLIENT_REFUSED: {
        ssize_t n = read(watch->fd, some, sizeof some);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            client_free(c);
        break;
    }
    default: break;
    }
}

/* --- the proxy --- */

/* On Linux a connection gets the options of its listener, so they are set once, on the listener. */
static void set_options(int fd)
{
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    /* so that the system notices when the client's host no longer answers */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
#if defined(SO_NOSIGPIPE)
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &(int){1}, sizeof(int));
#endif
}

static bool client_new(struct proxy *p, int fd)
{
    struct client *c = calloc(1, sizeof *c);
    struct speech *s = malloc(sizeof *s);
    if (!c || !s) {
        free(c);
        free(s);
        close(fd);
        return false;
    }
    s->talk = (struct talk){.user = p->f->user[0] ? p->f->user : NULL, .password = p->f->user[0] ? p->f->password : NULL};
    s->deadline = base_deadline(TALK_NS);
    s->bytes = s->at = s->reply.bytes = 0;
    *c = (struct client){
        .p = p, .next = p->clients, .at = &p->clients, .speech = s, .lent = -1, .watch = {.fd = -1, .ready = on_client, .arg = c}};
#if !defined(__linux__)
    set_options(fd);
#endif
    if (gateway_watch(p->loop.watches, &c->watch, fd, GATEWAY_READABLE)) {
        free(c);
        free(s);
        close(fd);
        return false;
    }
    if (c->next)
        c->next->at = &c->next;
    p->clients = c;
    p->count++;
    forward_count(&p->f->connections, 1);
    atomic_store_explicit(&p->f->open, p->count, memory_order_relaxed);
    p->talking++;
    return true;
}

static void on_listener(struct gateway_watch *watch)
{
    struct proxy *p = watch->arg;
    /* If a client also arrived in the last round, several clients are probably waiting. */
    const unsigned most = p->accepted_in + 1 == p->round ? ACCEPTS : 1;
    p->accepted_in = p->round;
    for (unsigned i = 0; i < most && p->count < FORWARD_CONNECTIONS_MAX; i++) {
        int fd = gateway_accept(watch->fd);
        if (fd >= 0 && client_new(p, fd))
            continue;
        if (fd == -EINTR || fd == -ECONNABORTED)
            continue;
        p->paused = fd >= 0 || (fd != -EAGAIN && fd != -EWOULDBLOCK); /* there is no memory or no descriptor: accept again later */
        break;
    }
    if (p->paused || p->count == FORWARD_CONNECTIONS_MAX)
        gateway_watch_events(p->loop.watches, watch, 0);
}

/* Serves one client whose connection has changed. Returns false if there is no such client. */
static bool client_go_on(void *arg)
{
    struct proxy *p = arg;
    struct client *c = (struct client *)forward_list_take(&p->loop.changed);
    if (c && c->state == CLIENT_WAITS)
        client_opened(c);
    else if (c && (c->state == CLIENT_MOVES || c->state == CLIENT_DIRECT))
        client_changed(c);
    return c;
}

/* Serves clients whose connections have changed. Returns false if some clients are left for later. */
static bool look_at_ready(struct proxy *p)
{
    for (unsigned i = 0; i < READY_MAX; i++)
        if (!client_go_on(p))
            return true;
    return false;
}

/* Closes clients that have not sent a whole request within TALK_NS. */
static void look_at_talking(struct proxy *p)
{
    int64_t now = base_now_ns();
    for (struct client *c = p->clients, *next; c; c = next) {
        next = c->next;
        if (c->speech && c->state != CLIENT_WAITS && c->speech->deadline < now)
            client_free(c);
    }
}

static int proxy_open(struct proxy *p)
{
    int rc = forward_loop_open(&p->loop, p->w, p->f->control, client_go_on, p);
    if (!rc)
        rc = forward_loop_watch(&p->loop, &p->listener, p->f->listener, on_listener, p);
    if (!rc)
        set_options(p->f->listener);
    if (!rc)
        rc = proxy_udp_open(&p->udp, p->f, &p->loop, p->f->datagrams);
    return rc;
}

static void proxy_loop(struct proxy *p)
{
    int64_t look = base_deadline(LOOK_NS);
    bool idle = true;
    while (!p->loop.over) {
        p->round++;
        int64_t now = base_now_ns();
        if (now >= look) {
            if (p->talking)
                look_at_talking(p);
            proxy_udp_tick(p->udp);
            look = base_after(now, LOOK_NS);
        }
        gateway_watches_wait(p->loop.watches, !idle ? 0 : p->paused ? PAUSE_NS : p->talking ? LOOK_NS : 30 * WEFT_SECOND);
        idle = look_at_ready(p);
        idle = proxy_udp_go_on(p->udp) && idle;
        if (p->paused) {
            p->paused = false;
            gateway_watch_events(p->loop.watches, &p->listener, GATEWAY_READABLE);
        }
    }
}

int proxy_serve(struct forward *f)
{
    struct proxy p = {.w = f->w, .f = f, .listener = {.fd = -1}};
    weft_pool_stats pool = {0};
    (void)weft_pool_stat(f->w, &pool, sizeof pool);
    p.pool_bytes = pool.reserved_bytes;
    int rc = proxy_open(&p);
    if (rc)
        base_fail(rc, "the proxy cannot wait for clients: %s", base_strerror(rc));
    else
        proxy_loop(&p);
    p.paused = true; /* so that client_free() does not start accepting again */
    while (p.clients)
        client_reset(p.clients);
    proxy_udp_close(p.udp);
    if (p.loop.watches)
        gateway_unwatch(p.loop.watches, &p.listener);
    forward_loop_close(&p.loop);
    return rc;
}
