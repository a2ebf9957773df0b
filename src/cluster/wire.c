/* SPDX-License-Identifier: MIT
 *
 * Sends and receives whole messages with a deadline, and computes the MACs that prove knowledge of the secret.
 */
#include "cluster/join.h"

#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- MACs --- */

void join_mac(uint8_t out[WIRE_MAC], const uint8_t key[32], const char *what, const void *a, size_t a_len, const void *b, size_t b_len,
              const void *c, size_t c_len)
{
    crypto_generichash_state st;
    crypto_generichash_init(&st, key, 32, WIRE_MAC);
    crypto_generichash_update(&st, (const uint8_t *)what, strlen(what) + 1);
    crypto_generichash_update(&st, a, a_len);
    crypto_generichash_update(&st, b, b_len);
    crypto_generichash_update(&st, c, c_len);
    crypto_generichash_final(&st, out, WIRE_MAC);
}

void join_token(struct wire_token *t, const struct join *j, uint32_t from, uint32_t to)
{
    memset(t, 0, sizeof *t);
    t->magic = WIRE_MAGIC;
    t->from = from;
    t->to = to;
    uint32_t pair[2] = {from, to};
    join_mac(t->mac, j->key, "weft token", j->session, sizeof j->session, pair, sizeof pair, NULL, 0);
}

/* --- whole messages, with a deadline --- */

int (*cluster_stopped)(void);

int join_stopped(void)
{
    return cluster_stopped && cluster_stopped() ? base_fail(-EINTR, "a signal interrupted joining the cluster") : 0;
}

int join_wait(int fd, short events, int64_t deadline)
{
    for (;;) {
        int rc = join_stopped();
        if (rc)
            return rc;
        int64_t left = deadline - base_now_ns();
        if (left <= 0)
            return -ETIMEDOUT;
        struct pollfd p = {.fd = fd, .events = events};
        int64_t ms = left / 1000000 + 1;
        int n = poll(&p, 1, ms > 1000 ? 1000 : (int)ms);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
}

int join_read(int fd, void *buf, size_t len, int64_t deadline)
{
    uint8_t *p = buf;
    while (len) {
        int rc = join_wait(fd, POLLIN, deadline);
        if (rc)
            return rc;
        ssize_t n = recv(fd, p, len, MSG_DONTWAIT);
        if (n == 0)
            return -ECONNRESET;
        if (n < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)
            return -errno;
        if (n > 0) {
            p += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

int join_write(int fd, const void *buf, size_t len, int64_t deadline)
{
    const uint8_t *p = buf;
    while (len) {
        ssize_t n = send(fd, p, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            p += n;
            len -= (size_t)n;
            continue;
        }
        if (n < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)
            return -errno;
        int rc = join_wait(fd, POLLOUT, deadline);
        if (rc)
            return rc;
    }
    return 0;
}

bool join_user_allowed(int fd, int *pid)
{
    unsigned uid;
    *pid = 0;
    if (base_peer_identity(fd, &uid, pid))
        return true; /* over TCP the secret decides */
    return uid == geteuid() || uid == 0;
}
