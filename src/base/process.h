/* SPDX-License-Identifier: MIT
 *
 * Finds programs, and starts, watches and ends processes. All code that starts a program uses base_process_start(). All code that continues
 * in a new process without exec uses base_process_fork().
 */
#ifndef WEFT_BASE_PROCESS_H
#define WEFT_BASE_PROCESS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/* --- programs --- */
/* Find a program as a shell does. A name with a slash is a path. Any other name is searched for in the directories of PATH; without PATH in
 * /bin and /usr/bin. An empty entry of PATH is the current directory. Returns 0 with the path in `out`, or a negative errno without
 * base_fail(): -ENOENT: not found; -EACCES: it may not be executed; -EISDIR: the path is a directory. */
int base_process_find(const char *name, char *out, size_t len);
/* Check the interpreter in the first line of a script. If it does not exist, executing the script fails with ENOENT, as if the script did
 * not exist. Returns -ENOENT, with base_fail() naming the interpreter, or 0. */
int base_check_interpreter(const char *path);

/* --- signal dispositions that a program changes for itself, and that programs started by it must not inherit --- */
#define BASE_DISPOSITIONS 12u
struct base_dispositions {
    unsigned count;
    int number[BASE_DISPOSITIONS];
    struct sigaction action[BASE_DISPOSITIONS];
};
void base_dispositions_save(struct base_dispositions *d, const int *signals, size_t count); /* saves the present ones */
void base_dispositions_restore(const struct base_dispositions *d);

/* --- start --- */
#define BASE_FD_OURS (-1) /* inherit this process's descriptor */
#define BASE_FD_NULL (-2) /* /dev/null */
enum base_process_group { BASE_GROUP_OURS, BASE_GROUP_OWN, BASE_SESSION_OWN };
enum base_process_step { BASE_STEP_NONE, BASE_STEP_PROCESS, BASE_STEP_SETTINGS, BASE_STEP_PROGRAM, BASE_STEP_DIRECTORY, BASE_STEP_LIMITS };

/* A limit of the new process: RLIMIT_NOFILE and its like. */
struct base_limit {
    int resource;
    struct rlimit limit;
};

struct base_process {
    const char *path; /* from base_process_find() */
    char *const *argv;
    char *const *env; /* NULL: this process's environment */
    /* [3] descriptors 0, 1 and 2 of the program: a descriptor of this process, BASE_FD_OURS or BASE_FD_NULL. NULL: inherit all three. The
     * program inherits other descriptors unless they are close-on-exec. */
    const int *fds;
    enum base_process_group group; /* BASE_GROUP_OWN: the new process leads a new process group */
    int end_with;                  /* signal that the new process gets when the thread that started it ends, on Linux only; 0: none */
    /* Signals in this list get the saved dispositions. Of other signals, those with a handler get their default, and ignored ones stay
     * ignored. NULL: no list. */
    const struct base_dispositions *dispositions;
    const sigset_t *mask; /* blocked signals of the new process; NULL: those of the calling thread */
    const struct base_limit *limits;
    unsigned limit_count;
    const char *directory; /* working directory of the new process; NULL: this process's. A relative `path` is relative to it */
    bool terminal;         /* descriptor 0 becomes the controlling terminal of the new process; needs BASE_SESSION_OWN, and not `orphan` */
    bool orphan; /* the new process is not a child of this process, so it cannot be waited for, and `pid` is 0; needs BASE_SESSION_OWN */
    /* The pid is written here before the program runs (on macOS after), in memory shared with a process that may outlive this one. 0 again
     * if the program does not start. NULL: not needed. */
    _Atomic int32_t *number;
    uint64_t family; /* the mark of the family that the new process begins (base_family_mark()); 0: the new process belongs to the family of
                        this process */
};
/* Start a program. Any thread may call it. Signal handlers of this process do not run in the new one. Returns 0 when the program runs. On
 * failure returns a negative errno without base_fail() and leaves no process; `step` (may be NULL) says what failed: creating the process,
 * its settings, its directory or limits, or executing the program. The cost does not grow with the memory mapped here, except for an
 * orphan. */
int base_process_start(const struct base_process *s, pid_t *pid, enum base_process_step *step);

/* fork(): returns 0 in the child. All signals are blocked in the child, so that no handler of the parent runs there. Only for processes
 * without other threads: the child has only the calling thread, and locks held by others would never be released. Returns a negative errno
 * without base_fail() on failure. */
pid_t base_process_fork(void);
/* Called in a forked process that must outlive its parent. Moves the process to a session of its own, and out of its family (struct
 * base_family). So signals to the terminal, the process group and the family of the parent do not reach it. Opens /dev/null as descriptors
 * 0 to 2. `name` is shown by ps.
 */
void base_process_set_apart(const char *name);
void base_close_from(int lowest);  /* closes all descriptors from that number on */
void base_process_null(int count); /* opens /dev/null as descriptors 0 to count - 1 */
/* Called in a new process: make it get `signal` when `parent` ends, on Linux. False: the parent has ended already. */
bool base_end_with(pid_t parent, int signal);
void base_name_process(const char *name);

/* --- watch --- */
/* A descriptor that becomes readable when the process ends; negative: not supported by the system. */
int base_watch_process(int pid);
/* Whether a child has ended. Does not reap it, so no other process or group can get its number yet. `how` (may be NULL) gets the way in
 * which it ended. */
bool base_process_ended(pid_t pid, siginfo_t *how);
bool base_process_stopped(pid_t pid); /* whether a child is stopped by a signal */
/* Wait for a child's end and reap it. Returns its wait status; 0 if it is not a child of this process. */
int base_process_reap(pid_t pid);
/* As base_process_reap(). `usage` (may be NULL) gets the resources that the child, and the children that it has waited for, have used. */
int base_process_reap_usage(pid_t pid, struct rusage *usage);
int base_process_status(int how); /* the exit status of a wait status, as in a shell: 128 + N if signal N ended the process */
void base_adopt(void);            /* adopt processes whose parent has died, if it was a descendant of this process; Linux only */

/* --- end --- */
int base_process_kill(pid_t pid); /* SIGKILL, then base_process_reap() */
/* As base_process_kill(), for a child that leads a process group, and for all processes in the group. The group is killed before the child
 * is reaped, while no other group can have its number. */
int base_process_kill_group(pid_t pid);

/* --- families --- */
/* Here a family is a program with all processes that descend from it, whatever process groups and sessions they are in. On Linux the
 * processes are found by a mark that they inherit (family.c). Processes of this library that must outlive their parent do not belong to the
 * family (base_process_set_apart(), orphans). On macOS only some descendants are found: those in the leader's process group, and those in
 * its session whose parents live. */
struct base_family {
    pid_t leader; /* leads a process group, and is not reaped yet */
    bool session; /* the leader also leads a session, and all processes of the session belong to the family */
    uint64_t mark;
};
uint64_t base_family_mark(void);      /* a new mark; 0: the system has none */
void base_family_join(uint64_t mark); /* called in a new process. Without effect where the user may not set the limit used for it */
void base_family_leave(void);         /* this process, and those that it starts, belong to no family */
/* Sends a signal to all processes of these families, except this one. Returns how many of them have not ended. */
unsigned base_family_signal(const struct base_family *f, unsigned count, int signal);
/* Sends the signals that a terminal sends when it closes, and waits a moment for the families to end. */
void base_family_hang_up(const struct base_family *f, unsigned count);
/* Kills the leader's process group on Linux, without waiting. Elsewhere it does nothing. */
void base_family_kill_first(const struct base_family *f);
/* Kills these families, also if they create processes meanwhile. Waits for a bounded time until no process is left. A process that waits
 * for a device may end later. */
void base_family_kill(const struct base_family *f, unsigned count);

#endif
