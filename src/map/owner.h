/* SPDX-License-Identifier: MIT
 *
 * Shared by the owner's files: window.c (pieces in work), home.c (outputs of nodes on other hosts), owner.c (the main loop).
 */
#ifndef WEFT_MAP_OWNER_H
#define WEFT_MAP_OWNER_H

#include "map/job.h"

/* COMING: the piece is complete, but its output must be fetched from the node that ran it. */
enum state { FREE, SUBMITTED, COMING, COMPLETE };

struct record { /* a piece that is submitted and not finished */
    struct map_piece piece;
    enum state state;
    uint32_t attempts, worker;
    uint64_t failed_on; /* the nodes on which the piece has failed, one bit each: the next attempt prefers other nodes */
    int32_t status;
    uint64_t result, result_len;
    struct coming *coming;
    struct map_outcome *home; /* with MAP_STATUS_HOME: the outcome, in private memory */
    uint64_t held;            /* bytes of the owner's memory that the fetched output takes */
};

struct map_owner {
    struct map_job *job;
    struct record window[MAP_WINDOW]; /* by number % MAP_WINDOW */
    _Atomic uint64_t *given;          /* [MAP_WINDOW], in the owner's pool: how many times each piece was passed on to another node */
    void *fold_state;
    uint8_t *fold_input;
    size_t fold_room;
    weft_gaddr release[WEFT_PAYLOAD_MAX / sizeof(weft_gaddr)]; /* addresses of memory that one node may free; not sent to it yet */
    uint32_t release_count, release_node;
    bool told; /* the nodes on other hosts have been told that the owner is printing */
    int64_t printed_ns;
    struct home *home; /* home.c */
    uint64_t held;     /* sum of `held` over all records */
};

/* --- window.c --- */
int owner_submit(struct map_owner *o, const struct record *r);
/* Tells the node, in a later message, to free this memory of its pool. */
void owner_release(struct map_owner *o, uint32_t node, weft_gaddr at);
void owner_send_releases(struct map_owner *o); /* send the collected releases now */
void owner_release_part(struct map_owner *o, const struct record *r, const struct map_part *part);
/* Release the outcome itself. Its parts are released when they are printed. */
void owner_release_outcome(struct map_owner *o, const struct record *r);
#define OWNER_OUTCOME_MAX (UINT64_C(1) << 30)                      /* bytes: enough for terabytes of output */
int owner_check_outcome(const struct map_outcome *oc, size_t len); /* returns -EPROTO, without an error text, if it is inconsistent */
/* Copy the outcome of a piece into memory that the caller frees. Works for a dead node, too, because its pool stays mapped. */
int owner_read_outcome(struct map_owner *o, struct record *r, struct map_outcome **out);
/* Handle the outcome of a piece: success, failure, or another attempt. */
int owner_take_outcome(struct map_owner *o, struct record *r, struct map_outcome *oc, int *status);
void owner_finish_piece(struct map_owner *o, struct record *r); /* the piece is done: free its record */

/* --- home.c --- */
int home_open(struct map_owner *o);
void home_free(struct map_owner *o);
int home_expect(struct map_owner *o, struct record *r); /* called when a piece is complete at its node: fetches its output */
/* Do all fetching that is possible now. Returns the number of steps done, or an error. `*status` is as in owner_take_outcome(). */
int home_step(struct map_owner *o, int *status);
bool home_busy(const struct map_owner *o); /* whether outputs are being fetched */
/* Whether the owner waits for an answer of the node that may be lost. `cut`: the node has no route now. */
bool home_unsure(struct map_owner *o, uint32_t node, bool cut);
void home_wait(struct map_owner *o); /* wait briefly until more bytes of outputs have arrived */

#endif
