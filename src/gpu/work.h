/* SPDX-License-Identifier: MIT
 *
 * A persistent worker and its tasks: see work.c and work_open.c. Members that different threads write are on different cache lines.
 */
#ifndef WEFT_GPU_WORK_H
#define WEFT_GPU_WORK_H

#include "gpu/gpu.h"

/* A task in the ring. The worker's first thread writes all members except `result`. The members that other threads write, too, are on the
 * first cache line: `held`, `result` and `used`.
 */
struct work_task {
    /* The task's number + 1 while no block has done the task. The thread that sets this to 0 decides how the task ends. */
    _Alignas(BASE_CACHE_LINE) _Atomic uint64_t held;
    weft_result result; /* written by the serving thread, until `held` is 0 and the slot is listed in `done` */
    uint64_t number;
    int64_t since;                              /* from this time on, a block could have done the task */
    _Atomic bool used;                          /* set by the first thread; cleared, as the last step, by the thread that ends the task */
    bool taken;                                 /* a block is known to have taken the task */
    _Alignas(BASE_CACHE_LINE) weft_lease lease; /* renewals change it while `held` is not 0; protected by lease_lock */
};

struct weft_gpu_worker {
    struct gpu_workers *all;
    weft_queue *q;
    weft_gpu_worker_config config;
    uint32_t number;
    bool open; /* guarded by gpu_workers.lock */
    uint64_t mask;
    struct work_task *tasks;
    uint32_t *done; /* the slots of tasks that are done; written by the serving thread; as many entries as slots */
    void *memory;   /* the memory of the following members, shared with kernels */
    size_t bytes;
    weft_device_task_slot *slots;
    uint64_t *filled, *ended;
    uint64_t *beats;
    bool attached;
    void *own; /* memory that only kernels write */
    pthread_t thread, second;
    pthread_mutex_t lease_lock;
    pthread_cond_t wakes;  /* with lease_lock; the second thread waits for it until there are tasks or the worker is closed */
    _Atomic bool sleeps;   /* the second thread sleeps, because there are no tasks */
    _Atomic int64_t until; /* when the first thread must have ended; INT64_MAX: the worker is not being closed */
    _Atomic bool over;     /* the second thread must end */

    /* Written by the serving thread. */
    _Alignas(BASE_CACHE_LINE) _Atomic uint64_t done_tail;
    _Atomic uint64_t stale; /* how many results were for tasks that had been taken back */

    /* Written by the second thread. */
    _Alignas(BASE_CACHE_LINE) uint64_t done_head;
    _Atomic uint64_t completed, refused;
    _Atomic uint64_t done_reached; /* number of the last task that a block has done: blocks have taken all tasks before it */

    /* Used by the first thread. */
    _Alignas(BASE_CACHE_LINE) uint64_t next; /* number of the next task to put into the ring */
    uint64_t reached;                        /* all tasks before this number are known to be taken by blocks */
    uint64_t put;                            /* how many tasks were put into the ring */
    uint64_t completed_seen;                 /* the value of `completed` at the last look */
    _Atomic uint64_t claimed, taken_back;
    int64_t life;        /* when a block last showed activity */
    int64_t upkeep;      /* when the worker's thread last did its upkeep */
    int64_t renewed;     /* when leases were last renewed */
    int64_t checked;     /* when the device was last checked for errors */
    uint64_t beats_seen; /* the sum of the blocks' counters */
    bool stalled;        /* no block has shown activity for long: perhaps no block runs */
    bool failed;         /* the device has failed */
    bool finished;       /* no more tasks will be claimed */
};

/* The worker's two threads; the argument is the worker. */
void *gpu_work_run(void *arg);
void *gpu_work_finish(void *arg);
void gpu_work_wake(weft_gpu_worker *k); /* wakes the second thread; call it after `claimed` or `over` was changed */

#endif
