/* SPDX-License-Identifier: MIT
 *
 * Routes: how frames reach a node that no cable leads to. Every node tells every other, over their side connections, which nodes its own
 * cables lead to; a cable counts if both its ends report it. From that each node computes the shortest routes. It forwards frames for
 * others from the receive they arrived in, without reading them and without the program.
 *
 * A node that gets frames faster than it can forward them drops some. Nothing on the route waits for anything, so there can be no circular
 * wait. The end that sent a frame sends it again if it was dropped, or was in a node that died.
 */
#include "fabric/tb/tb.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define TB_NEIGHBOURS 240u

struct neighbours { /* on the side connection */
    uint16_t kind, count;
    uint16_t node[TB_NEIGHBOURS];
};
_Static_assert(sizeof(struct neighbours) <= FAB_SIDE_MESSAGE_MAX, "fits one message");

struct tb_routes {
    uint32_t size;
    bool changed;     /* ways are to be worked out again */
    uint32_t version; /* of our own neighbours */
    uint32_t *told;   /* [size]: the version each peer knows */
    uint32_t *queue;  /* [size]: for the search */
    uint32_t *first;  /* [size]: the neighbour on the way there; size: no way */
    bool *heard;      /* [size]: what its neighbours are */
    uint8_t *near;    /* [size][size]: row a, column b: a says that a cable of its leads to b */
};

int tb_routes_open(struct tb *tb)
{
    size_t n = tb->w->size;
    struct tb_routes *r = calloc(1, sizeof *r);
    tb->routes = r;
    if (!r)
        return base_fail(-ENOMEM, "no memory for routes");
    r->size = tb->w->size;
    r->version = 1;
    r->told = calloc(n, sizeof *r->told);
    r->queue = calloc(n, sizeof *r->queue);
    r->first = calloc(n, sizeof *r->first);
    r->heard = calloc(n, sizeof *r->heard);
    r->near = calloc(n, n);
    return r->told && r->queue && r->first && r->heard && r->near ? 0 : base_fail(-ENOMEM, "no memory for routes between %zu nodes", n);
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
    r->changed = true; /* also when there was another cable: frames go over one, and it may not be this one now; and who is gone is
                        * no longer waited for, in routes_all_heard() */
    if (*mine == there)
        return;
    *mine = there;
    r->version++;
    if (there)
        tb->passed_at = base_now_ns(); /* who has just learned of a way through this node has not sent anything yet */
}

void tb_routes_heard(struct tb *tb, uint32_t from, const void *bytes, size_t len)
{
    struct tb_routes *r = tb->routes;
    struct neighbours m;
    size_t head = offsetof(struct neighbours, node);
    if (len < head || len > sizeof m)
        return; /* not from any weft */
    memcpy(&m, bytes, len);
    if (m.count > TB_NEIGHBOURS || len != head + m.count * sizeof m.node[0])
        return;
    r->heard[from] = true;
    uint8_t *row = &r->near[(size_t)from * r->size];
    for (uint32_t i = 0; i < m.count; i++)
        if (m.node[i] < r->size && !row[m.node[i]])
            tb->passed_at = base_now_ns(); /* as above */
    memset(row, 0, r->size);
    for (uint32_t i = 0; i < m.count; i++)
        if (m.node[i] < r->size)
            row[m.node[i]] = 1;
    r->changed = true;
}

/* Breadth first, from a node and not through another (size: through any): the first step on a shortest way to each, and how many
 * were found. */
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

/* Is known what cables there are? What each says first is all that it found when it joined. Who is reached over another transport says
 * nothing. */
static bool routes_all_heard(const struct tb *tb)
{
    for (uint32_t i = 0; i < tb->w->size; i++) {
        int state = atomic_load_explicit(&tb->w->links[i].state, memory_order_acquire);
        if (i != tb->w->rank && !tb->routes->heard[i] && (state == FAB_UNKNOWN || (state == FAB_ALIVE && tb_link_of(tb, i))))
            return false;
    }
    return true;
}

/* A node that dies is often missed first by its neighbours, who say so: then it is not the way that is gone. Who looks after the
 * side connections will come to the same. */
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
        base_spin_lock(&l->lock);
        struct tb_cable *own = l->closed ? NULL : tb_link_cable(l);
        struct tb_cable *via = own || l->closed ? own : next ? tb_link_cable(next) : NULL;
        if (via != l->via && !own && !l->closed)
            base_log(BASE_LOG_INFO, via ? "node %u is reached through node %u" : "no route leads to node %u now", i, r->first[i]);
        /* Before all have said what cables they have, another way may be there all the same: what is under way waits for that. */
        if (!l->closed && !via && known && !atomic_load_explicit(&l->cut, memory_order_relaxed) && !routes_has_hung_up(l->link)) {
            atomic_store_explicit(&l->cut, true, memory_order_relaxed);
            if (tb_endpoint_fail(&l->endpoint, -ENETDOWN))
                atomic_store_explicit(&l->link->unsure, true, memory_order_relaxed);
        } else if (via) {
            if (!own && l->cable_count && l->via != via)
                tb_endpoint_reroute(&l->endpoint);
            atomic_store_explicit(&l->cut, false, memory_order_relaxed);
            /* relaxed: nothing is read because of it */
            atomic_store_explicit(&l->led, true, memory_order_relaxed);
        }
        l->via = via;
        l->touched = true;
        base_spin_unlock(&l->lock);
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
            r->told[i] = r->version; /* else at the next upkeep */
}

bool tb_routes_told(const struct tb *tb)
{
    const struct tb_routes *r = tb->routes;
    for (uint32_t i = 0; i < r->size; i++)
        if (r->told[i] != r->version && tb_link_of(tb, i) && fab_alive(tb->w, i))
            return false;
    return true;
}

/* Would others be cut off from each other without this node? */
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
    r->changed = true; /* the ways are to be worked out again: this has used their place */
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

/* Take back the receives whose frames go over a cable that ends now. */
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

/* Pass a frame on, from the receive it came into. */
bool tb_forward(struct tb *tb, struct tb_cable *from, uint32_t slot, uint32_t bytes, uint32_t to)
{
    struct tb_link *l = tb_link_of(tb, to);
    uint8_t *frame = from->frames + (size_t)slot * TB_FRAME_BYTES;
    struct tb_frame f;
    memcpy(&f, frame, sizeof f);
    /* Half of the receives stay for this node's own. */
    if (!l || f.hops <= 1 || from->held_count >= from->receives / 2)
        return false;
    f.hops--;
    memcpy(frame, &f, sizeof f);
    base_spin_lock(&l->lock); /* a way is taken away under it */
    bool went = l->via && tb_cable_send(l->via, TB_REQUEST_FORWARD, from->index, slot, frame, bytes);
    if (went) {
        from->held[slot] = (uint16_t)(l->via->index + 1);
        from->held_count++;
    }
    base_spin_unlock(&l->lock);
    return went;
}
