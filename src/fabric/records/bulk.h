/* SPDX-License-Identifier: MIT
 *
 * bulk: large data between two pools, without copies. A transfer is one large put or get. It is cut into pieces, and each piece is one
 * message of a lane. A lane is a queue pair with messages of one size. The receiver posts receives directly on the target memory and
 * announces them (TB_READY). The sender posts sends directly from the source memory, in the same order, and sends the checksum of each
 * (TB_SUM). A piece has arrived when its receive has completed and its checksum matches.
 *
 * After a lost message, each following message of the lane arrives in the receive of the message before it. The checksums show this. If the
 * last message is lost, a receive stays incomplete. To repair a lane, the receiver waits until the sender has nothing under way (TB_QUIET),
 * and then requests the missing pieces again (TB_RESEND). Late or repeated messages do no harm: memory is only written through posted
 * receives, and each piece is verified after its own receive has completed.
 *
 * All pieces on a lane have the lane's message size. The last piece of a transfer ends at the transfer's end, so it overlaps the piece
 * before. The overlap is harmless: the piece that is verified last has written the right bytes, and from then on neither piece has a posted
 * receive, so nothing overwrites these bytes.
 *
 * A state machine without I/O, like stream.c. Its records are sent in the stream.
 */
#ifndef WEFT_RECORDS_BULK_H
#define WEFT_RECORDS_BULK_H

#include "fabric/records/stream.h"

#define TB_LANES        16u
#define TB_LANE_DEPTH   64u /* maximum number of messages under way on a lane */
#define TB_TRANSFERS    32u /* transfers under way in each direction between two nodes; half are for puts, half for gets */
#define TB_TRANSFER_MAX (UINT64_C(1) << 30)
#define TB_NO_TRANSFER  UINT16_MAX
#define TB_SCRAP        UINT64_MAX /* offset of a dummy buffer whose contents are not needed */

struct tb_bulk_env {
    void *lane_ctx; /* argument of lane_receive and lane_send */
    /* Post a receive or a send of the lane's message size at an offset of the pool (TB_SCRAP: the dummy buffer). Return false if the work
     * queue is full. */
    bool (*lane_receive)(void *ctx, uint32_t lane, uint64_t offset);
    bool (*lane_send)(void *ctx, uint32_t lane, uint64_t offset);
    void *ctx; /* argument of the other functions */
    /* Requests bytes of a transfer as records in the stream instead of over a lane. Later tb_bulk_fetched() is called. Returns false if
     * there is no room now. */
    bool (*fetch)(void *ctx, uint32_t transfer, uint16_t generation, uint64_t to, uint64_t from, uint32_t bytes);
    /* An incoming transfer is complete: apply `what` (from TB_OPEN) to the word. */
    void (*received)(void *ctx, uint64_t word, uint64_t add, uint32_t what);
    /* A transfer that this node began is complete; `cookie` is that of tb_bulk_put() or tb_bulk_get(). */
    void (*done)(void *ctx, void *cookie);
    /* A transfer that this node began cannot complete over lanes: repeat it in another way (tb_bulk_reroute()). */
    void (*again)(void *ctx, void *cookie);
};

enum tb_check { TB_CHECK_FULL, TB_CHECK_FRAMES }; /* checksums cover all bytes, or 64 bytes of each TB_FRAME_BYTES */

struct tb_transfer {     /* an incoming transfer */
    uint16_t generation; /* counts the transfers that have used this number */
    bool used, own;      /* own: true for a get that this node began, false for a put that the peer began */
    uint32_t message;    /* size of a piece: the message size of the lanes used */
    uint64_t offset, length;
    uint64_t counted; /* bytes already added to counts.get_bytes */
    /* left: pieces that are not verified yet; cursor: every piece before this one has a receive or is done */
    uint32_t pieces, left, cursor;
    uint64_t *wanted;                  /* bitmap: pieces that need a receive */
    uint64_t from;                     /* if `own`: where the bytes are in the peer's pool */
    uint32_t repairs_without_progress; /* how often this transfer has repaired lanes since its last correct piece */
    bool use_records;                  /* after too many repairs: request the remaining pieces as records */
    /* fetching: the piece that is requested as records; asked: how many bytes of this piece were requested; asks: requests under way */
    uint32_t fetching, asked, asks;
    uint64_t word, add; /* the word and the operand from TB_OPEN */
    uint32_t what;
    void *cookie;
};

struct tb_outgoing {
    uint16_t generation;
    bool used;
    uint32_t message;
    uint64_t offset, length;
    uint64_t counted; /* bytes already added to counts.put_bytes */
    bool dropping;    /* TB_DROP was sent or must be sent, and TB_DROPPED has not arrived */
    void *cookie;     /* argument of done() for a put of this node; NULL: a get of the peer */
};

struct tb_posted {
    uint16_t transfer;
    uint32_t piece;
    bool has_sum, landed;
    uint64_t sum;
};

struct tb_lane {
    /* `generation` is the number of the lane's current queue pair. Records about earlier queue pairs are ignored. */
    bool up, say_up;                      /* say_up: TB_LANE is to be sent */
    uint16_t generation, peer_generation; /* numbers of this end's queue pair, and of the peer's, as the peer announced it */
    uint32_t message;
    uint32_t depth; /* maximum number of messages under way */
    /* Receiving: receives [in_first, in_next) are posted; those before in_landed have completed. */
    uint32_t in_first, in_landed, in_next, in_depth;
    struct tb_posted in[TB_LANE_DEPTH];
    int64_t last;
    int64_t patience;       /* time-out for a receive after its checksum has arrived */
    int64_t asked_at, rest; /* asked_at: when TB_QUIESCE was sent; rest: how long sent bytes may still be on the wire */
    enum { TB_LANE_RUNS, TB_LANE_ASKS, TB_LANE_RESENDS } repair; /* TB_LANE_ASKS: TB_QUIESCE was sent, and TB_QUIET has not arrived */
    bool ask;                                                    /* TB_QUIESCE is to be sent */
    bool quiet;                                                  /* TB_QUIET has arrived */
    uint32_t good;                                               /* correct pieces since the last repair */
    /* Sending: pieces for the peer's receives [out_next, out_end) must be sent. `unleft` sends are posted and have not completed. */
    uint32_t out_next, out_end, unleft;
    struct {
        uint16_t transfer;
        uint32_t piece;
    } out[TB_LANE_DEPTH];
    uint32_t again_next, again_end; /* pieces for these receives are sent again, before new ones */
    uint32_t void_end;              /* nothing is sent for receives before this one */
    bool quiesce;                   /* the peer has asked for TB_QUIET */
    int64_t quiesce_at;
};

struct tb_bulk_counts {
    uint64_t sent_bytes, received_bytes, pieces, rejected, repairs, use_records;
    uint64_t put_bytes, get_bytes; /* bytes of this node's transfers; each byte counts once, even if sent again */
};

struct tb_bulk {
    /* The large arrays, of which little is used, are first; see struct tb_endpoint. */
    struct tb_lane lanes[TB_LANES];
    struct tb_transfer in[TB_TRANSFERS];
    struct tb_outgoing out[TB_TRANSFERS];
    struct tb_stream *stream;
    struct tb_bulk_env env;
    uint8_t *pool;
    uint64_t pool_bytes, first_byte; /* no peer may write below first_byte */
    uint64_t segment;                /* size of a memory region: no transfer crosses a multiple of it in either pool */
    enum tb_check check;
    uint32_t lane_count;
    bool active; /* tb_bulk_pump() may have something to do */
    /* When tb_bulk_pump() last ran. A timer that had expired by then and is still set waits for a record or for room: tb_bulk_due() ignores
     * it. */
    int64_t pumped;
    uint32_t use_records;        /* number of transfers with use_records */
    uint32_t turn;               /* the transfer that gets the next receive */
    uint16_t done[TB_TRANSFERS]; /* transfers for which TB_DONE is to be sent */
    uint32_t done_count;
    struct tb_drop {
        uint16_t transfer, generation;
        bool fetched;
    } drops[2 * TB_TRANSFERS], dropped[TB_TRANSFERS]; /* records to be sent before any new transfer begins */
    uint32_t drop_count, dropped_count;
    uint16_t begun; /* how many transfers this node has begun; also the generation of the latest one */
    struct tb_bulk_counts counts;
};

void tb_bulk_init(struct tb_bulk *b, struct tb_stream *s, const struct tb_bulk_env *env, uint8_t *pool, uint64_t pool_bytes,
                  uint64_t first_byte, uint64_t segment, enum tb_check check);
void tb_bulk_end(struct tb_bulk *b);
/* Adds a lane. Both nodes add the same lanes, in the same order. */
int tb_bulk_add_lane(struct tb_bulk *b, uint32_t message_bytes, uint32_t depth);
/* tb_bulk_lane_down(): the lane's queue pair is gone, and its missing pieces are requested again. tb_bulk_lane_up(): the lane has a new
 * queue pair, and both nodes have agreed on its generation. */
void tb_bulk_lane_down(struct tb_bulk *b, uint32_t lane);
void tb_bulk_lane_up(struct tb_bulk *b, uint32_t lane, uint16_t generation);
/* The smallest size of a put or get that uses lanes now; UINT64_MAX if no lane is up. */
uint64_t tb_bulk_least(const struct tb_bulk *b);

/* Begins a put or a get of at most TB_TRANSFER_MAX bytes. Returns false if it cannot begin now: no transfer number
 * is free, records about given-up transfers must be sent first, or the stream has no room for the record that begins the transfer. */
bool tb_bulk_put(struct tb_bulk *b, uint64_t from, uint64_t to, uint64_t length, uint64_t word, uint64_t add, uint32_t what, void *cookie);
bool tb_bulk_get(struct tb_bulk *b, uint64_t to, uint64_t from, uint64_t length, void *cookie);

/* Gives up one transfer that this node has begun, and returns its cookie; NULL: there are no more. Called only while no lane is up. */
void *tb_bulk_give_up(struct tb_bulk *b);
/* Called while no lane is up, but frames reach the peer by another route. Each transfer of this node then ends by done() or again(). */
void tb_bulk_reroute(struct tb_bulk *b);

/* Checks and handles a record whose kind is TB_OPEN or greater. Returns a negative value if the record is invalid. */
int tb_bulk_record(struct tb_bulk *b, const struct tb_words *m, int64_t now);
void tb_bulk_fetched(struct tb_bulk *b, uint32_t transfer, uint16_t generation); /* the bytes that `fetch` requested have arrived */
void tb_bulk_landed(struct tb_bulk *b, uint32_t lane, int64_t now);              /* the oldest receive of the lane has completed */
void tb_bulk_left(struct tb_bulk *b, uint32_t lane);                             /* a send of the lane has completed */
void tb_bulk_pump(struct tb_bulk *b, int64_t now);
int64_t tb_bulk_due(const struct tb_bulk *b);

#endif
