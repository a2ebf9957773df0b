/* SPDX-License-Identifier: MIT
 *
 * How the members of a running cluster agree on which node joins, and with which rank.
 *
 * Any member may be the door of a newcomer (door.c). The door proposes the next rank, first to the member with the lowest rank, then to all
 * others (GROW_ASK, with the newcomer's card). A member agrees if no other node is joining and the rank is higher than all ranks that the
 * member knows. The newcomer gets the rank only if all members agree. So two nodes never get the same rank, whichever members die: every
 * surviving member would have to agree to this rank twice. A proposed rank is never proposed again, even if its node did not join.
 *
 * At most one node joins at a time, so all members know the same nodes when the newcomer connects to them. Each member tells the door
 * (GROW_JOINED) when it has connected to the newcomer. The door tells all members when the attempt is over (GROW_END). The death of the
 * door also ends the attempt.
 */
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster/join.h"

enum { GROW_HANDLER = FAB_ROOM_HANDLERS(4) };

struct grow *grow_of(struct weft_node *w)
{
    return w->cluster;
}

bool grow_message_ok(const struct grow_message *m, const void *payload, size_t payload_len)
{
    if (m->magic != GROW_MAGIC || m->number == 0 || m->number >= WEFT_MAX_NUMBERS || m->highest >= WEFT_MAX_NUMBERS)
        return false;
    if (m->kind != GROW_ASK)
        return payload_len == 0 && (m->kind == GROW_ANSWER || m->kind == GROW_JOINED || m->kind == GROW_END) &&
               (m->answer == 0 || m->answer == EBUSY || m->answer == EEXIST);
    struct grow_ask ask;
    if (payload_len != sizeof ask)
        return false;
    memcpy(&ask, payload, sizeof ask);
    return join_card_ok(&ask.card, m->number) && ask.card.side[0];
}

int grow_next_number(uint32_t highest, uint32_t alive, uint32_t *number)
{
    if (highest + 1 >= WEFT_MAX_NUMBERS)
        return base_fail(-ENOSPC, "all node numbers up to %u have been used, and numbers are not reused: start the cluster anew",
                         WEFT_MAX_NUMBERS - 1);
    if (alive >= WEFT_MAX_NODES)
        return base_fail(-ENOSPC, "%u nodes are alive, which is the maximum of a cluster: end a node first", alive);
    *number = highest + 1;
    return 0;
}

void grow_wake(struct grow *g)
{
    (void)!write(g->wake[1], "w", 1);
}

int grow_try(struct grow *g, uint32_t to, const struct grow_message *m, const struct grow_ask *ask)
{
    bool before = fab_nowait(true); /* do not wait for a stopped member */
    int rc = fab_send(g->w, to, GROW_HANDLER, m, sizeof *m, ask, ask ? sizeof *ask : 0, NULL);
    fab_nowait(before);
    return rc;
}

void grow_send(struct grow *g, uint32_t to, const struct grow_message *m)
{
    if (!grow_try(g, to, m, NULL) || !fab_alive(g->w, to))
        return;
    pthread_mutex_lock(&g->lock);
    if (g->unsent_count < GROW_UNSENT)
        g->unsent[g->unsent_count++] = (struct grow_unsent){.to = to, .until = base_deadline(g->patience_ns), .message = *m};
    pthread_mutex_unlock(&g->lock);
    grow_wake(g);
}

bool grow_send_again(struct grow *g)
{
    struct grow_unsent list[GROW_UNSENT];
    pthread_mutex_lock(&g->lock);
    uint32_t n = g->unsent_count, left;
    memcpy(list, g->unsent, n * sizeof *list);
    g->unsent_count = 0;
    pthread_mutex_unlock(&g->lock);
    /* Release the lock before sending: sending may run handlers on this thread. */
    for (uint32_t i = 0; i < n; i++) {
        bool over = !fab_alive(g->w, list[i].to) || base_now_ns() > list[i].until;
        if (over || !grow_try(g, list[i].to, &list[i].message, NULL))
            continue;
        pthread_mutex_lock(&g->lock);
        if (g->unsent_count < GROW_UNSENT)
            g->unsent[g->unsent_count++] = list[i];
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_lock(&g->lock);
    left = g->unsent_count;
    pthread_mutex_unlock(&g->lock);
    return left > 0;
}

void grow_end(struct grow *g, uint64_t attempt, uint32_t door)
{
    pthread_mutex_lock(&g->lock);
    if (g->joining.active && g->joining.attempt == attempt && g->joining.door == door)
        g->joining.active = false;
    pthread_mutex_unlock(&g->lock);
}

/* Makes the answer to GROW_ASK: whether this member agrees that the new node joins. The caller holds the lock. */
static void grow_asked(struct grow *g, uint32_t from, const struct grow_message *m, const void *payload, struct grow_message *answer)
{
    struct grow_joining *now = &g->joining;
    if (now->connecting || (now->active && now->door != from && fab_alive(g->w, now->door) && base_now_ns() < now->until))
        answer->answer = EBUSY;
    else if (m->number <= g->highest)
        answer->answer = EEXIST;
    else {
        *now = (struct grow_joining){
            .active = true, .door = from, .number = m->number, .attempt = m->attempt, .until = base_deadline(g->patience_ns)};
        memcpy(&now->ask, payload, sizeof now->ask);
        g->highest = m->number;
    }
    answer->highest = g->highest;
}

/* Handles GROW_ANSWER and GROW_JOINED on the node that is the newcomer's door. The caller holds the lock. */
static void grow_answered(struct grow *g, uint32_t from, const struct grow_message *m)
{
    if (m->attempt != g->attempt || !g->attempt)
        return;
    if (m->highest > g->highest)
        g->highest = m->highest;
    if (m->answer)
        g->refused = m->answer;
    else if (g->peers[from] != GROW_NOT_ASKED)
        g->peers[from] = m->kind == GROW_JOINED ? GROW_HAS_JOINED : g->peers[from] == GROW_ASKED ? GROW_AGREED : g->peers[from];
}

/* Handles a message from another member. */
static void grow_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                         void *arg)
{
    struct grow *g = arg;
    struct grow_message m;
    (void)w;
    if (header_len != sizeof m)
        return;
    memcpy(&m, header, sizeof m);
    if (!grow_message_ok(&m, payload, payload_len))
        return;
    struct grow_message answer = {.magic = GROW_MAGIC, .kind = GROW_ANSWER, .attempt = m.attempt, .number = m.number};
    pthread_mutex_lock(&g->lock);
    if (m.kind == GROW_ASK)
        grow_asked(g, from, &m, payload, &answer);
    else if (m.kind != GROW_END)
        grow_answered(g, from, &m);
    else if (g->joining.active && g->joining.attempt == m.attempt && g->joining.door == from)
        g->joining.active = false;
    pthread_mutex_unlock(&g->lock);
    if (m.kind == GROW_ASK)
        grow_send(g, from, &answer); /* if the answer cannot be sent now, the thread of door.c sends it later */
    grow_wake(g);
}

static void grow_gone(struct weft_node *w, uint32_t node, bool died, void *arg)
{
    struct grow *g = arg;
    (void)w;
    (void)died;
    pthread_mutex_lock(&g->lock);
    free(g->cards[node]);
    g->cards[node] = NULL;
    if (g->joining.active && g->joining.door == node)
        g->joining.active = false;
    pthread_mutex_unlock(&g->lock);
    grow_wake(g);
}

static void grow_close(struct weft_node *w, void *arg)
{
    struct grow *g = arg;
    join_unlisten(&g->j);
    for (uint32_t i = 0; g->cards && i < w->prepared; i++)
        free(g->cards[i]);
    free(g->cards);
    free(g->peers);
    for (int i = 0; i < 2; i++)
        if (g->wake[i] >= 0)
            close(g->wake[i]);
    sodium_memzero(g->j.key, sizeof g->j.key);
    pthread_mutex_destroy(&g->lock);
    free(g);
    w->cluster = NULL;
}

/* Stores the cards of all members, because a node that joins through this node needs the cards. */
static int grow_keep_cards(struct grow *g, const struct join *j)
{
    struct weft_node *w = g->w;
    for (uint32_t i = 0; i < w->size; i++) {
        const struct wire_card *c = &j->cards[i];
        if (i != w->rank && !c->side[0])
            continue;
        g->cards[i] = malloc(sizeof *c);
        if (!g->cards[i])
            return -ENOMEM;
        *g->cards[i] = *c;
    }
    struct join_self self = {.rank = w->rank, .pool_bytes = w->pool_bytes, .liveness_ns = w->options.liveness_ns, .grows = true};
    memcpy(self.host_id, w->host_id, sizeof self.host_id);
    join_card_make(g->cards[w->rank], &g->j, &self);
    return 0;
}

int grow_open(struct weft_node *w, const struct cluster_settings *s, struct join *j)
{
    struct grow *g = calloc(1, sizeof *g);
    if (!g)
        return base_fail(-ENOMEM, "no memory to let other nodes join (WEFT_GROW)" BASE_MEMORY_HINT);
    g->w = w;
    g->j = (struct join){.w = w, .here = j->here, .away = j->away, .place.listener = -1};
    memcpy(g->j.key, j->key, sizeof g->j.key);
    memcpy(g->j.scope, j->scope, sizeof g->j.scope);
    j->here.fd = j->away.fd = -1;
    snprintf(g->address, sizeof g->address, "%s", s->grow);
    g->patience_ns = s->join_timeout_ns;
    g->highest = w->size - 1;
    g->wake[0] = g->wake[1] = -1;
    atomic_init(&g->busy_fd, -1);
    pthread_mutex_init(&g->lock, NULL);
    w->cluster = g;
    g->cards = calloc(w->room, sizeof *g->cards);
    g->peers = calloc(w->room, 1);
    int rc = g->cards && g->peers ? grow_keep_cards(g, j) : -ENOMEM;
    if (rc)
        base_fail(rc, "no memory for the names and addresses of %u nodes that may join (WEFT_GROW)" BASE_MEMORY_HINT, w->room);
    else
        rc = base_pipe(g->wake, O_NONBLOCK);
    if (!rc)
        rc = fab_hook(w, &(struct fab_hook){.gone = grow_gone, .close = grow_close, .arg = g});
    if (rc) {
        grow_close(w, g);
        return rc;
    }
    /* Look for networks only if nodes of other hosts can join, because libfabric takes 0.1 s to look. Nodes that join at a Unix socket are
     * on this host, and need no network. */
    fab_look_early(w, strncmp(g->address, "unix:", 5) != 0);
    return fab_handle(w, GROW_HANDLER, grow_message, g);
}
