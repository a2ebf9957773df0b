/* SPDX-License-Identifier: MIT
 *
 * Prints the output of a job, for `weft exec` and `weft logs`.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/exec.h"
#include "cli/standing.h"

int exec_print_open(struct exec_print *p, const char *sub, enum exec_form form)
{
    *p = (struct exec_print){.sub = sub, .form = form, .out = {.fd = STDOUT_FILENO}, .err = {.fd = STDERR_FILENO}};
    p->place = calloc(WEFT_MAX_NUMBERS, sizeof *p->place);
    /* not cleared, because a short command should not touch all of this memory */
    p->nodes = malloc(WEFT_MAX_NODES * sizeof(struct exec_node *));
    if (!p->place || !p->nodes)
        return base_fail(-ENOMEM, "no memory for the buffers of the output" BASE_MEMORY_HINT);
    return 0;
}

/* The entry of a node; a node gets its entry at its first frame. Returns NULL if there are too many nodes, or if there is no memory. */
static struct exec_node *entry_of(struct exec_print *p, uint32_t node)
{
    if (p->place[node])
        return p->nodes[p->place[node] - 1u];
    struct exec_node *n = p->count < WEFT_MAX_NODES ? calloc(1, sizeof *n) : NULL;
    if (!n)
        return NULL;
    p->nodes[p->count++] = n;
    p->place[node] = (uint16_t)p->count;
    snprintf(n->tag, sizeof n->tag, "%u", node);
    for (uint32_t i = 0; i < 2; i++)
        n->in[i] = (struct relay_in){.fd = -1, .node = node, .to = i ? &p->err : &p->out, .label = n->tag, .bare = p->form != EXEC_TAGGED};
    return n;
}

static void exec_print_host(struct exec_print *p, struct exec_node *n, const char *host)
{
    bool shared = false;
    snprintf(n->host, sizeof n->host, "%s", host);
    for (uint32_t i = 0; i < p->count; i++) {
        struct exec_node *other = p->nodes[i];
        if (other == n || strcmp(other->host, n->host) != 0)
            continue;
        snprintf(other->tag, sizeof other->tag, "%s:%u", other->host, other->in[0].node);
        shared = true;
    }
    if (shared)
        snprintf(n->tag, sizeof n->tag, "%s:%u", n->host, n->in[0].node);
    else
        snprintf(n->tag, sizeof n->tag, "%s", n->host);
}

void exec_print_frame(struct exec_print *p, const struct control_frame *f, const char *payload)
{
    struct exec_node *n = f->node < WEFT_MAX_NUMBERS ? entry_of(p, f->node) : NULL;
    if (!n)
        return;
    if (f->type == CONTROL_STARTED)
        exec_print_host(p, n, payload);
    if (p->form == EXEC_JSON) {
        exec_print_json(p, f, n->host, payload);
    } else if (f->type == CONTROL_ERROR) {
        char line[2048];
        int len = snprintf(line, sizeof line, "weft %s: %s\n", p->sub, payload);
        relay_say(&p->err, line, len < (int)sizeof line ? (size_t)len : sizeof line - 1);
    } else if (f->type == CONTROL_OUT && p->form == EXEC_AS_IT_IS && p->count == 1) {
        /* `count` is checked, too, because a command for one host can run on several nodes */
        relay_say(f->number == 2 ? &p->err : &p->out, payload, f->bytes);
    } else if (f->type == CONTROL_OUT) {
        relay_feed(&n->in[f->number == 2], payload, f->bytes);
    }
}

bool exec_print_full(const struct exec_print *p)
{
    return relay_waiting(&p->out) >= RELAY_QUEUE_MAX || relay_waiting(&p->err) >= RELAY_QUEUE_MAX;
}

bool exec_print_drop(struct exec_print *p)
{
    bool waits = relay_waiting(&p->out) || relay_waiting(&p->err);
    for (int i = 0; waits && i < 2; i++) {
        struct relay_out *o = i ? &p->err : &p->out;
        o->broken = true;
        o->start = o->end = 0;
    }
    return waits;
}

void exec_print_write(struct exec_print *p)
{
    relay_write(&p->out);
    relay_write(&p->err);
}

int exec_print_close(struct exec_print *p)
{
    int status = 0;
    for (uint32_t i = 0; i < 2 * p->count; i++)
        relay_close(&p->nodes[i / 2]->in[i % 2]);
    for (int i = 0; i < 2; i++) {
        struct relay_out *o = i ? &p->err : &p->out;
        while (relay_waiting(o)) {
            struct pollfd f = {.fd = o->fd, .events = POLLOUT};
            if (poll(&f, 1, -1) < 0 && errno == EINTR)
                continue;
            relay_write(o);
        }
        if (o->error && !status)
            status =
                o->error == EPIPE
                    ? 128 + SIGPIPE
                    : (cli_error(p->sub, "cannot write to standard %s: %s", i ? "error" : "output", base_strerror(o->error)), JOBS_FAILED);
        relay_out_free(o);
    }
    for (uint32_t i = 0; i < p->count; i++)
        free(p->nodes[i]);
    free(p->nodes);
    free(p->place);
    return status;
}

void exec_print_wait(struct exec_print *p)
{
    exec_print_write(p);
    while (exec_print_full(p) && !p->out.broken && !p->err.broken) {
        struct pollfd f[2] = {{.fd = relay_waiting(&p->out) ? p->out.fd : -1, .events = POLLOUT},
                              {.fd = relay_waiting(&p->err) ? p->err.fd : -1, .events = POLLOUT}};
        poll(f, 2, -1);
        exec_print_write(p);
    }
}
