/* SPDX-License-Identifier: MIT
 *
 * What the files of the rc transport share. Each calls only those before it (further devices to the same peers are rails.h's):
 *
 *   link.c        what is to be done about a link; stages and frames
 *   work.c        works, and the end of their requests
 *   post.c        requests into the send queue
 *   again.c       what a queue pair that broke leaves behind
 *   stripe.c      large puts and gets over several rails
 *   backlog.c     what waits for room, for credits, or behind a fence
 *   complete.c    what becomes of requests
 *   operations.c  puts, gets, atomics, messages
 *   order.c       flush and fence
 *   receive.c     where frames are received
 *   message.c     frames that come: messages, and what this node does for others
 *   rails.c       the further devices
 *   poll.c        looks at the completion queues
 *   tracks.c      queue pairs on further devices
 *   connect.c     queue pairs on the first
 *   transport.c   the device, joining, the end; the table
 *
 * One reliable queue pair a peer. put is an RDMA write, get an RDMA read, everything else a frame that is sent into a
 * receive the peer has posted. The queue pair keeps all of it in order, both on the way and at the target, so a fence has to
 * wait for nothing but reads and for what the home node's processor does (atomics, signals).
 *
 * When nodes join, a pair exchanges where its pools are and their keys, no more. The first operation to a peer waits in the
 * link's backlog and asks the progress thread for a queue pair; that is agreed on over the side connection with the peer's
 * progress thread, so nobody there has to call anything (connect.c). What a queue pair needs is made with it.
 *
 * A link's lock guards its queue pair, its send queue and what waits for it. Completions are handled under rc->receiving,
 * handlers run under w->progress. Order: w->progress, rc->receiving, a link's lock. While the node runs only the progress thread
 * makes and destroys queue pairs, and it holds both inner locks when it changes which one there is.
 */
#ifndef WEFT_RC_H
#define WEFT_RC_H

#include "fabric/fabric.h"
#include "fabric/stash.h"
#include "verbs/verbs.h"

#define RC_FRAME_BYTES  4096u
#define RC_WINDOW       32u /* frames of a lane that a peer may send before it hears that they were taken */
#define RC_TELL         8u  /* taken frames after which the peer is told, if nothing goes there anyway */
#define RC_RESERVE      16u /* receives beyond the windows: for frames that only tell */
#define RC_RECEIVES     (2 * RC_WINDOW + RC_RESERVE)
#define RC_SPARE        16u /* chunks of receives that stand in for what was lost with queue pairs */
#define RC_GIVE_BATCH   8u  /* receives posted with one request, where they are shared */
#define RC_SEND_DEPTH   128u
#define RC_CQ_ENTRIES   (RC_SEND_DEPTH + RC_RECEIVES) /* of a peer: every request may end with a completion */
#define RC_CQ_SPARE     (RC_SPARE * RC_RECEIVES + 16u)
#define RC_SIGNAL_EVERY 16u
#define RC_INLINE_MAX   220u        /* bytes inside a request, where the device takes them */
#define RC_STAGE_BYTES  (64u << 10) /* a piece of memory outside the pool on its way */
#define RC_STAGES       64u
#define RC_TX_FRAMES    256u /* of the node, for all its links */
#define RC_FLUSHES_AT   ((uint64_t)RC_STAGES * RC_STAGE_BYTES + (uint64_t)RC_TX_FRAMES * RC_FRAME_BYTES) /* a word a peer */
#define RC_BACKLOG_WAIT (1u << 20)  /* bytes kept for a peer before its senders wait */
#define RC_BACKLOG_PUTS (16u << 10) /* the same for puts and gets, of which only the request is kept */
#define RC_BACKLOG_MAX  (64u << 20) /* bytes kept for a peer before handlers get -ENOBUFS */

enum rc_frame_kind { RC_MESSAGE = 1, RC_ATOMIC, RC_ANSWER, RC_SIGNAL, RC_STORE, RC_TELL_ONLY };

/* Two lanes, each in order, neither waiting for the other unless a fence says so: what the program's handlers take, which may
 * be slow or stopped, and all else. */
enum rc_lane { RC_MAIN, RC_MESSAGES, RC_LANES };

/* The beginning of every frame; what follows is checked against the bytes that came. */
struct rc_frame {
    uint8_t kind;
    uint8_t what; /* RC_ATOMIC: enum fab_atomic */
    uint16_t id;  /* RC_MESSAGE: handler */
    uint16_t header_len, payload_len;
    uint32_t taken[RC_LANES]; /* frames of yours that I have taken, modulo 2^32 */
    uint32_t token;           /* RC_ATOMIC, RC_ANSWER: which of the asker's */
    uint32_t from;            /* the sender: whose link it is, to be compared with the queue pair it came by */
    uint64_t offset, a, b;    /* in the receiver's pool; operands; RC_ANSWER: a is the former value */
};

enum rc_slot_kind { RC_SLOT_PUT, RC_SLOT_GET, RC_SLOT_ATOMIC, RC_SLOT_FRAME, RC_SLOT_TELL, RC_SLOT_FLUSH };

/* A request in the send queue, until its completion; enough of it to post it again. */
struct rc_slot {
    weft_op *op;
    struct rc_work *work; /* of which it is a piece, or NULL */
    void *stage;          /* stage or frame to give back; NULL */
    void *copy_to;        /* a read into a stage: where it is to go */
    uint8_t *local;       /* put, get: the memory; with a stage not looked at again */
    uint64_t remote;
    uint32_t len;
    uint32_t number; /* RC_SLOT_FRAME: which of its lane */
    uint8_t kind, lane;
    bool frame;      /* `stage` is a frame */
    uint32_t fences; /* before it */
    bool refused;    /* the peer's device did, or ours: not to be tried again */
};

/* A frame that the peer has not said to have taken: kept for the case that its queue pair breaks. */
#define RC_LITTLE 112u /* bytes: atomics, signals, and messages with a header alone; larger ones stay in their work */
struct rc_kept {
    struct rc_work *work;
    uint32_t bytes;
    uint64_t position; /* in the send queue, when it was posted last */
    uint8_t little[RC_LITTLE];
};

enum rc_work_kind { RC_WORK_PUT, RC_WORK_GET, RC_WORK_FRAME, RC_WORK_ATOMIC };

/* What did not go at once, or goes in pieces. */
struct rc_work {
    struct rc_work *next;
    weft_op *op;
    enum rc_work_kind kind;
    uint64_t fence_asks;    /* of the fence before it: goes when so many asks are answered ... */
    uint64_t fence_other;   /* ... so many works of the other lane are posted ... */
    uint64_t fence_stripes; /* ... and those of the main lane before this number that were spread out are done */
    uint32_t fences;        /* before it */
    uint64_t remote, len, posted;
    uint8_t *local;       /* RC_WORK_ATOMIC: where the former value goes; NULL */
    enum fab_atomic what; /* RC_WORK_ATOMIC, with its operands */
    uint64_t a, b;
    uint32_t pieces; /* in the send queue */
    int status;      /* of the first piece that failed; 0 */
    bool whole;      /* all pieces are posted */
    bool striped;    /* over several rails (rails.h), and with those that are, in the order of their numbers: */
    struct rc_work *before, *after;
    uint64_t number; /* of its lane */
    struct {         /* spread out after a fence: when all until there has proved to be at the peer, by the first rail */
        bool set;
        uint32_t generation;
        uint64_t change, read;
    } proof;
    uint32_t bytes; /* RC_WORK_FRAME: of `body` */
    uint8_t body[];
};

struct rc_ask { /* something the home node's processor does, and answers */
    weft_op *op;
    uint64_t *old;
};
#define RC_ASKS   256u       /* under way at a time */
#define RC_NO_ASK UINT32_MAX /* a token: no answer is wanted */

/* How far the requests of a queue pair were when they were looked at, and for how long they have not come further. */
struct rc_stand {
    uint64_t done;
    int64_t looked_ns, still_ns;
    bool asked;          /* the peer, whether it takes what comes */
    int64_t answered_ns; /* it does; 0: no answer yet */
};

struct rc_link {
    struct weft_node *w;
    struct rc *rc;
    struct fab_link *link;
    uint32_t number; /* in rc->links */
    uint64_t peer_base;
    uint32_t peer_shift; /* of its segments */
    uint32_t peer_keys_count, *peer_keys;
    struct rc_tracks *tracks; /* rails.h; NULL: one rail */
    bool has_atomics;         /* our device has atomics, and the peer's are atomic with its processor */

    /* --- the progress thread's, see connect.c --- */
    enum rc_state { RC_COLD, RC_CALLING, RC_CONNECTED, RC_UP } state;
    bool called;       /* our address has gone to the peer, of this generation */
    int64_t since_ns;  /* there is no queue pair that works; 0: there is, or none was wanted */
    int64_t retry_ns;  /* not to be tried before */
    int64_t called_ns; /* when the last call went */
    struct rc_stand stand;
    uint64_t posted_then; /* `posted` when that was looked at */
    uint32_t tries;
    uint32_t peer_received[RC_LANES], peer_told[RC_LANES]; /* as the peer's call says */

    /* --- under `lock` --- */
    base_spin lock;
    bool closed; /* disconnected: nothing is posted any more */
    bool up;     /* requests may be posted */
    bool wanted; /* something waits for a queue pair */
    bool lost;   /* the queue pair has broken, `lost_why` says how, and nothing was done about it yet */
    bool proved; /* a request was done by this queue pair, or none waited for it */
    char lost_why[256];
    uint32_t generation; /* of the queue pair: how many were tried before */
    struct verbs_qp qp;
    uint32_t depth; /* a power of two; 0 before the first queue pair */
    uint32_t inline_bytes;
    struct rc_slot *slots; /* [depth] */
    struct rc_kept *kept;  /* [RC_LANES * RC_WINDOW] */
    struct rc_slot *again; /* from an earlier queue pair, to be posted before anything else; NULL: nothing */
    uint32_t again_at, again_count;
    uint64_t posted, done; /* positions in the send queue */
    uint64_t signalled;    /* position after the last request that asks for a completion */
    struct rc_queue {
        struct rc_work *backlog, **end;
        uint64_t bytes;            /* of it; accessed atomically: read without the lock as a hint */
        uint64_t begun, posted;    /* works: all there were, and those that are in the send queue */
        uint32_t sent, peer_taken; /* frames; the difference is at most the window */
        uint32_t taken, told;      /* frames of the peer, and as it may know */
        uint64_t fence_other;      /* of the last fence: works of the other lane before it */
    } lane[RC_LANES];
    struct { /* for the peer, where there was no room; they go before any backlog, whose works may wait for its
              * answers. Their bytes count with the main lane's */
        struct rc_work *first, **end;
        uint32_t count;
    } answers;
    struct rc_ask asks[RC_ASKS];
    /* Counts of asks; answers come in order. What follows a fence waits for fence_asks, which stays while there is no other fence: so
     * the counts must not wrap. */
    uint64_t asked, answered, fence_asks;
    uint64_t last_change;   /* position after the last write or frame: what a flush proves to be there */
    uint64_t last_read;     /* position after the last read */
    uint64_t flushed_to;    /* position up to which a completed read proves that all is there */
    uint64_t flush_read;    /* position of a flush's read under way + 1; 0: none */
    uint64_t flush_covers;  /* last_change when it was posted */
    bool flush_wanted;      /* there was no room for it: it goes before anything else that waits */
    uint32_t gathered;      /* how often what a queue pair had left behind was put aside, to get positions anew */
    uint32_t fences;        /* how many there were */
    uint32_t fences_posted; /* before the newest request that was posted: the first behind a fence asks the queue pair to hold it, and with
                             * it all that is posted later, until the reads before it are done */
    uint32_t fence_proved;  /* the last whose works may be spread out */
    uint64_t stripe;        /* bytes from which a put or get is spread out; UINT64_MAX: there is nothing to spread over */
    uint64_t fence_stripes; /* main works before the last fence; */
    uint64_t stripes_done;  /* and the number of the first that is spread out and not done: UINT64_MAX, all are */
    uint32_t repeats;       /* pieces that are to be repeated by this rail */

    /* Messages that came and wait for their handlers' turn, in the frames they were received in. Filled under rc->receiving,
     * emptied under w->progress. */
    struct {
        uint32_t frame, bytes;
    } inbox[RC_WINDOW];
    _Atomic uint32_t inbox_in, inbox_out;
    uint32_t withheld; /* taken, but not said: as many wait for their handler */
    struct stash stash;
    uint32_t held[2];                          /* stages, frames; with rc->lock */
    _Atomic uint64_t staged_puts, staged_gets; /* pieces in memory outside the pool */
    _Atomic uint64_t native_atomics;
    _Atomic bool ended; /* the device has said that the queue pair takes no more receives */
    uint32_t own_first; /* without a shared queue: the first of the link's own frames; */
    bool has_own;
    _Atomic uint64_t own_held[(RC_RECEIVES + 63) / 64]; /* a bit for each that is in use, and not to be received into */
    _Atomic uint64_t connects, breaks;                  /* queue pairs there have been; that broke */
    _Atomic bool broken;                                /* the peer is to be given up */
    char why[512];                                      /* written before `broken` */
};

/* receive.c: frames to receive into; a frame is a number, RC_RECEIVES of them a chunk. */
struct rc_receives {
    struct ibv_srq *srq;     /* shared by all links; NULL: each queue pair has its own */
    uint32_t most, room;     /* chunks: for all that credits allow, and that there can be */
    struct rc_chunk *chunks; /* [room] */
    _Atomic uint32_t count;
    _Atomic uint32_t given, taken; /* to and from the shared queue, modulo 2^32; `taken` is of who polls */
    base_spin lock;                /* of what follows, of `given`, and of adding chunks */
    uint32_t batch[RC_GIVE_BATCH], batched;
    bool full; /* one more was refused */
};

struct rc {
    struct weft_node *w;
    const struct fab_transport *transport; /* rc's table */
    struct fab_look look;                  /* for the device */
    struct verbs_device *device;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct verbs_regions pool;    /* the pool's segments */
    struct verbs_regions private; /* stages and frames: no peer may touch them */
    uint8_t *memory;              /* stages, frames, and where the reads of flushes go */
    uint64_t memory_bytes;
    base_spin lock;           /* of the free lists: */
    void *free[2];            /* stages, frames; */
    _Atomic uint32_t left[2]; /* in them: written with the lock; */
    bool refused[2];          /* a link got none, and none was given back since */
    _Atomic bool freed;       /* one was: rc_progress() is to look at all links */
    struct rc_receives receives;
    uint32_t peers, peers_max; /* that have had a queue pair; that the completion queue has room for */
    _Atomic bool attention;    /* some link wants something of the progress thread */
    int64_t tend_ns;           /* and when it is to look anyway; its own */
    struct rc_rails *rails;    /* further devices; NULL: none */
    struct rc_link **links;    /* [count]; as it is once the node runs */
    uint32_t count;
    base_spin receiving; /* who holds it polls the completion queue */
    struct ibv_wc early; /* found while going to sleep, not looked at yet */
    bool has_early;
};

/* --- link.c --- */
void rc_put_back(struct rc *rc, void *stage, bool frame); /* one that no link holds; with rc->lock, or before anyone else is there */
void *rc_take_stage(struct rc_link *l, bool frame);       /* with the link's lock. NULL: it has its share, or all are on their way */
bool rc_stages_scarce(const struct rc *rc, bool frame);
void rc_give_stage(struct rc_link *l, void *stage, bool frame);
void rc_look_again(struct rc *rc);                                              /* the progress thread, at what every link wants */
void rc_want_locked(struct rc_link *l);                                         /* a queue pair: the progress thread will make one */
void rc_lose_locked(struct rc_link *l, const char *why, ...) BASE_PRINTF(2, 3); /* the queue pair has broken */
void rc_break(struct rc_link *l, const char *why, ...) BASE_PRINTF(2, 3);       /* the peer is to be given up */
bool rc_own_fault(enum ibv_wc_status status);                                   /* of the request that ended so: it would fail again */
int rc_gone(struct rc_link *l);                                                 /* -ECONNRESET with a sentence */
uint8_t rc_retry_time(const struct verbs_qp *q, int64_t liveness_ns, int64_t reconnect_ns);
#define RC_STANDSTILL      "%s has neither done a request nor failed it in %lld s, many times what its retries may take"
#define RC_STANDSTILL_LOOK WEFT_SECOND                                                                      /* between two looks */
bool rc_stands_still(struct rc_stand *s, const struct verbs_qp *q, bool waits, uint64_t done, int64_t now); /* for too long */

/* --- work.c, with the link's lock --- */
struct rc_work *rc_work_make(enum rc_work_kind kind, uint32_t bytes); /* NULL: no memory */
void rc_take_from_backlog(struct rc_queue *q);                        /* its first work is posted, or given up */
void rc_stripe_begin(struct rc_link *l, struct rc_work *k);           /* it is spread out over several rails from now on */
void rc_stripe_over(struct rc_link *l, struct rc_work *k);            /* it has ended */
void rc_finish(struct rc_link *l, struct rc_slot *s, int status);     /* one request is over */

/* --- post.c, with the link's lock; false: no room now --- */
/* A put or get that fits into one request. `op` completes with it. */
bool rc_post_whole(struct rc_link *l, bool put, uint64_t remote, uint8_t *local, uint64_t len, weft_op *op);
bool rc_post_next(struct rc_link *l, struct rc_work *k); /* the next piece of a put or get */
bool rc_post_share(struct rc_link *l, struct rc_work *k, bool put, uint64_t remote, uint8_t *local, uint64_t bytes); /* ours, in one */
bool rc_post_transfer_again(struct rc_link *l, const struct rc_slot *slot, bool prompt); /* a put or get, as the slot says */
/* `body` begins with the header. A frame larger than RC_LITTLE is the body of `*own`, which is taken then. */
bool rc_post_frame(struct rc_link *l, const void *body, uint32_t bytes, uint32_t fences, struct rc_work **own);
bool rc_post_frame_again(struct rc_link *l, struct rc_slot *slot);           /* a frame that is kept */
int rc_post_atomic(struct rc_link *l, const struct rc_work *k, weft_op *op); /* 1, 0 no room now, or an error */
void rc_taken_locked(struct rc_link *l, enum rc_lane lane, uint32_t taken);  /* the peer has, so many frames of a lane */
void rc_tell_locked(struct rc_link *l, bool due);                            /* the peer how far its frames were taken, where that is due */
void rc_flush_locked(struct rc_link *l); /* a read behind what was posted, if none is under way: l->flushed_to will tell */

/* --- again.c: what a queue pair that broke leaves behind, on the next one; with the lock --- */
int rc_gather_locked(struct rc_link *l, const uint32_t received[RC_LANES]); /* the peer has received so many frames */
void rc_resume_locked(struct rc_link *l);                                   /* as far as there is room */
void rc_drop_again_locked(struct rc_link *l, int status);                   /* all of it ends so */

/* --- stripe.c, with the lock --- */
int rc_stripe_post(struct rc_link *l, struct rc_work *k); /* 1: a part of it; 0: not now; -1: it is nothing to spread out */
void rc_stripe_repeat(struct rc_link *l);                 /* as far as there is room */

/* --- backlog.c, with the link's lock where the name says so, and for those that keep --- */
/* To what the peer has asked. False: it has asked for more than it may (or there is no memory). Takes the lock. */
bool rc_answer(struct rc_link *l, uint32_t token, uint64_t value);
void rc_drop_answers_locked(struct rc_link *l);
void rc_enqueue(struct rc_link *l, enum rc_lane lane, struct rc_work *k, uint64_t stripes); /* behind what waits; it is the backlog's now */
int rc_keep(struct rc_link *l, enum rc_lane lane, const struct rc_work *what);              /* a copy of it, for later */
bool rc_push_locked(struct rc_link *l);                                     /* what waits, as far as it goes; did anything go */
int rc_wait_for_room(struct rc_link *l, enum rc_lane lane, uint64_t limit); /* before more is kept for a peer with much waiting */

/* --- complete.c --- */
void rc_done(struct rc_link *l, const struct ibv_wc *wc); /* a completion of the send queue */
void rc_fail_all(struct rc_link *l, int status);

/* --- operations.c, order.c: of the transport's table, and what they are made of --- */
/* A frame at once, or kept: its op, if any, completes when it is on its way. With `ask` the frame wants an answer, and the op completes
 * with that; `old` (or NULL) takes what the answer brings. */
int rc_frame_send(struct rc_link *l, struct rc_frame *head, const void *header, const void *payload, bool ask, uint64_t *old, weft_op *op);
int rc_put(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, weft_op *op);
int rc_get(struct weft_node *w, struct fab_link *l, void *dst, uint64_t from, size_t len, weft_op *op);
int rc_atomic(struct weft_node *w, struct fab_link *l, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, uint64_t *old,
              weft_op *op);
int rc_put_signal(struct weft_node *w, struct fab_link *l, uint64_t to, const void *src, size_t len, uint64_t signal, uint64_t add,
                  weft_op *op);
int rc_set_system(struct weft_node *w, struct fab_link *l, uint64_t at, uint64_t value, bool wake);
int rc_send(struct weft_node *w, struct fab_link *l, uint32_t id, const void *header, size_t header_len, const void *payload,
            size_t payload_len, weft_op *op);
bool rc_flushed(struct weft_node *w, struct fab_link *l, struct fab_flush *f);
void rc_fence(struct weft_node *w, struct fab_link *l);

/* --- receive.c --- */
int rc_receives_open(struct rc *rc); /* with the device in use */
void rc_receives_close(struct rc *rc);
int rc_receives_add(struct rc *rc);                          /* as many more as one peer can use */
int rc_receives_for(struct rc_link *l);                      /* a queue pair that is to be made ... */
int rc_receives_post_locked(struct rc_link *l);              /* ... and has been */
uint8_t *rc_receive_at(const struct rc *rc, uint32_t frame); /* NULL: there is no such frame */
void rc_receive_hold(struct rc_link *l, uint32_t frame);     /* something came in it */
void rc_receive_give(struct rc_link *l, uint32_t frame);     /* it may be received into again */
void rc_receive_unused(struct rc *rc, uint32_t frame);       /* nothing came in it: its queue pair has ended */
void rc_receives_look(struct rc *rc, uint32_t before, uint32_t taken);

/* --- message.c --- */
void rc_received(struct rc *rc, const struct ibv_wc *wc);                   /* a completion of a receive; with rc->receiving */
int rc_deliver(struct weft_node *w, struct rc_link *l, uint32_t most);      /* messages that have come; with w->progress */
void rc_count_taken(struct rc_link *l, enum rc_lane lane, uint32_t frames); /* of the peer's; takes the lock */

/* --- poll.c --- */
void rc_take_all(struct rc *rc); /* everything that is in the completion queue */
int rc_service(struct weft_node *w);
int rc_progress(struct weft_node *w);
bool rc_idle(struct weft_node *w);
void rc_last_words(struct weft_node *w, struct fab_link *l);

/* --- connect.c --- */
void rc_leave(struct rc_link *l); /* its queue pair is about to be destroyed, while the node goes on */
void rc_side(struct weft_node *w, struct fab_link *link, const void *bytes, size_t len);
int64_t rc_upkeep(struct weft_node *w, int64_t now_ns);

static inline struct rc_slot *rc_slot_at(struct rc_link *l, uint64_t position)
{
    return &l->slots[position & (l->depth - 1)];
}
/* Something is to be posted as soon as there is room; with the lock. */
static inline bool rc_waits(const struct rc_link *l)
{
    return l->again || l->flush_wanted || l->answers.first || l->lane[RC_MAIN].backlog || l->lane[RC_MESSAGES].backlog;
}
static inline uint64_t rc_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
/* Is there room for a request now? */
static inline bool rc_has_slot(const struct rc_link *l)
{
    return l->up && !l->again && l->posted - l->done < l->depth;
}
static inline enum rc_lane rc_lane_of(uint8_t frame_kind)
{
    return frame_kind == RC_MESSAGE ? RC_MESSAGES : RC_MAIN;
}
/* Not past a fence: answers, works of the other lane, and those that go by other rails too, that came before it. */
static inline bool rc_fence_open(const struct rc_link *l, enum rc_lane lane, uint64_t asks, uint64_t other, uint64_t stripes)
{
    return asks <= l->answered && l->lane[1 - lane].posted >= other && stripes <= l->stripes_done;
}
/* May something go at once, not past what waits nor a fence? */
static inline bool rc_clear_way(const struct rc_link *l, enum rc_lane lane)
{
    const struct rc_queue *q = &l->lane[lane];
    return !q->backlog && rc_fence_open(l, lane, l->fence_asks, q->fence_other, l->fence_stripes);
}
/* Of the request that is posted next, if there is room. */
static inline struct rc_slot *rc_slot_next(struct rc_link *l)
{
    return rc_slot_at(l, l->posted);
}

/* wr_id: whose queue pair (its number in rc->links, and 15 bits of the generation) and the position of a request; or which
 * frame, of a receive. */
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
