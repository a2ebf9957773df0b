/* SPDX-License-Identifier: MIT
 *
 * Several devices to one peer. The first device, rail 0, is the transport's device, and carries everything that must keep an order (rc.h).
 * Further rails carry only pieces of large puts and gets:
 *
 *   rails.c   the devices: their choice, resources and completion queues
 *   tracks.c  tracks: a queue pair for each pair of rail and peer, agreed on over the side connection
 *   stripe.c  cuts puts and gets into pieces, one for each rail, and handles completions
 *
 * A put or get that is cut over rails is striped. It is queued in the main lane (struct rc_work), and is in the list that starts at
 * `oldest` until all its pieces are done. Until then operations behind a later fence wait, and so do all later signals (l->stripes_done). A
 * written piece is done when a read behind it has completed, because then the data is in the peer's memory, not only in its device.
 *
 * The locks are those of rc.h; a track is protected by its link's lock. Only the progress thread makes and destroys queue pairs, and it
 * holds rc->receiving and the link's lock.
 */
#ifndef WEFT_RC_RAILS_H
#define WEFT_RC_RAILS_H

#include "fabric/rc/rc.h"

#define RC_TRACKS      (FAB_RAILS_MAX - 1)
#define RC_TRACK_DEPTH 64u        /* maximum number of pieces under way on a track; each needs up to two requests */
#define RC_CUT_BYTES   4096u      /* in the peer's memory, pieces begin at multiples of this */
#define RC_PIECE_BYTES (8u << 20) /* maximum number of bytes of a piece; few, because a broken rail's pieces are sent again */

/* A further device of this node. */
struct rc_rail {
    struct verbs_device *device;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    /* landing: where the reads that prove the arrival of writes put their result; a cache line for each peer */
    struct verbs_regions pool, landing;
    uint8_t *landing_memory;
    uint64_t landing_bytes;
    /* number of queue pairs on this rail, and the most that its device and its completion queue allow */
    uint32_t tracks, tracks_max;
    bool full_said;
    _Atomic uint32_t out; /* pieces posted and not complete */
    struct ibv_wc early;  /* as in struct rc */
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
    struct rc_work *work; /* NULL: the piece is finished, or it is only a read to prove that the track works */
    uint64_t remote;
    uint8_t *local;
    uint32_t len;
    bool put, refused;
};

struct rc_track {
    /* --- used only by the progress thread --- */
    enum rc_track_state { RC_TRACK_OFF, RC_TRACK_ASKED, RC_TRACK_PROVING, RC_TRACK_ACCEPTED, RC_TRACK_UP, RC_TRACK_LEAVING } state;
    uint32_t rail, peer_rail; /* index into rc->rails, and into the rails of the peer */
    uint32_t tries;           /* attempts since the track last worked */
    int64_t retry_ns;
    bool owes_gone, owes_over; /* the message RAIL_GONE or RAIL_OVER (tracks.c) must be sent again, because the side connection was full */
    uint32_t over_generation;
    bool was_up, said;
    struct rc_stand stand;
    /* --- guarded by the link's lock --- */
    uint32_t generation;
    struct verbs_qp qp;
    bool up, lost, proved;
    /* true: neither end has the queue pair any more, so the pieces [done, posted) must be repeated over the first rail */
    bool repeat;
    char why[256]; /* the reason of `lost` */
    uint64_t posted, done;
    struct rc_piece pieces[RC_TRACK_DEPTH];
};

struct rc_tracks {
    uint32_t peer_count;
    struct rc_peer_rail peer[RC_TRACKS];
    uint64_t local_bytes, remote_bytes; /* the smallest segment sizes of all rails: no piece crosses a multiple of these */
    uint64_t message_bytes;
    uint32_t up;                           /* how many tracks are up; guarded by the link's lock */
    struct rc_work *oldest, *newest;       /* the unfinished striped operations, by number; guarded by the link's lock */
    _Atomic uint64_t bytes[FAB_RAILS_MAX]; /* bytes of pieces posted on each rail */
    _Atomic uint64_t breaks;
    struct rc_track track[RC_TRACKS];
};

/* rails.c */
int rc_rails_open(struct rc *rc); /* call this after verbs_device_use() of the first device; skips devices that do not work */
void rc_rails_close(struct rc *rc);
int rc_rails_poll(struct rc *rc);  /* the caller holds rc->receiving */
bool rc_rails_idle(struct rc *rc); /* the caller holds rc->receiving */
void rc_rails_woken(struct rc *rc);
/* When two nodes join, each sends the other a description of its further rails. */
int rc_rails_tell(struct rc_link *l, int side_fd, int64_t deadline);
int rc_rails_hear(struct rc_link *l, uint32_t count, int side_fd, int64_t deadline);
void rc_rails_stat(struct rc_link *l, weft_link_stats *out);
void rc_rails_forget(struct rc_link *l); /* frees what rc_rails_hear() allocated */

/* tracks.c */
int64_t rc_tracks_tend(struct rc_link *l, int64_t now);                /* returns when to call this again */
bool rc_tracks_side(struct rc_link *l, const void *bytes, size_t len); /* returns false if the message is not about tracks */

/* stripe.c; the caller holds the link's lock */
int rc_stripe_prove(struct rc_link *l, struct rc_track *t);
/* Handles a completion. If it succeeded, all pieces up to `position` are done. Otherwise the piece at `position` has failed. */
void rc_stripe_done_locked(struct rc_link *l, struct rc_track *t, uint64_t position, enum ibv_wc_status status);
void rc_stripe_look(struct rc_link *l); /* counts the tracks that are up */
void rc_track_lose_locked(struct rc_link *l, struct rc_track *t, const char *why, ...) BASE_PRINTF(3, 4);
/* Repeats a broken track's pieces, as many as there is room for. Returns true if no pieces are left to repeat. */
bool rc_stripe_drained(struct rc_link *l, struct rc_track *t);
/* After a track's queue pair was destroyed: fails the refused pieces, and counts those to repeat. */
void rc_stripe_refused(struct rc_link *l, struct rc_track *t);
void rc_stripe_fail(struct rc_link *l, struct rc_track *t, int status);
void rc_tracks_fail_locked(struct rc_link *l, int status);

static inline uint32_t rc_track_number(const struct rc_link *l, const struct rc_track *t)
{
    return (uint32_t)(t - l->tracks->track);
}

static inline struct rc_rail *rc_rail_of(const struct rc_link *l, const struct rc_track *t)
{
    return &l->rc->rails->rail[t->rail];
}

#endif
