/* SPDX-License-Identifier: MIT
 *
 * What the files of the owner share: window.c (the pieces in work), home.c (outputs from nodes that are apart), owner.c (the loop).
 */
#ifndef WEFT_MAP_OWNER_H
#define WEFT_MAP_OWNER_H

#include "map/job.h"

enum state { FREE, SUBMITTED, COMING, COMPLETE }; /* coming: complete, and on its way home */

struct record { /* one piece in work */
    struct map_piece piece;
    enum state state;
    uint32_t attempts, worker;
    uint64_t failed_on; /* the nodes that it has failed on, a bit each: others come first for the next attempt */
    int32_t status;
    uint64_t result, result_len;
    struct coming *coming;
    struct map_outcome *home; /* the outcome, in memory of our own, with MAP_STATUS_HOME */
    uint64_t held;            /* bytes of our memory that what came home takes */
};

struct map_owner {
    struct map_job *job;
    struct record window[MAP_WINDOW]; /* by number % MAP_WINDOW */
    _Atomic uint64_t *given;          /* [MAP_WINDOW], in our pool */
    void *fold_state;
    uint8_t *fold_input;
    size_t fold_room;
    weft_gaddr release[WEFT_PAYLOAD_MAX / sizeof(weft_gaddr)]; /* for one node, not sent yet */
    uint32_t release_count, release_node;
    bool told; /* the nodes that are apart: that outputs are being printed */
    int64_t printed_ns;
    struct home *home; /* home.c */
    uint64_t held;     /* of all records */
};

/* --- window.c --- */
int owner_submit(struct map_owner *o, const struct record *r);
void owner_release(struct map_owner *o, uint32_t node, weft_gaddr at); /* memory of a node's pool */
void owner_send_releases(struct map_owner *o);                         /* now, and not with the next ones */
void owner_release_part(struct map_owner *o, const struct record *r, const struct map_part *part);
/* The outcome itself: its parts are released as they are printed, and that of a failed piece has none. */
void owner_release_outcome(struct map_owner *o, const struct record *r);
#define OWNER_OUTCOME_MAX (UINT64_C(1) << 30)                      /* bytes: enough for terabytes of output */
int owner_check_outcome(const struct map_outcome *oc, size_t len); /* -EPROTO without a sentence: it does not fit together */
/* The outcome of a piece, in memory that is the caller's to free. In the pool it is read in place, a dead node's too. */
int owner_read_outcome(struct map_owner *o, struct record *r, struct map_outcome **out);
/* What became of a piece, once its outcome is here. */
int owner_take_outcome(struct map_owner *o, struct record *r, struct map_outcome *oc, int *status);
void owner_finish_piece(struct map_owner *o, struct record *r); /* it is dealt with */

/* --- home.c --- */
int home_open(struct map_owner *o);
void home_free(struct map_owner *o);
int home_expect(struct map_owner *o, struct record *r); /* it is complete at its node */
/* Do what can be done now: how many steps that were, or an error. `*status` as owner_take_outcome() has it. */
int home_step(struct map_owner *o, int *status);
bool home_busy(const struct map_owner *o); /* something is on its way */
/* Is an answer of the node's outstanding that may be lost? `cut`: no way leads to it now. */
bool home_unsure(struct map_owner *o, uint32_t node, bool cut);
void home_wait(struct map_owner *o); /* for some of it, a moment */

#endif
