/* SPDX-License-Identifier: MIT
 *
 * Calls of kernels for work queues: to submit, claim and complete tasks, and for persistent workers, whose blocks take tasks that the node
 * has claimed in advance. Included by weft/device.h.
 */
#ifndef WEFT_DEVICE_TASKS_H
#define WEFT_DEVICE_TASKS_H

#include "device_ring.h"
#if !defined(WEFT_DEVICE_METAL)
#include "queue.h"
#endif

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
extern "C" {
#endif

/* --- work queues: like the calls of the same names in weft/queue.h --- */

/* `queue` is a number from weft_gpu_queue(). A call takes at most WEFT_DEVICE_TASKS tasks; with more it fails with -WEFT_DEVICE_EINVAL. The
 * arrays of tasks, ids, leases and results must be in the pool or in an arena of the kernel's node. Kernels read and write an array in an
 * arena faster, but the GPU copies such an array from and to the node, which takes some microseconds. Do not use the arrays before the
 * answer has arrived: after -WEFT_DEVICE_ETIMEDOUT the node may still write to them, until the GPU is closed. The errors are those of
 * weft/queue.h, and also: -WEFT_DEVICE_ENOENT there is no queue of this number; -WEFT_DEVICE_EFAULT memory outside the pool and the arenas;
 * -WEFT_DEVICE_EIO the GPU has failed.
 *
 * A `_start` call posts one request, for a single attempt. After success, the op's `value` is the number of tasks. If the queue has no free
 * slot, or no task is ready, the op ends with -WEFT_DEVICE_EAGAIN. The call itself only waits if the kernel's ring of requests is full:
 * with `wait` until the ring has a free slot; without `wait` it returns -WEFT_DEVICE_EAGAIN.
 *
 * The other calls wait until the queue has a free slot or a ready task, at most for weft_device.deadline_ns. They wait for each answer at
 * most as long again. With weft_device.nowait they make a single attempt, which may end with -WEFT_DEVICE_EAGAIN. */

/* The node that claims a task sees payloads that the kernel has stored before this call. If the kernel has put a payload to another node,
 * first call weft_device_flush(). */
WEFT_DEVICE_CALL int weft_device_submit_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t tasks, uint32_t count, uint64_t ids,
                                              bool wait, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_SUBMIT, {tasks, ids, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
WEFT_DEVICE_CALL int weft_device_claim_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t max, bool wait,
                                             WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_CLAIM, {leases, 0, 0}, {max, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* The op's `value` has a bit for each claim that this node still holds, bit 0 for the first. */
WEFT_DEVICE_CALL int weft_device_renew_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t count, bool wait,
                                             WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_RENEW, {leases, 0, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* Bit i of the op's `value` is 1 if completion i was accepted (counted from 0). */
WEFT_DEVICE_CALL int weft_device_complete_start(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint64_t results,
                                                uint32_t count, bool wait, WEFT_NEAR weft_device_op *op)
{
    weft_device_request q = {WEFT_DEVICE_COMPLETE, {leases, results, 0}, {count, queue, 0}};
    return weft_device_post(d, &q, wait, op);
}
/* Repeats the request until its answer is not -WEFT_DEVICE_EAGAIN; with d->nowait makes it once. Returns the number of tasks. */
WEFT_DEVICE_CALL int weft_device_ask_queue(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_request *q)
{
    weft_device_patience p = {0, 0};
    for (;;) {
        uint64_t n = 0;
        int rc = weft_device_call(d, q, &n);
        if (rc != -WEFT_DEVICE_EAGAIN || d->nowait)
            return rc ? rc : (int)n;
        if (weft_device_late(d, &p))
            return -WEFT_DEVICE_ETIMEDOUT;
    }
}
/* Submits as many tasks, from the start of the array, as the queue has free slots for, at least 1. Returns the number of submitted tasks.
 * `ids` may be 0. -WEFT_DEVICE_ETIMEDOUT: the queue had no free slot, or no answer arrived. In the second case the tasks may have been
 * submitted. */
WEFT_DEVICE_CALL int weft_device_submit(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t tasks, uint32_t count, uint64_t ids)
{
    weft_device_request q = {WEFT_DEVICE_SUBMIT, {tasks, ids, 0}, {count, queue, 0}};
    return weft_device_ask_queue(d, &q);
}
/* Claims up to `max` tasks, at least 1, and returns the number of claimed tasks. If a task takes longer than the queue's lease, renew the
 * lease in time (weft_device_renew()); persistent workers do this by themselves. -WEFT_DEVICE_ESHUTDOWN: no task is ready, and no more will
 * come. -WEFT_DEVICE_ETIMEDOUT: the node may have claimed tasks, which become ready again when their leases end. */
WEFT_DEVICE_CALL int weft_device_claim(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t max)
{
    weft_device_request q = {WEFT_DEVICE_CLAIM, {leases, 0, 0}, {max, queue, 0}};
    return weft_device_ask_queue(d, &q);
}
/* Posts a request about several claims, and returns for how many it succeeded. In `*which` (may be NULL) bit i is set if it succeeded for
 * claim i. */
WEFT_DEVICE_CALL int weft_device_ask_bits(WEFT_NEAR const weft_device *d, WEFT_NEAR const weft_device_request *q, WEFT_NEAR uint64_t *which)
{
    uint64_t bits = 0;
    int rc = weft_device_call(d, q, &bits), n = 0;
    if (rc)
        return rc;
    if (which)
        *which = bits;
    for (; bits; bits &= bits - 1)
        n++;
    return n;
}
/* Completes `count` claims with the `count` weft_result at `results`. Returns how many completions were accepted. In `*accepted` (may be
   NULL) bit i is set if completion i was accepted. */
WEFT_DEVICE_CALL int weft_device_complete(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint64_t results, uint32_t count,
                                          WEFT_NEAR uint64_t *accepted)
{
    weft_device_request q = {WEFT_DEVICE_COMPLETE, {leases, results, 0}, {count, queue, 0}};
    return weft_device_ask_bits(d, &q, accepted);
}
/* Renews `count` claims, like weft_renew(): changes the leases at `leases`. Returns how many claims this node still holds. In `*held` (may
 * be NULL) bit i is set if claim i is still held. A claim does not count as held if it is lost, or if the node with its task does not
 * answer. */
WEFT_DEVICE_CALL int weft_device_renew(WEFT_NEAR const weft_device *d, uint32_t queue, uint64_t leases, uint32_t count,
                                       WEFT_NEAR uint64_t *held)
{
    weft_device_request q = {WEFT_DEVICE_RENEW, {leases, 0, 0}, {count, queue, 0}};
    return weft_device_ask_bits(d, &q, held);
}

/* --- persistent workers: kernels that do tasks until there are no more --- */
#if !defined(WEFT_DEVICE_METAL)

/* While more than WEFT_DEVICE_TASKS_SURE tasks are in the ring, a thread takes a number without checking whether the task of that number
 * has arrived (weft_device_next_task()). */
#ifndef WEFT_DEVICE_TASKS_SURE
#define WEFT_DEVICE_TASKS_SURE 512u
#endif
/* The thread that takes a task with a multiple of this number also reads the number of tasks in the ring, for all threads. */
#define WEFT_DEVICE_TASKS_LOOK 64u

/* A task for a worker's blocks. Written by the node. `number` is the task's number + 1, or 0 while the other words change. */
typedef struct weft_device_task_slot {
    uint64_t number, unused[7];
    weft_device_cell task[4]; /* a weft_task */
} __attribute__((aligned(128))) weft_device_task_slot;

#define WEFT_DEVICE_BEATS 1024u
/* A ring of tasks that the node has claimed in advance (weft_gpu_worker_open()). The node writes `slots`, `filled` and `ended`; kernels
 * write the other words. A block takes the number of a task by an atomic of the device (weft_device_next_task()). */
typedef struct weft_device_worker {
    uint64_t number; /* the worker's number */
    uint64_t mask;   /* number of slots (a power of two) minus 1 */
    WEFT_FAR const weft_device_task_slot *slots;
    const uint64_t *filled; /* number of tasks that the node has put into the ring */
    const uint64_t *ended;  /* not 0: no more tasks will come */
    uint64_t *beats;        /* for each block: 1 + the number of the task for which the block waited last */
    uint64_t *next;         /* the number of the next task to be taken */
    uint64_t *filled_seen;  /* the last read value of `filled` */
} weft_device_worker;

/* A task that a block has taken. */
typedef struct weft_device_task {
    weft_task task;
    uint64_t number; /* private */
} weft_device_task;

/* Reads the task of this number. Before this call, the caller must have loaded, with acquire, a value of `filled` above the number. False:
 * the node has taken the task back, or has skipped the number. */
WEFT_DEVICE_CALL bool weft_device_read_task(WEFT_FAR const weft_device_worker *k, uint64_t number, WEFT_NEAR weft_device_task *out)
{
    union {
        weft_task task;
        uint64_t words[8];
    } u;
    WEFT_FAR const weft_device_task_slot *s = &k->slots[number & k->mask];
    weft_device_load_words(s->task, 4, u.words);
    out->task = u.task;
    out->number = number;
    return weft_device_load(&s->number) == number + 1; /* if the number has changed, the words may belong to other tasks */
}

/* Waits until task `t` is in the ring. `drawn` is false if the thread has not taken the number `t` yet; then the call only polls once, and
 * may return -WEFT_DEVICE_EAGAIN. */
WEFT_DEVICE_CALL int weft_device_task_is_in(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_worker *k, uint64_t t, bool drawn,
                                            WEFT_NEAR weft_device_patience *p)
{
    uint64_t *beat = &k->beats[weft_device_block(d) % WEFT_DEVICE_BEATS];
    while (t >= weft_device_load_passed(k->filled_seen)) {
        uint64_t ended = weft_device_load(k->ended); /* read before `filled`, so that tasks that came before the end are still taken */
        uint64_t filled = weft_device_load(k->filled);
        if (t < filled) {
            weft_device_store_passed(k->filled_seen, filled);
            return 0;
        }
        if (ended)
            return -WEFT_DEVICE_ESHUTDOWN;
        weft_device_tell(beat, t + 1); /* all tasks before `t` have been taken */
        if (weft_device_late(d, p))    /* also true if the GPU is being closed, but workers end before the GPU is closed */
            return weft_device_load(k->ended) ? -WEFT_DEVICE_ESHUTDOWN : -WEFT_DEVICE_ETIMEDOUT;
        if (!drawn)
            return -WEFT_DEVICE_EAGAIN;
    }
    return 0;
}

/* Takes the next task of a worker; if there is no task, waits for one. If the threads of a block work on a task together, let one thread
 * make this call and share the result. -WEFT_DEVICE_ESHUTDOWN: there are no more tasks, because the worker was closed or its queue was shut
 * down. -WEFT_DEVICE_ETIMEDOUT: no task has arrived for weft_device.deadline_ns.
 *
 * While more than WEFT_DEVICE_TASKS_SURE tasks are in the ring, a thread takes its number by an addition, which always succeeds. Otherwise
 * the thread waits for the task and then takes the number by a compare-and-swap, so that no number is lost if the wait ends. With many
 * threads the compare-and-swap is slow, because only one thread succeeds at a time. If more than WEFT_DEVICE_TASKS_SURE threads add at the
 * same time, a thread may take the number of a task that has not arrived yet. The thread then waits for this task. If this wait ends too
 * early, the node gives the task back to the queue after weft_gpu_worker_config.task_ns. */
WEFT_DEVICE_CALL int weft_device_next_task(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_worker *worker,
                                           WEFT_NEAR weft_device_task *out)
{
    const weft_device_worker own = *worker, *k = &own; /* a local copy, because each acquire empties the multiprocessor's cache */
    weft_device_patience p = {0, 0};
    for (;;) {
        uint64_t t = weft_device_load_own(k->next), seen = weft_device_load_passed(k->filled_seen);
        bool sure = (int64_t)(seen - t) > (int64_t)WEFT_DEVICE_TASKS_SURE;
        if (sure)
            t = weft_device_add_own(k->next, 1);
        int rc = t < seen ? 0 : weft_device_task_is_in(d, k, t, sure, &p);
        if (rc == -WEFT_DEVICE_EAGAIN)
            continue;
        if (rc)
            return rc;
        if (!sure && weft_device_swap_own(k->next, t, t + 1) != t)
            continue;
        if (t % WEFT_DEVICE_TASKS_LOOK == 0)
            weft_device_store_passed(k->filled_seen, weft_device_load(k->filled)); /* overwriting a newer value is harmless */
        if (weft_device_read_task(k, t, out))
            return 0;
    }
}

/* Completes a task: its submitter gets `status`, `result` and `result_len` as from weft_complete(). A node that sees the completion also
 * sees all earlier stores of this thread, and stores that other threads of the block made before a barrier. The call does not wait for the
 * completion. */
WEFT_DEVICE_CALL int weft_device_task_done(WEFT_NEAR const weft_device *d, WEFT_FAR const weft_device_worker *k,
                                           WEFT_NEAR const weft_device_task *task, int32_t status, uint64_t result, uint64_t result_len)
{
    weft_device_request q = {
        WEFT_DEVICE_TASK_DONE, {task->number, result, k->number << 32 | (uint32_t)status}, {0, result_len & ~WEFT_DEVICE_ROUND, 0}};
    return weft_device_post(d, &q, true, NULL);
}

#endif

#if defined(__cplusplus) && !defined(WEFT_DEVICE_METAL)
}
#endif
#endif
