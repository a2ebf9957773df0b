/* SPDX-License-Identifier: MIT
 *
 * The jobs of a standing cluster: what their three files share. standing_task.c: the processes of a job, their output and input.
 * standing_jobs.c: the jobs. standing_told.c: the nodes' hosts.
 */
#ifndef WEFT_CLI_STANDING_JOB_H
#define WEFT_CLI_STANDING_JOB_H

#include "cli/standing.h"
#include "weft/service.h"

struct piece { /* of kept output */
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
    _Atomic int64_t over; /* when its process was seen to have ended; 0: it has not */
    _Atomic int status;   /* exit status as a shell has it; -1: it has not ended */
    _Atomic bool lost;    /* it ended because its node is gone */
    pthread_t main, errors;
};
struct job {
    struct jobs *all;
    struct job *next;
    uint32_t id, tasks, left; /* left: tasks that have not ended; under the jobs' lock */
    unsigned users;           /* threads that use it; under the jobs' lock */
    bool detached, listed;
    int64_t began;           /* seconds since 1970 */
    int fd;                  /* the command's socket; -1: detached */
    _Atomic bool stop;       /* end now: kill all processes */
    _Atomic int64_t kill_at; /* kill the processes that are left then; INT64_MAX: never */
    pthread_mutex_t handles; /* held while a process gets a signal from another thread than its task's, and while its handle is closed */
    pthread_mutex_t send;    /* frames are sent one after another; and the kept output */
    int over[2];             /* pipe: a byte when all tasks have ended */
    struct piece *first, **last;
    _Atomic size_t kept;
    _Atomic uint64_t pieces, dropped; /* dropped: bytes */
    /* Input: what the command has sent and the processes have not taken. */
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
    pthread_cond_t changed; /* a job has ended, or has new output, or has lost a user */
    struct job *first;
    uint32_t last_id, running; /* running: jobs with threads */
    bool closing;
    struct told {       /* what a node has told of itself; kept when it is gone */
        char host[64];  /* "": not known yet */
        char door[128]; /* hosts may have the same name; over a network each has an address of its own */
        uint32_t slot;
    } * told; /* [WEFT_MAX_NUMBERS]; memory is used only for those that told */
    struct desks *desks;
    struct forward *forwards; /* forward.h */
};

/* --- standing_told.c --- */
bool jobs_known(struct jobs *all, uint32_t node); /* whether it has told of itself */

/* --- standing_task.c --- */
void job_say(struct job *j, enum control_type type, uint32_t node, uint32_t number, const char *text); /* to the command, if it is there */
void job_ended(struct job *j);                                                                         /* one of its tasks has */
bool job_input(struct job *j, const char *data, size_t bytes); /* false: the command has sent more than it may */
void job_window(struct job *j, uint32_t window);               /* the size of its terminal: rows | columns << 16 */
void *job_feed(void *job);                                     /* a thread: gives the input to the processes */
void *task_main(void *task);                                   /* a thread: until the task has ended */

#endif
