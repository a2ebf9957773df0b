/* SPDX-License-Identifier: MIT
 *
 * Implements process.h. After vfork() the child shares its memory with a process that may have other threads. So between fork and exec the
 * child only makes system calls, with arguments that were prepared before.
 */
#include "base/process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

#if defined(__linux__)
#include <sys/prctl.h>
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <spawn.h>
#endif

/* vfork() does not copy the memory map, so its cost does not depend on the size of this process's memory. The calling thread waits until
 * the child has called exec or ended. The thread sanitizer replaces vfork() by fork(). */
#if defined(__linux__) && !BASE_THREAD_SANITIZER
#define STANDS_STILL  true
#define NEW_PROCESS() vfork() /* NOLINT: posix_spawn() cannot set the death signal */
#else
#define STANDS_STILL  false
#define NEW_PROCESS() fork()
#endif

/* The type of setrlimit()'s first argument: glibc declares an enumeration, other systems an int. */
#if defined(__GLIBC__)
typedef __rlimit_resource_t limit_resource;
#else
typedef int limit_resource;
#endif

/* --- programs --- */

static int process_usable(const char *path)
{
    struct stat st;
    if (stat(path, &st))
        return -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    if (!S_ISREG(st.st_mode))
        return -EACCES;
    return access(path, X_OK) ? -errno : 0;
}

int base_process_find(const char *name, char *out, size_t len)
{
    const char *list = getenv("PATH");
    int rc = -ENOENT;
    if (strchr(name, '/')) {
        if (strlen(name) >= len)
            return -ENAMETOOLONG;
        strcpy(out, name);
        return process_usable(name);
    }
    for (const char *p = list ? list : "/bin:/usr/bin"; name[0]; p++) {
        size_t n = strcspn(p, ":"), rest = strlen(name) + 2;
        if ((n ? n : 1) + rest <= len) {
            memcpy(out, n ? p : ".", n ? n : 1);
            out[n ? n : 1] = '/';
            memcpy(out + (n ? n : 1) + 1, name, rest - 1);
            int found = process_usable(out);
            if (found == 0)
                return 0;
            if (found == -EACCES)
                rc = found;
        }
        p += n;
        if (!*p)
            break;
    }
    return rc;
}

/* --- signals --- */

void base_dispositions_save(struct base_dispositions *d, const int *signals, size_t count)
{
    d->count = 0;
    for (size_t i = 0; i < count && i < BASE_DISPOSITIONS; i++) {
        d->number[d->count] = signals[i];
        sigaction(signals[i], NULL, &d->action[d->count++]);
    }
}

void base_dispositions_restore(const struct base_dispositions *d)
{
    for (unsigned i = 0; i < d->count; i++)
        sigaction(d->number[i], &d->action[i], NULL);
}

/* --- start --- */

/* What failed in the child. A child of vfork() writes the report into the parent's memory, any other child into a pipe. */
struct report {
    int32_t step, error;
};
struct prepared {
    const struct base_process *s;
    int fds[3];                     /* descriptors that become 0, 1 and 2; BASE_FD_OURS: unchanged */
    int opened[4];                  /* opened for the child, and closed in the parent afterwards; -1: none */
    int pipe[2];                    /* a pipe for the report; exec closes the child's end. -1: the child writes to `shared` instead */
    volatile struct report *shared; /* volatile: the compiler does not know that the child of vfork() writes to it */
    const sigset_t *mask;
};

static void unprepare(struct prepared *p)
{
    for (int i = 0; i < 4; i++)
        if (p->opened[i] >= 0)
            close(p->opened[i]);
    for (int i = 0; i < 2; i++)
        if (p->pipe[i] >= 0)
            close(p->pipe[i]);
}

static int process_open_pipe(struct prepared *p)
{
    int rc = base_pipe(p->pipe, 0);
    if (!rc && p->pipe[1] < 3) {
        int low = p->pipe[1];
        p->pipe[1] = fcntl(low, F_DUPFD_CLOEXEC, 3);
        rc = p->pipe[1] < 0 ? -errno : 0;
        close(low);
    }
    return rc;
}

/* The child overwrites its descriptors 0 to 2. So if descriptors with these numbers are still needed, they are first moved to higher
 * numbers. */
static int process_prepare(struct prepared *p, const struct base_process *s, volatile struct report *shared)
{
    int null = -1;
    *p = (struct prepared){.s = s, .fds = {-1, -1, -1}, .opened = {-1, -1, -1, -1}, .pipe = {-1, -1}, .shared = shared};
    for (int i = 0; i < 3; i++) {
        int fd = s->fds ? s->fds[i] : BASE_FD_OURS;
        if (fd == BASE_FD_NULL && null < 0 && (null = p->opened[3] = open("/dev/null", O_RDWR | O_CLOEXEC)) < 0)
            return -errno;
        fd = fd == BASE_FD_NULL ? null : fd;
        if (fd >= 0 && fd < 3 && fd != i && (fd = p->opened[i] = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0)
            return -errno;
        p->fds[i] = fd;
    }
    /* An orphan reports through a pipe: a vfork() child shares memory only with the intermediate process. */
    return STANDS_STILL && !s->orphan ? 0 : process_open_pipe(p);
}

/* Called in the child. Returns an errno on failure; on success it does not return. */
static int apply_settings(const struct prepared *p, pid_t parent, enum base_process_step *step)
{
    const struct base_process *s = p->s;
    *step = BASE_STEP_SETTINGS;
    if (s->group == BASE_GROUP_OWN && setpgid(0, 0))
        return errno;
    if (s->group == BASE_SESSION_OWN && !s->orphan && setsid() < 0)
        return errno;
    if (s->end_with && !base_end_with(parent, s->end_with))
        return ESRCH; /* the parent is gone, so nobody reads this result */
    if (s->number)
        atomic_store_explicit(s->number, (int32_t)getpid(), memory_order_seq_cst);
    for (int i = 0; i < 3; i++)
        if (p->fds[i] >= 0 && (p->fds[i] == i ? fcntl(i, F_SETFD, 0) : dup2(p->fds[i], i)) < 0)
            return errno;
    if (s->terminal && ioctl(0, TIOCSCTTY, 0))
        return errno;
    *step = BASE_STEP_DIRECTORY;
    if (s->directory && chdir(s->directory))
        return errno;
    *step = BASE_STEP_LIMITS;
    for (unsigned i = 0; i < s->limit_count; i++)
        if (setrlimit((limit_resource)s->limits[i].resource, &s->limits[i].limit))
            return errno;
    if (s->family)
        base_family_join(s->family);
    else if (s->orphan)
        base_family_leave();
    if (s->dispositions)
        base_dispositions_restore(s->dispositions);
    /* Reset the handlers before signals are unblocked: a handler of the parent, run in a vfork() child, would change the parent's
     * memory. */
    for (int sig = 1; sig < NSIG; sig++) {
        struct sigaction now;
        if (sigaction(sig, NULL, &now) == 0 && now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN) {
            now = (struct sigaction){.sa_handler = SIG_DFL};
            sigaction(sig, &now, NULL);
        }
    }
    sigprocmask(SIG_SETMASK, p->mask, NULL);
    return 0;
}

static void process_tell(const struct prepared *p, struct report r)
{
    *p->shared = r;
    if (p->pipe[1] >= 0 && write(p->pipe[1], &r, sizeof r) < 0)
        return; /* nobody reads the pipe: the parent has died */
}

static _Noreturn void become(const struct prepared *p, pid_t parent)
{
    enum base_process_step step;
    int error = apply_settings(p, parent, &step);
    struct report r = {(int32_t)step, error};
    if (!error) {
        if (p->s->env)
            execve(p->s->path, p->s->argv, p->s->env);
        else
            execv(p->s->path, p->s->argv);
        r = (struct report){BASE_STEP_PROGRAM, errno};
    }
    process_tell(p, r);
    _exit(127);
}

/* A separate function, so that the vfork() child cannot change registers that hold the caller's variables. */
static __attribute__((noinline)) pid_t make_process(const struct prepared *p)
{
    pid_t parent = getpid();
    pid_t pid = NEW_PROCESS();
    if (pid == 0)
        become(p, parent);
    return pid;
}

/* Double fork: the intermediate process ends when the orphan runs. The orphan does not lead its session, so it cannot get a controlling
 * terminal. The first step is fork(), because the address sanitizer does not support a vfork() in a child of vfork(). */
static pid_t make_orphan(const struct prepared *p)
{
    pid_t pid = fork();
    if (pid == 0) {
        pid_t child = setsid() < 0 ? -1 : make_process(p);
        if (child < 0)
            process_tell(p, (struct report){BASE_STEP_PROCESS, errno});
        _exit(0);
    }
    return pid;
}

/* Returns the child's report. The report is empty if the child has executed its program. */
static struct report process_hear(struct prepared *p)
{
    if (p->pipe[0] < 0) /* vfork(): the child has already ended or executed its program */
        return *p->shared;
    struct report r = {BASE_STEP_NONE, 0};
    close(p->pipe[1]);
    p->pipe[1] = -1;
    ssize_t n;
    do
        n = read(p->pipe[0], &r, sizeof r);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof r ? r : (struct report){BASE_STEP_NONE, 0};
}

static int process_start(const struct base_process *s, pid_t *pid, enum base_process_step *step)
{
    struct prepared p;
    volatile struct report shared = {BASE_STEP_NONE, 0};
    sigset_t all, before;
    *step = BASE_STEP_PROCESS;
    int rc = process_prepare(&p, s, &shared);
    if (rc) {
        unprepare(&p);
        return rc;
    }
    p.mask = s->mask ? s->mask : &before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t child = s->orphan ? make_orphan(&p) : make_process(&p);
    rc = child < 0 ? -errno : 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!rc && s->orphan) /* reap the intermediate process; it ends when the orphan runs or has failed */
        base_process_reap(child);
    if (!rc) {
        struct report r = process_hear(&p);
        rc = -r.error;
        *step = (enum base_process_step)r.step;
        if (rc && s->number) /* reset before the child is reaped, because afterwards another process may get its number */
            atomic_store_explicit(s->number, 0, memory_order_seq_cst);
        if (rc && !s->orphan)
            base_process_reap(child);
    }
    unprepare(&p);
    if (!rc && !s->orphan)
        *pid = child;
    return rc;
}

#if defined(__APPLE__)
/* macOS has no pipe2(), so at this moment another thread may have a new pipe that is not close-on-exec yet. POSIX_SPAWN_CLOEXEC_DEFAULT
 * closes such descriptors in the child, too. */
static int spawn(const struct base_process *s, pid_t *pid)
{
    posix_spawnattr_t how;
    posix_spawn_file_actions_t files;
    sigset_t back, mask;
    /* Ignored signals stay ignored in the child. Saved signals get their default action, unless they were ignored when they were saved. */
    sigemptyset(&back);
    for (unsigned i = 0; s->dispositions && i < s->dispositions->count; i++)
        if (s->dispositions->action[i].sa_handler != SIG_IGN)
            sigaddset(&back, s->dispositions->number[i]);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    int rc = posix_spawnattr_init(&how);
    if (rc)
        return -rc;
    rc = posix_spawn_file_actions_init(&files);
    if (rc) {
        posix_spawnattr_destroy(&how);
        return -rc;
    }
    posix_spawnattr_setflags(&how, (short)((s->group == BASE_GROUP_OWN ? POSIX_SPAWN_SETPGROUP : 0) |
                                           (s->group == BASE_SESSION_OWN ? POSIX_SPAWN_SETSID : 0) | POSIX_SPAWN_SETSIGDEF |
                                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_CLOEXEC_DEFAULT));
    posix_spawnattr_setpgroup(&how, 0);
    posix_spawnattr_setsigdefault(&how, &back);
    posix_spawnattr_setsigmask(&how, s->mask ? s->mask : &mask);
    for (int i = 0; i < 3 && !rc; i++) {
        int fd = s->fds ? s->fds[i] : BASE_FD_OURS;
        rc = fd >= 0              ? posix_spawn_file_actions_adddup2(&files, fd, i)
             : fd == BASE_FD_NULL ? posix_spawn_file_actions_addopen(&files, i, "/dev/null", O_RDWR, 0)
                                  : posix_spawn_file_actions_addinherit_np(&files, i);
    }
    extern char **environ;
    if (!rc)
        rc = posix_spawn(pid, s->path, &files, &how, s->argv, s->env ? s->env : environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&how);
    if (rc)
        *pid = 0;
    else if (s->number)
        atomic_store_explicit(s->number, (int32_t)*pid, memory_order_seq_cst);
    return -rc;
}
#endif

int base_process_start(const struct base_process *s, pid_t *pid, enum base_process_step *step)
{
    enum base_process_step none;
    step = step ? step : &none;
    *pid = 0;
#if defined(__APPLE__)
    if (!s->orphan && !s->limit_count && !s->directory && !s->terminal && !s->family) {
        int rc = spawn(s, pid);
        *step = rc ? BASE_STEP_PROGRAM : BASE_STEP_NONE;
        return rc;
    }
#endif
    return process_start(s, pid, step);
}

pid_t base_process_fork(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    int error = errno;
    if (pid)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pid < 0 ? -error : pid;
}

void base_process_null(int count)
{
    int null = open("/dev/null", O_RDWR);
    for (int i = 0; null >= 0 && i < count; i++)
        dup2(null, i);
    if (null >= count)
        close(null);
}

void base_close_from(int lowest)
{
#if defined(SYS_close_range)
    if (syscall(SYS_close_range, lowest, ~0u, 0) == 0)
        return;
#endif
    struct rlimit most;
    int end = getrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur < 65536 ? (int)most.rlim_cur : 65536;
    for (int fd = lowest; fd < end; fd++)
        close(fd);
}

void base_process_set_apart(const char *name)
{
    setsid();
    base_family_leave();
    base_name_process(name);
    base_process_null(3);
}

/* --- watch and end --- */

bool base_process_ended(pid_t pid, siginfo_t *how)
{
    siginfo_t own;
    how = how ? how : &own;
    memset(how, 0, sizeof *how);
    return waitid(P_PID, (id_t)pid, how, WEXITED | WNOHANG | WNOWAIT) == 0 && how->si_pid == pid;
}

bool base_process_stopped(pid_t pid)
{
    siginfo_t how = {.si_pid = 0};
    return waitid(P_PID, (id_t)pid, &how, WSTOPPED | WNOHANG | WNOWAIT) == 0 && how.si_pid == pid;
}

int base_process_reap_usage(pid_t pid, struct rusage *usage)
{
    int how = 0;
    while (wait4(pid, &how, 0, usage) < 0)
        if (errno != EINTR)
            return 0;
    return how;
}

int base_process_reap(pid_t pid)
{
    return base_process_reap_usage(pid, NULL);
}

int base_process_status(int how)
{
    return WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
}

int base_process_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    return base_process_reap(pid);
}

int base_process_kill_group(pid_t pid)
{
    kill(-pid, SIGKILL);
    return base_process_reap(pid);
}

/* --- functions that need Linux --- */

#if defined(__linux__)
int base_watch_process(int pid)
{
#if defined(SYS_pidfd_open)
    if (pid > 0)
        return (int)syscall(SYS_pidfd_open, pid, 0); /* always close-on-exec */
#endif
    (void)pid;
    return -1;
}

bool base_end_with(pid_t parent, int signal)
{
    prctl(PR_SET_PDEATHSIG, signal);
    return getppid() == parent; /* false: the parent ended before prctl() */
}

void base_adopt(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

void base_name_process(const char *name)
{
    prctl(PR_SET_NAME, name);
}
#else
int base_watch_process(int pid)
{
    (void)pid;
    return -1;
}

bool base_end_with(pid_t parent, int signal)
{
    (void)signal;
    return getppid() == parent;
}

void base_adopt(void)
{
}

void base_name_process(const char *name)
{
    (void)name;
}
#endif
