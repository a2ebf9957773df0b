/* SPDX-License-Identifier: MIT
 *
 * What the files of the tb transport share. The transport carries the frames of fabric/records/ over queue pairs. Each file calls only
 * those before it:
 *
 *   device.c       devices, their memory and completion queues
 *   cable.c        the queue pairs to a neighbour
 *   link.c         creates and breaks links; sends what a link's endpoint emits
 *   routes.c       routes through other nodes
 *   watch.c        cables that are pulled and plugged in again
 *   leave.c        leaving, one node after another
 *   ending.c       frees devices when a signal ends the process
 *   connect.c      finds and connects the cables to a node that joins
 *   poll.c         progress: completion queues, timers, upkeep
 *   transport.c    opening, joining, the end of a link; the transport's table
 *
 * Locks, outer first: tb->receiving (held by the thread that polls), a link's lock (its endpoint). Several links may send over one cable,
 * each under its own lock, so a cable's counters are atomic.
 */
#ifndef WEFT_TB_H
#define WEFT_TB_H

#include "fabric/fabric.h"
#include "fabric/records/link.h"
#include "verbs/verbs.h"

#define TB_DEVICES     8u
#define TB_CABLE_LANES 8u
_Static_assert(TB_CABLE_LANES == FAB_LANES_MAX && TB_LANE_DEPTH == FAB_LANE_DEPTH, "what the settings allow");
#define TB_RECEIVES 128u /* receives for control frames on a cable; all links over the cable share them */
#define TB_OWED     8u   /* receives are posted again in one call when this many of them wait */
#define TB_SENDS    128u

enum { TB_RECEIVED, TB_SENT, TB_DIRECTIONS };

struct tb_lane_option {
    uint32_t message, depth; /* bytes of a message; maximum number of messages posted */
};

/* The completion queue of a device's sends, or of its receives. A device has one of each, because different threads poll them, and a common
 * queue would move between the caches of these threads' processors. */
struct tb_completions {
    struct ibv_comp_channel *channel;
    int fd; /* the channel's descriptor; a signal may close it (ending.c) while another thread polls it */
    struct ibv_cq *cq;
    struct ibv_wc early; /* a completion found while going to sleep, and not handled yet */
    bool has_early;
};

struct tb_device {
    struct verbs_device *d;
    struct tb_completions of[TB_DIRECTIONS];
    struct verbs_regions pool, private;
    uint32_t cables;           /* cables that use this device; a Thunderbolt port has one */
    _Atomic int64_t looked_at; /* when the port was last queried; any thread that posts may query it */
    /* true: the port was found down. Nothing more is posted, and its cables will be taken down, even if the port has come up again */
    _Atomic bool down;
};

struct tb_cable {
    struct tb *tb;
    struct tb_device *device;
    uint32_t index; /* index into tb->cables */
    uint32_t node;  /* the node at the other end of the cable */
    struct verbs_qp control, lanes[TB_CABLE_LANES];
    uint32_t lane_count;      /* lanes that are connected */
    uint32_t lane_base;       /* the number of the cable's first lane in the link */
    uint32_t receives, sends; /* depths of the control queue pair's queues, in frames, as granted */
    uint8_t *frames;          /* [TB_RECEIVES], registered memory */
    /* For each receive: 1 + the index of the cable over which its frame is being forwarded; 0: the frame is not being forwarded.
     * tb->receiving guards this field and the next one. */
    uint16_t held[TB_RECEIVES];
    uint32_t held_count;
    uint16_t expected;      /* the receive that will probably complete next; guarded by tb->receiving */
    uint16_t owed[TB_OWED]; /* receives that wait to be posted again; guarded by tb->receiving, like their count */
    uint32_t owed_count;
    base_spin lock;                 /* protects the control send queue and the fields below */
    bool ready;                     /* both nodes are ready: frames may be sent */
    uint32_t flight_in, flight_out; /* numbers of control sends posted and ended; those in between are under way */
    struct {
        /* A frame of this node: the peer of its link, and the slot of the frame in that link. A forwarded frame: the cable over which it
         * arrived, and the receive in which it arrived. */
        uint16_t whose, slot;
        bool passed_on;
    } flight[TB_SENDS];
    bool open;     /* receives are posted; false: ignore their completions */
    uint16_t made; /* number of times that queue pairs were made; distinguishes completions of earlier queue pairs */
    /* For watch.c, which makes the queue pairs again after the cable was unplugged. Guarded by tb->receiving. */
    uint16_t generation; /* the generation of the cable's queue pairs, on which both nodes agree; a peer may send any value */
    bool building, connected, peer_ready, say_down;
    struct tb_device *was; /* the device on which the cable last worked */
    uint32_t next;
    int64_t patience; /* how long to wait before the next attempt */
    uint32_t got;     /* bit i: theirs[i] has been received */
    struct verbs_address theirs[1 + TB_CABLE_LANES];
    int64_t again_at;
};

struct tb_link {
    struct records_link r; /* must be the first member, because fab_link's `impl` points to it */
    struct tb *tb;
    bool touched; /* an event has happened since the last pump; guarded by tb->receiving */
    struct tb_cable *cables[TB_DEVICES];
    uint32_t cable_count;
    struct tb_cable *via; /* the cable for frames to this peer; NULL: no route now */
    _Atomic bool led;     /* there has been a route to the peer */
    char no_cable[900];   /* why no cable was found */
};

struct tb {
    struct weft_node *w;
    struct fab_look look;      /* the result of looking for devices */
    struct verbs_guard *guard; /* the process that owns the devices; NULL: this process */
    struct verbs_device *all;  /* [all_count] all devices of this host; tb_device.d points to an element */
    uint32_t all_count;
    struct tb_device devices[TB_DEVICES];
    _Atomic uint32_t device_count; /* devices before this index are complete; also read without tb->receiving */
    uint64_t segment;              /* bytes of one memory region of the pool: the smallest of all devices */
    struct tb_lane_option lanes[TB_CABLE_LANES];
    uint32_t lane_count;
    enum tb_check check;
    uint8_t *memory; /* frames of links and cables, and scrap memory, as one region that no peer can write */
    uint64_t memory_bytes;
    uint8_t *link_frames, *cable_frames, *scrap;
    struct tb_cable **cables; /* [cable_max] */
    uint32_t cable_count, cable_max;
    uint16_t made;          /* number of times that queue pairs of any cable were made; guarded by `receiving` */
    struct tb_link **links; /* [size]; NULL for peers that use another transport */
    struct tb *next_ending; /* the list of ending.c */
    bool watched;
    int64_t ports_at;         /* when the ports without a known peer were last queried */
    struct tb_routes *routes; /* routes.c; guarded by `receiving` */
    struct tb_leave *leave;   /* leave.c; guarded by `receiving` */
    base_spin receiving;
    uint64_t passed_on, dropped; /* number of frames that this node has forwarded, and number of frames that it has dropped instead */
    int64_t passed_at;           /* when the last frame was forwarded, or a route through this node may have appeared */
    _Atomic int64_t due;         /* the earliest timer of all links, or an earlier time */
    bool owes_receives;          /* a cable has receives that wait to be posted again; guarded by `receiving` */
    bool answered;               /* the last frame that arrived was answered; guarded by `receiving` */
    bool paused;                 /* before this round nothing had arrived for long, or no thread had polled; guarded by `receiving` */
    int64_t looked_at;           /* when a completion was last found; guarded by `receiving` */
    uint32_t looks, busy;        /* looks: rounds without completions; busy: rounds in a row with received frames; guarded by `receiving` */
};

/* device.c */
void tb_regions(struct weft_node *w, uint32_t *used, uint32_t *budget);
int tb_devices_find(struct tb *tb, bool *thunderbolt); /* `*thunderbolt`: there are Thunderbolt ports, so no other ports are used */
int tb_devices_take(struct tb *tb, bool thunderbolt);  /* allocates the resources of each device */
void tb_devices_again(struct tb *tb); /* adds devices whose ports have come up; called by the progress thread, which holds tb->receiving */
void tb_devices_close(struct tb *tb); /* call when all cables are closed; the caller holds tb->receiving */
/* Whether the device's port is up. Queries the port unless the last query is less than `at_most` ns old. Threads call this before they
 * post; they may hold any lock. */
bool tb_device_up(struct tb *tb, struct tb_device *d, int64_t at_most);
static inline uint32_t tb_lkey(const struct tb_device *d, const void *at)
{
    const uint8_t *p = at;
    return p >= d->pool.base && p < d->pool.base + d->pool.bytes ? verbs_lkey(&d->pool, (uint64_t)(p - d->pool.base))
                                                                 : verbs_lkey(&d->private, (uint64_t)(p - d->private.base));
}

/* cable.c */
enum tb_request { TB_REQUEST_FRAME, TB_REQUEST_FORWARD, TB_REQUEST_RECEIVE, TB_REQUEST_LANE_SEND, TB_REQUEST_LANE_RECEIVE };
/* makes all queue pairs of a cable that has none, on this device */
int tb_cable_remake(struct tb_cable *c, struct tb_device *device);
void tb_cable_lanes_down(struct tb_cable *c);
void tb_cable_down(struct tb_cable *c); /* destroys the queue pairs; the sends that were posted stay in `flight` */
void tb_cable_left(struct tb_cable *c); /* call when the oldest control send has completed */
/* Makes a cable with its control queue pair. Returns NULL on an error, with base_error() set. */
struct tb_cable *tb_cable_make(struct tb *tb, struct tb_device *device, uint32_t node);
int tb_cable_add_lane(struct tb_cable *c);
int tb_cable_start(struct tb_cable *c); /* posts the receives of a connected cable */
void tb_cable_close(struct tb_cable *c);
/* Sends a frame. TB_REQUEST_FRAME: `whose` is the node to whose link the slot belongs. TB_REQUEST_FORWARD: `whose` is the cable over which
 * the frame arrived, and `slot` its receive. Returns false if there is no room now. */
bool tb_cable_send(struct tb_cable *c, enum tb_request what, uint32_t whose, uint32_t slot, void *frame, uint32_t bytes);
bool tb_cable_lane_receive(struct tb_cable *c, uint32_t lane, void *at);
bool tb_cable_lane_send(struct tb_cable *c, uint32_t lane, void *at);
/* posts a receive again, at once or later together with others; the caller holds tb->receiving, also for the next function */
int tb_cable_receive(struct tb_cable *c, uint32_t slot);
int tb_cable_receive_owed(struct tb_cable *c);

/* Packs a wr_id from the kind of request, c->made, the cable, and the members `whose` and `slot` of the frame in flight. */
static inline uint64_t tb_wr_id(enum tb_request what, const struct tb_cable *c, uint32_t node, uint32_t slot)
{
    return (uint64_t)what << 56 | (uint64_t)c->made << 40 | (uint64_t)(c->index & 0xffff) << 24 | (uint64_t)(node & 0xffff) << 8 |
           (slot & 0xff);
}
_Static_assert(TB_SLOTS <= 256 && TB_RECEIVES <= 256 && TB_CABLE_LANES <= 256, "8 bits of a wr_id");

/* watch.c: cables that are unplugged and plugged in again. The caller holds tb->receiving. Functions that send messages to peers, or handle
 * messages of peers, run only on the progress thread. */
/* queries the port unless the last query is less than `at_most` ns old */
void tb_watch(struct tb *tb, struct tb_device *d, int64_t now, int64_t at_most);
void tb_watch_upkeep(struct tb *tb, int64_t now); /* sends messages to the peers, and rebuilds cables */
/* handles an untrusted message from the peer */
void tb_watch_heard(struct tb *tb, struct tb_link *l, const void *bytes, size_t len);
void tb_watch_abandon(struct tb *tb, struct tb_cable *c);              /* takes the cable down, so that its traffic uses another route */
enum tb_side { TB_SIDE_NEIGHBOURS = 1, TB_SIDE_CABLE, TB_SIDE_LEAVE }; /* the first two bytes of tb's messages on the side connection */

/* ending.c: frees everything on all devices when a signal ends the process */
int tb_ending_watch(struct tb *tb);
void tb_ending_forget(struct tb *tb);

/* connect.c */
int tb_connect(struct tb_link *l, int side_fd, int64_t deadline);

/* routes.c: callers hold tb->receiving, except for open and close. Only the progress thread calls tb_routes_heard() and
 * tb_routes_tell(). */
int tb_routes_open(struct tb *tb);
void tb_routes_close(struct tb *tb);
void tb_routes_cable(struct tb *tb, uint32_t node, bool there); /* `there`: whether this node has a cable to that node */
/* handles an untrusted message from the peer */
void tb_routes_heard(struct tb *tb, uint32_t from, const void *bytes, size_t len);
void tb_routes_apply(struct tb *tb); /* applies changed routes to the links */
void tb_routes_tell(struct tb *tb);  /* sends changes of this node's cables to the peers */
bool tb_routes_needed(struct tb *tb);
/* whether other nodes may route through this node: two of its neighbours have no cable to each other */
bool tb_routes_between(const struct tb *tb);
void tb_routes_release(struct tb *tb, const struct tb_cable *ending);
bool tb_routes_told(const struct tb *tb);
/* Forwards a frame. Returns false if it drops the frame; then the frame's receive is free. */
bool tb_forward(struct tb *tb, struct tb_cable *from, uint32_t slot, uint32_t bytes, uint32_t to);

/* leave.c: callers hold tb->receiving, except for open and close */
int tb_leave_open(struct tb *tb);
void tb_leave_close(struct tb *tb);
/* handles an untrusted message from the peer */
void tb_leave_heard(struct tb *tb, uint32_t from, const void *bytes, size_t len);
/* sends questions and answers that were not sent yet; called on the progress thread */
void tb_leave_tell(struct tb *tb);
/* whether tb_leave_tell() has sent everything */
bool tb_leave_told(const struct tb *tb);
/* Call this repeatedly before this node leaves, until it returns false. Returns true if other nodes need this node to forward frames, or
 * have not answered yet. */
bool tb_leave_waits(struct tb *tb);

/* link.c */
/* acquire: pairs with the release that published the complete link */
static inline struct tb_link *tb_link_of(const struct tb *tb, uint32_t node)
{
    return node < tb->w->founders ? __atomic_load_n(&tb->links[node], __ATOMIC_ACQUIRE) : NULL;
}
struct tb_link *tb_link_make(struct tb *tb, struct fab_link *link);
/* Makes the endpoint of link `l`, whose cables are known. The caller holds tb->receiving. */
int tb_link_ready(struct tb_link *l, uint32_t session, uint64_t segment);
struct tb_cable *tb_link_cable(const struct tb_link *l); /* a cable of this link that is ready; NULL: none */

/* poll.c; struct fab_transport describes the last six functions */
int tb_poll(struct tb *tb, bool sends); /* polls for completed receives and, with `sends`, sends; the caller holds tb->receiving */
void tb_make_room(struct weft_node *w); /* polls all completion queues, unless another thread does; call it without a lock */
int tb_service(struct weft_node *w);
int tb_progress(struct weft_node *w);
int64_t tb_upkeep(struct weft_node *w, int64_t now);
bool tb_idle(struct weft_node *w);
int tb_fd(struct weft_node *w, uint32_t i);
void tb_woken(struct weft_node *w);

#endif
