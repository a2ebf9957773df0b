/* SPDX-License-Identifier: MIT
 *
 * Memory of GPUs that has addresses in the cluster. An arena is memory of one GPU, and has a space (a part of the address) at the GPU's
 * node. The fabric passes operations on arenas to these files. Each operation becomes a job, which is done in steps that never wait. The
 * thread that starts a job takes the job's first step. The carrier thread of the node, called "the thread" in this folder, takes the other
 * steps. A job moves its data in one of two ways:
 *
 *   own, mapped   this process can access the GPU's memory: the back end copies
 *   staged        this process sends messages to the node that owns the arena; the owner's carrier thread moves the data. From 4 KiB on,
 *                 the data goes through the pools of both nodes, in pieces
 *
 * If the arena is registered with the owner's RDMA device, the data of a staged transfer does not go through the owner's pool: the device
 * moves it between the arena and the other node's pool.
 *
 * Only the owner carries out atomics on words in an arena, one atomic at a time. Each file calls only the files listed before it:
 *
 *   rdma.c    registers arenas with the RDMA device
 *   views.c   which GPUs of this node can access which arenas
 *   arena.c   the arenas of this node and their allocators; other nodes' arenas that are mapped in this process
 *   share.c   hands memory of GPUs to other processes of the host, and maps memory of their GPUs
 *   stage.c   buffers in the pool through which pieces are copied
 *   grant.c   slots of an owner's stage that another node may put into
 *   owner.c   other nodes' requests for this node's arenas
 *   piece.c   pieces of jobs
 *   job.c     jobs of this node
 *   carrier.c the carrier thread, which takes steps; the functions that the fabric calls
 */
#ifndef WEFT_GPU_ARENA_H
#define WEFT_GPU_ARENA_H

#include "gpu/gpu.h"

#define ARENA_SPACES   (1u << WEFT_SPACE_BITS)
#define ARENA_LITTLE   WEFT_PAYLOAD_MAX /* maximum number of bytes of data inside one message */
#define ARENA_PIECE    (1u << 20)       /* maximum number of bytes of a piece */
#define ARENA_JOBS     1024u            /* maximum number of jobs for one node; a caller that starts more waits */
#define ARENA_PIECES   64u              /* maximum number of pieces under way to one node */
#define ARENA_REQUESTS 64u              /* the most requests of one node at an owner: a node has at most this many pieces under way */
#define STAGE_SLOTS    8u
#define GRANTS_MOST    4u  /* maximum number of slots of an owner that one node may have */
#define ARENA_GPUS     64u /* maximum number of open GPUs of a node */
#define SHARE_NAME     48u /* length of the name of the socket by which memory is handed over (base_place_open()) */

enum {
    ARENA_HANDLER_ASK = FAB_ROOM_HANDLERS(2),
    ARENA_HANDLER_ANSWER,
    ARENA_HANDLER_SPACE,
    ARENA_HANDLER_TOLD,
    ARENA_HANDLER_SHARE,
    ARENA_HANDLER_ROOM
};

enum arena_ask { ASK_WRITE = 1, ASK_READ, ASK_PULL, ASK_PUSH, ASK_ATOMIC, ASK_LAND };

/* A request to the owner of an arena. WRITE contains the data, and so does the answer to READ. PULL: the owner reads the data from the
 * requester's pool. PUSH: the owner writes the data to that pool. LAND: the data is in a slot that the owner has granted (grant.c). */
struct arena_message {
    uint64_t id; /* number of the request; the answer has the same number */
    uint32_t kind, space;
    uint64_t offset, length;
    uint64_t a, b;   /* PULL, PUSH: `a` is an address in the requester's pool; LAND: `a` is the address of the slot; ATOMIC: the operands */
    uint32_t atomic; /* enum fab_atomic */
    uint32_t zero;
};

/* Sent to all nodes when an arena is opened or closed. Each node confirms the message. A node of the same host first tries to map the
 * arena. */
#define ARENA_AS_BEFORE UINT64_MAX
struct arena_space {
    uint64_t space, bytes; /* 0 bytes: the arena was closed; ARENA_AS_BEFORE: only `rdma` has changed */
    uint64_t kind;         /* the kind of the arena's GPU: arena_kind() */
    int64_t rdma;          /* 0: the arena is registered with its node's RDMA device; a negative errno: why it is not registered */
};

/* Asks an owner on the same host to connect to the asking node's socket `place`, and to hand over the arena's memory. */
struct arena_share {
    uint64_t space;
    uint64_t secret;        /* the owner's answer must have this number, so that no other node can answer in place of the owner */
    char place[SHARE_NAME]; /* the name of the socket to connect to; ends with a zero byte */
};
/* What the owner sends on that socket, together with a descriptor of the memory. If no descriptor is sent, `status` is the reason. */
struct arena_gift {
    uint64_t secret, bytes;
    int64_t status;
};

struct arena_answer {
    uint64_t id;
    int64_t status;
    uint64_t value; /* ATOMIC: the word's former value; LAND: 1 if the slot stays granted, else 0 */
};

/* A message about slots of the owner's stage into which another node puts (grant.c). */
enum arena_room_kind { ROOM_WANT = 1, ROOM_GRANT, ROOM_GIVE };
struct arena_room {
    uint32_t kind, count;
    uint32_t question, zero;    /* the number of a WANT; the GRANT that answers the WANT has the same number */
    uint64_t bytes;             /* GRANT: the size of each slot */
    weft_gaddr at[GRANTS_MOST]; /* GRANT: the addresses of `count` slots */
};
_Static_assert(sizeof(struct arena_room) <= WEFT_HEADER_MAX, "it is the header of a message");

struct gpu_arena {
    struct gpu_place place;
    struct gpu_memory memory;
    struct mem_pool *books; /* the arena's allocator; NULL: the arena belongs to another node */
    uint32_t node, space;
    _Atomic bool closing;    /* no new operation may begin on the arena */
    _Atomic uint32_t users;  /* jobs and requests that use the arena */
    _Atomic uint64_t gpus;   /* one bit for each open GPU whose kernels can access the arena */
    struct fab_memory *rdma; /* NULL: the arena is not registered with the RDMA device */
    _Atomic int rdma_why; /* 0 if the RDMA device accesses the arena, else the errno that says why not. After -EACCES, the device's refusal,
                           * weft does not try again */
    uint32_t rdma_tell;   /* nodes with lower numbers have been told of the device's refusal; used by the thread that takes a step */
    _Atomic bool given;   /* the memory was handed to other processes */
};

/* An arena of another node of this host, and that node's request for this node's arena in the same space. share_lock protects the members
 * that are not atomic, except the last two. A writer of `arena` holds both share_lock and table_lock; a reader holds one of these locks. */
struct arena_other {
    struct gpu_arena arena;
    _Atomic bool mapped;   /* the arena is mapped in this process */
    _Atomic bool look;     /* the thread must handle a change of this arena */
    _Atomic bool fresh;    /* the thread has not begun to handle the change for which `look` is set */
    _Atomic uint32_t owed; /* changes that the owner has announced and this node has not confirmed */
    int64_t until;         /* when to stop waiting for the memory; 0: not waiting */
    bool ask;              /* the request for the memory must still be sent */
    bool lost;             /* the mapping was in use when the GPU was closed, so it is kept */
    uint64_t secret;
    bool wanted; /* the other node has asked for this node's arena in the same space; `wants` has its socket; `lock` protects both */
    struct arena_share wants;
};

/* A copy between a GPU and other memory, which is under way. */
struct arena_copy {
    const struct gpu_place *place; /* NULL: no copy is under way */
    uint64_t ticket;
};

struct stage_slot {
    uint8_t *at;
    weft_gaddr addr;
    uint32_t bytes;
    uint32_t holder; /* rank + 1 of the node that the slot is used for; 0: the slot is free */
    bool granted;    /* that node puts into the slot */
    bool landing;    /* the bytes are being copied to a GPU */
    bool ends;       /* the node has given the slot back, or is gone: the slot becomes free when the copy has ended */
};
struct stage {
    struct stage_slot slot[STAGE_SLOTS];
    uint32_t held;
};

/* A slot at another node into which this node puts. */
struct grant {
    weft_gaddr at; /* WEFT_NULL: none */
    uint32_t bytes;
    bool busy; /* a piece uses the slot */
};
/* What becomes of a piece's slot when the piece has ended. STAYS: the slot stays granted. TAKEN: the owner has taken it back. LOST: a put
 * into the slot may still be under way.
 */
enum grant_fate { GRANT_STAYS, GRANT_TAKEN, GRANT_LOST };

/* Slots that another node has granted to this node. The last members are about the other direction: what that node has said about slots of
 * this node. */
struct grants {
    struct grant slot[GRANTS_MOST];
    uint32_t count, busy;
    bool lost; /* nothing may be put into the slots; they are given back when the link has been flushed */
    struct fab_flush flush;
    int64_t used, again, wanted_at; /* used: when a slot was last used; again: when to ask for more; wanted_at: when this node asked */
    _Atomic uint32_t offer;         /* the number of this node's last question, and its state (OFFER_NONE and so on, grant.c) */
    uint32_t offered, offered_bytes;
    weft_gaddr offered_at[GRANTS_MOST];
    _Atomic bool stray;      /* slots were granted that this node had not asked for */
    _Atomic uint32_t wanted; /* the number of that node's question for slots; 0: none */
    _Atomic bool given;      /* that node has given back all its slots, or is gone */
};

struct arena_request;
struct arena_job;
struct arena_piece;

/* The operations of this node on arenas of another node, and what this node knows of those arenas. */
struct arena_peer {
    struct arena_job *first, *last, *next; /* jobs in order; `next` is the first job with pieces left to begin; guarded by `lock` */
    uint32_t count;                        /* number of jobs; guarded by `lock` */
    uint64_t begun;                        /* number of jobs begun so far; guarded by `lock` */
    _Atomic uint64_t oldest;               /* number of the oldest job that is not complete */
    uint32_t pieces;
    _Atomic int failure;
    _Atomic uint32_t requests;            /* number of that node's requests at this node */
    _Atomic uint64_t bytes[ARENA_SPACES]; /* sizes of that node's arenas, as it has announced them */
    _Atomic uint64_t kind[ARENA_SPACES];
    _Atomic int rdma[ARENA_SPACES];
    _Atomic int unmapped; /* the last reason why an arena of that node is not mapped in this process */
    struct grants grants;
    _Atomic uint32_t told, knows; /* told: how many changes of arenas this node has announced to that node; knows: how many of these changes
                                     that node has confirmed */
};

struct arenas {
    struct weft_node *w;
    base_spin lock;     /* protects the lists of jobs and requests */
    base_spin stepping; /* held by the thread that is taking a step */
    pthread_rwlock_t table_lock;
    struct gpu_arena *own[ARENA_SPACES];
    /* all arenas of this node are in this range, which only grows; so one comparison shows that most local memory is in no arena */
    _Atomic uint64_t low, high;
    _Atomic(struct arena_other *) other; /* [size * ARENA_SPACES]; NULL until this node has an open GPU and the host has a second node */
    _Atomic uint32_t news;               /* counts changes of `other` that the thread must handle */
    pthread_mutex_t gpus_lock; /* protects `gpus` and `gpu_ends`; may be taken while share_lock is held, but not the other way round */
    struct gpu_place gpus[ARENA_GPUS]; /* the open GPUs; an entry without back end is free */
    bool gpu_ends[ARENA_GPUS];         /* this GPU is being closed */
    _Atomic bool leaving;              /* the node is being closed */
    pthread_mutex_t
        share_lock; /* protects the elements of `other` (see struct arena_other), and the members from `sharing` to `share_name` */
    bool sharing;   /* the thread has more work with `other` */
    /* share_place: the socket by which owners hand over memory, or a negative errno; share_came: a connection on which nothing has arrived
     * yet, or -1 */
    int share_place, share_came;
    int64_t share_until; /* when to stop waiting on that connection */
    char share_name[BASE_PLACE_NAME];
    struct arena_peer *peer; /* [size] */
    struct arena_piece *piece;
    uint32_t pieces; /* number of pieces under way */
    struct stage asks, serves;
    uint32_t waiting;        /* requests that wait for a slot of `serves` */
    _Atomic uint32_t grants; /* number of slots that this node has granted or was granted, plus the number of questions for slots */
    _Atomic uint32_t rooms;  /* counts messages about grants */
    uint32_t rooms_seen;
    struct arena_request *requests, **requests_end; /* requests of other nodes that are being carried out */
    struct arena_request *arrived, **arrived_end;   /* requests of other nodes that have just arrived; guarded by `lock` */

    int (*start)(struct arenas *c); /* set by carrier.c: starts the thread */
    bool (*turn)(struct arenas *c); /* set by carrier.c: takes a step of all requests in a handler */
    pthread_mutex_t start_lock;
    uint64_t near[BASE_CPU_WORDS]; /* where the thread runs: as gpu_place.near of the first GPU; guarded by start_lock until it runs */
    pthread_t thread;
    _Atomic bool started, stop;
    _Atomic uint32_t bell, sleeping;
    _Atomic uint32_t active;      /* jobs and requests that are not complete */
    _Atomic uint32_t moves;       /* counts steps in which a job or a request has moved on */
    bool put_begun;               /* this step has begun a put into a slot of another node; used by the thread that takes a step */
    _Atomic int64_t copies_until; /* until when the copies of this node's jobs should have ended; 0: not known */
    _Atomic uint64_t direct;      /* number of transfers that the RDMA device made from or to an arena */
    _Atomic uint64_t landed;      /* number of pieces that other nodes have put into slots of this node */
    _Atomic bool refusals;        /* the RDMA device has refused to access an arena, and some nodes have not been told */
};

/* --- rdma.c --- */
void rdma_open(struct arenas *c, struct gpu_arena *a); /* registers the arena with the RDMA device, or sets `rdma_why` */
void rdma_close(struct arenas *c, struct gpu_arena *a);
/* whether the RDMA device can move data between the arena and that node's pool */
bool rdma_leads(const struct arenas *c, const struct gpu_arena *a, uint32_t node);
/* Takes a step of a transfer between the arena and the pool of another node. `in`: the data goes to the arena. Returns -EINPROGRESS or
 * -EAGAIN if the caller must call it again. Returns -ECONNABORTED if the device has refused to access the arena; then the transfer must go
 * through the pool. */
int rdma_step(struct arenas *c, struct gpu_arena *a, bool in, void *at, weft_gaddr far, uint64_t bytes, weft_op *op, bool *started);
const char *rdma_reason(int why);

/* --- views.c --- */
uint64_t arena_kind(const struct gpu_place *p);                    /* a number for a GPU's kind, which nodes compare */
int view_list(struct arenas *c, struct gpu_place *place);          /* adds an open GPU, and sets its number; returns 0 or -ENOSPC */
void view_end(struct arenas *c, const struct gpu_place *place);    /* the GPU is being closed: its kernels get no further arenas */
void view_unlist(struct arenas *c, const struct gpu_place *place); /* removes the GPU, when no arena refers to it any more */
/* Finds the first open GPU of that kind. If no GPU of that kind is open, `out` has no back end. Returns false if no GPU of any kind is
 * open. */
bool view_find(struct arenas *c, uint64_t kind, struct gpu_place *out);
/* Gives kernels of all open GPUs, or only of GPU `only`, access to the arena, if this is possible. The arena must stay open during the
 * call. */
void view_show(struct arenas *c, struct gpu_arena *a, const struct gpu_place *only);
void view_hide(struct arenas *c, struct gpu_arena *a);                              /* takes the arena away from all GPUs */
void view_drop(struct arenas *c, struct gpu_arena *a, const struct gpu_place *gpu); /* forgets that the GPU reaches the arena; call this
                                                                                       after the GPU was closed, with its table */
bool view_reaches(const struct gpu_arena *a, const struct gpu_place *gpu);
/* The GPU that can copy between two arenas, one of which may be NULL. Returns NULL if no GPU can access both. */
const struct gpu_place *view_copier(const struct gpu_arena *a, const struct gpu_arena *b);

/* --- arena.c --- */
void arena_ring(struct arenas *c);          /* wakes the carrier thread */
void arena_tell_refusals(struct arenas *c); /* takes a step: tells other nodes that the RDMA device has refused an arena */
int arena_start(struct arenas *c);          /* starts the thread, if it does not run yet */
int arena_new(struct arenas *c, const struct gpu_place *place, uint64_t bytes, uint32_t *space);
int arena_alloc(struct arenas *c, uint32_t space, uint64_t bytes, weft_gaddr *out);
int arena_free(struct arenas *c, weft_gaddr addr);
/* Checks that the other node has this memory. Returns 0 or -EFAULT. */
int arena_known(struct arenas *c, weft_gaddr addr, uint64_t bytes);
/* Finds the arena with this memory, and counts a user; call arena_leave() at the end. Returns -EFAULT if there is no such memory. `*out`
 * becomes NULL if the arena belongs to another node and is not mapped in this process. */
int arena_enter(struct arenas *c, weft_gaddr addr, uint64_t bytes, struct gpu_arena **out, void **at);
/* finds this node's arena that contains this memory, and counts a user */
struct gpu_arena *arena_enter_memory(struct arenas *c, const void *p, uint64_t bytes);
void arena_leave(struct gpu_arena *a);
static inline bool arena_is_own(const struct arenas *c, weft_gaddr a)
{
    return weft_gaddr_node(a) == c->w->rank;
}
bool arena_owns(struct arenas *c, const void *p);
void arena_gpu_opened(struct arenas *c, const struct gpu_place *place); /* gives the GPU's kernels access to all arenas */
void arena_gpu_closed(struct arenas *c, const struct gpu_place *place); /* removes the GPU from all arenas */
/* Closes the arenas of the GPU with this table (gpu_place.table). The memory of an arena stays until arena_free_all() if operations on it
 * are still under way at the deadline, and without `quiet`. Returns false if some memory stays. */
bool arena_close_all(struct arenas *c, const void *table, bool quiet, int64_t deadline);
void arena_free_all(struct arenas *c, bool quiet);        /* without `quiet` the memory is never freed */
void arena_refuse(struct arenas *c, struct gpu_arena *a); /* allows no new operation on the arena */
/* waits until no operation uses the arena; returns false if some still do at the deadline */
bool arena_unused(struct arenas *c, struct gpu_arena *a, int64_t deadline);

int arena_copy(struct arena_copy *c, const struct gpu_place *p, void *to, const void *from, uint64_t bytes);
int arena_copied(struct arena_copy *c); /* returns -EINPROGRESS, or the result of the copy */

/* --- share.c --- */
void share_heard(struct arenas *c, uint32_t from, const void *header, size_t len); /* handles another node's announcement of an arena */
/* handles another node's request to hand over an arena of this node */
void share_asked(struct arenas *c, uint32_t from, const void *header, size_t len);
bool share_step(struct arenas *c); /* takes a step, on the carrier thread; returns whether there was something to do */
/* Maps those arenas of other nodes of this host that are not mapped yet. Call this after a GPU was opened. Call it also after a GPU was
 * closed, if another GPU is open. */
void share_open(struct arenas *c, bool wait);
/* Removes the GPU's mappings. `quiet` and the result are as in arena_close_all(). */
bool share_close(struct arenas *c, const struct gpu_place *place, bool quiet, int64_t deadline);
/* Returns in words how this node reaches the memory of that node's GPUs. `why` gets the reason. */
const char *share_way(struct arenas *c, uint32_t node, char *why, size_t room);
void share_free(struct arenas *c, bool quiet);

/* --- stage.c --- */
/* Returns NULL if no slot is free now or, if `*why` is not 0, an error has happened */
struct stage_slot *stage_take(struct weft_node *w, struct stage *s, uint32_t node, int *why);
void stage_give(struct stage *s, struct stage_slot *slot);

/* --- grant.c --- */
bool grant_step(struct arenas *c); /* returns whether there was something to do */
void grant_told(struct arenas *c, uint32_t from, const void *header, size_t len);
void grant_gone(struct arenas *c, uint32_t node); /* called when the link to the node is closed */
/* For the owner: finds the slot that a node has put into, and holds the slot until grant_landed(). Returns NULL if the slot is not granted
 * to that node.
 */
struct stage_slot *grant_land(struct arenas *c, uint32_t from, weft_gaddr at, uint64_t bytes);
bool grant_stays(const struct arenas *c, const struct stage_slot *s); /* whether the node may keep the slot */
void grant_landed(struct arenas *c, struct stage_slot *s, bool stays);
/* For the node that puts: whether its puts to that arena go into granted slots. */
bool grant_serves(struct arenas *c, uint32_t node, uint32_t space);
/* Returns NULL if no slot is free now. `*pull`: the owner grants no slot, so the owner must get the piece. */
struct grant *grant_take(struct arenas *c, uint32_t node, bool *pull);
void grant_end(struct arenas *c, uint32_t node, struct grant *one, enum grant_fate fate);

/* --- owner.c --- */
void owner_asked(struct arenas *c, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len);
bool owner_step(struct arenas *c); /* returns whether there was something to do */
void owner_free(struct arenas *c);

/* --- piece.c --- */
enum job_kind { JOB_PUT, JOB_GET, JOB_ATOMIC };
struct arena_job {
    struct arena_job *next;
    enum job_kind kind;
    uint32_t node;
    uint64_t number;
    weft_gaddr far; /* the operation's address, at `node` */
    uint8_t *near;  /* the caller's local memory */
    uint64_t length, begun;
    struct gpu_arena *near_arena, *far_arena; /* NULL: the memory is in a pool. far_arena is also NULL for an arena that is not mapped */
    uint8_t *far_at;                          /* address of the far memory in this process; NULL: it is not mapped */
    uint32_t pieces;
    bool again; /* the RDMA device has refused a piece: when no piece is under way any more, the job begins again, through the pool */
    int status;
    weft_op *op;
    uint32_t atomic; /* enum fab_atomic; with `signal`, the atomic that follows the data */
    weft_gaddr word;
    uint64_t a, b, *old;
    bool word_left; /* the atomic of the job has not begun */
};

enum piece_step {
    PIECE_FREE,
    PIECE_FILL,    /* data is copied from a GPU to the memory from which it is sent */
    PIECE_SEND,    /* the message to the owner must still be sent */
    PIECE_ANSWER,  /* the piece waits for the owner's answer */
    PIECE_ARRIVES, /* the handler of the answer is writing to this piece */
    PIECE_CAME,    /* the answer is complete */
    PIECE_FABRIC,  /* an operation on a pool must begin, or is under way */
    PIECE_DRAIN,   /* data is copied to a GPU, or directly between the two ends of the job */
    PIECE_DONE,
};

struct arena_piece {
    _Atomic uint32_t step;
    uint64_t id; /* the low 8 bits are the piece's index in the table */
    struct arena_job *job;
    bool word; /* the piece is the atomic of the job, without data */
    bool started;
    uint64_t from, length; /* the range of the job's data */
    struct grant *grant;   /* the slot at the owner into which the piece is put; NULL: none */
    enum grant_fate fate;  /* what becomes of that slot when the piece has ended */
    weft_gaddr to;         /* the address at the other node, for puts or gets of the fabric */
    struct stage_slot *slot;
    /* the memory through which the data goes: a slot of the stage, this struct's `bytes`, or the local memory itself; NULL: the piece is
     * not staged */
    uint8_t *at;
    weft_gaddr addr; /* the address of `at`, in the pool */
    bool direct;     /* the local memory is in an arena, and the RDMA device accesses it directly */
    struct arena_copy copy;
    weft_op op;
    int status;
    uint64_t value;
    uint8_t bytes[ARENA_LITTLE];
};
_Static_assert(ARENA_PIECES <= 256, "the low 8 bits of a piece's id are its index");
struct arena_piece *piece_table(void);
bool piece_begin(struct arenas *c, struct arena_job *j); /* begins the job's next piece, if possible; returns whether it has begun */
bool piece_used(const struct arena_piece *p);
bool piece_step(struct arenas *c, struct arena_piece *p, bool *moved); /* takes a step; returns whether the piece has ended */
void piece_give(struct arenas *c, struct arena_piece *p);              /* the piece may be used again */
void piece_answered(struct arenas *c, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len);

/* --- job.c --- */
int job_begin(struct arenas *c, const struct arena_job *what, weft_op *op);
bool job_step(struct arenas *c);
void job_free(struct arenas *c);

#endif
