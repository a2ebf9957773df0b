/* SPDX-License-Identifier: MIT
 *
 * Shared by the launcher's files: launch.c (signals, output, time-outs, the end of nodes), start.c (starting nodes, with their program and
 * environment) and revive.c (replacing nodes of a standing cluster).
 */
#ifndef WEFT_CLI_LAUNCHER_H
#define WEFT_CLI_LAUNCHER_H

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/base.h"
#include "base/process.h"
#include "cli/emulate.h"
#include "cli/gpus.h"
#include "cli/launch.h"
#include "fabric/fabric.h"

#define LAUNCH_OUTER 7 /* number of environment variables that an emulated host changes; their former values are kept */

struct node {
    pid_t pid; /* process of the node or, for a node on another machine, process of its ssh */
    bool running;
    bool waits; /* the node will be started again, at the time `again` */
    int64_t began, again;
    uint32_t hasty; /* incremented when a node ends soon after its start, else decremented */
    uint32_t tries; /* how many nodes in a row could not join */
    int control;    /* pipe to ssh's standard input, for a node on another machine; else -1 */
};

struct launcher {
    const struct launch *l;
    struct node *nodes;
    uint32_t started, running, waiting; /* waiting: number of nodes that will be started again later */
    bool up;                            /* the standing cluster has been up */
    char path[4096];                    /* path of the program */
    char **env;                         /* environment of the nodes; env[0] is the rank */
    char gpus[GPUS_ROOM];               /* GPUs of the node that is being started */
    char join[4096];                    /* WEFT_JOIN of a node that is started again */
    char rank[32], size[32], coord[160], pool[64], secret[80], guard[FAB_GUARD_MAX + 16], *hostfile;
    char *outer[LAUNCH_OUTER]; /* WEFT_OUTER_NAME=VALUE: the value of NAME outside the emulation */
    char dir[96]; /* directory for the nodes' socket, on systems where sockets need files, and for an emulated fabric; "": none */
    struct emulation emulation;
    struct keeper keeper;
    struct relay_out out, err;
    struct relay_in *in;             /* [2 * nodes], tagged output only */
    struct base_dispositions before; /* signal dispositions for the nodes, from before the launcher changed its own */
    struct rlimit files;             /* limit of open files that the nodes get */

    int status;          /* exit status of the first node that failed; 0: no node has failed */
    int output_status;   /* exit status because output was lost before any node failed; 0: no output was lost */
    int interrupted;     /* the first signal that asked the launcher to end; 0: no signal has arrived */
    bool hurried;        /* a second signal has asked the launcher to end, so do not wait for readers of the output */
    bool ending, killed; /* ending: the nodes were asked to end; killed: the nodes were killed */
    bool timed_out;
    int64_t deadline;  /* when --timeout ends the nodes; INT64_MAX: never */
    int64_t stopped;   /* when a signal has stopped the first node, which leads; 0: it is not stopped */
    bool told_stopped; /* the launcher has reported that the first node is stopped */
    int64_t grace;     /* if `ending`: when the nodes are killed; if `killed`: when the launcher gives up */
    int64_t ssh_grace; /* after other machines were told to kill their nodes: when to kill the ssh processes; INT64_MAX: never */
};

static inline const char *launch_machine(const struct launcher *s, uint32_t rank) /* NULL: this machine */
{
    return s->l->ssh ? s->l->ssh[rank] : NULL;
}

/* The node's place in a standing cluster (struct launch_revive); in others the node's rank */
static inline uint32_t launch_place(const struct launcher *s, uint32_t rank)
{
    return rank + (s->l->revive ? s->l->revive->place : 0);
}

static inline char **launch_argv(const struct launcher *s, uint32_t rank)
{
    return rank && s->l->others ? s->l->others : s->l->argv;
}

static inline void launch_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* --- launch.c --- */
void launch_end_nodes(struct launcher *s, int sig); /* ask all nodes to end, and kill those that have not ended after LAUNCH_GRACE_NS */
const char *launch_signal_name(int sig, char *buf, size_t len);
void launch_say(struct launcher *s, const char *format, ...) BASE_PRINTF(2, 3); /* prints "weft SUB: ..." on stderr */

/* --- start.c --- */
int launch_find_program(struct launcher *s); /* returns 0, or the exit status after an error was printed */
/* 0, or a negative errno with base_error(). */
int launch_name_dir(struct launcher *s); /* chooses the name s->dir, which the keeper must know before the directory is created */
int launch_make_address(struct launcher *s);
int launch_make_fabric(struct launcher *s);
int launch_make_environment(struct launcher *s);
int launch_start_node(struct launcher *s, uint32_t rank); /* returns 0, or the exit status after an error was printed */

/* --- revive.c: only with s->l->revive --- */
/* Handle the end of a node. Returns false if the cluster was not up yet; then the whole launch must end. */
bool revive_ended(struct launcher *s, uint32_t rank, int how);
bool revive_down(struct launcher *s);         /* whether `weft down` asks this launcher to end its nodes. Call it in each round */
void revive_round(struct launcher *s);        /* start the nodes that are due (node.again) */
int64_t revive_due(const struct launcher *s); /* when to call revive_round() again */

#endif
