/* SPDX-License-Identifier: MIT
 *
 * Joins a running cluster. cluster_enter() asks one of the given members. This member (the door) agrees with all others on the rank of the
 * new node (grow.c), and answers with the rank and the members' cards. Then the node can be opened. join_enter() connects to every member,
 * and waits until the door reports that all members know the node.
 */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster/join.h"

#define TRY_WAIT (500 * WEFT_MS) /* if there are several addresses: time-out for each in the first round; doubled in each further round */
#define TRY_MOST (60 * WEFT_SECOND) /* approximate upper limit of the doubled time-out */

void join_entry_free(struct join *j)
{
    if (!j)
        return;
    join_unlisten(j);
    for (uint32_t i = 0; i < j->hub_count; i++)
        if (j->hubs[i].fd >= 0)
            close(j->hubs[i].fd);
    free(j->hubs);
    free(j->fds);
    free(j->cards);
    sodium_memzero(j->key, sizeof j->key);
    free(j);
}

static bool is_wildcard(const char *address)
{
    return strncmp(address, "0.0.0.0:", 8) == 0 || strncmp(address, "[::]:", 5) == 0;
}

/* Read the door's answer: the members' cards. */
static int enter_cards(struct join *j, struct cluster_settings *s, const struct wire_hello *hello, const struct wire_answer *a,
                       struct wire_card *cards, int fd)
{
    uint8_t right[WIRE_MAC];
    join_answer_mac(right, j, hello, a, cards);
    if (sodium_memcmp(right, a->mac, WIRE_MAC))
        return base_fail(
            -EACCES, "the node that answered has a different cluster secret, or none: set the same secret on all nodes (WEFT_SECRET_FILE)");
    if (a->kind == WIRE_REFUSED) {
        int error = a->error > 0 ? base_status_in(-a->error) : 0;
        error = error == -ENOSPC || error == -EBUSY || error == -ETIMEDOUT ? error : -EINVAL;
        return base_fail(error, "the cluster refuses this node: %.*s", (int)strnlen(a->text, sizeof a->text), a->text);
    }
    if (a->number == 0 || a->number >= WEFT_MAX_NUMBERS || a->founders == 0 || a->founders > a->number || a->founders > WEFT_MAX_NODES)
        return base_fail(-EPROTO, "the node that answered sent an invalid number for this node; run the same version of weft on all hosts");
    j->cards = calloc((size_t)a->number + 1, sizeof *j->cards);
    if (!j->cards)
        return base_fail(-ENOMEM, "cannot join the cluster: no memory for the names and addresses of %u nodes" BASE_MEMORY_HINT, a->number);
    for (uint32_t i = 0; i < a->count; i++) {
        if (cards[i].rank >= a->number || !join_card_ok(&cards[i], cards[i].rank))
            return base_fail(
                -EPROTO, "the node that answered sent invalid names and addresses of a node; run the same version of weft on all hosts");
        j->cards[cards[i].rank] = cards[i];
    }
    if (a->from >= a->number || !j->cards[a->from].side[0])
        return base_fail(-EPROTO,
                         "the node that answered did not send its own names and addresses; run the same version of weft on all hosts");
    /* The member may listen at a wildcard address. Then use the address at which this node has reached the member, also for the other
     * members on the same host. */
    for (uint32_t i = 0; i < a->number; i++) {
        struct wire_card *c = &j->cards[i];
        bool there = memcmp(c->host_id, j->cards[a->from].host_id, sizeof c->host_id) == 0;
        if (c->away[0] && (i == a->from || (there && is_wildcard(c->away))))
            join_correct_host(c->away, fd);
    }
    memcpy(j->session, a->session, sizeof j->session);
    j->hubs = calloc(1, sizeof *j->hubs);
    j->fds = calloc(3 + JOIN_STRANGERS, sizeof *j->fds);
    if (!j->hubs || !j->fds)
        return base_fail(-ENOMEM, "no memory for the connection to node %u" BASE_MEMORY_HINT, a->from);
    j->hubs[0] = (struct join_hub){.fd = fd, .rank = a->from};
    j->hub_count = 1;
    s->rank = a->number;
    s->size = a->number + 1;
    s->founders = a->founders;
    return 0;
}

/* Ask the member at `address`. Sets *spoke if the member has answered: asking other members is then useless, because they would answer the
 * same. */
static int enter_at(struct join *j, struct cluster_settings *s, const char *address, int64_t connect_until, bool *spoke)
{
    struct wire_hello hello = {.magic = WIRE_MAGIC, .rank = WIRE_NEWCOMER};
    struct wire_challenge challenge;
    struct wire_proof proof;
    struct wire_answer answer;
    struct wire_card *cards = NULL;
    struct join_self self = {.rank = WIRE_NEWCOMER, .pool_bytes = s->pool.bytes, .liveness_ns = s->fabric.liveness_ns, .grows = true};
    int64_t until = base_deadline(8 * TRY_WAIT);
    int fd = join_reach("the member of the cluster", address, connect_until, until < j->deadline ? until : j->deadline, &hello, &challenge);
    if (fd < 0)
        return fd;
    base_host_id(self.host_id);
    memset(&proof, 0, sizeof proof);
    int rc = join_listen_away(j, fd);
    if (!rc)
        rc = join_listen_for(j, s->grow);
    if (rc)
        goto out;
    join_card_make(&proof.card, j, &self);
    rc = join_prove(j, fd, &hello, &challenge, &proof, &answer);
    if (rc == -ECONNRESET || rc == -EPIPE) {
        rc = base_fail(
            -EACCES,
            "the node at %s closed the connection: the cluster secret is wrong or missing on one of the two nodes (WEFT_SECRET_FILE), or "
            "that node ended",
            address);
        goto out;
    }
    if (rc) {
        base_fail(rc, "no answer from the node at %s, through which this node joins: %s; check that that node runs, and see its messages",
                  address, base_strerror(rc));
        goto out;
    }
    bool members = answer.magic == WIRE_MAGIC && answer.kind == WIRE_MEMBERS && answer.count >= 1 && answer.count <= WEFT_MAX_NODES;
    if (!members && !(answer.magic == WIRE_MAGIC && answer.kind == WIRE_REFUSED && answer.count == 0)) {
        rc = base_fail(-EPROTO, "the node at %s sent an invalid answer; run the same version of weft on all hosts", address);
        goto out;
    }
    cards = calloc(answer.count + 1, sizeof *cards);
    rc = cards ? join_read(fd, cards, answer.count * sizeof *cards, j->deadline + JOIN_ANSWER_GRACE) : -ENOMEM;
    if (rc)
        base_fail(rc, "the connection to the node at %s failed while that node sent the addresses of all nodes: %s; try again", address,
                  base_strerror(rc));
    else
        rc = enter_cards(j, s, &hello, &answer, cards, fd);
    *spoke = !rc || rc == -ENOSPC || rc == -EINVAL;
out:
    free(cards);
    if (rc)
        close(fd);
    if (rc && j->away.fd >= 0) { /* the next member may be reached from another address of this host */
        cluster_unlisten(j->away.fd, j->away.bound);
        j->away.fd = -1;
    }
    if (rc) {
        free(j->cards);
        free(j->hubs);
        free(j->fds);
        j->cards = NULL;
        j->hubs = NULL;
        j->fds = NULL;
        j->hub_count = 0;
    }
    return rc;
}

int cluster_enter(struct cluster_settings *s)
{
    char address[128];
    bool spoke = false;
    uint32_t denied = 0;
    char why[WIRE_REASON] = "";
    int rc = 0;
    if (sodium_init() < 0)
        return base_fail(-EIO, "cannot join the cluster: the library libsodium cannot be initialised; reinstall it");
    struct join *j = calloc(1, sizeof *j);
    if (!j)
        return base_fail(-ENOMEM, "no memory for the state of joining the cluster" BASE_MEMORY_HINT);
    *j = (struct join){.settings = s, .deadline = base_deadline(s->join_timeout_ns), .here.fd = -1, .away.fd = -1, .place.listener = -1};
    join_key(j->key, s);
    rc = join_listen_here(j);
    for (int64_t wait = TRY_WAIT; !rc; wait = wait < TRY_MOST ? 2 * wait : wait) {
        for (const char *p = s->join; *p && !spoke;) {
            size_t n = strcspn(p, ",");
            int64_t until = base_deadline(wait);
            snprintf(address, sizeof address, "%.*s", (int)n, p);
            p += n + (p[n] == ',');
            rc = enter_at(j, s, address, until < j->deadline ? until : j->deadline, &spoke);
            if (!rc || rc == -EINTR)
                break;
            if (rc == -EACCES && snprintf(why, sizeof why, "%s", base_error()))
                denied++;
        }
        if (rc && rc != -EINTR && !spoke &&
            denied > 1) { /* one closed connection may mean that the member has ended; two mean a wrong secret */
            rc = base_fail(-EACCES, "%s", why);
            break;
        }
        if (!rc || rc == -EINTR || spoke || base_now_ns() >= j->deadline)
            break;
        base_sleep_ns(50 * WEFT_MS);
        rc = 0;
    }
    if (rc) {
        rc = base_context(rc, "cannot join the running cluster at %s (WEFT_JOIN)", s->join);
        join_entry_free(j);
    } else {
        s->entry = j;
    }
    return rc;
}

int join_enter(struct weft_node *w, struct cluster_settings *s)
{
    struct join *j = s->entry;
    j->w = w;
    snprintf(w->address, sizeof w->address, "%s", j->address);
    int rc = join_pairs_late(j);
    int hub = join_hub_end(j, rc);
    rc = rc && hub == 0 ? rc : hub;
    j->hubs = NULL;
    j->fds = NULL;
    j->hub_count = 0;
    return rc ? rc : grow_open(w, s, j);
}
