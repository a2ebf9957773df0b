/* SPDX-License-Identifier: MIT
 *
 * Serves all connections of a published port on one thread. Each client has a pair of connections of the net service: the gateway accepts
 * the client's connection, and the target node connects to the server. This thread copies bytes between the rings of these two
 * connections.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/forward.h"
#include "cli/forward_loop.h"
#include "weft/net.h"

#define ACCEPTS   16u                /* how many accepts wait at the gateway at the same time */
#define READY_MAX 256u               /* how many changed pairs are served before sockets are polled again */
#define PAUSE_NS  (20 * WEFT_MS)     /* how long to wait when there is no memory or no descriptor */
#define AGAIN_NS  (10 * WEFT_SECOND) /* if the queue of a Unix socket is full: how long to try to connect again */
#define SAY_NS    (10 * WEFT_SECOND) /* the least time between two log lines about failures to connect to the server */

enum pair_state { PAIR_ACCEPTS, PAIR_CONNECTS, PAIR_AGAIN, PAIR_MOVES };
enum { CLIENT, SERVER };
struct pair {
    struct forward_changed changed; /* must be the first member */
    struct publish *p;
    struct pair *next, **at;
    enum pair_state state;
    weft_socket *side[2]; /* CLIENT: the connection at the gateway; SERVER: the connection at the target */
    bool over[2];         /* this side sends no more */
    weft_op op[2];
    int64_t deadline; /* in PAIR_AGAIN: until when to try to connect again */
};
struct publish {
    struct forward *f;
    struct forward_loop loop;
    bool paused;
    struct pair *pairs;
    uint32_t count, accepting;
    int64_t said;
};

/* weft calls this on any thread when one of the two connections has changed (weft_net_notify()). */
static void notice(void *arg)
{
    struct pair *c = arg;
    forward_notice(&c->p->loop, &c->changed);
}

/* Note that the pair must be looked at again. */
static void pair_again(struct pair *c)
{
    forward_list_add(&c->p->loop.changed, &c->changed);
}

/* weft calls this when the listener has changed: its gateway is gone. */
static void notice_end(void *arg)
{
    const struct publish *p = arg;
    forward_wake(p->loop.changed.wake_fd);
}

static void pair_free(struct pair *c, bool drop)
{
    struct publish *p = c->p;
    for (int i = 0; i < 2; i++) { /* after this loop, notice() is not called any more */
        if (drop)
            weft_net_abort(c->side[i]);
        else
            weft_net_close(c->side[i]);
    }
    forward_list_remove(&p->loop.changed, &c->changed);
    *c->at = c->next;
    if (c->next)
        c->next->at = c->at;
    p->count--;
    if (c->state == PAIR_ACCEPTS)
        p->accepting--;
    else
        atomic_store_explicit(&p->f->open, p->count - p->accepting, memory_order_relaxed);
    free(c);
}

/* Resets the connections to client and server. The resets tell both that the stream is incomplete. */
static void pair_reset(struct pair *c)
{
    pair_free(c, true);
}

/* --- moving bytes --- */

/* Moves one piece from one side to the other. Returns false if nothing can be moved now. `*broken`: reset both connections. */
static bool move_one(struct pair *c, int from, bool *broken)
{
    const void *at;
    void *to;
    size_t have, room;
    int rc = weft_net_received(c->side[from], &at, &have);
    if (rc == -EAGAIN)
        return false;
    *broken = rc != 0;
    if (rc)
        return false;
    if (!have) {
        c->over[from] = true;
        weft_net_shutdown(c->side[!from]);
        return false;
    }
    rc = weft_net_room(c->side[!from], &to, &room);
    if (rc == -EAGAIN)
        return false;
    if (rc) {
        c->over[from] = rc == -EPIPE; /* the other side reads no more, but may have sent bytes */
        *broken = rc != -EPIPE;
        return false;
    }
    size_t n = forward_piece(&c->p->loop, have < room ? have : room);
    memcpy(to, at, n);
    *broken = weft_net_put(c->side[!from], n) != 0 || weft_net_taken(c->side[from], n) != 0;
    forward_count(from == CLIENT ? &c->p->f->up_bytes : &c->p->f->down_bytes, n);
    return !*broken;
}

static void pair_move(struct pair *c)
{
    bool broken = false, more = false;
    const unsigned turns = forward_turns(&c->p->loop);
    for (int from = CLIENT; from <= SERVER && !broken; from++) {
        unsigned i = 0;
        while (!c->over[from] && i < turns && move_one(c, from, &broken))
            i++;
        more = more || i == turns;
    }
    if (broken)
        pair_reset(c);
    else if (c->over[CLIENT] && c->over[SERVER])
        pair_free(c, false);
    else if (more)
        pair_again(c); /* continue after other pairs were served */
}

/* --- opening --- */

static void pair_connect(struct pair *c)
{
    const struct forward *f = c->p->f;
    const weft_net_spec spec = {
        .bytes = sizeof spec, .host = f->to, .port = f->to_port, .flags = WEFT_NET_LOOPBACK | (f->to_port ? WEFT_NET_NODELAY : 0)};
    c->state = PAIR_CONNECTS;
    if (weft_net_connect_start(f->w, f->target, &spec, &c->side[SERVER], &c->op[SERVER])) {
        c->state = PAIR_AGAIN; /* try again later, since there may be no memory now */
        c->p->paused = true;
        return;
    }
    weft_net_notify(c->side[SERVER], notice, c);
    pair_again(c); /* the connection may be open already */
}

static void say_refused(struct publish *p)
{
    int64_t now = base_now_ns();
    forward_count(&p->f->refused, 1);
    if (p->said && now - p->said < SAY_NS)
        return;
    p->said = now;
    base_log(BASE_LOG_WARN, "published port %s: a connection was reset: %s", p->f->address, weft_error());
}

/* Handles the end of the target's attempt to connect. Does nothing while the attempt is under way. */
static void pair_connected(struct pair *c)
{
    int rc = weft_net_error(c->side[SERVER]);
    if (rc == -EINPROGRESS)
        return;
    if (rc == 0) {
        c->state = PAIR_MOVES;
        pair_move(c);
        return;
    }
    if (rc == -EAGAIN && base_now_ns() < c->deadline) {
        weft_net_close(c->side[SERVER]);
        c->side[SERVER] = NULL;
        c->state = PAIR_AGAIN;
        c->p->paused = true;
        return;
    }
    say_refused(c->p);
    pair_reset(c);
}

/* Handles the end of an accept at the gateway. Does nothing while the accept is under way. */
static void pair_accepted(struct pair *c)
{
    struct publish *p = c->p;
    int rc = weft_net_error(c->side[CLIENT]);
    if (rc == -EINPROGRESS)
        return;
    if (rc) {
        p->paused = true; /* accept again later, since there may be no descriptors now */
        pair_free(c, true);
        return;
    }
    p->accepting--;
    c->state = PAIR_CONNECTS;
    c->deadline = base_deadline(AGAIN_NS);
    forward_count(&p->f->connections, 1);
    atomic_store_explicit(&p->f->open, p->count - p->accepting, memory_order_relaxed);
    pair_connect(c);
}

/* Starts an accept at the gateway. Returns false if this is not possible now. */
static bool pair_new(struct publish *p)
{
    struct pair *c = calloc(1, sizeof *c);
    if (!c)
        return false;
    *c = (struct pair){.p = p, .next = p->pairs, .at = &p->pairs, .state = PAIR_ACCEPTS};
    if (weft_net_accept_start(p->f->published, &c->side[CLIENT], &c->op[CLIENT])) {
        free(c);
        return false;
    }
    if (c->next)
        c->next->at = &c->next;
    p->pairs = c;
    p->count++;
    p->accepting++;
    weft_net_notify(c->side[CLIENT], notice, c);
    pair_again(c); /* a connection may have already arrived */
    return true;
}

/* --- the published port --- */

/* Serves one pair that has changed. Returns false if no pair has changed. */
static bool pair_go_on(void *arg)
{
    struct publish *p = arg;
    struct pair *c = (struct pair *)forward_list_take(&p->loop.changed);
    switch (c ? c->state : PAIR_AGAIN) {
    case PAIR_ACCEPTS: pair_accepted(c); break;
    case PAIR_CONNECTS: pair_connected(c); break;
    case PAIR_MOVES: pair_move(c); break;
    default: break;
    }
    if (p->loop.brief && (p->paused || p->accepting < ACCEPTS)) /* only the thread of the loop makes new pairs */
        forward_wake(p->loop.changed.wake_fd);
    return c;
}

/* Serves pairs that have changed. Returns false if some pairs are left for later. */
static bool look_at_ready(struct publish *p)
{
    for (unsigned i = 0; i < READY_MAX; i++)
        if (!pair_go_on(p))
            return true;
    return false;
}

static void look_at_paused(struct publish *p)
{
    p->paused = false;
    for (struct pair *c = p->pairs, *next; c; c = next) {
        next = c->next;
        if (c->state == PAIR_AGAIN && base_now_ns() < c->deadline)
            pair_connect(c);
        else if (c->state == PAIR_AGAIN)
            pair_reset(c);
    }
}

/* Returns 0 when the forward must end (forward_loop.over); otherwise the error of the listener. */
static int publish_loop(struct publish *p)
{
    while (!p->loop.over) {
        while (p->accepting < ACCEPTS && p->count < FORWARD_CONNECTIONS_MAX && !p->paused)
            if (!pair_new(p))
                p->paused = true;
        bool idle = look_at_ready(p);
        int rc = weft_net_error(p->f->published);
        if (rc)
            return rc;
        bool hungry = p->accepting < ACCEPTS && p->count < FORWARD_CONNECTIONS_MAX && !p->paused;
        gateway_watches_wait(p->loop.watches, !idle || hungry ? 0 : p->paused ? PAUSE_NS : 60 * WEFT_SECOND);
        if (p->paused)
            look_at_paused(p);
    }
    return 0;
}

int publish_serve(struct forward *f)
{
    struct publish p = {.f = f};
    int rc = forward_loop_open(&p.loop, f->w, f->control, pair_go_on, &p);
    if (rc)
        base_fail(rc, "the published port cannot wait for connections: %s", base_strerror(rc));
    else {
        weft_net_notify(f->published, notice_end, &p);
        rc = publish_loop(&p);
        weft_net_notify(f->published, NULL, NULL);
    }
    while (p.pairs)
        pair_reset(p.pairs);
    forward_loop_close(&p.loop);
    return rc;
}
