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
    struct relay_in *in; /* [2 * nodes] */
    char (*hosts)[64];   /* [nodes]; "": not told */
    char *tags;          /* [nodes][80]: host, and the node's number if several nodes have that host */
};
int exec_print_open(struct exec_print *p, const char *sub, enum exec_form form); /* 0, or a negative errno with base_error() */
/* The command learns a node's host. */
void exec_print_host(struct exec_print *p, uint32_t node, const char *host);
/* STARTED, OUT, ENDED, ERROR. */
void exec_print_frame(struct exec_print *p, const struct control_frame *f, const char *payload);
bool exec_print_full(const struct exec_print *p); /* take no more output for now */
void exec_print_write(struct exec_print *p);      /* as much as possible without blocking */
void exec_print_wait(struct exec_print *p);       /* the same, and wait while there is too much to take more */
/* Write all that is left, also unfinished lines. Returns 0, or an exit status when output was lost. */
int exec_print_close(struct exec_print *p);

#endif
