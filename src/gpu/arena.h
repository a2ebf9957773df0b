/* SPDX-License-Identifier: MIT
 *
 * Memory of GPUs in the address space. An arena is memory of one GPU, and a space of its node. What the fabric hands over here becomes a
 * job. Jobs are done by steps that never wait; whoever starts a job takes the first, a thread of the node the others. A job goes one of
 * these ways:
 *
 *   own, mapped   the GPU's memory is reached by this process: its back end copies
 *   staged        messages to the owner, whose thread moves the bytes; from 4 KiB on through memory of both pools, in pieces
 *
 * A word is only ever changed by its owner's steps, one at a time. Each file calls only those before it:
 *
 *   arena.c   the arenas of this node and their allocators; what is reached of others'
 *   share.c   memory of GPUs given to other processes of the host, and taken
 *   stage.c   pool memory that pieces go through
 *   owner.c   what other nodes ask of this node's arenas
 *   job.c     what this node asks
 *   carrier.c the thread, and the way in
 */
#ifndef WEFT_GPU_ARENA_H
#define WEFT_GPU_ARENA_H

#include "gpu/gpu.h"

#define ARENA_SPACES   (1u << WEFT_SPACE_BITS)
#define ARENA_LITTLE   WEFT_PAYLOAD_MAX /* goes inside a message */
#define ARENA_PIECE    (1u << 20)       /* at most */
#define ARENA_JOBS     1024u            /* to a node; more wait */
#define ARENA_PIECES   64u              /* under way */
#define ARENA_REQUESTS 64u              /* of one node at its owner: no node has more pieces under way */
#define STAGE_SLOTS    8u
#define SHARE_NAME     48u /* of a place where memory is brought (base_place_open()) */

enum { ARENA_HANDLER_ASK = FAB_ROOM_HANDLERS(2), ARENA_HANDLER_ANSWER, ARENA_HANDLER_SPACE, ARENA_HANDLER_TOLD, ARENA_HANDLER_SHARE };

enum arena_ask { ASK_WRITE = 1, ASK_READ, ASK_PULL, ASK_PUSH, ASK_ATOMIC };

/* What is asked of an owner. WRITE has the bytes behind it, READ's answer has them. The owner gets PULL's from the asker's pool, and puts
 * PUSH's there. */
struct arena_message {
    uint64_t id; /* the asker's, comes back */
    uint32_t kind, space;
    uint64_t offset, length;
    uint64_t a, b;   /* PULL, PUSH: `a` is where, in the asker's pool; ATOMIC: its operands */
    uint32_t atomic; /* enum fab_atomic */
    uint32_t zero;
};

/* To all nodes, when an arena is opened and closed. Each says that it knows: one of the same host, when it has mapped it. */
struct arena_space {
    uint64_t space, bytes; /* 0 bytes: there is none any more */
    uint64_t kind;         /* of its GPU: arena_kind() */
};

/* To an owner of the same host: bring its memory to this place. */
struct arena_share {
    uint64_t space;
    uint64_t secret;        /* comes back: no other node can give in this one's name */
    char place[SHARE_NAME]; /* ends with a zero */
};
/* What is brought, with a descriptor unless `status` says why not. */
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
    struct mem_pool *books; /* NULL: another node's */
    uint32_t node, space;
    _Atomic bool closing;   /* nothing new begins */
    _Atomic uint32_t users; /* jobs and requests that touch it */
};

/* An arena of another node of this host; and what that node wants of ours in the same space. The thread's, but for what is atomic. */
struct arena_other {
    struct gpu_arena arena;
    _Atomic bool mapped;   /* it can be reached */
    _Atomic bool look;     /* there is something to do about it, */
    _Atomic bool fresh;    /* and that has not begun */
    _Atomic uint32_t owed; /* so often its node has told of a change, and has no answer yet */
    int64_t until;         /* its memory is awaited until then; 0: it is not */
    bool ask;              /* and is still to be asked for */
    bool lost;             /* it was in use when its GPU was closed: it stays as it is, until the node is closed */
    uint64_t secret;
    bool wanted; /* under `lock`, as the next one */
    struct arena_share wants;
};

/* Bytes under way between a GPU and other memory. */
struct arena_copy {
    const struct gpu_place *place; /* NULL: none is under way */
    uint64_t ticket;
};

struct stage_slot {
    uint8_t *at;
    weft_gaddr addr;
    uint32_t bytes;
    uint32_t holder; /* the node it is used for, + 1; 0: it is free */
};
struct stage {
    struct stage_slot slot[STAGE_SLOTS];
    uint32_t held;
};

struct arena_request;
struct arena_job;
struct arena_piece;

/* What a node has to do for this one. */
struct arena_peer {
    struct arena_job *first, *last, *next; /* jobs in order, of these the first with something to begin; under `lock` */
    uint32_t count;                        /* of jobs; under `lock` */
    uint64_t begun;                        /* jobs ever; under `lock` */
    _Atomic uint64_t oldest;               /* number of the oldest that is not complete */
    uint32_t pieces;
    _Atomic int failure;
    _Atomic uint32_t requests;            /* of that node, here */
    _Atomic uint64_t bytes[ARENA_SPACES]; /* its arenas, as it says */
    _Atomic uint64_t kind[ARENA_SPACES];
    _Atomic int unmapped;         /* why one of them is not mapped here: the last reason */
    _Atomic uint32_t told, knows; /* so often it was told of one here, and so often it has said that it knows */
};

struct arenas {
    struct weft_node *w;
    base_spin lock;     /* lists of jobs and requests */
    base_spin stepping; /* who holds it takes a step */
    pthread_rwlock_t table_lock;
    struct gpu_arena *own[ARENA_SPACES];
    _Atomic uint64_t low, high; /* all memory of own arenas is between these, which only move apart: most local memory is outside */
    _Atomic(struct arena_other *) other; /* [size * ARENA_SPACES], NULL until there is a GPU and another node on this host */
    _Atomic uint32_t news;               /* something of them is to be looked at */
    pthread_mutex_t share_lock;          /* of what follows, and of `other` */
    struct gpu_place sharer;             /* the GPU that reaches them; no back end: there is none */
    bool share_ends;                     /* it is being closed */
    bool sharing;                        /* more is to be done */
    int share_place, share_came;         /* where owners bring memory, or a negative errno; who has come and not given yet, or -1 */
    int64_t share_until;                 /* who has come is awaited */
    char share_name[BASE_PLACE_NAME];
    struct arena_peer *peer; /* [size] */
    struct arena_piece *piece;
    uint32_t pieces; /* under way */
    struct stage asks, serves;
    struct arena_request *requests, **requests_end; /* that are being done; */
    struct arena_request *arrived, **arrived_end;   /* and new ones, under `lock` */

    int (*start)(struct arenas *c); /* carrier.c has it */
    pthread_mutex_t start_lock;
    pthread_t thread;
    _Atomic bool started, stop;
    _Atomic uint32_t bell, sleeping;
    _Atomic uint32_t active; /* jobs and requests that are not done */
};

/* --- arena.c --- */
void arena_ring(struct arenas *c); /* there is something to do */
int arena_start(struct arenas *c); /* the thread, once */
int arena_new(struct arenas *c, const struct gpu_place *place, uint64_t bytes, uint32_t *space);
int arena_alloc(struct arenas *c, uint32_t space, uint64_t bytes, weft_gaddr *out);
int arena_free(struct arenas *c, weft_gaddr addr);
/* Another node's: is there such memory? -EFAULT with a sentence. */
int arena_known(struct arenas *c, weft_gaddr addr, uint64_t bytes);
uint64_t arena_kind(const struct gpu_place *p); /* of a GPU; nodes compare them */
/* With these bytes, for a user: arena_leave() when done. -EFAULT with a sentence. Another node's: NULL, 0 where it is not reached. */
int arena_enter(struct arenas *c, weft_gaddr addr, uint64_t bytes, struct gpu_arena **out, void **at);
struct gpu_arena *arena_enter_memory(struct arenas *c, const void *p, uint64_t bytes); /* the own arena that this is memory of */
void arena_leave(struct gpu_arena *a);
bool arena_owns(struct arenas *c, const void *p);
void arena_show(const struct gpu_arena *a); /* kernels of its GPU find it from now on */
void arena_hide(const struct gpu_arena *a); /* and no more */
/* Those of a GPU, named by its table. False: operations are under way at the deadline; these stay, until arena_free_all(). */
bool arena_close_all(struct arenas *c, const void *table, int64_t deadline);
void arena_free_all(struct arenas *c);
void arena_refuse(struct arenas *c, struct gpu_arena *a);                   /* nothing new begins with it */
bool arena_unused(struct arenas *c, struct gpu_arena *a, int64_t deadline); /* and nothing is under way any more */

int arena_copy(struct arena_copy *c, const struct gpu_place *p, void *to, const void *from, uint64_t bytes);
int arena_copied(struct arena_copy *c); /* -EINPROGRESS, or how it ended */

/* --- share.c --- */
void share_heard(struct arenas *c, uint32_t from, const void *header, size_t len); /* of an arena of that node */
void share_asked(struct arenas *c, uint32_t from, const void *header, size_t len); /* to bring one of ours there */
bool share_step(struct arenas *c);                                                 /* the thread's: did anything move? */
/* A GPU was opened: arenas of others of this host are mapped for it, where no other GPU has them. Waits for it. */
void share_open(struct arenas *c, const struct gpu_place *place);
bool share_close(struct arenas *c, const struct gpu_place *place, int64_t deadline); /* false: as arena_close_all() */
/* How memory of that node's GPUs is reached, and why so. */
const char *share_way(struct arenas *c, uint32_t node, char *why, size_t room);
void share_free(struct arenas *c);

/* --- stage.c --- */
struct stage_slot *stage_take(struct weft_node *w, struct stage *s, uint32_t node, int *why); /* NULL: not now, or an error in `*why` */
void stage_give(struct stage *s, struct stage_slot *slot);
void stage_free(struct weft_node *w, struct stage *s);

/* --- owner.c --- */
void owner_asked(struct arenas *c, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len);
bool owner_step(struct arenas *c); /* did anything move? */
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
    struct gpu_arena *near_arena, *far_arena; /* NULL: the pool; or, for the far one, not reached */
    uint8_t *far_at;                          /* where this process reaches it; NULL: it does not */
    uint32_t pieces;
    int status;
    weft_op *op;
    uint32_t atomic; /* the atomic, or with `signal` what follows the bytes */
    weft_gaddr word;
    uint64_t a, b, *old;
    bool word_left; /* it is to be begun still */
};
struct arena_piece *job_table(void);
int job_begin(struct arenas *c, const struct arena_job *what, weft_op *op);
bool job_step(struct arenas *c);
void job_answered(struct arenas *c, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len);
void job_free(struct arenas *c);

#endif
