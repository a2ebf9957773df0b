/* SPDX-License-Identifier: MIT
 *
 * What the asker sends to a running process: signals, and the size of its terminal.
 */
#include "gateway/handle.h"

#include <signal.h>

static weft_request request_to(const weft_process *p, uint16_t kind, uint64_t arg, uint64_t arg1)
{
    return (weft_request){.version = WEFT_REQUEST_VERSION,
                          .service = WEFT_SERVICE_PROCESS,
                          .kind = kind,
                          .node = p->node,
                          .handle = p->there,
                          .arg = {arg, arg1}};
}

/* Sends a request about a running process. `what` is the first part of the error text, such as "no signal was sent". */
static int ask_of_running(weft_process *p, uint16_t kind, uint64_t arg, uint64_t arg1, const char *what, int64_t timeout_ns)
{
    int64_t deadline = fab_timeout(p->g->w, timeout_ns);
    int rc = handle_wait(p, handle_has_started, p, deadline);
    if (rc == -ETIMEDOUT)
        return base_fail(rc, "%s: node %u had not started the process at the deadline; try again, or allow more time", what, p->node);
    if (rc)
        return rc;
    if (handle_is_over(p))
        return p->error ? handle_error(p) : base_fail(-ESRCH, "%s: process %u on node %u has ended", what, p->pid, p->node);
    const weft_request r = request_to(p, kind, arg, arg1);
    struct gateway_question q = {.record = &r};
    int64_t left = deadline - base_now_ns();
    handle_use(p, 1);
    rc = gateway_ask_wait(p->g, &q, left > 0 ? left : 0, NULL, NULL, NULL);
    handle_use(p, -1);
    return rc == -ESRCH ? base_fail(rc, "%s: process %u on node %u ended before the request arrived", what, p->pid, p->node) : rc;
}

int weft_process_signal(weft_process *p, int signal, int64_t timeout_ns)
{
    if (signal < 0 || signal >= NSIG)
        return base_fail(-EINVAL, "weft_process_signal(): there is no signal %d; expected 1 to 64", signal);
    return ask_of_running(p, WEFT_PROCESS_SIGNAL, (uint64_t)base_signal_out(signal), 0, "no signal was sent", timeout_ns);
}

int weft_process_window(weft_process *p, uint16_t rows, uint16_t columns, int64_t timeout_ns)
{
    if (!p->terminal)
        return base_fail(-EINVAL, "process %u on node %u has no terminal whose size could be set: start it with WEFT_SPAWN_TERMINAL",
                         p->pid, p->node);
    return ask_of_running(p, WEFT_PROCESS_WINDOW, rows, columns, "the terminal's size was not set", timeout_ns);
}

static void tell_nobody(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    (void)g, (void)a, (void)r;
}

int gateway_process_signal(weft_process *p, int signal, weft_op *op)
{
    if (!handle_has_started(p))
        return -EINPROGRESS;
    if (handle_is_over(p))
        return -ESRCH;
    const weft_request r = request_to(p, WEFT_PROCESS_SIGNAL, (uint64_t)base_signal_out(signal), 0);
    return gateway_ask(p->g, &(struct gateway_question){.record = &r, .tell = tell_nobody, .op = op, .post = true}, NULL);
}
