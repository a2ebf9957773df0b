/* SPDX-License-Identifier: MIT
 *
 * Tagged output: writes "[k] " before each line of node k. Lines of different nodes are never mixed.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/launch.h"

/* A write of at most this many bytes to a pipe that poll() reports as writable does not block. The descriptor cannot be made non-blocking,
 * because other processes share it. */
#define WRITE_MAX 4096u

static void relay_give_up(struct relay_out *o, int error)
{
    o->broken = true; /* the launcher then closes the nodes' pipes, so that the nodes notice that nobody reads */
    o->error = error;
    o->start = o->end = 0;
}

static void relay_append(struct relay_out *o, const char *bytes, size_t len)
{
    if (o->room - o->end < len && o->start) {
        memmove(o->data, o->data + o->start, relay_waiting(o));
        o->end -= o->start;
        o->start = 0;
    }
    if (o->room - o->end < len) {
        size_t room = 2 * (o->end + len);
        char *more = realloc(o->data, room);
        if (!more) {
            relay_give_up(o, ENOMEM);
            return;
        }
        o->data = more;
        o->room = room;
    }
    memcpy(o->data + o->end, bytes, len);
    o->end += len;
}

void relay_say(struct relay_out *o, const char *text, size_t len)
{
    if (!o->broken)
        relay_append(o, text, len);
}

static void relay_emit(struct relay_in *in, const char *line, size_t len)
{
    char tag[96];
    struct relay_out *o = in->to;
    int n = in->bare ? 0 : in->label ? snprintf(tag, sizeof tag, "[%.80s] ", in->label) : snprintf(tag, sizeof tag, "[%u] ", in->node);
    if (!o->broken && n)
        relay_append(o, tag, (size_t)n);
    if (!o->broken)
        relay_append(o, line, len);
    if (!o->broken && !in->bare && (len == 0 || line[len - 1] != '\n'))
        relay_append(o, "\n", 1);
}

/* Make room for `more` bytes behind the incomplete line. */
static bool relay_make_room(struct relay_in *in, size_t more)
{
    if (in->room - in->len >= more)
        return true;
    size_t room = in->room ? 2 * in->room : 16384;
    while (room - in->len < more)
        room *= 2;
    char *line = realloc(in->line, room);
    if (!line)
        return false;
    in->line = line;
    in->room = room;
    return true;
}

/* Note that `n` bytes were added to the incomplete line, and pass on all lines that are complete now. */
static void relay_lines(struct relay_in *in, size_t n)
{
    size_t seen = in->len, begin = 0;
    in->len += n;
    in->drained += n;
    for (char *nl; (nl = memchr(in->line + seen, '\n', in->len - seen)); seen = begin) {
        size_t end = (size_t)(nl - in->line) + 1;
        relay_emit(in, in->line + begin, end - begin);
        begin = end;
    }
    memmove(in->line, in->line + begin, in->len - begin);
    in->len -= begin;
    if (in->len >= RELAY_LINE_MAX) {
        relay_emit(in, in->line, in->len);
        in->len = 0;
    }
}

int relay_read(struct relay_in *in)
{
    if (!relay_make_room(in, 4096)) {
        relay_close(in);
        return -1;
    }
    ssize_t n;
    do
        n = read(in->fd, in->line + in->len, in->room - in->len);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (n <= 0) {
        relay_close(in);
        return -1;
    }
    relay_lines(in, (size_t)n);
    return 1;
}

void relay_feed(struct relay_in *in, const char *bytes, size_t len)
{
    if (!relay_make_room(in, len)) {
        relay_give_up(in->to, ENOMEM);
        return;
    }
    memcpy(in->line + in->len, bytes, len);
    relay_lines(in, len);
}

void relay_close(struct relay_in *in)
{
    if (in->len)
        relay_emit(in, in->line, in->len);
    free(in->line);
    in->line = NULL;
    in->len = in->room = 0;
    if (in->fd >= 0)
        close(in->fd);
    in->fd = -1;
}

void relay_write(struct relay_out *o)
{
    while (relay_waiting(o)) {
        struct pollfd p = {.fd = o->fd, .events = POLLOUT};
        if (poll(&p, 1, 0) <= 0)
            return;
        size_t len = relay_waiting(o);
        ssize_t n = write(o->fd, o->data + o->start, len < WRITE_MAX ? len : WRITE_MAX);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            return;
        if (n < 0 && o->drop)
            break;
        if (n < 0) {
            relay_give_up(o, errno);
            return;
        }
        o->start += (size_t)n;
    }
    o->start = o->end = 0;
}

void relay_out_free(struct relay_out *o)
{
    free(o->data);
    o->data = NULL;
    o->start = o->end = o->room = 0;
}
