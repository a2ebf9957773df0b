/* SPDX-License-Identifier: MIT
 *
 * Hands memory of this node's GPUs to other processes of the host, and maps the memory of their GPUs. When a node with a GPU learns that
 * another node of the host has opened an arena, it sends the owner the name of a socket. The owner connects to the socket and sends a
 * descriptor of the memory, which the back end maps. Then the node confirms to the owner that it knows the arena. An arena that cannot be
 * mapped is reached by messages.
 *
 * A mapping stays when the owner closes the arena or dies, because kernels may be using the mapping. It is removed when the owner opens
 * another arena in the same space, or when the GPU of this node is closed.
 */
#include "gpu/arena.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KIND           "weft-arena"
#define PATIENCE_MOST  (5 * WEFT_SECOND) /* how long to wait for memory that was requested */
#define PATIENCE_GIVER WEFT_SECOND       /* how long an owner that has connected may send nothing */

/* Whether the node is on this host, and started together with this node. Nodes that joined later have no entry in the kernels'
 * tables. */
static bool is_here(const struct arenas *c, uint32_t node)
{
    const struct fab_transport *t = c->w->links[node].transport;
    return node != c->w->rank && !fab_late(c->w, node) && t && t->at_once;
}

static int64_t patience(const struct arenas *c)
{
    int64_t quarter = c->w->options.deadline_ns / 4;
    return quarter < PATIENCE_MOST ? quarter : PATIENCE_MOST;
}

/* --- messages, in handlers --- */

static void look_at(struct arenas *c, struct arena_other *o)
{
    atomic_store_explicit(&o->look, true, memory_order_relaxed);
    atomic_store_explicit(&o->fresh, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->news, 1, memory_order_release); /* pairs with the acquire in share_step() */
}

void share_heard(struct arenas *c, uint32_t from, const void *header, size_t len)
{
    struct arena_space m;
    if (len != sizeof m)
        return;
    memcpy(&m, header, sizeof m);
    if (m.space == 0 || m.space >= ARENA_SPACES)
        return;
    atomic_store_explicit(&c->peer[from].rdma[m.space], m.rdma < 0 && m.rdma >= -4095 ? base_status_in((int)m.rdma) : 0,
                          memory_order_relaxed);
    if (m.bytes == ARENA_AS_BEFORE)
        return;
    /* seq_cst: pairs with share_open(), which sets `other` and then reads `bytes` */
    atomic_store_explicit(&c->peer[from].kind[m.space], m.kind, memory_order_relaxed);
    atomic_store_explicit(&c->peer[from].bytes[m.space], m.bytes, memory_order_seq_cst);
    struct arena_other *o = atomic_load_explicit(&c->other, memory_order_seq_cst);
    if (o && is_here(c, from)) {
        o += from * ARENA_SPACES + m.space;
        atomic_fetch_add_explicit(&o->owed, 1, memory_order_relaxed);
        look_at(c, o);
        arena_ring(c);
    } else {
        (void)fab_send(c->w, from, ARENA_HANDLER_TOLD, NULL, 0, NULL, 0, NULL);
    }
}

void share_asked(struct arenas *c, uint32_t from, const void *header, size_t len)
{
    struct arena_share m;
    struct arena_other *o = atomic_load_explicit(&c->other, memory_order_acquire);
    if (!o || len != sizeof m || !is_here(c, from))
        return;
    memcpy(&m, header, sizeof m);
    if (m.space == 0 || m.space >= ARENA_SPACES || !memchr(m.place, 0, sizeof m.place) || strncmp(m.place, KIND "-", sizeof KIND))
        return;
    o += from * ARENA_SPACES + m.space;
    base_spin_lock(&c->lock);
    o->wants = m;
    o->wanted = true;
    base_spin_unlock(&c->lock);
    atomic_fetch_add_explicit(&c->news, 1, memory_order_release); /* pairs with the acquire in share_step() */
    arena_ring(c);
}

/* --- giving --- */

static void bring(const struct arena_share *to, struct arena_gift *gift, int memory)
{
    int fd = base_place_go(to->place);
    if (fd < 0)
        return; /* the other node then waits until its time-out */
    (void)base_send_fds(fd, gift, sizeof *gift, &memory, memory >= 0 ? 1 : 0);
    close(fd);
}

static void share_give(struct arenas *c, struct arena_other *o)
{
    base_spin_lock(&c->lock);
    struct arena_share to = o->wants;
    bool wanted = o->wanted;
    o->wanted = false;
    base_spin_unlock(&c->lock);
    if (!wanted)
        return;
    struct arena_gift gift = {.secret = to.secret};
    struct gpu_arena *a;
    void *at;
    gift.status = arena_enter(c, weft_gaddr_make(c->w->rank, (uint32_t)to.space, MEM_EXTENT_BYTES), 0, &a, &at);
    if (a) {
        gift.bytes = a->memory.bytes;
        gift.status = a->memory.fd < 0 ? -ENOTSUP : 0;
        atomic_store_explicit(&a->given, true, memory_order_relaxed);
    }
    bring(&to, &gift, a ? a->memory.fd : -1);
    arena_leave(a);
}

/* --- receiving what others share; the caller holds share_lock --- */

static void share_end(struct arenas *c, struct arena_other *o, uint32_t node, int rc)
{
    o->until = 0;
    o->ask = false;
    if (rc)
        atomic_store_explicit(&c->peer[node].unmapped, rc, memory_order_relaxed);
    atomic_store_explicit(&o->look, false, memory_order_release); /* pairs with the acquire in all_looked_at() */
    fab_wake_here(c->w);
}

/* Takes table_lock for writing, because a thread that has seen `mapped` may be about to use the arena. */
static void share_unmap(struct arenas *c, struct arena_other *o)
{
    pthread_rwlock_wrlock(&c->table_lock);
    atomic_store_explicit(&o->mapped, false, memory_order_relaxed);
    pthread_rwlock_unlock(&c->table_lock);
    o->arena.place.backend->memory_close(o->arena.place.device, &o->arena.memory);
}

/* Handles an announcement: the owner has opened or closed the arena in its space. */
static void share_begin(struct arenas *c, struct arena_other *o, uint32_t node, uint32_t space)
{
    const struct arena_peer *p = &c->peer[node];
    uint64_t bytes = atomic_load_explicit(&p->bytes[space], memory_order_seq_cst);
    bool mapped = atomic_load_explicit(&o->mapped, memory_order_relaxed);
    struct gpu_place gpu;
    bool any = view_find(c, atomic_load_explicit(&p->kind[space], memory_order_relaxed), &gpu);
    o->until = 0;
    if (!any || o->lost) {
        share_end(c, o, node, bytes ? o->lost ? -EBUSY : -ENODEV : 0);
        return;
    }
    if (mapped) {
        arena_refuse(c, &o->arena);
        view_hide(c, &o->arena);
    }
    int rc = bytes == 0 ? -ENOENT : !gpu.backend ? -EXDEV : c->share_place < 0 ? c->share_place : base_random(&o->secret, sizeof o->secret);
    if (rc) {
        share_end(c, o, node, rc == -ENOENT ? 0 : rc);
        return;
    }
    o->until = base_now_ns() + patience(c);
    o->ask = true;
}

static void share_ask(struct arenas *c, struct arena_other *o, uint32_t node, uint32_t space)
{
    struct arena_share m = {.space = space, .secret = o->secret};
    memcpy(m.place, c->share_name, sizeof m.place);
    int rc = fab_send(c->w, node, ARENA_HANDLER_SHARE, &m, sizeof m, NULL, 0, NULL);
    if (rc == -EAGAIN)
        return;
    o->ask = false;
    if (rc)
        share_end(c, o, node, rc);
}

static void share_await(struct arenas *c, struct arena_other *o, uint32_t node, uint32_t space)
{
    bool mapped = atomic_load_explicit(&o->mapped, memory_order_relaxed);
    if (!fab_alive(c->w, node))
        share_end(c, o, node, -ECONNRESET);
    else if (base_now_ns() >= o->until)
        share_end(c, o, node, -ETIMEDOUT);
    else if (mapped && atomic_load_explicit(&o->arena.users, memory_order_acquire)) /* pairs with arena_leave() */
        return;                                                                     /* the old mapping is still in use */
    else if (mapped)
        share_unmap(c, o);
    else if (o->ask)
        share_ask(c, o, node, space);
}

static int share_map(struct arenas *c, struct arena_other *o, uint32_t node, uint32_t space, const struct arena_gift *gift, int fd)
{
    struct gpu_place place;
    uint64_t told = atomic_load_explicit(&c->peer[node].bytes[space], memory_order_relaxed);
    if (gift->status || fd < 0 || gift->bytes < told || gift->bytes > WEFT_MAX_POOL_BYTES)
        return gift->status < 0 && gift->status >= -4095 ? (int)gift->status : -EPROTO;
    struct gpu_memory memory;
    (void)view_find(c, atomic_load_explicit(&c->peer[node].kind[space], memory_order_relaxed), &place);
    if (!place.backend)
        return -ENODEV; /* the GPU has been closed meanwhile */
    int rc = place.backend->memory_import(place.device, fd, gift->bytes, &memory);
    if (rc)
        return rc;
    pthread_rwlock_wrlock(&c->table_lock);
    o->arena = (struct gpu_arena){.place = place, .memory = memory, .node = node, .space = space};
    atomic_store_explicit(&o->mapped, true, memory_order_release); /* pairs with the acquire in other_open() */
    pthread_rwlock_unlock(&c->table_lock);
    view_show(c, &o->arena, NULL);
    return 0;
}

/* Maps the memory that an owner has handed over, for the request with the same secret. */
static void share_take(struct arenas *c, const struct arena_gift *gift, int fd)
{
    struct arena_other *all = atomic_load_explicit(&c->other, memory_order_relaxed);
    for (uint32_t i = 0; i < c->w->founders * ARENA_SPACES; i++) {
        struct arena_other *o = &all[i];
        uint32_t node = i / ARENA_SPACES;
        if (o->until && !o->ask && o->secret == gift->secret) {
            share_end(c, o, node, share_map(c, o, node, i % ARENA_SPACES, gift, fd));
            return;
        }
    }
}

/* Receives the memory's descriptor from an owner that has connected. */
static bool share_receive(struct arenas *c)
{
    struct arena_gift gift;
    int memory = -1;
    if (c->share_came < 0) {
        int fd = c->share_place < 0 ? -1 : base_place_take(c->share_place);
        if (fd < 0)
            return false;
        c->share_came = fd;
        c->share_until = base_now_ns() + PATIENCE_GIVER;
    }
    struct pollfd ready = {.fd = c->share_came, .events = POLLIN};
    if (poll(&ready, 1, 0) == 0 && base_now_ns() < c->share_until)
        return false;
    /* weft sends the whole message at once */
    int rc = ready.revents ? base_receive_fds(c->share_came, &gift, sizeof gift, &memory, 1, base_deadline(WEFT_MS)) : -ETIMEDOUT;
    close(c->share_came);
    c->share_came = -1;
    if (!rc)
        share_take(c, &gift, memory);
    if (memory >= 0)
        close(memory);
    return true;
}

/* Confirms that this node knows the arena. */
static void share_say(struct arenas *c, struct arena_other *o, uint32_t node)
{
    while (atomic_load_explicit(&o->owed, memory_order_relaxed)) {
        if (fab_send(c->w, node, ARENA_HANDLER_TOLD, NULL, 0, NULL, 0, NULL) == -EAGAIN)
            return;
        atomic_fetch_sub_explicit(&o->owed, 1, memory_order_relaxed);
    }
}

/* --- steps --- */

/* Handles one arena's changes. Returns true if there is more to do. */
static bool share_look(struct arenas *c, struct arena_other *o, uint32_t node, uint32_t space)
{
    share_give(c, o);
    if (atomic_exchange_explicit(&o->fresh, false, memory_order_relaxed))
        share_begin(c, o, node, space);
    if (o->until)
        share_await(c, o, node, space);
    else
        share_say(c, o, node);
    return o->until || atomic_load_explicit(&o->owed, memory_order_relaxed);
}

bool share_step(struct arenas *c)
{
    bool news = atomic_load_explicit(&c->news, memory_order_relaxed) && atomic_exchange_explicit(&c->news, 0, memory_order_acquire);
    if (!news && !c->sharing)
        return false;
    pthread_mutex_lock(&c->share_lock);
    bool came = share_receive(c);
    struct arena_other *all = atomic_load_explicit(&c->other, memory_order_acquire);
    c->sharing = false;
    for (uint32_t node = 0; node < c->w->founders; node++)
        for (uint32_t s = 1; s < ARENA_SPACES && is_here(c, node); s++)
            c->sharing |= share_look(c, &all[node * ARENA_SPACES + s], node, s);
    pthread_mutex_unlock(&c->share_lock);
    return news || came;
}

/* --- the GPU --- */

static bool all_looked_at(void *arg)
{
    struct arenas *c = arg;
    struct arena_other *all = atomic_load_explicit(&c->other, memory_order_relaxed);
    for (uint32_t i = 0; i < c->w->founders * ARENA_SPACES; i++)
        if (atomic_load_explicit(&all[i].look, memory_order_acquire))
            return false;
    return true;
}

/* Allocates `other`. The caller holds share_lock. Returns false if there is no memory: then messages carry all operations on arenas. */
static bool share_prepare(struct arenas *c)
{
    if (!atomic_load_explicit(&c->other, memory_order_relaxed)) {
        struct arena_other *all = calloc((size_t)c->w->room * ARENA_SPACES, sizeof *all);
        if (!all)
            return false;
        c->share_place = base_place_open(KIND, c->share_name);
        atomic_store_explicit(&c->other, all, memory_order_seq_cst); /* see share_heard() */
    }
    return true;
}

/* Whether the arena is not mapped although a GPU of this node could map it. The caller holds share_lock. */
static bool share_lacks(struct arenas *c, struct arena_other *o, uint32_t node, uint32_t space)
{
    const struct arena_peer *p = &c->peer[node];
    struct gpu_place gpu;
    if (!atomic_load_explicit(&p->bytes[space], memory_order_seq_cst) || !is_here(c, node) || o->until ||
        atomic_load_explicit(&o->mapped, memory_order_relaxed))
        return false;
    (void)view_find(c, atomic_load_explicit(&p->kind[space], memory_order_relaxed), &gpu);
    return gpu.backend;
}

void share_open(struct arenas *c, bool wait)
{
    bool lacks = false;
    pthread_mutex_lock(&c->share_lock);
    bool can = share_prepare(c);
    struct arena_other *all = atomic_load_explicit(&c->other, memory_order_relaxed);
    for (uint32_t i = 0; can && i < c->w->founders * ARENA_SPACES; i++)
        if (share_lacks(c, &all[i], i / ARENA_SPACES, i % ARENA_SPACES)) {
            look_at(c, &all[i]);
            lacks = true;
        }
    pthread_mutex_unlock(&c->share_lock);
    if (lacks)
        arena_ring(c);
    if (wait && can)
        (void)fab_wait(c->w, all_looked_at, c, base_deadline(2 * patience(c)));
}

/* Whether the GPU at `place` maps the arena. If it does, the carrier thread does not replace or remove the mapping any more. */
static bool share_hold(struct arenas *c, struct arena_other *o, const struct gpu_place *place)
{
    pthread_mutex_lock(&c->share_lock);
    bool held = atomic_load_explicit(&o->mapped, memory_order_relaxed) && !o->lost && o->arena.place.table == place->table;
    o->lost |= held;
    if (held && o->until)
        share_end(c, o, o->arena.node, -ENODEV); /* if another GPU is open, share_open() maps the arena for that GPU */
    pthread_mutex_unlock(&c->share_lock);
    return held;
}

/* Removes a mapping that belongs to the GPU. Returns false if the mapping is in use, by operations or (without `quiet`) by kernels. */
static bool share_leave(struct arenas *c, struct arena_other *o, const struct gpu_place *place, bool quiet, int64_t deadline)
{
    if (!share_hold(c, o, place))
        return true;
    bool unused = arena_unused(c, &o->arena, deadline);
    view_hide(c, &o->arena);
    pthread_mutex_lock(&c->share_lock);
    o->lost = !unused || !quiet;
    if (!o->lost)
        share_unmap(c, o);
    pthread_mutex_unlock(&c->share_lock);
    if (!unused)
        base_log(BASE_LOG_WARN,
                 "a GPU was closed while operations on the arena of node %u in space %u were under way, so this node keeps the arena "
                 "mapped until this node is closed; wait for all operations before you close a GPU",
                 o->arena.node, o->arena.space);
    return unused && quiet;
}

bool share_close(struct arenas *c, const struct gpu_place *place, bool quiet, int64_t deadline)
{
    struct arena_other *all = atomic_load_explicit(&c->other, memory_order_acquire);
    struct gpu_place other;
    bool free = true, more = view_find(c, 0, &other);
    pthread_mutex_lock(&c->share_lock);
    for (uint32_t i = 0; all && !more && i < c->w->founders * ARENA_SPACES; i++)
        if (all[i].until)
            share_end(c, &all[i], i / ARENA_SPACES, -ENODEV);
    pthread_mutex_unlock(&c->share_lock);
    /* without share_lock, because share_leave() may wait, and other threads need the lock in the meantime */
    for (uint32_t i = 0; all && i < c->w->founders * ARENA_SPACES; i++)
        free &= share_leave(c, &all[i], place, quiet, deadline);
    return free;
}

/* How this node reaches the GPUs of a node on another host, or of a node with arenas that are not mapped. */
static const char *share_far(const struct arenas *c, uint32_t node, char *why, size_t room)
{
    const struct fab_transport *t = c->w->links[node].transport;
    const struct arena_peer *p = &c->peer[node];
    uint32_t spaces = 0, staged = 0, first = 0; /* how many arenas; how many of them are staged; the first staged one */
    int rc = 0;
    for (uint32_t s = 1; s < ARENA_SPACES; s++) {
        int one = atomic_load_explicit(&p->rdma[s], memory_order_relaxed);
        bool is = atomic_load_explicit(&p->bytes[s], memory_order_relaxed);
        spaces += is;
        staged += is && one;
        if (is && one && !first) {
            first = s;
            rc = one;
        }
    }
    bool direct = t && t->get_into && (spaces > staged || !staged);
    if (direct && first)
        snprintf(why, room, "by its node's RDMA device, except space %u: %s", first, rdma_reason(rc));
    else if (direct)
        snprintf(why, room, "the RDMA device of its node accesses the GPU's memory");
    else if (t && t->get_into)
        snprintf(why, room, "through the pools: %s", rdma_reason(rc));
    else
        snprintf(why, room, "through the pools: with %s, no device can access GPUs' memory", t ? t->name : "no transport");
    return direct ? "rdma" : "staged";
}

const char *share_way(struct arenas *c, uint32_t node, char *why, size_t room)
{
    struct arena_other *all = atomic_load_explicit(&c->other, memory_order_acquire);
    int rc = atomic_load_explicit(&c->peer[node].unmapped, memory_order_relaxed);
    bool mapped = false;
    for (uint32_t s = 1; all && s < ARENA_SPACES; s++)
        mapped |= atomic_load_explicit(&all[node * ARENA_SPACES + s].mapped, memory_order_relaxed);
    if (node == c->w->rank)
        snprintf(why, room, "the arena belongs to this node");
    else if (mapped)
        snprintf(why, room, "the same host: the memory of its GPU is mapped here");
    else if (!is_here(c, node))
        return share_far(c, node, why, room);
    else if (!all || rc == -ENODEV || rc == 0)
        snprintf(why, room, "the same host, but this node had no open GPU when the memory could be mapped");
    else if (rc == -EXDEV)
        snprintf(why, room, "the same host, but its GPU is of another kind");
    else
        snprintf(why, room, "the same host, but its GPU's memory cannot be mapped here: %s", base_strerror(rc));
    return node == c->w->rank ? "own" : mapped ? "mapped" : "staged";
}

void share_free(struct arenas *c, bool quiet)
{
    if (c->share_place >= 0)
        close(c->share_place);
    if (c->share_came >= 0)
        close(c->share_came);
    struct arena_other *all = atomic_load_explicit(&c->other, memory_order_relaxed);
    for (uint32_t i = 0; all && i < c->w->founders * ARENA_SPACES; i++)
        if (all[i].lost && quiet)
            all[i].arena.place.backend->memory_close(all[i].arena.place.device, &all[i].arena.memory);
    free(all);
}
