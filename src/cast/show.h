/* SPDX-License-Identifier: MIT
 *
 * The interface between show.c and progress.c, which together are node 0's output.
 */
#ifndef WEFT_CAST_SHOW_H
#define WEFT_CAST_SHOW_H

#include <jansson.h>

#include "cast/cast.h"

#define CAST_NAMED 3u /* maximum number of files that could not be sent and that the summary names */

struct sentence {
    struct sentence *next;
    uint32_t from;
    bool failure;
    size_t unsent; /* if not 0: the text begins with a path of this length, and the source does not send this path */
    char text[];
};
struct cast_heard {
    int64_t any, state; /* any: time of the last message; state: time of the last CAST_STATE. Time in which this process did not run is not
                           counted */
    int64_t since;      /* the user was told that the node has not answered since this time; 0: the user was not told */
};
struct cast_show {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sentence *first, **last;
    struct cast_state *state, *printed; /* [size]; printed: a copy of `state` for the main thread */
    struct cast_heard *heard;           /* [size] */
    int64_t looked;                     /* when the main thread last looked for nodes that do not answer */
    struct cast_sums sums;
    bool listed;                                 /* CAST_TOTAL has arrived */
    uint64_t result, unsent;                     /* `a` and `b` of CAST_OVER */
    uint32_t chain[WEFT_MAX_NODES], chain_count; /* the chain, in the format of CAST_CHAIN */
    bool chain_new;                              /* the chain is still to be printed */
    _Atomic bool over;
    bool progress;
    bool (*others_printed)(void); /* struct cast_options: printed */
    int64_t began, shown;
    unsigned lines; /* number of progress lines on the terminal */
    uint64_t failures;
    json_t *messages, *not_sent, *not_sent_encoded;
    char *name[CAST_NAMED]; /* the first paths that the source does not send */
    uint64_t names;         /* number of all paths that the source does not send */
};

/* --- json.c --- */
json_t *cast_json_text(const char *text); /* replaces invalid UTF-8 by U+FFFD; returns JSON's null if out of memory */
json_t *
cast_json_encoded(const char *path); /* every byte but A-Z, a-z, 0-9, "-", ".", "_", "~" and "/" is "%" and two hexadecimal digits */

/* --- progress.c --- */
/* Erases the progress lines. Call this before each message. If another process may have printed below the progress lines, they are not
 * erased. */
void cast_show_erase(struct cast_show *s);
const char *cast_show_doing(const struct cast *c, uint32_t node, uint32_t doing);
void cast_show_progress(struct cast *c);
/* Tell the user once about each node that does not answer, and once when it answers again. */
void cast_show_silent(struct cast *c);

#endif
