/* SPDX-License-Identifier: MIT */
#include "cli/forward_direct.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0 /* the sockets have SO_NOSIGPIPE */
#endif

struct way {
    size_t at, end; /* the buffer's bytes `at` to `end` are not sent yet */
    bool over;      /* no more bytes arrive */
    uint8_t bytes[DIRECT_PIECE];
};
struct direct {
    struct forward *f;
    struct forward_loop *loop;
    struct gateway_watch *client, far;
    bool large;
    struct way up, down;
};

struct direct *direct_new(struct forward *f, struct forward_loop *loop, struct gateway_watch *client, int fd,
                          void (*ready)(struct gateway_watch *watch))
{
    struct direct *d = malloc(sizeof *d);
    if (d) { /* set the members one by one, so that the buffers, which need no value, are not written */
        d->f = f;
        d->loop = loop;
        d->client = client;
        d->far = (struct gateway_watch){.fd = -1, .ready = ready, .arg = client->arg};
        d->large = d->up.over = d->down.over = false;
        d->up.at = d->up.end = d->down.at = d->down.end = 0;
    }
    if (!d || gateway_watch(loop->watches, &d->far, fd, GATEWAY_READABLE)) {
        free(d);
        close(fd);
        return NULL;
    }
    return d;
}

void direct_free(struct direct *d, bool reset)
{
    const struct linger now = {.l_onoff = 1};
    if (!d)
        return;
    if (reset)
        setsockopt(d->far.fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    gateway_unwatch(d->loop->watches, &d->far);
    free(d);
}

bool direct_client_ended(const struct direct *d)
{
    return d->up.over;
}

static bool would_wait(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/* Reads a piece if the previous piece was sent. Returns false if the connection is broken. */
static bool way_read(struct direct *d, struct way *way, int from, int to)
{
    if (way->over || way->at < way->end)
        return true;
    ssize_t n = recv(from, way->bytes, sizeof way->bytes, MSG_DONTWAIT);
    if (n < 0)
        return would_wait();
    way->at = 0;
    way->end = (size_t)n;
    way->over = n == 0;
    d->large = d->large || way->end == sizeof way->bytes;
    if (way->over)
        shutdown(to, SHUT_WR);
    return true;
}

/* Returns how many bytes were sent, or a negative errno if the connection is broken or `to` reads no more (EPIPE). */
static ssize_t way_write(struct way *way, int to)
{
    if (way->at == way->end)
        return 0;
    ssize_t n = send(to, way->bytes + way->at, way->end - way->at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0)
        return would_wait() ? 0 : -errno;
    way->at += (size_t)n;
    return n;
}

/* The events to wait for on the socket from which `in` is read and to which `out` is written. */
static unsigned events_for(const struct way *in, const struct way *out)
{
    return (in->over || in->at < in->end ? 0u : GATEWAY_READABLE) | (out->at < out->end ? GATEWAY_WRITABLE : 0u);
}

enum direct_state direct_move(struct direct *d, bool client, bool far)
{
    if ((client && !way_read(d, &d->up, d->client->fd, d->far.fd)) || (far && !way_read(d, &d->down, d->far.fd, d->client->fd)))
        return DIRECT_BROKEN;
    ssize_t up = way_write(&d->up, d->far.fd), down = way_write(&d->down, d->client->fd);
    if (up == -EPIPE) { /* the server reads no more, but bytes that it has sent are still passed on */
        d->up.over = true;
        d->up.at = d->up.end;
        up = 0;
    }
    if (up < 0 || down < 0)
        return DIRECT_BROKEN;
    forward_count(&d->f->up_bytes, (uint64_t)up);
    forward_count(&d->f->down_bytes, (uint64_t)down);
    bool empty = d->up.at == d->up.end && d->down.at == d->down.end;
    if (empty && d->up.over && d->down.over)
        return DIRECT_OVER;
    if (empty && d->large)
        return DIRECT_LARGE;
    gateway_watch_events(d->loop->watches, d->client, events_for(&d->up, &d->down));
    gateway_watch_events(d->loop->watches, &d->far, events_for(&d->down, &d->up));
    return DIRECT_GOES;
}
