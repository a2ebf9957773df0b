/* SPDX-License-Identifier: MIT
 *
 * Input and output of one process: moves bytes from its pipes to the asker's rings, and from a ring (or the asker's memory) to its input.
 * If a ring is mapped, read(2) writes directly into the asker's pool. A pipe is not read while its ring is full.
 */
#include "gateway/run.h"

#include <stdlib.h>
#include <unistd.h>

#define TURNS 16u /* how often to read from a pipe before other pipes are read */

static bool stream_is_shut(const struct gateway_stream *s)
{
    base_spin_lock(&s->g->lock);
    bool shut = s->shut;
    base_spin_unlock(&s->g->lock);
    return shut;
}

static void drop_stream(struct run *r, struct gateway_stream **s)
{
    if (*s)
        gateway_server_unlist(r->server, *s);
    gateway_stream_close(*s);
    *s = NULL;
}

static void output_done(struct run *r, unsigned which)
{
    gateway_unwatch(gateway_server_watches(r->server), &r->out[which]);
    drop_stream(r, &r->out_stream[which]);
}

/* Reads and drops output that the asker does not want, so that the process does not block. */
static void output_discard(struct run *r, unsigned which)
{
    uint8_t some[RUN_PIECE];
    ssize_t n = 1;
    for (unsigned i = 0; i < TURNS && (n > 0 || (n < 0 && errno == EINTR)); i++)
        n = read(r->out[which].fd, some, sizeof some);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        output_done(r, which);
}

/* Moves bytes from a pipe to its ring. Returns false if there is nothing to move, or if there is no room now. */
static bool output_move(struct run *r, unsigned which)
{
    struct gateway_stream *s = r->out_stream[which];
    struct gateway_watch *watch = &r->out[which];
    struct gateway_watches *all = gateway_server_watches(r->server);
    uint8_t some[WEFT_PAYLOAD_MAX];
    struct iovec piece[2];
    uint64_t room = gateway_stream_room(s, piece);
    if (!room && stream_is_shut(s)) {
        output_done(r, which);
        return false;
    }
    if (!room) {
        gateway_watch_events(all, watch, 0); /* do not watch the pipe until the ring has room again */
        return false;
    }
    ssize_t n = s->memory ? readv(watch->fd, piece, piece[1].iov_len ? 2 : 1) : read(watch->fd, some, (size_t)room);
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && errno == EAGAIN) {
        gateway_watch_events(all, watch, GATEWAY_READABLE);
        return false;
    }
    if (n < 0 && errno == EIO && r->terminal) /* no process has the terminal open any more */
        n = 0;
    if (n > 0) {
        gateway_watch_events(all, watch, GATEWAY_READABLE);
        return gateway_stream_send(s, some, (uint64_t)n, false, 0) == 0 && (uint64_t)n == room;
    }
    (void)gateway_stream_send(s, NULL, 0, true, n < 0 ? -errno : 0);
    output_done(r, which);
    return false;
}

void run_output(struct run *r, unsigned which)
{
    if (r->out[which].fd < 0)
        return;
    if (!r->out_stream[which]) {
        output_discard(r, which);
        return;
    }
    for (unsigned i = 0; i < TURNS && output_move(r, which); i++)
        ;
}

/* Tells the asker that the process reads no more input. The asker may be writing into the ring, so the ring is freed when the asker has
 * ended the stream. */
static void input_stream_end(struct run *r)
{
    struct gateway *g = r->in_stream->g;
    base_spin_lock(&g->lock);
    bool over = r->left || r->in_stream->ended;
    base_spin_unlock(&g->lock);
    if (over) {
        drop_stream(r, &r->in_stream);
    } else if (!r->unread) {
        r->unread = true;
        (void)gateway_post(g, r->node, &(struct gateway_message){.type = GATEWAY_UNREAD, .to = r->there, .word = {r->in_stream->id}}, NULL,
                           0);
    }
}

void run_input_end(struct run *r)
{
    gateway_unwatch(gateway_server_watches(r->server), &r->in);
    r->data_left = 0;
    if (r->in_stream)
        input_stream_end(r);
}

/* Returns how many bytes of input can be written next, and where they are. Returns 0 if there are no bytes now (`*last` is false), or if
 * the input has ended (`*last` is true). */
static uint64_t input_next(struct run *r, const uint8_t **at, bool *last)
{
    if (r->in_stream) {
        struct gateway *g = r->in_stream->g;
        base_spin_lock(&g->lock);
        uint64_t n = gateway_stream_next(r->in_stream, at);
        *last = n == 0 && r->in_stream->ended;
        base_spin_unlock(&g->lock);
        return n;
    }
    struct weft_node *w = gateway_of(r->server)->w;
    uint64_t n = r->data_left < RUN_PIECE ? r->data_left : RUN_PIECE;
    *last = n == 0 || r->ended;
    if (*last)
        return 0;
    if (!r->buffer) {
        *at = weft_ptr(w, r->data, n);
        *last = !*at;
        return *at ? n : 0;
    }
    if (r->used == r->have && !r->getting) {
        int rc = weft_get_nowait(w, r->buffer, r->data, n, &r->get);
        if (rc && rc != -EAGAIN) /* the input is incomplete, so end the process */
            run_stop(r);
        if (rc) {
            *last = rc != -EAGAIN;
            return 0;
        }
        r->getting = true;
        r->have = n;
        r->used = 0;
    }
    if (r->getting) {
        int rc = weft_test(w, &r->get);
        if (rc == -EINPROGRESS)
            return 0;
        r->getting = false;
        if (rc) {
            run_stop(r);
            r->have = r->used = 0;
            *last = true;
            return 0;
        }
    }
    *at = r->buffer + r->used;
    return r->have - r->used;
}

static void input_taken(struct run *r, uint64_t n)
{
    if (r->in_stream) {
        struct gateway *g = r->in_stream->g;
        struct gateway_credit due;
        base_spin_lock(&g->lock);
        gateway_stream_take(r->in_stream, n, &due);
        base_spin_unlock(&g->lock);
        gateway_credit_give(g, &due);
        return;
    }
    r->used += r->buffer ? n : 0;
    r->data += n;
    r->data_left -= n;
}

void run_input(struct run *r)
{
    struct gateway_watches *all = gateway_server_watches(r->server);
    if (r->in.fd < 0 && r->in_stream)
        input_stream_end(r);
    for (unsigned i = 0; r->in.fd >= 0; i++) {
        const uint8_t *at = NULL;
        bool last = false;
        uint64_t n = input_next(r, &at, &last);
        if (last)
            run_input_end(r);
        if (!n || i == TURNS) {
            gateway_watch_events(all, &r->in, n ? GATEWAY_WRITABLE : 0);
            return;
        }
        ssize_t put = write(r->in.fd, at, n);
        if (put > 0) {
            input_taken(r, (uint64_t)put);
        } else if (put < 0 && errno == EAGAIN) {
            gateway_watch_events(all, &r->in, GATEWAY_WRITABLE);
            return;
        } else if (put == 0 || errno != EINTR) {
            run_input_end(r); /* the process has closed its input */
        }
    }
}

void run_listen(struct gateway_listener *l, struct gateway_stream *s)
{
    struct run *r = (struct run *)l;
    if (s == r->in_stream)
        run_input(r);
    else
        run_output(r, s == r->out_stream[1]);
}

void run_leave(struct run *r)
{
    r->left = true;
    for (unsigned i = 0; i < 2; i++) {
        drop_stream(r, &r->out_stream[i]);
        if (r->detached && !r->ended)
            gateway_watch_events(gateway_server_watches(r->server), &r->out[i], GATEWAY_READABLE);
        else
            output_done(r, i);
    }
    run_input_end(r);
}

void run_stop(struct run *r)
{
    if (r->ended || r->stopped)
        return;
    r->stopped = true;
    r->stop_by = base_deadline(RUN_STOP_NS);
    gateway_groups_end(gateway_server_groups(r->server), r->place);
}

bool run_over(const struct run *r)
{
    return r->ended && !r->getting && !r->in_stream && r->in.fd < 0 && r->out[0].fd < 0 && r->out[1].fd < 0;
}

void run_close(struct run *r)
{
    gateway_unwatch(gateway_server_watches(r->server), &r->in);
    drop_stream(r, &r->in_stream);
    output_done(r, 0);
    output_done(r, 1);
    gateway_unwatch(gateway_server_watches(r->server), &r->end);
    if (!r->getting)
        free(r->buffer);
}
