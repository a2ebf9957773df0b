/* SPDX-License-Identifier: MIT
 *
 * Let the kernels of a GPU use the memory of all nodes. A kernel is a function that runs on a GPU. Kernels call the functions of
 * weft/device.h.
 *
 * A program opens a GPU for its node, and passes the pointer from weft_gpu_device() to its kernels. Kernels load and store directly in the
 * pools of nodes on this host. For other memory they write requests into rings, which are buffers shared with their node. A thread of the
 * node carries out the requests. There are three kinds of GPUs:
 * - `host` is always there. It runs C functions on threads of this process, by weft_gpu_run().
 * - `cuda`: an NVIDIA GPU. The program starts kernels itself, by CUDA, in the device's primary context.
 * - `metal`: an Apple GPU (compiled, never run). Kernels are text, which weft_gpu_run_text() compiles and runs.
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

/* How near an RDMA device is to a GPU: the closest part of the machine that connects the two. */
enum weft_gpu_distance {
    WEFT_GPU_NO_RDMA,     /* the machine has no RDMA device on PCI */
    WEFT_GPU_SAME_SWITCH, /* a PCIe switch: data between the two does not pass through a processor */
    WEFT_GPU_SAME_ROOT,   /* a PCI host bridge */
    WEFT_GPU_SAME_NODE,   /* a NUMA node */
    WEFT_GPU_OTHER_NODE   /* different NUMA nodes */
};

/* A GPU of this machine. */
typedef struct weft_gpu_info {
    char name[16];                        /* for weft_gpu_config.name: "host", "cuda:0"; the PCI address if no driver offers the GPU */
    char model[96];                       /* the model's name, from the GPU's driver */
    uint64_t memory_bytes;                /* 0: unknown */
    char pci[16];                         /* "0000:c1:00.0"; "": not on a PCI bus */
    uint32_t pcie_generation, pcie_lanes; /* current speed of the PCIe link, which may be lower while the GPU is idle; 0: not known */
    uint32_t pcie_generation_most, pcie_lanes_most; /* maximum speed of the link */
    bool usable;
    char why[160];            /* the reason, if the GPU is not usable */
    char remedy[160];         /* what to do about the reason; "": nothing, or `why` says it already */
    bool external;            /* the GPU is behind a hot-plug port, such as a Thunderbolt port */
    uint32_t rdma_distance;   /* enum weft_gpu_distance */
    char rdma[64];            /* the nearest RDMA device; "": there is none on PCI */
    uint64_t nvlink_peers;    /* bit i is set if NVLink connects the GPU with cuda:i */
    char no_rdma[160];        /* why RDMA devices cannot access the GPU's memory; "": devices that register dmabufs can */
    char no_rdma_remedy[160]; /* what to do about no_rdma; "": nothing helps */
} weft_gpu_info;

/* Describe the GPU with the number `index`. Numbers start at 0: first the GPUs that a driver offers, then GPUs on PCI that weft cannot use,
 * and last `host`. `why` has the reason for each GPU that is not usable. `bytes` is sizeof *out; fields that this library does not know are
 * set to 0.
 * Errors: -ENOENT there are not so many GPUs. */
WEFT_API int weft_gpu_look(uint32_t index, weft_gpu_info *out, size_t bytes);

typedef struct weft_gpu_config {
    size_t bytes;     /* sizeof(weft_gpu_config) */
    const char *name; /* "cuda:0", "host"; NULL: the first usable GPU */
    uint32_t rings;   /* rings of requests, at most 256; 0: 8. Best is one ring for every few blocks */
    uint32_t slots;   /* slots of a ring, a power of two, at most 65536; 0: 4096. A request takes one or two slots */
    uint32_t turns;   /* 1: kernels and the node take turns, as weft_gpu_run_text() explains. Such a GPU has no persistent workers */
} weft_gpu_config;

/* Open a GPU for this node, and store its handle in `*out`. `config` may be NULL: the first GPU that can be used. weft_gpu_close() or
 * weft_close() closes it.
 * Errors: -EINVAL a setting or `config->bytes` is wrong; -E2BIG `config` has fields set that this library does not know; -ENODEV there is
 * no such GPU, or the GPU is not usable; -ENOSPC the node has 64 GPUs open; -ENOMEM no memory, on the GPU or on the host; -EIO the GPU's
 * driver has failed; -EAGAIN no thread can be started to serve the GPU; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_open(weft_node *w, const weft_gpu_config *config, weft_gpu **out);

/* Close the GPU with its workers and arenas. The call first carries out the requests that kernels have made. Waits inside kernels end, and
 * the call waits until the kernels have ended, at most until the default deadline. On a CUDA GPU these are all kernels of this process,
 * also those that use another handle of this GPU, or do not use weft. No kernel may be started from then on. If kernels still run at the
 * deadline, or operations are under way, for example to a stopped node, the GPU and its arenas keep their memory until weft_close(). If
 * kernels run even longer, weft_close() does not free this memory. NULL is allowed. weft_close() closes the GPUs that are still open.
 *
 * Errors: -EINVAL the GPU is closed already; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_close(weft_gpu *g);

/* The pointer that the program passes to its kernels. The pointer is to memory of the GPU, and valid until the GPU is closed. A kernel with
 * many short calls is faster with a copy of the structure in a local variable, and fastest with a copy as the kernel's parameter
 * (weft_gpu_device_copy()). */
WEFT_API const weft_device *weft_gpu_device(weft_gpu *g);

/* Copy the weft_device into `*out`, so that a program can pass the structure itself to its kernels. In CUDA, a kernel whose parameter is
 * `const __grid_constant__ weft_device d` calls the functions of weft/device.h with &d. Parameters are in constant memory, which a GPU
 * reads without delay. Other memory must be read again after each wait. `bytes` is sizeof *out. The copy is valid as long as the pointer
 * from weft_gpu_device(). */
WEFT_API void weft_gpu_device_copy(weft_gpu *g, weft_device *out, size_t bytes);

/* Open an arena: memory of the GPU with addresses in the cluster. `*space` receives the arena's number, 1 to 15. All operations of
 * weft/fabric.h and all calls of kernels accept these addresses. The local memory of puts and gets may also be in an arena of this node
 * (weft_gpu_ptr()), but not in another node's arena.
 *
 * The node that owns the arena carries out all atomics on its words, one at a time. These atomics are not atomic against kernels that
 * change the word directly.
 *
 * Closing the GPU closes the arena. weft_gpu_close() first waits for operations of other nodes on the arena, at most until the default
 * deadline.
 *
 * Another node on this host that has opened a GPU of the same kind maps the arena: its GPU copies directly, and its kernels load and store
 * there (weft_device_ptr()). Other GPUs of both nodes can do the same, if the driver gives them access, for example over NVLink. The
 * mapping remains when the owner closes the arena or dies, because kernels may still use the mapping. It ends when the owner opens another
 * arena in the same space, or when the mapping node closes its GPUs. Only then is the GPU's memory free again.
 *
 * Nodes on other hosts send their operations to the owner as messages. Over rc, RDMA devices then move large data directly between the
 * arena and pools, if they can register the GPU's memory as a dmabuf (WEFT_GPU_RDMA=no: never). Otherwise large data is copied through the
 * pools of both nodes. weft_link_stats.arena_way and arena_why report which way a node uses, and why.
 *
 * The call tells all nodes about the arena and waits for their answers, at most until the default deadline. weft_gpu_open() waits until
 * this node has mapped the existing arenas, at most 10 s. weft_fence() to a node waits for operations on its GPU memory, or fails with
 * -EDEADLK in a handler.
 * Errors: -EINVAL `bytes` is 0 or too large for an address, or the GPU is closed; -ENOMEM the GPU has not so much memory; -ENOSPC this node
 * has 15 arenas already; -EIO the GPU's driver has failed; -EAGAIN no thread can be started; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_arena(weft_gpu *g, size_t bytes, uint32_t *space);

/* Allocate in an arena of this node, as weft_alloc() does in the pool; weft_free() frees it.
 * Errors: -EINVAL `bytes` is 0; -EFAULT there is no such arena; -ENOMEM no room (the arena stays usable). */
WEFT_API int weft_gpu_alloc(weft_gpu *g, uint32_t space, size_t bytes, weft_gaddr *out);

/* The pointer by which kernels of the GPU can access the memory at an address; NULL if they cannot. On a Metal GPU this is the processor's
 * pointer, and a kernel gets its own pointer from weft_device_ptr(). */
WEFT_API void *weft_gpu_ptr(weft_gpu *g, weft_gaddr addr, size_t bytes);

typedef void (*weft_gpu_kernel)(const weft_device *d, void *arg);

/* Run a C function as a kernel on the GPU `host`, in 1 to 1024 blocks, and wait until the kernel has ended. Each block is a thread with a
 * weft_device of its own. With weft_gpu_config.turns, the requests are carried out after the kernel's end, and the call returns the first
 * error of a request without an op.
 * Errors: -ENOTSUP the GPU is of another kind; -EINVAL `kernel` is NULL, the number of blocks is wrong, or the GPU is closed; -EAGAIN so
 * many threads cannot be started (no block has run); -ENOMEM no memory for so many blocks; -ETIMEDOUT with `turns`: requests were not
 * complete at the node's deadline; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_run(weft_gpu *g, weft_gpu_kernel kernel, uint32_t blocks, void *arg);

/* Compile a kernel in Metal's language, run it in `blocks` threadgroups of `threads` threads, and wait until it has ended. weft puts the
 * text of weft/device.metal.h, which describes such kernels, before `text`. The kernel's argument (buffer 1) is a copy of the `bytes` bytes
 * at `arg`; it is copied back at the end. Compiled for macOS, never run.
 *
 * With Apple's GPUs a processor can read what a kernel has written only after the kernel has ended. So the node carries out the requests of
 * a kernel after its end. The call returns when these requests are complete, or at the default deadline. If the deadline comes first, the
 * next call first waits for these requests. The call returns the first error of a request without an op. One kernel runs at a time.
 * Errors: -ENOTSUP the GPU is of another kind; -EINVAL `text` is NULL, has no kernel of that name, or does not compile; -ENOMEM no memory;
 * -EIO the GPU has failed; -ETIMEDOUT requests were not complete at the node's deadline; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_run_text(weft_gpu *g, const char *text, const char *kernel, uint32_t blocks, uint32_t threads, void *arg,
                               size_t bytes);

/* --- services: functions of the program that kernels call --- */

#define WEFT_GPU_SERVICES 64u

/* A call of a kernel that has not been answered yet. */
typedef struct weft_gpu_call weft_gpu_call;
/* A function of the program that kernels call. weft calls it with a kernel's `record`: WEFT_DEVICE_RECORD_BYTES bytes in this node's pool,
 * aligned to 8. If the kernel's record is in an arena, `record` is a copy, which weft copies back with the answer. The kernel may change
 * the record meanwhile: read each value once, and check it. The function must not wait, because it runs on the thread that serves the GPU.
 * The program must answer each call once, by weft_gpu_answer(), at once or later. */
typedef void (*weft_gpu_service_fn)(weft_node *w, void *record, weft_gpu_call *call, void *arg);

/* Install the function for calls with the number `number`, below WEFT_GPU_SERVICES. The function stays installed until weft_close().
 * Errors: -EINVAL `number` is too large, or `fn` is NULL; -EALREADY the number has a service already. */
WEFT_API int weft_gpu_service(weft_node *w, uint32_t number, weft_gpu_service_fn fn, void *arg);

/* Answer a call, once, from any thread, before weft_close(). A kernel that sees the answer also sees everything that this thread wrote
 * before. Answers to later requests of the same ring wait for this answer. `status` is 0 or a negative error number.
 * Errors: -EINVAL `status` is positive, or the call was answered already. */
WEFT_API int weft_gpu_answer(weft_gpu_call *call, int status, uint64_t value);

/* --- persistent workers --- */

/* A worker gives tasks of a queue to kernels that stay on the GPU. A thread of this node claims tasks in advance and renews their leases.
 * Blocks take the tasks by weft_device_next_task(), and return the results by weft_device_task_done(). If a block does not finish a task
 * within task_ns, the thread gives the task back to the queue. The thread claims tasks only while blocks ask for them. */
typedef struct weft_gpu_worker weft_gpu_worker;

typedef struct weft_gpu_worker_config {
    size_t bytes;     /* sizeof(weft_gpu_worker_config) */
    uint32_t ahead;   /* maximum number of tasks claimed ahead: a power of two, at most 65536; 0: 1024 */
    int64_t task_ns;  /* the longest time that a block may work on one task; 0: 10 s */
    int64_t renew_ns; /* the interval at which the worker renews leases; must be well below the lease of all tasks that it claims; 0: a
                         quarter of the lease with which this node has opened the queue, and at most 10 s */
} weft_gpu_worker_config;

/* Open a worker for the queue `q`, which must stay open until the worker is closed. `config` may be NULL.
 * Errors: -EINVAL a setting or `config->bytes` is wrong, or the GPU is closed; -E2BIG `config` has fields set that this library does not
 * know; -ENOSPC the GPU has had 64 workers; -ENOMEM no memory, on the GPU or on the host; -EIO the GPU's driver has failed; -EAGAIN no
 * thread can be started for the worker; -ENOTSUP the GPU's kernels take turns with the node; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_worker_open(weft_gpu *g, weft_queue *q, const weft_gpu_worker_config *config, weft_gpu_worker **out);

/* The pointer that the program passes to the kernels of this worker. It leads to memory of the GPU, and is valid until the GPU is closed.
 */
WEFT_API const weft_device_worker *weft_gpu_worker_device(weft_gpu_worker *k);

/* Close a worker. The worker claims no more tasks, and waits until blocks have done the claimed tasks. The wait ends at the default
 * deadline, or when no block takes tasks any more. Remaining tasks go back to the queue. Blocks that ask for a task get
 * -WEFT_DEVICE_ESHUTDOWN. NULL is allowed.
 * Errors: -EINVAL the worker is closed already; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_worker_close(weft_gpu_worker *k);

typedef struct weft_gpu_worker_stats {
    uint64_t claimed;    /* tasks that the worker has claimed */
    uint64_t done;       /* tasks that blocks have done */
    uint64_t refused;    /* completions that the queue refused, because the lease had ended */
    uint64_t taken_back; /* tasks that the worker gave back to the queue, because no block had done them in time */
} weft_gpu_worker_stats;

/* Fill `*out`. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: none. */
WEFT_API int weft_gpu_worker_stat(weft_gpu_worker *k, weft_gpu_worker_stats *out, size_t bytes);

/* --- queues for calls of kernels --- */

/* Give the queue a number, and store it in `*number`. Kernels of this GPU pass this number to weft_device_submit(), weft_device_claim(),
 * weft_device_renew() and weft_device_complete(). The number is valid until the GPU is closed. Another call for the same queue returns the
 * same number. One thread of the node carries out these calls for all queues of a GPU. After the queue is closed, they fail with
 * WEFT_DEVICE_EBADF.
 * Errors: -EINVAL `q` is NULL, or the GPU is closed; -ENOSPC the GPU has had 64 queues; -ENOMEM no memory; -EAGAIN no thread can be
 * started; -EDEADLK called from a handler. */
WEFT_API int weft_gpu_queue(weft_gpu *g, weft_queue *q, uint32_t *number);

typedef struct weft_gpu_stats {
    uint64_t requests; /* requests that the node has taken from kernels */
    uint64_t failed;   /* how many of these requests have failed, attempts that found no task or no bytes included */
    uint64_t waits;    /* how often a request had to wait for room in the queue to its target node */
} weft_gpu_stats;

/* Fill `*out`. `bytes` is sizeof *out; fields that this library does not know are set to 0.
 * Errors: none. */
WEFT_API int weft_gpu_stat(weft_gpu *g, weft_gpu_stats *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
