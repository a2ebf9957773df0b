/* SPDX-License-Identifier: MIT
 *
 * Several devices to one peer. The first one, rail 0, is the transport's device, and carries everything that has an order
 * (rc.h). Further rails carry pieces of large puts and gets, and nothing else:
 *
 *   rails.c   the devices: which, what is made on them, their completion queues
 *   tracks.c  a queue pair for each rail and peer (a track), agreed on over the side connection
 *   stripe.c  puts and gets cut into pieces, one for each rail, and what becomes of the pieces
 *
 * A put or get that is spread out is a work of the main lane (struct rc_work). While one of its pieces is on its way the work
 * is in `oldest`, and what a fence or a signal puts behind it waits (l->stripes_done). A written piece is done when a read
 * behind it is: then it is in the peer's memory, and not merely in its device.
 *
 * Locks are rc.h's: a track is its link's. Who makes and destroys queue pairs is the progress thread, with both inner locks.
 */
#ifndef WEFT_RC_RAILS_H
#define WEFT_RC_RAILS_H

#include "fabric/rc/rc.h"

#define RC_TRACKS      (FAB_RAILS_MAX - 1)
#define RC_TRACK_DEPTH 64u        /* pieces under way on a rail to a peer; two requests each */
#define RC_CUT_BYTES   4096u      /* pieces begin at multiples of it in the peer's memory */
#define RC_PIECE_BYTES (8u << 20) /* at most: what is repeated when a rail breaks */

/* A further device of this node. */
struct rc_rail {
    struct verbs_device *device;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct verbs_regions pool, landing; /* landing: where the reads that prove something end; a cache line for each peer */
    uint8_t *landing_memory;
    uint64_t landing_bytes;
    uint32_t tracks, tracks_max; /* queue pairs there are, and that the device and its completion queue have room for */
    bool full_said;
    _Atomic uint32_t out; /* pieces under way on it */
    struct ibv_wc early;  /* as rc->early */
    bool has_early;
};

struct rc_rails {
    uint32_t count;
    struct rc_rail rail[RC_TRACKS];
};

/* A further device of a peer. */
struct rc_peer_rail {
    uint8_t gid[16];
    uint64_t segment_bytes;
    uint32_t shift, keys_count, *keys;
};

struct rc_piece {
    struct rc_work *work; /* NULL: it only proves that the track works */
    uint64_t remote;
    uint8_t *local;
    uint32_t len;
    bool put, refused;
};

struct rc_track {
    /* --- the progress thread's --- */
    enum rc_track_state { RC_TRACK_OFF, RC_TRACK_ASKED, RC_TRACK_PROVING, RC_TRACK_ACCEPTED, RC_TRACK_UP, RC_TRACK_LEAVING } state;
    uint32_t rail, peer_rail; /* in rc->rails, and in the peer's */
    uint32_t tries;           /* since it worked last */
    int64_t retry_ns;
    bool owes_gone, owes_over; /* the side connection did not take it */
    uint32_t over_generation;
    bool was_up, said;
    struct rc_stand stand;
    /* --- under the link's lock --- */
    uint32_t generation;
    struct verbs_qp qp;
    bool up, lost, proved;
    bool repeat;   /* no queue pair, at neither end: pieces done..posted are to go by another rail */
    char why[256]; /* `lost` */
    uint64_t posted, done;
    struct rc_piece pieces[RC_TRACK_DEPTH];
};

struct rc_tracks {
    uint32_t peer_count;
    struct rc_peer_rail peer[RC_TRACKS];
    uint64_t local_bytes, remote_bytes; /* no piece crosses a multiple of these: the smallest segments of all rails */
    uint64_t message_bytes;
    uint32_t up;                           /* under the lock: tracks that are */
    struct rc_work *oldest, *newest;       /* under the lock: spread out and not done, in the order of their numbers */
    _Atomic uint64_t bytes[FAB_RAILS_MAX]; /* of pieces, by rail */
    _Atomic uint64_t breaks;
    struct rc_track track[RC_TRACKS];
};

/* rails.c */
int rc_rails_open(struct rc *rc); /* with the first device in use; further ones that do not work are left out */
void rc_rails_close(struct rc *rc);
int rc_rails_poll(struct rc *rc);  /* with rc->receiving */
bool rc_rails_idle(struct rc *rc); /* the same */
void rc_rails_woken(struct rc *rc);
/* What a pair tells each other when it joins: so many further rails, then each one's. */
int rc_rails_tell(struct rc_link *l, int side_fd, int64_t deadline);
int rc_rails_hear(struct rc_link *l, uint32_t count, int side_fd, int64_t deadline);
void rc_rails_stat(struct rc_link *l, weft_link_stats *out);
void rc_rails_forget(struct rc_link *l); /* what rc_rails_hear() made */

/* tracks.c */
int64_t rc_tracks_tend(struct rc_link *l, int64_t now);                /* when to look again */
bool rc_tracks_side(struct rc_link *l, const void *bytes, size_t len); /* false: it is none of theirs */

/* stripe.c; with the link's lock */
int rc_stripe_prove(struct rc_link *l, struct rc_track *t);
void rc_stripe_done_locked(struct rc_link *l, struct rc_track *t, uint64_t position, enum ibv_wc_status status); /* pieces up to there */
void rc_stripe_look(struct rc_link *l); /* how many tracks are up has changed */
void rc_track_lose_locked(struct rc_link *l, struct rc_track *t, const char *why, ...) BASE_PRINTF(3, 4);
bool rc_stripe_drained(struct rc_link *l, struct rc_track *t); /* nothing of it is left to repeat; tries to */
void rc_stripe_refused(struct rc_link *l, struct rc_track *t); /* pieces of a track that is no more: those not to be tried again end */
void rc_stripe_fail(struct rc_link *l, struct rc_track *t, int status);
void rc_tracks_fail_locked(struct rc_link *l, int status); /* all of them */

static inline uint32_t rc_track_number(const struct rc_link *l, const struct rc_track *t)
{
    return (uint32_t)(t - l->tracks->track);
}

static inline struct rc_rail *rc_rail_of(const struct rc_link *l, const struct rc_track *t)
{
    return &l->rc->rails->rail[t->rail];
}

#endif
