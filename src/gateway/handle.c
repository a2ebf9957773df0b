/* SPDX-License-Identifier: MIT
 *
 * The asker's handles of processes on other nodes: starts processes, waits for their end, closes handles.
 */
#include "gateway/handle.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* --- the caller holds gateway.lock --- */

static void handle_notice(const struct weft_process *p, bool soon)
{
    if (p->notice)
        p->notice(p->notice_arg, soon);
}

static void handle_over(struct weft_process *p, int error)
{
    p->state = HANDLE_OVER;
    p->error = error;
    for (struct handle_wait *one; (one = p->waits);) {
        p->waits = one->next;
        fab_complete(one->op, error);
        free(one);
    }
    handle_notice(p, true);
}

static bool is_unused(const struct weft_process *p)
{
    return p->closed && !p->asked && (!p->out[0] || p->out[0]->ended) && (!p->out[1] || p->out[1]->ended);
}

/* If the handle is closed and the server can no longer write to its rings, puts the handle on the list of handles to be freed. */
static void handle_look(struct weft_process *p)
{
    struct gateway *g = p->g;
    if (!p->id || !is_unused(p))
        return;
    gateway_table_remove(&g->processes, p->id);
    p->id = 0;
    p->next_unused = g->unused;
    g->unused = p;
    fab_kick(g->w);
}

/* Called when the server no longer works on the request to start the process. If the process did not start, there are no streams either. */
static void handle_answered(struct weft_process *p, int status)
{
    p->asked = false;
    for (unsigned i = 0; i < 2 && status; i++)
        if (p->out[i])
            p->out[i]->ended = true;
    handle_look(p);
}

void handle_told(struct weft_process *p, const struct gateway_result *r)
{
    if (r->answered)
        handle_answered(p, r->status);
    if (p->state != HANDLE_STARTING)
        return;
    if (r->status) {
        p->text = r->len ? strndup((const char *)r->payload, r->len) : NULL;
        handle_over(p, r->status);
        return;
    }
    p->state = HANDLE_RUNS;
    p->there = r->word[0];
    p->pid = (uint32_t)r->word[1];
    p->in_there = r->word[2];
    p->in_ring = r->word[3];
    p->in_bytes = r->word[4];
    handle_notice(p, false);
}

static void spawn_told(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    (void)g;
    handle_told(a->arg, r);
}

/* Reads bytes that have arrived, in one piece. Returns -EAGAIN if there are no bytes now. */
int handle_read(struct gateway_stream *s, void *buf, size_t len, size_t *got, struct gateway_credit *due)
{
    const uint8_t *at;
    uint64_t n = gateway_stream_next(s, &at);
    if (!n && !s->ended)
        return -EAGAIN;
    *got = (size_t)(n < len ? n : len);
    if (!n)
        return s->status;
    memcpy(buf, at, *got);
    gateway_stream_take(s, *got, due);
    return 0;
}

/* Ends the stream to the input of a process that reads no more input. If a thread is writing into the stream's ring, that thread ends the
 * stream (input_pause()). */
static void input_moved(struct gateway_stream *s)
{
    if (!s->shut || s->busy || s->ended)
        return;
    s->ended = true;
    s->due = (struct gateway_credit){s->node, {.type = GATEWAY_DATA, .to = s->peer, .word = {s->id, s->last, 0, 1}}};
}

void handle_moved(struct gateway_stream *s)
{
    struct weft_process *p = s->arg;
    struct handle_read *read = &p->reads[s == p->out[1]];
    if (p->closed)
        handle_look(p);
    if (s->sends)
        input_moved(s);
    if (!s->sends)
        handle_notice(p, s->first != s->last || p->state == HANDLE_OVER);
    if (s->sends || !read->op)
        return;
    int rc = handle_read(s, read->buf, read->len, read->got, &s->due);
    if (rc == -EAGAIN)
        return;
    weft_op *op = read->op;
    read->op = NULL;
    s->busy = false;
    fab_complete(op, rc);
}

/* --- starting --- */

static void handle_free(struct weft_process *p)
{
    gateway_stream_close(p->out[0]);
    gateway_stream_close(p->out[1]);
    gateway_stream_close(p->in);
    free(p->text);
    free(p);
}

int handle_new(struct gateway *g, weft_request *r, bool of_record, struct weft_process **out)
{
    if (r->node >= g->w->size)
        return base_fail(-EFAULT, "cannot start a program on node %u: there is no such node; the cluster has nodes 0 to %u", r->node,
                         g->w->size - 1);
    for (unsigned i = 0; i < 2; i++)
        if (r->arg[5 + i] && !gateway_ring_fits(r->arg[5 + i]))
            return base_fail(-EINVAL,
                             "a buffer (stdout_ring, stderr_ring) of %llu bytes for the output of a process is not possible: give a power "
                             "of two from 4 KiB to 16 MiB",
                             (unsigned long long)r->arg[5 + i]);
    struct weft_process *p = calloc(1, sizeof *p);
    if (!p)
        return base_fail(-ENOMEM, "no memory for the handle of a process on node %u" BASE_MEMORY_HINT, r->node);
    *p = (struct weft_process){.g = g,
                               .node = r->node,
                               .of_record = of_record,
                               .wants_in = r->flags & WEFT_SPAWN_STDIN,
                               .terminal = r->flags & WEFT_SPAWN_TERMINAL};
    int rc = 0;
    for (unsigned i = 0; i < 2 && !rc; i++) {
        if (!(r->flags & (i ? WEFT_SPAWN_STDERR : WEFT_SPAWN_STDOUT)))
            continue;
        rc = gateway_stream_read(g, r->node, r->arg[5 + i] ? r->arg[5 + i] : GATEWAY_RING, handle_moved, p, &p->out[i]);
        if (!rc) {
            r->arg[7 + 2 * i] = p->out[i]->id;
            r->arg[8 + 2 * i] = p->out[i]->ring;
        }
    }
    if (!rc) {
        base_spin_lock(&g->lock);
        p->id = gateway_table_add(&g->processes, p);
        base_spin_unlock(&g->lock);
        rc = p->id ? 0
                   : base_fail(
                         -ENOMEM,
                         "no memory for the handle of a process, or this node has too many handles: close some with weft_process_close()");
    }
    if (rc) {
        handle_free(p);
        return rc;
    }
    r->arg[11] = p->id;
    *out = p;
    return 0;
}

static void handle_forget(struct weft_process *p)
{
    base_spin_lock(&p->g->lock);
    gateway_table_remove(&p->g->processes, p->id);
    base_spin_unlock(&p->g->lock);
    handle_free(p);
}

/* The server may write into the handle's buffers until it has answered the request to start. So if the handle is closed before that, it
 * keeps its buffers until the server answers or is gone. WEFT_REQUESTS_MAX limits the number of such handles for a server that hangs. */
void handle_close(struct weft_process *p)
{
    base_spin_lock(&p->g->lock);
    p->closed = true;
    bool now = is_unused(p);
    if (now) {
        gateway_table_remove(&p->g->processes, p->id);
        p->id = 0; /* so that no other thread finds and frees the handle */
    }
    base_spin_unlock(&p->g->lock);
    if (now)
        handle_free(p);
}

/* Ends a process at the server, because its handle at this node is closed. */
static void close_there(struct gateway *g, uint32_t node, uint64_t there)
{
    weft_request r = {
        .version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_PROCESS, .kind = WEFT_PROCESS_CLOSE, .node = node, .handle = there};
    gateway_ask_ignore(g, &r);
}

void gateway_process_late(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    base_spin_lock(&g->lock);
    struct weft_process *p = a->handle ? gateway_table_find(&g->processes, a->handle) : NULL;
    if (p)
        handle_answered(p, r->status);
    base_spin_unlock(&g->lock);
    if (!r->status && a->kind == WEFT_PROCESS_SPAWN)
        close_there(g, a->node, r->word[0]);
}

/* Copies data that does not fit into a message to this node's pool. The server fetches the data from there. */
static int put_data(struct gateway *g, weft_request *r, const uint8_t *data)
{
    if (r->data_bytes <= WEFT_REQUEST_INLINE)
        return 0;
    int rc = weft_alloc(g->w, r->data_bytes, &r->data);
    if (!rc)
        memcpy(weft_ptr(g->w, r->data, r->data_bytes), data, r->data_bytes);
    return rc;
}

/* `post`: queue the request if there is no room for it */
static int spawn_start(weft_node *w, uint32_t node, const weft_spawn_spec *given, weft_process **out, weft_op *op, bool post)
{
    struct gateway *g = gateway_in(w);
    weft_request r = {.version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_PROCESS, .kind = WEFT_PROCESS_SPAWN, .node = node};
    weft_spawn_spec spec;
    struct weft_process *p;
    uint8_t *data = NULL;
    *out = NULL;
    int rc = base_take_struct(&spec, sizeof spec, given, offsetof(weft_spawn_spec, terminal_rows), "weft_spawn_spec");
    if (!rc)
        rc = gateway_block_write(&spec, &r, &data);
    if (rc)
        return rc;
    rc = put_data(g, &r, data);
    if (!rc)
        rc = handle_new(g, &r, false, &p);
    if (rc) {
        weft_free(w, r.data);
        free(data);
        return rc;
    }
    p->asked = true;
    rc = gateway_ask(g,
                     &(struct gateway_question){.record = &r,
                                                .data = data,
                                                .tell = spawn_told,
                                                .late = gateway_process_late,
                                                .arg = p,
                                                .op = op,
                                                .owned = r.data,
                                                .post = post},
                     &p->ask);
    free(data);
    if (rc) {
        weft_free(w, r.data);
        handle_forget(p);
        return rc;
    }
    *out = p;
    return 0;
}

int weft_spawn_start(weft_node *w, uint32_t node, const weft_spawn_spec *spec, weft_process **out, weft_op *op)
{
    return spawn_start(w, node, spec, out, op, true);
}

bool handle_has_started(void *arg)
{
    struct weft_process *p = arg;
    base_spin_lock(&p->g->lock);
    bool started = p->state != HANDLE_STARTING;
    base_spin_unlock(&p->g->lock);
    return started;
}

int handle_error(struct weft_process *p)
{
    const weft_request r = {.service = WEFT_SERVICE_PROCESS, .node = p->node};
    return gateway_ask_status(p->g, &r, p->error, p->text);
}

int weft_spawn(weft_node *w, uint32_t node, const weft_spawn_spec *spec, weft_process **out, int64_t timeout_ns)
{
    weft_op op;
    *out = NULL;
    if (fab_in_handler())
        return base_fail(-EDEADLK, "weft_spawn(): a handler must not wait; call weft_spawn_start(), which does not wait");
    int64_t deadline = fab_timeout(w, timeout_ns), before = fab_limit(deadline);
    struct weft_process *p;
    int rc = spawn_start(w, node, spec, &p, &op, false);
    fab_limit(before);
    if (rc)
        return rc;
    rc = fab_wait_asleep(w, handle_has_started, p, deadline);
    if (rc == -ETIMEDOUT)
        rc = base_fail(rc, "node %u has not started '%s' before the deadline, so the request is cancelled; try again, or allow more time",
                       node, spec->program);
    else if (!rc)
        rc = weft_process_pid(p) == 0 ? handle_error(p) : 0;
    if (rc) {
        weft_process_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

uint32_t weft_process_node(const weft_process *p)
{
    return p->node;
}

uint32_t weft_process_pid(const weft_process *p)
{
    base_spin_lock(&p->g->lock);
    uint32_t pid = p->pid;
    base_spin_unlock(&p->g->lock);
    return pid;
}

void gateway_process_notice(weft_process *p, gateway_notice *notice, void *arg)
{
    base_spin_lock(&p->g->lock);
    p->notice = notice;
    p->notice_arg = arg;
    base_spin_unlock(&p->g->lock);
}

/* --- users: a handle cannot be closed while a thread waits in a call for it --- */

void handle_use(struct weft_process *p, int users)
{
    base_spin_lock(&p->g->lock);
    p->users += (uint32_t)users;
    base_spin_unlock(&p->g->lock);
}

int handle_wait(struct weft_process *p, fab_ready_fn ready, void *arg, int64_t deadline)
{
    handle_use(p, 1);
    int rc = fab_wait(p->g->w, ready, arg, deadline);
    handle_use(p, -1);
    return rc;
}

/* The deadline of a wait for a process. Without a time-out and WEFT_DEADLINE, the wait lasts as long as the server is alive. */
int64_t handle_until(const struct weft_process *p, int64_t timeout_ns)
{
    return timeout_ns < 0 && !p->g->w->options.bounded ? INT64_MAX : fab_timeout(p->g->w, timeout_ns);
}

bool handle_is_over(void *arg)
{
    struct weft_process *p = arg;
    base_spin_lock(&p->g->lock);
    bool over = p->state == HANDLE_OVER;
    base_spin_unlock(&p->g->lock);
    return over;
}

int weft_process_wait(weft_process *p, weft_exit *out, size_t bytes, int64_t timeout_ns)
{
    handle_use(p, 1);
    int rc = fab_wait_asleep(p->g->w, handle_is_over, p, handle_until(p, timeout_ns));
    handle_use(p, -1);
    if (rc == -ETIMEDOUT)
        return base_fail(rc, "process %u on node %u has not ended before the deadline; wait again, or allow more time", p->pid, p->node);
    if (!rc)
        rc = handle_error(p);
    if (!rc && out)
        base_give_struct(out, bytes, &p->exit, sizeof p->exit);
    return rc;
}

int weft_process_wait_start(weft_process *p, weft_op *op)
{
    struct handle_wait *one = malloc(sizeof *one);
    if (!one)
        return base_fail(-ENOMEM, "no memory for the request that waits for a process" BASE_MEMORY_HINT);
    *one = (struct handle_wait){.op = op};
    fab_pending(op, p->node);
    base_spin_lock(&p->g->lock);
    bool over = p->state == HANDLE_OVER;
    if (!over) {
        one->next = p->waits;
        p->waits = one;
    }
    base_spin_unlock(&p->g->lock);
    if (over) {
        free(one);
        fab_complete(op, p->error);
        return p->error ? handle_error(p) : 0;
    }
    return 0;
}

/* --- the end --- */

static void cancel_ops(struct weft_process *p)
{
    for (struct handle_wait *one; (one = p->waits);) {
        p->waits = one->next;
        fab_complete(one->op, -ECANCELED);
        free(one);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (p->reads[i].op)
            fab_complete(p->reads[i].op, -ECANCELED);
        p->reads[i].op = NULL;
    }
}

int weft_process_close(weft_process *p)
{
    if (!p)
        return 0;
    struct gateway *g = p->g;
    base_spin_lock(&g->lock);
    bool busy = p->users != 0, starts = p->state == HANDLE_STARTING;
    bool input_over = !p->wants_in || (p->in ? p->in->ended : p->unread);
    bool there =
        p->there && !(p->state == HANDLE_OVER && input_over && (!p->out[0] || p->out[0]->ended) && (!p->out[1] || p->out[1]->ended));
    if (!busy)
        cancel_ops(p);
    base_spin_unlock(&g->lock);
    if (busy)
        return base_fail(
            -EBUSY,
            "the handle of process %u on node %u cannot be closed while a thread waits in a call with it: let that call return first",
            p->pid, p->node);
    if (starts && !gateway_ask_leave(g, p->ask, -ECANCELED)) /* the answer arrived before the request was cancelled */
        there = p->there != 0;
    if (there && fab_alive(g->w, p->node))
        close_there(g, p->node, p->there);
    handle_close(p);
    fab_wake_here(g->w);
    return 0;
}

bool gateway_handle_cancel(struct gateway *g, const weft_op *op)
{
    weft_op *found = NULL;
    uint32_t at = 0;
    base_spin_lock(&g->lock);
    for (struct weft_process *p; !found && (p = gateway_table_next(&g->processes, &at));) {
        for (struct handle_wait **one = &p->waits; *one && !found; one = &(*one)->next)
            if ((*one)->op == op) {
                struct handle_wait *gone = *one;
                found = gone->op;
                *one = gone->next;
                free(gone);
                break;
            }
        for (unsigned i = 0; i < 2 && !found; i++)
            if (p->reads[i].op == op) {
                found = p->reads[i].op;
                p->reads[i].op = NULL;
                p->out[i]->busy = false;
            }
    }
    if (found)
        fab_complete(found, -ECANCELED);
    base_spin_unlock(&g->lock);
    return found;
}

/* --- messages, deaths --- */

void gateway_handle_ended(struct gateway *g, uint32_t from, const struct gateway_message *m, const void *payload, size_t len)
{
    struct gateway_end e;
    if (len != sizeof e)
        return;
    memcpy(&e, payload, sizeof e);
    base_spin_lock(&g->lock);
    struct weft_process *p = gateway_table_find(&g->processes, m->to);
    if (p && p->node == from && p->state == HANDLE_RUNS) {
        p->exit = (weft_exit){.status = e.status,
                              .signal = base_signal_in(e.signal),
                              .timed_out = e.timed_out != 0,
                              .user_ns = (int64_t)e.user_ns,
                              .system_ns = (int64_t)e.system_ns,
                              .memory_bytes = e.memory_bytes};
        handle_over(p, 0);
    }
    base_spin_unlock(&g->lock);
}

void gateway_handles_gone(struct gateway *g, uint32_t node)
{
    uint32_t at = 0;
    base_spin_lock(&g->lock);
    for (struct weft_process *p; (p = gateway_table_next(&g->processes, &at));) {
        if (p->node != node)
            continue;
        if (p->state == HANDLE_RUNS)
            handle_over(p, -ECONNRESET);
        handle_answered(p, 0); /* its streams have ended */
    }
    base_spin_unlock(&g->lock);
}

void gateway_handles_tick(struct gateway *g)
{
    base_spin_lock(&g->lock);
    struct weft_process *unused = g->unused;
    g->unused = NULL;
    base_spin_unlock(&g->lock);
    for (struct weft_process *p; (p = unused);) {
        unused = p->next_unused;
        handle_free(p);
    }
}

void gateway_handles_free(struct gateway *g)
{
    uint32_t at = 0;
    for (struct weft_process *p; (p = g->unused);) {
        g->unused = p->next_unused;
        free(p->text);
        free(p);
    }
    for (struct weft_process *p; (p = gateway_table_next(&g->processes, &at));) {
        cancel_ops(p);
        free(p->text);
        free(p);
    }
    gateway_table_free(&g->processes);
}
