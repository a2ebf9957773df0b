/* SPDX-License-Identifier: MIT
 *
 * While the pairs connect, every node keeps its connection to node 0. A node that fails reports its failure to node 0, and node 0 tells the
 * others, so that no node waits for the failed node.
 *
 * A node also reports when it has connected to all others. weft_open() returns only after node 0 has told every node that all have
 * connected. Otherwise a program's first barrier could time out: with hundreds of nodes on one host, connecting may take longer than the
 * barrier's deadline.
 */
#include "cluster/join.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CAUSE_WAIT WEFT_SECOND       /* maximum wait for node 0's report why a peer has closed its connection */
#define WORD_GRACE (5 * WEFT_SECOND) /* how long after its deadline a node waits for node 0's report, which has more details */

static void message_mac(uint8_t out[WIRE_MAC], const struct join *j, const struct wire_news *m)
{
    struct wire_news plain = *m;
    memset(plain.mac, 0, sizeof plain.mac);
    join_mac(out, j->key, "weft news", j->session, sizeof j->session, &plain, sizeof plain, NULL, 0);
}

void join_news_send(const struct join *j, int fd, uint32_t rank, int error, const char *text)
{
    struct wire_news m = {.magic = WIRE_MAGIC, .rank = rank, .error = error};
    snprintf(m.text, sizeof m.text, "%s", text);
    message_mac(m.mac, j, &m);
    if (fd >= 0)
        (void)join_write(fd, &m, sizeof m, base_deadline(WEFT_SECOND)); /* an error is ignored: it means that the node is gone */
}

bool join_news_ok(const struct join *j, const struct wire_news *m)
{
    uint8_t right[WIRE_MAC];
    message_mac(right, j, m);
    return m->magic == WIRE_MAGIC && sodium_memcmp(right, m->mac, WIRE_MAC) == 0 && memchr(m->text, 0, sizeof m->text);
}

static void send_news(const struct join *j, const struct join_hub *h, uint32_t rank, int error, const char *text)
{
    join_news_send(j, h->fd, rank, error, text);
}

static void hang_up(struct join_hub *h)
{
    if (h->fd >= 0)
        close(h->fd);
    h->fd = -1;
}

int join_hub_add(struct join *j, int fd, uint32_t rank)
{
    if (!j->hubs) {
        j->hubs = calloc(j->w->size, sizeof *j->hubs);
        j->fds = calloc(3 * (size_t)j->w->size + JOIN_STRANGERS, sizeof *j->fds);
    }
    if (!j->hubs || !j->fds) {
        close(fd);
        return base_fail(-ENOMEM, "no memory for the connections to %u nodes" BASE_MEMORY_HINT, j->w->size);
    }
    j->hubs[j->hub_count++] = (struct join_hub){.fd = fd, .rank = rank};
    return 0;
}

/* Record that node `rank` failed. Node 0 also tells all other nodes. */
static int hub_failed(struct join *j, uint32_t rank, const char *text)
{
    for (uint32_t i = 0; j->w->rank == 0 && i < j->hub_count; i++)
        if (j->hubs[i].rank != rank)
            send_news(j, &j->hubs[i], rank, ECONNRESET, text);
    j->told = true;
    return base_fail(-ECONNRESET, "node %u (pid %u on %s) failed while joining: %s", rank, j->cards[rank].pid, j->cards[rank].host, text);
}

/* Read one message, or the end of the connection, from `h`. */
static int hub_hear(struct join *j, struct join_hub *h)
{
    struct wire_news m;
    int rc = join_read(h->fd, &m, sizeof m, base_deadline(CAUSE_WAIT));
    if (rc) {
        hang_up(h);
        return hub_failed(j, h->rank, "it ended");
    }
    bool sense = join_news_ok(j, &m) && m.rank < j->w->size && m.rank != j->w->rank && (m.rank == h->rank || j->w->rank != 0);
    if (sense && m.error == 0 && m.rank == h->rank && !h->done) {
        h->done = true;
        return 0;
    }
    hang_up(h);
    return sense && m.error ? hub_failed(j, m.rank, m.text)
                            : hub_failed(j, h->rank, "it sent an invalid message; run the same version of weft on all hosts");
}

int join_hub_wait(struct join *j, const int *others, uint32_t count, int64_t until, int *ready)
{
    uint32_t n = count;
    int64_t left = until - base_now_ns();
    *ready = -1;
    int rc = join_stopped();
    if (rc)
        return rc;
    for (uint32_t i = 0; i < count; i++)
        j->fds[i] = (struct pollfd){.fd = others[i], .events = POLLIN};
    for (uint32_t i = 0; i < j->hub_count; i++)
        j->fds[n++] = (struct pollfd){.fd = j->hubs[i].fd, .events = POLLIN};
    int got = poll(j->fds, n, left <= 0 ? 0 : left > WEFT_SECOND ? 1000 : (int)(left / WEFT_MS) + 1);
    if (got < 0 && errno != EINTR)
        return base_fail(-errno, "cannot wait for the other nodes: %s", base_strerror(errno));
    for (uint32_t i = 0; got > 0 && i < j->hub_count; i++) {
        rc = j->fds[count + i].revents ? hub_hear(j, &j->hubs[i]) : 0;
        if (rc)
            return rc;
    }
    for (uint32_t i = 0; got > 0 && i < count && *ready < 0; i++)
        if (j->fds[i].revents)
            *ready = others[i];
    return 0;
}

static uint32_t undone(const struct join *j, uint32_t *who)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->hub_count; i++) {
        if (j->hubs[i].done)
            continue;
        *who = j->hubs[i].rank;
        n++;
    }
    return n;
}

/* Node 0: wait until every node has reported that it is connected to all others. Then tell all nodes that they are connected. */
static int wait_for_all(struct join *j)
{
    int ready, rc = 0;
    uint32_t who = 0;
    while (!rc && undone(j, &who)) {
        rc = join_hub_wait(j, NULL, 0, base_deadline(WEFT_SECOND), &ready);
        if (!rc && base_now_ns() > j->deadline && undone(j, &who)) {
            char text[160];
            snprintf(text, sizeof text, "it did not connect with all others within %.1f s; to wait longer, raise WEFT_JOIN_TIMEOUT",
                     (double)j->settings->join_timeout_ns / 1e9);
            hub_failed(j, who, text);
            rc = base_fail(-ETIMEDOUT, "node %u (pid %u on %s): %s", who, j->cards[who].pid, j->cards[who].host, text);
        }
    }
    for (uint32_t i = 0; !rc && i < j->hub_count; i++)
        send_news(j, &j->hubs[i], 0, 0, "");
    return rc;
}

/* Other nodes: report to node 0, and wait until node 0 reports that all nodes have connected. At its deadline node 0 reports a failure. */
static int hub_wait_for_word(struct join *j)
{
    struct join_hub *h = &j->hubs[0];
    int ready, rc = 0;
    send_news(j, h, j->w->rank, 0, "");
    while (!rc && !h->done) {
        rc = join_hub_wait(j, NULL, 0, base_deadline(WEFT_SECOND), &ready);
        if (!rc && !h->done && base_now_ns() > j->deadline + WORD_GRACE)
            rc = base_fail(-ETIMEDOUT,
                           "node %u (pid %u on %s) has not connected to all other nodes within %.1f s; to wait longer, raise "
                           "WEFT_JOIN_TIMEOUT",
                           h->rank, j->cards[h->rank].pid, j->cards[h->rank].host, (double)j->settings->join_timeout_ns / 1e9);
    }
    return rc;
}

int join_hub_end(struct join *j, int rc)
{
    bool follows = rc == -ECONNRESET || rc == -EPIPE; /* another node's failure may be the cause: wait for the report about that failure */
    int ready, cause = 0;
    if (rc == 0)
        rc = j->w->rank == 0 ? wait_for_all(j) : hub_wait_for_word(j);
    if (rc && !j->told && j->hub_count) {
        char own[WIRE_REASON];
        snprintf(own, sizeof own, "%s", base_error());
        for (int64_t end = base_deadline(CAUSE_WAIT); follows && !cause && base_now_ns() < end;)
            cause = join_hub_wait(j, NULL, 0, end, &ready);
        for (uint32_t i = 0; !cause && i < j->hub_count; i++)
            send_news(j, &j->hubs[i], j->w->rank, -rc, own);
        if (!cause)
            base_fail(rc, "%s", own);
        rc = cause ? cause : rc;
    }
    for (uint32_t i = 0; i < j->hub_count; i++)
        hang_up(&j->hubs[i]);
    free(j->hubs);
    free(j->fds);
    return rc;
}
