/* SPDX-License-Identifier: MIT
 *
 * How the output of a job is printed: by `weft exec` (exec.c) and `weft logs` (jobs.c).
 */
#ifndef WEFT_CLI_EXEC_H
#define WEFT_CLI_EXEC_H

#include "cli/control.h"
#include "cli/launch.h"

enum exec_form {
    EXEC_AS_IT_IS, /* the bytes of one host */
    EXEC_LINES,    /* whole lines of several hosts, unchanged */
    EXEC_TAGGED,   /* "[HOST] " before each line */
    EXEC_JSON,     /* a JSON object a line for each event */
};
struct exec_print {
    const char *sub;
    enum exec_form form;
    struct relay_out out, err;
    /* Of the nodes that were heard of, in that order: a job has at most WEFT_MAX_NODES, with numbers up to WEFT_MAX_NUMBERS. */
    uint16_t *place; /* [WEFT_MAX_NUMBERS]: of a node, from 1; 0: not heard of */
    uint32_t count;
    struct relay_in *in; /* [2 * WEFT_MAX_NODES] */
    char (*hosts)[64];   /* "": not told */
    char *tags;          /* [80] each: host, and the node's number if several nodes have that host; before it is told: the number */
};
int exec_print_open(struct exec_print *p, const char *sub, enum exec_form form); /* 0, or a negative errno with base_error() */
/* STARTED, OUT, ENDED, ERROR. */
void exec_print_frame(struct exec_print *p, const struct control_frame *f, const char *payload);
bool exec_print_full(const struct exec_print *p); /* take no more output for now */
void exec_print_write(struct exec_print *p);      /* as much as possible without blocking */
void exec_print_wait(struct exec_print *p);       /* the same, and wait while there is too much to take more */
/* Write all that is left, also unfinished lines. Returns 0, or an exit status when output was lost. */
int exec_print_close(struct exec_print *p);

#endif
