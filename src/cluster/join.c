/* SPDX-License-Identifier: MIT
 *
 * Joining. Every node connects to node 0 and sends it a card; node 0 sends all cards to all nodes. Then every pair opens its side
 * connection (pairs.c). wire.h describes the messages.
 */
#include "cluster/join.h"
#include "cluster/pmix.h"

#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define GUEST_WAIT   (2 * WEFT_SECOND) /* how long a connection may take to authenticate if there are more connections than nodes */
#define PENDING_MAX  (2u * WEFT_MAX_NODES)
#define ADDRESS_WAIT (250 * WEFT_MS)    /* time-out for each of several addresses in the first round; doubled in each further round */
#define ADDRESS_MOST (60 * WEFT_SECOND) /* approximate upper limit of the doubled time-out */
#define ADDRESS_REST (50 * WEFT_MS)     /* pause between rounds. Needed because an address that cannot be resolved fails at once */

/* --- cards --- */

static void card_make(struct wire_card *c, const struct join *j)
{
    const struct weft_node *w = j->w;
    struct join_self self = {
        .rank = w->rank, .pool_bytes = w->pool_bytes, .liveness_ns = w->options.liveness_ns, .grows = cluster_grows(j->settings)};
    memcpy(self.host_id, w->host_id, sizeof self.host_id);
    join_card_make(c, j, &self);
}

/* List the nodes without a card, as in "nodes 1, 3 and 4". */
static void name_missing(const struct join *j, char *text, size_t room)
{
    uint32_t size = j->w->size, missing = 0, named = 0;
    for (uint32_t i = 0; i < size; i++)
        missing += !j->cards[i].side[0];
    size_t at = (size_t)snprintf(text, room, missing == 1 ? "node" : "nodes");
    for (uint32_t i = 0; i < size && named < 16 && at < room; i++) {
        if (j->cards[i].side[0])
            continue;
        named++;
        at += (size_t)snprintf(text + at, room - at, "%s %u", named == 1 ? "" : named == missing ? " and" : ",", i);
    }
    if (named < missing && at < room)
        snprintf(text + at, room - at, " and %u more", missing - named);
}

/* --- node 0 --- */

enum stage { WAIT_HELLO, WAIT_PROOF, SEATED /* authenticated, and its card is in the table */ };

/* A connection that node 0 has accepted. */
struct guest {
    int fd, pid;
    enum stage stage;
    int64_t came; /* when the connection was accepted */
    size_t got;   /* received bytes of the current message */
    struct wire_hello hello;
    struct wire_challenge challenge;
    struct wire_proof proof;
};

/* Statistics of refused connections, for the error that names the missing nodes. */
struct turned_away {
    /* secret: number of connections with a wrong proof of the secret; foreign: number of connections with another protocol */
    uint32_t secret, foreign;
    char last[WIRE_ADDRESS]; /* address of the last connection with a wrong proof */
    char text[160];          /* why a connection with a right proof was refused; "": none was refused */
};

static int answer_send(const struct join *j, const struct guest *g, struct wire_answer *a, int64_t deadline)
{
    memcpy(a->session, j->session, sizeof a->session);
    join_answer_mac(a->mac, j, &g->hello, a, j->cards);
    int rc = join_write(g->fd, a, sizeof *a, deadline);
    return rc || !a->count ? rc : join_write(g->fd, j->cards, a->count * sizeof *j->cards, deadline);
}

static void join_refuse(const struct join *j, const struct guest *g, int error, const char *text)
{
    struct wire_answer a = {.magic = WIRE_MAGIC, .kind = WIRE_REFUSED, .error = -base_status_out(-error)};
    snprintf(a.text, sizeof a.text, "%s", text);
    /* an error is ignored: the refused node then sees only that the connection closes */
    (void)answer_send(j, g, &a, base_deadline(JOIN_ANSWER_GRACE));
}

/* A connection's name for messages: the peer's address; for a Unix socket the peer's pid, if known. */
static void name_guest(const struct guest *g, char *out, size_t len)
{
    if (cluster_socket_host(g->fd, true, out, len) == 0)
        return;
    if (g->pid > 0)
        snprintf(out, len, "pid %d", g->pid);
    else
        snprintf(out, len, "this host");
}

/* Check a complete proof and the card in it. Returns false if the caller must close the connection. */
static bool check_proof(struct join *j, struct guest *g, struct turned_away *t)
{
    uint8_t right[WIRE_MAC];
    join_proof_mac(right, j, &g->hello, &g->challenge, &g->proof.card);
    if (sodium_memcmp(right, g->proof.mac, WIRE_MAC)) {
        t->secret++;
        name_guest(g, t->last, sizeof t->last);
        return false; /* an unauthenticated connection gets no answer */
    }
    char text[WIRE_TEXT];
    uint32_t rank = g->hello.rank, size = j->w->size;
    if (g->hello.size == 0) {
        snprintf(text, sizeof text,
                 "this cluster is still starting, and nodes can join it with WEFT_JOIN only when it has started: try again");
        snprintf(t->text, sizeof t->text, "a node tried to join with WEFT_JOIN before the cluster had started");
    } else if (g->hello.size != size) {
        snprintf(text, sizeof text, "this node expects %u nodes, but node 0 expects %u: set the same WEFT_SIZE on all nodes", g->hello.size,
                 size);
        snprintf(t->text, sizeof t->text, "node %u expects %u nodes, but node 0 expects %u: set the same WEFT_SIZE on all nodes", rank,
                 g->hello.size, size);
    } else if (rank == 0 || rank >= size || !join_card_ok(&g->proof.card, rank)) {
        snprintf(text, sizeof text, "this node's number is %u, and must be from 1 to %u (WEFT_RANK)", rank, size - 1);
        snprintf(t->text, sizeof t->text, "a node tried to join as node %u: its number must be from 1 to %u (WEFT_RANK)", rank, size - 1);
    } else if (j->cards[rank].side[0]) {
        snprintf(text, sizeof text, "node %u has joined already (pid %u on %s): give each node its own number (WEFT_RANK)", rank,
                 j->cards[rank].pid, j->cards[rank].host);
        snprintf(t->text, sizeof t->text, "two nodes tried to join as node %u: give each node its own number (WEFT_RANK)", rank);
    } else if (g->proof.card.grows != (uint32_t)cluster_grows(j->settings)) {
        snprintf(text, sizeof text, "WEFT_GROW is %s on this node and %s on node 0: set it on all nodes or on none",
                 g->proof.card.grows ? "set" : "not set", g->proof.card.grows ? "not set" : "set");
        snprintf(t->text, sizeof t->text, "WEFT_GROW is %s on node %u, unlike on node 0: set it on all nodes or on none",
                 g->proof.card.grows ? "set" : "not set", rank);
    } else {
        j->cards[rank] = g->proof.card;
        join_adopt_address(j, &g->proof.card, g->fd);
        g->stage = SEATED;
        return true;
    }
    join_refuse(j, g, EINVAL, text);
    return false;
}

/* Read and handle available bytes. Returns false if the caller must close the connection. */
static bool join_hear(struct join *j, struct guest *g, struct turned_away *t)
{
    void *into = g->stage == WAIT_HELLO ? (void *)&g->hello : (void *)&g->proof;
    size_t want = g->stage == WAIT_HELLO ? sizeof g->hello : sizeof g->proof;
    if (g->stage == SEATED) {
        char byte;
        ssize_t n = recv(g->fd, &byte, 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        j->cards[g->hello.rank].side[0] = '\0'; /* the node is gone, so another node may join with this rank */
        return false;
    }
    ssize_t n = recv(g->fd, (uint8_t *)into + g->got, want - g->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0)
        return false;
    g->got += (size_t)n;
    if (g->got < want)
        return true;
    g->got = 0;
    if (g->stage == WAIT_PROOF)
        return check_proof(j, g, t);
    if (g->hello.magic != WIRE_MAGIC) {
        t->foreign++;
        return false;
    }
    g->challenge.magic = WIRE_MAGIC;
    if (base_random(g->challenge.nonce, sizeof g->challenge.nonce))
        return false;
    g->stage = WAIT_PROOF;
    return join_write(g->fd, &g->challenge, sizeof g->challenge, base_deadline(JOIN_STRANGER_WAIT)) == 0;
}

static uint32_t joined_nodes(const struct join *j)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->w->size; i++)
        n += j->cards[i].side[0] != 0;
    return n;
}

/* If there are more connections than other nodes, close those that have not authenticated in time. Otherwise keep all connections, because
 * nodes may be slow if many share few processors. Returns the number of remaining connections. */
static uint32_t dismiss(const struct join *j, struct guest *g, uint32_t guests)
{
    int64_t now = base_now_ns();
    for (uint32_t i = guests; i-- > 0 && guests >= j->w->size;) {
        if (g[i].stage == SEATED || now - g[i].came < GUEST_WAIT)
            continue;
        close(g[i].fd);
        g[i] = g[--guests];
    }
    return guests;
}

/* Fail, and send the error to all nodes that have joined. */
static int turn_away(const struct join *j, const struct guest *g, uint32_t guests, int error, const char *text)
{
    for (uint32_t i = 0; i < guests; i++)
        if (g[i].stage == SEATED)
            join_refuse(j, &g[i], error, text);
    return base_fail(-error, "%s", text);
}

/* Close the oldest connection that has not authenticated, preferably one that has not sent a hello. Returns false if there is no such
 * connection. */
static bool make_room(struct guest *g, uint32_t *guests)
{
    uint32_t oldest = *guests;
    for (uint32_t i = 0; i < *guests; i++)
        if (g[i].stage != SEATED &&
            (oldest == *guests || g[i].stage < g[oldest].stage || (g[i].stage == g[oldest].stage && g[i].came < g[oldest].came)))
            oldest = i;
    if (oldest == *guests)
        return false;
    close(g[oldest].fd);
    g[oldest] = g[--*guests];
    return true;
}

/* All nodes have joined: send the table of cards to each. A node that does not read delays all others, so sending ends at the deadline. A
 * node that has received only a part of the table gets no error message, because it would take the message for the rest of the table. */
static int send_tables(struct join *j, struct guest *g, uint32_t guests)
{
    int rc = base_random(j->session, sizeof j->session);
    for (uint32_t i = 0; i < guests && rc == 0; i++) {
        struct wire_answer a = {.magic = WIRE_MAGIC, .kind = WIRE_TABLE, .count = j->w->size};
        int64_t grace = base_deadline(JOIN_ANSWER_GRACE);
        if (g[i].stage != SEATED)
            continue;
        rc = answer_send(j, &g[i], &a, j->deadline > grace ? j->deadline : grace);
        if (rc == -ETIMEDOUT) {
            char text[WIRE_TEXT];
            const struct wire_card *c = &j->cards[g[i].hello.rank];
            snprintf(text, sizeof text, "node %u (pid %u on %s) does not receive the addresses of all nodes (is it stopped?)", c->rank,
                     c->pid, c->host);
            return turn_away(j, &g[i + 1], guests - i - 1, ETIMEDOUT, text);
        }
        rc = join_hub_add(j, g[i].fd, g[i].hello.rank);
        g[i].fd = -1; /* the hub now owns the descriptor */
    }
    return rc;
}

/* Accept a connection, if there is one. Returns a negative errno if the resources for connections are used up. */
static int take_guest(int listener, struct guest *g, uint32_t *guests)
{
    if (*guests == PENDING_MAX)
        make_room(g, guests);
    int pid, fd = cluster_accept(listener);
    if ((fd == -EMFILE || fd == -ENFILE) && make_room(g, guests))
        return 0; /* the new connection stays in the listener's backlog */
    if (fd < 0)
        return fd == -EMFILE || fd == -ENFILE || fd == -ENOBUFS || fd == -ENOMEM ? fd : 0;
    if (join_user_allowed(fd, &pid))
        g[(*guests)++] = (struct guest){.fd = fd, .pid = pid, .came = base_now_ns()};
    else
        close(fd);
    return 0;
}

/* Describe the refused connections, as in "; 2 connections ... were refused: ...". A refused connection may be that of a missing node. */
static void tell_turned_away(const struct turned_away *t, char *out, size_t room)
{
    int n = 0;
    *out = '\0';
    if (t->secret)
        n = snprintf(out, room, "; %u connection%s from %s%s refused: wrong secret (WEFT_SECRET_FILE)", t->secret,
                     t->secret == 1 ? "" : "s, the last", t->last, t->secret == 1 ? " was" : ", were");
    if (t->text[0] && n >= 0 && (size_t)n < room)
        n += snprintf(out + n, room - (size_t)n, "; %s", t->text);
    if (t->foreign && n >= 0 && (size_t)n < room)
        snprintf(out + n, room - (size_t)n, "; %u connection%s from another program or another version of weft", t->foreign,
                 t->foreign == 1 ? " was" : "s were");
}

static int coordinate(struct join *j)
{
    uint32_t guests = 0;
    struct turned_away away = {0};
    struct meet_place *place = &j->place;
    const char *bound = place->bound;
    int rc, listener = place->listener;
    if (listener < 0)
        listener = place->listener = cluster_listen(place->addresses[0], place->bound, sizeof place->bound);
    if (listener < 0)
        return base_context(listener,
                            "node 0 cannot listen for the other nodes at the address of WEFT_COORD, or \"coord\" in the hostfile");
    struct guest *g = calloc(PENDING_MAX, sizeof *g);
    struct pollfd *fds = calloc(PENDING_MAX + 1, sizeof *fds);
    if (!g || !fds) {
        rc = base_fail(-ENOMEM, "no memory for the connections of the nodes that join" BASE_MEMORY_HINT);
        goto out;
    }
    rc = join_listen_away(j, listener);
    if (!rc)
        rc = join_listen_for(j, j->settings->grow);
    if (rc)
        goto out;
    base_log(BASE_LOG_INFO, "waiting for %u nodes at %s", j->w->size - 1, bound);
    card_make(&j->cards[0], j);
    while (joined_nodes(j) < j->w->size) {
        if ((rc = join_stopped()))
            goto out;
        int64_t left = j->deadline - base_now_ns();
        if (left <= 0) {
            char missing[96], why[264], text[WIRE_TEXT];
            name_missing(j, missing, sizeof missing);
            tell_turned_away(&away, why, sizeof why);
            if (!why[0])
                snprintf(why, sizeof why, "; to wait longer, raise WEFT_JOIN_TIMEOUT");
            snprintf(text, sizeof text, "%s of %u did not join at %.96s within %.4g s%s", missing, j->w->size, bound,
                     (double)j->settings->join_timeout_ns / 1e9, why);
            rc = turn_away(j, g, guests, ETIMEDOUT, text);
            goto out;
        }
        guests = dismiss(j, g, guests);
        fds[0] = (struct pollfd){.fd = listener, .events = POLLIN};
        for (uint32_t i = 0; i < guests; i++)
            fds[1 + i] = (struct pollfd){.fd = g[i].fd, .events = POLLIN};
        int64_t ms = left / 1000000 + 1;
        if (poll(fds, guests + 1, ms > 1000 ? 1000 : (int)ms) <= 0)
            continue;
        for (uint32_t i = guests; i-- > 0;) {
            if (!fds[1 + i].revents || join_hear(j, &g[i], &away))
                continue;
            close(g[i].fd);
            g[i] = g[--guests]; /* fills the gap with the last connection, which was already handled */
        }
        if (fds[0].revents && (rc = take_guest(listener, g, &guests))) {
            char text[WIRE_TEXT];
            snprintf(text, sizeof text,
                     "node 0 has %u connections and cannot accept more: %s; raise the limit on open files of node 0 (ulimit -n)", guests,
                     base_strerror(rc));
            rc = turn_away(j, g, guests, -rc, text);
            goto out;
        }
    }
    rc = send_tables(j, g, guests);
out:
    for (uint32_t i = 0; i < guests; i++)
        if (g[i].fd >= 0)
            close(g[i].fd);
    free(g);
    free(fds);
    cluster_unlisten(listener, bound);
    place->listener = -1;
    return rc;
}

/* --- the others --- */

/* Connects to node 0. */
static int reach(struct join *j, const char *coord, int64_t connect_until, int64_t answer_until, struct wire_hello *hello,
                 struct wire_challenge *challenge)
{
    *hello = (struct wire_hello){.magic = WIRE_MAGIC, .rank = j->w->rank, .size = j->w->size};
    return join_reach("node 0", coord, connect_until, answer_until, hello, challenge);
}

/* Tries each address of node 0 until node 0 answers. Some addresses may be unreachable, or belong to another host. */
static int reach_any(struct join *j, struct wire_hello *hello, struct wire_challenge *challenge, const char **coord)
{
    const struct meet_place *place = &j->place;
    *coord = place->addresses[0];
    if (place->count == 1)
        return reach(j, *coord, j->deadline, j->deadline, hello, challenge);
    for (int64_t wait = ADDRESS_WAIT;; wait = wait < ADDRESS_MOST ? 2 * wait : wait) {
        for (uint32_t i = 0; i < place->count; i++) {
            int64_t now = base_now_ns(), connect_until = base_after(now, wait), answer_until = base_after(now, 8 * wait);
            *coord = place->addresses[i];
            int fd = reach(j, *coord, connect_until < j->deadline ? connect_until : j->deadline,
                           answer_until < j->deadline ? answer_until : j->deadline, hello, challenge);
            if (fd >= 0)
                return fd;
            if (join_stopped())
                return -EINTR;
            if (base_now_ns() >= j->deadline)
                return base_context(fd,
                                    "none of the %u addresses of node 0 leads to node 0: set WEFT_COORD to one that does; the last attempt",
                                    place->count);
        }
        base_sleep_ns(ADDRESS_REST);
    }
}

static int attend(struct join *j)
{
    struct wire_hello hello;
    struct wire_challenge challenge;
    struct wire_proof proof;
    struct wire_answer answer;
    uint8_t right[WIRE_MAC];
    const char *coord;
    memset(&proof, 0, sizeof proof);
    int rc, fd = reach_any(j, &hello, &challenge, &coord);
    if (fd < 0)
        return fd;
    rc = join_listen_away(j, fd);
    if (!rc)
        rc = join_listen_for(j, j->settings->grow);
    if (rc)
        goto out;
    card_make(&proof.card, j);
    rc = join_prove(j, fd, &hello, &challenge, &proof, &answer);
    if (rc == -ECONNRESET || rc == -EPIPE) {
        rc = base_fail(-EACCES,
                       "node 0 at %s closed the connection: the cluster secret is wrong or missing on one of the two nodes "
                       "(WEFT_SECRET_FILE), or node 0 ended",
                       coord);
        goto out;
    }
    if (rc) {
        base_fail(rc, "no answer from node 0 at %s: %s; check that node 0 runs, and see its messages", coord, base_strerror(rc));
        goto out;
    }
    bool table = answer.magic == WIRE_MAGIC && answer.kind == WIRE_TABLE && answer.count == j->w->size;
    if (!table && !(answer.magic == WIRE_MAGIC && answer.kind == WIRE_REFUSED && answer.count == 0)) {
        rc = base_fail(-EPROTO, "node 0 at %s sent an invalid answer; run the same version of weft on all hosts", coord);
        goto out;
    }
    if (table) {
        rc = join_read(fd, j->cards, j->w->size * sizeof *j->cards, j->deadline + JOIN_ANSWER_GRACE);
        if (rc) {
            base_fail(rc,
                      "the connection to node 0 at %s failed while node 0 sent the addresses of all nodes: %s; see the messages of node 0",
                      coord, base_strerror(rc));
            goto out;
        }
    }
    join_answer_mac(right, j, &hello, &answer, j->cards);
    if (sodium_memcmp(right, answer.mac, WIRE_MAC)) {
        rc = base_fail(-EACCES, "node 0 at %s has a different cluster secret, or none: set the same secret on all nodes (WEFT_SECRET_FILE)",
                       coord);
        goto out;
    }
    if (!table) {
        answer.text[sizeof answer.text - 1] = '\0';
        rc = base_fail(answer.error == -base_status_out(-ETIMEDOUT) ? -ETIMEDOUT : -EINVAL, "node 0 refuses this node: %s", answer.text);
        goto out;
    }
    memcpy(j->session, answer.session, sizeof j->session);
    for (uint32_t i = 0; i < j->w->size && !rc; i++)
        if (!join_card_ok(&j->cards[i], i))
            rc = base_fail(-EPROTO, "node 0 at %s sent invalid names and addresses of node %u; run the same version of weft on all hosts",
                           coord, i);
    /* Node 0 may listen at a wildcard address. Replace it by the address at which this node has reached node 0. */
    if (!rc && j->cards[0].away[0])
        join_correct_host(j->cards[0].away, fd);
    if (!rc)
        return join_hub_add(j, fd, 0);
out:
    close(fd);
    return rc;
}

/* At the limit of open files, report how many files a node needs: for each other node, one connection and, on Linux, one pidfd. */
static int say_how_many_files(const struct join *j, int rc)
{
    struct rlimit limit;
    if (rc != -EMFILE || getrlimit(RLIMIT_NOFILE, &limit))
        return rc;
    return base_context(rc, "each node of a cluster of %u needs about %u open files, but the limit is %llu: raise it (ulimit -n)",
                        j->w->size, 2 * j->w->size + 32, (unsigned long long)limit.rlim_cur);
}

/* A close hook: tells the launcher that the node has left. */
static void tell_launcher(struct weft_node *w, void *launcher)
{
    (void)w;
    launcher_close(launcher);
}

/* Keep the connection to the launcher until the node is closed. */
static int keep_launcher(struct weft_node *w, struct cluster_settings *s)
{
    int rc = s->launcher ? fab_hook(w, &(struct fab_hook){.close = tell_launcher, .arg = s->launcher}) : 0;
    if (!rc)
        s->launcher = NULL;
    return rc;
}

/* Find the address of node 0, and derive the key that authenticates the nodes. */
static int find_each_other(struct join *j, struct cluster_settings *s)
{
    uint8_t told[WIRE_MAC];
    bool has_told;
    int rc = meet_agree(&j->place, s, told, &has_told, j->deadline);
    if (rc)
        return rc;
    if (has_told)
        crypto_generichash(j->key, sizeof j->key, told, sizeof told, NULL, 0);
    else
        join_key(j->key, s);
    sodium_memzero(told, sizeof told);
    return 0;
}

/* Joins as the only node of a new cluster. Other nodes may join this cluster later. */
static int join_alone(struct join *j)
{
    int rc = join_listen_for(j, j->settings->grow);
    join_key(j->key, j->settings);
    card_make(&j->cards[0], j);
    return rc;
}

int cluster_join(struct weft_node *w, struct cluster_settings *s)
{
    struct join j = {
        .w = w, .settings = s, .deadline = base_deadline(s->join_timeout_ns), .here.fd = -1, .away.fd = -1, .place.listener = -1};
    if (sodium_init() < 0)
        return base_fail(-EIO, "cannot start the cluster: the library libsodium cannot be initialised; reinstall it");
    base_host_id(w->host_id);
    struct fab_link *self = &w->links[w->rank];
    self->pid = (int)getpid();
    int rc = fab_connect_self(w, j.deadline);
    if (rc)
        return rc;
    atomic_store_explicit(&self->state, FAB_ALIVE, memory_order_release);
    if (s->entry)
        return join_enter(w, s);
    if (w->size == 1 && !cluster_grows(s))
        return keep_launcher(w, s);
    j.cards = calloc(w->size, sizeof *j.cards);
    if (!j.cards)
        return base_fail(-ENOMEM, "no memory for the names and addresses of %u nodes" BASE_MEMORY_HINT, w->size);
    rc = join_listen_here(&j);
    if (!rc && w->size > 1)
        rc = find_each_other(&j, s);
    else if (!rc)
        rc = join_alone(&j);
    if (!rc && w->size > 1)
        rc = w->rank == 0 ? coordinate(&j) : attend(&j);
    if (!rc)
        rc = join_pairs(&j);
    rc = say_how_many_files(&j, rc);
    rc = join_hub_end(&j, rc);
    if (!rc && cluster_grows(s))
        rc = grow_open(w, s, &j);
    join_unlisten(&j);
    meet_leave(&j.place);
    sodium_memzero(j.key, sizeof j.key);
    free(j.cards);
    return rc ? rc : keep_launcher(w, s);
}
