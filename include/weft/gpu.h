/* SPDX-License-Identifier: MIT
 *
 * GPUs: their kernels read and write the memory of all nodes, by the calls of weft/device.h.
 *
 * A GPU is opened for a node. Its kernels find the pools of this host's nodes by the same addresses as the processor, and hand all else to
 * the node over rings; one thread of the node serves them. There is always one GPU: `host`, whose blocks are threads of this process. It
 * runs kernels that are C functions, by weft_gpu_run(). Of an NVIDIA GPU (`cuda`) the program starts the kernels itself, by CUDA, in the
 * device's primary context, and gives them weft_gpu_device(). Kernels of an Apple GPU (`metal`; compiled, never run) are text, for
 * weft_gpu_run_text().
 */
#ifndef WEFT_GPU_H
#define WEFT_GPU_H

#include "device.h"
#include "queue.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_gpu weft_gpu;

/* How near an RDMA device is to a GPU, by the deepest PCI bridge that both are below. */
enum weft_gpu_distance {
    WEFT_GPU_NO_RDMA,     /* there is none on PCI */
    WEFT_GPU_SAME_SWITCH, /* below one PCIe switch: data between them does not pass through a processor */
    WEFT_GPU_SAME_ROOT,   /* below one host bridge */
    WEFT_GPU_SAME_NODE,   /* at one NUMA node */
    WEFT_GPU_OTHER_NODE
};

/* A GPU of this machine. */
typedef struct weft_gpu_info {
    char name[16];                        /* the name for weft_gpu_config.name: "host", "cuda:0"; its PCI address if no driver offers it */
    char model[96];                       /* the model, as its driver names it */
    uint64_t memory_bytes;                /* 0: unknown */
    char pci[16];                         /* "0000:c1:00.0"; "": not on a PCI bus */
    uint32_t pcie_generation, pcie_lanes; /* of its link now, which may be slower while it is idle; 0: not known */
    uint32_t pcie_generation_most, pcie_lanes_most;
    bool usable;
    char why[160];          /* the reason, if it is not usable */
    char remedy[160];       /* what to do about that; "": `why` says it, or nothing helps */
    bool external;          /* behind a hot-plug port, such as Thunderbolt's */
    uint32_t rdma_distance; /* enum weft_gpu_distance */
    char rdma[64];          /* the nearest RDMA device; "": there is none on PCI */
    uint64_t nvlink_peers;  /* bit i: cuda:i, over NVLink */
    char no_rdma[160];      /* why RDMA devices cannot access the memory of its arenas; "": they can, if they take dmabufs */
} weft_gpu_info;

/* Describe the GPU with that number, counted from 0: first the usable ones, then those that are on PCI and that no driver offers, with the
   reason; `host` is the last. `bytes` is sizeof *out; fields that this library does not know are
   set to 0.
   Errors: -ENOENT there are fewer GPUs. */
WEFT_API int weft_gpu_look(uint32_t index, weft_gpu_info *out, size_t bytes);

typedef struct weft_gpu_config {
    size_t bytes;     /* sizeof(weft_gpu_config) */
    const char *name; /* "cuda:0", "host"; NULL: the first usable one */
    uint32_t rings;   /* rings of requests, at most 256; 0: 8. One ring for every few blocks is best */
    uint32_t slots;   /* slots of a ring, a power of two, at most 65536; 0: 4096. A request takes one or two */
    uint32_t turns;   /* 1: kernels and the node take turns, as always with Metal (weft_gpu_run_text()); then there are no workers */
} weft_gpu_config;

/* Open a GPU for this node. `config` may be NULL. weft_gpu_close() or weft_close() closes it.
   Errors: -EINVAL a setting or `config->bytes` is wrong; -E2BIG `config` has fields set that this library does not know; -ENODEV there is
   no such GPU, or it is not usable; -ENOSPC the node has 64 GPUs open; -ENOMEM no memory, on the GPU or on the host; -EIO its driver has
   failed; -EAGAIN no thread can be started to serve it; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_open(weft_node *w, const weft_gpu_config *config, weft_gpu **out);

/* Close the GPU. The call closes its workers, ends the waits of kernels of weft_gpu_run(), waits for these kernels, and does the requests
 * that kernels have made, for up to the node's deadline. No other kernel may use the GPU any more. Operations that are still under way
 * then, for example to a node that is stopped, keep their memory until weft_close(). NULL is allowed. weft_close() closes the GPUs that are
 * open. Errors: -EINVAL it is closed already; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_close(weft_gpu *g);

/* The argument for kernels of the GPU: a pointer to the device's memory, valid until the GPU is closed. */
WEFT_API const weft_device *weft_gpu_device(weft_gpu *g);

/* Open an arena: memory of the GPU that has addresses of the cluster, in a space of this node from 1 to 15. It is closed with the GPU,
   after the operations that other nodes have under way on it have ended, or the node's deadline has passed. All operations of weft/fabric.h
   take its addresses, and so do the calls of kernels. The local memory of puts and gets may also be in an arena of this node
   (weft_gpu_ptr()), but not in one of another node.
   Atomics on its words are done by its node, one at a time. They are atomic against each other, but not against kernels that change the
   word themselves.
   A node of the same host that has a GPU of the same kind open maps the arena: it copies there directly, and kernels of that GPU load and
   store there (weft_device_ptr()). So do kernels of further GPUs of both nodes, if their driver gives them access to the memory (over
   NVLink, for example). The arena stays mapped, because kernels may still use it, until its node opens another arena in that space or the
   GPUs there are closed; only then is its memory free again. Any other node sends messages to the owner.
   Over rc, the owner's RDMA device then moves large data between the arena and the other node's pool, if it takes the GPU's memory as a
   dmabuf (WEFT_GPU_RDMA=no: never); else large data goes through both pools. weft_link_stats.arena_way and arena_why report which way is
   used, and why.
   The call tells all nodes about the arena, and waits until they have confirmed that, and mapped it, up to the node's deadline.
   weft_gpu_open() waits until the existing arenas are mapped, for at most 10 s. weft_fence() may wait for operations on GPUs' memory that
   are under way to that node, up to the node's deadline; in a handler it then fails with -EDEADLK.
   Errors: -EINVAL 0 bytes, or too many for an address; -ENOMEM the GPU has not so much memory; -ENOSPC there are 15 arenas; -EIO its driver
   has failed; -EAGAIN no thread can be started; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_arena(weft_gpu *g, size_t bytes, uint32_t *space);

/* Allocate in an arena of this node, as weft_alloc() does in the pool; weft_free() frees it.
 * Errors: -EINVAL 0 bytes; -EFAULT there is no such arena; -ENOMEM no room (all else stays usable). */
WEFT_API int weft_gpu_alloc(weft_gpu *g, uint32_t space, size_t bytes, weft_gaddr *out);

/* The pointer by which kernels of the GPU reach the memory of an address, as weft_device_ptr(); NULL if they cannot. With Metal it is the
   processor's pointer to that memory: only weft_device_ptr() in a kernel gives the GPU's. */
WEFT_API void *weft_gpu_ptr(weft_gpu *g, weft_gaddr addr, size_t bytes);

typedef void (*weft_gpu_kernel)(const weft_device *d, void *arg);

/* Run a kernel on the GPU `host`, and wait for its end. Each of `blocks` blocks (at most 1024) is a thread with a weft_device of its own.
   Where kernels and the node take turns (weft_gpu_config.turns), requests are done after the kernel's end, and it returns the first error
   of a request that had no op, as weft_gpu_run_text() does. Errors: -ENOTSUP another kind of GPU; -EINVAL no kernel, a wrong number of
   blocks, or the GPU is closed; -EAGAIN so many threads cannot be started (no block has run); -ENOMEM no memory for so many blocks;
   -ETIMEDOUT with turns: requests are not done; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_run(weft_gpu *g, weft_gpu_kernel kernel, uint32_t blocks, void *arg);

/* Compile a kernel in Metal's language from its text, run it, and wait for its end. The text needs no #include: weft puts the text of
   weft/device.metal.h, which describes such kernels, before it. `blocks` threadgroups of `threads` threads are run. The kernel's argument
   (buffer 1) is a copy of the `bytes` bytes at `arg`, which is copied back at the end. Compiled for macOS, never run.

   Apple lets a processor read what a kernel has written only after the kernel has ended. So the node and kernels take turns: the node
   begins the requests of a kernel when the kernel has ended, and this call returns when they are done, or when the node's deadline has
   passed; in the second case the next call waits for them first. It returns the first error of a request that had no op. One kernel runs
   at a time.
   Errors: -ENOTSUP another kind of GPU; -EINVAL no text, no kernel of that name, or it does not compile; -ENOMEM no memory; -EIO the GPU
   has failed; -ETIMEDOUT requests are not done; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_run_text(weft_gpu *g, const char *text, const char *kernel, uint32_t blocks, uint32_t threads, void *arg,
                               size_t bytes);

/* --- services: functions of the program that kernels call --- */

#define WEFT_GPU_SERVICES 64u

/* A call of a kernel, until it is answered. */
typedef struct weft_gpu_call weft_gpu_call;
/* A kernel of this node has handed over `record` (WEFT_DEVICE_RECORD_BYTES, in this node's pool, aligned to 8; of a record in an arena it
   is a copy, which goes back with the answer). Kernels may change it meanwhile: read it once, and check everything. Called by the thread
   that serves the GPU, which it must not block; it answers by weft_gpu_answer(), at once or later. */
typedef void (*weft_gpu_service_fn)(weft_node *w, void *record, weft_gpu_call *call, void *arg);

/* Call `fn` from now on for records with that number, which is below WEFT_GPU_SERVICES, until weft_close().
   Errors: -EINVAL no such number, or no function; -EALREADY the number has a service. */
WEFT_API int weft_gpu_service(weft_node *w, uint32_t number, weft_gpu_service_fn fn, void *arg);

/* Answer a call, once, from any thread, before weft_close(). The kernel sees what was written before. Later answers to requests of the same
   ring wait for this one. `status` is 0 or a negative error number.
   Errors: -EINVAL the status is positive, or the call was answered already. */
WEFT_API int weft_gpu_answer(weft_gpu_call *call, int status, uint64_t value);

/* --- persistent workers --- */

/* Tasks of a queue for kernels that stay on the GPU. A thread of this node claims tasks ahead; blocks take them (weft_device_next_task())
   and hand back their results (weft_device_task_done()), with which the thread completes them. While a block has a task, its lease is
   renewed. A task that no block finishes in time, because its block hangs, its kernel has failed, or there is no block, is given back to
   the queue. While no block shows that it is alive, no more tasks are claimed. */
typedef struct weft_gpu_worker weft_gpu_worker;

typedef struct weft_gpu_worker_config {
    size_t bytes;     /* sizeof(weft_gpu_worker_config) */
    uint32_t ahead;   /* the most tasks that it claims ahead: a power of two, at most 65536; 0: 1024 */
    int64_t task_ns;  /* the longest time that a block works on one task; 0: 10 s */
    int64_t renew_ns; /* the interval at which leases are renewed, well below the queue's lease; 0: 10 s */
} weft_gpu_worker_config;

/* Open a worker. Its queue must stay open until the worker is closed. `config` may be NULL.
   Errors: -EINVAL a setting or `config->bytes` is wrong; -E2BIG `config` has fields set that this library does not know; -ENOSPC the GPU
   has had 64 workers; -ENOMEM no memory, on the GPU or on the host; -EIO its driver has failed; -EAGAIN no thread can be started for it;
   -ENOTSUP its kernels take turns with the node; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_worker_open(weft_gpu *g, weft_queue *q, const weft_gpu_worker_config *config, weft_gpu_worker **out);

/* The argument for kernels that take the worker's tasks: a pointer to the device's memory, valid until the GPU is closed. */
WEFT_API const weft_device_worker *weft_gpu_worker_device(weft_gpu_worker *k);

/* Close a worker: it claims no more, and lets blocks do the claimed tasks, for up to the node's deadline or until no block is alive; then
   it gives the rest back. Blocks that ask for a task are told that there are none. The handle and the device's memory stay until the GPU is
   closed. NULL is allowed.
   Errors: -EINVAL it is closed already; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_worker_close(weft_gpu_worker *k);

typedef struct weft_gpu_worker_stats {
    uint64_t claimed;    /* tasks that the worker has claimed */
    uint64_t done;       /* tasks that blocks have done */
    uint64_t refused;    /* completions that the queue refused, because the lease had ended */
    uint64_t taken_back; /* tasks that no block has done in time */
} weft_gpu_worker_stats;

/* Fill `*out`. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: none. */
WEFT_API int weft_gpu_worker_stat(weft_gpu_worker *k, weft_gpu_worker_stats *out, size_t bytes);

/* --- queues that kernels submit to and claim from themselves --- */

/* Let kernels of the GPU name the queue by `*number` (weft_device_submit(), weft_device_claim(), weft_device_renew(),
   weft_device_complete()), until the GPU is closed. A queue that has a number keeps it. One thread of the node does these requests for all
   queues of a GPU. After the queue is closed their calls fail with WEFT_DEVICE_EBADF. Errors: -EINVAL no queue; -ENOSPC the GPU has had 64
   queues; -ENOMEM no memory; -EAGAIN no thread can be started; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_queue(weft_gpu *g, weft_queue *q, uint32_t *number);

typedef struct weft_gpu_stats {
    uint64_t requests; /* requests that kernels have handed over and the node has taken */
    uint64_t failed;   /* how many of them have failed */
    uint64_t waits;    /* how often a request had to wait for room towards its node */
} weft_gpu_stats;

/* Fill `*out`. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: none. */
WEFT_API int weft_gpu_stat(weft_gpu *g, weft_gpu_stats *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
