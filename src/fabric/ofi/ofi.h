/* SPDX-License-Identifier: MIT
 *
 * What the files of the ofi transport share: what carries the frames of fabric/records/ over libfabric. Each calls only those before it:
 *
 *   library.c     libfabric, found at run time
 *   provider.c    which providers there are, and which one to use
 *   device.c      the provider's objects, memory regions, receives
 *   link.c        a link's life; what its endpoint asks for: frames sent, bytes moved by RMA
 *   poll.c        progress: completions, timers
 *   watch.c       links that do not get through; a new endpoint
 *   connect.c     what two nodes tell each other when they join
 *   transport.c   opening, joining, the end of a link; the table
 *
 * A node has one reliable datagram endpoint for all its peers. Small operations are records in frames, as on tb: so what a connection loses
 * when it breaks is repeated, and each record is executed once. Large puts and gets are RMA between the pools, if the provider has it.
 *
 * Locks, outer first: ofi->receiving (who polls), a link's lock, ofi->calls. The last one is around every call of libfabric that uses the
 * endpoint or its queue (FI_THREAD_DOMAIN).
 */
#ifndef WEFT_OFI_H
#define WEFT_OFI_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "fabric/fabric.h"
#include "fabric/ofi/provider.h"
#include "fabric/records/link.h"

#define OFI_RECEIVES      256u       /* frames that can be received, from all peers; fewer where the provider takes fewer */
#define OFI_REQUESTS      256u       /* sends and RMA requests under way, to all peers; likewise */
#define OFI_MOVES         4u         /* RMA requests under way to a peer: small frames wait behind these */
#define OFI_MOVE_BYTES    (1u << 20) /* of one of them */
#define OFI_MOVE_LEAST    8192u      /* from here on RMA; smaller is faster in frames */
#define OFI_SEGMENT_SHIFT 30u        /* a memory region has at most 1 GiB */
#define OFI_ADDRESS       256u       /* bytes of a provider's address */

enum ofi_request_kind { OFI_RECEIVE, OFI_FRAME, OFI_PUT, OFI_GET };

/* Something that the provider has and that it ends by a completion; its address is the operation's context. */
struct ofi_request {
    struct fi_context2 context; /* first. Some providers keep their own state in it */
    struct ofi_request *next;   /* free, or owed */
    enum ofi_request_kind kind;
    uint32_t slot; /* OFI_RECEIVE: which buffer; OFI_FRAME: the link's frame */
    uint16_t node;
    bool busy;     /* the provider has it */
    bool given_up; /* its link has ended: the completion is of no use */
    void *cookie;  /* OFI_PUT, OFI_GET: of the endpoint */
};

struct ofi_regions {
    struct fid_mr **list; /* [count] segments of the pool */
    uint32_t count;
};

struct ofi_link {
    struct records_link r; /* first: fab_link's `impl` points to it */
    struct ofi *ofi;
    bool touched;   /* an event has happened since the last pump; under ofi->receiving */
    fi_addr_t peer; /* under ofi->calls */
    uint32_t moves; /* under way; under the link's lock, with the next fields */
    uint64_t moved; /* how many have ended well */
    uint64_t base;  /* of addresses in the peer's pool; 0: offsets in a segment */
    uint32_t shift; /* of its segments */
    uint32_t keys_count;
    uint64_t *keys;         /* of its segments */
    struct ofi_regions own; /* this node's pool as registered for this peer alone; empty: as for all */
    char name[64];          /* the peer's address, for people */
    /* When something was refused: nothing is sent before retry_at, and each refusal doubles the pause. Under the link's lock. */
    int64_t retry_at, pause;
    char error[160]; /* the last one's reason; "" */
    _Atomic uint64_t errors;
    /* watch.c, on the progress thread: */
    uint64_t stand;   /* what was acknowledged and moved when that was looked at */
    int64_t still_at; /* since when it has not changed, although something is under way; 0: it has, or nothing is */
    bool renewed;     /* this node took a new endpoint for it */
    bool asked;       /* the peer was asked whether it runs ... */
    int64_t answered; /* ... and answered at this time; 0: not yet */
    bool tell;        /* this node's address is to be told again */
    _Atomic uint64_t connects;
};

struct ofi {
    struct weft_node *w;
    struct fab_look look;
    const struct ofi_library *lib;
    struct fi_info *info; /* the provider's; NULL: not looked for yet */
    struct ofi_traits traits;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;       /* NULL: none (any more); written under `receiving` and `calls` */
    _Atomic bool opened;     /* there has been an endpoint: what the functions of the table look at without a lock */
    int fd;                  /* of the queue; -1: the provider has none, and it is polled. Written as `ep`, as the next one */
    bool armed;              /* idle() has found nothing: the progress thread may sleep on fd */
    struct ofi_regions pool; /* the pool, where registering is dear: for all peers */
    uint32_t shift;
    uint8_t *memory; /* frames to send and to receive */
    uint64_t memory_bytes;
    uint8_t *link_frames, *receive_frames;
    struct fid_mr *memory_mr; /* where the provider wants local memory registered */
    struct ofi_request *receives, *requests;
    uint32_t receives_count, requests_count;
    struct ofi_request *free, *owed; /* requests; receives that found no room. Under `calls` */
    struct ofi_link **links;         /* [size]; NULL for peers that use another transport */
    char name[64];                   /* this node's address, for people */
    uint8_t address[OFI_ADDRESS];
    size_t address_bytes;
    base_spin receiving, calls;
    _Atomic int64_t due; /* the earliest timer of all links; may be too early */
    uint32_t looks;
    uint32_t generation; /* of the endpoint */
    bool renew;          /* a new endpoint is wanted; under `receiving` */
};

/* Whether this node uses the transport. */
static inline bool ofi_opened(const struct ofi *o)
{
    return atomic_load_explicit(&o->opened, memory_order_acquire); /* pairs with the release at the end of ofi_device_open() */
}

/* device.c */
int ofi_device_open(struct ofi *o); /* with o->info */
void ofi_device_close(struct ofi *o);
int ofi_register(struct ofi *o, struct ofi_regions *r); /* the pool, with new keys */
void ofi_unregister(struct ofi_regions *r);
void *ofi_descriptor(const struct ofi *o, const void *at);           /* of local memory, where the provider wants one */
int ofi_endpoint_open(struct ofi *o);                                /* a new endpoint, in place of none; receives are posted */
int ofi_queue_renew(struct ofi *o);                                  /* a new completion queue, while there is no endpoint */
void ofi_receive_again_locked(struct ofi *o, struct ofi_request *q); /* posts a receive, or keeps it for later; under `calls` */
void ofi_receive_owed_locked(struct ofi *o);
/* NULL: all are under way. Under `calls`, as the next one */
struct ofi_request *ofi_request_take_locked(struct ofi *o, enum ofi_request_kind kind, uint32_t node);
void ofi_request_free_locked(struct ofi *o, struct ofi_request *q);

/* link.c */
static inline struct ofi_link *ofi_link_of(const struct ofi *o, uint32_t node)
{
    /* acquire: pairs with the release that published the complete link */
    return node < o->w->size ? __atomic_load_n(&o->links[node], __ATOMIC_ACQUIRE) : NULL;
}
struct ofi_link *ofi_link_make(struct ofi *o, struct fab_link *link);
int ofi_link_ready(struct ofi_link *l, uint32_t session);
void ofi_link_free(struct ofi_link *l);
void ofi_refused_locked(struct ofi_link *l, int err, const char *what, int64_t now); /* under the link's lock */

/* poll.c; the last six: what struct fab_transport says of them */
int ofi_poll(struct ofi *o); /* under o->receiving, as the next one */
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
/* Takes a new endpoint in place of the old one, and lets all that is under way begin again. Under o->receiving. */
void ofi_renew(struct ofi *o);
/* Whether the bytes are a valid message of watch.c; only computes. */
bool ofi_side_valid(const void *bytes, size_t len);

/* connect.c */
/* What a node tells a peer; `keys` keys follow, of 8 bytes each. */
struct ofi_hello {
    uint64_t magic, pool_bytes;
    uint32_t rank, size, session;
    uint32_t shift, keys; /* the pool's segments: none where the provider has no RMA */
    uint32_t format, address_bytes;
    uint32_t reserved;
    uint64_t base;
    char provider[48];
    uint8_t address[OFI_ADDRESS];
};
/* Whether the fields are valid that do not depend on this node's provider; only computes. */
bool ofi_hello_valid(const struct ofi_hello *h, uint32_t node, uint32_t size, uint64_t heap_offset);
int ofi_connect(struct ofi_link *l, int side_fd, int64_t deadline); /* for a link that has just been made */

#endif
