/* SPDX-License-Identifier: MIT
 *
 * Opens a side connection between every pair of nodes: a Unix socket on one host, TCP between hosts. The transport connects over it, and it
 * stays open. The node with the higher number connects to the one with the lower number, so that nodes never wait for each other in a
 * cycle.
 */
#include "base/process.h"
#include "cluster/join.h"

#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALL_WAIT  (500 * WEFT_MS) /* after so long without a connection, check whether node 0 has reported a failure */
#define CALL_AGAIN (50 * WEFT_MS)  /* pause before connecting again after the peer closed the connection */

static bool pairs_is_here(const struct join *j, uint32_t node)
{
    return memcmp(j->cards[node].host_id, j->w->host_id, sizeof j->w->host_id) == 0;
}

/* --- listeners --- */

int join_listen_here(struct join *j)
{
    char address[WIRE_ADDRESS];
    int rc = cluster_private_address(address, sizeof address, "side", NULL);
    if (rc)
        return rc;
    j->here.fd = cluster_listen(address, j->here.bound, sizeof j->here.bound);
    return j->here.fd < 0 ? j->here.fd : 0;
}

int join_listen_away(struct join *j, int fd)
{
    char host[WIRE_ADDRESS - 16], address[WIRE_ADDRESS];
    if (cluster_socket_host(fd, false, host, sizeof host))
        return 0; /* node 0 listens at a Unix socket, so all nodes are on this host */
    size_t n = strcspn(host, "%");
    snprintf(j->scope, sizeof j->scope, "%.*s", (int)strcspn(host + n, "]"), host + n);
    snprintf(address, sizeof address, "%s:0", host);
    j->away.fd = cluster_listen(address, j->away.bound, sizeof j->away.bound);
    return j->away.fd < 0 ? j->away.fd : 0;
}

void join_unlisten(struct join *j)
{
    cluster_unlisten(j->here.fd, j->here.bound);
    cluster_unlisten(j->away.fd, j->away.bound);
    j->here.fd = j->away.fd = -1;
}

void join_correct_host(char address[WIRE_ADDRESS], int fd)
{
    char host[WIRE_ADDRESS - 16], port[16];
    const char *colon = strrchr(address, ':');
    if (!colon || cluster_socket_host(fd, true, host, sizeof host))
        return;
    snprintf(port, sizeof port, "%s", colon);
    snprintf(address, WIRE_ADDRESS, "%s%s", host, port);
}

/* --- one pair --- */

static int pair_up(struct join *j, uint32_t node, int fd, int pid)
{
    struct fab_link *l = &j->w->links[node];
    const struct wire_card *c = &j->cards[node];
    l->side_fd = fd;
    l->pid = (int)c->pid;
    memcpy(l->host, c->host, sizeof l->host);
    /* Use the pid that the kernel reports, not the one on the card: it is valid in this process's pid namespace. */
    l->pid_fd = base_watch_process(pid);
    int rc = fab_choose(j->w, c->host_id)->connect(j->w, l, fd, j->deadline);
    if (!rc)
        atomic_store_explicit(&l->state, FAB_ALIVE, memory_order_release);
    return rc;
}

/* The address at which to connect to a node. A link-local one gets the interface that leads to node 0. */
static const char *address_of(const struct join *j, uint32_t node, char *buf, size_t len)
{
    const struct wire_card *c = &j->cards[node];
    const char *end = strchr(c->away, ']');
    if (pairs_is_here(j, node))
        return c->side;
    if (strncasecmp(c->away, "[fe80:", 6) != 0 || !end || strchr(c->away, '%'))
        return c->away;
    snprintf(buf, len, "%.*s%s%s", (int)(end - c->away), c->away, j->scope, end);
    return buf;
}

/* Wait until `until`, then connect to the node: a socket or a negative errno. Ends early if a node fails. */
static int dial(struct join *j, uint32_t node, int64_t until)
{
    char buf[WIRE_ADDRESS + sizeof j->scope];
    int ready, fd;
    /* A node that has failed does not listen any more; join_hub_wait() returns node 0's report of that. */
    do {
        int rc = join_hub_wait(j, NULL, 0, until, &ready);
        if (rc)
            return rc;
        int64_t soon = base_deadline(CALL_WAIT);
        fd = cluster_connect(address_of(j, node, buf, sizeof buf), soon < j->deadline ? soon : j->deadline);
    } while (fd == -ETIMEDOUT && base_now_ns() < j->deadline);
    return fd < 0 ? base_context(fd, "side connection to node %u", node) : fd;
}

static int pairs_call(struct join *j, uint32_t node)
{
    struct wire_token mine, theirs, right;
    int pid = 0, fd, rc;
    join_token(&mine, j, j->w->rank, node);
    join_token(&right, j, node, j->w->rank);
    for (int64_t until = 0;; until = base_deadline(CALL_AGAIN)) {
        fd = dial(j, node, until);
        if (fd < 0)
            return fd;
        rc = join_user_allowed(fd, &pid) ? join_write(fd, &mine, sizeof mine, j->deadline) : -EACCES;
        if (!rc)
            rc = join_read(fd, &theirs, sizeof theirs, j->deadline);
        if (!rc && sodium_memcmp(&theirs, &right, sizeof right))
            rc = -EACCES;
        if (!rc)
            return pair_up(j, node, fd, pid);
        close(fd);
        /* A peer with too many unauthenticated connections closes the oldest one, which may have been this one: try again. */
        if ((rc != -ECONNRESET && rc != -EPIPE) || base_now_ns() >= j->deadline)
            break;
    }
    return base_fail(rc, "side connection to node %u (pid %u on %s): %s", node, j->cards[node].pid, j->cards[node].host, base_strerror(rc));
}

/* A connection that was accepted and has not authenticated yet. */
struct caller {
    int fd, pid;
    size_t got; /* bytes of `token` received */
    struct wire_token token;
};

struct callers {
    struct caller *list; /* oldest first */
    int *fds;            /* descriptors to wait for: the callers', then the listeners' */
    uint32_t count, most;
};

static void forget_caller(struct callers *cs, uint32_t i)
{
    memmove(&cs->list[i], &cs->list[i + 1], (--cs->count - i) * sizeof *cs->list);
}

static void refuse_caller(struct callers *cs, uint32_t i, const char *why)
{
    base_log(BASE_LOG_INFO, "refused a side connection: %s", why);
    close(cs->list[i].fd);
    forget_caller(cs, i);
}

static int take_caller(struct callers *cs, int listener)
{
    struct caller c = {.fd = cluster_accept(listener)};
    if ((c.fd == -EMFILE || c.fd == -ENFILE) && cs->count) {
        refuse_caller(cs, 0, "it has not authenticated, and no file descriptor was left for the next one");
        return 0; /* the new connection stays in the listener's backlog */
    }
    if (c.fd < 0)
        return c.fd == -EINTR || c.fd == -EAGAIN || c.fd == -ECONNABORTED
                   ? 0
                   : base_fail(c.fd, "accepting the connection of another node: %s", base_strerror(c.fd));
    if (!join_user_allowed(c.fd, &c.pid)) {
        close(c.fd);
        return 0;
    }
    if (cs->count == cs->most)
        refuse_caller(cs, 0, "it has not authenticated, and there are too many of this kind");
    cs->list[cs->count++] = c;
    return 0;
}

/* Read available bytes of the token. Returns 1 when it is complete, 0 when it is not, or a negative errno. */
static int hear_caller(struct caller *c)
{
    ssize_t n = recv(c->fd, (uint8_t *)&c->token + c->got, sizeof c->token - c->got, MSG_DONTWAIT);
    if (n == 0)
        return -ECONNRESET;
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
    c->got += (size_t)n;
    return c->got == sizeof c->token;
}

/* Whether the token is valid, of a higher node, and that node has not connected yet. */
static bool is_awaited(const struct join *j, const struct wire_token *t)
{
    struct wire_token right;
    if (t->from <= j->w->rank || t->from >= j->w->size || j->w->links[t->from].transport)
        return false;
    join_token(&right, j, t->from, j->w->rank);
    return sodium_memcmp(t, &right, sizeof right) == 0;
}

/* Wait until a listener or a caller is readable; *ready is its descriptor. */
static int wait_for_callers(struct join *j, struct callers *cs, int *ready)
{
    uint32_t n = 0;
    for (; n < cs->count; n++)
        cs->fds[n] = cs->list[n].fd;
    cs->fds[n++] = j->here.fd;
    cs->fds[n++] = j->away.fd;
    for (*ready = -1; *ready < 0;) {
        int rc = base_now_ns() < j->deadline ? join_hub_wait(j, cs->fds, n, j->deadline, ready) : -ETIMEDOUT;
        if (rc)
            return rc;
    }
    return 0;
}

/* Handle one event of the incoming side connections. All are polled together, so a silent one does not delay the others. *node is set if
 * that node has now connected. */
static int pairs_answer(struct join *j, struct callers *cs, uint32_t *node)
{
    int ready, rc = wait_for_callers(j, cs, &ready);
    if (rc)
        return rc;
    if (ready == j->here.fd || ready == j->away.fd)
        return take_caller(cs, ready);
    uint32_t i = 0;
    while (cs->list[i].fd != ready)
        i++;
    struct caller c;
    rc = hear_caller(&cs->list[i]);
    if (rc == 0)
        return 0;
    c = cs->list[i];
    if (rc < 0 || !is_awaited(j, &c.token)) {
        refuse_caller(cs, i, "it does not belong to this cluster");
        return 0;
    }
    forget_caller(cs, i);
    struct wire_token mine;
    join_token(&mine, j, j->w->rank, c.token.from);
    rc = join_write(c.fd, &mine, sizeof mine, j->deadline);
    if (rc) {
        close(c.fd);
        return rc;
    }
    *node = c.token.from;
    return pair_up(j, *node, c.fd, c.pid);
}

/* Make an error that names the first node that has not connected. */
static int say_who_is_missing(struct join *j, int rc)
{
    uint32_t i = j->w->rank + 1;
    while (i < j->w->size && fab_alive(j->w, i))
        i++;
    if (i == j->w->size)
        return rc;
    if (rc == -ETIMEDOUT)
        return base_fail(rc, "node %u (pid %u on %s) joined but did not connect within %.1f s; if slow, raise WEFT_JOIN_TIMEOUT", i,
                         j->cards[i].pid, j->cards[i].host, (double)j->settings->join_timeout_ns / 1e9);
    return base_fail(rc, "node %u (pid %u on %s) joined but did not connect: it may have ended", i, j->cards[i].pid, j->cards[i].host);
}

static int answer_all(struct join *j)
{
    struct callers cs = {.most = j->w->size + JOIN_STRANGERS};
    cs.list = calloc(cs.most, sizeof *cs.list);
    cs.fds = calloc(cs.most + 2, sizeof *cs.fds);
    int rc = cs.list && cs.fds ? 0 : base_fail(-ENOMEM, "no memory for the connections of %u nodes", j->w->size);
    for (uint32_t left = j->w->size - 1 - j->w->rank; left > 0 && !rc;) {
        uint32_t node = j->w->size;
        rc = pairs_answer(j, &cs, &node);
        if (!j->told && (rc == -ETIMEDOUT || rc == -ECONNRESET || rc == -EPIPE))
            rc = say_who_is_missing(j, rc);
        left -= node < j->w->size;
    }
    for (uint32_t i = 0; i < cs.count; i++)
        close(cs.list[i].fd);
    free(cs.list);
    free(cs.fds);
    return rc;
}

/* Number of processors that the nodes of this host may use together. Each node may be bound to a subset. */
static uint32_t processors_here(const struct join *j)
{
    uint64_t all[BASE_CPU_WORDS] = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->w->size; i++)
        for (uint32_t k = 0; k < BASE_CPU_WORDS; k++)
            if (pairs_is_here(j, i))
                all[k] |= j->cards[i].cpus[k];
    for (uint32_t k = 0; k < BASE_CPU_WORDS; k++)
        n += (uint32_t)__builtin_popcountll(all[k]);
    return n;
}

int join_pairs(struct join *j)
{
    struct weft_node *w = j->w;
    for (uint32_t i = 0; i < w->size; i++) {
        if (i == w->rank)
            continue;
        const struct wire_card *c = &j->cards[i];
        if (!pairs_is_here(j, i) && !c->away[0])
            return base_fail(-EHOSTUNREACH,
                             "node %u (on %s) is on another host or in another container, but node 0 listens at "
                             "a Unix socket, which only its own host can reach: set WEFT_COORD to HOST:PORT",
                             i, c->host);
        base_error_clear();
        if (!fab_choose(w, c->host_id) && w->options.transport[0] && strcmp(w->options.transport, "shm") == 0)
            return base_fail(-EHOSTUNREACH,
                             "node %u (on %s) is on another host or in another container, which shm "
                             "(WEFT_TRANSPORT) does not reach",
                             i, c->host);
        if (!fab_choose(w, c->host_id))
            return base_context(-EHOSTUNREACH, "node %u (on %s): no transport of this host reaches it", i, c->host);
        w->size_here += pairs_is_here(j, i);
        if (pairs_is_here(j, i))
            continue;
        /* Both ends use the longer of their two settings, so that heartbeats of either are frequent enough for the other. */
        int64_t liveness = c->liveness_ns > w->options.liveness_ns ? c->liveness_ns : w->options.liveness_ns;
        w->links[i].liveness_ns = liveness;
        w->pulse_ns = w->pulse_ns && w->pulse_ns < liveness / 4 ? w->pulse_ns : liveness / 4;
    }
    /* Before the first pair connects: a peer that has connected to all its nodes expects heartbeats, even while this node still connects.
     */
    int begun = w->pulse_ns ? fab_pulse_start(w) : 0;
    if (begun)
        return begun;
    double limit = (double)j->settings->join_timeout_ns / 1e9;
    for (uint32_t i = 0; i < w->rank; i++) {
        int rc = pairs_call(j, i);
        if (rc == -ETIMEDOUT)
            return base_context(rc, "node %u did not connect within %.1f s (if slow, raise WEFT_JOIN_TIMEOUT)", i, limit);
        if (rc)
            return rc;
    }
    int rc = answer_all(j);
    if (rc)
        return rc;
    w->oversubscribed = w->size_here > processors_here(j);
    return 0;
}
