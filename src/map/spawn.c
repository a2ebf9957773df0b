/* SPDX-License-Identifier: MIT
 *
 * The command: what it is, and its start, with the signals that this program was given.
 */
#include "map/job.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

/* What this program changes for itself and commands must not inherit. */
static const int changed_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ, SIGUSR1};
#define CHANGED (sizeof changed_signals / sizeof changed_signals[0])
static struct sigaction original[CHANGED];
static sigset_t original_mask;

void map_signals_save(void)
{
    for (size_t i = 0; i < CHANGED; i++)
        sigaction(changed_signals[i], NULL, &original[i]);
    pthread_sigmask(SIG_SETMASK, NULL, &original_mask);
}

/* Is there something to execute at this path? */
static int executable(const char *path)
{
    struct stat st;
    if (stat(path, &st))
        return -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    return access(path, X_OK) ? -errno : 0;
}

int map_command_resolve(struct map_command *c, char *const *argv, bool literal)
{
    const char *name = argv[0];
    if (!name)
        return base_fail(-ENOENT, "there is no command");
    c->argv = argv;
    for (int i = 0; argv[i] && !literal; i++)
        if (strstr(argv[i], "{#}") || strstr(argv[i], "{file}") || strstr(argv[i], "{offset}") ||
            strstr(argv[i], "{length}") || strstr(argv[i], "{node}"))
            c->placeholders = true;
    int rc = -ENOENT;
    if (strchr(name, '/')) {
        if (strlen(name) >= sizeof c->path)
            return base_fail(-ENAMETOOLONG, "'%.64s...': the path is too long", name);
        strcpy(c->path, name);
        rc = executable(name);
    } else {
        const char *path = getenv("PATH");
        for (const char *p = path && path[0] ? path : "/bin:/usr/bin"; name[0] && *p;) {
            size_t n = strcspn(p, ":"), len = strlen(name);
            if (n + len + 2 <= sizeof c->path) {
                memcpy(c->path, n ? p : ".", n ? n : 1);
                size_t at = n ? n : 1;
                c->path[at] = '/';
                memcpy(c->path + at + 1, name, len + 1);
                int found = executable(c->path);
                if (found == 0) {
                    rc = 0;
                    break;
                }
                if (found == -EACCES)
                    rc = found;
            }
            p += n + (p[n] == ':');
        }
    }
    if (rc == -EACCES || rc == -EISDIR)
        return base_fail(-EACCES, "'%s' cannot be executed: %s", name, base_strerror(rc));
    if (rc && strpbrk(name, " |;&<>$"))
        return base_fail(-ENOENT, "there is no command '%s'; for a line of shell write: -- sh -c '...'", name);
    if (rc)
        return base_fail(-ENOENT, "there is no command '%s'%s", name,
                         strchr(name, '/') ? "" : " in any directory of PATH");
    return 0;
}

int map_spawn(const char *path, char *const *argv, const int fds[3], _Atomic int32_t *error, pid_t *pid)
{
    struct base_spawn how = {.path = path,
                             .argv = argv,
                             .env = environ,
                             .fds = fds,
                             .signals = changed_signals,
                             .actions = original,
                             .signal_count = CHANGED,
                             .mask = &original_mask};
    return base_spawn(&how, error, pid);
}
