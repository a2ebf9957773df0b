/* SPDX-License-Identifier: MIT
 *
 * The launcher: one thread that waits in poll() for signals (through a pipe), output and time-outs.
 *
 * Each node leads a process group, so that the processes that it has started can be killed with it. A group is killed before its dead
 * leader is reaped, because after that another process group could get the same number.
 */
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/command.h"
#include "cli/launch.h"
#include "cli/launcher.h"
#include "cli/ssh.h"
#include "cluster/cluster.h"
#include "weft/types.h"

static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD, SIGTSTP, SIGCONT, SIGPIPE};
#define CAUGHT (sizeof caught / sizeof caught[0])
static int signal_pipe[2] = {-1, -1}; /* global, because a signal handler cannot be given an argument */

/* --- messages --- */

/* List the running nodes, as in "node 3", "nodes 1 and 3", "nodes 0, 1 and 4". */
static const char *running_names(const struct launcher *s, char *buf, size_t len)
{
    size_t n = (size_t)snprintf(buf, len, s->running == 1 ? "node" : "nodes");
    uint32_t left = s->running;
    for (uint32_t i = 0; i < s->started && n < len; i++) {
        if (!s->nodes[i].running)
            continue;
        const char *before = left == s->running ? " " : left == 1 ? " and " : ", ";
        left--;
        n += (size_t)snprintf(buf + n, len - n, "%s%u", before, i);
    }
    return buf;
}

/* --- signals --- */

static void on_launch_signal(int sig)
{
    int error = errno;
    uint8_t byte = (uint8_t)sig;
    ssize_t n = write(signal_pipe[1], &byte, 1); /* fails if the pipe is full; then the main loop has signals to handle anyway */
    (void)n;
    errno = error;
}

static int catch_signals(struct launcher *s)
{
    int rc = base_pipe(signal_pipe, O_NONBLOCK);
    if (rc)
        return rc;
    struct sigaction act = {.sa_handler = on_launch_signal, .sa_flags = SA_RESTART | SA_NOCLDSTOP};
    sigfillset(&act.sa_mask);
    base_dispositions_save(&s->before, caught, CAUGHT);
    /* Do not catch signals that are ignored, such as SIGHUP under nohup and SIGINT in a shell's background. */
    for (size_t i = 0; i < CAUGHT; i++)
        if (caught[i] != SIGPIPE && (caught[i] == SIGCHLD || caught[i] == SIGCONT || s->before.action[i].sa_handler != SIG_IGN))
            sigaction(caught[i], &act, NULL);
    signal(SIGPIPE, SIG_IGN);
    return 0;
}

static void signal_nodes(struct launcher *s, int sig)
{
    for (uint32_t i = 0; i < s->started; i++) {
        struct node *node = &s->nodes[i];
        uint8_t byte = (uint8_t)base_signal_out(sig);
        if (!node->running)
            continue;
        if (!launch_machine(s, i) || (sig == SIGKILL && node->control < 0)) {
            kill(-node->pid, sig);
        } else if (node->control >= 0) {
            /* fails if the pipe is full because ssh hangs; handle_time() will kill ssh */
            ssize_t n = write(node->control, &byte, 1);
            (void)n;
            if (sig == SIGKILL) { /* closing the pipe makes the other machine end its node; handle_time() kills ssh later */
                close(node->control);
                node->control = -1;
            }
        }
    }
}

void launch_end_nodes(struct launcher *s, int sig)
{
    signal_nodes(s, sig);
    signal_nodes(s, SIGCONT); /* a stopped node does not handle signals */
    if (!s->ending) {
        s->ending = true;
        s->grace = base_deadline(LAUNCH_GRACE_NS);
    }
}

static void kill_nodes(struct launcher *s)
{
    signal_nodes(s, SIGKILL);
    s->ending = s->killed = true;
    s->grace = base_deadline(LAUNCH_GRACE_NS);
    s->ssh_grace = s->l->ssh ? base_deadline(LAUNCH_SSH_GRACE_NS) : INT64_MAX;
}

/* --- ending --- */

static void node_ended(struct launcher *s, uint32_t rank, int how)
{
    char name[32];
    struct node *node = &s->nodes[rank];
    int status = base_process_status(how);
    const char *machine = launch_machine(s, rank);
    char where[320];
    if (machine && WIFEXITED(how) && status > 128 && status != SSH_FAILED)
        status = 128 + base_signal_in(status - 128); /* ssh_serve() */
    node->running = false;
    s->running--;
    launch_close(&node->control);
    /* the node ended because the whole cluster is ending */
    if (s->l->revive && status == 0 && !s->ending)
        launch_end_nodes(s, SIGTERM);
    if (s->l->revive && (s->ending || revive_ended(s, rank, how)))
        return;
    bool leader = s->l->lead && rank == 0, ending = s->ending;
    if (leader && !ending) {
        /* Let the other nodes leave by themselves, so that they free their devices. */
        s->ending = true;
        s->grace = base_deadline(LAUNCH_GRACE_NS);
        if (status)
            launch_end_nodes(s, SIGTERM);
    }
    if (status == 0)
        return;
    if (machine)
        snprintf(where, sizeof where, "on %s%s", s->l->cluster ? "standing node " : "", machine);
    else
        snprintf(where, sizeof where, "pid %d", (int)node->pid);
    /* Do not report nodes that the launcher has ended, or that ended because nobody reads the output. */
    bool by_us = (ending && (WIFSIGNALED(how) || (machine && status > 128))) ||
                 (WIFSIGNALED(how) && WTERMSIG(how) == SIGPIPE && (leader || s->out.broken || s->err.broken)) ||
                 (s->l->lead && !leader && (ending || status == 128 + SIGTERM)); /* nodes end in this way if the leader has ended */
    if (machine && s->l->cluster && status == SSH_FAILED && !by_us)
        launch_say(s, "node %u could not be run by node %s of the standing cluster '%s': see the message of weft exec", rank, machine,
                   s->l->cluster);
    else if (machine && status == SSH_FAILED && !by_us)
        launch_say(s, "node %u (%s): ssh failed: see its message; it must work without a password (try `ssh %s true`)", rank, where,
                   machine);
    else if (machine && status > 128 && !by_us)
        launch_say(s, "node %u (%s) was killed by %s", rank, where, launch_signal_name(status - 128, name, sizeof name));
    else if (WIFSIGNALED(how) && !by_us)
        launch_say(s, "node %u (%s) was killed by %s%s", rank, where, launch_signal_name(WTERMSIG(how), name, sizeof name),
                   WCOREDUMP(how) ? " (core dumped)" : "");
    else if (!by_us && !leader) /* the leader has printed its own error */
        launch_say(s, "node %u (%s) exited with %d", rank, where, status);
    if (s->l->lead && !leader) {
        if (!ending && s->nodes[0].running)
            kill(s->nodes[0].pid, LAUNCH_TOLD);
        return;
    }
    if (s->status)
        return;
    s->status = by_us && s->interrupted ? 128 + s->interrupted : status;
    if (s->l->kill_on_failure && !s->ending && s->running) {
        char who[256];
        launch_say(s, "ending %s", running_names(s, who, sizeof who));
        launch_end_nodes(s, SIGTERM);
    }
}

static void reap(struct launcher *s)
{
    for (uint32_t i = 0; i < s->started; i++) {
        struct node *node = &s->nodes[i];
        if (!node->running || !base_process_ended(node->pid, NULL))
            continue;
        kill(-node->pid, SIGKILL); /* kill the group before the keeper (keeper.c) forgets it */
        keeper_drop(&s->keeper, node->pid);
        int how = base_process_reap(node->pid);
        node_ended(s, i, how);
    }
}

/* Handle all pending signals. Returns false if the launcher must end at once. */
static bool handle_signals(struct launcher *s)
{
    uint8_t sigs[64];
    ssize_t n;
    bool stay = true;
    while ((n = read(signal_pipe[0], sigs, sizeof sigs)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            int sig = sigs[i];
            switch (sig) {
            case SIGCHLD: break; /* nothing to do: the main loop always calls reap() */
            case SIGTSTP:
                signal_nodes(s, SIGTSTP);
                raise(SIGSTOP);
                break;
            case SIGCONT:
            case SIGUSR1:
            case SIGUSR2: signal_nodes(s, sig); break;
            default: /* SIGINT, SIGTERM, SIGHUP, SIGQUIT */
                /* if no node runs, the launcher ends, and output that is not written is dropped */
                stay = stay && s->running + s->waiting > 0;
                if (s->interrupted && sig != SIGHUP) {
                    kill_nodes(s);
                    s->hurried = true;
                    break;
                }
                s->interrupted = s->interrupted ? s->interrupted : sig;
                launch_end_nodes(s, sig);
                break;
            }
        }
    }
    return stay;
}

/* Handle time-outs. Returns false if nodes have not ended after SIGKILL; then the launcher must end without them. */
static bool handle_time(struct launcher *s)
{
    char who[256];
    int64_t now = base_now_ns();
    if (s->running && now >= s->deadline && !s->timed_out) {
        launch_say(s, "timed out after %g s (--timeout): %s %s still running", (double)s->l->timeout_ns / 1e9,
                   running_names(s, who, sizeof who), s->running == 1 ? "was" : "were");
        s->timed_out = true;
        s->deadline = INT64_MAX;
        launch_end_nodes(s, SIGTERM);
    }
    if (s->running && now >= s->ssh_grace) { /* ssh has not ended: it is not connected yet, or its connection hangs */
        s->ssh_grace = INT64_MAX;
        signal_nodes(s, SIGKILL);
    }
    if (!s->running || !s->ending || now < s->grace)
        return true;
    running_names(s, who, sizeof who);
    if (s->killed) {
        launch_say(s, "%s did not end after SIGKILL, and %s left running (`ps` shows %s; a device or a network file system may keep %s)",
                   who, s->running == 1 ? "is" : "are", s->running == 1 ? "it" : "them", s->running == 1 ? "it" : "them");
        return false;
    }
    launch_say(s, "%s did not end within %d s of SIGTERM, and %s killed", who, (int)(LAUNCH_GRACE_NS / WEFT_SECOND),
               s->running == 1 ? "was" : "were");
    kill_nodes(s);
    return true;
}

/* If the first node leads and is stopped, report that the others wait for it. */
static void look_at_leader(struct launcher *s)
{
    const int64_t now = base_now_ns();
    if (!s->l->lead || !s->started || !s->nodes[0].running || s->ending || launch_machine(s, 0))
        return;
    const int pid = (int)s->nodes[0].pid;
    if (!base_process_stopped(pid)) {
        if (s->told_stopped && !s->l->draws) /* if the first node draws, the user sees that it goes on */
            launch_say(s, "node 0 (pid %d) on this host is continued: it was stopped for %d s", pid,
                       (int)((now - s->stopped) / WEFT_SECOND));
        s->told_stopped = false;
        s->stopped = 0;
        return;
    }
    s->stopped = s->stopped ? s->stopped : now;
    if (s->told_stopped || now - s->stopped < LAUNCH_STOPPED_NS)
        return;
    launch_say(s,
               "no answer for %d s from node 0 (pid %d) on this host, because it is stopped, and the other nodes wait for it; nodes of "
               "other hosts soon count it as dead (WEFT_LIVENESS); continue it (kill -CONT %d), or end this command by Ctrl-C",
               (int)((now - s->stopped) / WEFT_SECOND), pid, pid);
    s->told_stopped = true;
}

/* --- the loop --- */

/* If output could not be written, report that, and make the launch fail. But if the reader of the output has gone, as in `| head`, report
 * nothing, and end with the exit status of a process that SIGPIPE has killed. */
static void look_at_output(struct launcher *s)
{
    struct relay_out *outs[] = {&s->out, &s->err};
    for (int i = 0; i < 2; i++) {
        int error = outs[i]->error;
        if (!error)
            continue;
        outs[i]->error = 0; /* report it only once */
        if (error != EPIPE)
            launch_say(s, "cannot write to standard %s: %s", i ? "error" : "output", base_strerror(error));
        if (!s->status && !s->output_status)
            s->output_status = error == EPIPE ? 128 + SIGPIPE : 1;
    }
}

/* When the log file is full, begin a new one. If another launcher of the same cluster has begun a new file, write to that file. */
static void turn_log(const struct launcher *s)
{
    struct stat st, named;
    char old[4096];
    if (!s->l->log || fstat(STDOUT_FILENO, &st) || st.st_size < s->l->log_max)
        return;
    if (stat(s->l->log, &named) || (named.st_ino == st.st_ino && named.st_dev == st.st_dev)) {
        snprintf(old, sizeof old, "%s.1", s->l->log);
        rename(s->l->log, old);
    }
    int fd = open(s->l->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

static int poll_timeout(const struct launcher *s)
{
    int64_t until = s->running ? s->deadline : INT64_MAX;
    if (s->l->revive && (s->running || s->waiting))
        until = revive_due(s);
    if (s->running && s->ending && s->grace < until)
        until = s->grace;
    if (s->running && s->ssh_grace < until)
        until = s->ssh_grace;
    if (until == INT64_MAX)
        return s->running ? LAUNCH_LOOK_MS : -1;
    int64_t left = until - base_now_ns();
    return left <= 0 ? 0 : left >= LAUNCH_LOOK_MS * WEFT_MS ? LAUNCH_LOOK_MS : (int)(left / WEFT_MS) + 1;
}

/* Whether a node's output may be read: its destination must have room. If the destination is broken, closes the output. */
static bool may_read(struct relay_in *in)
{
    if (in->fd >= 0 && in->to->broken)
        relay_close(in);
    return in->fd >= 0 && relay_waiting(in->to) < RELAY_QUEUE_MAX;
}

/* After the end of all nodes, read the rest of their output: at most 1 MiB of each pipe, since a process that has left its node's process
 * group may still be writing. */
static bool launch_drain(struct launcher *s)
{
    bool more = false;
    for (uint32_t i = 0; s->in && i < 2 * s->started; i++) {
        struct relay_in *in = &s->in[i];
        if (may_read(in) && (relay_read(in) == 0 || in->drained > (1u << 20)))
            relay_close(in);
        more = more || in->fd >= 0;
    }
    return more;
}

static void loop(struct launcher *s, struct pollfd *fds)
{
    bool drained_reset = false;
    for (;;) {
        nfds_t n = 0;
        bool more = false;
        if (s->l->revive && revive_down(s))
            launch_end_nodes(s, SIGTERM);
        if (s->l->revive)
            revive_round(s);
        reap(s);
        look_at_leader(s);
        if (!s->running && !s->waiting) {
            for (uint32_t i = 0; s->in && !drained_reset && i < 2 * s->started; i++)
                s->in[i].drained = 0;
            drained_reset = true;
            more = launch_drain(s);
        }
        relay_write(&s->out);
        relay_write(&s->err);
        look_at_output(s);
        turn_log(s);
        bool out_waits = relay_waiting(&s->out), err_waits = relay_waiting(&s->err);
        if (!s->running && !s->waiting && (s->hurried || (!more && !out_waits && !err_waits)))
            return;
        fds[n++] = (struct pollfd){.fd = signal_pipe[0], .events = POLLIN};
        if (out_waits)
            fds[n++] = (struct pollfd){.fd = s->out.fd, .events = POLLOUT};
        if (err_waits)
            fds[n++] = (struct pollfd){.fd = s->err.fd, .events = POLLOUT};
        nfds_t first = n;
        for (uint32_t i = 0; s->in && s->running && i < 2 * s->started; i++)
            if (may_read(&s->in[i]))
                fds[n++] = (struct pollfd){.fd = s->in[i].fd, .events = POLLIN};
        if (poll(fds, n, more && !out_waits && !err_waits ? 0 : poll_timeout(s)) > 0) {
            for (uint32_t i = 0, k = (uint32_t)first; s->in && s->running && i < 2 * s->started && k < n; i++) {
                if (s->in[i].fd != fds[k].fd)
                    continue;
                if (fds[k++].revents)
                    relay_read(&s->in[i]);
            }
        }
        if (!handle_signals(s) || !handle_time(s))
            return;
    }
}

static void start_all(struct launcher *s)
{
    handle_signals(s);
    for (uint32_t i = 0; i < s->l->nodes && !s->ending; i++) {
        int status = launch_start_node(s, i);
        if (status) {
            kill_nodes(s); /* the started nodes would only wait for the nodes that could not be started */
            s->status = status;
        }
        handle_signals(s);
        reap(s);
    }
}

/* Raise the limit of open files: two pipes for each node may be more than the default. */
static void raise_limit(struct launcher *s)
{
    struct rlimit more;
    getrlimit(RLIMIT_NOFILE, &s->files);
    more = s->files;
    rlim_t need = 5 * (rlim_t)s->l->nodes + 64;
    if (more.rlim_cur < need) {
        more.rlim_cur = more.rlim_max < need ? more.rlim_max : need;
        setrlimit(RLIMIT_NOFILE, &more);
    }
}

int launch_cluster(const struct launch *l)
{
    bool drop = l->log != NULL;
    struct launcher s = {.l = l,
                         .out = {.fd = STDOUT_FILENO, .drop = drop},
                         .err = {.fd = STDERR_FILENO, .drop = drop},
                         .keeper = {.fd = -1},
                         .ssh_grace = INT64_MAX};
    struct pollfd *fds = NULL;
    int status = launch_find_program(&s), rc;
    if (status)
        goto out;
    status = 1;
    s.nodes = calloc(l->nodes, sizeof *s.nodes);
    s.in = l->tag ? calloc(2 * (size_t)l->nodes, sizeof *s.in) : NULL;
    fds = calloc(2 * (size_t)l->nodes + 3, sizeof *fds);
    if (!s.nodes || !fds || (l->tag && !s.in)) {
        launch_say(&s, "no memory for the processes of %u nodes" BASE_MEMORY_HINT, l->nodes);
        goto out;
    }
    for (uint32_t i = 0; s.in && i < 2 * l->nodes; i++)
        s.in[i].fd = -1;
    for (uint32_t i = 0; i < l->nodes; i++)
        s.nodes[i].control = -1;
    raise_limit(&s);
    if (launch_name_dir(&s) || catch_signals(&s) || keeper_start(&s.keeper, s.dir)) {
        launch_say(&s, "%s", base_error());
        goto out;
    }
    if ((rc = launch_make_address(&s)) || (rc = launch_make_fabric(&s)) || (rc = launch_make_environment(&s))) {
        handle_signals(&s);
        if (s.interrupted) /* the failure is probably due to the signal */
            status = 128 + s.interrupted;
        else
            launch_say(&s, "%s", rc == -ENOMEM ? "no memory for the environment of the nodes" BASE_MEMORY_HINT : base_error());
        goto out;
    }
    s.deadline = l->timeout_ns ? base_deadline(l->timeout_ns) : INT64_MAX;
    start_all(&s);
    loop(&s, fds);
    relay_write(&s.out);
    relay_write(&s.err);
    look_at_output(&s);
    status = s.timed_out ? LAUNCH_TIMED_OUT : s.output_status ? s.output_status : s.status;
    if (!status && (s.started < l->nodes || s.running) && s.interrupted)
        status = 128 + s.interrupted; /* not all nodes had been started, or a node has not ended after SIGKILL */
    else if (!status && s.running && !l->lead)
        status = CLI_FAILED;

out:
    for (uint32_t i = 0; s.in && i < 2 * l->nodes; i++)
        relay_close(&s.in[i]);
    relay_write(&s.out);
    relay_write(&s.err);
    for (uint32_t i = 0; s.nodes && i < s.started; i++)
        launch_close(&s.nodes[i].control);
    keeper_stop(&s.keeper);
    if (signal_pipe[0] >= 0) {
        if (!s.interrupted) /* a further signal must not change the exit status of an interrupted command while it ends */
            base_dispositions_restore(&s.before);
        launch_close(&signal_pipe[0]);
        launch_close(&signal_pipe[1]);
    }
    keeper_remove_dir(s.dir);
    emulate_end(&s.emulation);
    relay_out_free(&s.out);
    relay_out_free(&s.err);
    free(s.hostfile);
    for (size_t i = 0; i < LAUNCH_OUTER; i++)
        free(s.outer[i]);
    free(s.env);
    sodium_memzero(s.secret, sizeof s.secret);
    free(s.in);
    free(s.nodes);
    free(fds);
    return status;
}
