/* SPDX-License-Identifier: MIT
 *
 * Starting the nodes of a cluster on this machine, and ending them. Three parts: the launcher (launch.c) starts,
 * signals and reaps; the relay (relay.c) carries tagged output; the keeper (keeper.c) is a process that ends the
 * nodes when the launcher is killed and cannot do so itself.
 */
#ifndef WEFT_CLI_LAUNCH_H
#define WEFT_CLI_LAUNCH_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct launch {
    const char *who; /* the start of messages: "weft run" */
    uint32_t nodes;
    char **argv; /* the program (looked up in PATH) and its arguments */
    bool tag, kill_on_failure;
    int64_t timeout_ns;   /* 0: none */
    const char *hostfile; /* NULL: as the environment has it */
    const char *pool;     /* likewise */
    bool make_secret;     /* the user has set none: one for this cluster alone */
};
#define LAUNCH_GRACE_NS   (INT64_C(5) * 1000000000) /* from asking to killing */
#define LAUNCH_TIMED_OUT  124
#define LAUNCH_NOT_USABLE 126
#define LAUNCH_NOT_FOUND  127
/* Start the nodes, stay until all have ended and nothing of them is left. Returns the exit status. */
int launch_cluster(const struct launch *l);

/* --- keeper.c --- */
struct keeper {
    int fd; /* to it; -1: none */
    pid_t pid;
};
/* `remove_dir`: a directory to remove, with what is in it, if the launcher cannot; may be "". */
int keeper_start(struct keeper *k, const char *remove_dir);
void keeper_add(struct keeper *k, pid_t group);
void keeper_drop(struct keeper *k, pid_t group);
void keeper_stop(struct keeper *k);
void keeper_remove_dir(const char *dir);

/* --- relay.c --- */
#define RELAY_LINE_MAX  (1u << 20)   /* a longer line is cut */
#define RELAY_QUEUE_MAX (256u << 10) /* waiting for the reader: then the nodes wait too */

/* Where lines go: our stdout or stderr. Never blocks; what cannot be written yet is queued. */
struct relay_out {
    int fd;
    bool broken; /* takes nothing any more; `error` says why: EPIPE when nobody reads it */
    int error;
    char *data;
    size_t start, end, room;
};
/* Where they come from. */
struct relay_in {
    int fd; /* -1: closed */
    uint32_t node;
    struct relay_out *to;
    char *line; /* the beginning of a line whose end has not come */
    size_t len, room;
    size_t drained; /* bytes since the node ended */
};
static inline size_t relay_waiting(const struct relay_out *o)
{
    return o->end - o->start;
}
void relay_say(struct relay_out *o, const char *text, size_t len); /* a line of our own */
/* Read what is there: 1 some, 0 nothing now, -1 the end (closed, its last line passed on). */
int relay_read(struct relay_in *in);
void relay_close(struct relay_in *in);  /* passes on an unfinished line */
void relay_write(struct relay_out *o);  /* as much as goes without waiting */
void relay_out_free(struct relay_out *o);

#endif
