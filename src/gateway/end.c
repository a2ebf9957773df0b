/* SPDX-License-Identifier: MIT
 *
 * How a process of the process service ends. If it ends by itself, its group is killed, but not processes that have left the group, such as
 * daemons. The guardian (groups.c) ends the process with all its descendants if the asker leaves or dies, if the asker sends a signal that
 * ends programs, if the time of the process is over, or if this node closes.
 */
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "base/process.h"
#include "gateway/run.h"

#define LOOK_NS WEFT_MS

int run_signal(struct run *r, int signal)
{
    if (r->ended)
        return -ESRCH;
    if (signal == SIGKILL) {
        run_stop(r);
        return 0;
    }
    r->signalled = r->signalled || signal == SIGHUP || signal == SIGINT || signal == SIGQUIT || signal == SIGTERM;
    if (r->terminal && r->out[0].fd >= 0)
        pty_signal(r->out[0].fd, r->pid, signal);
    return kill(-r->pid, signal) ? -errno : 0;
}

static void tell_end(struct run *r, int how, const struct rusage *use)
{
    struct gateway_end e = {
        .status = WIFEXITED(how) ? WEXITSTATUS(how) : 0,
        .signal = WIFSIGNALED(how) ? base_signal_out(WTERMSIG(how)) : 0,
        .timed_out = r->timed_out,
        .user_ns = (uint64_t)use->ru_utime.tv_sec * WEFT_SECOND + (uint64_t)use->ru_utime.tv_usec * WEFT_US,
        .system_ns = (uint64_t)use->ru_stime.tv_sec * WEFT_SECOND + (uint64_t)use->ru_stime.tv_usec * WEFT_US,
#if defined(__APPLE__)
        .memory_bytes = (uint64_t)use->ru_maxrss,
#else
        .memory_bytes = (uint64_t)use->ru_maxrss * 1024,
#endif
    };
    struct gateway_message m = {.type = GATEWAY_END, .to = r->there};
    (void)gateway_post(gateway_of(r->server), r->node, &m, &e, sizeof e);
}

/* Kills the process group before waiting for the process: after that wait, the system may give the group's number to another group. */
void run_reap_now(struct run *r)
{
    struct rusage use;
    memset(&use, 0, sizeof use);
    kill(-r->pid, SIGKILL);
    int how = base_process_reap_usage(r->pid, &use);
    r->ended = true;
    atomic_store_explicit(&r->place->number, 0, memory_order_seq_cst);
    r->all->running--;
    if (!r->left) /* sent before everything else, because the asker waits for this message */
        tell_end(r, how, &use);
    gateway_unwatch(gateway_server_watches(r->server), &r->end);
    run_input_end(r);
    if (!r->all->running && run_over(r) && !r->left)
        gateway_server_linger(r->server);
}

void run_look(struct run *r, int64_t now)
{
    if (r->ended)
        return;
    bool late = r->stopped && now > r->stop_by;
    if (late)
        kill(-r->pid, SIGKILL);
    if (!base_process_ended(r->pid, NULL))
        return;
    if (r->signalled)
        run_stop(r);
    if (r->stopped && !late && !gateway_groups_ended(gateway_server_groups(r->server), r->place)) {
        /* from here on run_tick() checks from time to time whether the descendants have ended */
        gateway_unwatch(gateway_server_watches(r->server), &r->end);
        return;
    }
    run_reap_now(r);
}

void run_stop_all(struct processes *all)
{
    int64_t by = base_deadline(RUN_STOP_NS);
    for (struct run *r = all->runs; r; r = r->next) {
        r->left = true;
        run_stop(r);
    }
    for (struct run *r = all->runs; r; r = r->next)
        while (!r->ended && !gateway_groups_ended(gateway_server_groups(r->server), r->place) && base_now_ns() < by)
            base_sleep_ns(LOOK_NS);
}
