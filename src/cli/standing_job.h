/* SPDX-License-Identifier: MIT
 *
 * The jobs of a standing cluster: the interface between standing_jobs.c (the jobs), standing_task.c (the processes of a job, their output
 * and input) and standing_told.c (the nodes' hosts).
 */
#ifndef WEFT_CLI_STANDING_JOB_H
#define WEFT_CLI_STANDING_JOB_H

#include "cli/standing.h"
#include "weft/service.h"

struct piece { /* a piece of a job's kept output */
    struct piece *next;
    uint64_t number; /* counted over all pieces of the job */
    uint32_t node, which;
    size_t bytes;
    char data[];
};
struct task {
    struct job *job;
    uint32_t node, pid;
    weft_process *p;
    weft_op op;
    _Atomic int64_t over; /* when the end of its process was noticed; 0: it has not ended */
    _Atomic int status;   /* exit status in the form of a shell; -1: not ended */
    _Atomic bool lost;    /* it ended because its node is gone */
    pthread_t main, errors;
};
struct job {
    struct jobs *all;
    struct job *next;
    uint32_t id, tasks, left; /* left: tasks that have not ended; under the jobs' lock */
    unsigned users;           /* number of threads that use the job; under the jobs' lock */
    bool detached, listed;    /* detached: false until its processes have been started, so that errors are sent to the command */
    int64_t began;            /* seconds since 1970 */
    int fd; /* the socket to the command; -1: the job is detached. It and `detached` change with `send` and the jobs' lock held */
    _Atomic bool stop;       /* end the job now: kill all its processes */
    _Atomic int64_t kill_at; /* when to kill the processes that are still running; INT64_MAX: never */
    /* held while a thread other than the task's own sends a signal to its process, and while the handle of a process is closed */
    pthread_mutex_t handles;
    pthread_mutex_t send; /* held while a frame is sent to the command, and while kept output is used */
    int over[2];          /* a pipe into which a byte is written when all tasks have ended */
    struct piece *first, **last;
    _Atomic size_t kept;
    _Atomic uint64_t pieces, dropped; /* pieces of output so far; bytes of output that were discarded */
    /* Input that the command has sent and that the processes have not taken yet. */
    pthread_mutex_t feed;
    pthread_cond_t fed;
    char *input;
    size_t input_bytes;
    bool input_end;
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
        char door[128]; /* hosts may have the same name, but over a network each has its own address */
        uint32_t slot;
    } * told; /* [WEFT_MAX_NUMBERS]; untouched entries use no memory */
    struct desks *desks;
    struct forward *forwards; /* forward.h */
};

/* --- standing_told.c --- */

/* --- standing_task.c --- */
/* sends a message to the command, if it is still connected */
void job_say(struct job *j, enum control_type type, uint32_t node, uint32_t number, const char *text);
void job_ended(struct job *j);                                 /* call it when a task of the job has ended */
bool job_input(struct job *j, const char *data, size_t bytes); /* false: the command has sent more than it was allowed to */
void job_window(struct job *j, uint32_t window);               /* sets the size of the processes' terminal: rows | columns << 16 */
void *job_feed(void *job);                                     /* a thread: passes the input on to the processes */
void *task_main(void *task);                                   /* a thread: runs until the task has ended */

#endif
