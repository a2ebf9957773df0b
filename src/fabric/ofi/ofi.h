/* SPDX-License-Identifier: MIT
 *
 * The interface between the files of the ofi transport, which carries the frames of fabric/records/ over libfabric. Each file calls only
 * those listed before it:
 *
 *   library.c     loads libfabric at run time
 *   provider.c    lists the providers, and chooses one
 *   device.c      a device: the provider's objects, memory regions, receives
 *   link.c        creates links; sends frames and starts RMA for a link's endpoint
 *   poll.c        progress: completions, timers
 *   watch.c       links that make no progress; replaces the device's objects
 *   connect.c     when two nodes join: they agree on a provider, and exchange addresses and keys
 *   transport.c   opening, joining, the end of a link; the transport's table
 *
 * A device (struct ofi) is one reliable datagram endpoint, for all peers that a node reaches by the same provider. A node has a second
 * device only if some peers need another provider, because their libfabric has another version. Small operations are records in frames, as
 * on tb: frames that are lost with a broken connection are sent again, and each record is executed once. Large puts and gets (moves) are
 * RMA, if the provider supports it.
 *
 * Locks, outer first: ofi->receiving (held by the thread that polls), a link's lock, ofi->calls. ofi->calls is held during every call of
 * libfabric that uses the endpoint or its queue (FI_THREAD_DOMAIN).
 */
#ifndef WEFT_OFI_H
#define WEFT_OFI_H

#include <pthread.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "fabric/fabric.h"
#include "fabric/ofi/provider.h"
#include "fabric/records/link.h"

#define OFI_RECEIVES   128u /* receives posted, for all peers; fewer if the provider accepts fewer */
#define OFI_REQUESTS   256u /* sends and RMA requests under way, to all peers together; fewer if the provider accepts fewer */
#define OFI_SHARE      2u   /* further requests for each peer, which no other peer can use */
#define OFI_MOVE_BYTES (1u << 20)
#define OFI_MOVES      32u /* the most RMA requests under way to a peer */
/* maximum number of bytes of RMA requests under way to a peer; small, because frames wait behind these bytes */
#define OFI_MOVES_BYTES (4u * OFI_MOVE_BYTES)
/* Small puts or gets share an RMA request: it is one call of the kernel at each node, and the target confirms it once. */
#define OFI_TOGETHER       4u           /* maximum number of operations of a request */
#define OFI_TOGETHER_BYTES (256u << 10) /* maximum number of bytes of a request with several operations */
#define OFI_MOVES_FIRST    (16u << 10)  /* the maximum of RMA bytes under way at first, until it is known how fast the network is */
#define OFI_MOVES_LEAST    (16u << 10)  /* the smallest maximum, on a slow network */
#define OFI_MOVE_LEAST     8192u        /* a smaller put or get is faster in frames than by RMA */
#define OFI_SEGMENT_SHIFT  30u          /* a memory region has at most 1 GiB */
#define OFI_ADDRESS        256u
#define OFI_LINK_FRAMES    ((size_t)TB_SLOTS * TB_FRAME_BYTES) /* bytes of the frames that a link sends */
/* If the provider had no room for a frame, the progress thread tries again after this time. */
#define OFI_RETRY (WEFT_MS)

enum ofi_request_kind { OFI_RECEIVE, OFI_FRAME, OFI_PUT, OFI_GET };

/* An operation that the provider is executing. The address of this struct is the context of its completion. */
struct ofi_request {
    struct fi_context2 context; /* must be the first member: some providers keep their own state in it */
    struct ofi_request *next;   /* in the list `free` or `owed` */
    enum ofi_request_kind kind;
    uint32_t slot; /* OFI_RECEIVE: index of the buffer; OFI_FRAME: index of the link's frame */
    uint16_t node;
    bool busy;     /* under way at the provider */
    bool given_up; /* the request's link has ended: the completion is ignored */
    /* OFI_PUT, OFI_GET: */
    bool used; /* at least half of the link's window was under way when this request began */
    uint32_t bytes;
    int64_t began;
    uint32_t pieces;
    void *cookies[OFI_TOGETHER]; /* [pieces] the arguments `cookie` of move() (struct tb_endpoint_env) */
};

/* What becomes one RMA request: a piece of an operation, or several small operations. */
struct ofi_pieces {
    bool get;
    uint32_t count, bytes;
    struct iovec here[OFI_TOGETHER];
    struct fi_rma_iov there[OFI_TOGETHER];
    void *cookies[OFI_TOGETHER];
};

/* The pool, registered for one peer or for all peers: one region for each segment. Under `calls`. */
struct ofi_regions {
    struct fid_mr **list; /* [count] */
    uint64_t *keys;       /* [count] as they were sent to the peer */
    uint64_t shift;       /* this number is now added to each of `keys`; see ofi_key() */
    uint32_t count;
    struct ofi_regions *next; /* in ofi->regions */
};

struct ofi_link {
    struct records_link r; /* first: fab_link's `impl` points to it */
    struct ofi *ofi;
    bool touched;                 /* the link had an event since records were last sent on it; under ofi->receiving */
    fi_addr_t peer;               /* under ofi->calls */
    uint32_t moves;               /* RMA requests under way; under the link's lock, with the next fields */
    uint32_t moving;              /* bytes of RMA requests under way */
    bool full;                    /* too much was under way for another move; see link_has_room() */
    uint32_t most_together;       /* the most operations of a request */
    struct ofi_pieces together;   /* operations that wait for link_post(); empty when the link's lock is released */
    uint64_t moved;               /* RMA requests that have succeeded */
    struct records_window window; /* of bytes of RMA requests under way */
    uint64_t move_most;           /* bytes that one RMA request may have */
    uint64_t base;                /* the address of the peer's pool; 0: RMA addresses are offsets in a segment */
    uint32_t shift;               /* the peer's segments have 2^shift bytes */
    uint32_t keys_count;
    uint64_t *keys;            /* the keys of the peer's segments, as the peer has sent them (ofi_key()) */
    uint64_t keys_shift;       /* this number is now added to each of `keys`; under the link's lock */
    bool fixed;                /* the peer's keys do not change */
    struct ofi_frames *frames; /* memory for frames to send, if one of the two nodes joined later; NULL: the frames are in ofi->memory */
    struct ofi_regions own;    /* this node's pool, registered for this peer alone; empty: ofi->pool serves all peers */
    char name[64];             /* the peer's address as text */
    /* When the provider has refused an operation, nothing is sent before retry_at. Each refusal doubles `pause`. Under the link's lock. */
    int64_t retry_at, pause;
    char error[160]; /* the reason of the last refusal; "": there was none */
    _Atomic uint64_t errors;
    /* watch.c, on the progress thread: */
    uint64_t stand;       /* the sum of acknowledged frames and finished moves at the last check */
    int64_t still_at;     /* since when `stand` is unchanged although something is under way; 0: it has changed, or nothing is under way */
    uint64_t moves_stand; /* the value of `moved` at the last check */
    int64_t moves_at;
    bool heard;       /* at least one frame has arrived from the peer */
    bool renewed;     /* this node has replaced its endpoint once because of this link */
    bool asked;       /* the peer was asked whether its process is running */
    int64_t answered; /* when the peer answered that question; 0: not yet */
    _Atomic uint64_t connects;
    /* State while one of the two nodes replaces its endpoint; see watch.c. The link's lock guards `shut`; only the progress thread uses the
     * other members. */
    bool shut;    /* nothing is sent now */
    bool tell;    /* this node's new address must be sent to the peer */
    bool awaits;  /* the peer has not confirmed this node's new address yet */
    bool probes;  /* the connection to the peer's former endpoint, at address `was`, may still exist */
    bool confirm; /* this node must confirm the peer's endpoint number `theirs` */
    uint32_t theirs;
    fi_addr_t was;
    uint8_t address[OFI_ADDRESS]; /* of the peer's endpoint */
    int64_t probe_at;             /* when to look for the former connection next */
    /* when this node replaces its endpoint, because the peer has replaced its own; 0: it need not, see watch_moved() */
    int64_t renew_at;
    int64_t renewed_for; /* when this node last replaced its endpoint because of renew_at; 0: never */
    int64_t gone_at;     /* when this node replaces its endpoint, if the former connection still exists */
    int64_t settle_at;   /* when this node confirms the peer's new endpoint; 0: the connection to the former one is not gone yet */
    int64_t open_at;     /* when the link opens again, even if nothing has arrived from the peer; 0: no time is set */
};

/* Memory for the frames that one link sends, if the link was made after the start. When the link ends, the provider may take long to end
 * its sends from this memory. So the memory is kept for later links, and is freed with the device. Under `calls`. */
struct ofi_frames {
    struct ofi_frames *next; /* in ofi->frames */
    uint8_t *at;             /* [OFI_LINK_FRAMES] */
    struct fid_mr *mr;       /* if the provider needs local memory registered */
    bool used;               /* a link uses the memory */
    uint32_t node;           /* the last link's peer: until ofi->held[node] is 0, the provider may still send from this memory */
};

/* A device: one provider, with one endpoint. */
struct ofi {
    struct weft_node *w;
    const struct ofi_library *lib;
    struct fi_info *info; /* libfabric's description of the provider */
    struct ofi_traits traits;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_wait *wait;       /* the wait set that the queue signals; NULL: none, since fi_trywait() works (device_wait_set()) */
    struct fid_ep *ep;           /* NULL: there is none; written under `receiving` and `calls`, like the objects above */
    int fd;                      /* the completion queue's descriptor, written like `ep`; -1: there is none, so the queue is polled */
    _Atomic bool armed;          /* ofi_idle() has found no completion, so the progress thread may sleep on fd; written like `ep` */
    struct ofi_regions pool;     /* the pool, registered once for all peers, if registering is expensive */
    struct ofi_regions *regions; /* list of all registrations of the pool; under `calls` */
    uint32_t shift;
    uint8_t *memory; /* frames to send and to receive */
    uint64_t memory_bytes;
    uint8_t *link_frames, *receive_frames;
    struct ofi_frames *frames; /* list of the frames of links that were made after the start; under `calls` */
    struct fid_mr *memory_mr;  /* if the provider needs local memory registered */
    struct ofi_request *receives, *requests;
    uint32_t receives_count, requests_count;
    struct ofi_request *free, *owed; /* free requests; receives that the provider had no room for. Under `calls` */
    /* Each peer has OFI_SHARE requests of its own, and shares the common ones. So peers that are slow or stopped cannot hold all requests.
     * Under `calls`. */
    uint32_t common;         /* how many of the common requests are free */
    uint16_t *held;          /* [room] how many requests are under way to each peer */
    struct ofi_link **links; /* [size]; NULL for peers that use another transport or device */
    char name[64];           /* this node's address as text */
    uint8_t address[OFI_ADDRESS];
    size_t address_bytes;
    base_spin receiving, calls;
    _Atomic uint32_t senders; /* threads that wait for `calls` to send something; ofi_poll() lets them go first */
    _Atomic int64_t due;      /* when the earliest timer of all links expires, or a time before that */
    uint32_t looks;
    _Atomic bool used;   /* a peer has, or had, a link of this device, so the device must be polled */
    uint32_t generation; /* counts the endpoints that this node has had */
    bool renew;          /* the endpoint should be replaced; under `receiving` */
    bool receive_failed; /* a failed receive was logged; under `receiving` */
};

/* The state of this transport in a node. */
struct ofi_node {
    struct weft_node *w;
    struct fab_look look;
    const struct ofi_library *lib;
    struct fi_info *choices[OFI_CHOICES]; /* the providers that this node can use, best first */
    uint32_t choices_count;
    pthread_mutex_t opening; /* held while a device is added */
    struct ofi *devices[OFI_CHOICES];
    _Atomic uint32_t devices_count;
};

/* The device at this index, or NULL. Needs no lock. */
static inline struct ofi *ofi_device_at(const struct weft_node *w, uint32_t i)
{
    struct ofi_node *n = w->ofi;
    /* acquire: pairs with the release in transport_open_device() */
    return i < atomic_load_explicit(&n->devices_count, memory_order_acquire) ? n->devices[i] : NULL;
}

/* device.c */
int ofi_device_open(struct weft_node *w, const struct ofi_library *lib, const struct fi_info *info, struct ofi **out);
void ofi_device_close(struct ofi *o);
int ofi_register_locked(struct ofi *o,
                        struct ofi_regions *r); /* registers the pool, with new keys; under `calls`, like the next function */
int ofi_register_again_locked(struct ofi *o, struct ofi_regions *r, uint64_t shift); /* registers the pool again, with other keys */
void ofi_unregister_locked(struct ofi *o, struct ofi_regions *r);
/* The key that a region has now: `key`, which was sent to the peer when the nodes connected, plus the shift of the endpoint that uses the
 * memory (ofi_key_shift()). */
static inline uint64_t ofi_key(uint64_t key, uint64_t shift)
{
    return (key + shift) & (UINT64_MAX >> 1);
}
/* Whether this node changes the keys of its memory for this peer whenever the peer opens a new endpoint. */
static inline bool ofi_keys_change(const struct ofi_link *l)
{
    return l->ofi->traits.tcp && l->own.count && l->ofi->info->domain_attr->mr_key_size >= sizeof(uint64_t);
}
/* When a node opens its endpoint number `number`, each peer changes the keys of its memory for that node by this shift. So requests of the
 * node's earlier endpoints are refused. */
static inline uint64_t ofi_key_shift(uint32_t number)
{
    return number * UINT64_C(0x9e3779b97f4a7c15);
}
/* The descriptor of memory of the pool or of o->memory; NULL if the provider needs none. Under `calls`. */
void *ofi_descriptor_locked(const struct ofi *o, const void *at);
/* Memory for the frames of a link to `node`, registered if the provider needs that. Under `calls`. */
int ofi_frames_take_locked(struct ofi *o, uint32_t node, struct ofi_frames **out);
/* Replace the provider's objects. Between the two calls there is no endpoint. Under `receiving` and `calls`. */
void ofi_device_shut_locked(struct ofi *o);
int ofi_device_again_locked(struct ofi *o);
bool ofi_queue_quiet_locked(struct ofi *o); /* whether a thread may sleep on o->fd; under `calls` */
void ofi_receive_again_locked(struct ofi *o,
                              struct ofi_request *q); /* posts a receive, or keeps the request to post it later; under `calls` */
void ofi_receive_owed_locked(struct ofi *o);
/* NULL: no request is free for this peer now. Under `calls`, like the next function. */
struct ofi_request *ofi_request_take_locked(struct ofi *o, enum ofi_request_kind kind, uint32_t node);
void ofi_request_free_locked(struct ofi *o, struct ofi_request *q);

/* link.c */
static inline struct ofi_link *ofi_link_of(const struct ofi *o, uint32_t node)
{
    /* acquire: pairs with the release that published the complete link */
    return node < o->w->size ? __atomic_load_n(&o->links[node], __ATOMIC_ACQUIRE) : NULL;
}
/* As ofi_link_of(), but also finds the link of a node that is still joining: its number is not below w->size yet, but below w->room. */
static inline struct ofi_link *ofi_link_joining(const struct ofi *o, uint32_t node)
{
    return __atomic_load_n(&o->links[node], __ATOMIC_ACQUIRE);
}
struct ofi_link *ofi_link_make(struct ofi *o, struct fab_link *link);
int ofi_link_ready(struct ofi_link *l, uint32_t session);
void ofi_link_free(struct ofi_link *l);
void ofi_frames_leave_locked(struct ofi_link *l); /* the link no longer uses its ofi_frames: other links may. Under `calls` */
void ofi_link_open_locked(struct ofi_link *l);    /* under the link's lock; the caller pumps the link */
/* A request has ended; after an error, the operation begins again. Under the link's lock. */
void ofi_ended_locked(struct ofi_link *l, const struct ofi_request *q, int error, int64_t now);
void ofi_refused_locked(struct ofi_link *l, int err, const char *what, int64_t now); /* under the link's lock */

/* poll.c; struct fab_transport describes the last six functions */
int ofi_poll(struct ofi *o); /* under o->receiving, like the next function */
void ofi_pump_all(struct ofi *o, int64_t now);
void ofi_make_room(struct weft_node *w);
int ofi_service(struct weft_node *w);
int ofi_progress(struct weft_node *w);
bool ofi_idle(struct weft_node *w);
int ofi_fd(struct weft_node *w, uint32_t i);
void ofi_woken(struct weft_node *w);

/* watch.c, on the progress thread */
int64_t ofi_upkeep(struct weft_node *w, int64_t now);
void ofi_side(struct weft_node *w, struct fab_link *link, const void *bytes, size_t len);
/* Replaces the endpoint, and starts again everything that was under way. `why`: for the log. Under o->receiving. */
void ofi_renew(struct ofi *o, const char *why);
/* Whether the bytes are a valid message of watch.c. A pure function. */
bool ofi_side_valid(const void *bytes, size_t len);

/* connect.c */
/* The providers that a node can use. Two nodes first send each other these lists. Of the providers that are in both lists, they use the one
 * that comes first in the list of the node with the lower number. */
struct ofi_offer {
    uint64_t magic;
    uint32_t count, reserved;
    char provider[OFI_CHOICES][OFI_PROVIDER_NAME];
};
bool ofi_offer_valid(const struct ofi_offer *offer);
/* The index in `first` of the first provider that `second` has, too; -1: none. */
int ofi_common(const struct ofi_offer *first, const struct ofi_offer *second);
/* What a node sends to a peer when they join; `keys` keys of 8 bytes follow. */
struct ofi_hello {
    uint64_t magic, pool_bytes;
    uint32_t rank, size, session;
    uint32_t shift, keys; /* the pool's segments have 2^shift bytes; keys: how many segments, 0 without RMA */
    uint32_t format, address_bytes;
    uint32_t fixed; /* 1: these keys never change; 0: see ofi_key() */
    uint64_t base;
    char provider[OFI_PROVIDER_NAME];
    uint8_t address[OFI_ADDRESS];
};
/* Whether the fields that do not depend on this node's provider are valid. A pure function. */
bool ofi_hello_valid(const struct ofi_hello *h, uint32_t node, uint32_t size, uint64_t heap_offset);
/* Whether a peer's address has the form of this node's. Addresses that are text, such as those of shm, end with a null and have different
 * lengths: shm's contain a process number and a count. */
bool ofi_address_fits(const struct ofi *o, const uint8_t *address, size_t bytes);
/* Agrees with the peer on a provider. Returns its index in `choices` of this node, or a negative errno with base_fail(). */
int ofi_agree(struct weft_node *w, uint32_t node, int side_fd, int64_t deadline);
int ofi_connect(struct ofi_link *l, int side_fd, int64_t deadline);

#endif
