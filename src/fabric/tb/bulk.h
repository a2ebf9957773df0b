/* SPDX-License-Identifier: MIT
 *
 * bulk: large data between two pools without a copy on either side. A lane is a queue pair whose messages all have one size. The receiver
 * posts receives on the target memory itself and announces them (TB_READY). The sender posts sends from the source memory itself, in that
 * order, and sends the checksum of each (TB_SUM). A piece has arrived when it is there and its checksum is right.
 *
 * A lane that loses a message delivers all following ones to a receive too early. The checksums show that or, at the end, a receive that
 * stays. Then the lane is brought to rest: the sender reports when nothing of its own is under way any more (TB_QUIET), and sends again
 * exactly what the remaining receives are for (TB_RESEND). What arrives late or twice meanwhile does no harm: memory is only ever written
 * through a posted receive, and each piece is checked after its own.
 *
 * All pieces of a lane have its size, also the last of a transfer: it is the last bytes, and overlaps the piece before. That needs no care:
 * when both have been found right no receive for either is left, and the one found right last was whole then.
 *
 * A pure state machine, as stream.c; its records travel in the stream.
 */
#ifndef WEFT_TB_BULK_H
#define WEFT_TB_BULK_H

#include "fabric/tb/stream.h"

#define TB_LANES        16u
#define TB_LANE_DEPTH   64u /* messages of a lane at a time, at most */
#define TB_TRANSFERS    32u /* between two nodes, in each direction: half are puts, half gets */
#define TB_TRANSFER_MAX (UINT64_C(1) << 30)
#define TB_NO_TRANSFER  UINT16_MAX
#define TB_SCRAP        UINT64_MAX /* offset: memory whose contents nobody wants */

struct tb_bulk_env {
    void *lane_ctx; /* of lane_receive and lane_send */
    /* Post a receive / a send of the lane's size at this offset of the pool (TB_SCRAP: anywhere harmless). False: the queue is
     * full; nothing was posted. */
    bool (*lane_receive)(void *ctx, uint32_t lane, uint64_t offset);
    bool (*lane_send)(void *ctx, uint32_t lane, uint64_t offset);
    void *ctx; /* of the others */
    /* Ask for bytes of a transfer as records; tb_bulk_fetched() when they are there. False: no room now. */
    bool (*fetch)(void *ctx, uint32_t transfer, uint16_t generation, uint64_t to, uint64_t from, uint32_t bytes);
    /* A transfer that came is whole: `what` (of TB_OPEN) is to be done with the word. */
    void (*received)(void *ctx, uint64_t word, uint64_t add, uint32_t what);
    /* One that this node began is done: `cookie` of tb_bulk_put() or tb_bulk_get(). */
    void (*done)(void *ctx, void *cookie);
    /* ... or is not, and never will be: it is to be done another way (tb_bulk_reroute()). */
    void (*again)(void *ctx, void *cookie);
};

enum tb_check { TB_CHECK_FULL, TB_CHECK_FRAMES }; /* every byte; 64 bytes of every frame */

struct tb_transfer {     /* coming in */
    uint16_t generation; /* of those that have had this number */
    bool used, own;      /* own: a get of this node's; else a put of the peer's */
    uint32_t message;    /* bytes of a piece: of the lanes it uses */
    uint64_t offset, length;
    uint32_t pieces, left, cursor;     /* left: not verified; cursor: none before it needs a receive */
    uint64_t *wanted;                  /* bitmap: pieces that need a receive */
    uint64_t from;                     /* of an own one: where it is at the peer */
    uint32_t repairs_without_progress; /* of lanes, for its sake, since its last right piece */
    bool use_records;                  /* so many that lanes are given up: the rest comes as records */
    uint32_t fetching, asked, asks;    /* the piece; bytes of it that were asked for (0: none yet); questions under way */
    uint64_t word, add;                /* TB_OPEN's */
    uint32_t what;
    void *cookie;
};

struct tb_outgoing {
    uint16_t generation;
    bool used;
    uint32_t message;
    uint64_t offset, length;
    bool dropping; /* TB_DROP is said, or to be said; TB_DROPPED has not come */
    void *cookie;  /* of a put; NULL: the peer fetches */
};

struct tb_posted { /* a receive on a lane */
    uint16_t transfer;
    uint32_t piece;
    bool has_sum, landed;
    uint64_t sum;
};

struct tb_lane {
    /* How often its queue pair was made. Records about another than the present one are old, and have no effect. */
    bool up, say_up;                      /* say_up: TB_LANE is to be said */
    uint16_t generation, peer_generation; /* ours; the one the peer has said it has */
    uint32_t message;                     /* bytes */
    uint32_t depth;                       /* messages, at most */
    /* receiving: numbers [in_first, in_next) are posted; those before in_landed have been written to */
    uint32_t in_first, in_landed, in_next, in_depth;
    struct tb_posted in[TB_LANE_DEPTH];
    int64_t last;           /* something happened */
    int64_t patience;       /* that a receive waits after its checksum came */
    int64_t asked_at, rest; /* when TB_QUIESCE was said; how long what has left may still be on the wire */
    enum { TB_LANE_RUNS, TB_LANE_ASKS, TB_LANE_RESENDS } repair; /* asks: TB_QUIESCE is said, TB_QUIET not heard */
    bool ask;                                                    /* TB_QUIESCE is to be said */
    bool quiet;                                                  /* and this lane's TB_QUIET was heard */
    uint32_t good;                                               /* right pieces since the last repair */
    /* sending: numbers [out_next, out_end) are to be sent */
    uint32_t out_next, out_end, unleft;
    struct {
        uint16_t transfer;
        uint32_t piece;
    } out[TB_LANE_DEPTH];
    uint32_t again_next, again_end; /* numbers to be sent again, before those */
    uint32_t void_end;              /* nothing is sent for numbers before it */
    bool quiesce;                   /* the peer wants to know when all has left */
    int64_t quiesce_at;
};

struct tb_bulk_counts {
    uint64_t sent_bytes, received_bytes, pieces, rejected, repairs, use_records;
};

struct tb_bulk {
    struct tb_stream *stream;
    struct tb_bulk_env env;
    uint8_t *pool;
    uint64_t pool_bytes, first_byte; /* below it nobody may write */
    uint64_t segment;                /* bytes: no transfer crosses a multiple of it on either side, because regions end there */
    enum tb_check check;
    uint32_t lane_count;
    bool active; /* something may be there to be done */
    struct tb_lane lanes[TB_LANES];
    struct tb_transfer in[TB_TRANSFERS];
    struct tb_outgoing out[TB_TRANSFERS];
    int64_t pumped;              /* last: a time before it that is still there waits for a word of the peer's or for room */
    uint32_t use_records;        /* transfers that do */
    uint32_t turn;               /* which transfer gets the next receive */
    uint16_t done[TB_TRANSFERS]; /* TB_DONE to be said */
    uint32_t done_count;
    struct tb_drop {
        uint16_t transfer, generation;
        bool fetched;
    } drops[2 * TB_TRANSFERS], dropped[TB_TRANSFERS]; /* to be said, before anything new begins */
    uint32_t drop_count, dropped_count;
    uint16_t begun; /* transfers this node has begun: their generations */
    struct tb_bulk_counts counts;
};

void tb_bulk_init(struct tb_bulk *b, struct tb_stream *s, const struct tb_bulk_env *env, uint8_t *pool, uint64_t pool_bytes,
                  uint64_t first_byte, uint64_t segment, enum tb_check check);
void tb_bulk_end(struct tb_bulk *b);
/* In the same order and with the same sizes on both sides. */
int tb_bulk_add_lane(struct tb_bulk *b, uint32_t message_bytes, uint32_t depth);
/* A lane's queue pair is gone, and all that was posted with it: what it was to bring is wanted anew. Then there is another one, of a
 * generation that both sides agree on. */
void tb_bulk_lane_down(struct tb_bulk *b, uint32_t lane);
void tb_bulk_lane_up(struct tb_bulk *b, uint32_t lane, uint16_t generation);
/* The least that goes this way now; UINT64_MAX without lanes. */
uint64_t tb_bulk_least(const struct tb_bulk *b);

/* Begin one; at most TB_TRANSFER_MAX bytes. False: no slot or no room now. */
bool tb_bulk_put(struct tb_bulk *b, uint64_t from, uint64_t to, uint64_t length, uint64_t word, uint64_t add, uint32_t what, void *cookie);
bool tb_bulk_get(struct tb_bulk *b, uint64_t to, uint64_t from, uint64_t length, void *cookie);

/* Give up what this node has begun, while no lane is up: the cookies, one at a time; NULL: there are no more. */
void *tb_bulk_give_up(struct tb_bulk *b);
/* No lane is up, but a way there is: what this node has begun ends, by done() or by again(). */
void tb_bulk_reroute(struct tb_bulk *b);

/* A record of a kind from TB_OPEN on; bytes from outside. Negative: nonsense. */
int tb_bulk_record(struct tb_bulk *b, const struct tb_words *m, int64_t now);
void tb_bulk_fetched(struct tb_bulk *b, uint32_t transfer, uint16_t generation); /* what `fetch` asked for is in place */
void tb_bulk_landed(struct tb_bulk *b, uint32_t lane, int64_t now);              /* a receive of a lane is complete: the oldest */
void tb_bulk_left(struct tb_bulk *b, uint32_t lane);                             /* a send is */
void tb_bulk_pump(struct tb_bulk *b, int64_t now);
int64_t tb_bulk_due(const struct tb_bulk *b);

#endif
