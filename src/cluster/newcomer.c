/* SPDX-License-Identifier: MIT
 *
 * Handles the side connection from a joining node to a member of a running cluster. The member checks that the peer is the node that is
 * joining, connects the fabric to it, marks the node alive, and tells the door (join.h). The thread of door.c calls these functions.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cluster/join.h"

/* Stores the card of a node that has connected. With `card` NULL, deletes the card of node `number`. */
static int newcomer_card(struct grow *g, uint32_t number, const struct wire_card *card)
{
    struct wire_card *copy = card ? malloc(sizeof *copy) : NULL;
    if (card && !copy)
        return base_fail(-ENOMEM, "no memory for the names and addresses of the joining node" BASE_MEMORY_HINT);
    if (card)
        *copy = *card;
    pthread_mutex_lock(&g->lock);
    free(g->cards[number]);
    g->cards[number] = copy;
    pthread_mutex_unlock(&g->lock);
    return 0;
}

/* Connects to the joining node, and marks it alive. Takes ownership of the descriptor. */
static int newcomer_connect(struct grow *g, const struct grow_joining *now, int fd, int pid)
{
    struct weft_node *w = g->w;
    struct wire_token mine;
    int64_t deadline = base_deadline(g->patience_ns);
    join_token(&mine, &g->j, w->rank, now->number);
    int rc = join_write(fd, &mine, sizeof mine, deadline);
    if (rc) {
        close(fd);
        return base_fail(rc, "%s", base_strerror(rc));
    }
    fab_prepare(w, now->number);
    struct fab_link *l = &w->links[now->number];
    bool here = memcmp(now->ask.card.host_id, w->host_id, sizeof w->host_id) == 0;
    if (here)
        w->size_here++;
    else
        l->liveness_ns = now->ask.card.liveness_ns > w->options.liveness_ns ? now->ask.card.liveness_ns : w->options.liveness_ns;
    atomic_store(&g->busy_fd, fd);
    if (atomic_load(&g->stopping)) /* cluster_door_close() stores `stopping` and then reads busy_fd, so at least one of the two threads sees
                                      the other's store */
        shutdown(fd, SHUT_RDWR);
    rc = join_pair_up(w, &now->ask.card, fd, pid, deadline);
    atomic_store(&g->busy_fd, -1);
    if (!rc)
        rc = newcomer_card(g, now->number, &now->ask.card);
    if (!rc)
        rc = fab_admit(w, now->number, deadline);
    if (rc) {
        (void)newcomer_card(g, now->number, NULL);
        fab_abandon(w, now->number);
        if (here)
            w->size_here--;
    }
    return rc;
}

void grow_connect(struct grow *g, struct join_caller *c)
{
    struct wire_token right;
    pthread_mutex_lock(&g->lock);
    struct grow_joining now = g->joining;
    const struct fab_link *l = &g->w->links[now.number];
    memcpy(g->j.session, now.ask.ticket, sizeof g->j.session);
    join_token(&right, &g->j, now.number, g->w->rank);
    bool awaited = now.active && l->side_fd < 1 && !l->transport && !l->gone_ns && sodium_memcmp(&right, &c->token, sizeof right) == 0;
    g->joining.connecting = awaited;
    pthread_mutex_unlock(&g->lock);
    if (!awaited) {
        char name[JOIN_CALLER_NAME];
        join_caller_name(c, name);
        base_log(BASE_LOG_INFO, "refused a connection from %s: it is not from a node that is joining now", name);
        close(c->fd);
        return;
    }
    int rc = newcomer_connect(g, &now, c->fd, c->pid);
    if (rc)
        base_log(BASE_LOG_WARN, "node %u (pid %u on %s) could not join: %s", now.number, now.ask.card.pid, now.ask.card.host, base_error());
    struct grow_message m = {.magic = GROW_MAGIC, .kind = GROW_JOINED, .attempt = now.attempt, .number = now.number};
    pthread_mutex_lock(&g->lock);
    g->joining.connecting = false;
    if (!rc && now.door == g->w->rank && g->attempt == now.attempt)
        g->peers[now.door] = GROW_HAS_JOINED;
    pthread_mutex_unlock(&g->lock);
    if (!rc && now.door != g->w->rank)
        grow_send(g, now.door, &m);
}
