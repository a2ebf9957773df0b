/* SPDX-License-Identifier: MIT
 *
 * An open GPU: gpu.c opens and closes it, calls.c has the program's calls on it.
 */
#ifndef WEFT_GPU_HANDLE_H
#define WEFT_GPU_HANDLE_H

#include "gpu/ring.h"

struct weft_gpu {
    struct weft_node *w;
    const struct gpu_backend *backend;
    void *device;
    bool opened;              /* the back end is open */
    bool shown;               /* the program has received the handle, so kernels may use the GPU's memory */
    bool ended;               /* the GPU is being closed, and its kernels have ended */
    uint32_t rings, attached; /* number of rings; number of rings that the device can access */
    uint32_t nodes;           /* entries in the kernels' tables, for the nodes that were known when the GPU was opened */
    struct gpu_ring *ring;
    struct gpu_server *server;
    struct gpu_workers workers;
    weft_device here; /* the host's copy of weft_device, from which the kernels' copy is made */
    void *own;        /* memory for kernels: weft_device (at `there`), its tables, and words that only kernels write */
    weft_device *there;
    _Atomic uint64_t *notice; /* host memory: weft_device.notice */
    size_t notice_bytes;
    bool notice_attached;
    void **pool_attached;     /* [nodes]: pools that the device can access, or NULL */
    uint64_t *pool_at;        /* [nodes]: the addresses of these pools for the device */
    _Atomic uint32_t running; /* number of running kernels of weft_gpu_run() and other calls; increased only under open_lock */
    struct gpu_place place;
    bool turns;                  /* kernels and the node take turns */
    pthread_mutex_t server_lock; /* with `turns`: protects `server` */
    pthread_mutex_t run_lock;    /* with `turns`: held while a kernel runs, so that only one runs at a time */
    weft_gpu *next;
};

/* Counts a kernel that is about to start, or another call that uses the GPU. Closing the GPU waits for its end. False: the GPU is not open.
 */
bool gpu_enter(weft_gpu *g);
void gpu_exit(weft_gpu *g);

#endif
