/* SPDX-License-Identifier: MIT
 *
 * gpu: devices whose kernels are members of the cluster. A back end knows one kind of device (struct gpu_backend); all else is the same
 * for all of them. Each file here calls only those before it:
 *
 *   host.c   the back end whose blocks are threads of this process
 *   cuda.c   the back end over CUDA's driver, which cuda_driver.c loads; cuda_lanes.c starts kernels there
 *   metal.c  the back end over Metal, which metal_driver.c loads; compiled, never run
 *   pci.c    what the kernel says of GPUs; unusable.c: those that are on PCI, and that no back end offers
 *   look.c   which GPUs there are
 *   arena.c  memory of GPUs in the address space, with stage.c, owner.c, job.c and carrier.c: see arena.h
 *   ring.h   rings of requests, the node's side (the kernels' side is weft/device.h); ring.c makes them
 *   work.c   persistent workers: tasks from queues to blocks, results back
 *   tasks.c  what kernels themselves ask of queues: submit, claim, renew, complete
 *   serve.c  the thread that does what kernels ask for
 *   gpu.c    opening and closing
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

/* Memory of a device that others may be given. */
struct gpu_memory {
    uint8_t *base;
    uint64_t bytes;
    uint64_t there;  /* where kernels find it */
    uint64_t handle; /* the back end's */
    int fd;          /* for other processes, and ours; -1: there is none */
};

/* Kernels that weft itself starts (span_kernels.h). */
#define GPU_FUNCTIONS_MAX 8u
struct gpu_code {
    uint32_t count;
    const char *name[GPU_FUNCTIONS_MAX];
    void (*play[GPU_FUNCTIONS_MAX])(const void *arg, uint32_t block); /* on the processor */
    const void *const *image;                                         /* for CUDA's driver; NULL there: this weft has none */
};
extern const void *const gpu_span_image;

struct gpu_backend {
    const char *name;
    bool turns; /* its kernels and the node never run at the same time (weft_gpu_config.turns) */
    /* Describes number `index` of this kind, in `*out`, which is all zeros; false: there are no more. The name, unless it sets one, is its
     * kind and number. What is usable can be opened: the functions below are there. */
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
    int (*check)(void *device);                                          /* does it still work? May be NULL: always */
    /* An arena's memory. `bytes` becomes what was made; -ENOMEM when there is not so much. Of another process: from its descriptor, which
     * stays the caller's. */
    int (*memory_open)(void *device, uint64_t bytes, struct gpu_memory *out);
    int (*memory_import)(void *device, int fd, uint64_t bytes, struct gpu_memory *out);
    void (*memory_close)(void *device, struct gpu_memory *m);
    /* Begin to copy between memory of the device and any other. copied() is called until it says something else than -EINPROGRESS. */
    int (*copy)(void *device, void *to, const void *from, size_t bytes, uint64_t *ticket);
    int (*copied)(void *device, uint64_t ticket);
    /* One at a time for a word. */
    int (*atomic)(void *device, void *word, uint32_t kind, uint64_t a, uint64_t b, uint64_t *old);
    /* Kernels of weft's own. All seven are NULL where the back end starts none. What is put on a lane is done in that order, beside what is
     * on other lanes. A lane is used by one thread at a time. */
    int (*load)(void *device, const struct gpu_code *code, void **module);
    void (*unload)(void *device, void *module);
    int (*lane_open)(void *device, void **lane);
    void (*lane_close)(void *device, void *lane);
    int (*lane_copy)(void *device, void *lane, void *to, const void *from, size_t bytes);
    /* Launch a kernel, after the last one of the lane `after` if there is such a lane. `arg` is read before this returns. */
    int (*launch)(void *device, void *lane, void *after, void *module, uint32_t function, uint32_t blocks, uint32_t threads, void *arg);
    int (*lane_done)(void *device, void *lane); /* the last launch: 0 it has ended, -EINPROGRESS, or an error */
    /* May be NULL: kernels are started by the program itself. */
    int (*run)(void *device, const weft_device *d, weft_gpu_kernel kernel, uint32_t blocks, void *arg);
    /* The same with a kernel of the program's text; `there` is where kernels find their weft_device. */
    int (*run_text)(void *device, const void *there, const char *text, const char *kernel, uint32_t blocks, uint32_t threads, void *arg,
                    size_t bytes);
};
extern const struct gpu_backend gpu_host, gpu_cuda, gpu_metal, gpu_unusable;

extern const char gpu_metal_text[]; /* weft/device.metal.h as one text (metal_text.py) */

/* --- look.c --- */
/* The GPU of that name, which is usable; NULL: the first that is. -ENODEV, with a sentence: there is none. */
int gpu_choose(const char *name, const struct gpu_backend **backend, uint32_t *index);

/* An open GPU, as its arenas know it. */
struct gpu_place {
    const struct gpu_backend *backend;
    void *device;
    uint64_t *table; /* the kernels' weft_device.arena, in the device's memory */
};

/* What kernels ask the program for: by number, of all GPUs of a node. */
struct gpu_service {
    _Atomic(weft_gpu_service_fn) fn; /* set last, once */
    void *arg;
};

/* A node's GPUs: its arenas, and what has to stay until its links are closed. */
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
void *gpu_arena_pointer(struct arenas *c, weft_gaddr addr, uint64_t bytes); /* the GPU's address; NULL: this process does not reach it */
void *gpu_arena_reached(struct arenas *c, const struct gpu_place *place, weft_gaddr addr, uint64_t bytes); /* by kernels of that GPU */
int gpu_arenas_share(struct arenas *c, const struct gpu_place *place); /* a GPU was opened; others' of this host */
/* Those of that GPU. False: operations on some are under way, which need the GPU until gpu_arenas_free(). */
bool gpu_arenas_close(struct arenas *c, const struct gpu_place *place, int64_t deadline);
void gpu_arenas_end(struct arenas *c);  /* ends the thread */
void gpu_arenas_free(struct arenas *c); /* no thread of weft's runs any more, and the links are closed */

/* --- work.c --- */
#define GPU_WORKERS_MAX 64u
#define GPU_QUEUES      64u /* that kernels name by number */

struct gpu_ring;
struct gpu_request;
struct gpu_tasks;
/* The workers of a GPU, by number. None is freed while the GPU is open: its kernels and the thread that serves it may name any. */
struct gpu_workers {
    struct weft_node *w;
    const struct gpu_backend *backend;
    void *device;
    struct gpu_service *services; /* [WEFT_GPU_SERVICES] */
    pthread_mutex_t lock;         /* of opening and closing */
    uint32_t count;
    _Atomic(struct weft_gpu_worker *) worker[GPU_WORKERS_MAX];
    _Atomic(struct gpu_tasks *) tasks;       /* NULL: kernels have been given no queue */
    _Atomic(weft_queue *) queue[GPU_QUEUES]; /* each set once; the handle stays until the node closes */
};
int gpu_work_open(struct gpu_workers *all, weft_queue *q, const weft_gpu_worker_config *config, struct weft_gpu_worker **out);
/* The serving thread's: a block has done a task. */
int gpu_work_done(struct gpu_workers *all, const struct gpu_request *q);
void gpu_work_end(struct gpu_workers *all);  /* closes those that are open; kernels and the serving thread may go on */
void gpu_work_free(struct gpu_workers *all); /* they do not any more */

/* --- tasks.c --- */
/* Memory of this node's pool that a kernel names: the processor reaches it. An arena's it may not: reading it would kill the node. */
int gpu_pool_memory(struct weft_node *w, uint64_t addr, uint64_t bytes, void **out);
int gpu_tasks_queue(struct gpu_workers *all, weft_queue *q, uint32_t *number);
int gpu_tasks_ask(struct gpu_workers *all, struct gpu_request *q); /* the serving thread's: `op` tells of its end */
void gpu_tasks_end(struct gpu_workers *all);                       /* the serving thread has ended */

/* --- serve.c --- */
struct gpu_server;
/* The back end's check(), where there is one, is asked from time to time while no request comes, and what it says is logged once.
   `notice` is what kernels read (weft_device.notice): the thread writes there which nodes are gone. */
int gpu_serve(struct gpu_server **out, struct gpu_workers *workers, struct gpu_ring *rings, uint32_t count, _Atomic uint64_t *notice,
              bool turns);
/* With `turns` it looks at the rings only when it is asked, after a kernel has ended, until all is done: gpu_serve_turn(), which returns
 * the first error of a request without an answer. The next kernel may run when gpu_serve_wait() is 0. Both by one thread at a time. */
int gpu_serve_turn(struct gpu_server *s, int64_t deadline);
int gpu_serve_wait(struct gpu_server *s, int64_t deadline);
/* Does what has been asked for, at most until `deadline`, and ends. False: operations are under way still, which write to `rings`. */
bool gpu_serve_end(struct gpu_server *s, int64_t deadline);
void gpu_serve_stat(const struct gpu_server *s, weft_gpu_stats *out);

/* --- gpu.c --- */
int gpu_open(struct weft_node *w);
void gpu_end(struct weft_node *w);   /* after that, before the progress thread ends */
void gpu_leave(struct weft_node *w); /* closes those that are open; before the node flushes what it has sent */

#endif
