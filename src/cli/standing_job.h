/* SPDX-License-Identifier: MIT
 *
 * The jobs of a standing cluster: the interface between standing_jobs.c (the jobs), standing_attend.c (the thread of a job),
 * standing_task.c (the processes of a job, their output and input) and standing_say.c (what a job sends to its command, which is a `weft
 * exec`).
 */
#ifndef WEFT_CLI_STANDING_JOB_H
#define WEFT_CLI_STANDING_JOB_H

#include "cli/standing.h"
#include "weft/service.h"

struct piece { /* a piece of a job's kept output */
    struct piece *next;
    uint64_t number; /* number of the piece, counted over all pieces of the job */
    uint32_t node, which;
    size_t bytes;
    char data[];
};
struct task {
    struct job *job;
    uint32_t node;
    _Atomic uint32_t pid;
    weft_process *p;
    weft_op op;
    bool starts, read[2]; /* starts: the task's process is being started; read: standard output, standard error was read to its end */
    bool done;
    bool kills;           /* SIGKILL was sent, with the op `kill` */
    weft_op kill;         /* the op of a SIGKILL that the job sends to the process; there is one at a time */
    uint64_t due;         /* signals to send when the process has started: bit N - 1 for signal N; guarded by job.handles */
    size_t late_bytes;    /* bytes of output that were read after the end of the process was noticed */
    _Atomic bool news;    /* there may be something new about the process */
    _Atomic int64_t over; /* when the end of the process was noticed, or the job stopped waiting for the process; 0: not yet */
    _Atomic int status;   /* exit status in the form of a shell; -1: the process has not ended */
    _Atomic bool lost;    /* the process ended because its node is gone */
};
struct job {
    struct jobs *all;
    struct job *next;
    uint32_t id, tasks, left; /* left: tasks that have not ended; guarded by the jobs' lock */
    unsigned users;           /* number of threads that use the job; guarded by the jobs' lock */
    bool detached, listed;    /* detached: true only after all processes have started, so that errors of starting still go to the command */
    bool detaches;            /* the job was started with --detach */
    int64_t began;            /* seconds since 1970 */
    int fd; /* the socket to the command; -1: the job is detached. `fd` and `detached` change only while `send` and the jobs' lock are held
             */
    _Atomic bool stop;       /* end the job now: kill all its processes */
    _Atomic int64_t kill_at; /* when to kill the processes that are still running; INT64_MAX: never */
    /* Only for the job's thread: after a signal, the command does not wait for hosts that hang. INT64_MAX: no signal has arrived. */
    int64_t cancel_at; /* when to cancel the starts that are not answered yet */
    int64_t leave_at;  /* when to stop waiting for processes that were killed and have not ended */
    /* held while a thread other than the job's sends a signal to a process, and while the handle of a process is closed */
    pthread_mutex_t handles;
    pthread_mutex_t send; /* held while `unsent` or kept output is used */
    struct unsent {       /* frames that the command's socket has not taken yet: bytes `first` to `last` of `bytes` */
        char *bytes;
        size_t first, last, room;
    } unsent;
    int news[2];        /* a pipe into which a byte is written to wake the job's thread */
    _Atomic bool woken; /* a byte is in the pipe `news` */
    _Atomic bool eager; /* news that is not urgent wakes the thread, too */
    /* only for the job's thread: */
    uint32_t starting, unfinished; /* starting: tasks that are being started; unfinished: tasks that are not done */
    uint32_t window;               /* the size of the terminal, if it has changed before the process has started; else 0 */
    uint32_t at;                   /* index of the task to look at next */
    int64_t held;                  /* when output was last held back, because the command had not read earlier output */
    char *buf;                     /* CONTROL_PIECE_MAX bytes, for a piece of output, or a frame of input */
    struct piece *first, **last;
    _Atomic size_t kept;
    _Atomic uint64_t pieces, dropped; /* pieces: pieces of output so far; dropped: bytes of output that were discarded */
    /* For the input that the command has sent and that the processes have not taken yet. */
    pthread_mutex_t feed;
    pthread_cond_t fed;
    char *input;
    size_t input_bytes;
    bool input_begun, input_end; /* input_begun: the command may send input */
    char command[256];
    struct task *task; /* [tasks] */
};
struct jobs {
    weft_node *w;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled when a job has ended, has new output, or is used by one thread less */
    struct job *first;
    uint32_t last_id, running; /* running: number of jobs that have threads */
    bool closing;
    struct told {       /* what a node's desk says; it is kept when the node is gone */
        char host[64];  /* "": not known yet */
        char door[128]; /* as in struct desk_page; tells hosts of the same name apart */
        uint32_t slot;
    } * told; /* [WEFT_MAX_NUMBERS]; untouched entries use no memory */
    struct desks *desks;
    uint32_t learn_from;      /* where jobs_learn() begins */
    struct forward *forwards; /* forward.h */
};

/* --- standing_say.c --- */
/* If the command is still connected, queues a frame for it. job_flush() sends the queued frames. */
void job_put(struct job *j, enum control_type type, uint32_t node, uint32_t number, const void *payload, size_t bytes);
/* like job_put(), and wakes the job's thread */
void job_say(struct job *j, enum control_type type, uint32_t node, uint32_t number, const char *text);
void job_output(struct job *j, uint32_t node, uint32_t which, const char *data, size_t bytes); /* sends output, or keeps it */
void job_flush(struct job *j); /* sends as many queued frames as the command's socket takes, without waiting */
size_t job_unsent(struct job *j);
void job_wake(struct job *j);

/* --- standing_task.c --- */
void task_notice(void *task, bool soon); /* for gateway_process_notice() */
/* Does what can be done for a task without waiting: notices that the process has started or ended, passes on a piece of output, kills the
 * process when that is due. Output is passed on only when all tasks of the job have started, because weft exec needs the names of all hosts
 * before the first output. Returns true if there may be more to do at once. Without `buf`, only notices whether the process has started. */
bool task_step(struct task *t, char *buf);
/* Sends a signal to the task's process, without waiting. If the process has not started yet, the signal is sent after the start. `op` (may
 * be NULL) is complete when the server has answered. The caller holds job.handles. */
void task_signal(struct task *t, int number, weft_op *op);
void task_look(struct task *t); /* notices whether the process has ended, and kills the process when that is due; passes on no output */
/* Tell the command why the process could not be started: `rc` and base_error(). */
void task_not_started(struct task *t, int rc);
void task_close(struct task *t);
void job_begin_input(struct job *j); /* allows weft exec to send input; called when all processes have started or could not be started */
bool job_input(struct job *j, const char *data, size_t bytes); /* returns false if the command has sent more than it was allowed to */
void job_window(struct job *j, uint32_t window);               /* sets the size of the processes' terminal: rows | columns << 16 */
void *job_feed(void *job);                                     /* a thread: passes the input on to the processes */

/* --- standing_attend.c --- */
void job_attend(struct job *j);     /* serves the job until all tasks are done */
void job_wait_start(struct job *j); /* waits until all processes have started or could not be started, and tells weft exec */
void job_drain(struct job *j);      /* waits until weft exec has received all output that is queued for it */
/* Sends a signal to all processes of the job, without waiting. `ops`: NULL, or an array of job.tasks ops. Each op is complete when the node
 * of its task has answered. */
void job_signal(struct job *j, int number, weft_op *ops);

#endif
