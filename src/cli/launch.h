/* SPDX-License-Identifier: MIT
 *
 * Starting the nodes of a cluster on this host, and ending them. The launcher (launch.c) starts them (start.c), signals and reaps them. The
 * relay (relay.c) forwards tagged output. The keeper (keeper.c) is a process that ends the nodes when the launcher is killed.
 */
#ifndef WEFT_CLI_LAUNCH_H
#define WEFT_CLI_LAUNCH_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct launch {
    const char *sub; /* the start of messages: "run" for "weft run: " */
    uint32_t nodes;
    char **argv;   /* the program (looked up in PATH) and its arguments */
    char **others; /* for all nodes but the first: this command, with these arguments. NULL: as the first */
    /* The first node leads: its exit status is the launch's, and with its end all is over. A node that fails meanwhile is
     * its affair: it is told by LAUNCH_TOLD, which is blocked when it starts. */
    bool lead;
    bool tag, kill_on_failure;
    int64_t timeout_ns;    /* 0: none */
    const char *hostfile;  /* NULL: as the environment has it */
    const char *pool;      /* likewise */
    const char *softverbs; /* "switch:8": emulated devices, a host a node; NULL: none */
    uint32_t gpus;         /* of its machine for each node; 0: the environment stays as it is */
    bool guard;            /* a process of its own owns each node's devices */
    const char *self;      /* this command's name here */
    bool make_secret;      /* the user has set none: one for this cluster alone */
    /* Nodes on other machines, where there are any. */
    const char *const *ssh;  /* [nodes]: what to call node k's machine; NULL: it is this one. NULL: all are here */
    const char *const *told; /* NULL-terminated assignments for their environment */
    const char *weft;        /* this command's name there */
    const char *coord;       /* where all meet; NULL: at a place of this machine */
};
#define LAUNCH_TOLD         SIGUSR2
#define LAUNCH_GRACE_NS     (INT64_C(5) * 1000000000) /* from asking to killing */
#define LAUNCH_SSH_GRACE_NS (INT64_C(500) * 1000000)  /* for what was killed behind ssh to end; then ssh is killed */
#define LAUNCH_TIMED_OUT    124
#define LAUNCH_NOT_USABLE   126
#define LAUNCH_NOT_FOUND    127
/* Start the nodes, stay until all have ended and nothing of them is left. Returns the exit status. */
int launch_cluster(const struct launch *l);

/* Who waits for processes looks so often by itself: with the thread sanitizer a signal of a child's end has been seen to come to
 * nothing, and nobody should wait for ever for one. */
#define LAUNCH_LOOK_MS 1000

/* --- keeper.c --- */
struct keeper {
    int fd; /* to it; -1: none */
    pid_t pid;
    /* In memory that it shares: the group that is being started, for struct base_process. So the keeper knows it before it runs, and
     * keeper_add() comes in time even if the launcher is killed before. */
    _Atomic int32_t *starting;
};
/* `remove_dir`: a directory to remove, with what is in it, if the launcher cannot; may be "". */
int keeper_start(struct keeper *k, const char *remove_dir);
void keeper_add(struct keeper *k, pid_t group);
void keeper_drop(struct keeper *k, pid_t group);
void keeper_stop(struct keeper *k);
bool keeper_remove_dir(const char *dir); /* false: something is still in it */

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
void relay_close(struct relay_in *in); /* passes on an unfinished line */
void relay_write(struct relay_out *o); /* as much as goes without waiting */
void relay_out_free(struct relay_out *o);

#endif
