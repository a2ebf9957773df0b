/* SPDX-License-Identifier: MIT
 *
 * Prints the output of a job (exec_print.c, exec_json.c), for `weft exec` (exec.c) and `weft logs` (jobs.c).
 */
#ifndef WEFT_CLI_EXEC_H
#define WEFT_CLI_EXEC_H

#include "cli/control.h"
#include "cli/launch.h"

enum exec_form {
    EXEC_AS_IT_IS, /* the bytes of one node, unchanged; with several nodes like EXEC_LINES */
    EXEC_LINES,    /* whole lines of several hosts, unchanged */
    EXEC_TAGGED,   /* "[HOST] " before each line */
    EXEC_JSON,     /* a line for each event, with one JSON object */
};
struct exec_print;
struct exec_print {
    const char *sub;
    enum exec_form form;
    struct relay_out out, err;
    /* `nodes` has an entry for each node that has sent a frame, in the order of the first frames. A job has at most WEFT_MAX_NODES nodes,
     * with numbers up to WEFT_MAX_NUMBERS. */
    uint16_t *place; /* [WEFT_MAX_NUMBERS]: index of a node's entry plus 1; 0: the node has no entry */
    uint32_t count;
    struct exec_node {
        struct relay_in in[2]; /* standard output, standard error */
        char host[64];         /* "": not known yet */
        /* The host, and the node's number if several nodes are on that host. While the host is not known, the number alone. */
        char tag[80];
    } * *nodes; /* [WEFT_MAX_NODES] */
};
int exec_print_open(struct exec_print *p, const char *sub, enum exec_form form); /* 0, or a negative errno with base_error() */
/* Handle a frame of the kind STARTED, OUT, ENDED or ERROR. */
void exec_print_frame(struct exec_print *p, const struct control_frame *f, const char *payload);
bool exec_print_full(const struct exec_print *p); /* whether to read no more output for now */
/* If nobody reads the output now, discard it and all later output, and return true. */
bool exec_print_drop(struct exec_print *p);
void exec_print_write(struct exec_print *p); /* write as much as possible without blocking */
void exec_print_wait(struct exec_print *p);  /* write, and wait until more output can be read */
/* Write everything that is left, also unfinished lines. Returns 0, or an exit status if output was lost. */
int exec_print_close(struct exec_print *p);
/* exec_json.c: print one event; `host`: the host of the frame's node, "" while it is not known */
void exec_print_json(struct exec_print *p, const struct control_frame *f, const char *host, const char *payload);

#endif
