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

#define TAG_BYTES 80u

int exec_print_open(struct exec_print *p, const char *sub, enum exec_form form)
{
    *p = (struct exec_print){.sub = sub, .form = form, .out = {.fd = STDOUT_FILENO}, .err = {.fd = STDERR_FILENO}};
    p->place = calloc(WEFT_MAX_NUMBERS, sizeof *p->place);
    p->in = calloc(2 * (size_t)WEFT_MAX_NODES, sizeof *p->in);
    p->hosts = calloc(WEFT_MAX_NODES, sizeof *p->hosts);
    p->tags = calloc(WEFT_MAX_NODES, TAG_BYTES);
    if (!p->place || !p->in || !p->hosts || !p->tags)
        return base_fail(-ENOMEM, "no memory for the buffers of the output");
    return 0;
}

/* The index of a node in `hosts` and `tags`; a node gets one at its first frame. WEFT_MAX_NODES: there are too many. */
static uint32_t place_of(struct exec_print *p, uint32_t node)
{
    if (p->place[node])
        return p->place[node] - 1u;
    if (p->count == WEFT_MAX_NODES)
        return WEFT_MAX_NODES;
    uint32_t at = p->count++;
    char *tag = p->tags + (size_t)at * TAG_BYTES;
    p->place[node] = (uint16_t)(at + 1);
    snprintf(tag, TAG_BYTES, "%u", node);
    for (uint32_t i = 2 * at; i < 2 * at + 2; i++)
        p->in[i] = (struct relay_in){.fd = -1, .node = node, .to = i % 2 ? &p->err : &p->out, .label = tag, .bare = p->form != EXEC_TAGGED};
    return at;
}

static void exec_print_host(struct exec_print *p, uint32_t at, const char *host)
{
    bool shared = false;
    snprintf(p->hosts[at], sizeof p->hosts[at], "%s", host);
    for (uint32_t i = 0; i < p->count; i++) {
        if (i == at || strcmp(p->hosts[i], p->hosts[at]) != 0)
            continue;
        snprintf(p->tags + (size_t)i * TAG_BYTES, TAG_BYTES, "%s:%u", p->hosts[i], p->in[2 * i].node);
        shared = true;
    }
    if (shared)
        snprintf(p->tags + (size_t)at * TAG_BYTES, TAG_BYTES, "%s:%u", p->hosts[at], p->in[2 * at].node);
    else
        snprintf(p->tags + (size_t)at * TAG_BYTES, TAG_BYTES, "%s", p->hosts[at]);
}

void exec_print_frame(struct exec_print *p, const struct control_frame *f, const char *payload)
{
    uint32_t at = f->node < WEFT_MAX_NUMBERS ? place_of(p, f->node) : WEFT_MAX_NODES;
    if (at == WEFT_MAX_NODES)
        return;
    if (f->type == CONTROL_STARTED)
        exec_print_host(p, at, payload);
    if (p->form == EXEC_JSON) {
        p->event(p, f, p->hosts[at], payload);
    } else if (f->type == CONTROL_ERROR) {
        char line[2048];
        int n = snprintf(line, sizeof line, "weft %s: %s\n", p->sub, payload);
        relay_say(&p->err, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
    } else if (f->type == CONTROL_OUT && p->form == EXEC_AS_IT_IS) {
        relay_say(f->number == 2 ? &p->err : &p->out, payload, f->bytes);
    } else if (f->type == CONTROL_OUT) {
        relay_feed(&p->in[2 * at + (f->number == 2)], payload, f->bytes);
    }
}

bool exec_print_full(const struct exec_print *p)
{
    return relay_waiting(&p->out) >= RELAY_QUEUE_MAX || relay_waiting(&p->err) >= RELAY_QUEUE_MAX;
}

void exec_print_write(struct exec_print *p)
{
    relay_write(&p->out);
    relay_write(&p->err);
}

int exec_print_close(struct exec_print *p)
{
    int status = 0;
    for (uint32_t i = 0; p->in && i < 2 * p->count; i++)
        relay_close(&p->in[i]);
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
    free(p->place);
    free(p->in);
    free(p->hosts);
    free(p->tags);
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
