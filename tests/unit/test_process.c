/* SPDX-License-Identifier: MIT
 *
 * Finding, starting, waiting for and ending processes: what a new program inherits, and the error if it cannot be started.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/process.h"

static char dir[] = "/tmp/weft-process-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

static void make_file(const char *name, const char *text, mode_t mode)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

/* Returns what `sh -c line` with these settings writes to its standard output; `how` gets its status. */
static char *output_of(struct base_process *p, const char *line, int *how)
{
    static char text[4096];
    const char *argv[] = {"sh", "-c", line, NULL};
    int out[2], fds[3] = {BASE_FD_NULL, -1, BASE_FD_OURS};
    size_t n = 0;
    pid_t pid;
    assert_int_equal(base_pipe(out, 0), 0);
    fds[1] = out[1];
    p->path = "/bin/sh";
    p->argv = (char *const *)(uintptr_t)argv;
    p->fds = fds;
    assert_int_equal(base_process_start(p, &pid, NULL), 0);
    close(out[1]);
    for (ssize_t got; (got = read(out[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    close(out[0]);
    text[n] = '\0';
    *how = p->orphan ? 0 : base_process_reap(pid);
    return text;
}

static void finds_programs_as_a_shell(void **state)
{
    (void)state;
    char out[256], want[256], path[512], before[4096];
    snprintf(before, sizeof before, "%s", getenv("PATH"));
    make_file("program", "#!/bin/sh\n", 0700);
    make_file("data", "no program\n", 0600);
    snprintf(path, sizeof path, "%s/folder", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "/nonexistent:%s:/bin", dir);
    setenv("PATH", path, 1);
    snprintf(want, sizeof want, "%s/program", dir);
    assert_int_equal(base_process_find("program", out, sizeof out), 0);
    assert_string_equal(out, want);
    assert_int_equal(base_process_find("sh", out, sizeof out), 0);
    assert_string_equal(out, "/bin/sh");
    assert_int_equal(base_process_find(want, out, sizeof out), 0);
    assert_string_equal(out, want);
    assert_int_equal(base_process_find("data", out, sizeof out), -EACCES);
    assert_int_equal(base_process_find("folder", out, sizeof out), -ENOENT);
    assert_int_equal(base_process_find("nothing", out, sizeof out), -ENOENT);
    assert_int_equal(base_process_find("", out, sizeof out), -ENOENT);
    assert_int_equal(base_process_find(dir, out, sizeof out), -EISDIR);
    assert_int_equal(base_process_find("./nothing", out, sizeof out), -ENOENT);
    assert_int_equal(base_process_find("/bin/sh", out, 4), -ENAMETOOLONG);
    /* An empty entry of PATH is the current folder; so is an empty last one. */
    char *here = getcwd(NULL, 0);
    assert_int_equal(chdir(dir), 0);
    setenv("PATH", "/nonexistent:", 1);
    assert_int_equal(base_process_find("program", out, sizeof out), 0);
    assert_string_equal(out, "./program");
    setenv("PATH", "", 1);
    assert_int_equal(base_process_find("program", out, sizeof out), 0);
    unsetenv("PATH");
    assert_int_equal(base_process_find("program", out, sizeof out), -ENOENT);
    assert_int_equal(base_process_find("sh", out, sizeof out), 0);
    assert_int_equal(chdir(here), 0);
    free(here);
    setenv("PATH", before, 1);
}

static void says_what_does_not_start(void **state)
{
    (void)state;
    const char *argv[] = {"x", NULL};
    enum base_process_step step;
    char path[128];
    pid_t pid;
    struct base_process p = {.path = "/nonexistent", .argv = (char *const *)(uintptr_t)argv, .group = BASE_GROUP_OWN, .end_with = SIGKILL};
    for (int orphan = 0; orphan < 2; orphan++) {
        p.orphan = orphan;
        p.group = orphan ? BASE_SESSION_OWN : BASE_GROUP_OWN;
        p.end_with = orphan ? 0 : SIGKILL;
        p.path = "/nonexistent";
        assert_int_equal(base_process_start(&p, &pid, &step), -ENOENT);
        assert_int_equal(step, BASE_STEP_PROGRAM);
        assert_int_equal(pid, 0);
        make_file("text", "no first line\n", 0700);
        snprintf(path, sizeof path, "%s/text", dir);
        p.path = path;
        assert_int_equal(base_process_start(&p, &pid, &step), -ENOEXEC);
        assert_int_equal(step, BASE_STEP_PROGRAM);
        const struct base_limit nonsense = {RLIMIT_NOFILE, {.rlim_cur = 2, .rlim_max = 1}};
        p.limits = &nonsense;
        p.limit_count = 1;
        assert_int_equal(base_process_start(&p, &pid, &step), -EINVAL);
        assert_int_equal(step, BASE_STEP_LIMITS);
        p.limit_count = 0;
        p.directory = "/nonexistent";
        assert_int_equal(base_process_start(&p, &pid, &step), -ENOENT);
        assert_int_equal(step, BASE_STEP_DIRECTORY);
        p.directory = NULL;
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nothing is left */
        assert_int_equal(errno, ECHILD);
    }
}

static void has_its_directory_and_limits(void **state)
{
    (void)state;
    const struct base_limit limits[] = {{RLIMIT_NOFILE, {.rlim_cur = 17, .rlim_max = 17}}, {RLIMIT_CORE, {.rlim_cur = 0, .rlim_max = 0}}};
    struct base_process p = {.directory = "/", .limits = limits, .limit_count = 2};
    int how;
    assert_string_equal(output_of(&p, "pwd; ulimit -n; ulimit -c", &how), "/\n17\n0\n");
    assert_int_equal(how, 0);
}

static void places_descriptors(void **state)
{
    (void)state;
    int how, a[2], b[2], keep = dup(1), keep_err = dup(2), c[2];
    char text[64];
    const char *argv[] = {"sh", "-c", "read x; echo out $x; echo err >&2", NULL};
    pid_t pid;
    /* Descriptor 2 is to become 1, and descriptor 1 is to become 2. Descriptor 0 is to stay 0, but is close-on-exec. */
    int keep_in = dup(0);
    assert_int_equal(base_pipe(a, 0), 0);
    assert_int_equal(base_pipe(b, 0), 0);
    assert_int_equal(base_pipe(c, 0), 0);
    assert_int_equal(write(c[1], "word\n", 5), 5);
    fcntl(keep, F_SETFD, FD_CLOEXEC), fcntl(keep_err, F_SETFD, FD_CLOEXEC), fcntl(keep_in, F_SETFD, FD_CLOEXEC);
    fflush(NULL);
    dup2(a[1], 2);
    dup2(b[1], 1);
    dup2(c[0], 0);
    fcntl(0, F_SETFD, FD_CLOEXEC);
    const int fds[3] = {0, 2, 1};
    const struct base_process p = {.path = "/bin/sh", .argv = (char *const *)(uintptr_t)argv, .fds = fds};
    int rc = base_process_start(&p, &pid, NULL);
    dup2(keep, 1);
    dup2(keep_err, 2);
    dup2(keep_in, 0);
    close(keep), close(keep_err), close(keep_in);
    close(a[1]), close(b[1]), close(c[0]), close(c[1]);
    assert_int_equal(rc, 0);
    how = base_process_reap(pid);
    assert_int_equal(how, 0);
    ssize_t n = read(a[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    assert_string_equal(text, "out word\n");
    n = read(b[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    assert_string_equal(text, "err\n");
    close(a[0]), close(b[0]);
}

static void passes_nothing_else_on(void **state)
{
    (void)state;
    int how;
    struct base_process p = {.path = NULL};
    const char *list = output_of(&p, "readlink /proc/self/fd/0; ls /proc/self/fd | wc -l", &how);
    int open_there = 0;
    assert_int_equal(sscanf(list, "/dev/null %d", &open_there), 1);
    int inherited = 0;
    for (int fd = 3; fd < 1024; fd++)
        inherited += fcntl(fd, F_GETFD) == 0;        /* open and not close-on-exec: inherited from the process that started the test */
    assert_int_equal(open_there, 3 + inherited + 1); /* ls itself has the folder open */
}

static volatile sig_atomic_t handled;

static void on_signal(int sig)
{
    (void)sig;
    handled++;
}

static void gives_signals_back(void **state)
{
    (void)state;
    static const int mine[] = {SIGUSR1, SIGPIPE, SIGXFSZ};
    struct base_dispositions before;
    int how;
    sigset_t usr2, was;
    base_dispositions_save(&before, mine, 3);
    struct sigaction ignore = {.sa_handler = SIG_IGN}, handler = {.sa_handler = on_signal}, dfl = {.sa_handler = SIG_DFL};
    sigaction(SIGUSR1, &ignore, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGALRM, &handler, NULL);
    sigaction(SIGWINCH, &ignore, NULL);
    sigemptyset(&usr2);
    sigaddset(&usr2, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &usr2, &was);
    unsigned long long ignored, blocked, caught;
    static const char line[] = "while read a b; do case $a in SigBlk:|SigIgn:|SigCgt:) echo $a $b;; esac; done </proc/self/status";
    struct base_process p = {.dispositions = &before};
    assert_int_equal(sscanf(output_of(&p, line, &how), "SigBlk: %llx SigIgn: %llx SigCgt: %llx", &blocked, &ignored, &caught), 3);
    assert_true(blocked >> (SIGUSR2 - 1) & 1);
    assert_false(ignored >> (SIGUSR1 - 1) & 1);
    assert_false(ignored >> (SIGPIPE - 1) & 1);
    assert_true(ignored >> (SIGWINCH - 1) & 1); /* this signal was not asked for */
    assert_false(caught >> (SIGALRM - 1) & 1);
    sigset_t none;
    sigemptyset(&none);
    p = (struct base_process){.mask = &none};
    assert_int_equal(sscanf(output_of(&p, line, &how), "SigBlk: %llx SigIgn: %llx", &blocked, &ignored), 2);
    assert_int_equal(blocked, 0);
    assert_true(ignored >> (SIGUSR1 - 1) & 1);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    base_dispositions_restore(&before);
    sigaction(SIGALRM, &dfl, NULL);
    sigaction(SIGWINCH, &dfl, NULL);
    assert_int_equal(handled, 0);
}

static void leads_a_group_or_a_session(void **state)
{
    (void)state;
    int how, pid, group, session, parent;
    /* Shared memory, for systems on which a new process does not share the test's memory. */
    _Atomic int32_t *number = mmap(NULL, sizeof *number, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(number != MAP_FAILED);
    static const char line[] = "read pid comm state parent group session rest </proc/$$/stat; echo $pid $parent $group $session";
    struct base_process p = {.number = NULL};
    assert_int_equal(sscanf(output_of(&p, line, &how), "%d %d %d %d", &pid, &parent, &group, &session), 4);
    assert_int_equal(parent, getpid());
    assert_int_equal(group, getpgrp());
    p = (struct base_process){.group = BASE_GROUP_OWN, .number = number};
    assert_int_equal(sscanf(output_of(&p, line, &how), "%d %d %d %d", &pid, &parent, &group, &session), 4);
    assert_int_equal(group, pid);
    assert_int_equal(session, getsid(0));
    assert_int_equal(atomic_load(number), pid);
    p = (struct base_process){.group = BASE_SESSION_OWN};
    assert_int_equal(sscanf(output_of(&p, line, &how), "%d %d %d %d", &pid, &parent, &group, &session), 4);
    assert_int_equal(session, pid);
    p = (struct base_process){.group = BASE_SESSION_OWN, .orphan = true};
    assert_int_equal(sscanf(output_of(&p, line, &how), "%d %d %d %d", &pid, &parent, &group, &session), 4);
    assert_int_not_equal(parent, getpid());
    assert_int_not_equal(session, pid); /* the new process is no session leader, so it can get no terminal */
    assert_int_not_equal(session, getsid(0));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    munmap((void *)(uintptr_t)number, sizeof *number);
}

static void follows_and_ends(void **state)
{
    (void)state;
    const char *argv[] = {"sh", "-c", "sleep 600 & echo $!; wait", NULL};
    int out[2];
    char text[32];
    pid_t pid;
    siginfo_t info;
    assert_int_equal(base_pipe(out, 0), 0);
    const int fds[3] = {BASE_FD_NULL, out[1], BASE_FD_OURS};
    const struct base_process p = {.path = "/bin/sh", .argv = (char *const *)(uintptr_t)argv, .fds = fds, .group = BASE_GROUP_OWN};
    assert_int_equal(base_process_start(&p, &pid, NULL), 0);
    close(out[1]);
    ssize_t n = read(out[0], text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = '\0';
    pid_t grandchild = (pid_t)atoi(text);
    assert_false(base_process_ended(pid, &info));
    kill(pid, SIGTERM);
    while (!base_process_ended(pid, &info))
        usleep(1000);
    assert_true(base_process_ended(pid, &info)); /* the process has still not been reaped */
    assert_int_equal(info.si_status, SIGTERM);
    assert_int_equal(kill(grandchild, 0), 0);
    int how = base_process_kill_group(pid);
    assert_int_equal(base_process_status(how), 128 + SIGTERM);
    assert_int_equal(read(out[0], text, 1), 0); /* end of file: the processes that it started have ended, too */
    close(out[0]);
    assert_int_equal(base_process_reap(pid), 0); /* the process is no child any more */
    struct base_process q = {.group = BASE_GROUP_OWN};
    output_of(&q, "exit 3", &how);
    assert_int_equal(base_process_status(how), 3);
}

static void forks_without_handlers(void **state)
{
    (void)state;
    struct sigaction handler = {.sa_handler = on_signal}, before;
    int fd[2];
    assert_int_equal(base_pipe(fd, 0), 0);
    sigaction(SIGALRM, &handler, &before);
    pid_t pid = base_process_fork();
    if (pid == 0) {
        raise(SIGALRM);
        base_process_set_apart("weft-apart");
        struct stat null, st;
        bool right = stat("/dev/null", &null) == 0 && handled == 0 && getsid(0) == getpid();
        for (int i = 0; i < 3; i++)
            right = right && fstat(i, &st) == 0 && st.st_rdev == null.st_rdev;
        (void)!write(fd[1], right ? "y" : "n", 1);
        _exit(7);
    }
    sigaction(SIGALRM, &before, NULL);
    assert_true(pid > 0);
    char answer = 0;
    assert_int_equal(read(fd[0], &answer, 1), 1);
    assert_int_equal(answer, 'y');
    assert_int_equal(base_process_status(base_process_reap(pid)), 7);
    close(fd[0]), close(fd[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_programs_as_a_shell),    cmocka_unit_test(says_what_does_not_start),
        cmocka_unit_test(has_its_directory_and_limits), cmocka_unit_test(places_descriptors),
        cmocka_unit_test(passes_nothing_else_on),       cmocka_unit_test(gives_signals_back),
        cmocka_unit_test(leads_a_group_or_a_session),   cmocka_unit_test(follows_and_ends),
        cmocka_unit_test(forks_without_handlers),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
