/* SPDX-License-Identifier: MIT
 *
 * Routes to nodes without a direct cable. Every node sends every other node, over their side connections, the list of its neighbours. A
 * cable counts if both its ends report it. From these lists each node computes the shortest routes. It forwards frames for others out of
 * the receives in which they arrived, without reading their data, and independently of the program.
 *
 * A node that gets frames faster than it can forward them drops some. No node on a route waits for another, so there can be no circular
 * wait. The original sender sends lost frames again.
 */
#include "fabric/tb/tb.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define TB_NEIGHBOURS 240u

struct neighbours { /* sent over the side connection */
    uint16_t kind, count;
    uint16_t node[TB_NEIGHBOURS];
};
_Static_assert(sizeof(struct neighbours) <= FAB_SIDE_MESSAGE_MAX, "fits one message");

struct tb_routes {
    uint32_t size;
    bool changed;     /* the routes must be computed again */
    uint32_t version; /* version of this node's list of neighbours */
    uint32_t *told;   /* [size]: the version that was last sent to each peer */
    uint32_t *queue;  /* [size]: for the breadth-first search */
    uint32_t *first;  /* [size]: the first node on the route to each node; `size`: no route */
    bool *heard;      /* [size]: whether each node's list of neighbours has arrived */
    uint8_t *near;    /* [size][size]: row a, column b: 1 if node a has reported that it has a cable to b */
};

int tb_routes_open(struct tb *tb)
{
    size_t n = tb->w->founders;
    struct tb_routes *r = calloc(1, sizeof *r);
    tb->routes = r;
    if (!r)
        return base_fail(-ENOMEM, "tb: no memory for the state of routes" BASE_MEMORY_HINT);
    r->size = tb->w->founders;
    r->version = 1;
    r->told = calloc(n, sizeof *r->told);
    r->queue = calloc(n, sizeof *r->queue);
    r->first = calloc(n, sizeof *r->first);
    r->heard = calloc(n, sizeof *r->heard);
    r->near = calloc(n, n);
    return r->told && r->queue && r->first && r->heard && r->near
               ? 0
               : base_fail(-ENOMEM, "tb: no memory for routes between %zu nodes" BASE_MEMORY_HINT, n);
}

void tb_routes_close(struct tb *tb)
{
    struct tb_routes *r = tb->routes;
    if (!r)
        return;
    free(r->told);
    free(r->queue);
    free(r->first);
    free(r->heard);
    free(r->near);
    free(r);
    tb->routes = NULL;
}

void tb_routes_cable(struct tb *tb, uint32_t node, bool there)
{
    struct tb_routes *r = tb->routes;
    uint8_t *mine = &r->near[(size_t)tb->w->rank * r->size + node];
    /* Compute the routes again even if another cable to the node is left. Frames may have used the removed cable. And if the node is gone,
     * routes_all_heard() may now return true, because it does not wait for that node. */
    r->changed = true;
    if (*mine == there)
        return;
    *mine = there;
    r->version++;
    if (there)
        /* Pretend that a frame was forwarded now, so that this node does not leave at once (leave.c): a node that has just learned of the
         * route through this node may not have used it yet. */
        tb->passed_at = base_now_ns();
}

void tb_routes_heard(struct tb *tb, uint32_t from, const void *bytes, size_t len)
{
    struct tb_routes *r = tb->routes;
    struct neighbours m;
    size_t head = offsetof(struct neighbours, node);
    if (len < head || len > sizeof m)
        return; /* invalid */
    memcpy(&m, bytes, len);
    if (m.count > TB_NEIGHBOURS || len != head + m.count * sizeof m.node[0])
        return;
    r->heard[from] = true;
    uint8_t *row = &r->near[(size_t)from * r->size];
    for (uint32_t i = 0; i < m.count; i++)
        if (m.node[i] < r->size && !row[m.node[i]])
            tb->passed_at = base_now_ns(); /* as in tb_routes_cable(): with this new cable, a route may lead through this node */
    memset(row, 0, r->size);
    for (uint32_t i = 0; i < m.count; i++)
        if (m.node[i] < r->size)
            row[m.node[i]] = 1;
    r->changed = true;
}

/* Breadth-first search from `start` that does not pass through node `without` (r->size: no such node). Stores the first step of a shortest
 * route to each node. Returns how many nodes were reached. */
static uint32_t routes_search(struct tb *tb, uint32_t start, uint32_t without)
{
    struct tb_routes *r = tb->routes;
    uint32_t in = 0, out = 0;
    for (uint32_t i = 0; i < r->size; i++)
        r->first[i] = r->size;
    r->first[start] = start;
    r->queue[in++] = start;
    while (out != in) {
        uint32_t at = r->queue[out++];
        for (uint32_t to = 0; to < r->size; to++) {
            if (to == without || r->first[to] != r->size || !r->near[(size_t)at * r->size + to] || !r->near[(size_t)to * r->size + at] ||
                !(to == tb->w->rank || fab_alive(tb->w, to)))
                continue;
            r->first[to] = at == start ? to : r->first[at];
            r->queue[in++] = to;
        }
    }
    return in;
}

/* Whether all cables are known. Each node reports its cables when it has joined. Nodes reached by another transport report nothing. */
static bool routes_all_heard(const struct tb *tb)
{
    for (uint32_t i = 0; i < tb->w->founders; i++) {
        int state = atomic_load_explicit(&tb->w->links[i].state, memory_order_acquire);
        if (i != tb->w->rank && !tb->routes->heard[i] && (state == FAB_UNKNOWN || (state == FAB_ALIVE && tb_link_of(tb, i))))
            return false;
    }
    return true;
}

/* Whether the side connection is closed, so that the node is dead and not just without a route. When a node dies, its neighbours often
 * report their lost cables first. */
static bool routes_has_hung_up(const struct fab_link *link)
{
    struct pollfd side = {.fd = link->side_fd};
    return link->side_fd >= 0 && poll(&side, 1, 0) > 0 && (side.revents & (POLLHUP | POLLERR));
}

void tb_routes_apply(struct tb *tb)
{
    struct tb_routes *r = tb->routes;
    if (!r->changed)
        return;
    r->changed = false;
    routes_search(tb, tb->w->rank, r->size);
    bool known = routes_all_heard(tb);
    for (uint32_t i = 0; i < r->size; i++) {
        struct tb_link *l = tb_link_of(tb, i);
        if (!l)
            continue;
        struct tb_link *next = r->first[i] < r->size && r->first[i] != tb->w->rank ? tb_link_of(tb, r->first[i]) : NULL;
        base_spin_lock(&l->r.lock);
        struct tb_cable *own = l->r.closed ? NULL : tb_link_cable(l);
        struct tb_cable *via = own || l->r.closed ? own : next ? tb_link_cable(next) : NULL;
        if (via != l->via && !own && !l->r.closed)
            base_log(BASE_LOG_INFO, via ? "node %u is reached through node %u" : "no route leads to node %u now", i, r->first[i]);
        /* While not all nodes have reported their cables, there may be another route, so pending operations wait. */
        if (!l->r.closed && !via && known && !atomic_load_explicit(&l->r.cut, memory_order_relaxed) && !routes_has_hung_up(l->r.link)) {
            atomic_store_explicit(&l->r.cut, true, memory_order_relaxed);
            if (tb_endpoint_fail(&l->r.endpoint, -ENETDOWN))
                atomic_store_explicit(&l->r.link->unsure, true, memory_order_relaxed);
        } else if (via) {
            if (!own && l->cable_count && l->via != via)
                tb_endpoint_reroute(&l->r.endpoint);
            atomic_store_explicit(&l->r.cut, false, memory_order_relaxed);
            /* relaxed: orders no other memory */
            atomic_store_explicit(&l->led, true, memory_order_relaxed);
        }
        l->via = via;
        l->touched = true;
        base_spin_unlock(&l->r.lock);
    }
}

void tb_routes_tell(struct tb *tb)
{
    struct tb_routes *r = tb->routes;
    struct neighbours m = {.kind = TB_SIDE_NEIGHBOURS};
    const uint8_t *mine = &r->near[(size_t)tb->w->rank * r->size];
    for (uint32_t i = 0; i < r->size && m.count < TB_NEIGHBOURS; i++)
        if (mine[i])
            m.node[m.count++] = (uint16_t)i;
    for (uint32_t i = 0; i < r->size; i++)
        if (r->told[i] != r->version && tb_link_of(tb, i) && fab_alive(tb->w, i) &&
            fab_side_send(&tb->w->links[i], &m, offsetof(struct neighbours, node) + m.count * sizeof m.node[0]) == 0)
            r->told[i] = r->version; /* if the message could not be sent, the next upkeep tries again */
}

bool tb_routes_told(const struct tb *tb)
{
    const struct tb_routes *r = tb->routes;
    for (uint32_t i = 0; i < r->size; i++)
        if (r->told[i] != r->version && tb_link_of(tb, i) && fab_alive(tb->w, i))
            return false;
    return true;
}

/* Whether other nodes need this node to reach each other. */
bool tb_routes_needed(struct tb *tb)
{
    struct tb_routes *r = tb->routes;
    uint32_t others = 0, one = r->size;
    for (uint32_t i = 0; i < r->size; i++) {
        if (i == tb->w->rank || !fab_alive(tb->w, i))
            continue;
        others++;
        one = i;
    }
    bool needed = others > 1 && routes_search(tb, one, tb->w->rank) < others;
    r->changed = true; /* the search has overwritten the routes */
    return needed;
}

bool tb_routes_between(const struct tb *tb)
{
    const struct tb_routes *r = tb->routes;
    uint32_t neighbours = 0;
    bool complete = true;
    for (uint32_t a = 0; a < r->size; a++) {
        if (a == tb->w->rank || !fab_alive(tb->w, a))
            continue;
        neighbours += r->near[(size_t)tb->w->rank * r->size + a];
        for (uint32_t b = a + 1; b < r->size && complete; b++)
            complete = b == tb->w->rank || !fab_alive(tb->w, b) || (r->near[(size_t)a * r->size + b] && r->near[(size_t)b * r->size + a]);
    }
    return neighbours > 1 && !complete;
}

/* When the cable `ending` is taken down: frees the receives of the frames that were being forwarded over it. */
void tb_routes_release(struct tb *tb, const struct tb_cable *ending)
{
    for (uint32_t i = 0; i < tb->cable_count; i++) {
        struct tb_cable *c = tb->cables[i];
        for (uint32_t slot = 0; c && c != ending && c->open && c->held_count && slot < c->receives; slot++) {
            if (c->held[slot] != ending->index + 1)
                continue;
            c->held[slot] = 0;
            c->held_count--;
            tb->owes_receives = true;
            if (tb_cable_receive(c, slot) != 0)
                base_log(BASE_LOG_WARN, "%s", base_error());
        }
    }
}

/* Forwards a frame out of the receive in which it arrived. */
bool tb_forward(struct tb *tb, struct tb_cable *from, uint32_t slot, uint32_t bytes, uint32_t to)
{
    struct tb_link *l = tb_link_of(tb, to);
    uint8_t *frame = from->frames + (size_t)slot * TB_FRAME_BYTES;
    struct tb_frame f;
    memcpy(&f, frame, sizeof f);
    /* At most half of the receives may hold forwarded frames. */
    if (!l || f.hops <= 1 || from->held_count >= from->receives / 2)
        return false;
    f.hops--;
    memcpy(frame, &f, sizeof f);
    base_spin_lock(&l->r.lock); /* protects the link's route */
    bool went = l->via && tb_cable_send(l->via, TB_REQUEST_FORWARD, from->index, slot, frame, bytes);
    if (went) {
        from->held[slot] = (uint16_t)(l->via->index + 1);
        from->held_count++;
    }
    base_spin_unlock(&l->r.lock);
    return went;
}
