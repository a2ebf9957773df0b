/* SPDX-License-Identifier: MIT
 *
 * Processes: finding, starting, following and ending one. All code that starts a program uses base_process_start(); all code that goes on
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
/* Where a program is, as a shell finds it: a name with a slash is a path; any other is looked for in the folders of PATH, an empty one
 * of which is the current folder, and without PATH in /bin and /usr/bin. 0 with the path in `out`; else a negative errno without a
 * sentence: -ENOENT: there is none; -EACCES: what is there may not be executed; -EISDIR: the path is a folder. */
int base_process_find(const char *name, char *out, size_t len);
/* A script's first line names its interpreter. When that is not there the system says of the script that it is not there. -ENOENT with the
 * right sentence then, else 0. */
int base_check_interpreter(const char *path);

/* --- signals: what a program changes for itself, and those that it starts are not to inherit --- */
#define BASE_DISPOSITIONS 12u
struct base_dispositions {
    unsigned count;
    int number[BASE_DISPOSITIONS];
    struct sigaction action[BASE_DISPOSITIONS];
};
void base_dispositions_save(struct base_dispositions *d, const int *signals, size_t count); /* what they do now */
void base_dispositions_restore(const struct base_dispositions *d);

/* --- start --- */
#define BASE_FD_OURS (-1) /* as it is here */
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
    char *const *env; /* NULL: ours */
    /* [3]: become 0, 1, 2: a descriptor, BASE_FD_OURS or BASE_FD_NULL. NULL: all ours. Others are passed on unless they are
     * close-on-exec. */
    const int *fds;
    enum base_process_group group; /* BASE_GROUP_OWN: it leads one, whose number is its own */
    int end_with;                  /* the signal it gets when the thread that starts it ends, where the system knows that; 0: none */
    /* Signals with a handler here have their default there, and ignored ones stay ignored, but these are as they were saved; NULL: none. */
    const struct base_dispositions *dispositions;
    const sigset_t *mask; /* blocked there; NULL: as here */
    const struct base_limit *limits;
    unsigned limit_count;
    const char *directory; /* where it runs; NULL: here. A `path` that does not begin with / counts from there */
    bool orphan;           /* it is nobody's child: not to be waited for, and BASE_SESSION_OWN alone. `pid` is 0 then */
    /* Where its number is written before it runs, so that whoever outlives this process knows it; memory that they share, or NULL. On macOS
     * it is written after. 0 again when it does not start. */
    _Atomic int32_t *number;
};
/* Start a program, at a cost that does not grow with the memory mapped here (that of an orphan does). Any thread may, and no handler of
 * ours runs in the new process. Returns when it runs, or a negative errno without a sentence when it does not: nothing is left then, and
 * `step` (may be NULL) says what failed: making a process, its settings, its directory or limits, or executing the program. */
int base_process_start(const struct base_process *s, pid_t *pid, enum base_process_step *step);

/* Go on in a new process: as fork(), 0 in it. All signals are blocked there, so that no handler of ours runs. For processes without
 * threads: of a threaded one the child has only this thread, and locks that nobody gives back. Else a negative errno without a sentence. */
pid_t base_process_fork(void);
/* In such a process, when it is to outlive what happens to its starter: out of reach of its terminal and group, and with none of its
 * streams. `name` is for lists of processes. */
void base_process_set_apart(const char *name);
void base_close_from(int lowest);  /* all descriptors from that number on */
void base_process_null(int count); /* the descriptors 0 to count - 1 are /dev/null */
/* In a new process: gets `signal` when `parent` ends, where the system knows that. False: it has ended already. */
bool base_end_with(pid_t parent, int signal);
void base_name_process(const char *name);

/* --- follow --- */
/* A descriptor that becomes readable when the process ends; negative where the system has none. */
int base_watch_process(int pid);
/* Whether a child has ended. It is not reaped: its number, and that of its group, cannot be another's yet. `how` may be NULL. */
bool base_process_ended(pid_t pid, siginfo_t *how);
/* Wait for a child's end and reap it: what waitpid() says of it; 0 when it is no child (any more). */
int base_process_reap(pid_t pid);
/* The same, with what it and those that it has waited for have used. */
int base_process_reap_usage(pid_t pid, struct rusage *usage);
int base_process_status(int how); /* of that, the exit status as a shell has it: 128 + N when signal N ended it */
void base_adopt(void);            /* what dead children leave running becomes ours, where the system knows that */

/* --- end --- */
int base_process_kill(pid_t pid); /* SIGKILL, then base_process_reap() */
/* The same to a child that leads a group, with what it has started: the group is killed before the child is reaped, while its number is its
 * own. */
int base_process_kill_group(pid_t pid);

#endif
