/* SPDX-License-Identifier: MIT
 *
 * Finds the command, and starts it with the signal dispositions and the environment that this program was given.
 */
#include "map/job.h"

#include <stdlib.h>
#include <string.h>

extern char **environ;

/* The signal dispositions that this program was started with. Commands are started with the same ones. */
static struct base_dispositions original;
static sigset_t original_mask;

/* The environment of commands. It has no variables of the launcher: a weft program that a command starts must not try to join this job.
 * Variables NAME that were changed for an emulated host get the value that the launcher has stored in WEFT_OUTER_NAME. */
static char **command_env;
static const char outer[] = "WEFT_OUTER_";

static const char *outer_value(const char *assignment)
{
    size_t n = strcspn(assignment, "=") + 1;
    for (char **e = environ; *e; e++)
        if (strncmp(*e, outer, sizeof outer - 1) == 0 && strncmp(*e + sizeof outer - 1, assignment, n) == 0)
            return *e + sizeof outer - 1;
    return NULL;
}

int map_environment_save(bool apart)
{
    static const char *const ours[] = {
        "WEFT_RANK=", "WEFT_SIZE=", "WEFT_COORD=", "WEFT_SECRET=", "WEFT_POOL=", "WEFT_HOSTFILE=", "WEFT_GROW=", "WEFT_JOIN=", outer};
    size_t count = 0, n = 0;
    command_env = environ;
    if (!apart)
        return 0;
    while (environ[count])
        count++;
    char **kept = calloc(count + 1, sizeof *kept);
    if (!kept)
        return base_fail(-ENOMEM, "no memory for the environment variables of the commands" BASE_MEMORY_HINT);
    for (size_t i = 0; i < count; i++) {
        const char *was = outer_value(environ[i]);
        bool hidden = was && !strchr(was, '=')[1];
        for (size_t k = 0; k < sizeof ours / sizeof ours[0]; k++)
            hidden = hidden || strncmp(environ[i], ours[k], strlen(ours[k])) == 0;
        if (!hidden)
            kept[n++] = was ? (char *)(uintptr_t)was : environ[i];
    }
    command_env = kept; /* never freed */
    return 0;
}

void map_signals_save(void)
{
    static const int changed[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ, SIGUSR1, SIGTSTP};
    base_dispositions_save(&original, changed, sizeof changed / sizeof changed[0]);
    pthread_sigmask(SIG_SETMASK, NULL, &original_mask);
}

int map_command_resolve(struct map_command *c, char *const *argv, bool literal)
{
    const char *name = argv[0];
    if (!name)
        return base_fail(-ENOENT, "the command is empty: name a program after --");
    c->argv = argv;
    for (int i = 0; argv[i] && !literal; i++)
        if (strstr(argv[i], "{#}") || strstr(argv[i], "{file}") || strstr(argv[i], "{offset}") || strstr(argv[i], "{length}") ||
            strstr(argv[i], "{node}"))
            c->placeholders = true;
    int rc = base_process_find(name, c->path, sizeof c->path);
    if (rc == -ENAMETOOLONG)
        return base_fail(-ENAMETOOLONG, "'%.64s...': the path of the command is too long; use a shorter path", name);
    if (rc == -EACCES || rc == -EISDIR)
        return base_fail(-EACCES, "'%s' cannot be executed: %s", name, base_strerror(rc));
    if (rc && strpbrk(name, " |;&<>$"))
        return base_fail(-ENOENT, "there is no command '%s'; to run a shell command line use: -- sh -c '...'", name);
    if (rc)
        return base_fail(-ENOENT, "there is no command '%s'%s: check its name, or give its whole path", name,
                         strchr(name, '/') ? "" : " in any directory of PATH");
    return base_check_interpreter(c->path);
}

int map_spawn(const char *path, char *const *argv, const int fds[3], _Atomic int32_t *group, pid_t *pid)
{
    const struct base_process how = {.path = path,
                                     .argv = argv,
                                     .env = command_env,
                                     .fds = fds,
                                     .group = BASE_GROUP_OWN,
                                     .end_with = SIGKILL,
                                     .dispositions = &original,
                                     .mask = &original_mask,
                                     .number = group};
    return base_process_start(&how, pid, NULL);
}
