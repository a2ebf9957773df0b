/* SPDX-License-Identifier: MIT
 *
 * Starts the nodes of a cluster, and ends them. The launcher (launch.c) starts (start.c), signals and reaps the nodes, and replaces nodes
 * of a standing cluster that have ended (revive.c). The relay (relay.c) forwards tagged output. The keeper (keeper.c) is a process that
 * kills the nodes if the launcher is killed.
 */
#ifndef WEFT_CLI_LAUNCH_H
#define WEFT_CLI_LAUNCH_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* For a standing cluster (weft-up(1)). When a node has ended, the launcher starts a new node, which joins the running cluster and gets the
 * place of the old node. The place of a node is its number among the nodes of its host. */
struct launch_revive {
    const char *join;      /* WEFT_JOIN for nodes that are started later */
    const char *join_file; /* if this file exists, its first line is used instead of `join`; NULL: always use `join` */
    bool joins;            /* the nodes that are started first also join a running cluster */
    uint32_t place;        /* place of the first node. A node that joins gets its place in WEFT_RANK; its number is chosen by the cluster */
    const char *up;        /* this file exists when the cluster is up. If a node ends before the cluster is up, the launch fails */
    const char *down;      /* when this file exists, the launcher ends its nodes */
};
/* Exit statuses of a node of a standing cluster. 0: the whole cluster ends, so no node is started again. */
#define LAUNCH_CANNOT_JOIN 3 /* the node could not join, and can never join */
#define LAUNCH_NOT_JOINED  4 /* the node could not join now, but may later */

struct launch {
    const char *sub; /* the subcommand, for messages: "run" for "weft run: " */
    uint32_t nodes;
    char **argv;   /* the program (looked up in PATH) and its arguments */
    char **others; /* program and arguments of all nodes except the first; NULL: `argv` is for all nodes */
    /* The first node leads: the launch ends when this node ends, with the node's exit status. If another node fails before that, the
     * launcher sends the signal LAUNCH_TOLD to the first node. The first node starts with this signal blocked. */
    bool lead;
    bool draws; /* the first node draws lines on the terminal, so the launcher begins its messages at the start of a line */
    bool tag, kill_on_failure;
    const struct launch_revive *revive; /* NULL: nodes that end are not started again */
    uint32_t first, size;               /* first: WEFT_RANK of the first node; size: WEFT_SIZE, 0 means `nodes` */
    /* The file for standard output and error. At `log_max` bytes it is renamed to FILE.1, and a new file begins. NULL: there is no log. */
    const char *log;
    int64_t log_max;
    int64_t timeout_ns;    /* 0: no time-out */
    const char *hostfile;  /* NULL: use the environment's */
    const char *pool;      /* NULL: use the environment's */
    const char *softverbs; /* emulated devices, for example "switch:8", with one emulated host for each node; NULL: none */
    uint32_t gpus;         /* number of GPUs for each node; 0: do not assign GPUs */
    bool guard;            /* a separate process for each node owns its devices */
    const char *self;      /* path of this command on this machine */
    bool make_secret;      /* create a secret for this cluster, since the user has set none */
    /* For nodes on other machines. */
    const char *const *ssh;  /* [nodes] the name by which ssh reaches the machine of each node (see also `cluster`), NULL for this machine.
                                NULL instead of an array: all nodes are on this machine */
    const char *const *told; /* NULL-terminated list of assignments for the environment of nodes on other machines */
    const char *weft;        /* path of this command on other machines */
    const char *cluster; /* the name of the standing cluster (weft-up(1)) that starts the nodes on other machines. Then ssh[i] is the number
                            of a node of that cluster, not a name for ssh. NULL: ssh starts the nodes */
    const char *coord;   /* address of node 0; NULL: a Unix socket of this machine */
};
#define LAUNCH_TOLD         SIGUSR2
#define LAUNCH_GRACE_NS     (INT64_C(5) * 1000000000)  /* time between asking nodes to end and killing them */
#define LAUNCH_SSH_GRACE_NS (INT64_C(500) * 1000000)   /* time between telling the other machine to kill its node and killing ssh */
#define LAUNCH_STOPPED_NS   (INT64_C(10) * 1000000000) /* after this time the launcher reports that the first node is stopped */
#define LAUNCH_TIMED_OUT    124
#define LAUNCH_NOT_USABLE   126
#define LAUNCH_NOT_FOUND    127
/* Start the nodes, and return when all of them and their processes have ended. Returns the exit status. */
int launch_cluster(const struct launch *l);

/* The longest time between two checks for ended processes. Needed because the thread sanitizer may lose SIGCHLD. */
#define LAUNCH_LOOK_MS 1000

/* --- keeper.c --- */
struct keeper {
    int fd; /* pipe to the keeper; -1: there is no keeper */
    pid_t pid;
    /* Process group of the node that is being started (base_process.number). It is in memory shared with the keeper, because the launcher
     * may be killed before it calls keeper_add(). */
    _Atomic int32_t *starting;
};
/* `remove_dir`: a directory that the keeper removes, with its files; "": none. */
int keeper_start(struct keeper *k, const char *remove_dir);
void keeper_add(struct keeper *k, pid_t group);
void keeper_drop(struct keeper *k, pid_t group);
void keeper_stop(struct keeper *k);
bool keeper_remove_dir(const char *dir); /* returns true if the directory does not exist any more */

/* --- relay.c --- */
#define RELAY_LINE_MAX  (1u << 20)   /* a longer line is split */
#define RELAY_QUEUE_MAX (256u << 10) /* while this many bytes are queued, the output of nodes is not read */

/* A destination of lines: the launcher's stdout or stderr. Writing never blocks; lines that cannot be written yet are queued. */
struct relay_out {
    int fd;
    bool broken; /* the destination cannot be written any more, for the reason in `error` */
    /* for a log: output that cannot be written is dropped, but later output is written if possible */
    bool drop;
    int error;
    char *data;
    size_t start, end, room;
};
/* A source of lines: a node's stdout or stderr. */
struct relay_in {
    int fd; /* -1: closed */
    uint32_t node;
    const char *label; /* text of the tag; NULL: the tag is the node's number */
    bool bare;         /* pass on whole lines unchanged: without a tag, and without a newline after an unfinished line */
    struct relay_out *to;
    char *line; /* an incomplete line */
    size_t len, room;
    size_t drained; /* bytes read since the node ended */
};
static inline size_t relay_waiting(const struct relay_out *o)
{
    return o->end - o->start;
}
void relay_say(struct relay_out *o, const char *text, size_t len); /* print a line of the launcher itself */
/* Read available bytes. Returns 1 if bytes were read, 0 if no bytes were available, or -1 if the output has ended and its last line was
 * passed on. */
int relay_read(struct relay_in *in);
/* Like relay_read(), for bytes that the caller has read itself. */
void relay_feed(struct relay_in *in, const char *bytes, size_t len);
void relay_close(struct relay_in *in); /* passes on an unfinished line */
void relay_write(struct relay_out *o); /* writes as much as possible without blocking */
void relay_out_free(struct relay_out *o);

#endif
