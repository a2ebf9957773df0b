/* SPDX-License-Identifier: MIT
 *
 * The source, within: what source.c, send.c and follow.c share.
 */
#ifndef WEFT_CAST_SOURCE_H
#define WEFT_CAST_SOURCE_H

#include <sys/stat.h>

#include "base/hash.h"
#include "cast/cast.h"

struct receiver {
    bool chosen, listed;
    _Atomic bool failed;
    _Atomic uint32_t stage; /* that it has reached in this round: 1 to 3, as `a` of CAST_READY tells; 0: none */
    _Atomic uint64_t needed;
    uint8_t *cost; /* [size]: how it reaches each node (order.c); NULL: not known. Set once */
    uint8_t *need; /* a bit for each entry of the list: it needs that file */
};
struct cast_follow { /* --follow */
    int fd;          /* of the file; -1: none is followed */
    bool unnamed;    /* it does not have its name until it is complete: it has SRC's and a suffix */
    bool complete;
    char path[4096];    /* that it has while it grows */
    XXH3_state_t *hash; /* over what was read in this round; NULL: not now */
    int64_t told_ns;
};
struct cast_source {
    struct cast *c;
    struct receiver *receiver; /* [size] */
    struct {
        uint64_t have, verified;
    } * least; /* [list.count]: the least that a target of this round has of the file that it needs; UINT64_MAX: none needs it */
    uint32_t round, chain[WEFT_MAX_NODES], count;
    _Atomic bool broken; /* a target has got a damaged block in this round */
    uint64_t failed;     /* files that could not be read or sent */
    uint64_t targets_failed;
    /* The block that is being filled. */
    uint64_t number;
    uint32_t used;
    struct cast_relay relay;
    bool aborted;
    int64_t next_ns; /* --bwlimit: when the next block may be sent */
    struct cast_follow follow;
};

/* --- order.c --- */
void cast_order_take(struct cast_source *s, uint32_t from, const void *payload, size_t bytes); /* a CAST_LINKS; under the lock */
void cast_order_wait(struct cast_source *s);  /* until the targets have sent theirs, for a second */
void cast_order_chain(struct cast_source *s); /* put s->chain in order, and tell node 0 */

/* --- send.c. After the round was given up, they do nothing --- */
/* Whether this round must be given up: a node of the chain is gone, a block was damaged, or the cast is to end. */
bool cast_send_aborted(struct cast_source *s);
void cast_send_flush(struct cast_source *s); /* send the block that is being filled */
void cast_send_record(struct cast_source *s, enum cast_type type, uint32_t file, uint64_t offset, uint64_t bytes);
void cast_send_list(struct cast_source *s);
void cast_send_file(struct cast_source *s, uint32_t file); /* one that does not grow */
/* What is before and after the content of a file. Needed: whether a target lacks some of it, from `*at` on. Ended: `rc` as of the content, with
 * base_error(). */
bool cast_send_needed(struct cast_source *s, uint32_t file, uint64_t *at, uint64_t *have);
void cast_send_ended(struct cast_source *s, uint32_t file, int rc);
/* Send a file's bytes from `at` to `size`; below `have` only their checksums. Returns 0, or a negative errno; -ESTALE: it is shorter. */
int cast_send_content(struct cast_source *s, int fd, uint32_t file, uint64_t at, uint64_t have, uint64_t size);
int cast_read_all(int fd, uint8_t *to, uint64_t bytes, uint64_t at);

/* --- follow.c: --follow --- */
/* Open the file, and make the list, which has only it. Returns 0, or a negative errno with base_error(). */
int cast_follow_open(struct cast_source *s);
void cast_follow_close(struct cast_source *s);
/* Send the file as it grows, until it is complete. */
void cast_follow_file(struct cast_source *s, uint32_t file);

#endif
