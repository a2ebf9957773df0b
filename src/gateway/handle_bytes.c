/* SPDX-License-Identifier: MIT
 *
 * The asker's side of a process's input and output.
 */
#include <string.h>

#include "gateway/handle.h"

/* --- output --- */

struct gateway_stream *handle_output(struct weft_process *p, uint32_t which)
{
    return which == 1 || which == 2 ? p->out[which - 1] : NULL;
}

static int no_output(const struct weft_process *p, uint32_t which)
{
    if (which != 1 && which != 2)
        return base_fail(-EINVAL, "process %u on node %u has no output %u: pass 1 (standard output) or 2 (standard error)", p->pid, p->node,
                         which);
    return base_fail(-EINVAL, "process %u on node %u does not send its standard %s to this node: start it with WEFT_SPAWN_%s", p->pid,
                     p->node, which == 2 ? "error" : "output", which == 2 ? "STDERR" : "STDOUT");
}

static int read_error(const struct weft_process *p, uint32_t which, int rc)
{
    return rc ? base_fail(rc, "cannot read standard %s of process %u on node %u: %s", which == 2 ? "error" : "output", p->pid, p->node,
                          rc == -EBUSY        ? "another thread is reading it; let one thread read at a time"
                          : rc == -ECONNRESET ? "the node is gone"
                                              : base_strerror(rc))
              : 0;
}

static bool has_output(void *arg)
{
    struct gateway_stream *s = arg;
    base_spin_lock(&s->g->lock);
    bool some = s->first != s->last || s->ended;
    base_spin_unlock(&s->g->lock);
    return some;
}

int weft_process_read(weft_process *p, uint32_t which, void *buf, size_t len, size_t *got, int64_t timeout_ns)
{
    struct gateway *g = p->g;
    struct gateway_stream *s = handle_output(p, which);
    *got = 0;
    if (!s)
        return no_output(p, which);
    if (!len)
        return 0;
    base_spin_lock(&g->lock);
    bool busy = s->busy;
    s->busy = true;
    base_spin_unlock(&g->lock);
    if (busy)
        return read_error(p, which, -EBUSY);
    int rc = handle_wait(p, has_output, s, handle_until(p, timeout_ns));
    if (rc == -ETIMEDOUT && timeout_ns)
        base_fail(rc, "cannot read standard %s of process %u on node %u: no bytes came before the deadline; read again, or allow more time",
                  which == 2 ? "error" : "output", p->pid, p->node);
    const uint8_t *at = NULL;
    struct gateway_credit due = {0};
    base_spin_lock(&g->lock);
    uint64_t n = rc ? 0 : gateway_stream_next(s, &at);
    int status = s->status;
    base_spin_unlock(&g->lock);
    n = n < len ? n : len;
    if (n)
        memcpy(buf, at, n); /* copied without the lock: the writer does not change these bytes before they are taken */
    base_spin_lock(&g->lock);
    if (n)
        gateway_stream_take(s, n, &due);
    s->busy = false;
    base_spin_unlock(&g->lock);
    gateway_credit_give(g, &due);
    *got = (size_t)n;
    return rc ? rc : n ? 0 : read_error(p, which, status);
}

int weft_process_read_start(weft_process *p, uint32_t which, void *buf, size_t len, size_t *got, weft_op *op)
{
    struct gateway *g = p->g;
    struct gateway_stream *s = handle_output(p, which);
    struct gateway_credit due = {0};
    if (!s)
        return no_output(p, which);
    fab_pending(op, p->node);
    base_spin_lock(&g->lock);
    int rc = s->busy ? -EBUSY : handle_read(s, buf, len, got, &due);
    if (rc == -EAGAIN) {
        s->busy = true;
        p->reads[which - 1] = (struct handle_read){buf, len, got, op};
    }
    base_spin_unlock(&g->lock);
    gateway_credit_give(g, &due);
    if (rc != -EAGAIN)
        fab_complete(op, rc);
    return rc == -EAGAIN ? 0 : read_error(p, which, rc);
}

/* --- input --- */

/* Opens the stream to the process's input. Returns 0, -EINVAL or -EPIPE, or 1 if the process has not started yet. */
int handle_input(struct weft_process *p)
{
    if (!p->wants_in)
        return base_fail(-EINVAL, "process %u on node %u does not read its standard input from this node: start it with WEFT_SPAWN_STDIN",
                         p->pid, p->node);
    if (!handle_has_started(p))
        return 1;
    if (p->in)
        return 0;
    base_spin_lock(&p->g->lock);
    bool over = p->state == HANDLE_OVER;
    base_spin_unlock(&p->g->lock);
    if (over || !p->in_bytes)
        return -EPIPE;
    struct gateway_stream *in;
    int rc = gateway_stream_write(p->g, p->node, p->in_there, p->in_ring, p->in_bytes, handle_moved, p, &in);
    if (rc)
        return rc == -EINVAL ? -EPIPE : rc;
    base_spin_lock(&p->g->lock);
    bool late = p->unread; /* gateway_handle_unread() has already told the server that this node writes nothing */
    if (late)
        in->ended = true;
    else
        p->in = in;
    base_spin_unlock(&p->g->lock);
    if (late)
        gateway_stream_close(in);
    return late ? -EPIPE : 0;
}

void gateway_handle_unread(struct gateway *g, uint32_t from, const struct gateway_message *m)
{
    struct gateway_credit due = {0};
    base_spin_lock(&g->lock);
    struct weft_process *p = gateway_table_find(&g->processes, m->to);
    if (p && p->node == from) {
        p->unread = true;
        if (p->in) {
            p->in->shut = true;
            handle_moved(p->in);
            due = p->in->due;
            p->in->due.m.type = 0;
        } else {
            due = (struct gateway_credit){.node = from, .m = {.type = GATEWAY_DATA, .to = m->word[0], .word = {0, 0, 0, 1}}};
        }
    } /* if the handle is closed, there is nothing to send: the server does not wait for the end of the stream */
    base_spin_unlock(&g->lock);
    gateway_credit_give(g, &due);
}

/* Keeps other threads from ending the stream to a process's input, until input_pause(). Returns false if the stream has ended. */
static bool input_use(struct gateway_stream *s)
{
    base_spin_lock(&s->g->lock);
    bool open = !s->ended;
    s->busy = open;
    base_spin_unlock(&s->g->lock);
    return open;
}

static void input_pause(struct gateway_stream *s)
{
    base_spin_lock(&s->g->lock);
    s->busy = false;
    bool end = s->shut && !s->ended;
    base_spin_unlock(&s->g->lock);
    if (end)
        (void)gateway_stream_send(s, NULL, 0, true, 0);
}

static int write_error(struct weft_process *p, int rc)
{
    base_spin_lock(&p->g->lock);
    bool lost = p->error != 0;
    base_spin_unlock(&p->g->lock);
    if (rc == -EPIPE && lost)
        return handle_error(p);
    return rc == -EPIPE
               ? base_fail(rc, "process %u on node %u no longer reads its standard input: the process has closed the input, or has ended",
                           p->pid, p->node)
               : rc;
}

/* Writes as many bytes as there is room for, and returns how many. */
size_t handle_write(struct gateway_stream *s, const uint8_t *buf, size_t len, int *rc)
{
    struct iovec piece[2];
    if (!input_use(s))
        return 0;
    uint64_t room = gateway_stream_room(s, piece);
    size_t n = room < len ? (size_t)room : len;
    if (n && s->memory) {
        size_t one = n < piece[0].iov_len ? n : piece[0].iov_len;
        memcpy(piece[0].iov_base, buf, one);
        if (n > one)
            memcpy(piece[1].iov_base, buf + one, n - one);
    }
    if (n)
        *rc = gateway_stream_send(s, buf, n, false, 0);
    input_pause(s);
    return *rc ? 0 : n;
}

bool handle_has_room(void *arg)
{
    struct gateway_stream *s = arg;
    base_spin_lock(&s->g->lock);
    bool room = s->shut || s->ended || s->last - s->first < s->bytes;
    base_spin_unlock(&s->g->lock);
    return room;
}

int weft_process_write(weft_process *p, const void *buf, size_t len, size_t *put, int64_t timeout_ns)
{
    int64_t deadline = fab_timeout(p->g->w, timeout_ns);
    size_t done = 0;
    int rc = handle_input(p);
    if (rc == 1) {
        rc = handle_wait(p, handle_has_started, p, deadline);
        rc = rc ? rc : handle_input(p);
    }
    while (!rc && done < len) {
        done += handle_write(p->in, (const uint8_t *)buf + done, len - done, &rc);
        if (rc || done == len)
            break;
        rc = handle_wait(p, handle_has_room, p->in, deadline);
        base_spin_lock(&p->g->lock);
        rc = rc ? rc : p->in->shut || p->in->ended ? -EPIPE : 0;
        base_spin_unlock(&p->g->lock);
    }
    if (put)
        *put = done;
    if (rc == -ETIMEDOUT && timeout_ns)
        return base_fail(
            rc,
            "process %u on node %u has not read all of its standard input before the deadline: %zu of %zu bytes were sent; write the "
            "rest again, or allow more time",
            p->pid, p->node, done, len);
    return write_error(p, rc);
}

int weft_process_end_input(weft_process *p)
{
    int rc = handle_input(p);
    if (rc == 1) {
        rc = handle_wait(p, handle_has_started, p, fab_timeout(p->g->w, WEFT_TIMEOUT_DEFAULT));
        if (rc == -ETIMEDOUT)
            return base_fail(rc,
                             "the standard input was not ended, because node %u has not started the process before the deadline; try "
                             "again, or allow more time",
                             p->node);
        rc = rc ? rc : handle_input(p);
    }
    if (rc == -EPIPE || rc == -EDEADLK || rc == -EINVAL)
        return rc == -EPIPE ? 0 : rc; /* the process reads no more, so the end of its input needs no message */
    if (!rc && !p->ended_in) {
        p->ended_in = true;
        if (input_use(p->in)) {
            rc = gateway_stream_send(p->in, NULL, 0, true, 0);
            input_pause(p->in);
        }
    }
    return rc == -ECONNRESET ? 0 : rc;
}
