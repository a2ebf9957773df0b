/* SPDX-License-Identifier: MIT
 *
 * What the files of the rc transport share. Each file calls only those before it. rails.h has what concerns further devices to the same
 * peers.
 *
 *   link.c        the state of a link; stages and frames
 *   work.c        works, and the end of their requests
 *   post.c        posts requests to the send queue
 *   again.c       repeats the requests of a queue pair that broke
 *   stripe.c      large puts and gets over several rails
 *   backlog.c     operations that wait for room, for credits, or behind a fence
 *   complete.c    handles completions of requests
 *   operations.c  puts, gets, atomics, messages
 *   order.c       flush and fence
 *   memory.c      memory outside the pool that the device accesses directly
 *   receive.c     memory for received frames
 *   message.c     handles received frames: messages, and operations that peers request
 *   rails.c       the further devices
 *   poll.c        polls the completion queues
 *   tracks.c      queue pairs on further devices
 *   connect.c     queue pairs on the first device
 *   transport.c   the device, joining, closing; the table
 *
 * Words of this transport:
 *
 *   home   the node in whose pool an operation reads or writes
 *   work   an operation that could not be posted at once, or that is posted in several pieces (struct rc_work)
 *   ask    an operation that is sent to the home node, whose processor carries it out and answers (struct rc_ask)
 *   lane   one of two sequences of frames, each in order and with credits of its own (enum rc_lane); the lanes of tb are another thing
 *   call   a message over the side connection by which a node asks for a queue pair, or agrees to one (connect.c)
 *   track  a queue pair on a further device (rails.h)
 *
 * There is one reliable queue pair for each peer. A put is an RDMA write, a get an RDMA read. Everything else is a frame, which is sent
 * into a receive that the peer has posted. The queue pair keeps all requests in order, on the way and at the target. So a fence has to
 * wait only for reads and for what the home node's processor does (atomics, signals).
 *
 * When nodes join, each pair exchanges the addresses and keys of its pools, and nothing else. The first operation to a peer is put into
 * the link's backlog, and the progress thread is asked for a queue pair. The two progress threads agree on one over the side connection,
 * also while the programs call nothing (connect.c). The send queue and its records are allocated with the first queue pair.
 *
 * A link's lock protects its queue pair, its send queue and its backlogs. Completions are handled with rc->receiving held, handlers run
 * with w->progress held. Lock order: w->progress, rc->receiving, a link's lock. While the node runs only the progress thread makes and
 * destroys queue pairs, and it holds rc->receiving and the link's lock when it changes which queue pair the link has.
 */
#ifndef WEFT_RC_H
#define WEFT_RC_H

#include "fabric/fabric.h"
#include "fabric/stash.h"
#include "verbs/verbs.h"

#define RC_FRAME_BYTES 4096u
#define RC_WINDOW      32u /* how many frames of a lane may be sent before the peer acknowledges one */
#define RC_TELL        8u  /* after this many unacknowledged frames, a frame is sent that only acknowledges */
#define RC_RESERVE     16u /* receives beyond the windows, for frames that only acknowledge: these need no credit */
#define RC_RECEIVES    (2 * RC_WINDOW + RC_RESERVE)
#define RC_SPARE       16u /* spare chunks: they replace receives that were lost with queue pairs */
#define RC_GIVE_BATCH  8u  /* receives that are posted to the shared receive queue in one call */
#define RC_SEND_DEPTH  128u
#define RC_CQ_ENTRIES \
    (RC_SEND_DEPTH + RC_RECEIVES) /* entries of the completion queue for each peer: every request may ask for a completion */
#define RC_PEERS_GROWN  128u      /* maximum number of peers at a time in a cluster that grows, if it did not begin with more */
#define RC_CQ_SPARE     (RC_SPARE * RC_RECEIVES + 16u)
#define RC_SIGNAL_EVERY 16u
#define RC_INLINE_MAX   220u        /* maximum number of bytes that are sent inline, if the device allows as many */
#define RC_STAGE_BYTES  (64u << 10) /* a stage: a buffer for a piece of a transfer whose local memory is outside the pool */
#define RC_STAGES       64u
#define RC_TX_FRAMES    256u /* frames to send from; all links of the node share them */
/* offset in rc->memory of the words that flushes read into, one for each peer */
#define RC_FLUSHES_AT   ((uint64_t)RC_STAGES * RC_STAGE_BYTES + (uint64_t)RC_TX_FRAMES * RC_FRAME_BYTES)
#define RC_BACKLOG_WAIT (1u << 20)  /* while its lane's backlog has this many bytes, a call that sends a frame waits */
#define RC_BACKLOG_PUTS (16u << 10) /* while the backlog has this many bytes, a put or get waits; few, because their data is not copied */
#define RC_BACKLOG_MAX  (64u << 20) /* while the backlog has this many bytes, a call in a handler fails with -ENOBUFS instead of waiting */

enum rc_frame_kind { RC_MESSAGE = 1, RC_ATOMIC, RC_ANSWER, RC_SIGNAL, RC_STORE, RC_TELL_ONLY };

/* Frames are sent in two lanes, each in order and with credits of its own. RC_MESSAGES has messages to handlers, because a handler may be
 * slow or stopped; RC_MAIN has everything else. Only behind a fence does one lane wait for the other. */
enum rc_lane { RC_MAIN, RC_MESSAGES, RC_LANES };

/* The header of every frame. The receiver checks all lengths against the bytes that have arrived. */
struct rc_frame {
    uint8_t kind;
    uint8_t what; /* RC_ATOMIC: enum fab_atomic */
    uint16_t id;  /* RC_MESSAGE: handler */
    uint16_t header_len, payload_len;
    uint32_t taken[RC_LANES]; /* acknowledgement: how many of the receiver's frames the sender has processed, modulo 2^32 */
    uint32_t token;           /* the request's index in `asks` of its sender; RC_NO_ASK: no answer is wanted */
    uint32_t from;            /* the sender's rank; the receiver checks it against the queue pair over which the frame arrived */
    uint64_t offset, a, b;    /* offset in the receiver's pool; operands (RC_ANSWER: `a` is the former value) */
};

enum rc_slot_kind { RC_SLOT_PUT, RC_SLOT_GET, RC_SLOT_ATOMIC, RC_SLOT_FRAME, RC_SLOT_TELL, RC_SLOT_FLUSH };

/* A request in the send queue, from posting to completion, with all that is needed to post it again. */
struct rc_slot {
    weft_op *op;
    struct rc_work *work; /* the queued operation of which the request is a piece; NULL: the request is a whole operation */
    void *stage;          /* the stage or frame that the request uses; NULL: none */
    void *copy_to;        /* a read into a stage, or an atomic: copy the result here on completion */
    uint8_t *local;       /* put, get: the local memory; not accessed if there is a stage */
    /* put, get: the registration of local memory outside the pool; NULL: in the pool, or not registered */
    const struct verbs_regions *memory;
    uint64_t remote;
    uint32_t len;
    uint32_t number; /* RC_SLOT_FRAME: the frame's number in its lane */
    uint8_t kind, lane;
    bool frame; /* `stage` is a frame */
    /* number of fences before this request */
    uint32_t fences;
    bool refused; /* the peer's or our device refused the request: do not repeat it */
};

/* A frame that the peer has not acknowledged, kept in case its queue pair breaks. */
#define RC_LITTLE 112u /* bytes: fits atomics, signals, and messages without payload; larger frames stay in struct rc_work */
struct rc_kept {
    struct rc_work *work;
    uint32_t bytes;
    uint64_t position; /* position in the send queue at which the frame was last posted */
    uint8_t little[RC_LITTLE];
};

enum rc_work_kind { RC_WORK_PUT, RC_WORK_GET, RC_WORK_FRAME, RC_WORK_ATOMIC };

/* An operation that could not be posted at once, or that is posted in several pieces. */
struct rc_work {
    struct rc_work *next;
    weft_op *op;
    enum rc_work_kind kind;
    /* This operation may be posted when the peer's processor has answered `fence_asks` requests, `fence_other` operations of the other lane
     * are posted, and all striped operations of the main lane with numbers below `fence_stripes` are done. */
    uint64_t fence_asks, fence_other, fence_stripes;
    /* number of fences before this operation */
    uint32_t fences;
    uint64_t remote, len, posted;
    uint8_t *local;                     /* put, get: the local memory; RC_WORK_ATOMIC: receives the former value, or NULL */
    const struct verbs_regions *memory; /* put, get: as in struct rc_slot */
    enum fab_atomic what;               /* RC_WORK_ATOMIC: the kind, with operands `a` and `b` */
    uint64_t a, b;
    /* pieces posted and not complete */
    uint32_t pieces;
    int status; /* the error of the first piece that failed; 0: none */
    bool whole; /* all pieces are posted */
    /* Some pieces go over further rails (rails.h). Striped operations are linked in the order of their numbers. */
    bool striped;
    struct rc_work *before, *after;
    uint64_t number; /* number of the operation in its lane */
    struct {         /* Behind a fence, striping begins when the first rail has proved that requests up to these positions have arrived. */
        bool set;
        uint32_t generation;
        uint64_t change, read;
    } proof;
    uint32_t bytes; /* RC_WORK_FRAME: the size of `body` */
    uint8_t body[];
};

struct rc_ask { /* an operation that the home node's processor executes and answers */
    weft_op *op;
    uint64_t *old;
};
#define RC_ASKS   256u       /* maximum number of requests to the peer's processor without an answer */
#define RC_NO_ASK UINT32_MAX /* a token that means: do not answer */

/* When a queue pair last made progress; see rc_stands_still(). */
struct rc_stand {
    uint64_t done;
    int64_t looked_ns, still_ns;
    bool asked;          /* the peer was asked whether it still posts receives */
    int64_t answered_ns; /* when the peer answered that it still posts receives; 0: not yet */
};

struct rc_link {
    struct weft_node *w;
    struct rc *rc;
    struct fab_link *link;
    uint32_t number; /* index into rc->links */
    uint64_t peer_base;
    uint32_t peer_shift; /* log2 of the size of the peer's segments */
    uint32_t peer_keys_count, *peer_keys;
    struct rc_tracks *tracks; /* see rails.h; NULL: the first device is the only rail */
    bool has_atomics;         /* the peer's device executes our atomics, atomically with those of its processor */

    /* --- used only by the progress thread, see connect.c --- */
    enum rc_state { RC_COLD, RC_CALLING, RC_CONNECTED, RC_UP } state;
    bool called;       /* our address was sent to the peer for this generation */
    int64_t since_ns;  /* since when a queue pair has been wanted without success; 0: a queue pair works, or no queue pair is wanted */
    int64_t retry_ns;  /* when to try again */
    int64_t called_ns; /* when the last call was sent */
    struct rc_stand stand;
    uint64_t posted_then; /* the value of `posted` when `stand` was last updated */
    uint32_t tries;
    /* from the peer's call: how many of our frames it has received (peer_received), and how many it has processed (peer_told) */
    uint32_t peer_received[RC_LANES], peer_told[RC_LANES];

    /* --- guarded by `lock` --- */
    base_spin lock;
    bool closed; /* the link is disconnected: nothing is posted any more */
    bool up;     /* requests may be posted */
    bool wanted; /* an operation waits for a queue pair */
    /* the queue pair has broken, and the progress thread has not handled this yet */
    bool lost;
    bool proved; /* this queue pair has completed a request, or nothing waited to be posted when it came up */
    char lost_why[256];
    uint32_t generation; /* the number of the queue pair, counting all attempts */
    struct verbs_qp qp;
    uint32_t depth; /* a power of two; 0 before the first queue pair */
    uint32_t inline_bytes;
    struct rc_slot *slots; /* [depth] */
    struct rc_kept *kept;  /* [RC_LANES * RC_WINDOW] */
    struct rc_slot *again; /* requests of an earlier queue pair, to be posted before all others; NULL: none */
    uint32_t again_at, again_count;
    uint64_t posted, done;              /* positions in the send queue */
    uint64_t signalled;                 /* the position after the last request that asks for a completion */
    uint64_t sent_bytes, fetched_bytes; /* sent: bytes of puts and messages that were posted; fetched: bytes of gets */
    struct rc_queue {
        struct rc_work *backlog, **end;
        uint64_t bytes;            /* bytes in the backlog; accessed atomically, because it is also read without the lock */
        uint64_t begun, posted;    /* number of operations that were queued, and how many of them were posted */
        uint32_t sent, peer_taken; /* frames sent, and acknowledged by the peer; the difference is at most RC_WINDOW */
        uint32_t taken, told;      /* frames of the peer that were processed, and how many of them were acknowledged */
        uint64_t fence_other;      /* number of operations of the other lane before the last fence */
    } lane[RC_LANES];
    struct { /* Answers to the peer that found no room. They are posted before the backlogs: otherwise the backlogs of two nodes could wait
                behind fences for each other's answers. Their bytes count as the main lane's. */
        struct rc_work *first, **end;
        uint32_t count;
    } answers;
    struct rc_ask asks[RC_ASKS];
    /* How many requests were sent to the peer's processor, and how many it has answered, in order. Operations behind a fence wait until
     * `answered` has reached fence_asks. The counters have 64 bits, because they must not wrap. */
    uint64_t asked, answered, fence_asks;
    uint64_t last_change;  /* the position after the last write or frame: a flush must prove that requests up to here have arrived */
    uint64_t last_read;    /* the position after the last read */
    uint64_t flushed_to;   /* requests before this position have arrived, because a later read has completed */
    uint64_t flush_read;   /* the position of the read of a flush under way, plus 1; 0: none */
    uint64_t flush_covers; /* the value of last_change when that read was posted */
    bool flush_wanted;     /* the read of a flush found no room; it is posted before the backlogs */
    /* Number of calls of rc_gather_locked(). Each call invalidates the positions of all unfinished requests. */
    uint32_t gathered;
    uint32_t fences; /* number of fences that this node has set */
    /* Number of fences before the newest posted request. The first request behind a fence is posted with IBV_SEND_FENCE, so that this and
     * all later requests start only when all earlier reads are done. */
    uint32_t fences_posted;
    uint32_t fence_proved;  /* number of the last proved fence: everything before it has arrived at the peer */
    uint64_t stripe;        /* the smallest put or get that is striped, in bytes; UINT64_MAX: no further rail is up */
    uint64_t fence_stripes; /* number of operations of the main lane before the last fence */
    uint64_t stripes_done;  /* the number of the first striped operation that is not done; UINT64_MAX: all are done */
    uint32_t repeats;       /* how many pieces of tracks are to be repeated over the first rail */

    /* Messages that wait for their handler, in the frames in which they arrived. Added while rc->receiving is held, removed while
     * w->progress is held. */
    struct {
        uint32_t frame, bytes;
    } inbox[RC_WINDOW];
    _Atomic uint32_t inbox_in, inbox_out;
    /* how many delivered messages are not acknowledged yet, because too many messages wait for a handler that is not installed */
    uint32_t withheld;
    struct stash stash;
    uint32_t held[2];                          /* stages and frames that this link holds; guarded by rc->lock */
    _Atomic uint64_t staged_puts, staged_gets; /* pieces that went through a stage */
    _Atomic uint64_t native_atomics;
    _Atomic bool ended; /* the device has reported that the queue pair uses no more receives */
    uint32_t own_first; /* without a shared receive queue: the first of the link's own frames, if has_own */
    bool has_own;
    _Atomic uint64_t own_held[(RC_RECEIVES + 63) / 64]; /* a bit for each of the link's own frames that is in use, and must not be posted */
    _Atomic uint64_t connects, breaks;                  /* how many queue pairs have worked, and how many of them broke */
    _Atomic bool broken;                                /* the peer must be treated as dead */
    char why[512];                                      /* the reason; written before `broken` */
};

/* Memory for received frames (receive.c). Frames are numbered; a chunk has RC_RECEIVES frames. */
struct rc_receives {
    struct ibv_srq *srq;     /* the receive queue that all links share; NULL: each queue pair has its own */
    uint32_t most, room;     /* numbers of chunks. most: as many as the credits of all peers need; room: as many as the table can hold */
    struct rc_chunk *chunks; /* [room] */
    _Atomic uint32_t count;
    /* given: receives posted to the shared queue; taken: receives used. Both modulo 2^32; `taken` is written while rc->receiving is held */
    _Atomic uint32_t given, taken;
    base_spin lock; /* protects the following members, `given`, and adding chunks */
    uint32_t batch[RC_GIVE_BATCH], batched;
    bool full; /* a chunk could not be added: do not try again */
};

struct rc {
    struct weft_node *w;
    const struct fab_transport *transport; /* rc's table */
    struct fab_look look;                  /* the search for the device */
    struct verbs_device *device;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct verbs_regions pool;
    struct verbs_regions private; /* stages and frames, which no peer may access */
    pthread_mutex_t memory_lock;  /* protects `memories` */
    struct rc_memory *memories;   /* memory outside the pool: memory.c */
    uint8_t *memory;              /* stages, frames, and a word for each peer that flushes read into */
    uint64_t memory_bytes;
    base_spin lock;           /* protects the free lists */
    void *free[2];            /* the free lists of stages and of frames */
    _Atomic uint32_t left[2]; /* lengths of the two free lists; written while `lock` is held */
    bool refused[2];          /* [0] for stages, [1] for frames: a link found none, and none has become free since */
    _Atomic bool freed;       /* a stage or frame was returned after a link had found none, so rc_progress() must check all links */
    struct rc_receives receives;
    /* peers: living peers that have had a queue pair; peers_max: peers for which the completion queue has room */
    uint32_t peers, peers_max;
    _Atomic bool attention; /* a link needs the progress thread */
    int64_t tend_ns;        /* when the progress thread must check the links at the latest; used only by that thread */
    struct rc_rails *rails; /* further devices; NULL: none */
    struct rc_link **links; /* [count] */
    _Atomic uint32_t count; /* grows when a node joins, after its entry in `links` was written (sequentially consistent) */
    base_spin receiving;    /* held by the thread that polls the completion queue */
    struct ibv_wc early;    /* a completion that rc_idle() has found and that was not handled yet */
    bool has_early;
};

/* For how many peers a node of this cluster needs room. */
static inline uint32_t rc_peers_expected(const struct weft_node *w)
{
    uint32_t others = w->founders - 1;
    return w->room > w->founders && others < RC_PEERS_GROWN ? RC_PEERS_GROWN : others;
}

/* --- link.c --- */
/* Puts a stage or frame into its free list. The caller holds rc->lock, or no other thread runs yet. */
void rc_put_back(struct rc *rc, void *stage, bool frame);
/* The caller holds the link's lock. Returns NULL if the link holds its share already, or if none is free. */
void *rc_take_stage(struct rc_link *l, bool frame);
bool rc_stages_scarce(const struct rc *rc, bool frame);
void rc_give_stage(struct rc_link *l, void *stage, bool frame);
void rc_look_again(struct rc *rc);                                              /* makes the progress thread check all links */
void rc_want_locked(struct rc_link *l);                                         /* asks the progress thread for a queue pair */
void rc_lose_locked(struct rc_link *l, const char *why, ...) BASE_PRINTF(2, 3); /* reports that the queue pair has broken */
void rc_break(struct rc_link *l, const char *why, ...) BASE_PRINTF(2, 3);       /* treats the peer as dead */
bool rc_own_fault(enum ibv_wc_status status); /* whether the request itself is at fault, so that it would fail again */
int rc_gone(struct rc_link *l);               /* fails with -ECONNRESET */
uint8_t rc_retry_time(const struct verbs_qp *q, int64_t liveness_ns, int64_t reconnect_ns);
#define RC_STANDSTILL      "device %s has neither completed nor failed a request for %lld s, many times as long as its retries may take"
#define RC_STANDSTILL_LOOK WEFT_SECOND /* time between two checks */
/* Whether a queue pair has made no progress for too long. `waits`: some request should complete; `done`: how many have completed. */
bool rc_stands_still(struct rc_stand *s, const struct verbs_qp *q, bool waits, uint64_t done, int64_t now);

/* --- work.c: the caller holds the link's lock --- */
struct rc_work *rc_work_make(enum rc_work_kind kind, uint32_t bytes); /* NULL: no memory */
void rc_take_from_backlog(struct rc_queue *q); /* removes the first operation of the queue, which was posted or given up */
void rc_stripe_begin(struct rc_link *l, struct rc_work *k);
void rc_stripe_over(struct rc_link *l, struct rc_work *k);
void rc_finish(struct rc_link *l, struct rc_slot *s, int status); /* a request has ended */

/* --- post.c: the caller holds the link's lock; false means: no room now --- */
/* Posts a put or get that fits into one request. `op` completes when that request does. */
bool rc_post_whole(struct rc_link *l, bool put, uint64_t remote, uint8_t *local, const struct verbs_regions *memory, uint64_t len,
                   weft_op *op);
bool rc_post_next(struct rc_link *l, struct rc_work *k); /* posts the next piece of a put or get */
/* Posts, in one request, the piece of a striped operation that goes over the first rail. */
bool rc_post_share(struct rc_link *l, struct rc_work *k, bool put, uint64_t remote, uint8_t *local, uint64_t bytes);
/* posts the put or get of `slot` again; `prompt`: the request asks for a completion */
bool rc_post_transfer_again(struct rc_link *l, const struct rc_slot *slot, bool prompt);
/* Posts the frame `body`, which begins with the header. A frame larger than RC_LITTLE must be the body of `*own`, which the function then
 * takes over. */
bool rc_post_frame(struct rc_link *l, const void *body, uint32_t bytes, uint32_t fences, struct rc_work **own);
bool rc_post_frame_again(struct rc_link *l, struct rc_slot *slot);
int rc_post_atomic(struct rc_link *l, const struct rc_work *k, weft_op *op); /* 1: posted; 0: no room now; or an error */
/* handles an acknowledgement: how many frames of a lane the peer has processed */
void rc_taken_locked(struct rc_link *l, enum rc_lane lane, uint32_t taken);
void rc_tell_locked(struct rc_link *l, bool due); /* sends an acknowledgement if RC_TELL frames need one, or if `due` is true */
/* posts a read behind the posted requests, unless such a read is under way; when the read completes, l->flushed_to is set */
void rc_flush_locked(struct rc_link *l);

/* --- again.c: repeats the requests of a broken queue pair on the next one; the caller holds the link's lock --- */
/* sets the requests of the broken queue pair aside; `received`: how many frames of each lane the peer has received */
int rc_gather_locked(struct rc_link *l, const uint32_t received[RC_LANES]);
void rc_resume_locked(struct rc_link *l);                 /* posts the requests that were set aside, as many as there is room for */
void rc_drop_again_locked(struct rc_link *l, int status); /* ends all frames and requests that were to be posted again, with this status */

/* --- stripe.c: the caller holds the link's lock --- */
/* 1: posted a part of the operation; 0: not possible now; -1: not worth striping */
int rc_stripe_post(struct rc_link *l, struct rc_work *k);
void rc_stripe_repeat(struct rc_link *l); /* posts the pieces of broken tracks over the first rail, as many as there is room for */

/* --- backlog.c. Functions that queue an operation, and those with _locked at the end of the name, are called while the link's lock is held
 * --- */
/* Answers a request to this node's processor. Returns false if the peer has more such requests under way than it may, or if there is no
 * memory. Takes the lock. */
bool rc_answer(struct rc_link *l, uint32_t token, uint64_t value);
void rc_drop_answers_locked(struct rc_link *l);
/* appends `k` to the backlog, which then owns it */
void rc_enqueue(struct rc_link *l, enum rc_lane lane, struct rc_work *k, uint64_t stripes);
int rc_keep(struct rc_link *l, enum rc_lane lane, const struct rc_work *what); /* queues a copy of the operation */
bool rc_push_locked(struct rc_link *l); /* posts as much of the backlogs as possible; returns whether something was posted */
/* waits until the lane's backlog is below `limit` bytes */
int rc_wait_for_room(struct rc_link *l, enum rc_lane lane, uint64_t limit);

/* --- complete.c --- */
void rc_done(struct rc_link *l, const struct ibv_wc *wc); /* handles a completion of the send queue */
void rc_fail_all(struct rc_link *l, int status);

/* --- operations.c, order.c: functions of the transport's table, and rc_frame_send(), by which they send frames --- */
/* Posts or queues a frame. Without `ask`, `op` completes at once. With `ask`, the peer answers; then `op` completes, and `old` (may be
 * NULL) gets the value in the answer. */
int rc_frame_send(struct rc_link *l, struct rc_frame *head, const void *header, const void *payload, bool ask, uint64_t *old, weft_op *op);
int rc_put(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, weft_op *op);
int rc_get(struct weft_node *w, struct fab_link *l, void *dst, uint64_t from, size_t len, weft_op *op);
/* A put or get whose local memory is registered as `memory`. */
int rc_transfer_memory(struct weft_node *w, struct fab_link *l, bool put, const struct verbs_regions *memory, uint64_t remote,
                       uint8_t *local, size_t len, weft_op *op);
int rc_atomic(struct weft_node *w, struct fab_link *l, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, uint64_t *old,
              weft_op *op);
int rc_put_signal(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, uint64_t signal, uint64_t add,
                  weft_op *op);
int rc_set_system(struct weft_node *w, struct fab_link *l, uint64_t at, uint64_t value, bool wake);
int rc_send(struct weft_node *w, struct fab_link *l, uint32_t id, const void *header, size_t header_len, const void *payload,
            size_t payload_len, weft_op *op);
bool rc_flushed(struct weft_node *w, struct fab_link *l, struct fab_flush *f);
void rc_fence(struct weft_node *w, struct fab_link *l);

/* --- memory.c --- */
struct rc_memory {
    struct fab_memory memory;
    struct rc_memory *next;
    struct verbs_regions regions;
};
int rc_memory_add(struct weft_node *w, int fd, void *base, uint64_t bytes, struct fab_memory **out);
void rc_memory_remove(struct weft_node *w, struct fab_memory *m);
void rc_memory_close(struct rc *rc); /* removes all memory that is still registered */
int rc_put_from(struct weft_node *w, struct fab_link *l, struct fab_memory *m, uint64_t to, const void *src, size_t len, weft_op *op);
int rc_get_into(struct weft_node *w, struct fab_link *l, struct fab_memory *m, void *dst, uint64_t from, size_t len, weft_op *op);

/* --- receive.c --- */
int rc_receives_open(struct rc *rc); /* after verbs_device_use() */
void rc_receives_close(struct rc *rc);
int rc_receives_add(struct rc *rc);
int rc_receives_for(struct rc_link *l);                      /* allocates the receives of a queue pair that is about to be made */
int rc_receives_post_locked(struct rc_link *l);              /* posts the receives of a queue pair that has just been made */
uint8_t *rc_receive_at(const struct rc *rc, uint32_t frame); /* NULL: there is no such frame */
void rc_receive_hold(struct rc_link *l, uint32_t frame);     /* marks the frame as in use: data has arrived in it */
void rc_receive_give(struct rc_link *l, uint32_t frame);     /* posts the frame as a receive again */
/* posts a frame as a receive again; only for frames that arrived over a queue pair which no longer exists */
void rc_receive_unused(struct rc *rc, uint32_t frame);
void rc_receives_look(struct rc *rc, uint32_t before, uint32_t taken);

/* --- message.c --- */
void rc_received(struct rc *rc, const struct ibv_wc *wc); /* handles the completion of a receive; the caller holds rc->receiving */
int rc_deliver(struct weft_node *w, struct rc_link *l, uint32_t most); /* runs the handlers of up to `most` messages; needs w->progress */
/* counts frames of the peer that were processed; takes the lock */
void rc_count_taken(struct rc_link *l, enum rc_lane lane, uint32_t frames);

/* --- poll.c --- */
void rc_take_all(struct rc *rc); /* handles all completions in the completion queue */
int rc_service(struct weft_node *w);
int rc_progress(struct weft_node *w);
bool rc_idle(struct weft_node *w);
void rc_last_words(struct weft_node *w, struct fab_link *l);

/* --- connect.c --- */
/* Call before a queue pair is destroyed while the node goes on, so that no receives of the shared queue are lost. */
void rc_leave(struct rc_link *l);
void rc_side(struct weft_node *w, struct fab_link *link, const void *bytes, size_t len);
int64_t rc_upkeep(struct weft_node *w, int64_t now_ns);

static inline struct rc_slot *rc_slot_at(struct rc_link *l, uint64_t position)
{
    return &l->slots[position & (l->depth - 1)];
}
/* Whether something must be posted as soon as there is room. The caller holds the link's lock. */
static inline bool rc_waits(const struct rc_link *l)
{
    return l->again || l->flush_wanted || l->answers.first || l->lane[RC_MAIN].backlog || l->lane[RC_MESSAGES].backlog;
}
static inline uint64_t rc_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
/* Whether a new request can be posted now. */
static inline bool rc_has_slot(const struct rc_link *l)
{
    return l->up && !l->again && l->posted - l->done < l->depth;
}
static inline enum rc_lane rc_lane_of(uint8_t frame_kind)
{
    return frame_kind == RC_MESSAGE ? RC_MESSAGES : RC_MAIN;
}
/* Whether everything before a fence is done: requests to the peer's processor are answered, operations of the other lane posted, striped
 * operations done. */
static inline bool rc_fence_open(const struct rc_link *l, enum rc_lane lane, uint64_t asks, uint64_t other, uint64_t stripes)
{
    return asks <= l->answered && l->lane[1 - lane].posted >= other && stripes <= l->stripes_done;
}
/* Whether a new operation can be posted at once, without passing the backlog or a fence. */
static inline bool rc_clear_way(const struct rc_link *l, enum rc_lane lane)
{
    const struct rc_queue *q = &l->lane[lane];
    return !q->backlog && rc_fence_open(l, lane, l->fence_asks, q->fence_other, l->fence_stripes);
}
/* The slot of the next request; valid if rc_has_slot(). */
static inline struct rc_slot *rc_slot_next(struct rc_link *l)
{
    return rc_slot_at(l, l->posted);
}

/* wr_id of a request: the link's number, 15 bits of the generation, a bit that is set, the low 32 bits of the position. wr_id of a receive:
   the number of its frame. */
#define RC_WR_GENERATION 0x7fffu
static inline uint64_t rc_wr_request(const struct rc_link *l, uint64_t position)
{
    return (uint64_t)l->number << 48 | (uint64_t)(l->generation & RC_WR_GENERATION) << 33 | UINT64_C(1) << 32 | (uint32_t)position;
}
static inline uint64_t rc_wr_receive(uint32_t frame)
{
    return frame;
}
static inline uint32_t rc_wr_link(uint64_t id)
{
    return (uint32_t)(id >> 48);
}
static inline uint32_t rc_wr_generation(uint64_t id)
{
    return (uint32_t)(id >> 33) & RC_WR_GENERATION;
}
static inline bool rc_wr_sent(uint64_t id)
{
    return id >> 32 & 1;
}

#endif
