/* SPDX-License-Identifier: MIT
 *
 * The interface between show.c and progress.c, which together are node 0's output.
 */
#ifndef WEFT_CAST_SHOW_H
#define WEFT_CAST_SHOW_H

#include <jansson.h>

#include "cast/cast.h"

#define CAST_NAMED 3u /* how many of the files that could not be sent the summary names */

struct sentence {
    struct sentence *next;
    uint32_t from;
    bool failure;
    size_t unsent; /* if not 0: the text begins with the path of something that the source does not send, which has this length */
    char text[];
};
struct cast_heard {
    int64_t any,
        state; /* when the node last sent anything, and when it last sent its state. Time in which this node did not run is not counted */
    int64_t since; /* the user was told that it has not answered since then; 0: was not told */
};
struct cast_show {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sentence *first, **last;
    struct cast_state *state, *printed; /* [size]; printed: a copy, for the main thread */
    struct cast_heard *heard;           /* [size] */
    int64_t looked;                     /* when the main thread last looked for nodes that do not answer */
    struct cast_sums sums;
    bool listed;                                 /* the source has reported the sums */
    uint64_t result, unsent;                     /* `a` and `b` of CAST_OVER */
    uint32_t chain[WEFT_MAX_NODES], chain_count; /* the chain, in the format of CAST_CHAIN */
    bool chain_new;                              /* the chain was not printed yet */
    _Atomic bool over;
    bool progress;
    bool (*others_printed)(void); /* struct cast_options: printed */
    int64_t began, shown;
    unsigned lines; /* number of lines that are on the terminal now */
    uint64_t failures;
    json_t *messages, *not_sent, *not_sent_encoded;
    char *name[CAST_NAMED]; /* the first paths that the source does not send */
    uint64_t names;         /* how many paths the source does not send, including those that are not in `name` */
};

/* --- json.c --- */
json_t *cast_json_text(const char *text); /* what is not UTF-8 is replaced by U+FFFD; null if there is no memory */
json_t *
cast_json_encoded(const char *path); /* every byte but A-Z, a-z, 0-9, "-", ".", "_", "~" and "/" is "%" and two hexadecimal digits */

/* --- progress.c --- */
/* Erases the lines of the progress; call it before anything is printed. If another process may have printed below these lines, they stay,
 * and printing continues below its text. */
void cast_show_erase(struct cast_show *s);
const char *cast_show_doing(const struct cast *c, uint32_t node, uint32_t doing);
void cast_show_progress(struct cast *c);
/* Tell the user once about each node that does not answer, and once when it answers again. */
void cast_show_silent(struct cast *c);

#endif
