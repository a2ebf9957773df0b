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
/* Find a program as a shell does. A name with a slash is a path. Other names are looked up in the directories of PATH, or in /bin and
 * /usr/bin if PATH is not set. An empty entry of PATH is the current directory. Returns 0 with the path in `out`, or, without an error
 * text, -ENOENT (not found), -EACCES (not executable), -EISDIR (a directory) or another negative errno. */
int base_process_find(const char *name, char *out, size_t len);
/* Check that the interpreter in the first line of a script exists. Without this check, exec fails with ENOENT as if the script did not
 * exist. Returns 0 or -ENOENT, and the error text names the interpreter. */
int base_check_interpreter(const char *path);

/* --- signal dispositions that a program changes for itself and restores in the programs that it starts --- */
#define BASE_DISPOSITIONS 12u
struct base_dispositions {
    unsigned count;
    int number[BASE_DISPOSITIONS];
    struct sigaction action[BASE_DISPOSITIONS];
};
void base_dispositions_save(struct base_dispositions *d, const int *signals, size_t count); /* saves the current dispositions */
void base_dispositions_restore(const struct base_dispositions *d);

/* --- start --- */
#define BASE_FD_OURS (-1) /* inherit this process's descriptor */
#define BASE_FD_NULL (-2)
enum base_process_group { BASE_GROUP_OURS, BASE_GROUP_OWN, BASE_SESSION_OWN };
enum base_process_step { BASE_STEP_NONE, BASE_STEP_PROCESS, BASE_STEP_SETTINGS, BASE_STEP_PROGRAM, BASE_STEP_DIRECTORY, BASE_STEP_LIMITS };

struct base_limit {
    int resource;
    struct rlimit limit;
};

struct base_process {
    const char *path; /* from base_process_find() */
    char *const *argv;
    char *const *env; /* NULL: this process's environment */
    /* fds[i] becomes descriptor i of the program, for 0, 1 and 2. It is a descriptor of this process, BASE_FD_OURS (inherit descriptor i)
     * or BASE_FD_NULL (/dev/null). NULL: inherit all three. The program inherits other descriptors unless they are close-on-exec. */
    const int *fds;
    enum base_process_group group; /* BASE_GROUP_OWN: the new process leads a new process group */
    int end_with;                  /* signal that the new process gets when its parent thread ends; Linux only; 0: none */
    /* Signals in this list get their saved dispositions; NULL: no list. All other signals with a handler get their default action. Ignored
     * signals stay ignored. */
    const struct base_dispositions *dispositions;
    const sigset_t *mask; /* blocked signals of the new process; NULL: those of the calling thread */
    const struct base_limit *limits;
    unsigned limit_count;
    const char *directory; /* working directory of the new process, also for a relative `path`; NULL: that of this process */
    bool terminal;         /* descriptor 0 becomes the controlling terminal of the new process; needs BASE_SESSION_OWN, and not `orphan` */
    bool orphan; /* the new process becomes no child of this process and cannot be waited for; `pid` is 0; needs BASE_SESSION_OWN */
    /* The word gets the pid before the program runs (on macOS after), and 0 again if the program does not start. It may be in memory that
     * is shared with another process. NULL: no word. */
    _Atomic int32_t *number;
    uint64_t family; /* the mark of the family that the new process begins (base_family_mark()); 0: the new process belongs to the family of
                        this process */
};
/* Start a program. Thread-safe. Signal handlers of this process do not run in the new process. Returns 0 when the program runs. On failure
 * returns a negative errno without base_fail(), and `step` (may be NULL) tells which step failed. The cost does not depend on the memory
 * mapped in this process, except for an orphan. */
int base_process_start(const struct base_process *s, pid_t *pid, enum base_process_step *step);

/* As fork(): returns 0 in the child. All signals are blocked in the child, so that no handler of the parent runs in it. Call this only in a
 * process without other threads: locks that other threads hold would stay locked in the child. Returns a negative errno without base_fail()
 * on failure. */
pid_t base_process_fork(void);
/* Daemonize a forked process that must outlive its parent. Moves the process to a new session and out of its family (struct base_family),
 * so that signals to the parent's terminal, process group and family do not reach it. Opens /dev/null as descriptors 0 to 2. ps shows
 * `name`. */
void base_process_set_apart(const char *name);
void base_close_from(int lowest);
void base_process_null(int count); /* opens /dev/null as descriptors 0 to count - 1 */
/* Called in a new process (Linux): the kernel will send it `signal` when `parent` ends. Returns false if the parent has already ended. */
bool base_end_with(pid_t parent, int signal);
void base_name_process(const char *name);

/* --- watch --- */
/* A descriptor that becomes readable when the process ends; negative: not supported by the system. */
int base_watch_process(int pid);
/* Whether a child has ended. Does not reap the child, so its number is not reused yet. `how` (may be NULL) gets its exit status or
 * signal. */
bool base_process_ended(pid_t pid, siginfo_t *how);
bool base_process_stopped(pid_t pid);
/* Wait for a child's end, and reap it. Returns the child's wait status; 0 if the process is not a child of this process. */
int base_process_reap(pid_t pid);
/* As base_process_reap(); also stores the child's resource usage. `usage` may be NULL. */
int base_process_reap_usage(pid_t pid, struct rusage *usage);
int base_process_status(int how); /* converts a wait status to an exit status as in a shell: 128 + N if signal N ended the process */
void base_adopt(void);            /* become the parent of orphaned descendants (a child subreaper); Linux only */

/* --- end --- */
int base_process_kill(pid_t pid); /* SIGKILL, then base_process_reap() */
/* Kills a child and the process group that it leads, and reaps the child. The group is killed first, because its number may be reused once
 * the child is reaped. */
int base_process_kill_group(pid_t pid);

/* --- families --- */
/* A family is a program and all its descendants, in whatever process groups and sessions. On Linux the descendants are found by a mark that
 * they inherit (family.c). Helper processes of this library that must outlive their parent do not belong to the family
 * (base_process_set_apart(), orphans). On macOS only two kinds of descendants are found: those in the leader's process group, and those
 * with living parents in the leader's session. */
struct base_family {
    pid_t leader; /* leads a process group, and is not reaped yet */
    bool session; /* the leader also leads a session, and all processes of the session belong to the family */
    uint64_t mark;
};
uint64_t base_family_mark(void);      /* a new mark; 0: the system has none */
void base_family_join(uint64_t mark); /* called in a new process: stores the mark in its soft limit RLIMIT_RTTIME; ignores errors */
void base_family_leave(void);         /* this process, and processes that it starts later, belong to no family */
/* Sends a signal to all processes of these families, except this one. Returns how many of them have not ended. */
unsigned base_family_signal(const struct base_family *f, unsigned count, int signal);
/* Sends SIGHUP and SIGCONT, as when a terminal closes, and waits for a short time for the families to end. */
void base_family_hang_up(const struct base_family *f, unsigned count);
/* Linux: kills the leader's process group, without waiting. Other systems: does nothing. */
void base_family_kill_first(const struct base_family *f);
/* Kills these families, including processes that they create meanwhile. Waits for a bounded time until no process is left. A process in an
 * uninterruptible wait for a device may end later. */
void base_family_kill(const struct base_family *f, unsigned count);

#endif
