/* SPDX-License-Identifier: MIT
 *
 * GPUs whose kernels use the cluster's memory, messages and queues. A back end (struct gpu_backend) drives one kind of device. Each file
 * calls only the files listed before it:
 *
 *   host.c   the back end whose blocks are threads of this process
 *   cuda.c   the back end over CUDA's driver; cuda_driver.c loads the driver, cuda_lanes.c launches weft's own kernels on it
 *   metal.c  the back end over Metal, which metal_driver.c loads; compiled, never run
 *   pci.c    what the system reports about GPUs on PCI; unusable.c lists those that no back end offers
 *   look.c   lists the GPUs of all back ends
 *   arena.c  memory of GPUs in the address space, with rdma.c, views.c, share.c, stage.c, owner.c, job.c and carrier.c: see arena.h
 *   ring.h   the node's side of rings of requests (the kernels' side is weft/device.h); ring.c makes the rings
 *   work.c   persistent workers: they bring tasks from queues to blocks, and results back; work_open.c opens and closes them
 *   tasks.c  requests of kernels to queues: submit, claim, renew, complete; the arrays of such a request may be in arenas
 *   record.c records of kernels that are in an arena
 *   serve.c  the serving thread, which does the requests of kernels
 *   gpu.c    opening and closing a GPU (handle.h); calls.c has the program's other calls on it
 */
#ifndef WEFT_GPU_ROOM_H
#define WEFT_GPU_ROOM_H

#include "fabric/fabric.h"
#include "weft/device.h"
#include "weft/gpu.h"
#include "weft/queue.h"

#define GPU_RINGS_DEFAULT 8u
#define GPU_RINGS_MAX     256u
#define GPU_SLOTS_DEFAULT 4096u
#define GPU_SLOTS_MAX     65536u

/* Memory of a device that other processes may map. */
struct gpu_memory {
    uint8_t *base;
    uint64_t bytes;
    uint64_t there;  /* the memory's address for kernels */
    uint64_t handle; /* the back end's own handle */
    int fd;          /* a descriptor from which other processes can map the memory; this process owns the descriptor; -1: none */
};

/* Kernels that weft itself launches (span_kernels.h). */
#define GPU_FUNCTIONS_MAX 8u
struct gpu_code {
    uint32_t count;
    const char *name[GPU_FUNCTIONS_MAX];
    void (*play[GPU_FUNCTIONS_MAX])(const void *arg, uint32_t block); /* the kernels as functions for the processor */
    /* the code for CUDA's driver; *image is NULL if weft was built without it */
    const void *const *image;
};
extern const void *const gpu_span_image;

struct gpu_backend {
    const char *name;
    bool turns; /* kernels of this back end and the node never run at the same time (weft_gpu_config.turns) */
    /* Describes GPU number `index` of this kind in `*out`, which the caller has set to zeros. Returns false if there are fewer GPUs. If
     * this function leaves the name empty, look.c sets it. */
    bool (*look)(uint32_t index, weft_gpu_info *out);
    /* returns why there is no GPU of this kind; may be NULL: there is always a GPU, or the reason is not known */
    const char *(*why)(void);
    /* The following functions return a negative errno with base_error(). `*device` is the back end's own state, which open() sets. */
    int (*open)(uint32_t index, void **device);
    void (*close)(void *device);
    /* Lets kernels access memory of this process. `*there` becomes the memory's address for kernels. */
    int (*attach)(void *device, void *memory, size_t bytes, uint64_t *there);
    void (*detach)(void *device, void *memory); /* no kernel may use the memory any more */
    /* Call this instead of detach() for memory that kernels may still use, before its addresses become invalid. May be NULL. */
    void (*forget)(void *device, void *memory);
    /* Allocates zeroed memory of the device. */
    int (*alloc)(void *device, size_t bytes, void **memory);
    void (*free)(void *device, void *memory);
    int (*fill)(void *device, void *to, const void *from, size_t bytes); /* copies to the device */
    int (*check)(void *device); /* checks whether the device still works; may be NULL: it always works */
    /* Waits until no kernel that this process has started runs on the device. 0: none runs, or the device has failed, so that none can.
     * -ETIMEDOUT: some still run at the deadline. Another error: some may still run. May be NULL: run() and run_text() start all kernels,
     * and return when these have ended. */
    int (*idle)(void *device, int64_t deadline);
    /* memory_open() allocates out->bytes for an arena, or returns -ENOMEM if the GPU has too little memory. memory_import() maps another
     * process's memory from a descriptor, which the caller closes. */
    int (*memory_open)(void *device, uint64_t bytes, struct gpu_memory *out);
    int (*memory_import)(void *device, int fd, uint64_t bytes, struct gpu_memory *out);
    void (*memory_close)(void *device, struct gpu_memory *m);
    /* Gives kernels of another GPU of this process access to the memory, at the same address. Returns an error if they cannot access it.
     * NULL if kernels of other GPUs never can. */
    int (*memory_allow)(void *device, const struct gpu_memory *m);
    /* Returns a dmabuf descriptor of an arena's memory for RDMA devices, which the caller closes, or an error. May be NULL. */
    int (*memory_dmabuf)(void *device, const struct gpu_memory *m);
    /* Makes data that an RDMA device has written to the GPU's memory visible to kernels and copies of this GPU or, with `all`, of all GPUs.
     * May be NULL: the data is visible without a call. */
    int (*memory_settle)(void *device, bool all);
    /* Begins a copy between memory of the device and other memory. The caller then calls copied() until it does not return -EINPROGRESS. */
    int (*copy)(void *device, void *to, const void *from, size_t bytes, uint64_t *ticket);
    int (*copied)(void *device, uint64_t ticket);
    /* Carries out an atomic on a word in the device's memory. Callers make sure that only one atomic at a time runs on a word. */
    int (*atomic)(void *device, void *word, uint32_t kind, uint64_t a, uint64_t b, uint64_t *old);
    /* weft's own kernels. All seven members are NULL if the back end cannot launch them. Launches on one lane run in order, and after the
     * lane's earlier copies. A copy does not wait for the lane's kernels, so the caller begins a copy when these kernels have ended. Lanes
     * are independent of each other. One thread at a time uses a lane. */
    int (*load)(void *device, const struct gpu_code *code, void **module);
    void (*unload)(void *device, void *module);
    int (*lane_open)(void *device, void **lane);
    void (*lane_close)(void *device, void *lane);
    int (*lane_copy)(void *device, void *lane, void *to, const void *from, size_t bytes);
    /* Launches a kernel, and copies `arg`. If `after` is not NULL, the kernel starts when the last kernel of lane `after` has ended. */
    int (*launch)(void *device, void *lane, void *after, void *module, uint32_t function, uint32_t blocks, uint32_t threads, void *arg);
    int (*lane_done)(void *device, void *lane); /* returns 0 if the last launch has ended, -EINPROGRESS, or an error */
    /* Runs a kernel of the program, given as a C function. NULL if the program itself starts its kernels. */
    int (*run)(void *device, const weft_device *d, weft_gpu_kernel kernel, uint32_t blocks, void *arg);
    /* Runs a kernel of the program, given as text. `there`: the address at which kernels find their weft_device. */
    int (*run_text)(void *device, const void *there, const char *text, const char *kernel, uint32_t blocks, uint32_t threads, void *arg,
                    size_t bytes);
};
extern const struct gpu_backend gpu_host, gpu_cuda, gpu_metal, gpu_unusable;

extern const char gpu_metal_text[]; /* weft/device.metal.h as one text (metal_text.py) */

/* --- look.c --- */
/* Finds the usable GPU of that name; with NULL, the first usable GPU. Returns -ENODEV if there is no such GPU. */
int gpu_choose(const char *name, const struct gpu_backend **backend, uint32_t *index);
/* Writes the name of the GPU into `out`, unless `out` has one already. */
void gpu_name_of(const struct gpu_backend *b, uint32_t index, char *out, size_t room);

/* An open GPU, as the files about arenas see it. */
struct gpu_place {
    const struct gpu_backend *backend;
    void *device;
    uint64_t *table;      /* the kernels' weft_device.arena, in the device's memory */
    const uint64_t *near; /* [BASE_CPU_WORDS]: as gpu_workers.near */
    uint32_t number;      /* index in the node's table of open GPUs (views.c) */
    bool listed;          /* the GPU is in that table */
};

/* A service of the program: kernels call it by its number. All GPUs of a node share the services. */
struct gpu_service {
    _Atomic(weft_gpu_service_fn) fn; /* set once, after the other members */
    void *arg;
};

/* A node's arenas, and all else of this folder that must exist until the node's links are closed. */
struct arenas;
struct gpus {
    pthread_mutex_t lock;
    weft_gpu *left;
    struct arenas *arenas;
    struct gpu_service services[WEFT_GPU_SERVICES];
};
static inline struct arenas *gpu_arenas_of(const struct weft_node *w)
{
    return ((struct gpus *)w->gpus)->arenas;
}

/* --- carrier.c --- */
int gpu_arenas_new(struct weft_node *w, struct arenas **out);
int gpu_arena_open(struct arenas *c, const struct gpu_place *place, uint64_t bytes, uint32_t *space);
int gpu_arena_alloc(struct arenas *c, uint32_t space, uint64_t bytes, weft_gaddr *out);
/* Returns the address in this process of the memory at `addr`; NULL: it is not mapped. The arena stays open until
 * gpu_arena_release(held). */
struct gpu_arena;
void *gpu_arena_hold(struct arenas *c, weft_gaddr addr, uint64_t bytes, struct gpu_arena **held);
void gpu_arena_release(struct gpu_arena *held);
/* Returns the address of the memory at `addr` for kernels of the GPU at `place`; NULL: these kernels cannot access it. */
void *gpu_arena_reached(struct arenas *c, const struct gpu_place *place, weft_gaddr addr, uint64_t bytes);
/* Call this when a GPU was opened. It gives the GPU's kernels access to the arenas of this node and of other nodes of this host, as far as
 * possible. Sets place->number. */
int gpu_arenas_share(struct arenas *c, struct gpu_place *place);
void gpu_arenas_leave(struct arenas *c); /* the node is being closed: all its GPUs are closed now */
/* Closes the arenas of that GPU. `quiet`: no kernel uses them any more; otherwise their memory stays. Returns false if some memory stays,
 * or operations on it are still under way: these need the GPU until gpu_arenas_free(). */
bool gpu_arenas_close(struct arenas *c, const struct gpu_place *place, bool quiet, int64_t deadline);
void gpu_arenas_end(struct arenas *c); /* ends the carrier thread */
/* Call it after all threads of weft have ended and the links are closed. Without `quiet` the memory of the arenas is never freed. */
void gpu_arenas_free(struct arenas *c, bool quiet);

/* --- work.c and work_open.c --- */
#define GPU_WORKERS_MAX 64u
#define GPU_QUEUES      64u /* maximum number of queues of a GPU; kernels give a queue's number */

struct gpu_ring;
struct gpu_request;
struct gpu_tasks;
/* The workers of a GPU, by number. They are not freed while the GPU is open, because its kernels and the serving thread may use them. */
struct gpu_workers {
    struct weft_node *w;
    const struct gpu_backend *backend;
    void *device;
    char name[16];                 /* the GPU's name, for messages */
    struct gpu_service *services;  /* [WEFT_GPU_SERVICES] */
    uint64_t near[BASE_CPU_WORDS]; /* the processors on the GPU's NUMA node, where all threads of the GPU run; all 0: not known */
    pthread_mutex_t lock;          /* held for opening and closing */
    uint32_t count;
    _Atomic(struct weft_gpu_worker *) worker[GPU_WORKERS_MAX];
    _Atomic(struct gpu_tasks *) tasks;       /* NULL: kernels can use no queue yet */
    _Atomic(weft_queue *) queue[GPU_QUEUES]; /* each entry is set once, and stays valid until the node closes */
};
int gpu_work_open(struct gpu_workers *all, weft_queue *q, const weft_gpu_worker_config *config, struct weft_gpu_worker **out);
/* Called by the serving thread: a block has completed a task. */
int gpu_work_done(struct gpu_workers *all, const struct gpu_request *q);
/* Called by the serving thread before gpu_work_done(): if the request at `slot` completes a task, prefetches this node's entry for the
 * task. */
void gpu_work_fetch(struct gpu_workers *all, const struct gpu_ring *r, uint64_t slot);
/* Closes the open workers. At the deadline, tasks that are not done go back to their queues. Kernels and the serving thread may still be
 * running. */
void gpu_work_end(struct gpu_workers *all, int64_t deadline);
void gpu_work_free(struct gpu_workers *all); /* frees the workers, after kernels and the serving thread have ended */

/* --- tasks.c --- */
/* Finds the memory at an address in this node's pool that a kernel has given. Refuses addresses in arenas, because the processor may be
 * unable to access arenas. */
int gpu_pool_memory(struct weft_node *w, uint64_t addr, uint64_t bytes, void **out);
int gpu_tasks_queue(struct gpu_workers *all, weft_queue *q, uint32_t *number);
/* called by the serving thread; when the request is done, its `op` is completed */
int gpu_tasks_ask(struct gpu_workers *all, struct gpu_request *q);
void gpu_tasks_end(struct gpu_workers *all); /* call it when the serving thread has ended */

/* --- record.c; called by the serving thread --- */
struct gpu_record;
struct gpu_records { /* records of requests that are not complete, oldest first */
    struct gpu_record *first, **end;
};
/* Begins a request whose record is in an arena of this node. */
int gpu_record_begin(struct weft_node *w, struct gpu_records *list, struct gpu_request *q, const struct gpu_service *service);
bool gpu_records_step(struct weft_node *w, struct gpu_records *list); /* takes a step of all records; false: nothing was to do */
/* returns -EINPROGRESS, or the result, but only once: the request then ends */
int gpu_record_result(struct weft_node *w, struct gpu_request *q);

/* --- serve.c --- */
struct gpu_server;
/* Starts the serving thread. It writes to `notice` (weft_device.notice) which nodes are gone. While no request arrives, the thread calls
 * the back end's check() from time to time, and logs the first failure. */
int gpu_serve(struct gpu_server **out, struct gpu_workers *workers, struct gpu_ring *rings, uint32_t count, _Atomic uint64_t *notice,
              bool turns);
/* With `turns`, the thread reads the rings only in gpu_serve_turn(), which is called after a kernel has ended. gpu_serve_turn() waits until
 * all requests are done, and returns the first error of a request without an answer. The next kernel may run when gpu_serve_wait() has
 * returned 0. One thread at a time calls these two functions. */
int gpu_serve_turn(struct gpu_server *s, int64_t deadline);
int gpu_serve_wait(struct gpu_server *s, int64_t deadline);
/* Ends the serving thread when all requests that have arrived are done, or at `deadline`. Returns false if operations that write to `rings`
 * are still under way. */
bool gpu_serve_end(struct gpu_server *s, int64_t deadline);
void gpu_serve_stat(const struct gpu_server *s, weft_gpu_stats *out);

/* --- gpu.c --- */
int gpu_open(struct weft_node *w);
void gpu_end(struct weft_node *w);   /* call it after gpu_leave(), before the progress thread ends */
void gpu_leave(struct weft_node *w); /* closes the open GPUs; call it before the node flushes what it has sent */

#endif
