/* SPDX-License-Identifier: MIT
 *
 * Starts the nodes: finds the program, chooses the address of node 0, makes the environment, and starts a process for each node, here or
 * over ssh.
 */
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/process.h"
#include "cli/command.h"
#include "cli/launcher.h"
#include "cli/ssh.h"
#include "cluster/cluster.h"

extern char **environ;

const char *launch_signal_name(int sig, char *buf, size_t len)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {{SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},   {SIGTRAP, "SIGTRAP"},
                 {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"},
                 {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"}, {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
                 {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].number == sig)
            return names[i].name;
    snprintf(buf, len, "signal %d", sig);
    return buf;
}

void launch_say(struct launcher *s, const char *format, ...)
{
    char text[1024], line[1100];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(line, sizeof line, "%sweft %s: %s\n", s->l->draws ? "\r\033[K" : "", s->l->sub, text);
    relay_say(&s->err, line, strlen(line));
    relay_write(&s->err);
}

int launch_find_program(struct launcher *s)
{
    const char *program = s->l->argv[0];
    bool here = false;
    for (uint32_t i = 0; i < s->l->nodes && !here; i++)
        here = !launch_machine(s, i);
    int rc = here ? base_process_find(program, s->path, sizeof s->path) : 0; /* other machines search for the program themselves */
    if (!rc)
        return 0;
    bool there = rc == -EACCES || rc == -EISDIR;
    launch_say(s, "could not start %s: %s", program,
               there ? "it is not a program that this user may execute" : "No such file or directory");
    return there ? LAUNCH_NOT_USABLE : LAUNCH_NOT_FOUND;
}

int launch_name_dir(struct launcher *s)
{
    uint64_t k;
    int rc = base_random(&k, sizeof k);
    const char *where = NULL;
#if !defined(__linux__)
    const char *tmp = getenv("TMPDIR"); /* a directory for the socket; the socket's path must be short */
    where = tmp && tmp[0] && strlen(tmp) < 64 ? tmp : "/tmp";
#endif
    if (s->l->softverbs && !where) /* the emulated fabric is a large sparse file, which should be in memory */
        where = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    if (where && !rc)
        snprintf(s->dir, sizeof s->dir, "%s/weft-%016llx", where, (unsigned long long)k);
    return rc;
}

int launch_make_address(struct launcher *s)
{
    static const char variable[] = "WEFT_COORD=";
    const size_t at = sizeof variable - 1;
    int rc;
    if (s->dir[0] && mkdir(s->dir, 0700))
        return base_fail(-errno, "cannot create the temporary directory %s: %s; set TMPDIR to a directory that can be written", s->dir,
                         base_strerror(errno));
    memcpy(s->coord, variable, at);
    if (s->l->coord)
        snprintf(s->coord + at, sizeof s->coord - at, "%s", s->l->coord);
    else if ((rc = cluster_private_address(s->coord + at, sizeof s->coord - at, "run", s->dir)))
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

int launch_make_fabric(struct launcher *s)
{
    if (!s->l->softverbs)
        return 0;
    int rc = emulate_parse(&s->emulation, s->l->softverbs, s->l->nodes);
    if (rc)
        return rc;
    return emulate_start(&s->emulation, s->dir, launch_argv(s, 0), launch_argv(s, 1));
}

/* Store the environment variables that softverbs changes for a node on an emulated host. A node that starts the user's programs, as in weft
 * map, restores them. */
static int keep_outer(struct launcher *s, size_t *n)
{
    static const char *const changed[LAUNCH_OUTER] = {"LD_PRELOAD",       "LD_LIBRARY_PATH", "ASAN_OPTIONS",  "SOFTVERBS_DIR",
                                                      "SOFTVERBS_FABRIC", "SOFTVERBS_HOST",  "WEFT_TRANSPORT"};
    for (size_t i = 0; i < LAUNCH_OUTER; i++) {
        const char *value = getenv(changed[i]);
        size_t len = strlen("WEFT_OUTER_") + strlen(changed[i]) + 2 + (value ? strlen(value) : 0);
        if (!(s->outer[i] = malloc(len)))
            return -ENOMEM;
        snprintf(s->outer[i], len, "WEFT_OUTER_%s=%s", changed[i], value ? value : "");
        s->env[(*n)++] = s->outer[i];
    }
    return 0;
}

int launch_make_environment(struct launcher *s)
{
    size_t count = 0, n = 0;
    while (environ[count])
        count++;
    s->env = calloc(count + 13 + LAUNCH_OUTER, sizeof *s->env);
    if (!s->env)
        return -ENOMEM;
    snprintf(s->size, sizeof s->size, "WEFT_SIZE=%u", s->l->size ? s->l->size : s->l->nodes);
    snprintf(s->rank, sizeof s->rank, "WEFT_RANK=");
    if (s->l->revive)
        snprintf(s->join, sizeof s->join, "WEFT_JOIN=%s", s->l->revive->join);
    s->env[n++] = s->rank;
    s->env[n++] = s->size;
    s->env[n++] = s->coord;
    if (s->secret[0])
        s->env[n++] = s->secret;
    if (s->l->pool) {
        snprintf(s->pool, sizeof s->pool, "WEFT_POOL=%s", s->l->pool);
        s->env[n++] = s->pool;
    }
    if (s->l->gpus) {
        snprintf(s->gpus, sizeof s->gpus, "%s", GPUS_VISIBLE);
        s->env[n++] = s->gpus;
    }
    if (s->l->guard) {
        snprintf(s->guard, sizeof s->guard, "WEFT_GUARD=%s", s->l->self);
        s->env[n++] = s->guard;
    }
    if (s->l->hostfile) {
        size_t len = strlen("WEFT_HOSTFILE=") + strlen(s->l->hostfile) + 1;
        if (!(s->hostfile = malloc(len)))
            return -ENOMEM;
        snprintf(s->hostfile, len, "WEFT_HOSTFILE=%s", s->l->hostfile);
        s->env[n++] = s->hostfile;
    }
    if (s->l->softverbs) {
        if (getenv("WEFT_GUARD_SOCKET")) /* the guard at that socket owns the devices of this host, not those of the emulated hosts */
            s->env[n++] = (char *)(uintptr_t) "WEFT_GUARD_SOCKET=";
        s->env[n++] = s->emulation.directory;
        if (s->emulation.transport[0])
            s->env[n++] = s->emulation.transport;
        if (s->l->lead && keep_outer(s, &n))
            return -ENOMEM;
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

struct node_files {
    int out[2], err[2]; /* pipes; [1] is the node's end */
    int control[2];     /* pipe to a node over ssh; [0] is the node's end */
    struct ssh_command ssh;
};

/* Index of a node among the nodes of its machine. */
static uint32_t place_there(const struct launcher *s, uint32_t rank)
{
    const char *machine = launch_machine(s, rank);
    uint32_t place = 0;
    for (uint32_t i = 0; i < rank; i++) {
        const char *other = launch_machine(s, i);
        place += machine && other ? strcmp(machine, other) == 0 : machine == other;
    }
    return place;
}

/* Start the process of a node, or its ssh. Returns 0, or a negative errno without base_fail(); `step`: which step failed. */
static int start_process(struct launcher *s, uint32_t rank, const struct node_files *f, pid_t *pid, enum base_process_step *step)
{
    const bool remote = launch_machine(s, rank), emulated = !remote && s->l->softverbs;
    char ssh[4096];
    sigset_t mask;
    sigemptyset(&mask);
    if (s->l->lead && rank == 0)
        sigaddset(&mask, LAUNCH_TOLD);
    const int fds[3] = {remote                             ? f->control[0]
                        : rank > 0 || isatty(STDIN_FILENO) ? BASE_FD_NULL
                                                           : BASE_FD_OURS,
                        s->l->tag ? f->out[1] : BASE_FD_OURS, s->l->tag ? f->err[1] : BASE_FD_OURS};
    const struct base_process how = {
        .path = remote     ? ssh
                : emulated ? s->emulation.command
                           : s->path,
        .argv = remote     ? (char *const *)(uintptr_t)f->ssh.argv
                : emulated ? s->emulation.argv[rank > 0]
                           : launch_argv(s, rank),
        .env = remote ? NULL : s->env,
        .fds = fds,
        .group = BASE_GROUP_OWN,
        .end_with = SIGKILL,
        .dispositions = &s->before,
        .mask = &mask,
        .limits = &(const struct base_limit){RLIMIT_NOFILE, s->files},
        .limit_count = 1,
        .number = s->keeper.starting,
    };
    const struct launch_revive *again = s->l->revive;
    bool joins = again && (again->joins || s->nodes[rank].began);
    snprintf(s->rank, sizeof s->rank, "WEFT_RANK=%u", rank + (joins ? again->place : s->l->first));
    s->env[1] = joins ? s->join : s->size;
    s->nodes[rank].began = base_now_ns();
    if (emulated)
        memcpy(s->emulation.host, s->emulation.names[rank], sizeof s->emulation.host);
    *step = BASE_STEP_PROGRAM;
    int rc = remote ? base_process_find(f->ssh.argv[0], ssh, sizeof ssh) : 0;
    /* for a directory return -EACCES, as execve() does */
    return rc == -EISDIR ? -EACCES : rc ? rc : base_process_start(&how, pid, step);
}

/* Prepare a node on another machine: make the command line of ssh, and write the launch message to the pipe. */
static int start_prepare_remote(struct launcher *s, uint32_t rank, struct node_files *f)
{
    char dir[4096], number[32], gpus[64], guard[FAB_GUARD_MAX + 16], *order = NULL;
    const char *env[160] = {number, s->size, s->coord};
    size_t n = 3, len = 0;
    snprintf(number, sizeof number, "WEFT_RANK=%u", rank);
    if (s->secret[0])
        env[n++] = s->secret;
    if (s->l->pool)
        env[n++] = s->pool;
    if (s->l->gpus) {
        snprintf(gpus, sizeof gpus, GPUS_ASKED "%u:%u", s->l->gpus, place_there(s, rank));
        env[n++] = gpus;
    }
    if (s->l->guard) {
        snprintf(guard, sizeof guard, "WEFT_GUARD=%s", s->l->weft);
        env[n++] = guard;
    }
    for (const char *const *t = s->l->told; t && *t && n < sizeof env / sizeof env[0] - 1; t++)
        env[n++] = *t;
    if (!getcwd(dir, sizeof dir))
        return base_fail(-errno, "cannot get the current directory, in which the nodes are to start: %s; change to another directory",
                         base_strerror(errno));
    char *words[16] = {(char *)(uintptr_t)s->l->weft}, **argv = launch_argv(s, rank);
    if (rank && s->l->others) { /* the program is weft itself: use weft's path on that machine */
        for (size_t i = 1; i < 15 && (words[i] = argv[i]); i++)
            ;
        argv = words;
    }
    int rc = s->l->cluster ? ssh_command_by_cluster(&f->ssh, s->l->cluster, launch_machine(s, rank), s->l->self, s->l->weft)
                           : ssh_command(&f->ssh, launch_machine(s, rank), s->l->weft);
    if (!rc)
        rc = ssh_launch_message(&order, &len, dir, argv, env);
    if (!rc)
        rc = base_pipe(f->control, 0);
    if (!rc) {
        fcntl(f->control[1], F_SETFL, O_NONBLOCK);
        ssize_t written = write(f->control[1], order, len);
        if (written != (ssize_t)len)
            rc = base_fail(-E2BIG, "%zu bytes of arguments and settings are too many to start a node: pass large data in a file", len);
    }
    if (order)
        sodium_memzero(order, len); /* the message contains the secret */
    free(order);
    return rc;
}

int launch_start_node(struct launcher *s, uint32_t rank)
{
    struct node_files f = {{-1, -1}, {-1, -1}, {-1, -1}, {.words = NULL}};
    struct node *node = &s->nodes[rank];
    const char *machine = launch_machine(s, rank);
    enum base_process_step step = BASE_STEP_PROCESS;
    int status = CLI_FAILED, rc = 0;
    if (s->l->tag && (rc = base_pipe(f.out, 0)) == 0)
        rc = base_pipe(f.err, 0);
    if (rc)
        goto failed;
    if (machine ? start_prepare_remote(s, rank, &f) : s->l->gpus ? gpus_give(s->l->gpus, place_there(s, rank), s->gpus) : 0) {
        launch_say(s, "node %u: %s", rank, base_error());
        goto cleanup;
    }
    if ((rc = start_process(s, rank, &f, &node->pid, &step))) {
        /* These exit statuses are about the user's program, not about ssh or a lack of resources. */
        if (!machine && step != BASE_STEP_PROCESS && rc != -EMFILE && rc != -ENFILE && rc != -ENOMEM && rc != -EAGAIN)
            status = rc == -ENOENT ? LAUNCH_NOT_FOUND : LAUNCH_NOT_USABLE;
        goto failed;
    }
    keeper_add(&s->keeper, node->pid);
    node->running = true;
    s->started = s->started > rank ? s->started : rank + 1;
    s->running++;
    if (s->l->tag) {
        fcntl(f.out[0], F_SETFL, O_NONBLOCK);
        fcntl(f.err[0], F_SETFL, O_NONBLOCK);
        s->in[2 * rank] = (struct relay_in){.fd = f.out[0], .node = launch_place(s, rank), .to = &s->out};
        s->in[2 * rank + 1] = (struct relay_in){.fd = f.err[0], .node = launch_place(s, rank), .to = &s->err};
        close(f.out[1]);
        close(f.err[1]);
    }
    launch_close(&f.control[0]);
    node->control = f.control[1];
    ssh_command_free(&f.ssh);
    return 0;

failed:
    if (machine && f.ssh.argv[0])
        launch_say(s, "node %u (on %s): could not start %s: %s; install ssh, or set WEFT_SSH to another command", rank, machine,
                   f.ssh.argv[0], base_strerror(rc));
    else if (rc == -ENOENT && base_check_interpreter(s->path))
        launch_say(s, "could not start node %u: %s", rank, base_error());
    else
        launch_say(s, "could not start %s as node %u: %s%s", s->l->argv[0], rank, base_strerror(rc),
                   rc == -ENOEXEC  ? " (a script needs a first line such as #!/bin/sh)"
                   : rc == -EMFILE ? " (raise the limit: ulimit -n)"
                   : rc == -E2BIG  ? " (give fewer or shorter arguments, or raise the limit: ulimit -s)"
                   : rc == -EAGAIN ? " (too many processes of this user: ulimit -u)"
                                   : "");
cleanup:
    for (int i = 0; i < 2; i++) {
        launch_close(&f.out[i]);
        launch_close(&f.err[i]);
        launch_close(&f.control[i]);
    }
    ssh_command_free(&f.ssh);
    return status;
}
