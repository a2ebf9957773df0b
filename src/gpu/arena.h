/* SPDX-License-Identifier: MIT
 *
 * Memory of GPUs in the address space. An arena is memory of one GPU; it is a space of its node. An operation on an arena, which the fabric
 * passes on to these files, becomes a job. A job is done in steps that never wait. The thread that starts a job takes its first step, a
 * thread of the node takes the others. There are two ways:
 *
 *   own, mapped   this process reaches the GPU's memory: its back end copies
 *   staged        messages to the owner, whose thread moves the data; from 4 KiB on through memory of both pools, in pieces
 *
 * Of a staged transfer, an owner whose RDMA device has its arena registered skips its own pool: the device moves the data between the arena
 * and the other node's pool.
 *
 * Only the owner's steps change a word, one at a time. Each file calls only those before it:
 *
 *   rdma.c    arenas registered with the RDMA device
 *   views.c   which GPUs of this node reach which arenas
 *   arena.c   the arenas of this node and their allocators; arenas of others that this process reaches
 *   share.c   giving memory of GPUs to other processes of the host, and taking it
 *   stage.c   buffers in the pool through which pieces are copied
 *   owner.c   requests of other nodes for this node's arenas
 *   job.c     jobs of this node
 *   carrier.c the thread; the functions that the fabric calls
 */
#ifndef WEFT_GPU_ARENA_H
#define WEFT_GPU_ARENA_H

#include "gpu/gpu.h"

#define ARENA_SPACES   (1u << WEFT_SPACE_BITS)
#define ARENA_LITTLE   WEFT_PAYLOAD_MAX /* the most bytes that a message carries itself */
#define ARENA_PIECE    (1u << 20)       /* the most bytes of a piece */
#define ARENA_JOBS     1024u            /* jobs to a node; callers with more wait */
#define ARENA_PIECES   64u              /* the most pieces under way */
#define ARENA_REQUESTS 64u              /* requests of one node at an owner: no node has more pieces under way */
#define STAGE_SLOTS    8u
#define ARENA_GPUS     64u /* open GPUs of a node */
#define SHARE_NAME     48u /* length of the name of the socket where memory is handed over (base_place_open()) */

enum { ARENA_HANDLER_ASK = FAB_ROOM_HANDLERS(2), ARENA_HANDLER_ANSWER, ARENA_HANDLER_SPACE, ARENA_HANDLER_TOLD, ARENA_HANDLER_SHARE };

enum arena_ask { ASK_WRITE = 1, ASK_READ, ASK_PULL, ASK_PUSH, ASK_ATOMIC };

/* A request to an owner. WRITE carries the data, and so does the answer to READ. For PULL the owner gets the data from the requester's
   pool; for PUSH it puts the data there. */
struct arena_message {
    uint64_t id; /* number of the request, which the answer repeats */
    uint32_t kind, space;
    uint64_t offset, length;
    uint64_t a, b;   /* PULL, PUSH: `a` is the address in the requester's pool; ATOMIC: the operands */
    uint32_t atomic; /* enum fab_atomic */
    uint32_t zero;
};

/* Sent to all nodes when an arena is opened or closed. Each node confirms; a node of the same host only after it has mapped the arena, or
   failed to. */
#define ARENA_AS_BEFORE UINT64_MAX
struct arena_space {
    uint64_t space, bytes; /* 0 bytes: the arena was closed; ARENA_AS_BEFORE: only `rdma` has changed */
    uint64_t kind;         /* the kind of its GPU: arena_kind() */
    int64_t rdma;          /* 0: it is registered with its node's RDMA device; or a negative errno, the reason why not */
};

/* Sent to an owner on the same host: hand over its memory at this socket. */
struct arena_share {
    uint64_t space;
    uint64_t secret;        /* the gift repeats it, so that no other node can give in the owner's name */
    char place[SHARE_NAME]; /* ends with a zero */
};
/* What the owner hands over, together with a descriptor; without one, `status` is the reason. */
struct arena_gift {
    uint64_t secret, bytes;
    int64_t status;
};

struct arena_answer {
    uint64_t id;
    int64_t status;
    uint64_t value;
};

struct gpu_arena {
    struct gpu_place place;
    struct gpu_memory memory;
    struct mem_pool *books; /* its allocator; NULL: the arena belongs to another node */
    uint32_t node, space;
    _Atomic bool closing;    /* nothing new may begin */
    _Atomic uint32_t users;  /* jobs and requests that use it */
    _Atomic uint64_t gpus;   /* a bit for each open GPU whose kernels reach it */
    struct fab_memory *rdma; /* NULL: it is not registered with the RDMA device */
    _Atomic int rdma_why;    /* 0: the RDMA device accesses it; else why not. -EACCES: the device has refused, and is not asked again */
    uint32_t rdma_tell;      /* nodes before this one have been told of the refusal; used by the thread that takes a step */
    _Atomic bool given;      /* its memory was handed to other processes */
};

/* An arena of another node of this host; and that node's request for our arena in the same space. Only the thread uses it, except atomic
   members. */
struct arena_other {
    struct gpu_arena arena;
    _Atomic bool mapped;   /* this process can reach it */
    _Atomic bool look;     /* something must be done about it ... */
    _Atomic bool fresh;    /* ... and has not begun */
    _Atomic uint32_t owed; /* changes that its node has reported and this node has not confirmed */
    int64_t until;         /* until when to wait for its memory; 0: not waiting */
    bool ask;              /* its memory must still be requested */
    bool lost;             /* it was in use when the GPU was closed: leave it as it is */
    uint64_t secret;
    bool wanted; /* that node has requested this node's arena of the same number, at the socket in `wants`; both under `lock` */
    struct arena_share wants;
};

/* A copy under way between a GPU and other memory. */
struct arena_copy {
    const struct gpu_place *place; /* NULL: none is under way */
    uint64_t ticket;
};

struct stage_slot {
    uint8_t *at;
    weft_gaddr addr;
    uint32_t bytes;
    uint32_t holder; /* the node that it is used for, plus 1; 0: free */
};
struct stage {
    struct stage_slot slot[STAGE_SLOTS];
    uint32_t held;
};

struct arena_request;
struct arena_job;
struct arena_piece;

/* What this node has under way with another one. */
struct arena_peer {
    struct arena_job *first, *last, *next; /* jobs in order; `next` is the first that has something left to begin; under `lock` */
    uint32_t count;                        /* number of jobs; under `lock` */
    uint64_t begun;                        /* all jobs so far; under `lock` */
    _Atomic uint64_t oldest;               /* number of the oldest job that is not complete */
    uint32_t pieces;
    _Atomic int failure;
    _Atomic uint32_t requests;            /* requests of that node that are here */
    _Atomic uint64_t bytes[ARENA_SPACES]; /* sizes of its arenas, as it has reported */
    _Atomic uint64_t kind[ARENA_SPACES];
    _Atomic int rdma[ARENA_SPACES];
    _Atomic int unmapped;         /* why an arena of it is not mapped here: the last reason */
    _Atomic uint32_t told, knows; /* how often it was told of an arena of this node; how often it has confirmed */
};

struct arenas {
    struct weft_node *w;
    base_spin lock;     /* protects the lists of jobs and requests */
    base_spin stepping; /* held by the thread that takes a step */
    pthread_rwlock_t table_lock;
    struct gpu_arena *own[ARENA_SPACES];
    _Atomic uint64_t low, high; /* the memory of all own arenas is in this range, which only grows: most local memory is outside of it */
    _Atomic(struct arena_other *) other; /* [size * ARENA_SPACES]; NULL until there are a GPU and another node on this host */
    _Atomic uint32_t news;               /* something about them must be checked */
    pthread_mutex_t gpus_lock;           /* protects the next two; taken with share_lock or without */
    struct gpu_place gpus[ARENA_GPUS];   /* the open GPUs; no back end: none */
    bool gpu_ends[ARENA_GPUS];           /* it is being closed */
    _Atomic bool leaving;                /* the node is being closed */
    pthread_mutex_t share_lock;          /* protects the following members and `other` */
    bool sharing;                        /* there is more to do */
    /* the socket where owners hand over memory, or a negative errno; the connection of an owner that has not sent yet, or -1 */
    int share_place, share_came;
    int64_t share_until; /* until when to wait for that owner */
    char share_name[BASE_PLACE_NAME];
    struct arena_peer *peer; /* [size] */
    struct arena_piece *piece;
    uint32_t pieces; /* how many are under way */
    struct stage asks, serves;
    struct arena_request *requests, **requests_end; /* requests that are being done ... */
    struct arena_request *arrived, **arrived_end;   /* ... and new ones; under `lock` */

    int (*start)(struct arenas *c); /* set by carrier.c: starts the thread */
    pthread_mutex_t start_lock;
    pthread_t thread;
    _Atomic bool started, stop;
    _Atomic uint32_t bell, sleeping;
    _Atomic uint32_t active; /* jobs and requests that are not done */
    _Atomic uint64_t direct; /* transfers that the RDMA device made from or to an arena */
    _Atomic bool refusals;   /* the RDMA device has refused to access an arena, and not all nodes have been told */
};

/* --- rdma.c --- */
void rdma_open(struct arenas *c, struct gpu_arena *a); /* registers the arena with the RDMA device, or sets `rdma_why` */
void rdma_close(struct arenas *c, struct gpu_arena *a);
bool rdma_leads(const struct arenas *c, const struct gpu_arena *a, uint32_t node); /* whether the device moves data to and from that node */
/* One transfer between the arena and that node's pool, in steps: -EINPROGRESS or -EAGAIN: call again. `in`: to the arena. -ECONNABORTED:
   the device has refused to access the arena, so the transfer must go through the pool. */
int rdma_step(struct arenas *c, struct gpu_arena *a, bool in, void *at, weft_gaddr far, uint64_t bytes, weft_op *op, bool *started);
const char *rdma_reason(int why);

/* --- views.c --- */
uint64_t arena_kind(const struct gpu_place *p);                    /* a number for the kind of a GPU; nodes compare it */
int view_list(struct arenas *c, struct gpu_place *place);          /* adds an open GPU, and sets its number; -ENOSPC */
void view_end(struct arenas *c, const struct gpu_place *place);    /* it is being closed: no arena is shown to it any more */
void view_unlist(struct arenas *c, const struct gpu_place *place); /* when no arena names it any more */
/* The first open GPU of that kind; no back end: there is none. False: there is no GPU of any kind. */
bool view_find(struct arenas *c, uint64_t kind, struct gpu_place *out);
/* Lets kernels of all open GPUs, or only of one, find the arena, as far as they reach it. The arena stays open meanwhile. */
void view_show(struct arenas *c, struct gpu_arena *a, const struct gpu_place *only);
void view_hide(struct arenas *c, struct gpu_arena *a);                              /* hides it from all */
void view_drop(struct arenas *c, struct gpu_arena *a, const struct gpu_place *gpu); /* that GPU is closed, with its table */
bool view_reaches(const struct gpu_arena *a, const struct gpu_place *gpu);
/* The GPU that copies between two arenas, of which one may be NULL. NULL: no GPU reaches both. */
const struct gpu_place *view_copier(const struct gpu_arena *a, const struct gpu_arena *b);

/* --- arena.c --- */
void arena_ring(struct arenas *c);          /* wakes the thread */
void arena_tell_refusals(struct arenas *c); /* a step: tells other nodes that the RDMA device has refused an arena */
int arena_start(struct arenas *c);          /* starts the thread, once */
int arena_new(struct arenas *c, const struct gpu_place *place, uint64_t bytes, uint32_t *space);
int arena_alloc(struct arenas *c, uint32_t space, uint64_t bytes, weft_gaddr *out);
int arena_free(struct arenas *c, weft_gaddr addr);
/* Checks that another node has this memory: 0, or -EFAULT. */
int arena_known(struct arenas *c, weft_gaddr addr, uint64_t bytes);
/* Finds the arena with this memory, and counts a user: call arena_leave() when done. -EFAULT if there is none. 0 and NULL: it is another
   node's, and this process does not reach it. */
int arena_enter(struct arenas *c, weft_gaddr addr, uint64_t bytes, struct gpu_arena **out, void **at);
/* finds the own arena that contains this memory, and counts a user */
struct gpu_arena *arena_enter_memory(struct arenas *c, const void *p, uint64_t bytes);
void arena_leave(struct gpu_arena *a);
bool arena_owns(struct arenas *c, const void *p);
void arena_gpu_opened(struct arenas *c, const struct gpu_place *place); /* shows its kernels all arenas */
void arena_gpu_closed(struct arenas *c, const struct gpu_place *place); /* forgets it at all arenas */
/* Closes the arenas of a GPU, named by its table. False: operations are under way at the deadline; their arenas stay until
   arena_free_all(). */
bool arena_close_all(struct arenas *c, const void *table, int64_t deadline);
void arena_free_all(struct arenas *c);
void arena_refuse(struct arenas *c, struct gpu_arena *a); /* lets nothing new begin with it */
/* waits until nothing uses it; false: the deadline has passed */
bool arena_unused(struct arenas *c, struct gpu_arena *a, int64_t deadline);

int arena_copy(struct arena_copy *c, const struct gpu_place *p, void *to, const void *from, uint64_t bytes);
int arena_copied(struct arena_copy *c); /* -EINPROGRESS, or the result */

/* --- share.c --- */
void share_heard(struct arenas *c, uint32_t from, const void *header, size_t len); /* handles a message about an arena of that node */
void share_asked(struct arenas *c, uint32_t from, const void *header, size_t len); /* handles a request to hand over one of ours */
bool share_step(struct arenas *c);                                                 /* takes a step, on the thread; true: something moved */
/* A GPU was opened, or one was closed and another one is there: maps the arenas of other nodes of this host that are not mapped yet. */
void share_open(struct arenas *c, bool wait);
bool share_close(struct arenas *c, const struct gpu_place *place, int64_t deadline); /* false: as arena_close_all() */
/* How memory of that node's GPUs is reached, and why. */
const char *share_way(struct arenas *c, uint32_t node, char *why, size_t room);
void share_free(struct arenas *c);

/* --- stage.c --- */
/* NULL: none is free now, or an error in `*why` */
struct stage_slot *stage_take(struct weft_node *w, struct stage *s, uint32_t node, int *why);
void stage_give(struct stage *s, struct stage_slot *slot);
void stage_free(struct weft_node *w, struct stage *s);

/* --- owner.c --- */
void owner_asked(struct arenas *c, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len);
bool owner_step(struct arenas *c); /* true: something moved */
void owner_free(struct arenas *c);

/* --- job.c --- */
enum job_kind { JOB_PUT, JOB_GET, JOB_ATOMIC };
struct arena_job {
    struct arena_job *next;
    enum job_kind kind;
    uint32_t node;
    uint64_t number;
    weft_gaddr far;
    uint8_t *near;
    uint64_t length, begun;
    struct gpu_arena *near_arena, *far_arena; /* NULL: memory of the pool; for the far arena also: not reached */
    uint8_t *far_at;                          /* its address in this process; NULL: not reached */
    uint32_t pieces;
    bool again; /* the RDMA device has refused a piece: when no piece is under way, all data goes through the pool */
    int status;
    weft_op *op;
    uint32_t atomic; /* the atomic; with `signal`, the atomic that follows the data */
    weft_gaddr word;
    uint64_t a, b, *old;
    bool word_left; /* the atomic has not begun */
};
struct arena_piece *job_table(void);
int job_begin(struct arenas *c, const struct arena_job *what, weft_op *op);
bool job_step(struct arenas *c);
void job_answered(struct arenas *c, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len);
void job_free(struct arenas *c);

#endif
