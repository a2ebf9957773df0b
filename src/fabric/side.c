/* SPDX-License-Identifier: MIT
 *
 * The side connection between two nodes, from when they have joined until one of them ends. It is a stream of
 *
 *   'w'          wakes the progress thread
 *   'h'          a heartbeat: the sender is alive
 *   'b'          goodbye: the sender leaves
 *   'm' n n ...  a message of `n` bytes (two bytes, the low one first) for the transport of this link
 *   'd' ...      a descriptor, which comes with these bytes (Unix sockets only), and eight bytes that say what it is for
 *
 * Only the progress threads send messages, and they never wait: what the socket does not accept is kept, and sent before anything else.
 * Wake-ups and heartbeats may be dropped if the socket is full, because then the peer reads other bytes, with the same effect. A node that
 * leaves waits a while for room for the goodbye, without which it would count as dead. A descriptor is sent with all its bytes or not at
 * all. The peer receives it in the read that has its 'd'. Each read has at most one 'd', because the kernel ends a read before the next
 * descriptor.
 */
#include "fabric/fabric.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD_BYTES 3u
#define GIVE_BYTES (1u + sizeof(uint64_t))
#define KEPT_BYTES (8u * (HEAD_BYTES + FAB_SIDE_MESSAGE_MAX)) /* maximum number of bytes to send that are kept while the socket is full */

struct fab_side {
    uint32_t in, out; /* in: bytes of an incomplete message in `incoming`; out: bytes in `outgoing` that the socket did not accept yet */
    int given;        /* 1 + the descriptor that belongs to the message 'd' in `incoming`; 0: none */
    uint8_t incoming[HEAD_BYTES + FAB_SIDE_MESSAGE_MAX], outgoing[KEPT_BYTES];
};

/* --- while the pair connects: raw bytes --- */

int fab_side_transfer(int fd, void *bytes, size_t len, bool out, int64_t deadline)
{
    uint8_t *p = bytes;
    while (len > 0) {
        struct pollfd wait = {.fd = fd, .events = out ? POLLOUT : POLLIN};
        int64_t left = deadline - base_now_ns();
        if (left <= 0)
            return -ETIMEDOUT;
        int ready = poll(&wait, 1, left > WEFT_SECOND ? 1000 : (int)(left / 1000000) + 1);
        if (ready < 0 && errno != EINTR)
            return -errno;
        if (ready <= 0)
            continue;
        ssize_t n = out ? send(fd, p, len, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, p, len, MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ECONNRESET;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

/* --- afterwards: a stream of messages --- */

static struct fab_side *buffers(struct fab_link *l)
{
    if (!l->side)
        l->side = calloc(1, sizeof *l->side); /* callers hold side_lock, because fab_side_byte() reads this pointer */
    return l->side;
}

/* --- sending; the caller holds side_lock --- */

static void push(struct fab_link *l)
{
    struct fab_side *s = l->side;
    while (s && s->out) {
        ssize_t n = send(l->side_fd, s->outgoing, s->out, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* the socket is full; or the connection is broken, which the next read will report */
        l->side_sent += n;
        s->out -= (uint32_t)n;
        memmove(s->outgoing, s->outgoing + n, s->out);
    }
}

int fab_side_send(struct fab_link *l, const void *bytes, size_t len)
{
    int rc = 0;
    base_spin_lock(&l->side_lock);
    struct fab_side *s = buffers(l);
    if (!s) {
        rc = base_fail(-ENOMEM, "no memory for a message on the side connection to node %u" BASE_MEMORY_HINT, l->node);
    } else if (len > FAB_SIDE_MESSAGE_MAX || s->out + HEAD_BYTES + len > sizeof s->outgoing) {
        rc = base_fail(-ENOBUFS, "node %u does not read its side connection (is its process stopped?); wait until it runs again, or end it",
                       l->node);
    } else {
        uint8_t *at = s->outgoing + s->out;
        at[0] = 'm';
        at[1] = (uint8_t)len;
        at[2] = (uint8_t)(len >> 8);
        memcpy(at + HEAD_BYTES, bytes, len);
        s->out += HEAD_BYTES + (uint32_t)len;
        push(l);
    }
    base_spin_unlock(&l->side_lock);
    return rc;
}

bool fab_side_byte(struct fab_link *l, char byte)
{
    base_spin_lock(&l->side_lock);
    push(l);
    bool sent = (!l->side || !l->side->out) && send(l->side_fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
    l->side_sent += sent;
    base_spin_unlock(&l->side_lock);
    return sent;
}

int fab_side_give(struct fab_link *l, uint64_t what, int fd)
{
    uint8_t bytes[GIVE_BYTES] = {'d'};
    memcpy(bytes + 1, &what, sizeof what); /* in this host's byte order, because both nodes are on this host */
    base_spin_lock(&l->side_lock);
    push(l);
    int rc = l->side && l->side->out ? -EAGAIN : base_send_fds_nowait(l->side_fd, bytes, sizeof bytes, &fd, 1);
    l->side_sent += rc ? 0 : (int64_t)sizeof bytes;
    base_spin_unlock(&l->side_lock);
    return rc;
}

void fab_side_goodbye(struct fab_link *l, int64_t deadline)
{
    struct pollfd room = {.fd = l->side_fd, .events = POLLOUT};
    while (!fab_side_byte(l, 'b') && !(room.revents & (POLLERR | POLLHUP | POLLNVAL))) {
        int64_t left = deadline - base_now_ns();
        if (left <= 0)
            return;
        (void)poll(&room, 1, (int)(left / WEFT_MS) + 1);
    }
}

bool fab_side_answered(struct fab_link *l)
{
    base_spin_lock(&l->side_lock);
    int waiting = base_unacknowledged(l->side_fd);
    bool more = waiting == 0 || (waiting > 0 && l->side_sent - waiting > l->side_taken);
    if (more)
        l->side_taken = l->side_sent - waiting;
    base_spin_unlock(&l->side_lock);
    return more;
}

bool fab_side_pending(struct fab_link *l)
{
    base_spin_lock(&l->side_lock);
    bool pending = l->side && l->side->out;
    base_spin_unlock(&l->side_lock);
    return pending;
}

/* --- in --- */

static void given(struct weft_node *w, struct fab_link *l)
{
    struct fab_side *s = l->side;
    uint64_t what;
    int fd = s->given - 1;
    memcpy(&what, s->incoming + 1, sizeof what);
    s->in = 0;
    s->given = 0;
    if (!fab_run_given(w, l->node, what, fd) && fd >= 0)
        close(fd);
}

/* Checks and handles received bytes. `*fd`: the descriptor that arrived with the bytes, or -1; it becomes -1 if a message has taken the
 * descriptor. Returns false if the bytes are invalid. */
static bool side_take(struct weft_node *w, struct fab_link *l, const uint8_t *bytes, size_t n, int *fd)
{
    for (size_t i = 0; i < n; i++) {
        struct fab_side *s = l->side;
        if (!s || s->in == 0) {
            if (bytes[i] == 'b')
                l->goodbye = true;
            if (bytes[i] != 'm' && bytes[i] != 'd')
                continue;
            base_spin_lock(&l->side_lock);
            s = buffers(l);
            base_spin_unlock(&l->side_lock);
            if (!s)
                return false;
            if (bytes[i] == 'd') {
                s->given = *fd + 1;
                *fd = -1;
            }
        }
        s->incoming[s->in++] = bytes[i];
        if (s->incoming[0] == 'd') {
            if (s->in == GIVE_BYTES)
                given(w, l);
            continue;
        }
        if (s->in < HEAD_BYTES)
            continue;
        uint32_t len = s->incoming[1] | (uint32_t)s->incoming[2] << 8;
        if (len > FAB_SIDE_MESSAGE_MAX || !l->transport->side)
            return false;
        if (s->in == HEAD_BYTES + len) {
            s->in = 0;
            l->transport->side(w, l, s->incoming + HEAD_BYTES, len);
        }
    }
    return true;
}

void fab_side_free(struct fab_link *l)
{
    if (l->side && l->side->given)
        close(l->side->given - 1);
    free(l->side);
    l->side = NULL;
}

/* Frees the buffers when they are empty: a link needs them only while a message is incomplete. */
static void tidy(struct fab_link *l)
{
    base_spin_lock(&l->side_lock);
    if (l->side && !l->side->in && !l->side->out)
        fab_side_free(l);
    base_spin_unlock(&l->side_lock);
}

const char *fab_side_read(struct weft_node *w, struct fab_link *l, uint32_t most, bool *died)
{
    uint8_t bytes[1024];
    if (fab_side_pending(l)) {
        base_spin_lock(&l->side_lock);
        push(l);
        base_spin_unlock(&l->side_lock);
    }
    for (uint32_t i = 0; i < most; i++) {
        int fd;
        ssize_t n = base_receive_fd_nowait(l->side_fd, bytes, sizeof bytes, &fd);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            tidy(l);
            return NULL;
        }
        if (n <= 0) {
            const char *why = n == 0 ? "its connection closed" : base_strerror(errno), *more = l->transport->broken(w, l);
            *died = !l->goodbye;
            return more ? more : why; /* the last message may contain a better reason */
        }
        l->silent_ns = l->unanswered_ns = 0;
        const bool passed = fd >= 0;
        bool valid = side_take(w, l, bytes, (size_t)n, &fd);
        if (fd >= 0) { /* the descriptor belongs to no message */
            close(fd);
            valid = false;
        }
        if (!valid) {
            *died = true;
            return "it sent an invalid message over the side connection; run the same version of weft on all hosts";
        }
        /* A short read means that nothing more has arrived, and poll() will report later bytes. But a read with a descriptor is short in
         * any case, because the kernel ends it there. */
        if ((size_t)n < sizeof bytes && !passed) {
            tidy(l);
            break;
        }
    }
    return NULL;
}
