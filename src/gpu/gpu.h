/* SPDX-License-Identifier: MIT
 *
 * gpu: devices whose kernels are members of the cluster. A back end knows one kind of device (struct gpu_backend); all else is the same
 * for all of them. Each file here calls only those before it:
 *
 *   host.c   the back end whose blocks are threads of this process
 *   cuda.c   the back end over CUDA's driver
 *   ring.c   rings of requests, the node's side (the kernels' side is weft/device.h)
 *   serve.c  the thread that does what kernels ask for
 *   gpu.c    opening and closing
 */
#ifndef WEFT_GPU_ROOM_H
#define WEFT_GPU_ROOM_H

#include "fabric/fabric.h"
#include "weft/device.h"
#include "weft/gpu.h"

#define GPU_RINGS_DEFAULT 8u
#define GPU_RINGS_MAX     256u
#define GPU_SLOTS_DEFAULT 4096u
#define GPU_SLOTS_MAX     65536u

struct gpu_backend {
    const char *name;
    /* Describes number `index` of this kind; false: there are no more. */
    bool (*look)(uint32_t index, weft_gpu_info *out);
    const char *(*why)(void); /* there is none of this kind, as a sentence; NULL: there is always one, or nobody knows */
    /* The rest may fail, with a sentence. `*device` is the back end's own state, NULL until open() has set it. */
    int (*open)(uint32_t index, void **device);
    void (*close)(void *device);
    /* From now on kernels find memory of this process at the address that is given back. */
    int (*attach)(void *device, void *memory, size_t bytes, uint64_t *there);
    void (*detach)(void *device, void *memory);
    /* Memory of the device: zeros. */
    int (*alloc)(void *device, size_t bytes, void **memory);
    void (*free)(void *device, void *memory);
    int (*fill)(void *device, void *to, const void *from, size_t bytes); /* copy there */
    /* May be NULL: kernels are started by the program itself. */
    int (*run)(void *device, const weft_device *d, weft_gpu_kernel kernel, uint32_t blocks, void *arg);
};
extern const struct gpu_backend gpu_host, gpu_cuda;

/* --- ring.c --- */

/* A request that has arrived, until it is done. It has the number of its first slot. */
struct gpu_request {
    uint32_t kind, slots;
    bool answer; /* is wanted */
    int status;  /* how it ended when it was begun; -EINPROGRESS: `op` tells of its end, or `flush` */
    uint64_t low[3], high[3];
    uint64_t value; /* what an atomic found */
    weft_op op;
    struct fab_flush flush;
};

struct gpu_ring {
    weft_device_slot *slots;   /* written by kernels */
    weft_device_cell *answers; /* written by this node */
    _Atomic uint64_t *taken;   /* the same */
    uint64_t mask;
    uint64_t head;                /* slots read so far */
    uint64_t done;                /* requests before this slot are done */
    struct gpu_request *requests; /* as many as slots; one that was used last is used next, and is still in the cache */
    struct gpu_request **spare;   /* those that are free, a stack */
    uint32_t spares;
    struct gpu_request **under_way; /* by first slot: those from `done` to `head` */
    int error;                      /* the first one of a request without an answer since the last flush */
    void *memory;                   /* of slots, answers and taken */
    size_t bytes;
};

int gpu_ring_open(struct gpu_ring *r, uint32_t slots);
void gpu_ring_close(struct gpu_ring *r);
/* The next request, if it has arrived as a whole; NULL: not yet, or too many are under way. It stays the next one until
 * gpu_ring_keep() or gpu_ring_end(). -EPROTO in `*why`: what has arrived is none. */
struct gpu_request *gpu_ring_next(struct gpu_ring *r, int *why);
/* It was taken, and is under way. */
void gpu_ring_keep(struct gpu_ring *r, struct gpu_request *q);
/* It was taken and is done, with status `q->status`, and none before it is under way. */
void gpu_ring_end(struct gpu_ring *r, struct gpu_request *q);
/* Kernels are told which slots were read. */
void gpu_ring_publish(struct gpu_ring *r);
/* The oldest request that is under way; NULL: none is. */
static inline struct gpu_request *gpu_ring_oldest(struct gpu_ring *r)
{
    return r->done == r->head ? NULL : r->under_way[r->done & r->mask];
}
/* The oldest is done: its answer, where one is wanted; else an error is kept for the next flush. */
void gpu_ring_done(struct gpu_ring *r, int status);

/* --- serve.c --- */
struct gpu_server;
int gpu_serve(struct gpu_server **out, struct weft_node *w, struct gpu_ring *rings, uint32_t count);
/* Does what has been asked for, at most until `deadline`, and ends. False: operations are under way still, which write to `rings`. */
bool gpu_serve_end(struct gpu_server *s, int64_t deadline);
void gpu_serve_stat(const struct gpu_server *s, weft_gpu_stats *out);

/* --- gpu.c --- */
int gpu_open(struct weft_node *w);
void gpu_leave(struct weft_node *w); /* closes those that are open; before the node flushes what it has sent */

#endif
