/* SPDX-License-Identifier: MIT
 *
 * The start of one command: vfork, so that the cost does not grow with the pools that are mapped here, and exec.
 */
#include "map/job.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

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

/* Everything in the child is safe after vfork: it only makes system calls, on memory that was prepared. Its own
 * function, so that no variable of the caller lives in a register that the child may change. */
static __attribute__((noinline)) pid_t start(const char *path, char *const *argv, const int fds[3],
                                              _Atomic int32_t *error)
{
    pid_t parent = getpid();
    pid_t pid = vfork(); /* NOLINT: posix_spawn() cannot set the death signal */
    if (pid)
        return pid;
    setpgid(0, 0);
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* died before that */
        _exit(127);
#else
    (void)parent;
#endif
    for (int i = 0; i < 3; i++)
        if (dup2(fds[i], i) < 0)
            _exit(127);
    /* Dispositions before the mask: no handler of ours may run here. */
    for (size_t i = 0; i < CHANGED; i++)
        sigaction(changed_signals[i], &original[i], NULL);
    sigprocmask(SIG_SETMASK, &original_mask, NULL);
    execve(path, argv, environ);
    atomic_store_explicit(error, errno, memory_order_relaxed);
    _exit(127);
}

int map_spawn(const char *path, char *const *argv, const int fds[3], _Atomic int32_t *error, pid_t *pid)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_store_explicit(error, 0, memory_order_relaxed);
    pid_t child = start(path, argv, fds, error);
    int failed = child < 0 ? errno : 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (child < 0)
        return -failed;
    *pid = child;
    return -atomic_load_explicit(error, memory_order_relaxed); /* the child is a zombie then, for the caller to reap */
}
