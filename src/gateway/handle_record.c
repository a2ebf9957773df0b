/* SPDX-License-Identifier: MIT
 *
 * Requests by record (weft/request.h) about the asker's processes. A record can name only processes that a record has started.
 */
#include <string.h>

#include "gateway/handle.h"

/* Returns the process that the record names. Returns NULL if there is no such process, or if it was not started by a record. The caller
 * holds gateway.lock. */
static struct weft_process *of_record(struct gateway *g, const weft_request *r)
{
    struct weft_process *p = gateway_table_find(&g->processes, r->handle);
    return p && p->of_record && !p->closed ? p : NULL;
}

void gateway_process_told(struct gateway *g, weft_request *r, uint64_t arg, const struct gateway_result *result, void *data)
{
    (void)data;
    struct weft_process *p = r->kind == WEFT_PROCESS_SPAWN ? gateway_table_find(&g->processes, arg) : NULL;
    if (!p)
        return;
    p->closed = result->status != 0;
    r->result[0] = p->id;
    handle_told(p, result);
    r->result[1] = p->pid;
}

static int record_wait(const struct weft_process *p, weft_request *r)
{
    if (p->state != HANDLE_OVER)
        return -EAGAIN;
    r->result[0] = (uint64_t)p->exit.status;
    r->result[1] = (uint64_t)base_signal_out(p->exit.signal);
    r->result[2] = p->exit.timed_out;
    r->result[3] = (uint64_t)p->exit.user_ns;
    r->result[4] = (uint64_t)p->exit.system_ns;
    r->result[5] = p->exit.memory_bytes;
    return p->error;
}

static int record_output(struct weft_process *p, weft_request *r, struct gateway_credit *due)
{
    struct gateway_stream *s = r->arg[0] <= 2 ? handle_output(p, (uint32_t)r->arg[0]) : NULL;
    const uint8_t *at;
    if (!s)
        return -EINVAL;
    uint64_t n = gateway_stream_next(s, &at);
    if (r->kind == WEFT_PROCESS_TAKE) {
        if (r->arg[1] > s->last - s->first)
            return -EINVAL;
        gateway_stream_take(s, r->arg[1], due);
        return 0;
    }
    r->result[0] = n ? s->ring + (s->first & (s->bytes - 1)) : 0;
    r->result[1] = n;
    return n ? 0 : s->ended ? s->status : -EAGAIN;
}

static int record_write(struct weft_process *p, weft_request *r, const void *data)
{
    int rc = handle_input(p);
    if (rc || !r->data_bytes)
        return rc == 1 ? -EAGAIN : rc ? rc : weft_process_end_input(p);
    size_t n = handle_write(p->in, data, r->data_bytes, &rc);
    r->result[0] = n;
    return rc ? rc : n ? 0 : handle_has_room(p->in) ? -EPIPE : -EAGAIN;
}

/* Ends what `record_busy` began. */
static void record_over(struct gateway *g, struct weft_process *p)
{
    base_spin_lock(&g->lock);
    p->record_busy = false;
    base_spin_unlock(&g->lock);
}

int gateway_process_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg)
{
    struct gateway_credit due = {0};
    struct weft_process *p;
    int rc;
    memset(r->result, 0, sizeof r->result);
    if (r->kind == WEFT_PROCESS_SPAWN) {
        rc = handle_new(g, r, true, &p);
        if (rc)
            return rc;
        p->asked = true; /* told() is called for every answer */
        *arg = p->id;
        return 1;
    }
    base_spin_lock(&g->lock);
    p = of_record(g, r);
    switch (p ? r->kind : 0) {
    case 0: rc = -ENOENT; break;
    case WEFT_PROCESS_WAIT: rc = record_wait(p, r); break;
    case WEFT_PROCESS_OUTPUT:
    case WEFT_PROCESS_TAKE: rc = record_output(p, r, &due); break;
    case WEFT_PROCESS_SIGNAL:
    case WEFT_PROCESS_WINDOW:
        rc = p->state == HANDLE_STARTING ? -EAGAIN : p->state == HANDLE_OVER ? -ESRCH : 1;
        r->node = p->node;
        r->handle = p->there;
        break;
    case WEFT_PROCESS_WRITE:
    case WEFT_PROCESS_CLOSE: /* both run later, without the lock; record_busy lets only one run at a time */
        rc = !p->record_busy ? 1 : r->kind == WEFT_PROCESS_WRITE ? -EAGAIN : -EBUSY;
        p->record_busy = true;
        break;
    default: rc = -EINVAL; break;
    }
    base_spin_unlock(&g->lock);
    gateway_credit_give(g, &due);
    if (rc == 1 && r->kind == WEFT_PROCESS_WRITE) {
        rc = record_write(p, r, data);
        record_over(g, p);
    } else if (rc == 1 && r->kind == WEFT_PROCESS_CLOSE) {
        rc = weft_process_close(p);
        if (rc)
            record_over(g, p);
    }
    return rc;
}
