/* SPDX-License-Identifier: MIT
 *
 * What the files of the tb transport share. Each calls only those before it. First the protocol, which knows no device:
 *
 *   stream.c       frames, each delivered once and in order
 *   bulk.c         large data without a copy; over bulk_receive.c and bulk_send.c
 *   endpoint.c     every operation between two nodes; over endpoint_records.c, and that over endpoint_operations.c
 *
 * then what carries it:
 *
 *   device.c       devices, their memory and completion queues
 *   cable.c        the queue pairs to a neighbour
 *   message.c      messages that wait for their handlers
 *   link.c         a link's life, and what its endpoint asks for
 *   routes.c       routes through other nodes
 *   watch.c        cables that are pulled and plugged in again
 *   leave.c        leaving, one node after another
 *   ending.c       frees devices when a signal ends the process
 *   connect.c      finds and connects the cables to a node that joins
 *   poll.c         progress: completion queues, timers, upkeep
 *   operations.c   puts, gets, atomics, messages, flush, fence
 *   transport.c    opening, joining, the end of a link; the table
 *
 * Locks, outer first: tb->receiving (who polls), a link's lock (its endpoint). Cables post under the lock of whichever link emits,
 * and count with atomics.
 */
#ifndef WEFT_TB_H
#define WEFT_TB_H

#include "fabric/fabric.h"
#include "fabric/stash.h"
#include "fabric/tb/endpoint.h"
#include "verbs/verbs.h"

#define TB_DEVICES     8u /* of a node */
#define TB_CABLE_LANES 8u /* of a cable */
_Static_assert(TB_CABLE_LANES == FAB_LANES_MAX && TB_LANE_DEPTH == FAB_LANE_DEPTH, "what the settings allow");
#define TB_RECEIVES     128u /* control frames posted on a cable; the windows of its users share them */
#define TB_OWED         8u   /* of them that may wait to be posted again, together */
#define TB_SENDS        128u
#define TB_BACKLOG_WAIT (1u << 20)  /* bytes kept for a peer before its senders wait */
#define TB_BACKLOG_MAX  (64u << 20) /* and before handlers get -ENOBUFS */

enum { TB_RECEIVED, TB_SENT, TB_DIRECTIONS };

struct tb_lane_option {
    uint32_t message, depth; /* bytes; messages */
};

/* Of a device's sends, or of its receives. One queue for both would be written by this processor and by who delivers, in turns. */
struct tb_completions {
    struct ibv_comp_channel *channel;
    int fd; /* the channel's; a signal may just be taking that away (ending.c) from who polls this */
    struct ibv_cq *cq;
    struct ibv_wc early; /* found while going to sleep, not looked at yet */
    bool has_early;
};

struct tb_device {
    struct verbs_device *d;
    struct tb_completions of[TB_DIRECTIONS];
    struct verbs_regions pool, private;
    uint32_t cables;           /* that use it; a Thunderbolt port has one */
    _Atomic int64_t looked_at; /* when its port was looked at last; whoever posts looks */
    _Atomic bool down;         /* it was down at a look: nothing more is posted, and its cables are lost, also if it is up again by then */
};

struct tb_cable {
    struct tb *tb;
    struct tb_device *device;
    uint32_t index; /* in tb->cables */
    uint32_t node;  /* at its other end */
    struct verbs_qp control, lanes[TB_CABLE_LANES];
    uint32_t lane_count;        /* connected */
    uint32_t lane_base;         /* number of the first in the link */
    uint32_t receives, sends;   /* frames that control takes, as granted */
    uint8_t *frames;            /* [TB_RECEIVES], registered */
    uint16_t held[TB_RECEIVES]; /* receives whose frame is being passed on: over which cable, + 1. These two under tb->receiving */
    uint32_t held_count;
    uint16_t expected;      /* receive: most likely the next that is written to; likewise */
    uint16_t owed[TB_OWED]; /* receives that are to be posted again; these two likewise */
    uint32_t owed_count;
    base_spin lock;                 /* of control's send queue, and of these */
    bool ready;                     /* both sides are: frames may be sent */
    uint32_t flight_in, flight_out; /* control sends that have not left, oldest first */
    struct {
        uint16_t whose, slot; /* a node's frame; or, passed on, the receive of a cable */
        bool passed_on;
    } flight[TB_SENDS];
    bool open;     /* receives are posted; false: completions of it mean nothing any more */
    uint16_t made; /* number of its queue pairs' making: the completion queues may still have what is of former ones */
    /* watch.c, under tb->receiving: its queue pairs are made anew when it has been away */
    uint16_t generation; /* as both ends count, and a peer may say any */
    bool building, connected, peer_ready, say_down;
    struct tb_device *was; /* where it was when it last worked */
    uint32_t next;         /* the device to be tried next */
    int64_t patience;      /* to the next attempt */
    uint32_t got;          /* bit i: theirs[i] has come */
    struct verbs_address theirs[1 + TB_CABLE_LANES];
    int64_t again_at;
};

struct tb_message {
    uint16_t id, header_len, payload_len;
    _Alignas(8) uint8_t bytes[WEFT_HEADER_MAX + WEFT_PAYLOAD_MAX];
};

struct tb_link {
    struct tb *tb;
    struct fab_link *link;
    base_spin lock; /* of the endpoint */
    struct tb_endpoint endpoint;
    uint32_t crowded; /* operations that began while much was under way, ever */
    bool closed;
    bool touched;         /* something happened since the last pump; under tb->receiving */
    _Atomic bool no_room; /* a frame or a piece found no room */
    _Atomic int64_t due;  /* of the endpoint's timers */
    struct tb_cable *cables[TB_DEVICES];
    uint32_t cable_count;
    struct tb_cable *via; /* frames go this way; NULL: there is none now */
    _Atomic bool led;     /* a way did once */
    _Atomic bool cut;     /* no way leads there: none now, or it is known that there is none */
    char no_cable[320];   /* why none was found */
    /* Messages that wait for their handlers' turn. Filled under `lock`, emptied under w->progress. */
    struct tb_message *inbox; /* [TB_MESSAGES] */
    _Atomic uint32_t inbox_in, inbox_out;
    uint32_t withheld; /* handled, but the peer is not told: as many wait for a handler to be installed */
    struct stash stash;
    _Atomic bool broken;
    char why[160]; /* written before `broken` */
};

struct tb {
    struct weft_node *w;
    struct fab_look look;      /* for devices */
    struct verbs_guard *guard; /* who owns the devices; NULL: this process */
    struct verbs_device *all;  /* as listed; the devices below point into it */
    uint32_t all_count;
    struct tb_device devices[TB_DEVICES];
    _Atomic uint32_t device_count; /* all before it are whole: also read without `receiving` */
    uint64_t segment;              /* bytes of a region of the pool, the least of all devices */
    struct tb_lane_option lanes[TB_CABLE_LANES];
    uint32_t lane_count;
    enum tb_check check;
    uint8_t *memory; /* frames of links and cables, scrap: one region a device, which no peer can write to */
    uint64_t memory_bytes;
    uint8_t *link_frames, *cable_frames, *scrap;
    struct tb_cable **cables; /* [cable_max] */
    uint32_t cable_count, cable_max;
    uint16_t made;          /* times that queue pairs of a cable were, ever; under `receiving` */
    struct tb_link **links; /* [size]; NULL where there is none */
    struct tb *next_ending; /* ending.c */
    bool watched;
    int64_t ports_at;         /* when ports were last looked at that nothing was known to lead to */
    struct tb_routes *routes; /* routes.c; under `receiving` */
    struct tb_leave *leave;   /* leave.c; likewise */
    base_spin receiving;
    uint64_t passed_on, dropped; /* frames for others */
    int64_t passed_at;           /* when the last of them went, or a way may have come */
    _Atomic int64_t due;         /* the earliest of the links'; may be too early */
    bool owes_receives;          /* some cable does; under `receiving` */
    bool answered;               /* the last that came needs nothing more; likewise */
    bool paused;                 /* long before this look nothing had come, or nobody looked; likewise */
    int64_t looked_at;           /* when something had come last; likewise */
    uint32_t looks, busy;        /* that found nothing; that found something, in a row. Under `receiving` */
};

/* device.c */
void tb_regions(struct weft_node *w, uint32_t *used, uint32_t *budget);
int tb_devices_find(struct tb *tb, bool *thunderbolt); /* thunderbolt: there are such ports, and only they are used */
int tb_devices_take(struct tb *tb, bool thunderbolt);  /* what is needed of each */
void tb_devices_again(struct tb *tb); /* take those whose ports have come up since; on the progress thread, under tb->receiving */
void tb_devices_close(struct tb *tb); /* after all cables; under tb->receiving */
/* Is its port up? Looked at unless that was done within at_most ns; for who is about to post, on any thread, under any lock. */
bool tb_device_up(struct tb *tb, struct tb_device *d, int64_t at_most);
static inline uint32_t tb_lkey(const struct tb_device *d, const void *at)
{
    const uint8_t *p = at;
    return p >= d->pool.base && p < d->pool.base + d->pool.bytes ? verbs_lkey(&d->pool, (uint64_t)(p - d->pool.base))
                                                                 : verbs_lkey(&d->private, (uint64_t)(p - d->private.base));
}

/* cable.c */
enum tb_request { TB_REQUEST_FRAME, TB_REQUEST_FORWARD, TB_REQUEST_RECEIVE, TB_REQUEST_LANE_SEND, TB_REQUEST_LANE_RECEIVE };
int tb_cable_remake(struct tb_cable *c, struct tb_device *device); /* all its queue pairs, anew, on this device; it has none */
void tb_cable_lanes_down(struct tb_cable *c);
void tb_cable_down(struct tb_cable *c); /* they are gone, and with them what was posted; what was under way is in `flight` */
void tb_cable_left(struct tb_cable *c); /* the oldest control send */
struct tb_cable *tb_cable_make(struct tb *tb, struct tb_device *device,
                               uint32_t node); /* with its control queue pair; NULL: see base_error() */
int tb_cable_add_lane(struct tb_cable *c);
int tb_cable_start(struct tb_cable *c);  /* connected: post the receives */
void tb_cable_close(struct tb_cable *c); /* and freed */
/* TB_REQUEST_FRAME: `whose` is the node whose link's slot this is; TB_REQUEST_FORWARD: the cable that it came by, slot its receive. False:
 * no room now. */
bool tb_cable_send(struct tb_cable *c, enum tb_request what, uint32_t whose, uint32_t slot, void *frame, uint32_t bytes);
bool tb_cable_lane_receive(struct tb_cable *c, uint32_t lane, void *at);
bool tb_cable_lane_send(struct tb_cable *c, uint32_t lane, void *at);
int tb_cable_receive(struct tb_cable *c, uint32_t slot); /* again, now or with the next ones; under tb->receiving, as is: */
int tb_cable_receive_owed(struct tb_cable *c);

/* wr_id: what it was, of which making of the cable's queue pairs, of which cable, whose, which. */
static inline uint64_t tb_wr_id(enum tb_request what, const struct tb_cable *c, uint32_t node, uint32_t slot)
{
    return (uint64_t)what << 56 | (uint64_t)c->made << 40 | (uint64_t)(c->index & 0xffff) << 24 | (uint64_t)(node & 0xffff) << 8 |
           (slot & 0xff);
}
_Static_assert(TB_SLOTS <= 256 && TB_RECEIVES <= 256 && TB_CABLE_LANES <= 256, "8 bits of a wr_id");

/* watch.c: cables that go and come back; under tb->receiving, but for what says and hears also on the progress thread */
void tb_watch(struct tb *tb, struct tb_device *d, int64_t now,
              int64_t at_most);                   /* look at its port, unless that was done within at_most ns */
void tb_watch_upkeep(struct tb *tb, int64_t now); /* tell the peers, build anew */
void tb_watch_heard(struct tb *tb, struct tb_link *l, const void *bytes, size_t len); /* bytes from outside */
void tb_watch_abandon(struct tb *tb, struct tb_cable *c); /* take it down, and let what was on it go another way */
enum tb_side {
    TB_SIDE_NEIGHBOURS = 1,
    TB_SIDE_CABLE,
    TB_SIDE_LEAVE
}; /* the first two bytes of what the transport says on the side connection */

/* ending.c: give everything back when the process is told to end */
int tb_ending_watch(struct tb *tb);
void tb_ending_forget(struct tb *tb);

/* connect.c */
int tb_connect(struct tb_link *l, int side_fd, int64_t deadline); /* for a link that has just been made */

/* routes.c; all but open and close under tb->receiving, and on the progress thread those that say or hear */
int tb_routes_open(struct tb *tb);
void tb_routes_close(struct tb *tb);
void tb_routes_cable(struct tb *tb, uint32_t node, bool there);                    /* this node has a cable there, or has none any more */
void tb_routes_heard(struct tb *tb, uint32_t from, const void *bytes, size_t len); /* bytes from outside */
void tb_routes_apply(struct tb *tb);                                               /* what has changed, to the links */
void tb_routes_tell(struct tb *tb);                                                /* the peers what has changed here */
bool tb_routes_needed(struct tb *tb);
bool tb_routes_between(const struct tb *tb); /* others might pass through this node: it has two neighbours, and some have no common cable */
void tb_routes_release(struct tb *tb, const struct tb_cable *ending);
bool tb_routes_told(const struct tb *tb);
/* False: it is dropped, and its receive is free. */
bool tb_forward(struct tb *tb, struct tb_cable *from, uint32_t slot, uint32_t bytes, uint32_t to);

/* leave.c; all but open and close under tb->receiving */
int tb_leave_open(struct tb *tb);
void tb_leave_close(struct tb *tb);
void tb_leave_heard(struct tb *tb, uint32_t from, const void *bytes, size_t len); /* bytes from outside */
void tb_leave_tell(struct tb *tb);                                                /* on the progress thread: the peers what is to be said */
bool tb_leave_told(const struct tb *tb);
bool tb_leave_waits(struct tb *tb); /* the node wants to leave, and has to wait; false once: it goes */

/* link.c */
/* acquire: pairs with the release when the link was ready */
static inline struct tb_link *tb_link_of(const struct tb *tb, uint32_t node)
{
    return node < tb->w->size ? __atomic_load_n(&tb->links[node], __ATOMIC_ACQUIRE) : NULL;
}
/* Let its endpoint send what it can; under its lock. */
static inline void tb_pump_locked(struct tb_link *l, int64_t now)
{
    struct tb *tb = l->tb;
    atomic_store_explicit(&l->no_room, false, memory_order_relaxed);
    tb_endpoint_pump(&l->endpoint, now);
    int64_t due = tb_endpoint_due(&l->endpoint);
    atomic_store_explicit(&l->due, due, memory_order_relaxed);
    if (due < atomic_load_explicit(&tb->due, memory_order_relaxed))
        atomic_store_explicit(&tb->due, due, memory_order_relaxed);
}
struct tb_link *tb_link_make(struct tb *tb, struct fab_link *link);
void tb_break(struct tb_link *l, const char *why, ...) BASE_PRINTF(2, 3);
int tb_link_ready(struct tb_link *l, uint32_t session, uint64_t segment); /* its cables are known: make its endpoint. Under tb->receiving */
struct tb_cable *tb_link_cable(const struct tb_link *l);                  /* one that is ready; or NULL */

/* message.c */
/* Of tb_endpoint_env. */
bool tb_message_keep(void *ctx, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len);
int tb_message_deliver(struct weft_node *w, struct tb_link *l, uint32_t most); /* how many */
bool tb_message_none(struct tb *tb);                                           /* none waits to be delivered */
int tb_progress(struct weft_node *w);

/* poll.c; the last five: what struct fab_transport says of them */
int tb_poll(struct tb *tb, bool sends); /* look at the queues, of sends too if that is asked for; under tb->receiving */
void tb_make_room(struct tb *tb);       /* look at the queues, of sends too, unless somebody does; no lock is held */
int tb_service(struct weft_node *w);
int64_t tb_upkeep(struct weft_node *w, int64_t now);
bool tb_idle(struct weft_node *w);
int tb_fd(struct weft_node *w, uint32_t i);
void tb_woken(struct weft_node *w);

/* operations.c: what struct fab_transport says of them */
int tb_put(struct weft_node *w, struct fab_link *link, uint64_t to, const void *src, size_t len, weft_op *op);
int tb_get(struct weft_node *w, struct fab_link *link, void *dst, uint64_t from, size_t len, weft_op *op);
int tb_set_system(struct weft_node *w, struct fab_link *link, uint64_t at, uint64_t value, bool wake);
int tb_atomic(struct weft_node *w, struct fab_link *link, enum fab_atomic kind, uint64_t at, uint64_t a, uint64_t b, uint64_t *old,
              weft_op *op);
int tb_put_signal(struct weft_node *w, struct fab_link *link, uint64_t to, const void *src, size_t len, uint64_t signal, uint64_t add,
                  weft_op *op);
int tb_send(struct weft_node *w, struct fab_link *link, uint32_t id, const void *header, size_t header_len, const void *payload,
            size_t payload_len, weft_op *op);
bool tb_flushed(struct weft_node *w, struct fab_link *link, struct fab_flush *f);
void tb_fence(struct weft_node *w, struct fab_link *link);

#endif
