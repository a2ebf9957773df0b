/* SPDX-License-Identifier: MIT
 *
 * The asker's handle of a process on another node (struct weft_process). gateway.lock guards the fields that other threads or messages
 * change.
 */
#ifndef WEFT_GATEWAY_HANDLE_H
#define WEFT_GATEWAY_HANDLE_H

#include "gateway/gateway.h"

enum handle_state { HANDLE_STARTING, HANDLE_RUNS, HANDLE_OVER };

struct handle_wait {
    struct handle_wait *next;
    weft_op *op;
};
struct handle_read { /* a read of output that waits for bytes */
    void *buf;
    size_t len, *got;
    weft_op *op; /* NULL: no read waits */
};
/* The memory of a closed handle is freed when the server can no longer write into the rings for the output: both streams have ended, the
 * server has answered that it did not start the process, or the server is gone. */
struct weft_process {
    struct gateway *g;
    struct weft_process *next_unused;
    /* id, there: the process's number at this node and at the server; ask: the number of the request that starts the process */
    uint64_t id, there, ask;
    uint32_t node, pid, users;
    enum handle_state state;
    bool of_record;   /* a record started the process, so records may name it */
    bool record_busy; /* a record writes to the process or closes its handle. Needed because GPUs and threads of this node submit records at
                         the same time */
    bool asked;       /* the request that starts the process is not answered yet (but may be cancelled) */
    bool closed;
    int error;  /* why the process could not be started; -ECONNRESET: the server is gone; 0: no error */
    char *text; /* the server's error text; NULL: it sent none */
    struct gateway_stream *out[2], *in;
    bool wants_in, ended_in, terminal;
    bool unread;                          /* the process reads no more input */
    uint64_t in_there, in_ring, in_bytes; /* the stream and the ring of the process's input, as the server has given them */
    weft_exit exit;
    struct handle_wait *waits;
    struct handle_read reads[2];
    gateway_notice *notice; /* NULL: none */
    void *notice_arg;
};

/* --- handle.c --- */
/* Closes the handle. Frees the handle now, or later on the progress thread if the server may still write to its rings. The caller does not
 * hold gateway.lock. */
void handle_close(struct weft_process *p);
/* Makes the handle of a process that `r` will start, with rings for its output, and enters the rings in `r`. */
int handle_new(struct gateway *g, weft_request *r, bool of_record, struct weft_process **out);
/* handles the answer to the request that starts the process; the caller holds gateway.lock */
void handle_told(struct weft_process *p, const struct gateway_result *r);
bool handle_has_started(void *arg);
bool handle_is_over(void *arg);
int handle_error(struct weft_process *p); /* returns p->error, and sets the error text */
int64_t handle_until(const struct weft_process *p, int64_t timeout_ns);
void handle_use(struct weft_process *p, int users); /* call this with 1, and later with -1: in between, the handle cannot be closed */
/* Waits until ready(arg). The handle cannot be closed meanwhile. */
int handle_wait(struct weft_process *p, fab_ready_fn ready, void *arg, int64_t deadline);
/* Reads output that has arrived, in one piece. Returns -EAGAIN if there is no output now. The caller holds gateway.lock. */
int handle_read(struct gateway_stream *s, void *buf, size_t len, size_t *got, struct gateway_credit *due);
void handle_moved(struct gateway_stream *s); /* the function `moved` of all streams of a process */

/* --- handle_bytes.c --- */
/* which: 1 (standard output) or 2 (standard error); Returns NULL if this output is not sent to this node */
struct gateway_stream *handle_output(struct weft_process *p, uint32_t which);
/* Opens the stream to the process's input. Returns 0, -EINVAL or -EPIPE, or 1 if the process has not started yet. */
int handle_input(struct weft_process *p);
/* Writes as many bytes as there is room for, and returns how many. */
size_t handle_write(struct gateway_stream *s, const uint8_t *buf, size_t len, int *rc);
bool handle_has_room(void *arg); /* arg: a stream */

#endif
