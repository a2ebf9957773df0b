/* SPDX-License-Identifier: MIT
 *
 * The interface between source.c, send.c, follow.c and order.c, which together are the source.
 */
#ifndef WEFT_CAST_SOURCE_H
#define WEFT_CAST_SOURCE_H

#include <sys/stat.h>

#include "base/hash.h"
#include "cast/cast.h"

struct receiver {
    bool chosen, listed;
    _Atomic bool failed;
    _Atomic uint32_t stage; /* the last stage that the target has reached in this round: `a` of CAST_READY plus 1; 0: no stage */
    _Atomic uint64_t needed;
    uint8_t *cost; /* [size]: the cost of the target's link to each node (order.c). Set once; NULL: not known yet */
    uint8_t *need; /* one bit for each entry of the list: whether the target needs the file */
};
struct cast_follow { /* --follow */
    int fd;          /* the followed file; -1: no file is open */
    bool unnamed;    /* the file has a suffix after SRC's name until it is complete */
    bool complete;
    char path[4096];    /* path of the file while it grows */
    XXH3_state_t *hash; /* checksum of the bytes read in this round; NULL: not computed */
    int64_t told_ns;
};
struct cast_source {
    struct cast *c;
    struct receiver *receiver; /* [size] */
    struct {
        uint64_t have, verified;
        /* [list.count]: for each file, the smallest `have` and `verified` of all targets that need the file in this round; UINT64_MAX: no
         * target needs it */
    } * least;
    uint32_t round, chain[WEFT_MAX_NODES], count;
    _Atomic bool broken; /* a target has received a damaged block in this round */
    uint64_t failed;     /* number of files that could not be read or sent */
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
/* Store a CAST_LINKS message. The caller holds the lock */
void cast_order_take(struct cast_source *s, uint32_t from, const void *payload, size_t bytes);
void cast_order_wait(struct cast_source *s);  /* wait until all targets have sent CAST_LINKS, at most a second */
void cast_order_chain(struct cast_source *s); /* order s->chain, and tell node 0 */

/* --- send.c. After the round was aborted, these functions do nothing --- */
/* Whether this round is aborted, because a node of the chain is gone, a block was damaged, or the cast is ending. */
bool cast_send_aborted(struct cast_source *s);
void cast_send_flush(struct cast_source *s); /* send the block that is being filled, even if it is not full */
void cast_send_record(struct cast_source *s, enum cast_type type, uint32_t file, uint64_t offset, uint64_t bytes);
void cast_send_list(struct cast_source *s);
void cast_send_file(struct cast_source *s, uint32_t file); /* send a file that is not followed */
/* Called before and after cast_send_content(). cast_send_needed() tells whether a target of the chain needs the file, and sets `*at` and
 * `*have` for cast_send_content(). `rc` of cast_send_ended() is the result of cast_send_content(). */
bool cast_send_needed(struct cast_source *s, uint32_t file, uint64_t *at, uint64_t *have);
void cast_send_ended(struct cast_source *s, uint32_t file, int rc);
/* Send a file's bytes from `at` to `size`, but only checksums of the bytes before `have`. Returns 0, -ESTALE if the file is shorter, or
 * another negative errno. */
int cast_send_content(struct cast_source *s, int fd, uint32_t file, uint64_t at, uint64_t have, uint64_t size);
int cast_read_all(int fd, uint8_t *to, uint64_t bytes, uint64_t at);

/* --- follow.c: --follow --- */
/* Open the file, and make a list that has only this file. Returns 0, or a negative errno with base_error(). */
int cast_follow_open(struct cast_source *s);
void cast_follow_close(struct cast_source *s);
void cast_follow_file(struct cast_source *s, uint32_t file);

#endif
