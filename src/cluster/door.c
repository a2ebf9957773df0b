/* SPDX-License-Identifier: MIT
 *
 * The thread of a member that lets nodes join the running cluster. The thread listens for newcomers (nodes that want to join), checks that
 * they know the secret, and leads one at a time through the steps of grow.c. The member that leads a newcomer through these steps is the
 * newcomer's door. The thread also connects this member to newcomers that join through other doors (newcomer.c).
 *
 * Nodes of one host may be configured with the same address. One of them listens, and when this node is gone another takes over.
 */
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cluster/join.h"

#define VISITORS     64u
#define CALLERS      32u
#define VISITOR_WAIT (5 * WEFT_SECOND) /* time to authenticate */
#define LISTEN_AGAIN (200 * WEFT_MS)   /* pause before another try to listen at an address that another node of this host uses */
#define TRY_AGAIN    (20 * WEFT_MS)    /* pause after a member did not agree; a random time of at most this length is added */
#define FILES_WAIT   (10 * WEFT_MS)    /* pause if no file descriptor is left for a waiting connection */
#define ANSWER_WAIT  (2 * WEFT_SECOND) /* time for a newcomer to read the answer */
#define ROUND        (100 * WEFT_MS)

enum visitor_stage { VISITOR_HELLO, VISITOR_PROOF, VISITOR_WAITS, VISITOR_JOINS };

struct visitor {
    int fd, pid;
    enum visitor_stage stage;
    int64_t until; /* time at which the connection is closed or refused */
    size_t got;
    struct wire_hello hello;
    struct wire_challenge challenge;
    struct wire_proof proof;
};

enum door_step { DOOR_IDLE, DOOR_ASKS_FIRST, DOOR_ASKS_ALL, DOOR_ENTERING };

struct door {
    struct grow *g;
    struct join_listener at; /* address at which newcomers connect */
    int64_t listen_at;       /* time of the next try to listen */
    struct visitor visitors[VISITORS];
    uint32_t count;
    struct join_callers callers;
    int64_t warned; /* time of the last report of a wrong secret */
    struct pollfd fds[VISITORS + CALLERS + 5];
    /* The newcomer that joins through this node. This node is called the newcomer's door. */
    enum door_step step;
    struct visitor newcomer; /* fd -1: there is no newcomer */
    uint64_t attempt;
    uint32_t number;
    struct grow_ask ask;
    int64_t next_at, until; /* next_at: time of the next try; until: time to give up */
    bool connected, failed; /* the newcomer has connected to all members; the newcomer cannot join */
    struct wire_news news;
    size_t news_got;
};

/* --- the newcomer's door --- */

static void door_refuse(struct door *d, struct visitor *v, int error, const char *text)
{
    struct wire_answer a = {.magic = WIRE_MAGIC, .kind = WIRE_REFUSED, .error = -base_status_out(-error)};
    snprintf(a.text, sizeof a.text, "%s", text);
    join_answer_mac(a.mac, &d->g->j, &v->hello, &a, NULL);
    (void)join_write(v->fd, &a, sizeof a, base_deadline(ANSWER_WAIT));
    close(v->fd);
    v->fd = -1;
}

/* Asks a member whether the newcomer may join. */
static void door_ask(struct door *d, uint32_t node)
{
    struct grow *g = d->g;
    struct grow_message m = {.magic = GROW_MAGIC, .kind = GROW_ASK, .attempt = d->attempt, .number = d->number};
    pthread_mutex_lock(&g->lock);
    g->peers[node] = GROW_ASKED;
    pthread_mutex_unlock(&g->lock);
    if (grow_try(g, node, &m, &d->ask) && fab_alive(g->w, node)) {
        pthread_mutex_lock(&g->lock);
        g->refused = EBUSY; /* the queue is full: try again later */
        pthread_mutex_unlock(&g->lock);
    }
}

/* End the attempt to let the newcomer join, and tell all members that were asked. */
static void door_over(struct door *d)
{
    struct grow *g = d->g;
    struct grow_message m = {.magic = GROW_MAGIC, .kind = GROW_END, .attempt = d->attempt, .number = d->number};
    uint32_t size = g->w->size;
    for (uint32_t i = 0; i < size; i++) {
        pthread_mutex_lock(&g->lock);
        bool asked = g->peers[i] != GROW_NOT_ASKED;
        g->peers[i] = GROW_NOT_ASKED;
        pthread_mutex_unlock(&g->lock);
        if (asked && i != g->w->rank && fab_alive(g->w, i))
            grow_send(g, i, &m);
    }
    grow_end(g, d->attempt, g->w->rank);
    pthread_mutex_lock(&g->lock);
    g->attempt = 0;
    pthread_mutex_unlock(&g->lock);
    d->step = DOOR_IDLE;
}

static void door_leave(struct door *d)
{
    if (d->newcomer.fd >= 0)
        close(d->newcomer.fd);
    d->newcomer.fd = -1;
}

static void door_later(struct door *d, int64_t now)
{
    uint8_t more = 0;
    (void)base_random(&more, 1); /* a random pause, because two doors with equal pauses would collide again and again */
    d->next_at = now + TRY_AGAIN + more * (TRY_AGAIN / 256);
}

/* Chooses a rank for the newcomer, and asks the first member whether it agrees that the newcomer joins. */
static void door_begin(struct door *d, int64_t now)
{
    struct grow *g = d->g;
    struct weft_node *w = g->w;
    int rc = 0;
    pthread_mutex_lock(&g->lock);
    bool free = !g->joining.connecting && (!g->joining.active || now > g->joining.until);
    if (free)
        rc = grow_next_number(g->highest, weft_alive_count(w), &d->number);
    if (free && !rc && !base_random(&d->attempt, sizeof d->attempt) && !base_random(d->ask.ticket, sizeof d->ask.ticket)) {
        d->attempt |= 1;
        d->ask.card = d->newcomer.proof.card;
        d->ask.card.rank = d->number;
        g->highest = d->number;
        g->joining = (struct grow_joining){.active = true,
                                           .door = w->rank,
                                           .number = d->number,
                                           .attempt = d->attempt,
                                           .until = base_deadline(g->patience_ns),
                                           .ask = d->ask};
        g->attempt = d->attempt;
        g->refused = 0;
        g->peers[w->rank] = GROW_AGREED;
        d->step = DOOR_ASKS_FIRST;
    }
    pthread_mutex_unlock(&g->lock);
    d->connected = d->failed = false;
    d->news_got = 0;
    if (rc) {
        door_refuse(d, &d->newcomer, -rc, base_error());
        return;
    }
    if (d->step == DOOR_IDLE) {
        door_later(d, now);
        return;
    }
    /* Ask the member with the lowest rank first. If two doors start at the same time, this member agrees to only one door; the other door
     * tries again later. */
    for (uint32_t i = 0; i < w->rank; i++)
        if (fab_alive(w, i)) {
            door_ask(d, i);
            return;
        }
}

/* Number of living members that have not reached the step `want`. *refused: the answer of a member that does not agree. */
static uint32_t door_missing(struct door *d, enum grow_peer want, int *refused)
{
    struct grow *g = d->g;
    uint32_t n = 0, size = g->w->size;
    pthread_mutex_lock(&g->lock);
    *refused = g->refused;
    for (uint32_t i = 0; i < size; i++)
        n += g->peers[i] != GROW_NOT_ASKED && g->peers[i] < want && fab_alive(g->w, i);
    pthread_mutex_unlock(&g->lock);
    return n;
}

/* After all members have agreed: send the newcomer its rank and the members' cards. */
static int door_answer(struct door *d)
{
    struct grow *g = d->g;
    struct weft_node *w = g->w;
    struct wire_card *cards = calloc(WEFT_MAX_NODES, sizeof *cards);
    struct wire_answer a = {.magic = WIRE_MAGIC, .kind = WIRE_MEMBERS, .number = d->number, .founders = w->founders, .from = w->rank};
    uint32_t size = w->size;
    if (!cards)
        return -ENOMEM;
    pthread_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < size && a.count < WEFT_MAX_NODES; i++)
        if (g->cards[i] && g->peers[i] == GROW_AGREED && fab_alive(w, i))
            cards[a.count++] = *g->cards[i];
    pthread_mutex_unlock(&g->lock);
    memcpy(a.session, d->ask.ticket, sizeof a.session);
    join_answer_mac(a.mac, &g->j, &d->newcomer.hello, &a, cards);
    int rc = join_write(d->newcomer.fd, &a, sizeof a, base_deadline(ANSWER_WAIT));
    if (!rc)
        rc = join_write(d->newcomer.fd, cards, a.count * sizeof *cards, base_deadline(ANSWER_WAIT));
    free(cards);
    return rc;
}

/* Whether a member has died before the newcomer connected to it. If so, tells the newcomer, which tries again with another rank. */
static bool door_lost(struct door *d)
{
    struct grow *g = d->g;
    uint32_t size = g->w->size, lost = size;
    pthread_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < size; i++)
        if (g->peers[i] == GROW_AGREED && !fab_alive(g->w, i))
            lost = i;
    pthread_mutex_unlock(&g->lock);
    if (lost == size)
        return false;
    memcpy(g->j.session, d->ask.ticket, sizeof g->j.session);
    join_news_send(&g->j, d->newcomer.fd, lost, ECONNRESET, "it is gone");
    return true;
}

/* Reads what the newcomer reports. */
static void door_hear(struct door *d)
{
    ssize_t n = recv(d->newcomer.fd, (uint8_t *)&d->news + d->news_got, sizeof d->news - d->news_got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    d->news_got += n > 0 ? (size_t)n : 0;
    if (n <= 0)
        d->failed = true;
    if (d->news_got < sizeof d->news)
        return;
    d->news_got = 0;
    memcpy(d->g->j.session, d->ask.ticket, sizeof d->g->j.session);
    if (join_news_ok(&d->g->j, &d->news) && d->news.rank == d->number && d->news.error == 0)
        d->connected = true;
    else
        d->failed = true;
}

static void door_step(struct door *d, int64_t now)
{
    struct grow *g = d->g;
    struct weft_node *w = g->w;
    int refused = 0;
    if (d->newcomer.fd < 0)
        return;
    if (now > d->until || d->failed) {
        if (d->step != DOOR_IDLE)
            door_over(d);
        if (d->failed || now <= d->until)
            door_leave(d);
        else
            door_refuse(d, &d->newcomer, ETIMEDOUT,
                        "the nodes of the cluster did not agree in time to let this node join: another node is joining, or a node is "
                        "stopped; try again");
        return;
    }
    if (d->step == DOOR_IDLE && now >= d->next_at)
        door_begin(d, now);
    if (d->step == DOOR_IDLE || d->newcomer.fd < 0)
        return;
    uint32_t missing = door_missing(d, d->step == DOOR_ENTERING ? GROW_HAS_JOINED : GROW_AGREED, &refused);
    if (refused && d->step != DOOR_ENTERING) {
        door_over(d);
        door_later(d, now);
        return;
    }
    if (d->step == DOOR_ENTERING && door_lost(d)) {
        d->failed = true;
        return;
    }
    if (missing)
        return;
    if (d->step == DOOR_ASKS_FIRST) {
        d->step = DOOR_ASKS_ALL;
        uint32_t size = w->size;
        for (uint32_t i = 0; i < size; i++)
            if (i != w->rank && fab_alive(w, i) && g->peers[i] == GROW_NOT_ASKED)
                door_ask(d, i);
        door_step(d, now); /* needed if this node is the only member, because then no answer will arrive */
        return;
    }
    if (d->step == DOOR_ASKS_ALL) {
        d->step = DOOR_ENTERING;
        d->failed = door_answer(d) != 0;
        return;
    }
    if (!d->connected)
        return;
    memcpy(g->j.session, d->ask.ticket, sizeof g->j.session);
    join_news_send(&g->j, d->newcomer.fd, w->rank, 0, "");
    door_over(d);
    door_leave(d);
}

/* --- visitors: connections at the address for newcomers --- */

static void visitor_drop(struct door *d, uint32_t i)
{
    if (d->visitors[i].fd >= 0)
        close(d->visitors[i].fd);
    memmove(&d->visitors[i], &d->visitors[i + 1], (--d->count - i) * sizeof d->visitors[0]);
}

static void visitor_make_room(struct door *d)
{
    for (uint32_t i = 0; i < d->count; i++)
        if (d->visitors[i].stage < VISITOR_WAITS) {
            visitor_drop(d, i);
            return;
        }
}

static void visitor_take(struct door *d)
{
    int pid, fd = cluster_accept(d->at.fd);
    if (fd == -EMFILE || fd == -ENFILE) {
        visitor_make_room(d); /* the new connection stays in the listener's backlog */
        base_sleep_ns(FILES_WAIT);
    }
    if (fd < 0)
        return;
    if (!join_user_allowed(fd, &pid)) {
        close(fd);
        return;
    }
    if (d->count == VISITORS)
        visitor_make_room(d);
    if (d->count == VISITORS) {
        close(fd);
        return;
    }
    d->visitors[d->count++] = (struct visitor){.fd = fd, .pid = pid, .until = base_deadline(VISITOR_WAIT)};
}

/* Checks a complete proof. Returns false if the caller must close the connection. */
static bool visitor_check_proof(struct door *d, struct visitor *v)
{
    uint8_t right[WIRE_MAC];
    join_proof_mac(right, &d->g->j, &v->hello, &v->challenge, &v->proof.card);
    if (sodium_memcmp(right, v->proof.mac, WIRE_MAC)) {
        int64_t now = base_now_ns();
        if (now - d->warned > WEFT_SECOND) { /* report this at most once a second: anyone who reaches the address could fill the log */
            base_log(BASE_LOG_WARN, "refused a node that wanted to join, because it has another cluster secret than this node: set the "
                                    "same secret on all nodes (WEFT_SECRET_FILE)");
            d->warned = now;
        }
        return false; /* an unauthenticated connection gets no answer */
    }
    if (v->hello.size != 0 || v->hello.rank != WIRE_NEWCOMER) {
        door_refuse(d, v, EINVAL, "this cluster has started already: join it with WEFT_JOIN instead of WEFT_COORD and WEFT_RANK");
        return false;
    }
    if (!join_card_ok(&v->proof.card, WIRE_NEWCOMER) || !v->proof.card.side[0]) {
        door_refuse(d, v, EINVAL, "the joining node sent invalid names and addresses; run the same version of weft on all hosts");
        return false;
    }
    if (fab_may_join(d->g->w, v->proof.card.host_id)) { /* check this before a rank is used up */
        door_refuse(d, v, EINVAL, base_error());
        return false;
    }
    v->stage = VISITOR_WAITS;
    v->until = base_deadline(d->g->patience_ns);
    return true;
}

/* Reads available bytes. Returns false if the connection must be closed. */
static bool visitor_hear(struct door *d, struct visitor *v)
{
    void *into = v->stage == VISITOR_HELLO ? (void *)&v->hello : (void *)&v->proof;
    size_t want = v->stage == VISITOR_HELLO ? sizeof v->hello : sizeof v->proof;
    if (v->stage == VISITOR_WAITS) {
        char byte;
        ssize_t n = recv(v->fd, &byte, 1, MSG_DONTWAIT);
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    }
    ssize_t n = recv(v->fd, (uint8_t *)into + v->got, want - v->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0)
        return false;
    v->got += (size_t)n;
    if (v->got < want)
        return true;
    v->got = 0;
    if (v->stage == VISITOR_PROOF)
        return visitor_check_proof(d, v);
    v->challenge.magic = WIRE_MAGIC;
    if (v->hello.magic != WIRE_MAGIC || base_random(v->challenge.nonce, sizeof v->challenge.nonce))
        return false;
    v->stage = VISITOR_PROOF;
    return join_write(v->fd, &v->challenge, sizeof v->challenge, base_deadline(JOIN_STRANGER_WAIT)) == 0;
}

/* Lets the next waiting newcomer join, if no other newcomer is joining through this node. */
static void visitor_next(struct door *d, int64_t now)
{
    for (uint32_t i = 0; i < d->count && d->newcomer.fd < 0; i++) {
        if (d->visitors[i].stage != VISITOR_WAITS)
            continue;
        d->newcomer = d->visitors[i];
        d->newcomer.stage = VISITOR_JOINS;
        d->until = d->newcomer.until;
        d->next_at = now;
        d->step = DOOR_IDLE;
        d->failed = d->connected = false;
        d->visitors[i].fd = -1;
        visitor_drop(d, i);
    }
}

/* --- the thread --- */

/* The time of the next try to listen. Each try at a socket file makes a connection to the node that listens there. To keep these few, the
 * pause is random, and grows with the number of nodes on this host. */
static int64_t door_listen_later(struct grow *g, int64_t now)
{
    struct weft_node *w = g->w;
    uint32_t here = 0, size = w->size;
    uint8_t part = 0;
    if (strncmp(g->address, "unix:", 5) != 0 || g->address[5] == '@')
        return now + LISTEN_AGAIN;
    pthread_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < size; i++)
        here += g->cards[i] && fab_alive(w, i) && memcmp(g->cards[i]->host_id, w->host_id, sizeof w->host_id) == 0;
    pthread_mutex_unlock(&g->lock);
    (void)base_random(&part, 1);
    int64_t pause = here * LISTEN_AGAIN;
    return now + pause / 2 + part * (pause / 256);
}

static void door_listen(struct door *d, int64_t now)
{
    struct grow *g = d->g;
    if (!g->address[0] || d->at.fd >= 0 || now < d->listen_at)
        return;
    d->at.fd = cluster_listen(g->address, d->at.bound, sizeof d->at.bound);
    d->listen_at = door_listen_later(g, base_now_ns()); /* cluster_listen() may have waited for another process */
    if (d->at.fd >= 0)
        base_log(BASE_LOG_INFO, "nodes can join at %s", d->at.bound);
}

static void door_take_caller(struct door *d, int listener)
{
    if (join_caller_take(&d->callers, listener))
        base_sleep_ns(FILES_WAIT);
}

static void door_expire(struct door *d, int64_t now)
{
    for (uint32_t i = d->count; i-- > 0;)
        if (now > d->visitors[i].until) {
            if (d->visitors[i].stage == VISITOR_WAITS)
                door_refuse(d, &d->visitors[i], ETIMEDOUT, "other nodes were joining until the deadline: try again");
            visitor_drop(d, i);
        }
    for (uint32_t i = d->callers.count; i-- > 0;)
        if (now - d->callers.list[i].came > VISITOR_WAIT)
            join_caller_refuse(&d->callers, i, "it did not authenticate in time");
}

static void door_round(struct door *d)
{
    struct grow *g = d->g;
    int64_t now = base_now_ns();
    uint32_t n = 0, visitors = d->count, callers = d->callers.count;
    int listener = d->at.fd;
    d->fds[n++] = (struct pollfd){.fd = g->wake[0], .events = POLLIN};
    d->fds[n++] = (struct pollfd){.fd = g->j.here.fd, .events = POLLIN};
    d->fds[n++] = (struct pollfd){.fd = g->j.away.fd, .events = POLLIN};
    d->fds[n++] = (struct pollfd){.fd = listener, .events = POLLIN};
    for (uint32_t i = 0; i < visitors; i++)
        d->fds[n++] = (struct pollfd){.fd = d->visitors[i].fd, .events = POLLIN};
    for (uint32_t i = 0; i < callers; i++)
        d->fds[n++] = (struct pollfd){.fd = d->callers.list[i].fd, .events = POLLIN};
    struct pollfd *newcomer = &d->fds[n++];
    *newcomer = (struct pollfd){.fd = d->step == DOOR_ENTERING ? d->newcomer.fd : -1, .events = POLLIN};
    bool busy = grow_send_again(g) || d->newcomer.fd >= 0 || d->count || d->callers.count, waits = g->address[0] && listener < 0;
    int timeout_ms = d->newcomer.fd >= 0 && d->step == DOOR_IDLE ? 5 : busy || waits ? (int)(ROUND / WEFT_MS) : -1;
    if (poll(d->fds, n, timeout_ms) > 0) {
        char bytes[64];
        if (d->fds[0].revents)
            while (read(g->wake[0], bytes, sizeof bytes) == (ssize_t)sizeof bytes)
                ;
        if (newcomer->revents)
            door_hear(d);
        for (uint32_t i = callers; i-- > 0;) {
            if (!d->fds[4 + visitors + i].revents)
                continue;
            int rc = join_caller_hear(&d->callers.list[i]);
            if (rc < 0) {
                join_caller_refuse(&d->callers, i, "it did not authenticate");
            } else if (rc > 0) {
                struct join_caller c = d->callers.list[i];
                join_caller_forget(&d->callers, i);
                grow_connect(d->g, &c);
            }
        }
        for (uint32_t i = visitors; i-- > 0;)
            if (d->fds[4 + i].revents && !visitor_hear(d, &d->visitors[i]))
                visitor_drop(d, i);
        if (d->fds[3].revents)
            visitor_take(d);
        for (int i = 1; i <= 2; i++)
            if (d->fds[i].revents)
                door_take_caller(d, d->fds[i].fd);
    }
    now = base_now_ns();
    door_expire(d, now);
    visitor_next(d, now);
    door_step(d, now);
    door_listen(d, now);
}

static void *door_thread(void *arg)
{
    struct door *d = arg;
    while (!atomic_load_explicit(&d->g->stopping, memory_order_acquire))
        door_round(d);
    if (d->newcomer.fd >= 0) {
        if (d->step != DOOR_IDLE)
            door_over(d);
        door_leave(d);
    }
    while (d->count)
        visitor_drop(d, 0);
    join_callers_close(&d->callers);
    cluster_unlisten(d->at.fd, d->at.bound);
    free(d);
    return NULL;
}

int cluster_door_open(struct weft_node *w)
{
    struct grow *g = grow_of(w);
    if (!g)
        return 0;
    struct door *d = calloc(1, sizeof *d);
    int rc = d ? join_callers_open(&d->callers, CALLERS) : -ENOMEM;
    if (rc) {
        if (d)
            join_callers_close(&d->callers);
        free(d);
        return base_fail(rc, "no memory for the listener at WEFT_GROW" BASE_MEMORY_HINT);
    }
    d->g = g;
    d->newcomer.fd = d->at.fd = -1;
    if (g->address[0]) {
        d->at.fd = cluster_listen(g->address, d->at.bound, sizeof d->at.bound);
        if (d->at.fd < 0 && d->at.fd != -EADDRINUSE)
            rc = base_context(d->at.fd, "WEFT_GROW");
    }
    if (!rc) {
        rc = base_thread(&g->thread, door_thread, d);
        if (rc)
            base_fail(rc, "cannot start the thread that lets nodes join (WEFT_GROW): %s" BASE_THREAD_HINT, base_strerror(rc));
    }
    if (rc) {
        cluster_unlisten(d->at.fd, d->at.bound);
        join_callers_close(&d->callers);
        free(d);
        return rc;
    }
    g->started = true;
    return 0;
}

void cluster_door_close(struct weft_node *w)
{
    struct grow *g = grow_of(w);
    if (!g || !g->started)
        return;
    atomic_store(&g->stopping, true); /* seq_cst, before busy_fd is read: see newcomer_connect() */
    int fd = atomic_load(&g->busy_fd);
    if (fd >= 0)
        shutdown(fd, SHUT_RDWR);
    grow_wake(g);
    pthread_join(g->thread, NULL);
    g->started = false;
}
