/* SPDX-License-Identifier: MIT
 *
 * The asker's processes: what weft_process stands for. All that other threads and messages change is under the room's lock.
 */
#ifndef WEFT_GATEWAY_HANDLE_H
#define WEFT_GATEWAY_HANDLE_H

#include "gateway/gateway.h"

enum handle_state { HANDLE_STARTING, HANDLE_RUNS, HANDLE_OVER };

struct handle_wait {
    struct handle_wait *next;
    weft_op *op;
};
struct handle_read { /* an operation that waits for output */
    void *buf;
    size_t len, *got;
    weft_op *op; /* NULL: there is none */
};
struct weft_process {
    struct gateway *g;
    struct weft_process *next_failed;
    uint64_t id, there, ask; /* here, at the node that runs it, and the request that started it */
    uint32_t node, pid, users;
    enum handle_state state;
    bool of_record; /* records may name it */
    int error;      /* it could not be started, or is lost */
    char *text;     /* the sentence of that; NULL: none came */
    struct gateway_stream *out[2], *in;
    bool wants_in, ended_in;
    uint64_t in_there, in_ring, in_bytes; /* of its input, as the server has said */
    weft_exit exit;
    struct handle_wait *waits;
    struct handle_read reads[2];
};

/* --- handle.c --- */
/* The handle of a process that `r` is to start, and the rings of its output, which `r` then names. */
int handle_new(struct gateway *g, weft_request *r, bool of_record, struct weft_process **out);
void handle_told(struct weft_process *p, const struct gateway_result *r); /* of its start; with the lock held */
bool handle_has_started(void *arg);
int handle_error(struct weft_process *p); /* why it could not be started, or is lost, with a sentence */
int64_t handle_until(const struct weft_process *p, int64_t timeout_ns);
/* Wait; it is not closed meanwhile. */
int handle_wait(struct weft_process *p, fab_ready_fn ready, void *arg, int64_t deadline);
/* As much of its output as there is, in one piece. -EAGAIN: nothing now. With the lock held. */
int handle_read(struct gateway_stream *s, void *buf, size_t len, size_t *got, struct gateway_credit *due);
void handle_moved(struct gateway_stream *s); /* of all its streams */

/* --- handle_bytes.c --- */
void handle_moved(struct gateway_stream *s);                                  /* of all its streams */
struct gateway_stream *handle_output(struct weft_process *p, uint32_t which); /* 1 or 2; NULL: it has none */
/* The stream to its input: 0, or -EINVAL, -EPIPE; 1: it has not started yet. */
int handle_input(struct weft_process *p);
/* As much as there is room for: how much. */
size_t handle_write(struct gateway_stream *s, const uint8_t *buf, size_t len, int *rc);
bool handle_has_room(void *arg); /* of a stream */

#endif
