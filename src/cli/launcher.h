/* SPDX-License-Identifier: MIT
 *
 * What the two files of the launcher share: launch.c (signals, output, time, the end of nodes) and start.c (what nodes need, and starting
 * them).
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

#define LAUNCH_OUTER 7 /* variables that an emulated host changes */

struct node {
    pid_t pid; /* on another machine: of ssh */
    bool running;
    int control; /* over ssh: to the node's side there; else -1 */
};

struct launcher {
    const struct launch *l;
    struct node *nodes;
    uint32_t started, running;
    char path[4096]; /* of the program */
    char **env;      /* the nodes'; env[0] is the rank */
    char gpus[GPUS_ROOM]; /* the node's */
    char rank[32], size[32], coord[160], pool[64], secret[80], guard[FAB_GUARD_MAX + 16], *hostfile;
    char *outer[LAUNCH_OUTER]; /* WEFT_OUTER_NAME=..., what NAME is here */
    char dir[96];              /* of the socket, where names are files, and of an emulated fabric; "": none */
    struct emulation emulation;
    struct keeper keeper;
    struct relay_out out, err;
    struct relay_in *in;             /* [2 * nodes], tagged output only */
    struct base_dispositions before; /* of the signals that the launcher changes for itself */
    struct rlimit files;             /* as we found it, for the nodes */

    int status;          /* of the first node that failed; 0: none */
    int output_status;   /* ours, when output was lost before any node had failed; 0: none was */
    int interrupted;     /* the signal that was first passed on; 0: none */
    bool hurried;        /* another came after it: output that nobody takes is not waited for */
    bool ending, killed; /* the nodes were asked to end; were made to */
    bool timed_out;
    int64_t deadline;  /* of the time-out, INT64_MAX: none */
    int64_t grace;     /* when asking turns into killing, and killing into giving up */
    int64_t ssh_grace; /* when ssh itself is killed, whose far end was told to kill its node; INT64_MAX: not */
};

static inline const char *launch_machine(const struct launcher *s, uint32_t rank) /* NULL: this one */
{
    return s->l->ssh ? s->l->ssh[rank] : NULL;
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
void launch_say(struct launcher *s, const char *format, ...) BASE_PRINTF(2, 3); /* a line on stderr, behind our name */

/* --- start.c --- */
int launch_find_program(struct launcher *s); /* 0, or the exit status, said */
/* 0 or a negative errno with a sentence. */
int launch_name_dir(struct launcher *s); /* s->dir, which is not made yet: the keeper is to know of it before */
int launch_make_address(struct launcher *s);
int launch_make_fabric(struct launcher *s);
int launch_make_environment(struct launcher *s);
int launch_start_node(struct launcher *s, uint32_t rank); /* 0, or the exit status of a launch that failed, said */

#endif
