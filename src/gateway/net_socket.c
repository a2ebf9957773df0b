/* SPDX-License-Identifier: MIT
 *
 * Moves bytes between one socket of the gateway and the memory of its asker. The socket is read while the ring of `down` has room, and
 * written while the ring of `up` has bytes. So a slow asker or a slow peer delays only its own connection.
 */
#include "gateway/net.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TURNS     16u    /* how many pieces a connection moves before other connections may move theirs */
#define BRIEF     65536u /* the largest piece that the progress thread moves (gateway_server_brief()); it moves at most two pieces */
#define GET_TRIES 64u    /* how often to test a get right after its start; later net_tick() tests it */
#define GET_NS    (100 * WEFT_US) /* time between two tests of gets */
#define LINGER_NS (10 * WEFT_SECOND)

#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0 /* the socket has SO_NOSIGPIPE */
#endif

static struct gateway_watches *watches_of(const struct net_socket *s)
{
    return gateway_server_watches(s->all->server);
}

/* --- the list of sockets that net_tick() checks --- */

void net_socket_time(struct net_socket *s, int64_t deadline)
{
    s->deadline = deadline;
    if (s->timed)
        return;
    s->timed = true;
    s->timed_next = s->all->timed;
    s->timed_at = &s->all->timed;
    if (s->timed_next)
        s->timed_next->timed_at = &s->timed_next;
    s->all->timed = s;
}

void net_socket_untime(struct net_socket *s)
{
    if (!s->timed)
        return;
    s->timed = false;
    *s->timed_at = s->timed_next;
    if (s->timed_next)
        s->timed_next->timed_at = s->timed_at;
}

/* --- buffers for fetched bytes --- */

/* Returns whether an asker may have `more` buffers: see gateway_share_allows(). */
static bool piece_allowed(const struct net *all, uint32_t asker, uint32_t more)
{
    uint32_t used = all->pieces - all->spares, own = all->asker[asker].pieces;
    return gateway_share_allows(own + more - 1, used + more - 1, NET_PIECES);
}

static struct net_piece *piece_take(struct net *all, uint32_t asker)
{
    struct net_piece *p = NULL;
    if (!piece_allowed(all, asker, 1))
        return NULL;
    if (all->spare) {
        p = all->spare;
        all->spare = p->next;
        all->spares--;
    } else if ((p = malloc(sizeof *p))) {
        all->pieces++;
    }
    if (!p)
        return NULL;
    p->have = p->used = p->getting = 0;
    p->asker = asker;
    all->asker[asker].pieces++;
    return p;
}

static void piece_give(struct net *all, struct net_piece *p)
{
    struct net_piece **list = p->getting ? &all->orphans : &all->spare;
    p->next = *list;
    *list = p;
    if (p->getting)
        return; /* the buffer counts for the asker until the get ends */
    all->spares++;
    all->asker[p->asker].pieces--;
}

/* Whether few buffers are left for the asker. If so, a connection whose peer does not read gives its buffer back. */
static bool pieces_are_short(const struct net *all, uint32_t asker)
{
    return !piece_allowed(all, asker, NET_PIECES / 8);
}

int64_t net_pieces_tick(struct net *all)
{
    for (struct net_piece **at = &all->orphans, *p; (p = *at);) {
        if (weft_test(gateway_of(all->server)->w, &p->op) == -EINPROGRESS) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        p->getting = false;
        piece_give(all, p);
    }
    return all->orphans ? GET_NS : INT64_MAX;
}

void net_pieces_free(struct net *all)
{
    for (struct net_piece *p; (p = all->orphans);) {
        all->orphans = p->next;
        /* after a time-out the get may still write to this memory, so it is never freed */
        if (weft_wait(gateway_of(all->server)->w, &p->op, WEFT_TIMEOUT_DEFAULT) != -ETIMEDOUT)
            free(p);
    }
    for (struct net_piece *p; (p = all->spare);) {
        all->spare = p->next;
        free(p);
    }
}

/* --- making and closing --- */

/* How many sockets this process can open for other nodes. */
static uint32_t sockets_max(void)
{
    uint64_t files = gateway_connections_max();
    return files < NET_SOCKETS_MAX ? (uint32_t)files : NET_SOCKETS_MAX;
}

/* Checks whether a node may have one more socket. Returns -EMFILE if it may not. */
static int socket_allowed(const struct net *all, uint32_t node)
{
    const struct gateway *g = gateway_of(all->server);
    uint32_t own = all->asker[node].sockets, most = sockets_max(), used = all->table.used;
    if (used < most && (g->net_sockets ? own < g->net_sockets : gateway_share_allows(own, used, most)))
        return 0;
    return base_fail(-EMFILE,
                     "node %u has %u sockets at node %u and cannot have more%s: close some, or start node %u with WEFT_NET_SOCKETS above "
                     "%u, or with a higher limit of open files (ulimit -n; the present limit allows %u sockets for all nodes together)",
                     node, own, g->w->rank, g->net_sockets ? "" : "; the rest is for other nodes", g->w->rank, g->net_sockets, most);
}

int net_socket_new(struct net *all, uint32_t node, uint32_t flags, struct net_socket **out)
{
    int rc = socket_allowed(all, node);
    if (rc)
        return rc;
    struct net_socket *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(-ENOMEM, "no memory to open a socket for node %u" BASE_MEMORY_HINT, node);
    *s = (struct net_socket){.all = all, .node = node, .flags = flags, .watch = {.fd = -1, .arg = s}, .deadline = INT64_MAX};
    s->accepts_last = &s->accepts;
    s->id = gateway_table_add(&all->table, s);
    if (!s->id) {
        free(s);
        return base_fail(-ENOMEM, "no memory to open a socket for node %u" BASE_MEMORY_HINT, node);
    }
    all->asker[node].sockets++;
    *out = s;
    return 0;
}

static void socket_move(struct net_socket *s, bool down, bool up);

/* Called when a stream has changed. If only `up` has changed, does not try to read from a socket that is watched for readable bytes,
 * because the watch reports them. */
static void on_moved(struct gateway_listener *l, struct gateway_stream *stream)
{
    struct net_socket *s = (struct net_socket *)l;
    socket_move(s, stream != s->up || !(s->watch.events & GATEWAY_READABLE), stream != s->down);
}

static void on_ready(struct gateway_watch *watch)
{
    net_socket_move(watch->arg);
}

int net_socket_streams(struct net_socket *s, const weft_request *r)
{
    struct gateway *g = gateway_of(s->all->server);
    s->listener.on_moved = on_moved;
    s->listener.quick = true;
    int rc = gateway_stream_write(g, s->node, r->arg[1], r->arg[2], r->arg[3], gateway_server_moved, &s->listener, &s->down);
    if (!rc)
        rc = gateway_stream_fetch(g, s->node, r->arg[4], r->arg[5], r->arg[6], gateway_server_moved, &s->listener, &s->up);
    return rc;
}

int net_socket_watch(struct net_socket *s, int fd, unsigned events)
{
    s->watch.ready = s->watch.ready ? s->watch.ready : on_ready;
    int rc = gateway_watch(watches_of(s), &s->watch, fd, events);
    if (rc)
        close(fd);
    return rc;
}

static void drop_stream(struct net_socket *s, struct gateway_stream **stream)
{
    if (*stream)
        gateway_server_unlist(s->all->server, *stream);
    gateway_stream_close(*stream);
    *stream = NULL;
}

/* Makes the system reset the connection when it is closed. The reset tells the peer that the stream is incomplete. */
static void socket_reset(const struct net_socket *s)
{
    const struct linger now = {.l_onoff = 1};
    if (s->watch.fd >= 0 && (s->state == NET_OPEN || s->state == NET_LENT))
        setsockopt(s->watch.fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

void net_socket_free(struct net_socket *s)
{
    struct net *all = s->all;
    if (!s->up_over || !s->down_over)
        socket_reset(s);
    gateway_unwatch(watches_of(s), &s->watch);
    drop_stream(s, &s->down);
    drop_stream(s, &s->up);
    if (s->lookup && s->state == NET_RESOLVES)
        gateway_work_leave(all->names, &s->lookup->work); /* the thread that resolves the name frees the lookup */
    else
        net_lookup_free(s->lookup);
    if (s->piece)
        piece_give(all, s->piece);
    net_socket_untime(s);
    gateway_table_remove(&all->table, s->id);
    all->asker[s->node].sockets--;
    free(s);
}

/* --- the end of each direction --- */

static void up_end(struct net_socket *s)
{
    s->up_over = true;
    if (s->piece)
        piece_give(s->all, s->piece);
    s->piece = NULL;
    s->wants_piece = false;
    drop_stream(s, &s->up); /* also tells the asker that the stream has ended, unless the asker has ended it */
}

static void down_end(struct net_socket *s, int status)
{
    s->down_over = true;
    if (s->down)
        (void)gateway_stream_send(s->down, NULL, 0, true, status);
}

/* --- from the network to the asker --- */

static bool is_shut(const struct gateway_stream *stream)
{
    base_spin_lock(&stream->g->lock);
    bool shut = stream->shut;
    base_spin_unlock(&stream->g->lock);
    return shut;
}

static bool is_udp(const struct net_socket *s)
{
    return s->flags & WEFT_NET_DATAGRAMS;
}

/* Reads one piece from the socket into the ring. Returns false if there is nothing to read now, or if there is no room in the ring. */
static bool down_move(struct net_socket *s)
{
    if (is_udp(s)) {
        s->down_over = is_shut(s->down);
        return !s->down_over && net_udp_receive(s);
    }
    uint8_t some[WEFT_PAYLOAD_MAX];
    struct iovec piece[2];
    uint64_t room = gateway_stream_room(s->down, piece);
    if (!room)
        s->down_over = is_shut(s->down);
    if (!room)
        return false;
    if (s->down->memory && room > BRIEF && gateway_server_brief(s->all->server)) {
        piece[0].iov_len = piece[0].iov_len < BRIEF ? piece[0].iov_len : BRIEF;
        piece[1].iov_len = 0;
        room = piece[0].iov_len;
    }
    ssize_t n = s->down->memory ? readv(s->watch.fd, piece, piece[1].iov_len ? 2 : 1) : read(s->watch.fd, some, (size_t)room);
    if (n > 0)
        return gateway_stream_send(s->down, some, (uint64_t)n, false, 0) == 0 && (uint64_t)n == room;
    if (n < 0 && errno == EINTR)
        return true;
    if (n == 0) {
        down_end(s, 0);
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
        down_end(s, -errno);
        if (!s->up_over)
            up_end(s);
    }
    return false;
}

/* --- from the asker to the network --- */

/* Fetches bytes from a ring that is not mapped. Returns 1 if the bytes are in s->piece, 0 if they are not there yet, or a negative
 * errno. */
static int up_fetch(struct net_socket *s, uint64_t n)
{
    struct gateway_stream *up = s->up;
    struct weft_node *w = up->g->w;
    s->piece = s->piece ? s->piece : piece_take(s->all, s->node);
    struct net_piece *p = s->piece;
    s->wants_piece = true;
    if (!s->timed)
        net_socket_time(s, INT64_MAX);
    if (!p)
        return 0;
    bool begins = !p->getting;
    if (begins) {
        p->have = (uint32_t)(n < NET_PIECE ? n : NET_PIECE);
        p->used = 0;
        int rc = weft_get_nowait(w, p->bytes, up->ring + (up->first & (up->bytes - 1)), p->have, &p->op);
        if (rc) {
            p->have = 0;
            return rc == -EAGAIN ? 0 : rc;
        }
        p->getting = true;
    }
    int rc = weft_test(w, &p->op);
    for (unsigned i = 0; begins && rc == -EINPROGRESS && i < GET_TRIES; i++) {
        weft_progress(w);
        rc = weft_test(w, &p->op);
    }
    if (rc == -EINPROGRESS)
        return 0;
    p->getting = false;
    s->wants_piece = false;
    return rc ? rc : 1;
}

/* Returns how many bytes can be written next, and where they are, or a negative errno. Returns 0 if there are no bytes now (`*last` is
 * false), or if the stream has ended (`*last` is true). */
static int64_t up_next(struct net_socket *s, const uint8_t **at, bool *last)
{
    struct gateway_stream *up = s->up;
    base_spin_lock(&up->g->lock);
    uint64_t n = gateway_stream_next(up, at);
    int status = up->ended ? up->status : 0;
    *last = up->ended && !n;
    base_spin_unlock(&up->g->lock);
    if (status)
        return status;
    if (!n || up->memory)
        return (int64_t)n;
    if (!s->piece || s->piece->used == s->piece->have || s->piece->getting) {
        int rc = up_fetch(s, n);
        if (rc <= 0)
            return rc;
    }
    *at = s->piece->bytes + s->piece->used;
    return s->piece->have - s->piece->used;
}

static void up_taken(struct net_socket *s, uint64_t n)
{
    struct gateway_credit due = {0};
    struct gateway *g = s->up->g;
    base_spin_lock(&g->lock);
    gateway_stream_take(s->up, n, &due);
    base_spin_unlock(&g->lock);
    gateway_credit_give(g, &due);
    if (s->piece && (s->piece->used += (uint32_t)n) == s->piece->have) {
        piece_give(s->all, s->piece);
        s->piece = NULL;
    }
}

/* Ends a connection because the asker has dropped it, its memory cannot be read, or it has sent invalid data. */
static bool up_broken(struct net_socket *s, int error)
{
    socket_reset(s);
    if (!s->down_over)
        down_end(s, error); /* otherwise an asker that waits for bytes would wait for ever */
    up_end(s);
    return false;
}

static void piece_drop(struct net_socket *s)
{
    if (s->piece)
        piece_give(s->all, s->piece);
    s->piece = NULL;
}

/* Sends the first datagram of the `n` bytes at `at`. Returns false if the socket is full (`*full`) or broken. */
static bool up_datagram(struct net_socket *s, const uint8_t *at, uint64_t n, bool *full)
{
    struct gateway_stream *up = s->up;
    bool skip, again = s->piece && s->piece->used;
    base_spin_lock(&up->g->lock);
    uint64_t gap = up->bytes - (up->first & (up->bytes - 1)), all = up->last - up->first;
    base_spin_unlock(&up->g->lock);
    int64_t taken = net_udp_send(s, at, n, gap, &skip);
    *full = taken == -EAGAIN;
    if (*full)
        return false;
    if (taken < 0 || (uint64_t)taken > all || (taken == 0 && !again))
        return up_broken(s, taken < 0 ? (int)taken : -EPROTO);
    if (taken == 0 || skip)
        piece_drop(s); /* the piece ends within the datagram: fetch a piece that begins with the datagram */
    if (taken)
        up_taken(s, (uint64_t)taken);
    return true;
}

/* Writes one piece to the socket. Returns false if there is nothing to write now, or if the socket is full (`*full`) or broken. */
static bool up_move(struct net_socket *s, bool *full)
{
    const uint8_t *at = NULL;
    bool last = false;
    int64_t n = up_next(s, &at, &last);
    if (n < 0)
        return up_broken(s, (int)n);
    if (n > 0 && is_udp(s))
        return up_datagram(s, at, (uint64_t)n, full);
    if (n == 0) {
        if (last) {
            shutdown(s->watch.fd, SHUT_WR);
            up_end(s);
        }
        return false;
    }
    if (n > (int64_t)BRIEF && gateway_server_brief(s->all->server))
        n = BRIEF;
    ssize_t put = send(s->watch.fd, at, (size_t)n, MSG_NOSIGNAL);
    if (put > 0) {
        up_taken(s, (uint64_t)put);
        return true;
    }
    if (put < 0 && errno == EINTR)
        return true;
    *full = put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    /* frees the buffer: its bytes are still in the ring, and are fetched again later */
    if (*full && s->piece && pieces_are_short(s->all, s->node)) {
        piece_give(s->all, s->piece);
        s->piece = NULL;
    }
    if (!*full) {
        int rc = put < 0 ? -errno : -EPIPE;
        if (!s->down_over && rc != -EPIPE) /* after EPIPE there may still be bytes to read */
            down_end(s, rc);
        up_end(s);
    }
    return false;
}

/* --- both directions --- */

static bool up_waits(const struct net_socket *s)
{
    return s->timed && (s->wants_piece || s->deadline != INT64_MAX);
}

static void socket_closed(struct net_socket *s)
{
    struct gateway_call *c = s->call;
    s->call = NULL;
    net_socket_free(s);
    gateway_answer(c, 0, NULL, 0, NULL, 0);
}

static void socket_move(struct net_socket *s, bool down, bool up)
{
    bool full = !up && s->watch.events & GATEWAY_WRITABLE, more = false;
    const unsigned turns = gateway_server_brief(s->all->server) ? 2 : TURNS;
    if (s->state != NET_OPEN)
        return;
    for (unsigned i = 0; down && i < turns && !s->down_over; i++)
        if (!(more = down_move(s)))
            break;
    for (unsigned i = 0; up && !s->up_over; i++) {
        if (i == turns) {
            /* watch for GATEWAY_WRITABLE, so that this function is called again after other connections have moved their pieces */
            full = true;
            break;
        }
        if (!up_move(s, &full))
            break;
    }
    if (s->closing && s->up_over) {
        socket_closed(s);
        return;
    }
    if (s->timed && !up_waits(s))
        net_socket_untime(s);
    if (s->down_over && s->up_over) {
        gateway_unwatch(watches_of(s), &s->watch); /* closes the descriptor */
        return;
    }
    struct iovec piece[2];
    bool room = !s->down_over && (more || (is_udp(s) ? net_udp_room(s->down) : gateway_stream_room(s->down, piece)) > 0);
    gateway_watch_events(watches_of(s), &s->watch, (room ? GATEWAY_READABLE : 0u) | (full ? GATEWAY_WRITABLE : 0u));
}

void net_socket_move(struct net_socket *s)
{
    socket_move(s, true, true);
}

void net_socket_close(struct net_socket *s, struct gateway_call *c)
{
    s->call = c;
    s->closing = true;
    s->down_over = true;
    if (s->state == NET_LENT)
        s->up_over = true; /* while the socket was lent, the asker has written all bytes itself */
    if (s->down)
        drop_stream(s, &s->down);
    if (s->state != NET_OPEN || s->up_over) {
        socket_closed(s);
        return;
    }
    net_socket_time(s, base_deadline(LINGER_NS));
    net_socket_move(s);
}

void net_socket_drop(struct net_socket *s, struct gateway_call *c)
{
    s->call = c;
    socket_closed(s); /* resets the connection if a direction has not ended */
}
