/* SPDX-License-Identifier: MIT
 *
 * Starts nodes on other hosts. The launcher starts ssh, which runs `weft run --as-node` on the other host. That command reads the program
 * and its environment from standard input, because arguments would show the cluster secret to other users. It starts the node, and then
 * reads signals to pass on, one byte each. When its input ends, it ends the node, so that nothing is left when the launcher or the
 * connection is gone.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/process.h"
#include "cli/command.h"
#include "cli/launch.h"
#include "cli/gpus.h"
#include "cli/ssh.h"

extern char **environ;

/* The start of the message that the launcher sends. Zero-terminated strings follow: directory, arguments, environment assignments. */
struct launch_message {
    char magic[8];
    uint32_t argc, envc, bytes, reserved;
};
static const char launch_magic[8] = {'w', 'e', 'f', 't', 'n', 'o', 'd', '1'};

/* --- on the launcher's host --- */

static void put_string(char **at, const char *text)
{
    size_t n = strlen(text) + 1;
    memcpy(*at, text, n);
    *at += n;
}

int ssh_launch_message(char **out, size_t *len, const char *dir, char *const *argv, const char *const *env)
{
    struct launch_message o = {.reserved = 0};
    size_t bytes = strlen(dir) + 1;
    memcpy(o.magic, launch_magic, sizeof o.magic);
    for (; argv[o.argc]; o.argc++)
        bytes += strlen(argv[o.argc]) + 1;
    for (; env[o.envc]; o.envc++)
        bytes += strlen(env[o.envc]) + 1;
    if (sizeof o + bytes > SSH_LAUNCH_MAX)
        return base_fail(
            -E2BIG,
            "the arguments and settings for a node on another host have %zu bytes, but at most %u are possible: pass large data in a file",
            bytes, SSH_LAUNCH_MAX);
    o.bytes = (uint32_t)bytes;
    char *at = *out = malloc(sizeof o + bytes);
    if (!at)
        return base_fail(-ENOMEM, "no memory for the launch message to a node on another host" BASE_MEMORY_HINT);
    memcpy(at, &o, sizeof o);
    at += sizeof o;
    put_string(&at, dir);
    for (uint32_t i = 0; i < o.argc; i++)
        put_string(&at, argv[i]);
    for (uint32_t i = 0; i < o.envc; i++)
        put_string(&at, env[i]);
    *len = sizeof o + bytes;
    return 0;
}

/* Quote a text for any shell: no character is special within single quotes. */
static void quote(char *out, const char *text)
{
    *out++ = '\'';
    for (; *text; text++) {
        if (*text == '\'') {
            memcpy(out, "'\\''", 4);
            out += 4;
        } else {
            *out++ = *text;
        }
    }
    *out++ = '\'';
    *out = '\0';
}

int ssh_command(struct ssh_command *c, const char *host, const char *weft)
{
    const char *given = getenv("WEFT_SSH");
    static const char *const options[] = {"-T", "-oBatchMode=yes", "-oServerAliveInterval=15", "--"};
    c->words = strdup(given && given[0] ? given : "ssh");
    c->remote = malloc(4 * strlen(weft) + 64);
    if (!c->words || !c->remote)
        return base_fail(-ENOMEM, "no memory for the command line of ssh" BASE_MEMORY_HINT);
    unsigned n = 0;
    char *save = NULL;
    for (char *word = strtok_r(c->words, " \t", &save); word; word = strtok_r(NULL, " \t", &save)) {
        if (n + 8 > sizeof c->argv / sizeof c->argv[0])
            return base_fail(-E2BIG, "WEFT_SSH has too many words: write them into a script, and set WEFT_SSH to its path");
        c->argv[n++] = word;
    }
    if (n == 0)
        return base_fail(-EINVAL, "WEFT_SSH contains only blanks: unset it to use ssh");
    for (unsigned i = 0; i < sizeof options / sizeof options[0]; i++)
        c->argv[n++] = options[i];
    memcpy(c->remote, "exec ", 5);
    quote(c->remote + 5, weft);
    strcat(c->remote, " run --as-node");
    c->argv[n++] = host;
    c->argv[n++] = c->remote;
    c->argv[n] = NULL;
    return 0;
}

int ssh_command_by_cluster(struct ssh_command *c, const char *cluster, const char *node, const char *self, const char *weft)
{
    const char *const words[] = {self, "exec", "--cluster", cluster, "--on", node, "--stdin", "-", "--", weft, "run", "--as-node", NULL};
    memcpy(c->argv, words, sizeof words);
    return 0;
}

void ssh_command_free(struct ssh_command *c)
{
    free(c->words);
    free(c->remote);
    *c = (struct ssh_command){0};
}

/* --- on the other host --- */

static int signal_pipe[2] = {-1, -1};

static void on_ssh_signal(int sig)
{
    int error = errno;
    uint8_t byte = (uint8_t)sig;
    ssize_t n = write(signal_pipe[1], &byte, 1);
    (void)n;
    errno = error;
}

static int ssh_read_all(void *buf, size_t len)
{
    for (uint8_t *p = buf; len;) {
        ssize_t n = read(STDIN_FILENO, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ECONNRESET;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

struct job {
    char *text; /* all strings of the launch message */
    size_t bytes;
    char *dir, **argv, **env;
    char gpus[GPUS_ROOM]; /* assignment that replaces GPUS_ASKED */
};

/* Put `count` strings that start at `at` into a list that ends with NULL. Returns the end of the last string. */
static char *take_strings(char *at, char **list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        list[i] = at;
        at += strlen(at) + 1;
    }
    return at;
}

/* Whether the program inherits this variable of its host. Variables in the launch message replace variables of the host. Weft's variables
 * may belong to another cluster, so only those that name the owner of the host's devices are inherited. */
static bool is_kept(const char *variable, char *const *order, size_t count)
{
    static const char *const of_this_host[] = {"WEFT_GUARD=", "WEFT_GUARD_SOCKET="};
    bool kept = strncmp(variable, "WEFT_", 5) != 0;
    size_t len = strcspn(variable, "=") + 1;
    for (size_t i = 0; i < sizeof of_this_host / sizeof of_this_host[0]; i++)
        kept = kept || strncmp(variable, of_this_host[i], strlen(of_this_host[i])) == 0;
    for (size_t i = 0; i < count && kept; i++)
        kept = strncmp(variable, order[i], len) != 0;
    return kept;
}

static int read_job(struct job *job)
{
    struct launch_message o;
    int rc = ssh_read_all(&o, sizeof o);
    if (rc || memcmp(o.magic, launch_magic, sizeof o.magic) != 0 || o.bytes == 0 || o.bytes > SSH_LAUNCH_MAX || o.argc == 0 ||
        o.argc > o.bytes || o.envc > o.bytes)
        return base_fail(rc ? rc : -EPROTO, "standard input does not have what weft sends to start a node (--as-node is for weft's own "
                                            "use); run the same version of weft on all hosts");
    job->text = malloc(o.bytes);
    job->bytes = o.bytes;
    if (!job->text)
        return base_fail(-ENOMEM, "no memory for the launch message" BASE_MEMORY_HINT);
    if ((rc = ssh_read_all(job->text, o.bytes)))
        return base_fail(rc, "standard input ended in the middle of the message that starts this node: has `weft run` ended?");
    uint64_t strings = 0;
    for (uint32_t i = 0; i < o.bytes; i++)
        strings += job->text[i] == '\0';
    if (strings != 1 + (uint64_t)o.argc + o.envc || job->text[o.bytes - 1] != '\0')
        return base_fail(-EPROTO,
                         "what weft has sent on standard input to start a node is invalid; run the same version of weft on all hosts");
    size_t own = 0, n = o.envc;
    while (environ[own])
        own++;
    job->argv = calloc(o.argc + 1, sizeof *job->argv);
    job->env = calloc(o.envc + own + 1, sizeof *job->env);
    if (!job->argv || !job->env)
        return base_fail(-ENOMEM, "no memory for the words of the launch message" BASE_MEMORY_HINT);
    job->dir = job->text;
    char *at = take_strings(job->text + strlen(job->text) + 1, job->argv, o.argc);
    take_strings(at, job->env, o.envc);
    bool gpus = false;
    for (size_t i = 0; i < o.envc && !gpus; i++) {
        gpus = strncmp(job->env[i], GPUS_ASKED, strlen(GPUS_ASKED)) == 0;
        if (gpus && (rc = gpus_give_asked(job->env[i] + strlen(GPUS_ASKED), job->gpus)))
            return rc;
        job->env[i] = gpus ? job->gpus : job->env[i];
    }
    for (size_t i = 0; i < own; i++) /* add this host's environment */
        if (is_kept(environ[i], job->env, o.envc) && !(gpus && strncmp(environ[i], GPUS_VISIBLE, strlen(GPUS_VISIBLE)) == 0))
            job->env[n++] = environ[i];
    return 0;
}

/* Start the program. Returns 0, or a negative errno without base_fail(). `before`: signal dispositions that the program gets. */
static int start_program(const struct job *job, const struct base_dispositions *before, struct keeper *keeper, pid_t *pid)
{
    static const int fds[3] = {BASE_FD_NULL, BASE_FD_OURS, BASE_FD_OURS};
    char path[4096];
    sigset_t none;
    sigemptyset(&none);
    const struct base_process how = {.path = path,
                                     .argv = job->argv,
                                     .env = job->env,
                                     .fds = fds,
                                     .group = BASE_GROUP_OWN,
                                     .end_with = SIGKILL,
                                     .dispositions = before,
                                     .mask = &none,
                                     .number = keeper->starting};
    int rc = base_process_find(job->argv[0], path, sizeof path);
    /* for a directory return -EACCES, as execve() does */
    return rc == -EISDIR ? -EACCES : rc ? rc : base_process_start(&how, pid, NULL);
}

/* Pass on the launcher's signals until the program has ended. Returns the program's exit status, or 128 + N after signal N, in Linux's
 * numbers. */
static int stay_with(pid_t pid)
{
    bool connected = true;
    for (;;) {
        struct pollfd p[2] = {{.fd = signal_pipe[0], .events = POLLIN}, {.fd = connected ? STDIN_FILENO : -1, .events = POLLIN}};
        uint8_t bytes[64];
        if (base_process_ended(pid, NULL)) {
            int how = base_process_kill_group(pid); /* also kills the processes that the program has started */
            return WIFSIGNALED(how) ? 128 + base_signal_out(WTERMSIG(how)) : base_process_status(how);
        }
        if (poll(p, 2, LAUNCH_LOOK_MS) < 0)
            continue;
        for (ssize_t i = 0, n = p[0].revents ? read(signal_pipe[0], bytes, sizeof bytes) : 0; i < n; i++)
            if (bytes[i] != SIGCHLD)
                kill(-pid, bytes[i]);
        if (!p[1].revents)
            continue;
        ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
        for (ssize_t i = 0; i < n; i++)
            if (bytes[i] > 0 && base_signal_in(bytes[i]) < NSIG)
                kill(-pid, base_signal_in(bytes[i]));
        if (n == 0 || (n < 0 && errno != EINTR)) {
            connected = false;
            kill(-pid, SIGKILL);
        }
    }
}

int ssh_serve(void)
{
    struct job job = {0};
    struct keeper keeper = {.fd = -1};
    int status = CLI_FAILED;
    if (read_job(&job) || base_pipe(signal_pipe, O_NONBLOCK)) {
        cli_error("run", "%s", base_error());
        goto out;
    }
    if (chdir(job.dir)) {
        char host[256] = "?";
        int error = errno;
        gethostname(host, sizeof host - 1);
        status = LAUNCH_NOT_USABLE;
        cli_error("run", "on %s: cannot change to directory %s: %s", host, job.dir, base_strerror(error));
        goto out;
    }
    struct sigaction act = {.sa_handler = on_ssh_signal, .sa_flags = SA_RESTART | SA_NOCLDSTOP};
    static const int caught[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGPIPE};
    struct base_dispositions before;
    sigfillset(&act.sa_mask);
    base_dispositions_save(&before, caught, sizeof caught / sizeof caught[0]);
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++)
        if (caught[i] != SIGPIPE)
            sigaction(caught[i], &act, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (keeper_start(&keeper, "")) {
        cli_error("run", "%s", base_error());
        goto out;
    }
    pid_t pid;
    int rc = start_program(&job, &before, &keeper, &pid);
    if (rc) {
        char host[256] = "?";
        gethostname(host, sizeof host - 1);
        status = rc == -ENOENT ? LAUNCH_NOT_FOUND : LAUNCH_NOT_USABLE;
        cli_error("run", "could not start %s on %s: %s", job.argv[0], host, base_strerror(rc));
        goto out;
    }
    keeper_add(&keeper, pid);
    status = stay_with(pid);
    keeper_drop(&keeper, pid);
out:
    keeper_stop(&keeper);
    free(job.argv);
    free(job.env);
    if (job.text)
        sodium_memzero(job.text, job.bytes);
    free(job.text);
    return status;
}
