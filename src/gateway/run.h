/* SPDX-License-Identifier: MIT
 *
 * One process that runs for an asker: its bytes in and out (run.c), its start and end (process.c). Of the server's thread.
 */
#ifndef WEFT_GATEWAY_RUN_H
#define WEFT_GATEWAY_RUN_H

#include "gateway/gateway.h"

struct processes;

struct run {
    struct gateway_listener listener; /* of its streams */
    struct processes *all;
    struct gateway_server *server;
    struct run *next;
    uint64_t id, there; /* here, and at the asker's node */
    uint32_t node;      /* who asks */
    pid_t pid;
    _Atomic int32_t *place; /* of its group's number */
    bool detached;
    bool left;      /* its asker wants no more of it */
    bool ended;     /* and was waited for */
    bool timed_out; /* and killed for that */
    int64_t kill_at;
    struct gateway_watch end, in, out[2];
    struct gateway_stream *in_stream, *out_stream[2];
    /* Its input, if it is memory that the asker has named. */
    weft_gaddr data;
    uint64_t data_left;
    uint8_t *buffer; /* NULL: the memory is reached by loads; else a piece of it: `have` bytes from `used` on */
    size_t have, used;
    bool getting;
    weft_op get;
};

#define RUN_PIECE 65536u

void run_output(struct run *r, unsigned which); /* move what its pipe has, as far as there is room */
void run_input(struct run *r);                  /* the other way */
void run_input_end(struct run *r);
void run_listen(struct gateway_listener *l, struct gateway_stream *s);
void run_leave(struct run *r); /* its asker wants no more */
bool run_over(const struct run *r);
void run_close(struct run *r); /* its pipes and streams */

#endif
