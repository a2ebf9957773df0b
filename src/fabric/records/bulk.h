/* SPDX-License-Identifier: MIT
 *
 * bulk: large data between two pools without a copy on either side. A transfer is one large put or get. It is cut into pieces, and each
 * piece is one message of a lane. A lane is a queue pair whose messages all have one size. The receiver posts receives on the target memory
 * itself and announces them (TB_READY). The sender posts sends from the source memory itself, in that order, and sends the checksum of each
 * (TB_SUM). A piece has arrived when its receive has completed and its checksum matches.
 *
 * A lane that loses a message delivers all following ones to a receive too early. The checksums show the loss. If the last message is lost,
 * a receive stays incomplete. Then the lane is brought to rest: the sender reports when nothing of its own is under way any more
 * (TB_QUIET), and sends again exactly what the remaining receives are for (TB_RESEND). What arrives late or twice meanwhile does no harm:
 * memory is only ever written through a posted receive, and each piece is checked after its own receive has completed.
 *
 * All pieces on a lane have the lane's message size. The last piece of a transfer ends at the transfer's end, so it overlaps the piece
 * before. The overlap is harmless: when both pieces have been verified, no receive for either is posted any more, and the piece that was
 * verified last has overwritten the common bytes with the right ones.
 *
 * A state machine without I/O, like stream.c. Its records are sent in the stream.
 */
#ifndef WEFT_RECORDS_BULK_H
#define WEFT_RECORDS_BULK_H

#include "fabric/records/stream.h"

#define TB_LANES        16u
#define TB_LANE_DEPTH   64u /* the most messages under way on a lane */
#define TB_TRANSFERS    32u /* transfers under way between two nodes, in each direction; half are puts, half gets */
#define TB_TRANSFER_MAX (UINT64_C(1) << 30)
#define TB_NO_TRANSFER  UINT16_MAX
#define TB_SCRAP        UINT64_MAX /* an offset that stands for memory whose contents are not needed */

struct tb_bulk_env {
    void *lane_ctx; /* the context of lane_receive and lane_send */
    /* Posts a receive or a send of the lane's message size at this offset of the pool (TB_SCRAP: in unused memory). False: the work queue
       is full, and nothing was posted. */
    bool (*lane_receive)(void *ctx, uint32_t lane, uint64_t offset);
    bool (*lane_send)(void *ctx, uint32_t lane, uint64_t offset);
    void *ctx; /* the context of the other functions */
    /* Requests bytes of a transfer as records in the stream, instead of over a lane. tb_bulk_fetched() is called when they have arrived.
     * False: no room now. */
    bool (*fetch)(void *ctx, uint32_t transfer, uint16_t generation, uint64_t to, uint64_t from, uint32_t bytes);
    /* An incoming transfer is complete: apply `what` (from TB_OPEN) to the word. */
    void (*received)(void *ctx, uint64_t word, uint64_t add, uint32_t what);
    /* A transfer that this node began is complete; `cookie` is that of tb_bulk_put() or tb_bulk_get(). */
    void (*done)(void *ctx, void *cookie);
    /* A transfer that this node began will never complete by lanes: do it another way (tb_bulk_reroute()). */
    void (*again)(void *ctx, void *cookie);
};

enum tb_check { TB_CHECK_FULL, TB_CHECK_FRAMES }; /* the checksum is over all bytes; or over 64 of every TB_FRAME_BYTES */

struct tb_transfer {     /* an incoming transfer */
    uint16_t generation; /* counts the transfers that have used this number */
    bool used, own;      /* own: the transfer is a get that this node began; otherwise it is a put that the peer began */
    uint32_t message;    /* bytes of a piece: the message size of the lanes it uses */
    uint64_t offset, length;
    uint64_t counted;                  /* bytes that are in counts.get_bytes */
    uint32_t pieces, left, cursor;     /* left: pieces that are not verified yet; cursor: all pieces before it have a receive or are done */
    uint64_t *wanted;                  /* bitmap: pieces that need a receive */
    uint64_t from;                     /* for a get of this node: the offset in the peer's pool */
    uint32_t repairs_without_progress; /* lane repairs that this transfer caused since its last correct piece */
    bool use_records;                  /* repairs have failed too often: the remaining pieces are requested as records */
    uint32_t fetching, asked,
        asks; /* fetching: the piece that is requested as records; asked: how many of its bytes were requested; asks: requests under way */
    uint64_t word, add; /* the word and the operand from TB_OPEN */
    uint32_t what;
    void *cookie;
};

struct tb_outgoing {
    uint16_t generation;
    bool used;
    uint32_t message;
    uint64_t offset, length;
    uint64_t counted; /* bytes that are in counts.put_bytes */
    bool dropping;    /* TB_DROP was sent or must be sent, and TB_DROPPED has not arrived */
    void *cookie;     /* passed to done() for a put of this node; NULL: the peer began the transfer, as a get */
};

struct tb_posted { /* a receive that is posted on a lane */
    uint16_t transfer;
    uint32_t piece;
    bool has_sum, landed;
    uint64_t sum;
};

struct tb_lane {
    /* `generation` counts how often the lane's queue pair was created. Records about an earlier queue pair of the lane have no effect. */
    bool up, say_up;                      /* say_up: TB_LANE is to be sent */
    uint16_t generation, peer_generation; /* the generation of this end's queue pair; and that which the peer has announced */
    uint32_t message;                     /* bytes of a message */
    uint32_t depth;                       /* the most messages under way */
    /* Receiving: the receives with numbers [in_first, in_next) are posted; those before in_landed have completed. */
    uint32_t in_first, in_landed, in_next, in_depth;
    struct tb_posted in[TB_LANE_DEPTH];
    int64_t last;           /* when the lane last made progress */
    int64_t patience;       /* how long a receive may stay incomplete after its checksum has arrived */
    int64_t asked_at, rest; /* when TB_QUIESCE was sent; how long bytes that have left may still be on the wire */
    enum { TB_LANE_RUNS, TB_LANE_ASKS, TB_LANE_RESENDS } repair; /* TB_LANE_ASKS: TB_QUIESCE was sent, and TB_QUIET has not arrived */
    bool ask;                                                    /* TB_QUIESCE is to be sent */
    bool quiet;                                                  /* the TB_QUIET of this lane has come */
    uint32_t good;                                               /* correct pieces since the last repair */
    /* Sending: pieces are to be sent for the receives with numbers [out_next, out_end). */
    uint32_t out_next, out_end, unleft;
    struct {
        uint16_t transfer;
        uint32_t piece;
    } out[TB_LANE_DEPTH];
    uint32_t again_next, again_end; /* receives whose pieces are sent again, before any new ones */
    uint32_t void_end;              /* nothing is sent for receives with numbers before this */
    bool quiesce;                   /* the peer wants to know when all sends have left */
    int64_t quiesce_at;
};

struct tb_bulk_counts {
    uint64_t sent_bytes, received_bytes, pieces, rejected, repairs, use_records;
    uint64_t put_bytes, get_bytes; /* of the transfers that this node began; each byte once, even if it is sent again */
};

struct tb_bulk {
    /* The large arrays, of which little is used, are first; see struct tb_endpoint. */
    struct tb_lane lanes[TB_LANES];
    struct tb_transfer in[TB_TRANSFERS];
    struct tb_outgoing out[TB_TRANSFERS];
    struct tb_stream *stream;
    struct tb_bulk_env env;
    uint8_t *pool;
    uint64_t pool_bytes, first_byte; /* nobody may write below first_byte */
    uint64_t segment;                /* in bytes. No transfer crosses a multiple of it in either pool, because memory regions end there. */
    enum tb_check check;
    uint32_t lane_count;
    bool active; /* this end may have something to do */
    /* When tb_bulk_pump() last ran. A timer that had expired by then and is still set waits for a record from the peer or for room, not
     * for time. */
    int64_t pumped;
    uint32_t use_records;        /* how many transfers have use_records set */
    uint32_t turn;               /* the transfer that gets the next receive */
    uint16_t done[TB_TRANSFERS]; /* transfers for which TB_DONE is to be sent */
    uint32_t done_count;
    struct tb_drop {
        uint16_t transfer, generation;
        bool fetched;
    } drops[2 * TB_TRANSFERS], dropped[TB_TRANSFERS]; /* records to be sent before any new transfer begins */
    uint32_t drop_count, dropped_count;
    uint16_t begun; /* how many transfers this node has begun: the generation of the latest */
    struct tb_bulk_counts counts;
};

void tb_bulk_init(struct tb_bulk *b, struct tb_stream *s, const struct tb_bulk_env *env, uint8_t *pool, uint64_t pool_bytes,
                  uint64_t first_byte, uint64_t segment, enum tb_check check);
void tb_bulk_end(struct tb_bulk *b);
/* Adds a lane. Both nodes add the same lanes, in the same order. */
int tb_bulk_add_lane(struct tb_bulk *b, uint32_t message_bytes, uint32_t depth);
/* down: the lane's queue pair is gone with everything posted on it; the pieces that were to arrive over it are requested again. up: the
   lane has a new queue pair, whose generation both nodes have agreed on. */
void tb_bulk_lane_down(struct tb_bulk *b, uint32_t lane);
void tb_bulk_lane_up(struct tb_bulk *b, uint32_t lane, uint16_t generation);
/* The smallest size of a put or get that uses lanes now; UINT64_MAX if no lane is up. */
uint64_t tb_bulk_least(const struct tb_bulk *b);

/* Begins a put or a get of at most TB_TRANSFER_MAX bytes. False: no free number or no room now. */
bool tb_bulk_put(struct tb_bulk *b, uint64_t from, uint64_t to, uint64_t length, uint64_t word, uint64_t add, uint32_t what, void *cookie);
bool tb_bulk_get(struct tb_bulk *b, uint64_t to, uint64_t from, uint64_t length, void *cookie);

/* Gives up the transfers that this node has begun, while no lane is up. Returns the cookie of one at each call; NULL: there are no more. */
void *tb_bulk_give_up(struct tb_bulk *b);
/* No lane is up, but frames reach the peer by another route: every transfer of this node ends by done() or by again(). */
void tb_bulk_reroute(struct tb_bulk *b);

/* Handles a record from the peer whose kind is TB_OPEN or greater. Checks its contents. Negative: the record is invalid. */
int tb_bulk_record(struct tb_bulk *b, const struct tb_words *m, int64_t now);
void tb_bulk_fetched(struct tb_bulk *b, uint32_t transfer, uint16_t generation); /* the bytes that `fetch` requested have arrived */
void tb_bulk_landed(struct tb_bulk *b, uint32_t lane, int64_t now);              /* the oldest receive of the lane has completed */
void tb_bulk_left(struct tb_bulk *b, uint32_t lane);                             /* a send of the lane has completed */
void tb_bulk_pump(struct tb_bulk *b, int64_t now);
int64_t tb_bulk_due(const struct tb_bulk *b);

#endif
