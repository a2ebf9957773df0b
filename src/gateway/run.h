/* SPDX-License-Identifier: MIT
 *
 * One process that runs for an asker: its input and output (run.c), its start (process.c) and end (end.c). Used only by the server thread.
 */
#ifndef WEFT_GATEWAY_RUN_H
#define WEFT_GATEWAY_RUN_H

#include <sys/resource.h>

#include "gateway/gateway.h"

struct processes {
    struct gateway_server *server;
    struct gateway_table table;
    struct run *runs;
    uint32_t running;
    struct gateway_call *waiting, **waiting_last;
    char **environment; /* environment of new processes; the array and its strings are one allocation */
    int null;
    struct rlimit files; /* limit of open files of new processes, read before this node raises its own */
};

struct run {
    struct gateway_listener listener; /* called when one of the process's streams has changed */
    struct processes *all;
    struct gateway_server *server;
    struct run *next;
    uint64_t id, there; /* the process's number at this node and at the asker */
    uint32_t node;      /* the asker */
    pid_t pid;
    struct gateway_place *place; /* in the guardian's table (gateway_groups_place()) */
    bool detached;
    bool terminal;   /* out[0] is a pseudo-terminal, `in` a duplicate of it */
    bool left;       /* the asker has closed its handle */
    bool ended;      /* the process has ended and was waited for */
    bool signalled;  /* the asker has sent a signal that ends programs */
    bool stopped;    /* the process is being ended with all its descendants */
    int64_t stop_by; /* if the guardian has not ended the process by this time, this node ends it */
    bool timed_out;  /* the process was killed because its time was over */
    bool unread;     /* the asker was told that the process reads no more input, but has not ended the stream yet */
    int64_t kill_at;
    struct gateway_watch end, in, out[2];
    struct gateway_stream *in_stream, *out_stream[2];
    /* the process's input, if the asker has given memory for it */
    weft_gaddr data;
    uint64_t data_left;
    /* NULL: the memory at `data` is mapped. Otherwise a copy of a part of this memory; its bytes `used` to `have` are not written yet. */
    uint8_t *buffer;
    size_t have, used;
    bool getting;
    weft_op get;
};

#define RUN_PIECE 65536u

void run_output(struct run *r, unsigned which); /* moves output from the process's pipe to the ring while there is room */
void run_input(struct run *r);                  /* moves bytes to the process's input */
void run_input_end(struct run *r);
void run_listen(struct gateway_listener *l, struct gateway_stream *s);
void run_leave(struct run *r);        /* the asker has closed its handle */
#define RUN_STOP_NS (4 * WEFT_SECOND) /* how long the guardian may take to end a program; it usually takes a few milliseconds */
void run_stop(struct run *r);         /* begins to end the process with all its descendants; end.c notices when they have ended */
bool run_over(const struct run *r);
void run_close(struct run *r); /* closes the process's pipes and streams */

/* --- end.c --- */
int run_signal(struct run *r, int signal); /* sends a signal of the asker to the process */
/* Reaps the process if it has ended. After run_stop(), only when its descendants have ended. */
void run_look(struct run *r, int64_t now);
void run_reap_now(struct run *r);         /* kills the process group, waits for the process, and tells the asker */
void run_stop_all(struct processes *all); /* ends all processes with their descendants, and waits until they have ended */

/* --- pty.c --- */
/* Opens a pseudo-terminal: `ours` does not block; `theirs` is for the process. Both are close-on-exec. Returns 0 or a negative errno,
 * without base_fail(); after an error the caller closes those of the two that are not -1. */
int pty_open(int *ours, int *theirs, uint32_t rows, uint32_t columns);
int pty_size(int fd, uint32_t rows, uint32_t columns); /* the foreground group gets SIGWINCH if the size has changed */
/* Sends a signal to the foreground group, unless it is the process group of the session's leader. */
void pty_signal(int fd, pid_t session, int signal);

#endif
