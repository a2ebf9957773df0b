/* SPDX-License-Identifier: MIT
 *
 * Opens a side connection between every pair of nodes: a Unix socket on one host, TCP between hosts. The transport connects over the side
 * connection, which stays open. The node with the higher rank connects to the node with the lower rank, so that nodes never wait in a
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

#define CALL_WAIT  (500 * WEFT_MS) /* if there is no connection after this time, check whether node 0 has reported a failure */
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

/* "[fe80::1%eth0]" without its brackets. */
static void without_brackets(char *out, size_t len, const char *host)
{
    bool six = host[0] == '[';
    snprintf(out, len, "%.*s", (int)strcspn(host + six, "]"), host + six);
}

void join_adopt_address(struct join *j, const struct wire_card *from, int fd)
{
    char host[WIRE_ADDRESS - 16];
    bool here = memcmp(from->host_id, j->w->host_id, sizeof from->host_id) == 0;
    if (!j->w->address[0] && !here && cluster_socket_host(fd, false, host, sizeof host) == 0)
        without_brackets(j->w->address, sizeof j->w->address, host);
}

int join_listen_away(struct join *j, int fd)
{
    char host[WIRE_ADDRESS - 16], address[WIRE_ADDRESS];
    if (cluster_socket_host(fd, false, host, sizeof host))
        return 0; /* node 0 listens at a Unix socket, so all nodes are on this host */
    size_t n = strcspn(host, "%");
    snprintf(j->scope, sizeof j->scope, "%.*s", (int)strcspn(host + n, "]"), host + n);
    snprintf(address, sizeof address, "%s:0", host);
    without_brackets(j->address, sizeof j->address, host);
    if (j->w && strcmp(j->address, "::") != 0 && strcmp(j->address, "0.0.0.0") != 0)
        snprintf(j->w->address, sizeof j->w->address, "%s", j->address);
    j->away.fd = cluster_listen(address, j->away.bound, sizeof j->away.bound);
    return j->away.fd < 0 ? j->away.fd : 0;
}

int join_listen_for(struct join *j, const char *grow)
{
    char address[WIRE_ADDRESS];
    const char *colon = strrchr(grow, ':');
    if (j->away.fd >= 0 || !colon || strncmp(grow, "unix:", 5) == 0)
        return 0;
    snprintf(address, sizeof address, "%.*s:0", (int)(colon - grow), grow);
    int fd = cluster_listen(address, j->away.bound, sizeof j->away.bound);
    if (fd < 0)
        return base_context(fd, "WEFT_GROW");
    int rc = join_listen_away(j, fd); /* listens at the numeric address of that host */
    close(fd);
    return rc;
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

int join_pair_up(struct weft_node *w, const struct wire_card *card, int fd, int pid, int64_t deadline)
{
    struct fab_link *l = &w->links[card->rank];
    l->side_fd = fd;
    l->pid = (int)card->pid;
    memcpy(l->host, card->host, sizeof l->host);
    /* Use the pid that the kernel reports, not the pid on the card: only the kernel's is valid in this process's pid namespace. */
    l->pid_fd = base_watch_process(pid);
    return fab_connect(w, l, card->host_id, fd, deadline);
}

/* Like join_pair_up(), and marks the node alive at once, because the progress thread does not run yet. */
static int pair_up(struct join *j, uint32_t node, int fd, int pid)
{
    int rc = join_pair_up(j->w, &j->cards[node], fd, pid, j->deadline);
    if (!rc)
        atomic_store_explicit(&j->w->links[node].state, FAB_ALIVE, memory_order_release);
    return rc;
}

/* The address at which to connect to a node. A link-local address gets the interface towards node 0. */
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

/* Wait until `until`, then connect to the node. Returns a socket or a negative errno; ends early if a node fails. */
static int dial(struct join *j, uint32_t node, int64_t until)
{
    char buf[WIRE_ADDRESS + sizeof j->scope];
    int ready, fd;
    /* The peer may have failed: join_hub_wait() then returns node 0's report. */
    do {
        int rc = join_hub_wait(j, NULL, 0, until, &ready);
        if (rc)
            return rc;
        int64_t soon = base_deadline(CALL_WAIT);
        fd = cluster_connect(address_of(j, node, buf, sizeof buf), soon < j->deadline ? soon : j->deadline);
    } while (fd == -ETIMEDOUT && base_now_ns() < j->deadline);
    return fd < 0 ? base_context(fd, "connection to node %u", node) : fd;
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
        /* Try again: a peer with too many unauthenticated connections closes the oldest one, which may have been this connection. */
        if ((rc != -ECONNRESET && rc != -EPIPE) || base_now_ns() >= j->deadline)
            break;
    }
    return base_fail(rc, "the connection to node %u (pid %u on %s) failed: %s", node, j->cards[node].pid, j->cards[node].host,
                     base_strerror(rc));
}

int join_callers_open(struct join_callers *cs, uint32_t most)
{
    *cs = (struct join_callers){.most = most};
    cs->list = calloc(most, sizeof *cs->list);
    cs->fds = calloc(most + 2, sizeof *cs->fds);
    return cs->list && cs->fds ? 0 : base_fail(-ENOMEM, "no memory for the connections of %u nodes" BASE_MEMORY_HINT, most);
}

void join_callers_close(struct join_callers *cs)
{
    for (uint32_t i = 0; i < cs->count; i++)
        close(cs->list[i].fd);
    free(cs->list);
    free(cs->fds);
}

void join_caller_forget(struct join_callers *cs, uint32_t i)
{
    memmove(&cs->list[i], &cs->list[i + 1], (--cs->count - i) * sizeof *cs->list);
}

void join_caller_name(const struct join_caller *c, char out[JOIN_CALLER_NAME])
{
    char host[JOIN_CALLER_NAME - 8];
    if (cluster_socket_host(c->fd, true, host, sizeof host) == 0)
        snprintf(out, JOIN_CALLER_NAME, "host %s", host);
    else if (c->pid > 0)
        snprintf(out, JOIN_CALLER_NAME, "process %d of this host", c->pid);
    else
        snprintf(out, JOIN_CALLER_NAME, "an unknown process"); /* the connection is already closed, or the system does not know its peer */
}

void join_caller_refuse(struct join_callers *cs, uint32_t i, const char *why)
{
    char name[JOIN_CALLER_NAME];
    join_caller_name(&cs->list[i], name);
    base_log(BASE_LOG_INFO, "refused a connection from %s: %s", name, why);
    close(cs->list[i].fd);
    join_caller_forget(cs, i);
}

int join_caller_take(struct join_callers *cs, int listener)
{
    struct join_caller c = {.fd = cluster_accept(listener)};
    if ((c.fd == -EMFILE || c.fd == -ENFILE) && cs->count) {
        join_caller_refuse(cs, 0, "it has not authenticated yet, and the next connection needs its file descriptor");
        return 0; /* the new connection stays in the listener's backlog */
    }
    if (c.fd < 0)
        return c.fd == -EINTR || c.fd == -EAGAIN || c.fd == -ECONNABORTED
                   ? 0
                   : base_fail(c.fd, "cannot accept the connection of another node: %s" BASE_FILES_HINT, base_strerror(c.fd));
    if (!join_user_allowed(c.fd, &c.pid)) {
        close(c.fd);
        return 0;
    }
    if (cs->count == cs->most)
        join_caller_refuse(cs, 0, "it is the oldest of too many connections that have not authenticated yet");
    c.came = base_now_ns();
    cs->list[cs->count++] = c;
    return 0;
}

int join_caller_hear(struct join_caller *c)
{
    ssize_t n = recv(c->fd, (uint8_t *)&c->token + c->got, sizeof c->token - c->got, MSG_DONTWAIT);
    if (n == 0)
        return -ECONNRESET;
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
    c->got += (size_t)n;
    return c->got == sizeof c->token;
}

/* Whether the token is valid and from a node of higher rank that has not connected yet. */
static bool is_awaited(const struct join *j, const struct wire_token *t)
{
    struct wire_token right;
    if (t->from <= j->w->rank || t->from >= j->w->size || j->w->links[t->from].transport)
        return false;
    join_token(&right, j, t->from, j->w->rank);
    return sodium_memcmp(t, &right, sizeof right) == 0;
}

/* Wait until a listener or a caller is readable; *ready is its descriptor. */
static int wait_for_callers(struct join *j, struct join_callers *cs, int *ready)
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

/* Handle one event of the incoming side connections. Sets *node if a node has connected. */
static int pairs_answer(struct join *j, struct join_callers *cs, uint32_t *node)
{
    int ready, rc = wait_for_callers(j, cs, &ready);
    if (rc)
        return rc;
    if (ready == j->here.fd || ready == j->away.fd)
        return join_caller_take(cs, ready);
    uint32_t i = 0;
    while (cs->list[i].fd != ready)
        i++;
    struct join_caller c;
    rc = join_caller_hear(&cs->list[i]);
    if (rc == 0)
        return 0;
    c = cs->list[i];
    if (rc < 0 || !is_awaited(j, &c.token)) {
        join_caller_refuse(cs, i, "it does not belong to this cluster");
        return 0;
    }
    join_caller_forget(cs, i);
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

/* Fail with an error that names the first node that has not connected. */
static int say_who_is_missing(struct join *j, int rc)
{
    uint32_t i = j->w->rank + 1;
    while (i < j->w->size && fab_alive(j->w, i))
        i++;
    if (i == j->w->size)
        return rc;
    bool away = !pairs_is_here(j, i);
    if (rc == -ETIMEDOUT)
        return base_fail(rc,
                         "node %u (pid %u on %s) joined, but did not connect to this node%s%s within %.1f s%s; to wait longer, raise "
                         "WEFT_JOIN_TIMEOUT",
                         i, j->cards[i].pid, j->cards[i].host, away ? " at " : "", away ? j->away.bound : "",
                         (double)j->settings->join_timeout_ns / 1e9,
                         away ? ": check whether a firewall blocks TCP to that address (man weft-networks)" : "");
    return base_fail(rc, "node %u (pid %u on %s) joined, but did not connect to this node: it may have ended; see its messages", i,
                     j->cards[i].pid, j->cards[i].host);
}

static int answer_all(struct join *j)
{
    struct join_callers cs;
    int rc = join_callers_open(&cs, j->w->size + JOIN_STRANGERS);
    for (uint32_t left = j->w->size - 1 - j->w->rank; left > 0 && !rc;) {
        uint32_t node = j->w->size;
        rc = pairs_answer(j, &cs, &node);
        if (!j->told && (rc == -ETIMEDOUT || rc == -ECONNRESET || rc == -EPIPE))
            rc = say_who_is_missing(j, rc);
        left -= node < j->w->size;
    }
    join_callers_close(&cs);
    return rc;
}

/* Number of processors that the nodes of this host may use together. A node may be bound to some of them. */
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

/* Adapt the interval of heartbeats to a peer on another host. Both ends use the longer of their two WEFT_LIVENESS settings. */
static void pairs_pulse(struct weft_node *w, const struct wire_card *c)
{
    int64_t liveness = c->liveness_ns > w->options.liveness_ns ? c->liveness_ns : w->options.liveness_ns;
    w->links[c->rank].liveness_ns = liveness;
    w->pulse_ns = w->pulse_ns && w->pulse_ns < liveness / 4 ? w->pulse_ns : liveness / 4;
}

static int pairs_check(struct join *j, uint32_t i)
{
    struct weft_node *w = j->w;
    const struct wire_card *c = &j->cards[i];
    if (!pairs_is_here(j, i) && !c->away[0])
        return base_fail(-EHOSTUNREACH,
                         "node %u (on %s) is on another host or in another container, but %s listens at a Unix socket, which only its own "
                         "host can reach: set %s to HOST:PORT",
                         i, c->host, j->settings->join[0] ? "that node" : "node 0", j->settings->join[0] ? "WEFT_GROW" : "WEFT_COORD");
    base_error_clear();
    const char *only = w->options.transport;
    if (!fab_choose(w, c->host_id) && strcmp(only, "shm") == 0)
        return base_fail(-EHOSTUNREACH,
                         "node %u (on %s) is on another host or in another container, which shm (WEFT_TRANSPORT) does not reach: set "
                         "another transport, or unset WEFT_TRANSPORT",
                         i, c->host);
    if (!fab_choose(w, c->host_id))
        return only[0] && strcmp(only, "ofi") != 0
                   ? base_context(-EHOSTUNREACH, "this host cannot reach node %u (on %s) by %s (unset WEFT_TRANSPORT to let weft choose)",
                                  i, c->host, only)
                   : base_context(-EHOSTUNREACH, "this host cannot reach node %u (on %s)", i, c->host);
    return 0;
}

/* Starts heartbeats. This is called before the first pair connects, because a peer expects heartbeats while this node still connects to
 * others. */
static int pairs_pulse_start(struct join *j)
{
    struct weft_node *w = j->w;
    int64_t own = w->options.liveness_ns / 4;
    if (cluster_grows(j->settings) && (!w->pulse_ns || own < w->pulse_ns))
        w->pulse_ns = own; /* a node of another host may join later */
    return w->pulse_ns ? fab_pulse_start(w) : 0;
}

static int pairs_call_in_time(struct join *j, uint32_t node)
{
    int rc = pairs_call(j, node);
    if (rc == -ETIMEDOUT)
        return base_context(rc, "this node could not connect to node %u within %.1f s (to wait longer, raise WEFT_JOIN_TIMEOUT)", node,
                            (double)j->settings->join_timeout_ns / 1e9);
    return rc;
}

int join_pairs(struct join *j)
{
    struct weft_node *w = j->w;
    for (uint32_t i = 0; i < w->size; i++) {
        int rc = i == w->rank ? 0 : pairs_check(j, i);
        if (rc)
            return rc;
        if (i != w->rank && pairs_is_here(j, i))
            w->size_here++;
        else if (i != w->rank)
            pairs_pulse(w, &j->cards[i]);
    }
    int rc = pairs_pulse_start(j);
    for (uint32_t i = 0; i < w->rank && !rc; i++)
        rc = pairs_call_in_time(j, i);
    if (!rc)
        rc = answer_all(j);
    if (!rc)
        w->oversubscribed = w->size_here > processors_here(j);
    return rc;
}

int join_pairs_late(struct join *j)
{
    struct weft_node *w = j->w;
    for (uint32_t i = 0; i < w->rank; i++)
        if (j->cards[i].side[0] && pairs_is_here(j, i))
            w->size_here++;
        else if (j->cards[i].side[0])
            pairs_pulse(w, &j->cards[i]);
    int rc = pairs_pulse_start(j);
    for (uint32_t i = 0; i < w->rank && !rc; i++)
        if (j->cards[i].side[0])
            rc = !pairs_is_here(j, i) && !j->cards[i].away[0] ? pairs_check(j, i) : pairs_call_in_time(j, i);
    return rc;
}
