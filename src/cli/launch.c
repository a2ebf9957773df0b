/* SPDX-License-Identifier: MIT
 *
 * The launcher: one thread that sleeps in poll() and is woken by signals (through a pipe), output and time.
 *
 * Each node leads a process group, so that what it started can be ended with it. A group is killed while its
 * leader, dead, still waits to be reaped: its number cannot have been given to somebody else then.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/launch.h"
#include "cluster/cluster.h"
#include "weft/types.h"

#if defined(__linux__)
#include <sys/prctl.h>
#endif

extern char **environ;

static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD, SIGTSTP, SIGCONT};
#define CAUGHT (sizeof caught / sizeof caught[0])
static int signal_pipe[2] = {-1, -1}; /* a handler has no argument of ours */

struct node {
    pid_t pid;
    bool running;
};

struct launcher {
    const struct launch *l;
    struct node *nodes;
    uint32_t started, running;
    char path[4096]; /* of the program */
    char **env;      /* the nodes'; env[0] is the rank */
    char rank[32], size[32], coord[160], pool[64], secret[80], *hostfile;
    char dir[96]; /* of the socket, where names are files; "" on Linux */
    struct keeper keeper;
    struct relay_out out, err;
    struct relay_in *in; /* [2 * nodes], tagged output only */
    struct sigaction before[CAUGHT], before_pipe;
    struct rlimit files; /* as we found it, for the nodes */

    int status;          /* of the first node that failed; 0: none */
    int output_status;   /* ours, when output was lost before any node had failed; 0: none was */
    int interrupted;     /* the signal that was first passed on; 0: none */
    bool ending, killed; /* the nodes were asked to end; were made to */
    bool timed_out;
    int64_t deadline;    /* of the time-out, INT64_MAX: none */
    int64_t grace;       /* when asking turns into killing, and killing into giving up */
};

/* --- messages --- */

static void say(struct launcher *s, const char *format, ...) BASE_PRINTF(2, 3);
static void say(struct launcher *s, const char *format, ...)
{
    char text[1024], line[1100];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(line, sizeof line, "%s: %s\n", s->l->who, text);
    relay_say(&s->err, line, strlen(line));
    relay_write(&s->err);
}

static const char *signal_name(int sig, char *buf, size_t len)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {{SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
                 {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
                 {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
                 {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"}, {SIGXCPU, "SIGXCPU"},
                 {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].number == sig)
            return names[i].name;
    snprintf(buf, len, "signal %d", sig);
    return buf;
}

/* "node 3", "nodes 1 and 3", "nodes 0, 1 and 4" of those that run. */
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

static void on_signal(int sig)
{
    int error = errno;
    uint8_t byte = (uint8_t)sig;
    ssize_t n = write(signal_pipe[1], &byte, 1); /* full: enough wait there already */
    (void)n;
    errno = error;
}

static int catch_signals(struct launcher *s)
{
    int rc = base_pipe(signal_pipe, O_NONBLOCK);
    if (rc)
        return rc;
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_NOCLDSTOP};
    sigfillset(&act.sa_mask);
    for (size_t i = 0; i < CAUGHT; i++) {
        sigaction(caught[i], NULL, &s->before[i]);
        /* Under nohup SIGHUP is ignored, in a shell's background SIGINT is: that stays, for the nodes as well. */
        if (caught[i] == SIGCHLD || caught[i] == SIGCONT || s->before[i].sa_handler != SIG_IGN)
            sigaction(caught[i], &act, NULL);
    }
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, &s->before_pipe);
    return 0;
}

static void restore_signals(const struct launcher *s)
{
    for (size_t i = 0; i < CAUGHT; i++)
        sigaction(caught[i], &s->before[i], NULL);
    sigaction(SIGPIPE, &s->before_pipe, NULL);
}

static void signal_nodes(struct launcher *s, int sig)
{
    for (uint32_t i = 0; i < s->started; i++)
        if (s->nodes[i].running)
            kill(-s->nodes[i].pid, sig);
}

/* Ask all nodes to end; after the grace they are killed. */
static void end_nodes(struct launcher *s, int sig)
{
    signal_nodes(s, sig);
    signal_nodes(s, SIGCONT); /* a stopped node would not hear it */
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
}

/* --- starting --- */

static int find_program(struct launcher *s)
{
    const char *program = s->l->argv[0], *list = getenv("PATH");
    int rc = LAUNCH_NOT_FOUND;
    struct stat st;
    if (!program[0])
        goto out;
    if (strchr(program, '/') || !list)
        list = NULL;
    for (const char *p = list;; p++) {
        size_t n = list ? strcspn(p, ":") : 0;
        int m = !list       ? snprintf(s->path, sizeof s->path, "%s", program)
                : n == 0    ? snprintf(s->path, sizeof s->path, "./%s", program)
                            : snprintf(s->path, sizeof s->path, "%.*s/%s", (int)n, p, program);
        if (m > 0 && (size_t)m < sizeof s->path && stat(s->path, &st) == 0) {
            if (S_ISREG(st.st_mode) && access(s->path, X_OK) == 0)
                return 0;
            rc = LAUNCH_NOT_USABLE;
        }
        if (!list || !p[n])
            break;
        p += n;
    }
out:
    say(s, "could not start %s: %s", program,
        rc == LAUNCH_NOT_FOUND ? "No such file or directory" : "it is no program that you may run");
    return rc;
}

static int make_address(struct launcher *s)
{
    static const char variable[] = "WEFT_COORD=";
    const size_t at = sizeof variable - 1;
    int rc;
#if !defined(__linux__)
    const char *tmp = getenv("TMPDIR");
    snprintf(s->dir, sizeof s->dir, "%s/weft-XXXXXX", tmp && tmp[0] && strlen(tmp) < 64 ? tmp : "/tmp");
    if (!mkdtemp(s->dir)) {
        rc = base_fail(-errno, "temporary directory %s: %s", s->dir, base_strerror(errno));
        s->dir[0] = '\0';
        return rc;
    }
#endif
    memcpy(s->coord, variable, at);
    rc = cluster_private_address(s->coord + at, sizeof s->coord - at, "run", s->dir);
    if (rc)
        return rc;
    if (s->l->make_secret) {
        uint64_t k[4];
        if ((rc = base_random(k, sizeof k)))
            return rc;
        snprintf(s->secret, sizeof s->secret, "WEFT_SECRET=%016llx%016llx%016llx%016llx", (unsigned long long)k[0],
                 (unsigned long long)k[1], (unsigned long long)k[2], (unsigned long long)k[3]);
    }
    return 0;
}

static int make_environment(struct launcher *s)
{
    size_t count = 0, n = 0;
    while (environ[count])
        count++;
    s->env = calloc(count + 8, sizeof *s->env);
    if (!s->env)
        return -ENOMEM;
    snprintf(s->size, sizeof s->size, "WEFT_SIZE=%u", s->l->nodes);
    snprintf(s->rank, sizeof s->rank, "WEFT_RANK=");
    s->env[n++] = s->rank;
    s->env[n++] = s->size;
    s->env[n++] = s->coord;
    if (s->secret[0])
        s->env[n++] = s->secret;
    if (s->l->pool) {
        snprintf(s->pool, sizeof s->pool, "WEFT_POOL=%s", s->l->pool);
        s->env[n++] = s->pool;
    }
    if (s->l->hostfile) {
        size_t len = strlen("WEFT_HOSTFILE=") + strlen(s->l->hostfile) + 1;
        if (!(s->hostfile = malloc(len)))
            return -ENOMEM;
        snprintf(s->hostfile, len, "WEFT_HOSTFILE=%s", s->l->hostfile);
        s->env[n++] = s->hostfile;
    }
    size_t ours = n;
    for (size_t i = 0; i < count; i++) {
        bool replaced = false;
        for (size_t k = 0; k < ours && !replaced; k++)
            replaced = strncmp(environ[i], s->env[k], strcspn(s->env[k], "=") + 1) == 0;
        if (!replaced)
            s->env[n++] = environ[i];
    }
    return 0;
}

struct child_files {
    int out[2], err[2], failure[2]; /* pipes; the second end is the node's */
};

/* In the new process. Says the errno of what failed through `failure` and ends. */
static _Noreturn void become_node(struct launcher *s, uint32_t rank, const struct child_files *f, pid_t launcher)
{
    sigset_t none;
    int error = 0;
    setpgid(0, 0);
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    if (getppid() != launcher)
        _exit(LAUNCH_NOT_USABLE); /* it was killed before the line above could take notice */
    restore_signals(s);
    setrlimit(RLIMIT_NOFILE, &s->files);
    if (rank > 0 || isatty(STDIN_FILENO)) {
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null < 0 || dup2(null, STDIN_FILENO) < 0)
            error = errno;
    }
    if (s->l->tag && (dup2(f->out[1], STDOUT_FILENO) < 0 || dup2(f->err[1], STDERR_FILENO) < 0))
        error = errno;
    snprintf(s->rank, sizeof s->rank, "WEFT_RANK=%u", rank);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (!error) {
        execve(s->path, s->l->argv, s->env);
        error = errno;
    }
    ssize_t n = write(f->failure[1], &error, sizeof error);
    (void)n;
    _exit(LAUNCH_NOT_USABLE);
}

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* 0, or the exit status of a launch that failed. */
static int start_node(struct launcher *s, uint32_t rank)
{
    struct child_files f = {{-1, -1}, {-1, -1}, {-1, -1}};
    struct node *node = &s->nodes[rank];
    sigset_t all, before;
    pid_t launcher = getpid();
    int error = 0, status = LAUNCH_NOT_USABLE;
    int rc = base_pipe(f.failure, 0);
    if (rc == 0 && s->l->tag && (rc = base_pipe(f.out, 0)) == 0)
        rc = base_pipe(f.err, 0);
    if (rc) {
        error = -rc;
        goto failed;
    }
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* our handlers must not run in the child */
    node->pid = fork();
    if (node->pid == 0)
        become_node(s, rank, &f, launcher);
    error = node->pid < 0 ? errno : 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (error)
        goto failed;
    setpgid(node->pid, node->pid); /* the child does it too: whoever comes first */
    keeper_add(&s->keeper, node->pid);
    node->running = true;
    s->started = rank + 1;
    s->running++;
    close_one(&f.failure[1]);
    while ((rc = (int)read(f.failure[0], &error, sizeof error)) < 0 && errno == EINTR)
        ;
    if (rc == (int)sizeof error) {
        status = error == ENOENT ? LAUNCH_NOT_FOUND : LAUNCH_NOT_USABLE;
        goto failed;
    }
    if (s->l->tag) {
        fcntl(f.out[0], F_SETFL, O_NONBLOCK);
        fcntl(f.err[0], F_SETFL, O_NONBLOCK);
        s->in[2 * rank] = (struct relay_in){.fd = f.out[0], .node = rank, .to = &s->out};
        s->in[2 * rank + 1] = (struct relay_in){.fd = f.err[0], .node = rank, .to = &s->err};
        close(f.out[1]);
        close(f.err[1]);
    }
    close(f.failure[0]);
    return 0;

failed:
    say(s, "could not start %s as node %u: %s%s", s->l->argv[0], rank, base_strerror(error),
        error == ENOEXEC ? " (a script needs a first line such as #!/bin/sh)" : "");
    for (int i = 0; i < 2; i++) {
        close_one(&f.out[i]);
        close_one(&f.err[i]);
        close_one(&f.failure[i]);
    }
    return status;
}

/* --- ending --- */

static void node_ended(struct launcher *s, uint32_t rank, int how)
{
    char name[32];
    struct node *node = &s->nodes[rank];
    int status = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
    node->running = false;
    s->running--;
    if (status == 0)
        return;
    /* What we ended is no news. */
    bool by_us = (s->ending && WIFSIGNALED(how)) ||
                 (WIFSIGNALED(how) && WTERMSIG(how) == SIGPIPE && (s->out.broken || s->err.broken));
    if (WIFSIGNALED(how) && !by_us)
        say(s, "node %u (pid %d) was killed by %s%s", rank, (int)node->pid,
            signal_name(WTERMSIG(how), name, sizeof name), WCOREDUMP(how) ? " (core dumped)" : "");
    else if (!by_us)
        say(s, "node %u (pid %d) exited with %d", rank, (int)node->pid, status);
    if (s->status)
        return;
    s->status = by_us && s->interrupted ? 128 + s->interrupted : status;
    if (s->l->kill_on_failure && !s->ending && s->running) {
        char who[256];
        say(s, "ending %s", running_names(s, who, sizeof who));
        end_nodes(s, SIGTERM);
    }
}

static void reap(struct launcher *s)
{
    for (uint32_t i = 0; i < s->started; i++) {
        struct node *node = &s->nodes[i];
        siginfo_t info = {0};
        int how;
        if (!node->running || waitid(P_PID, (id_t)node->pid, &info, WEXITED | WNOHANG | WNOWAIT) ||
            info.si_pid != node->pid)
            continue;
        kill(-node->pid, SIGKILL); /* what it has started */
        keeper_drop(&s->keeper, node->pid);
        while (waitpid(node->pid, &how, 0) < 0 && errno == EINTR)
            ;
        node_ended(s, i, how);
    }
}

/* Every pending signal; false when we are to leave at once. */
static bool handle_signals(struct launcher *s)
{
    uint8_t sigs[64];
    ssize_t n;
    bool stay = true;
    while ((n = read(signal_pipe[0], sigs, sizeof sigs)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            int sig = sigs[i];
            switch (sig) {
            case SIGCHLD:
                break; /* reap() looks anyway */
            case SIGTSTP:
                signal_nodes(s, SIGTSTP);
                raise(SIGSTOP);
                break;
            case SIGCONT:
            case SIGUSR1:
            case SIGUSR2:
                signal_nodes(s, sig);
                break;
            default: /* SIGINT, SIGTERM, SIGHUP, SIGQUIT */
                stay = stay && s->running > 0; /* only output is left, and nobody wants it */
                if (s->interrupted && sig != SIGHUP) {
                    kill_nodes(s);
                    break;
                }
                s->interrupted = s->interrupted ? s->interrupted : sig;
                end_nodes(s, sig);
                break;
            }
        }
    }
    return stay;
}

/* What time brings; false when nothing more can be done. */
static bool handle_time(struct launcher *s)
{
    char who[256];
    int64_t now = base_now_ns();
    if (s->running && now >= s->deadline && !s->timed_out) {
        say(s, "time-out of %gs: %s %s still running", (double)s->l->timeout_ns / 1e9,
            running_names(s, who, sizeof who), s->running == 1 ? "was" : "were");
        s->timed_out = true;
        s->deadline = INT64_MAX;
        end_nodes(s, SIGTERM);
    }
    if (!s->running || !s->ending || now < s->grace)
        return true;
    running_names(s, who, sizeof who);
    if (s->killed) {
        say(s, "%s cannot be ended, not even by SIGKILL: left to the system", who);
        return false;
    }
    say(s, "%s did not end within %ds: killed", who, (int)(LAUNCH_GRACE_NS / WEFT_SECOND));
    kill_nodes(s);
    return true;
}

/* --- the loop --- */

/* Output that goes nowhere is a failure of ours. Nobody needs to be told that a reader has left, as after `| head`:
 * the status is then what SIGPIPE would have made of us. */
static void look_at_output(struct launcher *s)
{
    struct relay_out *outs[] = {&s->out, &s->err};
    for (int i = 0; i < 2; i++) {
        int error = outs[i]->error;
        if (!error)
            continue;
        outs[i]->error = 0; /* said once */
        if (error != EPIPE)
            say(s, "standard %s: %s", i ? "error" : "output", base_strerror(error));
        if (!s->status && !s->output_status)
            s->output_status = error == EPIPE ? 128 + SIGPIPE : 1;
    }
}

static int poll_timeout(const struct launcher *s)
{
    int64_t until = s->running ? s->deadline : INT64_MAX;
    if (s->running && s->ending && s->grace < until)
        until = s->grace;
    if (until == INT64_MAX)
        return -1;
    int64_t left = until - base_now_ns();
    return left <= 0 ? 0 : left > 3600 * WEFT_SECOND ? 3600 * 1000 : (int)(left / WEFT_MS) + 1;
}

/* Whether a stream may be read: what it feeds has room. Closes those that feed what nobody reads. */
static bool may_read(struct relay_in *in)
{
    if (in->fd >= 0 && in->to->broken)
        relay_close(in);
    return in->fd >= 0 && relay_waiting(in->to) < RELAY_QUEUE_MAX;
}

/* After the last node: what its pipes still hold. A process that has fled its node's group may keep one open and
 * write on; no pipe holds more than a megabyte of the time before. */
static bool drain(struct launcher *s)
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
        reap(s);
        if (!s->running) {
            for (uint32_t i = 0; s->in && !drained_reset && i < 2 * s->started; i++)
                s->in[i].drained = 0;
            drained_reset = true;
            more = drain(s);
        }
        relay_write(&s->out);
        relay_write(&s->err);
        look_at_output(s);
        bool out_waits = relay_waiting(&s->out), err_waits = relay_waiting(&s->err);
        if (!s->running && !more && !out_waits && !err_waits)
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
    for (uint32_t i = 0; i < s->l->nodes && !s->ending; i++) {
        int status = start_node(s, i);
        if (status) {
            kill_nodes(s); /* they only wait for those that will not come */
            s->status = status;
        }
        handle_signals(s);
        reap(s);
    }
}

/* Two pipes a node may be more than a process has by default. */
static void raise_limit(struct launcher *s)
{
    struct rlimit more;
    getrlimit(RLIMIT_NOFILE, &s->files);
    more = s->files;
    rlim_t need = 4 * (rlim_t)s->l->nodes + 64;
    if (more.rlim_cur < need) {
        more.rlim_cur = more.rlim_max < need ? more.rlim_max : need;
        setrlimit(RLIMIT_NOFILE, &more);
    }
}

int launch_cluster(const struct launch *l)
{
    struct launcher s = {.l = l, .out = {.fd = STDOUT_FILENO}, .err = {.fd = STDERR_FILENO}, .keeper = {.fd = -1}};
    struct pollfd *fds = NULL;
    int status = find_program(&s), rc;
    if (status)
        goto out;
    status = 1;
    s.nodes = calloc(l->nodes, sizeof *s.nodes);
    s.in = l->tag ? calloc(2 * (size_t)l->nodes, sizeof *s.in) : NULL;
    fds = calloc(2 * (size_t)l->nodes + 3, sizeof *fds);
    if (!s.nodes || !fds || (l->tag && !s.in)) {
        say(&s, "no memory for %u nodes", l->nodes);
        goto out;
    }
    for (uint32_t i = 0; s.in && i < 2 * l->nodes; i++)
        s.in[i].fd = -1;
    raise_limit(&s);
    if ((rc = make_address(&s)) || (rc = make_environment(&s))) {
        say(&s, "%s", rc == -ENOMEM ? "no memory for the environment" : base_error());
        goto out;
    }
    if (catch_signals(&s) || keeper_start(&s.keeper, s.dir)) {
        say(&s, "%s", base_error());
        goto out;
    }
    s.deadline = l->timeout_ns ? base_deadline(l->timeout_ns) : INT64_MAX;
    start_all(&s);
    loop(&s, fds);
    relay_write(&s.out);
    relay_write(&s.err);
    look_at_output(&s);
    status = s.timed_out ? LAUNCH_TIMED_OUT : s.output_status ? s.output_status : s.status;
    if (!status && s.started < l->nodes && s.interrupted)
        status = 128 + s.interrupted; /* before there was a node to hear of it */

out:
    for (uint32_t i = 0; s.in && i < 2 * l->nodes; i++)
        relay_close(&s.in[i]);
    relay_write(&s.out);
    relay_write(&s.err);
    keeper_stop(&s.keeper);
    if (signal_pipe[0] >= 0) {
        restore_signals(&s);
        close_one(&signal_pipe[0]);
        close_one(&signal_pipe[1]);
    }
    keeper_remove_dir(s.dir);
    relay_out_free(&s.out);
    relay_out_free(&s.err);
    free(s.hostfile);
    free(s.env);
    free(s.in);
    free(s.nodes);
    free(fds);
    return status;
}
