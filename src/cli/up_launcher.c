/* SPDX-License-Identifier: MIT
 *
 * The launcher of this host for `weft up`: goes to the background, starts the nodes of this host, and is ended by `weft down`.
 */
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/process.h"
#include "cli/command.h"
#include "cli/up.h"

#define LOOK_NS  (2 * WEFT_MS)  /* time between two checks whether the cluster is up, or down */
#define COUNT_NS (50 * WEFT_MS) /* time between two checks whether more nodes have joined */
#define DOWN_NS  (20 * WEFT_SECOND)
#define LOG_SHOW (64 << 10) /* if the cluster could not be started, maximum number of bytes of the log to print */

int up_launch(struct up *u, struct launch *l, const struct standing_place *p)
{
    char *argv[12], first[16];
    size_t n = 0;
    const struct launch_revive revive = {
        .join = u->join, .join_file = p->members, .joins = u->joins, .place = u->place, .up = p->socket, .down = p->down};
    snprintf(first, sizeof first, "%u", l->first);
    const char *const words[] = {l->self,   "up", "--as-node", "--cluster", u->cluster, "--first", first, u->metrics ? "--metrics" : NULL,
                                 u->metrics};
    for (size_t i = 0; i < sizeof words / sizeof words[0] && words[i]; i++)
        argv[n++] = (char *)(uintptr_t)words[i];
    argv[n] = NULL;
    l->tag = l->kill_on_failure = true;
    l->revive = &revive;
    l->argv = argv;
    int status = launch_cluster(l);
    up_ended(p, !u->more);
    l->argv = NULL;
    l->revive = NULL;
    return status;
}

/* In the new process: detach from the terminal, and write to the log. */
static int go_to_background(const struct standing_place *p)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int log = open(p->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (null < 0 || log < 0)
        return cli_error("up", "cannot go to the background, because %s cannot be opened: %s", log < 0 ? p->log : "/dev/null",
                         base_strerror(errno));
    setsid();
    dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close(null);
    close(log);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    return 0;
}

/* Print what was added to the log after its first `from` bytes. */
static void show_log(const struct standing_place *p, off_t from)
{
    char some[4096];
    size_t left = LOG_SHOW;
    FILE *f = fopen(p->log, "re");
    if (f && fseeko(f, from, SEEK_SET) == 0)
        for (size_t n; left && (n = fread(some, 1, sizeof some < left ? sizeof some : left, f)) > 0; left -= n)
            fwrite(some, 1, n, stderr);
    if (f)
        fclose(f);
}

/* Whether the nodes of this launcher are up or, if they begin a cluster, whether the whole cluster is up. */
static bool all_up(const struct up *u, const struct launch *l, const struct standing_place *p)
{
    struct control_request r = {.head = {.what = CONTROL_STATUS, .flags = CONTROL_WITHOUT_LINKS}};
    int fd = standing_connect(p, false); /* false: does not wait, because the caller also watches the launcher */
    if (fd < 0)
        return false;
    close(fd);
    char *text = NULL;
    uint32_t up = 0;
    json_t *o = standing_text("up", p->name, &r, &text) ? NULL : json_loads(text, 0, NULL), *node;
    size_t i;
    json_array_foreach (json_object_get(o, "nodes"), i, node) {
        json_int_t place = json_integer_value(json_object_get(node, "place"));
        const char *state = json_string_value(json_object_get(node, "state"));
        bool ours = !u->more || (place >= u->place && place < (json_int_t)u->place + l->nodes);
        up += ours && state && strcmp(state, "up") == 0;
    }
    json_decref(o);
    free(text);
    uint32_t wanted = l->size ? l->size : l->nodes;
    if (up < wanted)
        base_sleep_ns(COUNT_NS);
    return up >= wanted;
}

/* Wait until the nodes are up or the launcher has ended. */
static int wait_until_up(const struct up *u, const struct launch *l, const struct standing_place *p, pid_t launcher, off_t log_from)
{
    cli_catch_signals();
    for (bool told = false;; base_sleep_ns(LOOK_NS)) {
        if (cli_stopped() && !told) {
            kill(launcher, SIGTERM);
            told = true;
        }
        if (base_process_ended(launcher, NULL)) {
            int status = base_process_status(base_process_reap(launcher));
            show_log(p, log_from);
            if (cli_stopped())
                return 128 + cli_stopped();
            if (!u->joins)
                cli_error("up", "cluster '%s' could not be started: the log lines above have the reason", p->name);
            else
                cli_error("up", "cluster '%s': the new nodes could not join: the log lines above have the reason", p->name);
            return status ? status : CLI_FAILED;
        }
        if (!told && all_up(u, l, p))
            return 0;
    }
}

/* Warn if /run/user/UID will be removed at the user's logout, because then no command finds the cluster. systemd removes it unless
 * lingering is enabled for the user. */
static void warn_of_logout(const struct standing_place *p)
{
    char linger[300];
    const struct passwd *user = getpwuid(geteuid());
    if (!user || strncmp(p->folder, "/run/user/", 10) != 0)
        return;
    snprintf(linger, sizeof linger, "/var/lib/systemd/linger/%s", user->pw_name);
    if (access(linger, F_OK))
        fprintf(stderr,
                "weft up: warning: the system removes %s when user %s logs out, and then no command finds the cluster: to keep this "
                "directory, run `loginctl enable-linger %s`\n",
                p->folder, user->pw_name, user->pw_name);
}

void up_ended(const struct standing_place *p, bool last)
{
    if (access(p->down, F_OK) == 0) /* the cluster ends; without `down`, another launcher of this host may still need the file */
        unlink(p->members);
    if (last)
        unlink(p->down);
}

void up_remove_old(const struct standing_place *p)
{
    unlink(p->socket);
    unlink(p->down);
    unlink(p->members);
}

int up_background(struct up *u, struct launch *l, const struct standing_place *p)
{
    struct stat st;
    off_t log_from = stat(p->log, &st) == 0 ? st.st_size : 0;
    if (!u->more)
        up_remove_old(p);
    warn_of_logout(p);
    fflush(NULL);
    pid_t pid = base_process_fork();
    if (pid < 0)
        return cli_error("up", "cannot start the process that watches the cluster's nodes: %s" BASE_THREAD_HINT, base_strerror((int)pid));
    if (pid > 0)
        return wait_until_up(u, l, p, pid, log_from);
    int status = go_to_background(p);
    if (!status) {
        l->log = p->log;
        l->log_max = STANDING_LOG_MAX;
        status = up_launch(u, l, p);
    }
    exit(status);
}

/* Ask the control node, if this host has one, to end the cluster. Then tell the launchers of this host to end their nodes. */
int up_end(const char *sub, const char *cluster, bool quiet)
{
    struct standing_place place;
    struct control_request r = {.head = {.what = CONTROL_DOWN}};
    char *text = NULL;
    if (quiet && (standing_find(&place, cluster, false) || !standing_locked(&place)))
        return 0;
    int status = standing_text(sub, cluster, &r, &text);
    bool asked = status == 0;
    free(text);
    if (standing_find(&place, cluster, false) || (!asked && !standing_locked(&place)))
        return quiet ? 0 : CLI_FAILED;
    if (standing_mark_down(&place))
        status = cli_error(sub, "%s", base_error());
    if (!asked && !quiet)
        cli_error(sub, "only the processes of this host are ended: if the cluster has other hosts, run `weft down` on one of them, too");
    for (int64_t deadline = base_deadline(DOWN_NS); standing_locked(&place); base_sleep_ns(LOOK_NS))
        if (base_now_ns() > deadline)
            return cli_error(sub, "cluster '%s' did not end within %d s: see its log, %s", place.name, (int)(DOWN_NS / WEFT_SECOND),
                             place.log);
    unlink(place.down);
    unlink(place.members);
    return quiet ? 0 : status; /* `quiet`: an error of this request does not count */
}
