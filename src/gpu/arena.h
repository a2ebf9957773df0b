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

enum { ARENA_HANDLER_ASK = FAB_ROOM_HANDLERS(2), ARENA_HANDLER_ANSWER, ARENA_HANDLER_SPACE, ARENA_HANDLER_TOLD };

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

/* To all nodes, when an arena is opened and closed. Each says that it knows. */
struct arena_space {
    uint64_t space, bytes; /* 0 bytes: there is none any more */
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
    _Atomic bool mapped;    /* another node's: it can be reached */
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
    _Atomic uint32_t told, knows;         /* so often it was told of one here, and so often it has said that it knows */
};

struct arenas {
    struct weft_node *w;
    base_spin lock;     /* lists of jobs and requests */
    base_spin stepping; /* who holds it takes a step */
    pthread_rwlock_t table_lock;
    struct gpu_arena *own[ARENA_SPACES];
    struct gpu_arena *other; /* [size * ARENA_SPACES], NULL until there is a GPU */
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
void arena_heard(struct arenas *c, uint32_t from, const void *header, size_t len); /* of an arena of that node */
/* With these bytes, for a user: arena_leave() when done. -EFAULT with a sentence. Another node's: NULL, 0 where it is not reached. */
int arena_enter(struct arenas *c, weft_gaddr addr, uint64_t bytes, struct gpu_arena **out, void **at);
struct gpu_arena *arena_enter_memory(struct arenas *c, const void *p, uint64_t bytes); /* the own arena that this is memory of */
void arena_leave(struct gpu_arena *a);
bool arena_owns(struct arenas *c, const void *p);
void arena_show(const struct gpu_arena *a); /* kernels of its GPU find it from now on */
/* No arena of that device is used any more, or the deadline is over. */
void arena_close_all(struct arenas *c, const void *device, int64_t deadline);

int arena_copy(struct arena_copy *c, const struct gpu_place *p, void *to, const void *from, uint64_t bytes);
int arena_copied(struct arena_copy *c); /* -EINPROGRESS, or how it ended */

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
